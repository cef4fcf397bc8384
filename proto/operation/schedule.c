/* Steps are built in the order in which they run, and each extends the life of the buffers that it touches. So lives
 * are known when the last step is built, and buffers are merged after that (schedule_merge.c).
 *
 * Values may share the buffer of their gradient, as a sum passes its own on. Adding to one of them then changes the
 * others: `changed` counts additions to a buffer, `as_of` is the count at which a value's gradient is right, and to
 * read it at another is a mistake in an operation's derivative (asserted). */
#include "proto/operation/operation.h"
#include "proto/operation/schedule_internal.h"
#include "proto/operation/schedule_merge.h"

#include <assert.h>

static bool schedule_contains(uint64_t set, int value)
{
    return set >> value & 1;
}

static void schedule_begin(struct schedule_builder *b, struct schedule *s, const struct program *program, uint64_t kept)
{
    s->n_steps = s->n_buffers = s->n_recomputed = 0;
    s->passes = false;
    for (int i = 0; i < PROGRAM_BOUNDARIES; i++)
        s->gradients[i] = SCHEDULE_NONE;
    *b = (struct schedule_builder){.program = program, .schedule = s, .kept = kept};
    for (int i = 0; i < PROGRAM_VALUES; i++)
        b->values[i] = b->codes[i] = b->gradients[i] = SCHEDULE_NONE;
}

static int add_buffer(struct schedule_builder *b, enum schedule_place place, int value, bool gradient)
{
    struct schedule *s = b->schedule;

    assert(s->n_buffers < SCHEDULE_BUFFERS);
    s->buffers[s->n_buffers] =
        (struct schedule_buffer){.place = place, .value = value, .first = s->n_steps, .gradient = gradient};
    return s->n_buffers++;
}

/* A buffer where an input or output lies, or its gradient. */
static int schedule_add_boundary(struct schedule_builder *b, enum schedule_place place, int boundary, int value,
                                 bool gradient)
{
    const int buffer = add_buffer(b, place, value, gradient);

    b->schedule->buffers[buffer].boundary = boundary;
    return buffer;
}

/* Extends a buffer's life to the step that is being built. */
static int schedule_touch(struct schedule_builder *b, int buffer)
{
    struct schedule_buffer *of = &b->schedule->buffers[buffer];

    of->last = b->schedule->n_steps;
    of->aligned |= b->aligned;
    return buffer;
}

struct schedule_step *schedule_begin_step(struct schedule_builder *b, enum schedule_action action, int operation)
{
    struct schedule_step *step = &b->schedule->steps[b->schedule->n_steps];

    assert(b->schedule->n_steps < SCHEDULE_STEPS);
    *step = (struct schedule_step){.action = action,
                                   .operation = operation,
                                   .absorbed = SCHEDULE_NONE,
                                   .after = {SCHEDULE_NONE, SCHEDULE_NONE},
                                   .inputs = {SCHEDULE_NONE, SCHEDULE_NONE, SCHEDULE_NONE},
                                   .outputs = {SCHEDULE_NONE, SCHEDULE_NONE},
                                   .y_gradient = SCHEDULE_NONE,
                                   .x_gradient = SCHEDULE_NONE,
                                   .other_gradient = SCHEDULE_NONE,
                                   .scratch = SCHEDULE_NONE};
    b->aligned = b->program->operations[operation].kind->aligned;
    return step;
}

int schedule_read(struct schedule_builder *b, int value)
{
    assert(b->values[value] != SCHEDULE_NONE);
    return schedule_touch(b, b->values[value]);
}

/* True if it is kept as something else: in few bits, or some rows of it. */
static bool is_changed(const struct program *p, int value)
{
    return p->values[value].bits > 0 || program_sampler(p, value) >= 0;
}

/* Backward, only the first output's place is free. */
static int schedule_write_value(struct schedule_builder *b, int value)
{
    const int output = program_output_of(b->program, value);
    const bool is_free = !b->backward || (output == 0 && !b->program->outputs[0].adds);

    if (schedule_contains(b->kept, value) && !is_changed(b->program, value))
        b->values[value] = add_buffer(b, SCHEDULE_KEPT, value, false);
    else if (output >= 0 && is_free)
        b->values[value] = schedule_add_boundary(b, SCHEDULE_OUTPUT, output, value, false);
    else
        b->values[value] = add_buffer(b, SCHEDULE_WORKSPACE, value, false);
    return schedule_touch(b, b->values[value]);
}

