#include "transport/msg.h"

#include "engine/base/alloc.h"

/* Cache lines, and what vector loads of the kernels like best. */
#define PART_ALIGN 64

typedef struct borrowed_part {
    pl_part part;
    void (*release)(void *user);
    void *user;
} borrowed_part;

pl_part *pl_part_ref(pl_part *p)
{
    __atomic_fetch_add(&p->refs, 1, __ATOMIC_RELAXED);
    return p;
}

void pl_part_unref(pl_part *p)
{
    if (!p) return;
    /* Release, so that what this thread did with the bytes is done; acquire, so that the last one sees what all did. */
    int before = __atomic_fetch_sub(&p->refs, 1, __ATOMIC_ACQ_REL);
    PL_ASSERT(before > 0);
    if (before == 1) p->release(p);
}

static void heap_part_release(pl_part *p)
{
    pl_free(p);
}

pl_part *pl_part_new(size_t size)
{
    /* The part stands in front of its bytes, in one allocation. */
    size_t before = (sizeof(pl_part) + PART_ALIGN - 1) / PART_ALIGN * PART_ALIGN, total;
    if (!pl_add_ok(size, before, &total)) return NULL;
    pl_part *p = pl_alloc_aligned(PART_ALIGN, total);
    if (!p) return NULL;
    *p = (pl_part){.data = (uint8_t *)p + before, .size = size, .release = heap_part_release, .refs = 1};
    return p;
}

pl_part *pl_part_copy(pl_bytes b)
{
    pl_part *p = pl_part_new(b.size);
    if (p && b.size) memcpy(p->data, b.data, b.size);
    return p;
}

static void borrowed_part_release(pl_part *p)
{
    borrowed_part *b = (borrowed_part *)p;
    if (b->release) b->release(b->user);
    pl_free(b);
}

pl_part *pl_part_borrow(const void *data, size_t size, void (*release)(void *user), void *user)
{
    borrowed_part *b = pl_calloc(1, sizeof *b);
    if (!b) return NULL;
    /* The cast drops const: nobody writes into a part that was sent. */
    b->part = (pl_part){.data = (uint8_t *)(uintptr_t)data, .size = size, .release = borrowed_part_release, .refs = 1};
    b->release = release;
    b->user = user;
    return &b->part;
}

pl_status pl_msg_new(pl_msg **out, pl_error *err)
{
    *out = pl_calloc(1, sizeof **out);
    return *out ? PL_OK : pl_fail(err, PL_ERR_NO_MEMORY, "no memory for a message");
}

void pl_msg_free(pl_msg *m)
{
    if (!m) return;
    pl_part_unref(m->header);
    for (int i = 0; i < m->n_parts; i++) pl_part_unref(m->parts[i]);
    pl_free(m);
}

pl_status pl_msg_add(pl_msg *m, pl_part *part, pl_error *err)
{
    if (!part) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for a message's part");
    if (m->n_parts == PL_MSG_PARTS_MAX) {
        pl_part_unref(part);
        return pl_fail(err, PL_ERR_INVALID, "a message has at most %d parts", PL_MSG_PARTS_MAX);
    }
    m->parts[m->n_parts++] = part;
    return PL_OK;
}
