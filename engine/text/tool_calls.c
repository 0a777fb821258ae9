/* A reply is read in one pass. Outside of marks it is content; a table of blocks says how calls are marked, another one
 * how reasoning is. What may be the beginning of a mark of the state is held back, never more than the longest mark; a
 * block is kept until its end, because only a whole call can be checked. The text of a block that is no call is given
 * back as content, marks and all.
 *
 * The harmony format is different: everything is a message with a header, so it has states of its own. */
#include "engine/text/tool_calls.h"

#include "engine/base/alloc.h"
#include "engine/text/chars_impl.h"
#include "engine/text/loose_impl.h"

#define DS(word) "<\xef\xbd\x9c" word "\xef\xbd\x9c>"
#define SP       "\xe2\x96\x81"

typedef enum {
    BODY_TAGGED,  /* JSON, <function=…> or <arg_key>, whichever it is */
    BODY_JSON,    /* an object or an array of objects */
    BODY_NAMED,   /* [{"name": {arguments}}] */
    BODY_MISTRAL, /* an array of objects, or name[ARGS]{…} */
    BODY_LLAMA,   /* an object, or tool.call(…) */
    BODY_DEEPSEEK,
    BODY_KIMI,
    BODY_GEMMA,  /* call:name{…} */
    BODY_PYTHON, /* name(key=value) */
    BODY_INVOKE  /* <invoke name="…"> */
} body_kind;

typedef struct block {
    const char *open, *close; /* close NULL: to the reply's end */
    body_kind body;
    const char *sign;  /* a template with this text uses the block */
    const char *inner; /* other marks inside of it */
} block;

static const block blocks[] = {
    {"<tool_call>", "</tool_call>", BODY_TAGGED, "<tool_call>", ""},
    {"<tool_calls>", "</tool_calls>", BODY_JSON, "<tool_calls>", ""},
    {"<function=", "</function>", BODY_TAGGED, "<function=", ""},
    {"[TOOL_CALLS]", NULL, BODY_MISTRAL, "[TOOL_CALLS]", "[ARGS][CALL_ID]"},
    {"<|python_tag|>", NULL, BODY_LLAMA, "<|python_tag|>", ""},
    {"<|python_tag|>", NULL, BODY_LLAMA, "ipython", ""},
    {DS("tool" SP "calls" SP "begin"), DS("tool" SP "calls" SP "end"), BODY_DEEPSEEK, DS("tool" SP "calls" SP "begin"),
     DS("tool" SP "call" SP "begin") DS("tool" SP "sep") DS("tool" SP "call" SP "end")},
    {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", BODY_KIMI, "<|tool_calls_section_begin|>",
     "<|tool_call_begin|><|tool_call_argument_begin|><|tool_call_end|>"},
    {"<|tool_call>", "<tool_call|>", BODY_GEMMA, "<|tool_call>", "<|\"|>"},
    {"<start_function_call>", "<end_function_call>", BODY_GEMMA, "<start_function_call>", "<escape>"},
    {"```tool_code", "```", BODY_PYTHON, "<start_of_turn>", ""},
    {"```tool_call", "```", BODY_JSON, "<start_of_turn>", ""},
    {"<minimax:tool_call>", "</minimax:tool_call>", BODY_INVOKE, "<minimax:tool_call>", ""},
    {"<|tool_call|>", NULL, BODY_JSON, "<|tool_call|>", ""},
    {"<|tools_prefix|>", "<|tools_suffix|>", BODY_NAMED, "<|tools_prefix|>", ""},
};
enum { N_BLOCKS = sizeof blocks / sizeof blocks[0] };

static const struct {
    const char *open, *close;
} thoughts[] = {{"<think>", "</think>"},
                {"<seed:think>", "</seed:think>"},
                {"<thinking>", "</thinking>"},
                {"[THINK]", "[/THINK]"},
                {"<|channel>thought", "<channel|>"},
                {"<|inner_prefix|>", "<|inner_suffix|>"},
                {"<|START_THINKING|>", "<|END_THINKING|>"}};
enum { N_THOUGHTS = sizeof thoughts / sizeof thoughts[0] };

static const char harmony_marks[] = "<|start|><|channel|><|message|><|constrain|><|end|>";

typedef enum { STATE_START, STATE_CONTENT, STATE_THOUGHT, STATE_BLOCK, STATE_JSON, STATE_HEADER, STATE_MESSAGE } state;

struct pl_reply {
    pl_reply_style style;
    const pl_json *tools;
    pl_reply_fn part;
    void *user;
    state state;
    int row;                 /* of the thought or block that is open */
    pl_buf held;             /* text that is not settled */
    pl_buf spaces;           /* white space behind what was given, of the current kind */
    bool trim;               /* white space comes next and is not the text's */
    bool said;               /* something was given */
    size_t looked;           /* STATE_JSON, STATE_BLOCK: how much of held has been looked at */
    bool after_call, fenced; /* STATE_START: behind a call; inside of a code fence */
    pl_json_scan scan;       /* STATE_JSON */
    pl_reply_kind kind;      /* of a harmony message */
    pl_buf recipient;        /* likewise: the tool that it is for */
    bool failed;
};

