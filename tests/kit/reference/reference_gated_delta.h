/* tests/kit/reference/reference_gated_delta.h - the gated delta rule, token by token and in double: for
 * reference_run. */
#ifndef TESTS_KIT_REFERENCE_REFERENCE_GATED_DELTA_H
#define TESTS_KIT_REFERENCE_REFERENCE_GATED_DELTA_H

#include "proto/operation/call/gated_delta.h"

void reference_gated_delta(const struct device_gated_delta *op);
void reference_gated_delta_backward(const struct device_gated_delta *op);
void reference_gated_delta_cached(const struct device_gated_delta *op);

#endif
