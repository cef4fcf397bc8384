/* A module as another build would have it. */
#include "device/find.h"

const struct device_module device_module = {.version = "0.0.1", .ops_bytes = sizeof(struct device_ops)};
