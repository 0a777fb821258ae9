/* A process of the virtual world that does what a test tells it: it plays a coordinator or a neighbour, keeps every
 * message that comes, and may answer some by itself. */
#pragma once

#include "proto/codec.h"
#include "tests/sim/fixture.h"
#include "transport/envelope.h"
#include "transport/sim.h"

typedef struct actor_message {
    pl_link *link;
    pl_envelope e;
    pl_msg *m;
} actor_message;

typedef struct actor actor;
struct actor {
    pl_sim *sim;
    pl_sim_process *process;
    pl_net *net;
    pl_key key;
    pl_link *link; /* the newest that came up */
    int n_up, n_down;
    pl_error down_why;
    actor_message *log; /* all messages but heartbeats, oldest first */
    size_t n_log, n_taken, cap_log;
    int n_heartbeats;
    Paceline__NodeStats stats; /* of the last one */
    /* Answers BlobGet from this model; NULL: does not. */
    const sim_model *serve;
    uint64_t bytes_served;
    bool corrupt_blobs;
    /* Sends a heartbeat so often while the link is up and it has said Hello; 0: never. */
    bool said_hello;
    uint64_t heartbeat_ns;
    pl_timer *beat;
};

/* name is also its address, sim://name. */
void actor_init(actor *a, pl_sim *sim, const char *name, const pl_key *key);
void actor_fini(actor *a);
void actor_dial(actor *a, const char *address, const pl_key *server);
/* m is packed as it is, checked by nobody. part is taken. */
void actor_send(actor *a, pl_link *link, uint64_t epoch, Paceline__Envelope *m, pl_part *part);
/* Runs the world until a message of this kind has come that was not taken before, at most limit_ns; what came before it
 * counts as taken too. NULL when none came. The result lasts until actor_forget. */
const actor_message *actor_take(actor *a, Paceline__Envelope__BodyCase kind, uint64_t limit_ns);
/* Whether such a message is in the log now. */
bool actor_has(const actor *a, Paceline__Envelope__BodyCase kind);
void actor_forget(actor *a);

#define ENVELOPE(field_case, field_name, value)                                                                        \
    (&(Paceline__Envelope){PROTOBUF_C_MESSAGE_INIT(&paceline__envelope__descriptor),                                   \
                           .body_case = PACELINE__ENVELOPE__BODY_##field_case, .field_name = (value)})
