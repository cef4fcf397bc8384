/* device/cpu/kernels/attention.kernel.c - attention in tiles of 64 queries by 64 keys, no score matrix.
 *
 * Flash attention - Dao et al., arXiv:2205.14135. One thread computes one head of one row from end to end, and in
 * backward all heads that share their keys, one after another. So heads and rows cannot change each other's bits. Views
 * of qkv are packed once per head: its rows are often a multiple of 4 KiB apart, so a tile's rows would share a few
 * sets of the first-level cache. Packed rows, scores, probabilities and their gradients are fp32.

 *
 * A bias is looked up once per head for all distances. Its gradient is summed by distance, then by bucket, for each
 * head of each row; and those over the rows, in their order. */
#include "device/cpu/cpu.h"
#include "device/cpu/kernels/attention_chosen.h"
#include "device/cpu/kernels/attention_mask.h"
#include "device/cpu/kernels/attention_sink.h"
#include "device/cpu/kernels/dropout.h"
#include "device/cpu/kernels/math.h"
#include "device/cpu/kernels/product.h"
#include "device/cpu/kernels/value.h"

#include <math.h>

/* The distances' own scratch: the thread's last. */
static void find_bias(struct head *head, unsigned thread)
{
    const struct device_attention *op = head->op;
    const size_t n = plan_cpu_distances(op->n_tokens, head->n_keys), before = round_up(op->n_tokens, TILE);

    head->bias = (float *)op->scratch + (thread + 1) * thread_scratch(op) - 2 * n + before;
    head->bias_gradient = head->bias + n;
    for (ptrdiff_t i = -(ptrdiff_t)before; i < (ptrdiff_t)(n - before); i++)
        head->bias[i] = op->bias[device_bucket(&op->buckets, i) * op->n_heads + head->index] / op->scale;
}

/* Scores of one tile, from packed q (n, padded) and k transposed. */
static void tile_scores(const struct head *head, float *scores, const float *q, const float *transposed, size_t n,
                        bool diagonal)
{
    product(&(struct product){.a = q,
                              .a_row = head->padded,
                              .a_step = 1,
                              .b = transposed,
                              .b_stride = TILE,
                              .c = scores,
                              .c_stride = TILE,
                              .m = n,
                              .n = TILE,
                              .depth = head->width,
                              .shape = diagonal ? PRODUCT_COLUMNS_TO_ROW : PRODUCT_WHOLE});
}

static void draw_factors(const struct head *head, float factors[TILE], size_t query, size_t key)
{
    const struct device_dropout *dropout = &head->op->dropout;
    const uint64_t first = ((uint64_t)head->index * head->n_tokens + query) * head->n_keys + key;

    dropout_factors(factors, first, TILE, dropout->first_row + head->row, dropout);
}

/* Bounds the scores of a tile. */
static void cap_scores(const struct head *head, float *scores, size_t n, const size_t place[2])
{
    const bool diagonal = is_diagonal(head, place);

    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < tile_columns(i, diagonal); j += VECTOR) {
            float *at = scores + i * TILE + j;
            vec_store(at, head->cap * math_tanh(vec_load(at) / head->cap));
        }
}

/* The derivative of a capped score, from that; 0 of unseen ones, which are -infinity. */
VECTOR_INLINE vec cap_slope(const struct head *head, vec capped)
{
    const vec part = vec_max(vec_all(-1), capped / head->cap);

    return 1 - part * part;
}

/* Adds the bias to the scores of a tile. */
static void add_bias(const struct head *head, float *scores, size_t n, const size_t place[2])
{
    const bool diagonal = is_diagonal(head, place);

    for (size_t i = 0; i < n; i++) {
        const float *bias = head->bias + (ptrdiff_t)place[1] - (ptrdiff_t)(place[0] + i);
        for (size_t j = 0; j < tile_columns(i, diagonal); j += VECTOR)
            vec_store(scores + i * TILE + j, vec_load(scores + i * TILE + j) + vec_load(bias + j));
    }
}

