/* Inside the coordinator. One struct pl_coordinator; one member per link to a node, from dialing or accepting to its
 * end; one pipeline at a time.
 *
 * Who owns what: members.c links, Hello, heartbeats, redialing; pipeline.c the plan, the way of an epoch from Load to
 * Ready, frames and results, and when there is a new one; scheduler.c requests; catalog.c the blobs that nodes fetch;
 * status.c what people see; coordinator.c the public face.
 *
 * A link ends in one place, member_end. Sending never ends one: a member whose link does not take a message is doomed,
 * and the next pump ends it. So whoever walks over members or stages may send.
 *
 * What happens next is decided in one place too, coordinator_pump, which runs soon after anything changed and at each
 * tick: doomed members end, a due plan is made, requests that waited too long are told, frames are sent, callbacks run.
 */
#pragma once

#include "coordinator/coordinator.h"
#include "coordinator/placement.h"
#include "coordinator/scheduler.h"
#include "engine/base/rng.h"
#include "transport/envelope.h"

#define PL_MS     UINT64_C(1000000)
#define PL_SECOND (1000 * PL_MS)
#define PL_NEVER  UINT64_MAX

#define PL_MEMBERS_MAX 256 /* links to nodes at once: far more than a pipeline uses, far less than memory holds */

typedef struct pl_member pl_member;
typedef struct pl_target pl_target;

typedef enum {
    PL_MEMBER_DIALING, /* not up yet */
    PL_MEMBER_HELLO,   /* up; its Hello has not come */
    PL_MEMBER_JOINED,
    PL_MEMBER_REFUSED /* told why; the link ends soon, so that the word can arrive */
} pl_member_state;

struct pl_member {
    pl_member *prev, *next; /* by id, so that plans do not depend on addresses of memory */
    pl_coordinator *c;
    pl_link *link;
    pl_target *target; /* that was dialed; NULL: it dialed us */
    pl_member_state state;
    uint32_t id;
    bool doomed, leaving, link_dead; /* link_dead: its `down` is being handled */
    pl_error why;                    /* of doomed */
    uint64_t since_ns, heard_ns;

    /* Of its Hello. */
    char name[257], address[257], version[65], isa[65], profile[65];
    uint64_t incarnation, budget_bytes, known_checksum;
    int32_t n_threads;
    double read_bytes_s, macs_s;

    uint64_t beats, echo_ns, echo_at_ns;
    uint64_t rtt_ns; /* smoothed; 0: not measured yet */
    uint64_t frames, rows, busy_ns, memory_bytes;
    uint64_t busy_from_ns, busy_at_ns; /* the window of busy_share */
    double busy_share;
    uint64_t served_bytes; /* of blobs */

    uint64_t epoch; /* of the last Load that it was sent and that was not taken back; 0: none */
    uint32_t failures;
    bool hopeless; /* its last failure will not go away by trying again */
    uint64_t excluded_until_ns;
    pl_error last_failure;
};

struct pl_target {
    pl_target *next;
    char address[257];
    pl_key key;
    bool has_key;
    pl_member *member; /* while dialed or connected */
    uint64_t next_dial_ns, pause_ns;
};

typedef enum { PL_PIPELINE_DOWN, PL_PIPELINE_LOADING, PL_PIPELINE_UP } pl_pipeline_state;

typedef struct pl_pipeline_stage {
    pl_member *member;
    bool ready;
    Paceline__Progress__Phase phase;
    uint64_t done_bytes, total_bytes;
    uint64_t moved_ns; /* last sign of progress */
    uint64_t fetched_bytes;
} pl_pipeline_stage;

typedef struct pl_pipeline {
    pl_pipeline_state state;
    uint64_t epoch;
    pl_placement plan;
    pl_place_node nodes[PL_PLACE_NODES_MAX]; /* of the stages, as they were when planned; names point into `names` */
    char names[PL_PLACE_NODES_MAX][257];
    pl_buf plan_text;
    pl_pipeline_stage stages[PL_PLACE_NODES_MAX];
    int32_t n_stages;
    int32_t credits; /* frames that the first stage still takes */
    int32_t groups;
    uint64_t since_ns; /* of the state */
    uint64_t n_results;
} pl_pipeline;

typedef struct pl_blob {
    pl_hash hash;
    const uint8_t *data;
    uint64_t size;
} pl_blob;

typedef struct pl_catalog {
    pl_buf header;
    pl_hash header_hash;
    pl_blob *blobs; /* sorted by hash */
    size_t n;
    uint64_t served_bytes;
} pl_catalog;

enum { PL_RATE_SAMPLES = 32 };

