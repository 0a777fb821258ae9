#include "tests/fixtures/fixtures.h"
#include "transport/loop.h"
#include <pthread.h>
#include <unistd.h>

#define MS UINT64_C(1000000)

typedef struct state {
    pl_loop *loop;
    pl_timer *timer;
    void *watch;
    int n, order[8], fds[2];
    uint64_t fired_at;
    pthread_t thread, loop_thread;
} state;

static state make(void)
{
    state s = {.loop_thread = pthread_self()};
    pl_error err = {0};
    ck_ok(pl_loop_uv_new(&s.loop, &err), err);
    return s;
}

static void fire_and_stop(void *user)
{
    state *s = user;
    s->n++;
    s->fired_at = pl_loop_now(s->loop);
    pl_loop_uv_stop(s->loop);
}

static void tick(void *user)
{
    state *s = user;
    if (++s->n < 3) return;
    pl_timer_stop(s->loop, s->timer);
    pl_loop_uv_stop(s->loop);
}

static void count(void *user)
{
    ((state *)user)->n++;
}

START_TEST(a_timer_is_never_early_and_fires_once)
{
    state s = make();
    pl_error err = {0};
    uint64_t begin = pl_loop_now(s.loop);
    /* libuv counts in milliseconds: the fraction must be rounded up. */
    ck_ok(pl_timer_start(s.loop, 5 * MS + 1, 0, fire_and_stop, &s, &s.timer, &err), err);
    pl_loop_uv_run(s.loop);
    ck_assert_int_eq(s.n, 1);
    ck_assert_uint_ge(s.fired_at - begin, 5 * MS);
    pl_loop_uv_free(s.loop);
}
END_TEST

START_TEST(a_repeating_timer_may_stop_itself)
{
    state s = make();
    pl_error err = {0};
    ck_ok(pl_timer_start(s.loop, 0, 1 * MS, tick, &s, &s.timer, &err), err);
    pl_loop_uv_run(s.loop);
    ck_assert_int_eq(s.n, 3);
    pl_loop_uv_free(s.loop);
}
END_TEST

START_TEST(a_stopped_timer_does_not_fire_and_one_left_over_is_freed_with_the_loop)
{
    state s = make();
    pl_error err = {0};
    pl_timer *stopped, *left, *end;
    ck_ok(pl_timer_start(s.loop, 1 * MS, 0, count, &s, &stopped, &err), err);
    ck_ok(pl_timer_start(s.loop, 3600000 * MS, 1 * MS, count, &s, &left, &err), err);
    pl_timer_stop(s.loop, stopped);
    pl_timer_stop(s.loop, NULL);
    ck_ok(pl_timer_start(s.loop, 20 * MS, 0, fire_and_stop, &s, &end, &err), err);
    pl_loop_uv_run(s.loop);
    ck_assert_int_eq(s.n, 1);
    pl_loop_uv_free(s.loop);
}
END_TEST

typedef struct posted {
    state *s;
    int number;
} posted;

static void on_posted(void *user)
{
    const posted *p = user;
    ck_assert(pthread_equal(pthread_self(), p->s->loop_thread));
    p->s->order[p->s->n++] = p->number;
    if (p->s->n == 8) pl_loop_uv_stop(p->s->loop);
}

static void *post_all(void *user)
{
    posted *p = user;
    for (int i = 0; i < 8; i++) ck_assert_int_eq(pl_loop_post(p[i].s->loop, on_posted, &p[i]), PL_OK);
    return NULL;
}

START_TEST(posts_of_another_thread_come_in_order_on_the_loops_thread)
{
    state s = make();
    posted p[8];
    for (int i = 0; i < 8; i++) p[i] = (posted){&s, i};
    ck_assert_int_eq(pthread_create(&s.thread, NULL, post_all, p), 0);
    pl_loop_uv_run(s.loop);
    pthread_join(s.thread, NULL);
    for (int i = 0; i < 8; i++) ck_assert_int_eq(s.order[i], i);
    pl_loop_uv_free(s.loop);
}
END_TEST

START_TEST(a_post_that_never_ran_is_freed_with_the_loop)
{
    state s = make();
    ck_assert_int_eq(pl_loop_post(s.loop, count, &s), PL_OK);
    pl_loop_uv_stop(s.loop);
    pl_loop_uv_free(s.loop);
}
END_TEST

static void on_readable(void *user)
{
    state *s = user;
    char c;
    ck_assert_int_eq(read(s->fds[0], &c, 1), 1);
    if (++s->n < 3) return; /* level-triggered: called again for what is left */
    pl_loop_unwatch_fd(s->loop, s->watch);
    s->watch = NULL;
    pl_loop_uv_stop(s->loop);
}

START_TEST(a_watched_descriptor_calls_while_something_is_left)
{
    state s = make();
    pl_error err = {0};
    ck_assert_int_eq(pipe(s.fds), 0);
    ck_ok(pl_loop_watch_fd(s.loop, s.fds[0], on_readable, &s, &s.watch, &err), err);
    ck_assert_int_eq(write(s.fds[1], "abc", 3), 3);
    pl_loop_uv_run(s.loop);
    ck_assert_int_eq(s.n, 3);
    close(s.fds[0]);
    close(s.fds[1]);
    pl_loop_uv_free(s.loop);
}
END_TEST

Suite *loop_uv_suite(void);
Suite *loop_uv_suite(void)
{
    Suite *s = suite_create("transport/loop_uv");
    TCase *t = tcase_create("loop");
    tcase_add_test(t, a_timer_is_never_early_and_fires_once);
    tcase_add_test(t, a_repeating_timer_may_stop_itself);
    tcase_add_test(t, a_stopped_timer_does_not_fire_and_one_left_over_is_freed_with_the_loop);
    tcase_add_test(t, posts_of_another_thread_come_in_order_on_the_loops_thread);
    tcase_add_test(t, a_post_that_never_ran_is_freed_with_the_loop);
    tcase_add_test(t, a_watched_descriptor_calls_while_something_is_left);
    suite_add_tcase(s, t);
    return s;
}
