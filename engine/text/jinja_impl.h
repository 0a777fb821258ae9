/* The parts of the interpreter, private to this folder: jinja_lex.c makes tokens, jinja_parse.c a tree, jinja_eval.c
 * walks it with the values of jinja_value.c and the filters, tests and methods of jinja_builtin.c. */
#pragma once

#include "engine/base/arena.h"
#include "engine/text/jinja.h"

/* ---- tokens ---- */

typedef enum {
    PL_JT_EOF,
    PL_JT_DATA,
    PL_JT_VAR_BEGIN,
    PL_JT_VAR_END,
    PL_JT_BLOCK_BEGIN,
    PL_JT_BLOCK_END,
    PL_JT_NAME,
    PL_JT_STRING,
    PL_JT_INT,
    PL_JT_FLOAT,
    PL_JT_OP
} pl_jtoken_kind;

#define PL_JOP(a, b) ((a) | (b) << 8)

typedef struct pl_jtoken {
    pl_jtoken_kind kind;
    int op;        /* of PL_JT_OP: PL_JOP of its characters */
    int line, col; /* from 1 */
    pl_str text;   /* a string's value, a name, data */
    int64_t i;
    double f;
} pl_jtoken;

/* All tokens of source, ended by PL_JT_EOF, in the arena. */
PL_MUST_CHECK pl_status pl_jinja_lex(pl_arena *a, pl_str source, pl_jtoken **out, pl_error *err);
/* The size of the white-space character (as Python sees it) at the start or end of s; 0 when there is none. */
size_t pl_jinja_space_at(pl_str s);
size_t pl_jinja_space_before(pl_str s);

/* ---- values ---- */

typedef enum {
    PL_JV_MISSING, /* no value at all: an argument that was not given */
    PL_JV_UNDEFINED,
    PL_JV_NONE,
    PL_JV_BOOL,
    PL_JV_INT,
    PL_JV_FLOAT,
    PL_JV_STRING,
    PL_JV_LIST,
    PL_JV_TUPLE,
    PL_JV_GENERATOR, /* a generator is true, has no length and no index */
    PL_JV_DICT,
    PL_JV_NAMESPACE,
    PL_JV_LOOP,
    PL_JV_MACRO,
    PL_JV_FUNCTION,
    PL_JV_METHOD
} pl_jkind;

typedef struct pl_jvalue pl_jvalue;
typedef struct pl_jlist {
    pl_jvalue *at;
    size_t n, cap;
} pl_jlist;
typedef struct pl_jpair pl_jpair;
typedef struct pl_jdict {
    pl_jpair *at;
    size_t n, cap;
} pl_jdict;
typedef struct pl_jloop pl_jloop;
typedef struct pl_jmacro pl_jmacro;
typedef struct pl_jmethod pl_jmethod;

struct pl_jvalue {
    uint8_t kind;
    bool safe; /* a string that is marked as HTML */
    union {
        bool b;
        int64_t i;
        double f;
        pl_str s; /* also the sentence about an undefined value */
        pl_jlist *list;
        pl_jdict *dict; /* also of a namespace */
        pl_jloop *loop;
        pl_jmacro *macro;
        pl_jmethod *method;
        int function;
    } u;
};
struct pl_jpair {
    pl_jvalue key, value;
};
struct pl_jmethod {
    pl_jvalue self;
    pl_str name;
};

/* ---- the tree ---- */

typedef enum {
    PL_JN_CONST,
    PL_JN_NAME,
    PL_JN_TUPLE,
    PL_JN_LIST,
    PL_JN_DICT,
    PL_JN_COND,
    PL_JN_OR,
    PL_JN_AND,
    PL_JN_NOT,
    PL_JN_COMPARE,
    PL_JN_CONCAT,
    PL_JN_BINARY,
    PL_JN_NEGATE,
    PL_JN_PLUS,
    PL_JN_ATTR,
    PL_JN_ITEM,
    PL_JN_SLICE,
    PL_JN_CALL,
    PL_JN_FILTER,
    PL_JN_TEST,
    PL_JN_DATA,
    PL_JN_OUTPUT,
    PL_JN_FOR,
    PL_JN_IF,
    PL_JN_SET,
    PL_JN_SET_BLOCK,
    PL_JN_MACRO,
    PL_JN_CALL_BLOCK,
    PL_JN_FILTER_BLOCK,
    PL_JN_WITH,
    PL_JN_SCOPE,
    PL_JN_BREAK,
    PL_JN_CONTINUE
} pl_jnode_kind;

/* Comparison operators and +, -, … are PL_JOP numbers; these two are words. */
enum { PL_JOP_IN = 1, PL_JOP_NOT_IN = 2 };

typedef struct pl_jnode pl_jnode;
typedef struct pl_jnodes {
    pl_jnode **at;
    size_t n, cap;
} pl_jnodes;
struct pl_jnode {
    pl_jnode_kind kind;
    int line, col, op;
    bool recursive;
    pl_str name;     /* of a name, attribute, filter, test, macro, data; of a keyword argument */
    pl_jvalue value; /* of a constant */
    pl_jnode *a, *b, *c;
    pl_jnodes list;     /* elements, operands, positional arguments, parameters */
    pl_jnodes keywords; /* nodes whose name is the keyword and a its value; defaults of parameters (NULL for none) */
    pl_jnode *star, *star_star;
    pl_jnodes body, other; /* statements; of else */
};

struct pl_jinja {
    pl_arena arena;
    pl_jnodes body;
};

PL_MUST_CHECK pl_status pl_jinja_parse(pl_jinja *t, const pl_jtoken *tokens, pl_error *err);

/* ---- evaluation ---- */

