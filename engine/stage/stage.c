/* A stage: its weights are borrowed, its cache and its compute buffer are two backend buffers that are made once at
 * opening, with the sizes that pl_model_stage_memory gave; nothing grows afterwards but the descriptions of graphs.
 *
 * Graphs. One is built for each pair (rows, rows with logits) that occurs, and kept: PL_STAGE_GRAPHS_MAX of them, the
 * one unused longest goes. All share the compute buffer, since one runs at a time. Decoding repeats its pairs, so a
 * warm step builds nothing and takes nothing from the heap; a pair that is new costs some hundred microseconds. Page
 * tables are inputs [pages of n_ctx, rows] in every graph, of which only the pages in use are written and read, so a
 * growing sequence changes no graph.
 *
 * Logits are a vocabulary wide. A batch that wants them for more than n_out_max rows is run in several parts, each with
 * all layers; by the promise that a row's bits depend on its sequence alone the result is the same, and memory stays
 * bounded.
 *
 * A batch is checked whole against a shadow of the page tables (engine/model/kv.h) before anything changes. */
#include "engine/stage/stage.h"

#include <inttypes.h>
#include <stdlib.h>

#include "engine/base/alloc.h"
#include "engine/base/sys.h"
#include "engine/model/arch.h"
#include "engine/model/kv.h"
#include "engine/model/model.h"
#include "engine/model/rope.h"

/* A graph that is kept. */
typedef struct kept_graph {
    pl_graph_ctx *ctx; /* NULL: free */
    pl_graph *graph;
    pl_model_graph io;
    int32_t n_rows, n_out;
    bool embeddings;
    uint64_t used_at;
} kept_graph;

/* What the stage with the head knows of a sequence. */
typedef struct seq_state {
    uint64_t n_shifted;
    pl_sample_seq *sample; /* NULL: not open */
    int32_t *history;      /* [n_ctx] */
    int32_t n_known;       /* tokens at 0..n_known-1 are known */
    int32_t n_known_next;  /* the same while a batch is checked; valid when checked_in is this batch */
    uint64_t checked_in;
} seq_state;

typedef struct block_copy {
    int32_t from, to;
} block_copy;

struct pl_stage {
    const pl_model_profile *profile;
    pl_stage_options options;
    pl_compute_plan plan;
    bool embeds, has_head;
    size_t n_tensors, *tensors; /* ascending indices of the file's tensors */
    pl_weight *weights;
    pl_pool *pool;
    pl_backend *backend;
    pl_backend_buffer *cache, *compute;
    uint8_t **layers; /* [n_layer of the stage]: where each one's cache begins */
    size_t *block_bytes;
    pl_kv *kv;
    pl_rope_table rope, rope_local;
    kept_graph graphs[PL_STAGE_GRAPHS_MAX];
    uint64_t n_runs, n_batches;
    int32_t *slots, *ids, *pos; /* [n_rows] */
    int32_t *out_rows;          /* [n_rows]: those with logits */
    float *rope_row;            /* [n_rot] */
    float *adapter_scales;      /* [n_seqs][n_adapters] */
    block_copy *copies;
    size_t n_copies, copies_cap;
    seq_state *seqs; /* [n_seqs], with the head only, like all below */
    int32_t *histories;
    pl_sampler *sampler;
    pl_vocab *vocab;          /* opened for the first sequence that needs it */
    pl_sample_seq **openings; /* of the OPENs of the batch that is checked, in their order */
    size_t n_openings, openings_cap;
    float *logits; /* [n_vocab]: one row as the sampler reads it */
    pl_stage_memory memory;
};

static int by_index(const void *a, const void *b)
{
    size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return x < y ? -1 : x > y;
}

static const pl_weight *weight_of(const pl_stage *s, size_t tensor)
{
    const size_t *at = bsearch(&tensor, s->tensors, s->n_tensors, sizeof *s->tensors, by_index);
    PL_ASSERT(at != NULL); /* a graph asks for the tensors of its stage only */
    return &s->weights[at - s->tensors];
}

static const void *graph_weight(void *user, size_t tensor, pl_layout *layout)
{
    const pl_weight *w = weight_of(user, tensor);
    *layout = w->layout;
    return w->data;
}

static void *graph_kv(void *user, int32_t layer)
{
    const pl_stage *s = user;
    return s->layers[layer - s->options.shape.layer_first];
}

static void drop_graph(kept_graph *k)
{
    pl_graph_ctx_free(k->ctx);
    *k = (kept_graph){0};
}

