/* The matrix product on 256-bit vectors: half a packed group of 16 rows per vector.
 *
 * There is no instruction here that adds four products of bytes. Products are first added in 16 bits, for exactly as
 * many columns as cannot overflow (15 * 127 * 16, 31 * 127 * 8 and 63 * 127 * 4 are below 2^15), and then widened by a
 * multiplication with 1 or with the scale of their sub-block. Bytes of Q8_0 take |w| times x with the sign of w: 128 *
 * 127 * 2 is below 2^15 as well. Sixteen registers hold the sums of 8 rows and 4 tokens, or 16 rows and 2. */
#include "engine/cpu/x86/avx2_impl.h"

/* --- Types with blocks of 32. --- */

typedef struct format32 {
    int bytes;      /* of a packed block of 16 rows */
    int zero_shift; /* the zero point is 8 << zero_shift; -1: there is none, or the bytes are signed */
    bool is_byte, has_min, has_fifth;
} format32;

INLINE void mm32(float *dst, size_t dst_stride, const uint8_t *w, const uint8_t *a, int64_t k, const part p,
                 const format32 f)
{
    const __m256i one = _mm256_set1_epi16(1);
    __m256 acc[HALVES][SUMS];
    clear(acc, p);
    for (int64_t i = k / 32; i > 0; i--, w += f.bytes, a += p.tile * PL_ACT_Q8_BYTES) {
        UNROLL
        for (int h = 0; h < p.halves; h++) {
            const int half = p.half0 + h;
            const uint8_t *hbits = w + (f.has_min ? 64 : 32) + 32 * half;
            const uint8_t *q = w + (f.has_min ? 64 : 32) + (f.has_fifth ? 64 : 0) + 32 * half;
            __m256i lo[SUMS], hi[SUMS];
            UNROLL
            for (int t = 0; t < p.tokens; t++) lo[t] = hi[t] = _mm256_setzero_si256();
            if (f.is_byte) {
                UNROLL
                for (int j = 0; j < 8; j++) {
                    __m256i v = _mm256_xor_si256(load(q + 64 * j), _mm256_set1_epi8(-128)), size = _mm256_abs_epi8(v);
                    UNROLL
                    for (int t = 0; t < p.tokens; t++) {
                        __m256i x = _mm256_sign_epi8(broadcast(a + 32 * (p.t0 + t) + 4 * j), v);
                        lo[t] = widen(lo[t], _mm256_maddubs_epi16(size, x), one);
                    }
                }
            } else {
                __m256i fifth = f.has_fifth ? load(hbits) : _mm256_setzero_si256();
                UNROLL
                for (int j = 0; j < 4; j++) {
                    __m256i v = load(q + 64 * j), v0 = low_nibbles(v), v1 = high_nibbles(v);
                    if (f.has_fifth) {
                        v0 = or_masked(v0, move_bit(fifth, j, 4), 16);
                        v1 = or_masked(v1, move_bit(fifth, j + 4, 4), 16);
                    }
                    UNROLL
                    for (int t = 0; t < p.tokens; t++) {
                        const uint8_t *x = a + 32 * (p.t0 + t) + 4 * j;
                        lo[t] = dot_pairs(lo[t], v0, broadcast(x));
                        __m256i *sum = f.has_fifth ? &hi[t] : &lo[t];
                        *sum = dot_pairs(*sum, v1, broadcast(x + 16));
                    }
                }
                UNROLL
                for (int t = 0; t < p.tokens; t++) {
                    __m256i c = _mm256_setzero_si256();
                    if (f.zero_shift >= 0)
                        c = _mm256_slli_epi32(broadcast(a + 40 * p.tile + 4 * (p.t0 + t)), f.zero_shift);
                    lo[t] = widen(c, lo[t], one);
                    if (f.has_fifth) lo[t] = widen(lo[t], hi[t], one);
                }
            }
            __m256 d = load_f16(w + 16 * half);
            UNROLL
            for (int t = 0; t < p.tokens; t++)
                acc[h][t] = add_scaled(acc[h][t], d, broadcast_f32(a + 32 * p.tile + 4 * (p.t0 + t)), lo[t]);
            if (f.has_min) {
                __m256 m = load_f16(w + 32 + 16 * half);
                UNROLL
                for (int t = 0; t < p.tokens; t++)
                    acc[h][t] =
                        _mm256_add_ps(acc[h][t], _mm256_mul_ps(m, broadcast_f32(a + 36 * p.tile + 4 * (p.t0 + t))));
            }
        }
    }
    store(dst, dst_stride, acc, p);
}

