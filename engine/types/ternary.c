/* One scale and very few bits per element.
 *
 *   TQ1_0: 48 + 4 bytes, f16 d    x = d * (q - 1), q in 0..2, five to a byte, 256 elements
 *   TQ2_0: 64 bytes, f16 d        x = d * (q - 1), q in 0..3 of which 3 is not used, 256 elements
 *   Q2_0:  f16 d, 16 bytes        x = d * (q - 1), q in 0..3, 64 elements
 *   Q1_0:  f16 d, 16 bytes        x = q ? d : -d, 128 elements
 *
 * A byte b of TQ1_0 is a fraction b / 256, whose digits in base 3 are the elements: digit n is the integer part of
 * 3 * (b * 3^n mod 256) / 256. Digit n of byte i is element 32 n + i for the first 32 bytes, 160 + 16 n + i for the
 * next 16, and 240 + 4 n + i (n < 4) for the last four. TQ2_0 has element 128 h + 32 s + i at bits 2 s of byte 32 h +
 * i. Q2_0 and Q1_0 go on from bit to bit, lowest first. */
#include <stdlib.h>

#include "engine/types/fit.h"

enum { N_TQ = 256, TQ1_BYTES = 54, TQ2_BYTES = 66, N_Q2 = 64, N_Q1 = 128, Q_BYTES = 18 };

static const uint8_t power_of_3[5] = {1, 3, 9, 27, 81};

static int digit_of(uint8_t byte, int n)
{
    return (uint8_t)(byte * power_of_3[n]) * 3 >> 8;
}

/* The byte and the digit of element i of TQ1_0. */
static void place_of(int i, int *byte, int *digit)
{
    int first = i < 160 ? 0 : i < 240 ? 160 : 240, width = i < 160 ? 32 : i < 240 ? 16 : 4;
    *byte = (i < 160 ? 0 : i < 240 ? 32 : 48) + (i - first) % width;
    *digit = (i - first) / width;
}

void pl_tq1_0_to_float(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += N_TQ, b += TQ1_BYTES) {
        float d = pl_f16_to_f32(pl_get_u16(b + 52));
        for (int i = 0; i < N_TQ; i++) {
            int byte, digit;
            place_of(i, &byte, &digit);
            dst[at + i] = d * (float)(digit_of(b[byte], digit) - 1);
        }
    }
}

void pl_tq2_0_to_float(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += N_TQ, b += TQ2_BYTES) {
        float d = pl_f16_to_f32(pl_get_u16(b + 64));
        for (int i = 0; i < N_TQ; i++)
            dst[at + i] = d * (float)((b[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3) - 1);
    }
}

void pl_q2_0_to_float(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += N_Q2, b += Q_BYTES) {
        float d = pl_f16_to_f32(pl_get_u16(b));
        for (int i = 0; i < N_Q2; i++) dst[at + i] = d * (float)((b[2 + i / 4] >> i % 4 * 2 & 3) - 1);
    }
}

void pl_q1_0_to_float(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += N_Q1, b += Q_BYTES) {
        float d = pl_f16_to_f32(pl_get_u16(b));
        for (int i = 0; i < N_Q1; i++) dst[at + i] = b[2 + i / 8] >> i % 8 & 1 ? d : -d;
    }
}

/* --- Encoding. --- */

typedef struct element {
    float size, weight;
} element;

static int by_size(const void *a, const void *b)
{
    float x = ((const element *)a)->size, y = ((const element *)b)->size;
    return (x < y) - (x > y);
}

/* The scale of three levels that leaves the least error: if the k largest values get a sign and the others 0, it is
 * their mean size. */
static float fit_ternary(const float *x, const float *w)
{
    element e[N_TQ];
    for (int i = 0; i < N_TQ; i++) {
        float a = x[i] < 0 ? -x[i] : x[i];
        e[i] = (element){a >= 0 ? a : 0, w[i]}; /* what is no number cannot be put in order */
    }
    qsort(e, N_TQ, sizeof *e, by_size);
    double sum = 0, weight = 0, best = 0, d = 0;
    for (int i = 0; i < N_TQ; i++) {
        sum += (double)e[i].weight * (double)e[i].size;
        weight += (double)e[i].weight;
        if (weight > 0 && sum * sum > best * weight) {
            best = sum * sum / weight;
            d = sum / weight;
        }
    }
    return (float)d;
}

static void encode_tq1_0(const float *x, const float *w, uint8_t *b)
{
    int value[52] = {0};
    pl_put_u16(b + 52, pl_f32_to_f16(fit_ternary(x, w)));
    float inverse = pl_inverse(pl_f16_to_f32(pl_get_u16(b + 52)));
    for (int i = 0; i < N_TQ; i++) {
        int byte, digit, q = pl_round_within(x[i] * inverse, -1, 1) + 1;
        place_of(i, &byte, &digit);
        value[byte] += q * power_of_3[4 - digit];
    }
    /* Rounded up, so that cutting off gives the digits back. */
    for (int i = 0; i < 52; i++) b[i] = (uint8_t)((value[i] * 256 + 242) / 243);
}
PL_TYPE_ENCODERS(tq1_0, N_TQ, TQ1_BYTES)

static void encode_tq2_0(const float *x, const float *w, uint8_t *b)
{
    memset(b, 0, 64);
    pl_put_u16(b + 64, pl_f32_to_f16(fit_ternary(x, w)));
    float inverse = pl_inverse(pl_f16_to_f32(pl_get_u16(b + 64)));
    for (int i = 0; i < N_TQ; i++)
        b[i / 128 * 32 + i % 32] |= (uint8_t)((pl_round_within(x[i] * inverse, -1, 1) + 1) << i % 128 / 32 * 2);
}
PL_TYPE_ENCODERS(tq2_0, N_TQ, TQ2_BYTES)

static void encode_q2_0(const float *x, const float *w, uint8_t *b)
{
    memset(b, 0, Q_BYTES);
    pl_put_u16(b, pl_f32_to_f16(pl_fit_symmetric(x, w, N_Q2, -1, 2)));
    float inverse = pl_inverse(pl_f16_to_f32(pl_get_u16(b)));
    for (int i = 0; i < N_Q2; i++) b[2 + i / 4] |= (uint8_t)((pl_round_within(x[i] * inverse, -1, 2) + 1) << i % 4 * 2);
}
PL_TYPE_ENCODERS(q2_0, N_Q2, Q_BYTES)

static void encode_q1_0(const float *x, const float *w, uint8_t *b)
{
    float sum = 0, weight = 0;
    memset(b, 0, Q_BYTES);
    for (int i = 0; i < N_Q1; i++) {
        sum += w[i] * (x[i] < 0 ? -x[i] : x[i]);
        weight += w[i];
        if (x[i] >= 0) b[2 + i / 8] |= (uint8_t)(1 << i % 8);
    }
    pl_put_u16(b, pl_f32_to_f16(sum / weight));
}
PL_TYPE_ENCODERS(q1_0, N_Q1, Q_BYTES)
