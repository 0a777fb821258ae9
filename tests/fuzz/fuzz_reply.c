/* Any bytes as a reply of any family of models: the first byte chooses the style, the second how the text is cut. The
 * same text comes out however it is cut, and a call's arguments are an object. */
#include "engine/text/tool_calls.h"
#include "tests/fuzz/fuzz.h"

static const char *const templates[] = {
    "tools <tool_call> <think> </think> <function=",
    "tools <|python_tag|>",
    "",
    "[TOOL_CALLS] [THINK] tools",
    "<\xef\xbd\x9ctool\xe2\x96\x81"
    "calls\xe2\x96\x81"
    "begin\xef\xbd\x9c> </think>",
    "<|channel|> <|message|>",
    "<start_of_turn>",
    "<|tool_call> <|channel>thought <start_function_call>",
    "<minimax:tool_call> <|tools_prefix|> <|tool_calls_section_begin|> <tool_calls> tools",
};
enum { N = sizeof templates / sizeof templates[0] };

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"a\":{\"type\":\"string\"}}}}}]";

static void on_part(void *user, const pl_reply_part *part)
{
    pl_buf *out = user;
    pl_error err;
    pl_json *v = NULL;
    if (part->kind == PL_REPLY_CALL) {
        PL_ASSERT(part->name.size > 0);
        pl_status s = pl_json_parse(&v, part->text, &err);
        PL_ASSERT(s == PL_OK && pl_json_type(v) == PL_JSON_OBJECT);
        pl_json_free(v);
        pl_buf_printf(out, "[%.*s]", PL_STR_ARG(part->name));
    }
    pl_buf_add_str(out, part->text);
}

static void read_all(const char *style_text, const pl_json *tools, pl_str text, size_t step, pl_buf *out)
{
    pl_reply_style style = pl_reply_style_of(pl_str_from(style_text));
    pl_reply *r;
    pl_error err;
    pl_status s = pl_reply_open(&r, &style, PL_STR("x"), tools, on_part, out, &err);
    PL_ASSERT(s == PL_OK);
    for (size_t at = 0; at < text.size; at += step)
        pl_reply_add(r, (pl_str){text.data + at, text.size - at < step ? text.size - at : step});
    pl_reply_end(r);
    pl_reply_close(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) return 0;
    pl_json *tools = NULL;
    pl_error err;
    pl_status s = pl_json_parse(&tools, PL_STR(tools_text), &err);
    PL_ASSERT(s == PL_OK);
    pl_str text = {(const char *)data + 2, size - 2};
    const char *style = templates[(data[0] >> 1) % N];
    const pl_json *given = data[0] & 1 ? NULL : tools;
    pl_buf whole = {0}, cut = {0};
    read_all(style, given, text, text.size + 1, &whole);
    read_all(style, given, text, 1 + data[1] % 7, &cut);
    PL_ASSERT(pl_str_eq(pl_buf_str(&whole), pl_buf_str(&cut)));
    pl_buf_fini(&whole);
    pl_buf_fini(&cut);
    pl_json_free(tools);
    return 0;
}
