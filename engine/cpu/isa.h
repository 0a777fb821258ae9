/* Which instruction sets may be used: what the processor has and the system saves on a switch of threads.
 *
 * Threads: every function may be called from any thread. */
#pragma once

#include "engine/base/status.h"

/* Flags; each set includes those before it. */
typedef enum pl_isa {
    PL_ISA_PORTABLE = 0,
    PL_ISA_AVX2 = 1,        /* AVX2, FMA, F16C */
    PL_ISA_AVX512 = 2,      /* AVX-512 F, BW, VL, DQ */
    PL_ISA_AVX512_VNNI = 4, /* AVX-512 VNNI */
    PL_ISA_AVX512_VBMI = 8, /* AVX-512 VBMI */
} pl_isa;

/* Asks the processor and the system. */
pl_isa pl_isa_detect(void);

/* What PACELINE_ISA leaves of pl_isa_detect: "portable", "avx2", "avx512", "avx512vnni" or "avx512vbmi" is the most
 * that may be used. PL_ERR_INVALID: another word; *out is then what was detected. */
PL_MUST_CHECK pl_status pl_isa_choose(pl_isa *out, pl_error *err);

/* The word for the best set in isa. */
const char *pl_isa_name(pl_isa isa);
