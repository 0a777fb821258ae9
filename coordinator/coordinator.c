#include "coordinator/coordinator_impl.h"
#include "coordinator/guess.h"

#include "engine/base/alloc.h"
#include "engine/base/log.h"

#include <inttypes.h>

/* --- Options --- */

static int32_t or_default(int32_t given, int32_t otherwise)
{
    return given ? given : otherwise;
}
static uint64_t ns_or_default(uint64_t given, uint64_t otherwise)
{
    return given ? given : otherwise;
}

static pl_status check_range(const char *name, int64_t value, int64_t low, int64_t high, pl_error *err)
{
    if (value >= low && value <= high) return PL_OK;
    return pl_fail(err, PL_ERR_INVALID, "%s is %" PRId64 ", not %" PRId64 " to %" PRId64, name, value, low, high);
}

static pl_status fill_options(pl_coordinator *c, const pl_coordinator_options *given, pl_error *err)
{
    pl_coordinator_options *o = &c->options;
    *o = *given;
    int32_t n_ctx_train = pl_model_n_ctx_train(c->model.profile);
    o->n_seqs = or_default(o->n_seqs, 4);
    o->n_ctx = or_default(o->n_ctx, n_ctx_train > 0 && n_ctx_train < 4096 ? n_ctx_train : 4096);
    o->n_rows = or_default(o->n_rows, 512);
    o->credits = or_default(o->credits, 4);
    o->queue_max = or_default(o->queue_max, 256);
    o->min_nodes = or_default(o->min_nodes, 1);
    if (!o->has_cache) o->cache = PL_CACHE_BOTH(PL_TYPE_F16);
    /* What a node's check of a plan accepts, so that nonsense is refused here, with its name. */
    PL_TRY(check_range("n_seqs", o->n_seqs, 1, 1024, err));
    o->n_kept = o->n_kept < 0 ? 0 : or_default(o->n_kept, o->n_seqs);
    PL_TRY(check_range("n_kept", o->n_kept, 0, 1024, err));
    PL_TRY(check_range("n_draft", o->n_draft, 0, PL_DRAFT_MAX, err));
    PL_TRY(check_range("n_ctx", o->n_ctx, 2, 16 << 20, err));
    PL_TRY(check_range("n_rows", o->n_rows, 1, 65536, err));
    PL_TRY(check_range("credits", o->credits, 1, 64, err));
    PL_TRY(check_range("queue_max", o->queue_max, 1, 1 << 20, err));
    PL_TRY(check_range("min_nodes", o->min_nodes, 1, PL_PLACE_NODES_MAX, err));
    PL_TRY(check_range("objective", o->objective, PL_OBJECTIVE_AUTO, PL_OBJECTIVE_THROUGHPUT, err));
    PL_TRY(pl_model_cache_check(c->model.profile, o->cache, err));
    c->fixed_blocks = o->n_blocks != 0;
    c->fixed_rows = given->n_rows != 0;
    int64_t all = (int64_t)o->n_seqs * pl_blocks_for(o->n_ctx);
    if (!o->n_blocks) o->n_blocks = all < 1 << 24 ? (int32_t)all : 1 << 24;
    PL_TRY(check_range("n_blocks", o->n_blocks, 1, 1 << 24, err));
    if (o->objective == PL_OBJECTIVE_AUTO)
        o->objective = o->n_seqs > 1 ? PL_OBJECTIVE_THROUGHPUT : PL_OBJECTIVE_LATENCY;
    o->settle_ns = ns_or_default(o->settle_ns, 500 * PL_MS);
    o->heartbeat_ns = ns_or_default(o->heartbeat_ns, 250 * PL_MS);
    o->dead_after_ns = ns_or_default(o->dead_after_ns, 2 * PL_SECOND);
    o->load_timeout_ns = ns_or_default(o->load_timeout_ns, 60 * PL_SECOND);
    o->unplaced_grace_ns = ns_or_default(o->unplaced_grace_ns, 10 * PL_SECOND);
    o->seed = ns_or_default(o->seed, pl_random_seed());
    PL_TRY(check_range("heartbeat_ns", (int64_t)o->heartbeat_ns, (int64_t)PL_MS, (int64_t)(3600 * PL_SECOND), err));
    return check_range("dead_after_ns", (int64_t)o->dead_after_ns, (int64_t)o->heartbeat_ns + 1,
                       (int64_t)(86400 * PL_SECOND), err);
}

