/* The one table of tensor types: sizes, conversion to and from float, and which activation each is multiplied with.
 *
 * Formats: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (numbers and names).
 * Threads: the table is constant. */
#pragma once

#include "engine/base/bytes.h"
#include "engine/base/status.h"

/* The numbers are GGUF's. A number without a row (see pl_type_info) is not known to this build. */
typedef enum pl_type {
    PL_TYPE_F32 = 0,
    PL_TYPE_F16 = 1,
    PL_TYPE_Q4_0 = 2,
    PL_TYPE_Q4_1 = 3,
    PL_TYPE_Q5_0 = 6,
    PL_TYPE_Q5_1 = 7,
    PL_TYPE_Q8_0 = 8,
    PL_TYPE_Q8_1 = 9,
    PL_TYPE_Q2_K = 10,
    PL_TYPE_Q3_K = 11,
    PL_TYPE_Q4_K = 12,
    PL_TYPE_Q5_K = 13,
    PL_TYPE_Q6_K = 14,
    PL_TYPE_Q8_K = 15,
    PL_TYPE_IQ2_XXS = 16,
    PL_TYPE_IQ2_XS = 17,
    PL_TYPE_IQ3_XXS = 18,
    PL_TYPE_IQ1_S = 19,
    PL_TYPE_IQ4_NL = 20,
    PL_TYPE_IQ3_S = 21,
    PL_TYPE_IQ2_S = 22,
    PL_TYPE_IQ4_XS = 23,
    PL_TYPE_I8 = 24,
    PL_TYPE_I16 = 25,
    PL_TYPE_I32 = 26,
    PL_TYPE_I64 = 27,
    PL_TYPE_F64 = 28,
    PL_TYPE_IQ1_M = 29,
    PL_TYPE_BF16 = 30,
    PL_TYPE_TQ1_0 = 34,
    PL_TYPE_TQ2_0 = 35,
    PL_TYPE_MXFP4 = 39,
    PL_TYPE_NVFP4 = 40,
    PL_TYPE_Q1_0 = 41,
    PL_TYPE_Q2_0 = 42,
    PL_TYPE_COUNT = 64 /* room for the numbers in use by GGUF */
} pl_type;

/* Positions in one block of the paged KV cache: the unit in which memory for it is planned, handed out and shared. */
#define PL_KV_PAGE 32

/* What a weight's row is multiplied with. The activation is made from f32 by the backend, per token. */
typedef enum pl_act {
    PL_ACT_NONE, /* not a weight type */
    PL_ACT_F32,  /* float weights: the f32 values as they are */
    PL_ACT_Q8,   /* blocks of 32: int8 values, f32 scale, f32 scale * sum of the values */
    PL_ACT_Q8K   /* blocks of 256: int8 values, f32 scale, integer sums of parts of them */
} pl_act;

/* How many terms a quantized activation has (engine/cpu/act.h): its blocks, and the blocks of what these leave. */
typedef enum pl_precision {
    PL_ONE_TERM,
    PL_TWO_TERMS,
    PL_TWO_TERMS_WHERE_LARGE /* the second only for blocks that are large beside the row */
} pl_precision;

enum { PL_ACT_Q8_BYTES = 32 + 12, PL_ACT_Q8K_BYTES = 256 + 4 + 64 + 16 }; /* per token and block: engine/cpu/act.h */
/* Bytes per token of k columns; k is a multiple of the block. */
size_t pl_act_token_size(pl_act act, int64_t k);

typedef struct pl_type_info {
    const char *name; /* "Q4_1" */
    uint32_t block;   /* elements per block */
    uint32_t bytes;   /* bytes per block */
    pl_act act;
    bool is_quantized;
    /* n elements (a multiple of block). Bit-exact: unfused multiply and add, in the order of the format's definition.
     */
    void (*to_float)(const void *src, float *dst, int64_t n);
    /* Encodes n elements; NULL where this build only decodes. Every element counts alike. */
    void (*from_float)(const float *src, void *dst, int64_t n);
    /* As from_float, in one pass over the elements: for what is encoded again and again. NULL where the cache of K and
     * V cannot have the type. */
    void (*from_float_quick)(const float *src, void *dst, int64_t n);
    /* Encodes n / n_per_row rows of n_per_row elements (a multiple of block) so that the sum of weights[column] *
     * error^2 becomes small. weights: n_per_row numbers >= 0, typically each column's mean square activation. NULL
     * where importance cannot change what the format holds (floats, Q8). */
    void (*from_float_imatrix)(const float *src, void *dst, int64_t n, int64_t n_per_row, const float *weights);
    bool needs_imatrix; /* the format is so coarse that encoding without weights is to be refused or warned about */
} pl_type_info;

/* The row of type, or NULL. Safe for any number from a file. */
const pl_type_info *pl_type_get(uint32_t type);
const char *pl_type_name(pl_type type); /* "?" when there is no row */
/* The type with this name, without regard to case; false when there is none. */
bool pl_type_parse(pl_str name, pl_type *out);

/* Bytes of a row of n elements: n must be a multiple of the block, and the type must have a row. */
size_t pl_type_row_size(pl_type type, int64_t n);

/* What the four bits of IQ4_NL and IQ4_XS stand for, and those of MXFP4 and NVFP4. */
extern const int8_t pl_iq4_levels[16], pl_fp4_levels[16];
/* The scales of MXFP4 and NVFP4 as floats that multiply the levels. */
float pl_mxfp4_scale(uint8_t e);
float pl_nvfp4_scale(uint8_t s);

/* IEEE 754 half and bfloat16. Rounding to nearest even; NaN stays NaN. The same bits on every processor. */
float pl_f16_to_f32(uint16_t h);
uint16_t pl_f32_to_f16(float f);
static inline float pl_bf16_to_f32(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
uint16_t pl_f32_to_bf16(float f);
