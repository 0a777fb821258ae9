#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "coordinator/http/api_impl.h"
#include "engine/base/alloc.h"
#include "engine/sample/json_schema.h"

void api_fail(api_reader *r, pl_status s, const char *param, const char *what)
{
    if (r->failed) return;
    r->failed = true;
    r->param = param;
    (void)pl_fail(&r->err, s, "%s: %s", param, what);
}

/* As api_fail, when the error is written already. */
static void failed_in(api_reader *r, const char *param)
{
    r->failed = true;
    r->param = param;
}

const pl_json *api_member(const api_reader *r, const char *name)
{
    const pl_json *v = pl_json_get(r->body, name);
    return v && pl_json_type(v) != PL_JSON_NULL ? v : NULL;
}

static bool is_number(const pl_json *v)
{
    return pl_json_type(v) == PL_JSON_INT || pl_json_type(v) == PL_JSON_REAL;
}

void api_read_f32(api_reader *r, const char *name, float *out)
{
    const pl_json *v = api_member(r, name);
    if (!v) return;
    if (!is_number(v))
        api_fail(r, PL_ERR_INVALID, name, "must be a number");
    else
        *out = (float)pl_json_f64(v);
}

bool api_read_i64(api_reader *r, const char *name, int64_t low, int64_t high, int64_t *out)
{
    const pl_json *v = api_member(r, name);
    if (!v) return false;
    char what[96];
    snprintf(what, sizeof what, "must be an integer from %" PRId64 " to %" PRId64, low, high);
    if (pl_json_type(v) != PL_JSON_INT || pl_json_i64(v) < low || pl_json_i64(v) > high) {
        api_fail(r, PL_ERR_INVALID, name, what);
        return false;
    }
    *out = pl_json_i64(v);
    return true;
}

void api_read_i32(api_reader *r, const char *name, int32_t low, int32_t *out)
{
    int64_t v;
    if (api_read_i64(r, name, low, INT32_MAX, &v)) *out = (int32_t)v;
}

bool api_read_bool(api_reader *r, const char *name)
{
    const pl_json *v = api_member(r, name);
    if (v && pl_json_type(v) != PL_JSON_BOOL) api_fail(r, PL_ERR_INVALID, name, "must be true or false");
    return v && pl_json_is_true(v);
}

/* --- logit bias --- */

static void add_bias(api_reader *r, const char *param, api_sampling *s, pl_sample_params *p, int64_t token, float bias,
                     const pl_vocab *vocab)
{
    if (token < 0 || token >= pl_vocab_size(vocab)) {
        char what[96];
        snprintf(what, sizeof what, "%" PRId64 " is not a token of this model, which has %d", token,
                 (int)pl_vocab_size(vocab));
        api_fail(r, PL_ERR_INVALID, param, what);
    } else if (p->n_bias == PL_BIAS_MAX) {
        api_fail(r, PL_ERR_INVALID, param, "has more than 1024 tokens");
    } else {
        s->bias_tokens[p->n_bias] = (int32_t)token;
        s->bias[p->n_bias++] = bias;
    }
}

/* A token by its number, or all tokens of a text, as llama.cpp's server has it. */
static void add_bias_of(api_reader *r, api_sampling *s, pl_sample_params *p, const pl_json *token, const pl_json *bias,
                        const pl_vocab *vocab)
{
    static const char param[] = "logit_bias";
    bool off = pl_json_type(bias) == PL_JSON_BOOL && !pl_json_is_true(bias);
    float x = off ? -INFINITY : (float)pl_json_f64(bias);
    if (!off && !is_number(bias)) {
        api_fail(r, PL_ERR_INVALID, param, "a bias must be a number, or false to ban the token");
    } else if (pl_json_type(token) == PL_JSON_INT) {
        add_bias(r, param, s, p, pl_json_i64(token), x, vocab);
    } else if (pl_json_type(token) == PL_JSON_STRING) {
        pl_buf ids = {0};
        pl_str text = pl_json_str(token);
        if (text.size > 4096 || pl_tokenize(vocab, text, false, true, &ids, &r->err) != PL_OK)
            api_fail(r, PL_ERR_INVALID, param, "a text that cannot be made tokens of");
        for (size_t i = 0; i < ids.size / sizeof(int32_t) && !r->failed; i++)
            add_bias(r, param, s, p, ((const int32_t *)(const void *)ids.data)[i], x, vocab);
        pl_buf_fini(&ids);
    } else {
        api_fail(r, PL_ERR_INVALID, param, "must be an object, or an array of pairs of a token and its bias");
    }
}

