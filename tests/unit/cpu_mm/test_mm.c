/* The matrix product: one set of bits for every layout, batch, number of threads and instruction set. */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "engine/base/alloc.h"
#include "engine/base/pool.h"
#include "engine/base/rng.h"
#include "engine/cpu/act.h"
#include "engine/cpu/mm.h"
#include "engine/cpu/pack.h"

enum { N_MAX = 33, M_MAX = 83, CANARY = 0x5a, PAD = 64 };

static const pl_type types[] = {PL_TYPE_F32,   PL_TYPE_F16,     PL_TYPE_BF16,   PL_TYPE_Q8_0,   PL_TYPE_Q4_0,
                                PL_TYPE_Q4_1,  PL_TYPE_Q5_0,    PL_TYPE_Q5_1,   PL_TYPE_Q4_K,   PL_TYPE_Q5_K,
                                PL_TYPE_Q6_K,  PL_TYPE_IQ2_XXS, PL_TYPE_IQ2_XS, PL_TYPE_IQ2_S,  PL_TYPE_IQ3_XXS,
                                PL_TYPE_IQ3_S, PL_TYPE_IQ1_S,   PL_TYPE_IQ1_M,  PL_TYPE_IQ4_NL, PL_TYPE_IQ4_XS,
                                PL_TYPE_MXFP4, PL_TYPE_NVFP4,   PL_TYPE_Q2_K,   PL_TYPE_Q3_K,   PL_TYPE_TQ1_0,
                                PL_TYPE_TQ2_0, PL_TYPE_Q1_0,    PL_TYPE_Q2_0,   PL_TYPE_Q8_1,   PL_TYPE_Q8_K};
enum { N_TYPES = sizeof types / sizeof *types };

/* All levels of this architecture, portable first. */
static pl_isa isas[16];
static int n_isas;

static void find_isas(void)
{
    const char *word;
    for (n_isas = 0; pl_isa_level(n_isas, &isas[n_isas], &word); n_isas++) ck_assert_int_lt(n_isas, 15);
}

/* AVX-VNNI's kernels also exist in the encoding of AVX-512, for processors that have that alone. */
static bool runs_here(pl_isa isa)
{
    unsigned have = pl_isa_detect();
    if (have & PL_ISA_AVX512_VNNI) have |= PL_ISA_AVX_VNNI;
    return (isa & have) == isa;
}

static void choose(pl_cpu_kernels *k, pl_isa isa)
{
    unsigned have = pl_isa_detect();
    pl_cpu_kernels_choose(k, (pl_isa)(isa & have));
#if defined(__x86_64__)
    if ((isa & PL_ISA_AVX_VNNI) && !(have & PL_ISA_AVX_VNNI)) pl_cpu_mm_avx_vnni_in_avx512(k);
#endif
    k->isa = isa;
}

/* How the bytes of a case are chosen. */
typedef enum fill { RANDOM, ALL_ONES, ALL_ZEROS, N_FILLS } fill;

static void put_f16(uint8_t *p, float v)
{
    uint16_t h = pl_f32_to_f16(v);
    memcpy(p, &h, 2);
}

/* n_rows rows of k columns: every quant is possible, scales are moderate. */
static void make_weights(pl_rng *rng, pl_type type, int64_t k, int64_t n_rows, fill how, uint8_t *out)
{
    const pl_type_info *info = pl_type_get(type);
    size_t row = pl_type_row_size(type, k);
    for (size_t i = 0; i < row * (size_t)n_rows; i++)
        out[i] = how == RANDOM ? (uint8_t)pl_rng_u64(rng) : how == ALL_ONES ? 0xff : 0;
    for (size_t at = 0; at < row * (size_t)n_rows; at += info->bytes) {
        float d = (float)pl_rng_gauss(rng), m = (float)pl_rng_gauss(rng);
        uint16_t b = pl_f32_to_bf16(d);
        switch (type) {
        case PL_TYPE_F32: memcpy(out + at, &d, 4); break;
        case PL_TYPE_BF16: memcpy(out + at, &b, 2); break;
        case PL_TYPE_Q6_K: put_f16(out + at + 208, d); break;
        case PL_TYPE_Q2_K:
            put_f16(out + at + 80, d);
            put_f16(out + at + 82, m);
            break;
        case PL_TYPE_Q3_K: put_f16(out + at + 108, d); break;
        case PL_TYPE_Q8_K: memcpy(out + at, &d, 4); break;
        case PL_TYPE_TQ1_0: put_f16(out + at + 52, d); break;
        case PL_TYPE_TQ2_0: put_f16(out + at + 64, d); break;
        case PL_TYPE_MXFP4: out[at] = (uint8_t)(120 + pl_rng_below(rng, 12)); break;
        case PL_TYPE_NVFP4: break; /* all of its scales are moderate */
        case PL_TYPE_IQ1_M:        /* in the upper four bits of four words */
            for (int i = 0; i < 4; i++)
                out[at + 49 + 2 * i] = (uint8_t)((out[at + 49 + 2 * i] & 15) | (pl_f32_to_f16(d) >> 4 * i & 15) << 4);
            break;
        case PL_TYPE_Q4_1:
        case PL_TYPE_Q5_1:
        case PL_TYPE_Q4_K:
        case PL_TYPE_Q5_K: put_f16(out + at + 2, m); /* fall through */
        default: put_f16(out + at, d);
        }
    }
}

