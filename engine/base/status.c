#include "engine/base/status.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    int exit_code; /* sysexits.h where it has a word */
    int http;
} kinds[PL_STATUS_COUNT] = {
    [PL_OK] = {"ok", 0, 200},
    [PL_ERR_INVALID] = {"invalid", 64, 400},
    [PL_ERR_FORMAT] = {"format", 65, 400},
    [PL_ERR_UNSUPPORTED] = {"unsupported", 69, 400},
    [PL_ERR_NOT_FOUND] = {"not_found", 66, 404},
    [PL_ERR_NO_MEMORY] = {"no_memory", 71, 503},
    [PL_ERR_BUDGET] = {"budget", 73, 503},
    [PL_ERR_IO] = {"io", 74, 500},
    [PL_ERR_CLOSED] = {"closed", 76, 503},
    [PL_ERR_TIMEOUT] = {"timeout", 75, 504},
    [PL_ERR_AUTH] = {"auth", 77, 401},
    [PL_ERR_STALE] = {"stale", 76, 409},
    [PL_ERR_CANCELLED] = {"cancelled", 130, 499},
    [PL_ERR_INTERNAL] = {"internal", 70, 500},
};

static bool known(pl_status s)
{
    return (unsigned)s < PL_STATUS_COUNT;
}

const char *pl_status_name(pl_status s)
{
    return known(s) ? kinds[s].name : "unknown";
}
int pl_status_exit_code(pl_status s)
{
    return known(s) ? kinds[s].exit_code : 70;
}
int pl_status_http(pl_status s)
{
    return known(s) ? kinds[s].http : 500;
}

pl_status pl_fail(pl_error *err, pl_status s, const char *fmt, ...)
{
    if (!err) return s;
    err->status = s;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    return s;
}

pl_status pl_note(pl_error *err, pl_status s, const char *fmt, ...)
{
    if (!err) return s;
    char old[sizeof err->text];
    memcpy(old, err->text, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    err->status = s;
    if (n < 0) return s;
    for (const char *part = ": "; part; part = part == old ? NULL : old)
        for (const char *p = part; *p && (size_t)n + 1 < sizeof err->text; p++) err->text[n++] = *p;
    if ((size_t)n < sizeof err->text) err->text[n] = 0;
    return s;
}

_Noreturn void pl_assert_failed(const char *cond, const char *file, int line)
{
    fprintf(stderr, "paceline: %s:%d: assertion failed: %s\n", file, line, cond);
    abort();
}
