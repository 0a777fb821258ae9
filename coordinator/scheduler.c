#include "coordinator/scheduler.h"

#include "engine/base/alloc.h"
#include "engine/base/log.h"

#include <string.h>

#define CHUNK_SHARE                                                                                                    \
    4                /* of the rows of a frame, for prompts while others decode: they wait little for a longer frame   \
                      */
#define CHUNK_MIN 32 /* but not less than this, or prompts crawl */
#define CHUNK_STAGE                                                                                                    \
    64 /* rows from which a stage computes more than it reads: a shorter chunk costs as much as this                   \
        */

/* --- Lists --- */

static void link_by_age(pl_scheduler *s, pl_request *r)
{
    pl_request *after = s->last;
    while (after && after->order > r->order) after = after->prev;
    r->prev = after;
    r->next = after ? after->next : s->first;
    if (r->next)
        r->next->prev = r;
    else
        s->last = r;
    if (after)
        after->next = r;
    else
        s->first = r;
}

static void unlink_open(pl_scheduler *s, pl_request *r)
{
    if (r->prev)
        r->prev->next = r->next;
    else
        s->first = r->next;
    if (r->next)
        r->next->prev = r->prev;
    else
        s->last = r->prev;
    r->prev = r->next = NULL;
}

/* --- Slots --- */

static void slot_free(pl_scheduler *s, pl_sched_slot *slot)
{
    pl_blocks_give(&s->blocks, slot->blocks, slot->n_blocks);
    slot->n_blocks = slot->n_told = 0;
    slot->opened = false;
    slot->request = NULL;
    slot->state = PL_SLOT_FREE;
}

/* Takes the slot away from its request. What no stage has heard of needs no CLOSE. */
static void slot_release(pl_scheduler *s, pl_request *r)
{
    pl_sched_slot *slot = &s->slots[r->slot];
    slot->request = NULL;
    if (slot->opened) {
        slot->state = PL_SLOT_CLOSING;
        s->n_closing++;
    } else {
        slot_free(s, slot);
    }
    r->slot = -1;
    r->n_sent = 0;
    s->n_running--;
}

static void back_to_waiting(pl_scheduler *s, pl_request *r)
{
    r->state = PL_REQUEST_WAITING;
    r->served = 0;
    s->n_waiting++;
}

/* --- Life --- */

pl_status pl_sched_init(pl_scheduler *s, int32_t n_seqs, int32_t n_ctx, int32_t n_vocab, int32_t queue_max,
                        bool (*is_eog)(void *, int32_t), void *eog_user, pl_error *err)
{
    *s = (pl_scheduler){.n_seqs = n_seqs,
                        .n_ctx = n_ctx,
                        .n_vocab = n_vocab,
                        .queue_max = queue_max,
                        .is_eog = is_eog,
                        .eog_user = eog_user};
    const size_t per_slot = (size_t)pl_blocks_for(n_ctx);
    s->slots = pl_calloc((size_t)n_seqs, sizeof *s->slots);
    s->block_lists = pl_calloc((size_t)n_seqs * per_slot, sizeof *s->block_lists);
    s->picked = pl_calloc((size_t)n_seqs, sizeof(pl_request *));
    if (!s->slots || !s->block_lists || !s->picked) {
        pl_sched_fini(s);
        return pl_fail(err, PL_ERR_NO_MEMORY, "scheduler for %d sequences of %d tokens", n_seqs, n_ctx);
    }
    for (int32_t i = 0; i < n_seqs; i++) s->slots[i].blocks = s->block_lists + (size_t)i * per_slot;
    return PL_OK;
}

static void free_epoch(pl_scheduler *s)
{
    pl_blocks_fini(&s->blocks);
    pl_free(s->frame.ops);
    pl_free(s->frame.seq);
    pl_free(s->frame.logits);
    pl_free(s->sent);
    pl_free(s->samples);
    s->frame = (pl_sched_frame){0};
    s->sent = NULL;
    s->samples = NULL;
    s->sent_first = s->n_sent = 0;
}

