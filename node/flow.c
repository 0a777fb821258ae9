/* Frames through a stage, and the two links that they take.
 *
 * Frames are numbered without gaps, so a ring by id holds them: ids below next_run are done, [next_run, next_recv) are
 * here, and those are at most `credits`, which is what the sender was given. A frame is computed only with a credit of
 * the next stage in hand; so its output leaves at once and nothing waits behind the compute. The credit for the sender
 * goes out when the frame's input is free.
 *
 * Either side may be the coordinator (`outer`): its link carries frames to the first stage and results from the last,
 * which needs no credits, since the coordinator bounds what is in the pipeline by those of the first stage. */
#include "node/node_impl.h"

#include "engine/base/alloc.h"
#include "engine/base/log.h"
#include "transport/curve.h"

#include <inttypes.h>

#define DIAL_NS UINT64_C(5000000000)
/* The engine and the kernels want their inputs on cache lines. */
#define ALIGN 64

const char *node_side_name(const node_stage *s, const node_side *side)
{
    if (side->outer) return "coordinator";
    return side == &s->up ? "upstream neighbour" : "downstream neighbour";
}

static const char *side_address(const node_side *side)
{
    if (side->peer && side->peer->link) return side->peer->link->address;
    return side->address;
}

pl_status node_flow_init(node_stage *s, pl_error *err)
{
    s->n_slots = (int32_t)s->plan->credits;
    s->slots = pl_calloc((size_t)s->n_slots, sizeof *s->slots);
    if (!s->slots) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for %d frames", s->n_slots);
    for (int32_t i = 0; i < s->n_slots; i++) {
        s->slots[i].stage = s;
        pl_arena_init(&s->slots[i].arena, 4096);
        if (!s->last) continue;
        s->slots[i].sampled = pl_alloc((size_t)s->shape.n_rows * sizeof *s->slots[i].sampled);
        if (!s->slots[i].sampled) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for %d frames", s->n_slots);
    }
    s->next_recv = s->next_run = 1;
    s->down.credits = s->n_slots;
    return PL_OK;
}

static void clear_slot(node_slot *slot)
{
    pl_part_unref(slot->in);
    pl_part_unref(slot->out);
    slot->in = slot->out = NULL;
    slot->state = NODE_SLOT_FREE;
}

void node_flow_free(node_stage *s)
{
    for (int32_t i = 0; s->slots && i < s->n_slots; i++) {
        clear_slot(&s->slots[i]);
        pl_envelope_fini(&s->slots[i].frame);
        pl_arena_fini(&s->slots[i].arena);
        pl_free(s->slots[i].sampled);
    }
    pl_free(s->slots);
    s->slots = NULL;
}

static void end_side(node_stage *s, node_side *side)
{
    pl_timer_stop(s->node->loop, side->redial);
    side->redial = NULL;
    if (side->peer) node_peer_drop(side->peer);
    side->peer = NULL;
}

void node_flow_end(node_stage *s)
{
    end_side(s, &s->up);
    end_side(s, &s->down);
}

/* --- Links --- */

static void dial_side(node_stage *s, node_side *side);

static void redial_up(void *user)
{
    node_stage *s = user;
    s->up.redial = NULL;
    dial_side(s, &s->up);
}

static void redial_down(void *user)
{
    node_stage *s = user;
    s->down.redial = NULL;
    dial_side(s, &s->down);
}

static void redial_later(node_stage *s, node_side *side)
{
    pl_node *n = s->node;
    pl_error err;
    if (s->phase != NODE_PHASE_CONNECT || side->redial) return;
    if (!side->redial_ns) side->redial_ns = n->options.redial_ns;
    uint64_t after = side->redial_ns + pl_rng_below(&n->rng, side->redial_ns / 4 + 1);
    if (side->redial_ns < 16 * n->options.redial_ns) side->redial_ns *= 2;
    if (pl_timer_start(n->loop, after, 0, side == &s->up ? redial_up : redial_down, s, &side->redial, &err) != PL_OK)
        node_stage_fail(s, &err);
}