/* ---- styles ---- */

static bool contains(pl_str s, const char *what)
{
    size_t n = strlen(what);
    return s.size >= n && memmem(s.data, s.size, what, n) != NULL;
}

pl_reply_style pl_reply_style_of(pl_str t)
{
    pl_reply_style s = {.harmony = contains(t, "<|channel|>") && contains(t, "<|message|>"),
                        .takes_tools = contains(t, "tools") || contains(t, "functions")};
    for (int i = 0; i < N_BLOCKS; i++) s.blocks |= contains(t, blocks[i].sign) ? 1u << i : 0;
    for (int i = 0; i < N_THOUGHTS; i++) {
        bool used = contains(t, thoughts[i].close) || contains(t, thoughts[i].open);
        s.thoughts |= used ? 1u << i : 0;
    }
    /* Llama 3 writes calls to the user's tools without a mark, and so does a model that has to be told of them. */
    s.bare_json =
        !s.harmony && (s.blocks == 0 || !s.takes_tools || contains(t, "<|python_tag|>") || contains(t, "ipython"));
    return s;
}

bool pl_reply_marks(const pl_reply_style *style, pl_str token)
{
    if (token.size < 3) return false;
    char text[64];
    if (token.size >= sizeof text) return false;
    memcpy(text, token.data, token.size);
    text[token.size] = 0;
    if (style->harmony && strstr(harmony_marks, text)) return true;
    for (int i = 0; i < N_BLOCKS; i++) {
        const block *b = &blocks[i];
        if (!(style->blocks >> i & 1)) continue;
        if (strstr(b->open, text) || strstr(b->inner, text) || (b->close && strstr(b->close, text))) return true;
    }
    for (int i = 0; i < N_THOUGHTS; i++) {
        if (style->thoughts >> i & 1 && (strstr(thoughts[i].open, text) || strstr(thoughts[i].close, text)))
            return true;
    }
    return false;
}

/* ---- giving parts ---- */

static size_t space_size(pl_str s, size_t at)
{
    int32_t c;
    size_t n = pl_char_at(s, at, &c);
    return pl_char_is_space(c) ? n : 0;
}

static pl_str trimmed(pl_str s)
{
    size_t from = 0, to = 0;
    for (size_t i = 0, n; i < s.size; i += n) {
        n = space_size(s, i);
        if (n == 0) {
            int32_t c;
            n = pl_char_at(s, i, &c);
            to = i + n;
        } else if (from == i) {
            from = i + n;
        }
    }
    return to > from ? (pl_str){s.data + from, to - from} : PL_STR("");
}

static void send(pl_reply *r, pl_reply_kind kind, pl_str text)
{
    if (text.size == 0) return;
    r->said = true;
    r->part(r->user, &(pl_reply_part){.kind = kind, .text = text});
}

/* Gives text, but keeps white space at its end, and drops it at its front where a mark has just ended. */
static void give(pl_reply *r, pl_reply_kind kind, pl_str text)
{
    size_t from = 0, end = 0;
    for (size_t n; r->trim && from < text.size; from += n) {
        if ((n = space_size(text, from)) == 0) r->trim = false;
        if (!r->trim) break;
    }
    for (size_t i = from, n; i < text.size; i += n) {
        int32_t c;
        n = pl_char_at(text, i, &c);
        if (!pl_char_is_space(c)) end = i + n;
    }
    if (end > from) {
        send(r, kind, pl_buf_str(&r->spaces));
        pl_buf_reset(&r->spaces);
        send(r, kind, (pl_str){text.data + from, end - from});
        from = end;
    }
    if (text.size > from) pl_buf_add(&r->spaces, text.data + from, text.size - from);
}

/* A mark follows, or has just ended: the white space around it is not the text's. */
static void forget_spaces(pl_reply *r)
{
    pl_buf_reset(&r->spaces);
    r->trim = true;
}

static void drop(pl_reply *r, size_t n)
{
    if (n == 0) return;
    memmove(r->held.data, r->held.data + n, r->held.size - n);
    r->held.size -= n;
}

/* ---- reading calls ---- */

/* Calls are gathered first, and given when the whole block could be read. */
typedef struct calls {
    const pl_reply *r;
    pl_json *list; /* of [name, arguments] */
    bool ok;
} calls;

static void add_call(calls *c, pl_str name, pl_json *arguments)
{
    bool object = pl_json_type(arguments) == PL_JSON_OBJECT;
    name = trimmed(name);
    if (!object || name.size == 0 || name.size > 256) {
        c->ok = false;
        pl_json_free(arguments);
        return;
    }
    pl_json *pair = pl_json_array();
    c->ok = pl_json_append(pair, pl_json_string(name)) && c->ok;
    c->ok = pl_json_append(pair, arguments) && c->ok;
    c->ok = pl_json_append(c->list, pair) && c->ok;
}

static const pl_json *schema_of(const pl_reply *r, pl_str name)
{
    for (size_t i = 0; i < pl_json_size(r->tools); i++) {
        const pl_json *tool = pl_json_at(r->tools, i), *f = pl_json_get(tool, "function");
        if (!f) f = tool;
        if (pl_str_eq(pl_json_str(pl_json_get(f, "name")), name)) return f;
    }
    return NULL;
}

