#include "engine/model/profile.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/alloc.h"
#include "engine/graph/fuse.h"
#include "engine/graph/scratch.h"
#include "engine/model/kv.h"
#include "engine/model/model.h"

/* One run makes logits for at most so many rows, or for one row of every sequence: they are a vocabulary wide each. */
#define OUT_ROWS_MIN 32

pl_status pl_model_profile_open(pl_model_profile **out, const pl_gguf *g, pl_error *err)
{
    *out = NULL;
    pl_str arch_name = {0};
    bool found = false;
    PL_TRY(pl_gguf_get_str(g, "general.architecture", &arch_name, &found, err));
    if (!found) return pl_fail(err, PL_ERR_FORMAT, "model: key general.architecture is missing");
    const pl_arch *arch = pl_arch_find(arch_name);
    if (arch == NULL) {
        size_t n_names;
        const char *const *names = pl_arch_names(&n_names);
        pl_status unknown =
            pl_fail(err, PL_ERR_UNSUPPORTED, "architecture \"%.*s\" is not known to this build, which has",
                    (int)(arch_name.size > 64 ? 64 : arch_name.size), arch_name.data);
        for (size_t i = 0; err && i < n_names; i++) {
            size_t at = strlen(err->text);
            snprintf(err->text + at, sizeof err->text - at, "%s %s", i ? "," : "", names[i]);
        }
        return pl_note(err, unknown, "model");
    }

    pl_model_profile *p = pl_calloc(1, sizeof *p);
    if (p == NULL) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for a model's profile");
    p->g = g;
    p->arch = arch;
    pl_problems problems = {0};
    pl_status s;
    const char *eps_key =
        arch->norm == PL_NORM_RMS ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon";
    pl_hparams_read(&p->hp, g, arch->name, eps_key, &problems);
    p->hp.rope.neox = arch->rope == PL_ROPE_NEOX;
    if (arch->rope == PL_ROPE_NONE) p->hp.rope.n_rot = 0;
    p->hp.rope_local = p->hp.rope;
    bool causal = false;
    if (arch->encoder && pl_hparam_bool(g, arch->name, "attention.causal", false, &causal, &problems) && causal)
        pl_problem_unsupported(&problems, "key %s.attention.causal: true is not known for an encoder", arch->name);
    if (arch->check) arch->check(&p->hp, g, &problems);
    pl_hparams_check_keys(g, arch->name, &problems);
    /* Shapes mean nothing before the numbers are right. */
    bool numbers_ok = (problems.n == 0 || problems.unsupported) && p->hp.n_layer > 0 && p->hp.n_vocab > 0;
    if (numbers_ok && (s = pl_weights_find(&p->index, g, arch, &p->hp, &problems, err)) != PL_OK) {
        pl_problems_fini(&problems);
        goto fail;
    }
    if (!numbers_ok && p->hp.n_vocab == 0 && problems.n == 0)
        pl_problem(&problems, "tensor token_embd.weight is missing");
    if ((s = pl_problems_done(&problems, "model", err)) != PL_OK) goto fail;

    pl_str name = {0};
    pl_error ignored;
    if (pl_gguf_get_str(g, "general.name", &name, &found, &ignored) != PL_OK) name = (pl_str){0};
    p->name = pl_strndup(name.size ? name.data : "", name.size);
    if (p->name == NULL) {
        s = pl_fail(err, PL_ERR_NO_MEMORY, "no memory for a model's profile");
        goto fail;
    }
    *out = p;
    return PL_OK;
fail:
    pl_model_profile_close(p);
    return s;
}

void pl_model_profile_close(pl_model_profile *p)
{
    if (p == NULL) return;
    pl_weights_fini(&p->index);
    pl_free(p->name);
    pl_free(p);
}

