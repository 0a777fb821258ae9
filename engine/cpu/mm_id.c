/* Products in which rows of x meet different matrices: experts (PL_OP_MUL_MAT_ID) and batches (PL_OP_MUL_MAT_BATCH).
 *
 * One thread sorts the rows by their matrix; rows of one matrix keep their order. All threads make the activations in that order,
 * each matrix's rows in tiles of their own, and then take chunks of one matrix's groups of weights from the team's counter; a chunk
 * meets all tiles of its matrix, so that its weights are read from memory once. Kernels and chains of operations are those of
 * engine/cpu/mm.h: neither the other rows nor the order of work reaches a result's bits. */
#include "engine/cpu/act.h"
#include "engine/cpu/ops.h"
#include "engine/cpu/pack.h"
#include "engine/graph/scratch.h"

enum { ROWS = PL_PACK_ROWS, GROUPS = PL_SCRATCH_PAIRS, CHUNKS_PER_THREAD = 8 };

typedef struct job {
    const pl_cpu_op *o;
    const pl_tensor *w, *x, *dst, *ids; /* ids NULL: a batch */
    pl_act act;
    pl_precision precision;
    int64_t k, m, n_rows, n_matrices, n_groups, n_packed;
    size_t row_size, token_size;
    pl_mul_mat_id_scratch sizes;
    int32_t *rows, *begins, *used; /* used[0]: how many matrices have rows; which follow */
    char *acts, *group;
    float *tile; /* [PL_ACT_TILE][GROUPS * ROWS] */
} job;

static bool is_id(const pl_tensor *t) { return t->op == PL_OP_MUL_MAT_ID; }

bool pl_cpu_mul_mat_id_supported(const pl_tensor *dst)
{
    const pl_tensor *w = dst->src[0];
    const pl_type_info *type = pl_type_get(w->type);
    return type && type->act != PL_ACT_NONE && w->ne[0] % type->block == 0 &&
           (w->layout == PL_LAYOUT_PLAIN || pl_pack_supported(w->type, w->ne));
}

static pl_mul_mat_id_scratch sizes_of(const pl_tensor *dst, int n_threads)
{
    const pl_tensor *w = dst->src[0];
    return pl_scratch_mul_mat_id(w->type, w->ne[0], pl_tensor_rows(dst), w->ne[2] * w->ne[3], (pl_precision)dst->params.i[0],
                                 n_threads);
}

size_t pl_cpu_mul_mat_id_scratch(const pl_tensor *dst, int n_threads) { return sizes_of(dst, n_threads).total; }

static job job_of(const pl_cpu_op *o)
{
    const pl_tensor *dst = o->t, *w = dst->src[0];
    job j = {.o = o,
             .w = w,
             .x = dst->src[1],
             .dst = dst,
             .ids = is_id(dst) ? dst->src[2] : NULL,
             .act = pl_type_get(w->type)->act,
             .k = w->ne[0],
             .m = w->ne[1],
             .n_rows = pl_tensor_rows(dst),
             .n_matrices = w->ne[2] * w->ne[3],
             .sizes = sizes_of(dst, o->n_threads)};
    j.precision = j.sizes.n_terms == 2 ? (pl_precision)dst->params.i[0] : PL_ONE_TERM;
    PL_ASSERT(o->k->mm[w->type] != NULL && j.n_rows <= INT32_MAX && j.n_matrices < INT32_MAX);
    j.row_size = pl_type_row_size(w->type, j.k);
    j.token_size = pl_act_token_size(j.act, j.k);
    j.n_groups = (j.m + ROWS - 1) / ROWS;
    j.n_packed = w->layout == PL_LAYOUT_R16 ? j.m / ROWS : 0;
    char *at = (char *)o->scratch + PL_SCRATCH_HEAD;
    j.rows = (int32_t *)(void *)at;
    j.begins = (int32_t *)(void *)(at += j.sizes.rows);
    j.used = (int32_t *)(void *)(at += j.sizes.begins);
    j.acts = at += j.sizes.used;
    j.group = at + j.sizes.act + (size_t)o->i_thread * j.sizes.thread;
    j.tile = (float *)(void *)(j.group + j.sizes.group);
    return j;
}

/* Row r of the result counted over dimensions 1 to 3, as indices. */
static void indices(const job *j, int64_t r, int64_t i[3])
{
    const int64_t *ne = j->dst->ne;
    i[0] = r % ne[1];
    i[1] = r / ne[1] % ne[2];
    i[2] = r / (ne[1] * ne[2]);
}

/* The matrix that row r meets, or -1. */
static int64_t matrix_of(const job *j, int64_t r)
{
    int64_t i[3];
    indices(j, r, i);
    if (j->ids) {
        int32_t id = ((const int32_t *)pl_cpu_row(j->ids, i[1], 0, 0))[i[0]];
        PL_ASSERT(id < j->n_matrices);
        return id < 0 ? -1 : id;
    }
    const int64_t *b = j->w->ne, *c = j->x->ne;
    return i[1] / (c[2] / b[2]) + i[2] / (c[3] / b[3]) * b[2];
}

static float *result_of(const job *j, int64_t r)
{
    int64_t i[3];
    indices(j, r, i);
    return pl_cpu_row(j->dst, i[0], i[1], i[2]);
}

static const float *source_of(const job *j, int64_t r)
{
    int64_t i[3];
    indices(j, r, i);
    return pl_cpu_row(j->x, i[0] % j->x->ne[1], i[1], i[2]);
}

