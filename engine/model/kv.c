#include "engine/model/kv.h"

#include <inttypes.h>

#include "engine/base/alloc.h"

typedef struct state {
    bool open;
    int32_t n_pos, n_pages;
    int32_t *pages;
} state;

/* pages of the shadow are the sequence's own only when has_pages is set; until then they are those of now. */
typedef struct seq_entry {
    state now, next;
    bool touched, has_pages;
} seq_entry;

struct pl_kv {
    int32_t n_seqs, n_blocks, n_ctx, n_pages_max;
    seq_entry *seqs;
    int32_t *pages;     /* [n_seqs][2][n_pages_max], behind the entries' two states */
    int32_t *refs;      /* [n_blocks]: owners of each block */
    int32_t *refs_next; /* the same in the shadow, once refs_touched */
    bool refs_touched;
    int32_t *touched; /* [n_seqs]: which entries have a shadow */
    int32_t n_touched;
};

static int32_t pages_of(int32_t n_pos)
{
    return (int32_t)(((int64_t)n_pos + PL_KV_PAGE - 1) / PL_KV_PAGE);
}

size_t pl_kv_bytes(int32_t n_seqs, int32_t n_blocks, int32_t n_ctx)
{
    size_t per_seq = sizeof(seq_entry) + sizeof(int32_t) + 2 * (size_t)pages_of(n_ctx) * sizeof(int32_t);
    return sizeof(pl_kv) + (size_t)n_seqs * per_seq + 2 * (size_t)n_blocks * sizeof(int32_t);
}

pl_status pl_kv_new(pl_kv **out, int32_t n_seqs, int32_t n_blocks, int32_t n_ctx, pl_error *err)
{
    *out = NULL;
    pl_kv *kv = pl_calloc(1, sizeof *kv);
    if (kv == NULL) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for page tables");
    kv->n_seqs = n_seqs;
    kv->n_blocks = n_blocks;
    kv->n_ctx = n_ctx;
    kv->n_pages_max = pages_of(n_ctx);
    kv->seqs = pl_calloc((size_t)n_seqs, sizeof *kv->seqs);
    kv->pages = pl_calloc((size_t)n_seqs * 2, (size_t)kv->n_pages_max * sizeof *kv->pages);
    kv->refs = pl_calloc((size_t)n_blocks, sizeof *kv->refs);
    kv->refs_next = pl_calloc((size_t)n_blocks, sizeof *kv->refs_next);
    kv->touched = pl_calloc((size_t)n_seqs, sizeof *kv->touched);
    if (!kv->seqs || !kv->pages || !kv->refs || !kv->refs_next || !kv->touched) {
        pl_kv_free(kv);
        return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for page tables: %zu bytes",
                       pl_kv_bytes(n_seqs, n_blocks, n_ctx));
    }
    for (int32_t i = 0; i < n_seqs; i++) {
        kv->seqs[i].now.pages = kv->pages + (size_t)i * 2 * (size_t)kv->n_pages_max;
        kv->seqs[i].next.pages = kv->seqs[i].now.pages + kv->n_pages_max;
    }
    *out = kv;
    return PL_OK;
}

void pl_kv_free(pl_kv *kv)
{
    if (kv == NULL) return;
    pl_free(kv->seqs);
    pl_free(kv->pages);
    pl_free(kv->refs);
    pl_free(kv->refs_next);
    pl_free(kv->touched);
    pl_free(kv);
}

/* The shadow of a sequence; with pages when its table is going to change. */
static state *shadow(pl_kv *kv, int32_t seq, bool with_pages)
{
    seq_entry *e = &kv->seqs[seq];
    if (!e->touched) {
        e->touched = true;
        e->has_pages = false;
        e->next.open = e->now.open;
        e->next.n_pos = e->now.n_pos;
        e->next.n_pages = e->now.n_pages;
        kv->touched[kv->n_touched++] = seq;
    }
    if (with_pages && !e->has_pages) {
        e->has_pages = true;
        memcpy(e->next.pages, e->now.pages, (size_t)e->now.n_pages * sizeof *e->next.pages);
    }
    return &e->next;
}

static int32_t page(const pl_kv *kv, int32_t seq, int32_t i)
{
    const seq_entry *e = &kv->seqs[seq];
    return e->touched && e->has_pages ? e->next.pages[i] : e->now.pages[i];
}

