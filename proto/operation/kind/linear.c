/* Where a map reads an activation that nobody else reads, one product makes the gradient of the activation's operand,
 * and its epilogue the gradient of the bias of the map before. So two operations must agree on who sums that bias:
 * both ask biased_before, and no step carries the answer. */
#include "proto/operation/kind/linear.h"

#include "proto/operation/operation.h"
#include "proto/operation/program_internal.h"
#include "proto/operation/schedule_internal.h"

#include <assert.h>

/* All weights first, then all biases, in the order of parts: linear_part_of finds them by that. */
int program_linears(struct program *p, int x, const struct program_part *parts, int n_parts,
                    const struct program_linear_options *linear)
{
    const uint32_t in = p->values[x].columns;
    struct program_operation *op = program_append(p, &operation_linear);
    uint32_t columns = 0;

    assert(n_parts > 0 && n_parts <= PROGRAM_PARTS);
    op->linear = (struct program_linear_maps){.bias = linear->bias, .out_in = linear->out_in, .n_parts = n_parts};
    program_add_input(p, op, x);
    for (int i = 0; i < n_parts; i++) {
        const uint32_t out = op->linear.columns[i] = parts[i].columns;
        columns += out;
        program_add_tensor(p, op, parts[i].stem, "weight",
                           (struct program_tensor){.rows = linear->out_in ? out : in,
                                                   .columns = linear->out_in ? in : out,
                                                   .init = MODEL_INIT_NORMAL,
                                                   .deviation = i == 0 && linear->first > 0 ? linear->first
                                                                                            : linear->deviation});
    }
    for (int i = 0; i < n_parts && linear->bias; i++)
        program_add_tensor(p, op, parts[i].stem, "bias",
                           (struct program_tensor){.rows = parts[i].columns, .init = MODEL_INIT_ZERO});
    return program_add_output(p, op, PROGRAM_VALUE, columns);
}

int program_linear(struct program *p, int x, const char *stem, uint32_t columns,
                   const struct program_linear_options *linear)
{
    return program_linears(p, x, &(struct program_part){stem, columns}, 1, linear);
}

/* ---- the activation that is computed in the same pass ---- */

/* Forward: the activation behind it. */
static int linear_absorb(const struct program *p, int operation)
{
    const struct program_operation *op = &p->operations[operation], *next = op + 1;

    if (operation + 1 == p->n_operations || next->kind != &operation_activation || next->inputs[0] != op->outputs[0] ||
        op->linear.n_parts > 1 || !op->linear.bias)
        return SCHEDULE_NONE;
    return operation + 1;
}

/* Backward: the activation before it, as its result's only reader. */
static int activation_before(const struct program *p, int operation)
{
    const int value = p->operations[operation].inputs[0], maker = p->values[value].operation;

    if (maker < 0 || p->operations[maker].kind != &operation_activation || program_count_readers(p, value) != 1 ||
        p->operations[operation].linear.n_parts > 1)
        return SCHEDULE_NONE;
    return program_count_readers(p, p->operations[maker].inputs[0]) == 1 ? maker : SCHEDULE_NONE;
}

/* The linear map whose result an activation reads, if backward makes the gradient of its bias in the step that makes
 * the gradient of that result: the step of the map behind the activation. NULL. */
static const struct program_operation *biased_before(const struct program *p, int activation)
{
    const int maker = activation != SCHEDULE_NONE ? p->values[p->operations[activation].inputs[0]].operation : -1;
    const struct program_operation *op = maker >= 0 ? &p->operations[maker] : NULL;

    return op && op->kind == &operation_linear && op->linear.bias && op->linear.n_parts == 1 ? op : NULL;
}

/* True if the step of a map behind it makes the gradient of its bias. */
static bool is_summed_behind(const struct program *p, const struct program_operation *op)
{
    bool is_summed = false;

    for (int i = 0; i < p->n_operations; i++)
        is_summed |= p->operations[i].kind == &operation_linear && biased_before(p, activation_before(p, i)) == op;
    return is_summed;
}

