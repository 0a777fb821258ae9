/* Nodes stand in the order of their texts, so that a tree is walked from left to right, and one whose first byte does
 * not fit is jumped over. The tokens below a node are neighbours in the order of texts.
 *
 * Inside of a string a grammar stays where it is for nearly all bytes. For this place the walk asks once which groups
 * of bytes leave it there; trees that have no other bytes are taken whole. Groups, because a set of 256 in each node
 * would take more memory than the tree. */
#include "engine/sample/trie.h"

#include <stdlib.h>

#include "engine/base/alloc.h"

typedef struct trie_node {
    uint64_t groups; /* of all bytes in the tree of this node, its own too */
    int32_t end;     /* the node behind its tree */
    int32_t token;   /* in order: its own tokens are those up to the next node's first */
    uint16_t depth;
    uint8_t byte;
} trie_node;

struct pl_trie {
    int32_t n, n_tokens, n_nodes;
    char *bytes;      /* of all texts */
    uint32_t *texts;  /* [n + 1] where each begins */
    int32_t *order;   /* [n_tokens] by their texts */
    trie_node *nodes; /* [n_nodes + 1] */
    int32_t *places;  /* [depth + 1] on the way down */
    size_t n_depth;
    uint8_t group_of[256];
    int n_groups;
};

#define TEXT_MAX  UINT16_MAX
#define BIG_NODES 8 /* smaller trees are walked faster than they are looked up */

/* Every punctuation character has a group of its own, as these are what grammars tell apart. */
static void make_groups(pl_trie *t)
{
    int n = -1;
    for (int b = 0; b < 256; b++) {
        bool letter = (b > '0' && b <= '9') || (b > 'A' && b <= 'F') || (b > 'G' && b <= 'Z') ||
                      (b > 'a' && b <= 'f') || (b > 'g' && b <= 'z');
        bool other = (b > 0 && b < ' ') || (b > 0x80 && b < 0xc2) || (b > 0xc2 && b < 0xe0) || (b > 0xe0 && b < 0xf0) ||
                     (b > 0xf0 && b < 0xf5) || b > 0xf5;
        n += !letter && !other;
        t->group_of[b] = (uint8_t)n;
    }
    t->n_groups = n + 1;
    PL_ASSERT(t->n_groups <= 64);
}

pl_str pl_trie_text(const pl_trie *t, int32_t token)
{
    return (pl_str){t->bytes + t->texts[token], t->texts[token + 1] - t->texts[token]};
}

static int by_text(const void *a, const void *b, void *trie)
{
    const pl_trie *t = trie;
    int32_t i = *(const int32_t *)a, k = *(const int32_t *)b;
    pl_str x = pl_trie_text(t, i), y = pl_trie_text(t, k);
    int order = memcmp(x.data, y.data, x.size < y.size ? x.size : y.size);
    if (order == 0) order = x.size != y.size ? (x.size > y.size) - (x.size < y.size) : (i > k) - (i < k);
    return order;
}

/* How many bytes two texts begin with in common. */
static size_t common(pl_str a, pl_str b)
{
    size_t n = 0;
    while (n < a.size && n < b.size && a.data[n] == b.data[n]) n++;
    return n;
}

static pl_str text_at(const pl_trie *t, int32_t i)
{
    return pl_trie_text(t, t->order[i]);
}

/* Nodes for the texts in order: of each text those that the one before has not. */
static void make_nodes(pl_trie *t, int32_t *open)
{
    int32_t n = 0;
    size_t depth = 0; /* of open nodes: those on the way to the last text */
    for (int32_t i = 0; i < t->n_tokens; i++) {
        pl_str text = text_at(t, i);
        size_t shared = i > 0 ? common(text_at(t, i - 1), text) : 0;
        for (; depth > shared; depth--) t->nodes[open[depth - 1]].end = n;
        for (; depth < text.size; depth++) {
            uint8_t byte = (uint8_t)text.data[depth];
            t->nodes[n] = (trie_node){.token = i, .depth = (uint16_t)depth, .byte = byte};
            open[depth] = n++;
        }
    }
    for (; depth > 0; depth--) t->nodes[open[depth - 1]].end = n;
    t->nodes[n].token = t->n_tokens;
    /* From the right, so that the children of a node are done before it. */
    for (int32_t i = n - 1; i >= 0; i--) {
        t->nodes[i].groups = UINT64_C(1) << t->group_of[t->nodes[i].byte];
        for (int32_t c = i + 1; c < t->nodes[i].end; c = t->nodes[c].end) t->nodes[i].groups |= t->nodes[c].groups;
    }
}

