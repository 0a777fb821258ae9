/* One real node in the virtual world, with actors around it. */
#pragma once

#include "node/node_impl.h"
#include "tests/fixtures/fixtures.h"
#include "tests/sim/actor.h"
#include "tests/sim/fake_compute.h"

#define MS UINT64_C(1000000)
#define S  (1000 * MS)

enum { RIG_LAYERS = 6 };

typedef struct rig {
    pl_sim *sim;
    sim_model model;
    fake_disk disk;
    pl_sim_process *process;
    pl_compute *compute;
    pl_net *net;
    pl_node *node;
    pl_key key;
    actor coordinator, up, down;
    pl_link *to_node; /* the coordinator's link, once rig_join was there */
    /* The plan that rig_load sends; a test changes it before. */
    Paceline__Load plan;
    Paceline__Neighbour plan_up, plan_down;
    Paceline__TensorRef refs[128], *ref_list[128];
    uint64_t next_id; /* of frames */
} rig;

typedef struct rig_options {
    uint64_t budget;   /* 0: 1 GiB */
    size_t blob_bytes; /* 0: 1000 */
    const char *trace_path;
} rig_options;

void rig_init(rig *r, const rig_options *options);
void rig_fini(rig *r);
/* The coordinator dials, Hellos pass, Welcome is sent. */
void rig_join(rig *r);
/* Prepares a plan: layers first..end of the model, this stage of n; neighbours are the actors up and down, which the
 * node waits for (dial false). */
void rig_plan(rig *r, int32_t first, int32_t end);
void rig_load(rig *r, uint64_t epoch);
/* rig_plan, rig_load, neighbours dial where there are any, until Ready. */
void rig_ready(rig *r, uint64_t epoch, int32_t first, int32_t end);
/* An actor dials the node as neighbour. */
void rig_neighbour(rig *r, actor *a, Paceline__Hello__Role role, uint64_t epoch);

/* A frame of n rows of sequence 0 from position pos on, tokens pos + 1 …; opens the sequence when pos is 0. With n_embd
 * > 0 it carries hidden of that many numbers per row, made by an oracle stage of the layers before. */
void rig_send_frame(rig *r, pl_link *link, uint64_t epoch, uint64_t id, int32_t pos, int32_t n, bool logits);
void rig_run(rig *r, uint64_t ns);
