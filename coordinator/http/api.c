#include "coordinator/http/api.h"

#include <inttypes.h>
#include <stdio.h>
#include <strings.h>
#include <time.h>

#include "coordinator/generation.h"
#include "engine/base/alloc.h"
#include "engine/base/hash.h"
#include "engine/base/log.h"
#include "engine/base/rng.h"
#include "engine/base/sys.h"
#include "engine/text/tool_calls.h"

typedef struct answer answer;

struct pl_api {
    pl_api_options o;
    pl_reply_style style;
    uint8_t *shown;         /* [vocabulary] control tokens that mark parts of a reply */
    bool arguments_as_text; /* the template wants a call's arguments as text, not as an object */
    pl_hash *keys;          /* of the keys: comparing hashes takes the same time wherever two keys differ */
    uint64_t n_requests, n_errors, n_prompt_tokens, n_generated_tokens, next_id;
    pl_rng ids;
    int64_t created; /* seconds since 1970 */
    answer *open;
};

typedef enum { KIND_CHAT, KIND_TEXT } answer_kind;

/* One request that is being answered. */
struct answer {
    pl_api *api;
    answer *prev, *next;
    pl_http_exchange *x; /* NULL when the client has gone */
    pl_generation *generation;
    answer_kind kind;
    bool stream, include_usage, headed, want_logprobs;
    int64_t created;
    char id[48];
    pl_buf text;      /* of an answer that is not streamed */
    pl_buf reasoning; /* likewise */
    pl_json *calls;   /* likewise: "tool_calls" */
    pl_reply *reply;  /* takes the text apart; NULL: it is given as it comes */
    pl_json *tools;   /* of the request; reply borrows them */
    int n_calls;
    bool one_call;
    pl_json *logprobs;  /* entries so far (not streamed), or since the last event (streamed) */
    size_t text_offset; /* bytes of text before the next token, for /v1/completions */
    const pl_vocab *vocab;
};

/* --- errors ------------------------------------------------------------------------------------------------------- */

static const char *error_type(pl_status s)
{
    switch (s) {
    case PL_ERR_INVALID:
    case PL_ERR_FORMAT:
    case PL_ERR_UNSUPPORTED: return "invalid_request_error";
    case PL_ERR_NOT_FOUND: return "not_found_error";
    case PL_ERR_AUTH: return "authentication_error";
    case PL_ERR_BUDGET:
    case PL_ERR_TIMEOUT:
    case PL_ERR_CLOSED: return "unavailable_error";
    default: return "server_error";
    }
}

static pl_json *error_json(pl_status s, int http, const char *text, const char *param)
{
    pl_json *e = pl_json_object(), *top = pl_json_object();
    pl_json_set(e, "message", pl_json_string(pl_str_from(text)));
    pl_json_set(e, "type", pl_json_string(pl_str_from(error_type(s))));
    pl_json_set(e, "code", pl_json_int(http));
    pl_json_set(e, "param", param ? pl_json_string(pl_str_from(param)) : pl_json_null());
    pl_json_set(top, "error", e);
    return top;
}

static void respond_json(pl_http_exchange *x, int http, pl_json *v)
{
    pl_buf b = {0};
    pl_error err;
    if (!v || pl_json_write(v, 0, &b, &err) != PL_OK || !pl_buf_add_u8(&b, '\n')) {
        http = 500;
        pl_buf_reset(&b);
        pl_buf_add_str(
            &b,
            PL_STR("{\"error\":{\"message\":\"no memory for the answer\",\"type\":\"server_error\",\"code\":500}}\n"));
    }
    pl_http_respond(x, http, "application/json", pl_buf_bytes(&b));
    pl_buf_fini(&b);
    pl_json_free(v);
}

static void respond_error(pl_api *a, pl_http_exchange *x, int http, const pl_error *err, const char *param)
{
    a->n_errors++;
    if (http == 401) pl_http_add_header(x, "WWW-Authenticate", "Bearer");
    if (http == 503) pl_http_add_header(x, "Retry-After", "1");
    respond_json(x, http, error_json(err->status, http, err->text, param));
}

static void respond_fail(pl_api *a, pl_http_exchange *x, const pl_error *err, const char *param)
{
    respond_error(a, x, pl_status_http(err->status), err, param);
}

/* --- reading requests ----------------------------------------------------------------------------------------------
 */

/* Where a parameter was wrong, for the error's "param". */
typedef struct request_reader {
    const pl_json *body;
    const char *param;
    pl_error err;
    bool failed;
} request_reader;

/* What a chat request says of tools, and what is known of the reply that it will have. */
typedef struct chat_request {
    pl_json *tools; /* an array; NULL: none may be called */
    bool one_call;  /* "parallel_tool_calls": false */
    pl_reply_style style;
    bool plain;    /* the reply's text is given as it comes */
    pl_buf prompt; /* the text that the model is given */
} chat_request;

static void reader_fail(request_reader *r, pl_status s, const char *param, const char *what)
{
    if (r->failed) return;
    r->failed = true;
    r->param = param;
    (void)pl_fail(&r->err, s, "%s: %s", param, what);
}

/* The member, or NULL when it is absent or null. */
static const pl_json *member(const request_reader *r, const char *name)
{
    const pl_json *v = pl_json_get(r->body, name);
    return v && pl_json_type(v) != PL_JSON_NULL ? v : NULL;
}

static void read_f32(request_reader *r, const char *name, float *out)
{
    const pl_json *v = member(r, name);
    if (!v) return;
    if (pl_json_type(v) != PL_JSON_INT && pl_json_type(v) != PL_JSON_REAL)
        reader_fail(r, PL_ERR_INVALID, name, "must be a number");
    else
        *out = (float)pl_json_f64(v);
}

static bool read_i64(request_reader *r, const char *name, int64_t low, int64_t high, int64_t *out)
{
    const pl_json *v = member(r, name);
    if (!v) return false;
    char what[96];
    snprintf(what, sizeof what, "must be an integer from %" PRId64 " to %" PRId64, low, high);
    if (pl_json_type(v) != PL_JSON_INT || pl_json_i64(v) < low || pl_json_i64(v) > high) {
        reader_fail(r, PL_ERR_INVALID, name, what);
        return false;
    }
    *out = pl_json_i64(v);
    return true;
}

static void read_i32(request_reader *r, const char *name, int32_t low, int32_t *out)
{
    int64_t v;
    if (read_i64(r, name, low, INT32_MAX, &v)) *out = (int32_t)v;
}

