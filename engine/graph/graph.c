#include "engine/graph/graph.h"

#include <inttypes.h>
#include <string.h>

#include "engine/base/alloc.h"
#include "engine/graph/graph_impl.h"

pl_status pl_graph_ctx_new(pl_graph_ctx **out, pl_error *err)
{
    *out = pl_calloc(1, sizeof **out);
    if (!*out) return pl_fail(err, PL_ERR_NO_MEMORY, "graph context: no memory for %zu bytes", sizeof **out);
    pl_arena_init(&(*out)->arena, 0);
    return PL_OK;
}

void pl_graph_ctx_free(pl_graph_ctx *c)
{
    if (!c) return;
    pl_arena_fini(&c->arena);
    pl_free(c);
}

/* Post-order with a stack of our own: a model's chain of nodes is thousands long, and the thread's stack may be small.
 * path[i] is on the way from an output; next[i] is the source of it that comes next. */
static void walk(pl_graph *g, pl_tensor *output, bool *seen, pl_tensor **path, int *next)
{
    int depth = 0;
    if (seen[pl_graph_id(output)]) return;
    seen[pl_graph_id(output)] = true;
    path[0] = output;
    next[0] = 0;
    while (depth >= 0) {
        pl_tensor *t = path[depth];
        if (next[depth] < PL_MAX_SRC) {
            pl_tensor *s = t->src[next[depth]++];
            if (s && !seen[pl_graph_id(s)]) {
                seen[pl_graph_id(s)] = true;
                path[++depth] = s;
                next[depth] = 0;
            }
            continue;
        }
        if (t->op == PL_OP_NONE)
            g->leaves[g->n_leaves++] = t;
        else
            g->nodes[g->n_nodes++] = t;
        depth--;
    }
}

/* Brings products of the same x together where the walk left other nodes between them, as between q, k and v: a backend can
 * then compute them at once. A product of a leaf may stand wherever its x is there already. */
static void gather_products(pl_graph *g)
{
    enum { FAR = 16 }; /* nodes; q, k and v are about eight apart */
    for (int i = 0; i < g->n_nodes; i++) {
        pl_tensor *t = g->nodes[i];
        if (t->op != PL_OP_MUL_MAT || t->src[0]->op != PL_OP_NONE) continue;
        for (int j = i - 1; j >= 0 && j >= i - FAR; j--) {
            const pl_tensor *u = g->nodes[j];
            if (u->op != PL_OP_MUL_MAT || u->src[1] != t->src[1]) continue;
            memmove(g->nodes + j + 2, g->nodes + j + 1, (size_t)(i - j - 1) * sizeof *g->nodes);
            g->nodes[j + 1] = t;
            break;
        }
    }
}

/* The last node that reads or writes each root's bytes, through whichever view. */
void pl_graph_find_last_uses(pl_graph *g)
{
    for (int i = 0; i < g->n_ids; i++) g->last_use[i] = -1;
    for (int i = 0; i < g->n_nodes; i++) {
        pl_tensor *t = g->nodes[i];
        g->last_use[pl_graph_id(pl_graph_root(t))] = i;
        for (int s = 0; s < PL_MAX_SRC; s++)
            if (t->src[s]) g->last_use[pl_graph_id(pl_graph_root(t->src[s]))] = i;
    }
    for (int i = 0; i < g->n_nodes + g->n_leaves; i++) {
        pl_tensor *t = i < g->n_nodes ? g->nodes[i] : g->leaves[i - g->n_nodes];
        if (t->flags & (PL_TENSOR_OUTPUT | PL_TENSOR_INPUT)) g->last_use[pl_graph_id(pl_graph_root(t))] = g->n_nodes;
    }
}

pl_status pl_graph_build(pl_graph **out, pl_graph_ctx *c, pl_tensor *const *outputs, int n_outputs, pl_error *err)
{
    *out = NULL;
    size_t n = (size_t)c->n_tensors;
    pl_arena *a = &c->arena;
    for (int i = 0; i < n_outputs; i++)
        if (!outputs[i]) return pl_fail(err, PL_ERR_NO_MEMORY, "graph: no memory for output %d of %d", i, n_outputs);
    pl_graph *g = PL_ARENA_NEW(a, pl_graph);
    bool *seen = pl_calloc(n ? n : 1, sizeof *seen);
    pl_tensor **path = pl_calloc(n ? n : 1, sizeof *path);
    int *next = pl_calloc(n ? n : 1, sizeof *next);
    bool ok = g && seen && path && next;
    if (ok) {
        g->n_ids = c->n_tensors;
        g->nodes = pl_arena_alloc(a, n * sizeof *g->nodes);
        g->leaves = pl_arena_alloc(a, n * sizeof *g->leaves);
        g->offset = pl_arena_alloc(a, n * sizeof *g->offset);
        g->last_use = pl_arena_alloc(a, n * sizeof *g->last_use);
        g->owner_of = pl_arena_alloc(a, n * sizeof *g->owner_of);
        g->free = pl_arena_alloc(a, (n + 1) * sizeof *g->free);
        g->groups = pl_arena_alloc(a, n * sizeof *g->groups);
        g->lane = pl_arena_alloc(a, n * sizeof *g->lane);
        ok = g->nodes && g->leaves && g->offset && g->last_use && g->owner_of && g->free && g->groups && g->lane;
    }
    if (ok) {
        for (int i = 0; i < n_outputs; i++) {
            pl_set_output(outputs[i]);
            walk(g, outputs[i], seen, path, next);
        }
        for (size_t i = 0; i < n; i++) g->offset[i] = PL_GRAPH_UNPLANNED;
        gather_products(g);
        pl_graph_fuse(g, PL_FUSE_NONE);
        *out = g;
    }
    pl_free(seen);
    pl_free(path);
    pl_free(next);
    return ok ? PL_OK : pl_fail(err, PL_ERR_NO_MEMORY, "graph of %zu tensors: no memory", n);
}

int pl_graph_n_nodes(const pl_graph *g) { return g->n_nodes; }
int pl_graph_n_leaves(const pl_graph *g) { return g->n_leaves; }

pl_tensor *pl_graph_node(const pl_graph *g, int i)
{
    PL_ASSERT(i >= 0 && i < g->n_nodes);
    return g->nodes[i];
}

pl_tensor *pl_graph_leaf(const pl_graph *g, int i)
{
    PL_ASSERT(i >= 0 && i < g->n_leaves);
    return g->leaves[i];
}
