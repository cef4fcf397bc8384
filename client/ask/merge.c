/* The product is summed by itself, and W rounded once. Sums of at most COLUMNS columns lie on the stack, and the loops
 * run along rows of both factors; so W is never needed whole, and may come in blocks that begin anywhere in a row. */
#include "client/ask/merge.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 1024 }; /* summed at a time */

/* "h.0.attn.c_attn.lora_A.weight" of "h.0.attn.c_attn.weight". NULL: there is none. */
static const struct model_tensor *merge_find(const struct model *model, uint32_t tensor, const char *which)
{
    const char *name = model->tensors[tensor].name, *dot = strrchr(name, '.');
    char other[2 * sizeof model->tensors->name];

    snprintf(other, sizeof other, "%.*s.%s.weight", (int)(dot - name), name, which);
    return strcmp(dot, ".weight") == 0 ? model_find(model, other) : NULL;
}

/* Reads a matrix (rows, columns), or its transpose. Owned; NULL with *rc. */
static float *read_matrix(const struct safetensors_entry *entry, bool transpose, int *rc, struct error *err)
{
    float *values = malloc(entry->n * sizeof *values), *out = transpose ? malloc(entry->n * sizeof *out) : NULL;
    const uint64_t rows = entry->shape[0], columns = entry->shape[1];

    if (!values || (transpose && !out))
        *rc = *rc ? *rc : error_memory(err);
    if (*rc == 0)
        *rc = safetensors_read(values, entry, 0, entry->n, err);
    for (uint64_t i = 0; *rc == 0 && transpose && i < entry->n; i++)
        out[i % columns * rows + i / columns] = values[i];
    if (!transpose)
        return values;
    free(values);
    return out;
}

int client_merge_open(struct client_merge *out, const struct model *model, const struct weights *weights,
                      uint32_t tensor, struct error *err)
{
    *out = (struct client_merge){0};
    const struct model_tensor *of_a = tensor == MERGE_NONE ? NULL : merge_find(model, tensor, "lora_A");
    const struct model_tensor *of_b = of_a ? merge_find(model, tensor, "lora_B") : NULL;
    const struct safetensors_entry *a = of_b ? weights->entries[of_a - model->tensors] : NULL;
    const struct safetensors_entry *b = of_b ? weights->entries[of_b - model->tensors] : NULL;
    int rc = 0;

    if (!a || !b)
        return 0;
    const bool in_out = model_is_in_out(model, model->tensors[tensor].name);
    *out = (struct client_merge){.rank = a->shape[0],
                                 .columns = in_out ? b->shape[0] : a->shape[1],
                                 .factor = model_adapter_factor(model, (uint32_t)(of_a - model->tensors))};
    out->left = read_matrix(in_out ? a : b, in_out, &rc, err);
    out->right = read_matrix(in_out ? b : a, in_out, &rc, err);
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
