/* The matrix product in plain C: the definition that every instruction set repeats bit by bit. A block is first
 * expanded to integers with a lane per row; compilers make tolerable vectors of the loops over lanes. */
#include <math.h>

#include "engine/cpu/act.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/pack.h"

#define INLINE static inline __attribute__((always_inline))

enum { ROWS = PL_PACK_ROWS };

INLINE uint16_t load16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, 2);
    return v;
}

INLINE uint32_t load32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

INLINE float load_f32(const void *p)
{
    float v;
    memcpy(&v, p, 4);
    return v;
}

INLINE void load_f16(float out[ROWS], const uint8_t *p)
{
    for (int r = 0; r < ROWS; r++) out[r] = pl_f16_to_f32(load16(p + 2 * r));
}

/* --- Activations. --- */

/* Rounds to nearest even: |v| < 2^22, so adding 1.5 * 2^23 leaves no fraction. */
INLINE int round_even(float v)
{
    return (int)((v + 12582912.0f) - 12582912.0f);
}

/* Quantizes n values and gives the scale. */
INLINE float quantize(int8_t *q, const float *x, int n)
{
    uint32_t amax = 0;
    for (int i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, 4);
        bits &= 0x7fffffff;
        amax = bits > amax ? bits : amax;
    }
    float inverse, d = pl_act_scale(amax, &inverse);
    if (inverse != 0)
        for (int i = 0; i < n; i++) q[i] = (int8_t)round_even(x[i] * inverse);
    else
        memset(q, 0, (size_t)n);
    return d;
}

INLINE int sum_of(const int8_t *q, int n)
{
    int sum = 0;
    for (int i = 0; i < n; i++) sum += q[i];
    return sum;
}

static void act_q8(void *out, const float *x, int64_t n, int tile, int t)
{
    uint8_t *block = out;
    for (; n > 0; n -= 32, x += 32, block += tile * PL_ACT_Q8_BYTES) {
        int8_t *q = (int8_t *)block + 32 * t;
        float d = quantize(q, x, 32);
        int sum = sum_of(q, 32), c = -8 * sum;
        float s = d * (float)sum;
        memcpy(block + 32 * tile + 4 * t, &d, 4);
        memcpy(block + 36 * tile + 4 * t, &s, 4);
        memcpy(block + 40 * tile + 4 * t, &c, 4);
    }
}

static void act_q8k(void *out, const float *x, int64_t n, int tile, int t)
{
    static const uint8_t order[8] = {0, 2, 1, 3, 4, 6, 5, 7};
    uint8_t *block = out;
    for (; n > 0; n -= 256, x += 256, block += tile * PL_ACT_Q8K_BYTES) {
        int8_t *q = (int8_t *)block + 256 * t;
        float d = quantize(q, x, 256);
        int32_t c[16];
        int16_t b[8];
        for (int i = 0; i < 16; i++) c[i] = -32 * sum_of(q + 16 * i, 16);
        for (int i = 0; i < 8; i++) b[i] = (int16_t)sum_of(q + 32 * order[i], 32);
        memcpy(block + 256 * tile + 4 * t, &d, 4);
        memcpy(block + 260 * tile + sizeof c * (size_t)t, c, sizeof c);
        memcpy(block + 324 * tile + sizeof b * (size_t)t, b, sizeof b);
    }
}

static void act_f32(void *out, const float *x, int64_t n, int tile, int t)
{
    float *to = (float *)out + t;
    for (int64_t i = 0; i < n; i++) to[i * tile] = x[i];
}

/* --- Types with blocks of 32. --- */

typedef struct format32 {
    int bytes; /* of a packed block of 16 rows */
    int zero;  /* what is subtracted from q */
    bool is_byte, has_min, has_fifth;
} format32;