static bool read_bool(request_reader *r, const char *name)
{
    const pl_json *v = member(r, name);
    if (v && pl_json_type(v) != PL_JSON_BOOL) reader_fail(r, PL_ERR_INVALID, name, "must be true or false");
    return v && pl_json_is_true(v);
}

/* What would change the answer and is not known here is refused: to ignore it would answer another question. */
static void refuse_unknown(request_reader *r)
{
    static const char *const must_be_empty[] = {"logit_bias", "functions", "grammar", "json_schema", "samplers"};
    for (size_t i = 0; i < sizeof must_be_empty / sizeof *must_be_empty; i++) {
        const pl_json *v = member(r, must_be_empty[i]);
        if (v && (pl_json_size(v) > 0 || pl_json_str(v).size > 0))
            reader_fail(r, PL_ERR_UNSUPPORTED, must_be_empty[i], "is not supported by this server");
    }
    static const char *const must_be_zero[] = {"presence_penalty", "frequency_penalty", "mirostat", "dry_multiplier",
                                               "xtc_probability"};
    for (size_t i = 0; i < sizeof must_be_zero / sizeof *must_be_zero; i++)
        if (pl_json_f64(member(r, must_be_zero[i])) != 0)
            reader_fail(r, PL_ERR_UNSUPPORTED, must_be_zero[i], "is not supported by this server");
    int64_t n = 1;
    if (read_i64(r, "n", 1, INT32_MAX, &n) && n != 1)
        reader_fail(r, PL_ERR_UNSUPPORTED, "n", "only one choice per request is supported");
    if (read_i64(r, "best_of", 1, INT32_MAX, &n) && n != 1)
        reader_fail(r, PL_ERR_UNSUPPORTED, "best_of", "is not supported by this server");
    if (read_bool(r, "echo")) reader_fail(r, PL_ERR_UNSUPPORTED, "echo", "is not supported by this server");
    if (pl_json_str(member(r, "suffix")).size > 0)
        reader_fail(r, PL_ERR_UNSUPPORTED, "suffix", "is not supported by this server");
    const pl_json *format = pl_json_get(member(r, "response_format"), "type");
    if (format && !pl_str_is(pl_json_str(format), "text"))
        reader_fail(r, PL_ERR_UNSUPPORTED, "response_format", "only the type \"text\" is supported");
}

/* stop: a string or an array of strings. The texts are terminated copies in texts, which lives as long as the options.
 */
static void read_stops(request_reader *r, pl_generation_options *g, pl_buf texts[PL_STOPS_MAX])
{
    const pl_json *v = member(r, "stop");
    if (!v) return;
    bool one = pl_json_type(v) == PL_JSON_STRING;
    if (!one && pl_json_type(v) != PL_JSON_ARRAY) {
        reader_fail(r, PL_ERR_INVALID, "stop", "must be a string or an array of strings");
        return;
    }
    size_t n = one ? 1 : pl_json_size(v);
    if (n > PL_STOPS_MAX) {
        reader_fail(r, PL_ERR_INVALID, "stop", "has more than 16 strings");
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const pl_json *e = one ? v : pl_json_at(v, i);
        pl_str s = pl_json_str(e);
        if (pl_json_type(e) != PL_JSON_STRING || s.size == 0 || memchr(s.data, 0, s.size)) {
            reader_fail(r, PL_ERR_INVALID, "stop", "must be strings that are not empty");
            return;
        }
        pl_buf_add_str(&texts[i], s);
        if (!(g->stops[g->n_stops++] = pl_buf_cstr(&texts[i]))) reader_fail(r, PL_ERR_NO_MEMORY, "stop", "no memory");
    }
}

static void read_params(request_reader *r, const pl_api *a, answer_kind kind, pl_generation_options *g)
{
    pl_request_params *p = &g->request;
    p->sample = a->o.sample;
    p->max_tokens = a->o.max_tokens;
    refuse_unknown(r);
    read_f32(r, "temperature", &p->sample.temperature);
    read_f32(r, "top_p", &p->sample.top_p);
    read_f32(r, "min_p", &p->sample.min_p);
    read_i32(r, "top_k", INT32_MIN, &p->sample.top_k);
    if (p->sample.top_k < 0) p->sample.top_k = 0; /* both 0 and -1 are in use for "off" */
    read_f32(r, "repetition_penalty", &p->sample.repeat_penalty);
    read_f32(r, "repeat_penalty", &p->sample.repeat_penalty);
    read_i32(r, "repeat_last_n", -1, &p->sample.repeat_last_n);
    int64_t seed;
    if (read_i64(r, "seed", INT64_MIN, INT64_MAX, &seed) && seed != -1) { /* llama.cpp's word for "draw one" is -1 */
        p->sample.seed = (uint64_t)seed;
        p->has_seed = true;
    }
    read_i32(r, "n_predict", -1, &p->max_tokens);
    read_i32(r, "max_tokens", -1, &p->max_tokens);
    read_i32(r, "max_completion_tokens", -1, &p->max_tokens);
    p->ignore_eos = read_bool(r, "ignore_eos");
    p->context_shift = a->o.context_shift;
    p->n_keep = a->o.n_keep;
    read_i32(r, "n_keep", -1, &p->n_keep);
    p->no_cache = member(r, "cache_prompt") && !read_bool(r, "cache_prompt");
    int64_t top = 0;
    if (kind == KIND_CHAT) {
        bool on = read_bool(r, "logprobs");
        if (read_i64(r, "top_logprobs", 0, PL_LOGPROBS_MAX, &top) && !on)
            reader_fail(r, PL_ERR_INVALID, "top_logprobs", "needs \"logprobs\": true");
        if (on) p->sample.n_logprobs = (int32_t)top;
    } else if (read_i64(r, "logprobs", 0, PL_LOGPROBS_MAX, &top)) {
        p->sample.n_logprobs = (int32_t)top;
    }
    if (!r->failed && pl_sample_check(&p->sample, &r->err) != PL_OK) r->failed = true;
}

/* content may be a string or an array of text parts; templates want a string. */
static pl_json *plain_content(request_reader *r, const pl_json *content)
{
    pl_buf text = {0};
    for (size_t j = 0; j < pl_json_size(content); j++) {
        pl_json *part = pl_json_at(content, j);
        if (!pl_str_is(pl_json_str(pl_json_get(part, "type")), "text"))
            reader_fail(r, PL_ERR_UNSUPPORTED, "messages", "only content parts of the type \"text\" are supported");
        pl_buf_add_str(&text, pl_json_str(pl_json_get(part, "text")));
    }
    pl_json *v = pl_json_string(pl_buf_str(&text));
    pl_buf_fini(&text);
    return v;
}

