/* Any bytes as a grammar; behind a zero byte, a text that it reads. */
#include "engine/sample/grammar.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    size_t n = zero ? (size_t)(zero - data) : size;
    pl_grammar *g;
    pl_grammar_run *r;
    pl_error err = {0};
    if (pl_grammar_new(&g, (pl_str){(const char *)data, n}, &err) != PL_OK) {
        PL_ASSERT(err.text[0] && g == NULL);
        return 0;
    }
    PL_ASSERT(pl_grammar_bytes(g) > 0);
    if (pl_grammar_run_new(&r, g, 1 << 20, &err) == PL_OK) {
        int32_t at = pl_grammar_start(r), again = at;
        uint32_t generation = pl_grammar_generation(r);
        for (size_t i = n + 1; i < size; i++) at = pl_grammar_step(r, at, data[i]);
        for (size_t i = n + 1; i < size; i++) again = pl_grammar_step(r, again, data[i]);
        PL_ASSERT(at == again); /* a place keeps its number */
        for (int b = 0; b < 256; b++)
            PL_ASSERT(at != PL_PLACE_DEAD || pl_grammar_step(r, at, (uint8_t)b) == PL_PLACE_DEAD);
        pl_grammar_tidy(r);
        PL_ASSERT(pl_grammar_generation(r) - generation <= 1);
        pl_grammar_run_free(r);
    }
    pl_grammar_free(g);
    return 0;
}
