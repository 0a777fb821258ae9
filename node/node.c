/* The node's links and life: its coordinator, heartbeats, lease and leaving.
 *
 * A peer is ended in one place (lost), whatever noticed it first: the net (down), silence or a refused send (tick), or
 * a broken message. Sending never ends a peer, so whoever walks over peers and sides may send. */
#include "node/node_impl.h"

#include "engine/base/alloc.h"
#include "engine/base/log.h"
#include "engine/base/sys.h"
#include "transport/curve.h"
#include "transport/envelope.h"

#include <inttypes.h>

#define MS     UINT64_C(1000000)
#define SECOND (1000 * MS)
/* Whoever connects has this long to say Hello; a neighbour that is early waits this long for our Load; at most so many
 * do. */
#define HELLO_NS   (5 * SECOND)
#define PARK_NS    (5 * SECOND)
#define PARKED_MAX 16
/* A coordinator that does not answer Leave does not keep us. */
#define LEAVE_NS (30 * SECOND)

node_peer *node_peer_new(pl_node *n, pl_link *link, node_peer_kind kind)
{
    node_peer *p = pl_calloc(1, sizeof *p);
    if (!p) return NULL;
    p->node = n;
    p->link = link;
    p->kind = kind;
    p->since_ns = p->heard_ns = pl_loop_now(n->loop);
    p->next = n->peers;
    if (p->next) p->next->prev = p;
    n->peers = p;
    if (link) link->tag = p;
    return p;
}

static void forget(node_peer *p)
{
    pl_node *n = p->node;
    if (p->kind == NODE_PEER_PARKED) n->n_parked--;
    if (p->prev)
        p->prev->next = p->next;
    else
        n->peers = p->next;
    if (p->next) p->next->prev = p->prev;
    pl_free(p);
}

void node_peer_drop(node_peer *p)
{
    if (!p->link_dead) pl_link_close(p->link);
    forget(p);
}

void node_send(node_peer *p, uint64_t epoch, Paceline__Envelope *m, pl_part *part)
{
    pl_msg *msg = NULL;
    pl_status s = PL_OK;
    if (p->doomed) goto done;
    m->epoch = epoch;
    if ((s = pl_msg_of_envelope(&msg, m, &p->why)) != PL_OK) goto done;
    size_t bytes = msg->header->size + (part ? part->size : 0);
    if (part) {
        s = pl_msg_add(msg, part, &p->why);
        part = NULL;
        if (s != PL_OK) goto done;
    }
    if ((s = pl_link_send(p->link, &msg, &p->why)) != PL_OK) goto done;
    p->node->bytes_out += bytes;
done:
    if (s != PL_OK) p->doomed = true;
    pl_msg_free(msg);
    pl_part_unref(part);
}

void node_send_failure(node_peer *p, uint64_t epoch, const pl_error *err)
{
    Paceline__Failure f = PACELINE__FAILURE__INIT;
    Paceline__Envelope m = PACELINE__ENVELOPE__INIT;
    char text[sizeof err->text];
    /* An error may quote bytes of a peer or a file; the wire wants clean text. */
    memcpy(text, err->text, sizeof text);
    text[sizeof text - 1] = 0;
    text[pl_utf8_valid_prefix(pl_str_from(text))] = 0;
    f.status = err->status;
    f.text = text;
    m.body_case = PACELINE__ENVELOPE__BODY_FAILURE;
    m.failure = &f;
    node_send(p, epoch, &m, NULL);
}

