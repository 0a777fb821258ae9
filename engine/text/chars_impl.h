/* Characters of UTF-8, private to this folder. */
#pragma once

#include "engine/base/buf.h"

/* The character at byte i < s.size and its size. A byte that begins none gives U+FFFD and 1. */
size_t pl_char_at(pl_str s, size_t i, int32_t *c);
void pl_char_put(pl_buf *b, int32_t c);
/* Unicode's White_Space. */
bool pl_char_is_space(int32_t c);
