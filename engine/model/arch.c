#include "engine/model/arch.h"

static const pl_arch *const archs[] = {
    &pl_arch_llama,
};

const pl_arch *pl_arch_find(pl_str name)
{
    for (size_t i = 0; i < sizeof archs / sizeof archs[0]; i++)
        if (pl_str_is(name, archs[i]->name)) return archs[i];
    return NULL;
}

const char *pl_arch_names(void) { return "llama"; }
