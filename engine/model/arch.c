#include "engine/model/arch.h"

/* The architectures, in the order of their names. Both tables have the same order. */
#define ARCHS(ROW)                                                                                                     \
    ROW(bert, "bert")                                                                                                  \
    ROW(cohere2, "cohere2")                                                                                            \
    ROW(command_r, "command-r")                                                                                        \
    ROW(exaone4, "exaone4")                                                                                            \
    ROW(gemma, "gemma")                                                                                                \
    ROW(gemma2, "gemma2")                                                                                              \
    ROW(gemma3, "gemma3")                                                                                              \
    ROW(glm4, "glm4")                                                                                                  \
    ROW(glm4moe, "glm4moe")                                                                                            \
    ROW(gpt_oss, "gpt-oss")                                                                                            \
    ROW(gpt2, "gpt2")                                                                                                  \
    ROW(gptneox, "gptneox")                                                                                            \
    ROW(granite, "granite")                                                                                            \
    ROW(granitemoe, "granitemoe")                                                                                      \
    ROW(llama, "llama")                                                                                                \
    ROW(mistral3, "mistral3")                                                                                          \
    ROW(nomic_bert, "nomic-bert")                                                                                      \
    ROW(olmo2, "olmo2")                                                                                                \
    ROW(olmoe, "olmoe")                                                                                                \
    ROW(phi2, "phi2")                                                                                                  \
    ROW(phi3, "phi3")                                                                                                  \
    ROW(qwen2, "qwen2")                                                                                                \
    ROW(qwen2moe, "qwen2moe")                                                                                          \
    ROW(qwen3, "qwen3")                                                                                                \
    ROW(qwen3moe, "qwen3moe")                                                                                          \
    ROW(smollm3, "smollm3")                                                                                            \
    ROW(stablelm, "stablelm")                                                                                          \
    ROW(starcoder2, "starcoder2")

#define ARCH_OF(id, name) &pl_arch_##id,
#define NAME_OF(id, name) name,
static const pl_arch *const archs[] = {ARCHS(ARCH_OF)};
static const char *const names[] = {ARCHS(NAME_OF)};

/* Names: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
 *
 * precision: 8 bits in blocks of 32 are too few for these inputs. Normalised rows have a few large channels (in
 * SmolLM2-135M 64 % of the rounding error of q, k and v's input is in one block of 18, 45 % of gate and up's), and what
 * is lost in one layer the next ones enlarge. The smallest cosine between logits with rounded inputs and exact ones
 * over 200 positions of a text (SmolLM2-135M, Q4_1, float32 otherwise):
 *
 *   rounded: all                          0.99406
 *            only q, k, v                 0.99425    only gate, up   0.99861    only down   0.99949
 *            only the output's            0.99945    only attn_output 0.99992
 *   precise: q, k, v                      0.99540    and the output and all of the last layer   0.99535
 *            q, k, v, gate, up            0.99863    and the output  0.99915    and down   0.99987
 *            all but the output           0.99962    all             0.999999
 *
 * So all are precise but attn_output, whose input is a mean of values and has no such channels. Of gate, up and down,
 * which are most of a model, only the blocks that are large beside their row are (act.h): the error sits there, and a
 * second term for all of them would double what a prompt costs. Over the same text the engine's cosine is then at least
 * 0.9992 and 0.99997 in the mean, where two terms for all of them give 0.9997 and 0.99999. The least of 200 positions is
 * sensitive: with limits from 9 to 10 instead of 9 it moves between 0.9990 and 0.9997, with 4 it is 0.9992, while the
 * mean falls steadily, from 0.999981 at 4 to 0.999967 at 9.
 *
 * The other architectures have the same places for the same reasons: what follows a norm or a gate is precise. */
