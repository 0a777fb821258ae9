/* Walks the tree. After the first failure everything becomes undefined and every loop ends, so that no step has to ask.
 */
#include <inttypes.h>

#include "engine/base/alloc.h"
#include "engine/text/jinja_impl.h"

/* Calls of macros and recursive loops inside each other; each takes some kilobytes of stack. */
#define DEPTH_MAX 200

typedef struct var {
    pl_str name;
    pl_jvalue value;
} var;

struct pl_jscope {
    pl_jscope *parent;
    var *vars;
    size_t n, cap;
};

struct pl_jmacro {
    const pl_jnode *node;
    pl_jscope *scope;
};

typedef enum { NEXT, BREAK, CONTINUE } flow;

static pl_jvalue eval(pl_jeval *e, pl_jscope *s, const pl_jnode *n);
static flow exec_all(pl_jeval *e, pl_jscope *s, const pl_jnodes *body);
static void loop_over(pl_jeval *e, pl_jscope *s, const pl_jnode *n, pl_jvalue over, int depth);

/* ---- scopes ---- */

static void set(pl_jeval *e, pl_jscope *s, pl_str name, pl_jvalue v)
{
    for (size_t i = 0; i < s->n; i++) {
        if (!pl_str_eq(s->vars[i].name, name)) continue;
        s->vars[i].value = v;
        return;
    }
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 4;
        var *vars = pl_jalloc(e, cap * sizeof *vars);
        if (!vars) return;
        if (s->n) memcpy(vars, s->vars, s->n * sizeof *vars);
        s->vars = vars;
        s->cap = cap;
    }
    s->vars[s->n++] = (var){name, v};
}

static pl_jvalue get(pl_jeval *e, const pl_jscope *s, pl_str name)
{
    for (; s; s = s->parent) {
        pl_jstep(e, s->n / 8);
        for (size_t i = 0; i < s->n; i++) {
            if (pl_str_eq(s->vars[i].name, name)) return s->vars[i].value;
        }
    }
    int f = pl_jinja_function(name);
    if (f >= 0) return (pl_jvalue){.kind = PL_JV_FUNCTION, .u.function = f};
    return pl_jv_undefined(e, "'%.*s' is undefined", name.size > 100 ? 100 : (int)name.size, name.data);
}

static void assign(pl_jeval *e, pl_jscope *s, const pl_jnode *target, pl_jvalue v)
{
    e->at = target;
    if (target->kind == PL_JN_NAME) {
        set(e, s, target->name, v);
    } else if (target->kind == PL_JN_ATTR) {
        pl_jvalue ns = get(e, s, target->a->name);
        if (ns.kind != PL_JV_NAMESPACE)
            pl_jfail(e, PL_ERR_INVALID, "only a namespace has attributes that can be set, not a %s", pl_jv_type(ns));
        else
            pl_jv_put(e, ns, pl_jv_borrow(target->name), v);
    } else {
        const pl_jlist *items = pl_jv_items(e, v);
        if (e->status != PL_OK) return;
        if (items->n != target->list.n) {
            pl_jfail(e, PL_ERR_INVALID, "%zu values for %zu names", items->n, target->list.n);
            return;
        }
        for (size_t i = 0; i < items->n; i++) assign(e, s, target->list.at[i], items->at[i]);
    }
}

/* ---- calls ---- */

typedef struct capture {
    pl_buf text, *old;
    size_t old_start;
} capture;

static void capture_begin(pl_jeval *e, capture *c)
{
    c->text = (pl_buf){0};
    c->old = e->out;
    c->old_start = e->out_start;
    e->out = &c->text;
    e->out_start = 0;
}
static pl_jvalue capture_end(pl_jeval *e, capture *c)
{
    e->out = c->old;
    e->out_start = c->old_start;
    return pl_jv_take(e, &c->text);
}

static bool enter(pl_jeval *e)
{
    if (e->depth >= DEPTH_MAX) pl_jfail(e, PL_ERR_BUDGET, "calls and blocks are nested more than %d deep", DEPTH_MAX);
    if (e->status != PL_OK) return false;
    e->depth++;
    return true;
}

