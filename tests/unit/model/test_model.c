#include <math.h>
#include <stdio.h>

#include "engine/gguf/write.h"
#include "engine/model/kv.h"
#include "engine/model/model.h"
#include "engine/model/rope.h"
#include "tests/fixtures/fixtures.h"
#include "tests/fixtures/rig.h"

/* --- Profiles --- */

/* The tiny model's file once more, without some keys and tensors, and with others added or changed. */
typedef struct edit {
    const char *drop_key, *drop_tensor; /* a tensor by its name, or all by a part of it that has no dot */
    const char *u32_key;
    uint32_t u32;
    const char *f32_key;
    float f32;
    const char *str_key, *str;
    const char *extra_tensor;   /* [8, 8] F32 */
    const char *reshape_tensor; /* becomes [64, 32] F32 */
    const char *retype_tensor;  /* becomes I32 of the same shape */
} edit;

static pl_status open_edited(edit e, pl_error *err)
{
    pl_error ignored = {0};
    static const float data[512 * 512];
    pl_buf whole = tiny_gguf(), out = {0};
    pl_gguf *g;
    pl_gguf_writer *w;
    ck_ok(pl_gguf_open_bytes(&g, pl_buf_bytes(&whole), false, &ignored), ignored);
    ck_ok(pl_gguf_writer_new(&w, &ignored), ignored);
    for (size_t i = 0; i < pl_gguf_n_keys(g); i++) {
        pl_gguf_value v;
        pl_str key = pl_gguf_key_at(g, i, &v);
        const char *changed[] = {e.drop_key, e.u32_key, e.f32_key, e.str_key};
        bool keep = true;
        for (int c = 0; c < 4; c++) keep = keep && !(changed[c] && pl_str_is(key, changed[c]));
        if (keep) ck_assert(pl_gguf_add_value(w, key, &v));
    }
    if (e.u32_key) ck_assert(pl_gguf_add_u32(w, e.u32_key, e.u32));
    if (e.f32_key) ck_assert(pl_gguf_add_f32(w, e.f32_key, e.f32));
    if (e.str_key) ck_assert(pl_gguf_add_str(w, e.str_key, pl_str_from(e.str)));
    for (size_t i = 0; i < pl_gguf_n_tensors(g); i++) {
        const pl_gguf_tensor *t = pl_gguf_tensor_at(g, i);
        char name[128];
        snprintf(name, sizeof name, "%.*s", PL_STR_ARG(t->name));
        if (e.drop_tensor &&
            (strchr(e.drop_tensor, '.') ? strcmp(name, e.drop_tensor) == 0 : strstr(name, e.drop_tensor) != NULL))
            continue;
        if (e.reshape_tensor && strcmp(name, e.reshape_tensor) == 0)
            ck_assert(pl_gguf_add_tensor(w, name, PL_TYPE_F32, 2, (int64_t[]){64, 32}, data));
        else if (e.retype_tensor && strcmp(name, e.retype_tensor) == 0)
            ck_assert(pl_gguf_add_tensor(w, name, PL_TYPE_I32, t->n_dims, t->ne, data));
        else
            ck_assert(pl_gguf_add_tensor(w, name, t->type, t->n_dims, t->ne, t->data));
    }
    if (e.extra_tensor) ck_assert(pl_gguf_add_tensor(w, e.extra_tensor, PL_TYPE_F32, 2, (int64_t[]){8, 8}, data));
    ck_ok(pl_gguf_write(w, &out, &ignored), ignored);
    pl_gguf_writer_free(w);
    pl_gguf_close(g);
    pl_buf_fini(&whole);

    ck_ok(pl_gguf_open_bytes(&g, pl_buf_bytes(&out), false, &ignored), ignored);
    pl_model_profile *p;
    pl_status s = pl_model_profile_open(&p, g, err);
    ck_assert((p != NULL) == (s == PL_OK));
    pl_model_profile_close(p);
    pl_gguf_close(g);
    pl_buf_fini(&out);
    return s;
}

