#include "engine/types/types.h"

#include "engine/types/types_impl.h"

#define ROW(id, n_block, n_bytes, activation, quantized, f, ...)                                                       \
    [PL_TYPE_##id] = {.name = #id,                                                                                     \
                      .block = n_block,                                                                                \
                      .bytes = n_bytes,                                                                                \
                      .act = activation,                                                                               \
                      .is_quantized = quantized,                                                                       \
                      .to_float = pl_##f##_to_float,                                                                   \
                      .from_float = pl_##f##_from_float,                                                               \
                      ##__VA_ARGS__}
#define ROW_IMATRIX(id, n_block, n_bytes, activation, f, ...)                                                          \
    [PL_TYPE_##id] = {.name = #id,                                                                                     \
                      .block = n_block,                                                                                \
                      .bytes = n_bytes,                                                                                \
                      .act = activation,                                                                               \
                      .is_quantized = true,                                                                            \
                      .to_float = pl_##f##_to_float,                                                                   \
                      .from_float = pl_##f##_from_float,                                                               \
                      .from_float_imatrix = pl_##f##_from_float_imatrix,                                               \
                      ##__VA_ARGS__}
#define ROW_INT(id, n_bytes, f)                                                                                        \
    [PL_TYPE_##id] = {.name = #id, .block = 1, .bytes = n_bytes, .act = PL_ACT_NONE, .to_float = pl_##f##_to_float}

static const pl_type_info rows[PL_TYPE_COUNT] = {
    ROW(F32, 1, 4, PL_ACT_F32, false, f32, .from_float_quick = pl_f32_from_float),
    ROW(F16, 1, 2, PL_ACT_F32, false, f16, .from_float_quick = pl_f16_from_float),
    ROW(BF16, 1, 2, PL_ACT_F32, false, bf16, .from_float_quick = pl_bf16_from_float),
    ROW(F64, 1, 8, PL_ACT_NONE, false, f64),
    ROW(Q8_0, 32, 2 + 32, PL_ACT_Q8, true, q8_0, .from_float_quick = pl_q8_0_from_float),
    ROW_IMATRIX(Q4_0, 32, 2 + 16, PL_ACT_Q8, q4_0, .from_float_quick = pl_q4_0_from_float_quick),
    ROW_IMATRIX(Q4_1, 32, 2 + 2 + 16, PL_ACT_Q8, q4_1),
    ROW_IMATRIX(Q5_0, 32, 2 + 4 + 16, PL_ACT_Q8, q5_0),
    ROW_IMATRIX(Q5_1, 32, 2 + 2 + 4 + 16, PL_ACT_Q8, q5_1),
    ROW_IMATRIX(Q4_K, 256, 2 + 2 + 12 + 128, PL_ACT_Q8K, q4_k),
    ROW_IMATRIX(Q5_K, 256, 2 + 2 + 12 + 32 + 128, PL_ACT_Q8K, q5_k),
    ROW_IMATRIX(Q6_K, 256, 128 + 64 + 16 + 2, PL_ACT_Q8K, q6_k),
    ROW_IMATRIX(IQ2_XXS, 256, 2 + 8 * 8, PL_ACT_Q8K, iq2_xxs, .needs_imatrix = true),
    ROW_IMATRIX(IQ2_XS, 256, 2 + 64 + 8, PL_ACT_Q8K, iq2_xs, .needs_imatrix = true),
    ROW_IMATRIX(IQ2_S, 256, 2 + 32 + 32 + 8 + 8, PL_ACT_Q8K, iq2_s),
    ROW_IMATRIX(IQ3_XXS, 256, 2 + 64 + 32, PL_ACT_Q8K, iq3_xxs),
    ROW_IMATRIX(IQ3_S, 256, 2 + 64 + 8 + 32 + 4, PL_ACT_Q8K, iq3_s),
    ROW_IMATRIX(IQ1_S, 256, 2 + 32 + 16, PL_ACT_Q8K, iq1_s, .needs_imatrix = true),
    ROW_IMATRIX(IQ1_M, 256, 32 + 16 + 8, PL_ACT_Q8K, iq1_m, .needs_imatrix = true),
    ROW(Q8_1, 32, 2 + 2 + 32, PL_ACT_Q8, true, q8_1),
    ROW_IMATRIX(Q1_0, 128, 2 + 16, PL_ACT_Q8, q1_0),
    ROW_IMATRIX(Q2_0, 64, 2 + 16, PL_ACT_Q8, q2_0),
    ROW_IMATRIX(Q2_K, 256, 16 + 64 + 2 + 2, PL_ACT_Q8K, q2_k),
    ROW_IMATRIX(Q3_K, 256, 32 + 64 + 12 + 2, PL_ACT_Q8K, q3_k),
    ROW(Q8_K, 256, 4 + 256 + 32, PL_ACT_Q8K, true, q8_k),
    ROW_IMATRIX(IQ4_NL, 32, 2 + 16, PL_ACT_Q8, iq4_nl),
    ROW_IMATRIX(IQ4_XS, 256, 2 + 2 + 4 + 128, PL_ACT_Q8K, iq4_xs),
    ROW_IMATRIX(TQ1_0, 256, 48 + 4 + 2, PL_ACT_Q8K, tq1_0),
    ROW_IMATRIX(TQ2_0, 256, 64 + 2, PL_ACT_Q8K, tq2_0),
    ROW_IMATRIX(MXFP4, 32, 1 + 16, PL_ACT_Q8, mxfp4),
    ROW_IMATRIX(NVFP4, 64, 4 + 32, PL_ACT_Q8, nvfp4),
    ROW_INT(I8, 1, i8),
    ROW_INT(I16, 2, i16),
    ROW_INT(I32, 4, i32),
    ROW_INT(I64, 8, i64),
};

const pl_type_info *pl_type_get(uint32_t type)
{
    return type < PL_TYPE_COUNT && rows[type].name ? &rows[type] : NULL;
}

const char *pl_type_name(pl_type type)
{
    const pl_type_info *t = pl_type_get(type);
    return t ? t->name : "?";
}

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

bool pl_type_parse(pl_str name, pl_type *out)
{
    for (uint32_t i = 0; i < PL_TYPE_COUNT; i++) {
        if (!rows[i].name || strlen(rows[i].name) != name.size) continue;
        size_t k = 0;
        while (k < name.size && lower(rows[i].name[k]) == lower(name.data[k])) k++;
        if (k < name.size) continue;
        *out = (pl_type)i;
        return true;
    }
    return false;
}

size_t pl_type_row_size(pl_type type, int64_t n)
{
    const pl_type_info *t = pl_type_get(type);
    PL_ASSERT(t && n >= 0 && n % t->block == 0);
    return (size_t)(n / t->block) * t->bytes;
}

size_t pl_act_token_size(pl_act act, int64_t k)
{
    switch (act) {
    case PL_ACT_Q8: return (size_t)k / 32 * PL_ACT_Q8_BYTES;
    case PL_ACT_Q8K: return (size_t)k / 256 * PL_ACT_Q8K_BYTES;
    default: return (size_t)k * sizeof(float);
    }
}
