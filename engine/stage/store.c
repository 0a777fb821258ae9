/* The tensor cache. Layout of its folder:
 *
 *   tensors/HASH              one complete tensor; HASH is 64 hexadecimal digits
 *   tensors/HASH.tmp.…        being written (base/file.c); a leftover is removed by verify
 *   tensors/HASH.bad          set aside by a read that found it damaged; removed by verify
 *   parts/HASH                the first bytes of a tensor in GGUF form, to be gone on with
 *   index/HASH                HASH of a GGUF file's path: the hashes of its tensors (text, below)
 *
 * A tensor file is a header of 4096 bytes, a page, so that the data behind it is on a page as well. Little-endian:
 *
 *   offset  bytes
 *        0      8  "PLTENSR1"
 *        8      4  layout (pl_layout)
 *       12      4  type (GGUF's number; PL_TYPE_COUNT for a blob of any bytes)
 *       16     32  ne[4]
 *       48      8  size of the data in bytes, which ends the file
 *       56     32  the tensor's hash: BLAKE2b of its GGUF bytes
 *       88      8  checksum of the data as it stands here: XXH3 of each MiB, seeded with the checksum of those before
 *       96      8  XXH3 of bytes 0..95
 *      104         zeros to 4096
 *
 * A layout's number never changes its meaning: another layout gets another number, and a file with a number that this
 * build cannot use counts as absent.
 *
 * An index file is lines of text: "paceline-index 1", then "part SIZE MTIME_NS" for each file of the model, "tensors
 * N", and N hashes in the order of the file. It holds while sizes and times are the same. */
#include "engine/stage/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/alloc.h"
#include "engine/base/log.h"
#include "engine/base/pool.h"
#include "engine/base/sys.h"

enum {
    HEADER_SIZE = 4096,
    HEADER_USED = 104,
    GROUP_ROWS = 16,          /* rows that every layout keeps together: packing may go by slabs of whole groups */
    SLAB_BYTES = 2 << 20,     /* packed at once: enough to be quick, and no second copy of a tensor */
    WRITE_BYTES = 4 << 20,    /* written at once: see pieces */
    COMMIT_TOGETHER = 16,     /* files that wait for the disk together, while it is at work on them already */
    CHECKSUM_BYTES = 1 << 20, /* a piece of the chained checksum */
    HASH_BYTES = 8 << 20,     /* hashed between two calls of progress */
    INDEX_MAX = 64 << 20
};

static const char magic[8] = {'P', 'L', 'T', 'E', 'N', 'S', 'R', '1'};

struct pl_store {
    char *dir;
    pl_backend *backend;
};

struct pl_store_writer {
    pl_store *store;
    pl_hash hash;
    pl_type type;
    int64_t ne[4];
    uint64_t size, have;
    int fd;
    bool keep; /* whether the part may stay for later: it is locked by us and under its usual name */
    char *path;
};

/* --- Names --- */

static char *path_of(const pl_store *s, const char *folder, const pl_hash *hash, const char *suffix)
{
    char hex[2 * PL_HASH_SIZE + 1];
    pl_hash_hex(hash, hex);
    pl_buf b = {0};
    pl_buf_printf(&b, "%s/%s/%s%s", s->dir, folder, hex, suffix);
    char *path = b.failed ? NULL : pl_strndup((const char *)b.data, b.size);
    pl_buf_fini(&b);
    return path;
}

static pl_status no_memory(pl_error *err)
{
    return pl_fail(err, PL_ERR_NO_MEMORY, "tensor cache: no memory");
}

static pl_status fail_errno(pl_error *err, const char *path, const char *what)
{
    return pl_fail(err, PL_ERR_IO, "%s: %s: %s", path, what, strerror(errno));
}

pl_status pl_store_open(pl_store **out, const char *dir, pl_backend *backend, pl_error *err)
{
    *out = NULL;
    static const char *const folders[] = {"tensors", "parts", "index"};
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        pl_buf b = {0};
        pl_buf_printf(&b, "%s/%s", dir, folders[i]);
        const char *path = pl_buf_cstr(&b);
        pl_status s = path ? pl_mkdirs(path, err) : no_memory(err);
        pl_buf_fini(&b);
        if (s != PL_OK) return pl_note(err, s, "tensor cache");
    }
    pl_store *s = pl_calloc(1, sizeof *s);
    if (s) s->dir = pl_strdup(dir);
    if (s == NULL || s->dir == NULL) {
        pl_store_close(s);
        return no_memory(err);
    }
    s->backend = backend;
    *out = s;
    return PL_OK;
}

