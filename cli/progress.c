#include "cli/progress.h"

#include <stdio.h>
#include <unistd.h>

#include "engine/base/sys.h"

enum { BAR = 30 };

void progress_start(progress *p, const char *label, bool quiet)
{
    *p = (progress){.start_ns = pl_now_ns(), .terminal = isatty(STDERR_FILENO), .quiet = quiet};
    snprintf(p->label, sizeof p->label, "%s", label);
}

void progress_show(progress *p, uint64_t done, uint64_t total)
{
    uint64_t now = pl_now_ns();
    /* A log file wants few lines, and nothing at all about what was over in a second. */
    uint64_t pause = p->terminal ? 100000000u : 5000000000u;
    if (p->quiet || total == 0 || now - (p->shown ? p->shown_ns : p->start_ns) < pause) return;
    if (!p->shown) p->start_done = done;
    double seconds = (double)(now - p->start_ns) / 1e9, share = (double)done / (double)total;
    double rate = seconds > 0 ? (double)(done - p->start_done) / seconds : 0;
    int full = (int)(share * BAR);
    fprintf(stderr, "%s%-24s [%.*s%*s] %3d%%  %s of %s, %s/s", p->terminal ? "\r\033[K" : "", p->label, full,
            "##############################", BAR - full, "", (int)(share * 100), pl_format_size(done),
            pl_format_size(total), pl_format_size((uint64_t)rate));
    if (rate > 0) fprintf(stderr, ", %.0f s left", (double)(total - done) / rate);
    if (!p->terminal) fputc('\n', stderr);
    p->shown = true;
    p->shown_ns = now;
}

void progress_end(progress *p)
{
    if (p->shown && p->terminal) fputs("\r\033[K", stderr);
    p->shown = false;
}
