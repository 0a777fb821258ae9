/* Sixteen floats as a ZMM register, or as two YMM registers where the file is compiled for AVX2. Private to engine/cpu; see
 * v16_impl.h. */
#pragma once

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define V16_FN static inline __attribute__((always_inline))

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)

typedef __m512 v16;

V16_FN v16 v16_zero(void) { return _mm512_setzero_ps(); }
V16_FN v16 v16_set1(float f) { return _mm512_set1_ps(f); }
V16_FN v16 v16_load(const float *p) { return _mm512_loadu_ps(p); }
V16_FN void v16_store(float *p, v16 a) { _mm512_storeu_ps(p, a); }
/* The first n lanes, 0 <= n <= 16; zeros behind. Memory behind them is not touched. */
V16_FN v16 v16_load_n(const float *p, int n) { return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p); }
V16_FN void v16_store_n(float *p, v16 a, int n) { _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), a); }
V16_FN v16 v16_load_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
V16_FN v16 v16_load_f16_n(const uint16_t *p, int n)
{
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16((__mmask16)((1u << n) - 1), p));
}
V16_FN void v16_store_f16(uint16_t *p, v16 a)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
V16_FN void v16_store_f16_n(uint16_t *p, v16 a, int n)
{
    _mm256_mask_storeu_epi16(p, (__mmask16)((1u << n) - 1), _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
V16_FN v16 v16_add(v16 a, v16 b) { return _mm512_add_ps(a, b); }
V16_FN v16 v16_sub(v16 a, v16 b) { return _mm512_sub_ps(a, b); }
V16_FN v16 v16_mul(v16 a, v16 b) { return _mm512_mul_ps(a, b); }
V16_FN v16 v16_div(v16 a, v16 b) { return _mm512_div_ps(a, b); }
V16_FN v16 v16_fma(v16 a, v16 b, v16 c) { return _mm512_fmadd_ps(a, b, c); }
/* a > b ? a : b and a < b ? a : b, also for NaN and for zeros of either sign. */
V16_FN v16 v16_max(v16 a, v16 b) { return _mm512_max_ps(a, b); }
V16_FN v16 v16_min(v16 a, v16 b) { return _mm512_min_ps(a, b); }
/* With the other sign; of a NaN too. */
V16_FN v16 v16_neg(v16 a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }
/* a where a is not below 0, else its negative: zeros keep their sign. */
V16_FN v16 v16_abs(v16 a) { return _mm512_mask_xor_ps(a, _mm512_cmp_ps_mask(a, _mm512_setzero_ps(), _CMP_LT_OQ), a, _mm512_set1_ps(-0.0f)); }
/* yes where a < b, else no. */
V16_FN v16 v16_where_less(v16 a, v16 b, v16 yes, v16 no) { return _mm512_mask_mov_ps(no, _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), yes); }
/* a - b in even lanes, a + b in odd ones. */
V16_FN v16 v16_addsub(v16 a, v16 b) { return _mm512_mask_sub_ps(_mm512_add_ps(a, b), 0x5555, a, b); }
V16_FN v16 v16_dup_even(v16 a) { return _mm512_moveldup_ps(a); }
V16_FN v16 v16_dup_odd(v16 a) { return _mm512_movehdup_ps(a); }
V16_FN v16 v16_swap_pairs(v16 a) { return _mm512_permute_ps(a, 0xb1); }
/* The even and the odd elements of the 32 floats at p. */
V16_FN void v16_load_pairs(const float *p, v16 *even, v16 *odd)
{
    const __m512i e = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i o = _mm512_add_epi32(e, _mm512_set1_epi32(1));
    v16 a = v16_load(p), b = v16_load(p + 16);
    *even = _mm512_permutex2var_ps(a, e, b);
    *odd = _mm512_permutex2var_ps(a, o, b);
}
/* a where lane < n, else b. */
V16_FN v16 v16_first(v16 a, v16 b, int n) { return _mm512_mask_mov_ps(b, (__mmask16)((1u << n) - 1), a); }
V16_FN v16 v16_from_i8(__m128i a) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(a)); }
/* 0, 1, … 15 */
V16_FN v16 v16_count(void) { return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }
/* a * 2^n for whole numbers n, rounded once. */
V16_FN v16 v16_scale2(v16 a, v16 n) { return _mm512_scalef_ps(a, n); }
V16_FN __m256 v16_low(v16 a) { return _mm512_castps512_ps256(a); }
V16_FN __m256 v16_high(v16 a) { return _mm512_extractf32x8_ps(a, 1); }