/* A copy of v with its member key replaced. */
static pl_json *with_member(const pl_json *v, const char *key, pl_json *value)
{
    pl_json *copy = pl_json_object();
    void *at = NULL;
    pl_str name;
    pl_json *m;
    while (pl_json_next(v, &at, &name, &m)) {
        if (!pl_str_is(name, key)) pl_json_set(copy, name.data, pl_json_ref(m));
    }
    pl_json_set(copy, key, value);
    return copy;
}

/* Clients send the arguments of calls as text; most templates want the object that it says. */
static pl_json *plain_calls(request_reader *r, const pl_json *calls, bool as_text)
{
    pl_json *out = pl_json_array();
    for (size_t i = 0; i < pl_json_size(calls); i++) {
        pl_json *call = pl_json_at(calls, i), *function = pl_json_get(call, "function"), *v = NULL;
        const pl_json *arguments = pl_json_get(function, "arguments");
        pl_error err;
        if (pl_json_str(pl_json_get(function, "name")).size == 0)
            reader_fail(r, PL_ERR_INVALID, "messages", "each of tool_calls must have a function with a name");
        if (as_text && pl_json_type(arguments) == PL_JSON_OBJECT) {
            pl_buf text = {0};
            if (pl_json_write(arguments, 0, &text, &err) == PL_OK) v = pl_json_string(pl_buf_str(&text));
            pl_buf_fini(&text);
        } else if (!as_text && pl_json_type(arguments) == PL_JSON_STRING) {
            pl_str text = pl_json_str(arguments);
            if (pl_json_parse(&v, text.size ? text : PL_STR("{}"), &err) != PL_OK)
                reader_fail(r, PL_ERR_INVALID, "messages", "the arguments of a tool call are not JSON");
        }
        pl_json_append(out,
                       v ? with_member(call, "function", with_member(function, "arguments", v)) : pl_json_ref(call));
    }
    return out;
}

/* The messages as templates want them: a new array. */
static pl_json *plain_messages(request_reader *r, const pl_api *a, const pl_json *messages)
{
    pl_json *out = pl_json_array();
    for (size_t i = 0; i < pl_json_size(messages) && !r->failed; i++) {
        pl_json *m = pl_json_at(messages, i), *content = pl_json_get(m, "content"),
                *calls = pl_json_get(m, "tool_calls");
        if (pl_json_type(m) != PL_JSON_OBJECT || pl_json_str(pl_json_get(m, "role")).size == 0) {
            reader_fail(r, PL_ERR_INVALID, "messages", "each message must be an object with a role");
            break;
        }
        if (pl_json_type(content) != PL_JSON_ARRAY && pl_json_type(content) != PL_JSON_STRING && !calls)
            reader_fail(r, PL_ERR_INVALID, "messages",
                        "each message must have a content, a string or an array of text parts");
        pl_json *plain = pl_json_type(content) == PL_JSON_ARRAY ? with_member(m, "content", plain_content(r, content))
                                                                : pl_json_ref(m);
        if (pl_json_type(calls) == PL_JSON_ARRAY) {
            pl_json *whole = with_member(plain, "tool_calls", plain_calls(r, calls, a->arguments_as_text));
            pl_json_free(plain);
            plain = whole;
        }
        pl_json_append(out, plain);
    }
    return out;
}

static void read_tools(request_reader *r, const pl_api *a, chat_request *c)
{
    const pl_json *tools = member(r, "tools"), *choice = member(r, "tool_choice"), *documents = member(r, "documents");
    c->style = a->style;
    if (pl_str_is(pl_json_str(member(r, "reasoning_format")), "none")) c->style.thoughts = 0;
    if (documents && pl_json_type(documents) != PL_JSON_ARRAY)
        reader_fail(r, PL_ERR_INVALID, "documents", "must be an array");
    if (tools && pl_json_type(tools) != PL_JSON_ARRAY) reader_fail(r, PL_ERR_INVALID, "tools", "must be an array");
    for (size_t i = 0; i < pl_json_size(tools); i++) {
        const pl_json *t = pl_json_at(tools, i);
        if (!pl_str_is(pl_json_str(pl_json_get(t, "type")), "function"))
            reader_fail(r, PL_ERR_UNSUPPORTED, "tools", "only tools of the type \"function\" are supported");
        else if (pl_json_str(pl_json_get(pl_json_get(t, "function"), "name")).size == 0)
            reader_fail(r, PL_ERR_INVALID, "tools", "each must have a function with a name");
    }
    pl_str word = pl_json_str(choice);
    bool none = pl_str_is(word, "none");
    if (choice && !none && !pl_str_is(word, "auto"))
        reader_fail(r, PL_ERR_UNSUPPORTED, "tool_choice", "only \"auto\" and \"none\" are supported");
    const pl_json *parallel = member(r, "parallel_tool_calls");
    if (parallel && pl_json_type(parallel) != PL_JSON_BOOL)
        reader_fail(r, PL_ERR_INVALID, "parallel_tool_calls", "must be true or false");
    c->one_call = parallel && !pl_json_is_true(parallel);
    if (!none && pl_json_size(tools) > 0) c->tools = pl_json_ref((pl_json *)(uintptr_t)tools);
    c->plain = !c->tools && !c->style.harmony && c->style.thoughts == 0;
}

/* The request's words for the template: its tools and documents, and what chat_template_kwargs says. */
static pl_json *template_variables(const request_reader *r, const chat_request *c)
{
    pl_json *v = pl_json_object();
    void *at = NULL;
    pl_str name;
    pl_json *m;
    while (pl_json_next(member(r, "chat_template_kwargs"), &at, &name, &m)) pl_json_set(v, name.data, pl_json_ref(m));
    static const char *const words[] = {"documents", "reasoning_effort"};
    for (int i = 0; i < 2; i++) {
        if (member(r, words[i])) pl_json_set(v, words[i], pl_json_ref((pl_json *)(uintptr_t)member(r, words[i])));
    }
    if (c->tools) pl_json_set(v, "tools", pl_json_ref(c->tools));
    return v;
}

