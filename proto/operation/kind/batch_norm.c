/* A running statistic is a tensor whose gradient is minus the mean of what the parts of a step observed; the
 * optimizer moves it there as SGD with weight decay 1 does. Each part is observed once, in the backward pass of its
 * first microbatch, when its statistics are joined; of ghost batches each one. */
#include "proto/operation/kind/batch_norm.h"

#include "proto/operation/operation.h"
#include "proto/operation/program_internal.h"
#include "proto/operation/schedule_internal.h"

#include <assert.h>

/* ---- moments of a row ---- */

int program_row_moments(struct program *p, int x)
{
    struct program_operation *op = program_append(p, &operation_row_moments);

    op->row_moments.n = p->values[x].columns;
    program_add_input(p, op, x);
    return program_add_output_in(p, op, PROGRAM_STATISTIC, PROGRAM_ROW, 2 * op->row_moments.n);
}

static void run_row_moments(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);
    const bool backward = step->action == SCHEDULE_BACKWARD;
    const struct device_row_moments moments = {.n_rows = r->n_rows,
                                               .n_elements = operation_row_elements(r, op->inputs[0]),
                                               .n = op->row_moments.n,
                                               .x = r->at[step->inputs[0]],
                                               .moments = r->at[step->outputs[0]],
                                               .moments_gradient = backward ? r->at[step->y_gradient] : NULL,
                                               .x_gradient = backward ? r->at[step->x_gradient] : NULL,
                                               .accumulate = step->accumulate};

    if (backward)
        r->ops->row_moments_backward(r->dev, &moments);
    else
        r->ops->row_moments(r->dev, &moments);
}

const struct operation operation_row_moments = {.name = "row moments",
                                                .reads_inputs = OPERATION_FIRST,
                                                .reads_outputs = OPERATION_FIRST,
                                                .cheap = true,
                                                .mixes_tokens = true,
                                                .run = run_row_moments};

/* ---- statistics of a part ---- */

static int operation_batch_norm_join(struct program *p, int moments, const struct program_join_moments_options *options)
{
    struct program_operation *op = program_append(p, &operation_join_moments);
    const uint32_t columns = p->values[moments].columns;

    assert(p->values[moments].domain == PROGRAM_ROW && columns % 2 == 0);
    op->join_moments = *options;
    op->join_moments.n = columns / 2;
    program_add_input(p, op, moments);
    return options->rows
               ? program_add_output_in(p, op, PROGRAM_STATISTIC, PROGRAM_ROW, columns)
               : program_add_output_in(p, op, PROGRAM_STATISTIC, PROGRAM_PART, PROGRAM_STATISTICS * columns / 2);
}

int program_join_moments(struct program *p, int moments, uint32_t domain, float epsilon)
{
    return operation_batch_norm_join(p, moments,
                                     &(struct program_join_moments_options){.domain = domain, .epsilon = epsilon});
}

int program_join_ghosts(struct program *p, int moments, uint32_t domain, uint32_t rows, float epsilon)
{
    assert(rows > 0);
    return operation_batch_norm_join(
        p, moments, &(struct program_join_moments_options){.domain = domain, .rows = rows, .epsilon = epsilon});
}

/* Numbers (n) of the row, in an array of n for each; NULL stays. */
static float *at_row(const float *numbers, size_t row, size_t n)
{
    return numbers ? (float *)numbers + row * n : NULL;
}

/* Over the rows of the part, or of each ghost batch; of these an evaluation has no use. */
static void run_join_moments(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);
    const bool backward = step->action == SCHEDULE_BACKWARD, ghosts = op->join_moments.rows > 0;
    const uint32_t rows = ghosts ? op->join_moments.rows : r->n_rows;
    const size_t n = op->join_moments.n,
                 n_elements = program_domain_elements(r->program, op->join_moments.domain, r->n_tokens);

    if (ghosts && !r->drops)
        return;
    assert(r->n_rows % rows == 0);
    for (uint32_t row = 0; row < r->n_rows; row += rows) {
        const struct device_join_moments join = {.n_rows = rows,
                                                 .n_elements = n_elements,
                                                 .n = n,
                                                 .epsilon = op->join_moments.epsilon,
                                                 .moments = at_row(r->at[step->inputs[0]], row, 2 * n),
                                                 .statistics = at_row(r->at[step->outputs[0]], row, 2 * n),
                                                 .statistics_gradient =
                                                     backward ? at_row(r->at[step->y_gradient], row, 2 * n) : NULL,
                                                 .moments_gradient =
                                                     backward ? at_row(r->at[step->x_gradient], row, 2 * n) : NULL};
        if (backward)
            r->ops->join_moments_backward(r->dev, &join);
        else
            r->ops->join_moments(r->dev, &join);
    }
}

