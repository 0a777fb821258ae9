/* A backend: where bytes live and who computes. Nothing above this vtable may know which one it is.
 *
 * Threads: one at a time per backend, except memory(), which any thread may call. */
#pragma once

#include "engine/graph/profiler.h"

typedef struct pl_backend pl_backend;
typedef struct pl_backend_buffer pl_backend_buffer;

typedef struct pl_backend_vt {
    const char *name; /* "cpu" */
    unsigned fusions; /* kinds of pl_fusion that compute() knows; for pl_graph_fuse */
    void (*free)(pl_backend *b);

    /* size bytes on the backend's alignment, zeroed. */
    pl_status (*buffer_new)(pl_backend *b, size_t size, pl_backend_buffer **out, pl_error *err);
    void (*buffer_free)(pl_backend *b, pl_backend_buffer *buf);
    void *(*buffer_base)(pl_backend_buffer *buf);
    pl_status (*copy_in)(pl_backend *b, void *dst, const void *src, size_t size, pl_error *err);
    pl_status (*copy_out)(pl_backend *b, void *dst, const void *src, size_t size, pl_error *err);
    /* Between two places of this backend that do not overlap. */
    pl_status (*copy)(pl_backend *b, void *dst, const void *src, size_t size, pl_error *err);

    /* Whether this node of a graph can run here. */
    bool (*supports)(const pl_backend *b, const pl_tensor *t);
    /* Bytes of scratch that computing g takes: the largest need of any op. Cache-line padded per thread. */
    size_t (*scratch)(const pl_backend *b, const pl_graph *g);
    /* Runs all nodes in order. scratch has the size that scratch() said, never 0, on the backend's alignment. */
    pl_status (*compute)(pl_backend *b, pl_graph *g, void *scratch, pl_error *err);
    /* From now on compute() tells p about each run; NULL: nobody. p is borrowed. */
    void (*set_profiler)(pl_backend *b, pl_profiler *p);

    /* The layout in which a weight of this shape computes fastest here, and packing to it: rows row_first..row_end of the tensor, both
     * multiples of 16 or the end, so that threads can share the work. src and dst are the whole tensor's bytes. */
    pl_layout (*best_layout)(const pl_backend *b, pl_type type, const int64_t ne[4]);
    void (*pack)(const pl_backend *b, pl_layout layout, pl_type type, const int64_t ne[4], const void *src, void *dst, int64_t row_first, int64_t row_end);
    void (*unpack)(const pl_backend *b, pl_layout layout, pl_type type, const int64_t ne[4], const void *src, void *dst, int64_t row_first, int64_t row_end);

    void (*memory)(const pl_backend *b, uint64_t *available, uint64_t *total);
    /* The numeric profile: results are bit-identical between backends with the same name here ("ieee-fma-1"). */
    const char *(*profile)(const pl_backend *b);
} pl_backend_vt;

struct pl_backend {
    const pl_backend_vt *vt;
    size_t alignment;
};