/* For a template that does not show tools to its model: a system message that does, and says how to call them. */
static void tell_of_tools(const chat_request *c, pl_json **messages)
{
    pl_buf text = {0};
    pl_error err;
    pl_json *first = pl_json_at(*messages, 0), *out = pl_json_array(), *m = pl_json_object();
    bool system = pl_str_is(pl_json_str(pl_json_get(first, "role")), "system");
    if (system) {
        pl_buf_add_str(&text, pl_json_str(pl_json_get(first, "content")));
        pl_buf_add_str(&text, PL_STR("\n\n"));
    }
    pl_buf_add_str(&text, PL_STR("You can call these functions:\n"));
    if (pl_json_write(c->tools, 0, &text, &err) != PL_OK) pl_buf_reset(&text);
    pl_buf_add_str(&text,
                   PL_STR("\nTo call one, answer with nothing but a JSON object: {\"name\": the function's name, "
                          "\"arguments\": an object}. Otherwise answer in words."));
    pl_json_set(m, "role", pl_json_string(PL_STR("system")));
    pl_json_set(m, "content", pl_json_string(pl_buf_str(&text)));
    pl_json_append(out, m);
    for (size_t i = system; i < pl_json_size(*messages); i++)
        pl_json_append(out, pl_json_ref(pl_json_at(*messages, i)));
    pl_buf_fini(&text);
    pl_json_free(*messages);
    *messages = out;
}

/* Tokenizing runs on the loop's thread, where heartbeats wait for it: megabytes of text would cost every node of the
 * cluster. What cannot fit, even with the longest token everywhere, is refused by its size alone. */
static bool may_fit(request_reader *r, const pl_api *a, const char *name, size_t size)
{
    int32_t n_ctx = pl_coordinator_n_ctx(a->o.coordinator);
    if (size / (size_t)n_ctx <= pl_vocab_longest(a->o.vocab)) return true;
    char what[128];
    snprintf(what, sizeof what, "%zu bytes are more than the %d tokens of the context can hold", size, n_ctx);
    reader_fail(r, PL_ERR_INVALID, name, what);
    return false;
}

static void read_chat_prompt(request_reader *r, const pl_api *a, chat_request *c, pl_buf *tokens)
{
    const pl_json *messages = member(r, "messages"), *words = member(r, "chat_template_kwargs");
    if (pl_json_type(messages) != PL_JSON_ARRAY || pl_json_size(messages) == 0) {
        reader_fail(r, PL_ERR_INVALID, "messages", "must be an array of at least one message");
        return;
    }
    if (words && pl_json_type(words) != PL_JSON_OBJECT)
        reader_fail(r, PL_ERR_INVALID, "chat_template_kwargs", "must be an object");
    if (!a->o.chat) {
        reader_fail(
            r, PL_ERR_UNSUPPORTED, "messages",
            "the model has no chat template: use /v1/completions, or start the server with --chat-template-file");
        return;
    }
    pl_json *plain = plain_messages(r, a, messages);
    if (!r->failed && c->tools && !c->style.takes_tools) tell_of_tools(c, &plain);
    pl_json *variables = template_variables(r, c);
    if (!r->failed && pl_chat_render(a->o.chat, plain, variables, true, &c->prompt, &r->err) != PL_OK) r->failed = true;
    pl_json_free(variables);
    pl_json_free(plain);
    if (!r->failed && may_fit(r, a, "messages", c->prompt.size) &&
        pl_generation_tokenize_chat(a->o.vocab, pl_buf_str(&c->prompt), tokens, &r->err) != PL_OK)
        r->failed = true;
}

/* prompt: a string, or an array of token ids, or an array with one of either. */
static void read_text_prompt(request_reader *r, const pl_api *a, pl_buf *tokens)
{
    const pl_json *prompt = member(r, "prompt");
    if (pl_json_type(prompt) == PL_JSON_ARRAY && pl_json_size(prompt) == 1 &&
        pl_json_type(pl_json_at(prompt, 0)) != PL_JSON_INT)
        prompt = pl_json_at(prompt, 0);
    if (pl_json_type(prompt) == PL_JSON_STRING) {
        if (may_fit(r, a, "prompt", pl_json_str(prompt).size) &&
            pl_tokenize(a->o.vocab, pl_json_str(prompt), true, true, tokens, &r->err) != PL_OK)
            r->failed = true;
        return;
    }
    if (pl_json_type(prompt) != PL_JSON_ARRAY || pl_json_size(prompt) == 0) {
        reader_fail(r, PL_ERR_INVALID, "prompt", "must be one string or one array of token ids");
        return;
    }
    for (size_t i = 0; i < pl_json_size(prompt); i++) {
        const pl_json *e = pl_json_at(prompt, i);
        int64_t id = pl_json_i64(e);
        if (pl_json_type(e) != PL_JSON_INT || id < 0 || id >= pl_vocab_size(a->o.vocab)) {
            reader_fail(
                r, PL_ERR_INVALID, "prompt",
                "holds what is not a token id of this model (several prompts in one request are not supported)");
            return;
        }
        int32_t token = (int32_t)id;
        if (!pl_buf_add(tokens, &token, sizeof token)) reader_fail(r, PL_ERR_NO_MEMORY, "prompt", "no memory");
    }
}

/* --- writing answers -----------------------------------------------------------------------------------------------
 */

static pl_json *answer_head(const answer *w, bool chunk)
{
    pl_json *v = pl_json_object();
    pl_json_set(v, "id", pl_json_string(pl_str_from(w->id)));
    const char *object = w->kind == KIND_TEXT ? "text_completion" : chunk ? "chat.completion.chunk" : "chat.completion";
    pl_json_set(v, "object", pl_json_string(pl_str_from(object)));
    pl_json_set(v, "created", pl_json_int(w->created));
    pl_json_set(v, "model", pl_json_string(pl_str_from(w->api->o.model)));
    return v;
}

static pl_json *usage_json(const pl_usage *u)
{
    pl_json *v = pl_json_object();
    pl_json_set(v, "prompt_tokens", pl_json_int(u->n_prompt));
    pl_json_set(v, "completion_tokens", pl_json_int(u->n_generated));
    pl_json_set(v, "total_tokens", pl_json_int((int64_t)u->n_prompt + u->n_generated));
    pl_json *details = pl_json_object();
    pl_json_set(details, "cached_tokens", pl_json_int(u->stats.n_cached));
    pl_json_set(v, "prompt_tokens_details", details);
    return v;
}

