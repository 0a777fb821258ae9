/* Placement by dynamic programming.
 *
 * best[set][b]: the smallest cost of layers 0..b-1 on exactly the nodes of set, in any order. From there a node outside
 * the set takes layers b..e-1. Costs only grow, by + or by max, and do not depend on the order of what came before (a
 * hop belongs to the node that it leads to), so the principle of optimality holds for both objectives; but not for
 * "max, then sum". So throughput is solved twice: first for the smallest bottleneck, then for the smallest sum among
 * splits whose stages keep to it. */
#include "coordinator/placement.h"

#include "engine/base/alloc.h"
#include "engine/base/sys.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { SUM, MAX };

#define READ_GUESS 10e9 /* bytes/s: one channel of DDR4, less what is lost */
#define MACS_GUESS 20e9
#define NET_GUESS  117e6 /* Gigabit Ethernet less its headers */

typedef struct cell {
    double cost;
    int32_t from; /* layers covered before the last stage */
    int8_t node;  /* of the last stage; -1: the cell is not reachable */
} cell;

typedef struct problem {
    const pl_place_model *m;
    const pl_place_want *want;
    pl_place_node nodes[PL_PLACE_NODES_MAX];
    int32_t index[PL_PLACE_NODES_MAX]; /* in the caller's list */
    int32_t n;
    int32_t rows;
    int32_t n_blocks, n_rows;
    double *prefix;                       /* [n][n_layer + 2]: seconds of the units before i on a node */
    int32_t class_of[PL_PLACE_NODES_MAX]; /* nodes of one thread count share their memory numbers */
    int32_t class_threads[PL_PLACE_NODES_MAX];
    int32_t n_classes;
    uint64_t *need; /* [n_classes][n_layer][n_layer + 1]: bytes of a stage of layers a..b-1, links included */
    cell *cells;    /* [1 << n][n_layer + 1] */
} problem;

static bool good(double x)
{
    return isfinite(x) && x > 0;
}

uint64_t pl_place_link_bytes(int32_t n_embd, int32_t n_rows, int32_t credits, bool upstream, bool downstream)
{
    return (uint64_t)n_embd * (uint64_t)n_rows * (uint64_t)credits * sizeof(float) *
           ((upstream ? 1u : 0u) + (downstream ? 1u : 0u));
}

static pl_stage_shape shape_of(const problem *p, int32_t first, int32_t end, int32_t n_threads)
{
    return (pl_stage_shape){.layer_first = first,
                            .layer_end = end,
                            .n_blocks = p->n_blocks,
                            .n_ctx = p->want->n_ctx,
                            .n_seqs = p->want->n_slots > 0 ? p->want->n_slots : p->want->n_seqs,
                            .n_rows = p->n_rows,
                            .n_threads = n_threads,
                            .cache = p->want->cache};
}

static uint64_t links_of(const problem *p, int32_t first, int32_t end)
{
    return pl_place_link_bytes(p->m->n_embd, p->n_rows, p->want->credits, first > 0, end < p->m->n_layer);
}

static uint64_t *need_at(const problem *p, int32_t node, int32_t first, int32_t end)
{
    size_t L = (size_t)p->m->n_layer;
    return &p->need[((size_t)p->class_of[node] * L + (size_t)first) * (L + 1) + (size_t)end];
}

static cell *cell_at(const problem *p, uint32_t set, int32_t b)
{
    return &p->cells[(size_t)set * ((size_t)p->m->n_layer + 1) + (size_t)b];
}

static bool fits(const problem *p, int32_t node, int32_t first, int32_t end)
{
    return *need_at(p, node, first, end) <= p->nodes[node].budget_bytes;
}

static double step_of(const problem *p, int32_t node, int32_t first, int32_t end)
{
    const double *prefix = p->prefix + (size_t)node * (size_t)(p->m->n_layer + 2);
    return prefix[end == p->m->n_layer ? end + 1 : end] - prefix[first];
}

