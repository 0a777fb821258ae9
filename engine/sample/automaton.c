/* Places of a grammar, found when they are needed: a place is a set of (state, stack), of which only those states are
 * kept that read a byte. Stacks are lists that share their ends and exist once, so that two are equal when their
 * numbers are; then places can be compared, found again, and their steps kept in a table: behind the first time a step
 * costs one look-up.
 *
 * Bounds: a place has at most ITEMS_MAX items and a stack at most DEPTH_MAX states; what goes beyond is left out, which
 * makes the language smaller, never larger. When twice bytes_max is taken inside of one generation, or there is no
 * memory, a place that is not known yet is the dead one. */
#include <stdlib.h>

#include "engine/base/alloc.h"
#include "engine/sample/grammar_impl.h"

#define ITEMS_MAX 4096
#define DEPTH_MAX 4096
#define UNKNOWN   (-1)

typedef struct item {
    int32_t state, stack;
} item;

typedef struct stack_node {
    int32_t state, below, depth;
} stack_node;

typedef struct place {
    int32_t first, n; /* items */
    int32_t row;      /* of steps, UNKNOWN: none yet */
    bool accepts;
    void *attachment;
} place;

/* Numbers of things by a hash of them; open addressing, a power of two. */
typedef struct table {
    int32_t *at; /* number + 1; 0: free */
    uint32_t cap, n;
} table;

struct pl_grammar_run {
    const pl_grammar *g;
    size_t bytes_max, attached;
    uint32_t generation;
    stack_node *nodes; /* 0: the empty stack */
    int32_t n_nodes, nodes_cap;
    place *places; /* 0: dead */
    int32_t n_places, places_cap;
    item *items;
    int32_t n_items, items_cap;
    int32_t *rows; /* [n_classes] each */
    int32_t n_rows, rows_cap;
    table node_table, place_table;
    /* While a place is made: */
    item *set, *todo; /* [ITEMS_MAX] each */
    int32_t n_set, n_todo;
    uint64_t *seen; /* [SEEN] the item and the round */
    uint32_t round;
    int32_t start;
};

#define SEEN (4 * ITEMS_MAX)

static uint32_t mix(uint32_t a, uint32_t b)
{
    uint64_t x = ((uint64_t)a << 32 | b) * UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(x >> 32) ^ (uint32_t)x;
}

/* Room for one more; grows by doubling. */
static bool room(void **data, int32_t n, int32_t *cap, int32_t more, size_t size)
{
    if (n + more <= *cap) return true;
    int32_t grown = *cap ? *cap : 64;
    while (grown < n + more) grown *= 2;
    void *p = pl_realloc(*data, (size_t)grown * size);
    if (!p) return false;
    *data = p;
    *cap = grown;
    return true;
}

static size_t bytes_of(const pl_grammar_run *r)
{
    return (size_t)r->nodes_cap * sizeof *r->nodes + (size_t)r->places_cap * sizeof *r->places +
           (size_t)r->items_cap * sizeof *r->items + (size_t)r->rows_cap * (size_t)r->g->n_classes * sizeof *r->rows +
           ((size_t)r->node_table.cap + r->place_table.cap) * sizeof(int32_t) + r->attached;
}

/* --- tables --- */

static uint32_t node_hash(const pl_grammar_run *r, int32_t i)
{
    return mix((uint32_t)r->nodes[i].state, (uint32_t)r->nodes[i].below);
}

static uint32_t items_hash(const item *items, int32_t n, bool accepts)
{
    uint32_t h = accepts;
    for (int32_t i = 0; i < n; i++) h = mix(h ^ (uint32_t)items[i].state, (uint32_t)items[i].stack + 0x9e37u);
    return h;
}

static uint32_t place_hash(const pl_grammar_run *r, int32_t i)
{
    return items_hash(r->items + r->places[i].first, r->places[i].n, r->places[i].accepts);
}

/* Puts number i into t, whose hash function is given for when it has to grow. */
static bool table_add(pl_grammar_run *r, table *t, int32_t i, uint32_t (*hash)(const pl_grammar_run *, int32_t))
{
    if (2 * (t->n + 1) > t->cap) {
        uint32_t cap = t->cap ? 2 * t->cap : 64;
        int32_t *at = pl_calloc(cap, sizeof *at);
        if (!at) return false;
        for (uint32_t k = 0; k < t->cap; k++) {
            if (!t->at[k]) continue;
            uint32_t h = hash(r, t->at[k] - 1) & (cap - 1);
            while (at[h]) h = (h + 1) & (cap - 1);
            at[h] = t->at[k];
        }
        pl_free(t->at);
        t->at = at;
        t->cap = cap;
    }
    uint32_t h = hash(r, i) & (t->cap - 1);
    while (t->at[h]) h = (h + 1) & (t->cap - 1);
    t->at[h] = i + 1;
    t->n++;
    return true;
}

