#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/base/alloc.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/rng.h"
#include "engine/gguf/dump.h"
#include "engine/gguf/read.h"
#include "engine/gguf/write.h"
#include "tests/fixtures/fixtures.h"

static const struct {
    const char *says;
    pl_status status;
} ways[GGUF_BROKEN_COUNT] = {
    [GGUF_EMPTY] = {"too few for a GGUF file", PL_ERR_FORMAT},
    [GGUF_MAGIC_WRONG] = {"offset 0: not a GGUF file: it begins with the bytes 47 47 4d 4c", PL_ERR_FORMAT},
    [GGUF_CUT_IN_VERSION] = {"ends inside the version", PL_ERR_FORMAT},
    [GGUF_CUT_IN_COUNTS] = {"ends inside the header", PL_ERR_FORMAT},
    [GGUF_BIG_ENDIAN] = {"big-endian", PL_ERR_UNSUPPORTED},
    [GGUF_VERSION_ZERO] = {"version 0 is not known", PL_ERR_UNSUPPORTED},
    [GGUF_VERSION_UNKNOWN] = {"version 4 is not known", PL_ERR_UNSUPPORTED},
    [GGUF_KEY_COUNT_HUGE] = {"offset 16: 4611686018427387904 keys do not fit", PL_ERR_FORMAT},
    [GGUF_KEY_COUNT_TOO_LARGE] = {"offset", PL_ERR_FORMAT},
    [GGUF_TENSOR_COUNT_HUGE] = {"offset 8: 4611686018427387904 tensors do not fit", PL_ERR_FORMAT},
    [GGUF_KEY_LENGTH_HUGE] = {"the name of a key has a length of 4611686018427387904, but the file has only",
                              PL_ERR_FORMAT},
    [GGUF_KEY_EMPTY] = {"the name of a key is empty", PL_ERR_FORMAT},
    [GGUF_KEY_TOO_LONG] = {"the name of a key has 65536 bytes, the format allows 65535", PL_ERR_FORMAT},
    [GGUF_KEY_NOT_UTF8] = {"the name of a key is not UTF-8 at its byte 5", PL_ERR_FORMAT},
    [GGUF_KEY_WITH_ZERO_BYTE] = {"contains a zero byte", PL_ERR_FORMAT},
    [GGUF_KEY_TWICE] = {"key test.u8 is there twice", PL_ERR_FORMAT},
    [GGUF_KIND_UNKNOWN] = {"key test.bool: offset", PL_ERR_FORMAT},
    [GGUF_BOOL_IS_TWO] = {"a bool is 2, not 0 or 1", PL_ERR_FORMAT},
    [GGUF_STRING_LENGTH_HUGE] = {"key test.string: offset", PL_ERR_FORMAT},
    [GGUF_ARRAY_KIND_UNKNOWN] = {"there is no value kind 77", PL_ERR_FORMAT},
    [GGUF_ARRAY_COUNT_HUGE] = {"an array claims 4611686018427387904 elements", PL_ERR_FORMAT},
    [GGUF_ARRAY_STRING_LENGTH_HUGE] = {"a string in an array has a length of", PL_ERR_FORMAT},
    [GGUF_ARRAY_BOOL_IS_TWO] = {"key test.bools: offset", PL_ERR_FORMAT},
    [GGUF_ARRAY_TOO_DEEP] = {"nested deeper than 4 levels", PL_ERR_FORMAT},
    [GGUF_ALIGNMENT_ZERO] = {"general.alignment is 0, not a power of two", PL_ERR_FORMAT},
    [GGUF_ALIGNMENT_NOT_POWER_OF_TWO] = {"general.alignment is 48, not a power of two", PL_ERR_FORMAT},
    [GGUF_ALIGNMENT_IS_TEXT] = {"general.alignment is of kind string", PL_ERR_FORMAT},
    [GGUF_TENSOR_NAME_EMPTY] = {"the name of a tensor is empty", PL_ERR_FORMAT},
    [GGUF_TENSOR_NAME_TOO_LONG] = {"the format allows 64", PL_ERR_FORMAT},
    [GGUF_TENSOR_NAME_NOT_UTF8] = {"the name of a tensor is not UTF-8 at its byte 4", PL_ERR_FORMAT},
    [GGUF_TENSOR_TWICE] = {"tensor token_embd.weight is there twice", PL_ERR_FORMAT},
    [GGUF_TENSOR_WITHOUT_DIMENSIONS] = {"tensor blk.0.attn_q.weight: offset", PL_ERR_FORMAT},
    [GGUF_TENSOR_FIVE_DIMENSIONS] = {"it has 5 dimensions, 1 to 4 are possible", PL_ERR_FORMAT},
    [GGUF_TENSOR_DIMENSION_ZERO] = {"dimension 1 is 0", PL_ERR_FORMAT},
    [GGUF_TENSOR_DIMENSION_HUGE] = {"dimension 1 is 9223372036854775808", PL_ERR_FORMAT},
    [GGUF_TENSOR_PRODUCT_OVERFLOWS] = {"the dimensions' product does not fit 63 bits", PL_ERR_FORMAT},
    [GGUF_TENSOR_SIZE_OVERFLOWS] = {"its size does not fit 63 bits", PL_ERR_FORMAT},
    [GGUF_TENSOR_TYPE_UNKNOWN] = {"does not know tensor type 99", PL_ERR_UNSUPPORTED},
    [GGUF_TENSOR_ROW_NOT_BLOCKS] = {"its rows have 33 elements, not a multiple of Q4_0's block of 32", PL_ERR_FORMAT},
    [GGUF_TENSOR_OFFSET_UNALIGNED] = {"begins at 516, which the alignment 32 does not divide", PL_ERR_FORMAT},
    [GGUF_TENSOR_BEYOND_END] = {"512 bytes at offset 4096 leave the data section (1536 bytes", PL_ERR_FORMAT},
    [GGUF_TENSOR_OFFSET_WRAPS] = {"512 bytes at offset 18446744073709551584 leave the data section", PL_ERR_FORMAT},
    [GGUF_TENSORS_OVERLAP] = {"overlaps that of tensor token_embd.weight (512 bytes at offset 0", PL_ERR_FORMAT},
    [GGUF_CUT_IN_TENSOR_LIST] = {"the file ends inside", PL_ERR_FORMAT},
    [GGUF_CUT_IN_DATA] = {"tensor output.weight: 512 bytes at offset 1024 leave the data section (1535 bytes",
                          PL_ERR_FORMAT},
};

