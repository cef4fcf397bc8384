/* The family's table has a name for each file's tensor, and of its parts the names that they have here: a number's place
 * in such a name is that of %u. */
#include "proto/model/joined.h"

#include "proto/model/family.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The number in `name` where it ends with this pattern, whose %u it stands for. n_before: of the name before that. */
static bool joined_match(uint32_t *number, size_t *n_before, const char *name, const char *pattern)
{
    const char *const at = strchr(pattern, '%');
    char stem[MODEL_TENSOR_BYTES], *end;

    snprintf(stem, sizeof stem, "%.*s", (int)(at - pattern), pattern);
    const char *const found = strstr(name, stem);
    if (!found)
        return false;
    *number = (uint32_t)strtoul(found + strlen(stem), &end, 10);
    *n_before = (size_t)(found - name);
    return strcmp(end, at + strlen("%u")) == 0;
}

bool joined_find(struct joined *out, const struct model *model, const struct model_tensor *tensor)
{
    size_t n;

    if (tensor->n_stacked == 0)
        return false;
    for (const struct family_joined *row = model->config.family->joined; row && row->name; row++) {
        out->n_parts = row->parts[1] ? 2 : 1;
        for (out->part = 0; out->part < out->n_parts; out->part++)
            if (joined_match(&out->number, &n, tensor->name, row->parts[out->part])) {
                snprintf(out->name, sizeof out->name, "%.*s%s", (int)n, tensor->name, row->name);
                return true;
            }
    }
    return false;
}

void joined_shape(uint64_t out[3], const struct joined *joined, const struct model_tensor *tensor)
{
    out[0] = tensor->n_stacked;
    out[1] = joined->n_parts * tensor->shape[0];
    out[2] = tensor->shape[1];
}

uint64_t joined_first(const struct joined *joined, const struct model_tensor *tensor)
{
    return ((uint64_t)joined->number * joined->n_parts + joined->part) * tensor->n;
}

uint32_t joined_count(const struct model *model)
{
    uint32_t n = 0;

    for (uint32_t t = 0; model->config.family->joined && t < model->n_tensors; t++)
        n += model->tensors[t].n_stacked > 0;
    return n;
}
