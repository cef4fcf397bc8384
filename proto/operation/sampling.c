#include "proto/operation/sampling.h"

#include "proto/operation/operation.h"

/* Places in a step's scratch, in bytes. */
struct places {
    uint64_t scores, chosen, weights, x, dy, bytes;
};

static uint64_t take(uint64_t *end, uint64_t bytes)
{
    const uint64_t at = *end;

    *end += (bytes + 63) / 64 * 64;
    return at;
}

/* Of k of a row's tokens. */
static struct places lay_out(const struct sampling_shape *of, uint64_t k, enum number_type type)
{
    struct places at = {0};

    at.scores = take(&at.bytes, of->n_rows * of->n_tokens * sizeof(float));
    at.chosen = take(&at.bytes, of->n_rows * k * sizeof(uint32_t));
    at.weights = take(&at.bytes, of->n_rows * k * sizeof(float));
    at.x = take(&at.bytes, of->n_rows * k * of->x_columns * number_bytes(type));
    at.dy = take(&at.bytes, of->n_rows * k * of->dy_columns * number_bytes(type));
    return at;
}

uint64_t sampling_bytes(const struct sampling *s, const struct sampling_shape *of, enum number_type type)
{
    const size_t k = sampling_count(s, of->n_tokens);

    return k == of->n_tokens ? 0 : lay_out(of, k, type).bytes;
}

struct sampling_operands sampling_choose(const struct operation_run *r, const struct sampling_shape *of,
                                         const struct sampling_operands *all, int tensor, void *scratch)
{
    const size_t k = sampling_count(&r->sampling, of->n_tokens), n = all->n_rows, n_chosen = of->n_rows * k;
    const size_t in = of->x_columns, out = of->dy_columns;

    if (k == of->n_tokens)
        return *all;
    const struct places at = lay_out(of, k, r->type);
    char *const base = scratch;
    float *const scores = (float *)(void *)(base + at.scores), *const weights = (float *)(void *)(base + at.weights);
    uint32_t *const chosen = (uint32_t *)(void *)(base + at.chosen);
    void *const x = base + at.x, *const dy = base + at.dy;

    r->ops->row_norms(r->dev, &(struct device_row_norms){n, in, in, all->x, scores, false});
    r->ops->row_norms(r->dev, &(struct device_row_norms){n, out, out, all->dy, scores, true});
    r->ops->choose_rows(r->dev,
                        &(struct device_choose_rows){.n_rows = of->n_rows,
                                                     .n_tokens = of->n_tokens,
                                                     .n_chosen = k,
                                                     .least = r->sampling.least,
                                                     .scores = scores,
                                                     .chosen = chosen,
                                                     .weights = weights,
                                                     .key = random_site_key(r->seed, r->step, r->unit,
                                                                            RANDOM_ROWS + (enum random_site)tensor),
                                                     .first_row = r->first_row});
    r->ops->gather_rows(r->dev, &(struct device_gather_rows){n, in, in, n_chosen, all->x, chosen, NULL, x});
    r->ops->gather_rows(r->dev, &(struct device_gather_rows){n, out, out, n_chosen, all->dy, chosen, weights, dy});
    return (struct sampling_operands){x, dy, n_chosen};
}
