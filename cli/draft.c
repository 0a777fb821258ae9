/* Each request to the target has an entry here, by its id. Asking for a guess submits the tokens so far as a prompt to
 * the draft's coordinator, which has most of them in a kept sequence; the answer is the guess. While it is computed the
 * target is told to ask again.
 *
 *   idle --asked--> running --its end--> answered, for so many tokens --asked about others--> running ... */
#include "cli/draft.h"

#include "engine/base/alloc.h"
#include "engine/base/log.h"
#include "engine/base/sys.h"

#include <math.h>
#include <stdio.h>

#define LINK_BYTES (UINT64_C(8) << 20) /* frames and results within one process, and the node's own lists */

typedef struct entry {
    draft *d;
    char id[129];
    pl_request *running;
    bool unsure;      /* the rest of the answer is not wanted */
    int32_t n_tokens; /* that it was, or is, asked about */
    int32_t guesses[PL_DRAFT_MAX], n_guesses;
    uint64_t used;
} entry;

struct draft {
    cli_options o;
    keyring keys;
    model m;
    pl_loop *loop;
    pl_coordinator *coordinator, *target;
    pl_net *net;
    local_node local;
    float logprob_min;
    entry *entries;
    int32_t n_entries;
    uint64_t used;
};

static pl_status check_vocab(const model *d, const model *t, pl_error *err)
{
    int32_t n = pl_model_n_vocab(d->profile), other = pl_model_n_vocab(t->profile);
    /* Vocabularies are padded differently; no guess comes from behind the shorter one's end. */
    if (n > other) n = other;
    for (int32_t i = 0; i < n; i++) {
        pl_str a = pl_vocab_text(d->vocab, i), b = pl_vocab_text(t->vocab, i);
        if (!pl_str_eq(a, b))
            return pl_fail(err, PL_ERR_INVALID,
                           "the draft model has another vocabulary: token %d is \"%.*s\", and \"%.*s\" in the model", i,
                           PL_STR_ARG(a), PL_STR_ARG(b));
    }
    return PL_OK;
}

static bool is_eog(void *user, int32_t token)
{
    return pl_vocab_is_eog(((model *)user)->vocab, token);
}

pl_status draft_open(draft **out, pl_loop *loop, const cli_options *o, const pl_coordinator_options *options,
                     const model *target, uint64_t *bytes, pl_error *err)
{
    *out = NULL;
    draft *d = pl_calloc(1, sizeof *d);
    if (!d) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for the draft model");
    d->o = *o;
    d->o.model = o->model_draft;
    d->o.alias = d->o.trace = d->o.advertise = NULL;
    d->o.lora.n = d->o.lora_scaled.n = 0;
    d->o.mem = 0;
    d->keys.plain = true;
    d->loop = loop;
    d->logprob_min = logf(o->draft_p_min);
    pl_status s;
    if ((s = model_open(&d->m, &d->o, err)) != PL_OK || (s = check_vocab(&d->m, target, err)) != PL_OK) goto fail;
    d->n_entries = 2 * options->n_seqs;
    d->entries = pl_calloc((size_t)d->n_entries, sizeof *d->entries);
    if (!d->entries) {
        s = pl_fail(err, PL_ERR_NO_MEMORY, "no memory for guesses");
        goto fail;
    }
    for (int32_t i = 0; i < d->n_entries; i++) d->entries[i].d = d;
    pl_coordinator_options mine = *options;
    mine.n_draft = mine.min_nodes = mine.n_stages = 0;
    mine.guess = NULL;
    mine.n_kept = options->n_seqs;
    mine.n_blocks = 0;
    pl_coordinator_model m = {d->m.gguf, d->m.profile, d->m.hashes, d->m.name, is_eog, &d->m};
    if ((s = pl_coordinator_new(&d->coordinator, loop, &m, &mine, err)) != PL_OK) goto fail;
    int32_t n_ctx = pl_coordinator_n_ctx(d->coordinator), n_layer = pl_model_n_layer(d->m.profile);
    pl_stage_shape shape = {.layer_end = n_layer,
                            .n_blocks = options->n_seqs * ((n_ctx + PL_KV_PAGE - 1) / PL_KV_PAGE),
                            .n_ctx = n_ctx,
                            .n_seqs = 2 * options->n_seqs,
                            .n_rows = options->n_rows ? options->n_rows : 512,
                            .n_threads = o->n_threads ? o->n_threads : pl_sys_cpus(),
                            .cache = options->cache};
    pl_stage_memory need = pl_model_stage_memory(d->m.profile, &shape);
    *bytes = need.weights + need.kv + need.compute + LINK_BYTES;
    if (o->mem) d->o.mem = *bytes;
    *out = d;
    return PL_OK;
fail:
    draft_close(d);
    return pl_note(err, s, "--model-draft");
}

