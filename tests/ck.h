/* What every suite needs beside Check itself. */
#pragma once

#include "engine/base/status.h"
#include <check.h>
#include <string.h>

/* The status that a call gave; err is printed when it is another. */
#define ck_status(got, expected, err)                                                                                  \
    do {                                                                                                               \
        pl_status ck_got_ = (got), ck_expected_ = (expected);                                                          \
        ck_assert_msg(ck_got_ == ck_expected_, "%s is %s, not %s (%s)", #got, pl_status_name(ck_got_),                 \
                      pl_status_name(ck_expected_), (err).text);                                                       \
    } while (0)

#define ck_ok(got, err) ck_status(got, PL_OK, err)

/* The error says this. */
#define ck_says(err, words)                                                                                            \
    ck_assert_msg(strstr((err).text, (words)) != NULL, "\"%s\" does not say \"%s\"", (err).text, (words))