void pl_store_close(pl_store *s)
{
    if (s == NULL) return;
    pl_free(s->dir);
    pl_free(s);
}

/* --- Tensor files --- */

static int64_t rows_of(const int64_t ne[4])
{
    return ne[1] * ne[2] * ne[3];
}

/* Whether type, shape and size belong together; nothing of them is trusted. */
static bool shape_ok(pl_type type, const int64_t ne[4], uint64_t size)
{
    if (type == PL_TYPE_COUNT) return true;
    const pl_type_info *info = pl_type_get(type);
    if (info == NULL) return false;
    uint64_t rows = 1, bytes;
    for (int i = 0; i < 4; i++)
        if (ne[i] < 1) return false;
    if ((uint64_t)ne[0] % info->block != 0) return false;
    for (int i = 1; i < 4; i++)
        if (__builtin_mul_overflow(rows, (uint64_t)ne[i], &rows) || rows > INT64_MAX) return false;
    if (__builtin_mul_overflow((uint64_t)ne[0] / info->block, (uint64_t)info->bytes, &bytes)) return false;
    return !__builtin_mul_overflow(bytes, rows, &bytes) && bytes == size && size <= INT64_MAX;
}

/* Of a map's bytes, which leave our memory again. */
static uint64_t chained_checksum(pl_bytes data)
{
    uint64_t sum = 0;
    for (size_t at = 0; at < data.size; at += CHECKSUM_BYTES) {
        size_t n = data.size - at < CHECKSUM_BYTES ? data.size - at : CHECKSUM_BYTES;
        sum = pl_checksum((pl_bytes){data.data + at, n}, sum);
        pl_mapped_dontneed((pl_bytes){data.data + at, n}); /* a file beyond memory passes by */
    }
    return sum;
}

static void write_header(uint8_t h[HEADER_SIZE], pl_layout layout, pl_type type, const int64_t ne[4], uint64_t size,
                         const pl_hash *hash, uint64_t sum)
{
    memset(h, 0, HEADER_SIZE);
    memcpy(h, magic, sizeof magic);
    pl_put_u32(h + 8, (uint32_t)layout);
    pl_put_u32(h + 12, (uint32_t)type);
    for (int i = 0; i < 4; i++) pl_put_u64(h + 16 + 8 * i, (uint64_t)ne[i]);
    pl_put_u64(h + 48, size);
    memcpy(h + 56, hash->b, PL_HASH_SIZE);
    pl_put_u64(h + 88, sum);
    pl_put_u64(h + 96, pl_checksum((pl_bytes){h, 96}, 0));
}

/* What a mapped file says; false when it is not a whole tensor file of this hash. *sum: the data's checksum. */
static bool read_header(pl_stored *t, const pl_hash *hash, uint64_t *sum)
{
    pl_bytes b = t->map.bytes;
    if (b.size < HEADER_SIZE || memcmp(b.data, magic, sizeof magic) != 0) return false;
    if (pl_get_u64(b.data + 96) != pl_checksum((pl_bytes){b.data, 96}, 0) ||
        memcmp(b.data + 56, hash->b, PL_HASH_SIZE) != 0)
        return false;
    t->layout = (pl_layout)pl_get_u32(b.data + 8);
    t->type = (pl_type)pl_get_u32(b.data + 12);
    for (int i = 0; i < 4; i++) t->ne[i] = (int64_t)pl_get_u64(b.data + 16 + 8 * i);
    t->size = pl_get_u64(b.data + 48);
    t->data = b.data + HEADER_SIZE;
    *sum = pl_get_u64(b.data + 88);
    return t->size == b.size - HEADER_SIZE && shape_ok(t->type, t->ne, t->size);
}

static bool layout_usable(const pl_store *s, const pl_stored *t)
{
    if (t->layout == PL_LAYOUT_PLAIN) return true;
    return t->type != PL_TYPE_COUNT && t->layout == s->backend->vt->best_layout(s->backend, t->type, t->ne);
}

