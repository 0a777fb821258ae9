/* Blocks of 256 whose sub-blocks have small integer scales of their own.
 *
 *   Q2_K: 16 bytes of 4-bit scales and minima, 64 bytes, f16 d, f16 dmin       x = (d * sc) * q - (dmin * mn), 16 x 16
 *   Q3_K: 32 bytes of third bits, 64 bytes, 12 bytes of 6-bit sc, f16 d        x = (d * (sc - 32)) * (q - 4), 16 x 16
 *   Q4_K: f16 d, f16 dmin, 12 bytes of 6-bit scales and minima, 128 bytes      x = (d * sc) * q - (dmin * mn), 8 x 32
 *   Q5_K: the same with 32 bytes of fifth bits before the 128                  likewise
 *   Q6_K: 128 bytes of low bits, 64 of high bits, 16 x int8 sc, f16 d          x = (d * sc) * (q - 32), 16 x 16
 *   Q8_K: f32 d, 256 x int8, 16 x i16 sums of 16                               x = d * q
 *
 * Encoding fits each sub-block (fit.h), rounds scales and minima to their own small integers, trying the neighbours
 * too, rounds the elements to what will be decoded, and then solves once more for the block's scales given all
 * integers. */
#include "engine/types/fit.h"

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

/* --- Encoding. --- */

enum { SUBS_MAX = 16 };

/* The integers of a block whose sub-blocks have a scale and a minimum of 0 to scale_max. */
typedef struct block_offset {
    int n_subs, scale_max, q_max; /* the format */
    float d, dmin;                /* as decoded */
    int scale[SUBS_MAX], minimum[SUBS_MAX];
    float q[N];
} block_offset;

/* Chooses all integers for d and dmin, nearest to what the sub-blocks would like; gives the error. */
static float choose_offset(const float *x, const float *w, const float *scale, const float *minimum, block_offset *b)
{
    int n = N / b->n_subs;
    float total = 0;
    for (int j = 0; j < b->n_subs; j++) {
        const float *xj = x + j * n, *wj = w + j * n;
        int sc = pl_round_within(scale[j] * pl_inverse(b->d), 0, b->scale_max);
        int mn = pl_round_within(minimum[j] * pl_inverse(b->dmin), 0, b->scale_max);
        float least = -1;
        for (int s = sc > 0 ? sc - 1 : 0; s <= sc + 1 && s <= b->scale_max; s++) {
            for (int m = mn > 0 ? mn - 1 : 0; m <= mn + 1 && m <= b->scale_max; m++) {
                float q[N];
                float error = pl_fit_round(xj, wj, n, 0, b->q_max, b->d * (float)s, -b->dmin * (float)m, q);
                if (!(error < least || least < 0)) continue;
                least = error;
                b->scale[j] = s;
                b->minimum[j] = m;
                memcpy(b->q + j * n, q, (size_t)n * sizeof *q);
            }
        }
        total += least;
    }
    return total;
}

static void put_scales(float d, float dmin, uint8_t *at, block_offset *b)
{
    pl_put_u16(at, pl_f32_to_f16(d));
    pl_put_u16(at + 2, pl_f32_to_f16(dmin));
    b->d = pl_f16_to_f32(pl_get_u16(at));
    b->dmin = pl_f16_to_f32(pl_get_u16(at + 2));
}

/* Least squares for d and dmin given all integers. */
static bool solve_offset(const float *x, const float *w, const block_offset *b, float *d, float *dmin)
{
    int n = N / b->n_subs;
    double ss = 0, sm = 0, mm = 0, sx = 0, mx = 0;
    for (int j = 0; j < b->n_subs; j++) {
        /* Of the sub-block, with its integers q, which its scale and minimum multiply. */
        float qq = 0, q = 0, one = 0, qx = 0, x1 = 0;
        for (int i = j * n; i < (j + 1) * n; i++) {
            float wq = w[i] * b->q[i];
            qq += wq * b->q[i];
            q += wq;
            one += w[i];
            qx += wq * x[i];
            x1 += w[i] * x[i];
        }
        double s = b->scale[j], m = -b->minimum[j];
        ss += s * s * (double)qq;
        sm += s * m * (double)q;
        mm += m * m * (double)one;
        sx += s * (double)qx;
        mx += m * (double)x1;
    }
    double determinant = ss * mm - sm * sm;
    if (!(determinant > 1e-9 * ss * mm)) return false;
    *d = (float)((sx * mm - mx * sm) / determinant);
    *dmin = (float)((ss * mx - sm * sx) / determinant);
    return *d > 0 && *dmin >= 0;
}