/* The stack with state on top of below; -1: it cannot be had. */
static int32_t push(pl_grammar_run *r, int32_t state, int32_t below)
{
    const table *t = &r->node_table;
    for (uint32_t h = mix((uint32_t)state, (uint32_t)below); t->cap > 0; h++) {
        int32_t i = t->at[h & (t->cap - 1)] - 1;
        if (i < 0) break;
        if (r->nodes[i].state == state && r->nodes[i].below == below) return i;
    }
    int32_t depth = r->nodes[below].depth + 1;
    if (depth > DEPTH_MAX || !room((void **)&r->nodes, r->n_nodes, &r->nodes_cap, 1, sizeof *r->nodes)) return -1;
    r->nodes[r->n_nodes] = (stack_node){state, below, depth};
    if (!table_add(r, &r->node_table, r->n_nodes, node_hash)) return -1;
    return r->n_nodes++;
}

/* --- making a place --- */

static void begin_set(pl_grammar_run *r)
{
    r->n_set = r->n_todo = 0;
    if (++r->round == 0) { /* the rounds ran out: all of seen is old */
        memset(r->seen, 0, SEEN * sizeof *r->seen);
        r->round = 1;
    }
}

/* Notes (state, stack) for reach, once. */
static void visit(pl_grammar_run *r, int32_t state, int32_t stack)
{
    if (stack < 0 || r->n_todo == ITEMS_MAX) return;
    /* The pair is found among this round's by its number in todo, which is never taken out. */
    for (uint32_t h = mix((uint32_t)state, (uint32_t)stack);; h++) {
        uint64_t *at = &r->seen[h % SEEN];
        if ((uint32_t)(*at >> 32) != r->round) {
            *at = (uint64_t)r->round << 32 | (uint32_t)r->n_todo;
            r->todo[r->n_todo++] = (item){state, stack};
            return;
        }
        item known = r->todo[(uint32_t)*at];
        if (known.state == state && known.stack == stack) return;
    }
}

/* All that is reached from what was visited without reading. Gives whether the text may end. */
static bool reach(pl_grammar_run *r)
{
    const pl_grammar *g = r->g;
    bool accepts = false;
    for (int32_t k = 0; k < r->n_todo; k++) {
        item it = r->todo[k];
        bool reads = false;
        if (g->end_of[it.state] >= 0) {
            if (it.stack == 0)
                accepts = true;
            else
                visit(r, r->nodes[it.stack].state, r->nodes[it.stack].below);
        }
        for (int32_t e = g->first[it.state]; e >= 0; e = g->edges[e].next) {
            const pl_edge *edge = &g->edges[e];
            switch ((pl_edge_kind)edge->kind) {
            case PL_EDGE_BYTES: reads = true; break;
            case PL_EDGE_EMPTY: visit(r, edge->target, it.stack); break;
            case PL_EDGE_CALL:
                visit(r, g->rules[edge->rule].start,
                      g->tail[edge->target] ? it.stack : push(r, edge->target, it.stack));
                break;
            }
        }
        if (reads) r->set[r->n_set++] = it;
    }
    return accepts;
}

static int by_value(const void *a, const void *b)
{
    const item *x = a, *y = b;
    return x->state != y->state ? (x->state > y->state) - (x->state < y->state)
                                : (x->stack > y->stack) - (x->stack < y->stack);
}

/* The place of the set; PL_PLACE_DEAD when it is empty or cannot be kept. */
static int32_t end_set(pl_grammar_run *r, bool accepts)
{
    int32_t n = r->n_set;
    if (n == 0 && !accepts) return PL_PLACE_DEAD;
    qsort(r->set, (size_t)n, sizeof *r->set, by_value);
    const table *t = &r->place_table;
    for (uint32_t h = items_hash(r->set, n, accepts); t->cap > 0; h++) {
        int32_t i = t->at[h & (t->cap - 1)] - 1;
        if (i < 0) break;
        const place *p = &r->places[i];
        if (p->n == n && p->accepts == accepts &&
            (n == 0 || memcmp(r->items + p->first, r->set, (size_t)n * sizeof *r->set) == 0))
            return i;
    }
    if (bytes_of(r) > 2 * r->bytes_max ||
        !room((void **)&r->places, r->n_places, &r->places_cap, 1, sizeof *r->places) ||
        !room((void **)&r->items, r->n_items, &r->items_cap, n, sizeof *r->items))
        return PL_PLACE_DEAD;
    if (n > 0) memcpy(r->items + r->n_items, r->set, (size_t)n * sizeof *r->set);
    r->places[r->n_places] = (place){.first = r->n_items, .n = n, .row = UNKNOWN, .accepts = accepts};
    if (!table_add(r, &r->place_table, r->n_places, place_hash)) return PL_PLACE_DEAD;
    r->n_items += n;
    return r->n_places++;
}

static int32_t make_step(pl_grammar_run *r, int32_t from, uint8_t byte)
{
    const pl_grammar *g = r->g;
    const place *p = &r->places[from];
    begin_set(r);
    for (int32_t i = 0; i < p->n; i++) {
        item it = r->items[p->first + i];
        for (int32_t e = g->first[it.state]; e >= 0; e = g->edges[e].next) {
            const pl_edge *edge = &g->edges[e];
            if (edge->kind == PL_EDGE_BYTES && byte >= edge->low && byte <= edge->high)
                visit(r, edge->target, it.stack);
        }
    }
    bool accepts = reach(r);
    return end_set(r, accepts);
}

