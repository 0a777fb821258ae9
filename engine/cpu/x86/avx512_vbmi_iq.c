/* The products of the IQ types with permutations of bytes across a whole vector.
 *
 * A grid's entries are kept as codes of two or four bits (engine/types/iq_grid.h). The low and the high bytes of all
 * entries are two tables, which one instruction searches 128 bytes of for 64 indices at once: four entries of each of
 * the 16 rows. Bits of the index beyond the seventh choose between such parts under a mask. Then one instruction
 * spreads the codes of one entry over the four bytes of each row, and another one replaces the codes by values plus 64,
 * which makes them unsigned; a sign turns 64 + v into 128 - (64 + v). Gathering from memory took two to five times as
 * long (Zen 5), but for the largest grid, where it would be equal.
 *
 * With many tokens, a group is expanded once to those bytes, 64 vectors of them per block, and all tiles of tokens are
 * multiplied with that. */
#include "engine/cpu/x86/avx512_impl.h"

#include "engine/types/iq_grid.h"

/* An expanded block of 16 rows: the bytes, then f32 d * f, then the int32 scales of each 16 or 32 columns. */
enum { EXPANDED_D = 64 * 64, EXPANDED_SCALES = EXPANDED_D + 64 };
_Static_assert(EXPANDED_SCALES + 16 * 64 == PL_CPU_EXPANDED, "an expanded block has the size that scratch has for it");

typedef enum kind { IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, IQ1_S, IQ1_M } kind;

typedef struct format {
    kind kind;
    int bytes;   /* of a packed block of 16 rows */
    int entries; /* of the grid */
    bool fine;   /* a scale for each 16 columns, not 32 */
    float f;
} format;

/* The low and the high bytes of a grid's entries. */
typedef struct tables {
    _Alignas(64) uint8_t low[2048];
    _Alignas(64) uint8_t high[2048];
} tables;

INLINE const uint16_t *grid_of(const kind of)
{
    switch (of) {
    case IQ2_XXS: return pl_grid_iq2_xxs;
    case IQ2_XS: return pl_grid_iq2_xs;
    case IQ2_S: return pl_grid_iq2_s;
    case IQ3_XXS: return pl_grid_iq3_xxs;
    case IQ3_S: return pl_grid_iq3_s;
    default: return pl_grid_iq1;
    }
}

/* A few dozen instructions, which is little beside even one group; so nobody has to keep them. */
INLINE void make_tables(tables *t, const format f)
{
    const uint16_t *grid = grid_of(f.kind);
    for (int i = 0; i < f.entries; i += 32) {
        __m512i v = load((const uint8_t *)(grid + i));
        _mm256_store_si256((__m256i *)(t->low + i), _mm512_cvtepi16_epi8(v));
        _mm256_store_si256((__m256i *)(t->high + i), _mm512_cvtepi16_epi8(_mm512_srli_epi16(v, 8)));
    }
}

/* Values plus 64 by the low bits of a byte, whatever its upper bits are. */
INLINE __m512i values_of(const kind of)
{
    switch (of) {
    case IQ3_XXS: return _mm512_set1_epi64(0x7e746c645c544c44); /* 4 12 20 28 36 44 52 62 */
    case IQ3_S: return _mm512_set1_epi64(0x4f4d4b4947454341);   /* 1 3 5 7 9 11 13 15 */
    case IQ1_S:
    case IQ1_M: return _mm512_set1_epi32(0x00494139); /* 8 * (-1 0 1) + 1 */
    default: return _mm512_set1_epi32(0x006b5948);    /* 8 25 43 */
    }
}

/* For each byte j of each 32 bits, from which bit of them to take eight bits. */
INLINE __m512i from_bits(int first, int step)
{
    uint32_t at = 0;
    UNROLL
    for (int j = 0; j < 4; j++) at |= (uint32_t)(first + step * j) << 8 * j;
    return _mm512_set1_epi64((int64_t)(at | (uint64_t)(at + 0x20202020u) << 32));
}

