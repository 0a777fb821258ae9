#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/graph/graph_impl.h"

const pl_op_info pl_op_table[PL_OP_COUNT] = {
    [PL_OP_NONE] = {"none", 0},
    [PL_OP_VIEW] = {"view", 0},
    [PL_OP_GET_ROWS] = {"get_rows", 0},
    [PL_OP_MUL_MAT] = {"mul_mat", 0},
    [PL_OP_MUL_MAT_BATCH] = {"mul_mat_batch", 0},
    [PL_OP_MUL_MAT_ID] = {"mul_mat_id", 0},
    [PL_OP_RMS_NORM] = {"rms_norm", 1, PL_PARTS_ROWS},
    [PL_OP_LAYER_NORM] = {"layer_norm", 1, PL_PARTS_ROWS},
    [PL_OP_L2_NORM] = {"l2_norm", 1, PL_PARTS_ROWS},
    [PL_OP_ADD] = {"add", 3, PL_PARTS_ELEMENTS},
    [PL_OP_SUB] = {"sub", 3, PL_PARTS_ELEMENTS},
    [PL_OP_MUL] = {"mul", 3, PL_PARTS_ELEMENTS},
    [PL_OP_DIV] = {"div", 3, PL_PARTS_ELEMENTS},
    [PL_OP_SCALE] = {"scale", 1, PL_PARTS_ELEMENTS},
    [PL_OP_CLAMP] = {"clamp", 1, PL_PARTS_ELEMENTS},
    [PL_OP_SOFTCAP] = {"softcap", 1, PL_PARTS_ELEMENTS},
    [PL_OP_UNARY] = {"unary", 1, PL_PARTS_ELEMENTS},
    [PL_OP_GLU] = {"glu", 3, PL_PARTS_ELEMENTS},
    [PL_OP_ROPE] = {"rope", 1, PL_PARTS_ROWS},
    [PL_OP_KV_STORE] = {"kv_store", 0, PL_PARTS_ROWS},
    [PL_OP_ATTENTION] = {"attention", 0},
    [PL_OP_COPY] = {"copy", 0},
    [PL_OP_CONCAT] = {"concat", 0},
    [PL_OP_REPEAT] = {"repeat", 0},
    [PL_OP_SET_ROWS] = {"set_rows", 0},
    [PL_OP_TAKE] = {"take", 0},
    [PL_OP_TOP_K] = {"top_k", 0},
    [PL_OP_SOFTMAX] = {"softmax", 1},
    [PL_OP_SUM_ROWS] = {"sum_rows", 0},
    [PL_OP_WEIGHTED_SUM] = {"weighted_sum", 0},
    [PL_OP_MEAN] = {"mean", 0},
};

const char *pl_op_label(pl_op op, pl_fn fn)
{
    static const char *const names[PL_FN_COUNT][2] = {
        [PL_FN_SILU] = {"silu", "swiglu"},
        [PL_FN_GELU] = {"gelu", "gelu_glu"},
        [PL_FN_GELU_TANH] = {"gelu_tanh", "gelu_tanh_glu"},
        [PL_FN_GELU_QUICK] = {"gelu_quick", "gelu_quick_glu"},
        [PL_FN_RELU] = {"relu", "relu_glu"},
        [PL_FN_RELU2] = {"relu2", "relu2_glu"},
        [PL_FN_SIGMOID] = {"sigmoid", "glu"},
        [PL_FN_TANH] = {"tanh", "tanh_glu"},
        [PL_FN_EXP] = {"exp", "exp_glu"},
    };
    if ((op == PL_OP_UNARY || op == PL_OP_GLU) && (unsigned)fn < PL_FN_COUNT) return names[fn][op == PL_OP_GLU];
    return pl_op_name(op);
}

const char *pl_op_name(pl_op op) { return (unsigned)op < PL_OP_COUNT ? pl_op_table[op].name : "?"; }