/* Puts the f16 d and dmin at at. */
static void encode_offset(const float *x, const float *w, uint8_t *at, block_offset *b)
{
    int n = N / b->n_subs;
    float scale[SUBS_MAX], minimum[SUBS_MAX], scale_max = 0, minimum_max = 0;
    for (int j = 0; j < b->n_subs; j++) {
        pl_fit_offset(x + j * n, w + j * n, n, b->q_max, false, &scale[j], &minimum[j]);
        if (scale[j] > scale_max) scale_max = scale[j];
        if (minimum[j] > minimum_max) minimum_max = minimum[j];
    }
    put_scales(scale_max / (float)b->scale_max, minimum_max / (float)b->scale_max, at, b);
    float error = choose_offset(x, w, scale, minimum, b), d, dmin;
    for (int i = 0; i < 2 && solve_offset(x, w, b, &d, &dmin); i++) {
        block_offset other = *b;
        uint8_t head[4];
        put_scales(d, dmin, head, &other);
        float e = choose_offset(x, w, scale, minimum, &other);
        if (!(e < error)) break;
        error = e;
        *b = other;
        memcpy(at, head, sizeof head);
    }
}

/* The integers of a block whose 16 sub-blocks have signed scales. */
typedef struct block_symmetric {
    int scale_low, q_low; /* the format: from -n to n - 1 both */
    float d;
    int scale[SUBS_MAX];
    float q[N];
} block_symmetric;

static float choose_symmetric(const float *x, const float *w, const float *scale, block_symmetric *b)
{
    enum { SUB16 = N / SUBS_MAX };
    float total = 0;
    for (int j = 0; j < SUBS_MAX; j++) {
        const float *xj = x + j * SUB16, *wj = w + j * SUB16;
        int sc = pl_round_within(scale[j] * pl_inverse(b->d), b->scale_low, -b->scale_low - 1);
        float least = -1;
        for (int s = sc - 1; s <= sc + 1; s++) {
            if (s < b->scale_low || s >= -b->scale_low) continue;
            float q[SUB16];
            float error = pl_fit_round(xj, wj, SUB16, b->q_low, -b->q_low - 1, b->d * (float)s, 0, q);
            if (!(error < least || least < 0)) continue;
            least = error;
            b->scale[j] = s;
            memcpy(b->q + j * SUB16, q, sizeof q);
        }
        total += least;
    }
    return total;
}

static float put_scale(float d, uint8_t *at)
{
    pl_put_u16(at, pl_f32_to_f16(d));
    return pl_f16_to_f32(pl_get_u16(at));
}

/* Puts the f16 d at at. */
static void encode_symmetric(const float *x, const float *w, uint8_t *at, block_symmetric *b)
{
    float scale[SUBS_MAX], extreme = 0, largest = 0;
    for (int j = 0; j < SUBS_MAX; j++) {
        scale[j] = pl_fit_symmetric(x + 16 * j, w + 16 * j, 16, b->q_low, -b->q_low - 1);
        float a = scale[j] < 0 ? -scale[j] : scale[j];
        if (a > largest) {
            largest = a;
            extreme = scale[j];
        }
    }
    b->d = put_scale(extreme / (float)b->scale_low, at); /* integers reach further below zero than above */
    float error = choose_symmetric(x, w, scale, b);
    for (int round = 0; round < 2; round++) {
        double qx = 0, qq = 0;
        for (int i = 0; i < N; i++) {
            double q = (double)b->scale[i / 16] * (double)b->q[i];
            qx += (double)w[i] * q * (double)x[i];
            qq += (double)w[i] * q * q;
        }
        if (!(qq > 0)) break;
        block_symmetric other = *b;
        uint8_t head[2];
        other.d = put_scale((float)(qx / qq), head);
        float e = choose_symmetric(x, w, scale, &other);
        if (!(e < error)) break;
        error = e;
        *b = other;
        memcpy(at, head, sizeof head);
    }
}

static void encode_q2_k(const float *x, const float *w, uint8_t *b)
{
    block_offset o = {.n_subs = 16, .scale_max = 15, .q_max = 3};
    memset(b, 0, 84);
    encode_offset(x, w, b + 80, &o);
    for (int j = 0; j < 16; j++) b[j] = (uint8_t)(o.scale[j] | o.minimum[j] << 4);
    for (int i = 0; i < N; i++) b[16 + i / 128 * 32 + i % 32] |= (uint8_t)((int)o.q[i] << i % 128 / 32 * 2);
}
PL_TYPE_ENCODERS(q2_k, N, 84)