INLINE __m512i bits_from(__m512i v, int first, int step)
{
    return _mm512_multishift_epi64_epi8(from_bits(first, step), v);
}

INLINE __m512i shift_right(__m512i v, int n)
{
    return _mm512_srl_epi32(v, _mm_cvtsi32_si128(n));
}

INLINE __m512i look_in_256(const uint8_t *table, __m512i index, __mmask64 bit7)
{
    __m512i lower = _mm512_permutex2var_epi8(load(table), index, load(table + 64));
    __m512i upper = _mm512_permutex2var_epi8(load(table + 128), index, load(table + 192));
    return _mm512_mask_blend_epi8(bit7, lower, upper);
}

INLINE __m512i look_in_512(const uint8_t *table, __m512i index, __mmask64 bit7, const __mmask64 *bits)
{
    return _mm512_mask_blend_epi8(bits[0], look_in_256(table, index, bit7), look_in_256(table + 256, index, bit7));
}

INLINE __m512i look_in_1024(const uint8_t *table, __m512i index, __mmask64 bit7, const __mmask64 *bits)
{
    return _mm512_mask_blend_epi8(bits[1], look_in_512(table, index, bit7, bits),
                                  look_in_512(table + 512, index, bit7, bits));
}

/* The table's bytes for 64 indices, whose low eight bits are in index and whose others are masks, the ninth first. */
INLINE __m512i look(const uint8_t *table, const int entries, __m512i index, const __mmask64 *bits)
{
    const __mmask64 bit7 = _mm512_movepi8_mask(index);
    switch (entries) {
    case 256: return look_in_256(table, index, bit7);
    case 512: return look_in_512(table, index, bit7, bits);
    case 1024: return look_in_1024(table, index, bit7, bits);
    default:
        return _mm512_mask_blend_epi8(bits[2], look_in_1024(table, index, bit7, bits),
                                      look_in_1024(table + 1024, index, bit7, bits));
    }
}

INLINE __mmask64 test(__m512i v, int bits)
{
    return _mm512_test_epi8_mask(v, _mm512_set1_epi8((char)bits));
}

/* Bits 0 to 6 of each byte are signs; bit 7 becomes what makes their number even. */
INLINE __m512i signs_of_7(__m512i v)
{
    const __m512i odd = _mm512_set4_epi32(0x00808000, (int)0x80000080, (int)0x80000080, 0x00808000);
    v = _mm512_and_si512(v, _mm512_set1_epi8(127));
    __m512i both = /* (v ^ v >> 4) & 15 */
        _mm512_ternarylogic_epi32(v, _mm512_srli_epi16(v, 4), _mm512_set1_epi8(15), 0x28);
    return _mm512_or_si512(v, _mm512_shuffle_epi8(odd, both));
}

/* Eight columns of entries 0 to 3: byte place of each 32 bits of signs is that of the entry. */
INLINE void turn_8(__m512i *v, __m512i signs, int place)
{
    const __m512i same =
        _mm512_add_epi8(_mm512_set4_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0), _mm512_set1_epi8((char)place));
    const __m512i twice_64 = _mm512_set1_epi8((char)128);
    __m512i s = _mm512_shuffle_epi8(signs, same);
    v[0] = _mm512_mask_sub_epi8(v[0], _mm512_test_epi8_mask(s, _mm512_set1_epi32(0x08040201)), twice_64, v[0]);
    v[1] = _mm512_mask_sub_epi8(v[1], _mm512_test_epi8_mask(s, _mm512_set1_epi32((int)0x80402010)), twice_64, v[1]);
}