static pl_jvalue call_macro(pl_jeval *e, const pl_jmacro *m, const pl_jcall *c)
{
    pl_jscope s = {.parent = m->scope};
    const pl_jnode *n = m->node, *at = e->at;
    pl_jvalue more = pl_jv_sequence(e, PL_JV_TUPLE), named = pl_jv_dict(e, PL_JV_DICT);
    for (size_t k = 0; k < c->n_keywords; k++) {
        bool known = false;
        for (size_t i = 0; i < n->list.n; i++) known = known || pl_str_eq(n->list.at[i]->name, c->keywords[k].key.u.s);
        if (pl_str_is(c->keywords[k].key.u.s, "caller"))
            set(e, &s, PL_STR("caller"), c->keywords[k].value);
        else if (!known)
            pl_jv_put(e, named, c->keywords[k].key, c->keywords[k].value);
    }
    for (size_t i = n->list.n; i < c->n; i++) pl_jv_push(e, more, c->args[i]);
    set(e, &s, PL_STR("varargs"), more);
    set(e, &s, PL_STR("kwargs"), named);
    for (size_t i = 0; i < n->list.n && e->status == PL_OK; i++) {
        pl_str name = n->list.at[i]->name;
        pl_jvalue v = {.kind = PL_JV_MISSING};
        if (i < c->n) v = c->args[i];
        for (size_t k = 0; k < c->n_keywords && v.kind == PL_JV_MISSING; k++) {
            if (pl_str_eq(c->keywords[k].key.u.s, name)) v = c->keywords[k].value;
        }
        if (v.kind == PL_JV_MISSING && n->keywords.at[i])
            v = eval(e, &s, n->keywords.at[i]);
        else if (v.kind == PL_JV_MISSING)
            v = pl_jv_undefined(e, "parameter '%.*s' was not provided", PL_STR_ARG(name));
        set(e, &s, name, v);
    }
    if (!enter(e)) return (pl_jvalue){.kind = PL_JV_UNDEFINED};
    capture cap;
    capture_begin(e, &cap);
    exec_all(e, &s, &n->body);
    e->depth--;
    e->at = at;
    return capture_end(e, &cap);
}

pl_jvalue pl_jinja_call(pl_jeval *e, pl_jvalue f, const pl_jcall *c)
{
    if (e->status != PL_OK) return (pl_jvalue){.kind = PL_JV_UNDEFINED};
    switch ((pl_jkind)f.kind) {
    case PL_JV_MACRO: return call_macro(e, f.u.macro, c);
    case PL_JV_FUNCTION: return pl_jinja_call_function(e, f.u.function, c);
    case PL_JV_METHOD: return pl_jinja_method(e, f.u.method, c);
    case PL_JV_LOOP: {
        if (!f.u.loop->node || c->n != 1)
            return pl_jfail(e, PL_ERR_INVALID, "only a recursive loop can be called, with what it shall walk");
        if (!enter(e)) return f;
        capture cap;
        const pl_jnode *at = e->at;
        capture_begin(e, &cap);
        loop_over(e, f.u.loop->scope, f.u.loop->node, c->args[0], f.u.loop->depth + 1);
        e->depth--;
        e->at = at;
        return capture_end(e, &cap);
    }
    case PL_JV_UNDEFINED: return pl_jfail(e, PL_ERR_INVALID, "%.*s", PL_STR_ARG(f.u.s));
    default: return pl_jfail(e, PL_ERR_INVALID, "a %s cannot be called", pl_jv_type(f));
    }
}

