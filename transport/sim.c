/* Design. One heap of events, ordered by time and then by the order of their making. An event belongs to a process, and
 * is dropped when that process is dead, kept aside while it is paused.
 *
 * A conn is a connection with two ends: 0 dialed, 1 accepted. An end is a sim_link while its net holds it, NULL before
 * it is accepted and after it is closed. Whatever crosses a conn is a packet, also that it is up or down, so that order
 * is one rule: a packet never arrives before the one sent before it. A conn lives while an end or an event refers to
 * it.
 *
 * Invariant: user code is called in run_event only, one call per event, as its last act on the link. So a callback may
 * close any link, kill any process and start anything. */
#include "transport/sim.h"

#include "engine/base/alloc.h"
#include "engine/base/hash.h"
#include "engine/base/rng.h"
#include "transport/link_impl.h"
#include <stdio.h>

#define US        UINT64_C(1000)
#define MS        (1000 * US)
#define S         (1000 * MS)
#define REDIAL_NS (50 * MS) /* as the ZeroMQ net tries again */
#define OVERHEAD  64        /* bytes that a message costs beside its own */
#define NAME_SIZE 48

typedef struct sim_net sim_net;
typedef struct sim_link sim_link;
typedef struct conn conn;

struct pl_timer {
    pl_sim_process *process;
    pl_timer *prev, *next;
    void (*fn)(void *);
    void *user;
    uint64_t repeat_ns;
    bool in_heap;
    bool stopped; /* waits for its event to be freed */
};

typedef enum { PACKET_MSG, PACKET_UP, PACKET_DOWN } packet_kind;
typedef struct packet {
    packet_kind kind;
    pl_msg *msg;
    uint64_t departs;
    pl_status status; /* of DOWN, with its reason */
    const char *reason;
    bool counted; /* in n_queued */
    bool local;   /* DOWN that a system makes for a process: never lost */
    struct packet *next;
} packet;

typedef struct direction {
    uint64_t delay_ns, busy_until, last_arrival;
    uint64_t silent_from; /* packets that depart later are lost: the sender is dead. UINT64_MAX: never */
    int n_queued;         /* sent and not yet delivered */
    bool silent;          /* the sender's machine is dead: what a cut holds is lost too */
    packet *held, **held_end;
} direction;

struct conn {
    pl_sim *sim;
    conn *prev, *next;
    int n_refs; /* ends and events */
    sim_link *end[2];
    uint32_t process_id[2]; /* 0: not accepted yet */
    direction dir[2];       /* [i]: from end i */
    bool broken;
    /* Until it is accepted: */
    bool accepted, doomed, has_server_key, has_key;
    char address[NAME_SIZE + 8], from[NAME_SIZE + 8];
    pl_key server, key;
};

struct sim_link {
    pl_link base;
    sim_link *prev, *next;
    conn *c;
    int end;
    bool up, accepted, going_down;
};

struct sim_net {
    pl_net base;
    pl_sim_process *process;
    pl_net_events events;
    void *user;
    bool has_key;
    bool (*allowed)(void *user, const pl_key *peer);
    void *allowed_user;
    pl_net_limits limits;
    char address[NAME_SIZE + 8];
    sim_link *links;
    int n_accepted;
    sim_net *next; /* of the process */
};

typedef enum { EVENT_TIMER, EVENT_POST, EVENT_DIAL, EVENT_DIAL_TIMEOUT, EVENT_DELIVER } event_kind;
typedef struct event {
    uint64_t at, order;
    event_kind kind;
    pl_sim_process *process; /* NULL: EVENT_DIAL, whose listener is looked up when it happens */
    pl_timer *timer;
    void (*fn)(void *);
    void *user;
    conn *c;
    int end; /* that it arrives at */
    packet *p;
} event;

typedef struct event_list {
    event *at;
    size_t n, cap;
} event_list;

struct pl_sim_process {
    pl_loop loop;
    pl_sim *sim;
    pl_sim_process *next;
    uint32_t id;
    char name[NAME_SIZE];
    bool alive, paused;
    pl_timer *timers;
    sim_net *nets;
    event_list waiting; /* while paused */
};

typedef struct cut {
    uint32_t from, to;
} cut;

struct pl_sim {
    uint64_t now, order, trace, n_events;
    pl_rng rng;
    pl_sim_options options;
    event_list heap;
    pl_sim_process *processes;
    uint32_t last_id;
    conn *conns;
    cut *cuts;
    size_t n_cuts, cuts_cap;
};

/* Events */

static bool before(const event *a, const event *b)
{
    return a->at != b->at ? a->at < b->at : a->order < b->order;
}