/* The values plus 64 of four entries of eight columns; entry e stands at byte place[e] of each 32 bits. */
INLINE void values_by_8(__m512i v[8], const tables *t, const format f, __m512i index, const __mmask64 *bits,
                        const int place[4])
{
    __m512i low = look(t->low, f.entries, index, bits), high = look(t->high, f.entries, index, bits);
    UNROLL
    for (int e = 0; e < 4; e++) {
        v[2 * e] = _mm512_permutexvar_epi8(bits_from(low, 8 * place[e], 2), values_of(f.kind));
        v[2 * e + 1] = _mm512_permutexvar_epi8(bits_from(high, 8 * place[e], 2), values_of(f.kind));
    }
}

/* The same of four entries of four columns. */
INLINE void values_by_4(__m512i v[4], const tables *t, const format f, __m512i index, const __mmask64 *bits)
{
    const __m512i even = _mm512_set1_epi16(255);
    __m512i low = look(t->low, f.entries, index, bits), high = look(t->high, f.entries, index, bits);
    /* Low and high bytes of entries 0 and 2, and of 1 and 3, beside each other: even ? a : b. */
    __m512i pair[2] = {_mm512_ternarylogic_epi32(low, _mm512_slli_epi16(high, 8), even, 0xe4),
                       _mm512_ternarylogic_epi32(_mm512_srli_epi16(low, 8), high, even, 0xe4)};
    UNROLL
    for (int e = 0; e < 4; e++)
        v[e] = _mm512_permutexvar_epi8(bits_from(pair[e % 2], e / 2 * 16, 4), values_of(f.kind));
}

/* (v & mask) | 1 */
INLINE __m512i odd_of(__m512i v, int mask)
{
    return _mm512_ternarylogic_epi32(v, _mm512_set1_epi32(mask), _mm512_set1_epi32(1), 0xea);
}

/* The nibbles of byte i of the scales at p, as odd numbers. */
INLINE void nibble_scales(__m512i scale[2], const uint8_t *p, int i)
{
    __m512i s = shift_right(load(p + 64 * (i / 4)), 8 * (i % 4));
    scale[0] = odd_of(_mm512_slli_epi32(s, 1), 30);
    scale[1] = odd_of(_mm512_srli_epi32(s, 3), 30);
}