/* --- the interface --- */

static void forget(pl_grammar_run *r)
{
    for (int32_t i = 0; i < r->n_places; i++) pl_free(r->places[i].attachment);
    pl_free(r->nodes);
    pl_free(r->places);
    pl_free(r->items);
    pl_free(r->rows);
    pl_free(r->node_table.at);
    pl_free(r->place_table.at);
    r->nodes = NULL;
    r->places = NULL;
    r->items = NULL;
    r->rows = NULL;
    r->n_nodes = r->nodes_cap = r->n_places = r->places_cap = r->n_items = r->items_cap = r->n_rows = r->rows_cap = 0;
    r->node_table = r->place_table = (table){0};
    r->attached = 0;
    r->start = PL_PLACE_DEAD;
    r->generation++;
}

/* The empty stack, the dead place and the first one; a list of items, so that it has an address. False: no memory. */
static bool begin(pl_grammar_run *r)
{
    if (!room((void **)&r->nodes, 0, &r->nodes_cap, 1, sizeof *r->nodes) ||
        !room((void **)&r->places, 0, &r->places_cap, 1, sizeof *r->places) ||
        !room((void **)&r->items, 0, &r->items_cap, 1, sizeof *r->items))
        return false;
    r->nodes[r->n_nodes++] = (stack_node){0};
    r->places[r->n_places++] = (place){.row = UNKNOWN};
    begin_set(r);
    visit(r, r->g->rules[r->g->root].start, 0);
    bool accepts = reach(r);
    r->start = end_set(r, accepts);
    return r->start != PL_PLACE_DEAD;
}

pl_status pl_grammar_run_new(pl_grammar_run **out, const pl_grammar *g, size_t bytes_max, pl_error *err)
{
    *out = NULL;
    pl_grammar_run *r = pl_calloc(1, sizeof *r);
    if (r) {
        r->g = g;
        r->bytes_max = bytes_max ? bytes_max : (size_t)16 << 20;
        r->set = pl_calloc(ITEMS_MAX, sizeof *r->set);
        r->todo = pl_calloc(ITEMS_MAX, sizeof *r->todo);
        r->seen = pl_calloc(SEEN, sizeof *r->seen);
    }
    if (!r || !r->set || !r->todo || !r->seen || !begin(r)) {
        pl_grammar_run_free(r);
        return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for the places of a grammar");
    }
    *out = r;
    return PL_OK;
}

void pl_grammar_run_free(pl_grammar_run *r)
{
    if (!r) return;
    forget(r);
    pl_free(r->set);
    pl_free(r->todo);
    pl_free(r->seen);
    pl_free(r);
}

void pl_grammar_run_limit(pl_grammar_run *r, size_t bytes_max)
{
    r->bytes_max = bytes_max;
}

int32_t pl_grammar_start(pl_grammar_run *r)
{
    if (r->start == PL_PLACE_DEAD) {
        forget(r);
        (void)begin(r); /* without memory it stays the dead place, and the next call tries again */
    }
    return r->start;
}

int32_t pl_grammar_step(pl_grammar_run *r, int32_t from, uint8_t byte)
{
    if (from == PL_PLACE_DEAD) return PL_PLACE_DEAD;
    int32_t n_classes = r->g->n_classes, class = r->g->class_of[byte];
    if (r->places[from].row == UNKNOWN) {
        if (!room((void **)&r->rows, r->n_rows, &r->rows_cap, 1, (size_t)n_classes * sizeof *r->rows))
            return make_step(r, from, byte);
        for (int32_t i = 0; i < n_classes; i++) r->rows[r->n_rows * n_classes + i] = UNKNOWN;
        r->places[from].row = r->n_rows++;
    }
    size_t at = (size_t)r->places[from].row * (size_t)n_classes + (size_t) class;
    if (r->rows[at] == UNKNOWN) {
        int32_t to = make_step(r, from, byte);
        r->rows[at] = to;
    }
    return r->rows[at];
}

bool pl_grammar_accepts(const pl_grammar_run *r, int32_t at)
{
    return at != PL_PLACE_DEAD && r->places[at].accepts;
}

uint32_t pl_grammar_generation(const pl_grammar_run *r)
{
    return r->generation;
}

void *pl_grammar_attachment(const pl_grammar_run *r, int32_t at)
{
    return at == PL_PLACE_DEAD ? NULL : r->places[at].attachment;
}

void *pl_grammar_attach(pl_grammar_run *r, int32_t at, size_t bytes)
{
    void *p = pl_calloc(1, bytes);
    if (!p) return NULL;
    r->places[at].attachment = p;
    r->attached += bytes;
    return p;
}

void pl_grammar_tidy(pl_grammar_run *r)
{
    if (bytes_of(r) > r->bytes_max) forget(r);
}
