#include "engine/model/blocks.h"

#include <math.h>

static pl_tensor *scaled(pl_build *b, pl_tensor *x, float scale)
{
    return scale == 1.0f ? x : pl_scale(b->c, x, scale);
}

/* weight NULL: only normalised. */
static pl_tensor *norm(pl_build *b, pl_tensor *x, pl_tensor *weight, pl_tensor *bias)
{
    if (b->arch->norm == PL_NORM_LAYER) return pl_layer_norm(b->c, x, weight, bias, b->hp->norm_eps);
    x = pl_rms_norm(b->c, x, weight, b->hp->norm_eps);
    return bias ? pl_add(b->c, x, bias) : x;
}

pl_tensor *pl_block_embed(pl_build *b)
{
    if (!b->embed) return b->io.hidden;
    pl_tensor *x = pl_get_rows(b->c, b->weights[PL_W_TOKEN_EMBD], b->io.ids);
    x = scaled(b, x, b->hp->embd_scale);
    if (b->weights[PL_W_POSITION_EMBD])
        x = pl_add(b->c, x, pl_get_rows(b->c, b->weights[PL_W_POSITION_EMBD], b->io.pos));
    if (b->weights[PL_W_TOKEN_TYPES]) x = pl_add(b->c, x, pl_get_rows(b->c, b->weights[PL_W_TOKEN_TYPES], b->io.types));
    if (b->weights[PL_W_EMBD_NORM]) x = norm(b, x, b->weights[PL_W_EMBD_NORM], b->weights[PL_W_EMBD_NORM_B]);
    return pl_set_name(x, "embed");
}

static pl_tensor *product(pl_build *b, pl_slot slot, pl_tensor *w, pl_tensor *x)
{
    return pl_mul_mat_precise(b->c, w, x, pl_arch_precision(b->arch, slot));
}

/* y, and for each adapter of the weight: scale of the row * alpha / r * b times (a times x), r being the rank. */
static pl_tensor *adapted(pl_build *b, int32_t il, pl_slot w, pl_tensor *x, pl_tensor *y)
{
    const size_t n_layer = (size_t)(b->layer_end - b->layer_first);
    for (int32_t k = 0; k < b->n_adapters; k++) {
        pl_tensor **pair = b->adapters[((size_t)k * n_layer + (size_t)il) * PL_W_LAYER_COUNT + (size_t)w];
        if (pair[0] == NULL || x == NULL) continue;
        pl_tensor *scale = b->io.adapter_scales[k]; /* [1, n_rows], or of the rows that x has left */
        if (x->ne[1] != scale->ne[1]) scale = pl_get_rows(b->c, scale, b->io.out_ids);
        pl_tensor *low = pl_mul(b->c, pl_mul_mat(b->c, pair[0], x), scale); /* [r, n] */
        float factor = b->adapter_alpha[k] / (float)pair[0]->ne[1];
        y = pl_add(b->c, y, scaled(b, pl_mul_mat(b->c, pair[1], low), factor));
    }
    return y;
}

pl_tensor *pl_block_linear(pl_build *b, int32_t il, pl_slot w, pl_slot bias, pl_tensor *x)
{
    pl_tensor **of = b->layer_weights[il], *y = adapted(b, il, w, x, product(b, w, of[w], x));
    return bias != PL_W_NONE && of[bias] ? pl_add(b->c, y, of[bias]) : y;
}

pl_tensor *pl_block_norm(pl_build *b, int32_t il, pl_slot w, pl_slot bias, pl_tensor *x)
{
    pl_tensor **of = b->layer_weights[il];
    return of[w] ? norm(b, x, of[w], bias == PL_W_NONE ? NULL : of[bias]) : x;
}

/* Rows first..first + m * n_head - 1 of each column of x [.., n] -> [m, n_head, n] */
static pl_tensor *part_of(pl_build *b, pl_tensor *x, int64_t first, int64_t m, int32_t n_head)
{
    if (x == NULL) return NULL;
    const size_t nb[] = {x->nb[0], (size_t)m * x->nb[0], x->nb[1]};
    return pl_view(b->c, x, 3, (int64_t[]){m, n_head, x->ne[1]}, nb, (size_t)first * x->nb[0]);
}

/* [n_head * d_head, n] -> [d_head, n_head, n] */
static pl_tensor *split_heads(pl_build *b, pl_tensor *x, int32_t n_head)
{
    return part_of(b, x, 0, b->hp->d_head, n_head);
}

bool pl_block_is_last(const pl_build *b, int32_t il)
{
    return b->head && il + 1 == b->layer_end - b->layer_first;
}

pl_tensor *pl_block_wanted_rows(pl_build *b, pl_tensor *x)
{
    return b->io.out_ids ? pl_get_rows(b->c, x, b->io.out_ids) : x;
}

