/* How near the matrix product comes to what the machine can do: bytes of weights read per second for few tokens,
 * operations per second for many, each beside a peak measured in the same run.
 *
 *   paceline-bench-mm [-H] [-t threads] [type ...]
 *
 * One line per type and number of tokens: GB/s with its share of the read peak, GOP/s (two per multiply and add) with
 * its share of the operation peak. The peaks are a sum over a large array (in one stream or in four), and a loop of the
 * widest multiply-and-add of bytes or floats on registers. -H puts the weights on huge pages, where the
 * system has them: a mapped file has not, and on a virtual machine that alone can halve what memory gives. PACELINE_ISA
 * lowers the instruction set, of the operation peak too.
 *
 * Every figure is the best of many short runs, the peaks' runs among them, because other work on the machine only slows
 * down. One thread is timed by its own processor time, several by the clock on the wall. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/alloc.h"
#include "engine/base/pool.h"
#include "engine/base/rng.h"
#include "engine/base/sys.h"
#include "engine/cpu/act.h"
#include "engine/cpu/mm.h"
#include "engine/cpu/pack.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { K = 4096, RUNS = 15, THREADS_MAX = 256 };

static const size_t read_bytes = 128u << 20; /* beyond the last-level cache */
static const int64_t token_counts[] = {1, 2, 4, 8, 128};
static const pl_type all_types[] = {PL_TYPE_F32,  PL_TYPE_F16,  PL_TYPE_BF16, PL_TYPE_Q8_0, PL_TYPE_Q4_0, PL_TYPE_Q4_1,
                                    PL_TYPE_Q5_0, PL_TYPE_Q5_1, PL_TYPE_Q4_K, PL_TYPE_Q5_K, PL_TYPE_Q6_K};

static volatile uint64_t sink; /* keeps the loops of the peaks */

/* --- Peaks. Each loop does a fixed amount and gives the operations done. --- */

enum { PEAK_ITERATIONS = 200000 };

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

static double (*bytes_peak)(void) = no_ops, (*floats_peak)(void) = no_ops;
/* Two ways to read take turns, and the faster one counts. */
static uint64_t (*read_peak)(const uint64_t *, size_t) = read_sum, (*widest_read)(const uint64_t *, size_t) = read_sum;

#if defined(__x86_64__)

#define CHAINS 12 /* independent sums: more than latency times units */

#define PEAK(name, isa, vector, zero, step, lanes_ops)                                                                 \
    __attribute__((target(isa))) static double name(void)                                                              \
    {                                                                                                                  \
        vector s0 = zero, s1 = zero, s2 = zero, s3 = zero, s4 = zero, s5 = zero, s6 = zero, s7 = zero, s8 = zero,      \
               s9 = zero, s10 = zero, s11 = zero, a = zero, b = zero;                                                  \
        __asm__ volatile("" : "+v"(a), "+v"(b));                                                                       \
        for (int i = 0; i < PEAK_ITERATIONS; i++) {                                                                    \
            s0 = step(s0, a, b), s1 = step(s1, a, b), s2 = step(s2, a, b), s3 = step(s3, a, b);                        \
            s4 = step(s4, a, b), s5 = step(s5, a, b), s6 = step(s6, a, b), s7 = step(s7, a, b);                        \
            s8 = step(s8, a, b), s9 = step(s9, a, b), s10 = step(s10, a, b), s11 = step(s11, a, b);                    \
            __asm__ volatile(""                                                                                        \
                             : "+v"(s0), "+v"(s1), "+v"(s2), "+v"(s3), "+v"(s4), "+v"(s5), "+v"(s6), "+v"(s7),         \
                               "+v"(s8), "+v"(s9), "+v"(s10), "+v"(s11));                                              \
        }                                                                                                              \
        return (double)PEAK_ITERATIONS * CHAINS * (lanes_ops);                                                         \
    }

#define STEP_VNNI(s, a, b)    _mm512_dpbusd_epi32(s, a, b)
#define STEP_MADD512(s, a, b) _mm512_add_epi32(s, _mm512_madd_epi16(_mm512_maddubs_epi16(a, _mm512_xor_si512(b, s)), b))
#define STEP_MADD256(s, a, b) _mm256_add_epi32(s, _mm256_madd_epi16(_mm256_maddubs_epi16(a, _mm256_xor_si256(b, s)), b))
#define STEP_FMA512(s, a, b)  _mm512_fmadd_ps(a, b, s)
#define STEP_FMA256(s, a, b)  _mm256_fmadd_ps(a, b, s)

