/* Values and what Python does with them: truth, equality, order, text, items, slices, arithmetic. */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <utf8proc.h>

#include "engine/text/jinja_impl.h"

/* How deep values may contain each other when they are shown, compared or taken over; JSON itself allows 512. */
#define DEPTH_MAX 200

pl_jvalue pl_jfail(pl_jeval *e, pl_status s, const char *fmt, ...)
{
    if (e->status == PL_OK) {
        char text[600];
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        e->status = pl_fail(e->err, s, "template line %d, column %d: %s", e->at ? e->at->line : 0,
                            e->at ? e->at->col : 0, text);
    }
    return (pl_jvalue){.kind = PL_JV_UNDEFINED};
}

bool pl_jstep(pl_jeval *e, size_t n)
{
    if (e->status != PL_OK) return false;
    e->steps += n;
    if (e->steps > e->limits.steps)
        pl_jfail(e, PL_ERR_BUDGET, "the template takes more than %" PRIu64 " steps", e->limits.steps);
    return e->status == PL_OK;
}

void *pl_jalloc(pl_jeval *e, size_t size)
{
    if (e->status != PL_OK) return NULL;
    if (size > e->limits.memory - e->memory) {
        pl_jfail(e, PL_ERR_BUDGET, "the template takes more than %zu bytes", e->limits.memory);
        return NULL;
    }
    e->memory += size;
    if (!pl_jstep(e, size / 256)) return NULL; /* copying is work too */
    void *p = pl_arena_alloc(&e->arena, size ? size : 1);
    if (!p) pl_jfail(e, PL_ERR_NO_MEMORY, "no memory for %zu bytes", size);
    return p;
}

pl_jvalue pl_jv_bool(bool b)
{
    return (pl_jvalue){.kind = PL_JV_BOOL, .u.b = b};
}
pl_jvalue pl_jv_int(int64_t i)
{
    return (pl_jvalue){.kind = PL_JV_INT, .u.i = i};
}
pl_jvalue pl_jv_float(double f)
{
    return (pl_jvalue){.kind = PL_JV_FLOAT, .u.f = f};
}
pl_jvalue pl_jv_none(void)
{
    return (pl_jvalue){.kind = PL_JV_NONE};
}
pl_jvalue pl_jv_borrow(pl_str s)
{
    return (pl_jvalue){.kind = PL_JV_STRING, .u.s = s};
}

pl_jvalue pl_jv_string(pl_jeval *e, pl_str s)
{
    char *p = pl_jalloc(e, s.size);
    if (!p) return pl_jv_borrow((pl_str){"", 0});
    if (s.size) memcpy(p, s.data, s.size);
    return pl_jv_borrow((pl_str){p, s.size});
}

pl_jvalue pl_jv_take(pl_jeval *e, pl_buf *b)
{
    if (b->failed) pl_jfail(e, PL_ERR_NO_MEMORY, "no memory for a text");
    pl_jvalue v = pl_jv_string(e, pl_buf_str(b));
    pl_buf_fini(b);
    return v;
}

pl_jvalue pl_jv_undefined(pl_jeval *e, const char *fmt, ...)
{
    char text[200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    pl_jvalue v = pl_jv_string(e, pl_str_from(text));
    v.kind = PL_JV_UNDEFINED;
    return v;
}

pl_jvalue pl_jv_sequence(pl_jeval *e, pl_jkind kind)
{
    pl_jlist *l = pl_jalloc(e, sizeof *l);
    if (!l) return (pl_jvalue){.kind = PL_JV_UNDEFINED};
    *l = (pl_jlist){0};
    return (pl_jvalue){.kind = (uint8_t)kind, .u.list = l};
}

pl_jvalue pl_jv_dict(pl_jeval *e, pl_jkind kind)
{
    pl_jdict *d = pl_jalloc(e, sizeof *d);
    if (!d) return (pl_jvalue){.kind = PL_JV_UNDEFINED};
    *d = (pl_jdict){0};
    return (pl_jvalue){.kind = (uint8_t)kind, .u.dict = d};
}

bool pl_jv_is_sequence(pl_jvalue v)
{
    return v.kind == PL_JV_LIST || v.kind == PL_JV_TUPLE || v.kind == PL_JV_GENERATOR;
}
bool pl_jv_is_number(pl_jvalue v)
{
    return v.kind == PL_JV_INT || v.kind == PL_JV_FLOAT || v.kind == PL_JV_BOOL;
}

void pl_jv_push(pl_jeval *e, pl_jvalue sequence, pl_jvalue v)
{
    if (!pl_jv_is_sequence(sequence)) return; /* making it failed */
    pl_jlist *l = sequence.u.list;
    if (!pl_jstep(e, 1)) return;
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 4;
        pl_jvalue *at = pl_jalloc(e, cap * sizeof *at);
        if (!at) return;
        if (l->n) memcpy(at, l->at, l->n * sizeof *at);
        l->at = at;
        l->cap = cap;
    }
    l->at[l->n++] = v;
}

pl_jvalue pl_jv_pair(pl_jeval *e, pl_jvalue a, pl_jvalue b)
{
    pl_jvalue t = pl_jv_sequence(e, PL_JV_TUPLE);
    pl_jv_push(e, t, a);
    pl_jv_push(e, t, b);
    return t;
}

