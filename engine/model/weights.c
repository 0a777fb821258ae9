#include <inttypes.h>
#include <stdio.h>

#include "engine/base/alloc.h"
#include "engine/base/map.h"
#include "engine/model/model.h"

static int64_t dim_of(const pl_hparams *hp, pl_dim d)
{
    switch (d) {
    case PL_DIM_EMBD: return hp->n_embd;
    case PL_DIM_VOCAB: return hp->n_vocab;
    case PL_DIM_Q: return (int64_t)hp->d_head * hp->n_head;
    case PL_DIM_KV: return (int64_t)hp->d_head * hp->n_head_kv;
    case PL_DIM_QKV: return (int64_t)hp->d_head * (hp->n_head + 2 * (int64_t)hp->n_head_kv);
    case PL_DIM_FF: return hp->n_ff;
    case PL_DIM_FF2: return 2 * (int64_t)hp->n_ff;
    case PL_DIM_HEAD: return hp->d_head;
    case PL_DIM_N_HEAD: return hp->n_head;
    case PL_DIM_N_HEAD_KV: return hp->n_head_kv;
    case PL_DIM_EXPERTS: return hp->experts.n;
    case PL_DIM_FF_EXPERT: return hp->experts.n_ff;
    case PL_DIM_FF_SHARED: return hp->experts.n_ff_shared;
    case PL_DIM_CTX: return hp->n_ctx_train;
    case PL_DIM_COUPLES: return hp->rope.n_rot / 2;
    case PL_DIM_ANY:
    case PL_DIM_END: break;
    }
    return 1;
}

/* Whether t is what spec says; otherwise adds a problem. */
static void check_tensor(const pl_gguf_tensor *t, const pl_weight_spec *spec, const pl_hparams *hp,
                         pl_problems *problems)
{
    const pl_dim *dims = spec->dims[0] == PL_DIM_END ? pl_slot_get(spec->slot)->dims : spec->dims;
    bool is_matrix = dims[1] != PL_DIM_END;
    int64_t ne0 = dim_of(hp, dims[0]), ne1 = is_matrix ? dim_of(hp, dims[1]) : 1, ne2 = is_matrix ? dim_of(hp, dims[2]) : 1;
    int name_size = (int)(t->name.size > 64 ? 64 : t->name.size);
    if (dims[1] == PL_DIM_ANY) ne1 = t->ne[1];
    if (t->ne[0] != ne0 || t->ne[1] != ne1 || t->ne[2] != ne2 || t->ne[3] != 1)
        pl_problem(problems,
                   "tensor %.*s is [%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 "], not [%" PRId64 ", %" PRId64
                   ", %" PRId64 "]",
                   name_size, t->name.data, t->ne[0], t->ne[1], t->ne[2], t->ne[3], ne0, ne1, ne2);
    const pl_type_info *type = pl_type_get(t->type);
    if (is_matrix ? type == NULL || type->act == PL_ACT_NONE : t->type != PL_TYPE_F32)
        pl_problem_unsupported(problems, "tensor %.*s is %s, %s", name_size, t->name.data, pl_type_name(t->type),
                               is_matrix ? "which is not a weight type" : "not F32");
}

/* The index of the tensor of this name, which is marked as used and checked; -1 when there is none. */
static int32_t find(const pl_gguf *g, const char *name, const pl_weight_spec *spec, const pl_hparams *hp, pl_map *index,
                    bool *used, pl_problems *problems)
{
    uint64_t i;
    if (!pl_map_get(index, pl_str_from(name), &i)) return -1;
    used[i] = true;
    check_tensor(pl_gguf_tensor_at(g, (size_t)i), spec, hp, problems);
    return (int32_t)i;
}

#define LAYER_NAME_MAX 160
static void layer_name(char out[LAYER_NAME_MAX], int32_t layer, pl_str name)
{
    snprintf(out, LAYER_NAME_MAX, "blk.%" PRId32 ".%.*s", layer, (int)(name.size > 128 ? 128 : name.size), name.data);
}

/* "blk.4.", or "blk.4..9." for several layers, or "" for layer -1 */
static void layers_name(char out[32], int32_t first, int32_t last)
{
    if (first < 0)
        out[0] = 0;
    else if (first == last)
        snprintf(out, 32, "blk.%" PRId32 ".", first);
    else
        snprintf(out, 32, "blk.%" PRId32 "..%" PRId32 ".", first, last);
}

