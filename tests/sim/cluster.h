/* A whole cluster in the virtual world: the unmodified coordinator, unmodified nodes over the hash model, clients, and
 * faults; everything from one seed.
 *
 * Safety is checked at each event (node_invariants, the budget against what the compute really holds) and at each token
 * (against the oracle). After the faults sim_heal brings everybody back, and then every request must finish. A stalled
 * or wrong run ends the test with a line that says what everybody is doing. */
#pragma once

#include "coordinator/coordinator_impl.h"
#include "node/node_impl.h"
#include "tests/fixtures/fixtures.h"
#include "tests/sim/fake_compute.h"
#include "tests/sim/fixture.h"
#include "transport/sim.h"

#define SIM_S  UINT64_C(1000000000)
#define SIM_MS UINT64_C(1000000)

typedef struct sim_cluster sim_cluster;

typedef struct sim_machine {
    sim_cluster *c;
    int index;
    char name[16], address[32];
    pl_key key;
    uint64_t budget;
    bool joins;     /* it dials the coordinator; otherwise it is dialed */
    fake_disk disk; /* survives */
    /* One life: */
    bool alive, has_left, paused;
    uint32_t lives;
    pl_sim_process *process;
    pl_net *net;
    pl_compute *compute;
    pl_node *node;
} sim_machine;

typedef struct sim_client {
    sim_cluster *c;
    int index;
    pl_request *request; /* NULL: not submitted yet, or ended */
    bool submitted, ended, cancelled, may_fail;
    pl_finish why;
    pl_error err;
    int32_t *prompt, n_prompt;
    int32_t *expected, n_expected;
    bool stops; /* with an end-of-generation token */
    bool ignore_eos;
    int32_t max_tokens, n_got;
    pl_sample_params params;
    uint64_t ended_ns;
} sim_client;

enum { SIM_MACHINES_MAX = 8, SIM_CLIENTS_MAX = 64 };

typedef struct sim_options {
    int unused_; /* lets sim_start() be written without options */
    uint64_t seed;
    int nodes;                       /* [3] */
    int layers;                      /* [6] */
    int split;                       /* stages that the budgets force; [1] */
    bool tight;                      /* and hardly a byte more */
    bool spare;                      /* the other nodes could hold as much as those of the split */
    int joins;                       /* 0: each node draws whether it dials; 1: all do; 2: none */
    uint64_t grace_ns;               /* before clients are told that there is no pipeline; [an hour] */
    int32_t n_seqs, n_rows, credits; /* [4, 16, 4] */
    int32_t n_kept, n_draft;         /* [0, 0] */
    const char *odd_profile;         /* of the last node: not like the others' */
    double dial_failure;
    uint64_t run_ns, row_layer_ns; /* of the compute; see fake_compute.h */
    const char *trace_dir;         /* the nodes' timelines; NULL: none */
} sim_options;

struct sim_cluster {
    sim_options o;
    pl_rng rng, guess_rng;
    pl_sim *sim;
    sim_model model;
    pl_sim_process *process; /* the coordinator's */
    pl_net *net;
    pl_coordinator *coordinator;
    pl_key key;
    sim_machine machines[SIM_MACHINES_MAX];
    int n_machines;
    sim_client clients[SIM_CLIENTS_MAX];
    int n_clients, n_open;
    int kills, leaves, pauses, cuts, breaks; /* faults that were done */
};

#define sim_start(...) sim_start_with((sim_options){.unused_ = 0, __VA_ARGS__})
/* Makes coordinator and nodes and starts them; nothing has happened yet. */
sim_cluster *sim_start_with(sim_options o);
void sim_stop(sim_cluster *c);

typedef struct sim_request_options {
    int unused_;
    int32_t n_prompt;   /* [drawn, 1..40] */
    int32_t max_tokens; /* [drawn, 1..48] */
    bool ignore_eos;
    float temperature;
    bool may_fail; /* it is no fault when it ends with an error */
} sim_request_options;
/* A client asks; prompt and seed are drawn. NULL when it was refused, because the model fits nowhere at the time. */
#define sim_request(c, ...) sim_request_with((c), (sim_request_options){.unused_ = 0, __VA_ARGS__})
sim_client *sim_request_with(sim_cluster *c, sim_request_options o);
/* One with everything drawn. */
sim_client *sim_request_drawn(sim_cluster *c);
void sim_cancel(sim_client *client);

void sim_run(sim_cluster *c, uint64_t ns);
/* Faults of a kind and strength that the seed draws, and clients that come meanwhile. */
void sim_run_with_faults(sim_cluster *c, uint64_t ns);
/* The dead start again, the stopped go on, the cut are joined. */
void sim_heal(sim_cluster *c);
/* Until every request has ended; a failure when that takes longer than limit_ns. */
void sim_run_until_idle(sim_cluster *c, uint64_t limit_ns);
/* Until the coordinator says that it is healthy. */
void sim_run_until_healthy(sim_cluster *c, uint64_t limit_ns);
/* Every request that was not cancelled gave all its tokens and ended as the oracle ends. */
void ck_streams_equal_oracle(const sim_cluster *c);
/* When nothing is asked for, every credit is back where the epoch began, and nobody holds a frame. */
void ck_nothing_is_lost(sim_cluster *c);

void sim_kill(sim_machine *m, bool silent);
void sim_restart(sim_machine *m);
void sim_leave(sim_machine *m);
/* Nodes whose stage is ready now. */
int sim_n_ready(const sim_cluster *c);
