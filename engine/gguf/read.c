/* The parser walks a file once, from front to back, through a pl_reader. No count from the file is trusted: before
 * memory is taken for n things, n is compared with what the rest of the file could hold at their smallest size, so
 * memory stays within a small multiple of the file's size. Offsets are checked by subtraction, products by
 * __builtin_mul_overflow.
 *
 * Version 1 has 32 bits where the later ones have 64: counts, lengths, dimensions. A big-endian file has the same
 * magic, and shows itself by a version whose upper half is set. */
#include "engine/gguf/read.h"

#include <inttypes.h>
#include <stdlib.h>

#include "engine/base/alloc.h"
#include "engine/base/reader.h"
#include "engine/gguf/read_impl.h"

#define KEY_SIZE_MAX      65535u /* the format's bound */
#define NAME_SIZE_MAX     64u    /* likewise, for tensors */
#define DEPTH_MAX         4      /* arrays in arrays: no known file has more than two, and our recursion stays small */
#define DEFAULT_ALIGNMENT 32u

typedef struct parser {
    pl_reader r;
    bool len32;
    pl_error *err;
} parser;

/* For error texts: no more than this of a name that may be 64 KiB long. */
static pl_str shortened(pl_str s)
{
    return (pl_str){s.data, s.size < 128 ? s.size : 128};
}

static size_t offset(const parser *p)
{
    return pl_reader_offset(&p->r);
}

/* A count, length or dimension. */
static uint64_t read_length(parser *p)
{
    return p->len32 ? pl_read_u32(&p->r) : pl_read_u64(&p->r);
}
static size_t length_size(const parser *p)
{
    return p->len32 ? 4 : 8;
}

static pl_status ends_inside(const parser *p, const char *what)
{
    return pl_fail(p->err, PL_ERR_FORMAT, "offset %zu: the file ends inside %s", offset(p), what);
}

/* A string: its text is not checked. */
static pl_status read_string(parser *p, pl_str *out, const char *what)
{
    size_t at = offset(p);
    uint64_t n = read_length(p);
    if (p->r.bad) return ends_inside(p, what);
    if (n > pl_reader_left(&p->r))
        return pl_fail(p->err, PL_ERR_FORMAT,
                       "offset %zu: %s has a length of %" PRIu64 ", but the file has only %zu bytes more", at, what, n,
                       pl_reader_left(&p->r));
    *out = (pl_str){(const char *)pl_read_bytes(&p->r, (size_t)n), (size_t)n};
    return PL_OK;
}

/* The name of a key or tensor: UTF-8, not empty, no zero byte (which would hide the rest of it from a C program). */
static pl_status read_name(parser *p, pl_str *out, size_t max, const char *what)
{
    size_t at = offset(p);
    PL_TRY(read_string(p, out, what));
    if (out->size == 0) return pl_fail(p->err, PL_ERR_FORMAT, "offset %zu: %s is empty", at, what);
    if (out->size > max)
        return pl_fail(p->err, PL_ERR_FORMAT, "offset %zu: %s has %zu bytes, the format allows %zu", at, what,
                       out->size, max);
    size_t good = pl_utf8_valid_prefix(*out);
    if (good != out->size)
        return pl_fail(p->err, PL_ERR_FORMAT, "offset %zu: %s is not UTF-8 at its byte %zu", at, what, good);
    if (memchr(out->data, 0, out->size))
        return pl_fail(p->err, PL_ERR_FORMAT, "offset %zu: %s contains a zero byte", at, what);
    return PL_OK;
}

size_t pl_gguf_kind_size(pl_gguf_kind kind)
{
    switch (kind) {
    case PL_GGUF_U8:
    case PL_GGUF_I8:
    case PL_GGUF_BOOL: return 1;
    case PL_GGUF_U16:
    case PL_GGUF_I16: return 2;
    case PL_GGUF_U32:
    case PL_GGUF_I32:
    case PL_GGUF_F32: return 4;
    case PL_GGUF_U64:
    case PL_GGUF_I64:
    case PL_GGUF_F64: return 8;
    default: return 0;
    }
}

