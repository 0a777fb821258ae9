/* Blocks of 256 whose sub-blocks have small integer scales of their own.
 *
 *   Q2_K: 16 bytes of 4-bit scales and minima, 64 bytes, f16 d, f16 dmin       x = (d * sc) * q - (dmin * mn), 16 x 16
 *   Q3_K: 32 bytes of third bits, 64 bytes, 12 bytes of 6-bit sc, f16 d        x = (d * (sc - 32)) * (q - 4), 16 x 16
 *   Q4_K: f16 d, f16 dmin, 12 bytes of 6-bit scales and minima, 128 bytes      x = (d * sc) * q - (dmin * mn), 8 x 32
 *   Q5_K: the same with 32 bytes of fifth bits before the 128                  likewise
 *   Q6_K: 128 bytes of low bits, 64 of high bits, 16 x int8 sc, f16 d          x = (d * sc) * (q - 32), 16 x 16
 *   Q8_K: f32 d, 256 x int8, 16 x i16 sums of 16                               x = d * q
 *
 * Encoding searches per sub-block: for some step widths around the obvious one, round, solve the weighted least squares
 * for scale and minimum given those integers, and keep what leaves the smallest weighted error. Then the scales and
 * minima are rounded to their own small integers, and the elements are rounded once more to what will be decoded. */
#include <math.h>

#include "engine/types/types_impl.h"

#define N   256
#define SUB 32 /* of Q4_K and Q5_K */

/* Element i of Q2_K and Q3_K has its low bits in byte l + 32 h at 2 r, where i = 128 h + 32 r + l, and its third bit at
 * bit 4 h + r of byte l. */
static int low_of_23(const uint8_t *qs, int i)
{
    return qs[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
}

/* The six-bit scale j of Q3_K's 12 bytes. */
static int scale_of_3(const uint8_t *s, int j)
{
    return (s[j % 8] >> j / 8 * 4 & 15) | (s[8 + j % 4] >> j / 4 * 2 & 3) << 4;
}

void pl_q2_k_to_float(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += N, b += 84) {
        float d = pl_f16_to_f32(pl_get_u16(b + 80)), dmin = pl_f16_to_f32(pl_get_u16(b + 82));
        for (int i = 0; i < N; i++) {
            float ds = d * (float)(b[i / 16] & 15), dm = dmin * (float)(b[i / 16] >> 4);
            float product = ds * (float)low_of_23(b + 16, i);
            dst[at + i] = product - dm;
        }
    }
}

void pl_q3_k_to_float(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += N, b += 110) {
        float d = pl_f16_to_f32(pl_get_u16(b + 108));
        for (int i = 0; i < N; i++) {
            int q = low_of_23(b + 32, i) | (b[i % 32] >> i / 32 & 1) << 2;
            float scale = d * (float)(scale_of_3(b + 96, i / 16) - 32);
            dst[at + i] = scale * (float)(q - 4);
        }
    }
}

void pl_q8_k_to_float(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += N, b += 292) {
        float d;
        memcpy(&d, b, sizeof d);
        for (int i = 0; i < N; i++) dst[at + i] = d * (float)(int8_t)b[4 + i];
    }
}

/* Scale and minimum j of the 12 packed bytes s. */
static void unpack_scale(const uint8_t *s, int j, int *scale, int *minimum)
{
    if (j < 4) {
        *scale = s[j] & 63;
        *minimum = s[j + 4] & 63;
    } else {
        *scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
        *minimum = s[j + 4] >> 4 | (s[j] >> 6) << 4;
    }
}

static void pack_scales(const int scale[8], const int minimum[8], uint8_t *s)
{
    for (int j = 0; j < 4; j++) {
        s[j] = (uint8_t)(scale[j] | (scale[j + 4] >> 4) << 6);
        s[j + 4] = (uint8_t)(minimum[j] | (minimum[j + 4] >> 4) << 6);
        s[j + 8] = (uint8_t)((scale[j + 4] & 15) | (minimum[j + 4] & 15) << 4);
    }
}

/* high is NULL for Q4_K. */
static void decode_45(const uint8_t *b, const uint8_t *high, const uint8_t *qs, float *dst)
{
    float d = pl_f16_to_f32(pl_get_u16(b)), dmin = pl_f16_to_f32(pl_get_u16(b + 2));
    for (int j = 0; j < 8; j++) {
        int scale, minimum;
        unpack_scale(b + 4, j, &scale, &minimum);
        float ds = d * (float)scale, dm = dmin * (float)minimum;
        for (int i = 0; i < SUB; i++) {
            /* Two sub-blocks share 32 bytes: the even one has the low halves. */
            int q = qs[j / 2 * SUB + i] >> (j % 2 * 4) & 15;
            if (high) q |= (high[i] >> j & 1) << 4;
            float product = ds * (float)q;
            dst[j * SUB + i] = product - dm;
        }
    }
}

