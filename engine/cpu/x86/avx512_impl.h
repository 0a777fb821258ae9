/* What all matrix products on 512-bit vectors are made of. Compiled once with VNNI and once without; only dot() differs. */
#pragma once

#if defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__FMA__) && defined(__F16C__)

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

enum { ROWS = PL_PACK_ROWS };

INLINE __m512i load(const uint8_t *p)
{
    return _mm512_loadu_si512(p);
}

INLINE __m512 load_f16(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

INLINE __m512i broadcast(const uint8_t *p)
{
    int32_t v;
    memcpy(&v, p, 4);
    return _mm512_set1_epi32(v);
}

INLINE __m512 broadcast_f32(const uint8_t *p)
{
    float v;
    memcpy(&v, p, 4);
    return _mm512_set1_ps(v);
}

/* acc + the products of four unsigned bytes of w with four signed ones of x, per lane. small says that w is below 128,
 * so that pairs of products fit 16 bits. */
INLINE __m512i dot(__m512i acc, __m512i w, __m512i x, bool small)
{
#if defined(__AVX512VNNI__)
    (void)small;
    return _mm512_dpbusd_epi32(acc, w, x);
#else
    if (small) return _mm512_add_epi32(acc, _mm512_madd_epi16(_mm512_maddubs_epi16(w, x), _mm512_set1_epi16(1)));
    __m512i even =
        _mm512_madd_epi16(_mm512_and_si512(w, _mm512_set1_epi16(255)), _mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8));
    __m512i odd = _mm512_madd_epi16(_mm512_srli_epi16(w, 8), _mm512_srai_epi16(x, 8));
    return _mm512_add_epi32(acc, _mm512_add_epi32(even, odd));
#endif
}

/* acc + the products of two signed 16-bit numbers, per lane. */
INLINE __m512i dot16(__m512i acc, __m512i w, __m512i x)
{
#if defined(__AVX512VNNI__)
    return _mm512_dpwssd_epi32(acc, w, x);
#else
    return _mm512_add_epi32(acc, _mm512_madd_epi16(w, x));
#endif
}

INLINE __m512i low_nibbles(__m512i v)
{
    return _mm512_and_si512(v, _mm512_set1_epi8(15));
}
INLINE __m512i high_nibbles(__m512i v)
{
    return low_nibbles(_mm512_srli_epi32(v, 4));
}

/* Byte 0 and byte 2 of each lane as two 16-bit numbers; the odd bytes after a shift. */
INLINE __m512i even_bytes(__m512i v)
{
    return _mm512_and_si512(v, _mm512_set1_epi16(255));
}
INLINE __m512i odd_bytes(__m512i v)
{
    return _mm512_srli_epi16(v, 8);
}

/* v | (h & mask) */
INLINE __m512i or_masked(__m512i v, __m512i h, int8_t mask)
{
    return _mm512_ternarylogic_epi32(v, h, _mm512_set1_epi8(mask), 0xf8);
}

/* Moves bit from of every byte to bit to; the other bits of the result mean nothing. */
INLINE __m512i move_bit(__m512i h, int from, int to)
{
    return from < to   ? _mm512_slli_epi32(h, (unsigned)(to - from))
           : from > to ? _mm512_srli_epi32(h, (unsigned)(from - to))
                       : h;
}

/* Asks the second-level cache for the bytes of a block that is AHEAD further on. With one token or two the processor's
 * own prefetcher does better alone; with more it falls behind (measured on Zen 4: 10 % slower, and 30 % faster). */
enum { AHEAD = 8192 };
INLINE void prefetch(const uint8_t *block, int bytes, int n)
{
    if (n <= 2) return;
    UNROLL
    for (int at = 0; at < bytes; at += 64) _mm_prefetch((const char *)block + AHEAD + at, _MM_HINT_T1);
}

INLINE void store(float *dst, size_t dst_stride, const __m512 *acc, int n)
{
    UNROLL
    for (int t = 0; t < n; t++) _mm512_storeu_ps(dst + (size_t)t * dst_stride, acc[t]);
}

/* A kernel: instances for tiles of 8 and for 1 to 4 tokens, of which 5 to 7 are made, a few groups at a time so that
 * the second pass finds them in the cache. More instances would be faster for those, but slow to compile. */
#define MM(name, function, group_bytes, ...)                                                                           \
    static void name(float *dst, size_t dst_stride, const void *weights, int64_t n_groups, const void *act, int64_t k, \
                     int tile)                                                                                         \
    {                                                                                                                  \
        const uint8_t *w = weights;                                                                                    \
        if (tile == 8) {                                                                                               \
            function(dst, dst_stride, w, n_groups, act, k, 8, 0, 8, ##__VA_ARGS__);                                    \
            return;                                                                                                    \
        }                                                                                                              \
        int64_t some = tile > 4 ? 4 : n_groups;                                                                        \
        for (int64_t g = 0; g < n_groups; g += some, w += (size_t)some * (size_t)(group_bytes), dst += some * ROWS) {  \
            int64_t m = n_groups - g < some ? n_groups - g : some;                                                     \
            for (int t = 0; t < tile; t += 4) {                                                                        \
                float *to = dst + (size_t)t * dst_stride;                                                              \
                switch (tile - t) {                                                                                    \
                case 1: function(to, dst_stride, w, m, act, k, tile, t, 1, ##__VA_ARGS__); break;                      \
                case 2: function(to, dst_stride, w, m, act, k, tile, t, 2, ##__VA_ARGS__); break;                      \
                case 3: function(to, dst_stride, w, m, act, k, tile, t, 3, ##__VA_ARGS__); break;                      \
                default: function(to, dst_stride, w, m, act, k, tile, t, 4, ##__VA_ARGS__); break;                     \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
    }

/* The continued product of one block: chains begin and end in acc. */
#define MORE(name, block, ...)                                                                                         \
    INLINE void name##_n(float *acc, const uint16_t *at, const uint8_t *w, const uint8_t *act, int tile, int t0,       \
                         const int n)                                                                                  \
    {                                                                                                                  \
        __m512 sum[PL_ACT_TILE];                                                                                       \
        UNROLL                                                                                                         \
        for (int t = 0; t < n; t++) sum[t] = _mm512_loadu_ps(acc + ROWS * at[t0 + t]);                                 \
        block(sum, w, act, tile, t0, n, ##__VA_ARGS__);                                                                \
        UNROLL                                                                                                         \
        for (int t = 0; t < n; t++) _mm512_storeu_ps(acc + ROWS * at[t0 + t], sum[t]);                                 \
    }                                                                                                                  \
    static void name(float *acc, const uint16_t *at, const void *w, const void *act, int tile)                         \
    {                                                                                                                  \
        if (tile == 8) {                                                                                               \
            name##_n(acc, at, w, act, 8, 0, 8);                                                                        \
            return;                                                                                                    \
        }                                                                                                              \
        for (int t = 0; t < tile; t += 4) {                                                                            \
            switch (tile - t) {                                                                                        \
            case 1: name##_n(acc, at, w, act, tile, t, 1); break;                                                      \
            case 2: name##_n(acc, at, w, act, tile, t, 2); break;                                                      \
            case 3: name##_n(acc, at, w, act, tile, t, 3); break;                                                      \
            default: name##_n(acc, at, w, act, tile, t, 4); break;                                                     \
            }                                                                                                          \
        }                                                                                                              \
    }

#endif
