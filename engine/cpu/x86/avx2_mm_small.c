/* The products of the types of few levels on 256-bit vectors (avx2_mm.c has the method).
 *
 * What fits 16 bits before it has to be widened: bytes up to 24 for 4 units of 4 columns, up to 12 for 8, up to 7 for
 * 16, digits up to 2 for all 64 units of a block. Levels of 127 are taken as |w| times x with the sign of w, and
 * widened at once. */
#include "engine/cpu/x86/avx2_impl.h"

/* A table of 16 bytes for both parts of a vector. */
INLINE __m256i table_of(const int8_t levels[16], int add)
{
    __m128i t = _mm_loadu_si128((const __m128i *)levels);
    return _mm256_broadcastsi128_si256(_mm_add_epi8(t, _mm_set1_epi8((char)add)));
}

/* acc + s * products of signed bytes, s twice per lane. */
INLINE __m256i dot_signed(__m256i acc, __m256i size, __m256i w, __m256i x, __m256i s)
{
    return widen(acc, _mm256_maddubs_epi16(size, _mm256_sign_epi8(x, w)), s);
}

/* --- Types whose activations have blocks of 32. --- */

typedef enum code32 { IQ4_NL, MXFP4, Q1_0, Q2_0, Q8_1 } code32;

typedef struct format32 {
    code32 code;
    int columns, bytes; /* of a packed block of 16 rows */
    int field;          /* where the columns begin */
} format32;

/* The scales of MXFP4: 2^(e - 128), of which the two smallest are subnormal. */
INLINE __m256 load_e8m0(const uint8_t *p)
{
    __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
    __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, small, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e)));
}

/* The columns 4 j to 4 j + 3 (v0) and 16 more (v1) of step i of a block. */
INLINE void columns32(__m256i *v0, __m256i *v1, const uint8_t *q, int i, int j, __m256i table, const code32 code)
{
    __m256i v;
    switch (code) {
    case IQ4_NL:
    case MXFP4:
        v = load(q + 64 * j);
        *v0 = _mm256_shuffle_epi8(table, low_nibbles(v));
        *v1 = _mm256_shuffle_epi8(table, high_nibbles(v));
        break;
    case Q1_0: /* twice the bit */
        v = load(q + 64 * i);
        *v0 = _mm256_and_si256(move_bit(v, j, 1), _mm256_set1_epi8(2));
        *v1 = _mm256_and_si256(move_bit(v, j + 4, 1), _mm256_set1_epi8(2));
        break;
    case Q2_0:
        *v0 = _mm256_and_si256(move_bit(load(q + 128 * i), 2 * j, 0), _mm256_set1_epi8(3));
        *v1 = _mm256_and_si256(move_bit(load(q + 128 * i + 64), 2 * j, 0), _mm256_set1_epi8(3));
        break;
    case Q8_1:
        *v0 = _mm256_xor_si256(load(q + 64 * j), _mm256_set1_epi8(-128));
        *v1 = _mm256_xor_si256(load(q + 64 * (j + 4)), _mm256_set1_epi8(-128));
        break;
    }
}

