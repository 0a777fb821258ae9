/* How fast this machine multiplies: one token against weights that no cache holds, and many tokens against one matrix.
 */
#include "engine/base/alloc.h"
#include "engine/base/sys.h"
#include "engine/stage/stage.h"

/* Q4_0, the commonest size of weight. Decoding: matrices like those of a layer, together larger than the last cache of
 * most machines. Prompts: 128 rows are where a product's speed has levelled off. */
enum { K = 2048, M = 4096, N_MATRICES = 12, N_PROMPT_ROWS = 128, ROUNDS_NS = 40 * 1000 * 1000 };

typedef struct product {
    pl_graph_ctx *ctx;
    pl_graph *graph;
    pl_backend_buffer *buffer;
    void *scratch;
} product;

static void free_product(product *p, pl_backend *b)
{
    b->vt->buffer_free(b, p->buffer);
    pl_graph_ctx_free(p->ctx);
    *p = (product){0};
}

static pl_status make_product(product *p, pl_backend *b, const uint8_t *weights, int n_matrices, int64_t n_rows,
                              pl_error *err)
{
    *p = (product){0};
    const int64_t ne[4] = {K, M, 1, 1};
    pl_layout layout = b->vt->best_layout(b, PL_TYPE_Q4_0, ne);
    PL_TRY(pl_graph_ctx_new(&p->ctx, err));
    pl_tensor *x = pl_new_input(p->ctx, PL_TYPE_F32, 2, (int64_t[]){K, n_rows}, "x");
    pl_tensor *outputs[N_MATRICES];
    for (int i = 0; i < n_matrices; i++)
        outputs[i] = pl_mul_mat_precise(p->ctx, /* as most products of a model are */
                                        pl_new_weight(p->ctx, PL_TYPE_Q4_0, layout, 2, ne,
                                                      weights + (size_t)i * M * pl_type_row_size(PL_TYPE_Q4_0, K), "w"),
                                        x, PL_TWO_TERMS_WHERE_LARGE);
    size_t peak;
    PL_TRY(pl_graph_build(&p->graph, p->ctx, outputs, n_matrices, err));
    PL_TRY(pl_graph_plan(p->graph, b->alignment, &peak, err));
    peak = (peak + b->alignment - 1) / b->alignment * b->alignment;
    PL_TRY(b->vt->buffer_new(b, peak + b->vt->scratch(b, p->graph), &p->buffer, err));
    pl_graph_bind(p->graph, b->vt->buffer_base(p->buffer));
    p->scratch = (uint8_t *)b->vt->buffer_base(p->buffer) + peak;
    return PL_OK;
}

/* Seconds of the quickest of the runs that fit into the time: what else the machine does only adds. */
static pl_status time_product(const product *p, pl_backend *b, double *seconds, pl_error *err)
{
    uint64_t start = pl_now_ns(), best = UINT64_MAX, now = start;
    PL_TRY(b->vt->compute(b, p->graph, p->scratch, err)); /* warms up: page faults, threads */
    do {
        uint64_t before = pl_now_ns();
        PL_TRY(b->vt->compute(b, p->graph, p->scratch, err));
        now = pl_now_ns();
        if (now - before < best) best = now - before;
    } while (now - start < ROUNDS_NS);
    *seconds = (double)(best > 0 ? best : 1) / 1e9;
    return PL_OK;
}

pl_status pl_stage_bench(pl_bench *out, int32_t n_threads, uint64_t bytes_max, pl_error *err)
{
    *out = (pl_bench){0};
    const size_t size = (size_t)M * pl_type_row_size(PL_TYPE_Q4_0, K);
    int n_matrices = bytes_max && bytes_max / 2 < size * N_MATRICES ? (int)(bytes_max / 2 / size) : N_MATRICES;
    if (n_matrices < 1) n_matrices = 1;
    pl_pool *pool = NULL;
    pl_backend *b = NULL;
    product p = {0};
    double seconds;
    pl_status s;
    /* Any bits are valid weights, and the time does not depend on them; zeros would be one page of the system's. */
    uint8_t *weights = pl_alloc_aligned(64, size * (size_t)n_matrices);
    if (weights == NULL)
        return pl_fail(err, PL_ERR_NO_MEMORY, "benchmark: no memory for %zu bytes", size * (size_t)n_matrices);
    memset(weights, 0x11, size * (size_t)n_matrices);
    if ((s = pl_pool_new(&pool, (pl_pool_options){.n_threads = n_threads, .poll = -1}, err)) != PL_OK) goto end;
    if ((s = pl_cpu_backend_new(&b, pool, err)) != PL_OK) goto end;
    if ((s = make_product(&p, b, weights, n_matrices, 1, err)) != PL_OK) goto end;
    if ((s = time_product(&p, b, &seconds, err)) != PL_OK) goto end;
    out->read_bytes_s = (double)(size * (size_t)n_matrices) / seconds;
    free_product(&p, b);
    if ((s = make_product(&p, b, weights, 1, N_PROMPT_ROWS, err)) != PL_OK) goto end;
    if ((s = time_product(&p, b, &seconds, err)) != PL_OK) goto end;
    out->prefill_macs_s = (double)K * M * N_PROMPT_ROWS / seconds;
end:
    if (b) {
        free_product(&p, b);
        b->vt->free(b);
    }
    pl_pool_free(pool);
    pl_free(weights);
    return s;
}
