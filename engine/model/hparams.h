/* The numbers of a model, read from its metadata and checked, so that no file can reach an assertion of the graph.
 *
 * Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; "ARCH." stands for the architecture's name in front
 * of each. */
#pragma once

#include "engine/gguf/read.h"
#include "engine/model/problems.h"

typedef enum { PL_ROPE_SCALING_NONE, PL_ROPE_SCALING_LINEAR, PL_ROPE_SCALING_YARN } pl_rope_scaling;

/* How positions become angles: rope.c has the formulas. */
typedef struct pl_rope_params {
    int32_t n_rot; /* elements of a head that are rotated, even */
    bool neox;     /* couples (i, i + n_rot/2) instead of (2i, 2i + 1); set by the architecture */
    float freq_base;
    pl_rope_scaling scaling;
    float factor;                                        /* positions are stretched by it; 1 without scaling */
    int32_t n_ctx_orig;                                  /* YaRN: the context that the model was first trained for */
    float ext_factor, beta_fast, beta_slow; /* YaRN */
    bool exact_ramp;                        /* YaRN: the ramp begins and ends between couples (gpt-oss) */
    float log_multiplier;                   /* YaRN: mscale_all_dim, by whose temperature the usual one is divided; 0: none */
    float attn_factor;                      /* on cosines and sines, 1 unless the file says otherwise */
} pl_rope_params;

/* What one layer has that others have not. */
enum {
    PL_LAYER_NO_ROPE = 1, /* its attention knows no positions */
    PL_LAYER_EXPERTS = 4, /* its feed-forward part is a mixture of experts */
    PL_LAYER_WINDOW = 2   /* its attention sees pl_hparams.window positions only, and turns by rope_local where there is one */
};
/* What turns a router's products into scores, and the scores of the chosen into weights. */
typedef enum pl_gating {
    PL_GATING_SOFTMAX = 1,
    PL_GATING_SIGMOID = 2,
    PL_GATING_SOFTMAX_OF_CHOSEN = 3 /* scores are the products, weights their softmax */
} pl_gating;
#define PL_N_LAYER_MAX 4096

typedef struct pl_hparams {
    int32_t n_layer, n_embd, n_head, n_head_kv, d_head, n_ff, n_vocab, n_ctx_train;
    float norm_eps;
    bool parallel; /* attention and feed-forward both read the layer's input, and both are added to it */
    float attn_scale;     /* of q k^T: 1 / sqrt(d_head) unless the file says otherwise */
    float embd_scale;     /* of the embedding's rows; 1 */
    float residual_scale; /* of what each part of a layer adds; 1 */
    float logit_scale;    /* of the logits; 1 */
    /* q is multiplied by 1 + scale * ln(1 + floor(position / n_ctx)) ("Scalable-Softmax", Nakanishi 2025); scale 0:
     * not. */
    struct {
        float scale;
        int32_t n_ctx;
    } temperature;
    float attn_softcap, logit_softcap; /* 0: none */
    int32_t window;                    /* of layers with PL_LAYER_WINDOW: positions seen, with the own one */
    pl_rope_params rope, rope_local;
    bool has_rope_local;
    /* Mixtures of experts; n_expert 0: none. */
    struct {
        int32_t n, n_used, n_ff, n_ff_shared;
        int32_t n_groups, n_groups_used, n_best; /* choice among groups: pl_top_k_of_groups */
        pl_gating gating;
        bool norm;   /* weights are divided by their sum */
        float scale; /* of the weights; 1 */
    } experts;
    int32_t n_layer_more; /* layers of the file behind n_layer that are not computed */
    uint8_t layers[PL_N_LAYER_MAX]; /* PL_LAYER_ flags */
} pl_hparams;

/* Reads what all transformer decoders have in common; arch is the keys' prefix, eps_key the norms' epsilon. Whatever is missing, odd or too large
 * goes into problems. hp is usable only when there were none. */
void pl_hparams_read(pl_hparams *hp, const pl_gguf *g, const char *arch, const char *eps_key, pl_problems *problems);

/* After all keys were read: what else the file has under the architecture's name would make it another function, so it
 * is a problem, unless it is known to say nothing of the function, or to be 0, false or empty. */
void pl_hparams_check_keys(const pl_gguf *g, const char *arch, pl_problems *problems);

/* Reads attention.sliding_window, def when it is absent (0: then no layer has one), and which layers have it: as
 * attention.sliding_window_pattern says, or all but every period-th, or all with period 0. */
void pl_hparams_read_window(pl_hparams *hp, const pl_gguf *g, const char *arch, int32_t def, int32_t period,
                            pl_problems *problems);

/* Granite's scales: of the embedding, of what is added to the residual stream, of scores, and a divisor of the logits. */
void pl_hparams_read_granite(pl_hparams *hp, const pl_gguf *g, const char *arch, pl_problems *problems);

/* Reads the keys of a mixture of experts into hp->experts, whose gating, norm and n_best the caller has set to what holds where the
 * file says nothing; layers from leading_dense_block_count on have experts. Nothing when there are none, unless required. */
void pl_hparams_read_experts(pl_hparams *hp, const pl_gguf *g, const char *arch, bool required, pl_problems *problems);

/* The factor on the queries of a position (pl_hparams.temperature). */
float pl_hparams_temperature(const pl_hparams *hp, int32_t pos);

/* One key, with the prefix put in front. A missing required key and a wrong kind go into problems and give false. */
bool pl_hparam_u32(const pl_gguf *g, const char *arch, const char *key, bool required, uint32_t *out,
                   pl_problems *problems);
/* An optional positive factor; 0 stands for none, as in other readers. False and *out as it was when there is none. */
bool pl_hparam_scale(const pl_gguf *g, const char *arch, const char *key, float *out, pl_problems *problems);
bool pl_hparam_f32(const pl_gguf *g, const char *arch, const char *key, bool required, float *out,
                   pl_problems *problems);
bool pl_hparam_bool(const pl_gguf *g, const char *arch, const char *key, bool required, bool *out,
                    pl_problems *problems);
