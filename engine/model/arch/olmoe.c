/* OLMoE (Muennighoff et al. 2024): whole rows of q and k are normalised; the weights of experts are those of the softmax over all. */
#include "engine/model/blocks.h"

static const pl_weight_spec specs[] = {
    PL_SPECS_MODEL,
    {PL_W_ATTN_NORM, 0, {0}},
    PL_SPECS_QKV,
    {PL_W_ATTN_Q_NORM, 0, {PL_DIM_Q}},
    {PL_W_ATTN_K_NORM, 0, {PL_DIM_KV}},
    {PL_W_FFN_NORM, 0, {0}},
    PL_SPECS_EXPERTS,
    PL_SPECS_END,
};

static void check(pl_hparams *hp, const pl_gguf *g, pl_problems *problems)
{
    hp->experts.gating = PL_GATING_SOFTMAX;
    pl_hparams_read_experts(hp, g, "olmoe", true, problems);
}

const pl_arch pl_arch_olmoe = {.name = "olmoe", .rope = PL_ROPE_NEOX, .specs = specs, .check = check, .build = pl_build_decoder};
