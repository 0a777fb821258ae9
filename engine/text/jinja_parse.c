/* Tokens to a tree, by recursive descent; the grammar and its precedences are jinja2's. */
#include "engine/text/jinja_impl.h"

/* Bounds the recursion here and, since no tree is deeper, in the evaluation of expressions. */
#define DEPTH_MAX 150

typedef struct parser {
    pl_arena *arena;
    const pl_jtoken *t;
    int depth, loops;
    pl_status status;
    pl_error *err;
    pl_jnode nothing; /* what every function gives after a failure */
} parser;

/* After a failure the current token is this end, so that all loops end. */
static const pl_jtoken end_token = {.kind = PL_JT_EOF};

static pl_jnode *fail(parser *p, pl_status s, const char *what, pl_str name)
{
    if (p->status != PL_OK) return &p->nothing;
    p->status = pl_fail(p->err, s, "template line %d, column %d: %s%s%.*s", p->t->line, p->t->col, what,
                        name.size ? " " : "", name.size > 64 ? 64 : (int)name.size, name.data);
    p->t = &end_token;
    return &p->nothing;
}
static pl_jnode *syntax(parser *p, const char *what)
{
    return fail(p, PL_ERR_FORMAT, what, (pl_str){"", 0});
}
static pl_jnode *no_memory(parser *p)
{
    if (p->status == PL_OK) p->status = pl_fail(p->err, PL_ERR_NO_MEMORY, "no memory for a template");
    p->t = &end_token;
    return &p->nothing;
}

static void advance(parser *p)
{
    if (p->t->kind != PL_JT_EOF) p->t++;
}
static bool is_op(const parser *p, int op)
{
    return p->t->kind == PL_JT_OP && p->t->op == op;
}
static bool is_name(const parser *p, const char *name)
{
    return p->t->kind == PL_JT_NAME && pl_str_is(p->t->text, name);
}
static bool take_op(parser *p, int op)
{
    if (!is_op(p, op)) return false;
    advance(p);
    return true;
}
static bool take_name(parser *p, const char *name)
{
    if (!is_name(p, name)) return false;
    advance(p);
    return true;
}
static void expect_op(parser *p, int op, const char *what)
{
    if (!take_op(p, op)) syntax(p, what);
}

static pl_jnode *node_at(parser *p, pl_jnode_kind kind, const pl_jtoken *at)
{
    pl_jnode *n = PL_ARENA_NEW(p->arena, pl_jnode);
    if (!n) return no_memory(p);
    n->kind = kind;
    n->line = at->line;
    n->col = at->col;
    return n;
}
static pl_jnode *node(parser *p, pl_jnode_kind kind)
{
    return node_at(p, kind, p->t);
}

static void add(parser *p, pl_jnodes *list, pl_jnode *n)
{
    if (p->status != PL_OK) return;
    if (list->n == list->cap) {
        size_t cap = list->cap ? list->cap * 2 : 4;
        pl_jnode **at = pl_arena_alloc(p->arena, cap * sizeof(pl_jnode *));
        if (!at) {
            no_memory(p);
            return;
        }
        if (list->n) memcpy(at, list->at, list->n * sizeof(pl_jnode *));
        list->at = at;
        list->cap = cap;
    }
    list->at[list->n++] = n;
}

static pl_str expect_name(parser *p, const char *what)
{
    pl_str name = p->t->text;
    if (p->t->kind != PL_JT_NAME) {
        syntax(p, what);
        return (pl_str){"", 0};
    }
    advance(p);
    return name;
}

static pl_jnode *expression(parser *p, bool cond);
static pl_jnode *unary(parser *p, bool filters);
static pl_jnode *tuple(parser *p, bool simple, bool cond, const char *end_name, bool parens);

static void call_args(parser *p, pl_jnode *n)
{
    expect_op(p, '(', "expected (");
    while (p->status == PL_OK && !is_op(p, ')')) {
        if (take_op(p, '*')) {
            if (n->star || n->star_star) syntax(p, "two starred arguments");
            n->star = expression(p, true);
        } else if (take_op(p, PL_JOP('*', '*'))) {
            if (n->star_star) syntax(p, "two double-starred arguments");
            n->star_star = expression(p, true);
        } else if (p->t->kind == PL_JT_NAME && p->t[1].kind == PL_JT_OP && p->t[1].op == '=') {
            pl_jnode *k = node(p, PL_JN_NAME);
            k->name = expect_name(p, "expected a name");
            expect_op(p, '=', "expected =");
            k->a = expression(p, true);
            add(p, &n->keywords, k);
        } else {
            if (n->keywords.n || n->star || n->star_star)
                syntax(p, "an argument without a name follows one with a name");
            add(p, &n->list, expression(p, true));
        }
        if (!is_op(p, ')')) expect_op(p, ',', "expected , or )");
    }
    expect_op(p, ')', "expected )");
}