START_TEST(every_way_of_being_broken_is_named)
{
    pl_buf file = tiny_gguf(.broken = (gguf_broken)_i);
    pl_gguf *g;
    pl_error err = {0};
    ck_status(pl_gguf_open_bytes(&g, pl_buf_bytes(&file), false, &err), ways[_i].status, err);
    ck_assert_ptr_null(g);
    ck_says(err, ways[_i].says);
    pl_buf_fini(&file);
}
END_TEST

START_TEST(a_broken_tensor_of_any_name_is_named)
{
    pl_buf file = tiny_gguf(.broken = GGUF_TENSOR_BEYOND_END, .tensor = "blk.7.ffn_up.weight");
    pl_gguf *g;
    pl_error err = {0};
    ck_status(pl_gguf_open_bytes(&g, pl_buf_bytes(&file), false, &err), PL_ERR_FORMAT, err);
    ck_says(err, "tensor blk.7.ffn_up.weight: 512 bytes at offset 4096");
    pl_buf_fini(&file);
}
END_TEST

START_TEST(the_file_is_named_in_the_error)
{
    char dir[64], path[160];
    temp_dir(dir);
    tiny_gguf_file(dir, "bad.gguf", path, .broken = GGUF_KEY_TWICE);
    pl_gguf *g;
    pl_error err = {0};
    ck_status(pl_gguf_open(&g, path, &err), PL_ERR_FORMAT, err);
    ck_says(err, path);
    ck_says(err, "key test.u8 is there twice");
    snprintf(path, sizeof path, "%s/absent.gguf", dir);
    ck_status(pl_gguf_open(&g, path, &err), PL_ERR_NOT_FOUND, err);
    ck_says(err, "absent.gguf");
    ck_status(pl_gguf_open(&g, dir, &err), PL_ERR_IO, err);
    ck_says(err, "not a regular file");
    temp_dir_remove(dir);
}
END_TEST

