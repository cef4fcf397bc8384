/* tests/kit/reference/reference_pool.h - pooling of images, plainly and in double: for reference_run. */
#ifndef TESTS_KIT_REFERENCE_REFERENCE_POOL_H
#define TESTS_KIT_REFERENCE_REFERENCE_POOL_H

#include "proto/operation/call/pool.h"

void reference_pool(const struct device_pool *op, bool largest);
void reference_pool_backward(const struct device_pool *op, bool largest);
void reference_sum_blocks(const struct device_sum_blocks *op);

#endif
