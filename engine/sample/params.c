/* What a request may ask for: defaults, bounds, copies. */
#include <float.h>
#include <math.h>

#include "engine/base/alloc.h"
#include "engine/sample/grammar.h"
#include "engine/sample/sample_impl.h"

pl_sample_params pl_sample_defaults(void)
{
    static const pl_str breakers[] = {{"\n", 1}, {":", 1}, {"\"", 1}, {"*", 1}};
    return (pl_sample_params){.temperature = 0.8f,
                              .dynatemp_exponent = 1,
                              .top_k = 40,
                              .top_p = 0.95f,
                              .min_p = 0.05f,
                              .typical_p = 1,
                              .top_n_sigma = -1,
                              .xtc_threshold = 0.1f,
                              .repeat_penalty = 1.0f,
                              .repeat_last_n = 64,
                              .dry_base = 1.75f,
                              .dry_allowed_length = 2,
                              .dry_last_n = -1,
                              .mirostat_tau = 5,
                              .mirostat_eta = 0.1f,
                              .n_logprobs = -1,
                              .breakers = breakers,
                              .n_breakers = sizeof breakers / sizeof *breakers};
}

static pl_status check_f32(const char *name, float value, float low, float high, pl_error *err)
{
    /* Written so that NaN fails. */
    if (value >= low && value <= high) return PL_OK;
    return pl_fail(err, PL_ERR_INVALID, "%s %g is not between %g and %g", name, (double)value, (double)low,
                   (double)high);
}

static pl_status check_i32(const char *name, int32_t value, int32_t low, int32_t high, pl_error *err)
{
    if (value >= low && value <= high) return PL_OK;
    if (high == INT32_MAX) return pl_fail(err, PL_ERR_INVALID, "%s %d is less than %d", name, (int)value, (int)low);
    return pl_fail(err, PL_ERR_INVALID, "%s %d is not between %d and %d", name, (int)value, (int)low, (int)high);
}

static pl_status check_chain(const uint8_t chain[PL_STEPS_MAX], pl_error *err)
{
    for (int i = 0; i < PL_STEPS_MAX && chain[i] != PL_STEP_END; i++)
        if (chain[i] >= PL_STEP_COUNT)
            return pl_fail(err, PL_ERR_INVALID, "samplers: step %d has the number %d, which is not known", i + 1,
                           (int)chain[i]);
    return PL_OK;
}

static pl_status check_lists(const pl_sample_params *p, pl_error *err)
{
    PL_TRY(check_i32("logit_bias: number of entries", p->n_bias, 0, PL_BIAS_MAX, err));
    for (int32_t i = 0; i < p->n_bias; i++)
        if (!(p->bias[i] >= -FLT_MAX && p->bias[i] <= FLT_MAX) && p->bias[i] != -INFINITY)
            return pl_fail(err, PL_ERR_INVALID, "logit_bias of token %d is %g", (int)p->bias_tokens[i],
                           (double)p->bias[i]);
    PL_TRY(check_i32("dry_sequence_breakers: number of texts", p->n_breakers, 0, PL_BREAKERS_MAX, err));
    for (int32_t i = 0; i < p->n_breakers; i++)
        if (p->breakers[i].size < 1 || p->breakers[i].size > PL_BREAKER_BYTES_MAX)
            return pl_fail(err, PL_ERR_INVALID, "dry_sequence_breakers: text %d has %zu bytes, not 1 to %d", (int)i + 1,
                           p->breakers[i].size, PL_BREAKER_BYTES_MAX);
    return PL_OK;
}

