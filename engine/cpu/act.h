/* Activations as the matrix product reads them: quantized when the weights are, and interleaved by tiles of tokens.
 *
 * Tokens are taken in tiles of 8; the last tile has the rest. Tile i begins at byte 8 * i * pl_act_token_size and holds
 * its blocks in ascending order of columns; with T the tokens of the tile, a block is
 *
 *   PL_ACT_F32, block 1:    f32 x[T]
 *   PL_ACT_Q8, block 32:    i8 q[T][32], f32 d[T], f32 s[T], i32 c[T]
 *   PL_ACT_Q8K, block 256:  i8 q[T][256], f32 d[T], i32 c[T][16], i16 b[T][8]
 *
 * so that a kernel over a tile reads one stream with constant offsets. s is d * sum of q. c carries the zero point of
 * the weights into the exact integer sum: -8 * sum of q in Q8, -32 * sum of q[16 i] to q[16 i + 15] in c[i] of Q8K. b
 * has the sums of each 32 q in the order 0 2 1 3 4 6 5 7, in which two masks bring the mins of K-quants to 16-bit
 * pairs.
 *
 * The values: with a the largest magnitude of the block (by bits, so NaN and infinity are the largest), d = a / 127,
 * q = x * (1 / d) rounded to nearest even, each step rounded to f32. When a < 2^-100, d and q are 0. When a is not
 * finite, d is NaN and q are 0: NaN reaches every result of that token.
 *
 * A quantized activation may have two terms: the values above, and the same of the rest x - d * q, multiply and
 * subtraction each rounded to f32. With the rest's own scale the two hold x to about 16 bits. Of up to 4 tokens, token
 * t of x is tokens 2 t and 2 t + 1 here, so that a kernel reads the weights once for both. Of more, all first terms
 * stand in tiles as those of one term do, and all second terms behind them in tiles of their own.
 *
 * PL_TWO_TERMS_WHERE_LARGE takes 0 for the rest of a block unless d * d > sum16(x * x of the token) / k * c, with
 * c = 9 / 127^2 for blocks of 32 and 12 / 127^2 for 256: unless, that is, its largest value is about three times the
 * root of the token's mean square. Those are the blocks that lose most: the others' values share a scale that fits
 * them. Of blocks of 32 Gaussian values one of twelve is large.
 *
 * Threads: each part is written by one thread; see pl_act_make. */
#pragma once

#include "engine/cpu/kernels.h"
#include "engine/types/types.h"

enum { PL_ACT_TILE = 8 };

/* Thread i_thread's share of the making of n tokens at x, x_stride bytes apart, into out, which has n of them, or 2 n
 * where they have two terms. Shares are disjoint and their union is all. The precision of PL_ACT_F32 is PL_ONE_TERM. */
void pl_act_make(const pl_cpu_kernels *k, pl_act act, pl_precision precision, const void *x, size_t x_stride,
                 int64_t columns, int64_t n, void *out, int i_thread, int n_threads);

/* One row into slot slot of a tile of tile tokens at out, or its two terms into slots slot and slot + 1. */
void pl_act_make_row(const pl_cpu_kernels *k, pl_act act, pl_precision precision, const float *x, int64_t columns,
                     void *out, int tile, int slot);

/* Columns and bytes of a block; act is quantized. */
static inline int pl_act_columns(pl_act act)
{
    return act == PL_ACT_Q8 ? 32 : 256;
}
static inline size_t pl_act_bytes(pl_act act)
{
    return act == PL_ACT_Q8 ? PL_ACT_Q8_BYTES : PL_ACT_Q8K_BYTES;
}

/* d and 1 / d for the bits of a block's largest magnitude; *inverse is 0 when all q are to be 0. */
static inline float pl_act_scale(uint32_t amax_bits, float *inverse)
{
    const uint32_t infinity = 0x7f800000, tiny = (127 - 100) << 23, nan = 0x7fc00000;
    float d = 0;
    *inverse = 0;
    if (amax_bits >= infinity) {
        memcpy(&d, &nan, 4);
    } else if (amax_bits >= tiny) {
        memcpy(&d, &amax_bits, 4);
        d /= 127.0f;
        *inverse = 1.0f / d;
    }
    return d;
}
