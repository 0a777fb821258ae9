/* A model without numbers, for simulation: what a row gives is a hash of everything that a correct stage would have
 * looked at.
 *
 * Each layer keeps one 64-bit value per position in a paged cache, as a real stage keeps K and V, and a row reads all
 * positions of its sequence back through the block table. So a wrong block, a row lost, doubled, swapped or at a wrong
 * position, a stale cache or a wrong weight changes every later token. The oracle computes the same without pages,
 * stages or batches. Threads: one at a time. */
#pragma once

#include "engine/stage/stage.h"

typedef struct hash_stage hash_stage;

/* What stands for the weights: one number per layer, and one each for embedding and head, made of the tensors' hashes.
 */
typedef struct hash_weights {
    uint64_t embed, head;
    uint64_t layer[64];
} hash_weights;

/* hashes: one per tensor of g; those that no layer of first..end needs are not looked at. */
void hash_weights_of(hash_weights *w, const pl_gguf *g, const pl_model_profile *p, int32_t first, int32_t end,
                     const pl_hash *hashes);

/* NULL when there is no memory. */
hash_stage *hash_stage_new(const pl_stage_shape *shape, const pl_model_profile *p, const hash_weights *w);
void hash_stage_free(hash_stage *s);
/* As pl_stage_run, with the same checks. */
PL_MUST_CHECK pl_status hash_stage_run(hash_stage *s, const pl_micro_batch *mb, pl_error *err);

/* A few ids end a generation. */
bool hash_model_is_eog(void *user, int32_t token);
/* The tokens that an undisturbed run emits, into out (room for max_tokens): the end-of-generation token is not one of
 * them. Returns how many; *stopped: whether an end-of-generation token came. */
int32_t hash_oracle(const pl_model_profile *p, const hash_weights *w, const pl_sample_params *params, bool ignore_eos,
                    const int32_t *prompt, int32_t n_prompt, int32_t max_tokens, int32_t n_ctx, int32_t *out,
                    bool *stopped);
