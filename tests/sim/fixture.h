/* A tiny model's file in memory, with its profile and hashes: what a coordinator serves in simulation. */
#pragma once

#include "engine/base/buf.h"
#include "engine/gguf/read.h"
#include "engine/model/profile.h"
#include "tests/sim/hash_model.h"

typedef struct sim_model {
    pl_buf file;
    pl_gguf *gguf;
    pl_model_profile *profile;
    pl_hash *hashes; /* one per tensor */
    pl_hash header_hash;
    pl_bytes header;
    hash_weights weights; /* of all layers, for the oracle */
} sim_model;

/* A llama of n_layer layers, 32 wide, F32, its numbers from seed. Asserts that all went well. */
void sim_model_init(sim_model *m, int32_t n_layer, uint64_t seed);
void sim_model_fini(sim_model *m);
/* The bytes of the blob with this hash: a tensor or the header; data NULL when there is none. */
pl_bytes sim_model_blob(const sim_model *m, const pl_hash *hash);
