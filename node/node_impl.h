/* Inside the node. One struct pl_node; one node_peer per link; one node_stage per epoch that still has something to do.
 *
 * A node_stage outlives its epoch by the answers that the compute still owes it: a run reads the frame's memory, a
 * lookup writes into arrays. So a new Load only detaches the old stage (over = true), and the last answer frees it. At
 * most one stage is not over.
 *
 * Who owns what: node.c peers, the coordinator, the lease and leaving; stage.c the way of one epoch from Load to Ready
 * and its end; shards.c fetching; flow.c the neighbours' links, credits and frames; budget.c the numbers; report.c the
 * timeline and statistics. */
#pragma once

#include "engine/base/rng.h"
#include "node/node.h"
#include "proto/check.h"
#include "proto/codec.h"

#include <stdio.h>

typedef struct node_peer node_peer;
typedef struct node_stage node_stage;

typedef enum {
    NODE_PEER_DIALED,      /* the coordinator, dialed, not yet up or no Hello from it yet */
    NODE_PEER_COORDINATOR, /* after its Hello */
    NODE_PEER_STRANGER,    /* accepted, has not said Hello */
    NODE_PEER_PARKED,      /* a neighbour of an epoch whose Load has not come yet */
    NODE_PEER_DATA         /* a neighbour's link of the current epoch: stage->up.peer or stage->down.peer */
} node_peer_kind;

struct node_peer {
    node_peer *prev, *next;
    pl_node *node;
    pl_link *link;
    node_peer_kind kind;
    bool connected;           /* up was called */
    bool hello_sent, greeted; /* greeted: its Hello has come */
    bool doomed;              /* sending failed: the next tick ends it */
    bool link_dead;           /* the net ended it: there is nothing to close */
    pl_error why;             /* of doomed */
    uint64_t since_ns, heard_ns;
    uint64_t beats, echo_ns, echo_at_ns;
    /* PARKED */
    Paceline__Hello__Role role;
    uint64_t epoch;
};

/* One side of a stage: where frames come from or go to. On the outer ends it is the coordinator's link. */
typedef struct node_side {
    bool outer; /* the coordinator */
    bool dial, has_key;
    pl_key key;
    char address[256];
    node_peer *peer; /* of a neighbour */
    bool up;         /* both Hellos have passed */
    pl_timer *redial;
    uint64_t redial_ns;
    int32_t credits;   /* down: frames that we may still send */
    int32_t in_flight; /* down: sent and not yet credited */
} node_side;

typedef enum { NODE_SLOT_FREE, NODE_SLOT_QUEUED, NODE_SLOT_RUNNING } node_slot_state;
#define NODE_WINDOW_MAX 64

/* A frame in this stage: at most `credits` of them, in a ring by id. */
typedef struct node_slot {
    node_stage *stage;
    node_slot_state state;
    pl_envelope frame;
    pl_part *in;  /* hidden of the stage before; NULL on the first */
    pl_part *out; /* hidden for the stage behind; NULL on the last */
    pl_micro_batch mb;
    pl_sampled *sampled;
    pl_arena arena; /* what mb points to */
    uint64_t recv_ns;
} node_slot;

/* One blob on its way into the cache. */
typedef struct node_blob {
    pl_hash hash;
    pl_type type;
    int64_t ne[4];
    uint64_t total, asked, stored; /* bytes */
    bool have;
    int tries;
} node_blob;

typedef struct node_fetch {
    node_blob *blobs;
    pl_hash *hashes; /* for lookup */
    bool *have;
    uint64_t *partial;
    size_t n, n_left; /* blobs; those that are not whole in the cache */
    size_t asking;    /* the blob that pieces are asked of now */
    size_t in_window; /* pieces asked for and not yet stored */
    struct {
        size_t blob;
        uint64_t offset;
        uint32_t size;
    } asked[NODE_WINDOW_MAX]; /* in the order of asking, a ring */
    size_t ask_first, ask_n;
    uint64_t done_bytes, total_bytes;
    uint64_t moved_ns; /* when the last piece came */
    void (*then)(node_stage *s);
} node_fetch;

typedef enum {
    NODE_PHASE_HEADER,
    NODE_PHASE_TENSORS,
    NODE_PHASE_LOAD,
    NODE_PHASE_CONNECT,
    NODE_PHASE_READY,
    NODE_PHASE_BROKEN
} node_phase;

struct node_stage {
    node_stage *next; /* of all that are not freed */
    pl_node *node;
    bool over;
    int answers_due; /* from the compute */
    uint64_t epoch;
    node_phase phase;
    pl_envelope load;
    const Paceline__Load *plan; /* in load */
    const pl_gguf *header;
    const pl_model_profile *profile;
    pl_stage_shape shape;
    pl_stage_memory memory;
    uint64_t link_bytes;
    int32_t n_embd, n_layer;
    bool first, last;
    pl_check_limits limits;
    node_fetch fetch;
    uint64_t fetched_bytes;
    uint64_t progress_ns, progress_done;
    int progress_phase; /* last reported, -1: none */
    uint64_t connect_by_ns;

