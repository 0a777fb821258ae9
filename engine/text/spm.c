/* SentencePiece-style tokenizing (GGUF model "llama"): characters are joined, best score first, and what is no
 * token falls apart into bytes.
 *
 * A space is written as U+2581. Only normal tokens come out of joining: control tokens never arise from plain text. */
#include "engine/text/vocab_impl.h"

static const char escaped_space[] = "\xe2\x96\x81";

typedef struct spm_user {
    const pl_vocab *v;
    const char *text;
} spm_user;

/* Floats as integers in descending order, so that the highest score has the lowest priority number. */
static uint32_t descending(float f)
{
    uint32_t u;
    if (f == 0) f = 0; /* both zeros are equal */
    memcpy(&u, &f, sizeof u);
    u = u & 0x80000000u ? ~u : u | 0x80000000u;
    return ~u;
}

static bool spm_pair(const void *user, const pl_symbol *a, const pl_symbol *b, int32_t *id, uint32_t *priority)
{
    const spm_user *u = user;
    *id = pl_vocab_normal(u->v, (pl_str){u->text + a->at, (size_t)a->size + b->size});
    if (*id < 0) return false;
    *priority = descending(u->v->score[*id]);
    return true;
}

static bool emit(const pl_vocab *v, const char *text, const pl_symbol *s, pl_buf *out)
{
    int32_t id = s->id >= 0 ? s->id : pl_vocab_normal(v, (pl_str){text + s->at, s->size});
    if (id >= 0) return pl_buf_add(out, &id, sizeof id);
    bool bytes = true;
    for (uint32_t i = 0; i < s->size; i++) bytes = bytes && v->byte_id[(uint8_t)text[s->at + i]] >= 0;
    if (!bytes) return v->unk < 0 || pl_buf_add(out, &v->unk, sizeof v->unk);
    for (uint32_t i = 0; i < s->size; i++) {
        if (!pl_buf_add(out, &v->byte_id[(uint8_t)text[s->at + i]], sizeof(int32_t))) return false;
    }
    return true;
}

pl_status pl_spm_encode(const pl_vocab *v, pl_text_work *w, pl_str text, pl_buf *out, pl_error *err)
{
    if (text.size == 0) return PL_OK;
    pl_buf *t = &w->text;
    pl_buf_reset(t);
    if (v->add_space_prefix) pl_buf_add(t, escaped_space, 3);
    for (size_t i = 0, from = 0; i <= text.size; i++) {
        if (i < text.size && text.data[i] != ' ') continue;
        pl_buf_add(t, text.data + from, i - from);
        if (i < text.size) pl_buf_add(t, escaped_space, 3);
        from = i + 1;
    }
    if (t->failed) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory to tokenize %zu bytes", text.size);
    if (t->size > INT32_MAX)
        return pl_fail(err, PL_ERR_INVALID, "a text of %zu bytes is too long to tokenize", text.size);

    const char *d = (const char *)t->data;
    pl_symbol *s = pl_symbols_reserve(w, t->size);
    if (!s) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory to tokenize %zu bytes", text.size);
    size_t n = 0;
    for (size_t i = 0, size; i < t->size; i += size) {
        /* A byte that begins no valid character is a symbol of its own. */
        uint8_t lead = (uint8_t)d[i];
        size = lead < 0xc0 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
        if (size > 1 && (size > t->size - i || !pl_utf8_valid((pl_str){d + i, size}))) size = 1;
        s[n++] = (pl_symbol){.at = (uint32_t)i, .size = (uint32_t)size, .id = -1};
    }
    spm_user user = {v, d};
    if (!pl_symbols_join(w, s, n, spm_pair, &user))
        return pl_fail(err, PL_ERR_NO_MEMORY, "no memory to tokenize %zu bytes", text.size);
    for (int32_t i = 0; i >= 0; i = s[i].next) {
        if (!emit(v, d, &s[i], out))
            return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for the tokens of %zu bytes", text.size);
    }
    return PL_OK;
}

bool pl_spm_unescape(pl_str text, pl_buf *out)
{
    for (size_t i = 0; i < text.size;) {
        if (text.size - i >= 3 && memcmp(text.data + i, escaped_space, 3) == 0) {
            pl_buf_add_u8(out, ' ');
            i += 3;
        } else {
            pl_buf_add_u8(out, (uint8_t)text.data[i++]);
        }
    }
    return !out->failed;
}
