/* The table of architectures. One is a row: metadata keys, tensor names and flags as data, and one graph builder.
 *
 * To add one: a file in arch/ that defines a pl_arch, and its line in arch.c. The builder is made of blocks.h and must
 * be able to build any contiguous range of layers, [embed] layers a..b [head]; nothing else in the engine knows which
 * architecture runs. Threads: the table is constant. */
#pragma once

#include "engine/graph/graph.h"
#include "engine/model/hparams.h"

/* What a weight is for. Layer weights first, then those of the whole model. Each has one name in all files: arch.c. */
typedef enum pl_slot {
    PL_W_ATTN_NORM,
    PL_W_ATTN_NORM_B,
    PL_W_ATTN_QKV,
    PL_W_ATTN_QKV_B,
    PL_W_ATTN_Q,
    PL_W_ATTN_K,
    PL_W_ATTN_V,
    PL_W_ATTN_OUT,
    PL_W_ATTN_Q_B,
    PL_W_ATTN_K_B,
    PL_W_ATTN_V_B,
    PL_W_ATTN_OUT_B,
    PL_W_ATTN_Q_NORM,
    PL_W_ATTN_K_NORM,
    PL_W_ATTN_POST_NORM,
    PL_W_FFN_NORM,
    PL_W_FFN_NORM_B,
    PL_W_FFN_GATE,
    PL_W_FFN_UP,
    PL_W_FFN_DOWN,
    PL_W_FFN_GATE_B,
    PL_W_FFN_UP_B,
    PL_W_FFN_DOWN_B,
    PL_W_FFN_POST_NORM,
    PL_W_ATTN_SINKS,
    PL_W_ROUTER, /* which experts take a row */
    PL_W_ROUTER_B,
    PL_W_ROUTER_CHOICE_B, /* added to the scores for the choice alone */
    PL_W_EXPERTS_GATE,
    PL_W_EXPERTS_UP,
    PL_W_EXPERTS_DOWN,
    PL_W_EXPERTS_GATE_B,
    PL_W_EXPERTS_UP_B,
    PL_W_EXPERTS_DOWN_B,
    PL_W_SHARED_GATE, /* of the expert that takes all rows */
    PL_W_SHARED_UP,
    PL_W_SHARED_DOWN,
    PL_W_SHARED_ROUTER, /* how much of it a row takes */
    PL_W_ATTN_OUT_NORM, /* of the residual stream behind attention, in encoders */
    PL_W_ATTN_OUT_NORM_B,
    PL_W_LAYER_OUT_NORM,
    PL_W_LAYER_OUT_NORM_B,
    PL_W_LAYER_COUNT,
    PL_W_TOKEN_EMBD = PL_W_LAYER_COUNT,
    PL_W_POSITION_EMBD,
    PL_W_TOKEN_TYPES,
    PL_W_EMBD_NORM,
    PL_W_EMBD_NORM_B,
    PL_W_OUTPUT_NORM,
    PL_W_OUTPUT_NORM_B,
    PL_W_OUTPUT,
    PL_W_OUTPUT_B,
    PL_W_ROPE_FREQS,
    PL_W_ROPE_LONG,  /* the same, for contexts beyond that of the first training */
    PL_W_ROPE_SHORT, /* and for those within it */
    PL_W_COUNT,
    PL_W_NONE = -1
} pl_slot;

/* The length of a dimension, by its name in the hparams. */
typedef enum pl_dim {
    PL_DIM_END, /* no more dimensions */
    PL_DIM_EMBD,
    PL_DIM_VOCAB,
    PL_DIM_Q,   /* d_head * n_head */
    PL_DIM_KV,  /* d_head * n_head_kv */
    PL_DIM_QKV, /* d_head * (n_head + 2 * n_head_kv) */
    PL_DIM_FF,
    PL_DIM_FF2, /* 2 * n_ff: gate and up in one */
    PL_DIM_HEAD,
    PL_DIM_N_HEAD,
    PL_DIM_N_HEAD_KV,
    PL_DIM_EXPERTS,   /* n_expert */
    PL_DIM_FF_EXPERT, /* n_ff_expert */
    PL_DIM_FF_SHARED, /* n_ff_shared */
    PL_DIM_CTX,       /* n_ctx_train */
    PL_DIM_COUPLES, /* n_rot / 2 */
    PL_DIM_ANY
} pl_dim;

/* Which stages need a weight of the whole model. */
typedef enum pl_place { PL_PLACE_LAYER, PL_PLACE_EMBED, PL_PLACE_HEAD, PL_PLACE_ALL } pl_place;

/* name is without "blk.N." for layer slots. Two dimensions are a matrix of any weight type, three a matrix for each expert; one is a
 * vector, which is f32. */
