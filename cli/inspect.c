#include "cli/inspect.h"

#include "cli/cluster.h"

#include <stdio.h>
#include <string.h>

#include "engine/stage/stage.h"

static const char default_trace[] = "paceline-trace.json";

/* As the coordinator's: see coordinator.c. */
enum { CTX_DEFAULT = 4096 };

static pl_status dump(const cli_options *o, pl_buf *out, pl_error *err)
{
    pl_graph_format format;
    if (*o->dump_graph == 0 || strcmp(o->dump_graph, "text") == 0)
        format = PL_GRAPH_TEXT;
    else if (strcmp(o->dump_graph, "dot") == 0)
        format = PL_GRAPH_DOT;
    else
        return pl_fail(err, PL_ERR_INVALID, "--dump-graph=%s: text or dot", o->dump_graph);
    if (!o->model) return pl_fail(err, PL_ERR_INVALID, "--dump-graph needs a model: give it with -m");
    pl_cache_types cache;
    PL_TRY(cache_from_options(&cache, o, err));
    pl_gguf *g = NULL;
    pl_model_profile *p = NULL;
    pl_status s = pl_gguf_open(&g, o->model, err);
    if (s == PL_OK) s = pl_model_profile_open(&p, g, err);
    if (s == PL_OK) {
        int32_t n_train = pl_model_n_ctx_train(p);
        int32_t n_ctx = o->n_ctx > 0 ? o->n_ctx : n_train > 0 && n_train < CTX_DEFAULT ? n_train : CTX_DEFAULT;
        int32_t n_rows = o->n_rows > 0 ? o->n_rows : 1;
        pl_stage_shape shape = {.layer_end = pl_model_n_layer(p),
                                .n_blocks = (n_ctx + PL_KV_PAGE - 1) / PL_KV_PAGE,
                                .n_ctx = n_ctx,
                                .n_seqs = 1,
                                .n_rows = n_rows,
                                .n_threads = 1,
                                .cache = cache};
        s = pl_stage_dump_graph(p, &shape, n_rows, 1, !o->no_fuse, format, out, err);
    }
    pl_model_profile_close(p);
    pl_gguf_close(g);
    return s;
}

int inspect_dump_graph(const cli_options *o)
{
    pl_buf text = {0};
    pl_error err;
    pl_status s = dump(o, &text, &err);
    if (s == PL_OK && text.size > 0) fwrite(text.data, 1, text.size, stdout);
    pl_buf_fini(&text);
    return s == PL_OK ? 0 : cli_fail(&err);
}

static const char *trace_path(const cli_options *o)
{
    return *o->profile ? o->profile : default_trace;
}

pl_status inspect_profiler(pl_profiler **out, const cli_options *o, pl_error *err)
{
    *out = NULL;
    return o->profile ? pl_profiler_new(out, &(pl_profiler_options){.trace_path = trace_path(o)}, err) : PL_OK;
}

void inspect_profiler_end(pl_profiler *p, const cli_options *o)
{
    if (!p) return;
    pl_buf text = {0};
    pl_error err;
    if (pl_profiler_print(p, &text, &err) == PL_OK && text.size > 0) fwrite(text.data, 1, text.size, stderr);
    fprintf(stderr, "trace: %s, for https://ui.perfetto.dev or chrome://tracing\n", trace_path(o));
    pl_buf_fini(&text);
    pl_profiler_free(p);
}