static const struct {
    edit e;
    pl_status status;
    const char *says[3];
} wrong_files[] = {
    {{.drop_key = "general.architecture"}, PL_ERR_FORMAT, {"general.architecture"}},
    {{.str_key = "general.architecture", .str = "gpt5"}, PL_ERR_UNSUPPORTED, {"gpt5", "llama"}},
    {{.drop_key = "llama.block_count"}, PL_ERR_FORMAT, {"llama.block_count", "missing"}},
    {{.u32_key = "llama.block_count", .u32 = 0}, PL_ERR_FORMAT, {"block_count", "0"}},
    {{.u32_key = "llama.block_count", .u32 = 4000000000u}, PL_ERR_FORMAT, {"block_count", "4000000000"}},
    {{.u32_key = "llama.block_count", .u32 = 3},
     PL_ERR_FORMAT,
     {"blk.2.attn_norm.weight", "blk.2.ffn_down.weight", "missing"}},
    {{.u32_key = "llama.block_count", .u32 = 1}, PL_ERR_UNSUPPORTED, {"blk.1.attn_norm.weight", "not known"}},
    {{.u32_key = "llama.embedding_length", .u32 = 128}, PL_ERR_FORMAT, {"token_embd.weight", "128"}},
    {{.u32_key = "llama.attention.head_count", .u32 = 0}, PL_ERR_FORMAT, {"head_count"}},
    {{.u32_key = "llama.attention.head_count", .u32 = 7}, PL_ERR_FORMAT, {"multiple"}},
    {{.u32_key = "llama.attention.head_count_kv", .u32 = 3}, PL_ERR_FORMAT, {"multiple"}},
    {{.u32_key = "llama.attention.head_count_kv", .u32 = 4},
     PL_ERR_FORMAT,
     {"blk.0.attn_k.weight", "blk.1.attn_v.weight"}},
    {{.u32_key = "llama.attention.key_length", .u32 = 8}, PL_ERR_FORMAT, {"key"}},
    {{.u32_key = "llama.attention.value_length", .u32 = 8}, PL_ERR_UNSUPPORTED, {"values of 8"}},
    {{.u32_key = "llama.feed_forward_length", .u32 = 96},
     PL_ERR_FORMAT,
     {"blk.0.ffn_gate.weight", "blk.1.ffn_down.weight"}},
    {{.u32_key = "llama.rope.dimension_count", .u32 = 5}, PL_ERR_FORMAT, {"dimension_count"}},
    {{.u32_key = "llama.rope.dimension_count", .u32 = 18}, PL_ERR_FORMAT, {"dimension_count", "18"}},
    {{.f32_key = "llama.rope.freq_base", .f32 = NAN}, PL_ERR_FORMAT, {"freq_base"}},
    {{.f32_key = "llama.rope.freq_base", .f32 = 0}, PL_ERR_FORMAT, {"freq_base"}},
    {{.f32_key = "llama.attention.layer_norm_rms_epsilon", .f32 = -1}, PL_ERR_FORMAT, {"rms_epsilon"}},
    {{.drop_key = "llama.attention.layer_norm_rms_epsilon"}, PL_ERR_FORMAT, {"rms_epsilon", "missing"}},
    {{.str_key = "llama.rope.scaling.type", .str = "spiral"}, PL_ERR_UNSUPPORTED, {"spiral"}},
    {{.f32_key = "llama.rope.scaling.factor", .f32 = -4}, PL_ERR_FORMAT, {"scaling.factor"}},
    {{.str_key = "llama.context_length", .str = "long"}, PL_ERR_FORMAT, {"context_length"}},
    {{.u32_key = "llama.expert_count", .u32 = 8}, PL_ERR_FORMAT, {"expert_used_count is missing"}},
    {{.drop_tensor = "token_embd"}, PL_ERR_FORMAT, {"token_embd.weight", "missing"}},
    {{.drop_tensor = "ffn_up"}, PL_ERR_FORMAT, {"blk.0..1.ffn_up.weight", "missing", "1 problem:"}},
    {{.drop_tensor = "output_norm"}, PL_ERR_FORMAT, {"output_norm.weight"}},
    {{.extra_tensor = "blk.0.attn_q_norm.weight"}, PL_ERR_UNSUPPORTED, {"attn_q_norm"}},
    {{.extra_tensor = "blk.1.ffn_uppp.weight", .drop_tensor = "blk.1.ffn_up.weight"},
     PL_ERR_FORMAT,
     {"blk.1.ffn_up.weight is missing; the nearest in the file: ffn_uppp.weight",
      "blk.1.ffn_uppp.weight is not known to architecture llama; the nearest that is: ffn_up.weight", "2 problems"}},
    {{.extra_tensor = "output_norms.weight"}, PL_ERR_UNSUPPORTED, {"the nearest that is: output_norm.weight"}},
    {{.extra_tensor = "blk.999999999999.x"}, PL_ERR_UNSUPPORTED, {"tensor blk.999999999999.x"}},
    {{.u32_key = "llama.attention.head_count_vk", .u32 = 2, .extra_tensor = "other"},
     PL_ERR_UNSUPPORTED,
     {"key llama.attention.head_count_vk is not known; the nearest that is: llama.attention.head_count_kv",
      "tensor other"}},
    {{.f32_key = "llama.logit_scale", .f32 = 0.5f}, PL_ERR_UNSUPPORTED, {"llama.logit_scale"}},
    {{.reshape_tensor = "blk.1.attn_output.weight"}, PL_ERR_FORMAT, {"blk.1.attn_output.weight", "[64, 32"}},
    {{.retype_tensor = "blk.1.attn_norm.weight"}, PL_ERR_UNSUPPORTED, {"blk.1.attn_norm.weight", "F32"}},
    {{.retype_tensor = "blk.1.ffn_gate.weight"}, PL_ERR_UNSUPPORTED, {"blk.1.ffn_gate.weight", "weight type"}},
};

