/* tests/sim/priced.c - the backend's table, which says of each operation what its kernels read, write and compute.
 *
 * In the field's terms: an operation reads each of its inputs and writes each of its outputs once, in whatever memory they
 * are, and computes what its formula says. What a kernel does beyond that is its own fault, and none of its time here: so a
 * time is the best that a kernel may reach, and a planner that knows the operation knows the time. Products and copies are
 * priced where they are queued (product.cpp, memory.cpp).
 *
 * Attention is 2 n^2 width a row forward, the causal half of two products, and 2.5 times that backward, of five; twice as
 * much where all keys are seen. */
#include "device/cuda/cuda.h"
#include "device/find.h"
#include "tests/sim/cudasim.h"

extern const struct device_ops unpriced_device_cuda; /* device/cuda/cuda.c's */

#define BACKEND (&unpriced_device_cuda)

/* The operation that follows moves so many bytes of the device's memory. */
static void move(double bytes)
{
    cudasim_operation(&(struct cudasim_price){.bytes = bytes});
}

static void end(void)
{
    cudasim_operation(NULL);
}

static double values(const struct device *dev, double n)
{
    return n * (double)number_bytes(dev->type);
}

static void round_bf16(struct device *dev, uint16_t *to, const float *from, size_t n)
{
    move(6.0 * (double)n);
    BACKEND->round_bf16(dev, to, from, n);
    end();
}

/* What the product did not fuse reads and writes c, and reads pre. */
static void matmul(struct device *dev, const struct device_matmul *op)
{
    move(values(dev, (op->epilogue == DEVICE_BIAS ? 2.0 : 3.0) * (double)op->m * (double)op->n));
    BACKEND->matmul(dev, op);
    end();
}

static void activate(struct device *dev, void *y, const void *x, size_t n, enum model_activation activation)
{
    move(values(dev, 2.0 * (double)n));
    BACKEND->activate(dev, y, x, n, activation);
    end();
}

static void activate_backward(struct device *dev, void *gradient, const void *x, size_t n,
                              enum model_activation activation)
{
    move(values(dev, 3.0 * (double)n));
    BACKEND->activate_backward(dev, gradient, x, n, activation);
    end();
}

static void reduce_rows(struct device *dev, float *sum, const void *x, size_t m, size_t n)
{
    move(values(dev, (double)m * (double)n) + 8.0 * (double)n);
    BACKEND->reduce_rows(dev, sum, x, m, n);
    end();
}

static void norm(struct device *dev, const struct device_norm *op)
{
    move(values(dev, 2.0 * (double)op->n * ((double)op->m + 1)) + 8.0 * (double)op->m);
    BACKEND->norm(dev, op);
    end();
}

static void norm_backward(struct device *dev, const struct device_norm *op)
{
    const double m = (double)op->m, n = (double)op->n;

    move(values(dev, ((op->accumulate ? 4.0 : 3.0) * m + 1) * n) + 8.0 * m + 16.0 * n);
    BACKEND->norm_backward(dev, op);
    end();
}

static void rope(struct device *dev, const struct device_rope *op)
{
    move(values(dev, 2.0 * (double)(op->n_rows * op->n_tokens) * (double)(op->n_heads * op->n_rotated)));
    BACKEND->rope(dev, op);
    end();
}

static void glu(struct device *dev, const struct device_glu *op)
{
    move(values(dev, 3.0 * (double)op->m * (double)op->n));
    BACKEND->glu(dev, op);
    end();
}

static void glu_backward(struct device *dev, const struct device_glu *op)
{
    move(values(dev, 5.0 * (double)op->m * (double)op->n));
    BACKEND->glu_backward(dev, op);
    end();
}

/* arrays: of queries or outputs; there are as many of keys or values. */
static void price_attention(const struct device *dev, const struct device_attention *op, double arrays, double times,
                            enum profile_attention direction)
{
    const double tokens = (double)op->n_rows * (double)op->n_tokens;
    const double kv_width = (double)device_kv_width(op->n_heads, op->n_kv_heads, op->width);

    cudasim_operation(&(struct cudasim_price){
        .bytes = values(dev, arrays * tokens * ((double)op->width + kv_width)) + 4 * tokens * (double)op->n_heads,
        .operations = times * (op->full ? 4 : 2) * tokens * (double)op->n_tokens * (double)op->width,
        .flops = cudasim_attention_flops(direction, dev->type),
    });
}

static void attention(struct device *dev, const struct device_attention *op)
{
    price_attention(dev, op, 2, 1, PROFILE_FORWARD);
    BACKEND->attention(dev, op);
    end();
}