static pl_jnode *filter(parser *p, pl_jnode *input)
{
    pl_jnode *n = node(p, PL_JN_FILTER);
    n->name = expect_name(p, "expected the name of a filter");
    n->a = input;
    if (is_op(p, '(')) call_args(p, n);
    return n;
}

static pl_jnode *subscript(parser *p)
{
    pl_jnode *n = node(p, PL_JN_SLICE);
    if (!is_op(p, ':')) {
        pl_jnode *e = expression(p, true);
        if (!is_op(p, ':')) return e;
        n->a = e;
    }
    expect_op(p, ':', "expected :");
    if (!is_op(p, ':') && !is_op(p, ']') && !is_op(p, ',')) n->b = expression(p, true);
    if (take_op(p, ':') && !is_op(p, ']') && !is_op(p, ',')) n->c = expression(p, true);
    return n;
}

static pl_jnode *postfix(parser *p, pl_jnode *n)
{
    for (;;) {
        const pl_jtoken *at = p->t;
        if (take_op(p, '.')) {
            pl_jnode *x = node_at(p, PL_JN_ATTR, at);
            x->a = n;
            if (p->t->kind == PL_JT_INT) {
                x->kind = PL_JN_ITEM;
                x->b = node(p, PL_JN_CONST);
                x->b->value = pl_jv_int(p->t->i);
                advance(p);
            } else {
                x->name = expect_name(p, "expected a name or number behind .");
            }
            n = x;
        } else if (take_op(p, '[')) {
            pl_jnode *x = node_at(p, PL_JN_ITEM, at);
            x->a = n;
            x->b = subscript(p);
            expect_op(p, ']', "expected ]");
            n = x;
        } else if (is_op(p, '(')) {
            pl_jnode *x = node(p, PL_JN_CALL);
            x->a = n;
            call_args(p, x);
            n = x;
        } else {
            return n;
        }
    }
}

static pl_jnode *primary(parser *p);

static pl_jnode *test(parser *p, pl_jnode *input)
{
    pl_jnode *n = node(p, PL_JN_TEST);
    advance(p); /* is */
    bool negated = take_name(p, "not");
    n->name = expect_name(p, "expected the name of a test");
    n->a = input;
    if (is_op(p, '(')) {
        call_args(p, n);
    } else if ((p->t->kind == PL_JT_NAME && !is_name(p, "else") && !is_name(p, "or") && !is_name(p, "and")) ||
               p->t->kind == PL_JT_STRING || p->t->kind == PL_JT_INT || p->t->kind == PL_JT_FLOAT || is_op(p, '[') ||
               is_op(p, '{')) {
        if (is_name(p, "is")) return syntax(p, "tests cannot be chained with is");
        add(p, &n->list, postfix(p, primary(p)));
    }
    if (!negated) return n;
    pl_jnode *not = node_at(p, PL_JN_NOT, p->t);
    not ->line = n->line;
    not ->col = n->col;
    not ->a = n;
    return not ;
}

static pl_jnode *filters(parser *p, pl_jnode *n)
{
    for (;;) {
        if (take_op(p, '|')) {
            n = filter(p, n);
        } else if (is_name(p, "is")) {
            n = test(p, n);
        } else if (is_op(p, '(')) {
            pl_jnode *x = node(p, PL_JN_CALL);
            x->a = n;
            call_args(p, x);
            n = x;
        } else {
            return n;
        }
    }
}

static pl_jnode *strings(parser *p)
{
    pl_jnode *n = node(p, PL_JN_CONST);
    size_t size = 0, k = 0;
    const pl_jtoken *first = p->t;
    for (; p->t->kind == PL_JT_STRING; advance(p)) size += p->t->text.size, k++;
    char *s = k > 1 ? pl_arena_alloc(p->arena, size + 1) : NULL;
    if (k > 1 && !s) return no_memory(p);
    for (size_t i = 0, at = 0; s && i < k; at += first[i++].text.size)
        memcpy(s + at, first[i].text.data, first[i].text.size);
    n->value = pl_jv_borrow(s ? (pl_str){s, size} : first->text);
    return n;
}