static int32_t *refs(pl_kv *kv)
{
    if (!kv->refs_touched) {
        kv->refs_touched = true;
        memcpy(kv->refs_next, kv->refs, (size_t)kv->n_blocks * sizeof *kv->refs);
    }
    return kv->refs_next;
}

static pl_status find(pl_kv *kv, int32_t seq, const char *what, state **out, pl_error *err)
{
    if (seq < 0 || seq >= kv->n_seqs)
        return pl_fail(err, PL_ERR_INVALID, "%s: sequence %" PRId32 " is not in 0..%" PRId32, what, seq,
                       kv->n_seqs - 1);
    *out = shadow(kv, seq, false);
    return PL_OK;
}

static pl_status find_open(pl_kv *kv, int32_t seq, const char *what, state **out, pl_error *err)
{
    PL_TRY(find(kv, seq, what, out, err));
    if (!(*out)->open) return pl_fail(err, PL_ERR_INVALID, "%s: sequence %" PRId32 " is not open", what, seq);
    return PL_OK;
}

/* Appends blocks that nobody has. */
static pl_status append(pl_kv *kv, int32_t seq, const int32_t *blocks, int32_t n, const char *what, pl_error *err)
{
    state *s = shadow(kv, seq, true);
    if (n < 0 || n > kv->n_pages_max - s->n_pages)
        return pl_fail(err, PL_ERR_INVALID,
                       "%s: sequence %" PRId32 " has %" PRId32 " pages and would get %" PRId32
                       " more, of at most %" PRId32,
                       what, seq, s->n_pages, n, kv->n_pages_max);
    int32_t *owners = refs(kv);
    for (int32_t i = 0; i < n; i++) {
        int32_t b = blocks[i];
        if (b < 0 || b >= kv->n_blocks)
            return pl_fail(err, PL_ERR_INVALID, "%s: sequence %" PRId32 ": block %" PRId32 " is not in 0..%" PRId32,
                           what, seq, b, kv->n_blocks - 1);
        if (owners[b] != 0)
            return pl_fail(err, PL_ERR_INVALID, "%s: sequence %" PRId32 ": block %" PRId32 " is in use", what, seq, b);
        owners[b] = 1;
        s->pages[s->n_pages++] = b;
    }
    return PL_OK;
}

static void give_back(pl_kv *kv, int32_t seq, int32_t n_keep)
{
    state *s = shadow(kv, seq, true);
    if (s->n_pages <= n_keep) return;
    int32_t *owners = refs(kv);
    while (s->n_pages > n_keep) owners[s->pages[--s->n_pages]]--;
}

pl_status pl_kv_try_open(pl_kv *kv, int32_t seq, pl_error *err)
{
    state *s = NULL;
    PL_TRY(find(kv, seq, "open", &s, err));
    if (s->open) return pl_fail(err, PL_ERR_INVALID, "open: sequence %" PRId32 " is open", seq);
    s->open = true;
    s->n_pos = s->n_pages = 0;
    return PL_OK;
}

pl_status pl_kv_try_extend(pl_kv *kv, int32_t seq, const int32_t *blocks, int32_t n_blocks, pl_error *err)
{
    state *s = NULL;
    PL_TRY(find_open(kv, seq, "extend", &s, err));
    return append(kv, seq, blocks, n_blocks, "extend", err);
}

pl_status pl_kv_try_fork(pl_kv *kv, int32_t seq, int32_t src, int32_t n_pos, const int32_t *blocks, int32_t n_blocks,
                         int32_t *copy_from, pl_error *err)
{
    state *to = NULL, *from = NULL;
    *copy_from = -1;
    PL_TRY(find_open(kv, seq, "fork", &to, err));
    PL_TRY(find_open(kv, src, "fork", &from, err));
    if (to->n_pages != 0) return pl_fail(err, PL_ERR_INVALID, "fork: sequence %" PRId32 " is not empty", seq);
    if (n_pos < 0 || n_pos > from->n_pos)
        return pl_fail(err, PL_ERR_INVALID, "fork: sequence %" PRId32 " has %" PRId32 " positions, not %" PRId32, src,
                       from->n_pos, n_pos);
    int32_t whole = n_pos / PL_KV_PAGE, partial = n_pos % PL_KV_PAGE != 0;
    if (n_blocks != partial)
        return pl_fail(err, PL_ERR_INVALID, "fork: %" PRId32 " positions need %" PRId32 " blocks, not %" PRId32, n_pos,
                       partial, n_blocks);
    to = shadow(kv, seq, true);
    int32_t *owners = refs(kv);
    for (int32_t i = 0; i < whole; i++) {
        int32_t b = page(kv, src, i);
        owners[b]++;
        to->pages[to->n_pages++] = b;
    }
    if (partial) {
        *copy_from = page(kv, src, whole);
        PL_TRY(append(kv, seq, blocks, 1, "fork", err));
    }
    to->n_pos = n_pos;
    return PL_OK;
}

