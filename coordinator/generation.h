/* A request in text: from a prompt's tokens to pieces of text, with stop strings. What the HTTP front and `paceline
 * run` share.
 *
 * Threads: the loop's thread. Callbacks come from the loop. */
#pragma once

#include "coordinator/coordinator.h"
#include "engine/text/vocab.h"

typedef struct pl_generation pl_generation;

typedef struct pl_usage {
    int32_t n_prompt, n_generated;
    pl_request_stats stats;
    uint64_t prompt_ns;   /* from submission to the first token */
    uint64_t generate_ns; /* from the first token to the last */
} pl_usage;

typedef struct pl_generation_events {
    /* One token and the text that is ready with it: empty while a character or a possible stop string is incomplete. */
    void (*token)(void *user, const pl_sampled *token, pl_str text);
    /* The rest of the text (may be empty), then the end. stopped_by: the stop string that ended it, or NULL. The
     * generation is freed when this returns. */
    void (*end)(void *user, pl_str text, pl_finish why, const char *stopped_by, const pl_usage *usage,
                const pl_error *err);
} pl_generation_events;

#define PL_STOPS_MAX 16

typedef struct pl_generation_options {
    pl_request_params request;
    const char *stops[PL_STOPS_MAX]; /* copied */
    int n_stops;
    bool special;         /* show control tokens */
    const uint8_t *shown; /* [vocabulary] those that are shown even if not, borrowed until the end; NULL: none */
} pl_generation_options;

/* coordinator, loop and vocab are borrowed. Fails as pl_coordinator_submit does. */
PL_MUST_CHECK pl_status pl_generation_start(pl_generation **out, pl_coordinator *c, pl_loop *loop,
                                            const pl_vocab *vocab, const pl_generation_options *options,
                                            const pl_generation_events *events, void *user, pl_error *err);
/* Ends it; `end` is called with PL_FINISH_CANCELLED from the loop. */
void pl_generation_cancel(pl_generation *g);

/* Appends the tokens (int32_t) of a prompt that a chat template rendered: control tokens in it are meant, and the
 * model's own beginning-of-sequence token is added only when the template has not put it there. */
PL_MUST_CHECK pl_status pl_generation_tokenize_chat(const pl_vocab *vocab, pl_str prompt, pl_buf *tokens,
                                                    pl_error *err);