void node_send_hello(node_peer *p, Paceline__Hello__Role role, uint64_t epoch)
{
    pl_node *n = p->node;
    const pl_compute_facts *facts = n->compute->vt->facts(n->compute);
    Paceline__Hello h = PACELINE__HELLO__INIT;
    Paceline__Device device = PACELINE__DEVICE__INIT, *devices[] = {&device};
    Paceline__Envelope m = PACELINE__ENVELOPE__INIT;
    uint32_t types[PL_TYPE_COUNT];
    h.role = role;
    h.protocol = PL_PROTOCOL;
    h.version = (char *)PACELINE_VERSION;
    h.name = n->name;
    h.incarnation = n->incarnation;
    if (role == PACELINE__HELLO__ROLE__NODE) {
        h.budget_bytes = n->budget;
        h.n_threads = (uint32_t)facts->n_threads;
        h.isa = (char *)facts->isa;
        h.profile = (char *)facts->profile;
        h.known_checksum = facts->known_checksum;
        for (uint32_t t = 0; t < PL_TYPE_COUNT; t++)
            if (pl_type_get(t) && pl_type_get(t)->act != PL_ACT_NONE) types[h.n_types++] = t;
        h.types = types;
        h.archs = (char **)facts->archs;
        h.n_archs = facts->n_archs;
        device.kind = (char *)"cpu";
        device.name = (char *)facts->cpu_name;
        device.memory_bytes = facts->memory_total;
        h.devices = devices;
        h.n_devices = 1;
        h.read_bytes_s = facts->read_bytes_s;
        h.macs_s = facts->macs_s;
        h.data_address = n->data_address;
    }
    m.body_case = PACELINE__ENVELOPE__BODY_HELLO;
    m.hello = &h;
    p->hello_sent = true;
    node_send(p, epoch, &m, NULL);
}

static void send_heartbeat(node_peer *p, uint64_t now)
{
    Paceline__Heartbeat h = PACELINE__HEARTBEAT__INIT;
    Paceline__NodeStats stats = PACELINE__NODE_STATS__INIT;
    Paceline__Envelope m = PACELINE__ENVELOPE__INIT;
    h.count = ++p->beats;
    h.sent_ns = now;
    h.echo_ns = p->echo_ns;
    h.held_ns = p->echo_ns ? now - p->echo_at_ns : 0;
    if (p->kind == NODE_PEER_COORDINATOR) {
        node_stats(p->node, &stats);
        h.stats = &stats;
    }
    m.body_case = PACELINE__ENVELOPE__BODY_HEARTBEAT;
    m.heartbeat = &h;
    node_send(p, 0, &m, NULL);
}

bool node_has_coordinator(const pl_node *n)
{
    return n->coordinator.peer != NULL;
}

/* --- The coordinator --- */

static void dial_coordinator(void *user);

static void redial_later(pl_node *n)
{
    if (!n->joins || n->redial || n->left || node_has_coordinator(n)) return;
    pl_error err;
    /* A quarter of jitter, so that nodes that lost the same coordinator do not come back in step. */
    uint64_t after = n->redial_ns + pl_rng_below(&n->rng, n->redial_ns / 4 + 1);
    if (n->redial_ns < 16 * n->options.redial_ns) n->redial_ns *= 2;
    if (pl_timer_start(n->loop, after, 0, dial_coordinator, n, &n->redial, &err) != PL_OK)
        PL_LOG(PL_LOG_ERROR, "no timer to redial", "node=%s error=%s", PL_Q(n->name), PL_Q(err.text));
}

static void dial_coordinator(void *user)
{
    pl_node *n = user;
    n->redial = NULL;
    if (node_has_coordinator(n) || n->left) return;
    pl_error err = {0};
    pl_link *link = NULL;
    node_peer *p = node_peer_new(n, NULL, NODE_PEER_DIALED);
    if (!p) {
        redial_later(n);
        return;
    }
    pl_status s =
        pl_link_dial(n->net, n->join_address, n->join_has_key ? &n->join_key : NULL, HELLO_NS, p, &link, &err);
    if (s != PL_OK) {
        PL_LOG(PL_LOG_WARN, "cannot dial coordinator", "node=%s address=%s error=%s", PL_Q(n->name),
               PL_Q(n->join_address), PL_Q(err.text));
        forget(p);
        redial_later(n);
        return;
    }
    p->link = link;
}

