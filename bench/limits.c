#include "bench/limits.h"

#include <time.h>

#include "engine/base/sys.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* Each operation loop does a fixed amount and gives the operations done. */
struct pl_limit_loops {
    double (*bytes)(void);
    double (*floats)(void);
    double (*bf16)(void);
    uint64_t (*reads[2])(const uint64_t *, size_t); /* take turns */
};

enum { ITERATIONS = 200000 };

static volatile uint64_t sink; /* keeps what the reads add up */

static uint64_t read_sum(const uint64_t *p, size_t n)
{
    uint64_t s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    for (size_t i = 0; i < n; i += 4) s0 += p[i], s1 += p[i + 1], s2 += p[i + 2], s3 += p[i + 3];
    return s0 + s1 + s2 + s3;
}

static double no_ops(void)
{
    return 0;
}

#if defined(__x86_64__)

#define CHAINS 12 /* independent sums: more than latency times units */

#define PEAK(name, isa, vector, zero, step, lanes_ops)                                                                 \
    __attribute__((target(isa))) static double name(void)                                                              \
    {                                                                                                                  \
        vector s0 = zero, s1 = zero, s2 = zero, s3 = zero, s4 = zero, s5 = zero, s6 = zero, s7 = zero, s8 = zero,      \
               s9 = zero, s10 = zero, s11 = zero, a = zero, b = zero;                                                  \
        __asm__ volatile("" : "+v"(a), "+v"(b));                                                                       \
        for (int i = 0; i < ITERATIONS; i++) {                                                                         \
            s0 = step(s0, a, b), s1 = step(s1, a, b), s2 = step(s2, a, b), s3 = step(s3, a, b);                        \
            s4 = step(s4, a, b), s5 = step(s5, a, b), s6 = step(s6, a, b), s7 = step(s7, a, b);                        \
            s8 = step(s8, a, b), s9 = step(s9, a, b), s10 = step(s10, a, b), s11 = step(s11, a, b);                    \
            __asm__ volatile(""                                                                                        \
                             : "+v"(s0), "+v"(s1), "+v"(s2), "+v"(s3), "+v"(s4), "+v"(s5), "+v"(s6), "+v"(s7),         \
                               "+v"(s8), "+v"(s9), "+v"(s10), "+v"(s11));                                              \
        }                                                                                                              \
        return (double)ITERATIONS * CHAINS * (lanes_ops);                                                              \
    }

#define STEP_VNNI(s, a, b)    _mm512_dpbusd_epi32(s, a, b)
#define STEP_MADD512(s, a, b) _mm512_add_epi32(s, _mm512_madd_epi16(_mm512_maddubs_epi16(a, _mm512_xor_si512(b, s)), b))
#define STEP_MADD256(s, a, b) _mm256_add_epi32(s, _mm256_madd_epi16(_mm256_maddubs_epi16(a, _mm256_xor_si256(b, s)), b))
#define STEP_FMA512(s, a, b)  _mm512_fmadd_ps(a, b, s)
#define STEP_BF16(s, a, b)    _mm512_dpbf16_ps(s, (__m512bh)(a), (__m512bh)(b))
#define STEP_FMA256(s, a, b)  _mm256_fmadd_ps(a, b, s)

PEAK(vnni_peak, "avx512f,avx512vnni", __m512i, _mm512_setzero_si512(), STEP_VNNI, 128)
PEAK(madd512_peak, "avx512f,avx512bw", __m512i, _mm512_setzero_si512(), STEP_MADD512, 128)
PEAK(madd256_peak, "avx2", __m256i, _mm256_setzero_si256(), STEP_MADD256, 64)
PEAK(fma512_peak, "avx512f", __m512, _mm512_setzero_ps(), STEP_FMA512, 32)
PEAK(bf16_peak, "avx512f,avx512bf16", __m512, _mm512_setzero_ps(), STEP_BF16, 64)
PEAK(fma256_peak, "avx2,fma", __m256, _mm256_setzero_ps(), STEP_FMA256, 16)

