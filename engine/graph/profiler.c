#include "engine/graph/profiler.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/alloc.h"
#include "engine/base/sys.h"
#include "engine/graph/graph_impl.h"

enum { ROWS_MAX = 64, NOTES_MAX = 8, LABEL_MAX = 96 };

/* What a row of the table stands for: the operators of a group in their order, and the weights' types of its products. */
typedef struct key {
    uint8_t ops[PL_FUSE_MEMBERS_MAX], fns[PL_FUSE_MEMBERS_MAX];
    uint8_t types[PL_FUSE_PRODUCTS_MAX];
    uint8_t n_ops, n_types;
} key;

typedef struct row {
    key key;
    char label[LABEL_MAX];
    uint64_t calls, ns, bytes, macs;
} row;

typedef struct note {
    const char *what;
    uint64_t calls, ns;
} note;

typedef struct span {
    uint64_t start_ns, end_ns; /* 0: the thread had no part in the group */
} span;

struct pl_profiler {
    FILE *trace;
    uint64_t trace_bytes, trace_bytes_max;
    bool trace_is_full;
    double read_bytes_s, macs_s;
    char how[64];
    row rows[ROWS_MAX]; /* the last one takes what has no place of its own */
    int n_rows;
    note notes[NOTES_MAX];
    int n_notes;
    uint64_t runs, first_ns, last_ns, run_ns, run_start_ns;
    const pl_graph *graph; /* that runs */
    int n_threads, threads_named;
    span *spans; /* [n_threads][groups] */
    size_t spans_cap;
};

/* --- The trace --- */

static void trace_printf(pl_profiler *p, const char *fmt, ...) PL_PRINTF(2, 3);
static void trace_printf(pl_profiler *p, const char *fmt, ...)
{
    if (!p->trace || p->trace_is_full) return;
    va_list ap;
    va_start(ap, fmt);
    int n = vfprintf(p->trace, fmt, ap);
    va_end(ap);
    if (n > 0) p->trace_bytes += (uint64_t)n;
    if (n < 0 || p->trace_bytes >= p->trace_bytes_max) p->trace_is_full = true;
}

/* The first event has no comma before it: it is the process's name, written at the opening. */
static void trace_span(pl_profiler *p, const char *name, int thread, uint64_t start_ns, uint64_t end_ns)
{
    trace_printf(p, ",\n{\"name\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f", name, (int)getpid(), thread,
                 (double)(start_ns - p->first_ns) / 1e3, (double)(end_ns - start_ns) / 1e3);
}

pl_status pl_profiler_new(pl_profiler **out, const pl_profiler_options *o, pl_error *err)
{
    *out = NULL;
    pl_profiler *p = pl_calloc(1, sizeof *p);
    if (!p) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for a profiler");
    p->trace_bytes_max = o->trace_bytes_max ? o->trace_bytes_max : 256u << 20;
    p->first_ns = pl_now_ns();
    if (o->trace_path) {
        p->trace = fopen(o->trace_path, "we");
        if (!p->trace) {
            pl_status s = pl_fail(err, PL_ERR_IO, "%s: %s", o->trace_path, strerror(errno));
            pl_free(p);
            return s;
        }
        trace_printf(p, "[{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":0,\"args\":{\"name\":\"paceline\"}}", (int)getpid());
    }
    *out = p;
    return PL_OK;
}

void pl_profiler_free(pl_profiler *p)
{
    if (!p) return;
    if (p->trace) {
        fputs("\n]\n", p->trace);
        fclose(p->trace);
    }
    pl_free(p->spans);
    pl_free(p);
}

void pl_profiler_set_peaks(pl_profiler *p, double read_bytes_s, double macs_s, const char *how)
{
    p->read_bytes_s = read_bytes_s;
    p->macs_s = macs_s;
    snprintf(p->how, sizeof p->how, "%s", how);
}

/* --- What a node costs --- */

typedef struct cost {
    uint64_t bytes, macs;
} cost;

/* Positions that attention sees, as macs takes them, and as bytes are read: rows of one sequence, which stand next to each other and
 * begin with the same page, read its cache once. The inputs are in this machine's memory, where the stage has written them. */