const struct operation operation_join_moments = {.name = "join moments",
                                                 .reads_inputs = OPERATION_FIRST,
                                                 .reads_outputs = OPERATION_FIRST,
                                                 .cheap = true,
                                                 .mixes_tokens = true,
                                                 .run = run_join_moments};

/* ---- normalisation ---- */

static int add_batch_norm(struct program *p, int x, int statistics, const char *stem,
                          const struct program_batch_norm_options *options)
{
    const uint32_t n = options->n;
    struct program_operation *op = program_append(p, &operation_batch_norm);

    op->batch_norm = *options;
    if (p->values[statistics].domain == PROGRAM_ROW) {
        assert(p->values[statistics].columns == 2 * n);
        op->batch_norm.rows = p->operations[p->values[statistics].operation].join_moments.rows;
    } else {
        assert(p->values[statistics].domain == PROGRAM_PART && p->values[statistics].columns == PROGRAM_STATISTICS * n);
    }
    program_add_input(p, op, x);
    program_add_input(p, op, statistics);
    program_add_tensor(p, op, stem, "weight", (struct program_tensor){.rows = n, .init = MODEL_INIT_ONE});
    program_add_tensor(p, op, stem, "bias", (struct program_tensor){.rows = n, .init = MODEL_INIT_ZERO});
    if (options->runs) {
        program_add_tensor(p, op, stem, "running_mean",
                           (struct program_tensor){.rows = n, .init = MODEL_INIT_ZERO, .averages = true});
        program_add_tensor(p, op, stem, "running_var",
                           (struct program_tensor){.rows = n, .init = MODEL_INIT_ONE, .averages = true});
    }
    return program_add_output(p, op, PROGRAM_VALUE, n);
}

int program_batch_norm(struct program *p, int x, int statistics, const char *stem)
{
    return add_batch_norm(p, x, statistics, stem, &(struct program_batch_norm_options){.n = p->values[x].columns});
}

int program_running_batch_norm(struct program *p, int x, int statistics, const char *stem, float epsilon)
{
    return add_batch_norm(p, x, statistics, stem,
                          &(struct program_batch_norm_options){.n = p->values[x].columns,
                                                               .runs = true,
                                                               .epsilon = epsilon});
}

enum { WEIGHT, BIAS, RUNNING_MEAN, RUNNING_VARIANCE };

/* The statistics that an evaluation makes of the running ones. */
static uint64_t batch_norm_scratch(const struct program *p, const struct program_operation *op,
                                   const struct operation_setting *s)
{
    (void)p;
    return s->action != SCHEDULE_BACKWARD && op->batch_norm.runs ? 2 * op->batch_norm.n * sizeof(float) : 0;
}

static void differentiate_batch_norm(struct schedule_builder *b, int operation)
{
    struct schedule_step *step = schedule_begin_derivative(b, operation);

    schedule_write_gradient(b, step, 0);
    schedule_write_other_gradient(b, step);
    schedule_end_step(b);
}

/* Returns an evaluation's statistics. */
static const float *batch_norm_recall(const struct operation_run *r, const struct program_operation *op,
                                      float *statistics)
{
    r->ops->running_statistics(r->dev, &(struct device_running){.n = op->batch_norm.n,
                                                                .epsilon = op->batch_norm.epsilon,
                                                                .statistics = statistics,
                                                                .mean = r->weights[op->tensor + RUNNING_MEAN],
                                                                .variance = r->weights[op->tensor + RUNNING_VARIANCE]});
    return statistics;
}

