/* The kernels of kernels.h on v16, for each file of an instruction set to include once. Private to engine/cpu. */
#pragma once

#include "engine/cpu/v16_impl.h"

#if defined(V16)

#include <math.h>
#include <stdbool.h>

#include "engine/cpu/kernels.h"

/* How many query rows, and how many v16 of a value row, attention keeps in registers: products of both are accumulators. */
#if defined(__AVX512F__)
enum { ATTN_ROWS = 4, ATTN_WIDTH = 4 };
#else
enum { ATTN_ROWS = 2, ATTN_WIDTH = 2 };
#endif
enum { PAGE = 32 };

static inline void v_rms_norm(float *y, const float *x, const float *w, int64_t n, float eps)
{
    v16 s = v16_zero();
    int64_t i;
    int tail = (int)(n % 16);
    for (i = 0; i + 16 <= n; i += 16) {
        v16 a = v16_load(x + i);
        s = v16_add(s, v16_mul(a, a));
    }
    if (tail) {
        v16 a = v16_load_n(x + i, tail); /* adding +0 to the other sums, which are never -0, changes nothing */
        s = v16_add(s, v16_mul(a, a));
    }
    v16 r = v16_set1(1.0f / sqrtf(v16_sum(s) / (float)n + eps));
    for (i = 0; i + 16 <= n; i += 16) {
        v16 a = v16_mul(v16_load(x + i), r);
        v16_store(y + i, w ? v16_mul(a, v16_load(w + i)) : a);
    }
    if (tail) {
        v16 a = v16_mul(v16_load_n(x + i, tail), r);
        v16_store_n(y + i, w ? v16_mul(a, v16_load_n(w + i, tail)) : a, tail);
    }
}

static inline void v_layer_norm(float *y, const float *x, const float *w, const float *b, int64_t n, float eps)
{
    v16 s = v16_zero(), q = v16_zero();
    int64_t i;
    int tail = (int)(n % 16);
    for (i = 0; i + 16 <= n; i += 16) s = v16_add(s, v16_load(x + i));
    if (tail) s = v16_add(s, v16_load_n(x + i, tail));
    v16 mean = v16_set1(v16_sum(s) / (float)n);
    for (i = 0; i + 16 <= n; i += 16) {
        v16 c = v16_sub(v16_load(x + i), mean);
        q = v16_add(q, v16_mul(c, c));
    }
    if (tail) {
        v16 c = v16_first(v16_sub(v16_load_n(x + i, tail), mean), v16_zero(), tail);
        q = v16_add(q, v16_mul(c, c));
    }
    v16 r = v16_set1(1.0f / sqrtf(v16_sum(q) / (float)n + eps));
    for (i = 0; i < n; i += 16) {
        int here = n - i < 16 ? (int)(n - i) : 16;
        v16 c = v16_mul(v16_sub(v16_load_n(x + i, here), mean), r);
        if (w) c = v16_mul(c, v16_load_n(w + i, here));
        if (b) c = v16_add(c, v16_load_n(b + i, here));
        v16_store_n(y + i, c, here);
    }
}

/* Elementwise kernels: e is the result for the lanes a of the first and b of the second source. */
#define V16_MAP2(name, e)                                                                                              \
    static inline void name(float *y, const float *pa, const float *pb, int64_t n)                                     \
    {                                                                                                                  \
        int64_t i;                                                                                                     \
        for (i = 0; i + 16 <= n; i += 16) {                                                                            \
            v16 a = v16_load(pa + i), b = v16_load(pb + i);                                                            \
            v16_store(y + i, e);                                                                                       \
        }                                                                                                              \
        if (i < n) {                                                                                                   \
            v16 a = v16_load_n(pa + i, (int)(n - i)), b = v16_load_n(pb + i, (int)(n - i));                            \
            v16_store_n(y + i, e, (int)(n - i));                                                                       \
        }                                                                                                              \
    }
#define V16_MAP1(name, e)                                                                                              \
    static inline void name(float *y, const float *pa, int64_t n)                                                      \
    {                                                                                                                  \
        int64_t i;                                                                                                     \
        for (i = 0; i + 16 <= n; i += 16) {                                                                            \
            v16 a = v16_load(pa + i);                                                                                  \
            v16_store(y + i, e);                                                                                       \
        }                                                                                                              \
        if (i < n) {                                                                                                   \
            v16 a = v16_load_n(pa + i, (int)(n - i));                                                                  \
            v16_store_n(y + i, e, (int)(n - i));                                                                       \
        }                                                                                                              \
    }

