/* Granite 3 with experts (IBM 2024): Granite's four scales; the weights of the chosen experts sum to 1; a shared expert where the
 * file has one. */
#include "engine/model/blocks.h"

static const pl_weight_spec specs[] = {
    PL_SPECS_MODEL,
    {PL_W_ROPE_FREQS, PL_SPEC_OPTIONAL, {0}},
    {PL_W_ATTN_NORM, 0, {0}},
    PL_SPECS_QKV,
    PL_SPECS_QKV_BIAS,
    {PL_W_FFN_NORM, 0, {0}},
    PL_SPECS_EXPERTS,
    {PL_W_SHARED_GATE, PL_SPEC_OPTIONAL, {0}},
    {PL_W_SHARED_UP, PL_SPEC_OPTIONAL, {0}},
    {PL_W_SHARED_DOWN, PL_SPEC_OPTIONAL, {0}},
    PL_SPECS_END,
};

static void check(pl_hparams *hp, const pl_gguf *g, pl_problems *problems)
{
    pl_hparams_read_granite(hp, g, "granitemoe", problems);
    hp->experts.gating = PL_GATING_SOFTMAX;
    hp->experts.norm = true;
    pl_hparams_read_experts(hp, g, "granitemoe", true, problems);
}

const pl_arch pl_arch_granitemoe = {.name = "granitemoe", .specs = specs, .check = check, .build = pl_build_decoder};