static void read_bias(api_reader *r, const pl_vocab *vocab, api_sampling *s, pl_sample_params *p)
{
    const pl_json *v = api_member(r, "logit_bias"), *banned = api_member(r, "banned_tokens");
    if (!v && !banned) return;
    /* The server's own come first. */
    for (int32_t i = 0; i < p->n_bias; i++) {
        s->bias_tokens[i] = p->bias_tokens[i];
        s->bias[i] = p->bias[i];
    }
    p->bias_tokens = s->bias_tokens;
    p->bias = s->bias;
    if (v && pl_json_type(v) == PL_JSON_OBJECT) {
        void *at = NULL;
        pl_str key;
        pl_json *bias;
        while (!r->failed && pl_json_next(v, &at, &key, &bias)) {
            char *end = NULL;
            long id = strtol(key.data, &end, 10);
            pl_json *token = *end || end == key.data ? pl_json_string(key) : pl_json_int(id);
            add_bias_of(r, s, p, token, bias, vocab);
            pl_json_free(token);
        }
    } else if (v && pl_json_type(v) == PL_JSON_ARRAY) {
        for (size_t i = 0; i < pl_json_size(v) && !r->failed; i++)
            add_bias_of(r, s, p, pl_json_at(pl_json_at(v, i), 0), pl_json_at(pl_json_at(v, i), 1), vocab);
    } else if (v) {
        api_fail(r, PL_ERR_INVALID, "logit_bias", "must be an object, or an array of pairs of a token and its bias");
    }
    if (banned && pl_json_type(banned) != PL_JSON_ARRAY)
        api_fail(r, PL_ERR_INVALID, "banned_tokens", "must be an array of token ids");
    for (size_t i = 0; i < pl_json_size(banned) && !r->failed; i++)
        add_bias(r, "banned_tokens", s, p,
                 pl_json_type(pl_json_at(banned, i)) == PL_JSON_INT ? pl_json_i64(pl_json_at(banned, i)) : -1,
                 -INFINITY, vocab);
}

/* --- lists --- */

static void read_breakers(api_reader *r, api_sampling *s, pl_sample_params *p)
{
    const pl_json *v = api_member(r, "dry_sequence_breakers");
    if (!v) return;
    if (pl_json_type(v) != PL_JSON_ARRAY || pl_json_size(v) > PL_BREAKERS_MAX) {
        api_fail(r, PL_ERR_INVALID, "dry_sequence_breakers", "must be an array of at most 32 strings");
        return;
    }
    p->breakers = s->breakers;
    p->n_breakers = 0;
    for (size_t i = 0; i < pl_json_size(v); i++) {
        s->breakers[p->n_breakers++] = pl_json_str(pl_json_at(v, i));
        if (pl_json_type(pl_json_at(v, i)) != PL_JSON_STRING)
            api_fail(r, PL_ERR_INVALID, "dry_sequence_breakers", "must be an array of at most 32 strings");
    }
}

/* An array of names, or a string of letters. */
static void read_chain(api_reader *r, pl_sample_params *p)
{
    const pl_json *v = api_member(r, "samplers");
    pl_buf names = {0};
    if (!v || r->failed) return;
    if (pl_json_type(v) == PL_JSON_STRING) {
        if (pl_sample_chain_letters(p->chain, pl_json_str(v), &r->err) != PL_OK) failed_in(r, "samplers");
        return;
    }
    for (size_t i = 0; i < pl_json_size(v); i++) {
        pl_buf_add_str(&names, pl_json_str(pl_json_at(v, i)));
        pl_buf_add_u8(&names, ';');
    }
    if (pl_json_type(v) != PL_JSON_ARRAY)
        api_fail(r, PL_ERR_INVALID, "samplers", "must be an array of names, or a string of letters");
    else if (pl_sample_chain_parse(p->chain, pl_buf_str(&names), &r->err) != PL_OK)
        failed_in(r, "samplers");
    pl_buf_fini(&names);
}

/* --- grammars --- */

static void use_schema(api_reader *r, const char *param, const pl_json *schema, api_sampling *s)
{
    if (r->failed) return;
    pl_buf_reset(&s->grammar);
    if (pl_json_schema_grammar(schema, &s->grammar, &r->err) != PL_OK) failed_in(r, param);
}

