/* The products of the IQ types on 256-bit vectors, half a packed group of 16 rows per vector.
 *
 * The entry of each of 8 rows is gathered, spread to codes of one byte, and these become values by a shuffle. A block
 * is expanded to bytes q + 64 (iq_impl.h) on the stack, or with many tokens a group once for all of them, and
 * multiplied as such: pairs of products stay below 126 * 127 * 2 < 2^15, and widening them by the scale costs nothing.
 */
#include "engine/cpu/x86/avx2_impl.h"
#include "engine/cpu/x86/iq_impl.h"

/* A grid with room for what a gather of 32 bits reads behind its last entry. */
typedef struct grid {
    uint16_t entries[2048 + 1];
} grid;

INLINE __m256i shift_right(__m256i v, int n)
{
    return _mm256_srl_epi32(v, _mm_cvtsi32_si128(n));
}

INLINE __m256i masked(__m256i v, int mask)
{
    return _mm256_and_si256(v, _mm256_set1_epi32(mask));
}

/* The entries of 8 rows, in the lower 16 bits of each lane; the upper ones mean nothing. */
INLINE __m256i entries_at(const grid *g, __m256i index)
{
    return _mm256_i32gather_epi32((const int *)(const void *)g->entries, index, 2);
}

/* Values plus 64, or in IQ1 eight times the value plus 64, by codes. */
INLINE __m256i values_by(__m256i codes, const kind of)
{
    __m256i table;
    switch (of) {
    case IQ3_XXS: table = _mm256_set1_epi64x(0x3e342c241c140c04); break; /* 4 12 20 28 36 44 52 62 */
    case IQ3_S: table = _mm256_set1_epi64x(0x0f0d0b0907050301); break;   /* 1 3 5 7 9 11 13 15 */
    case IQ1_S:
    case IQ1_M: table = _mm256_set1_epi32(0x00484038); break; /* 64 + 8 * (-1 0 1) */
    default: table = _mm256_set1_epi32(0x002b1908);           /* 8 25 43 */
    }
    return _mm256_shuffle_epi8(table, codes);
}

/* Four codes of two bits from bit 0 of each lane on, one to a byte. */
INLINE __m256i spread_2(__m256i v)
{
    v = masked(v, 255);
    __m256i a = _mm256_or_si256(v, _mm256_slli_epi32(v, 6));
    __m256i b = _mm256_or_si256(_mm256_slli_epi32(v, 12), _mm256_slli_epi32(v, 18));
    return _mm256_or_si256(_mm256_and_si256(a, _mm256_set1_epi32(0x00000303)),
                           _mm256_and_si256(b, _mm256_set1_epi32(0x03030000)));
}

/* Four codes of four bits. */
INLINE __m256i spread_4(__m256i v)
{
    __m256i a = _mm256_or_si256(masked(v, 0xf), masked(_mm256_slli_epi32(v, 4), 0xf00));
    __m256i b = _mm256_or_si256(masked(_mm256_slli_epi32(v, 8), 0xf0000), masked(_mm256_slli_epi32(v, 12), 0xf000000));
    return _mm256_or_si256(a, b);
}

/* Bit 7 of each lane becomes what makes the number of ones in bits 0 to 7 even; the bits above mean nothing. */
INLINE __m256i signs_of_7(__m256i v)
{
    v = masked(v, 127);
    __m256i p = _mm256_xor_si256(v, _mm256_srli_epi32(v, 4));
    p = _mm256_xor_si256(p, _mm256_srli_epi32(p, 2));
    p = _mm256_xor_si256(p, _mm256_srli_epi32(p, 1));
    return _mm256_or_si256(v, _mm256_slli_epi32(masked(p, 1), 7));
}

/* 64 + v, or 64 - v where the bit of the byte's column, of those in bits, is in the lowest byte of the lane of signs.
 */
INLINE __m256i turn_4(__m256i v, __m256i signs, int bits)
{
    const __m256i lowest = _mm256_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12, 0, 0, 0, 0, 4, 4, 4, 4,
                                            8, 8, 8, 8, 12, 12, 12, 12);
    __m256i column = _mm256_set1_epi32(bits);
    __m256i s = _mm256_and_si256(_mm256_shuffle_epi8(signs, lowest), column);
    __m256i minus = _mm256_cmpeq_epi8(s, column); /* -1 where turned */
    __m256i turned = _mm256_sub_epi8(_mm256_xor_si256(v, minus), minus);
    return _mm256_add_epi8(turned, _mm256_set1_epi8(64));
}

