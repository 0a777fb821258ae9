#include "tests/fixtures/fixtures.h"
#include "tests/unit/stage/suites.h"

int main(void)
{
    return ck_run(stage_suite(), store_suite(), NULL);
}
