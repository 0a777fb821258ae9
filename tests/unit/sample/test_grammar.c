/* Grammars: which texts they accept, byte by byte; what the parser refuses; masks against one question per token. */
#include "engine/sample/grammar.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/alloc.h"
#include "engine/base/buf.h"
#include "engine/base/rng.h"
#include "engine/sample/trie.h"
#include "tests/fixtures/fixtures.h"

typedef struct reading {
    pl_grammar *g;
    pl_grammar_run *r;
} reading;

static reading open_grammar(const char *text)
{
    reading x;
    pl_error err = {0};
    ck_ok(pl_grammar_new(&x.g, pl_str_from(text), &err), err);
    ck_ok(pl_grammar_run_new(&x.r, x.g, 0, &err), err);
    return x;
}

static void close_grammar(reading *x)
{
    pl_grammar_run_free(x->r);
    pl_grammar_free(x->g);
}

static int32_t place_after(reading *x, const char *text)
{
    int32_t at = pl_grammar_start(x->r);
    for (const char *c = text; *c; c++) at = pl_grammar_step(x->r, at, (uint8_t)*c);
    return at;
}

/* texts: whole ones, ended by NULL. */
static void ck_language(const char *grammar, const char *const *whole, const char *const *not_whole)
{
    reading x = open_grammar(grammar);
    for (; *whole; whole++)
        ck_assert_msg(pl_grammar_accepts(x.r, place_after(&x, *whole)), "%s: \"%s\" is refused", grammar, *whole);
    for (; *not_whole; not_whole++)
        ck_assert_msg(!pl_grammar_accepts(x.r, place_after(&x, *not_whole)), "%s: \"%s\" is accepted", grammar,
                      *not_whole);
    close_grammar(&x);
}
#define TEXTS(...) ((const char *const[]){__VA_ARGS__, NULL})

START_TEST(literals_classes_and_choices)
{
    ck_language("root ::= \"ab\"", TEXTS("ab"), TEXTS("", "a", "abc", "b"));
    ck_language("root ::= \"\"", TEXTS(""), TEXTS("a"));
    ck_language("root ::= \"a\" | \"b\" \"c\" |", TEXTS("a", "bc", ""), TEXTS("b", "c", "ab"));
    ck_language("root ::= [a-cx]", TEXTS("a", "b", "c", "x"), TEXTS("d", "", "-", "ab"));
    ck_language("root ::= [^a-c]", TEXTS("d", "A", "\xc3\xa4", "\xf0\x9f\x98\x80"),
                TEXTS("a", "b", "", "\xc3", "\xa4"));
    ck_language("root ::= [a\\-z-]", TEXTS("a", "-", "z"), TEXTS("b"));
    ck_language("root ::= [\\]\\[\\\\^]", TEXTS("]", "[", "\\", "^"), TEXTS("a"));
    ck_language("root ::= \"\\x41\\u00e4\\U0001F600\\n\\t\\r\\\"\\\\\"", TEXTS("A\xc3\xa4\xf0\x9f\x98\x80\n\t\r\"\\"),
                TEXTS("A"));
    ck_language("root ::= .", TEXTS("a", "\n", "\xe2\x82\xac"),
                TEXTS("", "ab", "\xe2\x82", "\xed\xa0\x80", "\xc0\x80"));
    ck_language("root ::= (\"a\" | \"b\") \"c\"", TEXTS("ac", "bc"), TEXTS("a", "c", "abc"));
}
END_TEST

