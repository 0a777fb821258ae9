/* The promise of a stage: the bits of a row depend on its sequence alone. */
#include <stdlib.h>

#include "engine/base/alloc.h"
#include "tests/contract/sets.h"
#include "tests/fixtures/fixtures.h"
#include "tests/fixtures/rig.h"

Suite *stage_suite(void);

enum { N_TOKENS = 75, N_VOCAB = 320 }; /* three pages, the last one partly */

static const pl_type types[] = {PL_TYPE_Q4_1, PL_TYPE_F32,  PL_TYPE_F16,    PL_TYPE_BF16, PL_TYPE_Q8_0,
                                PL_TYPE_Q4_0, PL_TYPE_Q5_0, PL_TYPE_Q5_1,   PL_TYPE_Q4_K, PL_TYPE_Q5_K,
                                PL_TYPE_Q6_K, PL_TYPE_Q2_K, PL_TYPE_IQ4_XS, PL_TYPE_MXFP4};
enum { N_TYPES = sizeof types / sizeof types[0] };

static int32_t tokens[N_TOKENS], others[N_TOKENS];
static float wanted[N_TOKENS * N_VOCAB], got[N_TOKENS * N_VOCAB];

static void model_of(rig_model *m, pl_type type)
{
    rig_model_from_bytes(m, tiny_gguf(.n_layer = 4, .n_embd = 256, .n_head = 4, .n_head_kv = 2, .n_ff = 256,
                                      .n_vocab = N_VOCAB, .type = type, .biases = true, .rope_freqs = true, .seed = 7));
    for (int32_t i = 0; i < N_TOKENS; i++) {
        tokens[i] = (i * 131 + 7) % N_VOCAB;
        others[i] = (i * 57 + 11) % N_VOCAB;
    }
}

/* The reference: one stage, plain weights, one thread, one token at a time. */
static void reference_with(const rig_model *m, rig_options o)
{
    rig r;
    rig_open_with(&r, m, o);
    rig_seq_open(&r, 0, 0);
    rig_logits(&r, 0, 0, tokens, N_TOKENS, 1, wanted);
    rig_close(&r);
}

static void reference(const rig_model *m, bool kv_f32)
{
    reference_with(m, (rig_options){.kv_f32 = kv_f32});
}

#define ck_same_bits(what, ...)                                                                                        \
    do {                                                                                                               \
        int64_t at_ = first_difference(wanted, got, N_TOKENS * N_VOCAB);                                               \
        ck_assert_msg(at_ < 0, "%s differs at token %d, logit %d" what, "logits", (int)(at_ / N_VOCAB),                \
                      (int)(at_ % N_VOCAB), __VA_ARGS__);                                                              \
    } while (0)

/* Through the rig, with everything else as it comes. */
static void compute(const rig_model *m, rig_options o, int32_t chunk, uint32_t shuffle)
{
    rig r;
    rig_open_with(&r, m, o);
    rig_seq_open(&r, 2, shuffle);
    memset(got, 0, sizeof got);
    rig_logits(&r, 2, 0, tokens, N_TOKENS, chunk, got);
    rig_close(&r);
}

START_TEST(any_chunk_layout_and_number_of_threads_gives_the_same_bits_for_every_type)
{
    rig_model m;
    model_of(&m, types[_i]);
    reference(&m, false);
    static const int chunks[] = {1, 7, 512};
    for (int c = 0; c < 3; c++)
        for (int packed = 0; packed < 2; packed++)
            for (int n_threads = 1; n_threads <= 3; n_threads += c == 1 ? 1 : 2) {
                compute(&m, (rig_options){.packed = packed, .n_threads = n_threads}, chunks[c], 0);
                ck_same_bits(": %s, chunks of %d, %s, %d threads", pl_type_name(types[_i]), chunks[c],
                             packed ? "packed" : "plain", n_threads);
            }
    rig_model_close(&m);
}
END_TEST

START_TEST(any_split_into_stages_gives_the_same_bits)
{
    rig_model m;
    model_of(&m, types[_i]);
    reference(&m, false);
    /* Bit l of the mask: a stage begins at layer l + 1. */
    for (int mask = 1; mask < 8; mask++) {
        rig_options o = {.packed = true, .n_stages = 1, .n_threads = 2};
        for (int l = 1; l < 4; l++)
            if (mask >> (l - 1) & 1) o.cuts[o.n_stages++] = l;
        compute(&m, o, 7, 3);
        ck_same_bits(": %s, split %d", pl_type_name(types[_i]), mask);
    }
    rig_model_close(&m);
}
END_TEST

