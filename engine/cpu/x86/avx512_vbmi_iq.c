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
#include "engine/cpu/x86/iq_impl.h"

/* The low and the high bytes of a grid's entries. */
typedef struct tables {
    _Alignas(64) uint8_t low[2048];
    _Alignas(64) uint8_t high[2048];
} tables;

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

/* 64 indices: their low eight bits, and bits 7 to 10 as masks. */
typedef struct indices {
    __m512i low;
    __mmask64 bits[4];
} indices;

/* What a table has for two times 64 indices. Each part of the table is loaded once for both, which is what takes the
 * time when it does not fit the registers. */
typedef struct pair {
    __m512i v[2];
} pair;

INLINE pair look_in_128(const uint8_t *table, const indices *x)
{
    __m512i a = load(table), b = load(table + 64);
    return (pair){{_mm512_permutex2var_epi8(a, x[0].low, b), _mm512_permutex2var_epi8(a, x[1].low, b)}};
}

/* Bit of the index chooses between a and b. */
INLINE pair choose(const indices *x, int bit, pair a, pair b)
{
    return (pair){{_mm512_mask_blend_epi8(x[0].bits[bit - 7], a.v[0], b.v[0]),
                   _mm512_mask_blend_epi8(x[1].bits[bit - 7], a.v[1], b.v[1])}};
}

INLINE pair look_in_256(const uint8_t *table, const indices *x)
{
    return choose(x, 7, look_in_128(table, x), look_in_128(table + 128, x));
}

INLINE pair look_in_512(const uint8_t *table, const indices *x)
{
    return choose(x, 8, look_in_256(table, x), look_in_256(table + 256, x));
}

INLINE pair look_in_1024(const uint8_t *table, const indices *x)
{
    return choose(x, 9, look_in_512(table, x), look_in_512(table + 512, x));
}