static bool list_reserve(event_list *l)
{
    if (l->n < l->cap) return true;
    size_t cap = l->cap ? l->cap * 2 : 64;
    event *at = pl_realloc(l->at, cap * sizeof *at);
    if (!at) return false;
    l->at = at;
    l->cap = cap;
    return true;
}

static void sift_up(event_list *h, size_t i)
{
    event e = h->at[i];
    for (; i > 0 && before(&e, &h->at[(i - 1) / 2]); i = (i - 1) / 2) h->at[i] = h->at[(i - 1) / 2];
    h->at[i] = e;
}

static void sift_down(event_list *h, size_t i)
{
    event e = h->at[i];
    for (size_t child; (child = 2 * i + 1) < h->n; i = child) {
        if (child + 1 < h->n && before(&h->at[child + 1], &h->at[child])) child++;
        if (!before(&h->at[child], &e)) break;
        h->at[i] = h->at[child];
    }
    h->at[i] = e;
}

static void heap_put(pl_sim *s, event e)
{
    /* A world without memory for its events cannot go on; what may fail is checked with list_reserve before. */
    PL_ASSERT(list_reserve(&s->heap));
    s->heap.at[s->heap.n++] = e;
    sift_up(&s->heap, s->heap.n - 1);
}

static void event_push(pl_sim *s, uint64_t at, event e)
{
    e.at = at;
    e.order = ++s->order;
    if (e.c) e.c->n_refs++;
    heap_put(s, e);
}

static event heap_take(pl_sim *s)
{
    event e = s->heap.at[0];
    s->heap.at[0] = s->heap.at[--s->heap.n];
    if (s->heap.n) sift_down(&s->heap, 0);
    return e;
}

static void packet_free(packet *p)
{
    pl_msg_free(p->msg);
    pl_free(p);
}

static void conn_unref(conn *c)
{
    if (--c->n_refs > 0) return;
    for (int i = 0; i < 2; i++)
        for (packet *p = c->dir[i].held, *next; p; p = next) {
            next = p->next;
            packet_free(p);
        }
    if (c->prev)
        c->prev->next = c->next;
    else
        c->sim->conns = c->next;
    if (c->next) c->next->prev = c->prev;
    pl_free(c);
}

static void timer_free(pl_timer *t)
{
    if (t->prev)
        t->prev->next = t->next;
    else
        t->process->timers = t->next;
    if (t->next) t->next->prev = t->prev;
    pl_free(t);
}

/* Frees what e holds, when it does not happen. */
static void event_drop(event *e)
{
    if (e->timer) {
        e->timer->in_heap = false;
        if (e->timer->stopped) timer_free(e->timer);
    }
    if (e->p) packet_free(e->p);
    if (e->c) conn_unref(e->c);
}

/* Drops every event of p in l, keeping the others' order. */
static void list_drop_process(event_list *l, const pl_sim_process *p)
{
    size_t kept = 0;
    for (size_t i = 0; i < l->n; i++) {
        if (l->at[i].process == p)
            event_drop(&l->at[i]);
        else
            l->at[kept++] = l->at[i];
    }
    l->n = kept;
}

static void heap_drop_process(pl_sim *s, const pl_sim_process *p)
{
    list_drop_process(&s->heap, p);
    for (size_t i = s->heap.n / 2; i-- > 0;) sift_down(&s->heap, i);
}

static uint64_t draw(pl_sim *s, uint64_t low, uint64_t high)
{
    return high > low ? low + pl_rng_below(&s->rng, high - low + 1) : low;
}

/* The loop */

static pl_sim_process *process_of(pl_loop *l)
{
    return (pl_sim_process *)l;
}

static uint64_t loop_now(pl_loop *l)
{
    return process_of(l)->sim->now;
}

static void timer_schedule(pl_timer *t, uint64_t after_ns)
{
    pl_sim *s = t->process->sim;
    t->in_heap = true;
    event_push(s, s->now + after_ns, (event){.kind = EVENT_TIMER, .process = t->process, .timer = t});
}

static pl_status loop_timer_start(pl_loop *l, uint64_t after_ns, uint64_t repeat_ns, void (*fn)(void *), void *user,
                                  pl_timer **out, pl_error *err)
{
    pl_sim_process *p = process_of(l);
    pl_timer *t = pl_calloc(1, sizeof *t);
    if (!t || !list_reserve(&p->sim->heap)) {
        pl_free(t);
        return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for a timer");
    }
    *t = (pl_timer){.process = p, .fn = fn, .user = user, .repeat_ns = repeat_ns, .next = p->timers};
    if (p->timers) p->timers->prev = t;
    p->timers = t;
    if (p->alive) timer_schedule(t, after_ns);
    *out = t;
    return PL_OK;
}