typedef struct pl_jscope pl_jscope;
typedef struct pl_jeval {
    pl_arena arena;
    pl_jinja_limits limits;
    uint64_t steps;
    size_t memory;
    int depth;
    pl_buf *out;
    size_t out_start;
    pl_status status; /* the first failure; from then on nothing more is done */
    pl_error *err;
    const pl_jnode *at; /* what is being evaluated, for errors */
} pl_jeval;

/* The arguments of a call. */
typedef struct pl_jcall {
    const pl_jvalue *args;
    size_t n;
    const pl_jpair *keywords; /* keys are strings */
    size_t n_keywords;
} pl_jcall;

struct pl_jloop {
    const pl_jlist *items;
    size_t index;
    int depth;
    pl_jvalue changed;    /* the last arguments of loop.changed, a tuple */
    const pl_jnode *node; /* of a recursive loop */
    pl_jscope *scope;
};

/* Ends the evaluation with this error, at e->at; gives an undefined value. */
pl_jvalue pl_jfail(pl_jeval *e, pl_status s, const char *fmt, ...) PL_PRINTF(3, 4);
/* Counts work; false when the bound is reached or something failed before. */
bool pl_jstep(pl_jeval *e, size_t n);
/* NULL, with the evaluation failed, when there is no memory. */
void *pl_jalloc(pl_jeval *e, size_t size);

pl_jvalue pl_jv_bool(bool b);
pl_jvalue pl_jv_int(int64_t i);
pl_jvalue pl_jv_float(double f);
pl_jvalue pl_jv_none(void);
pl_jvalue pl_jv_borrow(pl_str s);              /* s lives as long as the evaluation */
pl_jvalue pl_jv_string(pl_jeval *e, pl_str s); /* a copy */
pl_jvalue pl_jv_take(pl_jeval *e, pl_buf *b);  /* a copy of b, which is emptied and freed */
pl_jvalue pl_jv_undefined(pl_jeval *e, const char *fmt, ...) PL_PRINTF(2, 3);
pl_jvalue pl_jv_sequence(pl_jeval *e, pl_jkind kind);
pl_jvalue pl_jv_pair(pl_jeval *e, pl_jvalue a, pl_jvalue b); /* a tuple of two */
pl_jvalue pl_jv_dict(pl_jeval *e, pl_jkind kind);
void pl_jv_push(pl_jeval *e, pl_jvalue sequence, pl_jvalue v);
void pl_jv_put(pl_jeval *e, pl_jvalue dict, pl_jvalue key, pl_jvalue v);
const pl_jvalue *pl_jv_lookup(pl_jeval *e, const pl_jdict *d, pl_jvalue key); /* NULL when absent */
pl_jvalue pl_jv_json(pl_jeval *e, const pl_json *j, int depth);

const char *pl_jv_type(pl_jvalue v); /* Python's name for the type */
bool pl_jv_is_sequence(pl_jvalue v);
bool pl_jv_is_number(pl_jvalue v); /* bool too */
bool pl_jv_truth(pl_jvalue v);
bool pl_jv_equal(pl_jeval *e, pl_jvalue a, pl_jvalue b);
/* -1, 0, 1; fails for kinds that have no order. */
int pl_jv_compare(pl_jeval *e, pl_jvalue a, pl_jvalue b);
bool pl_jv_contains(pl_jeval *e, pl_jvalue all, pl_jvalue one);
/* What a loop over v sees. Fails for what cannot be walked. */
const pl_jlist *pl_jv_items(pl_jeval *e, pl_jvalue v);
/* str(v): borrowed where v is a string. repr(v) is what containers show of their elements. */
pl_str pl_jv_str(pl_jeval *e, pl_jvalue v);
void pl_jv_repr(pl_jeval *e, pl_jvalue v, int depth, pl_buf *out);
void pl_jv_tojson(pl_jeval *e, pl_jvalue v, int indent, pl_str item_sep, pl_str key_sep, bool ascii, bool sort,
                  int level, pl_buf *out);
size_t pl_jv_chars(pl_str s); /* characters of UTF-8 */
/* The bytes of characters [from, to) of s. */
pl_str pl_jv_chars_at(pl_str s, size_t from, size_t to);
/* v[at] and v[from:to:step], missing bounds are PL_JV_MISSING or none. */
pl_jvalue pl_jv_index(pl_jeval *e, pl_jvalue v, pl_jvalue at);
pl_jvalue pl_jv_slice(pl_jeval *e, pl_jvalue v, pl_jvalue from, pl_jvalue to, pl_jvalue step);
/* v.name with attributes first, v["name"] with items first; undefined when there is neither. */
pl_jvalue pl_jv_attr(pl_jeval *e, pl_jvalue v, pl_str name, bool attribute_first);
pl_jvalue pl_jv_binary(pl_jeval *e, int op, pl_jvalue a, pl_jvalue b);
pl_jvalue pl_jv_format(pl_jeval *e, pl_str fmt, pl_jvalue args); /* fmt % args */
void pl_jv_escape(pl_str s, pl_buf *out);                        /* for HTML */

pl_jvalue pl_jinja_call(pl_jeval *e, pl_jvalue f, const pl_jcall *c);
pl_jvalue pl_jinja_filter(pl_jeval *e, pl_str name, pl_jvalue v, const pl_jcall *c);
bool pl_jinja_test(pl_jeval *e, pl_str name, pl_jvalue v, const pl_jcall *c);
pl_jvalue pl_jinja_method(pl_jeval *e, const pl_jmethod *m, const pl_jcall *c);
/* The functions that every template sees; -1 when there is none of this name. */
int pl_jinja_function(pl_str name);
pl_jvalue pl_jinja_call_function(pl_jeval *e, int function, const pl_jcall *c);
