#include "tests/support.h"
#include "tests/unit/text/suites.h"

int main(void)
{
    SRunner *r = srunner_create(vocab_suite());
    return run_suites(r);
}
