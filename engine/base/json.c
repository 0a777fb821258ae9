#include "engine/base/json.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/alloc.h"

#define DEPTH_MAX 512u /* of arrays and objects in each other: our recursion and jansson's stay small */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static void use_our_heap(void)
{
    json_set_alloc_funcs(pl_alloc, pl_free);
}
/* Called by every maker: jansson must not have allocated before. */
static void setup(void)
{
    pthread_once(&once, use_our_heap);
}

/* The deepest nesting in text, which need not be JSON. */
static size_t depth_of(pl_str text)
{
    size_t depth = 0, deepest = 0;
    bool quoted = false;
    for (size_t i = 0; i < text.size; i++) {
        char c = text.data[i];
        if (quoted) {
            if (c == '\\') i++;
            quoted = c != '"';
        } else if (c == '"') {
            quoted = true;
        } else if (c == '[' || c == '{') {
            if (++depth > deepest) deepest = depth;
        } else if ((c == ']' || c == '}') && depth) {
            depth--;
        }
    }
    return deepest;
}

pl_status pl_json_parse(pl_json **out, pl_str text, pl_error *err)
{
    setup();
    *out = NULL;
    if (depth_of(text) > DEPTH_MAX) return pl_fail(err, PL_ERR_FORMAT, "JSON: nested deeper than %u levels", DEPTH_MAX);
    json_error_t e;
    *out = json_loadb(text.data ? text.data : "", text.size, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL,
                      &e);
    if (*out) return PL_OK;
    if (json_error_code(&e) == json_error_out_of_memory) return pl_fail(err, PL_ERR_NO_MEMORY, "JSON: out of memory");
    return pl_fail(err, PL_ERR_FORMAT, "JSON: line %d, column %d: %s", e.line, e.column, e.text);
}

static void write_string(pl_str s, pl_buf *out)
{
    pl_buf_add_u8(out, '"');
    size_t from = 0;
    for (size_t i = 0; i < s.size; i++) {
        unsigned char c = (unsigned char)s.data[i];
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        pl_buf_add(out, s.data + from, i - from);
        from = i + 1;
        switch (c) {
        case '"': pl_buf_add(out, "\\\"", 2); break;
        case '\\': pl_buf_add(out, "\\\\", 2); break;
        case '\n': pl_buf_add(out, "\\n", 2); break;
        case '\r': pl_buf_add(out, "\\r", 2); break;
        case '\t': pl_buf_add(out, "\\t", 2); break;
        default: pl_buf_printf(out, "\\u%04x", c);
        }
    }
    pl_buf_add(out, s.data + from, s.size - from);
    pl_buf_add_u8(out, '"');
}

/* The shortest text that reads back as d. */
static void write_real(double d, pl_buf *out)
{
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, d);
        if (strtod(text, NULL) == d) break;
    }
    /* The decimal point follows the locale, which a library may have set. */
    for (char *c = text; *c; c++) {
        if (!strchr("+-0123456789e", *c)) *c = '.';
    }
    if (!strpbrk(text, ".e")) strcat(text, ".0"); /* stays a real when it is read back */
    pl_buf_add(out, text, strlen(text));
}

static void new_line(int indent, int level, pl_buf *out)
{
    if (indent <= 0) return;
    pl_buf_add_u8(out, '\n');
    for (int i = 0; i < indent * level; i++) pl_buf_add_u8(out, ' ');
}

static bool write_value(const json_t *v, int indent, int level, pl_buf *out)
{
    if (level > (int)DEPTH_MAX) return false;
    switch (json_typeof(v)) {
    case JSON_NULL: return pl_buf_add(out, "null", 4);
    case JSON_TRUE: return pl_buf_add(out, "true", 4);
    case JSON_FALSE: return pl_buf_add(out, "false", 5);
    case JSON_INTEGER: return pl_buf_printf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
    case JSON_REAL: write_real(json_real_value(v), out); return true;
    case JSON_STRING: write_string((pl_str){json_string_value(v), json_string_length(v)}, out); return true;
    case JSON_ARRAY:
        pl_buf_add_u8(out, '[');
        for (size_t i = 0; i < json_array_size(v); i++) {
            if (i) pl_buf_add_u8(out, ',');
            new_line(indent, level + 1, out);
            if (!write_value(json_array_get(v, i), indent, level + 1, out)) return false;
        }
        if (json_array_size(v)) new_line(indent, level, out);
        return pl_buf_add_u8(out, ']');
    case JSON_OBJECT: break;
    }
    pl_buf_add_u8(out, '{');
    bool first = true;
    void *iter = NULL;
    pl_str key;
    json_t *member;
    while (pl_json_next(v, &iter, &key, &member)) {
        if (!first) pl_buf_add_u8(out, ',');
        first = false;
        new_line(indent, level + 1, out);
        write_string(key, out);
        pl_buf_add(out, ": ", indent > 0 ? 2 : 1);
        if (!write_value(member, indent, level + 1, out)) return false;
    }
    if (!first) new_line(indent, level, out);
    return pl_buf_add_u8(out, '}');
}

