/* Gemma 3 (Gemma Team 2025): as Gemma 2 without caps, with q and k normalised per head and a window in five of six
 * layers, whose rotary positions have a base of their own and no scaling. */
#include <math.h>

#include "engine/model/blocks.h"

static const pl_weight_spec specs[] = {
    PL_SPECS_MODEL,
    {PL_W_ATTN_NORM, 0, {0}},
    PL_SPECS_QKV,
    {PL_W_ATTN_Q_NORM, 0, {0}},
    {PL_W_ATTN_K_NORM, 0, {0}},
    {PL_W_ATTN_POST_NORM, 0, {0}},
    {PL_W_FFN_NORM, 0, {0}},
    PL_SPECS_GATED,
    {PL_W_FFN_POST_NORM, 0, {0}},
    PL_SPECS_END,
};

static void check(pl_hparams *hp, const pl_gguf *g, pl_problems *problems)
{
    hp->embd_scale = sqrtf((float)hp->n_embd);
    /* The 27B divides scores by the square root of n_embd / n_head; files do not say so. */
    if (hp->n_layer == 62) hp->attn_scale = 1.0f / sqrtf((float)(hp->n_embd / hp->n_head));
    pl_hparam_scale(g, "gemma3", "final_logit_softcapping", &hp->logit_softcap, problems);
    pl_hparams_read_window(hp, g, "gemma3", 0, 6, problems);
    hp->has_rope_local = true;
    hp->rope_local.scaling = PL_ROPE_SCALING_NONE;
    hp->rope_local.factor = 1.0f;
    hp->rope_local.freq_base = 10000.0f;
    pl_hparam_scale(g, "gemma3", "rope.freq_base_swa", &hp->rope_local.freq_base, problems);
    if (!(hp->rope_local.freq_base >= 1.0f))
        pl_problem(problems, "key gemma3.rope.freq_base_swa: %g is below 1", (double)hp->rope_local.freq_base);
}

const pl_arch pl_arch_gemma3 = {.name = "gemma3",
                                .rope = PL_ROPE_NEOX,
                                .act = PL_FN_GELU_TANH,
                                .specs = specs,
                                .check = check,
                                .build = pl_build_decoder};