START_TEST(a_wrong_file_is_refused_with_all_that_is_wrong)
{
    pl_error err = {0};
    ck_status(open_edited(wrong_files[_i].e, &err), wrong_files[_i].status, err);
    for (int i = 0; i < 3; i++)
        if (wrong_files[_i].says[i]) ck_says(err, wrong_files[_i].says[i]);
}
END_TEST

START_TEST(what_a_file_may_leave_out_or_have_more_is_accepted)
{
    pl_error err = {0};
    ck_ok(open_edited((edit){0}, &err), err);
    ck_ok(open_edited((edit){.drop_tensor = "output.weight"}, &err), err); /* tied */
    ck_ok(open_edited((edit){.extra_tensor = "blk.1.attn_rot_embd.weight"}, &err), err);
    ck_ok(open_edited((edit){.f32_key = "llama.logit_scale", .f32 = 0}, &err), err);
    ck_ok(open_edited((edit){.u32_key = "llamas.logit_scale", .u32 = 3}, &err), err);
    ck_ok(open_edited((edit){.u32_key = "llama.attention.key_length", .u32 = 16}, &err), err);
}
END_TEST

START_TEST(the_tensors_of_all_splits_are_those_of_the_model)
{
    for (int tied = 0; tied < 2; tied++) {
        rig_model m;
        rig_model_from_bytes(&m, tiny_gguf(.n_layer = 5, .tied = tied, .biases = true, .rope_freqs = true));
        size_t n = pl_gguf_n_tensors(m.g), list[128];
        ck_assert_uint_eq(pl_model_stage_tensors(m.p, 0, 5, NULL), n);
        for (int32_t cut = 1; cut < 5; cut++) {
            int seen[128] = {0};
            for (int part = 0; part < 2; part++) {
                size_t k = pl_model_stage_tensors(m.p, part ? cut : 0, part ? 5 : cut, list);
                for (size_t i = 0; i < k; i++) {
                    ck_assert(i == 0 || list[i] > list[i - 1]);
                    seen[list[i]]++;
                }
            }
            for (size_t i = 0; i < n; i++) {
                pl_str name = pl_gguf_tensor_at(m.g, i)->name;
                bool both = pl_str_is(name, "rope_freqs.weight") || (tied && pl_str_is(name, "token_embd.weight"));
                ck_assert_msg(seen[i] == 1 + both, "tensor %.*s is in %d stages", PL_STR_ARG(name), seen[i]);
            }
        }
        rig_model_close(&m);
    }
}
END_TEST

