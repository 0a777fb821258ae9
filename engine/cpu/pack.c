/* Packing is driven by a table of fields, so that both directions and every type share one loop. Speed matters only for
 * products on plain weights, which pack each group on the fly. */
#include "engine/cpu/pack.h"

#if defined(__SSE2__)
#include <emmintrin.h> /* part of every x86-64, so no instruction set of its own */
#endif

enum { ROWS = PL_PACK_ROWS, FIELDS_MAX = 8, PLAIN_BLOCK_MAX = 292 };

typedef enum change {
    AS_IS,
    FLIP_SIGN,  /* int8 to offset binary: vpdpbusd wants one unsigned factor */
    FIFTH_BITS, /* bit k to bit 8 (k % 4) + k / 4, so that a shift and a mask give the fifth bits of one unit */
    CRUMBS      /* bits 2k and 2k + 1 to bit 8 (k % 4) + 2 (k / 4), likewise */
} change;

typedef struct field {
    uint16_t units; /* 0 ends the list */
    uint8_t bytes;  /* of a unit: 1, 2 or 4 */
    uint8_t change;
    uint16_t offset; /* in the plain block */
    uint8_t more;    /* that many of the next fields, of as many units, take turns with this one unit by unit */
    uint8_t stride;  /* bytes from one unit to the next in the plain block; 0: they follow each other */
} field;

