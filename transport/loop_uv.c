/* The loop in real time, over libuv.
 *
 * libuv ends a handle in a later turn of its loop, so a stopped timer or watch is freed by its close callback. Posts
 * wait in a list of our own under a mutex; libuv merges wake-ups, so one wake-up runs all that wait. */
#include "transport/loop.h"

#include "engine/base/alloc.h"
#include <pthread.h>
#include <stdbool.h>
#include <uv.h>

#define MS UINT64_C(1000000)

typedef struct post {
    struct post *next;
    void (*fn)(void *);
    void *user;
} post;

typedef struct uv_loop_impl {
    pl_loop base;
    uv_loop_t uv;
    uv_async_t wake;
    pthread_mutex_t lock; /* of the three below */
    post *first, **last;
    bool stop;
} uv_loop_impl;

struct pl_timer {
    uv_timer_t uv;
    void (*fn)(void *);
    void *user;
};

typedef struct watch {
    uv_poll_t uv;
    void (*fn)(void *);
    void *user;
} watch;

static uv_loop_impl *impl_of(pl_loop *l)
{
    return (uv_loop_impl *)l;
}

static uint64_t loop_now(pl_loop *l)
{
    (void)l;
    return uv_hrtime();
}

static void free_handle(uv_handle_t *h)
{
    pl_free(h->data);
}

static void on_timer(uv_timer_t *h)
{
    pl_timer *t = h->data;
    void (*fn)(void *) = t->fn;
    void *user = t->user;
    /* Before the call: the handle of a one-shot timer is dead when it fires. */
    if (uv_timer_get_repeat(h) == 0) uv_close((uv_handle_t *)h, free_handle);
    fn(user);
}

/* libuv counts milliseconds; never early. */
static uint64_t to_ms(uint64_t ns)
{
    return ns / MS + (ns % MS != 0);
}

static pl_status loop_timer_start(pl_loop *l, uint64_t after_ns, uint64_t repeat_ns, void (*fn)(void *), void *user,
                                  pl_timer **out, pl_error *err)
{
    uv_loop_impl *impl = impl_of(l);
    *out = NULL;
    pl_timer *t = pl_calloc(1, sizeof *t);
    if (!t) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for a timer");
    uv_timer_init(&impl->uv, &t->uv);
    t->uv.data = t;
    t->fn = fn;
    t->user = user;
    /* libuv counts from the time it saw last, which may be long ago. */
    uv_update_time(&impl->uv);
    uv_timer_start(&t->uv, on_timer, to_ms(after_ns), to_ms(repeat_ns));
    *out = t;
    return PL_OK;
}

static void loop_timer_stop(pl_loop *l, pl_timer *t)
{
    (void)l;
    uv_close((uv_handle_t *)&t->uv, free_handle);
}

static pl_status loop_post(pl_loop *l, void (*fn)(void *), void *user)
{
    uv_loop_impl *impl = impl_of(l);
    post *p = pl_alloc(sizeof *p);
    if (!p) return PL_ERR_NO_MEMORY;
    *p = (post){.fn = fn, .user = user};
    pthread_mutex_lock(&impl->lock);
    *impl->last = p;
    impl->last = &p->next;
    pthread_mutex_unlock(&impl->lock);
    uv_async_send(&impl->wake);
    return PL_OK;
}

static void on_wake(uv_async_t *h)
{
    uv_loop_impl *impl = h->data;
    /* Only those that wait now: what they post comes in the next turn, so that posting for ever starves nobody. */
    pthread_mutex_lock(&impl->lock);
    post *p = impl->first;
    impl->first = NULL;
    impl->last = &impl->first;
    bool stop = impl->stop;
    impl->stop = false;
    pthread_mutex_unlock(&impl->lock);
    if (stop) uv_stop(&impl->uv);
    for (post *next; p; p = next) {
        next = p->next;
        p->fn(p->user);
        pl_free(p);
    }
}

static void on_readable(uv_poll_t *h, int status, int events)
{
    (void)status; /* an error shows when the owner reads */
    (void)events;
    watch *w = h->data;
    w->fn(w->user);
}