START_TEST(units_add_up_to_a_bound_of_the_weights)
{
    rig_model m;
    rig_model_from_bytes(&m, tiny_gguf(.n_layer = 3, .type = PL_TYPE_Q8_0));
    pl_stage_shape shape = {
        .layer_end = 3, .n_blocks = 8, .n_ctx = 256, .n_seqs = 1, .n_rows = 32, .n_threads = 1, .cache = PL_CACHE_BOTH(PL_TYPE_F16)};
    uint64_t sum = pl_model_unit_bytes(m.p, PL_UNIT_EMBED) + pl_model_unit_bytes(m.p, PL_UNIT_HEAD),
             macs = pl_model_unit_macs(m.p, PL_UNIT_HEAD);
    for (int32_t l = 0; l < 3; l++) {
        sum += pl_model_unit_bytes(m.p, l);
        macs += pl_model_unit_macs(m.p, l);
    }
    ck_assert_uint_eq(sum, pl_model_stage_memory(m.p, &shape).weights);
    ck_assert_uint_eq(pl_model_unit_macs(m.p, PL_UNIT_EMBED), 0);
    ck_assert_uint_eq(macs, 3 * (64 * 64 * 2 + 64 * 32 * 2 + 64 * 128 * 3) + 64 * 320);
    ck_assert_uint_eq(pl_model_stage_memory(m.p, &shape).kv, 3 * 8 * pl_model_kv_block_bytes(m.p, 0, PL_CACHE_BOTH(PL_TYPE_F16)));
    rig_model_close(&m);
}
END_TEST

/* --- Rotary tables --- */

static pl_rope_params rope_params(void)
{
    return (pl_rope_params){.n_rot = 64,
                            .freq_base = 10000,
                            .scaling = PL_ROPE_SCALING_LINEAR,
                            .factor = 1,
                            .n_ctx_orig = 2048,
                            .ext_factor = 1,
                            .attn_factor = 1,
                            .beta_fast = 32,
                            .beta_slow = 1};
}

static void ck_rope(const pl_rope_params *p, const float *factors, int32_t pos, int32_t i, double angle,
                    double magnitude)
{
    pl_error err = {0};
    pl_rope_table t;
    float row[1024];
    ck_ok(pl_rope_table_init(&t, p, factors, 8192, &err), err);
    pl_rope_table_row(&t, pos, row);
    ck_assert_msg(fabs(row[2 * i] - magnitude * cos(angle)) < 1e-6 &&
                      fabs(row[2 * i + 1] - magnitude * sin(angle)) < 1e-6,
                  "couple %d at %d: (%.8f, %.8f), not (%.8f, %.8f)", (int)i, (int)pos, (double)row[2 * i],
                  (double)row[2 * i + 1], magnitude * cos(angle), magnitude * sin(angle));
    pl_rope_table_fini(&t);
}

START_TEST(angles_follow_the_definition)
{
    pl_rope_params p = rope_params();
    float factors[32];
    for (int i = 0; i < 32; i++) factors[i] = (float)(1 + i);
    for (int32_t i = 0; i < 32; i += 5) {
        double f = pow(10000, -2.0 * i / 64);
        ck_rope(&p, NULL, 0, i, 0, 1);
        ck_rope(&p, NULL, 777, i, 777 * f, 1);
        ck_rope(&p, factors, 777, i, 777 * f / (1 + i), 1);
        p.factor = 4;
        ck_rope(&p, NULL, 777, i, 777 * f / 4, 1);
        p.factor = 1;
    }
}
END_TEST