/* Entry e of the 32 columns from 32 i on, eight columns: its index in the grid, for 8 rows. */
INLINE __m256i index_of(const uint8_t *w, int i, int e, const kind of)
{
    switch (of) {
    case IQ2_XXS: return masked(shift_right(load(w + 32 + 128 * i), 8 * e), 255);
    case IQ2_XS: return masked(shift_right(load(w + 160 + 128 * i + 64 * (e / 2)), e % 2 * 16), 511);
    case IQ2_S: {
        __m256i low = masked(shift_right(load(w + 288 + 128 * i), 8 * e), 255);
        __m256i high = masked(shift_right(load(w + 160 + 64 * (i / 4)), i % 4 * 8 + 2 * e), 3);
        return _mm256_or_si256(low, _mm256_slli_epi32(high, 8));
    }
    default: { /* IQ1 */
        const uint8_t *units = w + (of == IQ1_M ? 128 : 32) + 192 * (i / 2);
        __m256i low = masked(shift_right(load(units + 64 + 64 * (i % 2)), 8 * e), 255);
        __m256i high = masked(shift_right(load(units), i % 2 * 16 + (of == IQ1_M ? 4 : 3) * e), 7);
        return _mm256_or_si256(low, _mm256_slli_epi32(high, 8));
    }
    }
}

/* The same of IQ3, whose entries e are 0 to 7, of four columns each. */
INLINE __m256i index_of_4(const uint8_t *w, int i, int e, const kind of)
{
    const uint8_t *units = w + (of == IQ3_S ? 224 : 32) + 192 * i;
    __m256i low = masked(shift_right(load(units + 64 + 64 * (e / 4)), e % 4 * 8), 255);
    if (of == IQ3_XXS) return low;
    __m256i high = masked(shift_right(load(w + 96 + 64 * (i / 4)), i % 4 * 8 + e), 1);
    return _mm256_or_si256(low, _mm256_slli_epi32(high, 8));
}

/* The signs of eight columns in the lowest byte of each lane. */
INLINE __m256i signs_at(const uint8_t *w, int i, int e, const kind of)
{
    switch (of) {
    case IQ2_XXS: return signs_of_7(shift_right(load(w + 32 + 128 * i + 64), 7 * e));
    case IQ3_XXS: return signs_of_7(shift_right(load(w + 32 + 192 * i), 7 * e));
    case IQ2_XS: return signs_of_7(shift_right(load(w + 160 + 128 * i + 64 * (e / 2)), e % 2 * 16 + 9));
    case IQ2_S: return shift_right(load(w + 288 + 128 * i + 64), 8 * e);
    default: return shift_right(load(w + 224 + 192 * i), 8 * e); /* IQ3_S */
    }
}

/* The scale of half h (of two) of the 32 columns. */
INLINE __m256i scale_of(const uint8_t *w, int i, int h, const kind of)
{
    __m256i s;
    switch (of) {
    case IQ2_XXS: s = _mm256_srli_epi32(load(w + 32 + 128 * i + 64), 28); break;
    case IQ3_XXS: s = _mm256_srli_epi32(load(w + 32 + 192 * i), 28); break;
    case IQ2_XS:
    case IQ2_S: s = masked(shift_right(load(w + 32 + 64 * (i / 4)), i % 4 * 8 + 4 * h), 15); break;
    case IQ3_S: s = masked(shift_right(load(w + 32), 4 * i), 15); break;
    case IQ1_S: s = masked(shift_right(load(w + 32 + 192 * (i / 2)), i % 2 * 16 + 12), 7); break;
    default: s = masked(shift_right(load(w + 64 * (i / 4)), i / 2 % 2 * 16 + 6 * (i % 2) + 3 * h), 7); break;
    }
    return _mm256_add_epi32(_mm256_slli_epi32(s, 1), _mm256_set1_epi32(1));
}

