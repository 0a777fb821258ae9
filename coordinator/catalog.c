/* The blobs that nodes fetch: the model's header and its tensors, by hash.
 *
 * Pieces point into the mapped file and are sent without a copy, so the model outlives the net. */
#include "coordinator/coordinator_impl.h"

#include "engine/base/alloc.h"
#include "engine/gguf/write.h"

#include <stdio.h>
#include <stdlib.h>

/* A piece that nobody needs larger: a node asks for a quarter of a MiB. */
#define PIECE_MAX (4u << 20)

static int by_hash(const void *a, const void *b)
{
    return memcmp(((const pl_blob *)a)->hash.b, ((const pl_blob *)b)->hash.b, PL_HASH_SIZE);
}

pl_status catalog_open(pl_catalog *k, const pl_coordinator_model *model, pl_error *err)
{
    *k = (pl_catalog){0};
    const size_t n = pl_gguf_n_tensors(model->gguf);
    /* Written anew also when the file is one: a machine that has the same model split or whole makes the same header of
     * it. */
    pl_status s = pl_gguf_header_write(model->gguf, &k->header, err);
    if (s != PL_OK) goto fail;
    k->header_hash = pl_hash_of(pl_buf_bytes(&k->header));
    k->blobs = pl_calloc(n + 1, sizeof *k->blobs);
    if (!k->blobs) {
        s = pl_fail(err, PL_ERR_NO_MEMORY, "catalog of %zu tensors", n);
        goto fail;
    }
    for (size_t i = 0; i < n; i++) {
        const pl_gguf_tensor *t = pl_gguf_tensor_at(model->gguf, i);
        k->blobs[i] = (pl_blob){model->hashes[i], t->data, t->size};
    }
    k->blobs[n] = (pl_blob){k->header_hash, k->header.data, k->header.size};
    k->n = n + 1;
    qsort(k->blobs, k->n, sizeof *k->blobs, by_hash);
    return PL_OK;
fail:
    catalog_close(k);
    return s;
}

void catalog_close(pl_catalog *k)
{
    pl_buf_fini(&k->header);
    pl_free(k->blobs);
    *k = (pl_catalog){0};
}

static void mapped_for_good(void *user)
{
    (void)user;
}

void catalog_serve(pl_catalog *k, pl_member *m, uint64_t epoch, const Paceline__BlobGet *get)
{
    pl_blob key = {0};
    memcpy(key.hash.b, get->hash.data, PL_HASH_SIZE);
    const pl_blob *blob = bsearch(&key, k->blobs, k->n, sizeof *k->blobs, by_hash);
    Paceline__Blob answer = PACELINE__BLOB__INIT;
    Paceline__Failure failure = PACELINE__FAILURE__INIT;
    Paceline__Envelope e = PACELINE__ENVELOPE__INIT;
    e.body_case = PACELINE__ENVELOPE__BODY_BLOB;
    e.blob = &answer;
    answer.hash = get->hash;
    answer.offset = get->offset;
    pl_part *part = NULL;
    char text[160];
    if (!blob || !blob->data || get->offset >= blob->size) {
        char hex[2 * PL_HASH_SIZE + 1];
        pl_hash_hex(&key.hash, hex);
        if (blob && blob->data)
            snprintf(text, sizeof text, "blob %.16s has %llu bytes, none at %llu", hex, (unsigned long long)blob->size,
                     (unsigned long long)get->offset);
        else
            snprintf(text, sizeof text, "blob %.16s is not part of this model", hex);
        failure.status = PL_ERR_NOT_FOUND;
        failure.text = text;
        answer.failure = &failure;
    } else {
        uint64_t left = blob->size - get->offset;
        size_t size = get->size < PIECE_MAX ? get->size : PIECE_MAX;
        if (size > left) size = (size_t)left;
        answer.total = blob->size;
        /* The header's bytes are the coordinator's own and may go before the message does. */
        bool own = blob->data == k->header.data;
        part = own ? pl_part_copy((pl_bytes){blob->data + get->offset, size})
                   : pl_part_borrow(blob->data + get->offset, size, mapped_for_good, NULL);
        if (!part) {
            failure.status = PL_ERR_NO_MEMORY;
            failure.text = (char *)"no memory for a piece of a blob";
            answer.failure = &failure;
        } else {
            m->served_bytes += size;
            k->served_bytes += size;
        }
    }
    member_send(m, epoch, &e, part);
}
