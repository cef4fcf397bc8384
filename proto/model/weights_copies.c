/* Copies of the table of tokens that files may have beside it. */
#include "proto/model/family.h"
#include "proto/model/weights.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int weights_copy_differs(bool *out, const struct weights *weights, const struct model *model, unsigned copy,
                         struct error *err)
{
    enum { RUN = 1 << 16 };
    const struct safetensors_entry *tokens = weights->entries[model->embedding.tables[0].tensor];
    const struct safetensors_entry *entry = weights->copies[copy];
    float *table = entry ? malloc(2 * RUN * sizeof *table) : NULL, *other = table ? table + RUN : NULL;
    int rc = entry && !table ? error_memory(err) : 0;

    *out = false;
    for (uint64_t at = 0; table && !rc && !*out && at < tokens->n; at += RUN) {
        const uint64_t n = tokens->n - at < RUN ? tokens->n - at : RUN;
        rc = safetensors_read(table, tokens, at, n, err);
        if (!rc)
            rc = safetensors_read(other, entry, at, n, err);
        *out = !rc && memcmp(table, other, n * sizeof *table) != 0;
    }
    free(table);
    return rc;
}

int weights_refuse_copy(const struct model *model, unsigned copy, struct error *err)
{
    const struct family *family = model->config.family;
    const char *table = family->tables[0].name;

    if (copy == WEIGHTS_HEAD)
        return error_set(
            err, -EINVAL,
            "%s.weight differs from %s.weight, though config.json ties them (tie_word_embeddings); set that "
            "to false to train them apart",
            family->logits, table);
    return error_set(err, -EINVAL, "%s differs from %s.weight, and eps has one table for encoder and decoder",
                     family->copies[copy - WEIGHTS_HEAD - 1], table);
}
