/* Any bytes as a text, in vocabularies of several kinds: the tokens are the vocabulary's, and they stand for the text.
 */
#include "engine/text/vocab.h"
#include "tests/fixtures/fixtures.h"
#include "tests/fuzz/fuzz.h"

static const char *const pres[] = {"gpt-2",        "smollm",         "llama-bpe",   "gpt-4o",  "tekken", "falcon",
                                   "deepseek-llm", "deepseek-coder", "deepseek-v3", "default", "qwen2",  NULL};
enum { N = sizeof pres / sizeof pres[0] };

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
    size_t which = (data[0] >> 1) % N;
    const pl_vocab *v = vocab_at(which);
    pl_str text = {(const char *)data + 1, size - 1};
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
