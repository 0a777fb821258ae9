/* Operators that work row by row: elementwise ones, normalization, rotation, lookup and copy. */
#include <string.h>

#include "engine/cpu/ops.h"
#include "engine/cpu/pack.h"

/* Row r of t counted over dimensions 1 to 3, as indices. */
static void row_at(const pl_tensor *t, int64_t r, int64_t i[3])
{
    i[0] = r % t->ne[1];
    i[1] = r / t->ne[1] % t->ne[2];
    i[2] = r / (t->ne[1] * t->ne[2]);
}

static float *row_of(const pl_tensor *t, const int64_t i[3]) { return pl_cpu_row(t, i[0], i[1], i[2]); }

/* The thread's share, if no part is asked for: where there are fewer rows than threads, each row is cut as well, at
 * multiples of a cache line. Only for operators whose elements do not depend on each other. */
static pl_cpu_part part_of(const pl_cpu_op *o)
{
    if (o->part) return *o->part;
    int64_t n = o->t->ne[0], rows = pl_tensor_rows(o->t);
    pl_cpu_part p = {.col_end = n};
    if (rows >= o->n_threads) {
        pl_cpu_split(o, rows, &p.row_first, &p.row_end);
        return p;
    }
    p.row_end = rows;
    pl_cpu_split(o, (n + 15) / 16, &p.col_first, &p.col_end);
    p.col_first *= 16;
    p.col_end *= 16;
    if (p.col_first > n) p.col_first = n;
    if (p.col_end > n) p.col_end = n;
    return p;
}

void pl_cpu_op_get_rows(const pl_cpu_op *o)
{
    const pl_tensor *t = o->t, *table = t->src[0];
    const pl_type_info *info = pl_type_get(table->type);
    const int32_t *ids = t->src[1]->data;
    int64_t first, end;
    pl_cpu_split(o, t->ne[1], &first, &end);
    for (int64_t i = first; i < end; i++) {
        float *y = pl_cpu_row(t, i, 0, 0);
        PL_ASSERT(ids[i] >= 0 && ids[i] < table->ne[1]);
        if (table->layout == PL_LAYOUT_R16)
            pl_unpack_row_f32(table->type, table->ne, table->data, ids[i], y);
        else
            info->to_float(pl_cpu_row(table, ids[i], 0, 0), y, table->ne[0]);
    }
}

void pl_cpu_op_rms_norm(const pl_cpu_op *o)
{
    const pl_tensor *t = o->t, *x = t->src[0];
    const float *w = t->src[1] ? t->src[1]->data : NULL;
    int64_t first, end, i[3];
    pl_cpu_split(o, pl_tensor_rows(t), &first, &end);
    for (int64_t r = first; r < end; r++) {
        row_at(t, r, i);
        o->k->rms_norm(row_of(t, i), row_of(x, i), w, t->ne[0], t->params.f[0]);
    }
}

void pl_cpu_op_layer_norm(const pl_cpu_op *o)
{
    const pl_tensor *t = o->t, *x = t->src[0];
    const float *w = t->src[1] ? t->src[1]->data : NULL, *b = t->src[2] ? t->src[2]->data : NULL;
    int64_t n_groups = t->params.i[1], width = t->ne[0] / n_groups, first, end, i[3];
    pl_cpu_split(o, pl_tensor_rows(t), &first, &end);
    for (int64_t r = first; r < end; r++) {
        row_at(t, r, i);
        float *y = row_of(t, i);
        const float *from = row_of(x, i);
        for (int64_t at = 0; at < t->ne[0]; at += width)
            o->k->layer_norm(y + at, from + at, w ? w + at : NULL, b ? b + at : NULL, width, t->params.f[0]);
    }
}

void pl_cpu_op_l2_norm(const pl_cpu_op *o)
{
    const pl_tensor *t = o->t;
    int64_t first, end, i[3];
    pl_cpu_split(o, pl_tensor_rows(t), &first, &end);
    for (int64_t r = first; r < end; r++) {
        row_at(t, r, i);
        o->k->l2_norm(row_of(t, i), row_of(t->src[0], i), t->ne[0], t->params.f[0]);
    }
}

