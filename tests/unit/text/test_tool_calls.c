/* Replies as each family of models writes them: whole, byte by byte, and cut at every place. */
#include "engine/text/tool_calls.h"

#include <string.h>

#include "engine/base/alloc.h"
#include "engine/base/rng.h"
#include "tests/fixtures/fixtures.h"
#include "tests/unit/text/suites.h"

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"parameters\":{\"type\":\"object\",\"properties\":{"
    "\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"now\",\"parameters\":{\"type\":\"object\",\"properties\":{}}}}]";

/* What came out: text as it is, reasoning in (…), calls in [name arguments]. */
typedef struct seen {
    pl_buf text;
    int last;
} seen;

static void on_part(void *user, const pl_reply_part *part)
{
    seen *s = user;
    if (s->last == PL_REPLY_REASONING && part->kind != PL_REPLY_REASONING) pl_buf_add_u8(&s->text, ')');
    if (part->kind == PL_REPLY_REASONING && s->last != PL_REPLY_REASONING) pl_buf_add_u8(&s->text, '(');
    if (part->kind == PL_REPLY_CALL) {
        pl_buf_printf(&s->text, "[%.*s ", PL_STR_ARG(part->name));
        pl_buf_add_str(&s->text, part->text);
        pl_buf_add_u8(&s->text, ']');
    } else {
        ck_assert_uint_gt(part->text.size, 0);
        pl_buf_add_str(&s->text, part->text);
    }
    s->last = (int)part->kind;
}

/* The reply in pieces: step bytes each, or, 0, drawn from the seed. */
static const char *read_reply(const char *template_text, const char *prompt, const pl_json *tools, const char *text,
                              size_t step, uint64_t seed)
{
    static seen s;
    pl_reply *r;
    pl_error err = {0};
    pl_rng rng;
    pl_rng_seed(&rng, seed);
    pl_buf_fini(&s.text);
    s.last = -1;
    pl_reply_style style = pl_reply_style_of(pl_str_from(template_text));
    ck_ok(pl_reply_open(&r, &style, pl_str_from(prompt), tools, on_part, &s, &err), err);
    size_t n = strlen(text);
    for (size_t at = 0, size; at < n; at += size) {
        size = step ? step : 1 + pl_rng_below(&rng, 9);
        if (size > n - at) size = n - at;
        ck_assert(pl_reply_add(r, (pl_str){text + at, size}));
    }
    ck_assert(pl_reply_end(r));
    pl_reply_close(r);
    if (s.last == PL_REPLY_REASONING) pl_buf_add_u8(&s.text, ')');
    return pl_buf_cstr(&s.text);
}

static pl_json *parse_tools(void)
{
    pl_json *tools;
    pl_error err = {0};
    ck_ok(pl_json_parse(&tools, PL_STR(tools_text), &err), err);
    return tools;
}

typedef struct example {
    const char *template_text, *prompt, *text, *want;
} example;

static void check(const example *all, size_t n)
{
    pl_json *tools = parse_tools();
    for (size_t i = 0; i < n; i++) {
        const example *e = &all[i];
        for (size_t round = 0; round < 8; round++) {
            const char *got =
                read_reply(e->template_text, e->prompt, tools, e->text, round == 0 ? 100000 : round == 1, round);
            ck_assert_msg(strcmp(got, e->want) == 0, "example %zu, round %zu:\n%s\ngave\n%s\nnot\n%s", i, round,
                          e->text, got, e->want);
        }
    }
    pl_json_free(tools);
}
#define CHECK(...)                                                                                                     \
    do {                                                                                                               \
        static const example all_[] = {__VA_ARGS__};                                                                   \
        check(all_, sizeof all_ / sizeof all_[0]);                                                                     \
    } while (0)

#define QWEN "tools <tool_call> <think> </think>"

START_TEST(text_without_marks_comes_through_byte_by_byte)
{
    CHECK({"", "", "  a <tool_call> b\n\n", "  a <tool_call> b\n\n"},
          {QWEN, "", " \n a < b </ think> <thin <tool_cal\n ", " \n a < b </ think> <thin <tool_cal\n "},
          {QWEN, "", "", ""}, {QWEN, "", "\n", "\n"}, {QWEN, "", "\xc3\xa9 \xff\xe2\x96", "\xc3\xa9 \xff\xe2\x96"});
}
END_TEST

