/* proto/operation/kind/linear.h - y = x W + b, or several such maps of x, whose results lie side by side. */
#ifndef PROTO_OPERATION_KIND_LINEAR_H
#define PROTO_OPERATION_KIND_LINEAR_H

#include <stdbool.h>
#include <stdint.h>

struct program;

enum { PROGRAM_PARTS = 3 }; /* at most */

struct program_linear_options {
    float deviation; /* standard deviation of the fresh weight */
    float first;     /* that of the first part's; 0: the same */
    bool bias;       /* each part has one */
    bool out_in;     /* the weight is (out, in), as in torch.nn.Linear; else (in, out) */
};

/* One of the maps: columns of the result, with tensors of their own. */
struct program_part {
    const char *stem;
    uint32_t columns;
};

/* The operation's options. Its tensors are all parts' weights, then all biases. */
struct program_linear_maps {
    bool bias, out_in;
    bool sampled; /* of its input, backward has some rows alone (program_sample) */
    int n_parts;
    uint32_t columns[PROGRAM_PARTS];
};

int program_linear(struct program *p, int x, const char *stem, uint32_t columns,
                   const struct program_linear_options *linear);
int program_linears(struct program *p, int x, const struct program_part *parts, int n_parts,
                    const struct program_linear_options *linear);

#endif
