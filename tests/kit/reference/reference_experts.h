/* tests/kit/reference/reference_experts.h - mixtures of experts, token by token. */
#ifndef TESTS_KIT_REFERENCE_REFERENCE_EXPERTS_H
#define TESTS_KIT_REFERENCE_REFERENCE_EXPERTS_H

#include "proto/operation/call/experts.h"

void reference_route(const struct device_route *op);
void reference_route_backward(const struct device_route *op);
void reference_experts(const struct device_experts *op);
void reference_experts_backward(const struct device_experts *op);

#endif
