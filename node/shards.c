/* Fetching blobs into the cache: which are missing is asked of the compute, their bytes of the coordinator.
 *
 * A piece counts in the window from asking until the compute has stored it, so that a slow disk slows the asking and
 * the pieces in memory are bounded. Answers come in the order of asking (the ring `asked`), so pieces of a blob are put
 * in order. A blob that turns out not to have its hash is asked for again, TRIES_MAX times: the part on the disk may
 * have been damaged, but a coordinator that keeps sending other bytes has to be named. */
#include "node/node_impl.h"

#include "engine/base/alloc.h"

#include <inttypes.h>

#define TRIES_MAX 3
#define SECOND    UINT64_C(1000000000)
/* Without a piece for so long the fetch fails. Longer than the coordinator's patience with a load, so that it is the
 * one to say so. */
#define SILENCE_NS (90 * SECOND)

typedef struct put_call {
    node_stage *stage;
    size_t blob;
    size_t size;
} put_call;

static void free_arrays(node_fetch *f)
{
    pl_free(f->blobs);
    pl_free(f->hashes);
    pl_free(f->have);
    pl_free(f->partial);
}

void node_fetch_fini(node_fetch *f)
{
    free_arrays(f);
    *f = (node_fetch){0};
}

static void fail(node_stage *s, const node_blob *b, const pl_error *why)
{
    char hex[2 * PL_HASH_SIZE + 1];
    pl_error err = *why;
    pl_hash_hex(&b->hash, hex);
    pl_note(&err, why->status, "%s %.16s", b->type == PL_TYPE_COUNT ? "model header" : "tensor", hex);
    node_stage_fail(s, &err);
}

static void pump(node_stage *s);

static void stored(void *user, const pl_error *err)
{
    put_call *call = user;
    put_call c = *call;
    pl_free(call);
    node_stage *s = c.stage;
    node_fetch *f = &s->fetch;
    s->answers_due--;
    if (s->over) {
        node_stage_release(s);
        return;
    }
    if (s->phase == NODE_PHASE_BROKEN) return;
    node_blob *b = &f->blobs[c.blob];
    f->in_window--;
    if (err && err->status == PL_ERR_FORMAT && ++b->tries < TRIES_MAX) {
        f->done_bytes -= b->stored;
        b->asked = b->stored = 0;
        if (c.blob < f->asking) f->asking = c.blob;
    } else if (err) {
        fail(s, b, err);
        return;
    } else {
        b->stored += c.size;
        f->done_bytes += c.size;
        s->fetched_bytes += c.size;
        if (b->stored == b->total) {
            b->have = true;
            f->n_left--;
        }
        node_stage_progress(s, PACELINE__PROGRESS__PHASE__FETCH, f->done_bytes, f->total_bytes);
    }
    pump(s);
}

static bool put(node_stage *s, size_t blob, uint64_t offset, pl_part *part)
{
    node_blob *b = &s->fetch.blobs[blob];
    pl_compute *c = s->node->compute;
    put_call *call = pl_alloc(sizeof *call);
    if (!call) {
        pl_error err;
        pl_part_unref(part);
        pl_fail(&err, PL_ERR_NO_MEMORY, "no memory for a piece");
        fail(s, b, &err);
        return false;
    }
    *call = (put_call){s, blob, part->size};
    s->answers_due++;
    c->vt->put(c, &b->hash, b->type, b->ne, b->total, offset, part, stored, call);
    return true;
}

/* Asks for pieces until the window is full; goes on when all is there. */
static void pump(node_stage *s)
{
    node_fetch *f = &s->fetch;
    pl_node *n = s->node;
    while (f->in_window < n->options.blob_window && f->asking < f->n && n->coordinator.peer) {
        node_blob *b = &f->blobs[f->asking];
        if (b->have || b->asked == b->total) {
            f->asking++;
            continue;
        }
        uint64_t left = b->total - b->asked;
        uint32_t size = (uint32_t)(left < n->options.blob_bytes ? left : n->options.blob_bytes);
        Paceline__BlobGet g = PACELINE__BLOB_GET__INIT;
        Paceline__Envelope m = PACELINE__ENVELOPE__INIT;
        g.hash = (ProtobufCBinaryData){PL_HASH_SIZE, b->hash.b};
        g.offset = b->asked;
        g.size = size;
        m.body_case = PACELINE__ENVELOPE__BODY_BLOB_GET;
        m.blob_get = &g;
        node_send(n->coordinator.peer, s->epoch, &m, NULL);
        size_t at = (f->ask_first + f->ask_n++) % NODE_WINDOW_MAX;
        f->asked[at].blob = f->asking;
        f->asked[at].offset = b->asked;
        f->asked[at].size = size;
        b->asked += size;
        if (f->in_window++ == 0) f->moved_ns = pl_loop_now(n->loop);
    }
    if (f->n_left || !f->then) return;
    void (*then)(node_stage *) = f->then;
    f->then = NULL;
    then(s);
}

