/* The perplexity of a text: exp of the mean of -ln p(token) over the second half of each chunk, whose first half gives
 * the context.
 *
 *   paceline-bench-perplexity -m FILE -f TEXT [-c POSITIONS] [-n CHUNKS] [-t THREADS] [--kv-f32]
 *
 * The text is tokenized whole and cut into chunks of POSITIONS (512) tokens, as llama-perplexity does; the first token
 * of each becomes bos where the model wants one. What is left behind the last whole chunk is not used. One JSON object
 * a line: {"chunks":…,"tokens":…,"perplexity":…}, the last one for all chunks. */
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/alloc.h"
#include "engine/base/file.h"
#include "engine/stage/load.h"
#include "engine/text/vocab.h"

enum { ROWS = 256, TEXT_MAX = 64 << 20 };

typedef struct setup {
    const char *model, *text;
    int32_t n_ctx, n_chunks, n_threads;
    bool kv_f32;
} setup;

typedef struct run {
    pl_gguf *g;
    pl_model_profile *p;
    pl_vocab *vocab;
    pl_loaded *loaded;
    pl_stage *stage;
    pl_buf text, ids;
    pl_row *rows;
    float *logits;
} run;

static pl_status open_run(run *r, const setup *s, pl_error *err)
{
    PL_TRY(pl_gguf_open(&r->g, s->model, err));
    PL_TRY(pl_model_profile_open(&r->p, r->g, err));
    PL_TRY(pl_vocab_open(&r->vocab, r->g, err));
    PL_TRY(pl_file_read(&r->text, s->text, TEXT_MAX, err));
    PL_TRY(pl_tokenize(r->vocab, pl_buf_str(&r->text), true, false, &r->ids, err));
    int32_t n_layer = pl_model_n_layer(r->p);
    PL_TRY(pl_loaded_from_file(&r->loaded, NULL, r->g, r->p, 0, n_layer, NULL, err));
    pl_stage_options options = {.shape = {.layer_end = n_layer,
                                          .n_blocks = (s->n_ctx + PL_KV_PAGE - 1) / PL_KV_PAGE,
                                          .n_ctx = s->n_ctx,
                                          .n_seqs = 1,
                                          .n_rows = ROWS,
                                          .n_threads = s->n_threads,
                                          .cache = PL_CACHE_BOTH(s->kv_f32 ? PL_TYPE_F32 : PL_TYPE_F16)},
                                .poll = -1};
    PL_TRY(pl_stage_open(&r->stage, r->g, r->p, pl_loaded_weights(r->loaded), &options, err));
    r->rows = pl_calloc(ROWS, sizeof *r->rows);
    r->logits = pl_calloc((size_t)ROWS * (size_t)pl_model_n_vocab(r->p), sizeof *r->logits);
    return r->rows && r->logits ? PL_OK : pl_fail(err, PL_ERR_NO_MEMORY, "no memory for logits");
}

static void close_run(run *r)
{
    pl_stage_close(r->stage);
    pl_loaded_close(r->loaded);
    pl_vocab_close(r->vocab);
    pl_model_profile_close(r->p);
    pl_gguf_close(r->g);
    pl_buf_fini(&r->text);
    pl_buf_fini(&r->ids);
    pl_free(r->rows);
    pl_free(r->logits);
}

static double minus_ln_p(const float *logits, int32_t n, int32_t token)
{
    float most = logits[0];
    for (int32_t i = 1; i < n; i++)
        if (logits[i] > most) most = logits[i];
    double sum = 0;
    for (int32_t i = 0; i < n; i++) sum += exp((double)logits[i] - (double)most);
    return log(sum) - ((double)logits[token] - (double)most);
}

