/* Logits and greedy text against implementations that are not ours: logits.py (numpy) for the demo model, llama2.c and
 * llama.cpp for the models in PACELINE_TEST_DATA. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/alloc.h"
#include "engine/base/file.h"
#include "engine/base/reader.h"
#include "engine/text/vocab.h"
#include "tests/fixtures/fixtures.h"
#include "tests/fixtures/rig.h"

static void read_text(pl_buf *out, const char *path)
{
    pl_error err = {0};
    ck_ok(pl_file_read(out, path, 1 << 20, &err), err);
    ck_assert_ptr_nonnull(pl_buf_cstr(out));
}

/* With activations of one 8-bit term everywhere the worst position was at 0.9935 (0.9951 in numpy with nothing else
 * rounded). Which products take two terms is said in engine/model/arch/llama.c. */
START_TEST(logits_of_the_demo_model_are_those_of_float32_over_dequantized_weights)
{
    const char *path = demo_model();
    if (path == NULL) return;
    pl_error err = {0};
    pl_mapped map;
    ck_ok(pl_mapped_open(&map, GOLDEN_DIR "/smollm2-logits.bin", &err), err);
    pl_reader in = pl_reader_of(map.bytes);
    const uint8_t *magic = pl_read_bytes(&in, 8);
    ck_assert(magic && memcmp(magic, "PLGOLD01", 8) == 0);
    int32_t n = (int32_t)pl_read_u32(&in), n_ids = (int32_t)pl_read_u32(&in);
    ck_assert(n == 200 && n_ids == 256);
    int32_t tokens[200], ids[256], argmax[200];
    for (int32_t i = 0; i < n; i++) tokens[i] = (int32_t)pl_read_u32(&in);
    for (int32_t i = 0; i < n_ids; i++) ids[i] = (int32_t)pl_read_u32(&in);
    for (int32_t i = 0; i < n; i++) argmax[i] = (int32_t)pl_read_u32(&in);
    const uint8_t *sums = pl_read_bytes(&in, 4 * 200), *values = pl_read_bytes(&in, 2 * 200 * 256);
    ck_assert(!in.bad && pl_reader_left(&in) == 0);

    rig_model m;
    rig r;
    rig_model_from_path(&m, path);
    rig_open(&r, &m, .packed = true, .n_stages = 2, .n_threads = 2);
    size_t n_vocab = (size_t)r.n_vocab;
    float *logits = pl_calloc(200 * n_vocab, sizeof *logits);
    rig_seq_open(&r, 0, 0);
    rig_logits(&r, 0, 0, tokens, n, 64, logits);
    double worst = 1, worst_sum = 0, mean = 0;
    int32_t agree = 0;
    for (int32_t i = 0; i < n; i++) {
        const float *row = logits + (size_t)i * n_vocab;
        double dot = 0, aa = 0, bb = 0, total = 0;
        int32_t best = 0;
        for (int32_t k = 0; k < n_ids; k++) {
            double a = row[ids[k]], b = pl_f16_to_f32(pl_get_u16(values + 2 * (i * n_ids + k)));
            dot += a * b;
            aa += a * a;
            bb += b * b;
        }
        for (int32_t k = 0; k < r.n_vocab; k++)
            if (row[k] > row[best]) best = k;
        for (int32_t k = 0; k < r.n_vocab; k++) total += exp((double)row[k] - (double)row[best]);
        uint32_t bits = pl_get_u32(sums + 4 * i);
        float sum;
        memcpy(&sum, &bits, 4);
        double cosine = dot / sqrt(aa * bb), off = fabs(log(total) + (double)row[best] - (double)sum);
        ck_assert_msg(cosine > 0.999, "position %d: cosine %.6f", (int)i, cosine);
        mean += cosine / n;
        if (cosine < worst) worst = cosine;
        if (off > worst_sum) worst_sum = off;
        agree += best == argmax[i];
    }
    fprintf(stderr,
            "demo model: cosine at least %.6f, %.6f in the mean, logsumexp within %.4f, likeliest token equal at %d of "
            "%d positions\n",
            worst, mean, worst_sum, (int)agree, (int)n);
    ck_assert_msg(mean > 0.9999, "mean cosine %.6f", mean);
    ck_assert_msg(worst_sum < 0.5, "logsumexp is off by %.4f", worst_sum);
    ck_assert_msg(agree >= 198, "the likeliest token is equal at %d of 200 positions only", (int)agree);
    pl_free(logits);
    rig_close(&r);
    rig_model_close(&m);
    pl_mapped_close(&map);
}
END_TEST

/* The numbers behind a word at the beginning of a line. */
static int32_t read_ids(const char *text, const char *word, int32_t *out, int32_t max)
{
    const char *at = strstr(text, word);
    ck_assert_ptr_nonnull(at);
    at += strlen(word);
    int32_t n = 0;
    for (char *end; n < max && *at != '\n'; at = end) {
        long v = strtol(at, &end, 10);
        if (end == at) break;
        out[n++] = (int32_t)v;
    }
    return n;
}

