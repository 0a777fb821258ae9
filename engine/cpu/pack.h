/* The packed layout of weights, PL_LAYOUT_R16: groups of 16 rows interleaved so that one 64-byte vector holds the same
 * columns of 16 rows, a row per 32-bit lane.
 *
 * It is a permutation of one tensor's bytes (for Q8, Q5, Q1_0 and Q2_0 also of bits), of the same size and invertible. Group g
 * holds rows 16g to 16g + 15 and stands where these rows stand in the plain tensor, at byte 16 * g * row size; rows
 * from the last multiple of 16 on stay plain. A group is its blocks in ascending order of columns; a block is the
 * following fields one after the other, each of them [units][16 rows]. A unit is 1, 2 or 4 bytes of one row's plain block.
 *
 *   type        bytes of 16 blocks  fields
 *   F32         64 (block 1)        u32 value
 *   F16, BF16   32 (block 1)        u16 value
 *   Q8_0        544 (block 32)      u16 d, 8 x u32 bytes
 *   Q4_0        288 (block 32)      u16 d, 4 x u32 nibbles
 *   Q4_1        320 (block 32)      u16 d, u16 m, 4 x u32 nibbles
 *   Q5_0        352 (block 32)      u16 d, u32 fifth, 4 x u32 nibbles
 *   Q5_1        384 (block 32)      u16 d, u16 m, u32 fifth, 4 x u32 nibbles
 *   Q4_K        2304 (block 256)    u16 d, u16 dmin, 3 x u32 scales, 32 x u32 nibbles
 *   Q5_K        2816 (block 256)    u16 d, u16 dmin, 3 x u32 scales, 8 x (u32 fifth, u32 nibbles), 24 x u32 nibbles
 *   Q6_K        3360 (block 256)    u16 d, 4 x u32 scales, 16 x (u32 upper, u32 nibbles, u32 nibbles)
 *   Q8_1        576 (block 32)      u16 d, u16 s, 8 x u32 bytes
 *   Q1_0        288 (block 128)     u16 d, 4 x u32 bits
 *   Q2_0        288 (block 64)      u16 d, 4 x u32 crumbs
 *   Q2_K        1344 (block 256)    u16 d, u16 dmin, 4 x u32 scales, 16 x u32 pairs
 *   Q3_K        1760 (block 256)    u16 d, 3 x u32 scales, 8 x u32 third, 16 x u32 pairs
 *   Q8_K        4672 (block 256)    u32 d, 8 x u32 sums, 64 x u32 bytes
 *   IQ4_NL      288 (block 32)      u16 d, 4 x u32 nibbles
 *   IQ4_XS      2176 (block 256)    u16 d, u16 upper scales, u32 scales, 32 x u32 nibbles
 *   MXFP4       272 (block 32)      u8 e, 4 x u32 nibbles
 *   NVFP4       576 (block 64)      u32 scales, 8 x u32 nibbles
 *   TQ1_0       864 (block 256)     u16 d, 13 x u32 digits
 *   TQ2_0       1056 (block 256)    u16 d, 16 x u32 pairs
 *   IQ2_XXS     1056 (block 256)    u16 d, 8 x (u32 index, u32 rest)
 *   IQ2_XS      1184 (block 256)    u16 d, 2 x u32 scales, 16 x u32 pairs
 *   IQ2_S       1312 (block 256)    u16 d, 2 x u32 scales, 2 x u32 upper, 8 x (u32 index, u32 signs)
 *   IQ3_XXS     1568 (block 256)    u16 d, 8 x (u32 rest, u32 index, u32 index)
 *   IQ3_S       1760 (block 256)    u16 d, u32 scales, 2 x u32 upper, 8 x (u32 signs, u32 index, u32 index)
 *   IQ1_S       800 (block 256)     u16 d, 4 x (u32 upper, u32 index, u32 index)
 *   IQ1_M       896 (block 256)     2 x u32 scales, 4 x (u32 upper, u32 index, u32 index)
 *
 * The order within a block is that in which kernels read, which keeps the processor's prefetcher going.
 *
 * Which column k of the block is where, b being the byte within a unit, and units counted for each kind of field:
 *   bytes              k = 4j + b is byte b of unit j, with bit 7 flipped (q + 128)
 *   nibbles, block 32  k = 4j + b is the low nibble of byte b of unit j, k + 16 the high one
 *   nibbles, Q4_K Q5_K k = 64c + 4j + b (j < 8) is the low nibble of byte b of unit 8c + j, k + 32 the high one
 *   nibbles, Q6_K      k = 128a + 32s + 4j + b is the low (s < 2) or high nibble of byte b of unit 16a + 2j + s % 2
 *   nibbles, IQ4_XS    k = 32c + 4j + b (j < 4) is the low nibble of byte b of unit 4c + j, k + 16 the high one
 *   nibbles, NVFP4     k = 16c + 4j + b (j < 2) is the low nibble of byte b of unit 2c + j, k + 8 the high one
 *   pairs              k = 128a + 32s + 4j + b is bits 2s and 2s + 1 of byte b of unit 8a + j
 *   crumbs             k = 16c + 4j + b is bits 2j and 2j + 1 of byte b of unit c
 *   bits               k = 32c + 4j + b is bit j of byte b of unit c
 *   third, Q3_K        k = 32s + 4j + b is bit s of byte b of unit j
 *   digits             the bytes of the plain block in their order (engine/types/ternary.c says what is in them)
 *   fifth, Q5_0 Q5_1   k = 4j + b is bit 8b + j
 *   fifth, Q5_K        k = 32s + 4j + b is bit 8b + s of unit j
 *   upper, Q6_K        k = 128a + 32s + 4j + b is bits 2s and 2s + 1 of byte b of unit 8a + j
 *   fields of IQ       the bytes of the plain block in their order (engine/types/iq.c says what is in them)
 *   scales             the bytes of the plain block in their order: 12 of six-bit scales and mins; 16 of int8 (Q6_K)
 *
 * Threads: every function may run in any thread; packing splits by rows. */
#pragma once

#include "engine/types/types.h"

#define PL_PACK_ROWS 16

/* Whether a tensor of this type and shape has a packed form: a type of the table above, one group at least, and in more than two
 * dimensions whole groups in each matrix. Rows are counted over all matrices. */
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
