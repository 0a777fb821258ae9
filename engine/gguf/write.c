#include "engine/gguf/write.h"

#include "engine/base/alloc.h"
#include "engine/base/arena.h"
#include "engine/base/file.h"
#include "engine/base/reader.h"
#include "engine/gguf/read_impl.h"

#define VERSION           3u
#define DEFAULT_ALIGNMENT 32u

typedef struct out_tensor {
    struct out_tensor *next;
    pl_str name;
    pl_type type;
    int32_t n_dims;
    int64_t ne[4];
    uint64_t size; /* bytes */
    const void *data;
} out_tensor;

struct pl_gguf_writer {
    pl_arena names;
    pl_buf keys; /* as they will stand in the file */
    uint64_t n_keys, n_tensors, alignment;
    out_tensor *first, **last;
    bool failed; /* no memory at some point */
};

pl_status pl_gguf_writer_new(pl_gguf_writer **out, pl_error *err)
{
    pl_gguf_writer *w = *out = pl_calloc(1, sizeof *w);
    if (!w) return pl_fail(err, PL_ERR_NO_MEMORY, "out of memory for a GGUF writer");
    pl_arena_init(&w->names, 0);
    w->alignment = DEFAULT_ALIGNMENT;
    w->last = &w->first;
    return PL_OK;
}

void pl_gguf_writer_free(pl_gguf_writer *w)
{
    if (!w) return;
    pl_arena_fini(&w->names);
    pl_buf_fini(&w->keys);
    pl_free(w);
}

static void put_string(pl_buf *b, pl_str s)
{
    pl_buf_add_u64(b, s.size);
    pl_buf_add_str(b, s);
}

static void put_f32(pl_buf *b, float v)
{
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    pl_buf_add_u32(b, u);
}

static void begin_key(pl_gguf_writer *w, pl_str key, pl_gguf_kind kind)
{
    put_string(&w->keys, key);
    pl_buf_add_u32(&w->keys, (uint32_t)kind);
    w->n_keys++;
}

static void begin_array(pl_gguf_writer *w, const char *key, pl_gguf_kind elem, size_t n)
{
    begin_key(w, pl_str_from(key), PL_GGUF_ARRAY);
    pl_buf_add_u32(&w->keys, (uint32_t)elem);
    pl_buf_add_u64(&w->keys, n);
}

static bool end_key(const pl_gguf_writer *w)
{
    return !w->keys.failed && !w->failed;
}

bool pl_gguf_add_u32(pl_gguf_writer *w, const char *key, uint32_t v)
{
    begin_key(w, pl_str_from(key), PL_GGUF_U32);
    pl_buf_add_u32(&w->keys, v);
    if (strcmp(key, "general.alignment") == 0 && v && (v & (v - 1)) == 0) w->alignment = v;
    return end_key(w);
}

bool pl_gguf_add_f32(pl_gguf_writer *w, const char *key, float v)
{
    begin_key(w, pl_str_from(key), PL_GGUF_F32);
    put_f32(&w->keys, v);
    return end_key(w);
}

bool pl_gguf_add_bool(pl_gguf_writer *w, const char *key, bool v)
{
    begin_key(w, pl_str_from(key), PL_GGUF_BOOL);
    pl_buf_add_u8(&w->keys, v);
    return end_key(w);
}

bool pl_gguf_add_str(pl_gguf_writer *w, const char *key, pl_str v)
{
    begin_key(w, pl_str_from(key), PL_GGUF_STRING);
    put_string(&w->keys, v);
    return end_key(w);
}

bool pl_gguf_add_strs(pl_gguf_writer *w, const char *key, const pl_str *v, size_t n)
{
    begin_array(w, key, PL_GGUF_STRING, n);
    for (size_t i = 0; i < n; i++) put_string(&w->keys, v[i]);
    return end_key(w);
}

bool pl_gguf_add_i32s(pl_gguf_writer *w, const char *key, const int32_t *v, size_t n)
{
    begin_array(w, key, PL_GGUF_I32, n);
    for (size_t i = 0; i < n; i++) pl_buf_add_u32(&w->keys, (uint32_t)v[i]);
    return end_key(w);
}

