/* Attention, forward and backward, as the patterns of operations that cuDNN recognises as fused attention.
 * Intermediate tensors are virtual, never in memory, except those that the caller provides.
 *
 * cuDNN recognises a pattern only in the form that its own frontend writes, down to operations that change nothing (a
 * product with one, a copy to another type). So what looks redundant here is part of the pattern. */
#include "device/cuda/dnn/graph.h"

#include <float.h>
#include <math.h>

/* Columns of all heads, and of a token's queries, keys and values. */
static size_t width_of(const struct dnn_shape *s)
{
    return s->n_all_heads * s->head_width;
}

static size_t attention_row_of(const struct dnn_shape *s)
{
    return width_of(s) + 2 * width_of(s) / s->n_sharing;
}

/* (rows, n_heads, tokens, head width), or its transpose, of a buffer whose tokens are `stride` elements apart.
 * Queries, keys and values are columns of one array, so a token's stride is that of all three. */
static void *add_heads(struct dnn_graph *g, const struct dnn_shape *s, int64_t id, size_t n_heads, size_t stride,
                       bool transposed)
{
    const int64_t head = (int64_t)s->head_width, tokens = (int64_t)s->n_tokens, apart = (int64_t)stride;
    const struct dnn_array a = {
        .id = id,
        .type = DNN_BF16,
        .shape = {(int64_t)s->n_rows, (int64_t)n_heads, transposed ? head : tokens, transposed ? tokens : head},
        .strides = {tokens * apart, head, transposed ? 1 : apart, transposed ? apart : 1},
        .is_virtual = id == DNN_ANONYMOUS,
    };

    return dnn_add_array(g, &a);
}

/* Of queries, with keys and values; of keys, or of values, there; of what attention gives. */
static void *add_queries(struct dnn_graph *g, const struct dnn_shape *s, int64_t id)
{
    return add_heads(g, s, id, s->n_heads, attention_row_of(s), false);
}

static void *add_keys(struct dnn_graph *g, const struct dnn_shape *s, int64_t id, bool transposed)
{
    return add_heads(g, s, id, s->n_heads / s->n_sharing, attention_row_of(s), transposed);
}

static void *add_out(struct dnn_graph *g, const struct dnn_shape *s, int64_t id)
{
    return add_heads(g, s, id, s->n_heads, width_of(s), false);
}

static void *add_scalar(struct dnn_graph *g, enum dnn_tensor id)
{
    const struct dnn_array a = {
        .id = id, .type = DNN_FP32, .shape = {1, 1, 1, 1}, .strides = {1, 1, 1, 1}, .is_by_value = true};

    return dnn_add_array(g, &a);
}

/* (rows, heads, tokens, n), virtual: scores, if n is the number of keys; their reductions, if n is 1. */
static void *add_scores(struct dnn_graph *g, const struct dnn_shape *s, enum dnn_type type, size_t n)
{
    const int64_t tokens = (int64_t)s->n_tokens, heads = (int64_t)s->n_heads, keys = (int64_t)n;
    const struct dnn_array a = {
        .type = type,
        .shape = {(int64_t)s->n_rows, heads, tokens, keys},
        .strides = {heads * tokens * keys, tokens * keys, keys, 1},
        .is_virtual = true,
    };

    return dnn_add_array(g, &a);
}

/* (rows, heads, tokens, 1) fp32 in memory, among those of all heads. */
static void *add_numbers(struct dnn_graph *g, const struct dnn_shape *s, enum dnn_tensor id)
{
    const int64_t tokens = (int64_t)s->n_tokens;
    const struct dnn_array a = {
        .id = id,
        .type = DNN_FP32,
        .shape = {(int64_t)s->n_rows, (int64_t)s->n_heads, tokens, 1},
        .strides = {(int64_t)s->n_all_heads * tokens, tokens, 1, 1},
    };

    return dnn_add_array(g, &a);
}