void pl_sched_fini(pl_scheduler *s)
{
    pl_error err = {0};
    pl_fail(&err, PL_ERR_CANCELLED, "the coordinator stops");
    if (s->up) pl_sched_down(s);
    while (s->first) pl_sched_end(s, s->first, PL_FINISH_CANCELLED, &err);
    pl_sched_flush(s);
    free_epoch(s);
    pl_free(s->slots);
    pl_free(s->block_lists);
    pl_free(s->picked);
    *s = (pl_scheduler){0};
}

void pl_sched_down(pl_scheduler *s)
{
    if (!s->up) return;
    for (int32_t i = 0; i < s->n_seqs; i++) {
        pl_sched_slot *slot = &s->slots[i];
        pl_request *r = slot->request;
        slot->n_blocks = slot->n_told = 0;
        slot->opened = false;
        slot->request = NULL;
        slot->state = PL_SLOT_FREE;
        if (!r) continue;
        r->slot = -1;
        r->n_sent = 0;
        r->n_replays++;
        back_to_waiting(s, r);
    }
    s->n_running = s->n_closing = 0;
    s->up = false;
    free_epoch(s);
}

/* Tokens that a sequence can have over this pipeline. */
static int32_t longest(const pl_scheduler *s)
{
    int64_t room = (int64_t)s->shape.n_blocks * PL_KV_PAGE;
    return room < s->n_ctx ? (int32_t)room : s->n_ctx;
}

static void refuse_too_long(pl_scheduler *s)
{
    for (pl_request *r = s->first, *next; r; r = next) {
        next = r->next;
        if (r->n_tokens < longest(s)) continue;
        pl_error err = {0};
        pl_fail(&err, PL_ERR_BUDGET, "the sequence has %d tokens and the KV cache of this pipeline holds %d",
                r->n_tokens, longest(s));
        pl_sched_end(s, r, PL_FINISH_ERROR, &err);
    }
}

pl_status pl_sched_up(pl_scheduler *s, const pl_sched_shape *shape, pl_error *err)
{
    pl_sched_down(s);
    const size_t n_seqs = (size_t)s->n_seqs, n_rows = (size_t)shape->n_rows, in_flight = (size_t)shape->in_flight;
    pl_status st = pl_blocks_init(&s->blocks, shape->n_blocks, err);
    /* Per slot: a CLOSE of the request before, an OPEN, two EXTENDs, a CLOSE by preemption. */
    s->frame.ops = pl_calloc(n_seqs * 5, sizeof *s->frame.ops);
    s->frame.seq = pl_calloc(n_rows * 3, sizeof *s->frame.seq);
    s->frame.logits = pl_calloc(n_rows, sizeof *s->frame.logits);
    s->sent = pl_calloc(in_flight, sizeof *s->sent);
    s->samples = pl_calloc(in_flight * n_seqs, sizeof *s->samples);
    if (st != PL_OK || !s->frame.ops || !s->frame.seq || !s->frame.logits || !s->sent || !s->samples) {
        free_epoch(s);
        return pl_fail(err, PL_ERR_NO_MEMORY, "scheduler for frames of %d rows", shape->n_rows);
    }
    s->frame.pos = s->frame.seq + n_rows;
    s->frame.token = s->frame.pos + n_rows;
    for (size_t i = 0; i < in_flight; i++) s->sent[i].samples = s->samples + i * n_seqs;
    s->shape = *shape;
    s->next_frame = 1;
    s->up = true;
    refuse_too_long(s);
    return PL_OK;
}

/* --- Requests --- */

pl_status pl_sched_add(pl_scheduler *s, pl_request *r, pl_error *err)
{
    if (s->n_waiting >= s->queue_max)
        return pl_fail(err, PL_ERR_BUDGET,
                       "%d requests are waiting for one of %d slots already, the most allowed; come back later",
                       s->n_waiting, s->n_seqs);
    if (s->up && r->n_tokens >= longest(s))
        return pl_fail(err, PL_ERR_BUDGET, "the prompt has %d tokens and the KV cache of this pipeline holds %d",
                       r->n_tokens, longest(s));
    r->order = s->next_order++;
    back_to_waiting(s, r);
    link_by_age(s, r);
    s->n_open++;
    return PL_OK;
}

