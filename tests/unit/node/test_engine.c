/* The real compute over a real loop, a cache in a temporary folder, and tiny models. */
#include "engine/base/alloc.h"
#include "engine/base/sys.h"
#include "engine/gguf/write.h"
#include "node/engine.h"
#include "tests/fixtures/fixtures.h"
#include "tests/sim/fixture.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum { N_LAYER = 4, N_TOKENS = 5 };

static char dir[64], path[160];
static sim_model model;
static pl_loop *loop;
static pl_compute *compute;

/* The answer that the loop waits for. */
static struct {
    int n;
    bool failed;
    pl_error err;
    uint64_t start_ns, end_ns;
} answer;

static void on_done(void *user, const pl_error *err)
{
    (void)user;
    answer.n++;
    answer.failed = err != NULL;
    if (err) answer.err = *err;
    pl_loop_uv_stop(loop);
}

static void on_ran(void *user, const pl_error *err, uint64_t start_ns, uint64_t end_ns)
{
    answer.start_ns = start_ns;
    answer.end_ns = end_ns;
    on_done(user, err);
}

static pl_status wait_for_answer(void)
{
    answer.n = 0;
    answer.failed = false;
    pl_loop_uv_run(loop);
    ck_assert_int_eq(answer.n, 1);
    return answer.failed ? answer.err.status : PL_OK;
}

static void open_engine(const char *local, bool no_pack, int n_threads)
{
    pl_error err = {0};
    pl_compute_engine_options o = {
        .store_dir = dir, .n_threads = n_threads, .no_pack = no_pack, .local_gguf = local, .poll = -1};
    ck_ok(pl_compute_engine_new(&compute, loop, &o, &err), err);
}

static void close_engine(void)
{
    compute->vt->free(compute);
    compute = NULL;
}

static void start(void)
{
    pl_error err = {0};
    temp_dir(dir);
    sim_model_init(&model, N_LAYER, 3);
    ck_ok(pl_loop_uv_new(&loop, &err), err);
    snprintf(path, sizeof path, "%s/model.gguf", dir);
    FILE *f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(model.file.data, 1, model.file.size, f), model.file.size);
    fclose(f);
}

static void stop(void)
{
    if (compute) close_engine();
    pl_loop_uv_free(loop);
    sim_model_fini(&model);
    temp_dir_remove(dir);
}

static size_t stage_hashes(int32_t first, int32_t end, pl_hash *hashes, size_t *index)
{
    size_t n = pl_model_stage_tensors(model.profile, first, end, index);
    for (size_t i = 0; i < n; i++) hashes[i] = model.hashes[index[i]];
    return n;
}

static pl_status put(const pl_hash *hash, pl_type type, const int64_t *ne, uint64_t total, uint64_t offset,
                     pl_bytes bytes)
{
    pl_part *part = pl_part_copy(bytes);
    ck_assert_ptr_nonnull(part);
    compute->vt->put(compute, hash, type, ne, total, offset, part, on_done, NULL);
    return wait_for_answer();
}

static void put_stage(int32_t first, int32_t end)
{
    pl_hash hashes[64];
    size_t index[64], n = stage_hashes(first, end, hashes, index);
    for (size_t i = 0; i < n; i++) {
        const pl_gguf_tensor *t = pl_gguf_tensor_at(model.gguf, index[i]);
        uint64_t half = t->size / 2;
        ck_ok(put(&hashes[i], t->type, t->ne, t->size, 0, (pl_bytes){t->data, half}), answer.err);
        ck_ok(
            put(&hashes[i], t->type, t->ne, t->size, half, (pl_bytes){(const uint8_t *)t->data + half, t->size - half}),
            answer.err);
    }
    ck_ok(put(&model.header_hash, PL_TYPE_COUNT, NULL, model.header.size, 0, model.header), answer.err);
}

static pl_hash local_header_hash(void)
{
    pl_buf header = {0};
    pl_error err = {0};
    ck_ok(pl_gguf_header_write(model.gguf, &header, &err), err);
    pl_hash h = pl_hash_of(pl_buf_bytes(&header));
    pl_buf_fini(&header);
    return h;
}

