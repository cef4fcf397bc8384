#include "proto/operation/schedule.h"

#include <assert.h>

struct builder {
    const struct program *p;
    struct schedule *s;
    uint64_t kept;
    int values[PROGRAM_VALUES];    /* buffer that holds the value now, or SCHEDULE_NONE */
    int gradients[PROGRAM_VALUES]; /* the same for its gradient, as far as it is summed */
    int changed[SCHEDULE_BUFFERS]; /* how often a gradient was added to */
    int as_of[PROGRAM_VALUES];     /* `changed` when a sum passed this gradient on */
};

static bool contains(uint64_t set, int value)
{
    return set >> value & 1;
}

static void begin(struct builder *b, struct schedule *s, const struct program *program, uint64_t kept)
{
    *s = (struct schedule){.gradient = SCHEDULE_NONE};
    *b = (struct builder){.p = program, .s = s, .kept = kept};
    for (int i = 0; i < PROGRAM_VALUES; i++)
        b->values[i] = b->gradients[i] = SCHEDULE_NONE;
}

static int add_buffer(struct builder *b, enum schedule_place place, int value, bool gradient)
{
    struct schedule *s = b->s;

    assert(s->n_buffers < SCHEDULE_BUFFERS);
    s->buffers[s->n_buffers] =
        (struct schedule_buffer){.place = place, .value = value, .first = s->n_steps, .gradient = gradient};
    return s->n_buffers++;
}

/* Extends a buffer's life to the step that is being built. */
static int touch(struct builder *b, int buffer, bool attends)
{
    struct schedule_buffer *of = &b->s->buffers[buffer];

    of->last = b->s->n_steps;
    of->attended |= attends;
    return buffer;
}

/* Begins a step, which the caller fills in; the next call ends it. */
static struct schedule_step *add_step(struct builder *b, enum schedule_action action, int operation)
{
    struct schedule_step *step = &b->s->steps[b->s->n_steps];

    assert(b->s->n_steps < SCHEDULE_STEPS);
    *step = (struct schedule_step){.action = action,
                                   .operation = operation,
                                   .activation = SCHEDULE_NONE,
                                   .after = SCHEDULE_NONE,
                                   .inputs = {SCHEDULE_NONE, SCHEDULE_NONE, SCHEDULE_NONE},
                                   .outputs = {SCHEDULE_NONE, SCHEDULE_NONE},
                                   .y_gradient = SCHEDULE_NONE,
                                   .x_gradient = SCHEDULE_NONE,
                                   .scratch = SCHEDULE_NONE};
    return step;
}

static int hold(struct builder *b, int value, bool attends)
{
    assert(b->values[value] != SCHEDULE_NONE);
    return touch(b, b->values[value], attends);
}

static int write_value(struct builder *b, int value, bool attends)
{
    const enum schedule_place place = contains(b->kept, value) ? SCHEDULE_KEPT
                                      : value == b->p->output  ? SCHEDULE_OUTPUT
                                                               : SCHEDULE_WORKSPACE;

    b->values[value] = add_buffer(b, place, value, false);
    return touch(b, b->values[value], attends);
}

static void add_scratch(struct builder *b, struct schedule_step *step)
{
    step->scratch = touch(b, add_buffer(b, SCHEDULE_WORKSPACE, SCHEDULE_NONE, false), true);
}

/* The activation that a linear map's step computes as well, or SCHEDULE_NONE. */
static int activation_after(const struct program *p, int operation)
{
    const struct program_operation *op = &p->operations[operation], *next = op + 1;

    if (op->kind != PROGRAM_LINEAR || operation + 1 == p->n_operations || next->kind != PROGRAM_ACTIVATION ||
        next->inputs[0] != op->outputs[0] || op->n_parts > 1 || !op->linear.bias)
        return SCHEDULE_NONE;
    return operation + 1;
}

/* Runs an operation, with its activation if that is needed too. */
static void run(struct builder *b, int operation, bool with_activation)
{
    const struct program_operation *op = &b->p->operations[operation];
    const bool attends = op->kind == PROGRAM_ATTENTION;
    struct schedule_step *step = add_step(b, SCHEDULE_FORWARD, operation);

    for (int i = 0; i < op->n_inputs; i++)
        step->inputs[i] = hold(b, op->inputs[i], attends);
    for (int i = 0; i < op->n_outputs; i++)
        step->outputs[i] = write_value(b, op->outputs[i], attends);
    if (with_activation) {
        step->activation = operation + 1;
        step->after = write_value(b, op[1].outputs[0], false);
    }
    if (attends)
        add_scratch(b, step);
    b->s->n_steps++;
}