const pl_jvalue *pl_jv_lookup(pl_jeval *e, const pl_jdict *d, pl_jvalue key)
{
    pl_jstep(e, d->n / 8);
    for (size_t i = 0; i < d->n; i++) {
        const pl_jvalue *k = &d->at[i].key;
        if (k->kind == PL_JV_STRING && key.kind == PL_JV_STRING ? pl_str_eq(k->u.s, key.u.s) : pl_jv_equal(e, *k, key))
            return &d->at[i].value;
    }
    return NULL;
}

void pl_jv_put(pl_jeval *e, pl_jvalue dict, pl_jvalue key, pl_jvalue v)
{
    if (dict.kind != PL_JV_DICT && dict.kind != PL_JV_NAMESPACE) return;
    pl_jdict *d = dict.u.dict;
    if (key.kind == PL_JV_LIST || key.kind == PL_JV_DICT) {
        pl_jfail(e, PL_ERR_INVALID, "a %s cannot be a key", pl_jv_type(key));
        return;
    }
    const pl_jvalue *old = pl_jv_lookup(e, d, key);
    if (!pl_jstep(e, 1)) return;
    if (old) {
        d->at[(const pl_jpair *)(const void *)((const char *)old - offsetof(pl_jpair, value)) - d->at].value = v;
        return;
    }
    if (d->n == d->cap) {
        size_t cap = d->cap ? d->cap * 2 : 4;
        pl_jpair *at = pl_jalloc(e, cap * sizeof *at);
        if (!at) return;
        if (d->n) memcpy(at, d->at, d->n * sizeof *at);
        d->at = at;
        d->cap = cap;
    }
    d->at[d->n++] = (pl_jpair){key, v};
}

pl_jvalue pl_jv_json(pl_jeval *e, const pl_json *j, int depth)
{
    if (depth > DEPTH_MAX) return pl_jfail(e, PL_ERR_INVALID, "values are nested too deeply");
    pl_jvalue v;
    switch (pl_json_type(j)) {
    case PL_JSON_NULL: return pl_jv_none();
    case PL_JSON_BOOL: return pl_jv_bool(pl_json_is_true(j));
    case PL_JSON_INT: return pl_jv_int(pl_json_i64(j));
    case PL_JSON_REAL: return pl_jv_float(pl_json_f64(j));
    case PL_JSON_STRING: return pl_jv_borrow(pl_json_str(j));
    case PL_JSON_ARRAY:
        v = pl_jv_sequence(e, PL_JV_LIST);
        for (size_t i = 0; i < pl_json_size(j) && e->status == PL_OK; i++)
            pl_jv_push(e, v, pl_jv_json(e, pl_json_at(j, i), depth + 1));
        return v;
    case PL_JSON_OBJECT: break;
    }
    v = pl_jv_dict(e, PL_JV_DICT);
    void *iter = NULL;
    pl_str key;
    pl_json *member;
    while (e->status == PL_OK && pl_json_next(j, &iter, &key, &member)) {
        /* JSON has each key once, so that no search is needed. */
        pl_jdict *d = v.u.dict;
        if (d->n == d->cap) {
            size_t cap = d->cap ? d->cap * 2 : pl_json_size(j);
            pl_jpair *at = pl_jalloc(e, cap * sizeof *at);
            if (!at) break;
            if (d->n) memcpy(at, d->at, d->n * sizeof *at);
            d->at = at;
            d->cap = cap;
        }
        pl_jvalue m = pl_jv_json(e, member, depth + 1);
        d->at[d->n++] = (pl_jpair){pl_jv_borrow(key), m};
    }
    return v;
}

/* ---- what they are ---- */

const char *pl_jv_type(pl_jvalue v)
{
    static const char *const names[] = {"nothing",     "Undefined", "NoneType", "bool",      "int",  "float",
                                        "str",         "list",      "tuple",    "generator", "dict", "Namespace",
                                        "LoopContext", "Macro",     "function", "method"};
    return names[v.kind];
}

bool pl_jv_truth(pl_jvalue v)
{
    switch ((pl_jkind)v.kind) {
    case PL_JV_MISSING:
    case PL_JV_UNDEFINED:
    case PL_JV_NONE: return false;
    case PL_JV_BOOL: return v.u.b;
    case PL_JV_INT: return v.u.i != 0;
    case PL_JV_FLOAT: return v.u.f != 0;
    case PL_JV_STRING: return v.u.s.size > 0;
    case PL_JV_LIST:
    case PL_JV_TUPLE: return v.u.list->n > 0;
    case PL_JV_DICT: return v.u.dict->n > 0;
    default: return true;
    }
}

static double as_float(pl_jvalue v)
{
    return v.kind == PL_JV_FLOAT ? v.u.f : v.kind == PL_JV_BOOL ? v.u.b : (double)v.u.i;
}
static int64_t as_int(pl_jvalue v)
{
    return v.kind == PL_JV_BOOL ? v.u.b : v.u.i;
}

