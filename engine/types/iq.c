/* Blocks of 256 whose elements are chosen several at a time out of a grid (iq_grid.h), with signs and small odd scales.
 *
 *   IQ2_XXS  f16 d, 8 x (4 bytes of index, u32 of 4 x 7 bits of signs and 4 bits of s)                  f = 1/8
 *   IQ2_XS   f16 d, 32 x u16 (9 bits of index, 7 of signs), 8 bytes of 16 x s                           f = 1/8
 *   IQ2_S    f16 d, 32 bytes of index, 32 of signs, 8 of 32 x 2 upper bits of index, 8 of 16 x s        f = 1/8
 *   IQ3_XXS  f16 d, 64 bytes of index, 8 x u32 of 4 x 7 bits of signs and 4 bits of s                   f = 1/4
 *   IQ3_S    f16 d, 64 bytes of index, 8 of 64 x the ninth bit, 32 of signs, 4 of 8 x s                 f = 1
 *   IQ1_S    f16 d, 32 bytes of index, 8 x u16 of 4 x 3 upper bits, 3 bits of s and the shift's sign    f = 1/8
 *   IQ1_M    32 bytes of index, 16 of 32 x (3 upper bits, the shift's sign), 4 x u16 of 4 x 3 bits of s and
 *            4 bits of the f16 d, the lowest first                                                      f = 1/8
 *
 * There are 8 or 16 scales in a block. x = (d * f) * (2 s + 1) * q, with q the grid's value under its sign; in IQ1, q
 * is 8 times the grid's value plus the shift, 1 or -1. Seven bits of signs hold those of the first seven of eight
 * values, and the eighth makes the number of minus signs even. Every product here is exact: 11 bits of d, 5 of the
 * scale and 6 of q fit a float, so the order does not matter. */
#include "engine/types/iq_grid.h"
#include "engine/types/types_impl.h"

#define N 256

/* The eighth sign makes the number of minus signs even. */
static unsigned signs_of_7(unsigned bits)
{
    unsigned parity = bits ^ bits >> 4;
    parity ^= parity >> 2;
    parity ^= parity >> 1;
    return bits | (parity & 1) << 7;
}

/* Eight values of one entry, or of two entries of four; bit j of signs turns value j. */
static void put_8(float *x, float scale, const int q[8], unsigned signs)
{
    for (int j = 0; j < 8; j++) x[j] = scale * (float)(signs >> j & 1 ? -q[j] : q[j]);
}

static void eight_of_iq2(float *x, float scale, unsigned codes, unsigned signs)
{
    int q[8];
    for (int j = 0; j < 8; j++) q[j] = pl_values_iq2[codes >> 2 * j & 3];
    put_8(x, scale, q, signs);
}

static void eight_of_iq3(float *x, float scale, const int8_t values[8], unsigned first, unsigned second, unsigned signs)
{
    int q[8];
    for (int j = 0; j < 4; j++) {
        q[j] = values[first >> 4 * j & 7];
        q[4 + j] = values[second >> 4 * j & 7];
    }
    put_8(x, scale, q, signs);
}

static void eight_of_iq1(float *x, float scale, unsigned codes, int shift)
{
    for (int j = 0; j < 8; j++) x[j] = scale * (float)(8 * pl_values_iq1[codes >> 2 * j & 3] + shift);
}

/* d * f * (2 s + 1) */
static float scale_of(float d, float f, unsigned s)
{
    return d * f * (float)(2 * s + 1);
}

void pl_iq2_xxs_to_float(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += N, b += 66) {
        float d = pl_f16_to_f32(pl_get_u16(b));
        for (int i = 0; i < 8; i++) {
            const uint8_t *index = b + 2 + 8 * i;
            uint32_t rest = pl_get_u32(index + 4);
            float scale = scale_of(d, 0.125f, rest >> 28);
            for (int e = 0; e < 4; e++)
                eight_of_iq2(dst + at + 32 * i + 8 * e, scale, pl_grid_iq2_xxs[index[e]],
                             signs_of_7(rest >> 7 * e & 127));
        }
    }
}

