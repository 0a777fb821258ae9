/* Reads bytes that came from outside. Cannot run past its end: a read that does not fit sets `bad` and
 * gives zero, and every later read gives zero too, so a parser may check once per structure. */
#pragma once

#include "engine/base/bytes.h"

typedef struct pl_reader {
    const uint8_t *start, *at, *end;
    bool bad;
} pl_reader;

static inline pl_reader pl_reader_of(pl_bytes b)
{
    return (pl_reader){b.data, b.data, b.data + b.size, false};
}
static inline size_t pl_reader_left(const pl_reader *r)
{
    return r->bad ? 0 : (size_t)(r->end - r->at);
}
static inline size_t pl_reader_offset(const pl_reader *r)
{
    return (size_t)(r->at - r->start);
}

/* The next n bytes, or NULL. */
static inline const uint8_t *pl_read_bytes(pl_reader *r, size_t n)
{
    if (r->bad || (size_t)(r->end - r->at) < n) {
        r->bad = true;
        return NULL;
    }
    const uint8_t *p = r->at;
    r->at += n;
    return p;
}
static inline uint8_t pl_read_u8(pl_reader *r)
{
    const uint8_t *p = pl_read_bytes(r, 1);
    return p ? *p : 0;
}
static inline uint16_t pl_read_u16(pl_reader *r)
{
    const uint8_t *p = pl_read_bytes(r, 2);
    return p ? pl_get_u16(p) : 0;
}
static inline uint32_t pl_read_u32(pl_reader *r)
{
    const uint8_t *p = pl_read_bytes(r, 4);
    return p ? pl_get_u32(p) : 0;
}
static inline uint64_t pl_read_u64(pl_reader *r)
{
    const uint8_t *p = pl_read_bytes(r, 8);
    return p ? pl_get_u64(p) : 0;
}
