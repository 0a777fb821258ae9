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
    case PL_TYPE_Q5_K:
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

pl_mul_mat_scratch pl_scratch_mul_mat(pl_type w, int64_t k, int64_t n, pl_precision precision, int n_threads)
{
    const pl_type_info *type = pl_type_get(w);
    PL_ASSERT(type != NULL && n_threads > 0);
    pl_mul_mat_scratch s = {.n_terms = precision != PL_ONE_TERM && type->act != PL_ACT_F32 ? 2 : 1};
    int64_t rows = n;
    n *= s.n_terms;
    s.paired = s.n_terms == 2 && n <= PL_SCRATCH_TILE;
    s.own = k * n <= OWN_ELEMENTS_MAX;
    size_t token = pl_act_token_size(type->act, k);
    s.act = lines((size_t)n * token);
    int64_t panel = PL_SCRATCH_PANEL_BYTES / (int64_t)(PL_SCRATCH_TILE * token) * PL_SCRATCH_TILE;
    if (panel > PL_SCRATCH_PANEL && s.n_terms == 2) panel = PL_SCRATCH_PANEL;
    if (panel > (s.paired ? n : rows))
        panel = ((s.paired ? n : rows) + PL_SCRATCH_TILE - 1) / PL_SCRATCH_TILE * PL_SCRATCH_TILE;
    s.panel = panel > PL_SCRATCH_TILE ? panel : PL_SCRATCH_TILE;
    if (precision == PL_TWO_TERMS_WHERE_LARGE && s.n_terms == 2 && !s.paired) {
        /* Half of the blocks: where more are large, all of them are taken. */
        size_t columns = type->act == PL_ACT_Q8 ? 32 : 256, blocks = (size_t)k / columns;
        s.most_more = (size_t)s.panel * blocks / 2;
        s.more = lines(s.most_more * (pl_act_token_size(type->act, (int64_t)columns) + sizeof(uint16_t))) +
                 lines((blocks + 1) * sizeof(uint32_t)) + lines((size_t)s.panel * PL_SCRATCH_ROWS * sizeof(float));
    }
    s.group = lines(PL_SCRATCH_ROWS * pl_type_row_size(w, k));
    if (is_expanded(w) && n > PL_SCRATCH_TILE) s.expanded = (size_t)(k / 256) * PL_SCRATCH_EXPANDED;
    size_t columns = PL_SCRATCH_ROWS * (s.n_terms == 2 ? PL_SCRATCH_PAIRS : 1);
    s.thread = s.group + s.expanded + s.more + PL_SCRATCH_TILE * columns * sizeof(float) + (s.own ? s.act : 0);
    s.total = PL_SCRATCH_HEAD + (s.own ? 0 : s.act) + (size_t)n_threads * s.thread;
    return s;
}

size_t pl_scratch_mul_mat_most(pl_type w, int64_t k, int64_t n, pl_precision precision, int n_threads)
{
    pl_mul_mat_scratch s = pl_scratch_mul_mat(w, k, n, precision, n_threads);
    int64_t most_own = OWN_ELEMENTS_MAX / (k * s.n_terms);
    if (s.own || most_own == 0) return s.total; /* own scratch grows with n, and so does shared */
    size_t own = pl_scratch_mul_mat(w, k, most_own, precision, n_threads).total;
    return own > s.total ? own : s.total;
}

pl_mul_mat_id_scratch pl_scratch_mul_mat_id(pl_type w, int64_t k, int64_t n_rows, int64_t n_matrices, pl_precision precision,
                                            int n_threads)
{
    const pl_type_info *type = pl_type_get(w);
    PL_ASSERT(type != NULL && n_threads > 0);
    pl_mul_mat_id_scratch s = {.n_terms = precision != PL_ONE_TERM && type->act != PL_ACT_F32 ? 2 : 1};
    s.rows = lines((size_t)n_rows * sizeof(int32_t));
    s.begins = lines((size_t)(n_matrices + 1) * sizeof(int32_t));
    s.used = lines((size_t)(n_matrices + 1) * sizeof(int32_t));
    s.act = lines((size_t)(n_rows * s.n_terms) * pl_act_token_size(type->act, k));
    s.group = lines(PL_SCRATCH_ROWS * pl_type_row_size(w, k));
    s.thread = s.group + PL_SCRATCH_TILE * PL_SCRATCH_ROWS * PL_SCRATCH_PAIRS * sizeof(float);
    s.total = PL_SCRATCH_HEAD + s.rows + s.begins + s.used + s.act + (size_t)n_threads * s.thread;
    return s;
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