pl_status pl_trie_new(pl_trie **out, const pl_str *texts, int32_t n, pl_error *err)
{
    *out = NULL;
    size_t total = 0, nodes = 0;
    for (int32_t i = 0; i < n; i++) {
        if (texts[i].size > TEXT_MAX)
            return pl_fail(err, PL_ERR_UNSUPPORTED, "token %d has %zu bytes of text", (int)i, texts[i].size);
        total += texts[i].size;
    }
    if (total > INT32_MAX - 1) return pl_fail(err, PL_ERR_UNSUPPORTED, "a vocabulary of %zu bytes", total);
    pl_trie *t = pl_calloc(1, sizeof *t);
    int32_t *open = NULL;
    if (t) {
        t->n = n;
        make_groups(t);
        t->bytes = pl_alloc(total + 1);
        t->texts = pl_calloc((size_t)n + 1, sizeof *t->texts);
        t->order = pl_calloc((size_t)n + 1, sizeof *t->order);
    }
    if (!t || !t->bytes || !t->texts || !t->order) goto no_memory;
    for (int32_t i = 0; i < n; i++) {
        if (texts[i].size > 0) {
            memcpy(t->bytes + t->texts[i], texts[i].data, texts[i].size);
            t->order[t->n_tokens++] = i;
        }
        t->texts[i + 1] = t->texts[i] + (uint32_t)texts[i].size;
        if (texts[i].size > t->n_depth) t->n_depth = texts[i].size;
    }
    qsort_r(t->order, (size_t)t->n_tokens, sizeof *t->order, by_text, t);
    for (int32_t i = 0; i < t->n_tokens; i++)
        nodes += text_at(t, i).size - (i > 0 ? common(text_at(t, i - 1), text_at(t, i)) : 0);
    t->n_nodes = (int32_t)nodes;
    t->nodes = pl_calloc(nodes + 1, sizeof *t->nodes);
    t->places = pl_calloc(t->n_depth + 1, sizeof *t->places);
    open = pl_calloc(t->n_depth + 1, sizeof *open);
    if (!t->nodes || !t->places || !open) goto no_memory;
    make_nodes(t, open);
    pl_free(open);
    *out = t;
    return PL_OK;
no_memory:
    pl_free(open);
    pl_trie_free(t);
    return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for the tree of %d tokens", (int)n);
}

void pl_trie_free(pl_trie *t)
{
    if (!t) return;
    pl_free(t->bytes);
    pl_free(t->texts);
    pl_free(t->order);
    pl_free(t->nodes);
    pl_free(t->places);
    pl_free(t);
}

size_t pl_trie_bytes(const pl_trie *t)
{
    return sizeof *t + t->texts[t->n] + (size_t)t->n * (sizeof *t->texts + sizeof *t->order) +
           (size_t)t->n_nodes * sizeof *t->nodes;
}

/* The groups of bytes that leave the grammar where it is. */
static uint64_t staying_groups(const pl_trie *t, pl_grammar_run *r, int32_t place)
{
    uint64_t leaves = 0;
    for (int b = 0; b < 256; b++)
        if (pl_grammar_step(r, place, (uint8_t)b) != place) leaves |= UINT64_C(1) << t->group_of[b];
    return ~leaves;
}

static void set_tokens(const pl_trie *t, int32_t from, int32_t to, uint64_t *mask)
{
    for (int32_t i = from; i < to; i++) mask[t->order[i] >> 6] |= UINT64_C(1) << (t->order[i] & 63);
}

void pl_trie_mask(pl_trie *t, pl_grammar_run *r, int32_t place, uint64_t *mask)
{
    if (place == PL_PLACE_DEAD) return;
    const uint64_t stays = staying_groups(t, r, place);
    t->places[0] = place;
    for (int32_t i = 0; i < t->n_nodes;) {
        const trie_node *n = &t->nodes[i];
        int32_t from = t->places[n->depth];
        if (from == place && !(n->groups & ~stays) && n->end - i >= BIG_NODES) {
            set_tokens(t, n->token, t->nodes[n->end].token, mask);
            i = n->end;
            continue;
        }
        int32_t to = pl_grammar_step(r, from, n->byte);
        if (to == PL_PLACE_DEAD) {
            i = n->end;
            continue;
        }
        t->places[n->depth + 1] = to;
        set_tokens(t, n->token, n[1].token, mask);
        i++;
    }
}