/* How many queries and keys of each row count; NULL: all. */
struct lengths {
    const void *queries, *keys;
};

static struct lengths add_lengths(struct dnn_graph *g, const struct dnn_shape *s)
{
    struct dnn_array a = {.id = DNN_QUERY_LENGTHS,
                          .type = DNN_INT32,
                          .shape = {(int64_t)s->n_rows, 1, 1, 1},
                          .strides = {1, 1, 1, 1}};
    struct lengths of = {NULL, NULL};

    if (s->has_lengths) {
        of.queries = dnn_add_array(g, &a);
        a.id = DNN_KEY_LENGTHS;
        of.keys = dnn_add_array(g, &a);
    }
    return of;
}

/* Products of something of queries with something of keys. */
static void *attention_multiply(struct dnn_graph *g, const struct dnn_shape *s, const struct lengths *of, const void *a,
                                const void *b)
{
    void *product = add_scores(g, s, DNN_FP32, s->n_tokens);

    dnn_add_matmul(g, a, b, product, &(struct dnn_matmul_lengths){.rows = of->queries, .columns = of->keys});
    return product;
}

/* mode(x, b) of fp32 scores; one of them may be a scalar or numbers. */
static void *combine(struct dnn_graph *g, const struct dnn_shape *s, enum dnn_pointwise mode, const void *x,
                     const void *b, enum dnn_type type)
{
    void *y = add_scores(g, s, type, s->n_tokens);

    dnn_add_pointwise(g, &(struct dnn_pointwise_operation){.mode = mode, .x = x, .b = b, .y = y});
    return y;
}

/* The index of each score's query (axis 2) or key (axis 3). */
static void *add_index(struct dnn_graph *g, const struct dnn_shape *s, const void *scores, int64_t axis)
{
    void *index = add_scores(g, s, DNN_INT32, s->n_tokens);

    dnn_add_pointwise(g, &(struct dnn_pointwise_operation){.mode = DNN_INDEX, .x = scores, .y = index, .axis = axis});
    return index;
}

/* The scores where a condition holds; the others become DNN_MASKED. */
static void *keep_scores(struct dnn_graph *g, const struct dnn_shape *s, const void *scores, const void *condition)
{
    void *masked = add_scores(g, s, DNN_FP32, s->n_tokens);

    dnn_add_pointwise(g, &(struct dnn_pointwise_operation){.mode = DNN_SELECT,
                                                           .x = scores,
                                                           .b = add_scalar(g, DNN_MASKED),
                                                           .t = condition,
                                                           .y = masked});
    return masked;
}

/* Masks keys beyond the rows' lengths. The pattern has queries, too. */
static const void *mask_lengths(struct dnn_graph *g, const struct dnn_shape *s, const struct lengths *of,
                                const void *scores)
{
    if (!s->has_lengths)
        return scores;
    const void *query = add_index(g, s, scores, 2), *key = add_index(g, s, scores, 3);
    const void *in_query = combine(g, s, DNN_LESS, query, of->queries, DNN_BOOLEAN);
    const void *in_key = combine(g, s, DNN_LESS, key, of->keys, DNN_BOOLEAN);
    return keep_scores(g, s, scores, combine(g, s, DNN_AND, in_query, in_key, DNN_BOOLEAN));
}

/* Masks keys that come after their query, and those before its window. */
static const void *mask_band(struct dnn_graph *g, const struct dnn_shape *s, const void *scores)
{
    if (s->full)
        return scores;
    const void *query = add_index(g, s, scores, 2), *key = add_index(g, s, scores, 3);
    scores = keep_scores(g, s, scores, combine(g, s, DNN_NOT_LESS, query, key, DNN_BOOLEAN));
    if (s->window == 0)
        return scores;
    query = add_index(g, s, scores, 2), key = add_index(g, s, scores, 3);
    const void *end = combine(g, s, DNN_ADD, key, add_scalar(g, DNN_WINDOW), DNN_FP32); /* of those that see the key */
    return keep_scores(g, s, scores, combine(g, s, DNN_GREATER, end, query, DNN_BOOLEAN));
}

