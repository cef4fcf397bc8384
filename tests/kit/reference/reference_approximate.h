/* tests/kit/reference/reference_approximate.h - scores and copies of chosen rows, and values in few bits, plainly and
 * in double: for reference_run. */
#ifndef TESTS_KIT_REFERENCE_REFERENCE_APPROXIMATE_H
#define TESTS_KIT_REFERENCE_REFERENCE_APPROXIMATE_H

#include "proto/operation/call/compress.h"
#include "proto/operation/call/sample.h"

void reference_row_norms(const struct device_row_norms *op);
void reference_weigh_scores(const struct device_weigh_scores *op);
void reference_gather_rows(const struct device_gather_rows *op);
void reference_round_values(const struct device_round_values *op);

#endif