/* x [d_head, n_head, n] normalised where the layer has a weight for it: [d_head] for every head alike, [d_head, n_head]
 * for each its own, or of the whole row. */
static pl_tensor *norm_heads(pl_build *b, int32_t il, pl_slot weight, pl_tensor *x)
{
    pl_tensor *w = b->layer_weights[il][weight];
    if (w == NULL || x == NULL) return x;
    if (w->ne[1] > 1) return pl_mul(b->c, norm(b, x, NULL, NULL), w);
    if (w->ne[0] == x->ne[0]) return norm(b, x, w, NULL);
    pl_tensor *rows = pl_view(b->c, x, 2, (int64_t[]){w->ne[0], x->ne[2]}, (size_t[]){x->nb[0], x->nb[2]}, 0);
    return split_heads(b, norm(b, rows, w, NULL), (int32_t)x->ne[1]);
}

static pl_tensor *rope(pl_build *b, int32_t il, pl_tensor *x)
{
    uint8_t flags = b->hp->layers[b->layer_first + il];
    if (b->hp->rope.n_rot == 0 || flags & PL_LAYER_NO_ROPE) return x;
    bool local = b->hp->has_rope_local && flags & PL_LAYER_WINDOW;
    const pl_rope_params *p = local ? &b->hp->rope_local : &b->hp->rope;
    return pl_rope(b->c, x, local ? b->io.rope_local : b->io.rope, p->n_rot, p->neox);
}

pl_tensor *pl_block_attention(pl_build *b, int32_t il, pl_tensor *x, bool last, bool *stored_only)
{
    const pl_hparams *hp = b->hp;
    *stored_only = false;
    /* q [d_head, n_head, n_rows], k and v [d_head, n_head_kv, n_rows], from one product or three */
    pl_tensor *q = NULL, *k, *v;
    bool fused = b->layer_weights[il][PL_W_ATTN_QKV] != NULL;
    if (fused) {
        pl_tensor *qkv = pl_block_linear(b, il, PL_W_ATTN_QKV, PL_W_ATTN_QKV_B, x);
        int64_t d = hp->d_head, k_first = d * hp->n_head, v_first = k_first + d * hp->n_head_kv;
        q = part_of(b, qkv, 0, d, hp->n_head);
        k = part_of(b, qkv, k_first, d, hp->n_head_kv);
        v = part_of(b, qkv, v_first, d, hp->n_head_kv);
    } else {
        k = split_heads(b, pl_block_linear(b, il, PL_W_ATTN_K, PL_W_ATTN_K_B, x), hp->n_head_kv);
        v = split_heads(b, pl_block_linear(b, il, PL_W_ATTN_V, PL_W_ATTN_V_B, x), hp->n_head_kv);
    }
    k = rope(b, il, norm_heads(b, il, PL_W_ATTN_K_NORM, k));
    pl_tensor *kv = pl_kv_store(b->c, b->kv[il], k, v, b->io.slots);
    if (last && b->n_out == 0) {
        *stored_only = true;
        return kv;
    }
    if (!fused) q = split_heads(b, pl_block_linear(b, il, PL_W_ATTN_Q, PL_W_ATTN_Q_B, x), hp->n_head);
    q = rope(b, il, norm_heads(b, il, PL_W_ATTN_Q_NORM, q));
    if (b->io.temperature) q = pl_mul(b->c, q, b->io.temperature);
    bool windowed = hp->layers[b->layer_first + il] & PL_LAYER_WINDOW;
    const pl_attention_options options = {
        .scale = hp->attn_scale, .softcap = hp->attn_softcap, .window = windowed ? hp->window : 0};
    pl_tensor *a = pl_attention_with(b->c, q, kv, b->layer_weights[il][PL_W_ATTN_SINKS], b->io.last ? b->io.last : b->io.pos, b->io.tables, &options);
    /* a [d_head * n_head, n_rows] */
    if (last) a = pl_block_wanted_rows(b, a);
    return pl_block_linear(b, il, PL_W_ATTN_OUT, PL_W_ATTN_OUT_B, a);
}

/* Rows first..first + m - 1 of each column of x [.., n] */
static pl_tensor *rows_of(pl_build *b, pl_tensor *x, int64_t first, int64_t m)
{
    if (x == NULL) return NULL;
    return pl_view(b->c, x, 2, (int64_t[]){m, x->ne[1]}, (size_t[]){x->nb[0], x->nb[1]}, (size_t)first * x->nb[0]);
}

