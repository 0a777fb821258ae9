/* JSON (RFC 8259), through jansson, which is seen nowhere else. A value is reference counted: what make or
 * parse gives is the caller's; what get and at give is borrowed from its parent; set and append take over.
 *
 * Threads: a tree belongs to one thread at a time. */
#pragma once

#include "engine/base/buf.h"
#include "engine/base/bytes.h"
#include "engine/base/status.h"

typedef struct json_t pl_json;
typedef enum {
    PL_JSON_NULL,
    PL_JSON_BOOL,
    PL_JSON_INT,
    PL_JSON_REAL,
    PL_JSON_STRING,
    PL_JSON_ARRAY,
    PL_JSON_OBJECT
} pl_json_kind;

/* Strict: UTF-8, no duplicate keys, no bytes behind the value, depth at most 512. PL_ERR_FORMAT names line and column.
 */
PL_MUST_CHECK pl_status pl_json_parse(pl_json **out, pl_str text, pl_error *err);
/* Appends the compact text (indent 0) or an indented one. Keys keep their order. */
PL_MUST_CHECK pl_status pl_json_write(const pl_json *v, int indent, pl_buf *out, pl_error *err);
void pl_json_free(pl_json *v);
pl_json *pl_json_ref(pl_json *v);

pl_json *pl_json_null(void);
pl_json *pl_json_bool(bool b);
pl_json *pl_json_int(int64_t i);
pl_json *pl_json_real(double d);   /* NaN and infinity become null: JSON has no word for them */
pl_json *pl_json_string(pl_str s); /* invalid UTF-8 becomes U+FFFD */
pl_json *pl_json_array(void);
pl_json *pl_json_object(void);
bool pl_json_append(pl_json *array, pl_json *v); /* takes v, also on failure; v NULL is a failure */
bool pl_json_set(pl_json *object, const char *key, pl_json *v);

pl_json_kind pl_json_type(const pl_json *v); /* NULL is PL_JSON_NULL */
size_t pl_json_size(const pl_json *v);       /* of an array or object, else 0 */
pl_json *pl_json_at(const pl_json *array, size_t i);
pl_json *pl_json_get(const pl_json *object, const char *key); /* NULL when absent or not an object */
pl_str pl_json_str(const pl_json *v);                         /* empty when not a string */
int64_t pl_json_i64(const pl_json *v);                        /* 0 when not an integer */
double pl_json_f64(const pl_json *v);                         /* integers too; 0 when not a number */
bool pl_json_is_true(const pl_json *v);
/* Walks an object in the order of its text: *iter starts NULL; false at the end. */
bool pl_json_next(const pl_json *object, void **iter, pl_str *key, pl_json **value);