/* d * f of 8 rows. w is the whole group's block, half which of its halves. */
INLINE __m256 factor(const uint8_t *w, int half, const format f)
{
    if (f.kind != IQ1_M) return _mm256_mul_ps(load_f16(w + 16 * half), _mm256_set1_ps(f.f));
    __m256i a = load(w + 32 * half), b = load(w + 64 + 32 * half);
    __m256i h = _mm256_or_si256(masked(_mm256_srli_epi32(a, 12), 0xf), masked(_mm256_srli_epi32(a, 24), 0xf0));
    h = _mm256_or_si256(h, masked(_mm256_srli_epi32(b, 4), 0xf00));
    h = _mm256_or_si256(h, masked(_mm256_srli_epi32(b, 16), 0xf000));
    __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(h, h), 0x08);
    return _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(packed)), _mm256_set1_ps(f.f));
}

INLINE void put(uint8_t *p, __m256i v)
{
    _mm256_storeu_si256((__m256i *)p, v);
}

/* 8 rows of one block, half 0 or 1 of the group's. */
INLINE void expand_half(uint8_t *out, const uint8_t *w, int half, const grid *g, const format f)
{
    const uint8_t *rows = w + 32 * half; /* every unit but d has 32 bytes for 8 rows */
    uint8_t *to = out + 32 * half;
    for (int i = 0; i < 8; i++) {
        for (int e = 0; e < 4; e++) {
            uint8_t *at = to + 512 * i + 128 * e;
            __m256i low, high;
            if (is_by_4(f.kind)) {
                low = spread_4(entries_at(g, index_of_4(rows, i, 2 * e, f.kind)));
                high = spread_4(entries_at(g, index_of_4(rows, i, 2 * e + 1, f.kind)));
            } else {
                __m256i codes = entries_at(g, index_of(rows, i, e, f.kind));
                low = spread_2(codes);
                high = spread_2(_mm256_srli_epi32(codes, 8));
            }
            low = values_by(low, f.kind);
            high = values_by(high, f.kind);
            if (f.kind == IQ1_S || f.kind == IQ1_M) {
                const uint8_t *upper = rows + (f.kind == IQ1_M ? 128 : 32) + 192 * (i / 2);
                int bit = i % 2 * 16 + (f.kind == IQ1_M ? 4 * e + 3 : 15);
                __m256i minus = _mm256_cmpgt_epi32(masked(shift_right(load(upper), bit), 1), _mm256_setzero_si256());
                __m256i shift = _mm256_or_si256(minus, _mm256_set1_epi8(1)); /* -1 or 1 in every byte */
                put(at, _mm256_add_epi8(low, shift));
                put(at + 64, _mm256_add_epi8(high, shift));
                continue;
            }
            __m256i signs = signs_at(rows, i, e, f.kind);
            put(at, turn_4(low, signs, 0x08040201));
            put(at + 64, turn_4(high, signs, (int)0x80402010));
        }
        uint8_t *scales = to + EXPANDED_SCALES + (f.fine ? 128 : 64) * i;
        put(scales, scale_of(rows, i, 0, f.kind));
        if (f.fine) put(scales + 64, scale_of(rows, i, 1, f.kind));
    }
    _mm256_storeu_ps((float *)(void *)(to + EXPANDED_D), factor(w, half, f));
}

INLINE void copy_grid(grid *g, const format f)
{
    memcpy(g->entries, grid_of(f.kind), (size_t)f.entries * sizeof *g->entries);
    g->entries[f.entries] = 0;
}

INLINE void expand(uint8_t *out, const uint8_t *w, int64_t k, const format f)
{
    grid g;
    copy_grid(&g, f);
    for (int64_t b = k / 256; b > 0; b--, w += f.bytes, out += PL_CPU_EXPANDED)
        for (int half = 0; half < HALVES; half++) expand_half(out, w, half, &g, f);
}

