/* The weights of a stage, from the tensor cache or straight from a GGUF file's map.
 *
 * Threads: one at a time. */
#pragma once

#include "engine/stage/stage.h"
#include "engine/stage/store.h"

typedef struct pl_loaded pl_loaded;

/* How weights are held. All zero, or NULL: mapped, in huge pages where the file has them, and present when loading
 * ends. */
typedef struct pl_load_options {
    bool copy; /* in memory of their own, in huge pages: a second copy beside the system's, for file systems without any
                */
    bool lock; /* kept from being paged out; where the system does not allow it, with a warning in the log */
    bool lazy; /* read when they are used: for weights that memory cannot hold */
    void (*progress)(void *user, uint64_t done, uint64_t total); /* bytes, over hashing and packing; NULL is allowed */
    void *user;
} pl_load_options;

/* From the cache: hashes[i] belongs to the i-th tensor of pl_model_stage_tensors. PL_ERR_NOT_FOUND names a tensor that
 * the cache lacks; PL_ERR_FORMAT one whose type or shape is not the header's. */
PL_MUST_CHECK pl_status pl_loaded_from_store(pl_loaded **out, pl_store *store, const pl_gguf *header,
                                             const pl_model_profile *profile, int32_t layer_first, int32_t layer_end,
                                             const pl_hash *hashes, const pl_load_options *options, pl_error *err);

/* From a file that is here whole. With a store its tensors are hashed (or found in the index), packed into the cache
 * where they are missing, and mapped from there; a tensor that the cache cannot take (no room, not writable) is used as
 * it is in the file, with one warning in the log. store NULL: all are used as they are. g stays open as long as *out.
 */
PL_MUST_CHECK pl_status pl_loaded_from_file(pl_loaded **out, pl_store *store, const pl_gguf *g,
                                            const pl_model_profile *profile, int32_t layer_first, int32_t layer_end,
                                            const pl_load_options *options, pl_error *err);

/* For pl_stage_open; lives until pl_loaded_close, which comes after pl_stage_close. */
const pl_weight *pl_loaded_weights(const pl_loaded *l);
void pl_loaded_close(pl_loaded *l);