/* Tokens of r that are under way are not wanted any more. */
static void forget_samples(pl_scheduler *s, const pl_request *r)
{
    for (int32_t i = 0; i < s->n_sent; i++) {
        pl_sched_sent *f = &s->sent[(s->sent_first + i) % s->shape.in_flight];
        for (int32_t k = 0; k < f->n_samples; k++)
            if (f->samples[k].request == r) f->samples[k].request = NULL;
    }
}

void pl_sched_end(pl_scheduler *s, pl_request *r, pl_finish why, const pl_error *err)
{
    if (r->state == PL_REQUEST_ENDED) return;
    if (r->state == PL_REQUEST_RUNNING)
        slot_release(s, r);
    else
        s->n_waiting--;
    forget_samples(s, r);
    unlink_open(s, r);
    s->n_open--;
    s->n_ended[why]++;
    r->state = PL_REQUEST_ENDED;
    r->finish = why;
    if (err) r->why = *err;
    r->prev = s->ended_last;
    if (s->ended_last)
        s->ended_last->next = r;
    else
        s->ended_first = r;
    s->ended_last = r;
}

void pl_sched_fail(pl_scheduler *s, uint64_t since_ns, const pl_error *err)
{
    for (pl_request *r = s->first, *next; r; r = next) {
        next = r->next;
        if (r->submitted_ns <= since_ns) pl_sched_end(s, r, PL_FINISH_ERROR, err);
    }
}

void pl_sched_flush(pl_scheduler *s)
{
    pl_request *r;
    while ((r = s->ended_first) != NULL) {
        s->ended_first = r->next;
        if (r->next)
            r->next->prev = NULL;
        else
            s->ended_last = NULL;
        if (r->events.end) r->events.end(r->user, r->finish, r->why.status != PL_OK ? &r->why : NULL);
        pl_request_free(r);
    }
}

/* --- The next frame --- */

static void add_op(pl_scheduler *s, pl_sched_op op)
{
    s->frame.ops[s->frame.n_ops++] = op;
}

static void close_slot(pl_scheduler *s, int32_t seq)
{
    add_op(s, (pl_sched_op){.kind = PACELINE__KV_OP__KIND__CLOSE, .seq = seq});
    slot_free(s, &s->slots[seq]);
    s->n_closing--;
}

static void tell_blocks(pl_scheduler *s, int32_t seq)
{
    pl_sched_slot *slot = &s->slots[seq];
    if (slot->n_told == slot->n_blocks) return;
    add_op(s, (pl_sched_op){.kind = PACELINE__KV_OP__KIND__EXTEND,
                            .seq = seq,
                            .blocks = slot->blocks + slot->n_told,
                            .n_blocks = slot->n_blocks - slot->n_told});
    slot->n_told = slot->n_blocks;
}

/* Oldest first, without overtaking: a large request is not starved by small ones. Beside its own blocks there must be
 * one for each that runs, so that it is not thrown out again at once. */
static void admit(pl_scheduler *s)
{
    for (pl_request *r = s->first; r && s->n_waiting && s->n_running < s->n_seqs; r = r->next) {
        if (r->state != PL_REQUEST_WAITING) continue;
        int32_t seq = 0;
        while (seq < s->n_seqs && s->slots[seq].state != PL_SLOT_FREE) seq++;
        if (seq == s->n_seqs) return;
        pl_sched_slot *slot = &s->slots[seq];
        int32_t need = pl_blocks_for(r->n_tokens);
        if (need + s->n_running > s->blocks.n_free || !pl_blocks_take(&s->blocks, slot->blocks, need)) return;
        *slot = (pl_sched_slot){.state = PL_SLOT_USED, .request = r, .blocks = slot->blocks, .n_blocks = need};
        r->state = PL_REQUEST_RUNNING;
        r->slot = seq;
        r->n_sent = 0;
        r->served = ++s->served;
        s->n_waiting--;
        s->n_running++;
        slot->opened = true;
        add_op(s, (pl_sched_op){.kind = PACELINE__KV_OP__KIND__OPEN, .seq = seq, .request = r});
        tell_blocks(s, seq);
    }
}

static pl_request *youngest_running(const pl_scheduler *s)
{
    pl_request *r = s->last;
    while (r && r->state != PL_REQUEST_RUNNING) r = r->prev;
    return r;
}

/* Blocks for the rows of r up to n_pos. The youngest requests give theirs up when there are none; false when r itself
 * was the youngest. */
