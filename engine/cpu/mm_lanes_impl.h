/* Matrix products for instruction sets with a product of bytes and vectors of 4 or 8 rows: SSE4.2, NEON, AVX-VNNI. Private to
 * engine/cpu. The file that includes this says first what its vectors are:
 *
 *   LANES, vi, vf        rows per vector; LANES 32-bit integers, LANES floats
 *   l_load l_zero l_broadcast l_set1 l_set1_8      LANES * 4 bytes; 4 bytes to all lanes; a number to all lanes or all bytes
 *   l_and l_or l_xor l_shl l_shr l_sar l_add l_mul bits and 32-bit lanes, shifts by a number
 *   l_dot                acc + products of 4 bytes of w, 0 to 63, with 4 signed bytes of x in each lane
 *   l_dot_bytes          the same with w + 128 for any signed w; L_BYTES_SHIFT says that 128 times the sum of x is still to be
 *                        taken off (4), or that it is not in it (-1)
 *   l_fstore l_fset1 l_fadd l_fsub l_fmul l_float l_load_f16, and with L_FLOATS l_fload l_ffma l_load_bf16
 *
 * What kernels.h asks for is exact in integers, so nothing depends on the width. */
#pragma once

#if defined(LANES)

#include "engine/cpu/act.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/pack.h"

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#ifndef INLINE
#define INLINE static inline __attribute__((always_inline))
#endif

enum { ROWS = PL_PACK_ROWS, VECTORS = 2, TOKENS = 4 }; /* of sums in registers at once */

INLINE vi low_nibbles(vi v) { return l_and(v, l_set1_8(15)); }
INLINE vi high_nibbles(vi v) { return low_nibbles(l_shr(v, 4)); }
INLINE vi or_masked(vi v, vi h, int mask) { return l_or(v, l_and(h, l_set1_8(mask))); }
INLINE vi move_bit(vi h, int from, int to) { return from < to ? l_shl(h, to - from) : from > to ? l_shr(h, from - to) : h; }
INLINE vi byte_of_lane(vi v, int b) { return l_and(l_shr(v, 8 * b), l_set1(255)); }

INLINE vf broadcast_f32(const uint8_t *p)
{
    float v;
    memcpy(&v, p, 4);
    return l_fset1(v);
}

INLINE int32_t load_i32(const uint8_t *p)
{
    int32_t v;
    memcpy(&v, p, 4);
    return v;
}

/* The tokens t0 on of the tile and the vectors v0 on of the group whose sums are made together. */
typedef struct part {
    int tile, t0, v0;
    int tokens; /* known when compiling */
} part;

INLINE vf add_scaled(vf acc, vf d, vf dx, vi sum) { return l_fadd(acc, l_fmul(l_fmul(d, dx), l_float(sum))); }

INLINE void clear(vf (*acc)[TOKENS], const part p)
{
    UNROLL
    for (int v = 0; v < VECTORS; v++) {
        UNROLL
        for (int t = 0; t < p.tokens; t++) acc[v][t] = l_fset1(0);
    }
}

INLINE void store(float *dst, size_t dst_stride, vf (*acc)[TOKENS], const part p)
{
    UNROLL
    for (int v = 0; v < VECTORS; v++) {
        UNROLL
        for (int t = 0; t < p.tokens; t++) l_fstore(dst + (size_t)(p.t0 + t) * dst_stride + (p.v0 + v) * LANES, acc[v][t]);
    }
}

/* --- Types with blocks of 32. --- */

typedef struct format32 {
    int bytes;      /* of a packed block of 16 rows */
    int zero_shift; /* the zero point is 8 << zero_shift; -1: there is none */
    bool is_byte, has_min, has_fifth;
} format32;