const char *pl_model_arch(const pl_model_profile *p)
{
    return p->arch->name;
}
const char *pl_model_name(const pl_model_profile *p)
{
    return p->name;
}
int32_t pl_model_n_layer(const pl_model_profile *p)
{
    return p->hp.n_layer;
}
int32_t pl_model_n_embd(const pl_model_profile *p)
{
    return p->hp.n_embd;
}
int32_t pl_model_n_vocab(const pl_model_profile *p)
{
    return p->hp.n_vocab;
}
int32_t pl_model_n_adapters(const pl_model_profile *p)
{
    return p->index.n_adapters;
}
int32_t pl_model_n_ctx_train(const pl_model_profile *p)
{
    return p->hp.n_ctx_train;
}

bool pl_model_is_encoder(const pl_model_profile *p)
{
    return p->arch->encoder;
}

static int by_index(const void *a, const void *b)
{
    size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return x < y ? -1 : x > y;
}

typedef struct list {
    size_t n, *out;
} list;

static void add(list *l, int32_t index)
{
    if (index < 0) return;
    if (l->out) l->out[l->n] = (size_t)index;
    l->n++;
}

size_t pl_model_stage_tensors(const pl_model_profile *p, int32_t layer_first, int32_t layer_end, size_t *out)
{
    list l = {0, out};
    bool embeds = layer_first == 0, head = layer_end == p->hp.n_layer;
    bool tied = pl_model_is_tied(p);
    for (int s = PL_W_LAYER_COUNT; s < PL_W_COUNT; s++) {
        pl_place place = pl_slot_get(s)->place;
        bool wanted = place == PL_PLACE_ALL || (place == PL_PLACE_EMBED ? embeds : head);
        if (wanted || (s == PL_W_TOKEN_EMBD && head && tied)) add(&l, p->index.model[s]);
    }
    for (int32_t i = layer_first; i < layer_end; i++)
        for (int s = 0; s < PL_W_LAYER_COUNT; s++) {
            add(&l, p->index.layers[i][s]);
            for (int32_t k = 0; k < p->index.n_adapters; k++) {
                const int32_t *pair = pl_adapter_pair(&p->index, k, i, s);
                add(&l, pair[0]);
                add(&l, pair[1]);
            }
        }
    if (out) qsort(out, l.n, sizeof *out, by_index);
    return l.n;
}

/* The tensors of one unit, each with what a visitor makes of it, added up. */
static uint64_t sum_unit(const pl_model_profile *p, int32_t unit, uint64_t (*of)(const pl_model_profile *p, const pl_gguf_tensor *t))
{
    uint64_t sum = 0;
    const int32_t *model = p->index.model;
    int32_t list_of[PL_W_LAYER_COUNT * (1 + 2 * PL_ADAPTERS_MAX) + PL_W_COUNT];
    int n = 0;
    pl_place place = unit == PL_UNIT_EMBED  ? PL_PLACE_EMBED
                     : unit == PL_UNIT_HEAD ? PL_PLACE_HEAD
                                            : PL_PLACE_ALL; /* every stage has it: an upper bound counts it per layer */
    for (int s = PL_W_LAYER_COUNT; s < PL_W_COUNT; s++)
        if (pl_slot_get(s)->place == place) list_of[n++] = model[s];
    if (place == PL_PLACE_HEAD && pl_model_is_tied(p)) list_of[n++] = model[PL_W_TOKEN_EMBD];
    if (place == PL_PLACE_ALL)
        for (int s = 0; s < PL_W_LAYER_COUNT; s++) {
            list_of[n++] = p->index.layers[unit][s];
            for (int32_t k = 0; k < p->index.n_adapters; k++)
                for (int i = 0; i < 2; i++) list_of[n++] = pl_adapter_pair(&p->index, k, unit, s)[i];
        }
    for (int i = 0; i < n; i++)
        if (list_of[i] >= 0) sum += of(p, pl_gguf_tensor_at(p->g, (size_t)list_of[i]));
    return sum;
}

static uint64_t bytes_of(const pl_model_profile *p, const pl_gguf_tensor *t)
{
    (void)p;
    return t->size;
}
/* Of all matrices of a tensor of experts a row meets those that it uses. */
static int64_t matrices_met(const pl_model_profile *p, const pl_gguf_tensor *t)
{
    return t->ne[2] > 1 && t->ne[2] == p->hp.experts.n ? p->hp.experts.n_used : t->ne[2];
}

