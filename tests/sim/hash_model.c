#include "tests/sim/hash_model.h"

#include "engine/base/alloc.h"
#include "engine/model/kv.h"

#include <inttypes.h>

static uint64_t mix(uint64_t a, uint64_t b)
{
    /* The finaliser of splitmix64 (Steele, Lea and Flood 2014) over both: every bit of either reaches all bits. */
    uint64_t z = a ^ (b + 0x9e3779b97f4a7c15u + (a << 6) + (a >> 2));
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Cheaper, because a row does it once per earlier position; still in order and not commutative. */
static uint64_t fold(uint64_t sum, uint64_t v)
{
    return (sum ^ v) * 0x2545f4914f6cdd1du + (sum >> 29);
}

static uint64_t hash_word(const pl_hash *h)
{
    return pl_get_u64(h->b) ^ pl_get_u64(h->b + 8);
}

static uint64_t embed(const hash_weights *w, int32_t token, int32_t pos)
{
    return mix(mix(w->embed, (uint32_t)token), (uint32_t)pos);
}
static uint64_t cached(uint64_t h, uint64_t weight)
{
    return mix(h, weight);
}
static uint64_t layer_out(uint64_t h, uint64_t attention, uint64_t weight, int32_t pos)
{
    return mix(mix(h, attention), mix(weight, (uint32_t)pos));
}

static int32_t sample(const hash_weights *w, uint64_t h, uint64_t history, const pl_sample_params *p, int32_t pos,
                      int32_t n_vocab)
{
    uint64_t v = mix(mix(h, w->head), history);
    if (p->temperature > 0) {
        uint32_t t;
        memcpy(&t, &p->temperature, 4);
        v = mix(mix(v, p->seed), mix((uint64_t)t << 32 | (uint32_t)p->top_k, (uint32_t)pos));
    }
    return (int32_t)(v % (uint64_t)n_vocab);
}

void hash_weights_of(hash_weights *w, const pl_gguf *g, const pl_model_profile *p, int32_t first, int32_t end,
                     const pl_hash *hashes)
{
    memset(w, 0, sizeof *w);
    int32_t n_layer = pl_model_n_layer(p);
    PL_ASSERT(n_layer <= 64);
    size_t n = pl_gguf_n_tensors(g);
    size_t *index = pl_alloc((n + 1) * sizeof *index);
    PL_ASSERT(index);
    for (int32_t l = first; l < end; l++) {
        size_t k = pl_model_stage_tensors(p, l, l + 1, index);
        uint64_t v = (uint64_t)l + 1;
        for (size_t i = 0; i < k; i++) v = mix(v, hash_word(&hashes[index[i]]));
        w->layer[l] = v;
        if (l == 0) w->embed = mix(v, 101);
        if (l == n_layer - 1) w->head = mix(v, 102);
    }
    pl_free(index);
}

typedef struct sequence {
    int32_t *history; /* [n_ctx] */
    int32_t n_open;   /* tokens that OPEN brought; 0 once something was sampled */
    pl_sample_params params;
} sequence;

struct hash_stage {
    pl_stage_shape shape;
    hash_weights w;
    int32_t n_layer, n_embd, n_vocab, n_own;
    uint64_t *kv; /* [n_own][n_blocks][PL_KV_PAGE] */
    pl_kv *books; /* the engine's own, so that its checks are the ones that are simulated */
    int32_t *slots;
    sequence *seqs;
};

hash_stage *hash_stage_new(const pl_stage_shape *shape, const pl_model_profile *p, const hash_weights *w)
{
    hash_stage *s = pl_calloc(1, sizeof *s);
    if (!s) return NULL;
    s->shape = *shape;
    s->w = *w;
    s->n_layer = pl_model_n_layer(p);
    s->n_embd = pl_model_n_embd(p);
    s->n_vocab = pl_model_n_vocab(p);
    s->n_own = shape->layer_end - shape->layer_first;
    s->kv = pl_alloc((size_t)s->n_own * (size_t)shape->n_blocks * PL_KV_PAGE * sizeof *s->kv);
    s->slots = pl_calloc((size_t)shape->n_rows, sizeof *s->slots);
    s->seqs = pl_calloc((size_t)shape->n_seqs, sizeof *s->seqs);
    pl_error err = {0};
    if (!s->kv || !s->slots || !s->seqs ||
        pl_kv_new(&s->books, shape->n_seqs, shape->n_blocks, shape->n_ctx, &err) != PL_OK)
        goto fail;
    memset(s->kv, 0xa5, (size_t)s->n_own * (size_t)shape->n_blocks * PL_KV_PAGE * sizeof *s->kv);
    for (int32_t i = 0; i < shape->n_seqs; i++) {
        s->seqs[i].history = pl_calloc((size_t)shape->n_ctx, sizeof(int32_t));
        if (!s->seqs[i].history) goto fail;
    }
    return s;
fail:
    hash_stage_free(s);
    return NULL;
}

void hash_stage_free(hash_stage *s)
{
    if (!s) return;
    for (int32_t i = 0; s->seqs && i < s->shape.n_seqs; i++) pl_free(s->seqs[i].history);
    pl_free(s->seqs);
    pl_free(s->kv);
    pl_free(s->slots);
    pl_kv_free(s->books);
    pl_free(s);
}

static void copy_page(hash_stage *s, int32_t from, int32_t to)
{
    for (int32_t l = 0; l < s->n_own; l++) {
        uint64_t *kv = s->kv + (size_t)l * (size_t)s->shape.n_blocks * PL_KV_PAGE;
        memcpy(kv + (size_t)to * PL_KV_PAGE, kv + (size_t)from * PL_KV_PAGE, PL_KV_PAGE * sizeof *kv);
    }
}

static pl_status try_op(hash_stage *s, const pl_kv_op *op, int32_t *copy_from, pl_error *err)
{
    *copy_from = -1;
    switch (op->kind) {
    case PL_KV_OPEN:
        if (op->n_tokens > s->shape.n_ctx)
            return pl_fail(err, PL_ERR_INVALID, "%d tokens, context is %d", op->n_tokens, s->shape.n_ctx);
        if (s->shape.layer_end == s->n_layer && !op->params)
            return pl_fail(err, PL_ERR_INVALID, "sequence %d without sampling parameters", op->seq);
        return pl_kv_try_open(s->books, op->seq, err);
    case PL_KV_EXTEND: return pl_kv_try_extend(s->books, op->seq, op->blocks, op->n_blocks, err);
    case PL_KV_FORK:
        return pl_kv_try_fork(s->books, op->seq, op->src, op->n_pos, op->blocks, op->n_blocks, copy_from, err);
    case PL_KV_TRUNCATE: return pl_kv_try_truncate(s->books, op->seq, op->n_pos, err);
    case PL_KV_CLOSE: return pl_kv_try_close(s->books, op->seq, err);
    }
    return pl_fail(err, PL_ERR_INVALID, "operation %d on sequence %d", (int)op->kind, op->seq);
}

/* A refused micro-batch changes nothing; copies of pages go into blocks that nobody has, so they are no change yet. */
static pl_status check(hash_stage *s, const pl_micro_batch *mb, pl_error *err)
{
    for (int32_t i = 0; i < mb->n_ops; i++) {
        int32_t copy_from;
        PL_TRY(try_op(s, &mb->ops[i], &copy_from, err));
        if (copy_from >= 0) copy_page(s, copy_from, mb->ops[i].blocks[0]);
    }
    if (mb->n_rows > s->shape.n_rows)
        return pl_fail(err, PL_ERR_INVALID, "%d rows, at most %d", mb->n_rows, s->shape.n_rows);
    for (int32_t r = 0; r < mb->n_rows; r++) {
        const pl_row *row = &mb->rows[r];
        PL_TRY(pl_kv_try_row(s->books, row->seq, row->pos, &s->slots[r], err));
        if (row->token < 0 || row->token >= s->n_vocab)
            return pl_fail(err, PL_ERR_INVALID, "row %d: token %d of %d", r, row->token, s->n_vocab);
    }
    return PL_OK;
}

static void apply(hash_stage *s, const pl_kv_op *op)
{
    if (op->kind != PL_KV_OPEN) return;
    sequence *q = &s->seqs[op->seq];
    if (op->params) q->params = *op->params;
    q->n_open = op->n_tokens;
    if (op->n_tokens) memcpy(q->history, op->tokens, (size_t)op->n_tokens * sizeof *op->tokens);
}

/* Sixteen bits per float are exact; the floats behind the first four repeat the value in another form, so that a row
 * put together from two is seen. */
static void put_hidden(float *out, int32_t n_embd, uint64_t h)
{
    for (int32_t i = 0; i < n_embd; i++) {
        uint64_t v = i < 4 ? h >> (16 * i) : mix(h, (uint64_t)i);
        out[i] = (float)(v & 0xffff);
    }
}

static pl_status get_hidden(const float *in, int32_t n_embd, int32_t row, uint64_t *h, pl_error *err)
{
    *h = 0;
    for (int32_t i = 0; i < 4; i++) *h |= (uint64_t)in[i] << (16 * i);
    for (int32_t i = 4; i < n_embd; i++)
        if ((uint64_t)in[i] != (mix(*h, (uint64_t)i) & 0xffff))
            return pl_fail(err, PL_ERR_INVALID, "row %d: torn at element %d", row, i);
    return PL_OK;
}

pl_status hash_stage_run(hash_stage *s, const pl_micro_batch *mb, pl_error *err)
{
    pl_status status = check(s, mb, err);
    if (status != PL_OK) {
        pl_kv_drop(s->books);
        return status;
    }
    bool first = s->shape.layer_first == 0, last = s->shape.layer_end == s->n_layer;
    if (!first)
        for (int32_t r = 0; r < mb->n_rows; r++) {
            uint64_t h;
            PL_TRY(get_hidden(mb->hidden_in + (size_t)r * (size_t)s->n_embd, s->n_embd, r, &h, err));
        }
    pl_kv_commit(s->books);
    for (int32_t i = 0; i < mb->n_ops; i++) apply(s, &mb->ops[i]);
    int32_t n_sampled = 0;
    for (int32_t r = 0; r < mb->n_rows; r++) {
        const pl_row *row = &mb->rows[r];
        sequence *q = &s->seqs[row->seq];
        uint64_t h = embed(&s->w, row->token, row->pos);
        if (!first) PL_TRY(get_hidden(mb->hidden_in + (size_t)r * (size_t)s->n_embd, s->n_embd, r, &h, err));
        q->history[row->pos] = row->token;
        int32_t n_pages;
        const int32_t *pages = pl_kv_pages(s->books, row->seq, &n_pages);
        for (int32_t l = 0; l < s->n_own; l++) {
            uint64_t weight = s->w.layer[s->shape.layer_first + l];
            uint64_t *kv = s->kv + (size_t)l * (size_t)s->shape.n_blocks * PL_KV_PAGE;
            kv[s->slots[r]] = cached(h, weight);
            uint64_t sum = weight;
            for (int32_t b = 0, left = row->pos + 1; left > 0; b++, left -= PL_KV_PAGE) {
                const uint64_t *page = kv + (size_t)pages[b] * PL_KV_PAGE;
                for (int32_t i = 0; i < left && i < PL_KV_PAGE; i++) sum = fold(sum, page[i]);
            }
            h = layer_out(h, sum, weight, row->pos);
        }
        if (!last) put_hidden(mb->hidden_out + (size_t)r * (size_t)s->n_embd, s->n_embd, h);
        if (last && row->logits) {
            /* The record is what a replay stands on: it has to hold every token that was known. */
            if (q->n_open && q->n_open != row->pos + 1)
                return pl_fail(err, PL_ERR_INVALID,
                               "row %d: sequence %d was opened with %d tokens, the first one is sampled behind %d", r,
                               row->seq, q->n_open, row->pos + 1);
            q->n_open = 0;
            uint64_t history = 1;
            for (int32_t i = 0; i <= row->pos; i++) history = fold(history, (uint32_t)q->history[i]);
            mb->sampled[n_sampled++] =
                (pl_sampled){.token = sample(&s->w, h, history, &q->params, row->pos + 1, s->n_vocab)};
        }
    }
    return PL_OK;
}

bool hash_model_is_eog(void *user, int32_t token)
{
    (void)user;
    return token % 41 == 7;
}

int32_t hash_oracle(const pl_model_profile *p, const hash_weights *w, const pl_sample_params *params, bool ignore_eos,
                    const int32_t *prompt, int32_t n_prompt, int32_t max_tokens, int32_t n_ctx, int32_t *out,
                    bool *stopped)
{
    int32_t n_layer = pl_model_n_layer(p), n_vocab = pl_model_n_vocab(p), n_out = 0;
    uint64_t *kv = pl_calloc((size_t)n_layer * (size_t)n_ctx, sizeof *kv);
    PL_ASSERT(kv);
    uint64_t history = 1;
    *stopped = false;
    for (int32_t pos = 0; pos < n_ctx && n_out < max_tokens; pos++) {
        int32_t token = pos < n_prompt ? prompt[pos] : out[pos - n_prompt];
        history = fold(history, (uint32_t)token);
        uint64_t h = embed(w, token, pos);
        for (int32_t l = 0; l < n_layer; l++) {
            uint64_t *row = kv + (size_t)l * (size_t)n_ctx, sum = w->layer[l];
            row[pos] = cached(h, w->layer[l]);
            for (int32_t i = 0; i <= pos; i++) sum = fold(sum, row[i]);
            h = layer_out(h, sum, w->layer[l], pos);
        }
        if (pos < n_prompt - 1) continue;
        int32_t t = sample(w, h, history, params, pos + 1, n_vocab);
        if (!ignore_eos && hash_model_is_eog(NULL, t)) {
            *stopped = true;
            break;
        }
        out[n_out++] = t;
    }
    pl_free(kv);
    return n_out;
}
