#include <stdlib.h>

#include "engine/base/alloc.h"
#include "engine/base/arena.h"
#include "engine/base/buf.h"
#include "engine/base/map.h"
#include "engine/base/rng.h"
#include "tests/unit/base/suites.h"

START_TEST(the_chosen_allocation_fails_and_no_other)
{
    uint64_t before = pl_alloc_count();
    pl_alloc_fail_at(2);
    void *a = pl_alloc(8), *b = pl_alloc(8), *c = pl_alloc(8);
    pl_alloc_fail_at(0);
    ck_assert_ptr_nonnull(a);
    ck_assert_ptr_null(b);
    ck_assert_ptr_nonnull(c);
    ck_assert_uint_eq(pl_alloc_count() - before, 3);
    pl_free(a);
    pl_free(c);
}
END_TEST

START_TEST(allocations_of_nothing_and_of_too_much)
{
    void *p = pl_alloc(0), *q = pl_calloc(0, 8), *r = pl_alloc_aligned(4096, 0);
    ck_assert(p && q && r && (uintptr_t)r % 4096 == 0);
    p = pl_realloc(p, 0);
    ck_assert_ptr_nonnull(p);
    pl_free(p);
    pl_free(q);
    pl_free(r);
    ck_assert_ptr_null(pl_calloc(SIZE_MAX / 2, 3));
    ck_assert_ptr_null(pl_strndup("", SIZE_MAX));
    size_t out;
    ck_assert(!pl_mul_ok(SIZE_MAX, 2, &out) && !pl_add_ok(SIZE_MAX, 1, &out) && pl_mul_ok(3, 4, &out) && out == 12);
}
END_TEST

START_TEST(an_arena_reuses_its_chunks_after_a_reset)
{
    pl_arena a;
    pl_arena_init(&a, 256);
    uint64_t warm = 0;
    for (int round = 0; round < 5; round++) {
        uint64_t before = pl_alloc_count();
        for (size_t size = 0; size < 900; size += 7) {
            unsigned char *p = pl_arena_zalloc(&a, size);
            ck_assert(p && (uintptr_t)p % 16 == 0);
            for (size_t i = 0; i < size; i++) ck_assert_uint_eq(p[i], 0);
            memset(p, 0xAA, size);
        }
        if (round) warm += pl_alloc_count() - before;
        pl_arena_reset(&a);
    }
    ck_assert_uint_eq(warm, 0);
    ck_assert_str_eq(pl_arena_strdup(&a, PL_STR("text")), "text");
    ck_assert_str_eq(pl_arena_printf(&a, "%d-%s", 7, "x"), "7-x");
    ck_assert_ptr_null(pl_arena_alloc(&a, SIZE_MAX));
    ck_assert_ptr_null(pl_arena_alloc(&a, SIZE_MAX - 64));
    pl_arena_fini(&a);
}
END_TEST

START_TEST(an_arena_without_memory_gives_null_and_stays_usable)
{
    pl_arena a;
    pl_arena_init(&a, 64);
    ck_assert_ptr_nonnull(pl_arena_alloc(&a, 32));
    pl_alloc_fail_at(1);
    ck_assert_ptr_null(pl_arena_alloc(&a, 1000));
    pl_alloc_fail_at(0);
    ck_assert_ptr_nonnull(pl_arena_alloc(&a, 1000));
    pl_arena_fini(&a);
}
END_TEST

START_TEST(a_buffer_grows_and_remembers_a_failure)
{
    pl_buf b = {0};
    ck_assert_str_eq(pl_buf_cstr(&b), "");
    ck_assert(pl_buf_add_u8(&b, 1) && pl_buf_add_u16(&b, 0x0302) && pl_buf_add_u32(&b, 0x07060504) &&
              pl_buf_add_u64(&b, 0x0F0E0D0C0B0A0908u));
    for (size_t i = 0; i < 15; i++) ck_assert_uint_eq(b.data[i], i + 1);
    pl_buf_reset(&b);
    for (int i = 0; i < 1000; i++) ck_assert(pl_buf_printf(&b, "%d,", i));
    ck_assert(memcmp(b.data, "0,1,2,3,", 8) == 0);
    ck_assert_uint_eq(b.size, 10 * 2 + 90 * 3 + 900 * 4);
    size_t size = b.size;
    char *large = calloc(1, 100000);
    pl_alloc_fail_at(1);
    ck_assert(!pl_buf_add(&b, large, 100000));
    pl_alloc_fail_at(0);
    ck_assert(b.failed && b.size == size);
    ck_assert(!pl_buf_reserve(&b, SIZE_MAX));
    free(large);
    pl_buf_fini(&b);
    ck_assert(!b.data && !b.size && !b.cap && !b.failed);
}
END_TEST

