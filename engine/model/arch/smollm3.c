/* SmolLM3 (Bakouch et al. 2025): Llama's graph in which every fourth layer has no rotary positions. */
#include "engine/model/blocks.h"

#define NO_ROPE_STEP 4 /* the files have no key for it */

static const pl_weight_spec specs[] = {
    PL_SPECS_MODEL,
    {PL_W_ROPE_FREQS, PL_SPEC_OPTIONAL, {0}},
    {PL_W_ATTN_NORM, 0, {0}},
    PL_SPECS_QKV,
    {PL_W_FFN_NORM, 0, {0}},
    PL_SPECS_GATED,
    PL_SPECS_END,
};

static void check(pl_hparams *hp, const pl_gguf *g, pl_problems *problems)
{
    (void)g;
    (void)problems;
    for (int32_t l = NO_ROPE_STEP - 1; l < hp->n_layer; l += NO_ROPE_STEP) hp->layers[l] |= PL_LAYER_NO_ROPE;
}

const pl_arch pl_arch_smollm3 = {.name = "smollm3", .specs = specs, .check = check, .build = pl_build_decoder};
