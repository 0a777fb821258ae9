/* Links to nodes: dialing, Hello, heartbeats, and their end. */
#include "coordinator/coordinator_impl.h"

#include "engine/base/alloc.h"
#include "engine/base/log.h"
#include "transport/curve.h"

#include <inttypes.h>
#include <stdio.h>

#define DIAL_NS       (5 * PL_SECOND)
#define HELLO_NS      (5 * PL_SECOND)
#define REDIAL_MIN_NS (250 * PL_MS)
#define REDIAL_MAX_NS (4 * PL_SECOND)
#define REFUSED_NS    PL_SECOND /* for the Failure to arrive before the link ends */
#define LEASE_NS      (60 * PL_SECOND)

/* --- Sending --- */

void member_send(pl_member *m, uint64_t epoch, Paceline__Envelope *e, pl_part *part)
{
    pl_msg *msg = NULL;
    pl_status s = PL_OK;
    if (m->doomed || !m->link) goto done;
    e->epoch = epoch;
    if ((s = pl_msg_of_envelope(&msg, e, &m->why)) != PL_OK) goto done;
    if (part) {
        s = pl_msg_add(msg, part, &m->why);
        part = NULL;
        if (s != PL_OK) goto done;
    }
    s = pl_link_send(m->link, &msg, &m->why);
done:
    if (s != PL_OK) {
        m->doomed = true;
        coordinator_soon(m->c);
    }
    pl_msg_free(msg);
    pl_part_unref(part);
}

void member_send_failure(pl_member *m, uint64_t epoch, const pl_error *err)
{
    Paceline__Failure f = PACELINE__FAILURE__INIT;
    Paceline__Envelope e = PACELINE__ENVELOPE__INIT;
    /* An error may quote bytes of a peer; the wire wants clean text. */
    char text[sizeof err->text];
    memcpy(text, err->text, sizeof text);
    text[sizeof text - 1] = 0;
    text[pl_utf8_valid_prefix(pl_str_from(text))] = 0;
    f.status = (uint32_t)err->status;
    f.text = text;
    e.body_case = PACELINE__ENVELOPE__BODY_FAILURE;
    e.failure = &f;
    member_send(m, epoch, &e, NULL);
}

static void send_hello(pl_member *m)
{
    Paceline__Hello h = PACELINE__HELLO__INIT;
    Paceline__Envelope e = PACELINE__ENVELOPE__INIT;
    h.role = PACELINE__HELLO__ROLE__COORDINATOR;
    h.protocol = PL_PROTOCOL;
    h.version = (char *)PACELINE_VERSION;
    h.name = (char *)"coordinator";
    h.incarnation = m->c->incarnation;
    e.body_case = PACELINE__ENVELOPE__BODY_HELLO;
    e.hello = &h;
    member_send(m, 0, &e, NULL);
}

static void send_welcome(pl_member *m)
{
    Paceline__Welcome w = PACELINE__WELCOME__INIT;
    Paceline__Envelope e = PACELINE__ENVELOPE__INIT;
    w.node_id = m->id;
    w.heartbeat_ns = m->c->options.heartbeat_ns;
    w.dead_after_ns = m->c->options.dead_after_ns;
    w.lease_ns = LEASE_NS;
    e.body_case = PACELINE__ENVELOPE__BODY_WELCOME;
    e.welcome = &w;
    member_send(m, 0, &e, NULL);
}

static void send_heartbeat(pl_member *m, uint64_t now)
{
    Paceline__Heartbeat h = PACELINE__HEARTBEAT__INIT;
    Paceline__Envelope e = PACELINE__ENVELOPE__INIT;
    h.count = ++m->beats;
    h.sent_ns = now;
    h.echo_ns = m->echo_ns;
    h.held_ns = m->echo_ns ? now - m->echo_at_ns : 0;
    e.body_case = PACELINE__ENVELOPE__BODY_HEARTBEAT;
    e.heartbeat = &h;
    member_send(m, 0, &e, NULL);
}

/* --- Members --- */

