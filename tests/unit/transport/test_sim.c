#include "engine/base/rng.h"
#include "tests/fixtures/fixtures.h"
#include "transport/sim.h"
#include <stdio.h>

#define MS UINT64_C(1000000)
#define S  (1000 * MS)

/* A peer answers every message with the same bytes, while hops are left in its first byte, and knows what happened to
 * it. */
typedef struct peer {
    pl_sim *sim;
    pl_sim_process *process;
    pl_net *net;
    pl_link *link;
    int ups, downs, messages, last, ticks;
    bool in_order, called_when_dead;
    pl_error why;
    uint64_t down_at, last_at;
    pl_timer *timer;
} peer;

static pl_msg *text(const char *header, int number)
{
    pl_msg *m;
    ck_ok(pl_msg_new(&m, NULL), (pl_error){0});
    char bytes[64];
    int n = snprintf(bytes, sizeof bytes, "%s %d", header, number);
    m->header = pl_part_copy((pl_bytes){(const uint8_t *)bytes, (size_t)n});
    return m;
}

static void send_number(peer *p, int number)
{
    pl_msg *m = text("n", number);
    if (pl_link_send(p->link, &m, NULL) != PL_OK) pl_msg_free(m);
}

static void on_up(void *user, pl_link *link, bool accepted)
{
    peer *p = user;
    (void)accepted;
    p->called_when_dead |= !pl_sim_alive(p->process);
    p->link = link;
    p->ups++;
}

static void on_message(void *user, pl_link *link, pl_msg *m)
{
    peer *p = user;
    (void)link;
    p->called_when_dead |= !pl_sim_alive(p->process);
    int number = -1;
    char bytes[64] = {0};
    memcpy(bytes, m->header->data, m->header->size < 63 ? m->header->size : 63);
    sscanf(bytes, "n %d", &number);
    p->in_order &= number == p->last + 1;
    p->last = number;
    p->last_at = pl_sim_now(p->sim);
    p->messages++;
    pl_msg_free(m);
}

static void on_down(void *user, pl_link *link, const pl_error *why)
{
    peer *p = user;
    p->called_when_dead |= !pl_sim_alive(p->process);
    if (p->link == link) p->link = NULL;
    p->downs++;
    p->why = *why;
    p->down_at = pl_sim_now(p->sim);
}

static const pl_net_events events = {on_up, on_message, on_down};

static peer peer_make(pl_sim *sim, const char *name)
{
    peer p = {.sim = sim, .in_order = true, .last = -1};
    pl_error err = {0};
    ck_ok(pl_sim_process_new(&p.process, sim, name, &err), err);
    return p;
}

/* Apart from peer_make, as the net remembers where the peer is. */
static void peer_start(peer *p, const char *address)
{
    pl_error err = {0};
    ck_ok(pl_net_sim_new(&p->net, p->process, NULL, &events, p, &err), err);
    if (address) ck_ok(pl_net_listen(p->net, address, &err), err);
}

static void peer_end(peer *p)
{
    pl_net_free(p->net);
    pl_sim_process_free(p->process);
    ck_assert(!p->called_when_dead);
}

typedef struct world {
    pl_sim *sim;
    peer a, b; /* a dials b */
} world;

static void world_start(world *w, uint64_t seed, const pl_sim_options *options)
{
    pl_error err = {0};
    ck_ok(pl_sim_new(&w->sim, seed, options, &err), err);
    w->a = peer_make(w->sim, "a");
    w->b = peer_make(w->sim, "b");
    peer_start(&w->a, NULL);
    peer_start(&w->b, "sim://b");
    ck_ok(pl_link_dial(w->a.net, "sim://b", NULL, 5 * S, NULL, &w->a.link, &err), err);
    pl_sim_run_until(w->sim, 2 * S);
    ck_assert_int_eq(w->a.ups, 1);
    ck_assert_int_eq(w->b.ups, 1);
}

static void world_end(world *w)
{
    peer_end(&w->a);
    peer_end(&w->b);
    pl_sim_free(w->sim);
}

