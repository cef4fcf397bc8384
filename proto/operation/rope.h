/* proto/operation/rope.h - y = x with queries and keys rotated by their positions: Su et al., arXiv:2104.09864. */
#ifndef PROTO_OPERATION_ROPE_H
#define PROTO_OPERATION_ROPE_H

#include <stdint.h>

struct program;

struct program_rope_options {
    uint32_t n_heads; /* rotated ones, the value's first: those of queries, then those of keys */
    uint32_t head_width;
    uint32_t n_rotated;        /* the first columns of each head; 0: all */
    double base;               /* pair j of a head is rotated by position * base^(-2j / n_rotated) */
    const double *frequencies; /* (n_rotated/2) replaces base^(-2j / n_rotated); NULL: `base` is used. Copied */
};

struct program_rotation {
    uint32_t n_heads, head_width, n_rotated;
    int frequencies; /* n_rotated/2 of the program's numbers, from this one on */
};

int program_rope(struct program *p, int x, const struct program_rope_options *rope);

#endif
