/* proto/operation/call/embed.h - look-ups in tables on the device: embed and position, and their gradients. */
#ifndef PROTO_OPERATION_CALL_EMBED_H
#define PROTO_OPERATION_CALL_EMBED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Looks up rows of a table that holds ids first .. first+n_table-1. A row of y whose id is outside stays unchanged. */
struct device_embed {
    size_t m, n;
    uint32_t first, n_table;
    const uint32_t *ids; /* (m) */
    const void *table;   /* (n_table, n), forward; may be host memory, lent or not, and is then borrowed until done */
    bool narrow;         /* the table is bf16, whatever the device's type */
    void *y;             /* (m, n), forward: row i = scale * table row ids[i]-first */
    bool accumulate;     /* forward: row i += instead */
    float scale;         /* factor on rows looked up, and on their gradients; 0: 1 */
    const void *y_gradient; /* (m, n), backward */
    float *table_gradient;  /* (n_table, n), backward: row ids[i]-first += y_gradient row i * scale, in order of i */
};

/* y row r*n_tokens+t += table row t. */
struct device_position {
    size_t n_rows, n_tokens, n;
    const void *table;      /* (n_tokens, n), forward; in any memory that struct device_embed allows */
    bool narrow;            /* as in struct device_embed */
    void *y;                /* (n_rows*n_tokens, n), forward, += */
    const void *y_gradient; /* (n_rows*n_tokens, n), backward */
    float *table_gradient;  /* (n_tokens, n), backward: row t += the sum over rows r, in order */
};

static inline float device_embed_scale(const struct device_embed *op)
{
    return op->scale != 0 ? op->scale : 1;
}

#endif
