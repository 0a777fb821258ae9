#include "engine/stage/load.h"

#include <errno.h>
#include <sys/mman.h>

#include "engine/base/alloc.h"
#include "engine/base/log.h"
#include "engine/base/pool.h"
#include "engine/base/sys.h"

enum { HUGE_PAGE = 2 << 20, ALIGN = 64 };

struct pl_loaded {
    size_t n;
    size_t *tensors;    /* [n] indices in the file */
    pl_weight *weights; /* [n] */
    pl_stored *stored;  /* [n]; all zero where the file's own map is used */
    pl_bytes copy;      /* of all of them, instead; size 0: none */
};

static pl_status new_loaded(pl_loaded **out, const pl_model_profile *profile, int32_t layer_first, int32_t layer_end,
                            pl_error *err)
{
    *out = NULL;
    pl_loaded *l = pl_calloc(1, sizeof *l);
    if (l) {
        l->n = pl_model_stage_tensors(profile, layer_first, layer_end, NULL);
        l->tensors = pl_calloc(l->n, sizeof *l->tensors);
        l->weights = pl_calloc(l->n, sizeof *l->weights);
        l->stored = pl_calloc(l->n, sizeof *l->stored);
    }
    if (l == NULL || !l->tensors || !l->weights || !l->stored) {
        pl_loaded_close(l);
        return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for a stage's weights");
    }
    pl_model_stage_tensors(profile, layer_first, layer_end, l->tensors);
    *out = l;
    return PL_OK;
}

void pl_loaded_close(pl_loaded *l)
{
    if (l == NULL) return;
    for (size_t i = 0; l->stored && i < l->n; i++) pl_stored_close(&l->stored[i]);
    pl_free(l->tensors);
    pl_free(l->weights);
    pl_free(l->stored);
    if (l->copy.size > 0) munmap((void *)(uintptr_t)l->copy.data, l->copy.size);
    pl_free(l);
}

const pl_weight *pl_loaded_weights(const pl_loaded *l)
{
    return l->weights;
}

/* Maps tensor i of the stage from the store. */
static pl_status take(pl_loaded *l, size_t i, pl_store *store, const pl_gguf *g, const pl_hash *hash, pl_error *err)
{
    const pl_gguf_tensor *t = pl_gguf_tensor_at(g, l->tensors[i]);
    pl_stored *st = &l->stored[i];
    pl_status s = pl_store_get(store, hash, st, err);
    if (s != PL_OK) return pl_note(err, s, "tensor %.*s", PL_STR_ARG(t->name));
    /* The same bytes may be a tensor of another type or shape elsewhere; a header that lies must not get it. */
    if (st->type != t->type || memcmp(st->ne, t->ne, sizeof st->ne) != 0 || st->size != t->size) {
        pl_stored_close(st);
        return pl_fail(err, PL_ERR_FORMAT, "tensor %.*s: the cache has it in another type or shape",
                       PL_STR_ARG(t->name));
    }
    l->weights[i] = (pl_weight){st->layout, st->data};
    return PL_OK;
}

/* --- Into memory --- */

typedef struct settling {
    pl_loaded *l;
    const pl_gguf *g;
    size_t *at; /* [n] offsets in the copy; NULL: none is made */
} settling;

static pl_bytes bytes_of(const settling *s, size_t i)
{
    return (pl_bytes){s->l->weights[i].data, pl_gguf_tensor_at(s->g, s->l->tensors[i])->size};
}

static void settle_some(pl_team *team, int i_thread, int n_threads, void *user)
{
    (void)i_thread, (void)n_threads;
    const settling *s = user;
    for (size_t i; (i = (size_t)pl_team_next(team)) < s->l->n;) {
        if (s->at)
            memcpy((uint8_t *)(uintptr_t)s->l->copy.data + s->at[i], s->l->weights[i].data, bytes_of(s, i).size);
        else
            pl_mapped_populate(bytes_of(s, i));
    }
}

