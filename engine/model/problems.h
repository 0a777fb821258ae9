/* All that is wrong with a file, gathered into one error: whoever made the file should not have to come back for each
 * line. */
#pragma once

#include "engine/base/buf.h"
#include "engine/base/bytes.h"
#include "engine/base/status.h"

typedef struct pl_problems {
    pl_buf text; /* sentences separated by "; " */
    pl_buf keys; /* those that were asked for, whole, each ended by 0: what else the file has is unknown */
    int n, n_shown;
    bool unsupported; /* at least one is not known to this build, rather than wrong */
} pl_problems;

void pl_problem(pl_problems *p, const char *fmt, ...) PL_PRINTF(2, 3);
/* As pl_problem, for what is well formed but not known to this build. */
void pl_problem_unsupported(pl_problems *p, const char *fmt, ...) PL_PRINTF(2, 3);
/* PL_OK when there was none; PL_ERR_NO_MEMORY when something could not be noted; otherwise PL_ERR_FORMAT
 * (PL_ERR_UNSUPPORTED when nothing is wrong but something is unknown) with all of them. Frees p in any case. */
PL_MUST_CHECK pl_status pl_problems_done(pl_problems *p, const char *what, pl_error *err);
void pl_problems_fini(pl_problems *p);
/* False once more would only be counted: then nothing that costs time needs to be found out. */
bool pl_problems_has_room(const pl_problems *p);

/* The name nearest to another, by the number of bytes to change, drop or insert. */
typedef struct pl_nearest {
    pl_str to;
    pl_str name; /* empty while none was near: a third of its bytes may differ */
    size_t distance;
} pl_nearest;
void pl_nearest_try(pl_nearest *n, pl_str name);
