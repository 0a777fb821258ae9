/* Encoding of the IQ types (iq.c has their blocks), all by one search.
 *
 * A block is up to 16 parts of 16 or 32 columns that share a scale. For each part some scales are tried: with a scale
 * given, every vector of eight or four columns takes the grid's entry with the least weighted error, and these integers
 * given, the best scale follows from least squares, so that an error is known for what a scale leads to. The best one
 * is polished the same way. Then the block's d is set for the largest scale, every part chooses among the odd numbers
 * next to its scale, with the entries chosen anew for each, and d itself follows from least squares over the block;
 * both rounds are kept in mind and the better one is written.
 *
 * The nearest entry: the vector is rounded to the lattice of all combinations of the grid's values, and of each lattice
 * point the NEAR nearest entries are known, among which the weights decide. These lists are made once per grid, when
 * the first block needs them.
 *
 * Where seven bits hold eight signs, the number of minus signs must be even. Where it is not, the value whose turn
 * costs least keeps the wrong sign, before the entry is chosen.
 *
 * Threads: every function may run in any thread. */
#include <math.h>
#include <pthread.h>

#include "engine/types/iq_grid.h"
#include "engine/types/types_impl.h"

enum { N = 256, EIGHTS = N / 8, PARTS_MAX = 16, NEAR = 16, NEAR_TRIED = 5 };

/* Four floats at once, in plain C of gcc and clang. */
typedef float four __attribute__((vector_size(16)));

/* A grid as the search needs it. */
typedef struct search {
    const uint16_t *codes;
    const int8_t *values;
    int n_entries, width, n_values; /* width: values of an entry, 8 or 4 */
    float first, step;              /* of the values, which lie about evenly */
    float (*entries)[8];            /* [n_entries] */
    uint16_t (*near)[NEAR];         /* [n_values to the power of width] */
} search;

typedef enum signs { FREE, EVEN, SHIFT_OF_PART, SHIFT_OF_EIGHT } signs;

typedef struct format {
    search *grid;
    int part;  /* columns that share a scale */
    int s_max; /* the scale is d * f * (2 s + 1), s up to this */
    float f;
    signs signs;
} format;

/* Eight columns: q[j] is value j of the entry, or of two entries, under its sign; in IQ1 plus the shift. */
typedef struct eight {
    uint16_t entry[2];
    uint8_t minus; /* bit j: value j is turned; in IQ1 all of them: the shift is -1 */
} eight;

/* What a scale leads to. */
typedef struct outcome {
    float xq, qq; /* sums of w * x * q and w * q * q */
    eight at[4];  /* of a part */
} outcome;

typedef struct block {
    uint16_t d;
    float error;
    uint8_t s[PARTS_MAX];
    eight at[EIGHTS];
} block;

/* --- Grids. --- */

static void make_grid(search *g)
{
    const int bits = g->width == 8 ? 2 : 4;
    for (int e = 0; e < g->n_entries; e++)
        for (int j = 0; j < g->width; j++) g->entries[e][j] = g->values[g->codes[e] >> bits * j & ((1 << bits) - 1)];
    int n_points = 1;
    for (int j = 0; j < g->width; j++) n_points *= g->n_values;
    for (int p = 0; p < n_points; p++) {
        int rest = p, n = 0;
        float point[8] = {0}, distance[NEAR];
        for (int j = 0; j < g->width; j++, rest /= g->n_values) point[j] = g->values[rest % g->n_values];
        for (int e = 0; e < g->n_entries; e++) {
            float d = 0;
            for (int j = 0; j < g->width; j++) d += (g->entries[e][j] - point[j]) * (g->entries[e][j] - point[j]);
            if (n == NEAR && d >= distance[n - 1]) continue;
            int at = n < NEAR ? n++ : n - 1; /* insertion; of equal ones the earlier stays first */
            for (; at > 0 && distance[at - 1] > d; at--) {
                distance[at] = distance[at - 1];
                g->near[p][at] = g->near[p][at - 1];
            }
            distance[at] = d;
            g->near[p][at] = (uint16_t)e;
        }
    }
}

