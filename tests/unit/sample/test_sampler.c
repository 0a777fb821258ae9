/* The sampler against its definition, written out with full sorts and libm. */
#include "engine/sample/sampler.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/alloc.h"
#include "engine/base/rng.h"
#include "tests/fixtures/fixtures.h"

static pl_sample_params plain(void)
{
    return (pl_sample_params){.temperature = 1, .top_p = 1, .repeat_penalty = 1, .n_logprobs = -1};
}

static pl_sampler *make(int32_t n)
{
    pl_sampler *s;
    pl_error err = {0};
    ck_ok(pl_sampler_new(&s, n, 4096, &err), err);
    return s;
}

static pl_sample_seq *open_seq(pl_sampler *s, const pl_sample_params *p)
{
    pl_sample_seq *q;
    pl_error err = {0};
    ck_ok(pl_sample_seq_new(&q, s, p, &(pl_sample_seq_options){0}, &err), err);
    return q;
}

/* One token of a sequence that is opened for it. */
static void pick_once(pl_sampler *s, const pl_sample_params *p, const float *logits, const int32_t *history,
                      int32_t n_history, int64_t pos, pl_sampled *out)
{
    pl_sample_seq *q = open_seq(s, p);
    pl_sampler_pick(s, q, logits, history, n_history, pos, out);
    pl_sample_seq_free(q);
}

static int32_t pick(pl_sampler *s, const pl_sample_params *p, const float *logits, int64_t pos)
{
    pl_sampled out;
    pick_once(s, p, logits, NULL, 0, pos, &out);
    return out.token;
}

START_TEST(temperature_0_takes_the_lowest_id_among_the_likeliest)
{
    pl_sampler *s = make(5);
    pl_sample_params p = plain();
    p.temperature = 0;
    ck_assert_int_eq(pick(s, &p, (float[]){1, 3, 2, 3, 3}, 0), 1);
    ck_assert_int_eq(pick(s, &p, (float[]){-INFINITY, NAN, -5, NAN, -6}, 0), 2);
    ck_assert_int_eq(pick(s, &p, (float[]){0, NAN, INFINITY, INFINITY, 1}, 0), 2);
    ck_assert_int_eq(pick(s, &p, (float[]){NAN, NAN, NAN, NAN, NAN}, 0), 0);
    pl_sampler_free(s);
}
END_TEST

/* Which of n tokens can be drawn at all: everything that 4000 draws meet. */
static uint32_t reach(const pl_sample_params *p, const float *logits, int32_t n)
{
    pl_sampler *s = make(n);
    uint32_t seen = 0;
    for (int64_t i = 0; i < 4000; i++) seen |= 1u << pick(s, p, logits, i);
    pl_sampler_free(s);
    return seen;
}

START_TEST(top_k_keeps_the_lower_ids_among_equals)
{
    pl_sample_params p = plain();
    p.top_k = 3;
    ck_assert_uint_eq(reach(&p, (float[]){0, 1, 1, 0, 1, 1}, 6), 1u << 1 | 1u << 2 | 1u << 4);
    p.top_k = 4;
    ck_assert_uint_eq(reach(&p, (float[]){0, 1, 1, 0, 0, 1}, 6), 1u << 0 | 1u << 1 | 1u << 2 | 1u << 5);
    p.top_k = 1;
    ck_assert_uint_eq(reach(&p, (float[]){0, 1, 1, 0, 1, 1}, 6), 1u << 1);
    p.top_k = 99;
    ck_assert_uint_eq(reach(&p, (float[]){0, 1, 1, 0, 1, 1}, 6), 63u);
}
END_TEST

START_TEST(top_p_keeps_the_fewest_that_reach_it)
{
    /* Probabilities 0.5, 0.25, 0.125, 0.125. */
    float l[4] = {logf(0.125f), logf(0.5f), logf(0.125f), logf(0.25f)};
    pl_sample_params p = plain();
    for (int k = 0; k < 2; k++) {
        p.top_k = k ? 3 : 0;
        p.top_p = 0;
        ck_assert_uint_eq(reach(&p, l, 4), 1u << 1);
        p.top_p = 0.49f;
        ck_assert_uint_eq(reach(&p, l, 4), 1u << 1);
        p.top_p = 0.74f;
        ck_assert_uint_eq(reach(&p, l, 4), 1u << 1 | 1u << 3);
    }
    p.top_k = 0;
    p.top_p = 0.8f;
    ck_assert_uint_eq(reach(&p, l, 4), 1u << 1 | 1u << 3 | 1u << 0); /* the lower id of the two equal ones */
    p.top_p = 0.9f;
    ck_assert_uint_eq(reach(&p, l, 4), 15u);
}
END_TEST

START_TEST(min_p_is_a_share_of_the_likeliest)
{
    float l[4] = {logf(0.125f), logf(0.5f), logf(0.125f), logf(0.25f)};
    pl_sample_params p = plain();
    p.min_p = 0.51f;
    ck_assert_uint_eq(reach(&p, l, 4), 1u << 1);
    p.min_p = 0.49f;
    ck_assert_uint_eq(reach(&p, l, 4), 1u << 1 | 1u << 3);
    p.min_p = 0.24f;
    ck_assert_uint_eq(reach(&p, l, 4), 15u);
    p.min_p = 1;
    ck_assert_uint_eq(reach(&p, l, 4), 1u << 1);
}
END_TEST