static bool equal(pl_jeval *e, pl_jvalue a, pl_jvalue b, int depth)
{
    if (!pl_jstep(e, 1)) return false;
    if (depth > DEPTH_MAX) {
        pl_jfail(e, PL_ERR_INVALID, "values are nested too deeply");
        return false;
    }
    if (pl_jv_is_number(a) && pl_jv_is_number(b)) {
        if (a.kind != PL_JV_FLOAT && b.kind != PL_JV_FLOAT) return as_int(a) == as_int(b);
        return as_float(a) == as_float(b);
    }
    if (a.kind != b.kind) return false;
    switch ((pl_jkind)a.kind) {
    case PL_JV_STRING: pl_jstep(e, a.u.s.size / 256); return pl_str_eq(a.u.s, b.u.s);
    case PL_JV_LIST:
    case PL_JV_TUPLE:
        if (a.u.list->n != b.u.list->n) return false;
        for (size_t i = 0; i < a.u.list->n; i++) {
            if (!equal(e, a.u.list->at[i], b.u.list->at[i], depth + 1)) return false;
        }
        return true;
    case PL_JV_DICT:
        if (a.u.dict->n != b.u.dict->n) return false;
        for (size_t i = 0; i < a.u.dict->n; i++) {
            const pl_jvalue *other = pl_jv_lookup(e, b.u.dict, a.u.dict->at[i].key);
            if (!other || !equal(e, a.u.dict->at[i].value, *other, depth + 1)) return false;
        }
        return true;
    case PL_JV_GENERATOR: return a.u.list == b.u.list;
    case PL_JV_NAMESPACE: return a.u.dict == b.u.dict;
    case PL_JV_LOOP: return a.u.loop == b.u.loop;
    case PL_JV_MACRO: return a.u.macro == b.u.macro;
    case PL_JV_FUNCTION: return a.u.function == b.u.function;
    case PL_JV_METHOD: return a.u.method == b.u.method;
    default: return true; /* none, undefined */
    }
}

bool pl_jv_equal(pl_jeval *e, pl_jvalue a, pl_jvalue b)
{
    return equal(e, a, b, 0);
}

static int compare(pl_jeval *e, pl_jvalue a, pl_jvalue b, int depth)
{
    if (!pl_jstep(e, 1)) return 0;
    if (pl_jv_is_number(a) && pl_jv_is_number(b)) {
        if (a.kind != PL_JV_FLOAT && b.kind != PL_JV_FLOAT) return (as_int(a) > as_int(b)) - (as_int(a) < as_int(b));
        return (as_float(a) > as_float(b)) - (as_float(a) < as_float(b));
    }
    if (a.kind == PL_JV_STRING && b.kind == PL_JV_STRING) {
        /* The order of UTF-8 bytes is the order of characters. */
        size_t n = a.u.s.size < b.u.s.size ? a.u.s.size : b.u.s.size;
        pl_jstep(e, n / 256);
        int c = n ? memcmp(a.u.s.data, b.u.s.data, n) : 0;
        return c ? (c > 0) - (c < 0) : (a.u.s.size > b.u.s.size) - (a.u.s.size < b.u.s.size);
    }
    if (a.kind == b.kind && (a.kind == PL_JV_LIST || a.kind == PL_JV_TUPLE) && depth < DEPTH_MAX) {
        const pl_jlist *x = a.u.list, *y = b.u.list;
        for (size_t i = 0; i < x->n && i < y->n && e->status == PL_OK; i++) {
            if (!pl_jv_equal(e, x->at[i], y->at[i])) return compare(e, x->at[i], y->at[i], depth + 1);
        }
        return (x->n > y->n) - (x->n < y->n);
    }
    if (a.kind == PL_JV_UNDEFINED || b.kind == PL_JV_UNDEFINED) {
        pl_str what = a.kind == PL_JV_UNDEFINED ? a.u.s : b.u.s;
        pl_jfail(e, PL_ERR_INVALID, "%.*s", PL_STR_ARG(what));
    } else {
        pl_jfail(e, PL_ERR_INVALID, "%s and %s have no order", pl_jv_type(a), pl_jv_type(b));
    }
    return 0;
}

int pl_jv_compare(pl_jeval *e, pl_jvalue a, pl_jvalue b)
{
    return compare(e, a, b, 0);
}

bool pl_jv_contains(pl_jeval *e, pl_jvalue all, pl_jvalue one)
{
    if (all.kind == PL_JV_STRING) {
        if (one.kind != PL_JV_STRING) {
            pl_jfail(e, PL_ERR_INVALID, "'in <string>' wants a string on its left, not %s", pl_jv_type(one));
            return false;
        }
        pl_jstep(e, all.u.s.size / 64);
        return one.u.s.size == 0 ||
               (all.u.s.size >= one.u.s.size && memmem(all.u.s.data, all.u.s.size, one.u.s.data, one.u.s.size) != NULL);
    }
    if (all.kind == PL_JV_DICT) return pl_jv_lookup(e, all.u.dict, one) != NULL;
    const pl_jlist *l = pl_jv_items(e, all);
    for (size_t i = 0; i < l->n && e->status == PL_OK; i++) {
        if (pl_jv_equal(e, l->at[i], one)) return true;
    }
    return false;
}

size_t pl_jv_chars(pl_str s)
{
    size_t n = 0;
    for (size_t i = 0; i < s.size; i++) n += ((uint8_t)s.data[i] & 0xc0) != 0x80;
    return n;
}

pl_str pl_jv_chars_at(pl_str s, size_t from, size_t to)
{
    size_t i = 0, n = 0, start;
    for (; i < s.size && (((uint8_t)s.data[i] & 0xc0) == 0x80 || n < from); i++)
        n += ((uint8_t)s.data[i] & 0xc0) != 0x80;
    while (i < s.size && ((uint8_t)s.data[i] & 0xc0) == 0x80) i++;
    start = i;
    for (n = from; i < s.size; i++) {
        if (((uint8_t)s.data[i] & 0xc0) != 0x80 && n++ >= to) break;
    }
    return (pl_str){s.data + start, i - start};
}

