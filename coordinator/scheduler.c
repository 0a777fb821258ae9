#include "coordinator/scheduler.h"

#include "engine/base/alloc.h"
#include "engine/base/log.h"

#include <string.h>

#define CHUNK_SHARE                                                                                                    \
    4 /* of the rows of a frame, for prompts while others decode: they wait little for a longer frame                  \
       */
#define KEEP_MIN    PL_KV_PAGE /* positions from which a common beginning is worth a fork, and a sequence a slot */
#define DRAFT_START 4          /* guesses of a request's first try; then as many as were right, and one more */
#define CHUNK_MIN   32         /* but not less than this, or prompts crawl */
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
    slot->opened = slot->rewound = false;
    slot->request = NULL;
    slot->state = PL_SLOT_FREE;
}

/* What no stage has heard of needs no CLOSE. */
static void slot_retire(pl_scheduler *s, pl_sched_slot *slot)
{
    slot->request = NULL;
    if (slot->opened) {
        slot->state = PL_SLOT_CLOSING;
        s->n_closing++;
    } else {
        slot_free(s, slot);
    }
}

static void forget_kept(pl_scheduler *s, pl_sched_slot *slot)
{
    pl_free(slot->tokens);
    slot->tokens = NULL;
    slot->n_tokens = 0;
    s->n_kept--;
}

/* Lets the kept sequence that was used longest ago go, but not the one in slot `but`. NULL: there is none. */
static pl_sched_slot *drop_kept(pl_scheduler *s, int32_t but)
{
    pl_sched_slot *oldest = NULL;
    for (int32_t i = 0; i < s->n_slots && s->n_kept; i++) {
        pl_sched_slot *slot = &s->slots[i];
        if (slot->state == PL_SLOT_KEPT && i != but && (!oldest || slot->kept < oldest->kept)) oldest = slot;
    }
    if (!oldest) return NULL;
    forget_kept(s, oldest);
    slot_retire(s, oldest);
    return oldest;
}

static void run_ends(pl_scheduler *s, pl_request *r)
{
    r->slot = -1;
    r->n_sent = r->n_draft = 0;
    s->n_running--;
}

/* Takes the slot away from its request. */
static void slot_release(pl_scheduler *s, pl_request *r)
{
    slot_retire(s, &s->slots[r->slot]);
    run_ends(s, r);
}

/* The same for a request that ends: its sequence stays, with the record of its tokens, if it is long enough. */
static void slot_keep(pl_scheduler *s, pl_request *r)
{
    pl_sched_slot *slot = &s->slots[r->slot];
    if (!s->o.n_kept || !slot->opened || r->n_sent < KEEP_MIN) {
        slot_release(s, r);
        return;
    }
    if (s->n_kept == s->o.n_kept) (void)drop_kept(s, -1);
    slot->request = NULL;
    slot->state = PL_SLOT_KEPT;
    slot->tokens = r->tokens;
    slot->n_tokens = r->n_sent;
    slot->kept = ++s->served;
    r->tokens = NULL;
    s->n_kept++;
    run_ends(s, r);
}

static void back_to_waiting(pl_scheduler *s, pl_request *r)
{
    r->state = PL_REQUEST_WAITING;
    r->served = 0;
    s->n_waiting++;
}

/* --- Life --- */

