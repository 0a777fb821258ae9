/* Operators through the backend: against float64 over random shapes, strides and views; and one transformer layer whose every
 * row must have the same bits for any instruction set, number of threads, micro-batch, block table and weight layout. */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "engine/base/alloc.h"
#include "engine/base/rng.h"
#include "engine/cpu/cpu.h"
#include "engine/cpu/pack.h"
#include "tests/contract/sets.h"

Suite *ops_suite(void);

#define OK(call)                                                                                                       \
    do {                                                                                                               \
        pl_error err_ = {0}, *err = &err_;                                                                             \
        ck_assert_msg((call) == PL_OK, "%s: %s", #call, err_.text);                                                    \
    } while (0)

/* A pool and a backend for one instruction set. */
typedef struct machine {
    pl_pool *pool;
    pl_backend *b;
} machine;

static machine machine_start(const char *isa, int n_threads)
{
    machine m;
    OK(pl_pool_new(&m.pool, (pl_pool_options){.n_threads = n_threads, .poll = -1}, err));
    setenv("PACELINE_ISA", isa, 1);
    OK(pl_cpu_backend_new(&m.b, m.pool, err));
    unsetenv("PACELINE_ISA");
    return m;
}

static void machine_stop(machine *m)
{
    m->b->vt->free(m->b);
    pl_pool_free(m->pool);
}

/* A graph that is planned and bound to memory of its own. */
typedef struct ready {
    pl_graph *g;
    pl_backend_buffer *buf;
    void *scratch;
} ready;

static ready make_ready(const machine *m, pl_graph_ctx *c, pl_tensor **outputs, int n)
{
    ready r;
    size_t peak;
    OK(pl_graph_build(&r.g, c, outputs, n, err));
    OK(pl_graph_plan(r.g, m->b->alignment, &peak, err));
    OK(m->b->vt->buffer_new(m->b, peak, &r.buf, err));
    pl_graph_bind(r.g, m->b->vt->buffer_base(r.buf));
    for (int i = 0; i < pl_graph_n_nodes(r.g); i++) ck_assert(m->b->vt->supports(m->b, pl_graph_node(r.g, i)));
    r.scratch = pl_alloc_aligned(64, m->b->vt->scratch(m->b, r.g));
    ck_assert_ptr_nonnull(r.scratch);
    return r;
}

static void run_ready(const machine *m, ready *r) { OK(m->b->vt->compute(m->b, r->g, r->scratch, err)); }

static void free_ready(const machine *m, ready *r)
{
    m->b->vt->buffer_free(m->b, r->buf);
    pl_free(r->scratch);
}

/* --- Single operators against float64 --- */

static float *element(const pl_tensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3)
{
    return (float *)(void *)((uint8_t *)t->data + (size_t)i0 * t->nb[0] + (size_t)i1 * t->nb[1] + (size_t)i2 * t->nb[2] + (size_t)i3 * t->nb[3]);
}

#define EACH_ROW(t, i1, i2, i3)                                                                                        \
    for (int64_t i3 = 0; i3 < (t)->ne[3]; i3++)                                                                        \
        for (int64_t i2 = 0; i2 < (t)->ne[2]; i2++)                                                                    \
            for (int64_t i1 = 0; i1 < (t)->ne[1]; i1++)

/* A random f32 input, or a random window into a larger one, or with its outer dimensions exchanged. */
static pl_tensor *some_source(pl_graph_ctx *c, pl_rng *r, const int64_t ne[4], pl_tensor **leaf)
{
    int kind = (int)pl_rng_below(r, 3);
    if (kind == 0) return *leaf = pl_new_input(c, PL_TYPE_F32, 4, ne, "a");
    if (kind == 1) {
        int64_t big[4];
        for (int i = 0; i < 4; i++) big[i] = ne[i] + (int64_t)pl_rng_below(r, 3);
        *leaf = pl_new_input(c, PL_TYPE_F32, 4, big, "larger");
        size_t offset = 0;
        for (int i = 0; i < 4; i++) offset += pl_rng_below(r, (uint64_t)(big[i] - ne[i] + 1)) * (*leaf)->nb[i];
        return pl_view(c, *leaf, 4, ne, (*leaf)->nb, offset);
    }
    *leaf = pl_new_input(c, PL_TYPE_F32, 4, (int64_t[]){ne[0], ne[3], ne[1], ne[2]}, "turned");
    return pl_permute(c, *leaf, 0, 3, 1, 2);
}

static void fill(pl_rng *r, pl_tensor *t)
{
    float *x = t->data;
    for (int64_t i = 0; i < pl_tensor_elements(t); i++) x[i] = (float)pl_rng_gauss(r);
}

START_TEST(row_operators_agree_with_float64_on_any_strides)
{
    pl_rng r;
    pl_rng_seed(&r, (uint64_t)_i);
    machine m = machine_start(best_set(), 1 + _i % 3);
    pl_graph_ctx *c;
    OK(pl_graph_ctx_new(&c, err));
    int64_t ne[4] = {1 + (int64_t)pl_rng_below(&r, 90), 1 + (int64_t)pl_rng_below(&r, 5), 1 + (int64_t)pl_rng_below(&r, 4), 1 + (int64_t)pl_rng_below(&r, 3)};
    int groups = 1 + (int)pl_rng_below(&r, 3);
    ne[0] *= groups;
    int64_t nb[4], width = ne[0] / groups;
    for (int i = 0; i < 4; i++) nb[i] = pl_rng_below(&r, 3) ? ne[i] : 1;
    pl_tensor *leaf[5];
    pl_tensor *a = some_source(c, &r, ne, &leaf[0]), *b = some_source(c, &r, nb, &leaf[1]), *same = some_source(c, &r, ne, &leaf[2]);
    pl_tensor *w = leaf[3] = pl_new_input(c, PL_TYPE_F32, 1, ne, "w"), *v = leaf[4] = pl_new_input(c, PL_TYPE_F32, 1, ne, "v");
    enum { N = 20 + 2 * PL_FN_COUNT };
    pl_tensor *out[N];
    int n = 0;
    out[n++] = pl_copy(c, a, PL_TYPE_F16); /* the two that are read otherwise stand first */
    out[n++] = pl_copy(c, pl_permute(c, a, 2, 1, 0, 3), PL_TYPE_F32);
    out[n++] = pl_add(c, a, b);
    out[n++] = pl_sub(c, a, b);
    out[n++] = pl_mul(c, a, b);
    out[n++] = pl_div(c, a, b);
    out[n++] = pl_scale(c, a, 0.37f);
    out[n++] = pl_scale_add(c, a, 0.37f, -1.5f);
    out[n++] = pl_clamp(c, a, -0.5f, 0.75f);
    out[n++] = pl_softcap(c, a, 1.25f);
    out[n++] = pl_rms_norm(c, a, w, 1e-5f);
    out[n++] = pl_rms_norm(c, a, NULL, 1e-6f);
    out[n++] = pl_layer_norm(c, a, w, v, 1e-5f);
    out[n++] = pl_layer_norm(c, a, w, NULL, 1e-5f);
    out[n++] = pl_group_norm(c, a, NULL, v, groups, 1e-3f);
    out[n++] = pl_l2_norm(c, a, 1e-6f);
    out[n++] = pl_copy(c, a, PL_TYPE_F32);
    out[n++] = pl_copy(c, pl_copy(c, a, PL_TYPE_BF16), PL_TYPE_F32);
    for (int fn = 0; fn < PL_FN_COUNT; fn++) {
        out[n++] = pl_unary(c, a, (pl_fn)fn);
        out[n++] = pl_glu(c, a, same, (pl_fn)fn);
    }
    ready g = make_ready(&m, c, out, n);
    for (int i = 0; i < 5; i++) fill(&r, leaf[i]);
    run_ready(&m, &g);
    EACH_ROW(a, i1, i2, i3)
    {
        double squares = 0, mean = 0, var = 0, group_mean[3] = {0}, group_var[3] = {0};
        for (int64_t i0 = 0; i0 < ne[0]; i0++) {
            double x = *element(a, i0, i1, i2, i3);
            squares += x * x;
            mean += x / (double)ne[0];
            group_mean[i0 / width] += x / (double)width;
        }
        for (int64_t i0 = 0; i0 < ne[0]; i0++) {
            double x = *element(a, i0, i1, i2, i3);
            var += pow(x - mean, 2) / (double)ne[0];
            group_var[i0 / width] += pow(x - group_mean[i0 / width], 2) / (double)width;
        }
        for (int64_t i0 = 0; i0 < ne[0]; i0++) {
            double x = *element(a, i0, i1, i2, i3), s = *element(same, i0, i1, i2, i3), ww = *element(w, i0, 0, 0, 0), vv = *element(v, i0, 0, 0, 0);
            double y = *element(b, i0 % nb[0], i1 % nb[1], i2 % nb[2], i3 % nb[3]);
            double relu = x > 0 ? x : 0, one = (double)ne[0], rms = x / sqrt(squares / one + 1e-5);
            double normed = (x - mean) / sqrt(var + 1e-5), near = 4 / sqrt(var + 1e-5);
            double in_group = (x - group_mean[i0 / width]) / sqrt(group_var[i0 / width] + 1e-3);
            const double fn[PL_FN_COUNT] = {x / (1 + exp(-x)),
                                            x * erfc(-x * sqrt(0.5)) / 2,
                                            x * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x))) / 2,
                                            x / (1 + exp(-1.702 * x)),
                                            relu,
                                            relu * relu,
                                            1 / (1 + exp(-x)),
                                            tanh(x),
                                            exp(x)};
            /* what it should be, and the size of what it was made of, which rounding errors are relative to */
            double want[N][2] = {{x, 0},
                                 {x, 0},
                                 {x + y, fabs(x)},
                                 {x - y, fabs(x)},
                                 {x * y, 0},
                                 {x / y, 0},
                                 {x * (double)0.37f, 0},
                                 {x * (double)0.37f - 1.5, 1.5},
                                 {x < -0.5 ? -0.5 : x > 0.75 ? 0.75 : x, 0},
                                 {1.25 * tanh(x / 1.25), 0},
                                 {rms * ww, 0},
                                 {x / sqrt(squares / one + 1e-6), 0},
                                 {normed * ww + vv, fabs(near * ww) + fabs(vv)},
                                 {normed * ww, fabs(near * ww)},
                                 {in_group + vv, fabs(vv) + 40},
                                 {x / sqrt(squares), 0},
                                 {x, 0},
                                 {x, 0}};
            for (int f = 0; f < PL_FN_COUNT; f++) {
                want[18 + 2 * f][0] = fn[f];
                want[19 + 2 * f][0] = fn[f] * s;
                want[18 + 2 * f][1] = want[19 + 2 * f][1] = 0;
            }
            for (int o = 0; o < n; o++) {
                double got;
                if (o == 0)
                    got = pl_f16_to_f32(*(uint16_t *)(void *)element(out[o], i0, i1, i2, i3));
                else if (o == 1)
                    got = *element(out[o], i2, i1, i0, i3);
                else
                    got = *element(out[o], i0, i1, i2, i3);
                double tol = o == 0 ? 5e-4 : o == 17 ? 4e-3 : 2e-6;
                ck_assert_msg(fabs(got - want[o][0]) <= tol * (fabs(want[o][0]) + want[o][1]) + 1e-7, "output %d of %s: %g, not %g", o,
                              pl_op_name(out[o]->op), got, want[o][0]);
            }
        }
    }
    free_ready(&m, &g);
    pl_graph_ctx_free(c);
    machine_stop(&m);
}
END_TEST

