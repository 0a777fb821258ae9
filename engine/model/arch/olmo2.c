/* OLMo 2 (Walsh et al. 2024): norms behind attention and feed-forward instead of before them, and over the whole rows
 * of q and k. */
#include "engine/model/blocks.h"

static const pl_weight_spec specs[] = {
    PL_SPECS_MODEL,
    PL_SPECS_QKV,
    {PL_W_ATTN_Q_NORM, 0, {PL_DIM_Q}},
    {PL_W_ATTN_K_NORM, 0, {PL_DIM_KV}},
    {PL_W_ATTN_POST_NORM, 0, {0}},
    PL_SPECS_GATED,
    {PL_W_FFN_POST_NORM, 0, {0}},
    PL_SPECS_END,
};

const pl_arch pl_arch_olmo2 = {.name = "olmo2", .rope = PL_ROPE_NEOX, .specs = specs, .build = pl_build_decoder};
