/* Filters, tests, methods and functions, each in a table by its name. What mutates is not allowed, as in jinja2's
 * immutable sandbox. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <utf8proc.h>

#include "engine/base/sys.h"
#include "engine/text/chars_impl.h"
#include "engine/text/jinja_impl.h"

static const pl_jvalue missing = {.kind = PL_JV_MISSING};

/* The argument at place i or of this name. */
static pl_jvalue arg(const pl_jcall *c, size_t i, const char *name)
{
    if (i < c->n) return c->args[i];
    for (size_t k = 0; k < c->n_keywords; k++) {
        if (pl_str_is(c->keywords[k].key.u.s, name)) return c->keywords[k].value;
    }
    return missing;
}

static bool given(pl_jvalue v)
{
    return v.kind != PL_JV_MISSING;
}
static bool absent(pl_jvalue v)
{
    return v.kind == PL_JV_MISSING || v.kind == PL_JV_NONE;
}
static pl_jvalue wrong(pl_jeval *e, const char *what, pl_jvalue v)
{
    if (v.kind == PL_JV_UNDEFINED) return pl_jfail(e, PL_ERR_INVALID, "%.*s", PL_STR_ARG(v.u.s));
    return pl_jfail(e, PL_ERR_INVALID, "%s does not take a %s", what, pl_jv_type(v));
}
static int64_t int_or(pl_jvalue v, int64_t otherwise)
{
    return v.kind == PL_JV_INT ? v.u.i : v.kind == PL_JV_BOOL ? v.u.b : otherwise;
}
static pl_str str_or(pl_jvalue v, const char *otherwise)
{
    return v.kind == PL_JV_STRING ? v.u.s : pl_str_from(otherwise);
}

/* ---- strings ---- */

typedef enum { UPPER, LOWER, CAPITALIZE, TITLE, SWAP } casing;

static bool is_letter(int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);
    return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}
static bool is_upper(int32_t c)
{
    return utf8proc_category(c) == UTF8PROC_CATEGORY_LU;
}
static bool is_lower(int32_t c)
{
    return utf8proc_category(c) == UTF8PROC_CATEGORY_LL;
}

/* filter_title: words begin behind a space or an opening mark only, as jinja2's filter has it; Python's method begins
 * one behind any non-letter. */
static pl_jvalue cased(pl_jeval *e, pl_str s, casing how, bool filter_title)
{
    pl_buf b = {0};
    bool start = true;
    if (!pl_jstep(e, s.size / 16)) return missing;
    for (size_t i = 0; i < s.size;) {
        int32_t c;
        i += pl_char_at(s, i, &c);
        bool up = how == UPPER || ((how == CAPITALIZE || how == TITLE) && start) || (how == SWAP && is_lower(c));
        if (up && c == 0xdf)
            pl_buf_add(&b, how == UPPER || how == SWAP ? "SS" : "Ss",
                       2); /* the only common letter whose upper case is two */
        else
            pl_char_put(&b, up ? (how == UPPER || how == SWAP ? utf8proc_toupper(c) : utf8proc_totitle(c))
                               : utf8proc_tolower(c));
        if (how == CAPITALIZE)
            start = false;
        else if (filter_title)
            start = c == '-' || c == '(' || c == '{' || c == '[' || c == '<' ||
                    pl_jinja_space_at((pl_str){s.data + i - 1, 1}) > 0;
        else
            start = !is_letter(c);
    }
    return pl_jv_take(e, &b);
}

static bool in_set(int32_t c, pl_str set)
{
    for (size_t i = 0; i < set.size;) {
        int32_t d;
        i += pl_char_at(set, i, &d);
        if (c == d) return true;
    }
    return false;
}

static pl_jvalue strip(pl_jeval *e, pl_str s, pl_jvalue chars, bool left, bool right)
{
    if (!absent(chars) && chars.kind != PL_JV_STRING) return wrong(e, "strip", chars);
    bool spaces = absent(chars);
    if (!pl_jstep(e, s.size / 64 + (spaces ? 0 : chars.u.s.size / 8))) return missing;
    while (left && s.size) {
        int32_t c;
        size_t n = spaces ? pl_jinja_space_at(s) : pl_char_at(s, 0, &c);
        if (n == 0 || (!spaces && !in_set(c, chars.u.s))) break;
        s = (pl_str){s.data + n, s.size - n};
    }
    while (right && s.size) {
        int32_t c = 0;
        size_t n = 0;
        if (spaces) {
            n = pl_jinja_space_before(s);
        } else {
            for (n = 1; n < s.size && ((uint8_t)s.data[s.size - n] & 0xc0) == 0x80;) n++;
            pl_char_at(s, s.size - n, &c);
            if (!in_set(c, chars.u.s)) n = 0;
        }
        if (n == 0) break;
        s.size -= n;
    }
    return pl_jv_borrow(s);
}

static const char *find(pl_str s, pl_str what)
{
    return what.size == 0 ? s.data : s.size < what.size ? NULL : memmem(s.data, s.size, what.data, what.size);
}
static const char *find_last(pl_str s, pl_str what)
{
    for (size_t i = s.size < what.size ? 0 : s.size - what.size + 1; i > 0; i--) {
        if (memcmp(s.data + i - 1, what.data, what.size) == 0) return s.data + i - 1;
    }
    return NULL;
}

static pl_jvalue replace(pl_jeval *e, pl_str s, pl_jvalue from, pl_jvalue to, pl_jvalue count)
{
    if (from.kind != PL_JV_STRING || to.kind != PL_JV_STRING)
        return wrong(e, "replace", from.kind != PL_JV_STRING ? from : to);
    int64_t left = absent(count) ? -1 : int_or(count, -1);
    pl_buf b = {0};
    while (left != 0 && pl_jstep(e, 1 + to.u.s.size / 64)) {
        const char *at = find(s, from.u.s);
        if (!at || b.size > e->limits.memory) break;
        if (from.u.s.size == 0) { /* before every character, and at the end */
            size_t n = 1;
            while (n < s.size && ((uint8_t)s.data[n] & 0xc0) == 0x80) n++;
            pl_buf_add_str(&b, to.u.s);
            if (s.size == 0) break;
            pl_buf_add(&b, s.data, n);
            s = (pl_str){s.data + n, s.size - n};
        } else {
            size_t n = (size_t)(at - s.data);
            pl_buf_add(&b, s.data, n);
            pl_buf_add_str(&b, to.u.s);
            s = (pl_str){at + from.u.s.size, s.size - n - from.u.s.size};
        }
        if (left > 0) left--;
    }
    pl_buf_add_str(&b, s);
    return pl_jv_take(e, &b);
}

static pl_jvalue split(pl_jeval *e, pl_str s, pl_jvalue sep, pl_jvalue max, bool from_right)
{
    int64_t left = absent(max) ? -1 : int_or(max, -1);
    pl_jvalue out = pl_jv_sequence(e, PL_JV_LIST);
    if (!absent(sep) && (sep.kind != PL_JV_STRING || sep.u.s.size == 0)) return wrong(e, "split", sep);
    pl_jstep(e, s.size / 64);
    if (absent(sep)) { s = strip(e, s, missing, !from_right || left < 0, from_right || left < 0).u.s; }
    if (from_right && left >= 0) {
        /* From the right, then turned around. */
        pl_jvalue back = pl_jv_sequence(e, PL_JV_LIST);
        while (left-- > 0 && e->status == PL_OK) {
            const char *at = NULL;
            size_t n = absent(sep) ? 0 : sep.u.s.size;
            if (!absent(sep)) {
                at = find_last(s, sep.u.s);
            } else {
                for (size_t i = s.size; i > 0 && !at; i--) {
                    if ((n = pl_jinja_space_before((pl_str){s.data, i})) > 0) at = s.data + i - n;
                }
            }
            if (!at) break;
            pl_jv_push(e, back, pl_jv_borrow((pl_str){at + n, s.size - (size_t)(at - s.data) - n}));
            s.size = (size_t)(at - s.data);
            if (absent(sep)) s = strip(e, s, missing, false, true).u.s;
        }
        if (!absent(sep) || s.size) pl_jv_push(e, out, pl_jv_borrow(s));
        for (size_t i = back.kind == PL_JV_LIST ? back.u.list->n : 0; i > 0; i--)
            pl_jv_push(e, out, back.u.list->at[i - 1]);
        return out;
    }
    while (left != 0 && e->status == PL_OK) {
        const char *at = NULL;
        size_t n = absent(sep) ? 0 : sep.u.s.size;
        if (!absent(sep)) {
            at = find(s, sep.u.s);
        } else {
            for (size_t i = 0; i < s.size && !at; i++) {
                if ((n = pl_jinja_space_at((pl_str){s.data + i, s.size - i})) > 0) at = s.data + i;
            }
        }
        if (!at) break;
        size_t before = (size_t)(at - s.data);
        pl_jv_push(e, out, pl_jv_borrow((pl_str){s.data, before}));
        s = (pl_str){at + n, s.size - before - n};
        if (absent(sep)) s = strip(e, s, missing, true, false).u.s;
        if (left > 0) left--;
    }
    if (!absent(sep) || s.size) pl_jv_push(e, out, pl_jv_borrow(s));
    return out;
}