V16_MAP2(v_add, v16_add(a, b))
V16_MAP2(v_sub, v16_sub(a, b))
V16_MAP2(v_mul, v16_mul(a, b))
V16_MAP2(v_div, v16_div(a, b))
#define V16_FUNCTION(name)                                                                                             \
    V16_MAP1(v_##name, v16_##name(a))                                                                                  \
    V16_MAP2(v_##name##_glu, v16_mul(v16_##name(a), b))
V16_FUNCTION(silu)
V16_FUNCTION(gelu)
V16_FUNCTION(gelu_tanh)
V16_FUNCTION(gelu_quick)
V16_FUNCTION(relu)
V16_FUNCTION(relu2)
V16_FUNCTION(sigmoid)
V16_FUNCTION(tanh)
V16_FUNCTION(exp)

static inline void v_scale(float *y, const float *x, float s, int64_t n)
{
    v16 by = v16_set1(s);
    int64_t i;
    for (i = 0; i + 16 <= n; i += 16) v16_store(y + i, v16_mul(v16_load(x + i), by));
    if (i < n) v16_store_n(y + i, v16_mul(v16_load_n(x + i, (int)(n - i)), by), (int)(n - i));
}

static inline void v_scale_add(float *y, const float *x, float s, float b, int64_t n)
{
    v16 by = v16_set1(s), to = v16_set1(b);
    for (int64_t i = 0; i < n; i += 16) {
        int here = n - i < 16 ? (int)(n - i) : 16;
        v16_store_n(y + i, v16_add(v16_mul(v16_load_n(x + i, here), by), to), here);
    }
}

static inline void v_clamp(float *y, const float *x, float least, float most, int64_t n)
{
    v16 low = v16_set1(least), high = v16_set1(most);
    for (int64_t i = 0; i < n; i += 16) {
        int here = n - i < 16 ? (int)(n - i) : 16;
        v16_store_n(y + i, v16_max(low, v16_min(high, v16_load_n(x + i, here))), here);
    }
}

static inline void v_softcap(float *y, const float *x, float cap, int64_t n)
{
    v16 inverse = v16_set1(1.0f / cap), by = v16_set1(cap);
    for (int64_t i = 0; i < n; i += 16) {
        int here = n - i < 16 ? (int)(n - i) : 16;
        v16_store_n(y + i, v16_mul(v16_tanh(v16_mul(v16_load_n(x + i, here), inverse)), by), here);
    }
}

static inline void v_l2_norm(float *y, const float *x, int64_t n, float eps)
{
    v16 s = v16_zero();
    int64_t i;
    for (i = 0; i + 16 <= n; i += 16) s = v16_add(s, v16_mul(v16_load(x + i), v16_load(x + i)));
    if (i < n) {
        v16 a = v16_load_n(x + i, (int)(n - i));
        s = v16_add(s, v16_mul(a, a));
    }
    float norm = sqrtf(v16_sum(s));
    v_scale(y, x, 1.0f / (norm > eps ? norm : eps), n);
}

static inline void v_f16_to_f32(float *y, const uint16_t *x, int64_t n)
{
    int64_t i;
    for (i = 0; i + 16 <= n; i += 16) v16_store(y + i, v16_load_f16(x + i));
    if (i < n) v16_store_n(y + i, v16_load_f16_n(x + i, (int)(n - i)), (int)(n - i));
}

static inline void v_f32_to_f16(uint16_t *y, const float *x, int64_t n)
{
    int64_t i;
    for (i = 0; i + 16 <= n; i += 16) v16_store_f16(y + i, v16_load(x + i));
    if (i < n) v16_store_f16_n(y + i, v16_load_n(x + i, (int)(n - i)), (int)(n - i));
}

static inline void v_rope_rest(float *y, const float *x, int64_t n_rot, int64_t d_head)
{
    if (y != x && d_head > n_rot) memcpy(y + n_rot, x + n_rot, (size_t)(d_head - n_rot) * sizeof *y);
}

/* A lane and its neighbour are a couple: the product with the sine goes in crosswise. */
static inline void v_rope_norm(float *y, size_t y_stride, const float *x, size_t x_stride, const float *cs, int64_t n_rot,
                               int64_t d_head, int64_t n_head)
{
    for (int64_t h = 0; h < n_head; h++, x += x_stride, y += y_stride) {
        for (int64_t i = 0; i < n_rot; i += 16) {
            int n = n_rot - i < 16 ? (int)(n_rot - i) : 16;
            v16 t = v16_load_n(cs + i, n), a = v16_load_n(x + i, n);
            v16 c = v16_mul(a, v16_dup_even(t)), s = v16_mul(v16_swap_pairs(a), v16_dup_odd(t));
            v16_store_n(y + i, v16_addsub(c, s), n);
        }
        v_rope_rest(y, x, n_rot, d_head);
    }
}

static inline void v_rope_neox(float *y, size_t y_stride, const float *x, size_t x_stride, const float *cs, int64_t n_rot,
                               int64_t d_head, int64_t n_head)
{
    int64_t half = n_rot / 2;
    for (int64_t i = 0; i < half; i += 16) {
        int n = half - i < 16 ? (int)(half - i) : 16;
        float pairs[32] = {0};
        const float *t = cs + 2 * i;
        if (n < 16) {
            memcpy(pairs, t, 2 * (size_t)n * sizeof *t);
            t = pairs;
        }
        v16 c, s;
        v16_load_pairs(t, &c, &s);
        for (int64_t h = 0; h < n_head; h++) {
            const float *xh = x + (size_t)h * x_stride + i;
            float *yh = y + (size_t)h * y_stride + i;
            v16 x0 = v16_load_n(xh, n), x1 = v16_load_n(xh + half, n);
            v16_store_n(yh, v16_sub(v16_mul(x0, c), v16_mul(x1, s)), n);
            v16_store_n(yh + half, v16_add(v16_mul(x0, s), v16_mul(x1, c)), n);
        }
    }
    for (int64_t h = 0; h < n_head; h++) v_rope_rest(y + (size_t)h * y_stride, x + (size_t)h * x_stride, n_rot, d_head);
}

/* Lanes at element i of a tile, which is of f16 or f32. */
V16_FN v16 v_tile_load(const void *p, int64_t i, bool half)
{
    return half ? v16_load_f16((const uint16_t *)p + i) : v16_load((const float *)p + i);
}
V16_FN v16 v_tile_load_n(const void *p, int64_t i, int n, bool half)
{
    return half ? v16_load_f16_n((const uint16_t *)p + i, n) : v16_load_n((const float *)p + i, n);
}

/* p[r] = the scores of rows row to row + n - 1 (n is a constant where this is inlined), then their softmax weights; a[r]: what
 * acc is scaled by. */
V16_FN void v_attn_weights(float p[][PAGE], float *a, const pl_attn_tile *t, bool half, int row, const int n)
{
    v16 s0[ATTN_ROWS], s1[ATTN_ROWS];
    const float *q = t->q + (size_t)row * (size_t)t->d_k;
    const int d_k = t->d_k;
    for (int r = 0; r < n; r++) s0[r] = s1[r] = v16_zero();
    for (int d = 0; d < d_k; d++) {
        v16 k0 = v_tile_load(t->k, d * PAGE, half), k1 = v_tile_load(t->k, d * PAGE + 16, half);
        for (int r = 0; r < n; r++) {
            v16 b = v16_set1(q[r * d_k + d]);
            s0[r] = v16_fma(b, k0, s0[r]);
            s1[r] = v16_fma(b, k1, s1[r]);
        }
    }
    const v16 by = v16_set1(t->scale), none = v16_set1(-INFINITY);
    for (int r = 0; r < n; r++) {
        s0[r] = v16_mul(s0[r], by);
        s1[r] = v16_mul(s1[r], by);
    }
    if (t->softcap != 0.0f) {
        const v16 cap = v16_set1(t->softcap), inverse = v16_set1(1.0f / t->softcap);
        for (int r = 0; r < n; r++) {
            s0[r] = v16_mul(v16_tanh(v16_mul(s0[r], inverse)), cap);
            s1[r] = v16_mul(v16_tanh(v16_mul(s1[r], inverse)), cap);
        }
    }
    if (t->slope)
        for (int r = 0; r < n; r++) { /* whole numbers this small are exact */
            v16 slope = v16_set1(t->slope[row + r]), from = v16_sub(v16_count(), v16_set1((float)t->at[row + r]));
            s0[r] = v16_add(s0[r], v16_mul(slope, from));
            s1[r] = v16_add(s1[r], v16_mul(slope, v16_add(from, v16_set1(16))));
        }
    float fall[16] = {0};
    for (int r = 0; r < n; r++) {
        int first = t->first[row + r], end = t->end[row + r];
        if (end < PAGE) {
            s0[r] = v16_first(s0[r], none, end < 16 ? end : 16);
            s1[r] = v16_first(s1[r], none, end < 16 ? 0 : end - 16);
        }
        if (first > 0) {
            s0[r] = v16_first(none, s0[r], first < 16 ? first : 16);
            s1[r] = v16_first(none, s1[r], first < 16 ? 0 : first - 16);
        }
        float *m = t->m + row + r;
        float top = v16_max_of(v16_max(s0[r], s1[r]));
        float m_new = *m > top ? *m : top;
        fall[r] = *m - m_new;
        *m = m_new;
    }
    v16_store(fall, v16_exp(v16_load(fall)));
    for (int r = 0; r < n; r++) {
        v16 shift = v16_set1(t->m[row + r]);
        v16 p0 = v16_exp(v16_sub(s0[r], shift)), p1 = v16_exp(v16_sub(s1[r], shift));
        v16_store(p[r], p0);
        v16_store(p[r] + 16, p1);
        a[r] = fall[r];
        t->l[row + r] = t->l[row + r] * a[r] + v16_sum(v16_add(p0, p1));
    }
}

/* width v16 of the values from element d on, positions first to end - 1, into rows 0 to n - 1. a NULL: acc is not scaled. */
V16_FN void v_attn_values(float *acc, const float p[][PAGE], const float *a, const void *v, bool half, int first, int end,
                          const int n, int d_v, int d, const int width)
{
    v16 s[ATTN_ROWS][ATTN_WIDTH];
    for (int r = 0; r < n; r++)
        for (int w = 0; w < width; w++) {
            s[r][w] = v16_load(acc + r * d_v + d + 16 * w);
            if (a) s[r][w] = v16_mul(s[r][w], v16_set1(a[r]));
        }
    for (int j = first; j < end; j++) {
        v16 x[ATTN_WIDTH];
        for (int w = 0; w < width; w++) x[w] = v_tile_load(v, j * d_v + d + 16 * w, half);
        for (int r = 0; r < n; r++) {
            v16 b = v16_set1(p[r][j]);
            for (int w = 0; w < width; w++) s[r][w] = v16_fma(b, x[w], s[r][w]);
        }
    }
    for (int r = 0; r < n; r++)
        for (int w = 0; w < width; w++) v16_store(acc + r * d_v + d + 16 * w, s[r][w]);
}

/* All of the head's dimension: as wide as registers allow, then one v16 at a time, then what is left. */
V16_FN void v_attn_all_values(float *acc, const float p[][PAGE], const float *a, const void *v, bool half, int first, int end,
                              const int n, int d_v)
{
    int d = 0;
    for (; d + 16 * ATTN_WIDTH <= d_v; d += 16 * ATTN_WIDTH)
        v_attn_values(acc, p, a, v, half, first, end, n, d_v, d, ATTN_WIDTH);
    for (; d + 16 <= d_v; d += 16) v_attn_values(acc, p, a, v, half, first, end, n, d_v, d, 1);
    int rest = d_v - d;
    if (rest == 0) return;
    for (int r = 0; r < n; r++) {
        v16 s = v16_load_n(acc + r * d_v + d, rest);
        if (a) s = v16_mul(s, v16_set1(a[r]));
        for (int j = first; j < end; j++) s = v16_fma(v16_set1(p[r][j]), v_tile_load_n(v, j * d_v + d, rest, half), s);
        v16_store_n(acc + r * d_v + d, s, rest);
    }
}

/* n query rows, at most ATTN_ROWS; positions that not all of them see are added row by row, since even a weight of 0 would
 * change a sum (0 * NaN, -0 + 0). */
V16_FN void v_attn_rows(const pl_attn_tile *t, bool half, int row, const int n)
{
    float p[ATTN_ROWS][PAGE], a[ATTN_ROWS];
    const int32_t *first = t->first + row, *end = t->end + row;
    float *acc = t->acc + (size_t)row * (size_t)t->d_v;
    v_attn_weights(p, a, t, half, row, n);
    int low = first[0], all = end[0];
    bool even = true; /* all rows begin at the same position */
    for (int r = 1; r < n; r++) {
        all = end[r] < all ? end[r] : all;
        even = even && first[r] == low;
    }
    if (!even) {
        for (int r = 0; r < n; r++)
            v_attn_all_values(acc + r * t->d_v, (const float(*)[PAGE])(p + r), a + r, t->v, half, first[r], end[r], 1, t->d_v);
        return;
    }
    v_attn_all_values(acc, (const float(*)[PAGE])p, a, t->v, half, low, all, n, t->d_v);
    for (int r = 0; r < n; r++)
        if (end[r] > all)
            v_attn_all_values(acc + r * t->d_v, (const float(*)[PAGE])(p + r), NULL, t->v, half, all, end[r], 1, t->d_v);
}

V16_FN void v_attn_tile(const pl_attn_tile *t, bool half)
{
    for (int row = 0; row < t->n;) {
        int n = t->n - row < ATTN_ROWS ? t->n - row : ATTN_ROWS;
        switch (n) {
        case 1: v_attn_rows(t, half, row, 1); break;
        case 2: v_attn_rows(t, half, row, 2); break;
#if defined(__AVX512F__)
        case 3: v_attn_rows(t, half, row, 3); break;
        case 4: v_attn_rows(t, half, row, 4); break;
#endif
        }
        row += n;
    }
}

static inline void v_attn_tile_f32(const pl_attn_tile *t) { v_attn_tile(t, false); }
static inline void v_attn_tile_f16(const pl_attn_tile *t) { v_attn_tile(t, true); }

static inline void v_k_q8_0_to_f32(float *k, const void *tile, int64_t d)
{
    const uint8_t *from = tile;
    for (int64_t g = 0; g < d; g += 32) {
        v16 d0 = v16_load_f16((const uint16_t *)(const void *)from), d1 = v16_load_f16((const uint16_t *)(const void *)from + 16);
        from += 2 * PAGE;
        for (int i = 0; i < 32; i++, from += PAGE, k += PAGE) {
            v16_store(k, v16_mul(v16_load_i8(from), d0));
            v16_store(k + 16, v16_mul(v16_load_i8(from + 16), d1));
        }
    }
}

static inline void v_k_q4_0_to_f32(float *k, const void *tile, int64_t d)
{
    const uint8_t *from = tile;
    for (int64_t g = 0; g < d; g += 32, k += 32 * PAGE) {
        v16 scale[2];
        for (int h = 0; h < 2; h++) scale[h] = v16_load_f16((const uint16_t *)(const void *)from + 16 * h);
        from += 2 * PAGE;
        for (int i = 0; i < 16; i++, from += PAGE)
            for (int h = 0; h < 2; h++) {
                v16_store(k + i * PAGE + 16 * h, v16_mul(v16_load_nibbles(from + 16 * h, false), scale[h]));
                v16_store(k + (i + 16) * PAGE + 16 * h, v16_mul(v16_load_nibbles(from + 16 * h, true), scale[h]));
            }
    }
}

static inline void v_install(pl_cpu_kernels *k)
{
    k->rms_norm = v_rms_norm;
    k->layer_norm = v_layer_norm;
    k->l2_norm = v_l2_norm;
    k->add = v_add;
    k->sub = v_sub;
    k->mul = v_mul;
    k->div = v_div;
    k->scale = v_scale;
    k->scale_add = v_scale_add;
    k->clamp = v_clamp;
    k->softcap = v_softcap;
#define V16_INSTALL(fn, name)                                                                                          \
    k->unary[fn] = v_##name;                                                                                           \
    k->glu[fn] = v_##name##_glu
    V16_INSTALL(PL_FN_SILU, silu);
    V16_INSTALL(PL_FN_GELU, gelu);
    V16_INSTALL(PL_FN_GELU_TANH, gelu_tanh);
    V16_INSTALL(PL_FN_GELU_QUICK, gelu_quick);
    V16_INSTALL(PL_FN_RELU, relu);
    V16_INSTALL(PL_FN_RELU2, relu2);
    V16_INSTALL(PL_FN_SIGMOID, sigmoid);
    V16_INSTALL(PL_FN_TANH, tanh);
    V16_INSTALL(PL_FN_EXP, exp);
    k->rope_norm = v_rope_norm;
    k->rope_neox = v_rope_neox;
    k->f16_to_f32 = v_f16_to_f32;
    k->f32_to_f16 = v_f32_to_f16;
    k->attn_tile_f32 = v_attn_tile_f32;
    k->attn_tile_f16 = v_attn_tile_f16;
    k->kv_k_to_f32[PL_TYPE_Q8_0] = v_k_q8_0_to_f32;
    k->kv_k_to_f32[PL_TYPE_Q4_0] = v_k_q4_0_to_f32;
}

#endif