/* Adds ALiBi's term to the scores of a tile. */
static void add_alibi(const struct head *head, float *scores, size_t n, const size_t place[2])
{
    const bool diagonal = is_diagonal(head, place);

    for (size_t i = 0; i < n; i++)
        alibi_add(scores + i * TILE, tile_columns(i, diagonal), head->slope,
                  (ptrdiff_t)place[1] - (ptrdiff_t)(place[0] + i));
}

/* Running softmax of the queries of one tile, over the keys so far. */
struct softmax {
    float max[TILE];
    float sums[TILE][VECTOR]; /* sums of exponentials, lane by lane */
    float rescale[TILE];      /* factor of the sums and outputs before this tile of keys */
};

static void update_max(struct softmax *softmax, const struct head *head, float *scores, size_t n, const size_t place[2])
{
    const bool diagonal = is_diagonal(head, place);
    float before[TILE];

    memcpy(before, softmax->max, sizeof before);
    for (size_t i = 0; i < n; i++) {
        float *row = scores + i * TILE;
        const size_t columns = tile_columns(i, diagonal), unseen = tile_unseen(head, i, place);
        vec max = vec_all(softmax->max[i]);

        for (size_t j = 0; j < unseen; j++)
            row[j] = -INFINITY;
        for (size_t j = tile_seen(head, i, place); j < columns; j++)
            row[j] = -INFINITY;
        for (size_t j = 0; j < columns; j += VECTOR)
            max = vec_max(vec_load(row + j), max);
        softmax->max[i] = vec_largest(max);
    }
    for (size_t i = 0; i < TILE; i += VECTOR)
        vec_store(softmax->rescale + i, math_exp2((vec_load(before + i) - vec_load(softmax->max + i)) * head->to_log2));
    for (size_t i = 0; i < n; i++)
        if (tile_unseen(head, i, place) == TILE)
            softmax->rescale[i] = 1; /* not the difference of two infinities */
}

/* Scores become exponentials, times their dropout factors. */
static void exponentiate(struct softmax *softmax, const struct head *head, float *scores, size_t n,
                         const size_t place[2])
{
    const bool diagonal = is_diagonal(head, place), drops = head->op->dropout.p > 0;

    for (size_t i = 0; i < n; i++) {
        float *row = scores + i * TILE, factors[TILE];
        const float max = softmax->max[i] * head->to_log2;
        vec sum = vec_load(softmax->sums[i]) * softmax->rescale[i];

        if (tile_unseen(head, i, place) == TILE) {
            memset(row, 0, TILE * sizeof *row);
            continue;
        }
        if (drops)
            draw_factors(head, factors, place[0] + i, place[1]);
        for (size_t j = 0; j < tile_columns(i, diagonal); j += VECTOR) {
            vec p = math_exp2(vec_load(row + j) * head->to_log2 - max);
            sum += p;
            vec_store(row + j, drops ? p * vec_load(factors + j) : p);
        }
        vec_store(softmax->sums[i], sum);
    }
}

static void rescale_rows(const struct softmax *softmax, const struct head *head, float *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (softmax->rescale[i] != 1)
            for (size_t j = 0; j < head->padded; j += VECTOR) {
                float *at = out + i * head->padded + j;
                vec_store(at, vec_load(at) * softmax->rescale[i]);
            }
}

static void finish_rows(const struct softmax *softmax, const struct head *head, const float *out, size_t query,
                        size_t n)
{
    const struct device_attention *op = head->op;
    value *to = (value *)op->out + (head->row * op->n_tokens + query) * op->width + head->index * head->width;
    float *log_sum_exp = op->log_sum_exp + (head->row * op->n_heads + head->index) * op->n_tokens + query;

    for (size_t i = 0; i < n; i++, to += op->width, out += head->padded) {
        float sum = (float)vec_sum(vec_load(softmax->sums[i])), max = softmax->max[i] * head->to_log2;
        const float factor = op->sinks ? sink_join(&max, &sum, sink_exponent(op->sinks, head->index)) : 1;
        for (size_t j = 0; j < head->width; j += VECTOR)
            value_store_n(to + j, vec_load(out + j) * factor / sum, head->width - j);
        /* the exponentials are relative to the rounded maximum */
        log_sum_exp[i] = (float)((double)max * 0.6931471805599453 + (double)logf(sum));
    }
}

