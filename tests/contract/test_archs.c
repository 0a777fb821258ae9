/* Every architecture: the logits that transformers computes (tests/golden/archs.py made them), and the same bits
 * through any split, chunking, layout, type of cache and number of threads.
 *
 * A case is tests/golden/archs/NAME.json: metadata, tensors as [name, ne, mean, spread], tokens, and the logits at
 * every position as big-endian f16 in hex. Weights are made here, from the tensors' names. */
#include <math.h>
#include <stdio.h>

#include "engine/base/alloc.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/gguf/write.h"
#include "tests/contract/sets.h"
#include "tests/fixtures/fixtures.h"
#include "tests/fixtures/rig.h"

/* One row per case. */
static const char *const cases[] = {
    "bert",           "nomic-bert",     "cohere2",        "command-r",
    "command-r-plus", "exaone4",        "exaone4-window", "gemma",
    "gemma2",         "gemma3",         "glm4",           "gpt2",
    "gptneox",        "gptneox-serial", "granite",        "llama",
    "llama3-rope",    "ministral3",     "mistral",        "mistral3",
    "olmo2",          "phi2",           "phi2-fused",     "phi3",
    "phi3-long",      "phi3-short",     "phi3-window",    "qwen2",
    "qwen3",          "smollm3",        "stablelm",       "stablelm-parallel",
    "starcoder2",     "mixtral",        "qwen2moe",       "qwen3moe",
    "olmoe",          "granitemoe",     "glm4moe",        "gpt-oss",
};
enum { N_CASES = sizeof cases / sizeof cases[0], N_TOKENS_MAX = 64, N_VOCAB_MAX = 128 };

typedef struct arch_case {
    pl_json *json;
    pl_buf text;
    bool encoder; /* rows are embeddings instead of logits */
    int32_t n_tokens, width, tokens[N_TOKENS_MAX];
    float wanted[N_TOKENS_MAX * N_VOCAB_MAX];
} arch_case;

static arch_case c;
static float first[N_TOKENS_MAX * N_VOCAB_MAX], got[N_TOKENS_MAX * N_VOCAB_MAX];

/* values() of archs.py: splitmix64 from FNV-1a of the name, 24 bits each. */
static void fill(const char *name, float *out, int64_t n, float mean, float spread)
{
    uint64_t seed = 0xCBF29CE484222325u;
    for (const char *at = name; *at; at++) seed = (seed ^ (uint8_t)*at) * 0x100000001B3u;
    for (int64_t i = 0; i < n; i++) {
        uint64_t z = seed + (uint64_t)(i + 1) * 0x9E3779B97F4A7C15u;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
        z = (z ^ z >> 27) * 0x94D049BB133111EBu;
        z ^= z >> 31;
        float unit = (float)(z >> 40) * 0x1p-24f - 0.5f;
        out[i] = unit * spread + mean;
    }
}

static void add_key(pl_gguf_writer *w, const char *key, const pl_json *v)
{
    switch (pl_json_type(v)) {
    case PL_JSON_BOOL: ck_assert(pl_gguf_add_bool(w, key, pl_json_is_true(v))); return;
    case PL_JSON_INT: ck_assert(pl_gguf_add_u32(w, key, (uint32_t)pl_json_i64(v))); return;
    case PL_JSON_REAL: ck_assert(pl_gguf_add_f32(w, key, (float)pl_json_f64(v))); return;
    case PL_JSON_STRING: ck_assert(pl_gguf_add_str(w, key, pl_json_str(v))); return;
    case PL_JSON_ARRAY: {
        uint8_t raw[4 * 64];
        size_t n = pl_json_size(v);
        ck_assert(n >= 1 && n <= 64);
        bool is_bool = pl_json_type(pl_json_at(v, 0)) == PL_JSON_BOOL,
             is_real = pl_json_type(pl_json_at(v, 0)) == PL_JSON_REAL;
        pl_gguf_value array = {.kind = PL_GGUF_ARRAY,
                               .elem = is_bool   ? PL_GGUF_BOOL
                                       : is_real ? PL_GGUF_F32
                                                 : PL_GGUF_I32,
                               .n = n};
        for (size_t i = 0; i < n; i++) {
            const pl_json *e = pl_json_at(v, i);
            float real = (float)pl_json_f64(e);
            uint32_t bits = (uint32_t)pl_json_i64(e);
            if (is_real) memcpy(&bits, &real, sizeof bits);
            if (is_bool)
                raw[i] = pl_json_is_true(e);
            else
                pl_put_u32(raw + 4 * i, bits);
        }
        array.raw = (pl_bytes){raw, is_bool ? n : 4 * n};
        ck_assert(pl_gguf_add_value(w, pl_str_from(key), &array));
        return;
    }
    default: ck_abort_msg("key %s: neither a value nor an array", key);
    }
}