/* A product with every row's experts, plus their biases. x [k, 1 or n_used, n] -> [m, n_used, n] */
static pl_tensor *of_experts(pl_build *b, int32_t il, pl_slot w, pl_slot bias, pl_tensor *x, pl_tensor *ids)
{
    pl_tensor **of = b->layer_weights[il], *y = pl_mul_mat_id(b->c, of[w], x, ids, pl_arch_precision(b->arch, w));
    if (of[bias] == NULL || y == NULL) return y;
    pl_tensor *flat = pl_reshape(b->c, ids, 1, (int64_t[]){ids->ne[0] * ids->ne[1]});
    pl_tensor *rows = pl_get_rows(b->c, of[bias], flat);
    if (rows == NULL) return NULL;
    return pl_add(b->c, y, pl_reshape(b->c, rows, 3, y->ne));
}

/* gpt-oss: gate up to 7, up between -7 and 7 and plus 1. */
static pl_tensor *gated(pl_build *b, pl_tensor *gate, pl_tensor *up)
{
    if (!b->arch->clamped) return pl_glu(b->c, gate, up, b->arch->act);
    const float limit = 7.0f;
    gate = pl_clamp(b->c, gate, -INFINITY, limit);
    up = pl_scale_add(b->c, pl_clamp(b->c, up, -limit, limit), 1.0f, 1.0f);
    return pl_glu(b->c, gate, up, b->arch->act);
}

/* The expert that takes all rows, or as much of it as the row's own gate lets through. */
static pl_tensor *shared_expert(pl_build *b, int32_t il, pl_tensor *x)
{
    pl_tensor *gate = pl_block_linear(b, il, PL_W_SHARED_GATE, PL_W_NONE, x); /* [n_ff_shared, n] */
    pl_tensor *h = pl_glu(b->c, gate, pl_block_linear(b, il, PL_W_SHARED_UP, PL_W_NONE, x), b->arch->act);
    pl_tensor *y = pl_block_linear(b, il, PL_W_SHARED_DOWN, PL_W_NONE, h);
    if (b->layer_weights[il][PL_W_SHARED_ROUTER] == NULL) return y;
    pl_tensor *part = pl_block_linear(b, il, PL_W_SHARED_ROUTER, PL_W_NONE, x); /* [1, n] */
    return pl_mul(b->c, y, pl_unary(b->c, part, PL_FN_SIGMOID));
}

pl_tensor *pl_block_experts(pl_build *b, int32_t il, pl_tensor *x)
{
    const pl_hparams *hp = b->hp;
    pl_graph_ctx *c = b->c;
    pl_tensor **of = b->layer_weights[il];
    pl_tensor *scores = pl_block_linear(b, il, PL_W_ROUTER, PL_W_ROUTER_B, x); /* [n_expert, n] */
    if (hp->experts.gating == PL_GATING_SOFTMAX) scores = pl_softmax(c, scores, NULL, NULL, 1.0f);
    if (hp->experts.gating == PL_GATING_SIGMOID) scores = pl_unary(c, scores, PL_FN_SIGMOID);
    pl_tensor *choice = of[PL_W_ROUTER_CHOICE_B] ? pl_add(c, scores, of[PL_W_ROUTER_CHOICE_B]) : scores;
    pl_tensor *ids = pl_top_k_of_groups(c, choice, hp->experts.n_used, hp->experts.n_groups, hp->experts.n_groups_used, hp->experts.n_best);
    pl_tensor *weights = pl_take(c, scores, ids); /* [n_used, n] */
    if (hp->experts.gating == PL_GATING_SOFTMAX_OF_CHOSEN) weights = pl_softmax(c, weights, NULL, NULL, 1.0f);
    if (hp->experts.norm) weights = pl_div(c, weights, pl_sum_rows(c, weights));
    weights = scaled(b, weights, hp->experts.scale);
    pl_tensor *rows = x == NULL ? NULL : pl_view(c, x, 3, (int64_t[]){x->ne[0], 1, x->ne[1]}, (size_t[]){x->nb[0], x->nb[1], x->nb[1]}, 0);
    pl_tensor *gate = of_experts(b, il, PL_W_EXPERTS_GATE, PL_W_EXPERTS_GATE_B, rows, ids); /* [n_ff, n_used, n] */
    pl_tensor *up = of_experts(b, il, PL_W_EXPERTS_UP, PL_W_EXPERTS_UP_B, rows, ids);
    pl_tensor *y = of_experts(b, il, PL_W_EXPERTS_DOWN, PL_W_EXPERTS_DOWN_B, gated(b, gate, up), ids);
    y = pl_weighted_sum(c, y, weights); /* [n_embd, n] */
    return of[PL_W_SHARED_UP] ? pl_add(c, y, shared_expert(b, il, x)) : y;
}

