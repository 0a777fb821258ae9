/* A progress bar on a terminal's stderr; elsewhere a line now and then. */
#pragma once

#include "engine/base/bytes.h"

typedef struct progress {
    char label[64];
    uint64_t start_ns, shown_ns, start_done;
    bool terminal, quiet, shown;
} progress;

void progress_start(progress *p, const char *label, bool quiet);
/* Shows done of total bytes, with rate and time left; at most ten times a second. */
void progress_show(progress *p, uint64_t done, uint64_t total);
/* Clears the bar. */
void progress_end(progress *p);
