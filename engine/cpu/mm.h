/* The matrix product on the CPU: dst f32 [m, n] = x f32 [k, n] times w [k, m] transposed.
 *
 * Every element of dst is one chain of operations that depends only on its row of w and its row of x: kernels.h
 * states the chain at pl_cpu_kernels.mm. So one token or many, plain or packed weights, any number of threads and any
 * instruction set give the same bits. Quantized types are exact integers within a block, then unfused multiplies and
 * adds in block order; float types are a single chain of fma. Vectors hold 16 rows, never 16 columns, which keeps the
 * chain without giving up speed: parallel work comes from more rows and more tokens.
 *
 * There is one kernel per type and instruction set, on packed groups of 16 rows (pack.h). Plain weights, and the rows
 * behind the last whole group, are packed group by group into scratch and take the same way.
 *
 * Order of work: all threads make the activations (act.h) and meet at a barrier. Then they take chunks of groups from
 * the team's counter; the tokens come in panels that stay in the second-level cache, so the weights are read from
 * memory once per panel. A few thousand elements of activations each thread makes for itself, which is cheaper than to
 * wait.
 *
 * A precise product (pl_mul_mat_precise) of a quantized type has two terms of each activation (act.h), which are two
 * tokens to the kernels: y1 and y2 are added, one rounding. The chain of an element is still its row of w's and its row
 * of x's alone. Of few rows the two terms go through a kernel as a pair. Of more, the second terms follow in passes of
 * their own while the weights are in the cache, and where only large blocks have one, those that are not empty are
 * gathered first, block by block over all tokens of a panel, so that the others cost nothing (pl_cpu_kernels.mm_more).
 *
 * Products of the same x (q, k and v; gate and up) run as one, and where they do not follow each other they still share
 * its activations: the head of scratch says whose stand behind it. pl_cpu_mul_mat_begin forgets them: before the first
 * product of a run, in which a tensor that is still to be read keeps its values, and whenever another operator has
 * written to scratch behind the head.
 *
 * Threads: all threads of the team call pl_cpu_mul_mat together, with the same arguments but i_thread. */
#pragma once

#include "engine/base/pool.h"
#include "engine/cpu/kernels.h"
#include "engine/graph/fuse.h"

/* Whether the product dst = pl_mul_mat(w, x) can be computed here: two dimensions, a weight type of pack.h, f32 rows.
 */
bool pl_cpu_mul_mat_supported(const pl_tensor *dst);

/* Bytes of scratch for pl_cpu_mul_mat with n_threads threads. Other operators leave its first PL_SCRATCH_HEAD alone. */
size_t pl_cpu_mul_mat_scratch(const pl_tensor *dst, int n_threads);

/* Forgets what is in scratch, aligned to 64 bytes. One thread calls it, and a barrier follows before the next product.
 */
void pl_cpu_mul_mat_begin(void *scratch);

/* How many products may be computed at once: those that pl_fuse_products_match says may be. */
enum { PL_CPU_MUL_MAT_TOGETHER = PL_FUSE_PRODUCTS_MAX };

/* What follows the products part by part (engine/graph/fuse.h): done is called by whoever has computed rows row_first to
 * row_end - 1 and columns col_first to col_end - 1 of all products of a lane. lane[i] is the first product of i's lane;
 * those of one lane have results of one shape. */
typedef struct pl_cpu_results {
    int lane[PL_CPU_MUL_MAT_TOGETHER];
    void (*done)(void *user, int lane, int64_t row_first, int64_t row_end, int64_t col_first, int64_t col_end);
    void *user;
} pl_cpu_results;

/* Computes n_dst products, each pair of which matches, without a barrier between them. With several threads the
 * team's counter must be at 0, as behind a barrier, and another barrier follows before dst is read or the next product
 * begins. results: NULL when nothing follows. */
void pl_cpu_mul_mat(pl_team *team, int i_thread, int n_threads, const pl_tensor *const *dst, int n_dst,
                    const pl_cpu_results *results, void *scratch, const pl_cpu_kernels *k);