START_TEST(every_version_reads_the_same)
{
    pl_buf file = tiny_gguf(.version = _i);
    pl_gguf *g;
    pl_error err = {0};
    ck_ok(pl_gguf_open_bytes(&g, pl_buf_bytes(&file), false, &err), err);
    ck_assert_uint_eq(pl_gguf_version(g), (unsigned)_i);
    ck_assert_uint_eq(pl_gguf_n_keys(g), 18);
    uint32_t u = 0;
    bool found, b = false;
    float f = 0;
    pl_str s;
    ck_ok(pl_gguf_get_u32(g, "test.u8", &u, &found, &err), err);
    ck_assert(found && u == 200);
    ck_ok(pl_gguf_get_u32(g, "test.u32", &u, &found, &err), err);
    ck_assert(found && u == 4000000000u);
    ck_ok(pl_gguf_get_f32(g, "test.f32", &f, &found, &err), err);
    ck_assert(found && f == 1.5f);
    ck_ok(pl_gguf_get_f32(g, "test.f64", &f, &found, &err), err);
    ck_assert(found && f == -2.5f);
    ck_ok(pl_gguf_get_bool(g, "test.bool", &b, &found, &err), err);
    ck_assert(found && b);
    ck_ok(pl_gguf_get_str(g, "test.string", &s, &found, &err), err);
    ck_assert(found && pl_str_is(s, "a line\n"));
    ck_ok(pl_gguf_get_u32(g, "test.absent", &u, &found, &err), err);
    ck_assert(!found);
    ck_status(pl_gguf_get_u32(g, "test.i32", &u, &found, &err), PL_ERR_FORMAT, err);
    ck_says(err, "test.i32 is -2000000000");
    ck_status(pl_gguf_get_u32(g, "test.u64", &u, &found, &err), PL_ERR_FORMAT, err);
    ck_says(err, "18446744073709551615");
    ck_status(pl_gguf_get_u32(g, "test.string", &u, &found, &err), PL_ERR_FORMAT, err);
    ck_says(err, "is of kind string");
    ck_status(pl_gguf_get_str(g, "test.u8", &s, &found, &err), PL_ERR_FORMAT, err);
    ck_status(pl_gguf_get_bool(g, "test.u8", &b, &found, &err), PL_ERR_FORMAT, err);

    pl_gguf_value v;
    ck_assert(pl_gguf_find(g, "test.numbers", &v) && v.n == 3 && v.elem == PL_GGUF_I16);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(pl_gguf_elem_i64(&v, (uint64_t)i), i - 1);
        ck_assert(pl_gguf_elem_f64(&v, (uint64_t)i) == i - 1);
    }
    ck_assert(pl_gguf_find(g, "test.strings", &v) && v.n == 3);
    size_t at = 0;
    ck_assert(pl_gguf_next_str(&v, &at, &s) && pl_str_is(s, "one"));
    ck_assert(pl_gguf_next_str(&v, &at, &s) && pl_str_is(s, ""));
    ck_assert(pl_gguf_next_str(&v, &at, &s) && pl_str_is(s, "three"));
    ck_assert(!pl_gguf_next_str(&v, &at, &s));

    ck_assert_uint_eq(pl_gguf_n_tensors(g), 3);
    const pl_gguf_tensor *t = pl_gguf_find_tensor(g, PL_STR("blk.0.attn_q.weight"));
    ck_assert_ptr_eq(t, pl_gguf_tensor_at(g, 1));
    ck_assert(t->type == PL_TYPE_F32 && t->n_dims == 2 && t->ne[0] == 32 && t->ne[1] == 4 && t->ne[2] == 1 &&
              t->ne[3] == 1);
    ck_assert_uint_eq(t->size, 512);
    ck_assert_uint_eq(pl_get_u32(t->data), 0x3F800000 + 128);
    ck_assert_ptr_eq(t->data, file.data + t->offset);
    ck_assert_ptr_null(pl_gguf_find_tensor(g, PL_STR("absent")));
    pl_gguf_close(g);
    pl_buf_fini(&file);
}
END_TEST

