#include "engine/sample/constraint.h"

#include "engine/base/alloc.h"
#include "engine/base/hash.h"
#include "engine/sample/trie.h"

#define UNUSED_MAX 1 /* grammars that no sequence has: the next request often brings the same one */
/* Memory for the places of all grammars, per word of the vocabulary: some 500 masks. While one is made it may grow to
 * twice as much; see PL_STAGE_GRAMMAR_BYTES. */
#define PLACES_BYTES 64

/* One grammar, for all sequences that have it. */
typedef struct shared {
    struct shared *next; /* the one used last is first */
    pl_hash hash;        /* of its text */
    pl_grammar *grammar;
    pl_grammar_run *run;
    int n_users;
} shared;

struct pl_constraints {
    int n_grammars;
    int32_t n_vocab; /* of the logits; the vocabulary may have fewer */
    pl_trie *trie;
    uint64_t *ends, *mask; /* [words] the tokens that end a text; scratch */
    bool has_ends;
    size_t words;
    shared *grammars;
};

struct pl_constraint {
    pl_constraints *all;
    shared *of;
    int32_t n_prompt, n_read; /* tokens up to n_read led to place */
    int32_t place;
    uint32_t generation;
};

static pl_status make_trie(pl_constraints *c, const pl_vocab *vocab, pl_error *err)
{
    int32_t n = pl_vocab_size(vocab) < c->n_vocab ? pl_vocab_size(vocab) : c->n_vocab;
    pl_str *texts = pl_calloc((size_t)c->n_vocab + 1, sizeof *texts);
    size_t *at = pl_calloc((size_t)n + 1, sizeof *at);
    pl_buf bytes = {0};
    pl_status s = PL_OK;
    for (int32_t i = 0; texts && at && i < n; i++) {
        at[i] = bytes.size;
        if (pl_vocab_is_eog(vocab, i)) {
            c->ends[i >> 6] |= UINT64_C(1) << (i & 63);
            c->has_ends = true;
        } else {
            pl_detokenize(vocab, i, false, &bytes);
        }
        at[i + 1] = bytes.size;
    }
    if (!texts || !at || bytes.failed) {
        s = pl_fail(err, PL_ERR_NO_MEMORY, "no memory for the texts of %d tokens", (int)n);
    } else {
        for (int32_t i = 0; i < n; i++)
            if (at[i + 1] > at[i]) texts[i] = (pl_str){(const char *)bytes.data + at[i], at[i + 1] - at[i]};
        s = pl_trie_new(&c->trie, texts, c->n_vocab, err);
    }
    pl_buf_fini(&bytes);
    pl_free(at);
    pl_free(texts);
    return s;
}

pl_status pl_constraints_new(pl_constraints **out, const pl_vocab *vocab, int32_t n_vocab, pl_error *err)
{
    *out = NULL;
    pl_constraints *c = pl_calloc(1, sizeof *c);
    if (c) {
        c->n_vocab = n_vocab;
        c->words = pl_mask_words(n_vocab);
        c->ends = pl_calloc(c->words, sizeof *c->ends);
        c->mask = pl_calloc(c->words, sizeof *c->mask);
    }
    pl_status s = PL_OK;
    if (!c || !c->ends || !c->mask) s = pl_fail(err, PL_ERR_NO_MEMORY, "no memory for grammars");
    if (s == PL_OK) s = make_trie(c, vocab, err);
    if (s != PL_OK) {
        pl_constraints_free(c);
        return s;
    }
    *out = c;
    return PL_OK;
}

static void shared_free(shared *s)
{
    if (!s) return;
    pl_grammar_run_free(s->run);
    pl_grammar_free(s->grammar);
    pl_free(s);
}

void pl_constraints_free(pl_constraints *c)
{
    if (!c) return;
    while (c->grammars) {
        shared *s = c->grammars;
        PL_ASSERT(s->n_users == 0);
        c->grammars = s->next;
        shared_free(s);
    }
    pl_trie_free(c->trie);
    pl_free(c->ends);
    pl_free(c->mask);
    pl_free(c);
}

/* Frees the unused ones but the latest. */
static void drop_unused(pl_constraints *all)
{
    int kept = 0;
    for (shared **at = &all->grammars; *at;) {
        shared *s = *at;
        if (s->n_users > 0 || kept++ < UNUSED_MAX) {
            at = &s->next;
            continue;
        }
        *at = s->next;
        shared_free(s);
        all->n_grammars--;
    }
}

/* Of the places' memory each grammar has its share, but enough for a few masks. */
static size_t share_of_places(const pl_constraints *all)
{
    size_t bytes = PLACES_BYTES * (size_t)all->n_vocab / (size_t)all->n_grammars, least = 16 * all->words * 8;
    return bytes > least ? bytes : least;
}

