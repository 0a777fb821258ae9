/* A hash map from byte strings to 64-bit values: open addressing, keys copied into the map.
 * The hash is keyed at random per map, so that chosen keys cannot make it slow.
 *
 * Threads: readers may share a map that nobody writes. */
#pragma once

#include "engine/base/bytes.h"
#include "engine/base/status.h"

typedef struct pl_map_entry pl_map_entry;
typedef struct pl_map {
    pl_map_entry *entries;
    size_t n, cap;
    uint64_t seed;
} pl_map;

void pl_map_fini(pl_map *m); /* all zero is a valid empty map */
/* Sets key to value; false when there is no memory. */
PL_MUST_CHECK bool pl_map_set(pl_map *m, pl_str key, uint64_t value);
/* True and *value (NULL is allowed) when key is there. */
bool pl_map_get(const pl_map *m, pl_str key, uint64_t *value);
bool pl_map_remove(pl_map *m, pl_str key);
static inline size_t pl_map_size(const pl_map *m)
{
    return m->n;
}
/* Walks in no order, and in another one each run (the seed is random), so nothing that must repeat may follow it.
 * Start with *at = 0; false at the end. Do not change the map meanwhile. */
bool pl_map_next(const pl_map *m, size_t *at, pl_str *key, uint64_t *value);