static void dial_side(node_stage *s, node_side *side)
{
    pl_node *n = s->node;
    pl_error err = {0};
    pl_link *link = NULL;
    if (s->phase != NODE_PHASE_CONNECT) return;
    node_peer *p = node_peer_new(n, NULL, NODE_PEER_DATA);
    if (!p) {
        redial_later(s, side);
        return;
    }
    if (pl_link_dial(n->net, side->address, side->has_key ? &side->key : NULL, DIAL_NS, p, &link, &err) != PL_OK) {
        p->link_dead = true; /* there is none */
        node_peer_drop(p);
        PL_LOG(PL_LOG_WARN, "cannot dial neighbour", "node=%s epoch=%" PRIu64 " address=%s error=%s", PL_Q(n->name),
               s->epoch, PL_Q(side->address), PL_Q(err.text));
        redial_later(s, side);
        return;
    }
    p->link = link;
    side->peer = p;
}

void node_flow_start(node_stage *s)
{
    if (s->up.dial) dial_side(s, &s->up);
    if (s->down.dial) dial_side(s, &s->down);
}

static Paceline__Hello__Role our_role(const node_stage *s, const node_side *side)
{
    return side == &s->up ? PACELINE__HELLO__ROLE__DOWNSTREAM : PACELINE__HELLO__ROLE__UPSTREAM;
}

void node_flow_connected(node_stage *s, node_peer *p)
{
    node_send_hello(p, our_role(s, p == s->up.peer ? &s->up : &s->down), s->epoch);
}

void node_flow_hello(node_stage *s, node_peer *p, Paceline__Hello__Role role)
{
    pl_node *n = s->node;
    node_side *side = role == PACELINE__HELLO__ROLE__UPSTREAM ? &s->up : &s->down;
    pl_error err;
    if (p->kind == NODE_PEER_DATA) { /* we dialed: this is the answer */
        if (side->peer != p) {
            pl_fail(&err, PL_ERR_FORMAT, "%s answered as the other neighbour", p->link->address);
            node_send_failure(p, s->epoch, &err);
            node_flow_lost(s, p, &err);
            node_peer_drop(p);
            return;
        }
    } else {
        static const pl_key none;
        const pl_key *key = side->has_key ? &side->key : &none;
        if (side->outer || side->dial) {
            pl_fail(&err, PL_ERR_INVALID, "node %s, epoch %" PRIu64 ": no %s is expected to dial", n->name, s->epoch,
                    node_side_name(s, side));
        } else if (!pl_key_eq(key, &p->link->peer)) {
            pl_fail(&err, PL_ERR_AUTH, "node %s, epoch %" PRIu64 ": %s does not have the key of its %s", n->name,
                    s->epoch, p->link->address, node_side_name(s, side));
        } else if (side->peer && s->phase >= NODE_PHASE_READY) {
            pl_fail(&err, PL_ERR_INVALID, "node %s, epoch %" PRIu64 ": there is already a %s", n->name, s->epoch,
                    node_side_name(s, side));
        } else {
            /* A neighbour that dials again before anything ran has lost its first link before we noticed. */
            if (side->peer) node_peer_drop(side->peer);
            if (p->kind == NODE_PEER_PARKED) n->n_parked--;
            p->kind = NODE_PEER_DATA;
            side->peer = p;
            node_send_hello(p, our_role(s, side), s->epoch);
            side->up = true;
            node_stage_check_ready(s);
            return;
        }
        PL_LOG(PL_LOG_WARN, "neighbour refused", "node=%s epoch=%" PRIu64 " error=%s", PL_Q(n->name), s->epoch,
               PL_Q(err.text));
        node_send_failure(p, s->epoch, &err);
        node_peer_drop(p);
        return;
    }
    side->up = true;
    node_stage_check_ready(s);
}

void node_flow_take_parked(node_stage *s)
{
    pl_node *n = s->node;
again:
    for (node_peer *p = n->peers; p; p = p->next) {
        if (p->kind != NODE_PEER_PARKED || p->epoch > s->epoch) continue;
        if (p->epoch == s->epoch) {
            node_flow_hello(s, p, p->role);
        } else {
            node_peer_drop(p);
        }
        goto again;
    }
}

