/* The products of the types of few levels, and of the two that hold bytes for completeness, in plain C, which is their
 * definition: a block of 16 rows becomes integers and scales, and those are multiplied. */
#include "engine/cpu/act.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/pack.h"

#define INLINE static inline __attribute__((always_inline))

enum { ROWS = PL_PACK_ROWS, N = 256, STEP = 32 };

/* Byte i of a field that begins at units, of row r. */
INLINE int byte_at(const uint8_t *units, int i, int r)
{
    return units[64 * (i / 4) + 4 * r + i % 4];
}

INLINE int nibble_at(const uint8_t *units, int i, int r)
{
    return byte_at(units, i / 2, r) >> i % 2 * 4 & 15;
}

INLINE void load_f16(float out[ROWS], const uint8_t *p)
{
    for (int r = 0; r < ROWS; r++) out[r] = pl_f16_to_f32(pl_get_u16(p + 2 * r));
}

INLINE float load_f32(const uint8_t *p)
{
    float v;
    memcpy(&v, p, 4);
    return v;
}

/* --- Types whose activations have blocks of 32. --- */

/* 32 columns of a block of 16 rows. There is one scale, or one for each half. */
typedef struct step32 {
    int halves;
    float d[2][ROWS];
    int16_t q[STEP][ROWS];
} step32;

/* Column c has the low nibble of byte c of the field, column c + half the high one. */
INLINE void levels_of(step32 *s, const uint8_t *units, int first, int half, const int8_t levels[16])
{
    for (int c = 0; c < half; c++) {
        for (int r = 0; r < ROWS; r++) {
            int v = byte_at(units, first / 2 + c, r);
            s->q[first % STEP + c][r] = levels[v & 15];
            s->q[first % STEP + c + half][r] = levels[v >> 4];
        }
    }
}

static void iq4_nl(step32 *s, const uint8_t *w, int i)
{
    (void)i;
    load_f16(s->d[0], w);
    levels_of(s, w + 32, 0, 16, pl_iq4_levels);
}

static void mxfp4(step32 *s, const uint8_t *w, int i)
{
    (void)i;
    for (int r = 0; r < ROWS; r++) s->d[0][r] = pl_mxfp4_scale(w[r]);
    levels_of(s, w + 16, 0, 16, pl_fp4_levels);
}

static void nvfp4(step32 *s, const uint8_t *w, int i)
{
    for (int h = 0; h < 2; h++) {
        for (int r = 0; r < ROWS; r++) s->d[h][r] = pl_nvfp4_scale((uint8_t)byte_at(w, 2 * i + h, r));
        levels_of(s, w + 64, STEP * i + 16 * h, 8, pl_fp4_levels);
    }
}

static void q1_0(step32 *s, const uint8_t *w, int i)
{
    load_f16(s->d[0], w);
    for (int c = 0; c < STEP; c++)
        for (int r = 0; r < ROWS; r++) s->q[c][r] = byte_at(w + 32 + 64 * i, c % 4, r) >> c / 4 & 1 ? 1 : -1;
}

static void q2_0(step32 *s, const uint8_t *w, int i)
{
    load_f16(s->d[0], w);
    for (int c = 0; c < STEP; c++)
        for (int r = 0; r < ROWS; r++)
            s->q[c][r] = (int16_t)((byte_at(w + 32 + 64 * (2 * i + c / 16), c % 4, r) >> c % 16 / 4 * 2 & 3) - 1);
}

static void q8_1(step32 *s, const uint8_t *w, int i)
{
    (void)i;
    load_f16(s->d[0], w);
    for (int c = 0; c < STEP; c++)
        for (int r = 0; r < ROWS; r++) s->q[c][r] = (int16_t)(byte_at(w + 64, c, r) - 128);
}

INLINE void mm32(float *dst, size_t dst_stride, const uint8_t *w, int64_t n_groups, const uint8_t *act, int64_t k,
                 int tile, pl_type type, int halves, void (*expand)(step32 *s, const uint8_t *w, int i))
{
    const int columns = (int)pl_type_get(type)->block;
    const size_t bytes = ROWS * pl_type_get(type)->bytes;
    step32 s;
    for (int64_t g = 0; g < n_groups; g++) {
        float acc[PL_ACT_TILE][ROWS] = {0};
        const uint8_t *a = act;
        for (int64_t b = 0; b < k / columns; b++, w += bytes) {
            for (int i = 0; i < columns / STEP; i++, a += tile * PL_ACT_Q8_BYTES) {
                expand(&s, w, i);
                for (int t = 0; t < tile; t++) {
                    const int8_t *x = (const int8_t *)a + STEP * t;
                    float dx = load_f32(a + STEP * tile + 4 * t);
                    for (int h = 0; h < halves; h++) {
                        int32_t sum[ROWS] = {0};
                        for (int c = STEP / halves * h; c < STEP / halves * (h + 1); c++)
                            for (int r = 0; r < ROWS; r++) sum[r] += s.q[c][r] * x[c];
                        for (int r = 0; r < ROWS; r++) acc[t][r] = acc[t][r] + (s.d[h][r] * dx) * (float)sum[r];
                    }
                }
            }
        }
        for (int t = 0; t < tile; t++) memcpy(dst + (size_t)t * dst_stride + g * ROWS, acc[t], sizeof acc[t]);
    }
}

