/* The automaton that gbnf.c builds and automaton.c runs: states, edges between them, and rules, which are pieces of it
 * with a beginning and an end. A call remembers where to go on; so a place is a set of (state, stack of states). */
#pragma once

#include "engine/sample/grammar.h"

typedef enum { PL_EDGE_BYTES, PL_EDGE_EMPTY, PL_EDGE_CALL } pl_edge_kind;
typedef struct pl_edge {
    int32_t next; /* of the same state, -1: none */
    int32_t target;
    int32_t rule; /* CALL */
    uint8_t kind, low, high;
} pl_edge;

typedef struct pl_rule {
    int32_t start, end; /* end has no edges */
} pl_rule;

struct pl_grammar {
    int32_t *first;  /* [n_states] the first edge, -1: none */
    int32_t *end_of; /* [n_states] the rule that ends here, -1: none */
    uint8_t *tail;   /* [n_states] from here only the rule's end can be reached, without reading */
    pl_edge *edges;
    pl_rule *rules;
    int32_t n_states, states_cap, n_edges, edges_cap, n_rules, rules_cap, root;
    uint8_t class_of[256]; /* bytes that no edge tells apart */
    int32_t n_classes;
};
