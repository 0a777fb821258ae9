#include "tests/sim/fixture.h"

#include "engine/base/alloc.h"
#include "tests/fixtures/fixtures.h"

#include <stdio.h>

void sim_model_init(sim_model *m, int32_t n_layer, uint64_t seed)
{
    pl_error err = {0};
    *m = (sim_model){0};
    m->file = tiny_gguf(.n_layer = n_layer, .n_embd = 32, .n_head = 2, .n_head_kv = 1, .n_ff = 64, .n_vocab = 300,
                        .n_ctx = 256, .seed = seed);
    pl_status s = pl_gguf_open_bytes(&m->gguf, pl_buf_bytes(&m->file), false, &err);
    if (s == PL_OK) s = pl_model_profile_open(&m->profile, m->gguf, &err);
    if (s != PL_OK) fprintf(stderr, "fixture: %s\n", err.text);
    PL_ASSERT(s == PL_OK);
    size_t n = pl_gguf_n_tensors(m->gguf);
    m->hashes = pl_alloc(n * sizeof *m->hashes);
    PL_ASSERT(m->hashes);
    for (size_t i = 0; i < n; i++) {
        const pl_gguf_tensor *t = pl_gguf_tensor_at(m->gguf, i);
        m->hashes[i] = pl_hash_of((pl_bytes){t->data, t->size});
    }
    m->header = pl_gguf_header(m->gguf);
    m->header_hash = pl_hash_of(m->header);
    hash_weights_of(&m->weights, m->gguf, m->profile, 0, n_layer, m->hashes);
}

void sim_model_fini(sim_model *m)
{
    pl_model_profile_close(m->profile);
    pl_gguf_close(m->gguf);
    pl_buf_fini(&m->file);
    pl_free(m->hashes);
    *m = (sim_model){0};
}

pl_bytes sim_model_blob(const sim_model *m, const pl_hash *hash)
{
    if (pl_hash_eq(hash, &m->header_hash)) return m->header;
    for (size_t i = 0; i < pl_gguf_n_tensors(m->gguf); i++) {
        const pl_gguf_tensor *t = pl_gguf_tensor_at(m->gguf, i);
        if (pl_hash_eq(hash, &m->hashes[i])) return (pl_bytes){t->data, t->size};
    }
    return (pl_bytes){0};
}
