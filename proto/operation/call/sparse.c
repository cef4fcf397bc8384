/* Starts and places are read whole, the matrix on one side is touched whole, the elements on the other. gather may have
 * room for more elements than the matrix has places, and then reads no more than these. */
#include "proto/operation/call/sparse.h"

#include "proto/operation/call.h"

static void describe_places(struct call_work *out, struct device_sparse *op)
{
    call_add_array(out, "starts", &op->starts, CALL_WORDS, CALL_READ, call_all(op->rows + 1));
    call_add_array(out, "places", &op->places, CALL_WORDS, CALL_READ,
                   call_all(op->rows * device_sparse_words(op->columns)));
}

void device_scatter_describe(struct call_work *out, struct device_sparse *op)
{
    const enum call_type type = op->wide ? CALL_FP32 : CALL_VALUES;

    call_add_array(out, "x", &op->x, type, CALL_READ, call_all(op->n));
    describe_places(out, op);
    call_add_array(out, "y", &op->y, type, CALL_WRITTEN, call_all(op->rows * op->columns));
}

void device_gather_describe(struct call_work *out, struct device_sparse *op)
{
    call_add_array(out, "x", &op->x, CALL_FP32, CALL_READ,
                   call_some(op->rows * op->columns, op->rows * op->columns < op->n ? op->rows * op->columns : op->n));
    describe_places(out, op);
    call_add_array(out, "y", &op->y, CALL_FP32, CALL_WRITTEN, call_all(op->n));
}