static pl_stage_shape shape_of(int32_t first, int32_t end, int n_threads)
{
    return (pl_stage_shape){.layer_first = first,
                            .layer_end = end,
                            .n_blocks = 4,
                            .n_ctx = 64,
                            .n_seqs = 2,
                            .n_rows = 8,
                            .n_threads = n_threads,
                            .cache = PL_CACHE_BOTH(PL_TYPE_F32)};
}

static pl_status load_stage(const pl_hash *header_hash, int32_t first, int32_t end, pl_stage_memory *memory)
{
    const pl_gguf *header;
    const pl_model_profile *profile;
    pl_hash hashes[64];
    size_t index[64], n = stage_hashes(first, end, hashes, index);
    compute->vt->open_header(compute, header_hash, &header, &profile, on_done, NULL);
    pl_status s = wait_for_answer();
    if (s != PL_OK) return s;
    ck_assert_int_eq(pl_model_n_layer(profile), N_LAYER);
    ck_assert_uint_eq(pl_gguf_n_tensors(header), pl_gguf_n_tensors(model.gguf));
    pl_stage_shape shape = shape_of(first, end, compute->vt->facts(compute)->n_threads);
    compute->vt->load(compute, hashes, n, &shape, memory, on_done, NULL);
    return wait_for_answer();
}

/* A prompt of five tokens through the loaded stage. */
static pl_status run_stage(const float *in, float *out, pl_sampled *sampled)
{
    static const int32_t block = 2;
    static const pl_sample_params greedy = {.top_p = 1, .repeat_penalty = 1, .n_logprobs = 0};
    pl_kv_op ops[] = {{.kind = PL_KV_OPEN, .params = &greedy}, {.kind = PL_KV_EXTEND, .blocks = &block, .n_blocks = 1}};
    pl_row rows[N_TOKENS];
    for (int i = 0; i < N_TOKENS; i++) rows[i] = (pl_row){.pos = i, .token = 10 + i, .logits = i == N_TOKENS - 1};
    pl_micro_batch mb = {.ops = ops,
                         .n_ops = 2,
                         .rows = rows,
                         .n_rows = N_TOKENS,
                         .hidden_in = in,
                         .hidden_out = out,
                         .sampled = sampled};
    compute->vt->run(compute, &mb, on_ran, NULL);
    return wait_for_answer();
}

static pl_sampled whole(void)
{
    pl_stage_memory memory;
    pl_sampled s = {0};
    pl_hash h = local_header_hash();
    ck_ok(load_stage(&h, 0, N_LAYER, &memory), answer.err);
    ck_ok(run_stage(NULL, NULL, &s), answer.err);
    return s;
}

START_TEST(facts_are_those_of_this_machine)
{
    open_engine(NULL, false, 2);
    const pl_compute_facts *f = compute->vt->facts(compute);
    ck_assert_int_eq(f->n_threads, 2);
    ck_assert_uint_gt(f->memory_total, 0);
    ck_assert(f->read_bytes_s > 0 && f->macs_s > 0);
    bool has_llama = false;
    for (size_t i = 0; i < f->n_archs; i++) has_llama = has_llama || strcmp(f->archs[i], "llama") == 0;
    ck_assert(has_llama);
    uint64_t sum;
    pl_error err = {0};
    ck_ok(pl_stage_known_checksum(&sum, &err), err);
    ck_assert_uint_eq(f->known_checksum, sum);
    ck_assert(f->profile[0] && f->isa[0]);
}
END_TEST

START_TEST(tensors_that_were_put_are_there_also_for_the_next_process)
{
    pl_hash hashes[64];
    size_t index[64], n = stage_hashes(0, 2, hashes, index);
    bool have[64];
    uint64_t partial[64];
    open_engine(NULL, false, 1);
    compute->vt->lookup(compute, hashes, n, have, partial, on_done, NULL);
    ck_ok(wait_for_answer(), answer.err);
    for (size_t i = 0; i < n; i++) ck_assert(!have[i] && partial[i] == 0);
    put_stage(0, 2);
    for (int again = 0; again < 2; again++) {
        compute->vt->lookup(compute, hashes, n, have, partial, on_done, NULL);
        ck_ok(wait_for_answer(), answer.err);
        for (size_t i = 0; i < n; i++) ck_assert(have[i]);
        close_engine();
        open_engine(NULL, false, 1);
    }
}
END_TEST

