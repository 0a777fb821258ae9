/* The placement against all splits there are. */
#include "coordinator/placement.h"

#include "engine/base/rng.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { LAYERS_MAX = 6, NODES_MAX = 4 };

/* A made-up model: each unit has its own bytes, the ends carry embedding and head, a tied embedding counts once. */
typedef struct toy {
    int32_t n_layer;
    uint64_t layer[LAYERS_MAX], embed, head;
    bool tied;
    uint64_t kv_block, compute, row;
    uint64_t unit_bytes[LAYERS_MAX + 1], unit_macs[LAYERS_MAX + 1];
} toy;

static pl_stage_memory toy_memory(const void *user, const pl_stage_shape *s)
{
    const toy *t = user;
    pl_stage_memory m = {0};
    for (int32_t i = s->layer_first; i < s->layer_end; i++) m.weights += t->layer[i];
    bool first = s->layer_first == 0, last = s->layer_end == t->n_layer;
    if (first) m.weights += t->embed;
    if (last) m.weights += t->tied ? (first ? 0 : t->embed) : t->head;
    m.kv = (uint64_t)(s->layer_end - s->layer_first) * (uint64_t)s->n_blocks * t->kv_block;
    m.compute = t->compute + (uint64_t)s->n_rows * t->row * (last ? 2 : 1);
    return m;
}

static toy toy_make(pl_rng *r, int32_t n_layer)
{
    toy t = {.n_layer = n_layer,
             .embed = pl_rng_below(r, 40),
             .head = pl_rng_below(r, 40),
             .tied = pl_rng_below(r, 2),
             .kv_block = pl_rng_below(r, 3),
             .compute = pl_rng_below(r, 5),
             .row = pl_rng_below(r, 2)};
    for (int32_t i = 0; i < n_layer; i++) {
        t.layer[i] = 5 + pl_rng_below(r, 30);
        t.unit_bytes[i] = t.layer[i];
        t.unit_macs[i] = t.layer[i] * (1 + pl_rng_below(r, 3));
    }
    t.unit_bytes[n_layer] = t.tied ? t.embed : t.head;
    t.unit_macs[n_layer] = t.unit_bytes[n_layer];
    return t;
}

typedef struct brute {
    const toy *t;
    const pl_place_node *nodes;
    int32_t n_nodes, n_blocks, n_rows, rows;
    const pl_place_want *want;
    double best[NODES_MAX + 1];     /* cost per number of stages */
    double best_sum[NODES_MAX + 1]; /* among those of the best cost */
} brute;

static void brute_walk(brute *b, int32_t at, uint32_t used, int32_t n, double cost, double sum)
{
    if (at == b->t->n_layer) {
        if (cost < b->best[n] * (1 - 1e-12)) {
            b->best[n] = cost;
            b->best_sum[n] = sum;
        } else if (cost <= b->best[n] * (1 + 1e-12) && sum < b->best_sum[n]) {
            b->best_sum[n] = sum;
        }
        return;
    }
    for (int32_t j = 0; j < b->n_nodes; j++) {
        if (used >> j & 1) continue;
        double step = 0;
        for (int32_t e = at + 1; e <= b->t->n_layer; e++) {
            const pl_place_node *node = &b->nodes[j];
            double read = (double)b->t->unit_bytes[e - 1] / node->read_bytes_s,
                   mul = (double)b->rows * (double)b->t->unit_macs[e - 1] / node->macs_s;
            step += read > mul ? read : mul;
            if (e == b->t->n_layer) {
                read = (double)b->t->unit_bytes[e] / node->read_bytes_s,
                mul = (double)b->rows * (double)b->t->unit_macs[e] / node->macs_s;
                step += read > mul ? read : mul;
            }
            pl_stage_shape s = {.layer_first = at, .layer_end = e, .n_blocks = b->n_blocks, .n_rows = b->n_rows};
            pl_stage_memory m = toy_memory(b->t, &s);
            uint64_t links = pl_place_link_bytes(1, b->n_rows, b->want->credits, at > 0, e < b->t->n_layer);
            if (m.weights + m.kv + m.compute + links > node->budget_bytes) continue;
            double wire = at ? (double)b->rows * 4 / node->net_bytes_s : 0;
            double slow = step > wire ? step : wire, all = step + wire + node->hop_s;
            double c = b->want->objective == PL_OBJECTIVE_LATENCY ? cost + all : slow > cost ? slow : cost;
            brute_walk(b, e, used | 1u << j, n + 1, c, sum + all);
        }
    }
}

