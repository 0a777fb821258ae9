/* Errors, bytes, UTF-8, hashes, random numbers, log lines. */
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/base/bytes.h"
#include "engine/base/hash.h"
#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/base/reader.h"
#include "engine/base/rng.h"
#include "tests/unit/base/suites.h"

START_TEST(an_error_gathers_its_context_in_front)
{
    pl_error err = {0};
    ck_assert_int_eq(pl_fail(&err, PL_ERR_FORMAT, "bit %d", 7), PL_ERR_FORMAT);
    ck_assert_int_eq(pl_note(&err, PL_ERR_IO, "file %s", "x"), PL_ERR_IO);
    ck_assert_str_eq(err.text, "file x: bit 7");
    ck_assert_int_eq(err.status, PL_ERR_IO);
    char *large = malloc(5000);
    memset(large, 'y', 4999);
    large[4999] = 0;
    pl_note(&err, PL_ERR_IO, "%s", large);
    ck_assert_uint_eq(strlen(err.text), sizeof err.text - 1);
    free(large);
    ck_assert_int_eq(pl_fail(NULL, PL_ERR_AUTH, "x"), PL_ERR_AUTH);
    for (int s = 0; s < PL_STATUS_COUNT; s++) ck_assert_str_ne(pl_status_name((pl_status)s), "unknown");
    ck_assert_str_eq(pl_status_name((pl_status)999), "unknown");
}
END_TEST

START_TEST(a_reader_never_passes_its_end)
{
    uint8_t bytes[] = {1, 2, 3, 4, 5, 6, 7};
    pl_reader r = pl_reader_of((pl_bytes){bytes, sizeof bytes});
    ck_assert_uint_eq(pl_read_u32(&r), 0x04030201);
    ck_assert_uint_eq(pl_reader_left(&r), 3);
    ck_assert_uint_eq(pl_read_u32(&r), 0);
    ck_assert(r.bad);
    ck_assert_uint_eq(pl_read_u8(&r), 0); /* there is a byte, but a reader that failed gives nothing any more */
    ck_assert_uint_eq(pl_reader_left(&r), 0);
    r = pl_reader_of((pl_bytes){bytes, sizeof bytes});
    ck_assert_ptr_null(pl_read_bytes(&r, SIZE_MAX));
}
END_TEST