/* As llama.cpp's server reports them. The first token comes with the prompt, so generation is counted from it on. */
static pl_json *timings_json(const pl_usage *u)
{
    pl_json *v = pl_json_object();
    double prompt_ms = (double)u->prompt_ns / 1e6, generate_ms = (double)u->generate_ns / 1e6;
    pl_json_set(v, "cache_n", pl_json_int(u->stats.n_cached));
    pl_json_set(v, "prompt_n", pl_json_int(u->n_prompt - u->stats.n_cached));
    pl_json_set(v, "prompt_ms", pl_json_real(prompt_ms));
    pl_json_set(v, "prompt_per_second",
                pl_json_real(prompt_ms > 0 ? (u->n_prompt - u->stats.n_cached) * 1e3 / prompt_ms : 0));
    pl_json_set(v, "predicted_n", pl_json_int(u->n_generated));
    pl_json_set(v, "predicted_ms", pl_json_real(generate_ms));
    pl_json_set(v, "predicted_per_second",
                pl_json_real(generate_ms > 0 ? (u->n_generated - 1) * 1e3 / generate_ms : 0));
    if (u->stats.n_drafted > 0) {
        pl_json_set(v, "draft_n", pl_json_int(u->stats.n_drafted));
        pl_json_set(v, "draft_n_accepted", pl_json_int(u->stats.n_accepted));
    }
    return v;
}

static void send_event(answer *w, pl_json *v)
{
    if (w->x && v) {
        pl_buf b = {0};
        pl_error err;
        pl_buf_add_str(&b, PL_STR("data: "));
        pl_status s = pl_json_write(v, 0, &b, &err);
        pl_buf_add_str(&b, PL_STR("\n\n"));
        if (s == PL_OK && !b.failed) pl_http_send(w->x, pl_buf_bytes(&b));
        pl_buf_fini(&b);
    }
    pl_json_free(v);
}

static pl_json *token_bytes_json(pl_str s)
{
    pl_json *v = pl_json_array();
    for (size_t i = 0; i < s.size; i++) pl_json_append(v, pl_json_int((uint8_t)s.data[i]));
    return v;
}

/* {"token", "logprob", "bytes"} of the chat API. */
static pl_json *token_json(const answer *w, int32_t token, float logprob)
{
    pl_buf text = {0};
    pl_detokenize(w->vocab, token, true, &text);
    pl_json *v = pl_json_object();
    pl_json_set(v, "token", pl_json_string(pl_buf_str(&text)));
    pl_json_set(v, "logprob", pl_json_real(logprob));
    pl_json_set(v, "bytes", token_bytes_json(pl_buf_str(&text)));
    pl_buf_fini(&text);
    return v;
}

static void add_logprobs(answer *w, const pl_sampled *t)
{
    if (!w->want_logprobs) return;
    if (!w->logprobs) w->logprobs = pl_json_array();
    pl_json *e = token_json(w, t->token, t->logprob), *top = pl_json_array();
    for (int32_t i = 0; i < t->n_top; i++) pl_json_append(top, token_json(w, t->top[i], t->top_logprob[i]));
    pl_json_set(e, "top_logprobs", top);
    pl_json_append(w->logprobs, e);
}

/* Takes what has gathered, in the form of the kind of answer. */
static pl_json *take_logprobs(answer *w)
{
    pl_json *entries = w->logprobs;
    w->logprobs = NULL;
    if (!entries) return pl_json_null();
    pl_json *v = pl_json_object();
    if (w->kind == KIND_CHAT) {
        pl_json_set(v, "content", entries);
        return v;
    }
    pl_json *tokens = pl_json_array(), *values = pl_json_array(), *tops = pl_json_array(), *offsets = pl_json_array();
    for (size_t i = 0; i < pl_json_size(entries); i++) {
        pl_json *e = pl_json_at(entries, i), *token = pl_json_get(e, "token"), *top = pl_json_get(e, "top_logprobs"),
                *map = pl_json_object();
        pl_json_append(tokens, pl_json_ref(token));
        pl_json_append(values, pl_json_ref(pl_json_get(e, "logprob")));
        pl_json_append(offsets, pl_json_int((int64_t)w->text_offset));
        w->text_offset += pl_json_str(token).size;
        for (size_t j = 0; j < pl_json_size(top); j++) {
            pl_json *t = pl_json_at(top, j);
            char *key =
                pl_strndup(pl_json_str(pl_json_get(t, "token")).data, pl_json_str(pl_json_get(t, "token")).size);
            if (key) pl_json_set(map, key, pl_json_ref(pl_json_get(t, "logprob")));
            pl_free(key);
        }
        pl_json_append(tops, map);
    }
    pl_json_free(entries);
    pl_json_set(v, "tokens", tokens);
    pl_json_set(v, "token_logprobs", values);
    pl_json_set(v, "top_logprobs", tops);
    pl_json_set(v, "text_offset", offsets);
    return v;
}

static const char *finish_word(const answer *w, pl_finish why)
{
    return why == PL_FINISH_LENGTH ? "length" : w->n_calls > 0 ? "tool_calls" : "stop";
}

/* One event of a stream: what is new in it (taken; NULL for text alone), and at the end the reason. */
static void send_delta(answer *w, pl_json *delta, pl_str text, const char *finish)
{
    pl_json *choice = pl_json_object(), *choices = pl_json_array(), *v = answer_head(w, true);
    pl_json_set(choice, "index", pl_json_int(0));
    if (delta)
        pl_json_set(choice, "delta", delta);
    else
        pl_json_set(choice, "text", pl_json_string(text));
    pl_json_set(choice, "logprobs", take_logprobs(w));
    pl_json_set(choice, "finish_reason", finish ? pl_json_string(pl_str_from(finish)) : pl_json_null());
    pl_json_append(choices, choice);
    pl_json_set(v, "choices", choices);
    if (w->include_usage) pl_json_set(v, "usage", pl_json_null());
    send_event(w, v);
}

/* More text, and at the end the reason. */
static void send_chunk(answer *w, pl_str text, const char *finish, bool first)
{
    pl_json *delta = w->kind == KIND_CHAT ? pl_json_object() : NULL;
    if (delta && first) pl_json_set(delta, "role", pl_json_string(PL_STR("assistant")));
    if (delta && (first || text.size > 0 || !finish)) pl_json_set(delta, "content", pl_json_string(text));
    send_delta(w, delta, text, finish);
}