pl_status pl_json_write(const pl_json *v, int indent, pl_buf *out, pl_error *err)
{
    size_t before = out->size;
    bool failed_before = out->failed;
    out->failed = false;
    bool ok = v ? write_value(v, indent, 0, out) : pl_buf_add(out, "null", 4);
    if (out->failed) {
        out->size = before;
        return pl_fail(err, PL_ERR_NO_MEMORY, "JSON: out of memory while writing");
    }
    out->failed = failed_before;
    if (ok) return PL_OK;
    out->size = before;
    return pl_fail(err, PL_ERR_INVALID, "JSON: nested deeper than %u levels", DEPTH_MAX);
}

void pl_json_free(pl_json *v)
{
    json_decref(v);
}
pl_json *pl_json_ref(pl_json *v)
{
    return json_incref(v);
}

pl_json *pl_json_null(void)
{
    return json_null();
}
pl_json *pl_json_bool(bool b)
{
    return json_boolean(b);
}

pl_json *pl_json_int(int64_t i)
{
    setup();
    return json_integer(i);
}

pl_json *pl_json_real(double d)
{
    setup();
    return isfinite(d) ? json_real(d) : json_null();
}

pl_json *pl_json_string(pl_str s)
{
    setup();
    size_t good = pl_utf8_valid_prefix(s);
    if (good == s.size) return json_stringn_nocheck(s.data ? s.data : "", s.size);
    pl_buf text = {0};
    for (;;) {
        pl_buf_add(&text, s.data, good);
        s = (pl_str){s.data + good, s.size - good};
        if (!s.size) break;
        pl_buf_add(&text, "\xEF\xBF\xBD", 3);
        s = (pl_str){s.data + 1, s.size - 1};
        good = pl_utf8_valid_prefix(s);
    }
    json_t *v = text.failed ? NULL : json_stringn_nocheck((const char *)text.data, text.size);
    pl_buf_fini(&text);
    return v;
}

pl_json *pl_json_array(void)
{
    setup();
    return json_array();
}

pl_json *pl_json_object(void)
{
    setup();
    return json_object();
}

bool pl_json_append(pl_json *array, pl_json *v)
{
    return json_array_append_new(array, v) == 0;
}
bool pl_json_set(pl_json *object, const char *key, pl_json *v)
{
    return json_object_set_new(object, key, v) == 0;
}

pl_json_kind pl_json_type(const pl_json *v)
{
    if (!v) return PL_JSON_NULL;
    switch (json_typeof(v)) {
    case JSON_TRUE:
    case JSON_FALSE: return PL_JSON_BOOL;
    case JSON_INTEGER: return PL_JSON_INT;
    case JSON_REAL: return PL_JSON_REAL;
    case JSON_STRING: return PL_JSON_STRING;
    case JSON_ARRAY: return PL_JSON_ARRAY;
    case JSON_OBJECT: return PL_JSON_OBJECT;
    case JSON_NULL: break;
    }
    return PL_JSON_NULL;
}

size_t pl_json_size(const pl_json *v)
{
    return json_is_array(v) ? json_array_size(v) : json_object_size(v);
}
pl_json *pl_json_at(const pl_json *array, size_t i)
{
    return json_array_get(array, i);
}
pl_json *pl_json_get(const pl_json *object, const char *key)
{
    return json_object_get(object, key);
}

pl_str pl_json_str(const pl_json *v)
{
    return json_is_string(v) ? (pl_str){json_string_value(v), json_string_length(v)} : PL_STR("");
}

int64_t pl_json_i64(const pl_json *v)
{
    return json_integer_value(v);
}
double pl_json_f64(const pl_json *v)
{
    return json_number_value(v);
}
bool pl_json_is_true(const pl_json *v)
{
    return json_is_true(v);
}

bool pl_json_next(const pl_json *object, void **iter, pl_str *key, pl_json **value)
{
    /* jansson's iterators want a pointer that is not const and write nothing. */
    json_t *o = (json_t *)(uintptr_t)object;
    *iter = *iter ? json_object_iter_next(o, *iter) : json_object_iter(o);
    if (!*iter) return false;
    if (key) *key = pl_str_from(json_object_iter_key(*iter));
    if (value) *value = json_object_iter_value(*iter);
    return true;
}
