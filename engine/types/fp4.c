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
#include "engine/types/types_impl.h"

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
