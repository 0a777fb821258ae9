#include "engine/model/problems.h"

#include <stdarg.h>
#include <stdio.h>

/* Beyond this many bytes an error would be cut anyway (pl_error holds 1024); the rest is counted. */
#define TEXT_MAX 800

bool pl_problems_has_room(const pl_problems *p)
{
    return p->text.size < TEXT_MAX;
}

static void add(pl_problems *p, const char *fmt, va_list args)
{
    p->n++;
    if (!pl_problems_has_room(p)) return;
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
    if (p->text.failed || p->keys.failed) {
        s = pl_fail(err, PL_ERR_NO_MEMORY, "%s: no memory to check it", what);
    } else if (p->n > 0) {
        s = p->unsupported ? PL_ERR_UNSUPPORTED : PL_ERR_FORMAT;
        s = pl_fail(err, s, "%s: %d problem%s: %.*s%s", what, p->n, p->n == 1 ? "" : "s",
                    PL_STR_ARG(pl_buf_str(&p->text)), p->n > p->n_shown ? "; and more" : "");
    }
    pl_problems_fini(p);
    return s;
}

void pl_problems_fini(pl_problems *p)
{
    pl_buf_fini(&p->text);
    pl_buf_fini(&p->keys);
}

#define NAME_MAX_BYTES 96 /* longer names are compared by their beginning */

void pl_nearest_try(pl_nearest *n, pl_str name)
{
    size_t rows = n->to.size < NAME_MAX_BYTES ? n->to.size : NAME_MAX_BYTES;
    size_t columns = name.size < NAME_MAX_BYTES ? name.size : NAME_MAX_BYTES;
    /* Wagner and Fischer 1974, a row at a time. */
    size_t distance[NAME_MAX_BYTES + 1];
    for (size_t k = 0; k <= columns; k++) distance[k] = k;
    for (size_t i = 1; i <= rows; i++) {
        size_t diagonal = distance[0];
        distance[0] = i;
        for (size_t k = 1; k <= columns; k++) {
            size_t change = diagonal + (n->to.data[i - 1] != name.data[k - 1]);
            size_t drop = distance[k] + 1, insert = distance[k - 1] + 1;
            diagonal = distance[k];
            distance[k] = change < drop ? change : drop;
            if (insert < distance[k]) distance[k] = insert;
        }
    }
    size_t d = distance[columns];
    if (d * 3 > rows || (n->name.size > 0 && d >= n->distance)) return;
    n->name = name;
    n->distance = d;
}
