/* What all matrix products on 256-bit vectors are made of. */
#pragma once

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include <immintrin.h>

#include "engine/cpu/act.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/pack.h"

#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

enum { ROWS = PL_PACK_ROWS, LANES = 8, HALVES = 2, SUMS = 4 };

INLINE __m256i load(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

INLINE __m256 load_f16(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

INLINE __m256i broadcast(const uint8_t *p)
{
    int32_t v;
    memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
}

INLINE __m256 broadcast_f32(const uint8_t *p)
{
    float v;
    memcpy(&v, p, 4);
    return _mm256_set1_ps(v);
}

INLINE __m256i low_nibbles(__m256i v)
{
    return _mm256_and_si256(v, _mm256_set1_epi8(15));
}
INLINE __m256i high_nibbles(__m256i v)
{
    return low_nibbles(_mm256_srli_epi32(v, 4));
}

/* v | (h & mask) */
INLINE __m256i or_masked(__m256i v, __m256i h, int8_t mask)
{
    return _mm256_or_si256(v, _mm256_and_si256(h, _mm256_set1_epi8(mask)));
}

/* Moves bit from of every byte to bit to; the other bits of the result mean nothing. */
INLINE __m256i move_bit(__m256i h, int from, int to)
{
    return from < to ? _mm256_slli_epi32(h, to - from) : from > to ? _mm256_srli_epi32(h, from - to) : h;
}

/* acc + products of unsigned bytes of w and signed ones of x, pairs added in 16 bits. */
INLINE __m256i dot_pairs(__m256i acc, __m256i w, __m256i x)
{
    return _mm256_add_epi16(acc, _mm256_maddubs_epi16(w, x));
}

/* acc + s * pairs, pairs of 16-bit products added. */
INLINE __m256i widen(__m256i acc, __m256i pairs, __m256i s)
{
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, s));
}

/* A part of a product: the halves of a group and the tokens of the tile whose sums are in registers together. */
typedef struct part {
    int tile, t0, half0; /* known when running */
    int tokens, halves;  /* known when compiling */
} part;

INLINE void store(float *dst, size_t dst_stride, __m256 (*acc)[SUMS], const part p)
{
    UNROLL
    for (int h = 0; h < p.halves; h++) {
        UNROLL
        for (int t = 0; t < p.tokens; t++)
            _mm256_storeu_ps(dst + (size_t)(p.t0 + t) * dst_stride + (p.half0 + h) * LANES, acc[h][t]);
    }
}

INLINE void clear(__m256 (*acc)[SUMS], const part p)
{
    UNROLL
    for (int h = 0; h < p.halves; h++) {
        UNROLL
        for (int t = 0; t < p.tokens; t++) acc[h][t] = _mm256_setzero_ps();
    }
}

/* acc + (d * dx) * (float)sum */
INLINE __m256 add_scaled(__m256 acc, __m256 d, __m256 dx, __m256i sum)
{
    return _mm256_add_ps(acc, _mm256_mul_ps(_mm256_mul_ps(d, dx), _mm256_cvtepi32_ps(sum)));
}

/* --- Instances: 1 to 4 tokens, of which a tile makes two parts. More instances would be slow to compile. --- */

/* A kernel for quantized types: two tokens at most with both halves at once, more with one half after the other. */
#define QUANTIZED(name, group_bytes, function, ...)                                                                    \
    static void name(float *dst, size_t dst_stride, const void *weights, int64_t n_groups, const void *act, int64_t k, \
                     int tile)                                                                                         \
    {                                                                                                                  \
        const uint8_t *w = weights;                                                                                    \
        for (int64_t g = 0; g < n_groups; g++, w += (group_bytes), dst += ROWS) {                                      \
            for (int t = 0; t < tile; t += SUMS) {                                                                     \
                if (tile - t == 1) {                                                                                   \
                    function(dst, dst_stride, w, act, k, (part){tile, t, 0, 1, 2}, ##__VA_ARGS__);                     \
                } else if (tile - t == 2) {                                                                            \
                    function(dst, dst_stride, w, act, k, (part){tile, t, 0, 2, 2}, ##__VA_ARGS__);                     \
                } else {                                                                                               \
                    for (int half = 0; half < HALVES; half++) {                                                        \
                        if (tile - t == 3)                                                                             \
                            function(dst, dst_stride, w, act, k, (part){tile, t, half, 3, 1}, ##__VA_ARGS__);          \
                        else                                                                                           \
                            function(dst, dst_stride, w, act, k, (part){tile, t, half, 4, 1}, ##__VA_ARGS__);          \
                    }                                                                                                  \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
    }

#endif
