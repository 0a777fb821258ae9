#include <check.h>
#include <stdlib.h>

Suite *isa_suite(void);

int main(void)
{
    SRunner *r = srunner_create(isa_suite());
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
