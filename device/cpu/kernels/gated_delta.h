/* device/cpu/kernels/gated_delta.h - one head's chunk of a gated delta rule: its rows, its decays, and the values that
 * its tokens write to the state (proto/operation/call/gated_delta.h).
 *
 * Rows are packed in fp32, as wide as whole cache lines; what lies behind a row's end, or behind a chunk's last token in
 * a transposed row, is 0. */
#ifndef DEVICE_CPU_KERNELS_GATED_DELTA_H
#define DEVICE_CPU_KERNELS_GATED_DELTA_H

#include "device/cpu/cpu.h"
#include "device/cpu/kernels/math.h"
#include "device/cpu/kernels/product.h"

#include <math.h>

enum { CHUNK = DEVICE_DELTA_CHUNK, SOLVED = 16 /* rows that are solved one by one */, LINE = 16 };

static inline size_t delta_round(size_t n)
{
    return (n + LINE - 1) / LINE * LINE;
}

/* One head in one document. */
struct delta_head {
    const struct device_gated_delta *op;
    size_t head;
    size_t first, n; /* the document's first token, of all rows; its tokens */
    size_t k, v;     /* widths, rounded up */
    double rate;     /* -exp(a_log) */
    double dt_bias;
};

/* Tokens of a document from one on. */
struct delta_chunk {
    size_t first, n;   /* the first token, of all rows; at most CHUNK */
    float beta[CHUNK]; /* (n) */
    float high[CHUNK]; /* (n) the sums of g, as two numbers */
    float low[CHUNK];
    float kept[CHUNK]; /* (n) e^G: of the state before the chunk */
    float left[CHUNK]; /* (n) e^(G[last] - G): in the state behind it */
    float of_k[CHUNK]; /* (n) what keys were multiplied by to be normal; likewise queries */
    float of_q[CHUNK];
};

static inline struct delta_head delta_head_of(const struct device_gated_delta *op, size_t head, size_t first, size_t n)
{
    return (struct delta_head){.op = op,
                               .head = head,
                               .first = first,
                               .n = n,
                               .k = delta_round(op->key_width),
                               .v = delta_round(op->value_width),
                               .rate = -exp((double)value_widen(((const value *)op->a_log)[head])),
                               .dt_bias = (double)value_widen(((const value *)op->dt_bias)[head])};
}

static inline bool delta_begins(const struct device_gated_delta *op, size_t token)
{
    return op->positions ? op->positions[token] == 0 : token % op->n_tokens == 0;
}

/* Tokens of the document that begins here. */
static inline size_t delta_length(const struct device_gated_delta *op, size_t first)
{
    size_t end = first + 1;

    while (end % op->n_tokens != 0 && !delta_begins(op, end))
        end++;
    return end - first;
}

/* The columns of a head in a token's row of qkv: from queries on, keys, values. */
enum delta_part { DELTA_Q, DELTA_K, DELTA_V };

static inline size_t delta_column(const struct delta_head *head, enum delta_part part)
{
    const struct device_gated_delta *op = head->op;
    const size_t keys = op->n_key_heads * op->key_width, key_head = head->head / (op->n_heads / op->n_key_heads);

    return part == DELTA_V ? 2 * keys + head->head * op->value_width : part * keys + key_head * op->key_width;
}

/* What a token's `a` is to its g: g itself is `rate` times softplus of this. */
static inline double delta_softplus_of(const struct delta_head *head, size_t token)
{
    return (double)value_widen(((const value *)head->op->gates)[token * 2 * head->op->n_heads + head->head]) +
           head->dt_bias;
}

static inline double delta_softplus(double x)
{
    return x > 40 ? x : log1p(exp(x));
}

static inline double delta_sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static inline double delta_b(const struct delta_head *head, size_t token)
{
    const size_t n = head->op->n_heads;

    return (double)value_widen(((const value *)head->op->gates)[token * 2 * n + n + head->head]);
}

