/* What a stage refuses, what it takes, and that it takes nothing once it is warm. */
#include <malloc.h>
#include <stdlib.h>

#include "engine/base/alloc.h"
#include "tests/fixtures/fixtures.h"
#include "tests/fixtures/rig.h"
#include "tests/unit/stage/suites.h"

enum { N_VOCAB = 320 };

static pl_status run_rows(rig *r, const pl_row *rows, int32_t n, pl_error *err)
{
    static pl_sampled sampled[64];
    pl_micro_batch mb = {.rows = rows, .n_rows = n, .sampled = sampled};
    return rig_run(r, &mb, err);
}

START_TEST(a_bad_batch_is_refused_and_changes_nothing)
{
    rig_model m;
    rig r;
    rig_model_from_bytes(&m, tiny_gguf());
    rig_open(&r, &m, .n_rows = 8, .n_ctx = 64);
    rig_seq_open(&r, 0, 0);
    const int32_t tokens[] = {5, 6, 7, 8, 9};
    static float before[5 * N_VOCAB], after[N_VOCAB];
    rig_logits(&r, 0, 0, tokens, 5, 5, before);
    rig_seq_close(&r, 0);
    rig_seq_open(&r, 0, 0);
    rig_logits(&r, 0, 0, tokens, 4, 4, before);
    pl_sample_params good = pl_sample_defaults(), bad = good;
    bad.top_p = 3;
    const int32_t block = 2, too_large = N_VOCAB, minus = -2, many[65] = {0};
    const pl_row next = {.seq = 0, .pos = 4, .token = 9, .logits = true};
    const struct {
        const char *what;
        pl_kv_op op;
        pl_row row;
        int32_t n_rows;
    } cases[] = {
        {"no parameters", {.kind = PL_KV_OPEN, .seq = 1}, next, 1},
        {"bad parameters", {.kind = PL_KV_OPEN, .seq = 1, .params = &bad}, next, 1},
        {"a known token too large",
         {.kind = PL_KV_OPEN, .seq = 1, .params = &good, .tokens = &too_large, .n_tokens = 1},
         next,
         1},
        {"a known token below zero",
         {.kind = PL_KV_OPEN, .seq = 1, .params = &good, .tokens = &minus, .n_tokens = 1},
         next,
         1},
        {"too many known tokens",
         {.kind = PL_KV_OPEN, .seq = 1, .params = &good, .tokens = many, .n_tokens = 65},
         next,
         1},
        {"no such sequence", {.kind = PL_KV_OPEN, .seq = 4, .params = &good}, next, 1},
        {"an open sequence", {.kind = PL_KV_OPEN, .seq = 0, .params = &good}, next, 1},
        {"an operation that is none", {.kind = (pl_kv_kind)9, .seq = 0}, next, 1},
        {"too many pages", {.kind = PL_KV_EXTEND, .seq = 0, .blocks = &block, .n_blocks = 1}, next, 1},
        {"a position that does not follow", {0}, {.seq = 0, .pos = 5, .token = 9}, 1},
        {"a position that was there", {0}, {.seq = 0, .pos = 3, .token = 9}, 1},
        {"a token too large", {0}, {.seq = 0, .pos = 4, .token = N_VOCAB}, 1},
        {"a token below zero", {0}, {.seq = 0, .pos = 4, .token = -2}, 1},
        {"a token that was not sampled", {0}, {.seq = 0, .pos = 4, .token = -1}, 1},
        {"a sequence that is not open", {0}, {.seq = 1, .pos = 0, .token = 9}, 1},
        {"a sequence number below zero", {0}, {.seq = -1, .pos = 0, .token = 9}, 1},
        {"too many rows", {0}, next, 9},
        {"fewer than no rows", {0}, next, -1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pl_error err = {0};
        pl_row rows[9] = {cases[i].row};
        pl_micro_batch mb = {.ops = &cases[i].op,
                             .n_ops = cases[i].op.kind != 0,
                             .rows = rows,
                             .n_rows = cases[i].n_rows,
                             .logits_out = after};
        pl_status s = pl_stage_run(r.stages[0], &mb, &err);
        ck_assert_msg(s == PL_ERR_INVALID, "%s gave %s", cases[i].what, pl_status_name(s));
        ck_assert(err.text[0] != 0);
    }
    rig_logits(&r, 0, 4, tokens + 4, 1, 1, after);
    ck_assert_mem_eq(before + 4 * N_VOCAB, after, sizeof after);
    rig_close(&r);
    rig_model_close(&m);
}
END_TEST

START_TEST(a_part_of_a_model_needs_its_hidden_states)
{
    rig_model m;
    rig r;
    pl_error err = {0};
    rig_model_from_bytes(&m, tiny_gguf());
    rig_open(&r, &m, .n_stages = 2);
    rig_seq_open(&r, 0, 0);
    const pl_row row = {.seq = 0, .pos = 0, .token = 3};
    pl_micro_batch mb = {.rows = &row, .n_rows = 1};
    ck_status(pl_stage_run(r.stages[0], &mb, &err), PL_ERR_INVALID, err);
    ck_status(pl_stage_run(r.stages[1], &mb, &err), PL_ERR_INVALID, err);
    rig_close(&r);
    rig_model_close(&m);
}
END_TEST

START_TEST(a_stage_in_the_middle_does_not_look_at_tokens)
{
    rig_model m;
    rig r;
    pl_error err = {0};
    rig_model_from_bytes(&m, tiny_gguf(.n_layer = 3));
    rig_open(&r, &m, .n_stages = 3);
    rig_seq_open(&r, 0, 0);
    const pl_row row = {.seq = 0, .pos = 0, .token = -1};
    pl_micro_batch mb = {.rows = &row, .n_rows = 1, .hidden_in = r.hidden[0], .hidden_out = r.hidden[1]};
    ck_ok(pl_stage_run(r.stages[1], &mb, &err), err);
    ck_status(pl_stage_run(r.stages[0], &mb, &err), PL_ERR_INVALID, err);
    rig_close(&r);
    rig_model_close(&m);
}
END_TEST

/* Greedy generation of n tokens after a prompt, told each token or leaving it to the stage. */
static void generate(rig *r, int32_t seq, bool told, int32_t n, int32_t *out)
{
    pl_error err = {0};
    pl_sampled sampled;
    pl_row row = {.seq = seq, .pos = 0, .token = 17, .logits = true};
    for (int32_t i = 0; i < n; i++) {
        pl_micro_batch mb = {.rows = &row, .n_rows = 1, .sampled = &sampled};
        ck_ok(rig_run(r, &mb, &err), err);
        out[i] = sampled.token;
        row.pos++;
        row.token = told ? sampled.token : -1;
    }
}

START_TEST(the_last_stage_knows_the_tokens_that_it_sampled)
{
    rig_model m;
    rig r;
    rig_model_from_bytes(&m, tiny_gguf());
    rig_open(&r, &m, .packed = true);
    int32_t told[40], own[40];
    rig_seq_open(&r, 0, 0);
    rig_seq_open(&r, 1, 0);
    generate(&r, 0, true, 40, told);
    generate(&r, 1, false, 40, own);
    ck_assert_mem_eq(told, own, sizeof told);
    rig_close(&r);
    rig_model_close(&m);
}
END_TEST

START_TEST(a_penalty_sees_the_prompt_and_what_was_sampled)
{
    rig_model m;
    rig r;
    pl_error err = {0};
    rig_model_from_bytes(&m, tiny_gguf());
    rig_open(&r, &m, .packed = true);
    pl_sample_params params = pl_sample_defaults();
    params.temperature = 0;
    params.repeat_penalty = 1000; /* no token comes twice while others have positive logits */
    params.repeat_last_n = -1;
    int32_t blocks[8], seen[N_VOCAB] = {0};
    for (int32_t i = 0; i < 8; i++) blocks[i] = i;
    const pl_kv_op ops[] = {{.kind = PL_KV_OPEN, .params = &params},
                            {.kind = PL_KV_EXTEND, .blocks = blocks, .n_blocks = 8}};
    pl_micro_batch open = {.ops = ops, .n_ops = 2};
    ck_ok(rig_run(&r, &open, &err), err);
    int32_t out[40];
    generate(&r, 0, false, 40, out);
    seen[17] = 1;
    for (int i = 0; i < 40; i++) ck_assert_msg(seen[out[i]]++ == 0, "token %d came twice", (int)out[i]);
    rig_close(&r);
    rig_model_close(&m);
}
END_TEST

START_TEST(a_warm_step_takes_nothing_from_the_heap)
{
    rig_model m;
    rig r;
    pl_error err = {0};
    rig_model_from_bytes(&m, tiny_gguf(.n_layer = 4, .type = PL_TYPE_Q8_0));
    rig_open(&r, &m, .packed = true, .n_stages = 2, .n_threads = 2, .n_ctx = 128);
    for (int32_t s = 0; s < 3; s++) rig_seq_open(&r, s, 0);
    uint64_t before = 0;
    for (int32_t pos = 0; pos < 100; pos++) { /* across three page boundaries */
        pl_row rows[3];
        for (int32_t s = 0; s < 3; s++)
            rows[s] = (pl_row){.seq = s, .pos = pos, .token = (pos * 7 + s) % N_VOCAB, .logits = true};
        if (pos == 3) before = pl_alloc_count();
        ck_ok(run_rows(&r, rows, 3, &err), err);
    }
    ck_assert_uint_eq(pl_alloc_count() - before, 0);
    rig_close(&r);
    rig_model_close(&m);
}
END_TEST

/* As when serving: chunks of prompts beside the tokens of others. A graph that is built takes memory, so no memory is no graph. */
START_TEST(a_mixture_that_comes_again_builds_no_graph_and_takes_nothing_from_the_heap)
{
    rig_model m;
    rig r;
    pl_error err = {0};
    rig_model_from_bytes(&m, tiny_gguf(.n_layer = 4, .type = PL_TYPE_Q8_0));
    rig_open(&r, &m, .packed = true, .n_stages = 2, .n_threads = 2, .n_ctx = 128);
    for (int32_t s = 0; s < 3; s++) rig_seq_open(&r, s, 0);
    static const struct {
        int32_t n[3]; /* rows of each sequence, the last of which wants logits */
    } steps[] = {{{5, 1, 0}}, {{1, 1, 4}}, {{1, 1, 1}}, {{0, 1, 1}}};
    int32_t pos[3] = {0};
    uint64_t before = 0;
    for (int round = 0; round < 10; round++) {
        if (round == 1) before = pl_alloc_count();
        for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
            pl_row rows[16];
            int32_t n = 0;
            for (int32_t s = 0; s < 3; s++)
                for (int32_t j = 0; j < steps[i].n[s]; j++, n++, pos[s]++)
                    rows[n] = (pl_row){.seq = s, .pos = pos[s], .token = (pos[s] * 7 + s) % N_VOCAB, .logits = j + 1 == steps[i].n[s]};
            ck_ok(run_rows(&r, rows, n, &err), err);
        }
    }
    ck_assert_uint_eq(pl_alloc_count() - before, 0);
    rig_close(&r);
    rig_model_close(&m);
}
END_TEST

