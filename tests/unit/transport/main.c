#include <check.h>
#include <stdlib.h>

Suite *curve_suite(void);
Suite *loop_uv_suite(void);
Suite *msg_suite(void);
Suite *sim_suite(void);

int main(void)
{
    SRunner *r = srunner_create(sim_suite());
    srunner_add_suite(r, curve_suite());
    srunner_add_suite(r, loop_uv_suite());
    srunner_add_suite(r, msg_suite());
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
