/* The references' gradients against central differences of the references themselves, in double: the error of a
 * difference of step h is h^2 times a third derivative plus rounding / h, 1e-9 at h = 1e-5. */
#include "tests/kit/device/reference.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdlib.h>

enum { MOST = 4096 };

/* A scalar function of x (n): the sum of some outputs times fixed weights. */
typedef double scalar_function(const double *x, const void *context);

static void fill(double *x, size_t n, uint32_t seed)
{
    float *normal = malloc(n * sizeof *normal);

    random_normal(normal, (struct random_key){{seed, 0}}, 0, 0, n);
    for (size_t i = 0; i < n; i++)
        x[i] = (double)normal[i];
    free(normal);
}

static void check_gradient(scalar_function *f, const void *context, double *x, size_t n, const double *gradient)
{
    const double h = 1e-5;

    for (size_t i = 0; i < n; i++) {
        const double at = x[i];
        double above, below;
        x[i] = at + h;
        above = f(x, context);
        x[i] = at - h;
        below = f(x, context);
        x[i] = at;
        ck_assert_double_eq_tol(gradient[i], (above - below) / (2 * h), 1e-7);
    }
}

static double dot(const double *a, const double *b, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

TEST_RANGE(activation_gradients_are_the_activations_slopes, MODEL_GELU_NEW, MODEL_SILU + 1)
{
    for (double x = -6.0003; x < 6; x += 0.01) { /* relu's corner at 0 is not met */
        const enum model_activation activation = (enum model_activation)_i;
        const double h = 1e-5;
        const double slope =
            (reference_activation(activation, x + h) - reference_activation(activation, x - h)) / (2 * h);
        ck_assert_double_eq_tol(reference_activation_gradient(activation, x), slope, 1e-8);
    }
}

/* x, weight and bias one after the other, as one argument. */
enum { NORM_M = 3, NORM_N = 7, NORM_X = NORM_M * NORM_N };
static const double norm_epsilon = 1e-2; /* large enough to matter */

struct norm_case {
    bool rms;
    const double *dy;
};

static struct reference_norm norm_of(const double *x, const struct norm_case *c)
{
    return (struct reference_norm){c->rms, NORM_M, NORM_N, norm_epsilon, x, x + NORM_X, x + NORM_X + NORM_N};
}

static double norm_scalar(const double *x, const void *context)
{
    const struct norm_case *c = context;
    double y[NORM_X];
    const struct reference_norm op = norm_of(x, context);

    reference_norm(y, &op);
    return dot(y, c->dy, NORM_X);
}

TEST_EACH(norm_backward_is_the_slope_of_norm, 2)
{
    double x[NORM_X + 2 * NORM_N], gradient[NORM_X + 2 * NORM_N], dy[NORM_X];
    const struct reference_norm_gradient to = {gradient, gradient + NORM_X, gradient + NORM_X + NORM_N};

    fill(x, NORM_X + 2 * NORM_N, 1);
    fill(dy, NORM_X, 2);
    const struct norm_case c = {_i, dy};
    const struct reference_norm op = norm_of(x, &c);
    reference_norm_backward(&to, dy, &op);
    check_gradient(norm_scalar, &c, x, NORM_X + 2 * NORM_N, gradient);
}

struct attention_case {
    struct reference_attention op;
    const double *dy;
};

static double attention_scalar(const double *qkv, const void *context)
{
    const struct attention_case *c = context;
    double out[MOST], log_sum_exp[MOST];

    reference_attention(out, log_sum_exp, qkv, &c->op);
    return dot(out, c->dy, c->op.n_rows * c->op.n_tokens * c->op.width);
}

/* Causal, with dropout, of heads that share keys, and of all keys of rows of two lengths. */
TEST_EACH(attention_backward_is_the_slope_of_attention, 4)
{
    static const uint32_t lengths[] = {6, 2};
    static double qkv[MOST], gradient[MOST], dy[MOST], factors[MOST];
    const struct random_key key = {{7, 8}};
    struct attention_case c = {.op = {.n_rows = 2, .n_tokens = 6, .n_heads = 3, .width = 12, .scale = 0.7}, .dy = dy};
    const size_t n = 2 * 6 * 12, n_qkv = _i < 2 ? 3 * n : n + 2 * n / 3;

    c.op.factors = _i ? factors : NULL;
    c.op.n_kv_heads = _i < 2 ? 0 : 1;
    c.op.full = _i == 3, c.op.lengths = _i == 3 ? lengths : NULL;
    for (size_t i = 0; i < 2 * 3 * 6 * 6; i++)
        factors[i] = reference_dropout(0.3f, key, i / (3 * 6 * 6), i % (3 * 6 * 6));
    fill(qkv, n_qkv, 1);
    fill(dy, n, 2);
    reference_attention_backward(gradient, dy, qkv, &c.op);
    check_gradient(attention_scalar, &c, qkv, n_qkv, gradient);
}

/* By hand: one query and one key give v itself; two equal keys its mean. */
TEST(attention_averages_values)
{
    const struct reference_attention op = {.n_rows = 1, .n_tokens = 2, .n_heads = 1, .width = 1, .scale = 1};
    const double qkv[6] = {5, 3, 10, -2, 3, 20};
    double out[2], log_sum_exp[2];

    reference_attention(out, log_sum_exp, qkv, &op);
    ck_assert_double_eq_tol(out[0], 10, 1e-14);
    ck_assert_double_eq_tol(out[1], 15, 1e-14);
    ck_assert_double_eq_tol(log_sum_exp[0], 15, 1e-14);
    ck_assert_double_eq_tol(log_sum_exp[1], -6 + log(2), 1e-14);
}

static double cross_entropy_scalar(const double *logits, const void *label)
{
    return reference_cross_entropy(logits, 9, *(const size_t *)label);
}

TEST(cross_entropy_backward_is_the_slope_of_cross_entropy)
{
    const size_t label = 4;
    double logits[9], gradient[9];

    fill(logits, 9, 3);
    reference_cross_entropy_backward(gradient, logits, 9, label);
    check_gradient(cross_entropy_scalar, &label, logits, 9, gradient);
}