/* A tensor of this shape with the strides of a contiguous one and no data. */
static pl_tensor *new_tensor(pl_graph_ctx *c, pl_op op, pl_type type, int n_dims, const int64_t *ne)
{
    const pl_type_info *info = pl_type_get(type);
    PL_ASSERT(info && n_dims >= 1 && n_dims <= PL_MAX_DIMS && ne[0] % info->block == 0);
    pl_graph_tensor *g = PL_ARENA_NEW(&c->arena, pl_graph_tensor);
    if (!g) return NULL;
    g->id = c->n_tensors++;
    pl_tensor *t = &g->t;
    t->op = op;
    t->type = type;
    for (int i = 0; i < PL_MAX_DIMS; i++) {
        t->ne[i] = i < n_dims ? ne[i] : 1;
        PL_ASSERT(t->ne[i] >= 0);
    }
    t->nb[0] = info->bytes;
    t->nb[1] = pl_type_row_size(type, ne[0]);
    for (int i = 2; i < PL_MAX_DIMS; i++) t->nb[i] = t->nb[i - 1] * (size_t)t->ne[i - 1];
    return t;
}

static void share_bytes(pl_tensor *t, pl_tensor *a, size_t offset)
{
    t->view_root = pl_graph_root(a);
    t->view_offset = a->view_offset + offset;
    if (t->view_root->data) t->data = (uint8_t *)t->view_root->data + t->view_offset;
}

static bool same_shape(const pl_tensor *a, const pl_tensor *b) { return memcmp(a->ne, b->ne, sizeof a->ne) == 0; }
static bool is_f32(const pl_tensor *t) { return t->type == PL_TYPE_F32; }
static bool rows_are_dense(const pl_tensor *t) { return t->nb[0] == pl_type_get(t->type)->bytes; }

pl_tensor *pl_new_weight(pl_graph_ctx *c, pl_type type, pl_layout layout, int n_dims, const int64_t *ne, const void *data, const char *name)
{
    pl_tensor *t = new_tensor(c, PL_OP_NONE, type, n_dims, ne);
    if (!t) return NULL;
    t->flags = PL_TENSOR_WEIGHT;
    t->layout = layout;
    t->data = (void *)(uintptr_t)data; /* The only op that writes to a weight is kv_store, to what its caller knows to be writable. */
    return pl_set_name(t, "%s", name);
}

pl_tensor *pl_new_input(pl_graph_ctx *c, pl_type type, int n_dims, const int64_t *ne, const char *name)
{
    pl_tensor *t = new_tensor(c, PL_OP_NONE, type, n_dims, ne);
    if (!t) return NULL;
    t->flags = PL_TENSOR_INPUT;
    return pl_set_name(t, "%s", name);
}

pl_tensor *pl_set_name(pl_tensor *t, const char *fmt, ...)
{
    if (!t) return NULL;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(t->name, sizeof t->name, fmt, ap);
    va_end(ap);
    return t;
}

pl_tensor *pl_set_output(pl_tensor *t)
{
    if (t) t->flags |= PL_TENSOR_OUTPUT;
    return t;
}

pl_tensor *pl_reshape(pl_graph_ctx *c, pl_tensor *a, int n_dims, const int64_t *ne)
{
    if (!a) return NULL;
    PL_ASSERT(pl_tensor_is_contiguous(a) && a->layout == PL_LAYOUT_PLAIN);
    pl_tensor *t = new_tensor(c, PL_OP_VIEW, a->type, n_dims, ne);
    if (!t) return NULL;
    PL_ASSERT(pl_tensor_elements(t) == pl_tensor_elements(a));
    t->src[0] = a;
    share_bytes(t, a, 0);
    return t;
}

pl_tensor *pl_view(pl_graph_ctx *c, pl_tensor *a, int n_dims, const int64_t *ne, const size_t *nb, size_t offset)
{
    if (!a) return NULL;
    PL_ASSERT(a->layout == PL_LAYOUT_PLAIN);
    pl_tensor *t = new_tensor(c, PL_OP_VIEW, a->type, n_dims, ne);
    if (!t) return NULL;
    for (int i = 0; i < n_dims; i++) t->nb[i] = nb[i];
    for (int i = n_dims; i < PL_MAX_DIMS; i++) t->nb[i] = t->nb[i - 1] * (size_t)t->ne[i - 1];
    size_t size = pl_tensor_bytes(t), room = pl_tensor_bytes(a);
    PL_ASSERT(offset <= room && size <= room - offset);
    t->src[0] = a;
    share_bytes(t, a, offset);
    return t;
}