/* The block's 32 columns, less the zero point. */
INLINE void expand32(int16_t w[32][ROWS], const uint8_t *p, format32 f)
{
    const uint8_t *h = p + (f.has_min ? 64 : 32), *q = h + (f.has_fifth ? 64 : 0);
    for (int j = 0; j < (f.is_byte ? 8 : 4); j++) {
        for (int r = 0; r < ROWS; r++) {
            uint32_t fifth = f.has_fifth ? load32(h + 4 * r) : 0;
            for (int b = 0; b < 4; b++) {
                int v = q[64 * j + 4 * r + b], k = 4 * j + b;
                if (f.is_byte) {
                    w[k][r] = (int16_t)(v - f.zero);
                    continue;
                }
                w[k][r] = (int16_t)(((v & 15) | (int)(fifth >> (8 * b + j) & 1) << 4) - f.zero);
                w[k + 16][r] = (int16_t)((v >> 4 | (int)(fifth >> (8 * b + j + 4) & 1) << 4) - f.zero);
            }
        }
    }
}

INLINE void mm32(float *dst, size_t dst_stride, const uint8_t *w, int64_t n_groups, const uint8_t *act, int64_t k,
                 int tile, format32 f)
{
    for (int64_t g = 0; g < n_groups; g++) {
        float acc[PL_ACT_TILE][ROWS] = {0};
        const uint8_t *a = act;
        for (int64_t i = 0; i < k / 32; i++, w += f.bytes, a += tile * PL_ACT_Q8_BYTES) {
            int16_t q[32][ROWS];
            float d[ROWS], m[ROWS];
            expand32(q, w, f);
            load_f16(d, w);
            if (f.has_min) load_f16(m, w + 32);
            for (int t = 0; t < tile; t++) {
                int32_t sum[ROWS] = {0};
                const int8_t *x = (const int8_t *)a + 32 * t;
                for (int c = 0; c < 32; c++)
                    for (int r = 0; r < ROWS; r++) sum[r] += q[c][r] * x[c];
                float dx = load_f32(a + 32 * tile + 4 * t), s = load_f32(a + 36 * tile + 4 * t);
                for (int r = 0; r < ROWS; r++) {
                    acc[t][r] = acc[t][r] + (d[r] * dx) * (float)sum[r];
                    if (f.has_min) acc[t][r] = acc[t][r] + m[r] * s;
                }
            }
        }
        for (int t = 0; t < tile; t++) memcpy(dst + (size_t)t * dst_stride + g * ROWS, acc[t], sizeof acc[t]);
    }
}

/* --- Types with blocks of 256. --- */

/* The six-bit scales and mins of row r: twelve bytes, in which the upper two bits of the later four stand above the
 * earlier four. */
INLINE void scales_q4_k(int32_t sc[8][ROWS], int32_t m[8][ROWS], const uint8_t *p)
{
    for (int r = 0; r < ROWS; r++) {
        const uint8_t *s = p + 4 * r;
        for (int j = 0; j < 4; j++) {
            sc[j][r] = s[j] & 63;
            m[j][r] = s[64 + j] & 63;
            sc[j + 4][r] = (s[128 + j] & 15) | s[j] >> 6 << 4;
            m[j + 4][r] = s[128 + j] >> 4 | s[64 + j] >> 6 << 4;
        }
    }
}

/* sum[r] = the product of 4 * n columns from unit u of the packed q on, low nibbles or high, with x; fifth bits from
 * bit fifth of each byte of h when that is not NULL. */
INLINE void dot_nibbles(int32_t sum[ROWS], const uint8_t *q, int step, bool high, const uint8_t *h, int fifth,
                        const int8_t *x)
{
    for (int r = 0; r < ROWS; r++) sum[r] = 0;
    for (int j = 0; j < 8; j++) {
        for (int r = 0; r < ROWS; r++) {
            for (int b = 0; b < 4; b++) {
                int at = step * j + 4 * r + b, v = high ? q[at] >> 4 : q[at] & 15;
                if (h != NULL) v |= (h[128 * j + 4 * r + b] >> fifth & 1) << 4;
                sum[r] += v * x[4 * j + b];
            }
        }
    }
}

