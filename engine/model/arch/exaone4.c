/* EXAONE 4 (LG AI Research 2025): norms behind attention and feed-forward, q and k normalised per head; the 32B has a
 * window in three of four layers, and rotary positions in those only. */
#include "engine/model/blocks.h"

static const pl_weight_spec specs[] = {
    PL_SPECS_MODEL,
    {PL_W_ROPE_FREQS, PL_SPEC_OPTIONAL, {0}},
    PL_SPECS_QKV,
    {PL_W_ATTN_Q_NORM, 0, {0}},
    {PL_W_ATTN_K_NORM, 0, {0}},
    {PL_W_ATTN_POST_NORM, 0, {0}},
    PL_SPECS_GATED,
    {PL_W_FFN_POST_NORM, 0, {0}},
    PL_SPECS_END,
};

static void check(pl_hparams *hp, const pl_gguf *g, pl_problems *problems)
{
    pl_hparams_read_window(hp, g, "exaone4", 0, 4, problems);
    for (int32_t l = 0; hp->window > 0 && l < hp->n_layer; l++)
        if (!(hp->layers[l] & PL_LAYER_WINDOW)) hp->layers[l] |= PL_LAYER_NO_ROPE;
}

const pl_arch pl_arch_exaone4 = {
    .name = "exaone4", .rope = PL_ROPE_NEOX, .specs = specs, .check = check, .build = pl_build_decoder};
