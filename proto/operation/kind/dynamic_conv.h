/* proto/operation/kind/dynamic_conv.h - y = x convolved along its row, each element with a filter that is the softmax of its
 * scores: Wu et al., arXiv:1901.10430. */
#ifndef PROTO_OPERATION_KIND_DYNAMIC_CONV_H
#define PROTO_OPERATION_KIND_DYNAMIC_CONV_H

#include "proto/operation/kind/dropout.h"

#include <stdbool.h>
#include <stdint.h>

struct program;

struct program_dynamic_conv_options {
    uint32_t n_heads;               /* heads of x's columns, each with a filter */
    uint32_t n_taps;                /* of a filter; odd unless it is causal */
    bool causal;                    /* taps reach the element and those before it; else as many to either side */
    struct program_dropout dropout; /* of filters */
};

/* scores: (n_heads*n_taps) columns, a linear map of x in the paper. Not causal, what is beyond a row's length counts as
 * 0 (struct operation_run). */
int program_dynamic_conv(struct program *p, int x, int scores, const struct program_dynamic_conv_options *conv);

#endif
