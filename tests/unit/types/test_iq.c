/* The encoders of the IQ types: what they lose, what importance does, and input that is hard on a search. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/pool.h"
#include "engine/base/rng.h"
#include "engine/types/types.h"
#include "tests/fixtures/fixtures.h"

enum { N = 256, ROWS = 48 };

typedef struct kind {
    pl_type type;
    bool needs_imatrix;
    double alike, weighted; /* bounds of the errors */
} kind;

/* Bounds: about three percent above what was measured here. On Gaussian rows ggml's encoders (llama-cpp-python 0.3.36),
 * with all columns alike, lose 0.3425, 0.2985, 0.2639, 0.2126, 0.1664, 0.4854 and 0.4506. */
static const kind kinds[] = {
    {PL_TYPE_IQ2_XXS, true, 0.334, 0.244},  {PL_TYPE_IQ2_XS, true, 0.290, 0.211}, {PL_TYPE_IQ2_S, false, 0.243, 0.191},
    {PL_TYPE_IQ3_XXS, false, 0.181, 0.122}, {PL_TYPE_IQ3_S, false, 0.132, 0.096}, {PL_TYPE_IQ1_S, true, 0.454, 0.377},
    {PL_TYPE_IQ1_M, true, 0.421, 0.320},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static float x[ROWS * N], y[ROWS * N], w[N];
static uint8_t blocks[ROWS * N];

static void draw(uint64_t seed)
{
    pl_rng r;
    pl_rng_seed(&r, seed);
    for (int i = 0; i < ROWS * N; i++) x[i] = (float)pl_rng_gauss(&r);
    for (int i = 0; i < N; i++) w[i] = (float)exp(1.5 * pl_rng_gauss(&r));
}

/* The root of the mean square error of y, of all columns alike or weighted. */
static double error_of(bool weighted)
{
    double sum = 0, weights = 0;
    for (int i = 0; i < ROWS * N; i++) {
        double c = weighted ? (double)w[i % N] : 1;
        sum += c * (y[i] - x[i]) * (y[i] - x[i]);
        weights += c;
    }
    return sqrt(sum / weights);
}

START_TEST(encoding_loses_little)
{
    const kind *k = &kinds[_i];
    const pl_type_info *t = pl_type_get(k->type);
    ck_assert_int_eq(t->needs_imatrix, k->needs_imatrix);
    draw(5);
    t->from_float(x, blocks, ROWS * N);
    t->to_float(blocks, y, ROWS * N);
    double alike = error_of(false), before = error_of(true);
    t->from_float_imatrix(x, blocks, ROWS * N, N, w);
    t->to_float(blocks, y, ROWS * N);
    double weighted = error_of(true);
    fprintf(stderr, "%s %.4f, weighted %.4f, without importance %.4f\n", t->name, alike, weighted, before);
    ck_assert_double_le(alike, k->alike);
    ck_assert_double_le(weighted, k->weighted);
    ck_assert_double_le(weighted, 0.95 * before);
    ck_assert_double_le(alike, error_of(false)); /* nothing is for nothing */
}
END_TEST

START_TEST(what_a_block_holds_is_found_again)
{
    /* Random blocks with moderate scales, decoded and encoded: the search comes back to them, or near. */
    const pl_type_info *t = pl_type_get(kinds[_i].type);
    pl_rng r;
    pl_rng_seed(&r, 9);
    for (int i = 0; i < ROWS * (int)t->bytes; i++) blocks[i] = (uint8_t)pl_rng_u64(&r);
    for (int i = 0; i < ROWS; i++) {
        uint8_t *b = blocks + (size_t)i * t->bytes;
        if (kinds[_i].type == PL_TYPE_IQ1_M) { /* the half 0x3000 over four nibbles */
            for (int n = 0; n < 4; n++) b[49 + 2 * n] = (uint8_t)((b[49 + 2 * n] & 15) | (n == 3 ? 0x30 : 0));
        } else {
            pl_put_u16(b, 0x3000);
        }
    }
    t->to_float(blocks, x, ROWS * N);
    t->from_float(x, blocks, ROWS * N);
    t->to_float(blocks, y, ROWS * N);
    double squares = 0;
    for (int i = 0; i < ROWS * N; i++) squares += (double)x[i] * x[i];
    double lost = error_of(false) / sqrt(squares / (ROWS * N));
    fprintf(stderr, "%s %.4f\n", t->name, lost);
    ck_assert_double_le(lost, 0.05);
}
END_TEST

START_TEST(any_input_and_any_weights_are_borne)
{
    static const float hard[] = {0, -0.0f, 1e-45f, -1e-40f, 1e-7f, 1e30f, -3e38f, 65504, INFINITY, -INFINITY, NAN, 1};
    const pl_type_info *t = pl_type_get(kinds[_i].type);
    pl_rng r;
    pl_rng_seed(&r, prop_seed(_i));
    for (int round = 0; round < 60; round++) {
        uint64_t most = 1 + pl_rng_below(&r, 12), first = pl_rng_below(&r, 12);
        for (int i = 0; i < N; i++) {
            x[i] = hard[(first + pl_rng_below(&r, most)) % 12];
            w[i] = pl_rng_below(&r, 3) ? (float)pl_rng_f64(&r) : 0;
        }
        t->from_float(x, blocks, N); /* the sanitizer watches */
        t->from_float_imatrix(x, blocks, N, N, w);
        t->to_float(blocks, y, N);
    }
    /* Zero is exact, what is constant stays near, and columns without any weight are encoded all the same. */
    memset(x, 0, sizeof x);
    memset(w, 0, sizeof w);
    t->from_float_imatrix(x, blocks, N, N, w);
    t->to_float(blocks, y, N);
    for (int i = 0; i < N; i++) ck_assert_msg(y[i] == 0, "%s: zero became %g", t->name, y[i]);
    for (int sign = -1; sign <= 1; sign += 2) {
        for (int i = 0; i < N; i++) x[i] = (float)sign * 0.75f;
        t->from_float_imatrix(x, blocks, N, N, w);
        t->to_float(blocks, y, N);
        for (int i = 0; i < N; i++) ck_assert_msg(fabsf(y[i] - x[i]) < 0.02f, "%s: %g became %g", t->name, x[i], y[i]);
    }
}
END_TEST

static void encode_row(pl_team *team, int i_thread, int n_threads, void *user)
{
    (void)team;
    (void)n_threads;
    const pl_type_info *t = user;
    t->from_float(x, blocks + (size_t)i_thread * t->bytes, N);
}

START_TEST(threads_that_begin_at_once_make_the_same_bytes)
{
    /* In a process of its own, as Check runs it: nobody has made the grid's lists yet. */
    const pl_type_info *t = pl_type_get(kinds[_i].type);
    pl_pool *pool;
    draw(17);
    ck_assert_int_eq(pl_pool_new(&pool, (pl_pool_options){.n_threads = 4}, NULL), PL_OK);
    pl_pool_run(pool, encode_row, (void *)(uintptr_t)t);
    pl_pool_free(pool);
    for (int i = 1; i < 4; i++) ck_assert_mem_eq(blocks, blocks + (size_t)i * t->bytes, t->bytes);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("engine/types, IQ");
    TCase *t = tcase_create("encoders");
    tcase_set_timeout(t, 60);
    suite_add_tcase(s, t);
    tcase_add_loop_test(t, encoding_loses_little, 0, KINDS);
    tcase_add_loop_test(t, what_a_block_holds_is_found_again, 0, KINDS);
    tcase_add_loop_test(t, any_input_and_any_weights_are_borne, 0, KINDS);
    tcase_add_loop_test(t, threads_that_begin_at_once_make_the_same_bytes, 0, KINDS);
    return ck_run(s, NULL);
}
