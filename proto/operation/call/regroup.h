/* proto/operation/call/regroup.h - columns in another order, on the device. */
#ifndef PROTO_OPERATION_CALL_REGROUP_H
#define PROTO_OPERATION_CALL_REGROUP_H

#include <stddef.h>

/* y[i][part][group] = x[i][group][part], pieces of n columns each. Its gradient is the same operation with n_groups and
 * n_parts exchanged. */
struct device_regroup {
    size_t m, n_groups, n_parts, n;
    const void *x; /* (m, n_groups, n_parts, n) */
    void *y;       /* (m, n_parts, n_groups, n); not x */
};

#endif
