/* Unigram (GGUF model "t5"): of all ways to cut a text into tokens the likeliest, by Viterbi's algorithm over scores
 * that are logarithms of probabilities.
 *
 * As SentencePiece does it. A text is normalized first: by the rules of the file's charsmap (a double array trie whose
 * leaves point to the replacements behind it; format of darts-clone, https://github.com/s-yata/darts-clone), runs of
 * spaces become one, and a space goes in front. A character without a token of its own costs 10 more than the worst
 * token. It becomes the unknown token, one for a whole run of them, or its bytes where all bytes are tokens. */
#include <float.h>
#include <inttypes.h>

#include "engine/base/alloc.h"
#include "engine/text/chars_impl.h"
#include "engine/text/vocab_impl.h"

static const char escaped_space[] = "\xe2\x96\x81";
static const double unknown_penalty = 10;

struct pl_ugm {
    pl_trie tokens;
    double unknown_score;
    bool all_bytes; /* every byte has its token */
    pl_bytes map;   /* the charsmap's double array, n_units of 4 bytes each */
    size_t n_units;
    pl_str replaced; /* its replacements, each ended by a zero byte */
};

/* ---- the charsmap ---- */

static uint32_t unit_at(const pl_ugm *u, uint32_t i)
{
    /* All ones is no unit's label, so that a walk that leaves the array ends. */
    return i < u->n_units ? pl_get_u32(u->map.data + (size_t)i * 4) : UINT32_MAX;
}
static uint32_t unit_offset(uint32_t unit)
{
    return unit >> 10 << ((unit & 1u << 9) >> 6);
}

/* The longest key of the map at text[at]: its bytes (0 for none) and its replacement. */
static size_t map_prefix(const pl_ugm *u, pl_str text, size_t at, pl_str *replacement)
{
    if (u->n_units == 0) return 0;
    uint32_t node = unit_offset(unit_at(u, 0));
    size_t longest = 0;
    for (size_t i = at; i < text.size && text.data[i]; i++) {
        uint8_t byte = (uint8_t)text.data[i];
        node ^= byte;
        uint32_t unit = unit_at(u, node);
        if ((unit & (1u << 31 | 0xff)) != byte) break;
        node ^= unit_offset(unit);
        if (!(unit >> 8 & 1)) continue;
        size_t value = unit_at(u, node) & ~(1u << 31);
        if (value >= u->replaced.size) break;
        const char *from = u->replaced.data + value, *end = memchr(from, 0, u->replaced.size - value);
        if (!end) break;
        longest = i - at + 1;
        *replacement = (pl_str){from, (size_t)(end - from)};
    }
    return longest;
}

/* What stands at text[at] in normal form, and how many bytes of the text that was. */
static pl_str normal_prefix(const pl_ugm *u, pl_str text, size_t at, size_t *taken)
{
    pl_str s;
    if ((*taken = map_prefix(u, text, at, &s)) > 0) return s;
    int32_t c;
    *taken = pl_char_at(text, at, &c);
    bool invalid = *taken == 1 && (uint8_t)text.data[at] >= 0x80;
    return invalid ? PL_STR("\xef\xbf\xbd") : (pl_str){text.data + at, *taken};
}

static bool ends_with_space(const pl_buf *b, pl_str space)
{
    return b->size >= space.size && memcmp(b->data + b->size - space.size, space.data, space.size) == 0;
}

static void normalize(const pl_vocab *v, pl_str text, pl_buf *out)
{
    pl_str space = v->keep_spaces ? PL_STR(" ") : PL_STR(escaped_space);
    /* Spaces in front of a text, and behind a space, are left out; a space in front of it all is put there. */
    bool after_space = v->merge_spaces, empty = true;
    for (size_t at = 0, taken; at < text.size; at += taken) {
        pl_str s = normal_prefix(v->ugm, text, at, &taken);
        while (after_space && s.size > 0 && s.data[0] == ' ') s = (pl_str){s.data + 1, s.size - 1};
        if (s.size == 0) continue;
        if (empty && v->add_space_prefix) pl_buf_add_str(out, space);
        empty = false;
        for (size_t i = 0; i < s.size; i++) {
            if (s.data[i] == ' ')
                pl_buf_add_str(out, space);
            else
                pl_buf_add_u8(out, (uint8_t)s.data[i]);
        }
        after_space = v->merge_spaces && s.data[s.size - 1] == ' ';
    }
    while (v->merge_spaces && ends_with_space(out, space)) out->size -= space.size;
}

/* ---- the best cut ---- */

typedef struct place {
    double score;  /* of the best cut of what comes before */
    uint32_t from; /* where its last token begins */
    int32_t id;
} place;

static size_t char_bytes(pl_str s, size_t at)
{
    int32_t c;
    return pl_char_at(s, at, &c);
}

static bool emit(const pl_vocab *v, pl_str piece, int32_t id, bool *unknown, pl_buf *out)
{
    bool was_unknown = *unknown;
    *unknown = id < 0;
    if (id >= 0) return pl_buf_add(out, &id, sizeof id);
    if (v->ugm->all_bytes) {
        for (size_t i = 0; i < piece.size; i++) pl_buf_add(out, &v->byte_id[(uint8_t)piece.data[i]], sizeof(int32_t));
    } else if (!was_unknown && v->unk >= 0) {
        pl_buf_add(out, &v->unk, sizeof v->unk);
    }
    return !out->failed;
}