bool member_usable(const pl_member *m)
{
    return m->state == PL_MEMBER_JOINED && !m->doomed && !m->leaving;
}

static pl_member *member_new(pl_coordinator *c, pl_member_state state)
{
    if (c->n_members >= PL_MEMBERS_MAX) return NULL;
    pl_member *m = pl_calloc(1, sizeof *m);
    if (!m) return NULL;
    m->c = c;
    m->state = state;
    m->id = ++c->next_member;
    m->since_ns = m->heard_ns = pl_loop_now(c->loop);
    pl_member **at = &c->members;
    for (; *at; at = &(*at)->next) m->prev = *at;
    *at = m;
    c->n_members++;
    return m;
}

static void redial_later(pl_target *t, uint64_t now)
{
    t->member = NULL;
    t->next_dial_ns = now + t->pause_ns;
    if (t->pause_ns < REDIAL_MAX_NS) t->pause_ns *= 2;
}

/* The one end of a member: what was built on it goes first. */
static void member_end(pl_member *m, const pl_error *why)
{
    pl_coordinator *c = m->c;
    if (m->state == PL_MEMBER_JOINED) {
        m->state = PL_MEMBER_REFUSED; /* nobody plans with it from here on */
        PL_LOG(PL_LOG_WARN, "node lost", "node=%s id=%u error=%s", PL_Q(m->name), m->id, PL_Q(why->text));
        pipeline_lost(c, m, why);
    } else if (m->target && m->state != PL_MEMBER_REFUSED) {
        PL_LOG(PL_LOG_WARN, "node does not answer", "address=%s error=%s", PL_Q(m->target->address), PL_Q(why->text));
    }
    if (m->target) redial_later(m->target, pl_loop_now(c->loop));
    if (!m->link_dead) pl_link_close(m->link);
    if (m->prev)
        m->prev->next = m->next;
    else
        c->members = m->next;
    if (m->next) m->next->prev = m->prev;
    c->n_members--;
    pl_free(m);
    coordinator_changed(c);
}

void member_refuse(pl_member *m, const pl_error *err)
{
    PL_LOG(PL_LOG_WARN, "node refused", "node=%s address=%s reason=%s", PL_Q(m->name), PL_Q(m->link->address),
           PL_Q(err->text));
    member_send_failure(m, 0, err);
    bool joined = m->state == PL_MEMBER_JOINED;
    m->state = PL_MEMBER_REFUSED;
    m->since_ns = pl_loop_now(m->c->loop);
    if (m->target) m->target->pause_ns = REDIAL_MAX_NS;
    if (joined) pipeline_lost(m->c, m, err);
    coordinator_changed(m->c);
}

/* --- The net's events --- */

static void on_up(void *user, pl_link *link, bool accepted)
{
    pl_coordinator *c = user;
    pl_member *m = link->tag;
    if (accepted) {
        m = member_new(c, PL_MEMBER_HELLO);
        if (!m) {
            PL_LOG(PL_LOG_WARN, "too many links", "address=%s most=%d", PL_Q(link->address), PL_MEMBERS_MAX);
            pl_link_close(link);
            return;
        }
        link->tag = m;
        m->link = link;
        return; /* who dials speaks first */
    }
    m->state = PL_MEMBER_HELLO;
    m->since_ns = m->heard_ns = pl_loop_now(c->loop);
    send_hello(m);
}

static void on_down(void *user, pl_link *link, const pl_error *why)
{
    (void)user;
    pl_member *m = link->tag;
    if (!m) return;
    m->link_dead = true;
    member_end(m, why);
}