static pl_jnode *primary(parser *p)
{
    const pl_jtoken *t = p->t;
    pl_jnode *n;
    if (t->kind == PL_JT_STRING) return strings(p);
    if (t->kind == PL_JT_NAME) {
        bool yes = is_name(p, "true") || is_name(p, "True"), no = is_name(p, "false") || is_name(p, "False");
        n = node(p, PL_JN_CONST);
        if (yes || no)
            n->value = pl_jv_bool(yes);
        else if (is_name(p, "none") || is_name(p, "None"))
            n->value = pl_jv_none();
        else
            n->kind = PL_JN_NAME, n->name = t->text;
        advance(p);
        return n;
    }
    if (t->kind == PL_JT_INT || t->kind == PL_JT_FLOAT) {
        n = node(p, PL_JN_CONST);
        n->value = t->kind == PL_JT_INT ? pl_jv_int(t->i) : pl_jv_float(t->f);
        advance(p);
        return n;
    }
    if (take_op(p, '(')) {
        n = tuple(p, false, true, NULL, true);
        expect_op(p, ')', "expected )");
        return n;
    }
    if (is_op(p, '[') || is_op(p, '{')) {
        bool dict = is_op(p, '{');
        int close = dict ? '}' : ']';
        n = node(p, dict ? PL_JN_DICT : PL_JN_LIST);
        advance(p);
        while (p->status == PL_OK && !is_op(p, close)) {
            add(p, &n->list, expression(p, true));
            if (dict) {
                expect_op(p, ':', "expected : behind the key");
                add(p, &n->list, expression(p, true));
            }
            if (!is_op(p, close)) expect_op(p, ',', dict ? "expected , or }" : "expected , or ]");
        }
        expect_op(p, close, dict ? "expected }" : "expected ]");
        return n;
    }
    return syntax(p, "expected an expression");
}

static pl_jnode *unary(parser *p, bool with_filters)
{
    pl_jnode *n;
    if (p->depth >= DEPTH_MAX) return syntax(p, "the expression is nested too deeply");
    p->depth++;
    if (is_op(p, '-') || is_op(p, '+')) {
        n = node(p, is_op(p, '-') ? PL_JN_NEGATE : PL_JN_PLUS);
        advance(p);
        n->a = unary(p, false);
    } else {
        n = primary(p);
    }
    n = postfix(p, n);
    if (with_filters) n = filters(p, n);
    p->depth--;
    return n;
}

/* Chains of left-associative operators would make a tree as deep as they are long; this bounds them. */
#define CHAIN_MAX 500

static pl_jnode *binary(parser *p, pl_jnode *a, int op, pl_jnode *b, const pl_jtoken *at)
{
    pl_jnode *n = node_at(p, PL_JN_BINARY, at);
    n->op = op;
    n->a = a;
    n->b = b;
    return n;
}

static pl_jnode *power(parser *p)
{
    pl_jnode *n = unary(p, true);
    for (int i = 0;; i++) {
        const pl_jtoken *at = p->t;
        if (!take_op(p, PL_JOP('*', '*'))) return n;
        if (i == CHAIN_MAX) return syntax(p, "too many operators in a row");
        n = binary(p, n, PL_JOP('*', '*'), unary(p, true), at);
    }
}

static pl_jnode *product(parser *p)
{
    pl_jnode *n = power(p);
    for (int i = 0;; i++) {
        const pl_jtoken *at = p->t;
        int op = at->kind == PL_JT_OP ? at->op : 0;
        if (op != '*' && op != '/' && op != PL_JOP('/', '/') && op != '%') return n;
        if (i == CHAIN_MAX) return syntax(p, "too many operators in a row");
        advance(p);
        n = binary(p, n, op, power(p), at);
    }
}

static pl_jnode *concat(parser *p)
{
    pl_jnode *first = product(p);
    if (!is_op(p, '~')) return first;
    pl_jnode *n = node(p, PL_JN_CONCAT);
    add(p, &n->list, first);
    while (take_op(p, '~')) add(p, &n->list, product(p));
    return n;
}

static pl_jnode *sum(parser *p)
{
    pl_jnode *n = concat(p);
    for (int i = 0;; i++) {
        const pl_jtoken *at = p->t;
        int op = at->kind == PL_JT_OP ? at->op : 0;
        if (op != '+' && op != '-') return n;
        if (i == CHAIN_MAX) return syntax(p, "too many operators in a row");
        advance(p);
        n = binary(p, n, op, concat(p), at);
    }
}