START_TEST(rows_are_found_in_tables_of_any_type_and_layout)
{
    static const pl_type types[] = {PL_TYPE_F32, PL_TYPE_F16, PL_TYPE_BF16, PL_TYPE_Q8_0, PL_TYPE_Q4_0, PL_TYPE_Q4_1,
                                    PL_TYPE_Q5_0, PL_TYPE_Q5_1, PL_TYPE_Q4_K, PL_TYPE_Q5_K, PL_TYPE_Q6_K,
                                    PL_TYPE_IQ4_NL, PL_TYPE_IQ4_XS, PL_TYPE_MXFP4, PL_TYPE_NVFP4, PL_TYPE_Q2_K, PL_TYPE_Q3_K,
                                    PL_TYPE_TQ1_0, PL_TYPE_TQ2_0, PL_TYPE_Q1_0, PL_TYPE_Q2_0, PL_TYPE_Q8_1, PL_TYPE_Q8_K};
    enum { K = 512, ROWS = 37, N = 9 };
    pl_type type = types[_i];
    pl_rng r;
    pl_rng_seed(&r, 40 + (uint64_t)_i);
    machine m = machine_start(best_set(), 2);
    int64_t ne[4] = {K, ROWS, 1, 1};
    size_t row = pl_type_row_size(type, K), size = row * ROWS;
    uint8_t *plain = pl_alloc(size), *packed = pl_alloc(size), *back = pl_alloc(size);
    static float x[ROWS][K], want[K];
    for (int i = 0; i < ROWS; i++)
        for (int k = 0; k < K; k++) x[i][k] = (float)pl_rng_gauss(&r);
    if (pl_type_get(type)->from_float) {
        for (int i = 0; i < ROWS; i++) pl_type_get(type)->from_float(x[i], plain + (size_t)i * row, K);
    } else { /* any bytes are a block, but NaN is not equal to itself: take small exponents for the half floats */
        for (size_t i = 0; i < size; i++) plain[i] = (uint8_t)pl_rng_below(&r, 0x3c);
    }
    pl_layout best = m.b->vt->best_layout(m.b, type, ne);
    m.b->vt->pack(m.b, best, type, ne, plain, packed, 16, ROWS);
    m.b->vt->pack(m.b, best, type, ne, plain, packed, 0, 16);
    m.b->vt->unpack(m.b, best, type, ne, packed, back, 0, ROWS);
    ck_assert_mem_eq(back, plain, size);

    pl_graph_ctx *c;
    OK(pl_graph_ctx_new(&c, err));
    pl_tensor *ids = pl_new_input(c, PL_TYPE_I32, 1, (int64_t[]){N}, "ids");
    pl_tensor *out[] = {pl_get_rows(c, pl_new_weight(c, type, PL_LAYOUT_PLAIN, 2, ne, plain, "plain"), ids),
                        pl_get_rows(c, pl_new_weight(c, type, best, 2, ne, packed, "packed"), ids)};
    ready g = make_ready(&m, c, out, 2);
    int32_t *id = ids->data;
    for (int i = 0; i < N; i++) id[i] = (int32_t)pl_rng_below(&r, ROWS);
    id[0] = ROWS - 1;
    run_ready(&m, &g);
    for (int i = 0; i < N; i++) {
        pl_type_get(type)->to_float(plain + (size_t)id[i] * row, want, K);
        for (int o = 0; o < 2; o++) ck_assert_int_eq(first_difference((float *)out[o]->data + i * K, want, K), -1);
    }
    free_ready(&m, &g);
    pl_graph_ctx_free(c);
    machine_stop(&m);
    pl_free(plain);
    pl_free(packed);
    pl_free(back);
}
END_TEST

/* --- Products of experts and batches --- */

/* n rows, each times its matrix, in one run; dst [n][m]. */
typedef struct id_case {
    pl_type type;
    pl_precision precision;
    bool shared_x;
    int64_t k, m, n_matrices, n_used;
    float *w;             /* [n_matrices][m][k], as the type has it */
    uint8_t *plain, *packed;
    pl_layout layout;
    float *x;             /* [n][n_used][k] */
    int32_t *ids;         /* [n][n_used] */
} id_case;

