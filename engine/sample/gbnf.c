/* From text to a tree of nodes, from the tree to states and edges.
 *
 * A repeated node is written out as often as it says; a large one becomes a rule of its own, which is called instead.
 * Character classes become ranges of UTF-8 bytes, so that a token that ends inside a character is nothing special. */
#include <stdlib.h>

#include "engine/base/alloc.h"
#include "engine/base/arena.h"
#include "engine/base/map.h"
#include "engine/sample/grammar_impl.h"

typedef enum { NODE_SEQUENCE, NODE_CHOICE, NODE_REPEAT, NODE_BYTES, NODE_CLASS, NODE_RULE } node_kind;

typedef struct range {
    uint32_t low, high;
} range;

typedef struct node {
    node_kind kind;
    struct node *next;  /* among its siblings */
    struct node *child; /* SEQUENCE, CHOICE: the first; REPEAT */
    int32_t min, max;   /* REPEAT; max -1: without end */
    int32_t rule;       /* RULE */
    pl_str bytes;       /* BYTES */
    range *ranges;      /* CLASS: ascending, apart */
    int32_t n_ranges;
} node;

typedef struct named {
    pl_str name;
    node *body;          /* NULL: not defined */
    const char *used_at; /* where it was first named */
} named;

#define REPEAT_MAX    100000
#define INLINE_STATES 16 /* a repeated node of more states becomes a rule */
#define CODE_MAX      0x10ffffu

typedef struct parser {
    pl_str text;
    const char *at, *end;
    pl_arena arena;
    named *names;
    int32_t n_names, names_cap;
    pl_map by_name;
    int depth;
    pl_grammar *g;
    pl_error *err;
} parser;

static pl_status fail_at(parser *p, const char *at, const char *what, pl_str word)
{
    int line = 1, column = 1;
    for (const char *c = p->text.data; c < at; c++) {
        column = *c == '\n' ? 1 : column + 1;
        line += *c == '\n';
    }
    if (word.size > 64) word.size = 64;
    return pl_fail(p->err, PL_ERR_INVALID, "grammar, line %d, column %d: %s%.*s", line, column, what, PL_STR_ARG(word));
}

static pl_status no_memory(parser *p)
{
    return pl_fail(p->err, PL_ERR_NO_MEMORY, "no memory for a grammar");
}

/* --- text --- */

static int peek(const parser *p)
{
    return p->at < p->end ? (unsigned char)*p->at : -1;
}

static void skip_space(parser *p, bool lines)
{
    for (;;) {
        int c = peek(p);
        if (c == '#') {
            while (p->at < p->end && *p->at != '\n' && *p->at != '\r') p->at++;
        } else if (c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r'))) {
            p->at++;
        } else {
            return;
        }
    }
}

