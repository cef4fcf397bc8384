/* device/cpu/kernels/experts.kernel.c - mixtures of experts (proto/operation/call/experts.h).
 *
 * One expert at a time, in ascending order, and backward in descending order: its tokens' rows are gathered, multiplied
 * by the device's own products, and added to the sums of their tokens. A token has an expert once, so threads share an
 * expert's rows without two that add to one sum, and the order of experts is that of each sum.
 *
 * Products of few rows have the bits of products of many (single.kernel.c), so a token's result does not depend on how
 * many others have its expert. */
#include "device/cpu/cpu.h"
#include "device/cpu/kernels/math.h"
#include "device/cpu/kernels/value.h"

#include <assert.h>
#include <math.h>

struct experts {
    struct device *dev;
    const struct device_experts *op;
    float *sum, *terms;
    value *rows, *slopes, *both, *units;
    uint32_t *order, *starts;
    value *low, *low_down, *b, *b_down;
    float *b_gradient;
};

/* One expert: its rows of `order`, and its weights. */
struct expert {
    size_t index, n;
    const uint32_t *rows;
    const value *gate, *up, *down;
};

/* A stable counting sort: `starts` counts, then begins and, while rows are placed, ends each expert's. */
static void experts_sort(const struct experts *e)
{
    const struct device_experts *op = e->op;
    uint32_t before = 0;

    memset(e->starts, 0, (op->n_experts + 1) * sizeof *e->starts);
    for (size_t i = 0; i < op->m * op->n_chosen; i++)
        e->starts[op->numbers[i]]++;
    for (size_t j = 0; j <= op->n_experts; j++) {
        const uint32_t n = e->starts[j];
        e->starts[j] = before;
        before += n;
    }
    for (size_t i = 0; i < op->m * op->n_chosen; i++)
        e->order[e->starts[op->numbers[i]]++] = (uint32_t)i;
    for (size_t j = op->n_experts; j > 0; j--)
        e->starts[j] = e->starts[j - 1];
    e->starts[0] = 0;
}

static struct experts experts_begin(struct device *dev, const struct device_experts *op, bool backward)
{
    const struct device_experts_places p = device_experts_lay(op, dev->type, backward);
    char *const at = op->scratch;
    const struct experts e = {.dev = dev,
                              .op = op,
                              .sum = (float *)(at + p.sum),
                              .terms = (float *)(at + p.rows),
                              .rows = (value *)(at + p.rows),
                              .slopes = (value *)(at + p.slopes),
                              .both = (value *)(at + p.both),
                              .units = (value *)(at + p.units),
                              .order = (uint32_t *)(at + p.order),
                              .starts = (uint32_t *)(at + p.starts),
                              .low = (value *)(at + p.low),
                              .low_down = (value *)(at + p.low_down),
                              .b = (value *)(at + p.b),
                              .b_down = (value *)(at + p.b_down),
                              .b_gradient = (float *)(at + p.b_gradient)};

    experts_sort(&e);
    memset(e.sum, 0, op->m * op->n * sizeof *e.sum);
    return e;
}

static struct expert expert_of(const struct experts *e, size_t i)
{
    const size_t n = e->op->n * e->op->inner;

    return (struct expert){.index = i,
                           .n = e->starts[i + 1] - e->starts[i],
                           .rows = e->order + e->starts[i],
                           .gate = (const value *)e->op->gate + i * n,
                           .up = (const value *)e->op->up + i * n,
                           .down = (const value *)e->op->down + i * n};
}

static void experts_gather(const struct experts *e, const struct expert *x, value *to, const value *from)
{
    const struct device_experts *op = e->op;

#pragma omp parallel for num_threads(cpu_threads(e->dev, x->n * op->n)) schedule(static)
    for (size_t i = 0; i < x->n; i++)
        memcpy(to + i * op->n, from + x->rows[i] / op->n_chosen * op->n, op->n * sizeof *to);
}

/* ---- adapters ---- */

