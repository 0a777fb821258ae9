#include "engine/base/sys.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <pwd.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/buf.h"
#include "engine/base/file.h"
#include "engine/base/sys_impl.h"

uint64_t pl_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int64_t pl_wall_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* The text of a small file of /proc or /sys, terminated; NULL when it is not there. The caller ends b. */
static const char *read_text(pl_buf *b, const char *path)
{
    pl_buf_reset(b);
    if (pl_file_read(b, path, (size_t)1 << 20, NULL) != PL_OK) return NULL;
    return pl_buf_cstr(b);
}

/* The number behind `name` at the beginning of a line of text; UINT64_MAX when there is none. */
static uint64_t field(const char *text, const char *name)
{
    size_t n = strlen(name);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        if (*line == '\n') line++;
        if (strncmp(line, name, n) == 0 && (line[n] == ':' || line[n] == ' ')) return strtoull(line + n + 1, NULL, 10);
    }
    return UINT64_MAX;
}

/* The first number of the file dir/name; UINT64_MAX when the file is not there or says "max" or -1. */
static uint64_t number_in(pl_buf *b, const char *dir, const char *name)
{
    char path[4096];
    if ((size_t)snprintf(path, sizeof path, "%s/%s", dir, name) >= sizeof path) return UINT64_MAX;
    const char *text = read_text(b, path);
    if (!text || !isdigit((unsigned char)*text)) return UINT64_MAX;
    return strtoull(text, NULL, 10);
}

static uint64_t meminfo(const char *root, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    pl_buf b = {0};
    const char *text = read_text(&b, path);
    uint64_t kib = text ? field(text, name) : UINT64_MAX;
    pl_buf_fini(&b);
    return kib > UINT64_MAX / 1024 ? UINT64_MAX : kib * 1024;
}

/* A visit to one directory of the cgroup tree. v2 says which version's file names hold. */
typedef void visit(const char *dir, bool v2, void *user);

/* Visits dir and each directory above it, down to the mount point, which is the first `keep` bytes. */
static void walk_up(char *dir, size_t keep, bool v2, visit *fn, void *user)
{
    for (;;) {
        fn(dir, v2, user);
        char *slash = strrchr(dir, '/');
        if (!slash || (size_t)(slash - dir) < keep) return;
        *slash = 0;
    }
}

/* Visits the cgroups that hold this process, for the v1 controller or the v2 tree: limits above bind as well. In a
 * container the path may be that of the host, which is not mounted; then only the mount point answers, and is visited.
 */
static void each_cgroup(const char *root, const char *controller, visit *fn, void *user)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    pl_buf b = {0};
    const char *text = read_text(&b, path);
    for (const char *line = text; line && *line;) {
        const char *end = strchrnul(line, '\n');
        const char *names = memchr(line, ':', (size_t)(end - line));
        const char *where = names ? memchr(names + 1, ':', (size_t)(end - names - 1)) : NULL;
        if (where) {
            names++;
            pl_str list = {names, (size_t)(where - names)};
            bool v2 = list.size == 0, mine = v2;
            while (list.size && !mine) { /* "cpu,cpuacct" */
                const char *comma = memchr(list.data, ',', list.size);
                size_t n = comma ? (size_t)(comma - list.data) : list.size;
                mine = pl_str_is((pl_str){list.data, n}, controller);
                list = comma ? (pl_str){comma + 1, list.size - n - 1} : (pl_str){0};
            }
            char dir[4096];
            int keep = snprintf(dir, sizeof dir, v2 ? "%s/sys/fs/cgroup" : "%s/sys/fs/cgroup/%s", root, controller);
            size_t n = (size_t)(end - where - 1);
            if (mine && keep > 0 && (size_t)keep + n + 1 < sizeof dir) {
                if (n == 1) n = 0; /* the root's path is "/" */
                memcpy(dir + keep, where + 1, n);
                dir[(size_t)keep + n] = 0;
                walk_up(dir, (size_t)keep, v2, fn, user);
            }
        }
        line = *end ? end + 1 : end;
    }
    pl_buf_fini(&b);
}

typedef struct memory {
    uint64_t limit, available;
} memory;

