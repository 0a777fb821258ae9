/* The chain. Every sum runs in one order: best first after top-k or top-p, by id otherwise. */
#include "engine/sample/sampler.h"

#include <float.h>
#include <math.h>

#include "engine/base/alloc.h"
#include "engine/base/fmath.h"
#include "engine/base/rng.h"
#include "engine/sample/constraint.h"
#include "engine/sample/grammar.h"
#include "engine/sample/sample_impl.h"

/* Draws of another kind at the same position. */
#define XTC_DRAW  UINT64_C(0x7874632d64726177)
#define SCALE_MIN 1e-30f

struct pl_sampler {
    int32_t n, n_ctx;
    float *logits;       /* [n] */
    pl_candidate *a, *b; /* [n] each */
    uint32_t *count;     /* [n], zero between calls */
    int32_t *dry;        /* [n_ctx], made for the first sequence that needs it */
    pl_buf text;
    const pl_vocab *vocab;
    pl_constraints *constraints; /* made for the first sequence with a grammar */
};

struct pl_sample_seq {
    pl_sample_params p;
    void *block;               /* what p points to */
    pl_constraint *constraint; /* NULL: none */
    double mu;
};

pl_status pl_sampler_new(pl_sampler **out, int32_t n_vocab, int32_t n_ctx, pl_error *err)
{
    *out = NULL;
    if (n_vocab < 1) return pl_fail(err, PL_ERR_INVALID, "a vocabulary of %d tokens", (int)n_vocab);
    size_t n = (size_t)n_vocab;
    pl_sampler *s = pl_calloc(1, sizeof *s);
    if (s) {
        s->n = n_vocab;
        s->n_ctx = n_ctx;
        s->logits = pl_calloc(n, sizeof *s->logits);
        s->a = pl_calloc(n, sizeof *s->a);
        s->b = pl_calloc(n, sizeof *s->b);
        s->count = pl_calloc(n, sizeof *s->count);
    }
    if (!s || !s->logits || !s->a || !s->b || !s->count) {
        pl_sampler_free(s);
        return pl_fail(err, PL_ERR_NO_MEMORY, "no memory to sample from %d tokens", (int)n_vocab);
    }
    *out = s;
    return PL_OK;
}

void pl_sampler_free(pl_sampler *s)
{
    if (!s) return;
    pl_free(s->logits);
    pl_free(s->a);
    pl_free(s->b);
    pl_free(s->count);
    pl_free(s->dry);
    pl_buf_fini(&s->text);
    pl_constraints_free(s->constraints);
    pl_free(s);
}

static bool uses_dry(const pl_sample_params *p)
{
    return p->dry_multiplier > 0 && p->dry_last_n != 0;
}

bool pl_sample_needs_vocab(const pl_sample_params *p)
{
    return p->grammar.size > 0 || (uses_dry(p) && p->n_breakers > 0);
}

void pl_sampler_use_vocab(pl_sampler *s, const pl_vocab *vocab)
{
    s->vocab = vocab;
}

/* --- sequences --- */

static pl_status seq_open(pl_sample_seq *q, pl_sampler *s, const pl_sample_seq_options *o, pl_error *err)
{
    const pl_sample_params *p = &q->p;
    for (int32_t i = 0; i < p->n_bias; i++)
        if (p->bias_tokens[i] < 0 || p->bias_tokens[i] >= s->n)
            return pl_fail(err, PL_ERR_INVALID, "logit_bias: token %d is not in the vocabulary of %d",
                           (int)p->bias_tokens[i], (int)s->n);
    q->mu = 2 * (double)p->mirostat_tau;
    if (o->n_state > 0) {
        uint32_t bits = o->n_state == sizeof bits ? pl_get_u32(o->state) : UINT32_MAX;
        float mu;
        memcpy(&mu, &bits, sizeof mu);
        if (!(mu >= -FLT_MAX && mu <= FLT_MAX))
            return pl_fail(err, PL_ERR_FORMAT, "sampler state: %zu bytes that hold no number", o->n_state);
        q->mu = (double)mu;
    }
    if (uses_dry(p)) {
        if (!s->dry) s->dry = pl_calloc((size_t)s->n_ctx + 1, sizeof *s->dry);
        if (!s->dry || !pl_buf_reserve(&s->text, 4096))
            return pl_fail(err, PL_ERR_NO_MEMORY, "no memory to look for repetitions");
    }
    if (p->grammar.size > 0) {
        if (!s->vocab) return pl_fail(err, PL_ERR_INVALID, "a grammar, but no vocabulary");
        if (!s->constraints) PL_TRY(pl_constraints_new(&s->constraints, s->vocab, s->n, err));
        PL_TRY(pl_constraint_new(&q->constraint, s->constraints, p->grammar, o->n_prompt, err));
        q->p.grammar = (pl_str){0}; /* its text is not needed any more */
    }
    return PL_OK;
}