static void read_grammar(api_reader *r, api_sampling *s, pl_sample_params *p)
{
    const pl_json *grammar = api_member(r, "grammar"), *schema = api_member(r, "json_schema"),
                  *format = api_member(r, "response_format");
    pl_str type = pl_json_str(pl_json_get(format, "type"));
    bool has_grammar = pl_json_str(grammar).size > 0, has_format = format && !pl_str_is(type, "text");
    if (grammar && pl_json_type(grammar) != PL_JSON_STRING) api_fail(r, PL_ERR_INVALID, "grammar", "must be a string");
    if (format && pl_json_type(format) != PL_JSON_OBJECT)
        api_fail(r, PL_ERR_INVALID, "response_format", "must be an object");
    if (has_grammar + (schema != NULL) + has_format > 1)
        api_fail(r, PL_ERR_INVALID, has_grammar ? "grammar" : "json_schema",
                 "only one of grammar, json_schema and response_format may be given");
    if (has_grammar) {
        pl_buf_add_str(&s->grammar, pl_json_str(grammar));
        if (s->grammar.failed) api_fail(r, PL_ERR_NO_MEMORY, "grammar", "no memory");
    } else if (schema) {
        use_schema(r, "json_schema", schema, s);
    } else if (has_format && pl_str_is(type, "json_object")) {
        /* llama.cpp takes a schema here too. */
        pl_json *any = pl_json_object(), *own = pl_json_get(format, "schema");
        pl_json_set(any, "type", pl_json_string(PL_STR("object")));
        use_schema(r, "response_format", own ? own : any, s);
        pl_json_free(any);
    } else if (has_format && pl_str_is(type, "json_schema")) {
        pl_json *own = pl_json_get(pl_json_get(format, "json_schema"), "schema");
        if (!own) own = pl_json_get(format, "schema");
        if (own)
            use_schema(r, "response_format", own, s);
        else
            api_fail(r, PL_ERR_INVALID, "response_format", "json_schema.schema is missing");
    } else if (has_format) {
        api_fail(r, PL_ERR_UNSUPPORTED, "response_format",
                 "its type must be \"text\", \"json_object\" or \"json_schema\"");
    }
    if (s->grammar.size > 0) p->grammar = pl_buf_str(&s->grammar);
}

void api_sampling_fini(api_sampling *s)
{
    pl_buf_fini(&s->grammar);
}

void api_read_sampling(api_reader *r, const pl_vocab *vocab, api_sampling *s, pl_sample_params *p)
{
    const struct {
        const char *name;
        float *out;
    } numbers[] = {
        {"temperature", &p->temperature},
        {"dynatemp_range", &p->dynatemp_range},
        {"dynatemp_exponent", &p->dynatemp_exponent},
        {"top_p", &p->top_p},
        {"min_p", &p->min_p},
        {"typical_p", &p->typical_p},
        {"top_n_sigma", &p->top_n_sigma},
        {"xtc_probability", &p->xtc_probability},
        {"xtc_threshold", &p->xtc_threshold},
        {"repetition_penalty", &p->repeat_penalty},
        {"repeat_penalty", &p->repeat_penalty},
        {"frequency_penalty", &p->frequency_penalty},
        {"presence_penalty", &p->presence_penalty},
        {"dry_multiplier", &p->dry_multiplier},
        {"dry_base", &p->dry_base},
        {"mirostat_tau", &p->mirostat_tau},
        {"mirostat_eta", &p->mirostat_eta},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) api_read_f32(r, numbers[i].name, numbers[i].out);
    api_read_i32(r, "top_k", INT32_MIN, &p->top_k);
    if (p->top_k < 0) p->top_k = 0; /* both 0 and -1 are in use for "off" */
    api_read_i32(r, "repeat_last_n", -1, &p->repeat_last_n);
    api_read_i32(r, "dry_allowed_length", 0, &p->dry_allowed_length);
    api_read_i32(r, "dry_penalty_last_n", -1, &p->dry_last_n);
    api_read_i32(r, "mirostat", 0, &p->mirostat);
    read_bias(r, vocab, s, p);
    read_breakers(r, s, p);
    read_chain(r, p);
    read_grammar(r, s, p);
    if (!r->failed && pl_sample_check(p, &r->err) != PL_OK) {
        /* The word that the message begins with. */
        snprintf(r->param_text, sizeof r->param_text, "%.*s", (int)strcspn(r->err.text, " :,"), r->err.text);
        failed_in(r, r->param_text);
    }
}

