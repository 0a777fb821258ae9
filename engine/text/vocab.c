#include "engine/text/vocab.h"

#include <inttypes.h>
#include <stdlib.h>

#include "engine/base/alloc.h"
#include "engine/text/vocab_impl.h"

/* Bounds the work at each place of a text where a special token may begin. */
#define SPECIAL_BYTES_MAX 1024u

/* Tokens that end an answer, by name, because files often name only one of them in their keys. */
static const char *const end_names[] = {
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<end_of_turn>",
    "<turn|>",
    "<|eot|>",
    "<EOT>",
    "_<EOT>",
    "<|return|>",
    "<|call|>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
    "<|END_OF_TURN_TOKEN|>",
    "<|endofprompt|>",
};

static bool is_special(uint8_t type)
{
    return type == PL_TOKEN_CONTROL || type == PL_TOKEN_USER_DEFINED || type == PL_TOKEN_UNKNOWN;
}

/* ---- opening ---- */

static pl_status get_array(const pl_gguf *g, const char *key, bool strings, uint64_t n, pl_gguf_value *out, bool *found,
                           pl_error *err)
{
    *found = pl_gguf_find(g, key, out);
    if (!*found) return PL_OK;
    if (out->kind != PL_GGUF_ARRAY || (out->elem == PL_GGUF_STRING) != strings || out->elem == PL_GGUF_ARRAY ||
        out->elem == PL_GGUF_BOOL)
        return pl_fail(err, PL_ERR_FORMAT, "%s is not an array of %s", key, strings ? "strings" : "numbers");
    if (n && out->n != n)
        return pl_fail(err, PL_ERR_FORMAT, "%s has %" PRIu64 " entries for %" PRIu64 " tokens", key, out->n, n);
    return PL_OK;
}

/* An absent key, and the number that means "none" in some files, give -1. */
static pl_status get_token(const pl_vocab *v, const pl_gguf *g, const char *key, int32_t *out, pl_error *err)
{
    uint32_t id = 0;
    bool found;
    *out = -1;
    PL_TRY(pl_gguf_get_u32(g, key, &id, &found, err));
    if (!found || id == UINT32_MAX) return PL_OK;
    if (id >= (uint32_t)v->n)
        return pl_fail(err, PL_ERR_FORMAT, "%s is %" PRIu32 ", but there are %d tokens", key, id, (int)v->n);
    *out = (int32_t)id;
    return PL_OK;
}

static pl_status load_tokens(pl_vocab *v, const pl_gguf *g, pl_error *err)
{
    pl_gguf_value tokens, types;
    bool found, typed;
    PL_TRY(get_array(g, "tokenizer.ggml.tokens", true, 0, &tokens, &found, err));
    if (!found) return pl_fail(err, PL_ERR_FORMAT, "the file has no tokenizer.ggml.tokens");
    if (tokens.n == 0 || tokens.n > INT32_MAX / 64)
        return pl_fail(err, PL_ERR_FORMAT, "tokenizer.ggml.tokens has %" PRIu64 " entries", tokens.n);
    PL_TRY(get_array(g, "tokenizer.ggml.token_type", false, tokens.n, &types, &typed, err));
    v->n = (int32_t)tokens.n;
    size_t n = (size_t)v->n;
    v->text = pl_arena_zalloc(&v->arena, n * sizeof *v->text);
    v->piece = pl_arena_zalloc(&v->arena, n * sizeof *v->piece);
    v->type = pl_arena_zalloc(&v->arena, n);
    v->eog = pl_arena_zalloc(&v->arena, n * sizeof *v->eog);
    if (!v->text || !v->piece || !v->type || !v->eog)
        return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for %zu tokens", n);
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        if (!pl_gguf_next_str(&tokens, &at, &v->text[i]))
            return pl_fail(err, PL_ERR_FORMAT, "tokenizer.ggml.tokens ends at %zu of %zu", i, n);
        int64_t type = typed ? pl_gguf_elem_i64(&types, i) : PL_TOKEN_NORMAL;
        if (type < PL_TOKEN_NORMAL || type > PL_TOKEN_BYTE)
            return pl_fail(err, PL_ERR_FORMAT, "tokenizer.ggml.token_type[%zu] is %" PRId64, i, type);
        v->type[i] = (uint8_t)type;
        if (v->text[i].size > v->longest) v->longest = v->text[i].size;
        if (pl_map_get(&v->by_text, v->text[i], NULL)) continue;
        if (!pl_map_set(&v->by_text, v->text[i], i))
            return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for %zu tokens", n);
    }
    return PL_OK;
}

