/* The table of architectures. One is a row: metadata keys, tensor names and flags as data, and one graph builder.
 *
 * To add one: a file in arch/ that defines a pl_arch, and its line in arch.c. The builder is made of blocks.h and must
 * be able to build any contiguous range of layers, [embed] layers a..b [head]; nothing else in the engine knows which
 * architecture runs. Threads: the table is constant. */
#pragma once

#include "engine/graph/graph.h"
#include "engine/model/hparams.h"

/* What a weight is for. Layer weights first, then those of the whole model. */
typedef enum pl_slot {
    PL_W_ATTN_NORM,
    PL_W_ATTN_Q,
    PL_W_ATTN_K,
    PL_W_ATTN_V,
    PL_W_ATTN_OUT,
    PL_W_ATTN_Q_B,
    PL_W_ATTN_K_B,
    PL_W_ATTN_V_B,
    PL_W_ATTN_OUT_B,
    PL_W_FFN_NORM,
    PL_W_FFN_GATE,
    PL_W_FFN_UP,
    PL_W_FFN_DOWN,
    PL_W_FFN_GATE_B,
    PL_W_FFN_UP_B,
    PL_W_FFN_DOWN_B,
    PL_W_LAYER_COUNT,
    PL_W_TOKEN_EMBD = PL_W_LAYER_COUNT,
    PL_W_OUTPUT_NORM,
    PL_W_OUTPUT,
    PL_W_ROPE_FREQS,
    PL_W_COUNT
} pl_slot;

/* The length of a dimension, by its name in the hparams. */
typedef enum pl_dim {
    PL_DIM_END, /* no more dimensions */
    PL_DIM_EMBD,
    PL_DIM_VOCAB,
    PL_DIM_Q,  /* d_head * n_head */
    PL_DIM_KV, /* d_head * n_head_kv */
    PL_DIM_FF,
    PL_DIM_COUPLES /* n_rot / 2 */
} pl_dim;

enum {
    PL_SPEC_OPTIONAL = 1,
    PL_SPEC_PRECISE = 2 /* products with it are pl_mul_mat_precise */
};

/* name is without "blk.N." for layer slots. Two dimensions are a matrix of any weight type; one is a vector, which is
 * f32. */
typedef struct pl_weight_spec {
    pl_slot slot;
    const char *name;
    pl_dim dims[2];
    int flags;
} pl_weight_spec;

/* The leaves of one graph. Inputs are written before each run; those that a stage does not need are NULL. */
typedef struct pl_model_graph {
    pl_tensor *ids;     /* i32 [n_rows], with the embedding */
    pl_tensor *hidden;  /* f32 [n_embd, n_rows], without it */
    pl_tensor *pos;     /* i32 [n_rows] */
    pl_tensor *slots;   /* i32 [n_rows] */
    pl_tensor *tables;  /* i32 [n_pages, n_rows]; a row is only read up to its position's page */
    pl_tensor *rope;    /* f32 [n_rot, n_rows] */
    pl_tensor *out_ids; /* i32 [n_out]: rows that want logits; with the head, and only when some rows do not */
    /* Result: hidden [n_embd, n_rows], or logits [n_vocab, n_out], or NULL for a head without rows that want logits. */
    pl_tensor *result;
} pl_model_graph;

/* What a builder works with. */
typedef struct pl_build {
    pl_graph_ctx *c;
    const struct pl_arch *arch;
    const pl_hparams *hp;
    int32_t layer_first, layer_end;
    bool embed, head;
    int32_t n_rows, n_out;
    pl_tensor *(*layer_weights)[PL_W_LAYER_COUNT]; /* [layer_end - layer_first]; NULL where the file has none */
    pl_tensor *weights[PL_W_COUNT];                /* from PL_W_TOKEN_EMBD on */
    pl_tensor **kv;                                /* [layer_end - layer_first] */
    pl_model_graph io;
} pl_build;

typedef struct pl_arch {
    const char *name; /* general.architecture */
    bool rope_neox;
    const pl_weight_spec *specs; /* ends with name NULL */
    /* Keys beyond pl_hparams_read's, and what this architecture cannot be. NULL: nothing. */
    void (*check)(pl_hparams *hp, const pl_gguf *g, pl_problems *problems);
    /* Records the range of layers; inputs are in b->io. Returns the output: b->io's result, or what must still be
     * computed when there is none. */
    pl_tensor *(*build)(pl_build *b);
} pl_arch;

/* The row of this name, or NULL. */
const pl_arch *pl_arch_find(pl_str name);
/* Whether the weight in this slot has PL_SPEC_PRECISE. A tied embedding stands in PL_W_OUTPUT when it is the output. */
bool pl_arch_is_precise(const pl_arch *arch, pl_slot slot);
/* All names, for Hello and error texts: as many as *n says. */
const char *const *pl_arch_names(size_t *n);

extern const pl_arch pl_arch_llama;
