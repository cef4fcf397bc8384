/* Counted is what queries see, a triangle or a band, not the whole tiles that kernels compute. That is no error of the
 * estimate: rates are measured by calls which these same functions describe. What depends on more than a rate, such as
 * columns that fill up a tile and multiprocessors that are idle at the end, is in `lasting` alone; the count of
 * operations that is reported stays what the formula says. */
#include "proto/operation/call/attention.h"

#include "proto/base/size.h"
#include "proto/operation/call.h"

#include <assert.h>
#include <math.h>

/* Keys that a query sees, on average over a row: all, half of them, or with a window, on one side or both, which those
 * at the row's ends do not fill. Of documents in a row no more than their number is known before: the price is that of
 * one as long as the row, and no row costs more. */
static double keys_seen(const struct device_attention *op)
{
    const double n = (double)device_attention_keys(op), window = (double)device_window(op->window, op->n_tokens);

    if (device_attention_is_local(op)) /* a row's ends lack those on one side */
        return fmin(n, 2 * window - 1 - window * (window - 1) / n);
    return op->full ? n : window * (1 - window / (2 * n));
}

/* Two products of each query with the keys that it sees, forward. */
static double attention_products_of(const struct device_attention *op)
{
    return 4 * (double)(op->n_rows * op->n_tokens) * keys_seen(op) * (double)op->width;
}

static struct call_extent qkv_of(const struct device_attention *op)
{
    const size_t kv_width = device_kv_width(op->n_heads, op->n_kv_heads, op->width);

    return call_all(op->n_rows * op->n_tokens * (op->width + (op->kv ? 0 : 2 * kv_width)));
}

static struct call_extent kv_of(const struct device_attention *op)
{
    return call_all(op->n_rows * op->n_keys * 2 * device_kv_width(op->n_heads, op->n_kv_heads, op->width));
}

static struct call_extent out_of(const struct device_attention *op)
{
    return call_all(op->n_rows * op->n_tokens * op->width);
}

static struct call_extent attention_bias_of(const struct device_buckets *buckets, size_t n_heads)
{
    return call_all(buckets->n * n_heads);
}

static struct call_extent chosen_of(const struct device_attention *op)
{
    return call_all(op->n_rows * op->n_heads * op->n_chosen);
}

static void attention_describe(struct call_work *out, struct device_attention *op, unsigned use_of_out,
                               unsigned use_of_sums)
{
    const struct plan_attention_sizes sizes = {.n_rows = op->n_rows,
                                               .n_tokens = op->n_tokens,
                                               .n_keys = device_attention_keys(op),
                                               .n_heads = op->n_heads,
                                               .n_kv_heads = device_kv_heads(op->n_heads, op->n_kv_heads),
                                               .width = op->width,
                                               .n_buckets = op->bias ? op->buckets.n : 0,
                                               .n_chosen = op->chosen ? op->n_chosen : 0};

    call_add_array(out, "qkv", &op->qkv, CALL_VALUES, CALL_READ, qkv_of(op));
    call_add_array(out, "kv", &op->kv, CALL_VALUES, CALL_READ | CALL_OPTIONAL, kv_of(op));
    call_add_array(out, "lengths", &op->lengths, CALL_WORDS, CALL_READ | CALL_OPTIONAL, call_all(op->n_rows));
    call_add_array(out, "positions", &op->positions, CALL_WORDS, CALL_READ | CALL_OPTIONAL,
                   call_all(op->n_rows * op->n_tokens));
    call_add_array(out, "bias", &op->bias, CALL_FP32, CALL_READ | CALL_OPTIONAL,
                   attention_bias_of(&op->buckets, op->n_heads));
    call_add_array(out, "sinks", &op->sinks, CALL_VALUES, CALL_READ | CALL_OPTIONAL, call_all(op->n_heads));
    call_add_array(out, "out", &op->out, CALL_VALUES, use_of_out, out_of(op));
    call_add_array(out, "log_sum_exp", &op->log_sum_exp, CALL_FP32, use_of_sums,
                   call_all(op->n_rows * op->n_tokens * op->n_heads));
    call_add_array(out, "scratch", &op->scratch, CALL_BYTES, 0,
                   call_all(out->on.backend->scratch_bytes(&sizes, out->on.n_threads)));
}

