/* A small model of the same vocabulary that guesses tokens for a large one (Leviathan, Kalman and Matias 2023): a
 * coordinator and a node of its own in this process, on the same loop, whom nobody else can reach. */
#pragma once

#include "cli/cluster.h"

typedef struct draft draft;

/* The model of o->model_draft, for requests to a coordinator with these options, whose model is target. The draft's
 * node takes *bytes of memory, weights and all. PL_ERR_INVALID: its vocabulary is another one, with the first token
 * that differs. */
PL_MUST_CHECK pl_status draft_open(draft **out, pl_loop *loop, const cli_options *o,
                                   const pl_coordinator_options *options, const model *target, uint64_t *bytes,
                                   pl_error *err);
/* Starts it, and tells target when guesses are there. */
PL_MUST_CHECK pl_status draft_start(draft *d, pl_coordinator *target, pl_error *err);
void draft_close(draft *d);

/* A pl_guess; user is the draft. */
int32_t draft_guess(void *user, const pl_request *r, int32_t *out, int32_t max);