static void forget_coordinator(pl_node *n)
{
    pl_timer_stop(n->loop, n->lease);
    n->lease = NULL;
    n->coordinator.known = n->coordinator.welcomed = false;
    n->epoch_max = 0;
    n->coordinator.incarnation = 0;
}

static void lease_is_over(void *user)
{
    pl_node *n = user;
    n->lease = NULL;
    PL_LOG(PL_LOG_INFO, "lease is over", "node=%s coordinator=%s", PL_Q(n->name), PL_Q(n->coordinator.name));
    node_stage_unload(n);
    forget_coordinator(n);
}

/* The link to the coordinator is gone. The epoch is over for us; what is loaded stays for the lease, and so does the
 * coordinator's claim. */
static void coordinator_lost(pl_node *n, const pl_error *why)
{
    n->coordinator.peer = NULL;
    n->coordinator.welcomed = false;
    PL_LOG(PL_LOG_WARN, "coordinator lost", "node=%s coordinator=%s error=%s", PL_Q(n->name), PL_Q(n->coordinator.name),
           PL_Q(why->text));
    node_stage_end(n->stage);
    pl_timer_stop(n->loop, n->lease);
    n->lease = NULL;
    pl_error err;
    if (n->loaded_bytes == 0)
        forget_coordinator(n);
    else if (pl_timer_start(n->loop, n->lease_ns, 0, lease_is_over, n, &n->lease, &err) != PL_OK)
        lease_is_over(n);
    redial_later(n);
}

static void check_left(pl_node *n);

static void leave_now(pl_node *n)
{
    if (!n->leaving || n->left) return;
    n->left = true;
    pl_timer_stop(n->loop, n->leave_timer);
    n->leave_timer = NULL;
    pl_timer_stop(n->loop, n->redial);
    n->redial = NULL;
    node_stage_unload(n);
    n->coordinator.peer = NULL;
    forget_coordinator(n);
    while (n->peers) node_peer_drop(n->peers);
    check_left(n);
}

static void leave_timed_out(void *user)
{
    pl_node *n = user;
    n->leave_timer = NULL;
    leave_now(n);
}

static void check_left(pl_node *n)
{
    if (!n->left || n->stages || !n->leave_done) return;
    void (*done)(void *) = n->leave_done;
    n->leave_done = NULL;
    done(n->leave_user);
}

void node_stage_release(node_stage *s)
{
    if (!s->over || s->answers_due) return;
    pl_node *n = s->node;
    for (node_stage **at = &n->stages; *at; at = &(*at)->next)
        if (*at == s) {
            *at = s->next;
            break;
        }
    node_stage_free(s);
    check_left(n);
}

/* --- Ends of links --- */

/* Whoever uses the peer hears that it is gone; then it is. */
static void lost(node_peer *p, const pl_error *why)
{
    pl_node *n = p->node;
    switch (p->kind) {
    case NODE_PEER_DIALED:
        PL_LOG(PL_LOG_WARN, "coordinator does not answer", "node=%s address=%s error=%s", PL_Q(n->name),
               PL_Q(n->join_address), PL_Q(why->text));
        node_peer_drop(p);
        redial_later(n);
        return;
    case NODE_PEER_COORDINATOR:
        coordinator_lost(n, why);
        node_peer_drop(p);
        if (n->leaving) leave_now(n);
        return;
    case NODE_PEER_DATA:
        if (n->stage) node_flow_lost(n->stage, p, why);
        node_peer_drop(p);
        return;
    case NODE_PEER_STRANGER:
    case NODE_PEER_PARKED:
        PL_LOG(PL_LOG_DEBUG, "link ended before it was used", "node=%s peer=%s error=%s", PL_Q(n->name),
               PL_Q(p->link->address), PL_Q(why->text));
        node_peer_drop(p);
        return;
    }
}

