/* The table of CPU kernels: one row per inner loop, chosen once for an instruction set.
 *
 * The portable kernels are the definition; every other one gives the same bits for every finite input, and NaN where they
 * give NaN. "x + y" and "x * y" below are single roundings, fma is written where it is meant. Nothing here looks at threads or
 * at how many rows a batch has.
 *
 * sum16 is the one shape of a sum of n floats: 16 partial sums that begin at +0; element i is added to partial i % 16, in
 * ascending order; then s[i] += s[i + 8] for i < 8, s[i] += s[i + 4] for i < 4, s[i] += s[i + 2] for i < 2, s[0] + s[1].
 * max16 is the same tree over 16 partial maxima, max(a, b) = a > b ? a : b, that begin at -infinity.
 *
 * Pointers need the alignment of their element only. Outputs may be exactly an input where "in place" is said, and
 * overlap nothing else. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "engine/cpu/isa.h"
#include "engine/graph/tensor.h"

/* Bytes of an expanded block of 16 rows: a byte per element, 16 scales of 4 bytes and one more number for each row. */
enum { PL_CPU_EXPANDED = 16 * (256 + 16 * 4 + 4) };

/* k [d_k][32] and v [32][d_v] of f32 or f16, q [n][d_k], acc [n][d_v], and for each of the n rows: m, l, the positions
 * first to end - 1 that it sees, at least one; with slope also the place of its own position, from the tile's first on. */
typedef struct pl_attn_tile {
    const void *k, *v;
    const float *q;
    float *acc, *m, *l;
    const int32_t *first, *end, *at;
    const float *slope; /* NULL: no ALiBi, and at is not read */
    int n, d_k, d_v;
    float scale, softcap; /* softcap 0: none */
} pl_attn_tile;

