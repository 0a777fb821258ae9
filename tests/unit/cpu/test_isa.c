/* The choice of an instruction set, and what the backend says of itself. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/alloc.h"
#include "engine/cpu/cpu.h"
#include "engine/cpu/isa.h"

Suite *isa_suite(void);

START_TEST(a_level_includes_those_that_it_stands_on)
{
    unsigned isa = pl_isa_detect();
    if (isa & PL_ISA_AVX2) ck_assert(isa & PL_ISA_SSE42);
    if (isa & PL_ISA_AVX512) ck_assert(isa & PL_ISA_AVX2);
    if (isa & PL_ISA_AVX512_VNNI) ck_assert(isa & PL_ISA_AVX512);
    if (isa & PL_ISA_AVX512_VBMI) ck_assert(isa & PL_ISA_AVX512_VNNI);
    if (isa & PL_ISA_I8MM) ck_assert(isa & PL_ISA_DOTPROD);
    if (isa & PL_ISA_DOTPROD) ck_assert(isa & PL_ISA_NEON);
    ck_assert_str_eq(pl_isa_name(PL_ISA_PORTABLE), "portable");
    pl_isa flags;
    const char *word;
    int n = 0;
    for (; pl_isa_level(n, &flags, &word); n++) ck_assert_str_eq(pl_isa_name(flags), word);
    ck_assert_int_gt(n, 3);
    ck_assert(!pl_isa_level(-1, &flags, &word));
}
END_TEST

START_TEST(the_environment_lowers_the_set_and_never_raises_it)
{
    unsigned have = pl_isa_detect();
    pl_isa level, isa;
    const char *word;
    for (int i = 0; pl_isa_level(i, &level, &word); i++) {
        pl_error err = {0};
        setenv("PACELINE_ISA", word, 1);
        ck_assert_int_eq(pl_isa_choose(&isa, &err), PL_OK);
        ck_assert_uint_eq((unsigned)isa, have & (unsigned)level);
        if ((have & level) == (unsigned)level) ck_assert_str_eq(pl_cpu_isa_name(), word);
    }
    unsetenv("PACELINE_ISA");
    ck_assert_int_eq(pl_isa_choose(&isa, NULL), PL_OK);
    ck_assert_uint_eq((unsigned)isa, have);
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
    ck_assert_ptr_nonnull(strstr(err.text, "portable, "));
    ck_assert_ptr_nonnull(strstr(err.text, pl_isa_name(pl_isa_detect())));
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
    tcase_add_test(c, a_level_includes_those_that_it_stands_on);
    tcase_add_test(c, the_environment_lowers_the_set_and_never_raises_it);
    tcase_add_test(c, an_unknown_word_is_refused_with_the_known_ones);
    tcase_add_test(c, buffers_are_aligned_and_zero_and_missing_memory_is_a_status);
    suite_add_tcase(s, c);
    return s;
}