static pl_status check_bools(const parser *p, const uint8_t *b, size_t n, size_t at)
{
    for (size_t i = 0; i < n; i++) {
        if (b[i] > 1) return pl_fail(p->err, PL_ERR_FORMAT, "offset %zu: a bool is %d, not 0 or 1", at + i, b[i]);
    }
    return PL_OK;
}

static pl_status read_kind(parser *p, pl_gguf_kind *out)
{
    size_t at = offset(p);
    uint32_t kind = pl_read_u32(&p->r);
    if (p->r.bad) return ends_inside(p, "the kind of a value");
    if (kind >= PL_GGUF_KIND_COUNT)
        return pl_fail(p->err, PL_ERR_FORMAT, "offset %zu: there is no value kind %" PRIu32, at, kind);
    *out = (pl_gguf_kind)kind;
    return PL_OK;
}

static pl_status read_array(parser *p, pl_gguf_value *v, int depth)
{
    size_t at = offset(p);
    PL_TRY(read_kind(p, &v->elem));
    v->n = read_length(p);
    if (p->r.bad) return ends_inside(p, "the head of an array");
    size_t size = pl_gguf_kind_size(v->elem);
    /* What an element takes at least: an empty string or array still has its own head. */
    size_t least = size ? size : v->elem == PL_GGUF_STRING ? length_size(p) : 4 + length_size(p);
    if (v->n > pl_reader_left(&p->r) / least)
        return pl_fail(p->err, PL_ERR_FORMAT,
                       "offset %zu: an array claims %" PRIu64 " elements, but the file has only %zu bytes more", at,
                       v->n, pl_reader_left(&p->r));
    const uint8_t *start = p->r.at;
    if (size) {
        size_t data_at = offset(p);
        pl_read_bytes(&p->r, (size_t)v->n * size);
        if (v->elem == PL_GGUF_BOOL) PL_TRY(check_bools(p, start, (size_t)v->n, data_at));
    } else if (v->elem == PL_GGUF_STRING) {
        pl_str s;
        for (uint64_t i = 0; i < v->n; i++) PL_TRY(read_string(p, &s, "a string in an array"));
    } else {
        if (depth == DEPTH_MAX)
            return pl_fail(p->err, PL_ERR_FORMAT, "offset %zu: arrays are nested deeper than %d levels", at, DEPTH_MAX);
        pl_gguf_value inner;
        for (uint64_t i = 0; i < v->n; i++) PL_TRY(read_array(p, &inner, depth + 1));
    }
    v->raw = (pl_bytes){start, (size_t)(p->r.at - start)};
    return PL_OK;
}

static pl_status read_value(parser *p, pl_gguf_value *v)
{
    *v = (pl_gguf_value){.len32 = p->len32};
    PL_TRY(read_kind(p, &v->kind));
    if (v->kind == PL_GGUF_ARRAY) return read_array(p, v, 1);
    if (v->kind == PL_GGUF_STRING) {
        pl_str s;
        PL_TRY(read_string(p, &s, "a string value"));
        v->raw = (pl_bytes){(const uint8_t *)s.data, s.size};
        return PL_OK;
    }
    size_t at = offset(p), size = pl_gguf_kind_size(v->kind);
    const uint8_t *b = pl_read_bytes(&p->r, size);
    if (!b) return ends_inside(p, "a value");
    v->raw = (pl_bytes){b, size};
    return v->kind == PL_GGUF_BOOL ? check_bools(p, b, 1, at) : PL_OK;
}

static pl_status no_memory(pl_error *err)
{
    return pl_fail(err, PL_ERR_NO_MEMORY, "out of memory for the file's header");
}

