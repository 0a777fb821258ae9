#include "engine/types/types_impl.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are little-endian and are read in place");

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

float pl_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 0x3FF;
    if (exponent == 31) return float_of(sign | 0x7F800000 | fraction << 13);
    if (exponent) return float_of(sign | (exponent + 127 - 15) << 23 | fraction << 13);
    /* Subnormal: fraction * 2^-24, exact in f32. */
    float f = (float)fraction * 0x1p-24f;
    return float_of(sign | bits_of(f));
}

uint16_t pl_f32_to_f16(float f)
{
    uint32_t u = bits_of(f), sign = u >> 16 & 0x8000;
    u &= 0x7FFFFFFF;
    if (u > 0x7F800000) return (uint16_t)(sign | 0x7E00 | (u >> 13 & 0x3FF)); /* NaN, made quiet, keeps its payload */
    if (u >= 0x47800000) return (uint16_t)(sign | 0x7C00);                    /* 65536 and above */
    if (u >= 0x38800000) {
        /* Normal. Adding half of the last place, and the last place's own bit for ties, carries into the exponent as it
         * should, up to infinity. */
        u -= (127 - 15) << 23;
        return (uint16_t)(sign | (u + 0xFFF + (u >> 13 & 1)) >> 13);
    }
    /* Subnormal or zero: one float addition shifts and rounds. 0.5 has its last place at 2^-24. */
    return (uint16_t)(sign | (bits_of(float_of(u) + 0.5f) - 0x3F000000));
}

uint16_t pl_f32_to_bf16(float f)
{
    uint32_t u = bits_of(f);
    if ((u & 0x7FFFFFFF) > 0x7F800000)
        return (uint16_t)(u >> 16 | 0x40); /* cutting a NaN's payload could make infinity */
    return (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}

void pl_f32_to_float(const void *src, float *dst, int64_t n)
{
    memcpy(dst, src, (size_t)n * sizeof *dst);
}
void pl_f32_from_float(const float *src, void *dst, int64_t n)
{
    memcpy(dst, src, (size_t)n * sizeof *src);
}

void pl_f16_to_float(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t i = 0; i < n; i++) dst[i] = pl_f16_to_f32(pl_get_u16(b + 2 * i));
}

void pl_f16_from_float(const float *src, void *dst, int64_t n)
{
    uint8_t *b = dst;
    for (int64_t i = 0; i < n; i++) pl_put_u16(b + 2 * i, pl_f32_to_f16(src[i]));
}

void pl_bf16_to_float(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t i = 0; i < n; i++) dst[i] = pl_bf16_to_f32(pl_get_u16(b + 2 * i));
}

void pl_bf16_from_float(const float *src, void *dst, int64_t n)
{
    uint8_t *b = dst;
    for (int64_t i = 0; i < n; i++) pl_put_u16(b + 2 * i, pl_f32_to_bf16(src[i]));
}

void pl_f64_to_float(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t i = 0; i < n; i++) {
        double v;
        memcpy(&v, b + 8 * i, sizeof v);
        dst[i] = (float)v;
    }
}

void pl_f64_from_float(const float *src, void *dst, int64_t n)
{
    uint8_t *b = dst;
    for (int64_t i = 0; i < n; i++) {
        double v = src[i];
        memcpy(b + 8 * i, &v, sizeof v);
    }
}

void pl_i8_to_float(const void *src, float *dst, int64_t n)
{
    const int8_t *b = src;
    for (int64_t i = 0; i < n; i++) dst[i] = b[i];
}

void pl_i16_to_float(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t i = 0; i < n; i++) dst[i] = (int16_t)pl_get_u16(b + 2 * i);
}

void pl_i32_to_float(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t i = 0; i < n; i++) dst[i] = (float)(int32_t)pl_get_u32(b + 4 * i);
}

void pl_i64_to_float(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t i = 0; i < n; i++) dst[i] = (float)(int64_t)pl_get_u64(b + 8 * i);
}
