/* device/cpu/kernels/gated_delta_backward.kernel.c - the gradients of the gated delta rule, chunk by chunk from a
 * document's end.
 *
 * One thread has one head of queries and keys in one document, with all heads of values that read them, one after
 * another within each chunk: so their gradients of queries and keys are added up in the order of heads. A chunk begins
 * from the state that forward stored, or from none, and makes again what its tokens wrote.
 *
 * The gradient of g, the sum over a chunk's tokens from one on of the gradients of G, is a difference of large numbers
 * where tokens forget little: it is summed in double. So are those of a_log and dt_bias, token by token in the order of
 * the rows. */
#include "device/cpu/cpu.h"
#include "device/cpu/kernels/gated_delta.h"

/* The scratch of a thread. An array that is named twice holds first the one, then the other. */
struct backward {
    float *k, *q, *transposed;      /* as forward's */
    float *k_gradient, *q_gradient; /* (CHUNK, k), of all heads so far */
    float *of_key;                  /* (CHUNK, k) */
    float *missed;                  /* (CHUNK, v) v - e^G S^T k */
    float *d, *d_gradient;          /* (CHUNK, v); the latter becomes that of beta * missed, then that of v */
    float *d_transposed;            /* (v, CHUNK) */
    float *y_gradient;              /* (CHUNK, v) */
    float *of_value;                /* (CHUNK, v) */
    float *state, *turned;          /* (k, v); (v, k): its transpose, then that of the gradient behind the chunk */
    float *gradient;                /* (heads, k, v) of the states behind the chunk */
    float *decays, *written, *read; /* (CHUNK, CHUNK): -L; products of queries and keys, times decays */
    float *written_gradient, *read_gradient;
};

static struct backward lay_out(const struct delta_head *head, float *scratch)
{
    const size_t k = CHUNK * head->k, v = CHUNK * head->v, square = CHUNK * CHUNK;
    struct backward at = {.k = scratch};

    at.q = at.k + k;
    at.transposed = at.q + k;
    at.k_gradient = at.transposed + k;
    at.q_gradient = at.k_gradient + k;
    at.of_key = at.q_gradient + k;
    at.missed = at.of_key + k;
    at.d = at.missed + v;
    at.d_gradient = at.d + v;
    at.d_transposed = at.d_gradient + v;
    at.y_gradient = at.d_transposed + v;
    at.of_value = at.y_gradient + v;
    at.decays = at.of_value + v;
    at.written = at.decays + square;
    at.read = at.written + square;
    at.written_gradient = at.read + square;
    at.read_gradient = at.written_gradient + square;
    at.state = at.read_gradient + square;
    at.turned = at.state + head->k * head->v;
    at.gradient = at.turned + head->k * head->v;
    return at;
}

/* Gradients of what a token is computed from besides q, k and v. */
struct gates {
    double sum[CHUNK]; /* of G */
    double beta[CHUNK];
};

/* Makes again what forward made of a chunk. */
static void backward_again(const struct delta_head *head, const struct backward *at, struct delta_chunk *c)
{
    delta_gates(head, c);
    delta_decays(c, at->decays);
    if (c->first > head->first)
        delta_state_load(head, at->state, delta_states_at(head, c->first));
    else
        memset(at->state, 0, head->k * head->v * sizeof *at->state);
    delta_load(head, c, at->missed, DELTA_V);
    delta_multiply(at->of_value, at->k, at->state, c->n, head->k, head->v, false);
    delta_miss(c, at->missed, at->of_value, head->v);
    memcpy(at->d, at->missed, c->n * head->v * sizeof *at->d);
    for (size_t i = 0; i < c->n; i++)
        delta_scale(at->d + i * head->v, head->v, c->beta[i]);
    delta_meet(at->written, at->k, at->transposed, head->k, c->n);
    delta_lower(c, at->written, at->decays);
    delta_solve(at->written, at->d, c->n, head->v);
    product_transpose(at->d_transposed, CHUNK, at->d, head->v, c->n, delta_round(c->n));
    delta_meet(at->read, at->q, at->transposed, head->k, c->n);
    delta_fade(at->read, at->decays, c->n);
}