START_TEST(many_rows_with_logits_are_as_good_as_few)
{
    rig_model m;
    rig r;
    rig_model_from_bytes(&m, tiny_gguf());
    rig_open(&r, &m, .packed = true); /* 32 rows with logits at once */
    static float one[100 * N_VOCAB], all[100 * N_VOCAB];
    int32_t tokens[100];
    for (int32_t i = 0; i < 100; i++) tokens[i] = i * 3;
    rig_seq_open(&r, 0, 0);
    rig_seq_open(&r, 1, 0);
    rig_logits(&r, 0, 0, tokens, 100, 1, one);
    rig_logits(&r, 1, 0, tokens, 100, 100, all);
    ck_assert_mem_eq(one, all, sizeof one);
    rig_close(&r);
    rig_model_close(&m);
}
END_TEST

/* --- Memory --- */

START_TEST(the_planned_memory_is_a_tight_bound_for_any_shape_and_batch)
{
    static const pl_type types[] = {PL_TYPE_F32, PL_TYPE_Q4_1, PL_TYPE_Q6_K};
    const int32_t rows[] = {1, 3, 32, 200, 512}, ctxs[] = {32, 500, 4096};
    rig_model m;
    rig_model_from_bytes(
        &m, tiny_gguf(.n_layer = 6, .n_embd = 256, .n_ff = 512, .n_ctx = 4096, .type = types[_i], .tied = true));
    for (int n_stages = 1; n_stages <= 3; n_stages++)
        for (int i = 0; i < 5; i++)
            for (int k = 0; k < 3; k++) {
                rig r;
                pl_error err = {0};
                rig_open(&r, &m, .packed = true, .n_stages = n_stages, .n_rows = rows[i], .n_ctx = ctxs[k], .n_seqs = 2,
                         .n_threads = 2);
                for (int s = 0; s < n_stages; s++) {
                    pl_stage_shape shape = {.layer_first = 6 * s / n_stages,
                                            .layer_end = 6 * (s + 1) / n_stages,
                                            .n_blocks = 2 * r.n_pages,
                                            .n_ctx = ctxs[k],
                                            .n_seqs = 2,
                                            .n_rows = rows[i],
                                            .n_threads = 2,
                                            .cache = PL_CACHE_BOTH(PL_TYPE_F16)};
                    pl_stage_memory plan = pl_model_stage_memory(m.p, &shape), used = pl_stage_memory_used(r.stages[s]);
                    ck_assert_uint_eq(used.weights, plan.weights);
                    ck_assert_uint_eq(used.kv, plan.kv);
                    ck_assert_msg(used.compute <= plan.compute && used.compute * 10 >= plan.compute * 9,
                                  "compute: %llu of %llu planned", (unsigned long long)used.compute,
                                  (unsigned long long)plan.compute);
                }
                /* Graphs that need more than was planned fail with PL_ERR_INTERNAL: batches of all sizes, with few and
                 * many logits. */
                rig_seq_open(&r, 0, 0);
                int32_t pos = 0;
                for (int32_t n = 1; n <= rows[i] && pos + n <= ctxs[k]; n = n * 2 + 1) {
                    for (int32_t wanted = 0; wanted <= n; wanted = wanted * 5 + 1) {
                        if (pos + n > ctxs[k]) break;
                        static pl_row batch[512];
                        static pl_sampled sampled[512];
                        for (int32_t b = 0; b < n; b++)
                            batch[b] = (pl_row){.seq = 0, .pos = pos + b, .token = b % N_VOCAB, .logits = b < wanted};
                        pos += n;
                        pl_micro_batch mb = {.rows = batch, .n_rows = n, .sampled = sampled};
                        ck_ok(rig_run(&r, &mb, &err), err);
                    }
                }
                rig_close(&r);
            }
    rig_model_close(&m);
}
END_TEST