static pl_jvalue splitlines(pl_jeval *e, pl_str s, bool keep)
{
    pl_jvalue out = pl_jv_sequence(e, PL_JV_LIST);
    size_t from = 0;
    for (size_t i = 0; i < s.size && e->status == PL_OK;) {
        int32_t c;
        size_t n = pl_char_at(s, i, &c);
        bool line = c == '\n' || c == '\r' || c == '\v' || c == '\f' || (c >= 0x1c && c <= 0x1e) || c == 0x85 ||
                    c == 0x2028 || c == 0x2029;
        if (!line) {
            i += n;
            continue;
        }
        if (c == '\r' && i + 1 < s.size && s.data[i + 1] == '\n') n = 2;
        pl_jv_push(e, out, pl_jv_borrow((pl_str){s.data + from, i - from + (keep ? n : 0)}));
        from = i += n;
    }
    if (from < s.size) pl_jv_push(e, out, pl_jv_borrow((pl_str){s.data + from, s.size - from}));
    return out;
}

static pl_jvalue affix(pl_jeval *e, pl_str s, pl_jvalue what, bool end)
{
    if (what.kind == PL_JV_TUPLE) {
        for (size_t i = 0; i < what.u.list->n; i++) {
            if (affix(e, s, what.u.list->at[i], end).u.b) return pl_jv_bool(true);
        }
        return pl_jv_bool(false);
    }
    if (what.kind != PL_JV_STRING) {
        wrong(e, end ? "endswith" : "startswith", what);
        return pl_jv_bool(false);
    }
    size_t n = what.u.s.size;
    return pl_jv_bool(n <= s.size && memcmp(end ? s.data + s.size - n : s.data, what.u.s.data, n) == 0);
}

static pl_jvalue join(pl_jeval *e, pl_jvalue items, pl_str sep, pl_jvalue attribute, bool strings_only)
{
    const pl_jlist *l = pl_jv_items(e, items);
    pl_buf b = {0};
    for (size_t i = 0; i < l->n && pl_jstep(e, 1); i++) {
        pl_jvalue v = l->at[i];
        if (attribute.kind == PL_JV_STRING) v = pl_jv_attr(e, v, attribute.u.s, false);
        if (strings_only && v.kind != PL_JV_STRING) wrong(e, "join", v);
        if (i) pl_buf_add_str(&b, sep);
        pl_buf_add_str(&b, pl_jv_str(e, v));
        if (b.size > e->limits.memory) pl_jfail(e, PL_ERR_BUDGET, "a text is too long");
    }
    return pl_jv_take(e, &b);
}

typedef enum { ALPHA, DIGIT, ALNUM, SPACE_ONLY, UPPER_ONLY, LOWER_ONLY } wording;

static pl_jvalue is_all(pl_str s, wording w)
{
    bool some = false;
    for (size_t i = 0; i < s.size;) {
        int32_t c;
        size_t n = pl_char_at(s, i, &c);
        utf8proc_category_t k = utf8proc_category(c);
        bool number =
            k == UTF8PROC_CATEGORY_ND || (w == ALNUM && (k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO));
        bool ok = w == ALPHA        ? is_letter(c)
                  : w == DIGIT      ? number
                  : w == ALNUM      ? is_letter(c) || number
                  : w == SPACE_ONLY ? pl_jinja_space_at((pl_str){s.data + i, n}) > 0
                  : w == UPPER_ONLY ? !is_lower(c)
                                    : !is_upper(c);
        if (!ok) return pl_jv_bool(false);
        some = some || w <= SPACE_ONLY || is_upper(c) || is_lower(c);
        i += n;
    }
    return pl_jv_bool(some);
}

static pl_jvalue pad(pl_jeval *e, pl_str s, int64_t width, pl_str fill, int side)
{
    size_t n = pl_jv_chars(s);
    pl_buf b = {0};
    if (width > 1 << 20) return pl_jfail(e, PL_ERR_BUDGET, "a width of %" PRId64 " is too large", width);
    int64_t all = width > (int64_t)n ? width - (int64_t)n : 0;
    int64_t left = side < 0 ? 0 : side > 0 ? all : all / 2 + (all & width & 1); /* Python's center */
    for (int64_t i = 0; i < left; i++) pl_buf_add_str(&b, fill);
    pl_buf_add_str(&b, s);
    for (int64_t i = left; i < all; i++) pl_buf_add_str(&b, fill);
    return pl_jv_take(e, &b);
}

/* str.format with {}, {0}, {name} and the format specs of numbers and strings. */
static pl_jvalue format_method(pl_jeval *e, pl_str s, const pl_jcall *c)
{
    pl_buf b = {0};
    size_t next = 0;
    for (size_t i = 0; i < s.size && e->status == PL_OK; i++) {
        char x = s.data[i];
        if ((x == '{' || x == '}') && i + 1 < s.size && s.data[i + 1] == x)
            i++;
        else if (x == '{') {
            const char *close = memchr(s.data + i, '}', s.size - i);
            if (!close) {
                pl_jfail(e, PL_ERR_INVALID, "the format has no }");
                break;
            }
            pl_str field = {s.data + i + 1, (size_t)(close - s.data) - i - 1}, spec = {"", 0};
            const char *colon = memchr(field.data, ':', field.size);
            if (colon) {
                spec = (pl_str){colon + 1, field.size - (size_t)(colon - field.data) - 1};
                field.size = (size_t)(colon - field.data);
            }
            pl_jvalue v = missing;
            char name[64];
            snprintf(name, sizeof name, "%.*s", PL_STR_ARG(field));
            if (field.size == 0)
                v = arg(c, next++, "");
            else if (name[0] >= '0' && name[0] <= '9')
                v = arg(c, (size_t)atoi(name), "");
            else
                v = arg(c, SIZE_MAX, name);
            if (!given(v)) {
                pl_jfail(e, PL_ERR_INVALID, "the format does not fit its arguments");
                break;
            }
            if (spec.size == 0) {
                pl_buf_add_str(&b, pl_jv_str(e, v));
            } else {
                char percent[40], last = spec.data[spec.size - 1];
                bool typed = strchr("dfeEgGxXs", last) && last, left = spec.data[0] == '<';
                if (left || spec.data[0] == '>') spec = (pl_str){spec.data + 1, spec.size - 1};
                snprintf(percent, sizeof percent, "%%%s%.*s%s", left ? "-" : "", PL_STR_ARG(spec),
                         typed                    ? ""
                         : v.kind == PL_JV_STRING ? "s"
                         : v.kind == PL_JV_FLOAT  ? "g"
                                                  : "d");
                pl_buf_add_str(&b, pl_jv_str(e, pl_jv_format(e, pl_str_from(percent), v)));
            }
            i = (size_t)(close - s.data);
            continue;
        }
        pl_buf_add_u8(&b, (uint8_t)x);
    }
    return pl_jv_take(e, &b);
}

/* ---- methods ---- */

typedef enum {
    M_UNSAFE,
    M_UPPER,
    M_LOWER,
    M_CAPITALIZE,
    M_TITLE,
    M_SWAPCASE,
    M_STRIP,
    M_LSTRIP,
    M_RSTRIP,
    M_SPLIT,
    M_RSPLIT,
    M_SPLITLINES,
    M_STARTSWITH,
    M_ENDSWITH,
    M_REPLACE,
    M_JOIN,
    M_FIND,
    M_RFIND,
    M_INDEX,
    M_COUNT,
    M_ISALPHA,
    M_ISDIGIT,
    M_ISALNUM,
    M_ISSPACE,
    M_ISUPPER,
    M_ISLOWER,
    M_FORMAT,
    M_ZFILL,
    M_LJUST,
    M_RJUST,
    M_CENTER,
    M_REMOVEPREFIX,
    M_REMOVESUFFIX,
    M_PARTITION,
    M_RPARTITION,
    M_ITEMS,
    M_KEYS,
    M_VALUES,
    M_GET,
    M_COPY,
    M_LIST_INDEX,
    M_LIST_COUNT,
    M_CYCLE,
    M_CHANGED
} method_id;