static void seen_positions(const pl_tensor *t, uint64_t *each, uint64_t *once)
{
    const pl_tensor *pos = t->src[2], *tables = t->src[3];
    const int32_t *p = pos->data;
    const pl_attention_options options = pl_attention_options_of(t);
    uint64_t run = 0;
    *each = *once = 0;
    for (int64_t i = 0; p && tables->data && i < pos->ne[0]; i++) {
        const int32_t *page = (const int32_t *)(const void *)((const uint8_t *)tables->data + (size_t)i * tables->nb[1]);
        const int32_t *before = (const int32_t *)(const void *)((const uint8_t *)page - (i ? tables->nb[1] : 0));
        uint64_t n = p[i] < 0 ? 0 : (uint64_t)p[i] + 1;
        if (options.window > 0 && n > (uint64_t)options.window) n = (uint64_t)options.window;
        if (options.chunk > 0 && n > 0) n = (n - 1) % (uint64_t)options.chunk + 1;
        *each += n;
        if (i > 0 && n > 0 && page[0] != before[0]) {
            *once += run;
            run = 0;
        }
        run = n > run ? n : run;
    }
    *once += run;
}

static uint64_t elements(const pl_tensor *t) { return (uint64_t)pl_tensor_elements(t); }

/* Made in the group itself: it comes from a cache. */
static bool is_inside(const pl_graph *g, const pl_graph_group *p, const pl_tensor *t)
{
    for (int i = p->first; i < p->first + p->n; i++)
        if (g->nodes[i] == t) return true;
    return false;
}

static cost cost_of(const pl_tensor *t, const pl_graph *g, const pl_graph_group *p)
{
    cost c = {0};
    pl_kv_layout kv;
    uint64_t each, once;
    switch (t->op) {
    case PL_OP_NONE:
    case PL_OP_VIEW: return c;
    case PL_OP_GET_ROWS: c.bytes = elements(t->src[1]) * (pl_type_row_size(t->src[0]->type, t->src[0]->ne[0]) + 4) + pl_tensor_bytes(t); return c;
    case PL_OP_KV_STORE:
        kv = pl_kv_layout_of(t);
        c.bytes = pl_tensor_bytes(t->src[1]) + pl_tensor_bytes(t->src[2]) + (uint64_t)t->src[1]->ne[2] * pl_kv_block_bytes(&kv) / PL_KV_PAGE;
        return c;
    case PL_OP_ATTENTION:
        seen_positions(t, &each, &once);
        kv = pl_kv_layout_of(t->src[1]);
        c.bytes = once * pl_kv_block_bytes(&kv) / PL_KV_PAGE + pl_tensor_bytes(t->src[0]) + pl_tensor_bytes(t);
        c.macs = each * (uint64_t)(kv.d_k + kv.d_v) * (uint64_t)t->src[0]->ne[1];
        return c;
    case PL_OP_SET_ROWS:
        c.bytes = pl_tensor_bytes(t->src[1]) + elements(t->src[2]) * (pl_type_row_size(t->type, t->ne[0]) + 4);
        return c;
    case PL_OP_MUL_MAT:
    case PL_OP_MUL_MAT_BATCH:
    case PL_OP_MUL_MAT_ID: {
        uint64_t terms = t->params.i[0] && pl_type_get(t->src[0]->type)->act != PL_ACT_F32 ? 2 : 1; /* of a precise product */
        c.macs = terms * (uint64_t)t->src[0]->ne[0] * elements(t);
        if (t->op != PL_OP_MUL_MAT_ID) break;
        /* Of all experts, as many as have rows at the most. */
        uint64_t matrices = (uint64_t)t->src[0]->ne[2], rows = elements(t->src[2]);
        c.bytes = pl_tensor_bytes(t) + pl_tensor_bytes(t->src[1]) + pl_tensor_bytes(t->src[0]) / matrices * (rows < matrices ? rows : matrices);
        return c;
    }
    default: break;
    }
    c.bytes = pl_tensor_bytes(t);
    for (int s = 0; s < PL_MAX_SRC; s++)
        if (t->src[s] && !is_inside(g, p, t->src[s])) c.bytes += pl_tensor_bytes(t->src[s]);
    return c;
}

/* --- Rows --- */

static key key_of(const pl_graph *g, const pl_graph_group *p)
{
    key k = {0};
    for (int i = p->first; i < p->first + p->n; i++) {
        const pl_tensor *t = g->nodes[i];
        if (t->op == PL_OP_VIEW) continue;
        if (t->op == PL_OP_MUL_MAT && k.n_types < PL_FUSE_PRODUCTS_MAX) k.types[k.n_types++] = (uint8_t)t->src[0]->type;
        if (k.n_ops == PL_FUSE_MEMBERS_MAX) break;
        if (t->op == PL_OP_UNARY || t->op == PL_OP_GLU) k.fns[k.n_ops] = (uint8_t)t->params.i[0];
        k.ops[k.n_ops++] = (uint8_t)t->op;
    }
    return k;
}

