/* The options of sampling, as parameters. */
#pragma once

#include "cli/options.h"
#include "engine/base/buf.h"
#include "engine/sample/sampler.h"

/* What the parameters point to lives here; not to be moved. */
typedef struct sampling {
    pl_sample_params params;
    int32_t bias_tokens[PL_BIAS_MAX];
    float bias[PL_BIAS_MAX];
    pl_str breakers[PL_BREAKERS_MAX];
    pl_buf grammar;
    char breaker_bytes[PL_BREAKERS_MAX][PL_BREAKER_BYTES_MAX];
} sampling;

/* Checks them too. PL_ERR_INVALID names the option. */
PL_MUST_CHECK pl_status sampling_open(sampling *s, const cli_options *o, pl_error *err);
void sampling_close(sampling *s);
