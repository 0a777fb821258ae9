/* Searches behind the encoders: scales that leave the smallest weighted square of errors.
 *
 * All take n values x, a multiple of 8 and at most PL_FIT_MAX, and their weights w >= 0. The method is the same
 * everywhere: for some widths of the step around the obvious one, round, solve the least squares for scale (and offset)
 * given those integers, and keep what leaves the least; the winner is rounded and solved again until that gains
 * nothing. Values that are no numbers give results without meaning, but no harm. */
#pragma once

#include "engine/types/types_impl.h"

enum { PL_FIT_MAX = 256 };

/* Scale s, of either sign, for x = s * q with q in low..high, low < 0 < high. 0 when all x are 0. */
float pl_fit_symmetric(const float *x, const float *w, int n, int low, int high);

/* Scale and minimum for x = scale * q - minimum with q in 0..q_max. minimum >= 0, unless any_minimum. */
void pl_fit_offset(const float *x, const float *w, int n, int q_max, bool any_minimum, float *scale, float *minimum);

/* Of a table of ascending levels within +-127: which is nearest. Values are looked up at their double, rounded down: a
 * border between two levels is a half of an integer, so that no cell has one within. */
typedef struct pl_levels {
    float lowest, highest, level[512];
    uint8_t code[512];
} pl_levels;
void pl_levels_init(pl_levels *t, const int8_t levels[16]);
static inline int pl_levels_nearest(const pl_levels *t, float v)
{
    float twice = v * 2 + 256;
    return t->code[!(twice > 0) ? 0 : twice >= 511 ? 511 : (int)twice];
}

/* Scale s, of either sign, for x = s * level. */
float pl_fit_levels(const float *x, const float *w, int n, const pl_levels *t);

/* The error of x under the scale s. */
float pl_levels_error(const float *x, const float *w, int n, const pl_levels *t, float s);

/* Of n errors, the weighted square sum of x[i] - s * q[i] - m. */
float pl_fit_error(const float *x, const float *w, const float *q, int n, float s, float m);

/* q[i] = (x[i] - m) / s, rounded within low..high; gives the error. */
float pl_fit_round(const float *x, const float *w, int n, int low, int high, float s, float m, float *q);

/* Encodes n values block by block with encode, which takes the weights of its columns. weights is NULL (1 for each), or
 * has n_per_row of them. */
void pl_encode_blocks(const float *src, void *dst, int64_t n, int64_t n_per_row, const float *weights, int block,
                      size_t bytes, void (*encode)(const float *x, const float *w, uint8_t *b));
/* As pl_encode_blocks, with a table of levels for encode. */
void pl_encode_blocks_levels(const float *src, void *dst, int64_t n, int64_t n_per_row, const float *weights, int block,
                             size_t bytes, const int8_t levels[16],
                             void (*encode)(const float *x, const float *w, const pl_levels *t, uint8_t *b));

/* The two encoders of a type, from encode_<name>. */
#define PL_TYPE_ENCODERS(name, block, bytes)                                                                           \
    void pl_##name##_from_float(const float *src, void *dst, int64_t n)                                                \
    {                                                                                                                  \
        pl_encode_blocks(src, dst, n, n, NULL, block, bytes, encode_##name);                                           \
    }                                                                                                                  \
    void pl_##name##_from_float_imatrix(const float *src, void *dst, int64_t n, int64_t n_per_row, const float *w)     \
    {                                                                                                                  \
        pl_encode_blocks(src, dst, n, n_per_row, w, block, bytes, encode_##name);                                      \
    }
#define PL_TYPE_ENCODERS_LEVELS(name, block, bytes, levels)                                                            \
    void pl_##name##_from_float(const float *src, void *dst, int64_t n)                                                \
    {                                                                                                                  \
        pl_encode_blocks_levels(src, dst, n, n, NULL, block, bytes, levels, encode_##name);                            \
    }                                                                                                                  \
    void pl_##name##_from_float_imatrix(const float *src, void *dst, int64_t n, int64_t n_per_row, const float *w)     \
    {                                                                                                                  \
        pl_encode_blocks_levels(src, dst, n, n_per_row, w, block, bytes, levels, encode_##name);                       \
    }
