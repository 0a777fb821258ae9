/* GPT-NeoX and Pythia (Black et al. 2022, Biderman et al. 2023): attention and feed-forward side by side, each behind a
 * norm of its own, unless the file says one after the other. */
#include "engine/model/blocks.h"

static const pl_weight_spec specs[] = {
    PL_SPECS_MODEL,
    {PL_W_OUTPUT_NORM_B, 0, {0}},
    {PL_W_ATTN_NORM, 0, {0}},
    {PL_W_ATTN_NORM_B, 0, {0}},
    {PL_W_ATTN_QKV, 0, {0}},
    {PL_W_ATTN_QKV_B, 0, {0}},
    {PL_W_ATTN_OUT, 0, {0}},
    {PL_W_ATTN_OUT_B, 0, {0}},
    {PL_W_FFN_NORM, 0, {0}},
    {PL_W_FFN_NORM_B, 0, {0}},
    {PL_W_FFN_UP, 0, {0}},
    {PL_W_FFN_UP_B, 0, {0}},
    {PL_W_FFN_DOWN, 0, {0}},
    {PL_W_FFN_DOWN_B, 0, {0}},
    PL_SPECS_END,
};

static void check(pl_hparams *hp, const pl_gguf *g, pl_problems *problems)
{
    pl_hparam_bool(g, "gptneox", "use_parallel_residual", true, &hp->parallel, problems);
}

const pl_arch pl_arch_gptneox = {.name = "gptneox",
                                 .norm = PL_NORM_LAYER,
                                 .rope = PL_ROPE_NEOX,
                                 .act = PL_FN_GELU,
                                 .specs = specs,
                                 .check = check,
                                 .build = pl_build_decoder};
