/* How fast one stage with all layers is: prompt and generation, one JSON object a line.
 *
 *   paceline-bench-stage -m FILE [-t THREADS] [-p TOKENS] [-n TOKENS] [-b SEQUENCES] [-r ROUNDS] [-c CACHE-FOLDER]
 * [--no-pack]
 *
 * {"model":…,"test":"pp512","threads":2,"tok_s":…} is the median of the rounds; "batchB" generates for B sequences at
 * once. */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/alloc.h"
#include "engine/base/sys.h"
#include "engine/stage/load.h"

typedef struct setup {
    const char *model, *cache;
    int32_t n_threads, n_prompt, n_generate, n_batch, n_rounds;
    bool no_pack, f32;
} setup;

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Tokens that repeat no pattern, so that every round does the same work. */
static int32_t token_at(int32_t i, int32_t n_vocab)
{
    return (int32_t)(((uint32_t)i * 2654435761u >> 8) % (uint32_t)n_vocab);
}

typedef struct run {
    pl_stage *stage;
    int32_t n_vocab, n_pages;
    int32_t *blocks;
    pl_row *rows;
    pl_sampled *sampled;
} run;

static pl_status open_sequences(run *r, int32_t n, bool again, pl_error *err)
{
    pl_sample_params params = pl_sample_defaults();
    params.temperature = 0;
    for (int32_t i = 0; i < n; i++) {
        const pl_kv_op ops[] = {{.kind = PL_KV_CLOSE, .seq = i},
                                {.kind = PL_KV_OPEN, .seq = i, .params = &params},
                                {.kind = PL_KV_EXTEND,
                                 .seq = i,
                                 .blocks = r->blocks + (size_t)i * (size_t)r->n_pages,
                                 .n_blocks = r->n_pages}};
        pl_micro_batch mb = {.ops = again ? ops : ops + 1, .n_ops = again ? 3 : 2};
        PL_TRY(pl_stage_run(r->stage, &mb, err));
    }
    return PL_OK;
}

/* Tokens per second of one prompt of n tokens. */
static pl_status prompt(run *r, int32_t n, double *rate, pl_error *err)
{
    for (int32_t i = 0; i < n; i++)
        r->rows[i] = (pl_row){.pos = i, .token = token_at(i, r->n_vocab), .logits = i + 1 == n};
    pl_micro_batch mb = {.rows = r->rows, .n_rows = n, .sampled = r->sampled};
    uint64_t start = pl_now_ns();
    PL_TRY(pl_stage_run(r->stage, &mb, err));
    *rate = n / ((double)(pl_now_ns() - start) / 1e9);
    return PL_OK;
}

/* Of n steps of generation for n_seqs sequences. */
static pl_status generate(run *r, int32_t n, int32_t n_seqs, double *rate, pl_error *err)
{
    uint64_t start = pl_now_ns();
    for (int32_t i = 0; i < n; i++) {
        for (int32_t s = 0; s < n_seqs; s++)
            r->rows[s] = (pl_row){.seq = s, .pos = i, .token = i ? -1 : token_at(s, r->n_vocab), .logits = true};
        pl_micro_batch mb = {.rows = r->rows, .n_rows = n_seqs, .sampled = r->sampled};
        PL_TRY(pl_stage_run(r->stage, &mb, err));
    }
    *rate = (double)n * n_seqs / ((double)(pl_now_ns() - start) / 1e9);
    return PL_OK;
}

static pl_status test(run *r, const setup *o, const char *name, int32_t n, int32_t n_seqs, bool is_prompt, bool *again,
                      pl_error *err)
{
    double rates[64];
    for (int32_t i = 0; i < o->n_rounds; i++) {
        PL_TRY(open_sequences(r, n_seqs, *again, err));
        *again = true;
        PL_TRY(is_prompt ? prompt(r, n, &rates[i], err) : generate(r, n, n_seqs, &rates[i], err));
        if (i + 1 == o->n_rounds) {
            /* All sequences stay open between tests: close those that this one had, the next opens its own. */
            for (int32_t s = 0; s < n_seqs; s++) {
                const pl_kv_op op = {.kind = PL_KV_CLOSE, .seq = s};
                pl_micro_batch mb = {.ops = &op, .n_ops = 1};
                PL_TRY(pl_stage_run(r->stage, &mb, err));
            }
            *again = false;
        }
    }
    qsort(rates, (size_t)o->n_rounds, sizeof rates[0], by_value);
    printf("{\"model\":\"%s\",\"test\":\"%s\",\"threads\":%" PRId32 ",\"packed\":%s,\"tok_s\":%.2f,\"best\":%.2f}\n",
           o->model, name, o->n_threads, o->no_pack ? "false" : "true", rates[o->n_rounds / 2], rates[o->n_rounds - 1]);
    fflush(stdout);
    return PL_OK;
}