static void make_activations(pl_rng *rng, int64_t k, int64_t n, fill how, float *out)
{
    for (int64_t i = 0; i < k * n; i++) {
        float v = (float)pl_rng_gauss(rng);
        /* Sums as large as they get: equal magnitudes, all signs equal in one token and alternating in the next. */
        if (how != RANDOM) v = (i / k) % 2 ? (i % 2 ? -1.5f : 1.5f) : 1.5f;
        out[i] = v;
    }
    if (how == RANDOM && n > 2) { /* a block of zeros, and one too small to be divided by */
        for (int64_t i = 0; i < 32 && i < k; i++) out[i] = 0, out[k + i] = i % 2 ? 1e-38f : -1e-42f;
    }
}

static pl_tensor matrix(pl_type type, pl_layout layout, int64_t ne0, int64_t ne1, void *data)
{
    size_t row = pl_type_row_size(type, ne0);
    return (pl_tensor){.type = type,
                       .layout = layout,
                       .ne = {ne0, ne1, 1, 1},
                       .nb = {pl_type_get(type)->bytes, row, row * (size_t)ne1, row * (size_t)ne1},
                       .data = data};
}

typedef struct run {
    const pl_tensor *dst;
    void *scratch;
    const pl_cpu_kernels *k;
} run;

static void run_thread(pl_team *team, int i_thread, int n_threads, void *user)
{
    const run *r = user;
    pl_cpu_mul_mat(team, i_thread, n_threads, &r->dst, 1, NULL, r->scratch, r->k);
}

/* dst [n][m] by the driver, with what lies behind each row and behind the scratch checked. */
static void mul_mat_of(pl_pool *pool, const pl_cpu_kernels *k, const pl_tensor *w, const pl_tensor *x,
                       pl_precision precision, float *out)
{
    int64_t m = w->ne[1], n = x->ne[1], stride = m + 3;
    float *wide = pl_alloc((size_t)(stride * n) * sizeof(float));
    memset(wide, CANARY, (size_t)(stride * n) * sizeof(float));
    pl_tensor dst = matrix(PL_TYPE_F32, PL_LAYOUT_PLAIN, m, n, wide);
    dst.nb[1] = (size_t)stride * sizeof(float);
    dst.src[0] = (pl_tensor *)w;
    dst.src[1] = (pl_tensor *)x;
    dst.params.i[0] = precision;
    ck_assert(pl_cpu_mul_mat_supported(&dst));
    size_t size = pl_cpu_mul_mat_scratch(&dst, pl_pool_threads(pool));
    uint8_t *scratch = pl_alloc_aligned(64, size + PAD);
    memset(scratch, CANARY, size + PAD);
    pl_cpu_mul_mat_begin(scratch);
    pl_pool_run(pool, run_thread, &(run){&dst, scratch, k});
    for (int i = 0; i < PAD; i++) ck_assert_uint_eq(scratch[size + (size_t)i], CANARY);
    for (int64_t t = 0; t < n; t++) {
        memcpy(out + t * m, wide + t * stride, (size_t)m * sizeof(float));
        const uint8_t *behind = (const uint8_t *)(wide + t * stride + m);
        for (int i = 0; i < 12; i++) ck_assert_uint_eq(behind[i], CANARY);
    }
    pl_free(scratch);
    pl_free(wide);
}

static void mul_mat(pl_pool *pool, const pl_cpu_kernels *k, const pl_tensor *w, const pl_tensor *x, float *out)
{
    mul_mat_of(pool, k, w, x, PL_ONE_TERM, out);
}

static pl_pool *pool_of(int n)
{
    pl_pool *p;
    ck_assert_int_eq(pl_pool_new(&p, (pl_pool_options){.n_threads = n, .poll = 0}, NULL), PL_OK);
    return p;
}

static void ck_bits(const float *a, const float *b, int64_t n, const char *what, pl_type type, pl_isa isa)
{
    for (int64_t i = 0; i < n; i++)
        ck_assert_msg(memcmp(a + i, b + i, 4) == 0, "%s %s isa %d: element %lld is %a, not %a", what,
                      pl_type_name(type), (int)isa, (long long)i, (double)a[i], (double)b[i]);
}

/* The activations of token t as numbers, read from the quantized tiles. */
static double act_value(pl_act act, const uint8_t *acts, const float *x, int64_t k, int64_t n, int64_t t, int64_t c)
{
    if (act == PL_ACT_F32) return (double)x[t * k + c];
    int64_t first = t / PL_ACT_TILE * PL_ACT_TILE, block = act == PL_ACT_Q8 ? 32 : 256;
    int tile = (int)(n - first < PL_ACT_TILE ? n - first : PL_ACT_TILE), slot = (int)(t - first);
    const uint8_t *b = acts + (size_t)first * pl_act_token_size(act, k) +
                       (size_t)(c / block * tile) * (act == PL_ACT_Q8 ? PL_ACT_Q8_BYTES : PL_ACT_Q8K_BYTES);
    float d;
    memcpy(&d, b + block * tile + 4 * slot, 4);
    return (double)d * (int8_t)b[block * slot + c % block];
}