/* Probabilities in bf16; writes DNN_LOG_SUM_EXP. */
static void *add_softmax(struct dnn_graph *g, const struct dnn_shape *s, const void *scores)
{
    void *most = add_scores(g, s, DNN_FP32, 1), *sum = add_scores(g, s, DNN_FP32, 1),
         *log = add_scores(g, s, DNN_FP32, 1);

    dnn_add_reduction(g, DNN_MAXIMUM, scores, most);
    const void *less = combine(g, s, DNN_SUBTRACT, scores, most, DNN_FP32);
    const void *exponential = combine(g, s, DNN_EXP, less, NULL, DNN_FP32);
    dnn_add_reduction(g, DNN_SUM, exponential, sum);
    dnn_add_pointwise(g, &(struct dnn_pointwise_operation){.mode = DNN_LOG, .x = sum, .y = log});
    dnn_add_pointwise(g, &(struct dnn_pointwise_operation){
                             .mode = DNN_ADD, .x = most, .b = log, .y = add_numbers(g, s, DNN_LOG_SUM_EXP)});
    return combine(g, s, DNN_DIVIDE, exponential, sum, DNN_BF16);
}

/* scores = scale q k^T, unseen keys masked; their softmax, rounded to bf16, times v. */
bool dnn_graph_attention(struct dnn_graph *g, const struct dnn_api *api, void *handle, const struct dnn_shape *s)
{
    *g = (struct dnn_graph){.api = api};
    const void *q = add_queries(g, s, DNN_Q), *k = add_keys(g, s, DNN_K, true);
    const void *v = add_keys(g, s, DNN_V, false), *out = add_out(g, s, DNN_OUT);
    const struct lengths of = add_lengths(g, s);

    const void *scores =
        combine(g, s, DNN_MULTIPLY, attention_multiply(g, s, &of, q, k), add_scalar(g, DNN_SCALE), DNN_FP32);
    scores = mask_band(g, s, mask_lengths(g, s, &of, scores));
    dnn_add_matmul(g, add_softmax(g, s, scores), v, out,
                   &(struct dnn_matmul_lengths){.rows = of.queries, .inner = of.keys});
    return dnn_graph_finish(g, handle);
}

/* The transpose of scores, in bf16. */
static void *dnn_attention_transpose(struct dnn_graph *g, const struct dnn_shape *s, const void *scores)
{
    const int64_t tokens = (int64_t)s->n_tokens, heads = (int64_t)s->n_heads;
    const struct dnn_array a = {
        .type = DNN_BF16,
        .shape = {(int64_t)s->n_rows, heads, tokens, tokens},
        .strides = {heads * tokens * tokens, tokens * tokens, 1, tokens},
        .is_virtual = true,
    };
    void *transposed = dnn_add_array(g, &a);

    dnn_add_view(g, scores, transposed);
    return transposed;
}

/* DNN_DELTA = the sum over the head of out * out's gradient. */
static void *add_delta(struct dnn_graph *g, const struct dnn_shape *s, const void *dy)
{
    const int64_t tokens = (int64_t)s->n_tokens, heads = (int64_t)s->n_heads, head = (int64_t)s->head_width;
    const struct dnn_array a = {
        .type = DNN_FP32,
        .shape = {(int64_t)s->n_rows, heads, tokens, head},
        .strides = {heads * tokens * head, tokens * head, heads * head, 1},
        .is_virtual = true,
    };
    void *product = dnn_add_array(g, &a), *sum = add_scores(g, s, DNN_FP32, 1), *delta = add_numbers(g, s, DNN_DELTA);

    dnn_add_pointwise(
        g, &(struct dnn_pointwise_operation){.mode = DNN_MULTIPLY, .x = dy, .b = add_out(g, s, DNN_OUT), .y = product});
    dnn_add_reduction(g, DNN_SUM, product, sum);
    dnn_add_pointwise(
        g, &(struct dnn_pointwise_operation){.mode = DNN_MULTIPLY, .x = sum, .b = add_scalar(g, DNN_ONE), .y = delta});
    return delta;
}