static void handle(pl_member *m, const Paceline__Envelope *e)
{
    pl_coordinator *c = m->c;
    pl_error err = {0};
    if (m->state == PL_MEMBER_HELLO && e->body_case != PACELINE__ENVELOPE__BODY_HELLO) {
        if (e->body_case == PACELINE__ENVELOPE__BODY_FAILURE) { /* it refuses us */
            PL_LOG(PL_LOG_WARN, "node refuses", "address=%s reason=%s", PL_Q(m->link->address), PL_Q(e->failure->text));
            if (m->target) m->target->pause_ns = REDIAL_MAX_NS;
            m->state = PL_MEMBER_REFUSED;
            return;
        }
        /* The node sends heartbeats from our Hello on, which may overtake nothing: its own Hello comes first. */
        pl_fail(&err, PL_ERR_FORMAT, "%s before Hello", pl_envelope_kind(e));
        member_refuse(m, &err);
        return;
    }
    /* What is about an epoch that is over says nothing about now; nobody can know of one that is to come. */
    bool current = e->epoch != 0 && e->epoch == c->pipeline.epoch;
    if (e->epoch > c->last_epoch) {
        pl_fail(&err, PL_ERR_FORMAT, "%s of epoch %" PRIu64 ", the newest is %" PRIu64, pl_envelope_kind(e), e->epoch,
                c->last_epoch);
        member_refuse(m, &err);
        return;
    }
    pl_status s = PL_OK;
    switch (e->body_case) {
    case PACELINE__ENVELOPE__BODY_HELLO: members_hello(m, e->hello); break;
    case PACELINE__ENVELOPE__BODY_HEARTBEAT: members_heartbeat(m, e->heartbeat); break;
    case PACELINE__ENVELOPE__BODY_BLOB_GET:
        pipeline_moved(m);
        catalog_serve(&c->catalog, m, e->epoch, e->blob_get);
        break;
    case PACELINE__ENVELOPE__BODY_LEAVE: pipeline_leave(m); break;
    case PACELINE__ENVELOPE__BODY_FAILURE:
        pl_fail(&err, (pl_status)e->failure->status, "%s", e->failure->text);
        if (current) {
            pipeline_failure(m, &err);
        } else if (e->epoch == 0) {
            /* Not about an epoch: it wants no more to do with us. */
            PL_LOG(PL_LOG_WARN, "node refuses", "node=%s reason=%s", PL_Q(m->name), PL_Q(err.text));
            m->why = err;
            m->doomed = true;
            coordinator_soon(c);
        }
        break;
    case PACELINE__ENVELOPE__BODY_PROGRESS:
        if (current) pipeline_progress(m, e->progress);
        break;
    case PACELINE__ENVELOPE__BODY_READY:
        if (current) pipeline_ready(m, e->ready);
        break;
    case PACELINE__ENVELOPE__BODY_LINK_STATE:
        if (current) pipeline_link_state(m, e->link_state);
        break;
    case PACELINE__ENVELOPE__BODY_CREDIT:
        if (current) s = pipeline_credit(m, e->credit, &err);
        break;
    case PACELINE__ENVELOPE__BODY_RESULT:
        if (current) s = pipeline_result(m, e->result, &err);
        break;
    default: s = pl_fail(&err, PL_ERR_FORMAT, "%s is not for a coordinator", pl_envelope_kind(e));
    }
    if (s != PL_OK) member_refuse(m, &err);
}

static void on_message(void *user, pl_link *link, pl_msg *msg)
{
    pl_coordinator *c = user;
    pl_member *m = link->tag;
    if (m && !m->doomed && m->state != PL_MEMBER_REFUSED) {
        pl_error err = {0};
        m->heard_ns = pl_loop_now(c->loop);
        if (pl_envelope_of_msg(&c->scratch, msg, &c->limits, &err) == PL_OK)
            handle(m, c->scratch.m);
        else
            member_refuse(m, &err);
        pl_sched_flush(&c->sched);
        pipeline_frames(c);
    }
    pl_msg_free(msg);
}

const pl_net_events pl_coordinator_net_events = {.up = on_up, .message = on_message, .down = on_down};

/* --- Hello --- */

