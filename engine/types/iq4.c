/* Four bits choose one of 16 levels that stand closer together around zero, as weights do.
 *
 *   IQ4_NL: f16 d, 16 bytes                               x = d * level[q], 32 elements
 *   IQ4_XS: f16 d, u16 upper, 4 bytes lower, 128 bytes    x = (d * (sc - 32)) * level[q], 8 x 32
 *
 * Element i of 32 has the low four bits of byte i, element i + 16 the high four. Sub-block j's six-bit sc has its low
 * four bits in nibble j of lower and its high two at bits 2 j of upper. */
#include "engine/types/fit.h"

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

static void encode_sub(const float *x, const pl_levels *t, float d, uint8_t *qs)
{
    float inverse = pl_inverse(d);
    for (int i = 0; i < SUB / 2; i++)
        qs[i] = (uint8_t)(pl_levels_nearest(t, x[i] * inverse) | pl_levels_nearest(t, x[i + SUB / 2] * inverse) << 4);
}

static void encode_iq4_nl(const float *x, const float *w, const pl_levels *t, uint8_t *b)
{
    pl_put_u16(b, pl_f32_to_f16(pl_fit_levels(x, w, SUB, t)));
    encode_sub(x, t, pl_f16_to_f32(pl_get_u16(b)), b + 2);
}
PL_TYPE_ENCODERS_LEVELS(iq4_nl, SUB, NL_BYTES, pl_iq4_levels)

static void encode_iq4_xs(const float *x, const float *w, const pl_levels *t, uint8_t *b)
{
    float scale[N_XS / SUB], extreme = 0, largest = 0;
    for (int j = 0; j < N_XS / SUB; j++) {
        scale[j] = pl_fit_levels(x + j * SUB, w + j * SUB, SUB, t);
        float a = scale[j] < 0 ? -scale[j] : scale[j];
        if (a > largest) {
            largest = a;
            extreme = scale[j];
        }
    }
    memset(b, 0, XS_BYTES);
    pl_put_u16(b, pl_f32_to_f16(extreme / -32)); /* the integers reach further below zero than above */
    float d = pl_f16_to_f32(pl_get_u16(b)), inverse = pl_inverse(d);
    uint32_t upper = 0;
    for (int j = 0; j < N_XS / SUB; j++) {
        const float *xj = x + j * SUB, *wj = w + j * SUB;
        int sc = pl_round_within(scale[j] * inverse, -32, 31), best = sc;
        float least = pl_levels_error(xj, wj, SUB, t, d * (float)sc);
        for (int other = sc - 1; other <= sc + 1; other += 2) {
            if (other < -32 || other > 31) continue;
            float error = pl_levels_error(xj, wj, SUB, t, d * (float)other);
            if (error < least) {
                least = error;
                best = other;
            }
        }
        b[4 + j / 2] |= (uint8_t)(((best + 32) & 15) << j % 2 * 4);
        upper |= (uint32_t)((best + 32) >> 4) << 2 * j;
        encode_sub(xj, t, d * (float)best, b + 8 + j * SUB / 2);
    }
    pl_put_u16(b + 2, (uint16_t)upper);
}
PL_TYPE_ENCODERS_LEVELS(iq4_xs, N_XS, XS_BYTES, pl_iq4_levels)
