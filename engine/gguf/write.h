/* Writes GGUF version 3 files: for tests, for benchmarks' synthetic models, and for the header that a coordinator
 * sends. */
#pragma once

#include "engine/base/buf.h"
#include "engine/gguf/read.h"

typedef struct pl_gguf_writer pl_gguf_writer;

PL_MUST_CHECK pl_status pl_gguf_writer_new(pl_gguf_writer **out, pl_error *err);
void pl_gguf_writer_free(pl_gguf_writer *w);

/* Each gives false when there is no memory; a writer that failed once fails at the end too. Text and data are copied,
 * except the tensor's data, which is borrowed until the file is written. */
bool pl_gguf_add_u32(pl_gguf_writer *w, const char *key, uint32_t v);
bool pl_gguf_add_f32(pl_gguf_writer *w, const char *key, float v);
bool pl_gguf_add_bool(pl_gguf_writer *w, const char *key, bool v);
bool pl_gguf_add_str(pl_gguf_writer *w, const char *key, pl_str v);
bool pl_gguf_add_strs(pl_gguf_writer *w, const char *key, const pl_str *v, size_t n);
bool pl_gguf_add_i32s(pl_gguf_writer *w, const char *key, const int32_t *v, size_t n);
bool pl_gguf_add_f32s(pl_gguf_writer *w, const char *key, const float *v, size_t n);
/* Any value as it stands in another file. */
bool pl_gguf_add_value(pl_gguf_writer *w, pl_str key, const pl_gguf_value *v);
bool pl_gguf_add_tensor(pl_gguf_writer *w, const char *name, pl_type type, int n_dims, const int64_t *ne,
                        const void *data);

/* The whole file into out, or to path (streamed: data is not copied). */
PL_MUST_CHECK pl_status pl_gguf_write(const pl_gguf_writer *w, pl_buf *out, pl_error *err);
PL_MUST_CHECK pl_status pl_gguf_write_file(const pl_gguf_writer *w, const char *path, pl_error *err);

/* The header of g with all tensors of all parts in one list (sizes and types as in g, offsets new), for
 * pl_gguf_open_bytes(header_only). */
PL_MUST_CHECK pl_status pl_gguf_header_write(const pl_gguf *g, pl_buf *out, pl_error *err);