/* Tells the peer what is wrong and ends the link. */
static void refuse(node_peer *p, const pl_error *err)
{
    node_send_failure(p, 0, err);
    lost(p, err);
}

static void tick(void *user)
{
    pl_node *n = user;
    uint64_t now = pl_loop_now(n->loop);
    /* A process that was stopped finds its peers silent, though it was itself that did not listen: their messages are
     * read before the next tick. */
    if (now - n->tick_ns > n->dead_after_ns / 2 + n->heartbeat_ns)
        for (node_peer *p = n->peers; p; p = p->next) p->heard_ns = now;
    n->tick_ns = now;
again:
    for (node_peer *p = n->peers; p; p = p->next) {
        pl_error err;
        if (p->doomed) {
            err = p->why;
        } else if (p->kind == NODE_PEER_PARKED && now - p->since_ns >= PARK_NS) {
            pl_fail(&err, PL_ERR_STALE, "epoch %" PRIu64 " did not come to this node within %d s", p->epoch,
                    (int)(PARK_NS / SECOND));
            node_send_failure(p, p->epoch, &err);
        } else if (!p->greeted && p->connected && now - p->since_ns >= HELLO_NS) {
            pl_fail(&err, PL_ERR_TIMEOUT, "%s: no Hello within %d s", p->link->address, (int)(HELLO_NS / SECOND));
        } else if (p->greeted && p->kind != NODE_PEER_PARKED && now - p->heard_ns > n->dead_after_ns) {
            pl_fail(&err, PL_ERR_TIMEOUT, "%s: silent for %" PRIu64 " ms", p->link->address, (now - p->heard_ns) / MS);
        } else {
            continue;
        }
        lost(p, &err); /* which may end others too: begin again */
        goto again;
    }
    for (node_peer *p = n->peers; p; p = p->next)
        if (p->connected && p->greeted && p->hello_sent) send_heartbeat(p, now);
    if (n->stage) node_stage_tick(n->stage);
    if (n->trace) fflush(n->trace);
}

static void set_tick(pl_node *n, uint64_t heartbeat_ns)
{
    pl_timer_stop(n->loop, n->tick);
    n->tick = NULL;
    n->heartbeat_ns = heartbeat_ns;
    n->tick_ns = pl_loop_now(n->loop);
    pl_error err;
    if (pl_timer_start(n->loop, heartbeat_ns, heartbeat_ns, tick, n, &n->tick, &err) != PL_OK)
        PL_LOG(PL_LOG_ERROR, "no timer for heartbeats", "node=%s error=%s", PL_Q(n->name), PL_Q(err.text));
}

/* --- Hello --- */

static const pl_key no_key; /* of every peer on an unencrypted net */

static bool same_coordinator(const pl_node *n, const node_peer *p, const Paceline__Hello *h)
{
    if (!pl_key_eq(&n->coordinator.key, &p->link->peer)) return false;
    /* Without keys the name has to do. */
    return !pl_key_eq(&no_key, &p->link->peer) || strcmp(n->coordinator.name, h->name) == 0;
}