/* Room for a copy of all weights. */
static pl_status copy_new(settling *s, pl_error *err)
{
    pl_loaded *l = s->l;
    s->at = pl_calloc(l->n, sizeof *s->at);
    if (!s->at) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for a stage's weights");
    size_t size = 0;
    for (size_t i = 0; i < l->n; i++) {
        s->at[i] = size;
        size = (size + bytes_of(s, i).size + ALIGN - 1) / ALIGN * ALIGN;
    }
    size = (size + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for a copy of the weights, %zu bytes", size);
    l->copy = (pl_bytes){p, size};
    pl_mapped_huge(l->copy);
    return PL_OK;
}

/* Brings the weights to where the options want them. */
static pl_status settle(pl_loaded *l, const pl_gguf *g, const pl_load_options *o, pl_error *err)
{
    settling s = {.l = l, .g = g};
    if (!o->copy)
        for (size_t i = 0; i < l->n; i++) pl_mapped_huge(bytes_of(&s, i));
    pl_status status = o->copy ? copy_new(&s, err) : PL_OK;
    pl_pool *pool = NULL;
    if (status == PL_OK && (o->copy || !o->lazy)) {
        status = pl_pool_new(&pool, (pl_pool_options){.n_threads = pl_sys_cpus(), .poll = 0}, err);
        if (status == PL_OK) pl_pool_run(pool, settle_some, &s);
        pl_pool_free(pool);
    }
    if (status == PL_OK && o->copy) {
        for (size_t i = 0; i < l->n; i++) {
            l->weights[i].data = l->copy.data + s.at[i];
            pl_stored_close(&l->stored[i]);
        }
        mprotect((void *)(uintptr_t)l->copy.data, l->copy.size, PROT_READ); /* nobody writes to weights */
    }
    int failed = 0;
    if (status == PL_OK && o->lock) {
        if (o->copy) {
            failed = mlock(l->copy.data, l->copy.size) == 0 ? 0 : errno;
        } else {
            for (size_t i = 0; i < l->n && !failed; i++)
                failed = mlock(l->weights[i].data, bytes_of(&s, i).size) == 0 ? 0 : errno;
        }
    }
    if (failed) PL_LOG(PL_LOG_WARN, "weights not locked in memory", "error=%s", PL_Q(strerror(failed)));
    pl_free(s.at);
    return status;
}

static const pl_load_options defaults;

pl_status pl_loaded_from_store(pl_loaded **out, pl_store *store, const pl_gguf *header, const pl_model_profile *profile,
                               int32_t layer_first, int32_t layer_end, const pl_hash *hashes,
                               const pl_load_options *options, pl_error *err)
{
    *out = NULL;
    pl_loaded *l;
    PL_TRY(new_loaded(&l, profile, layer_first, layer_end, err));
    pl_status s = PL_OK;
    for (size_t i = 0; i < l->n && s == PL_OK; i++) s = take(l, i, store, header, &hashes[i], err);
    if (s == PL_OK) s = settle(l, header, options ? options : &defaults, err);
    if (s != PL_OK) {
        pl_loaded_close(l);
        return s;
    }
    *out = l;
    return PL_OK;
}

/* Hashing is the first half of the way, packing the second. */
typedef struct halves {
    const pl_load_options *o;
    int half;
} halves;

static void half_way(void *user, uint64_t done, uint64_t total)
{
    const halves *h = user;
    if (h->o->progress) h->o->progress(h->o->user, (uint64_t)h->half * total + done, 2 * total);
}

/* Packs what the cache lacks of the stage; *why says what kept it from doing so. */
static pl_status import_all(const pl_loaded *l, pl_store *store, const pl_gguf *g, const pl_hash *hashes, halves *h,
                            pl_error *why)
{
    const pl_hash **of = pl_calloc(l->n, sizeof *of);
    if (!of) return pl_fail(why, PL_ERR_NO_MEMORY, "no memory for %zu hashes", l->n);
    for (size_t i = 0; i < l->n; i++) of[i] = &hashes[l->tensors[i]];
    pl_status s = pl_store_import_all(store, g, l->tensors, of, l->n, half_way, h, why);
    pl_free(of);
    return s;
}

pl_status pl_loaded_from_file(pl_loaded **out, pl_store *store, const pl_gguf *g, const pl_model_profile *profile,
                              int32_t layer_first, int32_t layer_end, const pl_load_options *options, pl_error *err)
{
    *out = NULL;
    const pl_load_options *o = options ? options : &defaults;
    pl_loaded *l;
    pl_hash *hashes = NULL;
    pl_status s;
    pl_error why = {0};
    bool warn = false;
    PL_TRY(new_loaded(&l, profile, layer_first, layer_end, err));
    if (store) {
        halves h = {o, 0};
        hashes = pl_calloc(pl_gguf_n_tensors(g), sizeof *hashes);
        s = hashes ? pl_store_hash_gguf(store, g, hashes, half_way, &h, err)
                   : pl_fail(err, PL_ERR_NO_MEMORY, "no memory for hashes");
        if (s != PL_OK) goto fail;
        h.half = 1;
        warn = import_all(l, store, g, hashes, &h, &why) != PL_OK;
    }
    for (size_t i = 0; i < l->n; i++) {
        const pl_gguf_tensor *t = pl_gguf_tensor_at(g, l->tensors[i]);
        pl_error ignored;
        if (store && take(l, i, store, g, &hashes[l->tensors[i]], warn ? &ignored : &why) == PL_OK) continue;
        warn = warn || store;
        if (t->data == NULL) {
            s = pl_fail(err, PL_ERR_NOT_FOUND, "tensor %.*s: its bytes are not in this file", PL_STR_ARG(t->name));
            goto fail;
        }
        l->weights[i] = (pl_weight){PL_LAYOUT_PLAIN, t->data};
    }
    if (warn) PL_LOG(PL_LOG_WARN, "weights used unpacked, which is slower", "error=%s", PL_Q(why.text));
    if ((s = settle(l, g, o, err)) != PL_OK) goto fail;
    pl_free(hashes);
    *out = l;
    return PL_OK;
fail:
    pl_free(hashes);
    pl_loaded_close(l);
    return s;
}