/* "tcp://0.0.0.0:7070" is where it listens, not where it is: its host is the one that we see it at. */
static void resolve_address(pl_member *m, const char *data_address)
{
    const char *host = strstr(data_address, "://"), *port = strrchr(data_address, ':');
    host = host ? host + 3 : NULL;
    m->address[0] = 0;
    if (host && port && port >= host) {
        pl_str h = {host, (size_t)(port - host)};
        if (pl_str_is(h, "0.0.0.0") || pl_str_is(h, "*") || pl_str_is(h, "[::]") || pl_str_is(h, "::")) {
            const char *seen = strstr(m->link->address, "://");
            seen = seen ? seen + 3 : m->link->address;
            /* The port of a dialed address goes; an IPv6 host stands in brackets. */
            const char *end = strrchr(seen, ':'), *bracket = strrchr(seen, ']');
            if (!end || (bracket && end < bracket)) end = seen + strlen(seen);
            snprintf(m->address, sizeof m->address, "tcp://%.*s%s", (int)(end - seen), seen, port);
            return;
        }
    }
    snprintf(m->address, sizeof m->address, "%s", data_address);
}

static bool has_arch(const Paceline__Hello *h, const char *arch)
{
    for (size_t i = 0; i < h->n_archs; i++)
        if (strcmp(h->archs[i], arch) == 0) return true;
    return h->n_archs == 0;
}

static bool has_type(const Paceline__Hello *h, pl_type type)
{
    for (size_t i = 0; i < h->n_types; i++)
        if (h->types[i] == (uint32_t)type) return true;
    return h->n_types == 0;
}

/* Whether the node can be part of this pipeline at all: the same protocol, what the model needs, and the numbers of
 * those that are here. */
static pl_status admissible(pl_member *m, const Paceline__Hello *h, pl_error *err)
{
    pl_coordinator *c = m->c;
    if (h->role != PACELINE__HELLO__ROLE__NODE)
        return pl_fail(err, PL_ERR_INVALID, "a coordinator talks to nodes only, not to role %d", (int)h->role);
    if (h->protocol != PL_PROTOCOL)
        return pl_fail(err, PL_ERR_UNSUPPORTED,
                       "the node speaks protocol %u (version %s), the coordinator %d (version %s)", h->protocol,
                       h->version, PL_PROTOCOL, PACELINE_VERSION);
    const char *arch = pl_model_arch(c->model.profile);
    if (!has_arch(h, arch))
        return pl_fail(err, PL_ERR_UNSUPPORTED, "node %s cannot build the architecture %s", h->name, arch);
    for (size_t i = 0; i < pl_gguf_n_tensors(c->model.gguf); i++) {
        pl_type type = pl_gguf_tensor_at(c->model.gguf, i)->type;
        if (!has_type(h, type))
            return pl_fail(err, PL_ERR_UNSUPPORTED, "node %s does not compute with tensors of type %s", h->name,
                           pl_type_name(type));
    }
    for (const pl_member *o = c->members; o; o = o->next) {
        if (o == m || o->state != PL_MEMBER_JOINED) continue;
        if (strcmp(o->profile, h->profile) != 0)
            return pl_fail(err, PL_ERR_UNSUPPORTED,
                           "the numeric profile of node %s is %s, that of node %s is %s: their tokens could differ",
                           h->name, h->profile, o->name, o->profile);
        if (o->known_checksum != h->known_checksum)
            return pl_fail(err, PL_ERR_UNSUPPORTED,
                           "the known graph gives %016" PRIx64 " on node %s and %016" PRIx64
                           " on node %s: their tokens could differ",
                           h->known_checksum, h->name, o->known_checksum, o->name);
    }
    return PL_OK;
}

/* Another link to the same life of the same node. */
static pl_member *twin_of(const pl_member *m, uint64_t incarnation)
{
    for (pl_member *o = m->c->members; o; o = o->next)
        if (o != m && o->state == PL_MEMBER_JOINED && o->incarnation == incarnation &&
            pl_key_eq(&o->link->peer, &m->link->peer))
            return o;
    return NULL;
}