typedef struct pl_slot_info {
    const char *name;
    pl_dim dims[3];
    pl_place place;
    pl_precision precision; /* of products with it (pl_mul_mat_precise); arch.c says why */
} pl_slot_info;
const pl_slot_info *pl_slot_get(pl_slot slot);

enum {
    PL_SPEC_OPTIONAL = 1,
    PL_SPEC_DENSE = 2,  /* only in layers without experts */
    PL_SPEC_EXPERTS = 4 /* only in layers with experts (PL_LAYER_EXPERTS) */
};

/* A weight that an architecture has. */
typedef struct pl_weight_spec {
    pl_slot slot;
    int flags;
    pl_dim dims[3]; /* PL_DIM_END: as in the slot's row */
} pl_weight_spec;

/* Groups of specs that most architectures share. An output that is absent is tied to the embedding. */
/* clang-format off */
#define PL_SPECS_MODEL {PL_W_TOKEN_EMBD, 0, {0}}, {PL_W_OUTPUT_NORM, 0, {0}}, {PL_W_OUTPUT, PL_SPEC_OPTIONAL, {0}}
#define PL_SPECS_QKV {PL_W_ATTN_Q, 0, {0}}, {PL_W_ATTN_K, 0, {0}}, {PL_W_ATTN_V, 0, {0}}, {PL_W_ATTN_OUT, 0, {0}}
#define PL_SPECS_QKV_BIAS                                                                                              \
    {PL_W_ATTN_Q_B, PL_SPEC_OPTIONAL, {0}}, {PL_W_ATTN_K_B, PL_SPEC_OPTIONAL, {0}},                                    \
    {PL_W_ATTN_V_B, PL_SPEC_OPTIONAL, {0}}, {PL_W_ATTN_OUT_B, PL_SPEC_OPTIONAL, {0}}
/* One matrix or three. */
#define PL_SPECS_QKV_EITHER                                                                                            \
    {PL_W_ATTN_QKV, PL_SPEC_OPTIONAL, {0}}, {PL_W_ATTN_QKV_B, PL_SPEC_OPTIONAL, {0}},                                  \
    {PL_W_ATTN_Q, PL_SPEC_OPTIONAL, {0}}, {PL_W_ATTN_K, PL_SPEC_OPTIONAL, {0}},                                        \
    {PL_W_ATTN_V, PL_SPEC_OPTIONAL, {0}}, {PL_W_ATTN_OUT, 0, {0}}
#define PL_SPECS_GATED {PL_W_FFN_GATE, 0, {0}}, {PL_W_FFN_UP, 0, {0}}, {PL_W_FFN_DOWN, 0, {0}}
#define PL_SPECS_GATED_BIAS                                                                                            \
    {PL_W_FFN_GATE_B, PL_SPEC_OPTIONAL, {0}}, {PL_W_FFN_UP_B, PL_SPEC_OPTIONAL, {0}},                                  \
    {PL_W_FFN_DOWN_B, PL_SPEC_OPTIONAL, {0}}
#define PL_SPECS_GATED_DENSE                                                                                           \
    {PL_W_FFN_GATE, PL_SPEC_DENSE, {0}}, {PL_W_FFN_UP, PL_SPEC_DENSE, {0}}, {PL_W_FFN_DOWN, PL_SPEC_DENSE, {0}}
#define PL_SPECS_EXPERTS                                                                                               \
    {PL_W_ROUTER, PL_SPEC_EXPERTS, {0}}, {PL_W_EXPERTS_GATE, PL_SPEC_EXPERTS, {0}},                                    \
    {PL_W_EXPERTS_UP, PL_SPEC_EXPERTS, {0}}, {PL_W_EXPERTS_DOWN, PL_SPEC_EXPERTS, {0}}
#define PL_SPECS_SHARED                                                                                                \
    {PL_W_SHARED_GATE, PL_SPEC_EXPERTS, {0}}, {PL_W_SHARED_UP, PL_SPEC_EXPERTS, {0}},                                  \
    {PL_W_SHARED_DOWN, PL_SPEC_EXPERTS, {0}}
#define PL_SPECS_END {PL_W_COUNT, 0, {0}}
/* clang-format on */

