/* What every implementation of links promises: one suite over the virtual net, and over ZeroMQ on TCP without and with
 * CURVE, and on inproc. */
#include "engine/base/alloc.h"
#include "tests/fixtures/fixtures.h"
#include "transport/curve.h"
#include "transport/sim.h"
#include <stdio.h>
#include <stdlib.h>

#define MS UINT64_C(1000000)
#define S  (1000 * MS)

typedef enum { SIM, TCP, CURVE, INPROC, INPROC_KEYS, N_KINDS } kind;
static const char *const kind_names[N_KINDS] = {"sim", "tcp", "curve", "inproc", "inproc with keys"};

static bool has_keys(kind k)
{
    return k == CURVE || k == INPROC_KEYS;
}

#define LINKS_MAX 64

/* One net and what happened to it. */
typedef struct end {
    struct world *w;
    pl_sim_process *process;
    pl_net *net;
    pl_key public_key, secret_key;
    pl_link *links[LINKS_MAX]; /* that are up */
    bool accepted[LINKS_MAX];
    int n_links, ups, downs, n_messages;
    pl_msg *last;    /* kept */
    int next_number; /* of numbered messages */
    bool in_order, echo;
    pl_error why;
    bool (*message)(struct end *e, pl_link *link, pl_msg *m); /* true: m was taken */
} end;

typedef struct world {
    kind kind;
    pl_sim *sim;
    pl_loop *loop;
    end a, b; /* b listens */
    char address[128];
    pl_key admitted; /* by b */
    bool (*cond)(struct world *w);
    uint64_t deadline;
    pl_timer *timer;
    bool held;
} world;

static pl_part *part_of_bytes(size_t size, unsigned seed)
{
    pl_part *p = pl_part_new(size);
    ck_assert_ptr_nonnull(p);
    for (size_t i = 0; i < size; i++) p->data[i] = (uint8_t)(seed + i * 31 + i / 251);
    return p;
}

static bool part_is(const pl_part *p, size_t size, unsigned seed)
{
    if (p->size != size) return false;
    for (size_t i = 0; i < size; i++)
        if (p->data[i] != (uint8_t)(seed + i * 31 + i / 251)) return false;
    return true;
}

static pl_msg *numbered(int number)
{
    pl_msg *m;
    ck_ok(pl_msg_new(&m, NULL), (pl_error){0});
    m->header = pl_part_new(4);
    ck_assert_ptr_nonnull(m->header);
    pl_put_u32(m->header->data, (uint32_t)number);
    return m;
}

static void send_now(pl_link *l, pl_msg *m)
{
    pl_error err = {0};
    ck_ok(pl_link_send(l, &m, &err), err);
    ck_assert_ptr_null(m);
}

static void on_up(void *user, pl_link *link, bool accepted)
{
    end *e = user;
    ck_assert_int_lt(e->n_links, LINKS_MAX);
    e->accepted[e->n_links] = accepted;
    e->links[e->n_links++] = link;
    e->ups++;
}

static void forget(end *e, const pl_link *link)
{
    for (int i = 0; i < e->n_links; i++)
        if (e->links[i] == link) {
            e->links[i] = e->links[--e->n_links];
            return;
        }
}

static void on_message(void *user, pl_link *link, pl_msg *m)
{
    end *e = user;
    e->n_messages++;
    if (m->header->size == 4) e->in_order &= pl_get_u32(m->header->data) == (uint32_t)e->next_number++;
    if (e->message && e->message(e, link, m)) return;
    if (e->echo) {
        pl_msg *back = m;
        if (pl_link_send(link, &back, NULL) == PL_OK) return;
    }
    pl_msg_free(e->last);
    e->last = m;
}

static void on_down(void *user, pl_link *link, const pl_error *why)
{
    end *e = user;
    forget(e, link);
    e->downs++;
    e->why = *why;
}

static const pl_net_events events = {on_up, on_message, on_down};

static bool admits(void *user, const pl_key *peer)
{
    const world *w = user;
    return pl_key_eq(peer, &w->admitted);
}

