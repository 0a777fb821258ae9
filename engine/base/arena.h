/* Memory by lifetime: many allocations, one end. An arena grows by chunks and is reset as a whole;
 * a reset keeps its chunks, so a warm step allocates nothing from the heap.
 *
 * Threads: one at a time. */
#pragma once

#include "engine/base/bytes.h"
#include "engine/base/status.h"

typedef struct pl_arena_chunk pl_arena_chunk;
typedef struct pl_arena {
    pl_arena_chunk *first, *current;
    size_t used;       /* in the current chunk */
    size_t chunk_size; /* of the next chunk that is made */
} pl_arena;

/* chunk_size: bytes per chunk, 0 for 64 KiB. Takes no memory yet. */
void pl_arena_init(pl_arena *a, size_t chunk_size);
void pl_arena_fini(pl_arena *a);
/* Everything handed out is gone; the chunks stay. */
void pl_arena_reset(pl_arena *a);

/* size bytes on a 16-byte boundary (zeroed by pl_arena_zalloc), NULL when there is no memory. */
void *pl_arena_alloc(pl_arena *a, size_t size);
void *pl_arena_zalloc(pl_arena *a, size_t size);
/* A terminated copy of s. */
char *pl_arena_strdup(pl_arena *a, pl_str s);
/* printf into the arena. */
char *pl_arena_printf(pl_arena *a, const char *fmt, ...) PL_PRINTF(2, 3);

#define PL_ARENA_NEW(a, type) ((type *)pl_arena_zalloc((a), sizeof(type)))