START_TEST(messages_cross_in_order_in_both_directions)
{
    world w;
    world_start(&w, 1, NULL);
    for (int i = 0; i < 500; i++) {
        send_number(&w.a, i);
        send_number(&w.b, i);
    }
    pl_sim_run_until(w.sim, 3 * S);
    ck_assert_int_eq(w.a.messages, 500);
    ck_assert_int_eq(w.b.messages, 500);
    ck_assert(w.a.in_order && w.b.in_order);
    world_end(&w);
}
END_TEST

START_TEST(a_closed_link_is_down_at_the_other_end_after_what_was_sent)
{
    world w;
    world_start(&w, 2, NULL);
    for (int i = 0; i < 10; i++) send_number(&w.a, i);
    pl_link_close(w.a.link);
    pl_sim_run_until(w.sim, 3 * S);
    ck_assert_int_eq(w.b.messages, 10);
    ck_assert_int_eq(w.b.downs, 1);
    ck_assert_int_eq(w.a.downs, 0);
    world_end(&w);
}
END_TEST

START_TEST(a_killed_process_is_seen_down_and_never_called)
{
    world w;
    world_start(&w, 3, NULL);
    for (int i = 0; i < 10; i++) send_number(&w.a, i);
    pl_sim_kill(w.b.process, false);
    pl_sim_run_until(w.sim, 3 * S);
    ck_assert_int_eq(w.a.downs, 1);
    ck_assert_int_eq(w.a.why.status, PL_ERR_CLOSED);
    ck_assert_int_eq(w.b.messages, 0);
    world_end(&w);
}
END_TEST

START_TEST(a_silent_death_is_seen_by_nobody)
{
    world w;
    world_start(&w, 4, NULL);
    pl_sim_kill(w.b.process, true);
    pl_sim_run_until(w.sim, 100 * S);
    ck_assert_int_eq(w.a.downs, 0);
    ck_assert_ptr_nonnull(w.a.link);
    world_end(&w);
}
END_TEST

START_TEST(a_restarted_process_is_found_at_its_address)
{
    world w;
    world_start(&w, 5, NULL);
    pl_error err = {0};
    pl_sim_kill(w.b.process, false);
    pl_sim_run_until(w.sim, 3 * S);
    ck_ok(pl_link_dial(w.a.net, "sim://b", NULL, 5 * S, NULL, &w.a.link, &err), err);
    pl_sim_run_until(w.sim, 4 * S);
    ck_assert_int_eq(w.a.ups, 1);
    peer second = peer_make(w.sim, "b");
    peer_start(&second, "sim://b");
    pl_sim_run_until(w.sim, 5 * S);
    ck_assert_int_eq(w.a.ups, 2);
    ck_assert_int_eq(second.ups, 1);
    peer_end(&second);
    world_end(&w);
}
END_TEST

START_TEST(a_paused_process_gets_everything_when_it_goes_on)
{
    world w;
    world_start(&w, 6, NULL);
    pl_sim_pause(w.b.process);
    for (int i = 0; i < 10; i++) send_number(&w.a, i);
    pl_sim_run_until(w.sim, 10 * S);
    ck_assert_int_eq(w.b.messages, 0);
    send_number(&w.a, 10);
    pl_sim_resume(w.b.process);
    pl_sim_run_until(w.sim, 11 * S);
    ck_assert_int_eq(w.b.messages, 11);
    ck_assert(w.b.in_order);
    ck_assert_int_eq(w.a.downs + w.b.downs, 0);
    world_end(&w);
}
END_TEST

START_TEST(a_cut_holds_one_direction_until_it_is_healed)
{
    world w;
    world_start(&w, 7, NULL);
    pl_sim_cut(w.a.process, w.b.process);
    for (int i = 0; i < 5; i++) {
        send_number(&w.a, i);
        send_number(&w.b, i);
    }
    pl_sim_run_until(w.sim, 10 * S);
    ck_assert_int_eq(w.a.messages, 5);
    ck_assert_int_eq(w.b.messages, 0);
    send_number(&w.a, 5);
    pl_sim_heal(w.a.process, w.b.process);
    send_number(&w.a, 6);
    pl_sim_run_until(w.sim, 11 * S);
    ck_assert_int_eq(w.b.messages, 7);
    ck_assert(w.b.in_order);
    world_end(&w);
}
END_TEST

