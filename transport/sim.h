/* A virtual world: processes with a loop each, links between them, one clock that jumps from event to event.
 *
 * Everything that happens follows from the seed and from the calls: the same seed and calls give the same events, which
 * pl_sim_trace proves. Nothing takes time but what is asked to: delays of links, bandwidth, timers.
 *
 * A message is copied when it is sent, as a wire does it. On one link, messages arrive in order. A link that is cut
 * holds what is sent, as TCP would, and delivers it when healed.
 *
 * Threads: one, the caller's; also pl_loop_post. No callback ever comes from inside the call that caused it. */
#pragma once

#include "transport/link.h"

typedef struct pl_sim pl_sim;
typedef struct pl_sim_process pl_sim_process;

typedef struct pl_sim_options {
    uint64_t delay_min_ns,
        delay_max_ns; /* of a link, drawn for each; half of it more as jitter of each message; both 0: 50 us and 2 ms */
    uint64_t bytes_s; /* of a link, in each direction; 0: 125 MB/s */
    uint64_t down_min_ns, down_max_ns; /* until the end of a link shows at the other end; both 0: 1 ms and 50 ms */
    double dial_failure;               /* the share of dials that never succeed; see pl_sim_set_dial_failure */
    void (*after_event)(
        void *user); /* after each event, when no callback is running: for invariants and faults. NULL: none */
    void *user;
} pl_sim_options;

PL_MUST_CHECK pl_status pl_sim_new(pl_sim **out, uint64_t seed, const pl_sim_options *options, pl_error *err);
/* Frees what was not freed before, without a word to anybody. */
void pl_sim_free(pl_sim *s);

/* The clock begins at one second. */
uint64_t pl_sim_now(const pl_sim *s);
/* Runs the next event; false when there is none. */
bool pl_sim_step(pl_sim *s);
/* Runs every event until t_ns and leaves the clock there. */
void pl_sim_run_until(pl_sim *s, uint64_t t_ns);
/* Runs until no event is left (true) or until t_ns (false). Repeating timers never leave it idle. */
bool pl_sim_run_until_idle(pl_sim *s, uint64_t t_ns);
/* Runs while cond holds, asked before each event; false when it still holds at t_ns or when no event is left. */
bool pl_sim_run_while(pl_sim *s, bool (*cond)(void *user), void *user, uint64_t t_ns);
/* A hash of every event so far: when, what, whose, and the message's bytes. */
uint64_t pl_sim_trace(const pl_sim *s);
uint64_t pl_sim_events(const pl_sim *s);
/* From now on this share of new dials, in [0, 1], ends in PL_ERR_TIMEOUT. */
void pl_sim_set_dial_failure(pl_sim *s, double share);

/* One life of a process. After a kill, a new one with the same name is its restart. */
PL_MUST_CHECK pl_status pl_sim_process_new(pl_sim_process **out, pl_sim *s, const char *name, pl_error *err);
/* Kills it if it lives, as pl_sim_kill without silence. Its net is freed before. NULL is allowed. */
void pl_sim_process_free(pl_sim_process *p);
/* Lives as long as the process; pl_loop_watch_fd is PL_ERR_UNSUPPORTED. */
pl_loop *pl_sim_loop(pl_sim_process *p);
const char *pl_sim_name(const pl_sim_process *p);
bool pl_sim_alive(const pl_sim_process *p);

/* The process is gone at once: no callback any more, what it had not yet put on the wire is lost. Peers see `down`
 * after what did arrive; or nothing at all when silent, as when the power fails. Its owner then frees what it made
 * there, as always: every call is still allowed and does nothing. */
void pl_sim_kill(pl_sim_process *p, bool silent);
/* SIGSTOP and SIGCONT: events for it wait. Its links stay up. */
void pl_sim_pause(pl_sim_process *p);
void pl_sim_resume(pl_sim_process *p);
/* What from sends to `to`, and dials between them, hang until healed. For both ways, call it both ways. */
void pl_sim_cut(pl_sim_process *from, pl_sim_process *to);
void pl_sim_heal(pl_sim_process *from, pl_sim_process *to);
/* Every cut is healed, every pause ended. */
void pl_sim_heal_all(pl_sim *s);
/* Links between a and b end at both ends, each after a delay; what is under way is lost. */
void pl_sim_break(pl_sim_process *a, pl_sim_process *b);

/* As pl_zmq_options: allowed is asked for each peer that dials; NULL allows nobody but an unencrypted net's (key NULL)
 * peers. */
typedef struct pl_sim_net_options {
    const pl_key *key; /* of this process, taken as its authenticated identity */
    bool (*allowed)(void *user, const pl_key *peer);
    void *allowed_user;
    pl_net_limits limits;
} pl_sim_net_options;
/* Addresses are "sim://name"; any name, the first living process that listens on it is found. */
PL_MUST_CHECK pl_status pl_net_sim_new(pl_net **out, pl_sim_process *p, const pl_sim_net_options *options,
                                       const pl_net_events *events, void *user, pl_error *err);
