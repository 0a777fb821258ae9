/* The real compute: the engine's stage and tensor cache behind compute.h, on a thread of their own.
 *
 * Threads: as compute.h says; new and free on the loop's thread. */
#pragma once

#include "engine/stage/load.h"
#include "node/compute.h"
#include "transport/loop.h"

/* Zero means default. */
typedef struct pl_compute_engine_options {
    const char *store_dir;  /* the tensor cache; NULL: pl_cache_dir() */
    int n_threads;          /* 0: pl_sys_cpus() */
    bool no_pack;           /* use the tensors of local_gguf as they are in the file */
    const char *local_gguf; /* a model that this machine has whole: its tensors are "in the cache" without being
                             * fetched, and packed into it when they are loaded first. NULL: none */
    uint64_t bytes_max;     /* what the benchmark may take; 0: no bound */
    int poll;               /* see pl_pool_options; pass -1 for the default */
    bool pin;
    bool no_fuse;          /* see pl_stage_options */
    pl_load_options load;  /* progress is called on the compute's thread */
    pl_profiler *profiler; /* borrowed; NULL: none */
} pl_compute_engine_options;

/* Opens the cache, hashes the local file (or finds it in the cache's index), computes the known graph and the short
 * benchmark: this takes a moment. A cache that cannot be opened is an error, unless there is a local file, which is
 * then used unpacked. */
PL_MUST_CHECK pl_status pl_compute_engine_new(pl_compute **out, pl_loop *loop, const pl_compute_engine_options *options,
                                              pl_error *err);
