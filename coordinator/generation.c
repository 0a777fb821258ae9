#include "coordinator/generation.h"

#include "engine/base/alloc.h"

struct pl_generation {
    pl_coordinator *coordinator;
    pl_loop *loop;
    pl_request *request;
    pl_generation_events events;
    void *user;
    pl_detok_stream detok;
    bool special;
    const uint8_t *shown;
    pl_buf held; /* text that may be the beginning of a stop string */
    char *stops[PL_STOPS_MAX];
    int n_stops;
    const char *stopped_by;
    uint64_t start_ns, first_ns, last_ns;
    pl_usage usage;
};

static void generation_free(pl_generation *g)
{
    for (int i = 0; i < g->n_stops; i++) pl_free(g->stops[i]);
    pl_buf_fini(&g->held);
    pl_free(g);
}

/* Where in the held text the earliest stop string begins: the text's size when there is none. */
static size_t find_stop(const pl_generation *g, const char **which)
{
    size_t at = g->held.size;
    for (int i = 0; i < g->n_stops; i++) {
        const char *hit = g->held.size ? memmem(g->held.data, g->held.size, g->stops[i], strlen(g->stops[i])) : NULL;
        size_t pos = hit ? (size_t)(hit - (const char *)g->held.data) : g->held.size;
        if (pos < at) {
            at = pos;
            *which = g->stops[i];
        }
    }
    return at;
}

/* How much of the held text cannot be part of a stop string any more. */
static size_t settled(const pl_generation *g)
{
    size_t keep = 0;
    for (int i = 0; i < g->n_stops; i++) {
        size_t n = strlen(g->stops[i]) - 1;
        if (n > g->held.size) n = g->held.size;
        while (n > keep && memcmp(g->held.data + g->held.size - n, g->stops[i], n) != 0) n--;
        if (n > keep) keep = n;
    }
    return g->held.size - keep;
}

static void drop_front(pl_buf *b, size_t n)
{
    memmove(b->data, b->data + n, b->size - n);
    b->size -= n;
}

static void on_token(void *user, const pl_sampled *token)
{
    pl_generation *g = user;
    if (g->stopped_by) return; /* what was in flight when the stop string was seen */
    g->last_ns = pl_loop_now(g->loop);
    if (g->usage.n_generated++ == 0) g->first_ns = g->last_ns;
    bool known = token->token >= 0 && token->token < pl_vocab_size(g->detok.vocab);
    g->detok.special = g->special || (known && g->shown && g->shown[token->token]);
    pl_detok_add(&g->detok, token->token, &g->held);
    size_t ready = find_stop(g, &g->stopped_by);
    if (!g->stopped_by) ready = settled(g);
    g->events.token(g->user, token, (pl_str){(const char *)g->held.data, ready});
    if (g->held.size) drop_front(&g->held, ready);
    if (g->stopped_by) pl_coordinator_cancel(g->coordinator, g->request);
}

static void on_end(void *user, pl_finish why, const pl_error *err)
{
    pl_generation *g = user;
    if (g->stopped_by) {
        why = PL_FINISH_STOP;
        pl_buf_reset(&g->held);
    } else {
        pl_detok_end(&g->detok, &g->held);
    }
    pl_error lost;
    if (g->held.failed && why != PL_FINISH_ERROR) {
        why = PL_FINISH_ERROR;
        (void)pl_fail(&lost, PL_ERR_NO_MEMORY, "no memory for the generated text");
        err = &lost;
    }
    g->usage.stats = pl_request_stats_of(g->request);
    if (g->usage.n_generated > 0) {
        g->usage.prompt_ns = g->first_ns - g->start_ns;
        g->usage.generate_ns = g->last_ns - g->first_ns;
    }
    g->events.end(g->user, pl_buf_str(&g->held), why, g->stopped_by, &g->usage, err);
    generation_free(g);
}

static const pl_request_events request_events = {on_token, on_end};

pl_status pl_generation_start(pl_generation **out, pl_coordinator *c, pl_loop *loop, const pl_vocab *vocab,
                              const pl_generation_options *options, const pl_generation_events *events, void *user,
                              pl_error *err)
{
    *out = NULL;
    pl_generation *g = pl_calloc(1, sizeof *g);
    if (!g) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for a request");
    g->coordinator = c;
    g->loop = loop;
    g->events = *events;
    g->user = user;
    g->usage.n_prompt = options->request.n_tokens;
    g->start_ns = pl_loop_now(loop);
    g->special = options->special;
    g->shown = options->shown;
    pl_detok_start(&g->detok, vocab, options->special, false);
    pl_status s = PL_OK;
    for (int i = 0; i < options->n_stops && s == PL_OK; i++) {
        if (!options->stops[i][0])
            s = pl_fail(err, PL_ERR_INVALID, "stop: an empty stop string would end every answer at once");
        else if (!(g->stops[g->n_stops++] = pl_strdup(options->stops[i])))
            s = pl_fail(err, PL_ERR_NO_MEMORY, "no memory for a request");
    }
    if (s == PL_OK) s = pl_coordinator_submit(c, &options->request, &request_events, g, &g->request, err);
    if (s != PL_OK) {
        generation_free(g);
        return s;
    }
    *out = g;
    return PL_OK;
}

void pl_generation_cancel(pl_generation *g)
{
    pl_coordinator_cancel(g->coordinator, g->request);
}

pl_status pl_generation_tokenize_chat(const pl_vocab *vocab, pl_str prompt, pl_buf *tokens, pl_error *err)
{
    int32_t bos = pl_vocab_bos(vocab);
    pl_str text = bos < 0 ? (pl_str){0} : pl_vocab_text(vocab, bos);
    bool has_bos = text.size > 0 && prompt.size >= text.size && memcmp(prompt.data, text.data, text.size) == 0;
    return pl_tokenize(vocab, prompt, !has_bos, true, tokens, err);
}