START_TEST(utf8_is_what_the_standard_says)
{
    static const struct {
        const char *text;
        size_t size, good;
    } cases[] = {
        {"", 0, 0},
        {"plain", 5, 5},
        {"a\0b", 3, 3},
        {"\xC2\x80\xDF\xBF", 4, 4},
        {"\xE0\xA0\x80\xEF\xBF\xBF", 6, 6},
        {"\xF0\x90\x80\x80\xF4\x8F\xBF\xBF", 8, 8},
        {"x\x80", 2, 1},     /* a continuation without a start */
        {"x\xC0\x80", 3, 1}, /* overlong */
        {"x\xC1\xBF", 3, 1},
        {"x\xE0\x9F\xBF", 4, 1},
        {"x\xF0\x8F\xBF\xBF", 5, 1},
        {"x\xED\xA0\x80", 4, 1}, /* a surrogate */
        {"\xED\x9F\xBF", 3, 3},
        {"x\xF4\x90\x80\x80", 5, 1}, /* above U+10FFFF */
        {"x\xF5\x80\x80\x80", 5, 1},
        {"x\xFF", 2, 1},
        {"xy\xE2\x82", 4, 2}, /* cut short */
        {"xy\xF0\x9F\x98", 5, 2},
        {"x\xE2\x28\xA1", 4, 1},
        {"x\xF0\x9F\x28\x80", 5, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        ck_assert_uint_eq(pl_utf8_valid_prefix((pl_str){cases[i].text, cases[i].size}), cases[i].good);
}
END_TEST

START_TEST(hashes_have_the_values_of_other_programs)
{
    /* BLAKE2b-256 of "abc" (Python's hashlib.blake2b(b"abc", digest_size=32)); XXH3-64 of nothing with seed 0 (xxhsum).
     */
    pl_hash h = pl_hash_of((pl_bytes){(const uint8_t *)"abc", 3}), parsed;
    char hex[2 * PL_HASH_SIZE + 1];
    pl_hash_hex(&h, hex);
    ck_assert_str_eq(hex, "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319");
    ck_assert(pl_hash_parse(pl_str_from(hex), &parsed) && pl_hash_eq(&h, &parsed));
    hex[3] = 'g';
    ck_assert(!pl_hash_parse(pl_str_from(hex), &parsed));
    ck_assert(!pl_hash_parse(PL_STR("bddd"), &parsed));
    pl_hasher s;
    pl_hasher_init(&s);
    pl_hasher_add(&s, (pl_bytes){(const uint8_t *)"a", 1});
    pl_hasher_add(&s, (pl_bytes){NULL, 0});
    pl_hasher_add(&s, (pl_bytes){(const uint8_t *)"bc", 2});
    parsed = pl_hasher_done(&s);
    ck_assert(pl_hash_eq(&h, &parsed));
    ck_assert_uint_eq(pl_checksum((pl_bytes){(const uint8_t *)"", 0}, 0), 0x2D06800538D394C2u);
    ck_assert_uint_ne(pl_checksum((pl_bytes){(const uint8_t *)"a", 1}, 0),
                      pl_checksum((pl_bytes){(const uint8_t *)"a", 1}, 1));
}
END_TEST

START_TEST(random_numbers_repeat_and_are_spread)
{
    pl_rng r;
    pl_rng_seed(&r, 0);
    /* xoshiro256** seeded by splitmix64(0), computed with the authors' C programs' definitions in Python. */
    ck_assert_uint_eq(pl_rng_u64(&r), 0x99EC5F36CB75F2B4u);
    ck_assert_uint_eq(pl_rng_u64(&r), 0xBF6E1F784956452Au);
    int counts[3] = {0};
    double sum = 0, squares = 0;
    for (int i = 0; i < 30000; i++) {
        counts[pl_rng_below(&r, 3)]++;
        double u = pl_rng_f64(&r), g = pl_rng_gauss(&r);
        ck_assert(u >= 0 && u < 1);
        sum += g;
        squares += g * g;
    }
    for (int i = 0; i < 3; i++) ck_assert_int_lt(abs(counts[i] - 10000), 400); /* five deviations */
    ck_assert(fabs(sum / 30000) < 0.03 && fabs(squares / 30000 - 1) < 0.05);
    ck_assert_uint_eq(pl_rng_below(&r, 1), 0);
    ck_assert_uint_ne(pl_random_seed(), pl_random_seed());
}
END_TEST

START_TEST(a_draw_depends_on_each_part_of_its_key)
{
    double d = pl_draw(1, 2, 3);
    ck_assert(d == pl_draw(1, 2, 3) && d >= 0 && d < 1);
    ck_assert(d != pl_draw(2, 2, 3) && d != pl_draw(1, 3, 3) && d != pl_draw(1, 2, 4) && d != pl_draw(3, 2, 1));
    double sum = 0;
    for (unsigned i = 0; i < 30000; i++) sum += pl_draw(42, 0, i);
    ck_assert(fabs(sum / 30000 - 0.5) < 0.01);
}
END_TEST

/* What pl_log writes when asked, as text. */
static void capture(pl_log_format format, char *out, size_t size, const char *value)
{
    int pipes[2], old = dup(STDERR_FILENO);
    ck_assert_int_eq(pipe(pipes), 0);
    dup2(pipes[1], STDERR_FILENO);
    pl_log_setup(PL_LOG_INFO, format);
    pl_log(PL_LOG_DEBUG, "not shown", "a=1");
    pl_log(PL_LOG_WARN, "link lost", "peer=%s n=%d rate=%.1f name=node-1 on=true", PL_Q(value), 7, 1.5);
    dup2(old, STDERR_FILENO);
    close(old);
    close(pipes[1]);
    ssize_t n = read(pipes[0], out, size - 1);
    close(pipes[0]);
    ck_assert_int_gt(n, 0);
    out[n] = 0;
}

START_TEST(a_log_line_is_one_line_whatever_it_says)
{
    char text[8192];
    capture(PL_LOG_TEXT, text, sizeof text, "x\n2026 error \"forged\x1B[0m\xFF");
    ck_assert_ptr_nonnull(strstr(
        text,
        "Z warn link lost peer=\"x\\u000a2026 error \\\"forged\\u001b[0m\\ufffd\" n=7 rate=1.5 name=node-1 on=true\n"));
    ck_assert_ptr_eq(strchr(text, '\n'), text + strlen(text) - 1);
    capture(PL_LOG_JSON, text, sizeof text, "x\n\"y\" \\ \xC3\xA9");
    pl_json *j;
    pl_error err = {0};
    ck_ok(pl_json_parse(&j, pl_str_from(text), &err), err);
    ck_assert(pl_str_is(pl_json_str(pl_json_get(j, "peer")), "x\n\"y\" \\ \xC3\xA9"));
    ck_assert(pl_str_is(pl_json_str(pl_json_get(j, "level")), "warn"));
    ck_assert(pl_str_is(pl_json_str(pl_json_get(j, "name")), "node-1"));
    ck_assert_int_eq(pl_json_i64(pl_json_get(j, "n")), 7);
    ck_assert(pl_json_is_true(pl_json_get(j, "on")));
    pl_json_free(j);
    pl_log_level level;
    ck_assert(pl_log_level_parse("debug", &level) && level == PL_LOG_DEBUG && !pl_log_level_parse("loud", &level));
    char *large = malloc(20000);
    memset(large, 'z', 19999);
    large[19999] = 0;
    ck_assert_uint_lt(strlen(pl_log_quote(large)), 512);
    free(large);
}
END_TEST

Suite *text_suite(void)
{
    Suite *s = suite_create("engine/base text");
    TCase *t = tcase_create("text");
    suite_add_tcase(s, t);
    tcase_add_test(t, an_error_gathers_its_context_in_front);
    tcase_add_test(t, a_reader_never_passes_its_end);
    tcase_add_test(t, utf8_is_what_the_standard_says);
    tcase_add_test(t, hashes_have_the_values_of_other_programs);
    tcase_add_test(t, random_numbers_repeat_and_are_spread);
    tcase_add_test(t, a_draw_depends_on_each_part_of_its_key);
    tcase_add_test(t, a_log_line_is_one_line_whatever_it_says);
    return s;
}