static const char *const models[] = {"models/llama2c/stories260K.gguf", "models/llama2c/stories260K-wide256.gguf"};

START_TEST(the_float_models_say_what_llama2_c_says)
{
    char ids_path[512], logits_path[512], text_path[512];
    const char *found = test_data("models/llama2c/stories260K.expected-ids.txt");
    if (found == NULL) return;
    snprintf(ids_path, sizeof ids_path, "%s", found);
    found = test_data("models/llama2c/stories260K.expected-logits.txt");
    ck_assert_ptr_nonnull(found);
    snprintf(logits_path, sizeof logits_path, "%s", found);
    found = test_data("models/llama2c/stories260K.expected.txt");
    ck_assert_ptr_nonnull(found);
    snprintf(text_path, sizeof text_path, "%s", found);
    const char *path = test_data(models[_i]);
    if (path == NULL) return;

    pl_buf text = {0};
    int32_t prompt[16], expected[512];
    read_text(&text, ids_path);
    int32_t n_prompt = read_ids((const char *)text.data, "prompt", prompt, 16),
            n = read_ids((const char *)text.data, "greedy", expected, 512);
    ck_assert(n_prompt == 5 && n >= 190);

    rig_model m;
    rig r;
    pl_error err = {0};
    rig_model_from_path(&m, path);
    rig_open(&r, &m, .packed = true, .n_stages = 2, .kv_f32 = true);
    float *logits = pl_calloc(16 * (size_t)r.n_vocab, sizeof *logits);
    rig_seq_open(&r, 0, 0);
    rig_logits(&r, 0, 0, prompt, n_prompt - 1, 512, logits);

    /* The logits behind the prompt: a token and its logit a line. */
    pl_buf numbers = {0};
    read_text(&numbers, logits_path);
    pl_sampled sampled;
    pl_row row = {.seq = 0, .pos = n_prompt - 1, .token = prompt[n_prompt - 1], .logits = true};
    pl_micro_batch mb = {.rows = &row, .n_rows = 1, .logits_out = logits, .sampled = &sampled};
    ck_ok(rig_run(&r, &mb, &err), err);
    const char *at = (const char *)numbers.data;
    for (int32_t i = 0; i < r.n_vocab; i++) {
        char *end;
        ck_assert_int_eq(strtol(at, &end, 10), i);
        at = end;
        double want = strtod(at, &end);
        ck_assert(end != at);
        at = end;
        ck_assert_msg(fabs(want - (double)logits[i]) < 2e-4, "logit %d is %.6f, not %.6f", (int)i, (double)logits[i],
                      want);
    }

    /* And the greedy text, as ids and as bytes. */
    pl_vocab *v;
    pl_buf said = {0};
    pl_detok_stream stream;
    ck_ok(pl_vocab_open(&v, m.g, &err), err);
    pl_detok_start(&stream, v, false, true);
    for (int32_t i = 0; i < n_prompt; i++) ck_assert(pl_detok_add(&stream, prompt[i], &said));
    for (int32_t i = 0; i < n; i++) {
        ck_assert_msg(sampled.token == expected[i], "token %d is %d, not %d", (int)i, (int)sampled.token,
                      (int)expected[i]);
        ck_assert(pl_detok_add(&stream, sampled.token, &said));
        row = (pl_row){.seq = 0, .pos = n_prompt + i, .token = sampled.token, .logits = true};
        mb = (pl_micro_batch){.rows = &row, .n_rows = 1, .sampled = &sampled};
        ck_ok(rig_run(&r, &mb, &err), err);
    }
    ck_assert(pl_detok_end(&stream, &said));
    pl_buf wanted = {0};
    read_text(&wanted, text_path);
    while (wanted.size > 0 && wanted.data[wanted.size - 1] == '\n') wanted.size--;
    size_t common = said.size < wanted.size ? said.size : wanted.size;
    ck_assert_msg(common + 8 > wanted.size && memcmp(said.data, wanted.data, common) == 0, "said: %.*s", (int)said.size,
                  (const char *)said.data);
    pl_vocab_close(v);
    pl_buf_fini(&said);
    pl_buf_fini(&wanted);
    pl_buf_fini(&numbers);
    pl_buf_fini(&text);
    pl_free(logits);
    rig_close(&r);
    rig_model_close(&m);
}
END_TEST

static Suite *golden_suite(void)
{
    Suite *s = suite_create("golden: logits");
    TCase *t = tcase_create("logits");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, logits_of_the_demo_model_are_those_of_float32_over_dequantized_weights);
    tcase_add_loop_test(t, the_float_models_say_what_llama2_c_says, 0, 2);
    suite_add_tcase(s, t);
    return s;
}

int main(void)
{
    return ck_run(golden_suite(), NULL);
}
