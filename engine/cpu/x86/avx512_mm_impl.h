/* The matrix product on 512-bit vectors, compiled once with VNNI and once without; only dot() differs.
 *
 * A lane is a row, so a vector is one unit of a packed group. Each kernel keeps the float sums of 16 rows times up to 8
 * tokens in registers, and the integer sums of the current block beside them; functions are instantiated for
 * numbers of tokens, so that every loop over tokens unrolls. Four bytes of an activation are broadcast from memory to
 * all lanes. Zero points enter as the value at which the integer sums begin (act.h), which costs nothing. */
#pragma once

#if defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__FMA__) && defined(__F16C__)

#include "engine/cpu/x86/avx512_impl.h"

/* --- Types with blocks of 32. --- */

typedef struct format32 {
    int bytes;      /* of a packed block of 16 rows */
    int zero_shift; /* the zero point is 8 << zero_shift; -1: there is none */
    bool is_byte, has_min, has_fifth;
} format32;

/* Whether the block of a slot has the scale 0: then all of it is 0 and adds nothing. The second of two tokens often is
 * a second term (act.h), of which most blocks are empty. */
INLINE bool is_empty(const uint8_t *block, int columns, int tile, int slot)
{
    uint32_t d;
    memcpy(&d, block + columns * tile + 4 * slot, 4);
    return d == 0;
}

/* One block of n tokens from slot t0 of a tile on. */
INLINE void block32(__m512 *acc, const uint8_t *w, const uint8_t *a, int tile, int t0, const int n, const format32 f)
{
    const uint8_t *h = w + (f.has_min ? 64 : 32), *q = h + (f.has_fifth ? 64 : 0);
    const uint8_t *x = a + 32 * t0;
    /* Few tokens leave room for two sums each, which halves the chain of dependent products. */
    const bool two = n <= 4;
    __m512i lo[PL_ACT_TILE], hi[PL_ACT_TILE];
    UNROLL
    for (int t = 0; t < n; t++) {
        lo[t] = f.zero_shift < 0 ? _mm512_setzero_si512() : broadcast(a + 40 * tile + 4 * (t0 + t));
        if (f.zero_shift > 0) lo[t] = _mm512_slli_epi32(lo[t], (unsigned)f.zero_shift);
        hi[t] = _mm512_setzero_si512();
    }
    __m512i fifth = f.has_fifth ? load(h) : _mm512_setzero_si512();
    UNROLL
    for (int j = 0; j < 4; j++) {
        __m512i v0, v1;
        if (f.is_byte) {
            v0 = load(q + 64 * j);
            v1 = load(q + 64 * (j + 4));
        } else {
            __m512i v = load(q + 64 * j);
            v0 = low_nibbles(v);
            v1 = high_nibbles(v);
        }
        if (f.has_fifth) {
            v0 = or_masked(v0, move_bit(fifth, j, 4), 16);
            v1 = or_masked(v1, move_bit(fifth, j + 4, 4), 16);
        }
        UNROLL
        for (int t = 0; t < n; t++) lo[t] = dot(lo[t], v0, broadcast(x + 32 * t + 4 * j), !f.is_byte);
        UNROLL
        for (int t = 0; t < n; t++) {
            __m512i *sum = two ? &hi[t] : &lo[t];
            *sum = dot(*sum, v1, broadcast(x + 32 * t + 16 + 4 * j), !f.is_byte);
        }
    }
    __m512 d = load_f16(w);
    UNROLL
    for (int t = 0; t < n; t++) {
        __m512i sum = two ? _mm512_add_epi32(lo[t], hi[t]) : lo[t];
        __m512 scale = _mm512_mul_ps(d, broadcast_f32(a + 32 * tile + 4 * (t0 + t)));
        acc[t] = _mm512_add_ps(acc[t], _mm512_mul_ps(scale, _mm512_cvtepi32_ps(sum)));
    }
    if (f.has_min) {
        __m512 m = load_f16(w + 32);
        UNROLL
        for (int t = 0; t < n; t++)
            acc[t] = _mm512_add_ps(acc[t], _mm512_mul_ps(m, broadcast_f32(a + 36 * tile + 4 * (t0 + t))));
    }
}