static bool is_word(int c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

static pl_str read_word(parser *p)
{
    const char *from = p->at;
    while (is_word(peek(p))) p->at++;
    return (pl_str){from, (size_t)(p->at - from)};
}

static pl_status read_hex(parser *p, int digits, uint32_t *out)
{
    *out = 0;
    for (int i = 0; i < digits; i++, p->at++) {
        int c = peek(p);
        int v = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (v < 0) return fail_at(p, p->at, "a hexadecimal digit is missing", PL_STR(""));
        *out = *out << 4 | (uint32_t)v;
    }
    return PL_OK;
}

/* One character of a literal or class: a code point. */
static pl_status read_char(parser *p, uint32_t *out)
{
    const char *from = p->at;
    if (p->at == p->end) return fail_at(p, p->at, "the text ends inside of a literal or class", PL_STR(""));
    if (*p->at == '\\') {
        p->at++;
        int c = peek(p);
        p->at += p->at < p->end;
        switch (c) {
        case 'x': PL_TRY(read_hex(p, 2, out)); break;
        case 'u': PL_TRY(read_hex(p, 4, out)); break;
        case 'U': PL_TRY(read_hex(p, 8, out)); break;
        case 't': *out = '\t'; break;
        case 'r': *out = '\r'; break;
        case 'n': *out = '\n'; break;
        case '\\':
        case '"':
        case '[':
        case ']':
        case '-':
        case '^': *out = (uint32_t)c; break;
        default: return fail_at(p, from, "no such escape: ", (pl_str){from, c < 0 ? 1 : 2});
        }
        if (*out > CODE_MAX || (*out >= 0xd800 && *out < 0xe000))
            return fail_at(p, from, "no character has this number: ", (pl_str){from, (size_t)(p->at - from)});
        return PL_OK;
    }
    size_t left = (size_t)(p->end - p->at), n = 0;
    uint8_t b = (uint8_t)*p->at;
    size_t size = b < 0x80 ? 1 : b < 0xe0 ? 2 : b < 0xf0 ? 3 : 4;
    if (size <= left) n = pl_utf8_valid_prefix((pl_str){p->at, size});
    if (n != size) return fail_at(p, from, "not UTF-8", PL_STR(""));
    *out = size == 1 ? b : b & (0xffu >> (size + 1));
    for (size_t i = 1; i < size; i++) *out = *out << 6 | ((uint8_t)p->at[i] & 0x3fu);
    p->at += size;
    return PL_OK;
}

static size_t put_utf8(uint32_t c, uint8_t out[4])
{
    if (c < 0x80) {
        out[0] = (uint8_t)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const uint8_t lead[5] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = n - 1; i > 0; i--, c >>= 6) out[i] = (uint8_t)(0x80 | (c & 0x3f));
    out[0] = (uint8_t)(lead[n] | c);
    return n;
}

/* --- nodes --- */

static node *new_node(parser *p, node_kind kind)
{
    node *n = PL_ARENA_NEW(&p->arena, node);
    if (n) n->kind = kind;
    return n;
}

static pl_status read_literal(parser *p, node **out)
{
    node *n = new_node(p, NODE_BYTES);
    /* No character takes more bytes than its spelling. */
    const char *close = ++p->at;
    while (close < p->end && *close != '"') close += *close == '\\' && close + 1 < p->end ? 2 : 1;
    uint8_t *bytes = pl_arena_alloc(&p->arena, (size_t)(close - p->at) + 4);
    if (!n || !bytes) return no_memory(p);
    size_t size = 0;
    while (peek(p) != '"') {
        uint32_t c;
        PL_TRY(read_char(p, &c));
        size += put_utf8(c, bytes + size);
    }
    p->at++;
    n->bytes = (pl_str){(const char *)bytes, size};
    *out = n;
    return PL_OK;
}

static int by_low(const void *a, const void *b)
{
    uint32_t x = ((const range *)a)->low, y = ((const range *)b)->low;
    return (x > y) - (x < y);
}

/* Ascending, apart, and turned round when negated; ranges has room for one more. */
static void settle_ranges(node *n, bool negated)
{
    qsort(n->ranges, (size_t)n->n_ranges, sizeof *n->ranges, by_low);
    int32_t k = 0;
    for (int32_t i = 0; i < n->n_ranges; i++) {
        if (k > 0 && n->ranges[i].low <= n->ranges[k - 1].high + 1) {
            if (n->ranges[i].high > n->ranges[k - 1].high) n->ranges[k - 1].high = n->ranges[i].high;
        } else {
            n->ranges[k++] = n->ranges[i];
        }
    }
    n->n_ranges = k;
    if (!negated) return;
    uint32_t from = 0;
    int32_t m = 0;
    for (int32_t i = 0; i < k; i++) {
        range r = n->ranges[i];
        if (r.low > from) n->ranges[m++] = (range){from, r.low - 1};
        from = r.high + 1;
    }
    if (from <= CODE_MAX) n->ranges[m++] = (range){from, CODE_MAX};
    n->n_ranges = m;
}

static pl_status read_class(parser *p, node **out)
{
    const char *from = p->at++, *close = p->at;
    node *n = new_node(p, NODE_CLASS);
    while (close < p->end && *close != ']') close += *close == '\\' && close + 1 < p->end ? 2 : 1;
    range *ranges = pl_arena_alloc(&p->arena, ((size_t)(close - p->at) + 2) * sizeof *ranges);
    if (!n || !ranges) return no_memory(p);
    bool negated = peek(p) == '^';
    p->at += negated;
    n->ranges = ranges;
    while (peek(p) != ']') {
        range r;
        const char *first = p->at;
        PL_TRY(read_char(p, &r.low));
        r.high = r.low;
        if (peek(p) == '-' && p->at + 1 < p->end && p->at[1] != ']') {
            p->at++;
            PL_TRY(read_char(p, &r.high));
        }
        if (r.high < r.low) return fail_at(p, first, "a range that ends before it begins", PL_STR(""));
        ranges[n->n_ranges++] = r;
    }
    p->at++;
    settle_ranges(n, negated);
    bool only_surrogates = n->n_ranges == 1 && n->ranges[0].low >= 0xd800 && n->ranges[0].high < 0xe000;
    if (n->n_ranges == 0 || only_surrogates) return fail_at(p, from, "a class that no character is in", PL_STR(""));
    *out = n;
    return PL_OK;
}

static pl_status read_any(parser *p, node **out)
{
    node *n = new_node(p, NODE_CLASS);
    range *all = PL_ARENA_NEW(&p->arena, range);
    if (!n || !all) return no_memory(p);
    p->at++;
    *all = (range){0, CODE_MAX};
    n->ranges = all;
    n->n_ranges = 1;
    *out = n;
    return PL_OK;
}

/* The number of the rule with this name, which is noted when it is new. */
static pl_status find_rule(parser *p, pl_str name, int32_t *out)
{
    uint64_t at;
    if (pl_map_get(&p->by_name, name, &at)) {
        *out = (int32_t)at;
        return PL_OK;
    }
    if (p->n_names == p->names_cap) {
        int32_t cap = p->names_cap ? 2 * p->names_cap : 32;
        named *grown = pl_realloc(p->names, (size_t)cap * sizeof *grown);
        if (!grown) return no_memory(p);
        p->names = grown;
        p->names_cap = cap;
    }
    if (!pl_map_set(&p->by_name, name, (uint64_t)p->n_names)) return no_memory(p);
    *out = p->n_names;
    p->names[p->n_names++] = (named){.name = name, .used_at = name.data};
    return PL_OK;
}

static pl_status read_choice(parser *p, bool lines, node **out);

static pl_status read_group(parser *p, node **out)
{
    const char *from = p->at++;
    if (p->depth == PL_GRAMMAR_NESTING) return fail_at(p, from, "groups are nested too deeply", PL_STR(""));
    p->depth++;
    skip_space(p, true);
    PL_TRY(read_choice(p, true, out));
    p->depth--;
    if (peek(p) != ')') return fail_at(p, p->at, "a closing parenthesis is missing", PL_STR(""));
    p->at++;
    return PL_OK;
}

static pl_status read_reference(parser *p, node **out)
{
    pl_str name = read_word(p);
    node *n = new_node(p, NODE_RULE);
    if (!n) return no_memory(p);
    *out = n;
    return find_rule(p, name, &n->rule);
}

static pl_status read_count(parser *p, int32_t *out)
{
    const char *from = p->at;
    int64_t v = 0;
    while (peek(p) >= '0' && peek(p) <= '9' && v <= REPEAT_MAX) v = v * 10 + (*p->at++ - '0');
    if (p->at == from) return fail_at(p, from, "a count is missing", PL_STR(""));
    if (v > REPEAT_MAX) return fail_at(p, from, "a count above 100000", PL_STR(""));
    *out = (int32_t)v;
    return PL_OK;
}

/* "{m}", "{m,}", "{m,n}", and "{,n}" as {0,n}. */
static pl_status read_braces(parser *p, int32_t *min, int32_t *max)
{
    const char *from = p->at++;
    skip_space(p, true);
    *min = 0;
    if (peek(p) != ',') PL_TRY(read_count(p, min));
    *max = *min;
    skip_space(p, true);
    if (peek(p) == ',') {
        p->at++;
        skip_space(p, true);
        *max = -1;
        if (peek(p) != '}') PL_TRY(read_count(p, max));
        skip_space(p, true);
    }
    if (peek(p) != '}') return fail_at(p, p->at, "a closing brace is missing", PL_STR(""));
    p->at++;
    if (*max >= 0 && *max < *min) return fail_at(p, from, "the highest count is below the lowest", PL_STR(""));
    return PL_OK;
}

static pl_status read_repeats(parser *p, bool lines, node **element)
{
    for (int n = 0;; n++) {
        int c = peek(p);
        int32_t min = 0, max = -1;
        if (c == '*' || c == '+' || c == '?') {
            p->at++;
            min = c == '+';
            max = c == '?' ? 1 : -1;
        } else if (c == '{') {
            PL_TRY(read_braces(p, &min, &max));
        } else {
            return PL_OK;
        }
        if (n == PL_GRAMMAR_NESTING) return fail_at(p, p->at, "repeated too often", PL_STR(""));
        node *r = new_node(p, NODE_REPEAT);
        if (!r) return no_memory(p);
        r->child = *element;
        r->min = min;
        r->max = max;
        *element = r;
        skip_space(p, lines);
    }
}

static pl_status read_sequence(parser *p, bool lines, node **out)
{
    node *n = *out = new_node(p, NODE_SEQUENCE), **last = n ? &n->child : NULL;
    if (!n) return no_memory(p);
    for (;;) {
        int c = peek(p);
        node *element;
        if (c == '"')
            PL_TRY(read_literal(p, &element));
        else if (c == '[')
            PL_TRY(read_class(p, &element));
        else if (c == '.')
            PL_TRY(read_any(p, &element));
        else if (c == '(')
            PL_TRY(read_group(p, &element));
        else if (is_word(c))
            PL_TRY(read_reference(p, &element));
        else if (c == '*' || c == '+' || c == '?' || c == '{')
            return fail_at(p, p->at, "there is nothing to repeat before ", (pl_str){p->at, 1});
        else
            return PL_OK;
        skip_space(p, lines);
        PL_TRY(read_repeats(p, lines, &element));
        *last = element;
        last = &element->next;
    }
}

/* Whether the next line goes on with "|". */
static bool choice_goes_on(parser *p)
{
    const char *before = p->at;
    skip_space(p, true);
    if (peek(p) == '|') return true;
    p->at = before;
    return false;
}

static pl_status read_choice(parser *p, bool lines, node **out)
{
    node *n = *out = new_node(p, NODE_CHOICE), **last = n ? &n->child : NULL;
    if (!n) return no_memory(p);
    for (;;) {
        PL_TRY(read_sequence(p, lines, last));
        if (!choice_goes_on(p)) return PL_OK;
        p->at++;
        skip_space(p, true);
        last = &(*last)->next;
    }
}

static pl_status read_rule(parser *p)
{
    const char *from = p->at;
    pl_str name = read_word(p);
    int32_t at;
    if (name.size == 0) return fail_at(p, from, "a rule's name is missing", PL_STR(""));
    PL_TRY(find_rule(p, name, &at));
    if (p->names[at].body) return fail_at(p, from, "there is already a rule ", name);
    skip_space(p, false);
    if (p->end - p->at < 3 || memcmp(p->at, "::=", 3) != 0) return fail_at(p, p->at, "::= is missing behind ", name);
    p->at += 3;
    skip_space(p, true);
    node *body;
    PL_TRY(read_choice(p, false, &body));
    p->names[at].body = body;
    int c = peek(p);
    if (c >= 0 && c != '\n' && c != '\r') return fail_at(p, p->at, "not understood: ", (pl_str){p->at, 1});
    skip_space(p, true);
    return PL_OK;
}

static pl_status read_all(parser *p)
{
    if (p->text.size > 0 && memchr(p->text.data, 0, p->text.size))
        return fail_at(p, memchr(p->text.data, 0, p->text.size), "a zero byte", PL_STR(""));
    skip_space(p, true);
    while (p->at < p->end) PL_TRY(read_rule(p));
    for (int32_t i = 0; i < p->n_names; i++)
        if (!p->names[i].body) return fail_at(p, p->names[i].used_at, "there is no rule ", p->names[i].name);
    uint64_t root;
    if (!pl_map_get(&p->by_name, PL_STR("root"), &root)) return fail_at(p, p->end, "there is no rule root", PL_STR(""));
    p->g->root = (int32_t)root;
    return PL_OK;
}

/* --- the automaton --- */

static pl_status add_state(parser *p, int32_t *out)
{
    pl_grammar *g = p->g;
    if (g->n_states == PL_GRAMMAR_STATES_MAX)
        return pl_fail(p->err, PL_ERR_BUDGET, "grammar: it needs more than %d states; large counts make many",
                       PL_GRAMMAR_STATES_MAX);
    if (g->n_states == g->states_cap) {
        int32_t cap = g->states_cap ? 2 * g->states_cap : 256;
        int32_t *first = pl_realloc(g->first, (size_t)cap * sizeof *first);
        if (first) g->first = first;
        int32_t *end_of = pl_realloc(g->end_of, (size_t)cap * sizeof *end_of);
        if (end_of) g->end_of = end_of;
        if (!first || !end_of) return no_memory(p);
        g->states_cap = cap;
    }
    g->first[g->n_states] = g->end_of[g->n_states] = -1;
    *out = g->n_states++;
    return PL_OK;
}

static pl_status add_edge(parser *p, int32_t from, pl_edge edge)
{
    pl_grammar *g = p->g;
    if (g->n_edges == g->edges_cap) {
        int32_t cap = g->edges_cap ? 2 * g->edges_cap : 512;
        pl_edge *edges = pl_realloc(g->edges, (size_t)cap * sizeof *edges);
        if (!edges) return no_memory(p);
        g->edges = edges;
        g->edges_cap = cap;
    }
    edge.next = g->first[from];
    g->edges[g->n_edges] = edge;
    g->first[from] = g->n_edges++;
    return PL_OK;
}

static pl_status add_empty(parser *p, int32_t from, int32_t to)
{
    return add_edge(p, from, (pl_edge){.kind = PL_EDGE_EMPTY, .target = to});
}

static pl_status add_bytes(parser *p, int32_t from, int32_t to, uint8_t low, uint8_t high)
{
    return add_edge(p, from, (pl_edge){.kind = PL_EDGE_BYTES, .target = to, .low = low, .high = high});
}

static pl_status new_rule(parser *p, int32_t *out)
{
    pl_grammar *g = p->g;
    if (g->n_rules == g->rules_cap) {
        int32_t cap = g->rules_cap ? 2 * g->rules_cap : 32;
        pl_rule *rules = pl_realloc(g->rules, (size_t)cap * sizeof *rules);
        if (!rules) return no_memory(p);
        g->rules = rules;
        g->rules_cap = cap;
    }
    pl_rule r;
    PL_TRY(add_state(p, &r.start));
    PL_TRY(add_state(p, &r.end));
    g->end_of[r.end] = g->n_rules;
    g->rules[g->n_rules] = r;
    *out = g->n_rules++;
    return PL_OK;
}

/* The characters low..high, which take equally many bytes. tails[k]: the state from which k more bytes of any
 * continuation lead to `to`; -1: not made yet. */
static pl_status add_codes(parser *p, int32_t from, int32_t to, uint32_t low, uint32_t high, int32_t tails[4])
{
    uint8_t a[4], b[4];
    size_t size = put_utf8(low, a);
    put_utf8(high, b);
    /* Split until all bytes but the first that differs run over their whole range. */
    for (size_t i = 1; i < size; i++) {
        uint32_t m = (1u << (6 * i)) - 1;
        if ((low & ~m) == (high & ~m)) continue;
        if (low & m) {
            PL_TRY(add_codes(p, from, to, low, low | m, tails));
            return add_codes(p, from, to, (low | m) + 1, high, tails);
        }
        if ((high & m) != m) {
            PL_TRY(add_codes(p, from, to, low, (high & ~m) - 1, tails));
            return add_codes(p, from, to, high & ~m, high, tails);
        }
    }
    size_t whole = 0; /* how many bytes at the end may be any continuation */
    while (whole + 1 < size && a[size - 1 - whole] == 0x80 && b[size - 1 - whole] == 0xbf) whole++;
    for (size_t k = 1; k <= whole; k++) {
        if (tails[k] >= 0) continue;
        PL_TRY(add_state(p, &tails[k]));
        PL_TRY(add_bytes(p, tails[k], k == 1 ? to : tails[k - 1], 0x80, 0xbf));
    }
    for (size_t i = 0; i + whole < size; i++) {
        int32_t next = whole > 0 ? tails[whole] : to;
        if (i + whole + 1 < size) PL_TRY(add_state(p, &next));
        PL_TRY(add_bytes(p, from, next, a[i], b[i]));
        from = next;
    }
    return PL_OK;
}

static pl_status add_class(parser *p, const node *n, int32_t from, int32_t to)
{
    /* Where the number of bytes changes; between the last two of the first row are no characters. */
    static const range sizes[] = {{0, 0x7f}, {0x80, 0x7ff}, {0x800, 0xd7ff}, {0xe000, 0xffff}, {0x10000, CODE_MAX}};
    int32_t tails[4] = {-1, -1, -1, -1};
    for (int32_t i = 0; i < n->n_ranges; i++)
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            uint32_t low = n->ranges[i].low > sizes[k].low ? n->ranges[i].low : sizes[k].low;
            uint32_t high = n->ranges[i].high < sizes[k].high ? n->ranges[i].high : sizes[k].high;
            if (low <= high) PL_TRY(add_codes(p, from, to, low, high, tails));
        }
    return PL_OK;
}

