/* Every function reduces its argument to a small interval, evaluates a polynomial there by a chain of fma, and scales
 * back. The steps of pl_expf are the contract of the vector forms: changing one changes every result, and the numeric
 * profile. */
#include "engine/base/fmath.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

static float f32_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}
static double f64_of(uint64_t u)
{
    double d;
    memcpy(&d, &u, 8);
    return d;
}
static uint64_t bits64_of(double d)
{
    uint64_t u;
    memcpy(&u, &d, 8);
    return u;
}

/* exp(x) = 2^n * exp(r), n = round(x / ln 2), |r| <= ln 2 / 2. exp(r) = 1 + r + r^2 * q(r), q fitted by iterated least
 * squares to a relative error of 3e-9. 2^n is applied in two factors, so that it never overflows before the result does
 * and a subnormal result is rounded once. */
float pl_expf(float x)
{
    x = x > 89.0f ? 89.0f : x;
    x = x < -104.0f ? -104.0f : x;
    const float magic = 0x1.8p23f; /* adding it leaves the nearest integer in the low bits */
    float t = fmaf(x, 0x1.715476p+0f, magic);
    int32_t n = (int32_t)(bits_of(t) - bits_of(magic));
    float nf = t - magic;
    float r = fmaf(nf, -0x1.62e4p-1f, x);
    r = fmaf(nf, -0x1.7f7d1cp-20f, r);
    float q = 0x1.6a23d0p-10f;
    q = fmaf(q, r, 0x1.123a20p-7f);
    q = fmaf(q, r, 0x1.5558f2p-5f);
    q = fmaf(q, r, 0x1.555492p-3f);
    q = fmaf(q, r, 0x1.fffffcp-2f);
    q = fmaf(q, r, 1.0f);
    q = fmaf(q, r, 1.0f);
    int32_t n1 = n >> 1, n2 = n - n1;
    float a = f32_of((uint32_t)(n1 + 127) << 23), b = f32_of((uint32_t)(n2 + 127) << 23);
    return q * a * b;
}

float pl_sigmoidf(float x)
{
    return 1.0f / (1.0f + pl_expf(-x));
}

float pl_siluf(float x)
{
    return x / (1.0f + pl_expf(-x));
}

float pl_gelu_quickf(float x)
{
    return x / (1.0f + pl_expf(-1.702f * x));
}

/* (1 + tanh(u / 2)) / 2 = 1 / (1 + exp(-u)), which loses no digits where tanh comes near to -1. */
float pl_gelu_tanhf(float x)
{
    float u = x * fmaf(x * x, 0x1.2444f2p-4f, 0x1.988454p+0f);
    return x / (1.0f + pl_expf(-u));
}

/* h = erfc(a) / 2 with a = |x| / sqrt(2): exp(-a^2) * u * p(u), u = 1 / (1 + a / 2), p fitted by Lawson's iteration for
 * a < 10 to a relative error of 2e-8. What a * a loses in rounding goes into the exponential's first derivative. */
float pl_geluf(float x)
{
    float a = (x < 0.0f ? -x : x) * 0x1.6a09e6p-1f;
    a = 12.0f < a ? 12.0f : a;
    float hi = a * a, lo = fmaf(a, a, -hi);
    float u = 1.0f / fmaf(a, 0.5f, 1.0f);
    float p = 0x1.9284a2p-8f;
    p = fmaf(p, u, -0x1.f8d9eap-5f);
    p = fmaf(p, u, 0x1.b739020p-3f);
    p = fmaf(p, u, -0x1.570d30p-2f);
    p = fmaf(p, u, 0x1.af6286p-3f);
    p = fmaf(p, u, -0x1.92b582p-5f);
    p = fmaf(p, u, 0x1.cde8e2p-4f);
    p = fmaf(p, u, 0x1.e8beap-4f);
    p = fmaf(p, u, 0x1.21a546p-3f);
    p = fmaf(p, u, 0x1.20d584p-3f);
    float e = pl_expf(-hi);
    float h = p * u * fmaf(-lo, e, e);
    return x * (x < 0.0f ? h : 1.0f - h);
}

/* 1/ln 2 and the two halves of ln 2: the first has 21 zero bits at its end, so that n * hi is exact. */
#define LN2_HI 0x1.62e42feep-1
#define LN2_LO 0x1.a39ef35793c76p-33

double pl_exp(double x)
{
    static const double c[] = {0x1.6124613a86d09p-33,
                               0x1.1eed8eff8d898p-29,
                               0x1.ae64567f544e4p-26,
                               0x1.27e4fb7789f5cp-22,
                               0x1.71de3a556c734p-19,
                               0x1.a01a01a01a01ap-16,
                               0x1.a01a01a01a01ap-13,
                               0x1.6c16c16c16c17p-10,
                               0x1.1111111111111p-7,
                               0x1.5555555555555p-5,
                               0x1.5555555555555p-3,
                               0x1p-1,
                               0x1p+0,
                               0x1p+0}; /* 1/13! to 1/0! */
    if (x != x) return x;
    x = x > 710.0 ? 710.0 : x;
    x = x < -746.0 ? -746.0 : x;
    const double magic = 0x1.8p52;
    double t = fma(x, 0x1.71547652b82fep+0, magic);
    double nf = t - magic;
    double r = fma(nf, -LN2_LO, fma(nf, -LN2_HI, x));
    double p = c[0];
    for (int i = 1; i < 14; i++) p = fma(p, r, c[i]);
    int64_t n = (int64_t)nf, n1 = n >> 1, n2 = n - n1;
    return p * f64_of((uint64_t)(n1 + 1023) << 52) * f64_of((uint64_t)(n2 + 1023) << 52);
}