/* {"id", "type", "function": {"name", "arguments"}}, in a stream with its index. */
static pl_json *call_json(answer *w, const pl_reply_part *part)
{
    pl_json *call = pl_json_object(), *function = pl_json_object();
    char id[32];
    snprintf(id, sizeof id, "call_%016" PRIx64, pl_rng_u64(&w->api->ids));
    if (w->stream) pl_json_set(call, "index", pl_json_int(w->n_calls));
    pl_json_set(call, "id", pl_json_string(pl_str_from(id)));
    pl_json_set(call, "type", pl_json_string(PL_STR("function")));
    pl_json_set(function, "name", pl_json_string(part->name));
    pl_json_set(function, "arguments", pl_json_string(part->text));
    pl_json_set(call, "function", function);
    return call;
}

/* A part of a reply that pl_reply has taken apart. */
static void on_part(void *user, const pl_reply_part *part)
{
    answer *w = user;
    if (part->kind == PL_REPLY_CALL && w->one_call && w->n_calls > 0) return;
    if (!w->stream) {
        if (part->kind == PL_REPLY_CONTENT) pl_buf_add_str(&w->text, part->text);
        if (part->kind == PL_REPLY_REASONING) pl_buf_add_str(&w->reasoning, part->text);
        if (part->kind == PL_REPLY_CALL) {
            if (!w->calls) w->calls = pl_json_array();
            pl_json_append(w->calls, call_json(w, part));
        }
    } else if (part->kind == PL_REPLY_CONTENT) {
        send_chunk(w, part->text, NULL, false);
    } else {
        pl_json *delta = pl_json_object(), *calls = pl_json_array();
        if (part->kind == PL_REPLY_REASONING) {
            pl_json_set(delta, "reasoning_content", pl_json_string(part->text));
            pl_json_free(calls);
        } else {
            pl_json_append(calls, call_json(w, part));
            pl_json_set(delta, "tool_calls", calls);
        }
        send_delta(w, delta, (pl_str){0}, NULL);
    }
    w->n_calls += part->kind == PL_REPLY_CALL;
}

/* The head of a stream waits for the first token, so that a request that fails before gets its own HTTP code. */
static void begin_stream(answer *w)
{
    if (w->headed || !w->x) return;
    w->headed = true;
    pl_http_add_header(w->x, "Cache-Control", "no-cache");
    pl_http_stream(w->x, 200, "text/event-stream; charset=utf-8");
    if (w->kind == KIND_CHAT) send_chunk(w, (pl_str){0}, NULL, true);
}

static void on_token(void *user, const pl_sampled *token, pl_str text)
{
    answer *w = user;
    w->api->n_generated_tokens++;
    if (w->stream) begin_stream(w);
    add_logprobs(w, token);
    if (w->reply) {
        if (!pl_reply_add(w->reply, text)) w->text.failed = true;
        return;
    }
    if (!w->stream) {
        pl_buf_add_str(&w->text, text);
        return;
    }
    if (text.size > 0) send_chunk(w, text, NULL, false);
}

static void answer_free(answer *w)
{
    if (w->prev)
        w->prev->next = w->next;
    else
        w->api->open = w->next;
    if (w->next) w->next->prev = w->prev;
    pl_json_free(w->logprobs);
    pl_reply_close(w->reply);
    pl_json_free(w->calls);
    pl_json_free(w->tools);
    pl_buf_fini(&w->reasoning);
    pl_buf_fini(&w->text);
    pl_free(w);
}

static void end_stream(answer *w, pl_str text, pl_finish why, const pl_usage *usage, const pl_error *err)
{
    if (why == PL_FINISH_ERROR && !w->headed) {
        respond_fail(w->api, w->x, err, NULL);
        return;
    }
    begin_stream(w);
    if (why == PL_FINISH_ERROR) {
        w->api->n_errors++;
        send_event(w, error_json(err->status, pl_status_http(err->status), err->text, NULL));
    } else {
        send_chunk(w, text, finish_word(w, why), false);
        if (w->include_usage) {
            pl_json *v = answer_head(w, true);
            pl_json_set(v, "choices", pl_json_array());
            pl_json_set(v, "usage", usage_json(usage));
            pl_json_set(v, "timings", timings_json(usage));
            send_event(w, v);
        }
    }
    pl_http_send(w->x, (pl_bytes){(const uint8_t *)"data: [DONE]\n\n", 14});
    pl_http_end(w->x);
}

static void end_whole(answer *w, pl_str text, pl_finish why, const pl_usage *usage, const pl_error *err)
{
    pl_buf_add_str(&w->text, text);
    pl_error lost;
    if (w->text.failed && why != PL_FINISH_ERROR) {
        why = PL_FINISH_ERROR;
        (void)pl_fail(&lost, PL_ERR_NO_MEMORY, "no memory for the generated text");
        err = &lost;
    }
    if (why == PL_FINISH_ERROR) {
        respond_fail(w->api, w->x, err, NULL);
        return;
    }
    pl_json *choice = pl_json_object(), *choices = pl_json_array(), *v = answer_head(w, false);
    pl_json_set(choice, "index", pl_json_int(0));
    if (w->kind == KIND_CHAT) {
        pl_json *m = pl_json_object();
        pl_json_set(m, "role", pl_json_string(PL_STR("assistant")));
        bool calls_only = w->calls && w->text.size == 0;
        pl_json_set(m, "content", calls_only ? pl_json_null() : pl_json_string(pl_buf_str(&w->text)));
        if (w->reasoning.size > 0) pl_json_set(m, "reasoning_content", pl_json_string(pl_buf_str(&w->reasoning)));
        if (w->calls) pl_json_set(m, "tool_calls", pl_json_ref(w->calls));
        pl_json_set(choice, "message", m);
    } else {
        pl_json_set(choice, "text", pl_json_string(pl_buf_str(&w->text)));
    }
    pl_json_set(choice, "logprobs", take_logprobs(w));
    pl_json_set(choice, "finish_reason", pl_json_string(pl_str_from(finish_word(w, why))));
    pl_json_append(choices, choice);
    pl_json_set(v, "choices", choices);
    pl_json_set(v, "usage", usage_json(usage));
    pl_json_set(v, "timings", timings_json(usage));
    respond_json(w->x, 200, v);
}

