/* How fast one stage with all layers is, beside what the machine can do at most.
 *
 *   paceline-bench-stage -m FILE [-t THREADS] [-r ROUNDS] [-c CACHE-FOLDER] [--no-pack] [--kv-f32] [--ask] [TEST ...]
 *
 * A TEST is ppN (one prompt of N tokens, logits of the last), tgN (N steps of generation for one sequence, from
 * nothing), tgN@M (the same behind M tokens) or batchN (STEPS steps for N sequences at once); the default is pp512 tg64
 * batch8. Each prints one JSON object a line with the median of the rounds,
 * {"test":"pp512","threads":2,"tok_s":…,"best":…,"read_bytes":…,"byte_ops":…,"float_ops":…,"bf16_ops":…}, behind a
 * first line about the model.
 *
 * read_bytes and the operations are what the test has to do at the least: each weight is read once per step, and each
 * position's K and V once per row; operations are two per multiply and add of the products, of bytes for quantized
 * types. Attention's are not counted.
 *
 * With --ask nothing runs by itself: each line on stdin is a test to run once, or "limits" to measure the machine
 * (limits.h), and gets one line as its answer. That is how bench/race takes turns between this program and another. */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/limits.h"
#include "engine/base/alloc.h"
#include "engine/base/sys.h"
#include "engine/stage/load.h"

enum { STEPS = 32, FILL_ROWS = 512, TESTS_MAX = 16, ROUNDS_MAX = 64, SIZE_MAX_TEST = 65536 };

static const size_t limits_bytes = 128u << 20; /* beyond the last-level cache */

typedef enum kind { PROMPT, GENERATE, BATCH } kind;

typedef struct test {
    const char *name;
    kind kind;
    int32_t n;      /* tokens, steps or sequences */
    int32_t behind; /* tokens before the first step */
} test;

/* What a test has to do at the least. */
typedef struct work {
    double read_bytes, byte_ops, float_ops, bf16_ops;
} work;

typedef struct setup {
    const char *model, *cache;
    int32_t n_threads, n_rounds;
    bool no_pack, f32, ask;
    test tests[TESTS_MAX];
    int n_tests;
} setup;

typedef struct run {
    pl_gguf *g;
    pl_model_profile *p;
    pl_stage *stage;
    pl_pool *pool; /* beside the stage's: packs, and measures the machine */
    pl_backend *backend;
    pl_backend_buffer *array;
    pl_limits limits;
    int32_t n_vocab, n_layer, n_ctx;
    int32_t n_open;   /* sequences */
    int32_t n_filled; /* positions of sequence 0 that were filled for a test behind them */
    int32_t *blocks;
    pl_row *rows;
    pl_sampled *sampled;
} run;

static bool parse_test(const char *name, test *t)
{
    static const char *const prefixes[] = {[PROMPT] = "pp", [GENERATE] = "tg", [BATCH] = "batch"};
    for (kind k = PROMPT; k <= BATCH; k++) {
        size_t n = strlen(prefixes[k]);
        if (strncmp(name, prefixes[k], n) != 0) continue;
        char *end;
        long value = strtol(name + n, &end, 10);
        *t = (test){.name = name, .kind = k, .n = (int32_t)value};
        if (k == GENERATE && *end == '@') t->behind = (int32_t)strtol(end + 1, &end, 10);
        return *end == '\0' && value >= 1 && value <= SIZE_MAX_TEST && t->behind >= 0 && t->behind <= SIZE_MAX_TEST;
    }
    return false;
}

static int32_t positions_of(const test *t)
{
    return t->kind == BATCH ? STEPS : t->n + t->behind;
}
static int32_t sequences_of(const test *t)
{
    return t->kind == BATCH ? t->n : 1;
}
static int32_t rows_of(const test *t)
{
    return t->kind == GENERATE ? 1 : t->n;
}
static int32_t steps_of(const test *t)
{
    return t->kind == PROMPT ? 1 : t->kind == GENERATE ? t->n : STEPS;
}

/* --- What has to be done --- */

