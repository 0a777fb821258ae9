/* Guesses what a sequence will say next, for speculative decoding: the model checks several guesses in one step, and
 * takes those that it would have said itself.
 *
 * Threads: the loop's thread. */
#pragma once

#include "coordinator/scheduler.h"

/* What followed the last time that the sequence said what it says now (Saxena 2023, prompt lookup decoding): the latest
 * earlier place where its last 3 tokens stand, or else its last 2. Long texts are searched over their last
 * PL_GUESS_WINDOW tokens, which keeps the search far below the time of a step. A pl_guess; user is not used. */
int32_t pl_guess_repeated(void *user, const pl_request *r, int32_t *out, int32_t max);

#define PL_GUESS_WINDOW 16384
