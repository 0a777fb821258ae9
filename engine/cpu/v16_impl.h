/* Sixteen floats as one value, in whatever registers the file that includes this is compiled for. Kernels written on it have the
 * sixteen partial sums that kernels.h asks for, whatever the registers' width.
 *
 * Every function is one correctly rounded operation per lane, or says what else. Private to engine/cpu. */
#pragma once

#define V16_FN static inline __attribute__((always_inline))

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "engine/cpu/x86/v16_avx_impl.h"
#define V16 1
#elif defined(__SSE4_2__) || (defined(__aarch64__) && defined(__ARM_NEON))
#include "engine/cpu/v16_quads_impl.h"
#define V16 1
#endif

#if defined(V16)

/* The steps of pl_expf in engine/base/fmath.c, one by one. */
V16_FN v16 v16_exp(v16 x)
{
    const v16 one = v16_set1(1.0f), magic = v16_set1(0x1.8p23f);
    x = v16_min(v16_set1(89.0f), x);
    x = v16_max(v16_set1(-104.0f), x);
    v16 n = v16_sub(v16_fma(x, v16_set1(0x1.715476p+0f), magic), magic);
    v16 r = v16_fma(n, v16_set1(-0x1.62e4p-1f), x);
    r = v16_fma(n, v16_set1(-0x1.7f7d1cp-20f), r);
    v16 q = v16_set1(0x1.6a23d0p-10f);
    q = v16_fma(q, r, v16_set1(0x1.123a20p-7f));
    q = v16_fma(q, r, v16_set1(0x1.5558f2p-5f));
    q = v16_fma(q, r, v16_set1(0x1.555492p-3f));
    q = v16_fma(q, r, v16_set1(0x1.fffffcp-2f));
    q = v16_fma(q, r, one);
    q = v16_fma(q, r, one);
    return v16_scale2(q, n);
}
/* The other functions of engine/base/fmath.c, step by step. */
V16_FN v16 v16_sigmoid(v16 x)
{
    return v16_div(v16_set1(1.0f), v16_add(v16_set1(1.0f), v16_exp(v16_neg(x))));
}
V16_FN v16 v16_silu(v16 x) { return v16_div(x, v16_add(v16_set1(1.0f), v16_exp(v16_neg(x)))); }
V16_FN v16 v16_gelu_quick(v16 x)
{
    return v16_div(x, v16_add(v16_set1(1.0f), v16_exp(v16_mul(v16_set1(-1.702f), x))));
}
V16_FN v16 v16_gelu_tanh(v16 x)
{
    v16 u = v16_mul(x, v16_fma(v16_mul(x, x), v16_set1(0x1.2444f2p-4f), v16_set1(0x1.988454p+0f)));
    return v16_div(x, v16_add(v16_set1(1.0f), v16_exp(v16_neg(u))));
}
V16_FN v16 v16_gelu(v16 x)
{
    const v16 one = v16_set1(1.0f);
    v16 a = v16_mul(v16_abs(x), v16_set1(0x1.6a09e6p-1f));
    a = v16_min(v16_set1(12.0f), a);
    v16 hi = v16_mul(a, a), lo = v16_fma(a, a, v16_neg(hi));
    v16 u = v16_div(one, v16_fma(a, v16_set1(0.5f), one));
    v16 p = v16_set1(0x1.9284a2p-8f);
    p = v16_fma(p, u, v16_set1(-0x1.f8d9eap-5f));
    p = v16_fma(p, u, v16_set1(0x1.b739020p-3f));
    p = v16_fma(p, u, v16_set1(-0x1.570d30p-2f));
    p = v16_fma(p, u, v16_set1(0x1.af6286p-3f));
    p = v16_fma(p, u, v16_set1(-0x1.92b582p-5f));
    p = v16_fma(p, u, v16_set1(0x1.cde8e2p-4f));
    p = v16_fma(p, u, v16_set1(0x1.e8beap-4f));
    p = v16_fma(p, u, v16_set1(0x1.21a546p-3f));
    p = v16_fma(p, u, v16_set1(0x1.20d584p-3f));
    v16 e = v16_exp(v16_neg(hi));
    v16 h = v16_mul(v16_mul(p, u), v16_fma(v16_neg(lo), e, e));
    return v16_mul(x, v16_where_less(x, v16_zero(), h, v16_sub(one, h)));
}
V16_FN v16 v16_tanh(v16 x)
{
    const v16 one = v16_set1(1.0f);
    v16 a = v16_abs(x), z = v16_mul(a, a);
    v16 p = v16_set1(-0x1.72fc22p-8f);
    p = v16_fma(p, z, v16_set1(0x1.518b0cp-6f));
    p = v16_fma(p, z, v16_set1(-0x1.b8265cp-5f));
    p = v16_fma(p, z, v16_set1(0x1.11068ep-3f));
    p = v16_fma(p, z, v16_set1(-0x1.55553p-2f));
    v16 low = v16_fma(v16_mul(a, z), p, a);
    v16 high = v16_sub(one, v16_div(v16_set1(2.0f), v16_add(one, v16_exp(v16_add(a, a)))));
    v16 t = v16_where_less(a, v16_set1(0.625f), low, high);
    return v16_where_less(x, v16_zero(), v16_neg(t), t);
}
V16_FN v16 v16_relu(v16 x) { return v16_where_less(x, v16_zero(), v16_zero(), x); }
V16_FN v16 v16_relu2(v16 x) { return v16_mul(v16_relu(x), v16_relu(x)); }

#endif
