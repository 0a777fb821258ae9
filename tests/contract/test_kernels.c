/* Every kernel of every instruction set against the portable one, bit by bit; and the portable ones against float64. */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "engine/base/fmath.h"
#include "engine/base/rng.h"
#include "engine/cpu/kernels.h"
#include "engine/types/types.h"
#include "tests/contract/sets.h"

Suite *kernels_suite(void);

enum { N_MAX = 300, PAGE = 32, D_MAX = 130, ROWS_MAX = 11 };

typedef struct set {
    pl_cpu_kernels k;
    const char *word;
} set;

static set sets[8]; /* the portable one first */
static int n_sets;
static pl_cpu_kernels portable;

static void setup(void)
{
    pl_isa isa;
    for (n_sets = 0; set_at(n_sets, &isa, &sets[n_sets].word); n_sets++) pl_cpu_kernels_choose(&sets[n_sets].k, isa);
    portable = sets[0].k;
}

/* Mostly ordinary numbers, some tiny, huge, zero and subnormal ones. */
static float some_float(pl_rng *r)
{
    switch (pl_rng_below(r, 16)) {
    case 0: return 0.0f;
    case 1: return -0.0f;
    case 2: return (float)pl_rng_gauss(r) * 1e-40f;
    case 3: return (float)pl_rng_gauss(r) * 1e6f;
    case 4: return (float)pl_rng_gauss(r) * 1e-6f;
    default: return (float)pl_rng_gauss(r);
    }
}

static void fill(pl_rng *r, float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) x[i] = some_float(r);
}

/* Every set but the portable one. */
#define FOR_EACH_SET(s) for (const set *s = sets + 1; s < sets + n_sets; s++)

#define CK_SAME(a, b, n, word, what)                                                                                   \
    do {                                                                                                               \
        int64_t at_ = first_difference(a, b, n);                                                                       \
        ck_assert_msg(at_ < 0, "%s %s: element %d of %d differs: %a, portable %a", word, what, (int)at_, (int)(n),     \
                      (double)(a)[at_], (double)(b)[at_]);                                                             \
    } while (0)