static int comparison(parser *p)
{
    if (p->t->kind == PL_JT_OP) {
        int op = p->t->op;
        if (op == '<' || op == '>' || op == PL_JOP('=', '=') || op == PL_JOP('!', '=') || op == PL_JOP('<', '=') ||
            op == PL_JOP('>', '=')) {
            advance(p);
            return op;
        }
        return 0;
    }
    if (take_name(p, "in")) return PL_JOP_IN;
    if (is_name(p, "not") && p->t[1].kind == PL_JT_NAME && pl_str_is(p->t[1].text, "in")) {
        advance(p);
        advance(p);
        return PL_JOP_NOT_IN;
    }
    return 0;
}

static pl_jnode *compare(parser *p)
{
    const pl_jtoken *at = p->t;
    pl_jnode *first = sum(p), *n = NULL;
    for (int op; (op = comparison(p)) != 0;) {
        if (!n) {
            n = node_at(p, PL_JN_COMPARE, at);
            n->a = first;
        }
        pl_jnode *x = node(p, PL_JN_COMPARE); /* one operand: its operator and value */
        x->op = op;
        x->a = sum(p);
        add(p, &n->list, x);
    }
    return n ? n : first;
}

static pl_jnode *not_expression(parser *p)
{
    if (!is_name(p, "not")) return compare(p);
    if (p->depth >= DEPTH_MAX) return syntax(p, "the expression is nested too deeply");
    pl_jnode *n = node(p, PL_JN_NOT);
    advance(p);
    p->depth++;
    n->a = not_expression(p);
    p->depth--;
    return n;
}

static pl_jnode *logic(parser *p, bool or)
{
    pl_jnode *first = or ? logic(p, false) : not_expression(p);
    if (!is_name(p, or ? "or" : "and")) return first;
    pl_jnode *n = node(p, or ? PL_JN_OR : PL_JN_AND);
    add(p, &n->list, first);
    while (take_name(p, or ? "or" : "and")) add(p, &n->list, or ? logic(p, false) : not_expression(p));
    return n;
}

static pl_jnode *expression(parser *p, bool cond)
{
    if (p->depth >= DEPTH_MAX) return syntax(p, "the expression is nested too deeply");
    p->depth++;
    pl_jnode *n = logic(p, true);
    for (int i = 0; cond && is_name(p, "if"); i++) {
        if (i == CHAIN_MAX) return syntax(p, "too many conditions in a row");
        pl_jnode *x = node(p, PL_JN_COND);
        advance(p);
        x->a = logic(p, true);
        x->b = n;
        if (take_name(p, "else")) x->c = expression(p, true);
        n = x;
    }
    p->depth--;
    return n;
}

/* One expression, or a tuple when commas follow. simple: names for assignment only. end_name: the word behind it. */
static pl_jnode *tuple(parser *p, bool simple, bool cond, const char *end_name, bool parens)
{
    pl_jnode *n = node(p, PL_JN_TUPLE);
    bool comma = false;
    if (p->depth >= DEPTH_MAX) return syntax(p, "the expression is nested too deeply");
    p->depth++;
    while (p->status == PL_OK) {
        if (n->list.n > 0) expect_op(p, ',', "expected ,");
        if (p->t->kind == PL_JT_VAR_END || p->t->kind == PL_JT_BLOCK_END || is_op(p, ')') ||
            (end_name && is_name(p, end_name)))
            break;
        add(p, &n->list, simple ? primary(p) : expression(p, cond));
        if (!is_op(p, ',')) break;
        comma = true;
    }
    p->depth--;
    if (comma) return n;
    if (n->list.n > 0) return n->list.at[0];
    return parens ? n : syntax(p, "expected an expression");
}

/* ---- statements ---- */

static void check_target(parser *p, const pl_jnode *n)
{
    if (n->kind == PL_JN_NAME || (n->kind == PL_JN_ATTR && n->op == '=')) return;
    if (n->kind != PL_JN_TUPLE) {
        syntax(p, "this cannot be assigned to");
        return;
    }
    for (size_t i = 0; i < n->list.n; i++) check_target(p, n->list.at[i]);
}

