/* The profiler: what the table says of a known graph, and that the trace is what trace viewers read. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/base/alloc.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/sys.h"
#include "engine/cpu/cpu.h"

Suite *profiler_suite(void);

#define OK(call)                                                                                                       \
    do {                                                                                                               \
        pl_error err_ = {0}, *err = &err_;                                                                             \
        ck_assert_msg((call) == PL_OK, "%s: %s", #call, err_.text);                                                    \
    } while (0)

enum { K = 256, M = 512, N = 5, RUNS = 3 };

/* silu(w x) + x2, then its norm: two groups when fused, run RUNS times by two threads. */
static void run_graphs(pl_profiler *p, unsigned kinds)
{
    pl_pool *pool;
    pl_backend *b;
    pl_graph_ctx *c;
    pl_graph *g;
    size_t peak;
    static float w[K * M];
    OK(pl_pool_new(&pool, (pl_pool_options){.n_threads = 2, .poll = -1}, err));
    OK(pl_cpu_backend_new(&b, pool, err));
    OK(pl_graph_ctx_new(&c, err));
    pl_tensor *x = pl_new_input(c, PL_TYPE_F32, 2, (int64_t[]){K, N}, "x"), *x2 = pl_new_input(c, PL_TYPE_F32, 2, (int64_t[]){M, N}, "x2");
    pl_tensor *weight = pl_new_weight(c, PL_TYPE_F32, PL_LAYOUT_PLAIN, 2, (int64_t[]){K, M}, w, "a \"name\"\\\xff\n");
    pl_tensor *out = pl_rms_norm(c, pl_add(c, pl_silu(c, pl_mul_mat(c, weight, x)), x2), NULL, 1e-5f);
    OK(pl_graph_build(&g, c, &out, 1, err));
    pl_graph_fuse(g, kinds);
    OK(pl_graph_plan(g, b->alignment, &peak, err));
    pl_backend_buffer *buf;
    OK(b->vt->buffer_new(b, peak, &buf, err));
    pl_graph_bind(g, b->vt->buffer_base(buf));
    void *scratch = pl_alloc_aligned(64, b->vt->scratch(b, g));
    OK(b->vt->compute(b, g, scratch, err)); /* nobody looks yet */
    b->vt->set_profiler(b, p);
    for (int i = 0; i < RUNS; i++) OK(b->vt->compute(b, g, scratch, err));
    b->vt->set_profiler(b, NULL);
    OK(b->vt->compute(b, g, scratch, err));
    pl_free(scratch);
    b->vt->buffer_free(b, buf);
    b->vt->free(b);
    pl_pool_free(pool);
    pl_graph_ctx_free(c);
}

START_TEST(the_table_has_a_row_for_each_kind_of_group)
{
    pl_profiler *p;
    OK(pl_profiler_new(&p, &(pl_profiler_options){0}, err));
    pl_profiler_set_peaks(p, 10e9, 100e9, "2 threads, any");
    run_graphs(p, PL_FUSE_ALL);
    run_graphs(p, PL_FUSE_NONE);
    uint64_t now = pl_now_ns();
    pl_profiler_note(p, "sampling", now - 5000000, now);
    pl_buf text = {0};
    OK(pl_profiler_print(p, &text, err));
    const char *t = pl_buf_cstr(&text);
    ck_assert_ptr_nonnull(strstr(t, "profile: 6 runs of graphs"));
    ck_assert_ptr_nonnull(strstr(t, "10.0 GB/s read, 100.0 G multiply-adds/s"));
    static const char *const rows[] = {"mul_mat F32 + silu + add ", "rms_norm ", "mul_mat F32 ", "silu ", "add ", "(waiting", "all ", "sampling "};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char line[64];
        snprintf(line, sizeof line, "\n%s", rows[i]);
        ck_assert_msg(strstr(t, line) != NULL, "no row %s in\n%s", rows[i], t);
    }
    /* Calls, and bytes: the fused group reads w, x and x2 and writes three results; MB of three runs. */
    unsigned long long calls;
    double ms, share, mb, want = RUNS * 4.0 * (K * M + K * N + 4.0 * M * N) / 1e6;
    ck_assert_int_eq(sscanf(strstr(t, "mul_mat F32 + silu + add ") + 25, "%llu %lf %lf%% %lf", &calls, &ms, &share, &mb), 4);
    ck_assert_uint_eq(calls, RUNS);
    ck_assert(ms > 0 && share > 0 && share <= 100);
    ck_assert_double_eq_tol(mb, want, 0.06);
    ck_assert_int_eq(sscanf(strstr(t, "\nsampling ") + 10, "%llu %lf", &calls, &ms), 2);
    ck_assert_double_eq_tol(ms, 5, 0.01);
    pl_buf_fini(&text);
    pl_profiler_free(p);
}
END_TEST

