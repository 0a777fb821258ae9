/* Qwen 3 with experts (Yang et al. 2025): Qwen 3's attention; the weights of the chosen experts sum to 1. */
#include "engine/model/blocks.h"

static const pl_weight_spec specs[] = {
    PL_SPECS_MODEL,
    {PL_W_ATTN_NORM, 0, {0}},
    PL_SPECS_QKV,
    {PL_W_ATTN_Q_NORM, 0, {0}},
    {PL_W_ATTN_K_NORM, 0, {0}},
    {PL_W_FFN_NORM, 0, {0}},
    PL_SPECS_EXPERTS,
    PL_SPECS_END,
};

static void check(pl_hparams *hp, const pl_gguf *g, pl_problems *problems)
{
    hp->experts.gating = PL_GATING_SOFTMAX;
    hp->experts.norm = true;
    pl_hparams_read_experts(hp, g, "qwen3moe", true, problems);
}

const pl_arch pl_arch_qwen3moe = {.name = "qwen3moe", .rope = PL_ROPE_NEOX, .specs = specs, .check = check, .build = pl_build_decoder};
