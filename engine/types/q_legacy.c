/* Blocks of 32 with one f16 scale d, and in the _1 types one f16 minimum m. Element i of the first half has the low
 * four bits of byte i, element i + 16 the high four; a fifth bit stands at bit i (or i + 16) of a 32-bit word.
 *
 *   Q8_0: d, 32 x int8               x = d * q
 *   Q8_1: d, s, 32 x int8            x = d * q; s = d * sum of q
 *   Q4_0: d, 16 bytes                x = d * (q - 8)
 *   Q4_1: d, m, 16 bytes             x = d * q + m
 *   Q5_0: d, word, 16 bytes          x = d * (q - 16)
 *   Q5_1: d, m, word, 16 bytes       x = d * q + m */
#include "engine/types/fit.h"

#define N 32

void pl_q8_0_to_float(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += N, b += 2 + N) {
        float d = pl_f16_to_f32(pl_get_u16(b));
        for (int i = 0; i < N; i++) dst[at + i] = d * (float)(int8_t)b[2 + i];
    }
}

void pl_q8_1_to_float(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += N, b += 4 + N) {
        float d = pl_f16_to_f32(pl_get_u16(b));
        for (int i = 0; i < N; i++) dst[at + i] = d * (float)(int8_t)b[4 + i];
    }
}

/* Puts the f16 scale at b and 32 integers behind the head; gives their sum. */
static int encode_bytes(const float *x, uint8_t *b, int head)
{
    float largest = 0;
    for (int i = 0; i < N; i++) {
        float a = x[i] < 0 ? -x[i] : x[i];
        if (a > largest) largest = a;
    }
    pl_put_u16(b, pl_f32_to_f16(largest / 127));
    float inverse = pl_inverse(pl_f16_to_f32(pl_get_u16(b)));
    int sum = 0;
    for (int i = 0; i < N; i++) {
        int q = pl_round_within(x[i] * inverse, -127, 127);
        b[head + i] = (uint8_t)(int8_t)q;
        sum += q;
    }
    return sum;
}

void pl_q8_0_from_float(const float *src, void *dst, int64_t n)
{
    uint8_t *b = dst;
    for (int64_t at = 0; at < n; at += N, b += 2 + N) encode_bytes(src + at, b, 2);
}

void pl_q8_1_from_float(const float *src, void *dst, int64_t n)
{
    uint8_t *b = dst;
    for (int64_t at = 0; at < n; at += N, b += 4 + N) {
        int sum = encode_bytes(src + at, b, 4);
        pl_put_u16(b + 2, pl_f32_to_f16(pl_f16_to_f32(pl_get_u16(b)) * (float)sum));
    }
}

/* The symmetric types: q - zero, with zero = 2^(bits - 1). */
static void decode_symmetric(const uint8_t *qs, uint32_t high, int zero, float d, float *dst)
{
    for (int i = 0; i < N / 2; i++) {
        int low_q = (qs[i] & 15) | (int)(high >> i & 1) << 4;
        int high_q = qs[i] >> 4 | (int)(high >> (i + 16) & 1) << 4;
        dst[i] = d * (float)(low_q - zero);
        dst[i + N / 2] = d * (float)(high_q - zero);
    }
}

static void decode_offset(const uint8_t *qs, uint32_t high, float d, float m, float *dst)
{
    for (int i = 0; i < N / 2; i++) {
        int low_q = (qs[i] & 15) | (int)(high >> i & 1) << 4;
        int high_q = qs[i] >> 4 | (int)(high >> (i + 16) & 1) << 4;
        dst[i] = d * (float)low_q + m;
        dst[i + N / 2] = d * (float)high_q + m;
    }
}

/* Puts 32 numbers of up to five bits into qs; returns the word of fifth bits. */
static uint32_t pack(const int q[N], uint8_t *qs)
{
    uint32_t high = 0;
    for (int i = 0; i < N / 2; i++) {
        qs[i] = (uint8_t)((q[i] & 15) | (q[i + N / 2] & 15) << 4);
        high |= (uint32_t)(q[i] >> 4 & 1) << i | (uint32_t)(q[i + N / 2] >> 4 & 1) << (i + N / 2);
    }
    return high;
}

