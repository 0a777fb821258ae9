#include "node/node_impl.h"

#include "engine/base/sys.h"

#include <inttypes.h>

uint64_t node_budget_default(void)
{
    uint64_t available = pl_sys_memory_available();
    return available - available / 10;
}

/* A frame comes in only for a credit that we gave, and is computed only with a credit that we hold; so each side has
 * `credits` buffers at most. The first stage takes tokens in, the last one gives tokens out: they have no such buffer.
 */
uint64_t node_link_bytes(int32_t credits, int32_t n_rows, int32_t n_embd, bool first, bool last)
{
    uint64_t side = (uint64_t)credits * (uint64_t)n_rows * (uint64_t)n_embd * sizeof(float);
    return (first ? 0 : side) + (last ? 0 : side);
}

pl_status node_budget_check(const node_stage *s, pl_error *err)
{
    const pl_stage_memory *m = &s->memory;
    uint64_t total;
    if (!__builtin_add_overflow(m->weights, m->kv, &total) && !__builtin_add_overflow(total, m->compute, &total) &&
        !__builtin_add_overflow(total, s->link_bytes, &total) && total <= s->node->budget)
        return PL_OK;
    return pl_fail(
        err, PL_ERR_BUDGET, "layers %d to %d need %s (weights %s, KV %s, compute %s, links %s), the budget of %s is %s",
        s->shape.layer_first, s->shape.layer_end - 1, pl_format_size(m->weights + m->kv + m->compute + s->link_bytes),
        pl_format_size(m->weights), pl_format_size(m->kv), pl_format_size(m->compute), pl_format_size(s->link_bytes),
        s->node->name, pl_format_size(s->node->budget));
}