INLINE void mm32(float *dst, size_t dst_stride, const uint8_t *w, int64_t n_groups, const uint8_t *act, int64_t k,
                 int tile, int t0, const int n, const format32 f)
{
    for (int64_t g = 0; g < n_groups; g++, dst += ROWS) {
        __m512 acc[PL_ACT_TILE];
        UNROLL
        for (int t = 0; t < n; t++) acc[t] = _mm512_setzero_ps();
        const uint8_t *a = act;
        for (int64_t i = k / 32; i > 0; i--, w += f.bytes, a += tile * PL_ACT_Q8_BYTES) {
            prefetch(w, f.bytes, n);
            if (n == 2 && is_empty(a, 32, tile, t0 + 1))
                block32(acc, w, a, tile, t0, 1, f);
            else
                block32(acc, w, a, tile, t0, n, f);
        }
        store(dst, dst_stride, acc, n);
    }
}

/* --- Types with blocks of 256. --- */

INLINE __m512i byte_of_lane(__m512i v, int b)
{
    return _mm512_and_si512(_mm512_srli_epi32(v, (unsigned)(8 * b)), _mm512_set1_epi32(255));
}

/* The four lower and the four upper six-bit numbers of each row: base has the lower ones with two bits of the upper
 * above, rest the upper ones' low nibbles. */
INLINE __m512i six_lower(__m512i base)
{
    return _mm512_and_si512(base, _mm512_set1_epi8(63));
}
INLINE __m512i six_upper(__m512i base, __m512i rest_nibbles)
{
    return or_masked(rest_nibbles, _mm512_srli_epi32(base, 2), 48);
}

/* How the weights of Q4_K and Q5_K stand behind the scales: as they are packed, or expanded to a byte each in the order
 * in which they are read, which pays for more tokens than a tile. */
typedef enum form45 { NIBBLES, FIFTH, BYTES } form45;

INLINE int bytes_of45(const form45 form)
{
    return form == BYTES ? PL_CPU_EXPANDED : form == FIFTH ? 2816 : 2304;
}

INLINE void block_q45_k(__m512 *acc, const uint8_t *w, const uint8_t *a, int tile, int t0, const int n,
                        const form45 form)
{
    const bool has_fifth = form == FIFTH, bytes = form == BYTES;
    const uint8_t *h = w + 256;
    __m512i sc[8];
    {
        __m512i base = load(w + 64), rest = load(w + 192);
        __m512i lower = six_lower(base), upper = six_upper(base, low_nibbles(rest));
        UNROLL
        for (int b = 0; b < 4; b++) {
            sc[b] = byte_of_lane(lower, b);
            sc[b + 4] = byte_of_lane(upper, b);
        }
    }
    __m512i total[PL_ACT_TILE];
    UNROLL
    for (int t = 0; t < n; t++) total[t] = _mm512_setzero_si512();
    for (int c = 0; c < 4; c++) { /* 64 columns, of which the low nibbles are the first half */
        /* The first 64 columns' nibbles take turns with the fifth bits. */
        const bool turns = has_fifth && c == 0;
        const uint8_t *x = a + 256 * t0 + 64 * c, *q = w + (bytes   ? 1024 * c + 256
                                                            : turns ? 320
                                                                    : 512 * c + (has_fifth ? 768 : 256));
        const int step = turns ? 128 : 64;
        if (!bytes) prefetch(w + c * (has_fifth ? 704 : 576), has_fifth ? 704 : 576, n);
        const bool both = n <= 4;
        __m512i lo[PL_ACT_TILE], hi[PL_ACT_TILE];
        __m128i shift = _mm_cvtsi32_si128(2 * c);
        UNROLL
        for (int t = 0; t < n; t++) lo[t] = hi[t] = _mm512_setzero_si512();
        UNROLL
        for (int j = 0; j < 8; j++) {
            __m512i v = load(q + step * j), v0 = bytes ? v : low_nibbles(v);
            __m512i v1 = bytes ? load(q + 512 + 64 * j) : high_nibbles(v);
            if (has_fifth) {
                __m512i bits = _mm512_srl_epi32(load(h + 128 * j), shift);
                v0 = or_masked(v0, move_bit(bits, 0, 4), 16);
                v1 = or_masked(v1, move_bit(bits, 1, 4), 16);
            }
            UNROLL
            for (int t = 0; t < n; t++) {
                lo[t] = dot(lo[t], v0, broadcast(x + 256 * t + 4 * j), true);
                if (both) hi[t] = dot(hi[t], v1, broadcast(x + 256 * t + 32 + 4 * j), true);
            }
        }
        UNROLL
        for (int t = 0; t < n; t++) total[t] = _mm512_add_epi32(total[t], _mm512_mullo_epi32(lo[t], sc[2 * c]));
        if (!both) {
            UNROLL
            for (int j = 0; j < 8; j++) {
                __m512i v1 = bytes ? load(q + 512 + 64 * j) : high_nibbles(load(q + step * j));
                if (has_fifth) {
                    __m512i bits = _mm512_srl_epi32(load(h + 128 * j), shift);
                    v1 = or_masked(v1, move_bit(bits, 1, 4), 16);
                }
                UNROLL
                for (int t = 0; t < n; t++) hi[t] = dot(hi[t], v1, broadcast(x + 256 * t + 32 + 4 * j), true);
            }
        }
        UNROLL
        for (int t = 0; t < n; t++) total[t] = _mm512_add_epi32(total[t], _mm512_mullo_epi32(hi[t], sc[2 * c + 1]));
    }
    __m512i base = load(w + 128), rest = load(w + 192);
    __m512i lower = six_lower(base), upper = six_upper(base, high_nibbles(rest));
    __m512 d = load_f16(w), dmin = load_f16(w + 32);
    UNROLL
    for (int t = 0; t < n; t++) {
        const uint8_t *b = a + 324 * tile + 16 * (t0 + t);
        __m512i min = dot16(_mm512_setzero_si512(), even_bytes(lower), broadcast(b));
        min = dot16(min, odd_bytes(lower), broadcast(b + 4));
        min = dot16(min, even_bytes(upper), broadcast(b + 8));
        min = dot16(min, odd_bytes(upper), broadcast(b + 12));
        __m512 dx = broadcast_f32(a + 256 * tile + 4 * (t0 + t));
        acc[t] = _mm512_add_ps(acc[t], _mm512_mul_ps(_mm512_mul_ps(d, dx), _mm512_cvtepi32_ps(total[t])));
        acc[t] = _mm512_sub_ps(acc[t], _mm512_mul_ps(_mm512_mul_ps(dmin, dx), _mm512_cvtepi32_ps(min)));
    }
}

