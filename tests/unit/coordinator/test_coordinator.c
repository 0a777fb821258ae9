/* The unmodified coordinator in the virtual world, with actors that play its nodes message by message. */
#include "coordinator/coordinator_impl.h"
#include "tests/sim/actor.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>

enum { ACTORS = 4, CLIENTS = 16, LAYERS = 6, VOCAB = 300 };
#define HUGE_BUDGET (UINT64_C(1) << 30)

typedef struct client {
    pl_request *request;
    bool ended;
    pl_finish why;
    pl_error err;
    int32_t got[512], n_got;
} client;

typedef struct rig {
    pl_sim *sim;
    sim_model model;
    pl_sim_process *process;
    pl_net *net;
    pl_coordinator *c;
    actor nodes[ACTORS];
    int n_nodes;
    client clients[CLIENTS];
    int n_clients;
    int n_changes;
} rig;

static int calling; /* a call of the test into the coordinator is under way */

static void on_token(void *user, const pl_sampled *t)
{
    client *c = user;
    ck_assert_msg(!calling, "a callback from inside a call");
    ck_assert(!c->ended);
    c->got[c->n_got++] = t->token;
}

static void on_end(void *user, pl_finish why, const pl_error *err)
{
    client *c = user;
    ck_assert(!c->ended);
    ck_assert_msg(!calling, "a callback from inside a call");
    c->ended = true;
    c->why = why;
    if (err) c->err = *err;
    c->request = NULL;
}

static void on_change(void *user)
{
    ((rig *)user)->n_changes++;
}

static bool never_eog(void *user, int32_t token)
{
    (void)user;
    return token == 299;
}

static bool allow_all(void *user, const pl_key *peer)
{
    (void)user;
    (void)peer;
    return true;
}

static void check_invariants(void *user)
{
    rig *r = user;
    if (r->c) {
        const char *broken = pl_sched_invariants(&r->c->sched);
        ck_assert_msg(!broken, "%s", broken);
    }
}

static void rig_init(rig *r, const pl_coordinator_options *options)
{
    pl_error err = {0};
    memset(r, 0, sizeof *r);
    ck_assert_int_eq(pl_sim_new(&r->sim, 11, &(pl_sim_options){.after_event = check_invariants, .user = r}, &err),
                     PL_OK);
    sim_model_init(&r->model, LAYERS, 3);
    ck_assert_int_eq(pl_sim_process_new(&r->process, r->sim, "coordinator", &err), PL_OK);
    pl_coordinator_options o = options ? *options : (pl_coordinator_options){0};
    if (!o.n_seqs) o.n_seqs = 2;
    if (!o.n_ctx) o.n_ctx = 128;
    if (!o.n_rows) o.n_rows = 16;
    o.seed = 5;
    pl_coordinator_model m = {.gguf = r->model.gguf,
                              .profile = r->model.profile,
                              .hashes = r->model.hashes,
                              .name = "tiny",
                              .is_eog = never_eog};
    ck_assert_msg(pl_coordinator_new(&r->c, pl_sim_loop(r->process), &m, &o, &err) == PL_OK, "%s", err.text);
    ck_assert_int_eq(pl_net_sim_new(&r->net, r->process, &(pl_sim_net_options){.allowed = allow_all},
                                    &pl_coordinator_net_events, r->c, &err),
                     PL_OK);
    ck_assert_int_eq(pl_net_listen(r->net, "sim://coordinator", &err), PL_OK);
    pl_coordinator_on_change(r->c, on_change, r);
    pl_coordinator_start(r->c, r->net);
}

static void rig_fini(rig *r)
{
    pl_coordinator *c = r->c;
    r->c = NULL;
    pl_coordinator_free(c);
    pl_net_free(r->net);
    pl_sim_process_free(r->process);
    for (int i = 0; i < r->n_nodes; i++) actor_fini(&r->nodes[i]);
    pl_sim_free(r->sim);
    sim_model_fini(&r->model);
    for (int i = 0; i < r->n_clients; i++) ck_assert(r->clients[i].ended);
}

static void run(rig *r, uint64_t ns)
{
    pl_sim_run_until(r->sim, pl_sim_now(r->sim) + ns);
}

static actor *new_node(rig *r)
{
    static const char *const names[ACTORS] = {"a", "b", "c", "d"};
    actor *a = &r->nodes[r->n_nodes];
    actor_init(a, r->sim, names[r->n_nodes++], NULL);
    return a;
}

typedef struct hello { /* of a good node, unless a test changes it */
    uint32_t role, protocol;
    const char *name, *profile, *address, *arch;
    uint64_t checksum, budget, incarnation;
    uint32_t type;
    double rate;
} hello;

static bool no_link(void *user)
{
    return ((actor *)user)->link == NULL;
}

static void say_hello(rig *r, actor *a, hello h)
{
    Paceline__Hello m = PACELINE__HELLO__INIT;
    m.role = h.role ? (Paceline__Hello__Role)h.role : PACELINE__HELLO__ROLE__NODE;
    m.protocol = h.protocol ? h.protocol : PL_PROTOCOL;
    m.name = (char *)(h.name ? h.name : pl_sim_name(a->process));
    m.profile = (char *)(h.profile ? h.profile : "p");
    m.known_checksum = h.checksum;
    m.budget_bytes = h.budget ? h.budget : HUGE_BUDGET;
    m.n_threads = 1;
    m.read_bytes_s = m.macs_s = h.rate > 0 ? h.rate : 1e6; /* slow, so that a split pays */
    m.incarnation = h.incarnation ? h.incarnation : (uint64_t)(a - r->nodes) + 1;
    char address[64];
    snprintf(address, sizeof address, "sim://%s", pl_sim_name(a->process));
    m.data_address = (char *)(h.address ? h.address : address);
    if (h.type) {
        m.types = &h.type;
        m.n_types = 1;
    }
    char *arch = (char *)h.arch;
    if (h.arch) {
        m.archs = &arch;
        m.n_archs = 1;
    }
    actor_send(a, a->link, 0, ENVELOPE(HELLO, hello, &m), NULL);
}

static void connect_node(rig *r, actor *a)
{
    actor_dial(a, "sim://coordinator", NULL);
    ck_assert(pl_sim_run_while(r->sim, no_link, a, pl_sim_now(r->sim) + PL_SECOND));
}

static actor *join(rig *r, hello h)
{
    actor *a = new_node(r);
    connect_node(r, a);
    say_hello(r, a, h);
    ck_assert_ptr_nonnull(actor_take(a, PACELINE__ENVELOPE__BODY_WELCOME, PL_SECOND));
    return a;
}

/* The next Load; its epoch. */
static uint64_t take_load(actor *a, const Paceline__Load **out)
{
    const actor_message *m = actor_take(a, PACELINE__ENVELOPE__BODY_LOAD, 20 * PL_SECOND);
    ck_assert_ptr_nonnull(m);
    if (out) *out = m->e.m->load;
    return m->e.m->epoch;
}

static void send_ready(actor *a, uint64_t epoch)
{
    Paceline__Ready ready = PACELINE__READY__INIT;
    actor_send(a, a->link, epoch, ENVELOPE(READY, ready, &ready), NULL);
}

static void send_failure(actor *a, uint64_t epoch, pl_status s, const char *text)
{
    Paceline__Failure f = PACELINE__FAILURE__INIT;
    f.status = (uint32_t)s;
    f.text = (char *)text;
    actor_send(a, a->link, epoch, ENVELOPE(FAILURE, failure, &f), NULL);
}

