#include "engine/types/fit.h"

#include <math.h>

#define INLINE static inline __attribute__((always_inline))

/* Four partial sums, in what every compiler has for vectors; the order is the same everywhere. */
typedef float f4 __attribute__((vector_size(16)));
typedef int32_t i4 __attribute__((vector_size(16)));
enum { LANES = 4 };

INLINE f4 load(const float *p)
{
    f4 v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE float total(f4 s)
{
    return (s[0] + s[2]) + (s[1] + s[3]);
}

INLINE f4 choose(i4 mask, f4 a, f4 b)
{
    return (f4)((mask & (i4)a) | (~mask & (i4)b));
}

/* v within low..high to the nearest integer. NaN becomes low. */
INLINE f4 round_between(f4 v, float low, float high)
{
    const f4 l = (f4){0} + low, h = (f4){0} + high;
    v = choose(v > l, v, l);
    v = choose(v < h, v, h);
    return (v + 12582912.0f) - 12582912.0f;
}

float pl_fit_error(const float *x, const float *w, const float *q, int n, float s, float m)
{
    f4 sum = {0};
    for (int i = 0; i < n; i += LANES) {
        f4 e = load(x + i) - (load(q + i) * s + m);
        sum += load(w + i) * e * e;
    }
    return total(sum);
}

float pl_fit_round(const float *x, const float *w, int n, int low, int high, float s, float m, float *q)
{
    float inverse = pl_inverse(s);
    f4 sum = {0};
    for (int i = 0; i < n; i += LANES) {
        f4 v = load(x + i), r = round_between((v - m) * inverse, (float)low, (float)high), e = v - (r * s + m);
        memcpy(q + i, &r, sizeof r);
        sum += load(w + i) * e * e;
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
    f4 qx = {0}, qq = {0};
    for (int i = 0; i < n; i += LANES) {
        f4 v = load(x + i), q = round_between(v * inverse, low, high), wq = load(w + i) * q;
        qx += wq * v;
        qq += wq * q;
    }
    return gain_of(total(qx), total(qq));
}

enum { STEPS = 12, REFINEMENTS = 4 };

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

void pl_levels_init(pl_levels *t, const int8_t levels[16])
{
    t->lowest = levels[0];
    t->highest = levels[15];
    for (int i = 0, at = 0; i < 512; i++) {
        while (at < 15 && i - 256 >= levels[at] + levels[at + 1]) at++;
        t->code[i] = (uint8_t)at;
        t->level[i] = levels[at];
    }
}

/* The levels nearest to v * inverse. */
INLINE f4 nearest(f4 v, float inverse, const pl_levels *t)
{
    f4 at = v * (2 * inverse) + 256, q;
    at = choose(at > 0, at, (f4){0});
    at = choose(at < 511, at, (f4){0} + 511);
    i4 cell = __builtin_convertvector(at, i4);
    for (int l = 0; l < LANES; l++) q[l] = t->level[cell[l]];
    return q;
}

static gain try_levels(const float *x, const float *w, int n, const pl_levels *t, float inverse)
{
    f4 qx = {0}, qq = {0};
    for (int i = 0; i < n; i += LANES) {
        f4 v = load(x + i), q = nearest(v, inverse, t), wq = load(w + i) * q;
        qx += wq * v;
        qq += wq * q;
    }
    return gain_of(total(qx), total(qq));
}

float pl_levels_error(const float *x, const float *w, int n, const pl_levels *t, float s)
{
    float inverse = pl_inverse(s);
    f4 sum = {0};
    for (int i = 0; i < n; i += LANES) {
        f4 v = load(x + i), e = v - nearest(v, inverse, t) * s;
        sum += load(w + i) * e * e;
    }
    return total(sum);
}

float pl_fit_levels(const float *x, const float *w, int n, const pl_levels *t)
{
    float extreme = extreme_of(x, n);
    if (extreme == 0) return 0;
    gain best = {extreme / t->lowest, -1};
    for (int side = 0; side < 2; side++) {
        float end = side ? t->highest : t->lowest;
        for (int i = 0; i < STEPS; i++) {
            gain g = try_levels(x, w, n, t, end / (extreme * width_of(i, 16)));
            if (g.gain > best.gain) best = g;
        }
    }
    for (int i = 0; i < REFINEMENTS; i++) {
        gain g = try_levels(x, w, n, t, pl_inverse(best.scale));
        if (!(g.gain > best.gain)) break;
        best = g;
    }
    return best.scale;
}

/* --- Scale and minimum. --- */

typedef struct line {
    float scale, minimum, error;
} line;

/* Rounds (x + minimum) * inverse and solves for the line. The error, less the sum of w * x * x, is INFINITY when there
 * is none. */
static line try_offset(const float *x, const float *w, int n, int q_max, bool any_minimum, float minimum, float inverse)
{
    f4 sq = {0}, sqq = {0}, sqx = {0}, sw = {0}, sx = {0};
    for (int i = 0; i < n; i += LANES) {
        f4 v = load(x + i), wi = load(w + i), q = round_between((v + minimum) * inverse, 0, (float)q_max), wq = wi * q;
        sq += wq;
        sqq += wq * q;
        sqx += wq * v;
        sw += wi;
        sx += wi * v;
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
    if (r.scale > 0) r.error = r.minimum * sum_x - r.scale * sum_qx;
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

/* The weights of the block at at: ones where nothing else is said. */
static const float *weights_at(const float *weights, int64_t at, int64_t n_per_row, int block, const float *ones)
{
    if (weights == NULL) return ones;
    const float *w = weights + at % n_per_row;
    for (int i = 0; i < block; i++)
        if (w[i] > 0) return w;
    return ones; /* columns that nobody ever used count alike */
}

void pl_encode_blocks(const float *src, void *dst, int64_t n, int64_t n_per_row, const float *weights, int block,
                      size_t bytes, void (*encode)(const float *x, const float *w, uint8_t *b))
{
    float ones[PL_FIT_MAX];
    for (int i = 0; i < PL_FIT_MAX; i++) ones[i] = 1;
    uint8_t *b = dst;
    for (int64_t at = 0; at < n; at += block, b += bytes)
        encode(src + at, weights_at(weights, at, n_per_row, block, ones), b);
}

void pl_encode_blocks_levels(const float *src, void *dst, int64_t n, int64_t n_per_row, const float *weights, int block,
                             size_t bytes, const int8_t levels[16],
                             void (*encode)(const float *x, const float *w, const pl_levels *t, uint8_t *b))
{
    float ones[PL_FIT_MAX];
    for (int i = 0; i < PL_FIT_MAX; i++) ones[i] = 1;
    pl_levels t;
    pl_levels_init(&t, levels);
    uint8_t *b = dst;
    for (int64_t at = 0; at < n; at += block, b += bytes)
        encode(src + at, weights_at(weights, at, n_per_row, block, ones), &t, b);
}
