/* The vectors of four rows of mm_lanes_impl.h, but for the products of bytes, which the file that includes this has. Private to
 * engine/cpu. */
#pragma once

#include "engine/cpu/v16_quads_impl.h"

#if defined(__SSE4_2__) || (defined(__aarch64__) && defined(__ARM_NEON))

#define LANES    4
#define L_FLOATS 1
#ifndef INLINE
#define INLINE static inline __attribute__((always_inline))
#endif

typedef v4i vi;
typedef v4 vf;

INLINE vf l_fload(const float *p) { return v4_load(p); }
INLINE void l_fstore(float *p, vf a) { v4_store(p, a); }
INLINE vf l_fset1(float f) { return v4_set1(f); }
INLINE vf l_fadd(vf a, vf b) { return v4_add(a, b); }
INLINE vf l_fsub(vf a, vf b) { return v4_sub(a, b); }
INLINE vf l_fmul(vf a, vf b) { return v4_mul(a, b); }
INLINE vf l_ffma(vf a, vf b, vf c) { return v4_fma(a, b, c); }
INLINE vf l_load_f16(const uint8_t *p) { return v4_load_f16((const uint16_t *)(const void *)p); }
INLINE vf l_load_bf16(const uint8_t *p) { return v4_load_bf16((const uint16_t *)(const void *)p); }

INLINE int32_t l_four_bytes(const uint8_t *p)
{
    int32_t v;
    memcpy(&v, p, 4);
    return v;
}

#if defined(__SSE4_2__)
INLINE vi l_load(const uint8_t *p) { return _mm_loadu_si128((const __m128i *)(const void *)p); }
INLINE vi l_zero(void) { return _mm_setzero_si128(); }
INLINE vi l_set1(int32_t v) { return _mm_set1_epi32(v); }
INLINE vi l_set1_8(int v) { return _mm_set1_epi8((char)v); }
INLINE vi l_and(vi a, vi b) { return _mm_and_si128(a, b); }
INLINE vi l_or(vi a, vi b) { return _mm_or_si128(a, b); }
INLINE vi l_xor(vi a, vi b) { return _mm_xor_si128(a, b); }
INLINE vi l_shl(vi a, int n) { return _mm_slli_epi32(a, n); }
INLINE vi l_shr(vi a, int n) { return _mm_srli_epi32(a, n); }
INLINE vi l_sar(vi a, int n) { return _mm_srai_epi32(a, n); }
INLINE vi l_add(vi a, vi b) { return _mm_add_epi32(a, b); }
INLINE vi l_mul(vi a, vi b) { return _mm_mullo_epi32(a, b); }
INLINE vf l_float(vi a) { return _mm_cvtepi32_ps(a); }
#else
INLINE vi l_load(const uint8_t *p) { return vreinterpretq_s32_u8(vld1q_u8(p)); }
INLINE vi l_zero(void) { return vdupq_n_s32(0); }
INLINE vi l_set1(int32_t v) { return vdupq_n_s32(v); }
INLINE vi l_set1_8(int v) { return vreinterpretq_s32_s8(vdupq_n_s8((int8_t)v)); }
INLINE vi l_and(vi a, vi b) { return vandq_s32(a, b); }
INLINE vi l_or(vi a, vi b) { return vorrq_s32(a, b); }
INLINE vi l_xor(vi a, vi b) { return veorq_s32(a, b); }
INLINE vi l_shl(vi a, int n) { return vshlq_s32(a, vdupq_n_s32(n)); }
INLINE vi l_shr(vi a, int n) { return vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a), vdupq_n_s32(-n))); }
INLINE vi l_sar(vi a, int n) { return vshlq_s32(a, vdupq_n_s32(-n)); }
INLINE vi l_add(vi a, vi b) { return vaddq_s32(a, b); }
INLINE vi l_mul(vi a, vi b) { return vmulq_s32(a, b); }
INLINE vf l_float(vi a) { return vcvtq_f32_s32(a); }
#endif

INLINE vi l_broadcast(const uint8_t *p) { return l_set1(l_four_bytes(p)); }

#endif
