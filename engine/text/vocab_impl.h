/* The parts of a vocabulary, private to this folder.
 *
 * pl_tokenize (vocab.c) cuts a text at its special tokens; what lies between goes to pl_spm_encode, or to
 * pl_bpe_encode, which cuts it into words (pretok.c). Both then join neighbouring symbols, best pair first (merge.c).
 */
#pragma once

#include "engine/base/arena.h"
#include "engine/base/map.h"
#include "engine/text/vocab.h"

typedef struct pl_pretok pl_pretok;
typedef struct pl_bpe pl_bpe;

struct pl_vocab {
    pl_arena arena;
    const char *model, *pre;
    int32_t n;
    pl_str *text;   /* [n] as in the file, borrowed from it */
    pl_str *piece;  /* [n] the bytes that the token stands for */
    uint8_t *type;  /* [n] pl_token_type */
    bool *eog;      /* [n] */
    pl_map by_text; /* text → lowest id */
    size_t longest; /* bytes of the longest text; no piece is longer */
    int32_t bos, eos, unk;
    bool add_bos, add_eos;

    /* Tokens that are cut out of the text before anything else, sorted by their bytes. */
    int32_t *special; /* [n_special] */
    int32_t n_special;
    int32_t special_from[257]; /* the ones that begin with byte b are special[special_from[b] .. special_from[b + 1]) */

    pl_bpe *bpe; /* model "gpt2" */

    /* model "llama" */
    float *score; /* [n] */
    bool add_space_prefix;
    int32_t byte_id[256];
};

/* One place in the text that is being joined. */
typedef struct pl_symbol {
    uint32_t at, size;  /* its bytes */
    int32_t id;         /* meaning is the caller's */
    int32_t prev, next; /* neighbours, -1 at the ends; a symbol that was joined into its left neighbour has size 0 */
    int32_t pair;       /* the id that this one and the next would make, -1 for none */
} pl_symbol;

/* The scratch of one pl_tokenize. */
typedef struct pl_text_work {
    pl_buf symbols, heap, text, ends[2];
} pl_text_work;
void pl_text_work_fini(pl_text_work *w);

/* Whether a and b may be joined: the id of the result and its priority (the lowest goes first, then the leftmost). */
typedef bool (*pl_pair_fn)(const void *user, const pl_symbol *a, const pl_symbol *b, int32_t *id, uint32_t *priority);

/* Room for n symbols; NULL when there is no memory. */
pl_symbol *pl_symbols_reserve(pl_text_work *w, size_t n);
/* Links symbols[0..n) in their order and joins pairs until none is left: O(n log n). False when there is no memory. */
PL_MUST_CHECK bool pl_symbols_join(pl_text_work *w, pl_symbol *symbols, size_t n, pl_pair_fn pair, const void *user);

/* PL_ERR_UNSUPPORTED names a pre-tokenizer that is not in the table. */
PL_MUST_CHECK pl_status pl_pretok_open(pl_pretok **out, pl_str name, pl_error *err);
void pl_pretok_close(pl_pretok *p);
bool pl_pretok_ignore_merges(const pl_pretok *p); /* a word that is a token stays whole */
bool pl_pretok_add_bos(const pl_pretok *p);       /* where the file does not say */
bool pl_pretok_nfc(const pl_pretok *p);           /* text is composed first (Unicode normalization form C) */
/* Cuts text, which is valid UTF-8 and smaller than 2 GiB, into words: *ends has the end of each (uint32_t), in order.
 */
PL_MUST_CHECK pl_status pl_pretok_split(const pl_pretok *p, pl_text_work *w, pl_str text, pl_str *ends, pl_error *err);
/* Appends text (valid UTF-8) in form C. */
PL_MUST_CHECK bool pl_text_nfc(pl_str text, pl_buf *out);

/* v has its tokens, types and pieces. merges: an array of strings. */
PL_MUST_CHECK pl_status pl_bpe_new(pl_bpe **out, const pl_vocab *v, pl_str pre, const pl_gguf_value *merges,
                                   pl_error *err);
void pl_bpe_free(pl_bpe *b);
const pl_pretok *pl_bpe_pretok(const pl_bpe *b);
/* Appends to out what text (in the file's visible alphabet) stands for. */
PL_MUST_CHECK bool pl_bpe_visible_to_bytes(pl_str text, pl_buf *out);
PL_MUST_CHECK pl_status pl_bpe_encode(const pl_bpe *b, pl_text_work *w, pl_str text, pl_buf *out, pl_error *err);

/* A space goes in front, if the model asks for one. */
PL_MUST_CHECK pl_status pl_spm_encode(const pl_vocab *v, pl_text_work *w, pl_str text, pl_buf *out, pl_error *err);
/* Appends text with U+2581 turned into spaces. */
PL_MUST_CHECK bool pl_spm_unescape(pl_str text, pl_buf *out);
