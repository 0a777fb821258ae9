/* Requests as the coordinator holds them, and the KV blocks that they use.
 *
 * A request is the record from which a sequence is opened, replayed and journalled: prompt, tokens emitted, parameters,
 * seed. Everything else about it (slot, blocks, rows sent) belongs to one epoch and can be thrown away at any time:
 * what was sent is sent again.
 *
 * Threads: the loop's thread. */
#pragma once

#include "coordinator/coordinator.h"
#include "engine/base/rng.h"
#include "proto/paceline.pb-c.h"

/* Hands out the ids 0..n-1 of KV blocks; the one that came back last goes out first, as its pages are likely to be
 * warm. A block that sequences with a common prefix share has several owners, and is free when the last one gives it
 * back. */
typedef struct pl_blocks {
    int32_t *free_ids, *owners;
    int32_t n_free, n;
} pl_blocks;
PL_MUST_CHECK pl_status pl_blocks_init(pl_blocks *b, int32_t n, pl_error *err);
void pl_blocks_fini(pl_blocks *b); /* all zero is valid, and empty */
/* Appends n ids at out; false, and nothing taken, when there are not so many. */
PL_MUST_CHECK bool pl_blocks_take(pl_blocks *b, int32_t *out, int32_t n);
/* One more owner for each of ids, which have one. */
void pl_blocks_share(pl_blocks *b, const int32_t *ids, int32_t n);
void pl_blocks_give(pl_blocks *b, const int32_t *ids, int32_t n);
/* Blocks for so many positions. */
static inline int32_t pl_blocks_for(int32_t n_pos)
{
    return n_pos / PL_KV_PAGE + (n_pos % PL_KV_PAGE != 0);
}

typedef enum { PL_REQUEST_WAITING, PL_REQUEST_RUNNING, PL_REQUEST_ENDED } pl_request_state;

#define PL_REQUEST_ID_MAX 128

struct pl_request {
    pl_request *prev, *next; /* of the open ones in order of arrival, or of the ended ones */
    uint64_t order;          /* of arrival: age decides who is served and who is preempted */
    pl_request_state state;
    pl_request_events events;
    void *user;

    char id[PL_REQUEST_ID_MAX + 1];
    pl_sample_params sample;
    void *sample_block;                        /* what sample points to */
    ProtobufCBinaryData *breakers;             /* sample's, as they go onto the wire */
    uint8_t sample_state[PL_SAMPLE_STATE_MAX]; /* with the last token */
    uint32_t n_sample_state;
    int32_t max_tokens; /* as resolved: never beyond the context */
    bool ignore_eos, no_cache;
    int32_t *tokens; /* prompt, then what was emitted */
    int32_t n_prompt, n_tokens, tokens_cap;
    int32_t n_emitted, n_keep;
    bool context_shift;
    uint64_t n_shifted; /* tokens that context shifts left out: added to a position, it gives that of the whole text */
    uint64_t submitted_ns;
    uint32_t n_replays;
    pl_request_stats stats;
    float adapters[PL_ADAPTERS_MAX];
    Paceline__Adapter adapter_records[PL_ADAPTERS_MAX], *adapter_list[PL_ADAPTERS_MAX]; /* those that are not 0 */
    size_t n_adapters;

    /* Of this epoch. */
    int32_t slot;      /* RUNNING: the sequence's number */
    uint64_t run;      /* which time it was let in: tells what is in flight from before a preemption */
    int32_t n_sent;    /* tokens whose rows went into frames, or whose rows another sequence had */
    int32_t n_draft;   /* rows behind them that are in flight, with guessed tokens */
    int32_t draft_len; /* how many guesses its next frame may have */
    int32_t guesses[PL_DRAFT_MAX], n_guess, guessed_at; /* guessed_at: n_tokens when they were made */
    uint64_t served; /* when rows were last taken, in frames; when it became ready, for decoding */

    pl_finish finish; /* ENDED */
    pl_error why;
};

/* Tokens whose rows can go out. None while guesses are in flight: which of them hold decides what comes next. */
static inline int32_t pl_request_pending(const pl_request *r)
{
    return r->n_draft ? 0 : r->n_tokens - r->n_sent;
}

/* Checks params and makes the record; n_ctx is the longest sequence and n_vocab bounds the tokens. rng: for what the
 * params leave open. */
PL_MUST_CHECK pl_status pl_request_new(pl_request **out, const pl_request_params *params, int32_t n_ctx,
                                       int32_t n_vocab, pl_rng *rng, pl_error *err);
void pl_request_free(pl_request *r);
/* False when there is no memory. */
/* Leaves out the older half of what is behind the tokens that are kept (Xiao et al. 2024 keep the first ones, too). The
 * rest is a shorter text whose draws go on at the same positions: a replay of it gives the same tokens. */
void pl_request_shift(pl_request *r);
PL_MUST_CHECK bool pl_request_append(pl_request *r, const pl_sampled *token);

/* The record on the wire: *out and *params point into r until it changes. */
void pl_request_record(const pl_request *r, Paceline__Sequence *out, Paceline__Params *params);
