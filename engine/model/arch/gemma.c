/* Gemma (Gemma Team 2024): embedding times sqrt(n_embd), GeGLU, heads wider than n_embd / n_head. The one that its
 * norms add to their weights is in the weights of the file. */
#include <math.h>

#include "engine/model/blocks.h"

static const pl_weight_spec specs[] = {
    PL_SPECS_MODEL, {PL_W_ATTN_NORM, 0, {0}}, PL_SPECS_QKV, {PL_W_FFN_NORM, 0, {0}}, PL_SPECS_GATED, PL_SPECS_END,
};

static void check(pl_hparams *hp, const pl_gguf *g, pl_problems *problems)
{
    (void)g;
    (void)problems;
    hp->embd_scale = sqrtf((float)hp->n_embd);
}

const pl_arch pl_arch_gemma = {.name = "gemma",
                               .rope = PL_ROPE_NEOX,
                               .act = PL_FN_GELU_TANH,
                               .specs = specs,
                               .check = check,
                               .build = pl_build_decoder};