/* x (n, columns), in its place, becomes the solution of (I - lower)^T y = x. */
static void solve_backward(const float *lower, float *x, size_t n, size_t columns)
{
    for (size_t first = (n - 1) / SOLVED * SOLVED; first < n; first -= SOLVED) { /* below 0 it wraps around */
        const size_t rows = size_smaller(SOLVED, n - first), after = first + rows;

        if (after < n)
            product(&(struct product){.a = lower + after * CHUNK + first,
                                      .a_row = 1,
                                      .a_step = CHUNK,
                                      .b = x + after * columns,
                                      .b_stride = columns,
                                      .c = x + first * columns,
                                      .c_stride = columns,
                                      .m = rows,
                                      .n = columns,
                                      .depth = n - after,
                                      .add = true});
        for (size_t i = after; i-- > first;)
            for (size_t p = first; p < i; p++)
                delta_add(x + p * columns, x + i * columns, columns, lower[i * CHUNK + p]);
    }
}

/* The gradient of d, by way of y and of the state behind the chunk; and of G, as far as tokens were written to that. */
static void backward_written(const struct delta_head *head, const struct backward *at, const struct delta_chunk *c,
                             const float *gradient, struct gates *gates)
{
    const size_t v = head->v, last = c->n - 1;

    delta_multiply(at->d_gradient, at->k, gradient, c->n, head->k, v, false);
    for (size_t i = 0; i < c->n; i++) {
        delta_scale(at->d_gradient + i * v, v, c->left[i]);
        const double written = delta_dot(at->d_gradient + i * v, at->d + i * v, v);
        gates->sum[i] -= written;
        gates->sum[last] += written;
    }
    delta_mix(at->d_gradient, at->read, at->y_gradient, c->n, v, true, true);
    solve_backward(at->written, at->d_gradient, c->n, v);
}

/* Of a square whose elements had the decays: adds what its gradient gives to those of G. */
static void backward_decays(const float *square, const float *gradient, size_t n, double sum[CHUNK])
{
    double columns[CHUNK] = {0};

    for (size_t i = 0; i < n; i++) {
        vec row = {0};
        for (size_t j = 0; j <= i; j += VECTOR) {
            vec x = vec_load(square + i * CHUNK + j) * vec_load(gradient + i * CHUNK + j);
            if (i - j < VECTOR)
                x[i - j] = 0; /* no decay */
            row += x;
            vec_add_double(columns + j, x);
        }
        sum[i] += vec_sum(row);
    }
    for (size_t j = 0; j < n; j++)
        sum[j] -= columns[j];
}

/* The gradients of both squares, then of the products that they are made of; of G and beta, as far as by these. */
static void backward_squares(const struct delta_head *head, const struct backward *at, const struct delta_chunk *c,
                             struct gates *gates)
{
    const size_t n = c->n;

    delta_meet(at->read_gradient, at->y_gradient, at->d_transposed, head->v, n);
    delta_meet(at->written_gradient, at->d_gradient, at->d_transposed, head->v, n);
    for (size_t i = 0; i < n; i++)
        for (size_t j = i + 1; j < delta_round(i + 1); j++)
            at->read_gradient[i * CHUNK + j] = at->written_gradient[i * CHUNK + j] = 0;
    backward_decays(at->read, at->read_gradient, n, gates->sum);
    backward_decays(at->written, at->written_gradient, n, gates->sum);
    delta_fade(at->read_gradient, at->decays, n);
    for (size_t i = 0; i < n; i++)
        at->written_gradient[i * CHUNK + i] = 0;
    delta_fade(at->written_gradient, at->decays, n);
}

/* Each row of the gradient of -L is times -beta; before, its product with the keys' products is beta's. */
static void backward_beta(const struct delta_head *head, const struct backward *at, const struct delta_chunk *c,
                          struct gates *gates)
{
    delta_mix(at->of_key, at->written_gradient, at->k, c->n, head->k, false, false);
    for (size_t i = 0; i < c->n; i++) {
        gates->beta[i] += delta_dot(at->d_gradient + i * head->v, at->missed + i * head->v, head->v) -
                          delta_dot(at->of_key + i * head->k, at->k + i * head->k, head->k);
        delta_add(at->k_gradient + i * head->k, at->of_key + i * head->k, head->k, -c->beta[i]);
        delta_scale(at->written_gradient + i * CHUNK, delta_round(i + 1), -c->beta[i]);
    }
    delta_mix(at->k_gradient, at->written_gradient, at->k, c->n, head->k, true, true);
}

/* rows (n, k) times the state, in its transpose, are the gradients of what the state is multiplied by: `to` += factor
 * times them; and G's += sign times the same times `by`. */