pl_status pl_sample_seq_new(pl_sample_seq **out, pl_sampler *s, const pl_sample_params *p,
                            const pl_sample_seq_options *options, pl_error *err)
{
    *out = NULL;
    PL_TRY(pl_sample_check_numbers(p, err));
    pl_sample_seq *q = pl_calloc(1, sizeof *q);
    if (!q) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for a sequence's sampler");
    q->p = *p;
    pl_status status = PL_OK;
    if (!pl_sample_params_own(&q->p, &q->block))
        status = pl_fail(err, PL_ERR_NO_MEMORY, "no memory for a sequence's sampler");
    if (status == PL_OK) status = seq_open(q, s, options, err);
    if (status != PL_OK) {
        pl_sample_seq_free(q);
        return status;
    }
    *out = q;
    return PL_OK;
}

void pl_sample_seq_free(pl_sample_seq *q)
{
    if (!q) return;
    pl_constraint_free(q->constraint);
    pl_free(q->block);
    pl_free(q);
}

void pl_sample_seq_rewind(pl_sample_seq *q, int64_t n)
{
    if (q->constraint) pl_constraint_rewind(q->constraint, n);
}

/* --- one token --- */

/* A broken model's NaN can never be picked, and infinity minus infinity must not arise. */
static void copy_logits(pl_sampler *s, const float *logits)
{
    for (int32_t i = 0; i < s->n; i++) {
        float x = logits[i];
        s->logits[i] = x != x ? -INFINITY : x > FLT_MAX ? FLT_MAX : x;
    }
}

/* The top logprobs of the distribution as it is; what has to be added to a logit for its logprob is the result. */
static double logprobs(pl_sampler *s, int32_t n_top, pl_sampled *out)
{
    float max = s->logits[pl_best_of(s->logits, s->n)];
    double sum = 0;
    if (max == -INFINITY) return 0; /* no distribution: every logprob is minus infinity */
    for (int32_t i = 0; i < s->n; i++) sum += (double)pl_expf(s->logits[i] - max);
    double shift = -(double)max - pl_ln(sum);
    out->n_top = n_top < s->n ? n_top : s->n;
    if (out->n_top == 0) return shift;
    pl_best_k(s->logits, s->n, out->n_top, s->a);
    for (int32_t i = 0; i < out->n_top; i++) {
        out->top[i] = s->a[i].id;
        out->top_logprob[i] = (float)((double)s->a[i].logit + shift);
    }
    return shift;
}

static void add_bias(pl_sampler *s, const pl_sample_params *p)
{
    for (int32_t i = 0; i < p->n_bias; i++) {
        float *x = &s->logits[p->bias_tokens[i]];
        *x += p->bias[i];
        if (*x > FLT_MAX) *x = FLT_MAX;
    }
}

/* The last n of the tokens; -1: all. */
static int32_t window(int32_t n, int32_t n_history)
{
    return n < 0 || n > n_history ? n_history : n;
}

static bool penalizes(const pl_sample_params *p)
{
    return p->repeat_penalty != 1.0f || p->frequency_penalty != 0 || p->presence_penalty != 0;
}

/* Whether logits were changed. */
static bool step_penalties(pl_sampler *s, const pl_sample_params *p, const int32_t *history, int32_t n_history)
{
    int32_t n = window(p->repeat_last_n, n_history);
    if (!penalizes(p) || n <= 0) return false;
    pl_penalize_repeats(s->logits, s->n, p, history + (n_history - n), n, s->count);
    return true;
}

