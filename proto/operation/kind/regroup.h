/* proto/operation/kind/regroup.h - y = x with its columns in another order: for maps whose results lie head by head,
 * where attention wants all queries, then all keys, then all values. */
#ifndef PROTO_OPERATION_KIND_REGROUP_H
#define PROTO_OPERATION_KIND_REGROUP_H

#include <stdint.h>

struct program;

struct program_regroup_options {
    uint32_t n_groups, n_parts;
};

/* x: n_groups groups of n_parts pieces, all equally wide; y: n_parts parts, each of the groups' pieces. No other
 * operation may read x. */
int program_regroup(struct program *p, int x, uint32_t n_groups, uint32_t n_parts);

#endif