START_TEST(repetitions_count)
{
    ck_language("root ::= \"a\"*", TEXTS("", "a", "aaaa"), TEXTS("b", "ab"));
    ck_language("root ::= \"a\"+", TEXTS("a", "aaaa"), TEXTS("", "b"));
    ck_language("root ::= \"a\"? \"b\"", TEXTS("ab", "b"), TEXTS("a", "aab"));
    ck_language("root ::= \"a\"{3}", TEXTS("aaa"), TEXTS("", "aa", "aaaa"));
    ck_language("root ::= \"a\"{2,}", TEXTS("aa", "aaaaaa"), TEXTS("", "a"));
    ck_language("root ::= \"a\"{,2} \"b\"", TEXTS("b", "ab", "aab"), TEXTS("aaab"));
    ck_language("root ::= \"a\"{1,3}", TEXTS("a", "aa", "aaa"), TEXTS("", "aaaa"));
    ck_language("root ::= \"a\"{0}", TEXTS(""), TEXTS("a"));
    ck_language("root ::= (\"a\"*)* \"b\"", TEXTS("b", "aab"), TEXTS("a"));
    ck_language("root ::= (\"a\" | \"bc\"){2,3}", TEXTS("aa", "abc", "bcbca"), TEXTS("a", "ab", "aaaa"));
    /* A large group, which becomes a rule of its own. */
    ck_language("root ::= (\"abcdefghijklmnopqrstuvwxyz\" | [0-9]{20}){3,4}",
                TEXTS("abcdefghijklmnopqrstuvwxyz01234567890123456789abcdefghijklmnopqrstuvwxyz"),
                TEXTS("abcdefghijklmnopqrstuvwxyz01234567890123456789", "abcdefghijklmnopqrstuvwxyz0123"));
}
END_TEST

START_TEST(rules_comments_and_lines)
{
    ck_language(
        "# one\nroot ::= item (\",\" item)* # two\n\nitem ::=\n  [0-9]+\n  | name\nname ::= (\n\"x\" |\n\"y\"\n)\n",
        TEXTS("1", "x,22,y"), TEXTS("", ",", "1,", "z"));
    ck_language("root ::= a-b_1\r\na-b_1 ::= \"q\"\r\n", TEXTS("q"), TEXTS("a"));
    /* A recursion to the right grows no stack, one in the middle does. */
    reading x = open_grammar("root ::= \"a\" root | \"b\"");
    int32_t at = pl_grammar_start(x.r);
    for (int i = 0; i < 100000; i++) at = pl_grammar_step(x.r, at, 'a');
    ck_assert(pl_grammar_accepts(x.r, pl_grammar_step(x.r, at, 'b')));
    close_grammar(&x);
    ck_language("root ::= \"(\" root \")\" root | \"\"", TEXTS("", "()", "(()())()", "((((()))))"),
                TEXTS("(", ")", "(()"));
}
END_TEST

START_TEST(all_characters_of_a_class_and_no_others)
{
    static const char *const classes[] = {"[\\u0080-\\u07ff]",  "[\\u0400-\\u20ac]",     "[\\U00010000-\\U0010FFFF]",
                                          "[^\\u1234-\\uffff]", "[\\u00ff-\\U00010010]", "[a-\\U0002abcd]"};
    static const uint32_t bounds[][2] = {{0x80, 0x7ff},    {0x400, 0x20ac}, {0x10000, 0x10ffff},
                                         {0x1234, 0xffff}, {0xff, 0x10010}, {'a', 0x2abcd}};
    for (size_t k = 0; k < sizeof classes / sizeof *classes; k++) {
        char text[64];
        snprintf(text, sizeof text, "root ::= %s", classes[k]);
        reading x = open_grammar(text);
        for (uint32_t c = 1; c <= 0x10ffff; c += c < 0x3000 ? 1 : 61) {
            if (c >= 0xd800 && c < 0xe000) continue;
            uint8_t b[4];
            int n = 0;
            if (c < 0x80)
                b[n++] = (uint8_t)c;
            else if (c < 0x800)
                b[n++] = (uint8_t)(0xc0 | c >> 6);
            else if (c < 0x10000)
                b[n++] = (uint8_t)(0xe0 | c >> 12), b[n++] = (uint8_t)(0x80 | (c >> 6 & 63));
            else
                b[n++] = (uint8_t)(0xf0 | c >> 18), b[n++] = (uint8_t)(0x80 | (c >> 12 & 63)),
                b[n++] = (uint8_t)(0x80 | (c >> 6 & 63));
            if (c >= 0x80) b[n++] = (uint8_t)(0x80 | (c & 63));
            int32_t at = pl_grammar_start(x.r);
            for (int i = 0; i < n; i++) at = pl_grammar_step(x.r, at, b[i]);
            bool inside = c >= bounds[k][0] && c <= bounds[k][1];
            if (k == 3) inside = !inside;
            ck_assert_msg(pl_grammar_accepts(x.r, at) == inside, "%s: U+%04X", classes[k], c);
        }
        close_grammar(&x);
    }
}
END_TEST

