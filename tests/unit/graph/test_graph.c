/* The graph's order, views and memory plan. */
#include <check.h>
#include <stdlib.h>

#include "engine/base/alloc.h"
#include "engine/base/rng.h"
#include "engine/cpu/cpu.h"
#include "engine/graph/fuse.h"
#include "engine/graph/scratch.h"

Suite *graph_suite(void);

#define OK(call)                                                                                                       \
    do {                                                                                                               \
        pl_error err_ = {0}, *err = &err_;                                                                             \
        ck_assert_msg((call) == PL_OK, "%s: %s", #call, err_.text);                                                    \
    } while (0)

enum { ALIGN = 64 };

static pl_graph_ctx *ctx(void)
{
    pl_graph_ctx *c;
    OK(pl_graph_ctx_new(&c, err));
    return c;
}

static pl_tensor *input(pl_graph_ctx *c, int64_t ne0, int64_t ne1)
{
    return pl_new_input(c, PL_TYPE_F32, 2, (int64_t[]){ne0, ne1}, "in");
}

static size_t plan(pl_graph_ctx *c, pl_graph **g, pl_tensor *out)
{
    size_t peak;
    OK(pl_graph_build(g, c, &out, 1, err));
    OK(pl_graph_plan(*g, ALIGN, &peak, err));
    return peak;
}

START_TEST(nodes_come_after_their_sources_and_once)
{
    pl_graph_ctx *c = ctx();
    pl_tensor *a = input(c, 16, 2), *b = pl_silu(c, a), *d = pl_add(c, b, pl_scale(c, b, 2)), *unused = pl_silu(c, d);
    pl_graph *g;
    plan(c, &g, d);
    ck_assert_int_eq(pl_graph_n_leaves(g), 1);
    ck_assert_ptr_eq(pl_graph_leaf(g, 0), a);
    ck_assert_int_eq(pl_graph_n_nodes(g), 3);
    ck_assert_ptr_eq(pl_graph_node(g, 0), b);
    ck_assert_ptr_eq(pl_graph_node(g, 2), d);
    ck_assert_uint_eq(d->flags & PL_TENSOR_OUTPUT, PL_TENSOR_OUTPUT);
    ck_assert_ptr_null(unused->data);
    pl_graph_ctx_free(c);
}
END_TEST

/* As in a layer: q, k and v of one x, with rotations of q between them in the order of the walk. */
START_TEST(products_of_the_same_tensor_follow_each_other)
{
    pl_graph_ctx *c = ctx();
    static const float bytes[16 * 16];
    pl_tensor *w[4];
    for (int i = 0; i < 4; i++)
        w[i] = pl_new_weight(c, PL_TYPE_F32, PL_LAYOUT_PLAIN, 2, (int64_t[]){16, 16}, bytes, "w");
    pl_tensor *x = pl_silu(c, input(c, 16, 2)), *q = pl_mul_mat(c, w[0], x), *k = pl_mul_mat(c, w[1], x), *v = pl_mul_mat(c, w[2], x);
    pl_tensor *other = pl_mul_mat(c, w[3], q);
    pl_tensor *out = pl_add(c, pl_add(c, pl_silu(c, other), pl_silu(c, k)), pl_silu(c, v));
    pl_graph *g;
    plan(c, &g, out);
    ck_assert_int_eq(pl_graph_n_nodes(g), 10);
    ck_assert_ptr_eq(pl_graph_node(g, 1), q);
    ck_assert_ptr_eq(pl_graph_node(g, 2), k);
    ck_assert_ptr_eq(pl_graph_node(g, 3), v);
    ck_assert_ptr_eq(pl_graph_node(g, 4), other); /* a product of what a product gave */
    pl_graph_ctx_free(c);
}
END_TEST

START_TEST(a_deep_chain_needs_no_deep_stack)
{
    pl_graph_ctx *c = ctx();
    pl_tensor *t = input(c, 16, 1);
    for (int i = 0; i < 200000; i++) t = pl_scale(c, t, 1);
    pl_graph *g;
    /* The input, which stays, and one buffer that is scaled in place. */
    ck_assert_uint_eq(plan(c, &g, t), 128);
    ck_assert_int_eq(pl_graph_n_nodes(g), 200000);
    pl_graph_ctx_free(c);
}
END_TEST

START_TEST(a_view_of_a_view_points_at_the_root)
{
    pl_graph_ctx *c = ctx();
    pl_tensor *a = input(c, 8, 6);
    pl_tensor *v = pl_view(c, a, 2, (int64_t[]){4, 3}, (size_t[]){4, 32}, 40);
    pl_tensor *w = pl_permute(c, pl_view(c, v, 2, (int64_t[]){2, 2}, (size_t[]){4, 32}, 36), 1, 0, 2, 3);
    ck_assert_ptr_eq(w->view_root, a);
    ck_assert_uint_eq(w->view_offset, 76);
    ck_assert_uint_eq(w->nb[0], 32);
    ck_assert_uint_eq(w->nb[1], 4);
    ck_assert(!pl_tensor_is_contiguous(w) && !pl_tensor_is_contiguous(v) && pl_tensor_is_contiguous(a));
    ck_assert_uint_eq(pl_tensor_bytes(v), 2 * 32 + 16);
    pl_tensor *out = pl_copy(c, w, PL_TYPE_F32);
    pl_graph *g;
    size_t peak = plan(c, &g, out);
    uint8_t *base = pl_alloc_aligned(ALIGN, peak);
    pl_graph_bind(g, base);
    ck_assert_ptr_eq(w->data, (uint8_t *)a->data + 76);
    pl_free(base);
    pl_graph_ctx_free(c);
}
END_TEST

START_TEST(a_source_that_lives_on_is_not_overwritten)
{
    pl_graph_ctx *c = ctx();
    pl_tensor *a = pl_scale(c, input(c, 16, 1), 2);
    pl_tensor *b = pl_silu(c, a), *d = pl_add(c, a, b); /* a is needed again; b may be replaced by d */
    pl_graph *g;
    size_t peak = plan(c, &g, d);
    ck_assert_uint_eq(peak, 3 * 64);
    uint8_t base[64];
    pl_graph_bind(g, base);
    ck_assert_ptr_ne(a->data, b->data);
    ck_assert(d->data == a->data || d->data == b->data);
    pl_graph_ctx_free(c);
}
END_TEST

START_TEST(a_source_read_in_another_order_is_not_overwritten)
{
    pl_graph_ctx *c = ctx();
    pl_tensor *a = pl_scale(c, input(c, 16, 16), 2);
    pl_tensor *row = pl_view(c, a, 2, (int64_t[]){16, 1}, (size_t[]){4, 64}, 64);
    pl_tensor *d = pl_add(c, a, row); /* row 1 of a is added to all rows: in place it would change under the reader */
    pl_graph *g;
    plan(c, &g, d);
    uint8_t base[64];
    pl_graph_bind(g, base);
    ck_assert_ptr_ne(d->data, a->data);
    pl_graph_ctx_free(c);
}
END_TEST

START_TEST(free_neighbours_merge_and_the_end_grows)
{
    pl_graph_ctx *c = ctx();
    pl_tensor *in = input(c, 16, 1);
    /* Two small results die together; the next one is as large as both, and takes their place. */
    pl_tensor *a = pl_copy(c, in, PL_TYPE_F32), *b = pl_copy(c, in, PL_TYPE_F32);
    pl_tensor *w = pl_new_weight(c, PL_TYPE_F32, PL_LAYOUT_PLAIN, 2, (int64_t[]){16, 32}, NULL, "w");
    pl_tensor *s = pl_mul_mat(c, w, pl_add(c, a, b)); /* [32, 1], 128 bytes */
    pl_tensor *out = pl_copy(c, s, PL_TYPE_F32);
    pl_graph *g;
    size_t peak = plan(c, &g, out);
    /* in 64 | a, then the sum 64 | b 64, free | s from b's place on: 128 | out: a's place is too small, so the end grows: 128 */
    ck_assert_uint_eq(peak, 64 + 64 + 128 + 128);
    pl_graph_ctx_free(c);
}
END_TEST

START_TEST(weights_take_no_bytes_of_the_plan)
{
    pl_graph_ctx *c = ctx();
    static float w[64];
    pl_tensor *weight = pl_new_weight(c, PL_TYPE_F32, PL_LAYOUT_PLAIN, 1, (int64_t[]){64}, w, "norm");
    pl_tensor *out = pl_rms_norm(c, input(c, 64, 1), weight, 1e-5f);
    pl_graph *g;
    ck_assert_uint_eq(plan(c, &g, out), 512);
    uint8_t base[64];
    pl_graph_bind(g, base);
    ck_assert_ptr_eq(weight->data, w);
    pl_buf text = {0};
    OK(pl_graph_print(g, PL_GRAPH_TEXT, &text, err));
    ck_assert_ptr_nonnull(strstr(pl_buf_cstr(&text), "norm none F32 [64, 1, 1, 1]"));
    ck_assert_ptr_nonnull(strstr(pl_buf_cstr(&text), "rms_norm F32 [64, 1, 1, 1] <- %1 %0 at 256"));
    pl_buf_fini(&text);
    pl_graph_ctx_free(c);
}
END_TEST

START_TEST(a_graph_is_drawn_with_its_groups_and_names_cannot_leave_their_quotes)
{
    pl_graph_ctx *c = ctx();
    pl_tensor *x = input(c, 64, 2);
    pl_tensor *w = pl_new_weight(c, PL_TYPE_F32, PL_LAYOUT_PLAIN, 2, (int64_t[]){64, 64}, NULL, "evil\"]; x [label=\"\\");
    pl_tensor *out = pl_silu(c, pl_mul_mat(c, w, x));
    pl_graph *g;
    size_t peak;
    OK(pl_graph_build(&g, c, &out, 1, err));
    pl_graph_fuse(g, PL_FUSE_ALL);
    OK(pl_graph_plan(g, ALIGN, &peak, err));
    pl_buf text = {0};
    OK(pl_graph_print(g, PL_GRAPH_DOT, &text, err));
    const char *dot = pl_buf_cstr(&text);
    ck_assert_ptr_nonnull(strstr(dot, "label=\"evil]; x [label=\\nF32 [64, 64, 1, 1]\", shape=plaintext"));
    ck_assert_ptr_nonnull(strstr(dot, "subgraph cluster_0 {\n    label=\"group 0: results\""));
    ck_assert_ptr_nonnull(strstr(dot, "t2 [label=\"mul_mat\\nF32 [64, 2, 1, 1]\\nat "));
    ck_assert_ptr_nonnull(strstr(dot, "t2 -> t3;"));
    pl_buf_reset(&text);
    OK(pl_graph_print(g, PL_GRAPH_TEXT, &text, err));
    ck_assert_ptr_nonnull(strstr(pl_buf_cstr(&text), "%3 - silu F32 [64, 2, 1, 1] <- %2 at 512 | group 0, results\n"));
    pl_buf_fini(&text);
    pl_graph_ctx_free(c);
}
END_TEST

START_TEST(missing_memory_is_a_status_at_every_allocation)
{
    uint64_t n;
    for (n = 1;; n++) {
        pl_alloc_fail_at(n);
        pl_graph_ctx *c = NULL;
        pl_graph *g;
        size_t peak;
        pl_error err = {0};
        pl_status s = pl_graph_ctx_new(&c, &err);
        if (s == PL_OK) {
            pl_tensor *t = input(c, 16, 1);
            for (int i = 0; i < 500; i++) t = pl_silu(c, t);
            s = pl_graph_build(&g, c, &t, 1, &err);
            if (s == PL_OK) s = pl_graph_plan(g, ALIGN, &peak, &err);
        }
        pl_graph_ctx_free(c);
        if (s == PL_OK) break;
        ck_assert_int_eq(s, PL_ERR_NO_MEMORY);
        ck_assert_uint_gt(strlen(err.text), 0);
    }
    pl_alloc_fail_at(0);
    ck_assert_uint_gt(n, 5);
}
END_TEST

/* --- Random graphs --- */

enum { NODES = 60, POOL = NODES + 3 };

/* The same graph for the same seed; keep: every tensor is an output, so nothing is reused. */
static pl_tensor *random_graph(pl_graph_ctx *c, uint64_t seed, bool keep, pl_tensor **all, int *n_all)
{
    pl_rng r;
    pl_rng_seed(&r, seed);
    pl_tensor *pool[POOL];
    int n = 0;
    int64_t ne[2] = {4 * (1 + (int64_t)pl_rng_below(&r, 20)), 1 + (int64_t)pl_rng_below(&r, 4)};
    for (; n < 3; n++) pool[n] = input(c, ne[0], ne[1]);
    for (; n < POOL; n++) {
        /* Mostly recent ones, so that lives end; now and then an old one. All in the pool have the same shape. */
        int back = (int)pl_rng_below(&r, 8) ? 4 : n;
        pl_tensor *a = pool[n - 1 - (int)pl_rng_below(&r, (uint64_t)(back < n ? back : n))];
        pl_tensor *b = pool[n - 1 - (int)pl_rng_below(&r, (uint64_t)(back < n ? back : n))];
        pl_tensor *t = NULL;
        switch (pl_rng_below(&r, 10)) {
        case 0: t = pl_scale(c, a, 0.5f); break;
        case 1: t = pl_silu(c, a); break;
        case 2: t = pl_swiglu(c, a, b); break;
        case 3: t = pl_rms_norm(c, a, NULL, 1e-3f); break;
        case 4: t = pl_mul(c, a, b); break;
        case 5: t = pl_copy(c, a, PL_TYPE_F32); break;
        case 6: /* a row of b over all of a */
            t = pl_add(c, a, pl_view(c, b, 2, (int64_t[]){ne[0], 1}, b->nb, pl_rng_below(&r, (uint64_t)ne[1]) * b->nb[1]));
            break;
        case 7: /* through another shape and back, in place where it may be */
            t = pl_reshape(c, pl_silu(c, pl_reshape(c, a, 1, (int64_t[]){ne[0] * ne[1]})), 2, ne);
            break;
        case 8: /* half a row, wide again by a smaller and a larger tensor */
        {
            pl_tensor *half = pl_copy(c, pl_view(c, a, 2, (int64_t[]){ne[0] / 2, ne[1]}, a->nb, 8), PL_TYPE_F32);
            t = pl_add(c, b, pl_view(c, half, 2, (int64_t[]){1, ne[1]}, half->nb, 4));
            break;
        }
        default: t = pl_add(c, a, b);
        }
        ck_assert_ptr_nonnull(t);
        if (keep) pl_set_output(t);
        pool[n] = t;
    }
    for (int i = 0; i < n; i++) all[i] = pool[i];
    *n_all = n;
    return pl_add(c, pool[n - 1], pool[n - 2]);
}

static void run(pl_backend *b, pl_graph *g, size_t peak, pl_tensor *const *inputs, pl_tensor *out, float *result)
{
    pl_backend_buffer *buf;
    OK(b->vt->buffer_new(b, peak, &buf, err));
    pl_graph_bind(g, b->vt->buffer_base(buf));
    pl_rng r;
    pl_rng_seed(&r, 77);
    for (int i = 0; i < 3; i++)
        for (int64_t j = 0; j < pl_tensor_elements(inputs[i]); j++) {
            float f = (float)pl_rng_gauss(&r);
            if (inputs[i]->data) ((float *)inputs[i]->data)[j] = f;
        }
    void *scratch = pl_alloc_aligned(64, b->vt->scratch(b, g));
    OK(b->vt->compute(b, g, scratch, err));
    OK(b->vt->compute(b, g, scratch, err)); /* inputs are still there for a second run */
    pl_free(scratch);
    memcpy(result, out->data, pl_tensor_bytes(out));
    b->vt->buffer_free(b, buf);
}

static pl_tensor *root_of(pl_tensor *t) { return t->view_root ? t->view_root : t; }

/* Liveness told again from the order alone: a root lives from the node that makes it to the last that reads it, inputs and
 * outputs for good. Two that live at once may not share bytes; a node may share with a source that ends there. */
static void check_no_overlap(pl_graph *g, size_t peak, uint8_t *base)
{
    int n = pl_graph_n_nodes(g), total = n + pl_graph_n_leaves(g);
    int *born = pl_alloc((size_t)total * sizeof *born), *dies = pl_alloc((size_t)total * sizeof *dies);
    pl_tensor **t = pl_alloc((size_t)total * sizeof *t);
    for (int i = 0; i < total; i++) {
        t[i] = i < n ? pl_graph_node(g, i) : pl_graph_leaf(g, i - n);
        born[i] = i < n ? i : -1;
        dies[i] = i < n ? i : n;
        for (int j = 0; j < n; j++) {
            pl_tensor *u = pl_graph_node(g, j);
            for (int s = 0; s < PL_MAX_SRC; s++)
                if (u->src[s] && root_of(u->src[s]) == t[i]) dies[i] = dies[i] > j ? dies[i] : j;
            if (root_of(u) == t[i] && u->flags & PL_TENSOR_OUTPUT) dies[i] = n;
        }
    }
    for (int i = 0; i < total; i++) {
        if (t[i]->view_root) continue;
        uint8_t *a = t[i]->data, *a_end = a + pl_tensor_bytes(t[i]);
        ck_assert((uintptr_t)a % ALIGN == 0 && a >= base && a_end <= base + peak);
        for (int j = 0; j < i; j++) {
            if (t[j]->view_root) continue;
            uint8_t *b = t[j]->data, *b_end = b + pl_tensor_bytes(t[j]);
            bool live_together = born[i] < dies[j] && born[j] < dies[i];
            bool made_while_read = !live_together && (born[i] == dies[j] || born[j] == dies[i]);
            if (live_together) ck_assert(a_end <= b || b_end <= a);
            if (made_while_read) ck_assert(a_end <= b || b_end <= a || (a == b && a_end == b_end));
        }
    }
    pl_free(born);
    pl_free(dies);
    pl_free(t);
}

START_TEST(the_scratch_planned_for_many_rows_is_enough_for_fewer)
{
    static const pl_type types[] = {PL_TYPE_F32, PL_TYPE_F16, PL_TYPE_Q4_1, PL_TYPE_Q6_K};
    for (int t = 0; t < 4; t++)
        for (int64_t k = 256; k <= 8192; k *= 2)
            for (int threads = 1; threads <= 64; threads *= 4)
                for (pl_precision precise = PL_ONE_TERM; precise <= PL_TWO_TERMS_WHERE_LARGE; precise++)
                    for (int64_t n_max = 1; n_max <= 40; n_max++) {
                        size_t most = pl_scratch_mul_mat_most(types[t], k, n_max, precise, threads), reached = 0;
                        for (int64_t n = 1; n <= n_max; n++) {
                            pl_mul_mat_scratch s = pl_scratch_mul_mat(types[t], k, n, precise, threads);
                            ck_assert_int_eq(s.n_terms, precise != PL_ONE_TERM && t >= 2 ? 2 : 1);
                            ck_assert_msg(s.total <= most, "%s, %d columns: %zu for %d rows, %zu for %d", pl_type_name(types[t]),
                                          (int)k, s.total, (int)n, most, (int)n_max);
                            if (s.total > reached) reached = s.total;
                        }
                        ck_assert_uint_eq(reached, most);
                    }
}
END_TEST

START_TEST(random_graphs_reuse_memory_and_give_the_same_bits)
{
    pl_pool *pool;
    pl_backend *b;
    OK(pl_pool_new(&pool, (pl_pool_options){.n_threads = 2, .poll = -1}, err));
    OK(pl_cpu_backend_new(&b, pool, err));
    static float want[4096], got[4096];
    size_t peaks[2];
    for (int keep = 0; keep < 2; keep++) {
        pl_graph_ctx *c = ctx();
        pl_tensor *all[POOL];
        int n;
        pl_tensor *out = random_graph(c, (uint64_t)_i, keep, all, &n);
        pl_graph *g;
        peaks[keep] = plan(c, &g, out);
        uint8_t *base = pl_alloc_aligned(ALIGN, peaks[keep]);
        pl_graph_bind(g, base);
        check_no_overlap(g, peaks[keep], base);
        pl_free(base);
        run(b, g, peaks[keep], all, out, keep ? want : got);
        size_t again;
        OK(pl_graph_plan(g, ALIGN, &again, err)); /* planning is pure */
        ck_assert_uint_eq(again, peaks[keep]);
        if (keep) ck_assert_mem_eq(want, got, pl_tensor_bytes(out));
        pl_graph_ctx_free(c);
    }
    ck_assert_uint_le(peaks[0], peaks[1]);
    b->vt->free(b);
    pl_pool_free(pool);
}
END_TEST

Suite *graph_suite(void)
{
    Suite *s = suite_create("graph");
    TCase *c = tcase_create("graph");
    tcase_add_test(c, nodes_come_after_their_sources_and_once);
    tcase_add_test(c, products_of_the_same_tensor_follow_each_other);
    tcase_add_test(c, a_deep_chain_needs_no_deep_stack);
    tcase_add_test(c, a_view_of_a_view_points_at_the_root);
    tcase_add_test(c, a_source_that_lives_on_is_not_overwritten);
    tcase_add_test(c, a_source_read_in_another_order_is_not_overwritten);
    tcase_add_test(c, free_neighbours_merge_and_the_end_grows);
    tcase_add_test(c, weights_take_no_bytes_of_the_plan);
    tcase_add_test(c, a_graph_is_drawn_with_its_groups_and_names_cannot_leave_their_quotes);
    tcase_add_test(c, missing_memory_is_a_status_at_every_allocation);
    tcase_add_test(c, the_scratch_planned_for_many_rows_is_enough_for_fewer);
    tcase_add_loop_test(c, random_graphs_reuse_memory_and_give_the_same_bits, 0, 150);
    suite_add_tcase(s, c);
    return s;
}
