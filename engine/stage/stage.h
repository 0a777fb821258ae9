/* A contiguous range of a model's layers that runs micro-batches: all that a node sees of the engine.
 *
 * A stage holds its weights (borrowed, mapped), its part of the paged KV cache and its graphs. What it is told comes in
 * micro-batches only, in order: KV operations first, then rows. It never asks anybody anything. Threads: one at a time
 * (the node's compute thread); it brings its own pool. */
#pragma once

#include "engine/cpu/cpu.h"
#include "engine/model/profile.h"
#include "engine/sample/sampler.h"

typedef struct pl_stage pl_stage;

/* One weight, where its bytes are. Borrowed until pl_stage_close. */
typedef struct pl_weight {
    pl_layout layout;
    const void *data;
} pl_weight;

typedef struct pl_stage_options {
    pl_stage_shape shape;
    int32_t poll; /* see pl_pool_options; -1 default */
    bool pin;
    bool no_fuse; /* every operator on its own: the same bits, slower */
    pl_profiler
        *profiler; /* borrowed until pl_stage_close; NULL: none. Opening measures this machine's limits for it */
} pl_stage_options;

/* weights[i] belongs to the i-th tensor of pl_model_stage_tensors(profile, first, end). header and profile are
 * borrowed. */
PL_MUST_CHECK pl_status pl_stage_open(pl_stage **out, const pl_gguf *header, const pl_model_profile *profile,
                                      const pl_weight *weights, const pl_stage_options *options, pl_error *err);
void pl_stage_close(pl_stage *s);
pl_backend *pl_stage_backend(pl_stage *s);
/* What it really took. */
pl_stage_memory pl_stage_memory_used(const pl_stage *s);

/* In-band KV operations. A sequence is a small number that the coordinator gave out, 0 <= seq < n_seqs; so are block
 * ids. */
typedef enum { PL_KV_OPEN = 1, PL_KV_EXTEND, PL_KV_FORK, PL_KV_TRUNCATE, PL_KV_CLOSE } pl_kv_kind;
typedef struct pl_kv_op {
    pl_kv_kind kind;
    int32_t seq;
    int32_t
        src;       /* FORK: seq, which is open and empty, gets src's first n_pos positions (whole blocks are shared, the
                    * last partial one   is copied to blocks[0]; so n_blocks is 1 when n_pos ends inside a block, else 0) */
    int32_t n_pos; /* FORK, TRUNCATE */
    const int32_t *blocks; /* EXTEND: appended to the sequence's table */
    int32_t n_blocks;
    const pl_sample_params *params; /* OPEN on the stage with the head; NULL elsewhere */
    const int32_t *tokens;          /* OPEN: the tokens at positions 0..n_tokens-1 that are known, for penalties */
    int32_t n_tokens;
    uint64_t n_shifted; /* OPEN: added to a position, it gives that of a draw: what was left out of the text before */
    int32_t n_prompt;   /* OPEN: so many of them are the prompt; a grammar begins behind them */
    const float *adapter_scales; /* OPEN: how much of each adapter it wants; 0 for those behind n_adapters */
    int32_t n_adapters;
    pl_bytes state; /* OPEN: pl_sampled.state of the last token, when there is one */
} pl_kv_op;

typedef struct pl_row {
    int32_t seq, pos,
        token;   /* token: the id at this position; used by the first stage and for the history. On the stage with the
                  * head, -1 is   the token that it sampled for this position; stages in the middle do not look at it */
    bool logits; /* sample the token at pos + 1 from this row */
} pl_row;

typedef struct pl_micro_batch {
    const pl_kv_op *ops;
    int32_t n_ops;
    const pl_row *rows;
    int32_t n_rows;         /* 0 is allowed: only operations */
    const float *hidden_in; /* f32 [n_rows, n_embd]; NULL on the first stage */
    float *hidden_out;      /* f32 [n_rows, n_embd], written; NULL on the last stage */
    pl_sampled *sampled; /* one per row with logits, in order; NULL unless last stage, and there when only logits_out is
                            wanted */
    float *logits_out;   /* f32 [rows with logits, n_vocab], NULL when not wanted; last stage */
    float *embeddings_out; /* f32 [rows with logits, n_embd]: what the output matrix would multiply, instead of logits
                            * (sampled and logits_out are NULL then); all that an encoder gives; last stage */
} pl_micro_batch;

/* Runs it. Of an encoder (pl_model_is_encoder) all rows of a sequence stand together in one batch. Everything is checked before anything changes: an unknown sequence, a block out of range or used twice, a
 * position that does not follow (rows of one sequence are ascending without gaps from its length), a token outside the
 * vocabulary, too many rows: PL_ERR_INVALID, and the stage is as before. A block that several sequences share is never
 * written: a row in one is PL_ERR_INVALID too. PL_ERR_NO_MEMORY: no room for the description of a graph; the sequences
 * are then as after the batch, with rows missing: close the stage. The bits of a row's result depend on its sequence
 * alone. */
PL_MUST_CHECK pl_status pl_stage_run(pl_stage *s, const pl_micro_batch *mb, pl_error *err);

/* Appends the graph that a stage of this shape runs for n_rows rows, n_out of which want logits: engine/graph/graph.h.
 */
PL_MUST_CHECK pl_status pl_stage_dump_graph(const pl_model_profile *profile, const pl_stage_shape *shape,
                                            int32_t n_rows, int32_t n_out, bool fuse, pl_graph_format format,
                                            pl_buf *out, pl_error *err);

/* The model architectures that this build knows, as general.architecture names them. */
const char *const *pl_stage_archs(size_t *n);

/* The known-graph checksum of this build and machine: a fixed tiny model of every weight type, run on fixed input.
 * Nodes of one pipeline agree on it. */
PL_MUST_CHECK pl_status pl_stage_known_checksum(uint64_t *out, pl_error *err);

typedef struct pl_bench {
    double read_bytes_s, prefill_macs_s;
} pl_bench;
/* A short benchmark (under 200 ms): weight bytes per second when decoding, multiply-adds per second in prompts. */
/* bytes_max: memory that it may take (0: 64 MiB); with less, weights may stay in a cache and seem faster than they are.
 */
PL_MUST_CHECK pl_status pl_stage_bench(pl_bench *out, int32_t n_threads, uint64_t bytes_max, pl_error *err);