/* Puts the scale at b and gives the integers, which reach from 0 to 2 * zero - 1. */
static void encode_symmetric(const float *x, const float *w, int zero, uint8_t *b, int q[N])
{
    pl_put_u16(b, pl_f32_to_f16(pl_fit_symmetric(x, w, N, -zero, zero - 1)));
    float inverse = pl_inverse(pl_f16_to_f32(pl_get_u16(b)));
    for (int i = 0; i < N; i++) q[i] = pl_round_within(x[i] * inverse, -zero, zero - 1) + zero;
}

/* Puts scale and minimum at b. */
static void encode_offset(const float *x, const float *w, int q_max, uint8_t *b, int q[N])
{
    float d, m;
    pl_fit_offset(x, w, N, q_max, true, &d, &m);
    pl_put_u16(b, pl_f32_to_f16(d));
    pl_put_u16(b + 2, pl_f32_to_f16(-m));
    float inverse = pl_inverse(pl_f16_to_f32(pl_get_u16(b)));
    m = pl_f16_to_f32(pl_get_u16(b + 2));
    for (int i = 0; i < N; i++) q[i] = pl_round_within((x[i] - m) * inverse, 0, q_max);
}

void pl_q4_0_to_float(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += N, b += 2 + 16)
        decode_symmetric(b + 2, 0, 8, pl_f16_to_f32(pl_get_u16(b)), dst + at);
}

/* The element of the largest magnitude gets the number -8, which the other sign does not have: so d has its sign,
 * turned. */
void pl_q4_0_from_float_quick(const float *src, void *dst, int64_t n)
{
    uint8_t *b = dst;
    for (int64_t at = 0; at < n; at += N, b += 2 + 16) {
        const float *x = src + at;
        float extreme = 0, largest = 0;
        for (int i = 0; i < N; i++) {
            float a = x[i] < 0 ? -x[i] : x[i];
            if (a > largest) {
                largest = a;
                extreme = x[i];
            }
        }
        float d = extreme / -8, inverse = pl_inverse(d);
        int q[N];
        for (int i = 0; i < N; i++) q[i] = pl_round_within(x[i] * inverse, -8, 7) + 8;
        pl_put_u16(b, pl_f32_to_f16(d));
        pack(q, b + 2);
    }
}

static void encode_q4_0(const float *x, const float *w, uint8_t *b)
{
    int q[N];
    encode_symmetric(x, w, 8, b, q);
    pack(q, b + 2);
}
PL_TYPE_ENCODERS(q4_0, N, 2 + 16)

void pl_q5_0_to_float(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += N, b += 2 + 4 + 16)
        decode_symmetric(b + 6, pl_get_u32(b + 2), 16, pl_f16_to_f32(pl_get_u16(b)), dst + at);
}

static void encode_q5_0(const float *x, const float *w, uint8_t *b)
{
    int q[N];
    encode_symmetric(x, w, 16, b, q);
    pl_put_u32(b + 2, pack(q, b + 6));
}
PL_TYPE_ENCODERS(q5_0, N, 6 + 16)

void pl_q4_1_to_float(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += N, b += 4 + 16)
        decode_offset(b + 4, 0, pl_f16_to_f32(pl_get_u16(b)), pl_f16_to_f32(pl_get_u16(b + 2)), dst + at);
}

static void encode_q4_1(const float *x, const float *w, uint8_t *b)
{
    int q[N];
    encode_offset(x, w, 15, b, q);
    pack(q, b + 4);
}
PL_TYPE_ENCODERS(q4_1, N, 4 + 16)

void pl_q5_1_to_float(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += N, b += 8 + 16)
        decode_offset(b + 8, pl_get_u32(b + 4), pl_f16_to_f32(pl_get_u16(b)), pl_f16_to_f32(pl_get_u16(b + 2)),
                      dst + at);
}

static void encode_q5_1(const float *x, const float *w, uint8_t *b)
{
    int q[N];
    encode_offset(x, w, 31, b, q);
    pl_put_u32(b + 4, pack(q, b + 8));
}
PL_TYPE_ENCODERS(q5_1, N, 8 + 16)