static void net_make(end *e, const char *name, const pl_net_limits *limits)
{
    world *w = e->w;
    pl_error err = {0};
    if (has_keys(w->kind)) ck_ok(pl_key_pair_new(&e->public_key, &e->secret_key, &err), err);
    if (w->kind == SIM) {
        pl_sim_net_options o = {.allowed = admits, .allowed_user = w};
        if (limits) o.limits = *limits;
        ck_ok(pl_sim_process_new(&e->process, w->sim, name, &err), err);
        ck_ok(pl_net_sim_new(&e->net, e->process, &o, &events, e, &err), err);
        return;
    }
    pl_zmq_options o = {.secret_key = has_keys(w->kind) ? &e->secret_key : NULL,
                        .public_key = has_keys(w->kind) ? &e->public_key : NULL,
                        .allowed = admits,
                        .allowed_user = w};
    if (limits) o.limits = *limits;
    ck_ok(pl_net_zmq_new(&e->net, w->loop, &o, &events, e, &err), err);
}

static void end_init(end *e, world *w)
{
    *e = (end){.w = w, .in_order = true};
}

static void end_fini(end *e)
{
    pl_msg_free(e->last);
    pl_net_free(e->net);
    pl_sim_process_free(e->process);
}

static void world_make(world *w, int k, const pl_net_limits *limits_of_b)
{
    *w = (world){.kind = (kind)k};
    pl_error err = {0};
    if (w->kind == SIM)
        ck_ok(pl_sim_new(&w->sim, 1, NULL, &err), err);
    else
        ck_ok(pl_loop_uv_new(&w->loop, &err), err);
    end_init(&w->a, w);
    end_init(&w->b, w);
    net_make(&w->a, "a", NULL);
    net_make(&w->b, "b", limits_of_b);
    const char *address = w->kind == SIM                                ? "sim://b"
                          : w->kind == INPROC || w->kind == INPROC_KEYS ? "inproc://contract"
                                                                        : "tcp://127.0.0.1:*";
    ck_ok(pl_net_listen(w->b.net, address, &err), err);
    snprintf(w->address, sizeof w->address, "%s", pl_net_address(w->b.net));
    w->admitted = w->a.public_key;
}

static void world_end(world *w)
{
    end_fini(&w->a);
    end_fini(&w->b);
    pl_sim_free(w->sim);
    pl_loop_uv_free(w->loop);
}

static void poll_cond(void *user)
{
    world *w = user;
    w->held = w->cond(w);
    if (w->held || pl_loop_now(w->loop) >= w->deadline) {
        pl_timer_stop(w->loop, w->timer);
        pl_loop_uv_stop(w->loop);
    }
}

static bool sim_cond(void *user)
{
    world *w = user;
    return !w->cond(w);
}

/* Runs until cond holds; false when it does not within the time. */
static bool run(world *w, bool (*cond)(world *w), uint64_t time_ns)
{
    w->cond = cond;
    if (w->kind == SIM) return pl_sim_run_while(w->sim, sim_cond, w, pl_sim_now(w->sim) + time_ns) || cond(w);
    pl_error err = {0};
    w->held = false;
    w->deadline = pl_loop_now(w->loop) + time_ns;
    ck_ok(pl_timer_start(w->loop, 0, 1 * MS, poll_cond, w, &w->timer, &err), err);
    pl_loop_uv_run(w->loop);
    return w->held;
}

static bool never(world *w)
{
    (void)w;
    return false;
}
static bool both_up(world *w)
{
    return w->a.ups >= 1 && w->b.ups >= 1;
}
static bool a_down(world *w)
{
    return w->a.downs >= 1;
}
static bool b_down(world *w)
{
    return w->b.downs >= 1;
}

static pl_link *dial(world *w, end *e, uint64_t timeout_ns)
{
    pl_error err = {0};
    pl_link *l;
    ck_ok(pl_link_dial(e->net, w->address, has_keys(w->kind) ? &w->b.public_key : NULL, timeout_ns, e, &l, &err), err);
    return l;
}

static void connect_ends(world *w)
{
    dial(w, &w->a, 5 * S);
    ck_assert_msg(run(w, both_up, 10 * S), "%s: no link: %s", kind_names[w->kind], w->a.why.text);
}

