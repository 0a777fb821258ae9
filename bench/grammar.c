/* What a grammar costs per token: a sampler is led through a JSON answer with and without one, over a real vocabulary.
 *
 *   paceline-bench-grammar -m VOCABULARY.gguf [-j SCHEMA] [TEXT]
 *
 * TEXT is the answer (default: one for the default schema). One JSON object a line: microseconds of processor time per
 * token without a grammar, with one that meets the answer first ("cold": masks are made), and again ("warm"). */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "engine/base/alloc.h"
#include "engine/base/rng.h"
#include "engine/sample/json_schema.h"
#include "engine/sample/sampler.h"

static const char default_schema[] = "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"summary\":{"
                                     "\"type\":\"string\"},\"population\":{"
                                     "\"type\":\"integer\"},\"area_km2\":{\"type\":\"number\"},\"tags\":{\"type\":"
                                     "\"array\",\"items\":{\"type\":\"string\"}},"
                                     "\"mayor\":{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},"
                                     "\"since\":{\"type\":\"string\",\"format\":"
                                     "\"date\"}},\"required\":[\"name\",\"since\"]}},\"required\":[\"name\","
                                     "\"summary\",\"population\",\"tags\",\"mayor\"]}";
static const char default_text[] =
    "{\n  \"name\": \"Paris\",\n  \"summary\": \"Paris is the capital and most populous city of France. Situated on "
    "the "
    "Seine, it has been one of the major centres of finance, diplomacy, commerce, fashion and the arts since the 17th "
    "century.\",\n  \"population\": 2102650,\n  \"area_km2\": 105.4,\n  \"tags\": [\"capital\", "
    "\"C\xc3\xb4te-d\xe2\x80\x99Or is "
    "elsewhere\", \"art\"],\n  \"mayor\": {\"name\": \"Anne Hidalgo\", \"since\": \"2014-04-05\"}\n}";

typedef struct bench {
    pl_sampler *sampler;
    const int32_t *tokens; /* the answer */
    int32_t n, n_vocab;
    float *logits;
} bench;

/* Processor time of this thread: a busy machine changes it little. */
static uint64_t spent_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Microseconds per token; -1: the sampler went another way. */
static double lead(bench *b, pl_sample_seq *q)
{
    uint64_t ns = 0;
    for (int32_t i = 0; i < b->n; i++) {
        pl_sampled out;
        float *x = &b->logits[b->tokens[i]], before = *x;
        *x = 60;
        uint64_t start = spent_ns();
        pl_sampler_pick(b->sampler, q, b->logits, b->tokens, i, i, &out);
        ns += spent_ns() - start;
        *x = before;
        if (out.token != b->tokens[i]) {
            fprintf(stderr, "bench: token %d of the answer is not allowed\n", (int)i);
            return -1;
        }
    }
    return (double)ns / 1e3 / b->n;
}

static pl_status run(const pl_vocab *vocab, const char *schema, const char *text, pl_error *err)
{
    pl_buf ids = {0}, grammar = {0};
    pl_sample_params p = pl_sample_defaults();
    bench b = {.n_vocab = pl_vocab_size(vocab)};
    pl_rng rng;
    pl_rng_seed(&rng, 1);
    PL_TRY(pl_tokenize(vocab, pl_str_from(text), false, false, &ids, err));
    PL_TRY(pl_json_schema_text_grammar(pl_str_from(schema), &grammar, err));
    b.tokens = (const int32_t *)(const void *)ids.data;
    b.n = (int32_t)(ids.size / sizeof(int32_t));
    b.logits = pl_calloc((size_t)b.n_vocab, sizeof *b.logits);
    if (!b.logits) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for logits");
    for (int32_t i = 0; i < b.n_vocab; i++) b.logits[i] = (float)pl_rng_gauss(&rng) * 3;
    PL_TRY(pl_sampler_new(&b.sampler, b.n_vocab, b.n + 1, err));
    pl_sampler_use_vocab(b.sampler, vocab);
    for (int greedy = 0; greedy < 2; greedy++) {
        pl_sample_seq *without, *with;
        double us[3];
        p.temperature = greedy ? 0 : 0.8f;
        p.grammar = (pl_str){0};
        PL_TRY(pl_sample_seq_new(&without, b.sampler, &p, &(pl_sample_seq_options){0}, err));
        p.grammar = pl_buf_str(&grammar);
        uint64_t start = spent_ns();
        PL_TRY(pl_sample_seq_new(&with, b.sampler, &p, &(pl_sample_seq_options){0}, err));
        uint64_t opened = spent_ns() - start;
        lead(&b, without);
        us[0] = lead(&b, without);
        us[1] = lead(&b, with);
        us[2] = lead(&b, with);
        printf("{\"vocabulary\": %d, \"tokens\": %d, \"temperature\": %.1f, \"open_ms\": %.1f, \"without_us\": %.1f, "
               "\"cold_us\": %.1f, \"warm_us\": %.1f, \"token_ms_for_5_percent_cold\": %.1f}\n",
               (int)b.n_vocab, (int)b.n, (double)p.temperature, (double)opened / 1e6, us[0], us[1], us[2],
               (us[1] - us[0]) / 50);
        pl_sample_seq_free(without);
        pl_sample_seq_free(with);
    }
    pl_sampler_free(b.sampler);
    pl_free(b.logits);
    pl_buf_fini(&ids);
    pl_buf_fini(&grammar);
    return PL_OK;
}

int main(int argc, char **argv)
{
    const char *model = NULL, *schema = default_schema, *text = default_text;
    for (int i = 1; i < argc; i++) {
        if (i + 1 < argc && strcmp(argv[i], "-m") == 0)
            model = argv[++i];
        else if (i + 1 < argc && strcmp(argv[i], "-j") == 0)
            schema = argv[++i];
        else
            text = argv[i];
    }
    pl_gguf *g = NULL;
    pl_vocab *vocab = NULL;
    pl_error err = {0};
    if (!model) {
        fprintf(stderr, "usage: paceline-bench-grammar -m VOCABULARY.gguf [-j SCHEMA] [TEXT]\n");
        return 64;
    }
    pl_status s = pl_gguf_open(&g, model, &err);
    if (s == PL_OK) s = pl_vocab_open(&vocab, g, &err);
    if (s == PL_OK) s = run(vocab, schema, text, &err);
    if (s != PL_OK) fprintf(stderr, "bench: %s\n", err.text);
    pl_vocab_close(vocab);
    pl_gguf_close(g);
    return pl_status_exit_code(s);
}