START_TEST(no_file_cut_short_is_read)
{
    pl_buf file = tiny_gguf(.version = _i);
    for (size_t size = 0; size < file.size; size++) {
        /* A block of exactly this size, so that the sanitizer sees a read behind it. */
        uint8_t *copy = pl_alloc(size);
        if (size) memcpy(copy, file.data, size);
        pl_gguf *g;
        pl_error err = {0};
        ck_status(pl_gguf_open_bytes(&g, (pl_bytes){copy, size}, false, &err), PL_ERR_FORMAT, err);
        ck_assert_ptr_null(g);
        pl_free(copy);
    }
    pl_buf_fini(&file);
}
END_TEST

START_TEST(no_changed_byte_leads_out_of_the_file)
{
    pl_rng r;
    pl_rng_seed(&r, prop_seed(_i));
    pl_buf file = tiny_gguf(.version = 1 + _i % 3);
    for (int round = 0; round < 300; round++) {
        uint8_t *copy = pl_alloc(file.size);
        memcpy(copy, file.data, file.size);
        for (uint64_t n = 1 + pl_rng_below(&r, 4); n; n--) copy[pl_rng_below(&r, 1100)] = (uint8_t)pl_rng_u64(&r);
        pl_gguf *g;
        pl_error err = {0};
        if (pl_gguf_open_bytes(&g, (pl_bytes){copy, file.size}, false, &err) == PL_OK) {
            pl_buf out = {0};
            ck_ok(pl_gguf_dump(g, (pl_gguf_dump_options){.json = round % 2}, &out, &err), err);
            for (size_t i = 0; i < pl_gguf_n_tensors(g); i++) {
                const pl_gguf_tensor *t = pl_gguf_tensor_at(g, i);
                const uint8_t *b = t->data;
                ck_assert(b >= copy && t->size <= file.size && b + t->size <= copy + file.size);
            }
            pl_buf_fini(&out);
            pl_gguf_close(g);
        } else {
            ck_assert_ptr_null(g);
            ck_assert(err.text[0]);
        }
        pl_free(copy);
    }
    pl_buf_fini(&file);
}
END_TEST

START_TEST(no_memory_at_any_allocation_is_reported)
{
    char dir[64], path[160];
    temp_dir(dir);
    tiny_gguf_file(dir, "whole.gguf", path);
    pl_error err = {0};
    pl_gguf *g = NULL;
    uint64_t n = 1;
    for (;; n++) {
        pl_alloc_fail_at(n);
        pl_status s = pl_gguf_open(&g, path, &err);
        pl_alloc_fail_at(0);
        if (s == PL_OK) break;
        ck_status(s, PL_ERR_NO_MEMORY, err);
        ck_assert_ptr_null(g);
    }
    ck_assert_uint_gt(n, 10);
    pl_buf out = {0};
    for (int what = 0; what < 3; what++) {
        for (n = 1;; n++) {
            pl_alloc_fail_at(n);
            pl_status s = what < 2 ? pl_gguf_dump(g, (pl_gguf_dump_options){.json = what}, &out, &err)
                                   : pl_gguf_header_write(g, &out, &err);
            pl_alloc_fail_at(0);
            if (s == PL_OK) break;
            ck_status(s, PL_ERR_NO_MEMORY, err);
            ck_assert_uint_eq(out.size, 0);
            pl_buf_fini(&out);
        }
        pl_buf_fini(&out);
    }
    pl_gguf_close(g);
    temp_dir_remove(dir);
}
END_TEST