START_TEST(yarn_keeps_fast_couples_and_stretches_slow_ones)
{
    pl_rope_params p = rope_params();
    p.scaling = PL_ROPE_SCALING_YARN;
    p.factor = 4;
    double magnitude = 1 + 0.1 * log(4);
    /* By the paper's formula the ramp runs from couple 8.06 to 20.1: floor 8, ceil 21. */
    double low = floor(64 * log(2048 / (32 * 2 * M_PI)) / (2 * log(10000))),
           high = ceil(64 * log(2048 / (2 * M_PI)) / (2 * log(10000)));
    for (int32_t i = 0; i < 32; i++) {
        double f = pow(10000, -2.0 * i / 64), keep = 1 - fmin(1, fmax(0, (i - low) / (high - low)));
        ck_rope(&p, NULL, 1000, i, 1000 * (f / 4 * (1 - keep) + f * keep), magnitude);
    }
    ck_assert(low > 0 && high < 31);
}
END_TEST

START_TEST(factors_that_are_no_positive_numbers_are_refused)
{
    pl_rope_params p = rope_params();
    const float bad[] = {0, -1, NAN, INFINITY, 1e-30f};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        float factors[32];
        for (int k = 0; k < 32; k++) factors[k] = 1;
        factors[3] = bad[i];
        pl_rope_table t;
        pl_error err = {0};
        ck_status(pl_rope_table_init(&t, &p, factors, 8192, &err), PL_ERR_FORMAT, err);
        ck_says(err, "3");
    }
}
END_TEST

/* --- The paged cache's bookkeeping --- */

static pl_kv *new_kv(int32_t n_seqs, int32_t n_blocks, int32_t n_ctx)
{
    pl_kv *kv;
    pl_error err = {0};
    ck_ok(pl_kv_new(&kv, n_seqs, n_blocks, n_ctx, &err), err);
    return kv;
}

/* Opens seq with these blocks and n rows. */
static void fill(pl_kv *kv, int32_t seq, const int32_t *blocks, int32_t n_blocks, int32_t n_rows)
{
    pl_error err = {0};
    int32_t slot;
    ck_ok(pl_kv_try_open(kv, seq, &err), err);
    ck_ok(pl_kv_try_extend(kv, seq, blocks, n_blocks, &err), err);
    for (int32_t i = 0; i < n_rows; i++) {
        ck_ok(pl_kv_try_row(kv, seq, i, &slot, &err), err);
        ck_assert_int_eq(slot, blocks[i / PL_KV_PAGE] * PL_KV_PAGE + i % PL_KV_PAGE);
    }
    pl_kv_commit(kv);
}