/* The layer of a name "blk.N.rest", and its rest; -1 and the whole name for others. */
static int32_t split_name(pl_str name, pl_str *rest)
{
    int32_t layer = 0;
    size_t at = 4;
    *rest = name;
    if (name.size < 6 || memcmp(name.data, "blk.", 4) != 0) return -1;
    for (; at < name.size && name.data[at] >= '0' && name.data[at] <= '9' && layer < 100000000; at++)
        layer = layer * 10 + (name.data[at] - '0');
    if (at == 4 || at + 1 >= name.size || name.data[at] != '.') return -1;
    *rest = (pl_str){name.data + at + 1, name.size - at - 1};
    return layer;
}

/* Whether layer l has what spec describes. */
static bool is_of_layer(const pl_weight_spec *spec, const pl_hparams *hp, int32_t l)
{
    bool experts = hp->layers[l] & PL_LAYER_EXPERTS;
    return !(spec->flags & (experts ? PL_SPEC_DENSE : PL_SPEC_EXPERTS));
}

/* Names the required weights that the file lacks, layers that follow each other in one problem. */
static void say_missing(const pl_weight_index *w, const pl_arch *arch, const pl_hparams *hp, const pl_gguf *g,
                        const bool *used, pl_problems *problems)
{
    for (const pl_weight_spec *spec = arch->specs; spec->slot < PL_W_COUNT; spec++) {
        if (spec->flags & PL_SPEC_OPTIONAL) continue;
        bool of_layer = spec->slot < PL_W_LAYER_COUNT;
        pl_str name = pl_str_from(pl_slot_get(spec->slot)->name);
        for (int32_t l = 0, first; l < (of_layer ? hp->n_layer : 1); l++) {
            if ((of_layer ? w->layers[l][spec->slot] : w->model[spec->slot]) >= 0) continue;
            if (of_layer && !is_of_layer(spec, hp, l)) continue;
            for (first = l; of_layer && l + 1 < hp->n_layer && w->layers[l + 1][spec->slot] < 0 && is_of_layer(spec, hp, l + 1);) l++;
            char where[32];
            layers_name(where, of_layer ? first : -1, l);
            pl_nearest nearest = {.to = name};
            for (size_t i = 0; pl_problems_has_room(problems) && i < pl_gguf_n_tensors(g); i++) {
                pl_str rest;
                int32_t layer = split_name(pl_gguf_tensor_at(g, i)->name, &rest);
                if (!used[i] && layer == (of_layer ? first : -1)) pl_nearest_try(&nearest, rest);
            }
            pl_problem(problems, "tensor %s%.*s is missing%s%.*s", where, PL_STR_ARG(name),
                       nearest.name.size > 0 ? "; the nearest in the file: " : "",
                       (int)(nearest.name.size > 64 ? 64 : nearest.name.size),
                       nearest.name.size > 0 ? nearest.name.data : "");
        }
    }
}

/* Old converters wrote each layer's rotary frequencies, which follow from the metadata; every reader ignores them. */
static bool is_ignored(pl_str name)
{
    static const char suffix[] = "attn_rot_embd.weight";
    size_t n = sizeof suffix - 1;
    return name.size >= n && memcmp(name.data + name.size - n, suffix, n) == 0;
}

/* What is optional alone but not together. */
static void check_choices(const pl_weight_index *w, const pl_arch *arch, const pl_hparams *hp, pl_problems *problems)
{
    bool either = false;
    for (const pl_weight_spec *spec = arch->specs; spec->slot < PL_W_COUNT; spec++)
        either = either || (spec->slot == PL_W_ATTN_QKV && (spec->flags & PL_SPEC_OPTIONAL));
    for (int32_t l = 0; either && l < hp->n_layer; l++) {
        const int32_t *of = w->layers[l];
        bool fused = of[PL_W_ATTN_QKV] >= 0;
        if (!fused && (of[PL_W_ATTN_Q] < 0 || of[PL_W_ATTN_K] < 0 || of[PL_W_ATTN_V] < 0))
            pl_problem(problems, "layer %" PRId32 " has neither attn_qkv.weight nor all of attn_q, attn_k and attn_v",
                       l);
        if (fused && (of[PL_W_ATTN_Q] >= 0 || of[PL_W_ATTN_K] >= 0 || of[PL_W_ATTN_V] >= 0))
            pl_problem(problems, "layer %" PRId32 " has attn_qkv.weight and attn_q, attn_k or attn_v as well", l);
    }
    if ((w->model[PL_W_ROPE_LONG] < 0) != (w->model[PL_W_ROPE_SHORT] < 0))
        pl_problem(problems, "only one of rope_factors_long.weight and rope_factors_short.weight is there");
}

