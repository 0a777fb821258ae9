/* Schemas as grammars, against what an independent validator said (tests/golden/schema.py). */
#include "engine/sample/json_schema.h"

#include <string.h>

#include "engine/base/alloc.h"
#include "engine/base/file.h"
#include "engine/sample/grammar.h"
#include "tests/fixtures/fixtures.h"

static pl_json *golden(const char *path)
{
    pl_buf text = {0};
    pl_json *v = NULL;
    pl_error err = {0};
    ck_ok(pl_file_read(&text, path, 1 << 20, &err), err);
    ck_ok(pl_json_parse(&v, pl_buf_str(&text), &err), err);
    pl_buf_fini(&text);
    return v;
}

static bool accepts(const pl_grammar *g, pl_str text)
{
    pl_grammar_run *r;
    pl_error err = {0};
    ck_ok(pl_grammar_run_new(&r, g, 0, &err), err);
    int32_t at = pl_grammar_start(r);
    for (size_t i = 0; i < text.size; i++) at = pl_grammar_step(r, at, (uint8_t)text.data[i]);
    bool yes = pl_grammar_accepts(r, at);
    pl_grammar_run_free(r);
    return yes;
}

static pl_grammar *grammar_of(const pl_json *schema)
{
    pl_buf text = {0};
    pl_grammar *g;
    pl_error err = {0};
    ck_ok(pl_json_schema_grammar(schema, &text, &err), err);
    ck_ok(pl_grammar_new(&g, pl_buf_str(&text), &err), err);
    pl_buf_fini(&text);
    return g;
}

START_TEST(what_a_grammar_accepts_is_valid)
{
    pl_json *corpus = golden(GOLDEN_DIR "/schema_corpus.json"), *texts = golden(GOLDEN_DIR "/schema_texts.json");
    int n_own = 0, n_refused = 0, n_shared = 0;
    ck_assert_uint_eq(pl_json_size(corpus), pl_json_size(texts));
    for (size_t i = 0; i < pl_json_size(corpus); i++) {
        pl_grammar *g = grammar_of(pl_json_get(pl_json_at(corpus, i), "schema"));
        pl_str name = pl_json_str(pl_json_get(pl_json_at(corpus, i), "name"));
        pl_str valid = pl_json_str(pl_json_get(pl_json_at(texts, i), "valid"));
        size_t at = 0;
        for (size_t k = 0; k < pl_json_size(texts); k++) {
            const pl_json *list = pl_json_get(pl_json_at(texts, k), "texts");
            for (size_t m = 0; m < pl_json_size(list); m++, at++) {
                pl_str text = pl_json_str(pl_json_at(list, m));
                bool yes = accepts(g, text);
                ck_assert_msg(!yes || valid.data[at] == '1', "%.*s accepts %.*s", PL_STR_ARG(name), PL_STR_ARG(text));
                ck_assert_msg(yes || k != i, "%.*s refuses %.*s", PL_STR_ARG(name), PL_STR_ARG(text));
                n_own += k == i;
                n_refused += !yes && valid.data[at] == '0';
                n_shared += yes && k != i;
            }
        }
        pl_grammar_free(g);
    }
    ck_assert_int_gt(n_own, 200);
    ck_assert_int_gt(n_refused, 10000);
    ck_assert_int_gt(n_shared, 100);
    pl_json_free(corpus);
    pl_json_free(texts);
}
END_TEST

START_TEST(answers_as_models_write_them_are_accepted)
{
    static const struct {
        const char *schema, *yes, *no;
    } cases[] = {
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"array\",\"items\":{"
         "\"type\":\"string\"}}},\"required\":[\"a\"]}",
         "{\n  \"a\": 12,\n  \"b\": [\n    \"x\",\n    \"y\"\n  ]\n}", "{\"b\": [], \"a\": 1}"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{}},\"additionalProperties\":true}",
         "{\"a\": 1, \"ab\": {}, \"\": 2}", "{\"a\": 1, \"a\": 2}"},
        {"{\"type\":\"integer\",\"minimum\":0}", "999999999999999", "-1"},
        {"{\"type\":\"integer\",\"minimum\":10,\"maximum\":99}", "10", "9"},
        {"{\"type\":\"integer\",\"minimum\":10,\"maximum\":99}", "99", "100"},
        {"{\"type\":\"number\",\"minimum\":-1,\"maximum\":1}", "-0.75", "-1.25"},
        {"{\"type\":\"string\",\"pattern\":\"^\\\\d+$\"}", "\"0123\"", "\"01 23\""},
        {"{\"type\":\"string\",\"minLength\":1}", "\"\\u00e4\"", "\"\""},
        {"{\"type\":\"string\",\"maxLength\":1}", "\"\\n\"", "\"\\n\\n\""},
        {"{\"format\":\"int64\",\"type\":\"integer\"}", "7", "7.5"},
        {"{\"title\":\"t\",\"description\":\"d\",\"type\":\"boolean\",\"x-unknown\":1}", "true", "\"true\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pl_json *v;
        pl_error err = {0};
        ck_ok(pl_json_parse(&v, pl_str_from(cases[i].schema), &err), err);
        pl_grammar *g = grammar_of(v);
        ck_assert_msg(accepts(g, pl_str_from(cases[i].yes)), "%s refuses %s", cases[i].schema, cases[i].yes);
        ck_assert_msg(!accepts(g, pl_str_from(cases[i].no)), "%s accepts %s", cases[i].schema, cases[i].no);
        pl_grammar_free(g);
        pl_json_free(v);
    }
}
END_TEST

