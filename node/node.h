/* A worker: holds one stage of a pipeline at a time and runs micro-batches through it. A state machine: messages and
 * timers in, messages out.
 *
 * States of the node: no coordinator -> joined -> loading (epoch) -> ready -> … ; a coordinator lost keeps the stage
 * for its lease. Everything that computes, hashes, packs or reads a disk goes through pl_compute (compute.h), which
 * answers later on the loop; so the unmodified node runs in simulation over a fake one. Threads: the loop's thread. */
#pragma once

#include "node/compute.h"
#include "transport/link.h"

typedef struct pl_node pl_node;

typedef struct pl_node_options {
    const char *name;         /* NULL: the host's name */
    uint64_t budget_bytes;    /* 0: what the system has available now, less a tenth */
    const char *data_address; /* advertised to neighbours; NULL: the net's own */
    uint64_t seed;            /* of its incarnation; 0: from the system */
    uint64_t redial_ns;       /* pause between tries to reach its coordinator, doubling to 16x; 0: 250 ms */
    size_t blob_window;       /* pieces asked for at once; 0: 4 */
    size_t blob_bytes;        /* per piece; 0: 256 KiB: small enough that a heartbeat is never long behind one */
    const char *trace_path;   /* its timeline, one JSON object per micro-batch; NULL: none */
} pl_node_options;

/* compute and loop are borrowed. Then make a net with pl_node_net_events and the node as its user, and start. */
PL_MUST_CHECK pl_status pl_node_new(pl_node **out, pl_loop *loop, pl_compute *compute, const pl_node_options *options,
                                    pl_error *err);
extern const pl_net_events pl_node_net_events;
/* net is borrowed until pl_node_free; it listens already. */
void pl_node_start(pl_node *n, pl_net *net);
/* Dials this coordinator, now and whenever the link is lost, until pl_node_free. */
PL_MUST_CHECK pl_status pl_node_join(pl_node *n, const char *address, const pl_key *coordinator, pl_error *err);
/* Whose Hello is obeyed when a coordinator dials us: asked with its key; NULL: any that the net lets in. */
void pl_node_set_coordinator_check(pl_node *n, bool (*allowed)(void *user, const pl_key *key), void *user);
/* Whether the running plan names this key as a neighbour's: for pl_zmq_options.allowed, beside the peers that are
 * always let in. */
bool pl_node_expects(const pl_node *n, const pl_key *key);
/* Says Leave, finishes what is in flight, then calls done once. */
void pl_node_leave(pl_node *n, void (*done)(void *user), void *user);
void pl_node_free(pl_node *n);

typedef struct pl_node_report {
    const char *state; /* "alone", "joined", "loading", "ready", "leaving" */
    uint64_t epoch;
    int32_t layer_first, layer_end;
    uint64_t frames, rows, busy_ns, memory_bytes, stale_frames;
    uint64_t fetch_done_bytes, fetch_total_bytes; /* of the tensors that are being fetched; 0, 0 when none are */
} pl_node_report;
void pl_node_get_report(const pl_node *n, pl_node_report *out);
