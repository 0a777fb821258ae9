/* What a cluster promises, one promise a test; the seeds of test_seeds.c mix them all. */
#include "engine/base/log.h"
#include "engine/gguf/write.h"
#include "tests/sim/cluster.h"

#include <stdio.h>
#include <stdlib.h>

/* The machine that has a stage now and, of those, the n-th in the pipeline. */
static sim_machine *stage_machine(sim_cluster *c, int n)
{
    for (int i = 0; i < c->n_machines; i++) {
        const node_stage *s = c->machines[i].alive ? c->machines[i].node->stage : NULL;
        if (s && s->phase == NODE_PHASE_READY && (int)s->plan->stage == n) return &c->machines[i];
    }
    ck_abort_msg("no stage %d", n);
}

static bool few_tokens(void *user)
{
    const sim_client *k = user;
    return k->n_got < 10 && !k->ended;
}

static bool no_more_tokens(void *user)
{
    const sim_client *k = user;
    return k->n_got <= 11 && !k->ended;
}

/* Until the request has ten tokens. */
static void until_it_streams(sim_cluster *c, sim_client *k)
{
    ck_assert(pl_sim_run_while(c->sim, few_tokens, k, pl_sim_now(c->sim) + 60 * SIM_S));
    ck_assert(!k->ended);
}

START_TEST(a_request_gives_the_models_tokens_over_any_split)
{
    int nodes = 1 + _i;
    sim_cluster *c = sim_start(.seed = 11, .nodes = nodes, .layers = 6, .split = nodes, .tight = true);
    sim_run_until_healthy(c, 20 * SIM_S);
    ck_assert_int_eq(sim_n_ready(c), nodes);
    for (int i = 0; i < 6; i++) ck_assert_ptr_nonnull(sim_request_drawn(c));
    sim_run_until_idle(c, 60 * SIM_S);
    ck_streams_equal_oracle(c);
    ck_nothing_is_lost(c);
    sim_stop(c);
}
END_TEST

START_TEST(a_node_that_dies_costs_a_pause_and_no_token)
{
    int stage = _i % 3;
    bool silent = _i >= 3;
    sim_cluster *c = sim_start(.seed = 20, .nodes = 4, .split = 3, .spare = true);
    sim_run_until_healthy(c, 20 * SIM_S);
    sim_client *k = sim_request(c, .n_prompt = 20, .max_tokens = 60, .ignore_eos = true);
    sim_request(c, .n_prompt = 5, .max_tokens = 60, .ignore_eos = true, .temperature = 0.8f);
    until_it_streams(c, k);
    sim_kill(stage_machine(c, stage), silent);
    uint64_t died = pl_sim_now(c->sim);
    ck_assert(pl_sim_run_while(c->sim, no_more_tokens, k, died + 60 * SIM_S));
    /* Detection (at most the silence that means death), a plan, what the spare node has to fetch, and the replay. */
    ck_assert_uint_le(pl_sim_now(c->sim) - died, (silent ? 2 * SIM_S + 300 * SIM_MS : 100 * SIM_MS) + 1500 * SIM_MS);
    sim_run_until_idle(c, 60 * SIM_S);
    ck_streams_equal_oracle(c);
    sim_stop(c);
}
END_TEST

START_TEST(without_room_clients_are_told_what_is_short_and_a_join_heals)
{
    sim_cluster *c = sim_start(.seed = 30, .nodes = 2, .split = 2, .tight = true, .grace_ns = 3 * SIM_S);
    sim_run_until_healthy(c, 20 * SIM_S);
    sim_client *k = sim_request(c, .n_prompt = 20, .max_tokens = 60, .ignore_eos = true, .may_fail = true);
    until_it_streams(c, k);
    sim_kill(&c->machines[0], false);
    uint64_t died = pl_sim_now(c->sim);
    sim_run_until_idle(c, 20 * SIM_S);
    ck_assert_int_eq(k->why, PL_FINISH_ERROR);
    ck_assert_int_eq(k->err.status, PL_ERR_BUDGET);
    ck_says(k->err, "short");
    ck_assert_uint_le(k->ended_ns - died, 5 * SIM_S);
    ck_assert_ptr_null(sim_request_drawn(c)); /* and a new one at once */
    sim_restart(&c->machines[0]);
    sim_run_until_healthy(c, 20 * SIM_S);
    ck_assert_ptr_nonnull(sim_request_drawn(c));
    sim_run_until_idle(c, 20 * SIM_S);
    ck_streams_equal_oracle(c);
    sim_stop(c);
}
END_TEST