/* Runs the operations of a set, in order. */
static void run_all(struct builder *b, uint64_t operations)
{
    for (int i = 0; i < b->p->n_operations; i++) {
        if (!contains(operations, i))
            continue;
        const int activation = activation_after(b->p, i);
        const bool both = activation != SCHEDULE_NONE && contains(operations, activation);
        run(b, i, both);
        i += both;
    }
}

static void replace(int *buffer, int old, int new)
{
    if (*buffer == old)
        *buffer = new;
}

/* Merges two buffers into `into`; the last step of one is the first of the other. */
static void merge(struct schedule *s, int from, int into)
{
    struct schedule_buffer *a = &s->buffers[from], *b = &s->buffers[into];

    for (struct schedule_step *step = s->steps; step < s->steps + s->n_steps; step++) {
        for (int i = 0; i < PROGRAM_INPUTS; i++)
            replace(&step->inputs[i], from, into);
        for (int i = 0; i < PROGRAM_OUTPUTS; i++)
            replace(&step->outputs[i], from, into);
        replace(&step->after, from, into);
        replace(&step->y_gradient, from, into);
        replace(&step->x_gradient, from, into);
    }
    replace(&s->gradient, from, into);
    b->first = a->first < b->first ? a->first : b->first;
    b->last = a->last > b->last ? a->last : b->last;
    b->attended |= a->attended;
    *a = (struct schedule_buffer){.place = SCHEDULE_WORKSPACE, .value = SCHEDULE_NONE, .first = 0, .last = -1};
}

/* True if step n may write `to` over `from`, which no later step reads. */
static bool may_merge(const struct schedule *s, int n, int from, int to)
{
    const struct schedule_buffer *a = &s->buffers[from], *b = &s->buffers[to];

    return from != to && a->last == n && b->first == n &&
           (a->place == SCHEDULE_WORKSPACE || b->place == SCHEDULE_WORKSPACE) && a->place != SCHEDULE_INPUT &&
           a->place != SCHEDULE_KEPT;
}

/* over_entry: the gradient that backward begins with may be overwritten. */
static void merge_in_step(struct schedule *s, const struct program *p, int n, bool over_entry)
{
    const struct schedule_step *step = &s->steps[n];
    const struct program_operation *op = &p->operations[step->operation];
    const struct program_rule *rule = &program_rules[op->kind];

    if (step->action == SCHEDULE_FORWARD)
        for (int i = op->n_inputs - 1; i >= 0; i--)
            if (contains(rule->over_inputs, i) && may_merge(s, n, step->inputs[i], step->outputs[0])) {
                merge(s, step->inputs[i], step->outputs[0]);
                return;
            }
    if (step->action == SCHEDULE_BACKWARD && rule->gradient_over && !step->accumulate &&
        may_merge(s, n, step->y_gradient, step->x_gradient)) {
        const bool fixed = s->buffers[step->y_gradient].place != SCHEDULE_WORKSPACE;
        if (fixed && !over_entry)
            return;
        merge(s, fixed ? step->x_gradient : step->y_gradient, fixed ? step->y_gradient : step->x_gradient);
    }
}

static void merge_all(struct schedule *s, const struct program *p, bool over_entry)
{
    for (int n = 0; n < s->n_steps; n++)
        merge_in_step(s, p, n, over_entry);
}

void schedule_forward(struct schedule *out, const struct program *program, uint64_t kept)
{
    struct builder b;

    begin(&b, out, program, kept);
    b.values[program->input] = add_buffer(&b, SCHEDULE_INPUT, program->input, false);
    run_all(&b, ~UINT64_C(0));
    merge_all(out, program, true);
}

/* ---- backward ---- */

static bool is_cheap(const struct program *p, int operation)
{
    return program_rules[p->operations[operation].kind].cheap;
}

/* False if the recomputation computes another operation of this kind later. */
static bool is_made_last(const struct program *p, int operation, uint64_t operations)
{
    for (int i = operation + 1; i < p->n_operations; i++)
        if (contains(operations, i) && p->operations[i].kind == p->operations[operation].kind)
            return false;
    return true;
}

/* Adds the operations that must run to make a value available. */
static void require(const struct builder *b, int value, uint64_t *operations)
{
    const int operation = b->p->values[value].operation;

    if (operation < 0 || contains(b->kept, value) || contains(*operations, operation))
        return;
    *operations |= UINT64_C(1) << operation;
    for (int i = 0; i < b->p->operations[operation].n_inputs; i++)
        require(b, b->p->operations[operation].inputs[i], operations);
}

