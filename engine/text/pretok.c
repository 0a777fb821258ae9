/* Cuts a text into the words inside which byte-level BPE may join.
 *
 * A pre-tokenizer is a list of regular expressions, as the model's own tokenizer.json has it: each cuts every piece
 * that the one before it left into its matches and what lies between them. All pieces are words. PCRE2 runs them
 * compiled by its JIT. White space is spelled out, because PCRE2's \s also has U+180E, which Unicode's White_Space (and
 * so the models' tokenizers) has not. No text makes these slow: in each expression every repetition either takes what
 * it passed over or is anchored on its left
 * ((?<!\s) in front of what stands for `\s+$`, which alone would be quadratic in a long run of spaces). */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <utf8proc.h>

#include "engine/base/alloc.h"
#include "engine/text/chars_impl.h"
#include "engine/text/vocab_impl.h"

#define WIDE   " \\x{85}\\xA0\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
#define S      "\\t-\\r" WIDE
#define SPACE  "[" S "]"
#define SPACES SPACE "+(?![^" S "])|" SPACE "+" /* all but the last before a word, then the rest */
#define LINES  SPACE "*[\\r\\n]+|" SPACES

#define GPT2        "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" S "\\p{L}\\p{N}]+|" SPACES
#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
/* The family of cl100k: digits says how digits are grouped. */
#define CL100K(digits) CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^" S "\\p{L}\\p{N}]+[\\r\\n]*|" LINES
/* The family of o200k: words are cut where lower case turns to upper case. */
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define O200K(end, digits)                                                                                             \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" end "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" end "|" digits      \
    "| ?[^" S "\\p{L}\\p{N}]+[\\r\\n/]*|" LINES
#define CJK "[\\x{800}-\\x{9FA5}\\x{AC00}-\\x{D7FF}]+"
/* Letters with case, as DeepSeek's first tokenizer lists them. */
#define CASED                                                                                                          \
    "A-Za-z\\x{B5}\\x{C0}-\\x{D6}\\x{D8}-\\x{F6}\\x{F8}-\\x{1BA}\\x{1BC}-\\x{1BF}\\x{1C4}-\\x{293}"                    \
    "\\x{295}-\\x{2AF}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37B}-\\x{37D}\\x{37F}\\x{386}\\x{388}-\\x{38A}"             \
    "\\x{38C}\\x{38E}-\\x{3A1}\\x{3A3}-\\x{3F5}\\x{3F7}-\\x{481}\\x{48A}-\\x{52F}\\x{531}-\\x{556}"                    \
    "\\x{10A0}-\\x{10C5}\\x{13A0}-\\x{13F5}\\x{13F8}-\\x{13FD}\\x{1C90}-\\x{1CBA}\\x{1CBD}-\\x{1CBF}"                  \
    "\\x{1D00}-\\x{1D2B}\\x{1D6B}-\\x{1D77}\\x{1D79}-\\x{1D9A}\\x{1E00}-\\x{1F15}\\x{1F18}-\\x{1F1D}"                  \
    "\\x{1F20}-\\x{1F45}\\x{1F48}-\\x{1F4D}\\x{1F50}-\\x{1F57}\\x{1F59}\\x{1F5B}\\x{1F5D}\\x{1F5F}-\\x{1F7D}"          \
    "\\x{1F80}-\\x{1FB4}\\x{1FB6}-\\x{1FBC}\\x{1FBE}\\x{1FC2}-\\x{1FC4}\\x{1FC6}-\\x{1FCC}\\x{1FD0}-\\x{1FD3}"         \
    "\\x{1FD6}-\\x{1FDB}\\x{1FE0}-\\x{1FEC}\\x{1FF2}-\\x{1FF4}\\x{1FF6}-\\x{1FFC}\\x{2102}\\x{2107}"                   \
    "\\x{210A}-\\x{2113}\\x{2115}\\x{2119}-\\x{211D}\\x{2124}\\x{2126}\\x{2128}\\x{212A}-\\x{212D}"                    \
    "\\x{212F}-\\x{2134}\\x{2139}\\x{213C}-\\x{213F}\\x{2145}-\\x{2149}\\x{214E}\\x{2183}\\x{2184}"                    \
    "\\x{2C00}-\\x{2C7B}\\x{2C7E}-\\x{2CE4}\\x{2CEB}-\\x{2CEE}\\x{2CF2}\\x{2CF3}\\x{A640}-\\x{A66D}"                   \
    "\\x{A680}-\\x{A69B}\\x{A722}-\\x{A76F}\\x{A771}-\\x{A787}\\x{A78B}-\\x{A78E}\\x{AB70}-\\x{ABBF}"                  \
    "\\x{FB00}-\\x{FB06}\\x{FB13}-\\x{FB17}\\x{FF21}-\\x{FF3A}\\x{FF41}-\\x{FF5A}\\x{10400}-\\x{1044F}"                \
    "\\x{104B0}-\\x{104D3}\\x{104D8}-\\x{104FB}\\x{10C80}-\\x{10CB2}\\x{10CC0}-\\x{10CF2}"                             \
    "\\x{118A0}-\\x{118DF}\\x{1E900}-\\x{1E943}"