static bool begins(pl_str s, const char *with)
{
    return s.size >= strlen(with) && memcmp(s.data, with, strlen(with)) == 0;
}

static bool contains(pl_str s, const char *part)
{
    size_t n = strlen(part);
    for (size_t i = 0; i + n <= s.size; i++)
        if (memcmp(s.data + i, part, n) == 0) return true;
    return false;
}

/* Whether t is multiplied with the rows that want logits only: the head, and in the last layer all behind attention. */
static bool only_wanted_rows(const run *r, const pl_gguf_tensor *t, bool is_head)
{
    char last[32];
    snprintf(last, sizeof last, "blk.%" PRId32 ".", r->n_layer - 1);
    return is_head || (begins(t->name, last) && (contains(t->name, "attn_output") || contains(t->name, "ffn_")));
}

static work work_of(const run *r, const setup *o, const test *t)
{
    work w = {0};
    bool has_output = pl_gguf_find_tensor(r->g, pl_str_from("output.weight")) != NULL;
    double steps = steps_of(t), rows = rows_of(t), wanted = t->kind == PROMPT ? 1 : rows;
    for (size_t i = 0; i < pl_gguf_n_tensors(r->g); i++) {
        const pl_gguf_tensor *x = pl_gguf_tensor_at(r->g, i);
        bool is_head = begins(x->name, has_output ? "output.weight" : "token_embd.weight");
        if (!is_head && !begins(x->name, "blk.")) continue;
        w.read_bytes += steps * (double)x->size;
        if (x->n_dims < 2) continue;
        double ops = 2 * steps * (only_wanted_rows(r, x, is_head) ? wanted : rows) * (double)(x->ne[0] * x->ne[1]);
        *(pl_type_get(x->type)->is_quantized ? &w.byte_ops
          : x->type == PL_TYPE_BF16          ? &w.bf16_ops
                                             : &w.float_ops) += ops;
    }
    /* The rows of K and V that are read: each step reads all positions before it, a prompt each once. */
    double n = t->n, seen = t->kind == PROMPT     ? n
                            : t->kind == GENERATE ? n * t->behind + n * (n + 1) / 2
                                                  : STEPS * (STEPS + 1) / 2 * n;
    pl_cache_types cache = PL_CACHE_BOTH(o->f32 ? PL_TYPE_F32 : PL_TYPE_F16);
    for (int32_t l = 0; l < r->n_layer; l++) {
        double kv_bytes = (double)pl_model_kv_block_bytes(r->p, l, cache) / PL_KV_PAGE;
        w.read_bytes += seen * kv_bytes;
    }
    return w;
}

/* --- Running --- */

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

/* Closes what the last test opened and opens n sequences. */
static pl_status open_sequences(run *r, int32_t n, pl_error *err)
{
    pl_sample_params params = pl_sample_defaults();
    params.temperature = 0;
    r->n_filled = 0;
    int32_t n_pages = r->n_ctx / PL_KV_PAGE;
    for (; r->n_open > 0; r->n_open--) {
        const pl_kv_op op = {.kind = PL_KV_CLOSE, .seq = r->n_open - 1};
        PL_TRY(pl_stage_run(r->stage, &(pl_micro_batch){.ops = &op, .n_ops = 1}, err));
    }
    for (; r->n_open < n; r->n_open++) {
        const pl_kv_op ops[] = {{.kind = PL_KV_OPEN, .seq = r->n_open, .params = &params},
                                {.kind = PL_KV_EXTEND,
                                 .seq = r->n_open,
                                 .blocks = r->blocks + (size_t)r->n_open * (size_t)n_pages,
                                 .n_blocks = n_pages}};
        PL_TRY(pl_stage_run(r->stage, &(pl_micro_batch){.ops = ops, .n_ops = 2}, err));
    }
    return PL_OK;
}

