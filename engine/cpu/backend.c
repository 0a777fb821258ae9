/* The CPU backend: a graph runs as one job of the pool, all threads walking the nodes together.
 *
 * What runs is groups of nodes (engine/graph/fuse.h), most of them of one node. A group is small or large. Small ones are run by
 * thread 0 alone, one after the other without a fence, while the others go on to the next large one and wait there; a large one
 * is split among all threads, with a barrier on either side. In decoding one token all but the products and attention are small,
 * which is what keeps a layer at a handful of barriers. Which groups are small follows from shapes alone, and no result depends
 * on it. */
#include <string.h>
#include <sys/mman.h>

#include "engine/base/alloc.h"
#include "engine/base/sys.h"
#include "engine/cpu/cpu.h"
#include "engine/cpu/mm.h"
#include "engine/cpu/ops.h"
#include "engine/cpu/pack.h"
#include "engine/graph/scratch.h"

enum { ALIGN = 64, HUGE_PAGE = 2 << 20 };

typedef struct cpu_backend {
    pl_backend base;
    pl_pool *pool;
    pl_cpu_kernels kernels;
    pl_profiler *profiler; /* NULL: none */
} cpu_backend;

struct pl_backend_buffer {
    void *base;
};

/* cost: what an element takes, in about the time of one addition. A node of less than SMALL is not worth a barrier.
 * scratch: bytes with the head, which the operator overwrites behind the head; NULL: none. supported: NULL: always, since op.h lets
 * nothing else be built. */
typedef struct op_row {
    void (*run)(const pl_cpu_op *o);
    int cost;
    size_t (*scratch)(const pl_tensor *t, int n_threads);
    bool (*supported)(const pl_tensor *t);
} op_row;

enum { ALWAYS_LARGE = 0, SMALL = 16384 };

static bool get_rows_supported(const pl_tensor *t)
{
    const pl_tensor *table = t->src[0];
    return pl_type_get(table->type)->to_float && (table->layout == PL_LAYOUT_PLAIN || pl_pack_supported(table->type, table->ne));
}

/* MUL_MAT has no function here: groups of products run by themselves. */
static const op_row ops[PL_OP_COUNT] = {
    [PL_OP_NONE] = {0},
    [PL_OP_VIEW] = {0},
    [PL_OP_GET_ROWS] = {pl_cpu_op_get_rows, 4, NULL, get_rows_supported},
    [PL_OP_MUL_MAT] = {NULL, ALWAYS_LARGE, pl_cpu_mul_mat_scratch, pl_cpu_mul_mat_supported},
    [PL_OP_MUL_MAT_BATCH] = {pl_cpu_op_mul_mat_id, ALWAYS_LARGE, pl_cpu_mul_mat_id_scratch, pl_cpu_mul_mat_id_supported},
    [PL_OP_MUL_MAT_ID] = {pl_cpu_op_mul_mat_id, ALWAYS_LARGE, pl_cpu_mul_mat_id_scratch, pl_cpu_mul_mat_id_supported},
    [PL_OP_RMS_NORM] = {pl_cpu_op_rms_norm, 2},
    [PL_OP_LAYER_NORM] = {pl_cpu_op_layer_norm, 3},
    [PL_OP_L2_NORM] = {pl_cpu_op_l2_norm, 2},
    [PL_OP_ADD] = {pl_cpu_op_binary, 1},
    [PL_OP_SUB] = {pl_cpu_op_binary, 1},
    [PL_OP_MUL] = {pl_cpu_op_binary, 1},
    [PL_OP_DIV] = {pl_cpu_op_binary, 2},
    [PL_OP_SCALE] = {pl_cpu_op_elements, 1},
    [PL_OP_CLAMP] = {pl_cpu_op_elements, 1},
    [PL_OP_SOFTCAP] = {pl_cpu_op_elements, 6},
    [PL_OP_UNARY] = {pl_cpu_op_elements, 4},
    [PL_OP_GLU] = {pl_cpu_op_elements, 4},
    [PL_OP_ROPE] = {pl_cpu_op_rope, 2},
    [PL_OP_KV_STORE] = {pl_cpu_op_kv_store, 16},
    [PL_OP_ATTENTION] = {pl_cpu_op_attention, ALWAYS_LARGE, pl_cpu_attention_scratch, NULL},
    [PL_OP_COPY] = {pl_cpu_op_copy, 2},
    [PL_OP_CONCAT] = {pl_cpu_op_concat, 1},
    [PL_OP_REPEAT] = {pl_cpu_op_repeat, 1},
    [PL_OP_SET_ROWS] = {pl_cpu_op_set_rows, 4},
    [PL_OP_TAKE] = {pl_cpu_op_take, 4},
    [PL_OP_TOP_K] = {pl_cpu_op_top_k, 16},
    [PL_OP_SOFTMAX] = {pl_cpu_op_softmax, 6},
    [PL_OP_SUM_ROWS] = {pl_cpu_op_sum_rows, 1},
    [PL_OP_WEIGHTED_SUM] = {pl_cpu_op_weighted_sum, 1},
    [PL_OP_MEAN] = {pl_cpu_op_mean, 1},
};