INLINE void mm32(float *dst, size_t dst_stride, const uint8_t *w, const uint8_t *a, int64_t k, const part p, const format32 f)
{
    vf acc[VECTORS][TOKENS];
    clear(acc, p);
    for (int64_t i = k / 32; i > 0; i--, w += f.bytes, a += p.tile * PL_ACT_Q8_BYTES) {
        UNROLL
        for (int v = 0; v < VECTORS; v++) {
            const int first = (p.v0 + v) * LANES;
            const uint8_t *h = w + (f.has_min ? 64 : 32), *q = h + (f.has_fifth ? 64 : 0) + 4 * first;
            vi sum[TOKENS];
            UNROLL
            for (int t = 0; t < p.tokens; t++)
                sum[t] = f.zero_shift < 0 ? l_zero() : l_set1(load_i32(a + 40 * p.tile + 4 * (p.t0 + t)) * (1 << f.zero_shift));
            if (f.is_byte) {
                UNROLL
                for (int j = 0; j < 8; j++) {
                    vi b = l_load(q + 64 * j);
                    UNROLL
                    for (int t = 0; t < p.tokens; t++) sum[t] = l_dot_bytes(sum[t], b, l_broadcast(a + 32 * (p.t0 + t) + 4 * j));
                }
            } else {
                vi fifth = f.has_fifth ? l_load(h + 4 * first) : l_zero();
                UNROLL
                for (int j = 0; j < 4; j++) {
                    vi b = l_load(q + 64 * j), b0 = low_nibbles(b), b1 = high_nibbles(b);
                    if (f.has_fifth) {
                        b0 = or_masked(b0, move_bit(fifth, j, 4), 16);
                        b1 = or_masked(b1, move_bit(fifth, j + 4, 4), 16);
                    }
                    UNROLL
                    for (int t = 0; t < p.tokens; t++) {
                        const uint8_t *x = a + 32 * (p.t0 + t) + 4 * j;
                        sum[t] = l_dot(l_dot(sum[t], b0, l_broadcast(x)), b1, l_broadcast(x + 16));
                    }
                }
            }
            vf d = l_load_f16(w + 2 * first);
            UNROLL
            for (int t = 0; t < p.tokens; t++)
                acc[v][t] = add_scaled(acc[v][t], d, broadcast_f32(a + 32 * p.tile + 4 * (p.t0 + t)), sum[t]);
            if (f.has_min) {
                vf m = l_load_f16(w + 32 + 2 * first);
                UNROLL
                for (int t = 0; t < p.tokens; t++)
                    acc[v][t] = l_fadd(acc[v][t], l_fmul(m, broadcast_f32(a + 36 * p.tile + 4 * (p.t0 + t))));
            }
        }
    }
    store(dst, dst_stride, acc, p);
}

/* --- Types with blocks of 256. --- */

/* The six-bit scales (or, from the second unit and the high nibbles of the third, the mins) of each row. */
INLINE void six_bit_numbers(vi out[8], vi base, vi rest_nibbles)
{
    vi lower = l_and(base, l_set1_8(63)), upper = or_masked(rest_nibbles, l_shr(base, 2), 48);
    UNROLL
    for (int b = 0; b < 4; b++) {
        out[b] = byte_of_lane(lower, b);
        out[b + 4] = byte_of_lane(upper, b);
    }
}

INLINE void mm_q45_k(float *dst, size_t dst_stride, const uint8_t *w, const uint8_t *a, int64_t k, const part p, const bool has_fifth)
{
    static const uint8_t order[8] = {0, 2, 1, 3, 4, 6, 5, 7}; /* of the sums of activations */
    vf acc[VECTORS][TOKENS];
    clear(acc, p);
    for (int64_t i = k / 256; i > 0; i--, w += has_fifth ? 2816 : 2304, a += p.tile * PL_ACT_Q8K_BYTES) {
        UNROLL
        for (int v = 0; v < VECTORS; v++) {
            const int first = (p.v0 + v) * LANES, at = 4 * first;
            const uint8_t *h = w + 256 + at;
            vi sc[8], m[8], total[TOKENS], min[TOKENS], rest = l_load(w + 192 + at);
            six_bit_numbers(sc, l_load(w + 64 + at), low_nibbles(rest));
            six_bit_numbers(m, l_load(w + 128 + at), high_nibbles(rest));
            UNROLL
            for (int t = 0; t < p.tokens; t++) total[t] = min[t] = l_zero();
            for (int s = 0; s < 8; s++) {
                /* The first 64 columns' nibbles take turns with the fifth bits. */
                const bool turns = has_fifth && s < 2;
                const uint8_t *q = w + (turns ? 320 : 512 * (s / 2) + (has_fifth ? 768 : 256)) + at;
                const int step = turns ? 128 : 64;
                vi sum[TOKENS];
                UNROLL
                for (int t = 0; t < p.tokens; t++) sum[t] = l_zero();
                UNROLL
                for (int j = 0; j < 8; j++) {
                    vi b = low_nibbles(l_shr(l_load(q + step * j), 4 * (s % 2)));
                    if (has_fifth) b = or_masked(b, l_shl(l_shr(l_load(h + 128 * j), s), 4), 16);
                    UNROLL
                    for (int t = 0; t < p.tokens; t++) sum[t] = l_dot(sum[t], b, l_broadcast(a + 256 * (p.t0 + t) + 32 * s + 4 * j));
                }
                UNROLL
                for (int t = 0; t < p.tokens; t++) {
                    int16_t b;
                    memcpy(&b, a + 324 * p.tile + 16 * (p.t0 + t) + 2 * s, 2);
                    total[t] = l_add(total[t], l_mul(sum[t], sc[s]));
                    min[t] = l_add(min[t], l_mul(m[order[s]], l_set1(b)));
                }
            }
            vf d = l_load_f16(w + 2 * first), dmin = l_load_f16(w + 32 + 2 * first);
            UNROLL
            for (int t = 0; t < p.tokens; t++) {
                vf dx = broadcast_f32(a + 256 * p.tile + 4 * (p.t0 + t));
                acc[v][t] = add_scaled(acc[v][t], d, dx, total[t]);
                acc[v][t] = l_fsub(acc[v][t], l_fmul(l_fmul(dmin, dx), l_float(min[t])));
            }
        }
    }
    store(dst, dst_stride, acc, p);
}

