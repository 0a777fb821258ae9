#include "tests/fixtures/fixtures.h"

Suite *stage_suite(void);
Suite *adapters_suite(void);

int main(void)
{
    return ck_run(stage_suite(), adapters_suite(), NULL);
}