void node_flow_lost(node_stage *s, node_peer *p, const pl_error *why)
{
    pl_node *n = s->node;
    if (p != s->up.peer && p != s->down.peer) return;
    node_side *side = p == s->up.peer ? &s->up : &s->down;
    pl_error err = *why;
    pl_note(&err, why->status, "node %s, stage %u of %u: %s %s", n->name, s->plan->stage + 1, s->plan->n_stages,
            node_side_name(s, side), side_address(side));
    side->peer = NULL;
    side->up = false;
    if (s->phase < NODE_PHASE_READY) {
        /* Nothing is lost yet: whoever dials tries again, until the time for connecting is over. */
        PL_LOG(PL_LOG_INFO, "neighbour not reached", "node=%s epoch=%" PRIu64 " error=%s", PL_Q(n->name), s->epoch,
               PL_Q(err.text));
        if (side->dial) redial_later(s, side);
        return;
    }
    if (s->phase == NODE_PHASE_BROKEN) return;
    s->phase = NODE_PHASE_BROKEN;
    PL_LOG(PL_LOG_WARN, "neighbour lost", "node=%s epoch=%" PRIu64 " error=%s", PL_Q(n->name), s->epoch,
           PL_Q(err.text));
    Paceline__LinkState l = PACELINE__LINK_STATE__INIT;
    Paceline__Failure f = PACELINE__FAILURE__INIT;
    Paceline__Envelope m = PACELINE__ENVELOPE__INIT;
    f.status = err.status;
    f.text = err.text;
    f.text[pl_utf8_valid_prefix(pl_str_from(f.text))] = 0;
    l.downstream = side == &s->down;
    l.failure = &f;
    m.body_case = PACELINE__ENVELOPE__BODY_LINK_STATE;
    m.link_state = &l;
    if (n->coordinator.peer) node_send(n->coordinator.peer, s->epoch, &m, NULL);
}

/* --- Frames --- */

/* The scales by index; the message lists those that are wanted, and its indices were checked. */
static bool take_adapters(node_slot *slot, const Paceline__Sequence *q, pl_kv_op *op)
{
    for (size_t i = 0; i < q->n_adapters; i++)
        if ((int32_t)q->adapters[i]->index >= op->n_adapters) op->n_adapters = (int32_t)q->adapters[i]->index + 1;
    if (op->n_adapters == 0) return true;
    float *scales = pl_arena_zalloc(&slot->arena, (size_t)op->n_adapters * sizeof *scales);
    for (size_t i = 0; scales && i < q->n_adapters; i++) scales[q->adapters[i]->index] = q->adapters[i]->scale;
    op->adapter_scales = scales;
    return scales != NULL;
}

static pl_status build_ops(node_slot *slot, const Paceline__Frame *f, bool params, pl_error *err)
{
    pl_kv_op *ops = pl_arena_zalloc(&slot->arena, (f->n_ops + 1) * sizeof *ops);
    if (!ops) goto no_memory;
    for (size_t i = 0; i < f->n_ops; i++) {
        const Paceline__KvOp *o = f->ops[i];
        ops[i] = (pl_kv_op){.kind = (pl_kv_kind)o->kind,
                            .seq = o->seq,
                            .src = o->src,
                            .n_pos = o->n_pos,
                            .blocks = o->blocks,
                            .n_blocks = (int32_t)o->n_blocks};
        if (o->kind != PACELINE__KV_OP__KIND__OPEN) continue;
        if (!take_adapters(slot, o->sequence, &ops[i])) goto no_memory;
        if (!params) continue;
        const Paceline__Sequence *q = o->sequence;
        size_t n = q->n_prompt + q->n_emitted;
        pl_sample_params *p = PL_ARENA_NEW(&slot->arena, pl_sample_params);
        int32_t *tokens = pl_arena_alloc(&slot->arena, (n + 1) * sizeof *tokens);
        pl_str *breakers = pl_arena_alloc(&slot->arena, (q->params->n_dry_breakers + 1) * sizeof *breakers);
        if (!p || !tokens || !breakers) goto no_memory;
        *p = (pl_sample_params){
            .temperature = q->params->temperature,
            .top_k = q->params->top_k,
            .top_p = q->params->top_p,
            .min_p = q->params->min_p,
            .repeat_penalty = q->params->repeat_penalty,
            .repeat_last_n = q->params->repeat_last_n,
            .seed = q->seed,
            .n_logprobs = q->params->n_logprobs,
            .dynatemp_range = q->params->dynatemp_range,
            .dynatemp_exponent = q->params->dynatemp_exponent,
            .typical_p = q->params->typical_p,
            .top_n_sigma = q->params->top_n_sigma,
            .xtc_probability = q->params->xtc_probability,
            .xtc_threshold = q->params->xtc_threshold,
            .frequency_penalty = q->params->frequency_penalty,
            .presence_penalty = q->params->presence_penalty,
            .dry_multiplier = q->params->dry_multiplier,
            .dry_base = q->params->dry_base,
            .dry_allowed_length = q->params->dry_allowed_length,
            .dry_last_n = q->params->dry_last_n,
            .mirostat = (int32_t)q->params->mirostat,
            .mirostat_tau = q->params->mirostat_tau,
            .mirostat_eta = q->params->mirostat_eta,
            .choice = q->params->choice,
            .n_bias = (int32_t)q->params->n_bias,
            .bias_tokens = q->params->bias_token,
            .bias = q->params->bias,
            .n_breakers = (int32_t)q->params->n_dry_breakers,
            .breakers = breakers,
            .grammar = {(const char *)q->params->grammar.data, q->params->grammar.len},
        };
        for (size_t k = 0; k < q->params->n_dry_breakers; k++)
            breakers[k] = (pl_str){(const char *)q->params->dry_breakers[k].data, q->params->dry_breakers[k].len};
        if (q->params->samplers.len) memcpy(p->chain, q->params->samplers.data, q->params->samplers.len);
        if (q->n_prompt) memcpy(tokens, q->prompt, q->n_prompt * sizeof *tokens);
        if (q->n_emitted) memcpy(tokens + q->n_prompt, q->emitted, q->n_emitted * sizeof *tokens);
        ops[i].params = p;
        ops[i].tokens = tokens;
        ops[i].n_tokens = (int32_t)n;
        ops[i].n_prompt = (int32_t)q->n_prompt;
        ops[i].n_shifted = q->n_shifted;
        ops[i].state = (pl_bytes){q->sampler_state.data, q->sampler_state.len};
    }
    slot->mb.ops = ops;
    slot->mb.n_ops = (int32_t)f->n_ops;
    return PL_OK;
no_memory:
    return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for a frame's operations");
}