/* Columns 32 i to 32 i + 31 of the block at w as bytes q + 64, with their scale, or the scales of their halves. */
INLINE void columns(__m512i v[8], __m512i scale[2], const uint8_t *w, int i, const tables *t, const format f)
{
    static const int in_order[4] = {0, 1, 2, 3};
    __mmask64 bits[3] = {0}, bits2[3] = {0};
    switch (f.kind) {
    case IQ2_XXS: {
        __m512i rest = load(w + 32 + 128 * i + 64), signs = signs_of_7(bits_from(rest, 0, 7));
        values_by_8(v, t, f, load(w + 32 + 128 * i), bits, in_order);
        UNROLL
        for (int e = 0; e < 4; e++) turn_8(v + 2 * e, signs, e);
        scale[0] = odd_of(_mm512_srli_epi32(rest, 27), 30);
        return;
    }
    case IQ2_XS: {
        static const int place[4] = {0, 2, 1, 3};
        const __m512i even = _mm512_set1_epi16(255);
        __m512i a = load(w + 160 + 128 * i), b = load(w + 160 + 128 * i + 64);
        __m512i low = _mm512_ternarylogic_epi32(a, _mm512_slli_epi16(b, 8), even, 0xe4);
        __m512i high = _mm512_ternarylogic_epi32(_mm512_srli_epi16(a, 8), b, even, 0xe4);
        bits[0] = test(high, 1);
        values_by_8(v, t, f, low, bits, place);
        __m512i signs = signs_of_7(_mm512_srli_epi16(high, 1));
        UNROLL
        for (int e = 0; e < 4; e++) turn_8(v + 2 * e, signs, place[e]);
        nibble_scales(scale, w + 32, i);
        return;
    }
    case IQ2_S: {
        __m512i upper = bits_from(shift_right(load(w + 160 + 64 * (i / 4)), 8 * (i % 4)), 0, 2);
        __m512i signs = load(w + 288 + 128 * i + 64);
        bits[0] = test(upper, 1);
        bits[1] = test(upper, 2);
        values_by_8(v, t, f, load(w + 288 + 128 * i), bits, in_order);
        UNROLL
        for (int e = 0; e < 4; e++) turn_8(v + 2 * e, signs, e);
        nibble_scales(scale, w + 32, i);
        return;
    }
    case IQ3_XXS: {
        __m512i rest = load(w + 32 + 192 * i), signs = signs_of_7(bits_from(rest, 0, 7));
        values_by_4(v, t, f, load(w + 32 + 192 * i + 64), bits);
        values_by_4(v + 4, t, f, load(w + 32 + 192 * i + 128), bits);
        UNROLL
        for (int e = 0; e < 4; e++) turn_8(v + 2 * e, signs, e);
        scale[0] = odd_of(_mm512_srli_epi32(rest, 27), 30);
        return;
    }
    case IQ3_S: {
        __m512i upper = shift_right(load(w + 96 + 64 * (i / 4)), 8 * (i % 4)), signs = load(w + 224 + 192 * i);
        bits[0] = test(bits_from(upper, 0, 1), 1);
        bits2[0] = test(bits_from(upper, 4, 1), 1);
        values_by_4(v, t, f, load(w + 224 + 192 * i + 64), bits);
        values_by_4(v + 4, t, f, load(w + 224 + 192 * i + 128), bits2);
        UNROLL
        for (int e = 0; e < 4; e++) turn_8(v + 2 * e, signs, e);
        scale[0] = odd_of(_mm512_slli_epi32(shift_right(load(w + 32), 4 * i), 1), 30);
        return;
    }
    case IQ1_S:
    case IQ1_M: {
        const bool fine = f.kind == IQ1_M;
        const __m512i two = _mm512_set1_epi8(2);
        const uint8_t *units = w + (fine ? 128 : 32) + 192 * (i / 2);
        __m512i word = shift_right(load(units), 16 * (i % 2));
        __m512i upper = bits_from(word, 0, fine ? 4 : 3);
        UNROLL
        for (int b = 0; b < 3; b++) bits[b] = test(upper, 1 << b);
        values_by_8(v, t, f, load(units + 64 + 64 * (i % 2)), bits, in_order);
        if (fine) {
            UNROLL
            for (int e = 0; e < 4; e++) { /* the bytes are 57 and more: nothing is borrowed from one to the next */
                __mmask16 minus = _mm512_test_epi32_mask(word, _mm512_set1_epi32(8 << 4 * e));
                v[2 * e] = _mm512_mask_sub_epi32(v[2 * e], minus, v[2 * e], two);
                v[2 * e + 1] = _mm512_mask_sub_epi32(v[2 * e + 1], minus, v[2 * e + 1], two);
            }
            __m512i s = shift_right(load(w + 64 * (i / 4)), 16 * (i / 2 % 2) + 6 * (i % 2));
            scale[0] = odd_of(_mm512_slli_epi32(s, 1), 14);
            scale[1] = odd_of(_mm512_srli_epi32(s, 2), 14);
        } else {
            __m512i down = _mm512_maskz_mov_epi32(_mm512_test_epi32_mask(word, _mm512_set1_epi32(1 << 15)), two);
            UNROLL
            for (int e = 0; e < 8; e++) v[e] = _mm512_sub_epi8(v[e], down);
            scale[0] = odd_of(_mm512_srli_epi32(word, 11), 14);
        }
        return;
    }
    }
}

/* d * f */
INLINE __m512 factor(const uint8_t *w, const format f)
{
    __m512 d;
    if (f.kind == IQ1_M) { /* four bits in each of four words */
        __m512i a = load(w), b = load(w + 64);
        __m512i h = _mm512_and_si512(_mm512_srli_epi32(a, 12), _mm512_set1_epi32(0xf));
        h = _mm512_or_si512(h, _mm512_and_si512(_mm512_srli_epi32(a, 24), _mm512_set1_epi32(0xf0)));
        h = _mm512_or_si512(h, _mm512_and_si512(_mm512_srli_epi32(b, 4), _mm512_set1_epi32(0xf00)));
        h = _mm512_or_si512(h, _mm512_and_si512(_mm512_srli_epi32(b, 16), _mm512_set1_epi32(0xf000)));
        d = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(h));
    } else {
        d = load_f16(w);
    }
    return _mm512_mul_ps(d, _mm512_set1_ps(f.f));
}