/* How many times as long a kernel of ours takes as if no multiprocessor were ever idle: at least 1. Blocks are not
 * divided. Those of full rows are taken for equal, and take whole rounds. In causal rows the longest of each head come
 * first and short ones fill the gaps, but the longest must end. */
static double tail_of(const struct device_attention *op, enum attention_kernel kernel, size_t tile,
                      double n_multiprocessors)
{
    const double rounds = (double)attention_blocks(op, kernel, tile) / n_multiprocessors;
    const double tiles = (double)attention_tiles(op, kernel, tile);
    const double seen =
        (double)device_window(op->window, op->n_tokens) / keys_seen(op); /* by the last query, over the mean */
    const double longest = 1 + (seen - 1) * (tiles - 1) / (tiles + 1);   /* block, over the mean */
    const double least = op->full ? ceil(rounds) : longest;

    return least > rounds ? least / rounds : 1;
}

/* Counts a share of the call's operations for the path of this kernel. */
static void attention_count(struct call_work *out, const struct device_attention *op, enum attention_kernel kernel,
                            double share)
{
    const enum attention_path path =
        out->on.backend->takes_turns ? ATTENTION_PLAIN : attention_path_of(out->on.type, op, kernel, out->on.attention);
    const double n = share * out->operations;
    const bool is_known = out->on.n_multiprocessors > 0 && path != ATTENTION_LIBRARY;
    const size_t tile = attention_tile(out->on.type, op, kernel), head = op->width / op->n_heads;
    const double computed = path == ATTENTION_PLAIN ? n : n * (double)attention_columns(head) / (double)head;

    out->by_path[path] += n;
    out->lasting[path] += is_known ? computed * tail_of(op, kernel, tile, out->on.n_multiprocessors) : computed;
}

static struct attention_shape attention_shape_of(const struct device_attention *op)
{
    return (struct attention_shape){.tokens = 2 * keys_seen(op),
                                    .head = op->width / op->n_heads,
                                    .is_shared = device_kv_heads(op->n_heads, op->n_kv_heads) < op->n_heads};
}

void device_attention_describe(struct call_work *out, struct device_attention *op)
{
    out->rate = CALL_RATE_ATTENTION;
    out->operations = attention_products_of(op);
    out->attention = attention_shape_of(op);
    attention_count(out, op, ATTENTION_FORWARD, 1);
    attention_describe(out, op, CALL_WRITTEN, CALL_WRITTEN);
}

/* Five products; chosen queries alone take part in two of them. */
void device_attention_backward_describe(struct call_work *out, struct device_attention *op)
{
    const double share = op->chosen ? (double)op->n_chosen / (double)op->n_tokens : 1;
    const double of_queries = 3, of_keys = 4 * share; /* products of our kernels */

    out->rate = CALL_RATE_ATTENTION_BACKWARD;
    out->operations = (1.5 + share) * attention_products_of(op);
    out->attention = attention_shape_of(op);
    attention_count(out, op, ATTENTION_QUERIES, of_queries / (of_queries + of_keys));
    attention_count(out, op, ATTENTION_KEYS, of_keys / (of_queries + of_keys));
    attention_describe(out, op, CALL_READ, CALL_READ | CALL_FORWARD);
    call_add_array(out, "out_gradient", &op->out_gradient, CALL_VALUES, CALL_READ, out_of(op));
    call_add_array(out, "qkv_gradient", &op->qkv_gradient, CALL_VALUES, CALL_WRITTEN, qkv_of(op));
    if (op->kv)
        call_add_array(out, "kv_gradient", &op->kv_gradient, CALL_VALUES, CALL_WRITTEN, kv_of(op));
    call_add_array(out, "bias_gradient", &op->bias_gradient, CALL_FP32, CALL_READ | CALL_WRITTEN | CALL_OPTIONAL,
                   attention_bias_of(&op->buckets, op->n_heads));
    call_add_array(out, "sinks_gradient", &op->sinks_gradient, CALL_FP32, CALL_READ | CALL_WRITTEN | CALL_OPTIONAL,
                   call_all(op->n_heads));
    call_add_array(out, "chosen", &op->chosen, CALL_WORDS, CALL_READ | CALL_OPTIONAL, chosen_of(op));
    call_add_array(out, "weights", &op->weights, CALL_FP32, CALL_READ | CALL_OPTIONAL, chosen_of(op));
}

