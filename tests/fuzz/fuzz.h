/* Every target is one file that defines this, built either with libFuzzer (meson -Dfuzz=true, clang) or with
 * replay_main.c, which runs it over its corpus. */
#pragma once

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
