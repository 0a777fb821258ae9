#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/alloc.h"
#include "engine/base/pool.h"
#include "engine/base/sys.h"
#include "tests/unit/base/suites.h"

static pl_pool *new_pool(pl_pool_options o)
{
    pl_pool *p;
    pl_error err = {0};
    ck_ok(pl_pool_new(&p, o, &err), err);
    return p;
}

enum { ROUNDS = 200, THREADS_MAX = 8 };

typedef struct shared {
    int seen[THREADS_MAX]; /* written by its own thread, read by the others behind a barrier */
    _Atomic int wrong;
    _Atomic int64_t taken;
} shared;

static void meet(pl_team *team, int i, int n, void *user)
{
    shared *s = user;
    for (int round = 1; round <= ROUNDS; round++) {
        s->seen[i] = round;
        pl_team_barrier(team);
        for (int k = 0; k < n; k++) {
            if (s->seen[k] != round) atomic_fetch_add(&s->wrong, 1);
        }
        pl_team_barrier(team);
        /* The counter begins at 0 again and gives each number once. */
        for (int64_t k; (k = pl_team_next(team)) < 50;) atomic_fetch_add(&s->taken, k + 1);
        pl_team_barrier(team);
    }
}

START_TEST(nobody_passes_a_barrier_early_and_each_number_is_taken_once)
{
    for (int n = 1; n <= THREADS_MAX; n += n < 4 ? 1 : 4) {
        pl_pool *p = new_pool((pl_pool_options){.n_threads = n, .poll = _i, .pin = n == 2});
        ck_assert_int_eq(pl_pool_threads(p), n);
        for (int job = 0; job < 5; job++) {
            shared s = {0};
            pl_pool_run(p, meet, &s);
            ck_assert_int_eq(atomic_load(&s.wrong), 0);
            ck_assert_int_eq(atomic_load(&s.taken), (int64_t)ROUNDS * 50 * 51 / 2);
        }
        pl_pool_free(p);
    }
}
END_TEST

static void count(pl_team *team, int i, int n, void *user)
{
    (void)team;
    (void)i;
    (void)n;
    atomic_fetch_add((_Atomic int *)user, 1);
}

START_TEST(many_short_jobs_and_long_gaps_both_work)
{
    pl_pool *p = new_pool((pl_pool_options){.n_threads = 3, .poll = -1});
    _Atomic int runs = 0;
    for (int i = 0; i < 2000; i++) pl_pool_run(p, count, &runs);
    for (int i = 0; i < 5; i++) {
        usleep(3000); /* the workers sleep by now */
        pl_pool_run(p, count, &runs);
    }
    ck_assert_int_eq(atomic_load(&runs), 3 * 2005);
    pl_pool_free(p);
    pl_pool_free(NULL);
}
END_TEST

START_TEST(a_pool_without_a_job_takes_no_processor_time)
{
    /* The most eager one: each worker may spin for 100 us behind its job, and then has to sleep. */
    pl_pool *p = new_pool((pl_pool_options){.n_threads = 4, .poll = 100});
    _Atomic int runs = 0;
    struct timespec a, b;
    for (int i = 0; i < 100; i++) pl_pool_run(p, count, &runs);
    usleep(20000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    usleep(300000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    double used = (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) * 1e-9;
    ck_assert_msg(used < 0.01, "%.3f s of processor time in 0.3 s without a job", used);
    pl_pool_free(p);
}
END_TEST

START_TEST(options_and_memory_are_checked)
{
    pl_pool *p;
    pl_error err = {0};
    ck_status(pl_pool_new(&p, (pl_pool_options){.n_threads = -1}, &err), PL_ERR_INVALID, err);
    ck_status(pl_pool_new(&p, (pl_pool_options){.n_threads = 100000}, &err), PL_ERR_INVALID, err);
    ck_status(pl_pool_new(&p, (pl_pool_options){.poll = 101}, &err), PL_ERR_INVALID, err);
    /* The first pool also looks at the machine, which allocates. */
    p = new_pool((pl_pool_options){0});
    ck_assert_int_eq(pl_pool_threads(p), pl_sys_cpus());
    pl_pool_free(p);
    for (uint64_t n = 1; n <= 2; n++) {
        pl_alloc_fail_at(n);
        pl_status s = pl_pool_new(&p, (pl_pool_options){.n_threads = 2}, &err);
        pl_alloc_fail_at(0);
        ck_status(s, PL_ERR_NO_MEMORY, err);
        ck_assert_ptr_null(p);
    }
}
END_TEST

static pl_pool *nested;
static void run_again(pl_team *team, int i, int n, void *user)
{
    (void)team;
    (void)n;
    if (i == 0) pl_pool_run(nested, count, user);
}

START_TEST(a_job_that_runs_its_own_pool_is_a_bug)
{
    _Atomic int runs = 0;
    nested = new_pool((pl_pool_options){.n_threads = 1});
    pl_pool_run(nested, run_again, &runs); /* aborts */
}
END_TEST

/* About 5 us of work between barriers, as between the operators of a small model. */
static void steps(pl_team *team, int i, int n, void *user)
{
    (void)i;
    (void)n;
    int reps = *(int *)user;
    for (int r = 0; r < reps; r++) {
        volatile double x = 1;
        for (int k = 0; k < 1500; k++) x = x * 1.0001;
        pl_team_barrier(team);
    }
}

/* Seconds that `processes` pools of two threads need, all at once, for the same work each. */
static double time_of(int processes)
{
    uint64_t start = pl_now_ns();
    for (int i = 0; i < processes; i++) {
        if (fork()) continue;
        pl_pool *p;
        if (pl_pool_new(&p, (pl_pool_options){.n_threads = 2, .poll = -1}, NULL) != PL_OK) _exit(1);
        int reps = 200;
        for (int step = 0; step < 50; step++) pl_pool_run(p, steps, &reps);
        pl_pool_free(p);
        _exit(0);
    }
    for (int i = 0; i < processes; i++) {
        int status;
        ck_assert_int_gt(wait(&status), 0);
        ck_assert_int_eq(status, 0);
    }
    return (double)(pl_now_ns() - start) * 1e-9;
}

START_TEST(pools_that_share_processors_slow_down_in_proportion)
{
    /* Five pools of two threads where two processors are: 5 times as long would be exact. A pool that spins for threads
     * that do not run takes 50 times or more. The best of three rounds, since the machine may be busy with other
     * things. */
    if (pl_sys_cpus() < 2) return;
    double best = 1e9;
    for (int round = 0; round < 3 && best > 5; round++) {
        double alone = time_of(1), together = time_of(5 * pl_sys_cpus() / 2), ratio = together / alone;
        fprintf(stderr, "alone %.3f s, together %.3f s, ratio %.1f\n", alone, together, ratio);
        if (ratio < best) best = ratio;
    }
    ck_assert_msg(best < 15, "five times the work took %.1f times as long", best);
}
END_TEST

Suite *pool_suite(void)
{
    Suite *s = suite_create("engine/base pool");
    TCase *t = tcase_create("pool");
    suite_add_tcase(s, t);
    tcase_add_loop_test(t, nobody_passes_a_barrier_early_and_each_number_is_taken_once, -1, 1); /* poll */
    tcase_add_test(t, many_short_jobs_and_long_gaps_both_work);
    tcase_add_test(t, a_pool_without_a_job_takes_no_processor_time);
    tcase_add_test(t, options_and_memory_are_checked);
    tcase_add_test_raise_signal(t, a_job_that_runs_its_own_pool_is_a_bug, SIGABRT);
    tcase_add_test(t, pools_that_share_processors_slow_down_in_proportion);
    return s;
}