/* Adds the chunk's losses to *sum and their number to *n. */
static pl_status one_chunk(run *r, const setup *s, const int32_t *tokens, double *sum, int64_t *n, pl_error *err)
{
    int32_t n_vocab = pl_model_n_vocab(r->p), first = s->n_ctx / 2, n_blocks = (s->n_ctx + PL_KV_PAGE - 1) / PL_KV_PAGE;
    pl_sample_params params = pl_sample_defaults();
    int32_t *blocks = pl_calloc((size_t)n_blocks, sizeof *blocks);
    if (blocks == NULL) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for a chunk");
    for (int32_t i = 0; i < n_blocks; i++) blocks[i] = i;
    const pl_kv_op open[] = {{.kind = PL_KV_OPEN, .params = &params},
                             {.kind = PL_KV_EXTEND, .blocks = blocks, .n_blocks = n_blocks}};
    pl_status status = pl_stage_run(r->stage, &(pl_micro_batch){.ops = open, .n_ops = 2}, err);
    pl_free(blocks);
    PL_TRY(status);
    for (int32_t at = 0; at < s->n_ctx; at += ROWS) {
        int32_t n_rows = s->n_ctx - at < ROWS ? s->n_ctx - at : ROWS;
        for (int32_t i = 0; i < n_rows; i++) {
            int32_t token = tokens[at + i];
            if (at + i == 0 && pl_vocab_add_bos(r->vocab)) token = pl_vocab_bos(r->vocab);
            r->rows[i] = (pl_row){.pos = at + i, .token = token, .logits = at + i >= first && at + i + 1 < s->n_ctx};
        }
        PL_TRY(
            pl_stage_run(r->stage, &(pl_micro_batch){.rows = r->rows, .n_rows = n_rows, .logits_out = r->logits}, err));
        const float *logits = r->logits;
        for (int32_t i = 0; i < n_rows; i++) {
            if (!r->rows[i].logits) continue;
            *sum += minus_ln_p(logits, n_vocab, tokens[at + i + 1]);
            *n += 1;
            logits += n_vocab;
        }
    }
    const pl_kv_op close = {.kind = PL_KV_CLOSE};
    return pl_stage_run(r->stage, &(pl_micro_batch){.ops = &close, .n_ops = 1}, err);
}

static pl_status measure(run *r, const setup *s, pl_error *err)
{
    const int32_t *tokens = (const int32_t *)(const void *)r->ids.data;
    size_t n_tokens = r->ids.size / sizeof *tokens, n_chunks = n_tokens / (size_t)s->n_ctx;
    if (s->n_chunks > 0 && n_chunks > (size_t)s->n_chunks) n_chunks = (size_t)s->n_chunks;
    if (n_chunks == 0)
        return pl_fail(err, PL_ERR_INVALID, "%s has %zu tokens, and a chunk has %" PRId32, s->text, n_tokens, s->n_ctx);
    double sum = 0;
    int64_t n = 0;
    for (size_t i = 0; i < n_chunks; i++) {
        PL_TRY(one_chunk(r, s, tokens + i * (size_t)s->n_ctx, &sum, &n, err));
        printf("{\"chunks\":%zu,\"tokens\":%" PRId64 ",\"perplexity\":%.6f}\n", i + 1, n, exp(sum / (double)n));
        fflush(stdout);
    }
    return PL_OK;
}

static bool number(const char *text, int32_t least, int32_t *out)
{
    char *end;
    long v = strtol(text, &end, 10);
    *out = (int32_t)v;
    return *text && *end == '\0' && v >= least && v <= 1 << 20;
}

int main(int argc, char **argv)
{
    setup s = {.n_ctx = 512, .n_threads = 1};
    static const struct option options[] = {{"kv-f32", no_argument, NULL, 'k'}, {0}};
    bool ok = true;
    for (int o; ok && (o = getopt_long(argc, argv, "m:f:c:n:t:", options, NULL)) != -1;) {
        switch (o) {
        case 'm': s.model = optarg; break;
        case 'f': s.text = optarg; break;
        case 'c': ok = number(optarg, 2, &s.n_ctx); break;
        case 'n': ok = number(optarg, 1, &s.n_chunks); break;
        case 't': ok = number(optarg, 1, &s.n_threads); break;
        case 'k': s.kv_f32 = true; break;
        default: ok = false;
        }
    }
    if (!ok || !s.model || !s.text || optind < argc) {
        fprintf(
            stderr,
            "usage: paceline-bench-perplexity -m FILE -f TEXT [-c POSITIONS] [-n CHUNKS] [-t THREADS] [--kv-f32]\n");
        return 2;
    }
    run r = {0};
    pl_error err = {0};
    pl_status status = open_run(&r, &s, &err);
    if (status == PL_OK) status = measure(&r, &s, &err);
    if (status != PL_OK) fprintf(stderr, "paceline-bench-perplexity: %s\n", err.text);
    close_run(&r);
    return status == PL_OK ? 0 : 1;
}
