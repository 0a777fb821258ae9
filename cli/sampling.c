#include "cli/sampling.h"

#include <errno.h>
#include <stdlib.h>

#include "engine/base/file.h"
#include "engine/sample/json_schema.h"

/* "ID+BIAS" or "ID-BIAS", as llama.cpp has it; "ID-inf" bans the token. */
static pl_status add_bias(sampling *s, const char *text, pl_error *err)
{
    pl_sample_params *p = &s->params;
    if (p->n_bias == PL_BIAS_MAX)
        return pl_fail(err, PL_ERR_INVALID, "--logit-bias is given more than %d times", PL_BIAS_MAX);
    char *sign = NULL, *end = NULL;
    errno = 0;
    long token = strtol(text, &sign, 10);
    float bias = sign != text && (*sign == '+' || *sign == '-') ? strtof(sign, &end) : 0;
    if (!end || end == sign || *end || errno || token < 0 || token > INT32_MAX)
        return pl_fail(err, PL_ERR_INVALID, "--logit-bias %s: not a token's number with +BIAS or -BIAS behind it",
                       text);
    s->bias_tokens[p->n_bias] = (int32_t)token;
    s->bias[p->n_bias++] = bias;
    return PL_OK;
}

/* With \n, \t, \" and the like as in C. */
static pl_status add_breaker(sampling *s, const char *text, pl_error *err)
{
    static const char from[] = "nrt", to[] = "\n\r\t";
    pl_sample_params *p = &s->params;
    if (p->n_breakers == PL_BREAKERS_MAX)
        return pl_fail(err, PL_ERR_INVALID, "--dry-sequence-breaker is given more than %d times", PL_BREAKERS_MAX);
    char *out = s->breaker_bytes[p->n_breakers];
    size_t n = 0;
    for (const char *at = text; *at; at++) {
        char c = *at;
        if (c == '\\' && at[1]) {
            c = *++at;
            const char *known = strchr(from, c);
            if (known) c = to[known - from];
        }
        if (n == PL_BREAKER_BYTES_MAX)
            return pl_fail(err, PL_ERR_INVALID, "--dry-sequence-breaker %s: more than %d bytes", text,
                           PL_BREAKER_BYTES_MAX);
        out[n++] = c;
    }
    s->breakers[p->n_breakers++] = (pl_str){out, n};
    return PL_OK;
}

static pl_status read_breakers(sampling *s, const cli_options *o, pl_error *err)
{
    if (o->dry_breakers.n == 0) return PL_OK; /* the defaults stay */
    s->params.breakers = s->breakers;
    s->params.n_breakers = 0;
    if (o->dry_breakers.n == 1 && strcmp(o->dry_breakers.items[0], "none") == 0) return PL_OK;
    for (int i = 0; i < o->dry_breakers.n; i++) PL_TRY(add_breaker(s, o->dry_breakers.items[i], err));
    return PL_OK;
}

static pl_status read_grammar(sampling *s, const cli_options *o, pl_error *err)
{
    int n = (o->grammar != NULL) + (o->grammar_file != NULL) + (o->json_schema != NULL) + (o->json_schema_file != NULL);
    if (n == 0) return PL_OK;
    if (n > 1)
        return pl_fail(err, PL_ERR_INVALID,
                       "--grammar, --grammar-file, --json-schema and --json-schema-file: only one of them");
    pl_buf file = {0};
    const char *path = o->grammar_file ? o->grammar_file : o->json_schema_file;
    pl_status status = path ? pl_file_read(&file, path, PL_GRAMMAR_BYTES_MAX, err) : PL_OK;
    pl_str text = o->grammar ? pl_str_from(o->grammar) : path ? pl_buf_str(&file) : pl_str_from(o->json_schema);
    if (status == PL_OK && (o->json_schema || o->json_schema_file))
        status = pl_json_schema_text_grammar(text, &s->grammar, err);
    else if (status == PL_OK && !pl_buf_add_str(&s->grammar, text))
        status = pl_fail(err, PL_ERR_NO_MEMORY, "no memory for a grammar");
    pl_buf_fini(&file);
    if (status != PL_OK) return path ? pl_note(err, status, "%s", path) : status;
    s->params.grammar = pl_buf_str(&s->grammar);
    return PL_OK;
}

static pl_status read_all(sampling *s, const cli_options *o, pl_error *err)
{
    pl_sample_params *p = &s->params;
    *p = pl_sample_defaults();
    p->temperature = o->temperature;
    p->dynatemp_range = o->dynatemp_range;
    p->dynatemp_exponent = o->dynatemp_exponent;
    p->top_k = o->top_k < 0 ? 0 : o->top_k; /* both 0 and -1 are in use for "off" */
    p->top_p = o->top_p;
    p->min_p = o->min_p;
    p->typical_p = o->typical_p;
    p->top_n_sigma = o->top_n_sigma;
    p->xtc_probability = o->xtc_probability;
    p->xtc_threshold = o->xtc_threshold;
    p->repeat_penalty = o->repeat_penalty;
    p->frequency_penalty = o->frequency_penalty;
    p->presence_penalty = o->presence_penalty;
    p->repeat_last_n = o->repeat_last_n;
    p->dry_multiplier = o->dry_multiplier;
    p->dry_base = o->dry_base;
    p->dry_allowed_length = o->dry_allowed_length;
    p->dry_last_n = o->dry_last_n;
    p->mirostat = o->mirostat;
    p->mirostat_tau = o->mirostat_tau;
    p->mirostat_eta = o->mirostat_eta;
    p->seed = o->seed;
    p->bias_tokens = s->bias_tokens;
    p->bias = s->bias;
    for (int i = 0; i < o->logit_bias.n; i++) PL_TRY(add_bias(s, o->logit_bias.items[i], err));
    PL_TRY(read_breakers(s, o, err));
    if (o->samplers && pl_sample_chain_parse(p->chain, pl_str_from(o->samplers), err) != PL_OK)
        return pl_note(err, PL_ERR_INVALID, "--samplers");
    if (o->sampler_seq && pl_sample_chain_letters(p->chain, pl_str_from(o->sampler_seq), err) != PL_OK)
        return pl_note(err, PL_ERR_INVALID, "--sampler-seq");
    PL_TRY(read_grammar(s, o, err));
    return pl_sample_check(p, err);
}

pl_status sampling_open(sampling *s, const cli_options *o, pl_error *err)
{
    memset(s, 0, sizeof *s);
    pl_status status = read_all(s, o, err);
    if (status != PL_OK) sampling_close(s);
    return status;
}

void sampling_close(sampling *s)
{
    pl_buf_fini(&s->grammar);
    memset(s, 0, sizeof *s);
}
