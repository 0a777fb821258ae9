/* The loop of a state machine: time, timers, and work posted from other threads. Two implementations: loop_uv.c (libuv,
 * real time) and sim.c (virtual time). A state machine has no other clock.
 *
 * Threads: everything on the loop's own thread, but pl_loop_post. */
#pragma once

#include "engine/base/status.h"
#include <stdint.h>

typedef struct pl_loop pl_loop;
typedef struct pl_timer pl_timer;

typedef struct pl_loop_vt {
    uint64_t (*now_ns)(pl_loop *l);
    pl_status (*timer_start)(pl_loop *l, uint64_t after_ns, uint64_t repeat_ns, void (*fn)(void *user), void *user,
                             pl_timer **out, pl_error *err);
    void (*timer_stop)(pl_loop *l, pl_timer *t);
    pl_status (*post)(pl_loop *l, void (*fn)(void *user), void *user);
    pl_status (*watch_fd)(pl_loop *l, int fd, void (*fn)(void *user), void *user, void **out, pl_error *err);
    void (*unwatch_fd)(pl_loop *l, void *watch);
} pl_loop_vt;
struct pl_loop {
    const pl_loop_vt *vt;
};

static inline uint64_t pl_loop_now(pl_loop *l)
{
    return l->vt->now_ns(l);
}
/* Calls fn after after_ns, then every repeat_ns (0: once). A one-shot timer is stopped when it fires; its handle is
 * then dead. */
PL_MUST_CHECK static inline pl_status pl_timer_start(pl_loop *l, uint64_t after_ns, uint64_t repeat_ns,
                                                     void (*fn)(void *), void *user, pl_timer **out, pl_error *err)
{
    return l->vt->timer_start(l, after_ns, repeat_ns, fn, user, out, err);
}
/* NULL is allowed. May be called from the timer's own function. */
static inline void pl_timer_stop(pl_loop *l, pl_timer *t)
{
    if (t) l->vt->timer_stop(l, t);
}
/* Calls fn once on the loop's thread, soon, in the order of posting. The only call that any thread may make. */
PL_MUST_CHECK static inline pl_status pl_loop_post(pl_loop *l, void (*fn)(void *), void *user)
{
    return l->vt->post(l, fn, user);
}
/* Calls fn when fd is readable (level-triggered). Real loops only. */
PL_MUST_CHECK static inline pl_status pl_loop_watch_fd(pl_loop *l, int fd, void (*fn)(void *), void *user, void **out,
                                                       pl_error *err)
{
    return l->vt->watch_fd(l, fd, fn, user, out, err);
}
static inline void pl_loop_unwatch_fd(pl_loop *l, void *watch)
{
    if (watch) l->vt->unwatch_fd(l, watch);
}

/* The libuv loop. run returns after stop (any thread may call stop). uv_loop_t* for those who need it
 * (coordinator/http). */
PL_MUST_CHECK pl_status pl_loop_uv_new(pl_loop **out, pl_error *err);
/* Calls what was posted and has not been called, then ends timers and watches that are left. */
void pl_loop_uv_free(pl_loop *l);
void pl_loop_uv_run(pl_loop *l);
void pl_loop_uv_stop(pl_loop *l);
void *pl_loop_uv_handle(pl_loop *l);