const pl_jlist *pl_jv_items(pl_jeval *e, pl_jvalue v)
{
    static const pl_jlist none = {0};
    if (pl_jv_is_sequence(v)) return v.u.list;
    if (v.kind == PL_JV_UNDEFINED) return &none;
    pl_jvalue l = {.kind = PL_JV_UNDEFINED};
    if (v.kind == PL_JV_DICT) {
        l = pl_jv_sequence(e, PL_JV_LIST);
        for (size_t i = 0; i < v.u.dict->n; i++) pl_jv_push(e, l, v.u.dict->at[i].key);
    } else if (v.kind == PL_JV_STRING) {
        l = pl_jv_sequence(e, PL_JV_LIST);
        for (size_t i = 0, n; i < v.u.s.size && e->status == PL_OK; i += n) {
            for (n = 1; i + n < v.u.s.size && ((uint8_t)v.u.s.data[i + n] & 0xc0) == 0x80;) n++;
            pl_jv_push(e, l, pl_jv_borrow((pl_str){v.u.s.data + i, n}));
        }
    } else if (v.kind == PL_JV_LOOP) {
        return v.u.loop->items;
    } else {
        pl_jfail(e, PL_ERR_INVALID, "a %s cannot be walked", pl_jv_type(v));
    }
    return l.kind == PL_JV_LIST ? l.u.list : &none;
}

/* ---- text ---- */

/* Python's repr of a float: the shortest digits that read back the same. */
static void put_float(double f, pl_buf *out)
{
    char text[40];
    if (isnan(f) || isinf(f)) {
        pl_buf_add_str(out, pl_str_from(isnan(f) ? "nan" : f < 0 ? "-inf" : "inf"));
        return;
    }
    int digits = 1;
    do snprintf(text, sizeof text, "%.*e", digits - 1, f);
    while (strtod(text, NULL) != f && ++digits <= 17);
    int exponent = atoi(strchr(text, 'e') + 1);
    if (exponent >= -4 && exponent < 16) {
        int decimals = digits - 1 - exponent;
        pl_buf_printf(out, "%.*f", decimals > 0 ? decimals : 1, f);
        return;
    }
    char *e = strchr(text, 'e');
    pl_buf_printf(out, "%.*se%c%02d", (int)(e - text), text, exponent < 0 ? '-' : '+', abs(exponent));
}

static bool printable(int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);
    return c == ' ' || !(k == UTF8PROC_CATEGORY_CC || k == UTF8PROC_CATEGORY_CF || k == UTF8PROC_CATEGORY_CS ||
                         k == UTF8PROC_CATEGORY_CO || k == UTF8PROC_CATEGORY_CN || k == UTF8PROC_CATEGORY_ZL ||
                         k == UTF8PROC_CATEGORY_ZP || k == UTF8PROC_CATEGORY_ZS);
}

static void repr_string(pl_str s, pl_buf *out)
{
    char quote = memchr(s.data, '\'', s.size) && !memchr(s.data, '"', s.size) ? '"' : '\'';
    pl_buf_add_u8(out, (uint8_t)quote);
    for (size_t i = 0; i < s.size;) {
        int32_t c;
        utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)s.data + i, (utf8proc_ssize_t)(s.size - i), &c);
        if (n < 1) n = 1, c = 0xfffd;
        if (c == quote || c == '\\')
            pl_buf_printf(out, "\\%c", (char)c);
        else if (c == '\n')
            pl_buf_add(out, "\\n", 2);
        else if (c == '\r')
            pl_buf_add(out, "\\r", 2);
        else if (c == '\t')
            pl_buf_add(out, "\\t", 2);
        else if (printable(c))
            pl_buf_add(out, s.data + i, (size_t)n);
        else if (c < 0x100)
            pl_buf_printf(out, "\\x%02x", (unsigned)c);
        else if (c < 0x10000)
            pl_buf_printf(out, "\\u%04x", (unsigned)c);
        else
            pl_buf_printf(out, "\\U%08x", (unsigned)c);
        i += (size_t)n;
    }
    pl_buf_add_u8(out, (uint8_t)quote);
}

void pl_jv_repr(pl_jeval *e, pl_jvalue v, int depth, pl_buf *out)
{
    if (!pl_jstep(e, 1)) return;
    if (out->size > e->limits.output || depth > DEPTH_MAX) {
        pl_jfail(e, PL_ERR_BUDGET, "the text of a value is too large");
        return;
    }
    switch ((pl_jkind)v.kind) {
    case PL_JV_MISSING:
    case PL_JV_UNDEFINED: pl_buf_add(out, "Undefined", 9); break;
    case PL_JV_NONE: pl_buf_add(out, "None", 4); break;
    case PL_JV_BOOL: pl_buf_add_str(out, pl_str_from(v.u.b ? "True" : "False")); break;
    case PL_JV_INT: pl_buf_printf(out, "%" PRId64, v.u.i); break;
    case PL_JV_FLOAT: put_float(v.u.f, out); break;
    case PL_JV_STRING:
        pl_jstep(e, v.u.s.size / 64);
        repr_string(v.u.s, out);
        break;
    case PL_JV_LIST:
    case PL_JV_TUPLE:
        pl_buf_add_u8(out, v.kind == PL_JV_LIST ? '[' : '(');
        for (size_t i = 0; i < v.u.list->n && e->status == PL_OK; i++) {
            if (i) pl_buf_add(out, ", ", 2);
            pl_jv_repr(e, v.u.list->at[i], depth + 1, out);
        }
        if (v.kind == PL_JV_TUPLE && v.u.list->n == 1) pl_buf_add_u8(out, ',');
        pl_buf_add_u8(out, v.kind == PL_JV_LIST ? ']' : ')');
        break;
    case PL_JV_DICT:
        pl_buf_add_u8(out, '{');
        for (size_t i = 0; i < v.u.dict->n && e->status == PL_OK; i++) {
            if (i) pl_buf_add(out, ", ", 2);
            pl_jv_repr(e, v.u.dict->at[i].key, depth + 1, out);
            pl_buf_add(out, ": ", 2);
            pl_jv_repr(e, v.u.dict->at[i].value, depth + 1, out);
        }
        pl_buf_add_u8(out, '}');
        break;
    default: pl_buf_printf(out, "<%s>", pl_jv_type(v)); break;
    }
}