typedef struct pl_cpu_kernels {
    pl_isa isa;

    /* --- Rows of floats. All in place. --- */

    /* y[i] = (x[i] * r) * w[i], or x[i] * r where w is NULL; r = 1 / sqrt(sum16(x[i] * x[i]) / n + eps), each step rounded to
     * f32, the square root correctly rounded. n > 0. */
    void (*rms_norm)(float *y, const float *x, const float *w, int64_t n, float eps);
    /* c[i] = x[i] - sum16(x) / n; y[i] = c[i] * r, then * w[i] and + b[i] where they are not NULL;
     * r = 1 / sqrt(sum16(c[i] * c[i]) / n + eps). n > 0. */
    void (*layer_norm)(float *y, const float *x, const float *w, const float *b, int64_t n, float eps);
    /* y[i] = x[i] * (1 / max(sqrt(sum16(x[i] * x[i])), eps)) */
    void (*l2_norm)(float *y, const float *x, int64_t n, float eps);
    /* y[i] = a[i] + b[i], - , * and / */
    void (*add)(float *y, const float *a, const float *b, int64_t n);
    void (*sub)(float *y, const float *a, const float *b, int64_t n);
    void (*mul)(float *y, const float *a, const float *b, int64_t n);
    void (*div)(float *y, const float *a, const float *b, int64_t n);
    /* y[i] = x[i] * s */
    void (*scale)(float *y, const float *x, float s, int64_t n);
    /* y[i] = x[i] * s + b, two roundings */
    void (*scale_add)(float *y, const float *x, float s, float b, int64_t n);
    /* y[i] = most < x[i] ? most : x[i], then least > that ? least : that */
    void (*clamp)(float *y, const float *x, float least, float most, int64_t n);
    /* y[i] = pl_tanhf(x[i] * (1 / cap)) * cap */
    void (*softcap)(float *y, const float *x, float cap, int64_t n);
    /* y[i] = fn(x[i]): engine/base/fmath.h's pl_siluf, pl_geluf, pl_gelu_tanhf, pl_gelu_quickf, pl_sigmoidf, pl_tanhf,
     * pl_expf; RELU: r = x < 0 ? 0 : x, RELU2: r * r. */
    void (*unary[PL_FN_COUNT])(float *y, const float *x, int64_t n);
    /* y[i] = fn(gate[i]) * up[i] */
    void (*glu[PL_FN_COUNT])(float *y, const float *gate, const float *up, int64_t n);

    /* Rotates the n_head heads of one token; heads are x_stride and y_stride floats apart. For couple j < n_rot / 2, with
     * c = cs[2j], s = cs[2j + 1]: y0 = x0 * c - x1 * s, y1 = x0 * s + x1 * c. Couples are (2j, 2j + 1) in rope_norm and
     * (j, j + n_rot / 2) in rope_neox. Elements n_rot to d_head - 1 are copied. */
    void (*rope_norm)(float *y, size_t y_stride, const float *x, size_t x_stride, const float *cs, int64_t n_rot, int64_t d_head,
                      int64_t n_head);
    void (*rope_neox)(float *y, size_t y_stride, const float *x, size_t x_stride, const float *cs, int64_t n_rot, int64_t d_head,
                      int64_t n_head);

    /* pl_f16_to_f32 and pl_f32_to_f16 of each element. Not in place. */
    void (*f16_to_f32)(float *y, const uint16_t *x, int64_t n);
    void (*f32_to_f16)(uint16_t *y, const float *x, int64_t n);

    /* --- Attention over one tile of PL_KV_PAGE = 32 positions, for n independent rows of queries: pl_attn_tile. ---
     * For each row, with its state (m, l, acc), which begins as (-infinity, 0, 0), or with a sink as (sink, 1, 0):
     *   s[j] = (fma chain over d ascending of q[d] * k[d][j], from +0) * scale
     *          then, with a softcap: s[j] = pl_tanhf(s[j] * (1 / softcap)) * softcap
     *          then, with slopes: s[j] = s[j] + slope * (float)(j - at)
     *   -infinity for j outside of first <= j < end
     *   m' = max(m, max16(s));  a = pl_expf(m - m');  p[j] = pl_expf(s[j] - m')
     *   l = l * a + sum16(p);  acc[d] = acc[d] * a, then acc[d] = fma(p[j], v[j][d], acc[d]) for j ascending from first to end - 1.
     * No other position is ever read into a result, whatever the cache holds there. */
    void (*attn_tile_f32)(const pl_attn_tile *t);
    void (*attn_tile_f16)(const pl_attn_tile *t);
    /* A quantized tile of K as op.h lays it out, d / 32 groups, as f32 [d][32]: (float)q * scale. NULL for other types. */
    void (*kv_k_to_f32[PL_TYPE_COUNT])(float *k, const void *tile, int64_t d);

    /* --- Matrix products. act.h has the activations' layout, pack.h the weights', mm.h the contract's reasons. --- */

    /* Make slot t of a tile of tile tokens from n values at x; n is a multiple of the block, out the tile's first block of them. */
    void (*act_f32)(void *out, const float *x, int64_t n, int tile, int t);
    void (*act_q8)(void *out, const float *x, int64_t n, int tile, int t);
    void (*act_q8k)(void *out, const float *x, int64_t n, int tile, int t);

    /* By weight type, NULL for a type without a product: n_groups packed groups of 16 rows and k columns at w, times the tile of
     * 1 to 8 tokens at act: dst[t * dst_stride + 16 g + r] = acc for t < tile. acc begins at +0. In ascending order of blocks:
     *   F32, F16, BF16:    acc = fma(w[i], x[i], acc)
     *   Q8_0, Q4_0, Q5_0:  acc = acc + (d * dx) * (float)(sum of q * qx over the block, q signed)
     *   Q4_1, Q5_1:        the same with q unsigned, then acc = acc + m * sx
     *   Q6_K:              acc = acc + (d * dx) * (float)(sum over sub-blocks j of sc[j] * (sum of q * qx over j, q signed))
     *   Q4_K, Q5_K:        the same with q unsigned, then acc = acc - (dmin * dx) * (float)(sum of m[j] * (sum of qx over j))
     *   Q8_1, IQ4_NL, MXFP4, and of each 32 columns in turn Q1_0, Q2_0: as Q8_0;  NVFP4: the same of each 16 columns in turn
     *   Q3_K, IQ4_XS:      as Q6_K;  Q8_K, TQ1_0, TQ2_0: as Q6_K with sc[j] = 1;  Q2_K: as Q4_K
     *   IQ1, IQ2, IQ3:     acc = acc + ((d * f) * dx) * (float)(sum over sub-blocks j of (2 s[j] + 1) * (sum of q * qx over j)) with
     *                      f = 1 for IQ3_S, 1/4 for IQ3_XXS and 1/8 for the others; q is the grid's value under its sign, in IQ1_S
     *                      and IQ1_M 8 times the grid's value plus the shift, which is 1 or -1
     * The integer sums are exact in int32, whatever their order. The two terms of a precise product's activation are two tokens.
     * A block of an activation whose scale is 0 adds +0 or -0 to a chain that is never -0: kernels may leave it out. */
    void (*mm[PL_TYPE_COUNT])(float *dst, size_t dst_stride, const void *w, int64_t n_groups, const void *act, int64_t k, int tile);
    /* One block of one packed group, as a step of the chains above: token t's 16 chains stand at acc + 16 * at[t] before and behind it.
     * act is a tile of one block. NULL where there is none: then empty blocks cost what others do. */
    void (*mm_more[PL_TYPE_COUNT])(float *acc, const uint16_t *at, const void *w, const void *act, int tile);

    /* By weight type, NULL where it does not pay: for more tokens than a tile, one packed group of 16 rows is first made into
     * k / 256 blocks of PL_CPU_EXPANDED bytes at out, losslessly and in a form of the instruction set's own, and then takes the
     * place of w in mm_expanded, which gives the bits of mm. */
    void (*expand[PL_TYPE_COUNT])(void *out, const void *w, int64_t k);
    void (*mm_expanded[PL_TYPE_COUNT])(float *dst, size_t dst_stride, const void *w, int64_t n_groups, const void *act, int64_t k,
                                       int tile);
    /* As mm_more, with an expanded block at w; NULL where mm_more does as well. */
    void (*mm_more_expanded[PL_TYPE_COUNT])(float *acc, const uint16_t *at, const void *w, const void *act, int tile);
} pl_cpu_kernels;