static pl_status make_graph(pl_stage *s, kept_graph *k, int32_t n_rows, int32_t n_out, bool embeddings, pl_error *err)
{
    drop_graph(k);
    pl_status status;
    if ((status = pl_graph_ctx_new(&k->ctx, err)) != PL_OK) goto fail;
    pl_graph_request r = pl_graph_request_of(&s->options.shape, s->profile, n_rows, n_out);
    r.embeddings = embeddings;
    r.weight = graph_weight;
    r.kv = graph_kv;
    r.user = s;
    if ((status = pl_model_graph_build(&k->graph, &k->io, k->ctx, s->profile, &r, err)) != PL_OK) goto fail;
    if (!s->options.no_fuse) pl_graph_fuse(k->graph, s->backend->vt->fusions);
    size_t peak = 0;
    if ((status = pl_graph_plan(k->graph, PL_MODEL_ALIGN, &peak, err)) != PL_OK) goto fail;
    size_t scratch = s->backend->vt->scratch(s->backend, k->graph);
    if (peak > s->plan.intermediates || scratch > s->plan.scratch) {
        status =
            pl_fail(err, PL_ERR_INTERNAL, "a graph of %" PRId32 " rows needs %zu + %zu bytes, planned were %zu + %zu",
                    n_rows, peak, scratch, s->plan.intermediates, s->plan.scratch);
        goto fail;
    }
    for (int i = 0; i < pl_graph_n_nodes(k->graph); i++) {
        const pl_tensor *t = pl_graph_node(k->graph, i);
        if (!s->backend->vt->supports(s->backend, t)) {
            const char *of = t->src[0] ? t->src[0]->name : "";
            status = pl_fail(err, PL_ERR_UNSUPPORTED, "%s of %s (%s) cannot run on %s", pl_op_name(t->op), of,
                             t->src[0] ? pl_type_name(t->src[0]->type) : "?", s->backend->vt->name);
            goto fail;
        }
    }
    pl_graph_bind(k->graph, s->backend->vt->buffer_base(s->compute));
    k->n_rows = n_rows;
    k->embeddings = embeddings;
    k->n_out = n_out;
    return PL_OK;
fail:
    drop_graph(k);
    return status;
}

static pl_status get_graph(pl_stage *s, int32_t n_rows, int32_t n_out, bool embeddings, kept_graph **out, pl_error *err)
{
    kept_graph *oldest = &s->graphs[0];
    for (int i = 0; i < PL_STAGE_GRAPHS_MAX; i++) {
        kept_graph *k = &s->graphs[i];
        if (k->ctx && k->n_rows == n_rows && k->n_out == n_out && k->embeddings == embeddings) {
            *out = k;
            return PL_OK;
        }
        if (k->used_at < oldest->used_at) oldest = k;
    }
    PL_TRY(make_graph(s, oldest, n_rows, n_out, embeddings, err));
    *out = oldest;
    return PL_OK;
}

static pl_status open_weights(pl_stage *s, const pl_weight *weights, pl_error *err)
{
    const pl_stage_shape *shape = &s->options.shape;
    s->n_tensors = pl_model_stage_tensors(s->profile, shape->layer_first, shape->layer_end, NULL);
    s->tensors = pl_calloc(s->n_tensors, sizeof *s->tensors);
    s->weights = pl_calloc(s->n_tensors, sizeof *s->weights);
    if (!s->tensors || !s->weights)
        return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for a list of %zu tensors", s->n_tensors);
    pl_model_stage_tensors(s->profile, shape->layer_first, shape->layer_end, s->tensors);
    for (size_t i = 0; i < s->n_tensors; i++) {
        const pl_gguf_tensor *t = pl_gguf_tensor_at(s->profile->g, s->tensors[i]);
        s->weights[i] = weights[i];
        s->memory.weights += t->size;
        if (weights[i].data == NULL || (weights[i].layout != PL_LAYOUT_PLAIN &&
                                        weights[i].layout != s->backend->vt->best_layout(s->backend, t->type, t->ne)))
            return pl_fail(err, PL_ERR_INVALID, "tensor %.*s: no data, or a layout that %s cannot use",
                           PL_STR_ARG(t->name), s->backend->vt->name);
    }
    const int32_t *at = s->profile->index.model;
    bool is_long = shape->n_ctx > s->profile->hp.rope.n_ctx_orig;
    int32_t factors = at[PL_W_ROPE_FREQS] >= 0 ? at[PL_W_ROPE_FREQS] : at[is_long ? PL_W_ROPE_LONG : PL_W_ROPE_SHORT];
    const float *f = factors < 0 ? NULL : weight_of(s, (size_t)factors)->data;
    PL_TRY(pl_rope_table_init(&s->rope, &s->profile->hp.rope, f, shape->n_ctx, err));
    if (!s->profile->hp.has_rope_local) return PL_OK;
    return pl_rope_table_init(&s->rope_local, &s->profile->hp.rope_local, NULL, shape->n_ctx, err);
}

