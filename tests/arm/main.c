#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/cpu/isa.h"

Suite *kernels_suite(void);

int main(void)
{
    printf("%s: %s\n", __FILE__, pl_isa_name(pl_isa_detect()));
    SRunner *r = srunner_create(kernels_suite());
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
