/* The products of the types of few levels on 512-bit vectors, compiled once with VNNI and once without.
 *
 * Four-bit types look their levels up and are bytes from then on. Zero points enter as in avx512_mm_impl.h where the
 * activation carries them, for a whole block of 256 as one product of the scales with sums of the activation, and where
 * a sub-block of 16 has a scale of its own (NVFP4) by turning the roles: the activation is the unsigned factor then,
 * and what that adds depends on the weights alone. */
#pragma once

#if defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__FMA__) && defined(__F16C__)

#include "engine/cpu/x86/avx512_impl.h"

/* A table of 16 bytes for each of the four parts of a vector. */
INLINE __m512i table_of(const int8_t levels[16], int add)
{
    __m128i t = _mm_loadu_si128((const __m128i *)levels);
    return _mm512_broadcast_i32x4(_mm_add_epi8(t, _mm_set1_epi8((char)add)));
}

/* acc + (d * dx) * (float)sum */
INLINE __m512 add_scaled(__m512 acc, __m512 d, const uint8_t *dx, __m512i sum)
{
    return _mm512_add_ps(acc, _mm512_mul_ps(_mm512_mul_ps(d, broadcast_f32(dx)), _mm512_cvtepi32_ps(sum)));
}

/* --- Types whose activations have blocks of 32. --- */

typedef enum code32 { IQ4_NL, MXFP4, Q1_0, Q2_0, Q8_1 } code32;

typedef struct format32 {
    code32 code;
    int columns, bytes; /* of a packed block of 16 rows */
    int field;          /* where the columns begin */
} format32;

/* The scales of MXFP4: 2^(e - 128), of which the two smallest are subnormal. */
INLINE __m512 load_e8m0(const uint8_t *p)
{
    __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
    __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    __m512i small = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    __mmask16 is_small = _mm512_cmplt_epu32_mask(e, _mm512_set1_epi32(2));
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, is_small, small));
}

/* The columns 4 j to 4 j + 3 (v0) and 16 more (v1) of step i of a block, as unsigned bytes. */
INLINE void columns32(__m512i *v0, __m512i *v1, const uint8_t *q, int i, int j, __m512i table, const code32 code)
{
    __m512i v;
    switch (code) {
    case IQ4_NL:
    case MXFP4:
        v = load(q + 64 * j);
        *v0 = _mm512_shuffle_epi8(table, low_nibbles(v));
        *v1 = _mm512_shuffle_epi8(table, high_nibbles(v));
        break;
    case Q1_0: /* twice the bit */
        v = load(q + 64 * i);
        *v0 = _mm512_and_si512(move_bit(v, j, 1), _mm512_set1_epi8(2));
        *v1 = _mm512_and_si512(move_bit(v, j + 4, 1), _mm512_set1_epi8(2));
        break;
    case Q2_0:
        *v0 = _mm512_and_si512(move_bit(load(q + 128 * i), 2 * j, 0), _mm512_set1_epi8(3));
        *v1 = _mm512_and_si512(move_bit(load(q + 128 * i + 64), 2 * j, 0), _mm512_set1_epi8(3));
        break;
    case Q8_1:
        *v0 = load(q + 64 * j);
        *v1 = load(q + 64 * (j + 4));
        break;
    }
}

/* The zero point's part of the sum, from -8 * sum of qx. */
INLINE __m512i zero32(__m512i c, const code32 code)
{
    switch (code) {
    case MXFP4: return _mm512_add_epi32(c, _mm512_srai_epi32(c, 1)); /* 12 */
    case Q1_0:
    case Q2_0: return _mm512_srai_epi32(c, 3); /* 1 */
    default: return _mm512_slli_epi32(c, 4);   /* 128 */
    }
}