static pl_status read_keys(pl_gguf *g, parser *p, uint64_t n)
{
    if (!(g->keys = pl_calloc((size_t)n, sizeof *g->keys))) return no_memory(p->err);
    for (uint64_t i = 0; i < n; i++) {
        gguf_key *k = &g->keys[i];
        size_t at = offset(p);
        PL_TRY(read_name(p, &k->name, KEY_SIZE_MAX, "the name of a key"));
        if (pl_map_get(&g->key_index, k->name, NULL))
            return pl_fail(p->err, PL_ERR_FORMAT, "offset %zu: key %.*s is there twice", at,
                           PL_STR_ARG(shortened(k->name)));
        pl_status s = read_value(p, &k->value);
        if (s != PL_OK) return pl_note(p->err, s, "key %.*s", PL_STR_ARG(shortened(k->name)));
        if (!pl_map_set(&g->key_index, k->name, i)) return no_memory(p->err);
        g->n_keys++;
    }
    return PL_OK;
}

static pl_status read_alignment(pl_gguf *g, pl_error *err)
{
    uint32_t alignment = DEFAULT_ALIGNMENT;
    bool found;
    PL_TRY(pl_gguf_get_u32(g, "general.alignment", &alignment, &found, err));
    if (alignment == 0 || (alignment & (alignment - 1)))
        return pl_fail(err, PL_ERR_FORMAT, "key general.alignment is %" PRIu32 ", not a power of two", alignment);
    g->alignment = alignment;
    return PL_OK;
}

/* The shape, type and size of t; what it says itself, before anything is known of the data section. */
static pl_status read_tensor_body(pl_gguf *g, parser *p, pl_gguf_tensor *t)
{
    size_t at = offset(p);
    uint32_t n_dims = pl_read_u32(&p->r);
    if (p->r.bad) return ends_inside(p, "a tensor's description");
    if (n_dims < 1 || n_dims > 4)
        return pl_fail(p->err, PL_ERR_FORMAT, "offset %zu: it has %" PRIu32 " dimensions, 1 to 4 are possible", at,
                       n_dims);
    t->n_dims = (int32_t)n_dims;
    int64_t elements = 1;
    for (uint32_t d = 0; d < 4; d++) {
        t->ne[d] = 1;
        if (d >= n_dims) continue;
        at = offset(p);
        uint64_t ne = read_length(p);
        if (p->r.bad) return ends_inside(p, "a tensor's dimensions");
        if (ne < 1 || ne > INT64_MAX)
            return pl_fail(p->err, PL_ERR_FORMAT, "offset %zu: dimension %" PRIu32 " is %" PRIu64, at, d, ne);
        t->ne[d] = (int64_t)ne;
        if (__builtin_mul_overflow(elements, t->ne[d], &elements))
            return pl_fail(p->err, PL_ERR_FORMAT, "offset %zu: the dimensions' product does not fit 63 bits", at);
    }
    at = offset(p);
    uint32_t type = pl_read_u32(&p->r);
    uint64_t where = pl_read_u64(&p->r);
    if (p->r.bad) return ends_inside(p, "a tensor's description");
    const pl_type_info *info = pl_type_get(type);
    if (!info)
        return pl_fail(p->err, PL_ERR_UNSUPPORTED, "offset %zu: this build does not know tensor type %" PRIu32, at,
                       type);
    t->type = (pl_type)type;
    if (t->ne[0] % info->block)
        return pl_fail(p->err, PL_ERR_FORMAT,
                       "offset %zu: its rows have %" PRId64 " elements, not a multiple of %s's block of %" PRIu32, at,
                       t->ne[0], info->name, info->block);
    if (__builtin_mul_overflow((uint64_t)(elements / info->block), info->bytes, &t->size) || t->size > INT64_MAX)
        return pl_fail(p->err, PL_ERR_FORMAT, "offset %zu: its size does not fit 63 bits", at);
    if (where % g->alignment)
        return pl_fail(p->err, PL_ERR_FORMAT,
                       "offset %zu: its data begins at %" PRIu64 ", which the alignment %" PRIu64 " does not divide",
                       at + 4, where, g->alignment);
    t->offset = where; /* made absolute when the header's end is known */
    return PL_OK;
}

