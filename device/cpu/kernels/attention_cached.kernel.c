/* device/cpu/kernels/attention_cached.kernel.c - attention of a few queries over cached keys and values.
 *
 * The cache is laid out for reading: for each head its keys in transposed tiles of 64, then its values, token by token.
 * So a query reads memory sequentially, and neither transposes nor packs. Tiles are counted from position 0, and each
 * query's sums begin with the tile of the first key that it sees, so the division of tokens into calls changes no
 * bit. A bias is looked up once per tile and distance. */
#include "device/cpu/cpu.h"
#include "device/cpu/kernels/alibi.h"
#include "device/cpu/kernels/attention_sink.h"
#include "device/cpu/kernels/math.h"
#define PRODUCT_OF_VALUES
#include "device/cpu/kernels/product.h"

#include <math.h>

enum { TILE = PLAN_CPU_TILE };

struct head {
    const struct device_attention_cached *op;
    size_t index;
    size_t width, padded;          /* head width, and rounded up to 16 */
    size_t stride;                 /* from token to token of qkv */
    const value *q, *k, *v;        /* the first token's */
    value *out;                    /* op->width to the next token's */
    value *keys, *values;          /* in the cache */
    float *packed, *scores, *sums; /* scratch: (TILE, padded), (TILE, TILE), (TILE, padded) */
    float to_log2;                 /* score * to_log2 is the exponent of 2 */
    float cap;                     /* bound of scores before they are scaled; 0: none */
    float slope;                   /* ALiBi's, of scores before they are scaled; 0: none */
};

static struct head find_head(const struct device_attention_cached *op, size_t index, unsigned thread)
{
    const size_t width = op->width / op->n_heads, padded = (width + 15) / 16 * 16;
    const size_t n_kv_heads = device_kv_heads(op->n_heads, op->n_kv_heads), kv_width = n_kv_heads * width;
    const size_t kept = plan_cpu_attention_kept(op->n_positions, width), of_keys = index / (op->n_heads / n_kv_heads);
    float *scratch =
        (float *)op->scratch + thread * plan_cpu_attention_scratch(op->n_tokens, op->n_tokens, width, false);
    const value *k = (const value *)op->qkv + op->width + of_keys * width;
    value *cache = (value *)op->cache + 2 * of_keys * kept;

    return (struct head){.op = op,
                         .index = index,
                         .width = width,
                         .padded = padded,
                         .stride = op->width + 2 * kv_width,
                         .q = (const value *)op->qkv + index * width,
                         .k = k,
                         .v = k + kv_width,
                         .out = (value *)op->out + index * width,
                         .keys = cache,
                         .values = cache + kept,
                         .packed = scratch,
                         .scores = scratch + TILE * padded,
                         .sums = scratch + TILE * padded + TILE * TILE,
                         .to_log2 = (float)((double)op->scale * 1.4426950408889634),
                         .cap = op->cap / op->scale,
                         .slope = op->alibi ? alibi_slope(op->n_heads, index) / op->scale : 0};
}

static void append(const struct head *head)
{
    const struct device_attention_cached *op = head->op;

    for (size_t i = 0; i < op->n_tokens; i++) {
        const value *k = head->k + i * head->stride, *v = head->v + i * head->stride;
        const size_t position = op->first + i;
        value *keys = head->keys + position / TILE * TILE * head->padded + position % TILE;

        for (size_t d = 0; d < head->width; d++)
            keys[d * TILE] = k[d];
        memcpy(head->values + position * head->padded, v, head->width * sizeof *v);
    }
}

/* Adds the bias, in units of unscaled scores, to the scores of n queries, the first at `position`, with the keys of the
 * tile that begins at `key`. No query sees keys after the last one's position. */
static void add_bias(const struct head *head, size_t position, size_t n, size_t key)
{
    const struct device_attention_cached *op = head->op;
    const size_t farthest = position + n - 1 - key, n_distances = size_smaller(farthest + 1, n + TILE - 1);
    float bias[2 * TILE] = {0}; /* by distance, from the farthest down */

    for (size_t i = 0; i < n_distances; i++)
        bias[i] =
            op->bias[device_bucket(&op->buckets, (ptrdiff_t)i - (ptrdiff_t)farthest) * op->n_heads + head->index] /
            op->scale;
    for (size_t i = 0; i < n; i++) {
        const float *of_query = bias + n - 1 - i;
        float *scores = head->scores + i * TILE;
        for (size_t j = 0; j < TILE; j += VECTOR)
            vec_store(scores + j, vec_load(scores + j) + vec_load(of_query + j));
    }
}

/* Running softmax of one query, over the keys so far. */
struct softmax {
    float max;
    float sums[VECTOR]; /* sums of exponentials, lane by lane */
};

/* Turns scores from .. to-1 of a row into exponentials, the others into zeros. Returns the factor of the earlier
 * sums. */
