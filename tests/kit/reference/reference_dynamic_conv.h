/* tests/kit/reference/reference_dynamic_conv.h - dynamic convolution, plainly and in double: for reference_run. */
#ifndef TESTS_KIT_REFERENCE_REFERENCE_DYNAMIC_CONV_H
#define TESTS_KIT_REFERENCE_REFERENCE_DYNAMIC_CONV_H

#include "proto/operation/call/dynamic_conv.h"

#include <stdbool.h>

void reference_dynamic_conv(const struct device_dynamic_conv *op, bool backward);

#endif
