/* Private to engine/graph: what a context, a graph and an operator's row look like. */
#pragma once

#include "engine/graph/fuse.h"

struct pl_graph_ctx {
    pl_arena arena;
    int n_tensors;
};

/* Every tensor of a context is one of these. The number makes a tensor's place in an array, so that a walk needs no map. */
typedef struct pl_graph_tensor {
    pl_tensor t; /* first: a pl_tensor* from this context is a pl_graph_tensor* */
    int id;      /* 0, 1, 2, … in the order of making */
} pl_graph_tensor;

static inline int pl_graph_id(const pl_tensor *t) { return ((const pl_graph_tensor *)t)->id; }
static inline pl_tensor *pl_graph_root(pl_tensor *t) { return t->view_root ? t->view_root : t; }

/* How an operator's result falls into parts that can be computed apart. */
typedef enum pl_op_parts {
    PL_PARTS_NONE = 0,
    PL_PARTS_ROWS,    /* row i of the result needs row i of its sources alone */
    PL_PARTS_ELEMENTS /* the same of elements: any part of a row can be computed apart */
} pl_op_parts;

typedef struct pl_op_info {
    const char *name;
    uint32_t in_place; /* bit i: the result may take the bytes of source i, which has its shape and order */
    pl_op_parts parts; /* what fusion may do with it */
} pl_op_info;

extern const pl_op_info pl_op_table[PL_OP_COUNT];

#define PL_GRAPH_UNPLANNED SIZE_MAX

typedef struct pl_graph_block {
    size_t offset, size;
} pl_graph_block;

struct pl_graph {
    pl_tensor **nodes;  /* in order of execution, views among them */
    pl_tensor **leaves; /* inputs and weights */
    int n_nodes, n_leaves, n_ids;
    size_t *offset;       /* by id: from the base, or PL_GRAPH_UNPLANNED */
    int *last_use;        /* by id of a root: the last node that reads its bytes, n_nodes when they must stay */
    int *owner_of;        /* by id of a root: the root whose block it is in now, for blocks handed on in place */
    pl_graph_block *free; /* room for the planner's free list, n_ids + 1 of them */
    pl_graph_group *groups; /* in order of execution, all nodes in one of them */
    int8_t *lane;           /* by node: see pl_graph_lane */
    int n_groups;
};

/* Finds last_use again, when the order of the nodes has changed. */
void pl_graph_find_last_uses(pl_graph *g);