/* The value that a text means: text where the tool's schema says so, else JSON where it is JSON. */
static pl_json *typed(const pl_reply *r, pl_str function, pl_str key, pl_str text)
{
    pl_error err;
    pl_json *v = NULL;
    char name[128] = "";
    if (key.size < sizeof name && key.size > 0) memcpy(name, key.data, key.size);
    const pl_json *properties = pl_json_get(pl_json_get(schema_of(r, function), "parameters"), "properties");
    if (pl_str_is(pl_json_str(pl_json_get(pl_json_get(properties, name), "type")), "string"))
        return pl_json_string(text);
    pl_str t = trimmed(text);
    if (pl_str_is(t, "True") || pl_str_is(t, "False")) return pl_json_bool(t.data[0] == 'T');
    if (pl_str_is(t, "None")) return pl_json_null();
    if (t.size > 0 && pl_json_parse(&v, t, &err) == PL_OK) return v;
    return pl_json_string(text);
}

static void set_member(calls *c, pl_json *object, pl_str key, pl_json *v)
{
    char *name = key.size > 0 && key.size < 256 ? pl_strndup(key.data, key.size) : NULL;
    if (!name) pl_json_free(v);
    c->ok = name && pl_json_set(object, name, v) && c->ok;
    pl_free(name);
}

/* {"name": …, "arguments": …} with the names that models use for these, also inside of "function". */
static void call_of_object(calls *c, const pl_json *v)
{
    static const char *const inside[] = {"function", "tool_call", "function_call"};
    static const char *const words[] = {"arguments", "parameters", "args", "input"};
    const pl_json *name = pl_json_get(v, "name"), *arguments = NULL;
    for (int i = 0; i < 3 && pl_json_type(name) != PL_JSON_STRING; i++) {
        const pl_json *f = pl_json_get(v, inside[i]);
        if (i == 0 && pl_json_type(f) == PL_JSON_STRING) {
            name = f; /* {"function": "name", "parameters": …} */
        } else if (pl_json_type(pl_json_get(f, "name")) == PL_JSON_STRING) {
            call_of_object(c, f);
            return;
        }
    }
    for (int i = 0; i < 4 && !arguments; i++) arguments = pl_json_get(v, words[i]);
    if (pl_json_type(name) != PL_JSON_STRING) {
        c->ok = false;
        return;
    }
    pl_json *own;
    pl_error err;
    if (!arguments || pl_json_type(arguments) == PL_JSON_NULL)
        own = pl_json_object();
    else if (pl_json_type(arguments) != PL_JSON_STRING)
        own = pl_json_ref((pl_json *)(uintptr_t)arguments); /* nothing changes it */
    else if (pl_json_parse(&own, pl_json_str(arguments), &err) != PL_OK)
        own = NULL;
    add_call(c, pl_json_str(name), own);
}

static void calls_of_json(calls *c, const pl_json *v)
{
    const pl_json *list = pl_json_get(v, "tool_calls");
    if (pl_json_type(v) == PL_JSON_ARRAY) list = v;
    if (pl_json_type(list) != PL_JSON_ARRAY) {
        call_of_object(c, v);
        return;
    }
    c->ok = c->ok && pl_json_size(list) > 0;
    for (size_t i = 0; i < pl_json_size(list) && c->ok; i++) call_of_object(c, pl_json_at(list, i));
}

/* The JSON value at the front of s, and what is behind it. */
static pl_json *take_json(pl_str s, pl_str *rest)
{
    pl_json_scan scan = {0};
    pl_json *v = NULL;
    size_t n = 0;
    while (n < s.size && !scan.done) pl_json_scan_byte(&scan, (uint8_t)s.data[n++]);
    if (!scan.done) return NULL;
    *rest = (pl_str){s.data + n, s.size - n};
    return pl_json_parse_loosely(&v, (pl_str){s.data, n}) ? v : NULL;
}

/* One JSON value after another, with separators that models put between them. */
static void calls_of_text(calls *c, pl_str s)
{
    s = trimmed(s);
    c->ok = c->ok && s.size > 0;
    while (c->ok && s.size > 0) {
        pl_json *v = take_json(s, &s);
        c->ok = v != NULL;
        if (v) calls_of_json(c, v);
        pl_json_free(v);
        s = trimmed(s);
        while (s.size > 0 && (s.data[0] == ';' || s.data[0] == ',')) s = trimmed((pl_str){s.data + 1, s.size - 1});
    }
}

/* What stands in front of mark; *s is what is behind it. False when the mark is not there. */
static bool until(pl_str *s, const char *mark, pl_str *before)
{
    size_t n = strlen(mark);
    const char *at = s->size >= n ? memmem(s->data, s->size, mark, n) : NULL;
    if (!at) return false;
    *before = (pl_str){s->data, (size_t)(at - s->data)};
    *s = (pl_str){at + n, s->size - before->size - n};
    return true;
}

