#pragma once

#include <check.h>

Suite *vocab_suite(void);
Suite *jinja_suite(void);