static const cpu_backend *of(const pl_backend *b) { return (const cpu_backend *)b; }

static int64_t cost_of(const pl_tensor *t)
{
    if (ops[t->op].cost == ALWAYS_LARGE) return SMALL;
    const pl_tensor *sized = t; /* what is stored, not all of what it is stored in; what is read, where less comes out */
    if (t->op == PL_OP_KV_STORE || t->op == PL_OP_SET_ROWS) sized = t->src[1];
    if (t->op == PL_OP_TOP_K || t->op == PL_OP_SUM_ROWS || t->op == PL_OP_WEIGHTED_SUM || t->op == PL_OP_MEAN) sized = t->src[0];
    return pl_tensor_elements(sized) * ops[t->op].cost;
}

static bool is_nothing(const pl_tensor *t) { return t->op == PL_OP_VIEW || pl_tensor_elements(t) == 0; }

/* A group whose rows are fewer than the threads would leave some without work, so one thread does it all. */
static bool is_small(const pl_graph *g, const pl_graph_group *group, int n_threads)
{
    if (group->kind == PL_FUSE_ROWS && group->n_rows < n_threads) return true;
    int64_t cost = 0;
    for (int i = group->first; i < group->first + group->n && cost < SMALL; i++)
        if (!is_nothing(pl_graph_node(g, i))) cost += cost_of(pl_graph_node(g, i));
    return cost < SMALL;
}

typedef struct job {
    const cpu_backend *b;
    const pl_graph *g;
    void *scratch;
    pl_profiler *profiler;
} job;

/* One thread's view of the group that it runs. */
typedef struct group_run {
    const job *j;
    const pl_graph_group *group;
} group_run;

/* The members behind the products that belong to a lane, on the part that the products have just computed. */
static void run_results(void *user, int lane, int64_t row_first, int64_t row_end, int64_t col_first, int64_t col_end)
{
    const group_run *r = user;
    const pl_graph_group *group = r->group;
    const pl_cpu_part part = {row_first, row_end, col_first, col_end};
    for (int i = group->first + group->n_products; i < group->first + group->n; i++) {
        const pl_tensor *t = pl_graph_node(r->j->g, i);
        if (pl_graph_lane(r->j->g, i) != lane) continue;
        pl_cpu_op o = {.k = &r->j->b->kernels, .t = t, .scratch = r->j->scratch, .n_threads = 1, .part = &part};
        ops[t->op].run(&o);
    }
}

static void run_products(const job *j, const pl_graph_group *group, pl_team *team, int i_thread, int n_threads)
{
    const pl_tensor *dst[PL_CPU_MUL_MAT_TOGETHER];
    group_run r = {j, group};
    pl_cpu_results results = {.done = run_results, .user = &r};
    for (int i = 0; i < group->n_products; i++) {
        dst[i] = pl_graph_node(j->g, group->first + i);
        results.lane[i] = pl_graph_lane(j->g, group->first + i);
    }
    bool follows = group->n > group->n_products;
    pl_cpu_mul_mat(team, i_thread, n_threads, dst, group->n_products, follows ? &results : NULL, j->scratch,
                   &j->b->kernels);
}