START_TEST(a_dialed_link_is_up_at_both_ends_with_each_others_keys)
{
    world w;
    world_make(&w, _i, NULL);
    pl_link *l = dial(&w, &w.a, 5 * S);
    ck_assert(run(&w, both_up, 10 * S));
    ck_assert_ptr_eq(w.a.links[0], l);
    ck_assert_ptr_eq(l->tag, &w.a);
    ck_assert(!w.a.accepted[0] && w.b.accepted[0]);
    ck_assert_ptr_null(w.b.links[0]->tag);
    ck_assert(pl_key_eq(&w.a.links[0]->peer, &w.b.public_key));
    ck_assert(pl_key_eq(&w.b.links[0]->peer, &w.a.public_key));
    ck_assert_str_eq(l->address, w.address);
    if (w.kind == TCP || w.kind == CURVE) ck_assert_str_eq(w.b.links[0]->address, "tcp://127.0.0.1");
    world_end(&w);
}
END_TEST

static int wanted;
static bool wanted_numbers(world *w)
{
    return w->a.n_messages == wanted && w->b.n_messages == wanted;
}

START_TEST(messages_arrive_in_order_in_both_directions)
{
    world w;
    world_make(&w, _i, NULL);
    connect_ends(&w);
    /* In rounds, since a queue holds 1000. */
    for (int i = 0; i < 2000; i++) {
        send_now(w.a.links[0], numbered(i));
        send_now(w.b.links[0], numbered(i));
        wanted = i + 1;
        if (wanted % 500 == 0) ck_assert(run(&w, wanted_numbers, 10 * S));
    }
    ck_assert(w.a.in_order && w.b.in_order);
    world_end(&w);
}
END_TEST

static bool b_has_one(world *w)
{
    return w->b.n_messages >= 1;
}
static bool a_has_one(world *w)
{
    return w->a.n_messages >= 1;
}

START_TEST(a_message_with_eight_parts_arrives_whole_and_comes_back)
{
    static const size_t sizes[PL_MSG_PARTS_MAX] = {0, 1, 29, 34, 1000, 8191, 65536, 300001};
    world w;
    world_make(&w, _i, NULL);
    connect_ends(&w);
    w.b.echo = true;
    pl_msg *m;
    ck_ok(pl_msg_new(&m, NULL), (pl_error){0});
    m->header = part_of_bytes(777, 1);
    for (unsigned i = 0; i < PL_MSG_PARTS_MAX; i++)
        ck_ok(pl_msg_add(m, part_of_bytes(sizes[i], i), NULL), (pl_error){0});
    send_now(w.a.links[0], m);
    ck_assert(run(&w, a_has_one, 10 * S));
    ck_assert(part_is(w.a.last->header, 777, 1));
    ck_assert_int_eq(w.a.last->n_parts, PL_MSG_PARTS_MAX);
    for (unsigned i = 0; i < PL_MSG_PARTS_MAX; i++) {
        ck_assert_msg(part_is(w.a.last->parts[i], sizes[i], i), "part %u", i);
        ck_assert_uint_eq((uintptr_t)w.a.last->parts[i]->data % 8, 0);
    }
    world_end(&w);
}
END_TEST

START_TEST(a_part_of_64_mib_arrives)
{
    world w;
    world_make(&w, _i, NULL);
    connect_ends(&w);
    pl_part *big = pl_net_buffer(w.a.net, (size_t)64 << 20);
    ck_assert_ptr_nonnull(big);
    memset(big->data, 7, big->size);
    big->data[big->size - 1] = 9;
    pl_msg *m = numbered(0);
    ck_ok(pl_msg_add(m, big, NULL), (pl_error){0});
    send_now(w.a.links[0], m);
    ck_assert(run(&w, b_has_one, 20 * S));
    const pl_part *got = w.b.last->parts[0];
    ck_assert_uint_eq(got->size, (size_t)64 << 20);
    ck_assert_int_eq(got->data[0], 7);
    ck_assert_int_eq(got->data[got->size - 1], 9);
    world_end(&w);
}
END_TEST

