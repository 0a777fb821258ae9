/* Epochs: when there is a plan, how it comes up, what ends it.
 *
 *   DOWN --plan fits--> LOADING --all Ready--> UP
 *    ^                     |                    |
 *    +---- a stage fails, dies, leaves, --------+
 *          loses a neighbour or breaks the protocol
 *
 * A plan is made when plan_at_ns comes: at once after a death, soon after joins (others may follow), after a growing
 * pause when epochs keep failing. Going down forgets what was sent and keeps every request; coming up replays them. A
 * better plan is taken only while no request is open: a running stream is never disturbed for speed. */
#include "coordinator/coordinator_impl.h"

#include "engine/base/log.h"

#include <inttypes.h>
#include <stdio.h>

#define RETRY_MIN_NS   (250 * PL_MS)
#define RETRY_MAX_NS   (4 * PL_SECOND)
#define FAILURES_MAX   3 /* of a node in a row, then the plan tries without it */
#define EXCLUDE_MIN_NS (5 * PL_SECOND)
#define EXCLUDE_MAX_NS (300 * PL_SECOND)
#define TRIES_MAX      5                /* epochs that fail in a row before waiting requests are told */
#define STABLE_NS      (10 * PL_SECOND) /* a pipeline that works so long has earned that old failures are forgotten */
#define SLOW           10  /* times the prediction: a node may be busy with other things, and is not stuck */
#define BETTER         0.8 /* a new plan has to cost less than so much of the present one */

int32_t pipeline_stage_of(const pl_coordinator *c, const pl_member *m)
{
    for (int32_t i = 0; i < c->pipeline.n_stages; i++)
        if (c->pipeline.stages[i].member == m) return i;
    return -1;
}

static void set_state(pl_coordinator *c, pl_pipeline_state state)
{
    c->pipeline.state = state;
    c->pipeline.since_ns = pl_loop_now(c->loop);
    coordinator_changed(c);
}

static void stop(pl_coordinator *c, const pl_error *why)
{
    if (c->pipeline.state == PL_PIPELINE_DOWN) return;
    pl_sched_down(&c->sched);
    c->pipeline.n_stages = 0;
    c->pipeline.epoch = 0; /* messages about it are old from now on */
    c->down_why = *why;
    c->unplaced = false;
    set_state(c, PL_PIPELINE_DOWN);
}

static void plan_within(pl_coordinator *c, uint64_t ns)
{
    uint64_t at = pl_loop_now(c->loop) + ns;
    if (at < c->plan_at_ns) c->plan_at_ns = at;
    coordinator_soon(c);
}

/* --- Planning --- */

typedef struct candidates {
    pl_member *members[PL_MEMBERS_MAX];
    pl_place_node nodes[PL_MEMBERS_MAX];
    int32_t n, n_left; /* left: out, though they might do */
} candidates;

/* Half a round trip, in steps of 0.1 ms: what is below is noise of the moment, and the same machines should get the
 * same plan. */
static double hop_of(const pl_member *m)
{
    return (double)((m->rtt_ns / 2 + 99999) / 100000) * 1e-4;
}

/* By name, then key: the order in which nodes happened to join must not decide who holds what, or a second start would
 * move layers. */
static int32_t place_in_order(const candidates *k, const pl_member *m)
{
    int32_t at = k->n;
    for (; at > 0; at--) {
        const pl_member *before = k->members[at - 1];
        int d = strcmp(before->name, m->name);
        if (d == 0) d = memcmp(before->link->peer.b, m->link->peer.b, PL_KEY_SIZE);
        if (d <= 0) break;
    }
    return at;
}

static void collect(pl_coordinator *c, candidates *k, bool with_excluded)
{
    const uint64_t now = pl_loop_now(c->loop);
    k->n = k->n_left = 0;
    for (pl_member *m = c->members; m; m = m->next) {
        if (!member_usable(m)) continue;
        if (m->excluded_until_ns > now && (m->hopeless || !with_excluded)) {
            if (!m->hopeless) k->n_left++;
            continue;
        }
        int32_t at = place_in_order(k, m);
        memmove(&k->members[at + 1], &k->members[at], (size_t)(k->n - at) * sizeof k->members[0]);
        memmove(&k->nodes[at + 1], &k->nodes[at], (size_t)(k->n - at) * sizeof k->nodes[0]);
        k->members[at] = m;
        k->nodes[at] = (pl_place_node){.name = m->name,
                                       .budget_bytes = m->budget_bytes,
                                       .n_threads = m->n_threads,
                                       .read_bytes_s = m->read_bytes_s,
                                       .macs_s = m->macs_s,
                                       .hop_s = hop_of(m)};
        k->n++;
    }
}

