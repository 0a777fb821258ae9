/* Which processors this process may use: -C and -Cr. */
#pragma once

#include <sched.h>

#include "cli/options.h"

/* The processors of "0xF0" (bit i is processor i, with or without 0x) or of "4-7". PL_ERR_INVALID: neither, or none. */
PL_MUST_CHECK pl_status affinity_parse_mask(cpu_set_t *out, const char *text, pl_error *err);
PL_MUST_CHECK pl_status affinity_parse_range(cpu_set_t *out, const char *text, pl_error *err);

/* Binds this thread, and all that it starts from here on, as the options say; with neither of them it does nothing. */
PL_MUST_CHECK pl_status affinity_apply(const cli_options *o, pl_error *err);