/* Formats of the plain blocks: the structs in https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h */
static const field fields[PL_TYPE_COUNT][FIELDS_MAX + 1] = {
    [PL_TYPE_F32] = {{1, 4, AS_IS, 0}},
    [PL_TYPE_F16] = {{1, 2, AS_IS, 0}},
    [PL_TYPE_BF16] = {{1, 2, AS_IS, 0}},
    [PL_TYPE_Q8_0] = {{1, 2, AS_IS, 0}, {8, 4, FLIP_SIGN, 2}},
    [PL_TYPE_Q4_0] = {{1, 2, AS_IS, 0}, {4, 4, AS_IS, 2}},
    [PL_TYPE_Q4_1] = {{1, 2, AS_IS, 0}, {1, 2, AS_IS, 2}, {4, 4, AS_IS, 4}},
    [PL_TYPE_Q5_0] = {{1, 2, AS_IS, 0}, {1, 4, FIFTH_BITS, 2}, {4, 4, AS_IS, 6}},
    [PL_TYPE_Q5_1] = {{1, 2, AS_IS, 0}, {1, 2, AS_IS, 2}, {1, 4, FIFTH_BITS, 4}, {4, 4, AS_IS, 8}},
    [PL_TYPE_Q4_K] = {{1, 2, AS_IS, 0}, {1, 2, AS_IS, 2}, {3, 4, AS_IS, 4}, {32, 4, AS_IS, 16}},
    [PL_TYPE_Q5_K] = {{1, 2, AS_IS, 0},
                      {1, 2, AS_IS, 2},
                      {3, 4, AS_IS, 4},
                      {8, 4, AS_IS, 16, .more = 1},
                      {8, 4, AS_IS, 48},
                      {24, 4, AS_IS, 80}},
    [PL_TYPE_Q6_K] = {{1, 2, AS_IS, 208},
                      {4, 4, AS_IS, 192},
                      {8, 4, AS_IS, 128, .more = 2},
                      {8, 4, AS_IS, 0},
                      {8, 4, AS_IS, 32},
                      {8, 4, AS_IS, 160, .more = 2},
                      {8, 4, AS_IS, 64},
                      {8, 4, AS_IS, 96}},
    [PL_TYPE_Q2_K] = {{1, 2, AS_IS, 80}, {1, 2, AS_IS, 82}, {4, 4, AS_IS, 0}, {16, 4, AS_IS, 16}},
    [PL_TYPE_Q3_K] = {{1, 2, AS_IS, 108}, {3, 4, AS_IS, 96}, {8, 4, AS_IS, 0}, {16, 4, AS_IS, 32}},
    [PL_TYPE_IQ4_NL] = {{1, 2, AS_IS, 0}, {4, 4, AS_IS, 2}},
    [PL_TYPE_IQ4_XS] = {{1, 2, AS_IS, 0}, {1, 2, AS_IS, 2}, {1, 4, AS_IS, 4}, {32, 4, AS_IS, 8}},
    [PL_TYPE_MXFP4] = {{1, 1, AS_IS, 0}, {4, 4, AS_IS, 1}},
    [PL_TYPE_NVFP4] = {{1, 4, AS_IS, 0}, {8, 4, AS_IS, 4}},
    [PL_TYPE_TQ1_0] = {{1, 2, AS_IS, 52}, {13, 4, AS_IS, 0}},
    [PL_TYPE_TQ2_0] = {{1, 2, AS_IS, 64}, {16, 4, AS_IS, 0}},
    [PL_TYPE_Q1_0] = {{1, 2, AS_IS, 0}, {4, 4, FIFTH_BITS, 2}},
    [PL_TYPE_Q2_0] = {{1, 2, AS_IS, 0}, {4, 4, CRUMBS, 2}},
    [PL_TYPE_Q8_1] = {{1, 2, AS_IS, 0}, {1, 2, AS_IS, 2}, {8, 4, FLIP_SIGN, 4}},
    [PL_TYPE_Q8_K] = {{1, 4, AS_IS, 0}, {8, 4, AS_IS, 260}, {64, 4, FLIP_SIGN, 4}},
    [PL_TYPE_IQ2_XXS] = {{1, 2, AS_IS, 0}, {16, 4, AS_IS, 2}},
    [PL_TYPE_IQ2_XS] = {{1, 2, AS_IS, 0}, {2, 4, AS_IS, 66}, {16, 4, AS_IS, 2}},
    [PL_TYPE_IQ2_S] =
        {{1, 2, AS_IS, 0}, {2, 4, AS_IS, 74}, {2, 4, AS_IS, 66}, {8, 4, AS_IS, 2, .more = 1}, {8, 4, AS_IS, 34}},
    [PL_TYPE_IQ3_XXS] = {{1, 2, AS_IS, 0},
                         {8, 4, AS_IS, 66, .more = 2},
                         {8, 4, AS_IS, 2, .stride = 8},
                         {8, 4, AS_IS, 6, .stride = 8}},
    [PL_TYPE_IQ3_S] = {{1, 2, AS_IS, 0},
                       {1, 4, AS_IS, 106},
                       {2, 4, AS_IS, 66},
                       {8, 4, AS_IS, 74, .more = 2},
                       {8, 4, AS_IS, 2, .stride = 8},
                       {8, 4, AS_IS, 6, .stride = 8}},
    [PL_TYPE_IQ1_S] = {{1, 2, AS_IS, 0},
                       {4, 4, AS_IS, 34, .more = 2},
                       {4, 4, AS_IS, 2, .stride = 8},
                       {4, 4, AS_IS, 6, .stride = 8}},
    [PL_TYPE_IQ1_M] = {{2, 4, AS_IS, 48},
                       {4, 4, AS_IS, 32, .more = 2},
                       {4, 4, AS_IS, 0, .stride = 8},
                       {4, 4, AS_IS, 4, .stride = 8}},
};

static bool known(pl_type type)
{
    return (unsigned)type < PL_TYPE_COUNT && fields[type][0].units != 0;
}

static int64_t total_rows(const int64_t ne[4])
{
    return ne[1] * ne[2] * ne[3];
}

bool pl_pack_supported(pl_type type, const int64_t ne[4])
{
    if (!known(type) || ne[1] < ROWS) return false;
    return ne[2] * ne[3] == 1 || ne[1] % ROWS == 0; /* no group may reach into the next matrix */
}

static uint32_t load32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

static void store32(uint8_t *p, uint32_t v)
{
    memcpy(p, &v, 4);
}

/* Swaps bit i + s of v with bit i for each bit i of mask. */
static uint32_t swap_bits(uint32_t v, int s, uint32_t mask)
{
    uint32_t t = ((v >> s) ^ v) & mask;
    return v ^ t ^ (t << s);
}