/* <0x41> → 65, else -1. */
static int byte_token(pl_str t)
{
    if (t.size != 6 || memcmp(t.data, "<0x", 3) != 0 || t.data[5] != '>') return -1;
    int b = 0;
    for (int i = 3; i < 5; i++) {
        char c = t.data[i];
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                       : -1;
        if (d < 0) return -1;
        b = b * 16 + d;
    }
    return b;
}

/* The bytes that each token stands for. */
static pl_status load_pieces(pl_vocab *v, bool bpe, pl_error *err)
{
    pl_buf b = {0};
    pl_status s = PL_OK;
    for (int i = 0; i < 256; i++) v->byte_id[i] = -1;
    for (int32_t i = 0; i < v->n && s == PL_OK; i++) {
        pl_buf_reset(&b);
        int byte = byte_token(v->text[i]);
        bool ok = true;
        if (v->type[i] == PL_TOKEN_BYTE) {
            if (byte < 0) {
                s = pl_fail(err, PL_ERR_FORMAT, "token %d is of type byte, but its text is not <0x00> to <0xFF>",
                            (int)i);
                break;
            }
            v->byte_id[byte] = i;
            ok = pl_buf_add_u8(&b, (uint8_t)byte);
        } else if (v->type[i] == PL_TOKEN_NORMAL) {
            ok = bpe ? pl_bpe_visible_to_bytes(v->text[i], &b) : pl_spm_unescape(v->text[i], &b);
        } else if (is_special(v->type[i])) {
            v->piece[i] = v->text[i];
            continue;
        } else {
            continue; /* an unused token stands for nothing */
        }
        v->piece[i] = (pl_str){pl_arena_strdup(&v->arena, pl_buf_str(&b)), b.size};
        if (!ok || !v->piece[i].data) s = pl_fail(err, PL_ERR_NO_MEMORY, "no memory for %d tokens", (int)v->n);
    }
    pl_buf_fini(&b);
    return s;
}

static int compare_text(pl_str a, pl_str b)
{
    size_t n = a.size < b.size ? a.size : b.size;
    int c = n ? memcmp(a.data, b.data, n) : 0;
    return c ? c : (a.size > b.size) - (a.size < b.size);
}

static int compare_special(const void *a, const void *b, void *user)
{
    const pl_vocab *v = user;
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    int c = compare_text(v->text[x], v->text[y]);
    return c ? c : (x > y) - (x < y);
}

static pl_status load_special(pl_vocab *v, pl_error *err)
{
    for (int32_t i = 0; i < v->n; i++) v->n_special += is_special(v->type[i]) && v->text[i].size > 0;
    v->special = pl_arena_alloc(&v->arena, (size_t)v->n_special * sizeof *v->special + 1);
    if (!v->special) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for %d special tokens", (int)v->n_special);
    int32_t n = 0;
    for (int32_t i = 0; i < v->n; i++) {
        if (!is_special(v->type[i]) || v->text[i].size == 0) continue;
        if (v->text[i].size > SPECIAL_BYTES_MAX)
            return pl_fail(err, PL_ERR_UNSUPPORTED, "special token %d has %zu bytes (at most %u are supported)", (int)i,
                           v->text[i].size, SPECIAL_BYTES_MAX);
        v->special[n++] = i;
    }
    qsort_r(v->special, (size_t)n, sizeof *v->special, compare_special, v);
    for (int32_t i = 0, b = 0; b <= 256; b++) {
        while (i < n && (uint8_t)v->text[v->special[i]].data[0] < b) i++;
        v->special_from[b] = b == 256 ? n : i;
    }
    return PL_OK;
}

