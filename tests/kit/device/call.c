#include "tests/kit/device/call.h"

#include <assert.h>
#include <string.h>

void *call_get(const struct call_array *array)
{
    void *at;

    memcpy(&at, array->member, sizeof at);
    return at;
}

void call_set(const struct call_array *array, const void *at)
{
    memcpy(array->member, &at, sizeof at);
}

size_t call_type_bytes(enum call_type type, enum number_type values)
{
    static const size_t bytes[] = {0, sizeof(float), sizeof(double), sizeof(uint32_t), 1};

    return type == CALL_VALUES ? number_bytes(values) : bytes[type];
}

/* (rows, columns), rows `stride` apart. */
static struct call_array *add_rows(struct call_arrays *to, const char *name, void *member, enum call_type type,
                                   unsigned use, size_t rows, size_t columns, size_t stride)
{
    struct call_array *array = &to->a[to->n];

    assert(to->n < CALL_ARRAYS);
    *array = (struct call_array){name, member, type, use, (rows - 1) * stride + columns, rows * columns};
    to->n += !(use & CALL_OPTIONAL) || call_get(array);
    return array;
}

static struct call_array *add(struct call_arrays *to, const char *name, void *member, enum call_type type, unsigned use,
                              size_t n)
{
    return add_rows(to, name, member, type, use, 1, n, n);
}

static void add_matmul(struct call_arrays *to, struct device_matmul *op)
{
    const size_t a[] = {op->transpose_a ? op->k : op->m, op->transpose_a ? op->m : op->k};
    const size_t b[] = {op->transpose_b ? op->n : op->k, op->transpose_b ? op->k : op->n};
    const bool activates = op->epilogue == DEVICE_BIAS_ACTIVATION;

    add_rows(to, "a", &op->a, CALL_VALUES, CALL_READ, a[0], a[1], op->a_stride);
    add_rows(to, "b", &op->b, CALL_VALUES, CALL_READ, b[0], b[1], op->b_stride);
    add_rows(to, "c", &op->c, op->wide ? CALL_FP32 : CALL_VALUES, CALL_WRITTEN | (op->beta != 0 ? CALL_READ : 0), op->m,
             op->n, op->c_stride);
    if (op->epilogue == DEVICE_BIAS || activates)
        add(to, "bias", &op->bias, CALL_VALUES, CALL_READ, op->n);
    if (activates || op->epilogue == DEVICE_ACTIVATION_GRADIENT)
        add_rows(to, "pre", &op->pre, CALL_VALUES, activates ? CALL_WRITTEN : CALL_READ, op->m, op->n, op->c_stride);
}

static void add_norm(struct call_arrays *to, struct device_norm *op, bool backward)
{
    const size_t heads = device_norm_heads(op), row = heads * op->n, stride = device_norm_stride(op);

    add_rows(to, "x", &op->x, CALL_VALUES, CALL_READ, op->m, row, stride);
    add(to, "weight", &op->weight, CALL_VALUES, CALL_READ, op->n);
    add(to, "statistics", &op->statistics, CALL_FP32, backward ? CALL_READ | CALL_FORWARD : CALL_WRITTEN,
        2 * op->m * heads);
    if (!backward) {
        add(to, "bias", &op->bias, CALL_VALUES, CALL_READ | CALL_OPTIONAL, op->n);
        add_rows(to, "y", &op->y, CALL_VALUES, CALL_WRITTEN, op->m, row, stride);
        return;
    }
    const unsigned sums = CALL_READ | CALL_WRITTEN | CALL_OPTIONAL;
    add_rows(to, "y_gradient", &op->y_gradient, CALL_VALUES, CALL_READ, op->m, row, stride);
    add_rows(to, "x_gradient", &op->x_gradient, CALL_VALUES, CALL_WRITTEN | (op->accumulate ? CALL_READ : 0), op->m,
             row, stride);
    add(to, "weight_gradient", &op->weight_gradient, CALL_FP32, sums, op->n);
    add(to, "bias_gradient", &op->bias_gradient, CALL_FP32, sums, op->n);
}

