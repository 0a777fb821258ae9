/* The parts of a vocabulary, private to this folder.
 *
 * pl_tokenize (vocab.c) cuts a text at its special tokens; what lies between goes to the encoder of the vocabulary's
 * model. pl_spm_encode and pl_bpe_encode, which cuts the text into words first (pretok.c), join neighbouring symbols,
 * best pair first (merge.c); pl_wpm_encode takes the longest tokens of each word, pl_ugm_encode the likeliest. */
#pragma once

#include "engine/base/arena.h"
#include "engine/base/map.h"
#include "engine/text/vocab.h"

typedef struct pl_pretok pl_pretok;
typedef struct pl_bpe pl_bpe;
typedef struct pl_ugm pl_ugm;

typedef enum { PL_VOCAB_BPE, PL_VOCAB_SPM, PL_VOCAB_WPM, PL_VOCAB_UGM } pl_vocab_kind;

/* White space that a special token in the text takes with it. */
enum { PL_STRIP_LEFT = 1, PL_STRIP_RIGHT = 2 };

struct pl_vocab {
    pl_arena arena;
    pl_vocab_kind kind;
    const char *model, *pre;
    int32_t n;
    pl_str *text;   /* [n] as in the file, borrowed from it */
    pl_str *piece;  /* [n] the bytes that the token stands for */
    uint8_t *type;  /* [n] pl_token_type */
    bool *eog;      /* [n] */
    pl_map by_text; /* text → lowest id */
    size_t longest; /* bytes of the longest text; no piece is longer */
    uint8_t *strip; /* [n] */
    int32_t bos, eos, unk, sep;
    bool add_bos, add_eos, add_sep;

    /* Tokens that are cut out of the text before anything else, sorted by their bytes. */
    int32_t *special; /* [n_special] */
    int32_t n_special;
    int32_t special_from[257]; /* the ones that begin with byte b are special[special_from[b] .. special_from[b + 1]) */

    pl_bpe *bpe;
    pl_ugm *ugm;
    bool lowercase, strip_accents; /* WPM: the vocabulary has no upper case, no accents */

    float *score;          /* [n] of SPM and UGM */
    bool add_space_prefix; /* a text begins with a space */
    bool merge_spaces;     /* UGM: runs of spaces are one */
    bool keep_spaces;      /* UGM: a space is not written as U+2581 */
    bool leading_space;    /* the space in front of a text's first token is not the text's */
    int32_t byte_id[256];  /* of <0x00> and on, -1 for none */
};

/* The token of type normal with this text, or -1. */
int32_t pl_vocab_normal(const pl_vocab *v, pl_str text);

typedef struct pl_trie_edge {
    uint64_t edge; /* node << 8 | byte */
    uint32_t child;
} pl_trie_edge;
typedef struct pl_trie {
    pl_trie_edge *edges; /* n_places is a power of two, at most half of them are taken */
    size_t n_places;
    int32_t *values; /* of the nodes, -1 for none; the root is 0 */
    uint32_t n_nodes;
    uint64_t seed;
} pl_trie;
/* Room for keys of n_bytes (less than 2^31) in all. False, with t empty, when there is no memory. */
PL_MUST_CHECK bool pl_trie_init(pl_trie *t, size_t n_bytes);
void pl_trie_fini(pl_trie *t);
void pl_trie_add(pl_trie *t, pl_str key, int32_t value); /* of equal keys the first stays */
/* From *node to its child; *value is that one's, or -1. False when there is none. */
bool pl_trie_step(const pl_trie *t, uint32_t *node, uint8_t byte, int32_t *value);

/* One place in the text that is being joined. */
typedef struct pl_symbol {
    uint32_t at, size;  /* its bytes */
    int32_t id;         /* meaning is the caller's */
    int32_t prev, next; /* neighbours, -1 at the ends; a symbol that was joined into its left neighbour has size 0 */
    int32_t pair;       /* the id that this one and the next would make, -1 for none */
} pl_symbol;

