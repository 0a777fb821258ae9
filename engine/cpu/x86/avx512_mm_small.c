#include "engine/cpu/x86/avx512_mm_small_impl.h"

void pl_cpu_mm_small_avx512(pl_cpu_kernels *k)
{
    install_small(k);
}