static void add_glu(struct call_arrays *to, struct device_glu *op, bool backward)
{
    add_rows(to, "gate", &op->gate, CALL_VALUES, CALL_READ, op->m, op->n, op->stride);
    add_rows(to, "up", &op->up, CALL_VALUES, CALL_READ, op->m, op->n, op->stride);
    if (!backward) {
        add(to, "y", &op->y, CALL_VALUES, CALL_WRITTEN, op->m * op->n);
        return;
    }
    add(to, "y_gradient", &op->y_gradient, CALL_VALUES, CALL_READ, op->m * op->n);
    add_rows(to, "gate_gradient", &op->gate_gradient, CALL_VALUES, CALL_WRITTEN, op->m, op->n, op->gradient_stride);
    add_rows(to, "up_gradient", &op->up_gradient, CALL_VALUES, CALL_WRITTEN, op->m, op->n, op->gradient_stride);
}

static void add_attention(struct call_arrays *to, struct device_attention *op, bool backward, size_t scratch)
{
    const size_t tokens = op->n_rows * op->n_tokens;
    const size_t qkv = tokens * (op->width + 2 * device_kv_width(op->n_heads, op->n_kv_heads, op->width));

    add(to, "qkv", &op->qkv, CALL_VALUES, CALL_READ, qkv);
    add(to, "lengths", &op->lengths, CALL_WORDS, CALL_READ | CALL_OPTIONAL, op->n_rows);
    add(to, "out", &op->out, CALL_VALUES, backward ? CALL_READ : CALL_WRITTEN, tokens * op->width);
    add(to, "log_sum_exp", &op->log_sum_exp, CALL_FP32, backward ? CALL_READ | CALL_FORWARD : CALL_WRITTEN,
        tokens * op->n_heads);
    add(to, "scratch", &op->scratch, CALL_BYTES, 0, scratch);
    if (!backward)
        return;
    add(to, "out_gradient", &op->out_gradient, CALL_VALUES, CALL_READ, tokens * op->width);
    add(to, "qkv_gradient", &op->qkv_gradient, CALL_VALUES, CALL_WRITTEN, qkv);
}

static void add_cached(struct call_arrays *to, struct device_attention_cached *op, size_t cache, size_t scratch)
{
    const size_t kv_width = device_kv_width(op->n_heads, op->n_kv_heads, op->width);

    add(to, "qkv", &op->qkv, CALL_VALUES, CALL_READ, op->n_tokens * (op->width + 2 * kv_width));
    add(to, "out", &op->out, CALL_VALUES, CALL_WRITTEN, op->n_tokens * op->width);
    add(to, "cache", &op->cache, CALL_BYTES, 0, cache);
    add(to, "scratch", &op->scratch, CALL_BYTES, 0, scratch);
}

static void add_embed(struct call_arrays *to, struct device_embed *op, bool backward)
{
    const size_t table = op->n_table * op->n, all = op->m * op->n;
    const size_t rows = backward && op->m > op->n_table ? op->n_table : op->m;

    add(to, "ids", &op->ids, CALL_WORDS, CALL_READ, op->m);
    if (backward) {
        add(to, "y_gradient", &op->y_gradient, CALL_VALUES, CALL_READ, all);
        add(to, "table_gradient", &op->table_gradient, CALL_FP32, CALL_READ | CALL_WRITTEN, table)->touched =
            rows * op->n;
        return;
    }
    add(to, "y", &op->y, CALL_VALUES, CALL_WRITTEN | (op->accumulate ? CALL_READ : 0), all);
    add(to, "table", &op->table, CALL_VALUES, CALL_READ | CALL_ANYWHERE, table)->touched = rows * op->n;
}

static void add_position(struct call_arrays *to, struct device_position *op, bool backward)
{
    const size_t row = op->n_tokens * op->n;

    if (backward) {
        add(to, "y_gradient", &op->y_gradient, CALL_VALUES, CALL_READ, op->n_rows * row);
        add(to, "table_gradient", &op->table_gradient, CALL_FP32, CALL_READ | CALL_WRITTEN, row);
        return;
    }
    add(to, "y", &op->y, CALL_VALUES, CALL_READ | CALL_WRITTEN, op->n_rows * row);
    add(to, "table", &op->table, CALL_VALUES, CALL_READ | CALL_ANYWHERE, row);
}