static void id_run(const id_case *t, const char *isa, int n_threads, bool packed, int first, int n, float *y)
{
    machine m = machine_start(isa, n_threads);
    pl_graph_ctx *c;
    OK(pl_graph_ctx_new(&c, err));
    pl_tensor *w = pl_new_weight(c, t->type, packed ? t->layout : PL_LAYOUT_PLAIN, 3, (int64_t[]){t->k, t->m, t->n_matrices}, packed ? t->packed : t->plain, "w");
    int64_t n_x = t->shared_x ? 1 : t->n_used;
    pl_tensor *x = pl_new_input(c, PL_TYPE_F32, 3, (int64_t[]){t->k, n_x, n}, "x"), *ids = pl_new_input(c, PL_TYPE_I32, 2, (int64_t[]){t->n_used, n}, "ids");
    pl_tensor *out = pl_mul_mat_id(c, w, x, ids, t->precision);
    ready g = make_ready(&m, c, &out, 1);
    for (int i = 0; i < n; i++)
        memcpy((float *)x->data + i * n_x * t->k, t->x + (first + i) * t->n_used * t->k, (size_t)(n_x * t->k) * sizeof(float));
    memcpy(ids->data, t->ids + first * t->n_used, (size_t)(n * t->n_used) * sizeof(int32_t));
    run_ready(&m, &g);
    memcpy(y + first * t->n_used * t->m, out->data, (size_t)(n * t->n_used * t->m) * sizeof(float));
    free_ready(&m, &g);
    pl_graph_ctx_free(c);
    machine_stop(&m);
}

START_TEST(products_of_experts_agree_with_float64_and_have_the_same_bits_in_any_batch)
{
    enum { N = 21 };
    static const pl_type types[] = {PL_TYPE_F32, PL_TYPE_Q8_0, PL_TYPE_F16, PL_TYPE_Q4_K, PL_TYPE_BF16, PL_TYPE_Q4_0};
    pl_rng r;
    pl_rng_seed(&r, 700 + (uint64_t)_i);
    id_case t = {.type = types[_i % 6], .precision = _i % 5 == 4 ? PL_TWO_TERMS_WHERE_LARGE : _i % 2 ? PL_TWO_TERMS : PL_ONE_TERM, .shared_x = _i % 3 == 0, .n_matrices = 1 + (int64_t)pl_rng_below(&r, 12), .n_used = 1 + (int64_t)pl_rng_below(&r, 4)};
    int64_t block = pl_type_get(t.type)->block;
    t.k = block == 1 ? 1 + (int64_t)pl_rng_below(&r, 80) : block * (1 + (int64_t)pl_rng_below(&r, 3));
    t.m = _i % 4 == 3 ? 1 + (int64_t)pl_rng_below(&r, 70) : 16 * (1 + (int64_t)pl_rng_below(&r, 12));
    int64_t rows = t.m * t.n_matrices, ne[4] = {t.k, t.m, t.n_matrices, 1}, n_y = N * t.n_used * t.m;
    size_t size = pl_type_row_size(t.type, t.k) * (size_t)rows;
    t.w = pl_alloc((size_t)(rows * t.k) * sizeof(float));
    t.plain = pl_alloc(size);
    t.packed = pl_alloc(size);
    t.x = pl_alloc((size_t)(N * t.n_used * t.k) * sizeof(float));
    t.ids = pl_alloc((size_t)(N * t.n_used) * sizeof(int32_t));
    for (int64_t i = 0; i < rows * t.k; i++) t.w[i] = (float)pl_rng_gauss(&r);
    pl_type_get(t.type)->from_float(t.w, t.plain, rows * t.k);
    pl_type_get(t.type)->to_float(t.plain, t.w, rows * t.k);
    for (int64_t i = 0; i < N * t.n_used * t.k; i++) t.x[i] = (float)pl_rng_gauss(&r);
    for (int64_t i = 0; i < N * t.n_used; i++) t.ids[i] = pl_rng_below(&r, 12) ? (int32_t)pl_rng_below(&r, (uint64_t)t.n_matrices) : -1;
    machine m = machine_start("portable", 1);
    t.layout = m.b->vt->best_layout(m.b, t.type, ne);
    if (t.m >= 16) ck_assert_int_eq(t.layout == PL_LAYOUT_R16, t.m % 16 == 0 || t.n_matrices == 1);
    m.b->vt->pack(m.b, t.layout, t.type, ne, t.plain, t.packed, 0, rows);
    machine_stop(&m);

    float *want = pl_alloc((size_t)n_y * sizeof *want), *got = pl_alloc((size_t)n_y * sizeof *got);
    id_run(&t, "portable", 1, false, 0, N, want);
    for (int i = 0; i < N * t.n_used; i++) {
        const float *x = t.x + (t.shared_x ? i / t.n_used * t.n_used : i) * t.k;
        double error = 0, norm = 0;
        for (int64_t j = 0; j < t.m; j++) {
            double y = 0;
            for (int64_t k = 0; k < t.k && t.ids[i] >= 0; k++) y += (double)t.w[(t.ids[i] * t.m + j) * t.k + k] * x[k];
            error += pow(want[i * t.m + j] - y, 2);
            norm += y * y;
        }
        double tol = block == 1 ? 1e-6 : t.precision == PL_TWO_TERMS ? 2e-4 : 3e-2;
        ck_assert_msg(sqrt(error) <= tol * sqrt(norm), "row %d: off by %g of %g", i, sqrt(error), sqrt(norm));
    }
    pl_isa isa;
    const char *word;
    for (int s = 0; set_at(s, &isa, &word); s++)
        for (int way = 0; way < 3; way++) {
            for (int done = 0; done < N;) {
                int n = way == 0 ? N : way == 1 ? 1 : 1 + (int)pl_rng_below(&r, (uint64_t)(N - done));
                id_run(&t, word, 1 + (way + s) % 3, way != 2, done, n, got);
                done += n;
            }
            int64_t at = first_difference(got, want, n_y);
            ck_assert_msg(at < 0, "%s, way %d, %s: row %d column %d: %a, not %a", word, way, pl_type_name(t.type), (int)(at / t.m), (int)(at % t.m), (double)got[at], (double)want[at]);
        }
    pl_free(t.w);
    pl_free(t.plain);
    pl_free(t.packed);
    pl_free(t.x);
    pl_free(t.ids);
    pl_free(want);
    pl_free(got);
}
END_TEST

/* The same numbers as one product for each matrix: bits and all. */
START_TEST(batched_products_are_the_products_of_their_matrices)
{
    pl_rng r;
    pl_rng_seed(&r, 800 + (uint64_t)_i);
    machine m = machine_start(_i % 2 ? "avx512vnni" : "avx2", 1 + _i % 3);
    pl_graph_ctx *c;
    OK(pl_graph_ctx_new(&c, err));
    int64_t k = 1 + (int64_t)pl_rng_below(&r, 70), rows = 1 + (int64_t)pl_rng_below(&r, 40), n = 1 + (int64_t)pl_rng_below(&r, 20);
    int64_t b2 = 1 + (int64_t)pl_rng_below(&r, 3), b3 = 1 + (int64_t)pl_rng_below(&r, 2), c2 = b2 * (1 + (int64_t)pl_rng_below(&r, 3)), c3 = b3 * (1 + (int64_t)pl_rng_below(&r, 2));
    pl_tensor *leaf_w, *leaf_x;
    pl_tensor *w = some_source(c, &r, (int64_t[]){k, rows, b2, b3}, &leaf_w), *x = some_source(c, &r, (int64_t[]){k, n, c2, c3}, &leaf_x);
    static const pl_type types[] = {PL_TYPE_F32, PL_TYPE_F16, PL_TYPE_BF16};
    if (_i % 3) w = pl_copy(c, w, types[_i % 3]);
    pl_tensor *out[1 + 36];
    int n_out = 0;
    out[n_out++] = pl_mul_mat(c, w, x);
    for (int64_t i3 = 0; i3 < c3; i3++)
        for (int64_t i2 = 0; i2 < c2; i2++) {
            pl_tensor *one_w = pl_view(c, w, 2, (int64_t[]){k, rows}, w->nb, (size_t)(i2 / (c2 / b2)) * w->nb[2] + (size_t)(i3 / (c3 / b3)) * w->nb[3]);
            pl_tensor *one_x = pl_view(c, x, 2, (int64_t[]){k, n}, x->nb, (size_t)i2 * x->nb[2] + (size_t)i3 * x->nb[3]);
            out[n_out++] = pl_mul_mat(c, one_w, one_x);
        }
    ready g = make_ready(&m, c, out, n_out);
    fill(&r, leaf_w);
    fill(&r, leaf_x);
    run_ready(&m, &g);
    for (int64_t i = 0; i < c2 * c3; i++)
        ck_assert_int_eq(first_difference((float *)out[0]->data + i * rows * n, out[1 + i]->data, rows * n), -1);
    free_ready(&m, &g);
    pl_graph_ctx_free(c);
    machine_stop(&m);
}
END_TEST

