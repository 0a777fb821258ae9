/* Where the time of graphs goes, measured while they run: a table for people, and a trace for Perfetto and chrome://tracing.
 *
 * A backend that has been given a profiler calls begin, then span from each of its threads for each group that the thread
 * works on, then end. Whoever runs graphs may add what it does between them by note. Time of an operator is from the first
 * thread's beginning to the last one's end; bytes moved are those that its tensors say, each counted once however often a
 * cache gives it again.
 *
 * Format:  Trace Event Format, JSON Array Format ("X" and "M" events), which may end anywhere, so that a process that is
 *          killed leaves a file that can be looked at.
 * Threads: span by the threads of one run, each with its own number; all else by one thread at a time. */
#pragma once

#include "engine/base/buf.h"
#include "engine/graph/fuse.h"

typedef struct pl_profiler pl_profiler;

typedef struct pl_profiler_options {
    const char *trace_path;   /* NULL: no trace */
    uint64_t trace_bytes_max; /* 0: 256 MiB, some thousand tokens of a large model; what comes later is in the table only */
} pl_profiler_options;

/* PL_ERR_IO: the trace cannot be written. */
PL_MUST_CHECK pl_status pl_profiler_new(pl_profiler **out, const pl_profiler_options *options, pl_error *err);
void pl_profiler_free(pl_profiler *p); /* and ends the trace */

/* What the machine can do at most: bytes read from memory and multiply-adds per second, and how it computes ("avx2, 4 threads"). */
void pl_profiler_set_peaks(pl_profiler *p, double read_bytes_s, double macs_s, const char *how);

/* A run of g by n_threads threads. Takes memory when a graph is larger than those before; without it the run is not counted,
 * and false is given: no span and no end then. */
bool pl_profiler_begin(pl_profiler *p, const pl_graph *g, int n_threads);
void pl_profiler_span(pl_profiler *p, int i_thread, int group, uint64_t start_ns, uint64_t end_ns);
void pl_profiler_end(pl_profiler *p);
/* Something else that took time, such as sampling. what is a literal. */
void pl_profiler_note(pl_profiler *p, const char *what, uint64_t start_ns, uint64_t end_ns);

/* Appends the table. */
PL_MUST_CHECK pl_status pl_profiler_print(const pl_profiler *p, pl_buf *out, pl_error *err);
