/* Sixteen floats as four vectors of four: SSE4.2 and NEON. Private to engine/cpu; see v16_impl.h.
 *
 * What differs between the two are the functions on one vector, v4_*; the rest is the same for both. SSE4.2 has no fused
 * multiply-add, so it is made in double: a product of two floats is exact there, and so is the sum with c once it is rounded to
 * odd, which keeps what the second rounding, to float, has to know (Boldo and Melquiond 2008). */
#pragma once

#if defined(__SSE4_2__) || (defined(__aarch64__) && defined(__ARM_NEON))

#include <stdint.h>
#include <string.h>

#include "engine/types/types.h"

#define V16_FN static inline __attribute__((always_inline))

#if defined(__SSE4_2__)
#include <nmmintrin.h>

typedef __m128 v4;
typedef __m128i v4i;

V16_FN v4 v4_set1(float f) { return _mm_set1_ps(f); }
V16_FN v4 v4_load(const float *p) { return _mm_loadu_ps(p); }
V16_FN void v4_store(float *p, v4 a) { _mm_storeu_ps(p, a); }
V16_FN v4 v4_add(v4 a, v4 b) { return _mm_add_ps(a, b); }
V16_FN v4 v4_sub(v4 a, v4 b) { return _mm_sub_ps(a, b); }
V16_FN v4 v4_mul(v4 a, v4 b) { return _mm_mul_ps(a, b); }
V16_FN v4 v4_div(v4 a, v4 b) { return _mm_div_ps(a, b); }
/* In two lanes of double. A sum that is not finite has an error that is not a number, which is neither above nor below 0. */
V16_FN __m128d v4_fma_half(__m128d a, __m128d b, __m128d c)
{
    const __m128d zero = _mm_setzero_pd();
    __m128d p = _mm_mul_pd(a, b), s = _mm_add_pd(p, c), back = _mm_sub_pd(s, p);
    __m128d error = _mm_add_pd(_mm_sub_pd(p, _mm_sub_pd(s, back)), _mm_sub_pd(c, back));
    __m128d above = _mm_cmpgt_pd(error, zero), below = _mm_cmplt_pd(error, zero), negative = _mm_cmplt_pd(s, zero);
    __m128d larger = _mm_or_pd(_mm_andnot_pd(negative, above), _mm_and_pd(negative, below));
    __m128d smaller = _mm_or_pd(_mm_and_pd(negative, above), _mm_andnot_pd(negative, below));
    __m128i bits = _mm_castpd_si128(s), one = _mm_set1_epi64x(1);
    __m128i even = _mm_cmpeq_epi64(_mm_and_si128(bits, one), _mm_setzero_si128());
    __m128i step = _mm_sub_epi64(_mm_castpd_si128(smaller), _mm_castpd_si128(larger)); /* masks are -1 */
    return _mm_castsi128_pd(_mm_add_epi64(bits, _mm_and_si128(step, even)));
}
V16_FN v4 v4_fma(v4 a, v4 b, v4 c)
{
    __m128d low = v4_fma_half(_mm_cvtps_pd(a), _mm_cvtps_pd(b), _mm_cvtps_pd(c));
    __m128d high = v4_fma_half(_mm_cvtps_pd(_mm_movehl_ps(a, a)), _mm_cvtps_pd(_mm_movehl_ps(b, b)), _mm_cvtps_pd(_mm_movehl_ps(c, c)));
    return _mm_movelh_ps(_mm_cvtpd_ps(low), _mm_cvtpd_ps(high));
}
V16_FN v4 v4_max(v4 a, v4 b) { return _mm_max_ps(a, b); }
V16_FN v4 v4_min(v4 a, v4 b) { return _mm_min_ps(a, b); }
V16_FN v4 v4_neg(v4 a) { return _mm_xor_ps(a, _mm_set1_ps(-0.0f)); }
V16_FN v4 v4_where_less(v4 a, v4 b, v4 yes, v4 no) { return _mm_blendv_ps(no, yes, _mm_cmplt_ps(a, b)); }
V16_FN v4 v4_addsub(v4 a, v4 b) { return _mm_addsub_ps(a, b); }
V16_FN v4 v4_dup_even(v4 a) { return _mm_moveldup_ps(a); }
V16_FN v4 v4_dup_odd(v4 a) { return _mm_movehdup_ps(a); }
V16_FN v4 v4_swap_pairs(v4 a) { return _mm_shuffle_ps(a, a, 0xb1); }
V16_FN v4 v4_evens(v4 a, v4 b) { return _mm_shuffle_ps(a, b, 0x88); }
V16_FN v4 v4_odds(v4 a, v4 b) { return _mm_shuffle_ps(a, b, 0xdd); }
/* Lanes first to first + 3 against n: a in those below. */
V16_FN v4 v4_first(v4 a, v4 b, int n, int first)
{
    return _mm_blendv_ps(b, a, _mm_castsi128_ps(_mm_cmpgt_epi32(_mm_set1_epi32(n - first), _mm_setr_epi32(0, 1, 2, 3))));
}
/* a * 2^n in two factors, as pl_expf does: the first product is exact for the exponents of exp. */
V16_FN v4 v4_scale2(v4 a, v4 nf)
{
    __m128i n = _mm_cvtps_epi32(nf), n1 = _mm_srai_epi32(n, 1), n2 = _mm_sub_epi32(n, n1), bias = _mm_set1_epi32(127);
    a = _mm_mul_ps(a, _mm_castsi128_ps(_mm_slli_epi32(_mm_add_epi32(n1, bias), 23)));
    return _mm_mul_ps(a, _mm_castsi128_ps(_mm_slli_epi32(_mm_add_epi32(n2, bias), 23)));
}
/* Exponent and fraction move to a float's place and are made 2^112 times larger, which makes subnormals normal; infinity and NaN
 * get the exponent that means them. */
