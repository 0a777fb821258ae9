/* Phi 1, 1.5 and 2 (Li et al. 2023, Microsoft): attention and feed-forward side by side behind one norm, part of each
 * head rotated, biases everywhere. */
#include "engine/model/blocks.h"

static const pl_weight_spec specs[] = {
    PL_SPECS_MODEL,           {PL_W_OUTPUT_NORM_B, 0, {0}}, {PL_W_OUTPUT_B, PL_SPEC_OPTIONAL, {0}},
    {PL_W_ATTN_NORM, 0, {0}}, {PL_W_ATTN_NORM_B, 0, {0}},   PL_SPECS_QKV_EITHER,
    PL_SPECS_QKV_BIAS,        {PL_W_FFN_UP, 0, {0}},        {PL_W_FFN_UP_B, 0, {0}},
    {PL_W_FFN_DOWN, 0, {0}},  {PL_W_FFN_DOWN_B, 0, {0}},    PL_SPECS_END,
};

static void check(pl_hparams *hp, const pl_gguf *g, pl_problems *problems)
{
    (void)g;
    (void)problems;
    hp->parallel = true;
}

const pl_arch pl_arch_phi2 = {.name = "phi2",
                              .norm = PL_NORM_LAYER,
                              .rope = PL_ROPE_NEOX,
                              .act = PL_FN_GELU_TANH,
                              .specs = specs,
                              .check = check,
                              .build = pl_build_decoder};
