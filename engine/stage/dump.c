#include "engine/model/model.h"
#include "engine/stage/stage.h"

pl_status pl_stage_dump_graph(const pl_model_profile *profile, const pl_stage_shape *shape, int32_t n_rows, int32_t n_out,
                              bool fuse, pl_graph_format format, pl_buf *out, pl_error *err)
{
    PL_TRY(pl_shape_check(shape, profile, err));
    pl_pool *pool = NULL;
    pl_backend *b = NULL;
    pl_graph_ctx *c = NULL;
    pl_graph *g;
    pl_model_graph io;
    size_t peak;
    pl_graph_request r = pl_graph_request_of(shape, profile, n_rows, n_out); /* without weights: nothing is computed */
    pl_status s;
    if ((s = pl_pool_new(&pool, (pl_pool_options){.n_threads = 1}, err)) == PL_OK &&
        (s = pl_cpu_backend_new(&b, pool, err)) == PL_OK && (s = pl_graph_ctx_new(&c, err)) == PL_OK &&
        (s = pl_model_graph_build(&g, &io, c, profile, &r, err)) == PL_OK) {
        if (fuse) pl_graph_fuse(g, b->vt->fusions);
        s = pl_graph_plan(g, PL_MODEL_ALIGN, &peak, err);
        if (s == PL_OK) s = pl_graph_print(g, format, out, err);
    }
    pl_graph_ctx_free(c);
    if (b) b->vt->free(b);
    pl_pool_free(pool);
    return s;
}
