/* The CPU behind the backend vtable.
 *
 * Threads: as backend.h says. The pool is borrowed for the backend's life. */
#pragma once

#include "engine/base/pool.h"
#include "engine/graph/backend.h"

PL_MUST_CHECK pl_status pl_cpu_backend_new(pl_backend **out, pl_pool *pool, pl_error *err);

/* What this machine does at most with the threads of a pool: a plain sum over memory, and products of Q8_0 from the first-level
 * cache. */
typedef struct pl_cpu_peak {
    double read_bytes_s, macs_s;
    char how[64]; /* "2 threads, avx2" */
} pl_cpu_peak;
PL_MUST_CHECK pl_status pl_cpu_peaks(pl_cpu_peak *out, pl_pool *pool, pl_error *err);

/* The instruction set chosen at run time: what the processor and the system support, lowered by PACELINE_ISA
 * ("portable", "avx2", "avx512", "avx512vnni", "avx512vbmi"). An unknown word in it is PL_ERR_INVALID at pl_cpu_backend_new. */
const char *pl_cpu_isa_name(void);