/* Evaluates the arguments of n; more is a keyword argument to add, or NULL. */
static void arguments(pl_jeval *e, pl_jscope *s, const pl_jnode *n, const pl_jpair *more, pl_jcall *out)
{
    *out = (pl_jcall){0};
    if (n->list.n + n->keywords.n == 0 && !n->star && !n->star_star && !more) return;
    pl_jvalue args = pl_jv_sequence(e, PL_JV_TUPLE), keywords = pl_jv_dict(e, PL_JV_DICT);
    for (size_t i = 0; i < n->list.n; i++) pl_jv_push(e, args, eval(e, s, n->list.at[i]));
    if (n->star) {
        const pl_jlist *l = pl_jv_items(e, eval(e, s, n->star));
        for (size_t i = 0; i < l->n; i++) pl_jv_push(e, args, l->at[i]);
    }
    for (size_t i = 0; i < n->keywords.n; i++)
        pl_jv_put(e, keywords, pl_jv_borrow(n->keywords.at[i]->name), eval(e, s, n->keywords.at[i]->a));
    if (n->star_star) {
        pl_jvalue d = eval(e, s, n->star_star);
        if (d.kind != PL_JV_DICT) pl_jfail(e, PL_ERR_INVALID, "behind ** stands a %s", pl_jv_type(d));
        for (size_t i = 0; d.kind == PL_JV_DICT && i < d.u.dict->n; i++) {
            if (d.u.dict->at[i].key.kind != PL_JV_STRING) pl_jfail(e, PL_ERR_INVALID, "keywords are strings");
            pl_jv_put(e, keywords, d.u.dict->at[i].key, d.u.dict->at[i].value);
        }
    }
    if (more) pl_jv_put(e, keywords, more->key, more->value);
    if (e->status != PL_OK) return;
    *out = (pl_jcall){args.u.list->at, args.u.list->n, keywords.u.dict->at, keywords.u.dict->n};
}

/* ---- expressions ---- */

static bool holds(pl_jeval *e, int op, pl_jvalue a, pl_jvalue b)
{
    switch (op) {
    case PL_JOP('=', '='): return pl_jv_equal(e, a, b);
    case PL_JOP('!', '='): return !pl_jv_equal(e, a, b);
    case '<': return pl_jv_compare(e, a, b) < 0;
    case '>': return pl_jv_compare(e, a, b) > 0;
    case PL_JOP('<', '='): return pl_jv_compare(e, a, b) <= 0;
    case PL_JOP('>', '='): return pl_jv_compare(e, a, b) >= 0;
    case PL_JOP_IN: return pl_jv_contains(e, b, a);
    default: return !pl_jv_contains(e, b, a);
    }
}

static pl_jvalue eval_filter(pl_jeval *e, pl_jscope *s, const pl_jnode *n, const pl_jvalue *block)
{
    /* The innermost input of a filter block is the block's text. */
    pl_jvalue v = !n->a ? *block : n->a->kind == PL_JN_FILTER ? eval_filter(e, s, n->a, block) : eval(e, s, n->a);
    pl_jcall c;
    arguments(e, s, n, NULL, &c);
    e->at = n;
    return e->status == PL_OK ? pl_jinja_filter(e, n->name, v, &c) : v;
}

static pl_jvalue eval_item(pl_jeval *e, pl_jscope *s, const pl_jnode *n)
{
    pl_jvalue v = eval(e, s, n->a);
    if (n->b->kind == PL_JN_SLICE) {
        pl_jvalue part[3] = {{.kind = PL_JV_MISSING}, {.kind = PL_JV_MISSING}, {.kind = PL_JV_MISSING}};
        const pl_jnode *bounds[3] = {n->b->a, n->b->b, n->b->c};
        for (int i = 0; i < 3; i++) {
            if (bounds[i]) part[i] = eval(e, s, bounds[i]);
        }
        e->at = n;
        return pl_jv_slice(e, v, part[0], part[1], part[2]);
    }
    pl_jvalue at = eval(e, s, n->b);
    e->at = n;
    if (e->status != PL_OK) return v;
    return at.kind == PL_JV_STRING ? pl_jv_attr(e, v, at.u.s, false) : pl_jv_index(e, v, at);
}

