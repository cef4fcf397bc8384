/* Bytes are counted by functions that `take` in the same order as those that run: sampling_keep_bytes and
 * sampling_keep, sampling_recall_bytes and sampling_recall. Weights multiply rows of dy alone, so that what is kept
 * of x is what forward had, and can be in few bits. */
#include "proto/operation/sampling.h"

#include "proto/operation/operation.h"

/* Places in a step's scratch, in bytes. */
struct places {
    uint64_t scores, chosen, weights, x, dy, bytes;
};

static uint64_t sampling_take(uint64_t *end, uint64_t bytes)
{
    const uint64_t at = *end;

    *end += (bytes + 63) / 64 * 64;
    return at;
}

/* Lays out the scratch for k chosen tokens of each row. */
static struct places sampling_lay_out(const struct sampling_shape *of, uint64_t k, enum number_type type)
{
    struct places at = {0};

    at.scores = sampling_take(&at.bytes, of->n_rows * of->n_tokens * sizeof(float));
    at.chosen = sampling_take(&at.bytes, of->n_rows * k * sizeof(uint32_t));
    at.weights = sampling_take(&at.bytes, of->n_rows * k * sizeof(float));
    at.x = sampling_take(&at.bytes, of->n_rows * k * of->x_columns * number_bytes(type));
    at.dy = sampling_take(&at.bytes, of->n_rows * k * of->dy_columns * number_bytes(type));
    return at;
}

uint64_t sampling_bytes(const struct sampling *s, const struct sampling_shape *of, enum number_type type)
{
    const size_t k = sampling_count(s, of->n_tokens);

    return k == of->n_tokens ? 0 : sampling_lay_out(of, k, type).bytes;
}

static void choose(const struct operation_run *r, const struct sampling_shape *of, const float *scores, int tensor,
                   uint32_t *chosen, float *weights)
{
    const struct random_key key = operation_draw_key(r, RANDOM_ROWS + (enum random_site)tensor);

    r->ops->choose_rows(r->dev, &(struct device_choose_rows){.n_rows = of->n_rows,
                                                             .n_tokens = of->n_tokens,
                                                             .n_chosen = sampling_count(&r->sampling, of->n_tokens),
                                                             .rule = r->sampling.rule,
                                                             .scores = scores,
                                                             .chosen = chosen,
                                                             .weights = weights,
                                                             .key = key,
                                                             .first_row = r->first_row});
}

/* Norms of x (m, n), or what is there times these. */
static void sampling_score(const struct operation_run *r, size_t m, size_t n, const void *x, float *scores,
                           bool multiply)
{
    r->ops->row_norms(
        r->dev, &(struct device_row_norms){.m = m, .n = n, .stride = n, .x = x, .norms = scores, .multiply = multiply});
}

struct sampling_operands sampling_choose(const struct operation_run *r, const struct sampling_shape *of,
                                         const struct sampling_operands *all, int tensor, void *scratch)
{
    const size_t k = sampling_count(&r->sampling, of->n_tokens), n = all->n_rows, n_chosen = of->n_rows * k;
    const size_t in = of->x_columns, out = of->dy_columns;

    if (k == of->n_tokens || r->step < r->sampling.begin)
        return *all;
    const struct places at = sampling_lay_out(of, k, r->type);
    char *const base = scratch;
    float *const scores = (float *)(void *)(base + at.scores), *const weights = (float *)(void *)(base + at.weights);
    uint32_t *const chosen = (uint32_t *)(void *)(base + at.chosen);
    void *const x = base + at.x, *const dy = base + at.dy;

    sampling_score(r, n, in, all->x, scores, false);
    sampling_score(r, n, out, all->dy, scores, true);
    choose(r, of, scores, tensor, chosen, weights);
    r->ops->gather_rows(r->dev, &(struct device_gather_rows){n, in, in, n_chosen, all->x, chosen, NULL, x});
    r->ops->gather_rows(r->dev, &(struct device_gather_rows){n, out, out, n_chosen, all->dy, chosen, weights, dy});
    return (struct sampling_operands){x, dy, n_chosen};
}

/* ---- queries ---- */

/* n_rows: heads of rows. Nothing is gathered. */
static struct places lay_out_queries(size_t n_rows, size_t n_tokens, size_t n_chosen)
{
    return sampling_lay_out(&(struct sampling_shape){.n_rows = n_rows, .n_tokens = n_tokens}, n_chosen, NUMBER_FP32);
}

uint64_t sampling_queries_bytes(size_t n_rows, size_t n_heads, size_t n_tokens, size_t n_chosen)
{
    return n_chosen > 0 ? lay_out_queries(n_rows * n_heads, n_tokens, n_chosen).bytes : 0;
}

void sampling_choose_queries(const struct operation_run *r, int value, struct device_attention *op)
{
    const size_t n_rows = op->n_rows * op->n_heads;

    if (op->n_chosen == 0)
        return;
    const struct places at = lay_out_queries(n_rows, op->n_tokens, op->n_chosen);
    char *const base = op->scratch;
    float *const scores = (float *)(void *)(base + at.scores), *const weights = (float *)(void *)(base + at.weights);
    uint32_t *const chosen = (uint32_t *)(void *)(base + at.chosen);
    const struct random_key key = operation_draw_key(r, RANDOM_QUERIES + (enum random_site)value);

    r->ops->row_norms(r->dev, &(struct device_row_norms){.m = op->n_rows * op->n_tokens,
                                                         .n = op->width / op->n_heads,
                                                         .stride = op->width,
                                                         .x = op->out_gradient,
                                                         .norms = scores,
                                                         .n_heads = op->n_heads,
                                                         .n_tokens = op->n_tokens});
    r->ops->choose_rows(r->dev, &(struct device_choose_rows){.n_rows = n_rows,
                                                             .n_tokens = op->n_tokens,
                                                             .n_chosen = op->n_chosen,
                                                             .rule = r->sampling.rule,
                                                             .ascends = true,
                                                             .scores = scores,
                                                             .chosen = chosen,
                                                             .weights = weights,
                                                             .key = key,
                                                             .first_row = r->first_row * op->n_heads});
    op->chosen = chosen, op->weights = weights;
    op->scratch = base + at.bytes;
}