/* --- What chooses, joins and gathers --- */

static double number(const pl_tensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3) { return (double)*element(t, i0, i1, i2, i3); }

START_TEST(rows_are_chosen_joined_and_gathered)
{
    pl_rng r;
    pl_rng_seed(&r, 1000 + (uint64_t)_i);
    machine m = machine_start("avx512vnni", 1 + _i % 3);
    pl_graph_ctx *c;
    OK(pl_graph_ctx_new(&c, err));
    int64_t ne[4] = {1 + (int64_t)pl_rng_below(&r, 60), 1 + (int64_t)pl_rng_below(&r, 5), 1 + (int64_t)pl_rng_below(&r, 4), 1 + (int64_t)pl_rng_below(&r, 3)};
    int dim = _i % 4, k = 1 + (int)pl_rng_below(&r, (uint64_t)ne[0]);
    int64_t other[4], times[4], mask_ne[4] = {ne[0], pl_rng_below(&r, 2) ? ne[1] : 1, pl_rng_below(&r, 2) ? ne[2] : 1, 1};
    for (int i = 0; i < 4; i++) {
        other[i] = i == dim ? 1 + (int64_t)pl_rng_below(&r, 7) : ne[i];
        times[i] = ne[i] * (1 + (int64_t)pl_rng_below(&r, 3));
    }
    pl_tensor *leaf[6];
    pl_tensor *a = some_source(c, &r, ne, &leaf[0]), *b = some_source(c, &r, other, &leaf[1]), *mask = some_source(c, &r, mask_ne, &leaf[2]);
    pl_tensor *x3 = some_source(c, &r, (int64_t[]){ne[0], ne[1], ne[2], 1}, &leaf[3]), *w = leaf[4] = pl_new_input(c, PL_TYPE_F32, 2, (int64_t[]){ne[1], ne[2]}, "w");
    pl_tensor *sinks = leaf[5] = pl_new_input(c, PL_TYPE_F32, 1, (int64_t[]){ne[2]}, "sinks");
    pl_tensor *top = pl_top_k(c, a, k), *all = pl_top_k(c, a, (int)ne[0]);
    pl_tensor *owners = pl_new_input(c, PL_TYPE_I32, 1, (int64_t[]){ne[1]}, "owners"), *x2 = pl_view(c, x3, 2, ne, x3->nb, 0);
    static uint16_t table[60 * 9];
    memset(table, 0, sizeof table);
    pl_tensor *into = pl_new_weight(c, PL_TYPE_F16, PL_LAYOUT_PLAIN, 2, (int64_t[]){ne[0], 9}, table, "table");
    pl_tensor *ids = pl_new_input(c, PL_TYPE_I32, 1, (int64_t[]){ne[1]}, "ids");
    pl_tensor *out[] = {pl_concat(c, a, b, dim), pl_repeat(c, a, times), top, all, pl_take(c, a, top), pl_softmax(c, a, mask, sinks, 0.7f), pl_softmax(c, a, NULL, NULL, 1),
                        pl_sum_rows(c, a), pl_weighted_sum(c, x3, w), pl_mean(c, x2, owners, 3), pl_set_rows(c, into, x2, ids)};
    ready g = make_ready(&m, c, out, sizeof out / sizeof out[0]);
    for (int i = 0; i < 6; i++) fill(&r, leaf[i]);
    for (int64_t i = 0; i < pl_tensor_elements(leaf[0]); i++) /* some are equal */
        if (pl_rng_below(&r, 3) == 0) ((float *)leaf[0]->data)[i] = (float)pl_rng_below(&r, 3);
    for (int64_t i = 0; i < ne[1]; i++) ((int32_t *)owners->data)[i] = (int32_t)pl_rng_below(&r, 3);
    for (int64_t i = 0; i < ne[1]; i++) ((int32_t *)ids->data)[i] = i % 4 == 3 ? -1 : (int32_t)(i * 4 + 1) % 9;
    run_ready(&m, &g);
    EACH_ROW(out[0], i1, i2, i3)
    for (int64_t i0 = 0; i0 < out[0]->ne[0]; i0++) {
        int64_t i[4] = {i0, i1, i2, i3};
        bool first = i[dim] < ne[dim];
        if (!first) i[dim] -= ne[dim];
        ck_assert_double_eq(number(out[0], i0, i1, i2, i3), number(first ? a : b, i[0], i[1], i[2], i[3]));
    }
    EACH_ROW(out[1], i1, i2, i3)
    for (int64_t i0 = 0; i0 < times[0]; i0++) ck_assert_double_eq(number(out[1], i0, i1, i2, i3), number(a, i0 % ne[0], i1 % ne[1], i2 % ne[2], i3 % ne[3]));
    EACH_ROW(a, i1, i2, i3)
    {
        const int32_t *order = (const int32_t *)(void *)element(all, 0, i1, i2, i3), *best = (const int32_t *)(void *)element(top, 0, i1, i2, i3);
        double sum = 0, tops[2] = {number(sinks, i2, 0, 0, 0), -INFINITY}, sums[2];
        for (int64_t i = 0; i < ne[0]; i++) {
            sum += number(a, i, i1, i2, i3);
            if (i < k) {
                ck_assert_int_eq(order[i], best[i]);
                ck_assert_double_eq(number(out[4], i, i1, i2, i3), number(a, best[i], i1, i2, i3));
            }
            tops[0] = fmax(tops[0], (double)0.7f * number(a, i, i1, i2, i3) + number(mask, i, i1 % mask_ne[1], i2 % mask_ne[2], 0));
            tops[1] = fmax(tops[1], number(a, i, i1, i2, i3));
            if (i == 0) continue;
            double x = number(a, order[i - 1], i1, i2, i3), y = number(a, order[i], i1, i2, i3);
            ck_assert(x > y || (x == y && order[i - 1] < order[i]));
        }
        ck_assert_double_eq_tol(number(out[7], 0, i1, i2, i3), sum, 1e-5 * (double)ne[0]);
        sums[0] = exp(number(sinks, i2, 0, 0, 0) - tops[0]);
        sums[1] = 0;
        for (int way = 0; way < 2; way++) {
            for (int pass = 0; pass < 2; pass++)
                for (int64_t i = 0; i < ne[0]; i++) {
                    double x = number(a, i, i1, i2, i3);
                    if (way == 0) x = (double)0.7f * x + number(mask, i, i1 % mask_ne[1], i2 % mask_ne[2], 0);
                    if (pass == 0)
                        sums[way] += exp(x - tops[way]);
                    else
                        ck_assert_double_eq_tol(number(out[5 + way], i, i1, i2, i3), exp(x - tops[way]) / sums[way], 2e-6);
                }
        }
    }
    for (int64_t i = 0; i < ne[2]; i++)
        for (int64_t e = 0; e < ne[0]; e++) {
            double y = 0;
            for (int64_t u = 0; u < ne[1]; u++) y += number(x3, e, u, i, 0) * number(w, u, i, 0, 0);
            ck_assert_double_eq_tol(number(out[8], e, i, 0, 0), y, 1e-5);
        }
    for (int64_t e = 0; e < ne[0]; e++)
        for (int o = 0; o < 3; o++) {
            double y = 0;
            int n = 0;
            for (int64_t i = 0; i < ne[1]; i++)
                if (((int32_t *)owners->data)[i] == o) y += number(x2, e, i, 0, 0), n++;
            ck_assert_double_eq_tol(number(out[9], e, o, 0, 0), n ? y / n : 0, 1e-5);
        }
    for (int row = 0; row < 9; row++)
        for (int64_t e = 0; e < ne[0]; e++) {
            uint16_t want = 0;
            for (int64_t i = 0; i < ne[1]; i++)
                if (((int32_t *)ids->data)[i] == row) want = pl_f32_to_f16(*element(x2, e, i, 0, 0));
            ck_assert_uint_eq(table[row * ne[0] + e], want);
        }
    free_ready(&m, &g);
    pl_graph_ctx_free(c);
    machine_stop(&m);
}
END_TEST

