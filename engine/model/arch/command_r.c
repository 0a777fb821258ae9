/* Command R (Cohere 2024): layer norm without bias, attention and feed-forward side by side, logits scaled; Command R+
 * normalises each head of q and k with a weight of its own. */
#include "engine/model/blocks.h"

static const pl_weight_spec specs[] = {
    PL_SPECS_MODEL,
    {PL_W_ATTN_NORM, 0, {0}},
    PL_SPECS_QKV,
    {PL_W_ATTN_Q_NORM, PL_SPEC_OPTIONAL, {PL_DIM_HEAD, PL_DIM_N_HEAD}},
    {PL_W_ATTN_K_NORM, PL_SPEC_OPTIONAL, {PL_DIM_HEAD, PL_DIM_N_HEAD_KV}},
    PL_SPECS_GATED,
    PL_SPECS_END,
};

static void check(pl_hparams *hp, const pl_gguf *g, pl_problems *problems)
{
    hp->parallel = true;
    pl_hparam_scale(g, "command-r", "logit_scale", &hp->logit_scale, problems);
}

const pl_arch pl_arch_command_r = {
    .name = "command-r", .norm = PL_NORM_LAYER, .specs = specs, .check = check, .build = pl_build_decoder};
