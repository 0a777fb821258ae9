#include "engine/cpu/act.h"

/* The unit of sharing is 256 columns of one tile, so that one token is shared as well as many are. */
enum { UNIT = 256 };

/* The sum of squares in the order of kernels.h' sum16: part of a contract, and the same C on every instruction set. */
static float sum16_of_squares(const float *x, int64_t n)
{
    float s[16] = {0};
    for (int64_t i = 0; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++) s[j] += x[i + j] * x[i + j];
    for (int width = 8; width > 0; width /= 2)
        for (int j = 0; j < width; j++) s[j] += s[j + width];
    return s[0];
}

/* What the square of a block's scale has to be beyond for a second term. */
static float limit_of(pl_act act, pl_precision precision, const float *row, int64_t columns)
{
    if (precision == PL_TWO_TERMS) return -1;
    const float c = act == PL_ACT_Q8 ? 9.0f / (127.0f * 127.0f) : 12.0f / (127.0f * 127.0f);
    return sum16_of_squares(row, columns) / (float)columns * c;
}

/* What the first term leaves of width values at x, 0 where the scale is within limit. blocks is where the first term's
 * tile has them, slot its slot. */
static void make_rest(float *rest, pl_act act, const char *blocks, int tile, int slot, const float *x, int64_t width,
                      float limit)
{
    const int block = pl_act_columns(act);
    for (int64_t c = 0; c < width; c += block, blocks += (size_t)tile * pl_act_bytes(act)) {
        const int8_t *q = (const int8_t *)blocks + block * slot;
        float d;
        memcpy(&d, blocks + block * tile + 4 * slot, sizeof d);
        if (d * d > limit)
            for (int i = 0; i < block; i++) rest[c + i] = x[c + i] - d * (float)q[i];
        else
            memset(rest + c, 0, (size_t)block * sizeof *rest);
    }
}

static void make_slot(const pl_cpu_kernels *k, pl_act act, void *to, const float *x, int64_t width, int tile, int slot)
{
    if (act == PL_ACT_Q8)
        k->act_q8(to, x, width, tile, slot);
    else if (act == PL_ACT_Q8K)
        k->act_q8k(to, x, width, tile, slot);
    else
        k->act_f32(to, x, width, tile, slot);
}

void pl_act_make_row(const pl_cpu_kernels *k, pl_act act, pl_precision precision, const float *x, int64_t columns,
                     void *out, int tile, int slot)
{
    PL_ASSERT(precision == PL_ONE_TERM || act != PL_ACT_F32);
    float rest[UNIT], limit = precision == PL_ONE_TERM ? 0 : limit_of(act, precision, x, columns);
    for (int64_t c = 0; c < columns; c += UNIT) {
        int64_t width = columns - c < UNIT ? columns - c : UNIT;
        char *to = (char *)out + (size_t)tile * pl_act_token_size(act, c);
        make_slot(k, act, to, x + c, width, tile, slot);
        if (precision == PL_ONE_TERM) continue;
        make_rest(rest, act, to, tile, slot, x + c, width, limit);
        make_slot(k, act, to, rest, width, tile, slot + 1);
    }
}

void pl_act_make(const pl_cpu_kernels *k, pl_act act, pl_precision precision, const void *x, size_t x_stride,
                 int64_t columns, int64_t n, void *out, int i_thread, int n_threads)
{
    PL_ASSERT(precision == PL_ONE_TERM || act != PL_ACT_F32);
    const bool two = precision != PL_ONE_TERM, paired = two && 2 * n <= PL_ACT_TILE;
    const int step = paired ? 2 : 1;
    const size_t token = pl_act_token_size(act, columns);
    char *behind = (char *)out + (size_t)n * token; /* the second terms', unless paired */
    n *= step;
    int64_t per_tile = (columns + UNIT - 1) / UNIT, tiles = (n + PL_ACT_TILE - 1) / PL_ACT_TILE,
            units = tiles * per_tile;
    float rest[UNIT], limits[PL_ACT_TILE] = {0};
    int64_t limits_of = -1; /* the tile */
    for (int64_t u = units * i_thread / n_threads; u < units * (i_thread + 1) / n_threads; u++) {
        int64_t first = u / per_tile * PL_ACT_TILE, c = u % per_tile * UNIT;
        int64_t width = columns - c < UNIT ? columns - c : UNIT;
        int tile = (int)(n - first < PL_ACT_TILE ? n - first : PL_ACT_TILE);
        size_t at = (size_t)first * token + (size_t)tile * pl_act_token_size(act, c);
        char *to = (char *)out + at;
        for (int t = 0; t < tile; t += step) {
            const float *row = (const float *)((const char *)x + (size_t)((first + t) / step) * x_stride);
            make_slot(k, act, to, row + c, width, tile, t);
            if (!two) continue;
            if (limits_of != first) limits[t] = limit_of(act, precision, row, columns);
            make_rest(rest, act, to, tile, t, row + c, width, limits[t]);
            make_slot(k, act, paired ? to : behind + at, rest, width, tile, paired ? t + 1 : t);
        }
        limits_of = first;
    }
}