static pl_place_want want_of(const pl_coordinator *c)
{
    const pl_coordinator_options *o = &c->options;
    return (pl_place_want){.objective = (pl_objective)o->objective,
                           .n_ctx = o->n_ctx,
                           .n_seqs = o->n_seqs,
                           .n_slots = c->sched.n_slots,
                           .credits = o->credits,
                           .cache = o->cache,
                           .n_blocks = o->n_blocks,
                           .n_rows = o->n_rows,
                           .n_stages = o->n_stages,
                           .fixed_blocks = c->fixed_blocks,
                           .fixed_rows = c->fixed_rows};
}

/* Nodes that failed lately are left out, unless nothing fits without them. */
static pl_status find_plan(pl_coordinator *c, pl_placement *out, candidates *k, pl_error *err)
{
    pl_place_want want = want_of(c);
    collect(c, k, false);
    pl_status s = pl_place(out, &c->place_model, k->nodes, k->n, &want, err);
    if (s != PL_ERR_BUDGET || k->n_left == 0) return s;
    collect(c, k, true);
    return pl_place(out, &c->place_model, k->nodes, k->n, &want, err);
}

static void unload(pl_member *m)
{
    Paceline__Unload u = PACELINE__UNLOAD__INIT;
    Paceline__Envelope e = PACELINE__ENVELOPE__INIT;
    e.body_case = PACELINE__ENVELOPE__BODY_UNLOAD;
    e.unload = &u;
    member_send(m, m->epoch, &e, NULL);
    m->epoch = 0;
}

static bool is_loopback(const char *address)
{
    return strstr(address, "://127.") || strstr(address, "://localhost") || strstr(address, "://[::1]");
}

/* Whether the upstream end dials its neighbour downstream: it does, unless only the other way can work, or that was
 * tried in vain. */
static bool upstream_dials(const pl_coordinator *c, const pl_member *up, const pl_member *down)
{
    if (!up->address[0]) return true;
    if (!down->address[0]) return false;
    /* A node on the coordinator's own host is seen at an address that means something else elsewhere. */
    if (is_loopback(down->address) != is_loopback(up->address)) return !is_loopback(down->address);
    return !c->flip_dial;
}

static void set_neighbour(Paceline__Neighbour *n, pl_member *m, bool dial)
{
    static const pl_key none;
    paceline__neighbour__init(n);
    if (memcmp(&none, &m->link->peer, sizeof none) != 0) n->key = (ProtobufCBinaryData){PL_KEY_SIZE, m->link->peer.b};
    n->address = m->address;
    n->dial = dial;
}

