#include "tests/sim/cluster.h"

#include "engine/base/alloc.h"
#include "engine/graph/op.h"

#include <inttypes.h>
#include <stdio.h>

enum { N_CTX = 96 };

static uint64_t draw(sim_cluster *c, uint64_t low, uint64_t high)
{
    return low + pl_rng_below(&c->rng, high - low + 1);
}
static bool chance(sim_cluster *c, double p)
{
    return pl_rng_f64(&c->rng) < p;
}

static bool allow_all(void *user, const pl_key *peer)
{
    (void)user;
    (void)peer;
    return true;
}

/* What everybody is doing, for a failure's message. */
static const char *describe(const sim_cluster *c)
{
    static char text[4096];
    size_t n = 0;
#define SAY(...) n += (size_t)snprintf(text + n, n < sizeof text ? sizeof text - n : 0, __VA_ARGS__)
    pl_error err = {0};
    pl_status s = pl_coordinator_health(c->coordinator, &err);
    SAY("seed 0x%" PRIx64 ", at %.3f s, event %" PRIu64
        ", faults: %d kills %d leaves %d pauses %d cuts %d breaks; coordinator: %s %s\n",
        c->o.seed, (double)pl_sim_now(c->sim) / 1e9, pl_sim_events(c->sim), c->kills, c->leaves, c->pauses, c->cuts,
        c->breaks, pl_status_name(s), s == PL_OK ? "" : err.text);
    for (int i = 0; i < c->n_machines && n < sizeof text; i++) {
        const sim_machine *m = &c->machines[i];
        if (!m->alive) {
            SAY("  %s: dead\n", m->name);
            continue;
        }
        pl_node_report r;
        pl_node_get_report(m->node, &r);
        const node_stage *st = m->node->stage;
        SAY("  %s: %s, epoch %" PRIu64 ", layers %d..%d, %" PRIu64 " frames, %" PRIu64 " stale, memory %" PRIu64
            " of %" PRIu64,
            m->name, r.state, r.epoch, r.layer_first, r.layer_end - 1, r.frames, r.stale_frames, r.memory_bytes,
            m->budget);
        if (st)
            SAY(", phase %d, up %d, down %d, recv %" PRIu64 " run %" PRIu64 " credits %d", st->phase, st->up.up,
                st->down.up, st->next_recv, st->next_run, st->down.credits);
        SAY("\n");
    }
    for (int i = 0; i < c->n_clients && n < sizeof text; i++) {
        const sim_client *k = &c->clients[i];
        if (!k->ended) SAY("  request %d: %d of %d tokens, prompt %d\n", i, k->n_got, k->n_expected, k->n_prompt);
    }
#undef SAY
    return text;
}

/* After each event: what must hold whatever has failed. */
static void check_safety(void *user)
{
    sim_cluster *c = user;
    for (int i = 0; i < c->n_machines; i++) {
        const sim_machine *m = &c->machines[i];
        if (!m->alive) continue;
        const char *broken = node_invariants(m->node);
        ck_assert_msg(!broken, "%s: %s\n%s", m->name, broken, describe(c));
        ck_assert_msg(fake_compute_stage_bytes(m->compute) <= m->budget,
                      "%s holds %" PRIu64 " bytes, its budget is %" PRIu64 "\n%s", m->name,
                      fake_compute_stage_bytes(m->compute), m->budget, describe(c));
    }
}

/* --- Machines --- */

void sim_restart(sim_machine *m)
{
    sim_cluster *c = m->c;
    pl_error err = {0};
    if (m->alive) return;
    m->lives++;
    m->has_left = m->paused = false;
    ck_ok(pl_sim_process_new(&m->process, c->sim, m->name, &err), err);
    pl_loop *loop = pl_sim_loop(m->process);
    bool odd = c->o.odd_profile && m->index == c->n_machines - 1;
    m->compute = fake_compute_new(loop, &(fake_compute_options){.disk = &m->disk,
                                                                .profile = odd ? c->o.odd_profile : NULL,
                                                                .memory_total = m->budget,
                                                                .run_ns = c->o.run_ns,
                                                                .row_layer_ns = c->o.row_layer_ns});
    ck_assert_ptr_nonnull(m->compute);
    pl_node_options o = {.name = m->name,
                         .budget_bytes = m->budget,
                         .seed = (uint64_t)(m->index + 1) << 32 | m->lives,
                         .blob_bytes = 4096};
    char path[160];
    if (c->o.trace_dir) {
        snprintf(path, sizeof path, "%s/%s.jsonl", c->o.trace_dir, m->name);
        o.trace_path = path;
    }
    ck_ok(pl_node_new(&m->node, loop, m->compute, &o, &err), err);
    ck_ok(pl_net_sim_new(&m->net, m->process, &(pl_sim_net_options){.key = &m->key, .allowed = allow_all},
                         &pl_node_net_events, m->node, &err),
          err);
    ck_ok(pl_net_listen(m->net, m->address, &err), err);
    pl_node_start(m->node, m->net);
    if (m->joins) ck_ok(pl_node_join(m->node, "sim://coordinator", &c->key, &err), err);
    m->alive = true;
}