static void *all_acts(const pl_cpu_kernels *k, pl_act act, pl_precision precision, const float *x, int64_t columns,
                      int64_t n)
{
    uint8_t *out = pl_alloc((size_t)(n * (precision == PL_ONE_TERM ? 1 : 2)) * pl_act_token_size(act, columns));
    for (int i = 0; i < 3; i++) pl_act_make(k, act, precision, x, (size_t)columns * 4, columns, n, out, i, 3);
    return out;
}

START_TEST(the_portable_product_is_that_of_the_dequantized_weights)
{
    pl_type type = types[_i];
    const int64_t k = 512, m = 37, n = 9;
    pl_act act = pl_type_get(type)->act;
    pl_cpu_kernels kernels;
    pl_cpu_kernels_choose(&kernels, PL_ISA_PORTABLE);
    pl_pool *pool = pool_of(1);
    for (fill how = RANDOM; how < N_FILLS; how++) {
        pl_rng rng;
        pl_rng_seed(&rng, 11 + (uint64_t)how);
        size_t row = pl_type_row_size(type, k);
        uint8_t *weights = pl_alloc(row * (size_t)m);
        float *x = pl_alloc((size_t)(k * n) * 4), *out = pl_alloc((size_t)(m * n) * 4), *wf = pl_alloc((size_t)k * 4);
        make_weights(&rng, type, k, m, how, weights);
        make_activations(&rng, k, n, how, x);
        pl_tensor w = matrix(type, PL_LAYOUT_PLAIN, k, m, weights), xt = matrix(PL_TYPE_F32, PL_LAYOUT_PLAIN, k, n, x);
        mul_mat(pool, &kernels, &w, &xt, out);
        uint8_t *acts = all_acts(&kernels, act, PL_ONE_TERM, x, k, n);
        for (int64_t r = 0; r < m; r++) {
            pl_type_get(type)->to_float(weights + (size_t)r * row, wf, k);
            for (int64_t t = 0; t < n; t++) {
                double sum = 0, size = 0;
                for (int64_t c = 0; c < k; c++) {
                    double v = (double)wf[c] * act_value(act, acts, x, k, n, t, c);
                    sum += v;
                    size += fabs(v);
                }
                ck_assert_double_le(fabs((double)out[t * m + r] - sum), 4e-6 * size + 1e-30);
            }
        }
        pl_free(acts), pl_free(wf), pl_free(out), pl_free(x), pl_free(weights);
    }
    pl_pool_free(pool);
}
END_TEST

START_TEST(a_precise_product_is_that_of_x_itself_and_the_sum_of_its_terms_products)
{
    pl_type type = types[_i];
    const int64_t k = 512, m = 37, n = 9;
    pl_act act = pl_type_get(type)->act;
    size_t row = pl_type_row_size(type, k);
    pl_cpu_kernels kernels;
    pl_cpu_kernels_choose(&kernels, PL_ISA_PORTABLE);
    pl_pool *pool = pool_of(1);
    pl_rng rng;
    pl_rng_seed(&rng, 41);
    uint8_t *weights = pl_alloc(row * (size_t)m);
    float *x = pl_alloc((size_t)(k * n) * 4), *rest = pl_alloc((size_t)(k * n) * 4), *wf = pl_alloc((size_t)k * 4);
    float *out = pl_alloc((size_t)(m * n) * 4), *y1 = pl_alloc((size_t)(m * n) * 4),
          *y2 = pl_alloc((size_t)(m * n) * 4);
    make_weights(&rng, type, k, m, RANDOM, weights);
    make_activations(&rng, k, n, RANDOM, x);
    for (int64_t i = 0; i < k * n; i += 61) x[i] *= 50; /* the outliers that one term does not bear */
    pl_tensor w = matrix(type, PL_LAYOUT_PLAIN, k, m, weights), xt = matrix(PL_TYPE_F32, PL_LAYOUT_PLAIN, k, n, x);
    mul_mat_of(pool, &kernels, &w, &xt, PL_TWO_TERMS, out);
    mul_mat(pool, &kernels, &w, &xt, y1);
    if (act == PL_ACT_F32) {
        ck_bits(out, y1, m * n, "float weights", type, PL_ISA_PORTABLE);
    } else {
        uint8_t *acts = all_acts(&kernels, act, PL_ONE_TERM, x, k, n);
        for (int64_t i = 0; i < k * n; i++) rest[i] = x[i] - (float)act_value(act, acts, x, k, n, i / k, i % k);
        pl_free(acts);
        pl_tensor rt = matrix(PL_TYPE_F32, PL_LAYOUT_PLAIN, k, n, rest);
        mul_mat(pool, &kernels, &w, &rt, y2);
        for (int64_t i = 0; i < m * n; i++) y2[i] = y1[i] + y2[i];
        ck_bits(out, y2, m * n, "two terms", type, PL_ISA_PORTABLE);
    }
    double worst = 0, worst_of_one = 0;
    for (int64_t r = 0; r < m; r++) {
        pl_type_get(type)->to_float(weights + (size_t)r * row, wf, k);
        for (int64_t t = 0; t < n; t++) {
            double sum = 0, size = 0;
            for (int64_t c = 0; c < k; c++) {
                double v = (double)wf[c] * (double)x[t * k + c];
                sum += v;
                size += fabs(v);
            }
            worst = fmax(worst, fabs((double)out[t * m + r] - sum) / size);
            worst_of_one = fmax(worst_of_one, fabs((double)y1[t * m + r] - sum) / size);
        }
    }
    ck_assert_double_le(worst, 5e-4);
    if (act != PL_ACT_F32) ck_assert_double_ge(worst_of_one, 50 * worst);
    pl_free(y2), pl_free(y1), pl_free(out), pl_free(wf), pl_free(rest), pl_free(x), pl_free(weights);
    pl_pool_free(pool);
}
END_TEST