static void attention_backward(struct device *dev, const struct device_attention *op)
{
    price_attention(dev, op, 4, 2.5, PROFILE_BACKWARD);
    BACKEND->attention_backward(dev, op);
    end();
}

/* Keys and values of all positions so far are read, those of the new ones written. */
static void attention_cached(struct device *dev, const struct device_attention_cached *op)
{
    const double tokens = (double)op->n_tokens, width = (double)op->width, keys = (double)op->first + tokens;
    const double kv_width = (double)device_kv_width(op->n_heads, op->n_kv_heads, op->width);

    cudasim_operation(&(struct cudasim_price){
        .bytes = values(dev, 2 * tokens * width + (4 * tokens + 2 * keys) * kv_width),
        .operations = 4 * tokens * keys * width,
        .flops = cudasim_attention_flops(PROFILE_FORWARD, dev->type),
    });
    BACKEND->attention_cached(dev, op);
    end();
}

static void dropout_add(struct device *dev, const struct device_dropout_add *op)
{
    move(values(dev, (op->x ? 3.0 : 2.0) * (double)op->n_rows * (double)op->n_tokens * (double)op->n));
    BACKEND->dropout_add(dev, op);
    end();
}

/* Rows of the table, which may be the host's, and of y. */
static void embed(struct device *dev, const struct device_embed *op)
{
    const double m = (double)op->m, n = (double)op->n;

    cudasim_operation(&(struct cudasim_price){
        .bytes = values(dev, (op->accumulate ? 3 : 2) * m * n) + 4 * m,
        .host_bytes = values(dev, m * n),
    });
    BACKEND->embed(dev, op);
    end();
}

/* At most m rows of the gradient are read and written. */
static void embed_backward(struct device *dev, const struct device_embed *op)
{
    const double m = (double)op->m, n = (double)op->n, rows = (double)(op->m < op->n_table ? op->m : op->n_table);

    move(values(dev, m * n) + 4 * m + 8 * rows * n);
    BACKEND->embed_backward(dev, op);
    end();
}

static void position(struct device *dev, const struct device_position *op)
{
    const double row = (double)op->n_tokens * (double)op->n;

    cudasim_operation(&(struct cudasim_price){
        .bytes = values(dev, (2.0 * (double)op->n_rows + 1) * row),
        .host_bytes = values(dev, row),
    });
    BACKEND->position(dev, op);
    end();
}

static void position_backward(struct device *dev, const struct device_position *op)
{
    const double row = (double)op->n_tokens * (double)op->n;

    move(values(dev, (double)op->n_rows * row) + 8.0 * row);
    BACKEND->position_backward(dev, op);
    end();
}

static void log_sum_exp(struct device *dev, const struct device_cross_entropy *op)
{
    move(4.0 * (double)op->m * (double)op->n + (op->start ? 16.0 : 28.0) * (double)op->m);
    BACKEND->log_sum_exp(dev, op);
    end();
}

static void loss(struct device *dev, double *losses, const float *running, const uint32_t *labels, size_t m)
{
    move(24.0 * (double)m);
    BACKEND->loss(dev, losses, running, labels, m);
    end();
}

static void cross_entropy_gradient(struct device *dev, const struct device_cross_entropy *op)
{
    const double elements = (double)op->m * (double)op->n;

    move(4.0 * elements + values(dev, elements) + 16.0 * (double)op->m);
    BACKEND->cross_entropy_gradient(dev, op);
    end();
}

static struct device_ops priced;

__attribute__((constructor)) static void price(void)
{
    priced = *BACKEND;
    priced.round_bf16 = round_bf16;
    priced.matmul = matmul;
    priced.activate = activate;
    priced.activate_backward = activate_backward;
    priced.reduce_rows = reduce_rows;
    priced.norm = norm;
    priced.norm_backward = norm_backward;
    priced.rope = rope;
    priced.glu = glu;
    priced.glu_backward = glu_backward;
    priced.attention = attention;
    priced.attention_backward = attention_backward;
    priced.attention_cached = attention_cached;
    priced.dropout_add = dropout_add;
    priced.embed = embed;
    priced.embed_backward = embed_backward;
    priced.position = position;
    priced.position_backward = position_backward;
    priced.log_sum_exp = log_sum_exp;
    priced.loss = loss;
    priced.cross_entropy_gradient = cross_entropy_gradient;
}

__attribute__((visibility("default"))) const struct device_module device_module = {
    .version = EPS_VERSION,
    .ops_bytes = sizeof(struct device_ops),
    .ops = &priced,
};