pl_tensor *pl_permute(pl_graph_ctx *c, pl_tensor *a, int d0, int d1, int d2, int d3)
{
    if (!a) return NULL;
    const int to[PL_MAX_DIMS] = {d0, d1, d2, d3};
    PL_ASSERT(pl_type_get(a->type)->block == 1 && a->layout == PL_LAYOUT_PLAIN);
    pl_tensor *t = new_tensor(c, PL_OP_VIEW, a->type, PL_MAX_DIMS, a->ne);
    if (!t) return NULL;
    unsigned seen = 0;
    for (int i = 0; i < PL_MAX_DIMS; i++) {
        PL_ASSERT(to[i] >= 0 && to[i] < PL_MAX_DIMS);
        seen |= 1u << to[i];
        t->ne[to[i]] = a->ne[i];
        t->nb[to[i]] = a->nb[i];
    }
    PL_ASSERT(seen == 15);
    t->src[0] = a;
    share_bytes(t, a, 0);
    return t;
}

pl_tensor *pl_get_rows(pl_graph_ctx *c, pl_tensor *table, pl_tensor *ids)
{
    if (!table || !ids) return NULL;
    PL_ASSERT(ids->type == PL_TYPE_I32 && pl_tensor_rows(ids) == 1 && rows_are_dense(ids));
    PL_ASSERT(table->ne[2] == 1 && table->ne[3] == 1 && rows_are_dense(table));
    pl_tensor *t = new_tensor(c, PL_OP_GET_ROWS, PL_TYPE_F32, 2, (int64_t[]){table->ne[0], ids->ne[0]});
    if (!t) return NULL;
    t->src[0] = table;
    t->src[1] = ids;
    return t;
}

pl_tensor *pl_mul_mat(pl_graph_ctx *c, pl_tensor *w, pl_tensor *x)
{
    if (!w || !x) return NULL;
    PL_ASSERT(rows_are_dense(w) && is_f32(x) && rows_are_dense(x) && w->ne[0] == x->ne[0]);
    PL_ASSERT(w->ne[2] > 0 && w->ne[3] > 0 && x->ne[2] % w->ne[2] == 0 && x->ne[3] % w->ne[3] == 0);
    bool is_batch = w->ne[2] * w->ne[3] * x->ne[2] * x->ne[3] != 1;
    PL_ASSERT(w->layout == PL_LAYOUT_PLAIN || !is_batch || pl_tensor_is_contiguous(w));
    pl_tensor *t = new_tensor(c, is_batch ? PL_OP_MUL_MAT_BATCH : PL_OP_MUL_MAT, PL_TYPE_F32, 4, (int64_t[]){w->ne[1], x->ne[1], x->ne[2], x->ne[3]});
    if (!t) return NULL;
    t->src[0] = w;
    t->src[1] = x;
    return t;
}

pl_tensor *pl_mul_mat_precise(pl_graph_ctx *c, pl_tensor *w, pl_tensor *x, pl_precision precision)
{
    pl_tensor *t = pl_mul_mat(c, w, x);
    if (t) t->params.i[0] = precision;
    return t;
}

pl_tensor *pl_mul_mat_id(pl_graph_ctx *c, pl_tensor *w, pl_tensor *x, pl_tensor *ids, pl_precision precision)
{
    if (!w || !x || !ids) return NULL;
    PL_ASSERT(rows_are_dense(w) && is_f32(x) && rows_are_dense(x) && w->ne[0] == x->ne[0] && w->ne[3] == 1 && x->ne[3] == 1);
    PL_ASSERT(w->layout == PL_LAYOUT_PLAIN || pl_tensor_is_contiguous(w));
    PL_ASSERT(ids->type == PL_TYPE_I32 && rows_are_dense(ids) && ids->ne[2] == 1 && ids->ne[3] == 1);
    PL_ASSERT(ids->ne[1] == x->ne[2] && (x->ne[1] == ids->ne[0] || x->ne[1] == 1));
    pl_tensor *t = new_tensor(c, PL_OP_MUL_MAT_ID, PL_TYPE_F32, 3, (int64_t[]){w->ne[1], ids->ne[0], ids->ne[1]});
    if (!t) return NULL;
    t->src[0] = w;
    t->src[1] = x;
    t->src[2] = ids;
    t->params.i[0] = precision;
    return t;
}

