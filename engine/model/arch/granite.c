/* Granite 3 (IBM 2024): Llama's graph with four scales that the file gives: of the embedding, of what is added to the
 * residual stream, of attention's scores, and one by which logits are divided. */
#include "engine/model/blocks.h"

static const pl_weight_spec specs[] = {
    PL_SPECS_MODEL,
    {PL_W_ROPE_FREQS, PL_SPEC_OPTIONAL, {0}},
    {PL_W_ATTN_NORM, 0, {0}},
    PL_SPECS_QKV,
    PL_SPECS_QKV_BIAS,
    {PL_W_FFN_NORM, 0, {0}},
    PL_SPECS_GATED,
    PL_SPECS_GATED_BIAS,
    PL_SPECS_END,
};

static void check(pl_hparams *hp, const pl_gguf *g, pl_problems *problems)
{
    pl_hparams_read_granite(hp, g, "granite", problems);
}

const pl_arch pl_arch_granite = {.name = "granite", .specs = specs, .check = check, .build = pl_build_decoder};