/* --- The model as placement sees it --- */

static pl_stage_memory stage_memory(const void *user, const pl_stage_shape *shape)
{
    return pl_model_stage_memory(user, shape);
}

static pl_status describe_model(pl_coordinator *c, pl_error *err)
{
    const pl_model_profile *p = c->model.profile;
    const int32_t n = pl_model_n_layer(p);
    c->unit_bytes = pl_calloc((size_t)n + 1, sizeof *c->unit_bytes);
    c->unit_macs = pl_calloc((size_t)n + 1, sizeof *c->unit_macs);
    if (!c->unit_bytes || !c->unit_macs) return pl_fail(err, PL_ERR_NO_MEMORY, "model of %d layers", n);
    /* The embedding is looked up, not read through, so it costs memory and no time. */
    for (int32_t i = 0; i <= n; i++) {
        int32_t unit = i < n ? i : PL_UNIT_HEAD;
        c->unit_bytes[i] = pl_model_unit_bytes(p, unit);
        c->unit_macs[i] = pl_model_unit_macs(p, unit);
    }
    c->place_model = (pl_place_model){.n_layer = n,
                                      .n_embd = pl_model_n_embd(p),
                                      .unit_bytes = c->unit_bytes,
                                      .unit_macs = c->unit_macs,
                                      .memory = stage_memory,
                                      .user = p};
    const pl_coordinator_options *o = &c->options;
    c->limits = (pl_check_limits){.n_layer = n,
                                  .n_tensors = (int32_t)pl_gguf_n_tensors(c->model.gguf),
                                  .n_ctx = o->n_ctx,
                                  .n_seqs = o->n_seqs + o->n_kept,
                                  .n_rows = o->n_rows,
                                  .n_blocks = o->n_blocks,
                                  .n_vocab = pl_model_n_vocab(p),
                                  .n_logprobs = PL_LOGPROBS_MAX,
                                  .credits = o->credits};
    return PL_OK;
}

/* --- Life --- */

pl_status pl_coordinator_new(pl_coordinator **out, pl_loop *loop, const pl_coordinator_model *model,
                             const pl_coordinator_options *options, pl_error *err)
{
    *out = NULL;
    pl_coordinator *c = pl_calloc(1, sizeof *c);
    if (!c) return pl_fail(err, PL_ERR_NO_MEMORY, "coordinator");
    c->loop = loop;
    c->model = *model;
    c->plan_at_ns = c->settle_from_ns = PL_NEVER;
    pl_arena_init(&c->step, 0);
    pl_fail(&c->down_why, PL_ERR_CLOSED, "no node has joined yet");
    static const pl_coordinator_options defaults;
    pl_status s = fill_options(c, options ? options : &defaults, err);
    if (s != PL_OK) goto fail;
    pl_rng_seed(&c->rng, c->options.seed);
    c->incarnation = pl_rng_u64(&c->rng);
    if ((s = describe_model(c, err)) != PL_OK) goto fail;
    if ((s = catalog_open(&c->catalog, model, err)) != PL_OK) goto fail;
    const pl_sched_options sched = {.n_seqs = c->options.n_seqs,
                                    .n_kept = c->options.n_kept,
                                    .n_ctx = c->options.n_ctx,
                                    .n_vocab = c->limits.n_vocab,
                                    .queue_max = c->options.queue_max,
                                    .is_eog = model->is_eog,
                                    .eog_user = model->user,
                                    .guess = c->options.guess ? c->options.guess : pl_guess_repeated,
                                    .guess_user = c->options.guess_user,
                                    .n_draft = c->options.n_draft};
    if ((s = pl_sched_init(&c->sched, &sched, err)) != PL_OK) goto fail;
    *out = c;
    return PL_OK;
fail:
    pl_coordinator_free(c);
    return s;
}

static void tick(void *user)
{
    pl_coordinator *c = user;
    members_tick(c);
    c->tick_ns = pl_loop_now(c->loop);
    pipeline_tick(c);
    c->rate[c->rate_at++ % PL_RATE_SAMPLES].at_ns = c->tick_ns;
    c->rate[(c->rate_at - 1) % PL_RATE_SAMPLES].n = c->sched.n_emitted;
    coordinator_pump(c);
}