INLINE void mm32(float *dst, size_t dst_stride, const uint8_t *w, int64_t n_groups, const uint8_t *act, int64_t k,
                 int tile, int t0, const int n, const format32 f)
{
    const __m512i table = f.code == IQ4_NL  ? table_of(pl_iq4_levels, 128)
                          : f.code == MXFP4 ? table_of(pl_fp4_levels, 12)
                                            : _mm512_setzero_si512();
    const bool small = f.code != IQ4_NL && f.code != Q8_1;
    for (int64_t g = 0; g < n_groups; g++, dst += ROWS) {
        __m512 acc[PL_ACT_TILE];
        UNROLL
        for (int t = 0; t < n; t++) acc[t] = _mm512_setzero_ps();
        const uint8_t *a = act;
        for (int64_t b = k / f.columns; b > 0; b--, w += f.bytes) {
            const __m512 d = f.code == MXFP4 ? load_e8m0(w) : load_f16(w);
            prefetch(w, f.bytes, n);
            for (int i = 0; i < f.columns / 32; i++, a += tile * PL_ACT_Q8_BYTES) {
                const uint8_t *x = a + 32 * t0;
                /* Few tokens leave room for two sums each, which halves the chain of dependent products. */
                const bool two = n <= 4;
                __m512i lo[PL_ACT_TILE], hi[PL_ACT_TILE];
                UNROLL
                for (int t = 0; t < n; t++) {
                    lo[t] = zero32(broadcast(a + 40 * tile + 4 * (t0 + t)), f.code);
                    hi[t] = _mm512_setzero_si512();
                }
                UNROLL
                for (int j = 0; j < 4; j++) {
                    __m512i v0, v1;
                    columns32(&v0, &v1, w + f.field, i, j, table, f.code);
                    UNROLL
                    for (int t = 0; t < n; t++) lo[t] = dot(lo[t], v0, broadcast(x + 32 * t + 4 * j), small);
                    UNROLL
                    for (int t = 0; t < n; t++) {
                        __m512i *sum = two ? &hi[t] : &lo[t];
                        *sum = dot(*sum, v1, broadcast(x + 32 * t + 16 + 4 * j), small);
                    }
                }
                UNROLL
                for (int t = 0; t < n; t++)
                    acc[t] = add_scaled(acc[t], d, a + 32 * tile + 4 * (t0 + t),
                                        two ? _mm512_add_epi32(lo[t], hi[t]) : lo[t]);
            }
        }
        store(dst, dst_stride, acc, n);
    }
}

/* The scales of NVFP4 in byte b of each lane (fp4.c). */
INLINE __m512 load_ue4m3(__m512i v, int b)
{
    __m512i s = _mm512_and_si512(_mm512_srli_epi32(v, (unsigned)(8 * b)), _mm512_set1_epi32(127));
    __m512i raw = _mm512_and_si512(_mm512_srli_epi32(v, (unsigned)(8 * b)), _mm512_set1_epi32(255));
    __mmask16 number = _mm512_cmpneq_epi32_mask(raw, _mm512_set1_epi32(127));
    __m256i half = _mm512_cvtepi32_epi16(_mm512_slli_epi32(s, 7));
    return _mm512_maskz_mul_ps(number, _mm512_cvtph_ps(half), _mm512_set1_ps(128));
}

INLINE void mm_nvfp4(float *dst, size_t dst_stride, const uint8_t *w, int64_t n_groups, const uint8_t *act, int64_t k,
                     int tile, int t0, const int n)
{
    const __m512i table = table_of(pl_fp4_levels, 0), offset = _mm512_set1_epi8(-128);
    for (int64_t g = 0; g < n_groups; g++, dst += ROWS) {
        __m512 acc[PL_ACT_TILE];
        UNROLL
        for (int t = 0; t < n; t++) acc[t] = _mm512_setzero_ps();
        const uint8_t *a = act;
        for (int64_t b = k / 64; b > 0; b--, w += 576) {
            const __m512i scales = load(w);
            prefetch(w, 576, n);
            for (int i = 0; i < 2; i++, a += tile * PL_ACT_Q8_BYTES) {
                const uint8_t *q = w + 64 + 256 * i, *x = a + 32 * t0;
                const __m512i of_step = _mm512_srl_epi32(scales, _mm_cvtsi32_si128(16 * i));
                UNROLL
                for (int h = 0; h < 2; h++) {
                    __m512i v[4], sum[PL_ACT_TILE], begin = _mm512_setzero_si512();
                    UNROLL
                    for (int j = 0; j < 2; j++) {
                        __m512i nibbles = load(q + 128 * h + 64 * j);
                        v[j] = _mm512_shuffle_epi8(table, low_nibbles(nibbles));
                        v[j + 2] = _mm512_shuffle_epi8(table, high_nibbles(nibbles));
                    }
                    /* x + 128 is unsigned, and 128 times the weights comes off again. */
                    UNROLL
                    for (int j = 0; j < 4; j++) begin = dot(begin, offset, v[j], true);
                    begin = _mm512_sub_epi32(_mm512_setzero_si512(), begin);
                    UNROLL
                    for (int t = 0; t < n; t++) sum[t] = begin;
                    UNROLL
                    for (int j = 0; j < 4; j++) {
                        UNROLL
                        for (int t = 0; t < n; t++)
                            sum[t] = dot(sum[t], _mm512_xor_si512(broadcast(x + 32 * t + 16 * h + 4 * j), offset), v[j],
                                         true);
                    }
                    __m512 d = load_ue4m3(of_step, h);
                    UNROLL
                    for (int t = 0; t < n; t++) acc[t] = add_scaled(acc[t], d, a + 32 * tile + 4 * (t0 + t), sum[t]);
                }
            }
        }
        store(dst, dst_stride, acc, n);
    }
}

