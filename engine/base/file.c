#include "engine/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/alloc.h"

static pl_status fail_errno(pl_error *err, const char *path, const char *what, int e)
{
    pl_status s = e == ENOENT || e == ENOTDIR ? PL_ERR_NOT_FOUND : e == ENOMEM ? PL_ERR_NO_MEMORY : PL_ERR_IO;
    return pl_fail(err, s, "%s: %s: %s", path, what, strerror(e));
}

/* Opens the regular file at path for reading. */
static pl_status open_regular(int *fd, uint64_t *size, const char *path, pl_error *err)
{
    /* O_NONBLOCK: a pipe without a writer must not hang us before we have seen what it is. */
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0) return fail_errno(err, path, "cannot be opened", errno);
    struct stat st;
    pl_status s = PL_OK;
    if (fstat(*fd, &st) != 0)
        s = fail_errno(err, path, "cannot be examined", errno);
    else if (!S_ISREG(st.st_mode))
        s = pl_fail(err, PL_ERR_IO, "%s: not a regular file", path);
    if (s != PL_OK) {
        close(*fd);
        *fd = -1;
        return s;
    }
    *size = (uint64_t)st.st_size;
    return PL_OK;
}

pl_status pl_mapped_open(pl_mapped *out, const char *path, pl_error *err)
{
    *out = (pl_mapped){0};
    int fd;
    uint64_t size = 0;
    PL_TRY(open_regular(&fd, &size, path, err));
    pl_status s = PL_OK;
    if (size > SIZE_MAX) {
        s = pl_fail(err, PL_ERR_IO, "%s: too large to map", path);
    } else if (size > 0) {
        void *p = mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED)
            s = fail_errno(err, path, "cannot be mapped", errno);
        else
            out->bytes = (pl_bytes){p, (size_t)size};
    }
    close(fd);
    return s;
}

void pl_mapped_close(pl_mapped *m)
{
    if (!m) return;
    if (m->bytes.data) munmap((void *)(uintptr_t)m->bytes.data, m->bytes.size);
    *m = (pl_mapped){0};
}

/* The pages that lie in part; those it only touches are left out where `inner`. False
 * when the system refused. */
static bool advise(pl_bytes part, int advice, bool inner)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)part.data, to = from + part.size;
    if (inner) {
        from = (from + page - 1) & ~(page - 1);
        to &= ~(page - 1);
    } else {
        from &= ~(page - 1);
    }
    return to <= from || madvise((void *)from, to - from, advice) == 0;
}

void pl_mapped_willneed(pl_bytes part)
{
    advise(part, MADV_WILLNEED, false);
}
void pl_mapped_dontneed(pl_bytes part)
{
    advise(part, MADV_DONTNEED, true);
}
void pl_mapped_huge(pl_bytes part)
{
    advise(part, MADV_HUGEPAGE, false);
}
void pl_mapped_populate(pl_bytes part)
{
#if !defined(MADV_POPULATE_READ)
    enum { MADV_POPULATE_READ = 22 }; /* Linux 5.14; older ones refuse the number */
#endif
    if (!advise(part, MADV_POPULATE_READ, false)) advise(part, MADV_WILLNEED, false);
}

pl_status pl_file_read(pl_buf *out, const char *path, size_t max, pl_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return fail_errno(err, path, "cannot be opened", errno);
    /* Read to the end instead of trusting the size: files of /proc say 0. */
    size_t before = out->size;
    pl_status s = PL_OK;
    for (;;) {
        if (!pl_buf_reserve(out, 4096)) {
            s = pl_fail(err, PL_ERR_NO_MEMORY, "%s: out of memory after %zu bytes", path, out->size - before);
            break;
        }
        ssize_t n = read(fd, out->data + out->size, out->cap - out->size);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) s = fail_errno(err, path, "cannot be read", errno);
        if (n <= 0) break;
        out->size += (size_t)n;
        if (out->size - before > max) {
            s = pl_fail(err, PL_ERR_INVALID, "%s: larger than %zu bytes", path, max);
            break;
        }
    }
    close(fd);
    if (s != PL_OK) out->size = before;
    return s;
}

static void forget(pl_file_writer *w)
{
    pl_free(w->path);
    pl_free(w->temp);
    *w = (pl_file_writer){.fd = -1};
}

