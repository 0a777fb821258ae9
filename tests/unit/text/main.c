#include "tests/fixtures/fixtures.h"
#include "tests/unit/text/suites.h"

int main(void)
{
    return ck_run(vocab_suite(), jinja_suite(), tool_calls_suite(), NULL);
}