/* About how many states a node takes, at most a little above INLINE_STATES. */
static int weight_of(const node *n)
{
    int w = 1;
    switch (n->kind) {
    case NODE_BYTES: return n->bytes.size > INLINE_STATES ? INLINE_STATES + 1 : (int)n->bytes.size;
    case NODE_CLASS: return n->ranges[n->n_ranges - 1].high < 0x80 ? 1 : INLINE_STATES / 2;
    case NODE_RULE: return 1;
    case NODE_REPEAT: return n->max > INLINE_STATES || n->min > INLINE_STATES ? INLINE_STATES + 1 : INLINE_STATES / 2;
    case NODE_SEQUENCE:
    case NODE_CHOICE:
        for (const node *c = n->child; c && w <= INLINE_STATES; c = c->next) w += weight_of(c);
        return w;
    }
    return w;
}

static pl_status add_node(parser *p, const node *n, int32_t from, int32_t to);

static pl_status add_repeat(parser *p, const node *n, int32_t from, int32_t to)
{
    node call = {.kind = NODE_RULE};
    const node *child = n->child;
    int32_t copies = n->max > n->min ? n->max : n->min;
    if (copies > 2 && weight_of(child) > INLINE_STATES) {
        PL_TRY(new_rule(p, &call.rule));
        pl_rule r = p->g->rules[call.rule];
        PL_TRY(add_node(p, child, r.start, r.end));
        child = &call;
    }
    int32_t at;
    PL_TRY(add_state(p, &at));
    PL_TRY(add_empty(p, from, at));
    for (int32_t i = 0; i < copies; i++) {
        int32_t next;
        PL_TRY(add_state(p, &next));
        PL_TRY(add_node(p, child, at, next));
        if (i >= n->min) PL_TRY(add_empty(p, at, to));
        at = next;
    }
    if (n->max < 0) {
        int32_t again;
        PL_TRY(add_state(p, &again));
        PL_TRY(add_node(p, child, at, again));
        PL_TRY(add_empty(p, again, at));
    }
    return add_empty(p, at, to);
}