INLINE void mm_q6_k(float *dst, size_t dst_stride, const uint8_t *w, const uint8_t *a, int64_t k, const part p)
{
    vf acc[VECTORS][TOKENS];
    clear(acc, p);
    for (int64_t i = k / 256; i > 0; i--, w += 3360, a += p.tile * PL_ACT_Q8K_BYTES) {
        UNROLL
        for (int v = 0; v < VECTORS; v++) {
            const int first = (p.v0 + v) * LANES, at = 4 * first;
            vi total[TOKENS];
            UNROLL
            for (int t = 0; t < p.tokens; t++) total[t] = l_zero();
            for (int sub = 0; sub < 16; sub++) { /* 16 columns: four units of part s of one half of the block */
                const int half = sub / 8, s = sub / 2 % 4, from = 4 * (sub % 2);
                const uint8_t *upper = w + 288 + 192 * (8 * half + from) + at, *q = upper + 64 + 64 * (s % 2);
                vi sc = l_sar(l_shl(l_load(w + 32 + 64 * (sub / 4) + at), 24 - 8 * (sub % 4)), 24), sum[TOKENS];
                UNROLL
                for (int t = 0; t < p.tokens; t++) sum[t] = l_set1(load_i32(a + 260 * p.tile + 64 * (p.t0 + t) + 4 * sub));
                UNROLL
                for (int j = 0; j < 4; j++) {
                    vi bits = l_shl(l_shr(l_load(upper + 192 * j), 2 * s), 4);
                    vi b = or_masked(low_nibbles(l_shr(l_load(q + 192 * j), s < 2 ? 0 : 4)), bits, 48);
                    UNROLL
                    for (int t = 0; t < p.tokens; t++) sum[t] = l_dot(sum[t], b, l_broadcast(a + 256 * (p.t0 + t) + 16 * sub + 4 * j));
                }
                UNROLL
                for (int t = 0; t < p.tokens; t++) total[t] = l_add(total[t], l_mul(sum[t], sc));
            }
            vf d = l_load_f16(w + 2 * first);
            UNROLL
            for (int t = 0; t < p.tokens; t++)
                acc[v][t] = add_scaled(acc[v][t], d, broadcast_f32(a + 256 * p.tile + 4 * (p.t0 + t)), total[t]);
        }
    }
    store(dst, dst_stride, acc, p);
}

#if defined(L_FLOATS)
/* --- Floats. --- */

INLINE vf load_value(const uint8_t *p, const pl_type type)
{
    return type == PL_TYPE_F32 ? l_fload((const float *)(const void *)p) : type == PL_TYPE_F16 ? l_load_f16(p) : l_load_bf16(p);
}