static pl_status send_load(pl_coordinator *c, int32_t i, pl_error *err)
{
    pl_pipeline *p = &c->pipeline;
    const pl_place_stage *st = &p->plan.stages[i];
    pl_member *m = p->stages[i].member;
    pl_arena_reset(&c->step);
    size_t n = pl_model_stage_tensors(c->model.profile, st->layer_first, st->layer_end, NULL);
    size_t *index = pl_arena_alloc(&c->step, (n + 1) * sizeof *index);
    Paceline__TensorRef *refs = pl_arena_alloc(&c->step, (n + 1) * sizeof *refs),
                        **list = pl_arena_alloc(&c->step, (n + 1) * sizeof(Paceline__TensorRef *));
    if (!index || !refs || !list) return pl_fail(err, PL_ERR_NO_MEMORY, "plan of %zu tensors", n);
    pl_model_stage_tensors(c->model.profile, st->layer_first, st->layer_end, index);
    for (size_t k = 0; k < n; k++) {
        paceline__tensor_ref__init(&refs[k]);
        refs[k].index = (uint32_t)index[k];
        refs[k].hash = (ProtobufCBinaryData){PL_HASH_SIZE, (uint8_t *)c->model.hashes[index[k]].b};
        list[k] = &refs[k];
    }
    Paceline__Load l = PACELINE__LOAD__INIT;
    Paceline__Neighbour up, down;
    l.header_hash = (ProtobufCBinaryData){PL_HASH_SIZE, c->catalog.header_hash.b};
    l.header_bytes = c->catalog.header.size;
    l.model = (char *)c->model.name;
    l.layer_first = (uint32_t)st->layer_first;
    l.layer_end = (uint32_t)st->layer_end;
    l.n_layer = (uint32_t)c->place_model.n_layer;
    l.n_blocks = (uint32_t)p->plan.n_blocks;
    l.n_ctx = (uint32_t)c->options.n_ctx;
    l.n_seqs = (uint32_t)c->sched.n_slots;
    l.n_rows = (uint32_t)p->plan.n_rows;
    l.kv_type = (uint32_t)c->options.cache.k;
    l.kv_type_v = (uint32_t)c->options.cache.v;
    l.wire_type = PL_TYPE_F32;
    l.credits = (uint32_t)c->options.credits;
    l.tensors = list;
    l.n_tensors = n;
    l.stage_bytes = pl_place_stage_bytes(st);
    l.stage = (uint32_t)i;
    l.n_stages = (uint32_t)p->n_stages;
    if (i > 0) {
        pl_member *o = p->stages[i - 1].member;
        set_neighbour(&up, o, !upstream_dials(c, o, m));
        l.upstream = &up;
    }
    if (i + 1 < p->n_stages) {
        pl_member *o = p->stages[i + 1].member;
        set_neighbour(&down, o, upstream_dials(c, m, o));
        l.downstream = &down;
    }
    Paceline__Envelope e = PACELINE__ENVELOPE__INIT;
    e.body_case = PACELINE__ENVELOPE__BODY_LOAD;
    e.load = &l;
    m->epoch = p->epoch;
    member_send(m, p->epoch, &e, NULL);
    return PL_OK;
}

static void fail_epoch(pl_coordinator *c, const pl_error *why)
{
    stop(c, why);
    c->tries++;
    uint64_t pause = c->tries == 1 ? 0 : RETRY_MIN_NS << (c->tries < 6 ? c->tries - 2 : 4);
    plan_within(c, pause < RETRY_MAX_NS ? pause : RETRY_MAX_NS);
}

static void start_epoch(pl_coordinator *c, const pl_placement *plan, const candidates *k)
{
    pl_pipeline *p = &c->pipeline;
    const uint64_t now = pl_loop_now(c->loop);
    pl_sched_down(&c->sched);
    pl_buf text = p->plan_text;
    *p = (pl_pipeline){.epoch = ++c->last_epoch, .plan = *plan, .n_stages = plan->n_stages, .plan_text = text};
    pl_error err = {0};
    pl_place_want want = want_of(c);
    pl_buf_reset(&p->plan_text);
    if (pl_place_text(plan, &c->place_model, k->nodes, k->n, &want, &p->plan_text, &err) != PL_OK)
        pl_buf_reset(&p->plan_text);
    for (int32_t i = 0; i < p->n_stages; i++) {
        int32_t node = plan->stages[i].node;
        p->stages[i] = (pl_pipeline_stage){.member = k->members[node], .moved_ns = now};
        p->plan.stages[i].node = i;
        p->nodes[i] = k->nodes[node];
        snprintf(p->names[i], sizeof p->names[i], "%s", k->nodes[node].name);
        p->nodes[i].name = p->names[i];
    }
    c->planned = true;
    c->unplaced = c->reconsider = false;
    set_state(c, PL_PIPELINE_LOADING);
    for (pl_member *m = c->members; m; m = m->next)
        if (m->epoch && pipeline_stage_of(c, m) < 0) unload(m);
    PL_LOG(PL_LOG_INFO, "plan", "epoch=%" PRIu64 " stages=%d objective=%s cost_ms=%.3f", p->epoch, p->n_stages,
           plan->objective == PL_OBJECTIVE_LATENCY ? "latency" : "throughput", plan->cost_s * 1e3);
    for (int32_t i = 0; i < p->n_stages; i++) {
        PL_LOG(PL_LOG_INFO, "stage", "epoch=%" PRIu64 " stage=%d node=%s layers=%d..%d bytes=%" PRIu64, p->epoch, i,
               PL_Q(p->names[i]), plan->stages[i].layer_first, plan->stages[i].layer_end - 1,
               pl_place_stage_bytes(&plan->stages[i]));
        if (send_load(c, i, &err) == PL_OK) continue;
        PL_LOG(PL_LOG_ERROR, "plan cannot be sent", "error=%s", PL_Q(err.text));
        fail_epoch(c, &err);
        return;
    }
}