/* --- Types whose activations have blocks of 256. --- */

/* Numbers 4 u to 4 u + 3 of the 16-bit ones from p on, as pairs (0, 2) and (1, 3), which is how bytes of scales come
 * apart. */
typedef struct pairs {
    int16_t v[16];
} pairs;

/* Minus the sums of each 16 of the activation. */
INLINE pairs sums_of_16(const uint8_t *c)
{
    pairs p;
    __m512i s = _mm512_srai_epi32(_mm512_loadu_si512(c), 5); /* c is -32 times the sums */
    s = _mm512_shuffle_epi32(s, (_MM_PERM_ENUM)0xd8);
    _mm256_storeu_si256((__m256i *)p.v, _mm512_cvtepi32_epi16(s));
    return p;
}

/* acc + the products of 16 numbers, four to a lane of bytes[u] (the even ones in even, the odd in odd), with p. */
INLINE __m512i dot_pairs(__m512i acc, const __m512i even[4], const __m512i odd[4], const pairs *p)
{
    const uint8_t *at = (const uint8_t *)p->v;
    UNROLL
    for (int u = 0; u < 4; u++) {
        acc = dot16(acc, even[u], broadcast(at + 8 * u));
        acc = dot16(acc, odd[u], broadcast(at + 8 * u + 4));
    }
    return acc;
}

/* The 2-bit numbers 32 s to 32 s + 31 of 128, from a unit. */
INLINE __m512i two_bits(__m512i v, int s, int to)
{
    return _mm512_and_si512(move_bit(v, 2 * s, to), _mm512_set1_epi8((char)(3 << to)));
}

/* Scales times two bits are at most 45, so the bytes are multiplied first, once for all tokens, and need no sum per
 * sub-block. */