bool pl_gguf_add_f32s(pl_gguf_writer *w, const char *key, const float *v, size_t n)
{
    begin_array(w, key, PL_GGUF_F32, n);
    for (size_t i = 0; i < n; i++) put_f32(&w->keys, v[i]);
    return end_key(w);
}

/* n elements of a version 1 array from r, with the lengths inside them made 64 bits wide. Returns when r is bad. */
static void widen(pl_buf *b, pl_reader *r, pl_gguf_kind elem, uint64_t n)
{
    size_t size = pl_gguf_kind_size(elem);
    if (size) {
        const uint8_t *p = pl_read_bytes(r, (size_t)n * size);
        if (p) pl_buf_add(b, p, (size_t)n * size);
        return;
    }
    for (uint64_t i = 0; i < n && !r->bad; i++) {
        if (elem == PL_GGUF_STRING) {
            uint32_t len = pl_read_u32(r);
            const uint8_t *p = pl_read_bytes(r, len);
            if (p) put_string(b, (pl_str){(const char *)p, len});
        } else {
            uint32_t inner = pl_read_u32(r), count = pl_read_u32(r);
            pl_buf_add_u32(b, inner);
            pl_buf_add_u64(b, count);
            widen(b, r, (pl_gguf_kind)inner, count);
        }
    }
}

bool pl_gguf_add_value(pl_gguf_writer *w, pl_str key, const pl_gguf_value *v)
{
    begin_key(w, key, v->kind);
    if (v->kind == PL_GGUF_STRING) {
        put_string(&w->keys, (pl_str){(const char *)v->raw.data, v->raw.size});
    } else if (v->kind == PL_GGUF_ARRAY) {
        pl_buf_add_u32(&w->keys, (uint32_t)v->elem);
        pl_buf_add_u64(&w->keys, v->n);
        if (v->len32) {
            pl_reader r = pl_reader_of(v->raw);
            widen(&w->keys, &r, v->elem, v->n);
            PL_ASSERT(!r.bad); /* a value that was read has been checked */
        } else {
            pl_buf_add(&w->keys, v->raw.data, v->raw.size);
        }
    } else {
        pl_buf_add(&w->keys, v->raw.data, v->raw.size);
    }
    if (pl_str_is(key, "general.alignment") && v->kind == PL_GGUF_U32) {
        uint32_t a = pl_get_u32(v->raw.data);
        if (a && (a & (a - 1)) == 0) w->alignment = a;
    }
    return end_key(w);
}

static bool add_tensor(pl_gguf_writer *w, pl_str name, pl_type type, int n_dims, const int64_t *ne, const void *data)
{
    PL_ASSERT(n_dims >= 1 && n_dims <= 4);
    out_tensor *t = PL_ARENA_NEW(&w->names, out_tensor);
    char *copy = t ? pl_arena_strdup(&w->names, name) : NULL;
    if (!copy) {
        w->failed = true;
        return false;
    }
    t->name = (pl_str){copy, name.size};
    t->type = type;
    t->n_dims = n_dims;
    t->size = pl_type_row_size(type, ne[0]);
    for (int d = 0; d < n_dims; d++) {
        t->ne[d] = ne[d];
        if (d) t->size *= (uint64_t)ne[d];
    }
    t->data = data;
    *w->last = t;
    w->last = &t->next;
    w->n_tensors++;
    return end_key(w);
}

bool pl_gguf_add_tensor(pl_gguf_writer *w, const char *name, pl_type type, int n_dims, const int64_t *ne,
                        const void *data)
{
    return add_tensor(w, pl_str_from(name), type, n_dims, ne, data);
}

static uint64_t align_up(uint64_t v, uint64_t alignment)
{
    return (v + alignment - 1) & ~(alignment - 1);
}