static pl_status open_buffers(pl_stage *s, pl_error *err)
{
    const pl_stage_shape *shape = &s->options.shape;
    const pl_backend_vt *vt = s->backend->vt;
    size_t n_layers = (size_t)(shape->layer_end - shape->layer_first), total = 0;
    s->layers = pl_calloc(n_layers, sizeof *s->layers);
    s->block_bytes = pl_calloc(n_layers, sizeof *s->block_bytes);
    if (!s->layers || !s->block_bytes) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for %zu layers", n_layers);
    for (size_t i = 0; i < n_layers; i++) {
        s->block_bytes[i] =
            (size_t)pl_model_kv_block_bytes(s->profile, shape->layer_first + (int32_t)i, shape->cache);
        size_t size;
        if (!pl_mul_ok(s->block_bytes[i], (size_t)shape->n_blocks, &size) || !pl_add_ok(total, size, &total))
            return pl_fail(err, PL_ERR_BUDGET, "a cache of %" PRId32 " blocks does not fit into the address space",
                           shape->n_blocks);
    }
    PL_TRY(vt->buffer_new(s->backend, total, &s->cache, err));
    s->memory.kv = total;
    uint8_t *at = vt->buffer_base(s->cache);
    for (size_t i = 0; i < n_layers; i++) {
        s->layers[i] = at;
        at += s->block_bytes[i] * (size_t)shape->n_blocks;
    }

    PL_TRY(pl_model_compute_plan(s->profile, shape, &s->plan, err));
    PL_TRY(vt->buffer_new(s->backend, s->plan.intermediates + s->plan.scratch, &s->compute, err));
    s->memory.compute =
        (uint64_t)s->plan.intermediates + s->plan.scratch + s->plan.tables + s->plan.sampler + s->plan.graphs;
    return PL_OK;
}

static pl_status open_tables(pl_stage *s, pl_error *err)
{
    const pl_stage_shape *shape = &s->options.shape;
    const pl_hparams *hp = &s->profile->hp;
    size_t n_rows = (size_t)shape->n_rows, n_seqs = (size_t)shape->n_seqs;
    PL_TRY(pl_kv_new(&s->kv, shape->n_seqs, shape->n_blocks, shape->n_ctx, err));
    s->slots = pl_calloc(n_rows, sizeof *s->slots);
    s->ids = pl_calloc(n_rows, sizeof *s->ids);
    s->pos = pl_calloc(n_rows, sizeof *s->pos);
    s->out_rows = pl_calloc(n_rows, sizeof *s->out_rows);
    s->rope_row = pl_calloc((size_t)hp->rope.n_rot + 1, sizeof *s->rope_row);
    s->adapter_scales = pl_calloc(n_seqs * (size_t)s->profile->index.n_adapters + 1, sizeof *s->adapter_scales);
    bool ok = s->slots && s->ids && s->pos && s->out_rows && s->rope_row && s->adapter_scales;
    if (ok && s->has_head) {
        s->seqs = pl_calloc(n_seqs, sizeof *s->seqs);
        s->histories = pl_calloc(n_seqs, (size_t)shape->n_ctx * sizeof *s->histories);
        s->logits = pl_calloc((size_t)hp->n_vocab, sizeof *s->logits);
        ok = s->seqs && s->histories && s->logits;
        for (size_t i = 0; ok && i < n_seqs; i++) s->seqs[i].history = s->histories + i * (size_t)shape->n_ctx;
    }
    if (!ok) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for the tables of %" PRId32 " sequences", shape->n_seqs);
    return s->has_head ? pl_sampler_new(&s->sampler, hp->n_vocab, shape->n_ctx, err) : PL_OK;
}

static pl_status open_profiler(pl_stage *s, pl_error *err)
{
    pl_cpu_peak peak;
    PL_TRY(pl_cpu_peaks(&peak, s->pool, err));
    pl_profiler_set_peaks(s->options.profiler, peak.read_bytes_s, peak.macs_s, peak.how);
    s->backend->vt->set_profiler(s->backend, s->options.profiler);
    return PL_OK;
}

