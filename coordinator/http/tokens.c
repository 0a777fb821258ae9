/* /tokenize and /detokenize, as llama.cpp's server has them. */
#include "coordinator/http/api_impl.h"

/* Tokenizing runs on the loop's thread, where heartbeats wait for it. */
#define TEXT_MAX (1 << 20)

static pl_json *piece_json(const pl_vocab *vocab, int32_t token)
{
    pl_buf text = {0};
    pl_detokenize(vocab, token, true, &text);
    pl_str s = pl_buf_str(&text);
    pl_json *v;
    if (pl_utf8_valid(s)) {
        v = pl_json_string(s);
    } else { /* a part of a character: its bytes */
        v = pl_json_array();
        for (size_t i = 0; i < s.size; i++) pl_json_append(v, pl_json_int((uint8_t)s.data[i]));
    }
    pl_buf_fini(&text);
    return v;
}

pl_json *api_tokenize(api_reader *r, const pl_vocab *vocab)
{
    const pl_json *content = api_member(r, "content"), *special = api_member(r, "parse_special");
    bool add = api_read_bool(r, "add_special"), pieces = api_read_bool(r, "with_pieces");
    bool parse = !special || api_read_bool(r, "parse_special");
    pl_buf ids = {0};
    if (pl_json_type(content) != PL_JSON_STRING) api_fail(r, PL_ERR_INVALID, "content", "must be a string");
    if (pl_json_str(content).size > TEXT_MAX)
        api_fail(r, PL_ERR_INVALID, "content", "has more than 1048576 bytes; `paceline tokenize` takes any number");
    if (!r->failed && pl_tokenize(vocab, pl_json_str(content), add, parse, &ids, &r->err) != PL_OK) r->failed = true;
    pl_json *v = NULL;
    if (!r->failed) {
        pl_json *tokens = pl_json_array();
        for (size_t i = 0; i < ids.size / sizeof(int32_t); i++) {
            int32_t id = ((const int32_t *)(const void *)ids.data)[i];
            pl_json *e = pl_json_int(id);
            if (pieces) {
                pl_json *pair = pl_json_object();
                pl_json_set(pair, "id", e);
                pl_json_set(pair, "piece", piece_json(vocab, id));
                e = pair;
            }
            pl_json_append(tokens, e);
        }
        v = pl_json_object();
        pl_json_set(v, "tokens", tokens);
    }
    pl_buf_fini(&ids);
    return v;
}

pl_json *api_detokenize(api_reader *r, const pl_vocab *vocab)
{
    const pl_json *tokens = api_member(r, "tokens");
    pl_buf text = {0};
    if (pl_json_type(tokens) != PL_JSON_ARRAY) api_fail(r, PL_ERR_INVALID, "tokens", "must be an array of token ids");
    for (size_t i = 0; i < pl_json_size(tokens) && !r->failed; i++) {
        const pl_json *e = pl_json_at(tokens, i);
        int64_t id = pl_json_i64(e);
        if (pl_json_type(e) != PL_JSON_INT || id < 0 || id >= pl_vocab_size(vocab))
            api_fail(r, PL_ERR_INVALID, "tokens", "holds what is not a token id of this model");
        else if (!pl_detokenize(vocab, (int32_t)id, true, &text))
            api_fail(r, PL_ERR_NO_MEMORY, "tokens", "no memory");
    }
    pl_json *v = NULL;
    if (!r->failed) {
        v = pl_json_object();
        pl_json_set(v, "content", pl_json_string(pl_buf_str(&text)));
    }
    pl_buf_fini(&text);
    return v;
}
