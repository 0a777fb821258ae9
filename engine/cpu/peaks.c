/* The limits that a profile compares with. Each is the best of a few short runs, because other work on the machine only slows
 * them down; together they take about a tenth of a second. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/alloc.h"
#include "engine/base/sys.h"
#include "engine/cpu/act.h"
#include "engine/cpu/cpu.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/pack.h"

enum {
    READ_BYTES = 128 << 20, /* more than the caches of most machines hold */
    RUNS = 5,
    COLUMNS = 512,  /* of the product: 16 rows of Q8_0 and 8 tokens take 14 KB, less than any first-level cache */
    PRODUCTS = 2000 /* 131 million multiply-adds */
};

typedef struct job {
    pl_cpu_kernels kernels;
    uint64_t *bytes;
    uint8_t *weights, *acts;
    _Atomic uint64_t sum; /* so that no reader is left out */
} job;

/* Eight sums, so that no addition waits for the one before. */
static uint64_t sum_of(const uint64_t *p, size_t n)
{
    uint64_t s[8] = {0};
    for (size_t i = 0; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++) s[j] += p[i + (size_t)j];
    return s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
}

static void part_of(int i, int n, size_t *first, size_t *end)
{
    const size_t total = READ_BYTES / sizeof(uint64_t);
    *first = total / (size_t)n * (size_t)i;
    *end = i + 1 == n ? total : *first + total / (size_t)n;
}

static void touch(pl_team *team, int i, int n, void *user)
{
    (void)team;
    job *j = user;
    size_t first, end;
    part_of(i, n, &first, &end);
    memset(j->bytes + first, 1, (end - first) * sizeof *j->bytes);
}

static void read_all(pl_team *team, int i, int n, void *user)
{
    (void)team;
    job *j = user;
    size_t first, end;
    part_of(i, n, &first, &end);
    atomic_fetch_add(&j->sum, sum_of(j->bytes + first, end - first));
}

static void multiply(pl_team *team, int i, int n, void *user)
{
    (void)team;
    (void)i;
    (void)n;
    const job *j = user;
    float dst[PL_ACT_TILE * PL_PACK_ROWS];
    for (int r = 0; r < PRODUCTS; r++) j->kernels.mm[PL_TYPE_Q8_0](dst, PL_PACK_ROWS, j->weights, 1, j->acts, COLUMNS, PL_ACT_TILE);
}

static double best_s(pl_pool *pool, void (*fn)(pl_team *, int, int, void *), job *j)
{
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < RUNS; i++) {
        uint64_t start = pl_now_ns();
        pl_pool_run(pool, fn, j);
        uint64_t took = pl_now_ns() - start;
        best = took < best ? took : best;
    }
    return (double)(best ? best : 1) / 1e9;
}

pl_status pl_cpu_peaks(pl_cpu_peak *out, pl_pool *pool, pl_error *err)
{
    pl_isa isa;
    PL_TRY(pl_isa_choose(&isa, err));
    job j = {0};
    pl_cpu_kernels_choose(&j.kernels, isa);
    size_t weights = pl_type_row_size(PL_TYPE_Q8_0, COLUMNS) * PL_PACK_ROWS;
    size_t acts = pl_act_token_size(PL_ACT_Q8, COLUMNS) * PL_ACT_TILE;
    j.bytes = pl_alloc_aligned(64, READ_BYTES);
    j.weights = pl_alloc_aligned(64, weights + acts);
    pl_status s = PL_OK;
    if (j.bytes && j.weights) {
        j.acts = j.weights + weights;
        memset(j.weights, 0, weights + acts);
        pl_pool_run(pool, touch, &j);
        int n = pl_pool_threads(pool);
        out->read_bytes_s = READ_BYTES / best_s(pool, read_all, &j);
        out->macs_s = (double)n * PRODUCTS * COLUMNS * PL_ACT_TILE * PL_PACK_ROWS / best_s(pool, multiply, &j);
        snprintf(out->how, sizeof out->how, "%d threads, %s", n, pl_isa_name(isa));
    } else {
        s = pl_fail(err, PL_ERR_NO_MEMORY, "no memory to measure the machine's limits");
    }
    pl_free(j.bytes);
    pl_free(j.weights);
    return s;
}
