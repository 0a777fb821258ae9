/* Each schema becomes a rule; a rule's text is written when what it calls has its number, so the order is that of
 * leaving. Schemas that are combined (allOf, a $ref with neighbours, anyOf beside other keywords) are merged into one
 * first, which is then converted as if it had stood there. */
#include "engine/sample/json_schema.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "engine/base/alloc.h"
#include "engine/base/map.h"
#include "engine/sample/json_schema_impl.h"

#define DEPTH_MAX  64
#define RULES_MAX  20000
#define TEXT_BYTES (1 << 20) /* what is written at most; a grammar may have less */

static const char prelude[] =
    "ws ::= | \" \" | \"\\n\"{1,2} [ \\t]{0,20}\n"
    "hex ::= [0-9a-fA-F]\n"
    /* No half of a surrogate pair: it would be a character by itself for who counts. */
    "char ::= [^\"\\\\\\x7f\\x00-\\x1f] | \"\\\\\" ([\"\\\\/bfnrt] | \"u\" ([0-9a-cA-CefEF] hex hex hex | [dD] [0-7] "
    "hex "
    "hex))\n"
    "string ::= \"\\\"\" char* \"\\\"\"\n"
    "whole ::= \"0\" | [1-9] [0-9]{0,14}\n"
    "integer ::= \"-\"? whole\n"
    "number ::= \"-\"? whole (\".\" [0-9]{1,15})? ([eE] [-+]? [0-9]{1,2})?\n"
    "boolean ::= \"true\" | \"false\"\n"
    "null ::= \"null\"\n"
    "value ::= object | array | string | number | boolean | null\n"
    "object ::= \"{\" ws (string \":\" ws value ws (\",\" ws string \":\" ws value ws)*)? \"}\"\n"
    "array ::= \"[\" ws (value ws (\",\" ws value ws)*)? \"]\"\n";

typedef struct converter {
    const pl_json *root;
    pl_buf *out;
    pl_map refs; /* rules of the schemas that $ref names */
    int32_t n_rules;
    int depth;
    pl_error *err;
} converter;

/* Where in the schema: linked through the callers. */
typedef struct path {
    const struct path *up;
    pl_str key;
    int64_t index; /* when key is empty */
} path;

static void write_path(const path *p, pl_buf *out)
{
    if (!p) {
        pl_buf_add_u8(out, '#');
        return;
    }
    write_path(p->up, out);
    if (p->key.size > 0)
        pl_buf_printf(out, "/%.*s", (int)(p->key.size < 64 ? p->key.size : 64), p->key.data);
    else
        pl_buf_printf(out, "/%" PRId64, p->index);
}

static pl_status fail(converter *c, pl_status s, const path *at, const char *what)
{
    pl_buf text = {0};
    write_path(at, &text);
    const char *where = pl_buf_cstr(&text);
    s = pl_fail(c->err, s, "json_schema, %s: %s", where ? where : "#", what);
    pl_buf_fini(&text);
    return s;
}

static pl_status unsupported(converter *c, const path *at, const char *keyword)
{
    path p = {at, pl_str_from(keyword), 0};
    return fail(c, PL_ERR_UNSUPPORTED, &p, "this keyword is not supported");
}

static pl_status no_memory(converter *c)
{
    return pl_fail(c->err, PL_ERR_NO_MEMORY, "json_schema: no memory");
}

/* --- rules --- */

static pl_status new_rule(converter *c, const path *at, int32_t *out)
{
    if (c->n_rules == RULES_MAX) return fail(c, PL_ERR_BUDGET, at, "the schema becomes more than 20000 rules");
    *out = c->n_rules++;
    return PL_OK;
}

static pl_status end_rule(converter *c, const path *at, int32_t rule, pl_buf *body)
{
    if (c->out->size + body->size > TEXT_BYTES)
        return fail(c, PL_ERR_BUDGET, at, "the schema becomes too long a grammar");
    pl_buf_printf(c->out, "r%d ::= ", (int)rule);
    pl_buf_add_str(c->out, pl_buf_str(body));
    pl_buf_add_u8(c->out, '\n');
    return body->failed || c->out->failed ? no_memory(c) : PL_OK;
}

/* A literal of the grammar that stands for these bytes. */
static void add_literal(pl_buf *out, pl_str text)
{
    pl_buf_add_u8(out, '"');
    for (size_t i = 0; i < text.size; i++) {
        uint8_t b = (uint8_t)text.data[i];
        if (b == '"' || b == '\\')
            pl_buf_printf(out, "\\%c", b);
        else if (b < 0x20 || b == 0x7f)
            pl_buf_printf(out, "\\x%02x", b);
        else
            pl_buf_add_u8(out, b);
    }
    pl_buf_add_u8(out, '"');
}

static pl_status add_json(converter *c, pl_buf *out, const pl_json *value)
{
    pl_buf text = {0};
    pl_status s = pl_json_write(value, 0, &text, c->err);
    if (s == PL_OK) add_literal(out, pl_buf_str(&text));
    pl_buf_fini(&text);
    return s;
}

static bool same_json(const pl_json *a, const pl_json *b)
{
    pl_buf x = {0}, y = {0};
    pl_error ignored;
    bool same = pl_json_write(a, 0, &x, &ignored) == PL_OK && pl_json_write(b, 0, &y, &ignored) == PL_OK &&
                pl_str_eq(pl_buf_str(&x), pl_buf_str(&y));
    pl_buf_fini(&x);
    pl_buf_fini(&y);
    return same;
}

/* --- types --- */

enum {
    T_OBJECT = 1,
    T_ARRAY = 2,
    T_STRING = 4,
    T_NUMBER = 8,
    T_INTEGER = 16,
    T_BOOLEAN = 32,
    T_NULL = 64,
    T_ALL = 111
};
static const struct {
    const char *name, *rule;
    int bit;
} types[] = {{"object", "object", T_OBJECT}, {"array", "array", T_ARRAY},       {"string", "string", T_STRING},
             {"number", "number", T_NUMBER}, {"integer", "integer", T_INTEGER}, {"boolean", "boolean", T_BOOLEAN},
             {"null", "null", T_NULL}};
enum { N_TYPES = sizeof types / sizeof *types };

static int type_bit(pl_str name)
{
    for (int i = 0; i < N_TYPES; i++)
        if (pl_str_is(name, types[i].name)) return types[i].bit;
    return 0;
}

static bool has(const pl_json *schema, const char *const *keys)
{
    for (; *keys; keys++)
        if (pl_json_get(schema, *keys)) return true;
    return false;
}

static const char *const object_keys[] = {"properties",    "required",      "additionalProperties",  "propertyNames",
                                          "minProperties", "maxProperties", "unevaluatedProperties", NULL};
static const char *const array_keys[] = {"items", "prefixItems", "minItems", "maxItems", "additionalItems", NULL};
static const char *const string_keys[] = {"minLength", "maxLength", "pattern", NULL};
static const char *const number_keys[] = {"minimum",          "maximum",    "exclusiveMinimum",
                                          "exclusiveMaximum", "multipleOf", NULL};

/* The types that the grammar has for a schema: those it names; without a name that of its keywords, as valid for these
 * as any other would be. 0: a name that is none. */
