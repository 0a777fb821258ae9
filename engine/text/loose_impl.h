/* JSON, and what models write where they mean it; private to this folder. */
#pragma once

#include "engine/base/json.h"

/* Finds the end of a JSON object or array byte by byte. */
typedef struct pl_json_scan {
    int depth;
    bool in_string, escaped, done;
} pl_json_scan;
void pl_json_scan_byte(pl_json_scan *s, uint8_t byte);

/* As pl_json_parse, but line breaks and tabs may stand in strings as they are. The caller frees *out. */
bool pl_json_parse_loosely(pl_json **out, pl_str text);

/* s without white space and quotes around it. */
pl_str pl_unquoted(pl_str s);

/* The value at the front of *s as JSON into out: JSON, Python's literals, Gemma's <|"|>text<|"|> and
 * <escape>text<escape>, objects whose keys have no quotes, words. *s is what is behind it. False when it cannot be
 * read. */
bool pl_loose_value(pl_str *s, pl_buf *out);
/* key=value, … and the closing bracket, as an object. Values without keys get those of the schema in its order. */
bool pl_loose_arguments(pl_str *s, const pl_json *schema, pl_buf *out);