static pl_status build_rows(node_slot *slot, const Paceline__Frame *f, pl_error *err)
{
    pl_row *rows = pl_arena_zalloc(&slot->arena, (f->n_seq + 1) * sizeof *rows);
    if (!rows) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for a frame's rows");
    for (size_t i = 0; i < f->n_seq; i++) rows[i] = (pl_row){.seq = f->seq[i], .pos = f->pos[i], .token = f->token[i]};
    for (size_t i = 0; i < f->n_logits; i++) rows[f->logits[i]].logits = true;
    slot->mb.rows = rows;
    slot->mb.n_rows = (int32_t)f->n_seq;
    return PL_OK;
}

static pl_status take_hidden(node_slot *slot, const Paceline__Frame *f, pl_msg *m, pl_error *err)
{
    node_stage *s = slot->stage;
    size_t expected = s->first || f->n_seq == 0 ? 0 : 1;
    if (f->n_tensors != expected)
        return pl_fail(err, PL_ERR_FORMAT, "%zu tensors, expected %zu", f->n_tensors, expected);
    if (!expected) return PL_OK;
    const Paceline__TensorDesc *t = f->tensors[0];
    if (strcmp(t->name, "hidden") != 0 || t->type != PL_TYPE_F32 || t->n_ne != 2 || t->ne[0] != (uint64_t)s->n_embd ||
        t->ne[1] != f->n_seq)
        return pl_fail(err, PL_ERR_FORMAT, "its tensor is not hidden, F32 [%d, %zu]", s->n_embd, f->n_seq);
    if ((uintptr_t)m->parts[0]->data % ALIGN == 0)
        slot->in = pl_part_ref(m->parts[0]);
    else
        slot->in = pl_part_copy((pl_bytes){m->parts[0]->data, m->parts[0]->size});
    if (!slot->in) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for %zu bytes of activations", m->parts[0]->size);
    return PL_OK;
}

