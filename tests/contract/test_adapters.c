/* LoRA adapters: what a row with an adapter gets is what a model with the adapter in its weights gives, and what is in
 * the batch beside it does not matter. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/alloc.h"
#include "engine/base/file.h"
#include "engine/gguf/write.h"
#include "tests/contract/sets.h"
#include "tests/fixtures/fixtures.h"
#include "tests/fixtures/rig.h"

Suite *adapters_suite(void);

enum { N_TOKENS = 40, N_VOCAB = 320, RANK = 3 };
static const float ALPHA = 6, SCALE = 0.5f;
static const char *const weights[] = {"blk.0.attn_q.weight", "blk.1.attn_v.weight", "blk.2.ffn_down.weight",
                                      "blk.2.attn_output.weight"};
enum { N_WEIGHTS = sizeof weights / sizeof weights[0] };

static char dir[64], model_path[96], adapter_path[96];
static int32_t tokens[N_TOKENS];
static float wanted[N_TOKENS * N_VOCAB], got[N_TOKENS * N_VOCAB], plain[N_TOKENS * N_VOCAB];

typedef struct adapter_options {
    const char *arch, *type;
    bool without_b, too_long, without_alpha;
    const char *weight; /* instead of the first one */
} adapter_options;

static float random_weight(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return ((float)(*state >> 8) / 8388608.0f - 1.0f) * 0.5f;
}

/* Writes the adapter; merged, when not NULL, is the model's file with it added to the weights. */
static void write_adapter(adapter_options o, const pl_gguf *g, pl_buf *merged)
{
    pl_error err = {0};
    pl_gguf_writer *w;
    float *parts[2 * N_WEIGHTS];
    uint32_t state = 1;
    ck_ok(pl_gguf_writer_new(&w, &err), err);
    pl_gguf_add_str(w, "general.type", pl_str_from(o.type ? o.type : "adapter"));
    pl_gguf_add_str(w, "general.architecture", pl_str_from(o.arch ? o.arch : "llama"));
    pl_gguf_add_str(w, "adapter.type", PL_STR("lora"));
    if (!o.without_alpha) pl_gguf_add_f32(w, "adapter.lora.alpha", ALPHA);
    for (int i = 0; i < N_WEIGHTS; i++) {
        const pl_gguf_tensor *t = pl_gguf_find_tensor(g, pl_str_from(weights[i]));
        int64_t k = t->ne[0], m = t->ne[1], ne_a[] = {k + (i == 0 && o.too_long), RANK}, ne_b[] = {RANK, m};
        float *a = parts[2 * i] = pl_calloc((size_t)(ne_a[0] * RANK), sizeof *a);
        float *b = parts[2 * i + 1] = pl_calloc((size_t)(RANK * m), sizeof *b);
        for (int64_t j = 0; j < k * RANK; j++) a[j] = random_weight(&state);
        for (int64_t j = 0; j < RANK * m; j++) b[j] = random_weight(&state);
        char name[96];
        const char *weight = i == 0 && o.weight ? o.weight : weights[i];
        snprintf(name, sizeof name, "%s.lora_a", weight);
        pl_gguf_add_tensor(w, name, PL_TYPE_F32, 2, ne_a, a);
        snprintf(name, sizeof name, "%s.lora_b", weight);
        if (i != 0 || !o.without_b) pl_gguf_add_tensor(w, name, PL_TYPE_F32, 2, ne_b, b);
        if (!merged) continue;
        float *at = (float *)(void *)(merged->data + t->offset);
        for (int64_t r = 0; r < m; r++)
            for (int64_t c = 0; c < k; c++) {
                double sum = 0;
                for (int64_t j = 0; j < RANK; j++) sum += (double)b[r * RANK + j] * (double)a[j * k + c];
                at[r * k + c] += (float)(sum * (double)(SCALE * ALPHA / RANK));
            }
    }
    ck_ok(pl_gguf_write_file(w, adapter_path, &err), err);
    pl_gguf_writer_free(w);
    for (int i = 0; i < 2 * N_WEIGHTS; i++) pl_free(parts[i]);
}

static pl_buf model_file(void)
{
    return tiny_gguf(.n_layer = 3, .n_embd = 64, .n_head = 4, .n_head_kv = 2, .n_ff = 96, .n_vocab = N_VOCAB,
                     .type = PL_TYPE_F32, .biases = true, .seed = 9);
}

static void setup(void)
{
    pl_error err = {0};
    temp_dir(dir);
    snprintf(model_path, sizeof model_path, "%s/model.gguf", dir);
    snprintf(adapter_path, sizeof adapter_path, "%s/adapter.gguf", dir);
    pl_buf file = model_file();
    ck_ok(pl_file_write(model_path, pl_buf_bytes(&file), 0600, &err), err);
    pl_buf_fini(&file);
    for (int32_t i = 0; i < N_TOKENS; i++) tokens[i] = (i * 131 + 7) % N_VOCAB;
}

static void teardown(void)
{
    temp_dir_remove(dir);
}

/* The logits of the model that has the adapter in its weights, and of the one without. */
static void reference(void)
{
    pl_error err = {0};
    rig_model m;
    rig r;
    pl_gguf *g;
    pl_buf merged = model_file();
    ck_ok(pl_gguf_open(&g, model_path, &err), err);
    write_adapter((adapter_options){0}, g, &merged);
    pl_gguf_close(g);
    for (int i = 0; i < 2; i++) {
        rig_model_from_bytes(&m, i == 0 ? merged : model_file());
        rig_open(&r, &m, .kv_f32 = true);
        rig_seq_open(&r, 0, 0);
        rig_logits(&r, 0, 0, tokens, N_TOKENS, 512, i == 0 ? wanted : plain);
        rig_close(&r);
        rig_model_close(&m);
    }
}

