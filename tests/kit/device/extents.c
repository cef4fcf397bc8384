#include "tests/kit/device/extents.h"

#include "tests/kit/device/backend.h"

struct device_ops device_extents;
static const struct device_ops *ops;
static struct extents *record;
static unsigned threads;

static void place(const void *at, size_t bytes)
{
    const char *p = at;

    if (!p || bytes == 0)
        return;
    if (p < record->arena || p + bytes > record->arena + record->arena_bytes) {
        record->n_outside++;
        return;
    }
    if (record->high_water < (size_t)(p + bytes - record->arena))
        record->high_water = (size_t)(p + bytes - record->arena);
}

static void values(const void *at, size_t n)
{
    place(at, n * number_bytes(record->type));
}

static void floats(const void *at, size_t n)
{
    place(at, n * sizeof(float));
}

/* Of the host, or of the arena. */
static void table(const void *at, size_t n)
{
    const char *p = at;

    if (p >= record->arena && p < record->arena + record->arena_bytes)
        values(at, n);
}

static int open_device(struct device **out, unsigned index, enum number_type type, size_t arena_bytes,
                       unsigned n_threads, struct error *err)
{
    int rc = ops->open(out, index, type, arena_bytes, n_threads, err);

    if (rc == 0) {
        record->arena = ops->arena(*out);
        record->arena_bytes = arena_bytes;
        record->type = type;
        threads = n_threads;
    }
    return rc;
}

static void upload(struct device *dev, void *dst, const void *host, size_t bytes)
{
    place(dst, bytes);
    record->copied += bytes;
    ops->upload(dev, dst, host, bytes);
}

static void download(struct device *dev, void *host, const void *src, size_t bytes)
{
    place(src, bytes);
    record->copied += bytes;
    ops->download(dev, host, src, bytes);
}

static void zero(struct device *dev, void *x, size_t bytes)
{
    place(x, bytes);
    ops->zero(dev, x, bytes);
}

static void round_bf16(struct device *dev, uint16_t *to, const float *from, size_t n)
{
    place(to, n * sizeof *to);
    floats(from, n);
    ops->round_bf16(dev, to, from, n);
}

static size_t reach(size_t rows, size_t columns, size_t stride)
{
    return (rows - 1) * stride + columns;
}

static void matmul(struct device *dev, const struct device_matmul *op)
{
    const size_t c = reach(op->m, op->n, op->c_stride);

    values(op->a, op->transpose_a ? reach(op->k, op->m, op->a_stride) : reach(op->m, op->k, op->a_stride));
    values(op->b, op->transpose_b ? reach(op->n, op->k, op->b_stride) : reach(op->k, op->n, op->b_stride));
    if (op->wide)
        floats(op->c, c);
    else
        values(op->c, c);
    if (op->epilogue == DEVICE_BIAS || op->epilogue == DEVICE_BIAS_ACTIVATION)
        values(op->bias, op->n);
    if (op->epilogue == DEVICE_BIAS_ACTIVATION || op->epilogue == DEVICE_ACTIVATION_GRADIENT)
        values(op->pre, c);
    ops->matmul(dev, op);
}

static void activate(struct device *dev, void *y, const void *x, size_t n, enum model_activation activation)
{
    values(y, n);
    values(x, n);
    ops->activate(dev, y, x, n, activation);
}

static void activate_backward(struct device *dev, void *gradient, const void *x, size_t n,
                              enum model_activation activation)
{
    values(gradient, n);
    values(x, n);
    ops->activate_backward(dev, gradient, x, n, activation);
}

static void reduce_rows(struct device *dev, float *sum, const void *x, size_t m, size_t n)
{
    floats(sum, n);
    values(x, m * n);
    ops->reduce_rows(dev, sum, x, m, n);
}

static void norm(struct device *dev, const struct device_norm *op)
{
    values(op->y, op->m * op->n);
    floats(op->statistics, 2 * op->m);
    values(op->x, op->m * op->n);
    values(op->weight, op->n);
    values(op->bias, op->n);
    ops->norm(dev, op);
}

static void norm_backward(struct device *dev, const struct device_norm *op)
{
    values(op->x_gradient, op->m * op->n);
    floats(op->weight_gradient, op->n);
    floats(op->bias_gradient, op->n);
    values(op->y_gradient, op->m * op->n);
    values(op->x, op->m * op->n);
    floats(op->statistics, 2 * op->m);
    values(op->weight, op->n);
    ops->norm_backward(dev, op);
}

static void rope(struct device *dev, const struct device_rope *op)
{
    values(op->x, reach(op->n_rows * op->n_tokens, op->n_heads * op->head_width, op->stride));
    ops->rope(dev, op);
}

static void glu(struct device *dev, const struct device_glu *op)
{
    values(op->gate, reach(op->m, op->n, op->stride));
    values(op->up, reach(op->m, op->n, op->stride));
    values(op->y, op->m * op->n);
    ops->glu(dev, op);
}

static void glu_backward(struct device *dev, const struct device_glu *op)
{
    values(op->gate, reach(op->m, op->n, op->stride));
    values(op->up, reach(op->m, op->n, op->stride));
    values(op->y_gradient, op->m * op->n);
    values(op->gate_gradient, reach(op->m, op->n, op->gradient_stride));
    values(op->up_gradient, reach(op->m, op->n, op->gradient_stride));
    ops->glu_backward(dev, op);
}

