/* What --dump-graph and --profile do. */
#pragma once

#include "cli/options.h"
#include "engine/graph/profiler.h"

/* Prints the graph of the model for --dump-graph on stdout and gives the exit code: nothing else is started then. */
int inspect_dump_graph(const cli_options *o);

/* A profiler for --profile, *out NULL without it. */
PL_MUST_CHECK pl_status inspect_profiler(pl_profiler **out, const cli_options *o, pl_error *err);
/* Prints its table on stderr and ends it. NULL is allowed. */
void inspect_profiler_end(pl_profiler *p, const cli_options *o);