START_TEST(a_received_message_outlives_its_link_and_net)
{
    world w;
    world_make(&w, _i, NULL);
    connect_ends(&w);
    pl_msg *m = numbered(0);
    ck_ok(pl_msg_add(m, part_of_bytes(100000, 3), NULL), (pl_error){0});
    send_now(w.a.links[0], m);
    ck_assert(run(&w, b_has_one, 10 * S));
    pl_msg *kept = w.b.last;
    w.b.last = NULL;
    world_end(&w);
    ck_assert(part_is(kept->parts[0], 100000, 3));
    pl_msg_free(kept);
}
END_TEST

START_TEST(a_close_by_the_dialer_is_down_at_the_listener_after_its_messages)
{
    world w;
    world_make(&w, _i, NULL);
    connect_ends(&w);
    for (int i = 0; i < 50; i++) send_now(w.a.links[0], numbered(i));
    pl_link_close(w.a.links[0]);
    ck_assert(run(&w, b_down, 5 * S));
    ck_assert_int_eq(w.b.n_messages, 50);
    ck_assert(w.b.in_order);
    ck_status(w.b.why.status, PL_ERR_CLOSED, w.b.why);
    ck_assert_int_eq(w.a.downs, 0);
    world_end(&w);
}
END_TEST

START_TEST(a_close_by_the_listener_is_down_at_the_dialer_after_its_messages)
{
    world w;
    world_make(&w, _i, NULL);
    connect_ends(&w);
    for (int i = 0; i < 50; i++) send_now(w.b.links[0], numbered(i));
    pl_link_close(w.b.links[0]);
    ck_assert(run(&w, a_down, 5 * S));
    ck_assert_int_eq(w.a.n_messages, 50);
    ck_assert(w.a.in_order);
    ck_status(w.a.why.status, PL_ERR_CLOSED, w.a.why);
    ck_assert_int_eq(w.b.downs, 0);
    /* And the next dial is a new link. */
    dial(&w, &w.a, 5 * S);
    w.a.ups = w.b.ups = 0;
    ck_assert(run(&w, both_up, 5 * S));
    world_end(&w);
}
END_TEST

START_TEST(a_net_that_is_freed_is_down_at_its_peers)
{
    world w;
    world_make(&w, _i, NULL);
    connect_ends(&w);
    pl_net_free(w.b.net);
    w.b.net = NULL;
    ck_assert(run(&w, a_down, 5 * S));
    ck_status(w.a.why.status, PL_ERR_CLOSED, w.a.why);
    world_end(&w);
}
END_TEST

START_TEST(a_dial_to_nobody_is_down_at_its_time)
{
    world w;
    world_make(&w, _i, NULL);
    if (w.kind == TCP || w.kind == CURVE)
        snprintf(w.address, sizeof w.address, "tcp://127.0.0.1:1"); /* nothing listens there */
    else
        snprintf(w.address, sizeof w.address, w.kind == SIM ? "sim://nobody" : "inproc://nobody");
    pl_link *l = dial(&w, &w.a, 300 * MS);
    pl_msg *m = numbered(0);
    pl_error err = {0};
    ck_status(pl_link_send(l, &m, &err), PL_ERR_CLOSED, err);
    ck_assert_ptr_nonnull(m);
    pl_msg_free(m);
    ck_assert(run(&w, a_down, 5 * S));
    ck_status(w.a.why.status, PL_ERR_TIMEOUT, w.a.why);
    ck_assert_int_eq(w.a.ups, 0);
    world_end(&w);
}
END_TEST

