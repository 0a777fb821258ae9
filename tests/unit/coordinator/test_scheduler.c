/* The scheduler over a pipeline that checks every frame as a stage would, and computes each token from all tokens
 * before it. */
#include "coordinator/scheduler.h"

#include "engine/base/rng.h"

#include <check.h>
#include <stdlib.h>

enum { VOCAB = 97, EOG = 0, SEQS_MAX = 8, CTX_MAX = 512, BLOCKS_MAX = 128, FLIGHT_MAX = 16, REQUESTS_MAX = 64 };

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
    int32_t tokens[CTX_MAX];
    int32_t n, known; /* rows computed; tokens told by OPEN */
    int32_t blocks[BLOCKS_MAX], n_blocks;
} fake_seq;

typedef struct flight {
    uint64_t id;
    int32_t n;
    int32_t seq[SEQS_MAX], pos[SEQS_MAX];
    pl_sampled tokens[SEQS_MAX];
} flight;

typedef struct client {
    pl_request *request; /* NULL when it ended */
    bool used, ended, cancelled;
    pl_finish why;
    pl_error err;
    int32_t prompt[CTX_MAX], n_prompt, max_tokens;
    uint64_t seed;
    bool ignore_eos;
    int32_t got[CTX_MAX], n_got;
} client;

typedef struct world {
    pl_scheduler s;
    pl_rng rng;
    uint64_t seed;
    int32_t n_seqs, n_ctx;
    pl_sched_shape shape;
    fake_seq seqs[SEQS_MAX];
    int32_t owner[BLOCKS_MAX];
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
    for (int32_t i = 0; i < SEQS_MAX; i++) w->seqs[i] = (fake_seq){0};
    for (int32_t i = 0; i < BLOCKS_MAX; i++) w->owner[i] = -1;
    w->n_flights = 0;
    w->next_id = 1;
}

static void run_op(world *w, const pl_sched_op *op)
{
    ck_assert(op->seq >= 0 && op->seq < w->n_seqs);
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
        memcpy(q->tokens, record.prompt, record.n_prompt * sizeof(int32_t));
        memcpy(q->tokens + record.n_prompt, record.emitted, record.n_emitted * sizeof(int32_t));
        break;
    }
    case PACELINE__KV_OP__KIND__EXTEND:
        ck_assert(q->open);
        for (int32_t i = 0; i < op->n_blocks; i++) {
            int32_t b = op->blocks[i];
            ck_assert(b >= 0 && b < w->shape.n_blocks);
            ck_assert_msg(w->owner[b] < 0, "seed %llu: block %d is given to sequence %d and %d has it",
                          (unsigned long long)w->seed, b, op->seq, w->owner[b]);
            w->owner[b] = op->seq;
            q->blocks[q->n_blocks++] = b;
        }
        break;
    case PACELINE__KV_OP__KIND__CLOSE:
        ck_assert(q->open);
        for (int32_t i = 0; i < q->n_blocks; i++) w->owner[q->blocks[i]] = -1;
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
        if (q->n < q->known) ck_assert_int_eq(q->tokens[q->n], f->token[i]);
        q->tokens[q->n++] = f->token[i];
        if (k < f->n_logits && f->logits[k] == (uint32_t)i) {
            k++;
            decoding++;
            fl->seq[fl->n] = f->seq[i];
            fl->pos[fl->n] = f->pos[i] + 1;
            fl->tokens[fl->n++] = (pl_sampled){.token = next_token(q->tokens, q->n, q->seed)};
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
                  .ignore_eos = pl_rng_below(&w->rng, 2)};
    for (int32_t i = 0; i < n_prompt; i++) c->prompt[i] = 1 + (int32_t)pl_rng_below(&w->rng, VOCAB - 1);
    pl_request_params p = {.tokens = c->prompt,
                           .n_tokens = n_prompt,
                           .max_tokens = max_tokens,
                           .ignore_eos = c->ignore_eos,
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

static void world_init(world *w, uint64_t seed, int32_t n_seqs, int32_t n_ctx, pl_sched_shape shape)
{
    *w = (world){.seed = seed, .n_seqs = n_seqs, .n_ctx = n_ctx, .shape = shape};
    pl_rng_seed(&w->rng, seed);
    stages_forget(w);
    pl_error err = {0};
    ck_assert_int_eq(pl_sched_init(&w->s, n_seqs, n_ctx, VOCAB, REQUESTS_MAX, is_eog, NULL, &err), PL_OK);
    ck_assert_int_eq(pl_sched_up(&w->s, &w->shape, &err), PL_OK);
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
        if ((c->max_tokens >= 0 && i + 1 >= c->max_tokens) || n >= limit) {
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
        world_init(w, seed, n_seqs, n_ctx, random_shape(&r, n_ctx));
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
            while (send_one(w)) {}
            ck_assert_msg(w->n_flights, "seed %llu: nothing in flight and %d open", (unsigned long long)seed,
                          w->s.n_open);
            answer_one(w);
        }
        for (int32_t i = 0; i < w->n_clients; i++) {
            ck_assert(w->clients[i].ended);
            check_client(w, &w->clients[i], w->clients[i].cancelled && w->clients[i].why == PL_FINISH_CANCELLED);
        }
        ck_assert_int_eq(w->s.blocks.n_free, w->shape.n_blocks);
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
    w->s.queue_max = 3;
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
    suite_add_tcase(s, t);
    return s;
}
