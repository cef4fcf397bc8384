/* A copy: its time is that of the memory which it reads and writes. */
#include "proto/operation/call/split.h"

#include "proto/operation/call.h"

static void split_describe(struct call_work *out, struct device_split *op, unsigned of_x, unsigned of_others)
{
    const size_t queries = op->m * op->n_heads * op->n, rest = op->m * op->n_rest;

    call_add_array(out, "x", &op->x, CALL_VALUES, of_x, call_all(2 * queries + rest));
    call_add_array(out, "y", &op->y, CALL_VALUES, of_others, call_all(queries + rest));
    call_add_array(out, "gates", &op->gates, CALL_VALUES, of_others, call_all(queries));
}

void device_split_describe(struct call_work *out, struct device_split *op)
{
    split_describe(out, op, CALL_READ, CALL_WRITTEN);
}

void device_join_describe(struct call_work *out, struct device_split *op)
{
    split_describe(out, op, CALL_WRITTEN, CALL_READ);
}
