/* The operators. Each call records a node in the context's arena and computes nothing.
 *
 * NULL is given when the arena has no memory, and NULL sources give NULL, so a builder checks once, at its end.
 * A wrong shape is our own bug and asserts: whatever a file can get wrong is checked before (engine/model/hparams).
 * All activations are f32 unless said otherwise.
 *
 * To add an operator: its name in tensor.h's pl_op; here its maker, which checks shapes and keeps parameters; its row in op.c's table
 * (name, what may be computed in place, how it falls into parts); its row in engine/cpu/backend.c's table (function, cost, and where
 * it has them its scratch and what it cannot do). Loops over floats are rows of engine/cpu/kernels.h with portable code first. Tests:
 * a line in tests/contract's test_ops.c against float64, one in test_kernels.c for the bits. The planner, fusion, printing and the
 * thread pool need nothing more. State that outlives a run (a recurrent layer's) is a weight over the caller's bytes, as the cache is. */
#pragma once

#include "engine/graph/tensor.h"

typedef struct pl_graph_ctx pl_graph_ctx; /* an arena and the names of one build: graph.h */

/* A leaf. weight: its bytes are the caller's, who may also set t->data before each pl_graph_bind; only pl_kv_store writes to one
 * (a cache is made as a weight over the caller's writable bytes). input: planned with the graph, written by the caller. */
pl_tensor *pl_new_weight(pl_graph_ctx *c, pl_type type, pl_layout layout, int n_dims, const int64_t *ne, const void *data, const char *name);
pl_tensor *pl_new_input(pl_graph_ctx *c, pl_type type, int n_dims, const int64_t *ne, const char *name);
pl_tensor *pl_set_name(pl_tensor *t, const char *fmt, ...) PL_PRINTF(2, 3);
/* Marks t as a result: its bytes stay valid after the run. */
pl_tensor *pl_set_output(pl_tensor *t);

/* New strides over the same bytes. */
pl_tensor *pl_reshape(pl_graph_ctx *c, pl_tensor *a, int n_dims, const int64_t *ne); /* a is contiguous */
pl_tensor *pl_view(pl_graph_ctx *c, pl_tensor *a, int n_dims, const int64_t *ne, const size_t *nb, size_t offset);
/* Dimension i of a becomes dimension d_i, as in ggml. */
pl_tensor *pl_permute(pl_graph_ctx *c, pl_tensor *a, int d0, int d1, int d2, int d3);

/* rows: table [n_embd, n_vocab] of any type and layout, ids i32 [n] -> f32 [n_embd, n] */
pl_tensor *pl_get_rows(pl_graph_ctx *c, pl_tensor *table, pl_tensor *ids);

/* Writes f32 rows [n_embd, n] to the rows ids i32 [n] of table, of any type that can be encoded; a negative id writes nothing, and no
 * two are equal. table is a weight over writable bytes or a result that nothing else reads; the result is a view of it. */
pl_tensor *pl_set_rows(pl_graph_ctx *c, pl_tensor *table, pl_tensor *rows, pl_tensor *ids);

/* w [k, m] of any type and layout, x f32 [k, n] -> f32 [m, n]. Row i of the result is x's row i times w transposed.
 * The order of reduction is the contract in engine/cpu/kernels.h: it does not depend on n, threads or layout.
 * In more dimensions, w [k, m, b2, b3] and x [k, n, c2, c3] -> [m, n, c2, c3]: x's matrix (i2, i3) meets w's matrix
 * (i2 / (c2 / b2), i3 / (c3 / b3)). w may also be a result of type f32, f16 or bf16. */
pl_tensor *pl_mul_mat(pl_graph_ctx *c, pl_tensor *w, pl_tensor *x);

/* The same, more precisely where w's type has x quantized (float weights give the same as above): x is the sum of two terms, its
 * 8-bit blocks and the 8-bit blocks of what they leave, and the result is the sum of their products, y = y1 + y2, one rounding.
 * PL_TWO_TERMS_WHERE_LARGE leaves the second term of a block out (it is 0) unless the block is large beside its row: act.h says
 * when. params.i[0] is the precision. Two terms cost the arithmetic of twice the rows, and w is read once. */
pl_tensor *pl_mul_mat_precise(pl_graph_ctx *c, pl_tensor *w, pl_tensor *x, pl_precision precision);

/* Of experts: w [k, m, n_expert], x f32 [k, n_used, n_tok] or [k, 1, n_tok], ids i32 [n_used, n_tok] -> f32 [m, n_used, n_tok]: x's
 * row (u, t), or (0, t), times the matrix ids[u, t]. A negative id gives zeros. precision: as in
 * pl_mul_mat_precise. The bits of a row
 * depend on its x and its matrix alone. */
pl_tensor *pl_mul_mat_id(pl_graph_ctx *c, pl_tensor *w, pl_tensor *x, pl_tensor *ids, pl_precision precision);

/* x / sqrt(mean(x^2) + eps) along ne[0]; then times weight [ne0] f32 when that is not NULL (Zhang and Sennrich 2019). */
pl_tensor *pl_rms_norm(pl_graph_ctx *c, pl_tensor *x, pl_tensor *weight, float eps);

