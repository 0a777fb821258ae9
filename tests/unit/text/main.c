#include "tests/ck.h"
#include "tests/unit/text/suites.h"

int main(void)
{
    SRunner *r = srunner_create(vocab_suite());
    srunner_add_suite(r, jinja_suite());
    return ck_run(r);
}
