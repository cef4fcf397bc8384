/* proto/operation/sampling.h - gradients of matrices from some rows: what a job allows (proto/operation/call/sample.h).
 *
 * Where a linear map's gradient is due, its input and the gradient of its result are both there, so the scores are
 * exact: nothing is remembered from earlier steps. The rows of each row of the minibatch are chosen by themselves, so
 * no microbatch, share or worker changes a bit. Gradients of inputs, biases and all else stay exact. */
#ifndef PROTO_OPERATION_SAMPLING_H
#define PROTO_OPERATION_SAMPLING_H

#include <stdbool.h>
#include <stddef.h>

struct sampling {
    double share; /* of each row's tokens; 0: gradients are exact */
    bool least;   /* winners by the least variance, not by the paper's rule */
};

#define SAMPLING_LEAST_SHARE 0.01

static inline bool sampling_is_valid(const struct sampling *s)
{
    return s->share == 0 || (s->share >= SAMPLING_LEAST_SHARE && s->share < 1);
}

/* How many of a row's n tokens are chosen, n > 0; n: the gradient is exact. Never less for more tokens. */
static inline size_t sampling_count(const struct sampling *s, size_t n)
{
    const size_t k = (size_t)(s->share * (double)n);

    return s->share == 0 ? n : k > 0 ? k : 1;
}

#endif
