#include "engine/gguf/dump.h"

#include <inttypes.h>
#include <stdio.h>

#include "engine/base/json.h"
#include "engine/base/sys.h"
#include "engine/gguf/read_impl.h"

/* An array of arrays is shown by its size only: nothing known has one. */

static bool is_real(pl_gguf_kind kind)
{
    return kind == PL_GGUF_F32 || kind == PL_GGUF_F64;
}

static pl_json *number_json(const pl_gguf_value *v, pl_gguf_kind kind, uint64_t i)
{
    if (kind == PL_GGUF_BOOL) return pl_json_bool(pl_gguf_elem_i64(v, i) != 0);
    if (is_real(kind)) return pl_json_real(pl_gguf_elem_f64(v, i));
    int64_t n = pl_gguf_elem_i64(v, i);
    /* JSON here has 63 bits; a larger u64 keeps its size and loses its last digits. */
    return kind == PL_GGUF_U64 && n < 0 ? pl_json_real(pl_gguf_elem_f64(v, i)) : pl_json_int(n);
}

static pl_json *text_json(pl_str s, uint64_t max)
{
    if (s.size > max) s.size = (size_t)max;
    return pl_json_string(s);
}

static pl_json *array_json(const pl_gguf_value *v, const pl_gguf_dump_options *o)
{
    pl_json *list = pl_json_array();
    uint64_t shown = v->n < o->array_max ? v->n : o->array_max;
    size_t at = 0;
    for (uint64_t i = 0; i < shown && list && v->elem != PL_GGUF_ARRAY; i++) {
        pl_str s;
        pl_json *e = v->elem != PL_GGUF_STRING      ? number_json(v, v->elem, i)
                     : pl_gguf_next_str(v, &at, &s) ? text_json(s, o->text_max)
                                                    : NULL;
        if (pl_json_append(list, e)) continue;
        pl_json_free(list);
        list = NULL;
    }
    return list;
}

static pl_json *key_json(const pl_gguf *g, size_t i, const pl_gguf_dump_options *o)
{
    pl_gguf_value v;
    pl_str name = pl_gguf_key_at(g, i, &v);
    pl_json *k = pl_json_object();
    bool ok = pl_json_set(k, "key", pl_json_string(name)) &&
              pl_json_set(k, "kind", pl_json_string(pl_str_from(pl_gguf_kind_name(v.kind))));
    if (v.kind == PL_GGUF_ARRAY) {
        ok = ok && pl_json_set(k, "element", pl_json_string(pl_str_from(pl_gguf_kind_name(v.elem)))) &&
             pl_json_set(k, "n", pl_json_int((int64_t)v.n)) && pl_json_set(k, "value", array_json(&v, o));
    } else if (v.kind == PL_GGUF_STRING) {
        ok = ok && pl_json_set(k, "value", text_json((pl_str){(const char *)v.raw.data, v.raw.size}, o->text_max));
    } else {
        ok = ok && pl_json_set(k, "value", number_json(&v, v.kind, 0));
    }
    if (ok) return k;
    pl_json_free(k);
    return NULL;
}

static pl_json *tensor_json(const pl_gguf_tensor *t)
{
    pl_json *j = pl_json_object(), *ne = pl_json_array();
    bool ok = ne != NULL;
    for (int d = 0; d < t->n_dims && ok; d++) ok = pl_json_append(ne, pl_json_int(t->ne[d]));
    /* set takes ne, also on failure; before that it is ours. */
    if (!ok) {
        pl_json_free(ne);
        ne = NULL;
    }
    ok = pl_json_set(j, "ne", ne) && ok;
    ok = ok && pl_json_set(j, "name", pl_json_string(t->name)) &&
         pl_json_set(j, "type", pl_json_string(pl_str_from(pl_type_name(t->type)))) &&
         pl_json_set(j, "bytes", pl_json_int((int64_t)t->size)) && pl_json_set(j, "part", pl_json_int(t->part)) &&
         pl_json_set(j, "offset", pl_json_int((int64_t)t->offset));
    if (ok) return j;
    pl_json_free(j);
    return NULL;
}