#define NOT_BEHIND_SPACE "(?<!" SPACE ")"

/* The family of o200k with words that Chinese characters are not part of, as Kimi K2 has it. A class cannot take
 * another one away, so these say what is not in them. */
#define UPPER_NOT_HAN     "[^\\p{C}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{Ll}\\p{sc:Han}]"
#define LOWER_NOT_HAN     "[^\\p{C}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{Lu}\\p{Lt}\\p{sc:Han}]"
#define DEEPSEEK_V3(tail) "[!-/:-@\\[-`{-~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+" tail
#define HAN_KANA          "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{30FF}]+"
/* The scripts that Arcee's tokenizer keeps apart. */
#define ASIAN                                                                                                          \
    "[\\x{4E00}-\\x{9FFF}\\x{3400}-\\x{4DBF}\\x{F900}-\\x{FAFF}\\x{3040}-\\x{30FF}\\x{FF65}-\\x{FF9F}"                 \
    "\\x{2F00}-\\x{2FDF}\\x{E40}-\\x{E7F}\\x{E80}-\\x{EFF}\\x{1780}-\\x{17FF}\\x{1000}-\\x{109F}"                      \
    "\\x{AA60}-\\x{AA7F}\\x{A9E0}-\\x{A9FF}\\x{AC00}-\\x{D7AF}\\x{1100}-\\x{11FF}]+"
/* Words end at this punctuation only. */
#define BLOOM " ?[^(" S "|.,!?\\x{2026}\\x{3002}\\x{FF0C}\\x{3001}\\x{964}\\x{6D4}\\x{60C})]+"
#define GEMMA "[^\\n]+|\\n+"
/* Lines are looked for only where no blank stands in front: behind one they were looked for already, in vain, and in a
 * long run of blanks, of which each match takes a piece, looking again each time would be quadratic. */
#define LINES_ONCE "(?<![\\t\\x{B}\\x{C}" WIDE "])" SPACE "*[\\r\\n]+"
#define HALVING                                                                                                        \
    SPACE "{512}(?![^" S "])|" SPACE "{256}(?![^" S "])|" SPACE "{128}(?![^" S "])|" SPACE "{64}(?![^" S "])|" SPACE   \
          "{32}(?![^" S "])|" SPACE "{16}(?![^" S "])|" SPACE "{8}(?![^" S "])|" SPACE "{4}(?![^" S "])|" SPACE        \
          "{1,2}(?![^" S "])|" SPACE

/* Not an expression: digits are grouped by three from the right of their run, which no expression does in linear time.
 */
static const char thousands[] = "thousands";
/* The same where no letter, mark, digit or low line follows the run; other runs stay as they are. */
static const char thousands_of_words[] = "thousands of words";

typedef struct rule {
    const char *names; /* each between spaces */
    const char *regex[6];
    bool ignore_merges, add_bos, nfc;
    bool raw;     /* BPE over characters, with bytes as <0x00> */
    bool escaped; /* a space is written as U+2581 */
} rule;

