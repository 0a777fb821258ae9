/* The scheduler over a pipeline that checks every frame as a stage would, and computes each token from all tokens
 * before it. */
#include "coordinator/guess.h"
#include "coordinator/scheduler.h"

#include "engine/base/rng.h"

#include <check.h>
#include <stdlib.h>

enum {
    VOCAB = 97,
    EOG = 0,
    SEQS_MAX = 8,
    SLOTS_MAX = 2 * SEQS_MAX,
    CTX_MAX = 512,
    BLOCKS_MAX = 128,
    FLIGHT_MAX = 16,
    ROWS_MAX = 512,
    REQUESTS_MAX = 64
};

/* --- A model: the next token is a hash of the tokens before. --- */

static int32_t next_token(const int32_t *tokens, int32_t n, uint64_t seed)
{
    uint64_t h = seed ^ 0x9e3779b97f4a7c15u;
    for (int32_t i = 0; i < n; i++) h = (h ^ (uint64_t)tokens[i]) * 0x100000001b3u;
    h ^= h >> 29;
    return (int32_t)(h % VOCAB);
}

static bool is_eog(void *user, int32_t token)
{
    (void)user;
    return token == EOG;
}

/* --- The last stage's view of the sequences --- */

typedef struct fake_seq {
    bool open;
    uint64_t seed;
    int32_t told[CTX_MAX], known; /* tokens told by OPEN */
    int32_t n;                    /* rows computed: their tokens are in the pages, as the cache has them */
    int32_t blocks[BLOCKS_MAX], n_blocks;
} fake_seq;

typedef struct flight {
    uint64_t id;
    int32_t n;
    int32_t seq[ROWS_MAX], pos[ROWS_MAX];
    pl_sampled tokens[ROWS_MAX];
} flight;

typedef struct client {
    pl_request *request; /* NULL when it ended */
    bool used, ended, cancelled;
    pl_finish why;
    pl_error err;
    int32_t prompt[CTX_MAX], n_prompt, max_tokens;
    uint64_t seed;
    bool ignore_eos, shifts;
    int32_t n_keep;
    int32_t got[CTX_MAX], n_got;
} client;

typedef struct world {
    pl_scheduler s;
    pl_rng rng;
    uint64_t seed;
    int32_t n_seqs, n_slots, n_ctx;
    pl_sched_shape shape;
    fake_seq seqs[SLOTS_MAX];
    int32_t owners[BLOCKS_MAX], pages[BLOCKS_MAX][PL_KV_PAGE];
    bool guesses;
    pl_rng guess_rng;
    uint64_t next_id;
    flight flights[FLIGHT_MAX];
    int32_t n_flights;
    client clients[REQUESTS_MAX];
    int32_t n_clients;
    int32_t widest; /* decoding rows in a frame */
} world;

static void on_token(void *user, const pl_sampled *t)
{
    client *c = user;
    ck_assert(!c->ended);
    c->got[c->n_got++] = t->token;
}

static void on_end(void *user, pl_finish why, const pl_error *err)
{
    client *c = user;
    ck_assert(!c->ended);
    c->ended = true;
    c->why = why;
    if (err) c->err = *err;
    c->request = NULL;
}

static void stages_forget(world *w)
{
    memset(w->seqs, 0, sizeof w->seqs);
    memset(w->owners, 0, sizeof w->owners);
    w->n_flights = 0;
    w->next_id = 1;
}

static void take_block(world *w, fake_seq *q, int32_t b)
{
    ck_assert(b >= 0 && b < w->shape.n_blocks);
    ck_assert_msg(w->owners[b] == 0, "seed %llu: block %d is given, and %d have it", (unsigned long long)w->seed, b,
                  w->owners[b]);
    w->owners[b] = 1;
    q->blocks[q->n_blocks++] = b;
}

static void drop_blocks(world *w, fake_seq *q, int32_t n_left)
{
    while (q->n_blocks > n_left) w->owners[q->blocks[--q->n_blocks]]--;
}

static int32_t read_tokens(const world *w, const fake_seq *q, int32_t *out)
{
    for (int32_t i = 0; i < q->n; i++) out[i] = w->pages[q->blocks[i / PL_KV_PAGE]][i % PL_KV_PAGE];
    return q->n;
}