static int types_of(const pl_json *schema)
{
    const pl_json *t = pl_json_get(schema, "type");
    if (pl_json_type(t) == PL_JSON_STRING) return type_bit(pl_json_str(t));
    if (pl_json_type(t) == PL_JSON_ARRAY) {
        int set = 0;
        for (size_t i = 0; i < pl_json_size(t); i++) {
            int bit = type_bit(pl_json_str(pl_json_at(t, i)));
            if (!bit) return 0;
            set |= bit;
        }
        return set & T_NUMBER ? set & ~T_INTEGER : set;
    }
    if (t) return 0;
    return has(schema, object_keys)   ? T_OBJECT
           : has(schema, array_keys)  ? T_ARRAY
           : has(schema, string_keys) ? T_STRING
           : has(schema, number_keys) ? T_NUMBER
                                      : T_ALL;
}

static int type_of_value(const pl_json *v)
{
    switch (pl_json_type(v)) {
    case PL_JSON_NULL: return T_NULL;
    case PL_JSON_BOOL: return T_BOOLEAN;
    case PL_JSON_INT: return T_INTEGER;
    case PL_JSON_REAL: return T_NUMBER;
    case PL_JSON_STRING: return T_STRING;
    case PL_JSON_ARRAY: return T_ARRAY;
    case PL_JSON_OBJECT: return T_OBJECT;
    }
    return 0;
}

static bool type_allows(int set, const pl_json *v)
{
    int t = type_of_value(v);
    if (t == T_INTEGER && set & T_NUMBER) return true;
    if (t == T_NUMBER && set & T_INTEGER && floor(pl_json_f64(v)) == pl_json_f64(v)) return true;
    return set & t;
}

/* --- references and merging --- */

/* The schema that "#/a/b" names, or NULL. */
static const pl_json *resolve(const converter *c, pl_str ref)
{
    const pl_json *at = c->root;
    if (ref.size == 0 || ref.data[0] != '#') return NULL;
    size_t i = 1;
    while (at && i < ref.size) {
        if (ref.data[i++] != '/') return NULL;
        char key[256];
        size_t n = 0;
        for (; i < ref.size && ref.data[i] != '/'; i++) {
            char ch = ref.data[i];
            if (ch == '~' && i + 1 < ref.size) ch = ref.data[++i] == '1' ? '/' : '~';
            if (ch == '%' && i + 2 < ref.size) {
                char hex[3] = {ref.data[i + 1], ref.data[i + 2], 0};
                unsigned v = 0;
                if (sscanf(hex, "%2x", &v) == 1 && v > 0) {
                    ch = (char)v;
                    i += 2;
                }
            }
            if (n + 1 == sizeof key) return NULL;
            key[n++] = ch;
        }
        key[n] = 0;
        if (pl_json_type(at) == PL_JSON_ARRAY) {
            size_t index = 0;
            for (size_t k = 0; k < n; k++)
                index = key[k] >= '0' && key[k] <= '9' && index < 100000 ? index * 10 + (size_t)(key[k] - '0')
                                                                         : SIZE_MAX / 2;
            at = n > 0 && index < pl_json_size(at) ? pl_json_at(at, index) : NULL;
        } else {
            at = pl_json_get(at, key);
        }
    }
    return at;
}

/* Keywords that say nothing about what is valid. */
static bool is_annotation(pl_str key)
{
    static const char *const words[] = {"title",         "description", "default",  "examples", "deprecated",
                                        "readOnly",      "writeOnly",   "$comment", "$schema",  "$id",
                                        "$defs",         "definitions", "strict",   "name",     "$anchor",
                                        "discriminator", "nullable",    NULL};
    for (int i = 0; words[i]; i++)
        if (pl_str_is(key, words[i])) return true;
    return false;
}

static pl_json *both(pl_json *a, pl_json *b)
{
    pl_json *all = pl_json_array(), *v = pl_json_object();
    pl_json_append(all, pl_json_ref(a));
    pl_json_append(all, pl_json_ref(b));
    pl_json_set(v, "allOf", all);
    return v;
}

static bool is_false(const pl_json *v)
{
    return pl_json_type(v) == PL_JSON_BOOL && !pl_json_is_true(v);
}

/* The properties of a and b together; who allows no others takes away what only the other has. */
static pl_json *merge_properties(pl_json *a, pl_json *b)
{
    pl_json *out = pl_json_object();
    pl_json *sides[2] = {a, b};
    for (int k = 0; k < 2; k++) {
        pl_json *mine = pl_json_get(sides[k], "properties"), *others = pl_json_get(sides[1 - k], "properties");
        pl_json *rest = pl_json_get(sides[1 - k], "additionalProperties"), *v;
        void *at = NULL;
        pl_str key;
        while (pl_json_next(mine, &at, &key, &v)) {
            pl_json *other = pl_json_get(others, key.data);
            if (other && k == 1) continue;
            if (other)
                pl_json_set(out, key.data, both(v, other));
            else if (rest && !is_false(rest) && pl_json_type(rest) == PL_JSON_OBJECT)
                pl_json_set(out, key.data, both(v, rest));
            else if (!is_false(rest))
                pl_json_set(out, key.data, pl_json_ref(v));
            else
                pl_json_set(out, key.data, pl_json_bool(false));
        }
    }
    return out;
}

static pl_json *merge_required(pl_json *a, pl_json *b)
{
    pl_json *out = pl_json_array();
    for (size_t i = 0; i < pl_json_size(a); i++) pl_json_append(out, pl_json_ref(pl_json_at(a, i)));
    for (size_t i = 0; i < pl_json_size(b); i++) pl_json_append(out, pl_json_ref(pl_json_at(b, i)));
    return out;
}

static pl_json *merge_enum(pl_json *a, pl_json *b)
{
    pl_json *out = pl_json_array();
    for (size_t i = 0; i < pl_json_size(a); i++)
        for (size_t k = 0; k < pl_json_size(b); k++)
            if (same_json(pl_json_at(a, i), pl_json_at(b, k))) {
                pl_json_append(out, pl_json_ref(pl_json_at(a, i)));
                break;
            }
    return out;
}

static pl_json *merge_types(const pl_json *a, const pl_json *b)
{
    int x = types_of(a), y = types_of(b), set = x & y;
    if ((x & T_NUMBER && y & T_INTEGER) || (x & T_INTEGER && y & T_NUMBER)) set |= T_INTEGER;
    pl_json *out = pl_json_array();
    for (int i = 0; i < N_TYPES; i++)
        if (set & types[i].bit) pl_json_append(out, pl_json_string(pl_str_from(types[i].name)));
    return out;
}

static bool is_one_of(pl_str key, const char *const *words)
{
    for (; *words; words++)
        if (pl_str_is(key, *words)) return true;
    return false;
}

