/* tests/kit/reference/reference_short_conv.h - a short convolution over tokens, plainly and in double: for
 * reference_run. */
#ifndef TESTS_KIT_REFERENCE_REFERENCE_SHORT_CONV_H
#define TESTS_KIT_REFERENCE_REFERENCE_SHORT_CONV_H

#include "proto/operation/call/short_conv.h"

void reference_short_conv(const struct device_short_conv *op);
void reference_short_conv_backward(const struct device_short_conv *op);
void reference_short_conv_cached(const struct device_short_conv *op);

#endif
