/* A pool of long-lived threads that run one job at a time, all of them together.
 *
 * Waiting is polite: a thread spins for a short while only when every thread of every job in the process can
 * have a processor of its own; then it yields, then it sleeps on a futex. So five pools of two threads on two
 * processors slow down in proportion and do not collapse. Threads: pl_pool_run is called by one thread at a time, which
 * takes part as thread 0. Nested use is refused by an assertion. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/status.h"

typedef struct pl_pool pl_pool;
typedef struct pl_team pl_team; /* the threads inside one job */

typedef struct pl_pool_options {
    int n_threads; /* 0: pl_sys_cpus() */
    int poll;      /* 0 to 100, how eagerly to spin; -1: the default, 50 */
    bool pin;      /* one processor per thread, in the order of the affinity mask */
} pl_pool_options;

PL_MUST_CHECK pl_status pl_pool_new(pl_pool **out, pl_pool_options options, pl_error *err);
void pl_pool_free(pl_pool *p);
int pl_pool_threads(const pl_pool *p);

/* Calls fn(team, i, n, user) on all n threads and returns when all have returned. */
void pl_pool_run(pl_pool *p, void (*fn)(pl_team *team, int i_thread, int n_threads, void *user), void *user);

/* Inside a job: waits until all threads of the team are here. */
void pl_team_barrier(pl_team *team);
/* Inside a job: the next number from a counter that all threads share, from 0 on; reset to 0 by each barrier. For chunk
 * stealing. */
int64_t pl_team_next(pl_team *team);