pl_status pl_stage_open(pl_stage **out, const pl_gguf *header, const pl_model_profile *profile,
                        const pl_weight *weights, const pl_stage_options *options, pl_error *err)
{
    *out = NULL;
    if (profile->g != header) return pl_fail(err, PL_ERR_INVALID, "stage: the profile is not this header's");
    PL_TRY(pl_shape_check(&options->shape, profile, err));
    pl_stage *s = pl_calloc(1, sizeof *s);
    if (s == NULL) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for a stage");
    s->profile = profile;
    s->options = *options;
    s->embeds = pl_shape_embeds(&options->shape);
    s->has_head = pl_shape_has_head(&options->shape, profile);
    pl_pool_options pool = {.n_threads = options->shape.n_threads, .poll = options->poll, .pin = options->pin};
    pl_status status;
    if ((status = pl_pool_new(&s->pool, pool, err)) != PL_OK) goto fail;
    if ((status = pl_cpu_backend_new(&s->backend, s->pool, err)) != PL_OK) goto fail;
    if (options->profiler && (status = open_profiler(s, err)) != PL_OK) goto fail;
    if ((status = open_weights(s, weights, err)) != PL_OK) goto fail;
    if ((status = open_buffers(s, err)) != PL_OK) goto fail;
    if ((status = open_tables(s, err)) != PL_OK) goto fail;
    /* The largest graph is made now: whatever this stage cannot compute is said here, not in the middle of an answer.
     */
    kept_graph *largest;
    if ((status = get_graph(s, options->shape.n_rows, s->has_head ? s->plan.n_out_max : 0,
                            s->has_head && s->profile->arch->encoder, &largest, err)) != PL_OK)
        goto fail;
    *out = s;
    return PL_OK;
fail:
    pl_stage_close(s);
    return pl_note(err, status, "stage of layers %" PRId32 "..%" PRId32, options->shape.layer_first,
                   options->shape.layer_end);
}

static void drop_openings(pl_stage *s)
{
    while (s->n_openings > 0) pl_sample_seq_free(s->openings[--s->n_openings]);
}

void pl_stage_close(pl_stage *s)
{
    if (s == NULL) return;
    for (int i = 0; i < PL_STAGE_GRAPHS_MAX; i++) drop_graph(&s->graphs[i]);
    if (s->backend) {
        s->backend->vt->buffer_free(s->backend, s->cache);
        s->backend->vt->buffer_free(s->backend, s->compute);
        s->backend->vt->free(s->backend);
    }
    pl_pool_free(s->pool);
    drop_openings(s);
    for (int32_t i = 0; s->seqs && i < s->options.shape.n_seqs; i++) pl_sample_seq_free(s->seqs[i].sample);
    pl_sampler_free(s->sampler);
    pl_vocab_close(s->vocab);
    pl_rope_table_fini(&s->rope);
    pl_rope_table_fini(&s->rope_local);
    pl_kv_free(s->kv);
    pl_free(s->tensors);
    pl_free(s->weights);
    pl_free(s->layers);
    pl_free(s->block_bytes);
    pl_free(s->slots);
    pl_free(s->ids);
    pl_free(s->pos);
    pl_free(s->out_rows);
    pl_free(s->rope_row);
    pl_free(s->adapter_scales);
    pl_free(s->copies);
    pl_free(s->openings);
    pl_free(s->seqs);
    pl_free(s->histories);
    pl_free(s->logits);
    pl_free(s);
}

pl_backend *pl_stage_backend(pl_stage *s)
{
    return s->backend;
}
const char *const *pl_stage_archs(size_t *n)
{
    return pl_arch_names(n);
}
pl_stage_memory pl_stage_memory_used(const pl_stage *s)
{
    return s->memory;
}

/* --- Checking a batch --- */

/* The known tokens of a sequence while this batch is checked. */
static int32_t *known(pl_stage *s, int32_t seq)
{
    seq_state *q = &s->seqs[seq];
    if (q->checked_in != s->n_batches) {
        q->checked_in = s->n_batches;
        q->n_known_next = q->n_known;
    }
    return &q->n_known_next;
}

static pl_status check_token(const pl_stage *s, int32_t token, int32_t seq, int32_t pos, pl_error *err)
{
    if (token >= 0 && token < s->profile->hp.n_vocab) return PL_OK;
    return pl_fail(err, PL_ERR_INVALID,
                   "token %" PRId32 " at position %" PRId32 " of sequence %" PRId32 ": the vocabulary has %" PRId32,
                   token, pos, seq, s->profile->hp.n_vocab);
}

