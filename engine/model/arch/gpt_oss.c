/* gpt-oss (OpenAI 2025): a sink in each head's softmax, a window in every other layer, experts with biases whose gates are clamped;
 * the weights of the chosen are their own softmax. The norm before the feed-forward part is called post_attention_norm. */
#include "engine/model/blocks.h"

static const pl_weight_spec specs[] = {
    PL_SPECS_MODEL,
    {PL_W_ATTN_NORM, 0, {0}},
    PL_SPECS_QKV,
    PL_SPECS_QKV_BIAS,
    {PL_W_ATTN_SINKS, 0, {0}},
    {PL_W_ATTN_POST_NORM, 0, {0}},
    PL_SPECS_EXPERTS,
    {PL_W_ROUTER_B, 0, {0}},
    {PL_W_EXPERTS_GATE_B, 0, {0}},
    {PL_W_EXPERTS_UP_B, 0, {0}},
    {PL_W_EXPERTS_DOWN_B, 0, {0}},
    PL_SPECS_END,
};

static void check(pl_hparams *hp, const pl_gguf *g, pl_problems *problems)
{
    pl_hparams_read_window(hp, g, "gpt-oss", 128, 2, problems);
    hp->rope.exact_ramp = true;
    hp->experts.gating = PL_GATING_SOFTMAX_OF_CHOSEN;
    pl_hparams_read_experts(hp, g, "gpt-oss", true, problems);
}

const pl_arch pl_arch_gpt_oss = {.name = "gpt-oss",
                                 .rope = PL_ROPE_NEOX,
                                 .act = PL_FN_GELU_QUICK, /* x * sigmoid(1.702 x) */
                                 .clamped = true,
                                 .ffn_norm_is_post = true,
                                 .specs = specs,
                                 .check = check,
                                 .build = pl_build_decoder};