/* ---- kept by forward ---- */

/* Places in what is kept, in bytes. */
struct kept {
    uint64_t x, chosen, weights, bytes;
};

/* Bytes of the chosen rows of an operand as values, and in bits. */
static uint64_t chosen_bytes(const struct sampling *s, const struct sampling_shape *of, size_t columns,
                             enum number_type type)
{
    return of->n_rows * sampling_count(s, of->n_tokens) * columns * number_bytes(type);
}

static uint64_t coded_bytes(const struct sampling *s, const struct sampling_shape *of, unsigned bits)
{
    return of->n_rows * compress_row_bytes(sampling_count(s, of->n_tokens) * of->x_columns, bits);
}

static struct kept lay_out_kept(const struct sampling *s, const struct sampling_shape *of, enum number_type type,
                                unsigned bits)
{
    const uint64_t n = of->n_rows * sampling_count(s, of->n_tokens);
    struct kept at = {0};

    at.x = sampling_take(&at.bytes, bits ? coded_bytes(s, of, bits) : chosen_bytes(s, of, of->x_columns, type));
    at.chosen = sampling_take(&at.bytes, n * sizeof(uint32_t));
    at.weights = sampling_take(&at.bytes, n * sizeof(float));
    return at;
}

uint64_t sampling_kept_bytes(const struct sampling *s, const struct sampling_shape *of, enum number_type type,
                             unsigned bits)
{
    return lay_out_kept(s, of, type, bits).bytes;
}

/* Scores; and the rows before they are coded. */
uint64_t sampling_keep_bytes(const struct sampling *s, const struct sampling_shape *of, enum number_type type,
                             unsigned bits)
{
    uint64_t bytes = 0;

    sampling_take(&bytes, of->n_rows * of->n_tokens * sizeof(float));
    sampling_take(&bytes, bits ? chosen_bytes(s, of, of->x_columns, type) : 0);
    return bytes;
}

/* Rows of dy; and those of x, decoded. */
uint64_t sampling_recall_bytes(const struct sampling *s, const struct sampling_shape *of, enum number_type type,
                               unsigned bits)
{
    uint64_t bytes = 0;

    sampling_take(&bytes, chosen_bytes(s, of, of->dy_columns, type));
    sampling_take(&bytes, bits ? chosen_bytes(s, of, of->x_columns, type) : 0);
    return bytes;
}

void sampling_keep(const struct operation_run *r, const struct sampling_shape *of, const void *x, const uint16_t *norms,
                   int value, int tensor, void *kept, void *scratch)
{
    const unsigned bits = r->program->values[value].bits;
    const struct kept at = lay_out_kept(&r->sampling, of, r->type, bits);
    const size_t in = of->x_columns, k = sampling_count(&r->sampling, of->n_tokens), n = of->n_rows * of->n_tokens;
    char *const base = kept;
    uint32_t *const chosen = (uint32_t *)(void *)(base + at.chosen);
    float *const scores = scratch;
    uint64_t after = 0;

    sampling_take(&after, n * sizeof *scores);
    void *const rows = bits ? (char *)scratch + after : base + at.x;
    sampling_score(r, n, in, x, scores, false);
    if (norms)
        r->ops->weigh_scores(r->dev,
                             &(struct device_weigh_scores){of->n_rows, of->n_tokens, of->n_tokens, norms, scores});
    choose(r, of, scores, tensor, chosen, (float *)(void *)(base + at.weights));
    r->ops->gather_rows(r->dev, &(struct device_gather_rows){n, in, in, of->n_rows * k, x, chosen, NULL, rows});
    if (bits)
        r->ops->compress(r->dev,
                         &(struct device_compress){of->n_rows, k * in, bits, rows, (uint8_t *)base + at.x,
                                                   operation_draw_key(r, RANDOM_VALUES + (enum random_site)value),
                                                   r->first_row});
}

struct sampling_operands sampling_recall(const struct operation_run *r, const struct sampling_shape *of,
                                         const void *kept, int value, const void *dy, void *scratch)
{
    const unsigned bits = r->program->values[value].bits;
    const struct kept at = lay_out_kept(&r->sampling, of, r->type, bits);
    const size_t out = of->dy_columns, k = sampling_count(&r->sampling, of->n_tokens), n = of->n_rows * of->n_tokens;
    const char *const base = kept;
    const uint32_t *const chosen = (const uint32_t *)(const void *)(base + at.chosen);
    const float *const weights = (const float *)(const void *)(base + at.weights);
    uint64_t after = 0;

    sampling_take(&after, chosen_bytes(&r->sampling, of, out, r->type));
    void *const x = (char *)scratch + after;
    if (bits)
        r->ops->expand(r->dev,
                       &(struct device_expand){of->n_rows, k * of->x_columns, bits, (const uint8_t *)base + at.x, x});
    r->ops->gather_rows(r->dev,
                        &(struct device_gather_rows){n, out, out, of->n_rows * k, dy, chosen, weights, scratch});
    return (struct sampling_operands){bits ? x : base + at.x, scratch, of->n_rows * k};
}
