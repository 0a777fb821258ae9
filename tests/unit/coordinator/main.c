#include <check.h>
#include <stdlib.h>

Suite *placement_suite(void);
Suite *scheduler_suite(void);

int main(void)
{
    SRunner *r = srunner_create(placement_suite());
    srunner_add_suite(r, scheduler_suite());
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
