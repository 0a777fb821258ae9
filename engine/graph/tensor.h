/* A tensor: description and data are separate. Descriptions live in an arena; data in a backend's buffer or a mapped file.
 *
 * ne[i] elements and nb[i] bytes between neighbours in dimension i, as in ggml: dimension 0 is the innermost.
 * reshape, view, permute and transpose only make new strides over the same bytes; a view of a view points at the root. */
#pragma once

#include "engine/base/arena.h"
#include "engine/types/types.h"

#define PL_MAX_DIMS 4
#define PL_MAX_SRC 8
#define PL_NAME_MAX 64

typedef struct pl_tensor pl_tensor;

/* How a weight's bytes are laid out. Packing is an invertible permutation within one tensor: same size, same identity. */
typedef enum pl_layout {
    PL_LAYOUT_PLAIN = 0, /* as in GGUF */
    PL_LAYOUT_R16 = 1    /* groups of 16 rows interleaved, remaining rows plain: see engine/cpu/pack.h */
} pl_layout;

/* In the order of op.c's table. What each computes, its sources and its parameters stand in op.h. */
typedef enum pl_op {
    PL_OP_NONE, /* an input or a weight */
    PL_OP_VIEW, /* reshape, view, permute, transpose: nothing to compute */
    PL_OP_GET_ROWS,
    PL_OP_MUL_MAT,
    PL_OP_MUL_MAT_BATCH,
    PL_OP_MUL_MAT_ID,
    PL_OP_RMS_NORM,
    PL_OP_LAYER_NORM,
    PL_OP_L2_NORM,
    PL_OP_ADD,
    PL_OP_SUB,
    PL_OP_MUL,
    PL_OP_DIV,
    PL_OP_SCALE,
    PL_OP_CLAMP,
    PL_OP_SOFTCAP,
    PL_OP_UNARY,
    PL_OP_GLU,
    PL_OP_ROPE,
    PL_OP_KV_STORE,
    PL_OP_ATTENTION,
    PL_OP_COPY,
    PL_OP_CONCAT,
    PL_OP_REPEAT,
    PL_OP_SET_ROWS,
    PL_OP_TAKE,
    PL_OP_TOP_K,
    PL_OP_SOFTMAX,
    PL_OP_SUM_ROWS,
    PL_OP_WEIGHTED_SUM,
    PL_OP_MEAN,
    PL_OP_COUNT
} pl_op;

/* What PL_OP_UNARY and PL_OP_GLU apply: op.h has the formulas. */
typedef enum pl_fn {
    PL_FN_SILU,
    PL_FN_GELU,
    PL_FN_GELU_TANH,
    PL_FN_GELU_QUICK,
    PL_FN_RELU,
    PL_FN_RELU2,
    PL_FN_SIGMOID,
    PL_FN_TANH,
    PL_FN_EXP,
    PL_FN_COUNT
} pl_fn;

enum { PL_TENSOR_INPUT = 1, PL_TENSOR_OUTPUT = 2, PL_TENSOR_WEIGHT = 4 };

struct pl_tensor {
    pl_type type;
    pl_layout layout;
    pl_op op;
    uint32_t flags;
    int64_t ne[PL_MAX_DIMS];
    size_t nb[PL_MAX_DIMS];
    pl_tensor *src[PL_MAX_SRC];
    pl_tensor *view_root; /* whose bytes these are, NULL when its own */
    size_t view_offset;   /* from the root's data */
    union {
        int32_t i[16];
        float f[16];
    } params;
    void *data; /* NULL until allocated or bound */
    char name[PL_NAME_MAX];
};

static inline int64_t pl_tensor_rows(const pl_tensor *t) { return t->ne[1] * t->ne[2] * t->ne[3]; }
static inline int64_t pl_tensor_elements(const pl_tensor *t) { return t->ne[0] * pl_tensor_rows(t); }
/* Bytes from the first element to behind the last. */
size_t pl_tensor_bytes(const pl_tensor *t);
bool pl_tensor_is_contiguous(const pl_tensor *t);
