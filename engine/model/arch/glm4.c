/* GLM-4 0414 (GLM Team 2025): norms before and behind attention and feed-forward, half of each head rotated, gate and
 * up in one matrix. */
#include "engine/model/blocks.h"

static const pl_weight_spec specs[] = {
    PL_SPECS_MODEL,
    {PL_W_ATTN_NORM, 0, {0}},
    PL_SPECS_QKV_EITHER,
    PL_SPECS_QKV_BIAS,
    {PL_W_ATTN_POST_NORM, 0, {0}},
    {PL_W_FFN_NORM, 0, {0}},
    {PL_W_FFN_UP, 0, {PL_DIM_EMBD, PL_DIM_FF2}},
    {PL_W_FFN_DOWN, 0, {0}},
    {PL_W_FFN_POST_NORM, 0, {0}},
    PL_SPECS_END,
};

const pl_arch pl_arch_glm4 = {.name = "glm4", .specs = specs, .build = pl_build_decoder};