/* The scratch of one head's forward pass. */
struct forward {
    float *transposed, *v; /* all keys: k by tiles, transposed; v packed */
    float *q, *scores, *out;
};

static void forward_tile(const struct head *head, const struct forward *at, size_t query)
{
    const size_t n = size_smaller(TILE, head->n_tokens - query);
    const size_t begin = keys_begin(head, query), end = keys_end(head, query, n);
    struct softmax softmax = {.max = {0}};

    for (size_t i = 0; i < TILE; i++)
        softmax.max[i] = -INFINITY;
    pack(head, at->q, head->q + query * head->q_stride, head->q_stride, n);
    for (size_t key = begin; key < end; key += TILE) {
        const size_t place[2] = {query, key};
        const bool diagonal = is_diagonal(head, place);

        tile_scores(head, at->scores, at->q, at->transposed + key * head->padded, n, diagonal);
        if (head->cap > 0)
            cap_scores(head, at->scores, n, place);
        if (head->bias)
            add_bias(head, at->scores, n, place);
        if (head->slope > 0)
            add_alibi(head, at->scores, n, place);
        update_max(&softmax, head, at->scores, n, place);
        exponentiate(&softmax, head, at->scores, n, place);
        if (key > begin)
            rescale_rows(&softmax, head, at->out, n);
        product(&(struct product){.a = at->scores,
                                  .a_row = TILE,
                                  .a_step = 1,
                                  .b = at->v + key * head->padded,
                                  .b_stride = head->padded,
                                  .c = at->out,
                                  .c_stride = head->padded,
                                  .m = n,
                                  .n = head->padded,
                                  .depth = size_smaller(TILE, head->n_keys - key),
                                  .add = key > begin,
                                  .shape = diagonal ? PRODUCT_DEPTH_TO_ROW : PRODUCT_WHOLE});
    }
    finish_rows(&softmax, head, at->out, query, n);
}

static void forward_head(const struct head *head)
{
    const size_t keys = round_up(head->n_keys, TILE);
    struct forward at = {.transposed = head->scratch};

    at.v = at.transposed + keys * head->padded;
    at.q = at.v + keys * head->padded;
    at.scores = at.q + TILE * head->padded;
    at.out = at.scores + TILE * TILE;
    for (size_t key = 0; key < head->n_keys; key += TILE) {
        const size_t n = size_smaller(TILE, head->n_keys - key);
        pack_tile(head, at.out, head->k + key * head->kv_stride, head->kv_stride, n);
        product_transpose(at.transposed + key * head->padded, TILE, at.out, head->padded, TILE, TILE);
        pack(head, at.v + key * head->padded, head->v + key * head->kv_stride, head->kv_stride, n);
    }
    for (size_t query = 0; query < head->n_tokens; query += TILE)
        forward_tile(head, &at, query);
}

/* The scratch of one head's backward pass. */
struct backward {
    float *q, *out_gradient, *q_gradient; /* all tokens' */
    float *delta;                         /* sum over the head of out * its gradient, one number per token */
    float *log2_sum;                      /* log_sum_exp in powers of 2 */
    float *k, *k_transposed, *v_transposed, *k_gradient, *v_gradient; /* one tile of keys */
    float *scores, *score_gradient;
    float *room;          /* for one tile; may be k_gradient */
    bool is_next;         /* not the first of the heads that share their keys: add to the gradients of keys */
    struct chosen chosen; /* if the operation has them */
};

static void backward_prepare(const struct head *head, const struct backward *at)
{
    const struct device_attention *op = head->op;
    const size_t first = head->row * op->n_tokens * op->width + head->index * head->width;
    const float *log_sum_exp = op->log_sum_exp + (head->row * op->n_heads + head->index) * op->n_tokens;

    pack(head, at->q, head->q, head->q_stride, head->n_tokens);
    pack(head, at->out_gradient, (const value *)op->out_gradient + first, op->width, head->n_tokens);
    for (size_t i = 0; i < head->n_tokens; i++) {
        const value *out = (const value *)op->out + first + i * op->width;
        const float *gradient = at->out_gradient + i * head->padded;
        vec sum = {0};
        for (size_t j = 0; j < head->width; j += VECTOR)
            sum += value_load_n(out + j, head->width - j) * vec_load(gradient + j);
        at->delta[i] = (float)vec_sum(sum);
        at->log2_sum[i] = (float)((double)log_sum_exp[i] * 1.4426950408889634);
    }
}

