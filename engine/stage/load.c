#include "engine/stage/load.h"

#include "engine/base/alloc.h"
#include "engine/base/log.h"

struct pl_loaded {
    size_t n;
    size_t *tensors;    /* [n] indices in the file */
    pl_weight *weights; /* [n] */
    pl_stored *stored;  /* [n]; all zero where the file's own map is used */
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
    pl_mapped_willneed(st->map.bytes);
    return PL_OK;
}

pl_status pl_loaded_from_store(pl_loaded **out, pl_store *store, const pl_gguf *header, const pl_model_profile *profile,
                               int32_t layer_first, int32_t layer_end, const pl_hash *hashes, pl_error *err)
{
    *out = NULL;
    pl_loaded *l;
    PL_TRY(new_loaded(&l, profile, layer_first, layer_end, err));
    pl_status s = PL_OK;
    for (size_t i = 0; i < l->n && s == PL_OK; i++) s = take(l, i, store, header, &hashes[i], err);
    if (s != PL_OK) {
        pl_loaded_close(l);
        return s;
    }
    *out = l;
    return PL_OK;
}

/* Hashing is the first half of the way, packing the second. */
typedef struct halves {
    void (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
} halves;

static void hashing(void *user, uint64_t done, uint64_t total)
{
    halves *h = user;
    h->progress(h->user, done, 2 * total);
}

pl_status pl_loaded_from_file(pl_loaded **out, pl_store *store, const pl_gguf *g, const pl_model_profile *profile,
                              int32_t layer_first, int32_t layer_end,
                              void (*progress)(void *user, uint64_t done, uint64_t total), void *user, pl_error *err)
{
    *out = NULL;
    pl_loaded *l;
    pl_hash *hashes = NULL;
    pl_status s;
    PL_TRY(new_loaded(&l, profile, layer_first, layer_end, err));
    if (store) {
        halves h = {progress, user};
        hashes = pl_calloc(pl_gguf_n_tensors(g), sizeof *hashes);
        s = hashes ? pl_store_hash_gguf(store, g, hashes, progress ? hashing : NULL, &h, err)
                   : pl_fail(err, PL_ERR_NO_MEMORY, "no memory for hashes");
        if (s != PL_OK) goto fail;
    }
    uint64_t total = 0, done = 0;
    for (size_t i = 0; i < l->n; i++) total += pl_gguf_tensor_at(g, l->tensors[i])->size;
    bool warned = false;
    for (size_t i = 0; i < l->n; i++) {
        const pl_gguf_tensor *t = pl_gguf_tensor_at(g, l->tensors[i]);
        pl_error why;
        bool cached = false;
        if (store) {
            const pl_hash *hash = &hashes[l->tensors[i]];
            cached = pl_store_import(store, g, l->tensors[i], hash, &why) == PL_OK &&
                     take(l, i, store, g, hash, &why) == PL_OK;
            if (!cached && !warned)
                PL_LOG(PL_LOG_WARN, "weights used unpacked, which is slower", "error=%s", PL_Q(why.text));
            warned = warned || !cached;
            done += t->size;
            if (progress) progress(user, total + done, 2 * total);
        }
        if (!cached) {
            if (t->data == NULL) {
                s = pl_fail(err, PL_ERR_NOT_FOUND, "tensor %.*s: its bytes are not in this file", PL_STR_ARG(t->name));
                goto fail;
            }
            l->weights[i] = (pl_weight){PL_LAYOUT_PLAIN, t->data};
        }
    }
    pl_free(hashes);
    *out = l;
    return PL_OK;
fail:
    pl_free(hashes);
    pl_loaded_close(l);
    return s;
}