START_TEST(hermes_and_qwen_write_json_in_tags)
{
    CHECK({QWEN, "", "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>",
           "[weather {\"city\":\"Oslo\"}]"},
          {QWEN, "",
           "Let me see.\n\n<tool_call>{\"name\":\"now\"}</tool_call>\n<tool_call>{\"name\":\"now\",\"arguments\":"
           "\"{\\\"a\\\":1}\"}</tool_call>\nDone",
           "Let me see.[now {}][now {\"a\":1}]Done"},
          {QWEN, "", "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}",
           "[now {}]"}, /* the end of the reply closes it */
          {QWEN, "", "a <tool_call>no call</tool_call> b", "a <tool_call>no call</tool_call> b"},
          {QWEN, "", "x\n<tool_call>{\"name\": 5}</tool_call>", "x\n<tool_call>{\"name\": 5}</tool_call>"},
          {QWEN, "", "<tool_call>{\"name\": \"now\", \"arguments\": {\"t\": \"a\nb\"}}</tool_call>",
           "[now {\"t\":\"a\\nb\"}]"},
          {QWEN, "", "<think>\nI call </tool_call>\n</think>\n\n<tool_call>{\"name\":\"now\"}</tool_call>",
           "(I call </tool_call>)[now {}]"},
          {"tools <tool_calls>", "",
           "<tool_calls>[{\"name\":\"now\",\"arguments\":{}},{\"name\":\"now\"}]</tool_calls>", "[now {}][now {}]"});
}
END_TEST

START_TEST(reasoning_is_what_stands_in_its_marks)
{
    CHECK({QWEN, "", "<think>\nOne.\n\nTwo.\n</think>\n\nThree.\n", "(One.\n\nTwo.)Three.\n"},
          {QWEN, "<|im_start|>assistant\n<think>\n", "One.</think>Two", "(One.)Two"},
          {QWEN, "<think>\n\n</think>\n\n", "One", "One"}, {QWEN, "", "<think></think>One", "One"},
          {QWEN, "", "<think>never ends", "(never ends)"}, {QWEN, "<think>", "</think>\n\n", ""},
          {"[THINK] [/THINK]", "", "[THINK]a[/THINK]b", "(a)b"},
          {"<seed:think>", "", "<seed:think>a</seed:think>b", "(a)b"},
          {"", "", "<think>a</think>b", "<think>a</think>b"}); /* no mark of this model */
}
END_TEST

START_TEST(qwen_coder_glm_and_minimax_write_tags_inside_of_tags)
{
    CHECK({QWEN, "",
           "<tool_call>\n<function=weather>\n<parameter=city>\n12\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
           "</function>\n</tool_call>",
           "[weather {\"city\":\"12\",\"days\":3}]"}, /* text stays text where the schema says so */
          {QWEN, "", "<tool_call><function=now></function></tool_call>", "[now {}]"},
          {QWEN, "",
           "<tool_call><function=f>\n<parameter=x>\n{\"a\": [1, \"b\"]}\n</parameter>\n<parameter=y>\ntwo\nlines\n"
           "</parameter></function></tool_call>",
           "[f {\"x\":{\"a\":[1,\"b\"]},\"y\":\"two\\nlines\"}]"},
          {QWEN, "",
           "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>days</arg_key>\n"
           "<arg_value>2</arg_value>\n</tool_call>",
           "[weather {\"city\":\"Oslo\",\"days\":2}]"},
          {QWEN, "", "<tool_call>now\n</tool_call>", "[now {}]"},
          {"<function=", "", "<function=weather>{\"city\": \"Oslo\"}</function>", "[weather {\"city\":\"Oslo\"}]"},
          {"<minimax:tool_call>", "",
           "<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">Oslo</parameter>"
           "\n</invoke>\n</minimax:tool_call>",
           "[weather {\"city\":\"Oslo\"}]"});
}
END_TEST