static pl_status load_ids(pl_vocab *v, const pl_gguf *g, bool add_bos, pl_error *err)
{
    int32_t ends[4];
    bool found;
    PL_TRY(get_token(v, g, "tokenizer.ggml.bos_token_id", &v->bos, err));
    PL_TRY(get_token(v, g, "tokenizer.ggml.eos_token_id", &v->eos, err));
    PL_TRY(get_token(v, g, "tokenizer.ggml.eot_token_id", &ends[0], err));
    PL_TRY(get_token(v, g, "tokenizer.ggml.eom_token_id", &ends[1], err));
    v->add_bos = add_bos;
    PL_TRY(pl_gguf_get_bool(g, "tokenizer.ggml.add_bos_token", &v->add_bos, &found, err));
    PL_TRY(pl_gguf_get_bool(g, "tokenizer.ggml.add_eos_token", &v->add_eos, &found, err));
    ends[2] = v->eos;
    for (int i = 0; i < 3; i++) {
        if (ends[i] >= 0) v->eog[ends[i]] = true;
    }
    for (size_t i = 0; i < sizeof end_names / sizeof end_names[0]; i++) {
        int32_t id = pl_vocab_find(v, pl_str_from(end_names[i]));
        if (id >= 0 && is_special(v->type[id])) v->eog[id] = true;
    }
    /* In the harmony format <|end|> closes one message of an answer that goes on; <|return|> and <|call|> end it. */
    int32_t end = pl_vocab_find(v, PL_STR("<|end|>"));
    if (end >= 0 && end != v->eos && pl_vocab_find(v, PL_STR("<|return|>")) >= 0 &&
        pl_vocab_find(v, PL_STR("<|call|>")) >= 0)
        v->eog[end] = false;
    return PL_OK;
}

static pl_status load_scores(pl_vocab *v, const pl_gguf *g, pl_error *err)
{
    pl_gguf_value scores;
    bool found;
    PL_TRY(get_array(g, "tokenizer.ggml.scores", false, (uint64_t)v->n, &scores, &found, err));
    if (!found) return pl_fail(err, PL_ERR_FORMAT, "the file has no tokenizer.ggml.scores");
    v->score = pl_arena_alloc(&v->arena, (size_t)v->n * sizeof *v->score);
    if (!v->score) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for %d scores", (int)v->n);
    for (int32_t i = 0; i < v->n; i++) {
        v->score[i] = (float)pl_gguf_elem_f64(&scores, (uint64_t)i);
        if (v->score[i] != v->score[i])
            return pl_fail(err, PL_ERR_FORMAT, "tokenizer.ggml.scores[%d] is not a number", (int)i);
    }
    v->add_space_prefix = true;
    PL_TRY(pl_gguf_get_bool(g, "tokenizer.ggml.add_space_prefix", &v->add_space_prefix, &found, err));
    return PL_OK;
}

static pl_status load(pl_vocab *v, const pl_gguf *g, pl_error *err)
{
    pl_str model, pre = {"", 0};
    bool found, named;
    PL_TRY(pl_gguf_get_str(g, "tokenizer.ggml.model", &model, &found, err));
    if (!found) return pl_fail(err, PL_ERR_FORMAT, "the file has no tokenizer (tokenizer.ggml.model)");
    bool bpe = pl_str_is(model, "gpt2");
    if (!bpe && !pl_str_is(model, "llama"))
        return pl_fail(err, PL_ERR_UNSUPPORTED, "tokenizer \"%.*s\" (tokenizer.ggml.model) is not known",
                       model.size > 64 ? 64 : (int)model.size, model.data);
    PL_TRY(pl_gguf_get_str(g, "tokenizer.ggml.pre", &pre, &named, err));
    if (bpe && !named)
        return pl_fail(err, PL_ERR_UNSUPPORTED, "the file does not name its pre-tokenizer (tokenizer.ggml.pre)");
    v->model = pl_arena_strdup(&v->arena, model);
    v->pre = pl_arena_strdup(&v->arena, pre);
    if (!v->model || !v->pre) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for the tokenizer");
    PL_TRY(load_tokens(v, g, err));
    PL_TRY(load_pieces(v, bpe, err));
    PL_TRY(load_special(v, err));
    PL_TRY(get_token(v, g, "tokenizer.ggml.unknown_token_id", &v->unk, err));
    for (int32_t i = 0; i < v->n && v->unk < 0 && !bpe; i++) {
        if (v->type[i] == PL_TOKEN_UNKNOWN) v->unk = i;
    }
    if (bpe) {
        pl_gguf_value merges;
        PL_TRY(get_array(g, "tokenizer.ggml.merges", true, 0, &merges, &found, err));
        if (!found) return pl_fail(err, PL_ERR_FORMAT, "the file has no tokenizer.ggml.merges");
        PL_TRY(pl_bpe_new(&v->bpe, v, pre, &merges, err));
        return load_ids(v, g, pl_pretok_add_bos(pl_bpe_pretok(v->bpe)), err);
    }
    PL_TRY(load_scores(v, g, err));
    return load_ids(v, g, true, err);
}

