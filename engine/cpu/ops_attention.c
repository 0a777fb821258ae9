/* Attention over the paged cache.
 *
 * Work is cut into units: a chunk of ROWS consecutive rows times one query head. Units of one chunk whose query heads share
 * a kv head are run together, so a tile of K and V is read once for all of them; so do consecutive rows whose page is the same block,
 * as in a prompt or behind a shared prefix. Every query row has a state of its own and meets its tiles in ascending order, so how
 * units are grouped changes no bit.
 *
 * With many units the threads take (chunk, kv head) items from the team's counter, the dearest (last rows of a prompt)
 * first; with few, as in decoding one sequence, every thread takes an equal range of query heads. */
#include <math.h>
#include <string.h>

#include "engine/base/fmath.h"
#include "engine/cpu/ops.h"
#include "engine/graph/scratch.h"

enum {
    ROWS = PL_SCRATCH_QUERY_ROWS,
    WIDEN_FROM = 8 /* from so many query rows on, an f16 tile is converted once instead of in the inner loops */
};

typedef struct shape {
    pl_kv_layout kv;
    pl_attention_options options;
    int64_t n_head, group, n_tok;
    size_t k_bytes, head_bytes; /* of one kv head in a block: K, and K and V */
} shape;

static shape shape_of(const pl_tensor *t)
{
    const pl_tensor *q = t->src[0];
    shape s = {.kv = pl_kv_layout_of(t->src[1]), .options = pl_attention_options_of(t), .n_head = q->ne[1], .n_tok = q->ne[2]};
    s.group = s.n_head / s.kv.n_head;
    s.k_bytes = pl_kv_k_bytes(&s.kv);
    s.head_bytes = s.k_bytes + pl_kv_v_bytes(&s.kv);
    return s;
}

/* One thread's part of the scratch. */
typedef struct room {
    float *q, *acc; /* [n][d_k], [n][d_v] */
    float *k, *v;   /* a tile as f32 */
    float *m, *l, *slope;      /* [n] */
    int32_t *first, *end, *at; /* [n] */
} room;

static pl_attention_scratch scratch_of(const shape *s)
{
    return pl_scratch_attention(s->kv.d_k, s->kv.d_v, s->n_head, s->kv.n_head);
}

size_t pl_cpu_attention_scratch(const pl_tensor *t, int n_threads)
{
    shape s = shape_of(t);
    return PL_SCRATCH_HEAD + (size_t)n_threads * scratch_of(&s).thread;
}

static room room_of(const pl_cpu_op *o, const shape *s)
{
    pl_attention_scratch a = scratch_of(s);
    uint8_t *p = (uint8_t *)o->scratch + PL_SCRATCH_HEAD + a.thread * (size_t)o->i_thread;
    room r;
    r.q = (float *)p;
    r.acc = (float *)(p += a.q);
    r.k = (float *)(p += a.acc);
    r.v = (float *)(p += a.k);
    r.m = (float *)(p += a.v);
    r.l = (float *)(p += a.numbers);
    r.slope = (float *)(p += a.numbers);
    r.first = (int32_t *)(p += a.numbers);
    r.end = (int32_t *)(p += a.numbers);
    r.at = (int32_t *)(p + a.numbers);
    return r;
}

/* What the tile kernels take, from a half of a tile of that type. */
static const float *widened(const pl_cpu_op *o, float *to, pl_type type, const void *from, int32_t d, bool is_k)
{
    if (type == PL_TYPE_F32) return from;
    int64_t n = PL_KV_PAGE * (int64_t)d;
    if (type == PL_TYPE_F16)
        o->k->f16_to_f32(to, from, n);
    else if (is_k && type != PL_TYPE_BF16)
        o->k->kv_k_to_f32[type](to, from, d);
    else
        pl_type_get(type)->to_float(from, to, n);
    return to;
}

/* The n query rows from first on meet the tile of kv head h in block. */
static void meet(const pl_cpu_op *o, const shape *s, const room *r, int64_t block, int64_t h, int64_t first, int64_t n)
{
    const pl_tensor *kv = o->t->src[1];
    PL_ASSERT(block >= 0 && block < kv->ne[1]);
    const uint8_t *k = (const uint8_t *)pl_cpu_row(kv, block, 0, 0) + (size_t)h * s->head_bytes, *v = k + s->k_bytes;
    pl_attn_tile t = {.k = k,
                      .v = v,
                      .q = r->q + first * s->kv.d_k,
                      .acc = r->acc + first * s->kv.d_v,
                      .m = r->m + first,
                      .l = r->l + first,
                      .first = r->first + first,
                      .end = r->end + first,
                      .at = r->at + first,
                      .slope = s->options.max_bias != 0 ? r->slope + first : NULL,
                      .n = (int)n,
                      .d_k = s->kv.d_k,
                      .d_v = s->kv.d_v,
                      .scale = s->options.scale,
                      .softcap = s->options.softcap};
    if (s->kv.k_type == PL_TYPE_F16 && s->kv.v_type == PL_TYPE_F16 && n < WIDEN_FROM) {
        o->k->attn_tile_f16(&t);
        return;
    }
    t.k = widened(o, r->k, s->kv.k_type, k, s->kv.d_k, true);
    t.v = widened(o, r->v, s->kv.v_type, v, s->kv.d_v, false);
    o->k->attn_tile_f32(&t);
}

