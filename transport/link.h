/* Links: connections between two processes, each with one peer, messages in order, whole or not at all.
 *
 * A pl_net is one process's end: it may listen, and it dials. Either way a connection is a pl_link, from "up" to
 * "down"; a peer that comes back is a new link. Implementations: zmq.c (ROUTER for those who dial us, a DEALER per peer
 * that we dial, CURVE), sim.c (virtual), later RDMA. One contract suite runs over all of them. Threads: the loop's
 * thread. */
#pragma once

#include "transport/loop.h"
#include "transport/msg.h"

#define PL_KEY_SIZE 32
typedef struct pl_key {
    uint8_t b[PL_KEY_SIZE];
} pl_key; /* a CURVE public or secret key */

typedef struct pl_net pl_net;
typedef struct pl_link pl_link;

typedef struct pl_net_events {
    /* A peer that dialed us (accepted true) or that we reached. Its key is authenticated. A link that was accepted is
     * up with its first message. */
    void (*up)(void *user, pl_link *link, bool accepted);
    /* m is the callee's. */
    void (*message)(void *user, pl_link *link, pl_msg *m);
    /* The link is gone; its pointer is dead when this returns. Also called when dialing did not succeed within its
     * time. Not called after pl_link_close. */
    void (*down)(void *user, pl_link *link, const pl_error *why);
} pl_net_events;

typedef struct pl_net_limits {
    size_t header_bytes_max; /* of one message's header; 0: 4 MiB (a plan that lists every tensor of a large model) */
    size_t part_bytes_max;   /* of one part; 0: 256 MiB */
    int queue_msgs_max;      /* waiting to be sent on one link; 0: 1000. Beyond it pl_link_send gives PL_ERR_TIMEOUT */
    int links_max;           /* accepted links at once; 0: 1024 */
} pl_net_limits;

typedef struct pl_net_vt {
    void (*free)(pl_net *n);
    pl_status (*listen)(pl_net *n, const char *address, pl_error *err);
    const char *(*address)(pl_net *n);
    pl_status (*dial)(pl_net *n, const char *address, const pl_key *server, uint64_t timeout_ns, void *tag,
                      pl_link **out, pl_error *err);
    pl_part *(*buffer)(pl_net *n, size_t size);
    pl_status (*send)(pl_link *l, pl_msg **m, pl_error *err);
    void (*close)(pl_link *l);
} pl_net_vt;

struct pl_net {
    const pl_net_vt *vt;
    pl_key self; /* public */
};
struct pl_link {
    pl_net *net;
    pl_key peer;      /* public key, authenticated (all zero on an unencrypted net) */
    char address[64]; /* "tcp://host:port" that was dialed, or the host it came from ("tcp://10.0.0.7") */
    void *tag;        /* the user's, as given to dial; NULL on accepted links until set */
    int queued;       /* messages handed to pl_link_send and not yet to the system, where the implementation knows */
};

/* Binds "tcp://host:port" (port 0 or * picks one), "inproc://name". Once per net. */
PL_MUST_CHECK static inline pl_status pl_net_listen(pl_net *n, const char *address, pl_error *err)
{
    return n->vt->listen(n, address, err);
}
/* What others can dial, with the real port; "" when not listening. */
static inline const char *pl_net_address(pl_net *n)
{
    return n->vt->address(n);
}
/* Starts to dial; `up` or `down` follows. server: the public key that the other end must have (NULL on an unencrypted
 * net). */
PL_MUST_CHECK static inline pl_status pl_link_dial(pl_net *n, const char *address, const pl_key *server,
                                                   uint64_t timeout_ns, void *tag, pl_link **out, pl_error *err)
{
    return n->vt->dial(n, address, server, timeout_ns, tag, out, err);
}
/* A buffer that can be sent without a copy. NULL when there is no memory. */
static inline pl_part *pl_net_buffer(pl_net *n, size_t size)
{
    return n->vt->buffer(n, size);
}
/* Hands *m over: NULL on success, untouched on failure. Never blocks. What its parts point to is not changed any more
 * by anybody. PL_ERR_CLOSED: not up (yet); PL_ERR_TIMEOUT: the queue is full; PL_ERR_INVALID: above this end's own
 * limits. A message above the limits of the other end ends the link there, unseen. */
PL_MUST_CHECK static inline pl_status pl_link_send(pl_link *l, pl_msg **m, pl_error *err)
{
    return l->net->vt->send(l, m, err);
}
/* Ends the link without a word to its events. The other end sees `down`, after what was sent before. Allowed in every
 * callback. */
static inline void pl_link_close(pl_link *l)
{
    if (l) l->net->vt->close(l);
}
/* Closes its links too. Not from one of its own callbacks. */
static inline void pl_net_free(pl_net *n)
{
    if (n) n->vt->free(n);
}

/* ZeroMQ. public_key may be NULL: it follows from the secret. allowed is asked on the loop's thread. secret NULL: no
 * encryption (loopback and tests). allowed: asked for each peer that dials, with its public key; NULL allows nobody but
 * an unencrypted net's peers. A peer that is refused gets nowhere: its messages are never seen. Nets of one process
 * share a context, so inproc works between them. */
typedef struct pl_zmq_options {
    const pl_key *public_key, *secret_key;
    bool (*allowed)(void *user, const pl_key *peer);
    void *allowed_user;
    pl_net_limits limits;
} pl_zmq_options;
PL_MUST_CHECK pl_status pl_net_zmq_new(pl_net **out, pl_loop *loop, const pl_zmq_options *options,
                                       const pl_net_events *events, void *user, pl_error *err);