static pl_status new_sample(pl_stage *s, const pl_kv_op *op, pl_error *err)
{
    if (s->n_openings == s->openings_cap) {
        size_t cap = s->openings_cap ? 2 * s->openings_cap : 8;
        pl_sample_seq **grown = pl_realloc(s->openings, cap * sizeof *grown);
        if (grown == NULL) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory to open %zu sequences", cap);
        s->openings = grown;
        s->openings_cap = cap;
    }
    if (pl_sample_needs_vocab(op->params) && s->vocab == NULL) {
        PL_TRY(pl_vocab_open(&s->vocab, s->profile->g, err));
        pl_sampler_use_vocab(s->sampler, s->vocab);
    }
    pl_sample_seq_options o = {.n_prompt = op->n_prompt, .state = op->state.data, .n_state = op->state.size};
    PL_TRY(pl_sample_seq_new(&s->openings[s->n_openings], s->sampler, op->params, &o, err));
    s->n_openings++;
    return PL_OK;
}

static pl_status check_open(pl_stage *s, const pl_kv_op *op, pl_error *err)
{
    if (op->n_adapters > s->profile->index.n_adapters)
        return pl_fail(err, PL_ERR_INVALID, "open: sequence %" PRId32 " wants adapter %" PRId32 " of %" PRId32, op->seq,
                       op->n_adapters - 1, s->profile->index.n_adapters);
    if (!s->has_head) return PL_OK;
    if (op->params == NULL)
        return pl_fail(err, PL_ERR_INVALID, "open: sequence %" PRId32 " has no sampling parameters", op->seq);
    if (op->n_tokens < 0 || op->n_tokens > s->options.shape.n_ctx)
        return pl_fail(err, PL_ERR_INVALID, "open: %" PRId32 " tokens of sequence %" PRId32 ": the context is %" PRId32,
                       op->n_tokens, op->seq, s->options.shape.n_ctx);
    for (int32_t i = 0; i < op->n_tokens; i++) PL_TRY(check_token(s, op->tokens[i], op->seq, i, err));
    *known(s, op->seq) = op->n_tokens;
    return new_sample(s, op, err);
}

static pl_status add_copy(pl_stage *s, int32_t from, int32_t to, pl_error *err)
{
    if (s->n_copies == s->copies_cap) {
        size_t cap = s->copies_cap ? 2 * s->copies_cap : 8;
        block_copy *copies = pl_realloc(s->copies, cap * sizeof *copies);
        if (copies == NULL) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for %zu copies of blocks", cap);
        s->copies = copies;
        s->copies_cap = cap;
    }
    s->copies[s->n_copies++] = (block_copy){from, to};
    return PL_OK;
}

static pl_status check_op(pl_stage *s, const pl_kv_op *op, pl_error *err)
{
    int32_t from;
    switch (op->kind) {
    case PL_KV_OPEN: PL_TRY(pl_kv_try_open(s->kv, op->seq, err)); return check_open(s, op, err);
    case PL_KV_EXTEND: return pl_kv_try_extend(s->kv, op->seq, op->blocks, op->n_blocks, err);
    case PL_KV_FORK:
        PL_TRY(pl_kv_try_fork(s->kv, op->seq, op->src, op->n_pos, op->blocks, op->n_blocks, &from, err));
        if (from >= 0) PL_TRY(add_copy(s, from, op->blocks[0], err));
        if (s->has_head && *known(s, op->seq) < op->n_pos) {
            /* Its tokens are the source's, as far as those are known. */
            int32_t n = *known(s, op->src);
            *known(s, op->seq) = n < op->n_pos ? n : op->n_pos;
        }
        return PL_OK;
    case PL_KV_TRUNCATE:
        PL_TRY(pl_kv_try_truncate(s->kv, op->seq, op->n_pos, err));
        if (s->has_head && *known(s, op->seq) > op->n_pos) *known(s, op->seq) = op->n_pos;
        return PL_OK;
    case PL_KV_CLOSE: return pl_kv_try_close(s->kv, op->seq, err);
    }
    return pl_fail(err, PL_ERR_INVALID, "operation %d on sequence %" PRId32 " is not known", (int)op->kind, op->seq);
}