INLINE void mm_float(float *dst, size_t dst_stride, const uint8_t *w, const uint8_t *a, int64_t k, const part p, const pl_type type)
{
    const int size = type == PL_TYPE_F32 ? 4 : 2;
    vf acc[VECTORS][TOKENS];
    clear(acc, p);
    w += p.v0 * LANES * size;
    a += 4 * p.t0;
    for (int64_t i = 0; i < k; i++, w += ROWS * size, a += 4 * p.tile) {
        UNROLL
        for (int v = 0; v < VECTORS; v++) {
            vf value = load_value(w + v * LANES * size, type);
            UNROLL
            for (int t = 0; t < p.tokens; t++) acc[v][t] = l_ffma(value, broadcast_f32(a + 4 * t), acc[v][t]);
        }
    }
    store(dst, dst_stride, acc, p);
}
#endif

/* A kernel: each group with up to four tokens at a time, so that it is in the first-level cache for the second four. */
#define MM(name, function, group_bytes, ...)                                                                           \
    static void name(float *dst, size_t dst_stride, const void *weights, int64_t n_groups, const void *act, int64_t k, \
                     int tile)                                                                                         \
    {                                                                                                                  \
        const uint8_t *w = weights;                                                                                    \
        for (int64_t g = 0; g < n_groups; g++, w += group_bytes, dst += ROWS)                                          \
            for (int t = 0; t < tile; t += TOKENS)                                                                     \
                for (int v = 0; v < ROWS / LANES; v += VECTORS) switch (tile - t) {                                    \
                    case 1: function(dst, dst_stride, w, act, k, (part){tile, t, v, 1}, ##__VA_ARGS__); break;         \
                    case 2: function(dst, dst_stride, w, act, k, (part){tile, t, v, 2}, ##__VA_ARGS__); break;         \
                    case 3: function(dst, dst_stride, w, act, k, (part){tile, t, v, 3}, ##__VA_ARGS__); break;         \
                    default: function(dst, dst_stride, w, act, k, (part){tile, t, v, 4}, ##__VA_ARGS__); break;        \
                    }                                                                                                  \
    }

static const format32 q8_0 = {.bytes = 544, .zero_shift = L_BYTES_SHIFT, .is_byte = true};
static const format32 q4_0 = {.bytes = 288, .zero_shift = 0};
static const format32 q4_1 = {.bytes = 320, .zero_shift = -1, .has_min = true};
static const format32 q5_0 = {.bytes = 352, .zero_shift = 1, .has_fifth = true};
static const format32 q5_1 = {.bytes = 384, .zero_shift = -1, .has_min = true, .has_fifth = true};

MM(mm_q8_0, mm32, k / 32 * 544, q8_0)
MM(mm_q4_0, mm32, k / 32 * 288, q4_0)
MM(mm_q4_1, mm32, k / 32 * 320, q4_1)
MM(mm_q5_0, mm32, k / 32 * 352, q5_0)
MM(mm_q5_1, mm32, k / 32 * 384, q5_1)
MM(mm_q4_k, mm_q45_k, k / 256 * 2304, false)
MM(mm_q5_k, mm_q45_k, k / 256 * 2816, true)
MM(mm_q6_k_any, mm_q6_k, k / 256 * 3360)

INLINE void install_quantized(pl_cpu_kernels *k)
{
    k->mm[PL_TYPE_Q8_0] = mm_q8_0;
    k->mm[PL_TYPE_Q4_0] = mm_q4_0;
    k->mm[PL_TYPE_Q4_1] = mm_q4_1;
    k->mm[PL_TYPE_Q5_0] = mm_q5_0;
    k->mm[PL_TYPE_Q5_1] = mm_q5_1;
    k->mm[PL_TYPE_Q4_K] = mm_q4_k;
    k->mm[PL_TYPE_Q5_K] = mm_q5_k;
    k->mm[PL_TYPE_Q6_K] = mm_q6_k_any;
}

#if defined(L_FLOATS)
MM(mm_f32, mm_float, 64 * k, PL_TYPE_F32)
MM(mm_f16, mm_float, 32 * k, PL_TYPE_F16)
MM(mm_bf16, mm_float, 32 * k, PL_TYPE_BF16)

INLINE void install_floats(pl_cpu_kernels *k)
{
    k->mm[PL_TYPE_F32] = mm_f32;
    k->mm[PL_TYPE_F16] = mm_f16;
    k->mm[PL_TYPE_BF16] = mm_bf16;
}
#endif

#endif