/* With the step's scratch. */
void schedule_end_step(struct schedule_builder *b)
{
    struct schedule_step *step = &b->schedule->steps[b->schedule->n_steps];

    const struct operation *kind = b->program->operations[step->operation].kind;
    if (kind->scratch &&
        (!kind->contributes_with_scratch || step->action == SCHEDULE_CONTRIBUTE || step->action == SCHEDULE_SAMPLE))
        step->scratch = schedule_touch(b, add_buffer(b, SCHEDULE_WORKSPACE, SCHEDULE_NONE, false));
    b->schedule->n_steps++;
}

/* The neighbour that the operation's step can compute as well, or SCHEDULE_NONE. */
static int neighbour_of(const struct program *p, int operation)
{
    const struct operation *kind = p->operations[operation].kind;

    return kind->absorb ? kind->absorb(p, operation) : SCHEDULE_NONE;
}

/* Adds a step that no operation runs, from a buffer to another, or to the same. */
static void schedule_change(struct schedule_builder *b, enum schedule_action action, int value, int from, int to)
{
    struct schedule_step *step = schedule_begin_step(b, action, b->program->values[value].operation);

    b->aligned = false;
    step->value = value;
    step->inputs[0] = schedule_touch(b, from);
    step->outputs[0] = schedule_touch(b, to);
    b->schedule->n_steps++;
}

/* Chooses rows of a linear map's input. */
static void sample(struct schedule_builder *b, int operation, enum schedule_place place)
{
    const int value = b->program->operations[operation].inputs[0];
    struct schedule_step *step = schedule_begin_step(b, SCHEDULE_SAMPLE, operation);

    step->inputs[0] = schedule_read(b, value);
    b->codes[value] = add_buffer(b, place, value, false);
    b->schedule->buffers[b->codes[value]].sample = true;
    step->outputs[0] = schedule_touch(b, b->codes[value]);
    schedule_end_step(b);
}

/* Compresses or samples what forward made, if it is kept so. */
static void schedule_keep(struct schedule_builder *b, const struct program_operation *op)
{
    for (int i = 0; !b->backward && i < op->n_outputs; i++) {
        const int value = op->outputs[i], sampler = program_sampler(b->program, value);
        if (schedule_contains(b->kept, value) && sampler >= 0)
            sample(b, sampler, SCHEDULE_KEPT);
        else if (schedule_contains(b->kept, value) && b->program->values[value].bits > 0)
            schedule_change(b, SCHEDULE_COMPRESS, value, b->values[value], add_buffer(b, SCHEDULE_KEPT, value, false));
    }
}

/* Runs an operation, with its neighbour unless that is SCHEDULE_NONE. */
static void schedule_run(struct schedule_builder *b, int operation, int neighbour)
{
    const struct program_operation *op = &b->program->operations[operation];
    struct schedule_step *step = schedule_begin_step(b, SCHEDULE_FORWARD, operation);

    for (int i = 0; i < op->n_inputs; i++)
        step->inputs[i] = schedule_read(b, op->inputs[i]);
    for (int i = 0; i < op->n_outputs; i++)
        step->outputs[i] = schedule_write_value(b, op->outputs[i]);
    if (neighbour != SCHEDULE_NONE) {
        const struct program_operation *next = &b->program->operations[neighbour];
        step->absorbed = neighbour;
        for (int i = 0; i < next->n_outputs; i++)
            step->after[i] = schedule_write_value(b, next->outputs[i]);
    }
    schedule_end_step(b);
    schedule_keep(b, op);
    if (neighbour != SCHEDULE_NONE)
        schedule_keep(b, &b->program->operations[neighbour]);
}

/* Runs the operations of a set, in order. */
static void schedule_run_all(struct schedule_builder *b, uint64_t operations)
{
    for (int i = 0; i < b->program->n_operations; i++) {
        if (!schedule_contains(operations, i))
            continue;
        const int neighbour = neighbour_of(b->program, i);
        const bool both = neighbour != SCHEDULE_NONE && schedule_contains(operations, neighbour);
        schedule_run(b, i, both ? neighbour : SCHEDULE_NONE);
        i += both;
    }
}

