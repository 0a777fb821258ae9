/* From logits to a token, by the parameters of one request.
 *
 * A draw is a function of (seed, choice, absolute position), so any node gives the same token, also in a replay.
 * The order of the chain is fixed here: repetition penalty, top-k, top-p, min-p, temperature, draw; temperature 0 is
 * greedy (the lowest id among equals). Threads: a sampler belongs to one thread. exp and log are engine/base's own,
 * never libm's. */
#pragma once

#include "engine/base/bytes.h"
#include "engine/base/status.h"

typedef struct pl_sample_params {
    float temperature;     /* 0: greedy. Default 0.8 */
    int32_t top_k;         /* 0: off. Default 40 */
    float top_p;           /* 1: off. Default 0.95 */
    float min_p;           /* 0: off. Default 0.05 */
    float repeat_penalty;  /* 1: off (Keskar et al. 2019). Default 1 */
    int32_t repeat_last_n; /* how many of the last tokens it looks at; -1: all. Default 64 */
    uint64_t seed;
    int32_t n_logprobs; /* -1: none; 0: of the token itself; n: and of the n likeliest, at most PL_LOGPROBS_MAX */
} pl_sample_params;

#define PL_LOGPROBS_MAX 20

typedef struct pl_sampled {
    int32_t token;
    float logprob; /* natural logarithm, of the unmodified distribution; only when asked for */
    int32_t n_top;
    int32_t top[PL_LOGPROBS_MAX];
    float top_logprob[PL_LOGPROBS_MAX];
} pl_sampled;

pl_sample_params pl_sample_defaults(void);
/* PL_ERR_INVALID names the parameter that is out of its range. */
PL_MUST_CHECK pl_status pl_sample_check(const pl_sample_params *p, pl_error *err);

typedef struct pl_sampler pl_sampler; /* the scratch for one vocabulary */
PL_MUST_CHECK pl_status pl_sampler_new(pl_sampler **out, int32_t n_vocab, pl_error *err);
void pl_sampler_free(pl_sampler *s);

/* Picks the token for absolute position pos (the position that the token will have). logits [n_vocab] are not changed.
 * history: the tokens at positions 0..n_history-1. */
void pl_sampler_pick(pl_sampler *s, const pl_sample_params *p, const float *logits, const int32_t *history,
                     int32_t n_history, int64_t pos, uint32_t choice, pl_sampled *out);
