#include "engine/text/chars_impl.h"

#include <utf8proc.h>

size_t pl_char_at(pl_str s, size_t i, int32_t *c)
{
    utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)s.data + i, (utf8proc_ssize_t)(s.size - i), c);
    if (n >= 1) return (size_t)n;
    *c = 0xfffd;
    return 1;
}

void pl_char_put(pl_buf *b, int32_t c)
{
    utf8proc_uint8_t u[4];
    pl_buf_add(b, u, (size_t)utf8proc_encode_char(c, u));
}

bool pl_char_is_space(int32_t c)
{
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
           c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}