struct pl_coordinator {
    pl_loop *loop;
    pl_net *net;
    pl_coordinator_model model;
    pl_coordinator_options options; /* defaults filled in */
    pl_rng rng;
    uint64_t incarnation;
    pl_check_limits limits;
    pl_place_model place_model;
    uint64_t *unit_bytes, *unit_macs;
    pl_catalog catalog;
    pl_scheduler sched;

    pl_member *members;
    int32_t n_members;
    uint32_t next_member;
    pl_target *targets;

    pl_pipeline pipeline;
    uint64_t plan_at_ns;     /* when to plan; PL_NEVER: not due */
    uint64_t settle_from_ns; /* first join of those that are waited for; PL_NEVER: none */
    uint64_t last_epoch;
    bool fixed_blocks, fixed_rows; /* the user said so */
    bool planned;                  /* once at least, so min_nodes is done with */
    bool unplaced;                 /* the last plan does not fit; down_why says what is short */
    uint64_t unplaced_since_ns;
    bool reconsider; /* nodes came since the plan: look for a better one when idle */
    uint64_t reconsider_at_ns;
    uint32_t tries; /* epochs that failed in a row */
    bool flip_dial; /* neighbours could not reach each other: the other end dials next time */
    pl_error down_why;

    pl_timer *tick, *soon;
    uint64_t tick_ns;
    bool changed;
    void (*on_change)(void *user);
    void *on_change_user;

    struct {
        uint64_t at_ns, n;
    } rate[PL_RATE_SAMPLES]; /* tokens emitted, at ticks */
    uint32_t rate_at;

    pl_envelope scratch; /* of the message being handled */
    pl_arena step;       /* of the frame being sent */
    bool stopping;
};

/* coordinator.c */
void coordinator_pump(pl_coordinator *c);
/* Has the pump run soon, from the loop. */
void coordinator_soon(pl_coordinator *c);
void coordinator_changed(pl_coordinator *c);

/* members.c */
void members_start(pl_coordinator *c);
void members_tick(pl_coordinator *c);
void members_reap(pl_coordinator *c); /* ends those that are doomed */
void members_free(pl_coordinator *c);
PL_MUST_CHECK pl_status members_add_target(pl_coordinator *c, const char *address, const pl_key *key, pl_error *err);
void members_hello(pl_member *m, const Paceline__Hello *h);
void members_heartbeat(pl_member *m, const Paceline__Heartbeat *h);
/* In the envelope of epoch, with part (taken; NULL for none) behind it. */
void member_send(pl_member *m, uint64_t epoch, Paceline__Envelope *e, pl_part *part);
void member_send_failure(pl_member *m, uint64_t epoch, const pl_error *err);
/* Tells the node what is wrong with it, and has no more to do with it. */
void member_refuse(pl_member *m, const pl_error *err);
bool member_usable(const pl_member *m);

/* pipeline.c */
void pipeline_joined(pl_coordinator *c);
void pipeline_lost(pl_coordinator *c, pl_member *m, const pl_error *why); /* m is about to go */
void pipeline_leave(pl_member *m);
void pipeline_progress(pl_member *m, const Paceline__Progress *p);
void pipeline_ready(pl_member *m, const Paceline__Ready *r);
void pipeline_moved(pl_member *m); /* it fetches, so it lives */
void pipeline_failure(pl_member *m, const pl_error *err);
void pipeline_link_state(pl_member *m, const Paceline__LinkState *l);
/* PL_ERR_FORMAT: the node broke the protocol. */
PL_MUST_CHECK pl_status pipeline_credit(pl_member *m, const Paceline__Credit *credit, pl_error *err);
PL_MUST_CHECK pl_status pipeline_result(pl_member *m, const Paceline__Result *r, pl_error *err);
/* What is due: plans, timeouts, frames. */
void pipeline_run(pl_coordinator *c);
void pipeline_tick(pl_coordinator *c);
void pipeline_frames(pl_coordinator *c); /* as many as credits allow */
bool pipeline_refuses(
    const pl_coordinator *c); /* new requests: nothing here can serve them, and nothing is about to change */
void pipeline_free(pl_coordinator *c);
int32_t pipeline_stage_of(const pl_coordinator *c, const pl_member *m); /* -1: none */

/* catalog.c */
PL_MUST_CHECK pl_status catalog_open(pl_catalog *k, const pl_coordinator_model *model, pl_error *err);
void catalog_close(pl_catalog *k);
void catalog_serve(pl_catalog *k, pl_member *m, uint64_t epoch, const Paceline__BlobGet *get);

/* status.c */
double status_rate(const pl_coordinator *c);