#define GRID(name, of_codes, of_values, size, wide, values_n, points, first_value, step_of)                            \
    static float entries_##name[size][8];                                                                              \
    static uint16_t near_##name[points][NEAR];                                                                         \
    static search search_##name = {of_codes,    of_values, size,           wide,       values_n,                       \
                                   first_value, step_of,   entries_##name, near_##name};                               \
    static pthread_once_t once_##name = PTHREAD_ONCE_INIT;                                                             \
    static void make_##name(void)                                                                                      \
    {                                                                                                                  \
        make_grid(&search_##name);                                                                                     \
    }

/* The values of IQ1 are eight times the grid's, so that the shift is a whole number. */
static const int8_t eighths[3] = {-8, 0, 8};

GRID(iq2_xxs, pl_grid_iq2_xxs, pl_values_iq2, 256, 8, 3, 6561, 8, 17.5f)
GRID(iq2_xs, pl_grid_iq2_xs, pl_values_iq2, 512, 8, 3, 6561, 8, 17.5f)
GRID(iq2_s, pl_grid_iq2_s, pl_values_iq2, 1024, 8, 3, 6561, 8, 17.5f)
GRID(iq3_xxs, pl_grid_iq3_xxs, pl_values_iq3_xxs, 256, 4, 8, 4096, 4, 8.2f)
GRID(iq3_s, pl_grid_iq3_s, pl_values_iq3_s, 512, 4, 8, 4096, 1, 2)
GRID(iq1, pl_grid_iq1, eighths, 2048, 8, 3, 6561, -8, 8)

/* --- The search. --- */

static four load4(const float *p)
{
    four v;
    memcpy(&v, p, sizeof v);
    return v;
}

static float sum4(four v)
{
    return (v[0] + v[2]) + (v[1] + v[3]);
}

/* The entry nearest to y by weights w, among the n_near that are nearest to its lattice point. */
static uint16_t nearest(const search *g, const float *y, const float *w, int n_near)
{
    int point = 0;
    const float inverse = 1 / g->step;
    for (int j = g->width - 1; j >= 0; j--)
        point = point * g->n_values + pl_round_within((y[j] - g->first) * inverse, 0, g->n_values - 1);
    const uint16_t *near = g->near[point];
    uint16_t best = near[0];
    float least = INFINITY;
    const bool wide = g->width == 8;
    four y0 = load4(y), w0 = load4(w), y1 = {0}, w1 = {0};
    if (wide) {
        y1 = load4(y + 4);
        w1 = load4(w + 4);
    }
    for (int i = 0; i < n_near; i++) {
        const float *e = g->entries[near[i]];
        four d0 = load4(e) - y0, error = w0 * d0 * d0;
        if (wide) {
            four d1 = load4(e + 4) - y1;
            error += w1 * d1 * d1;
        }
        float sum = sum4(error);
        if (sum < least) {
            least = sum;
            best = near[i];
        }
    }
    return best;
}

/* The signs of x, made even in number where they must be. */
static uint8_t signs_of(const float x[8], const float w[8], signs how)
{
    uint8_t minus = 0;
    int count = 0, cheapest = 0;
    for (int j = 0; j < 8; j++) {
        if (x[j] < 0) {
            minus |= (uint8_t)(1 << j);
            count++;
        }
        if (w[j] * fabsf(x[j]) < w[cheapest] * fabsf(x[cheapest])) cheapest = j;
    }
    return how == EVEN && count % 2 == 1 ? (uint8_t)(minus ^ 1 << cheapest) : minus;
}

/* Eight columns at a scale: chooses the entries, and adds to the sums. minus is signs_of x; of IQ1, whether to shift
 * down. */
static void choose(const format *f, const float x[8], const float w[8], float inverse, uint8_t minus, int n_near,
                   eight *out, float *xq, float *qq)
{
    const search *g = f->grid;
    const bool shifted = f->signs == SHIFT_OF_PART || f->signs == SHIFT_OF_EIGHT;
    const float shift = minus ? -1.0f : 1.0f;
    float turned[8], y[8], q[8];
    for (int j = 0; j < 8; j++) {
        turned[j] = !shifted && minus >> j & 1 ? -x[j] : x[j];
        y[j] = turned[j] * inverse;
        if (shifted) y[j] -= shift;
    }
    out->minus = minus;
    for (int at = 0; at < 8; at += g->width) {
        uint16_t entry = nearest(g, y + at, w + at, n_near);
        out->entry[at / g->width] = entry;
        memcpy(q + at, g->entries[entry], (size_t)g->width * sizeof *q);
    }
    for (int j = 0; j < 8; j++) {
        if (shifted) q[j] += shift;
        float wq = w[j] * q[j];
        *xq += wq * turned[j];
        *qq += wq * q[j];
    }
}

/* How the error of eight columns falls with the scale as it is: the more the better. */
static float gain(float scale, float xq, float qq)
{
    return scale * (2 * xq - scale * qq);
}

/* A part at a scale. */
static void try_scale(const format *f, const float *x, const float *w, const uint8_t *minus, float scale, int n_near,
                      outcome *out)
{
    const float inverse = pl_inverse(scale);
    *out = (outcome){0};
    if (f->signs == SHIFT_OF_PART) {
        outcome down = {0};
        for (int e = 0; e < f->part / 8; e++) {
            choose(f, x + 8 * e, w + 8 * e, inverse, 0, n_near, &out->at[e], &out->xq, &out->qq);
            choose(f, x + 8 * e, w + 8 * e, inverse, 255, n_near, &down.at[e], &down.xq, &down.qq);
        }
        if (gain(scale, down.xq, down.qq) > gain(scale, out->xq, out->qq)) *out = down;
        return;
    }
    for (int e = 0; e < f->part / 8; e++) {
        float xq = 0, qq = 0;
        if (f->signs == SHIFT_OF_EIGHT) {
            eight down;
            float down_xq = 0, down_qq = 0;
            choose(f, x + 8 * e, w + 8 * e, inverse, 0, n_near, &out->at[e], &xq, &qq);
            choose(f, x + 8 * e, w + 8 * e, inverse, 255, n_near, &down, &down_xq, &down_qq);
            if (gain(scale, down_xq, down_qq) > gain(scale, xq, qq)) {
                out->at[e] = down;
                xq = down_xq;
                qq = down_qq;
            }
        } else {
            choose(f, x + 8 * e, w + 8 * e, inverse, minus[e], n_near, &out->at[e], &xq, &qq);
        }
        out->xq += xq;
        out->qq += qq;
    }
}

/* The scale with which the part comes closest to x. */
static float fit_part(const format *f, const float *x, const float *w, const uint8_t *minus)
{
    const search *g = f->grid;
    float largest = 0, best = 0, best_gain = 0;
    for (int j = 0; j < f->part; j++)
        if (fabsf(x[j]) > largest && w[j] > 0) largest = fabsf(x[j]);
    if (!(largest > 0)) return 0;
    const float top = g->values[g->n_values - 1] + (g->first < 0 ? 1.0f : 0.0f), bottom = fabsf(g->first);
    /* The largest becomes the largest value, or somewhat more or less. IQ1 has but one size, at which most values lie,
     * below the largest of them. At last: of values that are all about the same size it may well become the smallest.
     */
    const bool one_size = g->first < 0;
    const int trials = one_size ? 9 : 12;
    const float low = one_size ? 0.9f : 0.7f, high = one_size ? 2.9f : 1.4f;
    for (int i = 0; i <= trials; i++) {
        float where = low + (high - low) * (float)i / (float)(trials - 1);
        float scale = i == trials ? largest / (one_size ? bottom + 1 : bottom) : largest / (top * where);
        outcome o;
        try_scale(f, x, w, minus, scale, NEAR_TRIED, &o);
        if (o.qq > 0 && o.xq > 0 && o.xq * o.xq > best_gain * o.qq) {
            best_gain = o.xq * o.xq / o.qq;
            best = o.xq / o.qq;
        }
    }
    for (int round = 0; round < 2; round++) {
        outcome o;
        try_scale(f, x, w, minus, best, NEAR_TRIED, &o);
        if (!(o.qq > 0 && o.xq > 0 && o.xq * o.xq > best_gain * o.qq)) break;
        best_gain = o.xq * o.xq / o.qq;
        best = o.xq / o.qq;
    }
    return best;
}

/* All parts at d: chooses s and the entries. Gives d by least squares over the block in *next. */
static void fill(const format *f, const float *x, const float *w, const uint8_t *minus, const float *scale, uint16_t d,
                 block *out, float *next)
{
    const float unit = pl_f16_to_f32(d) * f->f;
    float xq = 0, qq = 0;
    *out = (block){.d = d};
    for (int p = 0; p < N / f->part; p++) {
        int middle = pl_round_within((scale[p] * pl_inverse(unit) - 1) * 0.5f, 0, f->s_max);
        float most = -INFINITY;
        outcome best = {0};
        for (int s = middle > 0 ? middle - 1 : 0; s <= middle + 1 && s <= f->s_max; s++) {
            outcome o;
            float at = unit * (float)(2 * s + 1);
            try_scale(f, x + p * f->part, w + p * f->part, minus + p * f->part / 8, at, NEAR, &o);
            if (gain(at, o.xq, o.qq) > most) {
                most = gain(at, o.xq, o.qq);
                best = o;
                out->s[p] = (uint8_t)s;
            }
        }
        const float odd = (float)(2 * out->s[p] + 1);
        memcpy(out->at + p * f->part / 8, best.at, sizeof(eight) * (size_t)(f->part / 8));
        out->error -= most;
        xq += odd * best.xq;
        qq += odd * odd * best.qq;
    }
    *next = qq > 0 ? xq / qq / f->f : 0;
}

static void encode_block(const format *f, const float *x, const float *weights, block *out)
{
    float w[N], scale[PARTS_MAX], scale_max = 0;
    uint8_t minus[EIGHTS];
    for (int j = 0; j < N; j += f->part) {
        float sum = 0;
        for (int i = j; i < j + f->part; i++) sum += w[i] = weights ? weights[i] : 1;
        if (!(sum > 0)) /* columns that never mattered */
            for (int i = j; i < j + f->part; i++) w[i] = 1;
    }
    for (int e = 0; e < EIGHTS; e++) minus[e] = signs_of(x + 8 * e, w + 8 * e, f->signs);
    for (int p = 0; p < N / f->part; p++) {
        scale[p] = fit_part(f, x + p * f->part, w + p * f->part, minus + p * f->part / 8);
        if (scale[p] > scale_max) scale_max = scale[p];
    }
    float next;
    fill(f, x, w, minus, scale, pl_f32_to_f16(scale_max / (f->f * (float)(2 * f->s_max + 1))), out, &next);
    for (int round = 0; round < 2; round++) {
        block other;
        uint16_t d = pl_f32_to_f16(next);
        if (d == out->d) break;
        fill(f, x, w, minus, scale, d, &other, &next);
        if (!(other.error < out->error)) break;
        *out = other;
    }
}

/* --- The formats' bytes. --- */

static void write_iq2_xxs(const block *b, uint8_t *to)
{
    pl_put_u16(to, b->d);
    for (int i = 0; i < 8; i++) {
        uint32_t rest = (uint32_t)b->s[i] << 28;
        for (int e = 0; e < 4; e++) {
            to[2 + 8 * i + e] = (uint8_t)b->at[4 * i + e].entry[0];
            rest |= (uint32_t)(b->at[4 * i + e].minus & 127) << 7 * e;
        }
        pl_put_u32(to + 6 + 8 * i, rest);
    }
}

static void write_iq2_xs(const block *b, uint8_t *to)
{
    pl_put_u16(to, b->d);
    for (int e = 0; e < 32; e++)
        pl_put_u16(to + 2 + 2 * e, (uint16_t)(b->at[e].entry[0] | (b->at[e].minus & 127) << 9));
    for (int i = 0; i < 8; i++) to[66 + i] = (uint8_t)(b->s[2 * i] | b->s[2 * i + 1] << 4);
}

static void write_iq2_s(const block *b, uint8_t *to)
{
    memset(to, 0, 82);
    pl_put_u16(to, b->d);
    for (int e = 0; e < 32; e++) {
        to[2 + e] = (uint8_t)b->at[e].entry[0];
        to[34 + e] = b->at[e].minus;
        to[66 + e / 4] |= (uint8_t)(b->at[e].entry[0] >> 8 << e % 4 * 2);
    }
    for (int i = 0; i < 8; i++) to[74 + i] = (uint8_t)(b->s[2 * i] | b->s[2 * i + 1] << 4);
}

static void write_iq3_xxs(const block *b, uint8_t *to)
{
    pl_put_u16(to, b->d);
    for (int i = 0; i < 8; i++) {
        uint32_t rest = (uint32_t)b->s[i] << 28;
        for (int e = 0; e < 4; e++) {
            to[2 + 8 * i + 2 * e] = (uint8_t)b->at[4 * i + e].entry[0];
            to[3 + 8 * i + 2 * e] = (uint8_t)b->at[4 * i + e].entry[1];
            rest |= (uint32_t)(b->at[4 * i + e].minus & 127) << 7 * e;
        }
        pl_put_u32(to + 66 + 4 * i, rest);
    }
}

static void write_iq3_s(const block *b, uint8_t *to)
{
    memset(to, 0, 110);
    pl_put_u16(to, b->d);
    for (int e = 0; e < 32; e++) {
        const eight *at = &b->at[e];
        to[2 + 2 * e] = (uint8_t)at->entry[0];
        to[3 + 2 * e] = (uint8_t)at->entry[1];
        to[66 + e / 4] |= (uint8_t)((at->entry[0] >> 8 | at->entry[1] >> 8 << 1) << e % 4 * 2);
        to[74 + e] = at->minus;
    }
    for (int i = 0; i < 4; i++) to[106 + i] = (uint8_t)(b->s[2 * i] | b->s[2 * i + 1] << 4);
}

static void write_iq1_s(const block *b, uint8_t *to)
{
    pl_put_u16(to, b->d);
    for (int i = 0; i < 8; i++) {
        const eight *at = b->at + 4 * i;
        uint32_t upper = (uint32_t)b->s[i] << 12 | (at[0].minus ? 1u << 15 : 0);
        for (int e = 0; e < 4; e++) {
            to[2 + 4 * i + e] = (uint8_t)at[e].entry[0];
            upper |= (uint32_t)(at[e].entry[0] >> 8) << 3 * e;
        }
        pl_put_u16(to + 34 + 2 * i, (uint16_t)upper);
    }
}

static void write_iq1_m(const block *b, uint8_t *to)
{
    memset(to, 0, 56);
    for (int e = 0; e < 32; e++) {
        const eight *at = &b->at[e];
        to[e] = (uint8_t)at->entry[0];
        to[32 + e / 2] |= (uint8_t)((at->entry[0] >> 8 | (at->minus ? 8 : 0)) << e % 2 * 4);
    }
    for (int i = 0; i < 4; i++) {
        uint32_t word = (uint32_t)(b->d >> 4 * i & 15) << 12;
        for (int p = 0; p < 4; p++) word |= (uint32_t)b->s[4 * i + p] << 3 * p;
        pl_put_u16(to + 48 + 2 * i, (uint16_t)word);
    }
}

#define ENCODER(name, grid, bytes, of_part, s_most, factor, of_signs)                                                  \
    void pl_##name##_from_float_imatrix(const float *src, void *dst, int64_t n, int64_t n_per_row,                     \
                                        const float *weights)                                                          \
    {                                                                                                                  \
        const format f = {&search_##grid, of_part, s_most, factor, of_signs};                                          \
        uint8_t *to = dst;                                                                                             \
        pthread_once(&once_##grid, make_##grid);                                                                       \
        for (int64_t at = 0; at < n; at += N, to += (bytes)) {                                                         \
            block b;                                                                                                   \
            encode_block(&f, src + at, weights ? weights + at % n_per_row : NULL, &b);                                 \
            write_##name(&b, to);                                                                                      \
        }                                                                                                              \
    }                                                                                                                  \
    void pl_##name##_from_float(const float *src, void *dst, int64_t n)                                                \
    {                                                                                                                  \
        pl_##name##_from_float_imatrix(src, dst, n, n, NULL);                                                          \
    }

ENCODER(iq2_xxs, iq2_xxs, 66, 32, 15, 0.125f, EVEN)
ENCODER(iq2_xs, iq2_xs, 74, 16, 15, 0.125f, EVEN)
ENCODER(iq2_s, iq2_s, 82, 16, 15, 0.125f, FREE)
ENCODER(iq3_xxs, iq3_xxs, 98, 32, 15, 0.25f, EVEN)
ENCODER(iq3_s, iq3_s, 110, 32, 15, 1, FREE)
ENCODER(iq1_s, iq1, 50, 32, 7, 0.125f, SHIFT_OF_PART)
ENCODER(iq1_m, iq1, 56, 16, 7, 0.125f, SHIFT_OF_EIGHT)
