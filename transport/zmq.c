/* Links over ZeroMQ.
 *
 * Sockets. A net that listens has one ROUTER; each dial has a DEALER of its own, so that a peer that hangs holds up
 * nobody else. Every message begins with a control frame of ours: 'H' version key   the dialer's first frame, its
 * public key behind it 'W' version key   the listener's answer; now the link is up at both ends 'D'               a
 * message: its header and parts follow as frames of their own 'B' reason        goodbye: the link is closed at the
 * other end, which also closes its socket The keys in 'H' and 'W' count on inproc only, where both ends are one process
 * and CURVE does not exist. Elsewhere the listener takes the dialer's key from CURVE, through the User-Id that our ZAP
 * handler set, and the dialer knows the listener's since it dialed it.
 *
 * One socket, one connection. libzmq would reconnect and go on in silence, with messages lost in between; a link is one
 * connection from up to down. So the reconnection interval is longer than any dial, and when the monitor of a DEALER
 * says that its connection failed or ended, the socket is closed: while dialing, another one tries again; after that,
 * the link is down. A monitor of the ROUTER says which descriptor is gone, and a message tells the descriptor it came
 * by, so accepted links go down at once too. (Descriptors are used again: before an 'H' is believed, all that the
 * monitor said before it is read. That is enough, since an event is written before the descriptor is closed.) When a
 * connection ends, what arrived before it is delivered first.
 *
 * ZMQ_FD is edge-triggered and shared by reading and sending: a send may eat the wake-up of a message that came in. So
 * a channel reads until there is nothing more, or a burst is over and it asks for another turn; and after sends
 * ZMQ_EVENTS is asked again.
 *
 * Callbacks may close any link: its sockets are closed at once, its memory goes when no callback is running
 * (net->depth).
 *
 * Known limit of libzmq: frames of one message that is still coming in are not counted against any limit but their own
 * size. A peer that was let in can therefore take memory with a message of endless parts. */
#include "engine/base/alloc.h"
#include "engine/base/map.h"
#include "transport/curve.h"
#include "transport/link_impl.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <zmq.h>

#define MS             UINT64_C(1000000)
#define LINK_VERSION   1
#define HELLO_SIZE     (2 + PL_KEY_SIZE)
#define BURST          64 /* messages of one socket before the loop's other work has its turn */
#define REDIAL_NS      (50 * MS)
#define NEVER_MS       600000 /* libzmq adds up to as much again at random: no overflow */
#define LINGER_MS      500    /* for a goodbye and what was sent before it */
#define HANDSHAKE_MS   10000
#define HANDSHAKES_NS  (1000 * MS) /* so long they fail before a dial ends: a peer that starts or stops fails some */
#define RECEIVE_QUEUE  64          /* messages per connection that wait for us; then TCP holds the sender back */
#define SOCKETS_MAX    8192
#define FRAMES_MAX     (3 + PL_MSG_PARTS_MAX) /* identity, control, header, parts */
#define ALIGN_OF_PARTS 8

typedef struct zmq_net zmq_net;
typedef struct zmq_link zmq_link;

/* Why a goodbye was said. */
typedef enum { BYE_CLOSED = 0, BYE_FULL = 1, BYE_AUTH = 2, BYE_FORMAT = 3 } bye_reason;

/* A socket that is read on the loop. */
typedef struct channel {
    zmq_net *net;
    zmq_link *link; /* of a dialed link; NULL for the net's own */
    void *socket;
    void *watch;
    /* Reads and handles one message; false when there is none. */
    bool (*read)(struct channel *ch);
    bool waits; /* for a turn, in net->first_waiting */
    struct channel *prev, *next;
} channel;

/* How many messages libzmq still holds. Outlives its link, as libzmq lets go in its own threads. */
typedef struct outbox {
    int refs, queued; /* atomic */
} outbox;

typedef enum {
    DIALING,
    UP,
    LOST,
    CLOSED
} link_state; /* LOST: the connection is gone, what arrived before is being read */

struct zmq_link {
    pl_link base;
    zmq_link *prev, *next; /* in net->links, or next alone in net->dead */
    link_state state;
    bool accepted, said_bye;
    outbox *out;
    /* Dialed: */
    channel data, monitor;
    pl_timer *timeout, *retry;
    pl_key server;
    char *dialed;
    bool connected, greeted;   /* in this attempt: TCP, CURVE */
    uint64_t failing_since_ns; /* handshakes; 0: the last attempt did not come so far */
    /* Accepted: */
    uint8_t id[255];
    size_t id_size;
    int fd; /* -1: unknown (inproc) */
};

struct zmq_net {
    pl_net base;
    pl_loop *loop;
    pl_net_events events;
    void *user;
    bool encrypted, inproc;
    pl_key secret;
    bool (*allowed)(void *user, const pl_key *peer);
    void *allowed_user;
    pl_net_limits limits;
    char *address;
    char domain[24]; /* for ZAP: which net of the process is asked */
    channel router, monitor, zap;
    zmq_link *links, *dead;
    pl_map by_id; /* routing id of an accepted link to its pointer */
    int n_accepted, n_lost;
    int64_t reads_until_lost; /* messages that are read before lost links go down even if the ROUTER never runs dry */
    channel *first_waiting, *last_waiting;
    int n_waiting;
    pl_timer *turn; /* runs while one waits */
    int depth;      /* callbacks that are running */
};

/* The context that all nets of the process share, so that inproc works between them; and its thread that answers
 * libzmq's questions about keys. libzmq wants one handler per context, at a fixed address. */