static void send_credit(actor *a, uint64_t epoch, uint32_t n)
{
    Paceline__Credit c = PACELINE__CREDIT__INIT;
    c.frames = n;
    actor_send(a, a->link, epoch, ENVELOPE(CREDIT, credit, &c), NULL);
}

/* What these nodes sample: a function of the position. */
static int32_t token_at(int32_t pos)
{
    return 10 + pos % 250;
}

/* The answer of the last stage to a frame. */
static void send_result(actor *a, uint64_t epoch, const Paceline__Frame *f)
{
    Paceline__Result result = PACELINE__RESULT__INIT;
    Paceline__Token tokens[16], *list[16];
    result.frame = f->id;
    result.tokens = list;
    for (size_t i = 0; i < f->n_logits; i++) {
        paceline__token__init(&tokens[i]);
        tokens[i].seq = f->seq[f->logits[i]];
        tokens[i].pos = f->pos[f->logits[i]] + 1;
        tokens[i].token = token_at(tokens[i].pos);
        list[result.n_tokens++] = &tokens[i];
    }
    actor_send(a, a->link, epoch, ENVELOPE(RESULT, result, &result), NULL);
}

static client *submit(rig *r, int32_t n_prompt, int32_t max_tokens, pl_status expected)
{
    client *k = &r->clients[r->n_clients];
    *k = (client){0};
    int32_t prompt[128];
    for (int32_t i = 0; i < n_prompt; i++) prompt[i] = i + 1;
    pl_request_params p = {
        .tokens = prompt, .n_tokens = n_prompt, .max_tokens = max_tokens, .sample = pl_sample_defaults()};
    pl_request_events events = {on_token, on_end};
    calling++;
    pl_status s = pl_coordinator_submit(r->c, &p, &events, k, &k->request, &k->err);
    calling--;
    ck_assert_msg(s == expected, "%s", k->err.text);
    if (s == PL_OK) r->n_clients++;
    return k;
}

/* One node that is ready. */
static actor *ready_node(rig *r, uint64_t *epoch)
{
    actor *a = join(r, (hello){0});
    *epoch = take_load(a, NULL);
    send_ready(a, *epoch);
    run(r, 50 * PL_MS);
    ck_assert_int_eq(pl_coordinator_health(r->c, NULL), PL_OK);
    return a;
}

/* Plays a whole pipeline of one node until nothing more is asked of it. */
static void serve(rig *r, actor *a, uint64_t epoch)
{
    const actor_message *m;
    while ((m = actor_take(a, PACELINE__ENVELOPE__BODY_FRAME, 200 * PL_MS)) != NULL) {
        ck_assert_uint_eq(m->e.m->epoch, epoch);
        send_credit(a, epoch, 1);
        send_result(a, epoch, m->e.m->frame);
    }
    (void)r;
}

static void check_answer(const client *k, int32_t n_prompt, int32_t n)
{
    ck_assert_msg(k->ended && k->why == PL_FINISH_LENGTH, "ended %d, why %d: %s", k->ended, k->why, k->err.text);
    ck_assert_int_eq(k->n_got, n);
    for (int32_t i = 0; i < n; i++) ck_assert_int_eq(k->got[i], token_at(n_prompt + i));
}

/* After whatever a test did: a node that behaves joins, and requests are answered. */
static void goes_on(rig *r)
{
    actor *a = join(r, (hello){.incarnation = 999, .rate = 1e9});
    client *k = submit(r, 5, 3, PL_OK);
    uint64_t until = pl_sim_now(r->sim) + 60 * PL_SECOND, epoch = 0;
    while (!k->ended && pl_sim_now(r->sim) < until) {
        run(r, 10 * PL_MS);
        for (size_t i = a->n_taken; i < a->n_log; i++) {
            const Paceline__Envelope *e = a->log[i].e.m;
            if (e->body_case == PACELINE__ENVELOPE__BODY_LOAD) {
                epoch = e->epoch;
                ck_assert_int_eq(e->load->n_stages, 1);
                send_ready(a, epoch);
            } else if (e->body_case == PACELINE__ENVELOPE__BODY_FRAME && e->epoch == epoch) {
                send_credit(a, epoch, 1);
                send_result(a, epoch, e->frame);
            }
        }
        a->n_taken = a->n_log;
    }
    check_answer(k, 5, 3);
}

/* --- Meeting --- */

START_TEST(a_node_that_dials_is_greeted_welcomed_and_given_the_model)
{
    rig r;
    rig_init(&r, NULL);
    pl_error err = {0};
    ck_assert_int_eq(pl_coordinator_health(r.c, &err), PL_ERR_CLOSED);
    ck_assert_ptr_nonnull(strstr(err.text, "no node has joined"));
    actor *a = new_node(&r);
    connect_node(&r, a);
    run(&r, PL_SECOND);
    ck_assert_msg(!actor_has(a, PACELINE__ENVELOPE__BODY_HELLO), "the dialer speaks first");
    say_hello(&r, a, (hello){0});
    const actor_message *m = actor_take(a, PACELINE__ENVELOPE__BODY_HELLO, PL_SECOND);
    ck_assert_ptr_nonnull(m);
    ck_assert_int_eq(m->e.m->hello->role, PACELINE__HELLO__ROLE__COORDINATOR);
    ck_assert_uint_eq(m->e.m->hello->protocol, PL_PROTOCOL);
    m = actor_take(a, PACELINE__ENVELOPE__BODY_WELCOME, PL_SECOND);
    ck_assert_ptr_nonnull(m);
    ck_assert_uint_eq(m->e.m->welcome->heartbeat_ns, 250 * PL_MS);
    uint64_t joined = pl_sim_now(r.sim);
    const Paceline__Load *l;
    uint64_t epoch = take_load(a, &l);
    ck_assert_uint_ge(pl_sim_now(r.sim) - joined, 400 * PL_MS); /* others might have followed */
    ck_assert_uint_le(pl_sim_now(r.sim) - joined, 900 * PL_MS);
    ck_assert_uint_eq(epoch, 1);
    ck_assert(l->layer_first == 0 && l->layer_end == LAYERS && l->n_stages == 1 && !l->upstream && !l->downstream);
    ck_assert_uint_eq(l->n_tensors, pl_gguf_n_tensors(r.model.gguf));
    for (size_t i = 0; i < l->n_tensors; i++)
        ck_assert_mem_eq(l->tensors[i]->hash.data, r.model.hashes[l->tensors[i]->index].b, PL_HASH_SIZE);
    ck_assert_mem_eq(l->header_hash.data, r.model.header_hash.b, PL_HASH_SIZE);
    ck_assert_int_eq(pl_coordinator_health(r.c, &err), PL_ERR_CLOSED);
    ck_assert_ptr_nonnull(strstr(err.text, "loading"));
    int before = r.n_changes;
    send_ready(a, epoch);
    run(&r, 50 * PL_MS);
    ck_assert_int_eq(pl_coordinator_health(r.c, &err), PL_OK);
    ck_assert_int_gt(r.n_changes, before);
    rig_fini(&r);
}
END_TEST

