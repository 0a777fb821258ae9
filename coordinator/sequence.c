#include "coordinator/sequence.h"

#include "engine/base/alloc.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

pl_status pl_blocks_init(pl_blocks *b, int32_t n, pl_error *err)
{
    *b = (pl_blocks){0};
    b->free_ids = pl_calloc((size_t)n * 2 + 1, sizeof *b->free_ids);
    if (!b->free_ids) return pl_fail(err, PL_ERR_NO_MEMORY, "list of %d KV blocks", n);
    b->owners = b->free_ids + n;
    /* Low ids go out first, so that a small load touches few pages. */
    for (int32_t i = 0; i < n; i++) b->free_ids[i] = n - 1 - i;
    b->n = b->n_free = n;
    return PL_OK;
}

void pl_blocks_fini(pl_blocks *b)
{
    pl_free(b->free_ids);
    *b = (pl_blocks){0};
}

bool pl_blocks_take(pl_blocks *b, int32_t *out, int32_t n)
{
    if (n > b->n_free) return false;
    for (int32_t i = 0; i < n; i++) {
        out[i] = b->free_ids[--b->n_free];
        b->owners[out[i]] = 1;
    }
    return true;
}

void pl_blocks_share(pl_blocks *b, const int32_t *ids, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        PL_ASSERT(b->owners[ids[i]] > 0);
        b->owners[ids[i]]++;
    }
}

void pl_blocks_give(pl_blocks *b, const int32_t *ids, int32_t n)
{
    for (int32_t i = n; i-- > 0;) {
        PL_ASSERT(b->owners[ids[i]] > 0);
        if (--b->owners[ids[i]] == 0) b->free_ids[b->n_free++] = ids[i];
    }
}

static pl_status check_id(const char *id, pl_error *err)
{
    size_t n = strlen(id);
    if (n == 0 || n > PL_REQUEST_ID_MAX)
        return pl_fail(err, PL_ERR_INVALID, "request id has %zu bytes, not 1 to %d", n, PL_REQUEST_ID_MAX);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)id[i] < 0x20 || id[i] == 0x7f)
            return pl_fail(err, PL_ERR_INVALID, "request id has a control character at byte %zu", i);
    if (!pl_utf8_valid(pl_str_from(id))) return pl_fail(err, PL_ERR_INVALID, "request id is not UTF-8");
    return PL_OK;
}

static pl_status check_params(const pl_request_params *p, int32_t n_ctx, int32_t n_vocab, pl_error *err)
{
    if (p->id) PL_TRY(check_id(p->id, err));
    if (p->n_tokens < 1 || !p->tokens) return pl_fail(err, PL_ERR_INVALID, "the prompt is empty");
    if (p->n_tokens >= n_ctx)
        return pl_fail(err, PL_ERR_INVALID,
                       "the prompt has %d tokens and the context %d: there is no room for an answer", p->n_tokens,
                       n_ctx);
    for (int i = 0; i < PL_ADAPTERS_MAX; i++)
        if (!(fabsf(p->adapters[i]) <= 1e6f))
            return pl_fail(err, PL_ERR_INVALID, "the scale of adapter %d is %g", i, (double)p->adapters[i]);
    if (p->context_shift && p->sample.grammar.size)
        return pl_fail(err, PL_ERR_UNSUPPORTED, "context_shift with a grammar: its answer must stay whole");
    if (p->max_tokens == 0 || p->max_tokens < -1)
        return pl_fail(err, PL_ERR_INVALID, "max_tokens is %d, not -1 or at least 1", p->max_tokens);
    for (int32_t i = 0; i < p->n_tokens; i++)
        if (p->tokens[i] < 0 || p->tokens[i] >= n_vocab)
            return pl_fail(err, PL_ERR_INVALID, "token %d of the prompt is %d, not in the vocabulary of %d", i,
                           p->tokens[i], n_vocab);
    for (int32_t i = 0; i < p->sample.n_bias; i++)
        if (p->sample.bias_tokens[i] < 0 || p->sample.bias_tokens[i] >= n_vocab)
            return pl_fail(err, PL_ERR_INVALID, "logit_bias: token %d is not in the vocabulary of %d",
                           p->sample.bias_tokens[i], n_vocab);
    return pl_sample_check(&p->sample, err);
}

