/* Private to engine/cpu: the operators that are no matrix product, each run by all threads of a team at once.
 *
 * An operator splits its own work by i_thread and n_threads; the same call with (0, 1) does all of it. Nothing here
 * waits for another thread: the backend puts barriers between nodes. */
#pragma once

#include "engine/base/pool.h"
#include "engine/cpu/kernels.h"
#include "engine/graph/op.h"

/* Elements col_first to col_end - 1 of rows row_first to row_end - 1, rows counted over dimensions 1 to 3. */
typedef struct pl_cpu_part {
    int64_t row_first, row_end, col_first, col_end;
} pl_cpu_part;

typedef struct pl_cpu_op {
    const pl_cpu_kernels *k;
    const pl_tensor *t;
    void *scratch; /* as many bytes as the operator's row of backend.c says, behind a head that it leaves alone */
    pl_team *team; /* for chunk stealing; its counter is at 0 when an operator starts. NULL when n_threads is 1 */
    int i_thread, n_threads;
    const pl_cpu_part *part; /* what to compute, for the elementwise operators of engine/graph/fuse.c; NULL: the thread's share */
} pl_cpu_op;

/* The part of n that thread i_thread takes: as even as can be. */
static inline void pl_cpu_split(const pl_cpu_op *o, int64_t n, int64_t *first, int64_t *end)
{
    *first = n * o->i_thread / o->n_threads;
    *end = n * (o->i_thread + 1) / o->n_threads;
}

/* A pointer to row (i1, i2, i3) of t. */
static inline void *pl_cpu_row(const pl_tensor *t, int64_t i1, int64_t i2, int64_t i3)
{
    return (uint8_t *)t->data + (size_t)i1 * t->nb[1] + (size_t)i2 * t->nb[2] + (size_t)i3 * t->nb[3];
}

void pl_cpu_op_get_rows(const pl_cpu_op *o);
void pl_cpu_op_rms_norm(const pl_cpu_op *o);
void pl_cpu_op_layer_norm(const pl_cpu_op *o);
void pl_cpu_op_l2_norm(const pl_cpu_op *o);
void pl_cpu_op_binary(const pl_cpu_op *o);   /* ADD, SUB, MUL, DIV */
void pl_cpu_op_elements(const pl_cpu_op *o); /* SCALE, CLAMP, SOFTCAP, UNARY, GLU */
void pl_cpu_op_rope(const pl_cpu_op *o);
void pl_cpu_op_copy(const pl_cpu_op *o);
void pl_cpu_op_kv_store(const pl_cpu_op *o);

void pl_cpu_op_concat(const pl_cpu_op *o);
void pl_cpu_op_repeat(const pl_cpu_op *o);
void pl_cpu_op_set_rows(const pl_cpu_op *o);
void pl_cpu_op_take(const pl_cpu_op *o);
void pl_cpu_op_top_k(const pl_cpu_op *o);
void pl_cpu_op_softmax(const pl_cpu_op *o);
void pl_cpu_op_sum_rows(const pl_cpu_op *o);
void pl_cpu_op_weighted_sum(const pl_cpu_op *o);
void pl_cpu_op_mean(const pl_cpu_op *o);

/* MUL_MAT_ID and MUL_MAT_BATCH */
void pl_cpu_op_mul_mat_id(const pl_cpu_op *o);
size_t pl_cpu_mul_mat_id_scratch(const pl_tensor *t, int n_threads);
bool pl_cpu_mul_mat_id_supported(const pl_tensor *t);

void pl_cpu_op_attention(const pl_cpu_op *o);
size_t pl_cpu_attention_scratch(const pl_tensor *t, int n_threads);