void pl_cpu_op_binary(const pl_cpu_op *o)
{
    const pl_cpu_kernels *k = o->k;
    const pl_tensor *t = o->t, *a = t->src[0], *b = t->src[1];
    void (*kernel)(float *, const float *, const float *, int64_t) = t->op == PL_OP_ADD   ? k->add
                                                                     : t->op == PL_OP_SUB ? k->sub
                                                                     : t->op == PL_OP_MUL ? k->mul
                                                                                          : k->div;
    pl_cpu_part p = part_of(o);
    int64_t i[3];
    for (int64_t r = p.row_first; r < p.row_end; r++) {
        row_at(t, r, i);
        int64_t ib[3];
        for (int d = 0; d < 3; d++) ib[d] = b->ne[d + 1] == 1 ? 0 : i[d];
        float *y = row_of(t, i);
        const float *xa = row_of(a, i), *xb = row_of(b, ib);
        if (b->ne[0] == t->ne[0]) {
            kernel(y + p.col_first, xa + p.col_first, xb + p.col_first, p.col_end - p.col_first);
            continue;
        }
        enum { WIDTH = 64 };
        float same[WIDTH];
        for (int c = 0; c < WIDTH; c++) same[c] = xb[0];
        for (int64_t c = p.col_first; c < p.col_end; c += WIDTH)
            kernel(y + c, xa + c, same, p.col_end - c < WIDTH ? p.col_end - c : WIDTH);
    }
}

/* Operators of one source, element by element, and of two that have one shape. */
void pl_cpu_op_elements(const pl_cpu_op *o)
{
    const pl_cpu_kernels *k = o->k;
    const pl_tensor *t = o->t;
    const float *f = t->params.f;
    pl_cpu_part p = part_of(o);
    int64_t i[3], n = p.col_end - p.col_first;
    for (int64_t r = p.row_first; r < p.row_end; r++) {
        row_at(t, r, i);
        float *y = row_of(t, i) + p.col_first;
        const float *x = row_of(t->src[0], i) + p.col_first;
        switch (t->op) {
        case PL_OP_SCALE:
            if (f[1] == 0.0f)
                k->scale(y, x, f[0], n);
            else
                k->scale_add(y, x, f[0], f[1], n);
            break;
        case PL_OP_CLAMP: k->clamp(y, x, f[0], f[1], n); break;
        case PL_OP_SOFTCAP: k->softcap(y, x, f[0], n); break;
        case PL_OP_UNARY: k->unary[t->params.i[0]](y, x, n); break;
        case PL_OP_GLU: k->glu[t->params.i[0]](y, x, row_of(t->src[1], i) + p.col_first, n); break;
        default: PL_ASSERT(false);
        }
    }
}

void pl_cpu_op_rope(const pl_cpu_op *o)
{
    const pl_tensor *t = o->t, *x = t->src[0], *table = t->src[1];
    int64_t n_rot = t->params.i[0], first, end;
    bool neox = t->params.i[1];
    pl_cpu_split(o, t->ne[2], &first, &end);
    for (int64_t i = first; i < end; i++)
        (neox ? o->k->rope_neox : o->k->rope_norm)(pl_cpu_row(t, 0, i, 0), t->nb[1] / sizeof(float), pl_cpu_row(x, 0, i, 0),
                                                   x->nb[1] / sizeof(float), pl_cpu_row(table, i, 0, 0), n_rot, t->ne[0], t->ne[1]);
}

static float load(pl_type type, const void *p)
{
    float f;
    uint16_t h;
    if (type == PL_TYPE_F32) {
        memcpy(&f, p, 4);
        return f;
    }
    memcpy(&h, p, 2);
    return type == PL_TYPE_F16 ? pl_f16_to_f32(h) : pl_bf16_to_f32(h);
}

static void store(pl_type type, void *p, float f)
{
    if (type == PL_TYPE_F32) {
        memcpy(p, &f, 4);
        return;
    }
    uint16_t h = type == PL_TYPE_F16 ? pl_f32_to_f16(f) : pl_f32_to_bf16(f);
    memcpy(p, &h, 2);
}

static bool is_other(pl_type type) { return type != PL_TYPE_F32 && type != PL_TYPE_F16 && type != PL_TYPE_BF16; }

/* n values between any two types, part by part: 256 is a multiple of every block. */
static void convert(pl_type to, uint8_t *y, pl_type from, const uint8_t *x, int64_t n)
{
    enum { PART = 256 };
    float f[PART];
    for (int64_t i = 0; i < n; i += PART) {
        int64_t m = n - i < PART ? n - i : PART;
        pl_type_get(from)->to_float(x + pl_type_row_size(from, i), f, m);
        pl_type_get(to)->from_float(f, y + pl_type_row_size(to, i), m);
    }
}