START_TEST(bad_operations_are_refused_and_change_nothing)
{
    pl_kv *kv = new_kv(3, 8, 128);
    const int32_t blocks[] = {5, 2}, high = 8, negative = -1, used = 2, twice[] = {3, 3}, five[] = {0, 1, 3, 4, 6},
                  free_block = 7;
    fill(kv, 1, blocks, 2, 40);
    int32_t n, slot, from;
    for (int i = 0; i < 19; i++) {
        pl_error err = {0};
        pl_status s = PL_OK;
        /* Something valid goes before each: it must be undone too. */
        ck_ok(pl_kv_try_open(kv, 0, &err), err);
        ck_ok(pl_kv_try_extend(kv, 0, (const int32_t[]){0}, 1, &err), err);
        ck_ok(pl_kv_try_row(kv, 1, 40, &slot, &err), err);
        switch (i) {
        case 0: s = pl_kv_try_open(kv, 3, &err); break;
        case 1: s = pl_kv_try_open(kv, -1, &err); break;
        case 2: s = pl_kv_try_open(kv, 1, &err); break;
        case 3: s = pl_kv_try_extend(kv, 2, &free_block, 1, &err); break;
        case 4: s = pl_kv_try_extend(kv, 1, &high, 1, &err); break;
        case 5: s = pl_kv_try_extend(kv, 1, &negative, 1, &err); break;
        case 6: s = pl_kv_try_extend(kv, 1, &used, 1, &err); break;
        case 7: s = pl_kv_try_extend(kv, 1, twice, 2, &err); break;
        case 8: s = pl_kv_try_extend(kv, 1, five, 5, &err); break;
        case 9: s = pl_kv_try_extend(kv, 1, five, -1, &err); break;
        case 10: s = pl_kv_try_row(kv, 1, 40, &slot, &err); break;
        case 11: s = pl_kv_try_row(kv, 1, 42, &slot, &err); break;
        case 12: s = pl_kv_try_row(kv, 2, 0, &slot, &err); break;
        case 13: s = pl_kv_try_truncate(kv, 1, 42, &err); break;
        case 14: s = pl_kv_try_truncate(kv, 1, -1, &err); break;
        case 15: s = pl_kv_try_close(kv, 2, &err); break;
        case 16: s = pl_kv_try_fork(kv, 1, 0, 0, NULL, 0, &from, &err); break;  /* not empty */
        case 17: s = pl_kv_try_fork(kv, 0, 1, 32, NULL, 0, &from, &err); break; /* not empty either */
        case 18:
            ck_ok(pl_kv_try_open(kv, 2, &err), err);
            s = pl_kv_try_fork(kv, 2, 1, 33, NULL, 0, &from, &err); /* lacks the block for the copy */
            break;
        }
        ck_assert_msg(s == PL_ERR_INVALID, "case %d gave %s", i, pl_status_name(s));
        pl_kv_drop(kv);
        ck_assert(!pl_kv_is_open(kv, 0) && pl_kv_is_open(kv, 1) && !pl_kv_is_open(kv, 2));
        ck_assert_int_eq(pl_kv_length(kv, 1), 40);
        ck_assert_int_eq(pl_kv_blocks_used(kv), 2);
        const int32_t *pages = pl_kv_pages(kv, 1, &n);
        ck_assert(n == 2 && pages[0] == 5 && pages[1] == 2);
    }
    pl_kv_free(kv);
}
END_TEST

START_TEST(a_shared_block_is_not_written_and_lives_until_its_last_owner_is_gone)
{
    pl_kv *kv = new_kv(3, 8, 128);
    pl_error err = {0};
    const int32_t blocks[] = {5, 2}, copy = 7;
    int32_t slot, from, n;
    fill(kv, 0, blocks, 2, 40);
    ck_ok(pl_kv_try_open(kv, 1, &err), err);
    ck_ok(pl_kv_try_fork(kv, 1, 0, 40, &copy, 1, &from, &err), err);
    ck_assert_int_eq(from, 2);
    ck_ok(pl_kv_try_open(kv, 2, &err), err);
    ck_ok(pl_kv_try_fork(kv, 2, 0, 32, NULL, 0, &from, &err), err);
    ck_assert_int_eq(from, -1);
    pl_kv_commit(kv);
    ck_assert_int_eq(pl_kv_blocks_used(kv), 3);
    const int32_t *pages = pl_kv_pages(kv, 1, &n);
    ck_assert(n == 2 && pages[0] == 5 && pages[1] == 7);
    /* Each writes behind the shared page, in a block of its own. */
    ck_ok(pl_kv_try_row(kv, 0, 40, &slot, &err), err);
    ck_assert_int_eq(slot, 2 * PL_KV_PAGE + 8);
    ck_ok(pl_kv_try_row(kv, 1, 40, &slot, &err), err);
    ck_assert_int_eq(slot, 7 * PL_KV_PAGE + 8);
    ck_status(pl_kv_try_row(kv, 2, 32, &slot, &err), PL_ERR_INVALID, err); /* no block yet */
    pl_kv_drop(kv);
    /* Going back into the shared page forbids writing. */
    ck_ok(pl_kv_try_truncate(kv, 1, 20, &err), err);
    ck_status(pl_kv_try_row(kv, 1, 20, &slot, &err), PL_ERR_INVALID, err);
    ck_says(err, "share");
    pl_kv_drop(kv);
    ck_ok(pl_kv_try_close(kv, 0, &err), err);
    ck_ok(pl_kv_try_close(kv, 2, &err), err);
    pl_kv_commit(kv);
    ck_assert_int_eq(pl_kv_blocks_used(kv), 2);
    ck_ok(pl_kv_try_truncate(kv, 1, 20, &err), err);
    ck_ok(pl_kv_try_row(kv, 1, 20, &slot, &err), err); /* it is the only owner now */
    pl_kv_commit(kv);
    ck_assert_int_eq(pl_kv_blocks_used(kv), 1);
    ck_ok(pl_kv_try_close(kv, 1, &err), err);
    pl_kv_commit(kv);
    ck_assert_int_eq(pl_kv_blocks_used(kv), 0);
    pl_kv_free(kv);
}
END_TEST