#define LLAMA "tools <|python_tag|> parameters"

START_TEST(llama_3_writes_bare_json)
{
    CHECK(
        {LLAMA, "", "{\"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}}", "[weather {\"city\":\"Oslo\"}]"},
        {LLAMA, "", "\n{\"name\": \"now\", \"parameters\": {}}; {\"name\": \"now\", \"parameters\": {}}",
         "[now {}][now {}]"},
        {LLAMA, "", "<|python_tag|>{\"type\": \"function\", \"name\": \"now\", \"parameters\": {}}", "[now {}]"},
        {LLAMA, "", "<|python_tag|>brave_search.call(query=\"a, 'b'\", n=2)",
         "[brave_search {\"query\":\"a, 'b'\",\"n\":2}]"},
        {LLAMA, "", "{\"name\": \"stranger\", \"parameters\": {}}", "{\"name\": \"stranger\", \"parameters\": {}}"},
        {LLAMA, "", "{\"answer\": 42}", "{\"answer\": 42}"}, {LLAMA, "", "{ not json", "{ not json"},
        {LLAMA, "", "Hello {\"name\": \"now\", \"parameters\": {}}", "Hello {\"name\": \"now\", \"parameters\": {}}"});
}
END_TEST

START_TEST(models_without_a_way_of_their_own_write_json)
{
    CHECK({"", "", "{\"name\": \"now\", \"arguments\": {}}", "[now {}]"},
          {"", "", "[{\"name\": \"now\", \"arguments\": {}}, {\"name\": \"now\"}]", "[now {}][now {}]"},
          {"", "", "```json\n{\"name\": \"now\", \"arguments\": {}}\n```", "[now {}]"},
          {"", "", "{\"tool_calls\": [{\"function\": {\"name\": \"now\", \"arguments\": {\"a\": 1}}}]}",
           "[now {\"a\":1}]"},
          {"", "", "{\"tool_call\": {\"name\": \"now\", \"arguments\": {}}}", "[now {}]"},
          {"", "", "{\"function\": \"now\", \"parameters\": {}}", "[now {}]"}, {"", "", "[1, 2]", "[1, 2]"},
          {"", "", "```json\n{\"x\": 1}\n```", "```json\n{\"x\": 1}\n```"});
}
END_TEST

START_TEST(mistral_writes_a_list_or_names_with_arguments)
{
    CHECK({"[TOOL_CALLS]", "",
           "[TOOL_CALLS] [{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}, \"id\": \"a1\"}]",
           "[weather {\"city\":\"Oslo\"}]"},
          {"[TOOL_CALLS]", "", "[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]weather[CALL_ID]12[ARGS]{\"city\": \"Oslo\"}",
           "[now {}][weather {\"city\":\"Oslo\"}]"},
          {"[TOOL_CALLS]", "", "Text [TOOL_CALLS]nothing", "Text [TOOL_CALLS]nothing"});
}
END_TEST

#define DS_BEGIN                                                                                                       \
    "<\xef\xbd\x9ctool\xe2\x96\x81"                                                                                    \
    "calls\xe2\x96\x81"                                                                                                \
    "begin\xef\xbd\x9c>"
#define DS_CALL                                                                                                        \
    "<\xef\xbd\x9ctool\xe2\x96\x81"                                                                                    \
    "call\xe2\x96\x81"                                                                                                 \
    "begin\xef\xbd\x9c>"
#define DS_SEP                                                                                                         \
    "<\xef\xbd\x9ctool\xe2\x96\x81"                                                                                    \
    "sep\xef\xbd\x9c>"
#define DS_STOP                                                                                                        \
    "<\xef\xbd\x9ctool\xe2\x96\x81"                                                                                    \
    "call\xe2\x96\x81"                                                                                                 \
    "end\xef\xbd\x9c>"
#define DS_END                                                                                                         \
    "<\xef\xbd\x9ctool\xe2\x96\x81"                                                                                    \
    "calls\xe2\x96\x81"                                                                                                \
    "end\xef\xbd\x9c>"