static pl_jnode *target(parser *p, const char *end_name, bool namespaces)
{
    if (namespaces && p->t->kind == PL_JT_NAME && p->t[1].kind == PL_JT_OP && p->t[1].op == '.') {
        pl_jnode *n = node(p, PL_JN_ATTR);
        n->op = '='; /* assigned to */
        n->a = primary(p);
        advance(p);
        n->name = expect_name(p, "expected a name behind .");
        return n;
    }
    pl_jnode *n = tuple(p, true, false, end_name, false);
    check_target(p, n);
    return n;
}

static void statements(parser *p, pl_jnodes *out, const char *const *ends);

/* The body of a block: from its end of tag to one of the words in ends, which is current afterwards. */
static void body(parser *p, pl_jnodes *out, const char *const *ends)
{
    take_op(p, ':');
    if (p->t->kind != PL_JT_BLOCK_END) {
        syntax(p, "expected %}");
        return;
    }
    advance(p);
    if (p->depth >= DEPTH_MAX) {
        syntax(p, "blocks are nested too deeply");
        return;
    }
    p->depth++;
    statements(p, out, ends);
    p->depth--;
}

#define ENDS(...) ((const char *const[]){__VA_ARGS__, NULL})

static pl_jnode *for_statement(parser *p)
{
    pl_jnode *n = node(p, PL_JN_FOR);
    advance(p);
    n->a = target(p, "in", false);
    if (!take_name(p, "in")) return syntax(p, "expected in");
    n->b = tuple(p, false, false, "recursive", false);
    if (take_name(p, "if")) n->c = expression(p, true);
    n->recursive = take_name(p, "recursive");
    p->loops++;
    body(p, &n->body, ENDS("endfor", "else"));
    p->loops--;
    if (take_name(p, "else")) body(p, &n->other, ENDS("endfor"));
    take_name(p, "endfor");
    return n;
}

static pl_jnode *if_statement(parser *p)
{
    pl_jnode *n = node(p, PL_JN_IF), *last = n;
    advance(p);
    for (;;) {
        last->a = tuple(p, false, false, NULL, false);
        body(p, &last->body, ENDS("endif", "elif", "else"));
        if (!is_name(p, "elif")) break;
        /* The branches stand in one list: a chain of them is not nested. */
        pl_jnode *next = node(p, PL_JN_IF);
        advance(p);
        add(p, &n->list, next);
        last = next;
    }
    if (take_name(p, "else")) body(p, &n->other, ENDS("endif"));
    take_name(p, "endif");
    return n;
}

static pl_jnode *set_statement(parser *p)
{
    pl_jnode *n = node(p, PL_JN_SET);
    advance(p);
    n->a = target(p, NULL, true);
    if (take_op(p, '=')) {
        n->b = tuple(p, false, true, NULL, false);
        return n;
    }
    n->kind = PL_JN_SET_BLOCK;
    while (take_op(p, '|')) n->b = filter(p, n->b); /* the innermost input, NULL, is the block's text */
    body(p, &n->body, ENDS("endset"));
    take_name(p, "endset");
    return n;
}

/* Parameters, with their defaults in keywords (NULL where there is none). */
static void parameters(parser *p, pl_jnode *n)
{
    expect_op(p, '(', "expected (");
    while (p->status == PL_OK && !is_op(p, ')')) {
        if (n->list.n > 0) expect_op(p, ',', "expected , or )");
        if (is_op(p, ')')) break;
        pl_jnode *x = node(p, PL_JN_NAME), *value = NULL;
        x->name = expect_name(p, "expected the name of a parameter");
        if (take_op(p, '='))
            value = expression(p, true);
        else if (n->keywords.n > 0 && n->keywords.at[n->keywords.n - 1])
            syntax(p, "a parameter without a default follows one with a default");
        add(p, &n->list, x);
        add(p, &n->keywords, value);
    }
    expect_op(p, ')', "expected )");
}

static pl_jnode *macro_statement(parser *p)
{
    pl_jnode *n = node(p, PL_JN_MACRO);
    advance(p);
    n->name = expect_name(p, "expected the name of the macro");
    parameters(p, n);
    int loops = p->loops;
    p->loops = 0;
    body(p, &n->body, ENDS("endmacro"));
    p->loops = loops;
    take_name(p, "endmacro");
    return n;
}

static pl_jnode *call_statement(parser *p)
{
    pl_jnode *n = node(p, PL_JN_CALL_BLOCK);
    advance(p);
    if (is_op(p, '(')) parameters(p, n);
    n->name = PL_STR("caller");
    n->a = expression(p, true);
    if (p->status == PL_OK && n->a->kind != PL_JN_CALL) return syntax(p, "expected a call");
    body(p, &n->body, ENDS("endcall"));
    take_name(p, "endcall");
    return n;
}

