/* As much of Check's interface as the CPU's suites need, so that they run where that library is not built: cross-compiled, under an
 * emulator. Tests run one after the other in one process, the first failure ends it. PACELINE_CHECK_STEP=n takes every n-th pass of
 * a loop test, because an emulator is slow. */
#pragma once

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct TTest {
    const char *name;
    void (*fn)(int _i);
} TTest;

typedef struct TCase {
    struct {
        const TTest *test;
        int first, end;
    } tests[64];
    void (*setup)(void);
    int n;
} TCase;

typedef struct Suite {
    const char *name;
    TCase cases[8];
    int n;
} Suite;

typedef struct SRunner {
    Suite *suites[8];
    int n;
} SRunner;

enum { CK_ENV };

#define START_TEST(name)                                                                                               \
    static void name##_run(int _i);                                                                                    \
    static const TTest name##_test = {#name, name##_run};                                                              \
    static const TTest *const name = &name##_test;                                                                     \
    static void name##_run(__attribute__((unused)) int _i)
#define END_TEST

#define ck_abort_msg(...) (fprintf(stderr, "%s:%d: ", __FILE__, __LINE__), fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), exit(1))
#define ck_assert_msg(cond, ...) ((cond) ? (void)0 : ck_abort_msg(__VA_ARGS__))
#define ck_assert(cond)          ck_assert_msg(cond, "not so: %s", #cond)

#define ck_assert_int_eq(a, b)                  ck_assert((a) == (b))
#define ck_assert_int_ne(a, b)                  ck_assert((a) != (b))
#define ck_assert_int_lt(a, b)                  ck_assert((a) < (b))
#define ck_assert_int_le(a, b)                  ck_assert((a) <= (b))
#define ck_assert_int_gt(a, b)                  ck_assert((a) > (b))
#define ck_assert_int_ge(a, b)                  ck_assert((a) >= (b))
#define ck_assert_uint_eq(a, b)                 ck_assert((a) == (b))
#define ck_assert_uint_ne(a, b)                 ck_assert((a) != (b))
#define ck_assert_uint_lt(a, b)                 ck_assert((a) < (b))
#define ck_assert_uint_le(a, b)                 ck_assert((a) <= (b))
#define ck_assert_uint_gt(a, b)                 ck_assert((a) > (b))
#define ck_assert_float_eq(a, b)                ck_assert((a) == (b))
#define ck_assert_double_le(a, b)               ck_assert((a) <= (b))
#define ck_assert_double_lt(a, b)               ck_assert((a) < (b))
#define ck_assert_double_ge(a, b)               ck_assert((a) >= (b))
#define ck_assert_double_eq_tol(a, b, tol)      ck_assert(fabs((double)(a) - (double)(b)) <= (tol))
#define ck_assert_ptr_eq(a, b)                  ck_assert((a) == (b))
#define ck_assert_ptr_ne(a, b)                  ck_assert((a) != (b))
#define ck_assert_ptr_null(a)                   ck_assert((a) == NULL)
#define ck_assert_ptr_nonnull(a)                ck_assert((a) != NULL)
#define ck_assert_str_eq(a, b)                  ck_assert(strcmp(a, b) == 0)
#define ck_assert_mem_eq(a, b, n)               ck_assert(memcmp(a, b, n) == 0)
#define ck_assert_mem_ne(a, b, n)               ck_assert(memcmp(a, b, n) != 0)

static inline Suite *suite_create(const char *name)
{
    Suite *s = calloc(1, sizeof *s);
    s->name = name;
    return s;
}
static inline TCase *tcase_create(const char *name)
{
    (void)name;
    return calloc(1, sizeof(TCase));
}
static inline void tcase_set_timeout(TCase *c, double s)
{
    (void)c;
    (void)s;
}
static inline void tcase_add_checked_fixture(TCase *c, void (*setup)(void), void (*teardown)(void))
{
    (void)teardown;
    c->setup = setup;
}
static inline void tcase_add_loop_test(TCase *c, const TTest *t, int first, int end)
{
    c->tests[c->n].test = t;
    c->tests[c->n].first = first;
    c->tests[c->n++].end = end;
}
static inline void tcase_add_test(TCase *c, const TTest *t) { tcase_add_loop_test(c, t, 0, 1); }
/* A test that has to end by a signal needs a process of its own. */
static inline void tcase_add_test_raise_signal(TCase *c, const TTest *t, int signal)
{
    (void)c;
    (void)t;
    (void)signal;
}
static inline void suite_add_tcase(Suite *s, TCase *c) { s->cases[s->n++] = *c; }
static inline SRunner *srunner_create(Suite *s)
{
    SRunner *r = calloc(1, sizeof *r);
    r->suites[r->n++] = s;
    return r;
}
static inline void srunner_add_suite(SRunner *r, Suite *s) { r->suites[r->n++] = s; }
static inline void srunner_run_all(SRunner *r, int how)
{
    const char *word = getenv("PACELINE_CHECK_STEP");
    int step = word ? atoi(word) : 1, n = 0;
    (void)how;
    for (int s = 0; s < r->n; s++)
        for (int c = 0; c < r->suites[s]->n; c++) {
            TCase *of = &r->suites[s]->cases[c];
            for (int t = 0; t < of->n; t++)
                for (int i = of->tests[t].first; i < of->tests[t].end; i += step, n++) {
                    if (of->setup) of->setup();
                    of->tests[t].test->fn(i);
                }
        }
    printf("100%%: Checks: %d, Failures: 0, Errors: 0\n", n);
}
static inline int srunner_ntests_failed(SRunner *r)
{
    (void)r;
    return 0;
}
static inline void srunner_free(SRunner *r) { (void)r; }
