/* A copy: its time is that of the memory which it reads and writes. */
#include "proto/operation/call/regroup.h"

#include "proto/operation/call.h"

void device_regroup_describe(struct call_work *out, struct device_regroup *op)
{
    const size_t n = op->m * op->n_groups * op->n_parts * op->n;

    call_add_array(out, "x", &op->x, CALL_VALUES, CALL_READ, call_all(n));
    call_add_array(out, "y", &op->y, CALL_VALUES, CALL_WRITTEN, call_all(n));
}
