#include "engine/types/fit.h"

#include <math.h>

#define INLINE static inline __attribute__((always_inline))

/* Eight partial sums, so that compilers can keep them in vectors; the order is the same everywhere. */
enum { LANES = 8 };

INLINE float total(const float s[LANES])
{
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

/* v within low..high to the nearest integer, as a float. NaN becomes low. */
INLINE float round_between(float v, float low, float high)
{
    v = v > low ? v : low;
    v = v < high ? v : high;
    return (v + 12582912.0f) - 12582912.0f;
}

float pl_fit_error(const float *x, const float *w, const float *q, int n, float s, float m)
{
    float sum[LANES] = {0};
    for (int i = 0; i < n; i += LANES) {
        for (int l = 0; l < LANES; l++) {
            float e = x[i + l] - (s * q[i + l] + m);
            sum[l] += w[i + l] * e * e;
        }
    }
    return total(sum);
}

/* The value of the largest magnitude. */
static float extreme_of(const float *x, int n)
{
    float extreme = 0, largest = 0;
    for (int i = 0; i < n; i++) {
        float a = fabsf(x[i]);
        if (a > largest) {
            largest = a;
            extreme = x[i];
        }
    }
    return extreme;
}

/* The best scale for a choice of integers, and by how much it lowers the error. */
typedef struct gain {
    float scale, gain;
} gain;

INLINE gain gain_of(float qx, float qq)
{
    if (!(qq > 0)) return (gain){0, -1};
    return (gain){qx / qq, qx / qq * qx};
}

/* --- Symmetric integers. --- */

static gain try_symmetric(const float *x, const float *w, int n, float low, float high, float inverse)
{
    float qx[LANES] = {0}, qq[LANES] = {0};
    for (int i = 0; i < n; i += LANES) {
        for (int l = 0; l < LANES; l++) {
            float q = round_between(x[i + l] * inverse, low, high), wq = w[i + l] * q;
            qx[l] += wq * x[i + l];
            qq[l] += wq * q;
        }
    }
    return gain_of(total(qx), total(qq));
}

enum { STEPS = 18, REFINEMENTS = 4 };

/* The factor of candidate i of the width of a step: below 1 the largest values are cut off, above 1 room is wasted.
 * Coarse types profit from cutting much, fine ones from trying what differs by a fraction of a step. */
static float width_of(int i, int levels)
{
    float reach = levels <= 8 ? 0.55f : levels <= 16 ? 0.35f : levels <= 32 ? 0.2f : 0.06f;
    float from = levels <= 4 ? 0.45f : 1.0f - reach;
    return from + (1.0f + reach * 0.25f - from) * (float)i / (STEPS - 1);
}

float pl_fit_symmetric(const float *x, const float *w, int n, int low, int high)
{
    float extreme = extreme_of(x, n);
    if (extreme == 0) return 0;
    gain best = {extreme / (float)low, -1};
    /* The extreme takes the end of the range that reaches further, or the other one. */
    for (int side = 0; side < 2; side++) {
        float end = side ? (float)high : (float)low;
        for (int i = 0; i < STEPS; i++) {
            float inverse = end / (extreme * width_of(i, high - low + 1));
            gain g = try_symmetric(x, w, n, (float)low, (float)high, inverse);
            if (g.gain > best.gain) best = g;
        }
    }
    for (int i = 0; i < REFINEMENTS; i++) {
        gain g = try_symmetric(x, w, n, (float)low, (float)high, pl_inverse(best.scale));
        if (!(g.gain > best.gain)) break;
        best = g;
    }
    return best.scale;
}

/* --- Levels. --- */

void pl_nearest_init(pl_nearest *t, const int8_t levels[16])
{
    for (int i = 0, at = 0; i < 512; i++) {
        /* Between two levels stands a half of an integer, so that no cell has a border within. */
        while (at < 15 && i - 256 >= levels[at] + levels[at + 1]) at++;
        t->of_half[i] = (uint8_t)at;
    }
}

static gain try_levels(const float *x, const float *w, int n, const int8_t levels[16], const pl_nearest *t,
                       float inverse)
{
    float qx = 0, qq = 0;
    for (int i = 0; i < n; i++) {
        float q = levels[pl_nearest_level(t, x[i] * inverse)], wq = w[i] * q;
        qx += wq * x[i];
        qq += wq * q;
    }
    return gain_of(qx, qq);
}

float pl_fit_levels(const float *x, const float *w, int n, const int8_t levels[16])
{
    float extreme = extreme_of(x, n);
    if (extreme == 0) return 0;
    pl_nearest t;
    pl_nearest_init(&t, levels);
    gain best = {extreme / (float)levels[0], -1};
    for (int side = 0; side < 2; side++) {
        float end = side ? (float)levels[15] : (float)levels[0];
        for (int i = 0; i < STEPS; i++) {
            gain g = try_levels(x, w, n, levels, &t, end / (extreme * width_of(i, 16)));
            if (g.gain > best.gain) best = g;
        }
    }
    for (int i = 0; i < REFINEMENTS; i++) {
        gain g = try_levels(x, w, n, levels, &t, pl_inverse(best.scale));
        if (!(g.gain > best.gain)) break;
        best = g;
    }
    return best.scale;
}

/* --- Scale and minimum. --- */

typedef struct line {
    float scale, minimum, error;
} line;

/* Rounds (x + minimum) * inverse and solves for the line. The error is INFINITY when there is none. */
static line try_offset(const float *x, const float *w, int n, int q_max, bool any_minimum, float minimum, float inverse)
{
    float q[PL_FIT_MAX], sq[LANES] = {0}, sqq[LANES] = {0}, sqx[LANES] = {0}, sw[LANES] = {0}, sx[LANES] = {0};
    for (int i = 0; i < n; i += LANES) {
        for (int l = 0; l < LANES; l++) {
            float v = round_between((x[i + l] + minimum) * inverse, 0, (float)q_max), wq = w[i + l] * v;
            q[i + l] = v;
            sq[l] += wq;
            sqq[l] += wq * v;
            sqx[l] += wq * x[i + l];
            sw[l] += w[i + l];
            sx[l] += w[i + l] * x[i + l];
        }
    }
    float sum_q = total(sq), sum_qq = total(sqq), sum_qx = total(sqx), sum_w = total(sw), sum_x = total(sx);
    float determinant = sum_w * sum_qq - sum_q * sum_q;
    line r = {0, 0, INFINITY};
    if (!(determinant > 0)) return r;
    r.scale = (sum_w * sum_qx - sum_x * sum_q) / determinant;
    r.minimum = (sum_q * sum_qx - sum_qq * sum_x) / determinant;
    if (r.minimum < 0 && !any_minimum) { /* the format has no such minimum: the best line through the origin */
        r.minimum = 0;
        r.scale = sum_qx / sum_qq;
    }
    if (r.scale > 0) r.error = pl_fit_error(x, w, q, n, r.scale, -r.minimum);
    return r;
}

void pl_fit_offset(const float *x, const float *w, int n, int q_max, bool any_minimum, float *scale, float *minimum)
{
    float low = any_minimum ? x[0] : 0,
          high = x[0]; /* where the minimum cannot lift values, 0 is always in the range */
    for (int i = 0; i < n; i++) {
        if (x[i] < low) low = x[i];
        if (x[i] > high) high = x[i];
    }
    *scale = 0;
    *minimum = -low;
    if (!(high > low)) return; /* all the same, or not numbers */
    line best = {(high - low) / (float)q_max, -low, INFINITY};
    for (int i = 0; i < STEPS; i++) {
        float width = (high - low) * width_of(i, q_max + 1);
        /* What is cut off goes at both ends, or at the upper one. */
        for (int side = 0; side < 2; side++) {
            float from = side ? low : low + (high - low - width) / 2;
            if (!any_minimum && from > 0) from = 0;
            line r = try_offset(x, w, n, q_max, any_minimum, -from, (float)q_max / width);
            if (r.error < best.error) best = r;
        }
    }
    for (int i = 0; i < REFINEMENTS; i++) {
        line r = try_offset(x, w, n, q_max, any_minimum, best.minimum, pl_inverse(best.scale));
        if (!(r.error < best.error)) break;
        best = r;
    }
    *scale = best.scale;
    *minimum = best.minimum;
}

void pl_encode_blocks(const float *src, void *dst, int64_t n, int64_t n_per_row, const float *weights, int block,
                      size_t bytes, void (*encode)(const float *x, const float *w, uint8_t *b))
{
    float ones[PL_FIT_MAX];
    for (int i = 0; i < PL_FIT_MAX; i++) ones[i] = 1;
    uint8_t *b = dst;
    for (int64_t at = 0; at < n; at += block, b += bytes) {
        const float *w = ones;
        if (weights) {
            float largest = 0;
            const float *of = weights + at % n_per_row;
            for (int i = 0; i < block; i++) largest = of[i] > largest ? of[i] : largest;
            if (largest > 0) w = of; /* columns that nobody ever used count alike */
        }
        encode(src + at, w, b);
    }
}
