/* Qwen 3 (Yang et al. 2025): each head of q and k is normalised before it is rotated; heads may be wider than
 * n_embd / n_head. */
#include "engine/model/blocks.h"

static const pl_weight_spec specs[] = {
    PL_SPECS_MODEL,
    {PL_W_ATTN_NORM, 0, {0}},
    PL_SPECS_QKV,
    {PL_W_ATTN_Q_NORM, 0, {0}},
    {PL_W_ATTN_K_NORM, 0, {0}},
    {PL_W_FFN_NORM, 0, {0}},
    PL_SPECS_GATED,
    PL_SPECS_END,
};

const pl_arch pl_arch_qwen3 = {.name = "qwen3", .rope = PL_ROPE_NEOX, .specs = specs, .build = pl_build_decoder};