pl_status pl_ugm_encode(const pl_vocab *v, pl_text_work *w, pl_str text, pl_buf *out, pl_error *err)
{
    const pl_ugm *u = v->ugm;
    pl_buf_reset(&w->text);
    normalize(v, text, &w->text);
    pl_str t = pl_buf_str(&w->text);
    if (w->text.failed) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory to tokenize %zu bytes", text.size);
    if (t.size == 0) return PL_OK;
    if (t.size > INT32_MAX)
        return pl_fail(err, PL_ERR_INVALID, "a text of %zu bytes is too long to tokenize", text.size);
    pl_buf_reset(&w->heap);
    if (!pl_buf_reserve(&w->heap, (t.size + 1) * sizeof(place)))
        return pl_fail(err, PL_ERR_NO_MEMORY, "no memory to tokenize %zu bytes", text.size);
    place *p = (place *)(void *)w->heap.data;
    for (size_t i = 0; i <= t.size; i++) p[i] = (place){-DBL_MAX, 0, -1};
    p[0].score = 0;
    for (size_t at = 0, size; at < t.size; at += size) {
        uint32_t node = 0;
        int32_t id;
        bool whole = false; /* the character here is a token */
        size = char_bytes(t, at);
        for (size_t i = at; i < t.size && pl_trie_step(&u->tokens, &node, (uint8_t)t.data[i], &id); i++) {
            w->steps++;
            if (id < 0) continue;
            whole = whole || i + 1 - at == size;
            double score = p[at].score + (v->type[id] == PL_TOKEN_USER_DEFINED ? 0 : (double)v->score[id]);
            if (score > p[i + 1].score) p[i + 1] = (place){score, (uint32_t)at, id};
        }
        double score = p[at].score + u->unknown_score;
        if (!whole && score > p[at + size].score) p[at + size] = (place){score, (uint32_t)at, -1};
    }
    /* The ends of the pieces, found backwards. */
    pl_buf *ends = &w->ends[0];
    pl_buf_reset(ends);
    for (uint32_t at = (uint32_t)t.size; at > 0; at = p[at].from) pl_buf_add_u32(ends, at);
    bool unknown = false, ok = !ends->failed;
    uint32_t from = 0;
    for (size_t k = ends->size; ok && k > 0; k -= 4) {
        uint32_t to = pl_get_u32(ends->data + k - 4);
        ok = emit(v, (pl_str){t.data + from, to - from}, p[to].id, &unknown, out);
        from = to;
    }
    return ok ? PL_OK : pl_fail(err, PL_ERR_NO_MEMORY, "no memory for the tokens of %zu bytes", text.size);
}

/* ---- opening ---- */

pl_status pl_ugm_new(pl_ugm **out, const pl_vocab *v, pl_bytes charsmap, pl_error *err)
{
    *out = NULL;
    pl_ugm *u = pl_calloc(1, sizeof *u);
    if (!u) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for the tokenizer");
    pl_status s = PL_OK;
    size_t n_bytes = 0;
    if (charsmap.size > 0) {
        uint32_t size = charsmap.size >= 4 ? pl_get_u32(charsmap.data) : 0;
        if (size == 0 || size % 4 || size > charsmap.size - 4) {
            s = pl_fail(err, PL_ERR_FORMAT,
                        "tokenizer.ggml.precompiled_charsmap: %" PRIu32 " bytes of double array in %zu bytes", size,
                        charsmap.size);
            goto fail;
        }
        u->map = (pl_bytes){charsmap.data + 4, size};
        u->n_units = size / 4;
        u->replaced = (pl_str){(const char *)charsmap.data + 4 + size, charsmap.size - 4 - size};
    }
    double worst = 0;
    for (int32_t i = 0; i < v->n; i++) {
        n_bytes += v->text[i].size;
        if (v->type[i] == PL_TOKEN_NORMAL && v->score[i] < worst) worst = (double)v->score[i];
    }
    u->unknown_score = worst - unknown_penalty;
    if (!pl_trie_init(&u->tokens, n_bytes)) {
        s = pl_fail(err, PL_ERR_NO_MEMORY, "no memory for %d tokens", (int)v->n);
        goto fail;
    }
    for (int32_t i = 0; i < v->n; i++) {
        bool text =
            v->type[i] == PL_TOKEN_NORMAL || v->type[i] == PL_TOKEN_USER_DEFINED || v->type[i] == PL_TOKEN_UNUSED;
        if (text && v->text[i].size > 0) pl_trie_add(&u->tokens, v->text[i], i);
    }
    u->all_bytes = true;
    for (int b = 0; b < 256; b++) u->all_bytes = u->all_bytes && v->byte_id[b] >= 0;
    *out = u;
    return PL_OK;
fail:
    pl_ugm_free(u);
    return s;
}

void pl_ugm_free(pl_ugm *u)
{
    if (!u) return;
    pl_trie_fini(&u->tokens);
    pl_free(u);
}