/* First the gradients of weight and bias, if they are trained, then that of x, or of the operand of the activation that
 * made x: so x may be gone when its gradient is made. */
static void linear_differentiate(struct schedule_builder *b, int operation)
{
    const struct program_operation *op = &b->program->operations[operation];
    const int activation = activation_before(b->program, operation);

    struct schedule_step *step;

    if (!op->frozen) {
        if (op->linear.sampled)
            schedule_ensure_sample(b, operation);
        else
            schedule_ensure(b, op->inputs[0]);
        step = schedule_begin_step(b, SCHEDULE_CONTRIBUTE, operation);
        step->contributes = true;
        step->inputs[0] = op->linear.sampled ? schedule_read_sample(b, operation) : schedule_read(b, op->inputs[0]);
        step->y_gradient = schedule_read_gradient(b, op->outputs[0]);
        schedule_end_step(b);
    }
    if (activation != SCHEDULE_NONE)
        schedule_ensure(b, b->program->operations[activation].inputs[0]);
    step = schedule_begin_step(b, SCHEDULE_BACKWARD, operation);
    step->absorbed = activation;
    step->y_gradient = schedule_read_gradient(b, op->outputs[0]);
    if (activation == SCHEDULE_NONE) {
        schedule_write_gradient(b, step, 0);
    } else {
        step->inputs[0] = schedule_read(b, b->program->operations[activation].inputs[0]);
        schedule_write_gradient_of(b, step, b->program->operations[activation].inputs[0]);
    }
    schedule_end_step(b);
}

/* ---- running ---- */

/* One part: its columns of the result, and its tensors. */
struct part {
    size_t first, columns;
    int weight, bias;
};

static struct part linear_part_of(const struct program_operation *op, int i)
{
    struct part part = {.columns = op->linear.columns[i],
                        .weight = op->tensor + i,
                        .bias = op->tensor + op->linear.n_parts + i};

    for (int k = 0; k < i; k++)
        part.first += op->linear.columns[k];
    return part;
}

static enum model_activation function_of(const struct operation_run *r, const struct schedule_step *step)
{
    return r->program->operations[step->absorbed].activation.function;
}

static void linear_run_forward(const struct operation_run *r, const struct schedule_step *step, const struct part *part)
{
    const struct program_operation *op = operation_of(r, step);
    const size_t in = operation_columns(r, op->inputs[0]);
    const bool activates = step->absorbed != SCHEDULE_NONE;
    void *const y = r->at[activates ? step->after[0] : step->outputs[0]];
    struct device_matmul matmul = {.transpose_b = op->linear.out_in,
                                   .m = operation_elements(r, op->inputs[0]),
                                   .n = part->columns,
                                   .k = in,
                                   .a = r->at[step->inputs[0]],
                                   .a_stride = in,
                                   .b = r->weights[part->weight],
                                   .b_stride = op->linear.out_in ? in : part->columns,
                                   .c = operation_element(r, y, part->first),
                                   .c_stride = operation_columns(r, op->outputs[0]),
                                   .epilogue = op->linear.bias ? DEVICE_BIAS : DEVICE_NO_EPILOGUE,
                                   .bias = op->linear.bias ? r->weights[part->bias] : NULL};

    if (activates) {
        assert(op->linear.bias);
        matmul.epilogue = DEVICE_BIAS_ACTIVATION;
        matmul.activation = function_of(r, step);
        matmul.pre = r->at[step->outputs[0]];
    }
    operation_begin_weights(r, part->weight);
    r->ops->matmul(r->dev, &matmul);
}