static void loop_timer_stop(pl_loop *l, pl_timer *t)
{
    (void)l;
    if (t->in_heap)
        t->stopped = true;
    else
        timer_free(t);
}

static pl_status loop_post(pl_loop *l, void (*fn)(void *), void *user)
{
    pl_sim_process *p = process_of(l);
    if (!p->alive) return PL_OK;
    if (!list_reserve(&p->sim->heap)) return PL_ERR_NO_MEMORY;
    event_push(p->sim, p->sim->now, (event){.kind = EVENT_POST, .process = p, .fn = fn, .user = user});
    return PL_OK;
}

static pl_status loop_watch_fd(pl_loop *l, int fd, void (*fn)(void *), void *user, void **out, pl_error *err)
{
    (void)l;
    (void)fn;
    (void)user;
    *out = NULL;
    return pl_fail(err, PL_ERR_UNSUPPORTED, "descriptor %d: there are none in a virtual world", fd);
}

static void loop_unwatch_fd(pl_loop *l, void *watch)
{
    (void)l;
    (void)watch;
}

static const pl_loop_vt loop_vt = {.now_ns = loop_now,
                                   .timer_start = loop_timer_start,
                                   .timer_stop = loop_timer_stop,
                                   .post = loop_post,
                                   .watch_fd = loop_watch_fd,
                                   .unwatch_fd = loop_unwatch_fd};

/* Connections */

static sim_net *net_of(pl_net *n)
{
    return (sim_net *)n;
}
static sim_link *link_of(pl_link *l)
{
    return (sim_link *)l;
}

static bool is_cut(const pl_sim *s, uint32_t from, uint32_t to)
{
    for (size_t i = 0; i < s->n_cuts; i++)
        if (s->cuts[i].from == from && s->cuts[i].to == to) return true;
    return false;
}

static pl_sim_process *process_by_id(const pl_sim *s, uint32_t id)
{
    for (pl_sim_process *p = s->processes; p; p = p->next)
        if (p->id == id) return p;
    return NULL;
}

/* Puts p on its way to the other end; its departure is set. */
static void arrive(conn *c, int from, packet *p)
{
    direction *d = &c->dir[from];
    pl_sim_process *to = process_by_id(c->sim, c->process_id[!from]);
    if (!to) {
        packet_free(p);
        return;
    }
    uint64_t at = p->departs > c->sim->now ? p->departs : c->sim->now;
    at += d->delay_ns + draw(c->sim, 0, d->delay_ns / 2);
    if (at < d->last_arrival) at = d->last_arrival;
    d->last_arrival = at;
    event_push(c->sim, at, (event){.kind = EVENT_DELIVER, .process = to, .c = c, .end = !from, .p = p});
}

static void transmit(conn *c, int from, packet *p, size_t size)
{
    direction *d = &c->dir[from];
    uint64_t start = d->busy_until > c->sim->now ? d->busy_until : c->sim->now;
    /* In double: size * 10^9 may wrap, and a nanosecond of error is none. */
    d->busy_until = start + (uint64_t)((double)size * 1e9 / (double)c->sim->options.bytes_s);
    p->departs = d->busy_until;
    if (is_cut(c->sim, c->process_id[from], c->process_id[!from])) {
        *d->held_end = p;
        d->held_end = &p->next;
        return;
    }
    arrive(c, from, p);
}

static packet *packet_new(packet_kind kind)
{
    packet *p = pl_calloc(1, sizeof *p);
    PL_ASSERT(p);
    p->kind = kind;
    return p;
}

static packet *packet_down(pl_status status, const char *reason)
{
    packet *p = packet_new(PACKET_DOWN);
    p->status = status;
    p->reason = reason;
    return p;
}

/* The system at end `to` itself finds out that the link is gone. */
static void down_locally(conn *c, int to, pl_status status, const char *reason)
{
    pl_sim *s = c->sim;
    pl_sim_process *process = process_by_id(s, c->process_id[to]);
    if (!process) return;
    packet *p = packet_down(status, reason);
    p->local = true;
    uint64_t at = s->now + draw(s, s->options.down_min_ns, s->options.down_max_ns);
    event_push(s, at, (event){.kind = EVENT_DELIVER, .process = process, .c = c, .end = to, .p = p});
}

static void direction_init(pl_sim *s, direction *d)
{
    d->delay_ns = draw(s, s->options.delay_min_ns, s->options.delay_max_ns);
    d->silent_from = UINT64_MAX;
    d->held_end = &d->held;
}

