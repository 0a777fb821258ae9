/* Llama and all that share its graph (Touvron et al. 2023): pre-norm, rotary positions, grouped queries, SwiGLU, biases
 * where the file has them. */
#include "engine/model/blocks.h"

/* PRECISE: 8 bits in blocks of 32 are too few for these inputs. Normalised rows have a few large channels (in the demo
 * model 64 % of the rounding error of q, k and v's input is in one block of 18, 45 % of gate and up's), and what is
 * lost in one layer the next ones enlarge. The smallest cosine between logits with rounded inputs and exact ones over
 * 200 positions of a text (SmolLM2-135M, Q4_1, float32 otherwise):
 *
 *   rounded: all                          0.99406
 *            only q, k, v                 0.99425    only gate, up   0.99861    only down   0.99949
 *            only the output's            0.99945    only attn_output 0.99992
 *   precise: q, k, v                      0.99540    and the output and all of the last layer   0.99535
 *            q, k, v, gate, up            0.99863    and the output  0.99915    and down   0.99987
 *            all but the output           0.99962    all             0.999999
 *
 * So it takes all of them but attn_output, whose input is a mean of values and has no such channels. */
static const pl_weight_spec specs[] = {
    {PL_W_TOKEN_EMBD, "token_embd.weight", {PL_DIM_EMBD, PL_DIM_VOCAB}, 0},
    {PL_W_OUTPUT_NORM, "output_norm.weight", {PL_DIM_EMBD}, 0},
    {PL_W_OUTPUT,
     "output.weight",
     {PL_DIM_EMBD, PL_DIM_VOCAB},
     PL_SPEC_OPTIONAL | PL_SPEC_PRECISE}, /* absent: tied to the embedding */
    {PL_W_ROPE_FREQS, "rope_freqs.weight", {PL_DIM_COUPLES}, PL_SPEC_OPTIONAL},

    {PL_W_ATTN_NORM, "attn_norm.weight", {PL_DIM_EMBD}, 0},
    {PL_W_ATTN_Q, "attn_q.weight", {PL_DIM_EMBD, PL_DIM_Q}, PL_SPEC_PRECISE},
    {PL_W_ATTN_K, "attn_k.weight", {PL_DIM_EMBD, PL_DIM_KV}, PL_SPEC_PRECISE},
    {PL_W_ATTN_V, "attn_v.weight", {PL_DIM_EMBD, PL_DIM_KV}, PL_SPEC_PRECISE},
    {PL_W_ATTN_OUT, "attn_output.weight", {PL_DIM_Q, PL_DIM_EMBD}, 0},
    {PL_W_ATTN_Q_B, "attn_q.bias", {PL_DIM_Q}, PL_SPEC_OPTIONAL},
    {PL_W_ATTN_K_B, "attn_k.bias", {PL_DIM_KV}, PL_SPEC_OPTIONAL},
    {PL_W_ATTN_V_B, "attn_v.bias", {PL_DIM_KV}, PL_SPEC_OPTIONAL},
    {PL_W_ATTN_OUT_B, "attn_output.bias", {PL_DIM_EMBD}, PL_SPEC_OPTIONAL},

    {PL_W_FFN_NORM, "ffn_norm.weight", {PL_DIM_EMBD}, 0},
    {PL_W_FFN_GATE, "ffn_gate.weight", {PL_DIM_EMBD, PL_DIM_FF}, PL_SPEC_PRECISE},
    {PL_W_FFN_UP, "ffn_up.weight", {PL_DIM_EMBD, PL_DIM_FF}, PL_SPEC_PRECISE},
    {PL_W_FFN_DOWN, "ffn_down.weight", {PL_DIM_FF, PL_DIM_EMBD}, PL_SPEC_PRECISE},
    {PL_W_FFN_GATE_B, "ffn_gate.bias", {PL_DIM_FF}, PL_SPEC_OPTIONAL},
    {PL_W_FFN_UP_B, "ffn_up.bias", {PL_DIM_FF}, PL_SPEC_OPTIONAL},
    {PL_W_FFN_DOWN_B, "ffn_down.bias", {PL_DIM_EMBD}, PL_SPEC_OPTIONAL},
    {0},
};

static void check(pl_hparams *hp, const pl_gguf *g, pl_problems *problems)
{
    (void)hp;
    uint32_t n_expert = 0;
    if (pl_hparam_u32(g, "llama", "expert_count", false, &n_expert, problems) && n_expert > 0)
        pl_problem_unsupported(problems, "key llama.expert_count: mixtures of experts are not known");
}

static pl_tensor *build(pl_build *b)
{
    pl_tensor *x = pl_block_embed(b); /* [n_embd, n_rows] */
    for (int32_t il = 0; il < b->layer_end - b->layer_first; il++) {
        pl_tensor **w = b->layer_weights[il];
        bool last = pl_block_is_last(b, il), stored_only;
        pl_tensor *a = pl_rms_norm(b->c, x, w[PL_W_ATTN_NORM], b->hp->rms_eps);
        a = pl_block_attention(b, il, a, last, &stored_only);
        if (stored_only) return a;
        if (last) x = pl_block_wanted_rows(b, x); /* [n_embd, n_out] from here on */
        x = pl_add(b->c, x, a);
        pl_tensor *f = pl_rms_norm(b->c, x, w[PL_W_FFN_NORM], b->hp->rms_eps);
        x = pl_add(b->c, x, pl_block_swiglu(b, il, f));
    }
    b->io.result = b->head ? pl_block_head(b, x) : pl_set_name(x, "hidden");
    return b->io.result;
}

const pl_arch pl_arch_llama = {
    .name = "llama",
    .rope_neox = false,
    .specs = specs,
    .check = check,
    .build = build,
};