static const struct {
    uint8_t kind;
    method_id id;
    const char *name;
} methods[] = {
    {PL_JV_STRING, M_UPPER, "upper"},
    {PL_JV_STRING, M_LOWER, "lower"},
    {PL_JV_STRING, M_LOWER, "casefold"},
    {PL_JV_STRING, M_CAPITALIZE, "capitalize"},
    {PL_JV_STRING, M_TITLE, "title"},
    {PL_JV_STRING, M_SWAPCASE, "swapcase"},
    {PL_JV_STRING, M_STRIP, "strip"},
    {PL_JV_STRING, M_LSTRIP, "lstrip"},
    {PL_JV_STRING, M_RSTRIP, "rstrip"},
    {PL_JV_STRING, M_SPLIT, "split"},
    {PL_JV_STRING, M_RSPLIT, "rsplit"},
    {PL_JV_STRING, M_SPLITLINES, "splitlines"},
    {PL_JV_STRING, M_STARTSWITH, "startswith"},
    {PL_JV_STRING, M_ENDSWITH, "endswith"},
    {PL_JV_STRING, M_REPLACE, "replace"},
    {PL_JV_STRING, M_JOIN, "join"},
    {PL_JV_STRING, M_FIND, "find"},
    {PL_JV_STRING, M_RFIND, "rfind"},
    {PL_JV_STRING, M_INDEX, "index"},
    {PL_JV_STRING, M_COUNT, "count"},
    {PL_JV_STRING, M_ISALPHA, "isalpha"},
    {PL_JV_STRING, M_ISDIGIT, "isdigit"},
    {PL_JV_STRING, M_ISDIGIT, "isnumeric"},
    {PL_JV_STRING, M_ISDIGIT, "isdecimal"},
    {PL_JV_STRING, M_ISALNUM, "isalnum"},
    {PL_JV_STRING, M_ISSPACE, "isspace"},
    {PL_JV_STRING, M_ISUPPER, "isupper"},
    {PL_JV_STRING, M_ISLOWER, "islower"},
    {PL_JV_STRING, M_FORMAT, "format"},
    {PL_JV_STRING, M_ZFILL, "zfill"},
    {PL_JV_STRING, M_LJUST, "ljust"},
    {PL_JV_STRING, M_RJUST, "rjust"},
    {PL_JV_STRING, M_CENTER, "center"},
    {PL_JV_STRING, M_REMOVEPREFIX, "removeprefix"},
    {PL_JV_STRING, M_REMOVESUFFIX, "removesuffix"},
    {PL_JV_STRING, M_PARTITION, "partition"},
    {PL_JV_STRING, M_RPARTITION, "rpartition"},
    {PL_JV_DICT, M_ITEMS, "items"},
    {PL_JV_DICT, M_KEYS, "keys"},
    {PL_JV_DICT, M_VALUES, "values"},
    {PL_JV_DICT, M_GET, "get"},
    {PL_JV_DICT, M_COPY, "copy"},
    {PL_JV_DICT, M_UNSAFE, "update"},
    {PL_JV_DICT, M_UNSAFE, "pop"},
    {PL_JV_DICT, M_UNSAFE, "popitem"},
    {PL_JV_DICT, M_UNSAFE, "setdefault"},
    {PL_JV_DICT, M_UNSAFE, "clear"},
    {PL_JV_LIST, M_LIST_INDEX, "index"},
    {PL_JV_LIST, M_LIST_COUNT, "count"},
    {PL_JV_LIST, M_COPY, "copy"},
    {PL_JV_LIST, M_UNSAFE, "append"},
    {PL_JV_LIST, M_UNSAFE, "extend"},
    {PL_JV_LIST, M_UNSAFE, "insert"},
    {PL_JV_LIST, M_UNSAFE, "pop"},
    {PL_JV_LIST, M_UNSAFE, "remove"},
    {PL_JV_LIST, M_UNSAFE, "reverse"},
    {PL_JV_LIST, M_UNSAFE, "sort"},
    {PL_JV_LIST, M_UNSAFE, "clear"},
    {PL_JV_TUPLE, M_LIST_INDEX, "index"},
    {PL_JV_TUPLE, M_LIST_COUNT, "count"},
    {PL_JV_LOOP, M_CYCLE, "cycle"},
    {PL_JV_LOOP, M_CHANGED, "changed"},
};

static int method_of(uint8_t kind, pl_str name)
{
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        if (methods[i].kind == kind && pl_str_is(name, methods[i].name)) return (int)methods[i].id;
    }
    return -1;
}

static pl_jvalue loop_attr(const pl_jloop *l, pl_str name)
{
    int64_t i = (int64_t)l->index, n = (int64_t)l->items->n;
    if (pl_str_is(name, "index")) return pl_jv_int(i + 1);
    if (pl_str_is(name, "index0")) return pl_jv_int(i);
    if (pl_str_is(name, "first")) return pl_jv_bool(i == 0);
    if (pl_str_is(name, "last")) return pl_jv_bool(i == n - 1);
    if (pl_str_is(name, "length")) return pl_jv_int(n);
    if (pl_str_is(name, "revindex")) return pl_jv_int(n - i);
    if (pl_str_is(name, "revindex0")) return pl_jv_int(n - i - 1);
    if (pl_str_is(name, "depth")) return pl_jv_int(l->depth);
    if (pl_str_is(name, "depth0")) return pl_jv_int(l->depth - 1);
    if (pl_str_is(name, "previtem") && i > 0) return l->items->at[i - 1];
    if (pl_str_is(name, "nextitem") && i < n - 1) return l->items->at[i + 1];
    return missing;
}

pl_jvalue pl_jv_attr(pl_jeval *e, pl_jvalue v, pl_str name, bool attribute_first)
{
    if (v.kind == PL_JV_UNDEFINED) return pl_jfail(e, PL_ERR_INVALID, "%.*s", PL_STR_ARG(v.u.s));
    if (v.kind == PL_JV_LOOP) {
        pl_jvalue found = loop_attr(v.u.loop, name);
        if (given(found)) return found;
    }
    bool method = method_of(v.kind, name) >= 0;
    if (v.kind == PL_JV_NAMESPACE || (v.kind == PL_JV_DICT && (!attribute_first || !method))) {
        const pl_jvalue *found = pl_jv_lookup(e, v.u.dict, pl_jv_borrow(name));
        if (found) return *found;
    }
    if (!method)
        return pl_jv_undefined(e, "'%s object' has no attribute '%.*s'", pl_jv_type(v),
                               name.size > 80 ? 80 : (int)name.size, name.data);
    pl_jmethod *m = pl_jalloc(e, sizeof *m);
    if (!m) return (pl_jvalue){.kind = PL_JV_UNDEFINED};
    *m = (pl_jmethod){v, name};
    return (pl_jvalue){.kind = PL_JV_METHOD, .u.method = m};
}