/* Schemas whose values must be valid under both. PL_ERR_UNSUPPORTED when a keyword of both cannot be put together. */
static pl_status merge(converter *c, const path *at, pl_json *a, pl_json *b, pl_json **out)
{
    static const char *const highest[] = {"minimum",  "exclusiveMinimum", "minLength",
                                          "minItems", "minProperties",    NULL};
    static const char *const lowest[] = {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties", NULL};
    static const char *const schemas[] = {"items", "additionalProperties", "unevaluatedProperties", "propertyNames",
                                          NULL};
    pl_json *v, *m = pl_json_object();
    void *iter = NULL;
    pl_str key;
    if (!m) return no_memory(c);
    *out = m;
    while (pl_json_next(a, &iter, &key, &v)) pl_json_set(m, key.data, pl_json_ref(v));
    iter = NULL;
    while (pl_json_next(b, &iter, &key, &v)) {
        pl_json *mine = pl_json_get(a, key.data), *put = NULL;
        if (!mine || is_annotation(key) || same_json(mine, v))
            put = mine ? NULL : pl_json_ref(v);
        else if (pl_str_is(key, "properties"))
            continue;
        else if (pl_str_is(key, "required"))
            put = merge_required(mine, v);
        else if (pl_str_is(key, "enum"))
            put = merge_enum(mine, v);
        else if (pl_str_is(key, "const"))
            return fail(c, PL_ERR_INVALID, at, "two constants that differ: nothing is valid");
        else if (pl_str_is(key, "type"))
            put = merge_types(a, b);
        else if (is_one_of(key, highest))
            put = pl_json_f64(v) > pl_json_f64(mine) ? pl_json_ref(v) : NULL;
        else if (is_one_of(key, lowest))
            put = pl_json_f64(v) < pl_json_f64(mine) ? pl_json_ref(v) : NULL;
        else if (is_one_of(key, schemas))
            put = is_false(mine) || is_false(v) ? pl_json_bool(false)
                  : pl_json_is_true(mine)       ? pl_json_ref(v)
                  : pl_json_is_true(v)          ? NULL
                                                : both(mine, v);
        else
            return unsupported(c, at, key.data);
        if (put) pl_json_set(m, key.data, put);
    }
    if (pl_json_get(a, "properties") || pl_json_get(b, "properties"))
        pl_json_set(m, "properties", merge_properties(a, b));
    return PL_OK;
}

/* The schema without $ref and allOf, as far as they can be put together: a new reference. */
static pl_status flatten(converter *c, const path *at, pl_json *schema, pl_json **out)
{
    *out = NULL;
    if (pl_json_type(schema) != PL_JSON_OBJECT) {
        *out = pl_json_ref(schema);
        return PL_OK;
    }
    pl_json *ref = pl_json_get(schema, "$ref"), *all = pl_json_get(schema, "allOf");
    if (!ref && !all) {
        *out = pl_json_ref(schema);
        return PL_OK;
    }
    if (c->depth == DEPTH_MAX) return fail(c, PL_ERR_UNSUPPORTED, at, "nested too deeply, or a reference to itself");
    c->depth++;
    pl_json *sum = pl_json_object(), *v;
    void *iter = NULL;
    pl_str key;
    pl_status s = sum ? PL_OK : no_memory(c);
    while (s == PL_OK && pl_json_next(schema, &iter, &key, &v))
        if (!pl_str_is(key, "$ref") && !pl_str_is(key, "allOf")) pl_json_set(sum, key.data, pl_json_ref(v));
    size_t n = pl_json_size(all) + (ref != NULL);
    if (s == PL_OK && all && pl_json_type(all) != PL_JSON_ARRAY)
        s = fail(c, PL_ERR_INVALID, at, "allOf is not an array");
    for (size_t i = 0; i < n && s == PL_OK; i++) {
        bool is_ref = i == pl_json_size(all);
        pl_json *part = is_ref ? (pl_json *)resolve(c, pl_json_str(ref)) : pl_json_at(all, i), *flat = NULL,
                *merged = NULL;
        if (!part) {
            path p = {at, PL_STR("$ref"), 0};
            s = fail(c, PL_ERR_INVALID, &p, "it names nothing in this schema");
            break;
        }
        path p = {at, is_ref ? PL_STR("$ref") : PL_STR("allOf"), 0};
        s = flatten(c, &p, part, &flat);
        if (s == PL_OK && pl_json_type(flat) == PL_JSON_BOOL) {
            if (is_false(flat)) s = fail(c, PL_ERR_INVALID, &p, "nothing is valid");
        } else if (s == PL_OK) {
            s = merge(c, &p, sum, flat, &merged);
            pl_json_free(sum);
            sum = merged;
        }
        pl_json_free(flat);
    }
    c->depth--;
    if (s != PL_OK) {
        pl_json_free(sum);
        return s;
    }
    *out = sum;
    return PL_OK;
}

/* --- one schema --- */

static pl_status visit(converter *c, const path *at, pl_json *schema, int32_t *rule);

static pl_status visit_name(converter *c, const path *at, pl_json *schema, pl_buf *out)
{
    int32_t rule;
    PL_TRY(visit(c, at, schema, &rule));
    pl_buf_printf(out, "r%d", (int)rule);
    return PL_OK;
}

/* A count that is a whole number of at least 0; absent: otherwise. */
static pl_status read_count(converter *c, const path *at, const pl_json *schema, const char *key, int64_t otherwise,
                            int64_t *out)
{
    const pl_json *v = pl_json_get(schema, key);
    *out = otherwise;
    if (!v) return PL_OK;
    double d = pl_json_f64(v);
    path p = {at, pl_str_from(key), 0};
    if ((pl_json_type(v) != PL_JSON_INT && pl_json_type(v) != PL_JSON_REAL) || d < 0 || d > 1e9 || floor(d) != d)
        return fail(c, PL_ERR_INVALID, &p, "it is not a count");
    *out = (int64_t)d;
    return PL_OK;
}

/* --- strings --- */

static const struct {
    const char *name, *body;
} formats[] = {
    {"date",
     "[0-9]{4} \"-\" ((\"0\" [13578] | \"1\" [02]) \"-\" (\"0\" [1-9] | [12] [0-9] | \"3\" [01]) | (\"0\" [469] | "
     "\"11\") \"-\" (\"0\" [1-9] | [12] [0-9] | \"30\") | \"02-\" (\"0\" [1-9] | \"1\" [0-9] | \"2\" [0-8]))"},
    {"time",
     "([01] [0-9] | \"2\" [0-3]) \":\" [0-5] [0-9] \":\" [0-5] [0-9] (\".\" [0-9]{1,6})? (\"Z\" | [-+] ([01] [0-9] "
     "| \"2\" [0-3]) \":\" [0-5] [0-9])"},
    {"date-time", NULL}, /* date, "T", time */
    {"uuid", "[0-9a-f]{8} (\"-\" [0-9a-f]{4}){3} \"-\" [0-9a-f]{12}"},
    {"ipv4", "(\"25\" [0-5] | \"2\" [0-4] [0-9] | \"1\" [0-9] [0-9] | [1-9]? [0-9]) (\".\" (\"25\" [0-5] | \"2\" [0-4] "
             "[0-9] | \"1\" [0-9] [0-9] | [1-9]? [0-9])){3}"},
    {"ipv6", "[0-9a-f]{1,4} (\":\" [0-9a-f]{1,4}){7}"},
    {"hostname",
     "[a-z] [a-z0-9]{0,20} (\"-\" [a-z0-9]{1,20})? (\".\" [a-z] [a-z0-9]{0,20} (\"-\" [a-z0-9]{1,20})?){0,4}"},
    {"email", "[a-zA-Z0-9] [a-zA-Z0-9_+-]{0,30} (\".\" [a-zA-Z0-9_+-]{1,30})? \"@\" [a-z] [a-z0-9]{0,20} (\"-\" "
              "[a-z0-9]{1,20})? (\".\" [a-z] [a-z0-9]{0,20}){1,3}"},
    {"uri",
     "[a-z] [a-z0-9]{0,10} \"://\" [a-z] [a-z0-9]{0,30} (\".\" [a-z] [a-z0-9]{0,20}){0,4} (\":\" [1-9] [0-9]{0,3})? "
     "(\"/\" [a-zA-Z0-9_.~-]*)* (\"?\" [a-zA-Z0-9_.~=&-]*)? (\"#\" [a-zA-Z0-9_.~-]*)?"},
};

static const char *format_body(const char *name)
{
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(name, formats[i].name) == 0) return formats[i].body;
    return NULL;
}