static void encode_q3_k(const float *x, const float *w, uint8_t *b)
{
    block_symmetric o = {.scale_low = -32, .q_low = -4};
    memset(b, 0, 110);
    encode_symmetric(x, w, b + 108, &o);
    for (int j = 0; j < 16; j++) {
        int sc = o.scale[j] + 32;
        b[96 + j % 8] |= (uint8_t)((sc & 15) << j / 8 * 4);
        b[104 + j % 4] |= (uint8_t)((sc >> 4) << j / 4 * 2);
    }
    for (int i = 0; i < N; i++) {
        int q = (int)o.q[i] + 4;
        b[32 + i / 128 * 32 + i % 32] |= (uint8_t)((q & 3) << i % 128 / 32 * 2);
        b[i % 32] |= (uint8_t)((q >> 2) << i / 32);
    }
}
PL_TYPE_ENCODERS(q3_k, N, 110)

void pl_q8_k_from_float(const float *src, void *dst, int64_t n)
{
    uint8_t *b = dst;
    for (int64_t at = 0; at < n; at += N, b += 292) {
        const float *x = src + at;
        float extreme = 0, largest = 0;
        for (int i = 0; i < N; i++) {
            float a = x[i] < 0 ? -x[i] : x[i];
            if (a > largest) {
                largest = a;
                extreme = x[i];
            }
        }
        float d = extreme / -128, inverse = pl_inverse(d);
        memcpy(b, &d, sizeof d);
        for (int j = 0; j < 16; j++) {
            int sum = 0;
            for (int i = 16 * j; i < 16 * j + 16; i++) {
                int q = pl_round_within(x[i] * inverse, -128, 127);
                b[4 + i] = (uint8_t)(int8_t)q;
                sum += q;
            }
            pl_put_u16(b + 260 + 2 * j, (uint16_t)(int16_t)sum);
        }
    }
}

/* Fills the head (16 bytes) at b and the 256 integers. */
static void encode_45(const float *x, const float *w, int q_max, uint8_t *b, int q[N])
{
    block_offset o = {.n_subs = N / SUB, .scale_max = 63, .q_max = q_max};
    encode_offset(x, w, b, &o);
    pack_scales(o.scale, o.minimum, b + 4);
    for (int i = 0; i < N; i++) q[i] = (int)o.q[i];
}

static void pack_low(const int q[N], uint8_t *qs)
{
    for (int pair = 0; pair < 4; pair++) {
        for (int i = 0; i < SUB; i++)
            qs[pair * SUB + i] = (uint8_t)((q[pair * 2 * SUB + i] & 15) | (q[(pair * 2 + 1) * SUB + i] & 15) << 4);
    }
}

static void encode_q4_k(const float *x, const float *w, uint8_t *b)
{
    int q[N];
    encode_45(x, w, 15, b, q);
    pack_low(q, b + 16);
}
PL_TYPE_ENCODERS(q4_k, N, 144)

static void encode_q5_k(const float *x, const float *w, uint8_t *b)
{
    int q[N];
    encode_45(x, w, 31, b, q);
    memset(b + 16, 0, SUB);
    for (int j = 0; j < 8; j++) {
        for (int i = 0; i < SUB; i++) b[16 + i] |= (uint8_t)((q[j * SUB + i] >> 4) << j);
    }
    pack_low(q, b + 48);
}
PL_TYPE_ENCODERS(q5_k, N, 176)

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

static void encode_q6_k(const float *x, const float *w, uint8_t *b)
{
    block_symmetric o = {.scale_low = -128, .q_low = -32};
    memset(b, 0, 210);
    encode_symmetric(x, w, b + 208, &o);
    for (int j = 0; j < 16; j++) b[192 + j] = (uint8_t)(int8_t)o.scale[j];
    for (int i = 0; i < N; i++) {
        place_6 p = place_of(i);
        int q = (int)o.q[i] + 32;
        b[p.low_byte] |= (uint8_t)((q & 15) << p.low_shift);
        b[128 + p.high_byte] |= (uint8_t)((q >> 4) << p.high_shift);
    }
}
PL_TYPE_ENCODERS(q6_k, N, 210)