static bool step_dry(pl_sampler *s, const pl_sample_params *p, const int32_t *history, int32_t n_history)
{
    int32_t n = window(p->dry_last_n, n_history);
    if (!uses_dry(p) || n <= 0) return false;
    if (n > s->n_ctx) n = s->n_ctx;
    const int32_t *tokens = history + (n_history - n);
    int32_t limit = pl_dry_limit(s->vocab, p, tokens, n, &s->text);
    pl_penalize_dry(s->logits, s->n, p, tokens, n, limit, s->dry, s->count);
    return true;
}

static void step_temperature(pl_chain *h, const pl_sample_params *p)
{
    float t = p->temperature;
    if (p->dynatemp_range > 0 && t > 0) {
        float low = t > p->dynatemp_range ? t - p->dynatemp_range : 0, high = t + p->dynatemp_range;
        pl_chain_list(h);
        int32_t n = 0;
        for (int32_t i = 0; i < h->n; i++) n += h->c[i].logit > -INFINITY;
        if (n > 1) {
            double share = pl_chain_entropy(h) / pl_ln((double)n);
            share = share > 1 ? 1 : share;
            share = share > 0 ? pl_pow(share, (double)p->dynatemp_exponent) : p->dynatemp_exponent == 0;
            t = low + (high - low) * (float)share;
        }
    }
    if (t > 0) {
        /* Several of them in a chain must not leave the numbers that a logit can be divided by. */
        float scale = h->scale * t;
        h->scale = scale < SCALE_MIN ? SCALE_MIN : scale > 1 / SCALE_MIN ? 1 / SCALE_MIN : scale;
    } else {
        pl_keep_top_k(h, 1);
    }
}

static void step(pl_chain *h, pl_step step, pl_sampler *s, const pl_sample_params *p, const int32_t *history,
                 int32_t n_history, int64_t pos)
{
    switch (step) {
    case PL_STEP_PENALTIES:
        if (step_penalties(s, p, history, n_history)) pl_chain_refresh(h);
        break;
    case PL_STEP_DRY:
        if (step_dry(s, p, history, n_history)) pl_chain_refresh(h);
        break;
    case PL_STEP_TOP_N_SIGMA: pl_keep_top_n_sigma(h, p->top_n_sigma); break;
    case PL_STEP_TOP_K: pl_keep_top_k(h, p->top_k); break;
    case PL_STEP_TYPICAL: pl_keep_typical(h, p->typical_p); break;
    case PL_STEP_TOP_P: pl_keep_top_p(h, p->top_p); break;
    case PL_STEP_MIN_P: pl_keep_min_p(h, p->min_p); break;
    case PL_STEP_XTC:
        if (p->xtc_probability > 0 &&
            pl_draw(p->seed ^ XTC_DRAW, p->choice, (uint64_t)pos) < (double)p->xtc_probability)
            pl_exclude_top(h, p->xtc_threshold);
        break;
    case PL_STEP_TEMPERATURE: step_temperature(h, p); break;
    case PL_STEP_END:
    case PL_STEP_COUNT: break;
    }
}

static int32_t draw(const pl_chain *h, double u)
{
    const pl_candidate *c = h->c;
    const float max = h->max, scale = h->scale;
    double sum = pl_chain_sum(h), at = 0;
    for (int32_t i = 0; i < h->n; i++) {
        at += (double)pl_expf((c[i].logit - max) / scale);
        if (at > u * sum) return i;
    }
    /* Only when u * sum is rounded up to sum: the last that is not banned. */
    int32_t last = h->n - 1;
    while (last > 0 && pl_chain_weight(h, last) == 0) last--;
    return last;
}