static pl_status add_node(parser *p, const node *n, int32_t from, int32_t to)
{
    switch (n->kind) {
    case NODE_SEQUENCE:
        for (const node *c = n->child; c; c = c->next) {
            int32_t next = to;
            if (c->next) PL_TRY(add_state(p, &next));
            PL_TRY(add_node(p, c, from, next));
            from = next;
        }
        return n->child ? PL_OK : add_empty(p, from, to);
    case NODE_CHOICE:
        for (const node *c = n->child; c; c = c->next) PL_TRY(add_node(p, c, from, to));
        return PL_OK;
    case NODE_REPEAT: return add_repeat(p, n, from, to);
    case NODE_BYTES:
        for (size_t i = 0; i < n->bytes.size; i++) {
            int32_t next = to;
            uint8_t b = (uint8_t)n->bytes.data[i];
            if (i + 1 < n->bytes.size) PL_TRY(add_state(p, &next));
            PL_TRY(add_bytes(p, from, next, b, b));
            from = next;
        }
        return n->bytes.size > 0 ? PL_OK : add_empty(p, from, to);
    case NODE_CLASS: return add_class(p, n, from, to);
    case NODE_RULE: return add_edge(p, from, (pl_edge){.kind = PL_EDGE_CALL, .target = to, .rule = n->rule});
    }
    return PL_OK;
}

