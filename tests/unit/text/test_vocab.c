/* Tokenizers: small vocabularies written here, and the expected tokens of real ones where PACELINE_TEST_DATA is set. */
#include "engine/text/vocab.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/alloc.h"
#include "engine/base/file.h"
#include "engine/base/rng.h"
#include "engine/gguf/write.h"
#include "engine/text/vocab_impl.h"
#include "tests/fixtures/fixtures.h"
#include "tests/unit/text/suites.h"

/* ---- making vocabularies ---- */

typedef struct toy {
    const char *model, *pre; /* NULL: the key is absent */
    const char *words[40];   /* normal tokens behind the 256 bytes */
    const char *control[8], *user[8];
    const char *merges[40];
    float scores[40]; /* of words */
    int no_space_prefix, add_eos;
    int bos_at, eos_at; /* index in control + 1 */
    bool no_byte_tokens, merge_spaces, unknown;
    int missing;      /* a byte that is no token */
    const char *name; /* general.name */
    const pl_bytes *charsmap;
} toy;

/* A GGUF file with 256 byte tokens first: GPT-2's visible alphabet, or <0x00> and on. */
static pl_buf write_toy(const toy *t)
{
    static char bytes[256][8];
    pl_str text[400];
    int32_t type[400];
    float score[400] = {0};
    size_t n = 0, n_merges = 0;
    pl_error err = {0};
    bool bpe = t->model && strcmp(t->model, "gpt2") == 0;
    bool merging = bpe || (t->model && strcmp(t->model, "gemma4") == 0);
    int next = 0x100;
    for (int b = 0; b < 256; b++) {
        if (bpe) {
            bool shown = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b != 0xad);
            int c = shown ? b : next++;
            if (c < 0x80)
                snprintf(bytes[b], 8, "%c", c);
            else
                snprintf(bytes[b], 8, "%c%c", 0xc0 | c >> 6, 0x80 | (c & 63));
        } else {
            snprintf(bytes[b], 8, "<0x%02X>", b);
        }
        type[n] = bpe ? PL_TOKEN_NORMAL : t->no_byte_tokens ? PL_TOKEN_UNUSED : PL_TOKEN_BYTE;
        if (t->missing && b == t->missing) type[n] = PL_TOKEN_UNUSED;
        text[n++] = pl_str_from(bytes[b]);
    }
    for (int i = 0; i < 40 && t->words[i]; i++) {
        score[n] = t->scores[i];
        type[n] = PL_TOKEN_NORMAL;
        text[n++] = pl_str_from(t->words[i]);
    }
    size_t control = n;
    for (int i = 0; i < 8 && t->control[i]; i++) type[n] = PL_TOKEN_CONTROL, text[n++] = pl_str_from(t->control[i]);
    for (int i = 0; i < 8 && t->user[i]; i++) type[n] = PL_TOKEN_USER_DEFINED, text[n++] = pl_str_from(t->user[i]);
    pl_str merges[40];
    for (int i = 0; i < 40 && t->merges[i]; i++) merges[n_merges++] = pl_str_from(t->merges[i]);

    pl_gguf_writer *w;
    ck_ok(pl_gguf_writer_new(&w, &err), err);
    if (t->model) pl_gguf_add_str(w, "tokenizer.ggml.model", pl_str_from(t->model));
    if (t->pre) pl_gguf_add_str(w, "tokenizer.ggml.pre", pl_str_from(t->pre));
    pl_gguf_add_strs(w, "tokenizer.ggml.tokens", text, n);
    pl_gguf_add_i32s(w, "tokenizer.ggml.token_type", type, n);
    if (merging)
        pl_gguf_add_strs(w, "tokenizer.ggml.merges", merges, n_merges);
    else
        pl_gguf_add_f32s(w, "tokenizer.ggml.scores", score, n);
    if (t->bos_at) pl_gguf_add_u32(w, "tokenizer.ggml.bos_token_id", (uint32_t)control + (uint32_t)t->bos_at - 1);
    if (t->eos_at) pl_gguf_add_u32(w, "tokenizer.ggml.eos_token_id", (uint32_t)control + (uint32_t)t->eos_at - 1);
    if (t->no_space_prefix) pl_gguf_add_bool(w, "tokenizer.ggml.add_space_prefix", false);
    if (t->add_eos) pl_gguf_add_bool(w, "tokenizer.ggml.add_eos_token", true);
    if (t->merge_spaces) pl_gguf_add_bool(w, "tokenizer.ggml.remove_extra_whitespaces", true);
    if (t->unknown) pl_gguf_add_u32(w, "tokenizer.ggml.unknown_token_id", (uint32_t)control);
    if (t->name) pl_gguf_add_str(w, "general.name", pl_str_from(t->name));
    if (t->charsmap) {
        pl_gguf_value map = {.kind = PL_GGUF_ARRAY, .elem = PL_GGUF_U8, .n = t->charsmap->size, .raw = *t->charsmap};
        pl_gguf_add_value(w, PL_STR("tokenizer.ggml.precompiled_charsmap"), &map);
    }
    pl_buf out = {0};
    ck_ok(pl_gguf_write(w, &out, &err), err);
    pl_gguf_writer_free(w);
    return out;
}

typedef struct opened {
    pl_buf file;
    pl_gguf *g;
    pl_vocab *v;
} opened;

static opened open_toy(const toy *t)
{
    opened o = {.file = write_toy(t)};
    pl_error err = {0};
    ck_ok(pl_gguf_open_bytes(&o.g, pl_buf_bytes(&o.file), false, &err), err);
    ck_ok(pl_vocab_open(&o.v, o.g, &err), err);
    return o;
}

static void close_toy(opened *o)
{
    pl_vocab_close(o->v);
    pl_gguf_close(o->g);
    pl_buf_fini(&o->file);
}

static void refused(const toy *t, pl_status want, const char *says)
{
    pl_buf file = write_toy(t);
    pl_gguf *g;
    pl_vocab *v;
    pl_error err = {0};
    ck_ok(pl_gguf_open_bytes(&g, pl_buf_bytes(&file), false, &err), err);
    ck_status(pl_vocab_open(&v, g, &err), want, err);
    ck_assert_ptr_null(v);
    ck_says(err, says);
    pl_gguf_close(g);
    pl_buf_fini(&file);
}

enum { SPECIAL = 1, PARSE = 2 };

/* The tokens of text, as their texts with | between them. */
static const char *tokens_of(const pl_vocab *v, pl_str text, int flags)
{
    static pl_buf shown;
    pl_buf ids = {0};
    pl_error err = {0};
    ck_ok(pl_tokenize(v, text, flags & SPECIAL, flags & PARSE, &ids, &err), err);
    pl_buf_reset(&shown);
    for (size_t i = 0; i < ids.size; i += 4) {
        if (i) pl_buf_add_u8(&shown, '|');
        pl_buf_add_str(&shown, pl_vocab_text(v, (int32_t)pl_get_u32(ids.data + i)));
    }
    pl_buf_fini(&ids);
    return pl_buf_cstr(&shown);
}
#define ck_tokens(v, text, flags, want) ck_assert_str_eq(tokens_of((v), pl_str_from(text), (flags)), (want))