static void same_metadata(const pl_gguf *a, const pl_gguf *b)
{
    ck_assert_uint_eq(pl_gguf_n_keys(a), pl_gguf_n_keys(b));
    for (size_t i = 0; i < pl_gguf_n_keys(a); i++) {
        pl_gguf_value x, y;
        ck_assert(pl_str_eq(pl_gguf_key_at(a, i, &x), pl_gguf_key_at(b, i, &y)));
        ck_assert(x.kind == y.kind && x.elem == y.elem && x.n == y.n);
        if (x.len32 == y.len32 || x.kind != PL_GGUF_ARRAY)
            ck_assert(x.raw.size == y.raw.size && (x.raw.size == 0 || memcmp(x.raw.data, y.raw.data, x.raw.size) == 0));
    }
    ck_assert_uint_eq(pl_gguf_n_tensors(a), pl_gguf_n_tensors(b));
    for (size_t i = 0; i < pl_gguf_n_tensors(a); i++) {
        const pl_gguf_tensor *x = pl_gguf_tensor_at(a, i), *y = pl_gguf_tensor_at(b, i);
        ck_assert(pl_str_eq(x->name, y->name) && x->type == y->type && x->n_dims == y->n_dims && x->size == y->size);
        ck_assert(memcmp(x->ne, y->ne, sizeof x->ne) == 0);
    }
}

START_TEST(a_header_written_anew_says_the_same)
{
    pl_buf file = tiny_gguf(.version = _i), header = {0};
    pl_gguf *g, *again;
    pl_error err = {0};
    ck_ok(pl_gguf_open_bytes(&g, pl_buf_bytes(&file), false, &err), err);
    ck_ok(pl_gguf_header_write(g, &header, &err), err);
    ck_ok(pl_gguf_open_bytes(&again, pl_buf_bytes(&header), true, &err), err);
    ck_assert_uint_eq(pl_gguf_version(again), 3);
    same_metadata(g, again);
    ck_assert_ptr_null(pl_gguf_tensor_at(again, 0)->data);
    pl_gguf_value v;
    pl_str s;
    size_t at = 0;
    ck_assert(pl_gguf_find(again, "test.strings", &v));
    ck_assert(pl_gguf_next_str(&v, &at, &s) && pl_str_is(s, "one"));
    /* The same bytes as a whole file lack their data. */
    pl_gguf *whole;
    ck_status(pl_gguf_open_bytes(&whole, pl_buf_bytes(&header), false, &err), PL_ERR_FORMAT, err);
    pl_gguf_close(again);
    pl_gguf_close(g);
    pl_buf_fini(&header);
    pl_buf_fini(&file);
}
END_TEST

START_TEST(a_file_and_a_buffer_are_written_alike)
{
    char dir[64], path[160];
    temp_dir(dir);
    pl_gguf_writer *w;
    pl_error err = {0};
    ck_ok(pl_gguf_writer_new(&w, &err), err);
    float data[3 * 5];
    for (int i = 0; i < 15; i++) data[i] = (float)i;
    ck_assert(pl_gguf_add_u32(w, "general.alignment", 128));
    ck_assert(pl_gguf_add_strs(w, "list", (pl_str[]){PL_STR("a"), PL_STR("")}, 2));
    ck_assert(pl_gguf_add_i32s(w, "numbers", (int32_t[]){-1, 2}, 2));
    ck_assert(pl_gguf_add_f32s(w, "reals", (float[]){0.5f}, 1));
    ck_assert(pl_gguf_add_tensor(w, "t", PL_TYPE_F32, 2, (int64_t[]){3, 5}, data));
    ck_assert(pl_gguf_add_tensor(w, "u", PL_TYPE_F32, 1, (int64_t[]){15}, data));
    pl_buf memory = {0}, disk = {0};
    ck_ok(pl_gguf_write(w, &memory, &err), err);
    snprintf(path, sizeof path, "%s/out.gguf", dir);
    ck_ok(pl_gguf_write_file(w, path, &err), err);
    ck_ok(pl_file_read(&disk, path, 1 << 20, &err), err);
    ck_assert(memory.size == disk.size && memcmp(memory.data, disk.data, disk.size) == 0);
    pl_gguf *g;
    ck_ok(pl_gguf_open(&g, path, &err), err);
    ck_assert_uint_eq(pl_gguf_alignment(g), 128);
    ck_assert_str_eq(pl_gguf_path(g), path);
    ck_assert_uint_eq(pl_gguf_file_size(g), disk.size);
    const pl_gguf_tensor *t = pl_gguf_find_tensor(g, PL_STR("u"));
    ck_assert_uint_eq(t->offset % 128, 0);
    ck_assert(memcmp(t->data, data, sizeof data) == 0);
    pl_gguf_close(g);
    pl_gguf_writer_free(w);
    pl_buf_fini(&memory);
    pl_buf_fini(&disk);
    temp_dir_remove(dir);
}
END_TEST