START_TEST(truncation_looks_at_the_distribution_before_the_temperature)
{
    float l[3] = {logf(0.6f), logf(0.3f), logf(0.1f)};
    pl_sample_params p = plain();
    p.temperature = 100; /* nearly uniform, but 0.6 alone reaches 0.55 */
    p.top_p = 0.55f;
    ck_assert_uint_eq(reach(&p, l, 3), 1u);
    p.temperature = 0.05f; /* nearly greedy */
    p.top_p = 1;
    ck_assert_uint_eq(reach(&p, l, 3), 1u);
}
END_TEST

START_TEST(a_repeated_token_is_penalized_once_and_only_inside_the_window)
{
    pl_sampler *s = make(4);
    pl_sample_params p = plain();
    p.temperature = 0;
    p.repeat_penalty = 2;
    p.repeat_last_n = 2;
    pl_sampled out;
    float l[4] = {5, 4, -3, -9};
    pick_once(s, &p, l, (int32_t[]){1, 0, 0}, 3, 3, &out); /* 0: 2.5, and 1 is outside: 4 */
    ck_assert_int_eq(out.token, 1);
    pick_once(s, &p, l, (int32_t[]){0, 3, 3}, 3, 3, &out); /* 0 is outside */
    ck_assert_int_eq(out.token, 0);
    p.repeat_last_n = -1;
    pick_once(s, &p, l, (int32_t[]){0, 3, 3}, 3, 3, &out);
    ck_assert_int_eq(out.token, 1);
    p.repeat_last_n = 0;
    pick_once(s, &p, l, (int32_t[]){0, 3, 3}, 3, 3, &out);
    ck_assert_int_eq(out.token, 0);
    p.repeat_last_n = 64;
    pick_once(s, &p, (float[]){-1, -1.5f, -4, -9}, (int32_t[]){0, -7, 4000}, 3, 3,
              &out); /* negative ones are multiplied; ids out of range are nobody's */
    ck_assert_int_eq(out.token, 1);
    pl_sampler_free(s);
}
END_TEST

/* The definition, by full sort in double with libm. Gives the probability of each token. */
typedef struct ref {
    double p;
    int32_t id;
    float logit;
} ref;
static int better(const void *a, const void *b)
{
    const ref *x = a, *y = b;
    return x->logit != y->logit ? (x->logit < y->logit) - (x->logit > y->logit) : (x->id > y->id) - (x->id < y->id);
}
static void define(const pl_sample_params *p, const float *logits, int32_t n, double *prob)
{
    ref *r = calloc((size_t)n, sizeof *r);
    for (int32_t i = 0; i < n; i++) r[i] = (ref){0, i, logits[i]}, prob[i] = 0;
    qsort(r, (size_t)n, sizeof *r, better);
    int32_t k = p->top_k > 0 && p->top_k < n ? p->top_k : n, m = 0;
    double sum = 0, at = 0;
    for (int32_t i = 0; i < k; i++) sum += exp((double)r[i].logit - (double)r[0].logit);
    do at += exp((double)r[m].logit - (double)r[0].logit) / sum;
    while (++m < k && at < (double)p->top_p);
    if (p->top_p == 1) m = k;
    sum = 0;
    for (int32_t i = 0; i < m; i++) {
        if (exp((double)r[i].logit - (double)r[0].logit) < (double)p->min_p) continue;
        r[i].p = exp(((double)r[i].logit - (double)r[0].logit) / (double)p->temperature);
        sum += r[i].p;
    }
    for (int32_t i = 0; i < m; i++) prob[r[i].id] = r[i].p / sum;
    free(r);
}

START_TEST(draws_follow_the_definition_by_the_chi_squared_test)
{
    enum { N = 24, DRAWS = 100000 };
    pl_rng rng;
    pl_rng_seed(&rng, 7);
    float l[N];
    for (int i = 0; i < N; i++) l[i] = (float)pl_rng_gauss(&rng) * 1.5f;
    const pl_sample_params cases[] = {
        {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .n_logprobs = -1},
        {.temperature = 0.7f, .top_p = 1, .repeat_penalty = 1, .n_logprobs = -1, .seed = 5},
        {.temperature = 1.5f, .top_k = 9, .top_p = 1, .repeat_penalty = 1, .n_logprobs = -1, .seed = 6},
        {.temperature = 0.8f,
         .top_k = 12,
         .top_p = 0.9f,
         .min_p = 0.05f,
         .repeat_penalty = 1,
         .n_logprobs = -1,
         .seed = UINT64_MAX},
        {.temperature = 1, .top_p = 0.8f, .repeat_penalty = 1, .n_logprobs = -1, .seed = 8},
    };
    pl_sampler *s = make(N);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        double prob[N], chi = 0;
        int count[N] = {0}, kinds = 0;
        define(&cases[c], l, N, prob);
        pl_sample_seq *q = open_seq(s, &cases[c]);
        for (int64_t i = 0; i < DRAWS; i++) {
            pl_sampled out;
            pl_sampler_pick(s, q, l, NULL, 0, i, &out);
            count[out.token]++;
        }
        pl_sample_seq_free(q);
        for (int i = 0; i < N; i++) {
            if (prob[i] == 0) {
                ck_assert_msg(count[i] == 0, "case %zu: token %d was drawn %d times", c, i, count[i]);
                continue;
            }
            double want = prob[i] * DRAWS;
            chi += (count[i] - want) * (count[i] - want) / want;
            kinds++;
        }
        /* Wilson and Hilferty: 4.5 deviations, about one in 300,000; the seeds are fixed. */
        double d = kinds - 1, limit = d * pow(1 - 2 / (9 * d) + 4.5 * sqrt(2 / (9 * d)), 3);
        ck_assert_msg(kinds >= 5 && chi < limit, "case %zu: chi squared %g of %d kinds exceeds %g", c, chi, kinds,
                      limit);
    }
    pl_sampler_free(s);
}
END_TEST

