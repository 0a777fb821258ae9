/* Files: read-only maps, whole reads, and writes that are all or nothing. Errors name the path. */
#pragma once

#include "engine/base/buf.h"
#include "engine/base/bytes.h"
#include "engine/base/status.h"

typedef struct pl_mapped {
    pl_bytes bytes;
} pl_mapped;

/* Maps the whole regular file read-only. An empty file gives size 0. PL_ERR_NOT_FOUND or PL_ERR_IO. */
PL_MUST_CHECK pl_status pl_mapped_open(pl_mapped *out, const char *path, pl_error *err);
void pl_mapped_close(pl_mapped *m);
/* Tells the kernel that the bytes will be read soon, or not again. Advice only. */
void pl_mapped_willneed(pl_bytes part);
void pl_mapped_dontneed(pl_bytes part);
/* Asks for huge pages where the file system has them: then later faults read two megabytes at once. Advice only. */
void pl_mapped_huge(pl_bytes part);
/* Reads what is not in memory and makes all of it present, so that no access has to wait. What cannot be read is left for
 * the access. */
void pl_mapped_populate(pl_bytes part);

/* Appends the whole file, refused above max bytes. */
PL_MUST_CHECK pl_status pl_file_read(pl_buf *out, const char *path, size_t max, pl_error *err);
/* Writes to a temporary name beside path, syncs, renames: path has the old bytes or the new ones. mode: 0600, 0644. */
PL_MUST_CHECK pl_status pl_file_write(const char *path, pl_bytes data, unsigned mode, pl_error *err);

/* The same in pieces: open, add as often as needed, commit. Until then path has the old bytes. abort gives up and
 * removes the temporary file; after a commit, or on a writer that is all zero, it does nothing. A commit that failed is
 * followed by abort. */
typedef struct pl_file_writer {
    int fd;
    char *path, *temp; /* NULL: not open */
} pl_file_writer;
PL_MUST_CHECK pl_status pl_file_writer_open(pl_file_writer *w, const char *path, unsigned mode, pl_error *err);
PL_MUST_CHECK pl_status pl_file_writer_add(pl_file_writer *w, pl_bytes data, pl_error *err);
PL_MUST_CHECK pl_status pl_file_writer_commit(pl_file_writer *w, pl_error *err);
/* The same for n writers of one folder, which is synced once. On failure those before the one that failed are there. */
PL_MUST_CHECK pl_status pl_file_writer_commit_all(pl_file_writer *w, size_t n, pl_error *err);
/* Lets the disk begin with what was added so far; a later commit then waits for less. Advice only. */
void pl_file_writer_begin_sync(pl_file_writer *w);
void pl_file_writer_abort(pl_file_writer *w);

/* mkdir -p with mode 0700 for what is new. */
PL_MUST_CHECK pl_status pl_mkdirs(const char *path, pl_error *err);
bool pl_file_exists(const char *path);
