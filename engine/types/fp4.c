/* Four-bit floats (sign, two bits of exponent, one of mantissa) under a scale of eight bits.
 *
 *   MXFP4: u8 e, 16 bytes                  x = 2^(e - 128) * level[q], 32 elements
 *   NVFP4: 4 x u8 scale, 4 x 8 bytes       x = scale / 2 * level[q], 4 x 16
 *
 * The levels are twice the numbers of the format, so that they are integers, and the scales are halved for it. A scale
 * of NVFP4 has four bits of exponent (bias 7) and three of mantissa; bit 7 is ignored, and 0x7F, which is no number,
 * counts as 0. Element i of the first half of a (sub-)block has the low bits of byte i, the second half the high ones.
 *
 * Formats: OCP Microscaling Formats (MX) Specification 1.0; NVIDIA's NVFP4 as GGUF stores it. */
#include "engine/types/fit.h"

enum { N_MX = 32, MX_BYTES = 17, N_NV = 64, NV_BYTES = 36, NV_SUB = 16 };

const int8_t pl_fp4_levels[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

float pl_mxfp4_scale(uint8_t e)
{
    /* 2^-128 and 2^-127 are subnormal. */
    uint32_t u = e < 2 ? (uint32_t)0x00200000 << e : (uint32_t)(e - 1) << 23;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

float pl_nvfp4_scale(uint8_t s)
{
    if (s == 0x7F) return 0;
    /* The same fields as a half's upper ones, whose bias is 15: 2^8 between the two, and half of that. */
    return pl_f16_to_f32((uint16_t)((s & 0x7F) << 7)) * 128;
}

static void decode(const uint8_t *qs, int half, float d, float *dst)
{
    for (int i = 0; i < half; i++) {
        dst[i] = d * (float)pl_fp4_levels[qs[i] & 15];
        dst[i + half] = d * (float)pl_fp4_levels[qs[i] >> 4];
    }
}

void pl_mxfp4_to_float(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += N_MX, b += MX_BYTES) decode(b + 1, N_MX / 2, pl_mxfp4_scale(b[0]), dst + at);
}

void pl_nvfp4_to_float(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += N_NV, b += NV_BYTES) {
        for (int j = 0; j < N_NV / NV_SUB; j++)
            decode(b + 4 + j * NV_SUB / 2, NV_SUB / 2, pl_nvfp4_scale(b[j]), dst + at + j * NV_SUB);
    }
}

static const int8_t ascending[16] = {-12, -8, -6, -4, -3, -2, -1, 0, 0, 1, 2, 3, 4, 6, 8, 12};

/* The nearest level's code: the magnitude's and the sign. Ties go to the smaller magnitude. */
static int code_of(float v)
{
    float a = v < 0 ? -v : v;
    int code = (a > 0.5f) + (a > 1.5f) + (a > 2.5f) + (a > 3.5f) + (a > 5) + (a > 7) + (a > 10);
    return v < 0 && code > 0 ? code | 8 : code;
}

static float largest_of(const float *x, int n)
{
    float largest = 0;
    for (int i = 0; i < n; i++) {
        float a = x[i] < 0 ? -x[i] : x[i];
        if (a > largest) largest = a;
    }
    return largest;
}

static void encode(const float *x, int half, float d, uint8_t *qs)
{
    float inverse = pl_inverse(d);
    for (int i = 0; i < half; i++) qs[i] = (uint8_t)(code_of(x[i] * inverse) | code_of(x[i + half] * inverse) << 4);
}

/* Of the code whose scale makes the largest value the largest level, and some around it, that with the least error. */
static uint8_t best_code(const float *x, const float *w, int n, const pl_levels *t, int middle, int below, int above,
                         int code_max, float (*scale_of)(uint8_t code))
{
    int best = middle;
    float least = pl_levels_error(x, w, n, t, scale_of((uint8_t)middle));
    for (int c = middle - below; c <= middle + above; c++) {
        if (c < 0 || c > code_max || c == middle) continue;
        float error = pl_levels_error(x, w, n, t, scale_of((uint8_t)c));
        if (error < least) {
            least = error;
            best = c;
        }
    }
    return (uint8_t)best;
}

static void encode_mxfp4(const float *x, const float *w, const pl_levels *t, uint8_t *b)
{
    enum { E_MAX = 252 }; /* above, the largest level is infinite */
    float largest = largest_of(x, N_MX);
    int e = 0;
    for (int bit = 128; bit > 0; bit /= 2)
        if (e + bit <= E_MAX && pl_mxfp4_scale((uint8_t)(e + bit)) * 12 < largest) e += bit;
    b[0] = largest > 0 ? best_code(x, w, N_MX, t, e, 1, 1, E_MAX, pl_mxfp4_scale) : 0;
    encode(x, N_MX / 2, pl_mxfp4_scale(b[0]), b + 1);
}
PL_TYPE_ENCODERS_LEVELS(mxfp4, N_MX, MX_BYTES, ascending)

static void encode_nvfp4(const float *x, const float *w, const pl_levels *t, uint8_t *b)
{
    enum { CODE_MAX = 0x7E };
    for (int j = 0; j < N_NV / NV_SUB; j++) {
        const float *xj = x + j * NV_SUB;
        float largest = largest_of(xj, NV_SUB);
        int code = 0; /* scales ascend with their codes */
        for (int bit = 64; bit > 0; bit /= 2)
            if (code + bit <= CODE_MAX && pl_nvfp4_scale((uint8_t)(code + bit)) * 12 < largest) code += bit;
        b[j] = largest > 0 ? best_code(xj, w + j * NV_SUB, NV_SUB, t, code, 8, 6, CODE_MAX, pl_nvfp4_scale) : 0;
        encode(xj, NV_SUB / 2, pl_nvfp4_scale(b[j]), b + 4 + j * NV_SUB / 2);
    }
}
PL_TYPE_ENCODERS_LEVELS(nvfp4, N_NV, NV_BYTES, ascending)