static conn *conn_new(pl_sim *s)
{
    conn *c = pl_calloc(1, sizeof *c);
    if (!c) return NULL;
    c->sim = s;
    direction_init(s, &c->dir[0]);
    direction_init(s, &c->dir[1]);
    c->next = s->conns;
    if (s->conns) s->conns->prev = c;
    s->conns = c;
    return c;
}

static sim_link *link_new(sim_net *n, conn *c, int end)
{
    sim_link *l = pl_calloc(1, sizeof *l);
    if (!l) return NULL;
    l->base.net = &n->base;
    l->c = c;
    l->end = end;
    l->accepted = end == 1;
    n->n_accepted += l->accepted;
    l->next = n->links;
    if (n->links) n->links->prev = l;
    n->links = l;
    c->end[end] = l;
    c->process_id[end] = n->process->id;
    c->n_refs++;
    return l;
}

/* Takes l off its connection and its net. Its memory stays. */
static void link_detach(sim_link *l)
{
    sim_net *n = net_of(l->base.net);
    if (l->prev)
        l->prev->next = l->next;
    else
        n->links = l->next;
    if (l->next) l->next->prev = l->prev;
    n->n_accepted -= l->accepted;
    l->c->end[l->end] = NULL;
    conn_unref(l->c);
    l->c = NULL;
}

static void link_close(pl_link *base)
{
    sim_link *l = link_of(base);
    if (l->going_down) return; /* from its own `down` */
    conn *c = l->c;
    if (c->accepted && net_of(base->net)->process->alive)
        transmit(c, l->end, packet_down(PL_ERR_CLOSED, "the peer closed the link"), OVERHEAD);
    link_detach(l);
    pl_free(l);
}

static pl_msg *msg_copy(const pl_msg *m, size_t *size)
{
    pl_msg *copy;
    if (pl_msg_new(&copy, NULL) != PL_OK) return NULL;
    copy->header = pl_part_copy((pl_bytes){m->header->data, m->header->size});
    if (!copy->header) goto fail;
    *size = OVERHEAD + m->header->size;
    for (int i = 0; i < m->n_parts; i++) {
        if (pl_msg_add(copy, pl_part_copy((pl_bytes){m->parts[i]->data, m->parts[i]->size}), NULL) != PL_OK) goto fail;
        *size += m->parts[i]->size;
    }
    return copy;
fail:
    pl_msg_free(copy);
    return NULL;
}

static pl_status link_send(pl_link *base, pl_msg **m, pl_error *err)
{
    sim_link *l = link_of(base);
    const sim_net *n = net_of(base->net);
    PL_TRY(pl_msg_check(*m, &n->limits, err));
    if (!n->process->alive || !l->up || l->going_down)
        return pl_fail(err, PL_ERR_CLOSED, "%s: the link is not up", base->address);
    direction *d = &l->c->dir[l->end];
    if (d->n_queued >= n->limits.queue_msgs_max)
        return pl_fail(err, PL_ERR_TIMEOUT, "%s: %d messages wait to be sent already", base->address, d->n_queued);
    size_t size;
    pl_msg *copy = msg_copy(*m, &size);
    if (!copy) return pl_fail(err, PL_ERR_NO_MEMORY, "%s: no memory for a message", base->address);
    pl_msg_free(*m);
    *m = NULL;
    packet *p = packet_new(PACKET_MSG);
    p->msg = copy;
    p->counted = true;
    base->queued = ++d->n_queued;
    transmit(l->c, l->end, p, size);
    return PL_OK;
}

static pl_status net_listen(pl_net *base, const char *address, pl_error *err)
{
    sim_net *n = net_of(base);
    if (strncmp(address, "sim://", 6) != 0 || address[6] == '\0' || strlen(address) >= sizeof n->address)
        return pl_fail(err, PL_ERR_INVALID, "%s: not an address of the form sim://name", address);
    if (n->address[0]) return pl_fail(err, PL_ERR_INVALID, "%s: this net listens on %s already", address, n->address);
    for (const pl_sim_process *p = n->process->sim->processes; p; p = p->next)
        for (const sim_net *other = p->nets; other; other = other->next)
            if (p->alive && strcmp(other->address, address) == 0)
                return pl_fail(err, PL_ERR_IO, "%s: address in use", address);
    snprintf(n->address, sizeof n->address, "%s", address);
    return PL_OK;
}

static const char *net_address(pl_net *n)
{
    return net_of(n)->address;
}