    node_side up, down;
    node_slot *slots;
    int32_t n_slots;
    uint64_t next_recv, next_run; /* ids */
    bool running;
};

struct pl_node {
    pl_loop *loop;
    pl_compute *compute;
    pl_net *net;
    pl_node_options options;
    char name[128];
    char data_address[256];
    uint64_t budget, incarnation;
    pl_rng rng;

    node_peer *peers;
    size_t n_parked;
    pl_timer *tick;
    uint64_t tick_ns; /* when it last came */
    uint64_t heartbeat_ns, dead_after_ns, lease_ns;

    /* The coordinator that we belong to. known: since its Hello, until the lease is over. */
    struct {
        bool known, welcomed;
        node_peer *peer;
        pl_key key;
        char name[128];
        uint64_t incarnation;
        uint32_t node_id;
    } coordinator;
    bool (*allowed)(void *user, const pl_key *key);
    void *allowed_user;
    bool joins, join_has_key;
    char join_address[256];
    pl_key join_key;
    pl_timer *redial, *lease;
    uint64_t redial_ns;

    uint64_t epoch_max; /* of this coordinator's incarnation */
    node_stage *stage;  /* the one that is not over, or NULL */
    node_stage *stages; /* all */
    uint64_t
        loaded_bytes; /* what the compute holds, and link buffers: from load until the next open_header or unload */

    bool leaving, left;
    void (*leave_done)(void *user);
    void *leave_user;
    pl_timer *leave_timer;

    pl_envelope scratch; /* of the message being handled */
    FILE *trace;
    uint64_t frames, rows, busy_ns, stale_frames, bytes_in, bytes_out;
};

/* node.c. Sends m in the envelope of epoch, with part (taken; NULL for none) behind it. A link that does not take it is
 * ended by the next tick, so that no caller loses the peer it is working on. */
void node_send(node_peer *p, uint64_t epoch, Paceline__Envelope *m, pl_part *part);
/* Failure to the peer. */
void node_send_failure(node_peer *p, uint64_t epoch, const pl_error *err);
node_peer *node_peer_new(pl_node *n, pl_link *link, node_peer_kind kind);
/* Closes the link and forgets the peer, without a word to whoever uses it. */
void node_peer_drop(node_peer *p);
void node_send_hello(node_peer *p, Paceline__Hello__Role role, uint64_t epoch);
bool node_has_coordinator(const pl_node *n);

/* stage.c */
void node_stage_load(pl_node *n, pl_envelope *load); /* takes over *load */
/* Says Failure to the coordinator; the epoch is over for this node, which drops its frames until the next Load. */
void node_stage_fail(node_stage *s, const pl_error *err);
/* The epoch ends: links to neighbours go, weights stay in the compute. NULL is allowed. */
void node_stage_end(node_stage *s);
void node_stage_unload(pl_node *n);
/* A side has come up, or the stage has loaded: Ready when all is there. */
void node_stage_check_ready(node_stage *s);
void node_stage_progress(node_stage *s, int phase, uint64_t done, uint64_t total);
void node_stage_tick(node_stage *s);
/* Frees it when it is over and nothing is due. */
void node_stage_release(node_stage *s);
void node_stage_free(node_stage *s);

/* shards.c */
pl_status node_fetch_start(node_stage *s, const node_blob *blobs, size_t n, void (*then)(node_stage *s), pl_error *err);
void node_fetch_blob(node_stage *s, const Paceline__Blob *b, pl_part *part); /* takes part */
void node_fetch_tick(node_stage *s);
void node_fetch_fini(node_fetch *f);

/* flow.c */
pl_status node_flow_init(node_stage *s, pl_error *err);
void node_flow_take_parked(node_stage *s);
void node_flow_start(node_stage *s); /* dials the neighbours */
void node_flow_end(node_stage *s);
void node_flow_free(node_stage *s);
/* A neighbour says Hello: takes the peer or drops it. */
void node_flow_hello(node_stage *s, node_peer *p, Paceline__Hello__Role role);
void node_flow_connected(node_stage *s, node_peer *p); /* a dialed link is up */
void node_flow_lost(node_stage *s, node_peer *p,
                    const pl_error *why); /* the peer is still there, the caller drops it */
void node_flow_frame(node_stage *s, node_peer *from, pl_envelope *e, pl_msg *m); /* takes over e and m's parts */
void node_flow_credit(node_stage *s, uint32_t frames, node_peer *from);
const char *node_side_name(const node_stage *s, const node_side *side);

/* budget.c */
uint64_t node_link_bytes(int32_t credits, int32_t n_rows, int32_t n_embd, bool first, bool last);
pl_status node_budget_check(const node_stage *s, pl_error *err);
uint64_t node_memory_bytes(const pl_node *n);
uint64_t node_budget_default(void);

/* report.c */
void node_trace(pl_node *n, const node_slot *slot, uint64_t start_ns, uint64_t end_ns, uint64_t sent_ns);
void node_stats(const pl_node *n, Paceline__NodeStats *out);
/* What must always hold; NULL, or the sentence that says what does not. For the simulation. */
const char *node_invariants(const pl_node *n);
