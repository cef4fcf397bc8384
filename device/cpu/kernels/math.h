/* device/cpu/kernels/math.h - exponential and activations on vectors, without a library.
 *
 * gcc uses libm's vector functions only under -ffast-math, which breaks checks for NaN and infinity. These polynomials
 * have the least relative error over the reduced interval, with first coefficients fixed so that 0 maps to 1 exactly.
 * tests/device/cpu/test_cpu_matmul.c and test_cpu_softmax.c compare them with libm's double over a dense grid. NaN
 * stays NaN. */
#ifndef DEVICE_CPU_KERNELS_MATH_H
#define DEVICE_CPU_KERNELS_MATH_H

#include "device/cpu/kernels/vector.h"
#include "proto/model/model.h"

/* 2^n from t = n + MATH_ROUND: adding it to a float rounds that to an integer and leaves n + 127, which is the exponent
 * field of 2^n, in the lowest bits. n in [-127, 128] gives 0 ... infinity. */
#define MATH_ROUND (0x1.8p23f + 127)

VECTOR_INLINE vec math_power(vec t)
{
    return (vec)((vec_uint)t << 23);
}

/* 2^x: relative error 1e-7; 0 below -127, infinity above 127.5. */
VECTOR_INLINE vec math_exp2(vec x)
{
    x = vec_max(vec_all(-127), vec_min(vec_all(128), x));
    vec t = x + MATH_ROUND;
    vec r = x - (t - MATH_ROUND); /* exact, in [-0.5, 0.5] */
    vec p = r * 1.535335388e-4f + 1.339887618e-3f;

    p = p * r + 9.618437404e-3f;
    p = p * r + 5.550332465e-2f;
    p = p * r + 2.402264791e-1f;
    p = p * r + 6.931472029e-1f;
    p = p * r + 1;
    return p * math_power(t);
}

/* e^x: relative error 1e-7; 0 below -88.03, infinity above 88.37. ln 2 in two parts (Cody & Waite), so that the
 * reduction is exact. */
VECTOR_INLINE vec math_exp(vec x)
{
    x = vec_max(vec_all(-88.03f), vec_min(vec_all(88.73f), x));
    vec t = x * 1.44269504f + MATH_ROUND;
    vec n = t - MATH_ROUND;
    vec r = x - n * 0x1.62e4p-1f - n * 0x1.7f7d1cp-20f;
    vec p = r * 1.381460441e-3f + 8.368710652e-3f;

    p = p * r + 4.166838755e-2f;
    p = p * r + 1.666652068e-1f;
    p = p * r + 4.999999345e-1f;
    p = p * r + 1;
    p = p * r + 1;
    return p * math_power(t);
}

/* x * sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3): the tanh form of GELU without tanh's cancellation below 0.
 * Hendrycks & Gimpel, arXiv:1606.08415. */
VECTOR_INLINE vec math_gelu_new_exponential(vec x) /* exp(-2u), kept finite */
{
    const float a = -2.302208198f, b = -0.1029432396f; /* -2 sqrt(2/pi) / ln 2, and 0.044715 of it */

    return math_exp2(vec_min(vec_all(120), x * (x * x * b + a)));
}

VECTOR_INLINE vec math_gelu_new(vec x)
{
    return x / (1 + math_gelu_new_exponential(x));
}

VECTOR_INLINE vec math_gelu_new_gradient(vec x)
{
    const float a = 1.595769122f, b = 0.2140644488f; /* derivative of 2u: a + b x^2 */
    vec e = math_gelu_new_exponential(x), s = 1 / (1 + e);

    return s + x * (a + b * (x * x)) * s * (e * s);
}

/* Phi(x), the normal distribution's integral, and *density its derivative. Up to |x| = 1, 1/2 + x q(x^2), relative
 * error 7e-10; beyond, Phi(-|x|) = exp(-x^2/2) t p(t) with t = 1/(1 + 0.3|x|), relative error 4e-9 up to |x| = 14,
 * where the exponential is 0. */
VECTOR_INLINE vec math_normal(vec x, vec *density)
{
    vec square = x * x, a = vec_select(x < 0, -x, x), e = math_exp(square * -0.5f), t = 1 / (1 + 0.3f * a);
    vec q = square * -7.654206932e-6f + 1.134863681e-4f, p = t * -0.02061388268f + 0.1123813898f;

    q = q * square - 1.186329938e-3f;
    q = q * square + 9.973323408e-3f;
    q = q * square - 6.649035992e-2f;
    q = q * square + 3.989422801e-1f;
    p = p * t - 0.2280803924f;
    p = p * t + 0.1915983499f;
    p = p * t - 0.07926066332f;
    p = p * t + 0.09606463606f;
    p = p * t + 0.07842336995f;
    p = p * t + 0.1102277611f;
    p = p * t + 0.1195727937f;
    p = p * t + 0.1196866362f;
    p = e * (p * t);
    *density = e * 0.3989422804f;
    return vec_select(a < 1, x * q + 0.5f, vec_select(x < 0, p, 1 - p));
}