static pl_status loop_watch_fd(pl_loop *l, int fd, void (*fn)(void *), void *user, void **out, pl_error *err)
{
    *out = NULL;
    watch *w = pl_calloc(1, sizeof *w);
    if (!w) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory to watch descriptor %d", fd);
    int rc = uv_poll_init(&impl_of(l)->uv, &w->uv, fd);
    if (rc != 0) {
        pl_free(w);
        return pl_fail(err, PL_ERR_IO, "descriptor %d cannot be watched: %s", fd, uv_strerror(rc));
    }
    w->uv.data = w;
    w->fn = fn;
    w->user = user;
    rc = uv_poll_start(&w->uv, UV_READABLE, on_readable);
    if (rc != 0) {
        uv_close((uv_handle_t *)&w->uv, free_handle);
        return pl_fail(err, PL_ERR_IO, "descriptor %d cannot be watched: %s", fd, uv_strerror(rc));
    }
    *out = w;
    return PL_OK;
}

static void loop_unwatch_fd(pl_loop *l, void *handle)
{
    (void)l;
    watch *w = handle;
    /* At once, as the owner will close the descriptor; the memory follows. */
    uv_poll_stop(&w->uv);
    uv_close((uv_handle_t *)&w->uv, free_handle);
}

static const pl_loop_vt loop_vt = {.now_ns = loop_now,
                                   .timer_start = loop_timer_start,
                                   .timer_stop = loop_timer_stop,
                                   .post = loop_post,
                                   .watch_fd = loop_watch_fd,
                                   .unwatch_fd = loop_unwatch_fd};

pl_status pl_loop_uv_new(pl_loop **out, pl_error *err)
{
    *out = NULL;
    uv_loop_impl *impl = pl_calloc(1, sizeof *impl);
    if (!impl) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for an event loop");
    int rc = uv_loop_init(&impl->uv);
    if (rc != 0) {
        pl_free(impl);
        return pl_fail(err, PL_ERR_IO, "no event loop: %s", uv_strerror(rc));
    }
    rc = uv_async_init(&impl->uv, &impl->wake, on_wake);
    if (rc != 0) {
        uv_loop_close(&impl->uv);
        pl_free(impl);
        return pl_fail(err, PL_ERR_IO, "no event loop: %s", uv_strerror(rc));
    }
    impl->wake.data = impl;
    impl->base.vt = &loop_vt;
    impl->last = &impl->first;
    pthread_mutex_init(&impl->lock, NULL);
    *out = &impl->base;
    return PL_OK;
}

/* What this file made is freed by its close callback; others' handles (of coordinator/http) were closed by their
 * owners. */
static void close_left(uv_handle_t *h, void *user)
{
    const uv_loop_impl *impl = user;
    if (uv_is_closing(h)) return;
    bool ours = h->type == UV_TIMER || h->type == UV_POLL;
    uv_close(h, ours && (const void *)h != (const void *)&impl->wake ? free_handle : NULL);
}

void pl_loop_uv_free(pl_loop *l)
{
    if (!l) return;
    uv_loop_impl *impl = impl_of(l);
    /* A post may own something, which only its call gives back. */
    while (impl->first) on_wake(&impl->wake);
    uv_walk(&impl->uv, close_left, impl);
    while (uv_run(&impl->uv, UV_RUN_DEFAULT) != 0) {}
    PL_ASSERT(uv_loop_close(&impl->uv) == 0);
    pthread_mutex_destroy(&impl->lock);
    pl_free(impl);
}

void pl_loop_uv_run(pl_loop *l)
{
    uv_run(&impl_of(l)->uv, UV_RUN_DEFAULT);
}

void pl_loop_uv_stop(pl_loop *l)
{
    uv_loop_impl *impl = impl_of(l);
    pthread_mutex_lock(&impl->lock);
    impl->stop = true;
    pthread_mutex_unlock(&impl->lock);
    uv_async_send(&impl->wake);
}

void *pl_loop_uv_handle(pl_loop *l)
{
    return &impl_of(l)->uv;
}
