/* Scores and choices are a few numbers a token; what costs is reading the rows, for their norms and when the chosen
 * ones are gathered. */
#include "proto/operation/call/sample.h"

#include "proto/operation/call.h"

void device_row_norms_describe(struct call_work *out, struct device_row_norms *op)
{
    const size_t n_heads = sample_heads(op);

    call_add_array(out, "x", &op->x, CALL_VALUES, CALL_READ, call_rows(op->m, n_heads * op->n, op->stride));
    call_add_array(out, "norms", &op->norms, CALL_FP32, CALL_WRITTEN | (op->multiply ? CALL_READ : 0),
                   call_all(op->m * n_heads));
}

void device_weigh_scores_describe(struct call_work *out, struct device_weigh_scores *op)
{
    call_add_array(out, "norms", &op->norms, CALL_BF16, CALL_READ, call_rows(op->n_rows, op->n_tokens, op->stride));
    call_add_array(out, "scores", &op->scores, CALL_FP32, CALL_READ | CALL_WRITTEN,
                   call_all(op->n_rows * op->n_tokens));
}

void device_choose_rows_describe(struct call_work *out, struct device_choose_rows *op)
{
    call_add_array(out, "scores", &op->scores, CALL_FP32, CALL_READ, call_all(op->n_rows * op->n_tokens));
    call_add_array(out, "chosen", &op->chosen, CALL_WORDS, CALL_WRITTEN, call_all(op->n_rows * op->n_chosen));
    call_add_array(out, "weights", &op->weights, CALL_FP32, CALL_WRITTEN, call_all(op->n_rows * op->n_chosen));
}

/* x may be read anywhere, but not more of it than y has. */
void device_gather_rows_describe(struct call_work *out, struct device_gather_rows *op)
{
    const struct call_extent x = call_rows(op->n_rows, op->n, op->stride);

    call_add_array(out, "x", &op->x, CALL_VALUES, CALL_READ, call_some(x.n, size_smaller(x.touched, op->m * op->n)));
    call_add_array(out, "chosen", &op->chosen, CALL_WORDS, CALL_READ, call_all(op->m));
    call_add_array(out, "weights", &op->weights, CALL_FP32, CALL_READ | CALL_OPTIONAL, call_all(op->m));
    call_add_array(out, "y", &op->y, CALL_VALUES, CALL_WRITTEN, call_all(op->m * op->n));
}