static bool skip(pl_str *s, const char *mark)
{
    pl_str t = *s, before;
    if (!until(&t, mark, &before) || before.size > 0) return false;
    *s = t;
    return true;
}

/* A value between tags: one line break after the opening one and one before the closing one belong to the tags. */
static pl_str tag_value(pl_str s)
{
    if (s.size > 0 && s.data[0] == '\n') s = (pl_str){s.data + 1, s.size - 1};
    if (s.size > 0 && s.data[s.size - 1] == '\n') s.size--;
    return s;
}

/* name>…<parameter=key>value</parameter>… or name>{…}, behind "<function=". */
static void call_of_function_tag(calls *c, pl_str s)
{
    pl_str name, key, value, before;
    pl_json *v = NULL;
    if (!until(&s, ">", &name)) {
        c->ok = false;
        return;
    }
    name = trimmed(name);
    pl_str body = trimmed(s);
    if (body.size > 0 && body.data[0] == '{') {
        add_call(c, name, pl_json_parse_loosely(&v, body) ? v : NULL);
        return;
    }
    pl_json *arguments = pl_json_object();
    while (until(&s, "<parameter=", &before)) {
        if (!until(&s, ">", &key)) break;
        pl_str all = s;
        /* A model that forgets the closing tag goes on with the next parameter. */
        if (!until(&s, "</parameter>", &value)) {
            value = all;
            s = PL_STR("");
        }
        key = trimmed(key);
        set_member(c, arguments, key, typed(c->r, name, key, tag_value(value)));
    }
    add_call(c, name, arguments);
}

/* name\n<arg_key>key</arg_key>\n<arg_value>value</arg_value>… */
static void call_of_arg_keys(calls *c, pl_str s)
{
    pl_str name, key, value, between, all = s;
    if (!until(&s, "<arg_key>", &name)) { /* a call without arguments is its name alone */
        add_call(c, all, pl_json_object());
        return;
    }
    name = trimmed(name);
    pl_json *arguments = pl_json_object();
    do {
        if (!until(&s, "</arg_key>", &key) || !until(&s, "<arg_value>", &between) ||
            !until(&s, "</arg_value>", &value)) {
            c->ok = false;
            break;
        }
        key = trimmed(key);
        set_member(c, arguments, key, typed(c->r, name, key, value));
    } while (until(&s, "<arg_key>", &between));
    add_call(c, name, arguments);
}

static bool is_name(pl_str s)
{
    for (size_t i = 0; i < s.size; i++) {
        char x = s.data[i];
        bool ok = (x >= 'a' && x <= 'z') || (x >= 'A' && x <= 'Z') || (x >= '0' && x <= '9') || x == '_' || x == '-' ||
                  x == '.';
        if (!ok) return false;
    }
    return s.size > 0;
}

static void calls_of_tagged(calls *c, pl_str s)
{
    pl_str before, function;
    if (contains(s, "<function=")) {
        while (until(&s, "<function=", &before)) {
            pl_str all = s;
            if (!until(&s, "</function>", &function)) {
                function = all;
                s = PL_STR("");
            }
            call_of_function_tag(c, function);
        }
    } else if (contains(s, "<arg_key>") || schema_of(c->r, trimmed(s))) {
        call_of_arg_keys(c, s);
    } else {
        calls_of_text(c, s);
    }
}

static void calls_of_mistral(calls *c, pl_str s)
{
    s = trimmed(s);
    if (s.size > 0 && (s.data[0] == '[' || s.data[0] == '{')) {
        calls_of_text(c, s);
        return;
    }
    /* name[CALL_ID]id[ARGS]{…}, and [TOOL_CALLS] in front of the next. */
    do {
        pl_str head, name;
        pl_json *v = NULL;
        s = trimmed(s);
        if (until(&s, "[ARGS]", &head)) {
            name = head;
            (void)until(&head, "[CALL_ID]", &name);
            v = take_json(trimmed(s), &s);
        }
        c->ok = c->ok && v;
        if (v) add_call(c, name, v);
        s = trimmed(s);
        (void)skip(&s, "[TOOL_CALLS]");
    } while (c->ok && s.size > 0);
}

/* begin [function] sep name … arguments end, of DeepSeek R1 and V3 and, with name first, of V3.1 */
static void calls_of_deepseek(calls *c, pl_str s)
{
    pl_str before, call, head, rest;
    c->ok = c->ok && contains(s, DS("tool" SP "call" SP "begin"));
    while (c->ok && until(&s, DS("tool" SP "call" SP "begin"), &before)) {
        pl_str all = s;
        if (!until(&s, DS("tool" SP "call" SP "end"), &call)) {
            call = all;
            s = PL_STR("");
        }
        pl_json *v = NULL;
        if ((c->ok = until(&call, DS("tool" SP "sep"), &head))) {
            pl_str body = call, line;
            if (pl_str_is(trimmed(head), "function") && until(&body, "\n", &line)) {
                head = line;
                call = body;
            }
            call = trimmed(call);
            if (skip(&call, "```json")) call = trimmed(call);
            v = take_json(call, &rest);
            add_call(c, head, v);
        }
    }
}