/* A row operator whose result has the shape of a. */
static pl_tensor *like(pl_graph_ctx *c, pl_op op, pl_tensor *a, pl_tensor *b)
{
    PL_ASSERT(is_f32(a) && rows_are_dense(a));
    pl_tensor *t = new_tensor(c, op, PL_TYPE_F32, PL_MAX_DIMS, a->ne);
    if (!t) return NULL;
    t->src[0] = a;
    t->src[1] = b;
    return t;
}

pl_tensor *pl_rms_norm(pl_graph_ctx *c, pl_tensor *x, pl_tensor *weight, float eps)
{
    if (!x) return NULL;
    PL_ASSERT(!weight || (is_f32(weight) && rows_are_dense(weight) && weight->ne[0] == x->ne[0] && pl_tensor_rows(weight) == 1));
    PL_ASSERT(x->ne[0] > 0);
    pl_tensor *t = like(c, PL_OP_RMS_NORM, x, weight);
    if (t) t->params.f[0] = eps;
    return t;
}

static bool is_vector(const pl_tensor *t, int64_t n)
{
    return is_f32(t) && rows_are_dense(t) && t->ne[0] == n && pl_tensor_rows(t) == 1;
}

pl_tensor *pl_group_norm(pl_graph_ctx *c, pl_tensor *x, pl_tensor *weight, pl_tensor *bias, int n_groups, float eps)
{
    if (!x) return NULL;
    PL_ASSERT((!weight || is_vector(weight, x->ne[0])) && (!bias || is_vector(bias, x->ne[0])));
    PL_ASSERT(x->ne[0] > 0 && n_groups > 0 && x->ne[0] % n_groups == 0);
    pl_tensor *t = like(c, PL_OP_LAYER_NORM, x, weight);
    if (!t) return NULL;
    t->src[2] = bias;
    t->params.f[0] = eps;
    t->params.i[1] = n_groups;
    return t;
}

pl_tensor *pl_layer_norm(pl_graph_ctx *c, pl_tensor *x, pl_tensor *weight, pl_tensor *bias, float eps)
{
    return pl_group_norm(c, x, weight, bias, 1, eps);
}

pl_tensor *pl_l2_norm(pl_graph_ctx *c, pl_tensor *x, float eps)
{
    if (!x) return NULL;
    pl_tensor *t = like(c, PL_OP_L2_NORM, x, NULL);
    if (t) t->params.f[0] = eps;
    return t;
}

static pl_tensor *binary(pl_graph_ctx *c, pl_op op, pl_tensor *a, pl_tensor *b)
{
    if (!a || !b) return NULL;
    PL_ASSERT(is_f32(b) && rows_are_dense(b));
    for (int i = 0; i < PL_MAX_DIMS; i++) PL_ASSERT(b->ne[i] == a->ne[i] || b->ne[i] == 1);
    return like(c, op, a, b);
}

pl_tensor *pl_add(pl_graph_ctx *c, pl_tensor *a, pl_tensor *b) { return binary(c, PL_OP_ADD, a, b); }
pl_tensor *pl_sub(pl_graph_ctx *c, pl_tensor *a, pl_tensor *b) { return binary(c, PL_OP_SUB, a, b); }
pl_tensor *pl_mul(pl_graph_ctx *c, pl_tensor *a, pl_tensor *b) { return binary(c, PL_OP_MUL, a, b); }
pl_tensor *pl_div(pl_graph_ctx *c, pl_tensor *a, pl_tensor *b) { return binary(c, PL_OP_DIV, a, b); }

/* An elementwise operator with two numbers. */
static pl_tensor *with_numbers(pl_graph_ctx *c, pl_op op, pl_tensor *a, float f0, float f1)
{
    if (!a) return NULL;
    pl_tensor *t = like(c, op, a, NULL);
    if (!t) return NULL;
    t->params.f[0] = f0;
    t->params.f[1] = f1;
    return t;
}

