#include "engine/cpu/x86/avx512_mm_impl.h"

MM(mm_f32, mm_float, 64 * k, PL_TYPE_F32)
MM(mm_f16, mm_float, 32 * k, PL_TYPE_F16)
MM(mm_bf16, mm_float, 32 * k, PL_TYPE_BF16)

void pl_cpu_mm_avx512(pl_cpu_kernels *k)
{
    install_quantized(k);
    k->mm[PL_TYPE_F32] = mm_f32;
    k->mm[PL_TYPE_F16] = mm_f16;
    k->mm[PL_TYPE_BF16] = mm_bf16;
}
