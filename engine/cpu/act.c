#include "engine/cpu/act.h"

size_t pl_act_token_size(pl_act act, int64_t k)
{
    switch (act) {
    case PL_ACT_Q8: return (size_t)k / 32 * PL_ACT_Q8_BYTES;
    case PL_ACT_Q8K: return (size_t)k / 256 * PL_ACT_Q8K_BYTES;
    default: return (size_t)k * sizeof(float);
    }
}

void pl_act_make(const pl_cpu_kernels *k, pl_act act, const void *x, size_t x_stride, int64_t columns, int64_t n,
                 void *out, int i_thread, int n_threads)
{
    /* The unit of sharing is 256 columns of one tile, so that one token is shared as well as many are. */
    enum { UNIT = 256 };
    size_t token = pl_act_token_size(act, columns);
    int64_t per_tile = (columns + UNIT - 1) / UNIT, tiles = (n + PL_ACT_TILE - 1) / PL_ACT_TILE,
            units = tiles * per_tile;
    for (int64_t u = units * i_thread / n_threads; u < units * (i_thread + 1) / n_threads; u++) {
        int64_t first = u / per_tile * PL_ACT_TILE, c = u % per_tile * UNIT;
        int64_t width = columns - c < UNIT ? columns - c : UNIT;
        int tile = (int)(n - first < PL_ACT_TILE ? n - first : PL_ACT_TILE);
        char *to = (char *)out + (size_t)first * token + (size_t)tile * pl_act_token_size(act, c);
        for (int t = 0; t < tile; t++) {
            const float *from = (const float *)((const char *)x + (size_t)(first + t) * x_stride) + c;
            if (act == PL_ACT_Q8)
                k->act_q8(to, from, width, tile, t);
            else if (act == PL_ACT_Q8K)
                k->act_q8k(to, from, width, tile, t);
            else
                k->act_f32(to, from, width, tile, t);
        }
    }
}
