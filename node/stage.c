/* The way of one epoch through this node: Load -> header -> tensors -> load -> connect -> Ready, or Failure from
 * anywhere.
 *
 *   HEADER   the header blob is looked up, fetched if it has to be, opened; then the whole plan is checked against it
 * and the budget TENSORS  likewise the tensors LOAD     the compute opens the stage CONNECT  neighbours are dialed, or
 * have dialed READY    frames run BROKEN   something failed, which the coordinator was told; frames are dropped until
 * the next Load
 *
 * Each arrow is an answer of the compute or a message; a stage that is over ignores it and is freed with the last
 * answer. */
#include "node/node_impl.h"

#include "engine/base/alloc.h"
#include "engine/base/log.h"
#include "engine/base/sys.h"

#include <inttypes.h>

#define MS          UINT64_C(1000000)
#define SECOND      (1000 * MS)
#define PROGRESS_NS (200 * MS)
/* A neighbour that we dial has to have heard of the epoch, no more. One that dials us does so when it has loaded, from
 * a disk and over a link of any speed: the coordinator, which sees its progress, decides how long that may take. */
#define CONNECT_NS (30 * SECOND)
/* The largest vocabularies make headers of about 20 MB. */
#define HEADER_BYTES_MAX (UINT64_C(256) << 20)

void node_stage_free(node_stage *s)
{
    node_flow_free(s);
    node_fetch_fini(&s->fetch);
    pl_envelope_fini(&s->load);
    pl_free(s);
}

void node_stage_end(node_stage *s)
{
    if (!s) return;
    node_flow_end(s);
    s->over = true;
    s->node->stage = NULL;
    node_stage_release(s);
}

void node_stage_unload(pl_node *n)
{
    node_stage_end(n->stage);
    n->compute->vt->unload(n->compute);
    n->loaded_bytes = 0;
}

void node_stage_fail(node_stage *s, const pl_error *why)
{
    if (s->over || s->phase == NODE_PHASE_BROKEN) return;
    pl_node *n = s->node;
    s->phase = NODE_PHASE_BROKEN;
    pl_error err = *why;
    pl_note(&err, why->status, "node %s, stage %u of %u", n->name, s->plan->stage + 1, s->plan->n_stages);
    PL_LOG(PL_LOG_WARN, "stage failed", "node=%s epoch=%" PRIu64 " error=%s", PL_Q(n->name), s->epoch, PL_Q(err.text));
    if (n->coordinator.peer) node_send_failure(n->coordinator.peer, s->epoch, &err);
}

void node_stage_progress(node_stage *s, int phase, uint64_t done, uint64_t total)
{
    pl_node *n = s->node;
    uint64_t now = pl_loop_now(n->loop);
    if (phase == s->progress_phase && (done == s->progress_done || now - s->progress_ns < PROGRESS_NS)) return;
    s->progress_phase = phase;
    s->progress_done = done;
    s->progress_ns = now;
    Paceline__Progress p = PACELINE__PROGRESS__INIT;
    Paceline__Envelope m = PACELINE__ENVELOPE__INIT;
    p.phase = (Paceline__Progress__Phase)phase;
    p.done_bytes = done;
    p.total_bytes = total;
    m.body_case = PACELINE__ENVELOPE__BODY_PROGRESS;
    m.progress = &p;
    if (n->coordinator.peer) node_send(n->coordinator.peer, s->epoch, &m, NULL);
}

/* One answer of the compute has come. True when the stage still wants it. */
static bool answered(node_stage *s, const pl_error *err, const char *what)
{
    s->answers_due--;
    if (s->over) {
        node_stage_release(s);
        return false;
    }
    if (s->phase == NODE_PHASE_BROKEN) return false;
    if (!err) return true;
    pl_error e = *err;
    pl_note(&e, err->status, "%s", what);
    node_stage_fail(s, &e);
    return false;
}

void node_stage_check_ready(node_stage *s)
{
    if (s->phase != NODE_PHASE_CONNECT || !s->up.up || !s->down.up) return;
    pl_node *n = s->node;
    s->phase = NODE_PHASE_READY;
    Paceline__Ready r = PACELINE__READY__INIT;
    Paceline__Envelope m = PACELINE__ENVELOPE__INIT;
    r.weights_bytes = s->memory.weights;
    r.kv_bytes = s->memory.kv;
    r.compute_bytes = s->memory.compute;
    r.link_bytes = s->link_bytes;
    r.fetched_bytes = s->fetched_bytes;
    m.body_case = PACELINE__ENVELOPE__BODY_READY;
    m.ready = &r;
    PL_LOG(PL_LOG_INFO, "stage ready", "node=%s epoch=%" PRIu64 " stage=%u layers=%d-%d memory=%s", PL_Q(n->name),
           s->epoch, s->plan->stage, s->shape.layer_first, s->shape.layer_end - 1,
           PL_Q(pl_format_size(n->loaded_bytes)));
    if (n->coordinator.peer) node_send(n->coordinator.peer, s->epoch, &m, NULL);
}