/* Queries' gradient, ds k: a separate product, or fp32 sums to which each block of keys adds. */
static void add_query_gradient(struct dnn_graph *g, const struct dnn_shape *s, enum plan_attention way,
                               const struct lengths *of, const void *ds, const void *transposed_k)
{
    const struct dnn_matmul_lengths lengths = {.rows = of->queries, .inner = of->keys};
    const int64_t tokens = (int64_t)s->n_tokens, heads = (int64_t)s->n_heads, head = (int64_t)s->head_width;
    void *k = add_keys(g, s, DNN_ANONYMOUS, false), *gradient = add_queries(g, s, DNN_Q_GRADIENT);

    dnn_add_view(g, transposed_k, k);
    if (way != PLAN_ATTENTION_ORDERED) {
        dnn_add_matmul(g, ds, k, gradient, &lengths);
        return;
    }
    const struct dnn_array a = {
        .id = DNN_Q_SUM,
        .type = DNN_FP32,
        .shape = {(int64_t)s->n_rows, heads, tokens, head},
        .strides = {heads * tokens * head, tokens * head, head, 1},
    };
    void *sum = dnn_add_array(g, &a);
    dnn_add_matmul(g, ds, k, sum, &lengths);
    dnn_add_pointwise(g, &(struct dnn_pointwise_operation){.mode = DNN_IDENTITY, .x = sum, .y = gradient});
}

/* Keys' or values' gradient, a b: of those that heads share the sum of each head's, which the library keeps by
 * itself. */
static void add_key_gradient(struct dnn_graph *g, const struct dnn_shape *s, const struct lengths *of, const void *a,
                             const void *b, enum dnn_tensor id)
{
    const struct dnn_matmul_lengths lengths = {.rows = of->keys, .inner = of->queries};
    const int64_t tokens = (int64_t)s->n_tokens, heads = (int64_t)s->n_heads, head = (int64_t)s->head_width;
    const struct dnn_array of_heads = {
        .type = DNN_BF16,
        .shape = {(int64_t)s->n_rows, heads, tokens, head},
        .strides = {heads * tokens * head, tokens * head, head, 1},
        .is_virtual = true,
    };
    void *gradient = add_keys(g, s, id, false);

    if (s->n_sharing == 1) {
        dnn_add_matmul(g, a, b, gradient, &lengths);
        return;
    }
    void *each = dnn_add_array(g, &of_heads);
    dnn_add_matmul(g, a, b, each, &lengths);
    dnn_add_reduction(g, DNN_SUM, each, gradient);
}

/* p = exp(scale q k^T - log-sum-exp), 0 where masked; v's gradient = p^T dy. ds = scale p (dy v^T - delta); k's
 * gradient = ds^T q, and q's = ds k. */