START_TEST(a_kill_behind_a_cut_is_seen_when_healed)
{
    world w;
    world_start(&w, 8, NULL);
    pl_sim_cut(w.b.process, w.a.process);
    pl_sim_kill(w.b.process, false);
    pl_sim_run_until(w.sim, 10 * S);
    ck_assert_int_eq(w.a.downs, 0);
    pl_sim_heal_all(w.sim);
    pl_sim_run_until(w.sim, 11 * S);
    ck_assert_int_eq(w.a.downs, 1);
    world_end(&w);
}
END_TEST

START_TEST(a_broken_connection_is_down_at_both_ends)
{
    world w;
    world_start(&w, 9, NULL);
    send_number(&w.a, 0);
    pl_sim_break(w.a.process, w.b.process);
    pl_sim_run_until(w.sim, 3 * S);
    ck_assert_int_eq(w.a.downs, 1);
    ck_assert_int_eq(w.b.downs, 1);
    ck_assert_int_eq(w.b.messages, 0);
    world_end(&w);
}
END_TEST

START_TEST(a_dial_that_fails_takes_its_time)
{
    world w;
    world_start(&w, 10, NULL);
    pl_error err = {0};
    pl_link *link;
    pl_sim_set_dial_failure(w.sim, 1.0);
    uint64_t begin = pl_sim_now(w.sim);
    ck_ok(pl_link_dial(w.a.net, "sim://b", NULL, 3 * S, NULL, &link, &err), err);
    pl_sim_run_until(w.sim, 100 * S);
    ck_assert_int_eq(w.a.downs, 1);
    ck_assert_int_eq(w.a.why.status, PL_ERR_TIMEOUT);
    ck_assert_uint_eq(w.a.down_at, begin + 3 * S);
    world_end(&w);
}
END_TEST

static void tick(void *user)
{
    peer *p = user;
    p->ticks++;
    p->last_at = pl_sim_now(p->sim);
}

static void tick_once_and_stop(void *user)
{
    peer *p = user;
    p->ticks++;
    pl_timer_stop(pl_sim_loop(p->process), p->timer);
    p->timer = NULL;
}

START_TEST(timers_fire_at_their_nanosecond_and_die_with_their_process)
{
    world w;
    world_start(&w, 11, NULL);
    pl_error err = {0};
    pl_timer *once, *stopped, *repeating;
    pl_loop *loop = pl_sim_loop(w.a.process);
    uint64_t begin = pl_loop_now(loop);
    ck_ok(pl_timer_start(loop, 12345, 0, tick, &w.a, &once, &err), err);
    ck_ok(pl_timer_start(loop, 100, 0, tick, &w.a, &stopped, &err), err);
    pl_timer_stop(loop, stopped);
    pl_sim_run_until(w.sim, 3 * S);
    ck_assert_int_eq(w.a.ticks, 1);
    ck_assert_uint_eq(w.a.last_at, begin + 12345);
    ck_ok(pl_timer_start(loop, 1, 7, tick_once_and_stop, &w.a, &w.a.timer, &err), err);
    pl_sim_run_until(w.sim, 4 * S);
    ck_assert_int_eq(w.a.ticks, 2);
    ck_ok(pl_timer_start(loop, 10 * MS, 10 * MS, tick, &w.a, &repeating, &err), err);
    pl_sim_run_until(w.sim, 4 * S + 105 * MS);
    ck_assert_int_eq(w.a.ticks, 12);
    ck_ok(pl_loop_post(loop, tick, &w.a), err);
    pl_sim_kill(w.a.process, false);
    pl_sim_run_until(w.sim, 10 * S);
    ck_assert_int_eq(w.a.ticks, 12);
    pl_timer_stop(loop, repeating);
    world_end(&w);
}
END_TEST

