/* Plans where intermediates live, as offsets from one base.
 *
 * Nodes are taken in order of execution. A result takes the bytes of a source that dies here when its operator can work
 * in place, else the smallest free block that holds it, else new bytes at the end. After the last use of a root its block goes
 * back to the free list, which is sorted by offset and merges neighbours; a free block that touches the end is grown instead
 * of left as a hole. The nodes of a group (fuse.h) run at the same time: their sources go back when all of them are done.
 * Inputs stay for the whole run, so that a caller may write only what changed; outputs stay behind it. */
#include <string.h>

#include "engine/base/alloc.h"
#include "engine/graph/graph_impl.h"

typedef struct planner {
    pl_graph *g;
    int n_free;
    size_t align, end;
    bool overflow;
} planner;

/* Bytes of t on the alignment; zero-sized tensors get one unit, so that each has a place of its own. */
static size_t padded(planner *p, const pl_tensor *t)
{
    size_t n = pl_tensor_bytes(t), sum;
    if (n == 0) n = 1;
    if (!pl_add_ok(n, p->align - 1, &sum)) {
        p->overflow = true;
        return p->align;
    }
    return sum & ~(p->align - 1);
}

static void remove_free(planner *p, int i)
{
    p->n_free--;
    memmove(p->g->free + i, p->g->free + i + 1, (size_t)(p->n_free - i) * sizeof *p->g->free);
}

static size_t take(planner *p, size_t size)
{
    pl_graph_block *f = p->g->free;
    int best = -1;
    for (int i = 0; i < p->n_free; i++)
        if (f[i].size >= size && (best < 0 || f[i].size < f[best].size)) best = i;
    if (best >= 0) {
        size_t offset = f[best].offset;
        f[best].offset += size;
        f[best].size -= size;
        if (f[best].size == 0) remove_free(p, best);
        return offset;
    }
    size_t offset = p->end;
    if (p->n_free && f[p->n_free - 1].offset + f[p->n_free - 1].size == p->end) offset = f[--p->n_free].offset;
    if (!pl_add_ok(offset, size, &p->end)) {
        p->overflow = true;
        p->end = offset;
    }
    return offset;
}

static void give_back(planner *p, size_t offset, size_t size)
{
    pl_graph_block *f = p->g->free;
    int i = 0;
    while (i < p->n_free && f[i].offset < offset) i++;
    memmove(f + i + 1, f + i, (size_t)(p->n_free - i) * sizeof *f);
    f[i] = (pl_graph_block){offset, size};
    p->n_free++;
    if (i + 1 < p->n_free && f[i].offset + f[i].size == f[i + 1].offset) {
        f[i].size += f[i + 1].size;
        remove_free(p, i + 1);
    }
    if (i > 0 && f[i - 1].offset + f[i - 1].size == f[i].offset) {
        f[i - 1].size += f[i].size;
        remove_free(p, i);
    }
}

/* Whether t, node i, may be written over its source s: s covers all of its root, element for element as t does, dies here, and
 * no other source reads the same bytes in another order. */
static bool can_replace(const pl_graph *g, const pl_graph_group *group, const pl_tensor *t, int i, int s)
{
    pl_tensor *a = t->src[s];
    if (!a || a->type != t->type || memcmp(a->ne, t->ne, sizeof a->ne) != 0 || !pl_tensor_is_contiguous(a)) return false;
    pl_tensor *root = pl_graph_root(a);
    int id = pl_graph_id(root);
    if (g->offset[id] == PL_GRAPH_UNPLANNED || g->last_use[id] != i) return false;
    if (a->view_offset != 0 || pl_tensor_bytes(a) != pl_tensor_bytes(root)) return false;
    for (int o = 0; o < PL_MAX_SRC; o++) {
        pl_tensor *b = t->src[o];
        if (o == s || !b || pl_graph_root(b) != root) continue;
        if (b->view_offset != 0 || memcmp(b->ne, t->ne, sizeof b->ne) != 0 || memcmp(b->nb, a->nb, sizeof b->nb) != 0) return false;
    }
    /* Another member of the group may still be reading other rows of it. */
    for (int m = group->first; m < i; m++)
        for (int o = 0; o < PL_MAX_SRC; o++)
            if (g->nodes[m]->src[o] && pl_graph_root(g->nodes[m]->src[o]) == root) return false;
    return true;
}

static void place(planner *p, const pl_graph_group *group, pl_tensor *t, int i)
{
    pl_graph *g = p->g;
    int id = pl_graph_id(t);
    for (int s = 0; s < PL_MAX_SRC; s++) {
        if (!(pl_op_table[t->op].in_place >> s & 1) || !can_replace(g, group, t, i, s)) continue;
        int from = pl_graph_id(pl_graph_root(t->src[s]));
        g->offset[id] = g->offset[from];
        g->owner_of[from] = id; /* so that the source's end does not free the block */
        return;
    }
    g->offset[id] = take(p, padded(p, t));
}

/* Frees what is used for the last time at node i; last_use == i is true once per root, at a node that names it. */
static void free_dead(planner *p, pl_tensor *t, int i)
{
    pl_graph *g = p->g;
    for (int s = -1; s < PL_MAX_SRC; s++) {
        pl_tensor *a = s < 0 ? t : t->src[s];
        if (!a) continue;
        pl_tensor *root = pl_graph_root(a);
        int id = pl_graph_id(root);
        if (g->last_use[id] != i || g->owner_of[id] != id || g->offset[id] == PL_GRAPH_UNPLANNED) continue;
        give_back(p, g->offset[id], padded(p, root));
        g->owner_of[id] = -1; /* a second source with this root frees nothing */
    }
}

pl_status pl_graph_plan(pl_graph *g, size_t align, size_t *peak, pl_error *err)
{
    PL_ASSERT(align > 0 && (align & (align - 1)) == 0);
    planner p = {.g = g, .align = align};
    for (int i = 0; i < g->n_ids; i++) {
        g->offset[i] = PL_GRAPH_UNPLANNED;
        g->owner_of[i] = i;
    }
    for (int i = 0; i < g->n_leaves; i++)
        if (!(g->leaves[i]->flags & PL_TENSOR_WEIGHT)) g->offset[pl_graph_id(g->leaves[i])] = take(&p, padded(&p, g->leaves[i]));
    for (int k = 0; k < g->n_groups; k++) {
        const pl_graph_group *group = &g->groups[k];
        int end = group->first + group->n;
        for (int i = group->first; i < end; i++)
            if (!g->nodes[i]->view_root) place(&p, group, g->nodes[i], i);
        for (int i = group->first; i < end; i++) free_dead(&p, g->nodes[i], i);
    }
    if (p.overflow) return pl_fail(err, PL_ERR_BUDGET, "graph of %d nodes: its bytes do not fit into the address space", g->n_nodes);
    *peak = p.end;
    return PL_OK;
}

void pl_graph_bind(pl_graph *g, void *base)
{
    for (int i = 0; i < g->n_nodes + g->n_leaves; i++) {
        pl_tensor *t = i < g->n_nodes ? g->nodes[i] : g->leaves[i - g->n_nodes];
        size_t offset = g->offset[pl_graph_id(t)];
        if (offset != PL_GRAPH_UNPLANNED) t->data = (uint8_t *)base + offset;
    }
    for (int i = 0; i < g->n_nodes; i++) {
        pl_tensor *t = g->nodes[i];
        if (t->view_root && t->view_root->data) t->data = (uint8_t *)t->view_root->data + t->view_offset;
    }
}