/* True for a cheap value that is recomputed only when backward reads it, as a later one of its kind exists. */
static bool waits(const struct builder *b, int value, uint64_t read)
{
    const int operation = b->p->values[value].operation;
    uint64_t cheap = 0;

    if (operation < 0 || !is_cheap(b->p, operation))
        return false;
    for (int i = 0; i < b->p->n_values; i++)
        if (contains(read, i) && b->p->values[i].operation >= 0 && is_cheap(b->p, b->p->values[i].operation))
            cheap |= UINT64_C(1) << b->p->values[i].operation;
    return !is_made_last(b->p, operation, cheap);
}

static void recompute(struct builder *b)
{
    const uint64_t read = program_read_backward(b->p);
    uint64_t operations = 0;

    for (int value = 0; value < b->p->n_values; value++) {
        if (contains(read, value) && !waits(b, value, read))
            require(b, value, &operations);
        if (contains(b->kept, value))
            b->values[value] = add_buffer(b, SCHEDULE_KEPT, value, false);
    }
    run_all(b, operations);
    b->s->n_recomputed = b->s->n_steps;
    for (int value = 0; value < b->p->n_values; value++) {
        const int operation = b->p->values[value].operation;
        if (operation >= 0 && !contains(b->kept, value) &&
            (!contains(read, value) || (is_cheap(b->p, operation) && !is_made_last(b->p, operation, operations))))
            b->values[value] = SCHEDULE_NONE;
    }
}

/* Recomputes a value that backward reads, unless it is available. */
static void ensure(struct builder *b, int value)
{
    if (b->values[value] != SCHEDULE_NONE)
        return;
    const int operation = b->p->values[value].operation;
    for (int i = 0; i < b->p->operations[operation].n_inputs; i++)
        ensure(b, b->p->operations[operation].inputs[i]);
    run(b, operation, false);
}

/* The gradient of a value that a step reads. */
static int read_gradient(struct builder *b, int value, bool attends)
{
    const int buffer = b->gradients[value];

    assert(buffer != SCHEDULE_NONE && b->changed[buffer] == b->as_of[value]);
    return touch(b, buffer, attends);
}

/* Sets the gradient that a step writes, or adds to, for a value. */
static void write_gradient(struct builder *b, struct schedule_step *step, int value, bool attends)
{
    int *buffer = &b->gradients[value];

    step->accumulate = *buffer != SCHEDULE_NONE;
    if (!step->accumulate)
        *buffer = add_buffer(b, SCHEDULE_WORKSPACE, value, true);
    else
        b->as_of[value] = ++b->changed[*buffer];
    step->x_gradient = touch(b, *buffer, attends);
}

/* Passes a gradient on unchanged, to a value that has none yet. */
static void pass_gradient(struct builder *b, int from, int to)
{
    assert(b->gradients[to] == SCHEDULE_NONE);
    b->gradients[to] = b->gradients[from];
    b->as_of[to] = b->as_of[from];
}

static void add_backward(struct builder *b, int operation)
{
    const struct program_operation *op = &b->p->operations[operation];

    pass_gradient(b, op->outputs[0], op->inputs[0]);
    if (op->dropout.p == 0) {
        pass_gradient(b, op->outputs[0], op->inputs[1]);
        return;
    }
    struct schedule_step *step = add_step(b, SCHEDULE_BACKWARD, operation);
    step->y_gradient = read_gradient(b, op->outputs[0], false);
    write_gradient(b, step, op->inputs[1], false);
    b->s->n_steps++;
}

/* The activation whose gradient a linear map's backward step computes as well, as its result's only reader. */
static int activation_before(const struct program *p, int operation)
{
    const int value = p->operations[operation].inputs[0], maker = p->values[value].operation;

    if (maker < 0 || p->operations[maker].kind != PROGRAM_ACTIVATION || program_count_readers(p, value) != 1 ||
        p->operations[operation].n_parts > 1)
        return SCHEDULE_NONE;
    return program_count_readers(p, p->operations[maker].inputs[0]) == 1 ? maker : SCHEDULE_NONE;
}

static void linear_backward(struct builder *b, int operation)
{
    const struct program_operation *op = &b->p->operations[operation];
    const int activation = activation_before(b->p, operation);

    ensure(b, op->inputs[0]);
    struct schedule_step *step = add_step(b, SCHEDULE_CONTRIBUTE, operation);
    step->inputs[0] = hold(b, op->inputs[0], false);
    step->y_gradient = read_gradient(b, op->outputs[0], false);
    b->s->n_steps++;

    if (activation != SCHEDULE_NONE)
        ensure(b, b->p->operations[activation].inputs[0]);
    step = add_step(b, SCHEDULE_BACKWARD, operation);
    step->activation = activation;
    step->y_gradient = read_gradient(b, op->outputs[0], false);
    if (activation == SCHEDULE_NONE) {
        write_gradient(b, step, op->inputs[0], false);
    } else {
        step->inputs[0] = hold(b, b->p->operations[activation].inputs[0], false);
        write_gradient(b, step, b->p->operations[activation].inputs[0], false);
    }
    b->s->n_steps++;
}