static pl_jvalue eval(pl_jeval *e, pl_jscope *s, const pl_jnode *n)
{
    pl_jvalue v = {.kind = PL_JV_UNDEFINED, .u.s = {"", 0}}, w;
    if (!pl_jstep(e, 1)) return v;
    e->at = n;
    switch (n->kind) {
    case PL_JN_CONST: return n->value;
    case PL_JN_NAME: return get(e, s, n->name);
    case PL_JN_TUPLE:
    case PL_JN_LIST:
        v = pl_jv_sequence(e, n->kind == PL_JN_TUPLE ? PL_JV_TUPLE : PL_JV_LIST);
        for (size_t i = 0; i < n->list.n && e->status == PL_OK; i++) pl_jv_push(e, v, eval(e, s, n->list.at[i]));
        return v;
    case PL_JN_DICT:
        v = pl_jv_dict(e, PL_JV_DICT);
        for (size_t i = 0; i + 1 < n->list.n && e->status == PL_OK; i += 2) {
            w = eval(e, s, n->list.at[i]);
            pl_jv_put(e, v, w, eval(e, s, n->list.at[i + 1]));
        }
        return v;
    case PL_JN_COND:
        if (pl_jv_truth(eval(e, s, n->a))) return eval(e, s, n->b);
        return n->c ? eval(e, s, n->c) : pl_jv_undefined(e, "the condition is false and there is no else");
    case PL_JN_OR:
    case PL_JN_AND:
        for (size_t i = 0; i < n->list.n; i++) {
            v = eval(e, s, n->list.at[i]);
            if (pl_jv_truth(v) == (n->kind == PL_JN_OR)) break;
        }
        return v;
    case PL_JN_NOT: return pl_jv_bool(!pl_jv_truth(eval(e, s, n->a)));
    case PL_JN_COMPARE:
        v = eval(e, s, n->a);
        for (size_t i = 0; i < n->list.n; i++) {
            w = eval(e, s, n->list.at[i]->a);
            e->at = n;
            if (e->status != PL_OK || !holds(e, n->list.at[i]->op, v, w)) return pl_jv_bool(false);
            v = w;
        }
        return pl_jv_bool(true);
    case PL_JN_CONCAT: {
        pl_buf text = {0};
        for (size_t i = 0; i < n->list.n && e->status == PL_OK; i++) {
            pl_buf_add_str(&text, pl_jv_str(e, eval(e, s, n->list.at[i])));
            if (text.size > e->limits.memory) pl_jfail(e, PL_ERR_BUDGET, "a text is too long");
        }
        return pl_jv_take(e, &text);
    }
    case PL_JN_BINARY:
        v = eval(e, s, n->a);
        w = eval(e, s, n->b);
        e->at = n;
        return e->status == PL_OK ? pl_jv_binary(e, n->op, v, w) : v;
    case PL_JN_NEGATE:
    case PL_JN_PLUS:
        v = eval(e, s, n->a);
        e->at = n;
        if (e->status != PL_OK) return v;
        if (!pl_jv_is_number(v)) return pl_jfail(e, PL_ERR_INVALID, "a %s has no sign", pl_jv_type(v));
        return pl_jv_binary(e, n->kind == PL_JN_NEGATE ? '-' : '+',
                            v.kind == PL_JV_FLOAT && n->kind == PL_JN_NEGATE ? pl_jv_float(-0.0) : pl_jv_int(0), v);
    case PL_JN_ATTR:
        v = eval(e, s, n->a);
        e->at = n;
        return e->status == PL_OK ? pl_jv_attr(e, v, n->name, true) : v;
    case PL_JN_ITEM: return eval_item(e, s, n);
    case PL_JN_CALL: {
        pl_jcall c;
        v = eval(e, s, n->a);
        arguments(e, s, n, NULL, &c);
        e->at = n;
        return pl_jinja_call(e, v, &c);
    }
    case PL_JN_FILTER: return eval_filter(e, s, n, &v);
    case PL_JN_TEST: {
        pl_jcall c;
        v = eval(e, s, n->a);
        arguments(e, s, n, NULL, &c);
        e->at = n;
        return pl_jv_bool(e->status == PL_OK && pl_jinja_test(e, n->name, v, &c));
    }
    default: return pl_jfail(e, PL_ERR_INVALID, "a slice stands outside of brackets");
    }
}

/* ---- statements ---- */

static void put(pl_jeval *e, pl_str text)
{
    if (!pl_jstep(e, text.size / 64)) return;
    if (text.size > e->limits.output - (e->out->size - e->out_start)) {
        pl_jfail(e, PL_ERR_BUDGET, "the template writes more than %zu bytes", e->limits.output);
        return;
    }
    if (!pl_buf_add_str(e->out, text)) pl_jfail(e, PL_ERR_NO_MEMORY, "no memory for the text");
}