/* One expert's adapter of one map. */
struct lowered {
    const struct device_experts_adapter *of;
    const value *a, *b; /* (rank, in), (out, rank) */
    value *low;         /* (rows, rank) */
    size_t in, out, expert, n_experts;
};

static struct lowered lowered_of(const struct experts *e, const struct expert *x, bool down)
{
    const struct device_experts *op = e->op;
    const struct device_experts_adapter *of = down ? &op->of_down : &op->gate_up;
    const size_t in = down ? op->inner : op->n;

    return (struct lowered){.of = of,
                            .a = (const value *)of->a + x->index * of->rank * in,
                            .b = down ? e->b_down : e->b,
                            .low = down ? e->low_down : e->low,
                            .in = in,
                            .out = down ? op->n : 2 * op->inner,
                            .expert = x->index,
                            .n_experts = op->n_experts};
}

/* B[e] (out, rank), whose columns are n_experts columns apart in the whole. */
static void lowered_take(const struct experts *e, const struct lowered *l, value *b)
{
    const size_t rank = l->of->rank;

#pragma omp parallel for num_threads(cpu_threads(e->dev, l->out *rank)) schedule(static)
    for (size_t i = 0; i < l->out; i++)
        for (size_t k = 0; k < rank; k++)
            b[i * rank + k] = ((const value *)l->of->b)[(i * rank + k) * l->n_experts + l->expert];
}

static void experts_take(const struct experts *e, const struct expert *x)
{
    const struct lowered in = lowered_of(e, x, false), down = lowered_of(e, x, true);

    lowered_take(e, &in, e->b);
    lowered_take(e, &down, e->b_down);
}

/* low = factor * x A^T, of rows x (n, in). */
static void lowered_descend(const struct experts *e, const struct lowered *l, const value *x, size_t n)
{
    if (l->of->rank > 0)
        KERNEL_NAME(cpu_matmul)
    (e->dev, &(struct device_matmul){.transpose_b = true,
                                     .m = n,
                                     .n = l->of->rank,
                                     .k = l->in,
                                     .a = x,
                                     .a_stride = l->in,
                                     .b = l->a,
                                     .b_stride = l->in,
                                     .c = l->low,
                                     .c_stride = l->of->rank,
                                     .factor = l->of->factor});
}

/* y (n, out) += low B^T; wide: in fp32. */
static void lowered_add(const struct experts *e, const struct lowered *l, void *y, size_t n, bool wide)
{
    if (l->of->rank > 0)
        KERNEL_NAME(cpu_matmul)
    (e->dev, &(struct device_matmul){.transpose_b = true,
                                     .m = n,
                                     .n = l->out,
                                     .k = l->of->rank,
                                     .a = l->low,
                                     .a_stride = l->of->rank,
                                     .b = l->b,
                                     .b_stride = l->of->rank,
                                     .c = y,
                                     .c_stride = l->out,
                                     .wide = wide,
                                     .beta = 1});
}

/* low = factor * dy B: the gradient of x A^T. */
static void lowered_ascend(const struct experts *e, const struct lowered *l, const value *dy, size_t n)
{
    if (l->of->rank > 0)
        KERNEL_NAME(cpu_matmul)
    (e->dev, &(struct device_matmul){.m = n,
                                     .n = l->of->rank,
                                     .k = l->out,
                                     .a = dy,
                                     .a_stride = l->out,
                                     .b = l->b,
                                     .b_stride = l->of->rank,
                                     .c = l->low,
                                     .c_stride = l->of->rank,
                                     .factor = l->of->factor});
}

/* dx (n, in) += low A; wide: in fp32. */
static void lowered_return(const struct experts *e, const struct lowered *l, void *dx, size_t n, bool wide)
{
    if (l->of->rank > 0)
        KERNEL_NAME(cpu_matmul)
    (e->dev, &(struct device_matmul){.m = n,
                                     .n = l->in,
                                     .k = l->of->rank,
                                     .a = l->low,
                                     .a_stride = l->of->rank,
                                     .b = l->a,
                                     .b_stride = l->in,
                                     .c = dx,
                                     .c_stride = l->in,
                                     .wide = wide,
                                     .beta = 1});
}