START_TEST(what_a_stage_really_takes_is_what_it_says)
{
    rig_model m;
    rig_model_from_bytes(&m, tiny_gguf(.n_layer = 6, .n_embd = 256, .n_ff = 512, .n_ctx = 4096));
    rig r;
    struct mallinfo2 before = mallinfo2();
    if (before.uordblks == 0) { /* a sanitizer's heap does not count */
        rig_model_close(&m);
        return;
    }
    rig_open(&r, &m, .packed = true, .n_rows = 512, .n_ctx = 4096, .n_seqs = 2);
    struct mallinfo2 after = mallinfo2();
    pl_stage_memory used = pl_stage_memory_used(r.stages[0]);
    uint64_t taken = (after.uordblks + after.hblkhd) - (before.uordblks + before.hblkhd);
    taken -= 2 * 512 * 256 * sizeof(float); /* the rig's own buffers */
    uint64_t said = used.kv + used.compute; /* all but the weights, which are the rig's */
    /* Seven of the eight graphs are still to come; two buffers begin on huge pages, and what is skipped before them is
     * never touched. */
    ck_assert_msg(taken <= said + 2 * (2 << 20) && taken * 10 >= said * 8, "took %llu, said %llu",
                  (unsigned long long)taken, (unsigned long long)said);
    rig_close(&r);
    rig_model_close(&m);
}
END_TEST