static void loop_over(pl_jeval *e, pl_jscope *s, const pl_jnode *n, pl_jvalue over, int depth)
{
    const pl_jlist *items = pl_jv_items(e, over);
    pl_jloop *loop = pl_jalloc(e, sizeof *loop);
    if (!loop) return;
    if (n->c) { /* only those that pass the loop's condition */
        pl_jvalue kept = pl_jv_sequence(e, PL_JV_LIST);
        for (size_t i = 0; i < items->n && e->status == PL_OK; i++) {
            pl_jscope inner = {.parent = s};
            assign(e, &inner, n->a, items->at[i]);
            if (pl_jv_truth(eval(e, &inner, n->c))) pl_jv_push(e, kept, items->at[i]);
        }
        if (e->status != PL_OK) return;
        items = kept.u.list;
    }
    *loop = (pl_jloop){.items = items,
                       .depth = depth,
                       .changed = {.kind = PL_JV_MISSING},
                       .node = n->recursive ? n : NULL,
                       .scope = s};
    for (size_t i = 0; i < items->n && pl_jstep(e, 1); i++) {
        /* A macro made in the body may outlive it, so the scope cannot stand on the stack. */
        pl_jscope *inner = pl_jalloc(e, sizeof *inner);
        if (!inner) return;
        *inner = (pl_jscope){.parent = s};
        loop->index = i;
        set(e, inner, PL_STR("loop"), (pl_jvalue){.kind = PL_JV_LOOP, .u.loop = loop});
        assign(e, inner, n->a, items->at[i]);
        if (exec_all(e, inner, &n->body) == BREAK) break;
    }
    if (items->n == 0 && n->other.n > 0) exec_all(e, s, &n->other);
}

static pl_jscope *child(pl_jeval *e, pl_jscope *s)
{
    pl_jscope *inner = pl_jalloc(e, sizeof *inner);
    if (inner) *inner = (pl_jscope){.parent = s};
    return inner;
}

static pl_jvalue make_macro(pl_jeval *e, pl_jscope *s, const pl_jnode *n)
{
    pl_jmacro *m = pl_jalloc(e, sizeof *m);
    if (!m) return (pl_jvalue){.kind = PL_JV_UNDEFINED};
    *m = (pl_jmacro){n, s};
    return (pl_jvalue){.kind = PL_JV_MACRO, .u.macro = m};
}

/* The body's text, in a scope of its own, through the filters of n->b. */
static pl_jvalue captured(pl_jeval *e, pl_jscope *s, const pl_jnode *n)
{
    capture cap;
    pl_jscope *inner = child(e, s);
    if (!inner) return (pl_jvalue){.kind = PL_JV_UNDEFINED};
    capture_begin(e, &cap);
    exec_all(e, inner, &n->body);
    pl_jvalue v = capture_end(e, &cap);
    return n->b && e->status == PL_OK ? eval_filter(e, s, n->b, &v) : v;
}