static void add_dropout(struct call_arrays *to, struct device_dropout_add *op)
{
    const size_t tokens = op->n_rows * op->n_tokens, stride = device_dropout_stride(op);

    add_rows(to, "y", &op->y, CALL_VALUES, CALL_WRITTEN, tokens, op->n, stride);
    add_rows(to, "x", &op->x, CALL_VALUES, CALL_READ | CALL_OPTIONAL, tokens, op->n, stride);
    add_rows(to, "h", &op->h, CALL_VALUES, CALL_READ, tokens, op->n, stride);
}

/* A gradient lies in the place of its logits, and zeros in that of what pads them. */
static void add_cross_entropy(struct call_arrays *to, struct device_cross_entropy *op, bool gradient, size_t wide)
{
    const unsigned running = gradient ? CALL_READ : CALL_WRITTEN | (op->start ? 0 : CALL_READ);

    add(to, "labels", &op->labels, CALL_WORDS, CALL_READ, op->m);
    add(to, "running", &op->running, CALL_FP32, running, 3 * op->m);
    add(to, "logits", &op->logits, CALL_FP32, CALL_READ, op->m * op->logits_stride)->touched = op->m * op->n;
    add(to, "bias", &op->bias, CALL_FP32, CALL_READ | CALL_OPTIONAL, op->n);
    if (gradient)
        add_rows(to, "gradient", &op->logits, CALL_VALUES, CALL_WRITTEN, op->m, op->logits_stride,
                 op->logits_stride * wide)
            ->touched = op->m * op->n;
}

static void add_squared_error(struct call_arrays *to, struct device_squared_error *op, bool gradient, size_t wide)
{
    add(to, "labels", &op->labels, CALL_WORDS, CALL_READ, op->m);
    add(to, "logits", &op->logits, CALL_FP32, CALL_READ, op->m * op->logits_stride)->touched = op->m;
    add(to, "bias", &op->bias, CALL_FP32, CALL_READ | CALL_OPTIONAL, 1);
    if (gradient)
        add_rows(to, "gradient", &op->logits, CALL_VALUES, CALL_WRITTEN, op->m, op->logits_stride,
                 op->logits_stride * wide);
    else
        add(to, "losses", &op->losses, CALL_FP64, CALL_WRITTEN, op->m);
}