static pl_status step(run *r, const test *t, int32_t i, pl_error *err)
{
    int32_t n_rows = rows_of(t);
    for (int32_t j = 0; j < n_rows; j++)
        r->rows[j] =
            t->kind == PROMPT
                ? (pl_row){.pos = j, .token = token_at(j, r->n_vocab), .logits = j + 1 == n_rows}
                : (pl_row){.seq = j, .pos = t->behind + i, .token = i ? -1 : token_at(j, r->n_vocab), .logits = true};
    return pl_stage_run(r->stage, &(pl_micro_batch){.rows = r->rows, .n_rows = n_rows, .sampled = r->sampled}, err);
}

/* Fills the first positions of sequence 0, or takes away what stands behind them. */
static pl_status fill(run *r, int32_t n, pl_error *err)
{
    if (r->n_filled == n) {
        /* The blocks behind go as well. */
        int32_t kept = (n + PL_KV_PAGE - 1) / PL_KV_PAGE;
        const pl_kv_op ops[] = {
            {.kind = PL_KV_TRUNCATE, .seq = 0, .n_pos = n},
            {.kind = PL_KV_EXTEND, .seq = 0, .blocks = r->blocks + kept, .n_blocks = r->n_ctx / PL_KV_PAGE - kept}};
        return pl_stage_run(r->stage, &(pl_micro_batch){.ops = ops, .n_ops = 2}, err);
    }
    PL_TRY(open_sequences(r, 1, err));
    for (int32_t at = 0, rows; at < n; at += rows) {
        rows = n - at < FILL_ROWS ? n - at : FILL_ROWS;
        for (int32_t j = 0; j < rows; j++) r->rows[j] = (pl_row){.pos = at + j, .token = token_at(at + j, r->n_vocab)};
        PL_TRY(pl_stage_run(r->stage, &(pl_micro_batch){.rows = r->rows, .n_rows = rows}, err));
    }
    r->n_filled = n;
    return PL_OK;
}

/* Tokens per second of one run of t. */
static pl_status measure(run *r, const test *t, double *rate, pl_error *err)
{
    if (t->behind > 0)
        PL_TRY(fill(r, t->behind, err));
    else
        PL_TRY(open_sequences(r, sequences_of(t), err));
    uint64_t start = pl_now_ns();
    for (int32_t i = 0; i < steps_of(t); i++) PL_TRY(step(r, t, i, err));
    *rate = (double)rows_of(t) * steps_of(t) / ((double)(pl_now_ns() - start) / 1e9);
    return PL_OK;
}

static void print_result(const run *r, const setup *o, const test *t, double median, double best)
{
    work w = work_of(r, o, t);
    printf("{\"test\":\"%s\",\"threads\":%" PRId32 ",\"packed\":%s,\"tok_s\":%.3f,\"best\":%.3f,\"read_bytes\":%.0f,"
                                                   "\"byte_ops\":%.0f,\"float_ops\":%.0f,\"bf16_ops\":%.0f}\n",
           t->name, o->n_threads, o->no_pack ? "false" : "true", median, best, w.read_bytes, w.byte_ops, w.float_ops,
           w.bf16_ops);
    fflush(stdout);
}

static pl_status run_tests(run *r, const setup *o, pl_error *err)
{
    for (int i = 0; i < o->n_tests; i++) {
        double rates[ROUNDS_MAX];
        PL_TRY(measure(r, &o->tests[i], &rates[0], err)); /* warms up */
        for (int32_t j = 0; j < o->n_rounds; j++) PL_TRY(measure(r, &o->tests[i], &rates[j], err));
        qsort(rates, (size_t)o->n_rounds, sizeof rates[0], by_value);
        print_result(r, o, &o->tests[i], rates[o->n_rounds / 2], rates[o->n_rounds - 1]);
    }
    return PL_OK;
}