START_TEST(an_interrupted_tensor_goes_on_where_it_was_and_all_bytes_can_be_finished)
{
    const pl_gguf_tensor *t = pl_gguf_tensor_at(model.gguf, 0);
    bool have;
    uint64_t partial;
    open_engine(NULL, false, 1);
    ck_ok(put(&model.hashes[0], t->type, t->ne, t->size, 0, (pl_bytes){t->data, 1000}), answer.err);
    close_engine();
    open_engine(NULL, false, 1);
    compute->vt->lookup(compute, &model.hashes[0], 1, &have, &partial, on_done, NULL);
    ck_ok(wait_for_answer(), answer.err);
    ck_assert(!have);
    ck_assert_uint_eq(partial, 1000);
    ck_ok(put(&model.hashes[0], t->type, t->ne, t->size, 1000,
              (pl_bytes){(const uint8_t *)t->data + 1000, t->size - 1000}),
          answer.err);
    compute->vt->lookup(compute, &model.hashes[0], 1, &have, &partial, on_done, NULL);
    ck_ok(wait_for_answer(), answer.err);
    ck_assert(have);
}
END_TEST

START_TEST(other_bytes_are_thrown_away_and_can_be_sent_again)
{
    const pl_gguf_tensor *t = pl_gguf_tensor_at(model.gguf, 0);
    open_engine(NULL, false, 1);
    uint8_t *wrong = pl_alloc(t->size);
    ck_assert_ptr_nonnull(wrong);
    memcpy(wrong, t->data, t->size);
    wrong[7] ^= 1;
    ck_status(put(&model.hashes[0], t->type, t->ne, t->size, 0, (pl_bytes){wrong, t->size}), PL_ERR_FORMAT, answer.err);
    ck_status(put(&model.hashes[0], t->type, t->ne, t->size, 500, (pl_bytes){t->data, 10}), PL_ERR_FORMAT,
              answer.err); /* nothing is kept, so nothing goes on */
    ck_ok(put(&model.hashes[0], t->type, t->ne, t->size, 0, (pl_bytes){t->data, t->size}), answer.err);
    pl_free(wrong);
}
END_TEST

START_TEST(two_stages_from_the_cache_give_the_token_of_the_whole_file)
{
    open_engine(path, false, 2);
    pl_sampled expected = whole();
    close_engine();
    open_engine(path, true, 1);
    pl_sampled plain = whole();
    close_engine();
    ck_assert_int_eq(plain.token, expected.token);
    ck_assert_mem_eq(&plain.logprob, &expected.logprob, sizeof plain.logprob);

    float *hidden = pl_alloc_aligned(64, N_TOKENS * (size_t)pl_model_n_embd(model.profile) * sizeof *hidden);
    ck_assert_ptr_nonnull(hidden);
    pl_stage_memory memory;
    pl_sampled got = {0};
    open_engine(NULL, false, 2);
    put_stage(0, 2);
    put_stage(2, N_LAYER);
    ck_ok(load_stage(&model.header_hash, 0, 2, &memory), answer.err);
    uint64_t before = pl_now_ns();
    ck_ok(run_stage(NULL, hidden, NULL), answer.err);
    ck_assert_uint_le(before, answer.start_ns);
    ck_assert_uint_lt(answer.start_ns, answer.end_ns);
    ck_assert_uint_le(answer.end_ns, pl_now_ns());
    ck_ok(load_stage(&model.header_hash, 2, N_LAYER, &memory), answer.err);
    ck_ok(run_stage(hidden, NULL, &got), answer.err);
    ck_assert_int_eq(got.token, expected.token);
    ck_assert_mem_eq(&got.logprob, &expected.logprob, sizeof got.logprob);
    pl_free(hidden);
}
END_TEST

START_TEST(what_a_stage_takes_is_what_the_profile_says_at_most)
{
    open_engine(path, false, 2);
    pl_hash h = local_header_hash();
    for (int32_t first = 0; first < N_LAYER; first++) {
        pl_stage_memory took;
        ck_ok(load_stage(&h, first, N_LAYER, &took), answer.err);
        pl_stage_shape shape = shape_of(first, N_LAYER, 2);
        pl_stage_memory said = pl_model_stage_memory(model.profile, &shape);
        ck_assert_uint_le(took.weights, said.weights);
        ck_assert_uint_le(took.kv, said.kv);
        ck_assert_uint_le(took.compute, said.compute);
    }
}
END_TEST