static brute brute_run(const toy *t, const pl_place_node *nodes, int32_t n_nodes, const pl_place_want *want,
                       int32_t n_blocks, int32_t n_rows)
{
    brute b = {.t = t,
               .nodes = nodes,
               .n_nodes = n_nodes,
               .n_blocks = n_blocks,
               .n_rows = n_rows,
               .want = want,
               .rows = want->objective == PL_OBJECTIVE_LATENCY ? 1 : (want->n_seqs + 1) / 2};
    for (int32_t k = 0; k <= NODES_MAX; k++) b.best[k] = b.best_sum[k] = INFINITY;
    brute_walk(&b, 0, 0, 0, 0, 0);
    return b;
}

static bool brute_fits(const brute *b)
{
    for (int32_t k = 1; k <= NODES_MAX; k++)
        if (isfinite(b->best[k])) return true;
    return false;
}

static void one_case(uint64_t seed)
{
    pl_rng r;
    pl_rng_seed(&r, seed);
    toy t = toy_make(&r, 1 + (int32_t)pl_rng_below(&r, LAYERS_MAX));
    pl_place_model model = {.n_layer = t.n_layer,
                            .n_embd = 1,
                            .unit_bytes = t.unit_bytes,
                            .unit_macs = t.unit_macs,
                            .memory = toy_memory,
                            .user = &t};
    int32_t n = (int32_t)pl_rng_below(&r, NODES_MAX + 1);
    pl_place_node nodes[NODES_MAX];
    static const char *const names[NODES_MAX] = {"a", "b", "c", "d"};
    for (int32_t i = 0; i < n; i++)
        nodes[i] = (pl_place_node){.name = names[i],
                                   .budget_bytes = 1200 + pl_rng_below(&r, 300),
                                   .read_bytes_s = 1 + (double)pl_rng_below(&r, 4),
                                   .macs_s = 1 + (double)pl_rng_below(&r, 9),
                                   .hop_s = (double)pl_rng_below(&r, 3) * 10,
                                   .net_bytes_s = 1 + (double)pl_rng_below(&r, 9),
                                   .n_threads = 1 + (int32_t)pl_rng_below(&r, 2)};
    pl_place_want want = {.objective = pl_rng_below(&r, 2) ? PL_OBJECTIVE_LATENCY : PL_OBJECTIVE_THROUGHPUT,
                          .n_ctx = 64,
                          .n_seqs = 1 + (int32_t)pl_rng_below(&r, 4),
                          .credits = 1 + (int32_t)pl_rng_below(&r, 2),
                          .n_blocks = 10 + (int32_t)pl_rng_below(&r, 300),
                          .n_rows = 30 + (int32_t)pl_rng_below(&r, 100),
                          .fixed_blocks = pl_rng_below(&r, 2),
                          .fixed_rows = pl_rng_below(&r, 2)};
    pl_placement p;
    pl_error err = {0};
    pl_status s = pl_place(&p, &model, nodes, n, &want, &err);

    /* The smallest wish decides whether it fits at all. */
    int32_t rows = want.n_rows, blocks = want.n_blocks;
    brute b = brute_run(&t, nodes, n, &want, blocks, rows);
    while (!brute_fits(&b) && !want.fixed_rows && rows / 2 >= PL_PLACE_ROWS_MIN)
        b = brute_run(&t, nodes, n, &want, blocks, rows /= 2);
    if (!want.fixed_blocks)
        while (!brute_fits(&b) && blocks > PL_PLACE_BLOCKS_MIN) b = brute_run(&t, nodes, n, &want, --blocks, rows);
    if (!brute_fits(&b)) {
        ck_assert_msg(s == PL_ERR_BUDGET, "seed %llu: placed what does not fit", (unsigned long long)seed);
        ck_assert_ptr_nonnull(strstr(err.text, "the model needs"));
        for (int32_t i = 0; i < n; i++) {
            char line[32];
            snprintf(line, sizeof line, "\n  %s: budget ", nodes[i].name);
            ck_assert_ptr_nonnull(strstr(err.text, line));
        }
        return;
    }
    ck_assert_msg(s == PL_OK, "seed %llu: %s", (unsigned long long)seed, err.text);
    ck_assert_msg(p.n_rows == rows && p.n_blocks == blocks, "seed %llu: rows %d of %d, blocks %d of %d",
                  (unsigned long long)seed, p.n_rows, rows, p.n_blocks, blocks);
    double least = INFINITY;
    for (int32_t k = 1; k <= NODES_MAX; k++)
        if (b.best[k] < least) least = b.best[k];
    int32_t k = 1;
    while (b.best[k] > least * (1 + PL_PLACE_MARGIN)) k++;
    ck_assert_msg(p.n_stages == k, "seed %llu: %d stages, not %d", (unsigned long long)seed, p.n_stages, k);
    ck_assert_msg(fabs(p.cost_s - b.best[k]) <= 1e-9 * b.best[k], "seed %llu: cost %g, not %g",
                  (unsigned long long)seed, p.cost_s, b.best[k]);
    ck_assert_msg(fabs(p.step_s - b.best_sum[k]) <= 1e-9 * b.best_sum[k], "seed %llu: sum %g, not %g",
                  (unsigned long long)seed, p.step_s, b.best_sum[k]);
    ck_assert_msg(isfinite(b.best[1]) == (p.alone >= 0), "seed %llu: alone", (unsigned long long)seed);
    if (p.alone >= 0) ck_assert(fabs(p.alone_s - b.best[1]) <= 1e-9 * b.best[1]);

    /* The stages cover the layers in order, on different nodes, within their budgets. */
    int32_t at = 0;
    uint32_t used = 0;
    for (int32_t i = 0; i < p.n_stages; i++) {
        const pl_place_stage *st = &p.stages[i];
        ck_assert_int_eq(st->layer_first, at);
        ck_assert_int_lt(st->layer_first, st->layer_end);
        ck_assert(!(used >> st->node & 1));
        ck_assert(pl_place_stage_bytes(st) <= nodes[st->node].budget_bytes);
        used |= 1u << st->node;
        at = st->layer_end;
    }
    ck_assert_int_eq(at, t.n_layer);
    pl_buf text = {0};
    ck_assert_int_eq(pl_place_text(&p, &model, nodes, n, &want, &text, &err), PL_OK);
    const char *shown = pl_buf_cstr(&text);
    ck_assert_ptr_nonnull(strstr(shown, "objective "));
    ck_assert_int_eq(p.n_blocks < want.n_blocks, strstr(shown, "the KV cache is") != NULL);
    ck_assert_int_eq(p.n_rows < want.n_rows, strstr(shown, "micro-batches are") != NULL);
    pl_buf_fini(&text);
}