void pl_iq2_xs_to_float(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += N, b += 74) {
        float d = pl_f16_to_f32(pl_get_u16(b));
        for (int e = 0; e < 32; e++) {
            unsigned q = pl_get_u16(b + 2 + 2 * e);
            eight_of_iq2(dst + at + 8 * e, scale_of(d, 0.125f, b[66 + e / 4] >> e / 2 % 2 * 4 & 15),
                         pl_grid_iq2_xs[q & 511], signs_of_7(q >> 9));
        }
    }
}

void pl_iq2_s_to_float(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += N, b += 82) {
        float d = pl_f16_to_f32(pl_get_u16(b));
        for (int e = 0; e < 32; e++) {
            unsigned index = b[2 + e] | (b[66 + e / 4] >> e % 4 * 2 & 3u) << 8;
            eight_of_iq2(dst + at + 8 * e, scale_of(d, 0.125f, b[74 + e / 4] >> e / 2 % 2 * 4 & 15),
                         pl_grid_iq2_s[index], b[34 + e]);
        }
    }
}

void pl_iq3_xxs_to_float(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += N, b += 98) {
        float d = pl_f16_to_f32(pl_get_u16(b));
        for (int i = 0; i < 8; i++) {
            const uint8_t *index = b + 2 + 8 * i;
            uint32_t rest = pl_get_u32(b + 66 + 4 * i);
            float scale = scale_of(d, 0.25f, rest >> 28);
            for (int e = 0; e < 4; e++)
                eight_of_iq3(dst + at + 32 * i + 8 * e, scale, pl_values_iq3_xxs, pl_grid_iq3_xxs[index[2 * e]],
                             pl_grid_iq3_xxs[index[2 * e + 1]], signs_of_7(rest >> 7 * e & 127));
        }
    }
}

void pl_iq3_s_to_float(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += N, b += 110) {
        float d = pl_f16_to_f32(pl_get_u16(b));
        for (int e = 0; e < 32; e++) {
            unsigned high = b[66 + e / 4] >> e % 4 * 2;
            unsigned first = b[2 + 2 * e] | (high & 1) << 8, second = b[3 + 2 * e] | (high >> 1 & 1) << 8;
            eight_of_iq3(dst + at + 8 * e, scale_of(d, 1, b[106 + e / 8] >> e / 4 % 2 * 4 & 15), pl_values_iq3_s,
                         pl_grid_iq3_s[first], pl_grid_iq3_s[second], b[74 + e]);
        }
    }
}

void pl_iq1_s_to_float(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += N, b += 50) {
        float d = pl_f16_to_f32(pl_get_u16(b));
        for (int e = 0; e < 32; e++) {
            unsigned high = pl_get_u16(b + 34 + e / 4 * 2), index = b[2 + e] | (high >> e % 4 * 3 & 7) << 8;
            eight_of_iq1(dst + at + 8 * e, scale_of(d, 0.125f, high >> 12 & 7), pl_grid_iq1[index],
                         high >> 15 ? -1 : 1);
        }
    }
}

void pl_iq1_m_to_float(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += N, b += 56) {
        unsigned bits = 0;
        for (int i = 0; i < 4; i++) bits |= (pl_get_u16(b + 48 + 2 * i) >> 12u) << 4 * i;
        float d = pl_f16_to_f32((uint16_t)bits);
        for (int e = 0; e < 32; e++) {
            unsigned high = b[32 + e / 2] >> e % 2 * 4 & 15, index = b[e] | (high & 7) << 8;
            unsigned s = pl_get_u16(b + 48 + e / 8 * 2) >> e / 2 % 4 * 3 & 7u;
            eight_of_iq1(dst + at + 8 * e, scale_of(d, 0.125f, s), pl_grid_iq1[index], high >> 3 ? -1 : 1);
        }
    }
}