pl_str pl_jv_str(pl_jeval *e, pl_jvalue v)
{
    if (v.kind == PL_JV_STRING) return v.u.s;
    if (v.kind == PL_JV_UNDEFINED || v.kind == PL_JV_MISSING) return (pl_str){"", 0};
    pl_buf b = {0};
    pl_jv_repr(e, v, 0, &b);
    return pl_jv_take(e, &b).u.s;
}

static void json_string(pl_str s, bool ascii, pl_buf *out)
{
    pl_buf_add_u8(out, '"');
    for (size_t i = 0; i < s.size;) {
        uint8_t c = (uint8_t)s.data[i];
        static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
        const char *known = c ? strchr(from, c) : NULL;
        if (known && c < 0x80) {
            pl_buf_printf(out, "\\%c", to[known - from]);
            i++;
        } else if (c < 0x20) {
            pl_buf_printf(out, "\\u%04x", c);
            i++;
        } else if (c < 0x80 || !ascii) {
            pl_buf_add_u8(out, c);
            i++;
        } else {
            int32_t u;
            utf8proc_ssize_t n =
                utf8proc_iterate((const utf8proc_uint8_t *)s.data + i, (utf8proc_ssize_t)(s.size - i), &u);
            if (n < 1) n = 1, u = 0xfffd;
            if (u >= 0x10000)
                pl_buf_printf(out, "\\u%04x\\u%04x", (unsigned)(0xd800 + ((u - 0x10000) >> 10)),
                              (unsigned)(0xdc00 + ((u - 0x10000) & 0x3ff)));
            else
                pl_buf_printf(out, "\\u%04x", (unsigned)u);
            i += (size_t)n;
        }
    }
    pl_buf_add_u8(out, '"');
}

static void json_line(int indent, int level, pl_buf *out)
{
    if (indent < 0) return;
    pl_buf_add_u8(out, '\n');
    for (int i = 0; i < indent * level; i++) pl_buf_add_u8(out, ' ');
}

static int by_key(const void *a, const void *b)
{
    const pl_jpair *x = *(const pl_jpair *const *)a, *y = *(const pl_jpair *const *)b;
    pl_str s = x->key.u.s, t = y->key.u.s;
    size_t n = s.size < t.size ? s.size : t.size;
    int c = n ? memcmp(s.data, t.data, n) : 0;
    return c ? c : (s.size > t.size) - (s.size < t.size);
}

void pl_jv_tojson(pl_jeval *e, pl_jvalue v, int indent, pl_str item_sep, pl_str key_sep, bool ascii, bool sort,
                  int level, pl_buf *out)
{
    if (!pl_jstep(e, 1)) return;
    if (out->size > e->limits.output || level > DEPTH_MAX || indent > 64) {
        pl_jfail(e, PL_ERR_BUDGET, "the JSON of a value is too large");
        return;
    }
    switch ((pl_jkind)v.kind) {
    case PL_JV_NONE: pl_buf_add(out, "null", 4); break;
    case PL_JV_BOOL: pl_buf_add_str(out, pl_str_from(v.u.b ? "true" : "false")); break;
    case PL_JV_INT: pl_buf_printf(out, "%" PRId64, v.u.i); break;
    case PL_JV_FLOAT:
        if (isnan(v.u.f) || isinf(v.u.f))
            pl_buf_add_str(out, pl_str_from(isnan(v.u.f) ? "NaN" : v.u.f < 0 ? "-Infinity" : "Infinity"));
        else
            put_float(v.u.f, out);
        break;
    case PL_JV_STRING:
        pl_jstep(e, v.u.s.size / 64);
        json_string(v.u.s, ascii, out);
        break;
    case PL_JV_LIST:
    case PL_JV_TUPLE:
        pl_buf_add_u8(out, '[');
        for (size_t i = 0; i < v.u.list->n && e->status == PL_OK; i++) {
            if (i) pl_buf_add_str(out, item_sep);
            json_line(indent, level + 1, out);
            pl_jv_tojson(e, v.u.list->at[i], indent, item_sep, key_sep, ascii, sort, level + 1, out);
        }
        if (v.u.list->n) json_line(indent, level, out);
        pl_buf_add_u8(out, ']');
        break;
    case PL_JV_DICT: {
        size_t n = v.u.dict->n;
        const pl_jpair **order = pl_jalloc(e, n * sizeof(pl_jpair *));
        if (!order) return;
        bool strings = true;
        for (size_t i = 0; i < n; i++) {
            order[i] = &v.u.dict->at[i];
            strings = strings && order[i]->key.kind == PL_JV_STRING;
        }
        if (sort && strings && n) qsort(order, n, sizeof(pl_jpair *), by_key);
        pl_buf_add_u8(out, '{');
        for (size_t i = 0; i < n && e->status == PL_OK; i++) {
            if (i) pl_buf_add_str(out, item_sep);
            json_line(indent, level + 1, out);
            pl_jvalue key = order[i]->key;
            if (key.kind != PL_JV_STRING) { /* numbers and the like become strings */
                pl_buf text = {0};
                pl_jv_tojson(e, key, -1, item_sep, key_sep, ascii, sort, level + 1, &text);
                key = pl_jv_take(e, &text);
            }
            json_string(key.u.s, ascii, out);
            pl_buf_add_str(out, key_sep);
            pl_jv_tojson(e, order[i]->value, indent, item_sep, key_sep, ascii, sort, level + 1, out);
        }
        if (n) json_line(indent, level, out);
        pl_buf_add_u8(out, '}');
        break;
    }
    default: pl_jfail(e, PL_ERR_INVALID, "%s has no JSON", pl_jv_type(v)); break;
    }
}