START_TEST(requests_that_wait_for_a_node_go_on_when_it_comes_back_in_time)
{
    sim_cluster *c = sim_start(.seed = 31, .nodes = 2, .split = 2, .tight = true);
    sim_run_until_healthy(c, 20 * SIM_S);
    sim_client *k = sim_request(c, .n_prompt = 20, .max_tokens = 60, .ignore_eos = true);
    until_it_streams(c, k);
    sim_kill(&c->machines[1], true);
    sim_run(c, 30 * SIM_S);
    ck_assert(!k->ended);
    sim_restart(&c->machines[1]);
    sim_run_until_idle(c, 20 * SIM_S);
    ck_streams_equal_oracle(c);
    sim_stop(c);
}
END_TEST

START_TEST(a_second_start_transfers_nothing)
{
    sim_cluster *c = sim_start(.seed = 40, .nodes = 3, .split = 3, .tight = true);
    sim_run_until_healthy(c, 20 * SIM_S);
    uint64_t bytes = 0, after = 0, stage_bytes = 0;
    for (int i = 0; i < 3; i++) {
        bytes += c->machines[i].disk.bytes_put;
        stage_bytes += c->machines[i].node->stage->memory.weights;
    }
    /* Each node fetched its own stage and no more. */
    pl_buf header = {0};
    pl_error err = {0};
    ck_ok(pl_gguf_header_write(c->model.gguf, &header, &err), err);
    ck_assert_uint_eq(bytes, stage_bytes + 3 * header.size);
    pl_buf_fini(&header);
    for (int i = 0; i < 3; i++) sim_kill(&c->machines[i], false);
    sim_run(c, 3 * SIM_S);
    for (int i = 0; i < 3; i++) sim_restart(&c->machines[i]);
    sim_run_until_healthy(c, 20 * SIM_S);
    for (int i = 0; i < 3; i++) after += c->machines[i].disk.bytes_put;
    ck_assert_uint_eq(after, bytes);
    sim_stop(c);
}
END_TEST

START_TEST(a_node_with_other_numbers_is_refused_and_the_rest_works)
{
    sim_cluster *c = sim_start(.seed = 50, .nodes = 3, .split = 2, .spare = true, .odd_profile = "other-1");
    /* Whoever comes first sets the profile: the odd one comes last. */
    sim_kill(&c->machines[2], false);
    sim_run(c, 3 * SIM_S);
    sim_restart(&c->machines[2]);
    sim_run(c, 3 * SIM_S);
    pl_node_report r;
    pl_node_get_report(c->machines[2].node, &r);
    ck_assert_str_ne(r.state, "ready");
    ck_assert_uint_eq(r.frames, 0);
    sim_run_until_healthy(c, 20 * SIM_S);
    ck_assert_ptr_nonnull(sim_request_drawn(c));
    sim_run_until_idle(c, 20 * SIM_S);
    ck_streams_equal_oracle(c);
    sim_stop(c);
}
END_TEST

START_TEST(a_node_that_leaves_disturbs_nobody)
{
    sim_cluster *c = sim_start(.seed = 60, .nodes = 3, .split = 2, .spare = true);
    sim_run_until_healthy(c, 20 * SIM_S);
    sim_client *k = sim_request(c, .n_prompt = 20, .max_tokens = 60, .ignore_eos = true);
    until_it_streams(c, k);
    sim_machine *m = stage_machine(c, 1);
    sim_leave(m);
    uint64_t left = pl_sim_now(c->sim);
    ck_assert(pl_sim_run_while(c->sim, no_more_tokens, k, left + 60 * SIM_S));
    ck_assert_uint_le(pl_sim_now(c->sim) - left, 1500 * SIM_MS);
    sim_run_until_idle(c, 20 * SIM_S);
    sim_run(c, 3 * SIM_S);
    ck_assert(!m->alive);
    ck_streams_equal_oracle(c);
    sim_stop(c);
}
END_TEST