pl_tensor *pl_scale(pl_graph_ctx *c, pl_tensor *a, float s) { return with_numbers(c, PL_OP_SCALE, a, s, 0); }
pl_tensor *pl_scale_add(pl_graph_ctx *c, pl_tensor *a, float s, float b) { return with_numbers(c, PL_OP_SCALE, a, s, b); }

pl_tensor *pl_clamp(pl_graph_ctx *c, pl_tensor *a, float least, float most)
{
    PL_ASSERT(least <= most);
    return with_numbers(c, PL_OP_CLAMP, a, least, most);
}

pl_tensor *pl_softcap(pl_graph_ctx *c, pl_tensor *a, float cap)
{
    PL_ASSERT(cap > 0);
    return with_numbers(c, PL_OP_SOFTCAP, a, cap, 0);
}

pl_tensor *pl_unary(pl_graph_ctx *c, pl_tensor *a, pl_fn fn)
{
    if (!a) return NULL;
    PL_ASSERT((unsigned)fn < PL_FN_COUNT);
    pl_tensor *t = like(c, PL_OP_UNARY, a, NULL);
    if (t) t->params.i[0] = fn;
    return t;
}

pl_tensor *pl_glu(pl_graph_ctx *c, pl_tensor *gate, pl_tensor *up, pl_fn fn)
{
    if (!gate || !up) return NULL;
    PL_ASSERT(is_f32(up) && rows_are_dense(up) && same_shape(gate, up) && (unsigned)fn < PL_FN_COUNT);
    pl_tensor *t = like(c, PL_OP_GLU, gate, up);
    if (t) t->params.i[0] = fn;
    return t;
}

pl_tensor *pl_silu(pl_graph_ctx *c, pl_tensor *a) { return pl_unary(c, a, PL_FN_SILU); }
pl_tensor *pl_swiglu(pl_graph_ctx *c, pl_tensor *gate, pl_tensor *up) { return pl_glu(c, gate, up, PL_FN_SILU); }

pl_tensor *pl_rope(pl_graph_ctx *c, pl_tensor *x, pl_tensor *table, int n_rot, bool neox)
{
    if (!x || !table) return NULL;
    PL_ASSERT(x->ne[3] == 1 && n_rot > 0 && n_rot % 2 == 0 && n_rot <= x->ne[0]);
    PL_ASSERT(x->nb[1] % sizeof(float) == 0); /* kernels step from head to head in floats */
    PL_ASSERT(is_f32(table) && rows_are_dense(table) && table->ne[0] == n_rot && table->ne[1] == x->ne[2] && table->ne[2] == 1);
    pl_tensor *t = like(c, PL_OP_ROPE, x, table);
    if (!t) return NULL;
    t->params.i[0] = n_rot;
    t->params.i[1] = neox;
    return t;
}

enum { KV_QUANT_BLOCK = 32 };

static bool is_cache_type(pl_type type, int32_t d)
{
    switch (type) {
    case PL_TYPE_F32:
    case PL_TYPE_F16:
    case PL_TYPE_BF16: return true;
    case PL_TYPE_Q8_0:
    case PL_TYPE_Q4_0: return d % KV_QUANT_BLOCK == 0;
    default: return false;
    }
}

bool pl_kv_layout_ok(const pl_kv_layout *l)
{
    return l->n_head > 0 && l->d_k > 0 && l->d_v > 0 && is_cache_type(l->k_type, l->d_k) && is_cache_type(l->v_type, l->d_v);
}

size_t pl_kv_k_bytes(const pl_kv_layout *l) { return PL_KV_PAGE * pl_type_row_size(l->k_type, l->d_k); }
size_t pl_kv_v_bytes(const pl_kv_layout *l) { return PL_KV_PAGE * pl_type_row_size(l->v_type, l->d_v); }
size_t pl_kv_block_bytes(const pl_kv_layout *l) { return (size_t)l->n_head * (pl_kv_k_bytes(l) + pl_kv_v_bytes(l)); }

pl_kv_layout pl_kv_layout_of(const pl_tensor *kv)
{
    const int32_t *i = kv->params.i;
    return (pl_kv_layout){(pl_type)i[0], (pl_type)i[1], i[2], i[3], i[4]};
}