START_TEST(layout_batch_threads_and_instruction_set_do_not_change_a_bit)
{
    static const int64_t ns[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 33}, ms[] = {5, 16, 83};
    pl_type type = types[_i / 3];
    pl_precision precision = (pl_precision)(_i % 3);
    const int64_t k = pl_type_get(type)->block == 1 ? 77 : pl_type_get(type)->block == 32 ? 352 : 768;
    size_t row = pl_type_row_size(type, k);
    int best = 0;
    for (int i = 0; i < n_isas; i++)
        if (runs_here(isas[i])) best = i;
    pl_cpu_kernels portable;
    pl_cpu_kernels_choose(&portable, PL_ISA_PORTABLE);
    pl_pool *pools[3] = {pool_of(1), pool_of(2), pool_of(3)};
    uint8_t *plain = pl_alloc(row * M_MAX), *packed = pl_alloc(row * M_MAX);
    float *x = pl_alloc((size_t)(k * N_MAX) * 4), *ref = pl_alloc((size_t)(M_MAX * N_MAX) * 4);
    float *out = pl_alloc((size_t)(M_MAX * N_MAX) * 4);
    for (fill how = RANDOM; how < N_FILLS; how++) {
        pl_rng rng;
        pl_rng_seed(&rng, 5 + (uint64_t)how);
        make_weights(&rng, type, k, M_MAX, how, plain);
        make_activations(&rng, k, N_MAX, how, x);
        for (size_t im = 0; im < sizeof ms / sizeof *ms; im++) {
            int64_t m = ms[im];
            if (how != RANDOM && m != 16) continue;
            if (precision == PL_TWO_TERMS && m != 83) continue; /* the other two are its ends */
            pl_tensor xall = matrix(PL_TYPE_F32, PL_LAYOUT_PLAIN, k, N_MAX, x);
            pl_tensor wplain = matrix(type, PL_LAYOUT_PLAIN, k, m, plain);
            mul_mat_of(pools[0], &portable, &wplain, &xall, precision, ref);
            bool has_packed = pl_pack_supported(type, wplain.ne);
            ck_assert_int_eq(has_packed, m >= 16);
            if (has_packed) pl_pack_rows(type, wplain.ne, plain, packed, 0, m);
            for (int i = 0; i < n_isas; i++) {
                if (!runs_here(isas[i])) continue;
                pl_cpu_kernels kernels;
                choose(&kernels, isas[i]);
                for (size_t in = 0; in < sizeof ns / sizeof *ns; in++) {
                    /* The portable kernels have no cases for numbers of tokens, and sanitizers make them slow. */
                    if (isas[i] == PL_ISA_PORTABLE && ns[in] != 1 && ns[in] != 9) continue;
                    for (int threads = 1; threads <= 3; threads++) {
                        /* Threads share the work alike whatever computes it. */
                        if (threads > 1 && (i != best || how != RANDOM)) continue;
                        pl_tensor xt = matrix(PL_TYPE_F32, PL_LAYOUT_PLAIN, k, ns[in], x);
                        mul_mat_of(pools[threads - 1], &kernels, &wplain, &xt, precision, out);
                        ck_bits(out, ref, m * ns[in], "plain", type, isas[i]);
                        if (!has_packed) continue;
                        pl_tensor wpacked = matrix(type, PL_LAYOUT_R16, k, m, packed);
                        mul_mat_of(pools[threads - 1], &kernels, &wpacked, &xt, precision, out);
                        ck_bits(out, ref, m * ns[in], "packed", type, isas[i]);
                    }
                }
            }
        }
    }
    pl_free(out), pl_free(ref), pl_free(x), pl_free(packed), pl_free(plain);
    for (int i = 0; i < 3; i++) pl_pool_free(pools[i]);
}
END_TEST