static void coordinator_hello(node_peer *p, const Paceline__Hello *h)
{
    pl_node *n = p->node;
    pl_error err;
    bool accepted = p->kind == NODE_PEER_STRANGER;
    if (accepted && n->allowed && !n->allowed(n->allowed_user, &p->link->peer)) {
        pl_fail(&err, PL_ERR_AUTH, "node %s: this key is not a coordinator that it works for", n->name);
        refuse(p, &err);
        return;
    }
    if (n->coordinator.known && !same_coordinator(n, p, h)) {
        pl_fail(&err, PL_ERR_INVALID, "node %s works for coordinator %s", n->name, n->coordinator.name);
        refuse(p, &err);
        return;
    }
    node_peer *old = n->coordinator.peer;
    bool alive = old && pl_loop_now(n->loop) - old->heard_ns < n->dead_after_ns / 2;
    if (alive && h->incarnation == n->coordinator.incarnation) {
        /* Both dialed. One link is enough, and the first is alive. */
        pl_fail(&err, PL_ERR_INVALID, "node %s already has a link to coordinator %s", n->name, n->coordinator.name);
        refuse(p, &err);
        return;
    }
    if (alive && pl_key_eq(&no_key, &p->link->peer)) {
        /* Without keys another coordinator of the same name looks like the first one restarted; but that one's old link
         * would be silent. */
        pl_fail(&err, PL_ERR_INVALID, "node %s works for coordinator %s", n->name, n->coordinator.name);
        refuse(p, &err);
        return;
    }
    if (old) {
        pl_fail(&err, PL_ERR_CLOSED, "replaced by a new link");
        p->kind = NODE_PEER_COORDINATOR; /* not dialed again by what follows */
        n->coordinator.peer = NULL;
        node_stage_end(n->stage);
        node_peer_drop(old);
    }
    if (!n->coordinator.known || h->incarnation != n->coordinator.incarnation) {
        node_stage_end(n->stage);
        n->epoch_max = 0;
    }
    pl_timer_stop(n->loop, n->lease);
    n->lease = NULL;
    pl_timer_stop(n->loop, n->redial);
    n->redial = NULL;
    n->redial_ns = n->options.redial_ns;
    p->kind = NODE_PEER_COORDINATOR;
    n->coordinator.known = true;
    n->coordinator.welcomed = false;
    n->coordinator.peer = p;
    n->coordinator.key = p->link->peer;
    n->coordinator.incarnation = h->incarnation;
    snprintf(n->coordinator.name, sizeof n->coordinator.name, "%s", h->name[0] ? h->name : p->link->address);
    PL_LOG(PL_LOG_INFO, "coordinator found", "node=%s coordinator=%s", PL_Q(n->name), PL_Q(n->coordinator.name));
    if (accepted) node_send_hello(p, PACELINE__HELLO__ROLE__NODE, 0);
    if (n->leaving) {
        Paceline__Leave l = PACELINE__LEAVE__INIT;
        Paceline__Envelope m = PACELINE__ENVELOPE__INIT;
        m.body_case = PACELINE__ENVELOPE__BODY_LEAVE;
        m.leave = &l;
        node_send(p, 0, &m, NULL);
    }
}

static void neighbour_hello(node_peer *p, Paceline__Hello__Role role, uint64_t epoch)
{
    pl_node *n = p->node;
    pl_error err;
    if (n->stage && epoch == n->stage->epoch) {
        node_flow_hello(n->stage, p, role);
        return;
    }
    if (epoch <= n->epoch_max) {
        pl_fail(&err, PL_ERR_STALE, "node %s: epoch %" PRIu64 " is over, it is at %" PRIu64, n->name, epoch,
                n->epoch_max);
        node_send_failure(p, epoch, &err);
        lost(p, &err);
        return;
    }
    if (n->n_parked == PARKED_MAX) {
        pl_fail(&err, PL_ERR_BUDGET, "node %s: %d links already wait for their epoch", n->name, PARKED_MAX);
        refuse(p, &err);
        return;
    }
    p->kind = NODE_PEER_PARKED;
    p->role = role;
    p->epoch = epoch;
    n->n_parked++;
}

