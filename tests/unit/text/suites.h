#pragma once

#include <check.h>

Suite *vocab_suite(void);
Suite *jinja_suite(void);
Suite *tool_calls_suite(void);