void pl_q4_k_to_float(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += N, b += 144) decode_45(b, NULL, b + 16, dst + at);
}

void pl_q5_k_to_float(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += N, b += 176) decode_45(b, b + 16, b + 48, dst + at);
}

/* Scale and minimum (>= 0) so that scale * q - minimum, q in 0..q_max, comes closest to x. */
static void fit_offset(const float x[SUB], int q_max, float *scale, float *minimum)
{
    float low = 0, high = x[0], squares = 0; /* low: the minimum cannot lift values, so 0 is always in the range */
    for (int i = 0; i < SUB; i++) {
        if (x[i] < low) low = x[i];
        if (x[i] > high) high = x[i];
        squares += x[i] * x[i];
    }
    *scale = 0;
    *minimum = -low;
    if (!(high > low)) return; /* all the same, or not numbers */
    /* Large weights matter more in a product, small ones not at all less than the typical one. */
    float typical = sqrtf(squares / SUB), w[SUB], sum_w = 0, sum_x = 0;
    for (int i = 0; i < SUB; i++) {
        w[i] = typical + (x[i] < 0 ? -x[i] : x[i]);
        sum_w += w[i];
        sum_x += w[i] * x[i];
    }
    float best = INFINITY;
    for (int step = -10; step <= 10; step++) {
        float inverse = ((float)q_max + 0.1f * (float)step) / (high - low);
        int q[SUB];
        float sum_q = 0, sum_qq = 0, sum_qx = 0;
        for (int i = 0; i < SUB; i++) {
            q[i] = pl_round_within((x[i] - low) * inverse, 0, q_max);
            float wq = w[i] * (float)q[i];
            sum_q += wq;
            sum_qq += wq * (float)q[i];
            sum_qx += wq * x[i];
        }
        float determinant = sum_w * sum_qq - sum_q * sum_q;
        if (!(determinant > 0)) continue;
        float s = (sum_w * sum_qx - sum_x * sum_q) / determinant, m = (sum_q * sum_qx - sum_qq * sum_x) / determinant;
        if (m < 0) { /* the format has no such minimum: the best line through the origin */
            m = 0;
            s = sum_qx / sum_qq;
        }
        if (!(s > 0)) continue;
        float error = 0;
        for (int i = 0; i < SUB; i++) {
            float e = s * (float)q[i] - m - x[i];
            error += w[i] * e * e;
        }
        if (error < best) {
            best = error;
            *scale = s;
            *minimum = m;
        }
    }
    if (best == INFINITY) *scale = (high - low) / (float)q_max;
}

/* Fills the head (16 bytes) at b and the 256 integers. */
static void encode_45(const float *x, int q_max, uint8_t *b, int q[N])
{
    float scale[8], minimum[8], scale_max = 0, minimum_max = 0;
    for (int j = 0; j < 8; j++) {
        fit_offset(x + j * SUB, q_max, &scale[j], &minimum[j]);
        if (scale[j] > scale_max) scale_max = scale[j];
        if (minimum[j] > minimum_max) minimum_max = minimum[j];
    }
    pl_put_u16(b, pl_f32_to_f16(scale_max / 63));
    pl_put_u16(b + 2, pl_f32_to_f16(minimum_max / 63));
    float d = pl_f16_to_f32(pl_get_u16(b)), dmin = pl_f16_to_f32(pl_get_u16(b + 2));
    int scale_q[8], minimum_q[8];
    for (int j = 0; j < 8; j++) {
        scale_q[j] = pl_round_within(scale[j] * pl_inverse(d), 0, 63);
        minimum_q[j] = pl_round_within(minimum[j] * pl_inverse(dmin), 0, 63);
        float inverse = pl_inverse(d * (float)scale_q[j]), dm = dmin * (float)minimum_q[j];
        for (int i = 0; i < SUB; i++) q[j * SUB + i] = pl_round_within((x[j * SUB + i] + dm) * inverse, 0, q_max);
    }
    pack_scales(scale_q, minimum_q, b + 4);
}

static void pack_low(const int q[N], uint8_t *qs)
{
    for (int pair = 0; pair < 4; pair++) {
        for (int i = 0; i < SUB; i++)
            qs[pair * SUB + i] = (uint8_t)((q[pair * 2 * SUB + i] & 15) | (q[(pair * 2 + 1) * SUB + i] & 15) << 4);
    }
}

