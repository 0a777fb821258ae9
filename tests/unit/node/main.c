#include "engine/base/log.h"
#include "tests/fixtures/fixtures.h"

Suite *node_suite(void);
Suite *engine_suite(void);

int main(void)
{
    /* What goes wrong on purpose would fill the log. */
    pl_log_setup(PL_LOG_ERROR, PL_LOG_TEXT);
    return ck_run(node_suite(), engine_suite(), NULL);
}
