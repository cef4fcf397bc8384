/* Causal attention as the pattern of operations that cuDNN knows as fused attention: scores = scale q k^T, later keys
 * masked; their maximum, exponentials and sum along the keys; the quotient, rounded to bf16, times v. All between is
 * virtual: no such tensor is ever in memory. */
#include "device/cuda/dnn.h"

#include <assert.h>

enum { RANK = 4, VIRTUAL = 100 /* ids of tensors that nobody gives, from here on */ };

enum pointwise {
    ADD = 0,
    MULTIPLY = 1,
    DIVIDE = 6,
    SUBTRACT = 9,
    EXP = 13,
    LOG = 15,
    NOT_LESS = 303,
    INDEX = 501,
    SELECT = 601
};
enum reduction { SUM = 0, MAXIMUM = 3 };

static void *create(struct dnn_graph *g, enum dnn_descriptor kind)
{
    void *descriptor = NULL;

    assert(g->n < DNN_MAX_DESCRIPTORS);
    if (!g->status)
        g->status = g->api->create_descriptor((int)kind, &descriptor);
    if (!g->status)
        g->descriptors[g->n++] = descriptor;
    return descriptor;
}

static void set(struct dnn_graph *g, void *descriptor, enum dnn_attribute attribute, enum dnn_kind kind, int64_t n,
                const void *elements)
{
    if (!g->status)
        g->status = g->api->set(descriptor, (int)attribute, (int)kind, n, elements);
}

static void set_one(struct dnn_graph *g, void *descriptor, enum dnn_attribute attribute, const void *other)
{
    if (other)
        set(g, descriptor, attribute, DNN_KIND_DESCRIPTOR, 1, &other);
}

static void finalize(struct dnn_graph *g, void *descriptor)
{
    if (!g->status)
        g->status = g->api->finalize(descriptor);
}

struct tensor {
    int64_t id;
    enum dnn_type type;
    int64_t shape[RANK], strides[RANK];
    bool is_virtual, is_by_value;
};

static void *add_tensor(struct dnn_graph *g, const struct tensor *t)
{
    static const int64_t alignment = 16;
    void *d = create(g, DNN_TENSOR);

    set(g, d, DNN_TENSOR_TYPE, DNN_KIND_TYPE, 1, &t->type);
    set(g, d, DNN_TENSOR_SHAPE, DNN_KIND_INT64, RANK, t->shape);
    set(g, d, DNN_TENSOR_STRIDES, DNN_KIND_INT64, RANK, t->strides);
    set(g, d, DNN_TENSOR_ID, DNN_KIND_INT64, 1, &t->id);
    set(g, d, DNN_TENSOR_ALIGNMENT, DNN_KIND_INT64, 1, &alignment);
    if (t->is_virtual)
        set(g, d, DNN_TENSOR_IS_VIRTUAL, DNN_KIND_BOOLEAN, 1, &t->is_virtual);
    if (t->is_by_value)
        set(g, d, DNN_TENSOR_IS_BY_VALUE, DNN_KIND_BOOLEAN, 1, &t->is_by_value);
    finalize(g, d);
    return d;
}

/* (rows, heads, tokens, head width), or its transpose, of a buffer whose tokens are `stride` elements apart. */
static void *add_values(struct dnn_graph *g, const struct dnn_shape *s, enum dnn_tensor id, size_t stride,
                        bool transposed)
{
    const int64_t head = (int64_t)(s->width / s->n_heads), tokens = (int64_t)s->n_tokens, apart = (int64_t)stride;
    const struct tensor t = {
        .id = id,
        .type = DNN_BF16,
        .shape = {(int64_t)s->n_rows, (int64_t)s->n_heads, transposed ? head : tokens, transposed ? tokens : head},
        .strides = {tokens * apart, head, transposed ? 1 : apart, transposed ? apart : 1},
    };

    return add_tensor(g, &t);
}

static void *add_scalar(struct dnn_graph *g, enum dnn_tensor id)
{
    const struct tensor t = {
        .id = id, .type = DNN_FP32, .shape = {1, 1, 1, 1}, .strides = {1, 1, 1, 1}, .is_by_value = true};

    return add_tensor(g, &t);
}

/* (rows, heads, tokens, keys) of the scores; keys 1: of what was reduced along them. id 0: virtual. */
static void *add_scores(struct dnn_graph *g, const struct dnn_shape *s, enum dnn_type type, size_t keys, int64_t id)
{
    const int64_t tokens = (int64_t)s->n_tokens, heads = (int64_t)s->n_heads, n = (int64_t)keys;
    const struct tensor t = {
        .id = id ? id : VIRTUAL + (int64_t)g->n,
        .type = type,
        .shape = {(int64_t)s->n_rows, heads, tokens, n},
        .strides = {heads * tokens * n, tokens * n, n, 1},
        .is_virtual = id == 0,
    };

    return add_tensor(g, &t);
}

