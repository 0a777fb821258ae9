#include "engine/model/blocks.h"

#include <math.h>

pl_tensor *pl_block_embed(pl_build *b)
{
    if (!b->embed) return b->io.hidden;
    return pl_set_name(pl_get_rows(b->c, b->weights[PL_W_TOKEN_EMBD], b->io.ids), "embed");
}

static pl_tensor *product(pl_build *b, pl_slot slot, pl_tensor *w, pl_tensor *x)
{
    return pl_arch_is_precise(b->arch, slot) ? pl_mul_mat_precise(b->c, w, x) : pl_mul_mat(b->c, w, x);
}

pl_tensor *pl_block_linear(pl_build *b, int32_t il, pl_slot w, pl_slot bias, pl_tensor *x)
{
    pl_tensor **of = b->layer_weights[il], *y = product(b, w, of[w], x);
    return of[bias] ? pl_add(b->c, y, of[bias]) : y;
}

/* [n_head * d_head, n] -> [d_head, n_head, n] */
static pl_tensor *split_heads(pl_build *b, pl_tensor *x, int32_t n_head)
{
    if (x == NULL) return NULL;
    return pl_reshape(b->c, x, 3, (int64_t[]){b->hp->d_head, n_head, x->ne[1]});
}

bool pl_block_is_last(const pl_build *b, int32_t il)
{
    return b->head && il + 1 == b->layer_end - b->layer_first;
}

pl_tensor *pl_block_wanted_rows(pl_build *b, pl_tensor *x)
{
    return b->io.out_ids ? pl_get_rows(b->c, x, b->io.out_ids) : x;
}

pl_tensor *pl_block_attention(pl_build *b, int32_t il, pl_tensor *x, bool last, bool *stored_only)
{
    const pl_hparams *hp = b->hp;
    *stored_only = false;
    pl_tensor *k = split_heads(b, pl_block_linear(b, il, PL_W_ATTN_K, PL_W_ATTN_K_B, x), hp->n_head_kv);
    pl_tensor *v = split_heads(b, pl_block_linear(b, il, PL_W_ATTN_V, PL_W_ATTN_V_B, x), hp->n_head_kv);
    /* k [d_head, n_head_kv, n_rows] */
    k = pl_rope(b->c, k, b->io.rope, hp->rope.n_rot, hp->rope.neox);
    pl_tensor *kv = pl_kv_store(b->c, b->kv[il], k, v, b->io.slots);
    if (last && b->n_out == 0) {
        *stored_only = true;
        return kv;
    }
    pl_tensor *q = split_heads(b, pl_block_linear(b, il, PL_W_ATTN_Q, PL_W_ATTN_Q_B, x), hp->n_head);
    /* q [d_head, n_head, n_rows] */
    q = pl_rope(b->c, q, b->io.rope, hp->rope.n_rot, hp->rope.neox);
    pl_tensor *a = pl_attention(b->c, q, kv, b->io.pos, b->io.tables, 1.0f / sqrtf((float)hp->d_head));
    /* a [d_head * n_head, n_rows] */
    if (last) a = pl_block_wanted_rows(b, a);
    return pl_block_linear(b, il, PL_W_ATTN_OUT, PL_W_ATTN_OUT_B, a);
}

pl_tensor *pl_block_swiglu(pl_build *b, int32_t il, pl_tensor *x)
{
    pl_tensor *gate = pl_block_linear(b, il, PL_W_FFN_GATE, PL_W_FFN_GATE_B, x); /* [n_ff, n] */
    pl_tensor *up = pl_block_linear(b, il, PL_W_FFN_UP, PL_W_FFN_UP_B, x);
    return pl_block_linear(b, il, PL_W_FFN_DOWN, PL_W_FFN_DOWN_B, pl_swiglu(b->c, gate, up));
}

pl_tensor *pl_block_head(pl_build *b, pl_tensor *x)
{
    x = pl_rms_norm(b->c, x, b->weights[PL_W_OUTPUT_NORM], b->hp->rms_eps);
    pl_tensor *output = b->weights[PL_W_OUTPUT] ? b->weights[PL_W_OUTPUT] : b->weights[PL_W_TOKEN_EMBD];
    return pl_set_name(product(b, PL_W_OUTPUT, output, x), "logits");
}
