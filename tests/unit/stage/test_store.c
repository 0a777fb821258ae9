/* The tensor cache: what goes in comes out, also after interruptions and damage. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/alloc.h"
#include "engine/gguf/write.h"
#include "engine/stage/load.h"
#include "tests/fixtures/fixtures.h"
#include "tests/fixtures/rig.h"
#include "tests/unit/stage/suites.h"

static char dir[64];
static pl_pool *pool;
static pl_backend *backend;
static pl_store *store;

static void setup(void)
{
    pl_error err = {0};
    temp_dir(dir);
    ck_ok(pl_pool_new(&pool, (pl_pool_options){.n_threads = 1}, &err), err);
    ck_ok(pl_cpu_backend_new(&backend, pool, &err), err);
    ck_ok(pl_store_open(&store, dir, backend, &err), err);
}

static void teardown(void)
{
    pl_store_close(store);
    backend->vt->free(backend);
    pl_pool_free(pool);
    temp_dir_remove(dir);
}

static const char *tensor_path(const char *folder, const pl_hash *hash)
{
    static char path[256];
    char hex[2 * PL_HASH_SIZE + 1];
    pl_hash_hex(hash, hex);
    snprintf(path, sizeof path, "%s/%s/%s", dir, folder, hex);
    return path;
}

/* Rows of Q4_1 with bytes from a seed: any bytes are a tensor here. */
static uint8_t *make_bytes(size_t size, uint32_t seed)
{
    uint8_t *data = pl_alloc(size);
    for (size_t i = 0; i < size; i++) data[i] = (uint8_t)((seed += 0x9e3779b9u + (uint32_t)i) >> 13);
    return data;
}

static pl_status put(const pl_hash *hash, pl_type type, const int64_t ne[4], const uint8_t *data, size_t size,
                     size_t piece, pl_error *err)
{
    pl_store_writer *w;
    uint64_t have;
    PL_TRY(pl_store_begin(store, hash, type, ne, size, &w, &have, err));
    for (size_t at = (size_t)have; at < size; at += piece) {
        size_t n = size - at < piece ? size - at : piece;
        ck_ok(pl_store_add(w, (pl_bytes){data + at, n}, err), *err);
    }
    return pl_store_finish(w, err);
}

static const struct {
    pl_type type;
    int64_t ne[4];
} shapes[] = {
    {PL_TYPE_F32, {7, 1, 1, 1}},     {PL_TYPE_F32, {64, 15, 1, 1}},     {PL_TYPE_Q4_1, {64, 16, 1, 1}},
    {PL_TYPE_Q4_1, {96, 37, 1, 1}},  {PL_TYPE_Q8_0, {576, 4100, 1, 1}}, {PL_TYPE_Q6_K, {256, 5003, 1, 1}},
    {PL_TYPE_F16, {33, 64, 2, 1}},   {PL_TYPE_BF16, {512, 8211, 1, 1}}, {PL_TYPE_Q5_0, {32, 31, 1, 1}},
    {PL_TYPE_Q4_K, {256, 33, 1, 1}}, {PL_TYPE_F32, {100000, 31, 1, 1}},
};