static float exponentiate(struct softmax *softmax, const struct head *head, float *row, size_t from, size_t to)
{
    vec max = vec_all(softmax->max), rescale, sum;

    if (from == TILE) { /* no key so far, so the difference below would be one of infinities */
        memset(row, 0, TILE * sizeof *row);
        return 1;
    }
    for (size_t j = 0; j < from; j++)
        row[j] = -INFINITY;
    for (size_t j = to; j < TILE; j++)
        row[j] = -INFINITY;
    for (size_t j = 0; j < TILE; j += VECTOR)
        max = vec_max(vec_load(row + j), max);
    const float before = softmax->max, now = vec_largest(max);
    rescale = math_exp2(vec_all((before - now) * head->to_log2));
    sum = vec_load(softmax->sums) * rescale;
    for (size_t j = 0; j < TILE; j += VECTOR) {
        const vec p = math_exp2(vec_load(row + j) * head->to_log2 - now * head->to_log2);
        sum += p;
        vec_store(row + j, p);
    }
    vec_store(softmax->sums, sum);
    softmax->max = now;
    return rescale[0];
}

/* Keys of a tile, which begins at `key`, before `end`. */
static size_t tile_keys(size_t end, size_t key)
{
    return end > key ? size_smaller(end - key, TILE) : 0;
}

/* n queries from `query` on against the keys of one tile. first: of their tiles. */
static void attend_tile(const struct head *head, struct softmax *softmax, size_t query, size_t n, size_t first,
                        size_t key)
{
    const size_t position = head->op->first + query, end = position + n;

    product(&(struct product){.a = head->packed,
                              .a_row = head->padded,
                              .a_step = 1,
                              .b = head->keys + key * head->padded,
                              .b_stride = TILE,
                              .c = head->scores,
                              .c_stride = TILE,
                              .m = n,
                              .n = TILE,
                              .depth = head->width});
    for (size_t i = 0; head->cap > 0 && i < n * TILE; i += VECTOR)
        vec_store(head->scores + i, head->cap * math_tanh(vec_load(head->scores + i) / head->cap));
    if (head->op->bias)
        add_bias(head, position, n, key);
    for (size_t i = 0; head->slope > 0 && i < n; i++)
        alibi_add(head->scores + i * TILE, TILE, head->slope, (ptrdiff_t)key - (ptrdiff_t)(position + i));
    for (size_t i = 0; i < n; i++) {
        const size_t from = tile_keys(device_first_key(head->op->window, position + i), key),
                     to = tile_keys(position + i + 1, key);
        const float rescale = exponentiate(&softmax[i], head, head->scores + i * TILE, from, to);
        float *sums = head->sums + i * head->padded;
        for (size_t j = 0; key > first && rescale != 1 && j < head->padded; j += VECTOR)
            vec_store(sums + j, vec_load(sums + j) * rescale);
    }
    product(&(struct product){.a = head->scores,
                              .a_row = TILE,
                              .a_step = 1,
                              .b = head->values + key * head->padded,
                              .b_stride = head->padded,
                              .c = head->sums,
                              .c_stride = head->padded,
                              .m = n,
                              .n = head->padded,
                              .depth = size_smaller(TILE, end - key),
                              .add = key > first});
}

static void attend(const struct head *head)
{
    const struct device_attention_cached *op = head->op;

    for (size_t query = 0; query < op->n_tokens; query += TILE) {
        const size_t n = size_smaller(TILE, op->n_tokens - query), position = op->first + query;
        const size_t begin = device_first_key(head->op->window, position) / TILE * TILE;
        struct softmax softmax[TILE];

        for (size_t i = 0; i < n; i++) {
            softmax[i] = (struct softmax){.max = -INFINITY};
            for (size_t j = 0; j < head->width; j += VECTOR)
                vec_store(head->packed + i * head->padded + j,
                          value_load_n(head->q + (query + i) * head->stride + j, head->width - j));
        }
        for (size_t key = begin; key < position + n; key += TILE)
            attend_tile(head, softmax, query, n, begin, key);
        for (size_t i = 0; i < n; i++) {
            const float *from = head->sums + i * head->padded;
            float sum = (float)vec_sum(vec_load(softmax[i].sums)), max = softmax[i].max * head->to_log2;
            const float factor = op->sinks ? sink_join(&max, &sum, sink_exponent(op->sinks, head->index)) : 1;
            value *to = head->out + (query + i) * op->width;
            for (size_t j = 0; j < head->width; j += VECTOR)
                value_store_n(to + j, vec_load(from + j) * factor / sum, head->width - j);
        }
    }
}

void KERNEL_NAME(cpu_attention_cached)(struct device *dev, const struct device_attention_cached *op)
{
    const size_t group = op->n_heads / device_kv_heads(op->n_heads, op->n_kv_heads);

#pragma omp parallel for schedule(dynamic)                                                                             \
    num_threads(cpu_threads(dev, device_window(op->window, op->first + op->n_tokens) * op->n_tokens * op->width))
    for (size_t first = 0; first < op->n_heads; first += group)
        for (size_t i = 0; i < group; i++) {
            const struct head head = find_head(op, first + i, cpu_thread());
            if (i == 0)
                append(&head);
            attend(&head);
        }
}