static double wire_of(const problem *p, int32_t node, int32_t first)
{
    return first == 0 ? 0 : (double)p->rows * p->m->n_embd * sizeof(float) / p->nodes[node].net_bytes_s;
}

static double stage_cost(const problem *p, int mode, int32_t node, int32_t first, int32_t end)
{
    double step = step_of(p, node, first, end), wire = wire_of(p, node, first);
    if (mode == SUM) return step + wire + p->nodes[node].hop_s;
    return step > wire ? step : wire;
}

static void fill_need(problem *p)
{
    const int32_t L = p->m->n_layer;
    for (int32_t c = 0; c < p->n_classes; c++)
        for (int32_t a = 0; a < L; a++)
            for (int32_t b = a + 1; b <= L; b++) {
                pl_stage_shape shape = shape_of(p, a, b, p->class_threads[c]);
                pl_stage_memory m = p->m->memory(p->m->user, &shape);
                p->need[((size_t)c * (size_t)L + (size_t)a) * ((size_t)L + 1) + (size_t)b] =
                    m.weights + m.kv + m.compute + links_of(p, a, b);
            }
}

/* Whether any split fits. As a range within another never needs more (link buffers aside, which a stage with the same
 * ends has alike), it is enough to know for each set how far it can reach short of the end. */
static bool feasible(const problem *p)
{
    const int32_t L = p->m->n_layer;
    int32_t reach[1 << PL_PLACE_NODES_MAX];
    for (uint32_t set = 0; set < 1u << p->n; set++) {
        if (set == 0)
            reach[0] = 0;
        else
            reach[set] = -1;
        for (int32_t j = 0; j < p->n; j++) {
            if (!(set >> j & 1)) continue;
            int32_t a = reach[set & ~(1u << j)];
            if (a < 0) continue;
            /* A stage of its own is at least one layer, so the one before may have to stop short. */
            int32_t last = a < L ? a : L - 1;
            if (fits(p, j, last, L)) return true;
            int32_t b = a;
            while (b < L - 1 && fits(p, j, a, b + 1)) b++;
            /* A node that takes nothing leaves the reach as it was: a later one may take over from there. */
            if (b > reach[set]) reach[set] = b;
        }
    }
    return false;
}

/* Fills the cells. cap: the most that a stage may take. only: splits of exactly so many nodes are wanted, 0: all. What
 * is dearer than a split that is known already, and by more than the margin, is not followed: that makes nothing of the
 * result worse, and most of the work unnecessary. */
static void solve(problem *p, int mode, double cap, int32_t only)
{
    const int32_t L = p->m->n_layer;
    const uint32_t sets = 1u << p->n;
    double bound = INFINITY;
    for (size_t i = 0; i < (size_t)sets * ((size_t)L + 1); i++) p->cells[i] = (cell){.cost = INFINITY, .node = -1};
    *cell_at(p, 0, 0) = (cell){.cost = 0, .node = 0};
    for (uint32_t set = 0; set < sets; set++) {
        const int32_t size = __builtin_popcount(set) + 1; /* with one node more */
        if (only && size > only) continue;
        for (int32_t a = 0; a < L; a++) {
            const cell from = *cell_at(p, set, a);
            if (from.node < 0 || from.cost > bound) continue;
            for (int32_t j = 0; j < p->n; j++) {
                if (set >> j & 1) continue;
                for (int32_t b = a + 1; b <= L; b++) {
                    if (!fits(p, j, a, b)) {
                        b = L - 1 > b ? L - 1
                                      : b; /* a stage that ends the pipeline sends nothing on, so it may fit again */
                        continue;
                    }
                    if (mode == SUM && stage_cost(p, MAX, j, a, b) > cap) break;
                    double cost = stage_cost(p, mode, j, a, b);
                    cost = mode == SUM ? from.cost + cost : cost > from.cost ? cost : from.cost;
                    if (cost > bound && size > 1)
                        break; /* more layers cost more; one node alone is asked about in any case */
                    cell *to = cell_at(p, set | 1u << j, b);
                    if (cost < to->cost) *to = (cell){.cost = cost, .from = a, .node = (int8_t)j};
                    if (b == L && (only ? size == only : size > 1) && cost * (1 + PL_PLACE_MARGIN) < bound)
                        bound = cost * (1 + PL_PLACE_MARGIN);
                }
            }
        }
    }
}

