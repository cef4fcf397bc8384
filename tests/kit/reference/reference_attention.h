/* tests/kit/reference/reference_attention.h - attention, plainly and in double: for reference_run. */
#ifndef TESTS_KIT_REFERENCE_REFERENCE_ATTENTION_H
#define TESTS_KIT_REFERENCE_REFERENCE_ATTENTION_H

#include "proto/operation/call/attention.h"

void reference_attention(const struct device_attention *op);
void reference_attention_backward(const struct device_attention *op);

#endif