VECTOR_INLINE vec math_gelu(vec x)
{
    vec density;
    return x * math_normal(x, &density);
}

VECTOR_INLINE vec math_gelu_gradient(vec x)
{
    vec density, integral = math_normal(x, &density);
    return integral + x * density;
}

/* x * sigmoid(x). Elfwing, Uchibe & Doya, arXiv:1702.03118. */
VECTOR_INLINE vec math_silu_exponential(vec x) /* exp(-x), kept finite */
{
    return math_exp2(vec_min(vec_all(120), x * -1.44269504f));
}

VECTOR_INLINE vec math_silu(vec x)
{
    return x / (1 + math_silu_exponential(x));
}

VECTOR_INLINE vec math_silu_gradient(vec x)
{
    vec e = math_silu_exponential(x), s = 1 / (1 + e);

    return s + x * s * (e * s);
}

/* x * sigmoid(1.702 x). */
VECTOR_INLINE vec math_gelu_quick_exponential(vec x) /* exp(-1.702 x), kept finite */
{
    return math_exp2(vec_min(vec_all(120), x * -2.45546696f));
}

VECTOR_INLINE vec math_gelu_quick(vec x)
{
    return x / (1 + math_gelu_quick_exponential(x));
}

VECTOR_INLINE vec math_gelu_quick_gradient(vec x)
{
    vec e = math_gelu_quick_exponential(x), s = 1 / (1 + e);

    return s + 1.702f * x * s * (e * s);
}

VECTOR_INLINE vec math_sigmoid(vec x)
{
    return 1 / (1 + math_silu_exponential(x));
}

VECTOR_INLINE vec math_sigmoid_gradient(vec x)
{
    vec e = math_silu_exponential(x), s = 1 / (1 + e);

    return s * (e * s);
}

/* Relative error 2e-7. Up to |x| = 0.625, where (1 - e) / (1 + e) with e = exp(-2|x|) would lose digits, an odd
 * polynomial of relative error 4e-9. */
VECTOR_INLINE vec math_tanh(vec x)
{
    vec square = x * x, p = square * -5.704986863e-3f + 2.063908614e-2f;
    vec a = vec_select(x < 0, -x, x), e = math_exp2(a * -2.88539008f), t = (1 - e) / (1 + e);

    p = p * square - 5.373971537e-2f;
    p = p * square + 1.333144158e-1f;
    p = p * square - 3.333328068e-1f;
    return vec_select(a < 0.625f, x + x * (square * p), vec_select(x < 0, -t, t));
}

VECTOR_INLINE vec math_relu(vec x)
{
    return vec_select(x < 0, (vec){0}, x); /* a NaN stays */
}

VECTOR_INLINE vec math_relu_gradient(vec x)
{
    return vec_select(x > 0, vec_all(1), (vec){0});
}

VECTOR_INLINE vec math_relu2(vec x)
{
    return vec_select(x < 0, (vec){0}, x * x);
}

VECTOR_INLINE vec math_relu2_gradient(vec x)
{
    return vec_select(x < 0, (vec){0}, 2 * x);
}

/* 1 - tanh(x)^2 = 4 e / (1 + e)^2 with e = exp(-2|x|), which loses no digits where the slope is small. */
VECTOR_INLINE vec math_tanh_gradient(vec x)
{
    vec e = math_exp2(vec_select(x < 0, x, -x) * 2.88539008f), s = 1 / (1 + e);

    return 4 * (e * s) * s;
}

/* The activation is a constant wherever these are inlined. */
VECTOR_INLINE vec math_activation(enum model_activation activation, vec x)
{
    switch (activation) {
    case MODEL_GELU_NEW:
        return math_gelu_new(x);
    case MODEL_GELU:
        return math_gelu(x);
    case MODEL_RELU:
        return math_relu(x);
    case MODEL_SILU:
        return math_silu(x);
    case MODEL_TANH:
        return math_tanh(x);
    case MODEL_SIGMOID:
        return math_sigmoid(x);
    case MODEL_RELU2:
        return math_relu2(x);
    case MODEL_GELU_QUICK:
        return math_gelu_quick(x);
    }
    return x;
}

VECTOR_INLINE vec math_activation_gradient(enum model_activation activation, vec x)
{
    switch (activation) {
    case MODEL_GELU_NEW:
        return math_gelu_new_gradient(x);
    case MODEL_GELU:
        return math_gelu_gradient(x);
    case MODEL_RELU:
        return math_relu_gradient(x);
    case MODEL_SILU:
        return math_silu_gradient(x);
    case MODEL_TANH:
        return math_tanh_gradient(x);
    case MODEL_SIGMOID:
        return math_sigmoid_gradient(x);
    case MODEL_RELU2:
        return math_relu2_gradient(x);
    case MODEL_GELU_QUICK:
        return math_gelu_quick_gradient(x);
    }
    return x;
}

#endif