/* Mirostat takes the place of the truncations; penalties stay, in their order. */
static int32_t pick_mirostat(pl_chain *h, pl_sampler *s, pl_sample_seq *q, const uint8_t *chain, int n_steps,
                             const int32_t *history, int32_t n_history, int64_t pos)
{
    const pl_sample_params *p = &q->p;
    for (int i = 0; i < n_steps; i++)
        if (chain[i] == PL_STEP_PENALTIES || chain[i] == PL_STEP_DRY)
            step(h, (pl_step)chain[i], s, p, history, n_history, pos);
    step_temperature(h, p);
    if (p->mirostat == 1)
        pl_keep_zipf(h, q->mu);
    else
        pl_keep_surprise(h, q->mu);
    pl_chain_list(h);
    int32_t at = draw(h, pl_draw(p->seed, p->choice, (uint64_t)pos));
    double surprise = -pl_ln((double)pl_chain_weight(h, at) / pl_chain_sum(h)) / pl_ln(2);
    /* A float, as it is on the wire: who goes on from there has the same number. */
    float mu = (float)(q->mu - (double)p->mirostat_eta * (surprise - (double)p->mirostat_tau));
    if (mu >= -FLT_MAX && mu <= FLT_MAX) q->mu = (double)mu;
    return h->c[at].id;
}

static int32_t pick(pl_sampler *s, pl_sample_seq *q, const int32_t *history, int32_t n_history, int64_t pos)
{
    const pl_sample_params *p = &q->p;
    const uint8_t *chain = p->chain[0] == PL_STEP_END ? pl_sample_chain_default : p->chain;
    int n_steps = 0;
    bool cools = false;
    while (n_steps < PL_STEPS_MAX && chain[n_steps] != PL_STEP_END) cools |= chain[n_steps++] == PL_STEP_TEMPERATURE;
    /* XTC and typical sampling may drop the likeliest; no other truncation does, so a greedy chain goes without them.
     */
    if (cools && p->temperature == 0 && p->xtc_probability <= 0 && (p->typical_p <= 0 || p->typical_p >= 1)) {
        for (int i = 0; i < n_steps; i++) {
            if (chain[i] == PL_STEP_PENALTIES) step_penalties(s, p, history, n_history);
            if (chain[i] == PL_STEP_DRY) step_dry(s, p, history, n_history);
        }
        int32_t best = pl_best_of(s->logits, s->n);
        if (!q->constraint || pl_constraint_allows(q->constraint, best)) return best;
        pl_constraint_ban(q->constraint, s->logits);
        return pl_best_of(s->logits, s->n);
    }
    if (q->constraint) pl_constraint_ban(q->constraint, s->logits);
    pl_chain h = {.logits = s->logits, .n_vocab = s->n, .a = s->a, .b = s->b, .n = s->n, .scale = 1};
    pl_chain_refresh(&h);
    if (h.max == -INFINITY) return pl_best_of(s->logits, s->n); /* every token is banned */
    if (p->mirostat != 0 && p->temperature > 0) return pick_mirostat(&h, s, q, chain, n_steps, history, n_history, pos);
    for (int i = 0; i < n_steps; i++) step(&h, (pl_step)chain[i], s, p, history, n_history, pos);
    pl_chain_list(&h);
    return h.c[h.n == 1 ? 0 : draw(&h, pl_draw(p->seed, p->choice, (uint64_t)pos))].id;
}

void pl_sampler_pick(pl_sampler *s, pl_sample_seq *q, const float *logits, const int32_t *history, int32_t n_history,
                     int64_t pos, pl_sampled *out)
{
    const pl_sample_params *p = &q->p;
    bool wanted = p->n_logprobs >= 0;
    double shift = 0;
    out->n_top = 0;
    out->logprob = 0;
    out->n_state = 0;
    copy_logits(s, logits);
    if (wanted) shift = logprobs(s, p->n_logprobs, out);
    add_bias(s, p);
    if (q->constraint) pl_constraint_follow(q->constraint, history, n_history);
    out->token = pick(s, q, history, n_history, pos);
    if (p->mirostat != 0) {
        float mu = (float)q->mu;
        uint32_t bits;
        memcpy(&bits, &mu, sizeof bits);
        pl_put_u32(out->state, bits);
        out->n_state = sizeof bits;
    }
    if (wanted) {
        float x = logits[out->token]; /* as it was before the penalty */
        out->logprob = x != x ? -INFINITY : (float)((double)(x > FLT_MAX ? FLT_MAX : x) + shift);
    }
}