static bool known_format(pl_str name)
{
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (pl_str_is(name, formats[i].name)) return true;
    return false;
}

static pl_status write_string(converter *c, const path *at, const pl_json *schema, pl_buf *out)
{
    int64_t min, max;
    PL_TRY(read_count(c, at, schema, "minLength", 0, &min));
    PL_TRY(read_count(c, at, schema, "maxLength", -1, &max));
    if (max >= 0 && max < min) return fail(c, PL_ERR_INVALID, at, "maxLength is below minLength: nothing is valid");
    pl_str pattern = pl_json_str(pl_json_get(schema, "pattern")), format = pl_json_str(pl_json_get(schema, "format"));
    bool has_pattern = pl_json_get(schema, "pattern") != NULL, has_format = known_format(format);
    bool bounded = min > 0 || max >= 0;
    if ((has_pattern || has_format) && bounded)
        return fail(c, PL_ERR_UNSUPPORTED, at,
                    "minLength or maxLength together with pattern or format is not supported");
    if (has_pattern && has_format)
        return fail(c, PL_ERR_UNSUPPORTED, at, "pattern together with format is not supported");
    pl_buf_add_str(out, PL_STR("\"\\\"\" "));
    if (has_pattern) {
        char why[160];
        pl_status s = pl_regex_grammar(pattern, out, why, sizeof why);
        path p = {at, PL_STR("pattern"), 0};
        if (s != PL_OK) return fail(c, s, &p, why);
    } else if (pl_str_is(format, "date-time")) {
        pl_buf_printf(out, "%s \"T\" %s", format_body("date"), format_body("time"));
    } else if (has_format) {
        for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
            if (pl_str_is(format, formats[i].name)) pl_buf_add_str(out, pl_str_from(formats[i].body));
    } else if (!bounded) {
        pl_buf_add_str(out, PL_STR("char*"));
    } else if (max < 0) {
        pl_buf_printf(out, "char{%" PRId64 ",}", min);
    } else {
        pl_buf_printf(out, "char{%" PRId64 ",%" PRId64 "}", min, max);
    }
    pl_buf_add_str(out, PL_STR(" \"\\\"\""));
    return PL_OK;
}

/* --- numbers --- */

#define WHOLE_MAX INT64_C(999999999999999) /* 15 digits: every double tells them apart */

static void add_digits(pl_buf *out, int n)
{
    if (n > 0) pl_buf_printf(out, " [0-9]{%d}", n);
}

/* The n digits of the rest of a number that is at least (or at most) that of digits. */
static void at_least(pl_buf *out, const char *digits, int n)
{
    if (n == 0) return;
    if ((int)strspn(digits, "0") >= n) {
        add_digits(out, n);
        return;
    }
    pl_buf_printf(out, " (\"%c\"", digits[0]);
    at_least(out, digits + 1, n - 1);
    if (digits[0] < '9') {
        pl_buf_printf(out, " | [%c-9]", digits[0] + 1);
        add_digits(out, n - 1);
    }
    pl_buf_add_u8(out, ')');
}

static void at_most(pl_buf *out, const char *digits, int n)
{
    if (n == 0) return;
    if ((int)strspn(digits, "9") >= n) {
        add_digits(out, n);
        return;
    }
    pl_buf_printf(out, " (\"%c\"", digits[0]);
    at_most(out, digits + 1, n - 1);
    if (digits[0] > '0') {
        pl_buf_printf(out, " | [0-%c]", digits[0] - 1);
        add_digits(out, n - 1);
    }
    pl_buf_add_u8(out, ')');
}

static void same_length(pl_buf *out, const char *low, const char *high, int n)
{
    if (n == 0) return;
    if (low[0] == high[0]) {
        pl_buf_printf(out, " \"%c\"", low[0]);
        same_length(out, low + 1, high + 1, n - 1);
        return;
    }
    pl_buf_printf(out, " (\"%c\"", low[0]);
    at_least(out, low + 1, n - 1);
    if (high[0] - low[0] > 1) {
        pl_buf_printf(out, " | [%c-%c]", low[0] + 1, high[0] - 1);
        add_digits(out, n - 1);
    }
    pl_buf_printf(out, " | \"%c\"", high[0]);
    at_most(out, high + 1, n - 1);
    pl_buf_add_u8(out, ')');
}

/* The whole numbers low..high, 0 <= low <= high, as one group. */
static void add_range(pl_buf *out, int64_t low, int64_t high)
{
    char a[24], b[24];
    pl_buf_add_u8(out, '(');
    for (int64_t from = low; from <= high;) {
        int n = snprintf(a, sizeof a, "%" PRId64, from);
        int64_t to = 1;
        for (int i = 0; i < n; i++) to *= 10;
        if (to - 1 > high) to = high + 1;
        snprintf(b, sizeof b, "%" PRId64, to - 1);
        if (from > low) pl_buf_add_str(out, PL_STR(" |"));
        same_length(out, a, b, n);
        from = to;
    }
    pl_buf_add_u8(out, ')');
}

/* The whole numbers low..high of any sign. Gives whether there is one. */
static bool add_integers(pl_buf *out, int64_t low, int64_t high, bool *first)
{
    bool any = false;
    if (high >= 0 && low <= high) {
        pl_buf_add_str(out, *first ? PL_STR("") : PL_STR(" | "));
        add_range(out, low > 0 ? low : 0, high);
        any = true;
        *first = false;
    }
    if (low < 0 && low <= high) {
        pl_buf_add_str(out, *first ? PL_STR("\"-\" ") : PL_STR(" | \"-\" "));
        add_range(out, high < 0 ? -high : 1, -low);
        any = true;
        *first = false;
    }
    return any;
}

typedef struct bounds {
    int64_t low, high;           /* whole numbers from low to high are inside */
    int64_t low_edge, high_edge; /* and all between these two */
} bounds;

static pl_status read_bounds(converter *c, const path *at, const pl_json *schema, bounds *b)
{
    static const struct {
        const char *key;
        bool is_low, exclusive;
    } keys[] = {{"minimum", true, false},
                {"exclusiveMinimum", true, true},
                {"maximum", false, false},
                {"exclusiveMaximum", false, true}};
    *b = (bounds){-WHOLE_MAX, WHOLE_MAX, -WHOLE_MAX, WHOLE_MAX};
    for (int i = 0; i < 4; i++) {
        const pl_json *v = pl_json_get(schema, keys[i].key);
        path p = {at, pl_str_from(keys[i].key), 0};
        if (!v) continue;
        if (pl_json_type(v) != PL_JSON_INT && pl_json_type(v) != PL_JSON_REAL)
            return fail(c, PL_ERR_INVALID, &p, "it is not a number");
        double d = pl_json_f64(v), whole = keys[i].is_low ? ceil(d) : floor(d);
        if (keys[i].is_low ? whole > (double)WHOLE_MAX : whole < -(double)WHOLE_MAX)
            return fail(c, PL_ERR_UNSUPPORTED, &p, "numbers of more than 15 digits are not supported");
        if (fabs(whole) > (double)WHOLE_MAX) continue; /* nothing that is written goes as far */
        int64_t edge = (int64_t)whole, in = edge;
        if (keys[i].exclusive && whole == d) in += keys[i].is_low ? 1 : -1;
        if (keys[i].is_low) {
            if (in > b->low) b->low = in;
            if (edge > b->low_edge) b->low_edge = edge;
        } else {
            if (in < b->high) b->high = in;
            if (edge < b->high_edge) b->high_edge = edge;
        }
    }
    return PL_OK;
}