/* A name stands here only when its expressions, its normalization and its flags are all known. */
static const rule rules[] = {
    {" gpt-2 phi-2 jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code roberta-bpe gigachat a.x-4.0 mellum "
     "exaone4 jais trillion granite-docling ",
     {GPT2}},
    {" mpt olmo modern-bert ", {GPT2}, .nfc = true},
    {" smollm starcoder refact codeshell exaone minerva-7b mellum2 ", {"\\p{N}", GPT2}},
    {" command-r ", {"\\p{N}", GPT2}, .nfc = true},
    {" llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano ",
     {CL100K("\\p{N}{1,3}")},
     .ignore_merges = true,
     .add_bos = true},
    {" dbrx smaug-bpe glm4 chatglm-bpe ", {CL100K("\\p{N}{1,3}")}},
    {" jais-2 ",
     {CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^" S "\\p{L}\\p{N}]+[\\r\\n]*|" LINES_ONCE
                  "|" HALVING}},
    {" minicpm5 ", {"\\p{N}{1,3}", CL100K("\\p{N}+")}, .ignore_merges = true},
    {" qwen2 megrez kormo f2llmv2 ", {CL100K("\\p{N}")}, .nfc = true},
    {" deepseek-r1-qwen stablelm2 hunyuan solar-open grok-2 ", {CL100K("\\p{N}")}},
    {" qwen35 ",
     {CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^" S "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" LINES},
     .nfc = true},
    {" ufakzeka ", {"[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^" S "\\p{L}\\p{N}]+[\\r\\n]*|" LINES}},
    {" laguna ", {GEMMA, CL100K("\\p{N}")}},
    {" bailingmoe bailingmoe2 llada-moe ",
     {"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^" S "\\p{L}\\p{N}]++[\\r\\n]*|" SPACE
      "*[\\r\\n]|" SPACES}},
    {" seed-coder ", {CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^" S "\\p{L}\\p{N}]+|" LINES}},
    {" exaone-moe ",
     {CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*+(?: \\p{L}\\p{M}*+)*+)++|\\p{N}| ?[^" S
                  "\\p{L}\\p{N}]+[\\r\\n/]?|" SPACE "*[\\r\\n]|" SPACES}},
    {" gpt-4o llama4 kanana2 talkie granite-embed-multi-97m ",
     {O200K(CONTRACTION "?", "\\p{N}{1,3}")},
     .ignore_merges = true},
    {" minimax-m2 ", {O200K(CONTRACTION "?", "\\p{N}{1,3}")}},
    {" tiny_aya cohere2moe ", {thousands_of_words, O200K(CONTRACTION "?", "\\p{N}{1,3}")}},
    {" youtu ",
     {"[\\x{AC00}-\\x{D7A3}\\x{3131}-\\x{318E}]+|[!\\x{2026}\\x{201C}\\x{201D}\\x{2018}\\x{2019}\\x{2014}:\\x{FF1B},"
      "\\x{3001}-\\x{303F}\\x{FE30}-\\x{FE4F}]+|[\\x{3105}-\\x{312F}]+|" HAN_KANA,
      O200K(CONTRACTION "?", "\\p{N}")},
     .ignore_merges = true},
    {" kimi-k2 ",
     {"\\p{sc:Han}+|[^\\r\\n\\p{L}\\p{N}]?" UPPER_NOT_HAN "*" LOWER_NOT_HAN "+" CONTRACTION
      "?|[^\\r\\n\\p{L}\\p{N}]?" UPPER_NOT_HAN "+" LOWER_NOT_HAN "*" CONTRACTION "?|\\p{N}{1,3}| ?[^" S
      "\\p{L}\\p{N}]+[\\r\\n]*|" LINES}},
    {" tekken ", {O200K("", "\\p{N}")}, .ignore_merges = true, .add_bos = true},
    {" falcon ", {"[\\p{P}$+<=>^~|`]+", GPT2, "[0-9]{3}"}},
    {" poro-chat bloom gpt3-finnish ", {BLOOM}},
    {" viking ", {BLOOM, "\\p{N}"}},
    {" chameleon ",
     {"<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", "[\\t\\n]|    |  ", "\\p{N}", "[\\p{P}!-/:-@\\[-`{-~]", GPT2},
     .add_bos = true},
    {" superbpe ", {"\\p{N}+", thousands}},
    {" deepseek-llm ",
     {"[\\r\\n]", SPACE "?[" CASED "]+",
      SPACE "?[!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}\\x{2018}-\\x{201F}\\x{3000}-\\x{3002}]+",
      NOT_BEHIND_SPACE SPACE "+\\z", CJK, "\\p{N}+"}},
    {" deepseek-coder ", {"[\\r\\n]", SPACE "?\\p{L}+", SPACE "?\\p{P}+", CJK, "\\p{N}"}},
    {" deepseek-v3 hunyuan-dense joyai-llm hy_v4 ", {"\\p{N}{1,3}", HAN_KANA, DEEPSEEK_V3("[\\r\\n]*|" LINES)}},
    {" spark2_5 ", {"\\p{N}{1,3}", HAN_KANA, DEEPSEEK_V3("|[\\r\\n]|" SPACES), "\\p{N}"}},
    {" afmoe ", {thousands, ASIAN, DEEPSEEK_V3("[\\r\\n]*|" LINES)}},
    {" gemma4 granite-embed-multi-311m sarvam-moe ", {GEMMA}, .raw = true, .escaped = true},
    /* What files that were converted without a name say; it means these expressions, not "any". */
    {" default ", {"[\\p{P}$+<=>^~|]+", GPT2, "\\p{N}+", "[0-9]{3}"}},
};

struct pl_pretok {
    const rule *rule;
    int n;
    pcre2_code *code[6]; /* NULL for what is no expression */
    pcre2_match_context *limits;
};

/* For texts that the JIT's stack of 32 KiB does not carry; a text that exceeds this too is an error. */
static const uint32_t match_limit = 50000000, heap_limit_kib = 65536;

static const rule *find_rule(pl_str name)
{
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        for (const char *p = rules[i].names; (p = memchr(p, ' ', strlen(p))) && p[1];) {
            const char *from = ++p, *end = strchr(from, ' ');
            if (pl_str_eq(name, (pl_str){from, (size_t)(end - from)})) return &rules[i];
            p = end;
        }
    }
    return NULL;
}