static void visit_memory(const char *dir, bool v2, void *user)
{
    memory *m = user;
    pl_buf b = {0};
    uint64_t limit = number_in(&b, dir, v2 ? "memory.max" : "memory.limit_in_bytes");
    uint64_t used = number_in(&b, dir, v2 ? "memory.current" : "memory.usage_in_bytes");
    char path[4096];
    if (limit != UINT64_MAX && (size_t)snprintf(path, sizeof path, "%s/memory.stat", dir) < sizeof path) {
        if (used == UINT64_MAX) used = 0;
        /* Pages of files that nobody used lately count as used but are given back on demand. */
        const char *text = read_text(&b, path);
        uint64_t cold = text ? field(text, v2 ? "inactive_file" : "total_inactive_file") : UINT64_MAX;
        if (cold != UINT64_MAX) used -= cold < used ? cold : used;
        uint64_t left = limit > used ? limit - used : 0;
        if (limit < m->limit) m->limit = limit;
        if (left < m->available) m->available = left;
    }
    pl_buf_fini(&b);
}

uint64_t pl_sys_memory_total_at(const char *root)
{
    memory m = {UINT64_MAX, UINT64_MAX};
    each_cgroup(root, "memory", visit_memory, &m);
    uint64_t total = meminfo(root, "MemTotal");
    return m.limit < total ? m.limit : total;
}

uint64_t pl_sys_memory_available_at(const char *root)
{
    memory m = {UINT64_MAX, UINT64_MAX};
    each_cgroup(root, "memory", visit_memory, &m);
    uint64_t available = meminfo(root, "MemAvailable");
    return m.available < available ? m.available : available;
}

/* What the rlimit leaves, where used is the field of /proc/self/status that it bounds. */
static uint64_t rlimit_left(int resource, const char *used_field)
{
    struct rlimit r;
    if (getrlimit((__rlimit_resource_t)resource, &r) != 0 || r.rlim_cur == RLIM_INFINITY) return UINT64_MAX;
    pl_buf b = {0};
    const char *text = read_text(&b, "/proc/self/status");
    uint64_t kib = text ? field(text, used_field) : UINT64_MAX;
    pl_buf_fini(&b);
    uint64_t used = kib == UINT64_MAX ? 0 : kib * 1024;
    return r.rlim_cur > used ? r.rlim_cur - used : 0;
}

uint64_t pl_sys_memory_total(void)
{
    return pl_sys_memory_total_at("");
}

uint64_t pl_sys_memory_available(void)
{
    uint64_t left = pl_sys_memory_available_at("");
    uint64_t as = rlimit_left(RLIMIT_AS, "VmSize"), data = rlimit_left(RLIMIT_DATA, "VmData");
    if (as < left) left = as;
    if (data < left) left = data;
    return left;
}

static void visit_cpu(const char *dir, bool v2, void *user)
{
    int *cpus = user;
    pl_buf b = {0};
    uint64_t quota, period = UINT64_MAX;
    if (v2) {
        quota = number_in(&b, dir, "cpu.max"); /* "200000 100000" or "max 100000" */
        const char *second = quota == UINT64_MAX ? NULL : strchr((const char *)b.data, ' ');
        if (second) period = strtoull(second + 1, NULL, 10);
    } else {
        quota = number_in(&b, dir, "cpu.cfs_quota_us");
        period = number_in(&b, dir, "cpu.cfs_period_us");
    }
    pl_buf_fini(&b);
    if (quota == UINT64_MAX || period == UINT64_MAX || period == 0) return;
    uint64_t n = quota / period + (quota % period != 0);
    if (n < (uint64_t)*cpus) *cpus = n ? (int)n : 1;
}

int pl_sys_cpu_quota_at(const char *root)
{
    int cpus = INT32_MAX;
    each_cgroup(root, "cpu", visit_cpu, &cpus);
    return cpus;
}

int pl_sys_cpus(void)
{
    int n = 0;
    /* A mask for 1024 processors is refused by kernels built for more. */
    for (int room = 1024; room <= 1 << 16 && !n; room *= 2) {
        cpu_set_t *set = CPU_ALLOC((size_t)room);
        if (!set) break;
        size_t size = CPU_ALLOC_SIZE((size_t)room);
        if (sched_getaffinity(0, size, set) == 0) n = CPU_COUNT_S(size, set);
        CPU_FREE(set);
    }
    if (n < 1) n = 1;
    int quota = pl_sys_cpu_quota_at("");
    return quota < n ? quota : n;
}

void pl_sys_hostname(char *out, size_t size)
{
    if (!size) return;
    if (gethostname(out, size) != 0) snprintf(out, size, "localhost");
    out[size - 1] = 0;
}

void pl_sys_cpu_name(char *out, size_t size)
{
    if (!size) return;
    snprintf(out, size, "unknown processor");
    pl_buf b = {0};
    const char *text = read_text(&b, "/proc/cpuinfo");
    const char *line = text ? strstr(text, "model name") : NULL;
    const char *name = line ? strchr(line, ':') : NULL;
    if (name) {
        name++;
        name += strspn(name, " \t");
        snprintf(out, size, "%.*s", (int)strcspn(name, "\n"), name);
    }
    pl_buf_fini(&b);
}