/* A's gradient: low^T x, where low is a gradient and x the map's input. */
static void lowered_contribute_a(const struct experts *e, const struct lowered *l, const value *x, size_t n)
{
    const size_t n_a = l->of->rank * l->in;
    float *const to = l->of->a_gradient ? l->of->a_gradient + l->expert * n_a : NULL;

    if (to && n > 0)
        KERNEL_NAME(cpu_matmul)
    (e->dev, &(struct device_matmul){.transpose_a = true,
                                     .m = l->of->rank,
                                     .n = l->in,
                                     .k = n,
                                     .a = l->low,
                                     .a_stride = l->of->rank,
                                     .b = x,
                                     .b_stride = l->in,
                                     .c = to,
                                     .c_stride = l->in,
                                     .wide = true,
                                     .over_rows = true,
                                     .beta = e->op->beta});
    else if (to && e->op->beta == 0) memset(to, 0, n_a * sizeof *to);
}

/* Puts the expert's gradient of B, or zeros, where its columns are. */
static void lowered_put(const struct experts *e, const struct lowered *l, bool any)
{
    const size_t rank = l->of->rank;

#pragma omp parallel for num_threads(cpu_threads(e->dev, l->out *rank)) schedule(static)
    for (size_t i = 0; i < l->out * rank; i++) {
        float *const to = l->of->b_gradient + i * l->n_experts + l->expert;
        *to = (any ? e->b_gradient[i] : 0) + (e->op->beta == 0 ? 0 : *to);
    }
}

/* B's gradient: dy^T low, where low is x A^T times the factor. */
static void lowered_contribute_b(const struct experts *e, const struct lowered *l, const value *dy, size_t n)
{
    if (!l->of->b_gradient)
        return;
    if (n > 0)
        KERNEL_NAME(cpu_matmul)
    (e->dev, &(struct device_matmul){.transpose_a = true,
                                     .m = l->out,
                                     .n = l->of->rank,
                                     .k = n,
                                     .a = dy,
                                     .a_stride = l->out,
                                     .b = l->low,
                                     .b_stride = l->of->rank,
                                     .c = e->b_gradient,
                                     .c_stride = l->of->rank,
                                     .wide = true,
                                     .over_rows = true});
    lowered_put(e, l, n > 0);
}

/* ---- forward ---- */

/* Gates and ups of the gathered rows: the columns of one array. */
static void experts_open(const struct experts *e, const struct expert *x)
{
    const struct device_experts *op = e->op;

    for (int i = 0; i < 2; i++)
        KERNEL_NAME(cpu_matmul)
    (e->dev, &(struct device_matmul){.transpose_b = true,
                                     .m = x->n,
                                     .n = op->inner,
                                     .k = op->n,
                                     .a = e->rows,
                                     .a_stride = op->n,
                                     .b = i ? x->up : x->gate,
                                     .b_stride = op->n,
                                     .c = e->both + (size_t)i * op->inner,
                                     .c_stride = 2 * op->inner});
    const struct lowered gate_up = lowered_of(e, x, false);
    lowered_descend(e, &gate_up, e->rows, x->n);
    lowered_add(e, &gate_up, e->both, x->n, false);
}

/* Adds each row of terms, times its weight if they are weighed, to its token's sum. */
static void experts_add(const struct experts *e, const struct expert *x, bool weighed)
{
    const struct device_experts *op = e->op;

#pragma omp parallel for num_threads(cpu_threads(e->dev, x->n * op->n)) schedule(static)
    for (size_t i = 0; i < x->n; i++) {
        float *sum = e->sum + x->rows[i] / op->n_chosen * op->n;
        const float *term = e->terms + i * op->n;
        const vec w = vec_all(weighed ? op->weights[x->rows[i]] : 1);
        for (size_t j = 0; j < op->n; j += VECTOR)
            vec_store_n(sum + j, vec_load_n(sum + j, op->n - j, 0) + w * vec_load_n(term + j, op->n - j, 0), op->n - j);
    }
}