INLINE void mm32(float *dst, size_t dst_stride, const uint8_t *w, const uint8_t *a, int64_t k, const part p,
                 const format32 f)
{
    const __m256i one = _mm256_set1_epi16(1);
    const __m256i table = f.code == IQ4_NL  ? table_of(pl_iq4_levels, 0)
                          : f.code == MXFP4 ? table_of(pl_fp4_levels, 12)
                                            : _mm256_setzero_si256();
    const bool is_signed = f.code == IQ4_NL || f.code == Q8_1;
    __m256 acc[HALVES][SUMS];
    clear(acc, p);
    for (int64_t b = k / f.columns; b > 0; b--, w += f.bytes) {
        for (int i = 0; i < f.columns / 32; i++, a += p.tile * PL_ACT_Q8_BYTES) {
            UNROLL
            for (int h = 0; h < p.halves; h++) {
                const int half = p.half0 + h;
                const uint8_t *q = w + f.field + 32 * half;
                __m256i lo[SUMS], hi[SUMS];
                UNROLL
                for (int t = 0; t < p.tokens; t++) lo[t] = hi[t] = _mm256_setzero_si256();
                UNROLL
                for (int j = 0; j < 4; j++) {
                    __m256i v0, v1;
                    columns32(&v0, &v1, q, i, j, table, f.code);
                    __m256i size0 = _mm256_abs_epi8(v0), size1 = _mm256_abs_epi8(v1);
                    UNROLL
                    for (int t = 0; t < p.tokens; t++) {
                        const uint8_t *x = a + 32 * (p.t0 + t) + 4 * j;
                        if (is_signed) {
                            lo[t] = dot_signed(lo[t], size0, v0, broadcast(x), one);
                            lo[t] = dot_signed(lo[t], size1, v1, broadcast(x + 16), one);
                        } else {
                            lo[t] = dot_pairs(lo[t], v0, broadcast(x));
                            hi[t] = dot_pairs(hi[t], v1, broadcast(x + 16));
                        }
                    }
                }
                __m256 d = f.code == MXFP4 ? load_e8m0(w + 8 * half) : load_f16(w + 16 * half);
                UNROLL
                for (int t = 0; t < p.tokens; t++) {
                    if (!is_signed) { /* -8 * sum of qx: the zero point is 12 in MXFP4, and 1 */
                        __m256i c = broadcast(a + 40 * p.tile + 4 * (p.t0 + t));
                        c = f.code == MXFP4 ? _mm256_add_epi32(c, _mm256_srai_epi32(c, 1)) : _mm256_srai_epi32(c, 3);
                        lo[t] = widen(widen(c, lo[t], one), hi[t], one);
                    }
                    acc[h][t] = add_scaled(acc[h][t], d, broadcast_f32(a + 32 * p.tile + 4 * (p.t0 + t)), lo[t]);
                }
            }
        }
    }
    store(dst, dst_stride, acc, p);
}

/* The scales of NVFP4 in byte b of each lane (fp4.c). */
INLINE __m256 load_ue4m3(__m256i v, int b)
{
    __m256i raw = _mm256_and_si256(_mm256_srli_epi32(v, 8 * b), _mm256_set1_epi32(255));
    __m256i none = _mm256_cmpeq_epi32(raw, _mm256_set1_epi32(127));
    __m256i s = _mm256_slli_epi32(_mm256_and_si256(raw, _mm256_set1_epi32(127)), 7);
    __m128i half = _mm_packus_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    __m256 d = _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(128));
    return _mm256_andnot_ps(_mm256_castsi256_ps(none), d);
}

INLINE void mm_nvfp4(float *dst, size_t dst_stride, const uint8_t *w, const uint8_t *a, int64_t k, const part p)
{
    const __m256i one = _mm256_set1_epi16(1), table = table_of(pl_fp4_levels, 0);
    __m256 acc[HALVES][SUMS];
    clear(acc, p);
    for (int64_t b = k / 64; b > 0; b--, w += 576) {
        UNROLL
        for (int i = 0; i < 2; i++, a += p.tile * PL_ACT_Q8_BYTES) {
            UNROLL
            for (int h = 0; h < p.halves; h++) {
                const uint8_t *at = w + 32 * (p.half0 + h);
                UNROLL
                for (int s = 0; s < 2; s++) { /* 16 columns with a scale of their own */
                    __m256i sum[SUMS];
                    UNROLL
                    for (int t = 0; t < p.tokens; t++) sum[t] = _mm256_setzero_si256();
                    UNROLL
                    for (int j = 0; j < 4; j++) {
                        __m256i v = load(at + 64 + 256 * i + 128 * s + 64 * (j % 2));
                        v = _mm256_shuffle_epi8(table, j < 2 ? low_nibbles(v) : high_nibbles(v));
                        __m256i size = _mm256_abs_epi8(v);
                        UNROLL
                        for (int t = 0; t < p.tokens; t++)
                            sum[t] = dot_pairs(sum[t], size,
                                               _mm256_sign_epi8(broadcast(a + 32 * (p.t0 + t) + 16 * s + 4 * j), v));
                    }
                    __m256 d = load_ue4m3(load(at), 2 * i + s);
                    UNROLL
                    for (int t = 0; t < p.tokens; t++)
                        acc[h][t] = add_scaled(acc[h][t], d, broadcast_f32(a + 32 * p.tile + 4 * (p.t0 + t)),
                                               _mm256_madd_epi16(sum[t], one));
                }
            }
        }
    }
    store(dst, dst_stride, acc, p);
}

