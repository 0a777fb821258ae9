/* Operators that choose, join and gather: what a mixture of experts needs around its products, and pooling. */
#include <math.h>
#include <string.h>

#include "engine/cpu/ops.h"

/* Row r of t counted over dimensions 1 to 3. */
static void *row_at(const pl_tensor *t, int64_t r)
{
    return pl_cpu_row(t, r % t->ne[1], r / t->ne[1] % t->ne[2], r / (t->ne[1] * t->ne[2]));
}

/* Row r of t in a, which has t's outer dimensions or one row where t has several. */
static void *row_like(const pl_tensor *a, const pl_tensor *t, int64_t r)
{
    int64_t i1 = r % t->ne[1], i2 = r / t->ne[1] % t->ne[2], i3 = r / (t->ne[1] * t->ne[2]);
    return pl_cpu_row(a, i1 % a->ne[1], i2 % a->ne[2], i3 % a->ne[3]);
}

/* kernels.h's sum16. */
static float sum16(const float *x, int64_t n)
{
    float s[16] = {0};
    for (int64_t i = 0; i < n; i++) s[i % 16] += x[i];
    for (int step = 8; step > 0; step /= 2)
        for (int i = 0; i < step; i++) s[i] += s[i + step];
    return s[0];
}

void pl_cpu_op_concat(const pl_cpu_op *o)
{
    const pl_tensor *t = o->t, *a = t->src[0], *b = t->src[1];
    int dim = t->params.i[0];
    size_t a_size = pl_type_row_size(a->type, a->ne[0]), b_size = pl_type_row_size(b->type, b->ne[0]);
    int64_t first, end;
    pl_cpu_split(o, pl_tensor_rows(t), &first, &end);
    for (int64_t r = first; r < end; r++) {
        int64_t i[4] = {0, r % t->ne[1], r / t->ne[1] % t->ne[2], r / (t->ne[1] * t->ne[2])};
        uint8_t *y = row_at(t, r);
        bool from_a = dim == 0 || i[dim] < a->ne[dim];
        if (!from_a) i[dim] -= a->ne[dim];
        if (from_a && a_size > 0) memcpy(y, pl_cpu_row(a, i[1], i[2], i[3]), a_size);
        if ((!from_a || dim == 0) && b_size > 0) memcpy(y + (dim == 0 ? a_size : 0), pl_cpu_row(b, i[1], i[2], i[3]), b_size);
    }
}

void pl_cpu_op_repeat(const pl_cpu_op *o)
{
    const pl_tensor *t = o->t, *a = t->src[0];
    size_t size = pl_type_row_size(a->type, a->ne[0]);
    int64_t first, end;
    pl_cpu_split(o, pl_tensor_rows(t), &first, &end);
    for (int64_t r = first; r < end; r++) {
        uint8_t *y = row_at(t, r);
        for (int64_t i = 0; i < t->ne[0] / a->ne[0]; i++) memcpy(y + (size_t)i * size, row_like(a, t, r), size);
    }
}

void pl_cpu_op_set_rows(const pl_cpu_op *o)
{
    const pl_tensor *t = o->t, *rows = t->src[1];
    const int32_t *ids = t->src[2]->data;
    const pl_type_info *info = pl_type_get(t->type);
    int64_t first, end;
    pl_cpu_split(o, rows->ne[1], &first, &end);
    for (int64_t r = first; r < end; r++) {
        if (ids[r] < 0) continue;
        PL_ASSERT(ids[r] < t->ne[1]);
        info->from_float(pl_cpu_row(rows, r, 0, 0), pl_cpu_row(t, ids[r], 0, 0), t->ne[0]);
    }
}

void pl_cpu_op_take(const pl_cpu_op *o)
{
    const pl_tensor *t = o->t, *x = t->src[0], *ids = t->src[1];
    int64_t first, end;
    pl_cpu_split(o, pl_tensor_rows(t), &first, &end);
    for (int64_t r = first; r < end; r++) {
        float *y = row_at(t, r);
        const float *from = row_at(x, r);
        const int32_t *id = row_at(ids, r);
        for (int64_t i = 0; i < t->ne[0]; i++) {
            PL_ASSERT(id[i] >= 0 && id[i] < x->ne[0]);
            y[i] = from[id[i]];
        }
    }
}

/* Whether place a comes before place b: the larger first, of equal ones the first, NaN last. */
static bool before(const float *x, int32_t a, int32_t b)
{
    bool a_nan = x[a] != x[a], b_nan = x[b] != x[b];
    if (a_nan || b_nan) return a_nan != b_nan ? b_nan : a < b;
    return x[a] != x[b] ? x[a] > x[b] : a < b;
}

/* heap[0] comes last of all n; the place i may be wrong. */
static void sift(int32_t *heap, int n, int i, const float *x)
{
    for (int child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(x, heap[child], heap[child + 1])) child++;
        if (!before(x, heap[i], heap[child])) return;
        int32_t t = heap[i];
        heap[i] = heap[child];
        heap[child] = t;
    }
}