/* "mul_mat x2 Q4_1 + swiglu", "add + rms_norm" */
static void write_label(row *r)
{
    char *at = r->label, *end = r->label + sizeof r->label;
    for (int i = 0; i < r->key.n_ops;) {
        int same = 1;
        while (i + same < r->key.n_ops && r->key.ops[i + same] == r->key.ops[i] && r->key.fns[i + same] == r->key.fns[i])
            same++;
        if (at < end) at += snprintf(at, (size_t)(end - at), "%s%s", i ? " + " : "", pl_op_label((pl_op)r->key.ops[i], (pl_fn)r->key.fns[i]));
        if (same > 1 && at < end) at += snprintf(at, (size_t)(end - at), " x%d", same);
        for (int t = 0; i == 0 && t < r->key.n_types && at < end; t++)
            if (t == 0 || r->key.types[t] != r->key.types[t - 1])
                at += snprintf(at, (size_t)(end - at), "%s%s", t ? "/" : " ", pl_type_name((pl_type)r->key.types[t]));
        i += same;
    }
}

static row *row_of(pl_profiler *p, const key *k)
{
    for (int i = 0; i < p->n_rows; i++)
        if (memcmp(&p->rows[i].key, k, sizeof *k) == 0) return &p->rows[i];
    if (p->n_rows == ROWS_MAX) return &p->rows[ROWS_MAX - 1];
    row *r = &p->rows[p->n_rows++];
    r->key = *k;
    if (p->n_rows == ROWS_MAX)
        snprintf(r->label, sizeof r->label, "others");
    else
        write_label(r);
    return r;
}

/* The first source with a name, of which only what cannot end or break a JSON string: it comes from a file. */
static void first_name(const pl_tensor *t, char out[PL_NAME_MAX])
{
    size_t n = 0;
    for (int s = 0; s < PL_MAX_SRC && n == 0; s++)
        for (const char *p = t->src[s] ? t->src[s]->name : ""; *p; p++)
            if (*p > ' ' && *p < 127 && *p != '"' && *p != '\\') out[n++] = *p;
    out[n] = 0;
}

bool pl_profiler_begin(pl_profiler *p, const pl_graph *g, int n_threads)
{
    size_t n = (size_t)g->n_groups * (size_t)n_threads;
    if (n > p->spans_cap) {
        span *spans = pl_realloc(p->spans, n * sizeof *spans);
        if (!spans) return false;
        p->spans = spans;
        p->spans_cap = n;
    }
    memset(p->spans, 0, n * sizeof *p->spans);
    for (; p->threads_named < n_threads; p->threads_named++)
        trace_printf(p, ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"compute %d\"}}", (int)getpid(),
                     p->threads_named, p->threads_named);
    p->graph = g;
    p->n_threads = n_threads;
    p->run_start_ns = pl_now_ns();
    return true;
}

void pl_profiler_span(pl_profiler *p, int i_thread, int group, uint64_t start_ns, uint64_t end_ns)
{
    p->spans[(size_t)i_thread * (size_t)p->graph->n_groups + (size_t)group] = (span){start_ns, end_ns};
}

void pl_profiler_end(pl_profiler *p)
{
    const pl_graph *g = p->graph;
    p->last_ns = pl_now_ns();
    p->runs++;
    p->run_ns += p->last_ns - p->run_start_ns;
    for (int k = 0; k < g->n_groups; k++) {
        const pl_graph_group *group = &g->groups[k];
        uint64_t start = UINT64_MAX, end = 0;
        cost c = {0};
        key of = key_of(g, group);
        if (of.n_ops == 0) continue;
        row *r = row_of(p, &of);
        for (int i = group->first; i < group->first + group->n; i++) {
            cost one = cost_of(g->nodes[i], g, group);
            c.bytes += one.bytes;
            c.macs += one.macs;
        }
        if (group->n_products > 1) /* they share their x */
            c.bytes -= (uint64_t)(group->n_products - 1) * pl_tensor_bytes(g->nodes[group->first]->src[1]);
        for (int t = 0; t < p->n_threads; t++) {
            const span *s = &p->spans[(size_t)t * (size_t)g->n_groups + (size_t)k];
            if (s->end_ns == 0) continue;
            start = s->start_ns < start ? s->start_ns : start;
            end = s->end_ns > end ? s->end_ns : end;
            trace_span(p, r->label, t, s->start_ns, s->end_ns);
            char name[PL_NAME_MAX];
            first_name(g->nodes[group->first], name);
            trace_printf(p, ",\"args\":{\"group\":%d,\"of\":\"%s\",\"rows\":%" PRId64 ",\"bytes\":%" PRIu64 "}}", k, name,
                         pl_tensor_rows(g->nodes[group->first]), c.bytes);
        }
        if (end == 0) continue;
        r->calls++;
        r->ns += end - start;
        r->bytes += c.bytes;
        r->macs += c.macs;
    }
    p->graph = NULL;
}

