#include "engine/cpu/isa.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/bytes.h"
#include "engine/cpu/cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* From the least to the most: a level is all flags up to it. */
static const struct {
    const char *name;
    unsigned flags;
} levels[] = {
    {"portable", PL_ISA_PORTABLE},
    {"avx2", PL_ISA_AVX2},
    {"avx512", PL_ISA_AVX2 | PL_ISA_AVX512},
    {"avx512vnni", PL_ISA_AVX2 | PL_ISA_AVX512 | PL_ISA_AVX512_VNNI},
    {"avx512vbmi", PL_ISA_AVX2 | PL_ISA_AVX512 | PL_ISA_AVX512_VNNI | PL_ISA_AVX512_VBMI},
};
enum { N_LEVELS = sizeof levels / sizeof levels[0] };

#if defined(__x86_64__)
/* XCR0: which registers the system saves (Intel SDM volume 1, 13.3). */
static uint64_t xgetbv0(void)
{
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

/* Bits as in the Intel SDM, volume 2, CPUID. */
pl_isa pl_isa_detect(void)
{
    unsigned a, b, c, d, c1;
    if (!__get_cpuid(1, &a, &b, &c1, &d)) return PL_ISA_PORTABLE;
    const unsigned need1 = 1u << 12 | 1u << 27 | 1u << 28 | 1u << 29; /* FMA, OSXSAVE, AVX, F16C */
    if ((c1 & need1) != need1) return PL_ISA_PORTABLE;
    uint64_t saved = xgetbv0();
    if ((saved & 6) != 6) return PL_ISA_PORTABLE; /* XMM, YMM */
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & 1u << 5)) return PL_ISA_PORTABLE;
    unsigned isa = PL_ISA_AVX2;
    const unsigned need512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31; /* F, DQ, BW, VL */
    if ((saved & 0xe0) == 0xe0 && (b & need512) == need512) {           /* mask and ZMM registers */
        isa |= PL_ISA_AVX512;
        if (c & 1u << 11) isa |= PL_ISA_AVX512_VNNI;
        if ((c & 1u << 11) && (c & 1u << 1)) isa |= PL_ISA_AVX512_VBMI;
    }
    return (pl_isa)isa;
}
#else
pl_isa pl_isa_detect(void)
{
    return PL_ISA_PORTABLE;
}
#endif

pl_status pl_isa_choose(pl_isa *out, pl_error *err)
{
    *out = pl_isa_detect();
    const char *word = getenv("PACELINE_ISA");
    if (!word || !*word) return PL_OK;
    for (int i = 0; i < N_LEVELS; i++)
        if (strcmp(word, levels[i].name) == 0) {
            *out = (pl_isa)((unsigned)*out & levels[i].flags);
            return PL_OK;
        }
    return pl_fail(err, PL_ERR_INVALID, "PACELINE_ISA=%.40s: not one of portable, avx2, avx512, avx512vnni, avx512vbmi",
                   word);
}

const char *pl_isa_name(pl_isa isa)
{
    const char *name = levels[0].name;
    for (int i = 1; i < N_LEVELS; i++)
        if (((unsigned)isa & levels[i].flags) == levels[i].flags) name = levels[i].name;
    return name;
}

const char *pl_cpu_isa_name(void)
{
    pl_isa isa;
    pl_status s = pl_isa_choose(&isa, NULL);
    (void)s; /* A wrong word is reported by pl_cpu_backend_new; isa is what was detected. */
    return pl_isa_name(isa);
}