static pl_jvalue string_method(pl_jeval *e, method_id id, pl_str s, const pl_jcall *c)
{
    pl_jvalue a = arg(c, 0, ""), b = arg(c, 1, "");
    switch (id) {
    case M_UPPER: return cased(e, s, UPPER, false);
    case M_LOWER: return cased(e, s, LOWER, false);
    case M_CAPITALIZE: return cased(e, s, CAPITALIZE, false);
    case M_TITLE: return cased(e, s, TITLE, false);
    case M_SWAPCASE: return cased(e, s, SWAP, false);
    case M_STRIP: return strip(e, s, a, true, true);
    case M_LSTRIP: return strip(e, s, a, true, false);
    case M_RSTRIP: return strip(e, s, a, false, true);
    case M_SPLIT:
    case M_RSPLIT: return split(e, s, arg(c, 0, "sep"), arg(c, 1, "maxsplit"), id == M_RSPLIT);
    case M_SPLITLINES: return splitlines(e, s, pl_jv_truth(arg(c, 0, "keepends")));
    case M_STARTSWITH: return affix(e, s, a, false);
    case M_ENDSWITH: return affix(e, s, a, true);
    case M_REPLACE: return replace(e, s, a, b, arg(c, 2, "count"));
    case M_JOIN: return join(e, a, s, missing, true);
    case M_ISALPHA: return is_all(s, ALPHA);
    case M_ISDIGIT: return is_all(s, DIGIT);
    case M_ISALNUM: return is_all(s, ALNUM);
    case M_ISSPACE: return is_all(s, SPACE_ONLY);
    case M_ISUPPER: return is_all(s, UPPER_ONLY);
    case M_ISLOWER: return is_all(s, LOWER_ONLY);
    case M_FORMAT: return format_method(e, s, c);
    case M_ZFILL: {
        bool sign = s.size && (s.data[0] == '-' || s.data[0] == '+');
        pl_str rest = {s.data + sign, s.size - sign};
        pl_jvalue z = pad(e, rest, int_or(a, 0) - sign, PL_STR("0"), 1);
        return sign ? pl_jv_binary(e, '+', pl_jv_borrow((pl_str){s.data, 1}), z) : z;
    }
    case M_LJUST: return pad(e, s, int_or(a, 0), str_or(b, " "), -1);
    case M_RJUST: return pad(e, s, int_or(a, 0), str_or(b, " "), 1);
    case M_CENTER: return pad(e, s, int_or(a, 0), str_or(b, " "), 0);
    default: break;
    }
    if (a.kind != PL_JV_STRING) return wrong(e, "the method", a);
    pl_str w = a.u.s;
    pl_jstep(e, s.size / 64);
    switch (id) {
    case M_FIND:
    case M_RFIND:
    case M_INDEX: {
        const char *at = id == M_RFIND ? find_last(s, w) : find(s, w);
        if (!at && id == M_INDEX) return pl_jfail(e, PL_ERR_INVALID, "the text to find is not there");
        return pl_jv_int(at ? (int64_t)pl_jv_chars((pl_str){s.data, (size_t)(at - s.data)}) : -1);
    }
    case M_COUNT: {
        int64_t n = 0;
        if (w.size == 0) return pl_jv_int((int64_t)pl_jv_chars(s) + 1);
        for (const char *at; (at = find(s, w)); n++) s = (pl_str){at + w.size, s.size - (size_t)(at - s.data) - w.size};
        return pl_jv_int(n);
    }
    case M_REMOVEPREFIX:
        return pl_jv_borrow(affix(e, s, a, false).u.b ? (pl_str){s.data + w.size, s.size - w.size} : s);
    case M_REMOVESUFFIX: return pl_jv_borrow(affix(e, s, a, true).u.b ? (pl_str){s.data, s.size - w.size} : s);
    default: { /* partition and rpartition */
        const char *at = w.size == 0 ? NULL : id == M_RPARTITION ? find_last(s, w) : find(s, w);
        pl_str none = {"", 0},
               part[3] = {at || id == M_PARTITION ? s : none, at ? w : none, at || id == M_PARTITION ? none : s};
        if (at) {
            part[0].size = (size_t)(at - s.data);
            part[2] = (pl_str){at + w.size, s.size - part[0].size - w.size};
        }
        pl_jvalue t = pl_jv_sequence(e, PL_JV_TUPLE);
        for (int i = 0; i < 3; i++) pl_jv_push(e, t, pl_jv_borrow(part[i]));
        return t;
    }
    }
}

static pl_jvalue dict_items(pl_jeval *e, const pl_jdict *d, method_id id, pl_jkind kind)
{
    pl_jvalue out = pl_jv_sequence(e, kind);
    for (size_t i = 0; i < d->n && e->status == PL_OK; i++) {
        pl_jv_push(e, out,
                   id == M_KEYS     ? d->at[i].key
                   : id == M_VALUES ? d->at[i].value
                                    : pl_jv_pair(e, d->at[i].key, d->at[i].value));
    }
    return out;
}

pl_jvalue pl_jinja_method(pl_jeval *e, const pl_jmethod *m, const pl_jcall *c)
{
    pl_jvalue v = m->self, a = arg(c, 0, "");
    method_id id = (method_id)method_of(v.kind, m->name);
    if (id == M_UNSAFE)
        return pl_jfail(e, PL_ERR_INVALID, "%.*s would change a %s, which templates may not", PL_STR_ARG(m->name),
                        pl_jv_type(v));
    if (v.kind == PL_JV_STRING) return string_method(e, id, v.u.s, c);
    switch (id) {
    case M_ITEMS:
    case M_KEYS:
    case M_VALUES: return dict_items(e, v.u.dict, id, PL_JV_LIST);
    case M_COPY: return v; /* nothing changes it, so it is its own copy */
    case M_GET: {
        const pl_jvalue *found = pl_jv_lookup(e, v.u.dict, a);
        pl_jvalue otherwise = arg(c, 1, "default");
        return found ? *found : given(otherwise) ? otherwise : pl_jv_none();
    }
    case M_CYCLE: return c->n ? c->args[v.u.loop->index % c->n] : wrong(e, "cycle", missing);
    case M_CHANGED: {
        pl_jvalue now = pl_jv_sequence(e, PL_JV_TUPLE);
        for (size_t i = 0; i < c->n; i++) pl_jv_push(e, now, c->args[i]);
        bool changed = !given(v.u.loop->changed) || !pl_jv_equal(e, now, v.u.loop->changed);
        v.u.loop->changed = now;
        return pl_jv_bool(changed);
    }
    default: break;
    }
    int64_t n = 0;
    for (size_t i = 0; i < v.u.list->n && e->status == PL_OK; i++) {
        if (!pl_jv_equal(e, v.u.list->at[i], a)) continue;
        if (id == M_LIST_INDEX) return pl_jv_int((int64_t)i);
        n++;
    }
    return id == M_LIST_COUNT ? pl_jv_int(n) : pl_jfail(e, PL_ERR_INVALID, "the value is not in the list");
}

/* ---- functions ---- */

static const char *const functions[] = {"range", "dict", "namespace", "raise_exception", "strftime_now"};

int pl_jinja_function(pl_str name)
{
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        if (pl_str_is(name, functions[i])) return (int)i;
    }
    return -1;
}

static pl_jvalue range(pl_jeval *e, const pl_jcall *c)
{
    for (size_t i = 0; i < c->n; i++) {
        if (c->args[i].kind != PL_JV_INT && c->args[i].kind != PL_JV_BOOL) return wrong(e, "range", c->args[i]);
    }
    int64_t from = c->n > 1 ? int_or(c->args[0], 0) : 0,
            to = c->n > 1 ? int_or(c->args[1], 0) : int_or(arg(c, 0, ""), 0), by = c->n > 2 ? int_or(c->args[2], 1) : 1;
    if (c->n == 0 || c->n > 3 || by == 0) return pl_jfail(e, PL_ERR_INVALID, "range does not take these arguments");
    pl_jvalue out = pl_jv_sequence(e, PL_JV_LIST);
    for (int64_t i = from, n = 0; (by > 0 ? i < to : i > to) && e->status == PL_OK; n++) {
        if (n == 100000)
            return pl_jfail(e, PL_ERR_INVALID, "range gives more than 100000 numbers"); /* the sandbox's bound */
        pl_jv_push(e, out, pl_jv_int(i));
        if (__builtin_add_overflow(i, by, &i)) break;
    }
    return out;
}

static pl_jvalue new_dict(pl_jeval *e, const pl_jcall *c, pl_jkind kind)
{
    pl_jvalue d = pl_jv_dict(e, kind);
    if (c->n > 0) {
        pl_jvalue from = c->args[0];
        if (from.kind == PL_JV_DICT) {
            for (size_t i = 0; i < from.u.dict->n; i++)
                pl_jv_put(e, d, from.u.dict->at[i].key, from.u.dict->at[i].value);
        } else {
            const pl_jlist *l = pl_jv_items(e, from);
            for (size_t i = 0; i < l->n; i++) {
                const pl_jlist *pair = pl_jv_items(e, l->at[i]);
                if (pair->n != 2) return pl_jfail(e, PL_ERR_INVALID, "a dict is made of pairs");
                pl_jv_put(e, d, pair->at[0], pair->at[1]);
            }
        }
    }
    for (size_t i = 0; i < c->n_keywords; i++) pl_jv_put(e, d, c->keywords[i].key, c->keywords[i].value);
    return d;
}

pl_jvalue pl_jinja_call_function(pl_jeval *e, int function, const pl_jcall *c)
{
    if (function == 0) return range(e, c);
    if (function == 1) return new_dict(e, c, PL_JV_DICT);
    if (function == 2) return new_dict(e, c, PL_JV_NAMESPACE);
    pl_jvalue a = arg(c, 0, function == 3 ? "message" : "format");
    if (function == 3) {
        pl_str words = pl_jv_str(e, a);
        return pl_jfail(e, PL_ERR_INVALID, "%.*s", words.size > 500 ? 500 : (int)words.size, words.data);
    }
    if (a.kind != PL_JV_STRING) return wrong(e, "strftime_now", a);
    int64_t now = e->limits.now_us ? e->limits.now_us : pl_wall_us();
    time_t t = (time_t)(now / 1000000);
    struct tm tm;
    char text[512];
    char *format = pl_arena_strdup(&e->arena, a.u.s);
    if (!format || !localtime_r(&t, &tm)) return pl_jfail(e, PL_ERR_NO_MEMORY, "no memory for a date");
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    size_t n = strftime(text, sizeof text, format, &tm);
#pragma GCC diagnostic pop
    return pl_jv_string(e, (pl_str){text, n});
}

/* ---- tests ---- */