/* The first position that a row at pos sees. */
static int32_t first_seen(const shape *s, int32_t pos)
{
    int32_t first = 0;
    if (s->options.window > 0 && pos >= s->options.window) first = pos - s->options.window + 1;
    if (s->options.chunk > 0 && pos > 0 && pos / s->options.chunk * s->options.chunk > first) first = pos / s->options.chunk * s->options.chunk;
    return first;
}

static float slope_of(const shape *s, int64_t head)
{
    int64_t n = 1;
    while (2 * n <= s->n_head) n *= 2;
    double step = (double)s->options.max_bias / (double)n;
    return (float)pl_pow(2.0, head < n ? -step * (double)(head + 1) : -step / 2 * (double)(2 * (head - n) + 1));
}

/* The states before the first tile, and what a row's tiles have in common. */
static void begin_rows(const pl_cpu_op *o, const shape *s, const room *r, int64_t row_first, int64_t n_rows, int64_t head_first, int64_t per_row)
{
    const float *sinks = o->t->src[4] ? o->t->src[4]->data : NULL;
    for (int64_t i = 0; i < n_rows; i++)
        for (int64_t g = 0; g < per_row; g++) {
            int64_t j = i * per_row + g;
            memcpy(r->q + j * s->kv.d_k, pl_cpu_row(o->t->src[0], head_first + g, row_first + i, 0), (size_t)s->kv.d_k * sizeof(float));
            r->m[j] = sinks ? sinks[head_first + g] : -INFINITY;
            r->l[j] = sinks ? 1.0f : 0.0f;
            if (s->options.max_bias != 0) r->slope[j] = i ? r->slope[j - per_row] : slope_of(s, head_first + g);
        }
    memset(r->acc, 0, (size_t)(n_rows * per_row) * (size_t)s->kv.d_v * sizeof(float));
}

/* Rows row_first to row_end - 1 and query heads head_first to head_end - 1, which share kv head h. */
static void run(const pl_cpu_op *o, const shape *s, const room *r, int64_t h, int64_t row_first, int64_t row_end,
                int64_t head_first, int64_t head_end)
{
    const pl_tensor *t = o->t, *tables = t->src[3];
    const int32_t *pos = (const int32_t *)t->src[2]->data + row_first;
    int64_t n_rows = row_end - row_first, per_row = head_end - head_first;
    begin_rows(o, s, r, row_first, n_rows, head_first, per_row);
    int32_t last = -1, first = INT32_MAX;
    for (int64_t i = 0; i < n_rows; i++) {
        if (pos[i] < 0) continue;
        if (pos[i] > last) last = pos[i];
        if (first_seen(s, pos[i]) < first) first = first_seen(s, pos[i]);
    }
    PL_ASSERT(last / PL_KV_PAGE < tables->ne[0]);

    for (int32_t page = first / PL_KV_PAGE; page <= last / PL_KV_PAGE && last >= 0; page++) {
        int32_t from = page * PL_KV_PAGE;
        for (int64_t i = 0, end; i < n_rows; i = end) {
            end = i;
            int32_t block = -1;
            for (; end < n_rows; end++) { /* rows that see something of the same block */
                int32_t sees = first_seen(s, pos[end]);
                if (pos[end] < from || sees >= from + PL_KV_PAGE) break;
                int32_t of_row = ((const int32_t *)pl_cpu_row(tables, row_first + end, 0, 0))[page];
                if (end > i && of_row != block) break;
                block = of_row;
                int32_t seen = pos[end] - from + 1;
                for (int64_t j = end * per_row; j < (end + 1) * per_row; j++) {
                    r->first[j] = sees > from ? sees - from : 0;
                    r->end[j] = seen < PL_KV_PAGE ? seen : PL_KV_PAGE;
                    r->at[j] = pos[end] - from;
                }
            }
            if (end > i)
                meet(o, s, r, block, h, i * per_row, (end - i) * per_row);
            else
                end = i + 1;
        }
    }
    for (int64_t i = 0; i < n_rows; i++)
        for (int64_t g = 0; g < per_row; g++) {
            int64_t j = i * per_row + g;
            float *y = (float *)pl_cpu_row(t, row_first + i, 0, 0) + (head_first + g) * s->kv.d_v;
            o->k->scale(y, r->acc + j * s->kv.d_v, r->l[j] == 0 ? 0.0f : 1.0f / r->l[j], s->kv.d_v);
        }
}

static int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }

void pl_cpu_op_attention(const pl_cpu_op *o)
{
    shape s = shape_of(o->t);
    room r = room_of(o, &s);
    int64_t n_chunks = (s.n_tok + ROWS - 1) / ROWS, n_items = n_chunks * s.kv.n_head;
    if (o->n_threads > 1 && n_items >= 4 * o->n_threads) {
        for (int64_t i; (i = pl_team_next(o->team)) < n_items;) {
            int64_t chunk = n_chunks - 1 - i / s.kv.n_head, h = i % s.kv.n_head;
            run(o, &s, &r, h, chunk * ROWS, min_of((chunk + 1) * ROWS, s.n_tok), h * s.group, (h + 1) * s.group);
        }
        return;
    }
    int64_t unit, end;
    pl_cpu_split(o, n_chunks * s.n_head, &unit, &end);
    while (unit < end) {
        int64_t chunk = unit / s.n_head, head = unit % s.n_head, h = head / s.group;
        int64_t n = min_of(end - unit, (h + 1) * s.group - head);
        run(o, &s, &r, h, chunk * ROWS, min_of((chunk + 1) * ROWS, s.n_tok), head, head + n);
        unit += n;
    }
}