static void run_op(world *w, const pl_sched_op *op)
{
    ck_assert(op->seq >= 0 && op->seq < w->n_slots);
    fake_seq *q = &w->seqs[op->seq];
    switch (op->kind) {
    case PACELINE__KV_OP__KIND__OPEN: {
        ck_assert(!q->open);
        *q = (fake_seq){.open = true};
        Paceline__Sequence record;
        Paceline__Params params;
        pl_request_record(op->request, &record, &params);
        q->seed = record.seed;
        q->known = (int32_t)(record.n_prompt + record.n_emitted);
        memcpy(q->told, record.prompt, record.n_prompt * sizeof(int32_t));
        memcpy(q->told + record.n_prompt, record.emitted, record.n_emitted * sizeof(int32_t));
        break;
    }
    case PACELINE__KV_OP__KIND__EXTEND:
        ck_assert(q->open);
        for (int32_t i = 0; i < op->n_blocks; i++) take_block(w, q, op->blocks[i]);
        break;
    case PACELINE__KV_OP__KIND__FORK: {
        const fake_seq *from = &w->seqs[op->src];
        ck_assert(q->open && from->open && q->n_blocks == 0);
        ck_assert_int_le(op->n_pos, from->n);
        ck_assert_int_eq(op->n_blocks, op->n_pos % PL_KV_PAGE != 0);
        for (int32_t i = 0; i < op->n_pos / PL_KV_PAGE; i++) {
            q->blocks[q->n_blocks++] = from->blocks[i];
            w->owners[from->blocks[i]]++;
        }
        if (op->n_blocks) {
            take_block(w, q, op->blocks[0]);
            memcpy(w->pages[op->blocks[0]], w->pages[from->blocks[op->n_pos / PL_KV_PAGE]], sizeof w->pages[0]);
        }
        q->n = op->n_pos;
        break;
    }
    case PACELINE__KV_OP__KIND__TRUNCATE:
        ck_assert(q->open && op->n_pos <= q->n);
        q->n = op->n_pos;
        drop_blocks(w, q, pl_blocks_for(op->n_pos));
        break;
    case PACELINE__KV_OP__KIND__CLOSE:
        ck_assert(q->open);
        drop_blocks(w, q, 0);
        *q = (fake_seq){0};
        break;
    default: ck_abort_msg("operation %d", (int)op->kind);
    }
}

static bool send_one(world *w)
{
    const pl_sched_frame *f = pl_sched_next(&w->s, 0);
    if (!f) return false;
    ck_assert_uint_eq(f->id, w->next_id++);
    ck_assert_int_le(f->n_rows, w->shape.n_rows);
    for (int32_t i = 0; i < f->n_ops; i++) run_op(w, &f->ops[i]);
    flight *fl = &w->flights[w->n_flights++];
    ck_assert_int_le(w->n_flights, w->shape.in_flight);
    *fl = (flight){.id = f->id};
    int32_t decoding = 0;
    for (int32_t i = 0, k = 0; i < f->n_rows; i++) {
        fake_seq *q = &w->seqs[f->seq[i]];
        ck_assert(q->open);
        ck_assert_int_eq(f->pos[i], q->n);
        ck_assert_int_lt(q->n, q->n_blocks * PL_KV_PAGE);
        if (q->n < q->known) ck_assert_int_eq(q->told[q->n], f->token[i]);
        int32_t block = q->blocks[q->n / PL_KV_PAGE], tokens[CTX_MAX];
        ck_assert_msg(w->owners[block] == 1, "seed %llu: a row in a block that %d have", (unsigned long long)w->seed,
                      w->owners[block]);
        w->pages[block][q->n++ % PL_KV_PAGE] = f->token[i];
        if (k < f->n_logits && f->logits[k] == (uint32_t)i) {
            k++;
            decoding++;
            fl->seq[fl->n] = f->seq[i];
            fl->pos[fl->n] = f->pos[i] + 1;
            fl->tokens[fl->n++] = (pl_sampled){.token = next_token(tokens, read_tokens(w, q, tokens), q->seed)};
        }
    }
    ck_assert_int_eq(fl->n, f->n_logits);
    if (decoding > w->widest) w->widest = decoding;
    ck_assert_ptr_null(pl_sched_invariants(&w->s));
    return true;
}

static void answer_one(world *w)
{
    pl_error err = {0};
    flight f = w->flights[0];
    memmove(w->flights, w->flights + 1, sizeof(flight) * (size_t)--w->n_flights);
    ck_assert_msg(pl_sched_result(&w->s, f.id, f.tokens, f.seq, f.pos, f.n, &err) == PL_OK, "seed %llu: %s",
                  (unsigned long long)w->seed, err.text);
    pl_sched_flush(&w->s);
    ck_assert_ptr_null(pl_sched_invariants(&w->s));
}

static client *submit(world *w, int32_t n_prompt, int32_t max_tokens)
{
    client *c = &w->clients[w->n_clients];
    *c = (client){.used = true,
                  .n_prompt = n_prompt,
                  .max_tokens = max_tokens,
                  .seed = pl_rng_u64(&w->rng),
                  .ignore_eos = pl_rng_below(&w->rng, 2),
                  .shifts = pl_rng_below(&w->rng, 2),
                  .n_keep = (int32_t)pl_rng_below(&w->rng, 50)};
    for (int32_t i = 0; i < n_prompt; i++) c->prompt[i] = 1 + (int32_t)pl_rng_below(&w->rng, VOCAB - 1);
    /* Many begin as another did, or go on where it is. */
    const client *like = w->n_clients ? &w->clients[pl_rng_below(&w->rng, (uint64_t)w->n_clients)] : NULL;
    if (like && pl_rng_below(&w->rng, 2)) {
        int32_t all = like->n_prompt + like->n_got, n = (int32_t)pl_rng_below(&w->rng, (uint64_t)all + 1);
        for (int32_t i = 0; i < n && i < n_prompt; i++)
            c->prompt[i] = i < like->n_prompt ? like->prompt[i] : like->got[i - like->n_prompt];
    }
    pl_request_params p = {.tokens = c->prompt,
                           .n_tokens = n_prompt,
                           .max_tokens = max_tokens,
                           .ignore_eos = c->ignore_eos,
                           .context_shift = c->shifts,
                           .n_keep = c->n_keep,
                           .has_seed = true,
                           .sample = pl_sample_defaults()};
    p.sample.seed = c->seed;
    pl_error err = {0};
    pl_request *r;
    if (pl_request_new(&r, &p, w->n_ctx, VOCAB, &w->rng, &err) != PL_OK) return NULL;
    r->events = (pl_request_events){on_token, on_end};
    r->user = c;
    if (pl_sched_add(&w->s, r, &err) != PL_OK) {
        pl_request_free(r);
        return NULL;
    }
    c->request = r;
    w->n_clients++;
    return c;
}

