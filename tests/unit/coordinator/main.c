#include "engine/base/log.h"

#include <check.h>
#include <stdlib.h>

Suite *placement_suite(void);
Suite *scheduler_suite(void);
Suite *coordinator_suite(void);

int main(void)
{
    pl_log_setup(PL_LOG_ERROR, PL_LOG_TEXT); /* the suites break things on purpose */
    SRunner *r = srunner_create(placement_suite());
    srunner_add_suite(r, scheduler_suite());
    srunner_add_suite(r, coordinator_suite());
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