pl_status draft_start(draft *d, pl_coordinator *target, pl_error *err)
{
    d->target = target;
    char address[64], listen[64];
    snprintf(address, sizeof address, "inproc://draft-%p", (void *)d);
    snprintf(listen, sizeof listen, "inproc://draft-node-%p", (void *)d);
    PL_TRY(net_new(&d->net, d->loop, &d->keys, &pl_coordinator_net_events, d->coordinator, err));
    PL_TRY(pl_net_listen(d->net, address, err));
    pl_coordinator_start(d->coordinator, d->net);
    PL_TRY(local_node_start(&d->local, d->loop, &d->keys, &d->o, listen, d->o.model, d->o.mem, err));
    return pl_node_join(d->local.node, address, NULL, err);
}

void draft_close(draft *d)
{
    if (!d) return;
    d->target = NULL;
    pl_coordinator_free(d->coordinator);
    local_node_stop(&d->local);
    pl_net_free(d->net);
    model_close(&d->m);
    pl_free(d->entries);
    pl_free(d);
}

/* --- Guesses --- */

static void on_token(void *user, const pl_sampled *token)
{
    entry *e = user;
    if (e->unsure || e->n_guesses == PL_DRAFT_MAX) return;
    if (token->logprob < e->d->logprob_min) {
        e->unsure = true;
        pl_coordinator_cancel(e->d->coordinator, e->running);
        return;
    }
    e->guesses[e->n_guesses++] = token->token;
}

static void on_end(void *user, pl_finish why, const pl_error *err)
{
    entry *e = user;
    e->running = NULL;
    if (why == PL_FINISH_ERROR) PL_LOG(PL_LOG_DEBUG, "no guess", "request=%s reason=%s", PL_Q(e->id), PL_Q(err->text));
    if (e->d->target) pl_coordinator_guessed(e->d->target);
}

/* The request's entry, or the one that was used longest ago; NULL: all are running. */
static entry *entry_of(draft *d, const char *id)
{
    entry *oldest = NULL;
    for (int32_t i = 0; i < d->n_entries; i++) {
        entry *e = &d->entries[i];
        if (strcmp(e->id, id) == 0) return e;
        if (!e->running && (!oldest || e->used < oldest->used)) oldest = e;
    }
    if (!oldest) return NULL;
    snprintf(oldest->id, sizeof oldest->id, "%s", id);
    oldest->n_tokens = 0;
    return oldest;
}

int32_t draft_guess(void *user, const pl_request *r, int32_t *out, int32_t max)
{
    draft *d = user;
    entry *e = entry_of(d, pl_request_id(r));
    if (!e) return 0;
    e->used = ++d->used;
    if (e->running) return -1;
    int32_t n;
    const int32_t *tokens = pl_request_tokens(r, &n);
    if (e->n_tokens == n) {
        memcpy(out, e->guesses, (size_t)e->n_guesses * sizeof *out);
        return e->n_guesses;
    }
    pl_request_params p = {.tokens = tokens, .n_tokens = n, .max_tokens = max, .sample = pl_sample_defaults()};
    p.sample.temperature = 0;
    p.sample.n_logprobs = 0;
    static const pl_request_events events = {on_token, on_end};
    e->n_tokens = n;
    e->n_guesses = 0;
    e->unsure = false;
    pl_error err = {0};
    /* What it cannot take, as a text longer than its context, is not guessed. */
    if (pl_coordinator_submit(d->coordinator, &p, &events, e, &e->running, &err) == PL_OK) return -1;
    PL_LOG(PL_LOG_DEBUG, "no guess", "request=%s reason=%s", PL_Q(e->id), PL_Q(err.text));
    e->running = NULL;
    return 0;
}