/* Four places at once, which is more than one when other work shares the memory. */
__attribute__((target("avx2"))) static uint64_t read_sum_avx2(const uint64_t *p, size_t n)
{
    __m256i s[8] = {0};
    size_t quarter = n / 4;
    for (size_t i = 0; i < quarter; i += 8) {
        for (int j = 0; j < 4; j++) {
            const uint64_t *from = p + (size_t)j * quarter + i;
            s[j] = _mm256_add_epi64(s[j], _mm256_loadu_si256((const __m256i *)from));
            s[j + 4] = _mm256_add_epi64(s[j + 4], _mm256_loadu_si256((const __m256i *)(from + 4)));
        }
    }
    for (int j = 1; j < 8; j++) s[0] = _mm256_add_epi64(s[0], s[j]);
    return (uint64_t)_mm256_extract_epi64(s[0], 0);
}

#endif

static const struct pl_limit_loops portable = {no_ops, no_ops, no_ops, {read_sum, read_sum}};
#if defined(__x86_64__)
static const struct pl_limit_loops avx2 = {madd256_peak, fma256_peak, no_ops, {read_sum, read_sum_avx2}},
                                   avx512 = {madd512_peak, fma512_peak, no_ops, {read_sum, read_sum_avx2}},
                                   avx512_vnni = {vnni_peak, fma512_peak, no_ops, {read_sum, read_sum_avx2}},
                                   avx512_bf16 = {vnni_peak, fma512_peak, bf16_peak, {read_sum, read_sum_avx2}};
#endif

static const struct pl_limit_loops *loops_of(pl_isa isa)
{
#if defined(__x86_64__)
    if (isa & PL_ISA_AVX512_VNNI) return __builtin_cpu_supports("avx512bf16") ? &avx512_bf16 : &avx512_vnni;
    if (isa & PL_ISA_AVX512) return &avx512;
    if (isa & PL_ISA_AVX2) return &avx2;
#endif
    (void)isa;
    return &portable;
}

static void read_thread(pl_team *team, int i, int n, void *user)
{
    (void)team;
    const pl_limits *l = user;
    size_t words = l->bytes / 8 / (size_t)n / 256 * 256;
    sink += l->loops->reads[l->n_measured % 2](l->array + words * (size_t)i, words);
}

static void bytes_thread(pl_team *team, int i, int n, void *user)
{
    (void)team, (void)n;
    pl_limits *l = user;
    l->done[i] = l->loops->bytes();
}

static void floats_thread(pl_team *team, int i, int n, void *user)
{
    (void)team, (void)n;
    pl_limits *l = user;
    l->done[i] = l->loops->floats();
}

static void bf16_thread(pl_team *team, int i, int n, void *user)
{
    (void)team, (void)n;
    pl_limits *l = user;
    l->done[i] = l->loops->bf16();
}

static double now(int n_threads)
{
    if (n_threads > 1) return (double)pl_now_ns() * 1e-9;
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

double pl_limits_time(pl_pool *pool, void (*fn)(pl_team *, int, int, void *), void *user)
{
    int n = pl_pool_threads(pool);
    double start = now(n);
    pl_pool_run(pool, fn, user);
    return now(n) - start;
}

static void keep(double *best, double rate)
{
    if (rate > *best) *best = rate;
}

static double ops_rate(pl_limits *l, void (*fn)(pl_team *, int, int, void *))
{
    double t = pl_limits_time(l->pool, fn, l), sum = 0;
    for (int i = 0; i < pl_pool_threads(l->pool); i++) sum += l->done[i];
    return sum / t;
}

void pl_limits_init(pl_limits *l, pl_pool *pool, pl_isa isa, const void *array, size_t bytes)
{
    PL_ASSERT(pl_pool_threads(pool) <= PL_LIMITS_THREADS_MAX);
    *l = (pl_limits){.pool = pool, .array = array, .bytes = bytes, .loops = loops_of(isa)};
}

void pl_limits_measure(pl_limits *l)
{
    keep(&l->read_bytes_s, (double)l->bytes / pl_limits_time(l->pool, read_thread, l));
    keep(&l->byte_ops_s, ops_rate(l, bytes_thread));
    keep(&l->float_ops_s, ops_rate(l, floats_thread));
    keep(&l->bf16_ops_s, ops_rate(l, bf16_thread));
    l->n_measured++;
}

void pl_limits_forget(pl_limits *l)
{
    l->read_bytes_s = l->byte_ops_s = l->float_ops_s = l->bf16_ops_s = 0;
}