static pl_status take_frame(node_stage *s, node_peer *from, pl_envelope *e, pl_msg *m, pl_error *err)
{
    const Paceline__Frame *f = e->m->frame;
    if (s->phase != NODE_PHASE_READY) return pl_fail(err, PL_ERR_FORMAT, "before the stage is ready");
    if (from != (s->up.outer ? s->node->coordinator.peer : s->up.peer))
        return pl_fail(err, PL_ERR_FORMAT, "not from the %s", node_side_name(s, &s->up));
    size_t sizes[PL_MSG_PARTS_MAX];
    for (int i = 0; i < m->n_parts; i++) sizes[i] = m->parts[i]->size;
    PL_TRY(pl_envelope_check(e->m, sizes, (size_t)m->n_parts, &s->limits, err));
    if (f->id != s->next_recv) return pl_fail(err, PL_ERR_FORMAT, "expected frame %" PRIu64, s->next_recv);
    if (s->next_recv - s->next_run >= (uint64_t)s->n_slots)
        return pl_fail(err, PL_ERR_FORMAT, "more frames than the %d credits", s->n_slots);
    if (f->n_pos_per_row > 1) return pl_fail(err, PL_ERR_UNSUPPORTED, "%u positions per row", f->n_pos_per_row);
    node_slot *slot = &s->slots[f->id % (uint64_t)s->n_slots];
    PL_ASSERT(slot->state == NODE_SLOT_FREE);
    pl_arena_reset(&slot->arena);
    slot->mb = (pl_micro_batch){0};
    /* The stage sees the parameters of sampling only where it samples. */
    PL_TRY(build_ops(slot, f, s->last, err));
    PL_TRY(build_rows(slot, f, err));
    PL_TRY(take_hidden(slot, f, m, err));
    if (!s->first && slot->in) slot->mb.hidden_in = (const float *)(const void *)slot->in->data;
    if (s->last) slot->mb.sampled = slot->sampled;
    pl_envelope old = slot->frame;
    slot->frame = *e; /* ops point into it */
    *e = old;
    slot->state = NODE_SLOT_QUEUED;
    slot->recv_ns = pl_loop_now(s->node->loop);
    s->next_recv++;
    return PL_OK;
}

static void send_frame(node_stage *s, node_slot *slot)
{
    Paceline__Envelope m = PACELINE__ENVELOPE__INIT;
    Paceline__Frame f = *slot->frame.m->frame;
    Paceline__TensorDesc t = PACELINE__TENSOR_DESC__INIT, *tensors[] = {&t};
    uint64_t ne[2] = {(uint64_t)s->n_embd, f.n_seq};
    t.name = (char *)"hidden";
    t.type = PL_TYPE_F32;
    t.ne = ne;
    t.n_ne = 2;
    f.tensors = slot->out ? tensors : NULL;
    f.n_tensors = slot->out ? 1 : 0;
    m.body_case = PACELINE__ENVELOPE__BODY_FRAME;
    m.frame = &f;
    pl_part *part = slot->out;
    slot->out = NULL;
    node_send(s->down.peer, s->epoch, &m, part);
}

static pl_status send_result(node_stage *s, node_slot *slot, pl_error *err)
{
    const Paceline__Frame *f = slot->frame.m->frame;
    Paceline__Envelope m = PACELINE__ENVELOPE__INIT;
    Paceline__Result r = PACELINE__RESULT__INIT;
    r.frame = f->id;
    r.n_tokens = f->n_logits;
    r.tokens = pl_arena_alloc(&slot->arena, (f->n_logits + 1) * sizeof *r.tokens);
    Paceline__Token *tokens = pl_arena_alloc(&slot->arena, (f->n_logits + 1) * sizeof *tokens);
    if (!r.tokens || !tokens) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for a result");
    for (size_t i = 0; i < f->n_logits; i++) {
        pl_sampled *p = &slot->sampled[i];
        Paceline__Token *t = r.tokens[i] = &tokens[i];
        paceline__token__init(t);
        t->seq = f->seq[f->logits[i]];
        t->pos = f->pos[f->logits[i]] + 1;
        t->token = p->token;
        t->logprob = p->logprob;
        t->top = p->top;
        t->top_logprob = p->top_logprob;
        t->n_top = t->n_top_logprob = (size_t)p->n_top;
        t->sampler_state = (ProtobufCBinaryData){.len = p->n_state, .data = p->state};
    }
    m.body_case = PACELINE__ENVELOPE__BODY_RESULT;
    m.result = &r;
    if (s->node->coordinator.peer) node_send(s->node->coordinator.peer, s->epoch, &m, NULL);
    return PL_OK;
}