static void on_end(void *user, pl_str text, pl_finish why, const char *stopped_by, const pl_usage *usage,
                   const pl_error *err)
{
    answer *w = user;
    (void)stopped_by;
    if (w->x && w->reply && why != PL_FINISH_ERROR && why != PL_FINISH_CANCELLED) {
        if (w->stream) begin_stream(w);
        if (!pl_reply_add(w->reply, text) || !pl_reply_end(w->reply)) w->text.failed = true;
        text = (pl_str){0};
    }
    PL_LOG(PL_LOG_INFO, "request done", "id=%s prompt=%d generated=%d finish=%s", w->id, usage->n_prompt,
           usage->n_generated,
           !w->x                        ? "client_gone"
           : why == PL_FINISH_ERROR     ? pl_status_name(err->status)
           : why == PL_FINISH_CANCELLED ? "cancelled"
                                        : finish_word(w, why));
    if (w->x && why == PL_FINISH_CANCELLED) { /* the server is stopping */
        pl_error stopping;
        (void)pl_fail(&stopping, PL_ERR_CLOSED, "the server is shutting down");
        if (w->stream)
            end_stream(w, text, PL_FINISH_ERROR, usage, &stopping);
        else
            end_whole(w, text, PL_FINISH_ERROR, usage, &stopping);
    } else if (w->x) {
        if (w->stream)
            end_stream(w, text, why, usage, err);
        else
            end_whole(w, text, why, usage, err);
    }
    answer_free(w);
}

static const pl_generation_events generation_events = {on_token, on_end};

static void on_gone(pl_http_exchange *x, void *user)
{
    (void)x;
    answer *w = user;
    w->x = NULL;
    pl_generation_cancel(w->generation);
}

/* --- the paths -----------------------------------------------------------------------------------------------------
 */

static void complete(pl_api *a, pl_http_exchange *x, answer_kind kind)
{
    request_reader r = {0};
    pl_json *body = NULL;
    pl_bytes raw = pl_http_body(x);
    if (pl_json_parse(&body, (pl_str){(const char *)raw.data, raw.size}, &r.err) != PL_OK) {
        respond_error(a, x, 400, &r.err, NULL);
        return;
    }
    r.body = body;
    answer *w = NULL;
    pl_generation_options g = {0};
    chat_request chat = {0};
    pl_buf tokens = {0}, stops[PL_STOPS_MAX] = {0};
    if (pl_json_type(body) != PL_JSON_OBJECT) reader_fail(&r, PL_ERR_INVALID, "body", "must be a JSON object");
    read_params(&r, a, kind, &g);
    read_stops(&r, &g, stops);
    bool stream = read_bool(&r, "stream");
    bool include_usage = pl_json_is_true(pl_json_get(member(&r, "stream_options"), "include_usage"));
    if (!r.failed && kind == KIND_CHAT) read_tools(&r, a, &chat);
    if (!r.failed && kind == KIND_CHAT) read_chat_prompt(&r, a, &chat, &tokens);
    if (!r.failed && kind == KIND_TEXT) read_text_prompt(&r, a, &tokens);
    if (!r.failed && tokens.size == 0)
        reader_fail(&r, PL_ERR_INVALID, kind == KIND_CHAT ? "messages" : "prompt", "gives no token");
    if (r.failed) {
        respond_fail(a, x, &r.err, r.param);
        goto done;
    }
    if (!(w = pl_calloc(1, sizeof *w))) {
        (void)pl_fail(&r.err, PL_ERR_NO_MEMORY, "no memory for a request");
        respond_fail(a, x, &r.err, NULL);
        goto done;
    }
    w->api = a;
    w->x = x;
    w->kind = kind;
    w->stream = stream;
    w->include_usage = include_usage;
    w->want_logprobs = g.request.sample.n_logprobs >= 0;
    w->vocab = a->o.vocab;
    w->created = pl_wall_us() / 1000000;
    snprintf(w->id, sizeof w->id, "%s-%016" PRIx64 "%08" PRIx64, kind == KIND_CHAT ? "chatcmpl" : "cmpl",
             pl_rng_u64(&a->ids), ++a->next_id & 0xffffffff);
    w->next = a->open;
    if (w->next) w->next->prev = w;
    a->open = w;
    if (kind == KIND_CHAT && !chat.plain) {
        w->one_call = chat.one_call;
        w->tools = chat.tools ? pl_json_ref(chat.tools) : NULL;
        g.shown = a->shown;
        if (pl_reply_open(&w->reply, &chat.style, pl_buf_str(&chat.prompt), w->tools, on_part, w, &r.err) != PL_OK) {
            answer_free(w);
            respond_fail(a, x, &r.err, NULL);
            goto done;
        }
    }
    g.request.id = w->id;
    g.request.tokens = (const int32_t *)(const void *)tokens.data;
    g.request.n_tokens = (int32_t)(tokens.size / sizeof(int32_t));
    if (pl_generation_start(&w->generation, a->o.coordinator, a->o.loop, a->o.vocab, &g, &generation_events, w,
                            &r.err) != PL_OK) {
        answer_free(w);
        respond_fail(a, x, &r.err, NULL);
        goto done;
    }
    a->n_prompt_tokens += (uint64_t)g.request.n_tokens;
    pl_http_on_gone(x, on_gone, w);
done:
    for (int i = 0; i < PL_STOPS_MAX; i++) pl_buf_fini(&stops[i]);
    pl_buf_fini(&tokens);
    pl_buf_fini(&chat.prompt);
    pl_json_free(chat.tools);
    pl_json_free(body);
}

static void chat_completions(pl_api *a, pl_http_exchange *x)
{
    complete(a, x, KIND_CHAT);
}
static void completions(pl_api *a, pl_http_exchange *x)
{
    complete(a, x, KIND_TEXT);
}

static pl_json *model_json(const pl_api *a)
{
    pl_json *m = pl_json_object();
    pl_json_set(m, "id", pl_json_string(pl_str_from(a->o.model)));
    pl_json_set(m, "object", pl_json_string(PL_STR("model")));
    pl_json_set(m, "owned_by", pl_json_string(PL_STR("paceline")));
    pl_json_set(m, "created", pl_json_int(a->created));
    return m;
}

static void models(pl_api *a, pl_http_exchange *x)
{
    pl_json *list = pl_json_array(), *v = pl_json_object();
    pl_json_append(list, model_json(a));
    pl_json_set(v, "object", pl_json_string(PL_STR("list")));
    pl_json_set(v, "data", list);
    respond_json(x, 200, v);
}

/* GET /v1/models/ID. */
static void one_model(pl_api *a, pl_http_exchange *x)
{
    pl_str path = pl_http_path(x);
    pl_str id = {path.data + strlen("/v1/models/"), path.size - strlen("/v1/models/")};
    if (pl_str_is(id, a->o.model)) {
        respond_json(x, 200, model_json(a));
        return;
    }
    pl_error err;
    (void)pl_fail(&err, PL_ERR_NOT_FOUND, "the model here is %s, not %.*s", a->o.model, PL_STR_ARG(id));
    respond_fail(a, x, &err, NULL);
}