static pl_jnode *filter_statement(parser *p)
{
    pl_jnode *n = node(p, PL_JN_FILTER_BLOCK);
    advance(p);
    n->b = filter(p, NULL);
    while (take_op(p, '|')) n->b = filter(p, n->b);
    body(p, &n->body, ENDS("endfilter"));
    take_name(p, "endfilter");
    return n;
}

static pl_jnode *with_statement(parser *p)
{
    pl_jnode *n = node(p, PL_JN_WITH);
    advance(p);
    while (p->status == PL_OK && p->t->kind != PL_JT_BLOCK_END) {
        if (n->list.n > 0) expect_op(p, ',', "expected ,");
        pl_jnode *x = node(p, PL_JN_SET);
        x->a = target(p, NULL, false);
        expect_op(p, '=', "expected =");
        x->b = expression(p, true);
        add(p, &n->list, x);
    }
    body(p, &n->body, ENDS("endwith"));
    take_name(p, "endwith");
    return n;
}

static pl_jnode *statement(parser *p)
{
    if (p->t->kind != PL_JT_NAME) return syntax(p, "expected the name of a tag");
    pl_str word = p->t->text;
    if (pl_str_is(word, "for")) return for_statement(p);
    if (pl_str_is(word, "if")) return if_statement(p);
    if (pl_str_is(word, "set")) return set_statement(p);
    if (pl_str_is(word, "macro")) return macro_statement(p);
    if (pl_str_is(word, "call")) return call_statement(p);
    if (pl_str_is(word, "filter")) return filter_statement(p);
    if (pl_str_is(word, "with")) return with_statement(p);
    if (pl_str_is(word, "generation")) { /* marks what the model wrote, for training; it renders its body */
        pl_jnode *n = node(p, PL_JN_SCOPE);
        advance(p);
        body(p, &n->body, ENDS("endgeneration"));
        take_name(p, "endgeneration");
        return n;
    }
    if (pl_str_is(word, "block")) {
        pl_jnode *n = node(p, PL_JN_SCOPE);
        advance(p);
        expect_name(p, "expected the name of the block");
        take_name(p, "scoped");
        body(p, &n->body, ENDS("endblock"));
        take_name(p, "endblock");
        if (p->t->kind == PL_JT_NAME) advance(p);
        return n;
    }
    if (pl_str_is(word, "break") || pl_str_is(word, "continue")) {
        if (p->loops == 0) return syntax(p, "outside of a loop");
        pl_jnode *n = node(p, pl_str_is(word, "break") ? PL_JN_BREAK : PL_JN_CONTINUE);
        advance(p);
        return n;
    }
    static const char *const others[] = {"include", "import", "from", "extends", "autoescape", "do", "trans", "debug"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        if (pl_str_is(word, others[i])) return fail(p, PL_ERR_UNSUPPORTED, "there is no tag", word);
    }
    return fail(p, PL_ERR_FORMAT, "unexpected tag", word);
}

static void statements(parser *p, pl_jnodes *out, const char *const *ends)
{
    while (p->status == PL_OK) {
        const pl_jtoken *t = p->t;
        pl_jnode *n;
        if (t->kind == PL_JT_EOF) {
            if (ends) fail(p, PL_ERR_FORMAT, "the template ends before", pl_str_from(ends[0]));
            return;
        }
        if (t->kind == PL_JT_DATA) {
            n = node(p, PL_JN_DATA);
            n->name = t->text;
            advance(p);
        } else if (t->kind == PL_JT_VAR_BEGIN) {
            n = node(p, PL_JN_OUTPUT);
            advance(p);
            n->a = tuple(p, false, true, NULL, false);
            if (p->t->kind != PL_JT_VAR_END) syntax(p, "expected }}");
            advance(p);
        } else {
            advance(p);
            for (int i = 0; ends && ends[i]; i++) {
                if (is_name(p, ends[i])) return;
            }
            n = statement(p);
            if (p->t->kind != PL_JT_BLOCK_END) syntax(p, "expected %}");
            advance(p);
        }
        add(p, out, n);
    }
}

pl_status pl_jinja_parse(pl_jinja *t, const pl_jtoken *tokens, pl_error *err)
{
    parser p = {.arena = &t->arena, .t = tokens, .err = err};
    statements(&p, &t->body, NULL);
    return p.status;
}
