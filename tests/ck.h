/* What every suite needs beside Check itself. */
#pragma once

#include "engine/base/status.h"
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
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

/* The path of a file below PACELINE_TEST_DATA in buf; NULL, with a line that names the test, when that is unset or the file is not there. */
static inline const char *ck_test_data(const char *test, const char *file, char *buf, size_t size)
{
    const char *root = getenv("PACELINE_TEST_DATA");
    FILE *f = NULL;
    if (root && (size_t)snprintf(buf, size, "%s/%s", root, file) < size) f = fopen(buf, "rb");
    if (!f) {
        printf("SKIP %s: %s%s\n", test, root ? "no file " : "PACELINE_TEST_DATA is not set, wanted ", file);
        fflush(stdout);
        return NULL;
    }
    fclose(f);
    return buf;
}

/* Runs what r holds, frees it, and gives the exit code. */
static inline int ck_run(SRunner *r)
{
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
