/* Products of bytes are added in pairs to 16 bits, which 63 * 127 * 2 and 128 * 127 * 2 do not overflow, and those in pairs to 32. */
#include "engine/cpu/lanes_quads_impl.h"

#define L_BYTES_SHIFT (-1)

INLINE vi l_dot(vi acc, vi w, vi x) { return _mm_add_epi32(acc, _mm_madd_epi16(_mm_maddubs_epi16(w, x), _mm_set1_epi16(1))); }
/* |w| times x with the sign of w. */
INLINE vi l_dot_bytes(vi acc, vi w, vi x)
{
    w = _mm_xor_si128(w, _mm_set1_epi8(-128));
    return l_dot(acc, _mm_abs_epi8(w), _mm_sign_epi8(x, w));
}

#include "engine/cpu/mm_lanes_impl.h"

void pl_cpu_mm_sse42(pl_cpu_kernels *k)
{
    install_quantized(k);
    install_floats(k);
}