/* e^(high + low), at most 1. */
VECTOR_INLINE vec delta_decay(vec high, vec low)
{
    return math_exp(high + low);
}

/* The sums of g are added up in double: behind tokens that forget much, fp32's digits end before a small g's. */
static inline void delta_gates(const struct delta_head *head, struct delta_chunk *c)
{
    double sum = 0;

    memset(c->high, 0, sizeof c->high);
    memset(c->low, 0, sizeof c->low);
    for (size_t i = 0; i < c->n; i++) {
        sum += head->rate * delta_softplus(delta_softplus_of(head, c->first + i));
        c->high[i] = (float)sum;
        c->low[i] = (float)(sum - (double)c->high[i]);
        c->beta[i] = (float)((head->op->doubled ? 2 : 1) * delta_sigmoid(delta_b(head, c->first + i)));
    }
    const float high = c->high[c->n - 1], low = c->low[c->n - 1];
    for (size_t i = 0; i < CHUNK; i += VECTOR) {
        vec_store(c->kept + i, delta_decay(vec_load(c->high + i), vec_load(c->low + i)));
        vec_store(c->left + i, delta_decay(high - vec_load(c->high + i), low - vec_load(c->low + i)));
    }
}

/* to (n, padded) = rows of `width` values, `stride` apart. */
static inline void delta_pack(float *to, size_t padded, const value *from, size_t width, size_t stride, size_t n)
{
    for (size_t i = 0; i < n; i++, to += padded, from += stride)
        for (size_t j = 0; j < padded; j += VECTOR)
            vec_store(to + j, j < width ? value_load_n(from + j, width - j) : (vec){0});
}

static inline void delta_unpack(value *to, size_t stride, const float *from, size_t padded, size_t width, size_t n)
{
    for (size_t i = 0; i < n; i++, to += stride, from += padded)
        for (size_t j = 0; j < width; j += VECTOR)
            value_store_n(to + j, vec_load(from + j), width - j);
}

/* Rows of the head's part of qkv. */
static inline void delta_load(const struct delta_head *head, const struct delta_chunk *c, float *to,
                              enum delta_part part)
{
    const struct device_gated_delta *op = head->op;
    const size_t stride = device_gated_delta_columns(op);
    const bool values = part == DELTA_V;

    delta_pack(to, values ? head->v : head->k, (const value *)op->qkv + c->first * stride + delta_column(head, part),
               values ? op->value_width : op->key_width, stride, c->n);
}

static inline void delta_put(value *to, double x)
{
    value_store_n(to, vec_all((float)x), 1);
}

static inline double delta_dot(const float *a, const float *b, size_t n)
{
    vec sum = {0};

    for (size_t j = 0; j < n; j += VECTOR)
        sum = vec_multiply_add(vec_load(a + j), vec_load(b + j), sum);
    return vec_sum(sum);
}

static inline void delta_scale(float *row, size_t n, float factor)
{
    for (size_t j = 0; j < n; j += VECTOR)
        vec_store(row + j, vec_load(row + j) * factor);
}

/* to += from * factor */
static inline void delta_add(float *to, const float *from, size_t n, float factor)
{
    for (size_t j = 0; j < n; j += VECTOR)
        vec_store(to + j, vec_multiply_add(vec_load(from + j), vec_all(factor), vec_load(to + j)));
}

/* Divides rows by their norms, which are never 0, and multiplies them by a factor; `by` has both in one. */
static inline void delta_normalise(float *rows, size_t width, size_t n, float by[CHUNK], double factor)
{
    for (size_t i = 0; i < n; i++) {
        by[i] = (float)(factor / sqrt(delta_dot(rows + i * width, rows + i * width, width) + 1e-6));
        delta_scale(rows + i * width, width, by[i]);
    }
}

static inline void delta_load_normal(const struct delta_head *head, struct delta_chunk *c, float *k, float *q)
{
    delta_load(head, c, k, DELTA_K);
    delta_load(head, c, q, DELTA_Q);
    delta_normalise(k, head->k, c->n, c->of_k, 1);
    delta_normalise(q, head->k, c->n, c->of_q, 1 / sqrt((double)head->op->key_width));
}

