/* The definition of every kernel that is no matrix product, in plain C. fmaf is correctly rounded wherever it comes from. */
#include <math.h>
#include <string.h>

#include "engine/base/fmath.h"
#include "engine/cpu/kernels.h"
#include "engine/types/types.h"

enum { PAGE = 32 };

static float sum16_of(float s[16])
{
    for (int step = 8; step > 0; step /= 2)
        for (int i = 0; i < step; i++) s[i] += s[i + step];
    return s[0];
}

static void rms_norm(float *y, const float *x, const float *w, int64_t n, float eps)
{
    float s[16] = {0};
    for (int64_t i = 0; i < n; i++) s[i % 16] += x[i] * x[i];
    float r = 1.0f / sqrtf(sum16_of(s) / (float)n + eps);
    if (w)
        for (int64_t i = 0; i < n; i++) y[i] = x[i] * r * w[i];
    else
        for (int64_t i = 0; i < n; i++) y[i] = x[i] * r;
}

static void layer_norm(float *y, const float *x, const float *w, const float *b, int64_t n, float eps)
{
    float s[16] = {0}, q[16] = {0};
    for (int64_t i = 0; i < n; i++) s[i % 16] += x[i];
    float mean = sum16_of(s) / (float)n;
    for (int64_t i = 0; i < n; i++) {
        float c = x[i] - mean;
        q[i % 16] += c * c;
    }
    float r = 1.0f / sqrtf(sum16_of(q) / (float)n + eps);
    for (int64_t i = 0; i < n; i++) {
        float c = (x[i] - mean) * r;
        if (w) c *= w[i];
        if (b) c += b[i];
        y[i] = c;
    }
}

static void scale(float *y, const float *x, float s, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * s;
}

static void l2_norm(float *y, const float *x, int64_t n, float eps)
{
    float s[16] = {0};
    for (int64_t i = 0; i < n; i++) s[i % 16] += x[i] * x[i];
    float norm = sqrtf(sum16_of(s));
    scale(y, x, 1.0f / (norm > eps ? norm : eps), n);
}

static void add(float *y, const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = a[i] + b[i];
}

static void mul(float *y, const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = a[i] * b[i];
}

static void sub(float *y, const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = a[i] - b[i];
}

static void divide(float *y, const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = a[i] / b[i];
}

static void scale_add(float *y, const float *x, float s, float b, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * s + b;
}

static void clamp(float *y, const float *x, float least, float most, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float a = most < x[i] ? most : x[i];
        y[i] = least > a ? least : a;
    }
}

static void softcap(float *y, const float *x, float cap, int64_t n)
{
    float inverse = 1.0f / cap;
    for (int64_t i = 0; i < n; i++) y[i] = pl_tanhf(x[i] * inverse) * cap;
}

static inline float relu(float x)
{
    return x < 0.0f ? 0.0f : x;
}

static inline float relu2(float x)
{
    return relu(x) * relu(x);
}

#define FUNCTION(name, f)                                                                                              \
    static void name##_row(float *y, const float *x, int64_t n)                                                        \
    {                                                                                                                  \
        for (int64_t i = 0; i < n; i++) y[i] = f(x[i]);                                                                \
    }                                                                                                                  \
    static void name##_glu(float *y, const float *gate, const float *up, int64_t n)                                    \
    {                                                                                                                  \
        for (int64_t i = 0; i < n; i++) y[i] = f(gate[i]) * up[i];                                                     \
    }

FUNCTION(silu, pl_siluf)
FUNCTION(gelu, pl_geluf)
FUNCTION(gelu_tanh, pl_gelu_tanhf)
FUNCTION(gelu_quick, pl_gelu_quickf)
FUNCTION(relu, relu)
FUNCTION(relu2, relu2)
FUNCTION(sigmoid, pl_sigmoidf)
FUNCTION(tanh, pl_tanhf)
FUNCTION(exp, pl_expf)

/* Couple j is elements (j * step, j * step + gap). */
static void rope(float *y, size_t y_stride, const float *x, size_t x_stride, const float *cs, int64_t n_rot, int64_t d_head,
                 int64_t n_head, int64_t step, int64_t gap)
{
    for (int64_t h = 0; h < n_head; h++, x += x_stride, y += y_stride) {
        for (int64_t j = 0; j < n_rot / 2; j++) {
            float c = cs[2 * j], s = cs[2 * j + 1], x0 = x[j * step], x1 = x[j * step + gap];
            y[j * step] = x0 * c - x1 * s;
            y[j * step + gap] = x0 * s + x1 * c;
        }
        if (y != x) memcpy(y + n_rot, x + n_rot, (size_t)(d_head - n_rot) * sizeof *y);
    }
}

static void rope_norm(float *y, size_t y_stride, const float *x, size_t x_stride, const float *cs, int64_t n_rot, int64_t d_head,
                      int64_t n_head)
{
    rope(y, y_stride, x, x_stride, cs, n_rot, d_head, n_head, 2, 1);
}

static void rope_neox(float *y, size_t y_stride, const float *x, size_t x_stride, const float *cs, int64_t n_rot, int64_t d_head,
                      int64_t n_head)
{
    rope(y, y_stride, x, x_stride, cs, n_rot, d_head, n_head, 1, n_rot / 2);
}

static void f16_to_f32(float *y, const uint16_t *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = pl_f16_to_f32(x[i]);
}

static void f32_to_f16(uint16_t *y, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = pl_f32_to_f16(x[i]);
}

