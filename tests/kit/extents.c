#include "tests/kit/extents.h"

#include "tests/kit/backend.h"

static struct extents *record;
static unsigned threads;

void extents_begin(struct extents *extents)
{
    *extents = (struct extents){0};
    record = extents;
}

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
    int rc = backend_get()->ops->open(out, index, type, arena_bytes, n_threads, err);

    if (rc == 0) {
        record->arena = backend_get()->ops->arena(*out);
        record->arena_bytes = arena_bytes;
        record->type = type;
        threads = n_threads;
    }
    return rc;
}

static void close_device(struct device *dev)
{
    backend_get()->ops->close(dev);
}

static void count(struct device *dev, uint64_t *done)
{
    backend_get()->ops->count(dev, done);
}

static void *arena(struct device *dev)
{
    return backend_get()->ops->arena(dev);
}

static void upload(struct device *dev, void *dst, const void *host, size_t bytes)
{
    place(dst, bytes);
    record->copied += bytes;
    backend_get()->ops->upload(dev, dst, host, bytes);
}

static void download(struct device *dev, void *host, const void *src, size_t bytes)
{
    place(src, bytes);
    record->copied += bytes;
    backend_get()->ops->download(dev, host, src, bytes);
}

static int probe(unsigned index, struct device_facts *facts, struct error *err)
{
    return backend_get()->ops->probe(index, facts, err);
}

static int lend(struct device *dev, const void *host, size_t bytes, bool writable, struct error *err)
{
    return backend_get()->ops->lend(dev, host, bytes, writable, err);
}

static void unlend(struct device *dev, const void *host)
{
    backend_get()->ops->unlend(dev, host);
}

static uint64_t mark(struct device *dev, enum device_queue queue)
{
    return backend_get()->ops->mark(dev, queue);
}

static void follow(struct device *dev, enum device_queue queue, enum device_queue other, uint64_t wanted)
{
    backend_get()->ops->follow(dev, queue, other, wanted);
}

static int finish(struct device *dev, enum device_queue queue, uint64_t wanted)
{
    return backend_get()->ops->finish(dev, queue, wanted);
}

static int sync_device(struct device *dev)
{
    return backend_get()->ops->sync(dev);
}

static int fault(struct device *dev, struct error *err)
{
    return backend_get()->ops->fault(dev, err);
}

static void zero(struct device *dev, void *x, size_t bytes)
{
    place(x, bytes);
    backend_get()->ops->zero(dev, x, bytes);
}

static void round_bf16(struct device *dev, uint16_t *to, const float *from, size_t n)
{
    place(to, n * sizeof *to);
    floats(from, n);
    backend_get()->ops->round_bf16(dev, to, from, n);
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
    backend_get()->ops->matmul(dev, op);
}

static void activate(struct device *dev, void *y, const void *x, size_t n, enum model_activation activation)
{
    values(y, n);
    values(x, n);
    backend_get()->ops->activate(dev, y, x, n, activation);
}

static void reduce_rows(struct device *dev, float *sum, const void *x, size_t m, size_t n)
{
    floats(sum, n);
    values(x, m * n);
    backend_get()->ops->reduce_rows(dev, sum, x, m, n);
}

static void norm(struct device *dev, const struct device_norm *op)
{
    values(op->y, op->m * op->n);
    floats(op->statistics, 2 * op->m);
    values(op->x, op->m * op->n);
    values(op->weight, op->n);
    values(op->bias, op->n);
    backend_get()->ops->norm(dev, op);
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
    backend_get()->ops->norm_backward(dev, op);
}

static void rope(struct device *dev, const struct device_rope *op)
{
    values(op->x, reach(op->n_rows * op->n_tokens, op->n_heads * op->head_width, op->stride));
    backend_get()->ops->rope(dev, op);
}

static void glu(struct device *dev, const struct device_glu *op)
{
    values(op->gate, reach(op->m, op->n, op->stride));
    values(op->up, reach(op->m, op->n, op->stride));
    values(op->y, op->m * op->n);
    backend_get()->ops->glu(dev, op);
}