pl_status pl_vocab_open(pl_vocab **out, const pl_gguf *g, pl_error *err)
{
    *out = NULL;
    pl_vocab *v = pl_calloc(1, sizeof *v);
    if (!v) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for the vocabulary");
    pl_arena_init(&v->arena, 0);
    v->bos = v->eos = v->unk = -1;
    pl_status s = load(v, g, err);
    if (s != PL_OK) {
        pl_vocab_close(v);
        return s;
    }
    *out = v;
    return PL_OK;
}

void pl_vocab_close(pl_vocab *v)
{
    if (!v) return;
    pl_bpe_free(v->bpe);
    pl_map_fini(&v->by_text);
    pl_arena_fini(&v->arena);
    pl_free(v);
}

/* ---- what it knows ---- */

size_t pl_vocab_longest(const pl_vocab *v)
{
    return v->longest;
}
int32_t pl_vocab_size(const pl_vocab *v)
{
    return v->n;
}
const char *pl_vocab_model(const pl_vocab *v)
{
    return v->model;
}
const char *pl_vocab_pre(const pl_vocab *v)
{
    return v->pre;
}
int32_t pl_vocab_bos(const pl_vocab *v)
{
    return v->bos;
}
int32_t pl_vocab_eos(const pl_vocab *v)
{
    return v->eos;
}
int32_t pl_vocab_unk(const pl_vocab *v)
{
    return v->unk;
}
bool pl_vocab_add_bos(const pl_vocab *v)
{
    return v->add_bos && v->bos >= 0;
}
bool pl_vocab_add_eos(const pl_vocab *v)
{
    return v->add_eos && v->eos >= 0;
}
bool pl_vocab_is_eog(const pl_vocab *v, int32_t token)
{
    return token >= 0 && token < v->n && v->eog[token];
}

pl_token_type pl_vocab_type(const pl_vocab *v, int32_t token)
{
    PL_ASSERT(token >= 0 && token < v->n);
    return (pl_token_type)v->type[token];
}

pl_str pl_vocab_text(const pl_vocab *v, int32_t token)
{
    PL_ASSERT(token >= 0 && token < v->n);
    return v->text[token];
}

int32_t pl_vocab_find(const pl_vocab *v, pl_str text)
{
    uint64_t id;
    return pl_map_get(&v->by_text, text, &id) ? (int32_t)id : -1;
}

/* ---- text to tokens ---- */

/* The longest special token at text[at], or -1. The sorted list serves as a trie: each byte narrows the range that is
 * left. */
static int32_t special_at(const pl_vocab *v, pl_str text, size_t at, bool parse_special)
{
    uint8_t first = (uint8_t)text.data[at];
    int32_t lo = v->special_from[first], hi = v->special_from[first + 1], best = -1;
    for (size_t depth = 1; lo < hi; depth++) {
        /* All of [lo, hi) begin with the same depth bytes as the text; the ones that end here come first. */
        for (; lo < hi && v->text[v->special[lo]].size == depth; lo++) {
            if (parse_special || v->type[v->special[lo]] == PL_TOKEN_USER_DEFINED) {
                if (best < 0 || v->text[best].size < depth) best = v->special[lo];
            }
        }
        if (lo == hi || at + depth >= text.size) break;
        uint8_t c = (uint8_t)text.data[at + depth];
        int32_t ends[2];
        for (int k = 0; k < 2; k++) { /* the first with a byte of at least c, and the first behind that */
            int32_t a = lo, b = hi;
            while (a < b) {
                int32_t mid = a + (b - a) / 2;
                if ((uint8_t)v->text[v->special[mid]].data[depth] < c + k)
                    a = mid + 1;
                else
                    b = mid;
            }
            ends[k] = a;
        }
        lo = ends[0];
        hi = ends[1];
    }
    return best;
}

static pl_status encode(const pl_vocab *v, pl_text_work *w, pl_str text, pl_buf *out, pl_error *err)
{
    if (text.size == 0) return PL_OK;
    return v->bpe ? pl_bpe_encode(v->bpe, w, text, out, err) : pl_spm_encode(v, w, text, out, err);
}