static void hello(node_peer *p, const Paceline__Envelope *m)
{
    const Paceline__Hello *h = m->hello;
    pl_node *n = p->node;
    pl_error err;
    if (p->greeted) {
        pl_fail(&err, PL_ERR_FORMAT, "%s: a second Hello", p->link->address);
        refuse(p, &err);
        return;
    }
    p->greeted = true;
    if (h->protocol != PL_PROTOCOL) {
        pl_fail(&err, PL_ERR_UNSUPPORTED, "node %s speaks protocol %d, %s speaks %u", n->name, PL_PROTOCOL, h->name,
                h->protocol);
        refuse(p, &err);
        return;
    }
    switch (h->role) {
    case PACELINE__HELLO__ROLE__COORDINATOR:
        if (p->kind != NODE_PEER_DIALED && p->kind != NODE_PEER_STRANGER) break;
        coordinator_hello(p, h);
        return;
    case PACELINE__HELLO__ROLE__UPSTREAM:
    case PACELINE__HELLO__ROLE__DOWNSTREAM:
        if (p->kind != NODE_PEER_DATA && p->kind != NODE_PEER_STRANGER) break;
        neighbour_hello(p, h->role, m->epoch);
        return;
    default: break;
    }
    pl_fail(&err, PL_ERR_FORMAT, "node %s: a Hello of role %d does not belong on this link", n->name, (int)h->role);
    refuse(p, &err);
}

/* --- Messages --- */

static void heartbeat(node_peer *p, const Paceline__Heartbeat *h)
{
    p->echo_ns = h->sent_ns;
    p->echo_at_ns = pl_loop_now(p->node->loop);
}

static void out_of_place(node_peer *p, const Paceline__Envelope *m)
{
    pl_error err;
    pl_fail(&err, PL_ERR_FORMAT, "node %s: a %s does not belong here", p->node->name, pl_envelope_kind(m));
    refuse(p, &err);
}

static void from_coordinator(node_peer *p, pl_envelope *e, pl_msg *msg)
{
    pl_node *n = p->node;
    const Paceline__Envelope *m = e->m;
    node_stage *s = n->stage;
    bool current = s && m->epoch == s->epoch;
    switch (m->body_case) {
    case PACELINE__ENVELOPE__BODY_WELCOME:
        n->coordinator.node_id = m->welcome->node_id;
        n->coordinator.welcomed = true;
        n->dead_after_ns = m->welcome->dead_after_ns;
        n->lease_ns = m->welcome->lease_ns;
        set_tick(n, m->welcome->heartbeat_ns);
        return;
    case PACELINE__ENVELOPE__BODY_LOAD:
        if (!n->coordinator.welcomed) break;
        node_stage_load(n, e);
        return;
    case PACELINE__ENVELOPE__BODY_UNLOAD:
        /* Of an older epoch: what is loaded now is not meant. */
        if (m->epoch >= n->epoch_max) node_stage_unload(n);
        return;
    case PACELINE__ENVELOPE__BODY_FRAME:
        if (current) {
            node_flow_frame(s, p, e, msg);
        } else if (m->epoch > n->epoch_max) {
            break;
        } else {
            n->stale_frames++;
        }
        return;
    case PACELINE__ENVELOPE__BODY_BLOB:
        if (!current) return;
        {
            pl_part *part = msg->n_parts ? pl_part_ref(msg->parts[0]) : NULL;
            node_fetch_blob(s, m->blob, part);
        }
        return;
    case PACELINE__ENVELOPE__BODY_LEAVE: leave_now(n); return;
    case PACELINE__ENVELOPE__BODY_FAILURE:
        PL_LOG(PL_LOG_WARN, "coordinator says", "node=%s coordinator=%s epoch=%" PRIu64 " status=%s text=%s",
               PL_Q(n->name), PL_Q(n->coordinator.name), m->epoch, pl_status_name((pl_status)m->failure->status),
               PL_Q(m->failure->text));
        return;
    default: break;
    }
    out_of_place(p, m);
}

static void from_neighbour(node_peer *p, pl_envelope *e, pl_msg *msg)
{
    pl_node *n = p->node;
    const Paceline__Envelope *m = e->m;
    node_stage *s = n->stage;
    PL_ASSERT(s); /* neighbours' links end with their epoch */
    if (m->body_case == PACELINE__ENVELOPE__BODY_FAILURE) {
        pl_error err;
        pl_fail(&err, (pl_status)m->failure->status, "%s", m->failure->text);
        lost(p, &err);
        return;
    }
    /* A data link is of one epoch, and its peer is dropped with it. */
    if (m->epoch == s->epoch && p->greeted) {
        if (m->body_case == PACELINE__ENVELOPE__BODY_FRAME && p == s->up.peer) {
            node_flow_frame(s, p, e, msg);
            return;
        }
        if (m->body_case == PACELINE__ENVELOPE__BODY_CREDIT && p == s->down.peer) {
            node_flow_credit(s, m->credit->frames, p);
            return;
        }
    }
    out_of_place(p, m);
}

