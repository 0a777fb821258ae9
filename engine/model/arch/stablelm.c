/* StableLM (Bellagente et al. 2024): layer norm, part of each head rotated; the 12B normalises each head of q and k
 * with a weight of its own and has attention and feed-forward side by side, which shows in the norm that is not there.
 */
#include "engine/model/blocks.h"

static const pl_weight_spec specs[] = {
    PL_SPECS_MODEL,
    {PL_W_OUTPUT_NORM_B, 0, {0}},
    {PL_W_ATTN_NORM, 0, {0}},
    {PL_W_ATTN_NORM_B, 0, {0}},
    PL_SPECS_QKV,
    PL_SPECS_QKV_BIAS,
    {PL_W_ATTN_Q_NORM, PL_SPEC_OPTIONAL, {PL_DIM_HEAD, PL_DIM_N_HEAD}},
    {PL_W_ATTN_K_NORM, PL_SPEC_OPTIONAL, {PL_DIM_HEAD, PL_DIM_N_HEAD_KV}},
    {PL_W_FFN_NORM, PL_SPEC_OPTIONAL, {0}},
    {PL_W_FFN_NORM_B, PL_SPEC_OPTIONAL, {0}},
    PL_SPECS_GATED,
    PL_SPECS_END,
};

static void check(pl_hparams *hp, const pl_gguf *g, pl_problems *problems)
{
    hp->parallel = pl_gguf_find_tensor(g, PL_STR("blk.0.ffn_norm.weight")) == NULL;
    bool said = hp->parallel; /* in newer files */
    if (pl_hparam_bool(g, "stablelm", "use_parallel_residual", false, &said, problems) && said != hp->parallel)
        pl_problem(problems, "key stablelm.use_parallel_residual: tensor blk.0.ffn_norm.weight says otherwise");
}

const pl_arch pl_arch_stablelm = {.name = "stablelm",
                                  .norm = PL_NORM_LAYER,
                                  .rope = PL_ROPE_NEOX,
                                  .specs = specs,
                                  .check = check,
                                  .build = pl_build_decoder};