static void experts_round(const struct experts *e, value *to)
{
    const size_t m = e->op->m, n = e->op->n;

#pragma omp parallel for num_threads(cpu_threads(e->dev, m *n)) schedule(static)
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j += VECTOR)
            value_store_n(to + i * n + j, vec_load_n(e->sum + i * n + j, n - j, 0), n - j);
}

static void expert_forward(const struct experts *e, const struct expert *x)
{
    const struct device_experts *op = e->op;
    const struct lowered down = lowered_of(e, x, true);

    experts_gather(e, x, e->rows, op->x);
    experts_take(e, x);
    experts_open(e, x);
    KERNEL_NAME(cpu_glu)
    (e->dev, &(struct device_glu){.m = x->n,
                                  .n = op->inner,
                                  .activation = MODEL_SILU,
                                  .gate = e->both,
                                  .up = e->both + op->inner,
                                  .stride = 2 * op->inner,
                                  .y = e->units});
    KERNEL_NAME(cpu_matmul)
    (e->dev, &(struct device_matmul){.transpose_b = true,
                                     .m = x->n,
                                     .n = op->n,
                                     .k = op->inner,
                                     .a = e->units,
                                     .a_stride = op->inner,
                                     .b = x->down,
                                     .b_stride = op->inner,
                                     .c = e->terms,
                                     .c_stride = op->n,
                                     .wide = true});
    lowered_descend(e, &down, e->units, x->n);
    lowered_add(e, &down, e->terms, x->n, true);
    experts_add(e, x, true);
}

void KERNEL_NAME(cpu_experts)(struct device *dev, const struct device_experts *op)
{
    const struct experts e = experts_begin(dev, op, false);

    for (size_t i = 0; i < op->n_experts; i++) {
        const struct expert x = expert_of(&e, i);
        if (x.n > 0)
            expert_forward(&e, &x);
    }
    experts_round(&e, op->y);
}

/* ---- backward ---- */

/* In row i: of the gradients of units, before they are weighed, come the gradient of the weight, those of gate and up,
 * in their places, and the weighed units, in the place of the first. */
static void experts_turn_row(const struct experts *e, const struct expert *x, size_t i)
{
    const struct device_experts *op = e->op;
    value *gate = e->both + i * 2 * op->inner, *up = gate + op->inner, *unit = e->units + i * op->inner;
    const vec w = vec_all(op->weights[x->rows[i]]);
    vec sum = {0};

    for (size_t j = 0; j < op->inner; j += VECTOR) {
        const size_t left = op->inner - j;
        const vec g = value_load_n(gate + j, left), u = value_load_n(up + j, left), d = value_load_n(unit + j, left);
        const vec s = math_silu(g);
        sum = vec_multiply_add(s * u, d, sum);
        value_store_n(gate + j, w * d * u * math_silu_gradient(g), left);
        value_store_n(up + j, w * d * s, left);
        value_store_n(unit + j, w * (s * u), left);
    }
    op->weights_gradient[x->rows[i]] = (float)vec_sum(sum);
}

/* A gradient of weights (m, n) = a^T b over the expert's rows, or 0, + beta * what is there. */
static void experts_contribute(const struct experts *e, const struct expert *x, float *all,
                               struct device_matmul product)
{
    const size_t n = e->op->n * e->op->inner;

    if (!all)
        return;
    product.c = all + x->index * n;
    product.c_stride = product.n;
    product.k = x->n;
    product.transpose_a = product.wide = product.over_rows = true;
    product.beta = e->op->beta;
    if (x->n > 0)
        KERNEL_NAME(cpu_matmul)(e->dev, &product);
    else if (e->op->beta == 0)
        memset(product.c, 0, n * sizeof(float));
}

