/* proto/operation/add.h - y = x + dropout(h): a residual connection. */
#ifndef PROTO_OPERATION_ADD_H
#define PROTO_OPERATION_ADD_H

#include "proto/operation/dropout.h"

int program_add(struct program *p, int x, int h, const struct program_dropout *dropout);

#endif
