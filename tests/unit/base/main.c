#include "tests/unit/base/suites.h"

int main(void)
{
    return ck_run(memory_suite(), text_suite(), json_suite(), system_suite(), pool_suite(), NULL);
}