pl_status pl_store_get(pl_store *s, const pl_hash *hash, pl_stored *out, pl_error *err)
{
    *out = (pl_stored){0};
    char *path = path_of(s, "tensors", hash, ""), *bad = path_of(s, "tensors", hash, ".bad");
    uint64_t sum;
    pl_status status = path && bad ? pl_mapped_open(&out->map, path, err) : no_memory(err);
    if (status == PL_OK && !read_header(out, hash, &sum)) {
        status = rename(path, bad) == 0 || errno == ENOENT
                     ? pl_fail(err, PL_ERR_FORMAT, "%s: not a whole tensor file; set aside", path)
                     : fail_errno(err, path, "cannot be set aside");
        pl_stored_close(out);
    } else if (status == PL_OK && !layout_usable(s, out)) {
        status = pl_fail(err, PL_ERR_NOT_FOUND, "%s: layout %d cannot be used by %s", path, (int)out->layout,
                         s->backend->vt->name);
        pl_stored_close(out);
    }
    pl_free(path);
    pl_free(bad);
    return status;
}

void pl_stored_close(pl_stored *t)
{
    pl_mapped_close(&t->map);
    *t = (pl_stored){0};
}

bool pl_store_has(pl_store *s, const pl_hash *hash, uint64_t *partial)
{
    pl_stored t;
    pl_error ignored;
    if (partial) *partial = 0;
    if (pl_store_get(s, hash, &t, &ignored) == PL_OK) {
        pl_stored_close(&t);
        return true;
    }
    char *path = partial ? path_of(s, "parts", hash, "") : NULL;
    struct stat st;
    if (path && stat(path, &st) == 0 && S_ISREG(st.st_mode)) *partial = (uint64_t)st.st_size;
    pl_free(path);
    return false;
}

/* The end of the slab that begins at row: whole groups, and never a rest of less than one group behind it, since a
 * tensor that small has no packed form. */
static int64_t slab_end(int64_t row, int64_t rows, size_t row_size)
{
    int64_t groups = (int64_t)(SLAB_BYTES / (GROUP_ROWS * row_size + 1)) + 1;
    int64_t end = row + groups * GROUP_ROWS;
    return rows - end < GROUP_ROWS ? rows : end;
}

/* Whether the tensors' bytes are a file's map and not the caller's memory, which would not come back. */
static bool is_mapped(const pl_gguf *g)
{
    return pl_gguf_path(g)[0] != '\0';
}

/* What goes to a file, gathered into pieces of WRITE_BYTES that begin at multiples of it. A file system that can keep a
 * file in huge pages does so for pieces that cover them, and only then: a mapped tensor is read up to half as fast
 * again from them as from small ones. */
typedef struct pieces {
    pl_file_writer *w;
    uint8_t *room; /* WRITE_BYTES */
    size_t have;
} pieces;

static pl_status flush_pieces(pieces *o, pl_error *err)
{
    pl_bytes piece = {o->room, o->have};
    o->have = 0;
    PL_TRY(pl_file_writer_add(o->w, piece, err));
    pl_file_writer_begin_sync(o->w);
    return PL_OK;
}

static pl_status add_piece(pieces *o, pl_bytes data, pl_error *err)
{
    while (data.size > 0) {
        size_t n = WRITE_BYTES - o->have < data.size ? WRITE_BYTES - o->have : data.size;
        memcpy(o->room + o->have, data.data, n);
        o->have += n;
        data = (pl_bytes){data.data + n, data.size - n};
        if (o->have == WRITE_BYTES) PL_TRY(flush_pieces(o, err));
    }
    return PL_OK;
}

/* The header's place, and src packed. mapped: src is a file's map, and may leave our memory again. */
static pl_status write_packed(pl_store *s, pl_layout layout, pl_type type, const int64_t ne[4], pl_bytes src,
                              bool mapped, pieces *o, pl_error *err)
{
    static const uint8_t header[HEADER_SIZE];
    PL_TRY(add_piece(o, (pl_bytes){header, sizeof header}, err));
    if (layout == PL_LAYOUT_PLAIN) {
        PL_TRY(add_piece(o, src, err));
        return flush_pieces(o, err);
    }
    size_t row_size = pl_type_row_size(type, ne[0]);
    int64_t rows = rows_of(ne), longest = slab_end(0, rows, row_size);
    longest = longest == rows ? rows : longest + GROUP_ROWS;
    uint8_t *slab = pl_alloc((size_t)longest * row_size);
    if (slab == NULL) return no_memory(err);
    pl_status status = PL_OK;
    for (int64_t row = 0, end; status == PL_OK && row < rows; row = end) {
        end = slab_end(row, rows, row_size);
        int64_t part[4] = {ne[0], end - row, 1, 1};
        pl_bytes from = {src.data + (size_t)row * row_size, (size_t)(end - row) * row_size};
        s->backend->vt->pack(s->backend, layout, type, part, from.data, slab, 0, end - row);
        if (mapped) pl_mapped_dontneed(from);
        status = add_piece(o, (pl_bytes){slab, from.size}, err);
    }
    pl_free(slab);
    return status == PL_OK ? flush_pieces(o, err) : status;
}

