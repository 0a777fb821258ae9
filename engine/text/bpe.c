/* Byte-level BPE (GGUF model "gpt2"): words of bytes, in which neighbours are joined in the order of the list of
 * merges.
 *
 * The file writes bytes in a visible alphabet of 256 characters (GPT-2's); here everything is bytes again. Merges work
 * on symbols: ids of tokens, and ids behind them for strings that a merge makes or takes although they are no token.
 *
 * Raw BPE (Gemma 4) joins characters instead: the file writes them as they are, a space as U+2581, and a character that
 * is no token in <0x00> to <0xFF>. */
#include <inttypes.h>

#include "engine/base/alloc.h"
#include "engine/base/rng.h"
#include "engine/text/chars_impl.h"
#include "engine/text/vocab_impl.h"

typedef struct merge {
    uint64_t pair; /* left symbol, right symbol */
    uint32_t rank;
    int32_t id; /* -1: a free place */
} merge;

struct pl_bpe {
    pl_pretok *pretok;
    const pl_vocab *v;
    int32_t n_tokens;
    bool raw;
    int32_t byte_symbol[256]; /* not raw */
    merge *merges;            /* open addressing; n_places is a power of two, at most half full */
    size_t n_places;
    uint64_t seed;
    pl_map whole; /* bytes of a token → id; kept when words that are tokens stay whole, and for characters */
};

/* GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes in ascending order for U+0100 and on. */
static int byte_of_visible(uint32_t c)
{
    if ((c >= 0x21 && c <= 0x7e) || (c >= 0xa1 && c <= 0xac) || (c >= 0xae && c <= 0xff)) return (int)c;
    if (c < 0x100 || c > 0x143) return -1;
    c -= 0x100;
    return c <= 0x20 ? (int)c : c <= 0x42 ? (int)(0x7f + c - 0x21) : 0xad;
}

bool pl_bpe_visible_to_bytes(pl_str text, pl_buf *out)
{
    for (size_t i = 0; i < text.size;) {
        /* Every character of the alphabet has one or two bytes. */
        uint8_t a = (uint8_t)text.data[i];
        bool two = (a & 0xe0) == 0xc0 && i + 1 < text.size && ((uint8_t)text.data[i + 1] & 0xc0) == 0x80;
        int byte = byte_of_visible(two ? (uint32_t)(a & 0x1f) << 6 | ((uint32_t)text.data[i + 1] & 0x3f) : a);
        if ((a >= 0x80 && !two) || byte < 0) byte = a, two = false; /* no character of the alphabet: as it stands */
        pl_buf_add_u8(out, (uint8_t)byte);
        i += two ? 2 : 1;
    }
    return !out->failed;
}

static uint64_t mix(uint64_t x)
{
    x ^= x >> 32;
    x *= 0x9e3779b97f4a7c15u;
    x ^= x >> 29;
    return x;
}

static merge *find_merge(const pl_bpe *b, uint64_t pair)
{
    size_t i = (size_t)mix(pair ^ b->seed) & (b->n_places - 1);
    while (b->merges[i].id >= 0 && b->merges[i].pair != pair) i = (i + 1) & (b->n_places - 1);
    return &b->merges[i];
}

/* The symbol of these bytes; a new one if there is none. */
static bool symbol_of(pl_map *symbols, pl_str bytes, int32_t *next, int32_t *out)
{
    uint64_t id;
    if (pl_map_get(symbols, bytes, &id)) {
        *out = (int32_t)id;
        return true;
    }
    *out = (*next)++;
    return pl_map_set(symbols, bytes, (uint64_t)*out);
}

static bool bytes_of(const pl_bpe *b, pl_str text, pl_buf *out)
{
    return b->raw ? pl_spm_unescape(text, out) : pl_bpe_visible_to_bytes(text, out);
}

