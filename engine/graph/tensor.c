#include "engine/graph/tensor.h"

size_t pl_tensor_bytes(const pl_tensor *t)
{
    const pl_type_info *info = pl_type_get(t->type);
    if (pl_tensor_elements(t) == 0) return 0;
    size_t n = info->bytes + (size_t)(t->ne[0] / info->block - 1) * t->nb[0];
    for (int i = 1; i < PL_MAX_DIMS; i++) n += (size_t)(t->ne[i] - 1) * t->nb[i];
    return n;
}

bool pl_tensor_is_contiguous(const pl_tensor *t)
{
    const pl_type_info *info = pl_type_get(t->type);
    /* A dimension of one element is never stepped over, so its stride does not matter. */
    size_t expect = info->bytes;
    for (int i = 0; i < PL_MAX_DIMS; i++) {
        if (t->ne[i] != 1 && t->nb[i] != expect) return false;
        expect *= (size_t)(i == 0 ? t->ne[0] / info->block : t->ne[i]);
    }
    return true;
}
