/* Our elementary functions against the long double ones of libm, and some exact bits that may never change. */
#include <check.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/fmath.h"
#include "engine/base/rng.h"

Suite *fmath_suite(void);

/* How far got is from want, in units of want's last place (of the smallest subnormal below that). */
static double ulps(float got, long double want)
{
    if (got == (float)want) return 0;
    int e;
    frexpl(want, &e);
    long double unit = ldexpl(1, e < -125 ? -149 : e - 24);
    return (double)(fabsl((long double)got - want) / unit);
}

START_TEST(exp_and_tanh_of_floats_are_within_two_ulp)
{
    double worst_exp = 0, worst_tanh = 0;
    for (uint64_t u = 0; u < 1ull << 32; u += 20011) {
        uint32_t bits = (uint32_t)u;
        float x;
        memcpy(&x, &bits, 4);
        if (x != x) {
            ck_assert(isnan(pl_expf(x)) && isnan(pl_tanhf(x)));
            continue;
        }
        worst_tanh = fmax(worst_tanh, ulps(pl_tanhf(x), tanhl(x)));
        if (x > 88.72f || x < -103.97f) continue;
        worst_exp = fmax(worst_exp, ulps(pl_expf(x), expl(x)));
    }
    for (float x = -104; x < 88.72f; x += 0.001f) worst_exp = fmax(worst_exp, ulps(pl_expf(x), expl(x)));
    ck_assert_double_le(worst_exp, 2);
    ck_assert_double_le(worst_tanh, 2);
}
END_TEST

/* How far off a function is, between -12 and 12 and around 0. */
static double worst_of(float (*f)(float), long double (*want)(long double), double from, double to)
{
    double worst = 0;
    for (double x = from; x < to; x += 0.00071) worst = fmax(worst, ulps(f((float)x), want((float)x)));
    for (float x = 1e-30f; x < 1; x *= 1.7f) worst = fmax(worst, ulps(f(x), want(x)));
    return worst;
}

static long double gelu(long double x) { return x * erfcl(-x * sqrtl(0.5L)) / 2; }
static long double gelu_tanh(long double x) { return x / (1 + expl(-2 * sqrtl(2 / 3.14159265358979323846L) * (x + 0.044715L * x * x * x))); }
static long double gelu_quick(long double x) { return x / (1 + expl(-1.702L * x)); }
static long double silu(long double x) { return x / (1 + expl(-x)); }
static long double sigmoid(long double x) { return 1 / (1 + expl(-x)); }

START_TEST(activation_functions_are_as_near_as_their_header_says)
{
    ck_assert_double_le(worst_of(pl_tanhf, tanhl, -12, 12), 2);
    ck_assert_double_le(worst_of(pl_sigmoidf, sigmoid, -12, 12), 3);
    ck_assert_double_le(worst_of(pl_siluf, silu, -12, 12), 3);
    ck_assert_double_le(worst_of(pl_geluf, gelu, -1, 12), 6);
    ck_assert_double_le(worst_of(pl_geluf, gelu, -4, -1), 32);
    ck_assert_double_le(worst_of(pl_geluf, gelu, -12, -4), 224);
    /* An error of the exponent's argument is a relative error of the exponential. */
    ck_assert_double_le(worst_of(pl_gelu_tanhf, gelu_tanh, -4, 12), 24);
    ck_assert_double_le(worst_of(pl_gelu_quickf, gelu_quick, -6, 12), 16);
    float (*const all[])(float) = {pl_tanhf, pl_sigmoidf, pl_siluf, pl_geluf, pl_gelu_tanhf, pl_gelu_quickf};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        ck_assert(isnan(all[i](NAN)) && !isnan(all[i](1e30f)) && !isnan(all[i](-1e30f)));
        ck_assert_float_eq(all[i](1e30f), i < 2 ? 1.0f : 1e30f);
    }
}
END_TEST