/* (x - mean) / sqrt(variance + eps) along ne[0] (Ba et al. 2016); then times weight and plus bias [ne0] f32, where they are not
 * NULL. pl_group_norm does so within each of n_groups equal parts of a row (Wu and He 2018). */
pl_tensor *pl_layer_norm(pl_graph_ctx *c, pl_tensor *x, pl_tensor *weight, pl_tensor *bias, float eps);
pl_tensor *pl_group_norm(pl_graph_ctx *c, pl_tensor *x, pl_tensor *weight, pl_tensor *bias, int n_groups, float eps);
/* x / max(sqrt(sum(x^2)), eps) along ne[0] */
pl_tensor *pl_l2_norm(pl_graph_ctx *c, pl_tensor *x, float eps);

/* Element by element; b is repeated over the dimensions in which it has one element: a bias [ne0], a factor for each row. */
pl_tensor *pl_add(pl_graph_ctx *c, pl_tensor *a, pl_tensor *b);
pl_tensor *pl_sub(pl_graph_ctx *c, pl_tensor *a, pl_tensor *b);
pl_tensor *pl_mul(pl_graph_ctx *c, pl_tensor *a, pl_tensor *b);
pl_tensor *pl_div(pl_graph_ctx *c, pl_tensor *a, pl_tensor *b);
pl_tensor *pl_scale(pl_graph_ctx *c, pl_tensor *a, float s);
pl_tensor *pl_scale_add(pl_graph_ctx *c, pl_tensor *a, float s, float b);    /* a * s + b, two roundings */
pl_tensor *pl_clamp(pl_graph_ctx *c, pl_tensor *a, float least, float most); /* infinities for no limit */
pl_tensor *pl_softcap(pl_graph_ctx *c, pl_tensor *a, float cap);             /* tanh(a / cap) * cap, cap > 0 */

/* fn of each element, and fn(gate) * up: Shazeer 2020's variants (SILU: SwiGLU, GELU: GeGLU, RELU: ReGLU, SIGMOID: GLU).
 *   SILU        x / (1 + exp(-x))                  RELU     max(x, 0)
 *   GELU        x * (1 + erf(x / sqrt(2))) / 2     RELU2    max(x, 0)^2
 *   GELU_TANH   x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2
 *   GELU_QUICK  x / (1 + exp(-1.702 x))            SIGMOID, TANH, EXP as they are
 * (Hendrycks and Gimpel 2016 for the three GELUs, So et al. 2021 for RELU2.) */
pl_tensor *pl_unary(pl_graph_ctx *c, pl_tensor *a, pl_fn fn);
pl_tensor *pl_glu(pl_graph_ctx *c, pl_tensor *gate, pl_tensor *up, pl_fn fn);
pl_tensor *pl_silu(pl_graph_ctx *c, pl_tensor *a);
pl_tensor *pl_swiglu(pl_graph_ctx *c, pl_tensor *gate, pl_tensor *up);

/* Rotary embedding (Su et al. 2021) of x [d_head, n_head, n_tok] by the table [n_rot, n_tok] f32 of interleaved (cos, sin)
 * pairs, one pair per rotated couple (made per run by engine/model from the positions, with scaling and factors applied).
 * neox: couples are (i, i + n_rot/2); otherwise (2i, 2i + 1). Elements from n_rot on pass through. */
pl_tensor *pl_rope(pl_graph_ctx *c, pl_tensor *x, pl_tensor *table, int n_rot, bool neox);

/* The paged cache of one layer. K and V are f32, f16, bf16, or, with heads of whole blocks of 32, q8_0 or q4_0, quantized per
 * token along the head. A block has, for each kv head, the K of PL_KV_PAGE positions and then their V:
 *   K  [d_k][page] with positions innermost; when quantized, for each 32 elements of the head, f16 scales [page] and then
 *      i8 [32][page], or bytes [16][page] with element i in the low nibbles and i + 16 in the high ones
 *   V  [page][d_v], rows of the type's own blocks */
typedef struct pl_kv_layout {
    pl_type k_type, v_type;
    int32_t n_head, d_k, d_v;
} pl_kv_layout;

bool pl_kv_layout_ok(const pl_kv_layout *l);
size_t pl_kv_block_bytes(const pl_kv_layout *l);
/* Bytes of one head's K and V in a block. */
size_t pl_kv_k_bytes(const pl_kv_layout *l);
size_t pl_kv_v_bytes(const pl_kv_layout *l);
/* A cache of n_blocks blocks over the caller's writable bytes, which may be set later: i8 [block's bytes, n_blocks]. */
pl_tensor *pl_new_kv(pl_graph_ctx *c, const pl_kv_layout *l, int64_t n_blocks, void *data, const char *name);
/* Of a cache or of pl_kv_store's result. */
pl_kv_layout pl_kv_layout_of(const pl_tensor *kv);

/* Writes k f32 [d_k, n_head, n_tok] and v f32 [d_v, n_head, n_tok] of this batch at slots i32 [n_tok]: slot = block * PL_KV_PAGE +
 * position % PL_KV_PAGE. A negative slot stores nothing. The result is a view of kv: give it to pl_attention so that the order of
 * execution holds. */