pl_tensor *pl_block_ffn(pl_build *b, int32_t il, pl_tensor *x)
{
    if (b->hp->layers[b->layer_first + il] & PL_LAYER_EXPERTS) return pl_block_experts(b, il, x);
    pl_tensor **of = b->layer_weights[il], *h; /* [n_ff, n] */
    pl_tensor *up =
        pl_block_linear(b, il, PL_W_FFN_UP, PL_W_FFN_UP_B, x); /* [n_ff, n], or [2 * n_ff, n] with the gate */
    if (of[PL_W_FFN_GATE]) {
        h = pl_glu(b->c, pl_block_linear(b, il, PL_W_FFN_GATE, PL_W_FFN_GATE_B, x), up, b->arch->act);
    } else if (of[PL_W_FFN_UP]->ne[1] == 2 * (int64_t)b->hp->n_ff) {
        pl_tensor *gate = rows_of(b, up, 0, b->hp->n_ff);
        h = pl_glu(b->c, gate, rows_of(b, up, b->hp->n_ff, b->hp->n_ff), b->arch->act);
    } else {
        h = pl_unary(b->c, up, b->arch->act);
    }
    return pl_block_linear(b, il, PL_W_FFN_DOWN, PL_W_FFN_DOWN_B, h);
}

pl_tensor *pl_block_head(pl_build *b, pl_tensor *x)
{
    if (b->weights[PL_W_OUTPUT_NORM]) x = norm(b, x, b->weights[PL_W_OUTPUT_NORM], b->weights[PL_W_OUTPUT_NORM_B]);
    if (b->embeddings) return pl_set_name(x, "embeddings");
    pl_tensor *output = b->weights[PL_W_OUTPUT] ? b->weights[PL_W_OUTPUT] : b->weights[PL_W_TOKEN_EMBD];
    x = product(b, PL_W_OUTPUT, output, x);
    if (b->weights[PL_W_OUTPUT_B]) x = pl_add(b->c, x, b->weights[PL_W_OUTPUT_B]);
    x = scaled(b, x, b->hp->logit_scale);
    if (b->hp->logit_softcap != 0.0f) x = pl_softcap(b->c, x, b->hp->logit_softcap);
    return pl_set_name(x, "logits");
}

pl_tensor *pl_build_encoder(pl_build *b)
{
    pl_tensor *x = pl_block_embed(b); /* [n_embd, n_rows] */
    for (int32_t il = 0; il < b->layer_end - b->layer_first; il++) {
        bool last = pl_block_is_last(b, il), stored_only;
        pl_tensor *a = pl_block_attention(b, il, x, last, &stored_only);
        if (stored_only) return a;
        if (last) x = pl_block_wanted_rows(b, x); /* [n_embd, n_out] from here on */
        x = pl_block_norm(b, il, PL_W_ATTN_OUT_NORM, PL_W_ATTN_OUT_NORM_B, pl_add(b->c, x, a));
        x = pl_add(b->c, x, pl_block_ffn(b, il, x));
        x = pl_block_norm(b, il, PL_W_LAYER_OUT_NORM, PL_W_LAYER_OUT_NORM_B, x);
    }
    b->io.result = b->head ? pl_block_head(b, x) : pl_set_name(x, "hidden");
    return b->io.result;
}

pl_tensor *pl_build_decoder(pl_build *b)
{
    float scale = b->hp->residual_scale;
    pl_tensor *x = pl_block_embed(b); /* [n_embd, n_rows] */
    for (int32_t il = 0; il < b->layer_end - b->layer_first; il++) {
        bool last = pl_block_is_last(b, il), stored_only;
        pl_tensor *h = pl_block_norm(b, il, PL_W_ATTN_NORM, PL_W_ATTN_NORM_B, x);
        pl_tensor *a = pl_block_attention(b, il, h, last, &stored_only);
        if (stored_only) return a;
        pl_slot ffn_norm = b->arch->ffn_norm_is_post ? PL_W_ATTN_POST_NORM : PL_W_FFN_NORM;
        if (!b->arch->ffn_norm_is_post) a = pl_block_norm(b, il, PL_W_ATTN_POST_NORM, PL_W_NONE, a);
        if (last) x = pl_block_wanted_rows(b, x); /* [n_embd, n_out] from here on */
        pl_tensor *before = x, *f;
        x = pl_add(b->c, x, scaled(b, a, scale));
        if (b->hp->parallel && b->layer_weights[il][PL_W_FFN_NORM] == NULL)
            f = last ? pl_block_wanted_rows(b, h) : h; /* one norm for both */
        else
            f = pl_block_norm(b, il, ffn_norm, PL_W_FFN_NORM_B, b->hp->parallel ? before : x);
        f = pl_block_norm(b, il, PL_W_FFN_POST_NORM, PL_W_NONE, pl_block_ffn(b, il, f));
        x = pl_add(b->c, x, scaled(b, f, scale));
    }
    b->io.result = b->head ? pl_block_head(b, x) : pl_set_name(x, "hidden");
    return b->io.result;
}
