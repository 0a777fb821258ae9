/* Any bytes as a JSON Schema: what becomes a grammar is one that can be read, or too large. */
#include "engine/sample/grammar.h"
#include "engine/sample/json_schema.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    pl_buf text = {0};
    pl_grammar *g;
    pl_error err = {0};
    if (pl_json_schema_text_grammar((pl_str){(const char *)data, size}, &text, &err) != PL_OK) {
        PL_ASSERT(err.text[0] && text.size == 0);
    } else {
        pl_status s = pl_grammar_new(&g, pl_buf_str(&text), &err);
        /* A reference that only refers to itself is found here; counts may be too large, together or alone. */
        PL_ASSERT(s == PL_OK || s == PL_ERR_BUDGET || strstr(err.text, "calls itself") ||
                  strstr(err.text, "above 100000"));
        pl_grammar_free(g);
    }
    pl_buf_fini(&text);
    return 0;
}