/* --- Types whose activations have blocks of 256. --- */

/* A block of 16 rows, with a scale for each 16 columns, and a minimum where the type has them. */
typedef struct block256 {
    float d[ROWS], dmin[ROWS];
    int32_t scale[N / 16][ROWS], minimum[N / 16][ROWS];
    int16_t q[N][ROWS];
} block256;

INLINE void scales_are_1(block256 *b)
{
    for (int j = 0; j < N / 16; j++)
        for (int r = 0; r < ROWS; r++) b->scale[j][r] = 1;
}

/* Two bits of column c: byte c % 32 of each 32 has four columns 32 apart. */
INLINE int two_bits(const uint8_t *units, int c, int r)
{
    return byte_at(units, c / 128 * 32 + c % 32, r) >> c % 128 / 32 * 2 & 3;
}

static void q2_k(block256 *b, const uint8_t *w)
{
    load_f16(b->d, w);
    load_f16(b->dmin, w + 32);
    for (int r = 0; r < ROWS; r++) {
        for (int j = 0; j < 16; j++) {
            b->scale[j][r] = byte_at(w + 64, j, r) & 15;
            b->minimum[j][r] = byte_at(w + 64, j, r) >> 4;
        }
        for (int c = 0; c < N; c++) b->q[c][r] = (int16_t)two_bits(w + 320, c, r);
    }
}

static void q3_k(block256 *b, const uint8_t *w)
{
    load_f16(b->d, w);
    for (int r = 0; r < ROWS; r++) {
        for (int j = 0; j < 16; j++)
            b->scale[j][r] = ((byte_at(w + 32, j % 8, r) >> j / 8 * 4 & 15) |
                              (byte_at(w + 32, 8 + j % 4, r) >> j / 4 * 2 & 3) << 4) -
                             32;
        for (int c = 0; c < N; c++) {
            int third = byte_at(w + 224, c % 32, r) >> c / 32 & 1;
            b->q[c][r] = (int16_t)((two_bits(w + 736, c, r) | third << 2) - 4);
        }
    }
}

static void iq4_xs(block256 *b, const uint8_t *w)
{
    load_f16(b->d, w);
    for (int r = 0; r < ROWS; r++) {
        for (int j = 0; j < 8; j++) {
            int sc = nibble_at(w + 64, j, r) | (pl_get_u16(w + 32 + 2 * r) >> 2 * j & 3) << 4;
            b->scale[2 * j][r] = b->scale[2 * j + 1][r] = sc - 32;
            for (int i = 0; i < 16; i++) {
                int v = byte_at(w + 128, 16 * j + i, r);
                b->q[32 * j + i][r] = pl_iq4_levels[v & 15];
                b->q[32 * j + i + 16][r] = pl_iq4_levels[v >> 4];
            }
        }
    }
}

static void tq1_0(block256 *b, const uint8_t *w)
{
    load_f16(b->d, w);
    scales_are_1(b);
    for (int c = 0; c < N; c++) {
        /* 32 bytes of five columns each, 16 bytes, and 4 bytes of four. */
        int first = c < 160 ? 0 : c < 240 ? 160 : 240, width = c < 160 ? 32 : c < 240 ? 16 : 4;
        int byte = first / 5 + (c - first) % width, power = 1;
        for (int n = (c - first) / width; n > 0; n--) power *= 3;
        for (int r = 0; r < ROWS; r++) b->q[c][r] = (int16_t)(((byte_at(w + 32, byte, r) * power & 255) * 3 >> 8) - 1);
    }
}

static void tq2_0(block256 *b, const uint8_t *w)
{
    load_f16(b->d, w);
    scales_are_1(b);
    for (int c = 0; c < N; c++)
        for (int r = 0; r < ROWS; r++) b->q[c][r] = (int16_t)(two_bits(w + 32, c, r) - 1);
}