/* Right for a while, then wrong; nothing; later; and now and then outside of the vocabulary. */
static int32_t guess(void *user, const pl_request *q, int32_t *out, int32_t max)
{
    world *w = user;
    int32_t tokens[2 * CTX_MAX], n = q->n_tokens;
    if (!w->guesses || pl_rng_below(&w->guess_rng, 4) == 0) return 0;
    if (pl_rng_below(&w->guess_rng, 4) == 0) return -1;
    memcpy(tokens, q->tokens, sizeof *tokens * (size_t)n);
    int32_t right = (int32_t)pl_rng_below(&w->guess_rng, (uint64_t)max + 1);
    for (int32_t i = 0; i < max; i++, n++) {
        tokens[n] = next_token(tokens, n, q->sample.seed);
        if (i >= right) tokens[n] = (int32_t)pl_rng_below(&w->guess_rng, VOCAB);
        if (pl_rng_below(&w->guess_rng, 50) == 0) tokens[n] = VOCAB;
        out[i] = tokens[n];
    }
    return max;
}

static void world_init_with(world *w, uint64_t seed, int32_t n_seqs, int32_t n_kept, int32_t n_draft, int32_t n_ctx,
                            pl_sched_shape shape)
{
    *w = (world){.seed = seed,
                 .n_seqs = n_seqs,
                 .n_slots = n_seqs + n_kept,
                 .n_ctx = n_ctx,
                 .shape = shape,
                 .guesses = n_draft > 0};
    pl_rng_seed(&w->rng, seed);
    pl_rng_seed(&w->guess_rng, seed);
    stages_forget(w);
    pl_error err = {0};
    pl_sched_options o = {.n_seqs = n_seqs,
                          .n_kept = n_kept,
                          .n_ctx = n_ctx,
                          .n_vocab = VOCAB,
                          .queue_max = REQUESTS_MAX,
                          .is_eog = is_eog,
                          .guess = guess,
                          .guess_user = w,
                          .n_draft = n_draft};
    ck_assert_int_eq(pl_sched_init(&w->s, &o, &err), PL_OK);
    ck_assert_int_eq(pl_sched_up(&w->s, &w->shape, &err), PL_OK);
}

static void world_init(world *w, uint64_t seed, int32_t n_seqs, int32_t n_ctx, pl_sched_shape shape)
{
    world_init_with(w, seed, n_seqs, 0, 0, n_ctx, shape);
}

/* Whether what a client got is what an undisturbed run gives: all of it, or with prefix a beginning. */
static void check_client(const world *w, const client *c, bool prefix)
{
    int32_t tokens[2 * CTX_MAX], n = c->n_prompt, limit = w->n_ctx;
    memcpy(tokens, c->prompt, sizeof(int32_t) * (size_t)n);
    int32_t i = 0;
    pl_finish why;
    for (;; i++) {
        int32_t t = next_token(tokens, n, c->seed);
        if (t == EOG && !c->ignore_eos) {
            why = PL_FINISH_STOP;
            break;
        }
        if (prefix && i == c->n_got) return;
        ck_assert_msg(i < c->n_got && c->got[i] == t, "seed %llu: token %d of %d differs", (unsigned long long)w->seed,
                      i, c->n_got);
        tokens[n++] = t;
        bool all = c->max_tokens >= 0 && i + 1 >= c->max_tokens;
        if (n >= limit && c->shifts && !all) {
            int32_t keep = c->n_keep < c->n_prompt ? c->n_keep : c->n_prompt;
            if (keep > n / 2) keep = n / 2;
            int32_t out = (n - keep + 1) / 2;
            for (int32_t k = keep; k + out < n; k++) tokens[k] = tokens[k + out];
            n -= out;
        }
        if (all || n >= limit) {
            why = PL_FINISH_LENGTH;
            i++;
            break;
        }
    }
    ck_assert_int_eq(c->n_got, i);
    if (!prefix) ck_assert_int_eq(c->why, why);
}

