/* proto/operation/kind/rope.h - y = x with queries and keys rotated by their positions: Su et al., arXiv:2104.09864. */
#ifndef PROTO_OPERATION_KIND_ROPE_H
#define PROTO_OPERATION_KIND_ROPE_H

#include <stdbool.h>
#include <stdint.h>

struct program;

struct program_rope_options {
    uint32_t n_heads; /* rotated ones, the value's first: those of queries, then those of keys */
    uint32_t head_width;
    uint32_t n_rotated;             /* the first columns of each head; 0: all */
    double base;                    /* pair j of a head is rotated by position * base^(-2j / n_rotated) */
    const double *frequencies;      /* (n_rotated/2) replaces base^(-2j / n_rotated); NULL: `base` is used. Copied */
    const double *long_frequencies; /* (n_rotated/2) of rows longer than n_short tokens; NULL: the same. Copied */
    uint32_t n_short;
    bool interleaved; /* pairs are (2j, 2j + 1), not (j, j + n_rotated/2) */
    bool backwards;   /* by the negative angle */
    /* As in struct device_rope: */
    float factor;
    uint32_t n_grown;
    float growth;
    uint32_t period;
};

struct program_rotation {
    uint32_t n_heads, head_width, n_rotated;
    int frequencies;      /* n_rotated/2 of the program's numbers, from this one on */
    int long_frequencies; /* the same, of rows longer than n_short */
    uint32_t n_short;
    bool interleaved, backwards;
    float factor;
    uint32_t n_grown;
    float growth;
    uint32_t period;
};

int program_rope(struct program *p, int x, const struct program_rope_options *rope);

#endif