/* Packs src, the tensor's GGUF bytes, into its file, which the caller commits or aborts. */
static pl_status write_tensor(pl_store *s, const pl_hash *hash, pl_type type, const int64_t ne[4], pl_bytes src,
                              bool mapped, pl_file_writer *w, pl_error *err)
{
    static const int64_t no_shape[4] = {0, 0, 0, 0};
    pl_layout layout = type == PL_TYPE_COUNT ? PL_LAYOUT_PLAIN : s->backend->vt->best_layout(s->backend, type, ne);
    char *path = path_of(s, "tensors", hash, "");
    pieces o = {.w = w, .room = pl_alloc(WRITE_BYTES)};
    pl_mapped written = {0};
    pl_status status = path && o.room ? pl_file_writer_open(w, path, 0600, err) : no_memory(err);
    if (status == PL_OK) status = write_packed(s, layout, type, ne, src, mapped, &o, err);
    /* The header comes last, when the checksum of what the file really holds is known. */
    if (status == PL_OK) status = pl_mapped_open(&written, w->temp, err);
    if (status == PL_OK) {
        pl_bytes data = {written.bytes.data + HEADER_SIZE, written.bytes.size - HEADER_SIZE};
        uint8_t header[HEADER_SIZE];
        write_header(header, layout, type, type == PL_TYPE_COUNT ? no_shape : ne, data.size, hash,
                     chained_checksum(data));
        if (pwrite(w->fd, header, sizeof header, 0) != (ssize_t)sizeof header)
            status = fail_errno(err, path, "cannot be written");
    }
    pl_mapped_close(&written);
    pl_free(o.room);
    pl_free(path);
    return status;
}

/* The same as a whole. */
static pl_status put_tensor(pl_store *s, const pl_hash *hash, pl_type type, const int64_t ne[4], pl_bytes src,
                            bool mapped, pl_error *err)
{
    pl_file_writer w = {0};
    pl_status status = write_tensor(s, hash, type, ne, src, mapped, &w, err);
    if (status == PL_OK) status = pl_file_writer_commit(&w, err);
    pl_file_writer_abort(&w);
    return status;
}

/* --- Taking in --- */