static pl_status dump_json(const pl_gguf *g, const pl_gguf_dump_options *o, pl_buf *out, pl_error *err)
{
    pl_json *root = pl_json_object(), *keys = pl_json_array(), *tensors = pl_json_array();
    bool ok = root && keys && tensors;
    for (size_t i = 0; i < g->n_keys && ok; i++) ok = pl_json_append(keys, key_json(g, i, o));
    for (size_t i = 0; i < g->n_tensors && ok; i++) ok = pl_json_append(tensors, tensor_json(&g->tensors[i]));
    ok = ok && pl_json_set(root, "path", pl_json_string(pl_str_from(g->path))) &&
         pl_json_set(root, "version", pl_json_int(g->version)) &&
         pl_json_set(root, "alignment", pl_json_int((int64_t)g->alignment)) &&
         pl_json_set(root, "parts", pl_json_int((int64_t)g->n_parts)) &&
         pl_json_set(root, "bytes", pl_json_int((int64_t)pl_gguf_file_size(g))) &&
         pl_json_set(root, "metadata", pl_json_ref(keys)) && pl_json_set(root, "tensors", pl_json_ref(tensors));
    pl_status s = ok ? pl_json_write(root, 2, out, err) : pl_fail(err, PL_ERR_NO_MEMORY, "out of memory for the dump");
    if (s == PL_OK) pl_buf_add_u8(out, '\n');
    pl_json_free(root);
    pl_json_free(keys);
    pl_json_free(tensors);
    return s;
}

/* s in quotes, with control bytes and broken UTF-8 escaped, at most max bytes of it. */
static void put_text(pl_buf *out, pl_str s, uint64_t max)
{
    bool cut = s.size > max;
    if (cut) s.size = (size_t)max;
    pl_buf_add_u8(out, '"');
    size_t valid_end = 0; /* s is known to be UTF-8 from i up to here: asked once per break, so the time stays linear */
    for (size_t i = 0; i < s.size;) {
        size_t good = 0;
        pl_str rest = {s.data + i, s.size - i};
        if (i >= valid_end) valid_end = i + pl_utf8_valid_prefix(rest);
        while (i + good < valid_end) {
            unsigned char c = (unsigned char)rest.data[good];
            /* U+0080 to U+009F are controls too: C2 80 to C2 9F. */
            if (c < 0x20 || c == 0x7F || c == '"' || c == '\\' ||
                (c == 0xC2 && (unsigned char)rest.data[good + 1] < 0xA0))
                break;
            good++;
        }
        pl_buf_add(out, rest.data, good);
        i += good;
        if (i == s.size) break;
        unsigned char c = (unsigned char)s.data[i++];
        if (c == '\n')
            pl_buf_add(out, "\\n", 2);
        else if (c == '\t')
            pl_buf_add(out, "\\t", 2);
        else if (c == '"' || c == '\\')
            pl_buf_printf(out, "\\%c", c);
        else
            pl_buf_printf(out, "\\x%02x", c);
        /* A control of two bytes was cut in half: what follows is no beginning of a character. */
        if (c == 0xC2 && i < valid_end) pl_buf_printf(out, "\\x%02x", (unsigned char)s.data[i++]);
    }
    pl_buf_add_u8(out, '"');
    if (cut) pl_buf_add(out, "...", 3);
}

static void put_number(pl_buf *out, const pl_gguf_value *v, pl_gguf_kind kind, uint64_t i)
{
    if (kind == PL_GGUF_BOOL)
        pl_buf_printf(out, "%s", pl_gguf_elem_i64(v, i) ? "true" : "false");
    else if (is_real(kind))
        pl_buf_printf(out, "%.9g", pl_gguf_elem_f64(v, i));
    else if (kind == PL_GGUF_U64)
        pl_buf_printf(out, "%" PRIu64, (uint64_t)pl_gguf_elem_i64(v, i));
    else
        pl_buf_printf(out, "%" PRId64, pl_gguf_elem_i64(v, i));
}