pl_json *api_settings_json(const pl_sample_params *p)
{
    pl_json *v = pl_json_object(), *chain = pl_json_array(), *bias = pl_json_array(), *breakers = pl_json_array();
    pl_json_set(v, "seed", pl_json_int((int64_t)p->seed));
    const struct {
        const char *name;
        float value;
    } numbers[] = {
        {"temperature", p->temperature},
        {"dynatemp_range", p->dynatemp_range},
        {"dynatemp_exponent", p->dynatemp_exponent},
        {"top_p", p->top_p},
        {"min_p", p->min_p},
        {"typical_p", p->typical_p},
        {"top_n_sigma", p->top_n_sigma},
        {"xtc_probability", p->xtc_probability},
        {"xtc_threshold", p->xtc_threshold},
        {"repeat_penalty", p->repeat_penalty},
        {"frequency_penalty", p->frequency_penalty},
        {"presence_penalty", p->presence_penalty},
        {"dry_multiplier", p->dry_multiplier},
        {"dry_base", p->dry_base},
        {"mirostat_tau", p->mirostat_tau},
        {"mirostat_eta", p->mirostat_eta},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        pl_json_set(v, numbers[i].name, pl_json_real((double)numbers[i].value));
    pl_json_set(v, "top_k", pl_json_int(p->top_k));
    pl_json_set(v, "repeat_last_n", pl_json_int(p->repeat_last_n));
    pl_json_set(v, "dry_allowed_length", pl_json_int(p->dry_allowed_length));
    pl_json_set(v, "dry_penalty_last_n", pl_json_int(p->dry_last_n));
    pl_json_set(v, "mirostat", pl_json_int(p->mirostat));
    for (int32_t i = 0; i < p->n_breakers; i++) pl_json_append(breakers, pl_json_string(p->breakers[i]));
    pl_json_set(v, "dry_sequence_breakers", breakers);
    for (int32_t i = 0; i < p->n_bias; i++) {
        pl_json *pair = pl_json_array();
        pl_json_append(pair, pl_json_int(p->bias_tokens[i]));
        pl_json_append(pair, p->bias[i] == -INFINITY ? pl_json_bool(false) : pl_json_real((double)p->bias[i]));
        pl_json_append(bias, pair);
    }
    pl_json_set(v, "logit_bias", bias);
    const uint8_t *steps = p->chain[0] == PL_STEP_END ? pl_sample_chain_default : p->chain;
    for (int i = 0; i < PL_STEPS_MAX && steps[i] != PL_STEP_END; i++)
        pl_json_append(chain, pl_json_string(pl_str_from(pl_step_name((pl_step)steps[i]))));
    pl_json_set(v, "samplers", chain);
    pl_json_set(v, "grammar", pl_json_string(p->grammar));
    return v;
}

void api_read_adapters(api_reader *r, const float *defaults, int32_t n_adapters, float scales[PL_ADAPTERS_MAX])
{
    const pl_json *list = api_member(r, "lora");
    if (n_adapters > 0) memcpy(scales, defaults, (size_t)n_adapters * sizeof *scales);
    if (!list) return;
    memset(scales, 0, PL_ADAPTERS_MAX * sizeof *scales);
    if (pl_json_type(list) != PL_JSON_ARRAY) api_fail(r, PL_ERR_INVALID, "lora", "must be an array");
    for (size_t i = 0; i < pl_json_size(list) && !r->failed; i++) {
        const pl_json *e = pl_json_at(list, i), *id = pl_json_get(e, "id"), *scale = pl_json_get(e, "scale");
        if (pl_json_type(id) != PL_JSON_INT || pl_json_i64(id) < 0 || pl_json_i64(id) >= n_adapters)
            api_fail(r, PL_ERR_INVALID, "lora", "an id is not the number of one of the server's adapters");
        else if (pl_json_type(scale) != PL_JSON_REAL && pl_json_type(scale) != PL_JSON_INT)
            api_fail(r, PL_ERR_INVALID, "lora", "a scale must be a number");
        else
            scales[pl_json_i64(id)] = (float)pl_json_f64(scale);
    }
}