/* The array lies in a buffer of the backend, so that it has the pages that such buffers get. */
static pl_status measure_limits(run *r, const setup *o, pl_error *err)
{
    if (r->array == NULL) {
        pl_isa isa;
        PL_TRY(pl_isa_choose(&isa, err));
        PL_TRY(r->backend->vt->buffer_new(r->backend, limits_bytes, &r->array, err));
        pl_limits_init(&r->limits, r->pool, isa, r->backend->vt->buffer_base(r->array), limits_bytes);
    }
    pl_limits_forget(&r->limits);
    for (int i = 0; i < 8; i++) pl_limits_measure(&r->limits);
    printf("{\"test\":\"limits\",\"threads\":%" PRId32
           ",\"read_bytes_s\":%.0f,\"byte_ops_s\":%.0f,\"float_ops_s\":%.0f,\"bf16_ops_s\":%.0f}\n",
           o->n_threads, r->limits.read_bytes_s, r->limits.byte_ops_s, r->limits.float_ops_s, r->limits.bf16_ops_s);
    fflush(stdout);
    return PL_OK;
}

static pl_status answer(run *r, const setup *o, pl_error *err)
{
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = '\0';
        if (strcmp(line, "limits") == 0) {
            PL_TRY(measure_limits(r, o, err));
            continue;
        }
        const test *t = NULL;
        for (int i = 0; i < o->n_tests; i++)
            if (strcmp(o->tests[i].name, line) == 0) t = &o->tests[i];
        if (t == NULL) return pl_fail(err, PL_ERR_INVALID, "'%s' is not among the tests of the command line", line);
        double rate;
        PL_TRY(measure(r, t, &rate, err));
        print_result(r, o, t, rate, rate);
    }
    return PL_OK;
}

static const char *layer_type(const run *r)
{
    const pl_gguf_tensor *t = pl_gguf_find_tensor(r->g, pl_str_from("blk.0.ffn_up.weight"));
    return t ? pl_type_name(t->type) : "?";
}

static pl_status bench(const setup *o, pl_error *err)
{
    pl_store *store = NULL;
    pl_loaded *loaded = NULL;
    run r = {0};
    pl_status s;
    if ((s = pl_gguf_open(&r.g, o->model, err)) != PL_OK) goto end;
    if ((s = pl_model_profile_open(&r.p, r.g, err)) != PL_OK) goto end;
    r.n_vocab = pl_model_n_vocab(r.p);
    r.n_layer = pl_model_n_layer(r.p);
    uint64_t start = pl_now_ns();
    if ((s = pl_pool_new(&r.pool, (pl_pool_options){.n_threads = o->n_threads, .poll = -1}, err)) != PL_OK) goto end;
    if ((s = pl_cpu_backend_new(&r.backend, r.pool, err)) != PL_OK) goto end;
    if (!o->no_pack && (s = pl_store_open(&store, o->cache, r.backend, err)) != PL_OK) goto end;
    if ((s = pl_loaded_from_file(&loaded, store, r.g, r.p, 0, r.n_layer, NULL, err)) != PL_OK) goto end;
    double load_s = (double)(pl_now_ns() - start) / 1e9;

    int32_t n_rows = 1, n_seqs = 1;
    for (int i = 0; i < o->n_tests; i++) {
        const test *t = &o->tests[i];
        int32_t n_ctx = (positions_of(t) + PL_KV_PAGE - 1) / PL_KV_PAGE * PL_KV_PAGE;
        if (n_ctx > r.n_ctx) r.n_ctx = n_ctx;
        if (rows_of(t) > n_rows) n_rows = rows_of(t);
        if (t->behind > 0 && n_rows < FILL_ROWS) n_rows = FILL_ROWS;
        if (sequences_of(t) > n_seqs) n_seqs = sequences_of(t);
    }
    pl_stage_options options = {.shape = {.layer_end = r.n_layer,
                                          .n_blocks = r.n_ctx / PL_KV_PAGE * n_seqs,
                                          .n_ctx = r.n_ctx,
                                          .n_seqs = n_seqs,
                                          .n_rows = n_rows,
                                          .n_threads = o->n_threads,
                                          .cache = PL_CACHE_BOTH(o->f32 ? PL_TYPE_F32 : PL_TYPE_F16)},
                                .poll = -1};
    start = pl_now_ns();
    if ((s = pl_stage_open(&r.stage, r.g, r.p, pl_loaded_weights(loaded), &options, err)) != PL_OK) goto end;
    pl_stage_memory m = pl_stage_memory_used(r.stage);
    printf("{\"model\":\"%s\",\"type\":\"%s\",\"isa\":\"%s\",\"load_s\":%.3f,\"open_s\":%.3f,\"weights\":%" PRIu64
           ",\"kv\":%" PRIu64 ",\"compute\":%" PRIu64 "}\n",
           o->model, layer_type(&r), pl_cpu_isa_name(), load_s, (double)(pl_now_ns() - start) / 1e9, m.weights, m.kv,
           m.compute);
    fflush(stdout);
    r.blocks = pl_calloc((size_t)options.shape.n_blocks, sizeof *r.blocks);
    r.rows = pl_calloc((size_t)n_rows, sizeof *r.rows);
    r.sampled = pl_calloc((size_t)n_rows, sizeof *r.sampled);
    if (!r.blocks || !r.rows || !r.sampled) {
        s = pl_fail(err, PL_ERR_NO_MEMORY, "no memory for %" PRId32 " rows", n_rows);
        goto end;
    }
    for (int32_t i = 0; i < options.shape.n_blocks; i++) r.blocks[i] = i;
    s = o->ask ? answer(&r, o, err) : run_tests(&r, o, err);
end:
    pl_stage_close(r.stage);
    pl_free(r.blocks);
    pl_free(r.rows);
    pl_free(r.sampled);
    pl_loaded_close(loaded);
    pl_store_close(store);
    if (r.backend) {
        r.backend->vt->buffer_free(r.backend, r.array);
        r.backend->vt->free(r.backend);
    }
    pl_pool_free(r.pool);
    pl_model_profile_close(r.p);
    pl_gguf_close(r.g);
    return s;
}