START_TEST(a_local_files_tensors_need_not_be_fetched)
{
    pl_hash hashes[65];
    size_t index[64], n = stage_hashes(0, N_LAYER, hashes, index);
    bool have[65];
    uint64_t partial[65];
    hashes[n] = local_header_hash();
    open_engine(path, false, 1);
    compute->vt->lookup(compute, hashes, n + 1, have, partial, on_done, NULL);
    ck_ok(wait_for_answer(), answer.err);
    for (size_t i = 0; i <= n; i++) ck_assert(have[i]);
}
END_TEST

START_TEST(what_is_not_there_cannot_be_loaded_or_run)
{
    pl_stage_memory memory;
    pl_sampled s;
    open_engine(NULL, false, 1);
    ck_status(load_stage(&model.header_hash, 0, 2, &memory), PL_ERR_NOT_FOUND, answer.err);
    ck_status(run_stage(NULL, NULL, &s), PL_ERR_INVALID, answer.err);
    ck_ok(put(&model.header_hash, PL_TYPE_COUNT, NULL, model.header.size, 0, model.header), answer.err);
    ck_status(load_stage(&model.header_hash, 0, 2, &memory), PL_ERR_NOT_FOUND, answer.err);
    ck_says(answer.err, "tensor");
}
END_TEST

START_TEST(without_a_cache_a_node_needs_the_file)
{
    pl_error err = {0};
    char nowhere[200];
    snprintf(nowhere, sizeof nowhere, "%s/model.gguf/cache", dir); /* below a file */
    pl_compute_engine_options o = {.store_dir = nowhere, .n_threads = 1, .poll = -1};
    ck_assert(pl_compute_engine_new(&compute, loop, &o, &err) != PL_OK);
    ck_assert_ptr_null(compute);
    o.local_gguf = path;
    ck_ok(pl_compute_engine_new(&compute, loop, &o, &err), err);
    whole();
}
END_TEST

START_TEST(freeing_it_with_work_under_way_gives_no_answer)
{
    open_engine(path, false, 1);
    pl_hash hashes[64];
    size_t index[64], n = stage_hashes(0, N_LAYER, hashes, index);
    bool have[64];
    uint64_t partial[64];
    answer.n = 0;
    for (int i = 0; i < 20; i++) compute->vt->lookup(compute, hashes, n, have, partial, on_done, NULL);
    compute->vt->unload(compute);
    close_engine();
    pl_timer *t;
    pl_error err = {0};
    ck_ok(pl_timer_start(loop, 20000000, 0, (void (*)(void *))pl_loop_uv_stop, loop, &t, &err), err);
    pl_loop_uv_run(loop);
    ck_assert_int_eq(answer.n, 0);
}
END_TEST

Suite *engine_suite(void);
Suite *engine_suite(void)
{
    Suite *s = suite_create("node/engine");
    TCase *c = tcase_create("engine");
    tcase_add_checked_fixture(c, start, stop);
    tcase_add_test(c, facts_are_those_of_this_machine);
    tcase_add_test(c, tensors_that_were_put_are_there_also_for_the_next_process);
    tcase_add_test(c, an_interrupted_tensor_goes_on_where_it_was_and_all_bytes_can_be_finished);
    tcase_add_test(c, other_bytes_are_thrown_away_and_can_be_sent_again);
    tcase_add_test(c, two_stages_from_the_cache_give_the_token_of_the_whole_file);
    tcase_add_test(c, what_a_stage_takes_is_what_the_profile_says_at_most);
    tcase_add_test(c, a_local_files_tensors_need_not_be_fetched);
    tcase_add_test(c, what_is_not_there_cannot_be_loaded_or_run);
    tcase_add_test(c, without_a_cache_a_node_needs_the_file);
    tcase_add_test(c, freeing_it_with_work_under_way_gives_no_answer);
    suite_add_tcase(s, c);
    return s;
}