static void on_up(void *user, pl_link *link, bool accepted)
{
    pl_node *n = user;
    node_peer *p = link->tag;
    if (accepted) {
        p = n->left ? NULL : node_peer_new(n, link, NODE_PEER_STRANGER);
        if (!p) {
            pl_link_close(link);
            return;
        }
    }
    p->connected = true;
    p->since_ns = p->heard_ns = pl_loop_now(n->loop);
    if (accepted) return;
    p->link = link;
    if (p->kind == NODE_PEER_DIALED)
        node_send_hello(p, PACELINE__HELLO__ROLE__NODE, 0);
    else
        node_flow_connected(n->stage, p);
}

static void on_message(void *user, pl_link *link, pl_msg *msg)
{
    pl_node *n = user;
    node_peer *p = link->tag;
    /* A link that was refused while it came up. */
    if (!p) {
        pl_msg_free(msg);
        return;
    }
    pl_error err = {0};
    p->heard_ns = pl_loop_now(n->loop);
    n->bytes_in += msg->header->size;
    for (int i = 0; i < msg->n_parts; i++) n->bytes_in += msg->parts[i]->size;
    /* Handling a message may take the envelope over (Load, Frame) or end the peer; scratch is whole again at the end.
     */
    pl_envelope e = n->scratch;
    n->scratch = (pl_envelope){0};
    pl_status s = pl_envelope_of_msg(&e, msg, NULL, &err);
    if (s != PL_OK) {
        pl_note(&err, s, "node %s: from %s", n->name, p->link->address);
        if (n->stage && (p == n->coordinator.peer || p->kind == NODE_PEER_DATA)) node_stage_fail(n->stage, &err);
        if (p->kind != NODE_PEER_COORDINATOR) refuse(p, &err);
    } else if (e.m->body_case == PACELINE__ENVELOPE__BODY_HELLO) {
        hello(p, e.m);
    } else if (e.m->body_case == PACELINE__ENVELOPE__BODY_HEARTBEAT && p->greeted) {
        heartbeat(p, e.m->heartbeat);
    } else if (p->kind == NODE_PEER_COORDINATOR) {
        from_coordinator(p, &e, msg);
    } else if (p->kind == NODE_PEER_DATA) {
        from_neighbour(p, &e, msg);
    } else if (p->kind == NODE_PEER_DIALED && e.m->body_case == PACELINE__ENVELOPE__BODY_FAILURE) {
        pl_fail(&err, (pl_status)e.m->failure->status, "refused: %s", e.m->failure->text);
        lost(p, &err);
    } else {
        out_of_place(p, e.m);
    }
    pl_envelope_fini(&n->scratch);
    n->scratch = e;
    pl_msg_free(msg);
}

static void on_down(void *user, pl_link *link, const pl_error *why)
{
    (void)user;
    node_peer *p = link->tag;
    if (!p) return;
    p->link_dead = p->doomed = true;
    p->why = *why;
    lost(p, &p->why);
}

const pl_net_events pl_node_net_events = {on_up, on_message, on_down};

/* --- From outside --- */

