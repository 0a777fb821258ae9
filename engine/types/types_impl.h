/* The conversions of each family, for the table in types.c. All have the contract of pl_type_info's pointers. */
#pragma once

#include "engine/types/types.h"

#define PL_TYPE_CONVERSIONS(name)                                                                                      \
    void pl_##name##_to_float(const void *src, float *dst, int64_t n);                                                 \
    void pl_##name##_from_float(const float *src, void *dst, int64_t n)

#define PL_TYPE_CONVERSIONS_IMATRIX(name)                                                                              \
    PL_TYPE_CONVERSIONS(name);                                                                                         \
    void pl_##name##_from_float_imatrix(const float *src, void *dst, int64_t n, int64_t n_per_row, const float *w)

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
PL_TYPE_CONVERSIONS(q8_1);
PL_TYPE_CONVERSIONS_IMATRIX(q4_0);
void pl_q4_0_from_float_quick(const float *src, void *dst, int64_t n);
PL_TYPE_CONVERSIONS_IMATRIX(q4_1);
PL_TYPE_CONVERSIONS_IMATRIX(q5_0);
PL_TYPE_CONVERSIONS_IMATRIX(q5_1);

/* q_k.c */
PL_TYPE_CONVERSIONS_IMATRIX(q2_k);
PL_TYPE_CONVERSIONS_IMATRIX(q3_k);
PL_TYPE_CONVERSIONS(q8_k);
PL_TYPE_CONVERSIONS_IMATRIX(q4_k);
PL_TYPE_CONVERSIONS_IMATRIX(q5_k);
PL_TYPE_CONVERSIONS_IMATRIX(q6_k);

/* iq.c, iq_encode.c */
PL_TYPE_CONVERSIONS_IMATRIX(iq2_xxs);
PL_TYPE_CONVERSIONS_IMATRIX(iq2_xs);
PL_TYPE_CONVERSIONS_IMATRIX(iq2_s);
PL_TYPE_CONVERSIONS_IMATRIX(iq3_xxs);
PL_TYPE_CONVERSIONS_IMATRIX(iq3_s);
PL_TYPE_CONVERSIONS_IMATRIX(iq1_s);
PL_TYPE_CONVERSIONS_IMATRIX(iq1_m);

/* iq4.c */
PL_TYPE_CONVERSIONS_IMATRIX(iq4_nl);
PL_TYPE_CONVERSIONS_IMATRIX(iq4_xs);

/* ternary.c */
PL_TYPE_CONVERSIONS_IMATRIX(tq1_0);
PL_TYPE_CONVERSIONS_IMATRIX(tq2_0);
PL_TYPE_CONVERSIONS_IMATRIX(q1_0);
PL_TYPE_CONVERSIONS_IMATRIX(q2_0);

/* fp4.c */
PL_TYPE_CONVERSIONS_IMATRIX(mxfp4);
PL_TYPE_CONVERSIONS_IMATRIX(nvfp4);

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
