/* GLM 4.5 (GLM Team 2025): experts behind the first layers, chosen by sigmoid and bias, and a shared one. The norm before the
 * feed-forward part is called post_attention_norm. Layers that predict tokens further ahead are not computed. */
#include "engine/model/blocks.h"

static const pl_weight_spec specs[] = {
    PL_SPECS_MODEL,
    {PL_W_ATTN_NORM, 0, {0}},
    PL_SPECS_QKV,
    PL_SPECS_QKV_BIAS,
    {PL_W_ATTN_Q_NORM, PL_SPEC_OPTIONAL, {0}},
    {PL_W_ATTN_K_NORM, PL_SPEC_OPTIONAL, {0}},
    {PL_W_ATTN_POST_NORM, 0, {0}},
    PL_SPECS_GATED_DENSE,
    PL_SPECS_EXPERTS,
    {PL_W_ROUTER_CHOICE_B, PL_SPEC_EXPERTS | PL_SPEC_OPTIONAL, {0}},
    PL_SPECS_SHARED,
    PL_SPECS_END,
};

static void check(pl_hparams *hp, const pl_gguf *g, pl_problems *problems)
{
    uint32_t n_more = 0;
    pl_hparam_u32(g, "glm4moe", "nextn_predict_layers", false, &n_more, problems);
    if (n_more >= (uint32_t)hp->n_layer) {
        pl_problem(problems, "key glm4moe.nextn_predict_layers: no layer is left");
        return;
    }
    hp->n_layer -= (int32_t)n_more;
    hp->n_layer_more = (int32_t)n_more;
    hp->experts.gating = PL_GATING_SIGMOID;
    hp->experts.norm = true;
    hp->experts.n_best = 2;
    pl_hparams_read_experts(hp, g, "glm4moe", true, problems);
}

const pl_arch pl_arch_glm4moe = {
    .name = "glm4moe", .rope = PL_ROPE_NEOX, .ffn_norm_is_post = true, .specs = specs, .check = check, .build = pl_build_decoder};
