/* From logits to a token, by the parameters of one request.
 *
 * A draw is a function of (seed, choice, absolute position), so any node gives the same token, also in a replay. What
 * depends on the past (penalties, grammar) is computed from the tokens; only mirostat's mu cannot be, and comes back
 * with each token. Order: logit bias, grammar, then the chain in the user's order, then the draw; temperature 0 takes
 * the lowest id among the likeliest. exp and log are engine/base's own, never libm's.
 *
 * Threads: a sampler and its sequences belong to one thread. */
#pragma once

#include "engine/base/bytes.h"
#include "engine/base/status.h"
#include "engine/text/vocab.h"

/* The steps of a chain. The numbers are on the wire. */
typedef enum {
    PL_STEP_END, /* ends a chain that has fewer than PL_STEPS_MAX */
    PL_STEP_PENALTIES,
    PL_STEP_DRY,
    PL_STEP_TOP_N_SIGMA,
    PL_STEP_TOP_K,
    PL_STEP_TYPICAL,
    PL_STEP_TOP_P,
    PL_STEP_MIN_P,
    PL_STEP_XTC,
    PL_STEP_TEMPERATURE,
    PL_STEP_COUNT
} pl_step;

#define PL_STEPS_MAX         16
#define PL_LOGPROBS_MAX      20
#define PL_BIAS_MAX          1024 /* entries of a logit bias: OpenAI's clients send at most 300 */
#define PL_BREAKERS_MAX      32
#define PL_BREAKER_BYTES_MAX 64
#define PL_GRAMMAR_BYTES_MAX 262144 /* the text of a grammar: schemas of real APIs have some 10 KB */
#define PL_PENALTY_MAX       1e6f   /* of every factor and summand: beyond it they only lose precision */

/* All zero is a valid set (greedy) but for top_p and repeat_penalty, whose "off" is 1. Pointers are borrowed. */
typedef struct pl_sample_params {
    float temperature;           /* 0: greedy. Default 0.8 */
    float dynatemp_range;        /* 0: off. Temperature moves by so much up and down with the entropy (llama.cpp) */
    float dynatemp_exponent;     /* of the entropy's share; default 1 */
    int32_t top_k;               /* 0: off. Default 40 */
    float top_p;                 /* 1: off. Default 0.95 */
    float min_p;                 /* 0: off. Default 0.05 */
    float typical_p;             /* 0 or 1: off (Meister et al. 2022). Default 1 */
    float top_n_sigma;           /* 0 or below: off (Tang et al. 2024). Default -1 */
    float xtc_probability;       /* 0: off. How often the likeliest are excluded. Default 0 */
    float xtc_threshold;         /* from which probability on; above 0.5: off. Default 0.1 */
    float repeat_penalty;        /* 1: off (Keskar et al. 2019). Default 1 */
    float frequency_penalty;     /* 0: off. Taken from the logit for each time that the token was there */
    float presence_penalty;      /* 0: off. Taken once from those that were there */
    int32_t repeat_last_n;       /* how many of the last tokens these three look at; -1: all. Default 64 */
    float dry_multiplier;        /* 0: off. multiplier * base^(length of what would be repeated - allowed length) */
    float dry_base;              /* at least 1. Default 1.75 */
    int32_t dry_allowed_length;  /* default 2 */
    int32_t dry_last_n;          /* how many of the last tokens DRY looks at; -1: all (default), 0: off */
    int32_t mirostat;            /* 0: off; 1, 2: Basu et al. 2020 instead of the chain's truncations */
    float mirostat_tau;          /* the wanted surprise in bits. Default 5 */
    float mirostat_eta;          /* its learning rate. Default 0.1 */
    uint8_t chain[PL_STEPS_MAX]; /* of pl_step; begins with PL_STEP_END: the default order */
    uint64_t seed;
    uint32_t choice;    /* which of the answers to one prompt this is */
    int32_t n_logprobs; /* -1: none; 0: of the token itself; n: and of the n likeliest, at most PL_LOGPROBS_MAX */
    int32_t n_bias, n_breakers;
    const int32_t *bias_tokens; /* [n_bias] */
    const float *bias;          /* [n_bias] is added to these tokens' logits; -infinity bans one */
    const pl_str *breakers;     /* [n_breakers] DRY sees no repetition across these texts */
    pl_str grammar;             /* GBNF (engine/sample/grammar.h); empty: none */
} pl_sample_params;

