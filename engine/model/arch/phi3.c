/* Phi 3, 3.5 and 4 (Abdin et al. 2024): q, k and v in one matrix, gate and up in another; frequencies with two sets of
 * factors, for contexts within and beyond that of the first training (LongRoPE, Ding et al. 2024). */
#include "engine/model/blocks.h"

static const pl_weight_spec specs[] = {
    PL_SPECS_MODEL,
    {PL_W_ROPE_LONG, PL_SPEC_OPTIONAL, {0}},
    {PL_W_ROPE_SHORT, PL_SPEC_OPTIONAL, {0}},
    {PL_W_ATTN_NORM, 0, {0}},
    PL_SPECS_QKV_EITHER,
    PL_SPECS_QKV_BIAS,
    {PL_W_FFN_NORM, 0, {0}},
    {PL_W_FFN_UP, 0, {PL_DIM_EMBD, PL_DIM_FF2}},
    {PL_W_FFN_DOWN, 0, {0}},
    PL_SPECS_END,
};

static void check(pl_hparams *hp, const pl_gguf *g, pl_problems *problems)
{
    pl_hparams_read_window(hp, g, "phi3", 0, 0, problems);
}

const pl_arch pl_arch_phi3 = {
    .name = "phi3", .rope = PL_ROPE_NEOX, .specs = specs, .check = check, .build = pl_build_decoder};