/* Lists that the caller's parameters point to. False: no memory; what was taken is in r. */
static bool own_sample(pl_request *r)
{
    if (!pl_sample_params_own(&r->sample, &r->sample_block)) return false;
    size_t n = (size_t)r->sample.n_breakers;
    r->breakers = pl_calloc(n + 1, sizeof *r->breakers);
    if (!r->breakers) return false;
    for (size_t i = 0; i < n; i++)
        r->breakers[i] = (ProtobufCBinaryData){r->sample.breakers[i].size, (uint8_t *)r->sample.breakers[i].data};
    return true;
}

pl_status pl_request_new(pl_request **out, const pl_request_params *p, int32_t n_ctx, int32_t n_vocab, pl_rng *rng,
                         pl_error *err)
{
    *out = NULL;
    PL_TRY(check_params(p, n_ctx, n_vocab, err));
    pl_request *r = pl_calloc(1, sizeof *r);
    int32_t room = n_ctx - p->n_tokens;
    if (p->context_shift) room = INT32_MAX;
    int32_t want = p->max_tokens < 0 || p->max_tokens > room ? room : p->max_tokens;
    /* A short answer never grows the list; a long one grows it by doubling. */
    int32_t cap = p->n_tokens + (want < 256 ? want : 256);
    int32_t *tokens = pl_calloc((size_t)cap, sizeof *tokens);
    if (r) r->sample = p->sample;
    if (!r || !tokens || !own_sample(r)) {
        if (r) pl_free(r->sample_block);
        pl_free(r);
        pl_free(tokens);
        return pl_fail(err, PL_ERR_NO_MEMORY, "request of %d tokens", p->n_tokens);
    }
    memcpy(tokens, p->tokens, (size_t)p->n_tokens * sizeof *tokens);
    r->tokens = tokens;
    r->tokens_cap = cap;
    r->n_prompt = r->n_tokens = p->n_tokens;
    r->max_tokens = want;
    r->ignore_eos = p->ignore_eos;
    r->no_cache = p->no_cache;
    memcpy(r->adapters, p->adapters, sizeof r->adapters);
    for (uint32_t i = 0; i < PL_ADAPTERS_MAX; i++) {
        if (p->adapters[i] == 0) continue;
        Paceline__Adapter *a = r->adapter_list[r->n_adapters] = &r->adapter_records[r->n_adapters];
        r->n_adapters++;
        paceline__adapter__init(a);
        a->index = i;
        a->scale = p->adapters[i];
    }
    r->context_shift = p->context_shift;
    r->n_keep = p->n_keep < 0 || p->n_keep > p->n_tokens ? p->n_tokens : p->n_keep;
    r->slot = -1;
    if (p->id)
        memcpy(r->id, p->id, strlen(p->id));
    else
        snprintf(r->id, sizeof r->id, "req-%016" PRIx64, pl_rng_u64(rng));
    if (!p->has_seed) r->sample.seed = pl_rng_u64(rng);
    *out = r;
    return PL_OK;
}

void pl_request_free(pl_request *r)
{
    if (!r) return;
    pl_free(r->tokens);
    pl_free(r->breakers);
    pl_free(r->sample_block);
    pl_free(r);
}