INLINE void mm_q45_k(float *dst, size_t dst_stride, const uint8_t *w, int64_t n_groups, const uint8_t *act, int64_t k,
                     int tile, bool has_fifth)
{
    static const uint8_t order[8] = {0, 2, 1, 3, 4, 6, 5, 7};
    for (int64_t g = 0; g < n_groups; g++) {
        float acc[PL_ACT_TILE][ROWS] = {0};
        const uint8_t *a = act;
        for (int64_t i = 0; i < k / 256; i++, w += has_fifth ? 2816 : 2304, a += tile * PL_ACT_Q8K_BYTES) {
            const uint8_t *h = has_fifth ? w + 256 : NULL;
            float d[ROWS], dmin[ROWS];
            int32_t sc[8][ROWS], m[8][ROWS];
            load_f16(d, w);
            load_f16(dmin, w + 32);
            scales_q4_k(sc, m, w + 64);
            for (int t = 0; t < tile; t++) {
                int32_t sum[ROWS] = {0}, min[ROWS] = {0};
                for (int j = 0; j < 8; j++) {
                    int32_t s[ROWS];
                    int16_t b;
                    memcpy(&b, a + 324 * tile + 16 * t + 2 * j, 2);
                    /* The first 64 columns' nibbles take turns with the fifth bits. */
                    bool turns = has_fifth && j < 2;
                    const uint8_t *q = w + (turns ? 320 : 512 * (j / 2) + (has_fifth ? 768 : 256));
                    dot_nibbles(s, q, turns ? 128 : 64, j % 2, h, j, (const int8_t *)a + 256 * t + 32 * j);
                    for (int r = 0; r < ROWS; r++) {
                        sum[r] += sc[j][r] * s[r];
                        min[r] += m[order[j]][r] * b;
                    }
                }
                float dx = load_f32(a + 256 * tile + 4 * t);
                for (int r = 0; r < ROWS; r++) {
                    acc[t][r] = acc[t][r] + (d[r] * dx) * (float)sum[r];
                    acc[t][r] = acc[t][r] - (dmin[r] * dx) * (float)min[r];
                }
            }
        }
        for (int t = 0; t < tile; t++) memcpy(dst + (size_t)t * dst_stride + g * ROWS, acc[t], sizeof acc[t]);
    }
}

static void mm_q6_k(float *dst, size_t dst_stride, const void *weights, int64_t n_groups, const void *act, int64_t k,
                    int tile)
{
    const uint8_t *w = weights;
    for (int64_t g = 0; g < n_groups; g++) {
        float acc[PL_ACT_TILE][ROWS] = {0};
        const uint8_t *a = act;
        for (int64_t i = 0; i < k / 256; i++, w += 3360, a += tile * PL_ACT_Q8K_BYTES) {
            const uint8_t *scales = w + 32, *units = w + 288;
            float d[ROWS];
            load_f16(d, w);
            for (int t = 0; t < tile; t++) {
                int32_t sum[ROWS] = {0};
                const int8_t *x = (const int8_t *)a + 256 * t;
                for (int j = 0; j < 64; j++) { /* four columns each */
                    int half = j / 32, s = j / 8 % 4, u = j % 8;
                    const uint8_t *hi = units + 192 * (8 * half + u), *lo = hi + 64 + 64 * (s % 2);
                    for (int r = 0; r < ROWS; r++) {
                        int32_t dot = 0;
                        for (int b = 0; b < 4; b++) {
                            int v = (s < 2 ? lo[4 * r + b] & 15 : lo[4 * r + b] >> 4) | (hi[4 * r + b] >> (2 * s) & 3)
                                                                                            << 4;
                            dot += (v - 32) * x[4 * j + b];
                        }
                        int sub = j / 4;
                        sum[r] += (int8_t)scales[64 * (sub / 4) + 4 * r + sub % 4] * dot;
                    }
                }
                float dx = load_f32(a + 256 * tile + 4 * t);
                for (int r = 0; r < ROWS; r++) acc[t][r] = acc[t][r] + (d[r] * dx) * (float)sum[r];
            }
        }
        for (int t = 0; t < tile; t++) memcpy(dst + (size_t)t * dst_stride + g * ROWS, acc[t], sizeof acc[t]);
    }
}