/* acc + the product of one expanded block with a tile. */
INLINE void block(__m256 (*acc)[SUMS], const uint8_t *w, const uint8_t *a, const part p, const bool fine)
{
    UNROLL
    for (int h = 0; h < p.halves; h++) {
        const uint8_t *rows = w + 32 * (p.half0 + h);
        __m256i total[SUMS];
        UNROLL
        for (int t = 0; t < p.tokens; t++) total[t] = _mm256_setzero_si256();
        for (int i = 0; i < 16; i++) { /* 16 columns each */
            __m256i scale = load(rows + EXPANDED_SCALES + 64 * (fine ? i : i / 2));
            __m256i twice = _mm256_or_si256(scale, _mm256_slli_epi32(scale, 16));
            UNROLL
            for (int t = 0; t < p.tokens; t++) {
                /* The 64 that all bytes have too much: c is -32 times the sum of these columns of the token. */
                __m256i zero = _mm256_slli_epi32(broadcast(a + 260 * p.tile + 64 * (p.t0 + t) + 4 * i), 1);
                total[t] = _mm256_add_epi32(total[t], _mm256_mullo_epi32(zero, scale));
            }
            UNROLL
            for (int j = 0; j < 4; j++) {
                __m256i v = load(rows + 256 * i + 64 * j);
                UNROLL
                for (int t = 0; t < p.tokens; t++)
                    total[t] = widen(total[t],
                                     _mm256_maddubs_epi16(v, broadcast(a + 256 * (p.t0 + t) + 16 * i + 4 * j)), twice);
            }
        }
        __m256 d = _mm256_loadu_ps((const float *)(const void *)(rows + EXPANDED_D));
        UNROLL
        for (int t = 0; t < p.tokens; t++)
            acc[h][t] = add_scaled(acc[h][t], d, broadcast_f32(a + 256 * p.tile + 4 * (p.t0 + t)), total[t]);
    }
}

INLINE void mm_expanded(float *dst, size_t dst_stride, const uint8_t *w, const uint8_t *a, int64_t k, const part p,
                        const bool fine)
{
    __m256 acc[HALVES][SUMS];
    clear(acc, p);
    for (int64_t i = k / 256; i > 0; i--, w += PL_CPU_EXPANDED, a += p.tile * PL_ACT_Q8K_BYTES)
        block(acc, w, a, p, fine);
    store(dst, dst_stride, acc, p);
}

INLINE void mm_iq(float *dst, size_t dst_stride, const uint8_t *w, const uint8_t *a, int64_t k, const part p,
                  const format f)
{
    uint8_t expanded[PL_CPU_EXPANDED];
    grid g;
    copy_grid(&g, f);
    __m256 acc[HALVES][SUMS];
    clear(acc, p);
    for (int64_t i = k / 256; i > 0; i--, w += f.bytes, a += p.tile * PL_ACT_Q8K_BYTES) {
        for (int h = 0; h < p.halves; h++) expand_half(expanded, w, p.half0 + h, &g, f);
        block(acc, expanded, a, p, f.fine);
    }
    store(dst, dst_stride, acc, p);
}

#define IQ(name)                                                                                                       \
    QUANTIZED(mm_##name, k / 256 * name.bytes, mm_iq, name)                                                            \
    static void expand_##name(void *out, const void *w, int64_t k)                                                     \
    {                                                                                                                  \
        expand(out, w, k, name);                                                                                       \
    }

IQ(iq2_xxs)
IQ(iq2_xs)
IQ(iq2_s)
IQ(iq3_xxs)
IQ(iq3_s)
IQ(iq1_s)
IQ(iq1_m)
QUANTIZED(mm_expanded_16, k / 256 * PL_CPU_EXPANDED, mm_expanded, true)
QUANTIZED(mm_expanded_32, k / 256 * PL_CPU_EXPANDED, mm_expanded, false)

#define INSTALL(type, name)                                                                                            \
    k->mm[PL_TYPE_##type] = mm_##name;                                                                                 \
    k->expand[PL_TYPE_##type] = expand_##name;                                                                         \
    k->mm_expanded[PL_TYPE_##type] = name.fine ? mm_expanded_16 : mm_expanded_32

void pl_cpu_mm_iq_avx2(pl_cpu_kernels *k)
{
    INSTALL(IQ2_XXS, iq2_xxs);
    INSTALL(IQ2_XS, iq2_xs);
    INSTALL(IQ2_S, iq2_s);
    INSTALL(IQ3_XXS, iq3_xxs);
    INSTALL(IQ3_S, iq3_s);
    INSTALL(IQ1_S, iq1_s);
    INSTALL(IQ1_M, iq1_m);
}
