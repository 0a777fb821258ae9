/* The products of the IQ types in plain C, which is their definition: a block of 16 rows becomes integers, the same 256
 * columns for all of them, and one scale for each 16 columns. */
#include "engine/cpu/act.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/pack.h"
#include "engine/types/iq_grid.h"

#define INLINE static inline __attribute__((always_inline))

enum { ROWS = PL_PACK_ROWS, N = 256 };

/* A block of 16 rows. */
typedef struct integers {
    float d[ROWS];
    int32_t scale[N / 16][ROWS]; /* 2 s + 1 */
    int16_t q[N][ROWS];
} integers;

/* Unit u, 4 bytes, of row r. */
INLINE uint32_t unit(const uint8_t *units, int u, int r)
{
    return pl_get_u32(units + 64 * u + 4 * r);
}

INLINE uint32_t byte_at(const uint8_t *units, int i, int r)
{
    return units[64 * (i / 4) + 4 * r + i % 4];
}

INLINE uint32_t word_at(const uint8_t *units, int i, int r)
{
    return unit(units, i / 2, r) >> i % 2 * 16 & 0xffff;
}

INLINE uint32_t nibble_at(const uint8_t *units, int i, int r)
{
    return byte_at(units, i / 2, r) >> i % 2 * 4 & 15;
}

INLINE void load_d(integers *b, const uint8_t *w, float f)
{
    for (int r = 0; r < ROWS; r++) b->d[r] = pl_f16_to_f32(pl_get_u16(w + 2 * r)) * f;
}

/* The scale of columns 32 i to 32 i + 31. */
INLINE void set_scale(integers *b, int i, int r, uint32_t s)
{
    b->scale[2 * i][r] = b->scale[2 * i + 1][r] = (int32_t)(2 * s + 1);
}

/* Bit 7 makes the number of ones even. */
INLINE uint32_t signs_of_7(uint32_t bits)
{
    uint32_t parity = bits ^ bits >> 4;
    parity ^= parity >> 2;
    parity ^= parity >> 1;
    return bits | (parity & 1) << 7;
}

/* Eight columns from 8 e on. */
INLINE void put_iq2(integers *b, int e, int r, uint32_t codes, uint32_t signs)
{
    for (int j = 0; j < 8; j++) {
        int v = pl_values_iq2[codes >> 2 * j & 3];
        b->q[8 * e + j][r] = (int16_t)(signs >> j & 1 ? -v : v);
    }
}

INLINE void put_iq3(integers *b, int e, int r, const int8_t *values, uint32_t first, uint32_t second, uint32_t signs)
{
    uint32_t codes = first | second << 16;
    for (int j = 0; j < 8; j++) {
        int v = values[codes >> 4 * j & 7];
        b->q[8 * e + j][r] = (int16_t)(signs >> j & 1 ? -v : v);
    }
}

INLINE void put_iq1(integers *b, int e, int r, uint32_t codes, bool negative)
{
    for (int j = 0; j < 8; j++)
        b->q[8 * e + j][r] = (int16_t)(8 * pl_values_iq1[codes >> 2 * j & 3] + (negative ? -1 : 1));
}

static void iq2_xxs(integers *b, const uint8_t *w)
{
    load_d(b, w, 0.125f);
    for (int i = 0; i < 8; i++) {
        for (int r = 0; r < ROWS; r++) {
            uint32_t index = unit(w + 32, 2 * i, r), rest = unit(w + 32, 2 * i + 1, r);
            set_scale(b, i, r, rest >> 28);
            for (int e = 0; e < 4; e++)
                put_iq2(b, 4 * i + e, r, pl_grid_iq2_xxs[index >> 8 * e & 255], signs_of_7(rest >> 7 * e & 127));
        }
    }
}

static void iq2_xs(integers *b, const uint8_t *w)
{
    const uint8_t *scales = w + 32, *pairs = w + 160;
    load_d(b, w, 0.125f);
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < 16; i++) b->scale[i][r] = (int32_t)(2 * nibble_at(scales, i, r) + 1);
        for (int e = 0; e < 32; e++) {
            uint32_t v = word_at(pairs, e, r);
            put_iq2(b, e, r, pl_grid_iq2_xs[v & 511], signs_of_7(v >> 9));
        }
    }
}

static void iq2_s(integers *b, const uint8_t *w)
{
    const uint8_t *scales = w + 32, *upper = w + 160, *units = w + 288;
    load_d(b, w, 0.125f);
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < 16; i++) b->scale[i][r] = (int32_t)(2 * nibble_at(scales, i, r) + 1);
        for (int i = 0; i < 8; i++) {
            uint32_t index = unit(units, 2 * i, r), signs = unit(units, 2 * i + 1, r), high = byte_at(upper, i, r);
            for (int e = 0; e < 4; e++)
                put_iq2(b, 4 * i + e, r, pl_grid_iq2_s[(index >> 8 * e & 255) | (high >> 2 * e & 3) << 8],
                        signs >> 8 * e & 255);
        }
    }
}

static void iq3_xxs(integers *b, const uint8_t *w)
{
    load_d(b, w, 0.25f);
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < 8; i++) {
            const uint8_t *index = w + 32 + 192 * i + 64;
            uint32_t rest = unit(w + 32 + 192 * i, 0, r);
            set_scale(b, i, r, rest >> 28);
            for (int e = 0; e < 4; e++)
                put_iq3(b, 4 * i + e, r, pl_values_iq3_xxs, pl_grid_iq3_xxs[byte_at(index, 2 * e, r)],
                        pl_grid_iq3_xxs[byte_at(index, 2 * e + 1, r)], signs_of_7(rest >> 7 * e & 127));
        }
    }
}