static struct {
    pthread_mutex_t lock;
    void *context;
    int n_nets;
    uint64_t n_made;
    bool zap_runs;
    pthread_t zap_thread;
    void *zap_front, *zap_back;
} shared = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ZAP (https://rfc.zeromq.org/spec/27/): libzmq asks at the front; the question goes to the net whose domain it names,
 * at the back, and is answered on that net's loop, so that `allowed` needs no locks. */

#define ZAP_FRONT "inproc://zeromq.zap.01"
#define ZAP_BACK  "inproc://paceline.zap"
#define ZAP_ID    64

typedef struct frame {
    uint8_t bytes[256];
    size_t size;
} frame;

/* Receives a whole message of frames of at most 256 bytes; the number of its frames, 0 when it does not fit the shape,
 * -1 when there is none or the context ends. */
static int receive_small(void *socket, frame *frames, int n_max, int flags)
{
    int n = 0, more = 1;
    bool fits = true;
    while (more) {
        zmq_msg_t m;
        zmq_msg_init(&m);
        if (zmq_msg_recv(&m, socket, n == 0 && fits ? flags : 0) < 0) {
            zmq_msg_close(&m);
            return -1;
        }
        more = zmq_msg_more(&m);
        size_t size = zmq_msg_size(&m);
        if (n < n_max && size <= sizeof frames[0].bytes) {
            memcpy(frames[n].bytes, zmq_msg_data(&m), size);
            frames[n++].size = size;
        } else {
            fits = false;
        }
        zmq_msg_close(&m);
    }
    return fits ? n : 0;
}

/* status: "200" with the key, "400" for a key that is not admitted, "300" when nobody can tell, which ends the
 * connection without a verdict. */
static void zap_answer(const frame *asker, const frame *request, const char *status, const uint8_t *key)
{
    char user[2 * PL_KEY_SIZE + 1] = "";
    pl_key k;
    if (key) {
        memcpy(k.b, key, PL_KEY_SIZE);
        pl_key_text(&k, user);
    }
    void *s = shared.zap_front;
    /* Never blocks: a ROUTER drops what has nowhere to go. */
    zmq_send(s, asker->bytes, asker->size, ZMQ_SNDMORE);
    zmq_send(s, "", 0, ZMQ_SNDMORE);
    zmq_send(s, "1.0", 3, ZMQ_SNDMORE);
    zmq_send(s, request->bytes, request->size, ZMQ_SNDMORE);
    zmq_send(s, status, 3, ZMQ_SNDMORE);
    zmq_send(s, "", 0, ZMQ_SNDMORE); /* the text for people */
    zmq_send(s, user, strlen(user), ZMQ_SNDMORE);
    zmq_send(s, "", 0, 0);
}

/* asker, "", version, request, domain, address, identity, mechanism, key */
static void zap_question(const frame *f, int n)
{
    if (n < 9 || f[7].size != 5 || memcmp(f[7].bytes, "CURVE", 5) != 0 || f[8].size != PL_KEY_SIZE) {
        if (n >= 4) zap_answer(&f[0], &f[3], "400", NULL);
        return;
    }
    void *s = shared.zap_back;
    if (zmq_send(s, f[4].bytes, f[4].size, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0) {
        zap_answer(&f[0], &f[3], "300", NULL); /* the net is gone, or drowns in questions */
        return;
    }
    zmq_send(s, f[0].bytes, f[0].size, ZMQ_SNDMORE);
    zmq_send(s, f[3].bytes, f[3].size, ZMQ_SNDMORE);
    zmq_send(s, f[8].bytes, f[8].size, 0);
}

static void *zap_main(void *unused)
{
    (void)unused;
    frame f[9];
    for (;;) {
        zmq_pollitem_t items[2] = {{.socket = shared.zap_front, .events = ZMQ_POLLIN},
                                   {.socket = shared.zap_back, .events = ZMQ_POLLIN}};
        if (zmq_poll(items, 2, -1) < 0) {
            if (zmq_errno() == EINTR) continue;
            break; /* ETERM */
        }
        if (items[0].revents) zap_question(f, receive_small(shared.zap_front, f, 9, ZMQ_DONTWAIT));
        /* domain, asker, request, key, yes or no */
        if (items[1].revents && receive_small(shared.zap_back, f, 5, ZMQ_DONTWAIT) == 5) {
            bool yes = f[4].size == 1 && f[4].bytes[0] == 1;
            zap_answer(&f[1], &f[2], yes ? "200" : "400", yes ? f[3].bytes : NULL);
        }
    }
    zmq_close(shared.zap_front);
    zmq_close(shared.zap_back);
    return NULL;
}

static pl_status zap_start(pl_error *err)
{
    int one = 1, zero = 0;
    shared.zap_front = zmq_socket(shared.context, ZMQ_ROUTER);
    shared.zap_back = zmq_socket(shared.context, ZMQ_ROUTER);
    if (shared.zap_front && shared.zap_back) {
        zmq_setsockopt(shared.zap_back, ZMQ_ROUTER_MANDATORY, &one, sizeof one);
        zmq_setsockopt(shared.zap_front, ZMQ_LINGER, &zero, sizeof zero);
        zmq_setsockopt(shared.zap_back, ZMQ_LINGER, &zero, sizeof zero);
        if (zmq_bind(shared.zap_front, ZAP_FRONT) == 0 && zmq_bind(shared.zap_back, ZAP_BACK) == 0 &&
            pthread_create(&shared.zap_thread, NULL, zap_main, NULL) == 0) {
            shared.zap_runs = true;
            return PL_OK;
        }
    }
    int e = zmq_errno();
    if (shared.zap_front) zmq_close(shared.zap_front);
    if (shared.zap_back) zmq_close(shared.zap_back);
    return pl_fail(err, PL_ERR_IO, "no handler for keys: %s", zmq_strerror(e));
}

static void context_release(void)
{
    pthread_mutex_lock(&shared.lock);
    if (--shared.n_nets == 0) {
        zmq_ctx_shutdown(shared.context); /* ends the thread's wait */
        if (shared.zap_runs) pthread_join(shared.zap_thread, NULL);
        shared.zap_runs = false;
        while (zmq_ctx_term(shared.context) != 0 && zmq_errno() == EINTR) {}
        shared.context = NULL;
    }
    pthread_mutex_unlock(&shared.lock);
}

static pl_status context_acquire(bool zap, uint64_t *number, pl_error *err)
{
    pl_status s = PL_OK;
    pthread_mutex_lock(&shared.lock);
    if (!shared.context) {
        shared.context = zmq_ctx_new();
        if (shared.context) zmq_ctx_set(shared.context, ZMQ_MAX_SOCKETS, SOCKETS_MAX);
    }
    if (!shared.context) s = pl_fail(err, PL_ERR_NO_MEMORY, "no ZeroMQ context: %s", zmq_strerror(zmq_errno()));
    if (s == PL_OK) shared.n_nets++;
    if (s == PL_OK && zap && !shared.zap_runs) s = zap_start(err);
    bool undo = s != PL_OK && shared.context != NULL;
    *number = ++shared.n_made;
    pthread_mutex_unlock(&shared.lock);
    if (undo) context_release();
    return s;
}

/* Parts over libzmq's messages */

typedef struct zmq_part {
    pl_part base;
    zmq_msg_t msg;
} zmq_part;

static void zmq_part_release(pl_part *p)
{
    zmq_part *z = (zmq_part *)p;
    zmq_msg_close(&z->msg);
    pl_free(z);
}

/* Takes m over. Small messages sit anywhere in libzmq's buffers: they are copied when numbers in them would not be
 * aligned. */
static pl_part *part_of(zmq_msg_t *m)
{
    if ((uintptr_t)zmq_msg_data(m) % ALIGN_OF_PARTS != 0) {
        pl_part *copy = pl_part_copy((pl_bytes){zmq_msg_data(m), zmq_msg_size(m)});
        if (copy) {
            zmq_msg_close(m);
            zmq_msg_init(m);
        }
        return copy;
    }
    zmq_part *z = pl_calloc(1, sizeof *z);
    if (!z) return NULL;
    zmq_msg_init(&z->msg);
    zmq_msg_move(&z->msg, m);
    z->base =
        (pl_part){.data = zmq_msg_data(&z->msg), .size = zmq_msg_size(&z->msg), .release = zmq_part_release, .refs = 1};
    if ((uintptr_t)z->base.data % ALIGN_OF_PARTS != 0) { /* the smallest live inside zmq_msg_t, which moved */
        pl_part *copy = pl_part_copy((pl_bytes){z->base.data, z->base.size});
        pl_part_unref(&z->base);
        return copy;
    }
    return &z->base;
}

static void sent_part(void *data, void *hint)
{
    (void)data;
    pl_part_unref(hint);
}

static void outbox_unref(outbox *o)
{
    if (o && __atomic_sub_fetch(&o->refs, 1, __ATOMIC_ACQ_REL) == 0) pl_free(o);
}

static void sent_control(void *data, void *hint)
{
    (void)data;
    outbox *o = hint;
    __atomic_fetch_sub(&o->queued, 1, __ATOMIC_RELAXED);
    outbox_unref(o);
}

/* Turns of the loop */

static zmq_net *net_of(pl_net *n)
{
    return (zmq_net *)n;
}
static zmq_link *link_of(pl_link *l)
{
    return (zmq_link *)l;
}

static void take_turns(void *user);

/* ch gets another turn after the loop's other work. */
static void want_turn(channel *ch)
{
    zmq_net *n = ch->net;
    if (ch->waits) return;
    ch->waits = true;
    ch->prev = n->last_waiting;
    ch->next = NULL;
    if (ch->prev)
        ch->prev->next = ch;
    else
        n->first_waiting = ch;
    n->last_waiting = ch;
    n->n_waiting++;
    /* Without memory for a timer the next event of any channel tries again. */
    if (!n->turn && pl_timer_start(n->loop, 0, 0, take_turns, n, &n->turn, NULL) != PL_OK) n->turn = NULL;
}

static void forget_turn(channel *ch)
{
    if (!ch->waits) return;
    zmq_net *n = ch->net;
    ch->waits = false;
    if (ch->prev)
        ch->prev->next = ch->next;
    else
        n->first_waiting = ch->next;
    if (ch->next)
        ch->next->prev = ch->prev;
    else
        n->last_waiting = ch->prev;
    n->n_waiting--;
}

static void link_free(zmq_link *l)
{
    outbox_unref(l->out);
    pl_free(l->dialed);
    pl_free(l);
}

static void enter(zmq_net *n)
{
    n->depth++;
}

static void leave(zmq_net *n)
{
    if (--n->depth > 0) return;
    for (zmq_link *l = n->dead, *next; l; l = next) {
        next = l->next;
        link_free(l);
    }
    n->dead = NULL;
}

static bool has_input(void *socket)
{
    int events = 0;
    size_t size = sizeof events;
    return zmq_getsockopt(socket, ZMQ_EVENTS, &events, &size) == 0 && (events & ZMQ_POLLIN);
}

static void channel_serve(channel *ch)
{
    forget_turn(ch);
    for (int i = 0; i < BURST && ch->socket; i++)
        if (!ch->read(ch)) break;
    if (ch->socket && has_input(ch->socket)) want_turn(ch);
}

static void on_channel(void *user)
{
    channel *ch = user;
    zmq_net *n = ch->net;
    enter(n);
    channel_serve(ch);
    leave(n);
}

static void take_turns(void *user)
{
    zmq_net *n = user;
    n->turn = NULL;
    enter(n);
    /* Only those that wait now; who wants yet another turn is behind them, and started the timer again. */
    for (int left = n->n_waiting; left > 0 && n->first_waiting; left--) channel_serve(n->first_waiting);
    leave(n);
}

/* Gives the socket in ch its place on the loop. */
static pl_status channel_watch(channel *ch, pl_error *err)
{
    int fd;
    size_t size = sizeof fd;
    if (zmq_getsockopt(ch->socket, ZMQ_FD, &fd, &size) != 0)
        return pl_fail(err, PL_ERR_IO, "no descriptor of a socket: %s", zmq_strerror(zmq_errno()));
    PL_TRY(pl_loop_watch_fd(ch->net->loop, fd, on_channel, ch, &ch->watch, err));
    /* What came before the watch has no edge any more. */
    want_turn(ch);
    return PL_OK;
}

static void channel_close(channel *ch, int linger_ms)
{
    if (!ch->socket) return;
    forget_turn(ch);
    pl_loop_unwatch_fd(ch->net->loop, ch->watch);
    zmq_setsockopt(ch->socket, ZMQ_LINGER, &linger_ms, sizeof linger_ms);
    zmq_close(ch->socket);
    ch->socket = NULL;
    ch->watch = NULL;
}

/* Events of a monitor: number and value in one frame, the address in the next. */
static bool read_event(channel *ch, uint16_t *event, int32_t *value)
{
    frame f[2];
    int n = receive_small(ch->socket, f, 2, ZMQ_DONTWAIT);
    if (n < 0) return false;
    *event = 0;
    if (n == 2 && f[0].size == 6) {
        /* In the order of bytes of this machine: it never leaves the process. */
        memcpy(event, f[0].bytes, 2);
        memcpy(value, f[0].bytes + 2, 4);
    }
    return true;
}

static pl_status monitor_open(channel *ch, void *socket, const char *name, int events, pl_error *err)
{
    char address[96];
    snprintf(address, sizeof address, "inproc://paceline.monitor.%s.%p", name, socket);
    if (zmq_socket_monitor(socket, address, events) != 0 || !(ch->socket = zmq_socket(shared.context, ZMQ_PAIR)) ||
        zmq_connect(ch->socket, address) != 0)
        return pl_fail(err, PL_ERR_IO, "no monitor of a socket: %s", zmq_strerror(zmq_errno()));
    return channel_watch(ch, err);
}

/* Sending */

/* A control frame and its payload as one small message. Says nothing when it cannot be sent: the connection is then
 * gone or full of what nobody reads, and its end follows. */
static void send_control(zmq_link *l, void *socket, const void *bytes, size_t size)
{
    if (l->accepted && zmq_send(socket, l->id, l->id_size, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0) return;
    zmq_send(socket, bytes, size, ZMQ_DONTWAIT);
}

static void *socket_of(const zmq_link *l)
{
    return l->accepted ? net_of(l->base.net)->router.socket : l->data.socket;
}

static channel *channel_of(zmq_link *l)
{
    return l->accepted ? &net_of(l->base.net)->router : &l->data;
}

static void send_greeting(zmq_link *l, void *socket, char kind)
{
    uint8_t bytes[HELLO_SIZE] = {(uint8_t)kind, LINK_VERSION};
    memcpy(bytes + 2, l->base.net->self.b, PL_KEY_SIZE);
    send_control(l, socket, bytes, sizeof bytes);
}

static void send_bye(zmq_link *l, bye_reason reason)
{
    uint8_t bytes[2] = {'B', (uint8_t)reason};
    void *socket = socket_of(l);
    if (socket) send_control(l, socket, bytes, sizeof bytes);
    l->said_bye = true;
}

static void update_queued(zmq_link *l)
{
    l->base.queued = __atomic_load_n(&l->out->queued, __ATOMIC_RELAXED);
}

static pl_status link_send(pl_link *base, pl_msg **m, pl_error *err)
{
    static const uint8_t data_kind = 'D';
    zmq_link *l = link_of(base);
    const zmq_net *n = net_of(base->net);
    pl_status s;
    PL_TRY(pl_msg_check(*m, &n->limits, err));
    update_queued(l);
    if (l->state != UP) return pl_fail(err, PL_ERR_CLOSED, "%s: the link is not up", base->address);
    if (base->queued >= n->limits.queue_msgs_max)
        return pl_fail(err, PL_ERR_TIMEOUT, "%s: %d messages wait to be sent already", base->address, base->queued);
    /* All that may fail for lack of memory comes before the first frame, after which there is no way back. */
    zmq_msg_t frames[2 + PL_MSG_PARTS_MAX];
    int n_frames = 0;
    pl_part *parts[1 + PL_MSG_PARTS_MAX];
    parts[0] = (*m)->header;
    for (int i = 0; i < (*m)->n_parts; i++) parts[1 + i] = (*m)->parts[i];
    int n_parts = 1 + (*m)->n_parts;
    __atomic_fetch_add(&l->out->refs, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&l->out->queued, 1, __ATOMIC_RELAXED);
    /* The cast drops const: libzmq only reads it. */
    if (zmq_msg_init_data(&frames[0], (void *)(uintptr_t)&data_kind, 1, sent_control, l->out) != 0) {
        sent_control(NULL, l->out);
        return pl_fail(err, PL_ERR_NO_MEMORY, "%s: no memory for a message", base->address);
    }
    for (n_frames = 1; n_frames <= n_parts; n_frames++) {
        pl_part *p = pl_part_ref(parts[n_frames - 1]);
        if (zmq_msg_init_data(&frames[n_frames], p->data, p->size, sent_part, p) == 0) continue;
        pl_part_unref(p);
        s = pl_fail(err, PL_ERR_NO_MEMORY, "%s: no memory for a message", base->address);
        goto fail;
    }
    void *socket = socket_of(l);
    if (l->accepted && zmq_send(socket, l->id, l->id_size, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0) goto refused;
    for (int i = 0; i < n_frames; i++) {
        if (zmq_msg_send(&frames[i], socket, ZMQ_DONTWAIT | (i + 1 < n_frames ? ZMQ_SNDMORE : 0)) >= 0) continue;
        if (i == 0 && !l->accepted) goto refused;
        /* libzmq takes the rest of a message that it began, or drops all of it with its connection. */
        for (; i < n_frames; i++) zmq_msg_close(&frames[i]);
    }
    pl_msg_free(*m);
    *m = NULL;
    update_queued(l);
    if (has_input(socket)) want_turn(channel_of(l));
    return PL_OK;
refused:
    if (zmq_errno() == EAGAIN)
        s = pl_fail(err, PL_ERR_TIMEOUT, "%s: as many messages as the system takes wait to be sent already",
                    base->address);
    else
        s = pl_fail(err, PL_ERR_CLOSED, "%s: %s", base->address, zmq_strerror(zmq_errno()));
    if (has_input(socket)) want_turn(channel_of(l));
fail:
    for (int i = 0; i < n_frames; i++) zmq_msg_close(&frames[i]);
    return s;
}

/* The life of a link */

static void link_close_sockets(zmq_link *l, int linger_ms)
{
    zmq_net *n = net_of(l->base.net);
    pl_timer_stop(n->loop, l->timeout);
    pl_timer_stop(n->loop, l->retry);
    l->timeout = l->retry = NULL;
    if (l->data.socket) zmq_socket_monitor(l->data.socket, NULL, 0);
    channel_close(&l->monitor, 0);
    channel_close(&l->data, linger_ms);
}

/* Takes l out of the net: no event any more. Its memory goes when the last callback returns. */
static void link_retire(zmq_link *l, int linger_ms)
{
    zmq_net *n = net_of(l->base.net);
    if (l->state == LOST) n->n_lost--;
    l->state = CLOSED;
    link_close_sockets(l, linger_ms);
    if (l->accepted) {
        n->n_accepted--;
        pl_map_remove(&n->by_id, (pl_str){(const char *)l->id, l->id_size});
    }
    if (l->prev)
        l->prev->next = l->next;
    else
        n->links = l->next;
    if (l->next) l->next->prev = l->prev;
    l->next = n->dead;
    n->dead = l;
}

/* Within enter and leave. */
static void link_down(zmq_link *l, pl_status status, const char *reason)
{
    zmq_net *n = net_of(l->base.net);
    pl_error why = {0};
    pl_fail(&why, status, "%s: %s", l->base.address, reason);
    link_retire(l, l->said_bye ? LINGER_MS : 0);
    n->events.down(n->user, &l->base, &why);
}

static void link_close(pl_link *base)
{
    zmq_link *l = link_of(base);
    zmq_net *n = net_of(base->net);
    if (l->state == CLOSED) return; /* from its own `down` */
    enter(n);
    if (l->state == UP) send_bye(l, BYE_CLOSED);
    link_retire(l, LINGER_MS);
    leave(n);
}

static zmq_link *link_new(zmq_net *n)
{
    zmq_link *l = pl_calloc(1, sizeof *l);
    outbox *o = pl_calloc(1, sizeof *o);
    if (!l || !o) {
        pl_free(l);
        pl_free(o);
        return NULL;
    }
    o->refs = 1;
    l->out = o;
    l->base.net = &n->base;
    l->fd = -1;
    l->data.net = l->monitor.net = n;
    l->data.link = l->monitor.link = l;
    return l;
}

static void link_insert(zmq_net *n, zmq_link *l)
{
    l->next = n->links;
    if (n->links) n->links->prev = l;
    n->links = l;
}

/* Receiving */

typedef struct frames {
    zmq_msg_t f[FRAMES_MAX];
    int n;
    bool too_many;
} frames;

static void frames_close(frames *m)
{
    for (int i = 0; i < m->n; i++) zmq_msg_close(&m->f[i]);
    m->n = 0;
}

/* False when there is no message. */
static bool frames_receive(frames *m, void *socket)
{
    *m = (frames){0};
    for (bool more = true; more;) {
        zmq_msg_t spare, *f = m->n < FRAMES_MAX ? &m->f[m->n] : &spare;
        zmq_msg_init(f);
        if (zmq_msg_recv(f, socket, ZMQ_DONTWAIT) < 0) {
            /* Messages come whole: only before the first frame. */
            zmq_msg_close(f);
            frames_close(m);
            return false;
        }
        more = zmq_msg_more(f);
        if (f == &spare) {
            zmq_msg_close(&spare);
            m->too_many = true;
        } else {
            m->n++;
        }
    }
    return true;
}

/* The frames from `at` on as a message. NULL: they break the limits, or there is no memory, as *status says. */
static pl_msg *frames_message(frames *m, int at, const pl_net_limits *limits, pl_status *status)
{
    *status = PL_ERR_FORMAT;
    if (m->too_many || m->n <= at || m->n - at > 1 + PL_MSG_PARTS_MAX) return NULL;
    if (zmq_msg_size(&m->f[at]) > limits->header_bytes_max) return NULL;
    for (int i = at + 1; i < m->n; i++)
        if (zmq_msg_size(&m->f[i]) > limits->part_bytes_max) return NULL;
    pl_msg *msg;
    if ((*status = pl_msg_new(&msg, NULL)) != PL_OK) return NULL;
    *status = PL_ERR_NO_MEMORY;
    if (!(msg->header = part_of(&m->f[at]))) goto fail;
    for (int i = at + 1; i < m->n; i++)
        if (pl_msg_add(msg, part_of(&m->f[i]), NULL) != PL_OK) goto fail;
    *status = PL_OK;
    return msg;
fail:
    pl_msg_free(msg);
    return NULL;
}

static const uint8_t *frame_bytes(const zmq_msg_t *f)
{
    /* libzmq's signature lacks const; it does not write. */
    return zmq_msg_data((zmq_msg_t *)(uintptr_t)f);
}

/* A message for a link that is up, its control frame at `at`. */
static void link_receive(zmq_link *l, frames *m, int at)
{
    zmq_net *n = net_of(l->base.net);
    const uint8_t *control = frame_bytes(&m->f[at]);
    size_t size = zmq_msg_size(&m->f[at]);
    update_queued(l);
    if (size == 1 && control[0] == 'D') {
        pl_status s;
        pl_msg *msg = frames_message(m, at + 1, &n->limits, &s);
        if (msg) {
            n->events.message(n->user, &l->base, msg);
            return;
        }
        send_bye(l, BYE_FORMAT);
        link_down(l, s, s == PL_ERR_FORMAT ? "a message that breaks the limits" : "no memory for a message");
    } else if (size == 2 && control[0] == 'B') {
        link_down(l, control[1] == BYE_FORMAT ? PL_ERR_FORMAT : PL_ERR_CLOSED,
                  control[1] == BYE_FORMAT ? "the peer says that our message broke its limits"
                                           : "the peer closed the link");
    } else {
        send_bye(l, BYE_FORMAT);
        link_down(l, PL_ERR_FORMAT, "not a message of this protocol");
    }
}

/* Dialing */

static void dial_attempt(zmq_link *l);

static void on_retry(void *user)
{
    zmq_link *l = user;
    zmq_net *n = net_of(l->base.net);
    l->retry = NULL;
    enter(n);
    dial_attempt(l);
    leave(n);
}

static void dial_again(zmq_link *l)
{
    zmq_net *n = net_of(l->base.net);
    channel_close(&l->monitor, 0);
    channel_close(&l->data, 0);
    l->connected = l->greeted = false;
    /* Without memory for a timer there are no more tries: the timeout ends the dial. */
    if (pl_timer_start(n->loop, REDIAL_NS, 0, on_retry, l, &l->retry, NULL) != PL_OK) l->retry = NULL;
}

static void on_dial_timeout(void *user)
{
    zmq_link *l = user;
    zmq_net *n = net_of(l->base.net);
    l->timeout = NULL;
    enter(n);
    if (l->failing_since_ns)
        link_down(l, PL_ERR_AUTH, "the keys do not fit: the peer has another key, or does not admit ours");
    else
        link_down(l, PL_ERR_TIMEOUT,
                  l->connected ? "connected, but no answer within the time for dialing"
                               : "no connection within the time for dialing");
    leave(n);
}

static void dial_handshake_failed(zmq_link *l)
{
    uint64_t now = pl_loop_now(net_of(l->base.net)->loop);
    if (!l->failing_since_ns) l->failing_since_ns = now;
    if (now - l->failing_since_ns < HANDSHAKES_NS)
        dial_again(l);
    else
        link_down(l, PL_ERR_AUTH, "the keys do not fit: the peer has another key, or does not admit ours");
}

static bool read_dial_data(channel *ch)
{
    zmq_link *l = ch->link;
    zmq_net *n = ch->net;
    frames m;
    if (!frames_receive(&m, ch->socket)) return false;
    const uint8_t *control = frame_bytes(&m.f[0]);
    size_t size = zmq_msg_size(&m.f[0]);
    if (l->state != DIALING) {
        link_receive(l, &m, 0);
    } else if (m.n == 1 && size == HELLO_SIZE && control[0] == 'W' && control[1] == LINK_VERSION) {
        pl_key peer;
        memcpy(peer.b, control + 2, PL_KEY_SIZE);
        bool inproc = strncmp(l->dialed, "inproc://", 9) == 0;
        if (n->encrypted && inproc && !pl_key_eq(&peer, &l->server)) {
            link_down(l, PL_ERR_AUTH, "the peer has another key");
        } else {
            if (n->encrypted) l->base.peer = l->server;
            l->state = UP;
            pl_timer_stop(n->loop, l->timeout);
            l->timeout = NULL;
            n->events.up(n->user, &l->base, false);
        }
    } else if (size == 2 && control[0] == 'B' && control[1] == BYE_AUTH) {
        link_down(l, PL_ERR_AUTH, "the peer does not admit this key");
    } else if (size == 2 && control[0] == 'B') {
        link_down(l, PL_ERR_CLOSED,
                  control[1] == BYE_FULL ? "the peer has all the links it takes" : "the peer closed the link");
    } else {
        link_down(l, PL_ERR_FORMAT, "the peer speaks another protocol");
    }
    frames_close(&m);
    return true;
}

static bool read_dial_monitor(channel *ch)
{
    zmq_link *l = ch->link;
    uint16_t event;
    int32_t value = 0;
    if (!read_event(ch, &event, &value)) return false;
    switch (event) {
    case ZMQ_EVENT_CONNECTED: l->connected = true; break;
    case ZMQ_EVENT_HANDSHAKE_SUCCEEDED: l->greeted = true; break;
    case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
        if (l->state == DIALING) link_down(l, PL_ERR_AUTH, "the peer does not admit this key");
        break;
    case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
        if (l->state == DIALING) dial_handshake_failed(l);
        break;
    case ZMQ_EVENT_CLOSED:
    case ZMQ_EVENT_DISCONNECTED:
        /* First what arrived before the end. */
        while (l->data.socket && read_dial_data(&l->data)) {}
        if (l->state == UP)
            link_down(l, PL_ERR_CLOSED, "the connection ended");
        else if (l->state == DIALING && net_of(l->base.net)->encrypted && l->connected && !l->greeted)
            dial_handshake_failed(l);
        else if (l->state == DIALING) {
            l->failing_since_ns = 0;
            dial_again(l);
        }
        break;
    default: break;
    }
    return true;
}

static bool set_int(void *socket, int option, int value)
{
    return zmq_setsockopt(socket, option, &value, sizeof value) == 0;
}

/* What both kinds of sockets share. */
static bool set_common(const zmq_net *n, void *socket)
{
    size_t largest =
        n->limits.header_bytes_max > n->limits.part_bytes_max ? n->limits.header_bytes_max : n->limits.part_bytes_max;
    int64_t size_max = largest < 256 ? 256 : (int64_t)largest;
    /* Our own count is exact and refuses first; libzmq's bound is behind it, with room for control frames. */
    return set_int(socket, ZMQ_SNDHWM, n->limits.queue_msgs_max + 16) && set_int(socket, ZMQ_RCVHWM, RECEIVE_QUEUE) &&
           set_int(socket, ZMQ_LINGER, 0) && set_int(socket, ZMQ_HANDSHAKE_IVL, HANDSHAKE_MS) &&
           zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &size_max, sizeof size_max) == 0;
}

static pl_status dial_open(zmq_link *l, pl_error *err)
{
    const zmq_net *n = net_of(l->base.net);
    void *s = l->data.socket = zmq_socket(shared.context, ZMQ_DEALER);
    if (!s) return pl_fail(err, PL_ERR_IO, "%s: no socket: %s", l->dialed, zmq_strerror(zmq_errno()));
    bool ok = set_common(n, s) && set_int(s, ZMQ_RECONNECT_IVL, NEVER_MS);
    if (ok && n->encrypted)
        ok = zmq_setsockopt(s, ZMQ_CURVE_SERVERKEY, l->server.b, PL_KEY_SIZE) == 0 &&
             zmq_setsockopt(s, ZMQ_CURVE_PUBLICKEY, n->base.self.b, PL_KEY_SIZE) == 0 &&
             zmq_setsockopt(s, ZMQ_CURVE_SECRETKEY, n->secret.b, PL_KEY_SIZE) == 0;
    if (!ok) return pl_fail(err, PL_ERR_IO, "%s: socket options: %s", l->dialed, zmq_strerror(zmq_errno()));
    l->data.read = read_dial_data;
    l->monitor.read = read_dial_monitor;
    PL_TRY(monitor_open(&l->monitor, s, "dealer", ZMQ_EVENT_ALL, err));
    if (zmq_connect(s, l->dialed) != 0)
        return pl_fail(err, PL_ERR_INVALID, "%s: %s", l->dialed, zmq_strerror(zmq_errno()));
    send_greeting(l, s, 'H');
    return channel_watch(&l->data, err);
}

static void dial_attempt(zmq_link *l)
{
    if (dial_open(l, NULL) != PL_OK) dial_again(l);
}

static pl_status net_dial(pl_net *base, const char *address, const pl_key *server, uint64_t timeout_ns, void *tag,
                          pl_link **out, pl_error *err)
{
    zmq_net *n = net_of(base);
    *out = NULL;
    if (!server != !n->encrypted)
        return pl_fail(err, PL_ERR_INVALID, "%s: %s", address,
                       server ? "a server key on a net without a key" : "no server key on a net with a key");
    zmq_link *l = link_new(n);
    if (!l || !(l->dialed = pl_strdup(address))) {
        if (l) link_free(l);
        return pl_fail(err, PL_ERR_NO_MEMORY, "%s: no memory for a link", address);
    }
    if (server) l->server = *server;
    snprintf(l->base.address, sizeof l->base.address, "%s", address);
    l->base.tag = tag;
    link_insert(n, l);
    pl_status s = dial_open(l, err);
    if (s == PL_OK) s = pl_timer_start(n->loop, timeout_ns, 0, on_dial_timeout, l, &l->timeout, err);
    if (s != PL_OK) {
        enter(n);
        link_retire(l, 0);
        leave(n);
        return s;
    }
    *out = &l->base;
    return PL_OK;
}

/* Listening */

static zmq_link *find_link(const zmq_net *n, const zmq_msg_t *id)
{
    uint64_t value;
    pl_str key = {(const char *)frame_bytes(id), zmq_msg_size((zmq_msg_t *)(uintptr_t)id)};
    return pl_map_get(&n->by_id, key, &value) ? (zmq_link *)(uintptr_t)value : NULL;
}

static bool lose(zmq_net *n, int fd)
{
    for (zmq_link *l = n->links; l; l = l->next)
        if (l->accepted && l->state == UP && l->fd == fd) {
            l->state = LOST;
            n->n_lost++;
            n->reads_until_lost = 2 * (RECEIVE_QUEUE + 1) * (int64_t)(n->n_accepted + 1);
            return true;
        }
    return false;
}

static bool read_router_monitor(channel *ch)
{
    uint16_t event;
    int32_t value = 0;
    if (!read_event(ch, &event, &value)) return false;
    if (event == ZMQ_EVENT_DISCONNECTED && lose(ch->net, value)) want_turn(&ch->net->router);
    return true;
}

/* Ends links whose connection is gone, when all that arrived was read. */
static void lost_down(zmq_net *n)
{
    while (n->n_lost > 0) {
        zmq_link *l = n->links;
        while (l && l->state != LOST) l = l->next;
        if (!l) break;
        link_down(l, PL_ERR_CLOSED, "the connection ended");
    }
}

/* Says goodbye to somebody who is not let in and has no link. */
static void turn_away(zmq_net *n, const zmq_msg_t *id, bye_reason reason)
{
    uint8_t bytes[2] = {'B', (uint8_t)reason};
    if (zmq_send(n->router.socket, frame_bytes(id), zmq_msg_size((zmq_msg_t *)(uintptr_t)id),
                 ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0)
        return;
    zmq_send(n->router.socket, bytes, sizeof bytes, ZMQ_DONTWAIT);
}

/* 'H' from an identity that has no link. */
static void accept_link(zmq_net *n, frames *m)
{
    const uint8_t *control = frame_bytes(&m->f[1]);
    size_t id_size = zmq_msg_size(&m->f[0]);
    if (m->n != 2 || zmq_msg_size(&m->f[1]) != HELLO_SIZE || control[0] != 'H' || control[1] != LINK_VERSION ||
        id_size > 255) {
        turn_away(n, &m->f[0], BYE_FORMAT);
        return;
    }
    pl_key peer;
    memcpy(peer.b, control + 2, PL_KEY_SIZE);
    const char *fd = zmq_msg_gets(&m->f[1], "__fd"), *from = zmq_msg_gets(&m->f[1], "Peer-Address");
    if (n->encrypted && n->inproc && !(n->allowed && n->allowed(n->allowed_user, &peer))) {
        turn_away(n, &m->f[0], BYE_AUTH);
        return;
    }
    if (n->encrypted && !n->inproc) {
        const char *user = zmq_msg_gets(&m->f[1], "User-Id");
        if (!user || pl_key_parse(&peer, pl_str_from(user), NULL) != PL_OK) return; /* no ZAP, no entry */
    }
    if (!n->encrypted) memset(&peer, 0, sizeof peer);
    zmq_link *l = n->n_accepted < n->limits.links_max ? link_new(n) : NULL;
    if (!l) {
        turn_away(n, &m->f[0], BYE_FULL);
        return;
    }
    l->accepted = true;
    memcpy(l->id, frame_bytes(&m->f[0]), id_size);
    l->id_size = id_size;
    if (!pl_map_set(&n->by_id, (pl_str){(const char *)l->id, id_size}, (uint64_t)(uintptr_t)l)) {
        link_free(l);
        turn_away(n, &m->f[0], BYE_FULL);
        return;
    }
    if (fd) l->fd = (int)strtol(fd, NULL, 10);
    l->base.peer = peer;
    if (n->inproc)
        snprintf(l->base.address, sizeof l->base.address, "%s", n->address);
    else
        snprintf(l->base.address, sizeof l->base.address, "tcp://%s", from ? from : "?");
    l->state = UP;
    n->n_accepted++;
    link_insert(n, l);
    send_greeting(l, n->router.socket, 'W');
    n->events.up(n->user, &l->base, true);
}

static bool read_router(channel *ch)
{
    zmq_net *n = ch->net;
    frames m;
    if (!frames_receive(&m, ch->socket)) {
        lost_down(n);
        return false;
    }
    if (n->n_lost > 0 && --n->reads_until_lost <= 0) lost_down(n);
    if (m.n >= 2) {
        zmq_link *l = find_link(n, &m.f[0]);
        bool hello = zmq_msg_size(&m.f[1]) >= 1 && frame_bytes(&m.f[1])[0] == 'H';
        if (hello) {
            /* All that the monitor knows of descriptors is older than this. */
            while (read_router_monitor(&n->monitor)) {}
            if (l) link_down(l, PL_ERR_CLOSED, "the peer began a new link");
            accept_link(n, &m);
        } else if (l) {
            link_receive(l, &m, 1);
        }
        /* Anything else comes from a link that was closed here, and was under way meanwhile. */
    }
    frames_close(&m);
    return true;
}

static bool read_zap(channel *ch)
{
    zmq_net *n = ch->net;
    frame f[3]; /* asker, request, key */
    int frames_read = receive_small(ch->socket, f, 3, ZMQ_DONTWAIT);
    if (frames_read < 0) return false;
    if (frames_read != 3 || f[2].size != PL_KEY_SIZE) return true;
    pl_key key;
    memcpy(key.b, f[2].bytes, PL_KEY_SIZE);
    uint8_t yes = n->allowed && n->allowed(n->allowed_user, &key);
    zmq_send(ch->socket, f[0].bytes, f[0].size, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    zmq_send(ch->socket, f[1].bytes, f[1].size, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    zmq_send(ch->socket, f[2].bytes, f[2].size, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    zmq_send(ch->socket, &yes, 1, ZMQ_DONTWAIT);
    return true;
}

static pl_status zap_connect(zmq_net *n, pl_error *err)
{
    void *s = n->zap.socket = zmq_socket(shared.context, ZMQ_DEALER);
    if (!s || zmq_setsockopt(s, ZMQ_ROUTING_ID, n->domain, strlen(n->domain)) != 0 || !set_int(s, ZMQ_LINGER, 0) ||
        zmq_connect(s, ZAP_BACK) != 0)
        return pl_fail(err, PL_ERR_IO, "no handler for keys: %s", zmq_strerror(zmq_errno()));
    n->zap.read = read_zap;
    return channel_watch(&n->zap, err);
}

static pl_status router_open(zmq_net *n, const char *address, pl_error *err)
{
    void *s = n->router.socket = zmq_socket(shared.context, ZMQ_ROUTER);
    if (!s) return pl_fail(err, PL_ERR_IO, "%s: no socket: %s", address, zmq_strerror(zmq_errno()));
    bool ok = set_common(n, s) && set_int(s, ZMQ_ROUTER_MANDATORY, 1) && set_int(s, ZMQ_BACKLOG, 1024);
    if (ok && n->encrypted)
        ok = set_int(s, ZMQ_CURVE_SERVER, 1) && zmq_setsockopt(s, ZMQ_CURVE_SECRETKEY, n->secret.b, PL_KEY_SIZE) == 0 &&
             zmq_setsockopt(s, ZMQ_ZAP_DOMAIN, n->domain, strlen(n->domain)) == 0;
    if (!ok) return pl_fail(err, PL_ERR_IO, "%s: socket options: %s", address, zmq_strerror(zmq_errno()));
    n->router.read = read_router;
    n->monitor.read = read_router_monitor;
    if (n->encrypted && !n->inproc) PL_TRY(zap_connect(n, err));
    PL_TRY(monitor_open(&n->monitor, s, "router", ZMQ_EVENT_DISCONNECTED, err));
    if (zmq_bind(s, address) != 0) {
        int e = zmq_errno();
        return pl_fail(err, e == EINVAL || e == EPROTONOSUPPORT || e == ENODEV ? PL_ERR_INVALID : PL_ERR_IO, "%s: %s",
                       address, zmq_strerror(e));
    }
    char bound[1024];
    size_t size = sizeof bound;
    if (zmq_getsockopt(s, ZMQ_LAST_ENDPOINT, bound, &size) != 0)
        return pl_fail(err, PL_ERR_IO, "%s: %s", address, zmq_strerror(zmq_errno()));
    if (!(n->address = pl_strdup(bound))) return pl_fail(err, PL_ERR_NO_MEMORY, "%s: no memory", address);
    return channel_watch(&n->router, err);
}

static void router_close(zmq_net *n, int linger_ms)
{
    if (n->router.socket) zmq_socket_monitor(n->router.socket, NULL, 0);
    channel_close(&n->monitor, 0);
    channel_close(&n->router, linger_ms);
    channel_close(&n->zap, 0);
    pl_free(n->address);
    n->address = NULL;
}

static pl_status net_listen(pl_net *base, const char *address, pl_error *err)
{
    zmq_net *n = net_of(base);
    if (n->router.socket)
        return pl_fail(err, PL_ERR_INVALID, "%s: this net listens on %s already", address, n->address);
    n->inproc = strncmp(address, "inproc://", 9) == 0;
    if (!n->inproc && strncmp(address, "tcp://", 6) != 0)
        return pl_fail(err, PL_ERR_INVALID, "%s: not an address of the form tcp://host:port", address);
    pl_status s = router_open(n, address, err);
    if (s != PL_OK) router_close(n, 0);
    return s;
}

static const char *net_address(pl_net *n)
{
    return net_of(n)->address ? net_of(n)->address : "";
}

static pl_part *net_buffer(pl_net *n, size_t size)
{
    (void)n;
    return pl_part_new(size);
}

static void net_free(pl_net *base)
{
    zmq_net *n = net_of(base);
    PL_ASSERT(n->depth == 0); /* not from a callback of its own */
    while (n->links) link_close(&n->links->base);
    router_close(n, LINGER_MS);
    pl_timer_stop(n->loop, n->turn);
    pl_map_fini(&n->by_id);
    explicit_bzero(&n->secret, sizeof n->secret);
    pl_free(n);
    context_release();
}

static const pl_net_vt net_vt = {.free = net_free,
                                 .listen = net_listen,
                                 .address = net_address,
                                 .dial = net_dial,
                                 .buffer = net_buffer,
                                 .send = link_send,
                                 .close = link_close};

pl_status pl_net_zmq_new(pl_net **out, pl_loop *loop, const pl_zmq_options *options, const pl_net_events *events,
                         void *user, pl_error *err)
{
    *out = NULL;
    if (options && options->secret_key && !zmq_has("curve"))
        return pl_fail(err, PL_ERR_UNSUPPORTED, "this libzmq has no CURVE encryption");
    zmq_net *n = pl_calloc(1, sizeof *n);
    if (!n) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for a net");
    n->base.vt = &net_vt;
    n->loop = loop;
    n->events = *events;
    n->user = user;
    n->router.net = n->monitor.net = n->zap.net = n;
    if (options) {
        n->encrypted = options->secret_key != NULL;
        if (n->encrypted) n->secret = *options->secret_key;
        n->allowed = options->allowed;
        n->allowed_user = options->allowed_user;
        n->limits = options->limits;
    }
    n->limits = pl_net_limits_or_default(n->limits);
    pl_status s = PL_OK;
    if (n->encrypted) s = pl_key_public_of(&n->base.self, &n->secret, err);
    if (s == PL_OK && n->encrypted && options->public_key && !pl_key_eq(options->public_key, &n->base.self))
        s = pl_fail(err, PL_ERR_INVALID, "the public key does not belong to the secret key");
    uint64_t number = 0;
    if (s == PL_OK) s = context_acquire(n->encrypted, &number, err);
    if (s != PL_OK) {
        explicit_bzero(&n->secret, sizeof n->secret);
        pl_free(n);
        return s;
    }
    snprintf(n->domain, sizeof n->domain, "net-%llu", (unsigned long long)number);
    *out = &n->base;
    return PL_OK;
}
