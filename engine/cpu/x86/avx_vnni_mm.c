/* Quantized products with the instruction that multiplies and adds four bytes per lane, on 256 bits, as processors without
 * AVX-512 have it. The same file compiled for AVX-512 VL and VNNI has the same instruction in its other encoding: so it is tested
 * where only that one is there. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define LANES         8
#define L_BYTES_SHIFT 4
#define INLINE        static inline __attribute__((always_inline))

typedef __m256i vi;
typedef __m256 vf;

INLINE vi l_load(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)(const void *)p); }
INLINE vi l_zero(void) { return _mm256_setzero_si256(); }
INLINE vi l_set1(int32_t v) { return _mm256_set1_epi32(v); }
INLINE vi l_set1_8(int v) { return _mm256_set1_epi8((char)v); }
INLINE vi l_broadcast(const uint8_t *p)
{
    int32_t v;
    memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
}
INLINE vi l_and(vi a, vi b) { return _mm256_and_si256(a, b); }
INLINE vi l_or(vi a, vi b) { return _mm256_or_si256(a, b); }
INLINE vi l_shl(vi a, int n) { return _mm256_slli_epi32(a, n); }
INLINE vi l_shr(vi a, int n) { return _mm256_srli_epi32(a, n); }
INLINE vi l_sar(vi a, int n) { return _mm256_srai_epi32(a, n); }
INLINE vi l_add(vi a, vi b) { return _mm256_add_epi32(a, b); }
INLINE vi l_mul(vi a, vi b) { return _mm256_mullo_epi32(a, b); }
#if defined(__AVXVNNI__)
INLINE vi l_dot(vi acc, vi w, vi x) { return _mm256_dpbusd_avx_epi32(acc, w, x); }
#define INSTALL pl_cpu_mm_avx_vnni
#else
INLINE vi l_dot(vi acc, vi w, vi x) { return _mm256_dpbusd_epi32(acc, w, x); }
#define INSTALL pl_cpu_mm_avx_vnni_in_avx512
#endif
INLINE vi l_dot_bytes(vi acc, vi w, vi x) { return l_dot(acc, w, x); }
INLINE void l_fstore(float *p, vf a) { _mm256_storeu_ps(p, a); }
INLINE vf l_fset1(float f) { return _mm256_set1_ps(f); }
INLINE vf l_fadd(vf a, vf b) { return _mm256_add_ps(a, b); }
INLINE vf l_fsub(vf a, vf b) { return _mm256_sub_ps(a, b); }
INLINE vf l_fmul(vf a, vf b) { return _mm256_mul_ps(a, b); }
INLINE vf l_float(vi a) { return _mm256_cvtepi32_ps(a); }
INLINE vf l_load_f16(const uint8_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p)); }

#include "engine/cpu/mm_lanes_impl.h"

void INSTALL(pl_cpu_kernels *k)
{
    install_quantized(k);
}