void members_hello(pl_member *m, const Paceline__Hello *h)
{
    pl_coordinator *c = m->c;
    pl_error err = {0};
    if (m->state != PL_MEMBER_HELLO) {
        pl_fail(&err, PL_ERR_FORMAT, "a second Hello");
        member_refuse(m, &err);
        return;
    }
    snprintf(m->name, sizeof m->name, "%s", h->name[0] ? h->name : "unnamed");
    pl_member *twin = twin_of(m, h->incarnation);
    if (twin && m->target) {
        /* We dialed a node that has joined by itself meanwhile: what works stays. */
        pl_fail(&err, PL_ERR_INVALID, "node %s has a link already", h->name);
        member_refuse(m, &err);
        return;
    }
    if (twin) {
        /* It dials only when its old link is gone, and knows that before we do. */
        pl_fail(&err, PL_ERR_CLOSED, "node %s came back on a new link", h->name);
        member_end(twin, &err);
    }
    if (admissible(m, h, &err) != PL_OK) {
        if (!m->target) send_hello(m);
        member_refuse(m, &err);
        return;
    }
    resolve_address(m, h->data_address);
    snprintf(m->version, sizeof m->version, "%.64s", h->version);
    snprintf(m->isa, sizeof m->isa, "%.64s", h->isa);
    snprintf(m->profile, sizeof m->profile, "%.64s", h->profile);
    m->incarnation = h->incarnation;
    m->budget_bytes = h->budget_bytes;
    m->known_checksum = h->known_checksum;
    m->n_threads = h->n_threads ? (int32_t)h->n_threads : 1;
    m->read_bytes_s = h->read_bytes_s;
    m->macs_s = h->macs_s;
    m->state = PL_MEMBER_JOINED;
    if (m->target)
        m->target->pause_ns = REDIAL_MIN_NS;
    else
        send_hello(m);
    send_welcome(m);
    send_heartbeat(m, pl_loop_now(c->loop)); /* so that a round trip is known when the plan is made */
    char key[2 * PL_KEY_SIZE + 1];
    pl_key_text(&m->link->peer, key);
    PL_LOG(PL_LOG_INFO, "node joined", "node=%s id=%u address=%s key=%.8s threads=%d budget=%" PRIu64, PL_Q(m->name),
           m->id, PL_Q(m->address), key, m->n_threads, m->budget_bytes);
    pipeline_joined(c);
    coordinator_changed(c);
}

void members_heartbeat(pl_member *m, const Paceline__Heartbeat *h)
{
    uint64_t now = pl_loop_now(m->c->loop);
    m->echo_ns = h->sent_ns;
    m->echo_at_ns = now;
    /* Its word about our own clock: only what can be true is used. */
    if (h->echo_ns && h->echo_ns <= now && now - h->echo_ns >= h->held_ns &&
        now - h->echo_ns < 10 * m->c->options.dead_after_ns) {
        uint64_t rtt = now - h->echo_ns - h->held_ns;
        if (rtt == 0) rtt = 1;
        m->rtt_ns = m->rtt_ns ? m->rtt_ns - m->rtt_ns / 8 + rtt / 8 : rtt;
    }
    const Paceline__NodeStats *s = h->stats;
    if (!s) return;
    m->frames = s->frames;
    m->rows = s->rows;
    m->memory_bytes = s->memory_bytes;
    if (s->busy_ns >= m->busy_ns && now - m->busy_at_ns >= PL_SECOND) {
        double share = m->busy_at_ns ? (double)(s->busy_ns - m->busy_from_ns) / (double)(now - m->busy_at_ns) : 0;
        m->busy_share = share > 1 ? 1 : share < 0 ? 0 : share;
        m->busy_from_ns = s->busy_ns;
        m->busy_at_ns = now;
    }
    m->busy_ns = s->busy_ns;
}

/* --- Dialing and time --- */

static void dial(pl_coordinator *c, pl_target *t)
{
    pl_error err = {0};
    pl_link *link = NULL;
    pl_member *m = member_new(c, PL_MEMBER_DIALING);
    pl_status s = m ? PL_OK : pl_fail(&err, PL_ERR_NO_MEMORY, "too many links");
    if (s == PL_OK) s = pl_link_dial(c->net, t->address, t->has_key ? &t->key : NULL, DIAL_NS, m, &link, &err);
    if (s != PL_OK) {
        PL_LOG(PL_LOG_WARN, "cannot dial node", "address=%s error=%s", PL_Q(t->address), PL_Q(err.text));
        if (m) {
            m->link_dead = true; /* there is none */
            member_end(m, &err);
        }
        redial_later(t, pl_loop_now(c->loop));
        return;
    }
    m->link = link;
    m->target = t;
    t->member = m;
}