START_TEST(an_adapter_is_as_if_it_were_in_the_weights)
{
    rig_model m;
    rig r;
    reference();
    rig_model_with_adapter(&m, model_path, adapter_path);
    rig_open(&r, &m, .kv_f32 = true, .n_stages = 3, .packed = true);
    r.adapter_scale = SCALE;
    rig_seq_open(&r, 0, 0);
    rig_logits(&r, 0, 0, tokens, N_TOKENS, 7, got);
    double largest = 0, away = 0;
    for (int i = 0; i < N_TOKENS * N_VOCAB; i++) {
        largest = fmax(largest, fabs((double)wanted[i]));
        away = fmax(away, fabs((double)wanted[i] - (double)got[i]));
    }
    ck_assert_msg(away < 2e-5 * largest, "%g away, of %g", away, largest);
    ck_assert_int_ge(first_difference(wanted, plain, N_TOKENS * N_VOCAB), 0);

    /* Who wants none of it gets the model as it is. */
    r.adapter_scale = 0;
    rig_seq_open(&r, 1, 0);
    rig_logits(&r, 1, 0, tokens, N_TOKENS, 7, got);
    for (int i = 0; i < N_TOKENS * N_VOCAB; i++) ck_assert(got[i] == plain[i]);
    rig_close(&r);
    rig_model_close(&m);
}
END_TEST

START_TEST(rows_with_other_scales_in_the_batch_do_not_matter)
{
    pl_error err = {0};
    rig_model m;
    rig r;
    reference();
    static float both[2 * N_VOCAB];
    static const float scales[] = {SCALE, -1.5f};
    rig_model_with_adapter(&m, model_path, adapter_path);
    for (int s = 0; s < 2; s++) {
        rig_open(&r, &m, .n_stages = 2);
        r.adapter_scale = scales[s];
        rig_seq_open(&r, 0, 0);
        rig_logits(&r, 0, 0, tokens, N_TOKENS, 1, s ? wanted : plain);
        rig_close(&r);
    }
    rig_open(&r, &m, .n_stages = 2, .n_threads = 2);
    for (int32_t s = 0; s < 2; s++) {
        r.adapter_scale = scales[s];
        rig_seq_open(&r, s, 0);
    }
    for (int32_t i = 0; i < N_TOKENS; i++) {
        /* Sequence 0 wants its logits only now and then: then the scales are those of fewer rows. */
        bool first = i % 3 == 0;
        pl_row rows[] = {{.seq = 0, .pos = i, .token = tokens[i], .logits = first},
                         {.seq = 1, .pos = i, .token = tokens[i], .logits = true}};
        pl_micro_batch mb = {.rows = rows, .n_rows = 2, .logits_out = both};
        ck_ok(rig_run(&r, &mb, &err), err);
        if (first) ck_assert_int_lt(first_difference(both, plain + (size_t)i * N_VOCAB, N_VOCAB), 0);
        ck_assert_int_lt(first_difference(both + (first ? N_VOCAB : 0), wanted + (size_t)i * N_VOCAB, N_VOCAB), 0);
    }
    /* There is no second adapter. */
    const float two[] = {1, 1};
    pl_sample_params params = pl_sample_defaults();
    const pl_kv_op op = {.kind = PL_KV_OPEN, .seq = 2, .params = &params, .adapter_scales = two, .n_adapters = 2};
    ck_status(rig_run(&r, &(pl_micro_batch){.ops = &op, .n_ops = 1}, &err), PL_ERR_INVALID, err);
    ck_says(err, "adapter 1 of 1");
    rig_close(&r);
    rig_model_close(&m);
}
END_TEST

START_TEST(what_does_not_fit_the_model_is_named)
{
    static const struct {
        adapter_options o;
        const char *says;
    } cases[] = {
        {{.type = "model"}, "not an adapter"},
        {{.arch = "gemma"}, "architecture \"gemma\""},
        {{.without_alpha = true}, "adapter.lora.alpha"},
        {{.without_b = true}, "only one of lora_a and lora_b"},
        {{.too_long = true}, "do not fit"},
        {{.weight = "blk.7.attn_q.weight"}, "adapter.0.blk.7.attn_q.weight.lora_a"},
    };
    pl_error err = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pl_gguf *g;
        pl_model_profile *p = NULL;
        ck_ok(pl_gguf_open(&g, model_path, &err), err);
        write_adapter(cases[i].o, g, NULL);
        pl_status s = pl_gguf_add_adapter(g, adapter_path, &err);
        if (s == PL_OK) s = pl_model_profile_open(&p, g, &err);
        ck_assert_msg(s != PL_OK, "case %zu was taken", i);
        ck_says(err, cases[i].says);
        pl_model_profile_close(p);
        pl_gguf_close(g);
    }
}
END_TEST

Suite *adapters_suite(void)
{
    Suite *s = suite_create("stage: adapters");
    TCase *t = tcase_create("adapters");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, an_adapter_is_as_if_it_were_in_the_weights);
    tcase_add_test(t, rows_with_other_scales_in_the_batch_do_not_matter);
    tcase_add_test(t, what_does_not_fit_the_model_is_named);
    suite_add_tcase(s, t);
    return s;
}
