/* The steps of the sampler's chain, private to this folder. Logits here are never NaN and never plus infinity. */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/fmath.h"
#include "engine/sample/sampler.h"

/* pl_sample_check without the grammar. */
PL_MUST_CHECK pl_status pl_sample_check_numbers(const pl_sample_params *p, pl_error *err);

typedef struct pl_candidate {
    float logit;
    int32_t id;
} pl_candidate;

/* The one order of candidates: by logit, and among equals by id, so that no two are equal. */
static inline bool pl_candidate_better(pl_candidate a, pl_candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

/* What is left of the vocabulary on the way through a chain. */
typedef struct pl_chain {
    float *logits; /* [n_vocab] */
    int32_t n_vocab;
    pl_candidate *c;     /* NULL: all of logits. A candidate's logit is always that in logits */
    pl_candidate *a, *b; /* [n_vocab] each; c is one of them */
    int32_t n;           /* candidates */
    bool sorted;         /* best first; otherwise in an order that depends on nothing but the input */
    float max;           /* the highest logit */
    float scale;         /* the temperature so far: probabilities are exp((logit - max) / scale), shared out */
} pl_chain;

/* Candidates instead of the whole vocabulary. */
void pl_chain_list(pl_chain *h);
/* After logits were changed. */
void pl_chain_refresh(pl_chain *h);
/* exp((logit - max) / scale) of candidate i. max is a number: without one there is no chain. */
static inline float pl_chain_weight(const pl_chain *h, int32_t i)
{
    return pl_expf((h->c[i].logit - h->max) / h->scale);
}
double pl_chain_sum(const pl_chain *h); /* of all weights, in order */
double pl_chain_entropy(const pl_chain *h);

/* The first of the greatest of n logits without NaN. */
int32_t pl_best_of(const float *logits, int32_t n);
/* The k best of n logits into out, best first; 0 < k <= n. */
void pl_best_k(const float *logits, int32_t n, int32_t k, pl_candidate *out);

/* Each keeps some of the candidates, at least one, and changes no logit. */
void pl_keep_top_k(pl_chain *h, int32_t k);
/* The fewest best that together have at least top_p of the probability. */
void pl_keep_top_p(pl_chain *h, float top_p);
/* Those whose probability is at least min_p of the likeliest's. */
void pl_keep_min_p(pl_chain *h, float min_p);
/* Those within n deviations of the highest logit (Tang et al. 2024). */
void pl_keep_top_n_sigma(pl_chain *h, float n);
/* The fewest whose surprise is nearest to the entropy and that have typical_p of the probability (Meister et al. 2022,
 * section 3). */
void pl_keep_typical(pl_chain *h, float typical_p);
/* All but those that have at least threshold of the probability, of which the least likely stays. */
void pl_exclude_top(pl_chain *h, float threshold);
/* Those whose surprise is at most mu bits (Basu et al. 2020, with the truncation of version 2). */
void pl_keep_surprise(pl_chain *h, double mu);
/* The k best, k from mu by the estimate of the Zipf exponent (the same paper, algorithm 1). */
void pl_keep_zipf(pl_chain *h, double mu);

/* For each of n_tokens once (in the order repeat, frequency, presence): positive logits are divided and negative ones
 * multiplied by repeat (Keskar et al. 2019, section 4.1), then frequency * count + presence is taken off. count [n] is
 * zero before and after. */
void pl_penalize_repeats(float *logits, int32_t n, const pl_sample_params *p, const int32_t *tokens, int32_t n_tokens,
                         uint32_t *count);

/* DRY: of every token that would go on with a repetition of the last tokens of which at least allowed_length are
 * repeated, multiplier * base^(length - allowed_length) is taken off. limit: how many of the last tokens may count as
 * repeated. scratch [n_tokens]; longest [n] is zero before and after. */
void pl_penalize_dry(float *logits, int32_t n, const pl_sample_params *p, const int32_t *tokens, int32_t n_tokens,
                     int32_t limit, int32_t *scratch, uint32_t *longest);
/* How many of the tokens stand behind the last breaker. text: scratch. */
int32_t pl_dry_limit(const pl_vocab *v, const pl_sample_params *p, const int32_t *tokens, int32_t n_tokens,
                     pl_buf *text);