void pl_jv_escape(pl_str s, pl_buf *out)
{
    for (size_t i = 0; i < s.size; i++) {
        char c = s.data[i];
        const char *t = c == '&'    ? "&amp;"
                        : c == '<'  ? "&lt;"
                        : c == '>'  ? "&gt;"
                        : c == '"'  ? "&#34;"
                        : c == '\'' ? "&#39;"
                                    : NULL;
        if (t)
            pl_buf_add_str(out, pl_str_from(t));
        else
            pl_buf_add_u8(out, (uint8_t)c);
    }
}

/* ---- parts ---- */

pl_jvalue pl_jv_index(pl_jeval *e, pl_jvalue v, pl_jvalue at)
{
    if (v.kind == PL_JV_DICT) {
        const pl_jvalue *found = pl_jv_lookup(e, v.u.dict, at);
        if (found) return *found;
    } else if ((v.kind == PL_JV_LIST || v.kind == PL_JV_TUPLE || v.kind == PL_JV_STRING) &&
               (at.kind == PL_JV_INT || at.kind == PL_JV_BOOL)) {
        int64_t i = as_int(at), n = (int64_t)(v.kind == PL_JV_STRING ? pl_jv_chars(v.u.s) : v.u.list->n);
        if (v.kind == PL_JV_STRING) pl_jstep(e, v.u.s.size / 64);
        if (i < 0) i += n;
        if (i >= 0 && i < n)
            return v.kind == PL_JV_STRING ? pl_jv_borrow(pl_jv_chars_at(v.u.s, (size_t)i, (size_t)i + 1))
                                          : v.u.list->at[i];
    } else if (v.kind == PL_JV_UNDEFINED) {
        return pl_jfail(e, PL_ERR_INVALID, "%.*s", PL_STR_ARG(v.u.s));
    }
    if (at.kind == PL_JV_STRING)
        return pl_jv_undefined(e, "'%s object' has no attribute '%.*s'", pl_jv_type(v),
                               at.u.s.size > 80 ? 80 : (int)at.u.s.size, at.u.s.data);
    pl_str text = pl_jv_str(e, at);
    return pl_jv_undefined(e, "%s object has no element %.*s", pl_jv_type(v), text.size > 80 ? 80 : (int)text.size,
                           text.data);
}

/* One bound of a slice as Python reads it. */
static int64_t bound(pl_jvalue v, int64_t missing, int64_t low, int64_t high, int64_t n)
{
    if (v.kind == PL_JV_MISSING || v.kind == PL_JV_NONE) return missing;
    int64_t i = as_int(v);
    if (i < 0) i += n; /* cannot overflow: i is negative */
    return i < low ? low : i > high ? high : i;
}

pl_jvalue pl_jv_slice(pl_jeval *e, pl_jvalue v, pl_jvalue from, pl_jvalue to, pl_jvalue step)
{
    const pl_jvalue *all[3] = {&from, &to, &step};
    for (int i = 0; i < 3; i++) {
        if (all[i]->kind > PL_JV_INT || all[i]->kind == PL_JV_UNDEFINED)
            return pl_jfail(e, PL_ERR_INVALID, "a slice wants integers, not %s", pl_jv_type(*all[i]));
    }
    if (v.kind != PL_JV_LIST && v.kind != PL_JV_TUPLE && v.kind != PL_JV_STRING) {
        if (v.kind == PL_JV_UNDEFINED) return pl_jfail(e, PL_ERR_INVALID, "%.*s", PL_STR_ARG(v.u.s));
        return pl_jv_undefined(e, "%s object cannot be sliced", pl_jv_type(v));
    }
    int64_t k = step.kind == PL_JV_MISSING || step.kind == PL_JV_NONE ? 1 : as_int(step);
    if (k == 0) return pl_jfail(e, PL_ERR_INVALID, "the step of a slice is 0");
    int64_t n = (int64_t)(v.kind == PL_JV_STRING ? pl_jv_chars(v.u.s) : v.u.list->n);
    int64_t a = k > 0 ? bound(from, 0, 0, n, n) : bound(from, n - 1, -1, n - 1, n);
    int64_t b = k > 0 ? bound(to, n, 0, n, n) : bound(to, -1, -1, n - 1, n);
    if (v.kind == PL_JV_STRING) {
        pl_jstep(e, v.u.s.size / 64);
        if (k == 1) return pl_jv_borrow(a < b ? pl_jv_chars_at(v.u.s, (size_t)a, (size_t)b) : (pl_str){"", 0});
        pl_jvalue chars = {.kind = PL_JV_LIST, .u.list = (pl_jlist *)(uintptr_t)pl_jv_items(e, v)};
        pl_jvalue picked = pl_jv_slice(e, chars, from, to, step);
        pl_buf out = {0};
        for (size_t i = 0; picked.kind == PL_JV_LIST && i < picked.u.list->n; i++)
            pl_buf_add_str(&out, picked.u.list->at[i].u.s);
        return pl_jv_take(e, &out);
    }
    pl_jvalue out = pl_jv_sequence(e, (pl_jkind)v.kind);
    for (int64_t i = a; (k > 0 ? i < b : i > b) && e->status == PL_OK;) {
        pl_jv_push(e, out, v.u.list->at[i]);
        if (__builtin_add_overflow(i, k, &i)) break;
    }
    return out;
}