/* total + the product of 32 columns, bytes v, with those of a token at x, whose sums for -32 are at c. */
INLINE __m512i add_columns(__m512i total, const __m512i v[8], const __m512i scale[2], const uint8_t *x,
                           const uint8_t *c, const bool fine)
{
    if (fine) {
        __m512i first = _mm512_slli_epi32(broadcast(c), 1), second = _mm512_slli_epi32(broadcast(c + 4), 1);
        UNROLL
        for (int j = 0; j < 4; j++) {
            first = dot(first, v[j], broadcast(x + 4 * j), true);
            second = dot(second, v[4 + j], broadcast(x + 16 + 4 * j), true);
        }
        total = _mm512_add_epi32(total, _mm512_mullo_epi32(first, scale[0]));
        return _mm512_add_epi32(total, _mm512_mullo_epi32(second, scale[1]));
    }
    int32_t zero[2];
    memcpy(zero, c, sizeof zero);
    __m512i sum = _mm512_set1_epi32(2 * (zero[0] + zero[1]));
    UNROLL
    for (int j = 0; j < 8; j++) sum = dot(sum, v[j], broadcast(x + 4 * j), true);
    return _mm512_add_epi32(total, _mm512_mullo_epi32(sum, scale[0]));
}

INLINE void add_block(__m512 *acc, const __m512i *total, __m512 d, const uint8_t *dx, const int n)
{
    UNROLL
    for (int t = 0; t < n; t++)
        acc[t] = _mm512_add_ps(
            acc[t], _mm512_mul_ps(_mm512_mul_ps(d, broadcast_f32(dx + 4 * t)), _mm512_cvtepi32_ps(total[t])));
}

INLINE void mm_iq(float *dst, size_t dst_stride, const uint8_t *w, int64_t n_groups, const uint8_t *act, int64_t k,
                  int tile, int t0, const int n, const format f)
{
    tables t;
    make_tables(&t, f);
    for (int64_t g = 0; g < n_groups; g++, dst += ROWS) {
        __m512 acc[PL_ACT_TILE];
        UNROLL
        for (int i = 0; i < n; i++) acc[i] = _mm512_setzero_ps();
        const uint8_t *a = act;
        for (int64_t b = k / 256; b > 0; b--, w += f.bytes, a += tile * PL_ACT_Q8K_BYTES) {
            __m512i total[PL_ACT_TILE];
            prefetch(w, f.bytes, n);
            UNROLL
            for (int i = 0; i < n; i++) total[i] = _mm512_setzero_si512();
            for (int i = 0; i < 8; i++) {
                __m512i v[8], scale[2];
                columns(v, scale, w, i, &t, f);
                const uint8_t *x = a + 256 * t0 + 32 * i, *c = a + 260 * tile + 64 * t0 + 8 * i;
                UNROLL
                for (int j = 0; j < n; j++) total[j] = add_columns(total[j], v, scale, x + 256 * j, c + 64 * j, f.fine);
            }
            add_block(acc, total, factor(w, f), a + 256 * tile + 4 * t0, n);
        }
        store(dst, dst_stride, acc, n);
    }
}

