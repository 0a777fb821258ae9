/* Any bytes as a text, in vocabularies of several kinds: the tokens are the vocabulary's, and they stand for the text.
 */
#include <stdio.h>

#include "engine/gguf/write.h"
#include "engine/text/vocab.h"
#include "tests/fixtures/fixtures.h"
#include "tests/fuzz/fuzz.h"

static const char *const pres[] = {"gpt-2",        "smollm",         "llama-bpe",   "gpt-4o",  "tekken", "falcon",
                                   "deepseek-llm", "deepseek-coder", "deepseek-v3", "default", "qwen2",  NULL};
enum { N = sizeof pres / sizeof pres[0] };
/* Behind these: raw BPE, WordPiece, and Unigram, whose charsmap comes from the input too. */
enum { RAW = N, WPM, UGM, N_KINDS };

static pl_buf small_file(int kind, pl_bytes charsmap)
{
    static const char *const words[] = {"\xe2\x96\x81",
                                        "\xe2\x96\x81"
                                        "a",
                                        "a",
                                        "b",
                                        "ab",
                                        "\xe2\x96\x81"
                                        "ba",
                                        "\n\n",
                                        "\xc3\xa9",
                                        "e",
                                        "\xe2\x96\x81"
                                        "e",
                                        "<unk>",
                                        "</s>",
                                        "<tool>"};
    static const float scores[] = {-2, -3, -4, -4, -5, -6, -6, -7, -7, -8, 0, 0, 0};
    enum { N_WORDS = sizeof words / sizeof words[0] };
    pl_str text[N_WORDS + 256], merges[2] = {PL_STR("a b"), PL_STR("\xe2\x96\x81 a")};
    float score[N_WORDS + 256] = {0};
    int32_t type[N_WORDS + 256];
    static char bytes[256][8];
    size_t n = 0;
    for (; n < N_WORDS; n++) {
        text[n] = pl_str_from(words[n]);
        score[n] = scores[n];
        type[n] = n < N_WORDS - 3 ? PL_TOKEN_NORMAL : n == N_WORDS - 1 ? PL_TOKEN_USER_DEFINED : PL_TOKEN_CONTROL;
    }
    for (int b = 0; b < 256 && kind == RAW; b++) {
        snprintf(bytes[b], sizeof bytes[b], "<0x%02X>", b);
        type[n] = PL_TOKEN_BYTE;
        text[n++] = pl_str_from(bytes[b]);
    }
    pl_error err;
    pl_gguf_writer *w;
    pl_buf out = {0};
    pl_status s = pl_gguf_writer_new(&w, &err);
    PL_ASSERT(s == PL_OK);
    pl_gguf_add_str(w, "tokenizer.ggml.model", pl_str_from(kind == RAW ? "gemma4" : kind == WPM ? "bert" : "t5"));
    pl_gguf_add_strs(w, "tokenizer.ggml.tokens", text, n);
    pl_gguf_add_i32s(w, "tokenizer.ggml.token_type", type, n);
    pl_gguf_add_f32s(w, "tokenizer.ggml.scores", score, n);
    pl_gguf_add_strs(w, "tokenizer.ggml.merges", merges, 2);
    pl_gguf_add_u32(w, "tokenizer.ggml.unknown_token_id", N_WORDS - 3);
    pl_gguf_add_bool(w, "tokenizer.ggml.remove_extra_whitespaces", true);
    if (charsmap.size > 0) {
        pl_gguf_value map = {.kind = PL_GGUF_ARRAY, .elem = PL_GGUF_U8, .n = charsmap.size, .raw = charsmap};
        pl_gguf_add_value(w, PL_STR("tokenizer.ggml.precompiled_charsmap"), &map);
    }
    s = pl_gguf_write(w, &out, &err);
    PL_ASSERT(s == PL_OK);
    pl_gguf_writer_free(w);
    return out;
}