PEAK(vnni_peak, "avx512f,avx512vnni", __m512i, _mm512_setzero_si512(), STEP_VNNI, 128)
PEAK(madd512_peak, "avx512f,avx512bw", __m512i, _mm512_setzero_si512(), STEP_MADD512, 128)
PEAK(madd256_peak, "avx2", __m256i, _mm256_setzero_si256(), STEP_MADD256, 64)
PEAK(fma512_peak, "avx512f", __m512, _mm512_setzero_ps(), STEP_FMA512, 32)
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

static void choose_peaks(pl_isa isa)
{
    if (isa & PL_ISA_AVX2) bytes_peak = madd256_peak, floats_peak = fma256_peak, widest_read = read_sum_avx2;
    if (isa & PL_ISA_AVX512) bytes_peak = madd512_peak, floats_peak = fma512_peak;
    if (isa & PL_ISA_AVX512_VNNI) bytes_peak = vnni_peak;
}

#else

static void choose_peaks(pl_isa isa)
{
    (void)isa;
}

#endif

/* --- Timing. --- */

static double now(int n_threads)
{
    if (n_threads > 1) return (double)pl_now_ns() * 1e-9;
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

typedef struct bench {
    pl_pool *pool;
    int n_threads;
    pl_cpu_kernels kernels;
    const uint64_t *array;                 /* read_bytes */
    double read_rate, byte_ops, float_ops; /* the best so far, per second */
    double done[THREADS_MAX];
} bench;

static void read_thread(pl_team *team, int i, int n, void *user)
{
    (void)team;
    const bench *b = user;
    size_t words = read_bytes / 8 / (size_t)n / 256 * 256;
    sink += read_peak(b->array + words * (size_t)i, words);
}

static void bytes_thread(pl_team *team, int i, int n, void *user)
{
    (void)team, (void)n;
    ((bench *)user)->done[i] = bytes_peak();
}

static void floats_thread(pl_team *team, int i, int n, void *user)
{
    (void)team, (void)n;
    ((bench *)user)->done[i] = floats_peak();
}

static double timed(bench *b, void (*fn)(pl_team *, int, int, void *), void *user)
{
    double t = now(b->n_threads);
    pl_pool_run(b->pool, fn, user);
    return now(b->n_threads) - t;
}

static double ops_rate(bench *b, void (*fn)(pl_team *, int, int, void *))
{
    double t = timed(b, fn, b), sum = 0;
    for (int i = 0; i < b->n_threads; i++) sum += b->done[i];
    return sum / t;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static void measure_peaks(bench *b)
{
    b->read_rate = larger(b->read_rate, (double)read_bytes / timed(b, read_thread, b));
    read_peak = read_peak == read_sum ? widest_read : read_sum;
    b->byte_ops = larger(b->byte_ops, ops_rate(b, bytes_thread));
    b->float_ops = larger(b->float_ops, ops_rate(b, floats_thread));
}

typedef struct product {
    bench *b;
    pl_tensor w, x, dst;
    void *scratch;
} product;

static void product_thread(pl_team *team, int i, int n, void *user)
{
    const product *p = user;
    if (i == 0) pl_cpu_mul_mat_begin(p->scratch);
    pl_team_barrier(team);
    pl_cpu_mul_mat(team, i, n, &p->dst, p->scratch, &p->b->kernels);
}

static pl_tensor matrix(pl_type type, int64_t ne0, int64_t ne1, void *data)
{
    size_t row = pl_type_row_size(type, ne0);
    return (pl_tensor){
        .type = type, .ne = {ne0, ne1, 1, 1}, .nb = {pl_type_get(type)->bytes, row, row, row}, .data = data};
}

static void *must(void *p)
{
    if (p == NULL) {
        fprintf(stderr, "paceline-bench-mm: no memory\n");
        exit(pl_status_exit_code(PL_ERR_NO_MEMORY));
    }
    return p;
}

static void measure_type(bench *b, pl_type type)
{
    size_t row = pl_type_row_size(type, K);
    int64_t m = (int64_t)(read_bytes / row) / 16 * 16;
    enum { N_MAX = 128, M_MANY = 1024 };
    for (size_t i = 0; i < sizeof token_counts / sizeof *token_counts; i++) {
        int64_t n = token_counts[i], rows = n > 8 ? M_MANY : m;
        product p = {.b = b};
        p.w = matrix(type, K, rows, (void *)b->array);
        p.w.layout = PL_LAYOUT_R16;
        p.x = matrix(PL_TYPE_F32, K, n, must(pl_calloc((size_t)(n * K), 4)));
        p.dst = matrix(PL_TYPE_F32, rows, n, must(pl_calloc((size_t)(n * rows), 4)));
        p.dst.src[0] = &p.w;
        p.dst.src[1] = &p.x;
        p.scratch = must(pl_alloc_aligned(64, pl_cpu_mul_mat_scratch(&p.dst, b->n_threads)));
        for (int64_t j = 0; j < n * K; j++) ((float *)p.x.data)[j] = (float)(j % 17) - 8;
        double best = 1e9;
        for (int r = 0; r < RUNS; r++) {
            double t = timed(b, product_thread, &p);
            best = t < best ? t : best;
            if (r % 3 == 0) measure_peaks(b);
        }
        double bytes = (double)row * (double)rows / best, ops = 2.0 * K * (double)rows * (double)n / best;
        double peak = pl_type_get(type)->is_quantized ? b->byte_ops : b->float_ops;
        printf("%-5s n %3lld  %6.1f GB/s %3.0f %%   %7.0f GOP/s %3.0f %%\n", pl_type_name(type), (long long)n,
               bytes * 1e-9, 100 * bytes / b->read_rate, ops * 1e-9, peak > 0 ? 100 * ops / peak : 0);
        fflush(stdout);
        pl_free(p.scratch);
        pl_free(p.dst.data);
        pl_free(p.x.data);
    }
}

int main(int argc, char **argv)
{
    static bench b = {.n_threads = 1};
    bool huge = false;
    for (int o; (o = getopt(argc, argv, "Ht:")) != -1;) {
        if (o == 'H') huge = true;
        if (o == 't') b.n_threads = atoi(optarg);
        if (o == '?') b.n_threads = 0;
    }
    if (b.n_threads < 1 || b.n_threads > THREADS_MAX) {
        fprintf(stderr, "usage: %s [-H] [-t threads] [type ...]\n", argv[0]);
        return pl_status_exit_code(PL_ERR_INVALID);
    }
    int first = optind;
    pl_error err = {0};
    pl_isa isa;
    pl_status s = pl_isa_choose(&isa, &err);
    if (s == PL_OK) s = pl_pool_new(&b.pool, (pl_pool_options){.n_threads = b.n_threads, .poll = -1}, &err);
    if (s != PL_OK) {
        fprintf(stderr, "paceline-bench-mm: %s\n", err.text);
        return pl_status_exit_code(s);
    }
    choose_peaks(isa);
    pl_cpu_kernels_choose(&b.kernels, isa);
    /* Bytes that make small finite floats, and scales, in every format: 0x3333 is 0.2 as f16 and 4e-8 as bf16. */
    void *array = must(pl_alloc_aligned(2 << 20, read_bytes));
    if (huge && madvise(array, read_bytes, MADV_HUGEPAGE) != 0) perror("paceline-bench-mm: huge pages");
    memset(array, 0x33, read_bytes);
    b.array = array;
    for (int i = 0; i < 10; i++) measure_peaks(&b);
    if (first == argc)
        for (size_t i = 0; i < sizeof all_types / sizeof *all_types; i++) measure_type(&b, all_types[i]);
    for (int i = first; i < argc; i++) {
        pl_type type;
        if (!pl_type_parse(pl_str_from(argv[i]), &type) || !pl_pack_supported(type, (const int64_t[4]){K, 16, 1, 1})) {
            fprintf(stderr, "paceline-bench-mm: no such type: %s\n", argv[i]);
            return pl_status_exit_code(PL_ERR_INVALID);
        }
        measure_type(&b, type);
    }
    printf("%s, %d thread(s), %s: read %.1f GB/s, bytes %.0f GOP/s, floats %.0f GOP/s\n", pl_isa_name(isa), b.n_threads,
           "peaks", b.read_rate * 1e-9, b.byte_ops * 1e-9, b.float_ops * 1e-9);
    pl_pool_free(b.pool);
    pl_free(array);
    return 0;
}