/* W's gradient += x^T dy, or its transpose dy^T x. Trained tensors only. */
static void linear_contribute(const struct operation_run *r, const struct program_operation *op,
                              const struct part *part, const struct sampling_operands *of)
{
    const size_t in = operation_columns(r, op->inputs[0]), out = operation_columns(r, op->outputs[0]);
    const void *const dy = operation_element(r, of->dy, part->first);
    const bool swap = op->linear.out_in;
    const struct device_matmul matmul = {.transpose_a = true,
                                         .m = swap ? part->columns : in,
                                         .n = swap ? in : part->columns,
                                         .k = of->n_rows,
                                         .a = swap ? dy : of->x,
                                         .a_stride = swap ? out : in,
                                         .b = swap ? of->x : dy,
                                         .b_stride = swap ? in : out,
                                         .c = r->gradients[part->weight],
                                         .c_stride = swap ? in : part->columns,
                                         .wide = true,
                                         .over_rows = true,
                                         .beta = r->fresh ? 0 : 1};

    if (!matmul.c)
        return;
    operation_begin_gradient(r, part->weight);
    r->ops->matmul(r->dev, &matmul);
    operation_end_gradient(r, part->weight);
}

/* A bias's gradient += the sum of dy's rows, unless the step that made dy has done so. */
static void contribute_bias(const struct operation_run *r, const struct program_operation *op, const struct part *part,
                            const void *dy)
{
    float *const bias = op->linear.bias ? r->gradients[part->bias] : NULL;

    if (bias && !is_summed_behind(r->program, op))
        r->ops->reduce_rows(r->dev, &(struct device_reduce_rows){bias, operation_element(r, dy, part->first),
                                                                 operation_elements(r, op->inputs[0]), part->columns,
                                                                 operation_columns(r, op->outputs[0])});
}

/* ---- a sample of rows ---- */

static struct sampling_shape linear_sampled_shape(const struct program *p, const struct program_operation *op,
                                                  size_t n_rows, size_t n_tokens)
{
    return (struct sampling_shape){.n_rows = n_rows,
                                   .n_tokens = n_tokens,
                                   .x_columns = p->values[op->inputs[0]].columns,
                                   .dy_columns = p->values[op->outputs[0]].columns};
}

/* Keeping a sample, recalling it and choosing one take different scratch; none of them where weights are frozen. */
static uint64_t linear_scratch(const struct program *p, const struct program_operation *op,
                               const struct operation_setting *setting)
{
    const size_t n = program_row_elements(p, op->inputs[0], setting->n_tokens);
    const struct sampling_shape shape = linear_sampled_shape(p, op, setting->n_rows, n);
    const unsigned bits = p->values[op->inputs[0]].bits;

    if (op->linear.sampled)
        return (setting->action == SCHEDULE_SAMPLE ? sampling_keep_bytes : sampling_recall_bytes)(&setting->sampling,
                                                                                                  &shape, setting->type,
                                                                                                  bits);
    return op->frozen ? 0 : sampling_bytes(&setting->sampling, &shape, setting->type);
}

static bool trains_weights(const struct operation_run *r, const struct program_operation *op)
{
    bool any = false;

    for (int i = 0; i < op->linear.n_parts; i++)
        any |= r->gradients[linear_part_of(op, i).weight] != NULL;
    return any;
}

static struct sampling_shape linear_run_shape(const struct operation_run *r, const struct program_operation *op)
{
    const size_t n_tokens = operation_row_elements(r, op->inputs[0]), n = operation_elements(r, op->inputs[0]);

    return linear_sampled_shape(r->program, op, n / n_tokens, n_tokens);
}

static void run_sample(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);
    const struct sampling_shape shape = linear_run_shape(r, op);
    const uint16_t *const norms = r->norms ? r->norms + operation_norms_at(r, op) : NULL;

    sampling_keep(r, &shape, r->at[step->inputs[0]], norms, op->inputs[0], op->tensor, r->at[step->outputs[0]],
                  r->at[step->scratch]);
}

