/* WordPiece (GGUF model "bert"): words at white space and punctuation, each cut greedily into the longest tokens.
 *
 * As BERT's own tokenizer does it (normalizer, pre-tokenizer and model "WordPiece" of the tokenizers library): control
 * characters go, CJK characters and punctuation are words of their own, and where the vocabulary is lower case, letters
 * lose case and accents. The file writes a token that begins a word with U+2581 in front, and one that goes on without.
 * A word of more than 100 characters, or one that cannot be cut whole, is the unknown token. */
#include <utf8proc.h>

#include "engine/text/chars_impl.h"
#include "engine/text/vocab_impl.h"

#define WORD_CHARS_MAX 100

static bool is_cjk(int32_t c)
{
    return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) || (c >= 0x20000 && c <= 0x2a6df) ||
           (c >= 0x2a700 && c <= 0x2b73f) || (c >= 0x2b740 && c <= 0x2b81f) || (c >= 0x2b920 && c <= 0x2ceaf) ||
           (c >= 0xf900 && c <= 0xfaff) || (c >= 0x2f800 && c <= 0x2fa1f);
}

static bool is_punctuation(int32_t c)
{
    if (c < 0x80) return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) || (c >= 123 && c <= 126);
    utf8proc_category_t k = utf8proc_category(c);
    return k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO;
}

/* What is no text: control, format, private use. Form feeds and the like are dropped too, not spaces. */
static bool is_dropped(int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);
    if (c == '\t' || c == '\n' || c == '\r') return false;
    return c == 0 || c == 0xfffd || k == UTF8PROC_CATEGORY_CC || k == UTF8PROC_CATEGORY_CF ||
           k == UTF8PROC_CATEGORY_CS || k == UTF8PROC_CATEGORY_CO;
}

typedef struct words {
    const pl_vocab *v;
    pl_text_work *work;
    pl_buf *word; /* with U+2581 in front */
    size_t n_chars;
    pl_buf *out;
} words;

static void end_word(words *w)
{
    if (w->n_chars == 0) return;
    pl_str word = pl_buf_str(w->word);
    size_t start = w->out->size, from = 0;
    bool whole = w->n_chars <= WORD_CHARS_MAX;
    while (whole && from < word.size) {
        size_t to = word.size - from > w->v->longest ? from + w->v->longest : word.size;
        int32_t id = -1;
        for (; to > from; to--) {
            if (to < word.size && ((uint8_t)word.data[to] & 0xc0) == 0x80) continue;
            w->work->steps++;
            id = pl_vocab_normal(w->v, (pl_str){word.data + from, to - from});
            if (id >= 0) break;
        }
        /* A token that begins a word cannot go on in one that holds U+2581 itself. */
        whole = id >= 0 && (from == 0 || memcmp(word.data + from, "\xe2\x96\x81", to - from < 3 ? to - from : 3) != 0);
        if (whole) pl_buf_add(w->out, &id, sizeof id);
        from = to;
    }
    if (!whole) {
        w->out->size = start;
        if (w->v->unk >= 0) pl_buf_add(w->out, &w->v->unk, sizeof w->v->unk);
    }
    w->n_chars = 0;
}

static void put(words *w, int32_t c)
{
    if (w->n_chars == 0) {
        pl_buf_reset(w->word);
        pl_buf_add(w->word, "\xe2\x96\x81", 3);
    }
    /* What is too long already is not kept. */
    if (w->n_chars++ <= WORD_CHARS_MAX) pl_char_put(w->word, c);
}

static void put_normalized(words *w, int32_t c)
{
    if (pl_char_is_space(c)) {
        end_word(w);
        return;
    }
    bool alone = is_punctuation(c);
    if (alone) end_word(w);
    put(w, c);
    if (alone) end_word(w);
}

static void put_lower(words *w, int32_t c)
{
    if (!w->v->lowercase) {
        put_normalized(w, c);
    } else if (c == 0x130) { /* the one letter whose lower case is two characters */
        put_normalized(w, 'i');
        put_normalized(w, 0x307);
    } else {
        put_normalized(w, utf8proc_tolower(c));
    }
}

pl_status pl_wpm_encode(const pl_vocab *v, pl_text_work *work, pl_str text, pl_buf *out, pl_error *err)
{
    words w = {.v = v, .work = work, .word = &work->text, .out = out};
    for (size_t i = 0; i < text.size;) {
        int32_t c, parts[4];
        i += pl_char_at(text, i, &c);
        if (is_dropped(c)) continue;
        if (pl_char_is_space(c)) {
            end_word(&w);
            continue;
        }
        bool alone = is_cjk(c);
        if (alone) end_word(&w);
        utf8proc_ssize_t n = 1;
        parts[0] = c;
        if (v->strip_accents) n = utf8proc_decompose_char(c, parts, 4, UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, NULL);
        for (utf8proc_ssize_t k = 0; k < n && k < 4; k++) {
            if (v->strip_accents && utf8proc_category(parts[k]) == UTF8PROC_CATEGORY_MN) continue;
            put_lower(&w, parts[k]);
        }
        if (alone) end_word(&w);
    }
    end_word(&w);
    if (out->failed || work->text.failed)
        return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for the tokens of %zu bytes", text.size);
    return PL_OK;
}