static pl_status share(shared **out, pl_constraints *all, pl_str gbnf, pl_error *err)
{
    pl_hash hash = pl_hash_of((pl_bytes){(const uint8_t *)gbnf.data, gbnf.size});
    shared **at = &all->grammars;
    while (*at && !pl_hash_eq(&(*at)->hash, &hash)) at = &(*at)->next;
    shared *s = *at;
    if (s) {
        *at = s->next;
    } else {
        if (!(s = pl_calloc(1, sizeof *s))) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for a grammar");
        s->hash = hash;
        pl_status status = pl_grammar_new(&s->grammar, gbnf, err);
        if (status == PL_OK) status = pl_grammar_run_new(&s->run, s->grammar, 0, err);
        if (status != PL_OK) {
            shared_free(s);
            return status;
        }
        all->n_grammars++;
    }
    s->next = all->grammars;
    all->grammars = s;
    s->n_users++;
    drop_unused(all);
    for (shared *g = all->grammars; g; g = g->next) pl_grammar_run_limit(g->run, share_of_places(all));
    *out = s;
    return PL_OK;
}

pl_status pl_constraint_new(pl_constraint **out, pl_constraints *all, pl_str gbnf, int32_t n_prompt, pl_error *err)
{
    *out = NULL;
    pl_constraint *c = pl_calloc(1, sizeof *c);
    if (!c) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for a sequence's grammar");
    c->all = all;
    c->n_prompt = n_prompt;
    pl_status s = share(&c->of, all, gbnf, err);
    if (s != PL_OK) {
        pl_free(c);
        return s;
    }
    c->n_read = -1;
    *out = c;
    return PL_OK;
}

void pl_constraint_free(pl_constraint *c)
{
    if (!c) return;
    c->of->n_users--;
    drop_unused(c->all);
    pl_free(c);
}

void pl_constraint_rewind(pl_constraint *c, int64_t n)
{
    if (n >= c->n_read) return;
    c->n_read = -1; /* to be read from the beginning */
}

void pl_constraint_follow(pl_constraint *c, const int32_t *history, int32_t n_history)
{
    pl_grammar_run *r = c->of->run;
    pl_grammar_tidy(r);
    if (c->n_read < 0 || c->n_read > n_history || c->generation != pl_grammar_generation(r)) {
        c->place = pl_grammar_start(r);
        c->generation = pl_grammar_generation(r);
        c->n_read = c->n_prompt;
    }
    for (; c->n_read < n_history; c->n_read++) {
        int32_t t = history[c->n_read];
        if (t < 0 || t >= c->all->n_vocab) continue;
        /* What ends a text ends it here too, if the coordinator goes on behind it. */
        if (c->all->ends[t >> 6] >> (t & 63) & 1) c->place = PL_PLACE_DEAD;
        pl_str text = pl_trie_text(c->all->trie, t);
        for (size_t i = 0; i < text.size; i++) c->place = pl_grammar_step(r, c->place, (uint8_t)text.data[i]);
    }
}

bool pl_constraint_allows(pl_constraint *c, int32_t token)
{
    pl_grammar_run *r = c->of->run;
    if (c->all->ends[token >> 6] >> (token & 63) & 1) return pl_grammar_accepts(r, c->place);
    pl_str text = pl_trie_text(c->all->trie, token);
    int32_t place = c->place;
    for (size_t i = 0; i < text.size && place != PL_PLACE_DEAD; i++)
        place = pl_grammar_step(r, place, (uint8_t)text.data[i]);
    return text.size > 0 && place != PL_PLACE_DEAD;
}

/* The mask of the place, kept with it where there is memory. */
static const uint64_t *mask_of(pl_constraint *c)
{
    pl_constraints *all = c->all;
    pl_grammar_run *r = c->of->run;
    uint64_t *mask = pl_grammar_attachment(r, c->place);
    if (mask) return mask;
    if (c->place != PL_PLACE_DEAD) mask = pl_grammar_attach(r, c->place, all->words * sizeof *mask);
    if (!mask) {
        mask = all->mask;
        memset(mask, 0, all->words * sizeof *mask);
    }
    pl_trie_mask(all->trie, r, c->place, mask);
    uint64_t any = 0;
    for (size_t i = 0; i < all->words; i++) any |= mask[i];
    if (any == 0 || pl_grammar_accepts(r, c->place))
        for (size_t i = 0; i < all->words; i++) mask[i] |= all->ends[i];
    if (any == 0 && !all->has_ends) memset(mask, 0xff, all->words * sizeof *mask);
    return mask;
}

void pl_constraint_ban(pl_constraint *c, float *logits)
{
    const uint64_t *mask = mask_of(c);
    int32_t n = c->all->n_vocab;
    for (int32_t i = 0; i < n; i += 64) {
        /* Masks are nearly full (inside of a string) or nearly empty. */
        int32_t end = n - i < 64 ? n - i : 64;
        uint64_t banned = ~mask[i >> 6];
        if (end < 64) banned &= (UINT64_C(1) << end) - 1;
        if (banned == UINT64_MAX) {
            for (int32_t k = 0; k < 64; k++) logits[i + k] = -INFINITY;
            continue;
        }
        for (; banned; banned &= banned - 1) logits[i + __builtin_ctzll(banned)] = -INFINITY;
    }
}
