/* Template text to tokens. White space around tags is decided here, so that nothing later has to know of it. */
#include <stdlib.h>

#include "engine/text/jinja_impl.h"

typedef struct lexer {
    pl_arena *arena;
    pl_str src;
    size_t pos;
    int line; /* of line_at */
    size_t line_at, line_start;
    bool line_starting; /* what came before pos ended with a line break */
    pl_jtoken *tokens;
    size_t n, cap;
    char open[256]; /* the closers of the open brackets */
    int n_open;
    pl_error *err;
} lexer;

static bool is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

size_t pl_jinja_space_at(pl_str s)
{
    if (s.size == 0) return 0;
    const uint8_t *p = (const uint8_t *)s.data;
    if (p[0] < 0x80) return is_space(p[0]);
    if (p[0] < 0xe0) return s.size >= 2 && is_space((uint32_t)(p[0] & 31) << 6 | (p[1] & 63u)) ? 2 : 0;
    if (p[0] < 0xf0)
        return s.size >= 3 && is_space((uint32_t)(p[0] & 15) << 12 | (uint32_t)(p[1] & 63) << 6 | (p[2] & 63u)) ? 3 : 0;
    return 0;
}

size_t pl_jinja_space_before(pl_str s)
{
    size_t n = 1;
    while (n < s.size && n < 4 && ((uint8_t)s.data[s.size - n] & 0xc0) == 0x80) n++;
    return n <= s.size && pl_jinja_space_at((pl_str){s.data + s.size - n, n}) == n ? n : 0;
}

static void place(lexer *l, size_t pos, int *line, int *col)
{
    for (; l->line_at < pos; l->line_at++) {
        if (l->src.data[l->line_at] != '\n') continue;
        l->line++;
        l->line_start = l->line_at + 1;
    }
    *line = l->line;
    *col = (int)(pos - l->line_start) + 1;
}

static pl_status fail(lexer *l, size_t pos, const char *what)
{
    int line, col;
    place(l, pos, &line, &col);
    return pl_fail(l->err, PL_ERR_FORMAT, "template line %d, column %d: %s", line, col, what);
}

static pl_jtoken *push(lexer *l, pl_jtoken_kind kind, size_t pos)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 256;
        pl_jtoken *t = pl_arena_alloc(l->arena, cap * sizeof *t);
        if (!t) return NULL;
        if (l->n) memcpy(t, l->tokens, l->n * sizeof *t);
        l->tokens = t;
        l->cap = cap;
    }
    pl_jtoken *t = &l->tokens[l->n++];
    *t = (pl_jtoken){.kind = kind};
    place(l, pos, &t->line, &t->col);
    return t;
}

static pl_status no_memory(lexer *l)
{
    return pl_fail(l->err, PL_ERR_NO_MEMORY, "no memory for a template of %zu bytes", l->src.size);
}

static bool starts(const lexer *l, size_t pos, const char *with)
{
    size_t n = strlen(with);
    return n <= l->src.size - pos && memcmp(l->src.data + pos, with, n) == 0;
}

static size_t skip_spaces(const lexer *l, size_t pos)
{
    for (size_t n; (n = pl_jinja_space_at((pl_str){l->src.data + pos, l->src.size - pos})) > 0;) pos += n;
    return pos;
}

/* Behind the end of a tag: what its sign and trim_blocks take. at is the first byte of the end, whose two characters
 * are given. */
static bool tag_end(lexer *l, size_t at, const char *end, bool trim, size_t *behind)
{
    if (starts(l, at, end)) {
        *behind = at + 2;
        if (trim && *behind < l->src.size && l->src.data[*behind] == '\n') ++*behind;
        return true;
    }
    if (at + 3 > l->src.size || !starts(l, at + 1, end)) return false;
    if (l->src.data[at] == '-') {
        *behind = skip_spaces(l, at + 3);
        return true;
    }
    if (trim && l->src.data[at] == '+') {
        *behind = at + 3;
        return true;
    }
    return false;
}

static void arrive(lexer *l, size_t pos)
{
    if (pos > l->pos) l->line_starting = l->src.data[pos - 1] == '\n';
    l->pos = pos;
}