#define PL_SAMPLE_STATE_MAX 4

typedef struct pl_sampled {
    int32_t token;
    float logprob; /* natural logarithm, of the unmodified distribution; only when asked for */
    int32_t n_top;
    int32_t top[PL_LOGPROBS_MAX];
    float top_logprob[PL_LOGPROBS_MAX];
    uint32_t n_state; /* what the tokens do not tell: given to pl_sample_seq_new when the sequence is opened again */
    uint8_t state[PL_SAMPLE_STATE_MAX];
} pl_sampled;

pl_sample_params pl_sample_defaults(void);
/* PL_ERR_INVALID names the parameter that is out of its range, or what is wrong with the grammar and where. Bias
 * tokens are checked against a vocabulary by pl_sample_seq_new. */
PL_MUST_CHECK pl_status pl_sample_check(const pl_sample_params *p, pl_error *err);
/* Copies all that p points to into one block, which is the caller's to pl_free (NULL when there is nothing). False: no
 * memory, and p is as before. */
PL_MUST_CHECK bool pl_sample_params_own(pl_sample_params *p, void **block);

/* The chain from llama.cpp's words, as "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature" (also
 * separated by commas). PL_ERR_INVALID names the word that is not known. */
PL_MUST_CHECK pl_status pl_sample_chain_parse(uint8_t chain[PL_STEPS_MAX], pl_str text, pl_error *err);
/* From its letters, as "edskypmxt". */
PL_MUST_CHECK pl_status pl_sample_chain_letters(uint8_t chain[PL_STEPS_MAX], pl_str letters, pl_error *err);
const char *pl_step_name(pl_step step);
/* The default order, ended by PL_STEP_END. */
extern const uint8_t pl_sample_chain_default[PL_STEPS_MAX];

typedef struct pl_sampler pl_sampler; /* the scratch for one vocabulary */
/* n_ctx: the longest history. */
PL_MUST_CHECK pl_status pl_sampler_new(pl_sampler **out, int32_t n_vocab, int32_t n_ctx, pl_error *err);
void pl_sampler_free(pl_sampler *s);
/* Whether sequences with these parameters need to know the tokens' texts. */
bool pl_sample_needs_vocab(const pl_sample_params *p);
/* vocab is borrowed; before the first sequence that needs it. */
void pl_sampler_use_vocab(pl_sampler *s, const pl_vocab *vocab);

typedef struct pl_sample_seq pl_sample_seq; /* one sequence: its parameters, and where its grammar is */
typedef struct pl_sample_seq_options {
    int32_t n_prompt;     /* the grammar begins behind so many tokens */
    const uint8_t *state; /* of the last token that was sampled before; NULL: a new sequence */
    size_t n_state;
} pl_sample_seq_options;
/* p and all it points to are copied. PL_ERR_INVALID as pl_sample_check, and for a bias outside the vocabulary. */
PL_MUST_CHECK pl_status pl_sample_seq_new(pl_sample_seq **out, pl_sampler *s, const pl_sample_params *p,
                                          const pl_sample_seq_options *options, pl_error *err);
void pl_sample_seq_free(pl_sample_seq *q);
/* The tokens from position n on are not those any more that were in the history before. */
void pl_sample_seq_rewind(pl_sample_seq *q, int64_t n);

/* Picks the token for absolute position pos (the position that the token will have). logits [n_vocab] are not changed.
 * history: the tokens at positions 0..n_history-1. Takes nothing from the heap, but for a grammar that is in a state
 * which is new. */
void pl_sampler_pick(pl_sampler *s, pl_sample_seq *q, const float *logits, const int32_t *history, int32_t n_history,
                     int64_t pos, pl_sampled *out);
