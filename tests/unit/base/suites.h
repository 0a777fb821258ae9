/* The suites of engine/base. */
#pragma once

#include <stdio.h>

#include "tests/fixtures/fixtures.h"

Suite *memory_suite(void);
Suite *text_suite(void);
Suite *json_suite(void);
Suite *system_suite(void);
Suite *pool_suite(void);