typedef enum {
    T_DEFINED,
    T_UNDEFINED,
    T_NONE,
    T_BOOLEAN,
    T_FALSE,
    T_TRUE,
    T_INTEGER,
    T_FLOAT,
    T_NUMBER,
    T_STRING,
    T_MAPPING,
    T_SEQUENCE,
    T_ITERABLE,
    T_CALLABLE,
    T_SAMEAS,
    T_EQ,
    T_NE,
    T_LT,
    T_LE,
    T_GT,
    T_GE,
    T_IN,
    T_ODD,
    T_EVEN,
    T_DIVISIBLEBY,
    T_LOWER,
    T_UPPER,
    T_ESCAPED,
    T_FILTER,
    T_TEST
} test_id;

static const struct {
    test_id id;
    const char *name;
} tests[] = {
    {T_DEFINED, "defined"},
    {T_UNDEFINED, "undefined"},
    {T_NONE, "none"},
    {T_BOOLEAN, "boolean"},
    {T_FALSE, "false"},
    {T_TRUE, "true"},
    {T_INTEGER, "integer"},
    {T_FLOAT, "float"},
    {T_NUMBER, "number"},
    {T_STRING, "string"},
    {T_MAPPING, "mapping"},
    {T_SEQUENCE, "sequence"},
    {T_ITERABLE, "iterable"},
    {T_CALLABLE, "callable"},
    {T_SAMEAS, "sameas"},
    {T_EQ, "eq"},
    {T_EQ, "equalto"},
    {T_EQ, "=="},
    {T_NE, "ne"},
    {T_NE, "!="},
    {T_LT, "lt"},
    {T_LT, "lessthan"},
    {T_LT, "<"},
    {T_LE, "le"},
    {T_LE, "<="},
    {T_GT, "gt"},
    {T_GT, "greaterthan"},
    {T_GT, ">"},
    {T_GE, "ge"},
    {T_GE, ">="},
    {T_IN, "in"},
    {T_ODD, "odd"},
    {T_EVEN, "even"},
    {T_DIVISIBLEBY, "divisibleby"},
    {T_LOWER, "lower"},
    {T_UPPER, "upper"},
    {T_ESCAPED, "escaped"},
    {T_FILTER, "filter"},
    {T_TEST, "test"},
};

static int test_of(pl_str name)
{
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        if (pl_str_is(name, tests[i].name)) return (int)tests[i].id;
    }
    return -1;
}

static bool filter_known(pl_str name);

bool pl_jinja_test(pl_jeval *e, pl_str name, pl_jvalue v, const pl_jcall *c)
{
    pl_jvalue a = arg(c, 0, "");
    int id = test_of(name);
    switch (id) {
    case T_DEFINED: return v.kind != PL_JV_UNDEFINED;
    case T_UNDEFINED: return v.kind == PL_JV_UNDEFINED;
    case T_NONE: return v.kind == PL_JV_NONE;
    case T_BOOLEAN: return v.kind == PL_JV_BOOL;
    case T_FALSE: return v.kind == PL_JV_BOOL && !v.u.b;
    case T_TRUE: return v.kind == PL_JV_BOOL && v.u.b;
    case T_INTEGER: return v.kind == PL_JV_INT;
    case T_FLOAT: return v.kind == PL_JV_FLOAT;
    case T_NUMBER: return pl_jv_is_number(v);
    case T_STRING: return v.kind == PL_JV_STRING;
    case T_MAPPING: return v.kind == PL_JV_DICT;
    case T_SEQUENCE:
        return v.kind == PL_JV_STRING || v.kind == PL_JV_LIST || v.kind == PL_JV_TUPLE || v.kind == PL_JV_DICT ||
               v.kind == PL_JV_UNDEFINED;
    case T_ITERABLE:
        return v.kind == PL_JV_STRING || pl_jv_is_sequence(v) || v.kind == PL_JV_DICT || v.kind == PL_JV_UNDEFINED ||
               v.kind == PL_JV_LOOP;
    case T_CALLABLE:
        return v.kind == PL_JV_MACRO || v.kind == PL_JV_FUNCTION || v.kind == PL_JV_METHOD || v.kind == PL_JV_LOOP;
    case T_SAMEAS: return v.kind == a.kind && pl_jv_equal(e, v, a);
    case T_EQ: return pl_jv_equal(e, v, a);
    case T_NE: return !pl_jv_equal(e, v, a);
    case T_LT: return pl_jv_compare(e, v, a) < 0;
    case T_LE: return pl_jv_compare(e, v, a) <= 0;
    case T_GT: return pl_jv_compare(e, v, a) > 0;
    case T_GE: return pl_jv_compare(e, v, a) >= 0;
    case T_IN: return pl_jv_contains(e, a, v);
    case T_ODD: return pl_jv_equal(e, pl_jv_binary(e, '%', v, pl_jv_int(2)), pl_jv_int(1));
    case T_EVEN: return pl_jv_equal(e, pl_jv_binary(e, '%', v, pl_jv_int(2)), pl_jv_int(0));
    case T_DIVISIBLEBY: return pl_jv_equal(e, pl_jv_binary(e, '%', v, a), pl_jv_int(0));
    case T_LOWER: return is_all(pl_jv_str(e, v), LOWER_ONLY).u.b;
    case T_UPPER: return is_all(pl_jv_str(e, v), UPPER_ONLY).u.b;
    case T_ESCAPED: return v.kind == PL_JV_STRING && v.safe;
    case T_FILTER: return v.kind == PL_JV_STRING && filter_known(v.u.s);
    case T_TEST: return v.kind == PL_JV_STRING && test_of(v.u.s) >= 0;
    default: break;
    }
    pl_jfail(e, PL_ERR_UNSUPPORTED, "there is no test %.*s", name.size > 64 ? 64 : (int)name.size, name.data);
    return false;
}

/* ---- filters ---- */

/* a.b.0 of v, as map, sort and the like look attributes up. */
static pl_jvalue deep_attr(pl_jeval *e, pl_jvalue v, pl_jvalue path, pl_jvalue otherwise)
{
    if (path.kind == PL_JV_INT) return pl_jv_index(e, v, path);
    pl_str p = str_or(path, "");
    while (e->status == PL_OK) {
        const char *dot = memchr(p.data, '.', p.size);
        pl_str part = {p.data, dot ? (size_t)(dot - p.data) : p.size};
        bool number = part.size > 0 && part.size < 10;
        for (size_t i = 0; i < part.size; i++) number = number && part.data[i] >= '0' && part.data[i] <= '9';
        v = number ? pl_jv_index(e, v, pl_jv_int(strtol(part.data, NULL, 10))) : pl_jv_attr(e, v, part, false);
        if (v.kind == PL_JV_UNDEFINED && given(otherwise)) v = otherwise;
        if (!dot) break;
        p = (pl_str){dot + 1, p.size - part.size - 1};
    }
    return v;
}

static pl_jcall rest_of(const pl_jcall *c, size_t skip)
{
    /* Without arguments args is NULL, to which nothing may be added. */
    bool some = c->n > skip;
    return (pl_jcall){some ? c->args + skip : NULL, some ? c->n - skip : 0, c->keywords, c->n_keywords};
}

/* What map, select and the like walk: what is false, none too, counts as empty. */
static const pl_jlist *walked(pl_jeval *e, pl_jvalue v)
{
    static const pl_jlist nothing = {0};
    return pl_jv_truth(v) ? pl_jv_items(e, v) : &nothing;
}

static pl_jvalue map_filter(pl_jeval *e, pl_jvalue v, const pl_jcall *c)
{
    const pl_jlist *l = walked(e, v);
    pl_jvalue out = pl_jv_sequence(e, PL_JV_GENERATOR), attribute = arg(c, SIZE_MAX, "attribute"),
              otherwise = arg(c, SIZE_MAX, "default");
    if (c->n == 0 && !given(attribute)) return pl_jfail(e, PL_ERR_INVALID, "map wants a filter or an attribute");
    pl_jcall rest = rest_of(c, 1);
    for (size_t i = 0; i < l->n && pl_jstep(e, 1); i++) {
        pl_jv_push(e, out,
                   c->n == 0 ? deep_attr(e, l->at[i], attribute, otherwise)
                             : pl_jinja_filter(e, str_or(c->args[0], ""), l->at[i], &rest));
    }
    return out;
}

static pl_jvalue select_filter(pl_jeval *e, pl_jvalue v, const pl_jcall *c, bool attribute, bool want)
{
    const pl_jlist *l = walked(e, v);
    pl_jvalue out = pl_jv_sequence(e, PL_JV_GENERATOR);
    size_t skip = attribute ? 1 : 0;
    if (attribute && c->n == 0) return pl_jfail(e, PL_ERR_INVALID, "selectattr wants an attribute");
    pl_jcall rest = rest_of(c, skip + 1);
    for (size_t i = 0; i < l->n && pl_jstep(e, 1); i++) {
        pl_jvalue x = attribute ? deep_attr(e, l->at[i], c->args[0], missing) : l->at[i];
        bool is = c->n > skip ? pl_jinja_test(e, str_or(c->args[skip], ""), x, &rest) : pl_jv_truth(x);
        if (is == want) pl_jv_push(e, out, l->at[i]);
    }
    return out;
}