static pl_part *net_buffer(pl_net *n, size_t size)
{
    (void)n;
    return pl_part_new(size);
}

static pl_status net_dial(pl_net *base, const char *address, const pl_key *server, uint64_t timeout_ns, void *tag,
                          pl_link **out, pl_error *err)
{
    sim_net *n = net_of(base);
    pl_sim *s = n->process->sim;
    *out = NULL;
    if (strncmp(address, "sim://", 6) != 0 || strlen(address) >= NAME_SIZE + 8)
        return pl_fail(err, PL_ERR_INVALID, "%s: not an address of the form sim://name", address);
    if (!server != !n->has_key)
        return pl_fail(err, PL_ERR_INVALID, "%s: %s", address,
                       server ? "a server key on a net without a key" : "no server key on a net with a key");
    if (!n->process->alive) return pl_fail(err, PL_ERR_CLOSED, "%s: the process is dead", address);
    conn *c = conn_new(s);
    if (!c) return pl_fail(err, PL_ERR_NO_MEMORY, "%s: no memory for a link", address);
    c->n_refs++; /* until both events hold it */
    sim_link *l = link_new(n, c, 0);
    if (!l) {
        conn_unref(c);
        return pl_fail(err, PL_ERR_NO_MEMORY, "%s: no memory for a link", address);
    }
    c->doomed = pl_rng_f64(&s->rng) < s->options.dial_failure;
    c->has_key = n->has_key;
    c->key = base->self;
    if (server) {
        c->has_server_key = true;
        c->server = *server;
    }
    snprintf(c->address, sizeof c->address, "%s", address);
    snprintf(c->from, sizeof c->from, "sim://%s", n->process->name);
    snprintf(l->base.address, sizeof l->base.address, "%s", address);
    l->base.tag = tag;
    if (!c->doomed) event_push(s, s->now + c->dir[0].delay_ns, (event){.kind = EVENT_DIAL, .c = c});
    event_push(s, s->now + timeout_ns, (event){.kind = EVENT_DIAL_TIMEOUT, .process = n->process, .c = c});
    conn_unref(c);
    *out = &l->base;
    return PL_OK;
}

static void net_free(pl_net *base)
{
    sim_net *n = net_of(base);
    while (n->links) link_close(&n->links->base);
    for (sim_net **at = &n->process->nets; *at; at = &(*at)->next)
        if (*at == n) {
            *at = n->next;
            break;
        }
    pl_free(n);
}

static const pl_net_vt net_vt = {.free = net_free,
                                 .listen = net_listen,
                                 .address = net_address,
                                 .dial = net_dial,
                                 .buffer = net_buffer,
                                 .send = link_send,
                                 .close = link_close};

pl_status pl_net_sim_new(pl_net **out, pl_sim_process *p, const pl_sim_net_options *options,
                         const pl_net_events *events, void *user, pl_error *err)
{
    *out = NULL;
    sim_net *n = pl_calloc(1, sizeof *n);
    if (!n) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for a net");
    n->base.vt = &net_vt;
    n->process = p;
    n->events = *events;
    n->user = user;
    if (options) {
        n->has_key = options->key != NULL;
        if (options->key) n->base.self = *options->key;
        n->allowed = options->allowed;
        n->allowed_user = options->allowed_user;
        n->limits = options->limits;
    }
    n->limits = pl_net_limits_or_default(n->limits);
    n->next = p->nets;
    p->nets = n;
    *out = &n->base;
    return PL_OK;
}

/* What happens */

static sim_net *find_listener(const pl_sim *s, const char *address)
{
    for (pl_sim_process *p = s->processes; p; p = p->next)
        for (sim_net *n = p->nets; n; n = n->next)
            if (p->alive && strcmp(n->address, address) == 0) return n;
    return NULL;
}

/* Sends the dialer away, who has its end still. */
static void refuse(conn *c, sim_net *n, pl_status status, const char *reason)
{
    c->process_id[1] = n->process->id;
    transmit(c, 1, packet_down(status, reason), OVERHEAD);
}