V16_FN v4 v4_load_f16(const uint16_t *p)
{
    __m128i h = _mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
    __m128i size = _mm_slli_epi32(_mm_and_si128(h, _mm_set1_epi32(0x7fff)), 13), sign = _mm_slli_epi32(_mm_and_si128(h, _mm_set1_epi32(0x8000)), 16);
    __m128i special = _mm_cmpgt_epi32(size, _mm_set1_epi32((0x7c00 << 13) - 1));
    __m128 v = _mm_mul_ps(_mm_castsi128_ps(size), _mm_set1_ps(0x1p112f));
    v = _mm_or_ps(v, _mm_castsi128_ps(_mm_and_si128(special, _mm_set1_epi32(0x7f800000))));
    return _mm_or_ps(v, _mm_castsi128_ps(sign));
}
V16_FN v4 v4_load_bf16(const uint16_t *p)
{
    return _mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)), 16));
}
V16_FN void v4_store_f16(uint16_t *p, v4 a)
{
    float f[4];
    v4_store(f, a);
    for (int i = 0; i < 4; i++) p[i] = pl_f32_to_f16(f[i]);
}
V16_FN v4 v4_from_i8(const int8_t *p)
{
    int32_t bytes;
    memcpy(&bytes, p, 4);
    return _mm_cvtepi32_ps(_mm_cvtepi8_epi32(_mm_cvtsi32_si128(bytes)));
}
V16_FN v4 v4_pick(v4 a, const int high) { return high ? _mm_movehl_ps(a, a) : a; }

#else
#include <arm_neon.h>

typedef float32x4_t v4;
typedef int32x4_t v4i;