START_TEST(many_rows_and_tokens_are_split_into_chunks_and_panels_without_a_trace)
{
    /* More tokens than a panel holds, more groups than a strip and more chunks than threads. */
    pl_type type = types[_i / 2];
    pl_precision precision = _i % 2 ? PL_TWO_TERMS_WHERE_LARGE : PL_ONE_TERM;
    const int64_t k = 2048, m = 1003, n = 96;
    pl_isa isa = pl_isa_detect();
    if (isa == PL_ISA_PORTABLE) return;
    pl_cpu_kernels kernels;
    pl_cpu_kernels_choose(&kernels, isa);
    size_t row = pl_type_row_size(type, k);
    uint8_t *plain = pl_alloc(row * (size_t)m), *packed = pl_alloc(row * (size_t)m);
    float *x = pl_alloc((size_t)(k * n) * 4), *ref = pl_alloc((size_t)m * 4), *out = pl_alloc((size_t)(m * n) * 4);
    pl_rng rng;
    pl_rng_seed(&rng, 3);
    make_weights(&rng, type, k, m, RANDOM, plain);
    make_activations(&rng, k, n, RANDOM, x);
    pl_tensor w = matrix(type, PL_LAYOUT_R16, k, m, packed), xt = matrix(PL_TYPE_F32, PL_LAYOUT_PLAIN, k, n, x);
    pl_pack_rows(type, w.ne, plain, packed, 0, 512);
    pl_pack_rows(type, w.ne, plain, packed, 512, m);
    pl_pool *one = pool_of(1), *two = pool_of(2);
    mul_mat_of(two, &kernels, &w, &xt, precision, out);
    for (int64_t t = 0; t < n; t += 19) {
        pl_tensor token = matrix(PL_TYPE_F32, PL_LAYOUT_PLAIN, k, 1, x + t * k);
        mul_mat_of(one, &kernels, &w, &token, precision, ref);
        ck_bits(out + t * m, ref, m, "token", type, isa);
    }
    pl_pool_free(one), pl_pool_free(two);
    pl_free(out), pl_free(ref), pl_free(x), pl_free(packed), pl_free(plain);
}
END_TEST

/* Products one after the other in one run: of x twice, of y small enough for threads' own activations, of x again, of x
 * by a type with other activations, of x precisely, twice, and of x again. */
enum { SEQUENCE = 8 };

static void run_sequence(pl_team *team, int i_thread, int n_threads, void *user)
{
    const run *r = user;
    for (int i = 0; i < SEQUENCE; i++) {
        const pl_tensor *dst = &r->dst[i];
        pl_cpu_mul_mat(team, i_thread, n_threads, &dst, 1, NULL, r->scratch, r->k);
        pl_team_barrier(team);
    }
}

START_TEST(products_that_share_activations_give_what_they_give_alone)
{
    enum { K = 512, N = 12, M = 48 };
    static const pl_type sequence[SEQUENCE] = {PL_TYPE_Q8_0, PL_TYPE_Q4_1, PL_TYPE_Q8_0, PL_TYPE_Q8_0,
                                               PL_TYPE_Q4_K, PL_TYPE_Q8_0, PL_TYPE_Q4_1, PL_TYPE_Q8_0};
    static float x[K * N], y[K], have[SEQUENCE][M * N], want[M * N];
    static uint8_t weights[SEQUENCE][K * M * 2];
    pl_rng rng;
    pl_rng_seed(&rng, 77);
    make_activations(&rng, K, N, RANDOM, x);
    make_activations(&rng, K, 1, RANDOM, y);
    pl_cpu_kernels kernels;
    pl_cpu_kernels_choose(&kernels, pl_isa_detect());
    pl_tensor xt = matrix(PL_TYPE_F32, PL_LAYOUT_PLAIN, K, N, x), yt = matrix(PL_TYPE_F32, PL_LAYOUT_PLAIN, K, 1, y);
    pl_tensor w[SEQUENCE], dst[SEQUENCE];
    size_t size = 0;
    for (int i = 0; i < SEQUENCE; i++) {
        pl_tensor *from = i == 2 ? &yt : &xt;
        make_weights(&rng, sequence[i], K, M, RANDOM, weights[i]);
        w[i] = matrix(sequence[i], PL_LAYOUT_PLAIN, K, M, weights[i]);
        dst[i] = matrix(PL_TYPE_F32, PL_LAYOUT_PLAIN, M, from->ne[1], have[i]);
        dst[i].src[0] = &w[i];
        dst[i].src[1] = from;
        dst[i].params.i[0] = i == 5 || i == 6;
        size_t need = pl_cpu_mul_mat_scratch(&dst[i], 2);
        size = need > size ? need : size;
    }
    pl_pool *pool = pool_of(2);
    uint8_t *scratch = pl_alloc_aligned(64, size);
    pl_cpu_mul_mat_begin(scratch);
    pl_pool_run(pool, run_sequence, &(run){dst, scratch, &kernels});
    for (int i = 0; i < SEQUENCE; i++) {
        mul_mat_of(pool, &kernels, &w[i], dst[i].src[1], dst[i].params.i[0], want);
        ck_bits(have[i], want, M * dst[i].ne[1], "in sequence", sequence[i], kernels.isa);
    }
    /* Forgetting is what makes new values of x seen. */
    memset(x, 0, sizeof x);
    pl_cpu_mul_mat_begin(scratch);
    pl_pool_run(pool, run_sequence, &(run){dst, scratch, &kernels});
    for (int i = 0; i < M * N; i++) ck_assert_float_eq(have[0][i], 0);
    pl_free(scratch);
    pl_pool_free(pool);
}
END_TEST