START_TEST(a_dial_finds_a_listener_that_comes_later)
{
    world w;
    world_make(&w, _i, NULL);
    if (w.kind == INPROC || w.kind == INPROC_KEYS) snprintf(w.address, sizeof w.address, "inproc://later");
    char address[128];
    snprintf(address, sizeof address, "%s", w.kind == SIM ? "sim://b" : w.address);
    /* The port is known to be free once its owner has gone. */
    pl_net_free(w.b.net);
    pl_sim_process_free(w.b.process);
    w.b.process = NULL;
    pl_key key = w.b.public_key, secret = w.b.secret_key;
    pl_error err = {0};
    pl_link *l;
    ck_ok(pl_link_dial(w.a.net, address, has_keys(w.kind) ? &key : NULL, 10 * S, NULL, &l, &err), err);
    run(&w, never, 200 * MS);
    ck_assert_int_eq(w.a.downs, 0);
    end_init(&w.b, &w);
    if (w.kind == SIM) {
        net_make(&w.b, "b", NULL);
    } else {
        pl_zmq_options o = {.secret_key = has_keys(w.kind) ? &secret : NULL, .allowed = admits, .allowed_user = &w};
        ck_ok(pl_net_zmq_new(&w.b.net, w.loop, &o, &events, &w.b, &err), err);
    }
    ck_ok(pl_net_listen(w.b.net, address, &err), err);
    ck_assert(run(&w, both_up, 10 * S));
    world_end(&w);
}
END_TEST

START_TEST(what_breaks_the_senders_limits_is_refused_and_stays_its_own)
{
    world w;
    world_make(&w, _i, &(pl_net_limits){.header_bytes_max = 1000, .part_bytes_max = 2000});
    connect_ends(&w);
    pl_error err = {0};
    pl_msg *m;
    ck_ok(pl_msg_new(&m, NULL), err);
    m->header = part_of_bytes(1001, 0);
    ck_status(pl_link_send(w.b.links[0], &m, &err), PL_ERR_INVALID, err);
    ck_assert_ptr_nonnull(m);
    ck_assert(part_is(m->header, 1001, 0));
    pl_msg_free(m);
    m = numbered(0);
    ck_ok(pl_msg_add(m, part_of_bytes(2001, 0), NULL), err);
    ck_status(pl_link_send(w.b.links[0], &m, &err), PL_ERR_INVALID, err);
    ck_assert_int_eq(m->n_parts, 1);
    pl_msg_free(m);
    ck_ok(pl_msg_new(&m, NULL), err);
    ck_status(pl_link_send(w.b.links[0], &m, &err), PL_ERR_INVALID, err);
    pl_msg_free(m);
    send_now(w.b.links[0], numbered(0));
    ck_assert(run(&w, a_has_one, 5 * S));
    world_end(&w);
}
END_TEST

static bool both_down(world *w)
{
    return w->a.downs >= 1 && w->b.downs >= 1;
}

START_TEST(a_message_above_the_receivers_limits_ends_the_link_and_is_not_seen)
{
    world w;
    world_make(&w, _i, &(pl_net_limits){.header_bytes_max = 1000, .part_bytes_max = 2000});
    connect_ends(&w);
    pl_msg *m = numbered(0);
    ck_ok(pl_msg_add(m, part_of_bytes(2001, 0), NULL), (pl_error){0});
    send_now(w.a.links[0], m);
    ck_assert(run(&w, both_down, 5 * S));
    ck_assert_int_eq(w.b.n_messages, 0);
    world_end(&w);
}
END_TEST

START_TEST(a_header_above_the_receivers_limit_ends_the_link_and_is_not_seen)
{
    world w;
    world_make(&w, _i, &(pl_net_limits){.header_bytes_max = 1000, .part_bytes_max = 2000});
    connect_ends(&w);
    pl_msg *m;
    ck_ok(pl_msg_new(&m, NULL), (pl_error){0});
    m->header = part_of_bytes(1500, 0);
    send_now(w.a.links[0], m);
    ck_assert(run(&w, both_down, 5 * S));
    ck_assert_int_eq(w.b.n_messages, 0);
    ck_status(w.b.why.status, PL_ERR_FORMAT, w.b.why);
    world_end(&w);
}
END_TEST

static bool four_up(world *w)
{
    return w->a.ups == 4 && w->b.ups == 4;
}

START_TEST(a_listener_takes_no_more_links_than_its_limit)
{
    world w;
    world_make(&w, _i, &(pl_net_limits){.links_max = 4});
    for (int i = 0; i < 4; i++) dial(&w, &w.a, 5 * S);
    ck_assert(run(&w, four_up, 10 * S));
    dial(&w, &w.a, 5 * S);
    ck_assert(run(&w, a_down, 6 * S));
    ck_status(w.a.why.status, PL_ERR_CLOSED, w.a.why);
    ck_says(w.a.why, "all the links");
    ck_assert_int_eq(w.b.ups, 4);
    ck_assert_int_eq(w.b.downs, 0);
    world_end(&w);
}
END_TEST