/* Says goodbye to those that want to go and are not needed any more. */
static void answer_leaving(pl_coordinator *c)
{
    for (pl_member *m = c->members; m; m = m->next) {
        if (m->state != PL_MEMBER_JOINED || !m->leaving || pipeline_stage_of(c, m) >= 0) continue;
        Paceline__Leave l = PACELINE__LEAVE__INIT;
        Paceline__Envelope e = PACELINE__ENVELOPE__INIT;
        e.body_case = PACELINE__ENVELOPE__BODY_LEAVE;
        e.leave = &l;
        member_send(m, 0, &e, NULL);
        PL_LOG(PL_LOG_INFO, "node leaves", "node=%s id=%u", PL_Q(m->name), m->id);
        m->state = PL_MEMBER_REFUSED; /* the link ends soon */
        m->since_ns = pl_loop_now(c->loop);
        coordinator_changed(c);
    }
}

static void plan(pl_coordinator *c)
{
    const uint64_t now = pl_loop_now(c->loop);
    pl_error err = {0};
    candidates *k = pl_arena_alloc(&c->step, sizeof *k); /* large for a stack */
    pl_placement p;
    pl_status s;
    c->plan_at_ns = c->settle_from_ns = PL_NEVER;
    if (!k) {
        s = pl_fail(&err, PL_ERR_NO_MEMORY, "planning");
    } else {
        collect(c, k, true);
        if (!c->planned && k->n < c->options.min_nodes) {
            pl_fail(&c->down_why, PL_ERR_CLOSED, "waiting for nodes: %d of %d have joined", k->n, c->options.min_nodes);
            c->unplaced = false; /* whatever an earlier plan said: requests wait now */
            coordinator_changed(c);
            return;
        }
        s = find_plan(c, &p, k, &err);
    }
    if (s == PL_OK) {
        start_epoch(c, &p, k);
    } else {
        /* The sentence is kept in any case: a table of what is short changes with every node. */
        for (pl_member *m = c->members; m; m = m->next) {
            if (m->excluded_until_ns <= now) continue;
            size_t n = strlen(err.text);
            snprintf(err.text + n, sizeof err.text - n, "\n  %s failed: %.200s", m->name, m->last_failure.text);
            if (m->excluded_until_ns < c->plan_at_ns) c->plan_at_ns = m->excluded_until_ns;
        }
        if (!c->unplaced) {
            c->unplaced_since_ns = now;
            PL_LOG(PL_LOG_WARN, "the model does not fit", "reason=%s", PL_Q(err.text));
        }
        c->unplaced = true;
        c->down_why = err;
        for (pl_member *m = c->members; m; m = m->next)
            if (m->epoch && !m->doomed) unload(m);
        if (s == PL_ERR_NO_MEMORY) plan_within(c, RETRY_MAX_NS);
        coordinator_changed(c);
    }
    answer_leaving(c);
}

/* While nothing is asked for: whether nodes that came since make a clearly better plan. */
static void reconsider(pl_coordinator *c)
{
    if (!c->reconsider || c->pipeline.state != PL_PIPELINE_UP || c->sched.n_open ||
        pl_loop_now(c->loop) < c->reconsider_at_ns)
        return;
    c->reconsider = false;
    pl_arena_reset(&c->step);
    candidates *k = pl_arena_alloc(&c->step, sizeof *k);
    pl_placement better;
    pl_error err = {0};
    if (!k || find_plan(c, &better, k, &err) != PL_OK) return;
    const pl_placement *now = &c->pipeline.plan;
    if (better.cost_s >= BETTER * now->cost_s && better.n_blocks <= now->n_blocks && better.n_rows <= now->n_rows)
        return;
    PL_LOG(PL_LOG_INFO, "a better plan", "cost_ms=%.3f before_ms=%.3f", better.cost_s * 1e3, now->cost_s * 1e3);
    start_epoch(c, &better, k);
}

/* --- What ends an epoch --- */

