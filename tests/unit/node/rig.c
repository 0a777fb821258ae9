#include "tests/unit/node/rig.h"

#include "engine/base/alloc.h"

static bool allow_all(void *user, const pl_key *peer)
{
    (void)user;
    (void)peer;
    return true;
}

static void check_invariants(void *user)
{
    rig *r = user;
    const char *broken = r->node ? node_invariants(r->node) : NULL;
    ck_assert_msg(!broken, "%s", broken);
}

void rig_init(rig *r, const rig_options *options)
{
    pl_error err = {0};
    memset(r, 0, sizeof *r);
    ck_ok(pl_sim_new(&r->sim, 7, &(pl_sim_options){.after_event = check_invariants, .user = r}, &err), err);
    sim_model_init(&r->model, RIG_LAYERS, 1);
    memset(r->key.b, 'n', sizeof r->key.b);
    ck_ok(pl_sim_process_new(&r->process, r->sim, "node", &err), err);
    pl_loop *loop = pl_sim_loop(r->process);
    r->compute = fake_compute_new(loop, &(fake_compute_options){.disk = &r->disk, .memory_total = UINT64_C(1) << 30});
    ck_assert_ptr_nonnull(r->compute);
    pl_node_options o = {.name = "n1",
                         .budget_bytes = options && options->budget ? options->budget : UINT64_C(1) << 30,
                         .seed = 5,
                         .blob_bytes = options && options->blob_bytes ? options->blob_bytes : 1000};
    if (options) o.trace_path = options->trace_path;
    ck_ok(pl_node_new(&r->node, loop, r->compute, &o, &err), err);
    ck_ok(pl_net_sim_new(&r->net, r->process, &(pl_sim_net_options){.key = &r->key, .allowed = allow_all},
                         &pl_node_net_events, r->node, &err),
          err);
    ck_ok(pl_net_listen(r->net, "sim://node", &err), err);
    pl_node_start(r->node, r->net);
    pl_key k;
    memset(k.b, 'c', sizeof k.b);
    actor_init(&r->coordinator, r->sim, "coordinator", &k);
    memset(k.b, 'u', sizeof k.b);
    actor_init(&r->up, r->sim, "up", &k);
    memset(k.b, 'd', sizeof k.b);
    actor_init(&r->down, r->sim, "down", &k);
    r->coordinator.serve = &r->model;
}

void rig_fini(rig *r)
{
    pl_compute *c = r->compute;
    c->vt->free(c);
    pl_node_free(r->node);
    r->node = NULL;
    pl_net_free(r->net);
    pl_sim_process_free(r->process);
    actor_fini(&r->coordinator);
    actor_fini(&r->up);
    actor_fini(&r->down);
    sim_model_fini(&r->model);
    fake_disk_fini(&r->disk);
    pl_sim_free(r->sim);
}

void rig_run(rig *r, uint64_t ns)
{
    pl_sim_run_until(r->sim, pl_sim_now(r->sim) + ns);
}

static bool no_link(void *user)
{
    return ((actor *)user)->link == NULL;
}

void rig_join(rig *r)
{
    actor *a = &r->coordinator;
    actor_dial(a, "sim://node", &r->key);
    ck_assert(pl_sim_run_while(r->sim, no_link, a, pl_sim_now(r->sim) + S));
    Paceline__Hello h = PACELINE__HELLO__INIT;
    h.role = PACELINE__HELLO__ROLE__COORDINATOR;
    h.protocol = PL_PROTOCOL;
    h.name = (char *)"c1";
    h.incarnation = 1;
    actor_send(a, a->link, 0, ENVELOPE(HELLO, hello, &h), NULL);
    const actor_message *m = actor_take(a, PACELINE__ENVELOPE__BODY_HELLO, S);
    ck_assert_ptr_nonnull(m);
    ck_assert_int_eq(m->e.m->hello->role, PACELINE__HELLO__ROLE__NODE);
    r->to_node = a->link;
    Paceline__Welcome w = PACELINE__WELCOME__INIT;
    w.node_id = 1;
    w.heartbeat_ns = 100 * MS;
    w.dead_after_ns = 1 * S;
    w.lease_ns = 5 * S;
    actor_send(a, a->link, 0, ENVELOPE(WELCOME, welcome, &w), NULL);
    rig_run(r, 50 * MS);
    pl_node_report report;
    pl_node_get_report(r->node, &report);
    ck_assert_str_eq(report.state, "joined");
}