START_TEST(placement_is_the_best_of_all_splits)
{
    for (uint64_t i = 0; i < 500; i++) one_case((uint64_t)_i * 500 + i);
}
END_TEST

static toy even_toy(int32_t n_layer)
{
    toy t = {.n_layer = n_layer};
    for (int32_t i = 0; i < n_layer; i++) t.layer[i] = t.unit_bytes[i] = t.unit_macs[i] = 100;
    return t;
}

static pl_place_model model_of(const toy *t)
{
    return (pl_place_model){.n_layer = t->n_layer,
                            .n_embd = 1,
                            .unit_bytes = t->unit_bytes,
                            .unit_macs = t->unit_macs,
                            .memory = toy_memory,
                            .user = t};
}

START_TEST(a_slow_node_is_left_out_and_both_numbers_are_said)
{
    toy t = even_toy(6);
    pl_place_model model = model_of(&t);
    pl_place_node nodes[] = {
        {.name = "snail", .budget_bytes = 10000, .read_bytes_s = 1, .macs_s = 1e9, .net_bytes_s = 1e9},
        {.name = "hare", .budget_bytes = 10000, .read_bytes_s = 100, .macs_s = 1e9, .net_bytes_s = 1e9}};
    pl_place_want want = {
        .objective = PL_OBJECTIVE_THROUGHPUT, .n_seqs = 4, .n_ctx = 64, .credits = 1, .n_blocks = 16, .n_rows = 4};
    pl_placement p;
    pl_error err = {0};
    ck_assert_int_eq(pl_place(&p, &model, nodes, 2, &want, &err), PL_OK);
    ck_assert_int_eq(p.n_stages, 1);
    ck_assert_int_eq(p.stages[0].node, 1);
    pl_buf text = {0};
    ck_assert_int_eq(pl_place_text(&p, &model, nodes, 2, &want, &text, &err), PL_OK);
    const char *shown = pl_buf_cstr(&text);
    ck_assert_ptr_nonnull(strstr(shown, "hare alone: 6000.000 ms; the best split, over 2 nodes: 100000.000 ms"));
    ck_assert_ptr_nonnull(strstr(shown, "left out: snail"));
    pl_buf_fini(&text);
}
END_TEST

