/* Grammars in GBNF, llama.cpp's dialect, as automata over bytes.
 *
 * Format:   https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md: rules `name ::= ...`, literals,
 *           character classes, `.`, groups, `|`, `*`, `+`, `?`, `{m}`, `{m,}`, `{m,n}`, `#` comments; it begins at the
 *           rule `root`. A rule that calls itself before it has read anything is refused.
 * Threads:  a grammar never changes after opening; a run belongs to one thread. */
#pragma once

#include "engine/base/bytes.h"
#include "engine/base/status.h"

#define PL_GRAMMAR_STATES_MAX (1 << 18) /* of one grammar: some 6 MB */
#define PL_GRAMMAR_NESTING    64        /* groups inside of groups */

typedef struct pl_grammar pl_grammar;
/* PL_ERR_INVALID names line and column, and what is wrong there. PL_ERR_BUDGET: more states than the bound. */
PL_MUST_CHECK pl_status pl_grammar_new(pl_grammar **out, pl_str gbnf, pl_error *err);
void pl_grammar_free(pl_grammar *g);
size_t pl_grammar_bytes(const pl_grammar *g); /* what it takes in memory */

/* A grammar that reads bytes. Where it is, is a number: an int32_t that stays the same for the same place as long as
 * the run's generation is the same. Places are found when they are first needed and kept up to a bound; then all are
 * forgotten at once, and a new generation begins. */
typedef struct pl_grammar_run pl_grammar_run;
/* g is borrowed. bytes_max: memory for places (0: 16 MiB). */
PL_MUST_CHECK pl_status pl_grammar_run_new(pl_grammar_run **out, const pl_grammar *g, size_t bytes_max, pl_error *err);
void pl_grammar_run_free(pl_grammar_run *r);
/* Another bound; it holds from the next pl_grammar_tidy on. */
void pl_grammar_run_limit(pl_grammar_run *r, size_t bytes_max);

#define PL_PLACE_DEAD 0 /* nothing can follow, and the text is not whole */
int32_t pl_grammar_start(pl_grammar_run *r);
/* The place behind one more byte. Only pl_grammar_tidy ends a generation, never this. */
int32_t pl_grammar_step(pl_grammar_run *r, int32_t place, uint8_t byte);
bool pl_grammar_accepts(const pl_grammar_run *r, int32_t place); /* the text may end here */
uint32_t pl_grammar_generation(const pl_grammar_run *r);
/* Something of the caller's that is kept with a place until the generation ends; its memory counts into the bound. */
void *pl_grammar_attachment(const pl_grammar_run *r, int32_t place);
/* bytes of it, zeroed; NULL when there is no memory. */
void *pl_grammar_attach(pl_grammar_run *r, int32_t place, size_t bytes);
/* Begins a new generation when the bound is passed. */
void pl_grammar_tidy(pl_grammar_run *r);