static const toy bpe_toy = {
    .model = "gpt2",
    .pre = "gpt-2",
    .words = {"he", "ll", "hell", "hello", "Ġw", "Ġwo", "rl", "ld", "12", "Ã©", "ee", "eeee"},
    .merges = {"h e", "l l", "he ll", "hell o", "Ġ w", "Ġw o", "r l", "l d", "1 2", "Ã ©", "e e", "ee ee"},
    .control = {"<s>", "</s>", "<|im_end|>", "<|im", "<|im_end|><s>x"},
    .user = {"<tool>", "  "},
    .bos_at = 1,
    .eos_at = 2};

static const toy spm_toy = {
    .model = "llama",
    .words = {"▁", "h", "e", "l",  "o",  "▁h", "el", "lo", "▁hel", "▁hello", "ll",
              "é", "a", "b", "ab", "ba", "▁▁", "<s", "<",  "s",    ">",      "<s>x"},
    .scores = {-5, -9, -9, -9, -9, -1, -2, -3, -4, -5, -2.5f, -9, -9, -9, -1, -1, -8, -1, -9, -9, -9, -9},
    .control = {"<s>", "</s>"},
    .user = {"<tool>"},
    .bos_at = 1,
    .eos_at = 2};

/* [UNK] is the first control token. Capital letters are missing, so the text loses them. */
static const toy wpm_toy = {
    .model = "bert",
    .words = {"▁hello", "▁he", "llo", "▁e", "▁cafe", "s", "▁!", "▁漢", "▁ı", "l", "o", "▁3", "▁i"},
    .control = {"[UNK]", "[CLS]", "[SEP]", "[MASK]"},
    .no_byte_tokens = true};

static const toy ugm_toy = {
    .model = "t5",
    .words = {"▁", "▁hello", "▁he", "llo", "h", "e", "l", "o", "▁a", "b", "ab", "fi", "a", "\xef\xbf\xbd"},
    .scores = {-3, -4, -3, -2, -7, -7, -7, -7, -3, -5, -4, -4, -5, -9},
    .control = {"<unk>", "</s>"},
    .user = {"<tool>"},
    .eos_at = 2,
    .unknown = true,
    .no_byte_tokens = true};

/* ---- byte-level BPE ---- */

START_TEST(bpe_joins_in_the_order_of_its_merges)
{
    opened o = open_toy(&bpe_toy);
    ck_tokens(o.v, "hello", 0, "hello");
    ck_tokens(o.v, "hellx", 0, "hell|x");
    ck_tokens(o.v, "hello world", 0, "hello|Ġwo|rl|d"); /* r l before l d */
    ck_tokens(o.v, "eeeeeee", 0, "eeee|ee|e");          /* equal ranks from the left */
    ck_tokens(o.v, "é\n", 0, "Ã©|Ċ");
    ck_tokens(o.v, "", 0, "");
    close_toy(&o);
}
END_TEST

START_TEST(bpe_never_joins_over_the_edge_of_a_word)
{
    opened o = open_toy(&bpe_toy);
    ck_tokens(o.v, "1 2", 0, "1|Ġ|2");
    ck_tokens(o.v, "12", 0, "12");
    close_toy(&o);
    toy t = bpe_toy;
    t.pre = "smollm"; /* every digit is a word */
    o = open_toy(&t);
    ck_tokens(o.v, "12", 0, "1|2");
    close_toy(&o);
}
END_TEST

START_TEST(a_merge_may_pass_through_strings_that_are_no_tokens)
{
    toy t = {.model = "gpt2", .pre = "gpt-2", .words = {"abcd"}, .merges = {"a b", "c d", "ab cd", "x y"}};
    opened o = open_toy(&t);
    ck_tokens(o.v, "abcd", 0, "abcd");
    ck_tokens(o.v, "abc", 0, "a|b|c");
    ck_tokens(o.v, "xy", 0, "x|y");
    close_toy(&o);
}
END_TEST

START_TEST(a_byte_that_is_no_token_is_not_there)
{
    toy t = bpe_toy;
    t.missing = 1;
    t.pre = "superbpe"; /* which does not cut here */
    opened o = open_toy(&t);
    ck_tokens(o.v,
              "h\x01"
              "e",
              0, "he");
    ck_tokens(o.v, "\x01", 0, "");
    close_toy(&o);
}
END_TEST

START_TEST(bytes_that_are_no_text_survive_a_round_trip)
{
    const toy *toys[] = {&bpe_toy, &spm_toy};
    for (int k = 0; k < 2; k++) {
        toy t = *toys[k];
        t.no_space_prefix = 1;
        opened o = open_toy(&t);
        pl_rng rng;
        pl_rng_seed(&rng, 9);
        for (int round = 0; round < 400; round++) {
            uint8_t text[64];
            size_t n = pl_rng_below(&rng, sizeof text + 1);
            for (size_t i = 0; i < n; i++) {
                uint8_t any = (uint8_t)pl_rng_u64(&rng);
                text[i] = round % 2 ? any : (uint8_t) "hel o\xc3\xa9<s>\xff"[any % 12];
            }
            pl_buf ids = {0}, back = {0};
            pl_error err = {0};
            ck_ok(pl_tokenize(o.v, (pl_str){(char *)text, n}, false, true, &ids, &err), err);
            for (size_t i = 0; i < ids.size; i += 4)
                ck_assert(pl_detokenize(o.v, (int32_t)pl_get_u32(ids.data + i), true, &back));
            ck_assert_uint_eq(back.size, n);
            ck_assert(n == 0 || memcmp(back.data, text, n) == 0);
            pl_buf_fini(&ids);
            pl_buf_fini(&back);
        }
        close_toy(&o);
    }
}
END_TEST

START_TEST(special_tokens_are_cut_out_longest_first)
{
    opened o = open_toy(&bpe_toy);
    ck_tokens(o.v, "<|im_end|>x", PARSE, "<|im_end|>|x");
    ck_tokens(o.v, "<|im_end|><s>xy", PARSE, "<|im_end|><s>x|y");
    ck_tokens(o.v, "<|im_end|><s>", PARSE, "<|im_end|>|<s>");
    ck_tokens(o.v, "<|im_en", PARSE, "<|im|_|e|n");
    ck_tokens(o.v, "a  b", PARSE, "a|  |b");
    close_toy(&o);
}
END_TEST

