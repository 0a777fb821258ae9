/* Linear probing with removal by shifting back, at most three quarters full. Short keys stand in the entry itself,
 * longer ones on the heap. The hash is keyed (pl_keyed_hash), and nobody can choose collisions without its
 * key. */
#include "engine/base/map.h"

#include "engine/base/alloc.h"
#include "engine/base/hash.h"
#include "engine/base/rng.h"

#define INLINE 16u

struct pl_map_entry {
    uint64_t hash; /* 0: the slot is free */
    uint64_t value;
    size_t size;
    union {
        char here[INLINE];
        char *heap;
    } key;
};

static pl_str key_of(const pl_map_entry *e)
{
    return (pl_str){e->size > INLINE ? e->key.heap : e->key.here, e->size};
}

static uint64_t hash_of(const pl_map *m, pl_str key)
{
    uint64_t h = pl_keyed_hash((pl_bytes){(const uint8_t *)key.data, key.size}, m->seed, ~m->seed);
    return h ? h : 1;
}

void pl_map_fini(pl_map *m)
{
    for (size_t i = 0; i < m->cap; i++) {
        if (m->entries[i].hash && m->entries[i].size > INLINE) pl_free(m->entries[i].key.heap);
    }
    pl_free(m->entries);
    *m = (pl_map){0};
}

/* The slot of key, or the free slot where it belongs. cap is a power of two and never full. */
static size_t slot_of(const pl_map *m, pl_str key, uint64_t hash)
{
    size_t i = hash & (m->cap - 1);
    while (m->entries[i].hash && !(m->entries[i].hash == hash && pl_str_eq(key_of(&m->entries[i]), key)))
        i = (i + 1) & (m->cap - 1);
    return i;
}

static bool grow(pl_map *m)
{
    size_t cap = m->cap ? m->cap * 2 : 16;
    pl_map_entry *entries = pl_calloc(cap, sizeof *entries);
    if (!entries) return false;
    for (size_t i = 0; i < m->cap; i++) {
        if (!m->entries[i].hash) continue;
        size_t at = m->entries[i].hash & (cap - 1);
        while (entries[at].hash) at = (at + 1) & (cap - 1);
        entries[at] = m->entries[i];
    }
    pl_free(m->entries);
    m->entries = entries;
    m->cap = cap;
    return true;
}

bool pl_map_set(pl_map *m, pl_str key, uint64_t value)
{
    if (!m->cap) m->seed = pl_random_seed();
    if (m->n >= m->cap / 4 * 3 && !grow(m)) return false;
    uint64_t hash = hash_of(m, key);
    pl_map_entry *e = &m->entries[slot_of(m, key, hash)];
    if (!e->hash) {
        if (key.size > INLINE) {
            char *copy = pl_strndup(key.data, key.size);
            if (!copy) return false;
            e->key.heap = copy;
        } else if (key.size) {
            memcpy(e->key.here, key.data, key.size);
        }
        e->size = key.size;
        e->hash = hash;
        m->n++;
    }
    e->value = value;
    return true;
}

bool pl_map_get(const pl_map *m, pl_str key, uint64_t *value)
{
    if (!m->cap) return false;
    const pl_map_entry *e = &m->entries[slot_of(m, key, hash_of(m, key))];
    if (!e->hash) return false;
    if (value) *value = e->value;
    return true;
}

bool pl_map_remove(pl_map *m, pl_str key)
{
    if (!m->cap) return false;
    size_t hole = slot_of(m, key, hash_of(m, key)), mask = m->cap - 1;
    if (!m->entries[hole].hash) return false;
    if (m->entries[hole].size > INLINE) pl_free(m->entries[hole].key.heap);
    /* Shift back what would no longer be found behind the hole: an entry may move there unless its own place lies
     * cyclically between the hole and where it stands. */
    for (size_t i = (hole + 1) & mask; m->entries[i].hash; i = (i + 1) & mask) {
        size_t home = m->entries[i].hash & mask;
        if (((i - home) & mask) < ((i - hole) & mask)) continue;
        m->entries[hole] = m->entries[i];
        hole = i;
    }
    m->entries[hole] = (pl_map_entry){0};
    m->n--;
    return true;
}

bool pl_map_next(const pl_map *m, size_t *at, pl_str *key, uint64_t *value)
{
    while (*at < m->cap) {
        const pl_map_entry *e = &m->entries[(*at)++];
        if (!e->hash) continue;
        if (key) *key = key_of(e);
        if (value) *value = e->value;
        return true;
    }
    return false;
}