void pipeline_joined(pl_coordinator *c)
{
    const uint64_t now = pl_loop_now(c->loop);
    if (c->pipeline.state != PL_PIPELINE_DOWN) {
        c->reconsider = true;
        c->reconsider_at_ns = now + c->options.settle_ns;
        return;
    }
    if (c->settle_from_ns == PL_NEVER) c->settle_from_ns = now;
    /* Others may follow; but nodes that keep coming do not keep the first one waiting. */
    uint64_t latest = c->settle_from_ns + 4 * c->options.settle_ns, at = now + c->options.settle_ns;
    c->plan_at_ns = at < latest ? at : latest;
    coordinator_soon(c);
}

void pipeline_lost(pl_coordinator *c, pl_member *m, const pl_error *why)
{
    if (pipeline_stage_of(c, m) >= 0) {
        pl_error err = *why;
        (void)pl_note(&err, why->status, "stage %d on node %s is gone", pipeline_stage_of(c, m), m->name);
        stop(c, &err);
        plan_within(c, 0);
    } else if (c->unplaced) {
        plan_within(c, 0); /* for a table that is true */
    }
}

void pipeline_leave(pl_member *m)
{
    pl_coordinator *c = m->c;
    m->leaving = true;
    if (pipeline_stage_of(c, m) >= 0) {
        pl_error err = {0};
        pl_fail(&err, PL_ERR_CLOSED, "node %s leaves", m->name);
        stop(c, &err);
        plan_within(c, 0);
    } else {
        answer_leaving(c);
    }
}

/* A node could not hold its stage, or not go on with it. */
void pipeline_failure(pl_member *m, const pl_error *err)
{
    pl_coordinator *c = m->c;
    int32_t stage = pipeline_stage_of(c, m);
    if (stage < 0) return;
    pl_error why = *err;
    (void)pl_note(&why, err->status, "stage %d on node %s", stage, m->name);
    PL_LOG(PL_LOG_WARN, "stage failed", "epoch=%" PRIu64 " stage=%d node=%s error=%s", c->pipeline.epoch, stage,
           PL_Q(m->name), PL_Q(err->text));
    m->last_failure = *err;
    m->failures++;
    m->hopeless = err->status == PL_ERR_BUDGET || err->status == PL_ERR_UNSUPPORTED;
    if (m->hopeless || m->failures >= FAILURES_MAX) {
        uint32_t more = m->failures > FAILURES_MAX ? m->failures - FAILURES_MAX : 0;
        uint64_t ns = EXCLUDE_MIN_NS << (more < 6 ? more : 6);
        m->excluded_until_ns = pl_loop_now(c->loop) + (ns < EXCLUDE_MAX_NS ? ns : EXCLUDE_MAX_NS);
    }
    if (c->pipeline.state == PL_PIPELINE_LOADING &&
        (err->status == PL_ERR_TIMEOUT || err->status == PL_ERR_CLOSED || err->status == PL_ERR_IO))
        c->flip_dial = !c->flip_dial;
    m->epoch = 0; /* a failure ends the epoch there */
    fail_epoch(c, &why);
}

void pipeline_link_state(pl_member *m, const Paceline__LinkState *l)
{
    if (l->up) return;
    pl_error err = {0};
    pl_fail(&err, l->failure ? (pl_status)l->failure->status : PL_ERR_CLOSED, "its link %s: %s",
            l->downstream ? "downstream" : "upstream", l->failure ? l->failure->text : "down");
    pipeline_failure(m, &err);
}

/* --- From Load to Ready --- */

void pipeline_moved(pl_member *m)
{
    int32_t stage = pipeline_stage_of(m->c, m);
    if (stage >= 0) m->c->pipeline.stages[stage].moved_ns = pl_loop_now(m->c->loop);
}

void pipeline_progress(pl_member *m, const Paceline__Progress *p)
{
    int32_t stage = pipeline_stage_of(m->c, m);
    if (stage < 0) return;
    pl_pipeline_stage *s = &m->c->pipeline.stages[stage];
    s->phase = p->phase;
    s->done_bytes = p->done_bytes;
    s->total_bytes = p->total_bytes;
    pipeline_moved(m);
    coordinator_changed(m->c);
}

