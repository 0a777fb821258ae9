#include "engine/base/buf.h"

#include <stdarg.h>
#include <stdio.h>

#include "engine/base/alloc.h"

void pl_buf_fini(pl_buf *b)
{
    pl_free(b->data);
    *b = (pl_buf){0};
}

bool pl_buf_reserve(pl_buf *b, size_t n)
{
    size_t need;
    if (!pl_add_ok(b->size, n, &need)) goto fail;
    if (need <= b->cap) return true;
    size_t cap = b->cap < 64 ? 64 : b->cap;
    /* Half as much again keeps the cost per byte constant and lets the heap reuse what was freed. */
    while (cap < need) {
        if (!pl_add_ok(cap, cap / 2, &cap)) goto fail;
    }
    uint8_t *data = pl_realloc(b->data, cap);
    if (!data) goto fail;
    b->data = data;
    b->cap = cap;
    return true;
fail:
    b->failed = true;
    return false;
}

bool pl_buf_add(pl_buf *b, const void *p, size_t n)
{
    if (!pl_buf_reserve(b, n)) return false;
    if (n) memcpy(b->data + b->size, p, n);
    b->size += n;
    return true;
}

bool pl_buf_add_str(pl_buf *b, pl_str s)
{
    return pl_buf_add(b, s.data, s.size);
}

bool pl_buf_add_u8(pl_buf *b, uint8_t v)
{
    return pl_buf_add(b, &v, 1);
}

bool pl_buf_add_u16(pl_buf *b, uint16_t v)
{
    uint8_t bytes[2];
    pl_put_u16(bytes, v);
    return pl_buf_add(b, bytes, sizeof bytes);
}

bool pl_buf_add_u32(pl_buf *b, uint32_t v)
{
    uint8_t bytes[4];
    pl_put_u32(bytes, v);
    return pl_buf_add(b, bytes, sizeof bytes);
}

bool pl_buf_add_u64(pl_buf *b, uint64_t v)
{
    uint8_t bytes[8];
    pl_put_u64(bytes, v);
    return pl_buf_add(b, bytes, sizeof bytes);
}

bool pl_buf_printf(pl_buf *b, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    bool ok = n >= 0 && pl_buf_reserve(b, (size_t)n + 1);
    if (ok) {
        vsnprintf((char *)b->data + b->size, (size_t)n + 1, fmt, again);
        b->size += (size_t)n;
    } else {
        b->failed = true;
    }
    va_end(again);
    return ok;
}

const char *pl_buf_cstr(pl_buf *b)
{
    if (!pl_buf_reserve(b, 1)) return NULL;
    b->data[b->size] = 0;
    return (const char *)b->data;
}