/* Backward of other operations: reads all values that its rule names, then one gradient. */
static void other_backward(struct builder *b, int operation)
{
    const struct program_operation *op = &b->p->operations[operation];
    const struct program_rule *rule = &program_rules[op->kind];
    const bool attends = op->kind == PROGRAM_ATTENTION;

    for (int i = 0; i < op->n_inputs; i++)
        if (contains(rule->reads_inputs, i))
            ensure(b, op->inputs[i]);
    for (int i = 0; i < op->n_outputs; i++)
        if (contains(rule->reads_outputs, i))
            ensure(b, op->outputs[i]);
    struct schedule_step *step = add_step(b, SCHEDULE_BACKWARD, operation);
    for (int i = 0; i < op->n_inputs; i++)
        if (contains(rule->reads_inputs, i))
            step->inputs[i] = hold(b, op->inputs[i], attends);
    for (int i = 0; i < op->n_outputs; i++)
        if (contains(rule->reads_outputs, i))
            step->outputs[i] = hold(b, op->outputs[i], attends);
    step->y_gradient = read_gradient(b, op->outputs[0], attends);
    write_gradient(b, step, op->inputs[0], attends);
    if (attends)
        add_scratch(b, step);
    b->s->n_steps++;
}

static void differentiate(struct builder *b, int operation)
{
    const struct program_operation *op = &b->p->operations[operation];

    switch (op->kind) {
    case PROGRAM_ADD:
        add_backward(b, operation);
        return;
    case PROGRAM_LINEAR:
        linear_backward(b, operation);
        return;
    case PROGRAM_ACTIVATION:
        if (b->gradients[op->inputs[0]] != SCHEDULE_NONE)
            return; /* done by the linear map that reads it */
        break;
    case PROGRAM_NORM:
    case PROGRAM_HEAD_NORM:
    case PROGRAM_ROPE:
    case PROGRAM_ATTENTION:
    case PROGRAM_GLU:
    case PROGRAM_DROPOUT:
    case PROGRAM_KINDS:
        break;
    }
    other_backward(b, operation);
}

static bool overlap(const struct schedule_buffer *a, const struct schedule_buffer *b)
{
    return a->first <= b->last && b->first <= a->last;
}

/* Moves gradients as wide as the output to the output's place while that is free. */
static void use_output(struct schedule *s, const struct program *p)
{
    for (struct schedule_buffer *b = s->buffers; b < s->buffers + s->n_buffers; b++) {
        bool fits = b->place == SCHEDULE_WORKSPACE && b->gradient && !b->attended &&
                    p->values[b->value].columns == p->values[p->output].columns;
        for (const struct schedule_buffer *other = s->buffers; fits && other < s->buffers + s->n_buffers; other++)
            fits = other->place != SCHEDULE_OUTPUT || !overlap(b, other);
        if (fits)
            b->place = SCHEDULE_OUTPUT;
    }
}

/* The input's gradient takes the place of the output's, `entry`: in the same buffer, or after it. After it if a single
 * linear map, which cannot overwrite its operand, leads from input to output; the entry must then survive until the
 * map. */
static void merge_gradients(struct schedule *s, const struct program *p, int entry)
{
    const struct schedule apart = *s;

    merge_all(s, p, true);
    if (s->buffers[s->gradient].place == SCHEDULE_GRADIENT)
        return;
    *s = apart;
    merge_all(s, p, false);
    assert(s->buffers[entry].last < s->buffers[s->gradient].first);
    s->buffers[s->gradient].place = SCHEDULE_GRADIENT;
}

void schedule_backward(struct schedule *out, const struct program *program, uint64_t kept)
{
    struct builder b;

    begin(&b, out, program, kept);
    b.values[program->input] = add_buffer(&b, SCHEDULE_INPUT, program->input, false);
    b.gradients[program->output] = add_buffer(&b, SCHEDULE_GRADIENT, program->output, true);
    recompute(&b);
    const int entry = b.gradients[program->output];
    for (int i = program->n_operations - 1; i >= 0; i--)
        differentiate(&b, i);
    out->gradient = b.gradients[program->input];
    assert(out->gradient != SCHEDULE_NONE);
    merge_gradients(out, program, entry);
    use_output(out, program);
}
