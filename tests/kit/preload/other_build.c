/* A module as another build would have it. */
#include "device/find.h"

const struct module device_module = {.version = "0.0.1", .ops_bytes = sizeof(struct device_ops)};