static void run_dial(event *e)
{
    conn *c = e->c;
    pl_sim *s = c->sim;
    uint32_t from = c->process_id[0];
    const pl_sim_process *dialer = process_by_id(s, from);
    if (!c->end[0] || !dialer || !dialer->alive) return;
    sim_net *n = find_listener(s, c->address);
    if (!n || n->process->paused || is_cut(s, from, n->process->id) || is_cut(s, n->process->id, from)) {
        event_push(s, s->now + REDIAL_NS, (event){.kind = EVENT_DIAL, .c = c});
        return;
    }
    if (c->has_key != n->has_key) {
        refuse(c, n, PL_ERR_AUTH, "only one of both ends is encrypted");
        return;
    }
    if (c->has_server_key && memcmp(c->server.b, n->base.self.b, PL_KEY_SIZE) != 0) {
        refuse(c, n, PL_ERR_AUTH, "the peer has another key");
        return;
    }
    if (c->has_key && !(n->allowed && n->allowed(n->allowed_user, &c->key))) {
        refuse(c, n, PL_ERR_AUTH, "the peer does not admit this key");
        return;
    }
    sim_link *l = n->n_accepted < n->limits.links_max ? link_new(n, c, 1) : NULL;
    if (!l) {
        refuse(c, n, PL_ERR_CLOSED, "the peer has all the links it takes");
        return;
    }
    c->accepted = true;
    l->up = true;
    l->base.peer = c->key;
    snprintf(l->base.address, sizeof l->base.address, "%s", c->from);
    transmit(c, 1, packet_new(PACKET_UP), OVERHEAD);
    n->events.up(n->user, &l->base, true);
}

static void link_down(sim_link *l, pl_status status, const char *reason)
{
    sim_net *n = net_of(l->base.net);
    pl_error why = {0};
    pl_fail(&why, status, "%s: %s", l->base.address, reason);
    link_detach(l);
    l->going_down = true;
    n->events.down(n->user, &l->base, &why);
    pl_free(l);
}

static void run_dial_timeout(event *e)
{
    conn *c = e->c;
    sim_link *l = c->end[0];
    if (!l || l->up) return;
    if (c->accepted) transmit(c, 0, packet_down(PL_ERR_CLOSED, "the peer closed the link"), OVERHEAD);
    link_down(l, PL_ERR_TIMEOUT, "no answer within the time for dialing");
}

static void run_deliver(event *e)
{
    conn *c = e->c;
    direction *d = &c->dir[!e->end];
    packet *p = e->p;
    /* What a dead sender had not put on the wire, and what was on a wire that broke. */
    bool lost = !p->local && (p->departs > d->silent_from || c->broken);
    if (p->counted) {
        d->n_queued--;
        if (c->end[!e->end]) c->end[!e->end]->base.queued = d->n_queued;
    }
    sim_link *l = c->end[e->end];
    if (lost || !l) return;
    sim_net *n = net_of(l->base.net);
    switch (p->kind) {
    case PACKET_UP:
        l->up = true;
        if (c->has_server_key) l->base.peer = c->server;
        n->events.up(n->user, &l->base, false);
        break;
    case PACKET_MSG: {
        pl_msg *m = p->msg;
        p->msg = NULL;
        if (pl_msg_check(m, &n->limits, NULL) != PL_OK) {
            pl_msg_free(m);
            transmit(c, e->end, packet_down(PL_ERR_CLOSED, "the peer closed the link"), OVERHEAD);
            link_down(l, PL_ERR_FORMAT, "a message above the limits");
            break;
        }
        n->events.message(n->user, &l->base, m);
        break;
    }
    case PACKET_DOWN: link_down(l, p->status, p->reason); break;
    }
}

static void run_timer(event *e)
{
    pl_timer *t = e->timer;
    void (*fn)(void *) = t->fn;
    void *user = t->user;
    e->timer = NULL;
    t->in_heap = false;
    if (t->repeat_ns)
        timer_schedule(t, t->repeat_ns);
    else
        timer_free(t);
    fn(user);
}

static void trace_event(pl_sim *s, const event *e)
{
    uint64_t what[6] = {e->at, (uint64_t)e->kind, e->process ? e->process->id : 0};
    if (e->p) {
        what[3] = (uint64_t)e->p->kind << 32 | (uint32_t)e->p->status;
        if (e->p->msg) {
            const pl_msg *m = e->p->msg;
            what[4] = pl_checksum((pl_bytes){m->header->data, m->header->size}, 0);
            for (int i = 0; i < m->n_parts; i++)
                what[5] = pl_checksum((pl_bytes){m->parts[i]->data, m->parts[i]->size}, what[5]);
        }
    }
    s->trace = pl_checksum((pl_bytes){(const uint8_t *)what, sizeof what}, s->trace);
    s->n_events++;
}

