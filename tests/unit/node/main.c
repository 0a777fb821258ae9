#include "engine/base/log.h"

#include <check.h>
#include <stdlib.h>

Suite *node_suite(void);

int main(void)
{
    /* What goes wrong on purpose would fill the log. */
    pl_log_setup(PL_LOG_ERROR, PL_LOG_TEXT);
    SRunner *r = srunner_create(node_suite());
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