static pl_status write_number(converter *c, const path *at, const pl_json *schema, bool integer, pl_buf *out)
{
    const pl_json *multiple = pl_json_get(schema, "multipleOf");
    if (multiple && !(integer && pl_json_f64(multiple) == 1)) return unsupported(c, at, "multipleOf");
    if (!has(schema, number_keys)) {
        pl_buf_add_str(out, integer ? PL_STR("integer") : PL_STR("number"));
        return PL_OK;
    }
    bounds b;
    PL_TRY(read_bounds(c, at, schema, &b));
    bool first = true;
    add_integers(out, b.low, b.high, &first);
    if (!integer) {
        /* A fraction that is not zero lies between two neighbours, which the bounds must not. */
        int64_t low = b.low_edge > 0 ? b.low_edge : 0, high = b.high_edge - 1;
        if (low <= high) {
            if (!first) pl_buf_add_str(out, PL_STR(" | "));
            add_range(out, low, high);
            pl_buf_add_str(out, PL_STR(" \".\" [0-9]{0,13} [1-9]"));
            first = false;
        }
        low = b.high_edge < 0 ? -b.high_edge : 0;
        high = -b.low_edge - 1;
        if (low <= high) {
            pl_buf_add_str(out, first ? PL_STR("\"-\" ") : PL_STR(" | \"-\" "));
            add_range(out, low, high);
            pl_buf_add_str(out, PL_STR(" \".\" [0-9]{0,13} [1-9]"));
            first = false;
        }
    }
    if (!first) return PL_OK;
    return integer ? fail(c, PL_ERR_INVALID, at, "no integer is inside of the bounds")
                   : fail(c, PL_ERR_UNSUPPORTED, at, "bounds with no whole number between them are not supported");
}

/* --- arrays --- */

static pl_status write_array(converter *c, const path *at, const pl_json *schema, pl_buf *out)
{
    pl_json *items = pl_json_get(schema, "items"), *prefix = pl_json_get(schema, "prefixItems");
    const char *prefix_key = "prefixItems", *items_key = "items";
    if (pl_json_type(items) == PL_JSON_ARRAY) { /* older drafts */
        prefix = items;
        prefix_key = "items";
        items = pl_json_get(schema, "additionalItems");
        items_key = "additionalItems";
    }
    if (prefix && pl_json_type(prefix) != PL_JSON_ARRAY)
        return fail(c, PL_ERR_INVALID, at, "prefixItems is not an array");
    if (pl_json_is_true(pl_json_get(schema, "uniqueItems"))) return unsupported(c, at, "uniqueItems");
    int64_t min, max, n_prefix = (int64_t)pl_json_size(prefix);
    PL_TRY(read_count(c, at, schema, "minItems", 0, &min));
    PL_TRY(read_count(c, at, schema, "maxItems", -1, &max));
    /* Without a word about more, the fixed ones are all. */
    if (is_false(items) || (prefix && !items && min <= n_prefix)) {
        if (max < 0 || max > n_prefix) max = n_prefix;
    }
    if (max >= 0 && max < min) return fail(c, PL_ERR_INVALID, at, "there must be more items than there may be");
    int64_t fixed = max >= 0 && max < n_prefix ? max : n_prefix;
    pl_buf_add_str(out, PL_STR("\"[\" ws "));
    for (int64_t i = 0; i < fixed; i++) {
        path up = {at, pl_str_from(prefix_key), 0}, p = {&up, {0}, i};
        if (i > 0) pl_buf_add_str(out, PL_STR("\",\" ws "));
        PL_TRY(visit_name(c, &p, pl_json_at(prefix, (size_t)i), out));
        pl_buf_add_str(out, PL_STR(" ws "));
    }
    min = min > fixed ? min - fixed : 0;
    if (max >= 0) max -= fixed;
    if (max != 0) {
        pl_buf item = {0};
        path p = {at, pl_str_from(items_key), 0};
        pl_status s = PL_OK;
        if (items && pl_json_type(items) != PL_JSON_BOOL)
            s = visit_name(c, &p, items, &item);
        else
            pl_buf_add_str(&item, PL_STR("value"));
        const char *name = pl_buf_cstr(&item);
        if (s == PL_OK && !name) s = no_memory(c);
        if (s == PL_OK) {
            char most[24] = "";
            int64_t more = fixed > 0 ? min : min > 0 ? min - 1 : 0;
            if (max >= 0) snprintf(most, sizeof most, "%" PRId64, fixed > 0 ? max : max - 1);
            if (fixed == 0) pl_buf_printf(out, "(%s ws ", name);
            pl_buf_printf(out, "(\",\" ws %s ws){%" PRId64 ",%s}", name, more, most);
            if (fixed == 0) pl_buf_add_str(out, min == 0 ? PL_STR(")?") : PL_STR(")"));
        }
        pl_buf_fini(&item);
        if (s != PL_OK) return s;
    }
    pl_buf_add_str(out, PL_STR(" \"]\""));
    return PL_OK;
}

/* --- objects --- */

/* Keys that are none of the names: a tree of the names, walked beside the text. names: sorted by nobody, so every level
 * looks at all that are left. */
static pl_status write_other_keys(converter *c, const path *at, const pl_str *names, size_t n, size_t depth,
                                  int32_t *rule)
{
    pl_buf body = {0};
    pl_status s = new_rule(c, at, rule);
    bool ends = false;
    uint8_t next[256];
    int n_next = 0;
    pl_str *below = pl_alloc((n + 1) * sizeof *below);
    if (s == PL_OK && !below) s = no_memory(c);
    for (size_t i = 0; i < n && s == PL_OK; i++) {
        if (names[i].size == depth) {
            ends = true;
            continue;
        }
        uint8_t b = (uint8_t)names[i].data[depth];
        if (!memchr(next, b, (size_t)n_next)) next[n_next++] = b;
    }
    if (s == PL_OK) {
        /* Bytes above ASCII are left out beside a name that has one there: classes are of characters. */
        bool ascii = true;
        for (int k = 0; k < n_next; k++) ascii &= next[k] < 0x80;
        pl_buf_add_str(&body, ends ? PL_STR("") : PL_STR("\"\\\"\" | "));
        pl_buf_add_str(&body,
                       ascii ? PL_STR("[^\"\\\\\\x7f\\x00-\\x1f") : PL_STR("[^\"\\\\\\x7f-\\U0010ffff\\x00-\\x1f"));
        for (int k = 0; k < n_next; k++)
            if (next[k] < 0x80) pl_buf_printf(&body, "\\x%02x", next[k]);
        pl_buf_add_str(&body, PL_STR("] [^\"\\\\\\x7f\\x00-\\x1f]* \"\\\"\""));
    }
    for (int k = 0; k < n_next && s == PL_OK; k++) {
        size_t m = 0;
        int32_t sub = -1;
        /* Names with characters that are escaped in JSON cannot be written without them. */
        if (next[k] >= 0x80 || next[k] < 0x20 || next[k] == '"' || next[k] == '\\') continue;
        for (size_t i = 0; i < n; i++)
            if (names[i].size > depth && (uint8_t)names[i].data[depth] == next[k]) below[m++] = names[i];
        s = write_other_keys(c, at, below, m, depth + 1, &sub);
        if (s == PL_OK) pl_buf_printf(&body, " | \"\\x%02x\" r%d", next[k], (int)sub);
    }
    if (s == PL_OK) s = end_rule(c, at, *rule, &body);
    pl_free(below);
    pl_buf_fini(&body);
    return s;
}

