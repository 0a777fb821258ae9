#include <math.h>
#include <stdlib.h>

#include "engine/base/alloc.h"
#include "engine/base/json.h"
#include "tests/unit/base/suites.h"

START_TEST(text_survives_a_round_trip)
{
    static const char *const texts[] = {
        "null",
        "true",
        "-9223372036854775808",
        "0.1",
        "1e+300",
        "2.0",
        "\"\"",
        "[]",
        "{}",
        "[1,2,[3,{\"a\":null}]]",
        "{\"z\":1,\"a\":2,\"m\":{\"k\":[true,false]}}",
        "\"a\\\"b\\\\c\\n\\t\\u0001\"",
        "\"\xC3\xA9 \xF0\x9F\x98\x80\"",
        "\"\\u0000x\"",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        pl_json *j;
        pl_error err = {0};
        pl_buf out = {0};
        ck_ok(pl_json_parse(&j, pl_str_from(texts[i]), &err), err);
        ck_ok(pl_json_write(j, 0, &out, &err), err);
        ck_assert_str_eq(pl_buf_cstr(&out), texts[i]);
        pl_json_free(j);
        pl_buf_fini(&out);
    }
}
END_TEST

START_TEST(what_is_not_json_is_refused_with_its_place)
{
    static const char *const texts[] = {
        "",
        " ",
        "{",
        "[1,]",
        "{\"a\":1,\"a\":2}",
        "1 2",
        "nul",
        "\"\xFF\"",
        "\"\xED\xA0\x80\"",
        "01",
        "[1",
        "{a:1}",
        "99999999999999999999",
        "'x'",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        pl_json *j;
        pl_error err = {0};
        ck_status(pl_json_parse(&j, pl_str_from(texts[i]), &err), PL_ERR_FORMAT, err);
        ck_assert_ptr_null(j);
        ck_says(err, "line ");
    }
}
END_TEST

START_TEST(depth_is_bounded)
{
    for (size_t depth = 512; depth <= 513; depth++) {
        char *text = malloc(2 * depth);
        memset(text, '[', depth);
        memset(text + depth, ']', depth);
        pl_json *j;
        pl_error err = {0};
        pl_buf out = {0};
        ck_status(pl_json_parse(&j, (pl_str){text, 2 * depth}, &err), depth == 512 ? PL_OK : PL_ERR_FORMAT, err);
        if (j) ck_ok(pl_json_write(j, 1, &out, &err), err);
        pl_json_free(j);
        pl_buf_fini(&out);
        free(text);
    }
    pl_json *j;
    pl_error err = {0};
    char quoted[2000];
    memset(quoted, '[', sizeof quoted);
    quoted[0] = quoted[sizeof quoted - 1] = '"';
    ck_ok(pl_json_parse(&j, (pl_str){quoted, sizeof quoted}, &err), err);
    pl_json_free(j);
}
END_TEST

START_TEST(values_of_the_wrong_kind_read_as_nothing)
{
    pl_json *j;
    pl_error err = {0};
    ck_ok(pl_json_parse(&j, PL_STR("{\"s\":\"x\",\"i\":3,\"r\":0.5,\"l\":[7]}"), &err), err);
    ck_assert(pl_json_i64(pl_json_get(j, "s")) == 0 && pl_json_str(pl_json_get(j, "i")).size == 0 &&
              pl_json_f64(pl_json_get(j, "i")) == 3);
    ck_assert(pl_json_f64(pl_json_get(j, "r")) == 0.5 && pl_json_i64(pl_json_get(j, "r")) == 0);
    ck_assert(pl_json_i64(pl_json_at(pl_json_get(j, "l"), 0)) == 7 && !pl_json_at(pl_json_get(j, "l"), 1) &&
              !pl_json_at(j, 0));
    ck_assert(!pl_json_get(j, "absent") && !pl_json_get(NULL, "x") && pl_json_type(NULL) == PL_JSON_NULL &&
              !pl_json_get(pl_json_get(j, "l"), "x"));
    ck_assert(pl_json_size(j) == 4 && pl_json_size(pl_json_get(j, "l")) == 1 && pl_json_size(pl_json_get(j, "s")) == 0);
    void *iter = NULL;
    pl_str key;
    pl_json *v;
    const char *order[] = {"s", "i", "r", "l"};
    for (int i = 0; i < 4; i++) ck_assert(pl_json_next(j, &iter, &key, &v) && pl_str_is(key, order[i]));
    ck_assert(!pl_json_next(j, &iter, &key, &v));
    pl_json_free(j);
}
END_TEST

static pl_json *build(void)
{
    pl_json *o = pl_json_object(), *l = pl_json_array();
    bool ok = pl_json_append(l, pl_json_int(1)) && pl_json_append(l, pl_json_real(NAN)) &&
              pl_json_append(l, pl_json_real(0.25));
    ok = pl_json_set(o, "list", l) && ok;
    ok = ok && pl_json_set(o, "text", pl_json_string((pl_str){"a\xFF\xC3", 3})) &&
         pl_json_set(o, "flag", pl_json_bool(true)) && pl_json_set(o, "none", pl_json_null());
    if (ok) return o;
    pl_json_free(o);
    return NULL;
}

START_TEST(values_are_built_and_made_presentable)
{
    pl_error err = {0};
    pl_buf out = {0};
    pl_json *o;
    uint64_t n = 1;
    for (;; n++) { /* and every allocation on the way may fail */
        pl_alloc_fail_at(n);
        o = build();
        pl_alloc_fail_at(0);
        if (o) break;
    }
    ck_assert_uint_gt(n, 5);
    ck_ok(pl_json_write(o, 0, &out, &err), err);
    ck_assert_str_eq(pl_buf_cstr(&out),
                     "{\"list\":[1,null,0.25],\"text\":\"a\xEF\xBF\xBD\xEF\xBF\xBD\",\"flag\":true,\"none\":null}");
    pl_buf_reset(&out);
    ck_ok(pl_json_write(pl_json_get(o, "list"), 2, &out, &err), err);
    ck_assert_str_eq(pl_buf_cstr(&out), "[\n  1,\n  null,\n  0.25\n]");
    pl_json_free(o);
    pl_buf_fini(&out);
    for (n = 1;; n++) {
        pl_json *j;
        pl_alloc_fail_at(n);
        pl_status s = pl_json_parse(&j, PL_STR("{\"a\":[1,\"x\",{\"b\":2.5}]}"), &err);
        pl_alloc_fail_at(0);
        pl_json_free(j);
        if (s == PL_OK) break;
        ck_assert_ptr_null(j);
    }
}
END_TEST

Suite *json_suite(void)
{
    Suite *s = suite_create("engine/base json");
    TCase *t = tcase_create("json");
    suite_add_tcase(s, t);
    tcase_add_test(t, text_survives_a_round_trip);
    tcase_add_test(t, what_is_not_json_is_refused_with_its_place);
    tcase_add_test(t, depth_is_bounded);
    tcase_add_test(t, values_of_the_wrong_kind_read_as_nothing);
    tcase_add_test(t, values_are_built_and_made_presentable);
    return s;
}
