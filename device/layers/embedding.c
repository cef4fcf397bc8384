/* x[r][t] = dropout(wte[id] + wpe[t]). The table of tokens, and that of positions if it is long, come in several units:
 * each token finds its row in exactly one of them, so the first write of a row is plain and nothing need be zeroed. */
#include "device/layers/layers.h"

/* Rows first .. first+n-1 of one of the two tables. */
struct table {
    bool is_position;
    uint64_t first, n;
};

static struct table table_of(const struct layer_pass *pass)
{
    const struct model_piece *piece = &pass->model->pieces[pass->unit->first_piece];

    return (struct table){.is_position = &pass->model->tensors[piece->tensor] == model_find(pass->model, "wpe.weight"),
                          .first = piece->first_row,
                          .n = piece->n_rows};
}

/* Positions of this table that a row of n_tokens from pass->position on reaches: n of them, from `first` on. */
static struct table reached(const struct layer_pass *pass, const struct table *table)
{
    const uint64_t end = (uint64_t)pass->position + pass->n_tokens, table_end = table->first + table->n;
    const uint64_t first = pass->position > table->first ? pass->position : table->first;
    const uint64_t last = end < table_end ? end : table_end;

    return (struct table){.is_position = true, .first = first, .n = last > first ? last - first : 0};
}

static void forward(const struct layer_pass *pass)
{
    const struct table table = table_of(pass);
    const size_t width = pass->model->config.width;

    if (!table.is_position) {
        pass->ops->embed(pass->dev, pass->output, false, pass->ids, layer_tokens(pass), pass->weights,
                         (uint32_t)table.first, (uint32_t)table.n, width);
    } else if (reached(pass, &table).n) {
        const struct table reach = reached(pass, &table);
        const void *from = layer_element(pass, pass->weights, (reach.first - table.first) * width);
        for (size_t row = 0; row < pass->n_rows; row++) {
            const size_t token = row * pass->n_tokens + reach.first - pass->position;
            pass->ops->position(pass->dev, layer_element(pass, pass->output, token * width), from, 1, reach.n, width);
        }
    }
    if (pass->top) {
        const struct device_dropout dropout =
            layer_dropout(pass, pass->model->config.dropout_embedding, RANDOM_DROPOUT_EMBEDDING);
        if (dropout.p > 0)
            pass->ops->dropout_add(pass->dev, pass->output, NULL, pass->output, pass->n_rows, pass->n_tokens, width,
                                   &dropout);
    }
}

static void backward(const struct layer_pass *pass)
{
    const struct table table = table_of(pass);
    const size_t width = pass->model->config.width;

    if (pass->top) {
        const struct device_dropout dropout =
            layer_dropout(pass, pass->model->config.dropout_embedding, RANDOM_DROPOUT_EMBEDDING);
        if (dropout.p > 0)
            pass->ops->dropout_backward(pass->dev, pass->gradient, pass->gradient, pass->n_rows, pass->n_tokens, width,
                                        &dropout);
    }
    if (pass->fresh)
        pass->ops->zero(pass->dev, pass->contribution, pass->unit->n * sizeof(float));
    if (!table.is_position) {
        pass->ops->embed_backward(pass->dev, pass->contribution, pass->ids, layer_tokens(pass), pass->gradient,
                                  (uint32_t)table.first, (uint32_t)table.n, width);
    } else if (reached(pass, &table).n) { /* from the table's first row on: position is 0 */
        for (size_t row = 0; row < pass->n_rows; row++)
            pass->ops->position_backward(pass->dev, pass->contribution,
                                         layer_element(pass, pass->gradient,
                                                       (row * pass->n_tokens + table.first) * width),
                                         1, reached(pass, &table).n, width);
    }
}

const struct layer_ops layer_embedding = {forward, backward};