static int count_step(pcre2_callout_block *block, void *steps)
{
    (void)block;
    ++*(uint64_t *)steps;
    return 0;
}

pl_status pl_pretok_open(pl_pretok **out, pl_str name, uint64_t *steps, pl_error *err)
{
    *out = NULL;
    const rule *r = find_rule(name);
    if (!r)
        return pl_fail(err, PL_ERR_UNSUPPORTED, "pre-tokenizer \"%.*s\" (tokenizer.ggml.pre) is not known",
                       name.size > 64 ? 64 : (int)name.size, name.data);
    pl_pretok *p = pl_calloc(1, sizeof *p);
    if (!p) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for the pre-tokenizer");
    p->rule = r;
    p->limits = pcre2_match_context_create(NULL);
    if (!p->limits) goto no_memory;
    pcre2_set_match_limit(p->limits, match_limit);
    pcre2_set_heap_limit(p->limits, heap_limit_kib);
    if (steps) pcre2_set_callout(p->limits, count_step, steps);
    uint32_t options = PCRE2_UTF | PCRE2_UCP | (steps ? PCRE2_AUTO_CALLOUT : 0);
    for (; p->n < 6 && r->regex[p->n]; p->n++) {
        int code;
        size_t at;
        if (r->regex[p->n] == thousands || r->regex[p->n] == thousands_of_words) continue;
        p->code[p->n] = pcre2_compile((PCRE2_SPTR)r->regex[p->n], PCRE2_ZERO_TERMINATED, options, &code, &at, NULL);
        if (!p->code[p->n] && code == PCRE2_ERROR_HEAP_FAILED) goto no_memory;
        PL_ASSERT(p->code[p->n] != NULL);                     /* the table is ours */
        pcre2_jit_compile(p->code[p->n], PCRE2_JIT_COMPLETE); /* without a JIT the interpreter gives the same, slower */
    }
    *out = p;
    return PL_OK;
no_memory:
    pl_pretok_close(p);
    return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for the pre-tokenizer");
}

void pl_pretok_close(pl_pretok *p)
{
    if (!p) return;
    for (int i = 0; i < p->n; i++) pcre2_code_free(p->code[i]);
    pcre2_match_context_free(p->limits);
    pl_free(p);
}