/* The leaves of one graph. Inputs are written before each run; those that a stage does not need are NULL. */
typedef struct pl_model_graph {
    pl_tensor *ids;         /* i32 [n_rows], with the embedding */
    pl_tensor *hidden;      /* f32 [n_embd, n_rows], without it */
    pl_tensor *pos;         /* i32 [n_rows] */
    pl_tensor *last;        /* i32 [n_rows]: the last position of each row's sequence, for encoders; else NULL */
    pl_tensor *types;       /* i32 [n_rows]: token types, with the embedding of those that have them */
    pl_tensor *slots;       /* i32 [n_rows] */
    pl_tensor *tables;      /* i32 [n_pages, n_rows]; a row is only read up to its position's page */
    pl_tensor *rope;        /* f32 [n_rot, n_rows] */
    pl_tensor *rope_local;  /* the same for layers with a window; only with pl_hparams.has_rope_local */
    pl_tensor *temperature; /* f32 [1, 1, n_rows]: factors on q; only with pl_hparams.temperature */
    pl_tensor *adapter_scales[PL_ADAPTERS_MAX]; /* f32 [1, n_rows]; of those that a layer of this range has */
    pl_tensor *out_ids;     /* i32 [n_out]: rows that want logits; with the head, and only when some rows do not */
    /* Result: hidden [n_embd, n_rows], or logits [n_vocab, n_out] or embeddings [n_embd, n_out], or NULL for a head
     * without rows that want any. */
    pl_tensor *result;
} pl_model_graph;

/* What a builder works with. */
typedef struct pl_build {
    pl_graph_ctx *c;
    const struct pl_arch *arch;
    const pl_hparams *hp;
    int32_t layer_first, layer_end;
    bool embed, head;
    bool embeddings; /* the result is what the output matrix would multiply */
    int32_t n_rows, n_out;
    pl_tensor *(*layer_weights)[PL_W_LAYER_COUNT]; /* [layer_end - layer_first]; NULL where the file has none */
    pl_tensor *weights[PL_W_COUNT];                /* from PL_W_TOKEN_EMBD on */
    pl_tensor **kv;                                /* [layer_end - layer_first] */
    int32_t n_adapters;
    pl_tensor *(*adapters)[2];  /* lora_a, lora_b: [n_adapters][layer_end - layer_first][PL_W_LAYER_COUNT] */
    const float *adapter_alpha; /* [n_adapters] */
    pl_model_graph io;
} pl_build;

typedef enum pl_norm { PL_NORM_RMS, PL_NORM_LAYER } pl_norm;
typedef enum pl_rope_kind { PL_ROPE_NORMAL, PL_ROPE_NEOX, PL_ROPE_NONE } pl_rope_kind;

typedef struct pl_arch {
    const char *name; /* general.architecture */
    bool encoder; /* rows see what is behind them too; gives embeddings, never logits */
    pl_norm norm;
    pl_rope_kind rope;
    /* The feed-forward part: down(act(gate(x)) * up(x)) where the layer has a gate, or has gate and up in one matrix,
     * else down(act(up(x))). */
    pl_fn act;
    bool clamped; /* gate and up of experts are clamped, and up gets 1 added (gpt-oss) */
    bool ffn_norm_is_post; /* the norm before the feed-forward part has the name of the one behind attention */
    const pl_weight_spec *specs; /* ends with PL_SPECS_END */
    /* Keys beyond pl_hparams_read's, and what this architecture cannot be. NULL: nothing. */
    void (*check)(pl_hparams *hp, const pl_gguf *g, pl_problems *problems);
    /* Records the range of layers; inputs are in b->io. Returns the output: b->io's result, or what must still be
     * computed when there is none. Most are pl_build_decoder (blocks.h). */
    pl_tensor *(*build)(pl_build *b);
} pl_arch;

/* The row of this name, or NULL. */
const pl_arch *pl_arch_find(pl_str name);
/* The precision of products with the weight in this slot. A tied embedding stands in PL_W_OUTPUT when it is the
 * output. */
pl_precision pl_arch_precision(const pl_arch *arch, pl_slot slot);
/* All names, for Hello and error texts: as many as *n says. */
const char *const *pl_arch_names(size_t *n);

/* One line each in arch.c, and one file in arch/. */
extern const pl_arch pl_arch_bert, pl_arch_cohere2, pl_arch_command_r, pl_arch_exaone4, pl_arch_gemma, pl_arch_gemma2, pl_arch_gemma3, pl_arch_glm4, pl_arch_glm4moe, pl_arch_gpt2, pl_arch_gpt_oss, pl_arch_gptneox, pl_arch_granite, pl_arch_granitemoe, pl_arch_llama, pl_arch_mistral3, pl_arch_nomic_bert, pl_arch_olmo2, pl_arch_olmoe, pl_arch_phi2, pl_arch_phi3, pl_arch_qwen2, pl_arch_qwen2moe, pl_arch_qwen3, pl_arch_qwen3moe, pl_arch_smollm3, pl_arch_stablelm, pl_arch_starcoder2;