static void calls_of_kimi(calls *c, pl_str s)
{
    pl_str before, id, arguments, rest;
    c->ok = c->ok && contains(s, "<|tool_call_begin|>");
    while (c->ok && until(&s, "<|tool_call_begin|>", &before)) {
        if (!(c->ok = until(&s, "<|tool_call_argument_begin|>", &id))) return;
        pl_str all = s;
        if (!until(&s, "<|tool_call_end|>", &arguments)) {
            arguments = all;
            s = PL_STR("");
        }
        /* functions.name:0 */
        id = trimmed(id);
        (void)skip(&id, "functions.");
        for (size_t i = id.size; i > 0; i--) {
            if (id.data[i - 1] == ':') {
                id.size = i - 1;
                break;
            }
        }
        add_call(c, id, take_json(trimmed(arguments), &rest));
    }
}

static void calls_of_invoke(calls *c, pl_str s)
{
    pl_str before, invoke, name, key, value;
    c->ok = c->ok && contains(s, "<invoke name=");
    while (c->ok && until(&s, "<invoke name=", &before)) {
        pl_str all = s;
        if (!until(&s, "</invoke>", &invoke)) {
            invoke = all;
            s = PL_STR("");
        }
        if (!(c->ok = until(&invoke, ">", &name))) return;
        name = pl_unquoted(name);
        pl_json *arguments = pl_json_object();
        while (until(&invoke, "<parameter name=", &before) && until(&invoke, ">", &key) &&
               until(&invoke, "</parameter>", &value)) {
            key = pl_unquoted(key);
            set_member(c, arguments, key, typed(c->r, name, key, value));
        }
        add_call(c, name, arguments);
    }
}

static void calls_of_named(calls *c, pl_str s)
{
    pl_str rest = s;
    pl_json *v = take_json(trimmed(s), &rest);
    c->ok = c->ok && pl_json_type(v) == PL_JSON_ARRAY && pl_json_size(v) > 0;
    for (size_t i = 0; c->ok && i < pl_json_size(v); i++) {
        void *iter = NULL;
        pl_str name;
        pl_json *arguments;
        c->ok = pl_json_next(pl_json_at(v, i), &iter, &name, &arguments);
        if (c->ok) add_call(c, name, pl_json_ref(arguments));
    }
    pl_json_free(v);
}

/* Python's name(key=value, …), one after another; what stands around them is not looked at. */
static void calls_of_python(calls *c, pl_str s)
{
    int n = 0;
    for (s = trimmed(s); c->ok && s.size > 0; s = trimmed(s), n++) {
        pl_str name;
        pl_buf json = {0};
        pl_json *v = NULL;
        pl_error err;
        (void)skip(&s, "[");
        if (!until(&s, "(", &name)) {
            c->ok = n > 0 && pl_str_is(s, "]");
            break;
        }
        bool read = pl_loose_arguments(&s, schema_of(c->r, trimmed(name)), &json) &&
                    pl_json_parse(&v, pl_buf_str(&json), &err) == PL_OK;
        name = trimmed(name);
        /* print(f(x)) of older Gemma is not read. Llama's own tools are called through a method of theirs. */
        if (name.size > 5 && memcmp(name.data + name.size - 5, ".call", 5) == 0) name.size -= 5;
        c->ok = c->ok && read && is_name(name);
        if (c->ok)
            add_call(c, name, v);
        else
            pl_json_free(v);
        pl_buf_fini(&json);
        while (s.size > 0 && (s.data[0] == ',' || s.data[0] == ';')) s = (pl_str){s.data + 1, s.size - 1};
    }
    c->ok = c->ok && n > 0;
}

static void calls_of_gemma(calls *c, pl_str s)
{
    pl_str name;
    pl_buf json = {0};
    pl_json *v = NULL;
    pl_error err;
    s = trimmed(s);
    c->ok = c->ok && skip(&s, "call:");
    const char *brace = c->ok && s.size > 0 ? memchr(s.data, '{', s.size) : NULL;
    if (!brace) {
        c->ok = false;
        return;
    }
    name = (pl_str){s.data, (size_t)(brace - s.data)};
    s = (pl_str){brace, s.size - name.size};
    if (pl_loose_value(&s, &json) && pl_json_parse(&v, pl_buf_str(&json), &err) == PL_OK)
        add_call(c, name, v);
    else
        c->ok = false;
    pl_buf_fini(&json);
}