static void send_credit(node_stage *s)
{
    Paceline__Envelope m = PACELINE__ENVELOPE__INIT;
    Paceline__Credit c = PACELINE__CREDIT__INIT;
    node_peer *to = s->up.outer ? s->node->coordinator.peer : s->up.peer;
    c.frames = 1;
    m.body_case = PACELINE__ENVELOPE__BODY_CREDIT;
    m.credit = &c;
    if (to) node_send(to, s->epoch, &m, NULL);
}

static void run_next(node_stage *s);

static void ran(void *user, const pl_error *why, uint64_t start_ns, uint64_t end_ns)
{
    node_slot *slot = user;
    node_stage *s = slot->stage;
    pl_node *n = s->node;
    pl_error err;
    s->answers_due--;
    s->running = false;
    n->busy_ns += end_ns - start_ns;
    if (s->over) {
        node_stage_release(s);
        return;
    }
    uint64_t id = slot->frame.m->frame->id;
    if (s->phase == NODE_PHASE_BROKEN) {
        clear_slot(slot);
        return;
    }
    if (why) {
        err = *why;
        goto fail;
    }
    n->frames++;
    n->rows += (uint64_t)slot->mb.n_rows;
    if (!s->last)
        send_frame(s, slot);
    else if (send_result(s, slot, &err) != PL_OK)
        goto fail;
    if (n->trace) node_trace(n, slot, start_ns, end_ns, pl_loop_now(n->loop));
    clear_slot(slot);
    s->next_run++;
    send_credit(s);
    run_next(s);
    return;
fail:
    clear_slot(slot);
    pl_note(&err, err.status, "frame %" PRIu64, id);
    node_stage_fail(s, &err);
}

static void run_next(node_stage *s)
{
    pl_node *n = s->node;
    if (s->phase != NODE_PHASE_READY || s->running || s->next_run == s->next_recv) return;
    if (!s->last && s->down.credits == 0) return;
    node_slot *slot = &s->slots[s->next_run % (uint64_t)s->n_slots];
    if (!s->last && slot->mb.n_rows) {
        slot->out = pl_net_buffer(n->net, (size_t)slot->mb.n_rows * (size_t)s->n_embd * sizeof(float));
        if (!slot->out) {
            pl_error err;
            pl_fail(&err, PL_ERR_NO_MEMORY, "frame %" PRIu64 ": no memory for %d rows of output", s->next_run,
                    slot->mb.n_rows);
            node_stage_fail(s, &err);
            return;
        }
        slot->mb.hidden_out = (float *)(void *)slot->out->data;
    }
    if (!s->last) {
        s->down.credits--;
        s->down.in_flight++;
    }
    slot->state = NODE_SLOT_RUNNING;
    s->running = true;
    s->answers_due++;
    n->compute->vt->run(n->compute, &slot->mb, ran, slot);
}

void node_flow_frame(node_stage *s, node_peer *from, pl_envelope *e, pl_msg *m)
{
    pl_error err;
    if (s->phase == NODE_PHASE_BROKEN) {
        s->node->stale_frames++;
        return;
    }
    pl_status st = take_frame(s, from, e, m, &err);
    if (st != PL_OK) {
        /* A frame that failed after its input was taken holds it until the stage goes; nothing else comes to that slot.
         */
        pl_note(&err, st, "frame %" PRIu64 " from %s", e->m->frame->id, from->link->address);
        node_stage_fail(s, &err);
        return;
    }
    run_next(s);
}

void node_flow_credit(node_stage *s, uint32_t frames, node_peer *from)
{
    if (s->phase != NODE_PHASE_READY) return;
    if ((int64_t)frames > s->down.in_flight) {
        pl_error err;
        pl_fail(&err, PL_ERR_FORMAT, "%s gave back %u credits, %d frames are with it", from->link->address, frames,
                s->down.in_flight);
        node_stage_fail(s, &err);
        return;
    }
    s->down.in_flight -= (int32_t)frames;
    s->down.credits += (int32_t)frames;
    run_next(s);
}

bool pl_node_expects(const pl_node *n, const pl_key *key)
{
    const node_stage *s = n->stage;
    return s && ((s->up.has_key && memcmp(s->up.key.b, key->b, PL_KEY_SIZE) == 0) ||
                 (s->down.has_key && memcmp(s->down.key.b, key->b, PL_KEY_SIZE) == 0));
}