START_TEST(control_tokens_in_plain_text_are_plain_text)
{
    opened o = open_toy(&bpe_toy);
    ck_tokens(o.v, "<s>", 0, "<|s|>");
    ck_tokens(o.v, "<tool>", 0, "<tool>"); /* the maker's own words are always cut out */
    close_toy(&o);
    o = open_toy(&spm_toy);
    ck_tokens(o.v, "<s>", 0, "▁|<s|>"); /* joining to <s> is not allowed, though < s > could */
    ck_tokens(o.v, "<s>h", PARSE, "<s>|▁h");
    close_toy(&o);
}
END_TEST

START_TEST(bos_and_eos_are_added_as_the_file_asks)
{
    toy t = bpe_toy;
    opened o = open_toy(&t);
    ck_tokens(o.v, "h", SPECIAL, "h"); /* gpt-2 adds none unless told */
    close_toy(&o);
    t.pre = "llama-bpe";
    o = open_toy(&t);
    ck_tokens(o.v, "h", SPECIAL, "<s>|h");
    ck_tokens(o.v, "h", 0, "h");
    close_toy(&o);
    t = spm_toy;
    t.add_eos = 1;
    o = open_toy(&t);
    ck_tokens(o.v, "h", SPECIAL, "<s>|▁h|</s>");
    ck_tokens(o.v, "", SPECIAL, "<s>|</s>");
    ck_assert_str_eq(tokens_of(o.v, (pl_str){0}, SPECIAL), "<s>|</s>");
    ck_assert_int_eq(pl_vocab_bos(o.v), pl_vocab_find(o.v, PL_STR("<s>")));
    ck_assert(pl_vocab_add_bos(o.v) && pl_vocab_add_eos(o.v));
    close_toy(&o);
    t.bos_at = t.eos_at = 0;
    o = open_toy(&t);
    ck_tokens(o.v, "h", SPECIAL, "▁h");
    ck_assert_int_eq(pl_vocab_bos(o.v), -1);
    close_toy(&o);
}
END_TEST

START_TEST(llama_3_leaves_a_word_that_is_a_token_whole)
{
    toy t = {.model = "gpt2", .pre = "llama-bpe", .words = {"ab", "bc", "abc"}, .merges = {"b c"}};
    opened o = open_toy(&t);
    ck_tokens(o.v, "abc", 0, "abc");
    close_toy(&o);
    t.pre = "gpt-2";
    o = open_toy(&t);
    ck_tokens(o.v, "abc", 0, "a|bc");
    close_toy(&o);
}
END_TEST

START_TEST(qwen2_composes_characters_first)
{
    toy t = bpe_toy;
    t.pre = "qwen2";
    opened o = open_toy(&t);
    ck_tokens(o.v, "e\xcc\x81", 0, "Ã©"); /* e and acute */
    ck_tokens(o.v, "xe\xcc\x81y", 0, "x|Ã©|y");
    ck_tokens(o.v,
              "\xff"
              "e\xcc\x81",
              0, "ÿ|Ã©");
    ck_tokens(o.v, "a\xcc\x81\xcc\xa3", 0, "á|º|¡|Ì|ģ"); /* marks in canonical order: dot below joins first */
    close_toy(&o);
    o = open_toy(&bpe_toy);
    ck_tokens(o.v, "e\xcc\x81", 0, "e|Ì|ģ");
    close_toy(&o);
}
END_TEST

START_TEST(an_unknown_or_missing_pre_tokenizer_is_refused_by_name)
{
    toy t = bpe_toy;
    t.pre = "frobnicate-9";
    refused(&t, PL_ERR_UNSUPPORTED, "frobnicate-9");
    t.pre = "";
    refused(&t, PL_ERR_UNSUPPORTED, "\"\"");
    t.pre = "gpt-2 phi-2"; /* names are whole words of the table */
    refused(&t, PL_ERR_UNSUPPORTED, "gpt-2 phi-2");
    t.pre = NULL;
    refused(&t, PL_ERR_UNSUPPORTED, "tokenizer.ggml.pre");
    t = bpe_toy;
    t.model = "rwkv";
    refused(&t, PL_ERR_UNSUPPORTED, "rwkv");
    t.model = NULL;
    refused(&t, PL_ERR_FORMAT, "tokenizer.ggml.model");
}
END_TEST

START_TEST(every_known_pre_tokenizer_opens_and_loses_no_byte)
{
    static const char *const names[] = {"gpt-2",        "phi-2",
                                        "smollm",       "starcoder",
                                        "refact",       "command-r",
                                        "llama-bpe",    "llama3",
                                        "llama-v3",     "dbrx",
                                        "qwen2",        "gpt-4o",
                                        "tekken",       "falcon",
                                        "deepseek-llm", "deepseek-coder",
                                        "deepseek-v3",  "default",
                                        "jina-es",      "jina-de",
                                        "jina-v1-en",   "jina-v2-es",
                                        "jina-v2-de",   "jina-v2-code",
                                        "roberta-bpe",  "gigachat",
                                        "a.x-4.0",      "mellum",
                                        "exaone4",      "jais",
                                        "trillion",     "granite-docling",
                                        "mpt",          "olmo",
                                        "modern-bert",  "codeshell",
                                        "exaone",       "minerva-7b",
                                        "mellum2",      "falcon3",
                                        "falcon-h1",    "pixtral",
                                        "midm-2.0",     "lfm2",
                                        "jina-v5-nano", "smaug-bpe",
                                        "glm4",         "chatglm-bpe",
                                        "jais-2",       "minicpm5",
                                        "megrez",       "kormo",
                                        "f2llmv2",      "deepseek-r1-qwen",
                                        "stablelm2",    "hunyuan",
                                        "solar-open",   "grok-2",
                                        "qwen35",       "ufakzeka",
                                        "laguna",       "bailingmoe",
                                        "bailingmoe2",  "llada-moe",
                                        "seed-coder",   "exaone-moe",
                                        "llama4",       "kanana2",
                                        "talkie",       "granite-embed-multi-97m",
                                        "minimax-m2",   "tiny_aya",
                                        "cohere2moe",   "youtu",
                                        "kimi-k2",      "poro-chat",
                                        "bloom",        "gpt3-finnish",
                                        "viking",       "chameleon",
                                        "superbpe",     "hunyuan-dense",
                                        "joyai-llm",    "hy_v4",
                                        "spark2_5",     "afmoe"};
    static const char text[] =
        "It's 12345 o'clock, FooBAR don'T \t\n\r\n  x  \xc2\xa0 \xe6\xbc\xa2\xe5\xad\x97\xe3\x81\x8b \xed\x95\x9c "
        "(a+b)==c!!\n\n \xd9\xa3\xd9\xa4 \xf0\x9f\x98\x80 $5 \xff\xfe end   ";
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        toy t = bpe_toy;
        t.pre = names[i];
        memset(t.user, 0, sizeof t.user);
        opened o = open_toy(&t);
        pl_buf ids = {0}, back = {0};
        pl_error err = {0};
        ck_ok(pl_tokenize(o.v, PL_STR(text), false, false, &ids, &err), err);
        for (size_t k = 0; k < ids.size; k += 4) pl_detokenize(o.v, (int32_t)pl_get_u32(ids.data + k), true, &back);
        ck_assert_msg(pl_str_eq(pl_buf_str(&back), PL_STR(text)), "%s: %.*s", names[i], PL_STR_ARG(pl_buf_str(&back)));
        pl_buf_fini(&ids);
        pl_buf_fini(&back);
        close_toy(&o);
    }
}
END_TEST

