/* What a model costs, read from its header alone: the numbers that placement needs. The coordinator sees no more of the
 * engine's models.
 *
 * Everything here is an upper bound that the stage keeps to: tests compare it with what a stage really takes.
 * Threads: a profile never changes after opening. */
#pragma once

#include "engine/gguf/read.h"

typedef struct pl_model_profile pl_model_profile;

/* The place of a tensor in the pipeline. A tied embedding is both: the first and the last stage need it. */
enum { PL_UNIT_EMBED = -1, PL_UNIT_HEAD = -2 }; /* otherwise the layer's number */

/* Types of the KV cache, of keys and of values: f32, f16, bf16, q8_0 or q4_0. */
typedef struct pl_cache_types {
    pl_type k, v;
} pl_cache_types;
#define PL_CACHE_BOTH(type) ((pl_cache_types){(type), (type)})

/* The options that decide how much memory a stage takes. */
typedef struct pl_stage_shape {
    int32_t layer_first, layer_end; /* first..end-1; embeds when first is 0, has the head when end is n_layer */
    int32_t n_blocks;               /* of PL_KV_PAGE positions each, shared by all sequences */
    int32_t n_ctx;                  /* the longest sequence, in positions */
    int32_t n_seqs;                 /* open sequences at once */
    int32_t n_rows;                 /* the largest micro-batch */
    int32_t n_threads;
    pl_cache_types cache;
} pl_stage_shape;

typedef struct pl_stage_memory {
    uint64_t weights; /* bytes of the tensors, each counted once */
    uint64_t kv;
    uint64_t compute; /* intermediates, scratch, inputs and outputs, sampler, page tables */
} pl_stage_memory;

/* g is borrowed. PL_ERR_UNSUPPORTED names an unknown architecture; PL_ERR_FORMAT lists all missing or wrong tensors and
 * keys. */
PL_MUST_CHECK pl_status pl_model_profile_open(pl_model_profile **out, const pl_gguf *g, pl_error *err);
void pl_model_profile_close(pl_model_profile *p);

const char *pl_model_arch(const pl_model_profile *p);
const char *pl_model_name(const pl_model_profile *p); /* general.name, "" when absent */
int32_t pl_model_n_layer(const pl_model_profile *p);
int32_t pl_model_n_embd(const pl_model_profile *p); /* width of the activations between stages */
int32_t pl_model_n_vocab(const pl_model_profile *p);
int32_t pl_model_n_adapters(const pl_model_profile *p); /* see pl_gguf_add_adapter */
int32_t pl_model_n_ctx_train(const pl_model_profile *p);
/* Whether the model gives embeddings only, of sequences that it sees whole. */
bool pl_model_is_encoder(const pl_model_profile *p);
/* Tensors that a stage of these layers needs: indices of pl_gguf_tensor_at in ascending order; returns how many (out NULL: only counts). */
size_t pl_model_stage_tensors(const pl_model_profile *p, int32_t layer_first, int32_t layer_end, size_t *out);
/* Bytes of the weights of one unit (a layer, PL_UNIT_EMBED, PL_UNIT_HEAD). */
uint64_t pl_model_unit_bytes(const pl_model_profile *p, int32_t unit);
/* Multiply-adds per token of one unit, for predictions. */
uint64_t pl_model_unit_macs(const pl_model_profile *p, int32_t unit);
/* Bytes of KV that one block takes in one layer. */
uint64_t pl_model_kv_block_bytes(const pl_model_profile *p, int32_t layer, pl_cache_types cache);
/* Whether a KV cache can be of this type at all, and whether this model's can be of these: PL_ERR_UNSUPPORTED says why
 * not. Quantized ones take heads of whole blocks of 32. */
bool pl_cache_type_known(pl_type type);
PL_MUST_CHECK pl_status pl_model_cache_check(const pl_model_profile *p, pl_cache_types cache, pl_error *err);
pl_stage_memory pl_model_stage_memory(const pl_model_profile *p, const pl_stage_shape *shape);