START_TEST(what_goes_in_comes_out_in_any_pieces)
{
    pl_error err = {0};
    pl_type type = shapes[_i].type;
    const int64_t *ne = shapes[_i].ne;
    size_t size = pl_type_row_size(type, ne[0]) * (size_t)(ne[1] * ne[2] * ne[3]);
    uint8_t *data = make_bytes(size, (uint32_t)_i);
    pl_hash hash = pl_hash_of((pl_bytes){data, size});
    pl_stored t;
    ck_assert(!pl_store_has(store, &hash, NULL));
    ck_status(pl_store_get(store, &hash, &t, &err), PL_ERR_NOT_FOUND, err);
    ck_ok(put(&hash, type, ne, data, size, size / 3 + 1, &err), err);
    ck_assert(pl_store_has(store, &hash, NULL));
    ck_ok(pl_store_get(store, &hash, &t, &err), err);
    ck_assert(t.type == type && t.size == size && memcmp(t.ne, ne, sizeof t.ne) == 0 && (uintptr_t)t.data % 64 == 0);
    ck_assert_int_eq(t.layout, backend->vt->best_layout(backend, type, ne));
    /* As the backend packs the whole at once. */
    uint8_t *packed = pl_alloc(size);
    backend->vt->pack(backend, t.layout, type, ne, data, packed, 0, ne[1] * ne[2] * ne[3]);
    ck_assert(memcmp(packed, t.data, size) == 0);
    pl_free(packed);
    pl_stored_close(&t);

    /* Back as GGUF bytes, whole and in odd pieces. */
    const size_t pieces[] = {size, size / 2 + 1, 4097, 1000003};
    for (int p = 0; p < 4; p++) {
        pl_buf out = {0};
        if (size / pieces[p] > 3000) continue;
        for (uint64_t at = 0; at < size; at += pieces[p])
            ck_ok(pl_store_read(store, &hash, at, size - at < pieces[p] ? (size_t)(size - at) : pieces[p], &out, &err),
                  err);
        ck_assert(out.size == size && memcmp(out.data, data, size) == 0);
        pl_buf_fini(&out);
    }
    pl_buf out = {0};
    ck_status(pl_store_read(store, &hash, 1, size, &out, &err), PL_ERR_INVALID, err);
    ck_status(pl_store_read(store, &hash, size + 1, 0, &out, &err), PL_ERR_INVALID, err);
    ck_status(pl_store_read(store, &hash, UINT64_MAX, 2, &out, &err), PL_ERR_INVALID, err);
    pl_buf_fini(&out);
    pl_free(data);
}
END_TEST

START_TEST(a_blob_of_any_bytes_is_kept_as_it_is)
{
    pl_error err = {0};
    const char text[] = "GGUF and so on";
    pl_hash hash = pl_hash_of((pl_bytes){(const uint8_t *)text, sizeof text});
    ck_ok(put(&hash, PL_TYPE_COUNT, NULL, (const uint8_t *)text, sizeof text, 5, &err), err);
    pl_stored t;
    ck_ok(pl_store_get(store, &hash, &t, &err), err);
    ck_assert(t.type == PL_TYPE_COUNT && t.size == sizeof text && memcmp(t.data, text, sizeof text) == 0);
    pl_stored_close(&t);
    pl_buf out = {0};
    ck_ok(pl_store_read(store, &hash, 5, 3, &out, &err), err);
    ck_assert_mem_eq(out.data, "and", 3);
    pl_buf_fini(&out);
}
END_TEST

START_TEST(an_interrupted_tensor_goes_on_where_it_stopped)
{
    pl_error err = {0};
    const int64_t ne[4] = {64, 64, 1, 1};
    size_t size = pl_type_row_size(PL_TYPE_Q4_1, 64) * 64;
    uint8_t *data = make_bytes(size, 3);
    pl_hash hash = pl_hash_of((pl_bytes){data, size});
    pl_store_writer *w, *w2;
    uint64_t have, partial;
    ck_ok(pl_store_begin(store, &hash, PL_TYPE_Q4_1, ne, size, &w, &have, &err), err);
    ck_assert_uint_eq(have, 0);
    ck_ok(pl_store_add(w, (pl_bytes){data, 1000}, &err), err);
    /* A second writer at the same time is by itself. */
    ck_ok(pl_store_begin(store, &hash, PL_TYPE_Q4_1, ne, size, &w2, &have, &err), err);
    ck_assert_uint_eq(have, 0);
    ck_ok(pl_store_add(w2, (pl_bytes){data, 10}, &err), err);
    pl_store_abandon(w2);
    ck_status(pl_store_add(w, (pl_bytes){data, size}, &err), PL_ERR_FORMAT, err); /* more than there can be */
    pl_store_abandon(w);
    ck_assert(!pl_store_has(store, &hash, &partial));
    ck_assert_uint_eq(partial, 1000);

    /* In a new process, so to say. */
    pl_store_close(store);
    ck_ok(pl_store_open(&store, dir, backend, &err), err);
    ck_ok(pl_store_begin(store, &hash, PL_TYPE_Q4_1, ne, size, &w, &have, &err), err);
    ck_assert_uint_eq(have, 1000);
    ck_status(pl_store_finish(w, &err), PL_ERR_INVALID, err); /* not yet whole: kept */
    ck_ok(put(&hash, PL_TYPE_Q4_1, ne, data, size, 777, &err), err);
    ck_assert(pl_store_has(store, &hash, &partial) && partial == 0);
    ck_assert(access(tensor_path("parts", &hash), F_OK) != 0);
    pl_free(data);
}
END_TEST

