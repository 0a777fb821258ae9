/* The bookkeeping of the paged cache: which sequence has which blocks, and how far it has come. No bytes of the cache
 * itself.
 *
 * A micro-batch changes all of it or nothing: pl_kv_try_* work on a shadow of what they touch; then pl_kv_commit takes
 * the shadow, or pl_kv_drop forgets it. A block belongs to one sequence, or to several after a fork; a block with
 * several owners is never written. Ids come from a peer: each is checked here. Every error is PL_ERR_INVALID and names
 * the numbers. Threads: one at a time. Takes no memory after pl_kv_new. */
#pragma once

#include "engine/base/status.h"
#include "engine/graph/op.h"

typedef struct pl_kv pl_kv;

/* n_seqs, n_blocks and n_ctx are positive and were checked against their bounds. */
PL_MUST_CHECK pl_status pl_kv_new(pl_kv **out, int32_t n_seqs, int32_t n_blocks, int32_t n_ctx, pl_error *err);
void pl_kv_free(pl_kv *kv);
/* What pl_kv_new takes. */
size_t pl_kv_bytes(int32_t n_seqs, int32_t n_blocks, int32_t n_ctx);

/* The sequence is closed and becomes open and empty. */
PL_MUST_CHECK pl_status pl_kv_try_open(pl_kv *kv, int32_t seq, pl_error *err);
/* Appends free blocks to its table. */
PL_MUST_CHECK pl_status pl_kv_try_extend(pl_kv *kv, int32_t seq, const int32_t *blocks, int32_t n_blocks,
                                         pl_error *err);
/* seq is open and empty; it gets src's first n_pos positions. Whole pages are shared. When n_pos ends inside a page,
 * that page's block is copied to blocks[0] (n_blocks is 1; otherwise 0): *copy_from is its number, or -1 for no copy.
 */
PL_MUST_CHECK pl_status pl_kv_try_fork(pl_kv *kv, int32_t seq, int32_t src, int32_t n_pos, const int32_t *blocks,
                                       int32_t n_blocks, int32_t *copy_from, pl_error *err);
/* Back to n_pos positions; pages behind them are given back. */
PL_MUST_CHECK pl_status pl_kv_try_truncate(pl_kv *kv, int32_t seq, int32_t n_pos, pl_error *err);
PL_MUST_CHECK pl_status pl_kv_try_close(pl_kv *kv, int32_t seq, pl_error *err);
/* One more position: pos is the sequence's length. *slot: where pl_kv_store puts it. */
PL_MUST_CHECK pl_status pl_kv_try_row(pl_kv *kv, int32_t seq, int32_t pos, int32_t *slot, pl_error *err);

void pl_kv_commit(pl_kv *kv);
void pl_kv_drop(pl_kv *kv);

/* Committed state. seq is in range. */
bool pl_kv_is_open(const pl_kv *kv, int32_t seq);
int32_t pl_kv_length(const pl_kv *kv, int32_t seq);
/* The sequence's blocks, by page. */
const int32_t *pl_kv_pages(const pl_kv *kv, int32_t seq, int32_t *n);
int32_t pl_kv_blocks_used(const pl_kv *kv);
