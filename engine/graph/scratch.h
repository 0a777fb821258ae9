/* How much scratch the CPU's operators take. The one place for these sizes: engine/cpu lays its scratch out by them,
 * and engine/model plans by them where there is no backend yet.
 *
 * Threads: pure functions. */
#pragma once

#include "engine/types/types.h"

enum {
    PL_SCRATCH_LINE = 64,               /* parts of two threads share no cache line */
    PL_SCRATCH_HEAD = 64,               /* bytes at the beginning that only products write to */
    PL_SCRATCH_ROWS = 16,               /* rows of a packed group */
    PL_SCRATCH_TILE = 8,                /* tokens of a tile */
    PL_SCRATCH_PANEL_BYTES = 512 << 10, /* activations of a panel: half of the second-level cache of a server core */
    PL_SCRATCH_PANEL = 256,             /* rows of a panel with second terms at most */
    PL_SCRATCH_PAIRS = 8,       /* groups whose two terms are added up at once: 4 KB of results, which stay in the L1 */
    PL_SCRATCH_EXPANDED = 5184, /* bytes of 16 rows of 256 columns whose weights are expanded once for many tokens */
    PL_SCRATCH_QUERY_ROWS = 8   /* rows that meet a tile of the cache at once: enough to pay for its conversion, and
                                 * little enough state for the L1 */
};

/* A product's scratch behind the head: the activations (of all threads together, or of each thread at the beginning of
 * its part), and a part for each thread with one packed group of weights, one expanded one, and one tile of results. */
typedef struct pl_mul_mat_scratch {
    int n_terms;   /* of the activations: 2 when precise and quantized */
    bool paired;   /* the two terms stand side by side: few rows */
    int64_t panel; /* rows that are kept close while weights pass over them; where paired, terms */
    bool own; /* each thread makes all activations for itself: a few thousand elements, about 1 us, less than to wait */
    size_t act;             /* bytes of the activations */
    size_t group;           /* bytes of one packed group */
    size_t expanded;        /* bytes of one group of expanded weights; 0 where few tokens or the type make none */
    size_t most_more, more; /* second terms where large: blocks that a thread's part has room for, and bytes of it */
    size_t thread;          /* bytes of one thread's part */
    size_t total;           /* with the head */
} pl_mul_mat_scratch;

/* Of n rows of k columns with weights of type w. */
pl_mul_mat_scratch pl_scratch_mul_mat(pl_type w, int64_t k, int64_t n, pl_precision precision, int n_threads);
/* The most bytes that any number of rows up to n takes: few rows, made by each thread, may take more than many. */
size_t pl_scratch_mul_mat_most(pl_type w, int64_t k, int64_t n, pl_precision precision, int n_threads);

/* Products of rows that are sorted by the matrix that they meet (experts, batches), behind the head: the sorted rows' numbers, where
 * each matrix's begin, which matrices have any, the activations, and a part for each thread as above. */
typedef struct pl_mul_mat_id_scratch {
    int n_terms;
    size_t rows, begins, used, act, group, thread, total;
} pl_mul_mat_id_scratch;

/* Of n_rows rows in all and n_matrices matrices; no fewer rows take more. */
pl_mul_mat_id_scratch pl_scratch_mul_mat_id(pl_type w, int64_t k, int64_t n_rows, int64_t n_matrices, pl_precision precision, int n_threads);

/* One thread's part of attention's scratch, behind the head: q of q bytes and acc of acc bytes, K and V of a tile as f32 of k and v
 * bytes, and six numbers for each row, of numbers bytes each. */
typedef struct pl_attention_scratch {
    size_t q, acc, k, v, numbers, thread;
} pl_attention_scratch;

pl_attention_scratch pl_scratch_attention(int64_t d_k, int64_t d_v, int64_t n_head, int64_t n_head_kv);