/* From scores and the gradient of the (dropped) probabilities: probabilities, dropped, and the gradient of scores. */
static void softmax_backward(const struct head *head, const struct backward *at, size_t n, const size_t place[2])
{
    const bool diagonal = is_diagonal(head, place), drops = head->op->dropout.p > 0;

    for (size_t i = 0; i < n; i++) {
        float *row = at->scores + i * TILE, *gradient = at->score_gradient + i * TILE, factors[TILE];
        const float log2_sum = at->log2_sum[place[0] + i], delta = at->delta[place[0] + i];
        const size_t columns = tile_columns(i, diagonal), unseen = tile_unseen(head, i, place);

        for (size_t j = 0; j < unseen; j++)
            row[j] = -INFINITY, gradient[j] = 0;
        for (size_t j = tile_seen(head, i, place); j < columns; j++)
            row[j] = -INFINITY, gradient[j] = 0;
        if (drops)
            draw_factors(head, factors, place[0] + i, place[1]);
        for (size_t j = 0; j < columns; j += VECTOR) {
            const vec score = vec_load(row + j);
            vec p = math_exp2(score * head->to_log2 - log2_sum), dp = vec_load(gradient + j);
            if (drops) {
                vec factor = vec_load(factors + j);
                vec_store(row + j, p * factor);
                dp *= factor;
            } else {
                vec_store(row + j, p);
            }
            vec s = p * (dp - delta) * head->op->scale;
            vec_store(gradient + j, head->cap > 0 ? s * cap_slope(head, score) : s);
        }
    }
}

/* Adds the gradients of a tile's scores, by distance. */
static void add_bias_gradient(const struct head *head, const float *gradient, size_t n, const size_t place[2])
{
    const bool diagonal = is_diagonal(head, place);

    for (size_t i = 0; i < n; i++) {
        float *sum = head->bias_gradient + (ptrdiff_t)place[1] - (ptrdiff_t)(place[0] + i);
        for (size_t j = 0; j < tile_columns(i, diagonal); j += VECTOR)
            vec_store(sum + j, vec_load(sum + j) + vec_load(gradient + i * TILE + j));
    }
}

/* Adds the terms of a tile's chosen queries, n in all, to the gradients of its keys. */
static void add_chosen(const struct head *head, const struct backward *at, size_t n, const size_t place[2],
                       struct product *sum)
{
    const struct chosen *c = &at->chosen;
    const size_t first = chosen_before(c, place[0]);
    const bool diagonal = is_diagonal(head, place);
    size_t m = 0;

    for (; first + m < c->n && c->queries[first + m] < place[0] + n; m++) {
        const size_t i = c->queries[first + m] - place[0], columns = tile_columns(i, diagonal);
        chosen_move(at->scores, m, i, columns, c->weights[first + m]);
        chosen_move(at->score_gradient, m, i, columns, c->weights[first + m]);
    }
    sum->a = at->score_gradient, sum->a_row = 1, sum->a_step = TILE;
    sum->b = c->q + first * head->padded, sum->c = at->k_gradient;
    sum->depth = m, sum->shape = PRODUCT_WHOLE;
    product(sum);
    sum->a = at->scores;
    sum->b = c->out_gradient + first * head->padded, sum->c = at->v_gradient;
    product(sum);
}

