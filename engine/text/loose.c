#include "engine/text/loose_impl.h"

#define DEPTH_MAX 64

void pl_json_scan_byte(pl_json_scan *s, uint8_t byte)
{
    if (s->done) return;
    if (s->in_string) {
        if (s->escaped)
            s->escaped = false;
        else if (byte == '\\')
            s->escaped = true;
        else if (byte == '"')
            s->in_string = false;
        return;
    }
    if (byte == '"') s->in_string = true;
    if (byte == '{' || byte == '[') s->depth++;
    if ((byte == '}' || byte == ']') && --s->depth <= 0) s->done = true;
}

bool pl_json_parse_loosely(pl_json **out, pl_str text)
{
    pl_error err;
    if (pl_json_parse(out, text, &err) == PL_OK) return true;
    pl_buf b = {0};
    bool in_string = false, escaped = false;
    for (size_t i = 0; i < text.size; i++) {
        uint8_t c = (uint8_t)text.data[i];
        if (in_string && c < 0x20) {
            pl_buf_printf(&b, "\\u%04x", c);
            escaped = false;
            continue;
        }
        if (c == '"' && !escaped) in_string = !in_string;
        escaped = in_string && c == '\\' && !escaped;
        pl_buf_add_u8(&b, c);
    }
    bool ok = !b.failed && pl_json_parse(out, pl_buf_str(&b), &err) == PL_OK;
    pl_buf_fini(&b);
    return ok;
}

static bool space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

pl_str pl_unquoted(pl_str s)
{
    while (s.size > 0 && (space(s.data[0]) || s.data[0] == '"' || s.data[0] == '\''))
        s = (pl_str){s.data + 1, s.size - 1};
    while (s.size > 0 && (space(s.data[s.size - 1]) || s.data[s.size - 1] == '"' || s.data[s.size - 1] == '\''))
        s.size--;
    return s;
}

static void skip_space(pl_str *s)
{
    while (s->size > 0 && space(s->data[0])) *s = (pl_str){s->data + 1, s->size - 1};
}

static bool take(pl_str *s, const char *text)
{
    size_t n = strlen(text);
    if (s->size < n || memcmp(s->data, text, n) != 0) return false;
    *s = (pl_str){s->data + n, s->size - n};
    return true;
}

static void put_char(pl_buf *out, uint8_t c)
{
    if (c == '"' || c == '\\')
        pl_buf_printf(out, "\\%c", c);
    else if (c < 0x20)
        pl_buf_printf(out, "\\u%04x", c);
    else
        pl_buf_add_u8(out, c);
}

static void put_string(pl_buf *out, pl_str s)
{
    pl_buf_add_u8(out, '"');
    for (size_t i = 0; i < s.size; i++) put_char(out, (uint8_t)s.data[i]);
    pl_buf_add_u8(out, '"');
}

/* A string in Python's or JSON's quotes, behind the opening one. */
static bool quoted(pl_str *s, char quote, pl_buf *out)
{
    pl_buf_add_u8(out, '"');
    for (size_t i = 0; i < s->size; i++) {
        char c = s->data[i];
        if (c == quote) {
            pl_buf_add_u8(out, '"');
            *s = (pl_str){s->data + i + 1, s->size - i - 1};
            return true;
        }
        if (c != '\\') {
            put_char(out, (uint8_t)c);
        } else if (++i < s->size) {
            c = s->data[i];
            if (strchr("\"\\/bfnrtu", c) && c) /* JSON has these escapes too */
                pl_buf_printf(out, "\\%c", c);
            else
                put_char(out, (uint8_t)c);
        }
    }
    return false;
}

static bool delimited(pl_str *s, const char *mark, pl_buf *out)
{
    if (!take(s, mark)) return false;
    size_t n = strlen(mark);
    const char *end = s->size >= n ? memmem(s->data, s->size, mark, n) : NULL;
    if (!end) return false;
    size_t size = (size_t)(end - s->data);
    put_string(out, (pl_str){s->data, size});
    *s = (pl_str){end + n, s->size - size - n};
    return true;
}

/* A word up to a character that ends it. */
static pl_str word(pl_str *s, const char *ends)
{
    size_t n = 0;
    while (n < s->size && !(s->data[n] && strchr(ends, s->data[n]))) n++;
    pl_str w = {s->data, n};
    *s = (pl_str){s->data + n, s->size - n};
    while (w.size > 0 && space(w.data[w.size - 1])) w.size--;
    return w;
}