V16_FN v4 v4_set1(float f) { return vdupq_n_f32(f); }
V16_FN v4 v4_load(const float *p) { return vld1q_f32(p); }
V16_FN void v4_store(float *p, v4 a) { vst1q_f32(p, a); }
V16_FN v4 v4_add(v4 a, v4 b) { return vaddq_f32(a, b); }
V16_FN v4 v4_sub(v4 a, v4 b) { return vsubq_f32(a, b); }
V16_FN v4 v4_mul(v4 a, v4 b) { return vmulq_f32(a, b); }
V16_FN v4 v4_div(v4 a, v4 b) { return vdivq_f32(a, b); }
V16_FN v4 v4_fma(v4 a, v4 b, v4 c) { return vfmaq_f32(c, a, b); }
V16_FN v4 v4_max(v4 a, v4 b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
V16_FN v4 v4_min(v4 a, v4 b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
V16_FN v4 v4_neg(v4 a) { return vnegq_f32(a); }
V16_FN v4 v4_where_less(v4 a, v4 b, v4 yes, v4 no) { return vbslq_f32(vcltq_f32(a, b), yes, no); }
V16_FN v4 v4_addsub(v4 a, v4 b)
{
    const uint32x4_t even = {0x80000000u, 0, 0x80000000u, 0};
    return vaddq_f32(a, vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(b), even)));
}
V16_FN v4 v4_dup_even(v4 a) { return vtrn1q_f32(a, a); }
V16_FN v4 v4_dup_odd(v4 a) { return vtrn2q_f32(a, a); }
V16_FN v4 v4_swap_pairs(v4 a) { return vrev64q_f32(a); }
V16_FN v4 v4_evens(v4 a, v4 b) { return vuzp1q_f32(a, b); }
V16_FN v4 v4_odds(v4 a, v4 b) { return vuzp2q_f32(a, b); }
V16_FN v4 v4_first(v4 a, v4 b, int n, int first)
{
    const int32x4_t lane = {0, 1, 2, 3};
    return vbslq_f32(vcltq_s32(lane, vdupq_n_s32(n - first)), a, b);
}
V16_FN v4 v4_scale2(v4 a, v4 nf)
{
    int32x4_t n = vcvtq_s32_f32(nf), n1 = vshrq_n_s32(n, 1), n2 = vsubq_s32(n, n1), bias = vdupq_n_s32(127);
    a = vmulq_f32(a, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n1, bias), 23)));
    return vmulq_f32(a, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n2, bias), 23)));
}
V16_FN v4 v4_load_f16(const uint16_t *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
V16_FN v4 v4_load_bf16(const uint16_t *p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
V16_FN void v4_store_f16(uint16_t *p, v4 a) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a))); }
V16_FN v4 v4_from_i8(const int8_t *p)
{
    int32_t bytes;
    memcpy(&bytes, p, 4);
    int16x8_t wide = vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(bytes)));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
}
V16_FN v4 v4_pick(v4 a, const int high) { return high ? vextq_f32(a, a, 2) : a; }

#endif

typedef struct v16 {
    v4 q[4];
} v16;