static flow exec(pl_jeval *e, pl_jscope *s, const pl_jnode *n)
{
    pl_jscope *inner;
    pl_jvalue v;
    e->at = n;
    switch (n->kind) {
    case PL_JN_DATA: put(e, n->name); return NEXT;
    case PL_JN_OUTPUT:
        v = eval(e, s, n->a);
        e->at = n;
        if (e->status == PL_OK) put(e, pl_jv_str(e, v));
        return NEXT;
    case PL_JN_FOR:
        v = eval(e, s, n->b);
        e->at = n;
        if (e->status == PL_OK) loop_over(e, s, n, v, 1);
        return NEXT;
    case PL_JN_IF:
        if (pl_jv_truth(eval(e, s, n->a))) return exec_all(e, s, &n->body);
        for (size_t i = 0; i < n->list.n && e->status == PL_OK; i++) {
            if (pl_jv_truth(eval(e, s, n->list.at[i]->a))) return exec_all(e, s, &n->list.at[i]->body);
        }
        return exec_all(e, s, &n->other);
    case PL_JN_SET:
        v = eval(e, s, n->b);
        if (e->status == PL_OK) assign(e, s, n->a, v);
        return NEXT;
    case PL_JN_SET_BLOCK:
        v = captured(e, s, n);
        if (e->status == PL_OK) assign(e, s, n->a, v);
        return NEXT;
    case PL_JN_FILTER_BLOCK:
        v = captured(e, s, n);
        if (e->status == PL_OK) put(e, pl_jv_str(e, v));
        return NEXT;
    case PL_JN_MACRO: set(e, s, n->name, make_macro(e, s, n)); return NEXT;
    case PL_JN_CALL_BLOCK: {
        pl_jpair caller = {pl_jv_borrow(n->name), make_macro(e, s, n)};
        pl_jcall c;
        v = eval(e, s, n->a->a);
        arguments(e, s, n->a, &caller, &c);
        e->at = n;
        v = pl_jinja_call(e, v, &c);
        if (e->status == PL_OK) put(e, pl_jv_str(e, v));
        return NEXT;
    }
    case PL_JN_WITH:
        inner = child(e, s);
        for (size_t i = 0; inner && i < n->list.n; i++) {
            v = eval(e, s, n->list.at[i]->b); /* the values do not see each other */
            if (e->status == PL_OK) assign(e, inner, n->list.at[i]->a, v);
        }
        return inner ? exec_all(e, inner, &n->body) : NEXT;
    case PL_JN_SCOPE: inner = child(e, s); return inner ? exec_all(e, inner, &n->body) : NEXT;
    case PL_JN_BREAK: return BREAK;
    case PL_JN_CONTINUE: return CONTINUE;
    default: pl_jfail(e, PL_ERR_INTERNAL, "an expression stands where a statement should"); return NEXT;
    }
}

static flow exec_all(pl_jeval *e, pl_jscope *s, const pl_jnodes *body)
{
    for (size_t i = 0; i < body->n && pl_jstep(e, 1); i++) {
        flow f = exec(e, s, body->at[i]);
        if (f != NEXT) return f;
    }
    return NEXT;
}

/* ---- the interface ---- */

pl_status pl_jinja_open(pl_jinja **out, pl_str source, pl_error *err)
{
    *out = NULL;
    pl_jinja *t = pl_calloc(1, sizeof *t);
    if (!t) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for a template");
    pl_arena_init(&t->arena, 0);
    pl_jtoken *tokens = NULL;
    pl_status s = pl_jinja_lex(&t->arena, source, &tokens, err);
    if (s == PL_OK) s = pl_jinja_parse(t, tokens, err);
    if (s != PL_OK) {
        pl_jinja_close(t);
        return s;
    }
    *out = t;
    return PL_OK;
}

void pl_jinja_close(pl_jinja *t)
{
    if (!t) return;
    pl_arena_fini(&t->arena);
    pl_free(t);
}

pl_status pl_jinja_render(const pl_jinja *t, const pl_json *vars, const pl_jinja_limits *limits, pl_buf *out,
                          pl_error *err)
{
    pl_jeval e = {.limits = limits ? *limits : (pl_jinja_limits){0}, .out = out, .out_start = out->size, .err = err};
    if (!e.limits.steps) e.limits.steps = 20000000;
    if (!e.limits.memory) e.limits.memory = (size_t)256 << 20;
    if (!e.limits.output) e.limits.output = (size_t)64 << 20;
    pl_arena_init(&e.arena, 0);
    pl_jscope root = {0}, top = {.parent = &root};
    pl_jvalue v = vars ? pl_jv_json(&e, vars, 0) : (pl_jvalue){.kind = PL_JV_UNDEFINED};
    if (v.kind == PL_JV_DICT) {
        for (size_t i = 0; i < v.u.dict->n; i++) set(&e, &root, v.u.dict->at[i].key.u.s, v.u.dict->at[i].value);
    }
    if (e.status == PL_OK) exec_all(&e, &top, &t->body);
    pl_arena_fini(&e.arena);
    if (e.status != PL_OK) out->size = e.out_start;
    return e.status;
}