static void looked_up(void *user, const pl_error *err)
{
    node_stage *s = user;
    node_fetch *f = &s->fetch;
    s->answers_due--;
    if (s->over) {
        node_stage_release(s);
        return;
    }
    if (s->phase == NODE_PHASE_BROKEN) return;
    if (err) {
        node_stage_fail(s, err);
        return;
    }
    for (size_t i = 0; i < f->n; i++) {
        node_blob *b = &f->blobs[i];
        b->have = f->have[i];
        if (b->have) {
            f->n_left--;
            continue;
        }
        uint64_t kept = f->partial[i] <= b->total ? f->partial[i] : 0;
        b->asked = b->stored = kept;
        f->total_bytes += b->total;
        f->done_bytes += kept;
    }
    if (f->n_left) node_stage_progress(s, PACELINE__PROGRESS__PHASE__FETCH, f->done_bytes, f->total_bytes);
    for (size_t i = 0; i < f->n; i++) {
        node_blob *b = &f->blobs[i];
        if (b->have || b->asked < b->total) continue;
        /* All bytes were kept, but it was interrupted before they were verified: an empty piece ends it. */
        pl_part *empty = pl_part_new(0);
        if (!empty) {
            pl_error e;
            pl_fail(&e, PL_ERR_NO_MEMORY, "no memory for a piece");
            fail(s, b, &e);
            return;
        }
        f->in_window++;
        if (!put(s, i, b->total, empty)) return;
    }
    pump(s);
}

pl_status node_fetch_start(node_stage *s, const node_blob *blobs, size_t n, void (*then)(node_stage *s), pl_error *err)
{
    node_fetch *f = &s->fetch;
    node_fetch_fini(f);
    f->blobs = pl_alloc(n * sizeof *f->blobs);
    f->hashes = pl_alloc(n * sizeof *f->hashes);
    f->have = pl_calloc(n, sizeof *f->have);
    f->partial = pl_calloc(n, sizeof *f->partial);
    if (!f->blobs || !f->hashes || !f->have || !f->partial) {
        node_fetch_fini(f);
        return pl_fail(err, PL_ERR_NO_MEMORY, "no memory to fetch %zu blobs", n);
    }
    if (n > 0) memcpy(f->blobs, blobs, n * sizeof *blobs);
    for (size_t i = 0; i < n; i++) f->hashes[i] = blobs[i].hash;
    f->n = f->n_left = n;
    f->then = then;
    s->answers_due++;
    pl_compute *c = s->node->compute;
    c->vt->lookup(c, f->hashes, n, f->have, f->partial, looked_up, s);
    return PL_OK;
}

void node_fetch_blob(node_stage *s, const Paceline__Blob *m, pl_part *part)
{
    node_fetch *f = &s->fetch;
    pl_error err;
    if (s->phase == NODE_PHASE_BROKEN) {
        pl_part_unref(part);
        return;
    }
    if (!f->ask_n) {
        pl_part_unref(part);
        pl_fail(&err, PL_ERR_FORMAT, "a piece of a blob that nobody asked for");
        node_stage_fail(s, &err);
        return;
    }
    size_t at = f->ask_first;
    f->ask_first = (f->ask_first + 1) % NODE_WINDOW_MAX;
    f->ask_n--;
    f->moved_ns = pl_loop_now(s->node->loop);
    size_t i = f->asked[at].blob;
    node_blob *b = &f->blobs[i];
    if (m->failure) {
        pl_part_unref(part);
        pl_fail(&err, (pl_status)m->failure->status, "coordinator: %s", m->failure->text);
        fail(s, b, &err);
        return;
    }
    if (memcmp(m->hash.data, b->hash.b, PL_HASH_SIZE) != 0 || m->offset != f->asked[at].offset ||
        m->total != b->total || part->size != f->asked[at].size) {
        pl_fail(&err, PL_ERR_FORMAT,
                "asked for %u bytes at %" PRIu64 " of %" PRIu64 ", got %zu at %" PRIu64 " of %" PRIu64,
                f->asked[at].size, f->asked[at].offset, b->total, part->size, m->offset, m->total);
        pl_part_unref(part);
        fail(s, b, &err);
        return;
    }
    put(s, i, m->offset, part);
}

void node_fetch_tick(node_stage *s)
{
    node_fetch *f = &s->fetch;
    if (s->phase == NODE_PHASE_BROKEN || !f->ask_n || pl_loop_now(s->node->loop) - f->moved_ns < SILENCE_NS) return;
    pl_error err;
    pl_fail(&err, PL_ERR_TIMEOUT, "no piece from the coordinator within %d s", (int)(SILENCE_NS / SECOND));
    fail(s, &f->blobs[f->asked[f->ask_first].blob], &err);
}