typedef struct property {
    pl_str name;
    pl_json *schema;
    bool required;
    int32_t rule; /* of the key with its value */
} property;

static bool is_required(const pl_json *required, pl_str name)
{
    for (size_t i = 0; i < pl_json_size(required); i++)
        if (pl_str_eq(pl_json_str(pl_json_at(required, i)), name)) return true;
    return false;
}

static pl_status write_pair(converter *c, const path *at, property *p)
{
    path up = {at, PL_STR("properties"), 0}, here = {&up, p->name, 0};
    pl_buf body = {0};
    pl_json *key = pl_json_string(p->name);
    pl_status s = new_rule(c, at, &p->rule);
    if (s == PL_OK) s = key ? add_json(c, &body, key) : no_memory(c);
    pl_buf_add_str(&body, PL_STR(" \":\" ws "));
    if (s == PL_OK) s = visit_name(c, &here, p->schema, &body);
    pl_buf_add_str(&body, PL_STR(" ws"));
    if (s == PL_OK) s = end_rule(c, at, p->rule, &body);
    pl_json_free(key);
    pl_buf_fini(&body);
    return s;
}

/* The pair of a property that is not listed; rule is -1 when there may be none. */
static pl_status write_extra(converter *c, const path *at, const pl_json *schema, const property *list, size_t n,
                             int32_t *rule)
{
    pl_json *more = pl_json_get(schema, "additionalProperties"), *names = pl_json_get(schema, "propertyNames");
    if (!more) more = pl_json_get(schema, "unevaluatedProperties");
    *rule = -1;
    if (is_false(more) || (!more && n > 0)) return PL_OK;
    if (names && n > 0) return unsupported(c, at, "propertyNames");
    pl_buf body = {0};
    pl_status s = new_rule(c, at, rule);
    if (s == PL_OK && names) {
        path p = {at, PL_STR("propertyNames"), 0};
        pl_json *flat = NULL;
        s = flatten(c, &p, names, &flat);
        if (s == PL_OK && pl_json_type(flat) == PL_JSON_OBJECT && pl_json_get(flat, "enum"))
            s = visit_name(c, &p, flat, &body);
        else if (s == PL_OK)
            s = write_string(c, &p, flat, &body);
        pl_json_free(flat);
    } else if (s == PL_OK && n == 0) {
        pl_buf_add_str(&body, PL_STR("string"));
    } else if (s == PL_OK) {
        pl_str *known = pl_alloc(n * sizeof *known);
        int32_t keys = 0;
        for (size_t i = 0; known && i < n; i++) known[i] = list[i].name;
        s = known ? write_other_keys(c, at, known, n, 0, &keys) : no_memory(c);
        pl_buf_printf(&body, "\"\\\"\" r%d", (int)keys);
        pl_free(known);
    }
    pl_buf_add_str(&body, PL_STR(" \":\" ws "));
    if (s == PL_OK && more && pl_json_type(more) != PL_JSON_BOOL) {
        path p = {at, PL_STR("additionalProperties"), 0};
        s = visit_name(c, &p, more, &body);
    } else {
        pl_buf_add_str(&body, PL_STR("value"));
    }
    pl_buf_add_str(&body, PL_STR(" ws"));
    if (s == PL_OK) s = end_rule(c, at, *rule, &body);
    pl_buf_fini(&body);
    return s;
}

/* A rule of its own for a text. */
static pl_status add_rule(converter *c, const path *at, const char *text, int32_t *rule)
{
    pl_buf body = {0};
    pl_buf_add_str(&body, pl_str_from(text));
    pl_status s = new_rule(c, at, rule);
    if (s == PL_OK) s = end_rule(c, at, *rule, &body);
    pl_buf_fini(&body);
    return s;
}

/* The pairs, from the last to the first: `rest` are those from the i-th on when one stands before them, `first` when
 * none does. */
static pl_status write_pairs(converter *c, const path *at, const property *list, size_t n, int32_t extra, pl_buf *out)
{
    int32_t rest, first;
    char text[160] = "\"\"";
    if (extra >= 0) snprintf(text, sizeof text, "(\",\" ws r%d)*", (int)extra);
    PL_TRY(add_rule(c, at, text, &rest));
    if (extra >= 0) snprintf(text, sizeof text, "(r%d r%d)?", (int)extra, (int)rest);
    PL_TRY(add_rule(c, at, text, &first));
    for (size_t i = n; i-- > 0;) {
        int32_t behind = rest;
        snprintf(text, sizeof text, list[i].required ? "\",\" ws r%d r%d" : "(\",\" ws r%d)? r%d", (int)list[i].rule,
                 (int)behind);
        PL_TRY(add_rule(c, at, text, &rest));
        if (list[i].required)
            snprintf(text, sizeof text, "r%d r%d", (int)list[i].rule, (int)behind);
        else
            snprintf(text, sizeof text, "r%d r%d | r%d", (int)list[i].rule, (int)behind, (int)first);
        PL_TRY(add_rule(c, at, text, &first));
    }
    pl_buf_printf(out, "r%d", (int)first);
    return PL_OK;
}

static pl_status read_properties(converter *c, const path *at, const pl_json *schema, property *list, size_t *n)
{
    pl_json *properties = pl_json_get(schema, "properties"), *required = pl_json_get(schema, "required"), *v;
    void *iter = NULL;
    pl_str name;
    while (pl_json_next(properties, &iter, &name, &v)) {
        bool must = is_required(required, name);
        if (is_false(v)) { /* it may not be there */
            path up = {at, PL_STR("properties"), 0}, p = {&up, name, 0};
            if (must) return fail(c, PL_ERR_INVALID, &p, "it is required, and nothing is valid");
            continue;
        }
        list[(*n)++] = (property){name, v, must, -1};
    }
    /* Required ones that nothing else is said of. */
    pl_json *more = pl_json_get(schema, "additionalProperties");
    for (size_t i = 0; i < pl_json_size(required); i++) {
        name = pl_json_str(pl_json_at(required, i));
        bool known = pl_json_get(properties, name.data ? name.data : "") != NULL;
        for (size_t k = 0; k < *n && !known; k++) known = pl_str_eq(list[k].name, name);
        if (known) continue;
        path p = {at, PL_STR("required"), 0};
        if (pl_json_type(pl_json_at(required, i)) != PL_JSON_STRING)
            return fail(c, PL_ERR_INVALID, &p, "it is not an array of strings");
        if (is_false(more)) return fail(c, PL_ERR_INVALID, &p, "it names a property that additionalProperties forbids");
        list[(*n)++] = (property){name, more, true, -1};
    }
    return PL_OK;
}