START_TEST(a_sequence_may_be_closed_and_opened_in_one_batch)
{
    pl_kv *kv = new_kv(2, 4, 64);
    pl_error err = {0};
    const int32_t blocks[] = {1, 3};
    int32_t slot, n;
    fill(kv, 0, blocks, 2, 64);
    ck_status(pl_kv_try_row(kv, 0, 64, &slot, &err), PL_ERR_INVALID, err); /* the context is full */
    pl_kv_drop(kv);
    ck_ok(pl_kv_try_close(kv, 0, &err), err);
    ck_ok(pl_kv_try_open(kv, 0, &err), err);
    ck_ok(pl_kv_try_extend(kv, 0, blocks + 1, 1, &err), err);
    ck_ok(pl_kv_try_row(kv, 0, 0, &slot, &err), err);
    ck_assert_int_eq(slot, 3 * PL_KV_PAGE);
    pl_kv_commit(kv);
    const int32_t *pages = pl_kv_pages(kv, 0, &n);
    ck_assert(n == 1 && pages[0] == 3 && pl_kv_length(kv, 0) == 1 && pl_kv_blocks_used(kv) == 1);
    pl_kv_free(kv);
}
END_TEST

static Suite *model_suite(void)
{
    Suite *s = suite_create("model");
    TCase *t = tcase_create("profile");
    tcase_add_loop_test(t, a_wrong_file_is_refused_with_all_that_is_wrong, 0,
                        sizeof wrong_files / sizeof wrong_files[0]);
    tcase_add_test(t, what_a_file_may_leave_out_or_have_more_is_accepted);
    tcase_add_test(t, the_tensors_of_all_splits_are_those_of_the_model);
    tcase_add_test(t, units_add_up_to_a_bound_of_the_weights);
    suite_add_tcase(s, t);
    t = tcase_create("rope");
    tcase_add_test(t, angles_follow_the_definition);
    tcase_add_test(t, yarn_keeps_fast_couples_and_stretches_slow_ones);
    tcase_add_test(t, factors_that_are_no_positive_numbers_are_refused);
    suite_add_tcase(s, t);
    t = tcase_create("kv");
    tcase_add_test(t, bad_operations_are_refused_and_change_nothing);
    tcase_add_test(t, a_shared_block_is_not_written_and_lives_until_its_last_owner_is_gone);
    tcase_add_test(t, a_sequence_may_be_closed_and_opened_in_one_batch);
    suite_add_tcase(s, t);
    return s;
}

int main(void)
{
    return ck_run(model_suite(), NULL);
}
