#include "engine/model/blocks.h"

static pl_tensor *scaled(pl_build *b, pl_tensor *x, float scale)
{
    return scale == 1.0f ? x : pl_scale(b->c, x, scale);
}

pl_tensor *pl_block_embed(pl_build *b)
{
    if (!b->embed) return b->io.hidden;
    pl_tensor *x = pl_get_rows(b->c, b->weights[PL_W_TOKEN_EMBD], b->io.ids);
    return pl_set_name(scaled(b, x, b->hp->embd_scale), "embed");
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

/* weight NULL: only normalised. */
static pl_tensor *norm(pl_build *b, pl_tensor *x, pl_tensor *weight, pl_tensor *bias)
{
    x = pl_rms_norm(b->c, x, weight, b->hp->norm_eps);
    return bias ? pl_add(b->c, x, bias) : x;
}

pl_tensor *pl_block_norm(pl_build *b, int32_t il, pl_slot w, pl_slot bias, pl_tensor *x)
{
    pl_tensor **of = b->layer_weights[il];
    return of[w] ? norm(b, x, of[w], bias == PL_W_NONE ? NULL : of[bias]) : x;
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

/* x [n_head * d_head, n] as heads [d_head, n_head, n], normalised where the layer has a weight for it: [d_head] for
 * every head alike, or of the whole row. */
static pl_tensor *heads(pl_build *b, int32_t il, pl_slot weight, pl_tensor *x, int32_t n_head)
{
    pl_tensor *w = b->layer_weights[il][weight];
    if (w == NULL) return split_heads(b, x, n_head);
    if (w->ne[0] == b->hp->d_head) return norm(b, split_heads(b, x, n_head), w, NULL);
    return split_heads(b, norm(b, x, w, NULL), n_head);
}

static pl_tensor *rope(pl_build *b, int32_t il, pl_tensor *x)
{
    if (b->hp->layers[b->layer_first + il] & PL_LAYER_NO_ROPE) return x;
    return pl_rope(b->c, x, b->io.rope, b->hp->rope.n_rot, b->hp->rope.neox);
}

pl_tensor *pl_block_attention(pl_build *b, int32_t il, pl_tensor *x, bool last, bool *stored_only)
{
    const pl_hparams *hp = b->hp;
    *stored_only = false;
    pl_tensor *k = pl_block_linear(b, il, PL_W_ATTN_K, PL_W_ATTN_K_B, x); /* [d_head * n_head_kv, n_rows] */
    pl_tensor *v = pl_block_linear(b, il, PL_W_ATTN_V, PL_W_ATTN_V_B, x);
    k = rope(b, il, heads(b, il, PL_W_ATTN_K_NORM, k, hp->n_head_kv)); /* [d_head, n_head_kv, n_rows] */
    pl_tensor *kv = pl_kv_store(b->c, b->kv[il], k, split_heads(b, v, hp->n_head_kv), b->io.slots);
    if (last && b->n_out == 0) {
        *stored_only = true;
        return kv;
    }
    pl_tensor *q = pl_block_linear(b, il, PL_W_ATTN_Q, PL_W_ATTN_Q_B, x);
    q = rope(b, il, heads(b, il, PL_W_ATTN_Q_NORM, q, hp->n_head)); /* [d_head, n_head, n_rows] */
    if (b->io.temperature) q = pl_mul(b->c, q, b->io.temperature);
    pl_tensor *a = pl_attention(b->c, q, kv, b->io.pos, b->io.tables, hp->attn_scale);
    /* a [d_head * n_head, n_rows] */
    if (last) a = pl_block_wanted_rows(b, a);
    return pl_block_linear(b, il, PL_W_ATTN_OUT, PL_W_ATTN_OUT_B, a);
}

pl_tensor *pl_block_ffn(pl_build *b, int32_t il, pl_tensor *x)
{
    pl_tensor *gate = pl_block_linear(b, il, PL_W_FFN_GATE, PL_W_FFN_GATE_B, x); /* [n_ff, n] */
    pl_tensor *up = pl_block_linear(b, il, PL_W_FFN_UP, PL_W_FFN_UP_B, x);
    return pl_block_linear(b, il, PL_W_FFN_DOWN, PL_W_FFN_DOWN_B, pl_swiglu(b->c, gate, up));
}

pl_tensor *pl_block_head(pl_build *b, pl_tensor *x)
{
    x = norm(b, x, b->weights[PL_W_OUTPUT_NORM], b->weights[PL_W_OUTPUT_NORM_B]);
    pl_tensor *output = b->weights[PL_W_OUTPUT] ? b->weights[PL_W_OUTPUT] : b->weights[PL_W_TOKEN_EMBD];
    x = product(b, PL_W_OUTPUT, output, x);
    if (b->weights[PL_W_OUTPUT_B]) x = pl_add(b->c, x, b->weights[PL_W_OUTPUT_B]);
    return pl_set_name(scaled(b, x, b->hp->logit_scale), "logits");
}

pl_tensor *pl_build_decoder(pl_build *b)
{
    float scale = b->hp->residual_scale;
    pl_tensor *x = pl_block_embed(b); /* [n_embd, n_rows] */
    for (int32_t il = 0; il < b->layer_end - b->layer_first; il++) {
        bool last = pl_block_is_last(b, il), stored_only;
        pl_tensor *a = pl_block_norm(b, il, PL_W_ATTN_NORM, PL_W_ATTN_NORM_B, x);
        a = pl_block_attention(b, il, a, last, &stored_only);
        if (stored_only) return a;
        a = pl_block_norm(b, il, PL_W_ATTN_POST_NORM, PL_W_NONE, a);
        if (last) x = pl_block_wanted_rows(b, x); /* [n_embd, n_out] from here on */
        x = pl_add(b->c, x, scaled(b, a, scale));
        pl_tensor *f = pl_block_norm(b, il, PL_W_FFN_NORM, PL_W_FFN_NORM_B, x);
        f = pl_block_norm(b, il, PL_W_FFN_POST_NORM, PL_W_NONE, pl_block_ffn(b, il, f));
        x = pl_add(b->c, x, scaled(b, f, scale));
    }
    b->io.result = b->head ? pl_block_head(b, x) : pl_set_name(x, "hidden");
    return b->io.result;
}