static void free_machine(sim_machine *m)
{
    m->alive = false;
    m->compute->vt->free(m->compute);
    pl_node_free(m->node);
    pl_net_free(m->net);
    pl_sim_process_free(m->process);
    m->node = NULL;
}

void sim_kill(sim_machine *m, bool silent)
{
    if (!m->alive) return;
    pl_sim_kill(m->process, silent);
    free_machine(m);
}

static void on_left(void *user)
{
    ((sim_machine *)user)->has_left = true;
}

void sim_leave(sim_machine *m)
{
    if (m->alive) pl_node_leave(m->node, on_left, m);
}

/* Processes of nodes that have left end. */
static void reap(sim_cluster *c)
{
    for (int i = 0; i < c->n_machines; i++)
        if (c->machines[i].alive && c->machines[i].has_left) sim_kill(&c->machines[i], false);
}

/* Budgets that make the plan use `split` nodes: each of these can hold its part and, without `tight`, half a layer
 * more. */
static void draw_budgets(sim_cluster *c)
{
    int32_t n_layer = c->o.layers, split = c->o.split;
    int32_t n_blocks = c->o.n_seqs * ((N_CTX + PL_KV_PAGE - 1) / PL_KV_PAGE);
    uint64_t largest = 0;
    int order[SIM_MACHINES_MAX];
    for (int i = 0; i < c->n_machines; i++) order[i] = i;
    for (int i = c->n_machines - 1; i > 0; i--) {
        int j = (int)draw(c, 0, (uint64_t)i), t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
    for (int32_t i = 0; i < split; i++) {
        int32_t first = n_layer * i / split, end = n_layer * (i + 1) / split;
        pl_stage_shape shape = {.layer_first = first,
                                .layer_end = end,
                                .n_blocks = n_blocks,
                                .n_ctx = N_CTX,
                                .n_seqs = c->o.n_seqs + c->o.n_kept,
                                .n_rows = c->o.n_rows,
                                .n_threads = 1,
                                .cache = PL_CACHE_BOTH(PL_TYPE_F16)};
        pl_stage_memory m = pl_model_stage_memory(c->model.profile, &shape);
        uint64_t need =
            m.weights + m.kv + m.compute +
            node_link_bytes(c->o.credits, c->o.n_rows, pl_model_n_embd(c->model.profile), first == 0, end == n_layer);
        uint64_t layer = pl_model_unit_bytes(c->model.profile, first);
        c->machines[order[i]].budget = need + (c->o.tight ? 64 : layer / 2);
        if (need > largest) largest = need;
    }
    for (int i = split; i < c->n_machines; i++)
        c->machines[order[i]].budget = c->o.spare ? largest + largest / 4 : draw(c, 20000, largest);
}

/* Right for a while, then wrong; now and then nothing. */
static int32_t guess(void *user, const pl_request *r, int32_t *out, int32_t max)
{
    sim_cluster *c = user;
    int32_t n_tokens, n_vocab = pl_model_n_vocab(c->model.profile);
    (void)pl_request_tokens(r, &n_tokens);
    for (int i = 0; i < c->n_clients; i++) {
        const sim_client *k = &c->clients[i];
        if (k->request != r || pl_rng_below(&c->guess_rng, 8) == 0) continue;
        int32_t right = (int32_t)pl_rng_below(&c->guess_rng, (uint64_t)max + 2);
        for (int32_t j = 0; j < max; j++) {
            int32_t at = n_tokens - k->n_prompt + j;
            out[j] = j < right && at < k->n_expected ? k->expected[at]
                                                     : (int32_t)pl_rng_below(&c->guess_rng, (uint64_t)n_vocab);
        }
        return max;
    }
    return 0;
}

sim_cluster *sim_start_with(sim_options o)
{
    sim_cluster *c = pl_calloc(1, sizeof *c);
    pl_error err = {0};
    ck_assert_ptr_nonnull(c);
    if (!o.nodes) o.nodes = 3;
    if (!o.layers) o.layers = 6;
    if (!o.split) o.split = 1;
    if (!o.grace_ns) o.grace_ns = 3600 * SIM_S;
    if (!o.n_seqs) o.n_seqs = 4;
    if (!o.n_rows) o.n_rows = 16;
    if (!o.credits) o.credits = 4;
    ck_assert_int_le(o.nodes, SIM_MACHINES_MAX);
    c->o = o;
    pl_rng_seed(&c->rng, o.seed);
    ck_ok(pl_sim_new(&c->sim, pl_rng_u64(&c->rng),
                     &(pl_sim_options){.dial_failure = o.dial_failure, .after_event = check_safety, .user = c}, &err),
          err);
    sim_model_init(&c->model, o.layers, o.seed);

    memset(c->key.b, 0xc0, sizeof c->key.b);
    ck_ok(pl_sim_process_new(&c->process, c->sim, "coordinator", &err), err);
    pl_coordinator_model model = {.gguf = c->model.gguf,
                                  .profile = c->model.profile,
                                  .hashes = c->model.hashes,
                                  .name = "simulated",
                                  .is_eog = hash_model_is_eog};
    pl_rng_seed(&c->guess_rng, o.seed);
    pl_coordinator_options options = {.n_seqs = o.n_seqs,
                                      .n_kept = o.n_kept ? o.n_kept : -1,
                                      .n_draft = o.n_draft,
                                      .guess = guess,
                                      .guess_user = c,
                                      .n_ctx = N_CTX,
                                      .n_rows = o.n_rows,
                                      .credits = o.credits,
                                      .unplaced_grace_ns = o.grace_ns,
                                      .seed = o.seed | 1};
    ck_ok(pl_coordinator_new(&c->coordinator, pl_sim_loop(c->process), &model, &options, &err), err);
    ck_ok(pl_net_sim_new(&c->net, c->process, &(pl_sim_net_options){.key = &c->key, .allowed = allow_all},
                         &pl_coordinator_net_events, c->coordinator, &err),
          err);
    ck_ok(pl_net_listen(c->net, "sim://coordinator", &err), err);
    pl_coordinator_start(c->coordinator, c->net);

    c->n_machines = o.nodes;
    for (int i = 0; i < c->n_machines; i++) {
        sim_machine *m = &c->machines[i];
        m->c = c;
        m->index = i;
        snprintf(m->name, sizeof m->name, "n%d", i);
        snprintf(m->address, sizeof m->address, "sim://n%d", i);
        memset(m->key.b, i + 1, sizeof m->key.b);
        m->joins = o.joins == 1 || (o.joins == 0 && chance(c, 0.5));
    }
    draw_budgets(c);
    for (int i = 0; i < c->n_machines; i++) {
        sim_restart(&c->machines[i]);
        if (!c->machines[i].joins)
            ck_ok(pl_coordinator_add_node(c->coordinator, c->machines[i].address, &c->machines[i].key, &err), err);
    }
    return c;
}

void sim_stop(sim_cluster *c)
{
    pl_coordinator_free(c->coordinator);
    pl_net_free(c->net);
    pl_sim_process_free(c->process);
    for (int i = 0; i < c->n_machines; i++) {
        if (c->machines[i].alive) free_machine(&c->machines[i]);
        fake_disk_fini(&c->machines[i].disk);
    }
    for (int i = 0; i < c->n_clients; i++) {
        pl_free(c->clients[i].prompt);
        pl_free(c->clients[i].expected);
    }
    sim_model_fini(&c->model);
    pl_sim_free(c->sim);
    pl_free(c);
}

/* --- Clients --- */

static void on_token(void *user, const pl_sampled *token)
{
    sim_client *k = user;
    ck_assert_msg(!k->ended, "request %d: a token after the end\n%s", k->index, describe(k->c));
    ck_assert_msg(k->n_got < k->n_expected, "request %d: token %d, only %d were due\n%s", k->index, k->n_got,
                  k->n_expected, describe(k->c));
    ck_assert_msg(token->token == k->expected[k->n_got], "request %d: token %d is %d, not %d\n%s", k->index, k->n_got,
                  token->token, k->expected[k->n_got], describe(k->c));
    k->n_got++;
}

static void on_end(void *user, pl_finish why, const pl_error *err)
{
    sim_client *k = user;
    ck_assert_msg(!k->ended, "request %d ended twice\n%s", k->index, describe(k->c));
    k->ended = true;
    k->ended_ns = pl_sim_now(k->c->sim);
    k->request = NULL;
    k->why = why;
    if (err) k->err = *err;
    k->c->n_open--;
    ck_assert_msg(why != PL_FINISH_ERROR || k->may_fail, "request %d: %s\n%s", k->index, err ? err->text : "no reason",
                  describe(k->c));
    ck_assert_msg(why != PL_FINISH_CANCELLED || k->cancelled, "request %d was cancelled by nobody\n%s", k->index,
                  describe(k->c));
}

static const pl_request_events request_events = {on_token, on_end};

sim_client *sim_request_with(sim_cluster *c, sim_request_options o)
{
    ck_assert_int_lt(c->n_clients, SIM_CLIENTS_MAX);
    sim_client *k = &c->clients[c->n_clients];
    *k = (sim_client){.c = c, .index = c->n_clients++, .ignore_eos = o.ignore_eos, .may_fail = o.may_fail};
    k->n_prompt = o.n_prompt ? o.n_prompt : (int32_t)draw(c, 1, 40);
    k->max_tokens = o.max_tokens ? o.max_tokens : (int32_t)draw(c, 1, 48);
    k->prompt = pl_alloc((size_t)k->n_prompt * sizeof *k->prompt);
    k->expected = pl_alloc((size_t)k->max_tokens * sizeof *k->expected);
    ck_assert(k->prompt && k->expected);
    for (int32_t i = 0; i < k->n_prompt; i++)
        k->prompt[i] = (int32_t)draw(c, 0, (uint64_t)pl_model_n_vocab(c->model.profile) - 1);
    /* Where sequences are kept, many begin like another, or go on where it is. */
    if (c->o.n_kept && k->index && pl_rng_below(&c->guess_rng, 4)) {
        const sim_client *like = &c->clients[pl_rng_below(&c->guess_rng, (uint64_t)k->index)];
        int32_t n = (int32_t)pl_rng_below(&c->guess_rng, (uint64_t)(like->n_prompt + like->n_got) + 1);
        for (int32_t i = 0; i < n && i < k->n_prompt; i++)
            k->prompt[i] = i < like->n_prompt ? like->prompt[i] : like->expected[i - like->n_prompt];
    }
    k->params = pl_sample_defaults();
    k->params.temperature = o.temperature;
    k->params.n_logprobs = -1;
    k->params.seed = pl_rng_u64(&c->rng);
    k->n_expected = hash_oracle(c->model.profile, &c->model.weights, &k->params, k->ignore_eos, k->prompt, k->n_prompt,
                                k->max_tokens, N_CTX, k->expected, &k->stops);
    pl_request_params p = {.tokens = k->prompt,
                           .n_tokens = k->n_prompt,
                           .max_tokens = k->max_tokens,
                           .ignore_eos = k->ignore_eos,
                           .has_seed = true,
                           .sample = k->params};
    pl_error err = {0};
    pl_status s = pl_coordinator_submit(c->coordinator, &p, &request_events, k, &k->request, &err);
    if (s == PL_OK) {
        c->n_open++;
        return k;
    }
    /* Who asks while the model fits nowhere is told at once. */
    ck_assert_msg(s == PL_ERR_BUDGET && pl_coordinator_health(c->coordinator, NULL) == PL_ERR_BUDGET,
                  "request %d was refused: %s\n%s", k->index, err.text, describe(c));
    pl_free(k->prompt);
    pl_free(k->expected);
    c->n_clients--;
    return NULL;
}

sim_client *sim_request_drawn(sim_cluster *c)
{
    return sim_request(c, .ignore_eos = chance(c, 0.4), .temperature = chance(c, 0.5) ? 0.8f : 0);
}

void sim_cancel(sim_client *k)
{
    if (!k->request) return;
    k->cancelled = true;
    pl_coordinator_cancel(k->c->coordinator, k->request);
}

/* --- Time and faults --- */

static void run_until(sim_cluster *c, uint64_t at)
{
    while (pl_sim_now(c->sim) < at) {
        uint64_t slice = pl_sim_now(c->sim) + 100 * SIM_MS;
        pl_sim_run_until(c->sim, slice < at ? slice : at);
        reap(c);
    }
}

void sim_run(sim_cluster *c, uint64_t ns)
{
    run_until(c, pl_sim_now(c->sim) + ns);
}

static sim_machine *any_machine(sim_cluster *c)
{
    return &c->machines[draw(c, 0, (uint64_t)c->n_machines - 1)];
}

/* One that lives, or one that does not; any, when there is none. */
static sim_machine *any_that(sim_cluster *c, bool alive)
{
    sim_machine *m = any_machine(c);
    for (int i = 0; i < c->n_machines && m->alive != alive; i++) m = &c->machines[(m->index + 1) % c->n_machines];
    return m;
}

/* Two different living processes, of which one may be the coordinator; false when there are none. */
static bool any_pair(sim_cluster *c, pl_sim_process **a, pl_sim_process **b)
{
    sim_machine *m = any_machine(c), *o = any_machine(c);
    if (!m->alive) return false;
    *a = m->process;
    *b = c->process;
    if (o != m && o->alive && chance(c, 0.6)) *b = o->process;
    return true;
}

typedef struct fault_mix {
    double kill, leave, pause, cut, broken, restart, heal, request, cancel, pause_coordinator;
} fault_mix;

static void one_fault(sim_cluster *c, const fault_mix *mix)
{
    double sum = mix->kill + mix->leave + mix->pause + mix->cut + mix->broken + mix->restart + mix->heal +
                 mix->request + mix->cancel + mix->pause_coordinator;
    double at = pl_rng_f64(&c->rng) * sum;
    sim_machine *m = any_that(c, true);
    pl_sim_process *a, *b;
#define CASE(weight) if (at >= 0 && (at -= mix->weight) < 0)
    CASE(kill)
    {
        if (m->alive) c->kills++;
        sim_kill(m, chance(c, 0.4));
        return;
    }
    CASE(leave)
    {
        if (m->alive) c->leaves++;
        sim_leave(m);
        return;
    }
    CASE(pause)
    {
        if (!m->alive) return;
        if (m->paused)
            pl_sim_resume(m->process);
        else
            pl_sim_pause(m->process);
        m->paused = !m->paused;
        c->pauses++;
        return;
    }
    CASE(cut)
    {
        if (!any_pair(c, &a, &b)) return;
        pl_sim_cut(a, b);
        if (chance(c, 0.5)) pl_sim_cut(b, a);
        c->cuts++;
        return;
    }
    CASE(broken)
    {
        if (!any_pair(c, &a, &b)) return;
        pl_sim_break(a, b);
        c->breaks++;
        return;
    }
    CASE(restart)
    {
        sim_restart(any_that(c, false));
        return;
    }
    CASE(heal)
    {
        pl_sim_heal_all(c->sim);
        for (int i = 0; i < c->n_machines; i++) c->machines[i].paused = false;
        return;
    }
    CASE(request)
    {
        if (c->n_clients < SIM_CLIENTS_MAX - 1) sim_request_drawn(c); /* the last place is for the calm */
        return;
    }
    CASE(cancel)
    {
        if (c->n_clients) sim_cancel(&c->clients[draw(c, 0, (uint64_t)c->n_clients - 1)]);
        return;
    }
    /* A short stop of the coordinator: shorter and longer than its nodes' patience. */
    pl_sim_pause(c->process);
    run_until(c, pl_sim_now(c->sim) + draw(c, 100, 3000) * SIM_MS);
    pl_sim_resume(c->process);
    c->pauses++;
#undef CASE
}

void sim_run_with_faults(sim_cluster *c, uint64_t ns)
{
    uint64_t end = pl_sim_now(c->sim) + ns;
    /* Each seed has its own weather: from one fault in two seconds to ten in one, of few kinds or of all. Clients come
     * all the time, so that there is always something to lose. */
    uint64_t mean_ms = draw(c, 0, 2) == 0 ? draw(c, 50, 200) : draw(c, 200, 900);
    fault_mix mix = {.restart = 1.5, .heal = 0.7, .request = 3, .cancel = 0.2};
    if (chance(c, 0.9)) mix.kill = chance(c, 0.5) ? 3 : 1;
    if (chance(c, 0.3)) mix.leave = 0.5;
    if (chance(c, 0.3)) mix.pause = 1;
    if (chance(c, 0.4)) mix.cut = 1;
    if (chance(c, 0.4)) mix.broken = 1;
    if (chance(c, 0.2)) mix.pause_coordinator = 0.3;
    while (pl_sim_now(c->sim) < end) {
        uint64_t next = pl_sim_now(c->sim) + draw(c, 1, 2 * mean_ms) * SIM_MS;
        run_until(c, next < end ? next : end);
        if (next < end) one_fault(c, &mix);
    }
}

void sim_heal(sim_cluster *c)
{
    pl_sim_heal_all(c->sim);
    pl_sim_set_dial_failure(c->sim, 0);
    for (int i = 0; i < c->n_machines; i++) {
        c->machines[i].paused = false;
        if (c->machines[i].alive && c->machines[i].node->leaving) sim_kill(&c->machines[i], false);
        sim_restart(&c->machines[i]);
    }
}

static bool requests_open(void *user)
{
    return ((sim_cluster *)user)->n_open > 0;
}

void sim_run_until_idle(sim_cluster *c, uint64_t limit_ns)
{
    bool done = !c->n_open || pl_sim_run_while(c->sim, requests_open, c, pl_sim_now(c->sim) + limit_ns);
    ck_assert_msg(done, "%d requests have not ended\n%s", c->n_open, describe(c));
}

static bool unhealthy(void *user)
{
    return pl_coordinator_health(((sim_cluster *)user)->coordinator, NULL) != PL_OK;
}

void sim_run_until_healthy(sim_cluster *c, uint64_t limit_ns)
{
    bool done = pl_sim_run_while(c->sim, unhealthy, c, pl_sim_now(c->sim) + limit_ns);
    ck_assert_msg(done, "no pipeline\n%s", describe(c));
}

void ck_nothing_is_lost(sim_cluster *c)
{
    sim_run(c, 2 * SIM_S); /* what is under way arrives */
    const pl_pipeline *p = &c->coordinator->pipeline;
    if (p->state != PL_PIPELINE_UP || c->n_open) return; /* a node joined that makes a better plan */
    ck_assert_msg(p->credits == c->o.credits, "the coordinator has %d of %d credits\n%s", p->credits, c->o.credits,
                  describe(c));
    int n_ready = 0;
    for (int i = 0; i < c->n_machines; i++) {
        const node_stage *s = c->machines[i].alive ? c->machines[i].node->stage : NULL;
        if (!s || s->epoch != p->epoch) continue;
        n_ready += s->phase == NODE_PHASE_READY;
        ck_assert_msg(s->next_recv == s->next_run, "%s holds frames\n%s", c->machines[i].name, describe(c));
        ck_assert_msg(s->down.credits == s->n_slots, "%s has %d of %d credits\n%s", c->machines[i].name,
                      s->down.credits, s->n_slots, describe(c));
    }
    ck_assert_msg(n_ready == p->n_stages, "%d of %d stages are ready\n%s", n_ready, p->n_stages, describe(c));
    ck_assert_msg(c->coordinator->sched.n_open == 0, "the scheduler still has %d requests\n%s",
                  c->coordinator->sched.n_open, describe(c));
}

void ck_streams_equal_oracle(const sim_cluster *c)
{
    for (int i = 0; i < c->n_clients; i++) {
        const sim_client *k = &c->clients[i];
        if (k->cancelled || (k->ended && k->why == PL_FINISH_ERROR && k->may_fail)) continue;
        ck_assert_msg(k->ended, "request %d has not ended\n%s", i, describe(c));
        ck_assert_msg(k->n_got == k->n_expected, "request %d: %d of %d tokens\n%s", i, k->n_got, k->n_expected,
                      describe(c));
        pl_finish why = k->stops ? PL_FINISH_STOP : PL_FINISH_LENGTH;
        ck_assert_msg(k->why == why, "request %d ended as %d, not as %d\n%s", i, (int)k->why, (int)why, describe(c));
    }
}

int sim_n_ready(const sim_cluster *c)
{
    int n = 0;
    for (int i = 0; i < c->n_machines; i++) {
        if (!c->machines[i].alive) continue;
        pl_node_report r;
        pl_node_get_report(c->machines[i].node, &r);
        n += strcmp(r.state, "ready") == 0;
    }
    return n;
}