/* --- Types with blocks of 256. --- */

/* The four lower and the four upper six-bit numbers of each row: base has the lower ones with two bits of the upper
 * above, rest the upper ones' low nibbles. */
INLINE __m256i six_lower(__m256i base)
{
    return _mm256_and_si256(base, _mm256_set1_epi8(63));
}
INLINE __m256i six_upper(__m256i base, __m256i rest_nibbles)
{
    return or_masked(rest_nibbles, _mm256_srli_epi32(base, 2), 48);
}

/* Byte b of each lane, twice as a 16-bit number. */
INLINE __m256i byte_twice(__m256i v, int b)
{
    __m256i s = _mm256_and_si256(_mm256_srli_epi32(v, 8 * b), _mm256_set1_epi32(255));
    return _mm256_or_si256(s, _mm256_slli_epi32(s, 16));
}

INLINE void mm_q45_k(float *dst, size_t dst_stride, const uint8_t *w, const uint8_t *a, int64_t k, const part p,
                     const bool has_fifth)
{
    __m256 acc[HALVES][SUMS];
    clear(acc, p);
    for (int64_t i = k / 256; i > 0; i--, w += has_fifth ? 2816 : 2304, a += p.tile * PL_ACT_Q8K_BYTES) {
        UNROLL
        for (int h = 0; h < p.halves; h++) {
            const int at = 32 * (p.half0 + h);
            const uint8_t *hbits = w + 256 + at;
            __m256i base = load(w + 64 + at), rest = load(w + 192 + at);
            __m256i lower = six_lower(base), upper = six_upper(base, low_nibbles(rest)), sc[8];
            UNROLL
            for (int b = 0; b < 4; b++) {
                sc[b] = byte_twice(lower, b);
                sc[b + 4] = byte_twice(upper, b);
            }
            __m256i total[SUMS];
            UNROLL
            for (int t = 0; t < p.tokens; t++) total[t] = _mm256_setzero_si256();
            for (int s = 0; s < 8; s++) {
                /* The first 64 columns' nibbles take turns with the fifth bits. */
                const bool turns = has_fifth && s < 2;
                const uint8_t *q = w + (turns ? 320 : 512 * (s / 2) + (has_fifth ? 768 : 256)) + at;
                const int step = turns ? 128 : 64;
                const __m128i nibble = _mm_cvtsi32_si128(4 * (s % 2)), bit = _mm_cvtsi32_si128(s);
                UNROLL
                for (int j = 0; j < 8; j += 4) { /* 16 columns at a time fit 16 bits, also with a fifth bit */
                    __m256i sum[SUMS];
                    UNROLL
                    for (int t = 0; t < p.tokens; t++) sum[t] = _mm256_setzero_si256();
                    UNROLL
                    for (int u = 0; u < 4; u++) {
                        __m256i v = low_nibbles(_mm256_srl_epi32(load(q + step * (j + u)), nibble));
                        if (has_fifth)
                            v = or_masked(v, _mm256_slli_epi32(_mm256_srl_epi32(load(hbits + 128 * (j + u)), bit), 4),
                                          16);
                        UNROLL
                        for (int t = 0; t < p.tokens; t++)
                            sum[t] = dot_pairs(sum[t], v, broadcast(a + 256 * (p.t0 + t) + 32 * s + 4 * (j + u)));
                    }
                    UNROLL
                    for (int t = 0; t < p.tokens; t++) total[t] = widen(total[t], sum[t], sc[s]);
                }
            }
            base = load(w + 128 + at);
            lower = six_lower(base);
            upper = six_upper(base, high_nibbles(rest));
            const __m256i even = _mm256_set1_epi16(255);
            __m256 d = load_f16(w + at / 2), dmin = load_f16(w + 32 + at / 2);
            UNROLL
            for (int t = 0; t < p.tokens; t++) {
                const uint8_t *b = a + 324 * p.tile + 16 * (p.t0 + t);
                __m256i min = _mm256_madd_epi16(_mm256_and_si256(lower, even), broadcast(b));
                min = widen(min, _mm256_srli_epi16(lower, 8), broadcast(b + 4));
                min = widen(min, _mm256_and_si256(upper, even), broadcast(b + 8));
                min = widen(min, _mm256_srli_epi16(upper, 8), broadcast(b + 12));
                __m256 dx = broadcast_f32(a + 256 * p.tile + 4 * (p.t0 + t));
                acc[h][t] = add_scaled(acc[h][t], d, dx, total[t]);
                acc[h][t] = _mm256_sub_ps(acc[h][t], _mm256_mul_ps(_mm256_mul_ps(dmin, dx), _mm256_cvtepi32_ps(min)));
            }
        }
    }
    store(dst, dst_stride, acc, p);
}

