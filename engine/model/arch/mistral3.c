/* Mistral Small 3 and Ministral 3 (Mistral AI 2025): Llama's graph; the newer ones have YaRN, and queries that grow
 * with the logarithm of their position beyond the context of the first training. */
#include "engine/model/blocks.h"

static const pl_weight_spec specs[] = {
    PL_SPECS_MODEL,           {PL_W_ROPE_FREQS, PL_SPEC_OPTIONAL, {0}},
    {PL_W_ATTN_NORM, 0, {0}}, PL_SPECS_QKV,
    PL_SPECS_QKV_BIAS,        {PL_W_FFN_NORM, 0, {0}},
    PL_SPECS_GATED,           PL_SPECS_END,
};

static void check(pl_hparams *hp, const pl_gguf *g, pl_problems *problems)
{
    pl_hparams_read_window(hp, g, "mistral3", 0, 0, problems);
    if (pl_hparam_scale(g, "mistral3", "attention.temperature_scale", &hp->temperature.scale, problems))
        hp->temperature.n_ctx = hp->rope.n_ctx_orig;
}

const pl_arch pl_arch_mistral3 = {.name = "mistral3", .specs = specs, .check = check, .build = pl_build_decoder};