bool pl_pretok_ignore_merges(const pl_pretok *p)
{
    return p->rule->ignore_merges;
}
bool pl_pretok_add_bos(const pl_pretok *p)
{
    return p->rule->add_bos;
}
bool pl_pretok_nfc(const pl_pretok *p)
{
    return p->rule->nfc;
}
bool pl_pretok_escaped(const pl_pretok *p)
{
    return p->rule->escaped;
}
bool pl_pretok_is_raw(pl_str name)
{
    const rule *r = find_rule(name);
    return r && r->raw;
}

static bool is_number(int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);
    return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}

/* What \\w of the tokenizers library takes: letters, marks, digits, connecting punctuation. */
static bool is_word(int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);
    return (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_ND) || k == UTF8PROC_CATEGORY_PC;
}

/* Cuts runs of digits in text[from, to) into threes from their right, and what lies between from them. */
static void cut_thousands(pl_str text, size_t from, size_t to, bool of_words, pl_buf *ends)
{
    pl_str piece = {text.data, to};
    size_t done = from;
    for (size_t at = from, size; at < to; at += size) {
        int32_t c;
        size = pl_char_at(piece, at, &c);
        if (of_words ? utf8proc_category(c) != UTF8PROC_CATEGORY_ND : !is_number(c)) continue;
        /* The run's length first, then its pieces. */
        size_t n = 0, end = at;
        int32_t next = -1;
        for (size_t k; end < to; end += k, n++) {
            k = pl_char_at(piece, end, &next);
            if (of_words ? utf8proc_category(next) != UTF8PROC_CATEGORY_ND : !is_number(next)) break;
            next = -1;
        }
        if (of_words && next >= 0 && is_word(next)) {
            size = end - at;
            continue;
        }
        if (at > done) pl_buf_add_u32(ends, (uint32_t)at);
        for (; at < end; n--) {
            at += pl_char_at(piece, at, &c);
            if (n % 3 == 1) pl_buf_add_u32(ends, (uint32_t)at);
        }
        done = end;
        size = 0;
    }
    if (done < to) pl_buf_add_u32(ends, (uint32_t)to);
}

/* Appends the ends of the pieces into which code cuts text[from, to). */
static pl_status cut(const pl_pretok *p, const pcre2_code *code, pcre2_match_data *match, pl_str text, size_t from,
                     size_t to, pl_buf *ends, pl_error *err)
{
    PCRE2_SPTR piece = (PCRE2_SPTR)text.data + from;
    size_t size = to - from, at = 0;
    while (at < size) {
        int n = pcre2_match(code, piece, size, at, PCRE2_NO_UTF_CHECK, match, p->limits);
        if (n == PCRE2_ERROR_JIT_STACKLIMIT)
            n = pcre2_match(code, piece, size, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, match, p->limits);
        if (n == PCRE2_ERROR_NOMATCH) break;
        if (n < 0) {
            char word[128] = "";
            pcre2_get_error_message(n, (PCRE2_UCHAR *)word, sizeof word);
            return pl_fail(err, n == PCRE2_ERROR_NOMEMORY ? PL_ERR_NO_MEMORY : PL_ERR_INVALID,
                           "the text cannot be cut into words at byte %zu: %s", from + at, word);
        }
        const size_t *v = pcre2_get_ovector_pointer(match);
        PL_ASSERT(v[1] > v[0] && v[0] >= at); /* no expression of the table matches nothing */
        if (v[0] > at) pl_buf_add_u32(ends, (uint32_t)(from + v[0]));
        pl_buf_add_u32(ends, (uint32_t)(from + v[1]));
        at = v[1];
    }
    if (at < size) pl_buf_add_u32(ends, (uint32_t)to);
    return PL_OK;
}

