/* tests/kit/reference/reference_conv2d.h - convolution of images, plainly and in double: for reference_run. */
#ifndef TESTS_KIT_REFERENCE_REFERENCE_CONV2D_H
#define TESTS_KIT_REFERENCE_REFERENCE_CONV2D_H

#include "proto/operation/call/conv2d.h"

enum reference_conv2d { REFERENCE_CONV2D_FORWARD, REFERENCE_CONV2D_INPUT, REFERENCE_CONV2D_WEIGHT };

void reference_conv2d(const struct device_conv2d *op, enum reference_conv2d which);

#endif