START_TEST(bytes_with_another_hash_are_thrown_away)
{
    pl_error err = {0};
    const int64_t ne[4] = {64, 16, 1, 1};
    size_t size = pl_type_row_size(PL_TYPE_Q4_1, 64) * 16;
    uint8_t *data = make_bytes(size, 4);
    pl_hash hash = pl_hash_of((pl_bytes){data, size});
    data[size / 2] ^= 1;
    ck_status(put(&hash, PL_TYPE_Q4_1, ne, data, size, size, &err), PL_ERR_FORMAT, err);
    uint64_t partial = 1;
    ck_assert(!pl_store_has(store, &hash, &partial) && partial == 0);
    data[size / 2] ^= 1;
    ck_ok(put(&hash, PL_TYPE_Q4_1, ne, data, size, size, &err), err);
    pl_free(data);
}
END_TEST

START_TEST(a_shape_that_does_not_have_that_size_is_refused)
{
    pl_error err = {0};
    pl_hash hash = {{1}};
    pl_store_writer *w;
    uint64_t have;
    const struct {
        pl_type type;
        int64_t ne[4];
        uint64_t size;
    } bad[] = {
        {PL_TYPE_Q4_1, {64, 16, 1, 1}, 641},
        {PL_TYPE_Q4_1, {65, 16, 1, 1}, 640},
        {PL_TYPE_Q4_1, {64, 0, 1, 1}, 0},
        {PL_TYPE_Q4_1, {-64, -16, 1, 1}, 640},
        {PL_TYPE_F32, {INT64_MAX / 2, INT64_MAX / 2, 4, 4}, 16},
        {PL_TYPE_F32, {1, (int64_t)1 << 62, 4, 1}, 0},
        {(pl_type)63, {1, 1, 1, 1}, 1},
        {(pl_type)100000, {1, 1, 1, 1}, 1},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        ck_status(pl_store_begin(store, &hash, bad[i].type, bad[i].ne, bad[i].size, &w, &have, &err), PL_ERR_FORMAT,
                  err);
}
END_TEST

/* Changes one byte of a file, or cuts it. */
static void damage(const char *path, long at, bool cut)
{
    if (cut) {
        ck_assert_int_eq(truncate(path, at), 0);
        return;
    }
    FILE *f = fopen(path, "r+b");
    ck_assert_ptr_nonnull(f);
    fseek(f, at, SEEK_SET);
    int c = fgetc(f);
    fseek(f, at, SEEK_SET);
    fputc(c ^ 0x40, f);
    fclose(f);
}

START_TEST(damage_is_found)
{
    const struct {
        long at;
        bool cut, at_start; /* a start checks header and size only */
    } damages[] = {{0, false, true},           {9, false, true},   {13, false, true},  {17, false, true},
                   {50, false, true},          {60, false, true},  {90, false, true},  {97, false, true},
                   {10, true, true},           {4096, true, true}, {4097, true, true}, {4096, false, false},
                   {4096 + 1000, false, false}};
    pl_error err = {0};
    const int64_t ne[4] = {64, 40, 1, 1};
    size_t size = pl_type_row_size(PL_TYPE_Q4_1, 64) * 40;
    uint8_t *data = make_bytes(size, 5);
    pl_hash hash = pl_hash_of((pl_bytes){data, size}), other;
    data[0] ^= 1;
    other = pl_hash_of((pl_bytes){data, size});
    ck_ok(put(&other, PL_TYPE_Q4_1, ne, data, size, size, &err), err);
    data[0] ^= 1;
    for (size_t i = 0; i < sizeof damages / sizeof damages[0]; i++) {
        pl_stored t;
        pl_store_report report;
        ck_ok(put(&hash, PL_TYPE_Q4_1, ne, data, size, size, &err), err);
        ck_ok(pl_store_verify(store, &report, &err), err);
        ck_assert(report.n == 2 && report.n_bad == 0 && report.bytes == 2 * (4096 + size));
        damage(tensor_path("tensors", &hash), damages[i].at, damages[i].cut);
        if (damages[i].at_start) {
            ck_status(pl_store_get(store, &hash, &t, &err), PL_ERR_FORMAT, err);
            ck_status(pl_store_get(store, &hash, &t, &err), PL_ERR_NOT_FOUND, err);
            ck_ok(put(&hash, PL_TYPE_Q4_1, ne, data, size, size, &err), err);
            damage(tensor_path("tensors", &hash), damages[i].at, damages[i].cut);
        }
        ck_ok(pl_store_verify(store, &report, &err), err);
        ck_assert_msg(report.n == 2 && report.n_bad == 1, "case %d: %d of %d are bad", (int)i, (int)report.n_bad,
                      (int)report.n);
        ck_assert(!pl_store_has(store, &hash, NULL) && pl_store_has(store, &other, NULL));
    }
    pl_free(data);
}
END_TEST

static uint64_t n_progress;
static void count_progress(void *user, uint64_t done, uint64_t total)
{
    n_progress++;
    ck_assert(done <= total && done >= *(uint64_t *)user);
    *(uint64_t *)user = done;
}

START_TEST(a_second_start_hashes_nothing_and_packs_nothing)
{
    pl_error err = {0};
    char path[160];
    pl_gguf *g;
    pl_model_profile *p;
    tiny_gguf_file(dir, "model.gguf", path, .type = PL_TYPE_Q8_0);
    ck_ok(pl_gguf_open(&g, path, &err), err);
    ck_ok(pl_model_profile_open(&p, g, &err), err);
    pl_hash hashes[64], again[64];
    ck_assert_uint_lt(pl_gguf_n_tensors(g), 64);
    uint64_t last = 0;
    n_progress = 0;
    ck_ok(pl_store_hash_gguf(store, g, hashes, count_progress, &last, &err), err);
    ck_assert_uint_gt(n_progress, 0);
    for (size_t i = 0; i < pl_gguf_n_tensors(g); i++) {
        const pl_gguf_tensor *t = pl_gguf_tensor_at(g, i);
        pl_hash h = pl_hash_of((pl_bytes){t->data, t->size});
        ck_assert(pl_hash_eq(&h, &hashes[i]));
    }
    last = n_progress = 0;
    ck_ok(pl_store_hash_gguf(store, g, again, count_progress, &last, &err), err);
    ck_assert_uint_eq(n_progress, 0);
    ck_assert_mem_eq(hashes, again, pl_gguf_n_tensors(g) * sizeof *hashes);

    /* From the file and from the cache alone: the same weights, packed. */
    pl_loaded *from_file, *from_store;
    last = 0;
    ck_ok(pl_loaded_from_file(&from_file, store, g, p, 0, 2,
                              &(pl_load_options){.progress = count_progress, .user = &last}, &err),
          err);
    size_t list[64], n = pl_model_stage_tensors(p, 0, 2, list);
    for (size_t i = 0; i < n; i++) again[i] = hashes[list[i]];
    ck_ok(pl_loaded_from_store(&from_store, store, g, p, 0, 2, again, NULL, &err), err);
    for (size_t i = 0; i < n; i++) {
        const pl_weight *a = &pl_loaded_weights(from_file)[i], *b = &pl_loaded_weights(from_store)[i];
        const pl_gguf_tensor *t = pl_gguf_tensor_at(g, list[i]);
        ck_assert(a->layout == b->layout && memcmp(a->data, b->data, t->size) == 0);
        ck_assert(a->layout == backend->vt->best_layout(backend, t->type, t->ne) && a->data != t->data);
    }
    pl_loaded_close(from_file);
    pl_loaded_close(from_store);
    again[n / 2].b[0] ^= 1;
    ck_status(pl_loaded_from_store(&from_store, store, g, p, 0, 2, again, NULL, &err), PL_ERR_NOT_FOUND, err);
    again[n / 2] = again[0]; /* a tensor that is there, but another one */
    ck_status(pl_loaded_from_store(&from_store, store, g, p, 0, 2, again, NULL, &err), PL_ERR_FORMAT, err);
    pl_model_profile_close(p);
    pl_gguf_close(g);

    /* Another file under the same name is not the same file. */
    tiny_gguf_file(dir, "model.gguf", path, .type = PL_TYPE_Q8_0, .seed = 99);
    ck_ok(pl_gguf_open(&g, path, &err), err);
    last = n_progress = 0;
    ck_ok(pl_store_hash_gguf(store, g, again, count_progress, &last, &err), err);
    ck_assert_uint_gt(n_progress, 0);
    ck_assert(memcmp(hashes, again, pl_gguf_n_tensors(g) * sizeof *hashes) != 0);
    pl_gguf_close(g);
}
END_TEST

START_TEST(without_a_cache_the_file_is_used_as_it_is)
{
    pl_error err = {0};
    rig_model m;
    rig_model_from_bytes(&m, tiny_gguf());
    pl_loaded *l;
    ck_ok(pl_loaded_from_file(&l, NULL, m.g, m.p, 0, 1, NULL, &err), err);
    size_t list[64];
    ck_assert(pl_model_stage_tensors(m.p, 0, 1, list) > 0);
    ck_assert(pl_loaded_weights(l)[0].layout == PL_LAYOUT_PLAIN &&
              pl_loaded_weights(l)[0].data == pl_gguf_tensor_at(m.g, list[0])->data);
    pl_loaded_close(l);
    rig_model_close(&m);
}
END_TEST

START_TEST(weights_are_the_same_mapped_copied_locked_and_lazy)
{
    static const pl_load_options ways[] = {
        {0}, {.copy = true}, {.lock = true}, {.lazy = true}, {.copy = true, .lock = true}};
    pl_error err = {0};
    char path[160];
    pl_gguf *g;
    pl_model_profile *p;
    tiny_gguf_file(dir, "model.gguf", path, .type = PL_TYPE_Q4_0);
    ck_ok(pl_gguf_open(&g, path, &err), err);
    ck_ok(pl_model_profile_open(&p, g, &err), err);
    size_t list[64], n = pl_model_stage_tensors(p, 0, 2, list);
    pl_loaded *first, *l;
    ck_ok(pl_loaded_from_file(&first, store, g, p, 0, 2, NULL, &err), err);
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        for (int packed = 0; packed < 2; packed++) {
            ck_ok(pl_loaded_from_file(&l, packed ? store : NULL, g, p, 0, 2, &ways[w], &err), err);
            for (size_t i = 0; i < n; i++) {
                const pl_weight *a = &pl_loaded_weights(l)[i], *b = &pl_loaded_weights(first)[i];
                const pl_gguf_tensor *t = pl_gguf_tensor_at(g, list[i]);
                ck_assert((uintptr_t)a->data % 32 == 0);
                if (packed) ck_assert(a->layout == b->layout && memcmp(a->data, b->data, t->size) == 0);
                if (!packed) ck_assert(a->layout == PL_LAYOUT_PLAIN && memcmp(a->data, t->data, t->size) == 0);
                ck_assert(packed || (a->data == t->data) == !ways[w].copy);
            }
            pl_loaded_close(l);
        }
    }
    pl_loaded_close(first);
    pl_model_profile_close(p);
    pl_gguf_close(g);
}
END_TEST