static void run_together(pl_team *team, int i_thread, int n_threads, void *user)
{
    const run *r = user;
    const pl_tensor *dst[PL_CPU_MUL_MAT_TOGETHER];
    for (int i = 0; i < PL_CPU_MUL_MAT_TOGETHER; i++) dst[i] = &r->dst[i];
    pl_cpu_mul_mat(team, i_thread, n_threads, dst, PL_CPU_MUL_MAT_TOGETHER, NULL, r->scratch, r->k);
}

/* Of types with different rows and of sizes with ragged ends, for tokens that all threads share and one that each makes
 * for itself. */
START_TEST(products_computed_at_once_give_what_they_give_alone)
{
    enum { K = 512, N = 12, M = 1003, TOGETHER = PL_CPU_MUL_MAT_TOGETHER };
    static const pl_type kinds[TOGETHER] = {PL_TYPE_Q4_1, PL_TYPE_Q8_0, PL_TYPE_Q5_0, PL_TYPE_Q4_1};
    static const int64_t rows[TOGETHER] = {192, 17, M, 5};
    static float x[K * N], have[TOGETHER][M * N], want[M * N];
    static uint8_t weights[TOGETHER][K * M * 2];
    pl_rng rng;
    pl_rng_seed(&rng, 78);
    make_activations(&rng, K, N, RANDOM, x);
    pl_cpu_kernels kernels;
    pl_cpu_kernels_choose(&kernels, pl_isa_detect());
    for (int64_t n = 1; n <= N; n += N - 1) {
        for (int threads = 1; threads <= 3; threads++) {
            pl_tensor xt = matrix(PL_TYPE_F32, PL_LAYOUT_PLAIN, K, n, x), w[TOGETHER], dst[TOGETHER];
            size_t size = 0;
            for (int i = 0; i < TOGETHER; i++) {
                make_weights(&rng, kinds[i], K, rows[i], RANDOM, weights[i]);
                w[i] = matrix(kinds[i], PL_LAYOUT_PLAIN, K, rows[i], weights[i]);
                dst[i] = matrix(PL_TYPE_F32, PL_LAYOUT_PLAIN, rows[i], n, have[i]);
                dst[i].src[0] = &w[i];
                dst[i].src[1] = &xt;
                dst[i].op = PL_OP_MUL_MAT;
                dst[i].params.i[0] = _i;
                ck_assert(pl_fuse_products_match(&dst[0], &dst[i]));
                size_t need = pl_cpu_mul_mat_scratch(&dst[i], threads);
                size = need > size ? need : size;
            }
            pl_tensor other = dst[1];
            other.params.i[0] = !_i; /* reads other activations */
            ck_assert(!pl_fuse_products_match(&dst[0], &other));
            pl_pool *pool = pool_of(threads);
            uint8_t *scratch = pl_alloc_aligned(64, size);
            pl_cpu_mul_mat_begin(scratch);
            pl_pool_run(pool, run_together, &(run){dst, scratch, &kernels});
            for (int i = 0; i < TOGETHER; i++) {
                mul_mat_of(pool, &kernels, &w[i], &xt, _i, want);
                ck_bits(have[i], want, rows[i] * n, "together", kinds[i], kernels.isa);
            }
            pl_free(scratch);
            pl_pool_free(pool);
        }
    }
}
END_TEST

START_TEST(a_token_that_is_not_finite_gives_nan_and_leaves_the_others_alone)
{
    const int64_t k = 256, m = 16, n = 3;
    pl_type type = types[_i / 2];
    pl_precision precision = _i % 2 ? PL_TWO_TERMS_WHERE_LARGE : PL_ONE_TERM;
    uint8_t *plain = pl_alloc(pl_type_row_size(type, k) * (size_t)m);
    float x[256 * 3], out[16 * 3], ref[16 * 3];
    pl_pool *pool = pool_of(1);
    for (int i = 0; i < n_isas; i++) {
        if (!runs_here(isas[i])) continue;
        pl_cpu_kernels kernels;
        choose(&kernels, isas[i]);
        pl_rng rng;
        pl_rng_seed(&rng, 9);
        make_weights(&rng, type, k, m, RANDOM, plain);
        make_activations(&rng, k, n, ALL_ONES, x);
        pl_tensor w = matrix(type, PL_LAYOUT_PLAIN, k, m, plain), xt = matrix(PL_TYPE_F32, PL_LAYOUT_PLAIN, k, n, x);
        mul_mat_of(pool, &kernels, &w, &xt, precision, ref);
        x[k + 100] = NAN;
        x[k + 101] = INFINITY;
        mul_mat_of(pool, &kernels, &w, &xt, precision, out);
        for (int r = 0; r < m; r++) ck_assert(isnan(out[m + r]));
        ck_bits(out, ref, m, "before", type, isas[i]);
        ck_bits(out + 2 * m, ref + 2 * m, m, "behind", type, isas[i]);
        if (pl_type_get(type)->act == PL_ACT_F32) continue;
        x[k + 100] = 1;
        mul_mat_of(pool, &kernels, &w, &xt, precision, out);
        for (int r = 0; r < m; r++) ck_assert(isnan(out[m + r]));
    }
    pl_pool_free(pool);
    pl_free(plain);
}
END_TEST