/* The words of text, with | between them: every pair of bytes inside a word is joined, so that a word is one token. */
static const char *words_of(const char *pre, const char *text)
{
    static pl_buf shown;
    pl_pretok *p;
    pl_error err = {0};
    pl_text_work w = {0};
    pl_str ends;
    ck_ok(pl_pretok_open(&p, pl_str_from(pre), NULL, &err), err);
    ck_ok(pl_pretok_split(p, &w, pl_str_from(text), &ends, &err), err);
    pl_buf_reset(&shown);
    for (size_t i = 0, from = 0; i < ends.size; i += 4) {
        size_t to = pl_get_u32(ends.data + i);
        if (i) pl_buf_add_u8(&shown, '|');
        pl_buf_add(&shown, text + from, to - from);
        from = to;
    }
    pl_text_work_fini(&w);
    pl_pretok_close(p);
    return pl_buf_cstr(&shown);
}

START_TEST(each_family_of_pre_tokenizers_cuts_its_own_words)
{
    static const struct {
        const char *pre, *text, *words;
    } cases[] = {
        {"gpt-2", "It's 1234  OK!\n\nx", "It|'s| 1234| | OK|!|\n|\n|x"},
        {"starcoder", "a 12", "a| |1|2"},
        {"llama-bpe", "I'LL pay 1234 (x)\n\n y", "I|'LL| pay| |123|4| (|x|)\n\n| y"},
        {"qwen2", "x12 y", "x|1|2| y"},
        {"qwen35", "e\xcc\x81x 1", "e\xcc\x81x| |1"},
        {"ufakzeka", "ev'de", "ev|'de"},
        {"seed-coder", "a!!\nb", "a|!!|\n|b"},
        {"bailingmoe", "a\n\nb", "a|\n\n|b"},
        {"laguna", "a!\nb", "a|!|\n|b"},
        {"exaone-moe", "ab cd! 1", "ab cd|!| |1"},
        {"gpt-4o", "fooBar's 1234/x", "foo|Bar's| |123|4|/x"},
        {"tekken", "fooBar's 12", "foo|Bar|'s| |1|2"},
        {"tiny_aya", "a 1234567 12345x", "a| |1|234|567| |123|45|x"},
        {"superbpe", "a b 12345 c", "a b |12|345| c"},
        {"afmoe", "1234 a.b", "1|234| a|.b"},
        {"kimi-k2",
         "\xe6\xbc\xa2\xe5\xad\x97"
         "abC",
         "\xe6\xbc\xa2\xe5\xad\x97|ab|C"},
        {"youtu",
         "\xe6\xbc\xa2"
         "ab12",
         "\xe6\xbc\xa2|ab|1|2"},
        {"bloom", "a b.c", "a| b|.|c"},
        {"viking", "a 12", "a| |1|2"},
        {"chameleon", "a    b IMGIMGABZ.", "a|    |b| |IMGIMGABZ|."},
        {"deepseek-v3", "a+b 1234\n", "a|+b| |123|4|\n"},
        {"spark2_5", "a!\n1234", "a|!|\n|1|2|3|4"},
        {"jais-2", "a     b", "a|    | b"},
        {"minicpm5", "x1234 y", "x|123|4| y"},
        {"gemma4", "a b\n\nc", "a b|\n\n|c"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *got = words_of(cases[i].pre, cases[i].text);
        ck_assert_msg(strcmp(got, cases[i].words) == 0, "%s: %s, not %s", cases[i].pre, got, cases[i].words);
    }
}
END_TEST

START_TEST(a_broken_list_of_merges_is_refused)
{
    toy t = bpe_toy;
    t.merges[0] = "nospace";
    refused(&t, PL_ERR_FORMAT, "merges[0]");
    t.merges[0] = "x ";
    refused(&t, PL_ERR_FORMAT, "merges[0]");
}
END_TEST

/* ---- SPM ---- */

START_TEST(spm_joins_the_best_score_first)
{
    opened o = open_toy(&spm_toy);
    ck_tokens(o.v, "hello", 0, "▁hello"); /* ▁h -1, el -2, ll -2.5 (e is gone), ▁hel -4, lo -3 → ▁hel lo → ▁hello */
    ck_tokens(o.v, "aba", 0, "▁|ab|a"); /* equal scores: from the left */
    ck_tokens(o.v, "h  o", 0, "▁h|▁▁|o");
    close_toy(&o);
}
END_TEST

START_TEST(spm_falls_back_to_bytes_and_then_to_unknown)
{
    opened o = open_toy(&spm_toy);
    ck_tokens(o.v, "é", 0, "▁|é");
    ck_tokens(o.v, "ü", 0, "▁|<0xC3>|<0xBC>");
    ck_tokens(o.v, "\xe6\xbc", 0, "▁|<0xE6>|<0xBC>"); /* cut short */
    ck_tokens(o.v, "\xc3h", 0, "▁|<0xC3>|h");
    close_toy(&o);
    toy t = spm_toy;
    t.no_byte_tokens = true;
    o = open_toy(&t);
    ck_tokens(o.v, "aü", 0, "▁|a"); /* no byte tokens and no unknown token: left out */
    close_toy(&o);
}
END_TEST

START_TEST(spm_puts_a_space_in_front_unless_the_file_says_no)
{
    toy t = spm_toy;
    opened o = open_toy(&t);
    ck_tokens(o.v, "h", 0, "▁h");
    ck_tokens(o.v, " h", 0, "▁|▁h");
    ck_tokens(o.v, "<tool>h", 0, "<tool>|▁h"); /* also behind a special token */
    ck_tokens(o.v, "", 0, "");
    close_toy(&o);
    t.no_space_prefix = 1;
    o = open_toy(&t);
    ck_tokens(o.v, "h", 0, "h");
    ck_tokens(o.v, " h", 0, "▁h");
    close_toy(&o);
}
END_TEST

START_TEST(phi_3_takes_the_white_space_behind_its_special_tokens_with_them)
{
    toy t = spm_toy;
    ck_assert_ptr_null(t.name);
    opened o = open_toy(&t);
    ck_tokens(o.v, "<tool> h", 0, "<tool>|▁|▁h");
    close_toy(&o);
    t.name = "My Phi-3 Mini";
    o = open_toy(&t);
    ck_tokens(o.v, "<tool> \n\xe3\x80\x80h", 0, "<tool>|▁h");
    ck_tokens(o.v, "<tool> \n", 0, "<tool>");
    ck_tokens(o.v, "<s> h", PARSE, "<s>|▁|▁h"); /* but not behind this one */
    close_toy(&o);
}
END_TEST

/* ---- raw BPE ---- */

START_TEST(raw_bpe_joins_characters_and_falls_back_to_bytes)
{
    toy t = {.model = "gemma4",
             .words = {"▁", "h", "e", "l", "▁h", "el", "\n", "\n\n\n", "é", "éé", "▁▁"},
             .merges = {"▁ h", "e l", "é é", "▁ ▁", "x ▁h"},
             .control = {"<bos>"},
             .bos_at = 1};
    opened o = open_toy(&t);
    ck_tokens(o.v, " hel", SPECIAL, "<bos>|▁h|el"); /* Gemma 4's files forget to ask for it */
    ck_tokens(o.v, "  h", 0, "▁|▁h");               /* the merge of lowest rank goes first */
    ck_tokens(o.v, "▁ e", 0, "▁▁|e");
    ck_tokens(o.v, "éééz", 0, "éé|é|<0x7A>");
    ck_tokens(o.v, "e\n\n\ne\n\n", 0, "e|\n\n\n|e|\n|\n"); /* line breaks stay whole without a merge */
    ck_tokens(o.v, "h\xffh", 0, "h|<0xFF>|h");
    close_toy(&o);
}
END_TEST

/* ---- WordPiece ---- */

START_TEST(wordpiece_takes_the_longest_tokens_of_each_word)
{
    opened o = open_toy(&wpm_toy);
    ck_tokens(o.v, "hello hellollo  he!llo", 0, "▁hello|▁hello|llo|▁he|▁!|[UNK]");
    ck_tokens(o.v, "Hello", SPECIAL, "[CLS]|▁hello|[SEP]");
    ck_tokens(o.v, "", SPECIAL, "[CLS]|[SEP]");
    ck_tokens(o.v, "helloq he", 0, "[UNK]|▁he"); /* a word is taken whole or not at all */
    ck_tokens(o.v, "[CLS]he", 0, "[UNK]|[UNK]|[UNK]|▁he");
    ck_tokens(o.v, "[MASK]he", PARSE, "[MASK]|▁he");
    close_toy(&o);
}
END_TEST

START_TEST(wordpiece_normalizes_as_bert_does)
{
    opened o = open_toy(&wpm_toy);
    ck_tokens(o.v, "CAFÉ cafe\xcc\x81s", 0, "▁cafe|▁cafe|s"); /* accents go, composed or not */
    ck_tokens(o.v, "he漢llo漢", 0, "▁he|▁漢|[UNK]|▁漢");
    ck_tokens(o.v,
              "h\xc2\xad"
              "e\x01\xff"
              "llo",
              0, "▁hello"); /* what is no text goes */
    ck_tokens(o.v, "he\xc2\xa0he\xe3\x80\x80he", 0, "▁he|▁he|▁he");
    ck_tokens(o.v, "\xc4\xb0 \xc4\xb1", 0, "▁i|▁ı"); /* Turkish dots */
    static char word[130] = "hello";
    for (size_t i = 5; i < 100; i++) word[i] = 'l';
    ck_assert_ptr_nonnull(strstr(tokens_of(o.v, pl_str_from(word), 0), "▁hello|l|l"));
    word[100] = 'l';
    ck_tokens(o.v, word, 0, "[UNK]"); /* longer than 100 characters */
    close_toy(&o);
    toy t = wpm_toy;
    t.words[13] = "▁X";
    o = open_toy(&t); /* a vocabulary with capital letters keeps case and accents */
    ck_tokens(o.v, "X Hello hello café", 0, "▁X|[UNK]|▁hello|[UNK]");
    close_toy(&o);
}
END_TEST

/* ---- Unigram ---- */

START_TEST(unigram_takes_the_likeliest_cut)
{
    opened o = open_toy(&ugm_toy);
    ck_tokens(o.v, "hello", SPECIAL, "▁hello|</s>"); /* -4 beats ▁he|llo with -5 */
    ck_tokens(o.v, "helloab", 0, "▁hello|ab");
    ck_tokens(o.v, "ab", 0, "▁|ab");                 /* -7, and ▁a|b has -8 */
    ck_tokens(o.v, "xyb z", 0, "▁|<unk>|b|▁|<unk>"); /* one for a run of unknown characters */
    ck_tokens(o.v, "\xff", 0, "▁|\xef\xbf\xbd");
    ck_tokens(o.v, "<tool>ab", 0, "<tool>|▁|ab");
    ck_tokens(o.v, "  a  a ", 0, "▁|▁|▁a|▁|▁a|▁");
    close_toy(&o);
    toy t = ugm_toy;
    t.no_byte_tokens = false;
    o = open_toy(&t);
    ck_tokens(o.v, "x\xc3\xa9", 0, "▁|<0x78>|<0xC3>|<0xA9>");
    close_toy(&o);
}
END_TEST

/* A double array of one block of 256 units for each node: "A" gives "a", U+FB01 "fi", U+3000 a space. */
static void put_unit(pl_buf *b, size_t at, uint32_t unit)
{
    pl_put_u32(b->data + 4 + at * 4, unit);
}

static pl_buf make_charsmap(void)
{
    enum { LEAF = 1u << 8, VALUE = 1u << 31, BLOCKS = 10 };
    pl_buf b = {0};
    pl_buf_add_u32(&b, BLOCKS * 256 * 4);
    for (int i = 0; i < BLOCKS * 256; i++) pl_buf_add_u32(&b, 0xff); /* the label of no child here */
    pl_buf_add(&b, "a\0fi\0 \0", 7);
    /* A unit: the distance to its children's block << 10, whether it is a leaf, its label. */
    put_unit(&b, 0, 256 << 10);
    put_unit(&b, 256 ^ 'A', (uint32_t)(256 ^ 'A' ^ 512) << 10 | LEAF | 'A');
    put_unit(&b, 512, VALUE | 0);
    put_unit(&b, 256 ^ 0xef, (256u ^ 0xef ^ 768) << 10 | 0xef);
    put_unit(&b, 768 ^ 0xac, (768u ^ 0xac ^ 1024) << 10 | 0xac);
    put_unit(&b, 1024 ^ 0x81, (1024u ^ 0x81 ^ 1280) << 10 | LEAF | 0x81);
    put_unit(&b, 1280, VALUE | 2);
    put_unit(&b, 256 ^ 0xe3, (256u ^ 0xe3 ^ 1536) << 10 | 0xe3);
    put_unit(&b, 1536 ^ 0x80, (1536u ^ 0x80 ^ 1792) << 10 | 0x80);
    put_unit(&b, 1792 ^ 0x80, (1792u ^ 0x80 ^ 2048) << 10 | LEAF | 0x80);
    put_unit(&b, 2048, VALUE | 5);
    return b;
}

START_TEST(unigram_normalizes_by_the_files_charsmap_and_merges_spaces)
{
    toy t = ugm_toy;
    pl_buf map = make_charsmap();
    pl_bytes bytes = pl_buf_bytes(&map);
    t.charsmap = &bytes;
    t.merge_spaces = true;
    opened o = open_toy(&t);
    ck_tokens(o.v, "A\xef\xac\x81", 0, "▁a|fi");
    ck_tokens(o.v, "  A \xe3\x80\x80 hello  ", 0, "▁a|▁hello");
    ck_tokens(o.v, " \xe3\x80\x80 ", 0, "");
    ck_tokens(o.v, "\xef\xac", 0, "▁|\xef\xbf\xbd|\xef\xbf\xbd"); /* a key that is cut short */
    close_toy(&o);
    t.no_space_prefix = 1;
    o = open_toy(&t);
    ck_tokens(o.v, "  ab hello ", 0, "ab|▁hello");
    close_toy(&o);
    pl_buf_fini(&map);
}
END_TEST

START_TEST(a_broken_charsmap_is_refused_or_ends_the_walk)
{
    toy t = ugm_toy;
    pl_buf map = make_charsmap();
    pl_bytes bytes = {map.data, 3};
    t.charsmap = &bytes;
    refused(&t, PL_ERR_FORMAT, "precompiled_charsmap");
    bytes.size = 1000;
    refused(&t, PL_ERR_FORMAT, "precompiled_charsmap");
    bytes.size = 4 + 2560 * 4; /* no replacements */
    opened o = open_toy(&t);
    ck_tokens(o.v, "A", 0, "▁|<unk>");
    close_toy(&o);
    bytes.size += 1; /* one without its end */
    o = open_toy(&t);
    ck_tokens(o.v, "A", 0, "▁|<unk>");
    close_toy(&o);
    bytes.size = map.size;
    put_unit(&map, 256 ^ 'A', 0x3fffffu << 10 | 1u << 9 | 'A'); /* far outside */
    o = open_toy(&t);
    ck_tokens(o.v, "AA", 0, "▁|<unk>");
    close_toy(&o);
    pl_buf_fini(&map);
}
END_TEST

/* ---- all ---- */

START_TEST(the_tokens_that_end_an_answer_are_known_by_id_and_by_name)
{
    opened o = open_toy(&bpe_toy);
    ck_assert(pl_vocab_is_eog(o.v, pl_vocab_find(o.v, PL_STR("</s>"))));
    ck_assert(pl_vocab_is_eog(o.v, pl_vocab_find(o.v, PL_STR("<|im_end|>"))));
    ck_assert(!pl_vocab_is_eog(o.v, pl_vocab_find(o.v, PL_STR("<s>"))));
    ck_assert(!pl_vocab_is_eog(o.v, pl_vocab_find(o.v, PL_STR("hello"))));
    ck_assert(!pl_vocab_is_eog(o.v, -1));
    ck_assert(!pl_vocab_is_eog(o.v, 1 << 30));
    close_toy(&o);
    toy t = bpe_toy;
    t.words[0] = "<|eot_id|>"; /* a normal token of that name ends nothing */
    o = open_toy(&t);
    ck_assert(!pl_vocab_is_eog(o.v, 256));
    close_toy(&o);
}
END_TEST

START_TEST(a_stream_gives_whole_characters_only)
{
    opened o = open_toy(&bpe_toy);
    pl_detok_stream s;
    pl_buf out = {0};
    pl_detok_start(&s, o.v, false, true);
    const uint8_t bytes[] = {0xf0, 0x9f, 0x98, 0x80, 'a', 0xc3, 'b', 0xff, 0xe2, 0x82};
    const char *after[] = {"",
                           "",
                           "",
                           "\xf0\x9f\x98\x80",
                           "a",
                           "",
                           ("\xef\xbf\xbd"
                            "b"),
                           "\xef\xbf\xbd",
                           "",
                           ""};
    for (size_t i = 0; i < sizeof bytes; i++) {
        pl_buf_reset(&out);
        ck_assert(pl_detok_add(&s, bytes[i], &out)); /* the first 256 tokens are the bytes */
        ck_assert_str_eq(pl_buf_cstr(&out), after[i]);
    }
    pl_buf_reset(&out);
    ck_assert(pl_detok_end(&s, &out));
    ck_assert_str_eq(pl_buf_cstr(&out), "\xef\xbf\xbd");
    pl_buf_fini(&out);
    close_toy(&o);
}
END_TEST

START_TEST(a_stream_drops_the_space_that_spm_put_in_front)
{
    opened o = open_toy(&spm_toy);
    for (int strip = 0; strip < 2; strip++) {
        pl_detok_stream s;
        pl_buf out = {0};
        pl_detok_start(&s, o.v, false, strip);
        const char *tokens[] = {"<s>", "▁hello", "▁h", "</s>"};
        for (size_t i = 0; i < 4; i++) pl_detok_add(&s, pl_vocab_find(o.v, pl_str_from(tokens[i])), &out);
        pl_detok_end(&s, &out);
        ck_assert_str_eq(pl_buf_cstr(&out), strip ? "hello h" : " hello h");
        pl_buf_fini(&out);
    }
    close_toy(&o);
}
END_TEST

/* Sanitizers slow all of it down some ten times. */
enum { LONG_TEXT = PL_TEST_SANITIZED ? 100000 : 1000000, COUNTED_TEXT = PL_TEST_SANITIZED ? 1000 : 3000 };

/* Texts that invite blow-ups, repeated to n bytes. */
static const char *const units[] = {"e",   " ",  "\n",           "!",  "1",     "'",  "\xff", "\xcc\x81\xcc\xa3", "<|",
                                    "\t ", "eE", "\xe6\xbc\xa2", "e ", "\r\n ", "'s", ".,"};
enum { N_UNITS = sizeof units / sizeof units[0] };

static void repeat(char *text, size_t n, const char *unit)
{
    size_t k = strlen(unit);
    for (size_t i = 0; i < n; i++) text[i] = unit[i % k];
    text[n - 1] = 'x';
}

/* One name of each family of expressions. */
static const char *const families[] = {
    "gpt-2",       "smollm",     "llama-bpe",  "jais-2",     "minicpm5",  "qwen2",    "qwen35",       "ufakzeka",
    "laguna",      "bailingmoe", "seed-coder", "exaone-moe", "gpt-4o",    "tiny_aya", "youtu",        "kimi-k2",
    "tekken",      "falcon",     "bloom",      "viking",     "chameleon", "superbpe", "deepseek-llm", "deepseek-coder",
    "deepseek-v3", "spark2_5",   "afmoe",      "gemma4",     "default"};
enum { N_FAMILIES = sizeof families / sizeof families[0] };

START_TEST(the_steps_of_the_expressions_grow_with_the_text)
{
    /* Counted, not timed: an expression that goes back over what it has passed takes four times as long for twice the
     * text. */
    enum { N = COUNTED_TEXT };
    static char text[2 * N];
    for (int f = 0; f < N_FAMILIES; f++) {
        uint64_t steps = 0;
        pl_pretok *p;
        pl_error err = {0};
        ck_ok(pl_pretok_open(&p, pl_str_from(families[f]), &steps, &err), err);
        for (int u = 0; u < N_UNITS; u++) {
            uint64_t took[2];
            if ((uint8_t)units[u][0] == 0xff) continue; /* the expressions only see characters */
            for (int twice = 0; twice < 2; twice++) {
                size_t n = twice ? 2 * N : N;
                pl_text_work w = {0};
                pl_str ends;
                repeat(text, n, units[u]);
                n = pl_utf8_valid_prefix((pl_str){text, n});
                steps = 0;
                ck_ok(pl_pretok_split(p, &w, (pl_str){text, n}, &ends, &err), err);
                took[twice] = steps;
                pl_text_work_fini(&w);
            }
            ck_assert_msg(took[1] <= 100 * 2 * N && took[1] <= 2 * took[0] + took[0] / 4 + 4000,
                          "%s, unit %d: %llu steps, and %llu for twice the text", families[f], u,
                          (unsigned long long)took[0], (unsigned long long)took[1]);
        }
        pl_pretok_close(p);
    }
}
END_TEST

START_TEST(the_steps_of_the_tokenizers_grow_with_the_text)
{
    enum { N = LONG_TEXT };
    static char text[N];
    const toy *toys[] = {&bpe_toy, &spm_toy, &wpm_toy, &ugm_toy};
    for (int k = 0; k < 4; k++) {
        toy t = *toys[k];
        if (k == 0) t.pre = "superbpe"; /* one word of it all */
        opened o = open_toy(&t);
        for (int u = 0; u < N_UNITS; u++) {
            pl_text_work w = {0};
            pl_buf ids = {0};
            pl_error err = {0};
            pl_str all = {text, N};
            repeat(text, N, units[u]);
            ck_ok(k == 0   ? pl_bpe_encode(o.v->bpe, &w, all, &ids, &err)
                  : k == 1 ? pl_spm_encode(o.v, &w, all, &ids, &err)
                  : k == 2 ? pl_wpm_encode(o.v, &w, all, &ids, &err)
                           : pl_ugm_encode(o.v, &w, all, &ids, &err),
                  err);
            /* Each join takes a pair off the heap and puts two on it; a place of Unigram has as many tokens as there
             * are that begin alike. A space has three bytes in SPM and Unigram. */
            ck_assert_msg(w.steps <= 10ull * N, "%s, unit %d: %llu steps", t.model, u, (unsigned long long)w.steps);
            pl_text_work_fini(&w);
            pl_buf_fini(&ids);
        }
        close_toy(&o);
    }
}
END_TEST

START_TEST(a_million_bytes_of_any_kind_become_tokens)
{
    enum { N = LONG_TEXT };
    static char text[N];
    for (int f = 0; f < N_FAMILIES; f++) {
        toy t = bpe_toy;
        t.pre = families[f];
        opened o = open_toy(&t);
        for (int u = f % 3; u < N_UNITS; u += 3) { /* each family meets a third of them: these take time */
            repeat(text, N, units[u]);
            pl_buf ids = {0};
            pl_error err = {0};
            ck_ok(pl_tokenize(o.v, (pl_str){text, N}, false, true, &ids, &err), err);
            ck_assert_uint_ge(ids.size, 4);
            pl_buf_fini(&ids);
        }
        close_toy(&o);
    }
}
END_TEST

START_TEST(no_memory_at_any_allocation_is_an_error_and_leaks_nothing)
{
    const toy *toys[] = {&bpe_toy, &spm_toy, &wpm_toy, &ugm_toy};
    for (int k = 0; k < 4; k++) {
        toy t = *toys[k];
        if (k == 0) t.pre = "qwen2";
        pl_buf file = write_toy(&t);
        pl_gguf *g;
        pl_vocab *v = NULL;
        pl_error err = {0};
        ck_ok(pl_gguf_open_bytes(&g, pl_buf_bytes(&file), false, &err), err);
        bool opened_at_last = false;
        for (uint64_t n = 1; n < 5000 && !opened_at_last; n++) {
            pl_alloc_fail_at(n);
            pl_status s = pl_vocab_open(&v, g, &err);
            pl_alloc_fail_at(0);
            opened_at_last = s == PL_OK;
            if (!opened_at_last) ck_status(s, PL_ERR_NO_MEMORY, err);
        }
        ck_assert(opened_at_last);
        pl_buf out = {0};
        bool done = false;
        for (uint64_t n = 1; n < 100 && !done; n++) {
            pl_buf_fini(&out);
            pl_alloc_fail_at(n);
            pl_status s = pl_tokenize(v, PL_STR("hello wor\xff e\xcc\x81 <tool>ld"), true, true, &out, &err);
            pl_alloc_fail_at(0);
            done = s == PL_OK;
            if (!done) {
                ck_status(s, PL_ERR_NO_MEMORY, err);
                ck_assert_uint_eq(out.size, 0);
            }
        }
        ck_assert(done);
        pl_buf_fini(&out);
        pl_vocab_close(v);
        pl_gguf_close(g);
        pl_buf_fini(&file);
    }
}
END_TEST

/* ---- real vocabularies ---- */

static const char *const real[] = {"gpt-2",          "refact",    "falcon", "deepseek-llm",
                                   "deepseek-coder", "llama-spm", "phi-3",  "bert-bge"};
/* These are made from tokenizer.json by tests/golden/tokenizer_json.py, which runs this suite on its folder. */
static const char *const made[] = {"llama-bpe", "qwen2", "deepseek-r1-qwen", "gpt-4o", "gemma4"};

/* path: the GGUF file, beside which .inp and .out are. */
static void expected_tokens(const char *name, const char *gguf)
{
    char path[1000];
    pl_buf inp = {0}, want = {0};
    pl_error err = {0};
    bool lossy = strcmp(name, "bert-bge") == 0; /* case, accents and spaces do not come back */
    snprintf(path, sizeof path, "%s", gguf);
    pl_gguf *g;
    pl_vocab *v;
    ck_ok(pl_gguf_open(&g, path, &err), err);
    ck_ok(pl_vocab_open(&v, g, &err), err);
    size_t end = strlen(path);
    memcpy(path + end, ".inp", 5);
    ck_ok(pl_file_read(&inp, path, 1 << 20, &err), err);
    memcpy(path + end, ".out", 5);
    ck_ok(pl_file_read(&want, path, 1 << 20, &err), err);

    static const char line[] = "\n__ggml_vocab_test__\n";
    const char *text = pl_buf_cstr(&inp), *ids = pl_buf_cstr(&want);
    int n = 0;
    for (const char *next; text; text = next, n++) {
        const char *to = strstr(text, line);
        next = to ? to + sizeof line - 1 : NULL;
        pl_str t = {text, to ? (size_t)(to - text) : strlen(text)};
        pl_buf got = {0}, back = {0};
        ck_ok(pl_tokenize(v, t, false, false, &got, &err), err);
        pl_detok_stream d;
        pl_detok_start(&d, v, true, true);
        const char *eol = strchr(ids, '\n');
        for (size_t i = 0; i < got.size; i += 4) {
            int32_t id = (int32_t)pl_get_u32(got.data + i);
            char *after;
            long wanted = strtol(ids, &after, 10);
            ck_assert_msg(after != ids && (!eol || after <= eol), "%s, text %d: token %zu, %d, is one too many", name,
                          n, i / 4, (int)id);
            ck_assert_msg(wanted == id, "%s, text %d: token %zu is %d, expected %ld", name, n, i / 4, (int)id, wanted);
            ids = after;
            pl_detok_add(&d, id, &back);
        }
        ids += strspn(ids, " ");
        ck_assert_msg(*ids == '\n' || *ids == 0, "%s, text %d: %zu tokens are too few", name, n, got.size / 4);
        ids += *ids == '\n';
        ck_assert_msg(lossy || pl_str_eq(pl_buf_str(&back), t), "%s, text %d does not come back", name, n);
        pl_buf_fini(&got);
        pl_buf_fini(&back);
    }
    ck_assert_int_eq(n, 47);
    pl_buf_fini(&inp);
    pl_buf_fini(&want);
    pl_vocab_close(v);
    pl_gguf_close(g);
}

START_TEST(real_vocabularies_give_the_expected_tokens)
{
    char file[200];
    const char *path;
    snprintf(file, sizeof file, "models/ggml-vocab/ggml-vocab-%s.gguf", real[_i]);
    if ((path = test_data(file))) expected_tokens(real[_i], path);
}
END_TEST

START_TEST(vocabularies_made_from_tokenizer_json_give_the_expected_tokens)
{
    char path[1000];
    snprintf(path, sizeof path, "%s/ggml-vocab-%s.gguf", getenv("PACELINE_MADE_VOCABULARIES"), made[_i]);
    expected_tokens(made[_i], path);
}
END_TEST

START_TEST(a_real_vocabulary_without_a_pre_tokenizer_is_refused)
{
    const char *path = test_data("models/ggml-vocab/ggml-vocab-gpt-neox.gguf");
    if (!path) return;
    pl_gguf *g;
    pl_vocab *v;
    pl_error err = {0};
    ck_ok(pl_gguf_open(&g, path, &err), err);
    ck_status(pl_vocab_open(&v, g, &err), PL_ERR_UNSUPPORTED, err);
    ck_says(err, "tokenizer.ggml.pre");
    pl_gguf_close(g);
}
END_TEST

Suite *vocab_suite(void)
{
    Suite *s = suite_create("vocab");
    TCase *t = tcase_create("vocab");
    tcase_set_timeout(t, 240);
    tcase_add_test(t, bpe_joins_in_the_order_of_its_merges);
    tcase_add_test(t, bpe_never_joins_over_the_edge_of_a_word);
    tcase_add_test(t, a_merge_may_pass_through_strings_that_are_no_tokens);
    tcase_add_test(t, a_byte_that_is_no_token_is_not_there);
    tcase_add_test(t, bytes_that_are_no_text_survive_a_round_trip);
    tcase_add_test(t, special_tokens_are_cut_out_longest_first);
    tcase_add_test(t, control_tokens_in_plain_text_are_plain_text);
    tcase_add_test(t, bos_and_eos_are_added_as_the_file_asks);
    tcase_add_test(t, llama_3_leaves_a_word_that_is_a_token_whole);
    tcase_add_test(t, qwen2_composes_characters_first);
    tcase_add_test(t, an_unknown_or_missing_pre_tokenizer_is_refused_by_name);
    tcase_add_test(t, every_known_pre_tokenizer_opens_and_loses_no_byte);
    tcase_add_test(t, each_family_of_pre_tokenizers_cuts_its_own_words);
    tcase_add_test(t, a_broken_list_of_merges_is_refused);
    tcase_add_test(t, phi_3_takes_the_white_space_behind_its_special_tokens_with_them);
    tcase_add_test(t, raw_bpe_joins_characters_and_falls_back_to_bytes);
    tcase_add_test(t, wordpiece_takes_the_longest_tokens_of_each_word);
    tcase_add_test(t, wordpiece_normalizes_as_bert_does);
    tcase_add_test(t, unigram_takes_the_likeliest_cut);
    tcase_add_test(t, unigram_normalizes_by_the_files_charsmap_and_merges_spaces);
    tcase_add_test(t, a_broken_charsmap_is_refused_or_ends_the_walk);
    tcase_add_test(t, spm_joins_the_best_score_first);
    tcase_add_test(t, spm_falls_back_to_bytes_and_then_to_unknown);
    tcase_add_test(t, spm_puts_a_space_in_front_unless_the_file_says_no);
    tcase_add_test(t, the_tokens_that_end_an_answer_are_known_by_id_and_by_name);
    tcase_add_test(t, a_stream_gives_whole_characters_only);
    tcase_add_test(t, a_stream_drops_the_space_that_spm_put_in_front);
    tcase_add_test(t, the_steps_of_the_expressions_grow_with_the_text);
    tcase_add_test(t, the_steps_of_the_tokenizers_grow_with_the_text);
    tcase_add_test(t, a_million_bytes_of_any_kind_become_tokens);
    tcase_add_test(t, no_memory_at_any_allocation_is_an_error_and_leaks_nothing);
    suite_add_tcase(s, t);
    t = tcase_create("real");
    tcase_set_timeout(t, 240);
    tcase_add_loop_test(t, real_vocabularies_give_the_expected_tokens, 0, sizeof real / sizeof real[0]);
    tcase_add_test(t, a_real_vocabulary_without_a_pre_tokenizer_is_refused);
    suite_add_tcase(s, t);
    if (getenv("PACELINE_MADE_VOCABULARIES")) {
        t = tcase_create("made");
        tcase_set_timeout(t, 240);
        tcase_add_loop_test(t, vocabularies_made_from_tokenizer_json_give_the_expected_tokens, 0,
                            sizeof made / sizeof made[0]);
        suite_add_tcase(s, t);
    }
    return s;
}
