/* Joins neighbouring symbols, best pair first: the part that byte-level BPE and SPM share.
 *
 * A doubly linked list of symbols and a heap of pairs. A heap entry is not removed when one of its symbols changes;
 * it is recognised as old when it is taken out, because the pair at its place then has another id. Every join adds at
 * most two entries, so the heap never holds more than 3n, and the whole is O(n log n). */
#include "engine/text/vocab_impl.h"

typedef struct entry {
    uint64_t key; /* priority, then place */
    int32_t pair;
} entry;

typedef struct heap {
    entry *e;
    size_t n;
} heap;

void pl_text_work_fini(pl_text_work *w)
{
    pl_buf_fini(&w->symbols);
    pl_buf_fini(&w->heap);
    pl_buf_fini(&w->text);
    pl_buf_fini(&w->word);
    pl_buf_fini(&w->ends[0]);
    pl_buf_fini(&w->ends[1]);
}

static void heap_push(heap *h, entry x)
{
    size_t i = h->n++;
    while (i > 0 && h->e[(i - 1) / 2].key > x.key) {
        h->e[i] = h->e[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    h->e[i] = x;
}

static entry heap_pop(heap *h)
{
    entry top = h->e[0], x = h->e[--h->n];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < h->n; i = child) {
        if (child + 1 < h->n && h->e[child + 1].key < h->e[child].key) child++;
        if (h->e[child].key >= x.key) break;
        h->e[i] = h->e[child];
    }
    h->e[i] = x;
    return top;
}

pl_symbol *pl_symbols_reserve(pl_text_work *w, size_t n)
{
    pl_buf_reset(&w->symbols);
    return pl_buf_reserve(&w->symbols, n * sizeof(pl_symbol)) ? (pl_symbol *)(void *)w->symbols.data : NULL;
}

static void consider(heap *h, pl_symbol *s, int32_t i, pl_pair_fn pair, const void *user)
{
    uint32_t priority;
    s[i].pair = -1;
    if (s[i].next < 0 || !pair(user, &s[i], &s[s[i].next], &s[i].pair, &priority)) return;
    heap_push(h, (entry){(uint64_t)priority << 32 | (uint32_t)i, s[i].pair});
}

bool pl_symbols_join(pl_text_work *w, pl_symbol *s, size_t n, pl_pair_fn pair, const void *user)
{
    for (size_t i = 0; i < n; i++) {
        s[i].prev = (int32_t)i - 1;
        s[i].next = i + 1 < n ? (int32_t)i + 1 : -1;
        s[i].pair = -1;
    }
    if (n < 2) return true;
    pl_buf_reset(&w->heap);
    if (!pl_buf_reserve(&w->heap, 3 * n * sizeof(entry))) return false;
    heap h = {(entry *)(void *)w->heap.data, 0};
    for (size_t i = 0; i + 1 < n; i++) consider(&h, s, (int32_t)i, pair, user);
    while (h.n > 0) {
        entry top = heap_pop(&h);
        w->steps++;
        int32_t i = (int32_t)(uint32_t)top.key, right;
        if (s[i].size == 0 || s[i].pair != top.pair) continue;
        right = s[i].next;
        s[i].size += s[right].size;
        s[i].id = top.pair;
        s[i].next = s[right].next;
        if (s[right].next >= 0) s[s[right].next].prev = i;
        s[right].size = 0;
        s[right].pair = -1;
        consider(&h, s, i, pair, user);
        if (s[i].prev >= 0) consider(&h, s, s[i].prev, pair, user);
    }
    return true;
}
