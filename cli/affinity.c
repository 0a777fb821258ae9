#include "cli/affinity.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

pl_status affinity_parse_mask(cpu_set_t *out, const char *text, pl_error *err)
{
    CPU_ZERO(out);
    const char *digits = text[0] == '0' && (text[1] == 'x' || text[1] == 'X') ? text + 2 : text;
    size_t n = strlen(digits);
    for (size_t i = 0; i < n; i++) {
        int c = tolower((unsigned char)digits[n - 1 - i]);
        if (!isxdigit(c) || 4 * i + 3 >= CPU_SETSIZE)
            return pl_fail(err, PL_ERR_INVALID, "--cpu-mask %.40s: not a hexadecimal number of at most %d bits", text, CPU_SETSIZE);
        int value = isdigit(c) ? c - '0' : c - 'a' + 10;
        for (int b = 0; b < 4; b++)
            if (value >> b & 1) CPU_SET(4 * i + (size_t)b, out);
    }
    return CPU_COUNT(out) > 0 ? PL_OK : pl_fail(err, PL_ERR_INVALID, "--cpu-mask %.40s: no processor is in it", text);
}

pl_status affinity_parse_range(cpu_set_t *out, const char *text, pl_error *err)
{
    CPU_ZERO(out);
    char *end;
    errno = 0;
    long first = strtol(text, &end, 10);
    bool ok = isdigit((unsigned char)text[0]) && *end == '-' && isdigit((unsigned char)end[1]);
    long last = ok ? strtol(end + 1, &end, 10) : 0;
    if (!ok || *end || errno || first > last || last >= CPU_SETSIZE)
        return pl_fail(err, PL_ERR_INVALID, "--cpu-range %.40s: two numbers as 4-7, the second at most %d", text, CPU_SETSIZE - 1);
    for (long i = first; i <= last; i++) CPU_SET((size_t)i, out);
    return PL_OK;
}

pl_status affinity_apply(const cli_options *o, pl_error *err)
{
    cpu_set_t wanted, range, have;
    if (!o->cpu_mask && !o->cpu_range) return PL_OK;
    CPU_ZERO(&wanted);
    if (o->cpu_mask) PL_TRY(affinity_parse_mask(&wanted, o->cpu_mask, err));
    if (o->cpu_range) {
        PL_TRY(affinity_parse_range(&range, o->cpu_range, err));
        CPU_OR(&wanted, &wanted, &range);
    }
    /* The kernel takes a set that is there in part; a user who names a processor that is not there has made a mistake. */
    if (sched_getaffinity(0, sizeof have, &have) == 0) {
        cpu_set_t both;
        CPU_AND(&both, &have, &wanted);
        if (!CPU_EQUAL(&both, &wanted))
            return pl_fail(err, PL_ERR_INVALID, "of the %d processors that are asked for, this process may use %d", CPU_COUNT(&wanted),
                           CPU_COUNT(&both));
    }
    if (sched_setaffinity(0, sizeof wanted, &wanted) != 0)
        return pl_fail(err, PL_ERR_IO, "binding to processors: %s", strerror(errno));
    return PL_OK;
}