void pl_cpu_op_copy(const pl_cpu_op *o)
{
    const pl_tensor *t = o->t, *a = t->src[0];
    size_t size = pl_type_get(a->type)->bytes;
    int64_t n = t->ne[0], first, end, i[3];
    bool dense = a->nb[0] == size;
    pl_cpu_split(o, pl_tensor_rows(t), &first, &end);
    for (int64_t r = first; r < end; r++) {
        row_at(t, r, i);
        uint8_t *y = (uint8_t *)row_of(t, i);
        const uint8_t *x = (const uint8_t *)row_of(a, i);
        if (a->type == t->type && dense) {
            memcpy(y, x, pl_type_row_size(a->type, n));
        } else if (a->type == t->type) { /* the same bits, a NaN's too */
            for (int64_t c = 0; c < n; c++) memcpy(y + (size_t)c * size, x + (size_t)c * a->nb[0], size);
        } else if (is_other(a->type) || is_other(t->type)) {
            convert(t->type, y, a->type, x, n);
        } else if (dense && a->type == PL_TYPE_F32 && t->type == PL_TYPE_F16) {
            o->k->f32_to_f16((uint16_t *)y, (const float *)x, n);
        } else if (dense && a->type == PL_TYPE_F16 && t->type == PL_TYPE_F32) {
            o->k->f16_to_f32((float *)y, (const uint16_t *)x, n);
        } else {
            for (int64_t c = 0; c < n; c++) store(t->type, y + (size_t)c * t->nb[0], load(a->type, x + (size_t)c * a->nb[0]));
        }
    }
}

/* One head's K of one position into column at of its tile, whose lanes are positions. */
static void store_k(const pl_cpu_op *o, uint8_t *tile, pl_type type, const float *x, int32_t d_k, int64_t at)
{
    enum { GROUP = 32 };
    if (type == PL_TYPE_F32) {
        for (int32_t d = 0; d < d_k; d++) memcpy(tile + 4 * ((size_t)d * PL_KV_PAGE + (size_t)at), x + d, 4);
        return;
    }
    for (int32_t d0 = 0; d0 < d_k; d0 += GROUP) {
        int32_t n = d_k - d0 < GROUP ? d_k - d0 : GROUP;
        if (type == PL_TYPE_F16 || type == PL_TYPE_BF16) {
            uint16_t half[GROUP];
            if (type == PL_TYPE_F16)
                o->k->f32_to_f16(half, x + d0, n);
            else
                pl_type_get(type)->from_float_quick(x + d0, half, n);
            for (int32_t d = 0; d < n; d++) memcpy(tile + 2 * ((size_t)(d0 + d) * PL_KV_PAGE + (size_t)at), half + d, 2);
            continue;
        }
        uint8_t block[2 + GROUP]; /* the scale, then codes of one byte each */
        int codes = (int)pl_type_row_size(type, GROUP) - 2;
        pl_type_get(type)->from_float_quick(x + d0, block, GROUP);
        memcpy(tile + 2 * at, block, 2);
        tile += 2 * PL_KV_PAGE;
        for (int i = 0; i < codes; i++, tile += PL_KV_PAGE) tile[at] = block[2 + i];
    }
}

void pl_cpu_op_kv_store(const pl_cpu_op *o)
{
    const pl_tensor *t = o->t, *k = t->src[1], *v = t->src[2];
    const int32_t *slots = t->src[3]->data;
    const pl_kv_layout l = pl_kv_layout_of(t);
    const size_t k_bytes = pl_kv_k_bytes(&l), head_bytes = k_bytes + pl_kv_v_bytes(&l), v_row = pl_type_row_size(l.v_type, l.d_v);
    int64_t n_blocks = t->ne[1], first, end;
    pl_cpu_split(o, k->ne[2] * l.n_head, &first, &end);
    for (int64_t u = first; u < end; u++) {
        int64_t i = u / l.n_head, h = u % l.n_head;
        if (slots[i] < 0) continue;
        int64_t block = slots[i] / PL_KV_PAGE, at = slots[i] % PL_KV_PAGE;
        PL_ASSERT(block < n_blocks);
        uint8_t *tile = (uint8_t *)pl_cpu_row(t, block, 0, 0) + (size_t)h * head_bytes;
        store_k(o, tile, l.k_type, pl_cpu_row(k, h, i, 0), l.d_k, at);
        uint8_t *row = tile + k_bytes + (size_t)at * v_row;
        const float *x = pl_cpu_row(v, h, i, 0);
        if (l.v_type == PL_TYPE_F32)
            memcpy(row, x, v_row);
        else if (l.v_type == PL_TYPE_F16)
            o->k->f32_to_f16((uint16_t *)(void *)row, x, l.d_v);
        else
            pl_type_get(l.v_type)->from_float_quick(x, row, l.d_v);
    }
}