/* A bit's index is (k / 4, k % 4) = (t2 t1 t0, b1 b0) and shall become (b1 b0, t2 t1 t0): a rotation of index bits by
 * two, made of exchanges of pairs of them. Exchanging index bits p > q moves bits 2^p - 2^q places. */
static uint32_t fifth_bits_pack(uint32_t v)
{
    /* index t2 t1 t0 b1 b0 -> b1 t1 t0 t2 b0 -> b1 b0 t0 t2 t1 -> b1 b0 t2 t0 t1 -> b1 b0 t2 t1 t0 */
    v = swap_bits(v, 14, 0x0000cccc);   /* 4 with 1 */
    v = swap_bits(v, 7, 0x00aa00aa);    /* 3 with 0 */
    v = swap_bits(v, 2, 0x0c0c0c0c);    /* 2 with 1 */
    return swap_bits(v, 1, 0x22222222); /* 1 with 0 */
}

static uint32_t fifth_bits_unpack(uint32_t v)
{
    v = swap_bits(v, 1, 0x22222222);
    v = swap_bits(v, 2, 0x0c0c0c0c);
    v = swap_bits(v, 7, 0x00aa00aa);
    return swap_bits(v, 14, 0x0000cccc);
}

/* The fields' index is (k / 4, k % 4), whose halves change places; twice makes nothing of it. */
static uint32_t crumbs(uint32_t v)
{
    v = swap_bits(v, 12, 0x0000f0f0);
    return swap_bits(v, 6, 0x00cc00cc);
}

#if defined(__SSE2__)

/* Four units of four rows; 16 units of them in a go are a cache line of each. */
static void pack_square32(uint8_t *out, size_t step, const uint8_t *const *row, size_t from, __m128i flip)
{
    __m128i v[4];
    for (int r = 0; r < 4; r++) v[r] = _mm_xor_si128(_mm_loadu_si128((const __m128i *)(row[r] + from)), flip);
    __m128i a = _mm_unpacklo_epi32(v[0], v[1]), b = _mm_unpacklo_epi32(v[2], v[3]);
    __m128i c = _mm_unpackhi_epi32(v[0], v[1]), d = _mm_unpackhi_epi32(v[2], v[3]);
    _mm_storeu_si128((__m128i *)out, _mm_unpacklo_epi64(a, b));
    _mm_storeu_si128((__m128i *)(out + step), _mm_unpackhi_epi64(a, b));
    _mm_storeu_si128((__m128i *)(out + 2 * step), _mm_unpacklo_epi64(c, d));
    _mm_storeu_si128((__m128i *)(out + 3 * step), _mm_unpackhi_epi64(c, d));
}

/* Eight units of two bytes of eight rows. */
static void pack_square16(uint8_t *out, size_t step, const uint8_t *const *row, size_t from)
{
    __m128i v[8], w[8];
    for (int r = 0; r < 8; r++) v[r] = _mm_loadu_si128((const __m128i *)(row[r] + from));
    for (int i = 0; i < 4; i++) { /* (row i, row i + 4) of columns 0 to 3, then 4 to 7 */
        w[2 * i] = _mm_unpacklo_epi16(v[i], v[i + 4]);
        w[2 * i + 1] = _mm_unpackhi_epi16(v[i], v[i + 4]);
    }
    for (int i = 0; i < 2; i++) { /* rows i, i + 2, i + 4, i + 6 of two columns each */
        for (int h = 0; h < 2; h++) {
            v[4 * i + 2 * h] = _mm_unpacklo_epi16(w[2 * i + h], w[2 * i + 4 + h]);
            v[4 * i + 2 * h + 1] = _mm_unpackhi_epi16(w[2 * i + h], w[2 * i + 4 + h]);
        }
    }
    for (int c = 0; c < 4; c++) {
        _mm_storeu_si128((__m128i *)(out + (size_t)(2 * c) * step), _mm_unpacklo_epi16(v[c], v[c + 4]));
        _mm_storeu_si128((__m128i *)(out + (size_t)(2 * c + 1) * step), _mm_unpackhi_epi16(v[c], v[c + 4]));
    }
}

