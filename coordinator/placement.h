/* Which node computes which layers: the best split of a model over nodes, under every node's memory.
 *
 * Exact for up to PL_PLACE_NODES_MAX nodes: dynamic programming over (set of nodes used, layers covered). Of more nodes
 * the ones with the largest budgets are considered, faster ones first among equals.
 *
 * The prediction is for one decoding step of `rows` rows (1 for latency; half the slots for throughput, as requests are
 * spread over the micro-batches in flight). A unit (a layer, or the head) takes the longer of reading its weights and
 * multiplying rows by them. latency:    sum over stages of compute, hop and transfer throughput: the slowest stage,
 * where a stage takes the longer of its compute and its incoming transfer More nodes have to be better than fewer by
 * more than PL_PLACE_MARGIN, which is what such a prediction is worth. Among equally good splits of one size the
 * smaller sum wins.
 *
 * Threads: pure functions. */
#pragma once

#include "engine/base/buf.h"
#include "engine/model/profile.h"

#define PL_PLACE_NODES_MAX  12
#define PL_PLACE_MARGIN     0.02
#define PL_PLACE_ROWS_MIN   32 /* a micro-batch is not made smaller than this to save memory: prompts would crawl */
#define PL_PLACE_BLOCKS_MIN 16 /* nor the KV cache than this (512 positions) */

typedef enum pl_objective { PL_OBJECTIVE_AUTO, PL_OBJECTIVE_LATENCY, PL_OBJECTIVE_THROUGHPUT } pl_objective;

/* What a node can do. Rates that are not positive numbers are unknown: the slowest known one, else a modest guess,
 * stands for them. */
typedef struct pl_place_node {
    const char *name;
    uint64_t budget_bytes;
    int32_t n_threads;
    double read_bytes_s; /* weight bytes when decoding */
    double macs_s;       /* multiply-adds in prompts */
    double hop_s;        /* what its place in the pipeline adds to a step on the network */
    double net_bytes_s;  /* into the node */
} pl_place_node;

/* The model as numbers, so that tests can make one up. */
typedef struct pl_place_model {
    int32_t n_layer, n_embd;
    const uint64_t *unit_bytes; /* [n_layer + 1]: read per step; the last is the head */
    const uint64_t *unit_macs;  /* [n_layer + 1]: per row */
    /* Bytes of a stage. A range within another never needs more. */
    pl_stage_memory (*memory)(const void *user, const pl_stage_shape *shape);
    const void *user;
} pl_place_model;

typedef struct pl_place_want {
    pl_objective objective; /* not AUTO */
    int32_t n_ctx, n_seqs, credits;
    int32_t n_slots; /* sequences that stages may have open; 0: n_seqs */
    pl_cache_types cache;
    int32_t n_blocks, n_rows; /* as wished */
    int32_t n_stages; /* exactly so many (or as many as there are nodes), if that fits; 0: as many as are best */
    bool fixed_blocks, fixed_rows; /* the user said so: never reduced */
} pl_place_want;

typedef struct pl_place_stage {
    int32_t node; /* its place in the nodes given */
    int32_t layer_first, layer_end;
    pl_stage_memory memory;
    uint64_t link_bytes;
    double step_s; /* compute of one step */
} pl_place_stage;

typedef struct pl_placement {
    pl_place_stage stages[PL_PLACE_NODES_MAX];
    int32_t n_stages;
    pl_objective objective;
    int32_t n_blocks, n_rows; /* as chosen */
    double cost_s;            /* by the objective */
    double step_s;            /* sum over stages, hops and transfers: one stream's time per token */
    double slowest_s;         /* of the stages */
    int32_t alone;            /* the best node to do everything by itself; -1: none can */
    double alone_s;           /* its cost */
    int32_t n_split;          /* stages of the best split over at least two; 0: there is none */
    double split_s;           /* its cost */
} pl_placement;

/* Buffers of a stage's links: credits micro-batches on either side. */
uint64_t pl_place_link_bytes(int32_t n_embd, int32_t n_rows, int32_t credits, bool upstream, bool downstream);
static inline uint64_t pl_place_stage_bytes(const pl_place_stage *s)
{
    return s->memory.weights + s->memory.kv + s->memory.compute + s->link_bytes;
}

/* PL_ERR_BUDGET: err has the table of what is short. PL_ERR_NO_MEMORY. */
PL_MUST_CHECK pl_status pl_place(pl_placement *out, const pl_place_model *model, const pl_place_node *nodes,
                                 int32_t n_nodes, const pl_place_want *want, pl_error *err);

/* Appends the table for people and, below it, the reason. */
PL_MUST_CHECK pl_status pl_place_text(const pl_placement *p, const pl_place_model *model, const pl_place_node *nodes,
                                      int32_t n_nodes, const pl_place_want *want, pl_buf *out, pl_error *err);