static void q8_k(block256 *b, const uint8_t *w)
{
    scales_are_1(b);
    for (int r = 0; r < ROWS; r++) b->d[r] = load_f32(w + 4 * r);
    for (int c = 0; c < N; c++)
        for (int r = 0; r < ROWS; r++) b->q[c][r] = (int16_t)(byte_at(w + 576, c, r) - 128);
}

INLINE void mm256(float *dst, size_t dst_stride, const uint8_t *w, int64_t n_groups, const uint8_t *act, int64_t k,
                  int tile, pl_type type, bool has_min, void (*expand)(block256 *b, const uint8_t *w))
{
    const size_t bytes = ROWS * pl_type_get(type)->bytes;
    block256 b;
    for (int64_t g = 0; g < n_groups; g++) {
        float acc[PL_ACT_TILE][ROWS] = {0};
        const uint8_t *a = act;
        for (int64_t i = 0; i < k / N; i++, w += bytes, a += tile * PL_ACT_Q8K_BYTES) {
            expand(&b, w);
            for (int t = 0; t < tile; t++) {
                int32_t sum[ROWS] = {0}, min[ROWS] = {0};
                const int8_t *x = (const int8_t *)a + N * t;
                for (int j = 0; j < N / 16; j++) {
                    int32_t part[ROWS] = {0}, sum_x = 0;
                    for (int c = 16 * j; c < 16 * j + 16; c++) {
                        sum_x += x[c];
                        for (int r = 0; r < ROWS; r++) part[r] += b.q[c][r] * x[c];
                    }
                    for (int r = 0; r < ROWS; r++) {
                        sum[r] += b.scale[j][r] * part[r];
                        if (has_min) min[r] += b.minimum[j][r] * sum_x;
                    }
                }
                float dx = load_f32(a + N * tile + 4 * t);
                for (int r = 0; r < ROWS; r++) {
                    acc[t][r] = acc[t][r] + (b.d[r] * dx) * (float)sum[r];
                    if (has_min) acc[t][r] = acc[t][r] - (b.dmin[r] * dx) * (float)min[r];
                }
            }
        }
        for (int t = 0; t < tile; t++) memcpy(dst + (size_t)t * dst_stride + g * ROWS, acc[t], sizeof acc[t]);
    }
}

#define MM(name, function, type, option)                                                                               \
    static void mm_##name(float *dst, size_t dst_stride, const void *w, int64_t n_groups, const void *act, int64_t k,  \
                          int tile)                                                                                    \
    {                                                                                                                  \
        function(dst, dst_stride, w, n_groups, act, k, tile, type, option, name);                                      \
    }

MM(iq4_nl, mm32, PL_TYPE_IQ4_NL, 1)
MM(mxfp4, mm32, PL_TYPE_MXFP4, 1)
MM(nvfp4, mm32, PL_TYPE_NVFP4, 2)
MM(q1_0, mm32, PL_TYPE_Q1_0, 1)
MM(q2_0, mm32, PL_TYPE_Q2_0, 1)
MM(q8_1, mm32, PL_TYPE_Q8_1, 1)
MM(q2_k, mm256, PL_TYPE_Q2_K, true)
MM(q3_k, mm256, PL_TYPE_Q3_K, false)
MM(iq4_xs, mm256, PL_TYPE_IQ4_XS, false)
MM(tq1_0, mm256, PL_TYPE_TQ1_0, false)
MM(tq2_0, mm256, PL_TYPE_TQ2_0, false)
MM(q8_k, mm256, PL_TYPE_Q8_K, false)

void pl_cpu_mm_small_portable(pl_cpu_kernels *k)
{
    k->mm[PL_TYPE_IQ4_NL] = mm_iq4_nl;
    k->mm[PL_TYPE_MXFP4] = mm_mxfp4;
    k->mm[PL_TYPE_NVFP4] = mm_nvfp4;
    k->mm[PL_TYPE_Q1_0] = mm_q1_0;
    k->mm[PL_TYPE_Q2_0] = mm_q2_0;
    k->mm[PL_TYPE_Q8_1] = mm_q8_1;
    k->mm[PL_TYPE_Q2_K] = mm_q2_k;
    k->mm[PL_TYPE_Q3_K] = mm_q3_k;
    k->mm[PL_TYPE_IQ4_XS] = mm_iq4_xs;
    k->mm[PL_TYPE_TQ1_0] = mm_tq1_0;
    k->mm[PL_TYPE_TQ2_0] = mm_tq2_0;
    k->mm[PL_TYPE_Q8_K] = mm_q8_k;
}
