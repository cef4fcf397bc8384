/* proto/operation/kind/split.h - y, gates = the columns of x, of which each head's gate stands behind its query: for
 * maps whose results lie so, where attention wants queries, keys and values alone. */
#ifndef PROTO_OPERATION_KIND_SPLIT_H
#define PROTO_OPERATION_KIND_SPLIT_H

#include <stdint.h>

struct program;

struct program_split_options {
    uint32_t n_heads, head_width;
};

/* x: n_heads pairs of a query and a gate, then other columns. Returns the queries and these columns; *gates: the gates,
 * as wide as all queries. No other operation may read x, and one must read *gates. */
int program_split(struct program *p, int x, uint32_t n_heads, uint32_t head_width, int *gates);

#endif