START_TEST(the_best_of_the_best_groups_are_chosen)
{
    enum { N = 7 };
    pl_rng r;
    pl_rng_seed(&r, 1100 + (uint64_t)_i);
    machine m = machine_start("portable", 1);
    pl_graph_ctx *c;
    OK(pl_graph_ctx_new(&c, err));
    int n_groups = 2 + (int)pl_rng_below(&r, 6), width = 2 + (int)pl_rng_below(&r, 8), k_groups = 1 + (int)pl_rng_below(&r, (uint64_t)n_groups), n_best = 1 + _i % 2;
    int k = 1 + (int)pl_rng_below(&r, (uint64_t)(k_groups * width));
    pl_tensor *x = pl_new_input(c, PL_TYPE_F32, 2, (int64_t[]){n_groups * width, N}, "x"), *y = pl_top_k_of_groups(c, x, k, n_groups, k_groups, n_best);
    ready g = make_ready(&m, c, &y, 1);
    fill(&r, x);
    run_ready(&m, &g);
    for (int i = 0; i < N; i++) {
        const float *row = element(x, 0, i, 0, 0);
        const int32_t *got = (const int32_t *)(void *)element(y, 0, i, 0, 0);
        double score[8];
        for (int a = 0; a < n_groups; a++) {
            double first = -INFINITY, second = -INFINITY;
            for (int j = a * width; j < (a + 1) * width; j++) {
                if (row[j] > first) {
                    second = first;
                    first = row[j];
                } else if (row[j] > second) {
                    second = row[j];
                }
            }
            score[a] = n_best == 2 ? first + second : first;
        }
        for (int j = 0; j < k; j++) {
            int better_groups = 0, better = 0;
            for (int a = 0; a < n_groups; a++) better_groups += score[a] > score[got[j] / width];
            ck_assert_int_lt(better_groups, k_groups);
            for (int e = 0; e < n_groups * width; e++) {
                int above = 0;
                for (int a = 0; a < n_groups; a++) above += score[a] > score[e / width];
                better += above < k_groups && row[e] > row[got[j]];
            }
            ck_assert_int_eq(better, j);
        }
    }
    free_ready(&m, &g);
    pl_graph_ctx_free(c);
    machine_stop(&m);
}
END_TEST

START_TEST(copies_convert_between_types)
{
    static const pl_type types[] = {PL_TYPE_F32, PL_TYPE_F16, PL_TYPE_BF16, PL_TYPE_Q8_0, PL_TYPE_Q4_0, PL_TYPE_Q4_K};
    enum { K = 512, ROWS = 3 };
    pl_type from = types[_i / 6], to = types[_i % 6];
    pl_rng r;
    pl_rng_seed(&r, 1200 + (uint64_t)_i);
    machine m = machine_start("avx512vnni", 2);
    static float x[ROWS * K], f[ROWS * K];
    static uint8_t data[ROWS * K * 4], want[ROWS * K * 4];
    for (int i = 0; i < ROWS * K; i++) x[i] = (float)pl_rng_gauss(&r);
    pl_type_get(from)->from_float(x, data, ROWS * K);
    pl_type_get(from)->to_float(data, f, ROWS * K);
    if (from == to)
        memcpy(want, data, sizeof want);
    else
        pl_type_get(to)->from_float(f, want, ROWS * K);
    pl_graph_ctx *c;
    OK(pl_graph_ctx_new(&c, err));
    pl_tensor *y = pl_copy(c, pl_new_weight(c, from, PL_LAYOUT_PLAIN, 2, (int64_t[]){K, ROWS}, data, "x"), to);
    ready g = make_ready(&m, c, &y, 1);
    run_ready(&m, &g);
    ck_assert_mem_eq(y->data, want, pl_tensor_bytes(y));
    free_ready(&m, &g);
    pl_graph_ctx_free(c);
    machine_stop(&m);
}
END_TEST

/* --- One layer, many ways --- */

enum { SEQS = 3, LEN = 75, PAGES = (LEN + PL_KV_PAGE - 1) / PL_KV_PAGE, BLOCKS = SEQS * PAGES + 2 };

typedef struct layer {
    int n_embd, d_head, n_head, n_head_kv, n_ff, n_rot;
    bool neox;
    pl_precision precision;
    pl_type w_type;
    pl_kv_layout kv;
    float *w[7];         /* q k v o gate up down, as f32 */
    void *plain[7];      /* as w_type */
    int64_t ne[7][4];
    float *norm[2], *x;  /* x [SEQS][LEN][n_embd] */
    float *table;        /* [LEN][n_rot] */
} layer;

static void layer_make(layer *l, uint64_t seed)
{
    pl_rng r;
    pl_rng_seed(&r, seed);
    static const pl_type w_types[] = {PL_TYPE_F32, PL_TYPE_F16, PL_TYPE_Q8_0, PL_TYPE_Q4_1};
    static const int heads[][2] = {{6, 2}, {3, 3}, {8, 1}, {4, 2}};
    int h = (int)pl_rng_below(&r, 4);
    l->d_head = seed % 2 ? 32 : 8;
    l->n_head = heads[h][0];
    l->n_head_kv = heads[h][1];
    l->n_embd = 96;
    l->n_ff = 160;
    l->n_rot = seed % 3 ? l->d_head : l->d_head / 2;
    l->neox = pl_rng_below(&r, 2);
    l->precision = (pl_precision)(seed / 2 % 3);
    static const pl_type kv_types[] = {PL_TYPE_F16, PL_TYPE_F32, PL_TYPE_BF16, PL_TYPE_Q8_0, PL_TYPE_Q4_0};
    uint64_t n_kv_types = l->d_head == 8 ? 3 : 5; /* 8 is no whole block */
    l->kv = (pl_kv_layout){kv_types[pl_rng_below(&r, n_kv_types)], kv_types[pl_rng_below(&r, n_kv_types)], l->n_head_kv, l->d_head, l->d_head};
    if (seed % 3 == 0) l->kv.k_type = l->kv.v_type = PL_TYPE_F32;
    l->w_type = w_types[pl_rng_below(&r, 4)];
    if (l->d_head == 8) l->w_type = PL_TYPE_F32; /* 8 * n_head is not always whole blocks */
    int q = l->d_head * l->n_head, kv = l->d_head * l->n_head_kv;
    const int shape[7][2] = {{l->n_embd, q}, {l->n_embd, kv}, {l->n_embd, kv}, {q, l->n_embd}, {l->n_embd, l->n_ff}, {l->n_embd, l->n_ff}, {l->n_ff, l->n_embd}};
    for (int i = 0; i < 7; i++) {
        int64_t k = shape[i][0], n = shape[i][1];
        l->ne[i][0] = k;
        l->ne[i][1] = n;
        l->ne[i][2] = l->ne[i][3] = 1;
        l->w[i] = pl_alloc((size_t)(k * n) * sizeof(float));
        for (int64_t j = 0; j < k * n; j++) l->w[i][j] = (float)(pl_rng_gauss(&r) / sqrt((double)k));
        l->plain[i] = pl_alloc(pl_type_row_size(l->w_type, k) * (size_t)n);
        pl_type_get(l->w_type)->from_float(l->w[i], l->plain[i], k * n);
        pl_type_get(l->w_type)->to_float(l->plain[i], l->w[i], k * n);
    }
    for (int i = 0; i < 2; i++) {
        l->norm[i] = pl_alloc((size_t)l->n_embd * sizeof(float));
        for (int j = 0; j < l->n_embd; j++) l->norm[i][j] = 1 + 0.1f * (float)pl_rng_gauss(&r);
    }
    l->x = pl_alloc(sizeof(float) * (size_t)(SEQS * LEN * l->n_embd));
    for (int i = 0; i < SEQS * LEN * l->n_embd; i++) l->x[i] = (float)pl_rng_gauss(&r);
    l->table = pl_alloc(sizeof(float) * (size_t)(LEN * l->n_rot));
    for (int p = 0; p < LEN; p++)
        for (int i = 0; i < l->n_rot / 2; i++) {
            double a = p * pow(10000, -2.0 * i / l->n_rot);
            l->table[p * l->n_rot + 2 * i] = (float)cos(a);
            l->table[p * l->n_rot + 2 * i + 1] = (float)sin(a);
        }
}