static void glu_backward(struct device *dev, const struct device_glu *op)
{
    values(op->gate, reach(op->m, op->n, op->stride));
    values(op->up, reach(op->m, op->n, op->stride));
    values(op->y_gradient, op->m * op->n);
    values(op->gate_gradient, reach(op->m, op->n, op->gradient_stride));
    values(op->up_gradient, reach(op->m, op->n, op->gradient_stride));
    backend_get()->ops->glu_backward(dev, op);
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

static void prepare_attention(struct device *dev, const struct device_attention *op, enum plan_attention way,
                              char told[DEVICE_TOLD])
{
    backend_get()->ops->prepare_attention(dev, op, way, told);
}

static void attention(struct device *dev, const struct device_attention *op)
{
    attention_places(op);
    backend_get()->ops->attention(dev, op);
}

static void attention_backward(struct device *dev, const struct device_attention *op)
{
    attention_places(op);
    values(op->out_gradient, op->n_rows * op->n_tokens * op->width);
    values(op->qkv_gradient, op->n_rows * op->n_tokens * qkv_width(op->n_heads, op->n_kv_heads, op->width));
    backend_get()->ops->attention_backward(dev, op);
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
    backend_get()->ops->attention_cached(dev, op);
}

static void dropout_add(struct device *dev, const struct device_dropout_add *op)
{
    const size_t n = op->n_rows * op->n_tokens * op->n;

    values(op->y, n);
    values(op->x, n);
    values(op->h, n);
    backend_get()->ops->dropout_add(dev, op);
}

static void embed(struct device *dev, const struct device_embed *op)
{
    values(op->y, op->m * op->n);
    place(op->ids, op->m * sizeof *op->ids);
    table(op->table, op->n_table * op->n);
    backend_get()->ops->embed(dev, op);
}

static void embed_backward(struct device *dev, const struct device_embed *op)
{
    floats(op->table_gradient, op->n_table * op->n);
    place(op->ids, op->m * sizeof *op->ids);
    values(op->y_gradient, op->m * op->n);
    backend_get()->ops->embed_backward(dev, op);
}

static void position(struct device *dev, const struct device_position *op)
{
    values(op->y, op->n_rows * op->n_tokens * op->n);
    table(op->table, op->n_tokens * op->n);
    backend_get()->ops->position(dev, op);
}

static void position_backward(struct device *dev, const struct device_position *op)
{
    floats(op->table_gradient, op->n_tokens * op->n);
    values(op->y_gradient, op->n_rows * op->n_tokens * op->n);
    backend_get()->ops->position_backward(dev, op);
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
    backend_get()->ops->log_sum_exp(dev, op);
}

static void loss(struct device *dev, double *losses, const float *running, const uint32_t *labels, size_t m)
{
    place(losses, m * sizeof *losses);
    floats(running, 3 * m);
    place(labels, m * sizeof *labels);
    backend_get()->ops->loss(dev, losses, running, labels, m);
}

static void cross_entropy_gradient(struct device *dev, const struct device_cross_entropy *op)
{
    cross_entropy_places(op);
    backend_get()->ops->cross_entropy_gradient(dev, op);
}

static void propose(struct device *dev, const struct device_matmul *op, struct products_candidates *out)
{
    backend_get()->ops->propose(dev, op, out);
}

static int choose(struct device *dev, const struct products *products, struct error *err)
{
    return backend_get()->ops->choose(dev, products, err);
}

const struct device_ops device_extents = {
    .name = "extents",
    .open = open_device,
    .close = close_device,
    .count = count,
    .arena = arena,
    .probe = probe,
    .lend = lend,
    .unlend = unlend,
    .upload = upload,
    .download = download,
    .mark = mark,
    .follow = follow,
    .finish = finish,
    .sync = sync_device,
    .fault = fault,
    .zero = zero,
    .round_bf16 = round_bf16,
    .matmul = matmul,
    .propose = propose,
    .choose = choose,
    .activate = activate,
    .reduce_rows = reduce_rows,
    .norm = norm,
    .norm_backward = norm_backward,
    .rope = rope,
    .glu = glu,
    .glu_backward = glu_backward,
    .prepare_attention = prepare_attention,
    .attention = attention,
    .attention_backward = attention_backward,
    .attention_cached = attention_cached,
    .dropout_add = dropout_add,
    .embed = embed,
    .embed_backward = embed_backward,
    .position = position,
    .position_backward = position_backward,
    .log_sum_exp = log_sum_exp,
    .loss = loss,
    .cross_entropy_gradient = cross_entropy_gradient,
};
