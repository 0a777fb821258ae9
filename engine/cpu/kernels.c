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
#if defined(__aarch64__)
    if (isa & PL_ISA_NEON) {
        pl_cpu_ops_neon(k);
        pl_cpu_mm_neon(k);
    }
    if (isa & PL_ISA_DOTPROD) pl_cpu_mm_neon_dotprod(k);
#endif
#if defined(__x86_64__)
    if (isa & PL_ISA_SSE42) {
        pl_cpu_ops_sse42(k);
        pl_cpu_mm_sse42(k);
    }
    if (isa & PL_ISA_AVX2) {
        pl_cpu_ops_avx2(k);
        pl_cpu_mm_avx2(k);
        pl_cpu_mm_small_avx2(k);
        pl_cpu_mm_iq_avx2(k);
    }
    if (isa & PL_ISA_AVX_VNNI) pl_cpu_mm_avx_vnni(k);
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