START_TEST(a_node_that_is_dialed_hears_hello_first_and_is_dialed_again)
{
    rig r;
    rig_init(&r, NULL);
    pl_error err = {0};
    actor *a = new_node(&r);
    ck_assert_int_eq(pl_coordinator_add_node(r.c, "sim://a", NULL, &err), PL_OK);
    ck_assert_int_eq(pl_coordinator_add_node(r.c, "sim://a", NULL, &err), PL_ERR_INVALID);
    for (int i = 0; i < 2; i++) {
        ck_assert_ptr_nonnull(actor_take(a, PACELINE__ENVELOPE__BODY_HELLO, 20 * PL_SECOND));
        ck_assert(!actor_has(a, PACELINE__ENVELOPE__BODY_WELCOME));
        say_hello(&r, a, (hello){0});
        ck_assert_ptr_nonnull(actor_take(a, PACELINE__ENVELOPE__BODY_WELCOME, PL_SECOND));
        ck_assert(!actor_has(a, PACELINE__ENVELOPE__BODY_HELLO)); /* said once */
        take_load(a, NULL);
        pl_sim_break(r.process, a->process);
        run(&r, 100 * PL_MS);
    }
    rig_fini(&r);
}
END_TEST

START_TEST(nodes_that_differ_are_refused_by_name)
{
    static const struct {
        hello h;
        const char *says;
    } cases[] = {
        {{.protocol = 99}, "protocol 99"},
        {{.profile = "other"}, "the numeric profile of node b is other, that of node a is p"},
        {{.checksum = 7}, "the known graph gives 0000000000000007 on node b and 0000000000000000 on node a"},
        {{.role = PACELINE__HELLO__ROLE__UPSTREAM}, "a coordinator talks to nodes only"},
        {{.role = PACELINE__HELLO__ROLE__COORDINATOR}, "a coordinator talks to nodes only"},
        {{.arch = "mamba"}, "cannot build the architecture llama"},
        {{.type = PL_TYPE_Q4_1}, "does not compute with tensors of type F32"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rig r;
        rig_init(&r, NULL);
        join(&r, (hello){0});
        actor *b = new_node(&r);
        connect_node(&r, b);
        say_hello(&r, b, cases[i].h);
        const actor_message *m = actor_take(b, PACELINE__ENVELOPE__BODY_FAILURE, PL_SECOND);
        ck_assert_ptr_nonnull(m);
        ck_assert_msg(strstr(m->e.m->failure->text, cases[i].says) != NULL, "%s", m->e.m->failure->text);
        run(&r, 3 * PL_SECOND);
        ck_assert_ptr_null(b->link);
        rig_fini(&r);
    }
}
END_TEST

START_TEST(who_says_nothing_is_closed)
{
    rig r;
    rig_init(&r, NULL);
    actor *a = new_node(&r);
    connect_node(&r, a);
    run(&r, 7 * PL_SECOND);
    ck_assert_ptr_null(a->link);
    rig_fini(&r);
}
END_TEST

START_TEST(a_listening_address_becomes_the_one_that_is_seen)
{
    rig r;
    rig_init(&r, NULL);
    actor *a = join(&r, (hello){.address = "tcp://0.0.0.0:7071"}), *b = join(&r, (hello){.address = "tcp://*:7072"});
    const Paceline__Load *la, *lb;
    uint64_t epoch = take_load(a, &la);
    ck_assert_uint_eq(take_load(b, &lb), epoch);
    bool a_first = la->stage == 0;
    const Paceline__Load *up = a_first ? la : lb, *down = a_first ? lb : la;
    ck_assert_str_eq(up->downstream->address, a_first ? "tcp://b:7072" : "tcp://a:7071");
    ck_assert_str_eq(down->upstream->address, a_first ? "tcp://a:7071" : "tcp://b:7072");
    ck_assert(up->downstream->dial && !down->upstream->dial);
    ck_assert_uint_eq(up->layer_end, down->layer_first);
    rig_fini(&r);
}
END_TEST

START_TEST(a_second_link_of_the_same_life_replaces_the_first)
{
    rig r;
    uint64_t epoch;
    rig_init(&r, NULL);
    actor *a = ready_node(&r, &epoch);
    pl_link *old = a->link;
    connect_node(&r, a);
    run(&r, 100 * PL_MS);
    ck_assert_ptr_ne(a->link, old);
    say_hello(&r, a, (hello){0});
    ck_assert_uint_eq(take_load(a, NULL), epoch + 1);
    ck_assert_int_eq(r.c->n_members, 1);
    rig_fini(&r);
}
END_TEST

START_TEST(min_nodes_are_waited_for)
{
    rig r;
    rig_init(&r, &(pl_coordinator_options){.min_nodes = 2});
    actor *a = join(&r, (hello){0});
    run(&r, 3 * PL_SECOND);
    ck_assert(!actor_has(a, PACELINE__ENVELOPE__BODY_LOAD));
    pl_error err = {0};
    ck_assert_int_eq(pl_coordinator_health(r.c, &err), PL_ERR_CLOSED);
    ck_assert_ptr_nonnull(strstr(err.text, "1 of 2"));
    join(&r, (hello){0});
    take_load(a, NULL);
    rig_fini(&r);
}
END_TEST

/* --- Serving --- */

START_TEST(a_request_becomes_frames_and_its_results_tokens)
{
    rig r;
    uint64_t epoch;
    rig_init(&r, NULL);
    actor *a = ready_node(&r, &epoch);
    client *k = submit(&r, 40, 3, PL_OK);
    const actor_message *m = actor_take(a, PACELINE__ENVELOPE__BODY_FRAME, PL_SECOND);
    const Paceline__Frame *f = m->e.m->frame;
    ck_assert_uint_eq(f->id, 1);
    ck_assert_uint_eq(f->n_ops, 2);
    ck_assert_int_eq(f->ops[0]->kind, PACELINE__KV_OP__KIND__OPEN);
    ck_assert_uint_eq(f->ops[0]->sequence->n_prompt, 40);
    ck_assert_uint_eq(f->ops[0]->sequence->n_emitted, 0);
    ck_assert_int_eq(f->ops[1]->kind, PACELINE__KV_OP__KIND__EXTEND);
    ck_assert_uint_eq(f->ops[1]->n_blocks, 2);
    ck_assert_uint_eq(f->n_seq, 16);
    ck_assert_uint_eq(f->n_logits, 0);
    serve(&r, a, epoch); /* which begins with the second: the first is answered here */
    send_result(a, epoch, f);
    run(&r, 2 * PL_SECOND);
    /* Results out of order broke the protocol. */
    ck_assert_ptr_null(a->link);
    ck_assert(!k->ended);
    rig_fini(&r);

    rig_init(&r, NULL);
    a = ready_node(&r, &epoch);
    k = submit(&r, 40, 3, PL_OK);
    serve(&r, a, epoch);
    check_answer(k, 40, 3);
    /* It is kept for others that begin like it, or, where none are, its CLOSE went out. */
    ck_assert_int_eq(r.c->sched.n_kept, 1);
    rig_fini(&r);

    rig_init(&r, &(pl_coordinator_options){.n_kept = -1});
    a = ready_node(&r, &epoch);
    k = submit(&r, 40, 3, PL_OK);
    serve(&r, a, epoch);
    check_answer(k, 40, 3);
    ck_assert_int_eq(r.c->sched.blocks.n_free, r.c->pipeline.plan.n_blocks);
    rig_fini(&r);
}
END_TEST

START_TEST(no_more_frames_than_credits)
{
    rig r;
    uint64_t epoch;
    rig_init(&r, &(pl_coordinator_options){.credits = 1, .n_rows = 4});
    actor *a = ready_node(&r, &epoch);
    submit(&r, 100, 3, PL_OK);
    run(&r, PL_SECOND);
    ck_assert_ptr_nonnull(actor_take(a, PACELINE__ENVELOPE__BODY_FRAME, PL_MS));
    ck_assert(!actor_has(a, PACELINE__ENVELOPE__BODY_FRAME));
    send_credit(a, epoch, 1);
    ck_assert_ptr_nonnull(actor_take(a, PACELINE__ENVELOPE__BODY_FRAME, PL_SECOND));
    ck_assert(!actor_has(a, PACELINE__ENVELOPE__BODY_FRAME));
    rig_fini(&r);
}
END_TEST

START_TEST(cancelling_closes_the_sequence_and_is_told_later)
{
    rig r;
    uint64_t epoch;
    rig_init(&r, NULL);
    actor *a = ready_node(&r, &epoch);
    client *k = submit(&r, 5, 100, PL_OK), *waiting[3];
    for (int i = 0; i < 3; i++) waiting[i] = submit(&r, 5, 2, PL_OK);
    const actor_message *m = actor_take(a, PACELINE__ENVELOPE__BODY_FRAME, PL_SECOND);
    calling++;
    pl_coordinator_cancel(r.c, k->request);
    pl_coordinator_cancel(r.c, waiting[2]->request);
    calling--;
    ck_assert(!k->ended);
    run(&r, 10 * PL_MS);
    ck_assert(k->ended && k->why == PL_FINISH_CANCELLED);
    ck_assert(waiting[2]->ended && waiting[2]->why == PL_FINISH_CANCELLED);
    send_credit(a, epoch, 1);
    send_result(a, epoch, m->e.m->frame);
    serve(&r, a, epoch);
    check_answer(waiting[0], 5, 2);
    check_answer(waiting[1], 5, 2);
    ck_assert_int_eq(k->n_got, 0);
    rig_fini(&r);
}
END_TEST

START_TEST(a_blob_is_served_in_pieces_and_an_unknown_one_is_not_there)
{
    rig r;
    rig_init(&r, NULL);
    actor *a = join(&r, (hello){0});
    uint64_t epoch = take_load(a, NULL);
    const pl_gguf_tensor *t = pl_gguf_tensor_at(r.model.gguf, 3);
    pl_buf got = {0};
    Paceline__BlobGet get = PACELINE__BLOB_GET__INIT;
    get.hash = (ProtobufCBinaryData){PL_HASH_SIZE, r.model.hashes[3].b};
    get.size = 1000;
    while (got.size < t->size) {
        get.offset = got.size;
        actor_send(a, a->link, epoch, ENVELOPE(BLOB_GET, blob_get, &get), NULL);
        const actor_message *m = actor_take(a, PACELINE__ENVELOPE__BODY_BLOB, PL_SECOND);
        ck_assert_ptr_nonnull(m);
        ck_assert_uint_eq(m->e.m->epoch, epoch);
        ck_assert_uint_eq(m->e.m->blob->total, t->size);
        ck_assert_uint_eq(m->e.m->blob->offset, got.size);
        ck_assert(pl_buf_add(&got, m->m->parts[0]->data, m->m->parts[0]->size));
    }
    ck_assert_mem_eq(got.data, t->data, t->size);
    get.offset = t->size;
    actor_send(a, a->link, epoch, ENVELOPE(BLOB_GET, blob_get, &get), NULL);
    ck_assert_ptr_nonnull(actor_take(a, PACELINE__ENVELOPE__BODY_BLOB, PL_SECOND)->e.m->blob->failure);
    uint8_t unknown[PL_HASH_SIZE] = {1};
    get.hash.data = unknown;
    get.offset = 0;
    actor_send(a, a->link, epoch, ENVELOPE(BLOB_GET, blob_get, &get), NULL);
    const Paceline__Blob *b = actor_take(a, PACELINE__ENVELOPE__BODY_BLOB, PL_SECOND)->e.m->blob;
    ck_assert_ptr_nonnull(b->failure);
    ck_assert_uint_eq(b->failure->status, PL_ERR_NOT_FOUND);
    get.hash.data = r.model.header_hash.b;
    get.size = 4u << 20;
    actor_send(a, a->link, epoch, ENVELOPE(BLOB_GET, blob_get, &get), NULL);
    const actor_message *m = actor_take(a, PACELINE__ENVELOPE__BODY_BLOB, PL_SECOND);
    ck_assert_uint_eq(m->m->parts[0]->size, r.model.header.size);
    ck_assert_mem_eq(m->m->parts[0]->data, r.model.header.data, r.model.header.size);
    pl_buf_fini(&got);
    rig_fini(&r);
}
END_TEST

/* --- What ends an epoch --- */

START_TEST(a_death_costs_a_pause_and_the_answer_goes_on)
{
    rig r;
    rig_init(&r, NULL);
    actor *a = join(&r, (hello){0}), *b = join(&r, (hello){0});
    const Paceline__Load *l;
    uint64_t epoch = take_load(a, &l);
    ck_assert_uint_eq(take_load(b, NULL), epoch);
    ck_assert_uint_eq(l->n_stages, 2);
    actor *first = l->stage == 0 ? a : b, *last = l->stage == 0 ? b : a;
    send_ready(a, epoch);
    send_ready(b, epoch);
    client *k = submit(&r, 5, 6, PL_OK);
    for (int i = 0; i < 3; i++) {
        const actor_message *m = actor_take(first, PACELINE__ENVELOPE__BODY_FRAME, PL_SECOND);
        send_credit(first, epoch, 1);
        send_result(last, epoch, m->e.m->frame);
    }
    run(&r, 100 * PL_MS);
    ck_assert_int_eq(k->n_got, 3);
    pl_sim_kill(last->process, false);
    uint64_t next = take_load(first, &l);
    ck_assert_uint_eq(next, epoch + 1);
    ck_assert_uint_eq(l->n_stages, 1);
    /* What comes late of the old epoch changes nothing. */
    send_ready(first, epoch);
    send_credit(first, epoch, 1);
    run(&r, 50 * PL_MS);
    send_ready(first, next);
    const actor_message *m = actor_take(first, PACELINE__ENVELOPE__BODY_FRAME, PL_SECOND);
    const Paceline__Frame *f = m->e.m->frame;
    ck_assert_uint_eq(f->id, 1);
    ck_assert_uint_eq(f->ops[0]->sequence->n_prompt, 5);
    ck_assert_uint_eq(f->ops[0]->sequence->n_emitted, 3);
    for (size_t i = 0; i < 3; i++) ck_assert_int_eq(f->ops[0]->sequence->emitted[i], token_at(5 + (int32_t)i));
    ck_assert_uint_eq(f->n_seq, 8);
    send_credit(first, next, 1);
    send_result(first, next, f);
    serve(&r, first, next);
    check_answer(k, 5, 6);
    rig_fini(&r);
}
END_TEST

static uint64_t half_budget(rig *r)
{
    pl_stage_shape s = {.layer_first = 0,
                        .layer_end = LAYERS,
                        .n_blocks = 8,
                        .n_ctx = 128,
                        .n_seqs = 2,
                        .n_rows = 16,
                        .n_threads = 1,
                        .cache = PL_CACHE_BOTH(PL_TYPE_F16)};
    pl_stage_memory whole = pl_model_stage_memory(r->model.profile, &s);
    return whole.weights + whole.kv + whole.compute - 1;
}

START_TEST(without_room_clients_are_told_and_it_recovers_by_itself)
{
    rig r;
    rig_init(&r, &(pl_coordinator_options){.n_blocks = 8, .unplaced_grace_ns = 3 * PL_SECOND});
    uint64_t budget = half_budget(&r);
    actor *a = join(&r, (hello){.budget = budget}), *b = join(&r, (hello){.budget = budget});
    uint64_t epoch = take_load(a, NULL);
    take_load(b, NULL);
    send_ready(a, epoch);
    send_ready(b, epoch);
    run(&r, 100 * PL_MS);
    client *open = submit(&r, 5, 6, PL_OK);
    run(&r, 100 * PL_MS);
    pl_sim_kill(b->process, false);
    run(&r, PL_SECOND);
    ck_assert_ptr_nonnull(actor_take(a, PACELINE__ENVELOPE__BODY_UNLOAD, PL_SECOND));
    ck_assert(!open->ended);
    client *refused = submit(&r, 5, 6, PL_ERR_BUDGET);
    ck_assert_ptr_nonnull(strstr(refused->err.text, "\n  a: budget "));
    pl_error err = {0};
    ck_assert_int_eq(pl_coordinator_health(r.c, &err), PL_ERR_BUDGET);
    run(&r, 3 * PL_SECOND);
    ck_assert(open->ended && open->why == PL_FINISH_ERROR && open->err.status == PL_ERR_BUDGET);
    ck_assert_str_eq(open->err.text, refused->err.text);
    goes_on(&r);
    rig_fini(&r);
}
END_TEST

START_TEST(within_the_grace_a_new_node_saves_the_requests)
{
    rig r;
    uint64_t epoch;
    rig_init(&r, NULL);
    actor *a = ready_node(&r, &epoch);
    client *k = submit(&r, 5, 4, PL_OK);
    const actor_message *m = actor_take(a, PACELINE__ENVELOPE__BODY_FRAME, PL_SECOND);
    send_credit(a, epoch, 1);
    send_result(a, epoch, m->e.m->frame);
    run(&r, 50 * PL_MS);
    pl_sim_kill(a->process, true); /* silent: found by its silence */
    run(&r, 4 * PL_SECOND);
    ck_assert_int_eq(pl_coordinator_health(r.c, NULL), PL_ERR_BUDGET);
    actor *b = join(&r, (hello){0});
    epoch = take_load(b, NULL);
    send_ready(b, epoch);
    serve(&r, b, epoch);
    check_answer(k, 5, 4);
    rig_fini(&r);
}
END_TEST

START_TEST(silence_is_death_and_heartbeats_are_life)
{
    rig r;
    uint64_t epoch;
    rig_init(&r, NULL);
    actor *a = ready_node(&r, &epoch);
    run(&r, 10 * PL_SECOND);
    ck_assert_ptr_nonnull(a->link);
    ck_assert_int_ge(a->n_heartbeats, 35);
    a->heartbeat_ns = 0;
    run(&r, 3 * PL_SECOND);
    ck_assert_ptr_null(a->link);
    ck_assert_int_eq(r.c->n_members, 0);
    goes_on(&r);
    rig_fini(&r);
}
END_TEST

START_TEST(a_node_that_fails_to_load_is_tried_again_and_then_left_out)
{
    rig r;
    rig_init(&r, NULL);
    actor *a = join(&r, (hello){.rate = 1e6}), *b = join(&r, (hello){.rate = 1e6});
    int failed = 0;
    for (;;) {
        const Paceline__Load *l;
        uint64_t epoch = take_load(a, &l);
        if (l->n_stages == 1) {
            send_ready(a, epoch);
            break;
        }
        ck_assert_uint_eq(take_load(b, NULL), epoch);
        send_ready(a, epoch);
        send_failure(b, epoch, PL_ERR_IO, "the disk is full");
        ck_assert_int_lt(++failed, 10);
    }
    ck_assert_int_eq(failed, 3);
    client *k = submit(&r, 5, 2, PL_OK);
    serve(&r, a, r.c->pipeline.epoch);
    check_answer(k, 5, 2);
    ck_assert_str_eq(r.c->members->next->last_failure.text, "the disk is full");
    rig_fini(&r);
}
END_TEST

START_TEST(a_node_whose_budget_is_too_small_after_all_is_left_out_at_once)
{
    rig r;
    rig_init(&r, NULL);
    actor *a = join(&r, (hello){0}), *b = join(&r, (hello){0});
    uint64_t epoch = take_load(a, NULL);
    take_load(b, NULL);
    send_failure(b, epoch, PL_ERR_BUDGET, "stage needs 2 bytes, the budget is 1");
    const Paceline__Load *l;
    take_load(a, &l);
    ck_assert_uint_eq(l->n_stages, 1);
    rig_fini(&r);
}
END_TEST

START_TEST(loading_without_progress_times_out)
{
    rig r;
    rig_init(&r, &(pl_coordinator_options){.load_timeout_ns = 5 * PL_SECOND});
    actor *a = join(&r, (hello){0});
    uint64_t epoch = take_load(a, NULL), start = pl_sim_now(r.sim);
    Paceline__Progress p = PACELINE__PROGRESS__INIT;
    p.total_bytes = 100;
    for (int i = 0; i < 10; i++) { /* slow is not stuck */
        run(&r, 2 * PL_SECOND);
        p.done_bytes = (uint64_t)i;
        actor_send(a, a->link, epoch, ENVELOPE(PROGRESS, progress, &p), NULL);
    }
    ck_assert_uint_eq(r.c->pipeline.epoch, epoch);
    pl_error err = {0};
    run(&r, 10 * PL_MS);
    ck_assert_int_eq(pl_coordinator_health(r.c, &err), PL_ERR_CLOSED);
    ck_assert_ptr_nonnull(strstr(err.text, "9 of 100 bytes"));
    ck_assert_uint_eq(take_load(a, NULL), epoch + 1);
    ck_assert_uint_ge(pl_sim_now(r.sim) - start, 24 * PL_SECOND);
    rig_fini(&r);
}
END_TEST

START_TEST(a_lost_neighbour_link_makes_a_new_epoch_over_the_same_nodes)
{
    rig r;
    rig_init(&r, NULL);
    actor *a = join(&r, (hello){0}), *b = join(&r, (hello){0});
    uint64_t epoch = take_load(a, NULL);
    take_load(b, NULL);
    send_ready(a, epoch);
    send_ready(b, epoch);
    run(&r, 50 * PL_MS);
    Paceline__LinkState s = PACELINE__LINK_STATE__INIT;
    s.downstream = true;
    actor_send(a, a->link, epoch, ENVELOPE(LINK_STATE, link_state, &s), NULL);
    const Paceline__Load *l;
    ck_assert_uint_eq(take_load(a, &l), epoch + 1);
    ck_assert_uint_eq(l->n_stages, 2);
    ck_assert_uint_eq(take_load(b, NULL), epoch + 1);
    rig_fini(&r);
}
END_TEST

START_TEST(a_node_that_leaves_is_replaced_and_let_go)
{
    rig r;
    rig_init(&r, NULL);
    actor *a = join(&r, (hello){0}), *b = join(&r, (hello){0});
    uint64_t epoch = take_load(a, NULL);
    take_load(b, NULL);
    send_ready(a, epoch);
    send_ready(b, epoch);
    run(&r, 50 * PL_MS);
    Paceline__Leave leave = PACELINE__LEAVE__INIT;
    actor_send(b, b->link, 0, ENVELOPE(LEAVE, leave, &leave), NULL);
    ck_assert_ptr_nonnull(actor_take(b, PACELINE__ENVELOPE__BODY_LEAVE, PL_SECOND));
    const Paceline__Load *l;
    take_load(a, &l);
    ck_assert_uint_eq(l->n_stages, 1);
    run(&r, 2 * PL_SECOND);
    ck_assert_ptr_null(b->link);
    rig_fini(&r);
}
END_TEST

START_TEST(a_better_plan_waits_until_nothing_is_asked_for)
{
    rig r;
    uint64_t epoch;
    rig_init(&r, NULL);
    actor *a = ready_node(&r, &epoch);
    client *k = submit(&r, 5, 4, PL_OK);
    const actor_message *m = actor_take(a, PACELINE__ENVELOPE__BODY_FRAME, PL_SECOND);
    actor *b = join(&r, (hello){0});
    run(&r, 3 * PL_SECOND);
    ck_assert_uint_eq(r.c->pipeline.epoch, epoch); /* a stream is running */
    send_credit(a, epoch, 1);
    send_result(a, epoch, m->e.m->frame);
    serve(&r, a, epoch);
    check_answer(k, 5, 4);
    const Paceline__Load *l;
    take_load(b, &l);
    ck_assert_uint_eq(l->n_stages, 2);
    /* One that would help little changes nothing. */
    epoch = r.c->pipeline.epoch;
    send_ready(a, epoch);
    send_ready(b, epoch);
    join(&r, (hello){.rate = 1e4});
    run(&r, 3 * PL_SECOND);
    ck_assert_uint_eq(r.c->pipeline.epoch, epoch);
    rig_fini(&r);
}
END_TEST

START_TEST(a_frame_without_a_result_does_not_hang_for_ever)
{
    rig r;
    uint64_t epoch;
    rig_init(&r, &(pl_coordinator_options){.load_timeout_ns = 5 * PL_SECOND});
    actor *a = ready_node(&r, &epoch);
    client *k = submit(&r, 5, 2, PL_OK);
    uint64_t next = take_load(a, NULL); /* in the end */
    ck_assert_uint_eq(next, epoch + 1);
    send_ready(a, next);
    serve(&r, a, next);
    check_answer(k, 5, 2);
    rig_fini(&r);
}
END_TEST

/* --- Broken peers --- */

typedef enum { IN_MEETING, IN_IDLE, IN_LOADING, IN_UP, N_STATES } state;
typedef enum { OLD, CURRENT, FUTURE, N_EPOCHS } when;

/* One message of every kind, well formed, with nothing wrong but where it comes. */
static void send_kind(rig *r, actor *a, int kind, uint64_t epoch)
{
    static uint8_t hash[PL_HASH_SIZE];
    Paceline__Welcome welcome = PACELINE__WELCOME__INIT;
    Paceline__Heartbeat heartbeat = PACELINE__HEARTBEAT__INIT;
    Paceline__Progress progress = PACELINE__PROGRESS__INIT;
    Paceline__Ready ready = PACELINE__READY__INIT;
    Paceline__Unload unload = PACELINE__UNLOAD__INIT;
    Paceline__Frame frame = PACELINE__FRAME__INIT;
    Paceline__Result result = PACELINE__RESULT__INIT;
    Paceline__Credit credit = PACELINE__CREDIT__INIT;
    Paceline__BlobGet get = PACELINE__BLOB_GET__INIT;
    Paceline__Blob blob = PACELINE__BLOB__INIT;
    Paceline__LinkState link = PACELINE__LINK_STATE__INIT;
    Paceline__Leave leave = PACELINE__LEAVE__INIT;
    Paceline__Failure failure = PACELINE__FAILURE__INIT;
    Paceline__Load load = PACELINE__LOAD__INIT;
    Paceline__TensorRef ref = PACELINE__TENSOR_REF__INIT, *refs[] = {&ref};
    failure.status = PL_ERR_INTERNAL;
    welcome.heartbeat_ns = PL_SECOND;
    welcome.dead_after_ns = 2 * PL_SECOND;
    frame.id = result.frame = 1;
    credit.frames = 1;
    get.hash = blob.hash = load.header_hash = ref.hash = (ProtobufCBinaryData){PL_HASH_SIZE, hash};
    get.size = 1;
    blob.failure = &failure;
    load.header_bytes = load.layer_end = load.n_layer = load.n_blocks = load.n_ctx = load.n_seqs = load.n_rows =
        load.credits = load.n_stages = 1;
    load.tensors = refs;
    load.n_tensors = 1;
    switch (kind) {
    case PACELINE__ENVELOPE__BODY_HELLO: say_hello(r, a, (hello){0}); return;
    case PACELINE__ENVELOPE__BODY_WELCOME:
        actor_send(a, a->link, epoch, ENVELOPE(WELCOME, welcome, &welcome), NULL);
        return;
    case PACELINE__ENVELOPE__BODY_HEARTBEAT:
        actor_send(a, a->link, epoch, ENVELOPE(HEARTBEAT, heartbeat, &heartbeat), NULL);
        return;
    case PACELINE__ENVELOPE__BODY_LOAD: actor_send(a, a->link, epoch, ENVELOPE(LOAD, load, &load), NULL); return;
    case PACELINE__ENVELOPE__BODY_PROGRESS:
        actor_send(a, a->link, epoch, ENVELOPE(PROGRESS, progress, &progress), NULL);
        return;
    case PACELINE__ENVELOPE__BODY_READY: actor_send(a, a->link, epoch, ENVELOPE(READY, ready, &ready), NULL); return;
    case PACELINE__ENVELOPE__BODY_UNLOAD:
        actor_send(a, a->link, epoch, ENVELOPE(UNLOAD, unload, &unload), NULL);
        return;
    case PACELINE__ENVELOPE__BODY_FRAME: actor_send(a, a->link, epoch, ENVELOPE(FRAME, frame, &frame), NULL); return;
    case PACELINE__ENVELOPE__BODY_RESULT:
        actor_send(a, a->link, epoch, ENVELOPE(RESULT, result, &result), NULL);
        return;
    case PACELINE__ENVELOPE__BODY_CREDIT:
        actor_send(a, a->link, epoch, ENVELOPE(CREDIT, credit, &credit), NULL);
        return;
    case PACELINE__ENVELOPE__BODY_BLOB_GET:
        actor_send(a, a->link, epoch, ENVELOPE(BLOB_GET, blob_get, &get), NULL);
        return;
    case PACELINE__ENVELOPE__BODY_BLOB: actor_send(a, a->link, epoch, ENVELOPE(BLOB, blob, &blob), NULL); return;
    case PACELINE__ENVELOPE__BODY_LINK_STATE:
        actor_send(a, a->link, epoch, ENVELOPE(LINK_STATE, link_state, &link), NULL);
        return;
    case PACELINE__ENVELOPE__BODY_LEAVE: actor_send(a, a->link, epoch, ENVELOPE(LEAVE, leave, &leave), NULL); return;
    case PACELINE__ENVELOPE__BODY_FAILURE:
        actor_send(a, a->link, epoch, ENVELOPE(FAILURE, failure, &failure), NULL);
        return;
    default: ck_abort_msg("kind %d", kind);
    }
}

/* Whether a well-behaved node may send this then; otherwise it is dropped. */
static bool legal(int kind, state s, when w)
{
    if (s == IN_MEETING) return kind == PACELINE__ENVELOPE__BODY_HELLO;
    bool for_nodes_only = kind == PACELINE__ENVELOPE__BODY_HELLO || kind == PACELINE__ENVELOPE__BODY_WELCOME ||
                          kind == PACELINE__ENVELOPE__BODY_LOAD || kind == PACELINE__ENVELOPE__BODY_UNLOAD ||
                          kind == PACELINE__ENVELOPE__BODY_FRAME || kind == PACELINE__ENVELOPE__BODY_BLOB;
    if (w == FUTURE) return false;
    if (for_nodes_only || kind == PACELINE__ENVELOPE__BODY_LEAVE) return false; /* Leave ends the link by wish */
    if (w == OLD) return true;
    if (kind == PACELINE__ENVELOPE__BODY_CREDIT || kind == PACELINE__ENVELOPE__BODY_RESULT)
        return s == IN_IDLE; /* nothing is out: none can come back */
    return true;
}

START_TEST(every_message_in_every_state_leaves_the_cluster_working)
{
    const int kind = _i;
    for (int s = 0; s < N_STATES; s++)
        for (int w = 0; w < N_EPOCHS; w++) {
            rig r;
            rig_init(&r, NULL);
            actor *a;
            uint64_t epoch = 2;
            if (s == IN_MEETING) {
                a = new_node(&r);
                connect_node(&r, a);
                run(&r, 10 * PL_MS);
            } else {
                a = join(&r, (hello){0});
                if (s != IN_IDLE) {
                    /* The second epoch, so that there is an old one. */
                    send_failure(a, take_load(a, NULL), PL_ERR_IO, "once");
                    epoch = take_load(a, NULL);
                    ck_assert_uint_eq(epoch, 2);
                }
                if (s == IN_UP) send_ready(a, epoch);
                run(&r, 20 * PL_MS);
            }
            if (s == IN_IDLE) epoch = 0;
            uint64_t at = w == OLD ? (s == IN_IDLE || s == IN_MEETING ? 0 : 1) : w == CURRENT ? epoch : 77;
            /* Some carry an epoch always. */
            bool needs_epoch = kind == PACELINE__ENVELOPE__BODY_LOAD || kind == PACELINE__ENVELOPE__BODY_PROGRESS ||
                               kind == PACELINE__ENVELOPE__BODY_READY || kind == PACELINE__ENVELOPE__BODY_FRAME ||
                               kind == PACELINE__ENVELOPE__BODY_RESULT || kind == PACELINE__ENVELOPE__BODY_CREDIT ||
                               kind == PACELINE__ENVELOPE__BODY_LINK_STATE;
            bool fits = !(needs_epoch && at == 0);
            bool zero_failure = kind == PACELINE__ENVELOPE__BODY_FAILURE && at == 0;
            bool hello_any = kind == PACELINE__ENVELOPE__BODY_HELLO; /* the test's Hello has epoch 0 always */
            send_kind(&r, a, kind, at);
            run(&r, 2500 * PL_MS); /* longer than the link of one that was refused lasts */
            bool stays = legal(kind, (state)s, hello_any ? CURRENT : (when)w) && fits && !zero_failure;
            ck_assert_msg((a->link != NULL) == stays, "kind %d, state %d, epoch %d: the link should %s", kind, s, w,
                          stays ? "stay" : "end");
            if (a->link) pl_sim_break(r.process, a->process);
            run(&r, 200 * PL_MS);
            goes_on(&r);
            rig_fini(&r);
        }
}
END_TEST

static void send_bytes(actor *a, const void *data, size_t size)
{
    pl_error err = {0};
    pl_msg *m;
    ck_assert_int_eq(pl_msg_new(&m, &err), PL_OK);
    m->header = pl_part_copy((pl_bytes){data, size});
    ck_assert_int_eq(pl_link_send(a->link, &m, &err), PL_OK);
}

START_TEST(garbage_ends_the_link_and_nothing_else)
{
    for (int up = 0; up < 2; up++)
        for (uint64_t seed = 0; seed < 20; seed++) {
            rig r;
            uint64_t epoch;
            rig_init(&r, NULL);
            actor *a;
            if (up) {
                a = ready_node(&r, &epoch);
            } else {
                a = new_node(&r);
                connect_node(&r, a);
            }
            pl_rng rng;
            pl_rng_seed(&rng, seed);
            uint8_t bytes[64];
            size_t n = pl_rng_below(&rng, sizeof bytes);
            for (size_t i = 0; i < n; i++) bytes[i] = (uint8_t)pl_rng_below(&rng, 256);
            send_bytes(a, bytes, n);
            run(&r, 2500 * PL_MS);
            ck_assert_ptr_null(a->link);
            goes_on(&r);
            rig_fini(&r);
        }
}
END_TEST

START_TEST(a_lying_last_stage_is_dropped_and_the_answer_is_right)
{
    for (int lie = 0; lie < 5; lie++) {
        rig r;
        uint64_t epoch;
        rig_init(&r, NULL);
        actor *a = ready_node(&r, &epoch);
        client *k = submit(&r, 5, 3, PL_OK);
        const Paceline__Frame *f = actor_take(a, PACELINE__ENVELOPE__BODY_FRAME, PL_SECOND)->e.m->frame;
        Paceline__Result result = PACELINE__RESULT__INIT;
        Paceline__Token t[2] = {PACELINE__TOKEN__INIT, PACELINE__TOKEN__INIT}, *list[] = {&t[0], &t[1]};
        result.frame = f->id + (lie == 0);
        result.tokens = list;
        result.n_tokens = lie == 1 ? 0 : lie == 2 ? 2 : 1;
        t[0].seq = t[1].seq = lie == 3 ? 1 : 0;
        t[0].pos = t[1].pos = lie == 4 ? 6 : 5;
        actor_send(a, a->link, epoch, ENVELOPE(RESULT, result, &result), NULL);
        run(&r, 2500 * PL_MS);
        ck_assert_ptr_null(a->link);
        ck_assert_int_eq(k->n_got, 0);
        actor *b = join(&r, (hello){0});
        epoch = take_load(b, NULL);
        send_ready(b, epoch);
        serve(&r, b, epoch);
        check_answer(k, 5, 3);
        rig_fini(&r);
    }
}
END_TEST

START_TEST(credits_that_were_not_out_do_not_come_back)
{
    rig r;
    uint64_t epoch;
    rig_init(&r, NULL);
    actor *a = ready_node(&r, &epoch);
    send_credit(a, epoch, 1);
    run(&r, 2 * PL_SECOND);
    ck_assert_ptr_null(a->link);
    goes_on(&r);
    rig_fini(&r);
}
END_TEST

START_TEST(a_failed_frame_makes_a_new_epoch)
{
    rig r;
    uint64_t epoch;
    rig_init(&r, NULL);
    actor *a = ready_node(&r, &epoch);
    client *k = submit(&r, 5, 3, PL_OK);
    const Paceline__Frame *f = actor_take(a, PACELINE__ENVELOPE__BODY_FRAME, PL_SECOND)->e.m->frame;
    Paceline__Result result = PACELINE__RESULT__INIT;
    Paceline__Failure failure = PACELINE__FAILURE__INIT;
    failure.status = PL_ERR_INTERNAL;
    failure.text = (char *)"bad luck";
    result.frame = f->id;
    result.failure = &failure;
    actor_send(a, a->link, epoch, ENVELOPE(RESULT, result, &result), NULL);
    epoch = take_load(a, NULL);
    send_ready(a, epoch);
    serve(&r, a, epoch);
    check_answer(k, 5, 3);
    rig_fini(&r);
}
END_TEST

/* --- What people see --- */

START_TEST(the_status_tells_nodes_stages_and_requests)
{
    rig r;
    uint64_t epoch;
    rig_init(&r, NULL);
    actor *a = ready_node(&r, &epoch);
    client *k = submit(&r, 5, 3, PL_OK);
    run(&r, 2 * PL_SECOND);
    pl_json *v = pl_coordinator_status(r.c);
    ck_assert(pl_str_is(pl_json_str(pl_json_get(v, "model")), "tiny"));
    const pl_json *p = pl_json_get(v, "pipeline"), *n = pl_json_at(pl_json_get(v, "nodes"), 0),
                  *q = pl_json_get(v, "requests");
    ck_assert(pl_str_is(pl_json_str(pl_json_get(p, "state")), "up"));
    ck_assert_int_eq(pl_json_i64(pl_json_get(p, "epoch")), (int64_t)epoch);
    ck_assert_uint_eq(pl_json_size(pl_json_get(p, "stages")), 1);
    ck_assert(pl_str_is(pl_json_str(pl_json_get(n, "state")), "serving"));
    ck_assert(pl_str_is(pl_json_str(pl_json_get(n, "address")), "sim://a"));
    ck_assert_int_eq(pl_json_i64(pl_json_at(pl_json_get(n, "layers"), 1)), LAYERS);
    ck_assert_int_eq(pl_json_i64(pl_json_get(q, "open")), 1);
    pl_json_free(v);
    pl_buf text = {0};
    pl_error err = {0};
    ck_assert_int_eq(pl_coordinator_plan_text(r.c, &text, &err), PL_OK);
    ck_assert_ptr_nonnull(strstr(pl_buf_cstr(&text), "0-5"));
    pl_buf_fini(&text);
    serve(&r, a, epoch); /* it waited two seconds for its first frame */
    ck_assert(k->ended);
    rig_fini(&r);
}
END_TEST

START_TEST(options_out_of_range_are_refused_by_name)
{
    static const struct {
        pl_coordinator_options o;
        const char *says;
    } cases[] = {
        {{.n_seqs = -1}, "n_seqs is -1"},
        {{.n_ctx = 1}, "n_ctx is 1"},
        {{.n_rows = -5}, "n_rows is -5"},
        {{.credits = 1000}, "credits is 1000"},
        {{.queue_max = -1}, "queue_max"},
        {{.objective = 9}, "objective is 9"},
        {{.n_blocks = -1}, "n_blocks is -1"},
        {{.cache = PL_CACHE_BOTH(PL_TYPE_Q4_1), .has_cache = true}, "Q4_1"},
        {{.heartbeat_ns = 3 * PL_SECOND}, "dead_after_ns"},
    };
    sim_model model;
    sim_model_init(&model, 2, 1);
    pl_error err = {0};
    pl_sim *sim;
    pl_sim_process *process;
    ck_assert_int_eq(pl_sim_new(&sim, 1, &(pl_sim_options){0}, &err), PL_OK);
    ck_assert_int_eq(pl_sim_process_new(&process, sim, "c", &err), PL_OK);
    pl_coordinator_model m = {
        .gguf = model.gguf, .profile = model.profile, .hashes = model.hashes, .name = "m", .is_eog = never_eog};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pl_coordinator *c;
        ck_assert_int_ne(pl_coordinator_new(&c, pl_sim_loop(process), &m, &cases[i].o, &err), PL_OK);
        ck_assert_ptr_null(c);
        ck_assert_msg(strstr(err.text, cases[i].says) != NULL, "%s", err.text);
    }
    pl_sim_process_free(process);
    pl_sim_free(sim);
    sim_model_fini(&model);
}
END_TEST