/* The first k of the n places that are in groups of width elements with wanted set; wanted NULL: of all. */
static void top_k(int32_t *y, int k, const float *x, int64_t n, const bool *wanted, int64_t width)
{
    int have = 0;
    for (int32_t i = 0; i < n; i++) {
        if (wanted && !wanted[i / width]) continue;
        if (have < k) {
            y[have++] = i;
            if (have == k)
                for (int j = k / 2 - 1; j >= 0; j--) sift(y, k, j, x);
        } else if (before(x, i, y[0])) {
            y[0] = i;
            sift(y, k, 0, x);
        }
    }
    for (int m = k - 1; m > 0; m--) { /* the last goes to the end */
        int32_t last = y[0];
        y[0] = y[m];
        y[m] = last;
        sift(y, m, 0, x);
    }
}

void pl_cpu_op_top_k(const pl_cpu_op *o)
{
    const pl_tensor *t = o->t, *x = t->src[0];
    int k = (int)t->ne[0], n_groups = t->params.i[0], k_groups = t->params.i[1], n_best = t->params.i[2];
    int64_t n = x->ne[0], width = n / n_groups, first, end;
    pl_cpu_split(o, pl_tensor_rows(t), &first, &end);
    for (int64_t r = first; r < end; r++) {
        const float *from = row_at(x, r);
        int32_t *y = row_at(t, r);
        if (k_groups == n_groups) {
            top_k(y, k, from, n, NULL, n);
            continue;
        }
        float score[PL_TOP_K_GROUPS_MAX];
        bool wanted[PL_TOP_K_GROUPS_MAX] = {false};
        int32_t best[PL_TOP_K_GROUPS_MAX];
        for (int g = 0; g < n_groups; g++) {
            /* The best one by one, each behind the one before in the order of before(): n_best is 1 or 2. */
            int32_t last = -1;
            score[g] = 0;
            for (int b = 0; b < n_best; b++) {
                int32_t next = -1;
                for (int32_t i = (int32_t)(g * width); i < (g + 1) * width; i++)
                    if ((last < 0 || before(from, last, i)) && (next < 0 || before(from, i, next))) next = i;
                score[g] += from[next];
                last = next;
            }
        }
        top_k(best, k_groups, score, n_groups, NULL, n_groups);
        for (int g = 0; g < k_groups; g++) wanted[best[g]] = true;
        top_k(y, k, from, n, wanted, width);
    }
}

void pl_cpu_op_softmax(const pl_cpu_op *o)
{
    const pl_tensor *t = o->t, *x = t->src[0], *mask = t->src[1], *sinks = t->src[2];
    int64_t n = t->ne[0], first, end;
    pl_cpu_split(o, pl_tensor_rows(t), &first, &end);
    for (int64_t r = first; r < end; r++) {
        float *y = row_at(t, r);
        o->k->scale(y, row_at(x, r), t->params.f[0], n);
        if (mask) o->k->add(y, y, row_like(mask, t, r), n);
        float sink = sinks ? ((const float *)sinks->data)[r / t->ne[1] % t->ne[2]] : -INFINITY, top = sink;
        for (int64_t i = 0; i < n; i++)
            if (!(y[i] <= top)) top = y[i]; /* a NaN is the top, and reaches the whole row */
        if (top == -INFINITY) {
            memset(y, 0, (size_t)n * sizeof *y);
            continue;
        }
        o->k->scale_add(y, y, 1.0f, -top, n);
        o->k->unary[PL_FN_EXP](y, y, n);
        float sum = sum16(y, n);
        if (sinks) {
            float e = sink - top;
            o->k->unary[PL_FN_EXP](&e, &e, 1);
            sum += e;
        }
        o->k->scale(y, y, 1.0f / sum, n);
    }
}

void pl_cpu_op_sum_rows(const pl_cpu_op *o)
{
    const pl_tensor *t = o->t;
    int64_t first, end;
    pl_cpu_split(o, pl_tensor_rows(t), &first, &end);
    for (int64_t r = first; r < end; r++) *(float *)row_at(t, r) = sum16(row_at(t->src[0], r), t->src[0]->ne[0]);
}

void pl_cpu_op_weighted_sum(const pl_cpu_op *o)
{
    const pl_tensor *t = o->t, *x = t->src[0], *w = t->src[1];
    int64_t m = t->ne[0], first, end;
    pl_cpu_split(o, t->ne[1], &first, &end);
    for (int64_t i = first; i < end; i++) {
        float *y = pl_cpu_row(t, i, 0, 0);
        const float *by = pl_cpu_row(w, i, 0, 0);
        o->k->scale(y, pl_cpu_row(x, 0, i, 0), by[0], m);
        for (int64_t u = 1; u < x->ne[1]; u++) {
            const float *from = pl_cpu_row(x, u, i, 0);
            for (int64_t c = 0; c < m; c++) y[c] += from[c] * by[u];
        }
    }
}

void pl_cpu_op_mean(const pl_cpu_op *o)
{
    const pl_tensor *t = o->t, *x = t->src[0];
    const int32_t *owners = t->src[1]->data;
    int64_t m = t->ne[0], first, end;
    pl_cpu_split(o, t->ne[1], &first, &end);
    for (int64_t i = first; i < end; i++) {
        float *y = pl_cpu_row(t, i, 0, 0);
        int64_t n = 0;
        memset(y, 0, (size_t)m * sizeof *y);
        for (int64_t r = 0; r < x->ne[1]; r++) {
            if (owners[r] != i) continue;
            o->k->add(y, y, pl_cpu_row(x, r, 0, 0), m);
            n++;
        }
        if (n > 0) o->k->scale(y, y, 1.0f / (float)n, m);
    }
}
