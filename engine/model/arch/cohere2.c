/* Command R7B and Command A (Cohere 2024): Command R with a window and rotary positions in three of four layers; the
 * fourth has neither. */
#include "engine/model/blocks.h"

static const pl_weight_spec specs[] = {
    PL_SPECS_MODEL, {PL_W_ATTN_NORM, 0, {0}}, PL_SPECS_QKV, PL_SPECS_QKV_BIAS, PL_SPECS_GATED, PL_SPECS_END,
};

static void check(pl_hparams *hp, const pl_gguf *g, pl_problems *problems)
{
    hp->parallel = true;
    pl_hparam_scale(g, "cohere2", "logit_scale", &hp->logit_scale, problems);
    pl_hparams_read_window(hp, g, "cohere2", 0, 4, problems);
    for (int32_t l = 0; l < hp->n_layer; l++)
        if (!(hp->layers[l] & PL_LAYER_WINDOW)) hp->layers[l] |= PL_LAYER_NO_ROPE;
}

const pl_arch pl_arch_cohere2 = {
    .name = "cohere2", .norm = PL_NORM_LAYER, .specs = specs, .check = check, .build = pl_build_decoder};