void call_arrays(struct call_arrays *out, struct call *call, const struct plan_backend *plan, enum number_type type,
                 unsigned n_threads)
{
    struct device_attention *const attention = &call->attention;
    struct device_attention_cached *const cached = &call->attention_cached;
    struct device_rope *const rope = &call->rope;
    struct device_dropout_add *const drops = &call->dropout_add;
    struct device_reduce_rows *const reduced = &call->reduce_rows;
    const unsigned sums = CALL_READ | CALL_WRITTEN;

    out->n = 0;
    switch (call->kind) {
    case CALL_matmul:
        add_matmul(out, &call->matmul);
        break;
    case CALL_norm:
    case CALL_norm_backward:
        add_norm(out, &call->norm, call->kind == CALL_norm_backward);
        break;
    case CALL_rope:
        add_rows(out, "x", &rope->x, CALL_VALUES, sums, rope->n_rows * rope->n_tokens, rope->n_heads * rope->head_width,
                 rope->stride);
        break;
    case CALL_glu:
    case CALL_glu_backward:
        add_glu(out, &call->glu, call->kind == CALL_glu_backward);
        break;
    case CALL_attention:
    case CALL_attention_backward:
        add_attention(out, attention, call->kind == CALL_attention_backward,
                      plan->scratch_bytes(attention->n_rows, attention->n_tokens, attention->n_heads,
                                          device_kv_heads(attention->n_heads, attention->n_kv_heads), attention->width,
                                          n_threads));
        break;
    case CALL_attention_cached: {
        const size_t heads = device_kv_heads(cached->n_heads, cached->n_kv_heads);
        add_cached(out, cached,
                   plan->cache_bytes(type, cached->n_positions, heads, cached->width / cached->n_heads * heads),
                   plan->scratch_bytes(1, cached->n_tokens, cached->n_heads, heads, cached->width, n_threads));
        break;
    }
    case CALL_dropout_add:
        add_dropout(out, drops);
        break;
    case CALL_embed:
    case CALL_embed_backward:
        add_embed(out, &call->embed, call->kind == CALL_embed_backward);
        break;
    case CALL_position:
    case CALL_position_backward:
        add_position(out, &call->position, call->kind == CALL_position_backward);
        break;
    case CALL_log_sum_exp:
    case CALL_cross_entropy_gradient:
        add_cross_entropy(out, &call->log_sum_exp, call->kind == CALL_cross_entropy_gradient, device_wide(type));
        break;
    case CALL_squared_error:
    case CALL_squared_error_gradient:
        add_squared_error(out, &call->squared_error, call->kind == CALL_squared_error_gradient, device_wide(type));
        break;
    case CALL_zero:
        add(out, "x", &call->zero.x, CALL_BYTES, CALL_WRITTEN, call->zero.bytes);
        break;
    case CALL_round_bf16: /* two bytes each */
        add(out, "to", &call->round_bf16.to, CALL_BYTES, CALL_WRITTEN, 2 * call->round_bf16.n);
        add(out, "from", &call->round_bf16.from, CALL_FP32, CALL_READ, call->round_bf16.n);
        break;
    case CALL_activate:
        add(out, "y", &call->activate.y, CALL_VALUES, CALL_WRITTEN, call->activate.n);
        add(out, "x", &call->activate.x, CALL_VALUES, CALL_READ, call->activate.n);
        break;
    case CALL_activate_backward:
        add(out, "gradient", &call->activate.gradient, CALL_VALUES, sums, call->activate.n);
        add(out, "x", &call->activate.x, CALL_VALUES, CALL_READ, call->activate.n);
        break;
    case CALL_add:
        add(out, "sum", &call->add.sum, CALL_FP32, sums, call->add.n);
        add(out, "x", &call->add.x, CALL_FP32, CALL_READ, call->add.n);
        break;
    case CALL_reduce_rows:
        add(out, "sum", &reduced->sum, CALL_FP32, sums, reduced->n);
        add_rows(out, "x", &reduced->x, CALL_VALUES, CALL_READ, reduced->m, reduced->n, reduced->stride);
        break;
    case CALL_soft_cap:
        add(out, "x", &call->soft_cap.x, CALL_FP32, sums, call->soft_cap.n);
        break;
    case CALL_loss:
        add(out, "losses", &call->loss.losses, CALL_FP64, CALL_WRITTEN, call->loss.m);
        add(out, "running", &call->loss.running, CALL_FP32, CALL_READ, 3 * call->loss.m);
        add(out, "labels", &call->loss.labels, CALL_WORDS, CALL_READ, call->loss.m);
        break;
    }
}

void call_run(const struct device_ops *ops, struct device *dev, const struct call *call)
{
#define RUN(name, type)                                                                                                \
    case CALL_##name:                                                                                                  \
        return ops->name(dev, &call->name);

    switch (call->kind) {
        CALL_STRUCTS(RUN)
    }
}

/* ---- a table whose operations are calls ---- */

static void (*on_call)(struct device *dev, struct call *call);

#define CAUGHT(name, type)                                                                                             \
    static void catch_##name(struct device *dev, const struct type *op)                                                \
    {                                                                                                                  \
        on_call(dev, &(struct call){.kind = CALL_##name, .name = *op});                                                \
    }
CALL_STRUCTS(CAUGHT)

void call_intercept(struct device_ops *table, void (*hook)(struct device *dev, struct call *call))
{
#define REPLACE(name, type) table->name = catch_##name;
    on_call = hook;
    CALL_STRUCTS(REPLACE)
}
