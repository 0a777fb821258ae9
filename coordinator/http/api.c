#include "coordinator/http/api.h"

#include <inttypes.h>
#include <stdio.h>
#include <strings.h>
#include <time.h>

#include "coordinator/http/api_impl.h"
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

typedef enum { KIND_CHAT, KIND_TEXT, KIND_NATIVE } answer_kind;

#define CHOICES_MAX 32 /* "n" of one request */

/* One of the answers to a request. */
typedef struct choice {
    answer *of;
    int index;
    pl_generation *generation; /* NULL: it has ended */
    pl_buf text;               /* of an answer that is not streamed */
    pl_buf reasoning;          /* likewise */
    pl_json *calls;            /* likewise: "tool_calls" */
    pl_reply *reply;           /* takes the text apart; NULL: it is given as it comes */
    int n_calls, n_tokens;
    pl_json *logprobs;   /* entries so far (not streamed), or since the last event (streamed) */
    pl_json *tokens;     /* of llama.cpp's answers: likewise */
    size_t text_offset;  /* bytes of text before the next token, for /v1/completions */
    const char *finish;  /* why it ended */
    const char *stop_by; /* the stop string, copied; NULL: none */
} choice;

/* One request that is being answered. */
struct answer {
    pl_api *api;
    answer *prev, *next;
    pl_http_exchange *x; /* NULL when the client has gone or has its answer */
    answer_kind kind;
    bool stream, include_usage, headed, want_logprobs, want_tokens, one_call;
    int64_t created;
    char id[48];
    pl_json *tools;    /* of the request; replies borrow them */
    pl_json *settings; /* of llama.cpp's answers */
    pl_json *prompt;   /* likewise */
    const pl_vocab *vocab;
    pl_usage usage; /* of all choices together */
    int n_choices, n_left;
    choice choices[];
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

/* What a chat request says of tools, and what is known of the reply that it will have. */
typedef struct chat_request {
    pl_json *tools; /* an array; NULL: none may be called */
    bool one_call;  /* "parallel_tool_calls": false */
    pl_reply_style style;
    bool plain;    /* the reply's text is given as it comes */
    pl_buf prompt; /* the text that the model is given */
} chat_request;

/* What would change the answer and is not known here is refused: to ignore it would answer another question. */
static void refuse_unknown(api_reader *r)
{
    static const char *const must_be_empty[] = {"functions", "suffix", "image_data", "allowed_token_ids"};
    for (size_t i = 0; i < sizeof must_be_empty / sizeof *must_be_empty; i++) {
        const pl_json *v = api_member(r, must_be_empty[i]);
        if (v && (pl_json_size(v) > 0 || pl_json_str(v).size > 0))
            api_fail(r, PL_ERR_UNSUPPORTED, must_be_empty[i], "is not supported by this server");
    }
    static const char *const must_be_zero[] = {"min_keep", "n_indent", "adaptive_target"};
    for (size_t i = 0; i < sizeof must_be_zero / sizeof *must_be_zero; i++)
        if (pl_json_f64(api_member(r, must_be_zero[i])) > 0)
            api_fail(r, PL_ERR_UNSUPPORTED, must_be_zero[i], "is not supported by this server");
    static const char *const must_be_off[] = {"echo", "post_sampling_probs", "grammar_lazy"};
    for (size_t i = 0; i < sizeof must_be_off / sizeof *must_be_off; i++)
        if (api_read_bool(r, must_be_off[i]))
            api_fail(r, PL_ERR_UNSUPPORTED, must_be_off[i], "is not supported by this server");
    int64_t best_of = 1;
    if (api_read_i64(r, "best_of", 1, INT32_MAX, &best_of) && best_of != 1)
        api_fail(r, PL_ERR_UNSUPPORTED, "best_of", "is not supported by this server");
}

/* stop: a string or an array of strings. The texts are terminated copies in texts, which lives as long as the options.
 */
static void read_stops(api_reader *r, pl_generation_options *g, pl_buf texts[PL_STOPS_MAX])
{
    const pl_json *v = api_member(r, "stop");
    if (!v) return;
    bool one = pl_json_type(v) == PL_JSON_STRING;
    if (!one && pl_json_type(v) != PL_JSON_ARRAY) {
        api_fail(r, PL_ERR_INVALID, "stop", "must be a string or an array of strings");
        return;
    }
    size_t n = one ? 1 : pl_json_size(v);
    if (n > PL_STOPS_MAX) {
        api_fail(r, PL_ERR_INVALID, "stop", "has more than 16 strings");
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const pl_json *e = one ? v : pl_json_at(v, i);
        pl_str s = pl_json_str(e);
        if (pl_json_type(e) != PL_JSON_STRING || s.size == 0 || memchr(s.data, 0, s.size)) {
            api_fail(r, PL_ERR_INVALID, "stop", "must be strings that are not empty");
            return;
        }
        pl_buf_add_str(&texts[i], s);
        if (!(g->stops[g->n_stops++] = pl_buf_cstr(&texts[i]))) api_fail(r, PL_ERR_NO_MEMORY, "stop", "no memory");
    }
}

static void read_params(api_reader *r, const pl_api *a, answer_kind kind, api_sampling *lists, pl_generation_options *g)
{
    pl_request_params *p = &g->request;
    p->sample = a->o.sample;
    p->max_tokens = a->o.max_tokens;
    p->context_shift = a->o.context_shift;
    p->n_keep = a->o.n_keep;
    refuse_unknown(r);
    int64_t seed;
    if (api_read_i64(r, "seed", INT64_MIN, INT64_MAX, &seed) && seed != -1) { /* llama.cpp's "draw one" is -1 */
        p->sample.seed = (uint64_t)seed;
        p->has_seed = true;
    }
    api_read_i32(r, "n_predict", -1, &p->max_tokens);
    api_read_i32(r, "max_tokens", -1, &p->max_tokens);
    api_read_i32(r, "max_completion_tokens", -1, &p->max_tokens);
    api_read_i32(r, "n_keep", -1, &p->n_keep);
    p->no_cache = api_member(r, "cache_prompt") && !api_read_bool(r, "cache_prompt");
    p->ignore_eos = api_read_bool(r, "ignore_eos");
    p->context_shift = a->o.context_shift;
    p->n_keep = a->o.n_keep;
    api_read_i32(r, "n_keep", -1, &p->n_keep);
    p->no_cache = api_member(r, "cache_prompt") && !api_read_bool(r, "cache_prompt");
    api_read_adapters(r, a->o.adapters, a->o.n_adapters, p->adapters);
    int64_t top = 0;
    if (kind == KIND_CHAT) {
        bool on = api_read_bool(r, "logprobs");
        if (api_read_i64(r, "top_logprobs", 0, PL_LOGPROBS_MAX, &top) && !on)
            api_fail(r, PL_ERR_INVALID, "top_logprobs", "needs \"logprobs\": true");
        if (on) p->sample.n_logprobs = (int32_t)top;
    } else if (kind == KIND_TEXT && api_read_i64(r, "logprobs", 0, PL_LOGPROBS_MAX, &top)) {
        p->sample.n_logprobs = (int32_t)top;
    } else if (kind == KIND_NATIVE && api_read_i64(r, "n_probs", 0, PL_LOGPROBS_MAX, &top) && top > 0) {
        p->sample.n_logprobs = (int32_t)top;
    }
    if (!r->failed) api_read_sampling(r, a->o.vocab, lists, &p->sample);
}

/* content may be a string or an array of text parts; templates want a string. */
static pl_json *plain_content(api_reader *r, const pl_json *content)
{
    pl_buf text = {0};
    for (size_t j = 0; j < pl_json_size(content); j++) {
        pl_json *part = pl_json_at(content, j);
        if (!pl_str_is(pl_json_str(pl_json_get(part, "type")), "text"))
            api_fail(r, PL_ERR_UNSUPPORTED, "messages", "only content parts of the type \"text\" are supported");
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
static pl_json *plain_calls(api_reader *r, const pl_json *calls, bool as_text)
{
    pl_json *out = pl_json_array();
    for (size_t i = 0; i < pl_json_size(calls); i++) {
        pl_json *call = pl_json_at(calls, i), *function = pl_json_get(call, "function"), *v = NULL;
        const pl_json *arguments = pl_json_get(function, "arguments");
        pl_error err;
        if (pl_json_str(pl_json_get(function, "name")).size == 0)
            api_fail(r, PL_ERR_INVALID, "messages", "each of tool_calls must have a function with a name");
        if (as_text && pl_json_type(arguments) == PL_JSON_OBJECT) {
            pl_buf text = {0};
            if (pl_json_write(arguments, 0, &text, &err) == PL_OK) v = pl_json_string(pl_buf_str(&text));
            pl_buf_fini(&text);
        } else if (!as_text && pl_json_type(arguments) == PL_JSON_STRING) {
            pl_str text = pl_json_str(arguments);
            if (pl_json_parse(&v, text.size ? text : PL_STR("{}"), &err) != PL_OK)
                api_fail(r, PL_ERR_INVALID, "messages", "the arguments of a tool call are not JSON");
        }
        pl_json_append(out,
                       v ? with_member(call, "function", with_member(function, "arguments", v)) : pl_json_ref(call));
    }
    return out;
}

/* The messages as templates want them: a new array. */
static pl_json *plain_messages(api_reader *r, const pl_api *a, const pl_json *messages)
{
    pl_json *out = pl_json_array();
    for (size_t i = 0; i < pl_json_size(messages) && !r->failed; i++) {
        pl_json *m = pl_json_at(messages, i), *content = pl_json_get(m, "content"),
                *calls = pl_json_get(m, "tool_calls");
        if (pl_json_type(m) != PL_JSON_OBJECT || pl_json_str(pl_json_get(m, "role")).size == 0) {
            api_fail(r, PL_ERR_INVALID, "messages", "each message must be an object with a role");
            break;
        }
        if (pl_json_type(content) != PL_JSON_ARRAY && pl_json_type(content) != PL_JSON_STRING && !calls)
            api_fail(r, PL_ERR_INVALID, "messages",
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

static void read_tools(api_reader *r, const pl_api *a, chat_request *c)
{
    const pl_json *tools = api_member(r, "tools"), *wanted = api_member(r, "tool_choice"),
                  *documents = api_member(r, "documents");
    c->style = a->style;
    if (pl_str_is(pl_json_str(api_member(r, "reasoning_format")), "none")) c->style.thoughts = 0;
    if (documents && pl_json_type(documents) != PL_JSON_ARRAY)
        api_fail(r, PL_ERR_INVALID, "documents", "must be an array");
    if (tools && pl_json_type(tools) != PL_JSON_ARRAY) api_fail(r, PL_ERR_INVALID, "tools", "must be an array");
    for (size_t i = 0; i < pl_json_size(tools); i++) {
        const pl_json *t = pl_json_at(tools, i);
        if (!pl_str_is(pl_json_str(pl_json_get(t, "type")), "function"))
            api_fail(r, PL_ERR_UNSUPPORTED, "tools", "only tools of the type \"function\" are supported");
        else if (pl_json_str(pl_json_get(pl_json_get(t, "function"), "name")).size == 0)
            api_fail(r, PL_ERR_INVALID, "tools", "each must have a function with a name");
    }
    pl_str word = pl_json_str(wanted);
    bool none = pl_str_is(word, "none");
    if (wanted && !none && !pl_str_is(word, "auto"))
        api_fail(r, PL_ERR_UNSUPPORTED, "tool_choice", "only \"auto\" and \"none\" are supported");
    const pl_json *parallel = api_member(r, "parallel_tool_calls");
    if (parallel && pl_json_type(parallel) != PL_JSON_BOOL)
        api_fail(r, PL_ERR_INVALID, "parallel_tool_calls", "must be true or false");
    c->one_call = parallel && !pl_json_is_true(parallel);
    if (!none && pl_json_size(tools) > 0) c->tools = pl_json_ref((pl_json *)(uintptr_t)tools);
    c->plain = !c->tools && !c->style.harmony && c->style.thoughts == 0;
}

/* The request's words for the template: its tools and documents, and what chat_template_kwargs says. */
static pl_json *template_variables(const api_reader *r, const chat_request *c)
{
    pl_json *v = pl_json_object();
    void *at = NULL;
    pl_str name;
    pl_json *m;
    while (pl_json_next(api_member(r, "chat_template_kwargs"), &at, &name, &m))
        pl_json_set(v, name.data, pl_json_ref(m));
    static const char *const words[] = {"documents", "reasoning_effort"};
    for (int i = 0; i < 2; i++) {
        if (api_member(r, words[i]))
            pl_json_set(v, words[i], pl_json_ref((pl_json *)(uintptr_t)api_member(r, words[i])));
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
static bool may_fit(api_reader *r, const pl_api *a, const char *name, size_t size)
{
    int32_t n_ctx = pl_coordinator_n_ctx(a->o.coordinator);
    if (size / (size_t)n_ctx <= pl_vocab_longest(a->o.vocab)) return true;
    char what[128];
    snprintf(what, sizeof what, "%zu bytes are more than the %d tokens of the context can hold", size, n_ctx);
    api_fail(r, PL_ERR_INVALID, name, what);
    return false;
}

static void read_chat_prompt(api_reader *r, const pl_api *a, chat_request *c, pl_buf *tokens)
{
    const pl_json *messages = api_member(r, "messages"), *words = api_member(r, "chat_template_kwargs");
    if (pl_json_type(messages) != PL_JSON_ARRAY || pl_json_size(messages) == 0) {
        api_fail(r, PL_ERR_INVALID, "messages", "must be an array of at least one message");
        return;
    }
    if (words && pl_json_type(words) != PL_JSON_OBJECT)
        api_fail(r, PL_ERR_INVALID, "chat_template_kwargs", "must be an object");
    if (!a->o.chat) {
        api_fail(r, PL_ERR_UNSUPPORTED, "messages",
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
static void read_text_prompt(api_reader *r, const pl_api *a, pl_buf *tokens)
{
    const pl_json *prompt = api_member(r, "prompt");
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
        api_fail(r, PL_ERR_INVALID, "prompt", "must be one string or one array of token ids");
        return;
    }
    for (size_t i = 0; i < pl_json_size(prompt); i++) {
        const pl_json *e = pl_json_at(prompt, i);
        int64_t id = pl_json_i64(e);
        if (pl_json_type(e) != PL_JSON_INT || id < 0 || id >= pl_vocab_size(a->o.vocab)) {
            api_fail(r, PL_ERR_INVALID, "prompt",
                     "holds what is not a token id of this model (several prompts in one request are not supported)");
            return;
        }
        int32_t token = (int32_t)id;
        if (!pl_buf_add(tokens, &token, sizeof token)) api_fail(r, PL_ERR_NO_MEMORY, "prompt", "no memory");
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
    if (w->kind == KIND_NATIVE) pl_json_set(v, "id", pl_json_int(token));
    pl_buf_fini(&text);
    return v;
}

static void add_logprobs(choice *c, const pl_sampled *t)
{
    const answer *w = c->of;
    if (w->kind == KIND_NATIVE && (w->stream || w->want_tokens)) {
        if (!c->tokens) c->tokens = pl_json_array();
        pl_json_append(c->tokens, pl_json_int(t->token));
    }
    if (!w->want_logprobs) return;
    if (!c->logprobs) c->logprobs = pl_json_array();
    pl_json *e = token_json(w, t->token, t->logprob), *top = pl_json_array();
    for (int32_t i = 0; i < t->n_top; i++) pl_json_append(top, token_json(w, t->top[i], t->top_logprob[i]));
    pl_json_set(e, "top_logprobs", top);
    pl_json_append(c->logprobs, e);
}

/* Takes what has gathered, in the form of the kind of answer. */
static pl_json *take_logprobs(choice *c)
{
    pl_json *entries = c->logprobs;
    c->logprobs = NULL;
    if (!entries) return pl_json_null();
    if (c->of->kind == KIND_NATIVE) return entries;
    pl_json *v = pl_json_object();
    if (c->of->kind == KIND_CHAT) {
        pl_json_set(v, "content", entries);
        return v;
    }
    pl_json *tokens = pl_json_array(), *values = pl_json_array(), *tops = pl_json_array(), *offsets = pl_json_array();
    for (size_t i = 0; i < pl_json_size(entries); i++) {
        pl_json *e = pl_json_at(entries, i), *token = pl_json_get(e, "token"), *top = pl_json_get(e, "top_logprobs"),
                *map = pl_json_object();
        pl_json_append(tokens, pl_json_ref(token));
        pl_json_append(values, pl_json_ref(pl_json_get(e, "logprob")));
        pl_json_append(offsets, pl_json_int((int64_t)c->text_offset));
        c->text_offset += pl_json_str(token).size;
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

static const char *finish_word(const choice *c, pl_finish why)
{
    return why == PL_FINISH_LENGTH ? "length" : c->n_calls > 0 ? "tool_calls" : "stop";
}

/* What a stream of llama.cpp's server has in each event: {"content", "tokens", ...}. */
static pl_json *native_json(choice *c, pl_str text)
{
    const answer *w = c->of;
    pl_json *v = pl_json_object();
    pl_json_set(v, "index", pl_json_int(c->index));
    pl_json_set(v, "content", pl_json_string(text));
    pl_json_set(v, "tokens", c->tokens ? c->tokens : pl_json_array());
    c->tokens = NULL;
    pl_json_set(v, "stop", pl_json_bool(c->finish != NULL));
    pl_json_set(v, "id_slot", pl_json_int(-1));
    pl_json_set(v, "tokens_predicted", pl_json_int(c->n_tokens));
    pl_json_set(v, "tokens_evaluated", pl_json_int(w->usage.n_prompt));
    if (w->want_logprobs) pl_json_set(v, "completion_probabilities", take_logprobs(c));
    return v;
}

/* And at its end. */
static pl_json *native_end_json(choice *c, pl_str text)
{
    const answer *w = c->of;
    pl_json *v = native_json(c, text);
    const char *type = c->stop_by ? "word" : strcmp(c->finish, "length") == 0 ? "limit" : "eos";
    pl_json_set(v, "model", pl_json_string(pl_str_from(w->api->o.model)));
    pl_json_set(v, "generation_settings", pl_json_ref(w->settings));
    pl_json_set(v, "prompt", pl_json_ref(w->prompt));
    pl_json_set(v, "has_new_line", pl_json_bool(text.size > 0 && memchr(text.data, '\n', text.size)));
    pl_json_set(v, "truncated", pl_json_bool(false));
    pl_json_set(v, "stop_type", pl_json_string(pl_str_from(type)));
    pl_json_set(v, "stopping_word", pl_json_string(pl_str_from(c->stop_by ? c->stop_by : "")));
    pl_json_set(v, "tokens_cached", pl_json_int(w->usage.stats.n_cached));
    pl_json_set(v, "timings", timings_json(&w->usage));
    return v;
}

/* One event of a stream: what is new in it (taken; NULL for text alone), and at the end the reason. */
static void send_delta(choice *c, pl_json *delta, pl_str text, const char *finish)
{
    answer *w = c->of;
    if (w->kind == KIND_NATIVE) {
        send_event(w, finish ? native_end_json(c, text) : native_json(c, text));
        return;
    }
    pl_json *one = pl_json_object(), *choices = pl_json_array(), *v = answer_head(w, true);
    pl_json_set(one, "index", pl_json_int(c->index));
    if (delta)
        pl_json_set(one, "delta", delta);
    else
        pl_json_set(one, "text", pl_json_string(text));
    pl_json_set(one, "logprobs", take_logprobs(c));
    pl_json_set(one, "finish_reason", finish ? pl_json_string(pl_str_from(finish)) : pl_json_null());
    pl_json_append(choices, one);
    pl_json_set(v, "choices", choices);
    if (w->include_usage) pl_json_set(v, "usage", pl_json_null());
    send_event(w, v);
}

/* More text, and at the end the reason. */
static void send_chunk(choice *c, pl_str text, const char *finish, bool first)
{
    pl_json *delta = c->of->kind == KIND_CHAT ? pl_json_object() : NULL;
    if (delta && first) pl_json_set(delta, "role", pl_json_string(PL_STR("assistant")));
    if (delta && (first || text.size > 0 || !finish)) pl_json_set(delta, "content", pl_json_string(text));
    send_delta(c, delta, text, finish);
}

/* {"id", "type", "function": {"name", "arguments"}}, in a stream with its index. */
static pl_json *call_json(choice *c, const pl_reply_part *part)
{
    pl_json *call = pl_json_object(), *function = pl_json_object();
    char id[32];
    snprintf(id, sizeof id, "call_%016" PRIx64, pl_rng_u64(&c->of->api->ids));
    if (c->of->stream) pl_json_set(call, "index", pl_json_int(c->n_calls));
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
    choice *c = user;
    if (part->kind == PL_REPLY_CALL && c->of->one_call && c->n_calls > 0) return;
    if (!c->of->stream) {
        if (part->kind == PL_REPLY_CONTENT) pl_buf_add_str(&c->text, part->text);
        if (part->kind == PL_REPLY_REASONING) pl_buf_add_str(&c->reasoning, part->text);
        if (part->kind == PL_REPLY_CALL) {
            if (!c->calls) c->calls = pl_json_array();
            pl_json_append(c->calls, call_json(c, part));
        }
    } else if (part->kind == PL_REPLY_CONTENT) {
        send_chunk(c, part->text, NULL, false);
    } else {
        pl_json *delta = pl_json_object(), *calls = pl_json_array();
        if (part->kind == PL_REPLY_REASONING) {
            pl_json_set(delta, "reasoning_content", pl_json_string(part->text));
            pl_json_free(calls);
        } else {
            pl_json_append(calls, call_json(c, part));
            pl_json_set(delta, "tool_calls", calls);
        }
        send_delta(c, delta, (pl_str){0}, NULL);
    }
    c->n_calls += part->kind == PL_REPLY_CALL;
}

/* The head of a stream waits for the first token, so that a request that fails before gets its own HTTP code. */
static void begin_stream(answer *w)
{
    if (w->headed || !w->x) return;
    w->headed = true;
    pl_http_add_header(w->x, "Cache-Control", "no-cache");
    pl_http_stream(w->x, 200, "text/event-stream; charset=utf-8");
    for (int i = 0; w->kind == KIND_CHAT && i < w->n_choices; i++) send_chunk(&w->choices[i], (pl_str){0}, NULL, true);
}

static void on_token(void *user, const pl_sampled *token, pl_str text)
{
    choice *c = user;
    answer *w = c->of;
    w->api->n_generated_tokens++;
    c->n_tokens++;
    if (w->stream) begin_stream(w);
    add_logprobs(c, token);
    if (c->reply) {
        if (!pl_reply_add(c->reply, text)) c->text.failed = true;
        return;
    }
    if (!w->stream) {
        pl_buf_add_str(&c->text, text);
        return;
    }
    if (text.size > 0) send_chunk(c, text, NULL, false);
}

static void answer_free(answer *w)
{
    if (w->prev)
        w->prev->next = w->next;
    else
        w->api->open = w->next;
    if (w->next) w->next->prev = w->prev;
    for (int i = 0; i < w->n_choices; i++) {
        choice *c = &w->choices[i];
        pl_json_free(c->logprobs);
        pl_json_free(c->tokens);
        pl_reply_close(c->reply);
        pl_json_free(c->calls);
        pl_buf_fini(&c->reasoning);
        pl_buf_fini(&c->text);
        pl_free((char *)(uintptr_t)c->stop_by);
    }
    pl_json_free(w->tools);
    pl_json_free(w->settings);
    pl_json_free(w->prompt);
    pl_free(w);
}

static void cancel_choices(answer *w)
{
    for (int i = 0; i < w->n_choices; i++)
        if (w->choices[i].generation) pl_generation_cancel(w->choices[i].generation);
}

/* One choice has failed: so has the request. The others are ended when the loop comes to them. */
static void end_failed(answer *w, const pl_error *err)
{
    if (w->headed) {
        w->api->n_errors++;
        send_event(w, error_json(err->status, pl_status_http(err->status), err->text, NULL));
        if (w->kind != KIND_NATIVE) pl_http_send(w->x, (pl_bytes){(const uint8_t *)"data: [DONE]\n\n", 14});
        pl_http_end(w->x);
    } else {
        respond_fail(w->api, w->x, err, NULL);
    }
    w->x = NULL;
    cancel_choices(w);
}

/* All choices of a stream have ended. */
static void end_stream(answer *w)
{
    if (w->include_usage && w->kind != KIND_NATIVE) {
        pl_json *v = answer_head(w, true);
        pl_json_set(v, "choices", pl_json_array());
        pl_json_set(v, "usage", usage_json(&w->usage));
        pl_json_set(v, "timings", timings_json(&w->usage));
        send_event(w, v);
    }
    if (w->kind != KIND_NATIVE) pl_http_send(w->x, (pl_bytes){(const uint8_t *)"data: [DONE]\n\n", 14});
    pl_http_end(w->x);
}

static pl_json *choice_json(choice *c)
{
    pl_json *v = pl_json_object();
    pl_json_set(v, "index", pl_json_int(c->index));
    if (c->of->kind == KIND_CHAT) {
        pl_json *m = pl_json_object();
        pl_json_set(m, "role", pl_json_string(PL_STR("assistant")));
        bool calls_only = c->calls && c->text.size == 0;
        pl_json_set(m, "content", calls_only ? pl_json_null() : pl_json_string(pl_buf_str(&c->text)));
        if (c->reasoning.size > 0) pl_json_set(m, "reasoning_content", pl_json_string(pl_buf_str(&c->reasoning)));
        if (c->calls) pl_json_set(m, "tool_calls", pl_json_ref(c->calls));
        pl_json_set(v, "message", m);
    } else {
        pl_json_set(v, "text", pl_json_string(pl_buf_str(&c->text)));
    }
    pl_json_set(v, "logprobs", take_logprobs(c));
    pl_json_set(v, "finish_reason", pl_json_string(pl_str_from(c->finish)));
    return v;
}

/* All choices of an answer that is not streamed have ended. */
static void end_whole(answer *w)
{
    pl_json *choices = pl_json_array(), *v;
    for (int i = 0; i < w->n_choices; i++) {
        choice *c = &w->choices[i];
        pl_json_append(choices, w->kind == KIND_NATIVE ? native_end_json(c, pl_buf_str(&c->text)) : choice_json(c));
    }
    if (w->kind == KIND_NATIVE) { /* one answer as it is, several as an array */
        v = w->n_choices == 1 ? pl_json_ref(pl_json_at(choices, 0)) : pl_json_ref(choices);
        pl_json_free(choices);
    } else {
        v = answer_head(w, false);
        pl_json_set(v, "choices", choices);
        pl_json_set(v, "usage", usage_json(&w->usage));
        pl_json_set(v, "timings", timings_json(&w->usage));
    }
    respond_json(w->x, 200, v);
}

/* Of all choices together: the prompt counts once. */
static void add_usage(answer *w, const pl_usage *u)
{
    pl_usage *sum = &w->usage;
    if (w->n_left == w->n_choices - 1) {
        *sum = *u;
        return;
    }
    sum->n_generated += u->n_generated;
    sum->stats.n_drafted += u->stats.n_drafted;
    sum->stats.n_accepted += u->stats.n_accepted;
    if (u->generate_ns > sum->generate_ns) sum->generate_ns = u->generate_ns;
}

static void end_choice(choice *c, pl_str text)
{
    answer *w = c->of;
    if (w->stream) {
        begin_stream(w);
        send_chunk(c, text, c->finish, false);
    } else {
        pl_buf_add_str(&c->text, text);
    }
    if (w->n_left > 0) return;
    if (w->stream)
        end_stream(w);
    else
        end_whole(w);
}

static void on_end(void *user, pl_str text, pl_finish why, const char *stopped_by, const pl_usage *usage,
                   const pl_error *err)
{
    choice *c = user;
    answer *w = c->of;
    pl_error failed;
    c->generation = NULL;
    w->n_left--;
    if (why != PL_FINISH_ERROR) err = NULL; /* an answer that ends at a stop string was cancelled */
    if (w->x && c->reply && why != PL_FINISH_ERROR && why != PL_FINISH_CANCELLED) {
        if (w->stream) begin_stream(w);
        if (!pl_reply_add(c->reply, text) || !pl_reply_end(c->reply)) c->text.failed = true;
        text = (pl_str){0};
    }
    if (stopped_by) c->stop_by = pl_strdup(stopped_by);
    PL_LOG(PL_LOG_INFO, "request done", "id=%s choice=%d prompt=%d generated=%d finish=%s", w->id, c->index,
           usage->n_prompt, usage->n_generated,
           !w->x                        ? "client_gone"
           : why == PL_FINISH_ERROR     ? pl_status_name(err->status)
           : why == PL_FINISH_CANCELLED ? "cancelled"
                                        : finish_word(c, why));
    add_usage(w, usage);
    if (why == PL_FINISH_CANCELLED) { /* the server is stopping, or nobody waits any more */
        (void)pl_fail(&failed, PL_ERR_CLOSED, "the server is shutting down");
        err = &failed;
    } else if (why != PL_FINISH_ERROR && (c->text.failed || (stopped_by && !c->stop_by))) {
        (void)pl_fail(&failed, PL_ERR_NO_MEMORY, "no memory for the generated text");
        err = &failed;
    }
    c->finish = finish_word(c, why);
    if (w->x && err)
        end_failed(w, err);
    else if (w->x)
        end_choice(c, text);
    if (w->n_left == 0) answer_free(w);
}

static const pl_generation_events generation_events = {on_token, on_end};

static void on_gone(pl_http_exchange *x, void *user)
{
    (void)x;
    answer *w = user;
    w->x = NULL;
    cancel_choices(w);
}

/* --- the paths -----------------------------------------------------------------------------------------------------
 */

/* The answer that w becomes, with its choices; NULL: no memory. */
static answer *answer_new(pl_api *a, pl_http_exchange *x, answer_kind kind, int n_choices)
{
    answer *w = pl_calloc(1, sizeof *w + (size_t)n_choices * sizeof w->choices[0]);
    if (!w) return NULL;
    static const char *const prefix[] = {"chatcmpl", "cmpl", "cmpl"};
    w->api = a;
    w->x = x;
    w->kind = kind;
    w->vocab = a->o.vocab;
    w->created = pl_wall_us() / 1000000;
    w->n_choices = n_choices;
    for (int i = 0; i < n_choices; i++) {
        w->choices[i].of = w;
        w->choices[i].index = i;
    }
    snprintf(w->id, sizeof w->id, "%s-%016" PRIx64 "%08" PRIx64, prefix[kind], pl_rng_u64(&a->ids),
             ++a->next_id & 0xffffffff);
    w->next = a->open;
    if (w->next) w->next->prev = w;
    a->open = w;
    return w;
}

/* Starts all choices. When one cannot be started, the others are ended: the answer is freed by the last of them, or
 * here when there is none. */
static pl_status answer_start(answer *w, pl_generation_options *g, const chat_request *chat, pl_error *err)
{
    pl_api *a = w->api;
    pl_status s = PL_OK;
    if (w->n_choices > 1 && !g->request.has_seed) { /* they differ by their number alone */
        g->request.sample.seed = pl_rng_u64(&a->ids);
        g->request.has_seed = true;
    }
    for (int i = 0; i < w->n_choices && s == PL_OK; i++) {
        choice *c = &w->choices[i];
        char id[64];
        snprintf(id, sizeof id, i ? "%s-%d" : "%s", w->id, i);
        g->request.id = id;
        g->request.sample.choice = (uint32_t)i;
        if (w->kind == KIND_CHAT && !chat->plain) {
            g->shown = a->shown;
            s = pl_reply_open(&c->reply, &chat->style, pl_buf_str(&chat->prompt), w->tools, on_part, c, err);
        }
        if (s == PL_OK)
            s = pl_generation_start(&c->generation, a->o.coordinator, a->o.loop, a->o.vocab, g, &generation_events, c,
                                    err);
        w->n_left += s == PL_OK;
    }
    if (s == PL_OK) return PL_OK;
    w->x = NULL;
    cancel_choices(w);
    if (w->n_left == 0) answer_free(w);
    return s;
}

static void complete(pl_api *a, pl_http_exchange *x, answer_kind kind)
{
    api_reader r = {0};
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
    int64_t n = 1;
    api_sampling *lists = pl_calloc(1, sizeof *lists);
    if (!lists) api_fail(&r, PL_ERR_NO_MEMORY, "body", "no memory");
    if (pl_json_type(body) != PL_JSON_OBJECT) api_fail(&r, PL_ERR_INVALID, "body", "must be a JSON object");
    if (!r.failed) read_params(&r, a, kind, lists, &g);
    read_stops(&r, &g, stops);
    api_read_i64(&r, "n", 1, CHOICES_MAX, &n);
    bool stream = api_read_bool(&r, "stream"), want_tokens = api_read_bool(&r, "return_tokens");
    bool include_usage = pl_json_is_true(pl_json_get(api_member(&r, "stream_options"), "include_usage"));
    if (!r.failed && kind == KIND_CHAT) read_tools(&r, a, &chat);
    if (!r.failed && kind == KIND_CHAT) read_chat_prompt(&r, a, &chat, &tokens);
    if (!r.failed && kind != KIND_CHAT) read_text_prompt(&r, a, &tokens);
    if (!r.failed && tokens.size == 0)
        api_fail(&r, PL_ERR_INVALID, kind == KIND_CHAT ? "messages" : "prompt", "gives no token");
    if (!r.failed && !(w = answer_new(a, x, kind, (int)n))) api_fail(&r, PL_ERR_NO_MEMORY, "body", "no memory");
    if (r.failed) {
        respond_fail(a, x, &r.err, r.param);
        goto done;
    }
    w->stream = stream;
    w->include_usage = include_usage;
    w->want_tokens = want_tokens;
    w->want_logprobs = g.request.sample.n_logprobs >= 0;
    w->one_call = chat.one_call;
    w->tools = chat.tools ? pl_json_ref(chat.tools) : NULL;
    if (kind == KIND_NATIVE) {
        w->settings = api_settings_json(&g.request.sample);
        w->prompt = pl_json_ref((pl_json *)(uintptr_t)api_member(&r, "prompt"));
    }
    g.request.tokens = (const int32_t *)(const void *)tokens.data;
    g.request.n_tokens = (int32_t)(tokens.size / sizeof(int32_t));
    w->usage.n_prompt = g.request.n_tokens;
    if (answer_start(w, &g, &chat, &r.err) != PL_OK) {
        respond_fail(a, x, &r.err, NULL);
        goto done;
    }
    a->n_prompt_tokens += (uint64_t)g.request.n_tokens;
    pl_http_on_gone(x, on_gone, w);
done:
    for (int i = 0; i < PL_STOPS_MAX; i++) pl_buf_fini(&stops[i]);
    if (lists) api_sampling_fini(lists);
    pl_free(lists);
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

static void completion(pl_api *a, pl_http_exchange *x)
{
    complete(a, x, KIND_NATIVE);
}

/* The body as a reader; false when it is no object: then it is answered. */
static bool read_body(pl_api *a, pl_http_exchange *x, api_reader *r, pl_json **body)
{
    pl_bytes raw = pl_http_body(x);
    if (pl_json_parse(body, (pl_str){(const char *)raw.data, raw.size}, &r->err) != PL_OK) {
        respond_error(a, x, 400, &r->err, NULL);
        return false;
    }
    r->body = *body;
    if (pl_json_type(*body) != PL_JSON_OBJECT) api_fail(r, PL_ERR_INVALID, "body", "must be a JSON object");
    return true;
}

static void respond_read(pl_api *a, pl_http_exchange *x, const api_reader *r, pl_json *result)
{
    if (r->failed)
        respond_fail(a, x, &r->err, r->param);
    else
        respond_json(x, 200, result);
}

static void tokenize(pl_api *a, pl_http_exchange *x)
{
    api_reader r = {0};
    pl_json *body = NULL;
    if (read_body(a, x, &r, &body)) respond_read(a, x, &r, api_tokenize(&r, a->o.vocab));
    pl_json_free(body);
}

static void detokenize(pl_api *a, pl_http_exchange *x)
{
    api_reader r = {0};
    pl_json *body = NULL;
    if (read_body(a, x, &r, &body)) respond_read(a, x, &r, api_detokenize(&r, a->o.vocab));
    pl_json_free(body);
}

/* The prompt that a chat request would give the model. */
static void apply_template(pl_api *a, pl_http_exchange *x)
{
    api_reader r = {0};
    pl_json *body = NULL, *v = pl_json_object();
    chat_request chat = {0};
    pl_buf tokens = {0};
    if (read_body(a, x, &r, &body)) {
        if (!r.failed) read_tools(&r, a, &chat);
        if (!r.failed) read_chat_prompt(&r, a, &chat, &tokens);
        pl_json_set(v, "prompt", pl_json_string(pl_buf_str(&chat.prompt)));
        respond_read(a, x, &r, pl_json_ref(v));
    }
    pl_json_free(v);
    pl_buf_fini(&tokens);
    pl_buf_fini(&chat.prompt);
    pl_json_free(chat.tools);
    pl_json_free(body);
}

static pl_json *token_text(const pl_vocab *vocab, int32_t token)
{
    return pl_json_string(token < 0 ? (pl_str){0} : pl_vocab_text(vocab, token));
}

static void props(pl_api *a, pl_http_exchange *x)
{
    pl_json *v = pl_json_object(), *settings = pl_json_object(), *modalities = pl_json_object();
    pl_json_set(settings, "n_ctx", pl_json_int(pl_coordinator_n_ctx(a->o.coordinator)));
    pl_json_set(settings, "params", api_settings_json(&a->o.sample));
    pl_json_set(v, "default_generation_settings", settings);
    pl_json_set(v, "total_slots", pl_json_int(a->o.n_slots));
    pl_json_set(v, "model_alias", pl_json_string(pl_str_from(a->o.model)));
    pl_json_set(v, "chat_template", pl_json_string(a->o.chat_template));
    pl_json_set(v, "bos_token", token_text(a->o.vocab, pl_vocab_bos(a->o.vocab)));
    pl_json_set(v, "eos_token", token_text(a->o.vocab, pl_vocab_eos(a->o.vocab)));
    pl_json_set(modalities, "vision", pl_json_bool(false));
    pl_json_set(modalities, "audio", pl_json_bool(false));
    pl_json_set(v, "modalities", modalities);
    pl_json_set(v, "build_info", pl_json_string(PL_STR("paceline " PACELINE_VERSION)));
    respond_json(x, 200, v);
}

static void embeddings(pl_api *a, pl_http_exchange *x)
{
    pl_error err;
    (void)pl_fail(&err, PL_ERR_UNSUPPORTED, "this server gives no embeddings: its pipeline ends with tokens");
    respond_error(a, x, 501, &err, NULL);
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

/* GET /lora-adapters, as llama.cpp's server has it. */
static void adapters(pl_api *a, pl_http_exchange *x)
{
    pl_json *list = pl_json_array();
    for (int32_t i = 0; i < a->o.n_adapters; i++) {
        pl_json *v = pl_json_object();
        pl_json_set(v, "id", pl_json_int(i));
        pl_json_set(v, "scale", pl_json_real((double)a->o.adapters[i]));
        pl_json_append(list, v);
    }
    respond_json(x, 200, list);
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
    {"POST", "/v1/embeddings", false, embeddings},
    {"POST", "/completion", false, completion},
    {"POST", "/completions", false, completion},
    {"POST", "/tokenize", false, tokenize},
    {"POST", "/detokenize", false, detokenize},
    {"POST", "/apply-template", false, apply_template},
    {"GET", "/props", false, props},
    {"GET", "/v1/models", false, models},
    {"GET", "/v1/models/", false, one_model}, /* a slash at the end: and what is behind it */
    {"GET", "/v1/cluster", false, cluster},
    {"GET", "/lora-adapters", false, adapters},
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
    bool may_read = api_cors(x, a->o.origins, a->o.n_origins);
    if (pl_str_is(method, "OPTIONS") && pl_http_header(x, "access-control-request-method").size > 0) {
        api_preflight(x, may_read); /* without a key: browsers send none with it */
        return;
    }
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
