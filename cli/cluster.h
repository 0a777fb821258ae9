/* What run, serve and node build their processes from: keys, the model, a coordinator, this machine's node, and an
 * orderly end.
 *
 * Everything lives on one libuv loop; only the node's compute thread and pool stand beside it. */
#pragma once

#include "cli/progress.h"
#include "cli/sampling.h"
#include "coordinator/coordinator.h"
#include "engine/text/chat.h"
#include "node/engine.h"
#include "node/node.h"
#include "transport/curve.h"

/* This machine's key and whom it lets in. */
typedef struct keyring {
    pl_key public_key, secret_key;
    pl_key_list peers, allow; /* of the file, of --allow */
    char peers_path[4200];
    int64_t peers_time_ns; /* when the file was changed, as it was read */
    bool plain;
    pl_node *node; /* its neighbours of the running plan are let in too */
} keyring;
PL_MUST_CHECK pl_status keyring_open(keyring *k, const cli_options *o, pl_error *err);
void keyring_close(keyring *k);
/* "HOST:PORT[#KEY]" into a "tcp://HOST:PORT" address and the key that the other end must have. default_port for a HOST
 * alone. */
PL_MUST_CHECK pl_status keyring_resolve(const keyring *k, const char *text, int default_port, char address[128],
                                        pl_key *key, pl_error *err);

/* The model as the coordinator needs it. */
typedef struct model {
    pl_gguf *gguf;
    pl_model_profile *profile;
    pl_vocab *vocab;
    pl_chat *chat; /* NULL: it has no template */
    pl_buf chat_text;
    pl_hash *hashes;
    float adapters[PL_ADAPTERS_MAX]; /* scales for requests that do not say: --lora, then --lora-scaled */
    char name[128];
} model;
PL_MUST_CHECK pl_status model_open(model *m, const cli_options *o, pl_error *err);
void model_close(model *m);

typedef struct local_node {
    pl_compute *compute;
    pl_node *node;
    pl_net *net;
    pl_profiler *profiler; /* of --profile, else NULL */
    const cli_options *o;
    progress loading; /* on the compute's thread, while it packs */
} local_node;
/* A net for one of this process's coordinators or nodes. */
PL_MUST_CHECK pl_status net_new(pl_net **out, pl_loop *loop, keyring *k, const pl_net_events *events, void *user,
                                pl_error *err);
/* A node in this process, on the loop. listen: its data address. gguf_path: the model when it is on this machine, else
 * NULL. mem: what it may take, of --mem; 0: what the system has. */
PL_MUST_CHECK pl_status local_node_start(local_node *n, pl_loop *loop, keyring *k, const cli_options *o,
                                         const char *listen, const char *gguf_path, uint64_t mem, pl_error *err);
void local_node_stop(local_node *n);

typedef struct head { /* a coordinator with what belongs to it */
    const cli_options *o;
    pl_loop *loop;
    keyring keys;
    model m;
    sampling sampling;
    pl_coordinator *coordinator;
    pl_net *net;
    local_node local;
    struct draft *draft; /* with --model-draft */
    uint64_t draft_bytes;
    void *signals; /* the watch on SIGINT and SIGTERM */
    int signal_fd;
    void (*on_signal)(void *user, int n_before);
    void *on_signal_user;
    int n_signals;
} head;
/* Opens the model and the loop, starts the coordinator, its own node unless --no-local, and dials --node. private:
 * nobody can join (run without --listen). */
PL_MUST_CHECK pl_status head_start(head *h, const cli_options *o, int default_seqs, bool is_private, pl_error *err);
void head_stop(head *h);
/* fn is called on the loop for every SIGINT and SIGTERM, with how many came before. */
PL_MUST_CHECK pl_status signals_watch(pl_loop *loop, int *fd, void **watch, void (*fn)(void *user), void *user,
                                      pl_error *err);
void signals_unwatch(pl_loop *loop, int fd, void *watch);

/* --cache-type-k and --cache-type-v. */
PL_MUST_CHECK pl_status cache_from_options(pl_cache_types *out, const cli_options *o, pl_error *err);

void log_from_options(const cli_options *o, const char *default_level);