static bool find_blocks(pl_scheduler *s, pl_request *r, int32_t n_pos)
{
    pl_sched_slot *slot = &s->slots[r->slot];
    int32_t more = pl_blocks_for(n_pos) - slot->n_blocks;
    if (more <= 0) return true;
    while (!pl_blocks_take(&s->blocks, slot->blocks + slot->n_blocks, more)) {
        pl_request *victim = youngest_running(s);
        PL_LOG(PL_LOG_DEBUG, "sequence preempted", "request=%s blocks=%d", PL_Q(victim->id),
               s->slots[victim->slot].n_blocks);
        int32_t seq = victim->slot;
        slot_release(s, victim);
        close_slot(s, seq);
        s->n_preempted++;
        victim->n_replays++;
        /* A token that is under way would bring a state that a sequence which was opened again before does not have.
         * It is drawn again. */
        if (victim->sample.mirostat != 0) forget_samples(s, victim);
        back_to_waiting(s, victim);
        if (victim == r) return false;
    }
    slot->n_blocks += more;
    tell_blocks(s, r->slot);
    return true;
}

static void add_rows(pl_scheduler *s, pl_request *r, int32_t n)
{
    pl_sched_frame *f = &s->frame;
    pl_sched_sent *sent = &s->sent[(s->sent_first + s->n_sent) % s->shape.in_flight];
    for (int32_t i = 0; i < n; i++, f->n_rows++) {
        f->seq[f->n_rows] = r->slot;
        f->pos[f->n_rows] = r->n_sent;
        f->token[f->n_rows] = r->tokens[r->n_sent++];
    }
    if (r->n_sent == r->n_tokens) {
        f->logits[f->n_logits++] = (uint32_t)f->n_rows - 1;
        sent->samples[sent->n_samples++] = (pl_sched_sample){.request = r, .seq = r->slot, .pos = r->n_tokens};
    }
    r->served = ++s->served;
}

/* The running request that wants to be served, was served longest ago, and is (decode) about one row or about more;
 * NULL: none. */
static pl_request *longest_unserved(const pl_scheduler *s, bool decode, uint64_t served_before)
{
    pl_request *best = NULL;
    for (pl_request *r = s->first; r; r = r->next) {
        if (r->state != PL_REQUEST_RUNNING || r->served > served_before) continue;
        int32_t pending = pl_request_pending(r);
        if (decode ? pending != 1 : pending < 2) continue;
        if (!best || r->served < best->served) best = r;
    }
    return best;
}

static void decode_rows(pl_scheduler *s, int32_t most)
{
    /* Chosen first, then by age: a preemption takes the youngest, which must not have rows in this frame yet. */
    const uint64_t now = s->served;
    int32_t n = 0;
    pl_request *r;
    while (n < most && (r = longest_unserved(s, true, now)) != NULL) {
        r->served = ++s->served;
        int32_t at = n++;
        for (; at > 0 && s->picked[at - 1]->order > r->order; at--) s->picked[at] = s->picked[at - 1];
        s->picked[at] = r;
    }
    for (int32_t i = 0; i < n; i++) {
        r = s->picked[i];
        if (r->state == PL_REQUEST_RUNNING && find_blocks(s, r, r->n_tokens)) add_rows(s, r, 1);
    }
}

/* A prompt is cut so that all stages work on it at once, instead of one after the other. */
static int32_t chunk_of(const pl_scheduler *s, const pl_request *r)
{
    if (s->shape.n_stages < 2) return s->shape.n_rows;
    int32_t share = (r->n_tokens + s->shape.n_stages - 1) / s->shape.n_stages;
    return share > CHUNK_STAGE ? share : CHUNK_STAGE;
}

static void prompt_rows(pl_scheduler *s, int32_t most)
{
    const uint64_t now = s->served;
    pl_request *r;
    while (most > 0 && (r = longest_unserved(s, false, now)) != NULL) {
        int32_t n = pl_request_pending(r) < most ? pl_request_pending(r) : most;
        if (n > chunk_of(s, r)) n = chunk_of(s, r);
        /* Its blocks were taken when it was let in. A token that came since, from rows sent before a preemption, waits
         * for the decoding path, which can preempt. */
        int32_t room = s->slots[r->slot].n_blocks * PL_KV_PAGE - r->n_sent;
        if (n > room) n = room;
        if (n <= 0) {
            r->served = ++s->served;
            continue;
        }
        add_rows(s, r, n);
        most -= n;
    }
}