static pl_status bench(const setup *o, pl_error *err)
{
    pl_gguf *g = NULL;
    pl_model_profile *p = NULL;
    pl_pool *pool = NULL;
    pl_backend *backend = NULL;
    pl_store *store = NULL;
    pl_loaded *loaded = NULL;
    run r = {0};
    pl_status s;
    if ((s = pl_gguf_open(&g, o->model, err)) != PL_OK) goto end;
    if ((s = pl_model_profile_open(&p, g, err)) != PL_OK) goto end;
    int32_t longest = o->n_prompt > o->n_generate ? o->n_prompt : o->n_generate, n_layer = pl_model_n_layer(p);
    r.n_vocab = pl_model_n_vocab(p);
    r.n_pages = (longest + PL_KV_PAGE - 1) / PL_KV_PAGE;
    if (!o->no_pack) {
        if ((s = pl_pool_new(&pool, (pl_pool_options){.n_threads = 1}, err)) != PL_OK) goto end;
        if ((s = pl_cpu_backend_new(&backend, pool, err)) != PL_OK) goto end;
        if ((s = pl_store_open(&store, o->cache, backend, err)) != PL_OK) goto end;
    }
    uint64_t start = pl_now_ns();
    if ((s = pl_loaded_from_file(&loaded, store, g, p, 0, n_layer, NULL, NULL, err)) != PL_OK) goto end;
    double load_s = (double)(pl_now_ns() - start) / 1e9;
    pl_stage_options options = {.shape = {.layer_end = n_layer,
                                          .n_blocks = r.n_pages * o->n_batch,
                                          .n_ctx = r.n_pages * PL_KV_PAGE,
                                          .n_seqs = o->n_batch,
                                          .n_rows = longest > o->n_batch ? longest : o->n_batch,
                                          .n_threads = o->n_threads,
                                          .kv_type = o->f32 ? PL_TYPE_F32 : PL_TYPE_F16},
                                .poll = -1};
    start = pl_now_ns();
    if ((s = pl_stage_open(&r.stage, g, p, pl_loaded_weights(loaded), &options, err)) != PL_OK) goto end;
    pl_stage_memory m = pl_stage_memory_used(r.stage);
    printf("{\"model\":\"%s\",\"isa\":\"%s\",\"load_s\":%.3f,\"open_s\":%.3f,\"weights\":%" PRIu64 ",\"kv\":%" PRIu64
           ",\"compute\":%" PRIu64 "}\n",
           o->model, pl_cpu_isa_name(), load_s, (double)(pl_now_ns() - start) / 1e9, m.weights, m.kv, m.compute);
    r.blocks = pl_calloc((size_t)options.shape.n_blocks, sizeof *r.blocks);
    r.rows = pl_calloc((size_t)options.shape.n_rows, sizeof *r.rows);
    r.sampled = pl_calloc((size_t)o->n_batch, sizeof *r.sampled);
    if (!r.blocks || !r.rows || !r.sampled) {
        s = pl_fail(err, PL_ERR_NO_MEMORY, "no memory");
        goto end;
    }
    for (int32_t i = 0; i < options.shape.n_blocks; i++) r.blocks[i] = i;
    bool again = false;
    char name[32];
    snprintf(name, sizeof name, "pp%" PRId32, o->n_prompt);
    if (o->n_prompt > 0 && (s = test(&r, o, name, o->n_prompt, 1, true, &again, err)) != PL_OK) goto end;
    snprintf(name, sizeof name, "tg%" PRId32, o->n_generate);
    if (o->n_generate > 0 && (s = test(&r, o, name, o->n_generate, 1, false, &again, err)) != PL_OK) goto end;
    snprintf(name, sizeof name, "batch%" PRId32, o->n_batch);
    if (o->n_generate > 0 && o->n_batch > 1) s = test(&r, o, name, o->n_generate, o->n_batch, false, &again, err);
end:
    pl_stage_close(r.stage);
    pl_free(r.blocks);
    pl_free(r.rows);
    pl_free(r.sampled);
    pl_loaded_close(loaded);
    pl_store_close(store);
    if (backend) backend->vt->free(backend);
    pl_pool_free(pool);
    pl_model_profile_close(p);
    pl_gguf_close(g);
    return s;
}

int main(int argc, char **argv)
{
    setup o = {.n_threads = 2, .n_prompt = 512, .n_generate = 64, .n_batch = 1, .n_rounds = 5};
    static const struct option longs[] = {{"no-pack", no_argument, NULL, 'N'}, {"kv-f32", no_argument, NULL, 'F'}, {0}};
    char cache[1024];
    pl_error err = {0};
    for (int c; (c = getopt_long(argc, argv, "m:t:p:n:b:r:c:", longs, NULL)) != -1;) {
        switch (c) {
        case 'm': o.model = optarg; break;
        case 't': o.n_threads = atoi(optarg); break;
        case 'p': o.n_prompt = atoi(optarg); break;
        case 'n': o.n_generate = atoi(optarg); break;
        case 'b': o.n_batch = atoi(optarg); break;
        case 'r': o.n_rounds = atoi(optarg); break;
        case 'c': o.cache = optarg; break;
        case 'N': o.no_pack = true; break;
        case 'F': o.f32 = true; break;
        default: return 2;
        }
    }
    if (o.model == NULL || o.n_rounds < 1 || o.n_rounds > 64 || o.n_batch < 1 || o.n_prompt < 0 || o.n_generate < 0) {
        fprintf(stderr, "usage: paceline-bench-stage -m FILE [-t THREADS] [-p TOKENS] [-n TOKENS] [-b SEQUENCES] [-r "
                        "ROUNDS] [-c CACHE] [--no-pack] [--kv-f32]\n");
        return 2;
    }
    pl_status s = PL_OK;
    if (o.cache == NULL && !o.no_pack) {
        s = pl_cache_dir(cache, sizeof cache, &err);
        o.cache = cache;
    }
    if (s == PL_OK) s = bench(&o, &err);
    if (s != PL_OK) fprintf(stderr, "paceline-bench-stage: %s\n", err.text);
    return pl_status_exit_code(s);
}
