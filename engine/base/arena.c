#include "engine/base/arena.h"

#include <stdarg.h>
#include <stdio.h>

#include "engine/base/alloc.h"

#define ALIGN         16u
#define CHUNK_DEFAULT ((size_t)64 << 10)
#define CHUNK_MAX     ((size_t)8 << 20) /* chunks double up to here: few of them, and little of the last one wasted */

struct pl_arena_chunk {
    pl_arena_chunk *next;
    size_t size; /* of data */
    _Alignas(ALIGN) unsigned char data[];
};

void pl_arena_init(pl_arena *a, size_t chunk_size)
{
    *a = (pl_arena){.chunk_size = chunk_size ? chunk_size : CHUNK_DEFAULT};
}

void pl_arena_fini(pl_arena *a)
{
    for (pl_arena_chunk *c = a->first, *next; c; c = next) {
        next = c->next;
        pl_free(c);
    }
    *a = (pl_arena){0};
}

void pl_arena_reset(pl_arena *a)
{
    a->current = a->first;
    a->used = 0;
}

/* Makes current a chunk with room for size: one that a reset left behind, else a new one. */
static bool next_chunk(pl_arena *a, size_t size)
{
    pl_arena_chunk **after = a->current ? &a->current->next : &a->first;
    pl_arena_chunk *c = NULL;
    for (pl_arena_chunk **at = after; *at; at = &(*at)->next) {
        if ((*at)->size < size) continue;
        c = *at;
        *at = c->next;
        break;
    }
    if (!c) {
        if (!a->chunk_size) a->chunk_size = CHUNK_DEFAULT; /* an arena that is all zero */
        size_t data = size > a->chunk_size ? size : a->chunk_size, whole;
        if (!pl_add_ok(data, sizeof *c, &whole) || !(c = pl_alloc(whole))) return false;
        c->size = data;
        if (a->chunk_size < CHUNK_MAX) a->chunk_size *= 2;
    }
    c->next = *after;
    *after = c;
    a->current = c;
    a->used = 0;
    return true;
}

void *pl_arena_alloc(pl_arena *a, size_t size)
{
    size_t whole;
    if (!pl_add_ok(size, ALIGN - 1, &whole)) return NULL;
    whole &= ~(size_t)(ALIGN - 1);
    if (!whole) whole = ALIGN; /* so that no two allocations share an address */
    if (!a->current || whole > a->current->size - a->used) {
        if (!next_chunk(a, whole)) return NULL;
    }
    void *p = a->current->data + a->used;
    a->used += whole;
    return p;
}

void *pl_arena_zalloc(pl_arena *a, size_t size)
{
    void *p = pl_arena_alloc(a, size);
    return p ? memset(p, 0, size) : NULL;
}

char *pl_arena_strdup(pl_arena *a, pl_str s)
{
    size_t size;
    char *copy = pl_add_ok(s.size, 1, &size) ? pl_arena_alloc(a, size) : NULL;
    if (!copy) return NULL;
    if (s.size) memcpy(copy, s.data, s.size);
    copy[s.size] = 0;
    return copy;
}

char *pl_arena_printf(pl_arena *a, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    char *text = n < 0 ? NULL : pl_arena_alloc(a, (size_t)n + 1);
    if (text) vsnprintf(text, (size_t)n + 1, fmt, again);
    va_end(again);
    return text;
}
