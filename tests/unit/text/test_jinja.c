/* The interpreter against jinja2, by values that tests/golden/jinja.py made. */
#include "engine/text/jinja.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/alloc.h"
#include "engine/base/file.h"
#include "engine/base/hash.h"
#include "engine/text/chat.h"
#include "tests/fixtures/fixtures.h"
#include "tests/unit/text/suites.h"

static pl_json *read_json(const char *path)
{
    pl_buf text = {0};
    pl_json *j;
    pl_error err = {0};
    ck_ok(pl_file_read(&text, path, 1 << 24, &err), err);
    ck_ok(pl_json_parse(&j, pl_buf_str(&text), &err), err);
    pl_buf_fini(&text);
    return j;
}

/* The time that the goldens were made at: 2026-01-01, 00:00 UTC. */
static const pl_jinja_limits golden_limits = {.now_us = 1767225600000000};

static pl_status render(pl_str source, const pl_json *vars, const pl_jinja_limits *limits, pl_buf *out, pl_error *err)
{
    pl_jinja *t;
    PL_TRY(pl_jinja_open(&t, source, err));
    pl_status s = pl_jinja_render(t, vars, limits, out, err);
    pl_jinja_close(t);
    return s;
}

START_TEST(small_templates_render_as_jinja2_does)
{
    pl_json *all = read_json(GOLDEN_DIR "/jinja_small.json");
    int failed = 0;
    ck_assert_uint_gt(pl_json_size(all), 40);
    for (size_t i = 0; i < pl_json_size(all); i++) {
        pl_json *entry = pl_json_at(all, i), *expected = pl_json_get(entry, "expected");
        pl_str source = pl_json_str(pl_json_get(entry, "template"));
        pl_buf out = {0};
        pl_error err = {0};
        pl_status s = render(source, pl_json_get(entry, "vars"), &golden_limits, &out, &err);
        bool refused = pl_json_type(expected) == PL_JSON_NULL;
        if (refused ? s == PL_OK : s != PL_OK || !pl_str_eq(pl_buf_str(&out), pl_json_str(expected))) {
            failed++;
            printf("template: %.*s\nexpected: %.*s\ngot:      %.*s%s\n", PL_STR_ARG(source),
                   refused ? 5 : (int)pl_json_str(expected).size, refused ? "error" : pl_json_str(expected).data,
                   PL_STR_ARG(pl_buf_str(&out)), s == PL_OK ? "" : err.text);
        }
        if (refused) {
            ck_says(err, "line ");
            ck_says(err, "column ");
            ck_assert_uint_eq(out.size, 0);
        }
        pl_buf_fini(&out);
    }
    pl_json_free(all);
    ck_assert_msg(failed == 0, "%d templates differ", failed);
}
END_TEST

START_TEST(real_templates_render_as_jinja2_does)
{
    char line[300];
    if (!test_data("models/chat-templates/Qwen3-Coder.jinja")) return;
    pl_json *cases = read_json(GOLDEN_DIR "/jinja_cases.json");
    FILE *f = fopen(GOLDEN_DIR "/jinja_expected.txt", "r");
    ck_assert_ptr_nonnull(f);
    int n = 0, failed = 0;
    while (fgets(line, sizeof line, f)) {
        char file[160], name[40], size[20], hex[80], got_hex[2 * PL_HASH_SIZE + 1], with_folder[200];
        ck_assert_int_eq(sscanf(line, "%159s %39s %19s %79s", file, name, size, hex), 4);
        snprintf(with_folder, sizeof with_folder, "models/chat-templates/%s", file);
        pl_buf source = {0}, out = {0};
        pl_error err = {0};
        const char *path = test_data(with_folder);
        if (!path) continue;
        ck_ok(pl_file_read(&source, path, 1 << 20, &err), err);
        pl_json *vars = NULL;
        for (size_t i = 0; i < pl_json_size(cases); i++) {
            if (pl_str_is(pl_json_str(pl_json_get(pl_json_at(cases, i), "name")), name))
                vars = pl_json_get(pl_json_at(cases, i), "vars");
        }
        ck_assert_ptr_nonnull(vars);
        pl_json_set(vars, "bos_token", pl_json_string(PL_STR("<s>")));
        pl_json_set(vars, "eos_token", pl_json_string(PL_STR("</s>")));
        pl_status s = render(pl_buf_str(&source), vars, &golden_limits, &out, &err);
        pl_hash h = pl_hash_of(pl_buf_bytes(&out));
        pl_hash_hex(&h, got_hex);
        if (strcmp(size, "error") == 0 ? s != PL_ERR_INVALID : s != PL_OK || strcmp(hex, got_hex) != 0) {
            failed++;
            printf("%s, case %s: expected %s bytes, got %zu%s%s\n", file, name, size, out.size, s == PL_OK ? "" : ": ",
                   s == PL_OK ? "" : err.text);
            const char *dump = getenv("JINJA_DUMP"); /* a folder to compare with what the script's DUMP wrote */
            if (dump && s == PL_OK) {
                char to[1000];
                snprintf(to, sizeof to, "%s/%s.%s", dump, file, name);
                ck_ok(pl_file_write(to, pl_buf_bytes(&out), 0644, &err), err);
            }
        }
        n++;
        pl_buf_fini(&source);
        pl_buf_fini(&out);
    }
    fclose(f);
    pl_json_free(cases);
    ck_assert_msg(failed == 0, "%d of %d differ", failed, n);
    ck_assert_int_ge(n, 400);
}
END_TEST