/* Rows for the next group: those that decode are shared out evenly over the groups, and so are those that are ready
 * over the groups that are not under way; four requests over three groups are 2, 1, 1 and not 2, 2. */
static int32_t group_size(const pl_scheduler *s, int32_t n_decoding, int32_t n_ready)
{
    int32_t under_way = 0;
    for (int32_t i = 0; i < s->n_sent; i++)
        under_way += s->sent[(s->sent_first + i) % s->shape.in_flight].n_samples > 0;
    int32_t groups = n_decoding < s->shape.groups ? n_decoding : s->shape.groups;
    int32_t left = groups > under_way ? groups - under_way : 1;
    int32_t all = (n_decoding + groups - 1) / groups, ready = (n_ready + left - 1) / left;
    return all < ready ? all : ready;
}

const pl_sched_frame *pl_sched_next(pl_scheduler *s, uint64_t now_ns)
{
    if (!s->up || s->n_sent == s->shape.in_flight) return NULL;
    pl_sched_frame *f = &s->frame;
    f->n_ops = f->n_rows = f->n_logits = 0;
    pl_sched_sent *sent = &s->sent[(s->sent_first + s->n_sent) % s->shape.in_flight];
    sent->n_samples = 0;
    for (int32_t i = 0; i < s->n_seqs && s->n_closing; i++)
        if (s->slots[i].state == PL_SLOT_CLOSING) close_slot(s, i);
    admit(s);

    int32_t n_decoding = 0, n_ready = 0, n_prompts = 0;
    for (const pl_request *r = s->first; r; r = r->next)
        if (r->state == PL_REQUEST_RUNNING) {
            n_prompts += pl_request_pending(r) > 1;
            n_decoding += pl_request_pending(r) <= 1;
            n_ready += pl_request_pending(r) == 1;
        }
    int32_t rows = s->shape.n_rows;
    if (n_ready) {
        int32_t room = rows;
        if (n_prompts) {
            /* A quarter stays for prompts, so that many streams cannot lock them out; frames of one row take turns. */
            room -= rows / CHUNK_SHARE > 1 ? rows / CHUNK_SHARE : 1;
            if (rows == 1) room = (int32_t)(s->next_frame & 1);
        }
        int32_t most = group_size(s, n_decoding, n_ready);
        decode_rows(s, most < room ? most : room);
    }
    int32_t left = rows - f->n_rows;
    if (n_decoding) {
        int32_t chunk = rows / CHUNK_SHARE > CHUNK_MIN ? rows / CHUNK_SHARE : CHUNK_MIN;
        if (left > chunk) left = chunk;
    }
    int32_t before = f->n_rows;
    prompt_rows(s, left);
    s->n_prefilled += (uint64_t)(f->n_rows - before);
    if (f->n_ops == 0 && f->n_rows == 0) return NULL;
    f->id = s->next_frame++;
    sent->id = f->id;
    sent->n_rows = f->n_rows;
    sent->sent_ns = now_ns;
    s->n_sent++;
    return f;
}

const pl_sched_sent *pl_sched_oldest(const pl_scheduler *s, int64_t *rows)
{
    *rows = 0;
    for (int32_t i = 0; i < s->n_sent; i++) *rows += s->sent[(s->sent_first + i) % s->shape.in_flight].n_rows;
    return s->n_sent ? &s->sent[s->sent_first] : NULL;
}

/* --- Results --- */

static void take_token(pl_scheduler *s, pl_request *r, const pl_sampled *t)
{
    if (!r->ignore_eos && s->is_eog && s->is_eog(s->eog_user, t->token)) {
        pl_sched_end(s, r, PL_FINISH_STOP, NULL);
        return;
    }
    if (!pl_request_append(r, t)) {
        pl_error err = {0};
        pl_fail(&err, PL_ERR_NO_MEMORY, "request %s: no memory for its %d tokens", r->id, r->n_tokens + 1);
        pl_sched_end(s, r, PL_FINISH_ERROR, &err);
        return;
    }
    r->served = ++s->served;
    s->n_emitted++;
    if (r->events.token) r->events.token(r->user, t);
    /* Its function may have cancelled it; it is freed only when its end was told. */
    if (r->state == PL_REQUEST_ENDED) return;
    if (pl_request_emitted(r) >= r->max_tokens || r->n_tokens >= longest(s)) pl_sched_end(s, r, PL_FINISH_LENGTH, NULL);
}