static const char *matrix_at(const job *j, int64_t matrix)
{
    const pl_tensor *w = j->w;
    return (const char *)w->data + (size_t)(matrix % w->ne[2]) * w->nb[2] + (size_t)(matrix / w->ne[2]) * w->nb[3];
}

/* Rows without a matrix become zeros here. */
static void sort_rows(const job *j)
{
    int32_t *begins = j->begins;
    memset(begins, 0, (size_t)(j->n_matrices + 1) * sizeof *begins);
    for (int64_t r = 0; r < j->n_rows; r++) {
        int64_t e = matrix_of(j, r);
        if (e >= 0)
            begins[e]++;
        else
            memset(result_of(j, r), 0, (size_t)j->m * sizeof(float));
    }
    j->used[0] = 0;
    int32_t sum = 0;
    for (int64_t e = 0; e < j->n_matrices; e++) { /* counts become ends, which the rows below turn into beginnings */
        if (begins[e] > 0) j->used[++j->used[0]] = (int32_t)e;
        sum += begins[e];
        begins[e] = sum;
    }
    begins[j->n_matrices] = sum;
    for (int64_t r = j->n_rows - 1; r >= 0; r--) {
        int64_t e = matrix_of(j, r);
        if (e >= 0) j->rows[--begins[e]] = (int32_t)r;
    }
}

/* Tokens of the tile in which the at-th of a matrix's n rows is; *first is the tile's first row. */
static int tile_of(const job *j, int64_t at, int64_t n, int64_t *first)
{
    int64_t per_tile = PL_ACT_TILE / j->sizes.n_terms;
    *first = at / per_tile * per_tile;
    return (int)((n - *first < per_tile ? n - *first : per_tile) * j->sizes.n_terms);
}

static char *act_at(const job *j, int64_t row) { return j->acts + (size_t)(row * j->sizes.n_terms) * j->token_size; }

static void make_activations(const job *j)
{
    int64_t first, end;
    pl_cpu_split(j->o, j->begins[j->n_matrices], &first, &end);
    int u = 1;
    for (int64_t s = first; s < end; s++) {
        while (j->begins[j->used[u] + 1] <= s) u++;
        int64_t begin = j->begins[j->used[u]], n = j->begins[j->used[u] + 1] - begin, from;
        int tile = tile_of(j, s - begin, n, &from), slot = (int)(s - begin - from) * j->sizes.n_terms;
        pl_act_make_row(j->o->k, j->act, j->precision, source_of(j, j->rows[s]), j->k, act_at(j, begin + from), tile, slot);
    }
}

/* n_groups packed groups at w, from group g of matrix e on, times all its rows. */
static void product(const job *j, int64_t e, int64_t g, int64_t n_groups, const char *w)
{
    const size_t stride = GROUPS * ROWS;
    int64_t left = j->m - g * ROWS, columns = left < n_groups * ROWS ? left : n_groups * ROWS;
    int64_t begin = j->begins[e], n = j->begins[e + 1] - begin;
    for (int64_t at = 0, from; at < n;) {
        int tile = tile_of(j, at, n, &from), n_terms = j->sizes.n_terms;
        j->o->k->mm[j->w->type](j->tile, stride, w, n_groups, act_at(j, begin + at), j->k, tile);
        for (int t = 0; t < tile; t += n_terms, at++) {
            float *y = result_of(j, j->rows[begin + at]) + g * ROWS;
            const float *from_tile = j->tile + (size_t)t * stride;
            if (n_terms == 2)
                j->o->k->add(y, from_tile, from_tile + stride, columns);
            else
                memcpy(y, from_tile, (size_t)columns * sizeof *y);
        }
    }
}

static void chunk(const job *j, int64_t e, int64_t first, int64_t end)
{
    const char *w = matrix_at(j, e);
    int64_t packed_end = end < j->n_packed ? end : j->n_packed;
    for (int64_t g = first; g < packed_end; g += GROUPS)
        product(j, e, g, packed_end - g < GROUPS ? packed_end - g : GROUPS, w + (size_t)(g * ROWS) * j->row_size);
    for (int64_t g = first < packed_end ? packed_end : first; g < end; g++) {
        int64_t n_rows = j->m - g * ROWS < ROWS ? j->m - g * ROWS : ROWS;
        pl_pack_group(j->w->type, j->k, w + (size_t)(g * ROWS) * j->w->nb[1], j->w->nb[1], (int)n_rows, j->group);
        product(j, e, g, 1, j->group);
    }
}

void pl_cpu_op_mul_mat_id(const pl_cpu_op *o)
{
    job j = job_of(o);
    if (o->i_thread == 0) sort_rows(&j);
    if (o->n_threads > 1) pl_team_barrier(o->team);
    make_activations(&j);
    if (o->n_threads > 1) pl_team_barrier(o->team);
    int64_t n_used = j.used[0], size = n_used * j.n_groups / (o->n_threads * CHUNKS_PER_THREAD);
    size = size < 1 ? 1 : size > GROUPS ? GROUPS : size;
    int64_t per_matrix = (j.n_groups + size - 1) / size;
    for (int64_t i = o->n_threads > 1 ? pl_team_next(o->team) : 0; i < n_used * per_matrix;
         i = o->n_threads > 1 ? pl_team_next(o->team) : i + 1) {
        int64_t first = i % per_matrix * size, end = first + size < j.n_groups ? first + size : j.n_groups;
        chunk(&j, j.used[1 + i / per_matrix], first, end);
    }
}