pl_status pl_node_new(pl_node **out, pl_loop *loop, pl_compute *compute, const pl_node_options *options, pl_error *err)
{
    *out = NULL;
    pl_node *n = pl_calloc(1, sizeof *n);
    if (!n) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for a node");
    n->loop = loop;
    n->compute = compute;
    n->options = *options;
    if (!n->options.redial_ns) n->options.redial_ns = 250 * MS;
    if (!n->options.blob_window) n->options.blob_window = 4;
    if (n->options.blob_window > NODE_WINDOW_MAX) n->options.blob_window = NODE_WINDOW_MAX;
    if (!n->options.blob_bytes) n->options.blob_bytes = 256u << 10;
    n->redial_ns = n->options.redial_ns;
    if (options->name)
        snprintf(n->name, sizeof n->name, "%s", options->name);
    else
        pl_sys_hostname(n->name, sizeof n->name);
    n->budget = options->budget_bytes ? options->budget_bytes : node_budget_default();
    n->incarnation = options->seed ? options->seed : pl_random_seed();
    pl_rng_seed(&n->rng, n->incarnation);
    n->dead_after_ns = 2 * SECOND;
    n->lease_ns = 60 * SECOND;
    n->heartbeat_ns = 250 * MS;
    if (options->trace_path && !(n->trace = fopen(options->trace_path, "w"))) {
        pl_free(n);
        return pl_fail(err, PL_ERR_IO, "%s: cannot write the timeline", options->trace_path);
    }
    *out = n;
    return PL_OK;
}

void pl_node_start(pl_node *n, pl_net *net)
{
    n->net = net;
    snprintf(n->data_address, sizeof n->data_address, "%s",
             n->options.data_address ? n->options.data_address : pl_net_address(net));
    set_tick(n, n->heartbeat_ns);
    if (n->joins) dial_coordinator(n);
}

pl_status pl_node_join(pl_node *n, const char *address, const pl_key *coordinator, pl_error *err)
{
    if (strlen(address) >= sizeof n->join_address)
        return pl_fail(err, PL_ERR_INVALID, "address of %zu bytes", strlen(address));
    snprintf(n->join_address, sizeof n->join_address, "%s", address);
    n->join_has_key = coordinator != NULL;
    if (coordinator) n->join_key = *coordinator;
    n->joins = true;
    if (n->net) dial_coordinator(n);
    return PL_OK;
}

void pl_node_set_coordinator_check(pl_node *n, bool (*allowed)(void *user, const pl_key *key), void *user)
{
    n->allowed = allowed;
    n->allowed_user = user;
}

static void leave_alone(void *user)
{
    leave_now(user);
}

void pl_node_leave(pl_node *n, void (*done)(void *user), void *user)
{
    if (n->leaving) return;
    n->leaving = true;
    n->leave_done = done;
    n->leave_user = user;
    pl_error err;
    pl_status s;
    if (!node_has_coordinator(n)) {
        s = pl_timer_start(n->loop, 0, 0, leave_timed_out, n, &n->leave_timer, &err);
    } else {
        Paceline__Leave l = PACELINE__LEAVE__INIT;
        Paceline__Envelope m = PACELINE__ENVELOPE__INIT;
        m.body_case = PACELINE__ENVELOPE__BODY_LEAVE;
        m.leave = &l;
        node_send(n->coordinator.peer, 0, &m, NULL);
        s = pl_timer_start(n->loop, LEAVE_NS, 0, leave_timed_out, n, &n->leave_timer, &err);
    }
    if (s != PL_OK) leave_alone(n);
}

void pl_node_free(pl_node *n)
{
    if (!n) return;
    n->leave_done = NULL;
    node_stage_end(n->stage);
    while (n->stages) {
        node_stage *s = n->stages;
        n->stages = s->next;
        node_stage_free(s);
    }
    while (n->peers) node_peer_drop(n->peers);
    pl_timer_stop(n->loop, n->tick);
    pl_timer_stop(n->loop, n->redial);
    pl_timer_stop(n->loop, n->lease);
    pl_timer_stop(n->loop, n->leave_timer);
    pl_envelope_fini(&n->scratch);
    if (n->trace) fclose(n->trace);
    pl_free(n);
}
