#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/groups.h"
#include "engine/base/sys.h"
#include "engine/cpu/cpu.h"
#include "engine/stage/store.h"

static const option_row rows[] = {
    {"--cache-dir", "DIR", OPT_STR, offsetof(cli_options, cache_dir), "The cache (default: ~/.cache/paceline)."},
};
static const option_group group = {"Cache", rows, 1};

static pl_status verify(const cli_options *o, pl_error *err)
{
    char dir[4096];
    if (o->cache_dir)
        snprintf(dir, sizeof dir, "%s", o->cache_dir);
    else
        PL_TRY(pl_cache_dir(dir, sizeof dir, err));
    pl_pool *pool = NULL;
    pl_backend *backend = NULL;
    pl_store *store = NULL;
    pl_store_report r = {0};
    pl_status s;
    if ((s = pl_pool_new(&pool, (pl_pool_options){.n_threads = 1, .poll = -1}, err)) == PL_OK &&
        (s = pl_cpu_backend_new(&backend, pool, err)) == PL_OK &&
        (s = pl_store_open(&store, dir, backend, err)) == PL_OK && (s = pl_store_verify(store, &r, err)) == PL_OK) {
        printf("%s: %" PRIu64 " tensors, %s, %" PRIu64 " damaged%s\n", dir, r.n, pl_format_size(r.bytes), r.n_bad,
               r.n_bad ? " and removed" : "");
        if (r.n_bad)
            s = pl_fail(err, PL_ERR_FORMAT,
                        "%" PRIu64 " damaged tensors were removed; they are fetched again when they are needed",
                        r.n_bad);
    }
    pl_store_close(store);
    if (backend) backend->vt->free(backend);
    pl_pool_free(pool);
    return s;
}

static int run(const cli_options *o, int argc, char **argv)
{
    pl_error err;
    pl_status s;
    if (argc == 1 && strcmp(argv[0], "verify") == 0)
        s = verify(o, &err);
    else
        s = pl_fail(&err, PL_ERR_INVALID, "cache: the way to call it is 'paceline cache verify'");
    return s == PL_OK ? 0 : cli_fail(&err);
}

const command cmd_cache = {
    "cache",
    "verify",
    "check the tensors that this machine keeps",
    "Reads every tensor of the cache and compares its bytes with their checksum and, unpacked, with the hash that "
    "names them. Damaged ones are removed.",
    "$ paceline cache verify",
    {&group, &group_general, NULL},
    run,
};