/* The cheapest set of exactly k nodes, or 0. */
static uint32_t best_of_size(const problem *p, int32_t k)
{
    uint32_t best = 0;
    for (uint32_t set = 1; set < 1u << p->n; set++) {
        if (__builtin_popcount(set) != k || cell_at(p, set, p->m->n_layer)->node < 0) continue;
        if (!best || cell_at(p, set, p->m->n_layer)->cost < cell_at(p, best, p->m->n_layer)->cost) best = set;
    }
    return best;
}

static void trace(const problem *p, uint32_t set, pl_placement *out)
{
    int32_t b = p->m->n_layer;
    out->n_stages = __builtin_popcount(set);
    for (int32_t i = out->n_stages; i-- > 0;) {
        const cell *c = cell_at(p, set, b);
        pl_stage_shape shape = shape_of(p, c->from, b, p->nodes[c->node].n_threads);
        out->stages[i] = (pl_place_stage){.node = p->index[c->node],
                                          .layer_first = c->from,
                                          .layer_end = b,
                                          .memory = p->m->memory(p->m->user, &shape),
                                          .link_bytes = links_of(p, c->from, b),
                                          .step_s = step_of(p, c->node, c->from, b)};
        out->step_s += stage_cost(p, SUM, c->node, c->from, b);
        double slow = stage_cost(p, MAX, c->node, c->from, b);
        if (slow > out->slowest_s) out->slowest_s = slow;
        set &= ~(1u << c->node);
        b = c->from;
    }
}

static bool choose(problem *p, pl_placement *out)
{
    const int mode = out->objective == PL_OBJECTIVE_LATENCY ? SUM : MAX;
    const int32_t L = p->m->n_layer;
    solve(p, mode, INFINITY, 0);
    double least = INFINITY;
    uint32_t sets[PL_PLACE_NODES_MAX + 1] = {0};
    for (int32_t k = 1; k <= p->n; k++) {
        sets[k] = best_of_size(p, k);
        if (!sets[k]) continue;
        double cost = cell_at(p, sets[k], L)->cost;
        if (cost < least) least = cost;
        if (k == 1) {
            out->alone = p->index[__builtin_ctz(sets[k])];
            out->alone_s = cost;
        } else if (!out->n_split || cost < out->split_s) {
            out->n_split = k;
            out->split_s = cost;
        }
    }
    if (!isfinite(least)) return false;
    int32_t k = 1;
    while (!sets[k] || cell_at(p, sets[k], L)->cost > least * (1 + PL_PLACE_MARGIN)) k++;
    int32_t asked = p->want->n_stages;
    if (asked > p->n) asked = p->n;
    if (asked > L) asked = L;
    if (asked > 0 && asked != k) {
        solve(p, mode, INFINITY, asked);
        uint32_t set = best_of_size(p, asked);
        if (set)
            sets[k = asked] = set;
        else
            solve(p, mode, INFINITY, 0); /* so many do not fit */
    }
    out->cost_s = cell_at(p, sets[k], L)->cost;
    if (mode == MAX) {
        solve(p, SUM, out->cost_s * (1 + 1e-9), k); /* differences of prefix sums are not exact */
        sets[k] = best_of_size(p, k);
    }
    trace(p, sets[k], out);
    return true;
}

typedef struct ranked {
    int32_t index;
    uint64_t budget;
    double rate;
} ranked;