pl_status pl_pretok_split(const pl_pretok *p, pl_text_work *w, pl_str text, pl_str *ends, pl_error *err)
{
    pl_status s = PL_OK;
    pl_buf *now = &w->ends[0], *then = &w->ends[1];
    pcre2_match_data *match = pcre2_match_data_create(8, NULL);
    if (!match) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory to cut %zu bytes into words", text.size);
    pl_buf_reset(now);
    if (text.size > 0) pl_buf_add_u32(now, (uint32_t)text.size);
    for (int i = 0; i < p->n && s == PL_OK; i++) {
        pl_buf_reset(then);
        size_t from = 0;
        for (size_t k = 0; k + 4 <= now->size && s == PL_OK; k += 4) {
            size_t to = pl_get_u32(now->data + k);
            if (p->code[i])
                s = cut(p, p->code[i], match, text, from, to, then, err);
            else
                cut_thousands(text, from, to, p->rule->regex[i] == thousands_of_words, then);
            from = to;
        }
        if (s == PL_OK && then->failed)
            s = pl_fail(err, PL_ERR_NO_MEMORY, "no memory to cut %zu bytes into words", text.size);
        pl_buf *swap = now;
        now = then;
        then = swap;
    }
    pcre2_match_data_free(match);
    *ends = pl_buf_str(now);
    return s;
}

/* Puts a run of combining marks into canonical order: stable, by class. utf8proc does this too, but in quadratic time.
 */
static bool order_marks(utf8proc_int32_t *c, size_t n, pl_buf *scratch)
{
    if (n < 2) return true;
    size_t at[257] = {0};
    pl_buf_reset(scratch);
    if (!pl_buf_reserve(scratch, n * sizeof *c)) return false;
    utf8proc_int32_t *sorted = (utf8proc_int32_t *)(void *)scratch->data;
    for (size_t i = 0; i < n; i++) at[(utf8proc_get_property(c[i])->combining_class & 255) + 1]++;
    for (int k = 0; k < 256; k++) at[k + 1] += at[k];
    for (size_t i = 0; i < n; i++) sorted[at[utf8proc_get_property(c[i])->combining_class & 255]++] = c[i];
    memcpy(c, sorted, n * sizeof *c);
    return true;
}

static bool nfc_run(pl_str text, pl_buf *out)
{
    /* No character decomposes into more than 4 in form D. */
    pl_buf chars = {0}, scratch = {0};
    bool ok = pl_buf_reserve(&chars, (text.size + 1) * 4 * sizeof(utf8proc_int32_t));
    utf8proc_int32_t *c = (utf8proc_int32_t *)(void *)chars.data;
    size_t n = 0, mark = 0;
    for (size_t i = 0; ok && i < text.size;) {
        utf8proc_int32_t x;
        i += (size_t)utf8proc_iterate((const utf8proc_uint8_t *)text.data + i, (utf8proc_ssize_t)(text.size - i), &x);
        utf8proc_ssize_t k = utf8proc_decompose_char(x, c + n, 4, UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, NULL);
        PL_ASSERT(k >= 1 && k <= 4);
        for (; k > 0; k--, n++) {
            if (utf8proc_get_property(c[n])->combining_class != 0) continue;
            ok = ok && order_marks(c + mark, n - mark, &scratch);
            mark = n + 1;
        }
    }
    ok = ok && order_marks(c + mark, n - mark, &scratch);
    if (ok) {
        utf8proc_ssize_t m = utf8proc_normalize_utf32(c, (utf8proc_ssize_t)n, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
        PL_ASSERT(m >= 0);
        for (utf8proc_ssize_t i = 0; i < m; i++) {
            utf8proc_uint8_t u[4];
            pl_buf_add(out, u, (size_t)utf8proc_encode_char(c[i], u));
        }
    }
    pl_buf_fini(&chars);
    pl_buf_fini(&scratch);
    return ok && !out->failed;
}

bool pl_text_nfc(pl_str text, pl_buf *out)
{
    /* Below U+0300 everything is composed and nothing combines, so only a run from the character in front of one above
     * it needs work. */
    size_t from = 0, i = 0;
    while (i < text.size) {
        if ((uint8_t)text.data[i] < 0xcc) {
            i++;
            continue;
        }
        size_t start = i, end = i;
        while (start > from && ((uint8_t)text.data[--start] & 0xc0) == 0x80) continue;
        /* To the next two ASCII characters in a row: a mark may join the one in front of it, never one behind it. */
        while (end < text.size &&
               ((uint8_t)text.data[end] >= 0x80 || (end + 1 < text.size && (uint8_t)text.data[end + 1] >= 0x80)))
            end++;
        if (!pl_buf_add(out, text.data + from, start - from) || !nfc_run((pl_str){text.data + start, end - start}, out))
            return false;
        from = i = end;
    }
    return pl_buf_add(out, text.data + from, text.size - from);
}
