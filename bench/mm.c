/* How near the matrix product comes to what the machine can do: bytes of weights read per second for few tokens,
 * operations per second for many, each beside a peak measured in the same run.
 *
 *   paceline-bench-mm [-H] [-s KIB] [-t threads] [type ...]
 *
 * One line per type and number of tokens: GB/s with its share of the read peak, GOP/s (two per multiply and add) with
 * its share of the operation peak (limits.h). -H puts the weights on huge pages, where the
 * system has them: a mapped file has not, and on a virtual machine that alone can halve what memory gives. -s takes so
 * many KiB of weights instead of more than the caches hold: few enough stay there, and what the kernels alone need is
 * seen. PACELINE_ISA lowers the instruction set, of the operation peak too.
 *
 * Every figure is the best of many short runs, the peaks' runs among them, because other work on the machine only slows
 * down. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bench/limits.h"
#include "engine/base/alloc.h"
#include "engine/base/pool.h"
#include "engine/base/rng.h"
#include "engine/cpu/act.h"
#include "engine/cpu/mm.h"
#include "engine/cpu/pack.h"

enum { K = 4096, RUNS = 15 };

static const size_t read_bytes = 128u << 20; /* beyond the last-level cache */
static const int64_t token_counts[] = {1, 2, 4, 8, 128};
static const pl_type all_types[] = {
    PL_TYPE_F32,   PL_TYPE_F16,  PL_TYPE_BF16, PL_TYPE_Q8_0,  PL_TYPE_Q4_0,   PL_TYPE_Q4_1,   PL_TYPE_Q5_0,
    PL_TYPE_Q5_1,  PL_TYPE_Q4_K, PL_TYPE_Q5_K, PL_TYPE_Q6_K,  PL_TYPE_IQ4_NL, PL_TYPE_IQ4_XS, PL_TYPE_MXFP4,
    PL_TYPE_NVFP4, PL_TYPE_Q2_K, PL_TYPE_Q3_K, PL_TYPE_TQ1_0, PL_TYPE_TQ2_0,  PL_TYPE_Q1_0,   PL_TYPE_Q2_0};

typedef struct bench {
    pl_pool *pool;
    int n_threads;
    pl_cpu_kernels kernels;
    void *array;         /* read_bytes */
    size_t weight_bytes; /* of a product with few tokens; at most read_bytes */
    pl_limits limits;
} bench;

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
    const pl_tensor *dst = &p->dst;
    pl_cpu_mul_mat(team, i, n, &dst, 1, NULL, p->scratch, &p->b->kernels);
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
    int64_t m = (int64_t)(b->weight_bytes / row) / 16 * 16;
    if (m < 16) m = 16;
    enum { N_MAX = 128, M_MANY = 1024 };
    for (size_t i = 0; i < sizeof token_counts / sizeof *token_counts; i++) {
        int64_t n = token_counts[i], rows = n > 8 ? M_MANY : m;
        product p = {.b = b};
        p.w = matrix(type, K, rows, b->array);
        p.w.layout = PL_LAYOUT_R16;
        p.x = matrix(PL_TYPE_F32, K, n, must(pl_calloc((size_t)(n * K), 4)));
        p.dst = matrix(PL_TYPE_F32, rows, n, must(pl_calloc((size_t)(n * rows), 4)));
        p.dst.src[0] = &p.w;
        p.dst.src[1] = &p.x;
        p.scratch = must(pl_alloc_aligned(64, pl_cpu_mul_mat_scratch(&p.dst, b->n_threads)));
        for (int64_t j = 0; j < n * K; j++) ((float *)p.x.data)[j] = (float)(j % 17) - 8;
        double best = 1e9;
        for (int r = 0; r < RUNS; r++) {
            double t = pl_limits_time(b->pool, product_thread, &p);
            best = t < best ? t : best;
            if (r % 3 == 0) pl_limits_measure(&b->limits);
        }
        double bytes = (double)row * (double)rows / best, ops = 2.0 * K * (double)rows * (double)n / best;
        double peak = pl_type_get(type)->is_quantized ? b->limits.byte_ops_s : b->limits.float_ops_s;
        printf("%-6s n %3lld  %6.1f GB/s %3.0f %%   %7.0f GOP/s %3.0f %%\n", pl_type_name(type), (long long)n,
               bytes * 1e-9, 100 * bytes / b->limits.read_bytes_s, ops * 1e-9, peak > 0 ? 100 * ops / peak : 0);
        fflush(stdout);
        pl_free(p.scratch);
        pl_free(p.dst.data);
        pl_free(p.x.data);
    }
}

int main(int argc, char **argv)
{
    static bench b = {.n_threads = 1, .weight_bytes = read_bytes};
    bool huge = false;
    for (int o; (o = getopt(argc, argv, "Hs:t:")) != -1;) {
        if (o == 'H') huge = true;
        if (o == 's') b.weight_bytes = (size_t)strtoul(optarg, NULL, 10) << 10;
        if (o == 't') b.n_threads = atoi(optarg);
        if (o == '?') b.n_threads = 0;
    }
    if (b.n_threads < 1 || b.n_threads > PL_LIMITS_THREADS_MAX || b.weight_bytes > read_bytes) {
        fprintf(stderr, "usage: %s [-H] [-s KiB] [-t threads] [type ...]\n", argv[0]);
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
    pl_cpu_kernels_choose(&b.kernels, isa);
    /* Bytes that make small finite floats, and scales, in every format: 0x3333 is 0.2 as f16 and 4e-8 as bf16. */
    void *array = must(pl_alloc_aligned(2 << 20, read_bytes));
    if (huge && madvise(array, read_bytes, MADV_HUGEPAGE) != 0) perror("paceline-bench-mm: huge pages");
    memset(array, 0x33, read_bytes);
    b.array = array;
    pl_limits_init(&b.limits, b.pool, isa, array, read_bytes);
    for (int i = 0; i < 10; i++) pl_limits_measure(&b.limits);
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
           "peaks", b.limits.read_bytes_s * 1e-9, b.limits.byte_ops_s * 1e-9, b.limits.float_ops_s * 1e-9);
    pl_pool_free(b.pool);
    pl_free(array);
    return 0;
}