START_TEST(every_token_that_is_picked_has_a_probability_by_the_definition)
{
    enum { N = 500 };
    pl_rng rng;
    pl_rng_seed(&rng, 11);
    pl_sampler *s = make(N);
    static float l[N];
    static double prob[N];
    for (int round = 0; round < 1500; round++) {
        /* Coarse logits, so that there are many equals. */
        for (int i = 0; i < N; i++) l[i] = (float)(int)(pl_rng_gauss(&rng) * 4) / 2;
        pl_sample_params p = plain();
        p.temperature = 0.3f + (float)pl_rng_f64(&rng);
        p.top_k = pl_rng_below(&rng, 3) ? (int32_t)pl_rng_below(&rng, N + 9) : 0;
        p.top_p = pl_rng_below(&rng, 3) ? (float)pl_rng_f64(&rng) : 1;
        p.min_p = pl_rng_below(&rng, 3) ? (float)pl_rng_f64(&rng) * 0.4f : 0;
        p.seed = pl_rng_u64(&rng);
        define(&p, l, N, prob);
        /* The draw by inversion, over candidates best first where the chain sorts and by id where it does not. */
        int32_t got = pick(s, &p, l, round);
        ck_assert_msg(prob[got] > 0, "round %d: token %d (top_k %d top_p %g min_p %g)", round, (int)got, (int)p.top_k,
                      (double)p.top_p, (double)p.min_p);
    }
    pl_sampler_free(s);
}
END_TEST

START_TEST(a_pick_depends_on_seed_choice_and_position_alone)
{
    float l[64];
    pl_rng rng;
    pl_rng_seed(&rng, 3);
    for (int i = 0; i < 64; i++) l[i] = (float)pl_rng_gauss(&rng);
    pl_sampler *a = make(64), *b = make(64);
    pl_sample_params p = plain();
    p.repeat_penalty = 1.1f;
    p.repeat_last_n = -1;
    int differ_pos = 0, differ_choice = 0;
    int32_t history[40];
    for (int i = 0; i < 40; i++) history[i] = (int32_t)pl_rng_below(&rng, 64);
    for (int64_t pos = 0; pos < 200; pos++) {
        pl_sampled x, y, z, w;
        p.seed = 99;
        p.choice = 0;
        pick_once(a, &p, l, history, 40, pos, &x);
        pick_once(a, &p, l, history, 40, pos + 1, &y);
        pick_once(b, &p, l, history, 40, pos, &z);
        p.choice = 1;
        pick_once(b, &p, l, history, 40, pos, &w);
        ck_assert_int_eq(x.token, z.token);
        differ_pos += x.token != y.token;
        differ_choice += x.token != w.token;
    }
    ck_assert_int_gt(differ_pos, 100);
    ck_assert_int_gt(differ_choice, 100);
    pl_sampler_free(a);
    pl_sampler_free(b);
}
END_TEST

START_TEST(the_same_tokens_come_out_on_every_machine)
{
    /* Made by this code once; a change of these numbers breaks replay between versions. */
    enum { N = 1000 };
    static float l[N];
    for (int i = 0; i < N; i++) l[i] = (float)((i * 7919) % 1009) / 64.0f;
    pl_sampler *s = make(N);
    pl_sample_params p = pl_sample_defaults();
    p.seed = 42;
    uint64_t sum = 0;
    for (int64_t i = 0; i < 100; i++) {
        p.top_k = i % 2 ? 40 : 0;
        sum = sum * 1000003 + (uint64_t)pick(s, &p, l, i);
    }
    ck_assert_uint_eq(sum, 13910193891911578935u);
    pl_sampler_free(s);
}
END_TEST