/* --- Types whose activations have blocks of 256. --- */

/* Minus the sums of each 16 of the activation; of each four in the order 0 2 1 3, as bytes of scales come apart. */
typedef struct pairs {
    int16_t v[16];
} pairs;

INLINE pairs sums_of_16(const uint8_t *c)
{
    pairs p;
    UNROLL
    for (int i = 0; i < 2; i++) { /* c is -32 times the sums */
        __m256i s = _mm256_shuffle_epi32(_mm256_srai_epi32(load(c + 32 * i), 5), 0xd8);
        __m128i v = _mm_packs_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
        _mm_storeu_si128((__m128i *)(p.v + 8 * i), v);
    }
    return p;
}

/* The sum of the products of 16 numbers with p: four to a lane, the even ones in even, the odd ones in odd. */
INLINE __m256i dot_scales(const __m256i even[4], const __m256i odd[4], const pairs *p)
{
    const uint8_t *at = (const uint8_t *)p->v;
    __m256i sum = _mm256_setzero_si256();
    UNROLL
    for (int u = 0; u < 4; u++)
        sum = widen(widen(sum, even[u], broadcast(at + 8 * u)), odd[u], broadcast(at + 8 * u + 4));
    return sum;
}

/* Byte b of each lane to the place to of both 16-bit halves. */
INLINE __m256i byte_to_halves(__m256i v, int b, bool upper)
{
    const __m256i lanes = _mm256_broadcastsi128_si256(upper ? _mm_setr_epi32(0, 0x04000400, 0x08000800, 0x0c000c00)
                                                            : _mm_setr_epi32(0, 0x00040004, 0x00080008, 0x000c000c));
    const uint32_t twice = (uint32_t)b << 16 | (uint32_t)b,
                   pattern = upper ? twice << 8 | 0x00800080u : twice | 0x80008000u;
    return _mm256_shuffle_epi8(v, _mm256_add_epi8(_mm256_set1_epi32((int)pattern), lanes));
}

/* The 2-bit numbers 32 s to 32 s + 31 of 128, from a unit. */
INLINE __m256i two_bits(__m256i v, int s)
{
    return _mm256_and_si256(_mm256_srli_epi32(v, 2 * s), _mm256_set1_epi8(3));
}