START_TEST(rows_have_the_portable_bits)
{
    pl_rng r;
    pl_rng_seed(&r, 100 + (uint64_t)_i);
    static float x[N_MAX], w[N_MAX], want[N_MAX + 1], got[N_MAX + 1];
    int64_t n = 1 + (int64_t)pl_rng_below(&r, N_MAX);
    fill(&r, x, n);
    fill(&r, w, n);
    float s = some_float(&r);
    FOR_EACH_SET(t)
    {
        want[n] = got[n] = 12345.0f; /* kernels must not write behind the end */
#define ROW(what, ...)                                                                                                 \
    do {                                                                                                               \
        portable.what(want, __VA_ARGS__);                                                                              \
        t->k.what(got, __VA_ARGS__);                                                                                      \
        CK_SAME(got, want, n + 1, t->word, #what);                                                                        \
        ck_assert_float_eq(got[n], 12345.0f);                                                                          \
    } while (0)
        ROW(rms_norm, x, w, n, 1e-5f);
        ROW(rms_norm, x, NULL, n, 1e-5f);
        ROW(add, x, w, n);
        ROW(mul, x, w, n);
        ROW(scale, x, s, n);
        ROW(layer_norm, x, w, NULL, n, 1e-5f);
        ROW(layer_norm, x, NULL, w, n, 1e-5f);
        ROW(layer_norm, x, NULL, NULL, n, 1e-5f);
        ROW(l2_norm, x, n, 1e-6f);
        ROW(sub, x, w, n);
        ROW(div, x, w, n);
        ROW(scale_add, x, s, w[0], n);
        ROW(clamp, x, -0.5f, 0.75f, n);
        ROW(clamp, x, -INFINITY, 0, n);
        ROW(softcap, x, 30.0f, n);
        for (int fn = 0; fn < PL_FN_COUNT; fn++) {
            ROW(unary[fn], x, n);
            ROW(glu[fn], x, w, n);
            memcpy(got, x, (size_t)n * sizeof *x); /* in place */
            t->k.glu[fn](got, got, w, n);
            CK_SAME(got, want, n, t->word, "glu in place");
        }
        portable.layer_norm(want, x, w, x, n, 1e-5f);
        memcpy(got, x, (size_t)n * sizeof *x);
        t->k.layer_norm(got, got, w, x, n, 1e-5f);
        CK_SAME(got, want, n, t->word, "layer_norm in place");
        portable.rms_norm(want, x, w, n, 1e-5f);
        memcpy(got, x, (size_t)n * sizeof *x);
        t->k.rms_norm(got, got, w, n, 1e-5f);
        CK_SAME(got, want, n, t->word, "rms_norm in place");
    }
}
END_TEST

START_TEST(functions_have_the_portable_bits_over_all_floats)
{
    enum { N = 4096 };
    static float x[N], want[N], got[N];
    uint32_t u = (uint32_t)_i; /* stepping by a prime meets all exponents, both signs, infinities and NaN */
    for (uint64_t total = 0; total < (1ull << 32) / 6007;) {
        int n = 0;
        for (; n < N; n++, total++, u += 6007) memcpy(&x[n], &u, 4);
        for (int i = 0; i < n; i++) want[i] = pl_expf(x[i]);
        portable.unary[PL_FN_EXP](got, x, n);
        CK_SAME(got, want, n, "portable", "exp");
        for (int fn = 0; fn < PL_FN_COUNT; fn++) {
            portable.unary[fn](want, x, n);
            FOR_EACH_SET(t)
            {
                t->k.unary[fn](got, x, n);
                CK_SAME(got, want, n, t->word, "function");
            }
        }
    }
}
END_TEST

START_TEST(half_floats_have_the_portable_bits)
{
    enum { N = 1024 };
    static float f[N], want[N], got[N];
    static uint16_t h[N], hw[N], hg[N];
    for (uint32_t base = 0; base < 65536; base += N) {
        for (uint32_t i = 0; i < N; i++) h[i] = (uint16_t)(base + i);
        portable.f16_to_f32(want, h, N);
        FOR_EACH_SET(t)
        {
            t->k.f16_to_f32(got, h, N);
            CK_SAME(got, want, N, t->word, "f16_to_f32");
        }
    }
    pl_rng r;
    pl_rng_seed(&r, 5);
    for (int round = 0; round < 400; round++) {
        int n = 1 + (int)pl_rng_below(&r, N);
        for (int i = 0; i < n; i++) {
            uint32_t u = (uint32_t)pl_rng_u64(&r);
            if (round % 2) u = (u & 0x80ffffff) | (102 + (uint32_t)pl_rng_below(&r, 45)) << 23; /* where halves round, underflow, overflow */
            memcpy(&f[i], &u, 4);
            if (f[i] != f[i]) f[i] = 1.0f;
        }
        portable.f32_to_f16(hw, f, n);
        FOR_EACH_SET(t)
        {
            t->k.f32_to_f16(hg, f, n);
            for (int i = 0; i < n; i++)
                ck_assert_msg(hg[i] == hw[i], "%s f32_to_f16(%a): %04x, portable %04x", t->word, (double)f[i], hg[i], hw[i]);
        }
    }
}
END_TEST

START_TEST(rotation_has_the_portable_bits)
{
    enum { HEADS = 3, STRIDE = D_MAX + 5 };
    pl_rng r;
    pl_rng_seed(&r, 300 + (uint64_t)_i);
    static float x[HEADS * STRIDE], cs[D_MAX], want[HEADS * STRIDE], got[HEADS * STRIDE];
    int64_t n_rot = 2 + 2 * (int64_t)pl_rng_below(&r, D_MAX / 2), d = n_rot + (int64_t)pl_rng_below(&r, (uint64_t)(D_MAX - n_rot + 1));
    fill(&r, x, HEADS * STRIDE);
    fill(&r, cs, n_rot);
    for (int neox = 0; neox < 2; neox++) {
        memset(want, 0, sizeof want);
        (neox ? portable.rope_neox : portable.rope_norm)(want, (size_t)d, x, STRIDE, cs, n_rot, d, HEADS);
        for (int64_t j = 0; j < n_rot / 2; j++) { /* against float64, last head */
            int64_t i0 = neox ? j : 2 * j, i1 = neox ? j + n_rot / 2 : i0 + 1;
            const float *xl = x + 2 * STRIDE, *yl = want + 2 * d;
            double y0 = (double)xl[i0] * cs[2 * j] - (double)xl[i1] * cs[2 * j + 1];
            double size = fabs((double)xl[i0] * cs[2 * j]) + fabs((double)xl[i1] * cs[2 * j + 1]);
            ck_assert_double_le(fabs(yl[i0] - y0), 1.2e-7 * size + 1e-44);
        }
        FOR_EACH_SET(t)
        {
            memset(got, 0, sizeof got);
            (neox ? t->k.rope_neox : t->k.rope_norm)(got, (size_t)d, x, STRIDE, cs, n_rot, d, HEADS);
            CK_SAME(got, want, HEADS * STRIDE, t->word, neox ? "rope_neox" : "rope_norm");
            memcpy(got, x, sizeof got);
            (neox ? t->k.rope_neox : t->k.rope_norm)(got, STRIDE, got, STRIDE, cs, n_rot, d, HEADS);
            for (int h = 0; h < HEADS; h++) CK_SAME(got + h * STRIDE, want + h * d, d, t->word, "rope in place");
        }
    }
}
END_TEST

typedef struct tile {
    int d_k, d_v, n;
    float scale, softcap;
    bool slopes;
    float k[D_MAX * PAGE], v[D_MAX * PAGE], q[ROWS_MAX * D_MAX], slope[ROWS_MAX];
    uint16_t kh[D_MAX * PAGE], vh[D_MAX * PAGE];
    int32_t first[ROWS_MAX], end[ROWS_MAX], at[ROWS_MAX];
} tile;

typedef struct state {
    float acc[ROWS_MAX * D_MAX], m[ROWS_MAX], l[ROWS_MAX];
} state;

static void state_begin(state *s)
{
    memset(s, 0, sizeof *s);
    for (int i = 0; i < ROWS_MAX; i++) s->m[i] = -INFINITY;
}

/* What no row sees is NaN: nothing may read it into a result. */
static void tile_make(tile *t, pl_rng *r)
{
    for (int i = 0; i < t->d_k * PAGE; i++) t->kh[i] = pl_f32_to_f16((float)pl_rng_gauss(r));
    for (int i = 0; i < t->d_v * PAGE; i++) t->vh[i] = pl_f32_to_f16(pl_rng_below(r, 9) ? (float)pl_rng_gauss(r) : -0.0f);
    int most = 0, least = PAGE;
    bool windows = pl_rng_below(r, 2);
    for (int i = 0; i < t->n; i++) {
        t->first[i] = windows && pl_rng_below(r, 2) ? (int32_t)pl_rng_below(r, PAGE) : 0;
        t->end[i] = pl_rng_below(r, 2) ? PAGE : t->first[i] + 1 + (int32_t)pl_rng_below(r, (uint64_t)(PAGE - t->first[i]));
        t->at[i] = t->end[i] - 1 + (t->end[i] == PAGE ? (int32_t)pl_rng_below(r, 900) : 0);
        t->slope[i] = (float)pl_rng_f64(r) / 8;
        if (t->end[i] > most) most = t->end[i];
        if (t->first[i] < least) least = t->first[i];
    }
    for (int j = 0; j < PAGE; j++) {
        if (j >= least && j < most) continue;
        for (int d = 0; d < t->d_k; d++) t->kh[d * PAGE + j] = 0x7e00;
        for (int d = 0; d < t->d_v; d++) t->vh[j * t->d_v + d] = 0x7e00;
    }
    portable.f16_to_f32(t->k, t->kh, t->d_k * PAGE);
    portable.f16_to_f32(t->v, t->vh, t->d_v * PAGE);
    fill(r, t->q, t->n * t->d_k);
}

static void state_meets(const pl_cpu_kernels *k, state *s, const tile *t, bool half, int first, int n)
{
    pl_attn_tile a = {.k = half ? (const void *)t->kh : t->k,
                      .v = half ? (const void *)t->vh : t->v,
                      .q = t->q + first * t->d_k,
                      .acc = s->acc + first * t->d_v,
                      .m = s->m + first,
                      .l = s->l + first,
                      .first = t->first + first,
                      .end = t->end + first,
                      .at = t->at + first,
                      .slope = t->slopes ? t->slope + first : NULL,
                      .n = n,
                      .d_k = t->d_k,
                      .d_v = t->d_v,
                      .scale = t->scale,
                      .softcap = t->softcap};
    (half ? k->attn_tile_f16 : k->attn_tile_f32)(&a);
}

START_TEST(attention_has_the_portable_bits_with_any_number_of_rows)
{
    pl_rng r;
    pl_rng_seed(&r, 400 + (uint64_t)_i);
    static tile t;
    static state want, got;
    static const int dims[] = {8, 16, 64, 128};
    t.d_k = pl_rng_below(&r, 2) ? dims[pl_rng_below(&r, 4)] : 1 + (int)pl_rng_below(&r, D_MAX);
    t.d_v = pl_rng_below(&r, 2) ? t.d_k : 1 + (int)pl_rng_below(&r, D_MAX);
    t.n = 1 + (int)pl_rng_below(&r, ROWS_MAX);
    t.scale = 1.0f / sqrtf((float)t.d_k);
    t.softcap = pl_rng_below(&r, 3) ? 0 : 1.5f;
    t.slopes = pl_rng_below(&r, 3) == 0;
    uint64_t seed = pl_rng_u64(&r);
    for (int i = 0; i < 2 * n_sets; i++) {
        const set *x = &sets[i / 2];
        state_begin(&want);
        state_begin(&got);
        pl_rng_seed(&r, seed);
        for (int tiles = 0; tiles < 3; tiles++) {
            tile_make(&t, &r);
            state_meets(&portable, &want, &t, false, 0, t.n);
            for (int first = 0; first < t.n;) { /* in groups of any size */
                int n = 1 + (int)pl_rng_below(&r, (uint64_t)(t.n - first));
                state_meets(&x->k, &got, &t, i % 2, first, n);
                first += n;
            }
        }
        CK_SAME(got.m, want.m, t.n, x->word, "attention m");
        CK_SAME(got.l, want.l, t.n, x->word, "attention l");
        CK_SAME(got.acc, want.acc, t.n * t.d_v, x->word, "attention acc");
        for (int j = 0; j < t.n * t.d_v; j++) ck_assert(isfinite(want.acc[j]));
    }
}
END_TEST

START_TEST(portable_attention_is_softmax_times_values)
{
    pl_rng r;
    pl_rng_seed(&r, 500 + (uint64_t)_i);
    static tile t[3];
    static state s;
    int n = 2;
    tile base = {.d_k = 1 + (int)pl_rng_below(&r, 80), .d_v = 1 + (int)pl_rng_below(&r, 80), .n = n};
    base.scale = 1.0f / sqrtf((float)base.d_k);
    base.softcap = _i % 3 == 1 ? 2.0f : 0;
    base.slopes = _i % 4 == 2;
    float sink = _i % 5 == 3 ? 0.7f : -INFINITY;
    state_begin(&s);
    for (int row = 0; row < n && sink > -1; row++) {
        s.m[row] = sink;
        s.l[row] = 1;
    }
    for (int i = 0; i < 3; i++) {
        t[i] = base;
        tile_make(&t[i], &r);
        if (i) memcpy(t[i].q, t[0].q, sizeof t[i].q);
        if (i) memcpy(t[i].slope, t[0].slope, sizeof t[i].slope);
        state_meets(&portable, &s, &t[i], true, 0, n);
    }
    for (int row = 0; row < n; row++) {
        double top = sink, raw = 0, score[3][PAGE];
        for (int i = 0; i < 3; i++)
            for (int j = t[i].first[row]; j < t[i].end[row]; j++) {
                double x = 0;
                for (int e = 0; e < base.d_k; e++) x += (double)t[i].q[row * base.d_k + e] * t[i].k[e * PAGE + j];
                x *= base.scale;
                raw = fmax(raw, fabs(x));
                if (base.softcap != 0) x = base.softcap * tanh(x / base.softcap);
                if (base.slopes) x += (double)t[i].slope[row] * (j - t[i].at[row]);
                score[i][j] = x;
                if (x > top) top = x;
            }
        double sum = exp(sink - top);
        for (int i = 0; i < 3; i++)
            for (int j = t[i].first[row]; j < t[i].end[row]; j++) sum += score[i][j] = exp(score[i][j] - top);
        for (int e = 0; e < base.d_v; e++) {
            double y = 0;
            for (int i = 0; i < 3; i++)
                for (int j = t[i].first[row]; j < t[i].end[row]; j++) y += score[i][j] / sum * t[i].v[j * base.d_v + e];
            /* A score of this size is known to about 1e-6 of it, and an error of a score is a relative error of its weight. */
            ck_assert_double_eq_tol(s.acc[row * base.d_v + e] / s.l[row], y, 2e-5 + 4e-6 * fmax(raw, fabs(top)));
        }
    }
}
END_TEST

START_TEST(quantized_tiles_of_k_are_expanded_with_the_portable_bits)
{
    pl_rng r;
    pl_rng_seed(&r, 450 + (uint64_t)_i);
    enum { D = 128 };
    static uint8_t codes[PAGE * 34 * (D / 32)];
    static float want[D * PAGE], got[D * PAGE];
    static const pl_type types[] = {PL_TYPE_Q8_0, PL_TYPE_Q4_0};
    for (size_t i = 0; i < sizeof codes; i++) codes[i] = (uint8_t)pl_rng_below(&r, 0x3c);
    int d = 32 * (1 + (int)pl_rng_below(&r, D / 32));
    for (int i = 0; i < 2; i++) {
        portable.kv_k_to_f32[types[i]](want, codes, d);
        FOR_EACH_SET(t)
        {
            t->k.kv_k_to_f32[types[i]](got, codes, d);
            CK_SAME(got, want, d * PAGE, t->word, pl_type_name(types[i]));
        }
    }
}
END_TEST

START_TEST(portable_rows_agree_with_float64)
{
    pl_rng r;
    pl_rng_seed(&r, 600 + (uint64_t)_i);
    static float x[N_MAX], w[N_MAX], y[N_MAX];
    int64_t n = 1 + (int64_t)pl_rng_below(&r, N_MAX);
    for (int64_t i = 0; i < n; i++) {
        x[i] = (float)pl_rng_gauss(&r) * 4;
        w[i] = (float)pl_rng_gauss(&r);
    }
    double squares = 0;
    for (int64_t i = 0; i < n; i++) squares += (double)x[i] * x[i];
    portable.rms_norm(y, x, w, n, 1e-5f);
    for (int64_t i = 0; i < n; i++) {
        double e = x[i] / sqrt(squares / (double)n + 1e-5) * w[i];
        ck_assert_double_eq_tol(y[i], e, 1e-6 * fabs(e) + 1e-30);
    }
    portable.glu[PL_FN_SILU](y, x, w, n);
    for (int64_t i = 0; i < n; i++) {
        double e = x[i] / (1 + exp(-(double)x[i])) * w[i];
        ck_assert_double_eq_tol(y[i], e, 6e-7 * fabs(e) + 1e-30);
    }
}
END_TEST

Suite *kernels_suite(void)
{
    Suite *s = suite_create("kernels");
    TCase *c = tcase_create("all instruction sets");
    tcase_add_checked_fixture(c, setup, NULL);
    tcase_add_loop_test(c, rows_have_the_portable_bits, 0, 200);
    tcase_add_loop_test(c, functions_have_the_portable_bits_over_all_floats, 0, 3);
    tcase_add_test(c, half_floats_have_the_portable_bits);
    tcase_add_loop_test(c, rotation_has_the_portable_bits, 0, 100);
    tcase_add_loop_test(c, attention_has_the_portable_bits_with_any_number_of_rows, 0, 100);
    tcase_add_loop_test(c, portable_attention_is_softmax_times_values, 0, 60);
    tcase_add_loop_test(c, quantized_tiles_of_k_are_expanded_with_the_portable_bits, 0, 10);
    tcase_add_loop_test(c, portable_rows_agree_with_float64, 0, 50);
    suite_add_tcase(s, c);
    return s;
}