static pl_status check_row(pl_stage *s, const pl_row *row, int32_t *slot, pl_error *err)
{
    PL_TRY(pl_kv_try_row(s->kv, row->seq, row->pos, slot, err));
    if (s->has_head) {
        int32_t *n = known(s, row->seq);
        if (row->token == -1) {
            if (row->pos >= *n)
                return pl_fail(err, PL_ERR_INVALID,
                               "row: the token at position %" PRId32 " of sequence %" PRId32 " was not sampled here",
                               row->pos, row->seq);
            return PL_OK;
        }
        PL_TRY(check_token(s, row->token, row->seq, row->pos, err));
        if (*n <= row->pos) *n = row->pos + 1;
        return PL_OK;
    }
    return s->embeds ? check_token(s, row->token, row->seq, row->pos, err) : PL_OK;
}

static pl_status check_batch(pl_stage *s, const pl_micro_batch *mb, pl_error *err)
{
    if (mb->n_rows < 0 || mb->n_rows > s->options.shape.n_rows || mb->n_ops < 0)
        return pl_fail(err, PL_ERR_INVALID,
                       "%" PRId32 " rows and %" PRId32 " operations: a batch has at most %" PRId32 " rows", mb->n_rows,
                       mb->n_ops, s->options.shape.n_rows);
    if (mb->n_rows > 0 && !s->embeds && mb->hidden_in == NULL)
        return pl_fail(err, PL_ERR_INVALID, "rows without hidden states");
    bool wants_logits = mb->sampled || mb->logits_out;
    if (s->has_head && wants_logits && mb->embeddings_out)
        return pl_fail(err, PL_ERR_INVALID, "logits and embeddings of the same rows");
    if (s->has_head && wants_logits && s->profile->arch->encoder)
        return pl_fail(err, PL_ERR_INVALID, "%s is an encoder: it gives embeddings, not tokens",
                       s->profile->arch->name);
    if (mb->n_rows > 0 && !s->has_head && mb->hidden_out == NULL)
        return pl_fail(err, PL_ERR_INVALID, "no place for the hidden states");
    for (int32_t i = 0; i < mb->n_ops; i++) PL_TRY(check_op(s, &mb->ops[i], err));
    for (int32_t i = 0; i < mb->n_rows; i++) {
        const pl_row *row = &mb->rows[i];
        if (s->profile->arch->encoder && row->pos > 0 && (i == 0 || mb->rows[i - 1].seq != row->seq))
            return pl_fail(err, PL_ERR_INVALID,
                           "row: an encoder sees sequence %" PRId32 " whole, and its rows are not together", row->seq);
        PL_TRY(check_row(s, row, &s->slots[i], err));
    }
    return PL_OK;
}

/* --- Running it --- */

/* Takes over what was checked: page tables, histories, and the blocks that a fork copies, in the order of the
 * operations. */
static pl_status commit(pl_stage *s, const pl_micro_batch *mb, pl_error *err)
{
    pl_kv_commit(s->kv);
    size_t n_layers = (size_t)(s->options.shape.layer_end - s->options.shape.layer_first);
    for (size_t i = 0; i < s->n_copies; i++)
        for (size_t l = 0; l < n_layers; l++) {
            uint8_t *base = s->layers[l];
            size_t size = s->block_bytes[l];
            PL_TRY(s->backend->vt->copy(s->backend, base + (size_t)s->copies[i].to * size,
                                        base + (size_t)s->copies[i].from * size, size, err));
        }
    const int32_t n_adapters = s->profile->index.n_adapters;
    for (int32_t i = 0; i < mb->n_ops && n_adapters > 0; i++) {
        const pl_kv_op *op = &mb->ops[i];
        if (op->kind != PL_KV_OPEN) continue;
        float *scales = s->adapter_scales + (size_t)op->seq * (size_t)n_adapters;
        for (int32_t k = 0; k < n_adapters; k++) scales[k] = k < op->n_adapters ? op->adapter_scales[k] : 0.0f;
    }
    if (!s->has_head) return PL_OK;
    size_t n_opened = 0;
    for (int32_t i = 0; i < mb->n_ops; i++) {
        const pl_kv_op *op = &mb->ops[i];
        seq_state *q = &s->seqs[op->seq];
        if (op->kind == PL_KV_OPEN) {
            pl_sample_seq_free(q->sample);
            q->sample = s->openings[n_opened++];
            if (op->n_tokens > 0) memcpy(q->history, op->tokens, (size_t)op->n_tokens * sizeof *q->history);
            q->n_known = op->n_tokens;
            q->n_shifted = op->n_shifted;
        } else if (op->kind == PL_KV_FORK && q->n_known < op->n_pos) {
            const seq_state *from = &s->seqs[op->src];
            int32_t n = from->n_known < op->n_pos ? from->n_known : op->n_pos;
            if (n > 0) memcpy(q->history, from->history, (size_t)n * sizeof *q->history);
            q->n_known = n;
        } else if (op->kind == PL_KV_CLOSE) {
            pl_sample_seq_free(q->sample);
            q->sample = NULL;
        } else if (op->kind == PL_KV_TRUNCATE && q->n_known > op->n_pos) {
            q->n_known = op->n_pos;
            pl_sample_seq_rewind(q->sample, op->n_pos);
        }
    }
    s->n_openings = 0; /* all are taken */
    for (int32_t i = 0; i < mb->n_rows; i++) {
        const pl_row *row = &mb->rows[i];
        seq_state *q = &s->seqs[row->seq];
        if (row->token >= 0 && q->history[row->pos] != row->token) {
            if (row->pos < q->n_known) pl_sample_seq_rewind(q->sample, row->pos);
            q->history[row->pos] = row->token;
        }
        if (q->n_known <= row->pos) q->n_known = row->pos + 1;
    }
    return PL_OK;
}

