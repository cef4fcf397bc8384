/* device/cpu/kernels/attention_chosen.h - the queries of a head that stand for all in the gradients of keys and values.
 *
 * Scores and their gradients are computed for all queries, as the gradient of queries is a sum over keys. Then the rows
 * of the chosen ones move to the top of the tile, times their weights, and the two products over queries have so few
 * terms. A query that was drawn several times is one term. */
#ifndef DEVICE_CPU_KERNELS_ATTENTION_CHOSEN_H
#define DEVICE_CPU_KERNELS_ATTENTION_CHOSEN_H

#include "device/cpu/kernels/attention_head.h"

struct chosen {
    size_t n;
    uint32_t *queries;       /* (n), ascending */
    float *weights;          /* (n) */
    float *q, *out_gradient; /* (n, padded) */
};

/* Behind the scratch that attention has without chosen queries. q, out_gradient: (n_tokens, padded), all queries'. */
static struct chosen chosen_find(const struct head *head, const float *q, const float *out_gradient)
{
    const struct device_attention *op = head->op;
    const size_t item = head->row * op->n_heads + head->index, padded = head->padded;
    const uint32_t *const from = op->chosen + item * op->n_chosen;
    const float *const weights = op->weights + item * op->n_chosen;
    struct chosen c = {.q = head->scratch +
                            plan_cpu_attention_scratch(head->n_tokens, head->n_keys, head->width, group_of(op) > 1)};

    c.out_gradient = c.q + op->n_chosen * padded;
    c.weights = c.out_gradient + op->n_chosen * padded;
    c.queries = (uint32_t *)(void *)(c.weights + op->n_chosen);
    for (size_t i = 0; i < op->n_chosen; i++) {
        const uint32_t query = from[i] - (uint32_t)(item * head->n_tokens);

        if (c.n > 0 && c.queries[c.n - 1] == query) {
            c.weights[c.n - 1] += weights[i];
            continue;
        }
        c.queries[c.n] = query;
        c.weights[c.n] = weights[i];
        memcpy(c.q + c.n * padded, q + query * padded, padded * sizeof *q);
        memcpy(c.out_gradient + c.n * padded, out_gradient + query * padded, padded * sizeof *q);
        c.n++;
    }
    return c;
}

/* Chosen ones before a query. */
static size_t chosen_before(const struct chosen *c, size_t query)
{
    size_t low = 0, high = c->n;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;

        if (c->queries[middle] < query)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Row `to` of a tile = row i (>= to) times the weight; zeros from `columns` on, which were not computed. */
static void chosen_move(float *tile, size_t to, size_t i, size_t columns, float weight)
{
    for (size_t j = 0; j < TILE; j += VECTOR)
        vec_store(tile + to * TILE + j, j < columns ? vec_load(tile + i * TILE + j) * weight : (vec){0});
}

#endif