/* The case's file; matrices whose rows are whole blocks of it in another type than F32. */
static pl_buf make_file(pl_type type)
{
    pl_gguf_writer *w;
    pl_error err = {0};
    pl_buf out = {0};
    ck_ok(pl_gguf_writer_new(&w, &err), err);
    void *iter = NULL;
    pl_str key;
    pl_json *v;
    char name[128];
    while (pl_json_next(pl_json_get(c.json, "keys"), &iter, &key, &v)) {
        snprintf(name, sizeof name, "%.*s", PL_STR_ARG(key));
        add_key(w, name, v);
    }
    pl_arena arena;
    pl_arena_init(&arena, 1 << 20);
    const pl_json *tensors = pl_json_get(c.json, "tensors");
    for (size_t i = 0; i < pl_json_size(tensors); i++) {
        const pl_json *t = pl_json_at(tensors, i), *dims = pl_json_at(t, 1);
        int64_t ne[4] = {1, 1, 1, 1}, n_rows = 1;
        int n_dims = (int)pl_json_size(dims);
        ck_assert(n_dims >= 1 && n_dims <= 4);
        for (int d = 0; d < n_dims; d++) ne[d] = pl_json_i64(pl_json_at(dims, (size_t)d));
        for (int d = 1; d < n_dims; d++) n_rows *= ne[d];
        snprintf(name, sizeof name, "%.*s", PL_STR_ARG(pl_json_str(pl_json_at(t, 0))));
        float *data = pl_arena_alloc(&arena, (size_t)(ne[0] * n_rows) * sizeof *data);
        ck_assert_ptr_nonnull(data);
        fill(name, data, ne[0] * n_rows, (float)pl_json_f64(pl_json_at(t, 2)), (float)pl_json_f64(pl_json_at(t, 3)));
        pl_type as = PL_TYPE_F32;
        void *bytes = data;
        if (n_dims > 1 && ne[0] % pl_type_get(type)->block == 0 && !strstr(name, "norm")) {
            as = type;
            size_t row = pl_type_row_size(type, ne[0]);
            bytes = pl_arena_alloc(&arena, row * (size_t)n_rows);
            ck_assert_ptr_nonnull(bytes);
            for (int64_t r = 0; r < n_rows; r++)
                pl_type_get(type)->from_float(data + r * ne[0], (uint8_t *)bytes + (size_t)r * row, ne[0]);
        }
        ck_assert(pl_gguf_add_tensor(w, name, as, n_dims, ne, bytes));
    }
    ck_ok(pl_gguf_write(w, &out, &err), err);
    pl_gguf_writer_free(w);
    pl_arena_fini(&arena);
    return out;
}

static int hex(char digit)
{
    return digit <= '9' ? digit - '0' : digit - 'a' + 10;
}

static void read_case(const char *name)
{
    char path[512];
    pl_error err = {0};
    snprintf(path, sizeof path, ARCHS_DIR "/%s.json", name);
    c = (arch_case){0};
    ck_ok(pl_file_read(&c.text, path, 1 << 20, &err), err);
    ck_ok(pl_json_parse(&c.json, pl_buf_str(&c.text), &err), err);
    const pl_json *tokens = pl_json_get(c.json, "tokens");
    c.n_tokens = (int32_t)pl_json_size(tokens);
    ck_assert(c.n_tokens > PL_KV_PAGE && c.n_tokens <= N_TOKENS_MAX);
    for (int32_t i = 0; i < c.n_tokens; i++) c.tokens[i] = (int32_t)pl_json_i64(pl_json_at(tokens, (size_t)i));
    c.encoder = pl_json_get(c.json, "embeddings_f16") != NULL;
    pl_str digits = pl_json_str(pl_json_get(c.json, c.encoder ? "embeddings_f16" : "logits_f16"));
    c.width = (int32_t)(digits.size / 4) / c.n_tokens;
    ck_assert(c.width > 0 && c.width <= N_VOCAB_MAX && digits.size == 4 * (size_t)c.n_tokens * (size_t)c.width);
    for (size_t i = 0; i < digits.size / 4; i++) {
        const char *d = digits.data + 4 * i;
        c.wanted[i] = pl_f16_to_f32((uint16_t)(hex(d[0]) << 12 | hex(d[1]) << 8 | hex(d[2]) << 4 | hex(d[3])));
    }
}

