/* Reading requests, for the files of the API. */
#pragma once

#include "coordinator/generation.h"
#include "coordinator/http/server.h"
#include "engine/base/json.h"

/* A request's body, and the first thing that is wrong with it: further calls change nothing. param names the field. */
typedef struct api_reader {
    const pl_json *body;
    const char *param;
    char param_text[64]; /* for a param that is not a literal */
    pl_error err;
    bool failed;
} api_reader;

void api_fail(api_reader *r, pl_status s, const char *param, const char *what);
/* The member, or NULL when it is absent or null. */
const pl_json *api_member(const api_reader *r, const char *name);
/* Each leaves *out when the member is absent. */
void api_read_f32(api_reader *r, const char *name, float *out);
/* False when it is absent or out of bounds. */
bool api_read_i64(api_reader *r, const char *name, int64_t low, int64_t high, int64_t *out);
void api_read_i32(api_reader *r, const char *name, int32_t low, int32_t *out);
bool api_read_bool(api_reader *r, const char *name);

/* What the parameters of one request point to; not to be moved. All zero before. */
typedef struct api_sampling {
    int32_t bias_tokens[PL_BIAS_MAX];
    float bias[PL_BIAS_MAX];
    pl_str breakers[PL_BREAKERS_MAX];
    pl_buf grammar;
} api_sampling;
void api_sampling_fini(api_sampling *s);
/* All fields of sampling but those of logprobs, over what p has: OpenAI's and those of llama.cpp's server. */
void api_read_sampling(api_reader *r, const pl_vocab *vocab, api_sampling *s, pl_sample_params *p);
/* lora: [{"id": 0, "scale": 0.5}, ...], of n_adapters; those that are not listed are off, as llama.cpp's server has it.
 * Without it, scales takes the defaults. */
void api_read_adapters(api_reader *r, const float *defaults, int32_t n_adapters, float scales[PL_ADAPTERS_MAX]);
/* The field that llama.cpp's server reports as generation_settings. */
pl_json *api_settings_json(const pl_sample_params *p);

/* The answers of these paths; NULL when the request is wrong. */
pl_json *api_tokenize(api_reader *r, const pl_vocab *vocab);
pl_json *api_detokenize(api_reader *r, const pl_vocab *vocab);

/* Adds the headers that let the page which asks read the answer, when it comes from this machine or from one of the
 * origins ("*": any). Gives whether it may. */
bool api_cors(pl_http_exchange *x, const char *const *origins, size_t n_origins);
/* Answers an OPTIONS request. */
void api_preflight(pl_http_exchange *x, bool allowed);