/* The scratch of one pl_tokenize. */
typedef struct pl_text_work {
    pl_buf symbols, heap, text, word, ends[2];
    uint64_t steps; /* taken off the heap, of the trie, pieces of words looked up */
} pl_text_work;
void pl_text_work_fini(pl_text_work *w);

/* Whether a and b may be joined: the id of the result and its priority (the lowest goes first, then the leftmost). */
typedef bool (*pl_pair_fn)(const void *user, const pl_symbol *a, const pl_symbol *b, int32_t *id, uint32_t *priority);

/* Room for n symbols; NULL when there is no memory. */
pl_symbol *pl_symbols_reserve(pl_text_work *w, size_t n);
/* Links symbols[0..n) in their order and joins pairs until none is left: O(n log n). False when there is no memory. */
PL_MUST_CHECK bool pl_symbols_join(pl_text_work *w, pl_symbol *symbols, size_t n, pl_pair_fn pair, const void *user);

/* PL_ERR_UNSUPPORTED names a pre-tokenizer that is not in the table. steps: NULL, or where the places that the
 * expressions try are counted, which is slow (for tests). */
PL_MUST_CHECK pl_status pl_pretok_open(pl_pretok **out, pl_str name, uint64_t *steps, pl_error *err);
void pl_pretok_close(pl_pretok *p);
bool pl_pretok_ignore_merges(const pl_pretok *p); /* a word that is a token stays whole */
bool pl_pretok_add_bos(const pl_pretok *p);       /* where the file does not say */
bool pl_pretok_nfc(const pl_pretok *p);           /* text is composed first (Unicode normalization form C) */
bool pl_pretok_escaped(const pl_pretok *p);       /* a space is written as U+2581 */
bool pl_pretok_is_raw(pl_str name);               /* BPE over characters as they are, with bytes as <0x00> */
/* Cuts text, which is valid UTF-8 and smaller than 2 GiB, into words: *ends has the end of each (uint32_t), in order.
 */
PL_MUST_CHECK pl_status pl_pretok_split(const pl_pretok *p, pl_text_work *w, pl_str text, pl_str *ends, pl_error *err);
/* Appends text (valid UTF-8) in form C. */
PL_MUST_CHECK bool pl_text_nfc(pl_str text, pl_buf *out);

/* v has its name, tokens, types and pieces, and is borrowed. merges: an array of strings. */
PL_MUST_CHECK pl_status pl_bpe_new(pl_bpe **out, const pl_vocab *v, const pl_gguf_value *merges, pl_error *err);
void pl_bpe_free(pl_bpe *b);
const pl_pretok *pl_bpe_pretok(const pl_bpe *b);
/* Appends to out what text (in the file's visible alphabet) stands for. */
PL_MUST_CHECK bool pl_bpe_visible_to_bytes(pl_str text, pl_buf *out);
PL_MUST_CHECK pl_status pl_bpe_encode(const pl_bpe *b, pl_text_work *w, pl_str text, pl_buf *out, pl_error *err);

/* A space goes in front, if the model asks for one. */
PL_MUST_CHECK pl_status pl_spm_encode(const pl_vocab *v, pl_text_work *w, pl_str text, pl_buf *out, pl_error *err);
/* v has its tokens, types and scores. charsmap is borrowed; empty for none. */
PL_MUST_CHECK pl_status pl_ugm_new(pl_ugm **out, const pl_vocab *v, pl_bytes charsmap, pl_error *err);
void pl_ugm_free(pl_ugm *u);
PL_MUST_CHECK pl_status pl_ugm_encode(const pl_vocab *v, pl_text_work *w, pl_str text, pl_buf *out, pl_error *err);

PL_MUST_CHECK pl_status pl_wpm_encode(const pl_vocab *v, pl_text_work *w, pl_str text, pl_buf *out, pl_error *err);

/* Appends text with U+2581 turned into spaces. */
PL_MUST_CHECK bool pl_spm_unescape(pl_str text, pl_buf *out);