/* Sorting: a stable merge sort of indices, because a comparison may fail. */
typedef struct sorting {
    pl_jeval *e;
    const pl_jvalue *keys;
    bool reverse;
} sorting;

static void merge_sort(sorting *s, size_t *at, size_t *scratch, size_t n)
{
    if (n < 2 || s->e->status != PL_OK) return;
    size_t half = n / 2, a = 0, b = half, k = 0;
    merge_sort(s, at, scratch, half);
    merge_sort(s, at + half, scratch, n - half);
    while (a < half && b < n) {
        int c = pl_jv_compare(s->e, s->keys[at[a]], s->keys[at[b]]);
        scratch[k++] = (s->reverse ? c >= 0 : c <= 0) ? at[a++] : at[b++];
    }
    while (a < half) scratch[k++] = at[a++];
    while (b < n) scratch[k++] = at[b++];
    memcpy(at, scratch, n * sizeof *at);
}

static pl_jvalue folded(pl_jeval *e, pl_jvalue v, bool case_sensitive)
{
    return v.kind == PL_JV_STRING && !case_sensitive ? cased(e, v.u.s, LOWER, false) : v;
}

/* The order of l by its attribute (several after commas) as indices; NULL after a failure. */
static size_t *sorted(pl_jeval *e, const pl_jlist *l, pl_jvalue attribute, bool case_sensitive, bool reverse)
{
    size_t *at = pl_jalloc(e, l->n * sizeof *at), *scratch = pl_jalloc(e, l->n * sizeof *scratch);
    pl_jvalue *keys = pl_jalloc(e, l->n * sizeof *keys);
    if (!at || !scratch || !keys) return NULL;
    for (size_t i = 0; i < l->n && e->status == PL_OK; i++) {
        at[i] = i;
        keys[i] = l->at[i];
        if (attribute.kind == PL_JV_STRING && memchr(attribute.u.s.data, ',', attribute.u.s.size)) {
            pl_jvalue parts = split(e, attribute.u.s, pl_jv_borrow(PL_STR(",")), missing, false);
            keys[i] = pl_jv_sequence(e, PL_JV_LIST);
            for (size_t k = 0; parts.kind == PL_JV_LIST && k < parts.u.list->n; k++)
                pl_jv_push(e, keys[i], folded(e, deep_attr(e, l->at[i], parts.u.list->at[k], missing), case_sensitive));
        } else {
            if (!absent(attribute)) keys[i] = deep_attr(e, l->at[i], attribute, missing);
            keys[i] = folded(e, keys[i], case_sensitive);
        }
    }
    sorting s = {e, keys, reverse};
    merge_sort(&s, at, scratch, l->n);
    return e->status == PL_OK ? at : NULL;
}

static pl_jvalue to_int(pl_jeval *e, pl_jvalue v, pl_jvalue otherwise, int64_t base)
{
    pl_jvalue none = given(otherwise) ? otherwise : pl_jv_int(0);
    if (v.kind == PL_JV_INT || v.kind == PL_JV_BOOL) return pl_jv_int(int_or(v, 0));
    if (v.kind == PL_JV_FLOAT) return fabs(v.u.f) < 9e18 ? pl_jv_int((int64_t)v.u.f) : none;
    if (v.kind != PL_JV_STRING) return none;
    pl_str s = strip(e, v.u.s, missing, true, true).u.s;
    char text[64], *end;
    if (s.size == 0 || s.size >= sizeof text) return none;
    memcpy(text, s.data, s.size);
    text[s.size] = 0;
    int64_t i = strtoll(text, &end, (int)base);
    if (*end == 0) return pl_jv_int(i);
    double f = strtod(text, &end);
    return *end == 0 && fabs(f) < 9e18 && base == 10 ? pl_jv_int((int64_t)f) : none;
}

static pl_jvalue to_float(pl_jeval *e, pl_jvalue v, pl_jvalue otherwise)
{
    if (v.kind == PL_JV_FLOAT) return v;
    if (v.kind == PL_JV_INT || v.kind == PL_JV_BOOL) return pl_jv_float((double)int_or(v, 0));
    pl_jvalue none = given(otherwise) ? otherwise : pl_jv_float(0);
    if (v.kind != PL_JV_STRING) return none;
    pl_str s = strip(e, v.u.s, missing, true, true).u.s;
    char text[64], *end;
    if (s.size == 0 || s.size >= sizeof text) return none;
    memcpy(text, s.data, s.size);
    text[s.size] = 0;
    double f = strtod(text, &end);
    return *end == 0 ? pl_jv_float(f) : none;
}

static pl_jvalue round_filter(pl_jeval *e, pl_jvalue v, const pl_jcall *c)
{
    if (!pl_jv_is_number(v)) return wrong(e, "round", v);
    int64_t precision = int_or(arg(c, 0, "precision"), 0);
    pl_str method = str_or(arg(c, 1, "method"), "common");
    double x = v.kind == PL_JV_FLOAT ? v.u.f : (double)int_or(v, 0);
    if (precision < -300 || precision > 300)
        return pl_jfail(e, PL_ERR_INVALID, "a precision of %" PRId64 " digits", precision);
    if (!pl_str_is(method, "common")) {
        double scale = pow(10, (double)precision);
        return pl_jv_float((pl_str_is(method, "ceil") ? ceil(x * scale) : floor(x * scale)) / scale);
    }
    if (v.kind != PL_JV_FLOAT && precision >= 0) return pl_jv_int(int_or(v, 0));
    if (precision < 0) {
        double scale = pow(10, (double)-precision);
        return pl_jv_float(nearbyint(x / scale) * scale);
    }
    /* Printing rounds the exact value, half to even, as Python's round does. */
    char text[700];
    snprintf(text, sizeof text, "%.*f", (int)precision, x);
    return pl_jv_float(strtod(text, NULL));
}

static pl_jvalue indent(pl_jeval *e, pl_str s, const pl_jcall *c)
{
    pl_jvalue width = arg(c, 0, "width");
    bool first = pl_jv_truth(arg(c, 1, "first")), blank = pl_jv_truth(arg(c, 2, "blank"));
    pl_buf fill = {0}, b = {0};
    int64_t n = int_or(width, 4);
    if (width.kind == PL_JV_STRING)
        pl_buf_add_str(&fill, width.u.s);
    else
        for (int64_t i = 0; i < n && i < 1000; i++) pl_buf_add_u8(&fill, ' ');
    if (first) pl_buf_add_str(&b, pl_buf_str(&fill));
    pl_jvalue lines = splitlines(e, s, false);
    bool more =
        s.size > 0 && (s.data[s.size - 1] == '\n' || s.data[s.size - 1] == '\r'); /* an empty line at the end counts */
    size_t all = lines.kind == PL_JV_LIST ? lines.u.list->n + more : 0;
    for (size_t i = 0; i < all && pl_jstep(e, 1); i++) {
        pl_str line = i < lines.u.list->n ? lines.u.list->at[i].u.s : (pl_str){"", 0};
        if (i) {
            pl_buf_add_u8(&b, '\n');
            if (line.size || blank) pl_buf_add_str(&b, pl_buf_str(&fill));
        }
        pl_buf_add_str(&b, line);
        if (b.size > e->limits.memory) pl_jfail(e, PL_ERR_BUDGET, "a text is too long");
    }
    pl_buf_fini(&fill);
    return pl_jv_take(e, &b);
}

static pl_jvalue tojson(pl_jeval *e, pl_jvalue v, const pl_jcall *c)
{
    pl_jvalue ind = arg(c, 1, "indent"), ascii = arg(c, 0, "ensure_ascii"), sep = arg(c, 2, "separators"),
              sort = arg(c, 3, "sort_keys");
    pl_str item = absent(ind) ? PL_STR(", ") : PL_STR(","), key = PL_STR(": ");
    if (sep.kind == PL_JV_TUPLE || sep.kind == PL_JV_LIST) {
        if (sep.u.list->n != 2) return wrong(e, "separators", sep);
        item = str_or(sep.u.list->at[0], ", ");
        key = str_or(sep.u.list->at[1], ": ");
    }
    pl_buf b = {0};
    pl_jv_tojson(e, v,
                 absent(ind) ? -1
                             : (int)(int_or(ind, 0) < 0     ? 0
                                     : int_or(ind, 0) > 100 ? 100
                                                            : int_or(ind, 0)),
                 item, key, pl_jv_truth(ascii), pl_jv_truth(sort), 0, &b);
    return pl_jv_take(e, &b);
}

