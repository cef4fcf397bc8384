/* proto/operation/kind/add.h - y = x + dropout(h): a residual connection.
 *
 * A norm right behind it reads the sum in the same step, which saves a pass over memory: forward always, if both run;
 * backward where the gradient of h is not that of the sum. */
#ifndef PROTO_OPERATION_KIND_ADD_H
#define PROTO_OPERATION_KIND_ADD_H

#include "proto/operation/kind/dropout.h"

int program_add(struct program *p, int x, int h, const struct program_dropout *dropout);

/* The sum that the operation `norm` reads, if backward makes the gradient of its h in the norm's step; else
 * SCHEDULE_NONE. */
int add_before_norm(const struct program *p, int norm);

#endif