INLINE void mm_q2_k(float *dst, size_t dst_stride, const uint8_t *w, const uint8_t *a, int64_t k, const part p)
{
    __m256 acc[HALVES][SUMS];
    clear(acc, p);
    for (int64_t i = k / 256; i > 0; i--, w += 1344, a += p.tile * PL_ACT_Q8K_BYTES) {
        UNROLL
        for (int h = 0; h < p.halves; h++) {
            const uint8_t *at = w + 32 * (p.half0 + h);
            __m256i total[SUMS], even[4], odd[4];
            UNROLL
            for (int t = 0; t < p.tokens; t++) total[t] = _mm256_setzero_si256();
            for (int part_of = 0; part_of < 4; part_of++) { /* 16 of each 32 columns of one half of the block */
                const int upper = part_of / 2, from = part_of % 2;
                const uint8_t *q = at + 320 + 512 * upper + 256 * from;
                UNROLL
                for (int s = 0; s < 4; s++) {
                    const __m256i of4 = low_nibbles(load(at + 64 + 128 * upper + 64 * (s / 2)));
                    const __m256i sc =
                        byte_to_halves(_mm256_srl_epi32(of4, _mm_cvtsi32_si128(8 * from)), 2 * (s % 2), false);
                    __m256i sum[SUMS];
                    UNROLL
                    for (int t = 0; t < p.tokens; t++) sum[t] = _mm256_setzero_si256();
                    UNROLL
                    for (int j = 0; j < 4; j++) {
                        __m256i v = two_bits(load(q + 64 * j), s);
                        UNROLL
                        for (int t = 0; t < p.tokens; t++)
                            sum[t] = dot_pairs(
                                sum[t], v, broadcast(a + 256 * (p.t0 + t) + 128 * upper + 32 * s + 16 * from + 4 * j));
                    }
                    UNROLL
                    for (int t = 0; t < p.tokens; t++) total[t] = widen(total[t], sum[t], sc);
                }
            }
            UNROLL
            for (int u = 0; u < 4; u++) {
                __m256i m = high_nibbles(load(at + 64 + 64 * u));
                even[u] = _mm256_and_si256(m, _mm256_set1_epi16(255));
                odd[u] = _mm256_srli_epi16(m, 8);
            }
            __m256 d = load_f16(w + 16 * (p.half0 + h)), dmin = load_f16(w + 32 + 16 * (p.half0 + h));
            UNROLL
            for (int t = 0; t < p.tokens; t++) {
                __m256 dx = broadcast_f32(a + 256 * p.tile + 4 * (p.t0 + t));
                pairs sums = sums_of_16(a + 260 * p.tile + 64 * (p.t0 + t));
                __m256i min = _mm256_sub_epi32(_mm256_setzero_si256(), dot_scales(even, odd, &sums));
                acc[h][t] = add_scaled(acc[h][t], d, dx, total[t]);
                acc[h][t] = _mm256_sub_ps(acc[h][t], _mm256_mul_ps(_mm256_mul_ps(dmin, dx), _mm256_cvtepi32_ps(min)));
            }
        }
    }
    store(dst, dst_stride, acc, p);
}

/* The bits are taken as 0 to 7; 4 times the scales' product with the activation's sums comes off. */
INLINE void mm_q3_k(float *dst, size_t dst_stride, const uint8_t *w, const uint8_t *a, int64_t k, const part p)
{
    __m256 acc[HALVES][SUMS];
    clear(acc, p);
    for (int64_t i = k / 256; i > 0; i--, w += 1760, a += p.tile * PL_ACT_Q8K_BYTES) {
        UNROLL
        for (int h = 0; h < p.halves; h++) {
            const uint8_t *at = w + 32 * (p.half0 + h);
            __m256i sc[4], even[4], odd[4], total[SUMS];
            {
                __m256i s0 = load(at + 32), s1 = load(at + 96), s2 = load(at + 160), of_32 = _mm256_set1_epi8(32);
                sc[0] = _mm256_sub_epi8(or_masked(low_nibbles(s0), _mm256_slli_epi32(s2, 4), 48), of_32);
                sc[1] = _mm256_sub_epi8(or_masked(low_nibbles(s1), _mm256_slli_epi32(s2, 2), 48), of_32);
                sc[2] = _mm256_sub_epi8(or_masked(high_nibbles(s0), s2, 48), of_32);
                sc[3] = _mm256_sub_epi8(or_masked(high_nibbles(s1), _mm256_srli_epi32(s2, 2), 48), of_32);
            }
            UNROLL
            for (int u = 0; u < 4; u++) {
                even[u] = _mm256_srai_epi16(_mm256_slli_epi16(sc[u], 8), 8);
                odd[u] = _mm256_srai_epi16(sc[u], 8);
            }
            UNROLL
            for (int t = 0; t < p.tokens; t++) {
                pairs sums = sums_of_16(a + 260 * p.tile + 64 * (p.t0 + t));
                total[t] = _mm256_slli_epi32(dot_scales(even, odd, &sums), 2);
            }
            for (int part_of = 0; part_of < 4; part_of++) { /* 16 of each 32 columns of one half of the block */
                const int upper = part_of / 2, from = part_of % 2;
                const uint8_t *q = at + 736 + 512 * upper + 256 * from, *third = at + 224 + 256 * from;
                const __m128i shift = _mm_cvtsi32_si128(4 * upper), byte = _mm_cvtsi32_si128(8 * from);
                UNROLL
                for (int s = 0; s < 4; s++) {
                    const __m256i of4 = _mm256_srl_epi32(sc[2 * upper + s / 2], byte);
                    const __m256i scale = _mm256_srai_epi16(byte_to_halves(of4, 2 * (s % 2), true), 8);
                    __m256i sum[SUMS];
                    UNROLL
                    for (int t = 0; t < p.tokens; t++) sum[t] = _mm256_setzero_si256();
                    UNROLL
                    for (int j = 0; j < 4; j++) {
                        __m256i high = _mm256_srl_epi32(load(third + 64 * j), shift);
                        __m256i v = or_masked(two_bits(load(q + 64 * j), s), move_bit(high, s, 2), 4);
                        UNROLL
                        for (int t = 0; t < p.tokens; t++)
                            sum[t] = dot_pairs(
                                sum[t], v, broadcast(a + 256 * (p.t0 + t) + 128 * upper + 32 * s + 16 * from + 4 * j));
                    }
                    UNROLL
                    for (int t = 0; t < p.tokens; t++) total[t] = widen(total[t], sum[t], scale);
                }
            }
            __m256 d = load_f16(w + 16 * (p.half0 + h));
            UNROLL
            for (int t = 0; t < p.tokens; t++)
                acc[h][t] = add_scaled(acc[h][t], d, broadcast_f32(a + 256 * p.tile + 4 * (p.t0 + t)), total[t]);
        }
    }
    store(dst, dst_stride, acc, p);
}