pl_status pl_file_writer_open(pl_file_writer *w, const char *path, unsigned mode, pl_error *err)
{
    static _Atomic unsigned number; /* two threads may write the same path; one of them wins */
    *w = (pl_file_writer){.fd = -1};
    size_t size = strlen(path) + 48;
    w->path = pl_strdup(path);
    w->temp = pl_alloc(size);
    if (!w->path || !w->temp) {
        forget(w);
        return pl_fail(err, PL_ERR_NO_MEMORY, "%s: out of memory", path);
    }
    snprintf(w->temp, size, "%s.tmp.%ld.%u", path, (long)getpid(), atomic_fetch_add(&number, 1));
    unlink(w->temp); /* left by a process that had our number and died */
    w->fd = open(w->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, (mode_t)mode);
    if (w->fd >= 0) return PL_OK;
    pl_status s = fail_errno(err, path, "cannot be created", errno);
    forget(w);
    return s;
}

pl_status pl_file_writer_add(pl_file_writer *w, pl_bytes data, pl_error *err)
{
    for (size_t done = 0; done < data.size;) {
        ssize_t n = write(w->fd, data.data + done, data.size - done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fail_errno(err, w->path, "cannot be written", errno);
        done += (size_t)n;
    }
    return PL_OK;
}

/* All of a commit but the folder's sync. */
static pl_status put_in_place(pl_file_writer *w, pl_error *err)
{
    if (fsync(w->fd) != 0) return fail_errno(err, w->path, "cannot be synced", errno);
    int e = close(w->fd) == 0 ? 0 : errno;
    w->fd = -1;
    if (e) return fail_errno(err, w->path, "cannot be closed", e);
    if (rename(w->temp, w->path) != 0) return fail_errno(err, w->path, "cannot be renamed into place", errno);
    return PL_OK;
}

/* A new name is safe once its folder is. Some file systems refuse this, and then it is as safe as they make it. */
static void sync_folder_of(const char *path)
{
    char *folder = pl_strdup(path), *slash = folder ? strrchr(folder, '/') : NULL;
    if (slash) slash[slash == folder] = 0;
    int dir = open(slash ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    pl_free(folder);
    if (dir < 0) return;
    fsync(dir);
    close(dir);
}

pl_status pl_file_writer_commit_all(pl_file_writer *w, size_t n, pl_error *err)
{
    if (n == 0) return PL_OK;
    size_t done = 0;
    pl_status s = PL_OK;
    while (done < n && (s = put_in_place(&w[done], err)) == PL_OK) done++;
    sync_folder_of(w[0].temp);
    for (size_t i = 0; i < done; i++) forget(&w[i]);
    return s;
}

pl_status pl_file_writer_commit(pl_file_writer *w, pl_error *err)
{
    return pl_file_writer_commit_all(w, 1, err);
}

void pl_file_writer_begin_sync(pl_file_writer *w)
{
    sync_file_range(w->fd, 0, 0, SYNC_FILE_RANGE_WRITE);
}

void pl_file_writer_abort(pl_file_writer *w)
{
    if (!w->path) return;
    if (w->fd >= 0) close(w->fd);
    unlink(w->temp);
    forget(w);
}

pl_status pl_file_write(const char *path, pl_bytes data, unsigned mode, pl_error *err)
{
    pl_file_writer w;
    PL_TRY(pl_file_writer_open(&w, path, mode, err));
    pl_status s = pl_file_writer_add(&w, data, err);
    if (s == PL_OK) s = pl_file_writer_commit(&w, err);
    pl_file_writer_abort(&w);
    return s;
}

pl_status pl_mkdirs(const char *path, pl_error *err)
{
    char *part = pl_strdup(path);
    if (!part) return pl_fail(err, PL_ERR_NO_MEMORY, "%s: out of memory", path);
    pl_status s = PL_OK;
    for (char *at = part + (*part == '/');; at++) {
        if (*at != '/' && *at) continue;
        char end = *at;
        *at = 0;
        struct stat st;
        if (*part && mkdir(part, 0700) != 0 && (errno != EEXIST || stat(part, &st) != 0 || !S_ISDIR(st.st_mode))) {
            s = fail_errno(err, part, "cannot be made", errno);
            break;
        }
        if (!end) break;
        *at = end;
    }
    pl_free(part);
    return s;
}

bool pl_file_exists(const char *path)
{
    return access(path, F_OK) == 0;
}
