#include "node/node_impl.h"

#include "engine/base/log.h"

#include <inttypes.h>

void node_trace(pl_node *n, const node_slot *slot, uint64_t start_ns, uint64_t end_ns, uint64_t sent_ns)
{
    fprintf(n->trace,
            "{\"node\":%s,\"epoch\":%" PRIu64 ",\"frame\":%" PRIu64 ",\"rows\":%d,\"recv_ns\":%" PRIu64
            ",\"start_ns\":%" PRIu64 ",\"end_ns\":%" PRIu64 ",\"sent_ns\":%" PRIu64 "}\n",
            PL_Q(n->name), slot->stage->epoch, slot->frame.m->frame->id, slot->mb.n_rows, slot->recv_ns, start_ns,
            end_ns, sent_ns);
}

uint64_t node_memory_bytes(const pl_node *n)
{
    return n->loaded_bytes;
}

void node_stats(const pl_node *n, Paceline__NodeStats *out)
{
    out->frames = n->frames;
    out->rows = n->rows;
    out->busy_ns = n->busy_ns;
    out->memory_bytes = node_memory_bytes(n);
    out->bytes_in = n->bytes_in;
    out->bytes_out = n->bytes_out;
}

void pl_node_get_report(const pl_node *n, pl_node_report *out)
{
    const node_stage *s = n->stage;
    *out = (pl_node_report){
        .state = "joined",
        .frames = n->frames,
        .rows = n->rows,
        .busy_ns = n->busy_ns,
        .memory_bytes = node_memory_bytes(n),
        .stale_frames = n->stale_frames,
    };
    if (n->leaving)
        out->state = "leaving";
    else if (!node_has_coordinator(n))
        out->state = "alone";
    else if (s && s->phase == NODE_PHASE_READY)
        out->state = "ready";
    else if (s && s->phase != NODE_PHASE_BROKEN)
        out->state = "loading";
    if (!s) return;
    out->epoch = s->epoch;
    out->layer_first = s->shape.layer_first;
    out->layer_end = s->shape.layer_end;
    if (s->phase != NODE_PHASE_TENSORS) return;
    out->fetch_done_bytes = s->fetch.done_bytes;
    out->fetch_total_bytes = s->fetch.total_bytes;
}

const char *node_invariants(const pl_node *n)
{
    if (n->loaded_bytes > n->budget) return "the loaded stage and its link buffers exceed the budget";
    size_t parked = 0;
    for (const node_peer *p = n->peers; p; p = p->next) {
        parked += p->kind == NODE_PEER_PARKED;
        if (p->kind == NODE_PEER_DATA && (!n->stage || (p != n->stage->up.peer && p != n->stage->down.peer)))
            return "a data link belongs to no side of the stage";
        if (p->kind == NODE_PEER_COORDINATOR && p != n->coordinator.peer) return "a second coordinator's link is open";
    }
    if (parked != n->n_parked) return "the count of parked links is wrong";
    int live = 0;
    for (const node_stage *s = n->stages; s; s = s->next) {
        live += !s->over;
        if (s->over && s != n->stage && s->answers_due == 0)
            return "a stage that is over and owed nothing is still there";
        if (!s->slots) continue;
        if (s->next_run > s->next_recv || s->next_recv - s->next_run > (uint64_t)s->n_slots)
            return "more frames are held than there are credits";
        if (s->down.credits < 0 || s->down.in_flight < 0) return "credits are negative";
        if (!s->last && s->down.credits + s->down.in_flight != s->n_slots) return "credits were lost or made";
        int in_run = 0, queued = 0;
        for (int32_t i = 0; i < s->n_slots; i++) {
            in_run += s->slots[i].state == NODE_SLOT_RUNNING;
            queued += s->slots[i].state == NODE_SLOT_QUEUED;
        }
        if (in_run != (int)s->running) return "the running frame is not one";
        if (s->phase == NODE_PHASE_READY && (uint64_t)(in_run + queued) != s->next_recv - s->next_run)
            return "frames in slots and ids do not agree";
    }
    if (live > 1) return "two epochs are live";
    if (n->stage && n->stage->over) return "the current stage is over";
    return NULL;
}