START_TEST(logprobs_are_of_the_distribution_as_the_model_gave_it)
{
    float l[5] = {1, 2, 3, -1, NAN};
    double sum = exp(1 - 3) + exp(2 - 3) + 1 + exp(-1 - 3);
    pl_sampler *s = make(5);
    pl_sample_params p = plain();
    p.temperature = 0;
    p.repeat_penalty = 10;
    p.repeat_last_n = -1;
    p.n_logprobs = 4;
    pl_sampled out;
    pick_once(s, &p, l, (int32_t[]){2}, 1, 1, &out);
    ck_assert_int_eq(out.token, 1); /* 3 was penalized to 0.3 */
    ck_assert_float_eq_tol(out.logprob, (float)(2 - 3 - log(sum)), 1e-6f);
    ck_assert_int_eq(out.n_top, 4);
    const int32_t order[4] = {2, 1, 0, 3};
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(out.top[i], order[i]);
        ck_assert_float_eq_tol(out.top_logprob[i], (float)((double)l[order[i]] - 3 - log(sum)), 1e-6f);
    }
    p.n_logprobs = 0;
    pick_once(s, &p, l, NULL, 0, 1, &out);
    ck_assert_int_eq(out.n_top, 0);
    ck_assert_float_eq_tol(out.logprob, (float)-log(sum), 1e-6f);
    p.n_logprobs = PL_LOGPROBS_MAX;
    pick_once(s, &p, l, NULL, 0, 1, &out);
    ck_assert_int_eq(out.n_top, 5);
    ck_assert(out.top_logprob[4] == -INFINITY);
    pl_sampler_free(s);
}
END_TEST

START_TEST(a_pick_takes_nothing_from_the_heap_and_leaves_the_logits_alone)
{
    enum { N = 4096 };
    static float l[N], before[N];
    pl_rng rng;
    pl_rng_seed(&rng, 5);
    for (int i = 0; i < N; i++) before[i] = l[i] = (float)pl_rng_gauss(&rng) * 3;
    pl_sampler *s = make(N);
    pl_sample_params p = pl_sample_defaults();
    p.repeat_penalty = 1.3f;
    p.n_logprobs = 20;
    pl_sample_seq *q[3];
    for (int32_t i = 0; i < 3; i++) {
        p.top_k = i * 40;
        p.mirostat = i;
        p.dry_multiplier = 1;
        p.n_breakers = 0;
        q[i] = open_seq(s, &p);
    }
    uint64_t count = pl_alloc_count();
    for (int32_t i = 0; i < 50; i++) {
        pl_sampled out;
        pl_sampler_pick(s, q[i % 3], l, (int32_t[]){1, 2, 3}, 3, i, &out);
    }
    ck_assert_uint_eq(pl_alloc_count(), count);
    for (int32_t i = 0; i < 3; i++) pl_sample_seq_free(q[i]);
    ck_assert_int_eq(memcmp(l, before, sizeof l), 0);
    pl_sampler_free(s);
}
END_TEST

START_TEST(extreme_numbers_still_give_a_token)
{
    pl_sampler *s = make(3);
    const float odd[] = {-INFINITY, INFINITY, NAN, FLT_MAX, -FLT_MAX, 0, FLT_MIN / 4};
    pl_sampled out;
    for (int c = 0; c < 7 * 7 * 7 * 4; c++) {
        float l[3] = {odd[c % 7], odd[c / 7 % 7], odd[c / 49 % 7]};
        pl_sample_params p = pl_sample_defaults();
        p.temperature = c / 343 % 2 ? FLT_MIN / 8 : PL_PENALTY_MAX;
        p.top_k = c / 686 % 2 ? 2 : 0;
        p.repeat_penalty = c % 5 ? 1e-30f : PL_PENALTY_MAX;
        p.n_logprobs = 3;
        pick_once(s, &p, l, (int32_t[]){0, 1}, 2, c, &out);
        ck_assert_int_ge(out.token, 0);
        ck_assert_int_lt(out.token, 3);
    }
    pl_sampler_free(s);
}
END_TEST

