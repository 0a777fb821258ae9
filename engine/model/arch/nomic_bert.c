/* Nomic Embed (Nussbaum et al. 2024): BERT with rotary positions instead of learned ones, and SwiGLU. */
#include "engine/model/blocks.h"

static const pl_weight_spec specs[] = {
    {PL_W_TOKEN_EMBD, 0, {0}},
    {PL_W_TOKEN_TYPES, PL_SPEC_OPTIONAL, {0}},
    {PL_W_EMBD_NORM, 0, {0}},
    {PL_W_EMBD_NORM_B, 0, {0}},
    PL_SPECS_QKV_EITHER,
    PL_SPECS_GATED,
    {PL_W_ATTN_OUT_NORM, 0, {0}},
    {PL_W_ATTN_OUT_NORM_B, 0, {0}},
    {PL_W_LAYER_OUT_NORM, 0, {0}},
    {PL_W_LAYER_OUT_NORM_B, 0, {0}},
    PL_SPECS_END,
};

const pl_arch pl_arch_nomic_bert = {.name = "nomic-bert",
                                    .encoder = true,
                                    .norm = PL_NORM_LAYER,
                                    .rope = PL_ROPE_NEOX,
                                    .specs = specs,
                                    .build = pl_build_encoder};
