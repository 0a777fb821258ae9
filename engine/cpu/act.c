#include "engine/cpu/act.h"

/* The unit of sharing is 256 columns of one tile, so that one token is shared as well as many are. */
enum { UNIT = 256 };

/* What the first term leaves of width values at x. blocks is where the first term's tile has them, slot its slot. */
static void make_rest(float *rest, pl_act act, const char *blocks, int tile, int slot, const float *x, int64_t width)
{
    const int block = act == PL_ACT_Q8 ? 32 : 256;
    const size_t bytes = act == PL_ACT_Q8 ? PL_ACT_Q8_BYTES : PL_ACT_Q8K_BYTES;
    for (int64_t c = 0; c < width; c += block, blocks += (size_t)tile * bytes) {
        const int8_t *q = (const int8_t *)blocks + block * slot;
        float d;
        memcpy(&d, blocks + block * tile + 4 * slot, sizeof d);
        for (int i = 0; i < block; i++) rest[c + i] = x[c + i] - d * (float)q[i];
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

void pl_act_make(const pl_cpu_kernels *k, pl_act act, int n_terms, const void *x, size_t x_stride, int64_t columns,
                 int64_t n, void *out, int i_thread, int n_threads)
{
    PL_ASSERT(n_terms == 1 || (n_terms == 2 && act != PL_ACT_F32));
    n *= n_terms;
    size_t token = pl_act_token_size(act, columns);
    int64_t per_tile = (columns + UNIT - 1) / UNIT, tiles = (n + PL_ACT_TILE - 1) / PL_ACT_TILE,
            units = tiles * per_tile;
    float rest[UNIT];
    for (int64_t u = units * i_thread / n_threads; u < units * (i_thread + 1) / n_threads; u++) {
        int64_t first = u / per_tile * PL_ACT_TILE, c = u % per_tile * UNIT;
        int64_t width = columns - c < UNIT ? columns - c : UNIT;
        int tile = (int)(n - first < PL_ACT_TILE ? n - first : PL_ACT_TILE);
        char *to = (char *)out + (size_t)first * token + (size_t)tile * pl_act_token_size(act, c);
        for (int t = 0; t < tile; t += n_terms) {
            const float *from = (const float *)((const char *)x + (size_t)((first + t) / n_terms) * x_stride) + c;
            make_slot(k, act, to, from, width, tile, t);
            if (n_terms == 1) continue;
            make_rest(rest, act, to, tile, t, from, width);
            make_slot(k, act, to, rest, width, tile, t + 1);
        }
    }
}