/* A node may join by itself as well as be dialed: one link is enough. */
static bool is_here(const pl_coordinator *c, const pl_target *t)
{
    for (const pl_member *m = c->members; m; m = m->next)
        if (m->state == PL_MEMBER_JOINED && strcmp(m->address, t->address) == 0) return true;
    return false;
}

static void dial_all(pl_coordinator *c, uint64_t now)
{
    for (pl_target *t = c->targets; t; t = t->next)
        if (!t->member && now >= t->next_dial_ns && !is_here(c, t)) dial(c, t);
}

pl_status members_add_target(pl_coordinator *c, const char *address, const pl_key *key, pl_error *err)
{
    if (strlen(address) >= sizeof c->targets->address)
        return pl_fail(err, PL_ERR_INVALID, "address %.40s...: too long", address);
    for (const pl_target *t = c->targets; t; t = t->next)
        if (strcmp(t->address, address) == 0) return pl_fail(err, PL_ERR_INVALID, "node %s is given twice", address);
    pl_target *t = pl_calloc(1, sizeof *t);
    if (!t) return pl_fail(err, PL_ERR_NO_MEMORY, "node %s", address);
    snprintf(t->address, sizeof t->address, "%s", address);
    if (key) t->key = *key;
    t->has_key = key != NULL;
    t->pause_ns = REDIAL_MIN_NS;
    pl_target **at = &c->targets;
    while (*at) at = &(*at)->next;
    *at = t;
    if (c->net) dial(c, t);
    return PL_OK;
}

void members_start(pl_coordinator *c)
{
    dial_all(c, pl_loop_now(c->loop));
}

void members_reap(pl_coordinator *c)
{
    for (pl_member *m = c->members; m;) {
        if (!m->doomed) {
            m = m->next;
            continue;
        }
        pl_error why = m->why;
        member_end(m, &why);
        m = c->members; /* which may have ended others */
    }
}

void members_tick(pl_coordinator *c)
{
    const uint64_t now = pl_loop_now(c->loop);
    /* A process that was stopped finds its nodes silent, though it was itself that did not listen. */
    const bool slept = now - c->tick_ns > c->options.dead_after_ns / 2 + c->options.heartbeat_ns;
    for (pl_member *m = c->members; m; m = m->next) {
        if (m->doomed) continue;
        if (slept) m->heard_ns = now;
        pl_error *why = &m->why;
        const char *at = m->link ? m->link->address : "";
        if (m->state == PL_MEMBER_HELLO && now - m->since_ns >= HELLO_NS) {
            pl_fail(why, PL_ERR_TIMEOUT, "%s: no Hello within %d s", at, (int)(HELLO_NS / PL_SECOND));
        } else if (m->state == PL_MEMBER_REFUSED && now - m->since_ns >= REFUSED_NS) {
            pl_fail(why, PL_ERR_CLOSED, "%s: refused", at);
        } else if (m->state == PL_MEMBER_JOINED && now - m->heard_ns > c->options.dead_after_ns) {
            pl_fail(why, PL_ERR_TIMEOUT, "node %s at %s was silent for %" PRIu64 " ms", m->name, at,
                    (now - m->heard_ns) / PL_MS);
        } else {
            if (m->state == PL_MEMBER_JOINED) send_heartbeat(m, now);
            continue;
        }
        m->doomed = true;
    }
    members_reap(c);
    dial_all(c, now);
}

void members_free(pl_coordinator *c)
{
    for (pl_member *m = c->members, *next; m; m = next) {
        next = m->next;
        pl_link_close(m->link);
        pl_free(m);
    }
    for (pl_target *t = c->targets, *next; t; t = next) {
        next = t->next;
        pl_free(t);
    }
    c->members = NULL;
    c->targets = NULL;
}
