#include "engine/base/log.h"
#include "tests/sim/cluster.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* One seed: a cluster drawn from it, requests, weather, then calm, in which everything must finish. */
static void run_seed(uint64_t seed)
{
    pl_rng r;
    pl_rng_seed(&r, seed ^ 0x5eed);
    int nodes = 1 + (int)pl_rng_below(&r, 5), layers = 2 + (int)pl_rng_below(&r, 5);
    int split = 1 + (int)pl_rng_below(&r, (uint64_t)(nodes < layers ? nodes : layers));
    /* From a generator of their own: old seeds keep their story. */
    pl_rng later;
    pl_rng_seed(&later, seed ^ 0x1a7e5);
    int32_t n_kept = (int32_t)pl_rng_below(&later, 4), n_draft = (int32_t)pl_rng_below(&later, 2) * 6;
    sim_cluster *c =
        sim_start(.n_kept = n_kept, .n_draft = n_draft, .seed = seed, .nodes = nodes, .layers = layers, .split = split,
                  .tight = pl_rng_below(&r, 2), .spare = pl_rng_below(&r, 2), .n_seqs = 1 + (int)pl_rng_below(&r, 5),
                  .n_rows = 1 << pl_rng_below(&r, 6), .credits = 1 + (int)pl_rng_below(&r, 5), .run_ns = 1 * SIM_MS,
                  .row_layer_ns = (1 + pl_rng_below(&r, 20)) * 100000,
                  .dial_failure = pl_rng_below(&r, 4) == 0 ? 0.3 : 0);
    for (int i = (int)pl_rng_below(&r, 6); i > 0; i--) sim_request_drawn(c);
    sim_run_with_faults(c, (2 + pl_rng_below(&r, 10)) * SIM_S);
    sim_heal(c);
    if (c->n_open == 0) {
        sim_run_until_healthy(c, 100 * SIM_S);
        sim_request_drawn(c);
    }
    sim_run_until_idle(c, 400 * SIM_S);
    ck_streams_equal_oracle(c);
    ck_nothing_is_lost(c);
    sim_stop(c);
}

static int first, count;
static uint64_t *seeds; /* from a file, instead of first and count */

START_TEST(kills_and_cuts_cost_pauses_and_no_token)
{
    uint64_t seed;
    if (seeds) {
        seed = seeds[_i];
        fprintf(stderr, "case %d: run again with PACELINE_SEED=0x%" PRIx64 "\n", _i, seed);
    } else {
        seed = prop_seed(first + _i);
    }
    run_seed(seed);
}
END_TEST

/* Lines of a number and, behind it, why it is there. */
static void read_seeds(const char *path)
{
    FILE *f = fopen(path, "r");
    char line[512];
    PL_ASSERT(f);
    seeds = calloc(1000, sizeof *seeds);
    PL_ASSERT(seeds);
    while (fgets(line, sizeof line, f) && count < 1000) {
        char *end;
        uint64_t v = strtoull(line, &end, 0);
        if (line[0] != '#' && end != line) seeds[count++] = v;
    }
    fclose(f);
}

/* test_sim_seeds FIRST COUNT, or test_sim_seeds FILE */
int main(int argc, char **argv)
{
    const char *level = getenv("PACELINE_TEST_LOG");
    pl_log_level l = PL_LOG_ERROR;
    if (level) pl_log_level_parse(level, &l);
    pl_log_setup(l, PL_LOG_TEXT);
    if (argc == 2) {
        read_seeds(argv[1]);
    } else if (argc == 3) {
        first = atoi(argv[1]);
        count = atoi(argv[2]);
    }
    if (getenv("PACELINE_SEED")) count = 1;
    Suite *s = suite_create("sim");
    TCase *t = tcase_create("seeds");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, kills_and_cuts_cost_pauses_and_no_token, 0, count);
    suite_add_tcase(s, t);
    return ck_run(s, NULL);
}
