/* One start word, one barrier, and a way of waiting that both share.
 *
 * A job begins when `start` changes and ends with a barrier that every thread of the team passes, the caller too, so
 * there is one thing to make fast: a barrier is one atomic addition per thread and one store by the last of them.
 *
 * Waiting has three steps. Spinning reaches the next barrier in some hundred nanoseconds when the others run, and only
 * steals their time when they do not. So it is done only (1) while the threads of all jobs of this process have
 * processors enough (a pool without a job sleeps and counts for nothing), and (2) while it pays: a thread that spun its
 * whole budget for nothing a few times in a row stops spinning, for more and more waits, and then tries again. (2) is
 * what notices other processes on the same processors, which no count of our own threads can see. Next the thread
 * yields once, and at last it sleeps on a futex. Sleepers are counted, so that whoever ends the wait makes a system
 * call only when somebody sleeps. */
#include "engine/base/pool.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/base/alloc.h"
#include "engine/base/sys.h"

#define CACHE_LINE  64
#define THREADS_MAX 1024 /* above any machine of today; bounds what a typing error can start */
#define BUDGET_NS   1000 /* per step of `poll`: 50 us at its default, about what a sleep and a wake cost together */
#define MISSES_MAX                                                                                                     \
    3 /* budgets spent in vain before spinning is put aside: one or two may be a page fault elsewhere                  \
       */
#define REST_MIN        16 /* waits without spinning after that, doubled each time it was in vain again */
#define REST_MAX        1024
#define CHECKS_PER_LOOK 32 /* loads between two looks at the clock, which costs about as much as ten of them */

/* What threads wait for: a number that changes. */
typedef struct event {
    _Alignas(CACHE_LINE) _Atomic uint32_t value;
    _Alignas(CACHE_LINE) _Atomic uint32_t sleepers; /* its own line: written while others spin on value */
} event;

struct pl_team {
    event passed; /* counts barriers */
    _Alignas(CACHE_LINE) _Atomic uint32_t arrived;
    _Alignas(CACHE_LINE) _Atomic int64_t next;
    _Alignas(CACHE_LINE) uint32_t n;
    uint64_t budget_ns;
};

typedef struct worker {
    pl_pool *pool;
    pthread_t thread;
    int i;
} worker;

struct pl_pool {
    pl_team team;
    event start; /* counts jobs */
    void (*fn)(pl_team *team, int i_thread, int n_threads, void *user);
    void *user;
    _Atomic bool stop, running;
    bool pin;
    int n;         /* threads, with the caller */
    int n_started; /* workers */
    worker *workers;
};

/* How well spinning went of late. One per thread for barriers and one for the gaps between jobs: a pool that idles
 * between steps has not learned anything about its barriers. */
typedef struct habit {
    uint32_t misses, rest, next_rest;
} habit;

static _Thread_local habit barrier_habit, start_habit;

static _Atomic int running_threads; /* of all pools of the process that have a job, callers included */

/* As they were at the first pool: pinning the caller narrows what its own thread, and threads it starts, may use. */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int processors;
static cpu_set_t mask;
static void look_at_processors(void)
{
    processors = pl_sys_cpus();
    if (sched_getaffinity(0, sizeof mask, &mask) != 0) CPU_ZERO(&mask);
}

static void cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
    __asm__ volatile("yield");
#endif
}

static bool changed(event *e, uint32_t from)
{
    return atomic_load_explicit(&e->value, memory_order_acquire) != from;
}

/* more: threads that would run beside those that are counted. */
static bool may_spin(habit *h, int more)
{
    if (atomic_load_explicit(&running_threads, memory_order_relaxed) + more > processors) return false;
    if (!h->rest) return true;
    h->rest--;
    return false;
}

static bool spin(event *e, uint32_t from, uint64_t budget_ns)
{
    uint64_t end = 0;
    for (;;) {
        for (int i = 0; i < CHECKS_PER_LOOK; i++) {
            if (changed(e, from)) return true;
            cpu_relax();
        }
        uint64_t now = pl_now_ns();
        if (!end) end = now + budget_ns;
        if (now >= end) return false;
    }
}

static void wait_for_change(event *e, uint32_t from, uint64_t budget_ns, habit *h, int more)
{
    if (changed(e, from)) return;
    if (budget_ns && may_spin(h, more)) {
        if (spin(e, from, budget_ns)) {
            h->misses = 0;
            h->next_rest = 0;
            return;
        }
        /* After a rest one try is enough to learn that nothing got better. */
        if (++h->misses >= MISSES_MAX || h->next_rest) {
            h->next_rest = !h->next_rest ? REST_MIN : h->next_rest < REST_MAX ? h->next_rest * 2 : REST_MAX;
            h->rest = h->next_rest;
            h->misses = 0;
        }
    }
    sched_yield();
    while (!changed(e, from)) {
        /* Sequentially consistent on both sides: either we see the new value here or in the kernel, or the other side
         * sees that we sleep. */
        atomic_fetch_add(&e->sleepers, 1);
        if (atomic_load(&e->value) == from) syscall(SYS_futex, &e->value, FUTEX_WAIT_PRIVATE, from, NULL, NULL, 0);
        atomic_fetch_sub(&e->sleepers, 1);
    }
}

