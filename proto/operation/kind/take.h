/* proto/operation/kind/take.h - y = some tokens of each row of x: a domain of the family's own. */
#ifndef PROTO_OPERATION_KIND_TAKE_H
#define PROTO_OPERATION_KIND_TAKE_H

#include <stdint.h>

struct program;

struct program_take_options {
    uint32_t domain; /* PROGRAM_OWN or above */
};

int program_take(struct program *p, int x, uint32_t domain);

#endif
