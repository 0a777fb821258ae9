/* A model in several files: NAME-00001-of-0000N.gguf and so on, each a whole GGUF file with its own tensors. The first
 * has the metadata; each says its place in split.no (from 0), and how many there are in split.count. */
#include <inttypes.h>
#include <stdio.h>

#include "engine/base/alloc.h"
#include "engine/gguf/read_impl.h"

pl_status pl_gguf_split_count(const pl_gguf *g, uint32_t *out, pl_error *err)
{
    bool found;
    *out = 0;
    return pl_gguf_get_u32(g, "split.count", out, &found, err);
}

/* The path without "-00001-of-0000N.gguf", where it ends in exactly that. */
static bool split_stem(const char *path, uint32_t count, pl_str *out)
{
    char suffix[48];
    size_t n = (size_t)snprintf(suffix, sizeof suffix, "-%05u-of-%05" PRIu32 ".gguf", 1u, count), len = strlen(path);
    if (len <= n || strcmp(path + len - n, suffix) != 0) return false;
    *out = (pl_str){path, len - n};
    return true;
}

static pl_status check_place(const pl_gguf *part, uint32_t no, uint32_t count, pl_error *err)
{
    uint32_t its_no = 0, its_count = 0;
    bool found;
    PL_TRY(pl_gguf_get_u32(part, "split.no", &its_no, &found, err));
    if (!found) return pl_fail(err, PL_ERR_FORMAT, "key split.no is missing from a part of a split");
    if (its_no != no)
        return pl_fail(err, PL_ERR_FORMAT, "key split.no is %" PRIu32 " where %" PRIu32 " is expected", its_no, no);
    PL_TRY(pl_gguf_split_count(part, &its_count, err));
    if (its_count != count)
        return pl_fail(err, PL_ERR_FORMAT, "key split.count is %" PRIu32 ", but %" PRIu32 " in the first part",
                       its_count, count);
    return PL_OK;
}

pl_status pl_gguf_take_over(pl_gguf *g, pl_gguf *part, pl_error *err)
{
    size_t n = g->n_tensors + part->n_tensors, bytes;
    pl_gguf_tensor *tensors = pl_mul_ok(n, sizeof *tensors, &bytes) ? pl_realloc(g->tensors, bytes) : NULL;
    if (tensors) g->tensors = tensors;
    gguf_part *parts = pl_realloc(g->parts, (g->n_parts + 1) * sizeof *parts);
    if (parts) g->parts = parts;
    if (!tensors || !parts) return pl_fail(err, PL_ERR_NO_MEMORY, "out of memory for the tensors of a split");
    for (size_t i = 0; i < part->n_tensors; i++) {
        const pl_gguf_tensor *t = &part->tensors[i];
        if (pl_map_get(&g->tensor_index, t->name, NULL))
            return pl_fail(err, PL_ERR_FORMAT, "tensor %.*s is in an earlier part too", PL_STR_ARG(t->name));
        if (!pl_map_set(&g->tensor_index, t->name, g->n_tensors + i))
            return pl_fail(err, PL_ERR_NO_MEMORY, "out of memory for the tensors of a split");
    }
    if (part->n_tensors) memcpy(g->tensors + g->n_tensors, part->tensors, part->n_tensors * sizeof *tensors);
    g->n_tensors = n;
    g->parts[g->n_parts++] = part->parts[0];
    part->parts[0] = (gguf_part){0};
    return PL_OK;
}

static pl_status open_part(pl_gguf *g, pl_str stem, uint32_t no, uint32_t count, pl_error *err)
{
    size_t size = stem.size + 48;
    char *path = pl_alloc(size);
    if (!path) return pl_fail(err, PL_ERR_NO_MEMORY, "out of memory for a path");
    snprintf(path, size, "%.*s-%05" PRIu32 "-of-%05" PRIu32 ".gguf", PL_STR_ARG(stem), no + 1, count);
    pl_gguf *part = NULL;
    pl_status s = pl_gguf_open_part(&part, path, (int32_t)no, err);
    if (s == PL_OK) {
        s = check_place(part, no, count, err);
        if (s == PL_OK) s = pl_gguf_take_over(g, part, err);
        if (s != PL_OK) pl_note(err, s, "%s", path);
    }
    pl_gguf_close(part);
    pl_free(path);
    return s;
}

pl_status pl_gguf_open_rest(pl_gguf *g, const char *path, pl_error *err)
{
    uint32_t count = 0, no = 0, n_tensors = 0;
    bool found;
    pl_status s = pl_gguf_split_count(g, &count, err);
    if (s != PL_OK) return pl_note(err, s, "%s", path);
    if (count < 2) return PL_OK;
    if ((s = pl_gguf_get_u32(g, "split.no", &no, &found, err)) != PL_OK) return pl_note(err, s, "%s", path);
    if (no != 0)
        return pl_fail(err, PL_ERR_INVALID,
                       "%s: this is part %" PRIu32 " of %" PRIu32 ": open the first one, -00001-of-%05" PRIu32 ".gguf",
                       path, no + 1, count, count);
    pl_str stem;
    if (!split_stem(path, count, &stem))
        return pl_fail(err, PL_ERR_INVALID,
                       "%s: this is the first of %" PRIu32 " parts, so its name must end in -00001-of-%05" PRIu32
                       ".gguf",
                       path, count, count);
    if ((s = check_place(g, 0, count, err)) != PL_OK) return pl_note(err, s, "%s", path);
    for (uint32_t i = 1; i < count; i++) PL_TRY(open_part(g, stem, i, count, err));
    if ((s = pl_gguf_get_u32(g, "split.tensors.count", &n_tensors, &found, err)) != PL_OK)
        return pl_note(err, s, "%s", path);
    if (found && n_tensors != g->n_tensors)
        return pl_fail(err, PL_ERR_FORMAT,
                       "%s: key split.tensors.count is %" PRIu32 ", but the %" PRIu32 " parts have %zu tensors", path,
                       n_tensors, count, g->n_tensors);
    return PL_OK;
}