/* The operations of a graph, in order. */
struct operations {
    void *list[16];
    int64_t n;
};

static void add_matmul(struct dnn_graph *g, struct operations *ops, const void *a, const void *b, const void *c)
{
    static const enum dnn_type precision = DNN_FP32;
    void *mode = create(g, DNN_MATMUL);
    set(g, mode, DNN_MATMUL_PRECISION, DNN_KIND_TYPE, 1, &precision);
    finalize(g, mode);

    void *d = create(g, DNN_OPERATION_MATMUL);
    set_one(g, d, DNN_OPERATION_MATMUL_A, a);
    set_one(g, d, DNN_OPERATION_MATMUL_B, b);
    set_one(g, d, DNN_OPERATION_MATMUL_C, c);
    set_one(g, d, DNN_OPERATION_MATMUL_MODE, mode);
    finalize(g, d);
    ops->list[ops->n++] = d;
}

struct pointwise_operation {
    enum pointwise mode;
    const void *x, *b, *t, *y; /* y = mode(x, b), or t ? x : b; b and t may be NULL */
    int64_t axis;              /* of INDEX */
};

static void add_pointwise(struct dnn_graph *g, struct operations *ops, const struct pointwise_operation *p)
{
    const enum dnn_type precision = p->mode == NOT_LESS ? DNN_BOOLEAN : DNN_FP32;
    void *mode = create(g, DNN_POINTWISE);
    set(g, mode, DNN_POINTWISE_MODE, DNN_KIND_POINTWISE, 1, &p->mode);
    set(g, mode, DNN_POINTWISE_PRECISION, DNN_KIND_TYPE, 1, &precision);
    if (p->mode == INDEX)
        set(g, mode, DNN_POINTWISE_AXIS, DNN_KIND_INT64, 1, &p->axis);
    finalize(g, mode);

    void *d = create(g, DNN_OPERATION_POINTWISE);
    set_one(g, d, DNN_OPERATION_POINTWISE_MODE, mode);
    set_one(g, d, DNN_OPERATION_POINTWISE_X, p->x);
    set_one(g, d, DNN_OPERATION_POINTWISE_B, p->b);
    set_one(g, d, DNN_OPERATION_POINTWISE_T, p->t);
    set_one(g, d, DNN_OPERATION_POINTWISE_Y, p->y);
    finalize(g, d);
    ops->list[ops->n++] = d;
}

static void add_reduction(struct dnn_graph *g, struct operations *ops, enum reduction operator, const void * x,
                          const void *y)
{
    static const enum dnn_type precision = DNN_FP32;
    void *mode = create(g, DNN_REDUCTION);
    set(g, mode, DNN_REDUCTION_OPERATOR, DNN_KIND_REDUCTION, 1, &operator);
    set(g, mode, DNN_REDUCTION_PRECISION, DNN_KIND_TYPE, 1, &precision);
    finalize(g, mode);

    void *d = create(g, DNN_OPERATION_REDUCTION);
    set_one(g, d, DNN_OPERATION_REDUCTION_X, x);
    set_one(g, d, DNN_OPERATION_REDUCTION_Y, y);
    set_one(g, d, DNN_OPERATION_REDUCTION_MODE, mode);
    finalize(g, d);
    ops->list[ops->n++] = d;
}

/* Scores of keys that come after their query become DNN_MASKED. */
static void *add_mask(struct dnn_graph *g, struct operations *ops, const struct dnn_shape *s, const void *scores)
{
    void *query = add_scores(g, s, DNN_INT32, s->n_tokens, 0), *key = add_scores(g, s, DNN_INT32, s->n_tokens, 0);
    void *is_seen = add_scores(g, s, DNN_BOOLEAN, s->n_tokens, 0);
    void *masked = add_scores(g, s, DNN_FP32, s->n_tokens, 0);

    add_pointwise(g, ops, &(struct pointwise_operation){.mode = INDEX, .x = scores, .y = query, .axis = 2});
    add_pointwise(g, ops, &(struct pointwise_operation){.mode = INDEX, .x = scores, .y = key, .axis = 3});
    add_pointwise(g, ops, &(struct pointwise_operation){.mode = NOT_LESS, .x = query, .b = key, .y = is_seen});
    add_pointwise(g, ops,
                  &(struct pointwise_operation){
                      .mode = SELECT, .x = scores, .b = add_scalar(g, DNN_MASKED), .t = is_seen, .y = masked});
    return masked;
}