/* ---- arithmetic ---- */

static pl_jvalue repeat(pl_jeval *e, pl_jvalue v, int64_t times)
{
    if (v.kind == PL_JV_STRING) {
        size_t size;
        if (times < 0) times = 0;
        if (__builtin_mul_overflow(v.u.s.size, (size_t)times, &size)) size = SIZE_MAX / 2;
        char *p = pl_jalloc(e, size);
        if (!p) return pl_jv_borrow((pl_str){"", 0});
        for (size_t i = 0; i < size; i += v.u.s.size) memcpy(p + i, v.u.s.data, v.u.s.size);
        return pl_jv_borrow((pl_str){p, size});
    }
    pl_jvalue out = pl_jv_sequence(e, (pl_jkind)v.kind);
    for (int64_t k = 0; k < times && e->status == PL_OK && v.u.list->n; k++) {
        for (size_t i = 0; i < v.u.list->n; i++) pl_jv_push(e, out, v.u.list->at[i]);
    }
    return out;
}

static pl_jvalue int_power(pl_jeval *e, int64_t a, int64_t b)
{
    int64_t r = 1;
    if (b < 0) return pl_jv_float(pow((double)a, (double)b));
    while (b > 0) {
        if (b & 1 && __builtin_mul_overflow(r, a, &r))
            return pl_jfail(e, PL_ERR_INVALID, "an integer does not fit into 64 bits");
        b >>= 1;
        if (b && __builtin_mul_overflow(a, a, &a))
            return pl_jfail(e, PL_ERR_INVALID, "an integer does not fit into 64 bits");
    }
    return pl_jv_int(r);
}

static pl_jvalue int_binary(pl_jeval *e, int op, int64_t a, int64_t b)
{
    int64_t r = 0;
    bool over = false;
    if (op == '+')
        over = __builtin_add_overflow(a, b, &r);
    else if (op == '-')
        over = __builtin_sub_overflow(a, b, &r);
    else if (op == '*')
        over = __builtin_mul_overflow(a, b, &r);
    else if (op == PL_JOP('*', '*'))
        return int_power(e, a, b);
    else if (b == 0)
        return pl_jfail(e, PL_ERR_INVALID, "division by zero");
    else if (op == '/')
        return pl_jv_float((double)a / (double)b);
    else if (b == -1)
        over = op != '%' && __builtin_sub_overflow((int64_t)0, a, &r);
    else if (op == '%')
        r = a % b + (a % b != 0 && (a % b < 0) != (b < 0) ? b : 0); /* the sign of the divisor */
    else
        r = a / b - (a % b != 0 && (a < 0) != (b < 0));
    return over ? pl_jfail(e, PL_ERR_INVALID, "an integer does not fit into 64 bits") : pl_jv_int(r);
}

static pl_jvalue float_binary(pl_jeval *e, int op, double a, double b)
{
    switch (op) {
    case '+': return pl_jv_float(a + b);
    case '-': return pl_jv_float(a - b);
    case '*': return pl_jv_float(a * b);
    case PL_JOP('*', '*'): return pl_jv_float(pow(a, b));
    default: break;
    }
    if (b == 0) return pl_jfail(e, PL_ERR_INVALID, "division by zero");
    if (op == '/') return pl_jv_float(a / b);
    double m = fmod(a, b);
    if (m != 0 && (m < 0) != (b < 0)) m += b;
    if (op == '%') return pl_jv_float(m);
    return pl_jv_float(floor((a - m) / b + 0.5));
}