static void signal_change(event *e)
{
    atomic_fetch_add(&e->value, 1);
    if (atomic_load(&e->sleepers)) syscall(SYS_futex, &e->value, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void pl_team_barrier(pl_team *t)
{
    /* Read before arriving: afterwards the last thread may have moved on already. */
    uint32_t passed = atomic_load_explicit(&t->passed.value, memory_order_acquire);
    if (atomic_fetch_add_explicit(&t->arrived, 1, memory_order_acq_rel) + 1 == t->n) {
        atomic_store_explicit(&t->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&t->next, 0, memory_order_relaxed);
        signal_change(&t->passed);
        return;
    }
    wait_for_change(&t->passed, passed, t->budget_ns, &barrier_habit, 0);
}

int64_t pl_team_next(pl_team *t)
{
    return atomic_fetch_add_explicit(&t->next, 1, memory_order_relaxed);
}

/* Binds the calling thread to the i-th processor of the process's mask, in a circle. Advice only: a container may
 * forbid it. */
static void pin_to(int i)
{
    cpu_set_t one;
    int n = CPU_COUNT(&mask), wanted = n ? i % n : 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &mask) || wanted--) continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        pthread_setaffinity_np(pthread_self(), sizeof one, &one);
        return;
    }
}

static void *work(void *arg)
{
    worker *w = arg;
    pl_pool *p = w->pool;
    if (p->pin) pin_to(w->i);
    for (uint32_t job = 0;; job++) {
        wait_for_change(&p->start, job, p->team.budget_ns, &start_habit, p->n);
        if (atomic_load(&p->stop)) return NULL;
        p->fn(&p->team, w->i, p->n, p->user);
        pl_team_barrier(&p->team);
    }
}

pl_status pl_pool_new(pl_pool **out, pl_pool_options options, pl_error *err)
{
    *out = NULL;
    int n = options.n_threads ? options.n_threads : pl_sys_cpus();
    if (n < 1 || n > THREADS_MAX)
        return pl_fail(err, PL_ERR_INVALID, "a pool of %d threads: 1 to %d are possible", n, THREADS_MAX);
    if (options.poll < -1 || options.poll > 100)
        return pl_fail(err, PL_ERR_INVALID, "poll is %d: 0 to 100 are possible, -1 for the default", options.poll);
    pl_pool *p = pl_alloc_aligned(CACHE_LINE, sizeof *p);
    if (!p) return pl_fail(err, PL_ERR_NO_MEMORY, "out of memory for a pool");
    memset(p, 0, sizeof *p);
    p->n = n;
    p->pin = options.pin;
    p->team.n = (uint32_t)n;
    p->team.budget_ns = (uint64_t)(options.poll < 0 ? 50 : options.poll) * BUDGET_NS;
    pthread_once(&once, look_at_processors);
    p->workers = pl_calloc((size_t)n, sizeof *p->workers);
    if (!p->workers) {
        pl_pool_free(p);
        return pl_fail(err, PL_ERR_NO_MEMORY, "out of memory for a pool of %d threads", n);
    }
    /* Signals are for the thread that asked for them; a worker would only be interrupted. */
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int e = 0;
    for (int i = 1; i < n && !e; i++) {
        worker *w = &p->workers[i - 1];
        *w = (worker){.pool = p, .i = i};
        e = pthread_create(&w->thread, NULL, work, w);
        if (!e) {
            p->n_started++;
            pthread_setname_np(w->thread, "pl-pool");
        }
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (e) {
        int started = p->n_started;
        pl_pool_free(p);
        return pl_fail(err, PL_ERR_NO_MEMORY, "thread %d of %d cannot be started: %s", started + 2, n, strerror(e));
    }
    *out = p;
    return PL_OK;
}

void pl_pool_free(pl_pool *p)
{
    if (!p) return;
    atomic_store(&p->stop, true);
    signal_change(&p->start);
    for (int i = 0; i < p->n_started; i++) pthread_join(p->workers[i].thread, NULL);
    pl_free(p->workers);
    pl_free(p);
}

int pl_pool_threads(const pl_pool *p)
{
    return p->n;
}

void pl_pool_run(pl_pool *p, void (*fn)(pl_team *team, int i_thread, int n_threads, void *user), void *user)
{
    bool busy = atomic_exchange(&p->running, true);
    PL_ASSERT(!busy);
    if (p->pin) {
        static _Thread_local bool pinned;
        if (!pinned) pin_to(0);
        pinned = true;
    }
    atomic_fetch_add_explicit(&running_threads, p->n, memory_order_relaxed);
    p->fn = fn;
    p->user = user;
    atomic_store_explicit(&p->team.next, 0, memory_order_relaxed);
    if (p->n > 1) signal_change(&p->start);
    fn(&p->team, 0, p->n, user);
    if (p->n > 1) pl_team_barrier(&p->team);
    atomic_fetch_sub_explicit(&running_threads, p->n, memory_order_relaxed);
    atomic_store(&p->running, false);
}