static void keep_layout(pl_tensor *t, const pl_kv_layout *l)
{
    const int32_t values[] = {l->k_type, l->v_type, l->n_head, l->d_k, l->d_v};
    memcpy(t->params.i, values, sizeof values);
}

pl_tensor *pl_new_kv(pl_graph_ctx *c, const pl_kv_layout *l, int64_t n_blocks, void *data, const char *name)
{
    PL_ASSERT(pl_kv_layout_ok(l));
    pl_tensor *t = pl_new_weight(c, PL_TYPE_I8, PL_LAYOUT_PLAIN, 2, (int64_t[]){(int64_t)pl_kv_block_bytes(l), n_blocks}, data, name);
    if (t) keep_layout(t, l);
    return t;
}

static bool is_numbers(const pl_tensor *t, int64_t n)
{
    return t->type == PL_TYPE_I32 && rows_are_dense(t) && t->ne[0] == n && pl_tensor_rows(t) == 1;
}

pl_tensor *pl_kv_store(pl_graph_ctx *c, pl_tensor *kv, pl_tensor *k, pl_tensor *v, pl_tensor *slots)
{
    if (!kv || !k || !v || !slots) return NULL;
    pl_kv_layout l = pl_kv_layout_of(kv);
    PL_ASSERT(pl_kv_layout_ok(&l) && is_f32(k) && is_f32(v) && rows_are_dense(k) && rows_are_dense(v));
    PL_ASSERT(k->ne[0] == l.d_k && v->ne[0] == l.d_v && k->ne[1] == l.n_head && v->ne[1] == l.n_head);
    PL_ASSERT(k->ne[2] == v->ne[2] && k->ne[3] == 1 && v->ne[3] == 1 && is_numbers(slots, k->ne[2]));
    pl_tensor *t = new_tensor(c, PL_OP_KV_STORE, kv->type, PL_MAX_DIMS, kv->ne);
    if (!t) return NULL;
    t->src[0] = kv;
    t->src[1] = k;
    t->src[2] = v;
    t->src[3] = slots;
    keep_layout(t, &l);
    share_bytes(t, kv, 0);
    return t;
}

pl_tensor *pl_attention_with(pl_graph_ctx *c, pl_tensor *q, pl_tensor *kv, pl_tensor *sinks, pl_tensor *pos, pl_tensor *tables,
                             const pl_attention_options *options)
{
    if (!q || !kv || !pos || !tables) return NULL;
    pl_kv_layout l = pl_kv_layout_of(kv);
    PL_ASSERT(pl_kv_layout_ok(&l) && is_f32(q) && rows_are_dense(q));
    PL_ASSERT(q->ne[0] == l.d_k && q->ne[1] % l.n_head == 0 && q->ne[3] == 1 && is_numbers(pos, q->ne[2]));
    PL_ASSERT(tables->type == PL_TYPE_I32 && rows_are_dense(tables) && tables->ne[1] == q->ne[2] && tables->ne[2] == 1);
    PL_ASSERT(!sinks || is_vector(sinks, q->ne[1]));
    PL_ASSERT(options->softcap >= 0 && options->window >= 0 && options->chunk >= 0 && options->max_bias >= 0);
    pl_tensor *t = new_tensor(c, PL_OP_ATTENTION, PL_TYPE_F32, 2, (int64_t[]){l.d_v * q->ne[1], q->ne[2]});
    if (!t) return NULL;
    t->src[0] = q;
    t->src[1] = kv;
    t->src[2] = pos;
    t->src[3] = tables;
    t->src[4] = sinks;
    t->params.f[0] = options->scale;
    t->params.f[1] = options->softcap;
    t->params.f[2] = options->max_bias;
    t->params.i[3] = options->window;
    t->params.i[4] = options->chunk;
    return t;
}

pl_tensor *pl_attention(pl_graph_ctx *c, pl_tensor *q, pl_tensor *kv, pl_tensor *pos, pl_tensor *tables, float scale)
{
    return pl_attention_with(c, q, kv, NULL, pos, tables, &(pl_attention_options){.scale = scale});
}

pl_attention_options pl_attention_options_of(const pl_tensor *t)
{
    return (pl_attention_options){.scale = t->params.f[0],
                                  .softcap = t->params.f[1],
                                  .max_bias = t->params.f[2],
                                  .window = t->params.i[3],
                                  .chunk = t->params.i[4]};
}