/* Fills k with the best kernels of isa, which the caller knows this machine to have. */
void pl_cpu_kernels_choose(pl_cpu_kernels *k, pl_isa isa);

/* The install functions, one per instruction set and subject, for pl_cpu_kernels_choose. The portable ones fill all their rows;
 * each other one replaces what it does better. */
void pl_cpu_ops_portable(pl_cpu_kernels *k);
void pl_cpu_ops_sse42(pl_cpu_kernels *k);
void pl_cpu_ops_avx2(pl_cpu_kernels *k);
void pl_cpu_ops_avx512(pl_cpu_kernels *k);
void pl_cpu_mm_portable(pl_cpu_kernels *k);
void pl_cpu_mm_small_portable(pl_cpu_kernels *k);
void pl_cpu_mm_small_avx2(pl_cpu_kernels *k);
void pl_cpu_mm_small_avx512(pl_cpu_kernels *k);
void pl_cpu_mm_small_avx512_vnni(pl_cpu_kernels *k);
void pl_cpu_mm_iq_portable(pl_cpu_kernels *k);
void pl_cpu_mm_sse42(pl_cpu_kernels *k);
void pl_cpu_mm_avx2(pl_cpu_kernels *k);
void pl_cpu_mm_iq_avx2(pl_cpu_kernels *k);
void pl_cpu_mm_avx_vnni(pl_cpu_kernels *k);
void pl_cpu_mm_avx_vnni_in_avx512(pl_cpu_kernels *k); /* the same kernels, for tests on processors with AVX-512 VNNI alone */
void pl_cpu_mm_avx512(pl_cpu_kernels *k);
void pl_cpu_mm_avx512_vnni(pl_cpu_kernels *k);
void pl_cpu_mm_iq_avx512_vbmi(pl_cpu_kernels *k);
void pl_cpu_ops_neon(pl_cpu_kernels *k);
void pl_cpu_mm_neon(pl_cpu_kernels *k);
void pl_cpu_mm_neon_dotprod(pl_cpu_kernels *k);
