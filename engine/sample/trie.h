/* The tokens of a vocabulary as a tree of their bytes, so that a grammar is asked about many of them at once.
 *
 * Threads: one at a time. */
#pragma once

#include "engine/sample/grammar.h"

typedef struct pl_trie pl_trie;
/* texts [n]: of the tokens 0..n-1, copied; an empty one is never in a mask. */
PL_MUST_CHECK pl_status pl_trie_new(pl_trie **out, const pl_str *texts, int32_t n, pl_error *err);
void pl_trie_free(pl_trie *t);
pl_str pl_trie_text(const pl_trie *t, int32_t token);
size_t pl_trie_bytes(const pl_trie *t);
static inline size_t pl_mask_words(int32_t n)
{
    return ((size_t)n + 63) / 64;
}
/* Sets the bits of those tokens that may stand at this place. mask [pl_mask_words(n)]. */
void pl_trie_mask(pl_trie *t, pl_grammar_run *r, int32_t place, uint64_t *mask);