pl_status pl_sched_result(pl_scheduler *s, uint64_t frame, const pl_sampled *tokens, const int32_t *seq,
                          const int32_t *pos, int32_t n, pl_error *err)
{
    if (!s->n_sent)
        return pl_fail(err, PL_ERR_FORMAT, "result of frame %llu, but none is in flight", (unsigned long long)frame);
    pl_sched_sent *f = &s->sent[s->sent_first];
    if (f->id != frame)
        return pl_fail(err, PL_ERR_FORMAT, "result of frame %llu, expected %llu", (unsigned long long)frame,
                       (unsigned long long)f->id);
    if (f->n_samples != n)
        return pl_fail(err, PL_ERR_FORMAT, "result of frame %llu has %d tokens, asked for %d",
                       (unsigned long long)frame, n, f->n_samples);
    for (int32_t i = 0; i < n; i++) {
        if (f->samples[i].seq != seq[i] || f->samples[i].pos != pos[i])
            return pl_fail(err, PL_ERR_FORMAT,
                           "result of frame %llu: token %d is of sequence %d position %d, expected %d position %d",
                           (unsigned long long)frame, i, seq[i], pos[i], f->samples[i].seq, f->samples[i].pos);
        if (tokens[i].token < 0 || tokens[i].token >= s->n_vocab)
            return pl_fail(err, PL_ERR_FORMAT, "result of frame %llu: token %d is not in the vocabulary of %d",
                           (unsigned long long)frame, tokens[i].token, s->n_vocab);
    }
    for (int32_t i = 0; i < n; i++) {
        /* A request that was preempted and let in again may get the same token twice: draws depend on the position
         * only. */
        pl_request *r = f->samples[i].request;
        f->samples[i].request = NULL;
        if (r && r->n_tokens == pos[i]) take_token(s, r, &tokens[i]);
    }
    s->sent_first = (s->sent_first + 1) % s->shape.in_flight;
    s->n_sent--;
    return PL_OK;
}

/* --- Invariants --- */

const char *pl_sched_invariants(const pl_scheduler *s)
{
    int32_t open = 0, waiting = 0, running = 0, closing = 0, taken = 0;
    const pl_request *before = NULL;
    for (const pl_request *r = s->first; r; before = r, r = r->next) {
        open++;
        if (r->prev != before) return "the list of open requests is broken";
        if (before && before->order >= r->order) return "open requests are not in order of age";
        if (r->state == PL_REQUEST_ENDED) return "an ended request is open";
        if (r->state == PL_REQUEST_WAITING) {
            waiting++;
            if (r->slot != -1 || r->n_sent) return "a waiting request has something of an epoch";
            continue;
        }
        running++;
        if (!s->up) return "a request runs without a pipeline";
        if (r->slot < 0 || r->slot >= s->n_seqs || s->slots[r->slot].request != r)
            return "a running request has no slot";
        if (r->n_sent > r->n_tokens) return "more was sent than is known";
        if (pl_blocks_for(r->n_sent) > s->slots[r->slot].n_told) return "rows were sent without blocks";
    }
    if (open != s->n_open || waiting != s->n_waiting || running != s->n_running) return "requests are miscounted";
    for (int32_t i = 0; i < s->n_seqs; i++) {
        const pl_sched_slot *slot = &s->slots[i];
        taken += slot->n_blocks;
        closing += slot->state == PL_SLOT_CLOSING;
        if ((slot->state == PL_SLOT_USED) != (slot->request != NULL)) return "a slot's state and request differ";
        if (slot->state == PL_SLOT_FREE && slot->n_blocks) return "a free slot has blocks";
    }
    if (closing != s->n_closing) return "closing slots are miscounted";
    if (s->up && taken + s->blocks.n_free != s->shape.n_blocks) return "KV blocks got lost";
    return NULL;
}
