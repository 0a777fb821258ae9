#include "engine/graph/scratch.h"

#include "engine/base/status.h"

enum { OWN_ELEMENTS_MAX = 4096 };

static size_t lines(size_t bytes)
{
    return (bytes + PL_SCRATCH_LINE - 1) / PL_SCRATCH_LINE * PL_SCRATCH_LINE;
}

/* Types whose weights take long to make into integers. */
static bool is_expanded(pl_type w)
{
    switch (w) {
    case PL_TYPE_IQ2_XXS:
    case PL_TYPE_IQ2_XS:
    case PL_TYPE_IQ2_S:
    case PL_TYPE_IQ3_XXS:
    case PL_TYPE_IQ3_S:
    case PL_TYPE_IQ1_S:
    case PL_TYPE_IQ1_M: return true;
    default: return false;
    }
}

pl_mul_mat_scratch pl_scratch_mul_mat(pl_type w, int64_t k, int64_t n, bool precise, int n_threads)
{
    const pl_type_info *type = pl_type_get(w);
    PL_ASSERT(type != NULL && n_threads > 0);
    pl_mul_mat_scratch s = {.n_terms = precise && type->act != PL_ACT_F32 ? 2 : 1};
    n *= s.n_terms;
    s.own = k * n <= OWN_ELEMENTS_MAX;
    s.act = lines((size_t)n * pl_act_token_size(type->act, k));
    s.group = lines(PL_SCRATCH_ROWS * pl_type_row_size(w, k));
    if (is_expanded(w) && n > PL_SCRATCH_TILE) s.expanded = (size_t)(k / 256) * PL_SCRATCH_EXPANDED;
    size_t columns = PL_SCRATCH_ROWS * (s.n_terms == 2 ? PL_SCRATCH_PAIRS : 1);
    s.thread = s.group + s.expanded + PL_SCRATCH_TILE * columns * sizeof(float) + (s.own ? s.act : 0);
    s.total = PL_SCRATCH_HEAD + (s.own ? 0 : s.act) + (size_t)n_threads * s.thread;
    return s;
}

size_t pl_scratch_mul_mat_most(pl_type w, int64_t k, int64_t n, bool precise, int n_threads)
{
    pl_mul_mat_scratch s = pl_scratch_mul_mat(w, k, n, precise, n_threads);
    int64_t most_own = OWN_ELEMENTS_MAX / (k * s.n_terms);
    if (s.own || most_own == 0) return s.total; /* own scratch grows with n, and so does shared */
    size_t own = pl_scratch_mul_mat(w, k, most_own, precise, n_threads).total;
    return own > s.total ? own : s.total;
}

pl_attention_scratch pl_scratch_attention(int64_t d_k, int64_t d_v, int64_t n_head, int64_t n_head_kv)
{
    size_t n = PL_SCRATCH_QUERY_ROWS * (size_t)(n_head / n_head_kv);
    size_t k_row = (size_t)d_k * sizeof(float), v_row = (size_t)d_v * sizeof(float);
    pl_attention_scratch s = {.q = lines(n * k_row),
                              .acc = lines(n * v_row),
                              .k = lines(PL_KV_PAGE * k_row),
                              .v = lines(PL_KV_PAGE * v_row),
                              .numbers = lines(n * 4)};
    s.thread = s.q + s.acc + s.k + s.v + 6 * s.numbers;
    return s;
}
