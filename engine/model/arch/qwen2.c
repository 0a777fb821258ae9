/* Qwen 2 and 2.5 (Yang et al. 2024): Llama's graph with biases on q, k and v and couples half a head apart. */
#include "engine/model/blocks.h"

static const pl_weight_spec specs[] = {
    PL_SPECS_MODEL,           {PL_W_OUTPUT_B, PL_SPEC_OPTIONAL, {0}},
    {PL_W_ATTN_NORM, 0, {0}}, PL_SPECS_QKV,
    {PL_W_ATTN_Q_B, 0, {0}},  {PL_W_ATTN_K_B, 0, {0}},
    {PL_W_ATTN_V_B, 0, {0}},  {PL_W_FFN_NORM, 0, {0}},
    PL_SPECS_GATED,           PL_SPECS_END,
};

const pl_arch pl_arch_qwen2 = {.name = "qwen2", .rope = PL_ROPE_NEOX, .specs = specs, .build = pl_build_decoder};
