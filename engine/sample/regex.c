/* An expression is rewritten piece by piece: what it matches is text, what stands in the answer is that text as JSON
 * writes it. So characters that JSON escapes become alternatives of their own. */
#include <stdio.h>

#include "engine/base/bytes.h"
#include "engine/sample/json_schema_impl.h"

#define NESTING 32

typedef struct rewriter {
    pl_str text;
    size_t at;
    pl_buf *out;
    int depth;
    char *why;
    size_t why_size;
} rewriter;

/* Characters of a class: ASCII one by one, the others all together or in ranges. */
typedef struct set {
    bool ascii[128];
    uint32_t low[64], high[64];
    int n;
    bool ascii_only; /* a complement must not gain letters of other scripts */
} set;

static pl_status fail(rewriter *r, pl_status s, const char *what)
{
    snprintf(r->why, r->why_size, "at byte %zu: %s", r->at, what);
    return s;
}

static int peek(const rewriter *r)
{
    return r->at < r->text.size ? (unsigned char)r->text.data[r->at] : -1;
}

static bool take(rewriter *r, char c)
{
    if (peek(r) != (unsigned char)c) return false;
    r->at++;
    return true;
}

static pl_status read_code(rewriter *r, uint32_t *out)
{
    uint8_t b = (uint8_t)r->text.data[r->at];
    size_t n = b < 0x80 ? 1 : b < 0xe0 ? 2 : b < 0xf0 ? 3 : 4;
    if (n > r->text.size - r->at || pl_utf8_valid_prefix((pl_str){r->text.data + r->at, n}) != n)
        return fail(r, PL_ERR_INVALID, "not UTF-8");
    *out = n == 1 ? b : b & (0xffu >> (n + 1));
    for (size_t i = 1; i < n; i++) *out = *out << 6 | ((uint8_t)r->text.data[r->at + i] & 0x3fu);
    r->at += n;
    return PL_OK;
}

static pl_status read_hex(rewriter *r, int digits, uint32_t *out)
{
    *out = 0;
    for (int i = 0; i < digits; i++, r->at++) {
        int c = peek(r);
        int v = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (v < 0) return fail(r, PL_ERR_INVALID, "a hexadecimal digit is missing");
        *out = *out << 4 | (uint32_t)v;
    }
    return *out >= 0xd800 && *out < 0xe000 ? fail(r, PL_ERR_UNSUPPORTED, "surrogates are not supported") : PL_OK;
}

static void add_ascii(set *s, int low, int high)
{
    for (int c = low; c <= high && c < 128; c++) s->ascii[c] = true;
}

static pl_status add_range(rewriter *r, set *s, uint32_t low, uint32_t high)
{
    if (low > high) return fail(r, PL_ERR_INVALID, "a range that ends before it begins");
    if (low < 128) add_ascii(s, (int)low, high < 128 ? (int)high : 127);
    if (high < 128) return PL_OK;
    if (s->n == 64) return fail(r, PL_ERR_UNSUPPORTED, "a class of so many ranges is not supported");
    s->low[s->n] = low < 128 ? 128 : low;
    s->high[s->n++] = high;
    return PL_OK;
}

/* \d and the like; false when c is none. */
static bool add_named(set *s, int c)
{
    bool in[128] = {false};
    for (int i = 0; i < 128; i++) {
        bool digit = i >= '0' && i <= '9', letter = (i >= 'a' && i <= 'z') || (i >= 'A' && i <= 'Z');
        bool space = i == ' ' || (i >= '\t' && i <= '\r');
        switch (c) {
        case 'd': in[i] = digit; break;
        case 'D': in[i] = !digit; break;
        case 'w': in[i] = digit || letter || i == '_'; break;
        case 'W': in[i] = !(digit || letter || i == '_'); break;
        case 's': in[i] = space; break;
        case 'S': in[i] = !space; break;
        default: return false;
        }
    }
    for (int i = 0; i < 128; i++) s->ascii[i] |= in[i];
    s->ascii_only = true;
    return true;
}

/* One character behind a backslash. */
static pl_status read_escape(rewriter *r, bool in_class, uint32_t *out)
{
    int c = peek(r);
    if (c < 0) return fail(r, PL_ERR_INVALID, "it ends behind a backslash");
    if (c >= 0x80) return fail(r, PL_ERR_INVALID, "no such escape");
    r->at++;
    switch (c) {
    case 'n': *out = '\n'; return PL_OK;
    case 'r': *out = '\r'; return PL_OK;
    case 't': *out = '\t'; return PL_OK;
    case 'f': *out = '\f'; return PL_OK;
    case 'v': *out = '\v'; return PL_OK;
    case '0': *out = 0; return PL_OK;
    case 'x': return read_hex(r, 2, out);
    case 'u': return read_hex(r, 4, out);
    case 'b':
        if (!in_class) return fail(r, PL_ERR_UNSUPPORTED, "word boundaries are not supported");
        *out = '\b';
        return PL_OK;
    default:
        if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
            return fail(r, PL_ERR_UNSUPPORTED, "this escape is not supported");
        *out = (uint32_t)c;
        return PL_OK;
    }
}