static void loaded(void *user, const pl_error *err)
{
    node_stage *s = user;
    pl_node *n = s->node;
    if (err) n->loaded_bytes = 0;
    if (!answered(s, err, "load")) return;
    n->loaded_bytes = s->memory.weights + s->memory.kv + s->memory.compute + s->link_bytes;
    pl_error e;
    if (node_flow_init(s, &e) != PL_OK) {
        node_stage_fail(s, &e);
        return;
    }
    node_stage_progress(s, PACELINE__PROGRESS__PHASE__LOAD, s->memory.weights, s->memory.weights);
    s->phase = NODE_PHASE_CONNECT;
    s->connect_by_ns = pl_loop_now(n->loop) + CONNECT_NS;
    node_flow_start(s);
    node_stage_check_ready(s);
}

static void tensors_there(node_stage *s)
{
    pl_node *n = s->node;
    size_t n_tensors = s->plan->n_tensors;
    s->phase = NODE_PHASE_LOAD;
    node_stage_progress(s, PACELINE__PROGRESS__PHASE__LOAD, 0, s->memory.weights);
    n->loaded_bytes = s->memory.weights + s->memory.kv + s->memory.compute + s->link_bytes;
    s->answers_due++;
    n->compute->vt->load(n->compute, s->fetch.hashes, n_tensors, &s->shape, &s->memory, loaded, s);
}

/* Whether the plan's tensors are those that the header says these layers need: a coordinator that counts otherwise
 * would have us map the wrong bytes. */
static pl_status check_tensors(node_stage *s, pl_error *err)
{
    const Paceline__Load *l = s->plan;
    size_t n = pl_model_stage_tensors(s->profile, s->shape.layer_first, s->shape.layer_end, NULL);
    if (n != l->n_tensors)
        return pl_fail(err, PL_ERR_FORMAT, "the plan lists %zu tensors, layers %d to %d have %zu", l->n_tensors,
                       s->shape.layer_first, s->shape.layer_end - 1, n);
    size_t *index = pl_alloc((n + 1) * sizeof *index);
    if (!index) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for %zu tensors", n);
    pl_model_stage_tensors(s->profile, s->shape.layer_first, s->shape.layer_end, index);
    pl_status st = PL_OK;
    for (size_t i = 0; i < n && st == PL_OK; i++)
        if (index[i] != l->tensors[i]->index)
            st = pl_fail(err, PL_ERR_FORMAT, "tensor %zu of the plan is number %u, expected %zu", i,
                         l->tensors[i]->index, index[i]);
    pl_free(index);
    return st;
}

static pl_status check_plan(node_stage *s, pl_error *err)
{
    const Paceline__Load *l = s->plan;
    s->n_layer = pl_model_n_layer(s->profile);
    s->n_embd = pl_model_n_embd(s->profile);
    if ((int32_t)l->n_layer != s->n_layer)
        return pl_fail(err, PL_ERR_FORMAT, "the plan is for %u layers, the header has %d", l->n_layer, s->n_layer);
    PL_TRY(check_tensors(s, err));
    s->memory = pl_model_stage_memory(s->profile, &s->shape);
    s->link_bytes = node_link_bytes((int32_t)l->credits, s->shape.n_rows, s->n_embd, s->first, s->last);
    PL_TRY(node_budget_check(s, err));
    s->limits = (pl_check_limits){
        .n_layer = s->n_layer,
        .n_ctx = s->shape.n_ctx,
        .n_seqs = s->shape.n_seqs,
        .n_rows = s->shape.n_rows,
        .n_blocks = s->shape.n_blocks,
        .n_vocab = pl_model_n_vocab(s->profile),
        .n_embd = s->n_embd,
        .credits = (int32_t)l->credits,
    };
    return PL_OK;
}

static void header_open(void *user, const pl_error *err)
{
    node_stage *s = user;
    pl_node *n = s->node;
    n->loaded_bytes = 0; /* opening a header closes the stage before */
    if (!answered(s, err, "model header")) return;
    pl_error e;
    node_blob *blobs = NULL;
    const Paceline__Load *l = s->plan;
    if (check_plan(s, &e) != PL_OK) goto fail;
    blobs = pl_calloc(l->n_tensors, sizeof *blobs);
    if (!blobs) {
        pl_fail(&e, PL_ERR_NO_MEMORY, "no memory for %zu tensors", l->n_tensors);
        goto fail;
    }
    for (size_t i = 0; i < l->n_tensors; i++) {
        const pl_gguf_tensor *t = pl_gguf_tensor_at(s->header, l->tensors[i]->index);
        memcpy(blobs[i].hash.b, l->tensors[i]->hash.data, PL_HASH_SIZE);
        blobs[i].type = t->type;
        memcpy(blobs[i].ne, t->ne, sizeof t->ne);
        blobs[i].total = t->size;
    }
    s->phase = NODE_PHASE_TENSORS;
    if (node_fetch_start(s, blobs, l->n_tensors, tensors_there, &e) != PL_OK) goto fail;
    pl_free(blobs);
    return;
fail:
    pl_free(blobs);
    node_stage_fail(s, &e);
}