static bool is_half_or_float(pl_type type) { return type == PL_TYPE_F32 || type == PL_TYPE_F16 || type == PL_TYPE_BF16; }

pl_tensor *pl_copy(pl_graph_ctx *c, pl_tensor *a, pl_type type)
{
    if (!a) return NULL;
    PL_ASSERT(a->layout == PL_LAYOUT_PLAIN);
    PL_ASSERT(pl_type_get(a->type)->block == 1 || rows_are_dense(a));
    if (type != a->type) {
        PL_ASSERT(pl_type_get(a->type)->to_float && pl_type_get(type)->from_float);
        PL_ASSERT(rows_are_dense(a) || (is_half_or_float(a->type) && is_half_or_float(type)));
    }
    pl_tensor *t = new_tensor(c, PL_OP_COPY, type, PL_MAX_DIMS, a->ne);
    if (!t) return NULL;
    t->src[0] = a;
    return t;
}

pl_tensor *pl_concat(pl_graph_ctx *c, pl_tensor *a, pl_tensor *b, int dim)
{
    if (!a || !b) return NULL;
    PL_ASSERT(dim >= 0 && dim < PL_MAX_DIMS && a->type == b->type && a->layout == PL_LAYOUT_PLAIN && b->layout == PL_LAYOUT_PLAIN);
    PL_ASSERT(rows_are_dense(a) && rows_are_dense(b));
    int64_t ne[PL_MAX_DIMS];
    for (int i = 0; i < PL_MAX_DIMS; i++) {
        PL_ASSERT(i == dim || a->ne[i] == b->ne[i]);
        ne[i] = a->ne[i] + (i == dim ? b->ne[i] : 0);
    }
    pl_tensor *t = new_tensor(c, PL_OP_CONCAT, a->type, PL_MAX_DIMS, ne);
    if (!t) return NULL;
    t->src[0] = a;
    t->src[1] = b;
    t->params.i[0] = dim;
    return t;
}

pl_tensor *pl_repeat(pl_graph_ctx *c, pl_tensor *a, const int64_t ne[PL_MAX_DIMS])
{
    if (!a) return NULL;
    PL_ASSERT(pl_type_get(a->type)->block == 1 && rows_are_dense(a) && a->layout == PL_LAYOUT_PLAIN);
    for (int i = 0; i < PL_MAX_DIMS; i++) PL_ASSERT(a->ne[i] > 0 && ne[i] % a->ne[i] == 0);
    pl_tensor *t = new_tensor(c, PL_OP_REPEAT, a->type, PL_MAX_DIMS, ne);
    if (t) t->src[0] = a;
    return t;
}

pl_tensor *pl_set_rows(pl_graph_ctx *c, pl_tensor *table, pl_tensor *rows, pl_tensor *ids)
{
    if (!table || !rows || !ids) return NULL;
    PL_ASSERT(table->layout == PL_LAYOUT_PLAIN && table->ne[2] == 1 && table->ne[3] == 1 && rows_are_dense(table));
    PL_ASSERT(pl_type_get(table->type)->from_float && is_f32(rows) && rows_are_dense(rows) && rows->ne[0] == table->ne[0]);
    PL_ASSERT(rows->ne[2] == 1 && rows->ne[3] == 1 && is_numbers(ids, rows->ne[1]));
    pl_tensor *t = new_tensor(c, PL_OP_SET_ROWS, table->type, PL_MAX_DIMS, table->ne);
    if (!t) return NULL;
    for (int i = 0; i < PL_MAX_DIMS; i++) t->nb[i] = table->nb[i];
    t->src[0] = table;
    t->src[1] = rows;
    t->src[2] = ids;
    share_bytes(t, table, 0);
    return t;
}

pl_tensor *pl_take(pl_graph_ctx *c, pl_tensor *x, pl_tensor *ids)
{
    if (!x || !ids) return NULL;
    PL_ASSERT(is_f32(x) && rows_are_dense(x) && ids->type == PL_TYPE_I32 && rows_are_dense(ids));
    for (int i = 1; i < PL_MAX_DIMS; i++) PL_ASSERT(x->ne[i] == ids->ne[i]);
    pl_tensor *t = new_tensor(c, PL_OP_TAKE, PL_TYPE_F32, PL_MAX_DIMS, ids->ne);
    if (!t) return NULL;
    t->src[0] = x;
    t->src[1] = ids;
    return t;
}

