/* Regular expressions of a schema, private to this folder. */
#pragma once

#include "engine/base/buf.h"

/* Appends, as a piece of a grammar in parentheses, the inside of a JSON string (without its quotation marks) that the
 * pattern matches somewhere, as "pattern" in JSON Schema means it: ECMA-262 without look-around, back references, word
 * boundaries and flags. Classes such as \w and their complements are those of ASCII. why: the reason of a failure.
 * PL_ERR_INVALID: it is no expression. PL_ERR_UNSUPPORTED. */
PL_MUST_CHECK pl_status pl_regex_grammar(pl_str pattern, pl_buf *out, char *why, size_t why_size);
