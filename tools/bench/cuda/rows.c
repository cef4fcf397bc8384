/* Operations bound by device memory, in bytes that must be read and written, compared with a copy on the device that
 * moves as many gigabytes as fit. All are far larger than the device's caches. */
#include "tools/bench/cuda/bench.h"

enum { N = 4096, M = 32768, HEAD = 128, VOCABULARY = 50304, LOGIT_ROWS = 4096, TABLE = 50257 };

struct rows {
    size_t m, n, head, vocabulary, logit_rows, n_tokens;
    void *x, *y, *z, *w, *weight;
    float *logits, *running, *statistics, *sum, *table;
    uint32_t *ids, *labels;
    uint32_t n_table;
    size_t copy_bytes;
};

struct row {
    const char *name;
    bench_run *run;
    double values, floats; /* read and written: bytes 2 and 4 wide, in units of m * n elements */
    bool of_logits;        /* counts logits */
};

static void rows_copy(struct bench *b, void *context)
{
    const struct rows *r = context;

    must(cudaMemcpyAsync(r->y, r->x, r->copy_bytes, cudaMemcpyDeviceToDevice, b->stream));
}

static void activate_by(struct bench *b, const struct rows *r, enum model_activation activation)
{
    b->ops->activate(b->dev,
                     &(struct device_activate){.n = r->m * r->n, .activation = activation, .x = r->x, .y = r->y});
}

static void rows_activate(struct bench *b, void *context)
{
    activate_by(b, context, MODEL_GELU_NEW);
}

static void activate_erf(struct bench *b, void *context)
{
    activate_by(b, context, MODEL_GELU);
}

static struct device_norm rows_norm_of(const struct rows *r)
{
    return (struct device_norm){.m = r->m,
                                .n = r->n,
                                .epsilon = 1e-5f,
                                .x = r->x,
                                .weight = r->weight,
                                .bias = r->weight,
                                .y = r->y,
                                .statistics = r->statistics,
                                .y_gradient = r->z,
                                .x_gradient = r->y,
                                .accumulate = true,
                                .weight_gradient = r->sum,
                                .bias_gradient = r->sum + r->n};
}

static void rows_norm(struct bench *b, void *context)
{
    const struct device_norm op = rows_norm_of(context);

    b->ops->norm(b->dev, &op);
}

static void rows_norm_backward(struct bench *b, void *context)
{
    const struct device_norm op = rows_norm_of(context);

    b->ops->norm_backward(b->dev, &op);
}

/* Of the same rows, by heads and about 0. */
static struct device_norm head_norm_of(const struct rows *r)
{
    struct device_norm op = rows_norm_of(r);

    op.kind = DEVICE_RMS_NORM;
    op.n_heads = r->n / r->head, op.n = r->head;
    op.bias = NULL, op.bias_gradient = NULL, op.accumulate = false;
    return op;
}

static void head_norm(struct bench *b, void *context)
{
    const struct device_norm op = head_norm_of(context);

    b->ops->norm(b->dev, &op);
}

static void head_norm_backward(struct bench *b, void *context)
{
    const struct device_norm op = head_norm_of(context);

    b->ops->norm_backward(b->dev, &op);
}

static void rows_reduce_rows(struct bench *b, void *context)
{
    const struct rows *r = context;

    b->ops->reduce_rows(b->dev, &(struct device_reduce_rows){r->sum, r->x, r->m, r->n, r->n});
}

static struct device_dropout_add rows_dropout_of(const struct rows *r, float p)
{
    return (struct device_dropout_add){.n_rows = r->m / r->n_tokens,
                                       .n_tokens = r->n_tokens,
                                       .n = r->n,
                                       .x = r->x,
                                       .h = r->z,
                                       .y = r->y,
                                       .dropout = {.p = p, .key = {{1, 2}}}};
}

static void rows_add(struct bench *b, void *context)
{
    const struct device_dropout_add op = rows_dropout_of(context, 0);

    b->ops->dropout_add(b->dev, &op);
}

static void rows_dropout_add(struct bench *b, void *context)
{
    const struct device_dropout_add op = rows_dropout_of(context, 0.1f);

    b->ops->dropout_add(b->dev, &op);
}

static void dropout_backward(struct bench *b, void *context)
{
    struct device_dropout_add op = rows_dropout_of(context, 0.1f);

    op.x = NULL;
    b->ops->dropout_add(b->dev, &op);
}

/* The sum takes x's place, so x grows with each call: the values do not matter. */
static void sum_norm(struct bench *b, void *context)
{
    const struct rows *r = context;
    struct device_norm op = rows_norm_of(r);

    op.add = rows_dropout_of(r, 0.1f);
    op.add.y = r->x;
    b->ops->norm(b->dev, &op);
}

static void sum_norm_backward(struct bench *b, void *context)
{
    const struct rows *r = context;
    struct device_norm op = rows_norm_of(r);

    op.add = rows_dropout_of(r, 0.1f);
    op.add.x = op.add.h = NULL;
    op.add.y = r->w;
    b->ops->norm_backward(b->dev, &op);
}

