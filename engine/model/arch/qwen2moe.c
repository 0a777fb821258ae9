/* Qwen 1.5 and 2 with experts (Qwen Team 2024): Qwen 2's attention, and a shared expert that each row takes a part of. */
#include "engine/model/blocks.h"

static const pl_weight_spec specs[] = {
    PL_SPECS_MODEL,
    {PL_W_ATTN_NORM, 0, {0}},
    PL_SPECS_QKV,
    PL_SPECS_QKV_BIAS,
    {PL_W_FFN_NORM, 0, {0}},
    PL_SPECS_EXPERTS,
    PL_SPECS_SHARED,
    {PL_W_SHARED_ROUTER, PL_SPEC_EXPERTS, {0}},
    PL_SPECS_END,
};

static void check(pl_hparams *hp, const pl_gguf *g, pl_problems *problems)
{
    hp->experts.gating = PL_GATING_SOFTMAX;
    pl_hparams_read_experts(hp, g, "qwen2moe", true, problems);
}

const pl_arch pl_arch_qwen2moe = {.name = "qwen2moe", .rope = PL_ROPE_NEOX, .specs = specs, .check = check, .build = pl_build_decoder};