void pl_request_shift(pl_request *r)
{
    /* Something has to go, or the text would be as long as before. */
    int32_t keep = r->n_keep < r->n_tokens / 2 ? r->n_keep : r->n_tokens / 2, out = (r->n_tokens - keep + 1) / 2;
    memmove(r->tokens + keep, r->tokens + keep + out, (size_t)(r->n_tokens - keep - out) * sizeof *r->tokens);
    r->n_tokens -= out;
    if (r->n_prompt > keep) r->n_prompt = r->n_prompt - out > keep ? r->n_prompt - out : keep;
    r->n_shifted += (uint64_t)out;
}

bool pl_request_append(pl_request *r, const pl_sampled *token)
{
    if (r->n_tokens == r->tokens_cap) {
        int32_t cap = r->tokens_cap < INT32_MAX / 2 ? r->tokens_cap * 2 : INT32_MAX;
        int32_t *grown = pl_realloc(r->tokens, (size_t)cap * sizeof *grown);
        if (!grown) return false;
        r->tokens = grown;
        r->tokens_cap = cap;
    }
    r->tokens[r->n_tokens++] = token->token;
    r->n_emitted++;
    r->n_sample_state = token->n_state;
    memcpy(r->sample_state, token->state, token->n_state);
    return true;
}

void pl_request_record(const pl_request *r, Paceline__Sequence *out, Paceline__Params *params)
{
    paceline__params__init(params);
    params->temperature = r->sample.temperature;
    params->top_k = r->sample.top_k;
    params->top_p = r->sample.top_p;
    params->min_p = r->sample.min_p;
    params->repeat_penalty = r->sample.repeat_penalty;
    params->repeat_last_n = r->sample.repeat_last_n;
    params->n_logprobs = r->sample.n_logprobs;
    params->dynatemp_range = r->sample.dynatemp_range;
    params->dynatemp_exponent = r->sample.dynatemp_exponent;
    params->typical_p = r->sample.typical_p;
    params->top_n_sigma = r->sample.top_n_sigma;
    params->xtc_probability = r->sample.xtc_probability;
    params->xtc_threshold = r->sample.xtc_threshold;
    params->frequency_penalty = r->sample.frequency_penalty;
    params->presence_penalty = r->sample.presence_penalty;
    params->dry_multiplier = r->sample.dry_multiplier;
    params->dry_base = r->sample.dry_base;
    params->dry_allowed_length = r->sample.dry_allowed_length;
    params->dry_last_n = r->sample.dry_last_n;
    params->dry_breakers = r->breakers;
    params->n_dry_breakers = (size_t)r->sample.n_breakers;
    params->mirostat = (uint32_t)r->sample.mirostat;
    params->mirostat_tau = r->sample.mirostat_tau;
    params->mirostat_eta = r->sample.mirostat_eta;
    size_t n_steps = 0;
    while (n_steps < PL_STEPS_MAX && r->sample.chain[n_steps] != PL_STEP_END) n_steps++;
    params->samplers = (ProtobufCBinaryData){n_steps, (uint8_t *)r->sample.chain};
    params->bias_token = (int32_t *)r->sample.bias_tokens;
    params->bias = (float *)r->sample.bias;
    params->n_bias_token = params->n_bias = (size_t)r->sample.n_bias;
    params->choice = r->sample.choice;
    params->grammar = (ProtobufCBinaryData){r->sample.grammar.size, (uint8_t *)r->sample.grammar.data};
    paceline__sequence__init(out);
    out->request_id = (char *)r->id;
    out->prompt = r->tokens;
    out->n_prompt = (size_t)r->n_prompt;
    out->emitted = r->tokens + r->n_prompt;
    out->n_emitted = (size_t)(r->n_tokens - r->n_prompt);
    out->n_shifted = r->n_shifted;
    out->adapters = (Paceline__Adapter **)r->adapter_list;
    out->n_adapters = r->n_adapters;
    out->params = params;
    out->seed = r->sample.seed;
    out->max_tokens = (uint32_t)r->max_tokens;
    out->sampler_state = (ProtobufCBinaryData){r->n_sample_state, (uint8_t *)r->sample_state};
}