START_TEST(activations_have_the_same_bytes_on_every_instruction_set)
{
    const int64_t k = 1024;
    static const pl_act acts[] = {PL_ACT_F32, PL_ACT_Q8, PL_ACT_Q8K, PL_ACT_Q8, PL_ACT_Q8K, PL_ACT_Q8, PL_ACT_Q8K};
    pl_cpu_kernels portable;
    pl_cpu_kernels_choose(&portable, PL_ISA_PORTABLE);
    pl_rng rng;
    pl_rng_seed(&rng, 21);
    for (int64_t n = 1; n <= 17; n++) {
        float *x = pl_alloc((size_t)(k * n) * 4);
        make_activations(&rng, k, n, RANDOM, x);
        /* Halves, which only rounding to even gets right: the scale of a block whose largest is 127 is 1. */
        for (int64_t i = 0; i < k * n; i++)
            if (i / 256 % 3 == 0) x[i] = i % 32 == 0 ? 127.0f : (float)(i % 251 - 125) + 0.5f;
        for (int64_t i = 512; i < 512 + 256; i++) x[i] = i % 2 ? x[i] * 1e30f : x[i] * 1e-30f;
        for (int a = 0; a < 7; a++) {
            pl_precision precision = a < 3 ? PL_ONE_TERM : a < 5 ? PL_TWO_TERMS : PL_TWO_TERMS_WHERE_LARGE;
            int n_terms = a < 3 ? 1 : 2;
            uint8_t *ref = all_acts(&portable, acts[a], precision, x, k, n);
            for (int i = 0; i < n_isas; i++) {
                if (!runs_here(isas[i])) continue;
                pl_cpu_kernels kernels;
                choose(&kernels, isas[i]);
                uint8_t *out = all_acts(&kernels, acts[a], precision, x, k, n);
                ck_assert_mem_eq(out, ref, (size_t)(n * n_terms) * pl_act_token_size(acts[a], k));
                pl_free(out);
            }
            pl_free(ref);
        }
        pl_free(x);
    }
}
END_TEST

START_TEST(activations_are_off_by_half_a_step_at_most_and_carry_their_sums)
{
    enum { K = 512, T = 5 };
    pl_cpu_kernels kernels;
    pl_cpu_kernels_choose(&kernels, PL_ISA_PORTABLE);
    pl_rng rng;
    pl_rng_seed(&rng, 2);
    static float x[K * T];
    make_activations(&rng, K, T, RANDOM, x);
    static const int order[8] = {0, 2, 1, 3, 4, 6, 5, 7};
    for (pl_act act = PL_ACT_Q8; act <= PL_ACT_Q8K; act++) {
        const int block = act == PL_ACT_Q8 ? 32 : 256;
        uint8_t *acts = all_acts(&kernels, act, PL_ONE_TERM, x, K, T);
        for (int t = 0; t < T; t++) {
            for (int b = 0; b < K / block; b++) {
                const uint8_t *at = acts + b * T * (act == PL_ACT_Q8 ? PL_ACT_Q8_BYTES : PL_ACT_Q8K_BYTES);
                const int8_t *q = (const int8_t *)at + block * t;
                float amax = 0, d, s;
                for (int i = 0; i < block; i++) amax = fmaxf(amax, fabsf(x[t * K + b * block + i]));
                memcpy(&d, at + block * T + 4 * t, 4);
                ck_assert_float_eq(d, amax < 0x1p-100f ? 0 : amax / 127);
                for (int i = 0; i < block; i++)
                    ck_assert_double_le(fabs((double)x[t * K + b * block + i] - (double)d * q[i]),
                                        0.500001 * (double)d + 0x1p-100);
                int sum = 0;
                for (int i = 0; i < block; i++) sum += q[i];
                if (act == PL_ACT_Q8) {
                    int32_t c;
                    memcpy(&s, at + 36 * T + 4 * t, 4);
                    memcpy(&c, at + 40 * T + 4 * t, 4);
                    ck_assert_float_eq(s, d * (float)sum);
                    ck_assert_int_eq(c, -8 * sum);
                    continue;
                }
                for (int i = 0; i < 16; i++) {
                    int32_t c, part = 0;
                    memcpy(&c, at + 260 * T + 64 * t + 4 * i, 4);
                    for (int l = 0; l < 16; l++) part += q[16 * i + l];
                    ck_assert_int_eq(c, -32 * part);
                }
                for (int i = 0; i < 8; i++) {
                    int16_t pair;
                    int part = 0;
                    memcpy(&pair, at + 324 * T + 16 * t + 2 * i, 2);
                    for (int l = 0; l < 32; l++) part += q[32 * order[i] + l];
                    ck_assert_int_eq(pair, part);
                }
            }
        }
        pl_free(acts);
    }
}
END_TEST