static pl_status write_object(converter *c, const path *at, const pl_json *schema, pl_buf *out)
{
    static const char *const refused[] = {"patternProperties", "dependentRequired", "dependentSchemas", "dependencies",
                                          NULL};
    for (int i = 0; refused[i]; i++)
        if (pl_json_get(schema, refused[i])) return unsupported(c, at, refused[i]);
    pl_json *properties = pl_json_get(schema, "properties"), *required = pl_json_get(schema, "required");
    if (properties && pl_json_type(properties) != PL_JSON_OBJECT)
        return fail(c, PL_ERR_INVALID, at, "properties is not an object");
    if (required && pl_json_type(required) != PL_JSON_ARRAY)
        return fail(c, PL_ERR_INVALID, at, "required is not an array");
    size_t n = 0, n_required = 0;
    property *list = pl_calloc(pl_json_size(properties) + pl_json_size(required) + 1, sizeof *list);
    pl_json *value = pl_json_object(); /* a property without a schema of its own may be anything */
    int32_t extra = -1;
    int64_t min, max;
    pl_status s = list && value ? PL_OK : no_memory(c);
    if (s == PL_OK) s = read_properties(c, at, schema, list, &n);
    for (size_t i = 0; i < n && s == PL_OK; i++) {
        n_required += list[i].required;
        if (!list[i].schema) list[i].schema = value;
        s = write_pair(c, at, &list[i]);
    }
    if (s == PL_OK) s = write_extra(c, at, schema, list, n, &extra);
    if (s == PL_OK) s = read_count(c, at, schema, "minProperties", 0, &min);
    if (s == PL_OK) s = read_count(c, at, schema, "maxProperties", -1, &max);
    pl_buf_add_str(out, PL_STR("\"{\" ws "));
    if (s == PL_OK && n == 0 && extra >= 0 && (min > 0 || max >= 0)) {
        /* Keys may come twice, and then count once: so only "not empty" can be promised. */
        if (min > 1) s = unsupported(c, at, "minProperties");
        if (s == PL_OK && max >= 0 && max < min)
            s = fail(c, PL_ERR_INVALID, at, "maxProperties is below minProperties");
        if (s == PL_OK && max != 0) {
            char most[24] = "";
            if (max > 0) snprintf(most, sizeof most, "%" PRId64, max - 1);
            pl_buf_printf(out, min ? "r%d (\",\" ws r%d){0,%s}" : "(r%d (\",\" ws r%d){0,%s})?", (int)extra, (int)extra,
                          most);
        }
    } else if (s == PL_OK) {
        if (min > (int64_t)n_required && min > 0) s = unsupported(c, at, "minProperties");
        if (s == PL_OK && max >= 0 && (extra >= 0 || max < (int64_t)n)) s = unsupported(c, at, "maxProperties");
        if (s == PL_OK) s = write_pairs(c, at, list, n, extra, out);
    }
    pl_buf_add_str(out, PL_STR(" \"}\""));
    pl_json_free(value);
    pl_free(list);
    return s;
}

/* --- values and choices --- */

/* enum and const: the values that the other keywords let through. */
static pl_status write_values(converter *c, const path *at, const pl_json *schema, pl_buf *out)
{
    static const char *const beside[] = {
        "pattern",          "properties",       "items",     "prefixItems", "multipleOf", "minimum",  "maximum",
        "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength",   "minItems",   "maxItems", NULL};
    for (int i = 0; beside[i]; i++)
        if (pl_json_get(schema, beside[i])) return unsupported(c, at, beside[i]);
    pl_json *list = pl_json_get(schema, "enum"), *constant = pl_json_get(schema, "const");
    if (list && pl_json_type(list) != PL_JSON_ARRAY) return fail(c, PL_ERR_INVALID, at, "enum is not an array");
    int set = types_of(schema), n = 0;
    for (size_t i = 0; i < (list ? pl_json_size(list) : 1); i++) {
        const pl_json *v = list ? pl_json_at(list, i) : constant;
        if ((list && constant && !same_json(v, constant)) || !type_allows(set, v)) continue;
        if (n++ > 0) pl_buf_add_str(out, PL_STR(" | "));
        PL_TRY(add_json(c, out, v));
    }
    return n > 0 ? PL_OK : fail(c, PL_ERR_INVALID, at, "none of its values is valid");
}

/* Whether no value that the grammar of a gives is valid under b, as far as is seen at a glance. */
static bool apart(converter *c, pl_json *a, pl_json *b, int depth)
{
    pl_json *x = NULL, *y = NULL;
    path nowhere = {0};
    pl_error kept = *c->err;
    bool yes = false;
    if (depth < 4 && flatten(c, &nowhere, a, &x) == PL_OK && flatten(c, &nowhere, b, &y) == PL_OK &&
        pl_json_type(x) == PL_JSON_OBJECT && pl_json_type(y) == PL_JSON_OBJECT) {
        int s = types_of(x), t = types_of(y);
        /* What b says without a type holds for values of one type only. */
        if (!pl_json_get(y, "type") && t != T_ALL) t = T_ALL;
        bool numbers = s & (T_NUMBER | T_INTEGER) && t & (T_NUMBER | T_INTEGER);
        yes = !(s & t) && !numbers;
        pl_json *v[2][2] = {{pl_json_get(x, "enum"), pl_json_get(x, "const")},
                            {pl_json_get(y, "enum"), pl_json_get(y, "const")}};
        if (!yes && (v[0][0] || v[0][1]) && (v[1][0] || v[1][1])) {
            yes = true;
            for (size_t i = 0; i < (v[0][1] ? 1 : pl_json_size(v[0][0])); i++)
                for (size_t k = 0; k < (v[1][1] ? 1 : pl_json_size(v[1][0])); k++)
                    yes &= !same_json(v[0][1] ? v[0][1] : pl_json_at(v[0][0], i),
                                      v[1][1] ? v[1][1] : pl_json_at(v[1][0], k));
        }
        pl_json *xp = pl_json_get(x, "properties"), *yp = pl_json_get(y, "properties"), *must[2];
        must[0] = pl_json_get(x, "required");
        must[1] = pl_json_get(y, "required");
        pl_json *xa = pl_json_get(x, "additionalProperties");
        bool closed = xp && (!xa || is_false(xa));
        for (size_t i = 0; !yes && s == T_OBJECT && i < pl_json_size(must[1]); i++) {
            pl_str name = pl_json_str(pl_json_at(must[1], i));
            pl_json *mine = name.size ? pl_json_get(xp, name.data) : NULL,
                    *other = name.size ? pl_json_get(yp, name.data) : NULL;
            yes =
                (closed && !mine && !is_required(must[0], name)) || (mine && other && apart(c, mine, other, depth + 1));
        }
        for (size_t i = 0; !yes && s == T_OBJECT && t & T_OBJECT && i < pl_json_size(must[0]); i++) {
            pl_str name = pl_json_str(pl_json_at(must[0], i));
            pl_json *mine = name.size ? pl_json_get(xp, name.data) : NULL,
                    *other = name.size ? pl_json_get(yp, name.data) : NULL;
            yes = (mine && other && apart(c, mine, other, depth + 1)) ||
                  (!other && is_false(pl_json_get(y, "additionalProperties")));
        }
    }
    pl_json_free(x);
    pl_json_free(y);
    *c->err = kept;
    return yes;
}

static pl_status check_one_of(converter *c, const path *at, const pl_json *list)
{
    size_t n = pl_json_size(list);
    if (n > 64) return fail(c, PL_ERR_UNSUPPORTED, at, "more than 64 alternatives are not supported");
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < n; k++)
            if (i != k && !apart(c, pl_json_at(list, i), pl_json_at(list, k), 0)) {
                char text[160];
                snprintf(
                    text, sizeof text,
                    "what is valid under alternative %zu may be valid under %zu too, and oneOf forbids that; anyOf "
                    "does not",
                    i, k);
                return fail(c, PL_ERR_UNSUPPORTED, at, text);
            }
    return PL_OK;
}

