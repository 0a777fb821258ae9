/* Which instruction sets may be used: what the processor has and the system saves on a switch of threads.
 *
 * Threads: every function may be called from any thread. */
#pragma once

#include <stdbool.h>

#include "engine/base/status.h"

/* Flags. A level (pl_isa_level) is a set of them. */
typedef enum pl_isa {
    PL_ISA_PORTABLE = 0,
    PL_ISA_AVX2 = 1,        /* AVX2, FMA, F16C */
    PL_ISA_AVX512 = 2,      /* AVX-512 F, BW, VL, DQ */
    PL_ISA_AVX512_VNNI = 4, /* AVX-512 VNNI */
    PL_ISA_AVX512_VBMI = 8, /* AVX-512 VBMI */
    PL_ISA_SSE42 = 16,      /* SSE4.2 and what is before it */
    PL_ISA_AVX_VNNI = 32,   /* AVX-VNNI: the 256-bit form of VNNI without AVX-512 */
    PL_ISA_NEON = 64,       /* 64-bit Arm */
    PL_ISA_DOTPROD = 128,   /* FEAT_DotProd */
    PL_ISA_I8MM = 256,      /* FEAT_I8MM */
} pl_isa;

/* Asks the processor and the system. */
pl_isa pl_isa_detect(void);

/* The levels of this architecture, from the least to the most, with their words: "portable", then "sse42", "avx2", "avxvnni",
 * "avx512", "avx512vnni", "avx512vbmi" or "neon", "dotprod", "i8mm". False when there is no i-th one. A machine has a level when
 * it has all its flags. */
bool pl_isa_level(int i, pl_isa *flags, const char **word);

/* What PACELINE_ISA leaves of pl_isa_detect: the word of a level, which is the most that may be used. PL_ERR_INVALID: another word; *out is then what was detected. */
PL_MUST_CHECK pl_status pl_isa_choose(pl_isa *out, pl_error *err);

/* The word for the best set in isa. */
const char *pl_isa_name(pl_isa isa);
