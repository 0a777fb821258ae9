#include "engine/base/alloc.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static _Atomic uint64_t n_allocs;
static _Atomic uint64_t fail_at; /* the allocation with this number fails; numbers begin at 1 */

/* Counts one allocation; false when a test wants this one to fail, and for sizes that no object can have: the heap
 * would refuse them too, but a sanitizer's heap ends the process over them. */
static int admit(size_t size)
{
    uint64_t number = atomic_fetch_add_explicit(&n_allocs, 1, memory_order_relaxed) + 1;
    return size <= PTRDIFF_MAX && number != atomic_load_explicit(&fail_at, memory_order_relaxed);
}

/* malloc(0) may give NULL, which our callers read as no memory. */
static size_t at_least_one(size_t size)
{
    return size ? size : 1;
}

void *pl_alloc(size_t size)
{
    return admit(size) ? malloc(at_least_one(size)) : NULL;
}

void *pl_calloc(size_t n, size_t size)
{
    size_t whole;
    if (!pl_mul_ok(n, size, &whole)) whole = SIZE_MAX;
    if (!admit(whole)) return NULL;
    return n && size ? calloc(n, size) : calloc(1, 1);
}

void *pl_realloc(void *p, size_t size)
{
    return admit(size) ? realloc(p, at_least_one(size)) : NULL;
}

void pl_free(void *p)
{
    free(p);
}

void *pl_alloc_aligned(size_t align, size_t size)
{
    PL_ASSERT(align && (align & (align - 1)) == 0);
    if (!admit(size)) return NULL;
    void *p;
    if (align < sizeof p) align = sizeof p;
    return posix_memalign(&p, align, at_least_one(size)) == 0 ? p : NULL;
}

char *pl_strndup(const char *s, size_t n)
{
    size_t size;
    if (!pl_add_ok(n, 1, &size)) return NULL;
    char *copy = pl_alloc(size);
    if (!copy) return NULL;
    if (n) memcpy(copy, s, n);
    copy[n] = 0;
    return copy;
}

char *pl_strdup(const char *s)
{
    return pl_strndup(s, strlen(s));
}

uint64_t pl_alloc_count(void)
{
    return atomic_load_explicit(&n_allocs, memory_order_relaxed);
}

void pl_alloc_fail_at(uint64_t n)
{
    atomic_store(&fail_at, n ? pl_alloc_count() + n : 0);
}
