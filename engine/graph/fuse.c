/* One walk in the order of execution. A product takes the products of the same x, which the builder of the graph has put
 * next to it, then whatever nearby node can be made of their results element by element; that node moves up to them, which
 * is allowed because all that it reads is there already. An operator on rows takes the operators on rows that follow. */
#include "engine/graph/fuse.h"

#include <string.h>

#include "engine/graph/graph_impl.h"

/* How far behind the group a node is looked for: three products with biases, rotations and views between them. */
enum { FAR = 16 };

typedef struct fuser {
    pl_graph *g;
    pl_graph_group *group; /* the one being made */
    int *done;             /* by id: made before the group or in it. Borrowed from the planner. */
} fuser;

static bool same_shape(const pl_tensor *a, const pl_tensor *b) { return memcmp(a->ne, b->ne, sizeof a->ne) == 0; }

static bool is_elementwise(pl_op op) { return pl_op_table[op].parts == PL_PARTS_ELEMENTS; }

/* Into how many rows, each computed alone, the operator falls; 0 when it does not. */
static int64_t rows_of(const pl_tensor *t)
{
    if (pl_op_table[t->op].parts == PL_PARTS_NONE) return 0;
    switch (t->op) {
    case PL_OP_ROPE: return t->ne[2];
    case PL_OP_KV_STORE: return t->src[1]->ne[2];
    default: return pl_tensor_rows(t);
    }
}

static bool is_matrix(const pl_tensor *t) { return t->ne[2] == 1 && t->ne[3] == 1; }

static bool is_product(const pl_tensor *t)
{
    return t->op == PL_OP_MUL_MAT && t->src[0]->op == PL_OP_NONE && is_matrix(t->src[0]) && is_matrix(t->src[1]) &&
           pl_type_get(t->src[0]->type)->act != PL_ACT_NONE && pl_tensor_elements(t) > 0;
}

bool pl_fuse_products_match(const pl_tensor *a, const pl_tensor *b)
{
    return is_product(a) && is_product(b) && a->src[1] == b->src[1] &&
           pl_type_get(a->src[0]->type)->act == pl_type_get(b->src[0]->type)->act && a->params.i[0] == b->params.i[0];
}

/* The place of t among the group's members, or -1. */
static int member(const fuser *f, const pl_tensor *t)
{
    for (int i = f->group->first; i < f->group->first + f->group->n; i++)
        if (f->g->nodes[i] == t) return i;
    return -1;
}

/* Whether a member makes or writes the bytes under t. */
static bool written_by_member(const fuser *f, pl_tensor *t)
{
    for (int i = f->group->first; i < f->group->first + f->group->n; i++)
        if (f->g->nodes[i]->op != PL_OP_VIEW && pl_graph_root(f->g->nodes[i]) == pl_graph_root(t)) return true;
    return false;
}

static bool read_by_member(const fuser *f, pl_tensor *t)
{
    for (int i = f->group->first; i < f->group->first + f->group->n; i++)
        for (int s = 0; s < PL_MAX_SRC; s++) {
            pl_tensor *u = f->g->nodes[i]->src[s];
            if (u && pl_graph_root(u) == pl_graph_root(t)) return true;
        }
    return false;
}

/* Node from becomes the last of the group, and the nodes between move back by one. */
static void take(fuser *f, int from)
{
    pl_tensor **nodes = f->g->nodes, *t = nodes[from];
    int to = f->group->first + f->group->n++;
    memmove(nodes + to + 1, nodes + to, (size_t)(from - to) * sizeof *nodes);
    nodes[to] = t;
    f->done[pl_graph_id(t)] = true;
}

/* Whether t is made of results of the group, element by element, and of what was there before. */
static bool is_of_results(const fuser *f, const pl_tensor *t)
{
    bool of_member = false;
    if (!is_elementwise(t->op)) return false;
    for (int s = 0; s < PL_MAX_SRC; s++) {
        pl_tensor *a = t->src[s];
        if (!a) continue;
        if (member(f, a) >= 0) {
            if (!same_shape(a, t)) return false;
            of_member = true;
        } else if ((a->op != PL_OP_NONE && !f->done[pl_graph_id(a)]) || written_by_member(f, a)) {
            return false;
        }
    }
    return of_member;
}