START_TEST(deepseek_and_kimi_have_sections_of_calls)
{
    CHECK(
        {DS_BEGIN "</think>", "<think>\n",
         "Hm.</think>" DS_BEGIN DS_CALL "function" DS_SEP "weather\n```json\n{\"city\": \"Oslo\"}\n```" DS_STOP
         "\n" DS_CALL "function" DS_SEP "now\n```json\n{}\n```" DS_STOP DS_END,
         "(Hm.)[weather {\"city\":\"Oslo\"}][now {}]"},
        {DS_BEGIN, "", DS_BEGIN DS_CALL "weather" DS_SEP "{\"city\": \"Oslo\"}" DS_STOP DS_END,
         "[weather {\"city\":\"Oslo\"}]"},
        {DS_BEGIN, "", DS_BEGIN "x" DS_END, DS_BEGIN "x" DS_END},
        {"<|tool_calls_section_begin|>", "",
         "Ok. <|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{\"city\": "
         "\"Oslo\"}<|tool_call_end|><|tool_calls_section_end|>",
         "Ok.[weather {\"city\":\"Oslo\"}]"});
}
END_TEST

#define HARMONY "<|channel|> <|message|>"

START_TEST(harmony_has_channels)
{
    CHECK({HARMONY, "<|start|>assistant",
           "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant<|channel|>final<|message|>"
           "Hi <b>!",
           "(Think.)Hi <b>!"},
          {HARMONY, "", "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\": \"Oslo\"}",
           "[weather {\"city\":\"Oslo\"}]"},
          {HARMONY, "", " to=functions.now<|channel|>commentary json<|message|>{}", "[now {}]"},
          {HARMONY, "",
           "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.now "
           "<|message|>",
           "I look."},
          {HARMONY, "", "<|channel|>final<|message|>a\n\n", "a\n\n"}, {HARMONY, "", "plain", "plain"},
          {HARMONY, "", "<|channel|>commentary to=functions.now<|message|>not json", "not json"});
}
END_TEST

START_TEST(gemma_writes_calls_in_code_or_in_its_own_notation)
{
    CHECK({"<start_of_turn>", "", "```tool_code\nweather(city=\"Oslo\", days=[1, 2.5, True, None, {'a': 'b'}])\n```",
           "[weather {\"city\":\"Oslo\",\"days\":[1,2.5,true,null,{\"a\":\"b\"}]}]"},
          {"<start_of_turn>", "", "I see.\n```tool_code\nweather('Oslo')\nnow()\n```\nBye",
           "I see.[weather {\"city\":\"Oslo\"}][now {}]Bye"},
          {"<start_of_turn>", "", "```python\nnow()\n```", "```python\nnow()\n```"},
          {"<|tool_call> <|channel>thought", "",
           "<|channel>thought\nHm.<channel|><|tool_call>call:weather{city:<|\"|>Os\"lo<|\"|>,days:3}<tool_call|>",
           "(Hm.)[weather {\"city\":\"Os\\\"lo\",\"days\":3}]"},
          {"<|tool_call>", "", "<|tool_call>call:now{}<tool_call|>", "[now {}]"},
          {"<start_function_call>", "",
           "<start_function_call>call:weather{city:<escape>Oslo<escape>}<end_function_call>",
           "[weather {\"city\":\"Oslo\"}]"});
}
END_TEST

START_TEST(granite_and_apertus_write_lists)
{
    CHECK({"<|tool_call|>", "", "<|tool_call|>[{\"name\": \"now\", \"arguments\": {}}]", "[now {}]"},
          {"<|tools_prefix|>", "", "<|tools_prefix|>[{\"weather\": {\"city\": \"Oslo\"}}]<|tools_suffix|>",
           "[weather {\"city\":\"Oslo\"}]"});
}
END_TEST

START_TEST(without_tools_no_calls_are_looked_for)
{
    const char *text = "<think>a</think><tool_call>{\"name\":\"now\"}</tool_call>";
    ck_assert_str_eq(read_reply(QWEN, "", NULL, text, 1, 0), "(a)<tool_call>{\"name\":\"now\"}</tool_call>");
    text = "{\"name\": \"now\", \"arguments\": {}}";
    ck_assert_str_eq(read_reply("", "", NULL, text, 1, 0), text);
}
END_TEST