/* Characters that may stand in a grammar's class as they are, JSON's excepted. */
static void add_class_char(pl_buf *out, uint32_t c)
{
    if (c < 128)
        pl_buf_printf(out, "\\x%02x", c);
    else
        pl_buf_printf(out, "\\U%08x", c);
}

static void add_alternative(pl_buf *out, bool *first, const char *text)
{
    pl_buf_add_str(out, *first ? PL_STR("") : PL_STR(" | "));
    pl_buf_add_str(out, pl_str_from(text));
    *first = false;
}

static pl_status write_set(rewriter *r, const set *s)
{
    static const struct {
        char c;
        const char *text;
    } escaped[] = {{'"', "\"\\\\\\\"\""}, {'\\', "\"\\\\\\\\\""}, {'\n', "\"\\\\n\""}, {'\r', "\"\\\\r\""},
                   {'\t', "\"\\\\t\""},   {'\f', "\"\\\\f\""},    {'\b', "\"\\\\b\""}};
    bool first = true, any = s->n > 0;
    for (int c = 0x20; c < 0x7f; c++) any |= s->ascii[c] && c != '"' && c != '\\';
    pl_buf_add_u8(r->out, '(');
    if (any) {
        add_alternative(r->out, &first, "[");
        for (int c = 0x20; c < 0x7f; c++) {
            if (!s->ascii[c] || c == '"' || c == '\\') continue;
            int end = c;
            while (end + 1 < 0x7f && s->ascii[end + 1] && end + 1 != '"' && end + 1 != '\\') end++;
            add_class_char(r->out, (uint32_t)c);
            if (end > c) {
                pl_buf_add_u8(r->out, '-');
                add_class_char(r->out, (uint32_t)end);
            }
            c = end;
        }
        for (int i = 0; i < s->n; i++) {
            add_class_char(r->out, s->low[i]);
            pl_buf_add_u8(r->out, '-');
            add_class_char(r->out, s->high[i]);
        }
        pl_buf_add_u8(r->out, ']');
    }
    for (size_t i = 0; i < sizeof escaped / sizeof *escaped; i++)
        if (s->ascii[(int)escaped[i].c]) add_alternative(r->out, &first, escaped[i].text);
    pl_buf_add_u8(r->out, ')');
    return first ? fail(r, PL_ERR_INVALID, "a class that no character is in") : PL_OK;
}

static void complement(set *s)
{
    for (int c = 0; c < 128; c++) s->ascii[c] = !s->ascii[c];
    /* The ranges above ASCII are not turned round one by one: where there are some, or a class of letters, only ASCII
     * stays, which is inside of the complement in any case. */
    bool all = s->n == 0 && !s->ascii_only;
    s->n = 0;
    if (!all) return;
    s->low[0] = 0x80;
    s->high[0] = 0xd7ff;
    s->low[1] = 0xe000;
    s->high[1] = 0x10ffff;
    s->n = 2;
}

static pl_status rewrite_class(rewriter *r)
{
    set s = {0};
    bool negated = take(r, '^');
    while (peek(r) != ']') {
        uint32_t low, high;
        if (peek(r) < 0) return fail(r, PL_ERR_INVALID, "a class without an end");
        if (peek(r) == '\\' && r->at + 1 < r->text.size && add_named(&s, r->text.data[r->at + 1])) {
            r->at += 2;
            continue;
        }
        if (take(r, '\\'))
            PL_TRY(read_escape(r, true, &low));
        else
            PL_TRY(read_code(r, &low));
        high = low;
        if (peek(r) == '-' && r->at + 1 < r->text.size && r->text.data[r->at + 1] != ']') {
            r->at++;
            if (take(r, '\\'))
                PL_TRY(read_escape(r, true, &high));
            else
                PL_TRY(read_code(r, &high));
        }
        PL_TRY(add_range(r, &s, low, high));
    }
    r->at++;
    if (negated) complement(&s);
    return write_set(r, &s);
}

static pl_status rewrite_code(rewriter *r, uint32_t c)
{
    set s = {0};
    PL_TRY(add_range(r, &s, c, c));
    return write_set(r, &s);
}

static pl_status rewrite_choice(rewriter *r, bool top);

