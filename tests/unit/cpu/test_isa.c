/* The choice of an instruction set, and what the backend says of itself. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/alloc.h"
#include "engine/cpu/cpu.h"
#include "engine/cpu/isa.h"

Suite *isa_suite(void);

START_TEST(a_set_includes_those_below_it)
{
    unsigned isa = pl_isa_detect();
    if (isa & PL_ISA_AVX512) ck_assert(isa & PL_ISA_AVX2);
    if (isa & PL_ISA_AVX512_VNNI) ck_assert(isa & PL_ISA_AVX512);
    if (isa & PL_ISA_AVX512_VBMI) ck_assert(isa & PL_ISA_AVX512_VNNI);
    ck_assert_str_eq(pl_isa_name(PL_ISA_PORTABLE), "portable");
    ck_assert_str_eq(pl_isa_name((pl_isa)(PL_ISA_AVX2 | PL_ISA_AVX512)), "avx512");
}
END_TEST

START_TEST(the_environment_lowers_the_set_and_never_raises_it)
{
    static const char *const words[] = {"portable", "avx2", "avx512", "avx512vnni", "avx512vbmi"};
    unsigned before = 0, have = pl_isa_detect();
    for (int i = 0; i < 5; i++) {
        pl_isa isa;
        pl_error err = {0};
        setenv("PACELINE_ISA", words[i], 1);
        ck_assert_int_eq(pl_isa_choose(&isa, &err), PL_OK);
        ck_assert_uint_eq((unsigned)isa & ~have, 0);
        ck_assert_uint_eq(before & ~(unsigned)isa, 0);
        if (have == 15) ck_assert_str_eq(pl_cpu_isa_name(), words[i]);
        before = isa;
    }
    ck_assert_uint_eq(before, have);
    unsetenv("PACELINE_ISA");
}
END_TEST

START_TEST(an_unknown_word_is_refused_with_the_known_ones)
{
    pl_pool *pool;
    pl_backend *b;
    pl_error err = {0};
    ck_assert_int_eq(pl_pool_new(&pool, (pl_pool_options){.n_threads = 1}, &err), PL_OK);
    setenv("PACELINE_ISA", "sse9", 1);
    ck_assert_int_eq(pl_cpu_backend_new(&b, pool, &err), PL_ERR_INVALID);
    unsetenv("PACELINE_ISA");
    ck_assert_ptr_null(b);
    ck_assert_ptr_nonnull(strstr(err.text, "sse9"));
    ck_assert_ptr_nonnull(strstr(err.text, "avx512vbmi"));
    pl_pool_free(pool);
}
END_TEST

START_TEST(buffers_are_aligned_and_zero_and_missing_memory_is_a_status)
{
    pl_pool *pool;
    pl_backend *b;
    pl_error err = {0};
    ck_assert_int_eq(pl_pool_new(&pool, (pl_pool_options){.n_threads = 1}, &err), PL_OK);
    pl_alloc_fail_at(1);
    ck_assert_int_eq(pl_cpu_backend_new(&b, pool, &err), PL_ERR_NO_MEMORY);
    pl_alloc_fail_at(0);
    ck_assert_int_eq(pl_cpu_backend_new(&b, pool, &err), PL_OK);
    for (size_t size = 0; size < 9u << 20; size = size * 5 + 1) {
        pl_backend_buffer *buf;
        for (uint64_t n = 1; n < 3; n++) {
            pl_alloc_fail_at(n);
            ck_assert_int_eq(b->vt->buffer_new(b, size, &buf, &err), PL_ERR_NO_MEMORY);
            ck_assert_ptr_null(buf);
        }
        pl_alloc_fail_at(0);
        ck_assert_int_eq(b->vt->buffer_new(b, size, &buf, &err), PL_OK);
        uint8_t *p = b->vt->buffer_base(buf);
        ck_assert_uint_eq((uintptr_t)p % b->alignment, 0);
        for (size_t i = 0; i < size; i++)
            if (p[i]) ck_abort_msg("byte %zu of %zu is %d", i, size, p[i]);
        b->vt->buffer_free(b, buf);
    }
    uint64_t available, total;
    b->vt->memory(b, &available, &total);
    ck_assert(available > 0 && available <= total);
    ck_assert_str_eq(b->vt->profile(b), "ieee-fma-1");
    b->vt->free(b);
    pl_pool_free(pool);
}
END_TEST

Suite *isa_suite(void)
{
    Suite *s = suite_create("isa");
    TCase *c = tcase_create("isa");
    tcase_add_test(c, a_set_includes_those_below_it);
    tcase_add_test(c, the_environment_lowers_the_set_and_never_raises_it);
    tcase_add_test(c, an_unknown_word_is_refused_with_the_known_ones);
    tcase_add_test(c, buffers_are_aligned_and_zero_and_missing_memory_is_a_status);
    suite_add_tcase(s, c);
    return s;
}
