#include <inttypes.h>
#include <stdio.h>

#include "engine/graph/graph_impl.h"

static void print_shape(const pl_tensor *t, pl_buf *out)
{
    pl_buf_printf(out, "%s [%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 "]", pl_type_name(t->type), t->ne[0], t->ne[1], t->ne[2], t->ne[3]);
}

/* --- Text: a line for each leaf and each node. --- */

static void print_tensor(const pl_graph *g, const pl_tensor *t, pl_buf *out)
{
    pl_buf_printf(out, "%%%d %s %s ", pl_graph_id(t), t->name[0] ? t->name : "-", pl_op_label(t->op, (pl_fn)t->params.i[0]));
    print_shape(t, out);
    const char *before = " <- ";
    for (int s = 0; s < PL_MAX_SRC; s++) {
        if (!t->src[s]) continue;
        pl_buf_printf(out, "%s%%%d", before, pl_graph_id(t->src[s]));
        before = " ";
    }
    if (t->view_root) pl_buf_printf(out, " in %%%d + %zu", pl_graph_id(t->view_root), t->view_offset);
    size_t offset = g->offset[pl_graph_id(t)];
    if (offset != PL_GRAPH_UNPLANNED) pl_buf_printf(out, " at %zu", offset);
}

static void print_text(const pl_graph *g, pl_buf *out)
{
    for (int i = 0; i < g->n_leaves; i++) {
        print_tensor(g, g->leaves[i], out);
        pl_buf_add_u8(out, '\n');
    }
    for (int k = 0; k < g->n_groups; k++) {
        const pl_graph_group *p = &g->groups[k];
        for (int i = p->first; i < p->first + p->n; i++) {
            print_tensor(g, g->nodes[i], out);
            if (p->kind != PL_FUSE_NONE) pl_buf_printf(out, " | group %d, %s", k, pl_fusion_name(p->kind));
            pl_buf_add_u8(out, '\n');
        }
    }
}

/* --- Graphviz: groups are boxes around their nodes; views are dashed, weights have no frame. --- */

/* A name comes from a file and may have any bytes: what could end or bend the string is left out. */
static void print_name(const pl_tensor *t, pl_buf *out)
{
    for (const char *p = t->name; *p; p++)
        if ((unsigned char)*p >= ' ' && *p != '"' && *p != '\\') pl_buf_add_u8(out, (uint8_t)*p);
}

static void print_dot_tensor(const pl_graph *g, const pl_tensor *t, const char *indent, pl_buf *out)
{
    const char *style = t->flags & PL_TENSOR_WEIGHT ? ", shape=plaintext" : t->op == PL_OP_VIEW ? ", style=dashed" : t->op == PL_OP_NONE ? ", shape=ellipse" : "";
    pl_buf_printf(out, "%st%d [label=\"", indent, pl_graph_id(t));
    if (t->name[0]) {
        print_name(t, out);
        pl_buf_printf(out, "\\n");
    }
    if (t->op != PL_OP_NONE) pl_buf_printf(out, "%s\\n", pl_op_label(t->op, (pl_fn)t->params.i[0]));
    print_shape(t, out);
    size_t offset = g->offset[pl_graph_id(t)];
    if (offset != PL_GRAPH_UNPLANNED) pl_buf_printf(out, "\\nat %zu", offset);
    pl_buf_printf(out, "\"%s];\n", style);
}

static void print_dot(const pl_graph *g, pl_buf *out)
{
    pl_buf_printf(out, "digraph graph_of_operators {\n  node [shape=box, fontsize=10];\n");
    for (int i = 0; i < g->n_leaves; i++) print_dot_tensor(g, g->leaves[i], "  ", out);
    for (int k = 0; k < g->n_groups; k++) {
        const pl_graph_group *p = &g->groups[k];
        bool fused = p->kind != PL_FUSE_NONE;
        if (fused) pl_buf_printf(out, "  subgraph cluster_%d {\n    label=\"group %d: %s\";\n", k, k, pl_fusion_name(p->kind));
        for (int i = p->first; i < p->first + p->n; i++) print_dot_tensor(g, g->nodes[i], fused ? "    " : "  ", out);
        if (fused) pl_buf_printf(out, "  }\n");
    }
    for (int i = 0; i < g->n_nodes; i++)
        for (int s = 0; s < PL_MAX_SRC; s++)
            if (g->nodes[i]->src[s]) pl_buf_printf(out, "  t%d -> t%d;\n", pl_graph_id(g->nodes[i]->src[s]), pl_graph_id(g->nodes[i]));
    pl_buf_printf(out, "}\n");
}

pl_status pl_graph_print(const pl_graph *g, pl_graph_format format, pl_buf *out, pl_error *err)
{
    (format == PL_GRAPH_DOT ? print_dot : print_text)(g, out);
    return out->failed ? pl_fail(err, PL_ERR_NO_MEMORY, "graph text: no memory after %zu bytes", out->size) : PL_OK;
}