static int by_budget(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->budget != y->budget) return x->budget < y->budget ? 1 : -1;
    if (x->rate != y->rate) return x->rate < y->rate ? 1 : -1;
    return x->index - y->index;
}

static int by_index(const void *a, const void *b)
{
    return ((const ranked *)a)->index - ((const ranked *)b)->index;
}

static pl_status pick_nodes(problem *p, const pl_place_node *nodes, int32_t n_nodes, pl_error *err)
{
    double read = 0, macs = 0;
    for (int32_t i = 0; i < n_nodes; i++) {
        if (good(nodes[i].read_bytes_s) && (read == 0 || nodes[i].read_bytes_s < read)) read = nodes[i].read_bytes_s;
        if (good(nodes[i].macs_s) && (macs == 0 || nodes[i].macs_s < macs)) macs = nodes[i].macs_s;
    }
    if (read == 0) read = READ_GUESS;
    if (macs == 0) macs = MACS_GUESS;
    ranked *order = pl_calloc((size_t)n_nodes + 1, sizeof *order);
    if (!order) return pl_fail(err, PL_ERR_NO_MEMORY, "placement of %d nodes", n_nodes);
    for (int32_t i = 0; i < n_nodes; i++)
        order[i] = (ranked){i, nodes[i].budget_bytes, good(nodes[i].read_bytes_s) ? nodes[i].read_bytes_s : read};
    qsort(order, (size_t)n_nodes, sizeof *order, by_budget);
    p->n = n_nodes < PL_PLACE_NODES_MAX ? n_nodes : PL_PLACE_NODES_MAX;
    qsort(order, (size_t)p->n, sizeof *order, by_index);
    for (int32_t i = 0; i < p->n; i++) {
        pl_place_node *to = &p->nodes[i];
        *to = nodes[order[i].index];
        p->index[i] = order[i].index;
        if (!good(to->read_bytes_s)) to->read_bytes_s = read;
        if (!good(to->macs_s)) to->macs_s = macs;
        if (!good(to->net_bytes_s)) to->net_bytes_s = NET_GUESS;
        if (!good(to->hop_s)) to->hop_s = 0;
        int32_t c = 0;
        while (c < p->n_classes && p->class_threads[c] != to->n_threads) c++;
        if (c == p->n_classes) p->class_threads[p->n_classes++] = to->n_threads;
        p->class_of[i] = c;
    }
    pl_free(order);
    return PL_OK;
}

/* Less memory, as long as the user did not fix it: first smaller micro-batches, as they cost little speed, then less KV
 * cache. */
static bool shrink_to_fit(problem *p)
{
    const pl_place_want *w = p->want;
    p->n_blocks = w->n_blocks;
    for (p->n_rows = w->n_rows;;) {
        fill_need(p);
        if (feasible(p)) return true;
        if (w->fixed_rows || p->n_rows / 2 < PL_PLACE_ROWS_MIN) break;
        p->n_rows /= 2;
    }
    if (w->fixed_blocks || w->n_blocks <= PL_PLACE_BLOCKS_MIN) return false;
    int32_t low = PL_PLACE_BLOCKS_MIN, high = w->n_blocks; /* high does not fit */
    p->n_blocks = low;
    fill_need(p);
    if (!feasible(p)) return false;
    while (high - low > 1) {
        p->n_blocks = low + (high - low) / 2;
        fill_need(p);
        if (feasible(p))
            low = p->n_blocks;
        else
            high = p->n_blocks;
    }
    p->n_blocks = low;
    fill_need(p);
    return true;
}