static void put_value(pl_buf *out, const pl_gguf_value *v, const pl_gguf_dump_options *o)
{
    if (v->kind == PL_GGUF_STRING) {
        put_text(out, (pl_str){(const char *)v->raw.data, v->raw.size}, o->text_max);
    } else if (v->kind != PL_GGUF_ARRAY) {
        put_number(out, v, v->kind, 0);
    } else {
        pl_buf_printf(out, "%s[%" PRIu64 "] [", pl_gguf_kind_name(v->elem), v->n);
        size_t at = 0;
        uint64_t shown = v->elem == PL_GGUF_ARRAY ? 0 : v->n < o->array_max ? v->n : o->array_max;
        for (uint64_t i = 0; i < shown; i++) {
            pl_str s;
            if (i) pl_buf_add(out, ", ", 2);
            if (v->elem != PL_GGUF_STRING)
                put_number(out, v, v->elem, i);
            else if (pl_gguf_next_str(v, &at, &s))
                put_text(out, s, o->text_max);
        }
        if (shown < v->n) pl_buf_printf(out, "%s...", shown ? ", " : "");
        pl_buf_add_u8(out, ']');
    }
}

static pl_status dump_text(const pl_gguf *g, const pl_gguf_dump_options *o, pl_buf *out, pl_error *err)
{
    size_t before = out->size;
    uint64_t total = 0;
    for (size_t i = 0; i < g->n_tensors; i++) total += g->tensors[i].size;
    pl_buf_printf(out, "GGUF version %" PRIu32 ", %zu part%s, %s, alignment %" PRIu64 "\n\n%zu keys\n", g->version,
                  g->n_parts, g->n_parts == 1 ? "" : "s", pl_format_size(pl_gguf_file_size(g)), g->alignment,
                  g->n_keys);
    for (size_t i = 0; i < g->n_keys; i++) {
        pl_gguf_value v;
        pl_str name = pl_gguf_key_at(g, i, &v);
        /* A key's name is UTF-8 but may hold controls. */
        pl_buf quoted = {0};
        put_text(&quoted, name, UINT64_MAX);
        if (quoted.failed)
            out->failed = true;
        else
            pl_buf_printf(out, "  %-44.*s %-6s ", (int)quoted.size - 2, (const char *)quoted.data + 1,
                          pl_gguf_kind_name(v.kind));
        pl_buf_fini(&quoted);
        put_value(out, &v, o);
        pl_buf_add_u8(out, '\n');
    }
    pl_buf_printf(out, "\n%zu tensors, %s\n", g->n_tensors, pl_format_size(total));
    for (size_t i = 0; i < g->n_tensors; i++) {
        const pl_gguf_tensor *t = &g->tensors[i];
        char shape[96];
        int n = 0;
        for (int d = 0; d < t->n_dims; d++)
            n += snprintf(shape + n, sizeof shape - (size_t)n, "%s%" PRId64, d ? " x " : "", t->ne[d]);
        pl_buf quoted = {0};
        put_text(&quoted, t->name, UINT64_MAX);
        if (quoted.failed)
            out->failed = true;
        else
            pl_buf_printf(out, "  %-44.*s %-5s %-24s %12" PRIu64 " bytes at %" PRIu64 "%s", (int)quoted.size - 2,
                          (const char *)quoted.data + 1, pl_type_name(t->type), shape, t->size, t->offset,
                          g->n_parts > 1 ? "" : "\n");
        pl_buf_fini(&quoted);
        if (g->n_parts > 1) pl_buf_printf(out, " of part %d\n", t->part + 1);
    }
    if (!out->failed) return PL_OK;
    out->size = before;
    return pl_fail(err, PL_ERR_NO_MEMORY, "out of memory for the dump");
}

pl_status pl_gguf_dump(const pl_gguf *g, pl_gguf_dump_options options, pl_buf *out, pl_error *err)
{
    if (!options.array_max) options.array_max = 8;
    if (!options.text_max) options.text_max = options.json ? UINT64_MAX : 120;
    return options.json ? dump_json(g, &options, out, err) : dump_text(g, &options, out, err);
}
