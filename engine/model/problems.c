#include "engine/model/problems.h"

#include <stdarg.h>
#include <stdio.h>

/* Beyond this many bytes an error would be cut anyway (pl_error holds 1024); the rest is counted. */
#define TEXT_MAX 800

static void add(pl_problems *p, const char *fmt, va_list args)
{
    p->n++;
    if (p->text.size >= TEXT_MAX) return;
    p->n_shown++;
    char line[256];
    vsnprintf(line, sizeof line, fmt, args);
    pl_buf_printf(&p->text, "%s%s", p->text.size ? "; " : "", line);
}

void pl_problem(pl_problems *p, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    add(p, fmt, args);
    va_end(args);
    p->unsupported = false;
}

void pl_problem_unsupported(pl_problems *p, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    if (p->n == 0) p->unsupported = true;
    add(p, fmt, args);
    va_end(args);
}

pl_status pl_problems_done(pl_problems *p, const char *what, pl_error *err)
{
    pl_status s = PL_OK;
    if (p->n > 0) {
        s = p->unsupported ? PL_ERR_UNSUPPORTED : PL_ERR_FORMAT;
        s = pl_fail(err, s, "%s: %d problem%s: %.*s%s", what, p->n, p->n == 1 ? "" : "s",
                    PL_STR_ARG(pl_buf_str(&p->text)), p->n > p->n_shown ? "; and more" : "");
    }
    pl_buf_fini(&p->text);
    return s;
}
