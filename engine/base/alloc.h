/* The one door to the heap, so that tests can count allocations and fail the n-th of them.
 *
 * Threads: every function may be called from any thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

/* malloc, zeroed malloc of n * size (checked for overflow), realloc, free. NULL when there is no memory. */
void *pl_alloc(size_t size);
void *pl_calloc(size_t n, size_t size);
void *pl_realloc(void *p, size_t size);
void pl_free(void *p);

/* As pl_alloc, on an alignment that is a power of two. Freed with pl_free. */
void *pl_alloc_aligned(size_t align, size_t size);

/* A copy of the n bytes at s with a zero behind them; of the string s. NULL when there is no memory. */
char *pl_strndup(const char *s, size_t n);
char *pl_strdup(const char *s);

/* a * b and a + b into *out; false when the result does not fit. */
static inline int pl_mul_ok(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}
static inline int pl_add_ok(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

/* For tests: allocations since the process began; and from now on fail the n-th one (1 is the next,
 * 0 switches this off). */
uint64_t pl_alloc_count(void);
void pl_alloc_fail_at(uint64_t n);