pl_tensor *pl_top_k_of_groups(pl_graph_ctx *c, pl_tensor *x, int k, int n_groups, int k_groups, int n_best)
{
    if (!x) return NULL;
    PL_ASSERT(is_f32(x) && rows_are_dense(x) && x->ne[0] <= INT32_MAX && n_groups > 0 && x->ne[0] % n_groups == 0);
    PL_ASSERT(k_groups > 0 && k_groups <= n_groups && k > 0 && k <= x->ne[0] / n_groups * k_groups);
    PL_ASSERT(n_groups <= PL_TOP_K_GROUPS_MAX && n_best > 0 && n_best <= x->ne[0] / n_groups);
    pl_tensor *t = new_tensor(c, PL_OP_TOP_K, PL_TYPE_I32, PL_MAX_DIMS, (int64_t[]){k, x->ne[1], x->ne[2], x->ne[3]});
    if (!t) return NULL;
    t->src[0] = x;
    t->params.i[0] = n_groups;
    t->params.i[1] = k_groups;
    t->params.i[2] = n_best;
    return t;
}

pl_tensor *pl_top_k(pl_graph_ctx *c, pl_tensor *x, int k) { return pl_top_k_of_groups(c, x, k, 1, 1, 1); }

pl_tensor *pl_softmax(pl_graph_ctx *c, pl_tensor *x, pl_tensor *mask, pl_tensor *sinks, float scale)
{
    if (!x) return NULL;
    PL_ASSERT(x->ne[0] > 0 && (!sinks || is_vector(sinks, x->ne[2])));
    if (mask) {
        PL_ASSERT(is_f32(mask) && rows_are_dense(mask) && mask->ne[0] == x->ne[0]);
        for (int i = 1; i < PL_MAX_DIMS; i++) PL_ASSERT(mask->ne[i] == x->ne[i] || mask->ne[i] == 1);
    }
    pl_tensor *t = like(c, PL_OP_SOFTMAX, x, mask);
    if (!t) return NULL;
    t->src[2] = sinks;
    t->params.f[0] = scale;
    return t;
}

pl_tensor *pl_sum_rows(pl_graph_ctx *c, pl_tensor *x)
{
    if (!x) return NULL;
    PL_ASSERT(is_f32(x) && rows_are_dense(x));
    pl_tensor *t = new_tensor(c, PL_OP_SUM_ROWS, PL_TYPE_F32, PL_MAX_DIMS, (int64_t[]){1, x->ne[1], x->ne[2], x->ne[3]});
    if (t) t->src[0] = x;
    return t;
}

pl_tensor *pl_weighted_sum(pl_graph_ctx *c, pl_tensor *x, pl_tensor *w)
{
    if (!x || !w) return NULL;
    PL_ASSERT(is_f32(x) && rows_are_dense(x) && x->ne[3] == 1);
    PL_ASSERT(is_f32(w) && rows_are_dense(w) && w->ne[0] == x->ne[1] && w->ne[1] == x->ne[2] && w->ne[2] == 1 && w->ne[3] == 1);
    pl_tensor *t = new_tensor(c, PL_OP_WEIGHTED_SUM, PL_TYPE_F32, 2, (int64_t[]){x->ne[0], x->ne[2]});
    if (!t) return NULL;
    t->src[0] = x;
    t->src[1] = w;
    return t;
}

pl_tensor *pl_mean(pl_graph_ctx *c, pl_tensor *x, pl_tensor *owners, int64_t n)
{
    if (!x || !owners) return NULL;
    PL_ASSERT(is_f32(x) && rows_are_dense(x) && x->ne[2] == 1 && x->ne[3] == 1 && is_numbers(owners, x->ne[1]));
    pl_tensor *t = new_tensor(c, PL_OP_MEAN, PL_TYPE_F32, 2, (int64_t[]){x->ne[0], n});
    if (!t) return NULL;
    t->src[0] = x;
    t->src[1] = owners;
    return t;
}
