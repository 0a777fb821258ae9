/* Four bits choose one of 16 levels that stand closer together around zero, as weights do.
 *
 *   IQ4_NL: f16 d, 16 bytes                               x = d * level[q], 32 elements
 *   IQ4_XS: f16 d, u16 upper, 4 bytes lower, 128 bytes    x = (d * (sc - 32)) * level[q], 8 x 32
 *
 * Element i of 32 has the low four bits of byte i, element i + 16 the high four. Sub-block j's six-bit sc has its low
 * four bits in nibble j of lower and its high two at bits 2 j of upper. */
#include "engine/types/types_impl.h"

enum { SUB = 32, N_XS = 256, XS_BYTES = 136, NL_BYTES = 18 };

const int8_t pl_iq4_levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static void decode_sub(const uint8_t *qs, float d, float *dst)
{
    for (int i = 0; i < SUB / 2; i++) {
        dst[i] = d * (float)pl_iq4_levels[qs[i] & 15];
        dst[i + SUB / 2] = d * (float)pl_iq4_levels[qs[i] >> 4];
    }
}

void pl_iq4_nl_to_float(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += SUB, b += NL_BYTES) decode_sub(b + 2, pl_f16_to_f32(pl_get_u16(b)), dst + at);
}

void pl_iq4_xs_to_float(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += N_XS, b += XS_BYTES) {
        float d = pl_f16_to_f32(pl_get_u16(b));
        uint16_t upper = pl_get_u16(b + 2);
        for (int j = 0; j < N_XS / SUB; j++) {
            int sc = (b[4 + j / 2] >> j % 2 * 4 & 15) | (upper >> 2 * j & 3) << 4;
            decode_sub(b + 8 + j * SUB / 2, d * (float)(sc - 32), dst + at + j * SUB);
        }
    }
}