START_TEST(what_is_no_grammar_is_refused_with_its_place)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "no rule root"},
        {"foo ::= \"a\"", "no rule root"},
        {"root ::= \"a", "line 1, column 12: the text ends"},
        {"root ::= [a", "the text ends"},
        {"root ::= \"a\"\nroot ::= \"b\"", "line 2, column 1: there is already a rule root"},
        {"root ::= foo\n", "line 1, column 10: there is no rule foo"},
        {"root := \"a\"", "::= is missing behind root"},
        {"root ::= \"a\" )", "not understood: )"},
        {"root ::= (\"a\"", "closing parenthesis"},
        {"root ::= *", "nothing to repeat before *"},
        {"root ::= \"a\"{", "count is missing"},
        {"root ::= \"a\"{2,1}", "below the lowest"},
        {"root ::= \"a\"{1000000}", "above 100000"},
        {"root ::= \"a\"{2", "closing brace"},
        {"root ::= \"\\q\"", "no such escape: \\q"},
        {"root ::= \"\\xg0\"", "hexadecimal"},
        {"root ::= \"\\ud800\"", "no character"},
        {"root ::= \"\\U00110000\"", "no character"},
        {"root ::= [z-a]", "ends before it begins"},
        {"root ::= []", "no character is in"},
        {"root ::= [^\\x00-\\U0010FFFF]", "no character is in"},
        {"root ::= \"\xff\"", "not UTF-8"},
        {"root ::= root \"a\" | \"b\"", "root calls itself before"},
        {"root ::= a\na ::= b? c\nb ::= \"x\"\nc ::= a", "calls itself before"},
        {"root ::= (root | \"a\"){2}", "calls itself before"},
        {"root ::= (([a-z]{100000} [0-9]){100000} \"a\"){100000}", "more than 262144 states"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pl_grammar *g;
        pl_error err = {0};
        pl_status s = pl_grammar_new(&g, pl_str_from(cases[i].text), &err);
        ck_assert_msg(s == PL_ERR_INVALID || s == PL_ERR_BUDGET, "%s: %s", cases[i].text, err.text);
        ck_says(err, cases[i].says);
        ck_assert_ptr_null(g);
    }
    pl_buf deep = {0};
    pl_error err = {0};
    pl_grammar *g;
    pl_buf_add_str(&deep, PL_STR("root ::= "));
    for (int i = 0; i < 100000; i++) pl_buf_add_u8(&deep, '(');
    ck_status(pl_grammar_new(&g, pl_buf_str(&deep), &err), PL_ERR_INVALID, err);
    ck_says(err, "nested too deeply");
    pl_buf_reset(&deep);
    pl_buf_add_str(&deep, PL_STR("root ::= \"a\""));
    for (int i = 0; i < 100000; i++) pl_buf_add_u8(&deep, '?');
    ck_status(pl_grammar_new(&g, pl_buf_str(&deep), &err), PL_ERR_INVALID, err);
    ck_says(err, "repeated too often");
    pl_buf_fini(&deep);
}
END_TEST

START_TEST(a_chain_of_many_empty_rules_is_looked_at_once)
{
    /* Each calls the next two before it reads; 20,000 of them would take minutes if any were walked again. */
    pl_buf text = {0};
    pl_error err = {0};
    pl_grammar *g;
    pl_buf_add_str(&text, PL_STR("root ::= r0\n"));
    for (int i = 0; i < 12000; i++) pl_buf_printf(&text, "r%d ::= | r%d? r%d\n", i, i + 1, i + 2);
    pl_buf_add_str(&text, PL_STR("r12000 ::= \"\"\nr12001 ::= \"x\"?\n"));
    ck_ok(pl_grammar_new(&g, pl_buf_str(&text), &err), err);
    pl_grammar_free(g);
    pl_buf_fini(&text);
}
END_TEST