static const pl_slot_info slots[PL_W_COUNT] = {
    [PL_W_ATTN_NORM] = {"attn_norm.weight", {PL_DIM_EMBD}, PL_PLACE_LAYER, PL_ONE_TERM},
    [PL_W_ATTN_NORM_B] = {"attn_norm.bias", {PL_DIM_EMBD}, PL_PLACE_LAYER, PL_ONE_TERM},
    [PL_W_ATTN_QKV] = {"attn_qkv.weight", {PL_DIM_EMBD, PL_DIM_QKV}, PL_PLACE_LAYER, PL_TWO_TERMS},
    [PL_W_ATTN_QKV_B] = {"attn_qkv.bias", {PL_DIM_QKV}, PL_PLACE_LAYER, PL_ONE_TERM},
    [PL_W_ATTN_Q] = {"attn_q.weight", {PL_DIM_EMBD, PL_DIM_Q}, PL_PLACE_LAYER, PL_TWO_TERMS},
    [PL_W_ATTN_K] = {"attn_k.weight", {PL_DIM_EMBD, PL_DIM_KV}, PL_PLACE_LAYER, PL_TWO_TERMS},
    [PL_W_ATTN_V] = {"attn_v.weight", {PL_DIM_EMBD, PL_DIM_KV}, PL_PLACE_LAYER, PL_TWO_TERMS},
    [PL_W_ATTN_OUT] = {"attn_output.weight", {PL_DIM_Q, PL_DIM_EMBD}, PL_PLACE_LAYER, PL_ONE_TERM},
    [PL_W_ATTN_Q_B] = {"attn_q.bias", {PL_DIM_Q}, PL_PLACE_LAYER, PL_ONE_TERM},
    [PL_W_ATTN_K_B] = {"attn_k.bias", {PL_DIM_KV}, PL_PLACE_LAYER, PL_ONE_TERM},
    [PL_W_ATTN_V_B] = {"attn_v.bias", {PL_DIM_KV}, PL_PLACE_LAYER, PL_ONE_TERM},
    [PL_W_ATTN_OUT_B] = {"attn_output.bias", {PL_DIM_EMBD}, PL_PLACE_LAYER, PL_ONE_TERM},
    [PL_W_ATTN_Q_NORM] = {"attn_q_norm.weight", {PL_DIM_HEAD}, PL_PLACE_LAYER, PL_ONE_TERM},
    [PL_W_ATTN_K_NORM] = {"attn_k_norm.weight", {PL_DIM_HEAD}, PL_PLACE_LAYER, PL_ONE_TERM},
    [PL_W_ATTN_POST_NORM] = {"post_attention_norm.weight", {PL_DIM_EMBD}, PL_PLACE_LAYER, PL_ONE_TERM},
    [PL_W_FFN_NORM] = {"ffn_norm.weight", {PL_DIM_EMBD}, PL_PLACE_LAYER, PL_ONE_TERM},
    [PL_W_FFN_NORM_B] = {"ffn_norm.bias", {PL_DIM_EMBD}, PL_PLACE_LAYER, PL_ONE_TERM},
    [PL_W_FFN_GATE] = {"ffn_gate.weight", {PL_DIM_EMBD, PL_DIM_FF}, PL_PLACE_LAYER, PL_TWO_TERMS_WHERE_LARGE},
    [PL_W_FFN_UP] = {"ffn_up.weight", {PL_DIM_EMBD, PL_DIM_FF}, PL_PLACE_LAYER, PL_TWO_TERMS_WHERE_LARGE},
    [PL_W_FFN_DOWN] = {"ffn_down.weight", {PL_DIM_FF, PL_DIM_EMBD}, PL_PLACE_LAYER, PL_TWO_TERMS_WHERE_LARGE},
    [PL_W_FFN_GATE_B] = {"ffn_gate.bias", {PL_DIM_FF}, PL_PLACE_LAYER, PL_ONE_TERM},
    [PL_W_FFN_UP_B] = {"ffn_up.bias", {PL_DIM_FF}, PL_PLACE_LAYER, PL_ONE_TERM},
    [PL_W_FFN_DOWN_B] = {"ffn_down.bias", {PL_DIM_EMBD}, PL_PLACE_LAYER, PL_ONE_TERM},
    [PL_W_FFN_POST_NORM] = {"post_ffw_norm.weight", {PL_DIM_EMBD}, PL_PLACE_LAYER, PL_ONE_TERM},

    [PL_W_ATTN_OUT_NORM] = {"attn_output_norm.weight", {PL_DIM_EMBD}, PL_PLACE_LAYER, PL_ONE_TERM},
    [PL_W_ATTN_OUT_NORM_B] = {"attn_output_norm.bias", {PL_DIM_EMBD}, PL_PLACE_LAYER, PL_ONE_TERM},
    [PL_W_LAYER_OUT_NORM] = {"layer_output_norm.weight", {PL_DIM_EMBD}, PL_PLACE_LAYER, PL_ONE_TERM},
    [PL_W_LAYER_OUT_NORM_B] = {"layer_output_norm.bias", {PL_DIM_EMBD}, PL_PLACE_LAYER, PL_ONE_TERM},
    [PL_W_ATTN_SINKS] = {"attn_sinks.weight", {PL_DIM_N_HEAD}, PL_PLACE_LAYER, PL_ONE_TERM},
    [PL_W_ROUTER] = {"ffn_gate_inp.weight", {PL_DIM_EMBD, PL_DIM_EXPERTS}, PL_PLACE_LAYER, PL_TWO_TERMS},
    [PL_W_ROUTER_B] = {"ffn_gate_inp.bias", {PL_DIM_EXPERTS}, PL_PLACE_LAYER, PL_ONE_TERM},
    [PL_W_ROUTER_CHOICE_B] = {"exp_probs_b.bias", {PL_DIM_EXPERTS}, PL_PLACE_LAYER, PL_ONE_TERM},
    [PL_W_EXPERTS_GATE] = {"ffn_gate_exps.weight", {PL_DIM_EMBD, PL_DIM_FF_EXPERT, PL_DIM_EXPERTS}, PL_PLACE_LAYER, PL_TWO_TERMS_WHERE_LARGE},
    [PL_W_EXPERTS_UP] = {"ffn_up_exps.weight", {PL_DIM_EMBD, PL_DIM_FF_EXPERT, PL_DIM_EXPERTS}, PL_PLACE_LAYER, PL_TWO_TERMS_WHERE_LARGE},
    [PL_W_EXPERTS_DOWN] = {"ffn_down_exps.weight", {PL_DIM_FF_EXPERT, PL_DIM_EMBD, PL_DIM_EXPERTS}, PL_PLACE_LAYER, PL_TWO_TERMS_WHERE_LARGE},
    [PL_W_EXPERTS_GATE_B] = {"ffn_gate_exps.bias", {PL_DIM_FF_EXPERT, PL_DIM_EXPERTS}, PL_PLACE_LAYER, PL_ONE_TERM},
    [PL_W_EXPERTS_UP_B] = {"ffn_up_exps.bias", {PL_DIM_FF_EXPERT, PL_DIM_EXPERTS}, PL_PLACE_LAYER, PL_ONE_TERM},
    [PL_W_EXPERTS_DOWN_B] = {"ffn_down_exps.bias", {PL_DIM_EMBD, PL_DIM_EXPERTS}, PL_PLACE_LAYER, PL_ONE_TERM},
    [PL_W_SHARED_GATE] = {"ffn_gate_shexp.weight", {PL_DIM_EMBD, PL_DIM_FF_SHARED}, PL_PLACE_LAYER, PL_TWO_TERMS_WHERE_LARGE},
    [PL_W_SHARED_UP] = {"ffn_up_shexp.weight", {PL_DIM_EMBD, PL_DIM_FF_SHARED}, PL_PLACE_LAYER, PL_TWO_TERMS_WHERE_LARGE},
    [PL_W_SHARED_DOWN] = {"ffn_down_shexp.weight", {PL_DIM_FF_SHARED, PL_DIM_EMBD}, PL_PLACE_LAYER, PL_TWO_TERMS_WHERE_LARGE},
    [PL_W_SHARED_ROUTER] = {"ffn_gate_inp_shexp.weight", {PL_DIM_EMBD}, PL_PLACE_LAYER, PL_ONE_TERM},

    [PL_W_TOKEN_EMBD] = {"token_embd.weight", {PL_DIM_EMBD, PL_DIM_VOCAB}, PL_PLACE_EMBED, PL_ONE_TERM},
    [PL_W_POSITION_EMBD] = {"position_embd.weight", {PL_DIM_EMBD, PL_DIM_CTX}, PL_PLACE_EMBED, PL_ONE_TERM},
    [PL_W_TOKEN_TYPES] = {"token_types.weight", {PL_DIM_EMBD, PL_DIM_ANY}, PL_PLACE_EMBED, PL_ONE_TERM},
    [PL_W_EMBD_NORM] = {"token_embd_norm.weight", {PL_DIM_EMBD}, PL_PLACE_EMBED, PL_ONE_TERM},
    [PL_W_EMBD_NORM_B] = {"token_embd_norm.bias", {PL_DIM_EMBD}, PL_PLACE_EMBED, PL_ONE_TERM},
    [PL_W_OUTPUT_NORM] = {"output_norm.weight", {PL_DIM_EMBD}, PL_PLACE_HEAD, PL_ONE_TERM},
    [PL_W_OUTPUT_NORM_B] = {"output_norm.bias", {PL_DIM_EMBD}, PL_PLACE_HEAD, PL_ONE_TERM},
    [PL_W_OUTPUT] = {"output.weight", {PL_DIM_EMBD, PL_DIM_VOCAB}, PL_PLACE_HEAD, PL_TWO_TERMS},
    [PL_W_OUTPUT_B] = {"output.bias", {PL_DIM_VOCAB}, PL_PLACE_HEAD, PL_ONE_TERM},
    [PL_W_ROPE_FREQS] = {"rope_freqs.weight", {PL_DIM_COUPLES}, PL_PLACE_ALL, PL_ONE_TERM},
    [PL_W_ROPE_LONG] = {"rope_factors_long.weight", {PL_DIM_COUPLES}, PL_PLACE_ALL, PL_ONE_TERM},
    [PL_W_ROPE_SHORT] = {"rope_factors_short.weight", {PL_DIM_COUPLES}, PL_PLACE_ALL, PL_ONE_TERM},
};

const pl_slot_info *pl_slot_get(pl_slot slot)
{
    PL_ASSERT((unsigned)slot < PL_W_COUNT);
    return &slots[slot];
}

const pl_arch *pl_arch_find(pl_str name)
{
    for (size_t i = 0; i < sizeof archs / sizeof archs[0]; i++)
        if (pl_str_is(name, archs[i]->name)) return archs[i];
    return NULL;
}

pl_precision pl_arch_precision(const pl_arch *arch, pl_slot slot)
{
    (void)arch; /* all have the same reasons so far */
    return slots[slot].precision;
}

const char *const *pl_arch_names(size_t *n)
{
    *n = sizeof names / sizeof names[0];
    return names;
}