/* The lane of the group's last node: the first of those that its sources are in, into which the others go. */
static void join_lanes(fuser *f)
{
    pl_graph *g = f->g;
    int first = f->group->first, last = first + f->group->n - 1, lane = PL_FUSE_PRODUCTS_MAX;
    for (int s = 0; s < PL_MAX_SRC; s++) {
        int at = g->nodes[last]->src[s] ? member(f, g->nodes[last]->src[s]) : -1;
        if (at >= 0 && g->lane[at] < lane) lane = g->lane[at];
    }
    for (int s = 0; s < PL_MAX_SRC; s++) {
        int at = g->nodes[last]->src[s] ? member(f, g->nodes[last]->src[s]) : -1;
        if (at < 0 || g->lane[at] == lane) continue;
        int8_t other = g->lane[at];
        for (int i = first; i < last; i++)
            if (g->lane[i] == other) g->lane[i] = (int8_t)lane;
    }
    g->lane[last] = (int8_t)lane;
}

static void fuse_products(fuser *f, unsigned kinds)
{
    pl_graph *g = f->g;
    pl_graph_group *p = f->group;
    while (kinds & PL_FUSE_PRODUCTS && p->n < PL_FUSE_PRODUCTS_MAX && p->first + p->n < g->n_nodes) {
        if (!pl_fuse_products_match(g->nodes[p->first], g->nodes[p->first + p->n])) break;
        take(f, p->first + p->n);
    }
    p->n_products = p->n;
    for (int i = 0; i < p->n; i++) g->lane[p->first + i] = (int8_t)i;
    if (p->n > 1) p->kind = PL_FUSE_PRODUCTS;
    if (!(kinds & PL_FUSE_RESULTS)) return;
    int end = p->first + p->n + FAR < g->n_nodes ? p->first + p->n + FAR : g->n_nodes;
    for (int i = p->first + p->n; i < end && p->n < PL_FUSE_MEMBERS_MAX; i++) {
        if (!is_of_results(f, g->nodes[i])) continue;
        take(f, i);
        join_lanes(f);
        p->kind = PL_FUSE_RESULTS;
    }
}

/* Whether row i of t needs, of what the group makes, row i alone. */
static bool is_of_rows(const fuser *f, pl_tensor *t)
{
    if (rows_of(t) != f->group->n_rows) return false;
    for (int s = 0; s < PL_MAX_SRC; s++) {
        pl_tensor *a = t->src[s];
        if (!a || !written_by_member(f, a)) continue;
        if (member(f, a) < 0) return false;
        if (!same_shape(a, t) && !(t->op == PL_OP_KV_STORE && (s == 1 || s == 2))) return false;
    }
    /* What writes to bytes that were there before may not overtake their readers. */
    return t->op != PL_OP_KV_STORE || !read_by_member(f, t);
}

static void fuse_rows(fuser *f)
{
    pl_graph *g = f->g;
    pl_graph_group *p = f->group;
    int64_t rows = rows_of(g->nodes[p->first]);
    if (rows <= 0 || rows > INT32_MAX) return;
    p->n_rows = (int)rows;
    int n_members = 1;
    for (int i = p->first + 1; i < g->n_nodes && n_members < PL_FUSE_MEMBERS_MAX; i++) {
        if (g->nodes[i]->op == PL_OP_VIEW) continue;
        if (!is_of_rows(f, g->nodes[i])) break;
        while (p->first + p->n <= i) take(f, p->first + p->n); /* the views between, too */
        n_members++;
    }
    if (n_members > 1) p->kind = PL_FUSE_ROWS;
}

void pl_graph_fuse(pl_graph *g, unsigned kinds)
{
    fuser f = {.g = g, .done = g->owner_of};
    for (int i = 0; i < g->n_ids; i++) f.done[i] = false;
    g->n_groups = 0;
    for (int i = 0; i < g->n_nodes; i += f.group->n) {
        f.group = &g->groups[g->n_groups++];
        *f.group = (pl_graph_group){.first = i, .n_products = g->nodes[i]->op == PL_OP_MUL_MAT};
        g->lane[i] = 0;
        take(&f, i);
        if (is_product(g->nodes[i]))
            fuse_products(&f, kinds);
        else if (kinds & PL_FUSE_ROWS)
            fuse_rows(&f);
    }
    pl_graph_find_last_uses(g);
}

int pl_graph_n_groups(const pl_graph *g) { return g->n_groups; }

const pl_graph_group *pl_graph_group_at(const pl_graph *g, int i)
{
    PL_ASSERT(i >= 0 && i < g->n_groups);
    return &g->groups[i];
}

int pl_graph_lane(const pl_graph *g, int i)
{
    PL_ASSERT(i >= 0 && i < g->n_nodes);
    return g->lane[i];
}

const char *pl_fusion_name(pl_fusion kind)
{
    return kind == PL_FUSE_PRODUCTS ? "products" : kind == PL_FUSE_RESULTS ? "results" : kind == PL_FUSE_ROWS ? "rows" : "";
}