/* As many units as there are whole squares of; gives their number. A cache line of each row at a time, because rows are
 * often a power of two apart and then share few places of the cache. */
static int64_t pack_squares(uint8_t *out, size_t step, const uint8_t *const *row, size_t from, int64_t units, int bytes,
                            int how)
{
    const int side = 16 / bytes, line = 64 / bytes;
    if (how == FIFTH_BITS || how == CRUMBS || bytes == 1) return 0;
    int64_t whole = units / side * side;
    const __m128i flip = _mm_set1_epi8((char)(how == FLIP_SIGN ? 0x80 : 0));
    for (int64_t u = 0; u < whole; u += line) {
        for (int r = 0; r < ROWS; r += side) {
            for (int64_t i = u; i < whole && i < u + line; i += side) {
                uint8_t *to = out + (size_t)i * step + bytes * r;
                if (bytes == 4)
                    pack_square32(to, step, row + r, from + (size_t)i * 4, flip);
                else
                    pack_square16(to, step, row + r, from + (size_t)i * 2);
            }
        }
    }
    return whole;
}

#else

static int64_t pack_squares(uint8_t *out, size_t step, const uint8_t *const *row, size_t from, int64_t units, int bytes,
                            int how)
{
    (void)out, (void)step, (void)row, (void)from, (void)units, (void)bytes, (void)how;
    return 0;
}

#endif

/* The units of one field: those at from in each row go to out, step bytes apart. */
static void pack_units(uint8_t *out, size_t step, const uint8_t *const *row, size_t from, int64_t units, int bytes,
                       int how)
{
    for (int64_t i = pack_squares(out, step, row, from, units, bytes, how); i < units; i++) {
        uint8_t *to = out + (size_t)i * step;
        size_t at = from + (size_t)(i * bytes);
        if (bytes != 4) {
            for (int r = 0; r < ROWS; r++) memcpy(to + bytes * r, row[r] + at, (size_t)bytes);
            continue;
        }
        uint32_t v[ROWS];
        for (int r = 0; r < ROWS; r++) v[r] = load32(row[r] + at);
        if (how == FLIP_SIGN)
            for (int r = 0; r < ROWS; r++) v[r] ^= 0x80808080u;
        if (how == FIFTH_BITS)
            for (int r = 0; r < ROWS; r++) v[r] = fifth_bits_pack(v[r]);
        if (how == CRUMBS)
            for (int r = 0; r < ROWS; r++) v[r] = crumbs(v[r]);
        memcpy(to, v, sizeof v);
    }
}

static uint32_t unpack_unit(uint32_t v, int how)
{
    switch (how) {
    case FLIP_SIGN: return v ^ 0x80808080u;
    case FIFTH_BITS: return fifth_bits_unpack(v);
    case CRUMBS: return crumbs(v);
    default: return v;
    }
}

void pl_pack_group(pl_type type, int64_t k, const void *rows, size_t row_stride, int n_rows, void *group)
{
    const pl_type_info *info = pl_type_get(type);
    const uint8_t *row[ROWS];
    for (int r = 0; r < ROWS; r++) row[r] = (const uint8_t *)rows + (size_t)(r < n_rows ? r : n_rows - 1) * row_stride;
    uint8_t *out = group;
    /* Blocks of one element are one field of many units. */
    bool is_float = info->block == 1;
    for (int64_t b = 0; b < (is_float ? 1 : k / info->block); b++) {
        size_t block = (size_t)b * info->bytes;
        for (const field *first = fields[type]; first->units != 0; first += 1 + first->more) {
            size_t step = 0;
            for (int i = 0; i <= first->more; i++) step += (size_t)(ROWS * first[i].bytes);
            int64_t units = is_float ? k : first->units;
            uint8_t *to = out;
            for (const field *f = first; f <= first + first->more; to += ROWS * f->bytes, f++) {
                const size_t at = block + f->offset;
                if (f->stride == 0) pack_units(to, step, row, at, units, f->bytes, f->change);
                for (int64_t i = 0; i < units && f->stride != 0; i++)
                    pack_units(to + (size_t)i * step, step, row, at + (size_t)i * f->stride, 1, f->bytes, f->change);
            }
            out += (size_t)units * step;
        }
    }
}

