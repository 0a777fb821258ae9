/* The cache of tensors on a machine's disk, addressed by the hash of their GGUF bytes.
 *
 * One file per tensor, written in the packed layout of this machine's backend, so that loading is mmap; 64-byte aligned data behind a
 * header of 4096 bytes that holds the tensor's hash, type, shape, layout, size and the packed bytes' checksum (format: store.c). A file is
 * complete or absent: it is written under a temporary name and renamed. GGUF bytes arrive in pieces and survive a restart as `.part` files.
 * Packing is a permutation, so a tensor can be served to a peer again by unpacking.
 * A second index maps a GGUF file (path, size, mtime) to its tensors' hashes, so that a second start hashes nothing.
 * Threads: one store may be used by several threads on different tensors; processes share a directory safely (rename is atomic). */
#pragma once

#include "engine/base/buf.h"
#include "engine/base/file.h"
#include "engine/base/hash.h"
#include "engine/graph/backend.h"
#include "engine/gguf/read.h"

typedef struct pl_store pl_store;

/* dir is made when absent. backend decides the layout and packs; borrowed. */
PL_MUST_CHECK pl_status pl_store_open(pl_store **out, const char *dir, pl_backend *backend, pl_error *err);
void pl_store_close(pl_store *s);

typedef struct pl_stored { /* a mapped tensor */
    pl_mapped map;
    pl_layout layout;
    pl_type type;
    int64_t ne[4];
    const void *data;
    uint64_t size;
} pl_stored;

/* Whether the tensor is there, complete; *partial (NULL is allowed): bytes kept from an interrupted attempt when it is not. */
bool pl_store_has(pl_store *s, const pl_hash *hash, uint64_t *partial);

/* Maps the tensor. PL_ERR_NOT_FOUND: absent (or present in a layout that this backend cannot use). PL_ERR_FORMAT: header or size is wrong; the file is set aside. */
PL_MUST_CHECK pl_status pl_store_get(pl_store *s, const pl_hash *hash, pl_stored *out, pl_error *err);
void pl_stored_close(pl_stored *t);

/* Taking in GGUF bytes. *have: bytes kept from an interrupted attempt; go on there. Type, shape and size may come from a peer: PL_ERR_FORMAT when they
 * do not belong together. With PL_TYPE_COUNT the blob is any bytes (a model's header), ne is not used, and nothing is packed.
 * When another writer is at work on the same hash, this one keeps its bytes apart and nothing of them for later. */
typedef struct pl_store_writer pl_store_writer;
PL_MUST_CHECK pl_status pl_store_begin(pl_store *s, const pl_hash *hash, pl_type type, const int64_t ne[4], uint64_t size, pl_store_writer **out, uint64_t *have, pl_error *err);
PL_MUST_CHECK pl_status pl_store_add(pl_store_writer *w, pl_bytes piece, pl_error *err);
/* Verifies the hash, packs, writes, renames. Takes w, also on failure. PL_ERR_FORMAT: the bytes do not have that hash; the part is removed. */
PL_MUST_CHECK pl_status pl_store_finish(pl_store_writer *w, pl_error *err);
void pl_store_abandon(pl_store_writer *w); /* keeps the part file */

/* Takes in tensor i of an open file, whose hash is known: packs straight from its map. PL_OK at once when the store has it. */
PL_MUST_CHECK pl_status pl_store_import(pl_store *s, const pl_gguf *g, size_t i, const pl_hash *hash, pl_error *err);

/* The same for n tensors of the file, with a thread for each processor; hashes[i] belongs to tensors[i]. Goes on behind a
 * failure, and gives the first one. progress is called by this thread with the bytes done and in total; NULL is allowed. */
PL_MUST_CHECK pl_status pl_store_import_all(pl_store *s, const pl_gguf *g, const size_t *tensors, const pl_hash *const *hashes, size_t n, void (*progress)(void *user, uint64_t done, uint64_t total), void *user, pl_error *err);

/* GGUF bytes of a stored tensor, offset..offset+size-1, for peers. */
PL_MUST_CHECK pl_status pl_store_read(pl_store *s, const pl_hash *hash, uint64_t offset, size_t size, pl_buf *out, pl_error *err);

/* Hashes of all tensors of g (out[i] for tensor i), from the index when the file is unchanged, else by hashing with a thread for each processor (progress is called
 * with bytes done and total; NULL is allowed) and then remembered when the store can be written. s NULL: hashes always. */
PL_MUST_CHECK pl_status pl_store_hash_gguf(pl_store *s, const pl_gguf *g, pl_hash *out, void (*progress)(void *user, uint64_t done, uint64_t total), void *user, pl_error *err);

/* Reads every file whole and compares its checksum and, unpacked, its hash; bad ones are removed. */
typedef struct pl_store_report { uint64_t n, bytes, n_bad; } pl_store_report;
PL_MUST_CHECK pl_status pl_store_verify(pl_store *s, pl_store_report *out, pl_error *err);