/* Probabilities in bf16; writes DNN_LOG_SUM_EXP. */
static void *add_softmax(struct dnn_graph *g, struct operations *ops, const struct dnn_shape *s, const void *scores)
{
    void *most = add_scores(g, s, DNN_FP32, 1, 0), *less = add_scores(g, s, DNN_FP32, s->n_tokens, 0);
    void *exponential = add_scores(g, s, DNN_FP32, s->n_tokens, 0), *sum = add_scores(g, s, DNN_FP32, 1, 0);
    void *log = add_scores(g, s, DNN_FP32, 1, 0), *log_sum_exp = add_scores(g, s, DNN_FP32, 1, DNN_LOG_SUM_EXP);
    void *probabilities = add_scores(g, s, DNN_BF16, s->n_tokens, 0);

    add_reduction(g, ops, MAXIMUM, scores, most);
    add_pointwise(g, ops, &(struct pointwise_operation){.mode = SUBTRACT, .x = scores, .b = most, .y = less});
    add_pointwise(g, ops, &(struct pointwise_operation){.mode = EXP, .x = less, .y = exponential});
    add_reduction(g, ops, SUM, exponential, sum);
    add_pointwise(g, ops, &(struct pointwise_operation){.mode = LOG, .x = sum, .y = log});
    add_pointwise(g, ops, &(struct pointwise_operation){.mode = ADD, .x = most, .b = log, .y = log_sum_exp});
    add_pointwise(g, ops,
                  &(struct pointwise_operation){.mode = DIVIDE, .x = exponential, .b = sum, .y = probabilities});
    return probabilities;
}

bool dnn_graph_attention(struct dnn_graph *g, const struct dnn_api *api, void *handle, const struct dnn_shape *s)
{
    struct operations ops = {.n = 0};

    *g = (struct dnn_graph){.api = api};
    void *q = add_values(g, s, DNN_Q, 3 * s->width, false), *k = add_values(g, s, DNN_K, 3 * s->width, true);
    void *v = add_values(g, s, DNN_V, 3 * s->width, false), *out = add_values(g, s, DNN_OUT, s->width, false);
    void *product = add_scores(g, s, DNN_FP32, s->n_tokens, 0), *scores = add_scores(g, s, DNN_FP32, s->n_tokens, 0);

    add_matmul(g, &ops, q, k, product);
    add_pointwise(
        g, &ops,
        &(struct pointwise_operation){.mode = MULTIPLY, .x = product, .b = add_scalar(g, DNN_SCALE), .y = scores});
    add_matmul(g, &ops, add_softmax(g, &ops, s, add_mask(g, &ops, s, scores)), v, out);

    void *graph = create(g, DNN_GRAPH);
    set(g, graph, DNN_GRAPH_OPERATIONS, DNN_KIND_DESCRIPTOR, ops.n, ops.list);
    if (handle)
        set(g, graph, DNN_GRAPH_HANDLE, DNN_KIND_HANDLE, 1, &handle);
    finalize(g, graph);
    g->graph = graph;
    return g->status == 0;
}

void dnn_graph_free(struct dnn_graph *g)
{
    while (g->n > 0)
        g->api->destroy_descriptor(g->descriptors[--g->n]);
    g->graph = NULL;
}

/* One that cannot say counts as one that differs from run to run. */
static bool is_deterministic(struct dnn_graph *g, void *config)
{
    int64_t n = 0;
    int notes[DNN_NOTES];
    void *engine = create(g, DNN_ENGINE);
    int status = g->status ? g->status : g->api->get(config, DNN_CONFIG_ENGINE, DNN_KIND_DESCRIPTOR, 1, &n, &engine);

    if (!status)
        status = g->api->get(engine, DNN_ENGINE_NOTES, DNN_KIND_NOTE, DNN_NOTES, &n, notes);
    for (int64_t i = 0; !status && i < n; i++)
        if (notes[i] == DNN_NOTE_NONDETERMINISTIC)
            return false;
    return status == 0;
}

unsigned dnn_graph_configs(struct dnn_graph *g, void *properties, void *configs[DNN_MAX_CONFIGS])
{
    static const int mode = DNN_HEURISTICS_A;
    void *heuristics = create(g, DNN_HEURISTICS), *found[DNN_MAX_CONFIGS];
    int64_t n = 0;
    unsigned n_kept = 0;

    set_one(g, heuristics, DNN_HEURISTICS_GRAPH, g->graph);
    set(g, heuristics, DNN_HEURISTICS_MODE, DNN_KIND_HEURISTICS, 1, &mode);
    set_one(g, heuristics, DNN_HEURISTICS_PROPERTIES, properties);
    finalize(g, heuristics);
    for (unsigned i = 0; i < DNN_MAX_CONFIGS; i++)
        found[i] = create(g, DNN_ENGINE_CONFIG);
    if (!g->status)
        g->status = g->api->get(heuristics, DNN_HEURISTICS_RESULTS, DNN_KIND_DESCRIPTOR, DNN_MAX_CONFIGS, &n, found);
    for (int64_t i = 0; !g->status && i < n && i < DNN_MAX_CONFIGS; i++)
        if (is_deterministic(g, found[i]))
            configs[n_kept++] = found[i];
    return n_kept;
}
