#include "engine/cpu/isa.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/bytes.h"
#include "engine/cpu/cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

enum {
    LEVEL_AVX2 = PL_ISA_SSE42 | PL_ISA_AVX2,
    LEVEL_AVX512 = LEVEL_AVX2 | PL_ISA_AVX512,
    LEVEL_AVX512_VNNI = LEVEL_AVX512 | PL_ISA_AVX512_VNNI
};

static const struct {
    const char *name;
    unsigned flags;
} levels[] = {
    {"portable", PL_ISA_PORTABLE},
#if defined(__aarch64__)
    {"neon", PL_ISA_NEON},
    {"dotprod", PL_ISA_NEON | PL_ISA_DOTPROD},
    {"i8mm", PL_ISA_NEON | PL_ISA_DOTPROD | PL_ISA_I8MM},
#else
    {"sse42", PL_ISA_SSE42},
    {"avx2", LEVEL_AVX2},
    {"avxvnni", LEVEL_AVX2 | PL_ISA_AVX_VNNI},
    {"avx512", LEVEL_AVX512},
    {"avx512vnni", LEVEL_AVX512_VNNI},
    {"avx512vbmi", LEVEL_AVX512_VNNI | PL_ISA_AVX512_VBMI},
#endif
};
enum { N_LEVELS = sizeof levels / sizeof levels[0] };

bool pl_isa_level(int i, pl_isa *flags, const char **word)
{
    if (i < 0 || i >= N_LEVELS) return false;
    *flags = (pl_isa)levels[i].flags;
    *word = levels[i].name;
    return true;
}

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
    const unsigned need_sse = 1u << 9 | 1u << 19 | 1u << 20; /* SSSE3, SSE4.1, SSE4.2 */
    if ((c1 & need_sse) != need_sse) return PL_ISA_PORTABLE;
    const unsigned need1 = 1u << 12 | 1u << 27 | 1u << 28 | 1u << 29; /* FMA, OSXSAVE, AVX, F16C */
    if ((c1 & need1) != need1) return PL_ISA_SSE42;
    uint64_t saved = xgetbv0();
    if ((saved & 6) != 6) return PL_ISA_SSE42; /* XMM, YMM */
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & 1u << 5)) return PL_ISA_SSE42;
    unsigned isa = LEVEL_AVX2, a1, b1, c2, d1;
    if (__get_cpuid_count(7, 1, &a1, &b1, &c2, &d1) && (a1 & 1u << 4)) isa |= PL_ISA_AVX_VNNI;
    const unsigned need512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31; /* F, DQ, BW, VL */
    if ((saved & 0xe0) == 0xe0 && (b & need512) == need512) {           /* mask and ZMM registers */
        isa |= PL_ISA_AVX512;
        if (c & 1u << 11) isa |= PL_ISA_AVX512_VNNI;
        if ((c & 1u << 11) && (c & 1u << 1)) isa |= PL_ISA_AVX512_VBMI;
    }
    return (pl_isa)isa;
}
#elif defined(__aarch64__)
/* Bits as in the kernel's Documentation/arch/arm64/elf_hwcaps.rst. NEON is in every 64-bit Arm that runs Linux. */
pl_isa pl_isa_detect(void)
{
    unsigned isa = PL_ISA_NEON;
    if (getauxval(AT_HWCAP) & 1ul << 20) isa |= PL_ISA_DOTPROD;
    if ((isa & PL_ISA_DOTPROD) && (getauxval(AT_HWCAP2) & 1ul << 13)) isa |= PL_ISA_I8MM;
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
    char known[128] = "";
    size_t n = 0;
    for (int i = 0; i < N_LEVELS && n < sizeof known; i++)
        n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "", levels[i].name);
    return pl_fail(err, PL_ERR_INVALID, "PACELINE_ISA=%.40s: not one of %s", word, known);
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