static void backward_state(const struct delta_head *head, const struct backward *at, const struct delta_chunk *c,
                           const float *rows, const float factors[CHUNK], float sign, const float *by, float *to,
                           double sum[CHUNK])
{
    const size_t k = head->k;

    delta_multiply(at->of_key, rows, at->turned, c->n, head->v, k, false);
    for (size_t i = 0; i < c->n; i++) {
        delta_add(to + i * k, at->of_key + i * k, k, sign * factors[i]);
        if (sum)
            sum[i] += (double)(sign * factors[i]) * delta_dot(at->of_key + i * k, by + i * k, k);
    }
}

/* The gradient of the state before the chunk takes the place of that of the state behind it. */
static void backward_before(const struct delta_head *head, const struct backward *at, const struct delta_chunk *c,
                            float *gradient, struct gates *gates)
{
    const size_t k = head->k, v = head->v, last = c->n - 1;
    double sum = 0;

    for (size_t i = 0; i < k; i++)
        sum += delta_dot(gradient + i * v, at->state + i * v, v);
    gates->sum[last] += (double)c->kept[last] * sum;
    delta_scale(gradient, k * v, c->kept[last]);
    for (size_t i = 0; i < c->n; i++)
        for (size_t j = 0; j < k; j += VECTOR)
            vec_store(at->of_key + i * k + j, vec_load(at->q + i * k + j) * c->kept[i]);
    delta_write(gradient, at->of_key, at->y_gradient, c->n, k, v);
    for (size_t i = 0; i < c->n; i++)
        for (size_t j = 0; j < k; j += VECTOR)
            vec_store(at->of_key + i * k + j, vec_load(at->k + i * k + j) * -c->kept[i]);
    delta_write(gradient, at->of_key, at->d_gradient, c->n, k, v);
}

/* Stores the gradients of a and b, and leaves that of g for the sums over all tokens. */
static void backward_gates(const struct delta_head *head, const struct delta_chunk *c, const struct gates *gates,
                           float *of_g)
{
    const struct device_gated_delta *op = head->op;
    double sum = 0;

    for (size_t i = c->n; i-- > 0;) {
        const size_t token = c->first + i;
        const double b = delta_sigmoid(delta_b(head, token)), slope = (op->doubled ? 2 : 1) * b * (1 - b);
        value *const to = (value *)op->gates_gradient + token * 2 * op->n_heads + head->head;

        sum += gates->sum[i];
        of_g[head->head * op->n_rows * op->n_tokens + token] = (float)sum;
        delta_put(to, sum * head->rate * delta_sigmoid(delta_softplus_of(head, token)));
        delta_put(to + op->n_heads, gates->beta[i] * slope);
    }
}

/* One head of values in a chunk. */
static void backward_head(const struct delta_head *head, const struct backward *at, struct delta_chunk *c,
                          float *gradient, float *of_g)
{
    const struct device_gated_delta *op = head->op;
    const size_t columns = op->n_heads * op->value_width, stride = device_gated_delta_columns(op);
    struct gates gates = {.sum = {0}};

    backward_again(head, at, c);
    delta_pack(at->y_gradient, head->v,
               (const value *)op->y_gradient + c->first * columns + head->head * op->value_width, op->value_width,
               columns, c->n);
    backward_written(head, at, c, gradient, &gates);
    backward_squares(head, at, c, &gates);
    delta_mix(at->q_gradient, at->read_gradient, at->k, c->n, head->k, true, false);
    delta_mix(at->k_gradient, at->read_gradient, at->q, c->n, head->k, true, true);
    backward_beta(head, at, c, &gates);
    product_transpose(at->turned, head->k, gradient, head->v, head->k, delta_round(head->k));
    backward_state(head, at, c, at->d, c->left, 1, NULL, at->k_gradient, NULL);
    for (size_t i = 0; i < c->n; i++)
        delta_scale(at->d_gradient + i * head->v, head->v, c->beta[i]);
    product_transpose(at->turned, head->k, at->state, head->v, head->k, delta_round(head->k));
    backward_state(head, at, c, at->y_gradient, c->kept, 1, at->q, at->q_gradient, gates.sum);
    backward_state(head, at, c, at->d_gradient, c->kept, -1, at->k, at->k_gradient, gates.sum);
    backward_before(head, at, c, gradient, &gates);
    delta_unpack((value *)op->qkv_gradient + c->first * stride + delta_column(head, DELTA_V), stride, at->d_gradient,
                 head->v, op->value_width, c->n);
    backward_gates(head, c, &gates, of_g);
}