static pl_sched_shape random_shape(pl_rng *r, int32_t n_ctx)
{
    int32_t least = pl_blocks_for(n_ctx);
    return (pl_sched_shape){.n_blocks = least + (int32_t)pl_rng_below(r, 20),
                            .n_rows = 1 + (int32_t)pl_rng_below(r, 3) * (int32_t)pl_rng_below(r, 80),
                            .n_stages = 1 + (int32_t)pl_rng_below(r, 4),
                            .groups = 1 + (int32_t)pl_rng_below(r, 5),
                            .in_flight = 1 + (int32_t)pl_rng_below(r, 6)};
}

START_TEST(any_disturbance_leaves_the_tokens_alone)
{
    for (uint64_t k = 0; k < 20; k++) {
        uint64_t seed = (uint64_t)_i * 20 + k;
        pl_rng r;
        pl_rng_seed(&r, seed ^ 0x5eed);
        int32_t n_seqs = 1 + (int32_t)pl_rng_below(&r, SEQS_MAX), n_ctx = 40 + (int32_t)pl_rng_below(&r, 200);
        world *w = malloc(sizeof *w);
        int32_t n_kept = (int32_t)pl_rng_below(&r, 3) * (n_seqs + 1) / 2;
        int32_t n_draft = (int32_t)pl_rng_below(&r, 2) * (1 + (int32_t)pl_rng_below(&r, PL_DRAFT_MAX));
        world_init_with(w, seed, n_seqs, n_kept, n_draft, n_ctx, random_shape(&r, n_ctx));
        pl_error err = {0};
        bool up = true;
        for (int step = 0; step < 3000; step++) {
            uint64_t dice = pl_rng_below(&r, 100);
            if (dice < 3 && w->n_clients < 40) {
                submit(w, 1 + (int32_t)pl_rng_below(&r, (uint64_t)n_ctx), (int32_t)pl_rng_below(&r, 60));
            } else if (dice < 4 && w->n_clients) {
                client *c = &w->clients[pl_rng_below(&r, (uint64_t)w->n_clients)];
                if (c->request) {
                    c->cancelled = true;
                    pl_sched_end(&w->s, c->request, PL_FINISH_CANCELLED, NULL);
                    pl_sched_flush(&w->s);
                    ck_assert(c->ended);
                }
            } else if (dice == 4 && pl_rng_below(&r, 4) == 0) {
                if (up) pl_sched_down(&w->s);
                stages_forget(w);
                if (!up) {
                    w->shape = random_shape(&r, n_ctx);
                    ck_assert_int_eq(pl_sched_up(&w->s, &w->shape, &err), PL_OK);
                }
                up = !up;
            } else if (dice < 60) {
                send_one(w);
            } else if (w->n_flights) {
                answer_one(w);
            }
            ck_assert_ptr_null(pl_sched_invariants(&w->s));
        }
        if (!up) {
            stages_forget(w);
            ck_assert_int_eq(pl_sched_up(&w->s, &w->shape, &err), PL_OK);
        }
        /* Everything ends, in a bounded number of frames. */
        for (int step = 0; w->s.n_open || w->n_flights || w->s.n_closing; step++) {
            ck_assert_msg(step < 200000, "seed %llu: %d requests never end", (unsigned long long)seed, w->s.n_open);
            w->guesses = w->guesses && step < 100000;
            while (send_one(w)) {}
            if (!w->n_flights && w->guesses) continue; /* a guess is waited for */
            ck_assert_msg(w->n_flights, "seed %llu: nothing in flight and %d open", (unsigned long long)seed,
                          w->s.n_open);
            answer_one(w);
        }
        for (int32_t i = 0; i < w->n_clients; i++) {
            ck_assert(w->clients[i].ended);
            check_client(w, &w->clients[i], w->clients[i].cancelled && w->clients[i].why == PL_FINISH_CANCELLED);
        }
        if (!n_kept) ck_assert_int_eq(w->s.blocks.n_free, w->shape.n_blocks);
        pl_sched_fini(&w->s);
        free(w);
    }
}
END_TEST

START_TEST(decoding_requests_are_spread_over_the_groups)
{
    world *w = malloc(sizeof *w);
    world_init(w, 1, 6, 400, (pl_sched_shape){.n_blocks = 100, .n_rows = 512, .groups = 3, .in_flight = 4});
    for (int i = 0; i < 6; i++) submit(w, 5, 200)->request->ignore_eos = true;
    for (int i = 0; i < 20; i++) { /* the prompts may go together */
        while (send_one(w)) {}
        answer_one(w);
    }
    w->widest = 0;
    for (int i = 0; i < 100; i++) {
        while (send_one(w)) {}
        ck_assert_int_ge(w->n_flights, 3);
        answer_one(w);
    }
    ck_assert_int_eq(w->widest, 2);
    pl_sched_fini(&w->s);
    free(w);
}
END_TEST

START_TEST(four_requests_keep_three_stages_busy)
{
    world *w = malloc(sizeof *w);
    world_init(w, 9, 4, 400,
               (pl_sched_shape){.n_blocks = 100, .n_rows = 512, .n_stages = 3, .groups = 3, .in_flight = 4});
    for (int i = 0; i < 4; i++) submit(w, 5, 200)->request->ignore_eos = true;
    for (int i = 0; i < 20; i++) {
        while (send_one(w)) {}
        answer_one(w);
    }
    for (int i = 0; i < 100; i++) {
        while (send_one(w)) {}
        ck_assert_int_ge(w->n_flights, 3);
        answer_one(w);
    }
    pl_sched_fini(&w->s);
    free(w);
}
END_TEST