/* squares (n, CHUNK) = a (n, depth) times the transpose of (n, depth), up to the diagonal. */
static inline void delta_meet(float *squares, const float *a, const float *transposed, size_t depth, size_t n)
{
    product(&(struct product){.a = a,
                              .a_row = depth,
                              .a_step = 1,
                              .b = transposed,
                              .b_stride = CHUNK,
                              .c = squares,
                              .c_stride = CHUNK,
                              .m = n,
                              .n = delta_round(n),
                              .depth = depth,
                              .shape = PRODUCT_COLUMNS_TO_ROW});
}

/* c (n, columns) = or += rows (n, depth) times b (depth, columns). */
static inline void delta_multiply(float *c, const float *rows, const float *b, size_t n, size_t depth, size_t columns,
                                  bool add)
{
    product(&(struct product){.a = rows,
                              .a_row = depth,
                              .a_step = 1,
                              .b = b,
                              .b_stride = columns,
                              .c = c,
                              .c_stride = columns,
                              .m = n,
                              .n = columns,
                              .depth = depth,
                              .add = add});
}

/* c (n, columns) = or += lower (n, n of CHUNK), which is 0 above the diagonal, times b (n, columns); or its transpose. */
static inline void delta_mix(float *c, const float *lower, const float *b, size_t n, size_t columns, bool add,
                             bool transposed)
{
    product(&(struct product){.a = lower,
                              .a_row = transposed ? 1 : CHUNK,
                              .a_step = transposed ? CHUNK : 1,
                              .b = b,
                              .b_stride = columns,
                              .c = c,
                              .c_stride = columns,
                              .m = n,
                              .n = columns,
                              .depth = n,
                              .add = add,
                              .shape = transposed ? PRODUCT_DEPTH_FROM_ROW : PRODUCT_DEPTH_TO_ROW});
}

/* state (depth, columns) += the sum over tokens of a (n, depth) times b (n, columns). */
static inline void delta_write(float *state, const float *a, const float *b, size_t n, size_t depth, size_t columns)
{
    product(&(struct product){.a = a,
                              .a_row = 1,
                              .a_step = depth,
                              .b = b,
                              .b_stride = columns,
                              .c = state,
                              .c_stride = columns,
                              .m = depth,
                              .n = columns,
                              .depth = n,
                              .add = true});
}

/* Decays between the tokens of a chunk, up to the diagonal; 0 above. (n, CHUNK) */
static inline void delta_decays(const struct delta_chunk *c, float *decays)
{
    for (size_t i = 0; i < c->n; i++)
        for (size_t j = 0; j < CHUNK; j += VECTOR) {
            float *to = decays + i * CHUNK + j;
            if (j > i) {
                vec_store(to, (vec){0});
                continue;
            }
            vec_store(to, delta_decay(c->high[i] - vec_load(c->high + j), c->low[i] - vec_load(c->low + j)));
            for (size_t above = i + 1; above < j + VECTOR; above++)
                decays[i * CHUNK + above] = 0;
        }
}

/* squares *= decays; above the diagonal 0, whatever was there. */
static inline void delta_fade(float *squares, const float *decays, size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < CHUNK; j += VECTOR) {
            float *to = squares + i * CHUNK + j;
            const vec decay = vec_load(decays + i * CHUNK + j);
            vec_store(to, j > i ? (vec){0} : vec_load(to) * decay);
        }
    for (size_t i = 0; i < n; i++)
        for (size_t j = i + 1; j < delta_round(i + 1); j++)
            squares[i * CHUNK + j] = 0;
}