START_TEST(a_parameter_out_of_range_is_named)
{
    pl_sample_params good = pl_sample_defaults(), p;
    pl_error err = {0};
    ck_ok(pl_sample_check(&good, &err), err);
#define BAD(field, value)                                                                                              \
    p = good;                                                                                                          \
    p.field = (value);                                                                                                 \
    ck_status(pl_sample_check(&p, &err), PL_ERR_INVALID, err);                                                         \
    ck_says(err, #field)
    BAD(temperature, -0.1f);
    BAD(temperature, NAN);
    BAD(temperature, INFINITY);
    BAD(top_k, -1);
    BAD(top_p, 1.1f);
    BAD(top_p, -0.1f);
    BAD(top_p, NAN);
    BAD(min_p, 1.1f);
    BAD(min_p, NAN);
    BAD(repeat_penalty, 0);
    BAD(repeat_penalty, NAN);
    BAD(repeat_last_n, -2);
    BAD(n_logprobs, -2);
    BAD(dynatemp_range, -1);
    BAD(dynatemp_exponent, NAN);
    BAD(typical_p, 1.5f);
    BAD(top_n_sigma, NAN);
    BAD(xtc_probability, -0.1f);
    BAD(xtc_threshold, 2);
    BAD(frequency_penalty, INFINITY);
    BAD(presence_penalty, NAN);
    BAD(dry_multiplier, -1);
    BAD(dry_allowed_length, -1);
    BAD(mirostat, 3);
    BAD(mirostat_tau, -1);
    BAD(mirostat_eta, NAN);
    BAD(n_logprobs, PL_LOGPROBS_MAX + 1);
#undef BAD
    p = good;
    p.dry_last_n = -2;
    ck_status(pl_sample_check(&p, &err), PL_ERR_INVALID, err);
    ck_says(err, "dry_penalty_last_n");
    p = good;
    p.dry_multiplier = 1;
    p.dry_base = 0.5f;
    ck_status(pl_sample_check(&p, &err), PL_ERR_INVALID, err);
    ck_says(err, "dry_base");
    p = good;
    p.bias_tokens = (int32_t[]){4};
    p.bias = (float[]){NAN};
    p.n_bias = 1;
    ck_status(pl_sample_check(&p, &err), PL_ERR_INVALID, err);
    ck_says(err, "token 4");
    p = good;
    p.breakers = &(pl_str){"", 0};
    p.n_breakers = 1;
    ck_status(pl_sample_check(&p, &err), PL_ERR_INVALID, err);
    ck_says(err, "dry_sequence_breakers");
    p = good;
    p.chain[0] = PL_STEP_COUNT;
    ck_status(pl_sample_check(&p, &err), PL_ERR_INVALID, err);
    ck_says(err, "samplers");
}
END_TEST

START_TEST(a_sampler_without_memory_is_refused)
{
    pl_sampler *s;
    pl_error err = {0};
    for (uint64_t n = 1; n <= 5; n++) {
        pl_alloc_fail_at(n);
        pl_status got = pl_sampler_new(&s, 100, 64, &err);
        pl_alloc_fail_at(0);
        ck_status(got, PL_ERR_NO_MEMORY, err);
        ck_assert_ptr_null(s);
    }
    ck_status(pl_sampler_new(&s, 0, 64, &err), PL_ERR_INVALID, err);
}
END_TEST

/* --- the other samplers against their definitions --- */

/* Draws often and compares with the probabilities that a definition gave, by the chi-squared test; unlikely kinds
 * (below five expected) are put together, impossible ones must not come. */
static void ck_follows(const char *name, const pl_sample_params *p, const float *logits, const double *prob, int n)
{
    enum { DRAWS = 60000, MOST = 64 };
    int count[MOST] = {0}, kinds = 0;
    pl_sampler *s = make(n);
    pl_sample_seq *q = open_seq(s, p);
    for (int64_t i = 0; i < DRAWS; i++) {
        pl_sampled out;
        pl_sampler_pick(s, q, logits, NULL, 0, i, &out);
        count[out.token]++;
    }
    double chi = 0, rest = 0, rest_count = 0, total = 0;
    for (int i = 0; i < n; i++) {
        total += prob[i];
        if (prob[i] == 0) ck_assert_msg(count[i] == 0, "%s: token %d was drawn %d times", name, i, count[i]);
        if (prob[i] * DRAWS < 5) {
            rest += prob[i] * DRAWS;
            rest_count += count[i];
            continue;
        }
        chi += (count[i] - prob[i] * DRAWS) * (count[i] - prob[i] * DRAWS) / (prob[i] * DRAWS);
        kinds++;
    }
    if (rest >= 5) {
        chi += (rest_count - rest) * (rest_count - rest) / rest;
        kinds++;
    }
    ck_assert_double_eq_tol(total, 1, 1e-6);
    double d = kinds > 1 ? kinds - 1 : 1, limit = d * pow(1 - 2 / (9 * d) + 4.5 * sqrt(2 / (9 * d)), 3);
    ck_assert_msg(chi < limit, "%s: chi squared %g of %d kinds exceeds %g", name, chi, kinds, limit);
    pl_sample_seq_free(q);
    pl_sampler_free(s);
}

enum { FEW = 40 };

/* Fixed logits and their distribution at this temperature. */
static void few(float logits[FEW], double prob[FEW], double temperature)
{
    pl_rng rng;
    pl_rng_seed(&rng, 21);
    double sum = 0;
    for (int i = 0; i < FEW; i++) logits[i] = (float)pl_rng_gauss(&rng) * 2;
    for (int i = 0; i < FEW; i++) sum += prob[i] = exp((double)logits[i] / temperature);
    for (int i = 0; i < FEW; i++) prob[i] /= sum;
}

static void renormalize(double prob[FEW])
{
    double sum = 0;
    for (int i = 0; i < FEW; i++) sum += prob[i];
    for (int i = 0; i < FEW; i++) prob[i] /= sum;
}

static double entropy_of(const double prob[FEW])
{
    double h = 0;
    for (int i = 0; i < FEW; i++)
        if (prob[i] > 0) h -= prob[i] * log(prob[i]);
    return h;
}

static const double *sort_key;
static int by_key(const void *a, const void *b)
{
    double x = sort_key[*(const int *)a], y = sort_key[*(const int *)b];
    return (x > y) - (x < y);
}

START_TEST(typical_sampling_keeps_what_is_nearest_to_the_entropy)
{
    float l[FEW];
    double prob[FEW], key[FEW], at = 0;
    int order[FEW], k = 0;
    few(l, prob, 1);
    double h = entropy_of(prob);
    for (int i = 0; i < FEW; i++) {
        order[i] = i;
        key[i] = fabs(-log(prob[i]) - h);
    }
    sort_key = key;
    qsort(order, FEW, sizeof *order, by_key);
    do at += prob[order[k]];
    while (++k < FEW && at < 0.6);
    ck_assert_int_gt(k, 3);
    for (; k < FEW; k++) prob[order[k]] = 0;
    renormalize(prob);
    pl_sample_params p = plain();
    p.typical_p = 0.6f;
    ck_follows("typical", &p, l, prob, FEW);
}
END_TEST

START_TEST(top_n_sigma_keeps_what_is_near_the_highest_logit)
{
    float l[FEW];
    double prob[FEW], mean = 0, var = 0, max = -1e9;
    few(l, prob, 0.7);
    for (int i = 0; i < FEW; i++) mean += (double)l[i] / FEW;
    for (int i = 0; i < FEW; i++) var += ((double)l[i] - mean) * ((double)l[i] - mean) / FEW;
    for (int i = 0; i < FEW; i++) max = (double)l[i] > max ? (double)l[i] : max;
    int kept = 0;
    for (int i = 0; i < FEW; i++) {
        if ((double)l[i] < max - 1.2 * sqrt(var)) prob[i] = 0;
        kept += prob[i] > 0;
    }
    ck_assert_int_gt(kept, 3);
    ck_assert_int_lt(kept, FEW / 2);
    renormalize(prob);
    pl_sample_params p = plain();
    p.top_n_sigma = 1.2f;
    p.temperature = 0.7f;
    ck_follows("top-n-sigma", &p, l, prob, FEW);
}
END_TEST

START_TEST(xtc_excludes_the_likeliest_but_one_as_often_as_it_is_told)
{
    float l[FEW];
    double prob[FEW], without[FEW];
    few(l, prob, 1);
    memcpy(without, prob, sizeof prob);
    int last = -1, n_top = 0;
    for (int i = 0; i < FEW; i++)
        if (prob[i] >= 0.05) {
            n_top++;
            if (last < 0 || prob[i] < prob[last]) last = i;
        }
    ck_assert_int_gt(n_top, 2);
    for (int i = 0; i < FEW; i++)
        if (prob[i] >= 0.05 && i != last) without[i] = 0;
    renormalize(without);
    for (int i = 0; i < FEW; i++) prob[i] = 0.7 * prob[i] + 0.3 * without[i];
    pl_sample_params p = plain();
    p.xtc_probability = 0.3f;
    p.xtc_threshold = 0.05f;
    ck_follows("xtc", &p, l, prob, FEW);
    p.xtc_threshold = 0.51f; /* off */
    few(l, prob, 1);
    ck_follows("xtc above one half", &p, l, prob, FEW);
}
END_TEST

START_TEST(dynamic_temperature_follows_the_entropy)
{
    float l[FEW];
    double prob[FEW];
    few(l, prob, 1);
    double t = 0.5 + (1.5 - 0.5) * pow(entropy_of(prob) / log(FEW), 2);
    few(l, prob, t);
    pl_sample_params p = plain();
    p.dynatemp_range = 0.5f;
    p.dynatemp_exponent = 2;
    ck_follows("dynatemp", &p, l, prob, FEW);
}
END_TEST

START_TEST(a_bias_is_added_and_a_ban_holds)
{
    float l[FEW];
    double prob[FEW];
    few(l, prob, 1);
    prob[3] *= exp(1.5);
    prob[7] *= exp(-2);
    prob[9] = 0;
    renormalize(prob);
    pl_sample_params p = plain();
    p.bias_tokens = (int32_t[]){3, 7, 9};
    p.bias = (float[]){1.5f, -2, -INFINITY};
    p.n_bias = 3;
    ck_follows("bias", &p, l, prob, FEW);
    pl_sampler *s = make(8);
    pl_sample_seq *q;
    pl_error err = {0};
    ck_status(pl_sample_seq_new(&q, s, &p, &(pl_sample_seq_options){0}, &err), PL_ERR_INVALID, err);
    ck_says(err, "token 9");
    pl_sampler_free(s);
}
END_TEST

START_TEST(the_order_of_the_chain_is_the_users)
{
    float l[3] = {logf(0.6f), logf(0.3f), logf(0.1f)};
    pl_error err = {0};
    pl_sample_params p = plain();
    p.temperature = 100;
    p.top_p = 0.55f;
    ck_assert_uint_eq(reach(&p, l, 3), 1u); /* top-p before the temperature: 0.6 alone reaches it */
    ck_ok(pl_sample_chain_parse(p.chain, PL_STR("temperature;top_p"), &err), err);
    ck_assert_uint_eq(reach(&p, l, 3), 3u); /* behind it all are nearly a third */
    ck_ok(pl_sample_chain_letters(p.chain, PL_STR("t"), &err), err);
    ck_assert_uint_eq(reach(&p, l, 3), 7u);
    ck_ok(pl_sample_chain_letters(p.chain, PL_STR("p"), &err), err); /* without a temperature: one */
    p.top_p = 0.8f;
    p.temperature = 0;
    ck_assert_uint_eq(reach(&p, l, 3), 3u);
    uint8_t before[PL_STEPS_MAX];
    memcpy(before, p.chain, sizeof before);
    ck_status(pl_sample_chain_parse(p.chain, PL_STR("top_k;tpo_p"), &err), PL_ERR_INVALID, err);
    ck_says(err, "tpo_p");
    ck_status(pl_sample_chain_parse(p.chain, PL_STR(";"), &err), PL_ERR_INVALID, err);
    ck_status(pl_sample_chain_letters(p.chain, PL_STR("kz"), &err), PL_ERR_INVALID, err);
    ck_status(pl_sample_chain_letters(p.chain, PL_STR("kkkkkkkkkkkkkkkkk"), &err), PL_ERR_INVALID, err);
    ck_assert_int_eq(memcmp(before, p.chain, sizeof before), 0);
    for (int i = 1; i < PL_STEP_COUNT; i++) {
        ck_ok(pl_sample_chain_parse(p.chain, pl_str_from(pl_step_name((pl_step)i)), &err), err);
        ck_assert_int_eq(p.chain[0], i);
        ck_assert_int_eq(p.chain[1], PL_STEP_END);
    }
}
END_TEST

START_TEST(frequency_and_presence_are_taken_off_by_count)
{
    float l[4] = {2, 2.5f, 1, 0};
    pl_sampler *s = make(4);
    pl_sampled out;
    pl_sample_params p = plain();
    p.temperature = 0;
    p.repeat_last_n = -1;
    p.frequency_penalty = 0.3f;
    pick_once(s, &p, l, (int32_t[]){1, 2, 1}, 3, 3, &out); /* 1: 2.5 - 0.6 */
    ck_assert_int_eq(out.token, 0);
    pick_once(s, &p, l, (int32_t[]){1, 2, 2}, 3, 3, &out); /* 1: 2.5 - 0.3 */
    ck_assert_int_eq(out.token, 1);
    p.frequency_penalty = 0;
    p.presence_penalty = 0.4f;
    pick_once(s, &p, l, (int32_t[]){1, 1, 1}, 3, 3, &out); /* 2.1 */
    ck_assert_int_eq(out.token, 1);
    p.presence_penalty = 0.6f;
    pick_once(s, &p, l, (int32_t[]){1, 1, 1}, 3, 3, &out); /* 1.9 */
    ck_assert_int_eq(out.token, 0);
    p.presence_penalty = -3; /* a reward */
    pick_once(s, &p, l, (int32_t[]){3}, 1, 3, &out);
    ck_assert_int_eq(out.token, 3);
    pl_sampler_free(s);
}
END_TEST

/* DRY by its definition: every length of every repetition. */
static void define_dry(double *penalty, int n, const pl_sample_params *p, const int32_t *h, int n_h)
{
    for (int i = 0; i < n; i++) penalty[i] = 0;
    int from = p->dry_last_n < 0 || p->dry_last_n > n_h ? 0 : n_h - p->dry_last_n;
    for (int end = from; end + 1 < n_h; end++) {
        int len = 0;
        while (end - len >= from && h[end - len] == h[n_h - 1 - len]) len++;
        if (len < 1 || len < p->dry_allowed_length) continue;
        double x = (double)p->dry_multiplier * pow((double)p->dry_base, len - p->dry_allowed_length);
        if (x > penalty[h[end + 1]]) penalty[h[end + 1]] = x;
    }
}

START_TEST(dry_penalizes_what_goes_on_with_a_repetition)
{
    enum { N = 5, H = 60 };
    pl_rng rng;
    pl_rng_seed(&rng, 31);
    pl_sampler *s = make(N);
    int punished = 0;
    for (int round = 0; round < 400; round++) {
        pl_sample_params p = plain();
        p.temperature = 0;
        p.n_logprobs = -1;
        p.dry_multiplier = 0.1f + (float)pl_rng_f64(&rng);
        p.dry_base = 1 + (float)pl_rng_f64(&rng) / 4;
        p.dry_allowed_length = (int32_t)pl_rng_below(&rng, 4);
        p.dry_last_n = pl_rng_below(&rng, 2) ? -1 : (int32_t)pl_rng_below(&rng, H);
        int32_t h[H];
        float l[N];
        double penalty[N];
        int kinds = 2 + (int)pl_rng_below(&rng, N - 1);
        for (int i = 0; i < H; i++) h[i] = (int32_t)pl_rng_below(&rng, (uint64_t)kinds);
        for (int i = 0; i < N; i++) l[i] = (float)pl_rng_f64(&rng) * 4;
        define_dry(penalty, N, &p, h, H);
        int best = 0;
        for (int i = 1; i < N; i++)
            if ((double)l[i] - penalty[i] > (double)l[best] - penalty[best]) best = i;
        for (int i = 0; i < N; i++) punished += penalty[i] > 0;
        pl_sampled out;
        pick_once(s, &p, l, h, H, H, &out);
        ck_assert_msg(out.token == best, "round %d: %d, not %d", round, (int)out.token, best);
    }
    ck_assert_int_gt(punished, 200);
    pl_sampler_free(s);
}
END_TEST

START_TEST(mirostat_holds_the_surprise_that_it_is_told)
{
    enum { N = 2000, DRAWS = 3000 };
    static float l[N];
    static double prob[N];
    double sum = 0;
    for (int i = 0; i < N; i++) l[i] = -1.1f * logf((float)(i + 1)); /* Zipf's law, as the paper assumes */
    for (int i = 0; i < N; i++) sum += prob[i] = exp((double)l[i]);
    for (int version = 1; version <= 2; version++) {
        pl_sampler *s = make(N);
        pl_sample_params p = plain();
        p.mirostat = version;
        p.mirostat_tau = 4;
        p.mirostat_eta = 0.1f;
        pl_sample_seq *q = open_seq(s, &p);
        double surprise = 0;
        uint8_t state[PL_SAMPLE_STATE_MAX];
        pl_sampled out;
        for (int64_t i = 0; i < DRAWS; i++) {
            pl_sampler_pick(s, q, l, NULL, 0, i, &out);
            surprise += -log2(prob[out.token] / sum) / DRAWS;
            if (i == DRAWS / 2) memcpy(state, out.state, sizeof state);
        }
        /* Of the model's own distribution the surprise is a little higher than of the truncated one. */
        ck_assert_msg(surprise > 3.5 && surprise < 5.2, "version %d: %g bits", version, surprise);
        /* Opened again in the middle, with the state that came with a token: the same tokens. */
        pl_sample_seq *again;
        pl_error err = {0};
        ck_ok(pl_sample_seq_new(&again, s, &p, &(pl_sample_seq_options){.state = state, .n_state = sizeof state}, &err),
              err);
        pl_sampled second;
        for (int64_t i = DRAWS / 2 + 1; i < DRAWS; i++) pl_sampler_pick(s, again, l, NULL, 0, i, &second);
        ck_assert_int_eq(second.token, out.token);
        ck_assert_int_eq(memcmp(second.state, out.state, sizeof state), 0);
        ck_assert_uint_eq(out.n_state, sizeof state);
        pl_sample_seq_free(again);
        pl_sample_seq_free(q);
        ck_status(pl_sample_seq_new(&again, s, &p, &(pl_sample_seq_options){.state = state, .n_state = 3}, &err),
                  PL_ERR_FORMAT, err);
        pl_sampler_free(s);
    }
}
END_TEST

START_TEST(parameters_keep_nothing_of_their_maker)
{
    int32_t tokens[2] = {1, 2};
    float bias[2] = {50, 0};
    char text[] = "ab";
    pl_str breaker = {text, 2};
    pl_sample_params p = plain();
    p.temperature = 0;
    p.bias_tokens = tokens;
    p.bias = bias;
    p.n_bias = 2;
    p.breakers = &breaker;
    p.n_breakers = 1;
    pl_sample_params own = p;
    void *block;
    ck_assert(pl_sample_params_own(&own, &block));
    pl_sampler *s = make(4);
    pl_sample_seq *q = open_seq(s, &p);
    tokens[0] = 3;
    text[0] = 'x';
    ck_assert_int_eq(own.bias_tokens[0], 1);
    ck_assert(own.bias[0] == 50 && own.bias[1] == 0);
    ck_assert(pl_str_is(own.breakers[0], "ab"));
    pl_sampled out;
    pl_sampler_pick(s, q, (float[]){0, 0, 0, 0}, NULL, 0, 0, &out);
    ck_assert_int_eq(out.token, 1);
    pl_free(block);
    pl_sample_seq_free(q);
    pl_sampler_free(s);
    p = plain();
    ck_assert(pl_sample_params_own(&p, &block));
    ck_assert_ptr_null(block);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("sampler");
    TCase *t = tcase_create("sampler");
    tcase_add_test(t, temperature_0_takes_the_lowest_id_among_the_likeliest);
    tcase_add_test(t, top_k_keeps_the_lower_ids_among_equals);
    tcase_add_test(t, top_p_keeps_the_fewest_that_reach_it);
    tcase_add_test(t, min_p_is_a_share_of_the_likeliest);
    tcase_add_test(t, truncation_looks_at_the_distribution_before_the_temperature);
    tcase_add_test(t, a_repeated_token_is_penalized_once_and_only_inside_the_window);
    tcase_add_test(t, draws_follow_the_definition_by_the_chi_squared_test);
    tcase_add_test(t, every_token_that_is_picked_has_a_probability_by_the_definition);
    tcase_add_test(t, a_pick_depends_on_seed_choice_and_position_alone);
    tcase_add_test(t, the_same_tokens_come_out_on_every_machine);
    tcase_add_test(t, logprobs_are_of_the_distribution_as_the_model_gave_it);
    tcase_add_test(t, a_pick_takes_nothing_from_the_heap_and_leaves_the_logits_alone);
    tcase_add_test(t, extreme_numbers_still_give_a_token);
    tcase_add_test(t, a_parameter_out_of_range_is_named);
    tcase_add_test(t, a_sampler_without_memory_is_refused);
    tcase_add_test(t, typical_sampling_keeps_what_is_nearest_to_the_entropy);
    tcase_add_test(t, top_n_sigma_keeps_what_is_near_the_highest_logit);
    tcase_add_test(t, xtc_excludes_the_likeliest_but_one_as_often_as_it_is_told);
    tcase_add_test(t, dynamic_temperature_follows_the_entropy);
    tcase_add_test(t, a_bias_is_added_and_a_ban_holds);
    tcase_add_test(t, the_order_of_the_chain_is_the_users);
    tcase_add_test(t, frequency_and_presence_are_taken_off_by_count);
    tcase_add_test(t, dry_penalizes_what_goes_on_with_a_repetition);
    tcase_add_test(t, mirostat_holds_the_surprise_that_it_is_told);
    tcase_add_test(t, parameters_keep_nothing_of_their_maker);
    suite_add_tcase(s, t);
    return ck_run(s, NULL);
}