/* All members on part first, then on the next part, to part end - 1 of n: with as many parts as rows, part i is row i. */
static void run_rows(const job *j, const pl_graph_group *group, int64_t first, int64_t end, int64_t n)
{
    for (int64_t row = first; row < end; row++)
        for (int i = group->first; i < group->first + group->n; i++) {
            const pl_tensor *t = pl_graph_node(j->g, i);
            if (is_nothing(t)) continue;
            pl_cpu_op o = {.k = &j->b->kernels, .t = t, .scratch = j->scratch, .i_thread = (int)row, .n_threads = (int)n};
            ops[t->op].run(&o);
        }
}

/* A thread's part of a group, behind the barrier before it. */
static void run_group(const job *j, const pl_graph_group *group, bool small, pl_team *team, int i_thread, int n_threads)
{
    const pl_tensor *t = pl_graph_node(j->g, group->first);
    if (t->op == PL_OP_MUL_MAT) {
        run_products(j, group, team, i_thread, n_threads);
        return;
    }
    if (group->kind == PL_FUSE_ROWS) {
        int64_t n = group->n_rows;
        if (small)
            run_rows(j, group, 0, 1, 1); /* whatever the rows are, as one */
        else
            run_rows(j, group, n * i_thread / n_threads, n * (i_thread + 1) / n_threads, n);
        return;
    }
    if (ops[t->op].scratch && i_thread == 0) pl_cpu_mul_mat_begin(j->scratch); /* its scratch is written */
    pl_cpu_op o = {.k = &j->b->kernels,
                   .t = t,
                   .scratch = j->scratch,
                   .team = team,
                   .i_thread = i_thread,
                   .n_threads = small ? 1 : n_threads};
    ops[t->op].run(&o);
}

static void run_graph(pl_team *team, int i_thread, int n_threads, void *user)
{
    const job *j = user;
    bool dirty = false; /* whether something ran since the last barrier */
    bool after_large = false;
    for (int k = 0; k < pl_graph_n_groups(j->g); k++) {
        const pl_graph_group *group = pl_graph_group_at(j->g, k);
        if (group->kind == PL_FUSE_NONE && is_nothing(pl_graph_node(j->g, group->first))) continue;
        bool small = is_small(j->g, group, n_threads);
        if (n_threads > 1 && dirty && (!small || after_large)) {
            pl_team_barrier(team);
            dirty = false;
        }
        dirty = true;
        after_large = !small;
        if (small && i_thread != 0) continue;
        if (!j->profiler) {
            run_group(j, group, small, team, i_thread, n_threads);
            continue;
        }
        uint64_t start = pl_now_ns();
        run_group(j, group, small, team, i_thread, n_threads);
        pl_profiler_span(j->profiler, i_thread, k, start, pl_now_ns());
    }
}

static pl_status compute(pl_backend *b, pl_graph *g, void *scratch, pl_error *err)
{
    (void)err; /* what could go wrong was checked by supports and by the planner */
    pl_profiler *p = of(b)->profiler;
    if (p && !pl_profiler_begin(p, g, pl_pool_threads(of(b)->pool))) p = NULL;
    job j = {of(b), g, scratch, p};
    pl_cpu_mul_mat_begin(scratch);
    pl_pool_run(of(b)->pool, run_graph, &j);
    if (p) pl_profiler_end(p);
    return PL_OK;
}

static void set_profiler(pl_backend *b, pl_profiler *p) { ((cpu_backend *)b)->profiler = p; }

static size_t scratch_of(const pl_backend *b, const pl_graph *g)
{
    int n_threads = pl_pool_threads(of(b)->pool);
    size_t most = PL_SCRATCH_HEAD;
    for (int i = 0; i < pl_graph_n_nodes(g); i++) {
        const pl_tensor *t = pl_graph_node(g, i);
        size_t n = ops[t->op].scratch ? ops[t->op].scratch(t, n_threads) : 0;
        if (n > most) most = n;
    }
    return most;
}

static bool supports(const pl_backend *b, const pl_tensor *t)
{
    (void)b;
    if ((unsigned)t->op >= PL_OP_COUNT) return false;
    return ops[t->op].supported == NULL || ops[t->op].supported(t);
}