void pl_profiler_note(pl_profiler *p, const char *what, uint64_t start_ns, uint64_t end_ns)
{
    int i = 0;
    while (i < p->n_notes && strcmp(p->notes[i].what, what) != 0) i++;
    if (i == NOTES_MAX) return;
    if (i == p->n_notes) p->notes[p->n_notes++] = (note){.what = what};
    p->notes[i].calls++;
    p->notes[i].ns += end_ns - start_ns;
    p->last_ns = end_ns;
    trace_span(p, what, 0, start_ns, end_ns);
    trace_printf(p, "}");
}

/* --- The table --- */

static int by_time(const void *a, const void *b)
{
    const row *x = a, *y = b;
    return x->ns < y->ns ? 1 : x->ns > y->ns ? -1 : strcmp(x->label, y->label);
}

static double per_s(uint64_t n, uint64_t ns) { return ns ? (double)n * 1e9 / (double)ns : 0; }
static double share(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

pl_status pl_profiler_print(const pl_profiler *p, pl_buf *out, pl_error *err)
{
    row rows[ROWS_MAX];
    memcpy(rows, p->rows, sizeof rows);
    qsort(rows, (size_t)p->n_rows, sizeof *rows, by_time);
    uint64_t ns = 0, bytes = 0, macs = 0;
    pl_buf_printf(out, "profile: %" PRIu64 " runs of graphs in %.3f s, %s\n", p->runs, (double)p->run_ns / 1e9, p->how);
    pl_buf_printf(out, "at most: %.1f GB/s read, %.1f G multiply-adds/s in products of Q8_0 from a cache\n", p->read_bytes_s / 1e9, p->macs_s / 1e9);
    pl_buf_printf(out, "%-44s %8s %10s %6s %10s %8s %6s %8s %6s\n", "operator", "calls", "ms", "time", "MB", "GB/s", "peak", "GMAC/s", "peak");
    for (int i = 0; i < p->n_rows; i++) {
        const row *r = &rows[i];
        double rate = per_s(r->bytes, r->ns), mac_rate = per_s(r->macs, r->ns);
        pl_buf_printf(out, "%-44s %8" PRIu64 " %10.2f %5.1f%% %10.1f %8.1f %5.1f%% %8.1f %5.1f%%\n", r->label, r->calls, (double)r->ns / 1e6,
                      share((double)r->ns, (double)p->run_ns), (double)r->bytes / 1e6, rate / 1e9, share(rate, p->read_bytes_s), mac_rate / 1e9,
                      share(mac_rate, p->macs_s));
        ns += r->ns;
        bytes += r->bytes;
        macs += r->macs;
    }
    uint64_t between = p->run_ns > ns ? p->run_ns - ns : 0;
    pl_buf_printf(out, "%-44s %8s %10.2f %5.1f%%\n", "(waiting between operators)", "", (double)between / 1e6, share((double)between, (double)p->run_ns));
    double rate = per_s(bytes, p->run_ns), mac_rate = per_s(macs, p->run_ns);
    pl_buf_printf(out, "%-44s %8" PRIu64 " %10.2f %5.1f%% %10.1f %8.1f %5.1f%% %8.1f %5.1f%%\n", "all", p->runs, (double)p->run_ns / 1e6, 100.0,
                  (double)bytes / 1e6, rate / 1e9, share(rate, p->read_bytes_s), mac_rate / 1e9, share(mac_rate, p->macs_s));
    for (int i = 0; i < p->n_notes; i++)
        pl_buf_printf(out, "%-44s %8" PRIu64 " %10.2f\n", p->notes[i].what, p->notes[i].calls, (double)p->notes[i].ns / 1e6);
    if (p->trace_is_full) pl_buf_printf(out, "The trace is full: it ends after %" PRIu64 " MiB.\n", p->trace_bytes >> 20);
    return out->failed ? pl_fail(err, PL_ERR_NO_MEMORY, "no memory for the profile's table") : PL_OK;
}