/* Reads the calls in a body and gives them; false, and nothing given, when that cannot be done. */
static bool give_calls(pl_reply *r, body_kind kind, pl_str body)
{
    calls c = {r, pl_json_array(), true};
    if (!c.list) return false;
    switch (kind) {
    case BODY_TAGGED: calls_of_tagged(&c, body); break;
    case BODY_JSON: calls_of_text(&c, body); break;
    case BODY_NAMED: calls_of_named(&c, body); break;
    case BODY_MISTRAL: calls_of_mistral(&c, body); break;
    case BODY_LLAMA:
        if (trimmed(body).size > 0 && trimmed(body).data[0] == '{')
            calls_of_text(&c, body);
        else
            calls_of_python(&c, body);
        break;
    case BODY_DEEPSEEK: calls_of_deepseek(&c, body); break;
    case BODY_KIMI: calls_of_kimi(&c, body); break;
    case BODY_GEMMA: calls_of_gemma(&c, body); break;
    case BODY_PYTHON: calls_of_python(&c, body); break;
    case BODY_INVOKE: calls_of_invoke(&c, body); break;
    }
    size_t n = pl_json_size(c.list);
    pl_buf arguments = {0};
    bool ok = c.ok && n > 0;
    for (size_t i = 0; ok && i < n; i++) {
        const pl_json *pair = pl_json_at(c.list, i);
        pl_error err;
        pl_buf_reset(&arguments);
        if (pl_json_write(pl_json_at(pair, 1), 0, &arguments, &err) != PL_OK) {
            r->failed = true;
            break;
        }
        r->said = true;
        r->part(r->user, &(pl_reply_part){PL_REPLY_CALL, pl_buf_str(&arguments), pl_json_str(pl_json_at(pair, 0))});
    }
    pl_buf_fini(&arguments);
    pl_json_free(c.list);
    return ok;
}

/* ---- the states ---- */

typedef struct mark {
    size_t at;   /* where it begins in the held text; its size when there is none */
    size_t size; /* of the mark */
    int row;
    bool thought, stray; /* stray: it closes a thought that nothing opened */
} mark;

static void consider(const pl_reply *r, size_t from, mark *m, const char *text, int row, bool thought, bool stray)
{
    size_t n = strlen(text);
    const char *hit = r->held.size >= from + n ? memmem(r->held.data + from, r->held.size - from, text, n) : NULL;
    size_t at = hit ? (size_t)(hit - (const char *)r->held.data) : r->held.size;
    if (hit && (at < m->at || (at == m->at && n > m->size))) *m = (mark){at, n, row, thought, stray};
}

/* How many bytes at the end of the held text may be the beginning of text. */
static size_t partial(const pl_reply *r, const char *text)
{
    size_t n = strlen(text) - 1;
    if (n > r->held.size) n = r->held.size;
    while (n > 0 && memcmp(r->held.data + r->held.size - n, text, n) != 0) n--;
    return n;
}

static size_t longer(size_t a, size_t b)
{
    return a > b ? a : b;
}

static void begin_block(pl_reply *r, int row)
{
    r->state = STATE_BLOCK;
    r->row = row;
    r->looked = 0;
}

/* The next mark of content. True when the state has changed. */
static bool step_content(pl_reply *r)
{
    mark m = {.at = r->held.size};
    size_t keep = 0;
    for (int i = 0; i < N_BLOCKS && r->tools; i++) {
        if (!(r->style.blocks >> i & 1)) continue;
        consider(r, 0, &m, blocks[i].open, i, false, false);
        keep = longer(keep, partial(r, blocks[i].open));
    }
    for (int i = 0; i < N_THOUGHTS; i++) {
        if (!(r->style.thoughts >> i & 1)) continue;
        consider(r, 0, &m, thoughts[i].open, i, true, false);
        consider(r, 0, &m, thoughts[i].close, i, true, true);
        keep = longer(keep, longer(partial(r, thoughts[i].open), partial(r, thoughts[i].close)));
    }
    if (m.size == 0) {
        size_t n = r->held.size - keep;
        if (n > 0) give(r, PL_REPLY_CONTENT, (pl_str){(const char *)r->held.data, n});
        drop(r, n);
        return false;
    }
    give(r, PL_REPLY_CONTENT, (pl_str){(const char *)r->held.data, m.at});
    if (!m.thought) {
        /* The opening mark stays in front of the block, and the white space in front of both, for the case that it is
         * none. */
        drop(r, m.at);
        begin_block(r, m.row);
        return true;
    }
    forget_spaces(r);
    drop(r, m.at + m.size);
    if (!m.stray) {
        r->state = STATE_THOUGHT;
        r->row = m.row;
    }
    return true;
}

static bool step_thought(pl_reply *r)
{
    mark m = {.at = r->held.size};
    const char *close = thoughts[r->row].close;
    consider(r, 0, &m, close, r->row, true, false);
    size_t n = m.size ? m.at : r->held.size - partial(r, close);
    if (n > 0) give(r, PL_REPLY_REASONING, (pl_str){(const char *)r->held.data, n});
    drop(r, n + m.size);
    if (m.size == 0) return false;
    forget_spaces(r);
    r->state = r->tools && r->style.bare_json ? STATE_START : STATE_CONTENT;
    return true;
}

/* Gives a block's calls, or its text where it has none. size: of the whole block in the held text. */
static void end_block(pl_reply *r, pl_str body, size_t size)
{
    if (give_calls(r, blocks[r->row].body, body)) {
        forget_spaces(r);
    } else {
        r->trim = false;
        give(r, PL_REPLY_CONTENT, (pl_str){(const char *)r->held.data, size});
    }
    drop(r, size);
    r->state = STATE_CONTENT;
}