START_TEST(the_rest_of_the_batch_does_not_matter)
{
    rig_model m;
    pl_error err = {0};
    model_of(&m, types[_i]);
    static const char *const caches[] = {"f16", "f32", "q8_0 and f16"};
    for (int kv = 0; kv < 3; kv++) {
        reference_with(&m, (rig_options){.kv_f32 = kv == 1, .kv_mixed = kv == 2});
        rig r;
        rig_open(&r, &m, .packed = true, .n_stages = 2, .n_threads = 2, .kv_f32 = kv == 1, .kv_mixed = kv == 2);
        /* Old contents of the cache: another sequence was here, and left NaN nowhere but numbers everywhere. */
        for (int32_t s = 0; s < 4; s++) {
            rig_seq_open(&r, s, 5);
            rig_logits(&r, s, 0, others, N_TOKENS, 512, got);
            rig_seq_close(&r, s);
        }
        for (int32_t s = 0; s < 4; s++) rig_seq_open(&r, s, (uint32_t)s);
        memset(got, 0, sizeof got);
        /* Sequence 1 is watched. It advances by 1 to 4 rows, among others that advance at their own pace and want
         * logits or not. */
        int32_t length[4] = {0};
        pl_row rows[64];
        static float logits[64 * N_VOCAB];
        for (uint32_t step = 0; length[1] < N_TOKENS; step++) {
            int32_t n = 0, n_out = 0, at[64], n_at = 0;
            for (int32_t k = 0; k < 24; k++) {
                uint32_t draw = (step * 24 + (uint32_t)k) * 2654435761u >> 16;
                int32_t s = (int32_t)(draw % 4);
                if (length[s] >= N_TOKENS || (s == 1 && n_at == 4)) continue;
                bool wants = s == 1 || (draw >> 4) % 3 == 0;
                rows[n++] = (pl_row){
                    .seq = s, .pos = length[s], .token = (s == 1 ? tokens : others)[length[s]], .logits = wants};
                if (s == 1) at[n_at++] = n_out;
                n_out += wants;
                length[s]++;
            }
            pl_micro_batch mb = {.rows = rows, .n_rows = n, .logits_out = logits};
            ck_ok(rig_run(&r, &mb, &err), err);
            for (int32_t k = 0; k < n_at; k++)
                memcpy(got + (size_t)(length[1] - n_at + k) * N_VOCAB, logits + (size_t)at[k] * N_VOCAB,
                       N_VOCAB * sizeof(float));
        }
        ck_same_bits(": %s, cache %s", pl_type_name(types[_i]), caches[kv]);
        rig_close(&r);
    }
    rig_model_close(&m);
}
END_TEST

START_TEST(a_fork_and_a_truncation_leave_no_trace)
{
    rig_model m;
    pl_error err = {0};
    model_of(&m, types[_i]);
    reference(&m, false);
    rig r;
    rig_open(&r, &m, .packed = true, .n_stages = 2, .n_seqs = 3, .n_ctx = 96);
    memset(got, 0, sizeof got);
    /* Sequence 0 computes the first 50 positions, goes on into the wild, and comes back. */
    rig_seq_open(&r, 0, 0);
    rig_logits(&r, 0, 0, tokens, 50, 512, got);
    static float dump[N_TOKENS * N_VOCAB];
    rig_logits(&r, 0, 50, others, 20, 512, dump);
    const int32_t tail[] = {6, 7}; /* a page's copy, and a third page; 3, 4, 5 are nobody's */
    pl_sample_params params = pl_sample_defaults();
    const pl_kv_op ops[] = {{.kind = PL_KV_TRUNCATE, .seq = 0, .n_pos = 50},
                            {.kind = PL_KV_OPEN, .seq = 1, .params = &params},
                            {.kind = PL_KV_FORK, .seq = 1, .src = 0, .n_pos = 50, .blocks = tail, .n_blocks = 1},
                            {.kind = PL_KV_EXTEND, .seq = 1, .blocks = tail + 1, .n_blocks = 1}};
    pl_micro_batch mb = {.ops = ops, .n_ops = 4};
    ck_ok(rig_run(&r, &mb, &err), err);
    /* Both go on from 50, in different directions; the first is then closed. */
    rig_logits(&r, 0, 50, others, 10, 3, dump);
    rig_logits(&r, 1, 50, tokens + 50, 5, 2, got + (size_t)50 * N_VOCAB);
    rig_seq_close(&r, 0);
    rig_logits(&r, 1, 55, tokens + 55, N_TOKENS - 55, 512, got + (size_t)55 * N_VOCAB);
    ck_same_bits(": %s", pl_type_name(types[_i]));
    rig_close(&r);
    rig_model_close(&m);
}
END_TEST

START_TEST(every_instruction_set_gives_the_same_bits)
{
    rig_model m;
    model_of(&m, types[_i]);
    reference(&m, false);
    pl_isa isa;
    const char *word;
    for (int i = 0; set_at(i, &isa, &word); i++) {
        setenv("PACELINE_ISA", word, 1);
        compute(&m, (rig_options){.packed = true, .n_threads = 2}, 33, 0);
        unsetenv("PACELINE_ISA");
        ck_same_bits(": %s, %s", pl_type_name(types[_i]), word);
    }
    rig_model_close(&m);
}
END_TEST

START_TEST(the_known_checksum_is_the_same_for_every_instruction_set)
{
    pl_error err = {0};
    uint64_t first = 0, sum = 0;
    pl_isa isa;
    const char *word;
    for (int i = 0; set_at(i, &isa, &word); i++) {
        setenv("PACELINE_ISA", word, 1);
        ck_ok(pl_stage_known_checksum(&sum, &err), err);
        unsetenv("PACELINE_ISA");
        if (i == 0) first = sum;
        ck_assert_msg(sum == first && sum != 0, "%s: %016llx, not %016llx", word, (unsigned long long)sum,
                      (unsigned long long)first);
    }
}
END_TEST

Suite *stage_suite(void)
{
    Suite *s = suite_create("stage: same bits");
    TCase *t = tcase_create("bits");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, any_chunk_layout_and_number_of_threads_gives_the_same_bits_for_every_type, 0, N_TYPES);
    tcase_add_loop_test(t, any_split_into_stages_gives_the_same_bits, 0, N_TYPES);
    tcase_add_loop_test(t, the_rest_of_the_batch_does_not_matter, 0, 2);
    tcase_add_loop_test(t, a_fork_and_a_truncation_leave_no_trace, 0, 2);
    tcase_add_loop_test(t, every_instruction_set_gives_the_same_bits, 0, N_TYPES);
    tcase_add_test(t, the_known_checksum_is_the_same_for_every_instruction_set);
    suite_add_tcase(s, t);
    return s;
}