void pl_coordinator_start(pl_coordinator *c, pl_net *net)
{
    pl_error err = {0};
    c->net = net;
    c->tick_ns = pl_loop_now(c->loop);
    if (pl_timer_start(c->loop, c->options.heartbeat_ns, c->options.heartbeat_ns, tick, c, &c->tick, &err) != PL_OK)
        PL_LOG(PL_LOG_ERROR, "no timer for heartbeats", "error=%s", PL_Q(err.text));
    members_start(c);
}

void pl_coordinator_free(pl_coordinator *c)
{
    if (!c) return;
    c->stopping = true;
    if (c->sched.slots) pl_sched_fini(&c->sched);
    pl_timer_stop(c->loop, c->tick);
    pl_timer_stop(c->loop, c->soon);
    members_free(c);
    pipeline_free(c);
    catalog_close(&c->catalog);
    pl_envelope_fini(&c->scratch);
    pl_arena_fini(&c->step);
    pl_free(c->unit_bytes);
    pl_free(c->unit_macs);
    pl_free(c);
}

pl_status pl_coordinator_add_node(pl_coordinator *c, const char *address, const pl_key *node, pl_error *err)
{
    return members_add_target(c, address, node, err);
}

/* --- The pump --- */

void coordinator_pump(pl_coordinator *c)
{
    members_reap(c);
    pipeline_run(c);
    pl_sched_flush(&c->sched);
    /* Functions of the flush may have asked for more; and what they see of the health must be true already. */
    pipeline_frames(c);
    if (!c->changed) return;
    c->changed = false;
    if (c->on_change) c->on_change(c->on_change_user);
}

static void pump_now(void *user)
{
    pl_coordinator *c = user;
    c->soon = NULL;
    coordinator_pump(c);
}

void coordinator_soon(pl_coordinator *c)
{
    if (c->soon || c->stopping) return;
    pl_error err = {0};
    if (pl_timer_start(c->loop, 0, 0, pump_now, c, &c->soon, &err) != PL_OK)
        PL_LOG(PL_LOG_ERROR, "no timer", "error=%s", PL_Q(err.text)); /* the next tick does it */
}

void coordinator_changed(pl_coordinator *c)
{
    c->changed = true;
    coordinator_soon(c);
}

/* --- Requests --- */

pl_status pl_coordinator_submit(pl_coordinator *c, const pl_request_params *params, const pl_request_events *events,
                                void *user, pl_request **out, pl_error *err)
{
    *out = NULL;
    if (c->stopping) return pl_fail(err, PL_ERR_CANCELLED, "the coordinator stops");
    for (int32_t i = pl_model_n_adapters(c->model.profile); i < PL_ADAPTERS_MAX; i++)
        if (params->adapters[i] != 0)
            return pl_fail(err, PL_ERR_INVALID, "adapter %d: the model has %d", i,
                           pl_model_n_adapters(c->model.profile));
    pl_request *r = NULL;
    PL_TRY(pl_request_new(&r, params, c->options.n_ctx, c->limits.n_vocab, &c->rng, err));
    pl_status s = pipeline_refuses(c) ? pl_fail(err, c->down_why.status, "%s", c->down_why.text)
                                      : pl_sched_add(&c->sched, r, err);
    if (s != PL_OK) {
        pl_request_free(r);
        return s;
    }
    r->events = *events;
    r->user = user;
    r->submitted_ns = pl_loop_now(c->loop);
    *out = r;
    coordinator_soon(c);
    return PL_OK;
}

void pl_coordinator_guessed(pl_coordinator *c)
{
    coordinator_soon(c);
}

const char *pl_request_id(const pl_request *r)
{
    return r->id;
}

const int32_t *pl_request_tokens(const pl_request *r, int32_t *n)
{
    *n = r->n_tokens;
    return r->tokens;
}

pl_request_stats pl_request_stats_of(const pl_request *r)
{
    return r->stats;
}

void pl_coordinator_cancel(pl_coordinator *c, pl_request *r)
{
    pl_error err = {0};
    pl_fail(&err, PL_ERR_CANCELLED, "cancelled");
    pl_sched_end(&c->sched, r, PL_FINISH_CANCELLED, &err);
    coordinator_soon(c);
}

void pl_coordinator_on_change(pl_coordinator *c, void (*fn)(void *user), void *user)
{
    c->on_change = fn;
    c->on_change_user = user;
}
