#include <check.h>
#include <stdlib.h>

Suite *graph_suite(void);
Suite *fuse_suite(void);
Suite *profiler_suite(void);

int main(void)
{
    SRunner *r = srunner_create(graph_suite());
    srunner_add_suite(r, fuse_suite());
    srunner_add_suite(r, profiler_suite());
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
