/* What a node asks of its machine: tensors from the cache, a stage, and micro-batches through it. Replaceable: engine.c
 * stands on engine/stage and its own compute thread, fake.c (in tests/sim) computes a hash of what a correct stage
 * would have seen.
 *
 * Every call returns at once; answers come on the loop's thread, in the order of the calls and never from inside one.
 * One answer per call, also when it failed, but none after free: a node's compute is freed before the node, whose
 * memory a run may still be reading. Threads: calls and answers on the loop's thread. */
#pragma once

#include "engine/base/hash.h"
#include "engine/stage/stage.h"
#include "transport/msg.h"

typedef struct pl_compute pl_compute;

/* What this machine can do, for Hello. Constant after opening. Strings live as long as the compute. */
typedef struct pl_compute_facts {
    const char *isa, *profile, *cpu_name;
    const char *const *archs; /* model architectures that it can build */
    size_t n_archs;
    uint64_t known_checksum;
    int32_t n_threads;
    uint64_t memory_total, memory_available;
    double read_bytes_s, macs_s;
} pl_compute_facts;

typedef struct pl_compute_vt {
    void (*free)(pl_compute *c);
    const pl_compute_facts *(*facts)(pl_compute *c);

    /* Whether these blobs (tensors, or the header) are in the cache: have[i] is set before done is called. partial[i]:
     * bytes of it that are kept from an interrupted fetch. */
    void (*lookup)(pl_compute *c, const pl_hash *hashes, size_t n, bool *have, uint64_t *partial,
                   void (*done)(void *user, const pl_error *err), void *user);
    /* A piece of a blob, in order from partial on; part is taken. An empty piece at the end finishes a blob whose bytes
     * were all kept. With the last piece the hash is verified and the tensor packed into the cache. For the header type
     * is PL_TYPE_COUNT and ne is not used. err PL_ERR_FORMAT: the whole blob was thrown away, ask again. */
    void (*put)(pl_compute *c, const pl_hash *hash, pl_type type, const int64_t ne[4], uint64_t total, uint64_t offset,
                pl_part *part, void (*done)(void *user, const pl_error *err), void *user);
    /* Reads the header blob, after closing the stage before, which may stand on the last one; *header and *profile live
     * until the next open_header or free. */
    void (*open_header)(pl_compute *c, const pl_hash *hash, const pl_gguf **header, const pl_model_profile **profile,
                        void (*done)(void *user, const pl_error *err), void *user);

    /* Opens the stage of the header that open_header read, with tensors from the cache; hashes are in the order of
     * pl_model_stage_tensors. Closes the one before. memory is filled before done. */
    void (*load)(pl_compute *c, const pl_hash *hashes, size_t n, const pl_stage_shape *shape, pl_stage_memory *memory,
                 void (*done)(void *user, const pl_error *err), void *user);
    void (*unload)(pl_compute *c);
    /* Runs the micro-batch on the loaded stage; mb and all it points to live until done. start and end on the loop's
     * clock. */
    void (*run)(pl_compute *c, pl_micro_batch *mb,
                void (*done)(void *user, const pl_error *err, uint64_t start_ns, uint64_t end_ns), void *user);
} pl_compute_vt;
struct pl_compute {
    const pl_compute_vt *vt;
};