pl_status pl_sched_init(pl_scheduler *s, const pl_sched_options *options, pl_error *err)
{
    *s = (pl_scheduler){.o = *options, .n_slots = options->n_seqs + options->n_kept};
    const size_t n_slots = (size_t)s->n_slots, per_slot = (size_t)pl_blocks_for(options->n_ctx);
    s->slots = pl_calloc(n_slots, sizeof *s->slots);
    s->block_lists = pl_calloc(n_slots * per_slot, sizeof *s->block_lists);
    s->picked = pl_calloc((size_t)options->n_seqs, sizeof(pl_request *));
    if (!s->slots || !s->block_lists || !s->picked) {
        pl_sched_fini(s);
        return pl_fail(err, PL_ERR_NO_MEMORY, "scheduler for %zu sequences of %d tokens", n_slots, options->n_ctx);
    }
    for (size_t i = 0; i < n_slots; i++) s->slots[i].blocks = s->block_lists + i * per_slot;
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
    for (int32_t i = 0; i < s->n_slots; i++) {
        pl_sched_slot *slot = &s->slots[i];
        pl_request *r = slot->request;
        if (slot->state == PL_SLOT_KEPT) forget_kept(s, slot);
        slot->n_blocks = slot->n_told = 0;
        slot->opened = slot->rewound = false;
        slot->request = NULL;
        slot->state = PL_SLOT_FREE;
        if (!r) continue;
        run_ends(s, r);
        r->n_replays++;
        back_to_waiting(s, r);
    }
    s->n_closing = 0;
    s->up = false;
    free_epoch(s);
}

/* Tokens that a sequence can have over this pipeline. */
static int32_t longest(const pl_scheduler *s)
{
    int64_t room = (int64_t)s->shape.n_blocks * PL_KV_PAGE;
    return room < s->o.n_ctx ? (int32_t)room : s->o.n_ctx;
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
    const size_t n_slots = (size_t)s->n_slots, n_rows = (size_t)shape->n_rows, in_flight = (size_t)shape->in_flight;
    pl_status st = pl_blocks_init(&s->blocks, shape->n_blocks, err);
    /* Per slot: a CLOSE of the sequence before, an OPEN, a FORK, an EXTEND; a TRUNCATE, two EXTENDs; a CLOSE by
     * preemption. */
    s->frame.ops = pl_calloc(n_slots * 8, sizeof *s->frame.ops);
    s->frame.seq = pl_calloc(n_rows * 3, sizeof *s->frame.seq);
    s->frame.logits = pl_calloc(n_rows, sizeof *s->frame.logits);
    s->sent = pl_calloc(in_flight, sizeof *s->sent);
    s->samples = pl_calloc(in_flight * n_rows, sizeof *s->samples);
    if (st != PL_OK || !s->frame.ops || !s->frame.seq || !s->frame.logits || !s->sent || !s->samples) {
        free_epoch(s);
        return pl_fail(err, PL_ERR_NO_MEMORY, "scheduler for frames of %d rows", shape->n_rows);
    }
    s->frame.pos = s->frame.seq + n_rows;
    s->frame.token = s->frame.pos + n_rows;
    for (size_t i = 0; i < in_flight; i++) s->sent[i].samples = s->samples + i * n_rows;
    s->shape = *shape;
    s->next_frame = 1;
    s->up = true;
    refuse_too_long(s);
    return PL_OK;
}

/* --- Requests --- */