/* From the gradients of normal rows, n of them, those of the rows as they were; `by` as for delta_normalise. */
static void backward_normal(const struct delta_head *head, const struct delta_chunk *c, enum delta_part part,
                            float *gradient, const float *normal, const float by[CHUNK], double factor)
{
    const struct device_gated_delta *op = head->op;
    const size_t stride = device_gated_delta_columns(op), k = head->k;

    for (size_t i = 0; i < c->n; i++) {
        const double along = delta_dot(normal + i * k, gradient + i * k, k) / (factor * factor);

        delta_add(gradient + i * k, normal + i * k, k, (float)-along);
        delta_scale(gradient + i * k, k, by[i]);
    }
    delta_unpack((value *)op->qkv_gradient + c->first * stride + delta_column(head, part), stride, gradient, k,
                 op->key_width, c->n);
}

/* All heads of values that read key head `index`, in the document that begins here. */
static void backward_document(const struct device_gated_delta *op, size_t index, size_t first, float *scratch,
                              float *of_g)
{
    const size_t group = op->n_heads / op->n_key_heads, n = delta_length(op, first);
    const struct delta_head key_head = delta_head_of(op, index * group, first, n);
    const struct backward at = lay_out(&key_head, scratch);
    const size_t state = key_head.k * key_head.v;

    memset(at.gradient, 0, group * state * sizeof *at.gradient);
    for (size_t i = (n - 1) / CHUNK * CHUNK; i < n; i -= CHUNK) { /* below 0 it wraps around */
        struct delta_chunk c = {.first = first + i, .n = size_smaller(CHUNK, n - i)};

        delta_load_normal(&key_head, &c, at.k, at.q);
        product_transpose(at.transposed, CHUNK, at.k, key_head.k, c.n, delta_round(c.n));
        memset(at.k_gradient, 0, c.n * key_head.k * sizeof *at.k_gradient);
        memset(at.q_gradient, 0, c.n * key_head.k * sizeof *at.q_gradient);
        for (size_t h = 0; h < group; h++) {
            const struct delta_head head = delta_head_of(op, index * group + h, first, n);
            backward_head(&head, &at, &c, at.gradient + h * state, of_g);
        }
        backward_normal(&key_head, &c, DELTA_K, at.k_gradient, at.k, c.of_k, 1);
        backward_normal(&key_head, &c, DELTA_Q, at.q_gradient, at.q, c.of_q, 1 / sqrt((double)op->key_width));
    }
}

/* The sums over all tokens of one head, of dg/da_log = g and dg/ddt_bias. */
static void sum_tokens(const struct device_gated_delta *op, size_t index, const float *of_g)
{
    const struct delta_head head = delta_head_of(op, index, 0, 0);
    const size_t m = op->n_rows * op->n_tokens;
    double of_log = 0, of_bias = 0;

    for (size_t token = 0; token < m; token++) {
        const double g = (double)of_g[index * m + token] * head.rate, x = delta_softplus_of(&head, token);
        of_log += g * delta_softplus(x);
        of_bias += g * delta_sigmoid(x);
    }
    if (op->a_log_gradient)
        op->a_log_gradient[index] = (float)((double)op->a_log_gradient[index] + of_log);
    if (op->dt_bias_gradient)
        op->dt_bias_gradient[index] = (float)((double)op->dt_bias_gradient[index] + of_bias);
}

void KERNEL_NAME(cpu_gated_delta_backward)(struct device *dev, const struct device_gated_delta *op)
{
    const size_t m = op->n_rows * op->n_tokens, n = (m + CHUNK - 1) / CHUNK;
    float *const of_g = delta_scratch(op, PLAN_DELTA_BACKWARD, dev->n_threads);

#pragma omp parallel for num_threads(cpu_threads(dev, delta_work(op))) schedule(dynamic)
    for (size_t item = 0; item < n * op->n_key_heads; item++) {
        const size_t first = item / op->n_key_heads * CHUNK, end = size_smaller(first + CHUNK, m);

        device_count(dev->done);
        for (size_t i = first; i < end; i++)
            if (delta_begins(op, i))
                backward_document(op, item % op->n_key_heads, i, delta_scratch(op, PLAN_DELTA_BACKWARD, cpu_thread()),
                                  of_g);
    }
    if (!op->a_log_gradient && !op->dt_bias_gradient)
        return;
#pragma omp parallel for num_threads(cpu_threads(dev, m * op->n_heads)) schedule(static)
    for (size_t head = 0; head < op->n_heads; head++)
        sum_tokens(op, head, of_g);
}