/* Magic to the end of the tensor list. */
static pl_status put_header(const pl_gguf_writer *w, pl_buf *out, pl_error *err)
{
    size_t before = out->size;
    bool failed_before = out->failed;
    out->failed = false;
    pl_buf_add(out, "GGUF", 4);
    pl_buf_add_u32(out, VERSION);
    pl_buf_add_u64(out, w->n_tensors);
    pl_buf_add_u64(out, w->n_keys);
    pl_buf_add(out, w->keys.data, w->keys.size);
    uint64_t at = 0;
    for (out_tensor *t = w->first; t; t = t->next) {
        put_string(out, t->name);
        pl_buf_add_u32(out, (uint32_t)t->n_dims);
        for (int d = 0; d < t->n_dims; d++) pl_buf_add_u64(out, (uint64_t)t->ne[d]);
        pl_buf_add_u32(out, (uint32_t)t->type);
        pl_buf_add_u64(out, at);
        at = align_up(at + t->size, w->alignment);
    }
    if (w->failed || w->keys.failed || out->failed) {
        out->size = before;
        return pl_fail(err, PL_ERR_NO_MEMORY, "out of memory for a GGUF header");
    }
    out->failed = failed_before;
    return PL_OK;
}

/* Where the pieces of a file go: a buffer or a file. */
typedef struct sink {
    pl_buf *buf;
    pl_file_writer *file;
    uint64_t written; /* of this file */
} sink;

static pl_status sink_add(sink *s, pl_bytes data, pl_error *err)
{
    s->written += data.size;
    if (s->file) return pl_file_writer_add(s->file, data, err);
    return pl_buf_add(s->buf, data.data, data.size) ? PL_OK
                                                    : pl_fail(err, PL_ERR_NO_MEMORY, "out of memory for a GGUF file");
}

static pl_status sink_pad(sink *s, uint64_t alignment, pl_error *err)
{
    static const uint8_t zeros[4096];
    for (uint64_t left = align_up(s->written, alignment) - s->written; left;) {
        size_t n = left < sizeof zeros ? (size_t)left : sizeof zeros;
        PL_TRY(sink_add(s, (pl_bytes){zeros, n}, err));
        left -= n;
    }
    return PL_OK;
}

static pl_status write_to(const pl_gguf_writer *w, sink *s, pl_error *err)
{
    pl_buf header = {0};
    pl_status status = put_header(w, &header, err);
    if (status == PL_OK) status = sink_add(s, pl_buf_bytes(&header), err);
    pl_buf_fini(&header);
    if (status != PL_OK) return status;
    for (const out_tensor *t = w->first; t; t = t->next) {
        if (!t->data) return pl_fail(err, PL_ERR_INVALID, "tensor %.*s has no data to write", PL_STR_ARG(t->name));
        PL_TRY(sink_pad(s, w->alignment, err));
        PL_TRY(sink_add(s, (pl_bytes){t->data, (size_t)t->size}, err));
    }
    return PL_OK;
}

pl_status pl_gguf_write(const pl_gguf_writer *w, pl_buf *out, pl_error *err)
{
    size_t before = out->size;
    sink s = {.buf = out};
    pl_status status = write_to(w, &s, err);
    if (status != PL_OK) out->size = before;
    return status;
}

pl_status pl_gguf_write_file(const pl_gguf_writer *w, const char *path, pl_error *err)
{
    pl_file_writer file;
    PL_TRY(pl_file_writer_open(&file, path, 0644, err));
    sink s = {.file = &file};
    pl_status status = write_to(w, &s, err);
    if (status == PL_OK) status = pl_file_writer_commit(&file, err);
    pl_file_writer_abort(&file);
    return status;
}

pl_status pl_gguf_header_write(const pl_gguf *g, pl_buf *out, pl_error *err)
{
    pl_gguf_writer *w;
    PL_TRY(pl_gguf_writer_new(&w, err));
    for (size_t i = 0; i < g->n_keys; i++) {
        /* The result is one file with everything, so it must not call itself a part. */
        pl_str name = g->keys[i].name;
        if (name.size > 6 && memcmp(name.data, "split.", 6) == 0) continue;
        pl_gguf_add_value(w, name, &g->keys[i].value);
    }
    for (size_t i = 0; i < g->n_tensors; i++) {
        const pl_gguf_tensor *t = &g->tensors[i];
        add_tensor(w, t->name, t->type, t->n_dims, t->ne, NULL);
    }
    pl_status s = put_header(w, out, err);
    pl_gguf_writer_free(w);
    return s;
}
