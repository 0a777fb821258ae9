/* Writes a synthetic model for benchmarks: the shape of TinyLlama 1.1B with Gaussian weights (deviation 0.02) and norms
 * of 1, all matrices in one type, or some in another. It is good for speed and nothing else.
 *
 *   paceline-bench-make-model FILE [type=NAME] [output=NAME] [embedding=NAME] [layers=N] [embd=N] [heads=N]
 *                             [kv-heads=N] [ff=N] [vocab=N] [ctx=N] [seed=N] [distinct=N] [threads=N]
 *
 * The vocabulary is a minimal SentencePiece one (three control tokens, 256 bytes, and words that say nothing). A row of
 * a tensor is a function of the seed, the tensor's name and the row's number, so the file does not depend on the
 * threads. Encoders that search are slow: only `distinct` rows of each tensor (64) are drawn and encoded, and the
 * others repeat them. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/alloc.h"
#include "engine/base/arena.h"
#include "engine/base/pool.h"
#include "engine/base/rng.h"
#include "engine/gguf/write.h"

enum { CHUNK_ROWS = 16 };

typedef struct shape {
    int64_t n_layer, n_embd, n_head, n_head_kv, n_ff, n_vocab, n_ctx;
} shape;

/* One tensor that is to be filled. */
typedef struct matrix {
    const char *name;
    pl_type type;
    int64_t ne[2];
    uint8_t *data;
} matrix;

typedef struct maker {
    shape s;
    uint64_t seed;
    int64_t distinct, n_threads;
    pl_gguf_writer *w;
    pl_arena arena; /* names, the vocabulary and the tensors' data, which the writer borrows */
} maker;

static uint64_t seed_of(const maker *m, const char *name, int64_t row)
{
    uint64_t seed = m->seed;
    for (; *name; name++) seed = (seed ^ (uint8_t)*name) * 0x100000001B3u; /* FNV-1a */
    return seed + (uint64_t)row;
}

typedef struct filling {
    const maker *m;
    const matrix *t;
    int64_t rows;
    float *room; /* one row for each thread */
} filling;

static void fill_rows(pl_team *team, int i_thread, int n_threads, void *user)
{
    (void)n_threads;
    const filling *f = user;
    const matrix *t = f->t;
    const pl_type_info *info = pl_type_get(t->type);
    size_t row_size = pl_type_row_size(t->type, t->ne[0]);
    float *x = f->room + i_thread * t->ne[0];
    for (int64_t chunk; (chunk = pl_team_next(team) * CHUNK_ROWS) < f->rows;) {
        int64_t end = chunk + CHUNK_ROWS < f->rows ? chunk + CHUNK_ROWS : f->rows;
        for (int64_t row = chunk; row < end; row++) {
            pl_rng r;
            pl_rng_seed(&r, seed_of(f->m, t->name, row));
            for (int64_t i = 0; i < t->ne[0]; i++) x[i] = (float)(0.02 * pl_rng_gauss(&r));
            info->from_float(x, t->data + (size_t)row * row_size, t->ne[0]);
        }
    }
}

static bool add_matrix(maker *m, pl_pool *pool, const char *name, pl_type type, int64_t ne0, int64_t ne1)
{
    size_t row_size = pl_type_row_size(type, ne0);
    matrix t = {
        .name = name, .type = type, .ne = {ne0, ne1}, .data = pl_arena_alloc(&m->arena, row_size * (size_t)ne1)};
    int64_t rows = ne1 < m->distinct ? ne1 : m->distinct;
    filling f = {.m = m, .t = &t, .rows = rows, .room = pl_calloc((size_t)(ne0 * m->n_threads), sizeof(float))};
    bool ok = t.data != NULL && f.room != NULL;
    if (ok) {
        pl_pool_run(pool, fill_rows, &f);
        for (int64_t row = rows; row < ne1; row++)
            memcpy(t.data + (size_t)row * row_size, t.data + (size_t)(row - rows) * row_size, row_size);
        ok = pl_gguf_add_tensor(m->w, name, type, 2, t.ne, t.data);
    }
    pl_free(f.room);
    return ok;
}

static bool add_norm(maker *m, const char *name, int64_t n)
{
    float *ones = pl_arena_alloc(&m->arena, (size_t)n * sizeof *ones);
    for (int64_t i = 0; ones && i < n; i++) ones[i] = 1;
    return ones && pl_gguf_add_tensor(m->w, name, PL_TYPE_F32, 1, &n, ones);
}