static void header_there(node_stage *s)
{
    pl_node *n = s->node;
    s->answers_due++;
    n->compute->vt->open_header(n->compute, &s->fetch.blobs[0].hash, &s->header, &s->profile, header_open, s);
}

static void set_side(node_side *side, const Paceline__Neighbour *to)
{
    side->outer = side->up = to == NULL;
    if (!to) return;
    side->dial = to->dial;
    if (to->key.len == PL_KEY_SIZE) {
        side->has_key = true;
        memcpy(side->key.b, to->key.data, PL_KEY_SIZE);
    }
    snprintf(side->address, sizeof side->address, "%s", to->address);
}

/* What can be said before the header is known. */
static pl_status check_load(node_stage *s, pl_error *err)
{
    const Paceline__Load *l = s->plan;
    pl_node *n = s->node;
    if (l->stage_bytes > n->budget)
        return pl_fail(err, PL_ERR_BUDGET, "the plan counts %s for layers %u to %u, the budget of %s is %s",
                       pl_format_size(l->stage_bytes), l->layer_first, l->layer_end - 1, n->name,
                       pl_format_size(n->budget));
    if (l->header_bytes > HEADER_BYTES_MAX)
        return pl_fail(err, PL_ERR_BUDGET, "a model header of %" PRIu64 " bytes, at most %" PRIu64, l->header_bytes,
                       HEADER_BYTES_MAX);
    if (l->wire_type != PL_TYPE_F32)
        return pl_fail(err, PL_ERR_UNSUPPORTED, "activations of type %s", pl_type_name((pl_type)l->wire_type));
    return PL_OK;
}

void node_stage_load(pl_node *n, pl_envelope *load)
{
    pl_error err;
    uint64_t epoch = load->m->epoch;
    if (epoch <= n->epoch_max) {
        pl_fail(&err, PL_ERR_STALE, "node %s: a Load of epoch %" PRIu64 ", it is at %" PRIu64, n->name, epoch,
                n->epoch_max);
        node_send_failure(n->coordinator.peer, epoch, &err);
        return;
    }
    n->epoch_max = epoch;
    node_stage_end(n->stage);
    node_stage *s = pl_calloc(1, sizeof *s);
    if (!s) {
        pl_fail(&err, PL_ERR_NO_MEMORY, "node %s: no memory for a stage", n->name);
        node_send_failure(n->coordinator.peer, epoch, &err);
        return;
    }
    s->node = n;
    s->next = n->stages;
    n->stages = n->stage = s;
    s->epoch = epoch;
    s->load = *load;
    *load = (pl_envelope){0};
    const Paceline__Load *l = s->plan = s->load.m->load;
    s->progress_phase = -1;
    s->shape = (pl_stage_shape){
        .layer_first = (int32_t)l->layer_first,
        .layer_end = (int32_t)l->layer_end,
        .n_blocks = (int32_t)l->n_blocks,
        .n_ctx = (int32_t)l->n_ctx,
        .n_seqs = (int32_t)l->n_seqs,
        .n_rows = (int32_t)l->n_rows,
        .n_threads = n->compute->vt->facts(n->compute)->n_threads,
        .cache = {(pl_type)l->kv_type, (pl_type)l->kv_type_v},
    };
    s->first = l->stage == 0;
    s->last = l->stage == l->n_stages - 1;
    set_side(&s->up, l->upstream);
    set_side(&s->down, l->downstream);
    node_blob header = {.type = PL_TYPE_COUNT, .total = l->header_bytes};
    memcpy(header.hash.b, l->header_hash.data, PL_HASH_SIZE);
    if (check_load(s, &err) != PL_OK || node_fetch_start(s, &header, 1, header_there, &err) != PL_OK) {
        node_stage_fail(s, &err);
        return;
    }
    node_flow_take_parked(s);
}

void node_stage_tick(node_stage *s)
{
    node_fetch_tick(s);
    if (s->phase != NODE_PHASE_CONNECT || pl_loop_now(s->node->loop) < s->connect_by_ns) return;
    const node_side *side = s->up.dial && !s->up.up ? &s->up : s->down.dial && !s->down.up ? &s->down : NULL;
    if (!side) return;
    pl_error err;
    pl_fail(&err, PL_ERR_TIMEOUT, "%s at %s cannot be reached within %d s", node_side_name(s, side), side->address,
            (int)(CONNECT_NS / SECOND));
    node_stage_fail(s, &err);
}