/* The table of what is short, for the smallest wish that was tried. */
static pl_status does_not_fit(const problem *p, pl_error *err)
{
    const int32_t L = p->m->n_layer;
    pl_buf text = {0};
    pl_stage_shape whole = shape_of(p, 0, L, p->n ? p->nodes[0].n_threads : 1);
    pl_stage_memory m = p->m->memory(p->m->user, &whole);
    uint64_t need = m.weights + m.kv + m.compute, have = 0;
    for (int32_t i = 0; i < p->n; i++) have += p->nodes[i].budget_bytes;
    pl_buf_printf(&text, "the model needs %s (weights %s, KV %s for %d positions, compute %s)", pl_format_size(need),
                  pl_format_size(m.weights), pl_format_size(m.kv), p->n_blocks * PL_KV_PAGE, pl_format_size(m.compute));
    if (p->n == 0) {
        pl_buf_printf(&text, " and there is no node");
    } else {
        pl_buf_printf(&text, "; %d node%s can give %s", p->n, p->n == 1 ? "" : "s", pl_format_size(have));
        if (need > have)
            pl_buf_printf(&text, ": %s short", pl_format_size(need - have));
        else
            pl_buf_printf(&text, ", but every stage needs its own compute and link buffers, and layers are not cut");
    }
    for (int32_t i = 0; i < p->n; i++) {
        int32_t most = 0;
        for (int32_t a = 0; a < L; a++)
            for (int32_t b = a + most + 1; b <= L; b++)
                if (fits(p, i, a, b)) most = b - a;
        uint64_t alone = *need_at(p, i, 0, L);
        pl_buf_printf(&text, "\n  %s: budget %s, holds at most %d of %d layers, alone it is %s short", p->nodes[i].name,
                      pl_format_size(p->nodes[i].budget_bytes), most, L,
                      pl_format_size(alone > p->nodes[i].budget_bytes ? alone - p->nodes[i].budget_bytes : 0));
    }
    const char *s = pl_buf_cstr(&text);
    pl_fail(err, PL_ERR_BUDGET, "%s", s ? s : "the model does not fit");
    pl_buf_fini(&text);
    return PL_ERR_BUDGET;
}

static pl_status set_up(problem *p, const pl_place_model *model, const pl_place_node *nodes, int32_t n_nodes,
                        const pl_place_want *want, pl_error *err)
{
    *p = (problem){.m = model, .want = want};
    const size_t L = (size_t)model->n_layer;
    p->rows = want->objective == PL_OBJECTIVE_THROUGHPUT ? (want->n_seqs + 1) / 2 : 1;
    PL_TRY(pick_nodes(p, nodes, n_nodes, err));
    size_t n = (size_t)(p->n ? p->n : 1);
    p->prefix = pl_calloc(n * (L + 2), sizeof *p->prefix);
    p->need = pl_calloc(n * L * (L + 1), sizeof *p->need);
    p->cells = pl_calloc(((size_t)1 << p->n) * (L + 1), sizeof *p->cells);
    if (!p->prefix || !p->need || !p->cells)
        return pl_fail(err, PL_ERR_NO_MEMORY, "placement of %d layers over %d nodes", model->n_layer, n_nodes);
    for (int32_t j = 0; j < p->n; j++) {
        double *prefix = p->prefix + (size_t)j * (L + 2);
        for (size_t u = 0; u <= L; u++) {
            double read = (double)model->unit_bytes[u] / p->nodes[j].read_bytes_s;
            double multiply = (double)p->rows * (double)model->unit_macs[u] / p->nodes[j].macs_s;
            prefix[u + 1] = prefix[u] + (read > multiply ? read : multiply);
        }
    }
    return PL_OK;
}

pl_status pl_place(pl_placement *out, const pl_place_model *model, const pl_place_node *nodes, int32_t n_nodes,
                   const pl_place_want *want, pl_error *err)
{
    *out = (pl_placement){.objective = want->objective, .alone = -1};
    problem p;
    pl_status s = set_up(&p, model, nodes, n_nodes, want, err);
    if (s == PL_OK) {
        if (shrink_to_fit(&p) && choose(&p, out)) {
            out->n_blocks = p.n_blocks;
            out->n_rows = p.n_rows;
        } else {
            s = does_not_fit(&p, err);
        }
    }
    pl_free(p.prefix);
    pl_free(p.need);
    pl_free(p.cells);
    return s;
}