INLINE void mm_q6_k(float *dst, size_t dst_stride, const uint8_t *w, const uint8_t *a, int64_t k, const part p)
{
    __m256 acc[HALVES][SUMS];
    clear(acc, p);
    for (int64_t i = k / 256; i > 0; i--, w += 3360, a += p.tile * PL_ACT_Q8K_BYTES) {
        UNROLL
        for (int h = 0; h < p.halves; h++) {
            const int at = 32 * (p.half0 + h);
            __m256i total[SUMS];
            UNROLL
            for (int t = 0; t < p.tokens; t++) total[t] = _mm256_setzero_si256();
            for (int sub = 0; sub < 16;
                 sub++) { /* 16 columns, which are four units of part s of one half of the block */
                const int half = sub / 8, s = sub / 2 % 4, from = 4 * (sub % 2);
                const uint8_t *upper = w + 288 + 192 * (8 * half + from) + at, *q = upper + 64 + 64 * (s % 2);
                const __m128i nibble = _mm_cvtsi32_si128(s < 2 ? 0 : 4), bit = _mm_cvtsi32_si128(2 * s);
                const __m128i left = _mm_cvtsi32_si128(24 - 8 * (sub % 4));
                __m256i sc = _mm256_srai_epi32(_mm256_sll_epi32(load(w + 32 + 64 * (sub / 4) + at), left), 24);
                __m256i twice = _mm256_blend_epi16(sc, _mm256_slli_epi32(sc, 16), 0xaa);
                UNROLL
                for (int t = 0; t < p.tokens; t++)
                    total[t] = _mm256_add_epi32(
                        total[t], _mm256_mullo_epi32(broadcast(a + 260 * p.tile + 64 * (p.t0 + t) + 4 * sub), sc));
                UNROLL
                for (int j = 0; j < 4; j += 2) {
                    __m256i v[2];
                    UNROLL
                    for (int u = 0; u < 2; u++) {
                        __m256i bits = _mm256_slli_epi32(_mm256_srl_epi32(load(upper + 192 * (j + u)), bit), 4);
                        v[u] = or_masked(low_nibbles(_mm256_srl_epi32(load(q + 192 * (j + u)), nibble)), bits, 48);
                    }
                    UNROLL
                    for (int t = 0; t < p.tokens; t++) {
                        const uint8_t *x = a + 256 * (p.t0 + t) + 16 * sub + 4 * j;
                        __m256i sum = _mm256_maddubs_epi16(v[0], broadcast(x));
                        total[t] = widen(total[t], dot_pairs(sum, v[1], broadcast(x + 4)), twice);
                    }
                }
            }
            __m256 d = load_f16(w + at / 2);
            UNROLL
            for (int t = 0; t < p.tokens; t++)
                acc[h][t] = add_scaled(acc[h][t], d, broadcast_f32(a + 256 * p.tile + 4 * (p.t0 + t)), total[t]);
        }
    }
    store(dst, dst_stride, acc, p);
}

/* --- Floats. --- */

