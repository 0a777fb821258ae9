/* A trie of byte strings: edges in one table with open addressing, so that a step costs the same however many children
 * a node has. */
#include "engine/base/alloc.h"
#include "engine/base/rng.h"
#include "engine/text/vocab_impl.h"

enum { NO_NODE = UINT32_MAX };

static size_t place_of(const pl_trie *t, uint64_t edge)
{
    uint64_t x = (edge ^ t->seed) * 0x9e3779b97f4a7c15u;
    size_t i = (size_t)(x ^ x >> 32) & (t->n_places - 1);
    while (t->edges[i].child != NO_NODE && t->edges[i].edge != edge) i = (i + 1) & (t->n_places - 1);
    return i;
}

bool pl_trie_init(pl_trie *t, size_t n_bytes)
{
    *t = (pl_trie){.n_places = 16, .seed = pl_random_seed()};
    while (t->n_places < n_bytes * 2) t->n_places *= 2;
    t->edges = pl_alloc(t->n_places * sizeof *t->edges);
    t->values = pl_alloc((n_bytes + 1) * sizeof *t->values);
    if (!t->edges || !t->values) {
        pl_trie_fini(t);
        return false;
    }
    for (size_t i = 0; i < t->n_places; i++) t->edges[i] = (pl_trie_edge){0, NO_NODE};
    t->values[0] = -1;
    t->n_nodes = 1;
    return true;
}

void pl_trie_fini(pl_trie *t)
{
    pl_free(t->edges);
    pl_free(t->values);
    *t = (pl_trie){0};
}

void pl_trie_add(pl_trie *t, pl_str key, int32_t value)
{
    uint32_t node = 0;
    for (size_t i = 0; i < key.size; i++) {
        uint64_t edge = (uint64_t)node << 8 | (uint8_t)key.data[i];
        pl_trie_edge *e = &t->edges[place_of(t, edge)];
        if (e->child == NO_NODE) {
            *e = (pl_trie_edge){edge, t->n_nodes};
            t->values[t->n_nodes++] = -1;
        }
        node = e->child;
    }
    if (t->values[node] < 0) t->values[node] = value;
}

bool pl_trie_step(const pl_trie *t, uint32_t *node, uint8_t byte, int32_t *value)
{
    const pl_trie_edge *e = &t->edges[place_of(t, (uint64_t)*node << 8 | byte)];
    if (e->child == NO_NODE) return false;
    *node = e->child;
    *value = t->values[*node];
    return true;
}
