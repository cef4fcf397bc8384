/* tests/kit/reference/reference_sparse.h - sparse weights and gradients, in double. */
#ifndef TESTS_KIT_REFERENCE_SPARSE_H
#define TESTS_KIT_REFERENCE_SPARSE_H

#include "proto/operation/calls.h"

void reference_scatter(const struct device_sparse *op);
void reference_gather(const struct device_sparse *op);

#endif