START_TEST(a_prompt_is_cut_so_that_all_stages_work_on_it)
{
    world *w = malloc(sizeof *w);
    world_init(w, 10, 4, 512,
               (pl_sched_shape){.n_blocks = 100, .n_rows = 512, .n_stages = 4, .groups = 4, .in_flight = 5});
    submit(w, 400, 4);
    int sent = 0;
    while (send_one(w)) sent++;
    ck_assert_int_eq(sent, 4);
    submit(w, 60, 4); /* too short to be worth cutting */
    sent = 0;
    while (send_one(w)) sent++;
    ck_assert_int_eq(sent, 1);
    pl_sched_fini(&w->s);
    free(w);
}
END_TEST

START_TEST(a_long_prompt_does_not_starve_running_streams)
{
    world *w = malloc(sizeof *w);
    world_init(w, 2, 4, 512, (pl_sched_shape){.n_blocks = 100, .n_rows = 128, .groups = 2, .in_flight = 3});
    client *a = submit(w, 4, 400);
    a->request->ignore_eos = a->ignore_eos = true;
    for (int i = 0; i < 5; i++) {
        while (send_one(w)) {}
        answer_one(w);
    }
    client *b = submit(w, 500, 4);
    int frames = 0;
    for (int32_t before = a->n_got; b->n_got == 0 && !b->ended; frames++) {
        while (send_one(w)) {}
        answer_one(w);
        if (frames % 4 == 3) {
            ck_assert_int_gt(a->n_got, before); /* at least a token for every in_flight + 1 frames */
            before = a->n_got;
        }
    }
    /* 32 rows of a 128-row frame at a time. */
    ck_assert_int_ge(frames, 500 / 33);
    ck_assert_int_le(frames, 500 / 32 + 8);
    pl_sched_fini(&w->s);
    free(w);
}
END_TEST

START_TEST(a_lone_prompt_fills_frames_and_the_pipeline)
{
    world *w = malloc(sizeof *w);
    world_init(w, 3, 4, 512, (pl_sched_shape){.n_blocks = 100, .n_rows = 100, .groups = 2, .in_flight = 3});
    submit(w, 450, 4);
    int sent = 0;
    while (send_one(w)) sent++;
    ck_assert_int_eq(sent, 3); /* chunks follow each other without waiting */
    ck_assert_int_eq(w->seqs[0].n, 300);
    pl_sched_fini(&w->s);
    free(w);
}
END_TEST

START_TEST(many_streams_do_not_lock_out_a_prompt)
{
    world *w = malloc(sizeof *w);
    world_init(w, 4, 8, 512, (pl_sched_shape){.n_blocks = 120, .n_rows = 4, .groups = 1, .in_flight = 1});
    for (int i = 0; i < 7; i++) submit(w, 2, 300)->request->ignore_eos = true;
    for (int i = 0; i < 30; i++) {
        while (send_one(w)) {}
        answer_one(w);
    }
    client *p = submit(w, 40, 2);
    int frames = 0;
    while (!p->n_got && !p->ended) {
        while (send_one(w)) {}
        answer_one(w);
        ck_assert_int_lt(frames++, 60);
    }
    pl_sched_fini(&w->s);
    free(w);
}
END_TEST

START_TEST(the_youngest_gives_up_its_blocks_and_comes_back)
{
    world *w = malloc(sizeof *w);
    world_init(w, 5, 4, 256, (pl_sched_shape){.n_blocks = 8, .n_rows = 64, .groups = 1, .in_flight = 2});
    client *c[3];
    for (int i = 0; i < 3; i++) {
        c[i] = submit(w, 30, 200);
        c[i]->request->ignore_eos = c[i]->ignore_eos = true;
    }
    for (int i = 0; w->s.n_open; i++) {
        ck_assert_int_lt(i, 5000);
        while (send_one(w)) {}
        answer_one(w);
    }
    ck_assert_uint_gt(w->s.n_preempted, 0);
    for (int i = 0; i < 3; i++) check_client(w, c[i], false);
    pl_sched_fini(&w->s);
    free(w);
}
END_TEST