static void experts_contribute_all(const struct experts *e, const struct expert *x)
{
    const struct device_experts *op = e->op;
    const struct device_matmul in = {
        .m = op->inner, .n = op->n, .a_stride = 2 * op->inner, .b = e->rows, .b_stride = op->n};
    struct device_matmul of = in;

    of.a = e->both;
    experts_contribute(e, x, op->gate_gradient, of);
    of.a = e->both + op->inner;
    experts_contribute(e, x, op->up_gradient, of);
    experts_contribute(e, x, op->down_gradient,
                       (struct device_matmul){.m = op->n,
                                              .n = op->inner,
                                              .a = e->slopes,
                                              .a_stride = op->n,
                                              .b = e->units,
                                              .b_stride = op->inner});
}

/* The terms of x's gradient, over the gathered rows, which nothing reads any more. */
static void experts_return(const struct experts *e, const struct expert *x)
{
    const struct device_experts *op = e->op;

    for (int i = 0; i < 2; i++)
        KERNEL_NAME(cpu_matmul)
    (e->dev, &(struct device_matmul){.m = x->n,
                                     .n = op->n,
                                     .k = op->inner,
                                     .a = e->both + (size_t)i * op->inner,
                                     .a_stride = 2 * op->inner,
                                     .b = i ? x->up : x->gate,
                                     .b_stride = op->n,
                                     .c = e->terms,
                                     .c_stride = op->n,
                                     .wide = true,
                                     .beta = (float)i});
    const struct lowered gate_up = lowered_of(e, x, false);
    lowered_return(e, &gate_up, e->terms, x->n, true);
    experts_add(e, x, false);
}

/* Behind expert_backward, units are weighed, `both` has gradients; low is that of gates and ups as forward, low_down is a
 * gradient, which the weighed units take for A's. Then each becomes the other. */
static void experts_contribute_adapters(const struct experts *e, const struct expert *x)
{
    const struct lowered gate_up = lowered_of(e, x, false), down = lowered_of(e, x, true);

    lowered_contribute_a(e, &down, e->units, x->n);
    if (x->n > 0)
        lowered_descend(e, &down, e->units, x->n);
    lowered_contribute_b(e, &down, e->slopes, x->n);
    lowered_contribute_b(e, &gate_up, e->both, x->n);
    if (x->n > 0)
        lowered_ascend(e, &gate_up, e->both, x->n);
    lowered_contribute_a(e, &gate_up, e->rows, x->n);
}

static void expert_backward(const struct experts *e, const struct expert *x)
{
    const struct device_experts *op = e->op;

    experts_gather(e, x, e->rows, op->x);
    experts_gather(e, x, e->slopes, op->y_gradient);
    experts_take(e, x);
    experts_open(e, x);
    KERNEL_NAME(cpu_matmul)
    (e->dev, &(struct device_matmul){.m = x->n,
                                     .n = op->inner,
                                     .k = op->n,
                                     .a = e->slopes,
                                     .a_stride = op->n,
                                     .b = x->down,
                                     .b_stride = op->inner,
                                     .c = e->units,
                                     .c_stride = op->inner});
    const struct lowered down = lowered_of(e, x, true);
    lowered_ascend(e, &down, e->slopes, x->n);
    lowered_return(e, &down, e->units, x->n, false);
#pragma omp parallel for num_threads(cpu_threads(e->dev, x->n * op->inner)) schedule(static)
    for (size_t i = 0; i < x->n; i++)
        experts_turn_row(e, x, i);
}

void KERNEL_NAME(cpu_experts_backward)(struct device *dev, const struct device_experts *op)
{
    const struct experts e = experts_begin(dev, op, true);

    for (size_t i = op->n_experts; i-- > 0;) {
        const struct expert x = expert_of(&e, i);
        if (x.n > 0)
            expert_backward(&e, &x);
        experts_contribute_all(&e, &x);
        experts_contribute_adapters(&e, &x);
        if (x.n > 0)
            experts_return(&e, &x);
    }
    experts_round(&e, op->x_gradient);
}