static void health(pl_api *a, pl_http_exchange *x)
{
    pl_error err = {0};
    pl_status s = pl_coordinator_health(a->o.coordinator, &err);
    if (s != PL_OK) {
        respond_json(x, 503, error_json(s, 503, err.text, NULL));
        return;
    }
    pl_json *v = pl_json_object();
    pl_json_set(v, "status", pl_json_string(PL_STR("ok")));
    respond_json(x, 200, v);
}

static void cluster(pl_api *a, pl_http_exchange *x)
{
    respond_json(x, 200, pl_coordinator_status(a->o.coordinator));
}

static void metrics(pl_api *a, pl_http_exchange *x)
{
    pl_error err;
    int n_open = 0;
    for (const answer *w = a->open; w; w = w->next) n_open++;
    const struct {
        const char *name, *type, *help;
        uint64_t value;
    } rows[] = {
        {"paceline_up", "gauge", "Whether a pipeline is serving.",
         pl_coordinator_health(a->o.coordinator, &err) == PL_OK},
        {"paceline_http_requests_total", "counter", "HTTP requests.", a->n_requests},
        {"paceline_http_errors_total", "counter", "Requests that were answered with an error.", a->n_errors},
        {"paceline_requests_open", "gauge", "Generations in progress or waiting.", (uint64_t)n_open},
        {"paceline_prompt_tokens_total", "counter", "Tokens of prompts.", a->n_prompt_tokens},
        {"paceline_generated_tokens_total", "counter", "Tokens generated.", a->n_generated_tokens},
    };
    pl_buf b = {0};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        pl_buf_printf(&b, "# HELP %s %s\n# TYPE %s %s\n%s %" PRIu64 "\n", rows[i].name, rows[i].help, rows[i].name,
                      rows[i].type, rows[i].name, rows[i].value);
    pl_http_respond(x, 200, "text/plain; version=0.0.4; charset=utf-8", pl_buf_bytes(&b));
    pl_buf_fini(&b);
}

/* /health answers without a key, as load balancers ask it. */
static const struct {
    const char *method, *path;
    bool open;
    void (*fn)(pl_api *, pl_http_exchange *);
} routes[] = {
    {"POST", "/v1/chat/completions", false, chat_completions},
    {"POST", "/v1/completions", false, completions},
    {"GET", "/v1/models", false, models},
    {"GET", "/v1/models/", false, one_model}, /* a slash at the end: and what is behind it */
    {"GET", "/v1/cluster", false, cluster},
    {"GET", "/metrics", false, metrics},
    {"GET", "/health", true, health},
    {"GET", "/v1/health", true, health},
};

static bool route_is(const char *route, pl_str path)
{
    size_t n = strlen(route);
    if (route[n - 1] != '/') return pl_str_is(path, route);
    return path.size > n && memcmp(path.data, route, n) == 0;
}

static bool authorized(const pl_api *a, const pl_http_exchange *x)
{
    if (a->o.n_keys == 0) return true;
    pl_str h = pl_http_header(x, "authorization");
    if (h.size < 7 || strncasecmp(h.data, "Bearer ", 7) != 0) return false;
    pl_hash given = pl_hash_of((pl_bytes){(const uint8_t *)h.data + 7, h.size - 7});
    bool ok = false;
    for (size_t i = 0; i < a->o.n_keys; i++) ok |= pl_hash_eq(&given, &a->keys[i]);
    return ok;
}

void pl_api_handle(void *api, pl_http_exchange *x)
{
    pl_api *a = api;
    a->n_requests++;
    pl_str method = pl_http_method(x), path = pl_http_path(x);
    const char *allow = NULL;
    pl_error err;
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        if (!route_is(routes[i].path, path)) continue;
        allow = routes[i].method;
        bool head = pl_str_is(method, "HEAD") && strcmp(allow, "GET") == 0;
        if (!head && !pl_str_is(method, allow)) continue;
        if (!routes[i].open && !authorized(a, x)) {
            (void)pl_fail(&err, PL_ERR_AUTH, "this server needs an API key: send it as \"Authorization: Bearer KEY\"");
            respond_fail(a, x, &err, NULL);
            return;
        }
        routes[i].fn(a, x);
        return;
    }
    if (allow) {
        pl_http_add_header(x, "Allow", allow);
        (void)pl_fail(&err, PL_ERR_INVALID, "%.*s answers to %s, not to %.*s", PL_STR_ARG(path), allow,
                      PL_STR_ARG(method));
        respond_error(a, x, 405, &err, NULL);
        return;
    }
    (void)pl_fail(&err, PL_ERR_NOT_FOUND, "there is no %.*s here", PL_STR_ARG(path));
    respond_fail(a, x, &err, NULL);
}

pl_status pl_api_new(pl_api **out, const pl_api_options *options, pl_error *err)
{
    *out = NULL;
    pl_api *a = pl_calloc(1, sizeof *a);
    if (a) a->keys = pl_calloc(options->n_keys ? options->n_keys : 1, sizeof *a->keys);
    if (!a || !a->keys) {
        pl_free(a);
        return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for the API");
    }
    a->o = *options;
    for (size_t i = 0; i < options->n_keys; i++)
        a->keys[i] = pl_hash_of((pl_bytes){(const uint8_t *)options->keys[i], strlen(options->keys[i])});
    if (options->chat) {
        a->style = pl_chat_reply_style(options->chat);
        a->arguments_as_text = pl_chat_arguments_as_text(options->chat);
        int32_t n = pl_vocab_size(options->vocab);
        if (!(a->shown = pl_calloc((size_t)n, 1))) {
            pl_api_free(a);
            return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for the API");
        }
        for (int32_t i = 0; i < n; i++) {
            a->shown[i] = pl_vocab_type(options->vocab, i) == PL_TOKEN_CONTROL && !pl_vocab_is_eog(options->vocab, i) &&
                          pl_reply_marks(&a->style, pl_vocab_text(options->vocab, i));
        }
    }
    pl_rng_seed(&a->ids, pl_random_seed());
    a->created = pl_wall_us() / 1000000;
    *out = a;
    return PL_OK;
}

void pl_api_free(pl_api *a)
{
    if (!a) return;
    PL_ASSERT(!a->open);
    pl_free(a->shown);
    pl_free(a->keys);
    pl_free(a);
}