/* A split of three; `wrong` is what is wrong with it. */
enum wrong { RIGHT, NO_WRONG, COUNT_WRONG, PART_MISSING, TENSOR_TWICE, TOTAL_WRONG, NAME_WRONG, NO_MISSING };

static void write_split(const char *dir, enum wrong wrong)
{
    static const float data[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    for (unsigned i = 0; i < 3; i++) {
        if (wrong == PART_MISSING && i == 1) continue;
        pl_gguf_writer *w;
        pl_error err = {0};
        ck_ok(pl_gguf_writer_new(&w, &err), err);
        pl_gguf_add_str(w, "general.architecture", PL_STR("llama"));
        if (wrong != NO_MISSING || i != 1) pl_gguf_add_u32(w, "split.no", wrong == NO_WRONG && i == 1 ? 2 : i);
        pl_gguf_add_u32(w, "split.count", wrong == COUNT_WRONG && i == 2 ? 4 : 3);
        pl_gguf_add_u32(w, "split.tensors.count", wrong == TOTAL_WRONG ? 7 : 5);
        char name[64], path[160];
        for (unsigned k = 0; k < (i ? 2u : 1u); k++) {
            snprintf(name, sizeof name, "t.%u.%u", wrong == TENSOR_TWICE && i == 2 ? 1 : i, k);
            pl_gguf_add_tensor(w, name, PL_TYPE_F32, 1, (int64_t[]){4}, data + i);
        }
        snprintf(path, sizeof path, wrong == NAME_WRONG ? "%s/m-%u.gguf" : "%s/m-%05u-of-00003.gguf", dir, i + 1);
        ck_ok(pl_gguf_write_file(w, path, &err), err);
        pl_gguf_writer_free(w);
    }
}

START_TEST(a_split_file_opens_as_one)
{
    char dir[64], path[160];
    temp_dir(dir);
    write_split(dir, RIGHT);
    snprintf(path, sizeof path, "%s/m-00001-of-00003.gguf", dir);
    pl_gguf *g = NULL;
    pl_error err = {0};
    for (uint64_t n = 1; !g; n++) {
        pl_alloc_fail_at(n);
        pl_status s = pl_gguf_open(&g, path, &err);
        pl_alloc_fail_at(0);
        if (s != PL_OK) ck_status(s, PL_ERR_NO_MEMORY, err);
    }
    ck_assert_uint_eq(pl_gguf_n_tensors(g), 5);
    const pl_gguf_tensor *t = pl_gguf_find_tensor(g, PL_STR("t.2.1"));
    ck_assert_ptr_nonnull(t);
    ck_assert_int_eq(t->part, 2);
    ck_assert(((const float *)t->data)[0] == 2);
    pl_buf header = {0};
    ck_ok(pl_gguf_header_write(g, &header, &err), err);
    pl_gguf *again;
    ck_ok(pl_gguf_open_bytes(&again, pl_buf_bytes(&header), true, &err), err);
    ck_assert_uint_eq(pl_gguf_n_tensors(again), 5);
    ck_assert(!pl_gguf_find(again, "split.count", NULL));
    pl_gguf_close(again);
    pl_buf_fini(&header);
    pl_gguf_close(g);

    pl_buf first = {0};
    ck_ok(pl_file_read(&first, path, 1 << 20, &err), err);
    ck_status(pl_gguf_open_bytes(&g, pl_buf_bytes(&first), false, &err), PL_ERR_UNSUPPORTED, err);
    pl_buf_fini(&first);
    snprintf(path, sizeof path, "%s/m-00002-of-00003.gguf", dir);
    ck_status(pl_gguf_open(&g, path, &err), PL_ERR_INVALID, err);
    ck_says(err, "part 2 of 3: open the first one");
    temp_dir_remove(dir);
}
END_TEST

START_TEST(a_split_that_does_not_fit_together_is_refused)
{
    static const struct {
        enum wrong wrong;
        pl_status status;
        const char *says;
    } cases[] = {
        {NO_WRONG, PL_ERR_FORMAT, "m-00002-of-00003.gguf: key split.no is 2 where 1 is expected"},
        {COUNT_WRONG, PL_ERR_FORMAT, "m-00003-of-00003.gguf: key split.count is 4, but 3 in the first part"},
        {PART_MISSING, PL_ERR_NOT_FOUND, "m-00002-of-00003.gguf"},
        {TENSOR_TWICE, PL_ERR_FORMAT, "tensor t.1.0 is in an earlier part too"},
        {TOTAL_WRONG, PL_ERR_FORMAT, "split.tensors.count is 7, but the 3 parts have 5 tensors"},
        {NAME_WRONG, PL_ERR_INVALID, "its name must end in -00001-of-00003.gguf"},
        {NO_MISSING, PL_ERR_FORMAT, "key split.no is missing"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char dir[64], path[160];
        temp_dir(dir);
        write_split(dir, cases[i].wrong);
        snprintf(path, sizeof path, cases[i].wrong == NAME_WRONG ? "%s/m-1.gguf" : "%s/m-00001-of-00003.gguf", dir);
        pl_gguf *g;
        pl_error err = {0};
        ck_status(pl_gguf_open(&g, path, &err), cases[i].status, err);
        ck_assert_ptr_null(g);
        ck_says(err, cases[i].says);
        temp_dir_remove(dir);
    }
}
END_TEST

START_TEST(a_dump_shows_keys_and_tensors_and_escapes)
{
    pl_buf file = tiny_gguf(.tensor = "blk.0.\x1B[31m\xC2\x9B"), out = {0};
    pl_gguf *g;
    pl_error err = {0};
    ck_ok(pl_gguf_open_bytes(&g, pl_buf_bytes(&file), false, &err), err);
    ck_ok(pl_gguf_dump(g, (pl_gguf_dump_options){0}, &out, &err), err);
    const char *text = pl_buf_cstr(&out);
    ck_assert_ptr_nonnull(strstr(text, "test.string "));
    ck_assert_ptr_nonnull(strstr(text, "\"a line\\n\""));
    ck_assert_ptr_nonnull(strstr(text, "string[3] [\"one\", \"\", \"three\"]"));
    ck_assert_ptr_nonnull(strstr(text, "18446744073709551615"));
    ck_assert_ptr_nonnull(strstr(text, "-9223372036854775808"));
    ck_assert_ptr_nonnull(strstr(text, "blk.0.\\x1b[31m\\xc2\\x9b"));
    ck_assert_ptr_null(strchr(text, 0x1B));
    pl_buf_reset(&out);
    ck_ok(pl_gguf_dump(g, (pl_gguf_dump_options){.json = true}, &out, &err), err);
    pl_json *j;
    ck_ok(pl_json_parse(&j, pl_buf_str(&out), &err), err);
    ck_assert_uint_eq(pl_json_size(pl_json_get(j, "metadata")), 18);
    pl_json *t = pl_json_at(pl_json_get(j, "tensors"), 2);
    ck_assert(pl_str_is(pl_json_str(pl_json_get(t, "name")), "output.weight"));
    ck_assert_int_eq(pl_json_i64(pl_json_at(pl_json_get(t, "ne"), 0)), 32);
    pl_json_free(j);
    pl_gguf_close(g);
    pl_buf_fini(&out);
    pl_buf_fini(&file);
}
END_TEST

START_TEST(tiny_models_of_every_shape_open)
{
    static const tiny_gguf_options shapes[] = {
        {0},
        {.tied = true, .biases = true, .rope_freqs = true, .rope_scaling = "linear"},
        {.vocab = TINY_VOCAB_SPM, .n_layer = 3, .n_head_kv = 4},
        {.n_embd = 256, .n_ff = 512, .type = PL_TYPE_Q4_K, .types = "token_embd=Q6_K,ffn_down=Q5_K,blk.1.attn_v=F16"},
        {.type = PL_TYPE_Q4_1, .types = "token_embd=Q8_0", .n_vocab = 1000, .d_head = 32, .no_template = true},
    };
    pl_buf file = tiny_gguf_make(shapes[_i]), again = tiny_gguf_make(shapes[_i]);
    ck_assert(file.size == again.size && memcmp(file.data, again.data, file.size) == 0);
    pl_gguf *g;
    pl_error err = {0};
    ck_ok(pl_gguf_open_bytes(&g, pl_buf_bytes(&file), false, &err), err);
    ck_assert((pl_gguf_find_tensor(g, PL_STR("output.weight")) == NULL) == shapes[_i].tied);
    uint32_t n_vocab = 0;
    bool found;
    ck_ok(pl_gguf_get_u32(g, "llama.vocab_size", &n_vocab, &found, &err), err);
    pl_gguf_value v;
    ck_assert(pl_gguf_find(g, "tokenizer.ggml.tokens", &v) && v.n == n_vocab);
    ck_assert_int_eq(pl_gguf_find_tensor(g, PL_STR("token_embd.weight"))->ne[1], (int64_t)n_vocab);
    if (_i == 3) {
        ck_assert_int_eq(pl_gguf_find_tensor(g, PL_STR("blk.1.attn_v.weight"))->type, PL_TYPE_F16);
        ck_assert_int_eq(pl_gguf_find_tensor(g, PL_STR("blk.0.attn_v.weight"))->type, PL_TYPE_Q4_K);
    }
    pl_gguf_close(g);
    pl_buf_fini(&file);
    pl_buf_fini(&again);
}
END_TEST

START_TEST(real_files_open)
{
    static const char *const names[] = {"models/ggml-vocab/ggml-vocab-llama-spm.gguf",
                                        "models/ggml-vocab/ggml-vocab-gpt-2.gguf"};
    const char *path = _i < 2 ? test_data(names[_i]) : demo_model();
    if (!path) return;
    pl_gguf *g;
    pl_error err = {0};
    ck_ok(pl_gguf_open(&g, path, &err), err);
    ck_assert(pl_gguf_find(g, "tokenizer.ggml.tokens", NULL));
    if (_i == 2) ck_assert_ptr_nonnull(pl_gguf_find_tensor(g, PL_STR("token_embd.weight")));
    pl_gguf_close(g);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("engine/gguf");
    TCase *t = tcase_create("read");
    suite_add_tcase(s, t);
    tcase_add_loop_test(t, every_way_of_being_broken_is_named, 1, GGUF_BROKEN_COUNT);
    tcase_add_test(t, a_broken_tensor_of_any_name_is_named);
    tcase_add_test(t, the_file_is_named_in_the_error);
    tcase_add_loop_test(t, every_version_reads_the_same, 1, 4);
    tcase_add_loop_test(t, no_file_cut_short_is_read, 1, 4);
    tcase_add_loop_test(t, no_changed_byte_leads_out_of_the_file, 0, 6);
    tcase_add_test(t, no_memory_at_any_allocation_is_reported);
    tcase_add_loop_test(t, real_files_open, 0, 3);
    t = tcase_create("write");
    suite_add_tcase(s, t);
    tcase_add_loop_test(t, a_header_written_anew_says_the_same, 1, 4);
    tcase_add_test(t, a_file_and_a_buffer_are_written_alike);
    t = tcase_create("split");
    suite_add_tcase(s, t);
    tcase_add_test(t, a_split_file_opens_as_one);
    tcase_add_test(t, a_split_that_does_not_fit_together_is_refused);
    t = tcase_create("dump");
    suite_add_tcase(s, t);
    tcase_add_test(t, a_dump_shows_keys_and_tensors_and_escapes);
    t = tcase_create("fixtures");
    suite_add_tcase(s, t);
    tcase_add_loop_test(t, tiny_models_of_every_shape_open, 0, 5);
    return ck_run(s, NULL);
}