static const char json[] =
    "root ::= object\n"
    "value ::= object | array | string | number | \"true\" | \"false\" | \"null\"\n"
    "object ::= \"{\" ws (string \":\" ws value (\",\" ws string \":\" ws value)*)? \"}\" ws\n"
    "array ::= \"[\" ws (value (\",\" ws value)*)? \"]\" ws\n"
    "string ::= \"\\\"\" ([^\"\\\\\\x00-\\x1f] | \"\\\\\" ([\"\\\\/bfnrt] | \"u\" [0-9a-fA-F]{4}))* \"\\\"\" ws\n"
    "number ::= \"-\"? ([0-9] | [1-9] [0-9]*) (\".\" [0-9]+)? ([eE] [-+]? [0-9]+)? ws\n"
    "ws ::= [ \\t\\n]*\n";

START_TEST(json_is_read_to_any_depth)
{
    ck_language(
        json,
        TEXTS("{}", "{\"a\": [1, -2.5e+7, \"x\\u00e4\\n\", {\"b\":null}], \"c\": true}", "{ \"\xc3\xa4\":\"\" }"),
        TEXTS("[]", "{\"a\":}", "{\"a\":1,}", "{\"a\":tru}", "{\"a\":\"\xff\"}", "{"));
    reading x = open_grammar(json);
    int32_t at = place_after(&x, "{\"a\":");
    for (int i = 0; i < 1000; i++) at = pl_grammar_step(x.r, at, '[');
    for (int i = 0; i < 1000; i++) at = pl_grammar_step(x.r, at, ']');
    ck_assert(pl_grammar_accepts(x.r, pl_grammar_step(x.r, at, '}')));
    close_grammar(&x);
}
END_TEST

/* A vocabulary of pieces that JSON and text are made of. */
enum { N_TOKENS = 3000 };
static void make_tokens(pl_str *texts, char (*store)[16])
{
    static const char alphabet[] = "ab01 \"\\{}[]:,.-+eEtrufalsn\n\t\xc3\xa4\xe2\x82\xac/";
    pl_rng rng;
    pl_rng_seed(&rng, 17);
    for (int i = 0; i < N_TOKENS; i++) {
        size_t n = i < 256 ? 1 : 1 + pl_rng_below(&rng, 8);
        for (size_t k = 0; k < n; k++)
            store[i][k] = i < 256 ? (char)i : alphabet[pl_rng_below(&rng, sizeof alphabet - 1)];
        if (i % 3 == 0 && i > 256)
            for (size_t k = 0; k < n; k++) store[i][k] = (char)('a' + pl_rng_below(&rng, 2));
        texts[i] = (pl_str){store[i], i % 97 == 5 ? 0 : n};
    }
}

START_TEST(a_mask_is_what_each_token_alone_would_be_told)
{
    static pl_str texts[N_TOKENS];
    static char store[N_TOKENS][16];
    static const char *const grammars[] = {json, "root ::= [a-b]{0,20} \".\"",
                                           "root ::= (\"ab\" | \"aba\" | \"b\"+ \"a\"){1,9}", "root ::= .*"};
    make_tokens(texts, store);
    pl_trie *t;
    pl_error err = {0};
    ck_ok(pl_trie_new(&t, texts, N_TOKENS, &err), err);
    pl_rng rng;
    pl_rng_seed(&rng, 5);
    for (size_t k = 0; k < sizeof grammars / sizeof *grammars; k++) {
        reading x = open_grammar(grammars[k]);
        int32_t at = pl_grammar_start(x.r);
        int allowed = 0, steps = 0;
        for (; steps < 60; steps++) {
            uint64_t mask[(N_TOKENS + 63) / 64] = {0};
            int32_t fits[N_TOKENS], n = 0;
            pl_trie_mask(t, x.r, at, mask);
            for (int i = 0; i < N_TOKENS; i++) {
                int32_t to = at;
                for (size_t c = 0; c < texts[i].size; c++) to = pl_grammar_step(x.r, to, (uint8_t)texts[i].data[c]);
                bool fit = texts[i].size > 0 && to != PL_PLACE_DEAD;
                ck_assert_msg((mask[i >> 6] >> (i & 63) & 1) == fit, "%s: token %d", grammars[k], i);
                if (fit) fits[n++] = i;
            }
            allowed += n;
            if (n == 0) break;
            pl_str text = texts[fits[pl_rng_below(&rng, (uint64_t)n)]];
            for (size_t c = 0; c < text.size; c++) at = pl_grammar_step(x.r, at, (uint8_t)text.data[c]);
        }
        ck_assert_int_gt(allowed, 100);
        close_grammar(&x);
    }
    for (int i = 0; i < N_TOKENS; i++) ck_assert(pl_str_eq(pl_trie_text(t, i), texts[i]));
    ck_assert_uint_gt(pl_trie_bytes(t), 10000);
    pl_trie_free(t);
}
END_TEST