static void refused(const char *source, const pl_jinja_limits *limits, pl_status want, const char *says)
{
    pl_buf out = {0};
    pl_error err = {0};
    pl_buf_add_str(&out, PL_STR("before"));
    ck_status(render(pl_str_from(source), NULL, limits, &out, &err), want, err);
    ck_says(err, says);
    ck_assert_str_eq(pl_buf_cstr(&out), "before");
    pl_buf_fini(&out);
}

START_TEST(errors_name_line_and_column)
{
    refused("a\n b {{ 1 + }}", NULL, PL_ERR_FORMAT, "line 2, column 11");
    refused("a\n\n {{ x.y }}", NULL, PL_ERR_INVALID, "line 3, column 6: 'x' is undefined");
    refused("{{ raise_exception('go away') }}", NULL, PL_ERR_INVALID, "go away");
    refused("{{ 'x", NULL, PL_ERR_FORMAT, "line 1, column 4: the string has no end");
    refused("x{% if 1 %}", NULL, PL_ERR_FORMAT, "endif");
    refused("{% for x in y %}{% endif %}", NULL, PL_ERR_FORMAT, "endif");
    refused("{# x", NULL, PL_ERR_FORMAT, "comment");
    refused("{% raw %}x", NULL, PL_ERR_FORMAT, "raw");
    refused("{{ (1 }}", NULL, PL_ERR_FORMAT, "bracket");
    refused("{{ 99999999999999999999 }}", NULL, PL_ERR_FORMAT, "64 bits");
    refused("{{ 9223372036854775807 + 1 }}", NULL, PL_ERR_INVALID, "64 bits");
    refused("{% include 'x' %}", NULL, PL_ERR_UNSUPPORTED, "include");
    refused("{{ 1 | pprint }}", NULL, PL_ERR_UNSUPPORTED, "pprint");
    refused("{{ 1 is weird }}", NULL, PL_ERR_UNSUPPORTED, "weird");
    refused("{% break %}", NULL, PL_ERR_FORMAT, "loop");
    refused("\xff", NULL, PL_ERR_FORMAT, "UTF-8");
}
END_TEST

START_TEST(what_would_never_end_or_fill_memory_is_stopped)
{
    pl_jinja_limits small = {.steps = 100000, .memory = 1 << 20, .output = 1 << 16};
    refused("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", &small, PL_ERR_BUDGET,
            "");
    refused("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", NULL, PL_ERR_BUDGET, "deep");
    refused("{{ 'x' * 999999999 }}", NULL, PL_ERR_BUDGET, "bytes");
    refused("{{ 'x' * 9223372036854775807 * 9 }}", NULL, PL_ERR_BUDGET, "bytes");
    refused("{{ [0] * 999999999 }}", NULL, PL_ERR_BUDGET, "");
    refused("{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}", NULL,
            PL_ERR_BUDGET, "");
    refused("{% for i in range(9999) %}{{ 'x' * 100 }}{% endfor %}", &small, PL_ERR_BUDGET, "writes more");
    refused("{{ 'x'.center(99999999) }}", NULL, PL_ERR_BUDGET, "width");
    refused("{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
            NULL, PL_ERR_BUDGET, "");

    refused("{{ 1 }}", &(pl_jinja_limits){.steps = 1}, PL_ERR_BUDGET, "steps");
    static char nested[60000];
    for (int kind = 0; kind < 4; kind++) {
        static const char *const units[] = {"(", "[", "- ", "not "};
        strcpy(nested, "{{ ");
        size_t k = strlen(units[kind]);
        for (int i = 0; i < 10000; i++) memcpy(nested + 3 + (size_t)i * k, units[kind], k);
        nested[3 + 10000 * k] = 0;
        refused(nested, NULL, PL_ERR_FORMAT, "");
    }
}
END_TEST