static void come_up(pl_coordinator *c)
{
    pl_pipeline *p = &c->pipeline;
    uint64_t hop_ns = 0;
    for (int32_t i = 0; i < p->n_stages; i++)
        if (p->stages[i].member->rtt_ns > hop_ns) hop_ns = p->stages[i].member->rtt_ns;
    /* One group per stage keeps all busy but for the hops. One more hides a hop, but makes groups smaller, and each
     * reads all weights anew: with S stages it pays when the hop is more than about a stage's time, and costs up to 1
     * in S + 1 where it is less. */
    double stage_ns = p->plan.slowest_s * 1e9;
    int32_t more = (double)hop_ns * 2 <= stage_ns ? 0 : (double)hop_ns <= stage_ns * 2 ? 1 : 2;
    p->groups = p->n_stages + more;
    p->credits = c->options.credits;
    pl_sched_shape shape = {.n_blocks = p->plan.n_blocks,
                            .n_rows = p->plan.n_rows,
                            .n_stages = p->n_stages,
                            .groups = p->groups,
                            .in_flight = p->groups + 1};
    pl_error err = {0};
    if (pl_sched_up(&c->sched, &shape, &err) != PL_OK) {
        PL_LOG(PL_LOG_ERROR, "pipeline cannot start", "error=%s", PL_Q(err.text));
        fail_epoch(c, &err);
        return;
    }
    PL_LOG(PL_LOG_INFO, "pipeline up", "epoch=%" PRIu64 " stages=%d groups=%d open=%d", p->epoch, p->n_stages,
           p->groups, c->sched.n_open);
    set_state(c, PL_PIPELINE_UP);
}

void pipeline_ready(pl_member *m, const Paceline__Ready *r)
{
    pl_coordinator *c = m->c;
    int32_t stage = pipeline_stage_of(c, m);
    if (stage < 0 || c->pipeline.state != PL_PIPELINE_LOADING) return;
    pl_pipeline_stage *s = &c->pipeline.stages[stage];
    s->ready = true;
    s->fetched_bytes = r->fetched_bytes;
    pipeline_moved(m);
    uint64_t took = r->weights_bytes + r->kv_bytes + r->compute_bytes + r->link_bytes,
             planned = pl_place_stage_bytes(&c->pipeline.plan.stages[stage]);
    if (took > planned)
        PL_LOG(PL_LOG_WARN, "stage is larger than planned", "stage=%d node=%s bytes=%" PRIu64 " planned=%" PRIu64,
               stage, PL_Q(m->name), took, planned);
    coordinator_changed(c);
    for (int32_t i = 0; i < c->pipeline.n_stages; i++)
        if (!c->pipeline.stages[i].ready) return;
    come_up(c);
}

/* --- Frames --- */

static pl_status send_frame(pl_coordinator *c, const pl_sched_frame *f, pl_error *err)
{
    pl_arena_reset(&c->step);
    size_t n = (size_t)f->n_ops;
    Paceline__KvOp *ops = pl_arena_alloc(&c->step, (n + 1) * sizeof *ops),
                   **list = pl_arena_alloc(&c->step, (n + 1) * sizeof(Paceline__KvOp *));
    if (!ops || !list) return pl_fail(err, PL_ERR_NO_MEMORY, "frame with %d operations", f->n_ops);
    for (size_t i = 0; i < n; i++) {
        const pl_sched_op *op = &f->ops[i];
        paceline__kv_op__init(&ops[i]);
        ops[i].kind = op->kind;
        ops[i].seq = op->seq;
        ops[i].src = op->src;
        ops[i].n_pos = op->n_pos;
        ops[i].blocks = (int32_t *)op->blocks;
        ops[i].n_blocks = (size_t)op->n_blocks;
        if (op->request) {
            Paceline__Params *params = pl_arena_alloc(&c->step, sizeof *params);
            ops[i].sequence = pl_arena_alloc(&c->step, sizeof *ops[i].sequence);
            if (!params || !ops[i].sequence) return pl_fail(err, PL_ERR_NO_MEMORY, "sequence record");
            pl_request_record(op->request, ops[i].sequence, params);
        }
        list[i] = &ops[i];
    }
    Paceline__Frame frame = PACELINE__FRAME__INIT;
    Paceline__Envelope e = PACELINE__ENVELOPE__INIT;
    frame.id = f->id;
    frame.ops = list;
    frame.n_ops = n;
    frame.seq = f->seq;
    frame.pos = f->pos;
    frame.token = f->token;
    frame.n_seq = frame.n_pos = frame.n_token = (size_t)f->n_rows;
    frame.logits = f->logits;
    frame.n_logits = (size_t)f->n_logits;
    frame.n_pos_per_row = 1;
    e.body_case = PACELINE__ENVELOPE__BODY_FRAME;
    e.frame = &frame;
    member_send(c->pipeline.stages[0].member, c->pipeline.epoch, &e, NULL);
    return PL_OK;
}