pl_status pl_kv_try_truncate(pl_kv *kv, int32_t seq, int32_t n_pos, pl_error *err)
{
    state *s = NULL;
    PL_TRY(find_open(kv, seq, "truncate", &s, err));
    if (n_pos < 0 || n_pos > s->n_pos)
        return pl_fail(err, PL_ERR_INVALID, "truncate: sequence %" PRId32 " has %" PRId32 " positions, not %" PRId32,
                       seq, s->n_pos, n_pos);
    s->n_pos = n_pos;
    give_back(kv, seq, pages_of(n_pos));
    return PL_OK;
}

pl_status pl_kv_try_close(pl_kv *kv, int32_t seq, pl_error *err)
{
    state *s = NULL;
    PL_TRY(find_open(kv, seq, "close", &s, err));
    give_back(kv, seq, 0);
    s->open = false;
    s->n_pos = 0;
    return PL_OK;
}

pl_status pl_kv_try_row(pl_kv *kv, int32_t seq, int32_t pos, int32_t *slot, pl_error *err)
{
    state *s = NULL;
    PL_TRY(find_open(kv, seq, "row", &s, err));
    if (pos != s->n_pos)
        return pl_fail(err, PL_ERR_INVALID,
                       "row: position %" PRId32 " of sequence %" PRId32 " does not follow its length %" PRId32, pos,
                       seq, s->n_pos);
    if (pos >= kv->n_ctx)
        return pl_fail(err, PL_ERR_INVALID,
                       "row: position %" PRId32 " of sequence %" PRId32 ": the context is %" PRId32, pos, seq,
                       kv->n_ctx);
    int32_t i = pos / PL_KV_PAGE;
    if (i >= s->n_pages)
        return pl_fail(err, PL_ERR_INVALID,
                       "row: position %" PRId32 " of sequence %" PRId32 " has no block: it has %" PRId32, pos, seq,
                       s->n_pages);
    int32_t b = page(kv, seq, i);
    if ((kv->refs_touched ? kv->refs_next : kv->refs)[b] != 1)
        return pl_fail(err, PL_ERR_INVALID,
                       "row: position %" PRId32 " of sequence %" PRId32 " is in block %" PRId32 ", which others share",
                       pos, seq, b);
    s->n_pos++;
    *slot = b * PL_KV_PAGE + pos % PL_KV_PAGE;
    return PL_OK;
}

void pl_kv_commit(pl_kv *kv)
{
    for (int32_t i = 0; i < kv->n_touched; i++) {
        seq_entry *e = &kv->seqs[kv->touched[i]];
        int32_t *pages = e->now.pages;
        bool swaps = e->has_pages;
        e->now.open = e->next.open;
        e->now.n_pos = e->next.n_pos;
        e->now.n_pages = e->next.n_pages;
        if (swaps) {
            e->now.pages = e->next.pages;
            e->next.pages = pages;
        }
    }
    if (kv->refs_touched) {
        int32_t *r = kv->refs;
        kv->refs = kv->refs_next;
        kv->refs_next = r;
    }
    pl_kv_drop(kv);
}

void pl_kv_drop(pl_kv *kv)
{
    for (int32_t i = 0; i < kv->n_touched; i++) kv->seqs[kv->touched[i]].touched = false;
    kv->n_touched = 0;
    kv->refs_touched = false;
}

bool pl_kv_is_open(const pl_kv *kv, int32_t seq)
{
    return kv->seqs[seq].now.open;
}
int32_t pl_kv_length(const pl_kv *kv, int32_t seq)
{
    return kv->seqs[seq].now.n_pos;
}

const int32_t *pl_kv_pages(const pl_kv *kv, int32_t seq, int32_t *n)
{
    *n = kv->seqs[seq].now.n_pages;
    return kv->seqs[seq].now.pages;
}

int32_t pl_kv_blocks_used(const pl_kv *kv)
{
    int32_t n = 0;
    for (int32_t i = 0; i < kv->n_blocks; i++) n += kv->refs[i] > 0;
    return n;
}
