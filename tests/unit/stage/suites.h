#pragma once

#include <check.h>

Suite *stage_suite(void);
Suite *store_suite(void);
