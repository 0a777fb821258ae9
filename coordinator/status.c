/* What people see: health, the plan, and the status as JSON (docs/status.md). */
#include "coordinator/coordinator_impl.h"

#include "transport/curve.h"

#include <inttypes.h>
#include <stdio.h>

static const char *const state_names[] = {
    [PL_PIPELINE_DOWN] = "down", [PL_PIPELINE_LOADING] = "loading", [PL_PIPELINE_UP] = "up"};

static void progress_of(const pl_coordinator *c, uint64_t *done, uint64_t *total)
{
    *done = *total = 0;
    for (int32_t i = 0; i < c->pipeline.n_stages; i++) {
        *done += c->pipeline.stages[i].done_bytes;
        *total += c->pipeline.stages[i].total_bytes;
    }
}

int32_t pl_coordinator_n_ctx(const pl_coordinator *c)
{
    return c->options.n_ctx;
}

pl_status pl_coordinator_health(const pl_coordinator *c, pl_error *err)
{
    if (c->pipeline.state == PL_PIPELINE_UP) return PL_OK;
    if (c->pipeline.state == PL_PIPELINE_DOWN) return pl_fail(err, c->down_why.status, "%s", c->down_why.text);
    const pl_pipeline *p = &c->pipeline;
    int32_t n_ready = 0;
    uint64_t done, total;
    progress_of(c, &done, &total);
    for (int32_t i = 0; i < p->n_stages; i++) n_ready += p->stages[i].ready;
    if (n_ready == 0 && total == 0) return pl_fail(err, PL_ERR_CLOSED, "loading: %d stages", p->n_stages);
    return pl_fail(err, PL_ERR_CLOSED, "loading: %d of %d stages are ready, %" PRIu64 " of %" PRIu64 " bytes", n_ready,
                   p->n_stages, done, total);
}

double status_rate(const pl_coordinator *c)
{
    /* Over the ticks that are kept, five seconds at most: a rate is about now. */
    const uint64_t now = c->tick_ns;
    uint64_t n = c->rate_at < PL_RATE_SAMPLES ? c->rate_at : PL_RATE_SAMPLES;
    for (uint64_t back = n; back > 1; back--) {
        uint32_t at = (c->rate_at - (uint32_t)back) % PL_RATE_SAMPLES;
        if (now - c->rate[at].at_ns > 5 * PL_SECOND) continue;
        uint64_t ns = now - c->rate[at].at_ns;
        return ns ? (double)(c->rate[(c->rate_at - 1) % PL_RATE_SAMPLES].n - c->rate[at].n) * 1e9 / (double)ns : 0;
    }
    return 0;
}

static pl_json *text(const char *s)
{
    return pl_json_string(pl_str_from(s));
}
static pl_json *number(uint64_t n)
{
    return pl_json_int(n > INT64_MAX ? INT64_MAX : (int64_t)n);
}

static const char *member_state(const pl_coordinator *c, const pl_member *m)
{
    switch (m->state) {
    case PL_MEMBER_DIALING: return "dialing";
    case PL_MEMBER_HELLO: return "meeting";
    case PL_MEMBER_REFUSED: return m->leaving ? "left" : "refused";
    case PL_MEMBER_JOINED: break;
    }
    int32_t stage = pipeline_stage_of(c, m);
    if (m->leaving) return "leaving";
    if (stage < 0) return m->excluded_until_ns > pl_loop_now(c->loop) ? "failed" : "idle";
    return c->pipeline.state == PL_PIPELINE_UP ? "serving" : c->pipeline.stages[stage].ready ? "ready" : "loading";
}

static pl_json *layers(const pl_place_stage *s)
{
    pl_json *a = pl_json_array();
    pl_json_append(a, pl_json_int(s->layer_first));
    pl_json_append(a, pl_json_int(s->layer_end));
    return a;
}

static pl_json *progress(uint64_t done, uint64_t total)
{
    pl_json *v = pl_json_object();
    pl_json_set(v, "done_bytes", number(done));
    pl_json_set(v, "total_bytes", number(total));
    return v;
}

static pl_json *node_status(const pl_coordinator *c, const pl_member *m)
{
    pl_json *v = pl_json_object();
    int32_t stage = pipeline_stage_of(c, m);
    char key[2 * PL_KEY_SIZE + 1] = "";
    if (m->link) pl_key_text(&m->link->peer, key);
    key[16] = 0;
    pl_json_set(v, "id", number(m->id));
    pl_json_set(v, "name", text(m->name));
    pl_json_set(v, "state", text(member_state(c, m)));
    pl_json_set(v, "key", text(key));
    pl_json_set(v, "address",
                text(m->address[0] ? m->address
                     : m->target   ? m->target->address
                     : m->link     ? m->link->address
                                   : ""));
    pl_json_set(v, "version", text(m->version));
    pl_json_set(v, "isa", text(m->isa));
    pl_json_set(v, "profile", text(m->profile));
    pl_json_set(v, "threads", pl_json_int(m->n_threads));
    pl_json_set(v, "budget_bytes", number(m->budget_bytes));
    pl_json_set(v, "memory_bytes", number(m->memory_bytes));
    pl_json_set(v, "read_bytes_per_s", pl_json_real(m->read_bytes_s));
    pl_json_set(v, "macs_per_s", pl_json_real(m->macs_s));
    pl_json_set(v, "rtt_ns", number(m->rtt_ns));
    pl_json_set(v, "frames", number(m->frames));
    pl_json_set(v, "rows", number(m->rows));
    pl_json_set(v, "busy_ns", number(m->busy_ns));
    pl_json_set(v, "busy_share", pl_json_real(m->busy_share));
    pl_json_set(v, "served_bytes", number(m->served_bytes));
    if (stage >= 0) {
        pl_json_set(v, "stage", pl_json_int(stage));
        pl_json_set(v, "layers", layers(&c->pipeline.plan.stages[stage]));
    }
    if (m->last_failure.status != PL_OK) pl_json_set(v, "last_failure", text(m->last_failure.text));
    return v;
}

