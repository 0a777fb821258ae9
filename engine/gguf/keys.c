/* Typed reads of metadata. What is read here was checked when the file was opened. */
#include <inttypes.h>
#include <math.h>

#include "engine/gguf/read.h"
#include "engine/gguf/read_impl.h"

static const char *const kind_names[PL_GGUF_KIND_COUNT] = {
    "u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64",
};

const char *pl_gguf_kind_name(pl_gguf_kind kind)
{
    return (unsigned)kind < PL_GGUF_KIND_COUNT ? kind_names[kind] : "?";
}

size_t pl_gguf_n_keys(const pl_gguf *g)
{
    return g->n_keys;
}

pl_str pl_gguf_key_at(const pl_gguf *g, size_t i, pl_gguf_value *value)
{
    PL_ASSERT(i < g->n_keys);
    if (value) *value = g->keys[i].value;
    return g->keys[i].name;
}

bool pl_gguf_find(const pl_gguf *g, const char *key, pl_gguf_value *out)
{
    uint64_t i;
    if (!pl_map_get(&g->key_index, pl_str_from(key), &i)) return false;
    if (out) *out = g->keys[i].value;
    return true;
}

static bool is_integer(pl_gguf_kind kind)
{
    return pl_gguf_kind_size(kind) && kind != PL_GGUF_F32 && kind != PL_GGUF_F64 && kind != PL_GGUF_BOOL;
}

/* The integer at p. A u64 above INT64_MAX keeps its bits. */
static int64_t integer(pl_gguf_kind kind, const uint8_t *p)
{
    switch (kind) {
    case PL_GGUF_U8:
    case PL_GGUF_BOOL: return *p;
    case PL_GGUF_I8: return (int8_t)*p;
    case PL_GGUF_U16: return pl_get_u16(p);
    case PL_GGUF_I16: return (int16_t)pl_get_u16(p);
    case PL_GGUF_U32: return pl_get_u32(p);
    case PL_GGUF_I32: return (int32_t)pl_get_u32(p);
    default: return (int64_t)pl_get_u64(p);
    }
}

static double real(pl_gguf_kind kind, const uint8_t *p)
{
    if (kind == PL_GGUF_F32) {
        uint32_t u = pl_get_u32(p);
        float f;
        memcpy(&f, &u, sizeof f);
        return f;
    }
    if (kind == PL_GGUF_F64) {
        uint64_t u = pl_get_u64(p);
        double d;
        memcpy(&d, &u, sizeof d);
        return d;
    }
    return kind == PL_GGUF_U64 ? (double)pl_get_u64(p) : (double)integer(kind, p);
}

static pl_status wrong_kind(const char *key, const pl_gguf_value *v, const char *wanted, pl_error *err)
{
    return pl_fail(err, PL_ERR_FORMAT, "key %s is of kind %s, where %s is expected", key, pl_gguf_kind_name(v->kind),
                   wanted);
}

pl_status pl_gguf_get_u32(const pl_gguf *g, const char *key, uint32_t *out, bool *found, pl_error *err)
{
    pl_gguf_value v;
    *found = pl_gguf_find(g, key, &v);
    if (!*found) return PL_OK;
    if (!is_integer(v.kind)) return wrong_kind(key, &v, "an integer", err);
    int64_t i = integer(v.kind, v.raw.data);
    if (i < 0 || i > UINT32_MAX) {
        if (v.kind == PL_GGUF_U64)
            return pl_fail(err, PL_ERR_FORMAT, "key %s is %" PRIu64 ", which does not fit 32 bits", key, (uint64_t)i);
        return pl_fail(err, PL_ERR_FORMAT, "key %s is %" PRId64 ", not a number from 0 to 2^32 - 1", key, i);
    }
    *out = (uint32_t)i;
    return PL_OK;
}

pl_status pl_gguf_get_f32(const pl_gguf *g, const char *key, float *out, bool *found, pl_error *err)
{
    pl_gguf_value v;
    *found = pl_gguf_find(g, key, &v);
    if (!*found) return PL_OK;
    if (!is_integer(v.kind) && v.kind != PL_GGUF_F32 && v.kind != PL_GGUF_F64)
        return wrong_kind(key, &v, "a number", err);
    double d = real(v.kind, v.raw.data);
    if (isfinite(d) && !isfinite((float)d))
        return pl_fail(err, PL_ERR_FORMAT, "key %s is %g, too large for f32", key, d);
    *out = (float)d;
    return PL_OK;
}

pl_status pl_gguf_get_bool(const pl_gguf *g, const char *key, bool *out, bool *found, pl_error *err)
{
    pl_gguf_value v;
    *found = pl_gguf_find(g, key, &v);
    if (!*found) return PL_OK;
    if (v.kind != PL_GGUF_BOOL) return wrong_kind(key, &v, "a bool", err);
    *out = v.raw.data[0] != 0;
    return PL_OK;
}

pl_status pl_gguf_get_str(const pl_gguf *g, const char *key, pl_str *out, bool *found, pl_error *err)
{
    pl_gguf_value v;
    *found = pl_gguf_find(g, key, &v);
    if (!*found) return PL_OK;
    if (v.kind != PL_GGUF_STRING) return wrong_kind(key, &v, "a string", err);
    *out = (pl_str){(const char *)v.raw.data, v.raw.size};
    return PL_OK;
}

/* The bytes of element i of an array of numbers; a scalar counts as an array of one. */
static const uint8_t *element(const pl_gguf_value *v, uint64_t i, pl_gguf_kind *kind)
{
    *kind = v->kind == PL_GGUF_ARRAY ? v->elem : v->kind;
    size_t size = pl_gguf_kind_size(*kind);
    PL_ASSERT(size && i < v->raw.size / size);
    return v->raw.data + i * size;
}

int64_t pl_gguf_elem_i64(const pl_gguf_value *array, uint64_t i)
{
    pl_gguf_kind kind;
    const uint8_t *p = element(array, i, &kind);
    if (kind != PL_GGUF_F32 && kind != PL_GGUF_F64) return integer(kind, p);
    double d = real(kind, p);
    /* Outside of this range the conversion has no defined result. */
    return d >= -0x1p63 && d < 0x1p63 ? (int64_t)d : d > 0 ? INT64_MAX : INT64_MIN;
}

double pl_gguf_elem_f64(const pl_gguf_value *array, uint64_t i)
{
    pl_gguf_kind kind;
    const uint8_t *p = element(array, i, &kind);
    return real(kind, p);
}

bool pl_gguf_next_str(const pl_gguf_value *array, size_t *at, pl_str *out)
{
    if (array->kind != PL_GGUF_ARRAY || array->elem != PL_GGUF_STRING || *at >= array->raw.size) return false;
    const uint8_t *p = array->raw.data + *at;
    size_t head = array->len32 ? 4 : 8;
    size_t n = array->len32 ? pl_get_u32(p) : (size_t)pl_get_u64(p);
    *out = (pl_str){(const char *)p + head, n};
    *at += head + n;
    return true;
}