#define V16_QUADS(e) ((v16){{e(0), e(1), e(2), e(3)}})
#define V16_UNARY(name)                                                                                                \
    V16_FN v16 v16_##name(v16 a)                                                                                       \
    {                                                                                                                  \
        return (v16){{v4_##name(a.q[0]), v4_##name(a.q[1]), v4_##name(a.q[2]), v4_##name(a.q[3])}};                    \
    }
#define V16_BINARY(name)                                                                                               \
    V16_FN v16 v16_##name(v16 a, v16 b)                                                                                \
    {                                                                                                                  \
        return (v16){{v4_##name(a.q[0], b.q[0]), v4_##name(a.q[1], b.q[1]), v4_##name(a.q[2], b.q[2]),                 \
                      v4_##name(a.q[3], b.q[3])}};                                                                     \
    }

V16_FN v16 v16_set1(float f)
{
    v4 a = v4_set1(f);
    return (v16){{a, a, a, a}};
}
V16_FN v16 v16_zero(void) { return v16_set1(0); }
V16_FN v16 v16_load(const float *p) { return (v16){{v4_load(p), v4_load(p + 4), v4_load(p + 8), v4_load(p + 12)}}; }
V16_FN void v16_store(float *p, v16 a)
{
    for (int i = 0; i < 4; i++) v4_store(p + 4 * i, a.q[i]);
}
V16_FN v16 v16_load_n(const float *p, int n)
{
    if (n == 16) return v16_load(p);
    float all[16] = {0};
    memcpy(all, p, (size_t)n * sizeof *p);
    return v16_load(all);
}
V16_FN void v16_store_n(float *p, v16 a, int n)
{
    float all[16];
    if (n == 16) {
        v16_store(p, a);
        return;
    }
    v16_store(all, a);
    memcpy(p, all, (size_t)n * sizeof *p);
}
V16_FN v16 v16_load_f16(const uint16_t *p)
{
    return (v16){{v4_load_f16(p), v4_load_f16(p + 4), v4_load_f16(p + 8), v4_load_f16(p + 12)}};
}
V16_FN v16 v16_load_f16_n(const uint16_t *p, int n)
{
    uint16_t all[16] = {0};
    memcpy(all, p, (size_t)n * sizeof *p);
    return v16_load_f16(all);
}
V16_FN void v16_store_f16(uint16_t *p, v16 a)
{
    for (int i = 0; i < 4; i++) v4_store_f16(p + 4 * i, a.q[i]);
}
V16_FN void v16_store_f16_n(uint16_t *p, v16 a, int n)
{
    uint16_t all[16];
    v16_store_f16(all, a);
    memcpy(p, all, (size_t)n * sizeof *p);
}
V16_BINARY(add)
V16_BINARY(sub)
V16_BINARY(mul)
V16_BINARY(div)
V16_BINARY(max)
V16_BINARY(min)
V16_BINARY(addsub)
V16_BINARY(scale2)
V16_UNARY(neg)
V16_UNARY(dup_even)
V16_UNARY(dup_odd)
V16_UNARY(swap_pairs)
V16_FN v16 v16_fma(v16 a, v16 b, v16 c)
{
#define V16_ONE(i) v4_fma(a.q[i], b.q[i], c.q[i])
    return V16_QUADS(V16_ONE);
#undef V16_ONE
}
V16_FN v16 v16_where_less(v16 a, v16 b, v16 yes, v16 no)
{
#define V16_ONE(i) v4_where_less(a.q[i], b.q[i], yes.q[i], no.q[i])
    return V16_QUADS(V16_ONE);
#undef V16_ONE
}
V16_FN v16 v16_abs(v16 a) { return v16_where_less(a, v16_zero(), v16_neg(a), a); }
V16_FN void v16_load_pairs(const float *p, v16 *even, v16 *odd)
{
    for (int i = 0; i < 4; i++) {
        v4 a = v4_load(p + 8 * i), b = v4_load(p + 8 * i + 4);
        even->q[i] = v4_evens(a, b);
        odd->q[i] = v4_odds(a, b);
    }
}
V16_FN v16 v16_first(v16 a, v16 b, int n)
{
#define V16_ONE(i) v4_first(a.q[i], b.q[i], n, 4 * (i))
    return V16_QUADS(V16_ONE);
#undef V16_ONE
}
V16_FN v16 v16_load_i8(const void *p)
{
    const int8_t *b = p;
    return (v16){{v4_from_i8(b), v4_from_i8(b + 4), v4_from_i8(b + 8), v4_from_i8(b + 12)}};
}
V16_FN v16 v16_load_nibbles(const void *p, bool high)
{
    const uint8_t *b = p;
    int8_t v[16];
    for (int i = 0; i < 16; i++) v[i] = (int8_t)((high ? b[i] >> 4 : b[i] & 15) - 8);
    return v16_load_i8(v);
}
V16_FN v16 v16_count(void)
{
    static const float count[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return v16_load(count);
}
/* The trees of kernels.h: lanes 8 apart, then 4, 2 and 1. */
V16_FN float v16_sum(v16 a)
{
    float s[4];
    v4 t = v4_add(v4_add(a.q[0], a.q[2]), v4_add(a.q[1], a.q[3]));
    t = v4_add(t, v4_pick(t, 1));
    v4_store(s, t);
    return s[0] + s[1];
}
V16_FN float v16_max_of(v16 a)
{
    float s[4];
    v4 t = v4_max(v4_max(a.q[0], a.q[2]), v4_max(a.q[1], a.q[3]));
    t = v4_max(t, v4_pick(t, 1));
    v4_store(s, t);
    return s[0] > s[1] ? s[0] : s[1];
}

#endif