static void reason(const pl_placement *p, const pl_place_node *nodes, const pl_place_want *want, pl_buf *out)
{
    const char *what = p->objective == PL_OBJECTIVE_LATENCY ? "per token" : "for the slowest stage";
    pl_buf_printf(out, "objective %s: predicted %.3f ms %s, %.3f ms per token of one stream.\n",
                  p->objective == PL_OBJECTIVE_LATENCY ? "latency" : "throughput", p->cost_s * 1e3, what,
                  p->step_s * 1e3);
    if (p->n_stages == 1 && p->n_split)
        pl_buf_printf(out,
                      "%s alone: %.3f ms; the best split, over %d nodes: %.3f ms. Splitting would not help, so the "
                      "model stays in one place.\n",
                      nodes[p->alone].name, p->alone_s * 1e3, p->n_split, p->split_s * 1e3);
    else if (want->n_stages && p->n_stages > 1 && p->alone >= 0)
        pl_buf_printf(out, "split over %d nodes, as asked: %.3f ms; %s alone: %.3f ms.\n", p->n_stages, p->cost_s * 1e3,
                      nodes[p->alone].name, p->alone_s * 1e3);
    else if (p->n_stages > 1 && p->alone >= 0)
        pl_buf_printf(out, "split over %d nodes: %.3f ms; %s alone: %.3f ms.\n", p->n_stages, p->cost_s * 1e3,
                      nodes[p->alone].name, p->alone_s * 1e3);
    else if (p->n_stages > 1)
        pl_buf_printf(out, "no node can hold the model alone, so it is split over %d.\n", p->n_stages);
}

pl_status pl_place_text(const pl_placement *p, const pl_place_model *model, const pl_place_node *nodes, int32_t n_nodes,
                        const pl_place_want *want, pl_buf *out, pl_error *err)
{
    (void)model;
    pl_buf_printf(out, "%-16s %-9s %11s %11s %11s %11s %11s %11s %10s %6s\n", "node", "layers", "weights", "kv",
                  "compute", "links", "sum", "budget", "step", "share");
    for (int32_t i = 0; i < p->n_stages; i++) {
        const pl_place_stage *s = &p->stages[i];
        char layers[32];
        snprintf(layers, sizeof layers, "%d-%d", s->layer_first, s->layer_end - 1);
        pl_buf_printf(out, "%-16s %-9s %11s %11s %11s %11s %11s %11s %7.3f ms %5.0f%%\n", nodes[s->node].name, layers,
                      pl_format_size(s->memory.weights), pl_format_size(s->memory.kv),
                      pl_format_size(s->memory.compute), pl_format_size(s->link_bytes),
                      pl_format_size(pl_place_stage_bytes(s)), pl_format_size(nodes[s->node].budget_bytes),
                      s->step_s * 1e3, p->slowest_s > 0 ? 100 * s->step_s / p->slowest_s : 100.0);
    }
    reason(p, nodes, want, out);
    for (int32_t i = 0; i < n_nodes; i++) {
        bool used = false;
        for (int32_t k = 0; k < p->n_stages; k++) used |= p->stages[k].node == i;
        if (!used)
            pl_buf_printf(out, "left out: %s (budget %s); with it the pipeline is not predicted to be faster.\n",
                          nodes[i].name, pl_format_size(nodes[i].budget_bytes));
    }
    if (p->n_rows < want->n_rows)
        pl_buf_printf(out, "micro-batches are %d rows instead of %d, to fit the budgets.\n", p->n_rows, want->n_rows);
    if (p->n_blocks < want->n_blocks)
        pl_buf_printf(out, "the KV cache is %d positions instead of %d, to fit the budgets.\n",
                      p->n_blocks * PL_KV_PAGE, want->n_blocks * PL_KV_PAGE);
    return out->failed ? pl_fail(err, PL_ERR_NO_MEMORY, "text of the plan") : PL_OK;
}
