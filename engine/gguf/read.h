/* Reads GGUF files. Every byte is checked here, so that nothing above has to.
 *
 * Format:   GGUF versions 1, 2 and 3, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
 * Threads:  a pl_gguf never changes after opening; any thread may read it.
 * Lifetime: names, strings and tensor data point into the file and live until pl_gguf_close. */
#pragma once

#include "engine/base/bytes.h"
#include "engine/base/hash.h"
#include "engine/base/status.h"
#include "engine/types/types.h"

typedef struct pl_gguf pl_gguf;

typedef enum pl_gguf_kind { /* the numbers are the file's */
                            PL_GGUF_U8,
                            PL_GGUF_I8,
                            PL_GGUF_U16,
                            PL_GGUF_I16,
                            PL_GGUF_U32,
                            PL_GGUF_I32,
                            PL_GGUF_F32,
                            PL_GGUF_BOOL,
                            PL_GGUF_STRING,
                            PL_GGUF_ARRAY,
                            PL_GGUF_U64,
                            PL_GGUF_I64,
                            PL_GGUF_F64,
                            PL_GGUF_KIND_COUNT
} pl_gguf_kind;

/* "u32", "string"; "?" for what is no kind. */
const char *pl_gguf_kind_name(pl_gguf_kind kind);

/* One metadata entry, or one element of an array. */
typedef struct pl_gguf_value {
    pl_gguf_kind kind;
    pl_gguf_kind elem; /* of an array */
    uint64_t n;        /* elements of an array */
    pl_bytes raw;      /* the value's bytes: the number, the text, or the array's elements as they stand in the file */
    bool len32;        /* of a version 1 file: lengths inside raw have 32 bits instead of 64 */
} pl_gguf_value;

typedef struct pl_gguf_tensor {
    pl_str name;
    pl_type type;
    int32_t n_dims;
    int64_t ne[4];    /* elements per dimension, ones behind n_dims */
    uint64_t size;    /* bytes */
    uint64_t offset;  /* of the data in its part's file */
    int32_t part;     /* which file of a split, from 0 */
    const void *data; /* in the map; NULL when only the header was opened */
} pl_gguf_tensor;

/* Opens and validates the file at path, with all parts of a split (opened from its first part).
 * On success the caller owns *out and closes it with pl_gguf_close. On failure *out is NULL and err names the file,
 * the offset and the key or tensor that was wrong, with its numbers.
 * PL_ERR_IO, PL_ERR_NOT_FOUND: the file cannot be read. PL_ERR_FORMAT: it breaks the format.
 * PL_ERR_UNSUPPORTED: big-endian, an unknown version or an unknown tensor type. */
PL_MUST_CHECK pl_status pl_gguf_open(pl_gguf **out, const char *path, pl_error *err);

/* As pl_gguf_open, from memory. bytes is borrowed until pl_gguf_close. With header_only the bytes may end
 * anywhere behind the tensor list: tensors have data NULL, and their range is not checked against a size. */
PL_MUST_CHECK pl_status pl_gguf_open_bytes(pl_gguf **out, pl_bytes bytes, bool header_only, pl_error *err);

/* Makes the low-rank adapter in the file at path a part of the model g: its tensors are "adapter.K.NAME.lora_a" and
 * "…lora_b", K counting from 0, with the keys adapter.count and adapter.K.alpha. After an error g can only be closed.
 * PL_ERR_INVALID: no adapter, or one for another architecture. */
#define PL_ADAPTERS_MAX 8
PL_MUST_CHECK pl_status pl_gguf_add_adapter(pl_gguf *g, const char *path, pl_error *err);

void pl_gguf_close(pl_gguf *g);

/* The files that g is made of, in order; a path is "" from memory. */
size_t pl_gguf_n_parts(const pl_gguf *g);
const char *pl_gguf_part_path(const pl_gguf *g, size_t i);

uint32_t pl_gguf_version(const pl_gguf *g);
uint64_t pl_gguf_alignment(const pl_gguf *g);
/* The path as opened (of part 0); "" from memory. */
const char *pl_gguf_path(const pl_gguf *g);
/* The bytes of the header: magic to the end of the tensor list, of part 0. What a node is sent instead of the file;
 * for a split, the coordinator sends a header written anew that lists all tensors (pl_gguf_header_write). */
pl_bytes pl_gguf_header(const pl_gguf *g);
/* Total bytes of the files that are mapped. */
uint64_t pl_gguf_file_size(const pl_gguf *g);

/* Metadata in the order of the file. */
size_t pl_gguf_n_keys(const pl_gguf *g);
pl_str pl_gguf_key_at(const pl_gguf *g, size_t i, pl_gguf_value *value);
bool pl_gguf_find(const pl_gguf *g, const char *key, pl_gguf_value *out);

/* Typed reads. Each gives false when the key is absent; a key of another kind, or a number that does not fit,
 * is PL_ERR_FORMAT in err with status set (the get_* return a status for that reason): PL_OK and *found. */
PL_MUST_CHECK pl_status pl_gguf_get_u32(const pl_gguf *g, const char *key, uint32_t *out, bool *found,
                                        pl_error *err); /* any integer kind that fits */
PL_MUST_CHECK pl_status pl_gguf_get_f32(const pl_gguf *g, const char *key, float *out, bool *found,
                                        pl_error *err); /* f32, f64 or an integer */
PL_MUST_CHECK pl_status pl_gguf_get_bool(const pl_gguf *g, const char *key, bool *out, bool *found, pl_error *err);
PL_MUST_CHECK pl_status pl_gguf_get_str(const pl_gguf *g, const char *key, pl_str *out, bool *found, pl_error *err);

/* Elements of an array. The number readers convert from any integer (or float) kind; i < value.n. */
int64_t pl_gguf_elem_i64(const pl_gguf_value *array, uint64_t i);
double pl_gguf_elem_f64(const pl_gguf_value *array, uint64_t i);
/* Strings have no index in the file: walk with *at = 0 first. False behind the last one. */
bool pl_gguf_next_str(const pl_gguf_value *array, size_t *at, pl_str *out);

size_t pl_gguf_n_tensors(const pl_gguf *g);
const pl_gguf_tensor *pl_gguf_tensor_at(const pl_gguf *g, size_t i);
const pl_gguf_tensor *pl_gguf_find_tensor(const pl_gguf *g, pl_str name); /* NULL when absent */
