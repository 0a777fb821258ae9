/* The OpenAI-compatible API: what the paths of the HTTP server mean.
 *
 *   POST /v1/chat/completions, /v1/completions   https://platform.openai.com/docs/api-reference, with the sampling
 *                                                fields of llama.cpp's server
 *   POST /completion, /tokenize, /detokenize, /apply-template, GET /props   as llama.cpp's server has them
 *   GET  /v1/models, /health, /v1/health, /v1/cluster (what `paceline status` shows), /metrics (Prometheus text format
 *        0.0.4)
 *   OPTIONS on all of them, for pages of other origins
 *
 * Every error is a JSON object {"error": {message, type, code, param}} with the HTTP
 * code that the status has. Threads: the loop's thread. */
#pragma once

#include "coordinator/coordinator.h"
#include "coordinator/http/server.h"
#include "engine/text/chat.h"

typedef struct pl_api pl_api;

typedef struct pl_api_options {
    pl_coordinator *coordinator; /* these are borrowed */
    pl_loop *loop;
    const pl_vocab *vocab;
    const pl_chat *chat;     /* NULL: chat requests are refused, saying why */
    const char *model;       /* its name in answers */
    const char *const *keys; /* accepted as `Authorization: Bearer KEY`; none: no key is asked for */
    size_t n_keys;
    const char *const *origins; /* of pages that may ask, beside those of this machine; "*": all */
    size_t n_origins;
    pl_str chat_template;    /* its text */
    int32_t n_slots;         /* requests answered at once */
    pl_sample_params sample; /* for what a request does not say */
    int32_t max_tokens;      /* likewise; -1: until the context is full */
    bool context_shift;      /* of every request; see pl_request_params */
    const float *adapters;   /* [n_adapters]: scales of the model's adapters, likewise */
    int32_t n_adapters;
    int32_t n_keep; /* for what a request does not say */
} pl_api_options;

PL_MUST_CHECK pl_status pl_api_new(pl_api **out, const pl_api_options *options, pl_error *err);
/* No exchange may be open any more. */
void pl_api_free(pl_api *a);
/* For pl_http_new, with the pl_api as its user. */
void pl_api_handle(void *api, pl_http_exchange *x);
