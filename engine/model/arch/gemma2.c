/* Gemma 2 (Gemma Team 2024): norms before and behind attention and feed-forward, scores and logits capped, a window in
 * every second layer. */
#include <math.h>

#include "engine/model/blocks.h"

static const pl_weight_spec specs[] = {
    PL_SPECS_MODEL, {PL_W_ATTN_NORM, 0, {0}},     PL_SPECS_QKV, {PL_W_ATTN_POST_NORM, 0, {0}}, {PL_W_FFN_NORM, 0, {0}},
    PL_SPECS_GATED, {PL_W_FFN_POST_NORM, 0, {0}}, PL_SPECS_END,
};

static void check(pl_hparams *hp, const pl_gguf *g, pl_problems *problems)
{
    hp->embd_scale = sqrtf((float)hp->n_embd);
    /* The 27B divides scores by the square root of n_embd / n_head; files do not say so. */
    if (hp->n_layer == 46) hp->attn_scale = 1.0f / sqrtf((float)(hp->n_embd / hp->n_head));
    hp->attn_softcap = 50.0f;
    hp->logit_softcap = 30.0f;
    pl_hparam_scale(g, "gemma2", "attn_logit_softcapping", &hp->attn_softcap, problems);
    pl_hparam_scale(g, "gemma2", "final_logit_softcapping", &hp->logit_softcap, problems);
    pl_hparams_read_window(hp, g, "gemma2", 4096, 2, problems);
}

const pl_arch pl_arch_gemma2 = {.name = "gemma2",
                                .rope = PL_ROPE_NEOX,
                                .act = PL_FN_GELU_TANH,
                                .specs = specs,
                                .check = check,
                                .build = pl_build_decoder};