void pipeline_frames(pl_coordinator *c)
{
    pl_pipeline *p = &c->pipeline;
    const pl_sched_frame *f;
    while (p->state == PL_PIPELINE_UP && p->credits > 0 &&
           (f = pl_sched_next(&c->sched, pl_loop_now(c->loop))) != NULL) {
        pl_error err = {0};
        p->credits--;
        if (send_frame(c, f, &err) == PL_OK) continue;
        PL_LOG(PL_LOG_ERROR, "frame cannot be sent", "epoch=%" PRIu64 " frame=%" PRIu64 " error=%s", p->epoch, f->id,
               PL_Q(err.text));
        fail_epoch(c, &err);
    }
}

pl_status pipeline_credit(pl_member *m, const Paceline__Credit *credit, pl_error *err)
{
    pl_pipeline *p = &m->c->pipeline;
    if (pipeline_stage_of(m->c, m) != 0)
        return pl_fail(err, PL_ERR_FORMAT, "credit from a node that is not the first stage");
    if (p->state != PL_PIPELINE_UP) return pl_fail(err, PL_ERR_FORMAT, "credit before the pipeline is up");
    if (credit->frames > (uint32_t)(m->c->options.credits - p->credits))
        return pl_fail(err, PL_ERR_FORMAT, "%u credits come back, %d are out", credit->frames,
                       m->c->options.credits - p->credits);
    p->credits += (int32_t)credit->frames;
    return PL_OK;
}

pl_status pipeline_result(pl_member *m, const Paceline__Result *r, pl_error *err)
{
    pl_coordinator *c = m->c;
    pl_pipeline *p = &c->pipeline;
    if (pipeline_stage_of(c, m) != p->n_stages - 1)
        return pl_fail(err, PL_ERR_FORMAT, "result from a node that is not the last stage");
    if (p->state != PL_PIPELINE_UP) return pl_fail(err, PL_ERR_FORMAT, "result before the pipeline is up");
    if (r->failure) {
        pl_error why = {0};
        pl_fail(&why, (pl_status)r->failure->status, "frame %" PRIu64 ": %s", r->frame, r->failure->text);
        pipeline_failure(m, &why);
        return PL_OK;
    }
    size_t n = r->n_tokens;
    pl_arena_reset(&c->step);
    pl_sampled *tokens = pl_arena_zalloc(&c->step, (n + 1) * sizeof *tokens);
    int32_t *seq = pl_arena_alloc(&c->step, (n + 1) * sizeof *seq),
            *pos = pl_arena_alloc(&c->step, (n + 1) * sizeof *pos);
    if (!tokens || !seq || !pos) {
        pl_error why = {0};
        pl_fail(&why, PL_ERR_NO_MEMORY, "result of %zu tokens", n);
        fail_epoch(c, &why);
        return PL_OK;
    }
    for (size_t i = 0; i < n; i++) {
        const Paceline__Token *t = r->tokens[i];
        seq[i] = t->seq;
        pos[i] = t->pos;
        tokens[i].token = t->token;
        tokens[i].logprob = t->logprob;
        tokens[i].n_top = (int32_t)t->n_top;
        if (t->sampler_state.len > sizeof tokens[i].state)
            return pl_fail(err, PL_ERR_FORMAT, "a token with %zu bytes of sampler state", t->sampler_state.len);
        tokens[i].n_state = (uint32_t)t->sampler_state.len;
        if (t->sampler_state.len) memcpy(tokens[i].state, t->sampler_state.data, t->sampler_state.len);
        for (size_t j = 0; j < t->n_top; j++) {
            tokens[i].top[j] = t->top[j];
            tokens[i].top_logprob[j] = t->top_logprob[j];
        }
    }
    PL_TRY(pl_sched_result(&c->sched, r->frame, tokens, seq, pos, (int32_t)n, err));
    p->n_results++;
    return PL_OK;
}

/* --- What is due --- */

bool pipeline_refuses(const pl_coordinator *c)
{
    return c->unplaced && c->settle_from_ns == PL_NEVER;
}