/* Inputs are there before the first step, in both directions. */
static void add_inputs(struct schedule_builder *b)
{
    for (int i = 0; i < b->program->n_inputs; i++) {
        const int value = b->program->inputs[i].value;
        b->values[value] = schedule_add_boundary(b, SCHEDULE_INPUT, i, value, false);
    }
}

/* Keeps a buffer from being written over, up to the end. */
static void outlast(struct schedule *s, int buffer)
{
    s->buffers[buffer].last = s->n_steps;
}

/* A value that is read in the step that makes it, and nowhere else, need not be written. */
static void leave_out_values(struct schedule *s, const struct program *p)
{
    for (int n = 0; n < s->n_steps; n++) {
        struct schedule_step *step = &s->steps[n];
        if (step->absorbed == SCHEDULE_NONE || !p->operations[step->operation].kind->leaves_out)
            continue;
        struct schedule_buffer *b = &s->buffers[step->outputs[0]];
        if (b->place == SCHEDULE_WORKSPACE && b->last == n) {
            *b = schedule_no_buffer;
            step->outputs[0] = SCHEDULE_NONE;
        }
    }
}

void schedule_forward(struct schedule *out, const struct program *program, uint64_t kept)
{
    struct schedule_builder b;

    schedule_begin(&b, out, program, kept);
    add_inputs(&b);
    schedule_run_all(&b, ~UINT64_C(0));
    for (int i = 0; i < program->n_outputs; i++)
        outlast(out, b.values[program->outputs[i].value]);
    leave_out_values(out, program);
    schedule_merge_values(out, program);
}

/* ---- backward ---- */

static bool is_cheap(const struct program *p, int operation)
{
    return p->operations[operation].kind->cheap;
}

/* False if the recomputation computes another operation of this kind later. */
static bool is_made_last(const struct program *p, int operation, uint64_t operations)
{
    for (int i = operation + 1; i < p->n_operations; i++)
        if (schedule_contains(operations, i) && p->operations[i].kind == p->operations[operation].kind)
            return false;
    return true;
}

/* True if what is kept of a value is all of it, be it rounded. */
static bool schedule_is_whole(const struct program *p, int value)
{
    return p->values[value].bits != 1 && program_sampler(p, value) < 0;
}

/* Adds the operations that must run to make a value available, whole. */
static void require(const struct schedule_builder *b, int value, uint64_t *operations)
{
    const int operation = b->program->values[value].operation;

    if (operation < 0 || (schedule_contains(b->kept, value) && schedule_is_whole(b->program, value)) ||
        schedule_contains(*operations, operation) || program_is_at_hand(b->program, value))
        return;
    *operations |= UINT64_C(1) << operation;
    for (int i = 0; i < b->program->operations[operation].n_inputs; i++)
        require(b, b->program->operations[operation].inputs[i], operations);
}

/* True for a cheap value that is recomputed only when backward reads it, as a later one of its kind exists. */
static bool schedule_waits(const struct schedule_builder *b, int value, uint64_t read)
{
    const int operation = b->program->values[value].operation;
    uint64_t cheap = 0;

    if (operation < 0 || !is_cheap(b->program, operation))
        return false;
    for (int i = 0; i < b->program->n_values; i++)
        if (schedule_contains(read, i) && b->program->values[i].operation >= 0 &&
            is_cheap(b->program, b->program->values[i].operation))
            cheap |= UINT64_C(1) << b->program->values[i].operation;
    return !is_made_last(b->program, operation, cheap);
}

/* Buffers of values that are kept, or at hand. */
static void find_kept(struct schedule_builder *b)
{
    const struct program *p = b->program;

    for (int value = 0; value < p->n_values; value++)
        if (schedule_contains(b->kept, value)) {
            int *const at = is_changed(p, value) ? b->codes : b->values;
            at[value] = add_buffer(b, SCHEDULE_KEPT, value, false);
            b->schedule->buffers[at[value]].sample = program_sampler(p, value) >= 0;
        } else if (program_is_at_hand(p, value)) {
            b->values[value] = schedule_add_boundary(b, SCHEDULE_OUTPUT, program_output_of(p, value), value, false);
        }
}