START_TEST(shapes_out_of_range_are_refused)
{
    rig_model m;
    rig_model_from_bytes(&m, tiny_gguf());
    const pl_stage_shape good = {
        .layer_end = 2, .n_blocks = 8, .n_ctx = 256, .n_seqs = 1, .n_rows = 32, .n_threads = 1, .cache = PL_CACHE_BOTH(PL_TYPE_F16)};
    for (int i = 0; i < 12; i++) {
        pl_stage_options o = {.shape = good, .poll = -1};
        pl_stage *s;
        pl_error err = {0};
        switch (i) {
        case 0: o.shape.layer_first = -1; break;
        case 1: o.shape.layer_first = 2; break;
        case 2: o.shape.layer_end = 3; break;
        case 3: o.shape.n_blocks = 0; break;
        case 4: o.shape.n_blocks = INT32_MAX; break;
        case 5: o.shape.n_ctx = 0; break;
        case 6: o.shape.n_ctx = INT32_MAX; break;
        case 7: o.shape.n_seqs = -5; break;
        case 8: o.shape.n_rows = INT32_MAX; break;
        case 9: o.shape.n_threads = 0; break;
        case 10: o.shape.cache = PL_CACHE_BOTH(PL_TYPE_Q8_0); break;
        case 11: o.shape.cache.v = (pl_type)63; break;
        }
        pl_status got = pl_stage_open(&s, m.g, m.p, m.weights[0], &o, &err);
        ck_assert_msg(got == (i >= 10 ? PL_ERR_UNSUPPORTED : PL_ERR_INVALID) && s == NULL, "case %d gave %s", i,
                      pl_status_name(got));
        ck_assert(pl_model_stage_memory(m.p, &o.shape).compute == UINT64_MAX);
    }
    rig_model_close(&m);
}
END_TEST