#else

typedef struct v16 {
    __m256 lo, hi;
} v16;

#define V16_EACH(f, a, b) ((v16){f((a).lo, (b).lo), f((a).hi, (b).hi)})

V16_FN v16 v16_zero(void) { return (v16){_mm256_setzero_ps(), _mm256_setzero_ps()}; }
V16_FN v16 v16_set1(float f) { return (v16){_mm256_set1_ps(f), _mm256_set1_ps(f)}; }
V16_FN v16 v16_load(const float *p) { return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
V16_FN void v16_store(float *p, v16 a)
{
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
/* All ones in the lanes below n; lanes count from first. */
V16_FN __m256i v16_mask(int n, int first)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n - first), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
V16_FN v16 v16_load_n(const float *p, int n)
{
    v16 a = {_mm256_maskload_ps(p, v16_mask(n, 0)), _mm256_setzero_ps()};
    if (n > 8) a.hi = _mm256_maskload_ps(p + 8, v16_mask(n, 8));
    return a;
}
V16_FN void v16_store_n(float *p, v16 a, int n)
{
    _mm256_maskstore_ps(p, v16_mask(n, 0), a.lo);
    if (n > 8) _mm256_maskstore_ps(p + 8, v16_mask(n, 8), a.hi);
}
V16_FN v16 v16_load_f16(const uint16_t *p)
{
    return (v16){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8)))};
}
V16_FN v16 v16_load_f16_n(const uint16_t *p, int n)
{
    uint16_t all[16] = {0};
    memcpy(all, p, (size_t)n * sizeof *p);
    return v16_load_f16(all);
}
V16_FN void v16_store_f16(uint16_t *p, v16 a)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
V16_FN void v16_store_f16_n(uint16_t *p, v16 a, int n)
{
    uint16_t all[16];
    v16_store_f16(all, a);
    memcpy(p, all, (size_t)n * sizeof *p);
}
V16_FN v16 v16_add(v16 a, v16 b) { return V16_EACH(_mm256_add_ps, a, b); }
V16_FN v16 v16_sub(v16 a, v16 b) { return V16_EACH(_mm256_sub_ps, a, b); }
V16_FN v16 v16_mul(v16 a, v16 b) { return V16_EACH(_mm256_mul_ps, a, b); }
V16_FN v16 v16_div(v16 a, v16 b) { return V16_EACH(_mm256_div_ps, a, b); }
V16_FN v16 v16_fma(v16 a, v16 b, v16 c)
{
    return (v16){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
V16_FN v16 v16_max(v16 a, v16 b) { return V16_EACH(_mm256_max_ps, a, b); }
V16_FN v16 v16_min(v16 a, v16 b) { return V16_EACH(_mm256_min_ps, a, b); }
V16_FN v16 v16_neg(v16 a) { return V16_EACH(_mm256_xor_ps, a, v16_set1(-0.0f)); }
V16_FN __m256 v16_where_less_half(__m256 a, __m256 b, __m256 yes, __m256 no)
{
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
V16_FN v16 v16_where_less(v16 a, v16 b, v16 yes, v16 no)
{
    return (v16){v16_where_less_half(a.lo, b.lo, yes.lo, no.lo), v16_where_less_half(a.hi, b.hi, yes.hi, no.hi)};
}
V16_FN v16 v16_abs(v16 a) { return v16_where_less(a, v16_zero(), v16_neg(a), a); }
V16_FN v16 v16_addsub(v16 a, v16 b) { return V16_EACH(_mm256_addsub_ps, a, b); }
V16_FN v16 v16_dup_even(v16 a) { return (v16){_mm256_moveldup_ps(a.lo), _mm256_moveldup_ps(a.hi)}; }
V16_FN v16 v16_dup_odd(v16 a) { return (v16){_mm256_movehdup_ps(a.lo), _mm256_movehdup_ps(a.hi)}; }
V16_FN v16 v16_swap_pairs(v16 a) { return (v16){_mm256_permute_ps(a.lo, 0xb1), _mm256_permute_ps(a.hi, 0xb1)}; }
V16_FN __m256 v16_pick(__m256 a, __m256 b, const int odd)
{
    __m256 s = odd ? _mm256_shuffle_ps(a, b, 0xdd) : _mm256_shuffle_ps(a, b, 0x88); /* a0 b0 a1 b1, by pairs */
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(s), 0xd8));
}
V16_FN void v16_load_pairs(const float *p, v16 *even, v16 *odd)
{
    v16 a = v16_load(p), b = v16_load(p + 16);
    *even = (v16){v16_pick(a.lo, a.hi, 0), v16_pick(b.lo, b.hi, 0)};
    *odd = (v16){v16_pick(a.lo, a.hi, 1), v16_pick(b.lo, b.hi, 1)};
}
V16_FN v16 v16_first(v16 a, v16 b, int n)
{
    return (v16){_mm256_blendv_ps(b.lo, a.lo, _mm256_castsi256_ps(v16_mask(n, 0))),
                 _mm256_blendv_ps(b.hi, a.hi, _mm256_castsi256_ps(v16_mask(n, 8)))};
}
V16_FN v16 v16_from_i8(__m128i a)
{
    return (v16){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(a)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(a, 8)))};
}
V16_FN v16 v16_count(void)
{
    return (v16){_mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_ps(8, 9, 10, 11, 12, 13, 14, 15)};
}
/* In two factors, as pl_expf does: the first product is exact for the exponents of exp. */
V16_FN __m256 v16_scale2_half(__m256 a, __m256 nf)
{
    __m256i n = _mm256_cvtps_epi32(nf), n1 = _mm256_srai_epi32(n, 1), n2 = _mm256_sub_epi32(n, n1), bias = _mm256_set1_epi32(127);
    a = _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n1, bias), 23)));
    return _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n2, bias), 23)));
}
V16_FN v16 v16_scale2(v16 a, v16 n) { return V16_EACH(v16_scale2_half, a, n); }
V16_FN __m256 v16_low(v16 a) { return a.lo; }
V16_FN __m256 v16_high(v16 a) { return a.hi; }

#endif

/* 16 signed bytes, and the low or high nibbles of 16 bytes less 8. */
V16_FN v16 v16_load_i8(const void *p) { return v16_from_i8(_mm_loadu_si128((const __m128i *)p)); }
V16_FN v16 v16_load_nibbles(const void *p, bool high)
{
    __m128i b = _mm_loadu_si128((const __m128i *)p);
    if (high) b = _mm_srli_epi16(b, 4);
    return v16_from_i8(_mm_sub_epi8(_mm_and_si128(b, _mm_set1_epi8(15)), _mm_set1_epi8(8)));
}

/* The trees of kernels.h: lanes 8 apart, then 4, 2 and 1. */
V16_FN float v16_sum(v16 a)
{
    __m256 s8 = _mm256_add_ps(v16_low(a), v16_high(a));
    __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}
V16_FN float v16_max_of(v16 a)
{
    __m256 s8 = _mm256_max_ps(v16_low(a), v16_high(a));
    __m128 s4 = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_max_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}

#endif
