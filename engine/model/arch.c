#include "engine/model/arch.h"

/* In the same order. */
static const pl_arch *const archs[] = {&pl_arch_llama};
static const char *const names[] = {"llama"};
_Static_assert(sizeof archs / sizeof archs[0] == sizeof names / sizeof names[0], "every architecture has its name");

const pl_arch *pl_arch_find(pl_str name)
{
    for (size_t i = 0; i < sizeof archs / sizeof archs[0]; i++)
        if (pl_str_is(name, archs[i]->name)) return archs[i];
    return NULL;
}

bool pl_arch_is_precise(const pl_arch *arch, pl_slot slot)
{
    for (const pl_weight_spec *s = arch->specs; s->name; s++)
        if (s->slot == slot) return s->flags & PL_SPEC_PRECISE;
    return false;
}

const char *const *pl_arch_names(size_t *n)
{
    *n = sizeof names / sizeof names[0];
    return names;
}