static uint64_t macs_of(const pl_model_profile *p, const pl_gguf_tensor *t)
{
    return t->ne[1] > 1 ? (uint64_t)t->ne[0] * (uint64_t)t->ne[1] * (uint64_t)matrices_met(p, t) : 0;
}

uint64_t pl_model_unit_bytes(const pl_model_profile *p, int32_t unit)
{
    return sum_unit(p, unit, bytes_of);
}

uint64_t pl_model_unit_macs(const pl_model_profile *p, int32_t unit)
{
    return unit == PL_UNIT_EMBED ? 0 : sum_unit(p, unit, macs_of); /* a row is looked up, not multiplied */
}

pl_kv_layout pl_model_kv_layout(const pl_hparams *hp, int32_t layer, pl_cache_types cache)
{
    (void)layer; /* all layers are alike so far */
    return (pl_kv_layout){
        .k_type = cache.k, .v_type = cache.v, .n_head = hp->n_head_kv, .d_k = hp->d_head, .d_v = hp->d_head};
}

uint64_t pl_model_kv_block_bytes(const pl_model_profile *p, int32_t layer, pl_cache_types cache)
{
    pl_kv_layout l = pl_model_kv_layout(&p->hp, layer, cache);
    return pl_kv_block_bytes(&l);
}

bool pl_cache_type_known(pl_type type)
{
    return pl_kv_layout_ok(&(pl_kv_layout){.k_type = type, .v_type = type, .n_head = 1, .d_k = 256, .d_v = 256});
}

pl_status pl_model_cache_check(const pl_model_profile *p, pl_cache_types cache, pl_error *err)
{
    if (!pl_cache_type_known(cache.k) || !pl_cache_type_known(cache.v))
        return pl_fail(err, PL_ERR_UNSUPPORTED, "a KV cache of type %s: f32, f16, bf16, q8_0 and q4_0 are known",
                       pl_type_name(pl_cache_type_known(cache.k) ? cache.v : cache.k));
    pl_kv_layout l = pl_model_kv_layout(&p->hp, 0, cache);
    if (!pl_kv_layout_ok(&l))
        return pl_fail(err, PL_ERR_UNSUPPORTED,
                       "a KV cache of types %s and %s takes heads of whole blocks of 32; this model's have %" PRId32 " and %" PRId32 " elements",
                       pl_type_name(cache.k), pl_type_name(cache.v), l.d_k, l.d_v);
    return PL_OK;
}

pl_status pl_shape_check(const pl_stage_shape *s, const pl_model_profile *p, pl_error *err)
{
    if (s->layer_first < 0 || s->layer_end <= s->layer_first || s->layer_end > p->hp.n_layer)
        return pl_fail(err, PL_ERR_INVALID, "layers %" PRId32 "..%" PRId32 " of a model with %" PRId32, s->layer_first,
                       s->layer_end, p->hp.n_layer);
    PL_TRY(pl_model_cache_check(p, s->cache, err));
    int32_t learned = p->index.model[PL_W_POSITION_EMBD];
    if (learned >= 0 && s->n_ctx > pl_gguf_tensor_at(p->g, (size_t)learned)->ne[1])
        return pl_fail(err, PL_ERR_INVALID, "a context of %" PRId32 " positions: the model has learned %" PRId64,
                       s->n_ctx, pl_gguf_tensor_at(p->g, (size_t)learned)->ne[1]);
    /* The bounds keep products of a shape's numbers inside 64 bits, and slots inside int32. */
    const struct {
        const char *name;
        int32_t value, max;
    } bounds[] = {
        {"n_blocks", s->n_blocks, INT32_MAX / PL_KV_PAGE},
        {"n_ctx", s->n_ctx, 1 << 28},
        {"n_seqs", s->n_seqs, 1 << 16},
        {"n_rows", s->n_rows, 1 << 16},
        {"n_threads", s->n_threads, 1024},
    };
    for (size_t i = 0; i < sizeof bounds / sizeof bounds[0]; i++)
        if (bounds[i].value < 1 || bounds[i].value > bounds[i].max)
            return pl_fail(err, PL_ERR_INVALID, "%s is %" PRId32 ", not in 1..%" PRId32, bounds[i].name,
                           bounds[i].value, bounds[i].max);
    return PL_OK;
}