void rig_plan(rig *r, int32_t first, int32_t end)
{
    Paceline__Load *l = &r->plan;
    size_t index[128];
    paceline__load__init(l);
    l->header_hash = (ProtobufCBinaryData){PL_HASH_SIZE, r->model.header_hash.b};
    l->header_bytes = r->model.header.size;
    l->model = (char *)"simulated";
    l->layer_first = (uint32_t)first;
    l->layer_end = (uint32_t)end;
    l->n_layer = RIG_LAYERS;
    l->n_blocks = 16;
    l->n_ctx = 128;
    l->n_seqs = 4;
    l->n_rows = 32;
    l->kv_type = l->kv_type_v = PL_TYPE_F32;
    l->wire_type = PL_TYPE_F32;
    l->credits = 3;
    bool has_up = first > 0, has_down = end < RIG_LAYERS;
    l->stage = has_up;
    l->n_stages = (uint32_t)(1 + has_up + has_down);
    size_t n = pl_model_stage_tensors(r->model.profile, first, end, NULL);
    ck_assert_uint_le(n, 128);
    pl_model_stage_tensors(r->model.profile, first, end, index);
    for (size_t i = 0; i < n; i++) {
        paceline__tensor_ref__init(&r->refs[i]);
        r->refs[i].index = (uint32_t)index[i];
        r->refs[i].hash = (ProtobufCBinaryData){PL_HASH_SIZE, r->model.hashes[index[i]].b};
        r->ref_list[i] = &r->refs[i];
    }
    l->tensors = r->ref_list;
    l->n_tensors = n;
    paceline__neighbour__init(&r->plan_up);
    paceline__neighbour__init(&r->plan_down);
    r->plan_up.key = (ProtobufCBinaryData){PL_KEY_SIZE, r->up.key.b};
    r->plan_up.address = (char *)"sim://up";
    r->plan_down.key = (ProtobufCBinaryData){PL_KEY_SIZE, r->down.key.b};
    r->plan_down.address = (char *)"sim://down";
    if (has_up) l->upstream = &r->plan_up;
    if (has_down) l->downstream = &r->plan_down;
}

void rig_load(rig *r, uint64_t epoch)
{
    actor_send(&r->coordinator, r->to_node, epoch, ENVELOPE(LOAD, load, &r->plan), NULL);
}

void rig_neighbour(rig *r, actor *a, Paceline__Hello__Role role, uint64_t epoch)
{
    a->link = NULL;
    actor_dial(a, "sim://node", &r->key);
    ck_assert(pl_sim_run_while(r->sim, no_link, a, pl_sim_now(r->sim) + S));
    Paceline__Hello h = PACELINE__HELLO__INIT;
    h.role = role;
    h.protocol = PL_PROTOCOL;
    actor_send(a, a->link, epoch, ENVELOPE(HELLO, hello, &h), NULL);
}

void rig_ready(rig *r, uint64_t epoch, int32_t first, int32_t end)
{
    rig_plan(r, first, end);
    rig_load(r, epoch);
    if (first > 0) rig_neighbour(r, &r->up, PACELINE__HELLO__ROLE__UPSTREAM, epoch);
    if (end < RIG_LAYERS) rig_neighbour(r, &r->down, PACELINE__HELLO__ROLE__DOWNSTREAM, epoch);
    const actor_message *m = actor_take(&r->coordinator, PACELINE__ENVELOPE__BODY_READY, 20 * S);
    ck_assert_msg(m != NULL, "not ready");
    ck_assert_uint_eq(m->e.m->epoch, epoch);
}

