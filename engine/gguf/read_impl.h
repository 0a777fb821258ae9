/* What read.c, split.c and keys.c know of each other. */
#pragma once

#include "engine/base/file.h"
#include "engine/base/map.h"
#include "engine/gguf/read.h"

typedef struct gguf_key {
    pl_str name;
    pl_gguf_value value;
} gguf_key;

typedef struct gguf_part {
    char *path;    /* NULL from memory */
    pl_mapped map; /* all zero when opened from memory */
    pl_bytes bytes;
} gguf_part;

/* Metadata is that of part 0; tensors are those of all parts, in order. */
struct pl_gguf {
    char *path;
    uint32_t version;
    uint64_t alignment;
    size_t header_size; /* of part 0 */
    gguf_key *keys;
    size_t n_keys;
    pl_map key_index;
    pl_gguf_tensor *tensors;
    size_t n_tensors;
    pl_map tensor_index;
    gguf_part *parts;
    size_t n_parts;
    char **texts; /* names that are in no file */
    size_t n_texts;
    uint8_t n_adapters[4]; /* the value of adapter.count */
};

/* Parses one file into a pl_gguf of its own, whose only part it is; part is what its tensors say of themselves. */
pl_status pl_gguf_parse(pl_gguf **out, pl_bytes bytes, bool header_only, int32_t part, pl_error *err);

/* Opens the file at path as one part; the result owns the map. */
pl_status pl_gguf_open_part(pl_gguf **out, const char *path, int32_t part, pl_error *err);

/* If g, opened from path as part 0, is the first part of a split: opens the others and moves their tensors into g. */
pl_status pl_gguf_open_rest(pl_gguf *g, const char *path, pl_error *err);

/* Moves the tensors and the map of part into g. On failure both are as they were, but for room in g. */
pl_status pl_gguf_take_over(pl_gguf *g, pl_gguf *part, pl_error *err);

/* split.count, 0 when absent. */
pl_status pl_gguf_split_count(const pl_gguf *g, uint32_t *out, pl_error *err);

/* The bytes of one element of kind; 0 for strings, arrays and what is no kind. */
size_t pl_gguf_kind_size(pl_gguf_kind kind);