static pl_json *stage_status(const pl_coordinator *c, int32_t i)
{
    static const char *const phases[] = {"fetch", "pack", "load"};
    const pl_pipeline_stage *s = &c->pipeline.stages[i];
    const pl_place_stage *plan = &c->pipeline.plan.stages[i];
    pl_json *v = pl_json_object();
    pl_json_set(v, "node", text(c->pipeline.names[i]));
    pl_json_set(v, "node_id", number(s->member->id));
    pl_json_set(v, "layers", layers(plan));
    pl_json_set(v, "ready", pl_json_bool(s->ready));
    pl_json_set(v, "phase", text(s->ready ? "ready" : phases[(unsigned)s->phase < 3 ? s->phase : 0]));
    pl_json_set(v, "progress", progress(s->done_bytes, s->total_bytes));
    pl_json_set(v, "fetched_bytes", number(s->fetched_bytes));
    pl_json_set(v, "weights_bytes", number(plan->memory.weights));
    pl_json_set(v, "kv_bytes", number(plan->memory.kv));
    pl_json_set(v, "compute_bytes", number(plan->memory.compute));
    pl_json_set(v, "link_bytes", number(plan->link_bytes));
    pl_json_set(v, "step_ns", number((uint64_t)(plan->step_s * 1e9)));
    return v;
}

static pl_json *pipeline_status(const pl_coordinator *c)
{
    const pl_pipeline *p = &c->pipeline;
    pl_json *v = pl_json_object(), *stages = pl_json_array();
    pl_error err = {0};
    uint64_t done, total;
    pl_json_set(v, "state", text(state_names[p->state]));
    if (pl_coordinator_health(c, &err) != PL_OK) pl_json_set(v, "reason", text(err.text));
    pl_json_set(v, "epoch", number(p->epoch));
    for (int32_t i = 0; i < p->n_stages; i++) pl_json_append(stages, stage_status(c, i));
    pl_json_set(v, "stages", stages);
    progress_of(c, &done, &total);
    pl_json_set(v, "progress", progress(done, total));
    if (p->n_stages) {
        pl_json_set(v, "n_blocks", pl_json_int(p->plan.n_blocks));
        pl_json_set(v, "n_rows", pl_json_int(p->plan.n_rows));
        pl_json_set(v, "groups", pl_json_int(p->groups));
        pl_json_set(v, "frames_in_flight", pl_json_int(c->sched.n_sent));
        pl_json_set(v, "plan", pl_json_string(pl_buf_str(&p->plan_text)));
    }
    return v;
}

static pl_json *request_status(const pl_coordinator *c)
{
    const pl_scheduler *s = &c->sched;
    pl_json *v = pl_json_object();
    pl_json_set(v, "open", pl_json_int(s->n_open));
    pl_json_set(v, "running", pl_json_int(s->n_running));
    pl_json_set(v, "waiting", pl_json_int(s->n_waiting));
    pl_json_set(v, "slots", pl_json_int(s->o.n_seqs));
    pl_json_set(v, "kept", pl_json_int(s->n_kept));
    pl_json_set(v, "free_blocks", pl_json_int(s->up ? s->blocks.n_free : 0));
    pl_json_set(v, "preempted", number(s->n_preempted));
    pl_json_set(v, "prompt_tokens", number(s->n_prefilled));
    pl_json_set(v, "cached_tokens", number(s->n_cached));
    pl_json_set(v, "drafted_tokens", number(s->n_drafted));
    pl_json_set(v, "accepted_tokens", number(s->n_accepted));
    pl_json_set(v, "generated_tokens", number(s->n_emitted));
    pl_json *ended = pl_json_object();
    pl_json_set(ended, "stop", number(s->n_ended[PL_FINISH_STOP]));
    pl_json_set(ended, "length", number(s->n_ended[PL_FINISH_LENGTH]));
    pl_json_set(ended, "cancelled", number(s->n_ended[PL_FINISH_CANCELLED]));
    pl_json_set(ended, "error", number(s->n_ended[PL_FINISH_ERROR]));
    pl_json_set(v, "ended", ended);
    return v;
}

pl_json *pl_coordinator_status(const pl_coordinator *c)
{
    pl_json *v = pl_json_object(), *nodes = pl_json_array();
    if (!v || !nodes) {
        pl_json_free(v);
        pl_json_free(nodes);
        return NULL;
    }
    pl_json_set(v, "model", text(c->model.name));
    pl_json_set(v, "n_ctx", pl_json_int(c->options.n_ctx));
    pl_json_set(v, "pipeline", pipeline_status(c));
    for (const pl_member *m = c->members; m; m = m->next) pl_json_append(nodes, node_status(c, m));
    pl_json_set(v, "nodes", nodes);
    pl_json_set(v, "requests", request_status(c));
    pl_json_set(v, "tokens_per_s", pl_json_real(status_rate(c)));
    return v;
}

pl_status pl_coordinator_plan_text(const pl_coordinator *c, pl_buf *out, pl_error *err)
{
    if (c->pipeline.state == PL_PIPELINE_DOWN)
        pl_buf_printf(out, "no pipeline: %s\n", c->down_why.text);
    else
        pl_buf_add_str(out, pl_buf_str(&c->pipeline.plan_text));
    return out->failed ? pl_fail(err, PL_ERR_NO_MEMORY, "text of the plan") : PL_OK;
}