/* A tensor that we would not use means that the model is not the function that we would compute. Layers that follow
 * each other are one problem. */
static void say_unknown(const pl_gguf *g, const pl_arch *arch, const pl_hparams *hp, const pl_map *index, const bool *used,
                        pl_problems *problems)
{
    char other[LAYER_NAME_MAX];
    for (size_t i = 0; i < pl_gguf_n_tensors(g); i++) {
        pl_str rest, whole = pl_gguf_tensor_at(g, i)->name;
        if (used[i] || is_ignored(whole)) continue;
        int32_t layer = split_name(whole, &rest), last = layer;
        uint64_t k;
        if (layer >= hp->n_layer && layer < hp->n_layer + hp->n_layer_more) continue;
        layer_name(other, layer - 1, rest);
        if (layer > 0 && pl_map_get(index, pl_str_from(other), &k) && !used[k]) continue; /* said with that one */
        for (; layer >= 0; last++) {
            layer_name(other, last + 1, rest);
            if (!pl_map_get(index, pl_str_from(other), &k) || used[k]) break;
        }
        pl_nearest nearest = {.to = rest};
        for (const pl_weight_spec *spec = arch->specs; pl_problems_has_room(problems) && spec->slot < PL_W_COUNT;
             spec++)
            if ((spec->slot < PL_W_LAYER_COUNT) == (layer >= 0))
                pl_nearest_try(&nearest, pl_str_from(pl_slot_get(spec->slot)->name));
        char where[32];
        layers_name(where, layer, last);
        pl_problem_unsupported(problems, "tensor %s%.*s is not known to architecture %s%s%.*s", where,
                               (int)(rest.size > 64 ? 64 : rest.size), rest.data, arch->name,
                               nearest.name.size > 0 ? "; the nearest that is: " : "", (int)nearest.name.size,
                               nearest.name.size > 0 ? nearest.name.data : "");
    }
}

pl_status pl_weights_find(pl_weight_index *out, const pl_gguf *g, const pl_arch *arch, const pl_hparams *hp,
                          pl_problems *problems, pl_error *err)
{
    size_t n = pl_gguf_n_tensors(g);
    *out = (pl_weight_index){0};
    for (int s = 0; s < PL_W_COUNT; s++) out->model[s] = -1;
    pl_map index = {0};
    bool *used = pl_calloc(n ? n : 1, sizeof *used);
    out->layers = pl_calloc((size_t)hp->n_layer, sizeof *out->layers);
    bool ok = used != NULL && out->layers != NULL && n <= INT32_MAX;
    for (size_t i = 0; ok && i < n; i++) ok = pl_map_set(&index, pl_gguf_tensor_at(g, i)->name, i);
    if (!ok) {
        pl_map_fini(&index);
        pl_free(used);
        pl_weights_fini(out);
        return pl_fail(err, PL_ERR_NO_MEMORY, "no memory for the index of %zu tensors", n);
    }

    for (int32_t l = 0; l < hp->n_layer; l++)
        for (int s = 0; s < PL_W_LAYER_COUNT; s++) out->layers[l][s] = -1;
    for (const pl_weight_spec *spec = arch->specs; spec->slot < PL_W_COUNT; spec++) {
        const char *slot_name = pl_slot_get(spec->slot)->name;
        if (spec->slot >= PL_W_LAYER_COUNT) {
            out->model[spec->slot] = find(g, slot_name, spec, hp, &index, used, problems);
            continue;
        }
        for (int32_t l = 0; l < hp->n_layer; l++) {
            if (!is_of_layer(spec, hp, l)) continue;
            char name[128];
            snprintf(name, sizeof name, "blk.%" PRId32 ".%s", l, slot_name);
            out->layers[l][spec->slot] = find(g, name, spec, hp, &index, used, problems);
        }
    }
    pl_status status = pl_adapters_find(out, g, hp, &index, used, problems, err);
    check_choices(out, arch, hp, problems);
    say_missing(out, arch, hp, g, used, problems);
    say_unknown(g, arch, hp, &index, used, problems);
    pl_map_fini(&index);
    pl_free(used);
    if (status != PL_OK) pl_weights_fini(out);
    return status;
}

void pl_weights_fini(pl_weight_index *w)
{
    pl_free(w->layers);
    pl_free(w->adapters);
    *w = (pl_weight_index){0};
}
