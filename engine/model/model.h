/* A model's description inside the engine: what is behind a pl_model_profile, and the graph of any range of its layers.
 *
 * Threads: a description never changes after opening; graphs belong to their makers. */
#pragma once

#include "engine/base/map.h"
#include "engine/model/arch.h"
#include "engine/model/profile.h"

/* Where each weight of the model is in the file: indices of pl_gguf_tensor_at, -1 for none. */
typedef struct pl_weight_index {
    int32_t (*layers)[PL_W_LAYER_COUNT]; /* [n_layer] */
    int32_t model[PL_W_COUNT];           /* from PL_W_TOKEN_EMBD on */
    int32_t n_layer, n_adapters;
    float alpha[PL_ADAPTERS_MAX];
    int32_t (*adapters)[2]; /* lora_a and lora_b; see pl_adapter_pair */
} pl_weight_index;
/* The tensors of an adapter for a layer's weight; both -1 where it has none. */
int32_t *pl_adapter_pair(const pl_weight_index *w, int32_t adapter, int32_t layer, pl_slot slot);
/* Finds them, marks them in used, and checks them against the weights that out has. index: of the tensors' names. */
PL_MUST_CHECK pl_status pl_adapters_find(pl_weight_index *out, const pl_gguf *g, const pl_hparams *hp,
                                         const pl_map *index, bool *used, pl_problems *problems, pl_error *err);

struct pl_model_profile {
    const pl_gguf *g;
    const pl_arch *arch;
    pl_hparams hp;
    pl_weight_index index;
    char *name;
};

/* Finds all weights and checks type and shape of each against hp. What is missing, wrong or unknown goes into problems.
 */
PL_MUST_CHECK pl_status pl_weights_find(pl_weight_index *out, const pl_gguf *g, const pl_arch *arch,
                                        const pl_hparams *hp, pl_problems *problems, pl_error *err);
void pl_weights_fini(pl_weight_index *w);

/* The cache of a layer. */
pl_kv_layout pl_model_kv_layout(const pl_hparams *hp, int32_t layer, pl_cache_types cache);

/* A graph of layers layer_first..layer_end-1 over n_rows rows, of which n_out want logits (with the head only). */
typedef struct pl_graph_request {
    int32_t layer_first, layer_end;
    bool embed, head;
    bool embeddings; /* of the rows that want them, instead of logits */
    int32_t n_rows, n_out, n_pages, n_blocks;
    pl_cache_types cache;
    /* Layout and data of the file's tensor i, and the cache's bytes of a layer; NULL for a graph that is only planned.
     */
    const void *(*weight)(void *user, size_t i, pl_layout *layout);
    void *(*kv)(void *user, int32_t layer);
    void *user;
} pl_graph_request;
pl_graph_request pl_graph_request_of(const pl_stage_shape *shape, const pl_model_profile *p, int32_t n_rows,
                                     int32_t n_out);
/* The graph and its tensors live in c. PL_ERR_NO_MEMORY only. */
PL_MUST_CHECK pl_status pl_model_graph_build(pl_graph **out, pl_model_graph *io, pl_graph_ctx *c,
                                             const pl_model_profile *p, const pl_graph_request *r, pl_error *err);

/* Where a stage's compute memory goes. */
typedef struct pl_compute_plan {
    size_t intermediates; /* inputs, intermediates and outputs of the largest graph */
    size_t scratch;
    size_t tables; /* page tables, histories, row lists */
    size_t sampler;
    size_t graphs;     /* descriptions of the graphs that are kept */
    int32_t n_out_max; /* rows with logits in one run; more are run in several. Of an encoder, all rows */
} pl_compute_plan;
/* PL_ERR_NO_MEMORY only. */
PL_MUST_CHECK pl_status pl_model_compute_plan(const pl_model_profile *p, const pl_stage_shape *shape,
                                              pl_compute_plan *out, pl_error *err);

#define PL_MODEL_ALIGN         64  /* of every tensor in the compute buffer: a cache line */
#define PL_STAGE_GRAPHS_MAX    8   /* graphs that a stage keeps; see stage.c */
#define PL_STAGE_ROW_BYTES     16  /* what a stage notes per row of a batch */
#define PL_STAGE_SEQ_BYTES     512 /* and per sequence, beside its history and its pages */
#define PL_STAGE_GRAMMAR_BYTES 256 /* the texts of the words, their tree, and the places of grammars, per word */
#define PL_STAGE_SAMPLER_BYTES 28  /* a sampler's scratch, and one row of logits, per word of the vocabulary */

/* Whether the embedding is the output matrix too. */
static inline bool pl_model_is_tied(const pl_model_profile *p)
{
    return p->index.model[PL_W_OUTPUT] < 0 && !p->arch->encoder;
}
static inline bool pl_shape_embeds(const pl_stage_shape *s)
{
    return s->layer_first == 0;
}
static inline bool pl_shape_has_head(const pl_stage_shape *s, const pl_model_profile *p)
{
    return s->layer_end == p->hp.n_layer;
}
static inline int32_t pl_shape_pages(const pl_stage_shape *s)
{
    return (s->n_ctx + PL_KV_PAGE - 1) / PL_KV_PAGE;
}
/* PL_ERR_INVALID names what is out of range. */
PL_MUST_CHECK pl_status pl_shape_check(const pl_stage_shape *s, const pl_model_profile *p, pl_error *err);
