/* Small views of memory, and little-endian integers in it.
 *
 * A view is passed by value and owns nothing. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct pl_bytes {
    const uint8_t *data;
    size_t size;
} pl_bytes;

/* Text: not terminated, UTF-8 where its maker says so. */
typedef struct pl_str {
    const char *data;
    size_t size;
} pl_str;

#define PL_STR(literal) ((pl_str){(literal), sizeof(literal) - 1})
#define PL_STR_ARG(s)   (int)(s).size, (s).data /* for "%.*s" */

static inline pl_str pl_str_from(const char *s)
{
    return (pl_str){s, s ? strlen(s) : 0};
}
static inline bool pl_str_eq(pl_str a, pl_str b)
{
    return a.size == b.size && (a.size == 0 || memcmp(a.data, b.data, a.size) == 0);
}
static inline bool pl_str_is(pl_str a, const char *b)
{
    return pl_str_eq(a, pl_str_from(b));
}

static inline uint16_t pl_get_u16(const void *p)
{
    const uint8_t *b = p;
    return (uint16_t)(b[0] | b[1] << 8);
}
static inline uint32_t pl_get_u32(const void *p)
{
    const uint8_t *b = p;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}
static inline uint64_t pl_get_u64(const void *p)
{
    const uint8_t *b = p;
    return (uint64_t)pl_get_u32(b) | (uint64_t)pl_get_u32(b + 4) << 32;
}
static inline void pl_put_u16(void *p, uint16_t v)
{
    uint8_t *b = p;
    b[0] = (uint8_t)v;
    b[1] = (uint8_t)(v >> 8);
}
static inline void pl_put_u32(void *p, uint32_t v)
{
    uint8_t *b = p;
    for (int i = 0; i < 4; i++) b[i] = (uint8_t)(v >> (8 * i));
}
static inline void pl_put_u64(void *p, uint64_t v)
{
    uint8_t *b = p;
    for (int i = 0; i < 8; i++) b[i] = (uint8_t)(v >> (8 * i));
}

/* The length of the longest prefix of s that is whole, valid UTF-8 (Unicode 15, table 3-7). */
size_t pl_utf8_valid_prefix(pl_str s);
static inline bool pl_utf8_valid(pl_str s)
{
    return pl_utf8_valid_prefix(s) == s.size;
}
