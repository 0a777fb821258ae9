/* Blocks of 32 with one f16 scale d, and in the _1 types one f16 minimum m. Element i of the first half has the low
 * four bits of byte i, element i + 16 the high four; a fifth bit stands at bit i (or i + 16) of a 32-bit word.
 *
 *   Q8_0: d, 32 x int8               x = d * q
 *   Q8_1: d, s, 32 x int8            x = d * q; s = d * sum of q
 *   Q4_0: d, 16 bytes                x = d * (q - 8)
 *   Q4_1: d, m, 16 bytes             x = d * q + m
 *   Q5_0: d, word, 16 bytes          x = d * (q - 16)
 *   Q5_1: d, m, word, 16 bytes       x = d * q + m */
#include "engine/types/types_impl.h"

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

void pl_q8_0_from_float(const float *src, void *dst, int64_t n)
{
    uint8_t *b = dst;
    for (int64_t at = 0; at < n; at += N, b += 2 + N) {
        float largest = 0;
        for (int i = 0; i < N; i++) {
            float a = src[at + i] < 0 ? -src[at + i] : src[at + i];
            if (a > largest) largest = a;
        }
        float d = largest / 127, inverse = pl_inverse(d);
        pl_put_u16(b, pl_f32_to_f16(d));
        for (int i = 0; i < N; i++) b[2 + i] = (uint8_t)(int8_t)pl_round_within(src[at + i] * inverse, -127, 127);
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

/* The element of the largest magnitude gets the number -zero, which the other sign does not have: so d has its sign,
 * turned. */
static float encode_symmetric(const float *x, int zero, int q[N])
{
    float extreme = 0, largest = 0;
    for (int i = 0; i < N; i++) {
        float a = x[i] < 0 ? -x[i] : x[i];
        if (a > largest) {
            largest = a;
            extreme = x[i];
        }
    }
    float d = extreme / (float)-zero, inverse = pl_inverse(d);
    for (int i = 0; i < N; i++) q[i] = pl_round_within(x[i] * inverse, -zero, zero - 1) + zero;
    return d;
}

static float encode_offset(const float *x, int q_max, int q[N], float *m)
{
    float low = x[0], high = x[0];
    for (int i = 1; i < N; i++) {
        if (x[i] < low) low = x[i];
        if (x[i] > high) high = x[i];
    }
    float d = (high - low) / (float)q_max, inverse = pl_inverse(d);
    for (int i = 0; i < N; i++) q[i] = pl_round_within((x[i] - low) * inverse, 0, q_max);
    *m = low;
    return d;
}

void pl_q4_0_to_float(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += N, b += 2 + 16)
        decode_symmetric(b + 2, 0, 8, pl_f16_to_f32(pl_get_u16(b)), dst + at);
}

void pl_q4_0_from_float(const float *src, void *dst, int64_t n)
{
    uint8_t *b = dst;
    for (int64_t at = 0; at < n; at += N, b += 2 + 16) {
        int q[N];
        pl_put_u16(b, pl_f32_to_f16(encode_symmetric(src + at, 8, q)));
        pack(q, b + 2);
    }
}

void pl_q5_0_to_float(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += N, b += 2 + 4 + 16)
        decode_symmetric(b + 6, pl_get_u32(b + 2), 16, pl_f16_to_f32(pl_get_u16(b)), dst + at);
}

void pl_q5_0_from_float(const float *src, void *dst, int64_t n)
{
    uint8_t *b = dst;
    for (int64_t at = 0; at < n; at += N, b += 2 + 4 + 16) {
        int q[N];
        pl_put_u16(b, pl_f32_to_f16(encode_symmetric(src + at, 16, q)));
        pl_put_u32(b + 2, pack(q, b + 6));
    }
}

void pl_q4_1_to_float(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += N, b += 4 + 16)
        decode_offset(b + 4, 0, pl_f16_to_f32(pl_get_u16(b)), pl_f16_to_f32(pl_get_u16(b + 2)), dst + at);
}

void pl_q4_1_from_float(const float *src, void *dst, int64_t n)
{
    uint8_t *b = dst;
    for (int64_t at = 0; at < n; at += N, b += 4 + 16) {
        int q[N];
        float m;
        pl_put_u16(b, pl_f32_to_f16(encode_offset(src + at, 15, q, &m)));
        pl_put_u16(b + 2, pl_f32_to_f16(m));
        pack(q, b + 4);
    }
}

void pl_q5_1_to_float(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += N, b += 8 + 16)
        decode_offset(b + 8, pl_get_u32(b + 4), pl_f16_to_f32(pl_get_u16(b)), pl_f16_to_f32(pl_get_u16(b + 2)),
                      dst + at);
}

void pl_q5_1_from_float(const float *src, void *dst, int64_t n)
{
    uint8_t *b = dst;
    for (int64_t at = 0; at < n; at += N, b += 8 + 16) {
        int q[N];
        float m;
        pl_put_u16(b, pl_f32_to_f16(encode_offset(src + at, 31, q, &m)));
        pl_put_u16(b + 2, pl_f32_to_f16(m));
        pl_put_u32(b + 4, pack(q, b + 8));
    }
}