pl_tensor *pl_kv_store(pl_graph_ctx *c, pl_tensor *kv, pl_tensor *k, pl_tensor *v, pl_tensor *slots);

/* Attention over the paged cache, grouped queries, q f32 [d_k, n_head, n_tok] -> f32 [d_v * n_head, n_tok].
 * pos i32 [n_tok]: row i sees positions 0..pos[i] of its sequence; tables i32 [n_pages_max, n_tok]: the block of each page
 * of row i's sequence; only those with positions that it sees are looked at, and a row with pos[i] < 0 gives zeros. K and V are
 * read back from the cache, in tiles of one page anchored at absolute positions and merged in ascending order by the online
 * softmax (Milakov and Gimelshein 2018), so the result depends on nothing else in the batch. An encoder, whose rows see what is
 * behind them too, gives the last position of the sequence as pos, and all rows of a sequence in one batch. */
typedef struct pl_attention_options {
    float scale;    /* of q k^T */
    float softcap;  /* scores become softcap * tanh(score / softcap); 0: not */
    int32_t window; /* row i sees the last so many positions up to pos[i]; 0: all */
    int32_t chunk;  /* row i sees positions of its own chunk only, chunks being positions n * chunk to (n + 1) * chunk - 1; 0: all */
    float max_bias; /* ALiBi (Press et al. 2022): slope(head) * (position - pos[i]) is added; slopes begin at 2^(-max_bias / n),
                     * n the largest power of two up to n_head; 0: not */
} pl_attention_options;

/* sinks f32 [n_head]: a score of each head that takes its part of the softmax and gives no value (Xiao et al. 2024); or NULL. */
pl_tensor *pl_attention_with(pl_graph_ctx *c, pl_tensor *q, pl_tensor *kv, pl_tensor *sinks, pl_tensor *pos, pl_tensor *tables,
                             const pl_attention_options *options);
pl_tensor *pl_attention(pl_graph_ctx *c, pl_tensor *q, pl_tensor *kv, pl_tensor *pos, pl_tensor *tables, float scale);
pl_attention_options pl_attention_options_of(const pl_tensor *attention);

/* a -> a contiguous tensor of the given type: any that can be encoded, of any that can be decoded. Unless both are of f32, f16 and
 * bf16 or of one type, a's rows are dense. */
pl_tensor *pl_copy(pl_graph_ctx *c, pl_tensor *a, pl_type type);

/* a, then b, along dimension dim; of one type. */
pl_tensor *pl_concat(pl_graph_ctx *c, pl_tensor *a, pl_tensor *b, int dim);
/* a over and over until it has the shape ne, multiples of its own. */
pl_tensor *pl_repeat(pl_graph_ctx *c, pl_tensor *a, const int64_t ne[PL_MAX_DIMS]);

/* x f32 [n, ...], ids i32 [k, ...] -> f32 [k, ...]: element ids[j] of each row. */
pl_tensor *pl_take(pl_graph_ctx *c, pl_tensor *x, pl_tensor *ids);

/* The places of the k largest of each row of x f32 [n, ...], the largest first, of equal ones the first first; NaN is the smallest
 * -> i32 [k, ...]. With k = n the order of all. */
pl_tensor *pl_top_k(pl_graph_ctx *c, pl_tensor *x, int k);
/* The same of the k_groups best of n_groups equal parts of a row; a part is as good as the sum of its n_best largest (DeepSeek-V3,
 * "node-limited routing"). */
#define PL_TOP_K_GROUPS_MAX 256
pl_tensor *pl_top_k_of_groups(pl_graph_ctx *c, pl_tensor *x, int k, int n_groups, int k_groups, int n_best);

/* Softmax of x * scale + mask along ne[0]. mask f32 with x's ne[0], repeated where it has one row; or NULL. sinks f32 [ne2]: one
 * more score in each row, which has no element in the result; or NULL. A row that is masked whole gives zeros. */
pl_tensor *pl_softmax(pl_graph_ctx *c, pl_tensor *x, pl_tensor *mask, pl_tensor *sinks, float scale);

/* x [n, ...] -> [1, ...] */
pl_tensor *pl_sum_rows(pl_graph_ctx *c, pl_tensor *x);
/* x [m, n_used, n], w [n_used, n] -> [m, n]: the sum of the rows x[.., u, i] * w[u, i], in the order of u. */
pl_tensor *pl_weighted_sum(pl_graph_ctx *c, pl_tensor *x, pl_tensor *w);
/* x [m, n_tok], owners i32 [n_tok] -> [m, n]: row o is the mean, in order, of the rows whose owner is o; zeros for none. */
pl_tensor *pl_mean(pl_graph_ctx *c, pl_tensor *x, pl_tensor *owners, int64_t n);

const char *pl_op_name(pl_op op);
/* The same for people: the function's name where the operator is one of many, "silu", "swiglu" (a gated unit with silu) or "gelu_glu". */
const char *pl_op_label(pl_op op, pl_fn fn);
