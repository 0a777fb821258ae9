/* A growing byte buffer. Appending cannot be half done: on failure nothing changes.
 *
 * So that many appends can be written in a row, a failed append also sets `failed`, which stays. */
#pragma once

#include "engine/base/bytes.h"
#include "engine/base/status.h"

typedef struct pl_buf {
    uint8_t *data;
    size_t size, cap;
    bool failed; /* some append found no memory */
} pl_buf;

void pl_buf_fini(pl_buf *b); /* back to all zero, which is a valid empty buffer */
static inline void pl_buf_reset(pl_buf *b)
{
    b->size = 0;
    b->failed = false;
}
static inline pl_bytes pl_buf_bytes(const pl_buf *b)
{
    return (pl_bytes){b->data, b->size};
}
static inline pl_str pl_buf_str(const pl_buf *b)
{
    return (pl_str){(const char *)b->data, b->size};
}

/* Room for n more bytes; size is not changed. */
PL_MUST_CHECK bool pl_buf_reserve(pl_buf *b, size_t n);
bool pl_buf_add(pl_buf *b, const void *p, size_t n);
bool pl_buf_add_str(pl_buf *b, pl_str s);
bool pl_buf_add_u8(pl_buf *b, uint8_t v);
bool pl_buf_add_u16(pl_buf *b, uint16_t v);
bool pl_buf_add_u32(pl_buf *b, uint32_t v);
bool pl_buf_add_u64(pl_buf *b, uint64_t v);
bool pl_buf_printf(pl_buf *b, const char *fmt, ...) PL_PRINTF(2, 3);
/* Appends a zero byte that does not count, and gives the text; NULL when there is no memory. */
const char *pl_buf_cstr(pl_buf *b);