/* Row i of queries: scores first, then softmax_row, then the values. Both tile types share the middle. */
static float softmax_row(const pl_attn_tile *t, int i, float p[PAGE])
{
    for (int j = 0; j < PAGE; j++) p[j] *= t->scale;
    if (t->softcap != 0.0f) softcap(p, p, t->softcap, PAGE);
    if (t->slope)
        for (int j = 0; j < PAGE; j++) p[j] += t->slope[i] * (float)(j - t->at[i]);
    for (int j = 0; j < PAGE; j++)
        if (j < t->first[i] || j >= t->end[i]) p[j] = -INFINITY;
    float x[16];
    for (int j = 0; j < 16; j++) x[j] = p[j] > p[j + 16] ? p[j] : p[j + 16];
    for (int step = 8; step > 0; step /= 2)
        for (int j = 0; j < step; j++) x[j] = x[j] > x[j + step] ? x[j] : x[j + step];
    float m_new = t->m[i] > x[0] ? t->m[i] : x[0];
    float a = pl_expf(t->m[i] - m_new);
    for (int j = 0; j < PAGE; j++) p[j] = pl_expf(p[j] - m_new);
    for (int j = 0; j < 16; j++) x[j] = p[j] + p[j + 16];
    t->l[i] = t->l[i] * a + sum16_of(x);
    t->m[i] = m_new;
    return a;
}

static void attn_tile_f32(const pl_attn_tile *t)
{
    const float *k = t->k, *v = t->v, *q = t->q;
    float *acc = t->acc;
    for (int i = 0; i < t->n; i++, q += t->d_k, acc += t->d_v) {
        float p[PAGE] = {0};
        for (int d = 0; d < t->d_k; d++)
            for (int j = 0; j < PAGE; j++) p[j] = fmaf(q[d], k[d * PAGE + j], p[j]);
        float a = softmax_row(t, i, p);
        for (int d = 0; d < t->d_v; d++) acc[d] *= a;
        for (int j = t->first[i]; j < t->end[i]; j++)
            for (int d = 0; d < t->d_v; d++) acc[d] = fmaf(p[j], v[j * t->d_v + d], acc[d]);
    }
}

static void attn_tile_f16(const pl_attn_tile *t)
{
    const uint16_t *k = t->k, *v = t->v;
    const float *q = t->q;
    float *acc = t->acc;
    for (int i = 0; i < t->n; i++, q += t->d_k, acc += t->d_v) {
        float p[PAGE] = {0};
        for (int d = 0; d < t->d_k; d++)
            for (int j = 0; j < PAGE; j++) p[j] = fmaf(q[d], pl_f16_to_f32(k[d * PAGE + j]), p[j]);
        float a = softmax_row(t, i, p);
        for (int d = 0; d < t->d_v; d++) acc[d] *= a;
        for (int j = t->first[i]; j < t->end[i]; j++)
            for (int d = 0; d < t->d_v; d++) acc[d] = fmaf(p[j], pl_f16_to_f32(v[j * t->d_v + d]), acc[d]);
    }
}

/* Scales of a group, then its codes. */
static const uint8_t *group_scales(float scale[PAGE], const uint8_t *from)
{
    for (int j = 0; j < PAGE; j++) {
        uint16_t h;
        memcpy(&h, from + 2 * j, 2);
        scale[j] = pl_f16_to_f32(h);
    }
    return from + 2 * PAGE;
}

static void k_q8_0_to_f32(float *k, const void *tile, int64_t d)
{
    const uint8_t *from = tile;
    float scale[PAGE];
    for (int64_t g = 0; g < d; g += 32, from += 32 * PAGE) {
        from = group_scales(scale, from);
        for (int i = 0; i < 32 * PAGE; i++) k[g * PAGE + i] = (float)(int8_t)from[i] * scale[i % PAGE];
    }
}

static void k_q4_0_to_f32(float *k, const void *tile, int64_t d)
{
    const uint8_t *from = tile;
    float scale[PAGE];
    for (int64_t g = 0; g < d; g += 32, from += 16 * PAGE) {
        from = group_scales(scale, from);
        for (int i = 0; i < 16 * PAGE; i++) {
            k[g * PAGE + i] = (float)((from[i] & 15) - 8) * scale[i % PAGE];
            k[(g + 16) * PAGE + i] = (float)((from[i] >> 4) - 8) * scale[i % PAGE];
        }
    }
}

void pl_cpu_ops_portable(pl_cpu_kernels *k)
{
    k->rms_norm = rms_norm;
    k->layer_norm = layer_norm;
    k->l2_norm = l2_norm;
    k->add = add;
    k->sub = sub;
    k->mul = mul;
    k->div = divide;
    k->scale = scale;
    k->scale_add = scale_add;
    k->clamp = clamp;
    k->softcap = softcap;
#define INSTALL(fn, name)                                                                                              \
    k->unary[fn] = name##_row;                                                                                         \
    k->glu[fn] = name##_glu
    INSTALL(PL_FN_SILU, silu);
    INSTALL(PL_FN_GELU, gelu);
    INSTALL(PL_FN_GELU_TANH, gelu_tanh);
    INSTALL(PL_FN_GELU_QUICK, gelu_quick);
    INSTALL(PL_FN_RELU, relu);
    INSTALL(PL_FN_RELU2, relu2);
    INSTALL(PL_FN_SIGMOID, sigmoid);
    INSTALL(PL_FN_TANH, tanh);
    INSTALL(PL_FN_EXP, exp);
    k->rope_norm = rope_norm;
    k->rope_neox = rope_neox;
    k->f16_to_f32 = f16_to_f32;
    k->f32_to_f16 = f32_to_f16;
    k->attn_tile_f32 = attn_tile_f32;
    k->attn_tile_f16 = attn_tile_f16;
    k->kv_k_to_f32[PL_TYPE_Q8_0] = k_q8_0_to_f32;
    k->kv_k_to_f32[PL_TYPE_Q4_0] = k_q4_0_to_f32;
}
