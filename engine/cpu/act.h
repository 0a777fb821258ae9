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
 * A quantized activation may have two terms. Then token t of x is tokens 2 t and 2 t + 1 here: the values above, and
 * the same of the rest x - d * q, multiply and subtraction each rounded to f32. With the rest's own scale the two hold
 * x to about 16 bits. A tile has both terms of a token, so that a kernel reads the weights once for them.
 *
 * Threads: each part is written by one thread; see pl_act_make. */
#pragma once

#include "engine/cpu/kernels.h"
#include "engine/types/types.h"

enum { PL_ACT_TILE = 8 };

/* Thread i_thread's share of the making of n tokens at x, x_stride bytes apart, into out, which has n * n_terms of
 * them. Shares are disjoint and their union is all. n_terms is 1, or 2 where act is quantized. */
void pl_act_make(const pl_cpu_kernels *k, pl_act act, int n_terms, const void *x, size_t x_stride, int64_t columns,
                 int64_t n, void *out, int i_thread, int n_threads);

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