START_TEST(neighbours_that_cannot_reach_each_other_are_noticed_though_the_coordinator_hears_both)
{
    sim_cluster *c = sim_start(.seed = 70, .nodes = 3, .split = 2, .spare = true);
    sim_run_until_healthy(c, 20 * SIM_S);
    sim_client *k = sim_request(c, .n_prompt = 20, .max_tokens = 60, .ignore_eos = true);
    until_it_streams(c, k);
    sim_machine *up = stage_machine(c, 0), *down = stage_machine(c, 1);
    pl_sim_cut(up->process, down->process); /* one way only: frames hang, credits would pass */
    sim_run(c, 20 * SIM_S);
    pl_sim_heal_all(c->sim);
    sim_run_until_idle(c, 100 * SIM_S);
    ck_streams_equal_oracle(c);
    sim_stop(c);
}
END_TEST

START_TEST(a_coordinator_that_was_stopped_goes_on)
{
    sim_cluster *c = sim_start(.seed = 80, .nodes = 3, .split = 2);
    sim_run_until_healthy(c, 20 * SIM_S);
    sim_client *k = sim_request(c, .n_prompt = 20, .max_tokens = 60, .ignore_eos = true);
    until_it_streams(c, k);
    pl_sim_pause(c->process);
    sim_run(c, (_i ? 10 : 1) * SIM_S); /* less and more than the nodes' patience */
    pl_sim_resume(c->process);
    sim_run_until_idle(c, 60 * SIM_S);
    ck_streams_equal_oracle(c);
    sim_stop(c);
}
END_TEST

START_TEST(a_cancelled_request_makes_room)
{
    sim_cluster *c = sim_start(.seed = 90, .nodes = 2, .split = 2, .n_seqs = 1);
    sim_run_until_healthy(c, 20 * SIM_S);
    sim_client *first = sim_request(c, .n_prompt = 20, .max_tokens = 60, .ignore_eos = true),
               *second = sim_request(c, .n_prompt = 10, .max_tokens = 5);
    until_it_streams(c, first);
    sim_cancel(first);
    sim_run_until_idle(c, 20 * SIM_S);
    ck_assert_int_eq(first->why, PL_FINISH_CANCELLED);
    ck_assert_int_lt(first->n_got, 30);
    ck_assert(second->ended);
    ck_streams_equal_oracle(c);
    ck_nothing_is_lost(c);
    sim_stop(c);
}
END_TEST

START_TEST(the_same_seed_gives_the_same_run)
{
    uint64_t trace[2];
    for (int i = 0; i < 2; i++) {
        sim_cluster *c = sim_start(.seed = 100, .nodes = 3, .split = 2);
        for (int k = 0; k < 4; k++) sim_request_drawn(c);
        sim_run_with_faults(c, 10 * SIM_S);
        sim_heal(c);
        sim_run_until_idle(c, 100 * SIM_S);
        trace[i] = pl_sim_trace(c->sim);
        sim_stop(c);
    }
    ck_assert_uint_eq(trace[0], trace[1]);
}
END_TEST

/* --- Pipelining, read from the nodes' own timelines --- */

typedef struct span {
    unsigned long long start, end;
} span;

static int by_start(const void *a, const void *b)
{
    const span *x = a, *y = b;
    return x->start < y->start ? -1 : x->start > y->start;
}

static size_t read_spans(const char *dir, int node, span *out, size_t max)
{
    char path[160], line[512];
    size_t n = 0;
    snprintf(path, sizeof path, "%s/n%d.jsonl", dir, node);
    FILE *f = fopen(path, "r");
    ck_assert_ptr_nonnull(f);
    while (n < max && fgets(line, sizeof line, f)) {
        const char *at = strstr(line, "\"start_ns\":");
        ck_assert_ptr_nonnull(at);
        ck_assert_int_eq(sscanf(at, "\"start_ns\":%llu,\"end_ns\":%llu", &out[n].start, &out[n].end), 2);
        n++;
    }
    fclose(f);
    qsort(out, n, sizeof *out, by_start);
    return n;
}