START_TEST(packing_is_undone_by_unpacking_and_rows_are_read_through_it)
{
    pl_type type = types[_i];
    const int64_t ne[4] = {512, 53, 1, 1};
    size_t row = pl_type_row_size(type, ne[0]), size = row * (size_t)ne[1];
    uint8_t *plain = pl_alloc(size), *packed = pl_alloc(size), *again = pl_alloc(size);
    pl_rng rng;
    pl_rng_seed(&rng, 31);
    make_weights(&rng, type, ne[0], ne[1], RANDOM, plain);
    /* Out of order and in parts, as threads do it. */
    pl_pack_rows(type, ne, plain, packed, 32, 53);
    pl_pack_rows(type, ne, plain, packed, 0, 16);
    pl_pack_rows(type, ne, plain, packed, 16, 32);
    ck_assert_mem_ne(plain, packed, row * 16);
    ck_assert_mem_eq(plain + 48 * row, packed + 48 * row, 5 * row);
    pl_unpack_rows(type, ne, packed, again, 16, 48);
    pl_unpack_rows(type, ne, packed, again, 48, 53);
    pl_unpack_rows(type, ne, packed, again, 0, 16);
    ck_assert_mem_eq(again, plain, size);
    float want[512], have[512];
    for (int64_t r = 0; r < ne[1]; r++) {
        pl_type_get(type)->to_float(plain + (size_t)r * row, want, ne[0]);
        pl_unpack_row_f32(type, ne, packed, r, have);
        ck_assert_mem_eq(have, want, sizeof want);
    }
    pl_free(again), pl_free(packed), pl_free(plain);
}
END_TEST

START_TEST(the_packed_bytes_are_those_of_the_format)
{
    /* Q5_0 has every kind of field: row 3 of a group, columns 0 to 31. */
    const int64_t ne[4] = {32, 16, 1, 1};
    uint8_t plain[22 * 16] = {0}, packed[22 * 16];
    uint8_t *b = plain + 3 * 22;
    b[0] = 0x34, b[1] = 0x12;
    b[2 + 6 / 8] |= 1 << 6; /* the fifth bit of column 6 */
    b[2 + 29 / 8] |= 1 << (29 % 8);
    b[6 + 9] = 0xa7; /* column 9 is 7, column 25 is 10 */
    pl_pack_rows(PL_TYPE_Q5_0, ne, plain, packed, 0, 16);
    uint8_t want[22 * 16] = {0};
    want[2 * 3] = 0x34, want[2 * 3 + 1] = 0x12;
    want[32 + 4 * 3 + 6 % 4] |= 1 << (6 / 4);
    want[32 + 4 * 3 + 29 % 4] |= 1 << (29 / 4);
    want[96 + 64 * (9 / 4) + 4 * 3 + 9 % 4] = 0xa7;
    ck_assert_mem_eq(packed, want, sizeof want);
}
END_TEST

START_TEST(only_matrices_of_a_group_at_least_are_packed)
{
    ck_assert(pl_pack_supported(PL_TYPE_Q4_K, (const int64_t[4]){256, 16, 1, 1}));
    ck_assert(!pl_pack_supported(PL_TYPE_Q4_K, (const int64_t[4]){256, 15, 1, 1}));
    ck_assert(pl_pack_supported(PL_TYPE_Q4_K, (const int64_t[4]){256, 16, 2, 1}));
    ck_assert(!pl_pack_supported(PL_TYPE_Q4_K,
                                 (const int64_t[4]){256, 17, 2, 1})); /* a group would reach into the next matrix */
    ck_assert(!pl_pack_supported(PL_TYPE_I32, (const int64_t[4]){256, 16, 1, 1}));
    ck_assert(!pl_pack_supported((pl_type)PL_TYPE_COUNT, (const int64_t[4]){256, 16, 1, 1}));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("cpu_mm");
    TCase *c = tcase_create("products");
    tcase_add_checked_fixture(c, find_isas, NULL);
    tcase_set_timeout(c, 120);
    tcase_add_loop_test(c, the_portable_product_is_that_of_the_dequantized_weights, 0, N_TYPES);
    tcase_add_loop_test(c, a_precise_product_is_that_of_x_itself_and_the_sum_of_its_terms_products, 0, N_TYPES);
    tcase_add_loop_test(c, layout_batch_threads_and_instruction_set_do_not_change_a_bit, 0, 3 * N_TYPES);
    tcase_add_loop_test(c, many_rows_and_tokens_are_split_into_chunks_and_panels_without_a_trace, 0, 2 * N_TYPES);
    tcase_add_test(c, products_that_share_activations_give_what_they_give_alone);
    tcase_add_loop_test(c, products_computed_at_once_give_what_they_give_alone, 0, 2);
    tcase_add_loop_test(c, a_token_that_is_not_finite_gives_nan_and_leaves_the_others_alone, 0, 2 * N_TYPES);
    suite_add_tcase(s, c);
    c = tcase_create("activations");
    tcase_add_checked_fixture(c, find_isas, NULL);
    tcase_add_test(c, activations_have_the_same_bytes_on_every_instruction_set);
    tcase_add_test(c, activations_are_off_by_half_a_step_at_most_and_carry_their_sums);
    suite_add_tcase(s, c);
    c = tcase_create("packing");
    tcase_add_checked_fixture(c, find_isas, NULL);
    tcase_add_loop_test(c, packing_is_undone_by_unpacking_and_rows_are_read_through_it, 0, N_TYPES);
    tcase_add_test(c, the_packed_bytes_are_those_of_the_format);
    tcase_add_test(c, only_matrices_of_a_group_at_least_are_packed);
    suite_add_tcase(s, c);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
