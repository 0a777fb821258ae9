#include "engine/text/vocab.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/alloc.h"
#include "engine/text/chars_impl.h"
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
    "<eos>",
    "<end_of_turn>",
    "<turn|>",
    "<|tool_response>",
    "<|eot|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "[e~[",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
    "<|END_OF_TURN_TOKEN|>",
    "<|endofprompt|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
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
    v->strip = pl_arena_zalloc(&v->arena, n);
    if (!v->text || !v->piece || !v->type || !v->eog || !v->strip)
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

/* The bytes that each token stands for. raw: BPE over characters as they are, not GPT-2's visible alphabet. */
static pl_status load_pieces(pl_vocab *v, bool raw, pl_error *err)
{
    bool visible = v->kind == PL_VOCAB_BPE && !raw;
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
        } else if (v->type[i] == PL_TOKEN_NORMAL || (raw && v->type[i] == PL_TOKEN_USER_DEFINED)) {
            ok = visible ? pl_bpe_visible_to_bytes(v->text[i], &b) : pl_spm_unescape(v->text[i], &b);
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

/* Files do not say which special tokens take the white space around them with them, so it is known by model. */
static void load_strips(pl_vocab *v, const pl_gguf *g)
{
    char name[64] = "";
    pl_gguf_value value;
    if (pl_gguf_find(g, "general.name", &value) && value.kind == PL_GGUF_STRING)
        snprintf(name, sizeof name, "%.*s", value.raw.size > 63 ? 63 : (int)value.raw.size,
                 (const char *)value.raw.data);
    for (char *c = name; *c; c++) *c = *c >= 'A' && *c <= 'Z' ? (char)(*c + 32) : *c;
    pl_str arch = {"", 0};
    if (pl_gguf_find(g, "general.architecture", &value) && value.kind == PL_GGUF_STRING)
        arch = (pl_str){(const char *)value.raw.data, value.raw.size};
    static const char *const masked_pre[] = {"jina-v2-de", "jina-v2-es", "jina-v2-code", "modern-bert"};
    bool mask = pl_str_is(arch, "nomic-bert-moe") || pl_str_is(arch, "jina-bert-v3");
    for (size_t i = 0; i < 4; i++) mask = mask || strcmp(v->pre, masked_pre[i]) == 0;
    static const char *const masks[] = {"<mask>", "[MASK]"};
    for (int i = 0; mask && i < 2; i++) {
        int32_t id = pl_vocab_find(v, pl_str_from(masks[i]));
        if (id >= 0 && is_special(v->type[id])) v->strip[id] = PL_STRIP_LEFT;
    }
    bool phi3 = strstr(name, "phi-3") || strstr(name, "phi3");
    for (int32_t i = 0; phi3 && i < v->n_special; i++) {
        pl_str t = v->text[v->special[i]];
        if (!pl_str_is(t, "<unk>") && !pl_str_is(t, "<s>") && !pl_str_is(t, "<|endoftext|>"))
            v->strip[v->special[i]] = PL_STRIP_RIGHT;
    }
}

/* The token of the key, or the special one with this text. */
static pl_status get_token_or(const pl_vocab *v, const pl_gguf *g, const char *key, const char *text, int32_t *out,
                              pl_error *err)
{
    PL_TRY(get_token(v, g, key, out, err));
    int32_t id = *out < 0 ? pl_vocab_find(v, pl_str_from(text)) : -1;
    if (id >= 0 && is_special(v->type[id])) *out = id;
    return PL_OK;
}

static pl_status load_ids(pl_vocab *v, const pl_gguf *g, bool add_bos, bool add_eos, pl_error *err)
{
    int32_t ends[3];
    bool found;
    PL_TRY(get_token(v, g, "tokenizer.ggml.bos_token_id", &v->bos, err));
    PL_TRY(get_token(v, g, "tokenizer.ggml.eos_token_id", &v->eos, err));
    PL_TRY(get_token(v, g, "tokenizer.ggml.eot_token_id", &ends[0], err));
    PL_TRY(get_token(v, g, "tokenizer.ggml.eom_token_id", &ends[1], err));
    if (v->kind == PL_VOCAB_WPM) {
        if (v->bos < 0) PL_TRY(get_token_or(v, g, "tokenizer.ggml.cls_token_id", "[CLS]", &v->bos, err));
        PL_TRY(get_token_or(v, g, "tokenizer.ggml.seperator_token_id", "[SEP]", &v->sep, err)); /* the key's spelling */
        v->add_sep = true;
        PL_TRY(pl_gguf_get_bool(g, "tokenizer.ggml.add_sep_token", &v->add_sep, &found, err));
    }
    v->add_bos = add_bos;
    v->add_eos = add_eos;
    PL_TRY(pl_gguf_get_bool(g, "tokenizer.ggml.add_bos_token", &v->add_bos, &found, err));
    PL_TRY(pl_gguf_get_bool(g, "tokenizer.ggml.add_eos_token", &v->add_eos, &found, err));
    /* Gemma 4's files say no, which its makers do not mean. */
    if (strcmp(v->pre, "gemma4") == 0) v->add_bos = true;
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
    bool harmony = pl_vocab_find(v, PL_STR("<|return|>")) >= 0 && pl_vocab_find(v, PL_STR("<|call|>")) >= 0;
    bool solar = pl_vocab_find(v, PL_STR("<|flush|>")) >= 0 && pl_vocab_find(v, PL_STR("<|calls|>")) >= 0;
    if (end >= 0 && end != v->eos && (harmony || solar)) v->eog[end] = false;
    /* Gemma 4 has </s> as a word of HTML. */
    int32_t strike = pl_vocab_find(v, PL_STR("</s>"));
    if (strike >= 0 && strike != v->eos && pl_vocab_find(v, PL_STR("<|tool_response>")) >= 0) v->eog[strike] = false;
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
    v->leading_space = v->add_space_prefix;
    return PL_OK;
}

static pl_status load_bpe(pl_vocab *v, const pl_gguf *g, pl_error *err)
{
    pl_gguf_value merges;
    bool found;
    PL_TRY(get_array(g, "tokenizer.ggml.merges", true, 0, &merges, &found, err));
    if (!found) return pl_fail(err, PL_ERR_FORMAT, "the file has no tokenizer.ggml.merges");
    PL_TRY(pl_bpe_new(&v->bpe, v, &merges, err));
    return load_ids(v, g, pl_pretok_add_bos(pl_bpe_pretok(v->bpe)), false, err);
}

static pl_status load_wpm(pl_vocab *v, const pl_gguf *g, pl_error *err)
{
    bool found;
    if (v->unk < 0) PL_TRY(get_token_or(v, g, "tokenizer.ggml.unknown_token_id", "[UNK]", &v->unk, err));
    v->leading_space = true;
    /* Most files do not say whether letters lose their case. Where they do, no token has a capital letter. */
    v->lowercase = true;
    for (char c = 'A'; c <= 'Z'; c++) {
        char token[] = "\xe2\x96\x81?";
        token[3] = c;
        if (pl_vocab_normal(v, pl_str_from(token)) >= 0) v->lowercase = false;
    }
    PL_TRY(pl_gguf_get_bool(g, "tokenizer.ggml.normalizer.lowercase", &v->lowercase, &found, err));
    v->strip_accents = v->lowercase;
    PL_TRY(pl_gguf_get_bool(g, "tokenizer.ggml.normalizer.strip_accents", &v->strip_accents, &found, err));
    return load_ids(v, g, true, false, err);
}

static pl_status load_ugm(pl_vocab *v, const pl_gguf *g, pl_error *err)
{
    pl_gguf_value map;
    bool found, escape = true;
    v->merge_spaces = false;
    PL_TRY(load_scores(v, g, err));
    PL_TRY(pl_gguf_get_bool(g, "tokenizer.ggml.remove_extra_whitespaces", &v->merge_spaces, &found, err));
    PL_TRY(pl_gguf_get_bool(g, "tokenizer.ggml.escape_whitespaces", &escape, &found, err));
    v->keep_spaces = !escape;
    PL_TRY(get_array(g, "tokenizer.ggml.precompiled_charsmap", false, 0, &map, &found, err));
    if (found && map.elem != PL_GGUF_U8 && map.elem != PL_GGUF_I8)
        return pl_fail(err, PL_ERR_FORMAT, "tokenizer.ggml.precompiled_charsmap is not an array of bytes");
    PL_TRY(pl_ugm_new(&v->ugm, v, found ? map.raw : (pl_bytes){0}, err));
    return load_ids(v, g, false, true, err);
}

static pl_status load(pl_vocab *v, const pl_gguf *g, pl_error *err)
{
    static const struct {
        const char *name;
        pl_vocab_kind kind;
    } models[] = {{"gpt2", PL_VOCAB_BPE},
                  {"gemma4", PL_VOCAB_BPE},
                  {"llama", PL_VOCAB_SPM},
                  {"bert", PL_VOCAB_WPM},
                  {"t5", PL_VOCAB_UGM}};
    pl_str model, pre = {"", 0};
    bool found, named, known = false;
    PL_TRY(pl_gguf_get_str(g, "tokenizer.ggml.model", &model, &found, err));
    if (!found) return pl_fail(err, PL_ERR_FORMAT, "the file has no tokenizer (tokenizer.ggml.model)");
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        if (!pl_str_is(model, models[i].name)) continue;
        known = true;
        v->kind = models[i].kind;
    }
    if (!known)
        return pl_fail(err, PL_ERR_UNSUPPORTED, "tokenizer \"%.*s\" (tokenizer.ggml.model) is not known",
                       model.size > 64 ? 64 : (int)model.size, model.data);
    PL_TRY(pl_gguf_get_str(g, "tokenizer.ggml.pre", &pre, &named, err));
    if (pl_str_is(model, "gemma4")) {
        pre = PL_STR("gemma4");
        named = true;
    }
    if (v->kind == PL_VOCAB_BPE && !named)
        return pl_fail(err, PL_ERR_UNSUPPORTED, "the file does not name its pre-tokenizer (tokenizer.ggml.pre)");
    v->model = pl_arena_strdup(&v->arena, model);
    v->pre = pl_arena_strdup(&v->arena, pre);
    if (!v->model || !v->pre) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for the tokenizer");
    PL_TRY(load_tokens(v, g, err));
    PL_TRY(load_pieces(v, pl_pretok_is_raw(pre), err));
    PL_TRY(load_special(v, err));
    load_strips(v, g);
    PL_TRY(get_token(v, g, "tokenizer.ggml.unknown_token_id", &v->unk, err));
    for (int32_t i = 0; i < v->n && v->unk < 0 && v->kind != PL_VOCAB_BPE; i++) {
        if (v->type[i] == PL_TOKEN_UNKNOWN) v->unk = i;
    }
    switch (v->kind) {
    case PL_VOCAB_BPE: return load_bpe(v, g, err);
    case PL_VOCAB_WPM: return load_wpm(v, g, err);
    case PL_VOCAB_UGM: return load_ugm(v, g, err);
    case PL_VOCAB_SPM: break;
    }
    PL_TRY(load_scores(v, g, err));
    return load_ids(v, g, true, false, err);
}

pl_status pl_vocab_open(pl_vocab **out, const pl_gguf *g, pl_error *err)
{
    *out = NULL;
    pl_vocab *v = pl_calloc(1, sizeof *v);
    if (!v) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for the vocabulary");
    pl_arena_init(&v->arena, 0);
    v->bos = v->eos = v->unk = v->sep = -1;
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
    pl_ugm_free(v->ugm);
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

int32_t pl_vocab_normal(const pl_vocab *v, pl_str text)
{
    uint64_t id;
    if (text.size > v->longest || !pl_map_get(&v->by_text, text, &id)) return -1;
    return v->type[id] == PL_TOKEN_NORMAL ? (int32_t)id : -1;
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
    switch (v->kind) {
    case PL_VOCAB_BPE: return pl_bpe_encode(v->bpe, w, text, out, err);
    case PL_VOCAB_SPM: return pl_spm_encode(v, w, text, out, err);
    case PL_VOCAB_WPM: return pl_wpm_encode(v, w, text, out, err);
    case PL_VOCAB_UGM: break;
    }
    return pl_ugm_encode(v, w, text, out, err);
}

/* text without the white space at its end. */
static pl_str without_spaces(pl_str text)
{
    while (text.size > 0) {
        size_t n = 1;
        int32_t c;
        while (n < text.size && n < 4 && ((uint8_t)text.data[text.size - n] & 0xc0) == 0x80) n++;
        if (pl_char_at(text, text.size - n, &c) != n || !pl_char_is_space(c)) break;
        text.size -= n;
    }
    return text;
}

static size_t skip_spaces(pl_str text, size_t at)
{
    int32_t c;
    for (size_t n; at < text.size; at += n) {
        n = pl_char_at(text, at, &c);
        if (!pl_char_is_space(c)) break;
    }
    return at;
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
        pl_str before = {text.data + from, at - from};
        s = encode(v, &w, v->strip[id] & PL_STRIP_LEFT ? without_spaces(before) : before, out, err);
        pl_buf_add(out, &id, sizeof id);
        at += v->text[id].size;
        if (v->strip[id] & PL_STRIP_RIGHT) at = skip_spaces(text, at);
        from = at;
    }
    /* A text begins with a space, and so does what follows a special token. */
    if (s == PL_OK) s = encode(v, &w, (pl_str){text.data + from, text.size - from}, out, err);
    if (add_special && v->add_sep && v->sep >= 0) pl_buf_add(out, &v->sep, sizeof v->sep);
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

bool pl_detokenize_text(const pl_vocab *v, const int32_t *tokens, size_t n, bool edges, bool special, pl_buf *out)
{
    if (edges && n > 0 && pl_vocab_add_bos(v) && tokens[0] == v->bos) tokens++, n--;
    if (edges && n > 0 && pl_vocab_add_eos(v) && tokens[n - 1] == v->eos) n--;
    if (edges && n > 0 && v->add_sep && tokens[n - 1] == v->sep) n--;
    bool front = v->leading_space; /* the next token may begin with a space that is not the text's */
    for (size_t i = 0; i < n; i++) {
        pl_str piece = piece_of(v, tokens[i], special);
        bool cut_out = tokens[i] >= 0 && tokens[i] < v->n && is_special(v->type[tokens[i]]);
        if (front && !cut_out && piece.size > 0 && piece.data[0] == ' ')
            piece = (pl_str){piece.data + 1, piece.size - 1};
        front = v->leading_space && cut_out;
        pl_buf_add_str(out, piece);
    }
    return !out->failed;
}

void pl_detok_start(pl_detok_stream *s, const pl_vocab *v, bool special, bool strip_space)
{
    *s = (pl_detok_stream){.vocab = v, .special = special, .strip_space = strip_space && v->leading_space};
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