INLINE void mm_q45_k(float *dst, size_t dst_stride, const uint8_t *w, int64_t n_groups, const uint8_t *act, int64_t k,
                     int tile, int t0, const int n, const form45 form)
{
    for (int64_t g = 0; g < n_groups; g++, dst += ROWS) {
        __m512 acc[PL_ACT_TILE];
        UNROLL
        for (int t = 0; t < n; t++) acc[t] = _mm512_setzero_ps();
        const uint8_t *a = act;
        for (int64_t i = k / 256; i > 0; i--, w += bytes_of45(form), a += tile * PL_ACT_Q8K_BYTES) {
            if (n == 2 && is_empty(a, 256, tile, t0 + 1))
                block_q45_k(acc, w, a, tile, t0, 1, form);
            else
                block_q45_k(acc, w, a, tile, t0, n, form);
        }
        store(dst, dst_stride, acc, n);
    }
}

static void expand_q5_k(void *out, const void *weights, int64_t k)
{
    const uint8_t *w = weights;
    uint8_t *o = out;
    for (int64_t i = k / 256; i > 0; i--, w += 2816, o += PL_CPU_EXPANDED) {
        memcpy(o, w, 256);
        for (int c = 0; c < 4; c++) {
            const uint8_t *q = w + (c ? 512 * c + 768 : 320);
            __m128i shift = _mm_cvtsi32_si128(2 * c);
            for (int j = 0; j < 8; j++) {
                __m512i v = load(q + (c ? 64 : 128) * j), bits = _mm512_srl_epi32(load(w + 256 + 128 * j), shift);
                uint8_t *to = o + 256 + 1024 * c + 64 * j;
                _mm512_storeu_si512(to, or_masked(low_nibbles(v), move_bit(bits, 0, 4), 16));
                _mm512_storeu_si512(to + 512, or_masked(high_nibbles(v), move_bit(bits, 1, 4), 16));
            }
        }
    }
}

/* The unsigned six-bit values of part s (0 to 3) of 128 columns from a unit of nibbles and a unit of upper bits. */
INLINE __m512i six_bits(__m512i nibbles, __m512i upper, int s)
{
    return or_masked(s < 2 ? low_nibbles(nibbles) : high_nibbles(nibbles), move_bit(upper, 2 * s, 4), 48);
}