START_TEST(a_full_queue_refuses_and_leaves_the_message)
{
    world w;
    world_start(&w, 12, NULL);
    pl_sim_kill(w.b.process, true);
    for (int i = 0; i < 1000; i++) {
        pl_msg *m = text("n", i);
        ck_ok(pl_link_send(w.a.link, &m, NULL), (pl_error){0});
        if (i % 100 == 0) pl_sim_run_until(w.sim, pl_sim_now(w.sim) + S);
    }
    pl_error err = {0};
    pl_msg *m = text("n", 1000);
    ck_status(pl_link_send(w.a.link, &m, &err), PL_ERR_TIMEOUT, err);
    ck_assert_ptr_nonnull(m);
    pl_msg_free(m);
    world_end(&w);
}
END_TEST

/* Two peers under every kind of fault, drawn from seed. */
static uint64_t run_with_faults(uint64_t seed)
{
    pl_error err = {0};
    world w;
    pl_sim_options options = {.bytes_s = 1000000};
    world_start(&w, seed, &options);
    pl_rng rng;
    pl_rng_seed(&rng, seed + 1);
    for (int round = 0, a = 0, b = 0; round < 300; round++) {
        switch (pl_rng_below(&rng, 12)) {
        case 0: pl_sim_pause(w.a.process); break;
        case 1: pl_sim_pause(w.b.process); break;
        case 2: pl_sim_cut(w.a.process, w.b.process); break;
        case 3: pl_sim_cut(w.b.process, w.a.process); break;
        case 4: pl_sim_break(w.a.process, w.b.process); break;
        case 5: pl_sim_heal_all(w.sim); break;
        case 6:
            if (!w.a.link)
                ck_ok(pl_link_dial(w.a.net, "sim://b", NULL, pl_rng_below(&rng, S), NULL, &w.a.link, &err), err);
            break;
        default:
            if (w.a.link) send_number(&w.a, a++);
            if (w.b.link) send_number(&w.b, b++);
        }
        pl_sim_run_until(w.sim, pl_sim_now(w.sim) + pl_rng_below(&rng, 20 * MS));
    }
    pl_sim_heal_all(w.sim);
    ck_assert(pl_sim_run_until_idle(w.sim, pl_sim_now(w.sim) + 100 * S));
    uint64_t trace = pl_sim_trace(w.sim);
    world_end(&w);
    return trace;
}

START_TEST(the_same_seed_gives_the_same_trace_and_another_seed_another)
{
    uint64_t first = run_with_faults((uint64_t)_i);
    ck_assert_uint_eq(first, run_with_faults((uint64_t)_i));
    ck_assert_uint_ne(first, run_with_faults((uint64_t)_i + 1));
}
END_TEST

Suite *sim_suite(void);
Suite *sim_suite(void)
{
    Suite *s = suite_create("transport/sim");
    TCase *t = tcase_create("sim");
    tcase_add_test(t, messages_cross_in_order_in_both_directions);
    tcase_add_test(t, a_closed_link_is_down_at_the_other_end_after_what_was_sent);
    tcase_add_test(t, a_killed_process_is_seen_down_and_never_called);
    tcase_add_test(t, a_silent_death_is_seen_by_nobody);
    tcase_add_test(t, a_restarted_process_is_found_at_its_address);
    tcase_add_test(t, a_paused_process_gets_everything_when_it_goes_on);
    tcase_add_test(t, a_cut_holds_one_direction_until_it_is_healed);
    tcase_add_test(t, a_kill_behind_a_cut_is_seen_when_healed);
    tcase_add_test(t, a_broken_connection_is_down_at_both_ends);
    tcase_add_test(t, a_dial_that_fails_takes_its_time);
    tcase_add_test(t, timers_fire_at_their_nanosecond_and_die_with_their_process);
    tcase_add_test(t, a_full_queue_refuses_and_leaves_the_message);
    tcase_add_loop_test(t, the_same_seed_gives_the_same_trace_and_another_seed_another, 0, 20);
    suite_add_tcase(s, t);
    return s;
}