static pl_status buffer_new(pl_backend *b, size_t size, pl_backend_buffer **out, pl_error *err)
{
    (void)b;
    *out = pl_calloc(1, sizeof **out);
    if (!*out) return pl_fail(err, PL_ERR_NO_MEMORY, "cpu buffer: no memory");
    (*out)->base = pl_alloc_aligned(size >= HUGE_PAGE ? HUGE_PAGE : ALIGN, size ? size : 1);
    if (!(*out)->base) {
        pl_free(*out);
        *out = NULL;
        return pl_fail(err, PL_ERR_NO_MEMORY, "cpu buffer: no memory for %zu bytes", size);
    }
    /* Advice, which a system without huge pages may refuse. */
    if (size >= HUGE_PAGE) madvise((*out)->base, size / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
    memset((*out)->base, 0, size);
    return PL_OK;
}

static void buffer_free(pl_backend *b, pl_backend_buffer *buf)
{
    (void)b;
    if (!buf) return;
    pl_free(buf->base);
    pl_free(buf);
}

static void *buffer_base(pl_backend_buffer *buf) { return buf->base; }

static pl_status copy_bytes(pl_backend *b, void *dst, const void *src, size_t size, pl_error *err)
{
    (void)b;
    (void)err;
    memcpy(dst, src, size);
    return PL_OK;
}

static pl_layout best_layout(const pl_backend *b, pl_type type, const int64_t ne[4])
{
    (void)b;
    return pl_pack_supported(type, ne) ? PL_LAYOUT_R16 : PL_LAYOUT_PLAIN;
}

static void copy_rows(pl_type type, const int64_t ne[4], const void *src, void *dst, int64_t row_first, int64_t row_end)
{
    size_t row = pl_type_row_size(type, ne[0]), at = row * (size_t)row_first;
    memcpy((uint8_t *)dst + at, (const uint8_t *)src + at, row * (size_t)(row_end - row_first));
}

static void pack(const pl_backend *b, pl_layout layout, pl_type type, const int64_t ne[4], const void *src, void *dst,
                 int64_t row_first, int64_t row_end)
{
    (void)b;
    (layout == PL_LAYOUT_R16 ? pl_pack_rows : copy_rows)(type, ne, src, dst, row_first, row_end);
}

static void unpack(const pl_backend *b, pl_layout layout, pl_type type, const int64_t ne[4], const void *src, void *dst,
                   int64_t row_first, int64_t row_end)
{
    (void)b;
    (layout == PL_LAYOUT_R16 ? pl_unpack_rows : copy_rows)(type, ne, src, dst, row_first, row_end);
}

static void memory(const pl_backend *b, uint64_t *available, uint64_t *total)
{
    (void)b;
    *available = pl_sys_memory_available();
    *total = pl_sys_memory_total();
}

static const char *profile(const pl_backend *b)
{
    (void)b;
    return "ieee-fma-1";
}

static void backend_free(pl_backend *b) { pl_free(b); }

static const pl_backend_vt vtable = {
    .name = "cpu",
    .fusions = PL_FUSE_ALL,
    .free = backend_free,
    .buffer_new = buffer_new,
    .buffer_free = buffer_free,
    .buffer_base = buffer_base,
    .copy_in = copy_bytes,
    .copy_out = copy_bytes,
    .copy = copy_bytes,
    .supports = supports,
    .scratch = scratch_of,
    .compute = compute,
    .set_profiler = set_profiler,
    .best_layout = best_layout,
    .pack = pack,
    .unpack = unpack,
    .memory = memory,
    .profile = profile,
};

pl_status pl_cpu_backend_new(pl_backend **out, pl_pool *pool, pl_error *err)
{
    *out = NULL;
    pl_isa isa;
    PL_TRY(pl_isa_choose(&isa, err));
    cpu_backend *b = pl_calloc(1, sizeof *b);
    if (!b) return pl_fail(err, PL_ERR_NO_MEMORY, "cpu backend: no memory");
    b->base.vt = &vtable;
    b->base.alignment = ALIGN;
    b->pool = pool;
    pl_cpu_kernels_choose(&b->kernels, isa);
    *out = &b->base;
    return PL_OK;
}