INLINE void mm_q2_k(float *dst, size_t dst_stride, const uint8_t *w, int64_t n_groups, const uint8_t *act, int64_t k,
                    int tile, int t0, const int n)
{
    for (int64_t g = 0; g < n_groups; g++, dst += ROWS) {
        __m512 acc[PL_ACT_TILE];
        UNROLL
        for (int t = 0; t < n; t++) acc[t] = _mm512_setzero_ps();
        const uint8_t *a = act;
        for (int64_t i = k / 256; i > 0; i--, w += 1344, a += tile * PL_ACT_Q8K_BYTES) {
            __m512i sum[PL_ACT_TILE], even[4], odd[4];
            prefetch(w, 1344, n);
            UNROLL
            for (int t = 0; t < n; t++) sum[t] = _mm512_setzero_si512();
            for (int h = 0; h < 2; h++) {
                UNROLL
                for (int half = 0; half < 2; half++) { /* 16 of each 32 columns: one sub-block each */
                    const uint8_t *q = w + 320 + 512 * h + 256 * half, *x = a + 256 * t0 + 128 * h + 16 * half;
                    __m512i sc[4]; /* twice as 16-bit numbers: scales 8 h + 2 s + half */
                    UNROLL
                    for (int s = 0; s < 4; s++) {
                        __m512i of4 = low_nibbles(load(w + 64 + 128 * h + 64 * (s / 2)));
                        const int byte = 2 * (s % 2) + half;
                        const int pattern = (int)0x80008000u | byte << 16 | byte;
                        sc[s] = _mm512_shuffle_epi8(of4, _mm512_add_epi8(_mm512_set1_epi32(pattern),
                                                                         _mm512_broadcast_i32x4(_mm_setr_epi32(
                                                                             0, 0x00040004, 0x00080008, 0x000c000c))));
                    }
                    UNROLL
                    for (int j = 0; j < 4; j++) {
                        __m512i v = load(q + 64 * j);
                        UNROLL
                        for (int s = 0; s < 4; s++) {
                            __m512i product = _mm512_mullo_epi16(two_bits(v, s, 0), sc[s]);
                            UNROLL
                            for (int t = 0; t < n; t++)
                                sum[t] = dot(sum[t], product, broadcast(x + 256 * t + 32 * s + 4 * j), true);
                        }
                    }
                }
            }
            UNROLL
            for (int u = 0; u < 4; u++) {
                __m512i m = high_nibbles(load(w + 64 + 64 * u));
                even[u] = even_bytes(m);
                odd[u] = odd_bytes(m);
            }
            __m512 d = load_f16(w), dmin = load_f16(w + 32);
            UNROLL
            for (int t = 0; t < n; t++) {
                const uint8_t *dx = a + 256 * tile + 4 * (t0 + t);
                pairs p = sums_of_16(a + 260 * tile + 64 * (t0 + t));
                __m512i min =
                    _mm512_sub_epi32(_mm512_setzero_si512(), dot_pairs(_mm512_setzero_si512(), even, odd, &p));
                acc[t] = add_scaled(acc[t], d, dx, sum[t]);
                acc[t] = _mm512_sub_ps(acc[t],
                                       _mm512_mul_ps(_mm512_mul_ps(dmin, broadcast_f32(dx)), _mm512_cvtepi32_ps(min)));
            }
        }
        store(dst, dst_stride, acc, n);
    }
}

/* The columns' bits stand three places higher, so that the zero point is 32, which the activation carries; the sum is 8
 * times what is meant. */
INLINE void mm_q3_k(float *dst, size_t dst_stride, const uint8_t *w, int64_t n_groups, const uint8_t *act, int64_t k,
                    int tile, int t0, const int n)
{
    for (int64_t g = 0; g < n_groups; g++, dst += ROWS) {
        __m512 acc[PL_ACT_TILE];
        UNROLL
        for (int t = 0; t < n; t++) acc[t] = _mm512_setzero_ps();
        const uint8_t *a = act;
        for (int64_t i = k / 256; i > 0; i--, w += 1760, a += tile * PL_ACT_Q8K_BYTES) {
            __m512i sc[16], total[PL_ACT_TILE];
            {
                __m512i s0 = load(w + 32), s1 = load(w + 96), s2 = load(w + 160);
                __m512i bytes[4];
                bytes[0] = or_masked(low_nibbles(s0), _mm512_slli_epi32(s2, 4), 48);
                bytes[1] = or_masked(low_nibbles(s1), _mm512_slli_epi32(s2, 2), 48);
                bytes[2] = or_masked(high_nibbles(s0), s2, 48);
                bytes[3] = or_masked(high_nibbles(s1), _mm512_srli_epi32(s2, 2), 48);
                UNROLL
                for (int u = 0; u < 4; u++) {
                    __m512i v = _mm512_sub_epi8(bytes[u], _mm512_set1_epi8(32));
                    UNROLL
                    for (int b = 0; b < 4; b++)
                        sc[4 * u + b] = _mm512_srai_epi32(_mm512_slli_epi32(v, (unsigned)(24 - 8 * b)), 24);
                }
            }
            UNROLL
            for (int t = 0; t < n; t++) total[t] = _mm512_setzero_si512();
            for (int p = 0; p < 4; p++) { /* 16 of each 32 columns of one half: one sub-block of each part */
                const int half = p / 2, from = p % 2;
                const uint8_t *q = w + 736 + 512 * half + 256 * from, *third = w + 224 + 256 * from;
                const uint8_t *x = a + 256 * t0 + 128 * half + 16 * from;
                const uint8_t *c = a + 260 * tile + 64 * t0 + 4 * (8 * half + from);
                const __m512i *scale = sc + 8 * half + from;
                const __m128i shift = _mm_cvtsi32_si128(4 * half);
                __m512i low[4], high[4];
                prefetch(w + 440 * p, 440, n);
                UNROLL
                for (int j = 0; j < 4; j++) {
                    low[j] = load(q + 64 * j);
                    high[j] = _mm512_srl_epi32(load(third + 64 * j), shift);
                }
                UNROLL
                for (int s = 0; s < 4; s++) {
                    const bool two = n <= 4; /* two sums each halve the chain of dependent products */
                    __m512i sum[PL_ACT_TILE], more[PL_ACT_TILE];
                    UNROLL
                    for (int t = 0; t < n; t++) {
                        sum[t] = broadcast(c + 64 * t + 8 * s);
                        more[t] = _mm512_setzero_si512();
                    }
                    UNROLL
                    for (int j = 0; j < 4; j++) {
                        __m512i v = or_masked(two_bits(low[j], s, 3), move_bit(high[j], s, 5), 32);
                        UNROLL
                        for (int t = 0; t < n; t++) {
                            __m512i *to = two && j % 2 ? &more[t] : &sum[t];
                            *to = dot(*to, v, broadcast(x + 256 * t + 32 * s + 4 * j), true);
                        }
                    }
                    UNROLL
                    for (int t = 0; t < n; t++) {
                        if (two) sum[t] = _mm512_add_epi32(sum[t], more[t]);
                        total[t] = _mm512_add_epi32(total[t], _mm512_mullo_epi32(sum[t], scale[2 * s]));
                    }
                }
            }
            __m512 d = load_f16(w);
            UNROLL
            for (int t = 0; t < n; t++)
                acc[t] = add_scaled(acc[t], d, a + 256 * tile + 4 * (t0 + t), _mm512_srai_epi32(total[t], 3));
        }
        store(dst, dst_stride, acc, n);
    }
}