/* The text in front of a tag, without what the tag's sign or lstrip_blocks take from its end. */
static pl_str text_before(const lexer *l, size_t from, size_t to, char sign, bool lstrip)
{
    pl_str t = {l->src.data + from, to - from};
    if (sign == '-') {
        for (size_t n; (n = pl_jinja_space_before(t)) > 0;) t.size -= n;
    } else if (sign != '+' && lstrip) {
        size_t line = t.size;
        while (line > 0 && t.data[line - 1] != '\n') line--;
        pl_str rest = {t.data + line, t.size - line};
        for (size_t n; (n = pl_jinja_space_at(rest)) > 0;) rest = (pl_str){rest.data + n, rest.size - n};
        if (rest.size == 0 && (line > 0 || l->line_starting)) t.size = line;
    }
    return t;
}

static char sign_at(const lexer *l, size_t pos)
{
    return pos < l->src.size && (l->src.data[pos] == '-' || l->src.data[pos] == '+') ? l->src.data[pos] : 0;
}

static pl_status push_data(lexer *l, size_t pos, pl_str text)
{
    if (text.size == 0) return PL_OK;
    pl_jtoken *t = push(l, PL_JT_DATA, pos);
    if (!t) return no_memory(l);
    t->text = text;
    return PL_OK;
}

/* Whether a raw block begins at the {% at pos; *behind is behind its end. */
static bool raw_begin(const lexer *l, size_t pos, size_t *behind)
{
    pos += 2;
    if (sign_at(l, pos)) pos++;
    pos = skip_spaces(l, pos);
    if (!starts(l, pos, "raw")) return false;
    pos = skip_spaces(l, pos + 3);
    if (starts(l, pos, "-%}"))
        *behind = skip_spaces(l, pos + 3);
    else if (starts(l, pos, "%}"))
        *behind = pos + 2;
    else
        return false;
    return true;
}

static pl_status lex_raw(lexer *l)
{
    for (size_t p = l->pos; p + 1 < l->src.size; p++) {
        size_t q = p + 2, behind;
        if (!starts(l, p, "{%")) continue;
        char sign = sign_at(l, q);
        q = skip_spaces(l, sign ? q + 1 : q);
        if (!starts(l, q, "endraw")) continue;
        q = skip_spaces(l, q + 6);
        if (!tag_end(l, q, "%}", true, &behind)) continue;
        PL_TRY(push_data(l, l->pos, text_before(l, l->pos, p, sign, true)));
        arrive(l, behind);
        return PL_OK;
    }
    return fail(l, l->pos, "the raw block has no end");
}

