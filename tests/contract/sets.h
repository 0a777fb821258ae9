/* The instruction sets of this machine, for suites that run over all of them; and bit comparison of floats. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "engine/cpu/isa.h"

/* The i-th level that this machine has, portable first, as flags and as PACELINE_ISA says it; false when there are no more. */
static inline bool set_at(int i, pl_isa *isa, const char **word)
{
    for (int level = 0; pl_isa_level(level, isa, word); level++)
        if ((pl_isa_detect() & *isa) == *isa && i-- == 0) return true;
    return false;
}

/* The word of the most that this machine has. */
static inline const char *best_set(void)
{
    return pl_isa_name(pl_isa_detect());
}

/* The same bits, or NaN in both: which NaN it is, is nobody's promise. Gives the first place that differs, or -1. */
static inline int64_t first_difference(const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0 && (a[i] == a[i] || b[i] == b[i])) return i;
    return -1;
}