START_TEST(tensors_are_taken_in_together_and_one_that_is_not_here_is_named)
{
    pl_error err = {0};
    char path[160];
    pl_gguf *g;
    tiny_gguf_file(dir, "model.gguf", path, .type = PL_TYPE_Q8_0, .n_layer = 5);
    ck_ok(pl_gguf_open(&g, path, &err), err);
    size_t n = pl_gguf_n_tensors(g), list[128];
    pl_hash hashes[128], wrong;
    const pl_hash *of[128];
    ck_assert(n > 32 && n <= 128); /* more than wait for the disk together */
    ck_ok(pl_store_hash_gguf(store, g, hashes, NULL, NULL, &err), err);
    for (size_t i = 0; i < n; i++) list[i] = i, of[i] = &hashes[i];
    uint64_t last = 0;
    n_progress = 0;
    ck_ok(pl_store_import_all(store, g, list, of, n, count_progress, &last, &err), err);
    ck_assert_uint_gt(n_progress, 0);
    pl_store_report report;
    ck_ok(pl_store_verify(store, &report, &err), err);
    ck_assert(report.n_bad == 0 && report.n > 32);
    for (size_t i = 0; i < n; i++) ck_assert(pl_store_has(store, of[i], NULL));
    n_progress = 0;
    ck_ok(pl_store_import_all(store, g, list, of, n, count_progress, &last, &err), err);
    ck_assert_uint_eq(n_progress, 0);
    pl_gguf_close(g);

    /* A header alone: its tensors have no bytes. */
    pl_buf header = {0};
    ck_ok(pl_gguf_open(&g, path, &err), err);
    ck_ok(pl_gguf_header_write(g, &header, &err), err);
    pl_gguf_close(g);
    ck_ok(pl_gguf_open_bytes(&g, pl_buf_bytes(&header), true, &err), err);
    wrong = hashes[3];
    wrong.b[0] ^= 1;
    of[3] = &wrong;
    ck_status(pl_store_import_all(store, g, list, of, n, NULL, NULL, &err), PL_ERR_NOT_FOUND, err);
    pl_str name = pl_gguf_tensor_at(g, 3)->name;
    char text[64];
    snprintf(text, sizeof text, "%.*s", PL_STR_ARG(name));
    ck_says(err, text);
    pl_gguf_close(g);
    pl_buf_fini(&header);
}
END_TEST

Suite *store_suite(void)
{
    Suite *s = suite_create("store");
    TCase *t = tcase_create("store");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, what_goes_in_comes_out_in_any_pieces, 0, sizeof shapes / sizeof shapes[0]);
    tcase_add_test(t, a_blob_of_any_bytes_is_kept_as_it_is);
    tcase_add_test(t, an_interrupted_tensor_goes_on_where_it_stopped);
    tcase_add_test(t, bytes_with_another_hash_are_thrown_away);
    tcase_add_test(t, a_shape_that_does_not_have_that_size_is_refused);
    tcase_add_test(t, damage_is_found);
    tcase_add_test(t, a_second_start_hashes_nothing_and_packs_nothing);
    tcase_add_test(t, without_a_cache_the_file_is_used_as_it_is);
    tcase_add_test(t, weights_are_the_same_mapped_copied_locked_and_lazy);
    tcase_add_test(t, tensors_are_taken_in_together_and_one_that_is_not_here_is_named);
    suite_add_tcase(s, t);
    return s;
}