INLINE void expand(uint8_t *out, const uint8_t *w, int64_t k, const format f)
{
    tables t;
    make_tables(&t, f);
    for (int64_t b = k / 256; b > 0; b--, w += f.bytes, out += PL_CPU_EXPANDED) {
        for (int i = 0; i < 8; i++) {
            __m512i v[8], scale[2];
            columns(v, scale, w, i, &t, f);
            UNROLL
            for (int j = 0; j < 8; j++) _mm512_storeu_si512(out + 512 * i + 64 * j, v[j]);
            uint8_t *scales = out + EXPANDED_SCALES + (f.fine ? 128 : 64) * i;
            _mm512_storeu_si512(scales, scale[0]);
            if (f.fine) _mm512_storeu_si512(scales + 64, scale[1]);
        }
        _mm512_storeu_ps(out + EXPANDED_D, factor(w, f));
    }
}

INLINE void mm_expanded(float *dst, size_t dst_stride, const uint8_t *w, int64_t n_groups, const uint8_t *act,
                        int64_t k, int tile, int t0, const int n, const bool fine)
{
    for (int64_t g = 0; g < n_groups; g++, dst += ROWS) {
        __m512 acc[PL_ACT_TILE];
        UNROLL
        for (int i = 0; i < n; i++) acc[i] = _mm512_setzero_ps();
        const uint8_t *a = act;
        for (int64_t b = k / 256; b > 0; b--, w += PL_CPU_EXPANDED, a += tile * PL_ACT_Q8K_BYTES) {
            __m512i total[PL_ACT_TILE];
            UNROLL
            for (int i = 0; i < n; i++) total[i] = _mm512_setzero_si512();
            for (int i = 0; i < 8; i++) {
                __m512i v[8], scale[2];
                UNROLL
                for (int j = 0; j < 8; j++) v[j] = load(w + 512 * i + 64 * j);
                const uint8_t *scales = w + EXPANDED_SCALES + (fine ? 128 : 64) * i;
                scale[0] = load(scales);
                if (fine) scale[1] = load(scales + 64);
                const uint8_t *x = a + 256 * t0 + 32 * i, *c = a + 260 * tile + 64 * t0 + 8 * i;
                UNROLL
                for (int j = 0; j < n; j++) total[j] = add_columns(total[j], v, scale, x + 256 * j, c + 64 * j, fine);
            }
            add_block(acc, total, _mm512_loadu_ps(w + EXPANDED_D), a + 256 * tile + 4 * t0, n);
        }
        store(dst, dst_stride, acc, n);
    }
}

static const format iq2_xxs = {IQ2_XXS, 1056, 256, false, 0.125f};
static const format iq2_xs = {IQ2_XS, 1184, 512, true, 0.125f};
static const format iq2_s = {IQ2_S, 1312, 1024, true, 0.125f};
static const format iq3_xxs = {IQ3_XXS, 1568, 256, false, 0.25f};
static const format iq3_s = {IQ3_S, 1760, 512, false, 1};
static const format iq1_s = {IQ1_S, 800, 2048, false, 0.125f};
static const format iq1_m = {IQ1_M, 896, 2048, true, 0.125f};

#define IQ(name)                                                                                                       \
    MM(mm_##name, mm_iq, k / 256 * name.bytes, name)                                                                   \
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
MM(mm_expanded_16, mm_expanded, k / 256 * PL_CPU_EXPANDED, true)
MM(mm_expanded_32, mm_expanded, k / 256 * PL_CPU_EXPANDED, false)

#define INSTALL(type, name)                                                                                            \
    k->mm[PL_TYPE_##type] = mm_##name;                                                                                 \
    k->expand[PL_TYPE_##type] = expand_##name;                                                                         \
    k->mm_expanded[PL_TYPE_##type] = name.fine ? mm_expanded_16 : mm_expanded_32

void pl_cpu_mm_iq_avx512_vbmi(pl_cpu_kernels *k)
{
    INSTALL(IQ2_XXS, iq2_xxs);
    INSTALL(IQ2_XS, iq2_xs);
    INSTALL(IQ2_S, iq2_s);
    INSTALL(IQ3_XXS, iq3_xxs);
    INSTALL(IQ3_S, iq3_s);
    INSTALL(IQ1_S, iq1_s);
    INSTALL(IQ1_M, iq1_m);
}
