/* tests/kit/reference/reference_batch_norm.h - batch normalisation over a part, plainly and in double: for
 * reference_run. */
#ifndef TESTS_KIT_REFERENCE_REFERENCE_BATCH_NORM_H
#define TESTS_KIT_REFERENCE_REFERENCE_BATCH_NORM_H

#include "proto/operation/call/batch_norm.h"

void reference_row_moments(const struct device_row_moments *op, bool backward);
void reference_join_moments(const struct device_join_moments *op, bool backward);
void reference_batch_norm(const struct device_batch_norm *op);
void reference_batch_norm_backward(const struct device_batch_norm *op);
void reference_running_statistics(const struct device_running *op);
void reference_running_gradient(const struct device_running *op);

#endif