START_TEST(a_token_that_comes_twice_counts_once)
{
    world *w = malloc(sizeof *w);
    world_init(w, 11, 2, 256,
               (pl_sched_shape){.n_blocks = 5, .n_rows = 64, .n_stages = 1, .groups = 2, .in_flight = 3});
    client *a = submit(w, 64, 100), *b = submit(w, 1, 60);
    a->request->ignore_eos = a->ignore_eos = b->request->ignore_eos = b->ignore_eos = true;
    /* The older one takes the blocks of the younger, whose sample is still under way. */
    ck_assert(send_one(w));
    while (!w->s.n_preempted) {
        answer_one(w);
        while (!w->s.n_preempted && send_one(w)) {}
    }
    ck_assert_int_eq(b->request->state, PL_REQUEST_WAITING);
    bool under_way = false;
    for (int32_t i = 0; i < w->n_flights; i++)
        for (int32_t k = 0; k < w->flights[i].n; k++) under_way |= w->flights[i].pos[k] == b->request->n_tokens;
    ck_assert(under_way);
    /* Then the older one goes, and the younger asks for the same token again before the first answer is there. */
    pl_sched_end(&w->s, a->request, PL_FINISH_CANCELLED, NULL);
    pl_sched_flush(&w->s);
    int32_t before = b->n_got;
    while (send_one(w)) {}
    ck_assert_int_eq(b->request->n_sent, b->request->n_tokens);
    while (w->n_flights) answer_one(w);
    ck_assert_int_eq(b->n_got, before + 1);
    while (w->s.n_open) {
        while (send_one(w)) {}
        answer_one(w);
    }
    check_client(w, b, false);
    pl_sched_fini(&w->s);
    free(w);
}
END_TEST

START_TEST(what_can_never_fit_is_refused_with_numbers)
{
    world *w = malloc(sizeof *w);
    world_init(w, 6, 2, 256, (pl_sched_shape){.n_blocks = 3, .n_rows = 64, .groups = 1, .in_flight = 2});
    int32_t prompt[256] = {0};
    pl_request_params p = {.tokens = prompt, .n_tokens = 256, .max_tokens = 1, .sample = pl_sample_defaults()};
    pl_error err = {0};
    pl_request *r;
    ck_assert_int_eq(pl_request_new(&r, &p, 256, VOCAB, &w->rng, &err), PL_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "256 tokens and the context 256"));
    p.n_tokens = 96;
    ck_assert_int_eq(pl_request_new(&r, &p, 256, VOCAB, &w->rng, &err), PL_OK);
    ck_assert_int_eq(pl_sched_add(&w->s, r, &err), PL_ERR_BUDGET);
    ck_assert_ptr_nonnull(strstr(err.text, "96 tokens and the KV cache of this pipeline holds 96"));
    /* Let in while nothing was up, and then the pipeline turns out small. */
    pl_sched_down(&w->s);
    client c = {0};
    r->events = (pl_request_events){on_token, on_end};
    r->user = &c;
    ck_assert_int_eq(pl_sched_add(&w->s, r, &err), PL_OK);
    ck_assert_int_eq(pl_sched_up(&w->s, &w->shape, &err), PL_OK);
    pl_sched_flush(&w->s);
    ck_assert(c.ended && c.why == PL_FINISH_ERROR && c.err.status == PL_ERR_BUDGET);
    pl_sched_fini(&w->s);
    free(w);
}
END_TEST