INLINE __m256 load_value(const uint8_t *p, pl_type type)
{
    if (type == PL_TYPE_F32) return _mm256_loadu_ps((const float *)p);
    if (type == PL_TYPE_F16) return load_f16(p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}

/* vectors is how many of the 8-row vectors of consecutive groups are summed together; vectors * p.tokens chains of fma.
 */
INLINE void mm_float_groups(float *dst, size_t dst_stride, const uint8_t *w, size_t group_bytes, const uint8_t *a,
                            int64_t k, const part p, const int vectors, const pl_type type)
{
    const int bytes = type == PL_TYPE_F32 ? 64 : 32;
    __m256 acc[8][SUMS];
    UNROLL
    for (int v = 0; v < vectors; v++) {
        UNROLL
        for (int t = 0; t < p.tokens; t++) acc[v][t] = _mm256_setzero_ps();
    }
    a += 4 * p.t0;
    for (int64_t i = 0; i < k; i++, w += bytes, a += 4 * p.tile) {
        __m256 x[SUMS];
        UNROLL
        for (int t = 0; t < p.tokens; t++) x[t] = broadcast_f32(a + 4 * t);
        UNROLL
        for (int v = 0; v < vectors; v++) {
            __m256 value = load_value(w + (size_t)(v / 2) * group_bytes + (size_t)(v % 2 * bytes / 2), type);
            UNROLL
            for (int t = 0; t < p.tokens; t++) acc[v][t] = _mm256_fmadd_ps(value, x[t], acc[v][t]);
        }
    }
    UNROLL
    for (int v = 0; v < vectors; v++) {
        UNROLL
        for (int t = 0; t < p.tokens; t++)
            _mm256_storeu_ps(dst + (size_t)(p.t0 + t) * dst_stride + v * LANES, acc[v][t]);
    }
}

INLINE void mm_float(float *dst, size_t dst_stride, const uint8_t *w, int64_t n_groups, const uint8_t *a, int64_t k,
                     const part p, const pl_type type)
{
    const int at_once = p.tokens == 1 ? 4 : 1; /* groups */
    const size_t group_bytes = (size_t)k * (type == PL_TYPE_F32 ? 64 : 32);
    for (; n_groups >= at_once; n_groups -= at_once, w += (size_t)at_once * group_bytes, dst += at_once * ROWS)
        mm_float_groups(dst, dst_stride, w, group_bytes, a, k, p, 2 * at_once, type);
    for (; n_groups > 0; n_groups--, w += group_bytes, dst += ROWS)
        mm_float_groups(dst, dst_stride, w, group_bytes, a, k, p, 2, type);
}

#define FLOATS(name, type)                                                                                             \
    static void name(float *dst, size_t dst_stride, const void *w, int64_t n_groups, const void *act, int64_t k,       \
                     int tile)                                                                                         \
    {                                                                                                                  \
        for (int t = 0; t < tile; t += SUMS) {                                                                         \
            switch (tile - t) {                                                                                        \
            case 1: mm_float(dst, dst_stride, w, n_groups, act, k, (part){tile, t, 0, 1, 2}, type); break;             \
            case 2: mm_float(dst, dst_stride, w, n_groups, act, k, (part){tile, t, 0, 2, 2}, type); break;             \
            case 3: mm_float(dst, dst_stride, w, n_groups, act, k, (part){tile, t, 0, 3, 2}, type); break;             \
            default: mm_float(dst, dst_stride, w, n_groups, act, k, (part){tile, t, 0, 4, 2}, type); break;            \
            }                                                                                                          \
        }                                                                                                              \
    }

static const format32 q8_0 = {.bytes = 544, .zero_shift = -1, .is_byte = true};
static const format32 q4_0 = {.bytes = 288, .zero_shift = 0};
static const format32 q4_1 = {.bytes = 320, .zero_shift = -1, .has_min = true};
static const format32 q5_0 = {.bytes = 352, .zero_shift = 1, .has_fifth = true};
static const format32 q5_1 = {.bytes = 384, .zero_shift = -1, .has_min = true, .has_fifth = true};

QUANTIZED(mm_q8_0, k / 32 * 544, mm32, q8_0)
QUANTIZED(mm_q4_0, k / 32 * 288, mm32, q4_0)
QUANTIZED(mm_q4_1, k / 32 * 320, mm32, q4_1)
QUANTIZED(mm_q5_0, k / 32 * 352, mm32, q5_0)
QUANTIZED(mm_q5_1, k / 32 * 384, mm32, q5_1)
QUANTIZED(mm_q4k, k / 256 * 2304, mm_q45_k, false)
QUANTIZED(mm_q5k, k / 256 * 2816, mm_q45_k, true)
QUANTIZED(mm_q6k, k / 256 * 3360, mm_q6_k)
FLOATS(mm_f32, PL_TYPE_F32)
FLOATS(mm_f16, PL_TYPE_F16)
FLOATS(mm_bf16, PL_TYPE_BF16)

/* --- Activations. --- */

INLINE __m256i magnitude(__m256i max, const float *x)
{
    return _mm256_max_epu32(max, _mm256_and_si256(load((const uint8_t *)x), _mm256_set1_epi32(0x7fffffff)));
}

INLINE uint32_t largest(__m256i v)
{
    __m128i m = _mm_max_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(m);
}

/* 32 values as bytes, rounded to nearest even (the processor's mode, which we never change). */
INLINE __m256i quantize32(const float *x, __m256 inverse)
{
    __m256i v[4];
    UNROLL
    for (int i = 0; i < 4; i++) v[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), inverse));
    __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
    /* Packing works within 128 bits; this brings the groups of four back into order. */
    return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* The sums of the first and of the last 16 bytes of q. */
