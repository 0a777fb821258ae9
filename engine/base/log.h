/* Log lines on stderr: `time level message key=value …`, or one JSON object per line.
 * The message is a short constant; what varies goes into the pairs.
 *
 * Threads: any; a line is written whole. */
#pragma once

#include <stdbool.h>

#include "engine/base/status.h"

typedef enum { PL_LOG_ERROR, PL_LOG_WARN, PL_LOG_INFO, PL_LOG_DEBUG, PL_LOG_TRACE } pl_log_level;
typedef enum { PL_LOG_TEXT, PL_LOG_JSON } pl_log_format;

void pl_log_setup(pl_log_level level, pl_log_format format);
/* "error", "warn", "info", "debug", "trace"; false for another word. */
bool pl_log_level_parse(const char *word, pl_log_level *out);
bool pl_log_on(pl_log_level level);

/* pairs: printf text of `key=value` pairs separated by spaces, a value with spaces in double quotes
 * (use PL_Q for text from outside, which escapes it). "" for none. */
void pl_log(pl_log_level level, const char *message, const char *pairs, ...) PL_PRINTF(3, 4);
#define PL_LOG(level, message, ...)                                                                                    \
    do {                                                                                                               \
        if (pl_log_on(level)) pl_log((level), (message), __VA_ARGS__);                                                 \
    } while (0)

/* s in double quotes, with quotes, backslashes and control bytes escaped, in a rotating thread-local buffer
 * that lasts for the next 8 calls. */
const char *pl_log_quote(const char *s);
#define PL_Q(s) pl_log_quote(s)