static pl_status write_inputs(pl_stage *s, const pl_micro_batch *mb, int32_t first, int32_t n, int32_t n_out,
                              const kept_graph *k, pl_error *err)
{
    pl_backend *b = s->backend;
    size_t ints = (size_t)n * sizeof(int32_t);
    for (int32_t i = 0; i < n; i++) {
        const pl_row *row = &mb->rows[first + i];
        s->pos[i] = row->pos;
        /* With -1 the token is the one that was sampled here. */
        s->ids[i] = row->token >= 0 || !s->has_head ? row->token : s->seqs[row->seq].history[row->pos];
        int32_t n_pages;
        const int32_t *pages = pl_kv_pages(s->kv, row->seq, &n_pages);
        int32_t last = k->io.last ? pl_kv_length(s->kv, row->seq) - 1 : row->pos;
        size_t in_use = (size_t)(last / PL_KV_PAGE + 1) * sizeof *pages;
        PL_TRY(b->vt->copy_in(b, (uint8_t *)k->io.tables->data + (size_t)i * k->io.tables->nb[1], pages, in_use, err));
        if (k->io.rope) {
            pl_rope_table_row(&s->rope, row->pos, s->rope_row);
            PL_TRY(b->vt->copy_in(b, (uint8_t *)k->io.rope->data + (size_t)i * k->io.rope->nb[1], s->rope_row,
                                  k->io.rope->nb[1], err));
        }
        if (k->io.rope_local) {
            pl_rope_table_row(&s->rope_local, row->pos, s->rope_row);
            PL_TRY(b->vt->copy_in(b, (uint8_t *)k->io.rope_local->data + (size_t)i * k->io.rope_local->nb[1],
                                  s->rope_row, k->io.rope_local->nb[1], err));
        }
        for (int32_t a = 0; a < s->profile->index.n_adapters; a++) {
            if (k->io.adapter_scales[a] == NULL) continue;
            const float *scale =
                &s->adapter_scales[(size_t)row->seq * (size_t)s->profile->index.n_adapters + (size_t)a];
            PL_TRY(b->vt->copy_in(b, (float *)k->io.adapter_scales[a]->data + i, scale, sizeof *scale, err));
        }
        if (k->io.temperature) {
            float factor = pl_hparams_temperature(&s->profile->hp, row->pos);
            PL_TRY(b->vt->copy_in(b, (float *)k->io.temperature->data + i, &factor, sizeof factor, err));
        }
    }
    if (k->io.pos) PL_TRY(b->vt->copy_in(b, k->io.pos->data, s->pos, ints, err));
    if (k->io.last) {
        for (int32_t i = 0; i < n; i++) s->pos[i] = pl_kv_length(s->kv, mb->rows[first + i].seq) - 1;
        PL_TRY(b->vt->copy_in(b, k->io.last->data, s->pos, ints, err));
    }
    if (k->io.types) {
        memset(s->pos, 0, ints);
        PL_TRY(b->vt->copy_in(b, k->io.types->data, s->pos, ints, err));
    }
    PL_TRY(b->vt->copy_in(b, k->io.slots->data, s->slots + first, ints, err));
    if (k->io.ids) PL_TRY(b->vt->copy_in(b, k->io.ids->data, s->ids, ints, err));
    if (k->io.hidden) {
        size_t n_embd = (size_t)s->profile->hp.n_embd;
        PL_TRY(b->vt->copy_in(b, k->io.hidden->data, mb->hidden_in + (size_t)first * n_embd,
                              (size_t)n * n_embd * sizeof(float), err));
    }
    if (k->io.out_ids)
        PL_TRY(b->vt->copy_in(b, k->io.out_ids->data, s->out_rows, (size_t)n_out * sizeof(int32_t), err));
    return PL_OK;
}