static pl_status build(parser *p)
{
    int32_t at;
    /* The rules with names have their numbers; those that repetitions make come behind. */
    for (int32_t i = 0; i < p->n_names; i++) PL_TRY(new_rule(p, &at));
    for (int32_t i = 0; i < p->n_names; i++) {
        pl_rule r = p->g->rules[i];
        PL_TRY(add_node(p, p->names[i].body, r.start, r.end));
    }
    return PL_OK;
}

/* --- what is known of it --- */

/* Refuses rules that call themselves before anything is read: depth first through all that a rule's start comes to
 * without reading. Whether a callee can end without reading is known when it has been left, and in a cycle, where it
 * would not be, the grammar is refused anyway; so each edge is looked at once. */
typedef struct frame {
    int32_t rule, base; /* its states on the stack are those from base on */
    int32_t edge;       /* the next one to look at, -1: that of another state */
} frame;

enum { NEW, OPEN, DONE };

static pl_status walk_rules(parser *p, int32_t root, frame *frames, int32_t *stack, uint8_t *seen, uint8_t *colour,
                            uint8_t *nullable)
{
    const pl_grammar *g = p->g;
    int32_t depth = 1, n = 0;
    frames[0] = (frame){root, 0, -1};
    stack[n++] = g->rules[root].start;
    colour[root] = OPEN;
    while (depth > 0) {
        frame *f = &frames[depth - 1];
        if (f->edge < 0 && n == f->base) {
            colour[f->rule] = DONE;
            depth--;
            continue;
        }
        if (f->edge < 0) {
            int32_t s = stack[--n];
            if (s == g->rules[f->rule].end) nullable[f->rule] = 1;
            f->edge = g->first[s];
            continue;
        }
        const pl_edge *e = &g->edges[f->edge];
        if (e->kind == PL_EDGE_CALL && colour[e->rule] == OPEN) {
            pl_str name = e->rule < p->n_names ? p->names[e->rule].name : PL_STR("of a repetition");
            return pl_fail(p->err, PL_ERR_INVALID, "grammar: the rule %.*s calls itself before it has read anything",
                           (int)(name.size < 64 ? name.size : 64), name.data);
        }
        if (e->kind == PL_EDGE_CALL && colour[e->rule] == NEW) {
            frames[depth++] = (frame){e->rule, n, -1};
            stack[n++] = g->rules[e->rule].start;
            colour[e->rule] = OPEN;
            continue;
        }
        f->edge = e->next;
        if (e->kind == PL_EDGE_BYTES || (e->kind == PL_EDGE_CALL && !nullable[e->rule]) || seen[e->target]) continue;
        seen[e->target] = 1;
        stack[n++] = e->target;
    }
    return PL_OK;
}