static bool add_layer(maker *m, pl_pool *pool, pl_type type, int64_t il)
{
    const shape *s = &m->s;
    int64_t n_kv = s->n_embd / s->n_head * s->n_head_kv;
    const struct {
        const char *name;
        int64_t ne0, ne1; /* ne1 0: a norm */
    } tensors[] = {
        {"attn_norm", s->n_embd, 0},      {"attn_q", s->n_embd, s->n_embd},      {"attn_k", s->n_embd, n_kv},
        {"attn_v", s->n_embd, n_kv},      {"attn_output", s->n_embd, s->n_embd}, {"ffn_norm", s->n_embd, 0},
        {"ffn_gate", s->n_embd, s->n_ff}, {"ffn_up", s->n_embd, s->n_ff},        {"ffn_down", s->n_ff, s->n_embd}};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        char *name = pl_arena_printf(&m->arena, "blk.%" PRId64 ".%s.weight", il, tensors[i].name);
        bool ok = name && (tensors[i].ne1 ? add_matrix(m, pool, name, type, tensors[i].ne0, tensors[i].ne1)
                                          : add_norm(m, name, tensors[i].ne0));
        if (!ok) return false;
    }
    return true;
}

static bool add_vocab(maker *m)
{
    enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, BYTE = 6 };
    size_t n = (size_t)m->s.n_vocab;
    pl_str *tokens = pl_arena_alloc(&m->arena, n * sizeof *tokens);
    int32_t *types = pl_arena_alloc(&m->arena, n * sizeof *types);
    float *scores = pl_arena_zalloc(&m->arena, n * sizeof *scores);
    if (!tokens || !types || !scores) return false;
    for (size_t i = 0; i < n; i++) {
        const char *text = i == 0   ? "<unk>"
                           : i == 1 ? "<s>"
                           : i == 2
                               ? "</s>"
                               : pl_arena_printf(&m->arena, i < 259 ? "<0x%02zX>" : "word%zu", i < 259 ? i - 3 : i);
        if (!text) return false;
        tokens[i] = pl_str_from(text);
        types[i] = i == 0 ? UNKNOWN : i < 3 ? CONTROL : i < 259 ? BYTE : NORMAL;
    }
    pl_gguf_writer *w = m->w;
    return pl_gguf_add_str(w, "tokenizer.ggml.model", PL_STR("llama")) &&
           pl_gguf_add_str(w, "tokenizer.ggml.pre", PL_STR("default")) &&
           pl_gguf_add_strs(w, "tokenizer.ggml.tokens", tokens, n) &&
           pl_gguf_add_f32s(w, "tokenizer.ggml.scores", scores, n) &&
           pl_gguf_add_i32s(w, "tokenizer.ggml.token_type", types, n) &&
           pl_gguf_add_u32(w, "tokenizer.ggml.bos_token_id", 1) &&
           pl_gguf_add_u32(w, "tokenizer.ggml.eos_token_id", 2) &&
           pl_gguf_add_u32(w, "tokenizer.ggml.unknown_token_id", 0) &&
           pl_gguf_add_bool(w, "tokenizer.ggml.add_bos_token", true);
}

static bool add_hparams(maker *m)
{
    const shape *s = &m->s;
    pl_gguf_writer *w = m->w;
    return pl_gguf_add_str(w, "general.architecture", PL_STR("llama")) &&
           pl_gguf_add_str(w, "general.name", PL_STR("synthetic")) &&
           pl_gguf_add_u32(w, "llama.block_count", (uint32_t)s->n_layer) &&
           pl_gguf_add_u32(w, "llama.context_length", (uint32_t)s->n_ctx) &&
           pl_gguf_add_u32(w, "llama.embedding_length", (uint32_t)s->n_embd) &&
           pl_gguf_add_u32(w, "llama.feed_forward_length", (uint32_t)s->n_ff) &&
           pl_gguf_add_u32(w, "llama.attention.head_count", (uint32_t)s->n_head) &&
           pl_gguf_add_u32(w, "llama.attention.head_count_kv", (uint32_t)s->n_head_kv) &&
           pl_gguf_add_f32(w, "llama.attention.layer_norm_rms_epsilon", 1e-5f) &&
           pl_gguf_add_u32(w, "llama.vocab_size", (uint32_t)s->n_vocab) &&
           pl_gguf_add_u32(w, "llama.rope.dimension_count", (uint32_t)(s->n_embd / s->n_head)) &&
           pl_gguf_add_f32(w, "llama.rope.freq_base", 10000);
}