/* The larger of size and what a product with the file's tensor index takes, of n rows or fewer. */
static size_t larger_scratch(size_t size, const pl_model_profile *p, pl_slot slot, int32_t index, int32_t n,
                             int32_t n_threads)
{
    const pl_gguf_tensor *t = index < 0 ? NULL : pl_gguf_tensor_at(p->g, (size_t)index);
    if (t == NULL || t->n_dims < 2) return size;
    pl_precision precision = pl_arch_precision(p->arch, slot);
    size_t need = t->ne[2] > 1 ? pl_scratch_mul_mat_id(t->type, t->ne[0], n * matrices_met(p, t), t->ne[2], precision, n_threads).total
                               : pl_scratch_mul_mat_most(t->type, t->ne[0], n, precision, n_threads);
    return need > size ? need : size;
}

/* The largest need of any operator of any layer, whose types may differ, for any batch. */
static size_t scratch_of(const pl_model_profile *p, const pl_stage_shape *shape, int32_t n_out_max)
{
    int32_t n_threads = shape->n_threads;
    size_t most =
        PL_SCRATCH_HEAD +
        (size_t)n_threads * pl_scratch_attention(p->hp.d_head, p->hp.d_head, p->hp.n_head, p->hp.n_head_kv).thread;
    for (int32_t l = shape->layer_first; l < shape->layer_end; l++)
        for (int slot = 0; slot < PL_W_LAYER_COUNT; slot++) {
            most = larger_scratch(most, p, slot, p->index.layers[l][slot], shape->n_rows, n_threads);
            for (int32_t k = 0; k < p->index.n_adapters; k++)
                for (int i = 0; i < 2; i++)
                    most = larger_scratch(most, p, slot, pl_adapter_pair(&p->index, k, l, slot)[i], shape->n_rows,
                                          n_threads);
        }
    int32_t output = p->index.model[PL_W_OUTPUT] >= 0 ? p->index.model[PL_W_OUTPUT] : p->index.model[PL_W_TOKEN_EMBD];
    if (pl_shape_has_head(shape, p) && !p->arch->encoder)
        most = larger_scratch(most, p, PL_W_OUTPUT, output, n_out_max, n_threads);
    return most;
}

/* In steady state the intermediates of a layer take the places of the layer before, so three layers have the peak of
 * all. */
#define PLANNED_LAYERS 3
/* A tensor's description and its entries in the graph's arrays (graph_impl.h). */
#define TENSOR_BYTES (sizeof(pl_tensor) + 80)
#define GRAPH_BYTES  (2 * 65536) /* what an arena may leave unused, and the rest of a graph */

static pl_status plan_layers(const pl_model_profile *p, pl_graph_request r, int32_t n_layers, size_t *peak,
                             size_t *n_tensors, pl_error *err)
{
    if (r.head)
        r.layer_first = r.layer_end - n_layers;
    else
        r.layer_end = r.layer_first + n_layers;
    pl_graph_ctx *c;
    PL_TRY(pl_graph_ctx_new(&c, err));
    pl_graph *g;
    pl_model_graph io;
    pl_status s = pl_model_graph_build(&g, &io, c, p, &r, err);
    /* Which fusions the backend will do is not known here: some bytes live longer with them and some shorter. */
    size_t fused = 0;
    if (s == PL_OK) s = pl_graph_plan(g, PL_MODEL_ALIGN, peak, err);
    if (s == PL_OK) pl_graph_fuse(g, PL_FUSE_ALL);
    if (s == PL_OK) s = pl_graph_plan(g, PL_MODEL_ALIGN, &fused, err);
    if (s == PL_OK && fused > *peak) *peak = fused;
    if (s == PL_OK) *n_tensors = (size_t)pl_graph_n_nodes(g) + (size_t)pl_graph_n_leaves(g);
    pl_graph_ctx_free(c);
    return s;
}

