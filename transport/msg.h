/* A message: one header (a packed protobuf, proto/) and up to PL_MSG_PARTS_MAX raw parts, in buffers that the link
 * gave.
 *
 * Threads: a message has one owner at a time; it may be handed to another thread. */
#pragma once

#include "engine/base/bytes.h"
#include "engine/base/status.h"

#define PL_MSG_PARTS_MAX 8

/* A reference-counted run of bytes; links make them so that sending copies nothing. Any thread may ref and unref. A
 * received one is only read; its data is on an 8-byte boundary, so that numbers in it are aligned. */
typedef struct pl_part pl_part;
struct pl_part {
    uint8_t *data;
    size_t size;
    void (*release)(pl_part *p); /* called at the last unref */
    int refs;                    /* atomic */
};
pl_part *pl_part_ref(pl_part *p);
void pl_part_unref(pl_part *p); /* NULL is allowed */
/* From the heap, 64-byte aligned; a copy. NULL when there is no memory. */
pl_part *pl_part_new(size_t size);
pl_part *pl_part_copy(pl_bytes b);
/* Over memory that somebody else keeps: release is called with user when the last reference goes. */
pl_part *pl_part_borrow(const void *data, size_t size, void (*release)(void *user), void *user);

typedef struct pl_msg {
    pl_part *header;
    pl_part *parts[PL_MSG_PARTS_MAX];
    int n_parts;
} pl_msg;

PL_MUST_CHECK pl_status pl_msg_new(pl_msg **out, pl_error *err);
void pl_msg_free(pl_msg *m); /* and its references; NULL is allowed */
/* Takes over part, also on failure (too many parts: PL_ERR_INVALID). */
PL_MUST_CHECK pl_status pl_msg_add(pl_msg *m, pl_part *part, pl_error *err);
