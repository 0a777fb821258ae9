/* Causal attention over the paged cache.
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

#include "engine/cpu/ops.h"
#include "engine/graph/scratch.h"

enum {
    ROWS = PL_SCRATCH_QUERY_ROWS,
    WIDEN_FROM = 8 /* from so many query rows on, an f16 tile is converted once instead of in the inner loops */
};

typedef struct shape {
    int64_t d_head, n_head, n_head_kv, group, n_tok;
} shape;

static shape shape_of(const pl_tensor *t)
{
    const pl_tensor *q = t->src[0], *kv = t->src[1];
    shape s = {.d_head = q->ne[0], .n_head = q->ne[1], .n_tok = q->ne[2]};
    s.n_head_kv = kv->ne[0] / (2 * PL_KV_PAGE * s.d_head);
    s.group = s.n_head / s.n_head_kv;
    return s;
}

/* One thread's part of the scratch. */
typedef struct room {
    float *q, *acc;  /* [n][d_head] */
    float *k, *v;    /* an f16 tile as f32 */
    float *m, *l;    /* [n] */
    int32_t *n_pos;  /* [n] */
} room;

size_t pl_cpu_attention_scratch(const pl_tensor *t, int n_threads)
{
    shape s = shape_of(t);
    return PL_SCRATCH_HEAD + (size_t)n_threads * pl_scratch_attention(s.d_head, s.n_head, s.n_head_kv).thread;
}

static room room_of(const pl_cpu_op *o, const shape *s)
{
    pl_attention_scratch a = pl_scratch_attention(s->d_head, s->n_head, s->n_head_kv);
    uint8_t *p = (uint8_t *)o->scratch + PL_SCRATCH_HEAD + a.thread * (size_t)o->i_thread;
    room r;
    r.q = (float *)p;
    r.acc = (float *)(p += a.rows);
    r.k = (float *)(p += a.rows);
    r.v = (float *)(p += a.tile);
    r.m = (float *)(p += a.tile);
    r.l = (float *)(p += a.numbers);
    r.n_pos = (int32_t *)(p + a.numbers);
    return r;
}

/* The n query rows from first on meet the tile of kv head h in block. */
static void meet(const pl_cpu_op *o, const shape *s, const room *r, int64_t block, int64_t h, int64_t first, int64_t n)
{
    const pl_tensor *kv = o->t->src[1];
    PL_ASSERT(block >= 0 && block < kv->ne[1]);
    const uint8_t *base = pl_cpu_row(kv, block, 0, 0);
    size_t size = (size_t)(PL_KV_PAGE * s->d_head), at = (size_t)h * 2 * size;
    float *q = r->q + first * s->d_head, *acc = r->acc + first * s->d_head, *m = r->m + first, *l = r->l + first;
    const int32_t *n_pos = r->n_pos + first;
    float scale = o->t->params.f[0];
    if (kv->type == PL_TYPE_F32) {
        const float *k = (const float *)base + at;
        o->k->attn_tile_f32(k, k + size, q, acc, m, l, n_pos, (int)n, (int)s->d_head, scale);
        return;
    }
    const uint16_t *k = (const uint16_t *)base + at;
    if (n < WIDEN_FROM) {
        o->k->attn_tile_f16(k, k + size, q, acc, m, l, n_pos, (int)n, (int)s->d_head, scale);
        return;
    }
    o->k->f16_to_f32(r->k, k, (int64_t)size);
    o->k->f16_to_f32(r->v, k + size, (int64_t)size);
    o->k->attn_tile_f32(r->k, r->v, q, acc, m, l, n_pos, (int)n, (int)s->d_head, scale);
}

/* Rows row_first to row_end - 1 and query heads head_first to head_end - 1, which share kv head h. */
static void run(const pl_cpu_op *o, const shape *s, const room *r, int64_t h, int64_t row_first, int64_t row_end,
                int64_t head_first, int64_t head_end)
{
    const pl_tensor *t = o->t, *tables = t->src[3];
    const int32_t *pos = t->src[2]->data;
    int64_t n_rows = row_end - row_first, per_row = head_end - head_first;
    size_t d_bytes = (size_t)s->d_head * sizeof(float);
    int32_t last = -1;
    for (int64_t i = 0; i < n_rows; i++) {
        if (pos[row_first + i] > last) last = pos[row_first + i];
        for (int64_t g = 0; g < per_row; g++)
            memcpy(r->q + (i * per_row + g) * s->d_head, pl_cpu_row(t->src[0], head_first + g, row_first + i, 0), d_bytes);
    }
    PL_ASSERT(last / PL_KV_PAGE < tables->ne[0]);
    for (int64_t i = 0; i < n_rows * per_row; i++) {
        r->m[i] = -INFINITY;
        r->l[i] = 0;
    }
    memset(r->acc, 0, (size_t)(n_rows * per_row) * d_bytes);

    for (int32_t page = 0; page * PL_KV_PAGE <= last; page++) {
        for (int64_t i = 0, end; i < n_rows; i = end) {
            end = i + 1;
            int32_t from = page * PL_KV_PAGE;
            if (pos[row_first + i] < from) continue;
            int32_t block = ((const int32_t *)pl_cpu_row(tables, row_first + i, 0, 0))[page];
            while (end < n_rows && pos[row_first + end] >= from &&
                   ((const int32_t *)pl_cpu_row(tables, row_first + end, 0, 0))[page] == block)
                end++;
            for (int64_t j = i; j < end; j++) {
                int32_t n = pos[row_first + j] - from + 1;
                for (int64_t g = 0; g < per_row; g++) r->n_pos[j * per_row + g] = n < PL_KV_PAGE ? n : PL_KV_PAGE;
            }
            meet(o, s, r, block, h, i * per_row, (end - i) * per_row);
        }
    }
    for (int64_t i = 0; i < n_rows; i++)
        for (int64_t g = 0; g < per_row; g++) {
            int64_t j = i * per_row + g;
            float *y = (float *)pl_cpu_row(t, row_first + i, 0, 0) + (head_first + g) * s->d_head;
            o->k->scale(y, r->acc + j * s->d_head, r->l[j] == 0 ? 0.0f : 1.0f / r->l[j], s->d_head);
        }
}

static int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }

void pl_cpu_op_attention(const pl_cpu_op *o)
{
    shape s = shape_of(o->t);
    room r = room_of(o, &s);
    int64_t n_chunks = (s.n_tok + ROWS - 1) / ROWS, n_items = n_chunks * s.n_head_kv;
    if (o->n_threads > 1 && n_items >= 4 * o->n_threads) {
        for (int64_t i; (i = pl_team_next(o->team)) < n_items;) {
            int64_t chunk = n_chunks - 1 - i / s.n_head_kv, h = i % s.n_head_kv;
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