pl_status pl_tokenize(const pl_vocab *v, pl_str text, bool add_special, bool parse_special, pl_buf *out, pl_error *err)
{
    pl_text_work w = {0};
    size_t size = out->size, from = 0;
    pl_status s = PL_OK;
    if (text.size == 0) text = PL_STR(""); /* an empty view may be NULL, to which nothing may be added */
    if (add_special && pl_vocab_add_bos(v)) pl_buf_add(out, &v->bos, sizeof v->bos);
    for (size_t at = 0; s == PL_OK && at < text.size;) {
        int32_t id = special_at(v, text, at, parse_special);
        if (id < 0) {
            at++;
            continue;
        }
        s = encode(v, &w, (pl_str){text.data + from, at - from}, out, err);
        pl_buf_add(out, &id, sizeof id);
        from = at += v->text[id].size;
    }
    /* A text begins with a space, and so does what follows a special token. */
    if (s == PL_OK) s = encode(v, &w, (pl_str){text.data + from, text.size - from}, out, err);
    if (add_special && pl_vocab_add_eos(v)) pl_buf_add(out, &v->eos, sizeof v->eos);
    pl_text_work_fini(&w);
    if (s == PL_OK && out->failed)
        s = pl_fail(err, PL_ERR_NO_MEMORY, "no memory for the tokens of %zu bytes", text.size);
    if (s != PL_OK) out->size = size;
    return s;
}

/* ---- tokens to text ---- */

static pl_str piece_of(const pl_vocab *v, int32_t token, bool special)
{
    if (token < 0 || token >= v->n) return (pl_str){"", 0};
    bool hidden = v->type[token] == PL_TOKEN_CONTROL || v->type[token] == PL_TOKEN_UNKNOWN;
    return hidden && !special ? (pl_str){"", 0} : v->piece[token];
}

bool pl_detokenize(const pl_vocab *v, int32_t token, bool special, pl_buf *out)
{
    return pl_buf_add_str(out, piece_of(v, token, special));
}

void pl_detok_start(pl_detok_stream *s, const pl_vocab *v, bool special, bool strip_space)
{
    *s = (pl_detok_stream){.vocab = v, .special = special, .strip_space = strip_space && v->add_space_prefix};
}

static const char replacement[] = "\xef\xbf\xbd";

/* How many bytes a character that begins with b has; 0 when none does. */
static int char_size(uint8_t b)
{
    return b < 0x80 ? 1 : b < 0xc2 ? 0 : b < 0xe0 ? 2 : b < 0xf0 ? 3 : b < 0xf5 ? 4 : 0;
}

/* Whether b may stand at place n > 0 of a character that begins with first (Unicode 15, table 3-7). */
static bool may_follow(uint8_t first, int n, uint8_t b)
{
    if (n == 1) {
        if (first == 0xe0) return b >= 0xa0 && b <= 0xbf;
        if (first == 0xed) return b >= 0x80 && b <= 0x9f;
        if (first == 0xf0) return b >= 0x90 && b <= 0xbf;
        if (first == 0xf4) return b >= 0x80 && b <= 0x8f;
    }
    return b >= 0x80 && b <= 0xbf;
}

bool pl_detok_add(pl_detok_stream *s, int32_t token, pl_buf *out)
{
    pl_str piece = piece_of(s->vocab, token, s->special);
    pl_token_type type = token >= 0 && token < s->vocab->n ? (pl_token_type)s->vocab->type[token] : PL_TOKEN_UNUSED;
    bool text = type == PL_TOKEN_NORMAL || type == PL_TOKEN_BYTE || type == PL_TOKEN_USER_DEFINED;
    if (text && piece.size > 0 && !s->started) {
        s->started = true;
        if (s->strip_space && type == PL_TOKEN_NORMAL && piece.data[0] == ' ')
            piece = (pl_str){piece.data + 1, piece.size - 1};
    }
    for (size_t i = 0; i < piece.size; i++) {
        uint8_t b = (uint8_t)piece.data[i];
        if (s->n_held > 0 && !may_follow(s->held[0], s->n_held, b)) {
            pl_buf_add(out, replacement, 3);
            s->n_held = 0;
        }
        if (s->n_held == 0 && char_size(b) == 0) {
            pl_buf_add(out, replacement, 3);
            continue;
        }
        s->held[s->n_held++] = b;
        if (s->n_held == char_size(s->held[0])) {
            pl_buf_add(out, s->held, (size_t)s->n_held);
            s->n_held = 0;
        }
    }
    return !out->failed;
}

bool pl_detok_end(pl_detok_stream *s, pl_buf *out)
{
    if (s->n_held > 0) pl_buf_add(out, replacement, 3);
    s->n_held = 0;
    return !out->failed;
}
