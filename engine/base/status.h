/* What kind of failure (pl_status, for code) and what, where and with which numbers (pl_error, for people).
 *
 * A function that can fail returns pl_status and takes a pl_error* as its last argument. pl_fail writes the
 * error, pl_note puts context in front, PL_TRY passes it on where nothing has to be undone.
 * Threads: a pl_error belongs to its caller; nothing here is shared. */
#pragma once

#include <stddef.h>

#define PL_MUST_CHECK              __attribute__((warn_unused_result))
#define PL_PRINTF(fmt_at, args_at) __attribute__((format(printf, fmt_at, args_at)))

/* The kinds name who has to act. The numbers go over the wire and never change. */
typedef enum pl_status {
    PL_OK = 0,
    PL_ERR_INVALID = 1,     /* the caller or user asked for something impossible */
    PL_ERR_FORMAT = 2,      /* a file or a peer broke its format */
    PL_ERR_UNSUPPORTED = 3, /* well formed, but not known to this build */
    PL_ERR_NOT_FOUND = 4,
    PL_ERR_NO_MEMORY = 5,
    PL_ERR_BUDGET = 6, /* the plan does not fit */
    PL_ERR_IO = 7,
    PL_ERR_CLOSED = 8, /* the other end is gone */
    PL_ERR_TIMEOUT = 9,
    PL_ERR_AUTH = 10,
    PL_ERR_STALE = 11, /* of an older epoch */
    PL_ERR_CANCELLED = 12,
    PL_ERR_INTERNAL = 13, /* our own bug */
    PL_STATUS_COUNT
} pl_status;

/* Room for one sentence with its context; longer text is cut at the end, never overrun. */
typedef struct pl_error {
    pl_status status;
    char text[1024];
} pl_error;

/* The word for s, "budget" for PL_ERR_BUDGET; "unknown" for a number outside the enum. */
const char *pl_status_name(pl_status s);

/* The exit code and the HTTP status code that stand for s. */
int pl_status_exit_code(pl_status s);
int pl_status_http(pl_status s);

/* Writes the text into err (NULL is allowed) and returns s. */
pl_status pl_fail(pl_error *err, pl_status s, const char *fmt, ...) PL_PRINTF(3, 4);

/* Puts "text: " in front of what err holds and returns s. */
pl_status pl_note(pl_error *err, pl_status s, const char *fmt, ...) PL_PRINTF(3, 4);

#define PL_TRY(call)                                                                                                   \
    do {                                                                                                               \
        pl_status pl_try_s_ = (call);                                                                                  \
        if (pl_try_s_ != PL_OK) return pl_try_s_;                                                                      \
    } while (0)

/* For what only our own bug can cause. Stays on in every build. */
#define PL_ASSERT(cond) ((cond) ? (void)0 : pl_assert_failed(#cond, __FILE__, __LINE__))
_Noreturn void pl_assert_failed(const char *cond, const char *file, int line);
