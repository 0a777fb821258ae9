/* A low-rank adapter beside the model (Hu et al. 2021), as llama.cpp writes it: a GGUF file of its own with
 * general.type "adapter", adapter.type "lora", adapter.lora.alpha, and for weights of the model two tensors each,
 * NAME.lora_a and NAME.lora_b. They become tensors of the model, "adapter.K.NAME.lora_a", so that whatever carries a
 * model carries them too: hashes, caches, plans, the header that nodes read. */
#include <inttypes.h>
#include <stdio.h>

#include "engine/base/alloc.h"
#include "engine/gguf/read_impl.h"

static pl_status check_kind(const pl_gguf *g, const pl_gguf *part, pl_error *err)
{
    static const char *const keys[] = {"general.type", "adapter.type"}, *const values[] = {"adapter", "lora"};
    pl_str text, arch;
    bool found;
    for (int i = 0; i < 2; i++) {
        PL_TRY(pl_gguf_get_str(part, keys[i], &text, &found, err));
        if (!found || !pl_str_is(text, values[i]))
            return pl_fail(err, PL_ERR_INVALID, "not an adapter: key %s is not \"%s\"", keys[i], values[i]);
    }
    PL_TRY(pl_gguf_get_str(part, "general.architecture", &text, &found, err));
    PL_TRY(pl_gguf_get_str(g, "general.architecture", &arch, &found, err));
    if (!pl_str_eq(text, arch))
        return pl_fail(err, PL_ERR_INVALID, "an adapter for architecture \"%.*s\", and the model's is \"%.*s\"",
                       PL_STR_ARG(text), PL_STR_ARG(arch));
    return PL_OK;
}

/* Text that lives as long as g. */
static pl_str keep_text(pl_gguf *g, const char *text)
{
    char **texts = pl_realloc(g->texts, (g->n_texts + 1) * sizeof *texts);
    if (!texts) return (pl_str){0};
    g->texts = texts;
    char *copy = pl_strdup(text);
    if (!copy) return (pl_str){0};
    g->texts[g->n_texts++] = copy;
    return pl_str_from(copy);
}

static pl_status set_key(pl_gguf *g, const char *name, const pl_gguf_value *value, pl_error *err)
{
    uint64_t at;
    pl_str key = pl_str_from(name);
    if (pl_map_get(&g->key_index, key, &at)) {
        g->keys[at].value = *value;
        return PL_OK;
    }
    gguf_key *keys = pl_realloc(g->keys, (g->n_keys + 1) * sizeof *keys);
    if (keys) g->keys = keys;
    if (!keys || !(key = keep_text(g, name)).data || !pl_map_set(&g->key_index, key, g->n_keys))
        return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for an adapter's keys");
    g->keys[g->n_keys++] = (gguf_key){key, *value};
    return PL_OK;
}

static pl_status rename_tensors(pl_gguf *g, pl_gguf *part, uint32_t no, pl_error *err)
{
    for (size_t i = 0; i < part->n_tensors; i++) {
        pl_gguf_tensor *t = &part->tensors[i];
        pl_buf name = {0};
        pl_buf_printf(&name, "adapter.%" PRIu32 ".%.*s", no, PL_STR_ARG(t->name));
        const char *text = pl_buf_cstr(&name);
        t->name = text ? keep_text(g, text) : (pl_str){0};
        pl_buf_fini(&name);
        if (!t->name.data) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for an adapter's tensors");
    }
    return PL_OK;
}

static pl_status add(pl_gguf *g, pl_gguf *part, uint32_t no, pl_error *err)
{
    pl_gguf_value alpha;
    char key[48];
    PL_TRY(check_kind(g, part, err));
    if (part->n_tensors == 0) return pl_fail(err, PL_ERR_FORMAT, "an adapter without tensors");
    if (!pl_gguf_find(part, "adapter.lora.alpha", &alpha) || alpha.kind != PL_GGUF_F32)
        return pl_fail(err, PL_ERR_FORMAT, "key adapter.lora.alpha is missing, or not a float");
    /* From here on g has something of it: who gets an error closes g. */
    PL_TRY(rename_tensors(g, part, no, err));
    snprintf(key, sizeof key, "adapter.%" PRIu32 ".alpha", no);
    PL_TRY(set_key(g, key, &alpha, err));
    g->n_adapters[0] = (uint8_t)(no + 1); /* little-endian, as in a file */
    PL_TRY(set_key(g, "adapter.count", &(pl_gguf_value){.kind = PL_GGUF_U32, .raw = {g->n_adapters, 4}}, err));
    return pl_gguf_take_over(g, part, err);
}

pl_status pl_gguf_add_adapter(pl_gguf *g, const char *path, pl_error *err)
{
    pl_gguf *part = NULL;
    uint32_t no = 0;
    bool found;
    PL_TRY(pl_gguf_get_u32(g, "adapter.count", &no, &found, err));
    if (no >= PL_ADAPTERS_MAX)
        return pl_fail(err, PL_ERR_UNSUPPORTED, "%s: more than %d adapters", path, PL_ADAPTERS_MAX);
    PL_TRY(pl_gguf_open_part(&part, path, (int32_t)g->n_parts, err));
    pl_status s = add(g, part, no, err);
    pl_gguf_close(part);
    return s == PL_OK ? PL_OK : pl_note(err, s, "%s", path);
}