pl_status pl_model_compute_plan(const pl_model_profile *p, const pl_stage_shape *shape, pl_compute_plan *out,
                                pl_error *err)
{
    *out = (pl_compute_plan){0};
    int32_t n_layer = shape->layer_end - shape->layer_first,
            planned = n_layer < PLANNED_LAYERS ? n_layer : PLANNED_LAYERS;
    out->n_out_max = shape->n_seqs > OUT_ROWS_MIN ? shape->n_seqs : OUT_ROWS_MIN;
    /* A sequence that its rows see whole cannot be run in parts. */
    if (out->n_out_max > shape->n_rows || p->arch->encoder) out->n_out_max = shape->n_rows;
    pl_graph_request r = pl_graph_request_of(shape, p, shape->n_rows, out->n_out_max);
    size_t n_tensors = 0;
    PL_TRY(plan_layers(p, r, planned, &out->intermediates, &n_tensors, err));
    if (n_layer > planned) {
        size_t peak, fewer;
        PL_TRY(plan_layers(p, r, planned - 1, &peak, &fewer, err));
        n_tensors += (n_tensors - fewer) * (size_t)(n_layer - planned);
    }
    /* The layers planned may all turn by one of two tables, and the others by the other. */
    if (p->hp.has_rope_local)
        out->intermediates +=
            (size_t)(p->hp.rope.n_rot + p->hp.rope_local.n_rot) * sizeof(float) * (size_t)shape->n_rows;
    /* Best fit is not monotonic in the sizes: a smaller batch may leave a hole that the largest does not. */
    out->intermediates += out->intermediates / 32 + 4096;
    out->intermediates = (out->intermediates + PL_MODEL_ALIGN - 1) / PL_MODEL_ALIGN *
                         PL_MODEL_ALIGN; /* the scratch stands behind them */
    out->scratch = scratch_of(p, shape, out->n_out_max);
    size_t n_seqs = (size_t)shape->n_seqs, n_rows = (size_t)shape->n_rows;
    out->tables = pl_kv_bytes(shape->n_seqs, shape->n_blocks, shape->n_ctx) + n_rows * PL_STAGE_ROW_BYTES;
    out->tables += n_seqs * (size_t)p->index.n_adapters * sizeof(float);
    if (r.head) {
        out->tables += n_seqs * ((size_t)shape->n_ctx * sizeof(int32_t) + PL_STAGE_SEQ_BYTES);
        out->sampler = (size_t)p->hp.n_vocab * (PL_STAGE_SAMPLER_BYTES + PL_STAGE_GRAMMAR_BYTES);
    }
    out->graphs = PL_STAGE_GRAPHS_MAX * (n_tensors * TENSOR_BYTES + GRAPH_BYTES);
    return PL_OK;
}

pl_stage_memory pl_model_stage_memory(const pl_model_profile *p, const pl_stage_shape *shape)
{
    pl_stage_memory m = {0};
    pl_compute_plan plan;
    pl_error ignored;
    if (pl_shape_check(shape, p, &ignored) != PL_OK || pl_model_compute_plan(p, shape, &plan, &ignored) != PL_OK)
        return (pl_stage_memory){UINT64_MAX, UINT64_MAX, UINT64_MAX};

    size_t n = pl_model_stage_tensors(p, shape->layer_first, shape->layer_end, NULL);
    size_t *list_of = pl_calloc(n, sizeof *list_of);
    if (list_of == NULL) return (pl_stage_memory){UINT64_MAX, UINT64_MAX, UINT64_MAX};
    pl_model_stage_tensors(p, shape->layer_first, shape->layer_end, list_of);
    for (size_t i = 0; i < n; i++) m.weights += pl_gguf_tensor_at(p->g, list_of[i])->size;
    pl_free(list_of);
    for (int32_t l = shape->layer_first; l < shape->layer_end; l++)
        m.kv += pl_model_kv_block_bytes(p, l, shape->cache) * (uint64_t)shape->n_blocks;
    m.compute = (uint64_t)plan.intermediates + plan.scratch + plan.tables + plan.sampler + plan.graphs;
    return m;
}
