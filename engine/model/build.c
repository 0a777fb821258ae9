#include <inttypes.h>
#include <stdio.h>

#include "engine/base/alloc.h"
#include "engine/model/model.h"

static pl_tensor *leaf(pl_graph_ctx *c, const pl_model_profile *p, int32_t index, const pl_graph_request *r)
{
    if (index < 0) return NULL;
    const pl_gguf_tensor *t = pl_gguf_tensor_at(p->g, (size_t)index);
    pl_layout layout = PL_LAYOUT_PLAIN;
    const void *data = r->weight ? r->weight(r->user, (size_t)index, &layout) : NULL;
    char name[PL_NAME_MAX];
    size_t n = t->name.size < sizeof name - 1 ? t->name.size : sizeof name - 1;
    memcpy(name, t->name.data, n);
    name[n] = 0;
    return pl_new_weight(c, t->type, layout, PL_MAX_DIMS, t->ne, data, name);
}

/* The adapters' tensors, and the inputs that say how much of each a row wants. */
static bool make_adapters(pl_build *b, const pl_model_profile *p, const pl_graph_request *r)
{
    const int32_t n_layer = b->layer_end - b->layer_first;
    bool ok = true;
    for (int32_t k = 0; k < b->n_adapters; k++) {
        bool any = false;
        for (int32_t il = 0; il < n_layer; il++)
            for (int s = 0; s < PL_W_LAYER_COUNT; s++) {
                const int32_t *pair = pl_adapter_pair(&p->index, k, b->layer_first + il, s);
                if (pair[0] < 0) continue;
                pl_tensor **to = b->adapters[((size_t)k * (size_t)n_layer + (size_t)il) * PL_W_LAYER_COUNT + (size_t)s];
                for (int i = 0; i < 2; i++) ok = (to[i] = leaf(b->c, p, pair[i], r)) != NULL && ok;
                any = true;
            }
        if (!any) continue;
        char name[PL_NAME_MAX];
        snprintf(name, sizeof name, "adapter_scale.%" PRId32, k);
        b->io.adapter_scales[k] = pl_new_input(b->c, PL_TYPE_F32, 2, (int64_t[]){1, b->n_rows}, name);
        ok = ok && b->io.adapter_scales[k];
    }
    return ok;
}

