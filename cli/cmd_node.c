#include <stdio.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "cli/cluster.h"
#include "cli/commands.h"
#include "cli/groups.h"
#include "cli/progress.h"
#include "engine/base/log.h"

static const option_row join_rows[] = {
    {"--join", "HOST:PORT[#KEY]", OPT_LIST, offsetof(cli_options, joins),
     "Dial this coordinator. KEY is its public key; without it, the key of that name in --peers."},
    {"--listen", "HOST:PORT", OPT_STR, offsetof(cli_options, listen),
     "Where a coordinator and neighbours dial this node (default: with --join a free port, on loopback when the "
     "coordinator is there; else 127.0.0.1:7078)."},
};
static const option_group group_join = {"Coordinator", join_rows, sizeof join_rows / sizeof *join_rows};

typedef struct worker {
    const cli_options *o;
    pl_loop *loop;
    keyring keys;
    local_node local;
    int signal_fd, n_signals;
    void *signals;
    pl_timer *look;
    progress bar;
    bool fetching;
} worker;

static const uint64_t look_ns = 100000000u;

/* The bar while tensors are fetched. */
static void on_look(void *user)
{
    worker *w = user;
    pl_node_report r;
    pl_node_get_report(w->local.node, &r);
    bool fetching = r.fetch_total_bytes > 0;
    if (fetching && !w->fetching) progress_start(&w->bar, "Fetching tensors", w->o->quiet);
    if (fetching)
        progress_show(&w->bar, r.fetch_done_bytes, r.fetch_total_bytes);
    else if (w->fetching)
        progress_end(&w->bar);
    w->fetching = fetching;
}

static void on_left(void *user)
{
    pl_loop_uv_stop(((worker *)user)->loop);
}

static void on_signal(void *user)
{
    worker *w = user;
    struct signalfd_siginfo info;
    while (read(w->signal_fd, &info, sizeof info) == sizeof info) {
        if (w->n_signals++ > 0) _exit(130);
        pl_log(PL_LOG_INFO, "leaving", "%s", "");
        pl_node_leave(w->local.node, on_left, w);
    }
}

static pl_status start(worker *w, pl_error *err)
{
    char address[128], listen[160];
    pl_key key;
    PL_TRY(pl_loop_uv_new(&w->loop, err));
    PL_TRY(signals_watch(w->loop, &w->signal_fd, &w->signals, on_signal, w, err));
    PL_TRY(keyring_open(&w->keys, w->o, err));
    bool loopback = true;
    for (int i = 0; i < w->o->joins.n; i++) {
        PL_TRY(keyring_resolve(&w->keys, w->o->joins.items[i], 7077, address, &key, err));
        loopback = loopback && (strstr(address, "://127.") || strstr(address, "://localhost"));
    }
    if (w->o->listen)
        snprintf(listen, sizeof listen, "tcp://%s", w->o->listen);
    else
        snprintf(listen, sizeof listen,
                 w->o->joins.n == 0 ? "tcp://127.0.0.1:7078"
                 : loopback         ? "tcp://127.0.0.1:0"
                                    : "tcp://0.0.0.0:0");
    PL_TRY(local_node_start(&w->local, w->loop, &w->keys, w->o, listen, w->o->model, w->o->mem, err));
    for (int i = 0; i < w->o->joins.n; i++) {
        PL_TRY(keyring_resolve(&w->keys, w->o->joins.items[i], 7077, address, &key, err));
        PL_TRY(pl_node_join(w->local.node, address, w->keys.plain ? NULL : &key, err));
    }
    pl_log(PL_LOG_INFO, "listening", "address=%s", pl_net_address(w->local.net));
    return pl_timer_start(w->loop, look_ns, look_ns, on_look, w, &w->look, err);
}

static int run(const cli_options *o, int argc, char **argv)
{
    (void)argv;
    pl_error err;
    int code = 0;
    worker w = {.o = o, .signal_fd = -1};
    log_from_options(o, "info");
    if (argc > 0) {
        (void)pl_fail(&err, PL_ERR_INVALID, "node: %s: what is this for? The coordinator is given with --join",
                      argv[0]);
        return cli_fail(&err);
    }
    if (start(&w, &err) == PL_OK)
        pl_loop_uv_run(w.loop);
    else
        code = cli_fail(&err);
    if (w.loop) pl_timer_stop(w.loop, w.look);
    local_node_stop(&w.local);
    keyring_close(&w.keys);
    if (w.loop) {
        signals_unwatch(w.loop, w.signal_fd, w.signals);
        pl_loop_uv_free(w.loop);
    }
    return code;
}

static const option_row model_rows[] = {
    {"-m, --model", "FILE", OPT_STR, offsetof(cli_options, model),
     "A copy of the model on this machine: its tensors are not fetched."},
};
static const option_group group_local_model = {"Model", model_rows, 1};

const command cmd_node = {
    "node",
    "",
    "lend this machine's memory and processors to a coordinator",
    "Holds a stage of the model: a range of layers that the coordinator chooses by what fits here. Tensors that are "
    "not in the cache are fetched from the coordinator, "
    "verified by their hash and kept, so a second start transfers nothing. Ends on SIGINT or SIGTERM, after telling "
    "the coordinator.",
    "# join a coordinator\n$ paceline node --join 10.0.0.1:7077#PUBLIC_KEY\n# lend at most 4 GiB and two threads\n$ "
    "paceline node --join 10.0.0.1 --mem 4GiB -t 2\n"
    "# wait for a coordinator or a laptop that dials\n$ paceline node --listen 0.0.0.0:7078 --allow PUBLIC_KEY",
    {&group_join, &group_node, &group_inspect, &group_local_model, &group_keys, &group_general, NULL},
    run,
};