pl_jvalue pl_jv_binary(pl_jeval *e, int op, pl_jvalue a, pl_jvalue b)
{
    if (pl_jv_is_number(a) && pl_jv_is_number(b)) {
        if (a.kind != PL_JV_FLOAT && b.kind != PL_JV_FLOAT) return int_binary(e, op, as_int(a), as_int(b));
        return float_binary(e, op, as_float(a), as_float(b));
    }
    bool a_list = a.kind == PL_JV_LIST || a.kind == PL_JV_TUPLE, b_list = b.kind == PL_JV_LIST || b.kind == PL_JV_TUPLE;
    if (op == '+' && a.kind == PL_JV_STRING && b.kind == PL_JV_STRING) {
        if (a.safe != b.safe) { /* what is not marked as HTML is escaped when it meets what is */
            pl_buf out = {0};
            pl_jv_escape(a.safe ? b.u.s : a.u.s, &out);
            pl_jvalue *plain = a.safe ? &b : &a;
            *plain = pl_jv_take(e, &out);
        }
        char *p = pl_jalloc(e, a.u.s.size + b.u.s.size);
        if (!p) return pl_jv_borrow((pl_str){"", 0});
        if (a.u.s.size) memcpy(p, a.u.s.data, a.u.s.size);
        if (b.u.s.size) memcpy(p + a.u.s.size, b.u.s.data, b.u.s.size);
        return (pl_jvalue){.kind = PL_JV_STRING, .safe = a.safe || b.safe, .u.s = {p, a.u.s.size + b.u.s.size}};
    }
    if (op == '+' && a_list && a.kind == b.kind) {
        pl_jvalue out = pl_jv_sequence(e, (pl_jkind)a.kind);
        for (size_t i = 0; i < a.u.list->n; i++) pl_jv_push(e, out, a.u.list->at[i]);
        for (size_t i = 0; i < b.u.list->n; i++) pl_jv_push(e, out, b.u.list->at[i]);
        return out;
    }
    if (op == '*' && (a.kind == PL_JV_STRING || a_list) && (b.kind == PL_JV_INT || b.kind == PL_JV_BOOL))
        return repeat(e, a, as_int(b));
    if (op == '*' && (b.kind == PL_JV_STRING || b_list) && (a.kind == PL_JV_INT || a.kind == PL_JV_BOOL))
        return repeat(e, b, as_int(a));
    if (op == '%' && a.kind == PL_JV_STRING) return pl_jv_format(e, a.u.s, b);
    if (a.kind == PL_JV_UNDEFINED || b.kind == PL_JV_UNDEFINED) {
        pl_str what = a.kind == PL_JV_UNDEFINED ? a.u.s : b.u.s;
        return pl_jfail(e, PL_ERR_INVALID, "%.*s", PL_STR_ARG(what));
    }
    char name[3] = {(char)op, (char)(op >> 8), 0};
    return pl_jfail(e, PL_ERR_INVALID, "%s cannot be computed of %s and %s", name, pl_jv_type(a), pl_jv_type(b));
}

pl_jvalue pl_jv_format(pl_jeval *e, pl_str fmt, pl_jvalue args)
{
    pl_buf out = {0};
    size_t next = 0, n = args.kind == PL_JV_TUPLE ? args.u.list->n : 1;
    for (size_t i = 0; i < fmt.size && e->status == PL_OK; i++) {
        if (fmt.data[i] != '%') {
            pl_buf_add_u8(&out, (uint8_t)fmt.data[i]);
            continue;
        }
        if (++i < fmt.size && fmt.data[i] == '%') {
            pl_buf_add_u8(&out, '%');
            continue;
        }
        pl_jvalue v = {.kind = PL_JV_MISSING};
        if (i < fmt.size && fmt.data[i] == '(') {
            const char *close = memchr(fmt.data + i, ')', fmt.size - i);
            if (!close || args.kind != PL_JV_DICT) break;
            const pl_jvalue *found = pl_jv_lookup(
                e, args.u.dict, pl_jv_borrow((pl_str){fmt.data + i + 1, (size_t)(close - fmt.data) - i - 1}));
            if (found) v = *found;
            i = (size_t)(close - fmt.data) + 1;
        } else if (next < n) {
            v = args.kind == PL_JV_TUPLE ? args.u.list->at[next] : args;
            next++;
        }
        char spec[40] = "%";
        size_t k = 1;
        while (i < fmt.size && k < 20 && fmt.data[i] && strchr("-+ #0123456789.", fmt.data[i]))
            spec[k++] = fmt.data[i++];
        char c = i < fmt.size ? fmt.data[i] : 0;
        const char *dot = memchr(spec, '.', k);
        int width = atoi(spec + strspn(spec, "%-+ #0")), precision = dot ? atoi(dot + 1) : -1;
        if (v.kind == PL_JV_MISSING || width > 1000 || precision > 1000) {
            pl_jfail(e, PL_ERR_INVALID, "the format does not fit its arguments");
        } else if (c == 's' || c == 'r') {
            pl_buf text = {0};
            if (c == 's')
                pl_buf_add_str(&text, pl_jv_str(e, v));
            else
                pl_jv_repr(e, v, 0, &text);
            pl_str s = pl_buf_str(&text);
            if (precision >= 0) s = pl_jv_chars_at(s, 0, (size_t)precision);
            int pad = width - (int)pl_jv_chars(s);
            if (!memchr(spec, '-', k))
                for (; pad > 0; pad--) pl_buf_add_u8(&out, ' ');
            pl_buf_add_str(&out, s);
            for (; pad > 0; pad--) pl_buf_add_u8(&out, ' ');
            pl_buf_fini(&text);
        } else if (c && strchr("diuxXo", c) && pl_jv_is_number(v)) {
            memcpy(spec + k, PRId64, sizeof PRId64);
            spec[k + strlen(PRId64) - 1] = c == 'u' ? 'd' : c;
            int64_t whole = v.kind == PL_JV_FLOAT ? (fabs(v.u.f) < 9e18 ? (int64_t)v.u.f : 0) : as_int(v);
            char text[1100];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
            snprintf(text, sizeof text, spec, whole);
            pl_buf_add_str(&out, pl_str_from(text));
        } else if (c && strchr("fFeEgG", c) && pl_jv_is_number(v)) {
            spec[k] = c;
            char text[1500];
            snprintf(text, sizeof text, spec, as_float(v));
#pragma GCC diagnostic pop
            pl_buf_add_str(&out, pl_str_from(text));
        } else {
            pl_jfail(e, PL_ERR_INVALID, "the format does not fit its arguments");
        }
    }
    if (e->status == PL_OK && args.kind == PL_JV_TUPLE && next < n)
        pl_jfail(e, PL_ERR_INVALID, "the format has fewer places than arguments");
    return pl_jv_take(e, &out);
}