/* Makes all leaves. False when a weight that is there could not be made. */
static bool make_leaves(pl_build *b, const pl_model_profile *p, const pl_graph_request *r)
{
    const pl_hparams *hp = b->hp;
    pl_graph_ctx *c = b->c;
    bool ok = true;
    for (int32_t il = 0; il < b->layer_end - b->layer_first; il++) {
        int32_t l = b->layer_first + il;
        for (int s = 0; s < PL_W_LAYER_COUNT; s++) {
            b->layer_weights[il][s] = leaf(c, p, p->index.layers[l][s], r);
            ok = ok && (b->layer_weights[il][s] != NULL) == (p->index.layers[l][s] >= 0);
        }
        pl_kv_layout kv = pl_model_kv_layout(hp, l, r->cache);
        b->kv[il] = pl_new_kv(c, &kv, r->n_blocks, r->kv ? r->kv(r->user, l) : NULL, "kv");
        if (b->kv[il]) pl_set_name(b->kv[il], "kv.%" PRId32, l);
        ok = ok && b->kv[il];
    }
    for (int s = PL_W_LAYER_COUNT; s < PL_W_COUNT; s++) {
        pl_place place = pl_slot_get(s)->place;
        bool wanted = place == PL_PLACE_EMBED ? b->embed : place == PL_PLACE_HEAD && b->head;
        if (s == PL_W_TOKEN_EMBD && b->head && pl_model_is_tied(p)) wanted = true;
        if (s == PL_W_OUTPUT && b->embeddings) wanted = false;
        /* What all stages have (rotary factors) is not a leaf: the stage reads it once, for the table. */
        if (!wanted) continue;
        b->weights[s] = leaf(c, p, p->index.model[s], r);
        ok = ok && (b->weights[s] != NULL) == (p->index.model[s] >= 0);
    }

    int64_t n = b->n_rows;
    pl_model_graph *io = &b->io;
    if (b->embed)
        io->ids = pl_new_input(c, PL_TYPE_I32, 1, &n, "ids");
    else
        io->hidden = pl_new_input(c, PL_TYPE_F32, 2, (int64_t[]){hp->n_embd, n}, "hidden_in");
    /* An encoder's attention reads last instead. An input that no operator reads would get no memory. */
    bool has_pos = !b->arch->encoder || (b->embed && p->index.model[PL_W_POSITION_EMBD] >= 0);
    if (has_pos) io->pos = pl_new_input(c, PL_TYPE_I32, 1, &n, "pos");
    if (b->arch->encoder) io->last = pl_new_input(c, PL_TYPE_I32, 1, &n, "last");
    bool has_types = b->embed && p->index.model[PL_W_TOKEN_TYPES] >= 0;
    if (has_types) io->types = pl_new_input(c, PL_TYPE_I32, 1, &n, "types");
    io->slots = pl_new_input(c, PL_TYPE_I32, 1, &n, "slots");
    io->tables = pl_new_input(c, PL_TYPE_I32, 2, (int64_t[]){r->n_pages, n}, "tables");
    bool rotates = false, rotates_locally = false;
    for (int32_t l = b->layer_first; l < b->layer_end; l++) {
        bool local = hp->has_rope_local && hp->layers[l] & PL_LAYER_WINDOW;
        if (hp->rope.n_rot == 0 || hp->layers[l] & PL_LAYER_NO_ROPE) continue;
        rotates = rotates || !local;
        rotates_locally = rotates_locally || local;
    }
    if (rotates) io->rope = pl_new_input(c, PL_TYPE_F32, 2, (int64_t[]){hp->rope.n_rot, n}, "rope");
    if (rotates_locally)
        io->rope_local = pl_new_input(c, PL_TYPE_F32, 2, (int64_t[]){hp->rope_local.n_rot, n}, "rope_local");
    bool has_temperature = hp->temperature.scale != 0.0f;
    if (has_temperature) io->temperature = pl_new_input(c, PL_TYPE_F32, 3, (int64_t[]){1, 1, n}, "temperature");
    bool gathers = b->head && b->n_out > 0 && b->n_out < b->n_rows;
    if (gathers) io->out_ids = pl_new_input(c, PL_TYPE_I32, 1, (int64_t[]){b->n_out}, "out_ids");
    ok = make_adapters(b, p, r) && ok;
    return ok && (io->ids || io->hidden) && (io->pos || !has_pos) && (io->last || !b->arch->encoder) && (io->types || !has_types) &&
           io->slots && io->tables && (io->rope || !rotates) && (io->rope_local || !rotates_locally) &&
           (io->temperature || !has_temperature) && (io->out_ids || !gathers);
}

pl_graph_request pl_graph_request_of(const pl_stage_shape *shape, const pl_model_profile *p, int32_t n_rows,
                                     int32_t n_out)
{
    return (pl_graph_request){.layer_first = shape->layer_first,
                              .layer_end = shape->layer_end,
                              .embed = pl_shape_embeds(shape),
                              .head = pl_shape_has_head(shape, p),
                              .n_rows = n_rows,
                              .n_out = pl_shape_has_head(shape, p) ? n_out : 0,
                              .n_pages = pl_shape_pages(shape),
                              .n_blocks = shape->n_blocks,
                              .cache = shape->cache};
}

pl_status pl_model_graph_build(pl_graph **out, pl_model_graph *io, pl_graph_ctx *c, const pl_model_profile *p,
                               const pl_graph_request *r, pl_error *err)
{
    *out = NULL;
    size_t n = (size_t)(r->layer_end - r->layer_first);
    pl_build b = {.c = c,
                  .arch = p->arch,
                  .hp = &p->hp,
                  .layer_first = r->layer_first,
                  .layer_end = r->layer_end,
                  .embed = r->embed,
                  .head = r->head,
                  .embeddings = r->embeddings || p->arch->encoder,
                  .n_rows = r->n_rows,
                  .n_out = r->n_out};
    b.layer_weights = pl_calloc(n, sizeof *b.layer_weights);
    b.kv = pl_calloc(n, sizeof *b.kv);
    b.n_adapters = p->index.n_adapters;
    b.adapter_alpha = p->index.alpha;
    b.adapters = pl_calloc((size_t)b.n_adapters * n * PL_W_LAYER_COUNT + 1, sizeof *b.adapters);
    pl_status s = PL_OK;
    if (b.layer_weights == NULL || b.kv == NULL || b.adapters == NULL || !make_leaves(&b, p, r)) {
        s = pl_fail(err, PL_ERR_NO_MEMORY, "no memory for a graph of %zu layers", n);
    } else {
        pl_tensor *output = p->arch->build(&b);
        s = pl_graph_build(out, c, &output, 1, err);
        *io = b.io;
    }
    pl_free(b.layer_weights);
    pl_free(b.kv);
    pl_free(b.adapters);
    return s;
}
