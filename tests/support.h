/* What the Check suites share beside Check itself. */
#pragma once

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/status.h"

/* call gives the status; err is the pl_error that it wrote, whose text is shown when the status is another. */
#define ck_status(call, expected, err)                                                                                 \
    do {                                                                                                               \
        pl_status ck_s_ = (call);                                                                                      \
        ck_assert_msg(ck_s_ == (expected), "%s: %s, not %s: %s", #call, pl_status_name(ck_s_), pl_status_name(expected), (err).text); \
    } while (0)
#define ck_ok(call, err) ck_status(call, PL_OK, err)
/* err names what it must name. */
#define ck_says(err, part) ck_assert_msg(strstr((err).text, (part)) != NULL, "\"%s\" does not say \"%s\"", (err).text, (part))

/* The path of a file below PACELINE_TEST_DATA in buf; NULL, with a line that names the test, when that is unset or the file is not there. */
static inline const char *test_data(const char *test, const char *file, char *buf, size_t size)
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
static inline int run_suites(SRunner *r)
{
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
