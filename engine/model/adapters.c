#include <inttypes.h>
#include <stdio.h>

#include "engine/base/alloc.h"
#include "engine/model/model.h"

int32_t *pl_adapter_pair(const pl_weight_index *w, int32_t adapter, int32_t layer, pl_slot slot)
{
    return w->adapters[((size_t)adapter * (size_t)w->n_layer + (size_t)layer) * PL_W_LAYER_COUNT + (size_t)slot];
}

static int32_t find(const pl_map *index, bool *used, int32_t adapter, const char *weight, const char *part)
{
    char name[192];
    uint64_t i;
    snprintf(name, sizeof name, "adapter.%" PRId32 ".%s.lora_%s", adapter, weight, part);
    if (!pl_map_get(index, pl_str_from(name), &i)) return -1;
    used[i] = true;
    return (int32_t)i;
}

/* a [k, r] and b [r, m] for a weight [k, m]. */
static void check_pair(const pl_gguf *g, const int32_t pair[2], const char *weight, int32_t base, pl_problems *problems)
{
    if (pair[0] < 0 || pair[1] < 0 || base < 0) {
        pl_problem(problems, "an adapter's tensors for %s: %s", weight,
                   base < 0 ? "the model has no such weight" : "only one of lora_a and lora_b is there");
        return;
    }
    const pl_gguf_tensor *w = pl_gguf_tensor_at(g, (size_t)base), *a = pl_gguf_tensor_at(g, (size_t)pair[0]),
                         *b = pl_gguf_tensor_at(g, (size_t)pair[1]);
    if (w->ne[2] > 1) pl_problem_unsupported(problems, "an adapter's tensors for %s: experts are not adapted", weight);
    if (a->n_dims > 2 || b->n_dims > 2 || a->ne[0] != w->ne[0] || b->ne[1] != w->ne[1] || a->ne[1] != b->ne[0])
        pl_problem(problems,
                   "an adapter's tensors for %s are [%" PRId64 ", %" PRId64 "] and [%" PRId64 ", %" PRId64
                   "], which do not fit [%" PRId64 ", %" PRId64 "]",
                   weight, a->ne[0], a->ne[1], b->ne[0], b->ne[1], w->ne[0], w->ne[1]);
    for (int i = 0; i < 2; i++) {
        const pl_gguf_tensor *t = i ? b : a;
        const pl_type_info *type = pl_type_get(t->type);
        if (type == NULL || type->act == PL_ACT_NONE)
            pl_problem_unsupported(problems, "an adapter's tensor for %s is %s, which is not a weight type", weight,
                                   pl_type_name(t->type));
    }
}

pl_status pl_adapters_find(pl_weight_index *out, const pl_gguf *g, const pl_hparams *hp, const pl_map *index,
                           bool *used, pl_problems *problems, pl_error *err)
{
    uint32_t n = 0;
    bool found;
    PL_TRY(pl_gguf_get_u32(g, "adapter.count", &n, &found, err));
    if (n > PL_ADAPTERS_MAX) return pl_fail(err, PL_ERR_FORMAT, "key adapter.count is %" PRIu32, n);
    out->n_layer = hp->n_layer;
    if (n == 0) return PL_OK;
    size_t n_pairs = (size_t)n * (size_t)hp->n_layer * PL_W_LAYER_COUNT;
    out->adapters = pl_alloc(n_pairs * sizeof *out->adapters);
    if (out->adapters == NULL) return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for %" PRIu32 " adapters", n);
    out->n_adapters = (int32_t)n;
    for (int32_t k = 0; k < out->n_adapters; k++) {
        char key[48];
        snprintf(key, sizeof key, "adapter.%" PRId32 ".alpha", k);
        PL_TRY(pl_gguf_get_f32(g, key, &out->alpha[k], &found, err));
        if (!found) pl_problem(problems, "key %s is missing", key);
        for (int32_t l = 0; l < hp->n_layer; l++)
            for (int s = 0; s < PL_W_LAYER_COUNT; s++) {
                char weight[128];
                int32_t *pair = pl_adapter_pair(out, k, l, s);
                snprintf(weight, sizeof weight, "blk.%" PRId32 ".%s", l, pl_slot_get(s)->name);
                pair[0] = find(index, used, k, weight, "a");
                pair[1] = find(index, used, k, weight, "b");
                if (pair[0] >= 0 || pair[1] >= 0) check_pair(g, pair, weight, out->layers[l][s], problems);
            }
    }
    return PL_OK;
}