START_TEST(no_memory_at_any_allocation_is_an_error_of_the_template)
{
    static const char source[] = "{% macro m(a) %}{{ a | tojson }}{% endmacro %}{% for x in v %}{{ m(x) }}{{ [1, x] | "
                                 "join(',') | upper }}{% endfor %}";
    pl_json *vars;
    pl_error err = {0};
    ck_ok(pl_json_parse(&vars, PL_STR("{\"v\": [{\"a\": 1}, \"x\", [2.5]]}"), &err), err);
    bool done = false;
    for (uint64_t n = 1; n < 1000 && !done; n++) {
        pl_buf out = {0};
        pl_alloc_fail_at(n);
        pl_status s = render(PL_STR(source), vars, NULL, &out, &err);
        pl_alloc_fail_at(0);
        done = s == PL_OK;
        if (!done)
            ck_status(s, PL_ERR_NO_MEMORY, err);
        else
            ck_assert_str_eq(pl_buf_cstr(&out), "{\"a\": 1}1,{'A': 1}\"x\"1,X[2.5]1,[2.5]");
        pl_buf_fini(&out);
    }
    ck_assert(done);
    pl_json_free(vars);
}
END_TEST

START_TEST(a_chat_gets_its_messages_tokens_and_extra_variables)
{
    pl_chat *c;
    pl_error err = {0};
    pl_buf out = {0};
    pl_json *messages, *extra;
    ck_ok(pl_chat_open(&c,
                       PL_STR("{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m.content }}{{ eos_token }}{% "
                              "endfor %}{{ x }}{% if add_generation_prompt %}>{% endif %}"),
                       PL_STR("<s>"), PL_STR("</s>"), &err),
          err);
    ck_ok(pl_json_parse(&messages, PL_STR("[{\"role\":\"user\",\"content\":\"hi\"}]"), &err), err);
    ck_ok(pl_json_parse(&extra, PL_STR("{\"x\":7,\"bos_token\":\"no\"}"), &err), err);
    ck_ok(pl_chat_render(c, messages, extra, true, &out, &err), err);
    ck_assert_str_eq(pl_buf_cstr(&out), "<s>user:hi</s>7>");
    pl_buf_reset(&out);
    ck_ok(pl_chat_render(c, messages, NULL, false, &out, &err), err);
    ck_assert_str_eq(pl_buf_cstr(&out), "<s>user:hi</s>");
    ck_status(pl_chat_render(c, extra, NULL, false, &out, &err), PL_ERR_INVALID, err);
    pl_chat_close(c);
    ck_ok(pl_chat_open(&c, PL_STR("{{ raise_exception('Roles must alternate') }}"), PL_STR(""), PL_STR(""), &err), err);
    ck_status(pl_chat_render(c, messages, NULL, false, &out, &err), PL_ERR_INVALID, err);
    ck_says(err, "Roles must alternate");
    pl_chat_close(c);
    ck_status(pl_chat_open(&c, PL_STR("{{"), PL_STR(""), PL_STR(""), &err), PL_ERR_FORMAT, err);
    ck_assert_ptr_null(c);
    pl_json_free(messages);
    pl_json_free(extra);
    pl_buf_fini(&out);
}
END_TEST

Suite *jinja_suite(void)
{
    Suite *s = suite_create("jinja");
    TCase *t = tcase_create("jinja");
    setenv("TZ", "UTC", 1); /* strftime_now gives local time */
    tzset();
    tcase_add_test(t, small_templates_render_as_jinja2_does);
    tcase_add_test(t, real_templates_render_as_jinja2_does);
    tcase_add_test(t, errors_name_line_and_column);
    tcase_add_test(t, what_would_never_end_or_fill_memory_is_stopped);
    tcase_add_test(t, no_memory_at_any_allocation_is_an_error_of_the_template);
    tcase_add_test(t, a_chat_gets_its_messages_tokens_and_extra_variables);
    suite_add_tcase(s, t);
    return s;
}