START_TEST(with_several_requests_all_stages_work_at_once)
{
    enum { MAX = 4000 };
    static span spans[2][MAX];
    char dir[64];
    temp_dir(dir);
    sim_cluster *c = sim_start(.seed = 110, .nodes = 2, .split = 2, .tight = true, .n_seqs = 8, .n_rows = 32,
                               .run_ns = 5 * SIM_MS, .row_layer_ns = 1 * SIM_MS, .trace_dir = dir);
    sim_run_until_healthy(c, 20 * SIM_S);
    for (int i = 0; i < 8; i++) sim_request(c, .n_prompt = 16, .max_tokens = 48, .ignore_eos = true);
    sim_run_until_idle(c, 100 * SIM_S);
    ck_streams_equal_oracle(c);
    sim_stop(c);
    size_t n[2];
    unsigned long long busy[2] = {0}, both = 0, first = UINT64_MAX, last = 0;
    for (int i = 0; i < 2; i++) {
        n[i] = read_spans(dir, i, spans[i], MAX);
        ck_assert_uint_gt(n[i], 40);
        for (size_t k = 0; k < n[i]; k++) {
            busy[i] += spans[i][k].end - spans[i][k].start;
            if (spans[i][k].start < first) first = spans[i][k].start;
            if (spans[i][k].end > last) last = spans[i][k].end;
        }
    }
    for (size_t a = 0, b = 0; a < n[0] && b < n[1];) {
        span x = spans[0][a], y = spans[1][b];
        unsigned long long low = x.start > y.start ? x.start : y.start, high = x.end < y.end ? x.end : y.end;
        if (high > low) both += high - low;
        if (x.end < y.end)
            a++;
        else
            b++;
    }
    /* The promise: with micro-batches enough in flight, 0.9 of the slowest stage's rate. So the busier node works
     * nearly always, and for most of that time the other one does too. */
    unsigned long long slowest = busy[0] > busy[1] ? busy[0] : busy[1], other = busy[0] + busy[1] - slowest,
                       wall = last - first;
    printf("busy %.3f and %.3f of %.3f s, both %.3f s\n", (double)busy[0] / 1e9, (double)busy[1] / 1e9,
           (double)wall / 1e9, (double)both / 1e9);
    ck_assert(10 * slowest >= 9 * wall);
    ck_assert(10 * both >= 8 * other);
    temp_dir_remove(dir);
}
END_TEST

int main(void)
{
    const char *level = getenv("PACELINE_TEST_LOG");
    pl_log_level l = PL_LOG_ERROR;
    if (level) pl_log_level_parse(level, &l);
    pl_log_setup(l, PL_LOG_TEXT);
    Suite *s = suite_create("sim/cluster");
    TCase *c = tcase_create("promises");
    tcase_add_loop_test(c, a_request_gives_the_models_tokens_over_any_split, 0, 6);
    tcase_add_loop_test(c, a_node_that_dies_costs_a_pause_and_no_token, 0, 6);
    tcase_add_test(c, without_room_clients_are_told_what_is_short_and_a_join_heals);
    tcase_add_test(c, requests_that_wait_for_a_node_go_on_when_it_comes_back_in_time);
    tcase_add_test(c, a_second_start_transfers_nothing);
    tcase_add_test(c, a_node_with_other_numbers_is_refused_and_the_rest_works);
    tcase_add_test(c, a_node_that_leaves_disturbs_nobody);
    tcase_add_test(c, neighbours_that_cannot_reach_each_other_are_noticed_though_the_coordinator_hears_both);
    tcase_add_loop_test(c, a_coordinator_that_was_stopped_goes_on, 0, 2);
    tcase_add_test(c, a_cancelled_request_makes_room);
    tcase_add_test(c, the_same_seed_gives_the_same_run);
    tcase_add_test(c, with_several_requests_all_stages_work_at_once);
    suite_add_tcase(s, c);
    return ck_run(s, NULL);
}
