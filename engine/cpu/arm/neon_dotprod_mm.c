/* Quantized products with the instruction that multiplies and adds four signed bytes per lane. */
#include "engine/cpu/lanes_quads_impl.h"

#undef L_FLOATS
#define L_BYTES_SHIFT (-1)

INLINE vi l_dot(vi acc, vi w, vi x) { return vdotq_s32(acc, vreinterpretq_s8_s32(w), vreinterpretq_s8_s32(x)); }
INLINE vi l_dot_bytes(vi acc, vi w, vi x) { return l_dot(acc, l_xor(w, l_set1_8(-128)), x); }

#include "engine/cpu/mm_lanes_impl.h"

void pl_cpu_mm_neon_dotprod(pl_cpu_kernels *k)
{
    install_quantized(k);
}