static int usage(void)
{
    fprintf(stderr, "usage: paceline-bench-stage -m FILE [-t THREADS] [-r ROUNDS] [-c CACHE] [--no-pack] [--kv-f32] "
                    "[--ask] [ppN | tgN[@M] | batchN ...]\n");
    return pl_status_exit_code(PL_ERR_INVALID);
}

int main(int argc, char **argv)
{
    static setup o = {.n_threads = 2, .n_rounds = 5};
    static const struct option longs[] = {
        {"no-pack", no_argument, NULL, 'N'}, {"kv-f32", no_argument, NULL, 'F'}, {"ask", no_argument, NULL, 'A'}, {0}};
    static const char *const defaults[] = {"pp512", "tg64", "batch8"};
    char cache[1024];
    pl_error err = {0};
    for (int c; (c = getopt_long(argc, argv, "m:t:r:c:", longs, NULL)) != -1;) {
        switch (c) {
        case 'm': o.model = optarg; break;
        case 't': o.n_threads = atoi(optarg); break;
        case 'r': o.n_rounds = atoi(optarg); break;
        case 'c': o.cache = optarg; break;
        case 'N': o.no_pack = true; break;
        case 'F': o.f32 = true; break;
        case 'A': o.ask = true; break;
        default: return usage();
        }
    }
    int n = argc > optind ? argc - optind : 3;
    if (o.model == NULL || o.n_rounds < 1 || o.n_rounds > ROUNDS_MAX || n > TESTS_MAX) return usage();
    if (o.n_threads < 1 || o.n_threads > PL_LIMITS_THREADS_MAX) return usage();
    for (; o.n_tests < n; o.n_tests++)
        if (!parse_test(argc > optind ? argv[optind + o.n_tests] : defaults[o.n_tests], &o.tests[o.n_tests]))
            return usage();
    pl_status s = PL_OK;
    if (o.cache == NULL && !o.no_pack) {
        s = pl_cache_dir(cache, sizeof cache, &err);
        o.cache = cache;
    }
    if (s == PL_OK) s = bench(&o, &err);
    if (s != PL_OK) fprintf(stderr, "paceline-bench-stage: %s\n", err.text);
    return pl_status_exit_code(s);
}