void pl_q4_k_from_float(const float *src, void *dst, int64_t n)
{
    uint8_t *b = dst;
    for (int64_t at = 0; at < n; at += N, b += 144) {
        int q[N];
        encode_45(src + at, 15, b, q);
        pack_low(q, b + 16);
    }
}

void pl_q5_k_from_float(const float *src, void *dst, int64_t n)
{
    uint8_t *b = dst;
    for (int64_t at = 0; at < n; at += N, b += 176) {
        int q[N];
        encode_45(src + at, 31, b, q);
        memset(b + 16, 0, SUB);
        for (int j = 0; j < 8; j++) {
            for (int i = 0; i < SUB; i++) b[16 + i] |= (uint8_t)((q[j * SUB + i] >> 4) << j);
        }
        pack_low(q, b + 48);
    }
}

/* Where the bits of element i of a Q6_K block are. Each half of 128 elements has 64 bytes of low and 32 of high bits:
 * element l + 32 * r of the half has its low bits in byte l + 32 * (r % 2), half r / 2, and its high bits in byte l at
 * 2 * r. */
typedef struct place_6 {
    int low_byte, low_shift, high_byte, high_shift;
} place_6;

static place_6 place_of(int i)
{
    int half = i / 128, r = i % 128 / 32, l = i % 32;
    return (place_6){half * 64 + l + r % 2 * 32, r / 2 * 4, half * 32 + l, 2 * r};
}

void pl_q6_k_to_float(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += N, b += 210) {
        float d = pl_f16_to_f32(pl_get_u16(b + 208));
        for (int i = 0; i < N; i++) {
            place_6 p = place_of(i);
            int q = (b[p.low_byte] >> p.low_shift & 15) | (b[128 + p.high_byte] >> p.high_shift & 3) << 4;
            float scale = d * (float)(int8_t)b[192 + i / 16];
            dst[at + i] = scale * (float)(q - 32);
        }
    }
}

/* Scale, of either sign, so that scale * q, q in -32..31, comes closest to the 16 values x. */
static float fit_symmetric(const float x[16])
{
    float extreme = 0, largest = 0;
    for (int i = 0; i < 16; i++) {
        float a = x[i] < 0 ? -x[i] : x[i];
        if (a > largest) {
            largest = a;
            extreme = x[i];
        }
    }
    if (!(largest > 0)) return 0;
    float scale = extreme / -32, best = -1;
    for (int step = -10; step <= 10; step++) {
        float inverse = (-32 + 0.1f * (float)step) / extreme;
        float sum_qx = 0, sum_qq = 0;
        for (int i = 0; i < 16; i++) {
            float q = (float)pl_round_within(x[i] * inverse, -32, 31), w = x[i] * x[i];
            sum_qx += w * q * x[i];
            sum_qq += w * q * q;
        }
        /* With the best scale sum_qx / sum_qq the error falls by sum_qx^2 / sum_qq. */
        if (sum_qq > 0 && sum_qx * sum_qx > best * sum_qq) {
            best = sum_qx * sum_qx / sum_qq;
            scale = sum_qx / sum_qq;
        }
    }
    return scale;
}

void pl_q6_k_from_float(const float *src, void *dst, int64_t n)
{
    uint8_t *b = dst;
    for (int64_t at = 0; at < n; at += N, b += 210) {
        const float *x = src + at;
        float scale[16], extreme = 0, largest = 0;
        for (int j = 0; j < 16; j++) {
            scale[j] = fit_symmetric(x + 16 * j);
            float a = scale[j] < 0 ? -scale[j] : scale[j];
            if (a > largest) {
                largest = a;
                extreme = scale[j];
            }
        }
        memset(b, 0, 210);
        pl_put_u16(b + 208, pl_f32_to_f16(extreme / -128)); /* int8 reaches further below zero than above */
        float d = pl_f16_to_f32(pl_get_u16(b + 208));
        for (int j = 0; j < 16; j++) {
            int scale_q = pl_round_within(scale[j] * pl_inverse(d), -128, 127);
            b[192 + j] = (uint8_t)(int8_t)scale_q;
            float inverse = pl_inverse(d * (float)scale_q);
            for (int i = 16 * j; i < 16 * j + 16; i++) {
                int q = pl_round_within(x[i] * inverse, -32, 31) + 32;
                place_6 p = place_of(i);
                b[p.low_byte] |= (uint8_t)((q & 15) << p.low_shift);
                b[128 + p.high_byte] |= (uint8_t)((q >> 4) << p.high_shift);
            }
        }
    }
}
