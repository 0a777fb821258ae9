/* The chain. Every sum runs in one order: best first after top-k or top-p, by id otherwise. */
#include "engine/sample/sampler.h"

#include <float.h>
#include <math.h>

#include "engine/base/alloc.h"
#include "engine/base/fmath.h"
#include "engine/base/rng.h"
#include "engine/sample/sample_impl.h"

struct pl_sampler {
    int32_t n;
    float *logits;        /* [n] */
    pl_candidate *a, *b;  /* [n] each */
    uint32_t *seen, mark; /* [n] for pl_penalize_repeats */
};

pl_sample_params pl_sample_defaults(void)
{
    return (pl_sample_params){.temperature = 0.8f,
                              .top_k = 40,
                              .top_p = 0.95f,
                              .min_p = 0.05f,
                              .repeat_penalty = 1.0f,
                              .repeat_last_n = 64,
                              .n_logprobs = -1};
}

pl_status pl_sample_check(const pl_sample_params *p, pl_error *err)
{
    /* Written so that NaN fails each of them. */
    if (!(p->temperature >= 0 && p->temperature <= FLT_MAX))
        return pl_fail(err, PL_ERR_INVALID, "temperature %g is not a number of at least 0", (double)p->temperature);
    if (p->top_k < 0) return pl_fail(err, PL_ERR_INVALID, "top_k %d is less than 0", (int)p->top_k);
    if (!(p->top_p >= 0 && p->top_p <= 1))
        return pl_fail(err, PL_ERR_INVALID, "top_p %g is not between 0 and 1", (double)p->top_p);
    if (!(p->min_p >= 0 && p->min_p <= 1))
        return pl_fail(err, PL_ERR_INVALID, "min_p %g is not between 0 and 1", (double)p->min_p);
    if (!(p->repeat_penalty > 0 && p->repeat_penalty <= FLT_MAX))
        return pl_fail(err, PL_ERR_INVALID, "repeat_penalty %g is not above 0", (double)p->repeat_penalty);
    if (p->repeat_last_n < -1)
        return pl_fail(err, PL_ERR_INVALID, "repeat_last_n %d is less than -1", (int)p->repeat_last_n);
    if (p->n_logprobs < -1 || p->n_logprobs > PL_LOGPROBS_MAX)
        return pl_fail(err, PL_ERR_INVALID, "n_logprobs %d is not between -1 and %d", (int)p->n_logprobs,
                       PL_LOGPROBS_MAX);
    return PL_OK;
}

pl_status pl_sampler_new(pl_sampler **out, int32_t n_vocab, pl_error *err)
{
    *out = NULL;
    if (n_vocab < 1) return pl_fail(err, PL_ERR_INVALID, "a vocabulary of %d tokens", (int)n_vocab);
    size_t n = (size_t)n_vocab;
    pl_sampler *s = pl_calloc(1, sizeof *s);
    if (s) {
        s->n = n_vocab;
        s->logits = pl_calloc(n, sizeof *s->logits);
        s->a = pl_calloc(n, sizeof *s->a);
        s->b = pl_calloc(n, sizeof *s->b);
        s->seen = pl_calloc(n, sizeof *s->seen);
    }
    if (!s || !s->logits || !s->a || !s->b || !s->seen) {
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
    pl_free(s->seen);
    pl_free(s);
}

/* A broken model's NaN can never be picked, and infinity minus infinity must not arise. */
static void copy_logits(pl_sampler *s, const float *logits)
{
    for (int32_t i = 0; i < s->n; i++) {
        float x = logits[i];
        s->logits[i] = x != x ? -INFINITY : x > FLT_MAX ? FLT_MAX : x;
    }
}

/* The first of the greatest; there is no NaN. The maxima of lanes first, which compilers make vectors of: a vocabulary
 * is searched after each token. */
static int32_t best_of(const float *logits, int32_t n)
{
    enum { LANES = 16 };
    float lanes[LANES], max = -INFINITY;
    int32_t i = 0;
    for (int j = 0; j < LANES; j++) lanes[j] = -INFINITY;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) lanes[j] = logits[i + j] > lanes[j] ? logits[i + j] : lanes[j];
    for (int j = 0; j < LANES; j++) max = lanes[j] > max ? lanes[j] : max;
    for (; i < n; i++) max = logits[i] > max ? logits[i] : max;
    for (i = 0; logits[i] != max;) i++;
    return i;
}

/* The top logprobs of the distribution as it is; what has to be added to a logit for its logprob is the result. */
static double logprobs(pl_sampler *s, int32_t n_top, pl_sampled *out)
{
    float max = s->logits[best_of(s->logits, s->n)];
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

static void penalize(pl_sampler *s, const pl_sample_params *p, const int32_t *history, int32_t n_history)
{
    int32_t n = p->repeat_last_n < 0 || p->repeat_last_n > n_history ? n_history : p->repeat_last_n;
    if (p->repeat_penalty == 1.0f || n <= 0) return;
    if (++s->mark == 0) { /* the marks ran out: all of them are old */
        for (int32_t i = 0; i < s->n; i++) s->seen[i] = 0;
        s->mark = 1;
    }
    pl_penalize_repeats(s->logits, s->n, p->repeat_penalty, history + (n_history - n), n, s->seen, s->mark);
}

static int32_t draw(const pl_candidate *c, int32_t n, float max, float temperature, double u)
{
    double sum = 0, at = 0;
    for (int32_t i = 0; i < n; i++) sum += (double)pl_expf((c[i].logit - max) / temperature);
    for (int32_t i = 0; i < n; i++) {
        at += (double)pl_expf((c[i].logit - max) / temperature);
        if (at > u * sum) return c[i].id;
    }
    return c[n - 1].id; /* unreachable while u < 1, except for rounding */
}

static int32_t pick(pl_sampler *s, const pl_sample_params *p, int64_t pos, uint32_t choice)
{
    int32_t best = best_of(s->logits, s->n), n = s->n;
    float max = s->logits[best];
    if (p->temperature == 0 || max == -INFINITY) return best;
    pl_candidate *c = s->a;
    bool sorted = p->top_k > 0 && p->top_k < n;
    if (sorted) {
        n = p->top_k;
        pl_best_k(s->logits, s->n, n, c);
    } else {
        for (int32_t i = 0; i < n; i++) c[i] = (pl_candidate){s->logits[i], i};
    }
    if (p->top_p < 1) {
        n = pl_keep_top_p(c, n, sorted, max, p->top_p, s->b);
        c = s->b;
    }
    if (p->min_p > 0) n = pl_keep_min_p(c, n, max, p->min_p);
    return draw(c, n, max, p->temperature, pl_draw(p->seed, choice, (uint64_t)pos));
}

void pl_sampler_pick(pl_sampler *s, const pl_sample_params *p, const float *logits, const int32_t *history,
                     int32_t n_history, int64_t pos, uint32_t choice, pl_sampled *out)
{
    bool wanted = p->n_logprobs >= 0;
    double shift = 0;
    out->n_top = 0;
    out->logprob = 0;
    copy_logits(s, logits);
    if (wanted) shift = logprobs(s, p->n_logprobs, out);
    penalize(s, p, history, n_history);
    out->token = pick(s, p, pos, choice);
    if (wanted) {
        float x = logits[out->token]; /* as it was before the penalty */
        out->logprob = x != x ? -INFINITY : (float)((double)(x > FLT_MAX ? FLT_MAX : x) + shift);
    }
}
