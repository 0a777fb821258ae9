/* Fusion: which nodes become a group, that the plan keeps what a group reads, and that no bit changes. */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "engine/base/alloc.h"
#include "engine/base/rng.h"
#include "engine/cpu/cpu.h"
#include "engine/graph/fuse.h"

Suite *fuse_suite(void);

#define OK(call)                                                                                                       \
    do {                                                                                                               \
        pl_error err_ = {0}, *err = &err_;                                                                             \
        ck_assert_msg((call) == PL_OK, "%s: %s", #call, err_.text);                                                    \
    } while (0)

enum { ALIGN = 64, K = 64, HEADS = 2, D = K / HEADS, BLOCKS = 3 };

static const pl_kv_layout kv_layout = {PL_TYPE_F32, PL_TYPE_F32, HEADS, D, D};

static pl_graph_ctx *ctx(void)
{
    pl_graph_ctx *c;
    OK(pl_graph_ctx_new(&c, err));
    return c;
}

static pl_tensor *weight(pl_graph_ctx *c, pl_type type, int64_t k, int64_t m, const void *data)
{
    return pl_new_weight(c, type, PL_LAYOUT_PLAIN, 2, (int64_t[]){k, m}, data, "w");
}

static const pl_graph_group *group_of(const pl_graph *g, const pl_tensor *t)
{
    for (int k = 0; k < pl_graph_n_groups(g); k++) {
        const pl_graph_group *p = pl_graph_group_at(g, k);
        for (int i = p->first; i < p->first + p->n; i++)
            if (pl_graph_node(g, i) == t) return p;
    }
    ck_abort_msg("a node of no group");
}

static int lane_of(const pl_graph *g, const pl_tensor *t)
{
    for (int i = 0; i < pl_graph_n_nodes(g); i++)
        if (pl_graph_node(g, i) == t) return pl_graph_lane(g, i);
    return -1;
}

static pl_graph *fused(pl_graph_ctx *c, pl_tensor *out, unsigned kinds)
{
    pl_graph *g;
    OK(pl_graph_build(&g, c, &out, 1, err));
    pl_graph_fuse(g, kinds);
    return g;
}

START_TEST(a_graph_that_is_not_fused_has_a_group_for_each_node)
{
    pl_graph_ctx *c = ctx();
    pl_tensor *x = pl_new_input(c, PL_TYPE_F32, 2, (int64_t[]){K, 3}, "x");
    pl_tensor *y = pl_add(c, pl_mul_mat(c, weight(c, PL_TYPE_F32, K, K, NULL), x), pl_silu(c, x));
    pl_graph *g = fused(c, y, PL_FUSE_NONE);
    ck_assert_int_eq(pl_graph_n_groups(g), pl_graph_n_nodes(g));
    pl_graph_ctx_free(c);
}
END_TEST

START_TEST(gate_and_up_and_their_activation_are_one_group_and_one_lane)
{
    pl_graph_ctx *c = ctx();
    pl_tensor *x = pl_new_input(c, PL_TYPE_F32, 2, (int64_t[]){K, 3}, "x");
    pl_tensor *gate = pl_mul_mat(c, weight(c, PL_TYPE_Q8_0, K, 160, NULL), x);
    pl_tensor *up = pl_mul_mat(c, weight(c, PL_TYPE_Q4_0, K, 160, NULL), x), *y = pl_swiglu(c, gate, up);
    pl_tensor *out = pl_mul_mat(c, weight(c, PL_TYPE_Q4_0, 160, K, NULL), y);
    pl_graph *g = fused(c, out, PL_FUSE_ALL);
    ck_assert_ptr_eq(group_of(g, gate), group_of(g, y));
    ck_assert_ptr_eq(group_of(g, gate), group_of(g, up));
    ck_assert_ptr_ne(group_of(g, gate), group_of(g, out));
    ck_assert_int_eq(group_of(g, y)->n_products, 2);
    ck_assert_str_eq(pl_fusion_name(group_of(g, y)->kind), "results");
    ck_assert_int_eq(lane_of(g, gate), 0);
    ck_assert_int_eq(lane_of(g, up), 0);
    ck_assert_int_eq(lane_of(g, y), 0);
    pl_graph_ctx_free(c);
}
END_TEST

START_TEST(biases_go_with_their_products_though_views_and_rotations_stand_between)
{
    pl_graph_ctx *c = ctx();
    pl_tensor *x = pl_new_input(c, PL_TYPE_F32, 2, (int64_t[]){K, 3}, "x");
    pl_tensor *table = pl_new_input(c, PL_TYPE_F32, 2, (int64_t[]){D, 3}, "table");
    pl_tensor *p[3], *biased[3], *r[3];
    for (int i = 0; i < 3; i++) {
        p[i] = pl_mul_mat(c, weight(c, PL_TYPE_F16, K, K, NULL), x);
        biased[i] = pl_add(c, p[i], weight(c, PL_TYPE_F32, K, 1, NULL));
        r[i] = pl_rope(c, pl_reshape(c, biased[i], 3, (int64_t[]){D, HEADS, 3}), table, D, false);
    }
    pl_tensor *out = pl_add(c, pl_add(c, r[0], r[1]), r[2]);
    pl_graph *g = fused(c, out, PL_FUSE_ALL);
    for (int i = 0; i < 3; i++) {
        ck_assert_ptr_eq(group_of(g, p[i]), group_of(g, p[0]));
        ck_assert_ptr_eq(group_of(g, biased[i]), group_of(g, p[0]));
        ck_assert_int_eq(lane_of(g, biased[i]), i);
        ck_assert_ptr_ne(group_of(g, r[i]), group_of(g, p[0]));
    }
    ck_assert_int_eq(group_of(g, p[0])->n_products, 3);
    pl_graph_ctx_free(c);
}
END_TEST

START_TEST(a_sum_and_its_norm_are_one_group_but_not_with_another_row)
{
    pl_graph_ctx *c = ctx();
    pl_tensor *x = pl_new_input(c, PL_TYPE_F32, 2, (int64_t[]){K, 3}, "x");
    pl_tensor *y = pl_new_input(c, PL_TYPE_F32, 2, (int64_t[]){K, 3}, "y");
    pl_tensor *sum = pl_add(c, x, y), *norm = pl_rms_norm(c, sum, weight(c, PL_TYPE_F32, K, 1, NULL), 1e-5f);
    pl_tensor *first_row = pl_view(c, norm, 2, (int64_t[]){K, 1}, norm->nb, 0);
    pl_tensor *out = pl_mul(c, norm, first_row); /* every row needs row 0 of what the group makes */
    pl_graph *g = fused(c, out, PL_FUSE_ALL);
    ck_assert_ptr_eq(group_of(g, sum), group_of(g, norm));
    ck_assert_str_eq(pl_fusion_name(group_of(g, sum)->kind), "rows");
    ck_assert_int_eq(group_of(g, sum)->n_rows, 3);
    ck_assert_ptr_ne(group_of(g, out), group_of(g, norm));
    pl_graph_ctx_free(c);
}
END_TEST

START_TEST(rotations_go_with_the_store_of_k_and_v)
{
    pl_graph_ctx *c = ctx();
    pl_tensor *q = pl_new_input(c, PL_TYPE_F32, 3, (int64_t[]){D, HEADS, 5}, "q");
    pl_tensor *k = pl_new_input(c, PL_TYPE_F32, 3, (int64_t[]){D, HEADS, 5}, "k");
    pl_tensor *v = pl_new_input(c, PL_TYPE_F32, 3, (int64_t[]){D, HEADS, 5}, "v");
    pl_tensor *table = pl_new_input(c, PL_TYPE_F32, 2, (int64_t[]){D, 5}, "table");
    pl_tensor *slots = pl_new_input(c, PL_TYPE_I32, 1, (int64_t[]){5}, "slots"), *pos = pl_new_input(c, PL_TYPE_I32, 1, (int64_t[]){5}, "pos");
    pl_tensor *tables = pl_new_input(c, PL_TYPE_I32, 2, (int64_t[]){1, 5}, "tables");
    static float kv_bytes[2 * PL_KV_PAGE * K];
    pl_tensor *kv = pl_new_kv(c, &kv_layout, 1, kv_bytes, "kv");
    pl_tensor *kr = pl_rope(c, k, table, D, true), *store = pl_kv_store(c, kv, kr, v, slots), *qr = pl_rope(c, q, table, D, true);
    pl_tensor *out = pl_attention(c, qr, store, pos, tables, 1);
    pl_graph *g = fused(c, out, PL_FUSE_ALL);
    ck_assert_ptr_eq(group_of(g, kr), group_of(g, store));
    ck_assert_ptr_eq(group_of(g, qr), group_of(g, store));
    ck_assert_ptr_ne(group_of(g, out), group_of(g, store));
    pl_graph_ctx_free(c);
}
END_TEST

START_TEST(a_result_does_not_take_the_bytes_that_other_threads_still_multiply)
{
    pl_graph_ctx *c = ctx();
    pl_tensor *x = pl_scale(c, pl_new_input(c, PL_TYPE_F32, 2, (int64_t[]){K, 3}, "x"), 2);
    pl_tensor *y = pl_add(c, x, pl_mul_mat(c, weight(c, PL_TYPE_F32, K, K, NULL), x));
    pl_tensor *out = pl_silu(c, y);
    size_t peak;
    pl_graph *g = fused(c, out, PL_FUSE_ALL);
    ck_assert_ptr_eq(group_of(g, y), group_of(g, out));
    OK(pl_graph_plan(g, ALIGN, &peak, err));
    uint8_t *base = pl_alloc_aligned(ALIGN, peak);
    pl_graph_bind(g, base);
    ck_assert_ptr_ne(y->data, x->data);
    ck_assert_ptr_ne(out->data, x->data);
    pl_free(base);
    pl_graph_ctx_free(c);
}
END_TEST

/* --- Random graphs --- */

enum { STEPS = 40, POOL_MAX = STEPS + 3, N_WEIGHTS = 6 };

typedef struct data {
    uint8_t w[N_WEIGHTS][K * K * 4];
    pl_type type[N_WEIGHTS];
    float bias[K], norm[K], table[D * 64];
    float kv[2 * PL_KV_PAGE * K * BLOCKS];
} data;

static void data_make(data *d, pl_rng *r)
{
    static const pl_type types[] = {PL_TYPE_F32, PL_TYPE_F16, PL_TYPE_Q8_0, PL_TYPE_Q4_0, PL_TYPE_Q4_1};
    static float x[K * K];
    for (int i = 0; i < N_WEIGHTS; i++) {
        d->type[i] = types[pl_rng_below(r, i < 3 ? 2 : 5)];
        for (int j = 0; j < K * K; j++) x[j] = (float)pl_rng_gauss(r) / 8;
        pl_type_get(d->type[i])->from_float(x, d->w[i], K * K);
    }
    for (int i = 0; i < K; i++) {
        d->bias[i] = (float)pl_rng_gauss(r);
        d->norm[i] = (float)pl_rng_gauss(r);
    }
    for (int i = 0; i < D * 64; i++) d->table[i] = (float)pl_rng_gauss(r);
    memset(d->kv, 0, sizeof d->kv);
}

typedef struct made {
    pl_graph_ctx *c;
    pl_tensor *inputs[3], *table, *slots, *pos, *tables, *out;
} made;

/* All tensors are [K, n]. The same seed makes the same graph. */
static made random_graph(data *d, uint64_t seed, int64_t n)
{
    pl_rng r;
    pl_rng_seed(&r, seed);
    made m = {.c = ctx()};
    pl_graph_ctx *c = m.c;
    pl_tensor *pool[POOL_MAX + 8], *w[N_WEIGHTS];
    int64_t ne[2] = {K, n}, heads[3] = {D, HEADS, n};
    int n_pool = 0;
    for (int i = 0; i < N_WEIGHTS; i++) w[i] = weight(c, d->type[i], K, K, d->w[i]);
    pl_tensor *bias = weight(c, PL_TYPE_F32, K, 1, d->bias), *norm = weight(c, PL_TYPE_F32, K, 1, d->norm);
    pl_tensor *kv = pl_new_kv(c, &kv_layout, BLOCKS, d->kv, "kv");
    for (; n_pool < 3; n_pool++) pool[n_pool] = m.inputs[n_pool] = pl_new_input(c, PL_TYPE_F32, 2, ne, "in");
    m.table = pl_new_input(c, PL_TYPE_F32, 2, (int64_t[]){D, n}, "table");
    m.slots = pl_new_input(c, PL_TYPE_I32, 1, &n, "slots");
    m.pos = pl_new_input(c, PL_TYPE_I32, 1, &n, "pos");
    m.tables = pl_new_input(c, PL_TYPE_I32, 2, (int64_t[]){BLOCKS, n}, "tables");
    while (n_pool < POOL_MAX) {
        int back = (int)pl_rng_below(&r, 6) ? 3 : n_pool;
        pl_tensor *a = pool[n_pool - 1 - (int)pl_rng_below(&r, (uint64_t)(back < n_pool ? back : n_pool))];
        pl_tensor *b = pool[n_pool - 1 - (int)pl_rng_below(&r, (uint64_t)(back < n_pool ? back : n_pool))];
        pl_tensor *w0 = w[pl_rng_below(&r, N_WEIGHTS)], *w1 = w[pl_rng_below(&r, N_WEIGHTS)], *t;
        switch (pl_rng_below(&r, 12)) {
        case 0: t = pl_mul_mat(c, w0, a); break;
        case 1: t = pl_add(c, pl_mul_mat(c, w0, a), bias); break;
        case 2: t = pl_add(c, a, pl_mul_mat(c, w0, a)); break;
        case 3: t = pl_swiglu(c, pl_mul_mat(c, w0, a), pl_mul_mat(c, w1, a)); break;
        case 4: t = pl_swiglu(c, pl_add(c, pl_mul_mat_precise(c, w0, a, PL_TWO_TERMS), bias), pl_mul_mat_precise(c, w1, a, PL_TWO_TERMS)); break;
        case 5: t = pl_rms_norm(c, pl_add(c, a, b), norm, 1e-3f); break;
        case 6: t = pl_mul(c, a, pl_silu(c, b)); break;
        case 7: /* a row of b over all of a */
            t = pl_add(c, a, pl_view(c, b, 2, (int64_t[]){K, 1}, b->nb, pl_rng_below(&r, (uint64_t)n) * b->nb[1]));
            break;
        case 8: t = pl_reshape(c, pl_rope(c, pl_reshape(c, a, 3, heads), m.table, D, seed % 2), 2, ne); break;
        case 9: {
            pl_tensor *q = pl_rope(c, pl_reshape(c, pl_mul_mat(c, w0, a), 3, heads), m.table, D, false);
            pl_tensor *k = pl_rope(c, pl_reshape(c, pl_mul_mat(c, w1, a), 3, heads), m.table, D, false);
            kv = pl_kv_store(c, kv, k, pl_reshape(c, pl_add(c, pl_mul_mat(c, w[0], a), bias), 3, heads), m.slots);
            t = pl_attention(c, q, kv, m.pos, m.tables, 0.2f);
            break;
        }
        case 10: t = pl_copy(c, a, PL_TYPE_F32); break;
        default: t = pl_rms_norm(c, pl_scale(c, pl_mul_mat(c, w0, a), 0.5f), NULL, 1e-3f); break;
        }
        ck_assert_ptr_nonnull(t);
        if (pl_rng_below(&r, 12) == 0) pl_set_output(t);
        pool[n_pool++] = t;
    }
    m.out = pl_add(c, pool[n_pool - 1], pool[n_pool - 2]);
    return m;
}

static pl_tensor *root_of(pl_tensor *t) { return t->view_root ? t->view_root : t; }

/* Told again from the groups alone: a root lives from the group that makes it to the last that reads it. Two that live at once
 * share no bytes; within a group one may take the place of another that the group's members read nowhere else. */
static void check_no_overlap(pl_graph *g)
{
    int n = pl_graph_n_nodes(g), total = n + pl_graph_n_leaves(g);
    int *group = pl_alloc((size_t)n * sizeof *group), *born = pl_alloc((size_t)total * sizeof *born), *dies = pl_alloc((size_t)total * sizeof *dies);
    for (int k = 0; k < pl_graph_n_groups(g); k++)
        for (int i = pl_graph_group_at(g, k)->first, end = i + pl_graph_group_at(g, k)->n; i < end; i++) group[i] = k;
#define AT(i) ((i) < n ? pl_graph_node(g, i) : pl_graph_leaf(g, (i) - n))
    for (int i = 0; i < total; i++) {
        born[i] = i < n ? group[i] : -1;
        dies[i] = born[i];
        if (i >= n || AT(i)->flags & PL_TENSOR_OUTPUT) dies[i] = n;
        for (int j = 0; j < n; j++)
            for (int s = 0; s < PL_MAX_SRC; s++)
                if (AT(j)->src[s] && root_of(AT(j)->src[s]) == AT(i) && dies[i] < group[j]) dies[i] = group[j];
        for (int j = 0; j < n; j++)
            if (root_of(AT(j)) == AT(i) && AT(j)->flags & PL_TENSOR_OUTPUT) dies[i] = n;
    }
    for (int i = 0; i < total; i++)
        for (int j = 0; j < total; j++) {
            pl_tensor *a = AT(i), *b = AT(j);
            if (i == j || a->view_root || b->view_root || (a->flags | b->flags) & PL_TENSOR_WEIGHT) continue;
            if (born[i] > dies[j] || born[j] > dies[i]) continue;
            uint8_t *a0 = a->data, *a1 = a0 + pl_tensor_bytes(a), *b0 = b->data, *b1 = b0 + pl_tensor_bytes(b);
            if (a1 <= b0 || b1 <= a0) continue;
            ck_assert(a0 == b0 && a1 == b1); /* in place: made from each other, and the older read by its maker alone */
            int older = i, newer = j; /* the other order comes round as well */
            if (i >= n || (j < n && i > j)) {
                older = j;
                newer = i;
            }
            int readers = 0; /* that do not themselves stand between the two, in place */
            for (int k = 0; k < newer && newer < n; k++)
                for (int s = 0; s < PL_MAX_SRC; s++)
                    if (group[k] == group[newer] && AT(k)->op != PL_OP_VIEW && AT(k)->data != b->data && AT(k)->src[s] &&
                        root_of(AT(k)->src[s]) == AT(older))
                        readers++;
            if (newer < n && older < n && dies[older] == group[newer]) ck_assert_int_eq(readers, 0);
        }
#undef AT
    pl_free(group);
    pl_free(born);
    pl_free(dies);
}

typedef struct machine {
    pl_pool *pool;
    pl_backend *b;
} machine;

static void run(const machine *m, data *d, uint64_t seed, int64_t n, unsigned kinds, float *result)
{
    memset(d->kv, 0, sizeof d->kv);
    made g = random_graph(d, seed, n);
    pl_graph *graph = fused(g.c, g.out, kinds);
    size_t peak;
    OK(pl_graph_plan(graph, ALIGN, &peak, err));
    pl_backend_buffer *buf;
    OK(m->b->vt->buffer_new(m->b, peak, &buf, err));
    pl_graph_bind(graph, m->b->vt->buffer_base(buf));
    check_no_overlap(graph);
    pl_rng r;
    pl_rng_seed(&r, 77);
    for (int i = 0; i < 3; i++)
        for (int64_t j = 0; j < K * n; j++) {
            float f = (float)pl_rng_gauss(&r);
            if (g.inputs[i]->data) ((float *)g.inputs[i]->data)[j] = f;
        }
    if (g.table->data) memcpy(g.table->data, d->table, (size_t)(D * n) * sizeof(float));
    for (int32_t i = 0; i < n; i++) {
        if (g.slots->data) ((int32_t *)g.slots->data)[i] = i;
        if (g.pos->data) ((int32_t *)g.pos->data)[i] = i;
        for (int32_t p = 0; p < BLOCKS && g.tables->data; p++) ((int32_t *)g.tables->data)[i * BLOCKS + p] = p;
    }
    void *scratch = pl_alloc_aligned(64, m->b->vt->scratch(m->b, graph));
    OK(m->b->vt->compute(m->b, graph, scratch, err));
    memcpy(result, g.out->data, (size_t)(K * n) * sizeof *result);
    pl_free(scratch);
    m->b->vt->buffer_free(m->b, buf);
    pl_graph_ctx_free(g.c);
}

START_TEST(fused_or_not_random_graphs_give_the_same_bits)
{
    static data d;
    static float want[K * 64], got[K * 64];
    static const int64_t sizes[] = {1, 2, 7, 40};
    pl_rng r;
    pl_rng_seed(&r, (uint64_t)_i);
    data_make(&d, &r);
    machine m;
    OK(pl_pool_new(&m.pool, (pl_pool_options){.n_threads = 1 + _i % 3, .poll = -1}, err));
    OK(pl_cpu_backend_new(&m.b, m.pool, err));
    int64_t n = sizes[_i / 3 % 4];
    run(&m, &d, (uint64_t)_i, n, PL_FUSE_NONE, want);
    for (int64_t i = 0; i < K * n; i++) ck_assert(!isnan(want[i]));
    for (unsigned kinds = 1; kinds <= PL_FUSE_ALL; kinds++) {
        run(&m, &d, (uint64_t)_i, n, kinds, got);
        ck_assert_msg(memcmp(want, got, (size_t)(K * n) * sizeof *got) == 0, "seed %d, %d rows, %d threads, fusions %u", _i, (int)n, 1 + _i % 3, kinds);
    }
    m.b->vt->free(m.b);
    pl_pool_free(m.pool);
}
END_TEST

Suite *fuse_suite(void)
{
    Suite *s = suite_create("fuse");
    TCase *c = tcase_create("fuse");
    tcase_add_test(c, a_graph_that_is_not_fused_has_a_group_for_each_node);
    tcase_add_test(c, gate_and_up_and_their_activation_are_one_group_and_one_lane);
    tcase_add_test(c, biases_go_with_their_products_though_views_and_rotations_stand_between);
    tcase_add_test(c, a_sum_and_its_norm_are_one_group_but_not_with_another_row);
    tcase_add_test(c, rotations_go_with_the_store_of_k_and_v);
    tcase_add_test(c, a_result_does_not_take_the_bytes_that_other_threads_still_multiply);
    tcase_add_loop_test(c, fused_or_not_random_graphs_give_the_same_bits, 0, 120);
    suite_add_tcase(s, c);
    return s;
}
