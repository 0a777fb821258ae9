/* Which rows go into the next micro-batch: continuous batching with chunked prefill over a pipeline.
 *
 * A request waits until a slot and the blocks for its tokens are free, then runs: its tokens go out in chunks, the last
 * row asks for a sample, and each sampled token goes out as one more row. Replay is the same thing with more tokens, so
 * a new epoch, or a preemption, only has to forget what was sent.
 *
 * Invariants
 *   - Every request is in exactly one list: open (WAITING or RUNNING, by age) or ended (until its end was told).
 *   - A block belongs to the free list or to one slot, or to several that begin with the same tokens; a shared one is
 * full and never written. A slot is FREE, USED by one RUNNING request, KEPT: its request ended, its sequence is still
 * there for others that begin like it, or CLOSING: its CLOSE has not yet been put into a frame. Frames are in order, so
 * blocks and number may be used again from that frame on, and what was sent for one sequence can be forked in the next.
 *   - A request has one frame in flight that asks for samples which are still wanted: the row of its last known token,
 * and behind it rows of guessed ones. The first sample is always right; each next one is, when the token before it is
 * the one that was guessed. What the stages hold of the others is cut off before the next rows. As samples are a
 * function of the position and the tokens before it, guesses change how fast tokens come and never which.
 *   - The oldest running request never gives up blocks, and fits alone (checked when it came), so it always ends: no
 * deadlock.
 *
 * Fairness: decoding requests in the order in which they became ready, in as many groups of even size as keep all
 * stages busy; then prompts, the longest unserved first, in chunks that are bounded while others decode. Threads: the
 * loop's thread. */
#pragma once

#include "coordinator/sequence.h"

/* One epoch's pipeline as the scheduler sees it. */
typedef struct pl_sched_shape {
    int32_t n_blocks, n_rows;
    int32_t n_stages;  /* prompts are cut so that so many can work on one at a time */
    int32_t groups;    /* micro-batches that keep all stages busy: decoding requests are spread over so many */
    int32_t in_flight; /* frames without a result, at most */
} pl_sched_shape;

typedef struct pl_sched_options {
    int32_t n_seqs, n_kept, n_ctx, n_vocab, queue_max;
    bool (*is_eog)(void *user, int32_t token);
    void *eog_user;
    pl_guess guess;
    void *guess_user;
    int32_t n_draft; /* guesses per step, at most PL_DRAFT_MAX; 0: none are asked for */
} pl_sched_options;

typedef enum { PL_SLOT_FREE, PL_SLOT_USED, PL_SLOT_KEPT, PL_SLOT_CLOSING } pl_slot_state;

typedef struct pl_sched_slot {
    pl_slot_state state;
    bool opened;  /* OPEN went into a frame of this epoch */
    bool rewound; /* the stages have positions of wrong guesses: TRUNCATE goes before the next rows */
    pl_request *request;
    int32_t *blocks;
    int32_t n_blocks, n_told; /* told: EXTEND or FORK went into a frame */
    int32_t *tokens;          /* KEPT: of its n_tokens positions; owned */
    int32_t n_tokens;
    float adapters[PL_ADAPTERS_MAX]; /* that its positions were computed with */
    uint64_t kept;                   /* when, in the order of s->served */
} pl_sched_slot;

typedef struct pl_sched_op {
    Paceline__KvOp__Kind kind;
    int32_t seq;
    int32_t src, n_pos;        /* FORK: from src; FORK, TRUNCATE: positions */
    const pl_request *request; /* OPEN */
    const int32_t *blocks;     /* EXTEND; FORK: for the copy of a page that is not full */
    int32_t n_blocks;
} pl_sched_op;

/* Valid until the scheduler is called again. Columns, as the wire has them. */
typedef struct pl_sched_frame {
    uint64_t id;
    pl_sched_op *ops;
    int32_t n_ops;
    int32_t *seq, *pos, *token;
    int32_t n_rows;
    uint32_t *logits;
    int32_t n_logits;
} pl_sched_frame;

typedef struct pl_sched_sample {
    pl_request *request; /* NULL: it ended meanwhile */
    uint64_t run;        /* request->run of then */
    int32_t seq, pos;
    int32_t guess; /* the token at pos - 1 was guessed to be this; -1: it was known */
} pl_sched_sample;

typedef struct pl_sched_sent {
    uint64_t id, sent_ns;
    pl_sched_sample *samples;
    int32_t n_samples, n_rows;
} pl_sched_sent;

typedef struct pl_scheduler {
    pl_sched_options o;
    int32_t n_slots; /* n_seqs + n_kept: the sequences that stages may have open */

    pl_request *first, *last, *ended_first, *ended_last;
    int32_t n_open, n_waiting, n_running;
    uint64_t next_order, served;

    bool up;
    pl_sched_shape shape;
    pl_blocks blocks;
    pl_sched_slot *slots;
    int32_t *block_lists; /* [n_slots][blocks of n_ctx] */
    int32_t n_closing, n_kept;
    pl_sched_frame frame;
    pl_sched_sent *sent; /* ring of shape.in_flight */
    int32_t sent_first, n_sent;
    pl_sched_sample *samples; /* [in_flight][n_rows] */
    pl_request **picked;      /* [n_seqs] */
    uint64_t next_frame, next_run;

    uint64_t n_emitted, n_prefilled, n_cached, n_drafted, n_accepted, n_preempted, n_ended[4];
} pl_scheduler;

PL_MUST_CHECK pl_status pl_sched_init(pl_scheduler *s, const pl_sched_options *options, pl_error *err);
void pl_sched_fini(pl_scheduler *s); /* open requests end as cancelled, and are told */

/* A pipeline is there: open requests are (re)played over it. Those that can never fit it end with PL_ERR_BUDGET. */
PL_MUST_CHECK pl_status pl_sched_up(pl_scheduler *s, const pl_sched_shape *shape, pl_error *err);
/* It is gone, with everything in flight. */
void pl_sched_down(pl_scheduler *s);

/* Takes r, on success only. PL_ERR_BUDGET: the queue is full. */
PL_MUST_CHECK pl_status pl_sched_add(pl_scheduler *s, pl_request *r, pl_error *err);
void pl_sched_end(pl_scheduler *s, pl_request *r, pl_finish why, const pl_error *err);
/* Ends all that are older than since_ns (UINT64_MAX: all) with err. */
void pl_sched_fail(pl_scheduler *s, uint64_t since_ns, const pl_error *err);
/* Tells those that ended, and frees them. Their functions may call anything of the coordinator but free. */
void pl_sched_flush(pl_scheduler *s);

/* The next frame, which counts as sent; NULL: nothing to send now. */
const pl_sched_frame *pl_sched_next(pl_scheduler *s, uint64_t now_ns);
/* The tokens of the oldest frame in flight, in the order of its logits; calls `token`. PL_ERR_FORMAT: not that frame,
 * or not what it asked for. */
PL_MUST_CHECK pl_status pl_sched_result(pl_scheduler *s, uint64_t frame, const pl_sampled *tokens, const int32_t *seq,
                                        const int32_t *pos, int32_t n, pl_error *err);
/* The oldest frame without a result; NULL: none. *rows: of all that are in flight. */
const pl_sched_sent *pl_sched_oldest(const pl_scheduler *s, int64_t *rows);

/* What must hold at any time; NULL, or the sentence that says what does not. For tests. */
const char *pl_sched_invariants(const pl_scheduler *s);
