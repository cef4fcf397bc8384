/* proto/operation/call/split.h - heads' gates apart from their queries, on the device: split, join. */
#ifndef PROTO_OPERATION_CALL_SPLIT_H
#define PROTO_OPERATION_CALL_SPLIT_H

#include <stddef.h>

/* A row of x is n_heads pairs of a query and a gate, n columns each, and then n_rest columns. Split, y has the queries
 * and then the rest, and gates the gates. Join, x is made of these: the gradient of a split. */
struct device_split {
    size_t m, n_heads, n, n_rest;
    void *x;     /* (m, n_heads * 2 * n + n_rest): read by split, written by join */
    void *y;     /* (m, n_heads * n + n_rest): written by split, read by join */
    void *gates; /* (m, n_heads * n): likewise */
};

#endif