static bool put_word(pl_str w, pl_buf *out)
{
    static const struct {
        const char *word, *json;
    } words[] = {{"true", "true"}, {"false", "false"}, {"null", "null"},
                 {"True", "true"}, {"False", "false"}, {"None", "null"}};
    if (w.size == 0) return false;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (pl_str_is(w, words[i].word)) return pl_buf_add_str(out, pl_str_from(words[i].json));
    }
    pl_json *v = NULL;
    pl_error err;
    bool number =
        pl_json_parse(&v, w, &err) == PL_OK && (pl_json_type(v) == PL_JSON_INT || pl_json_type(v) == PL_JSON_REAL);
    pl_json_free(v);
    if (number)
        pl_buf_add_str(out, w);
    else
        put_string(out, w);
    return true;
}

static bool value(pl_str *s, pl_buf *out, int depth);

static bool string(pl_str *s, pl_buf *out)
{
    if (take(s, "\"")) return quoted(s, '"', out);
    if (take(s, "'")) return quoted(s, '\'', out);
    return delimited(s, "<|\"|>", out) || delimited(s, "<escape>", out);
}

static bool starts_string(pl_str s)
{
    return take(&s, "\"") || take(&s, "'") || take(&s, "<|\"|>") || take(&s, "<escape>");
}

static bool members(pl_str *s, pl_buf *out, int depth)
{
    pl_buf_add_u8(out, '{');
    for (bool first = true;; first = false) {
        skip_space(s);
        if (take(s, "}")) break;
        if (!first) pl_buf_add_u8(out, ',');
        if (starts_string(*s)) {
            if (!string(s, out)) return false;
        } else {
            pl_str key = word(s, ":,}");
            if (key.size == 0) return false;
            put_string(out, key);
        }
        skip_space(s);
        if (!take(s, ":")) return false;
        pl_buf_add_u8(out, ':');
        if (!value(s, out, depth)) return false;
        skip_space(s);
        if (!take(s, ",") && !(s->size > 0 && s->data[0] == '}')) return false;
    }
    return pl_buf_add_u8(out, '}');
}

static bool elements(pl_str *s, const char *close, pl_buf *out, int depth)
{
    pl_buf_add_u8(out, '[');
    for (bool first = true;; first = false) {
        skip_space(s);
        if (take(s, close)) break;
        if (!first) pl_buf_add_u8(out, ',');
        if (!value(s, out, depth)) return false;
        skip_space(s);
        if (!take(s, ",") && !(s->size > 0 && s->data[0] == close[0])) return false;
    }
    return pl_buf_add_u8(out, ']');
}

static bool value(pl_str *s, pl_buf *out, int depth)
{
    if (depth >= DEPTH_MAX) return false;
    skip_space(s);
    if (starts_string(*s)) return string(s, out);
    if (take(s, "{")) return members(s, out, depth + 1);
    if (take(s, "[")) return elements(s, "]", out, depth + 1);
    if (take(s, "(")) return elements(s, ")", out, depth + 1);
    return put_word(word(s, ",}])\n"), out);
}

bool pl_loose_value(pl_str *s, pl_buf *out)
{
    return value(s, out, 0) && !out->failed;
}

bool pl_loose_arguments(pl_str *s, const pl_json *schema, pl_buf *out)
{
    const pl_json *properties = pl_json_get(pl_json_get(schema, "parameters"), "properties");
    void *iter = NULL;
    pl_str key;
    pl_json *member;
    bool in_order = pl_json_next(properties, &iter, &key, &member);
    pl_buf_add_u8(out, '{');
    for (bool first = true;; first = false) {
        skip_space(s);
        if (take(s, ")")) break;
        if (!first) pl_buf_add_u8(out, ',');
        /* A name and = in front of the value, or the next name of the schema. */
        size_t n = 0;
        while (n < s->size && ((s->data[n] >= 'a' && s->data[n] <= 'z') || (s->data[n] >= 'A' && s->data[n] <= 'Z') ||
                               (s->data[n] >= '0' && s->data[n] <= '9') || s->data[n] == '_'))
            n++;
        pl_str name = {s->data, n}, rest = {s->data + n, s->size - n};
        skip_space(&rest);
        if (n > 0 && take(&rest, "=")) {
            put_string(out, name);
            *s = rest;
        } else if (in_order) {
            put_string(out, key);
            in_order = pl_json_next(properties, &iter, &key, &member);
        } else {
            return false;
        }
        pl_buf_add_u8(out, ':');
        if (!value(s, out, 0)) return false;
        skip_space(s);
        if (!take(s, ",") && !(s->size > 0 && s->data[0] == ')')) return false;
    }
    return pl_buf_add_u8(out, '}') && !out->failed;
}