static void backward_tile(const struct head *head, const struct backward *at, size_t query, size_t key)
{
    const size_t place[2] = {query, key};
    const bool diagonal = is_diagonal(head, place), is_first = query == queries_begin(head, key) && !at->is_next;
    const size_t n = size_smaller(TILE, head->n_tokens - query), n_keys = size_smaller(TILE, head->n_keys - key);
    const float *out_gradient = at->out_gradient + query * head->padded, *q = at->q + query * head->padded;
    struct product sum = {.b_stride = head->padded, .c_stride = head->padded, .n = head->padded};

    tile_scores(head, at->scores, q, at->k_transposed, n, diagonal);
    tile_scores(head, at->score_gradient, out_gradient, at->v_transposed, n, diagonal);
    if (head->cap > 0)
        cap_scores(head, at->scores, n, place);
    if (head->bias)
        add_bias(head, at->scores, n, place);
    if (head->slope > 0)
        add_alibi(head, at->scores, n, place);
    softmax_backward(head, at, n, place);
    if (head->bias)
        add_bias_gradient(head, at->score_gradient, n, place);

    sum.a = at->score_gradient, sum.a_row = TILE, sum.a_step = 1;
    sum.b = at->k, sum.c = at->q_gradient + query * head->padded;
    sum.m = n, sum.depth = n_keys, sum.add = key > keys_begin(head, query);
    sum.shape = diagonal ? PRODUCT_DEPTH_TO_ROW : PRODUCT_WHOLE;
    product(&sum);

    sum.m = n_keys, sum.add = !is_first;
    if (head->op->chosen) {
        add_chosen(head, at, n, place, &sum);
        return;
    }
    sum.a_row = 1, sum.a_step = TILE;
    sum.b = q, sum.c = at->k_gradient;
    sum.depth = n;
    sum.shape = diagonal ? PRODUCT_DEPTH_FROM_ROW : PRODUCT_WHOLE;
    product(&sum);

    sum.a = at->scores;
    sum.b = out_gradient, sum.c = at->v_gradient;
    product(&sum);
}

/* Layout of a thread's scratch. */
static struct backward lay_out(const struct head *head)
{
    const size_t tokens = round_up(head->n_tokens, TILE), keys = round_up(head->n_keys, TILE);
    const size_t whole = tokens * head->padded, tile = TILE * head->padded;
    struct backward at = {.q = head->scratch};

    at.out_gradient = at.q + whole, at.q_gradient = at.out_gradient + whole;
    at.k = at.q_gradient + whole, at.k_transposed = at.k + tile, at.v_transposed = at.k_transposed + tile;
    at.room = at.k_gradient = at.v_transposed + tile, at.v_gradient = at.k_gradient + tile;
    at.scores = at.v_gradient + tile, at.score_gradient = at.scores + TILE * TILE;
    at.delta = at.score_gradient + TILE * TILE, at.log2_sum = at.delta + tokens;
    if (group_of(head->op) > 1)
        at.k_gradient = at.log2_sum + tokens, at.v_gradient = at.k_gradient + keys * head->padded;
    return at;
}

/* A tile of n keys with all queries that see them; completes its gradients. */
static void backward_keys(const struct head *head, const struct backward *at, size_t key, size_t n)
{
    const size_t end = queries_end(head, key, n);

    pack_tile(head, at->room, head->v + key * head->kv_stride, head->kv_stride,
              n); /* room is unused until the first tile of queries */
    product_transpose(at->v_transposed, TILE, at->room, head->padded, TILE, TILE);
    pack_tile(head, at->k, head->k + key * head->kv_stride, head->kv_stride, n);
    product_transpose(at->k_transposed, TILE, at->k, head->padded, TILE, TILE);
    if (key < head->n_counted)
        for (size_t query = queries_begin(head, key); query < end; query += TILE)
            backward_tile(head, at, query, key);
    else if (!at->is_next) { /* no query sees them */
        memset(at->k_gradient, 0, n * head->padded * sizeof(float));
        memset(at->v_gradient, 0, n * head->padded * sizeof(float));
    }
}

static void begin_bias(struct head *head, unsigned thread)
{
    const size_t n = plan_cpu_distances(head->op->n_tokens, head->n_keys);

    find_bias(head, thread);
    memset(head->bias_gradient - round_up(head->op->n_tokens, TILE), 0, n * sizeof *head->bias_gradient);
}

/* Where the heads' gradients of the bias are: (n_rows, n_heads, buckets.n). */
static float *bias_gradients(const struct device_attention *op, unsigned n_threads)
{
    return (float *)op->scratch + n_threads * thread_scratch(op);
}