/* Keys that all queries of the call see together: the first ones all keys up to their own, later ones a window. */
static double cached_keys_seen(const struct device_attention_cached *op)
{
    const size_t window = device_window(op->window, op->first + op->n_tokens);
    const size_t growing = window > op->first ? size_smaller(window - op->first, op->n_tokens) : 0;
    const double n = (double)growing;

    return n * (double)op->first + n * (n + 1) / 2 + (double)((op->n_tokens - growing) * window);
}

/* The call reads the cached keys and values that some query sees, and writes the new ones. */
void device_attention_cached_describe(struct call_work *out, struct device_attention_cached *op)
{
    const struct plan_backend *backend = out->on.backend;
    const size_t n_kv_heads = device_kv_heads(op->n_heads, op->n_kv_heads);
    const size_t kv_width = device_kv_width(op->n_heads, op->n_kv_heads, op->width);
    const size_t cache = backend->cache_bytes(out->on.type, op->n_positions, n_kv_heads, kv_width);
    const size_t position = 2 * kv_width * number_bytes(out->on.type);
    const size_t n_seen = op->first + op->n_tokens - device_first_key(op->window, op->first);
    const struct plan_attention_sizes sizes = {
        .n_rows = 1, .n_tokens = op->n_tokens, .n_heads = op->n_heads, .n_kv_heads = n_kv_heads, .width = op->width};

    assert(!op->bias || n_kv_heads == op->n_heads);
    out->rate = CALL_RATE_ATTENTION;
    out->operations = 4 * cached_keys_seen(op) * (double)op->width;
    out->by_path[ATTENTION_PLAIN] = out->lasting[ATTENTION_PLAIN] = out->operations;
    out->attention = (struct attention_shape){.tokens = 2 * cached_keys_seen(op) / (double)op->n_tokens,
                                              .head = op->width / op->n_heads,
                                              .is_shared = n_kv_heads < op->n_heads};
    call_add_array(out, "qkv", &op->qkv, CALL_VALUES, CALL_READ, call_all(op->n_tokens * (op->width + 2 * kv_width)));
    call_add_array(out, "bias", &op->bias, CALL_FP32, CALL_READ | CALL_OPTIONAL,
                   attention_bias_of(&op->buckets, op->n_heads));
    call_add_array(out, "sinks", &op->sinks, CALL_VALUES, CALL_READ | CALL_OPTIONAL, call_all(op->n_heads));
    call_add_array(out, "out", &op->out, CALL_VALUES, CALL_WRITTEN, call_all(op->n_tokens * op->width));
    call_add_array(out, "cache", &op->cache, CALL_BYTES, CALL_READ, call_some(cache, n_seen * position));
    call_add_array(out, "cache", &op->cache, CALL_BYTES, CALL_WRITTEN, call_some(cache, op->n_tokens * position));
    call_add_array(out, "scratch", &op->scratch, CALL_BYTES, 0,
                   call_all(backend->scratch_bytes(&sizes, out->on.n_threads)));
}