static pl_status refuse_left_recursion(parser *p)
{
    const pl_grammar *g = p->g;
    size_t n_rules = (size_t)g->n_rules, n_states = (size_t)g->n_states;
    frame *frames = pl_calloc(n_rules, sizeof *frames);
    int32_t *stack = pl_calloc(n_states, sizeof *stack);
    uint8_t *flags = pl_calloc(n_states + 2 * n_rules, 1);
    pl_status status = frames && stack && flags ? PL_OK : no_memory(p);
    for (int32_t r = 0; r < g->n_rules && status == PL_OK; r++) {
        uint8_t *colour = flags + n_states;
        if (colour[r] == NEW) status = walk_rules(p, r, frames, stack, flags, colour, colour + n_rules);
    }
    pl_free(frames);
    pl_free(stack);
    pl_free(flags);
    return status;
}

/* Where nothing is left to do but to return: such a call needs no place to come back to, and so a rule that ends with
 * itself runs without growing. Missing one costs memory only, so a few rounds have to do. */
static void find_tails(pl_grammar *g)
{
    bool changed = true;
    for (int round = 0; changed && round < 8; round++) {
        changed = false;
        for (int32_t s = g->n_states - 1; s >= 0; s--) {
            if (g->tail[s]) continue;
            int32_t e = g->first[s];
            bool only = e >= 0 && g->edges[e].next < 0 && g->edges[e].kind == PL_EDGE_EMPTY;
            if (g->end_of[s] < 0 && !(only && g->tail[g->edges[e].target])) continue;
            g->tail[s] = 1;
            changed = true;
        }
    }
}