/* The head's gradient of the bias, by bucket. Scores' gradients are those of the scaled scores, times the scale. */
static void end_bias(const struct head *head, float *to)
{
    const struct device_attention *op = head->op;
    const ptrdiff_t first = -(ptrdiff_t)round_up(op->n_tokens, TILE), end = (ptrdiff_t)round_up(head->n_keys, TILE);
    double sums[DEVICE_BUCKETS] = {0};

    for (ptrdiff_t i = first; i < end; i++)
        sums[device_bucket(&op->buckets, i)] += (double)head->bias_gradient[i];
    for (size_t b = 0; b < op->buckets.n; b++)
        to[b] = (float)(sums[b] / (double)op->scale);
}

/* The heads that share their keys, from this one on. */
static void backward_heads(const struct device_attention *op, size_t item, unsigned thread, float *bias_gradients)
{
    const size_t group = group_of(op);
    const value *const keys = op->kv ? op->kv : op->qkv;
    value *const keys_gradient = op->kv ? op->kv_gradient : op->qkv_gradient;

    for (size_t i = 0; i < group; i++) {
        struct head head = find_head(op, item + i, thread);
        const ptrdiff_t k = head.k - keys, q = head.q - (const value *)op->qkv;
        struct backward at = lay_out(&head);
        float *const k_gradient = at.k_gradient, *const v_gradient = at.v_gradient;

        at.is_next = i > 0;
        backward_prepare(&head, &at);
        if (op->chosen)
            at.chosen = chosen_find(&head, at.q, at.out_gradient);
        if (op->bias)
            begin_bias(&head, thread);
        for (size_t key = 0; key < head.n_keys; key += TILE) {
            const size_t n = size_smaller(TILE, head.n_keys - key);
            value *to = keys_gradient + k + key * head.kv_stride;

            if (group > 1)
                at.k_gradient = k_gradient + key * head.padded, at.v_gradient = v_gradient + key * head.padded;
            backward_keys(&head, &at, key, n);
            if (i + 1 == group) {
                unpack(&head, to, head.kv_stride, at.k_gradient, n);
                unpack(&head, to + head.kv_width, head.kv_stride, at.v_gradient, n);
            }
        }
        unpack(&head, (value *)op->qkv_gradient + q, head.q_stride, at.q_gradient, head.n_tokens);
        if (op->bias)
            end_bias(&head, bias_gradients + (item + i) * op->buckets.n);
    }
}

/* Adds up all heads' gradients of the bias, row by row. */
static void sum_bias(const struct device_attention *op, const float *of_heads)
{
    const size_t n = op->buckets.n;

    for (size_t row = 0; row < op->n_rows; row++)
        for (size_t h = 0; h < op->n_heads; h++, of_heads += n)
            for (size_t b = 0; b < n; b++)
                op->bias_gradient[b * op->n_heads + h] += of_heads[b];
}

static size_t work_of(const struct device_attention *op)
{
    return op->n_rows * op->n_tokens * op->width * (op->kv ? op->n_keys : op->n_tokens) / CPU_TERMS;
}

void KERNEL_NAME(cpu_attention)(struct device *dev, const struct device_attention *op)
{
#pragma omp parallel for num_threads(cpu_threads(dev, work_of(op))) schedule(dynamic)
    for (size_t item = 0; item < op->n_rows * op->n_heads; item++) {
        struct head head = find_head(op, item, cpu_thread());
        device_count(dev->done);
        if (op->bias)
            find_bias(&head, cpu_thread());
        forward_head(&head);
    }
}

static void sink_gradients(struct device *dev, const struct device_attention *op)
{
#pragma omp parallel for num_threads(cpu_threads(dev, op->n_rows * op->n_tokens * op->width)) schedule(static)
    for (size_t head = 0; head < op->n_heads; head++)
        op->sinks_gradient[head] += (float)sink_gradient(op, head);
}

void KERNEL_NAME(cpu_attention_backward)(struct device *dev, const struct device_attention *op)
{
#pragma omp parallel for num_threads(cpu_threads(dev, work_of(op))) schedule(dynamic)
    for (size_t item = 0; item < op->n_rows * op->n_heads; item += group_of(op)) {
        device_count(dev->done);
        backward_heads(op, item, cpu_thread(), bias_gradients(op, dev->n_threads));
    }
    if (op->bias_gradient)
        sum_bias(op, bias_gradients(op, dev->n_threads));
    if (op->sinks_gradient)
        sink_gradients(dev, op);
}