#define MANY 40
static bool many_up(world *w)
{
    return w->a.ups == MANY && w->b.ups == MANY;
}
static bool many_echoed(world *w)
{
    return w->a.n_messages == MANY * 10;
}
static bool many_down(world *w)
{
    return w->b.downs == MANY;
}

START_TEST(many_links_work_at_once)
{
    world w;
    world_make(&w, _i, NULL);
    w.b.echo = true;
    for (int i = 0; i < MANY; i++) dial(&w, &w.a, 20 * S);
    ck_assert(run(&w, many_up, 20 * S));
    for (int round = 0; round < 10; round++)
        for (int i = 0; i < MANY; i++) {
            pl_msg *m = numbered(0);
            ck_ok(pl_msg_add(m, part_of_bytes(5000, (unsigned)i), NULL), (pl_error){0});
            send_now(w.a.links[i], m);
        }
    ck_assert(run(&w, many_echoed, 20 * S));
    for (int i = 0; i < MANY; i++) pl_link_close(w.a.links[i]);
    ck_assert(run(&w, many_down, 20 * S));
    world_end(&w);
}
END_TEST

static bool close_in_message(end *e, pl_link *link, pl_msg *m)
{
    forget(e, link);
    pl_link_close(link);
    pl_msg_free(m);
    return true;
}

START_TEST(a_link_may_be_closed_from_its_own_message)
{
    world w;
    world_make(&w, _i, NULL);
    connect_ends(&w);
    w.b.message = close_in_message;
    for (int i = 0; i < 5; i++) send_now(w.a.links[0], numbered(i));
    ck_assert(run(&w, a_down, 5 * S));
    ck_assert_int_eq(w.b.n_messages, 1);
    world_end(&w);
}
END_TEST

static int n_released;
static void count_release(void *user)
{
    (void)user;
    __atomic_fetch_add(&n_released, 1, __ATOMIC_RELAXED);
}
static bool is_released(world *w)
{
    (void)w;
    return __atomic_load_n(&n_released, __ATOMIC_RELAXED) == 1;
}

START_TEST(a_borrowed_part_is_released_once_after_it_was_sent)
{
    static const uint8_t bytes[50000] = {1, 2, 3};
    world w;
    world_make(&w, _i, NULL);
    connect_ends(&w);
    __atomic_store_n(&n_released, 0, __ATOMIC_RELAXED);
    pl_msg *m = numbered(0);
    ck_ok(pl_msg_add(m, pl_part_borrow(bytes, sizeof bytes, count_release, NULL), NULL), (pl_error){0});
    send_now(w.a.links[0], m);
    ck_assert(run(&w, b_has_one, 5 * S));
    ck_assert_int_eq(memcmp(w.b.last->parts[0]->data, bytes, sizeof bytes), 0);
    pl_msg_free(w.b.last);
    w.b.last = NULL;
    ck_assert(run(&w, is_released, 5 * S));
    world_end(&w);
    ck_assert_int_eq(__atomic_load_n(&n_released, __ATOMIC_RELAXED), 1);
}
END_TEST

/* Keys: over CURVE and over inproc with keys. */

START_TEST(a_key_that_is_not_admitted_gets_nowhere)
{
    world w;
    world_make(&w, _i, NULL);
    w.admitted = w.b.public_key; /* somebody else's */
    dial(&w, &w.a, 3 * S);
    ck_assert(run(&w, a_down, 4 * S));
    ck_status(w.a.why.status, PL_ERR_AUTH, w.a.why);
    ck_assert_int_eq(w.a.ups, 0);
    run(&w, never, 200 * MS);
    ck_assert_int_eq(w.b.ups + w.b.downs + w.b.n_messages, 0);
    world_end(&w);
}
END_TEST

