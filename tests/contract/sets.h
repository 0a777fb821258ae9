/* The instruction sets of this machine, for suites that run over all of them; and bit comparison of floats. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "engine/cpu/isa.h"

/* The i-th level, portable first, as flags and as PACELINE_ISA says it; false when the machine does not have it. */
static inline bool set_at(int i, pl_isa *isa, const char **word)
{
    static const struct {
        unsigned flags;
        const char *word;
    } levels[] = {{0, "portable"}, {1, "avx2"}, {3, "avx512"}, {7, "avx512vnni"}, {15, "avx512vbmi"}};
    if (i >= (int)(sizeof levels / sizeof levels[0]) || (pl_isa_detect() & levels[i].flags) != levels[i].flags) return false;
    *isa = (pl_isa)levels[i].flags;
    *word = levels[i].word;
    return true;
}

/* The same bits, or NaN in both: which NaN it is, is nobody's promise. Gives the first place that differs, or -1. */
static inline int64_t first_difference(const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0 && (a[i] == a[i] || b[i] == b[i])) return i;
    return -1;
}