START_TEST(parameters_are_refused_by_name)
{
    pl_rng rng;
    pl_rng_seed(&rng, 1);
    int32_t good[] = {1, 2}, bad[] = {1, VOCAB};
    char long_id[PL_REQUEST_ID_MAX + 2];
    memset(long_id, 'x', sizeof long_id - 1);
    long_id[sizeof long_id - 1] = 0;
    const struct {
        pl_request_params p;
        const char *says;
    } cases[] = {
        {{.tokens = good, .n_tokens = 0, .max_tokens = 1}, "prompt is empty"},
        {{.tokens = good, .n_tokens = 2, .max_tokens = 0}, "max_tokens is 0"},
        {{.tokens = good, .n_tokens = 2, .max_tokens = -2}, "max_tokens is -2"},
        {{.tokens = bad, .n_tokens = 2, .max_tokens = 1}, "token 1 of the prompt is 97"},
        {{.tokens = good, .n_tokens = 2, .max_tokens = 1, .id = "a\nb"}, "control character"},
        {{.tokens = good, .n_tokens = 2, .max_tokens = 1, .id = "\xff"}, "UTF-8"},
        {{.tokens = good, .n_tokens = 2, .max_tokens = 1, .id = ""}, "0 bytes"},
        {{.tokens = good, .n_tokens = 2, .max_tokens = 1, .id = long_id}, "129 bytes"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pl_request_params p = cases[i].p;
        p.sample = pl_sample_defaults();
        pl_error err = {0};
        pl_request *r;
        ck_assert_int_eq(pl_request_new(&r, &p, 64, VOCAB, &rng, &err), PL_ERR_INVALID);
        ck_assert_ptr_null(r);
        ck_assert_msg(strstr(err.text, cases[i].says) != NULL, "%s", err.text);
    }
}
END_TEST

START_TEST(a_result_that_was_not_asked_for_is_refused)
{
    world *w = malloc(sizeof *w);
    world_init(w, 7, 2, 256, (pl_sched_shape){.n_blocks = 20, .n_rows = 64, .groups = 1, .in_flight = 2});
    pl_error err = {0};
    pl_sampled t = {.token = 5};
    int32_t seq = 0, pos = 5;
    ck_assert_int_eq(pl_sched_result(&w->s, 1, &t, &seq, &pos, 1, &err), PL_ERR_FORMAT);
    submit(w, 4, 8);
    ck_assert(send_one(w));
    ck_assert_int_eq(pl_sched_result(&w->s, 2, &t, &seq, &pos, 1, &err), PL_ERR_FORMAT);
    ck_assert_int_eq(pl_sched_result(&w->s, 1, &t, &seq, &pos, 0, &err), PL_ERR_FORMAT);
    ck_assert_int_eq(pl_sched_result(&w->s, 1, &t, &seq, &pos, 1, &err), PL_ERR_FORMAT);
    ck_assert_ptr_nonnull(strstr(err.text, "position 5, expected 0 position 4"));
    pos = 4;
    t.token = VOCAB;
    ck_assert_int_eq(pl_sched_result(&w->s, 1, &t, &seq, &pos, 1, &err), PL_ERR_FORMAT);
    t.token = -1;
    ck_assert_int_eq(pl_sched_result(&w->s, 1, &t, &seq, &pos, 1, &err), PL_ERR_FORMAT);
    t.token = 7;
    ck_assert_int_eq(pl_sched_result(&w->s, 1, &t, &seq, &pos, 1, &err), PL_OK);
    pl_sched_fini(&w->s);
    free(w);
}
END_TEST

START_TEST(the_queue_has_an_end)
{
    world *w = malloc(sizeof *w);
    world_init(w, 8, 1, 256, (pl_sched_shape){.n_blocks = 20, .n_rows = 64, .groups = 1, .in_flight = 2});
    w->s.o.queue_max = 3;
    for (int i = 0; i < 3; i++) ck_assert_ptr_nonnull(submit(w, 4, 8));
    ck_assert_ptr_null(submit(w, 4, 8));
    ck_assert(send_one(w)); /* one of them runs now */
    ck_assert_ptr_nonnull(submit(w, 4, 8));
    pl_sched_fini(&w->s);
    for (int32_t i = 0; i < w->n_clients; i++)
        ck_assert(w->clients[i].ended && w->clients[i].why == PL_FINISH_CANCELLED &&
                  w->clients[i].err.status == PL_ERR_CANCELLED);
    free(w);
}
END_TEST

START_TEST(blocks_are_handed_out_once)
{
    pl_blocks b;
    pl_error err = {0};
    int32_t ids[6];
    ck_assert_int_eq(pl_blocks_init(&b, 5, &err), PL_OK);
    ck_assert(!pl_blocks_take(&b, ids, 6));
    ck_assert_int_eq(b.n_free, 5);
    ck_assert(pl_blocks_take(&b, ids, 5));
    for (int i = 0; i < 5; i++) ck_assert_int_eq(ids[i], i);
    ck_assert(!pl_blocks_take(&b, ids + 5, 1));
    pl_blocks_give(&b, ids + 1, 2);
    ck_assert(pl_blocks_take(&b, ids + 1, 2));
    ck_assert_int_eq(ids[1] + ids[2], 3);
    ck_assert_int_eq(pl_blocks_for(0), 0);
    ck_assert_int_eq(pl_blocks_for(1), 1);
    ck_assert_int_eq(pl_blocks_for(PL_KV_PAGE), 1);
    ck_assert_int_eq(pl_blocks_for(PL_KV_PAGE + 1), 2);
    pl_blocks_fini(&b);
}
END_TEST

/* Runs all that is open to its end; returns the rows that were computed. */
static int32_t finish(world *w)
{
    int32_t rows = 0;
    while (w->s.n_open) {
        const int32_t before = w->n_flights;
        while (send_one(w)) rows += w->s.frame.n_rows;
        ck_assert(w->n_flights > 0 || before > 0);
        answer_one(w);
    }
    return rows;
}

/* A client that goes on with n tokens of what like said and was told. */
static client *submit_like(world *w, const client *like, int32_t n, int32_t n_prompt)
{
    client *c = submit(w, n_prompt, 4);
    for (int32_t i = 0; i < n_prompt; i++) {
        int32_t t = i < like->n_prompt ? like->prompt[i] : like->got[i - like->n_prompt];
        c->prompt[i] = i < n ? t : (t + 1) % VOCAB;
        c->request->tokens[i] = c->prompt[i];
    }
    return c;
}

START_TEST(what_another_sequence_has_is_not_computed_again)
{
    world *w = malloc(sizeof *w);
    world_init_with(w, 11, 2, 2, 0, 256, (pl_sched_shape){.n_blocks = 30, .n_rows = 256, .groups = 1, .in_flight = 2});
    client *first = submit(w, 100, 20);
    first->request->ignore_eos = first->ignore_eos = true;
    ck_assert_int_eq(finish(w), 119); /* all but the last token */
    check_client(w, first, false);

    /* A conversation goes on: 119 positions are there, of an ended sequence. */
    client *second = submit_like(w, first, 120, 130);
    pl_request_stats stats = {0};
    const pl_request *r = second->request;
    ck_assert(send_one(w));
    stats = pl_request_stats_of(r);
    ck_assert_int_eq(stats.n_cached, 119);
    ck_assert_int_eq(w->s.frame.n_rows, 11);
    finish(w);
    check_client(w, second, false);

    /* And another way: the sequences part in the middle of a page, of one that runs. */
    client *third = submit(w, 60, 30), *fourth;
    third->request->ignore_eos = third->ignore_eos = true;
    while (third->n_got < 2) {
        send_one(w);
        answer_one(w);
    }
    fourth = submit_like(w, third, 50, 61);
    r = fourth->request;
    while (send_one(w)) {}
    ck_assert_int_eq(pl_request_stats_of(r).n_cached, 50);
    finish(w);
    check_client(w, third, false);
    check_client(w, fourth, false);
    ck_assert_int_eq(w->s.n_kept, 2);

    /* Kept sequences are in nobody's way. */
    for (int i = 0; i < 2; i++)
        submit(w, 250, 200)->request->ignore_eos = w->clients[w->n_clients - 1].ignore_eos = true;
    finish(w);
    ck_assert_uint_eq(w->s.n_preempted, 0);
    for (int32_t i = 0; i < w->n_clients; i++) check_client(w, &w->clients[i], false);
    pl_sched_fini(&w->s);
    free(w);
}
END_TEST

static int32_t guess_rightly(void *user, const pl_request *q, int32_t *out, int32_t max)
{
    (void)user;
    int32_t tokens[2 * CTX_MAX], n = q->n_tokens;
    memcpy(tokens, q->tokens, sizeof *tokens * (size_t)n);
    for (int32_t i = 0; i < max; i++, n++) out[i] = tokens[n] = next_token(tokens, n, q->sample.seed);
    return max;
}

START_TEST(right_guesses_make_fewer_steps_and_the_same_tokens)
{
    world *w = malloc(sizeof *w);
    world_init_with(w, 12, 1, 0, 8, 256, (pl_sched_shape){.n_blocks = 30, .n_rows = 64, .groups = 1, .in_flight = 2});
    w->s.o.guess = guess_rightly;
    client *c = submit(w, 10, 100);
    c->request->ignore_eos = c->ignore_eos = true;
    const pl_request *r = c->request;
    pl_request_stats stats = {0};
    int32_t steps = 0;
    for (; w->s.n_open; steps++) {
        ck_assert(send_one(w));
        stats = pl_request_stats_of(r);
        answer_one(w);
    }
    check_client(w, c, false);
    ck_assert_int_le(steps, 2 + 100 / 8);
    ck_assert_int_ge(stats.n_accepted, 75);
    pl_sched_fini(&w->s);
    free(w);
}
END_TEST

START_TEST(text_that_repeats_itself_is_guessed)
{
    int32_t tokens[] = {1, 2, 3, 4, 5, 6, 9, 2, 3, 4}, out[5];
    pl_request r = {.tokens = tokens, .n_tokens = 10};
    ck_assert_int_eq(pl_guess_repeated(NULL, &r, out, 5), 5);
    const int32_t expected[] = {5, 6, 9, 2, 3};
    for (int i = 0; i < 5; i++) ck_assert_int_eq(out[i], expected[i]);
    r.n_tokens = 7; /* nothing was said twice */
    ck_assert_int_eq(pl_guess_repeated(NULL, &r, out, 5), 0);
    int32_t again[] = {7, 7, 7, 7}; /* what follows the end is what was guessed */
    r = (pl_request){.tokens = again, .n_tokens = 4};
    ck_assert_int_eq(pl_guess_repeated(NULL, &r, out, 5), 5);
    for (int i = 0; i < 5; i++) ck_assert_int_eq(out[i], 7);
    r.n_tokens = 1;
    ck_assert_int_eq(pl_guess_repeated(NULL, &r, out, 5), 0);
}
END_TEST

Suite *scheduler_suite(void);
Suite *scheduler_suite(void)
{
    Suite *s = suite_create("coordinator/scheduler");
    TCase *t = tcase_create("scheduler");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, any_disturbance_leaves_the_tokens_alone, 0, 20);
    tcase_add_test(t, decoding_requests_are_spread_over_the_groups);
    tcase_add_test(t, four_requests_keep_three_stages_busy);
    tcase_add_test(t, a_prompt_is_cut_so_that_all_stages_work_on_it);
    tcase_add_test(t, a_long_prompt_does_not_starve_running_streams);
    tcase_add_test(t, a_lone_prompt_fills_frames_and_the_pipeline);
    tcase_add_test(t, many_streams_do_not_lock_out_a_prompt);
    tcase_add_test(t, the_youngest_gives_up_its_blocks_and_comes_back);
    tcase_add_test(t, a_token_that_comes_twice_counts_once);
    tcase_add_test(t, what_can_never_fit_is_refused_with_numbers);
    tcase_add_test(t, parameters_are_refused_by_name);
    tcase_add_test(t, a_result_that_was_not_asked_for_is_refused);
    tcase_add_test(t, the_queue_has_an_end);
    tcase_add_test(t, blocks_are_handed_out_once);
    tcase_add_test(t, what_another_sequence_has_is_not_computed_again);
    tcase_add_test(t, right_guesses_make_fewer_steps_and_the_same_tokens);
    tcase_add_test(t, text_that_repeats_itself_is_guessed);
    suite_add_tcase(s, t);
    return s;
}