START_TEST(what_is_open_ends_with_the_coordinator)
{
    rig r;
    uint64_t epoch;
    rig_init(&r, NULL);
    ready_node(&r, &epoch);
    for (int i = 0; i < 4; i++) submit(&r, 5, 3, PL_OK);
    run(&r, 100 * PL_MS);
    rig_fini(&r);
    for (int i = 0; i < 4; i++)
        ck_assert(r.clients[i].why == PL_FINISH_CANCELLED && r.clients[i].err.status == PL_ERR_CANCELLED);
}
END_TEST

Suite *coordinator_suite(void);
Suite *coordinator_suite(void)
{
    Suite *s = suite_create("coordinator");
    TCase *t = tcase_create("meeting");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, a_node_that_dials_is_greeted_welcomed_and_given_the_model);
    tcase_add_test(t, a_node_that_is_dialed_hears_hello_first_and_is_dialed_again);
    tcase_add_test(t, nodes_that_differ_are_refused_by_name);
    tcase_add_test(t, who_says_nothing_is_closed);
    tcase_add_test(t, a_listening_address_becomes_the_one_that_is_seen);
    tcase_add_test(t, a_second_link_of_the_same_life_replaces_the_first);
    tcase_add_test(t, min_nodes_are_waited_for);
    suite_add_tcase(s, t);
    t = tcase_create("serving");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, a_request_becomes_frames_and_its_results_tokens);
    tcase_add_test(t, no_more_frames_than_credits);
    tcase_add_test(t, cancelling_closes_the_sequence_and_is_told_later);
    tcase_add_test(t, a_blob_is_served_in_pieces_and_an_unknown_one_is_not_there);
    suite_add_tcase(s, t);
    t = tcase_create("epochs");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, a_death_costs_a_pause_and_the_answer_goes_on);
    tcase_add_test(t, without_room_clients_are_told_and_it_recovers_by_itself);
    tcase_add_test(t, within_the_grace_a_new_node_saves_the_requests);
    tcase_add_test(t, silence_is_death_and_heartbeats_are_life);
    tcase_add_test(t, a_node_that_fails_to_load_is_tried_again_and_then_left_out);
    tcase_add_test(t, a_node_whose_budget_is_too_small_after_all_is_left_out_at_once);
    tcase_add_test(t, loading_without_progress_times_out);
    tcase_add_test(t, a_lost_neighbour_link_makes_a_new_epoch_over_the_same_nodes);
    tcase_add_test(t, a_node_that_leaves_is_replaced_and_let_go);
    tcase_add_test(t, a_better_plan_waits_until_nothing_is_asked_for);
    tcase_add_test(t, a_frame_without_a_result_does_not_hang_for_ever);
    suite_add_tcase(s, t);
    t = tcase_create("broken peers");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, every_message_in_every_state_leaves_the_cluster_working, PACELINE__ENVELOPE__BODY_HELLO,
                        PACELINE__ENVELOPE__BODY_FAILURE + 1);
    tcase_add_test(t, garbage_ends_the_link_and_nothing_else);
    tcase_add_test(t, a_lying_last_stage_is_dropped_and_the_answer_is_right);
    tcase_add_test(t, credits_that_were_not_out_do_not_come_back);
    tcase_add_test(t, a_failed_frame_makes_a_new_epoch);
    suite_add_tcase(s, t);
    t = tcase_create("people");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, the_status_tells_nodes_stages_and_requests);
    tcase_add_test(t, options_out_of_range_are_refused_by_name);
    tcase_add_test(t, what_is_open_ends_with_the_coordinator);
    suite_add_tcase(s, t);
    return s;
}