static pl_jvalue batches(pl_jeval *e, const pl_jlist *l, const pl_jcall *c, bool slices)
{
    int64_t n = int_or(arg(c, 0, slices ? "slices" : "linecount"), 0);
    pl_jvalue fill = arg(c, 1, "fill_with"), out = pl_jv_sequence(e, PL_JV_GENERATOR);
    if (n < 1 || n > 100000) return pl_jfail(e, PL_ERR_INVALID, "%" PRId64 " parts", n);
    size_t per = l->n / (size_t)n, extra = l->n % (size_t)n, at = 0;
    for (int64_t k = 0; slices ? k < n : at < l->n; k++) {
        size_t size = slices ? per + ((size_t)k < extra) : (size_t)n;
        pl_jvalue part = pl_jv_sequence(e, PL_JV_LIST);
        if (!pl_jstep(e, 1)) break;
        for (size_t i = 0; i < size && at < l->n; i++) pl_jv_push(e, part, l->at[at++]);
        if (slices ? (!absent(fill) && extra && (size_t)k >= extra) : !absent(fill)) {
            if (slices)
                pl_jv_push(e, part, fill);
            else
                while (part.kind == PL_JV_LIST && part.u.list->n < (size_t)n && e->status == PL_OK)
                    pl_jv_push(e, part, fill);
        }
        pl_jv_push(e, out, part);
    }
    return out;
}

static pl_jvalue groupby(pl_jeval *e, pl_jvalue v, const pl_jcall *c)
{
    const pl_jlist *l = pl_jv_items(e, v);
    pl_jvalue attribute = arg(c, 0, "attribute"), otherwise = arg(c, 1, "default"), out = pl_jv_sequence(e, PL_JV_LIST);
    bool exact = pl_jv_truth(arg(c, 2, "case_sensitive"));
    size_t *order = sorted(e, l, attribute, exact, false);
    pl_jvalue key = missing, group = missing;
    for (size_t i = 0; order && i < l->n && e->status == PL_OK; i++) {
        pl_jvalue k = deep_attr(e, l->at[order[i]], attribute, otherwise);
        if (i == 0 || !pl_jv_equal(e, folded(e, k, exact), folded(e, key, exact))) {
            group = pl_jv_sequence(e, PL_JV_LIST);
            pl_jv_push(e, out, pl_jv_pair(e, k, group));
            key = k;
        }
        pl_jv_push(e, group, l->at[order[i]]);
    }
    return out;
}

static pl_jvalue truncate(pl_jeval *e, pl_str s, const pl_jcall *c)
{
    int64_t length = int_or(arg(c, 0, "length"), 255), leeway = int_or(arg(c, 3, "leeway"), 5);
    pl_str end = str_or(arg(c, 2, "end"), "...");
    int64_t n = (int64_t)pl_jv_chars(s), keep = length - (int64_t)pl_jv_chars(end);
    if (keep < 0) return pl_jfail(e, PL_ERR_INVALID, "truncate to %" PRId64 " leaves no room for its end", length);
    if (n <= length + leeway) return pl_jv_borrow(s);
    pl_str cut = pl_jv_chars_at(s, 0, (size_t)keep);
    if (!pl_jv_truth(arg(c, 1, "killwords"))) {
        const char *space = find_last(cut, PL_STR(" "));
        if (space) cut.size = (size_t)(space - cut.data);
    }
    return pl_jv_binary(e, '+', pl_jv_borrow(cut), pl_jv_borrow(end));
}

typedef enum {
    F_ABS,
    F_ATTR,
    F_BATCH,
    F_CAPITALIZE,
    F_CENTER,
    F_LENGTH,
    F_DEFAULT,
    F_DICTSORT,
    F_ESCAPE,
    F_FORCEESCAPE,
    F_FIRST,
    F_FLOAT,
    F_FORMAT,
    F_GROUPBY,
    F_INDENT,
    F_INT,
    F_ITEMS,
    F_JOIN,
    F_LAST,
    F_LIST,
    F_LOWER,
    F_MAP,
    F_MAX,
    F_MIN,
    F_REJECT,
    F_REJECTATTR,
    F_REPLACE,
    F_REVERSE,
    F_ROUND,
    F_SAFE,
    F_SELECT,
    F_SELECTATTR,
    F_SLICE,
    F_SORT,
    F_STRING,
    F_SUM,
    F_TITLE,
    F_TOJSON,
    F_TRIM,
    F_TRUNCATE,
    F_UNIQUE,
    F_UPPER,
    F_WORDCOUNT
} filter_id;

static const struct {
    filter_id id;
    const char *name;
} filters[] = {
    {F_ABS, "abs"},
    {F_ATTR, "attr"},
    {F_BATCH, "batch"},
    {F_CAPITALIZE, "capitalize"},
    {F_CENTER, "center"},
    {F_LENGTH, "length"},
    {F_LENGTH, "count"},
    {F_DEFAULT, "default"},
    {F_DEFAULT, "d"},
    {F_DICTSORT, "dictsort"},
    {F_ESCAPE, "escape"},
    {F_ESCAPE, "e"},
    {F_FORCEESCAPE, "forceescape"},
    {F_FIRST, "first"},
    {F_FLOAT, "float"},
    {F_FORMAT, "format"},
    {F_GROUPBY, "groupby"},
    {F_INDENT, "indent"},
    {F_INT, "int"},
    {F_ITEMS, "items"},
    {F_JOIN, "join"},
    {F_LAST, "last"},
    {F_LIST, "list"},
    {F_LOWER, "lower"},
    {F_MAP, "map"},
    {F_MAX, "max"},
    {F_MIN, "min"},
    {F_REJECT, "reject"},
    {F_REJECTATTR, "rejectattr"},
    {F_REPLACE, "replace"},
    {F_REVERSE, "reverse"},
    {F_ROUND, "round"},
    {F_SAFE, "safe"},
    {F_SELECT, "select"},
    {F_SELECTATTR, "selectattr"},
    {F_SLICE, "slice"},
    {F_SORT, "sort"},
    {F_STRING, "string"},
    {F_SUM, "sum"},
    {F_TITLE, "title"},
    {F_TOJSON, "tojson"},
    {F_TRIM, "trim"},
    {F_TRUNCATE, "truncate"},
    {F_UNIQUE, "unique"},
    {F_UPPER, "upper"},
    {F_WORDCOUNT, "wordcount"},
};

static int filter_of(pl_str name)
{
    for (size_t i = 0; i < sizeof filters / sizeof filters[0]; i++) {
        if (pl_str_is(name, filters[i].name)) return (int)filters[i].id;
    }
    return -1;
}
static bool filter_known(pl_str name)
{
    return filter_of(name) >= 0;
}

static pl_jvalue length(pl_jeval *e, pl_jvalue v)
{
    if (v.kind == PL_JV_STRING) return pl_jv_int((int64_t)pl_jv_chars(v.u.s));
    if (v.kind == PL_JV_LIST || v.kind == PL_JV_TUPLE) return pl_jv_int((int64_t)v.u.list->n);
    if (v.kind == PL_JV_DICT) return pl_jv_int((int64_t)v.u.dict->n);
    if (v.kind == PL_JV_UNDEFINED) return pl_jv_int(0);
    return wrong(e, "length", v);
}

static pl_jvalue extreme(pl_jeval *e, const pl_jlist *l, const pl_jcall *c, bool max)
{
    bool exact = pl_jv_truth(arg(c, 0, "case_sensitive"));
    pl_jvalue attribute = arg(c, 1, "attribute"), best = pl_jv_undefined(e, "No aggregated item, sequence was empty."),
              best_key = missing;
    for (size_t i = 0; i < l->n && e->status == PL_OK; i++) {
        pl_jvalue key = folded(e, absent(attribute) ? l->at[i] : deep_attr(e, l->at[i], attribute, missing), exact);
        int order = i ? pl_jv_compare(e, key, best_key) : 0;
        if (i == 0 || (max ? order > 0 : order < 0)) best = l->at[i], best_key = key;
    }
    return best;
}

static pl_jvalue sort_filter(pl_jeval *e, pl_jvalue v, const pl_jcall *c)
{
    const pl_jlist *l = pl_jv_items(e, v);
    size_t *order = sorted(e, l, arg(c, 2, "attribute"), pl_jv_truth(arg(c, 1, "case_sensitive")),
                           pl_jv_truth(arg(c, 0, "reverse")));
    pl_jvalue out = pl_jv_sequence(e, PL_JV_LIST);
    for (size_t i = 0; order && i < l->n; i++) pl_jv_push(e, out, l->at[order[i]]);
    return out;
}

