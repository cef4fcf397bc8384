/* proto/operation/kind/dropout.h - y = dropout(x): Srivastava et al., JMLR 15, 2014. */
#ifndef PROTO_OPERATION_KIND_DROPOUT_H
#define PROTO_OPERATION_KIND_DROPOUT_H

#include "proto/base/random.h"

struct program;

struct program_dropout {
    float p;
    enum random_site site;
    float scale;    /* factor on what is kept; 0: 1 */
    float survival; /* of a residual branch: probability that a step keeps the block; training divides by it; 0: 1 */
};

/* No other operation may read x. p = 0 without a scale: returns x. */
int program_drop(struct program *p, int x, const struct program_dropout *dropout);

#endif