static void layer_free(layer *l)
{
    for (int i = 0; i < 7; i++) {
        pl_free(l->w[i]);
        pl_free(l->plain[i]);
    }
    pl_free(l->norm[0]);
    pl_free(l->norm[1]);
    pl_free(l->x);
    pl_free(l->table);
}

/* How to run it. rows_max: the largest micro-batch; mix: rows of all sequences in turn, else one sequence after the other. */
typedef struct way {
    const char *isa;
    int n_threads, rows_max;
    bool mix, packed;
    uint64_t seed; /* of block tables and batch sizes; 0: batches of exactly rows_max */
} way;

typedef struct layer_graph {
    pl_graph_ctx *c;
    pl_tensor *x, *table, *slots, *pos, *tables, *y;
    ready r;
} layer_graph;

static layer_graph layer_graph_make(const layer *l, const machine *m, void *const weights[7], pl_layout layout, void *kv_bytes, int n)
{
    layer_graph g;
    OK(pl_graph_ctx_new(&g.c, err));
    pl_graph_ctx *c = g.c;
    pl_tensor *w[7];
    for (int i = 0; i < 7; i++) w[i] = pl_new_weight(c, l->w_type, layout, 2, l->ne[i], weights[i], "w");
    pl_tensor *norm[2];
    for (int i = 0; i < 2; i++) norm[i] = pl_new_weight(c, PL_TYPE_F32, PL_LAYOUT_PLAIN, 1, (int64_t[]){l->n_embd}, l->norm[i], "norm");
    pl_tensor *kv = pl_new_kv(c, &l->kv, BLOCKS, kv_bytes, "kv");
    g.x = pl_new_input(c, PL_TYPE_F32, 2, (int64_t[]){l->n_embd, n}, "x");
    g.table = pl_new_input(c, PL_TYPE_F32, 2, (int64_t[]){l->n_rot, n}, "table");
    g.slots = pl_new_input(c, PL_TYPE_I32, 1, (int64_t[]){n}, "slots");
    g.pos = pl_new_input(c, PL_TYPE_I32, 1, (int64_t[]){n}, "pos");
    g.tables = pl_new_input(c, PL_TYPE_I32, 2, (int64_t[]){PAGES, n}, "tables");

    pl_tensor *h = pl_rms_norm(c, g.x, norm[0], 1e-5f);
    pl_tensor *q = pl_reshape(c, pl_mul_mat_precise(c, w[0], h, l->precision), 3, (int64_t[]){l->d_head, l->n_head, n});
    pl_tensor *k = pl_reshape(c, pl_mul_mat_precise(c, w[1], h, l->precision), 3, (int64_t[]){l->d_head, l->n_head_kv, n});
    pl_tensor *v = pl_reshape(c, pl_mul_mat_precise(c, w[2], h, l->precision), 3, (int64_t[]){l->d_head, l->n_head_kv, n});
    q = pl_rope(c, q, g.table, l->n_rot, l->neox);
    k = pl_rope(c, k, g.table, l->n_rot, l->neox);
    kv = pl_kv_store(c, kv, k, v, g.slots);
    pl_tensor *a = pl_attention(c, q, kv, g.pos, g.tables, 1.0f / sqrtf((float)l->d_head));
    pl_tensor *x = pl_add(c, g.x, pl_mul_mat(c, w[3], a));
    h = pl_rms_norm(c, x, norm[1], 1e-5f);
    h = pl_swiglu(c, pl_mul_mat_precise(c, w[4], h, l->precision), pl_mul_mat_precise(c, w[5], h, l->precision));
    g.y = pl_add(c, x, pl_mul_mat_precise(c, w[6], h, l->precision));
    g.r = make_ready(m, c, &g.y, 1);
    return g;
}

/* All rows of all sequences, in micro-batches; y [SEQS][LEN][n_embd]. */
static void layer_run(const layer *l, way how, float *y)
{
    machine m = machine_start(how.isa, how.n_threads);
    pl_rng r;
    pl_rng_seed(&r, how.seed);
    void *weights[7];
    pl_layout layout = PL_LAYOUT_PLAIN;
    for (int i = 0; i < 7; i++) {
        weights[i] = l->plain[i];
        if (!how.packed) continue;
        layout = PL_LAYOUT_R16;
        weights[i] = pl_alloc(pl_type_row_size(l->w_type, l->ne[i][0]) * (size_t)l->ne[i][1]);
        m.b->vt->pack(m.b, layout, l->w_type, l->ne[i], l->plain[i], weights[i], 0, l->ne[i][1]);
    }
    size_t kv_size = pl_kv_block_bytes(&l->kv) * BLOCKS;
    void *kv = pl_alloc(kv_size);
    memset(kv, how.seed % 2 ? 0xff : 0, kv_size); /* NaN where nothing was stored */
    int32_t block[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) block[i] = i;
    if (how.seed)
        for (int i = BLOCKS - 1; i > 0; i--) {
            int j = (int)pl_rng_below(&r, (uint64_t)i + 1);
            int32_t t = block[i];
            block[i] = block[j];
            block[j] = t;
        }
    int order[SEQS * LEN], n_total = SEQS * LEN;
    for (int i = 0; i < n_total; i++) order[i] = how.mix ? i % SEQS * LEN + i / SEQS : i;
    for (int done = 0; done < n_total;) {
        int n = how.seed ? 1 + (int)pl_rng_below(&r, (uint64_t)how.rows_max) : how.rows_max;
        if (n > n_total - done) n = n_total - done;
        layer_graph g = layer_graph_make(l, &m, weights, layout, kv, n);
        for (int i = 0; i < n; i++) {
            int seq = order[done + i] / LEN, pos = order[done + i] % LEN;
            memcpy((float *)g.x->data + i * l->n_embd, l->x + order[done + i] * l->n_embd, (size_t)l->n_embd * sizeof(float));
            memcpy((float *)g.table->data + i * l->n_rot, l->table + pos * l->n_rot, (size_t)l->n_rot * sizeof(float));
            int32_t *table = (int32_t *)g.tables->data + i * PAGES;
            memcpy(table, block + seq * PAGES, PAGES * sizeof *table);
            for (int p = pos / PL_KV_PAGE + 1; p < PAGES; p++) table[p] = -1; /* may not be looked at */
            ((int32_t *)g.pos->data)[i] = pos;
            ((int32_t *)g.slots->data)[i] = table[pos / PL_KV_PAGE] * PL_KV_PAGE + pos % PL_KV_PAGE;
        }
        uint64_t before = pl_alloc_count();
        run_ready(&m, &g.r);
        ck_assert_uint_eq(pl_alloc_count(), before); /* computing allocates nothing */
        for (int i = 0; i < n; i++)
            memcpy(y + order[done + i] * l->n_embd, (float *)g.y->data + i * l->n_embd, (size_t)l->n_embd * sizeof(float));
        free_ready(&m, &g.r);
        pl_graph_ctx_free(g.c);
        done += n;
    }
    pl_free(kv);
    if (how.packed)
        for (int i = 0; i < 7; i++) pl_free(weights[i]);
    machine_stop(&m);
}

START_TEST(a_row_has_the_same_bits_whatever_runs_it_and_whatever_is_beside_it)
{
    layer l;
    layer_make(&l, (uint64_t)_i);
    size_t n = (size_t)(SEQS * LEN * l.n_embd);
    float *want = pl_alloc(n * sizeof *want), *got = pl_alloc(n * sizeof *got);
    layer_run(&l, (way){.isa = "portable", .n_threads = 1, .rows_max = SEQS * LEN}, want);
    for (size_t i = 0; i < n; i++) ck_assert(isfinite(want[i]));
    pl_isa isa;
    const char *word;
    for (int s = 0; set_at(s, &isa, &word); s++) {
        uint64_t seed = 10 * (uint64_t)_i + (uint64_t)s;
        const way ways[] = {
            {word, 1, SEQS * LEN, false, true, 0},        {word, 3, SEQS * LEN, true, false, 2 * seed + 1},
            {word, 2, 1, true, true, 0},                  {word, 2, 20, true, true, 2 * seed + 2},
            {word, 1, 7, false, false, 2 * seed + 3},
        };
        for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++) {
            layer_run(&l, ways[w], got);
            int64_t at = first_difference(got, want, (int64_t)n);
            ck_assert_msg(at < 0, "layer %d, %s, way %zu: sequence %d position %d column %d: %a, not %a", _i, word, w,
                          (int)(at / l.n_embd / LEN), (int)(at / l.n_embd % LEN), (int)(at % l.n_embd), (double)got[at], (double)want[at]);
        }
    }
    pl_free(want);
    pl_free(got);
    layer_free(&l);
}
END_TEST