/* The plain block of one row out of a packed block of 16 rows. */
static void unpack_block(pl_type type, const uint8_t *packed, int r, uint8_t *plain)
{
    for (const field *first = fields[type]; first->units != 0; first += 1 + first->more) {
        for (int i = 0; i < first->units * (1 + first->more); i++) {
            const field *f = first + i % (1 + first->more);
            int stride = f->stride != 0 ? f->stride : f->bytes;
            uint8_t *at = plain + f->offset + (size_t)(i / (1 + first->more) * stride);
            if (f->bytes != 4)
                memcpy(at, packed + f->bytes * r, f->bytes);
            else
                store32(at, unpack_unit(load32(packed + 4 * r), f->change));
            packed += ROWS * f->bytes;
        }
    }
}

void pl_pack_rows(pl_type type, const int64_t ne[4], const void *src, void *dst, int64_t row_first, int64_t row_end)
{
    PL_ASSERT(pl_pack_supported(type, ne) && row_first % ROWS == 0 && (row_end % ROWS == 0 || row_end == total_rows(ne)));
    size_t size = pl_type_row_size(type, ne[0]);
    int64_t whole = row_end / ROWS * ROWS;
    for (int64_t r = row_first; r < whole; r += ROWS) {
        size_t at = (size_t)r * size;
        pl_pack_group(type, ne[0], (const uint8_t *)src + at, size, ROWS, (uint8_t *)dst + at);
    }
    memcpy((uint8_t *)dst + (size_t)whole * size, (const uint8_t *)src + (size_t)whole * size,
           (size_t)(row_end - whole) * size);
}

void pl_unpack_rows(pl_type type, const int64_t ne[4], const void *src, void *dst, int64_t row_first, int64_t row_end)
{
    PL_ASSERT(pl_pack_supported(type, ne) && row_first % ROWS == 0 && (row_end % ROWS == 0 || row_end == total_rows(ne)));
    const pl_type_info *info = pl_type_get(type);
    size_t size = pl_type_row_size(type, ne[0]);
    int64_t whole = row_end / ROWS * ROWS;
    for (int64_t g = row_first; g < whole; g += ROWS) {
        const uint8_t *packed = (const uint8_t *)src + (size_t)g * size;
        for (size_t b = 0; b < size; b += info->bytes)
            for (int r = 0; r < ROWS; r++)
                unpack_block(type, packed + ROWS * b, r, (uint8_t *)dst + (size_t)(g + r) * size + b);
    }
    memcpy((uint8_t *)dst + (size_t)whole * size, (const uint8_t *)src + (size_t)whole * size,
           (size_t)(row_end - whole) * size);
}

void pl_unpack_row_f32(pl_type type, const int64_t ne[4], const void *packed, int64_t row, float *dst)
{
    PL_ASSERT(pl_pack_supported(type, ne) && row >= 0 && row < total_rows(ne));
    const pl_type_info *info = pl_type_get(type);
    size_t size = pl_type_row_size(type, ne[0]);
    int64_t group = row / ROWS * ROWS;
    if (group + ROWS > total_rows(ne)) { /* in the plain rest */
        info->to_float((const uint8_t *)packed + (size_t)row * size, dst, ne[0]);
        return;
    }
    const uint8_t *from = (const uint8_t *)packed + (size_t)group * size;
    for (size_t b = 0; b < size; b += info->bytes, dst += info->block) {
        uint8_t plain[PLAIN_BLOCK_MAX];
        unpack_block(type, from + ROWS * b, (int)(row - group), plain);
        info->to_float(plain, dst, info->block);
    }
}
