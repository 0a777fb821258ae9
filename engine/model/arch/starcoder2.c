/* StarCoder 2 (Lozhkov et al. 2024): rotary positions, grouped queries and biases everywhere. */
#include "engine/model/blocks.h"

static const pl_weight_spec specs[] = {
    PL_SPECS_MODEL,
    {PL_W_OUTPUT_NORM_B, 0, {0}},
    {PL_W_OUTPUT_B, PL_SPEC_OPTIONAL, {0}},
    {PL_W_ATTN_NORM, 0, {0}},
    {PL_W_ATTN_NORM_B, 0, {0}},
    PL_SPECS_QKV,
    PL_SPECS_QKV_BIAS,
    {PL_W_FFN_NORM, 0, {0}},
    {PL_W_FFN_NORM_B, 0, {0}},
    {PL_W_FFN_UP, 0, {0}},
    {PL_W_FFN_UP_B, PL_SPEC_OPTIONAL, {0}},
    {PL_W_FFN_DOWN, 0, {0}},
    {PL_W_FFN_DOWN_B, PL_SPEC_OPTIONAL, {0}},
    PL_SPECS_END,
};

const pl_arch pl_arch_starcoder2 = {.name = "starcoder2",
                                    .norm = PL_NORM_LAYER,
                                    .rope = PL_ROPE_NEOX,
                                    .act = PL_FN_GELU_TANH,
                                    .specs = specs,
                                    .build = pl_build_decoder};