INLINE void mm_iq4_xs(float *dst, size_t dst_stride, const uint8_t *w, const uint8_t *a, int64_t k, const part p)
{
    const __m256i table = table_of(pl_iq4_levels, 0);
    __m256 acc[HALVES][SUMS];
    clear(acc, p);
    for (int64_t i = k / 256; i > 0; i--, w += 2176, a += p.tile * PL_ACT_Q8K_BYTES) {
        UNROLL
        for (int h = 0; h < p.halves; h++) {
            const int half = p.half0 + h;
            const uint8_t *at = w + 32 * half;
            __m256i upper = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(w + 32 + 16 * half)));
            __m256i lower = load(at + 64), total[SUMS];
            UNROLL
            for (int t = 0; t < p.tokens; t++) total[t] = _mm256_setzero_si256();
            for (int s = 0; s < 8; s++) {
                __m256i l = _mm256_and_si256(_mm256_srl_epi32(lower, _mm_cvtsi32_si128(4 * s)), _mm256_set1_epi32(15));
                __m256i u = _mm256_and_si256(_mm256_srl_epi32(upper, _mm_cvtsi32_si128(2 * s)), _mm256_set1_epi32(3));
                __m256i sc = _mm256_sub_epi32(_mm256_or_si256(l, _mm256_slli_epi32(u, 4)), _mm256_set1_epi32(32));
                sc = _mm256_blend_epi16(sc, _mm256_slli_epi32(sc, 16), 0xaa);
                UNROLL
                for (int j = 0; j < 4; j++) {
                    __m256i v = load(at + 128 + 256 * s + 64 * j);
                    __m256i v0 = _mm256_shuffle_epi8(table, low_nibbles(v)), size0 = _mm256_abs_epi8(v0);
                    __m256i v1 = _mm256_shuffle_epi8(table, high_nibbles(v)), size1 = _mm256_abs_epi8(v1);
                    UNROLL
                    for (int t = 0; t < p.tokens; t++) {
                        const uint8_t *x = a + 256 * (p.t0 + t) + 32 * s + 4 * j;
                        total[t] = dot_signed(total[t], size0, v0, broadcast(x), sc);
                        total[t] = dot_signed(total[t], size1, v1, broadcast(x + 16), sc);
                    }
                }
            }
            __m256 d = load_f16(w + 16 * half);
            UNROLL
            for (int t = 0; t < p.tokens; t++)
                acc[h][t] = add_scaled(acc[h][t], d, broadcast_f32(a + 256 * p.tile + 4 * (p.t0 + t)), total[t]);
        }
    }
    store(dst, dst_stride, acc, p);
}

