#include "engine/cpu/kernels.h"

#include <string.h>

void pl_cpu_kernels_choose(pl_cpu_kernels *k, pl_isa isa)
{
    memset(k, 0, sizeof *k);
    k->isa = isa;
    pl_cpu_ops_portable(k);
    pl_cpu_mm_portable(k);
    pl_cpu_mm_small_portable(k);
    pl_cpu_mm_iq_portable(k);
#if defined(__x86_64__)
    if (isa & PL_ISA_AVX2) {
        pl_cpu_ops_avx2(k);
        pl_cpu_mm_avx2(k);
    }
    if (isa & PL_ISA_AVX512) {
        pl_cpu_ops_avx512(k);
        pl_cpu_mm_avx512(k);
        pl_cpu_mm_small_avx512(k);
    }
    if (isa & PL_ISA_AVX512_VNNI) {
        pl_cpu_mm_avx512_vnni(k);
        pl_cpu_mm_small_avx512_vnni(k);
    }
    if (isa & PL_ISA_AVX512_VBMI) pl_cpu_mm_iq_avx512_vbmi(k);
#endif
}
