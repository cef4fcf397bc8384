/* proto/operation/take.h - y = some elements of each row of x: a domain of the family's own, out of its tokens. */
#ifndef PROTO_OPERATION_TAKE_H
#define PROTO_OPERATION_TAKE_H

#include <stdint.h>

struct program;

struct program_take_options {
    uint32_t first; /* element of a row */
};

/* domain: PROGRAM_OWN or above; of each row of x, its elements are those from `first` on. */
int program_take(struct program *p, int x, uint32_t domain, uint32_t first);

#endif