static pl_status rewrite_atom(rewriter *r)
{
    set s = {0};
    uint32_t c;
    switch (peek(r)) {
    case '(':
        r->at++;
        if (take(r, '?')) {
            bool named = r->text.size - r->at > 1 && r->text.data[r->at] == '<' && r->text.data[r->at + 1] != '=' &&
                         r->text.data[r->at + 1] != '!';
            if (named) {
                while (peek(r) >= 0 && peek(r) != '>') r->at++;
                r->at++;
            } else if (!take(r, ':')) {
                return fail(r, PL_ERR_UNSUPPORTED, "look-around is not supported");
            }
        }
        if (r->depth == NESTING) return fail(r, PL_ERR_UNSUPPORTED, "groups are nested too deeply");
        r->depth++;
        PL_TRY(rewrite_choice(r, false));
        r->depth--;
        return take(r, ')') ? PL_OK : fail(r, PL_ERR_INVALID, "a closing parenthesis is missing");
    case '[': r->at++; return rewrite_class(r);
    case '.':
        r->at++;
        s.ascii['\n'] = s.ascii['\r'] = true;
        complement(&s);
        return write_set(r, &s);
    case '\\':
        r->at++;
        if (peek(r) >= 0 && add_named(&s, peek(r))) {
            r->at++;
            return write_set(r, &s);
        }
        PL_TRY(read_escape(r, false, &c));
        return rewrite_code(r, c);
    case '*':
    case '+':
    case '?':
    case '{': return fail(r, PL_ERR_INVALID, "there is nothing to repeat");
    case '^':
    case '$': return fail(r, PL_ERR_UNSUPPORTED, "^ and $ inside of an expression are not supported");
    default: PL_TRY(read_code(r, &c)); return rewrite_code(r, c);
    }
}

/* A count, at most 100000; false when there is none. */
static bool read_count(rewriter *r, int32_t *out)
{
    size_t from = r->at;
    int32_t v = 0;
    while (peek(r) >= '0' && peek(r) <= '9' && v <= 100000) v = v * 10 + (r->text.data[r->at++] - '0');
    *out = v;
    return r->at > from && v <= 100000;
}

/* "{m}", "{m,}" and "{m,n}", behind the brace. */
static pl_status rewrite_counts(rewriter *r)
{
    int32_t min, max;
    if (!read_count(r, &min)) return fail(r, PL_ERR_INVALID, "a count of at most 100000 is missing");
    pl_buf_printf(r->out, "{%d", (int)min);
    if (take(r, ',')) {
        pl_buf_add_u8(r->out, ',');
        if (peek(r) != '}') {
            if (!read_count(r, &max)) return fail(r, PL_ERR_INVALID, "a count of at most 100000 is missing");
            if (max < min) return fail(r, PL_ERR_INVALID, "the highest count is below the lowest");
            pl_buf_printf(r->out, "%d", (int)max);
        }
    }
    pl_buf_add_u8(r->out, '}');
    return take(r, '}') ? PL_OK : fail(r, PL_ERR_INVALID, "a closing brace is missing");
}

/* A quantifier is the same in both languages, but for "lazy" and the like, which change nothing here. */
static pl_status rewrite_quantifier(rewriter *r)
{
    int c = peek(r);
    if (c == '*' || c == '+' || c == '?') {
        pl_buf_add_u8(r->out, (uint8_t)c);
        r->at++;
    } else if (c == '{') {
        r->at++;
        PL_TRY(rewrite_counts(r));
    } else {
        return PL_OK;
    }
    take(r, '?');
    return PL_OK;
}

/* Alternatives in parentheses. At the top each is anchored or not by itself. */
static pl_status rewrite_choice(rewriter *r, bool top)
{
    pl_buf_add_u8(r->out, '(');
    do {
        bool begins = top && take(r, '^'), ends = false;
        pl_buf_add_str(r->out, top && !begins ? PL_STR("char* \"\"") : PL_STR("\"\""));
        while (peek(r) >= 0 && peek(r) != '|' && peek(r) != ')') {
            int next = r->at + 1 < r->text.size ? (unsigned char)r->text.data[r->at + 1] : -1;
            if (top && peek(r) == '$' && (next < 0 || next == '|')) {
                ends = true;
                r->at++;
                break;
            }
            pl_buf_add_u8(r->out, ' ');
            PL_TRY(rewrite_atom(r));
            PL_TRY(rewrite_quantifier(r));
        }
        if (top && !ends) pl_buf_add_str(r->out, PL_STR(" char*"));
        if (peek(r) == '|') pl_buf_add_str(r->out, PL_STR(" | "));
    } while (take(r, '|'));
    pl_buf_add_u8(r->out, ')');
    if (top && r->at < r->text.size) return fail(r, PL_ERR_INVALID, "a closing parenthesis without an opening one");
    return PL_OK;
}

pl_status pl_regex_grammar(pl_str pattern, pl_buf *out, char *why, size_t why_size)
{
    rewriter r = {.text = pattern, .out = out, .why = why, .why_size = why_size};
    return rewrite_choice(&r, true);
}
