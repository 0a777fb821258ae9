/* A model's vocabulary: text to tokens and back, exactly as the model's makers meant it.
 *
 * Read from the tokenizer.ggml.* keys of a GGUF file (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
 * Threads: a vocabulary never changes after opening; any thread may use it. */
#pragma once

#include "engine/base/buf.h"
#include "engine/gguf/read.h"

typedef struct pl_vocab pl_vocab;

typedef enum {
    PL_TOKEN_NORMAL = 1,
    PL_TOKEN_UNKNOWN,
    PL_TOKEN_CONTROL,
    PL_TOKEN_USER_DEFINED,
    PL_TOKEN_UNUSED,
    PL_TOKEN_BYTE
} pl_token_type;

/* g is borrowed for the vocabulary's life. PL_ERR_UNSUPPORTED names the tokenizer model or pre-tokenizer that is not
 * known. */
PL_MUST_CHECK pl_status pl_vocab_open(pl_vocab **out, const pl_gguf *g, pl_error *err);
void pl_vocab_close(pl_vocab *v);

int32_t pl_vocab_size(const pl_vocab *v);
size_t pl_vocab_longest(const pl_vocab *v);    /* no token stands for more bytes of text than this */
const char *pl_vocab_model(const pl_vocab *v); /* "gpt2", "gemma4", "llama", "bert", "t5" */
const char *pl_vocab_pre(const pl_vocab *v);
/* -1 when the model has none. */
int32_t pl_vocab_bos(const pl_vocab *v);
int32_t pl_vocab_eos(const pl_vocab *v);
int32_t pl_vocab_unk(const pl_vocab *v);
bool pl_vocab_add_bos(const pl_vocab *v);
bool pl_vocab_add_eos(const pl_vocab *v);
/* Whether generation ends with this token: eos, eot, eom and the end-of-turn tokens known by name. */
bool pl_vocab_is_eog(const pl_vocab *v, int32_t token);
pl_token_type pl_vocab_type(const pl_vocab *v, int32_t token);
/* The token's text as in the file (for byte-level BPE, in its visible alphabet). token is in range. */
pl_str pl_vocab_text(const pl_vocab *v, int32_t token);
/* The token with exactly this text, or -1. */
int32_t pl_vocab_find(const pl_vocab *v, pl_str text);

/* Appends the ids (int32_t each) of text to out. add_special: bos, eos and separator as the model asks for.
 * parse_special: control tokens that stand in the text become their ids; otherwise they are plain text. Any bytes are
 * allowed. Time is linear in the text but for a logarithm; no input blows it up. */
PL_MUST_CHECK pl_status pl_tokenize(const pl_vocab *v, pl_str text, bool add_special, bool parse_special, pl_buf *out,
                                    pl_error *err);

/* Appends the bytes of one token. special: control tokens give their text, otherwise nothing. */
bool pl_detokenize(const pl_vocab *v, int32_t token, bool special, pl_buf *out);

/* Appends the bytes of n tokens: what pl_tokenize was given, where it keeps all of it. edges: the begin and end tokens
 * that it adds (add_special) are left out. */
bool pl_detokenize_text(const pl_vocab *v, const int32_t *tokens, size_t n, bool edges, bool special, pl_buf *out);

/* Detokenizes a stream: holds back bytes until they form whole characters, and the space that SPM, WordPiece and
 * Unigram put in front of a text. */
typedef struct pl_detok_stream {
    const pl_vocab *vocab;
    bool special, started, strip_space;
    uint8_t held[4];
    int n_held;
} pl_detok_stream;
/* strip_space: the stream begins a text (not the continuation of a prompt). */
void pl_detok_start(pl_detok_stream *s, const pl_vocab *v, bool special, bool strip_space);
/* Appends what is ready; bytes that can never become UTF-8 become U+FFFD. */
bool pl_detok_add(pl_detok_stream *s, int32_t token, pl_buf *out);
bool pl_detok_end(pl_detok_stream *s, pl_buf *out);
