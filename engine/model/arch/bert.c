/* BERT (Devlin et al. 2018) and the embedding models made of it: learned positions, token types, norms behind attention
 * and feed-forward, every row sees every other. All tokens are of the first type. */
#include "engine/model/blocks.h"

static const pl_weight_spec specs[] = {
    {PL_W_TOKEN_EMBD, 0, {0}},
    {PL_W_TOKEN_TYPES, PL_SPEC_OPTIONAL, {0}},
    {PL_W_EMBD_NORM, 0, {0}},
    {PL_W_EMBD_NORM_B, 0, {0}},
    {PL_W_POSITION_EMBD, 0, {0}},
    PL_SPECS_QKV_EITHER,
    PL_SPECS_QKV_BIAS,
    {PL_W_FFN_UP, 0, {0}},
    {PL_W_FFN_UP_B, 0, {0}},
    {PL_W_FFN_DOWN, 0, {0}},
    {PL_W_FFN_DOWN_B, 0, {0}},
    {PL_W_ATTN_OUT_NORM, 0, {0}},
    {PL_W_ATTN_OUT_NORM_B, 0, {0}},
    {PL_W_LAYER_OUT_NORM, 0, {0}},
    {PL_W_LAYER_OUT_NORM_B, 0, {0}},
    PL_SPECS_END,
};

const pl_arch pl_arch_bert = {.name = "bert",
                              .encoder = true,
                              .norm = PL_NORM_LAYER,
                              .rope = PL_ROPE_NONE,
                              .act = PL_FN_GELU,
                              .specs = specs,
                              .build = pl_build_encoder};