pl_status pl_sample_check_numbers(const pl_sample_params *p, pl_error *err)
{
    PL_TRY(check_f32("temperature", p->temperature, 0, PL_PENALTY_MAX, err));
    PL_TRY(check_f32("dynatemp_range", p->dynatemp_range, 0, PL_PENALTY_MAX, err));
    PL_TRY(check_f32("dynatemp_exponent", p->dynatemp_exponent, 0, PL_PENALTY_MAX, err));
    PL_TRY(check_i32("top_k", p->top_k, 0, INT32_MAX, err));
    PL_TRY(check_f32("top_p", p->top_p, 0, 1, err));
    PL_TRY(check_f32("min_p", p->min_p, 0, 1, err));
    PL_TRY(check_f32("typical_p", p->typical_p, 0, 1, err));
    PL_TRY(check_f32("top_n_sigma", p->top_n_sigma, -PL_PENALTY_MAX, PL_PENALTY_MAX, err));
    PL_TRY(check_f32("xtc_probability", p->xtc_probability, 0, 1, err));
    PL_TRY(check_f32("xtc_threshold", p->xtc_threshold, 0, 1, err));
    if (!(p->repeat_penalty > 0 && p->repeat_penalty <= PL_PENALTY_MAX))
        return pl_fail(err, PL_ERR_INVALID, "repeat_penalty %g is not above 0, at most %g", (double)p->repeat_penalty,
                       (double)PL_PENALTY_MAX);
    PL_TRY(check_f32("frequency_penalty", p->frequency_penalty, -PL_PENALTY_MAX, PL_PENALTY_MAX, err));
    PL_TRY(check_f32("presence_penalty", p->presence_penalty, -PL_PENALTY_MAX, PL_PENALTY_MAX, err));
    PL_TRY(check_i32("repeat_last_n", p->repeat_last_n, -1, INT32_MAX, err));
    PL_TRY(check_f32("dry_multiplier", p->dry_multiplier, 0, PL_PENALTY_MAX, err));
    if (p->dry_multiplier > 0) PL_TRY(check_f32("dry_base", p->dry_base, 1, PL_PENALTY_MAX, err));
    PL_TRY(check_i32("dry_allowed_length", p->dry_allowed_length, 0, INT32_MAX, err));
    PL_TRY(check_i32("dry_penalty_last_n", p->dry_last_n, -1, INT32_MAX, err));
    PL_TRY(check_i32("mirostat", p->mirostat, 0, 2, err));
    PL_TRY(check_f32("mirostat_tau", p->mirostat_tau, 0, PL_PENALTY_MAX, err));
    PL_TRY(check_f32("mirostat_eta", p->mirostat_eta, 0, PL_PENALTY_MAX, err));
    PL_TRY(check_i32("n_logprobs", p->n_logprobs, -1, PL_LOGPROBS_MAX, err));
    PL_TRY(check_chain(p->chain, err));
    PL_TRY(check_i32("grammar: bytes", p->grammar.size < INT32_MAX ? (int32_t)p->grammar.size : INT32_MAX, 0,
                     PL_GRAMMAR_BYTES_MAX, err));
    return check_lists(p, err);
}

pl_status pl_sample_check(const pl_sample_params *p, pl_error *err)
{
    PL_TRY(pl_sample_check_numbers(p, err));
    if (p->grammar.size == 0) return PL_OK;
    pl_grammar *g;
    PL_TRY(pl_grammar_new(&g, p->grammar, err));
    pl_grammar_free(g);
    return PL_OK;
}

bool pl_sample_params_own(pl_sample_params *p, void **block)
{
    *block = NULL;
    /* By alignment: views, numbers, texts. */
    size_t views = (size_t)p->n_breakers * sizeof *p->breakers, bias = (size_t)p->n_bias * sizeof *p->bias;
    size_t size = views + 2 * bias + p->grammar.size;
    for (int32_t i = 0; i < p->n_breakers; i++) size += p->breakers[i].size;
    if (size == 0) return true;
    char *at = pl_alloc(size);
    if (!at) return false;
    *block = at;
    pl_str *breakers = (pl_str *)(void *)at;
    char *numbers = at + views, *text = numbers + 2 * bias;
    for (int32_t i = 0; i < p->n_breakers; i++) {
        breakers[i] = (pl_str){text, p->breakers[i].size};
        memcpy(text, p->breakers[i].data, p->breakers[i].size);
        text += p->breakers[i].size;
    }
    p->breakers = breakers;
    if (bias > 0) {
        memcpy(numbers, p->bias_tokens, bias);
        memcpy(numbers + bias, p->bias, bias);
        p->bias_tokens = (const int32_t *)(void *)numbers;
        p->bias = (const float *)(void *)(numbers + bias);
    }
    if (p->grammar.size > 0) {
        memcpy(text, p->grammar.data, p->grammar.size);
        p->grammar.data = text;
    }
    return true;
}
