/* The product is summed by itself, and W rounded once. Sums of at most COLUMNS columns lie on the stack, and the loops
 * run along rows of both factors; so W is never needed whole, and may come in blocks that begin anywhere in a row. */
#include "client/ask/merge.h"

#include <stdbool.h>
#include <stdlib.h>

enum { COLUMNS = 1024 }; /* summed at a time */

/* Reads rows of a matrix of so many columns, of which every stride'th counts, from the first; or their transpose. Owned;
 * NULL with *rc. */
static float *read_rows(const struct safetensors_entry *entry, uint64_t row, uint64_t rows, uint64_t first,
                        uint64_t stride, bool transpose, int *rc, struct error *err)
{
    const uint64_t all = entry->shape[1], columns = all / stride;
    float *values = malloc(rows * all * sizeof *values), *out = malloc(rows * columns * sizeof *out);

    if (!values || !out)
        *rc = *rc ? *rc : error_memory(err);
    if (*rc == 0)
        *rc = safetensors_read(values, entry, row * all, rows * all, err);
    for (uint64_t i = 0; *rc == 0 && i < rows * columns; i++)
        out[transpose ? i % columns * rows + i / columns : i] =
            values[i / columns * all + i % columns * stride + first];
    free(values);
    return out;
}

/* A[e] and B[e] of experts; of other maps the only ones. */
int client_merge_open(struct client_merge *out, const struct model *model, const struct weights *weights,
                      uint32_t tensor, struct error *err)
{
    const struct model_adapted of =
        tensor == MERGE_NONE ? (struct model_adapted){0} : model_find_adapted(model, tensor);
    const struct safetensors_entry *a = of.rank ? weights->entries[of.a] : NULL;
    const struct safetensors_entry *b = of.rank ? weights->entries[of.b] : NULL;
    int rc = 0;

    *out = (struct client_merge){0};
    if (!a || !b)
        return 0;
    const bool in_out = model_is_in_out(model, model->tensors[tensor].name);
    const uint64_t rows = in_out ? b->shape[0] : model->tensors[tensor].shape[0];
    float *const right = read_rows(a, of.expert * of.rank, of.rank, 0, 1, in_out, &rc, err);
    float *const left = read_rows(b, of.first_row, rows, of.expert, of.n_experts, in_out, &rc, err);
    *out = (struct client_merge){.left = in_out ? right : left,
                                 .right = in_out ? left : right,
                                 .rank = of.rank,
                                 .columns = in_out ? b->shape[0] : a->shape[1],
                                 .factor = of.factor};
    return rc;
}

/* Columns of one row of the product, at most COLUMNS. */
static void merge_add_row(const struct client_merge *merge, float *values, uint64_t row, uint64_t column, uint64_t n)
{
    float sums[COLUMNS] = {0};

    for (uint64_t k = 0; k < merge->rank; k++)
        for (uint64_t i = 0; i < n; i++)
            sums[i] += merge->left[row * merge->rank + k] * merge->right[k * merge->columns + column + i];
    for (uint64_t i = 0; i < n; i++)
        values[i] += merge->factor * sums[i];
}

void client_merge_add(const struct client_merge *merge, float *values, uint64_t first, uint64_t n)
{
    for (uint64_t at = first, now; merge->left && at < first + n; at += now) {
        const uint64_t column = at % merge->columns, left = first + n - at;
        now = merge->columns - column < COLUMNS ? merge->columns - column : COLUMNS;
        now = now < left ? now : left;
        merge_add_row(merge, values + (at - first), at / merge->columns, column, now);
    }
}

void client_merge_close(struct client_merge *merge)
{
    free(merge->left);
    free(merge->right);
    *merge = (struct client_merge){0};
}
