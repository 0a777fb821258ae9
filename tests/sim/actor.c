#include "tests/sim/actor.h"

#include "engine/base/alloc.h"

#include <stdio.h>

static void on_up(void *user, pl_link *link, bool accepted)
{
    actor *a = user;
    (void)accepted;
    a->link = link;
    a->said_hello = false;
    a->n_up++;
}

static void answer_blob(actor *a, pl_link *link, const Paceline__Envelope *e)
{
    const Paceline__BlobGet *g = e->blob_get;
    pl_hash hash;
    memcpy(hash.b, g->hash.data, PL_HASH_SIZE);
    pl_bytes b = sim_model_blob(a->serve, &hash);
    Paceline__Blob blob = PACELINE__BLOB__INIT;
    Paceline__Failure f = PACELINE__FAILURE__INIT;
    blob.hash = g->hash;
    blob.offset = g->offset;
    blob.total = b.size;
    if (!b.data || g->offset >= b.size) {
        f.status = PL_ERR_NOT_FOUND;
        f.text = (char *)"no such blob";
        blob.failure = &f;
        actor_send(a, link, e->epoch, ENVELOPE(BLOB, blob, &blob), NULL);
        return;
    }
    size_t size = g->size < b.size - g->offset ? g->size : b.size - g->offset;
    pl_part *part = pl_part_copy((pl_bytes){b.data + g->offset, size});
    PL_ASSERT(part);
    if (a->corrupt_blobs) part->data[0] ^= 1;
    a->bytes_served += size;
    actor_send(a, link, e->epoch, ENVELOPE(BLOB, blob, &blob), part);
}

static void on_message(void *user, pl_link *link, pl_msg *m)
{
    actor *a = user;
    pl_envelope e = {0};
    pl_error err = {0};
    /* Whatever a node sends has to pass the checks. */
    pl_status s = pl_envelope_of_msg(&e, m, NULL, &err);
    if (s != PL_OK) fprintf(stderr, "actor: %s\n", err.text);
    PL_ASSERT(s == PL_OK);
    if (e.m->body_case == PACELINE__ENVELOPE__BODY_HEARTBEAT) {
        a->n_heartbeats++;
        if (e.m->heartbeat->stats) a->stats = *e.m->heartbeat->stats;
        goto dropped;
    }
    if (a->serve && e.m->body_case == PACELINE__ENVELOPE__BODY_BLOB_GET) {
        answer_blob(a, link, e.m);
        goto dropped;
    }
    if (a->n_log == a->cap_log) {
        a->cap_log = a->cap_log ? 2 * a->cap_log : 64;
        a->log = pl_realloc(a->log, a->cap_log * sizeof *a->log);
        PL_ASSERT(a->log);
    }
    a->log[a->n_log++] = (actor_message){link, e, m};
    return;
dropped:
    pl_envelope_fini(&e);
    pl_msg_free(m);
}

static void on_down(void *user, pl_link *link, const pl_error *why)
{
    actor *a = user;
    a->n_down++;
    a->down_why = *why;
    if (a->link == link) a->link = NULL;
}

static const pl_net_events events = {on_up, on_message, on_down};

static void beat(void *user)
{
    actor *a = user;
    Paceline__Heartbeat h = PACELINE__HEARTBEAT__INIT;
    if (a->link && a->said_hello && a->heartbeat_ns)
        actor_send(a, a->link, 0, ENVELOPE(HEARTBEAT, heartbeat, &h), NULL);
}

static bool allow_all(void *user, const pl_key *peer)
{
    (void)user;
    (void)peer;
    return true;
}

void actor_init(actor *a, pl_sim *sim, const char *name, const pl_key *key)
{
    pl_error err = {0};
    char address[80];
    *a = (actor){.sim = sim};
    if (key) a->key = *key;
    pl_sim_net_options options = {.key = key ? &a->key : NULL, .allowed = allow_all};
    snprintf(address, sizeof address, "sim://%s", name);
    PL_ASSERT(pl_sim_process_new(&a->process, sim, name, &err) == PL_OK);
    PL_ASSERT(pl_net_sim_new(&a->net, a->process, &options, &events, a, &err) == PL_OK);
    PL_ASSERT(pl_net_listen(a->net, address, &err) == PL_OK);
    a->heartbeat_ns = 100000000;
    PL_ASSERT(pl_timer_start(pl_sim_loop(a->process), a->heartbeat_ns, a->heartbeat_ns, beat, a, &a->beat, &err) ==
              PL_OK);
}

void actor_forget(actor *a)
{
    for (size_t i = 0; i < a->n_log; i++) {
        pl_envelope_fini(&a->log[i].e);
        pl_msg_free(a->log[i].m);
    }
    a->n_log = a->n_taken = 0;
}

void actor_fini(actor *a)
{
    actor_forget(a);
    pl_free(a->log);
    pl_timer_stop(pl_sim_loop(a->process), a->beat);
    pl_net_free(a->net);
    pl_sim_process_free(a->process);
}

void actor_dial(actor *a, const char *address, const pl_key *server)
{
    pl_error err = {0};
    pl_link *link;
    PL_ASSERT(pl_link_dial(a->net, address, server, 5000000000u, NULL, &link, &err) == PL_OK);
}

void actor_send(actor *a, pl_link *link, uint64_t epoch, Paceline__Envelope *m, pl_part *part)
{
    pl_error err = {0};
    pl_msg *msg;
    if (m->body_case == PACELINE__ENVELOPE__BODY_HELLO) a->said_hello = true;
    m->epoch = epoch;
    PL_ASSERT(pl_msg_of_envelope(&msg, m, &err) == PL_OK);
    if (part) PL_ASSERT(pl_msg_add(msg, part, &err) == PL_OK);
    PL_ASSERT(pl_link_send(link, &msg, &err) == PL_OK);
}

bool actor_has(const actor *a, Paceline__Envelope__BodyCase kind)
{
    for (size_t i = a->n_taken; i < a->n_log; i++)
        if (a->log[i].e.m->body_case == kind) return true;
    return false;
}

typedef struct waiting {
    const actor *a;
    Paceline__Envelope__BodyCase kind;
} waiting;

static bool not_yet(void *user)
{
    const waiting *w = user;
    return !actor_has(w->a, w->kind);
}

const actor_message *actor_take(actor *a, Paceline__Envelope__BodyCase kind, uint64_t limit_ns)
{
    waiting w = {a, kind};
    if (!pl_sim_run_while(a->sim, not_yet, &w, pl_sim_now(a->sim) + limit_ns)) return NULL;
    while (a->log[a->n_taken].e.m->body_case != kind) a->n_taken++;
    return &a->log[a->n_taken++];
}