/* Levels are 128 too high; the product of the scales with the activation's sums, times 128, comes off at the end. */
INLINE void mm_iq4_xs(float *dst, size_t dst_stride, const uint8_t *w, int64_t n_groups, const uint8_t *act, int64_t k,
                      int tile, int t0, const int n)
{
    const __m512i table = table_of(pl_iq4_levels, 128);
    for (int64_t g = 0; g < n_groups; g++, dst += ROWS) {
        __m512 acc[PL_ACT_TILE];
        UNROLL
        for (int t = 0; t < n; t++) acc[t] = _mm512_setzero_ps();
        const uint8_t *a = act;
        for (int64_t i = k / 256; i > 0; i--, w += 2176, a += tile * PL_ACT_Q8K_BYTES) {
            __m512i sc[8], couples[4], total[PL_ACT_TILE];
            {
                __m512i upper = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(w + 32))),
                        lower = load(w + 64);
                UNROLL
                for (int j = 0; j < 8; j++) {
                    __m512i l = _mm512_and_si512(_mm512_srli_epi32(lower, (unsigned)(4 * j)), _mm512_set1_epi32(15));
                    __m512i u = _mm512_and_si512(move_bit(upper, 2 * j, 4), _mm512_set1_epi32(48));
                    sc[j] = _mm512_sub_epi32(_mm512_or_si512(l, u), _mm512_set1_epi32(32));
                }
                /* In the order in which the activation has its sums: (0, 2), (1, 3), (4, 6), (5, 7). */
                UNROLL
                for (int p = 0; p < 4; p++) {
                    const int first = p / 2 * 4 + p % 2;
                    couples[p] = _mm512_mask_mov_epi16(sc[first], 0xaaaaaaaa, _mm512_slli_epi32(sc[first + 2], 16));
                }
            }
            UNROLL
            for (int t = 0; t < n; t++) {
                const uint8_t *b = a + 324 * tile + 16 * (t0 + t);
                __m512i zero = dot16(_mm512_setzero_si512(), couples[0], broadcast(b));
                zero = dot16(zero, couples[1], broadcast(b + 4));
                zero = dot16(zero, couples[2], broadcast(b + 8));
                zero = dot16(zero, couples[3], broadcast(b + 12));
                total[t] = _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(zero, 7));
            }
            for (int s = 0; s < 8; s++) {
                const uint8_t *q = w + 128 + 256 * s, *x = a + 256 * t0 + 32 * s;
                const bool two = n <= 4;
                __m512i lo[PL_ACT_TILE], hi[PL_ACT_TILE];
                prefetch(w + 272 * s, 272, n);
                UNROLL
                for (int t = 0; t < n; t++) lo[t] = hi[t] = _mm512_setzero_si512();
                UNROLL
                for (int j = 0; j < 4; j++) {
                    __m512i v = load(q + 64 * j);
                    __m512i v0 = _mm512_shuffle_epi8(table, low_nibbles(v));
                    __m512i v1 = _mm512_shuffle_epi8(table, high_nibbles(v));
                    UNROLL
                    for (int t = 0; t < n; t++) lo[t] = dot(lo[t], v0, broadcast(x + 256 * t + 4 * j), false);
                    UNROLL
                    for (int t = 0; t < n; t++) {
                        __m512i *sum = two ? &hi[t] : &lo[t];
                        *sum = dot(*sum, v1, broadcast(x + 256 * t + 16 + 4 * j), false);
                    }
                }
                UNROLL
                for (int t = 0; t < n; t++) {
                    __m512i sum = two ? _mm512_add_epi32(lo[t], hi[t]) : lo[t];
                    total[t] = _mm512_add_epi32(total[t], _mm512_mullo_epi32(sum, sc[s]));
                }
            }
            __m512 d = load_f16(w);
            UNROLL
            for (int t = 0; t < n; t++) acc[t] = add_scaled(acc[t], d, a + 256 * tile + 4 * (t0 + t), total[t]);
        }
        store(dst, dst_stride, acc, n);
    }
}