static pl_status read_tensors(pl_gguf *g, parser *p, uint64_t n, int32_t part)
{
    if (!(g->tensors = pl_calloc((size_t)n, sizeof *g->tensors))) return no_memory(p->err);
    for (uint64_t i = 0; i < n; i++) {
        pl_gguf_tensor *t = &g->tensors[i];
        size_t at = offset(p);
        PL_TRY(read_name(p, &t->name, NAME_SIZE_MAX, "the name of a tensor"));
        if (pl_map_get(&g->tensor_index, t->name, NULL))
            return pl_fail(p->err, PL_ERR_FORMAT, "offset %zu: tensor %.*s is there twice", at, PL_STR_ARG(t->name));
        pl_status s = read_tensor_body(g, p, t);
        if (s != PL_OK) return pl_note(p->err, s, "tensor %.*s", PL_STR_ARG(t->name));
        t->part = part;
        if (!pl_map_set(&g->tensor_index, t->name, i)) return no_memory(p->err);
        g->n_tensors++;
    }
    return PL_OK;
}

static int by_offset(const void *a, const void *b)
{
    const pl_gguf_tensor *x = *(const pl_gguf_tensor *const *)a, *y = *(const pl_gguf_tensor *const *)b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Offsets are still those of the file, from the beginning of the data section. */
static pl_status check_overlaps(const pl_gguf *g, pl_error *err)
{
    if (g->n_tensors < 2) return PL_OK;
    const pl_gguf_tensor **sorted =
        pl_alloc(g->n_tensors * sizeof(const pl_gguf_tensor *)); /* no overflow: tensors are larger */
    if (!sorted) return no_memory(err);
    for (size_t i = 0; i < g->n_tensors; i++) sorted[i] = &g->tensors[i];
    qsort(sorted, g->n_tensors, sizeof *sorted, by_offset);
    pl_status s = PL_OK;
    for (size_t i = 1; i < g->n_tensors && s == PL_OK; i++) {
        const pl_gguf_tensor *before = sorted[i - 1], *t = sorted[i];
        if (t->offset - before->offset >= before->size) continue;
        s = pl_fail(err, PL_ERR_FORMAT,
                    "tensor %.*s: its data at offset %" PRIu64 " overlaps that of tensor %.*s (%" PRIu64
                    " bytes at offset %" PRIu64 " of the data section)",
                    PL_STR_ARG(t->name), t->offset, PL_STR_ARG(before->name), before->size, before->offset);
    }
    pl_free(sorted);
    return s;
}

/* Makes offsets absolute, and sets data where the file holds it. */
static pl_status place_tensors(pl_gguf *g, pl_bytes bytes, bool header_only, pl_error *err)
{
    uint64_t start = ((uint64_t)g->header_size + g->alignment - 1) & ~(g->alignment - 1);
    uint64_t data_size = start < bytes.size ? bytes.size - start : 0;
    for (size_t i = 0; i < g->n_tensors; i++) {
        pl_gguf_tensor *t = &g->tensors[i];
        /* Subtract instead of adding: offset + size may wrap around. */
        if (!header_only && (t->offset > data_size || t->size > data_size - t->offset))
            return pl_fail(err, PL_ERR_FORMAT,
                           "tensor %.*s: %" PRIu64 " bytes at offset %" PRIu64 " leave the data section (%" PRIu64
                           " bytes from offset %" PRIu64 ")",
                           PL_STR_ARG(t->name), t->size, t->offset, data_size, start);
        if (__builtin_add_overflow(t->offset, start, &t->offset) || t->offset > INT64_MAX - t->size)
            return pl_fail(err, PL_ERR_FORMAT, "tensor %.*s: the end of its data does not fit 63 bits",
                           PL_STR_ARG(t->name));
        if (!header_only) t->data = bytes.data + t->offset;
    }
    return PL_OK;
}

static pl_status parse_into(pl_gguf *g, pl_bytes bytes, bool header_only, int32_t part, pl_error *err)
{
    if (bytes.size < 4)
        return pl_fail(err, PL_ERR_FORMAT, "offset 0: %zu bytes are too few for a GGUF file", bytes.size);
    parser p = {.r = pl_reader_of(bytes), .err = err};
    const uint8_t *magic = pl_read_bytes(&p.r, 4);
    if (memcmp(magic, "GGUF", 4) != 0)
        return pl_fail(err, PL_ERR_FORMAT, "offset 0: not a GGUF file: it begins with the bytes %02x %02x %02x %02x",
                       magic[0], magic[1], magic[2], magic[3]);
    g->version = pl_read_u32(&p.r);
    if (p.r.bad) return ends_inside(&p, "the version");
    if (g->version && (g->version & 0xFFFF) == 0)
        return pl_fail(err, PL_ERR_UNSUPPORTED,
                       "offset 4: this is a big-endian GGUF file, and only little-endian ones can be read");
    if (g->version < 1 || g->version > 3)
        return pl_fail(err, PL_ERR_UNSUPPORTED, "offset 4: GGUF version %" PRIu32 " is not known: 1 to 3 can be read",
                       g->version);
    p.len32 = g->version == 1;

    uint64_t n_tensors = read_length(&p), n_keys = read_length(&p);
    if (p.r.bad) return ends_inside(&p, "the header");
    /* The least that each takes: a name of one byte with its length, the kind and one byte of value; or the number of
     * dimensions, one dimension, the type and the offset. */
    size_t key_least = length_size(&p) + 1 + 4 + 1, tensor_least = length_size(&p) + 1 + 4 + length_size(&p) + 4 + 8;
    size_t left = pl_reader_left(&p.r);
    if (n_keys > left / key_least)
        return pl_fail(err, PL_ERR_FORMAT, "offset %zu: %" PRIu64 " keys do not fit into a file of %zu bytes",
                       8 + length_size(&p), n_keys, bytes.size);
    if (n_tensors > (left - (size_t)n_keys * key_least) / tensor_least)
        return pl_fail(err, PL_ERR_FORMAT, "offset 8: %" PRIu64 " tensors do not fit into a file of %zu bytes",
                       n_tensors, bytes.size);

    PL_TRY(read_keys(g, &p, n_keys));
    PL_TRY(read_alignment(g, err));
    PL_TRY(read_tensors(g, &p, n_tensors, part));
    g->header_size = offset(&p);
    PL_TRY(check_overlaps(g, err));
    return place_tensors(g, bytes, header_only, err);
}

pl_status pl_gguf_parse(pl_gguf **out, pl_bytes bytes, bool header_only, int32_t part, pl_error *err)
{
    *out = NULL;
    pl_gguf *g = pl_calloc(1, sizeof *g);
    if (!g) return no_memory(err);
    pl_status s = PL_OK;
    if (!(g->path = pl_strdup("")) || !(g->parts = pl_calloc(1, sizeof *g->parts))) s = no_memory(err);
    if (s == PL_OK) {
        g->parts[0].bytes = bytes;
        g->n_parts = 1;
        s = parse_into(g, bytes, header_only, part, err);
    }
    if (s != PL_OK) {
        pl_gguf_close(g);
        return s;
    }
    *out = g;
    return PL_OK;
}

pl_status pl_gguf_open_part(pl_gguf **out, const char *path, int32_t part, pl_error *err)
{
    *out = NULL;
    pl_mapped map = {0};
    PL_TRY(pl_mapped_open(&map, path, err)); /* its errors name the path */
    pl_status s = pl_gguf_parse(out, map.bytes, false, part, err);
    if (s != PL_OK) {
        pl_mapped_close(&map);
        return pl_note(err, s, "%s", path);
    }
    (*out)->parts[0].map = map;
    if (((*out)->parts[0].path = pl_strdup(path)) == NULL) {
        pl_gguf_close(*out);
        *out = NULL;
        return pl_fail(err, PL_ERR_NO_MEMORY, "%s: out of memory", path);
    }
    return PL_OK;
}

pl_status pl_gguf_open(pl_gguf **out, const char *path, pl_error *err)
{
    *out = NULL;
    pl_gguf *g = NULL;
    PL_TRY(pl_gguf_open_part(&g, path, 0, err));
    pl_status s;
    char *copy = pl_strdup(path);
    if (!copy) {
        s = pl_fail(err, PL_ERR_NO_MEMORY, "%s: out of memory", path);
        goto fail;
    }
    pl_free(g->path);
    g->path = copy;
    if ((s = pl_gguf_open_rest(g, path, err)) != PL_OK) goto fail;
    *out = g;
    return PL_OK;
fail:
    pl_gguf_close(g);
    return s;
}

pl_status pl_gguf_open_bytes(pl_gguf **out, pl_bytes bytes, bool header_only, pl_error *err)
{
    PL_TRY(pl_gguf_parse(out, bytes, header_only, 0, err));
    uint32_t count = 0;
    pl_status s = pl_gguf_split_count(*out, &count, err);
    if (s == PL_OK && count > 1 && !header_only)
        s = pl_fail(err, PL_ERR_UNSUPPORTED, "one of %" PRIu32 " parts of a split file cannot be opened from memory",
                    count);
    if (s != PL_OK) {
        pl_gguf_close(*out);
        *out = NULL;
    }
    return s;
}

void pl_gguf_close(pl_gguf *g)
{
    if (!g) return;
    for (size_t i = 0; i < g->n_parts; i++) {
        pl_mapped_close(&g->parts[i].map);
        pl_free(g->parts[i].path);
    }
    for (size_t i = 0; i < g->n_texts; i++) pl_free(g->texts[i]);
    pl_free(g->texts);
    pl_map_fini(&g->key_index);
    pl_map_fini(&g->tensor_index);
    pl_free(g->parts);
    pl_free(g->keys);
    pl_free(g->tensors);
    pl_free(g->path);
    pl_free(g);
}

uint32_t pl_gguf_version(const pl_gguf *g)
{
    return g->version;
}
uint64_t pl_gguf_alignment(const pl_gguf *g)
{
    return g->alignment;
}
const char *pl_gguf_path(const pl_gguf *g)
{
    return g->path;
}
size_t pl_gguf_n_parts(const pl_gguf *g)
{
    return g->n_parts;
}
const char *pl_gguf_part_path(const pl_gguf *g, size_t i)
{
    PL_ASSERT(i < g->n_parts);
    return g->parts[i].path ? g->parts[i].path : "";
}
pl_bytes pl_gguf_header(const pl_gguf *g)
{
    return (pl_bytes){g->parts[0].bytes.data, g->header_size};
}

uint64_t pl_gguf_file_size(const pl_gguf *g)
{
    uint64_t size = 0;
    for (size_t i = 0; i < g->n_parts; i++) size += g->parts[i].bytes.size;
    return size;
}

size_t pl_gguf_n_tensors(const pl_gguf *g)
{
    return g->n_tensors;
}

const pl_gguf_tensor *pl_gguf_tensor_at(const pl_gguf *g, size_t i)
{
    PL_ASSERT(i < g->n_tensors);
    return &g->tensors[i];
}

const pl_gguf_tensor *pl_gguf_find_tensor(const pl_gguf *g, pl_str name)
{
    uint64_t i;
    return pl_map_get(&g->tensor_index, name, &i) ? &g->tensors[i] : NULL;
}