/* Solves rows first .. first+n-1, at most SOLVED of them, of (I - lower) x = x, given the rows that they read before. */
VECTOR_INLINE void delta_solve_block(const float *lower, float *x, size_t columns, size_t first, size_t n)
{
    for (size_t j = 0; j < columns; j += VECTOR) {
        vec row[SOLVED];
        for (size_t i = 0; i < n; i++) {
            row[i] = vec_load(x + (first + i) * columns + j);
            for (size_t p = 0; p < i; p++)
                row[i] = vec_multiply_add(vec_all(lower[(first + i) * CHUNK + first + p]), row[p], row[i]);
            vec_store(x + (first + i) * columns + j, row[i]);
        }
    }
}

/* x (n, columns), in its place, becomes the solution of (I - lower) y = x, where lower (n, CHUNK) is strictly so. */
static inline void delta_solve(const float *lower, float *x, size_t n, size_t columns)
{
    for (size_t first = 0; first < n; first += SOLVED) {
        const size_t rows = size_smaller(SOLVED, n - first);

        if (first > 0)
            product(&(struct product){.a = lower + first * CHUNK,
                                      .a_row = CHUNK,
                                      .a_step = 1,
                                      .b = x,
                                      .b_stride = columns,
                                      .c = x + first * columns,
                                      .c_stride = columns,
                                      .m = rows,
                                      .n = columns,
                                      .depth = first,
                                      .add = true});
        delta_solve_block(lower, x, columns, first, rows);
    }
}

/* -L, from keys' products: (n, CHUNK), 0 from the diagonal on. */
static inline void delta_lower(const struct delta_chunk *c, float *products, const float *decays)
{
    delta_fade(products, decays, c->n);
    for (size_t i = 0; i < c->n; i++) {
        for (size_t j = 0; j < i; j += VECTOR) {
            float *to = products + i * CHUNK + j;
            vec_store(to, vec_load(to) * -c->beta[i]);
        }
        products[i * CHUNK + i] = 0;
    }
}

/* What the state before the chunk lacks of the values: values -= e^G of_state. */
static inline void delta_miss(const struct delta_chunk *c, float *values, const float *of_state, size_t columns)
{
    for (size_t i = 0; i < c->n; i++)
        delta_add(values + i * columns, of_state + i * columns, columns, -c->kept[i]);
}

/* A state in the arrays of a call: (key_width, value_width). */
static inline void delta_state_load(const struct delta_head *head, float *state, const float *from)
{
    const size_t rows = head->op->key_width, columns = head->op->value_width;

    for (size_t i = 0; i < head->k; i++)
        for (size_t j = 0; j < head->v; j += VECTOR)
            vec_store(state + i * head->v + j,
                      i < rows && j < columns ? vec_load_n(from + i * columns + j, columns - j, 0) : (vec){0});
}

static inline void delta_state_store(const struct delta_head *head, float *to, const float *state)
{
    const size_t rows = head->op->key_width, columns = head->op->value_width;

    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < columns; j += VECTOR)
            vec_store_n(to + i * columns + j, vec_load(state + i * head->v + j), columns - j);
}

/* The state of this head before a chunk that is not its document's first. */
static inline float *delta_states_at(const struct delta_head *head, size_t token)
{
    const struct device_gated_delta *op = head->op;
    const size_t row = token / op->n_tokens, slot = token % op->n_tokens / CHUNK - 1;

    return op->states + ((row * device_gated_delta_slots(op->n_tokens) + slot) * op->n_heads + head->head) *
                            op->key_width * op->value_width;
}

/* Work for cpu_threads. */
static inline size_t delta_work(const struct device_gated_delta *op)
{
    return op->n_rows * op->n_tokens * device_gated_delta_state(op) / CPU_TERMS;
}

static inline float *delta_scratch(const struct device_gated_delta *op, enum plan_delta_action action, unsigned thread)
{
    const struct plan_delta_sizes sizes = {.action = action,
                                           .n_heads = op->n_heads,
                                           .n_key_heads = op->n_key_heads,
                                           .key_width = op->key_width,
                                           .value_width = op->value_width};

    return (float *)op->scratch + thread * plan_cpu_delta_scratch(&sizes);
}

#endif