/* --- Blocks of 256 with one scale. --- */

typedef enum code256 { TQ1_0, TQ2_0, Q8_K } code256;

typedef struct format256 {
    code256 code;
    int bytes; /* of a packed block of 16 rows */
} format256;

/* The upper digit in base 3 of each byte, which is a fraction. */
INLINE __m256i digit(__m256i v)
{
    __m256i one_up = _mm256_cmpeq_epi8(_mm256_max_epu8(v, _mm256_set1_epi8(86)), v);
    __m256i two_up = _mm256_cmpeq_epi8(_mm256_max_epu8(v, _mm256_set1_epi8((char)171)), v);
    return _mm256_sub_epi8(_mm256_setzero_si256(), _mm256_add_epi8(one_up, two_up));
}

/* Adds the products of unit v, whose digits are columns at x and step further on each. */
INLINE void add_digits(__m256i *sum, __m256i v, const uint8_t *x, int step, const int digits, const int tokens)
{
    UNROLL
    for (int m = 0; m < digits; m++) {
        __m256i d = digit(v);
        UNROLL
        for (int t = 0; t < tokens; t++) sum[t] = dot_pairs(sum[t], d, broadcast(x + 256 * t + step * m));
        v = _mm256_add_epi8(v, _mm256_add_epi8(v, v));
    }
}

INLINE void mm256(float *dst, size_t dst_stride, const uint8_t *w, const uint8_t *a, int64_t k, const part p,
                  const format256 f)
{
    const __m256i one = _mm256_set1_epi16(1), minus = _mm256_set1_epi16(-1);
    __m256 acc[HALVES][SUMS];
    clear(acc, p);
    for (int64_t i = k / 256; i > 0; i--, w += f.bytes, a += p.tile * PL_ACT_Q8K_BYTES) {
        const uint8_t *x = a + 256 * p.t0;
        UNROLL
        for (int h = 0; h < p.halves; h++) {
            const uint8_t *at = w + 32 * (p.half0 + h);
            __m256i total[SUMS], sum[SUMS];
            UNROLL
            for (int t = 0; t < p.tokens; t++) {
                total[t] = sum[t] = _mm256_setzero_si256();
                const uint8_t *b = a + 324 * p.tile + 16 * (p.t0 + t);
                if (f.code == Q8_K) continue;
                UNROLL
                for (int u = 0; u < 4; u++) total[t] = widen(total[t], minus, broadcast(b + 4 * u));
            }
            if (f.code == TQ1_0) {
                for (int j = 0; j < 8; j++) add_digits(sum, load(at + 32 + 64 * j), x + 4 * j, 32, 5, p.tokens);
                for (int j = 0; j < 4; j++) add_digits(sum, load(at + 544 + 64 * j), x + 160 + 4 * j, 16, 5, p.tokens);
                add_digits(sum, load(at + 800), x + 240, 4, 4, p.tokens);
            }
            if (f.code == TQ2_0) {
                for (int j = 0; j < 16; j++) {
                    __m256i v = load(at + 32 + 64 * j);
                    UNROLL
                    for (int s = 0; s < 4; s++) {
                        UNROLL
                        for (int t = 0; t < p.tokens; t++)
                            sum[t] = dot_pairs(sum[t], two_bits(v, s),
                                               broadcast(x + 256 * t + 128 * (j / 8) + 32 * s + 4 * (j % 8)));
                    }
                    if (j != 7) continue;
                    UNROLL
                    for (int t = 0; t < p.tokens; t++) { /* a whole block could leave 16 bits */
                        total[t] = widen(total[t], sum[t], one);
                        sum[t] = _mm256_setzero_si256();
                    }
                }
            }
            if (f.code == Q8_K) {
                for (int j = 0; j < 64; j++) {
                    __m256i v = _mm256_xor_si256(load(at + 576 + 64 * j), _mm256_set1_epi8(-128));
                    __m256i size = _mm256_abs_epi8(v);
                    UNROLL
                    for (int t = 0; t < p.tokens; t++)
                        total[t] = dot_signed(total[t], size, v, broadcast(x + 256 * t + 4 * j), one);
                }
            }
            __m256 d =
                f.code == Q8_K ? _mm256_loadu_ps((const float *)(const void *)at) : load_f16(w + 16 * (p.half0 + h));
            UNROLL
            for (int t = 0; t < p.tokens; t++)
                acc[h][t] = add_scaled(acc[h][t], d, broadcast_f32(a + 256 * p.tile + 4 * (p.t0 + t)),
                                       widen(total[t], sum[t], one));
        }
    }
    store(dst, dst_stride, acc, p);
}

