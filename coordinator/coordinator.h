/* The coordinator: knows its nodes, splits the model over them, schedules requests through the pipeline, and heals it.
 * A state machine: messages, timers and requests in, messages and callbacks out.
 *
 * Threads: the loop's thread. Callbacks come from the loop, never from inside the call that caused them. */
#pragma once

#include "engine/base/buf.h"
#include "engine/base/json.h"
#include "engine/gguf/read.h"
#include "engine/model/profile.h"
#include "engine/sample/sampler.h"
#include "transport/link.h"

typedef struct pl_coordinator pl_coordinator;

#define PL_DRAFT_MAX 16 /* more is not accepted often enough to pay for its rows */

typedef struct pl_request pl_request;
/* Guesses what r says next: at most max, 1 to PL_DRAFT_MAX, tokens at out. Returns how many, or -1: none yet; it is
 * asked again soon after pl_coordinator_guessed. */
typedef int32_t (*pl_guess)(void *user, const pl_request *r, int32_t *out, int32_t max);

typedef struct pl_coordinator_options {
    int32_t n_seqs;   /* requests served at once (slots), llama.cpp's --parallel; 0: 4 */
    int32_t n_ctx;    /* longest sequence in tokens; 0: the model's, at most 4096 */
    int32_t n_rows;   /* largest micro-batch, llama.cpp's --ubatch-size; 0: 512 */
    int32_t n_blocks; /* KV blocks; 0: enough for n_seqs sequences of n_ctx */
    pl_cache_types cache; /* f16 is the default; as 0 is f32, say has_cache */
    bool has_cache;
    int32_t credits;            /* frames in flight per link; 0: 4 */
    int32_t queue_max;          /* requests waiting for a slot; 0: 256: beyond it a client is told to come back */
    int32_t min_nodes;          /* wait for so many before the first plan; 0: 1 */
    int32_t n_stages;           /* split over exactly so many nodes, or as many as there are; 0: as many as are best */
    int objective;              /* pl_objective in placement.h; 0: throughput when n_seqs > 1, else latency */
    uint64_t settle_ns;         /* after a join, wait so long for others before planning; 0: 500 ms */
    uint64_t heartbeat_ns;      /* 0: 250 ms */
    uint64_t dead_after_ns;     /* silence that means death; 0: 2 s */
    uint64_t load_timeout_ns;   /* without progress; 0: 60 s */
    uint64_t unplaced_grace_ns; /* how long requests wait for a pipeline before they are told; 0: 10 s */
    uint64_t seed;              /* for requests that bring none; 0: from the system */
    int32_t n_kept;             /* ended sequences kept for requests that begin like them; 0: n_seqs; -1: none */
    int32_t n_draft;            /* guesses per step and request, at most PL_DRAFT_MAX; 0: no speculation */
    pl_guess guess;             /* who makes them; NULL: pl_guess_repeated in coordinator/guess.h */
    void *guess_user;
} pl_coordinator_options;

/* The model: gguf, profile and hashes (one per tensor) are borrowed until the net is freed, as pieces of the file may
 * be on their way to nodes. is_eog: whether a token ends a generation. */
typedef struct pl_coordinator_model {
    const pl_gguf *gguf;
    const pl_model_profile *profile;
    const pl_hash *hashes;
    const char *name;
    bool (*is_eog)(void *user, int32_t token);
    void *user;
} pl_coordinator_model;

PL_MUST_CHECK pl_status pl_coordinator_new(pl_coordinator **out, pl_loop *loop, const pl_coordinator_model *model,
                                           const pl_coordinator_options *options, pl_error *err);
extern const pl_net_events pl_coordinator_net_events;
void pl_coordinator_start(pl_coordinator *c, pl_net *net);
/* Dials this node, now and whenever its link is lost. */
PL_MUST_CHECK pl_status pl_coordinator_add_node(pl_coordinator *c, const char *address, const pl_key *node,
                                                pl_error *err);
void pl_coordinator_free(pl_coordinator *c); /* open requests end with PL_ERR_CANCELLED */

typedef enum { PL_FINISH_STOP, PL_FINISH_LENGTH, PL_FINISH_CANCELLED, PL_FINISH_ERROR } pl_finish;
typedef struct pl_request_events {
    /* A token was emitted (not for the end-of-generation token). */
    void (*token)(void *user, const pl_sampled *token);
    /* The request ended; its pointer is dead when this returns. err: for PL_FINISH_ERROR; NULL for STOP and LENGTH.
     * Called once for each that was submitted. */
    void (*end)(void *user, pl_finish why, const pl_error *err);
} pl_request_events;

/* What a request has had so far. */
typedef struct pl_request_stats {
    int32_t n_cached;   /* of its prompt's positions, those that it took over from another sequence */
    int32_t n_drafted;  /* tokens that were guessed */
    int32_t n_accepted; /* and those of them that the model then chose */
} pl_request_stats;

typedef struct pl_request_params {
    const char *id;        /* NULL: drawn */
    const int32_t *tokens; /* the prompt, copied; at least one */
    int32_t n_tokens;
    int32_t max_tokens; /* -1: until the context is full */
    bool ignore_eos;
    float adapters[PL_ADAPTERS_MAX]; /* how much of each of the model's adapters; 0: nothing */
    bool context_shift; /* when the context is full, half of what is behind n_keep tokens is left out, and it goes on */
    int32_t n_keep;     /* -1: the prompt */
    bool no_cache;      /* computes its whole prompt, whatever other sequences have of it */
    bool has_seed;      /* else the coordinator draws sample.seed and records it */
    pl_sample_params sample;
} pl_request_params;

/* PL_ERR_INVALID: the parameters, with which; PL_ERR_BUDGET: longer than the context, with both numbers, or the queue
 * is full. */
PL_MUST_CHECK pl_status pl_coordinator_submit(pl_coordinator *c, const pl_request_params *params,
                                              const pl_request_events *events, void *user, pl_request **out,
                                              pl_error *err);
/* A guess may be there that was not when it was asked for. */
void pl_coordinator_guessed(pl_coordinator *c);
const char *pl_request_id(const pl_request *r);
/* Prompt and answer so far; valid until the loop runs on. */
const int32_t *pl_request_tokens(const pl_request *r, int32_t *n);
/* In its callbacks. */
pl_request_stats pl_request_stats_of(const pl_request *r);
/* Ends it with PL_FINISH_CANCELLED. */
void pl_coordinator_cancel(pl_coordinator *c, pl_request *r);

int32_t pl_coordinator_n_ctx(const pl_coordinator *c); /* the longest sequence, in tokens */
/* PL_OK when a pipeline is up; otherwise a status and the sentence that says what is missing (PL_ERR_BUDGET with the
 * table of what is short). */
pl_status pl_coordinator_health(const pl_coordinator *c, pl_error *err);
/* Calls fn whenever health may have changed. */
void pl_coordinator_on_change(pl_coordinator *c, void (*fn)(void *user), void *user);
/* Nodes, stages, memory, rates, load progress, plan and its reason: what `paceline status` shows (documented in
 * docs/status.md). NULL when there is no memory. */
pl_json *pl_coordinator_status(const pl_coordinator *c);
/* The placement as a table for people; the reason below it. */
PL_MUST_CHECK pl_status pl_coordinator_plan_text(const pl_coordinator *c, pl_buf *out, pl_error *err);