START_TEST(a_listener_with_another_key_is_not_believed)
{
    world w;
    world_make(&w, _i, NULL);
    pl_error err = {0};
    pl_key other, secret;
    pl_link *l;
    ck_ok(pl_key_pair_new(&other, &secret, &err), err);
    ck_ok(pl_link_dial(w.a.net, w.address, &other, 3 * S, NULL, &l, &err), err);
    ck_assert(run(&w, a_down, 4 * S));
    ck_status(w.a.why.status, PL_ERR_AUTH, w.a.why);
    ck_assert_int_eq(w.a.ups, 0);
    if (w.kind == CURVE) ck_assert_int_eq(w.b.ups, 0);
    world_end(&w);
}
END_TEST

START_TEST(an_encrypted_listener_refuses_who_comes_without_a_key)
{
    world w;
    world_make(&w, CURVE, NULL);
    pl_error err = {0};
    end plain;
    end_init(&plain, &w);
    ck_ok(pl_net_zmq_new(&plain.net, w.loop, NULL, &events, &plain, &err), err);
    pl_link *l;
    ck_ok(pl_link_dial(plain.net, w.address, NULL, 500 * MS, NULL, &l, &err), err);
    run(&w, never, 1 * S);
    ck_assert_int_eq(plain.ups, 0);
    ck_assert_int_eq(plain.downs, 1);
    ck_assert_int_eq(w.b.ups, 0);
    ck_status(pl_link_dial(plain.net, w.address, &w.b.public_key, S, NULL, &l, &err), PL_ERR_INVALID, err);
    ck_status(pl_link_dial(w.a.net, w.address, NULL, S, NULL, &l, &err), PL_ERR_INVALID, err);
    end_fini(&plain);
    world_end(&w);
}
END_TEST

START_TEST(a_second_listen_is_refused_and_a_bad_address_named)
{
    world w;
    world_make(&w, _i, NULL);
    pl_error err = {0};
    ck_status(pl_net_listen(w.b.net, w.address, &err), PL_ERR_INVALID, err);
    ck_status(pl_net_listen(w.a.net, "carrier-pigeon://b", &err), PL_ERR_INVALID, err);
    ck_says(err, "carrier-pigeon");
    ck_assert_str_eq(pl_net_address(w.a.net), "");
    world_end(&w);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("contract/link");
    TCase *all = tcase_create("all"), *keys = tcase_create("keys");
    tcase_set_timeout(all, 60);
    tcase_set_timeout(keys, 60);
#define ADD(test) tcase_add_loop_test(all, test, 0, N_KINDS)
    ADD(a_dialed_link_is_up_at_both_ends_with_each_others_keys);
    ADD(messages_arrive_in_order_in_both_directions);
    ADD(a_message_with_eight_parts_arrives_whole_and_comes_back);
    ADD(a_part_of_64_mib_arrives);
    ADD(a_received_message_outlives_its_link_and_net);
    ADD(a_close_by_the_dialer_is_down_at_the_listener_after_its_messages);
    ADD(a_close_by_the_listener_is_down_at_the_dialer_after_its_messages);
    ADD(a_net_that_is_freed_is_down_at_its_peers);
    ADD(a_dial_to_nobody_is_down_at_its_time);
    ADD(a_dial_finds_a_listener_that_comes_later);
    ADD(what_breaks_the_senders_limits_is_refused_and_stays_its_own);
    ADD(a_message_above_the_receivers_limits_ends_the_link_and_is_not_seen);
    ADD(a_header_above_the_receivers_limit_ends_the_link_and_is_not_seen);
    ADD(a_listener_takes_no_more_links_than_its_limit);
    ADD(many_links_work_at_once);
    ADD(a_link_may_be_closed_from_its_own_message);
    ADD(a_borrowed_part_is_released_once_after_it_was_sent);
    ADD(a_second_listen_is_refused_and_a_bad_address_named);
    for (int k = 0; k < N_KINDS; k++)
        if (has_keys((kind)k)) {
            tcase_add_loop_test(keys, a_key_that_is_not_admitted_gets_nowhere, k, k + 1);
            tcase_add_loop_test(keys, a_listener_with_another_key_is_not_believed, k, k + 1);
        }
    tcase_add_test(keys, an_encrypted_listener_refuses_who_comes_without_a_key);
    suite_add_tcase(s, all);
    suite_add_tcase(s, keys);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