/* --- Blocks of 256 with one scale. --- */

typedef enum code256 { TQ1_0, TQ2_0, Q8_K } code256;

typedef struct format256 {
    code256 code;
    int bytes; /* of a packed block of 16 rows */
} format256;

/* The upper digit in base 3 of each byte, which is a fraction. */
INLINE __m512i digit(__m512i v)
{
    const __m512i one = _mm512_set1_epi8(1);
    __m512i d = _mm512_maskz_mov_epi8(_mm512_cmpge_epu8_mask(v, _mm512_set1_epi8(86)), one);
    return _mm512_mask_add_epi8(d, _mm512_cmpge_epu8_mask(v, _mm512_set1_epi8((char)171)), d, one);
}

/* Adds the products of unit v, whose digits are columns at x and step further on each. */
INLINE void add_digits(__m512i *total, __m512i v, const uint8_t *x, int step, const int digits, const int n)
{
    UNROLL
    for (int m = 0; m < digits; m++) {
        __m512i d = digit(v);
        UNROLL
        for (int t = 0; t < n; t++) total[t] = dot(total[t], d, broadcast(x + 256 * t + step * m), true);
        v = _mm512_add_epi8(v, _mm512_add_epi8(v, v));
    }
}

INLINE void mm256(float *dst, size_t dst_stride, const uint8_t *w, int64_t n_groups, const uint8_t *act, int64_t k,
                  int tile, int t0, const int n, const format256 f)
{
    for (int64_t g = 0; g < n_groups; g++, dst += ROWS) {
        __m512 acc[PL_ACT_TILE];
        UNROLL
        for (int t = 0; t < n; t++) acc[t] = _mm512_setzero_ps();
        const uint8_t *a = act;
        for (int64_t i = k / 256; i > 0; i--, w += f.bytes, a += tile * PL_ACT_Q8K_BYTES) {
            const uint8_t *x = a + 256 * t0;
            __m512i total[PL_ACT_TILE];
            UNROLL
            for (int t = 0; t < n; t++) { /* minus the zero point times the sum of qx */
                const uint8_t *b = a + 324 * tile + 16 * (t0 + t);
                __m512i minus = _mm512_set1_epi16(-1), zero = dot16(_mm512_setzero_si512(), minus, broadcast(b));
                zero = dot16(zero, minus, broadcast(b + 4));
                zero = dot16(zero, minus, broadcast(b + 8));
                zero = dot16(zero, minus, broadcast(b + 12));
                total[t] = f.code == Q8_K ? _mm512_slli_epi32(zero, 7) : zero;
            }
            if (f.code == TQ1_0) {
                prefetch(w, 864, n);
                for (int j = 0; j < 8; j++) add_digits(total, load(w + 32 + 64 * j), x + 4 * j, 32, 5, n);
                for (int j = 0; j < 4; j++) add_digits(total, load(w + 544 + 64 * j), x + 160 + 4 * j, 16, 5, n);
                add_digits(total, load(w + 800), x + 240, 4, 4, n);
            }
            if (f.code == TQ2_0) {
                prefetch(w, 1056, n);
                for (int j = 0; j < 16; j++) {
                    __m512i v = load(w + 32 + 64 * j);
                    UNROLL
                    for (int s = 0; s < 4; s++) {
                        __m512i q = two_bits(v, s, 0);
                        UNROLL
                        for (int t = 0; t < n; t++)
                            total[t] =
                                dot(total[t], q, broadcast(x + 256 * t + 128 * (j / 8) + 32 * s + 4 * (j % 8)), true);
                    }
                }
            }
            if (f.code == Q8_K) {
                for (int j = 0; j < 64; j++) {
                    __m512i v = load(w + 576 + 64 * j);
                    UNROLL
                    for (int t = 0; t < n; t++) total[t] = dot(total[t], v, broadcast(x + 256 * t + 4 * j), false);
                }
            }
            __m512 d = f.code == Q8_K ? _mm512_loadu_ps(w) : load_f16(w);
            UNROLL
            for (int t = 0; t < n; t++) acc[t] = add_scaled(acc[t], d, a + 256 * tile + 4 * (t0 + t), total[t]);
        }
        store(dst, dst_stride, acc, n);
    }
}