/* out[n] = w [k, n] times x, in float64 */
static void times(const float *w, const double *x, int64_t k, int64_t n, double *out)
{
    for (int64_t i = 0; i < n; i++) {
        out[i] = 0;
        for (int64_t j = 0; j < k; j++) out[i] += w[i * k + j] * x[j];
    }
}

static void normed(const double *x, const float *w, int n, double *out)
{
    double s = 0;
    for (int i = 0; i < n; i++) s += x[i] * x[i];
    for (int i = 0; i < n; i++) out[i] = x[i] / sqrt(s / n + 1e-5) * w[i];
}

static void rotate(const layer *l, double *x, int n_head, int pos)
{
    for (int h = 0; h < n_head; h++)
        for (int j = 0; j < l->n_rot / 2; j++) {
            double *a = x + h * l->d_head + (l->neox ? j : 2 * j), *b = a + (l->neox ? l->n_rot / 2 : 1);
            double c = l->table[pos * l->n_rot + 2 * j], s = l->table[pos * l->n_rot + 2 * j + 1], a0 = *a;
            *a = a0 * c - *b * s;
            *b = a0 * s + *b * c;
        }
}

START_TEST(a_layer_agrees_with_float64)
{
    enum { WIDE = 512 };
    layer l;
    layer_make(&l, (uint64_t)_i);
    size_t n = (size_t)(SEQS * LEN * l.n_embd);
    float *got = pl_alloc(n * sizeof *got);
    layer_run(&l, (way){.isa = best_set(), .n_threads = 2, .rows_max = 33, .mix = true, .packed = true, .seed = 5}, got);
    static double k[LEN][WIDE], v[LEN][WIDE];
    int dq = l.d_head * l.n_head, dkv = l.d_head * l.n_head_kv;
    double dot = 0, gg = 0, ww = 0, worst = 0;
    for (int p = 0; p < LEN; p++) { /* the second sequence */
        double x[WIDE], h[WIDE], q[WIDE], a[WIDE] = {0}, t[WIDE], u[WIDE];
        const float *row = l.x + (LEN + p) * l.n_embd;
        for (int i = 0; i < l.n_embd; i++) x[i] = row[i];
        normed(x, l.norm[0], l.n_embd, h);
        times(l.w[0], h, l.n_embd, dq, q);
        times(l.w[1], h, l.n_embd, dkv, k[p]);
        times(l.w[2], h, l.n_embd, dkv, v[p]);
        rotate(&l, q, l.n_head, p);
        rotate(&l, k[p], l.n_head_kv, p);
        for (int e = 0; e < l.n_head; e++) {
            int kv = e / (l.n_head / l.n_head_kv) * l.d_head;
            double score[LEN], top = -INFINITY, sum = 0;
            for (int j = 0; j <= p; j++) {
                score[j] = 0;
                for (int d = 0; d < l.d_head; d++) score[j] += q[e * l.d_head + d] * k[j][kv + d];
                score[j] /= sqrt(l.d_head);
                top = fmax(top, score[j]);
            }
            for (int j = 0; j <= p; j++) sum += score[j] = exp(score[j] - top);
            for (int j = 0; j <= p; j++)
                for (int d = 0; d < l.d_head; d++) a[e * l.d_head + d] += score[j] / sum * v[j][kv + d];
        }
        times(l.w[3], a, dq, l.n_embd, t);
        for (int i = 0; i < l.n_embd; i++) x[i] += t[i];
        normed(x, l.norm[1], l.n_embd, h);
        times(l.w[4], h, l.n_embd, l.n_ff, t);
        times(l.w[5], h, l.n_embd, l.n_ff, u);
        for (int i = 0; i < l.n_ff; i++) u[i] *= t[i] / (1 + exp(-t[i]));
        times(l.w[6], u, l.n_ff, l.n_embd, t);
        for (int i = 0; i < l.n_embd; i++) {
            double want = x[i] + t[i], have = got[(LEN + p) * l.n_embd + i];
            dot += want * have;
            gg += have * have;
            ww += want * want;
            worst = fmax(worst, fabs(want - have));
        }
    }
    /* Float weights and cache leave rounding alone; a half-float cache and 8-bit activations add their own steps. */
    bool exact = l.kv.k_type == PL_TYPE_F32 && l.kv.v_type == PL_TYPE_F32 && (l.w_type == PL_TYPE_F32 || l.w_type == PL_TYPE_F16);
    bool rough = l.kv.k_type == PL_TYPE_Q4_0 || l.kv.v_type == PL_TYPE_Q4_0;
    ck_assert_double_ge(dot / sqrt(gg * ww), exact ? 0.9999999 : rough ? 0.99 : 0.9995);
    if (exact) ck_assert_double_le(worst, 1e-4);
    pl_free(got);
    layer_free(&l);
}
END_TEST