static void open_case(rig_model *m, const char *name, pl_type type)
{
    read_case(name);
    rig_model_from_bytes(m, make_file(type));
    ck_assert_int_eq(c.encoder ? pl_model_n_embd(m->p) : pl_model_n_vocab(m->p), c.width);
    ck_assert(pl_model_is_encoder(m->p) == c.encoder);
}

static void close_case(rig_model *m)
{
    rig_model_close(m);
    pl_json_free(c.json);
    pl_buf_fini(&c.text);
}

static void compute(const rig_model *m, rig_options o, int32_t chunk, uint32_t shuffle, float *out)
{
    rig r;
    o.n_seqs = 2;
    o.n_ctx = 96;
    o.embeddings = c.encoder;
    rig_open_with(&r, m, o);
    rig_seq_open(&r, 1, shuffle);
    memset(out, 0, sizeof got);
    rig_logits(&r, 1, 0, c.tokens, c.n_tokens, chunk, out);
    rig_close(&r);
}

START_TEST(logits_are_those_of_transformers_at_every_position)
{
    rig_model m;
    open_case(&m, cases[_i], PL_TYPE_F32);
    compute(&m, (rig_options){.kv_f32 = true}, 512, 0, got);
    double least = 1, most = 0;
    for (int32_t i = 0; i < c.n_tokens; i++) {
        double dot = 0, aa = 0, bb = 0, dd = 0;
        for (int32_t k = 0; k < c.width; k++) {
            double a = (double)got[i * c.width + k], b = (double)c.wanted[i * c.width + k];
            dot += a * b;
            aa += a * a;
            bb += b * b;
            dd += (a - b) * (a - b);
        }
        double cosine = dot / sqrt(aa * bb), off = sqrt(dd / bb);
        ck_assert_msg(cosine > 0.9999, "%s: position %d: cosine %.6f", cases[_i], (int)i, cosine);
        /* A cosine knows no scale. Rounding the golden values to f16 alone gives 0.0003. */
        ck_assert_msg(off < 0.001, "%s: position %d: off by %.6f", cases[_i], (int)i, off);
        if (cosine < least) least = cosine;
        if (off > most) most = off;
    }
    fprintf(stderr, "%s: cosine at least %.7f, off by at most %.6f\n", cases[_i], least, most);
    close_case(&m);
}
END_TEST

/* In F32, and with 8-bit activations of two terms. */
static const pl_type types[] = {PL_TYPE_F32, PL_TYPE_Q8_0};

START_TEST(any_way_to_compute_gives_the_same_bits)
{
    static const struct {
        const char *what;
        rig_options o;
        int32_t chunk;
        uint32_t shuffle;
    } ways[] = {
        {"token by token", {0}, 1, 0},
        {"in chunks of 7, packed, two threads", {.packed = true, .n_threads = 2}, 7, 3},
        {"over three stages", {.n_stages = 3}, 512, 0},
        {"over three stages in chunks of 10, packed, three threads",
         {.n_stages = 3, .packed = true, .n_threads = 3},
         10,
         5},
        {"over two stages token by token", {.n_stages = 2, .cuts = {0, 2}, .packed = true}, 1, 1},
    };
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        rig_model m;
        open_case(&m, cases[_i], types[t]);
        for (int kv_f32 = 0; kv_f32 < 2; kv_f32++) {
            compute(&m, (rig_options){.kv_f32 = kv_f32}, 512, 0, first);
            for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
                rig_options o = ways[i].o;
                o.kv_f32 = kv_f32;
                compute(&m, o, c.encoder ? 512 : ways[i].chunk, ways[i].shuffle, got);
                int64_t at = first_difference(first, got, c.n_tokens * c.width);
                ck_assert_msg(at < 0, "%s, %s: %s differs from the whole prompt at token %d, logit %d", cases[_i],
                              pl_type_name(types[t]), ways[i].what, (int)(at / c.width), (int)(at % c.width));
            }
        }
        close_case(&m);
    }
}
END_TEST