START_TEST(a_map_agrees_with_a_plain_table)
{
    enum { KEYS = 500 };
    static bool there[KEYS];
    static uint64_t value[KEYS];
    memset(there, 0, sizeof there);
    pl_rng r;
    pl_rng_seed(&r, prop_seed(_i));
    pl_map m = {0};
    size_t n = 0;
    ck_assert(!pl_map_get(&m, PL_STR("x"), NULL) && !pl_map_remove(&m, PL_STR("x")));
    for (int step = 0; step < 20000; step++) {
        unsigned k = (unsigned)pl_rng_below(&r, KEYS);
        char text[64]; /* some keys are short, some longer than what an entry holds; key 0 is empty */
        int len = k ? snprintf(text, sizeof text, k % 2 ? "%u" : "a rather long key number %u", k) : 0;
        pl_str key = {text, (size_t)len};
        uint64_t got = 0;
        switch (pl_rng_below(&r, 3)) {
        case 0:
            ck_assert(pl_map_set(&m, key, (uint64_t)step));
            n += !there[k];
            there[k] = true;
            value[k] = (uint64_t)step;
            break;
        case 1:
            ck_assert(pl_map_remove(&m, key) == there[k]);
            n -= there[k];
            there[k] = false;
            break;
        default:
            ck_assert(pl_map_get(&m, key, &got) == there[k]);
            if (there[k]) ck_assert_uint_eq(got, value[k]);
        }
        ck_assert_uint_eq(pl_map_size(&m), n);
    }
    size_t at = 0, walked = 0;
    pl_str key;
    uint64_t v, again;
    while (pl_map_next(&m, &at, &key, &v)) {
        ck_assert(pl_map_get(&m, key, &again) && again == v);
        walked++;
    }
    ck_assert_uint_eq(walked, n);
    pl_map_fini(&m);
}
END_TEST

START_TEST(a_map_without_memory_keeps_what_it_has)
{
    pl_map m = {0};
    uint64_t refused = 0;
    for (int i = 0; i < 100; i++) {
        char text[64];
        pl_str key = {text, (size_t)snprintf(text, sizeof text, "a key that needs the heap, number %d", i)};
        for (uint64_t n = 1;; n++) {
            pl_alloc_fail_at(n);
            bool ok = pl_map_set(&m, key, (uint64_t)i);
            pl_alloc_fail_at(0);
            if (ok) break;
            refused++;
            ck_assert(!pl_map_get(&m, key, NULL));
        }
    }
    ck_assert_uint_ge(refused, 100);
    ck_assert_uint_eq(pl_map_size(&m), 100);
    pl_map_fini(&m);
}
END_TEST

Suite *memory_suite(void)
{
    Suite *s = suite_create("engine/base memory");
    TCase *t = tcase_create("memory");
    suite_add_tcase(s, t);
    tcase_add_test(t, the_chosen_allocation_fails_and_no_other);
    tcase_add_test(t, allocations_of_nothing_and_of_too_much);
    tcase_add_test(t, an_arena_reuses_its_chunks_after_a_reset);
    tcase_add_test(t, an_arena_without_memory_gives_null_and_stays_usable);
    tcase_add_test(t, a_buffer_grows_and_remembers_a_failure);
    tcase_add_loop_test(t, a_map_agrees_with_a_plain_table, 0, 4);
    tcase_add_test(t, a_map_without_memory_keeps_what_it_has);
    return s;
}