START_TEST(equal_nodes_share_evenly_for_throughput_and_not_for_latency)
{
    toy t = even_toy(6);
    pl_place_model model = model_of(&t);
    pl_place_node nodes[2] = {
        {.name = "a", .budget_bytes = 10000, .read_bytes_s = 1, .macs_s = 1e9, .net_bytes_s = 1e9, .hop_s = 1},
        {.name = "b", .budget_bytes = 10000, .read_bytes_s = 1, .macs_s = 1e9, .net_bytes_s = 1e9, .hop_s = 1}};
    pl_place_want want = {
        .objective = PL_OBJECTIVE_THROUGHPUT, .n_seqs = 2, .n_ctx = 64, .credits = 1, .n_blocks = 16, .n_rows = 4};
    pl_placement p;
    pl_error err = {0};
    ck_assert_int_eq(pl_place(&p, &model, nodes, 2, &want, &err), PL_OK);
    ck_assert_int_eq(p.n_stages, 2);
    ck_assert_int_eq(p.stages[0].layer_end, 3);
    want.objective = PL_OBJECTIVE_LATENCY;
    ck_assert_int_eq(pl_place(&p, &model, nodes, 2, &want, &err), PL_OK);
    ck_assert_int_eq(p.n_stages, 1);
}
END_TEST

START_TEST(rates_from_a_liar_do_no_harm)
{
    toy t = even_toy(4);
    pl_place_model model = model_of(&t);
    pl_place_node nodes[] = {
        {.name = "nan",
         .budget_bytes = 500,
         .read_bytes_s = NAN,
         .macs_s = -1,
         .hop_s = INFINITY,
         .net_bytes_s = -INFINITY},
        {.name = "inf", .budget_bytes = 500, .read_bytes_s = INFINITY, .macs_s = 0, .hop_s = NAN, .net_bytes_s = NAN}};
    pl_place_want want = {
        .objective = PL_OBJECTIVE_THROUGHPUT, .n_seqs = 2, .n_ctx = 64, .credits = 1, .n_blocks = 16, .n_rows = 4};
    pl_placement p;
    pl_error err = {0};
    ck_assert_int_eq(pl_place(&p, &model, nodes, 2, &want, &err), PL_OK);
    ck_assert(isfinite(p.cost_s));
}
END_TEST

START_TEST(of_many_nodes_the_largest_are_used)
{
    toy t = even_toy(4);
    pl_place_model model = model_of(&t);
    pl_place_node nodes[40];
    for (int32_t i = 0; i < 40; i++)
        nodes[i] = (pl_place_node){.name = "n",
                                   .budget_bytes = i == 31 || i == 38 ? 250 : 50,
                                   .read_bytes_s = 1,
                                   .macs_s = 1,
                                   .net_bytes_s = 1};
    pl_place_want want = {
        .objective = PL_OBJECTIVE_THROUGHPUT, .n_seqs = 2, .n_ctx = 64, .credits = 1, .n_blocks = 16, .n_rows = 4};
    pl_placement p;
    pl_error err = {0};
    ck_assert_int_eq(pl_place(&p, &model, nodes, 40, &want, &err), PL_OK);
    ck_assert_int_eq(p.n_stages, 2);
    ck_assert_int_eq(p.stages[0].node + p.stages[1].node, 31 + 38);
}
END_TEST

Suite *placement_suite(void);
Suite *placement_suite(void)
{
    Suite *s = suite_create("coordinator/placement");
    TCase *t = tcase_create("placement");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, placement_is_the_best_of_all_splits, 0, 20);
    tcase_add_test(t, a_slow_node_is_left_out_and_both_numbers_are_said);
    tcase_add_test(t, equal_nodes_share_evenly_for_throughput_and_not_for_latency);
    tcase_add_test(t, rates_from_a_liar_do_no_harm);
    tcase_add_test(t, of_many_nodes_the_largest_are_used);
    suite_add_tcase(s, t);
    return s;
}