static const format32 iq4_nl = {.code = IQ4_NL, .columns = 32, .bytes = 288, .field = 32};
static const format32 mxfp4 = {.code = MXFP4, .columns = 32, .bytes = 272, .field = 16};
static const format32 q1_0 = {.code = Q1_0, .columns = 128, .bytes = 288, .field = 32};
static const format32 q2_0 = {.code = Q2_0, .columns = 64, .bytes = 288, .field = 32};
static const format32 q8_1 = {.code = Q8_1, .columns = 32, .bytes = 576, .field = 64};
static const format256 tq1_0 = {.code = TQ1_0, .bytes = 864};
static const format256 tq2_0 = {.code = TQ2_0, .bytes = 1056};
static const format256 q8_k = {.code = Q8_K, .bytes = 4672};

MM(mm_iq4_nl, mm32, k / 32 * 288, iq4_nl)
MM(mm_mxfp4, mm32, k / 32 * 272, mxfp4)
MM(mm_q1_0, mm32, k / 128 * 288, q1_0)
MM(mm_q2_0, mm32, k / 64 * 288, q2_0)
MM(mm_q8_1, mm32, k / 32 * 576, q8_1)
MM(mm_nvfp4_any, mm_nvfp4, k / 64 * 576)
MM(mm_q2_k_any, mm_q2_k, k / 256 * 1344)
MM(mm_q3_k_any, mm_q3_k, k / 256 * 1760)
MM(mm_iq4_xs_any, mm_iq4_xs, k / 256 * 2176)
MM(mm_tq1_0, mm256, k / 256 * 864, tq1_0)
MM(mm_tq2_0, mm256, k / 256 * 1056, tq2_0)
MM(mm_q8_k, mm256, k / 256 * 4672, q8_k)

static void install_small(pl_cpu_kernels *k)
{
    k->mm[PL_TYPE_IQ4_NL] = mm_iq4_nl;
    k->mm[PL_TYPE_MXFP4] = mm_mxfp4;
    k->mm[PL_TYPE_NVFP4] = mm_nvfp4_any;
    k->mm[PL_TYPE_Q1_0] = mm_q1_0;
    k->mm[PL_TYPE_Q2_0] = mm_q2_0;
    k->mm[PL_TYPE_Q8_1] = mm_q8_1;
    k->mm[PL_TYPE_Q2_K] = mm_q2_k_any;
    k->mm[PL_TYPE_Q3_K] = mm_q3_k_any;
    k->mm[PL_TYPE_IQ4_XS] = mm_iq4_xs_any;
    k->mm[PL_TYPE_TQ1_0] = mm_tq1_0;
    k->mm[PL_TYPE_TQ2_0] = mm_tq2_0;
    k->mm[PL_TYPE_Q8_K] = mm_q8_k;
}

#endif