static pl_status write_choice(converter *c, const path *at, pl_json *schema, const char *keyword, pl_buf *out)
{
    pl_json *list = pl_json_get(schema, keyword), *v, *beside = pl_json_object();
    path up = {at, pl_str_from(keyword), 0};
    void *iter = NULL;
    pl_str key;
    size_t n_beside = 0;
    pl_status s = beside ? PL_OK : no_memory(c);
    if (s == PL_OK && (pl_json_type(list) != PL_JSON_ARRAY || pl_json_size(list) == 0))
        s = fail(c, PL_ERR_INVALID, &up, "it is not an array of schemas");
    while (s == PL_OK && pl_json_next(schema, &iter, &key, &v)) {
        if (pl_str_is(key, keyword) || is_annotation(key)) continue;
        pl_json_set(beside, key.data, pl_json_ref(v));
        n_beside++;
    }
    if (s == PL_OK && strcmp(keyword, "oneOf") == 0) s = check_one_of(c, &up, list);
    for (size_t i = 0; i < pl_json_size(list) && s == PL_OK; i++) {
        path p = {&up, {0}, (int64_t)i};
        if (i > 0) pl_buf_add_str(out, PL_STR(" | "));
        pl_json *one = n_beside ? both(pl_json_at(list, i), beside) : pl_json_ref(pl_json_at(list, i));
        s = one ? visit_name(c, &p, one, out) : no_memory(c);
        pl_json_free(one);
    }
    pl_json_free(beside);
    return s;
}

static pl_status write_type(converter *c, const path *at, const pl_json *schema, int bit, pl_buf *out)
{
    switch (bit) {
    case T_OBJECT: return write_object(c, at, schema, out);
    case T_ARRAY: return write_array(c, at, schema, out);
    case T_STRING: return write_string(c, at, schema, out);
    case T_NUMBER:
    case T_INTEGER: return write_number(c, at, schema, bit == T_INTEGER, out);
    default: pl_buf_add_str(out, bit == T_BOOLEAN ? PL_STR("boolean") : PL_STR("null")); return PL_OK;
    }
}

/* schema is an object without $ref and allOf. */
static pl_status write_schema(converter *c, const path *at, pl_json *schema, pl_buf *out)
{
    static const char *const refused[] = {
        "not",           "if", "then", "else", "contains", "unevaluatedItems", "dependentSchemas", "$dynamicRef",
        "$recursiveRef", NULL};
    for (int i = 0; refused[i]; i++)
        if (pl_json_get(schema, refused[i])) return unsupported(c, at, refused[i]);
    if (pl_json_get(schema, "anyOf")) return write_choice(c, at, schema, "anyOf", out);
    if (pl_json_get(schema, "oneOf")) return write_choice(c, at, schema, "oneOf", out);
    if (pl_json_get(schema, "enum") || pl_json_get(schema, "const")) return write_values(c, at, schema, out);
    int set = types_of(schema), n = 0;
    if (!set)
        return fail(c, PL_ERR_INVALID, at,
                    pl_json_size(pl_json_get(schema, "type")) == 0 &&
                            pl_json_type(pl_json_get(schema, "type")) == PL_JSON_ARRAY
                        ? "no type is left: nothing is valid"
                        : "its type is none of object, array, string, number, integer, boolean and null");
    if (set == T_ALL) {
        pl_buf_add_str(out, PL_STR("value"));
        return PL_OK;
    }
    for (int i = 0; i < N_TYPES; i++) {
        if (!(set & types[i].bit)) continue;
        if (n++ > 0) pl_buf_add_str(out, PL_STR(" | "));
        PL_TRY(write_type(c, at, schema, types[i].bit, out));
    }
    return PL_OK;
}

/* The rule of the schema that a $ref names, made when it is met first. */
static pl_status visit_ref(converter *c, const path *at, pl_str ref, int32_t *rule)
{
    uint64_t known;
    path p = {at, PL_STR("$ref"), 0};
    const pl_json *to = resolve(c, ref);
    if (!to) return fail(c, PL_ERR_INVALID, &p, "it names nothing in this schema");
    if (pl_map_get(&c->refs, ref, &known)) {
        *rule = (int32_t)known;
        return PL_OK;
    }
    /* Its number comes first, so that it can name itself. */
    PL_TRY(new_rule(c, at, rule));
    if (!pl_map_set(&c->refs, ref, (uint64_t)*rule)) return no_memory(c);
    pl_buf body = {0};
    pl_status s = visit_name(c, &p, (pl_json *)to, &body);
    if (s == PL_OK) s = end_rule(c, at, *rule, &body);
    pl_buf_fini(&body);
    return s;
}

/* Whether a $ref stands alone, beside annotations. */
static bool only_ref(const pl_json *schema)
{
    void *iter = NULL;
    pl_str key;
    pl_json *v;
    while (pl_json_next(schema, &iter, &key, &v))
        if (!pl_str_is(key, "$ref") && !is_annotation(key)) return false;
    return pl_json_get(schema, "$ref") != NULL;
}

static pl_status visit(converter *c, const path *at, pl_json *schema, int32_t *rule)
{
    if (c->depth == DEPTH_MAX) return fail(c, PL_ERR_UNSUPPORTED, at, "nested too deeply");
    if (is_false(schema)) return fail(c, PL_ERR_INVALID, at, "nothing is valid");
    if (pl_json_type(schema) != PL_JSON_OBJECT && pl_json_type(schema) != PL_JSON_BOOL)
        return fail(c, PL_ERR_INVALID, at, "a schema is an object, true or false");
    if (only_ref(schema)) {
        c->depth++;
        pl_status r = visit_ref(c, at, pl_json_str(pl_json_get(schema, "$ref")), rule);
        c->depth--;
        return r;
    }
    pl_json *flat = NULL;
    pl_buf body = {0};
    c->depth++;
    pl_status s = new_rule(c, at, rule);
    if (s == PL_OK) s = flatten(c, at, schema, &flat);
    if (s == PL_OK && is_false(flat))
        s = fail(c, PL_ERR_INVALID, at, "nothing is valid");
    else if (s == PL_OK && pl_json_type(flat) == PL_JSON_BOOL)
        pl_buf_add_str(&body, PL_STR("value"));
    else if (s == PL_OK)
        s = write_schema(c, at, flat, &body);
    if (s == PL_OK) s = end_rule(c, at, *rule, &body);
    c->depth--;
    pl_buf_fini(&body);
    pl_json_free(flat);
    return s;
}

pl_status pl_json_schema_grammar(const pl_json *schema, pl_buf *out, pl_error *err)
{
    size_t before = out->size;
    int32_t root;
    converter c = {.root = schema, .out = out, .err = err};
    pl_buf_add_str(out, pl_str_from(prelude));
    pl_status s = visit(&c, NULL, (pl_json *)schema, &root);
    if (s == PL_OK) {
        pl_buf_printf(out, "root ::= r%d\n", (int)root);
        if (out->failed) s = no_memory(&c);
    }
    pl_map_fini(&c.refs);
    if (s != PL_OK) out->size = before;
    return s;
}

pl_status pl_json_schema_text_grammar(pl_str schema, pl_buf *out, pl_error *err)
{
    pl_json *v = NULL;
    pl_status s = pl_json_parse(&v, schema, err);
    if (s != PL_OK) return pl_note(err, PL_ERR_INVALID, "json_schema");
    s = pl_json_schema_grammar(v, out, err);
    pl_json_free(v);
    return s;
}