START_TEST(text_is_given_as_soon_as_it_is_settled)
{
    static seen s;
    pl_reply *r;
    pl_error err = {0};
    pl_json *tools = parse_tools();
    pl_reply_style style = pl_reply_style_of(PL_STR(QWEN));
    s.last = -1;
    ck_ok(pl_reply_open(&r, &style, PL_STR(""), tools, on_part, &s, &err), err);
    ck_assert(pl_reply_add(r, PL_STR("One <")));
    ck_assert_str_eq(pl_buf_cstr(&s.text), "One");
    ck_assert(pl_reply_add(r, PL_STR("b> two <think>x")));
    ck_assert_str_eq(pl_buf_cstr(&s.text), "One <b> two(x");
    pl_reply_close(r); /* also in the middle */
    pl_buf_fini(&s.text);
    pl_json_free(tools);
}
END_TEST

START_TEST(control_tokens_that_mark_something_are_known)
{
    pl_reply_style s = pl_reply_style_of(PL_STR(HARMONY));
    ck_assert(pl_reply_marks(&s, PL_STR("<|channel|>")) && pl_reply_marks(&s, PL_STR("<|constrain|>")));
    ck_assert(!pl_reply_marks(&s, PL_STR("<|return|>")) && !pl_reply_marks(&s, PL_STR("")));
    s = pl_reply_style_of(PL_STR(DS_BEGIN));
    ck_assert(pl_reply_marks(&s, PL_STR(DS_SEP)) && pl_reply_marks(&s, PL_STR(DS_END)));
    ck_assert(!pl_reply_marks(&s, PL_STR("<|channel|>")));
    s = pl_reply_style_of(PL_STR("nothing"));
    ck_assert(!pl_reply_marks(&s, PL_STR("<think>")));
}
END_TEST

START_TEST(no_memory_is_an_error_and_leaks_nothing)
{
    pl_json *tools = parse_tools();
    pl_reply_style style = pl_reply_style_of(PL_STR(QWEN));
    bool done = false;
    for (uint64_t n = 1; n < 300 && !done; n++) {
        static seen s;
        pl_reply *r;
        pl_error err = {0};
        s.last = -1;
        pl_alloc_fail_at(n);
        if (pl_reply_open(&r, &style, PL_STR(""), tools, on_part, &s, &err) == PL_OK)
            done = pl_reply_add(r, PL_STR("a <think>b</think> c <tool_call>{\"name\":\"now\"}</tool_call>")) &&
                   pl_reply_end(r);
        pl_alloc_fail_at(0);
        pl_reply_close(r);
        pl_buf_fini(&s.text);
    }
    ck_assert(done);
    pl_json_free(tools);
}
END_TEST

Suite *tool_calls_suite(void)
{
    Suite *s = suite_create("tool_calls");
    TCase *t = tcase_create("tool_calls");
    tcase_add_test(t, text_without_marks_comes_through_byte_by_byte);
    tcase_add_test(t, hermes_and_qwen_write_json_in_tags);
    tcase_add_test(t, reasoning_is_what_stands_in_its_marks);
    tcase_add_test(t, qwen_coder_glm_and_minimax_write_tags_inside_of_tags);
    tcase_add_test(t, llama_3_writes_bare_json);
    tcase_add_test(t, models_without_a_way_of_their_own_write_json);
    tcase_add_test(t, mistral_writes_a_list_or_names_with_arguments);
    tcase_add_test(t, deepseek_and_kimi_have_sections_of_calls);
    tcase_add_test(t, harmony_has_channels);
    tcase_add_test(t, gemma_writes_calls_in_code_or_in_its_own_notation);
    tcase_add_test(t, granite_and_apertus_write_lists);
    tcase_add_test(t, without_tools_no_calls_are_looked_for);
    tcase_add_test(t, text_is_given_as_soon_as_it_is_settled);
    tcase_add_test(t, control_tokens_that_mark_something_are_known);
    tcase_add_test(t, no_memory_is_an_error_and_leaks_nothing);
    suite_add_tcase(s, t);
    return s;
}