START_TEST(what_is_not_supported_is_named_with_its_path)
{
    static const struct {
        const char *schema, *says;
        pl_status status;
    } cases[] = {
        {"{\"properties\":{\"a\":{\"items\":{\"not\":{}}}}}", "#/properties/a/items/not", PL_ERR_UNSUPPORTED},
        {"{\"anyOf\":[{},{\"if\":true}]}", "#/anyOf/1/if", PL_ERR_UNSUPPORTED},
        {"{\"type\":\"object\",\"patternProperties\":{}}", "#/patternProperties", PL_ERR_UNSUPPORTED},
        {"{\"type\":\"array\",\"uniqueItems\":true}", "#/uniqueItems", PL_ERR_UNSUPPORTED},
        {"{\"type\":\"array\",\"contains\":{}}", "#/contains", PL_ERR_UNSUPPORTED},
        {"{\"type\":\"number\",\"multipleOf\":0.5}", "#/multipleOf", PL_ERR_UNSUPPORTED},
        {"{\"type\":\"string\",\"pattern\":\"(?=a)\"}", "#/pattern: at byte 2: look-around", PL_ERR_UNSUPPORTED},
        {"{\"type\":\"string\",\"pattern\":\"a\\\\1\"}", "#/pattern", PL_ERR_UNSUPPORTED},
        {"{\"type\":\"string\",\"pattern\":\"(a\"}", "closing parenthesis", PL_ERR_INVALID},
        {"{\"type\":\"string\",\"pattern\":\"a)\"}", "#/pattern", PL_ERR_INVALID},
        {"{\"type\":\"string\",\"pattern\":\"*\"}", "nothing to repeat", PL_ERR_INVALID},
        {"{\"type\":\"string\",\"pattern\":\"[z-a]\"}", "before it begins", PL_ERR_INVALID},
        {"{\"type\":\"string\",\"pattern\":\"a{6,4}\"}", "below the lowest", PL_ERR_INVALID},
        {"{\"type\":\"string\",\"pattern\":\"a{100001}\"}", "at most 100000", PL_ERR_INVALID},
        {"{\"type\":\"string\",\"pattern\":\"^a$\",\"maxLength\":2}", "together with pattern", PL_ERR_UNSUPPORTED},
        {"{\"type\":\"number\",\"minimum\":0.2,\"maximum\":0.8}", "no whole number", PL_ERR_UNSUPPORTED},
        {"{\"type\":\"integer\",\"minimum\":0.2,\"maximum\":0.8}", "no integer", PL_ERR_INVALID},
        {"{\"type\":\"string\",\"minLength\":3,\"maxLength\":2}", "nothing is valid", PL_ERR_INVALID},
        {"{\"type\":\"array\",\"minItems\":3,\"maxItems\":2}", "more items", PL_ERR_INVALID},
        {"{\"type\":\"strnig\"}", "its type is none of", PL_ERR_INVALID},
        {"{\"type\":\"array\",\"minItems\":-1}", "#/minItems", PL_ERR_INVALID},
        {"{\"$ref\":\"#/$defs/x\"}", "#/$ref", PL_ERR_INVALID},
        {"{\"$ref\":\"https://example.org/x\"}", "#/$ref", PL_ERR_INVALID},
        {"{\"allOf\":[{\"$ref\":\"#\"}]}", "deep", PL_ERR_UNSUPPORTED},
        {"{\"$ref\":\"#\"}", "calls itself", PL_ERR_INVALID},
        {"{\"allOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}", "nothing is valid", PL_ERR_INVALID},
        {"{\"allOf\":[{\"const\":1},{\"const\":2}]}", "nothing is valid", PL_ERR_INVALID},
        {"{\"allOf\":[{\"pattern\":\"a\"},{\"pattern\":\"b\"}]}", "#/allOf/pattern", PL_ERR_UNSUPPORTED},
        {"{\"oneOf\":[{\"type\":\"string\"},{\"type\":\"string\",\"maxLength\":3}]}",
         "#/oneOf: what is valid under alternative", PL_ERR_UNSUPPORTED},
        {"{\"type\":\"object\",\"required\":[\"x\"],\"additionalProperties\":false}", "#/required", PL_ERR_INVALID},
        {"{\"properties\":{\"x\":false},\"required\":[\"x\"]}", "#/properties/x", PL_ERR_INVALID},
        {"{\"enum\":[]}", "none of its values", PL_ERR_INVALID},
        {"{\"enum\":[1],\"type\":\"string\"}", "none of its values", PL_ERR_INVALID},
        {"{\"properties\":[]}", "not an object", PL_ERR_INVALID},
        {"false", "nothing is valid", PL_ERR_INVALID},
        {"[]", "a schema is", PL_ERR_INVALID},
        {"{", "json_schema", PL_ERR_INVALID},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pl_buf text = {0};
        pl_error err = {0};
        pl_grammar *g = NULL;
        pl_status s = pl_json_schema_text_grammar(pl_str_from(cases[i].schema), &text, &err);
        if (s == PL_OK) s = pl_grammar_new(&g, pl_buf_str(&text), &err);
        ck_assert_msg(s == cases[i].status, "%s: %s, %s", cases[i].schema, pl_status_name(s), err.text);
        ck_says(err, cases[i].says);
        pl_buf_fini(&text);
    }
}
END_TEST

