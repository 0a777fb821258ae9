/* A lazy graph: build once per shape class, plan its memory, run it many times.
 *
 *   pl_graph_ctx_new -> op calls -> pl_graph_build(outputs) -> pl_graph_plan -> pl_backend_compute, again and again
 *
 * The planner counts references: an intermediate's bytes are free at its last use, blocks come best fit from a free
 * list that merges, and an op that can work in place takes its dying source's bytes. The peak is known before a run.
 * Inputs keep their bytes from run to run, so only what changed has to be written; outputs are valid until the next run.
 * Threads: one at a time per graph. */
#pragma once

#include "engine/base/buf.h"
#include "engine/graph/op.h"

typedef struct pl_graph pl_graph;

PL_MUST_CHECK pl_status pl_graph_ctx_new(pl_graph_ctx **out, pl_error *err);
void pl_graph_ctx_free(pl_graph_ctx *c); /* and every tensor and graph made in it */

/* Post-order walk from the outputs, which it marks as such; products of the same x come one after the other. Fails only for lack of memory: also when an output is NULL. */
PL_MUST_CHECK pl_status pl_graph_build(pl_graph **out, pl_graph_ctx *c, pl_tensor *const *outputs, int n_outputs, pl_error *err);
int pl_graph_n_nodes(const pl_graph *g);
pl_tensor *pl_graph_node(const pl_graph *g, int i);
int pl_graph_n_leaves(const pl_graph *g);
pl_tensor *pl_graph_leaf(const pl_graph *g, int i);

/* Bytes of the intermediates (inputs and outputs included, weights not), each aligned to align. Assigns offsets; pure. */
PL_MUST_CHECK pl_status pl_graph_plan(pl_graph *g, size_t align, size_t *peak, pl_error *err);
/* Points every planned tensor into base, which has at least peak bytes on an align boundary. */
void pl_graph_bind(pl_graph *g, void *base);

/* The graph for people: number, name, operator, type, shape, sources, offset and fused group (fuse.h) of each node, one a line or as
 * a drawing for Graphviz. Offsets are those of the last plan. */
typedef enum pl_graph_format { PL_GRAPH_TEXT, PL_GRAPH_DOT } pl_graph_format;
PL_MUST_CHECK pl_status pl_graph_print(const pl_graph *g, pl_graph_format format, pl_buf *out, pl_error *err);
