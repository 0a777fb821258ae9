/* A readable account of a GGUF file: all metadata and all tensors, as text or as JSON. */
#pragma once

#include "engine/base/buf.h"
#include "engine/gguf/read.h"

typedef struct pl_gguf_dump_options {
    bool json;          /* one object: {"path", "version", "alignment", "metadata": [...], "tensors": [...]} */
    uint64_t array_max; /* elements shown of an array, 0 for 8 */
    uint64_t text_max;  /* bytes shown of a string, 0 for 120 as text and no bound as JSON */
} pl_gguf_dump_options;

/* Appends to out. What is not printable is escaped, so a hostile file cannot drive a terminal.
 * On failure (no memory) out is as it was. */
PL_MUST_CHECK pl_status pl_gguf_dump(const pl_gguf *g, pl_gguf_dump_options options, pl_buf *out, pl_error *err);