static bool name_start(uint8_t c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c >= 0x80;
}
static bool digit(uint8_t c)
{
    return c >= '0' && c <= '9';
}
static int hex_digit(uint8_t c)
{
    return digit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static size_t put_utf8(char *out, uint32_t c)
{
    if (c < 0x80) return out[0] = (char)c, 1;
    if (c < 0x800) return out[0] = (char)(0xc0 | c >> 6), out[1] = (char)(0x80 | (c & 63)), 2;
    if (c < 0x10000)
        return out[0] = (char)(0xe0 | c >> 12), out[1] = (char)(0x80 | (c >> 6 & 63)), out[2] = (char)(0x80 | (c & 63)),
               3;
    return out[0] = (char)(0xf0 | c >> 18), out[1] = (char)(0x80 | (c >> 12 & 63)),
           out[2] = (char)(0x80 | (c >> 6 & 63)), out[3] = (char)(0x80 | (c & 63)), 4;
}

/* Python's escapes. No escape makes a string longer than it stands in the template. */
static pl_status lex_string(lexer *l)
{
    const char *d = l->src.data;
    size_t start = l->pos, p = start + 1;
    char quote = d[start];
    while (p < l->src.size && d[p] != quote) p += d[p] == '\\' ? 2 : 1;
    if (p >= l->src.size) return fail(l, start, "the string has no end");
    pl_jtoken *t = push(l, PL_JT_STRING, start);
    char *s = pl_arena_alloc(l->arena, p - start);
    if (!t || !s) return no_memory(l);
    size_t n = 0;
    for (size_t i = start + 1; i < p;) {
        if (d[i] != '\\') {
            s[n++] = d[i++];
            continue;
        }
        static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
        char c = d[i + 1];
        const char *known = c ? strchr(from, c) : NULL;
        int width = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
        if (known) {
            s[n++] = to[known - from];
            i += 2;
        } else if (c == '\n') {
            i += 2;
        } else if (width || (c >= '0' && c <= '7')) {
            uint32_t v = 0;
            size_t k = i + 1;
            if (width) {
                k++;
                for (int j = 0; j < width; j++, k++) {
                    int h = k < p ? hex_digit((uint8_t)d[k]) : -1;
                    if (h < 0) return fail(l, i, "the escape is cut short");
                    v = v * 16 + (uint32_t)h;
                }
            } else {
                for (int j = 0; j < 3 && k < p && d[k] >= '0' && d[k] <= '7'; j++, k++)
                    v = v * 8 + (uint32_t)(d[k] - '0');
            }
            if (v > 0x10ffff || (v >= 0xd800 && v < 0xe000)) return fail(l, i, "the escape is no character");
            n += put_utf8(s + n, v);
            i = k;
        } else {
            s[n++] = d[i++];
        }
    }
    t->text = (pl_str){s, n};
    arrive(l, p + 1);
    return PL_OK;
}

static pl_status lex_number(lexer *l)
{
    const char *d = l->src.data;
    size_t start = l->pos, p = start, n = 0, size = l->src.size;
    char text[64];
    int base = 10;
    bool real = false, index = start > 0 && d[start - 1] == '.'; /* x.0.1 is two indices */
    if (d[p] == '0' && p + 1 < size && strchr("xXoObB", d[p + 1])) {
        char c = d[p + 1];
        base = c == 'x' || c == 'X' ? 16 : c == 'o' || c == 'O' ? 8 : 2;
        p += 2;
    }
    for (; p < size; p++) {
        uint8_t c = (uint8_t)d[p];
        if (c == '_') continue;
        int h = hex_digit(c);
        if (h < 0 || h >= base) {
            bool dot = base == 10 && c == '.' && !real && !index && p + 1 < size && digit((uint8_t)d[p + 1]);
            size_t sign =
                base == 10 && (c == 'e' || c == 'E') && p + 1 < size && (d[p + 1] == '+' || d[p + 1] == '-') ? 1 : 0;
            bool power = base == 10 && !index && (c == 'e' || c == 'E') && p + 1 + sign < size &&
                         digit((uint8_t)d[p + 1 + sign]);
            if (!dot && !power) break;
            real = true;
            if (n + 2 < sizeof text) {
                text[n++] = (char)c;
                if (sign) text[n++] = d[p + 1];
            }
            p += sign;
            if (power) { /* only digits follow */
                for (p++; p < size && (digit((uint8_t)d[p]) || d[p] == '_'); p++) {
                    if (d[p] != '_' && n + 1 < sizeof text) text[n++] = d[p];
                }
                break;
            }
            continue;
        }
        if (n + 1 >= sizeof text) return fail(l, start, "the number is too long");
        text[n++] = (char)c;
    }
    text[n] = 0;
    pl_jtoken *t = push(l, real ? PL_JT_FLOAT : PL_JT_INT, start);
    if (!t) return no_memory(l);
    if (real) {
        t->f = strtod(text, NULL);
    } else {
        for (size_t i = 0; i < n; i++) {
            if (__builtin_mul_overflow(t->i, (int64_t)base, &t->i) ||
                __builtin_add_overflow(t->i, (int64_t)hex_digit((uint8_t)text[i]), &t->i))
                return fail(l, start, "the integer does not fit into 64 bits");
        }
    }
    arrive(l, p);
    return PL_OK;
}

static pl_status lex_operator(lexer *l)
{
    static const char *const two[] = {"==", "!=", "<=", ">=", "**", "//"};
    size_t at = l->pos;
    char c = l->src.data[at];
    int op = 0;
    for (size_t i = 0; i < sizeof two / sizeof two[0]; i++) {
        if (starts(l, at, two[i])) op = PL_JOP(two[i][0], two[i][1]);
    }
    if (!op && c && strchr("+-/*%~[](){}<>=.:|,", c)) op = c;
    if (!op) return fail(l, at, "unexpected character");
    if (c == '(' || c == '[' || c == '{') {
        if (l->n_open == sizeof l->open) return fail(l, at, "brackets are nested too deeply");
        l->open[l->n_open++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
        if (l->n_open == 0 || l->open[--l->n_open] != c) return fail(l, at, "this bracket closes none");
    }
    pl_jtoken *t = push(l, PL_JT_OP, at);
    if (!t) return no_memory(l);
    t->op = op;
    arrive(l, at + (op > 255 ? 2 : 1));
    return PL_OK;
}

/* The inside of a tag, to its end. */
static pl_status lex_tag(lexer *l, bool block)
{
    size_t begin = l->pos;
    for (;;) {
        l->pos = skip_spaces(l, l->pos);
        if (l->pos >= l->src.size) return fail(l, begin, "the tag has no end");
        size_t at = l->pos, behind;
        if (l->n_open == 0 && tag_end(l, at, block ? "%}" : "}}", block, &behind)) {
            if (!push(l, block ? PL_JT_BLOCK_END : PL_JT_VAR_END, at)) return no_memory(l);
            arrive(l, behind);
            return PL_OK;
        }
        uint8_t c = (uint8_t)l->src.data[at];
        if (c == '"' || c == '\'') {
            PL_TRY(lex_string(l));
        } else if (digit(c)) {
            PL_TRY(lex_number(l));
        } else if (name_start(c)) {
            size_t p = at;
            while (p < l->src.size && (name_start((uint8_t)l->src.data[p]) || digit((uint8_t)l->src.data[p]))) p++;
            pl_jtoken *t = push(l, PL_JT_NAME, at);
            if (!t) return no_memory(l);
            t->text = (pl_str){l->src.data + at, p - at};
            arrive(l, p);
        } else {
            PL_TRY(lex_operator(l));
        }
    }
}

static pl_status lex_comment(lexer *l, size_t begin)
{
    for (size_t p = l->pos; p + 1 < l->src.size; p++) {
        size_t behind;
        if (!tag_end(l, p, "#}", true, &behind)) continue;
        arrive(l, behind);
        return PL_OK;
    }
    return fail(l, begin, "the comment has no end");
}

static pl_status lex(lexer *l)
{
    while (l->pos < l->src.size) {
        size_t p = l->pos;
        while (p + 1 < l->src.size &&
               !(l->src.data[p] == '{' && strchr("{%#", l->src.data[p + 1]) && l->src.data[p + 1]))
            p++;
        if (p + 1 >= l->src.size) { /* no more tags */
            PL_TRY(push_data(l, l->pos, (pl_str){l->src.data + l->pos, l->src.size - l->pos}));
            break;
        }
        char kind = l->src.data[p + 1], sign = sign_at(l, p + 2);
        PL_TRY(push_data(l, l->pos, text_before(l, l->pos, p, sign, kind != '{')));
        size_t behind;
        if (kind == '%' && raw_begin(l, p, &behind)) {
            arrive(l, behind);
            PL_TRY(lex_raw(l));
            continue;
        }
        arrive(l, p + (sign ? 3 : 2));
        if (kind == '#') {
            PL_TRY(lex_comment(l, p));
            continue;
        }
        if (!push(l, kind == '%' ? PL_JT_BLOCK_BEGIN : PL_JT_VAR_BEGIN, p)) return no_memory(l);
        PL_TRY(lex_tag(l, kind == '%'));
    }
    return push(l, PL_JT_EOF, l->src.size) ? PL_OK : no_memory(l);
}

pl_status pl_jinja_lex(pl_arena *a, pl_str source, pl_jtoken **out, pl_error *err)
{
    /* Line breaks become \n, and one at the very end is dropped. */
    char *s = pl_arena_alloc(a, source.size + 1);
    size_t n = 0;
    if (!s) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for a template of %zu bytes", source.size);
    for (size_t i = 0; i < source.size; i++) {
        char c = source.data[i];
        if (c == '\r') {
            if (i + 1 < source.size && source.data[i + 1] == '\n') continue;
            c = '\n';
        }
        s[n++] = c;
    }
    if (n > 0 && s[n - 1] == '\n') n--;
    lexer l = {.arena = a, .src = {s, n}, .line = 1, .line_starting = true, .err = err};
    if (!pl_utf8_valid(l.src))
        return pl_fail(err, PL_ERR_FORMAT, "the template is not UTF-8 at byte %zu", pl_utf8_valid_prefix(l.src));
    pl_status st = lex(&l);
    *out = l.tokens;
    return st;
}