uint64_t pl_sys_peak_rss(void)
{
    /* ru_maxrss would begin with the peak of whoever started us. */
    pl_buf b = {0};
    const char *text = read_text(&b, "/proc/self/status");
    uint64_t kib = text ? field(text, "VmHWM") : UINT64_MAX;
    pl_buf_fini(&b);
    return kib == UINT64_MAX ? 0 : kib * 1024;
}

static bool word_is(pl_str s, const char *word)
{
    if (s.size != strlen(word)) return false;
    for (size_t i = 0; i < s.size; i++) {
        if (tolower((unsigned char)s.data[i]) != tolower((unsigned char)word[i])) return false;
    }
    return true;
}

/* The factor that a unit stands for; 0 when it is no unit. */
static uint64_t unit_factor(pl_str unit)
{
    if (unit.size == 0 || word_is(unit, "B")) return 1;
    static const char letters[] = "KMGT";
    uint64_t binary = 1, decimal = 1;
    for (size_t i = 0; i < 4; i++) {
        binary *= 1024;
        decimal *= 1000;
        char text[4] = {letters[i], 0, 0, 0};
        if (word_is(unit, text)) return binary;
        memcpy(text + 1, "iB", 2);
        if (word_is(unit, text)) return binary;
        memcpy(text + 1, "B", 2);
        if (word_is(unit, text)) return decimal;
    }
    return 0;
}

pl_status pl_parse_size(pl_str text, uint64_t *out, pl_error *err)
{
    size_t i = 0, digits = 0;
    unsigned __int128 whole = 0, part = 0, scale = 1;
    for (; i < text.size && isdigit((unsigned char)text.data[i]) && whole <= UINT64_MAX; i++, digits++)
        whole = whole * 10 + (unsigned)(text.data[i] - '0');
    if (i < text.size && text.data[i] == '.') {
        for (i++; i < text.size && isdigit((unsigned char)text.data[i]); i++, digits++) {
            if (scale >= 1000000000) continue; /* further digits are less than a byte of a gigabyte */
            part = part * 10 + (unsigned)(text.data[i] - '0');
            scale *= 10;
        }
    }
    while (i < text.size && text.data[i] == ' ') i++;
    uint64_t factor = unit_factor((pl_str){text.data + i, text.size - i});
    if (!digits || !factor)
        return pl_fail(err, PL_ERR_INVALID, "\"%.*s\" is not a size: write it like 4096, 200MiB or 1.5G",
                       PL_STR_ARG(text));
    unsigned __int128 bytes = whole > UINT64_MAX ? whole : whole * factor + part * factor / scale;
    if (bytes > UINT64_MAX) return pl_fail(err, PL_ERR_INVALID, "\"%.*s\" is too large a size", PL_STR_ARG(text));
    *out = (uint64_t)bytes;
    return PL_OK;
}

const char *pl_format_size(uint64_t bytes)
{
    static _Thread_local char ring[8][24];
    static _Thread_local unsigned turn;
    char *out = ring[turn++ % 8];
    if (bytes < 1024) {
        snprintf(out, sizeof ring[0], "%u B", (unsigned)bytes);
        return out;
    }
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double v = (double)bytes / 1024;
    size_t u = 0;
    /* 1023.95 would be printed as 1024.0. */
    for (; v >= 1023.95 && u < 5; u++) v /= 1024;
    snprintf(out, sizeof ring[0], "%.1f %s", v, units[u]);
    return out;
}

static pl_status user_dir(char *out, size_t size, const char *variable, const char *below_home, pl_error *err)
{
    const char *base = getenv(variable), *between = "";
    if (!base || *base != '/') { /* the XDG specification says to ignore a relative path */
        base = getenv("HOME");
        between = below_home;
    }
    if (!base || !*base) {
        const struct passwd *pw = getpwuid(getuid());
        base = pw ? pw->pw_dir : NULL;
    }
    if (!base || !*base) return pl_fail(err, PL_ERR_NOT_FOUND, "neither %s nor HOME is set", variable);
    if ((size_t)snprintf(out, size, "%s%s/paceline", base, between) >= size)
        return pl_fail(err, PL_ERR_INVALID, "the path in %s is too long", variable);
    return PL_OK;
}

pl_status pl_cache_dir(char *out, size_t size, pl_error *err)
{
    return user_dir(out, size, "XDG_CACHE_HOME", "/.cache", err);
}

pl_status pl_config_dir(char *out, size_t size, pl_error *err)
{
    return user_dir(out, size, "XDG_CONFIG_HOME", "/.config", err);
}
