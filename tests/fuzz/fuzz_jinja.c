/* Any bytes as a template, up to a zero byte, behind which its variables may stand as JSON. */
#include "engine/text/jinja.h"
#include "tests/fuzz/fuzz.h"

static const char defaults[] =
    "{\"messages\":[{\"role\":\"user\",\"content\":\"hi "
    "\\u00e9\"},{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"x\"}]}],"
    "\"add_generation_prompt\":true,\"n\":3,\"f\":1.5,\"none\":null,\"d\":{\"a\":{\"b\":[1,2,3]}},\"s\":\"a,b c\\nd\"}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    size_t n = zero ? (size_t)(zero - data) : size;
    pl_str json = zero ? (pl_str){(const char *)zero + 1, size - n - 1} : PL_STR(defaults);
    pl_jinja *t;
    pl_json *vars = NULL;
    pl_error err = {0};
    if (pl_jinja_open(&t, (pl_str){(const char *)data, n}, &err) != PL_OK) {
        PL_ASSERT(err.text[0] && t == NULL);
        return 0;
    }
    if (pl_json_parse(&vars, json, &err) == PL_OK) {
        pl_buf out = {0};
        pl_jinja_limits limits = {.steps = 20000, .memory = 1 << 20, .output = 1 << 16, .now_us = 1};
        pl_status s = pl_jinja_render(t, vars, &limits, &out, &err);
        PL_ASSERT(s == PL_OK ? out.size <= limits.output : out.size == 0 && err.text[0]);
        pl_buf_fini(&out);
        pl_json_free(vars);
    }
    pl_jinja_close(t);
    return 0;
}