static void iq3_s(integers *b, const uint8_t *w)
{
    const uint8_t *scales = w + 32, *upper = w + 96;
    load_d(b, w, 1);
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < 8; i++) {
            const uint8_t *signs = w + 224 + 192 * i, *index = signs + 64;
            uint32_t high = byte_at(upper, i, r);
            set_scale(b, i, r, nibble_at(scales, i, r));
            for (int e = 0; e < 4; e++)
                put_iq3(b, 4 * i + e, r, pl_values_iq3_s,
                        pl_grid_iq3_s[byte_at(index, 2 * e, r) | (high >> 2 * e & 1) << 8],
                        pl_grid_iq3_s[byte_at(index, 2 * e + 1, r) | (high >> (2 * e + 1) & 1) << 8],
                        byte_at(signs, e, r));
        }
    }
}

static void iq1_s(integers *b, const uint8_t *w)
{
    load_d(b, w, 0.125f);
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < 8; i++) {
            const uint8_t *upper = w + 32 + 192 * (i / 2), *index = upper + 64;
            uint32_t high = word_at(upper, i % 2, r);
            set_scale(b, i, r, high >> 12 & 7);
            for (int e = 0; e < 4; e++)
                put_iq1(b, 4 * i + e, r, pl_grid_iq1[byte_at(index, i % 2 * 4 + e, r) | (high >> 3 * e & 7) << 8],
                        high >> 15);
        }
    }
}

static void iq1_m(integers *b, const uint8_t *w)
{
    const uint8_t *scales = w;
    for (int r = 0; r < ROWS; r++) {
        uint32_t d = 0;
        for (int i = 0; i < 4; i++) d |= word_at(scales, i, r) >> 12 << 4 * i;
        b->d[r] = pl_f16_to_f32((uint16_t)d) * 0.125f;
        for (int i = 0; i < 16; i++) b->scale[i][r] = (int32_t)(2 * (word_at(scales, i / 4, r) >> 3 * (i % 4) & 7) + 1);
        for (int e = 0; e < 32; e++) {
            const uint8_t *upper = w + 128 + 192 * (e / 8), *index = upper + 64;
            uint32_t high = nibble_at(upper, e % 8, r);
            put_iq1(b, e, r, pl_grid_iq1[byte_at(index, e % 8, r) | (high & 7) << 8], high >> 3);
        }
    }
}

INLINE void mm(float *dst, size_t dst_stride, const uint8_t *w, int64_t n_groups, const uint8_t *act, int64_t k,
               int tile, size_t block_bytes, void (*expand)(integers *b, const uint8_t *w))
{
    integers b;
    for (int64_t g = 0; g < n_groups; g++) {
        float acc[PL_ACT_TILE][ROWS] = {0};
        const uint8_t *a = act;
        for (int64_t i = 0; i < k / N; i++, w += block_bytes, a += tile * PL_ACT_Q8K_BYTES) {
            expand(&b, w);
            for (int t = 0; t < tile; t++) {
                int32_t sum[ROWS] = {0};
                const int8_t *x = (const int8_t *)a + N * t;
                for (int j = 0; j < N / 16; j++) {
                    int32_t part[ROWS] = {0};
                    for (int c = 16 * j; c < 16 * j + 16; c++)
                        for (int r = 0; r < ROWS; r++) part[r] += b.q[c][r] * x[c];
                    for (int r = 0; r < ROWS; r++) sum[r] += b.scale[j][r] * part[r];
                }
                float dx;
                memcpy(&dx, a + N * tile + 4 * t, 4);
                for (int r = 0; r < ROWS; r++) acc[t][r] = acc[t][r] + (b.d[r] * dx) * (float)sum[r];
            }
        }
        for (int t = 0; t < tile; t++) memcpy(dst + (size_t)t * dst_stride + g * ROWS, acc[t], sizeof acc[t]);
    }
}

#define MM(name, plain_bytes)                                                                                          \
    static void mm_##name(float *dst, size_t dst_stride, const void *w, int64_t n_groups, const void *act, int64_t k,  \
                          int tile)                                                                                    \
    {                                                                                                                  \
        mm(dst, dst_stride, w, n_groups, act, k, tile, ROWS *(plain_bytes), name);                                     \
    }

MM(iq2_xxs, 66)
MM(iq2_xs, 74)
MM(iq2_s, 82)
MM(iq3_xxs, 98)
MM(iq3_s, 110)
MM(iq1_s, 50)
MM(iq1_m, 56)

void pl_cpu_mm_iq_portable(pl_cpu_kernels *k)
{
    k->mm[PL_TYPE_IQ2_XXS] = mm_iq2_xxs;
    k->mm[PL_TYPE_IQ2_XS] = mm_iq2_xs;
    k->mm[PL_TYPE_IQ2_S] = mm_iq2_s;
    k->mm[PL_TYPE_IQ3_XXS] = mm_iq3_xxs;
    k->mm[PL_TYPE_IQ3_S] = mm_iq3_s;
    k->mm[PL_TYPE_IQ1_S] = mm_iq1_s;
    k->mm[PL_TYPE_IQ1_M] = mm_iq1_m;
}
