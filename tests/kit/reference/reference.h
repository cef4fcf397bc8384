/* tests/kit/reference/reference.h - the operations of proto/operation/device.h, plainly and in double.
 *
 * What every backend is compared with. Written from the formulas, one loop per index, nothing shared with the code
 * under test but proto/base/random.h; the backward functions are proven by finite differences in test_reference.c. */
#ifndef TESTS_KIT_REFERENCE_REFERENCE_H
#define TESTS_KIT_REFERENCE_REFERENCE_H

#include "proto/operation/call.h"

/* The call, where every array of numbers is of double, each in a place of its own: what overwrites its input does not
 * here. Forward's statistics are computed anew. Not of zero, round_half and attention_cached. */
void reference_run(const struct call *call);

double reference_activation(enum model_activation activation, double x);
double reference_activation_gradient(enum model_activation activation, double x);

/* 0 or 1/(1-p): element `element` of row `row` of the call. */
double reference_dropout(const struct device_dropout *dropout, uint64_t row, uint64_t element);

#endif