START_TEST(the_trace_is_an_array_of_events_with_their_threads_and_times)
{
    char path[] = "/tmp/paceline-profiler-XXXXXX";
    close(mkstemp(path));
    pl_profiler *p;
    OK(pl_profiler_new(&p, &(pl_profiler_options){.trace_path = path}, err));
    run_graphs(p, PL_FUSE_ALL);
    pl_profiler_free(p);
    pl_buf text = {0};
    pl_json *v;
    OK(pl_file_read(&text, path, 1 << 20, err));
    OK(pl_json_parse(&v, pl_buf_str(&text), err));
    int spans = 0, names = 0, per_thread[2] = {0};
    double last_ts = 0;
    for (size_t i = 0; i < pl_json_size(v); i++) {
        const pl_json *e = pl_json_at(v, i);
        ck_assert(pl_json_i64(pl_json_get(e, "pid")) == getpid());
        int tid = (int)pl_json_i64(pl_json_get(e, "tid"));
        ck_assert(tid == 0 || tid == 1);
        if (pl_str_is(pl_json_str(pl_json_get(e, "ph")), "M")) {
            names++;
            ck_assert_ptr_nonnull(pl_json_get(pl_json_get(e, "args"), "name"));
            continue;
        }
        ck_assert(pl_str_is(pl_json_str(pl_json_get(e, "ph")), "X"));
        ck_assert(pl_json_f64(pl_json_get(e, "dur")) >= 0 && pl_json_f64(pl_json_get(e, "ts")) > 0);
        if (tid == 0) {
            ck_assert(pl_json_f64(pl_json_get(e, "ts")) >= last_ts);
            last_ts = pl_json_f64(pl_json_get(e, "ts"));
        }
        spans++;
        per_thread[tid]++;
        if (pl_str_is(pl_json_str(pl_json_get(e, "name")), "mul_mat F32 + silu + add"))
            ck_assert(pl_str_is(pl_json_str(pl_json_get(pl_json_get(e, "args"), "of")), "aname"));
    }
    ck_assert_int_eq(names, 3); /* the process and two threads */
    ck_assert_int_eq(per_thread[0], 2 * RUNS);
    ck_assert_int_eq(per_thread[1], RUNS); /* the norm is too small to be shared */
    ck_assert_int_eq(spans, 3 * RUNS);
    pl_json_free(v);
    pl_buf_fini(&text);
    unlink(path);
}
END_TEST

START_TEST(a_trace_stops_growing_at_its_bound_and_stays_readable)
{
    char path[] = "/tmp/paceline-profiler-XXXXXX";
    close(mkstemp(path));
    pl_profiler *p;
    OK(pl_profiler_new(&p, &(pl_profiler_options){.trace_path = path, .trace_bytes_max = 1000}, err));
    for (int i = 0; i < 5; i++) run_graphs(p, PL_FUSE_NONE);
    pl_buf text = {0}, table = {0};
    OK(pl_profiler_print(p, &table, err));
    ck_assert_ptr_nonnull(strstr(pl_buf_cstr(&table), "The trace is full"));
    ck_assert_ptr_nonnull(strstr(pl_buf_cstr(&table), "15 runs"));
    pl_profiler_free(p);
    pl_json *v;
    OK(pl_file_read(&text, path, 1 << 20, err));
    ck_assert_uint_lt(text.size, 1300);
    OK(pl_json_parse(&v, pl_buf_str(&text), err));
    pl_json_free(v);
    pl_buf_fini(&text);
    pl_buf_fini(&table);
    unlink(path);
    pl_error err = {0};
    ck_assert_int_eq(pl_profiler_new(&p, &(pl_profiler_options){.trace_path = "/nowhere/at/all"}, &err), PL_ERR_IO);
    ck_assert_ptr_nonnull(strstr(err.text, "/nowhere/at/all"));
}
END_TEST

START_TEST(limits_of_the_machine_are_above_nothing)
{
    pl_pool *pool;
    pl_cpu_peak peak;
    OK(pl_pool_new(&pool, (pl_pool_options){.n_threads = 2, .poll = -1}, err));
    OK(pl_cpu_peaks(&peak, pool, err));
    ck_assert(peak.read_bytes_s > 1e8 && peak.read_bytes_s < 1e13);
    ck_assert(peak.macs_s > 1e7 && peak.macs_s < 1e15);
    ck_assert_ptr_nonnull(strstr(peak.how, "2 threads"));
    pl_pool_free(pool);
}
END_TEST

Suite *profiler_suite(void)
{
    Suite *s = suite_create("profiler");
    TCase *c = tcase_create("profiler");
    tcase_add_test(c, the_table_has_a_row_for_each_kind_of_group);
    tcase_add_test(c, the_trace_is_an_array_of_events_with_their_threads_and_times);
    tcase_add_test(c, a_trace_stops_growing_at_its_bound_and_stays_readable);
    tcase_add_test(c, limits_of_the_machine_are_above_nothing);
    suite_add_tcase(s, c);
    return s;
}
