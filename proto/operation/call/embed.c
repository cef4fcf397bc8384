/* Of a table only the rows that ids name are touched, but all of it must lie within bounds; hence an extent of the
 * whole table and a price of m rows. The table may lie in the host's memory, where reading it costs the link. */
#include "proto/operation/call/embed.h"

#include "proto/base/size.h"
#include "proto/operation/call.h"

static enum call_type table_type(bool narrow)
{
    return narrow ? CALL_BF16 : CALL_VALUES;
}

void device_embed_describe(struct call_work *out, struct device_embed *op)
{
    call_add_array(out, "ids", &op->ids, CALL_WORDS, CALL_READ, call_all(op->m));
    call_add_array(out, "y", &op->y, CALL_VALUES, CALL_WRITTEN | (op->accumulate ? CALL_READ : 0),
                   call_all(op->m * op->n));
    call_add_array(out, "table", &op->table, table_type(op->narrow), CALL_READ | CALL_ANYWHERE,
                   call_some(op->n_table * op->n, op->m * op->n));
}

/* A row of the table is added to once for all ids that name it. */
void device_embed_backward_describe(struct call_work *out, struct device_embed *op)
{
    call_add_array(out, "ids", &op->ids, CALL_WORDS, CALL_READ, call_all(op->m));
    call_add_array(out, "y_gradient", &op->y_gradient, CALL_VALUES, CALL_READ, call_all(op->m * op->n));
    call_add_array(out, "table_gradient", &op->table_gradient, CALL_FP32, CALL_READ | CALL_WRITTEN,
                   call_some(op->n_table * op->n, size_smaller(op->m, op->n_table) * op->n));
}

void device_position_describe(struct call_work *out, struct device_position *op)
{
    const size_t row = op->n_tokens * op->n;

    call_add_array(out, "y", &op->y, CALL_VALUES, CALL_READ | CALL_WRITTEN, call_all(op->n_rows * row));
    call_add_array(out, "table", &op->table, table_type(op->narrow), CALL_READ | CALL_ANYWHERE, call_all(row));
}

void device_position_backward_describe(struct call_work *out, struct device_position *op)
{
    const size_t row = op->n_tokens * op->n;

    call_add_array(out, "y_gradient", &op->y_gradient, CALL_VALUES, CALL_READ, call_all(op->n_rows * row));
    call_add_array(out, "table_gradient", &op->table_gradient, CALL_FP32, CALL_READ | CALL_WRITTEN, call_all(row));
}