static pl_status load_merges(pl_bpe *b, pl_map *symbols, const pl_gguf_value *merges, pl_error *err)
{
    pl_buf bytes = {0};
    pl_status s = PL_OK;
    int32_t next = b->n_tokens;
    for (int i = 0; i < 256 && !b->raw; i++) {
        char c = (char)i;
        if (!symbol_of(symbols, (pl_str){&c, 1}, &next, &b->byte_symbol[i])) goto no_memory;
    }
    b->n_places = 16;
    while (b->n_places < merges->n * 2) b->n_places *= 2;
    b->seed = pl_random_seed();
    b->merges = pl_calloc(b->n_places, sizeof *b->merges);
    if (!b->merges) goto no_memory;
    for (size_t i = 0; i < b->n_places; i++) b->merges[i].id = -1;

    size_t at = 0;
    pl_str text;
    for (uint32_t rank = 0; pl_gguf_next_str(merges, &at, &text); rank++) {
        const char *gap = text.size > 2 ? memchr(text.data + 1, ' ', text.size - 2) : NULL;
        if (!gap) {
            s = pl_fail(err, PL_ERR_FORMAT, "tokenizer.ggml.merges[%u] is not two words: \"%.*s\"", rank,
                        text.size > 64 ? 64 : (int)text.size, text.data);
            goto done;
        }
        pl_buf_reset(&bytes);
        size_t n_left = (size_t)(gap - text.data), split;
        if (!bytes_of(b, (pl_str){text.data, n_left}, &bytes)) goto no_memory;
        split = bytes.size;
        if (!bytes_of(b, (pl_str){gap + 1, text.size - n_left - 1}, &bytes)) goto no_memory;
        pl_str all = pl_buf_str(&bytes);
        int32_t left, right, id;
        if (!symbol_of(symbols, (pl_str){all.data, split}, &next, &left)) goto no_memory;
        if (!symbol_of(symbols, (pl_str){all.data + split, all.size - split}, &next, &right)) goto no_memory;
        if (!symbol_of(symbols, all, &next, &id)) goto no_memory;
        uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
        merge *m = find_merge(b, pair);
        if (m->id < 0) *m = (merge){pair, rank, id};
    }
    goto done;
no_memory:
    s = pl_fail(err, PL_ERR_NO_MEMORY, "no memory for %" PRIu64 " merges", merges->n);
done:
    pl_buf_fini(&bytes);
    return s;
}

pl_status pl_bpe_new(pl_bpe **out, const pl_vocab *v, const pl_gguf_value *merges, pl_error *err)
{
    *out = NULL;
    pl_map symbols = {0};
    pl_bpe *b = pl_calloc(1, sizeof *b);
    if (!b) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for the tokenizer");
    b->v = v;
    b->n_tokens = v->n;
    b->raw = pl_pretok_is_raw(pl_str_from(v->pre));
    pl_status s = pl_pretok_open(&b->pretok, pl_str_from(v->pre), NULL, err);
    if (s != PL_OK) goto fail;
    /* Each merge makes at most three symbols, and their ids have to fit. */
    if (merges->n > (uint64_t)(INT32_MAX - v->n - 256) / 3) {
        s = pl_fail(err, PL_ERR_FORMAT, "tokenizer.ggml.merges has %" PRIu64 " entries", merges->n);
        goto fail;
    }
    for (int32_t i = 0; i < v->n; i++) {
        bool word = v->type[i] == PL_TOKEN_NORMAL || (b->raw && v->type[i] == PL_TOKEN_USER_DEFINED);
        if (!word || pl_map_get(&symbols, v->piece[i], NULL)) continue;
        if (!pl_map_set(&symbols, v->piece[i], (uint64_t)i)) {
            s = pl_fail(err, PL_ERR_NO_MEMORY, "no memory for %d tokens", (int)v->n);
            goto fail;
        }
    }
    if ((s = load_merges(b, &symbols, merges, err)) != PL_OK) goto fail;
    if (b->raw || pl_pretok_ignore_merges(b->pretok))
        b->whole = symbols;
    else
        pl_map_fini(&symbols);
    *out = b;
    return PL_OK;
fail:
    pl_map_fini(&symbols);
    pl_bpe_free(b);
    return s;
}

void pl_bpe_free(pl_bpe *b)
{
    if (!b) return;
    pl_pretok_close(b->pretok);
    pl_map_fini(&b->whole);
    pl_free(b->merges);
    pl_free(b);
}

const pl_pretok *pl_bpe_pretok(const pl_bpe *b)
{
    return b->pretok;
}

static bool bpe_pair(const void *user, const pl_symbol *x, const pl_symbol *y, int32_t *id, uint32_t *priority)
{
    const merge *m = find_merge(user, (uint64_t)(uint32_t)x->id << 32 | (uint32_t)y->id);
    *id = m->id;
    *priority = m->rank;
    return m->id >= 0;
}

static bool emit(const pl_bpe *b, const char *text, const pl_symbol *s, pl_buf *out)
{
    if (s->id < b->n_tokens) return pl_buf_add(out, &s->id, sizeof s->id);
    /* A string that is no token is written byte by byte. */
    const int32_t *bytes = b->raw ? b->v->byte_id : b->byte_symbol;
    for (uint32_t i = 0; i < s->size; i++) {
        int32_t id = bytes[(uint8_t)text[s->at + i]];
        if (id >= 0 && id < b->n_tokens && !pl_buf_add(out, &id, sizeof id)) return false;
    }
    return true;
}