pl_status pl_store_begin(pl_store *s, const pl_hash *hash, pl_type type, const int64_t ne[4], uint64_t size,
                         pl_store_writer **out, uint64_t *have, pl_error *err)
{
    *out = NULL;
    *have = 0;
    if (!shape_ok(type, ne, size))
        return pl_fail(err, PL_ERR_FORMAT, "tensor cache: type %d and its shape do not have %" PRIu64 " bytes",
                       (int)type, size);
    pl_store_writer *w = pl_calloc(1, sizeof *w);
    if (w == NULL) return no_memory(err);
    *w = (pl_store_writer){.store = s, .hash = *hash, .type = type, .size = size, .fd = -1, .keep = true};
    if (type != PL_TYPE_COUNT) memcpy(w->ne, ne, sizeof w->ne);
    w->path = path_of(s, "parts", hash, "");
    pl_status status = PL_OK;
    if (w->path == NULL) {
        status = no_memory(err);
        goto fail;
    }
    w->fd = open(w->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (w->fd >= 0 && flock(w->fd, LOCK_EX | LOCK_NB) != 0) {
        /* Somebody else fills this part; ours has a name of its own. */
        close(w->fd);
        w->keep = false;
        pl_free(w->path);
        w->path = path_of(s, "parts", hash, ".XXXXXX");
        if (w->path == NULL) {
            status = no_memory(err);
            goto fail;
        }
        w->fd = mkostemp(w->path, O_CLOEXEC);
    }
    if (w->fd < 0) {
        status = fail_errno(err, w->path, "cannot be created");
        goto fail;
    }
    off_t end = lseek(w->fd, 0, SEEK_END);
    /* More than the whole cannot be a beginning of it. */
    if (end < 0 || (uint64_t)end > size) {
        if (ftruncate(w->fd, 0) != 0 || lseek(w->fd, 0, SEEK_SET) != 0) {
            status = fail_errno(err, w->path, "cannot be emptied");
            goto fail;
        }
        end = 0;
    }
    w->have = *have = (uint64_t)end;
    *out = w;
    return PL_OK;
fail:
    if (w->fd >= 0) close(w->fd);
    pl_free(w->path);
    pl_free(w);
    return status;
}

pl_status pl_store_add(pl_store_writer *w, pl_bytes piece, pl_error *err)
{
    if (piece.size > w->size - w->have)
        return pl_fail(err, PL_ERR_FORMAT, "tensor cache: %" PRIu64 " + %zu bytes of a tensor with %" PRIu64, w->have,
                       piece.size, w->size);
    for (size_t at = 0; at < piece.size;) {
        ssize_t n = write(w->fd, piece.data + at, piece.size - at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fail_errno(err, w->path, "cannot be written");
        at += (size_t)n;
        w->have += (uint64_t)n;
    }
    return PL_OK;
}

/* Ends w; the part stays only when asked to, and when it is one that a later attempt would find. */
static void end_writer(pl_store_writer *w, bool keep)
{
    if (!keep || !w->keep) unlink(w->path);
    close(w->fd);
    pl_free(w->path);
    pl_free(w);
}

pl_status pl_store_finish(pl_store_writer *w, pl_error *err)
{
    pl_mapped part = {0};
    pl_status s;
    if (w->have != w->size) {
        s = pl_fail(err, PL_ERR_INVALID, "tensor cache: %" PRIu64 " of %" PRIu64 " bytes", w->have, w->size);
        end_writer(w, true);
        return s;
    }
    if ((s = pl_mapped_open(&part, w->path, err)) == PL_OK) {
        pl_hash got = pl_hash_of(part.bytes);
        if (pl_hash_eq(&got, &w->hash)) {
            s = put_tensor(w->store, &w->hash, w->type, w->ne, part.bytes, true, err);
        } else {
            char want_hex[2 * PL_HASH_SIZE + 1], got_hex[2 * PL_HASH_SIZE + 1];
            pl_hash_hex(&w->hash, want_hex);
            pl_hash_hex(&got, got_hex);
            s = pl_fail(err, PL_ERR_FORMAT, "tensor cache: %" PRIu64 " bytes have hash %s, not %s", w->size, got_hex,
                        want_hex);
        }
        pl_mapped_close(&part);
    }
    end_writer(w, s != PL_OK && s != PL_ERR_FORMAT);
    return s;
}

void pl_store_abandon(pl_store_writer *w)
{
    if (w) end_writer(w, true);
}

pl_status pl_store_import(pl_store *s, const pl_gguf *g, size_t i, const pl_hash *hash, pl_error *err)
{
    const pl_gguf_tensor *t = pl_gguf_tensor_at(g, i);
    if (pl_store_has(s, hash, NULL)) return PL_OK;
    if (t->data == NULL)
        return pl_fail(err, PL_ERR_NOT_FOUND, "tensor %.*s: its bytes are not in this file", PL_STR_ARG(t->name));
    pl_status status = put_tensor(s, hash, t->type, t->ne, (pl_bytes){t->data, t->size}, is_mapped(g), err);
    return status == PL_OK ? PL_OK : pl_note(err, status, "tensor %.*s", PL_STR_ARG(t->name));
}

/* --- Work of all processors --- */

/* Goes over n tensors. */
typedef struct crew {
    pl_store *store;
    const pl_gguf *g;
    const size_t *tensors; /* NULL: 0 to n - 1 */
    const pl_hash *const *hashes;
    pl_hash *out;
    size_t n;
    void (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
    uint64_t total;
    _Atomic uint64_t done;
    pthread_mutex_t lock; /* of status and err */
    pl_status status;     /* the first failure */
    pl_error err;
} crew;

static void crew_failed(crew *c, pl_status status, const pl_error *err)
{
    pthread_mutex_lock(&c->lock);
    if (c->status == PL_OK) {
        c->status = status;
        c->err = *err;
    }
    pthread_mutex_unlock(&c->lock);
}

/* Counts bytes; the caller's own thread also tells. */
static void crew_did(crew *c, int i_thread, uint64_t bytes)
{
    uint64_t done = atomic_fetch_add(&c->done, bytes) + bytes;
    if (i_thread == 0 && c->progress) c->progress(c->user, done, c->total);
}

static pl_status crew_run(crew *c, void (*fn)(pl_team *team, int i_thread, int n_threads, void *user), pl_error *err)
{
    for (size_t i = 0; i < c->n; i++) c->total += pl_gguf_tensor_at(c->g, c->tensors ? c->tensors[i] : i)->size;
    int n_threads = pl_sys_cpus();
    if ((size_t)n_threads > c->n) n_threads = c->n ? (int)c->n : 1;
    pl_pool *pool;
    PL_TRY(pl_pool_new(&pool, (pl_pool_options){.n_threads = n_threads, .poll = 0}, err));
    pthread_mutex_init(&c->lock, NULL);
    pl_pool_run(pool, fn, c);
    pthread_mutex_destroy(&c->lock);
    pl_pool_free(pool);
    if (c->progress && c->status == PL_OK) c->progress(c->user, c->total, c->total);
    if (c->status != PL_OK) *err = c->err;
    return c->status;
}

static void commit_crew(crew *c, pl_file_writer *w, size_t *n)
{
    pl_error err = {0};
    pl_status status = pl_file_writer_commit_all(w, *n, &err);
    if (status != PL_OK) crew_failed(c, status, &err);
    for (size_t i = 0; i < *n; i++) pl_file_writer_abort(&w[i]);
    *n = 0;
}

static void import_some(pl_team *team, int i_thread, int n_threads, void *user)
{
    (void)n_threads;
    crew *c = user;
    pl_file_writer waiting[COMMIT_TOGETHER] = {0};
    size_t n_waiting = 0;
    for (size_t i; (i = (size_t)pl_team_next(team)) < c->n;) {
        const pl_gguf_tensor *t = pl_gguf_tensor_at(c->g, c->tensors[i]);
        pl_error err = {0};
        pl_status status = PL_OK;
        if (!pl_store_has(c->store, c->hashes[i], NULL)) {
            pl_file_writer *w = &waiting[n_waiting];
            *w = (pl_file_writer){0};
            status = t->data ? write_tensor(c->store, c->hashes[i], t->type, t->ne, (pl_bytes){t->data, t->size},
                                            is_mapped(c->g), w, &err)
                             : pl_fail(&err, PL_ERR_NOT_FOUND, "its bytes are not in this file");
            if (status == PL_OK)
                n_waiting++;
            else
                pl_file_writer_abort(w);
        }
        if (status != PL_OK) crew_failed(c, pl_note(&err, status, "tensor %.*s", PL_STR_ARG(t->name)), &err);
        if (n_waiting == COMMIT_TOGETHER) commit_crew(c, waiting, &n_waiting);
        crew_did(c, i_thread, t->size);
    }
    commit_crew(c, waiting, &n_waiting);
}

pl_status pl_store_import_all(pl_store *s, const pl_gguf *g, const size_t *tensors, const pl_hash *const *hashes,
                              size_t n, void (*progress)(void *user, uint64_t done, uint64_t total), void *user,
                              pl_error *err)
{
    /* With all of them there, which is every start but the first, no thread has to be made. */
    size_t missing = 0;
    for (size_t i = 0; i < n; i++) missing += !pl_store_has(s, hashes[i], NULL);
    if (missing == 0) return PL_OK;
    crew c = {.store = s, .g = g, .tensors = tensors, .hashes = hashes, .n = n, .progress = progress, .user = user};
    return crew_run(&c, import_some, err);
}

static void hash_some(pl_team *team, int i_thread, int n_threads, void *user)
{
    (void)n_threads;
    crew *c = user;
    for (size_t i; (i = (size_t)pl_team_next(team)) < c->n;) {
        const pl_gguf_tensor *t = pl_gguf_tensor_at(c->g, i);
        if (t->data == NULL) {
            pl_error err;
            pl_status status =
                pl_fail(&err, PL_ERR_NOT_FOUND, "tensor %.*s: its bytes are not in this file", PL_STR_ARG(t->name));
            crew_failed(c, status, &err);
            return;
        }
        pl_hasher h;
        pl_hasher_init(&h);
        for (uint64_t at = 0; at < t->size;) {
            size_t piece = t->size - at < HASH_BYTES ? (size_t)(t->size - at) : HASH_BYTES;
            pl_bytes bytes = {(const uint8_t *)t->data + at, piece};
            pl_hasher_add(&h, bytes);
            if (is_mapped(c->g)) pl_mapped_dontneed(bytes);
            at += piece;
            crew_did(c, i_thread, piece);
        }
        c->out[i] = pl_hasher_done(&h);
    }
}

/* --- Giving out --- */

/* Calls fn with the tensor's GGUF bytes, slab by slab, from byte offset to end - 1. */
static pl_status each_slab(pl_store *s, const pl_stored *t, uint64_t offset, uint64_t end,
                           bool (*fn)(void *user, pl_bytes part), void *user, pl_error *err)
{
    if (offset >= end) return PL_OK;
    if (t->layout == PL_LAYOUT_PLAIN)
        return fn(user, (pl_bytes){(const uint8_t *)t->data + offset, (size_t)(end - offset)}) ? PL_OK : no_memory(err);
    uint64_t row_size = pl_type_row_size(t->type, t->ne[0]);
    int64_t rows = rows_of(t->ne), row = (int64_t)(offset / row_size) / GROUP_ROWS * GROUP_ROWS;
    if (rows - row < GROUP_ROWS) row -= GROUP_ROWS; /* the rest of rows stands with the group before it */
    uint8_t *slab = NULL;
    int64_t slab_rows = 0;
    pl_status status = PL_OK;
    for (int64_t last; status == PL_OK && row < rows && (uint64_t)row * row_size < end; row = last) {
        last = slab_end(row, rows, (size_t)row_size);
        /* No more than is asked for: peers read in small pieces. */
        int64_t wanted = ((int64_t)((end - 1) / row_size) / GROUP_ROWS + 1) * GROUP_ROWS;
        if (wanted < last && rows - wanted >= GROUP_ROWS) last = wanted;
        if (last - row > slab_rows) {
            pl_free(slab);
            slab_rows = last - row;
            slab = pl_alloc((size_t)slab_rows * row_size);
            if (slab == NULL) return no_memory(err);
        }
        int64_t part[4] = {t->ne[0], last - row, 1, 1};
        uint64_t first_byte = (uint64_t)row * row_size, end_byte = (uint64_t)last * row_size;
        s->backend->vt->unpack(s->backend, t->layout, t->type, part, (const uint8_t *)t->data + first_byte, slab, 0,
                               last - row);
        uint64_t from = offset > first_byte ? offset : first_byte, to = end < end_byte ? end : end_byte;
        if (!fn(user, (pl_bytes){slab + (from - first_byte), (size_t)(to - from)})) status = no_memory(err);
    }
    pl_free(slab);
    return status;
}

static bool append_slab(void *user, pl_bytes part)
{
    return pl_buf_add(user, part.data, part.size);
}

pl_status pl_store_read(pl_store *s, const pl_hash *hash, uint64_t offset, size_t size, pl_buf *out, pl_error *err)
{
    pl_stored t;
    PL_TRY(pl_store_get(s, hash, &t, err));
    pl_status status;
    if (offset > t.size || size > t.size - offset)
        status =
            pl_fail(err, PL_ERR_INVALID, "tensor cache: bytes %" PRIu64 " + %zu of %" PRIu64, offset, size, t.size);
    else
        status = each_slab(s, &t, offset, offset + size, append_slab, out, err);
    pl_stored_close(&t);
    return status;
}

/* --- The index of GGUF files --- */

/* "part SIZE MTIME_NS" for each file of g. False when one cannot be examined: then nothing is remembered. */
static bool describe_files(const pl_gguf *g, pl_buf *out)
{
    for (size_t i = 0; i < pl_gguf_n_parts(g); i++) {
        struct stat st;
        const char *path = pl_gguf_part_path(g, i);
        if (path[0] == 0 || stat(path, &st) != 0 ||
            !pl_buf_printf(out, "part %" PRIu64 " %" PRId64 "%09ld\n", (uint64_t)st.st_size, (int64_t)st.st_mtim.tv_sec,
                           (long)st.st_mtim.tv_nsec))
            return false;
    }
    return true;
}

static char *index_path(const pl_store *s, const pl_gguf *g)
{
    /* The same file under two names is two entries: cheap, and no name is looked into. */
    char *real = realpath(pl_gguf_path(g), NULL);
    pl_hash h = pl_hash_of((pl_bytes){(const uint8_t *)(real ? real : ""), real ? strlen(real) : 0});
    free(real); /* realpath's own memory */
    return path_of(s, "index", &h, "");
}

/* Whether the text begins with the expected lines and goes on with n hashes. */
static bool parse_index(pl_str text, pl_str expected, size_t n, pl_hash *out)
{
    const size_t line = 2 * PL_HASH_SIZE + 1;
    if (text.size != expected.size + n * line || memcmp(text.data, expected.data, expected.size) != 0) return false;
    const char *at = text.data + expected.size;
    for (size_t i = 0; i < n; i++, at += line)
        if (at[line - 1] != '\n' || !pl_hash_parse((pl_str){at, line - 1}, &out[i])) return false;
    return true;
}

pl_status pl_store_hash_gguf(pl_store *s, const pl_gguf *g, pl_hash *out,
                             void (*progress)(void *user, uint64_t done, uint64_t total), void *user, pl_error *err)
{
    size_t n = pl_gguf_n_tensors(g);
    pl_buf head = {0}, file = {0};
    char *path = NULL;
    pl_error ignored;
    bool known = false;
    pl_status status = PL_OK;
    if (s) {
        pl_buf_printf(&head, "paceline-index 1\n");
        if (describe_files(g, &head)) path = index_path(s, g);
        pl_buf_printf(&head, "tensors %zu\n", n);
        if (path && !head.failed && pl_file_read(&file, path, INDEX_MAX, &ignored) == PL_OK)
            known = parse_index(pl_buf_str(&file), pl_buf_str(&head), n, out);
    }
    if (!known) {
        crew c = {.g = g, .out = out, .n = n, .progress = progress, .user = user};
        status = crew_run(&c, hash_some, err);
        if (status == PL_OK && path) {
            for (size_t i = 0; i < n; i++) {
                char hex[2 * PL_HASH_SIZE + 1];
                pl_hash_hex(&out[i], hex);
                pl_buf_printf(&head, "%s\n", hex);
            }
            if (!head.failed && pl_file_write(path, pl_buf_bytes(&head), 0600, &ignored) != PL_OK)
                PL_LOG(PL_LOG_WARN, "hashes not remembered", "error=%s", PL_Q(ignored.text));
        }
    }
    pl_buf_fini(&head);
    pl_buf_fini(&file);
    pl_free(path);
    return status;
}

/* --- Verifying --- */

static bool hash_slab(void *user, pl_bytes part)
{
    pl_hasher_add(user, part);
    return true;
}

static pl_status verify_file(pl_store *s, const char *path, const pl_hash *hash, bool *good, uint64_t *size,
                             pl_error *err)
{
    pl_stored t = {0};
    uint64_t sum;
    *good = false;
    PL_TRY(pl_mapped_open(&t.map, path, err));
    *size = t.map.bytes.size;
    pl_status status = PL_OK;
    if (read_header(&t, hash, &sum) && layout_usable(s, &t) && chained_checksum((pl_bytes){t.data, t.size}) == sum) {
        pl_hasher h;
        pl_hasher_init(&h);
        status = each_slab(s, &t, 0, t.size, hash_slab, &h, err);
        pl_hash got = pl_hasher_done(&h);
        *good = status == PL_OK && pl_hash_eq(&got, hash);
    }
    pl_stored_close(&t);
    return status;
}

pl_status pl_store_verify(pl_store *s, pl_store_report *out, pl_error *err)
{
    *out = (pl_store_report){0};
    pl_buf path = {0};
    pl_buf_printf(&path, "%s/tensors", s->dir);
    const char *folder = pl_buf_cstr(&path);
    DIR *d = folder ? opendir(folder) : NULL;
    if (d == NULL) {
        pl_status failed = folder ? fail_errno(err, folder, "cannot be read") : no_memory(err);
        pl_buf_fini(&path);
        return failed;
    }
    pl_status status = PL_OK;
    const size_t folder_size = path.size;
    for (struct dirent *e; status == PL_OK && (e = readdir(d)) != NULL;) {
        if (e->d_name[0] == '.') continue;
        path.size = folder_size;
        pl_buf_printf(&path, "/%s", e->d_name);
        const char *file = pl_buf_cstr(&path);
        if (file == NULL) {
            status = no_memory(err);
            break;
        }
        pl_hash hash;
        if (!pl_hash_parse(pl_str_from(e->d_name), &hash)) {
            /* Set aside earlier, or left by a writer that died; one that is alive would fail to rename and tell its
             * caller. */
            unlink(file);
            continue;
        }
        bool good;
        uint64_t size = 0;
        status = verify_file(s, file, &hash, &good, &size, err);
        if (status == PL_ERR_NOT_FOUND) { /* removed meanwhile */
            status = PL_OK;
            continue;
        }
        if (status != PL_OK) break;
        out->n++;
        out->bytes += size;
        if (!good) {
            out->n_bad++;
            unlink(file);
        }
    }
    closedir(d);
    pl_buf_fini(&path);
    return status;
}