static const format32 iq4_nl = {.code = IQ4_NL, .columns = 32, .bytes = 288, .field = 32};
static const format32 mxfp4 = {.code = MXFP4, .columns = 32, .bytes = 272, .field = 16};
static const format32 q1_0 = {.code = Q1_0, .columns = 128, .bytes = 288, .field = 32};
static const format32 q2_0 = {.code = Q2_0, .columns = 64, .bytes = 288, .field = 32};
static const format32 q8_1 = {.code = Q8_1, .columns = 32, .bytes = 576, .field = 64};
static const format256 tq1_0 = {.code = TQ1_0, .bytes = 864};
static const format256 tq2_0 = {.code = TQ2_0, .bytes = 1056};
static const format256 q8_k = {.code = Q8_K, .bytes = 4672};

QUANTIZED(mm_iq4_nl, k / 32 * 288, mm32, iq4_nl)
QUANTIZED(mm_mxfp4, k / 32 * 272, mm32, mxfp4)
QUANTIZED(mm_q1_0, k / 128 * 288, mm32, q1_0)
QUANTIZED(mm_q2_0, k / 64 * 288, mm32, q2_0)
QUANTIZED(mm_q8_1, k / 32 * 576, mm32, q8_1)
QUANTIZED(mm_nvfp4_any, k / 64 * 576, mm_nvfp4)
QUANTIZED(mm_q2k, k / 256 * 1344, mm_q2_k)
QUANTIZED(mm_q3k, k / 256 * 1760, mm_q3_k)
QUANTIZED(mm_iq4xs, k / 256 * 2176, mm_iq4_xs)
QUANTIZED(mm_tq1_0, k / 256 * 864, mm256, tq1_0)
QUANTIZED(mm_tq2_0, k / 256 * 1056, mm256, tq2_0)
QUANTIZED(mm_q8k, k / 256 * 4672, mm256, q8_k)

void pl_cpu_mm_small_avx2(pl_cpu_kernels *k)
{
    k->mm[PL_TYPE_IQ4_NL] = mm_iq4_nl;
    k->mm[PL_TYPE_MXFP4] = mm_mxfp4;
    k->mm[PL_TYPE_NVFP4] = mm_nvfp4_any;
    k->mm[PL_TYPE_Q1_0] = mm_q1_0;
    k->mm[PL_TYPE_Q2_0] = mm_q2_0;
    k->mm[PL_TYPE_Q8_1] = mm_q8_1;
    k->mm[PL_TYPE_Q2_K] = mm_q2k;
    k->mm[PL_TYPE_Q3_K] = mm_q3k;
    k->mm[PL_TYPE_IQ4_XS] = mm_iq4xs;
    k->mm[PL_TYPE_TQ1_0] = mm_tq1_0;
    k->mm[PL_TYPE_TQ2_0] = mm_tq2_0;
    k->mm[PL_TYPE_Q8_K] = mm_q8k;
}
