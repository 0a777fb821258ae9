/* Fusion: neighbours that a backend computes as one, without a fence between them and while their bytes are in a cache.
 *
 *   pl_graph_build -> pl_graph_fuse -> pl_graph_plan -> …
 *
 * The pass only orders nodes and marks groups of them; it makes no new operators, so a fused node keeps its tensor, its
 * bytes and its bits. A graph that was not fused has a group for each node. The planner knows the groups: what a group
 * reads stays until all of it is done, and a member takes a source's bytes in place only where no other member reads them.
 *
 * Threads: one at a time per graph. */
#pragma once

#include "engine/graph/graph.h"

/* Kinds of groups, and a set of them for a backend to say what it can. */
typedef enum pl_fusion {
    PL_FUSE_NONE = 0,
    /* Products of the same x (q, k and v; gate and up): x is encoded once. n_products of them stand first. */
    PL_FUSE_PRODUCTS = 1,
    /* Behind products, what is made of their results element by element: biases, the activation of gate and up, the
     * residual. Products whose results meet have the same shape and are computed part by part together. */
    PL_FUSE_RESULTS = 2,
    /* Operators in which row i of a result depends on row i of the other members alone: a sum and its norm, norm and
     * multiplication, rotations and the storing of K and V. */
    PL_FUSE_ROWS = 4,
    PL_FUSE_ALL = 7
} pl_fusion;

enum { PL_FUSE_PRODUCTS_MAX = 4, PL_FUSE_MEMBERS_MAX = 16 };

typedef struct pl_graph_group {
    int first, n; /* nodes, views among them */
    int n_products;
    int n_rows;     /* PL_FUSE_ROWS: rows of each member */
    pl_fusion kind; /* PL_FUSE_NONE: a node alone; PL_FUSE_RESULTS has products too */
} pl_graph_group;

/* Makes groups of the kinds that are in the set. Once, before the graph is planned. */
void pl_graph_fuse(pl_graph *g, unsigned kinds);

/* Whether two products may stand in one group: the same x in the same form, weights that no operator computed. */
bool pl_fuse_products_match(const pl_tensor *a, const pl_tensor *b);

int pl_graph_n_groups(const pl_graph *g);
const pl_graph_group *pl_graph_group_at(const pl_graph *g, int i);
/* For node i of a group with products: which of them, counted from 0, leads those whose results meet in this node. */
int pl_graph_lane(const pl_graph *g, int i);
/* "products", "results", "rows", or "" for a node alone. */
const char *pl_fusion_name(pl_fusion kind);