static hash_stage *stage_before(rig *r, int32_t end)
{
    pl_stage_shape shape = {
        .layer_first = 0, .layer_end = end, .n_blocks = 16, .n_ctx = 128, .n_seqs = 4, .n_rows = 128, .n_threads = 1};
    return hash_stage_new(&shape, r->model.profile, &r->model.weights);
}

/* What the stages before would give for rows 0..pos+n-1; the last n of them. */
static pl_part *hidden(rig *r, int32_t pos, int32_t n)
{
    int32_t n_embd = pl_model_n_embd(r->model.profile), all = pos + n;
    hash_stage *s = stage_before(r, (int32_t)r->plan.layer_first);
    int32_t blocks[] = {0, 1, 2, 3};
    pl_kv_op ops[] = {{.kind = PL_KV_OPEN}, {.kind = PL_KV_EXTEND, .blocks = blocks, .n_blocks = 4}};
    pl_row *rows = pl_calloc((size_t)all, sizeof *rows);
    float *out = pl_calloc((size_t)all * (size_t)n_embd, sizeof *out);
    for (int32_t i = 0; i < all; i++) rows[i] = (pl_row){.pos = i, .token = i + 1};
    pl_error err = {0};
    ck_ok(hash_stage_run(s, &(pl_micro_batch){.ops = ops, .n_ops = 2, .rows = rows, .n_rows = all, .hidden_out = out},
                         &err),
          err);
    pl_part *p = pl_part_copy(
        (pl_bytes){(uint8_t *)(out + (size_t)pos * (size_t)n_embd), (size_t)n * (size_t)n_embd * sizeof *out});
    ck_assert_ptr_nonnull(p);
    pl_free(rows);
    pl_free(out);
    hash_stage_free(s);
    return p;
}

void rig_send_frame(rig *r, pl_link *link, uint64_t epoch, uint64_t id, int32_t pos, int32_t n, bool logits)
{
    int32_t seq[64] = {0}, position[64], token[64], blocks[] = {0, 1, 2, 3}, prompt[65];
    uint32_t last = (uint32_t)n - 1;
    ck_assert_int_le(n, 64);
    for (int32_t i = 0; i < n; i++) {
        position[i] = pos + i;
        token[i] = pos + i + 1;
    }
    for (int32_t i = 0; i <= n; i++) prompt[i] = i + 1;
    Paceline__Frame f = PACELINE__FRAME__INIT;
    Paceline__Params params = PACELINE__PARAMS__INIT;
    Paceline__Sequence q = PACELINE__SEQUENCE__INIT;
    Paceline__KvOp open = PACELINE__KV_OP__INIT, extend = PACELINE__KV_OP__INIT, *ops[] = {&open, &extend};
    Paceline__TensorDesc t = PACELINE__TENSOR_DESC__INIT, *tensors[] = {&t};
    uint64_t ne[2] = {(uint64_t)pl_model_n_embd(r->model.profile), (uint64_t)n};
    params.n_logprobs = -1;
    q.request_id = (char *)"r1";
    q.prompt = prompt;
    /* Without logits the token behind these is known too, and comes with the next frame. */
    q.n_prompt = (size_t)n + !logits;
    q.params = &params;
    q.max_tokens = 8;
    open.kind = PACELINE__KV_OP__KIND__OPEN;
    open.sequence = &q;
    extend.kind = PACELINE__KV_OP__KIND__EXTEND;
    extend.blocks = blocks;
    extend.n_blocks = 4;
    f.id = id;
    if (pos == 0) {
        f.ops = ops;
        f.n_ops = 2;
    }
    f.seq = seq;
    f.pos = position;
    f.token = token;
    f.n_seq = f.n_pos = f.n_token = (size_t)n;
    if (logits) {
        f.logits = &last;
        f.n_logits = 1;
    }
    pl_part *part = NULL;
    if (r->plan.layer_first > 0) {
        t.name = (char *)"hidden";
        t.type = PL_TYPE_F32;
        t.ne = ne;
        t.n_ne = 2;
        f.tensors = tensors;
        f.n_tensors = 1;
        part = hidden(r, pos, n);
    }
    actor_send(&r->coordinator, link, epoch, ENVELOPE(FRAME, frame, &f), part);
}