/* log(x) = e * ln 2 + log(m), m in [sqrt(1/2), sqrt(2)); log(m) = 2 * artanh(s), s = (m - 1) / (m + 1), by its series.
 */
double pl_ln(double x)
{
    static const double c[] = {0x1.642c8590b2164p-4, 0x1.8618618618618p-4, 0x1.af286bca1af28p-4, 0x1.e1e1e1e1e1e1ep-4,
                               0x1.1111111111111p-3, 0x1.3b13b13b13b14p-3, 0x1.745d1745d1746p-3, 0x1.c71c71c71c71cp-3,
                               0x1.2492492492492p-2, 0x1.999999999999ap-2, 0x1.5555555555555p-1}; /* 2/23 to 2/3 */
    if (!(x > 0.0) || x > 0x1.fffffffffffffp+1023) return x == 0.0 ? -INFINITY : x > 0.0 ? x : NAN;
    int e = 0;
    if (x < 0x1p-1022) {
        x *= 0x1p54;
        e = -54;
    }
    uint64_t u = bits64_of(x);
    e += (int)(u >> 52) - 1023;
    double m = f64_of((u & 0xfffffffffffffull) | 0x3ff0000000000000ull);
    if (m > 0x1.6a09e667f3bcdp+0) {
        m *= 0.5;
        e++;
    }
    double f = m - 1.0, s = f / (m + 1.0), z = s * s, p = c[0];
    for (int i = 1; i < 11; i++) p = fma(p, z, c[i]);
    double small = fma(s * z, p, fma((double)e, LN2_LO, 2.0 * s));
    return fma((double)e, LN2_HI, small);
}

double pl_pow(double x, double y)
{
    return pl_exp(y * pl_ln(x));
}

/* x = n * pi/2 + r + lo with pi/2 in three parts (Cody and Waite). For |x| < 2^30 the first step is exact. */
static int reduce(double x, double *r, double *lo)
{
    const double magic = 0x1.8p52;
    double n = fma(x, 0x1.45f306dc9c883p-1, magic) - magic;
    double a = fma(n, -0x1.921fb54442d18p+0, x);
    double b = fma(n, -0x1.1a62633145c07p-54, a);
    *lo = fma(n, 0x1.f1976b7ed8fbcp-110, fma(n, -0x1.1a62633145c07p-54, a - b));
    *r = b;
    return (int)((int64_t)n & 3);
}

static double sin_poly(double r, double lo)
{
    static const double c[] = {0x1.952c77030ad4ap-49,  -0x1.ae7f3e733b81fp-41, 0x1.6124613a86d09p-33,
                               -0x1.ae64567f544e4p-26, 0x1.71de3a556c734p-19,  -0x1.a01a01a01a01ap-13,
                               0x1.1111111111111p-7,   -0x1.5555555555555p-3};
    double z = r * r, p = c[0]; /* 1/17! to -1/3! */
    for (int i = 1; i < 8; i++) p = fma(p, z, c[i]);
    return r + fma(r * z, p, fma(-0.5 * z, lo, lo));
}

static double cos_poly(double r, double lo)
{
    static const double c[] = {-0x1.6827863b97d97p-53, 0x1.ae7f3e733b81fp-45,  -0x1.93974a8c07c9dp-37,
                               0x1.1eed8eff8d898p-29,  -0x1.27e4fb7789f5cp-22, 0x1.a01a01a01a01ap-16,
                               -0x1.6c16c16c16c17p-10, 0x1.5555555555555p-5};
    double z = r * r, p = c[0]; /* -1/18! to 1/4! */
    for (int i = 1; i < 8; i++) p = fma(p, z, c[i]);
    double half = 0.5 * z, w = 1.0 - half; /* what 1 - half lost is put back: (1 - w) - half is exact */
    return w + (((1.0 - w) - half) + fma(z * z, p, -r * lo));
}

double pl_sin(double x)
{
    double r, lo;
    int q = reduce(x, &r, &lo);
    double v = q & 1 ? cos_poly(r, lo) : sin_poly(r, lo);
    return q & 2 ? -v : v;
}

double pl_cos(double x)
{
    double r, lo;
    int q = reduce(x, &r, &lo);
    double v = q & 1 ? sin_poly(r, lo) : cos_poly(r, lo);
    return (q + 1) & 2 ? -v : v;
}

/* Below 5/8 by x + x^3 * p(x^2), fitted by Lawson's iteration to a relative error of 5e-9; above by the exponential. */
float pl_tanhf(float x)
{
    float a = x < 0.0f ? -x : x, z = a * a;
    float p = -0x1.72fc22p-8f;
    p = fmaf(p, z, 0x1.518b0cp-6f);
    p = fmaf(p, z, -0x1.b8265cp-5f);
    p = fmaf(p, z, 0x1.11068ep-3f);
    p = fmaf(p, z, -0x1.55553p-2f);
    float low = fmaf(a * z, p, a);
    float high = 1.0f - 2.0f / (1.0f + pl_expf(a + a));
    float t = a < 0.625f ? low : high;
    return x < 0.0f ? -t : t;
}
