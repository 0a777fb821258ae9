#include "engine/base/bytes.h"

size_t pl_utf8_valid_prefix(pl_str s)
{
    const uint8_t *b = (const uint8_t *)s.data;
    size_t i = 0;
    while (i < s.size) {
        uint8_t c = b[i];
        if (c < 0x80) {
            i++;
            continue;
        }
        /* The second byte's range keeps out overlong forms, surrogates and what lies above U+10FFFF. */
        size_t n;
        uint8_t low = 0x80, high = 0xBF;
        if (c >= 0xC2 && c <= 0xDF) {
            n = 2;
        } else if (c >= 0xE0 && c <= 0xEF) {
            n = 3;
            if (c == 0xE0) low = 0xA0;
            if (c == 0xED) high = 0x9F;
        } else if (c >= 0xF0 && c <= 0xF4) {
            n = 4;
            if (c == 0xF0) low = 0x90;
            if (c == 0xF4) high = 0x8F;
        } else {
            break;
        }
        if (s.size - i < n || b[i + 1] < low || b[i + 1] > high) break;
        bool whole = true;
        for (size_t k = 2; k < n; k++) whole = whole && (b[i + k] & 0xC0) == 0x80;
        if (!whole) break;
        i += n;
    }
    return i;
}