/* Cheap values wait until backward reads them: then they are made from what it reads, not from what forward made. */
static void recompute_compressed(struct schedule_builder *b)
{
    const struct program *p = b->program;
    const uint64_t read = program_read_backward(p);
    uint64_t operations = 0;

    find_kept(b);
    for (int value = 0; value < p->n_values; value++)
        if (schedule_contains(read & ~b->kept, value) && p->values[value].operation >= 0 && !program_is_cheap(p, value))
            require(b, value, &operations);
    schedule_run_all(b, operations);
    for (int value = 0; value < p->n_values; value++)
        if (program_is_rounded(p, value) && b->values[value] != SCHEDULE_NONE)
            schedule_change(b, SCHEDULE_ROUND, value, b->values[value], b->values[value]);
    b->schedule->n_recomputed = b->schedule->n_steps;
    for (int value = 0; value < p->n_values; value++) {
        const int operation = p->values[value].operation;
        if (operation >= 0 && !schedule_contains(b->kept, value) && !program_is_at_hand(p, value) &&
            (!schedule_contains(read, value) || program_is_cheap(p, value)))
            b->values[value] = SCHEDULE_NONE;
    }
}

static void recompute(struct schedule_builder *b)
{
    const uint64_t read = program_read_backward(b->program);
    uint64_t operations = 0;

    if (program_is_compressed(b->program)) {
        recompute_compressed(b);
        return;
    }
    find_kept(b);
    for (int value = 0; value < b->program->n_values; value++)
        if (schedule_contains(read & ~b->kept, value) && !schedule_waits(b, value, read))
            require(b, value, &operations);
    schedule_run_all(b, operations);
    b->schedule->n_recomputed = b->schedule->n_steps;
    for (int value = 0; value < b->program->n_values; value++) {
        const int operation = b->program->values[value].operation;
        if (operation >= 0 && !schedule_contains(b->kept, value) && !program_is_at_hand(b->program, value) &&
            (!schedule_contains(read, value) ||
             (is_cheap(b->program, operation) && !is_made_last(b->program, operation, operations))))
            b->values[value] = SCHEDULE_NONE;
    }
}

/* What is made again here is made as late as it can be, so its buffer lives for a few steps alone. */
void schedule_ensure(struct schedule_builder *b, int value)
{
    if (b->values[value] != SCHEDULE_NONE)
        return;
    if (b->codes[value] != SCHEDULE_NONE) {
        b->values[value] = add_buffer(b, SCHEDULE_WORKSPACE, value, false);
        schedule_change(b, SCHEDULE_EXPAND, value, b->codes[value], b->values[value]);
        return;
    }
    const int operation = b->program->values[value].operation;
    for (int i = 0; i < b->program->operations[operation].n_inputs; i++)
        schedule_ensure(b, b->program->operations[operation].inputs[i]);
    schedule_run(b, operation, SCHEDULE_NONE);
}

void schedule_ensure_sample(struct schedule_builder *b, int operation)
{
    const int value = b->program->operations[operation].inputs[0];

    if (b->codes[value] != SCHEDULE_NONE)
        return;
    schedule_ensure(b, value);
    sample(b, operation, SCHEDULE_WORKSPACE);
}

/* In `codes`, as a sample is no value that another operation could read. */
int schedule_read_sample(struct schedule_builder *b, int operation)
{
    return schedule_touch(b, b->codes[b->program->operations[operation].inputs[0]]);
}

int schedule_read_gradient(struct schedule_builder *b, int value)
{
    const int buffer = b->gradients[value];

    assert(buffer != SCHEDULE_NONE && b->changed[buffer] == b->as_of[value]);
    return schedule_touch(b, buffer);
}

/* Returns the buffer; *accumulate: it has something already. */
static int write_gradient(struct schedule_builder *b, int value, bool *accumulate)
{
    int *buffer = &b->gradients[value];

    *accumulate = *buffer != SCHEDULE_NONE;
    if (!*accumulate)
        *buffer = add_buffer(b, SCHEDULE_WORKSPACE, value, true);
    else
        b->as_of[value] = ++b->changed[*buffer];
    return schedule_touch(b, *buffer);
}

void schedule_write_gradient(struct schedule_builder *b, struct schedule_step *step, int input)
{
    step->of = input;
    step->x_gradient = write_gradient(b, b->program->operations[step->operation].inputs[input], &step->accumulate);
}

void schedule_write_gradient_of(struct schedule_builder *b, struct schedule_step *step, int value)
{
    step->x_gradient = write_gradient(b, value, &step->accumulate);
}

void schedule_write_other_gradient(struct schedule_builder *b, struct schedule_step *step)
{
    schedule_write_other_gradient_of(b, step, b->program->operations[step->operation].inputs[1]);
}