INLINE pair look(const uint8_t *table, const int entries, const indices *x)
{
    switch (entries) {
    case 256: return look_in_256(table, x);
    case 512: return look_in_512(table, x);
    case 1024: return look_in_1024(table, x);
    default: return choose(x, 10, look_in_1024(table, x), look_in_1024(table + 1024, x));
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

/* The values plus 64 of four entries of eight columns by their low and high codes; entry e stands at byte place[e] of
 * each 32 bits. */
INLINE void values_by_8(__m512i v[8], const kind of, __m512i low, __m512i high, const int place[4])
{
    UNROLL
    for (int e = 0; e < 4; e++) {
        v[2 * e] = _mm512_permutexvar_epi8(bits_from(low, 8 * place[e], 2), values_of(of));
        v[2 * e + 1] = _mm512_permutexvar_epi8(bits_from(high, 8 * place[e], 2), values_of(of));
    }
}

/* The same of four entries of four columns. */
INLINE void values_by_4(__m512i v[4], const kind of, __m512i low, __m512i high)
{
    const __m512i even = _mm512_set1_epi16(255);
    /* Low and high bytes of entries 0 and 2, and of 1 and 3, beside each other: even ? a : b. */
    __m512i both[2] = {_mm512_ternarylogic_epi32(low, _mm512_slli_epi16(high, 8), even, 0xe4),
                       _mm512_ternarylogic_epi32(_mm512_srli_epi16(low, 8), high, even, 0xe4)};
    UNROLL
    for (int e = 0; e < 4; e++) v[e] = _mm512_permutexvar_epi8(bits_from(both[e % 2], e / 2 * 16, 4), values_of(of));
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

/* Entries 1 and 2 change places in IQ2_XS, whose units have two of them. */
INLINE int place_of(const kind of, int e)
{
    return of == IQ2_XS && (e == 1 || e == 2) ? 3 - e : e;
}

/* The two units of IQ2_XS with columns 32 i to 32 i + 31, as the low and the high bytes of their entries. */
INLINE void bytes_of_pairs(__m512i *low, __m512i *high, const uint8_t *w, int i)
{
    const __m512i even = _mm512_set1_epi16(255);
    __m512i a = load(w + 160 + 128 * i), b = load(w + 160 + 128 * i + 64);
    *low = _mm512_ternarylogic_epi32(a, _mm512_slli_epi16(b, 8), even, 0xe4);
    *high = _mm512_ternarylogic_epi32(_mm512_srli_epi16(a, 8), b, even, 0xe4);
}

/* Where the units of IQ1 with columns 32 i to 32 i + 31 are: upper bits, and two units of indices. */
INLINE const uint8_t *units_of_iq1(const uint8_t *w, int i, const kind of)
{
    return w + (of == IQ1_M ? 128 : 32) + 192 * (i / 2);
}

/* The indices for columns 32 i to 32 i + 31 of the block at w; of IQ3, half 0 or 1 of them. */
INLINE indices indices_of(const uint8_t *w, int i, int half, const kind of)
{
    indices x = {0};
    switch (of) {
    case IQ2_XXS: x.low = load(w + 32 + 128 * i); break;
    case IQ2_XS: {
        __m512i high;
        bytes_of_pairs(&x.low, &high, w, i);
        x.bits[1] = test(high, 1);
        break;
    }
    case IQ2_S: {
        __m512i upper = bits_from(shift_right(load(w + 160 + 64 * (i / 4)), 8 * (i % 4)), 0, 2);
        x.low = load(w + 288 + 128 * i);
        x.bits[1] = test(upper, 1);
        x.bits[2] = test(upper, 2);
        break;
    }
    case IQ3_XXS: x.low = load(w + 32 + 192 * i + 64 + 64 * half); break;
    case IQ3_S:
        x.low = load(w + 224 + 192 * i + 64 + 64 * half);
        x.bits[1] = test(bits_from(shift_right(load(w + 96 + 64 * (i / 4)), 8 * (i % 4)), 4 * half, 1), 1);
        break;
    case IQ1_S:
    case IQ1_M: {
        const uint8_t *units = units_of_iq1(w, i, of);
        __m512i upper = bits_from(shift_right(load(units), 16 * (i % 2)), 0, of == IQ1_M ? 4 : 3);
        x.low = load(units + 64 + 64 * (i % 2));
        UNROLL
        for (int b = 0; b < 3; b++) x.bits[1 + b] = test(upper, 1 << b);
        break;
    }
    }
    x.bits[0] = _mm512_movepi8_mask(x.low);
    return x;
}

/* Columns 32 i to 32 i + 31 of the block at w as bytes q + 64, with their scale, or the scales of their halves. low and
 * high are the entries' codes: of the columns, or of IQ3 those of both halves. */
INLINE void columns(__m512i v[8], __m512i scale[2], const uint8_t *w, int i, const __m512i *low, const __m512i *high,
                    const kind of)
{
    int place[4];
    UNROLL
    for (int e = 0; e < 4; e++) place[e] = place_of(of, e);
    if (is_by_4(of)) {
        values_by_4(v, of, low[0], high[0]);
        values_by_4(v + 4, of, low[1], high[1]);
    } else {
        values_by_8(v, of, low[0], high[0], place);
    }
    __m512i signs;
    switch (of) {
    case IQ2_XXS:
    case IQ3_XXS: {
        __m512i rest = load(of == IQ2_XXS ? w + 32 + 128 * i + 64 : w + 32 + 192 * i);
        signs = signs_of_7(bits_from(rest, 0, 7));
        scale[0] = odd_of(_mm512_srli_epi32(rest, 27), 30);
        break;
    }
    case IQ2_XS: {
        __m512i unused, bytes;
        bytes_of_pairs(&unused, &bytes, w, i);
        signs = signs_of_7(_mm512_srli_epi16(bytes, 1));
        nibble_scales(scale, w + 32, i);
        break;
    }
    case IQ2_S:
        signs = load(w + 288 + 128 * i + 64);
        nibble_scales(scale, w + 32, i);
        break;
    case IQ3_S:
        signs = load(w + 224 + 192 * i);
        scale[0] = odd_of(_mm512_slli_epi32(shift_right(load(w + 32), 4 * i), 1), 30);
        break;
    case IQ1_S: {
        __m512i word = shift_right(load(units_of_iq1(w, i, of)), 16 * (i % 2));
        __m512i down =
            _mm512_maskz_mov_epi32(_mm512_test_epi32_mask(word, _mm512_set1_epi32(1 << 15)), _mm512_set1_epi8(2));
        UNROLL
        for (int e = 0; e < 8; e++) v[e] = _mm512_sub_epi8(v[e], down);
        scale[0] = odd_of(_mm512_srli_epi32(word, 11), 14);
        return;
    }
    case IQ1_M: {
        __m512i word = shift_right(load(units_of_iq1(w, i, of)), 16 * (i % 2)), two = _mm512_set1_epi8(2);
        UNROLL
        for (int e = 0; e < 4; e++) { /* the bytes are 57 and more: nothing is borrowed from one to the next */
            __mmask16 minus = _mm512_test_epi32_mask(word, _mm512_set1_epi32(8 << 4 * e));
            v[2 * e] = _mm512_mask_sub_epi32(v[2 * e], minus, v[2 * e], two);
            v[2 * e + 1] = _mm512_mask_sub_epi32(v[2 * e + 1], minus, v[2 * e + 1], two);
        }
        __m512i s = shift_right(load(w + 64 * (i / 4)), 16 * (i / 2 % 2) + 6 * (i % 2));
        scale[0] = odd_of(_mm512_slli_epi32(s, 1), 14);
        scale[1] = odd_of(_mm512_srli_epi32(s, 2), 14);
        return;
    }
    }
    UNROLL
    for (int e = 0; e < 4; e++) turn_8(v + 2 * e, signs, place[e]);
}

/* 64 columns at a time, or 32 of IQ3: what two sets of indices give. */
INLINE void codes_of(pair *low, pair *high, const uint8_t *w, int i, const tables *t, const format f)
{
    const bool by_4 = is_by_4(f.kind);
    indices x[2] = {indices_of(w, i, 0, f.kind), indices_of(w, by_4 ? i : i + 1, 1, f.kind)};
    *low = look(t->low, f.entries, x);
    *high = look(t->high, f.entries, x);
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
            const int at_once = is_by_4(f.kind) ? 1 : 2;
            for (int i = 0; i < 8; i += at_once) {
                pair low, high;
                codes_of(&low, &high, w, i, &t, f);
                UNROLL
                for (int h = 0; h < at_once; h++) {
                    __m512i v[8], scale[2];
                    columns(v, scale, w, i + h, low.v + h, high.v + h, f.kind);
                    const uint8_t *x = a + 256 * t0 + 32 * (i + h), *c = a + 260 * tile + 64 * t0 + 8 * (i + h);
                    UNROLL
                    for (int j = 0; j < n; j++)
                        total[j] = add_columns(total[j], v, scale, x + 256 * j, c + 64 * j, f.fine);
                }
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
        const int at_once = is_by_4(f.kind) ? 1 : 2;
        for (int i = 0; i < 8; i += at_once) {
            pair low, high;
            codes_of(&low, &high, w, i, &t, f);
            for (int h = 0; h < at_once; h++) {
                __m512i v[8], scale[2];
                columns(v, scale, w, i + h, low.v + h, high.v + h, f.kind);
                UNROLL
                for (int j = 0; j < 8; j++) _mm512_storeu_si512(out + 512 * (i + h) + 64 * j, v[j]);
                uint8_t *scales = out + EXPANDED_SCALES + (f.fine ? 128 : 64) * (i + h);
                _mm512_storeu_si512(scales, scale[0]);
                if (f.fine) _mm512_storeu_si512(scales + 64, scale[1]);
            }
        }
        _mm512_storeu_ps(out + EXPANDED_D, factor(w, f));
    }
}

INLINE void block_expanded(__m512 *acc, const uint8_t *w, const uint8_t *a, int tile, int t0, const int n,
                           const bool fine)
{
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

INLINE void mm_expanded(float *dst, size_t dst_stride, const uint8_t *w, int64_t n_groups, const uint8_t *act,
                        int64_t k, int tile, int t0, const int n, const bool fine)
{
    for (int64_t g = 0; g < n_groups; g++, dst += ROWS) {
        __m512 acc[PL_ACT_TILE];
        UNROLL
        for (int i = 0; i < n; i++) acc[i] = _mm512_setzero_ps();
        const uint8_t *a = act;
        for (int64_t b = k / 256; b > 0; b--, w += PL_CPU_EXPANDED, a += tile * PL_ACT_Q8K_BYTES)
            block_expanded(acc, w, a, tile, t0, n, fine);
        store(dst, dst_stride, acc, n);
    }
}

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
MORE(more_16, block_expanded, true)
MORE(more_32, block_expanded, false)

#define INSTALL(type, name)                                                                                            \
    k->mm[PL_TYPE_##type] = mm_##name;                                                                                 \
    k->expand[PL_TYPE_##type] = expand_##name;                                                                         \
    k->mm_more_expanded[PL_TYPE_##type] = name.fine ? more_16 : more_32;                                               \
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
