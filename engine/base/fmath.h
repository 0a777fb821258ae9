/* Elementary functions that give the same bits on every processor: only +, -, *, / and fma in a fixed order, no libm.
 *
 * The vector forms in engine/cpu follow the same steps lane by lane; tests compare them bit by bit.
 * Accuracy: within 2 ulp of the exact value for f32, within 1e-14 relative for f64. */
#pragma once

float pl_expf(float x); /* 0 below -103.97, infinity above 88.72, NaN stays NaN */
double pl_exp(double x);
double pl_ln(double x);            /* x > 0 */
double pl_pow(double x, double y); /* x > 0: pl_exp(y * pl_ln(x)) */
double pl_sin(double x);           /* |x| < 2^30 */
double pl_cos(double x);
float pl_tanhf(float x);
float pl_sigmoidf(float x);    /* 1 / (1 + pl_expf(-x)) */
float pl_siluf(float x);       /* x / (1 + pl_expf(-x)) */
float pl_geluf(float x);       /* x times the normal distribution's integral up to x; within 6 ulp where x > -1, 8 + 1.5 x^2 below */
float pl_gelu_tanhf(float x);  /* x / (1 + pl_expf(-u)), u = 2 sqrt(2 / pi) (x + 0.044715 x^3) */
float pl_gelu_quickf(float x); /* x / (1 + pl_expf(-1.702 x)) */