static bool step_block(pl_reply *r)
{
    const block *b = &blocks[r->row];
    if (!b->close) return false;
    size_t n_open = strlen(b->open), n_close = strlen(b->close), from = longer(r->looked, n_open);
    const char *hit =
        r->held.size >= from + n_close ? memmem(r->held.data + from, r->held.size - from, b->close, n_close) : NULL;
    if (!hit) {
        r->looked = r->held.size >= n_close ? r->held.size - n_close + 1 : 0;
        return false;
    }
    size_t at = (size_t)(hit - (const char *)r->held.data);
    /* "<function=" is a part of what it opens. */
    size_t front = b->open[n_open - 1] == '=' ? 0 : n_open;
    end_block(r, (pl_str){(const char *)r->held.data + front, at - front}, at + n_close);
    return true;
}

/* The beginning of a reply, where a call may stand without a mark, or what follows such a call. */
static bool step_start(pl_reply *r)
{
    static const char fence[] = "```json";
    pl_str s = pl_buf_str(&r->held);
    size_t at = 0, n;
    while (at < s.size) {
        bool separator = r->after_call && (s.data[at] == ';' || s.data[at] == ',');
        n = separator ? 1 : space_size(s, at);
        if (n == 0 && r->fenced && s.data[at] == '`') n = 1;
        if (n == 0) break;
        at += n;
    }
    if (r->after_call) {
        drop(r, at);
        s = pl_buf_str(&r->held);
        at = 0;
    }
    if (at == s.size) return false;
    /* A code fence may stand around it. */
    size_t left = s.size - at, known = left < sizeof fence - 1 ? left : sizeof fence - 1;
    bool fenced = memcmp(s.data + at, fence, known) == 0;
    if (fenced && left < sizeof fence - 1) return false;
    r->state = STATE_CONTENT;
    if (fenced || s.data[at] == '{' || s.data[at] == '[') {
        r->state = STATE_JSON;
        r->fenced = fenced;
        r->looked = fenced ? at + sizeof fence - 1 : at;
        r->scan = (pl_json_scan){0};
    }
    return true;
}

/* Whether every call in these is to a tool of the request: without marks a JSON answer looks like a call. */
static bool calls_known_tools(pl_reply *r, pl_str body)
{
    calls c = {r, pl_json_array(), true};
    calls_of_text(&c, body);
    bool ok = c.ok && pl_json_size(c.list) > 0;
    for (size_t i = 0; ok && i < pl_json_size(c.list); i++)
        ok = schema_of(r, pl_json_str(pl_json_at(pl_json_at(c.list, i), 0))) != NULL;
    pl_json_free(c.list);
    return ok;
}

static bool step_json(pl_reply *r)
{
    pl_str s = pl_buf_str(&r->held);
    while (r->looked < s.size && !r->scan.done) pl_json_scan_byte(&r->scan, (uint8_t)s.data[r->looked++]);
    if (!r->scan.done) return false;
    size_t from = 0;
    while (from < r->looked && s.data[from] != '{' && s.data[from] != '[') from++;
    pl_str body = {s.data + from, r->looked - from};
    if (!calls_known_tools(r, body) || !give_calls(r, BODY_JSON, body)) {
        r->state = STATE_CONTENT;
        return true;
    }
    drop(r, r->looked);
    forget_spaces(r);
    r->after_call = true;
    r->state = STATE_START;
    return true;
}

/* ---- harmony ---- */

/* assistant<|channel|>commentary to=functions.name <|constrain|>json */
static void read_header(pl_reply *r, pl_str h)
{
    pl_str channel = h, before, to = h;
    r->kind = PL_REPLY_CONTENT;
    pl_buf_reset(&r->recipient);
    if (until(&channel, "<|channel|>", &before) && channel.size >= 8 && memcmp(channel.data, "analysis", 8) == 0)
        r->kind = PL_REPLY_REASONING;
    if (until(&to, "to=", &before)) {
        size_t n = 0;
        while (n < to.size && to.data[n] != ' ' && to.data[n] != '<' && to.data[n] != '\n') n++;
        to.size = n;
        (void)skip(&to, "functions.");
        if (r->tools && to.size > 0 && !pl_str_is(to, "user") && !pl_str_is(to, "assistant")) {
            r->kind = PL_REPLY_CALL;
            pl_buf_add_str(&r->recipient, to);
        }
    }
    r->trim = true;
    pl_buf_reset(&r->spaces);
}

static bool step_header(pl_reply *r)
{
    enum { HEADER_MAX = 512 };
    pl_str s = pl_buf_str(&r->held), header = {0};
    if (until(&s, "<|message|>", &header)) {
        read_header(r, header);
        drop(r, header.size + 11);
        r->state = STATE_MESSAGE;
        return true;
    }
    if (r->held.size <= HEADER_MAX) return false;
    r->kind = PL_REPLY_CONTENT; /* no header at all */
    r->state = STATE_MESSAGE;
    return true;
}