START_TEST(embeddings_are_what_the_output_matrix_multiplies)
{
    static float embeddings[N_TOKENS_MAX * N_VOCAB_MAX];
    rig_model m;
    open_case(&m, "llama", PL_TYPE_F32);
    compute(&m, (rig_options){.n_stages = 2}, 512, 0, first);
    rig r;
    rig_open(&r, &m, .n_stages = 2, .n_ctx = 96, .embeddings = true);
    rig_seq_open(&r, 0, 0);
    rig_logits(&r, 0, 0, c.tokens, c.n_tokens, 7, embeddings);
    rig_close(&r);
    int32_t n_embd = pl_model_n_embd(m.p);
    const float *output = pl_gguf_find_tensor(m.g, PL_STR("output.weight"))->data;
    for (int32_t i = 0; i < c.n_tokens; i++)
        for (int32_t k = 0; k < c.width; k++) {
            double sum = 0;
            for (int32_t e = 0; e < n_embd; e++)
                sum += (double)embeddings[i * n_embd + e] * (double)output[k * n_embd + e];
            ck_assert_msg(fabs(sum - (double)first[i * c.width + k]) < 1e-4, "position %d, logit %d: %.6f, not %.6f",
                          (int)i, (int)k, sum, (double)first[i * c.width + k]);
        }
    close_case(&m);
}
END_TEST

START_TEST(an_encoder_gives_no_logits_and_takes_no_part_of_a_sequence)
{
    rig_model m;
    pl_error err = {0};
    open_case(&m, "bert", PL_TYPE_F32);
    compute(&m, (rig_options){0}, 512, 0, first);
    rig r;
    rig_open(&r, &m, .n_ctx = 96, .embeddings = true);
    rig_seq_open(&r, 0, 0);
    rig_seq_open(&r, 1, 0);
    pl_row rows[2 * N_TOKENS_MAX];
    for (int32_t i = 0; i < c.n_tokens; i++)
        rows[i] = (pl_row){.seq = 0, .pos = i, .token = c.tokens[i], .logits = true};
    pl_micro_batch mb = {.rows = rows, .n_rows = c.n_tokens, .logits_out = got};
    ck_status(rig_run(&r, &mb, &err), PL_ERR_INVALID, err);
    ck_says(err, "embeddings");
    mb = (pl_micro_batch){.rows = rows, .n_rows = 10, .embeddings_out = got};
    ck_ok(rig_run(&r, &mb, &err), err);
    mb = (pl_micro_batch){.rows = rows + 10, .n_rows = 10, .embeddings_out = got};
    ck_status(rig_run(&r, &mb, &err), PL_ERR_INVALID, err);
    ck_says(err, "whole");
    rig_seq_close(&r, 0);
    rig_seq_open(&r, 0, 2);
    /* Two sequences in one batch, the second as before. */
    memmove(rows + 5, rows, (size_t)c.n_tokens * sizeof *rows);
    for (int32_t i = 0; i < 5; i++) rows[i] = (pl_row){.seq = 1, .pos = i, .token = 40 - i, .logits = i == 2};
    mb = (pl_micro_batch){.rows = rows, .n_rows = c.n_tokens + 5, .embeddings_out = got};
    ck_ok(rig_run(&r, &mb, &err), err);
    ck_assert_int_eq(first_difference(first, got + c.width, c.n_tokens * c.width), -1);
    rig_close(&r);
    close_case(&m);
}
END_TEST

START_TEST(every_architecture_has_a_case)
{
    size_t n;
    const char *const *names = pl_stage_archs(&n);
    for (size_t i = 0; i < n; i++) {
        bool has = false;
        for (int k = 0; k < N_CASES && !has; k++) {
            read_case(cases[k]);
            has = pl_str_is(pl_json_str(pl_json_get(pl_json_get(c.json, "keys"), "general.architecture")), names[i]);
            pl_json_free(c.json);
            pl_buf_fini(&c.text);
        }
        ck_assert_msg(has, "%s has no case", names[i]);
    }
}
END_TEST

static Suite *archs_suite(void)
{
    Suite *s = suite_create("contract: architectures");
    TCase *t = tcase_create("architectures");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, logits_are_those_of_transformers_at_every_position, 0, N_CASES);
    tcase_add_loop_test(t, any_way_to_compute_gives_the_same_bits, 0, N_CASES);
    tcase_add_test(t, embeddings_are_what_the_output_matrix_multiplies);
    tcase_add_test(t, an_encoder_gives_no_logits_and_takes_no_part_of_a_sequence);
    tcase_add_test(t, every_architecture_has_a_case);
    suite_add_tcase(s, t);
    return s;
}

int main(void)
{
    return ck_run(archs_suite(), NULL);
}