/* The first symbols of a word: its bytes or, raw, its characters. Gives how many. */
static size_t first_symbols(const pl_bpe *b, pl_str word, pl_symbol *s)
{
    size_t n = 0;
    for (size_t i = 0, size; i < word.size; i += size, n++) {
        s[n] = (pl_symbol){.at = (uint32_t)i, .size = 1, .id = b->byte_symbol[(uint8_t)word.data[i]]};
        size = 1;
        if (!b->raw) continue;
        int32_t c;
        uint64_t id = INT32_MAX; /* no merge takes this one */
        size = pl_char_at(word, i, &c);
        pl_map_get(&b->whole, (pl_str){word.data + i, size}, &id);
        s[n].size = (uint32_t)size;
        s[n].id = (int32_t)id;
    }
    return n;
}

/* Whether a word that is a token stays whole: always, or (raw) where it is all line breaks, which no merge makes. */
static bool stays_whole(const pl_bpe *b, pl_str word)
{
    if (!b->raw) return true; /* the map of whole words is empty where they do not stay whole */
    for (size_t i = 0; i < word.size; i++) {
        if (word.data[i] != '\n') return false;
    }
    return true;
}

/* The word without bytes that are no tokens (SmolLM2 has none for some control characters): to the models' own
 * tokenizers they are not there at all, so that what stands around them is joined. */
static pl_str without_unknown(const pl_bpe *b, pl_text_work *w, pl_str word)
{
    size_t i = 0;
    while (i < word.size && (b->raw || b->byte_symbol[(uint8_t)word.data[i]] < b->n_tokens)) i++;
    if (i == word.size) return word;
    pl_buf_reset(&w->word);
    for (i = 0; i < word.size; i++) {
        if (b->byte_symbol[(uint8_t)word.data[i]] < b->n_tokens) pl_buf_add_u8(&w->word, (uint8_t)word.data[i]);
    }
    return pl_buf_str(&w->word);
}

static bool encode_word(const pl_bpe *b, pl_text_work *w, pl_str word, pl_buf *out)
{
    uint64_t whole;
    word = without_unknown(b, w, word);
    if (word.size == 0 || w->word.failed) return !w->word.failed;
    if (stays_whole(b, word) && pl_map_get(&b->whole, word, &whole) && whole < (uint64_t)b->n_tokens) {
        int32_t id = (int32_t)whole;
        return pl_buf_add(out, &id, sizeof id);
    }
    pl_symbol *s = pl_symbols_reserve(w, word.size);
    if (!s) return false;
    if (!pl_symbols_join(w, s, first_symbols(b, word, s), bpe_pair, b)) return false;
    for (int32_t i = 0; i >= 0; i = s[i].next) {
        if (!emit(b, word.data, &s[i], out)) return false;
    }
    return true;
}

pl_status pl_bpe_encode(const pl_bpe *b, pl_text_work *w, pl_str text, pl_buf *out, pl_error *err)
{
    pl_status s = PL_OK;
    while (text.size > 0 && s == PL_OK) {
        /* The expressions know characters only. Bytes that are none are words of their own. */
        size_t n = pl_utf8_valid_prefix(text);
        pl_str part = {text.data, n}, ends;
        if (n > 0 && pl_pretok_escaped(b->pretok)) { /* U+2581 in the text is the same as a space */
            pl_buf_reset(&w->text);
            if (!pl_spm_unescape(part, &w->text))
                return pl_fail(err, PL_ERR_NO_MEMORY, "no memory to tokenize %zu bytes", n);
            part = pl_buf_str(&w->text);
        }
        if (n > 0 && pl_pretok_nfc(b->pretok)) {
            pl_buf_reset(&w->text);
            if (!pl_text_nfc(part, &w->text))
                return pl_fail(err, PL_ERR_NO_MEMORY, "no memory to normalize %zu bytes", n);
            part = pl_buf_str(&w->text);
        }
        if (part.size > INT32_MAX)
            return pl_fail(err, PL_ERR_INVALID, "a text of %zu bytes is too long to tokenize", part.size);
        bool ok = true;
        if ((s = pl_pretok_split(b->pretok, w, part, &ends, err)) != PL_OK) return s;
        for (size_t i = 0, from = 0; ok && i + 4 <= ends.size; i += 4) {
            size_t to = pl_get_u32(ends.data + i);
            ok = encode_word(b, w, (pl_str){part.data + from, to - from}, out);
            from = to;
        }
        if (ok && n < text.size) {
            ok = encode_word(b, w, (pl_str){text.data + n, 1}, out);
            n++;
        }
        if (!ok) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for the tokens of %zu bytes", text.size);
        text = (pl_str){text.data + n, text.size - n};
    }
    return s;
}