static void end_message(pl_reply *r, pl_str body)
{
    if (r->kind != PL_REPLY_CALL) {
        give(r, r->kind, body);
    } else {
        pl_json *v = NULL;
        pl_buf arguments = {0};
        pl_error err;
        pl_str text = trimmed(body), name = pl_buf_str(&r->recipient);
        if (text.size == 0) text = PL_STR("{}");
        if (pl_json_parse_loosely(&v, text) && pl_json_type(v) == PL_JSON_OBJECT &&
            pl_json_write(v, 0, &arguments, &err) == PL_OK) {
            r->said = true;
            r->part(r->user, &(pl_reply_part){PL_REPLY_CALL, pl_buf_str(&arguments), name});
        } else {
            r->trim = false;
            give(r, PL_REPLY_CONTENT, body);
        }
        pl_json_free(v);
        pl_buf_fini(&arguments);
    }
    pl_buf_reset(&r->spaces);
}

static bool step_message(pl_reply *r)
{
    static const char *const ends[] = {"<|end|>", "<|start|>", "<|channel|>"};
    mark m = {.at = r->held.size};
    size_t keep = 0;
    for (int i = 0; i < 3; i++) {
        consider(r, r->looked, &m, ends[i], i, false, false);
        keep = longer(keep, partial(r, ends[i]));
    }
    if (m.size == 0) {
        if (r->kind == PL_REPLY_CALL) { /* kept until its end */
            r->looked = r->held.size - keep;
            return false;
        }
        size_t n = r->held.size - keep;
        if (n > 0) give(r, r->kind, (pl_str){(const char *)r->held.data, n});
        drop(r, n);
        return false;
    }
    end_message(r, (pl_str){(const char *)r->held.data, m.at});
    drop(r, m.row == 2 ? m.at : m.at + m.size); /* a channel begins the next header */
    r->looked = 0;
    r->state = STATE_HEADER;
    return true;
}

static void run(pl_reply *r)
{
    bool more = true;
    while (more && !r->failed) {
        switch (r->state) {
        case STATE_START: more = step_start(r); break;
        case STATE_CONTENT: more = step_content(r); break;
        case STATE_THOUGHT: more = step_thought(r); break;
        case STATE_BLOCK: more = step_block(r); break;
        case STATE_JSON: more = step_json(r); break;
        case STATE_HEADER: more = step_header(r); break;
        case STATE_MESSAGE: more = step_message(r); break;
        }
        more = more && r->held.size > 0;
    }
    r->failed = r->failed || r->held.failed || r->spaces.failed || r->recipient.failed;
}

/* ---- the interface ---- */

pl_status pl_reply_open(pl_reply **out, const pl_reply_style *style, pl_str prompt, const pl_json *tools,
                        pl_reply_fn part, void *user, pl_error *err)
{
    *out = NULL;
    pl_reply *r = pl_calloc(1, sizeof *r);
    if (!r) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for a reply");
    r->style = *style;
    r->tools = pl_json_size(tools) > 0 ? tools : NULL;
    r->part = part;
    r->user = user;
    r->state = style->harmony ? STATE_HEADER : r->tools && style->bare_json ? STATE_START : STATE_CONTENT;
    prompt = trimmed(prompt);
    for (int i = 0; i < N_THOUGHTS && !style->harmony; i++) {
        size_t n = strlen(thoughts[i].open);
        if (!(style->thoughts >> i & 1) || prompt.size < n) continue;
        if (memcmp(prompt.data + prompt.size - n, thoughts[i].open, n) != 0) continue;
        r->state = STATE_THOUGHT;
        r->row = i;
        r->trim = true;
    }
    *out = r;
    return PL_OK;
}

void pl_reply_close(pl_reply *r)
{
    if (!r) return;
    pl_buf_fini(&r->held);
    pl_buf_fini(&r->spaces);
    pl_buf_fini(&r->recipient);
    pl_free(r);
}

bool pl_reply_add(pl_reply *r, pl_str text)
{
    if (text.size > 0) pl_buf_add_str(&r->held, text);
    run(r);
    return !r->failed;
}

bool pl_reply_end(pl_reply *r)
{
    run(r);
    pl_str rest = pl_buf_str(&r->held);
    bool thought = r->state == STATE_THOUGHT;
    switch (r->state) {
    case STATE_BLOCK: {
        /* A block without its end: a model that stops here has meant its call. */
        const char *open = blocks[r->row].open;
        size_t n = strlen(open), front = open[n - 1] == '=' ? 0 : n;
        end_block(r, rest.size > front ? (pl_str){rest.data + front, rest.size - front} : PL_STR(""), rest.size);
        break;
    }
    case STATE_MESSAGE:
        thought = r->kind == PL_REPLY_REASONING;
        if (rest.size > 0) end_message(r, rest);
        break;
    case STATE_HEADER:
        /* Between messages nothing is left; a reply without any header is its own text. */
        if (!r->said && rest.size > 0) give(r, PL_REPLY_CONTENT, rest);
        break;
    default:
        if (rest.size > 0) give(r, thought ? PL_REPLY_REASONING : PL_REPLY_CONTENT, rest);
        break;
    }
    if (!thought && r->state != STATE_HEADER) send(r, PL_REPLY_CONTENT, pl_buf_str(&r->spaces));
    pl_buf_reset(&r->spaces);
    pl_buf_reset(&r->held);
    return !r->failed && !r->held.failed && !r->spaces.failed;
}