INLINE void sums16(__m256i q, int *first, int *last)
{
    const __m256i one = _mm256_set1_epi16(1);
    __m256i s = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), q), one);
    s = _mm256_add_epi32(s, _mm256_shuffle_epi32(s, 0x4e));
    s = _mm256_add_epi32(s, _mm256_shuffle_epi32(s, 0xb1));
    *first = _mm256_extract_epi32(s, 0);
    *last = _mm256_extract_epi32(s, 4);
}

static void act_q8(void *out, const float *x, int64_t n, int tile, int t)
{
    uint8_t *block = out;
    for (; n > 0; n -= 32, x += 32, block += tile * PL_ACT_Q8_BYTES) {
        __m256i max = _mm256_setzero_si256();
        UNROLL
        for (int i = 0; i < 4; i++) max = magnitude(max, x + 8 * i);
        float inverse, d = pl_act_scale(largest(max), &inverse);
        __m256i q = inverse != 0 ? quantize32(x, _mm256_set1_ps(inverse)) : _mm256_setzero_si256();
        int first, last;
        sums16(q, &first, &last);
        int c = -8 * (first + last);
        float s = d * (float)(first + last);
        _mm256_storeu_si256((__m256i *)(block + 32 * t), q);
        memcpy(block + 32 * tile + 4 * t, &d, 4);
        memcpy(block + 36 * tile + 4 * t, &s, 4);
        memcpy(block + 40 * tile + 4 * t, &c, 4);
    }
}

static void act_q8k(void *out, const float *x, int64_t n, int tile, int t)
{
    static const uint8_t place[8] = {0, 2, 1, 3, 4, 6, 5, 7}; /* of the sum of each 32 */
    uint8_t *block = out;
    for (; n > 0; n -= 256, x += 256, block += tile * PL_ACT_Q8K_BYTES) {
        __m256i max = _mm256_setzero_si256();
        for (int i = 0; i < 256; i += 8) max = magnitude(max, x + i);
        float inverse, d = pl_act_scale(largest(max), &inverse);
        int32_t c[16];
        int16_t b[8];
        for (int i = 0; i < 8; i++) {
            __m256i q = inverse != 0 ? quantize32(x + 32 * i, _mm256_set1_ps(inverse)) : _mm256_setzero_si256();
            int first, last;
            sums16(q, &first, &last);
            c[2 * i] = -32 * first;
            c[2 * i + 1] = -32 * last;
            b[place[i]] = (int16_t)(first + last);
            _mm256_storeu_si256((__m256i *)(block + 256 * t + 32 * i), q);
        }
        memcpy(block + 256 * tile + 4 * t, &d, 4);
        memcpy(block + 260 * tile + sizeof c * (size_t)t, c, sizeof c);
        memcpy(block + 324 * tile + sizeof b * (size_t)t, b, sizeof b);
    }
}

void pl_cpu_mm_avx2(pl_cpu_kernels *k)
{
    k->act_q8 = act_q8;
    k->act_q8k = act_q8k;
    k->mm[PL_TYPE_F32] = mm_f32;
    k->mm[PL_TYPE_F16] = mm_f16;
    k->mm[PL_TYPE_BF16] = mm_bf16;
    k->mm[PL_TYPE_Q8_0] = mm_q8_0;
    k->mm[PL_TYPE_Q4_0] = mm_q4_0;
    k->mm[PL_TYPE_Q4_1] = mm_q4_1;
    k->mm[PL_TYPE_Q5_0] = mm_q5_0;
    k->mm[PL_TYPE_Q5_1] = mm_q5_1;
    k->mm[PL_TYPE_Q4_K] = mm_q4k;
    k->mm[PL_TYPE_Q5_K] = mm_q5k;
    k->mm[PL_TYPE_Q6_K] = mm_q6k;
}