/* A vocabulary of one of these kinds over the text; of Unigram the first byte says how long the charsmap is. */
static void small_vocabulary(int kind, bool parse, pl_str text)
{
    pl_bytes map = {0};
    if (kind == UGM && text.size > 0) {
        size_t n = (uint8_t)text.data[0] * 4u;
        if (n > text.size - 1) n = text.size - 1;
        map = (pl_bytes){(const uint8_t *)text.data + 1, n};
        text = (pl_str){text.data + 1 + n, text.size - 1 - n};
    }
    pl_buf file = small_file(kind, map), ids = {0}, back = {0};
    pl_gguf *g;
    pl_vocab *v;
    pl_error err = {0};
    pl_status s = pl_gguf_open_bytes(&g, pl_buf_bytes(&file), false, &err);
    PL_ASSERT(s == PL_OK);
    s = pl_vocab_open(&v, g, &err);
    PL_ASSERT(s == PL_OK || (kind == UGM && s == PL_ERR_FORMAT));
    if (s == PL_OK) {
        s = pl_tokenize(v, text, true, parse, &ids, &err);
        PL_ASSERT(s == PL_OK);
        for (size_t i = 0; i < ids.size; i += 4) {
            int32_t id = (int32_t)pl_get_u32(ids.data + i);
            PL_ASSERT(id >= 0 && id < pl_vocab_size(v));
        }
        pl_detokenize_text(v, (const int32_t *)(const void *)ids.data, ids.size / 4, true, true, &back);
        /* Raw BPE keeps every byte but U+2581, which is the same as a space. */
        if (kind == RAW && !(text.size && memmem(text.data, text.size, "\xe2\x96\x81", 3)))
            PL_ASSERT(pl_str_eq(pl_buf_str(&back), text));
    }
    pl_buf_fini(&back);
    pl_buf_fini(&ids);
    pl_vocab_close(v);
    pl_gguf_close(g);
    pl_buf_fini(&file);
}

static pl_vocab *vocab_at(size_t i)
{
    static pl_vocab *opened[N];
    static pl_gguf *files[N];
    static pl_buf bytes[N];
    if (opened[i]) return opened[i];
    pl_error err = {0};
    bytes[i] = tiny_gguf(.vocab = pres[i] ? TINY_VOCAB_BPE : TINY_VOCAB_SPM, .pre = pres[i]);
    pl_status s = pl_gguf_open_bytes(&files[i], pl_buf_bytes(&bytes[i]), false, &err);
    PL_ASSERT(s == PL_OK);
    s = pl_vocab_open(&opened[i], files[i], &err);
    PL_ASSERT(s == PL_OK);
    return opened[i];
}

/* The first byte chooses the vocabulary and whether control tokens are read. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    size_t which = (data[0] >> 1) % N_KINDS;
    pl_str text = {(const char *)data + 1, size - 1};
    if (which >= N) {
        small_vocabulary((int)which, data[0] & 1, text);
        return 0;
    }
    const pl_vocab *v = vocab_at(which);
    pl_buf ids = {0}, back = {0}, stream = {0};
    pl_error err = {0};
    pl_status s = pl_tokenize(v, text, false, data[0] & 1, &ids, &err);
    PL_ASSERT(s == PL_OK);
    pl_detok_stream d;
    pl_detok_start(&d, v, true, true);
    for (size_t i = 0; i < ids.size; i += 4) {
        int32_t id = (int32_t)pl_get_u32(ids.data + i);
        PL_ASSERT(id >= 0 && id < pl_vocab_size(v));
        pl_detokenize(v, id, true, &back);
        pl_detok_add(&d, id, &stream);
    }
    pl_detok_end(&d, &stream);
    PL_ASSERT(pl_utf8_valid(pl_buf_str(&stream)));
    /* Form C changes the text, and SPM puts spaces into it. */
    if (pres[which] && strcmp(pres[which], "qwen2") != 0) PL_ASSERT(pl_str_eq(pl_buf_str(&back), text));
    pl_buf_fini(&ids);
    pl_buf_fini(&back);
    pl_buf_fini(&stream);
    return 0;
}