static size_t qkv_width(size_t n_heads, size_t n_kv_heads, size_t width)
{
    return width + 2 * device_kv_width(n_heads, n_kv_heads, width);
}

static void attention_places(const struct device_attention *op)
{
    const size_t n = op->n_rows * op->n_tokens;

    values(op->qkv, n * qkv_width(op->n_heads, op->n_kv_heads, op->width));
    values(op->out, n * op->width);
    floats(op->log_sum_exp, n * op->n_heads);
    place(op->scratch,
          backend_get()->plan->scratch_bytes(op->n_rows, op->n_tokens, op->n_heads,
                                             device_kv_heads(op->n_heads, op->n_kv_heads), op->width, threads));
}

static void attention(struct device *dev, const struct device_attention *op)
{
    attention_places(op);
    ops->attention(dev, op);
}

static void attention_backward(struct device *dev, const struct device_attention *op)
{
    attention_places(op);
    values(op->out_gradient, op->n_rows * op->n_tokens * op->width);
    values(op->qkv_gradient, op->n_rows * op->n_tokens * qkv_width(op->n_heads, op->n_kv_heads, op->width));
    ops->attention_backward(dev, op);
}

static void attention_cached(struct device *dev, const struct device_attention_cached *op)
{
    const size_t n_kv_heads = device_kv_heads(op->n_heads, op->n_kv_heads);

    values(op->qkv, op->n_tokens * qkv_width(op->n_heads, op->n_kv_heads, op->width));
    values(op->out, op->n_tokens * op->width);
    place(op->cache, backend_get()->plan->cache_bytes(record->type, op->n_positions, n_kv_heads,
                                                      op->width / op->n_heads * n_kv_heads));
    place(op->scratch,
          backend_get()->plan->scratch_bytes(1, op->n_tokens, op->n_heads, n_kv_heads, op->width, threads));
    ops->attention_cached(dev, op);
}

static void dropout_add(struct device *dev, const struct device_dropout_add *op)
{
    const size_t n = op->n_rows * op->n_tokens * op->n;

    values(op->y, n);
    values(op->x, n);
    values(op->h, n);
    ops->dropout_add(dev, op);
}

static void embed(struct device *dev, const struct device_embed *op)
{
    values(op->y, op->m * op->n);
    place(op->ids, op->m * sizeof *op->ids);
    table(op->table, op->n_table * op->n);
    ops->embed(dev, op);
}

static void embed_backward(struct device *dev, const struct device_embed *op)
{
    floats(op->table_gradient, op->n_table * op->n);
    place(op->ids, op->m * sizeof *op->ids);
    values(op->y_gradient, op->m * op->n);
    ops->embed_backward(dev, op);
}

static void position(struct device *dev, const struct device_position *op)
{
    values(op->y, op->n_rows * op->n_tokens * op->n);
    table(op->table, op->n_tokens * op->n);
    ops->position(dev, op);
}

static void position_backward(struct device *dev, const struct device_position *op)
{
    floats(op->table_gradient, op->n_tokens * op->n);
    values(op->y_gradient, op->n_rows * op->n_tokens * op->n);
    ops->position_backward(dev, op);
}

static void cross_entropy_places(const struct device_cross_entropy *op)
{
    floats(op->running, 3 * op->m);
    floats(op->logits, op->m * op->logits_stride);
    place(op->labels, op->m * sizeof *op->labels);
}

static void log_sum_exp(struct device *dev, const struct device_cross_entropy *op)
{
    cross_entropy_places(op);
    ops->log_sum_exp(dev, op);
}

static void loss(struct device *dev, double *losses, const float *running, const uint32_t *labels, size_t m)
{
    place(losses, m * sizeof *losses);
    floats(running, 3 * m);
    place(labels, m * sizeof *labels);
    ops->loss(dev, losses, running, labels, m);
}

static void cross_entropy_gradient(struct device *dev, const struct device_cross_entropy *op)
{
    cross_entropy_places(op);
    ops->cross_entropy_gradient(dev, op);
}

void extents_begin(struct extents *extents)
{
    struct device_ops *const to = &device_extents;

    *extents = (struct extents){0};
    record = extents;
    ops = backend_get()->ops;
    *to = *ops;
    to->name = "extents";
    to->open = open_device;
    to->upload = upload, to->download = download;
    to->zero = zero, to->round_bf16 = round_bf16;
    to->matmul = matmul, to->activate = activate, to->activate_backward = activate_backward,
    to->reduce_rows = reduce_rows;
    to->norm = norm, to->norm_backward = norm_backward;
    to->rope = rope;
    to->glu = glu, to->glu_backward = glu_backward;
    to->attention = attention, to->attention_backward = attention_backward;
    to->attention_cached = attention_cached;
    to->dropout_add = dropout_add;
    to->embed = embed, to->embed_backward = embed_backward;
    to->position = position, to->position_backward = position_backward;
    to->log_sum_exp = log_sum_exp, to->loss = loss, to->cross_entropy_gradient = cross_entropy_gradient;
}
