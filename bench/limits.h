/* What the machine can do at most: bytes read per second, and operations per second (two per multiply and add) on
 * registers.
 *
 * Reading is a sum over an array beyond the last-level cache, in one stream or in four, whichever is faster. Operations
 * are a loop of the widest multiply-and-add of bytes, one of floats and one of bfloat16 pairs that the machine has; 0
 * where it has none. Each figure is the best of all measurements so far, because other work on the machine only slows
 * down.
 *
 * Threads: one thread at a time; the loops run on the given pool. */
#pragma once

#include "engine/base/pool.h"
#include "engine/cpu/isa.h"

enum { PL_LIMITS_THREADS_MAX = 256 };

typedef struct pl_limits {
    double read_bytes_s, byte_ops_s, float_ops_s, bf16_ops_s; /* the best since init or forget */

    pl_pool *pool;
    const uint64_t *array;
    size_t bytes;
    int n_measured;
    const struct pl_limit_loops *loops;
    double done[PL_LIMITS_THREADS_MAX];
} pl_limits;

/* pool has at most PL_LIMITS_THREADS_MAX threads; it and the array are borrowed. */
void pl_limits_init(pl_limits *l, pl_pool *pool, pl_isa isa, const void *array, size_t bytes);

/* One short run of each loop. */
void pl_limits_measure(pl_limits *l);
/* Begins anew: the limits of a machine that is shared move. */
void pl_limits_forget(pl_limits *l);

/* Seconds that fn takes on the pool. One thread is timed by its own processor time, several by the clock on the wall.
 */
double pl_limits_time(pl_pool *pool, void (*fn)(pl_team *, int, int, void *), void *user);