/* Attention with every option, on a cache whose pages behind a window are gone, against float64. */
START_TEST(attention_with_options_agrees_with_float64)
{
    enum { N = 150, PAGES_OF = (N + PL_KV_PAGE - 1) / PL_KV_PAGE };
    pl_rng r;
    pl_rng_seed(&r, 900 + (uint64_t)_i);
    static const int heads[][2] = {{6, 2}, {3, 3}, {8, 1}, {12, 4}};
    static const pl_type types[] = {PL_TYPE_F32, PL_TYPE_F16, PL_TYPE_BF16, PL_TYPE_Q8_0, PL_TYPE_Q4_0};
    const int *h = heads[pl_rng_below(&r, 4)];
    pl_kv_layout l = {types[pl_rng_below(&r, 5)], types[pl_rng_below(&r, 5)], h[1], 32 * (1 + (int)pl_rng_below(&r, 3)), 32 * (1 + (int)pl_rng_below(&r, 2))};
    if (_i % 2) l = (pl_kv_layout){PL_TYPE_F32, PL_TYPE_F32, h[1], 1 + (int)pl_rng_below(&r, 90), 1 + (int)pl_rng_below(&r, 90)};
    pl_attention_options a = {.scale = 0.3f,
                              .softcap = pl_rng_below(&r, 2) ? 0 : 2.5f,
                              .window = pl_rng_below(&r, 2) ? 0 : 1 + (int32_t)pl_rng_below(&r, 70),
                              .chunk = pl_rng_below(&r, 3) ? 0 : 1 + (int32_t)pl_rng_below(&r, 70),
                              .max_bias = pl_rng_below(&r, 3) ? 0 : 8};
    bool has_sinks = pl_rng_below(&r, 2), sees_all = _i % 7 == 6; /* as an encoder's rows do */
    if (sees_all) a.window = a.chunk = 0;
    machine m = machine_start(_i % 3 ? best_set() : "portable", 1 + _i % 3);
    void *cache = pl_alloc_aligned(64, pl_kv_block_bytes(&l) * PAGES_OF);
    memset(cache, 0xff, pl_kv_block_bytes(&l) * PAGES_OF); /* NaN wherever nothing was stored */
    static double k[N][4 * 96], v[N][4 * 96];
    int done = 0;
    while (done < N) {
        int n = sees_all ? N : 1 + (int)pl_rng_below(&r, (uint64_t)(N - done < 40 ? N - done : 40));
        pl_graph_ctx *c;
        OK(pl_graph_ctx_new(&c, err));
        pl_tensor *kv = pl_new_kv(c, &l, PAGES_OF, cache, "kv");
        pl_tensor *tk = pl_new_input(c, PL_TYPE_F32, 3, (int64_t[]){l.d_k, l.n_head, n}, "k"), *tv = pl_new_input(c, PL_TYPE_F32, 3, (int64_t[]){l.d_v, l.n_head, n}, "v");
        pl_tensor *q = pl_new_input(c, PL_TYPE_F32, 3, (int64_t[]){l.d_k, h[0], n}, "q"), *sinks = has_sinks ? pl_new_input(c, PL_TYPE_F32, 1, (int64_t[]){h[0]}, "sinks") : NULL;
        pl_tensor *pos = pl_new_input(c, PL_TYPE_I32, 1, (int64_t[]){n}, "pos"), *slots = pl_new_input(c, PL_TYPE_I32, 1, (int64_t[]){n}, "slots");
        pl_tensor *tables = pl_new_input(c, PL_TYPE_I32, 2, (int64_t[]){PAGES_OF, n}, "tables");
        pl_tensor *y = pl_attention_with(c, q, pl_kv_store(c, kv, tk, tv, slots), sinks, pos, tables, &a);
        ready g = make_ready(&m, c, &y, 1);
        fill(&r, tk);
        fill(&r, tv);
        fill(&r, q);
        if (sinks) fill(&r, sinks);
        for (int i = 0; i < n; i++) {
            int p = done + i, at = sees_all ? N - 1 : p;
            ((int32_t *)pos->data)[i] = at;
            ((int32_t *)slots->data)[i] = (p / PL_KV_PAGE + 3) % PAGES_OF * PL_KV_PAGE + p % PL_KV_PAGE;
            int first = a.window && at >= a.window ? at - a.window + 1 : 0;
            for (int page = 0; page < PAGES_OF; page++)
                ((int32_t *)tables->data)[i * PAGES_OF + page] = page < first / PL_KV_PAGE || page > at / PL_KV_PAGE ? -1 : (page + 3) % PAGES_OF;
            for (int e = 0; e < l.d_k * l.n_head; e++) k[p][e] = ((float *)tk->data)[i * l.d_k * l.n_head + e];
            for (int e = 0; e < l.d_v * l.n_head; e++) v[p][e] = ((float *)tv->data)[i * l.d_v * l.n_head + e];
        }
        run_ready(&m, &g);
        double rough = 0;
        const pl_type both[] = {l.k_type, l.v_type};
        for (int i = 0; i < 2; i++) rough += both[i] == PL_TYPE_Q4_0 ? 0.3 : both[i] == PL_TYPE_F32 ? 1e-6 : both[i] == PL_TYPE_F16 ? 1e-3 : 1.2e-2;
        for (int i = 0; i < n; i++)
            for (int e = 0; e < h[0]; e++) {
                int at = sees_all ? N - 1 : done + i, of = e / (h[0] / h[1]);
                double score[N], top = sinks ? ((float *)sinks->data)[e] : -INFINITY, sum, error = 0, norm = 0;
                int log2 = 1;
                while (2 * log2 <= h[0]) log2 *= 2;
                double slope = e < log2 ? pow(2, -8.0 / log2 * (e + 1)) : pow(2, -4.0 / log2 * (2 * (e - log2) + 1));
                for (int j = 0; j <= at; j++) {
                    bool seen = (!a.window || at - j < a.window) && (!a.chunk || j / a.chunk == at / a.chunk);
                    score[j] = seen ? 0 : -INFINITY;
                    if (!seen) continue;
                    for (int d = 0; d < l.d_k; d++) score[j] += ((float *)q->data)[(i * h[0] + e) * l.d_k + d] * k[j][of * l.d_k + d];
                    score[j] *= (double)a.scale;
                    if (a.softcap != 0) score[j] = a.softcap * tanh(score[j] / a.softcap);
                    if (a.max_bias != 0) score[j] += slope * (j - at);
                    top = fmax(top, score[j]);
                }
                sum = sinks ? exp(((float *)sinks->data)[e] - top) : 0;
                for (int j = 0; j <= at; j++) sum += score[j] = exp(score[j] - top);
                for (int d = 0; d < l.d_v; d++) {
                    double want = 0;
                    for (int j = 0; j <= at; j++) want += score[j] / sum * v[j][of * l.d_v + d];
                    double got = ((float *)y->data)[(i * h[0] + e) * l.d_v + d];
                    error += (got - want) * (got - want);
                    norm += want * want;
                }
                /* An error of K is one of the scores, several of them in size here. */
                ck_assert_msg(sqrt(error) <= rough * (sqrt(norm) * 3 + 0.3), "position %d head %d: off by %g of %g", done + i, e, sqrt(error), sqrt(norm));
            }
        free_ready(&m, &g);
        pl_graph_ctx_free(c);
        done += n;
    }
    pl_free(cache);
    machine_stop(&m);
}
END_TEST

START_TEST(rows_without_a_position_store_nothing_and_give_zeros)
{
    enum { D = 16 };
    machine m = machine_start(best_set(), 2);
    pl_graph_ctx *c;
    OK(pl_graph_ctx_new(&c, err));
    static float cache[2 * PL_KV_PAGE * D * 2];
    memset(cache, 0, sizeof cache);
    pl_tensor *kv = pl_new_kv(c, &(pl_kv_layout){PL_TYPE_F32, PL_TYPE_F32, 1, D, D}, 2, cache, "kv");
    pl_tensor *k = pl_new_input(c, PL_TYPE_F32, 3, (int64_t[]){D, 1, 2}, "k"), *slots = pl_new_input(c, PL_TYPE_I32, 1, (int64_t[]){2}, "slots");
    pl_tensor *pos = pl_new_input(c, PL_TYPE_I32, 1, (int64_t[]){2}, "pos"), *tables = pl_new_input(c, PL_TYPE_I32, 2, (int64_t[]){1, 2}, "tables");
    pl_tensor *y = pl_attention(c, k, pl_kv_store(c, kv, k, k, slots), pos, tables, 1);
    ready g = make_ready(&m, c, &y, 1);
    for (int i = 0; i < 2 * D; i++) ((float *)k->data)[i] = (float)(i + 1);
    memcpy(slots->data, (int32_t[]){-1, PL_KV_PAGE}, 8);
    memcpy(pos->data, (int32_t[]){-1, 0}, 8);
    memcpy(tables->data, (int32_t[]){-1, 1}, 8);
    run_ready(&m, &g);
    for (int i = 0; i < 2 * PL_KV_PAGE * D; i++) ck_assert_float_eq(cache[i], 0);
    for (int i = 0; i < D; i++) {
        ck_assert_float_eq(((float *)y->data)[i], 0);
        ck_assert_float_eq(((float *)y->data)[D + i], (float)(D + i + 1));
    }
    free_ready(&m, &g);
    pl_graph_ctx_free(c);
    machine_stop(&m);
}
END_TEST

Suite *ops_suite(void)
{
    Suite *s = suite_create("ops");
    TCase *c = tcase_create("operators");
    tcase_set_timeout(c, 240);
    tcase_add_loop_test(c, row_operators_agree_with_float64_on_any_strides, 0, 60);
    tcase_add_loop_test(c, rows_are_found_in_tables_of_any_type_and_layout, 0, 23);
    tcase_add_loop_test(c, products_of_experts_agree_with_float64_and_have_the_same_bits_in_any_batch, 0, 24);
    tcase_add_loop_test(c, batched_products_are_the_products_of_their_matrices, 0, 30);
    tcase_add_loop_test(c, rows_are_chosen_joined_and_gathered, 0, 40);
    tcase_add_loop_test(c, the_best_of_the_best_groups_are_chosen, 0, 20);
    tcase_add_loop_test(c, copies_convert_between_types, 0, 36);
    tcase_add_loop_test(c, a_row_has_the_same_bits_whatever_runs_it_and_whatever_is_beside_it, 0, 6);
    tcase_add_loop_test(c, a_layer_agrees_with_float64, 0, 12);
    tcase_add_loop_test(c, attention_with_options_agrees_with_float64, 0, 60);
    tcase_add_test(c, rows_without_a_position_store_nothing_and_give_zeros);
    suite_add_tcase(s, c);
    return s;
}
