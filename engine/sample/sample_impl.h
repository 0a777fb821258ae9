/* The steps of the sampler's chain, private to this folder. Logits here are never NaN and never plus infinity. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct pl_candidate {
    float logit;
    int32_t id;
} pl_candidate;

/* The one order of candidates: by logit, and among equals by id, so that no two are equal. */
static inline bool pl_candidate_better(pl_candidate a, pl_candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

/* Keskar et al. 2019, section 4.1: positive logits are divided, negative ones multiplied, each token once. seen [n]
 * holds the mark of the last call that met a token; mark differs in every call. */
void pl_penalize_repeats(float *logits, int32_t n, float penalty, const int32_t *tokens, int32_t n_tokens,
                         uint32_t *seen, uint32_t mark);

/* The k best of n logits into out, best first; 0 < k <= n. */
void pl_best_k(const float *logits, int32_t n, int32_t k, pl_candidate *out);

/* The fewest best of c that together have at least top_p of the probability of all n, at least one, best first: into
 * out (which is not c), how many as the result. sorted: c is best first already; otherwise c is reordered. max: the
 * highest logit of c. */
int32_t pl_keep_top_p(pl_candidate *c, int32_t n, bool sorted, float max, float top_p, pl_candidate *out);

/* Keeps those whose probability is at least min_p of the likeliest's, in their order. */
int32_t pl_keep_min_p(pl_candidate *c, int32_t n, float max, float min_p);