/* Whether rows of the model's lengths can be written in this type. */
static pl_status check_type(const maker *m, pl_type type, pl_error *err)
{
    const pl_type_info *info = pl_type_get(type);
    if (info == NULL || info->from_float == NULL)
        return pl_fail(err, PL_ERR_UNSUPPORTED, "%s cannot be written", pl_type_name(type));
    if (m->s.n_embd % info->block != 0 || m->s.n_ff % info->block != 0)
        return pl_fail(err, PL_ERR_INVALID, "rows of %" PRId64 " and %" PRId64 " are not whole blocks of %s",
                       m->s.n_embd, m->s.n_ff, pl_type_name(type));
    return PL_OK;
}

static pl_status make(maker *m, const char *path, pl_type type, pl_type output, pl_type embedding, pl_error *err)
{
    PL_TRY(check_type(m, type, err));
    PL_TRY(check_type(m, output, err));
    PL_TRY(check_type(m, embedding, err));
    pl_pool *pool;
    PL_TRY(pl_pool_new(&pool, (pl_pool_options){.n_threads = (int)m->n_threads, .poll = -1}, err));
    pl_arena_init(&m->arena, 0);
    pl_status s = pl_gguf_writer_new(&m->w, err);
    if (s == PL_OK) {
        bool ok = add_hparams(m) && add_vocab(m) &&
                  add_matrix(m, pool, "token_embd.weight", embedding, m->s.n_embd, m->s.n_vocab);
        for (int64_t il = 0; ok && il < m->s.n_layer; il++) ok = add_layer(m, pool, type, il);
        ok = ok && add_norm(m, "output_norm.weight", m->s.n_embd) &&
             add_matrix(m, pool, "output.weight", output, m->s.n_embd, m->s.n_vocab);
        s = ok ? pl_gguf_write_file(m->w, path, err) : pl_fail(err, PL_ERR_NO_MEMORY, "no memory for the model");
    }
    pl_gguf_writer_free(m->w);
    pl_arena_fini(&m->arena);
    pl_pool_free(pool);
    return s;
}

static int usage(void)
{
    fputs("usage: paceline-bench-make-model FILE [type=NAME] [output=NAME] [embedding=NAME] [layers=N] [embd=N] "
          "[heads=N] [kv-heads=N] [ff=N] [vocab=N] [ctx=N] [seed=N] [distinct=N] [threads=N]\n",
          stderr);
    return pl_status_exit_code(PL_ERR_INVALID);
}

int main(int argc, char **argv)
{
    maker m = {.s = {22, 2048, 32, 4, 5632, 32000, 4096}, .seed = 1, .distinct = 64, .n_threads = 2};
    pl_type type = PL_TYPE_F16, output = PL_TYPE_COUNT, embedding = PL_TYPE_COUNT;
    const struct {
        const char *name;
        int64_t *at, least, most;
    } numbers[] = {{"layers", &m.s.n_layer, 1, 1024}, {"embd", &m.s.n_embd, 32, 1 << 16},
                   {"heads", &m.s.n_head, 1, 1024},   {"kv-heads", &m.s.n_head_kv, 1, 1024},
                   {"ff", &m.s.n_ff, 32, 1 << 18},    {"vocab", &m.s.n_vocab, 260, 1 << 20},
                   {"ctx", &m.s.n_ctx, 32, 1 << 20},  {"distinct", &m.distinct, 1, INT32_MAX},
                   {"threads", &m.n_threads, 1, 256}, {"seed", (int64_t *)&m.seed, 0, INT64_MAX}};
    const struct {
        const char *name;
        pl_type *at;
    } types[] = {{"type", &type}, {"output", &output}, {"embedding", &embedding}};
    if (argc < 2 || argv[1][0] == '-') return usage();
    for (int i = 2; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        if (!value) return usage();
        *value++ = 0;
        bool known = false;
        for (size_t j = 0; j < sizeof numbers / sizeof *numbers; j++) {
            if (strcmp(argv[i], numbers[j].name) != 0) continue;
            char *end;
            long long v = strtoll(value, &end, 10);
            known = *end == 0 && v >= numbers[j].least && v <= numbers[j].most;
            *numbers[j].at = v;
        }
        for (size_t j = 0; j < sizeof types / sizeof *types; j++)
            if (strcmp(argv[i], types[j].name) == 0) known = pl_type_parse(pl_str_from(value), types[j].at);
        if (!known) return usage();
    }
    if (m.s.n_embd % m.s.n_head != 0 || m.s.n_head % m.s.n_head_kv != 0) return usage();
    pl_error err = {0};
    pl_status s = make(&m, argv[1], type, output == PL_TYPE_COUNT ? type : output,
                       embedding == PL_TYPE_COUNT ? type : embedding, &err);
    if (s != PL_OK) fprintf(stderr, "paceline-bench-make-model: %s\n", err.text);
    return pl_status_exit_code(s);
}
