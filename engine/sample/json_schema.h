/* JSON Schema as a grammar: what the grammar allows is valid under the schema.
 *
 * Format:   https://json-schema.org/draft/2020-12, and from older drafts definitions, items as an array,
 *           additionalItems. Known are type, enum, const; properties, required, additionalProperties, propertyNames,
 *           minProperties, maxProperties; items, prefixItems, minItems, maxItems; minLength, maxLength, pattern, format
 *           (date, time, date-time, uuid, ipv4, ipv6, email, hostname, uri; others are annotations, as the standard
 *           has it); minimum, maximum and the exclusive ones; oneOf, anyOf, allOf; $ref inside of the schema, also
 *           recursive. A keyword that would change the answer and is not known is an error that names its path.
 *           Of what a schema allows, the grammar may leave some out: properties come in the schema's order, and others
 *           than those that are listed only when additionalProperties asks for them.
 * Threads:  any; nothing is kept. */
#pragma once

#include "engine/base/json.h"

/* Appends the grammar's text. PL_ERR_INVALID: it is no schema, or nothing is valid under it; PL_ERR_UNSUPPORTED: a
 * keyword; PL_ERR_BUDGET: too large. err names the path in the schema. */
PL_MUST_CHECK pl_status pl_json_schema_grammar(const pl_json *schema, pl_buf *out, pl_error *err);
/* As above, from text. */
PL_MUST_CHECK pl_status pl_json_schema_text_grammar(pl_str schema, pl_buf *out, pl_error *err);