/* Once a part, or a ghost batch. Statistics of one element have no variance: PyTorch refuses them. */
static void batch_norm_observe(const struct operation_run *r, const struct program_operation *op, float *statistics)
{
    const uint32_t ghost = op->batch_norm.rows, rows = ghost ? ghost : r->part_rows;
    const uint32_t n_of_part = ghost ? r->part_rows / ghost : 1;
    const double n = (double)rows * (double)operation_row_elements(r, op->inputs[0]);
    const struct device_running running = {.n = op->batch_norm.n,
                                           .epsilon = op->batch_norm.epsilon,
                                           .scale = (float)(-1.0 / ((double)n_of_part * r->n_parts)),
                                           .correction = n > 1 ? (float)(n / (n - 1)) : 1,
                                           .statistics = statistics,
                                           .mean_gradient = r->gradients[op->tensor + RUNNING_MEAN],
                                           .variance_gradient = r->gradients[op->tensor + RUNNING_VARIANCE]};

    if (running.mean_gradient || running.variance_gradient)
        r->ops->running_gradient(r->dev, &running);
}

/* The norm of this many rows from `first` on, which share their statistics. */
static struct device_batch_norm batch_norm_norm_of(const struct operation_run *r, const struct schedule_step *step,
                                                   uint32_t first, uint32_t rows)
{
    const struct program_operation *op = operation_of(r, step);
    const size_t elements = operation_row_elements(r, op->inputs[0]), n = op->batch_norm.n;

    return (struct device_batch_norm){.n_rows = rows,
                                      .n_elements = elements,
                                      .n = n,
                                      .x = operation_element(r, r->at[step->inputs[0]], first * elements * n),
                                      .statistics = at_row(r->at[step->inputs[1]], first, 2 * n),
                                      .weight = r->weights[op->tensor + WEIGHT]};
}

static void forward_batch_norm(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);
    const bool recalls = op->batch_norm.runs && !r->drops;
    const uint32_t rows = op->batch_norm.rows && !recalls ? op->batch_norm.rows : r->n_rows;
    const float *recalled = recalls ? batch_norm_recall(r, op, r->at[step->scratch]) : NULL;

    for (uint32_t row = 0; row < r->n_rows; row += rows) {
        struct device_batch_norm norm = batch_norm_norm_of(r, step, row, rows);
        norm.statistics = recalls ? recalled : norm.statistics;
        norm.bias = r->weights[op->tensor + BIAS];
        norm.y = operation_element(r, r->at[step->outputs[0]], row * norm.n_elements * norm.n);
        r->ops->batch_norm(r->dev, &norm);
    }
}

static void backward_batch_norm(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);
    const bool ghosts = op->batch_norm.rows > 0, observes = op->batch_norm.runs && (ghosts || r->fresh);
    const uint32_t rows = ghosts ? op->batch_norm.rows : r->n_rows;
    const size_t n_statistics = 2 * op->batch_norm.n;
    float *const gradient = r->at[step->other_gradient];

    if (ghosts) /* of a part they begin with zeros, and have more readers than this microbatch */
        r->ops->zero(r->dev, &(struct device_zero){gradient, r->n_rows * n_statistics * sizeof *gradient});
    for (uint32_t row = 0; row < r->n_rows; row += rows) {
        struct device_batch_norm norm = batch_norm_norm_of(r, step, row, rows);
        const size_t at = row * norm.n_elements * norm.n;
        norm.y_gradient = operation_element(r, r->at[step->y_gradient], at);
        norm.x_gradient = operation_element(r, r->at[step->x_gradient], at);
        norm.accumulate = step->accumulate;
        norm.weight_gradient = r->gradients[op->tensor + WEIGHT];
        norm.bias_gradient = r->gradients[op->tensor + BIAS];
        norm.statistics_gradient = at_row(gradient, row, n_statistics);
        norm.lost = ghosts ? NULL : gradient + n_statistics; /* each ghost batch is summed in one call */
        r->ops->batch_norm_backward(r->dev, &norm);
        if (observes)
            batch_norm_observe(r, op, at_row(r->at[step->inputs[1]], row, n_statistics));
    }
}

static void run_batch_norm(const struct operation_run *r, const struct schedule_step *step)
{
    if (step->action == SCHEDULE_FORWARD)
        forward_batch_norm(r, step);
    else
        backward_batch_norm(r, step);
}

const struct operation operation_batch_norm = {.name = "batch norm",
                                               .reads_inputs = OPERATION_FIRST | OPERATION_SECOND,
                                               .gradient_over = true,
                                               .cheap = true,
                                               .mixes_tokens = true,
                                               .differentiate = differentiate_batch_norm,
                                               .scratch = batch_norm_scratch,
                                               .run = run_batch_norm};