/* Samples from the logits of the part; out_base rows with logits came before it. */
static pl_status read_logits(pl_stage *s, const pl_micro_batch *mb, int32_t first, int32_t n_out, int32_t out_base,
                             const kept_graph *k, pl_error *err)
{
    size_t n_vocab = (size_t)s->profile->hp.n_vocab;
    for (int32_t i = 0; i < n_out; i++) {
        const pl_row *row = &mb->rows[first + s->out_rows[i]];
        float *logits = mb->logits_out ? mb->logits_out + (size_t)(out_base + i) * n_vocab : s->logits;
        const uint8_t *from = (const uint8_t *)k->io.result->data + (size_t)i * k->io.result->nb[1];
        PL_TRY(s->backend->vt->copy_out(s->backend, logits, from, n_vocab * sizeof *logits, err));
        if (mb->sampled == NULL) continue;
        seq_state *q = &s->seqs[row->seq];
        pl_sampled *sampled = &mb->sampled[out_base + i];
        uint64_t start = s->options.profiler ? pl_now_ns() : 0;
        pl_sampler_pick(s->sampler, q->sample, logits, q->history, row->pos + 1, (int64_t)q->n_shifted + row->pos + 1,
                        sampled);
        if (s->options.profiler) pl_profiler_note(s->options.profiler, "sampling", start, pl_now_ns());
        /* A token that is known already (a prompt that is replayed) stays. */
        if (row->pos + 1 < s->options.shape.n_ctx && q->n_known == row->pos + 1) {
            q->history[row->pos + 1] = sampled->token;
            q->n_known = row->pos + 2;
        }
    }
    return PL_OK;
}

/* Rows first..first+n-1, n_out of which, s->out_rows, want logits. */
static pl_status run_part(pl_stage *s, const pl_micro_batch *mb, int32_t first, int32_t n, int32_t n_out,
                          int32_t out_base, pl_error *err)
{
    kept_graph *k;
    PL_TRY(get_graph(s, n, n_out, s->has_head && (mb->embeddings_out || s->profile->arch->encoder), &k, err));
    k->used_at = ++s->n_runs;
    PL_TRY(write_inputs(s, mb, first, n, n_out, k, err));
    uint8_t *scratch = (uint8_t *)s->backend->vt->buffer_base(s->compute) + s->plan.intermediates;
    PL_TRY(s->backend->vt->compute(s->backend, k->graph, scratch, err));
    size_t n_embd = (size_t)s->profile->hp.n_embd;
    if (k->embeddings) {
        if (n_out == 0 || mb->embeddings_out == NULL) return PL_OK;
        return s->backend->vt->copy_out(s->backend, mb->embeddings_out + (size_t)out_base * n_embd, k->io.result->data,
                                        (size_t)n_out * n_embd * sizeof(float), err);
    }
    if (s->has_head) return read_logits(s, mb, first, n_out, out_base, k, err);
    return s->backend->vt->copy_out(s->backend, mb->hidden_out + (size_t)first * n_embd, k->io.result->data,
                                    (size_t)n * n_embd * sizeof(float), err);
}

pl_status pl_stage_run(pl_stage *s, const pl_micro_batch *mb, pl_error *err)
{
    s->n_batches++;
    s->n_copies = 0;
    pl_status status = check_batch(s, mb, err);
    if (status != PL_OK) {
        pl_kv_drop(s->kv);
        drop_openings(s);
        return status;
    }
    PL_TRY(commit(s, mb, err));
    int32_t first = 0, n_out = 0, out_base = 0;
    for (int32_t i = 0; i < mb->n_rows; i++) {
        bool wants = s->has_head && mb->rows[i].logits;
        if (wants && n_out == s->plan.n_out_max) {
            PL_TRY(run_part(s, mb, first, i - first, n_out, out_base, err));
            out_base += n_out;
            first = i;
            n_out = 0;
        }
        if (wants) s->out_rows[n_out++] = i - first;
    }
    return first < mb->n_rows ? run_part(s, mb, first, mb->n_rows - first, n_out, out_base, err) : PL_OK;
}
