/* Any bytes as a GGUF file: opened whole and as a header, and everything that opened is read to its end. */
#include "engine/gguf/dump.h"
#include "engine/gguf/write.h"
#include "tests/fuzz/fuzz.h"

static uint64_t sum;

static void read_all(const pl_gguf *g, bool with_data)
{
    for (size_t i = 0; i < pl_gguf_n_tensors(g); i++) {
        const pl_gguf_tensor *t = pl_gguf_tensor_at(g, i);
        PL_ASSERT(pl_gguf_find_tensor(g, t->name) == t);
        if (!with_data) continue;
        const uint8_t *b = t->data;
        if (t->size) sum += (uint64_t)b[0] + b[t->size - 1];
    }
    for (int json = 0; json < 2; json++) {
        pl_buf out = {0};
        pl_error err;
        pl_status s = pl_gguf_dump(g, (pl_gguf_dump_options){.json = json, .array_max = UINT64_MAX}, &out, &err);
        PL_ASSERT(s == PL_OK);
        pl_buf_fini(&out);
    }
    /* What was read can be written, and says the same when it is read again. */
    pl_buf header = {0};
    pl_error err;
    pl_status s = pl_gguf_header_write(g, &header, &err);
    PL_ASSERT(s == PL_OK);
    pl_gguf *again;
    s = pl_gguf_open_bytes(&again, pl_buf_bytes(&header), true, &err);
    /* Sizes that are possible one by one may not be, laid out one behind the other. */
    if (s == PL_OK) {
        PL_ASSERT(pl_gguf_n_tensors(again) == pl_gguf_n_tensors(g));
        pl_gguf_close(again);
    } else {
        PL_ASSERT(!with_data);
    }
    pl_buf_fini(&header);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    for (int header_only = 0; header_only < 2; header_only++) {
        pl_gguf *g;
        pl_error err = {0};
        if (pl_gguf_open_bytes(&g, (pl_bytes){data, size}, header_only, &err) == PL_OK) {
            read_all(g, !header_only);
            pl_gguf_close(g);
        } else {
            PL_ASSERT(!g && err.text[0] && err.status != PL_OK);
        }
    }
    return 0;
}