static void rows_embed(struct bench *b, void *context)
{
    const struct rows *r = context;
    const struct device_embed op = {
        .m = r->m, .n = r->n, .n_table = r->n_table, .ids = r->ids, .table = r->table, .y = r->y};

    b->ops->embed(b->dev, &op);
}

static void rows_embed_backward(struct bench *b, void *context)
{
    const struct rows *r = context;
    const struct device_embed op = {
        .m = r->m, .n = r->n, .n_table = r->n_table, .ids = r->ids, .y_gradient = r->x, .table_gradient = r->table};

    b->ops->embed_backward(b->dev, &op);
}

static struct device_cross_entropy rows_cross_entropy_of(const struct rows *r)
{
    return (struct device_cross_entropy){.m = r->logit_rows,
                                         .n = r->vocabulary,
                                         .logits_stride = r->vocabulary,
                                         .start = true,
                                         .logits = r->logits,
                                         .labels = r->labels,
                                         .running = r->running,
                                         .scale = 1e-3f};
}

static void rows_log_sum_exp(struct bench *b, void *context)
{
    const struct device_cross_entropy op = rows_cross_entropy_of(context);

    b->ops->log_sum_exp(b->dev, &op);
}

/* In place: later calls read what the first left. The bytes are the same, and the values do not matter. */
static void rows_cross_entropy_gradient(struct bench *b, void *context)
{
    const struct device_cross_entropy op = rows_cross_entropy_of(context);

    b->ops->cross_entropy_gradient(b->dev, &op);
}

static const struct row rows[] = {
    {"row-gelu-tanh", rows_activate, 2, 0, false},
    {"row-gelu-erf", activate_erf, 2, 0, false},
    {"row-norm", rows_norm, 2, 0, false},
    {"row-norm-backward", rows_norm_backward, 4, 0, false},
    {"row-sum-norm", sum_norm, 4, 0, false},
    {"row-sum-norm-backward", sum_norm_backward, 5, 0, false},
    {"row-head-norm", head_norm, 2, 0, false},
    {"row-head-norm-backward", head_norm_backward, 3, 0, false},
    {"row-reduce", rows_reduce_rows, 1, 0, false},
    {"row-add", rows_add, 3, 0, false},
    {"row-dropout-add", rows_dropout_add, 3, 0, false},
    {"row-dropout-backward", dropout_backward, 2, 0, false},
    {"row-log-sum-exp", rows_log_sum_exp, 0, 1, true},
    {"row-cross-entropy", rows_cross_entropy_gradient, 1, 1, true},
    {"other-embed", rows_embed, 2, 0, false},
    {"other-embed-backward", rows_embed_backward, 1, 2, false},
};

static uint32_t *indices(struct bench *b, size_t n, uint32_t most)
{
    uint32_t *host = malloc(n * sizeof *host), *device = bench_take(b, n * sizeof *device);

    for (size_t i = 0; host && i < n; i++)
        host[i] = (uint32_t)(i * 2654435761u) % most;
    b->ops->upload(b->dev, device, host, n * sizeof *host);
    b->ops->sync(b->dev);
    free(host);
    return device;
}

static struct rows rows_make(struct bench *b)
{
    struct rows r = {.m = M,
                     .n = N,
                     .head = HEAD,
                     .vocabulary = VOCABULARY,
                     .logit_rows = LOGIT_ROWS,
                     .n_tokens = 1024,
                     .n_table = TABLE};

    if (b->small)
        r.m = 32, r.n = 64, r.head = 16, r.vocabulary = 128, r.logit_rows = 8, r.n_tokens = 8, r.n_table = 50;
    r.x = bench_values(b, r.m * r.n), r.y = bench_values(b, r.m * r.n), r.z = bench_values(b, r.m * r.n);
    r.w = bench_values(b, r.m * r.n);
    r.weight = bench_values(b, r.n);
    r.logits = bench_floats(b, r.logit_rows * r.vocabulary);
    r.running = bench_floats(b, 3 * r.logit_rows);
    r.statistics = bench_floats(b, 2 * r.m * r.n / r.head);
    r.sum = bench_floats(b, 2 * r.n);
    r.table = bench_floats(b, r.n_table * r.n);
    r.ids = indices(b, r.m, r.n_table);
    r.labels = indices(b, r.logit_rows, (uint32_t)r.vocabulary);
    r.copy_bytes = r.m * r.n * number_bytes(NUMBER_BF16);
    return r;
}

void bench_rows(struct bench *b)
{
    struct rows r = rows_make(b);

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct row *row = &rows[i];
        bench_run *const runs[] = {row->run, rows_copy};
        const double n = row->of_logits ? (double)(r.logit_rows * r.vocabulary) : (double)(r.m * r.n);
        const double bytes = n * (2 * row->values + 4 * row->floats);
        double ms[2];
        bench_times(b, ms, runs, &r, 2);
        const double rate = bytes / ms[0] * 1e-6, limit = 2 * (double)r.copy_bytes / ms[1] * 1e-6;
        printf("%s|%.3f|%.0f GB/s in %.3f ms, the copy %.0f GB/s\n", row->name, rate / limit, rate, ms[0], limit);
        fflush(stdout);
    }
}