static void find_classes(pl_grammar *g)
{
    /* A class begins where some edge begins, or ends before. */
    uint8_t begins[257] = {1};
    for (int32_t i = 0; i < g->n_edges; i++) {
        if (g->edges[i].kind != PL_EDGE_BYTES) continue;
        begins[g->edges[i].low] = 1;
        begins[g->edges[i].high + 1] = 1;
    }
    int32_t n = -1;
    for (int b = 0; b < 256; b++) {
        n += begins[b];
        g->class_of[b] = (uint8_t)n;
    }
    g->n_classes = n + 1;
}

static pl_status survey(parser *p)
{
    pl_grammar *g = p->g;
    PL_TRY(refuse_left_recursion(p));
    g->tail = pl_calloc((size_t)g->n_states, 1);
    if (!g->tail) return no_memory(p);
    find_tails(g);
    find_classes(g);
    return PL_OK;
}

pl_status pl_grammar_new(pl_grammar **out, pl_str gbnf, pl_error *err)
{
    *out = NULL;
    pl_grammar *g = pl_calloc(1, sizeof *g);
    if (!g) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for a grammar");
    parser p = {
        .text = gbnf, .at = gbnf.data, .end = gbnf.size ? gbnf.data + gbnf.size : gbnf.data, .g = g, .err = err};
    pl_arena_init(&p.arena, 0);
    pl_status status = read_all(&p);
    if (status == PL_OK) status = build(&p);
    if (status == PL_OK) status = survey(&p);
    pl_arena_fini(&p.arena);
    pl_map_fini(&p.by_name);
    pl_free(p.names);
    if (status != PL_OK) {
        pl_grammar_free(g);
        return status;
    }
    *out = g;
    return PL_OK;
}

void pl_grammar_free(pl_grammar *g)
{
    if (!g) return;
    pl_free(g->first);
    pl_free(g->end_of);
    pl_free(g->tail);
    pl_free(g->edges);
    pl_free(g->rules);
    pl_free(g);
}

size_t pl_grammar_bytes(const pl_grammar *g)
{
    return sizeof *g + (size_t)g->states_cap * (2 * sizeof(int32_t) + 1) + (size_t)g->edges_cap * sizeof *g->edges +
           (size_t)g->rules_cap * sizeof *g->rules;
}