void schedule_write_other_gradient_of(struct schedule_builder *b, struct schedule_step *step, int value)
{
    step->other_gradient = write_gradient(b, value, &step->accumulate_other);
}

void schedule_pass_gradient(struct schedule_builder *b, int from, int to)
{
    assert(b->gradients[to] == SCHEDULE_NONE);
    b->gradients[to] = b->gradients[from];
    b->as_of[to] = b->as_of[from];
}

bool schedule_has_gradient(const struct schedule_builder *b, int value)
{
    return b->gradients[value] != SCHEDULE_NONE;
}

bool schedule_may_pass_gradient(const struct schedule_builder *b, int from, int to)
{
    const struct program *p = b->program;
    const int input = program_input_of(p, to);

    if (schedule_has_gradient(b, to))
        return false;
    if (schedule_is_read_only(p, &b->schedule->buffers[b->gradients[from]]) && program_count_readers(p, to) > 1)
        return false;
    return input < 0 || (input == 0 && program_passes_gradient(p));
}

/* Everything is ensured before the step begins: schedule_ensure adds steps of its own. */
struct schedule_step *schedule_begin_derivative(struct schedule_builder *b, int operation)
{
    const struct program_operation *op = &b->program->operations[operation];

    for (int i = 0; i < op->n_inputs; i++)
        if (schedule_contains(op->kind->reads_inputs, i))
            schedule_ensure(b, op->inputs[i]);
    for (int i = 0; i < op->n_outputs; i++)
        if (schedule_contains(op->kind->reads_outputs, i))
            schedule_ensure(b, op->outputs[i]);
    struct schedule_step *step = schedule_begin_step(b, SCHEDULE_BACKWARD, operation);
    step->contributes = op->n_tensors > 0;
    for (int i = 0; i < op->n_inputs; i++)
        if (schedule_contains(op->kind->reads_inputs, i))
            step->inputs[i] = schedule_read(b, op->inputs[i]);
    for (int i = 0; i < op->n_outputs; i++)
        if (schedule_contains(op->kind->reads_outputs, i))
            step->outputs[i] = schedule_read(b, op->outputs[i]);
    step->y_gradient = schedule_read_gradient(b, op->outputs[0]);
    return step;
}

void schedule_differentiate(struct schedule_builder *b, int operation)
{
    struct schedule_step *step = schedule_begin_derivative(b, operation);

    schedule_write_gradient(b, step, 0);
    schedule_end_step(b);
}

static void differentiate(struct schedule_builder *b, int operation)
{
    const struct operation *kind = b->program->operations[operation].kind;

    if (kind->differentiate)
        kind->differentiate(b, operation);
    else
        schedule_differentiate(b, operation);
}

/* Gradients that there are before any step: those of the outputs; and those of inputs in fp32, which operations add
 * to. */
static void schedule_add_gradients(struct schedule_builder *b)
{
    const struct program *p = b->program;

    for (int i = 0; i < p->n_outputs; i++)
        b->gradients[p->outputs[i].value] = schedule_add_boundary(b, SCHEDULE_GRADIENT, i, p->outputs[i].value, true);
    for (int i = 0; i < p->n_inputs; i++)
        if (p->values[p->inputs[i].value].type == PROGRAM_STATISTIC)
            b->gradients[p->inputs[i].value] =
                schedule_add_boundary(b, SCHEDULE_INPUT_GRADIENT, i, p->inputs[i].value, true);
}

/* Each input's gradient must be there at the end, also of an input that nobody differentiates by. */
void schedule_backward(struct schedule *out, const struct program *program, uint64_t kept)
{
    struct schedule_builder b;

    schedule_begin(&b, out, program, kept);
    b.backward = true;
    add_inputs(&b);
    schedule_add_gradients(&b);
    recompute(&b);
    const int entry = program->n_outputs > 0 ? b.gradients[program->outputs[0].value] : SCHEDULE_NONE;
    for (int i = program->n_operations - 1; i >= 0; i--)
        differentiate(&b, i);
    for (int i = 0; i < program->n_inputs; i++) {
        const int value = program->inputs[i].value, buffer = out->gradients[i] = b.gradients[value];
        assert(buffer != SCHEDULE_NONE && b.changed[buffer] == b.as_of[value]);
        outlast(out, buffer);
    }
    schedule_merge_gradients(out, program, entry);
}
