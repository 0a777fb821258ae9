/* Llama and all that share its graph (Touvron et al. 2023): pre-norm, rotary positions, grouped queries, SwiGLU, biases
 * where the file has them, experts where it has them (Mixtral). */
#include "engine/model/blocks.h"

static const pl_weight_spec specs[] = {
    PL_SPECS_MODEL,
    {PL_W_ROPE_FREQS, PL_SPEC_OPTIONAL, {0}},
    {PL_W_ATTN_NORM, 0, {0}},
    PL_SPECS_QKV,
    PL_SPECS_QKV_BIAS,
    {PL_W_FFN_NORM, 0, {0}},
    PL_SPECS_GATED_DENSE,
    PL_SPECS_GATED_BIAS,
    PL_SPECS_EXPERTS,
    PL_SPECS_END,
};

static void check(pl_hparams *hp, const pl_gguf *g, pl_problems *problems)
{
    pl_hparams_read_window(hp, g, "llama", 0, 0, problems); /* the first Mistral has one, in all layers */
    hp->experts.gating = PL_GATING_SOFTMAX; /* Mixtral (Jiang et al. 2024): the weights of the chosen sum to 1 */
    hp->experts.norm = true;
    pl_hparams_read_experts(hp, g, "llama", false, problems);
}

const pl_arch pl_arch_llama = {.name = "llama", .specs = specs, .check = check, .build = pl_build_decoder};