/* Takes the next event; true when something happened. */
static bool run_event(pl_sim *s)
{
    event e = heap_take(s);
    if (e.timer && e.timer->stopped) {
        event_drop(&e);
        return false;
    }
    if (e.process && !e.process->alive) {
        event_drop(&e);
        return false;
    }
    if (e.process && e.process->paused) {
        PL_ASSERT(list_reserve(&e.process->waiting));
        e.process->waiting.at[e.process->waiting.n++] = e;
        return false;
    }
    if (e.at > s->now) s->now = e.at; /* what waited for a paused process is older */
    trace_event(s, &e);
    switch (e.kind) {
    case EVENT_TIMER: run_timer(&e); break;
    case EVENT_POST: e.fn(e.user); break;
    case EVENT_DIAL: run_dial(&e); break;
    case EVENT_DIAL_TIMEOUT: run_dial_timeout(&e); break;
    case EVENT_DELIVER: run_deliver(&e); break;
    }
    event_drop(&e);
    if (s->options.after_event) s->options.after_event(s->options.user);
    return true;
}

bool pl_sim_step(pl_sim *s)
{
    while (s->heap.n)
        if (run_event(s)) return true;
    return false;
}

/* Runs one event that is due at t_ns or before; false when there is none. */
static bool step_until(pl_sim *s, uint64_t t_ns)
{
    while (s->heap.n && s->heap.at[0].at <= t_ns)
        if (run_event(s)) return true;
    return false;
}

static void advance(pl_sim *s, uint64_t t_ns)
{
    if (t_ns > s->now) s->now = t_ns;
}

void pl_sim_run_until(pl_sim *s, uint64_t t_ns)
{
    while (step_until(s, t_ns)) {}
    advance(s, t_ns);
}

bool pl_sim_run_until_idle(pl_sim *s, uint64_t t_ns)
{
    while (step_until(s, t_ns)) {}
    if (s->heap.n == 0) return true;
    advance(s, t_ns);
    return false;
}

bool pl_sim_run_while(pl_sim *s, bool (*cond)(void *user), void *user, uint64_t t_ns)
{
    while (cond(user))
        if (!step_until(s, t_ns)) {
            if (s->heap.n) advance(s, t_ns);
            return false;
        }
    return true;
}

uint64_t pl_sim_now(const pl_sim *s)
{
    return s->now;
}
uint64_t pl_sim_trace(const pl_sim *s)
{
    return s->trace;
}
uint64_t pl_sim_events(const pl_sim *s)
{
    return s->n_events;
}
void pl_sim_set_dial_failure(pl_sim *s, double share)
{
    s->options.dial_failure = share;
}

/* Processes and their faults */

pl_status pl_sim_process_new(pl_sim_process **out, pl_sim *s, const char *name, pl_error *err)
{
    *out = NULL;
    if (strlen(name) >= NAME_SIZE)
        return pl_fail(err, PL_ERR_INVALID, "%s: a longer name than %d", name, NAME_SIZE - 1);
    pl_sim_process *p = pl_calloc(1, sizeof *p);
    if (!p) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for a process");
    p->loop.vt = &loop_vt;
    p->sim = s;
    p->id = ++s->last_id;
    p->alive = true;
    snprintf(p->name, sizeof p->name, "%s", name);
    p->next = s->processes;
    s->processes = p;
    *out = p;
    return PL_OK;
}

void pl_sim_process_free(pl_sim_process *p)
{
    if (!p) return;
    pl_sim *s = p->sim;
    pl_sim_kill(p, false);
    PL_ASSERT(!p->nets);
    heap_drop_process(s, p); /* deliveries that would have been dropped one by one */
    list_drop_process(&p->waiting, p);
    pl_free(p->waiting.at);
    while (p->timers) timer_free(p->timers);
    size_t kept = 0;
    for (size_t i = 0; i < s->n_cuts; i++)
        if (s->cuts[i].from != p->id && s->cuts[i].to != p->id) s->cuts[kept++] = s->cuts[i];
    s->n_cuts = kept;
    for (pl_sim_process **at = &s->processes; *at; at = &(*at)->next)
        if (*at == p) {
            *at = p->next;
            break;
        }
    pl_free(p);
}

pl_loop *pl_sim_loop(pl_sim_process *p)
{
    return &p->loop;
}
const char *pl_sim_name(const pl_sim_process *p)
{
    return p->name;
}
bool pl_sim_alive(const pl_sim_process *p)
{
    return p->alive;
}

/* Events of a dead process are dropped when their time comes. Messages to it stay counted in their senders' queues, as
 * nobody acknowledges them. */
