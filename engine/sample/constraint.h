/* Sequences under grammars: which tokens may come next. Private to this folder.
 *
 * Where a sequence is in its grammar follows from its tokens alone; what is kept of it is a memory that may be lost at
 * any time. Sequences with the same text share one automaton and its masks. */
#pragma once

#include "engine/sample/sample_impl.h"

typedef struct pl_constraints pl_constraints; /* of one vocabulary */
PL_MUST_CHECK pl_status pl_constraints_new(pl_constraints **out, const pl_vocab *vocab, int32_t n_vocab, pl_error *err);
void pl_constraints_free(pl_constraints *c); /* no constraint is open any more */

typedef struct pl_constraint pl_constraint; /* of one sequence */
/* gbnf is copied. The grammar begins behind n_prompt tokens. */
PL_MUST_CHECK pl_status pl_constraint_new(pl_constraint **out, pl_constraints *all, pl_str gbnf, int32_t n_prompt,
                                          pl_error *err);
void pl_constraint_free(pl_constraint *c);
/* The tokens from position n on are others than those that were seen. */
void pl_constraint_rewind(pl_constraint *c, int64_t n);

/* Reads the tokens of the history that are new. Then: */
void pl_constraint_follow(pl_constraint *c, const int32_t *history, int32_t n_history);
bool pl_constraint_allows(pl_constraint *c, int32_t token);
/* Bans every other token: its logit becomes minus infinity. Where nothing at all may follow, the tokens that end a text
 * stay; without those, all. */
void pl_constraint_ban(pl_constraint *c, float *logits);
