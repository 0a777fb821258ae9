/* The conversions of each family, for the table in types.c. All have the contract of pl_type_info's pointers. */
#pragma once

#include "engine/types/types.h"

#define PL_TYPE_CONVERSIONS(name)                                                                                      \
    void pl_##name##_to_float(const void *src, float *dst, int64_t n);                                                 \
    void pl_##name##_from_float(const float *src, void *dst, int64_t n)

/* float.c */
PL_TYPE_CONVERSIONS(f32);
PL_TYPE_CONVERSIONS(f16);
PL_TYPE_CONVERSIONS(bf16);
PL_TYPE_CONVERSIONS(f64);
void pl_i8_to_float(const void *src, float *dst, int64_t n);
void pl_i16_to_float(const void *src, float *dst, int64_t n);
void pl_i32_to_float(const void *src, float *dst, int64_t n);
void pl_i64_to_float(const void *src, float *dst, int64_t n);

/* q_legacy.c */
PL_TYPE_CONVERSIONS(q8_0);
void pl_q8_1_to_float(const void *src, float *dst, int64_t n);
PL_TYPE_CONVERSIONS(q4_0);
PL_TYPE_CONVERSIONS(q4_1);
PL_TYPE_CONVERSIONS(q5_0);
PL_TYPE_CONVERSIONS(q5_1);

/* q_k.c */
void pl_q2_k_to_float(const void *src, float *dst, int64_t n);
void pl_q3_k_to_float(const void *src, float *dst, int64_t n);
void pl_q8_k_to_float(const void *src, float *dst, int64_t n);
PL_TYPE_CONVERSIONS(q4_k);
PL_TYPE_CONVERSIONS(q5_k);
PL_TYPE_CONVERSIONS(q6_k);

/* iq.c */
void pl_iq2_xxs_to_float(const void *src, float *dst, int64_t n);
void pl_iq2_xs_to_float(const void *src, float *dst, int64_t n);
void pl_iq2_s_to_float(const void *src, float *dst, int64_t n);
void pl_iq3_xxs_to_float(const void *src, float *dst, int64_t n);
void pl_iq3_s_to_float(const void *src, float *dst, int64_t n);
void pl_iq1_s_to_float(const void *src, float *dst, int64_t n);
void pl_iq1_m_to_float(const void *src, float *dst, int64_t n);
/* iq4.c */
void pl_iq4_nl_to_float(const void *src, float *dst, int64_t n);
void pl_iq4_xs_to_float(const void *src, float *dst, int64_t n);

/* ternary.c */
void pl_tq1_0_to_float(const void *src, float *dst, int64_t n);
void pl_tq2_0_to_float(const void *src, float *dst, int64_t n);
void pl_q1_0_to_float(const void *src, float *dst, int64_t n);
void pl_q2_0_to_float(const void *src, float *dst, int64_t n);

/* fp4.c */
void pl_mxfp4_to_float(const void *src, float *dst, int64_t n);
void pl_nvfp4_to_float(const void *src, float *dst, int64_t n);

/* v to the nearest integer, ties to even, kept within low..high; low for NaN. |low| and |high| are below 2^22. */
static inline int pl_round_within(float v, int low, int high)
{
    if (!(v > (float)low)) return low;
    if (v >= (float)high) return high;
    /* 1.5 * 2^23 pushes the fraction out of the mantissa; the integer remains in its low bits. */
    float shifted = v + 12582912.0f;
    int32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    return (bits & 0x007FFFFF) - 0x00400000;
}

/* 1 / v, or 0 where that has no use. */
static inline float pl_inverse(float v)
{
    return v != 0 ? 1.0f / v : 0.0f;
}