START_TEST(places_are_forgotten_when_they_take_too_much)
{
    pl_grammar *g;
    pl_grammar_run *r;
    pl_error err = {0};
    ck_ok(pl_grammar_new(&g, PL_STR("root ::= \"(\" root \")\" | [a-z]{0,500}"), &err), err);
    ck_ok(pl_grammar_run_new(&r, g, 20000, &err), err);
    uint32_t generation = pl_grammar_generation(r);
    int32_t at = pl_grammar_start(r);
    int forgotten = 0;
    for (int i = 0; i < 400; i++) {
        pl_grammar_tidy(r);
        if (pl_grammar_generation(r) != generation) {
            generation = pl_grammar_generation(r);
            at = pl_grammar_start(r);
            for (int k = 0; k < i; k++) at = pl_grammar_step(r, at, 'a');
            forgotten++;
        }
        at = pl_grammar_step(r, at, 'a');
        ck_assert_msg(pl_grammar_accepts(r, at), "behind %d", i);
    }
    ck_assert_int_gt(forgotten, 0);
    pl_grammar_run_free(r);
    pl_grammar_free(g);
}
END_TEST

START_TEST(without_memory_a_grammar_is_refused)
{
    int refused = 0;
    for (uint64_t n = 1; n < 400; n++) {
        pl_grammar *g;
        pl_grammar_run *r = NULL;
        pl_trie *t = NULL;
        pl_error err = {0};
        pl_str texts[2] = {PL_STR("a"), PL_STR("ab")};
        pl_alloc_fail_at(n);
        pl_status s = pl_grammar_new(&g, pl_str_from(json), &err);
        if (s == PL_OK) s = pl_grammar_run_new(&r, g, 0, &err);
        if (s == PL_OK) s = pl_trie_new(&t, texts, 2, &err);
        pl_alloc_fail_at(0);
        ck_assert_msg(s == PL_OK || s == PL_ERR_NO_MEMORY, "%s", err.text);
        refused += s == PL_ERR_NO_MEMORY;
        pl_trie_free(t);
        pl_grammar_run_free(r);
        pl_grammar_free(g);
        if (s == PL_OK) break;
    }
    ck_assert_int_gt(refused, 20);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("grammar");
    TCase *t = tcase_create("grammar");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, literals_classes_and_choices);
    tcase_add_test(t, repetitions_count);
    tcase_add_test(t, rules_comments_and_lines);
    tcase_add_test(t, all_characters_of_a_class_and_no_others);
    tcase_add_test(t, what_is_no_grammar_is_refused_with_its_place);
    tcase_add_test(t, a_chain_of_many_empty_rules_is_looked_at_once);
    tcase_add_test(t, json_is_read_to_any_depth);
    tcase_add_test(t, a_mask_is_what_each_token_alone_would_be_told);
    tcase_add_test(t, places_are_forgotten_when_they_take_too_much);
    tcase_add_test(t, without_memory_a_grammar_is_refused);
    suite_add_tcase(s, t);
    return ck_run(s, NULL);
}