void pl_sim_kill(pl_sim_process *p, bool silent)
{
    if (!p->alive) return;
    pl_sim *s = p->sim;
    p->alive = false;
    for (conn *c = s->conns, *next; c; c = next) {
        next = c->next;
        for (int i = 0; i < 2; i++) {
            if (c->process_id[i] != p->id || !c->end[i]) continue;
            c->dir[i].silent_from = s->now;
            c->dir[i].silent = silent;
            if (silent || !c->accepted || !c->end[!i]) continue;
            if (is_cut(s, p->id, c->process_id[!i])) {
                packet *down = packet_down(PL_ERR_CLOSED, "the peer's process ended");
                down->local = true;
                transmit(c, i, down, OVERHEAD);
            } else {
                down_locally(c, !i, PL_ERR_CLOSED, "the peer's process ended");
            }
        }
    }
}

void pl_sim_pause(pl_sim_process *p)
{
    p->paused = true;
}

void pl_sim_resume(pl_sim_process *p)
{
    if (!p->paused) return;
    p->paused = false;
    /* With their old time and order, so that what came first is first. */
    for (size_t i = 0; i < p->waiting.n; i++) heap_put(p->sim, p->waiting.at[i]);
    p->waiting.n = 0;
}

void pl_sim_cut(pl_sim_process *from, pl_sim_process *to)
{
    pl_sim *s = from->sim;
    if (is_cut(s, from->id, to->id)) return;
    if (s->n_cuts == s->cuts_cap) {
        size_t cap = s->cuts_cap ? s->cuts_cap * 2 : 16;
        cut *cuts = pl_realloc(s->cuts, cap * sizeof *cuts);
        PL_ASSERT(cuts);
        s->cuts = cuts;
        s->cuts_cap = cap;
    }
    s->cuts[s->n_cuts++] = (cut){from->id, to->id};
}

static void heal(pl_sim *s, uint32_t from, uint32_t to)
{
    for (size_t i = 0; i < s->n_cuts; i++)
        if (s->cuts[i].from == from && s->cuts[i].to == to) {
            s->cuts[i] = s->cuts[--s->n_cuts];
            break;
        }
    for (conn *c = s->conns; c; c = c->next)
        for (int i = 0; i < 2; i++) {
            if (c->process_id[i] != from || c->process_id[!i] != to) continue;
            packet *p = c->dir[i].held, *next;
            c->dir[i].held = NULL;
            c->dir[i].held_end = &c->dir[i].held;
            for (; p; p = next) {
                next = p->next;
                p->next = NULL;
                if (c->dir[i].silent)
                    packet_free(p);
                else
                    arrive(c, i, p);
            }
        }
}

void pl_sim_heal(pl_sim_process *from, pl_sim_process *to)
{
    heal(from->sim, from->id, to->id);
}

void pl_sim_heal_all(pl_sim *s)
{
    while (s->n_cuts) heal(s, s->cuts[0].from, s->cuts[0].to);
    for (pl_sim_process *p = s->processes; p; p = p->next) pl_sim_resume(p);
}

void pl_sim_break(pl_sim_process *a, pl_sim_process *b)
{
    pl_sim *s = a->sim;
    for (conn *c = s->conns; c; c = c->next) {
        bool between = (c->process_id[0] == a->id && c->process_id[1] == b->id) ||
                       (c->process_id[0] == b->id && c->process_id[1] == a->id);
        if (!between || !c->accepted || c->broken) continue;
        c->broken = true;
        for (int i = 0; i < 2; i++) down_locally(c, i, PL_ERR_CLOSED, "the connection broke");
    }
}

pl_status pl_sim_new(pl_sim **out, uint64_t seed, const pl_sim_options *options, pl_error *err)
{
    *out = NULL;
    pl_sim *s = pl_calloc(1, sizeof *s);
    if (!s) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for a simulation");
    if (options) s->options = *options;
    pl_sim_options *o = &s->options;
    if (!o->delay_min_ns && !o->delay_max_ns) o->delay_min_ns = 50 * US, o->delay_max_ns = 2 * MS;
    if (!o->down_min_ns && !o->down_max_ns) o->down_min_ns = 1 * MS, o->down_max_ns = 50 * MS;
    if (!o->bytes_s) o->bytes_s = 125000000;
    pl_rng_seed(&s->rng, seed);
    s->now = 1 * S;
    *out = s;
    return PL_OK;
}

void pl_sim_free(pl_sim *s)
{
    if (!s) return;
    for (pl_sim_process *p = s->processes; p; p = p->next) p->alive = false;
    while (s->processes) {
        while (s->processes->nets) net_free(&s->processes->nets->base);
        pl_sim_process_free(s->processes);
    }
    for (size_t i = 0; i < s->heap.n; i++) event_drop(&s->heap.at[i]); /* dials that wait for a listener */
    pl_free(s->heap.at);
    pl_free(s->cuts);
    pl_free(s);
}