pl_status pl_sched_add(pl_scheduler *s, pl_request *r, pl_error *err)
{
    if (s->n_waiting >= s->o.queue_max)
        return pl_fail(err, PL_ERR_BUDGET,
                       "%d requests are waiting for one of %d slots already, the most allowed; come back later",
                       s->n_waiting, s->o.n_seqs);
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
        slot_keep(s, r);
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

/* Drops one more kept sequence, in this frame. */
static bool make_room(pl_scheduler *s, int32_t but)
{
    pl_sched_slot *slot = drop_kept(s, but);
    if (slot && slot->state == PL_SLOT_CLOSING) close_slot(s, (int32_t)(slot - s->slots));
    return slot != NULL;
}

/* The sequence that shares the longest beginning with r, all but its last token at most, and how long that is; -1 when
 * none is worth it. */
static int32_t find_prefix(const pl_scheduler *s, const pl_request *r, int32_t *n_pos)
{
    int32_t best = -1;
    *n_pos = KEEP_MIN - 1;
    for (int32_t i = 0; i < s->n_slots && !r->no_cache; i++) {
        const pl_sched_slot *slot = &s->slots[i];
        if (slot->state != PL_SLOT_KEPT && (slot->state != PL_SLOT_USED || !slot->opened)) continue;
        if (memcmp(slot->adapters, r->adapters, sizeof slot->adapters) != 0) continue;
        const int32_t *tokens = slot->request ? slot->request->tokens : slot->tokens;
        int32_t most = slot->request ? slot->request->n_sent : slot->n_tokens, n = 0;
        if (most > r->n_tokens - 1) most = r->n_tokens - 1;
        while (n < most && tokens[n] == r->tokens[n]) n++;
        if (n <= *n_pos) continue;
        *n_pos = n;
        best = i;
    }
    if (best < 0) *n_pos = 0;
    return best;
}

/* Full pages are shared, the rest of the last one is copied. */
static void fork_from(pl_scheduler *s, int32_t seq, int32_t src, int32_t n_pos)
{
    pl_sched_slot *slot = &s->slots[seq], *from = &s->slots[src];
    int32_t copy = n_pos % PL_KV_PAGE != 0;
    slot->n_told = n_pos / PL_KV_PAGE + copy;
    add_op(s, (pl_sched_op){.kind = PACELINE__KV_OP__KIND__FORK,
                            .seq = seq,
                            .src = src,
                            .n_pos = n_pos,
                            .blocks = slot->blocks + n_pos / PL_KV_PAGE,
                            .n_blocks = copy});
    if (from->state != PL_SLOT_KEPT) return;
    from->kept = ++s->served;
    if (n_pos < from->n_tokens) return;
    /* All that it had lives on in the fork. */
    forget_kept(s, from);
    slot_retire(s, from);
    close_slot(s, src);
}

/* Oldest first, without overtaking: a large request is not starved by small ones. Beside its own blocks there must be
 * one for each that runs, so that it is not thrown out again at once. */
static void admit(pl_scheduler *s)
{
    for (pl_request *r = s->first; r && s->n_waiting && s->n_running < s->o.n_seqs; r = r->next) {
        if (r->state != PL_REQUEST_WAITING) continue;
        int32_t n_pos, src = find_prefix(s, r, &n_pos), seq = 0;
        while (pl_blocks_for(r->n_tokens) - n_pos / PL_KV_PAGE + s->n_running > s->blocks.n_free) {
            if (make_room(s, src)) continue;
            if (src < 0 || s->slots[src].state != PL_SLOT_KEPT) return;
            src = -1; /* what it has in common is in the way of the rest */
            n_pos = 0;
        }
        for (; seq < s->n_slots && s->slots[seq].state != PL_SLOT_FREE;) {
            seq++;
            if (seq == s->n_slots && make_room(s, src)) seq = 0;
        }
        if (seq == s->n_slots) return;
        pl_sched_slot *slot = &s->slots[seq];
        int32_t shared = n_pos / PL_KV_PAGE, need = pl_blocks_for(r->n_tokens) - shared;
        if (!pl_blocks_take(&s->blocks, slot->blocks + shared, need)) return;
        if (shared) {
            memcpy(slot->blocks, s->slots[src].blocks, (size_t)shared * sizeof *slot->blocks);
            pl_blocks_share(&s->blocks, slot->blocks, shared);
        }
        *slot = (pl_sched_slot){
            .state = PL_SLOT_USED, .opened = true, .request = r, .blocks = slot->blocks, .n_blocks = shared + need};
        memcpy(slot->adapters, r->adapters, sizeof slot->adapters);
        r->state = PL_REQUEST_RUNNING;
        r->slot = seq;
        r->run = ++s->next_run;
        r->n_sent = n_pos;
        r->n_draft = r->n_guess = 0;
        r->guessed_at = 0;
        r->draft_len = DRAFT_START;
        r->served = ++s->served;
        s->n_waiting--;
        s->n_running++;
        add_op(s, (pl_sched_op){.kind = PACELINE__KV_OP__KIND__OPEN, .seq = seq, .request = r});
        if (src >= 0) fork_from(s, seq, src, n_pos);
        if (r->n_replays == 0) r->stats.n_cached = n_pos;
        s->n_cached += (uint64_t)n_pos;
        tell_blocks(s, seq);
    }
}

static pl_request *youngest_running(const pl_scheduler *s)
{
    pl_request *r = s->last;
    while (r && r->state != PL_REQUEST_RUNNING) r = r->prev;
    return r;
}

/* The positions of wrong guesses, with the pages behind them: the blocks stay with the slot, and are told anew. */
static void rewind_slot(pl_scheduler *s, const pl_request *r)
{
    pl_sched_slot *slot = &s->slots[r->slot];
    if (!slot->rewound) return;
    slot->rewound = false;
    add_op(s, (pl_sched_op){.kind = PACELINE__KV_OP__KIND__TRUNCATE, .seq = r->slot, .n_pos = r->n_sent});
    int32_t left = pl_blocks_for(r->n_sent);
    if (slot->n_told > left) slot->n_told = left;
    tell_blocks(s, r->slot);
}

/* Blocks for the rows of r up to n_pos. Kept sequences go first when there are none, then the youngest requests give
 * theirs up; false when r itself was the youngest. */
static bool find_blocks(pl_scheduler *s, pl_request *r, int32_t n_pos)
{
    pl_sched_slot *slot = &s->slots[r->slot];
    int32_t more = pl_blocks_for(n_pos) - slot->n_blocks;
    if (more <= 0) return true;
    while (!pl_blocks_take(&s->blocks, slot->blocks + slot->n_blocks, more)) {
        if (make_room(s, -1)) continue;
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
        sent->samples[sent->n_samples++] =
            (pl_sched_sample){.request = r, .run = r->run, .seq = r->slot, .pos = r->n_tokens, .guess = -1};
    }
    r->served = ++s->served;
}

/* How many of r's guesses go out: their answers, and one more token, must be wanted; their rows must have room in the
 * frame and blocks that nobody else needs. */
static int32_t guesses_of(pl_scheduler *s, const pl_request *r, int32_t rows_left)
{
    int32_t n = r->n_guess < r->draft_len ? r->n_guess : r->draft_len;
    if (n > rows_left) n = rows_left;
    int32_t wanted = r->max_tokens - r->n_emitted - 1, context = longest(s) - r->n_tokens - 1;
    if (n > wanted) n = wanted;
    if (n > context) n = context;
    if (n <= 0) return 0;
    pl_sched_slot *slot = &s->slots[r->slot];
    int32_t more = pl_blocks_for(r->n_tokens + n) - slot->n_blocks;
    if (more > 0 && more + s->n_running <= s->blocks.n_free &&
        pl_blocks_take(&s->blocks, slot->blocks + slot->n_blocks, more))
        slot->n_blocks += more;
    tell_blocks(s, r->slot);
    int32_t room = slot->n_blocks * PL_KV_PAGE - r->n_tokens;
    return n < room ? n : room;
}

/* Behind the row of the last known token. */
static void add_guesses(pl_scheduler *s, pl_request *r, int32_t n)
{
    pl_sched_frame *f = &s->frame;
    pl_sched_sent *sent = &s->sent[(s->sent_first + s->n_sent) % s->shape.in_flight];
    for (int32_t i = 0; i < n; i++, f->n_rows++) {
        f->seq[f->n_rows] = r->slot;
        f->pos[f->n_rows] = r->n_tokens + i;
        f->token[f->n_rows] = r->guesses[i];
        f->logits[f->n_logits++] = (uint32_t)f->n_rows;
        sent->samples[sent->n_samples++] = (pl_sched_sample){
            .request = r, .run = r->run, .seq = r->slot, .pos = r->n_tokens + i + 1, .guess = r->guesses[i]};
    }
    r->n_draft = n;
    r->stats.n_drafted += n;
    s->n_drafted += (uint64_t)n;
}

/* Asks for guesses of what follows r's tokens, once for each length. False: they are not there yet. */
static bool guessed(pl_scheduler *s, pl_request *r)
{
    /* Mirostat's state and a grammar's go on with every token that is drawn, the wrong ones as well. */
    if (!s->o.n_draft || r->sample.mirostat || r->sample.grammar.size) return true;
    if (r->guessed_at == r->n_tokens) return true;
    int32_t n = s->o.guess(s->o.guess_user, r, r->guesses, s->o.n_draft);
    if (n < 0) return false;
    r->guessed_at = r->n_tokens;
    r->n_guess = 0;
    /* A source is not trusted to know this model's vocabulary. */
    while (r->n_guess < n && r->guesses[r->n_guess] >= 0 && r->guesses[r->n_guess] < s->o.n_vocab) r->n_guess++;
    return true;
}

static bool is_ready(pl_scheduler *s, pl_request *r)
{
    return r->state == PL_REQUEST_RUNNING && pl_request_pending(r) == 1 && guessed(s, r);
}

/* The running request that wants to be served, was served longest ago, and is (decode) about one row or about more;
 * NULL: none. */
static pl_request *longest_unserved(pl_scheduler *s, bool decode, uint64_t served_before)
{
    pl_request *best = NULL;
    for (pl_request *r = s->first; r; r = r->next) {
        if (r->state != PL_REQUEST_RUNNING || r->served > served_before) continue;
        if (decode ? !is_ready(s, r) : pl_request_pending(r) < 2) continue;
        if (!best || r->served < best->served) best = r;
    }
    return best;
}

/* Of at most `most` requests, with rows_max rows. */
static void decode_rows(pl_scheduler *s, int32_t most, int32_t rows_max)
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
        if (r->state != PL_REQUEST_RUNNING) continue;
        rewind_slot(s, r);
        if (!find_blocks(s, r, r->n_tokens)) continue;
        int32_t left = rows_max - s->frame.n_rows - (n - i), guesses = guesses_of(s, r, left);
        add_rows(s, r, 1);
        add_guesses(s, r, guesses);
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
        rewind_slot(s, r);
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
    for (int32_t i = 0; i < s->n_slots && s->n_closing; i++)
        if (s->slots[i].state == PL_SLOT_CLOSING) close_slot(s, i);
    admit(s);

    int32_t n_decoding = 0, n_ready = 0, n_prompts = 0;
    for (pl_request *r = s->first; r; r = r->next)
        if (r->state == PL_REQUEST_RUNNING) {
            n_prompts += pl_request_pending(r) > 1;
            n_decoding += pl_request_pending(r) <= 1;
            n_ready += is_ready(s, r);
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
        decode_rows(s, most < room ? most : room, room);
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

/* The shorter text is a new sequence. */
static void shift(pl_scheduler *s, pl_request *r)
{
    pl_request_shift(r);
    forget_samples(s, r);
    if (r->state != PL_REQUEST_RUNNING) return;
    slot_release(s, r);
    back_to_waiting(s, r);
}

static void take_token(pl_scheduler *s, pl_request *r, const pl_sampled *t)
{
    if (!r->ignore_eos && s->o.is_eog && s->o.is_eog(s->o.eog_user, t->token)) {
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
    if (r->n_emitted >= r->max_tokens) {
        pl_sched_end(s, r, PL_FINISH_LENGTH, NULL);
    } else if (r->n_tokens >= longest(s)) {
        /* Only where the context ends is a place that every pipeline has in common. */
        if (r->context_shift && r->n_tokens >= s->o.n_ctx)
            shift(s, r);
        else
            pl_sched_end(s, r, PL_FINISH_LENGTH, NULL);
    }
}

/* One request's samples of a frame: of its last known token, then of n - 1 guesses. */
static void take_samples(pl_scheduler *s, pl_sched_sample *samples, const pl_sampled *tokens, int32_t n)
{
    pl_request *r = samples[0].request;
    const uint64_t run = samples[0].run;
    int32_t n_right = 0;
    for (int32_t i = 0; i < n; i++) {
        /* A request that was preempted and let in again may get the same token twice: draws depend on the position and
         * the tokens before it only. One that ended on the way is not in the rest of them any more. */
        const pl_sched_sample *e = &samples[i];
        if (!e->request || r->n_tokens != e->pos || (e->guess >= 0 && r->tokens[e->pos - 1] != e->guess)) break;
        if (e->guess >= 0) {
            n_right++;
            r->stats.n_accepted++;
            s->n_accepted++;
        }
        take_token(s, r, &tokens[i]);
    }
    for (int32_t i = 0; i < n; i++) samples[i].request = NULL;
    if (!r || r->state != PL_REQUEST_RUNNING || r->run != run || !r->n_draft) return;
    r->n_sent += n_right;
    s->slots[r->slot].rewound = n_right < r->n_draft;
    r->draft_len = n_right < r->n_draft ? n_right + 1 : 2 * r->n_draft;
    r->n_draft = 0;
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
        if (tokens[i].token < 0 || tokens[i].token >= s->o.n_vocab)
            return pl_fail(err, PL_ERR_FORMAT, "result of frame %llu: token %d is not in the vocabulary of %d",
                           (unsigned long long)frame, tokens[i].token, s->o.n_vocab);
    }
    for (int32_t i = 0, end; i < n; i = end) {
        end = i + 1;
        while (end < n && f->samples[end].guess >= 0) end++;
        take_samples(s, f->samples + i, tokens + i, end - i);
    }
    s->sent_first = (s->sent_first + 1) % s->shape.in_flight;
    s->n_sent--;
    return PL_OK;
}

/* --- Invariants --- */

const char *pl_sched_invariants(const pl_scheduler *s)
{
    int32_t open = 0, waiting = 0, running = 0, closing = 0, kept = 0, taken = 0;
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
        if (r->slot < 0 || r->slot >= s->n_slots || s->slots[r->slot].request != r)
            return "a running request has no slot";
        if (r->n_sent > r->n_tokens) return "more was sent than is known";
        if (pl_blocks_for(r->n_sent + r->n_draft) > s->slots[r->slot].n_told) return "rows were sent without blocks";
    }
    if (open != s->n_open || waiting != s->n_waiting || running != s->n_running) return "requests are miscounted";
    for (int32_t i = 0; i < s->n_slots; i++) {
        const pl_sched_slot *slot = &s->slots[i];
        taken += slot->n_blocks;
        kept += slot->state == PL_SLOT_KEPT;
        if ((slot->state == PL_SLOT_KEPT) != (slot->tokens != NULL)) return "a kept slot has no tokens, or another has";
        closing += slot->state == PL_SLOT_CLOSING;
        if ((slot->state == PL_SLOT_USED) != (slot->request != NULL)) return "a slot's state and request differ";
        if (slot->state == PL_SLOT_FREE && slot->n_blocks) return "a free slot has blocks";
    }
    if (closing != s->n_closing) return "closing slots are miscounted";
    if (kept != s->n_kept || kept > s->o.n_kept) return "kept slots are miscounted";
    if (!s->up) return taken ? "blocks are held without a pipeline" : NULL;
    int32_t owned = 0, owners = 0;
    for (int32_t i = 0; i < s->blocks.n; i++) {
        owned += s->blocks.owners[i] > 0;
        owners += s->blocks.owners[i];
    }
    if (owned + s->blocks.n_free != s->shape.n_blocks || owners != taken) return "KV blocks got lost";
    return NULL;
}