START_TEST(exp_has_its_limits)
{
    ck_assert_float_eq(pl_expf(0), 1);
    ck_assert_float_eq(pl_expf(-0.0f), 1);
    ck_assert_float_eq(pl_expf(-INFINITY), 0);
    ck_assert_float_eq(pl_expf(-103.98f), 0);
    ck_assert_float_eq(pl_expf(-103.9f), 0x1p-149f);
    ck_assert(isinf(pl_expf(88.73f)) && isinf(pl_expf(INFINITY)));
    ck_assert(!isinf(pl_expf(88.72f)));
    ck_assert(pl_exp(-800) == 0 && isinf(pl_exp(710)) && pl_exp(0) == 1 && isnan(pl_exp(NAN)));
    ck_assert(pl_ln(1) == 0 && isinf(pl_ln(0)) && isnan(pl_ln(-1)) && isinf(pl_ln(INFINITY)));
}
END_TEST

static double relative(double got, long double want)
{
    return (double)fabsl(((long double)got - want) / want);
}

START_TEST(doubles_are_within_1e_14)
{
    pl_rng r;
    pl_rng_seed(&r, 9);
    for (int i = 0; i < 200000; i++) {
        double x = (pl_rng_f64(&r) - 0.5) * 1400;
        ck_assert_double_le(relative(pl_exp(x), expl(x)), 1e-14);
        double p = ldexp(1 + pl_rng_f64(&r), (int)pl_rng_below(&r, 2000) - 1000), q = 1 + pl_rng_gauss(&r) * 1e-3;
        ck_assert_double_le(relative(pl_ln(p), logl(p)), 1e-14);
        if (q > 0 && q != 1) ck_assert_double_le(relative(pl_ln(q), logl(q)), 1e-14);
        double size = ldexp(pl_rng_f64(&r), (int)pl_rng_below(&r, 36) - 6), a = pl_rng_below(&r, 2) ? size : -size;
        ck_assert_double_le(relative(pl_sin(a), sinl(a)), 1e-14);
        ck_assert_double_le(relative(pl_cos(a), cosl(a)), 1e-14);
        double y = (pl_rng_f64(&r) - 0.5) * 2, base = 1 + pl_rng_f64(&r) * 1e6; /* rope: base^(-2i/d) */
        ck_assert_double_le(relative(pl_pow(base, y), powl(base, y)), 1e-14);
    }
    ck_assert_double_le(relative(pl_ln(0x1p-1074), logl(0x1p-1074L)), 1e-14);
    ck_assert_double_eq(pl_sin(0), 0);
    ck_assert_double_eq(pl_cos(0), 1);
}
END_TEST

/* These bits are part of the numeric profile: a change here means a new one. */
START_TEST(known_bits_stay)
{
    uint64_t h = 1469598103934665603ull; /* FNV-1a over the results' bits */
    for (int i = -2000; i < 2000; i++) {
        float x = (float)i / 19.0f;
        double d = (double)i / 7.0;
        float f[6] = {pl_expf(x), pl_siluf(x), pl_tanhf(x), pl_geluf(x), pl_gelu_tanhf(x), pl_gelu_quickf(x)};
        double g[4] = {pl_exp(d), pl_ln(fabs(d) + 0.01), pl_sin(d), pl_cos(d)};
        uint8_t bytes[sizeof f + sizeof g];
        memcpy(bytes, f, sizeof f);
        memcpy(bytes + sizeof f, g, sizeof g);
        for (size_t j = 0; j < sizeof bytes; j++) h = (h ^ bytes[j]) * 1099511628211ull;
    }
    ck_assert_uint_eq(h, 15003371876463477272ull);
}
END_TEST

Suite *fmath_suite(void)
{
    Suite *s = suite_create("fmath");
    TCase *c = tcase_create("fmath");
    tcase_add_test(c, exp_and_tanh_of_floats_are_within_two_ulp);
    tcase_add_test(c, activation_functions_are_as_near_as_their_header_says);
    tcase_add_test(c, exp_has_its_limits);
    tcase_add_test(c, doubles_are_within_1e_14);
    tcase_add_test(c, known_bits_stay);
    suite_add_tcase(s, c);
    return s;
}
