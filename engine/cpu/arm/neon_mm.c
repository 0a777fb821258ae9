/* What every 64-bit Arm has. Products of bytes fill 16 bits, their sums in pairs still fit (128 * 127 * 2), and go on to 32. */
#include "engine/cpu/lanes_quads_impl.h"

#define L_BYTES_SHIFT (-1)

INLINE vi l_dot(vi acc, vi w, vi x)
{
    int8x16_t a = vreinterpretq_s8_s32(w), b = vreinterpretq_s8_s32(x);
    int16x8_t low = vmull_s8(vget_low_s8(a), vget_low_s8(b)), high = vmull_high_s8(a, b);
    return vpadalq_s16(acc, vpaddq_s16(low, high));
}
INLINE vi l_dot_bytes(vi acc, vi w, vi x) { return l_dot(acc, l_xor(w, l_set1_8(-128)), x); }

#include "engine/cpu/mm_lanes_impl.h"

void pl_cpu_mm_neon(pl_cpu_kernels *k)
{
    install_quantized(k);
    install_floats(k);
}