INLINE void block_q6_k(__m512 *acc, const uint8_t *w, const uint8_t *a, int tile, int t0, const int n)
{
    __m512i sc[16], total[PL_ACT_TILE];
    UNROLL
    for (int j = 0; j < 16; j++)
        sc[j] = _mm512_srai_epi32(_mm512_slli_epi32(load(w + 32 + 64 * (j / 4)), (unsigned)(24 - 8 * (j % 4))), 24);
    UNROLL
    for (int t = 0; t < n; t++) total[t] = _mm512_setzero_si512();
    for (int p = 0; p < 4; p++) { /* 16 of each 32 columns of one half: one sub-block of each part */
        const int half = p / 2, from = p % 2;
        const uint8_t *units = w + 288 + 192 * (8 * half + 4 * from);
        const uint8_t *x = a + 256 * t0 + 128 * half + 16 * from;
        const uint8_t *c = a + 260 * tile + 64 * t0 + 4 * (8 * half + from);
        const __m512i *scale = sc + 8 * half + from;
        prefetch(w + 840 * p, 840, n);
        /* Each unit of nibbles serves two parts and each of upper bits four: few tokens leave room to keep
         * them. */
        const bool keep = n <= 4;
        __m512i kept_h[4], kept_q[2][4];
        if (keep) {
            UNROLL
            for (int j = 0; j < 4; j++) {
                kept_h[j] = load(units + 192 * j);
                kept_q[0][j] = load(units + 192 * j + 64);
                kept_q[1][j] = load(units + 192 * j + 128);
            }
        }
        UNROLL
        for (int s = 0; s < 4; s++) {
            __m512i sum[PL_ACT_TILE];
            UNROLL
            for (int t = 0; t < n; t++) sum[t] = broadcast(c + 64 * t + 8 * s);
            UNROLL
            for (int j = 0; j < 4; j++) {
                __m512i v = keep ? six_bits(kept_q[s % 2][j], kept_h[j], s)
                                 : six_bits(load(units + 192 * j + 64 + 64 * (s % 2)), load(units + 192 * j), s);
                UNROLL
                for (int t = 0; t < n; t++) sum[t] = dot(sum[t], v, broadcast(x + 256 * t + 32 * s + 4 * j), true);
            }
            UNROLL
            for (int t = 0; t < n; t++) total[t] = _mm512_add_epi32(total[t], _mm512_mullo_epi32(sum[t], scale[2 * s]));
        }
    }
    __m512 d = load_f16(w);
    UNROLL
    for (int t = 0; t < n; t++) {
        __m512 scale = _mm512_mul_ps(d, broadcast_f32(a + 256 * tile + 4 * (t0 + t)));
        acc[t] = _mm512_add_ps(acc[t], _mm512_mul_ps(scale, _mm512_cvtepi32_ps(total[t])));
    }
}

INLINE void mm_q6_k(float *dst, size_t dst_stride, const uint8_t *w, int64_t n_groups, const uint8_t *act, int64_t k,
                    int tile, int t0, const int n)
{
    for (int64_t g = 0; g < n_groups; g++, dst += ROWS) {
        __m512 acc[PL_ACT_TILE];
        UNROLL
        for (int t = 0; t < n; t++) acc[t] = _mm512_setzero_ps();
        const uint8_t *a = act;
        for (int64_t i = k / 256; i > 0; i--, w += 3360, a += tile * PL_ACT_Q8K_BYTES) {
            if (n == 2 && is_empty(a, 256, tile, t0 + 1))
                block_q6_k(acc, w, a, tile, t0, 1);
            else
                block_q6_k(acc, w, a, tile, t0, n);
        }
        store(dst, dst_stride, acc, n);
    }
}

/* --- Floats. --- */

INLINE __m512 load_value(const uint8_t *p, pl_type type)
{
    if (type == PL_TYPE_F32) return _mm512_loadu_ps(p);
    if (type == PL_TYPE_F16) return load_f16(p);
    __m512i v = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(v, 16));
}

/* groups * n independent chains of fma: at least eight are needed to keep two units of latency four busy. */
INLINE void mm_float_groups(float *dst, size_t dst_stride, const uint8_t *w, size_t group_bytes, const uint8_t *act,
                            int64_t k, int tile, int t0, const int n, const int groups, const pl_type type)
{
    const int bytes = type == PL_TYPE_F32 ? 64 : 32;
    __m512 acc[4][PL_ACT_TILE];
    UNROLL
    for (int g = 0; g < groups; g++) {
        UNROLL
        for (int t = 0; t < n; t++) acc[g][t] = _mm512_setzero_ps();
    }
    act += 4 * t0;
    for (int64_t i = 0; i < k; i++, w += bytes, act += 4 * tile) {
        __m512 v[4];
        UNROLL
        for (int g = 0; g < groups; g++) v[g] = load_value(w + (size_t)g * group_bytes, type);
        UNROLL
        for (int t = 0; t < n; t++) {
            __m512 x = broadcast_f32(act + 4 * t);
            UNROLL
            for (int g = 0; g < groups; g++) acc[g][t] = _mm512_fmadd_ps(v[g], x, acc[g][t]);
        }
    }
    UNROLL
    for (int g = 0; g < groups; g++) store(dst + g * ROWS, dst_stride, acc[g], n);
}

