/* The packed layout of weights, PL_LAYOUT_R16: groups of 16 rows interleaved so that one 64-byte vector holds the same
 * columns of 16 rows, a row per 32-bit lane.
 *
 * It is a permutation of one tensor's bytes (for Q8_0 and Q5 also of bits), of the same size and invertible. Group g
 * holds rows 16g to 16g + 15 and stands where these rows stand in the plain tensor, at byte 16 * g * row size; rows
 * from the last multiple of 16 on stay plain. A group is its blocks in ascending order of columns; a block is the
 * following fields one after the other, each of them [units][16 rows]. A unit is 2 or 4 bytes of one row's plain block.
 * So with k the column within a block:
 *
 *   type         bytes of 16 blocks   fields
 *   F32          64 (block 1)         u32 value
 *   F16, BF16    32 (block 1)         u16 value
 *   Q8_0         544 (block 32)       u16 d, 8 x u32 q: unit j has k = 4j to 4j + 3, as bytes with bit 7 flipped (q +
 * 128) Q4_0         288 (block 32)       u16 d, 4 x u32 q: unit j has k = 4j to 4j + 3 in the low nibbles, 16 more in
 * the high ones Q4_1         320 (block 32)       u16 d, u16 m, q as Q4_0 Q5_0         352 (block 32)       u16 d, u32
 * h, q as Q4_0; the fifth bit of k = 4j + b is bit 8b + j of h Q5_1         384 (block 32)       u16 d, u16 m, u32 h as
 * Q5_0, q as Q4_0 Q4_K         2304 (block 256)     u16 d, u16 dmin, 3 x u32 six-bit scales and mins as in the plain
 * block, 32 x u32 q: unit 8c + j has k = 64c + 4j to + 3 in the low nibbles, 32 more in the high ones Q5_K         2816
 * (block 256)     u16 d, u16 dmin, 3 x u32 scales, 8 x u32 h, q as Q4_K; the fifth bit of k = 32s + 4j + b is bit 8b +
 * s of unit j of h Q6_K         3360 (block 256)     u16 d, 4 x u32 scales (16 int8), 16 x u32 h, 32 x u32 q; with k =
 * 128a + 32s + 4j + b, the low four bits are the low (s < 2) or high nibble of byte b of unit 16a + 8 (s % 2) + j of q,
 * the upper two are bits 2s, 2s + 1 of byte b of unit 8a + j of h
 *
 * Threads: every function may run in any thread; packing splits by rows. */
#pragma once

#include "engine/types/types.h"

#define PL_PACK_ROWS 16

/* Whether a tensor of this type and shape has a packed form: a type of the table above, two dimensions, one group at
 * least. */
bool pl_pack_supported(pl_type type, const int64_t ne[4]);

/* Packs rows row_first to row_end - 1 of the tensor at src into the tensor at dst. row_first is a multiple of 16,
 * row_end as well or the number of rows. The tensors do not overlap. */
void pl_pack_rows(pl_type type, const int64_t ne[4], const void *src, void *dst, int64_t row_first, int64_t row_end);
/* The inverse. */
void pl_unpack_rows(pl_type type, const int64_t ne[4], const void *src, void *dst, int64_t row_first, int64_t row_end);

/* One row of the packed tensor as ne[0] floats, with the bits that the plain row's to_float gives. */
void pl_unpack_row_f32(pl_type type, const int64_t ne[4], const void *packed, int64_t row, float *dst);

/* Makes one group of columns k from n_rows plain rows, 1 to 16 of them, row_stride bytes apart. Lanes beyond n_rows
 * repeat the last row, so that products of a ragged end can run on whole groups. */
void pl_pack_group(pl_type type, int64_t k, const void *rows, size_t row_stride, int n_rows, void *group);
