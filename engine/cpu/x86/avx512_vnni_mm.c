/* Quantized products with the instruction that multiplies and adds four bytes per lane. */
#include "engine/cpu/x86/avx512_mm_impl.h"

void pl_cpu_mm_avx512_vnni(pl_cpu_kernels *k)
{
    install_quantized(k);
}