static pl_jvalue dictsort(pl_jeval *e, pl_jvalue v, const pl_jcall *c)
{
    if (v.kind != PL_JV_DICT) return wrong(e, "dictsort", v);
    pl_jvalue items = dict_items(e, v.u.dict, M_ITEMS, PL_JV_LIST), out = pl_jv_sequence(e, PL_JV_LIST);
    if (items.kind != PL_JV_LIST) return items;
    bool by_value = pl_str_is(str_or(arg(c, 1, "by"), "key"), "value");
    size_t *order = sorted(e, items.u.list, pl_jv_int(by_value), pl_jv_truth(arg(c, 0, "case_sensitive")),
                           pl_jv_truth(arg(c, 2, "reverse")));
    for (size_t i = 0; order && i < items.u.list->n; i++) pl_jv_push(e, out, items.u.list->at[order[i]]);
    return out;
}

static pl_jvalue reverse(pl_jeval *e, pl_jvalue v)
{
    const pl_jlist *l = pl_jv_items(e, v);
    pl_jvalue out = pl_jv_sequence(e, PL_JV_GENERATOR);
    for (size_t i = l->n; i > 0; i--) pl_jv_push(e, out, l->at[i - 1]);
    return v.kind == PL_JV_STRING ? join(e, out, PL_STR(""), missing, false) : out;
}

static pl_jvalue unique(pl_jeval *e, pl_jvalue v, const pl_jcall *c)
{
    const pl_jlist *l = pl_jv_items(e, v);
    pl_jvalue seen = pl_jv_dict(e, PL_JV_DICT), out = pl_jv_sequence(e, PL_JV_GENERATOR),
              attribute = arg(c, 1, "attribute");
    for (size_t i = 0; i < l->n && e->status == PL_OK; i++) {
        pl_jvalue key = folded(e, absent(attribute) ? l->at[i] : deep_attr(e, l->at[i], attribute, missing),
                               pl_jv_truth(arg(c, 0, "case_sensitive")));
        if (pl_jv_lookup(e, seen.u.dict, key)) continue;
        pl_jv_put(e, seen, key, pl_jv_none());
        pl_jv_push(e, out, l->at[i]);
    }
    return out;
}

/* Runs of letters, digits and low lines. */
static pl_jvalue word_count(pl_jeval *e, pl_str s)
{
    int64_t n = 0;
    bool inside = false;
    pl_jstep(e, s.size / 16);
    for (size_t i = 0; i < s.size;) {
        int32_t c;
        i += pl_char_at(s, i, &c);
        utf8proc_category_t k = utf8proc_category(c);
        bool word = c == '_' || is_letter(c) || k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL ||
                    k == UTF8PROC_CATEGORY_NO;
        n += word && !inside;
        inside = word;
    }
    return pl_jv_int(n);
}

pl_jvalue pl_jinja_filter(pl_jeval *e, pl_str name, pl_jvalue v, const pl_jcall *c)
{
    if (!pl_jstep(e, 1)) return v;
    const pl_jlist *l;
    pl_jvalue out;
    switch (filter_of(name)) {
    case F_ABS:
        if (v.kind == PL_JV_FLOAT) return pl_jv_float(fabs(v.u.f));
        if (!pl_jv_is_number(v)) return wrong(e, "abs", v);
        return int_or(v, 0) < 0 ? pl_jv_binary(e, '-', pl_jv_int(0), v) : pl_jv_int(int_or(v, 0));
    case F_ATTR: return pl_jv_attr(e, v, str_or(arg(c, 0, "name"), ""), true);
    case F_BATCH: return batches(e, pl_jv_items(e, v), c, false);
    case F_SLICE: return batches(e, pl_jv_items(e, v), c, true);
    case F_CAPITALIZE: return cased(e, pl_jv_str(e, v), CAPITALIZE, false);
    case F_CENTER: return pad(e, pl_jv_str(e, v), int_or(arg(c, 0, "width"), 80), PL_STR(" "), 0);
    case F_LENGTH: return length(e, v);
    case F_DEFAULT: {
        pl_jvalue otherwise = arg(c, 0, "default_value");
        bool use = v.kind == PL_JV_UNDEFINED || (pl_jv_truth(arg(c, 1, "boolean")) && !pl_jv_truth(v));
        return !use ? v : given(otherwise) ? otherwise : pl_jv_borrow((pl_str){"", 0});
    }
    case F_DICTSORT: return dictsort(e, v, c);
    case F_ESCAPE:
    case F_FORCEESCAPE: {
        if (v.kind == PL_JV_STRING && v.safe && filter_of(name) == F_ESCAPE) return v;
        pl_buf b = {0};
        pl_jv_escape(pl_jv_str(e, v), &b);
        out = pl_jv_take(e, &b);
        out.safe = true;
        return out;
    }
    case F_FIRST:
    case F_LAST:
        l = pl_jv_items(e, v);
        if (l->n == 0) return pl_jv_undefined(e, "No %.*s item, sequence was empty.", PL_STR_ARG(name));
        return l->at[filter_of(name) == F_FIRST ? 0 : l->n - 1];
    case F_FLOAT: return to_float(e, v, arg(c, 0, "default"));
    case F_FORMAT:
        out = pl_jv_sequence(e, PL_JV_TUPLE);
        for (size_t i = 0; i < c->n; i++) pl_jv_push(e, out, c->args[i]);
        return pl_jv_format(e, pl_jv_str(e, v), c->n ? out : new_dict(e, c, PL_JV_DICT));
    case F_GROUPBY: return groupby(e, v, c);
    case F_INDENT: return indent(e, pl_jv_str(e, v), c);
    case F_INT: return to_int(e, v, arg(c, 0, "default"), int_or(arg(c, 1, "base"), 10));
    case F_ITEMS:
        if (v.kind == PL_JV_UNDEFINED) return pl_jv_sequence(e, PL_JV_GENERATOR);
        return v.kind == PL_JV_DICT ? dict_items(e, v.u.dict, M_ITEMS, PL_JV_GENERATOR) : wrong(e, "items", v);
    case F_JOIN: return join(e, v, pl_jv_str(e, arg(c, 0, "d")), arg(c, 1, "attribute"), false);
    case F_LIST:
        l = pl_jv_items(e, v);
        out = pl_jv_sequence(e, PL_JV_LIST);
        for (size_t i = 0; i < l->n; i++) pl_jv_push(e, out, l->at[i]);
        return out;
    case F_LOWER: return cased(e, pl_jv_str(e, v), LOWER, false);
    case F_UPPER: return cased(e, pl_jv_str(e, v), UPPER, false);
    case F_TITLE: return cased(e, pl_jv_str(e, v), TITLE, true);
    case F_MAP: return map_filter(e, v, c);
    case F_MAX: return extreme(e, pl_jv_items(e, v), c, true);
    case F_MIN: return extreme(e, pl_jv_items(e, v), c, false);
    case F_SELECT: return select_filter(e, v, c, false, true);
    case F_REJECT: return select_filter(e, v, c, false, false);
    case F_SELECTATTR: return select_filter(e, v, c, true, true);
    case F_REJECTATTR: return select_filter(e, v, c, true, false);
    case F_REPLACE: return replace(e, pl_jv_str(e, v), arg(c, 0, "old"), arg(c, 1, "new"), arg(c, 2, "count"));
    case F_REVERSE: return reverse(e, v);
    case F_ROUND: return round_filter(e, v, c);
    case F_SAFE:
        out = pl_jv_borrow(pl_jv_str(e, v));
        out.safe = true;
        return out;
    case F_SORT: return sort_filter(e, v, c);
    case F_STRING: return v.kind == PL_JV_STRING ? v : pl_jv_borrow(pl_jv_str(e, v));
    case F_SUM: {
        pl_jvalue attribute = arg(c, 0, "attribute"), start = arg(c, 1, "start");
        out = given(start) ? start : pl_jv_int(0);
        l = pl_jv_items(e, v);
        for (size_t i = 0; i < l->n && e->status == PL_OK; i++)
            out = pl_jv_binary(e, '+', out, absent(attribute) ? l->at[i] : deep_attr(e, l->at[i], attribute, missing));
        return out;
    }
    case F_TOJSON: return tojson(e, v, c);
    case F_TRIM: return strip(e, pl_jv_str(e, v), arg(c, 0, "chars"), true, true);
    case F_TRUNCATE: return truncate(e, pl_jv_str(e, v), c);
    case F_UNIQUE: return unique(e, v, c);
    case F_WORDCOUNT: return word_count(e, pl_jv_str(e, v));
    default: break;
    }
    return pl_jfail(e, PL_ERR_UNSUPPORTED, "there is no filter %.*s", name.size > 64 ? 64 : (int)name.size, name.data);
}