START_TEST(a_failing_heap_is_an_error_and_no_leak)
{
    rig_model m;
    rig_model_from_bytes(&m, tiny_gguf(.rope_freqs = true));
    pl_stage_options o = {.shape = {.layer_end = 2,
                                    .n_blocks = 8,
                                    .n_ctx = 256,
                                    .n_seqs = 1,
                                    .n_rows = 32,
                                    .n_threads = 1,
                                    .cache = PL_CACHE_BOTH(PL_TYPE_F16)},
                          .poll = -1};
    size_t n = pl_gguf_n_tensors(m.g), list[64];
    pl_weight weights[64];
    pl_model_stage_tensors(m.p, 0, 2, list);
    for (size_t i = 0; i < n; i++) weights[i] = m.weights[0][list[i]];
    bool done = false;
    for (uint64_t k = 1; !done; k++) {
        pl_error err = {0};
        pl_stage *s = NULL;
        pl_model_profile *p = NULL;
        pl_alloc_fail_at(k);
        pl_status got = pl_model_profile_open(&p, m.g, &err);
        if (got == PL_OK) got = pl_stage_open(&s, m.g, p, weights, &o, &err);
        pl_alloc_fail_at(0);
        done = got == PL_OK;
        ck_assert_msg(done || got == PL_ERR_NO_MEMORY, "allocation %d: %s: %s", (int)k, pl_status_name(got), err.text);
        pl_stage_close(s);
        pl_model_profile_close(p);
        ck_assert(k < 10000);
    }
    rig_model_close(&m);
}
END_TEST

START_TEST(the_benchmark_is_short_and_gives_numbers)
{
    pl_bench b;
    pl_error err = {0};
    ck_ok(pl_stage_bench(&b, 1, 0, &err), err);
    ck_assert(b.read_bytes_s > 1e7 && b.prefill_macs_s > 1e7);
}
END_TEST

Suite *stage_suite(void)
{
    Suite *s = suite_create("stage");
    TCase *t = tcase_create("batches");
    tcase_add_test(t, a_bad_batch_is_refused_and_changes_nothing);
    tcase_add_test(t, a_part_of_a_model_needs_its_hidden_states);
    tcase_add_test(t, a_stage_in_the_middle_does_not_look_at_tokens);
    tcase_add_test(t, the_last_stage_knows_the_tokens_that_it_sampled);
    tcase_add_test(t, a_penalty_sees_the_prompt_and_what_was_sampled);
    tcase_add_test(t, a_warm_step_takes_nothing_from_the_heap);
    tcase_add_test(t, a_mixture_that_comes_again_builds_no_graph_and_takes_nothing_from_the_heap);
    tcase_add_test(t, many_rows_with_logits_are_as_good_as_few);
    suite_add_tcase(s, t);
    t = tcase_create("memory");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, the_planned_memory_is_a_tight_bound_for_any_shape_and_batch, 0, 3);
    tcase_add_test(t, what_a_stage_really_takes_is_what_it_says);
    tcase_add_test(t, shapes_out_of_range_are_refused);
    tcase_add_test(t, a_failing_heap_is_an_error_and_no_leak);
    tcase_add_test(t, the_benchmark_is_short_and_gives_numbers);
    suite_add_tcase(s, t);
    return s;
}