/* The rows of x and dy that stand for all. */
static struct sampling_operands operands(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);
    const struct sampling_shape shape = linear_run_shape(r, op);
    const void *const x = r->at[step->inputs[0]], *const dy = r->at[step->y_gradient];
    void *const scratch = r->at[step->scratch];

    if (op->linear.sampled)
        return sampling_recall(r, &shape, x, op->inputs[0], dy, scratch);
    return sampling_choose(r, &shape, &(struct sampling_operands){x, dy, shape.n_rows * shape.n_tokens}, op->tensor,
                           scratch);
}

/* For the step that has these tokens next (proto/model/norms.h). */
static void linear_note_norms(const struct operation_run *r, const struct program_operation *op, const void *dy)
{
    const size_t out = operation_columns(r, op->outputs[0]);

    if (r->norms_out && op->linear.sampled)
        r->ops->row_norms(r->dev, &(struct device_row_norms){.m = operation_elements(r, op->inputs[0]),
                                                             .n = out,
                                                             .stride = out,
                                                             .x = dy,
                                                             .norms = r->norms_out + operation_norms_at(r, op)});
}

static void linear_run_contributions(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);
    const struct sampling_operands of = trains_weights(r, op) ? operands(r, step) : (struct sampling_operands){0};

    linear_note_norms(r, op, r->at[step->y_gradient]);
    for (int i = 0; i < op->linear.n_parts; i++) {
        const struct part part = linear_part_of(op, i);
        linear_contribute(r, op, &part, &of);
        contribute_bias(r, op, &part, r->at[step->y_gradient]);
    }
}

/* dx = dy W^T, part after part; if x is an activation, times its slope: the gradient of the activation's operand, and
 * with it that of the operand's bias. */
static void linear_run_backward(const struct operation_run *r, const struct schedule_step *step,
                                const struct part *part)
{
    const struct program_operation *op = operation_of(r, step);
    const size_t in = operation_columns(r, op->inputs[0]);
    struct device_matmul matmul = {.transpose_b = !op->linear.out_in,
                                   .m = operation_elements(r, op->inputs[0]),
                                   .n = in,
                                   .k = part->columns,
                                   .a = operation_element(r, r->at[step->y_gradient], part->first),
                                   .a_stride = operation_columns(r, op->outputs[0]),
                                   .b = r->weights[part->weight],
                                   .b_stride = op->linear.out_in ? in : part->columns,
                                   .c = r->at[step->x_gradient],
                                   .c_stride = in,
                                   .beta = step->accumulate || part->first > 0 ? 1 : 0};

    if (step->absorbed != SCHEDULE_NONE) {
        matmul.epilogue = DEVICE_ACTIVATION_GRADIENT;
        matmul.activation = function_of(r, step);
        matmul.pre = r->at[step->inputs[0]];
        const struct program_operation *before = biased_before(r->program, step->absorbed);
        matmul.bias_gradient = before ? r->gradients[linear_part_of(before, 0).bias] : NULL;
    }
    operation_begin_weights(r, part->weight);
    r->ops->matmul(r->dev, &matmul);
}

static void linear_run(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);

    if (step->action == SCHEDULE_CONTRIBUTE)
        linear_run_contributions(r, step);
    else if (step->action == SCHEDULE_SAMPLE)
        run_sample(r, step);
    else
        for (int i = 0; i < op->linear.n_parts; i++) {
            const struct part part = linear_part_of(op, i);
            (step->action == SCHEDULE_FORWARD ? linear_run_forward : linear_run_backward)(r, step, &part);
        }
}

const struct operation operation_linear = {.name = "linear",
                                           .reads_inputs = OPERATION_FIRST,
                                           .bears_4_bits = true,
                                           .reads_frozen = OPERATION_FIRST,
                                           .absorb = linear_absorb,
                                           .differentiate = linear_differentiate,
                                           .contributes_with_scratch = true,
                                           .scratch = linear_scratch,
                                           .run = linear_run};
