/* GPT-2 (Radford et al. 2019): learned positions that are added to the embedding, biases everywhere. */
#include "engine/model/blocks.h"

static const pl_weight_spec specs[] = {
    PL_SPECS_MODEL,
    {PL_W_OUTPUT_NORM_B, 0, {0}},
    {PL_W_POSITION_EMBD, 0, {0}},
    {PL_W_ATTN_NORM, 0, {0}},
    {PL_W_ATTN_NORM_B, 0, {0}},
    {PL_W_ATTN_QKV, 0, {0}},
    {PL_W_ATTN_QKV_B, 0, {0}},
    {PL_W_ATTN_OUT, 0, {0}},
    {PL_W_ATTN_OUT_B, 0, {0}},
    {PL_W_FFN_NORM, 0, {0}},
    {PL_W_FFN_NORM_B, 0, {0}},
    {PL_W_FFN_UP, 0, {0}},
    {PL_W_FFN_UP_B, 0, {0}},
    {PL_W_FFN_DOWN, 0, {0}},
    {PL_W_FFN_DOWN_B, 0, {0}},
    PL_SPECS_END,
};

const pl_arch pl_arch_gpt2 = {.name = "gpt2",
                              .norm = PL_NORM_LAYER,
                              .rope = PL_ROPE_NONE,
                              .act = PL_FN_GELU_TANH,
                              .specs = specs,
                              .build = pl_build_decoder};