static void tell_waiting(pl_coordinator *c)
{
    const uint64_t now = pl_loop_now(c->loop), grace = c->options.unplaced_grace_ns;
    if (c->pipeline.state == PL_PIPELINE_UP || !c->sched.n_open) return;
    if (c->settle_from_ns != PL_NEVER) return; /* nodes have just come: there is hope */
    if (c->unplaced) {
        if (now - c->unplaced_since_ns >= grace) pl_sched_fail(&c->sched, PL_NEVER, &c->down_why);
    } else if ((c->plan_at_ns == PL_NEVER && c->pipeline.state == PL_PIPELINE_DOWN) || c->tries >= TRIES_MAX) {
        if (now >= grace) pl_sched_fail(&c->sched, now - grace, &c->down_why);
    }
}

static void check_loading(pl_coordinator *c)
{
    pl_pipeline *p = &c->pipeline;
    const uint64_t now = pl_loop_now(c->loop);
    uint64_t moved = 0;
    int32_t stuck = -1;
    for (int32_t i = 0; i < p->n_stages; i++) {
        const pl_pipeline_stage *s = &p->stages[i];
        if (s->moved_ns > moved) moved = s->moved_ns;
        /* Who has all its bytes may only be waiting for a neighbour. */
        if (!s->ready && (stuck < 0 || s->done_bytes < s->total_bytes)) stuck = i;
    }
    if (stuck < 0 || now - moved < c->options.load_timeout_ns) return;
    pl_error err = {0};
    pl_fail(&err, PL_ERR_TIMEOUT, "no progress in loading for %" PRIu64 " s, at %" PRIu64 " of %" PRIu64 " bytes",
            (now - moved) / PL_SECOND, p->stages[stuck].done_bytes, p->stages[stuck].total_bytes);
    pipeline_failure(p->stages[stuck].member, &err);
}

/* What so many rows take in all stages, one after the other. */
static uint64_t predicted_ns(const pl_coordinator *c, int64_t rows)
{
    const pl_pipeline *p = &c->pipeline;
    double s = 0;
    for (int32_t i = 0; i < p->n_stages; i++) {
        double macs = 0;
        for (int32_t l = p->plan.stages[i].layer_first; l < p->plan.stages[i].layer_end; l++)
            macs += (double)c->unit_macs[l];
        s += p->nodes[i].macs_s > 0 ? macs / p->nodes[i].macs_s : 0;
    }
    s *= (double)rows;
    return s < 1e6 ? (uint64_t)(s * 1e9) : PL_NEVER / (2 * SLOW);
}

static void check_serving(pl_coordinator *c)
{
    pl_pipeline *p = &c->pipeline;
    const uint64_t now = pl_loop_now(c->loop);
    int64_t rows;
    const pl_sched_sent *oldest = pl_sched_oldest(&c->sched, &rows);
    if (oldest && now - oldest->sent_ns >= c->options.load_timeout_ns + SLOW * predicted_ns(c, rows)) {
        pl_error err = {0};
        pl_fail(&err, PL_ERR_TIMEOUT,
                "frame %" PRIu64 " of epoch %" PRIu64 " has no result after %" PRIu64 " s, though all nodes answer",
                oldest->id, p->epoch, (now - oldest->sent_ns) / PL_SECOND);
        PL_LOG(PL_LOG_WARN, "pipeline is stuck", "error=%s", PL_Q(err.text));
        fail_epoch(c, &err);
        return;
    }
    if (c->tries && now - p->since_ns >= STABLE_NS) {
        c->tries = 0;
        for (int32_t i = 0; i < p->n_stages; i++) p->stages[i].member->failures = 0;
    }
}

void pipeline_tick(pl_coordinator *c)
{
    if (c->pipeline.state == PL_PIPELINE_LOADING) check_loading(c);
    if (c->pipeline.state == PL_PIPELINE_UP) check_serving(c);
}

void pipeline_run(pl_coordinator *c)
{
    if (c->pipeline.state == PL_PIPELINE_DOWN && pl_loop_now(c->loop) >= c->plan_at_ns) {
        pl_arena_reset(&c->step);
        plan(c);
    }
    reconsider(c);
    tell_waiting(c);
    pipeline_frames(c);
}

void pipeline_free(pl_coordinator *c)
{
    pl_buf_fini(&c->pipeline.plan_text);
}