bool dnn_graph_attention_backward(struct dnn_graph *g, const struct dnn_api *api, void *handle,
                                  const struct dnn_shape *s, enum plan_attention way)
{
    *g = (struct dnn_graph){.api = api};
    const void *q = add_queries(g, s, DNN_Q), *k = add_keys(g, s, DNN_K, true), *v = add_keys(g, s, DNN_V, true);
    const void *dy = add_out(g, s, DNN_OUT_GRADIENT);
    const void *delta = add_delta(g, s, dy), *scale = add_scalar(g, DNN_SCALE);

    const struct lengths of = add_lengths(g, s);

    const void *scores = combine(g, s, DNN_MULTIPLY, attention_multiply(g, s, &of, q, k), scale, DNN_FP32);
    scores = mask_lengths(g, s, &of, scores);
    scores = combine(g, s, DNN_SUBTRACT, scores, add_numbers(g, s, DNN_LOG_SUM_EXP), DNN_FP32);
    const void *p = combine(g, s, DNN_EXP, mask_band(g, s, scores), NULL, DNN_FP32);
    add_key_gradient(g, s, &of, dnn_attention_transpose(g, s, p), dy, DNN_V_GRADIENT);

    const void *ds = combine(g, s, DNN_SUBTRACT, attention_multiply(g, s, &of, dy, v), delta, DNN_FP32);
    ds = combine(g, s, DNN_MULTIPLY, ds, p, DNN_FP32);
    ds = combine(g, s, DNN_MULTIPLY, ds, scale, DNN_BF16);
    add_key_gradient(g, s, &of, dnn_attention_transpose(g, s, ds), q, DNN_K_GRADIENT);
    add_query_gradient(g, s, way, &of, ds, k);
    return dnn_graph_finish(g, handle);
}

/* Minus infinity from 9.10 on; for older kernels the least number, as in the library's own frontend. */
float dnn_masked(const struct dnn_api *api)
{
    return api->version() < 91000 ? -FLT_MAX : -INFINITY;
}

/* By version and architecture: only ways whose results have the same bits each time, as tests on such devices have
 * shown. */
enum plan_attention dnn_backward_way(size_t version, int capability)
{
    if (version >= 91801 && (capability == 100 || capability == 103))
        return PLAN_ATTENTION_TWICE;
    if (version >= 92500 && capability == 90)
        return PLAN_ATTENTION_ORDERED;
    return version >= 91002 && capability >= 80 && capability <= 90 ? PLAN_ATTENTION_SCORES : PLAN_ATTENTION_FORWARD;
}

/* The engine of a method, from a version on. Its stages enforce an order. The other knobs have the values of the
 * library's own proposal of this engine; their names changed once. */
static const struct ordered {
    enum plan_attention way;
    size_t since;
    int64_t engine;
    unsigned n_knobs;
    struct dnn_choice knobs[DNN_MAX_KNOBS];
} ordered[] = {
    {PLAN_ATTENTION_ORDERED,
     92500,
     6,
     6,
     {{DNN_KNOB_TILE_M, 2},
      {DNN_KNOB_TILE_N, 1},
      {DNN_KNOB_KERNEL, 2},
      {DNN_KNOB_STREAM_K, 0},
      {DNN_KNOB_CLUSTER_M, 0},
      {DNN_KNOB_STAGES, 4}}},
    {PLAN_ATTENTION_TWICE,
     92300,
     5,
     6,
     {{DNN_KNOB_TILE_M, 3},
      {DNN_KNOB_TILE_N, 2},
      {DNN_KNOB_KERNEL, 2},
      {DNN_KNOB_STREAM_K, 0},
      {DNN_KNOB_CLUSTER_M, 0},
      {DNN_KNOB_STAGES, 2}}},
    {PLAN_ATTENTION_TWICE, 91801, 5, 2, {{DNN_KNOB_KERNEL, 31}, {DNN_KNOB_STAGES, 2}}},
};

unsigned dnn_graph_backward_configs(struct dnn_graph *g, enum plan_attention way, void *properties,
                                    void *configs[DNN_MAX_CONFIGS])
{
    const size_t version = g->api->version();

    if (way == PLAN_ATTENTION_SCORES)
        return dnn_graph_configs(g, properties, configs);
    for (size_t i = 0; i < sizeof ordered / sizeof *ordered; i++)
        if (ordered[i].way == way && version >= ordered[i].since)
            return (configs[0] = dnn_graph_config(g, ordered[i].engine, properties, ordered[i].knobs,
                                                  ordered[i].n_knobs)) != NULL;
    return 0;
}
