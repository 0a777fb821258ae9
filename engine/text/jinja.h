/* An interpreter for Jinja templates, as chat templates use them.
 *
 * Reference: jinja2 3.1, configured as the transformers library does: an immutable sandbox with trim_blocks and
 * lstrip_blocks, no HTML escaping, loop controls, the generation block, tojson without HTML escaping, raise_exception
 * and strftime_now. Not there: include, import and extends (a template is one text), and the filters pprint, random,
 * urlize, wordwrap and xmlattr; using one is PL_ERR_UNSUPPORTED and names it. Integers have 64 bits. Threads: a
 * pl_jinja never changes after opening; any thread may render it. */
#pragma once

#include "engine/base/buf.h"
#include "engine/base/json.h"

typedef struct pl_jinja pl_jinja;

/* Bounds of one render; 0 takes the default. */
typedef struct pl_jinja_limits {
    uint64_t steps; /* evaluated nodes and touched elements; 20 million: about a second */
    size_t memory;  /* bytes of values; 256 MiB */
    size_t output;  /* bytes of text; 64 MiB */
    int64_t now_us; /* the time for strftime_now, since 1970; 0: the real one */
} pl_jinja_limits;

/* Compiles source, which is copied. PL_ERR_FORMAT names line and column; PL_ERR_UNSUPPORTED what is not there. */
PL_MUST_CHECK pl_status pl_jinja_open(pl_jinja **out, pl_str source, pl_error *err);
void pl_jinja_close(pl_jinja *t);

/* Appends the text. vars: an object whose members are the template's variables, NULL for none. On failure out is as
 * before. PL_ERR_INVALID: the template raised an exception, or something in it cannot be computed with these variables;
 * line and column are named. PL_ERR_BUDGET: a bound was reached. */
PL_MUST_CHECK pl_status pl_jinja_render(const pl_jinja *t, const pl_json *vars, const pl_jinja_limits *limits,
                                        pl_buf *out, pl_error *err);