START_TEST(a_large_schema_ends_with_an_error_in_time)
{
    pl_buf schema = {0}, text = {0};
    pl_error err = {0};
    for (int i = 0; i < 200; i++) pl_buf_add_str(&schema, PL_STR("{\"items\":"));
    pl_buf_add_str(&schema, PL_STR("{}"));
    for (int i = 0; i < 200; i++) pl_buf_add_str(&schema, PL_STR("}"));
    ck_status(pl_json_schema_text_grammar(pl_buf_str(&schema), &text, &err), PL_ERR_UNSUPPORTED, err);
    ck_says(err, "deep");
    /* Each level doubles what is below it. */
    pl_buf_reset(&schema);
    pl_buf_add_str(&schema, PL_STR("{\"$defs\":{\"d0\":{\"type\":\"null\"}"));
    for (int i = 1; i < 40; i++)
        pl_buf_printf(
            &schema,
            ",\"d%d\":{\"minItems\":1,\"anyOf\":[{\"prefixItems\":[{\"$ref\":\"#/$defs/d%d\",\"x\":1}]},{\"items\":"
            "{\"$ref\":\"#/$defs/d%d\",\"x\":2}}]}",
            i, i - 1, i - 1);
    pl_buf_add_str(&schema, PL_STR("},\"$ref\":\"#/$defs/d39\"}"));
    pl_status s = pl_json_schema_text_grammar(pl_buf_str(&schema), &text, &err);
    ck_assert_msg(s == PL_ERR_UNSUPPORTED || s == PL_ERR_BUDGET, "%s", pl_status_name(s));
    ck_assert_uint_eq(text.size, 0);
    pl_buf_fini(&schema);
    pl_buf_fini(&text);
}
END_TEST

START_TEST(without_memory_a_schema_is_refused)
{
    pl_json *corpus = golden(GOLDEN_DIR "/schema_corpus.json");
    const pl_json *schema = pl_json_get(pl_json_at(corpus, 3), "schema");
    int refused = 0;
    for (uint64_t n = 1; n < 2000; n++) {
        pl_buf text = {0};
        pl_error err = {0};
        pl_alloc_fail_at(n);
        pl_status s = pl_json_schema_grammar(schema, &text, &err);
        pl_alloc_fail_at(0);
        ck_assert_msg(s == PL_OK || s == PL_ERR_NO_MEMORY || err.text[0], "%s", err.text);
        refused += s != PL_OK;
        pl_buf_fini(&text);
        if (s == PL_OK) break;
    }
    ck_assert_int_gt(refused, 10);
    pl_json_free(corpus);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("json schema");
    TCase *t = tcase_create("json schema");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, what_a_grammar_accepts_is_valid);
    tcase_add_test(t, answers_as_models_write_them_are_accepted);
    tcase_add_test(t, what_is_not_supported_is_named_with_its_path);
    tcase_add_test(t, a_large_schema_ends_with_an_error_in_time);
    tcase_add_test(t, without_memory_a_schema_is_refused);
    suite_add_tcase(s, t);
    return ck_run(s, NULL);
}