INLINE void mm_float(float *dst, size_t dst_stride, const uint8_t *w, int64_t n_groups, const uint8_t *act, int64_t k,
                     int tile, int t0, const int n, const pl_type type)
{
    const int at_once = n <= 4 ? 4 : 2;
    const size_t group_bytes = (size_t)k * (type == PL_TYPE_F32 ? 64 : 32);
    for (; n_groups >= at_once; n_groups -= at_once, w += (size_t)at_once * group_bytes, dst += at_once * ROWS)
        mm_float_groups(dst, dst_stride, w, group_bytes, act, k, tile, t0, n, at_once, type);
    for (; n_groups > 0; n_groups--, w += group_bytes, dst += ROWS)
        mm_float_groups(dst, dst_stride, w, group_bytes, act, k, tile, t0, n, 1, type);
}

static const format32 q8_0 = {.bytes = 544, .zero_shift = 4, .is_byte = true};
static const format32 q4_0 = {.bytes = 288, .zero_shift = 0};
static const format32 q4_1 = {.bytes = 320, .zero_shift = -1, .has_min = true};
static const format32 q5_0 = {.bytes = 352, .zero_shift = 1, .has_fifth = true};
static const format32 q5_1 = {.bytes = 384, .zero_shift = -1, .has_min = true, .has_fifth = true};

MM(mm_q8_0, mm32, k / 32 * 544, q8_0)
MM(mm_q4_0, mm32, k / 32 * 288, q4_0)
MM(mm_q4_1, mm32, k / 32 * 320, q4_1)
MM(mm_q5_0, mm32, k / 32 * 352, q5_0)
MM(mm_q5_1, mm32, k / 32 * 384, q5_1)
MM(mm_q4_k, mm_q45_k, k / 256 * 2304, NIBBLES)
MM(mm_q5_k, mm_q45_k, k / 256 * 2816, FIFTH)
MM(mm_expanded_q5_k, mm_q45_k, k / 256 * PL_CPU_EXPANDED, BYTES)
MM(mm_q6_k_any, mm_q6_k, k / 256 * 3360)

MORE(more_q8_0, block32, q8_0)
MORE(more_q4_0, block32, q4_0)
MORE(more_q4_1, block32, q4_1)
MORE(more_q5_0, block32, q5_0)
MORE(more_q5_1, block32, q5_1)
MORE(more_q4_k, block_q45_k, NIBBLES)
MORE(more_q5_k, block_q45_k, FIFTH)
MORE(more_q6_k, block_q6_k)

static void install_quantized(pl_cpu_kernels *k)
{
    k->mm[PL_TYPE_Q8_0] = mm_q8_0;
    k->mm[PL_TYPE_Q4_0] = mm_q4_0;
    k->mm[PL_TYPE_Q4_1] = mm_q4_1;
    k->mm[PL_TYPE_Q5_0] = mm_q5_0;
    k->mm[PL_TYPE_Q5_1] = mm_q5_1;
    k->mm[PL_TYPE_Q4_K] = mm_q4_k;
    k->mm[PL_TYPE_Q5_K] = mm_q5_k;
    k->mm[PL_TYPE_Q6_K] = mm_q6_k_any;
    k->expand[PL_TYPE_Q5_K] = expand_q5_k;
    k->mm_expanded[PL_TYPE_Q5_K] = mm_expanded_q5_k;
    k->mm_more[PL_TYPE_Q8_0] = more_q8_0;
    k->mm_more[PL_TYPE_Q4_0] = more_q4_0;
    k->mm_more[PL_TYPE_Q4_1] = more_q4_1;
    k->mm_more[PL_TYPE_Q5_0] = more_q5_0;
    k->mm_more[PL_TYPE_Q5_1] = more_q5_1;
    k->mm_more[PL_TYPE_Q4_K] = more_q4_k;
    k->mm_more[PL_TYPE_Q5_K] = more_q5_k;
    k->mm_more[PL_TYPE_Q6_K] = more_q6_k;
}

#endif