/* --- Floats. --- */

INLINE void mm_float(float *dst, size_t dst_stride, const uint8_t *w, int64_t n_groups, const float *act, int64_t k,
                     int tile, pl_type type)
{
    for (int64_t g = 0; g < n_groups; g++) {
        float acc[PL_ACT_TILE][ROWS] = {0};
        const float *a = act;
        for (int64_t i = 0; i < k; i++, w += type == PL_TYPE_F32 ? 64 : 32, a += tile) {
            float v[ROWS];
            for (int r = 0; r < ROWS; r++)
                v[r] = type == PL_TYPE_F32   ? load_f32(w + 4 * r)
                       : type == PL_TYPE_F16 ? pl_f16_to_f32(load16(w + 2 * r))
                                             : pl_bf16_to_f32(load16(w + 2 * r));
            for (int t = 0; t < tile; t++)
                for (int r = 0; r < ROWS; r++) acc[t][r] = fmaf(v[r], a[t], acc[t][r]);
        }
        for (int t = 0; t < tile; t++) memcpy(dst + (size_t)t * dst_stride + g * ROWS, acc[t], sizeof acc[t]);
    }
}

#define MM(name, call)                                                                                                 \
    static void name(float *dst, size_t dst_stride, const void *w, int64_t n_groups, const void *act, int64_t k,       \
                     int tile)                                                                                         \
    {                                                                                                                  \
        call;                                                                                                          \
    }
#define MM32(name, ...) MM(name, mm32(dst, dst_stride, w, n_groups, act, k, tile, (format32){__VA_ARGS__}))

MM32(mm_q8_0, .bytes = 544, .zero = 128, .is_byte = true)
MM32(mm_q4_0, .bytes = 288, .zero = 8)
MM32(mm_q4_1, .bytes = 320, .has_min = true)
MM32(mm_q5_0, .bytes = 352, .zero = 16, .has_fifth = true)
MM32(mm_q5_1, .bytes = 384, .has_min = true, .has_fifth = true)
MM(mm_q4_k, mm_q45_k(dst, dst_stride, w, n_groups, act, k, tile, false))
MM(mm_q5_k, mm_q45_k(dst, dst_stride, w, n_groups, act, k, tile, true))
MM(mm_f32, mm_float(dst, dst_stride, w, n_groups, act, k, tile, PL_TYPE_F32))
MM(mm_f16, mm_float(dst, dst_stride, w, n_groups, act, k, tile, PL_TYPE_F16))
MM(mm_bf16, mm_float(dst, dst_stride, w, n_groups, act, k, tile, PL_TYPE_BF16))

void pl_cpu_mm_portable(pl_cpu_kernels *k)
{
    k->act_f32 = act_f32;
    k->act_q8 = act_q8;
    k->act_q8k = act_q8k;
    memset(k->mm, 0, sizeof k->mm);
    k->mm[PL_TYPE_F32] = mm_f32;
    k->mm[PL_TYPE_F16] = mm_f16;
    k->mm[PL_TYPE_BF16] = mm_bf16;
    k->mm[PL_TYPE_Q8_0] = mm_q8_0;
    k->mm[PL_TYPE_Q4_0] = mm_q4_0;
    k->mm[PL_TYPE_Q4_1] = mm_q4_1;
    k->mm[PL_TYPE_Q5_0] = mm_q5_0;
    k->mm[PL_TYPE_Q5_1] = mm_q5_1;
    k->mm[PL_TYPE_Q4_K] = mm_q4_k;
    k->mm[PL_TYPE_Q5_K] = mm_q5_k;
    k->mm[PL_TYPE_Q6_K] = mm_q6_k;
}
