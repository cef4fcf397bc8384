/* This runs once all steps are known, since whether a buffer may be overwritten depends on who reads it last. Steps are
 * taken in order, and each decision sees what earlier ones have changed: a merged buffer lives from the first step of
 * one to the last step of the other. At least one of the two has no place of its own; else one place would have to
 * move.
 *
 * The gradient of the first input must end where that of the first output began. Two ways lead there, and neither is
 * always possible: both are tried on copies of the schedule, in-place first. Only then do the other gradients take free
 * places, which must not be taken from it. */
#include "proto/operation/schedule_merge.h"

#include "proto/operation/operation.h"

static bool schedule_merge_contains(uint64_t set, int value)
{
    return set >> value & 1;
}

static void schedule_merge_replace(int *buffer, int old, int new)
{
    if (*buffer == old)
        *buffer = new;
}

const struct schedule_buffer schedule_no_buffer = {.place = SCHEDULE_WORKSPACE,
                                                   .value = SCHEDULE_NONE,
                                                   .first = 0,
                                                   .last = -1};

/* Merges two buffers into `into`; the last step of one is the first of the other. */
static void merge(struct schedule *s, int from, int into)
{
    struct schedule_buffer *a = &s->buffers[from], *b = &s->buffers[into];

    for (struct schedule_step *step = s->steps; step < s->steps + s->n_steps; step++) {
        for (int i = 0; i < PROGRAM_INPUTS; i++)
            schedule_merge_replace(&step->inputs[i], from, into);
        for (int i = 0; i < PROGRAM_OUTPUTS; i++)
            schedule_merge_replace(&step->outputs[i], from, into), schedule_merge_replace(&step->after[i], from, into);
        schedule_merge_replace(&step->y_gradient, from, into);
        schedule_merge_replace(&step->x_gradient, from, into);
        schedule_merge_replace(&step->other_gradient, from, into);
    }
    for (int i = 0; i < PROGRAM_BOUNDARIES; i++)
        schedule_merge_replace(&s->gradients[i], from, into);
    b->first = a->first < b->first ? a->first : b->first;
    b->last = a->last > b->last ? a->last : b->last;
    b->aligned |= a->aligned;
    *a = schedule_no_buffer;
}

bool schedule_is_read_only(const struct program *p, const struct schedule_buffer *b)
{
    return b->place == SCHEDULE_INPUT || (b->place == SCHEDULE_GRADIENT && p->outputs[b->boundary].adds);
}

/* True if step n may write `to` over `from`, which no later step reads. */
static bool may_merge(const struct schedule *s, const struct program *p, int n, int from, int to)
{
    const struct schedule_buffer *a = &s->buffers[from], *b = &s->buffers[to];

    return from != to && a->last == n && b->first == n &&
           (a->place == SCHEDULE_WORKSPACE || b->place == SCHEDULE_WORKSPACE) && !schedule_is_read_only(p, a) &&
           a->place != SCHEDULE_KEPT;
}

/* over_entry: the gradient of the first output, which backward begins with, may be overwritten. */
static void merge_in_step(struct schedule *s, const struct program *p, int n, bool over_entry)
{
    const struct schedule_step *step = &s->steps[n];
    const struct program_operation *op = &p->operations[step->operation];

    const int result = step->outputs[0] != SCHEDULE_NONE ? step->outputs[0] : step->after[0];

    if (step->action == SCHEDULE_FORWARD)
        for (int i = op->n_inputs - 1; i >= 0; i--)
            if (schedule_merge_contains(op->kind->over_inputs, i) && may_merge(s, p, n, step->inputs[i], result)) {
                merge(s, step->inputs[i], result);
                return;
            }
    if (step->action == SCHEDULE_BACKWARD && op->kind->gradient_over && !step->accumulate &&
        may_merge(s, p, n, step->y_gradient, step->x_gradient)) {
        const struct schedule_buffer *y = &s->buffers[step->y_gradient];
        const bool fixed = y->place != SCHEDULE_WORKSPACE;
        if (fixed && y->boundary == 0 && !over_entry)
            return;
        merge(s, fixed ? step->x_gradient : step->y_gradient, fixed ? step->y_gradient : step->x_gradient);
    }
}

static void schedule_merge_merge_all(struct schedule *s, const struct program *p, bool over_entry)
{
    for (int n = 0; n < s->n_steps; n++)
        merge_in_step(s, p, n, over_entry);
}

void schedule_merge_values(struct schedule *s, const struct program *p)
{
    schedule_merge_merge_all(s, p, true);
}

/* ---- gradients ---- */

static bool schedule_merge_overlap(const struct schedule_buffer *a, const struct schedule_buffer *b)
{
    return a->first <= b->last && b->first <= a->last;
}

/* Moves gradients of the first output's shape to its place while that is free. */
static void use_output(struct schedule *s, const struct program *p)
{
    if (p->n_outputs == 0 || p->outputs[0].adds)
        return;
    const struct program_value *output = &p->values[p->outputs[0].value];
    for (struct schedule_buffer *b = s->buffers; b < s->buffers + s->n_buffers; b++) {
        bool fits = b->place == SCHEDULE_WORKSPACE && b->gradient && !b->aligned &&
                    p->values[b->value].columns == output->columns && p->values[b->value].domain == output->domain &&
                    output->type == PROGRAM_VALUE;
        for (const struct schedule_buffer *other = s->buffers; fits && other < s->buffers + s->n_buffers; other++)
            fits = other->place != SCHEDULE_OUTPUT || other->boundary != 0 || !schedule_merge_overlap(b, other);
        if (fits)
            b->place = SCHEDULE_OUTPUT;
    }
}

/* True if another input's gradient is in the same buffer. */
static bool is_shared(const struct schedule *s, const struct program *p, int input)
{
    bool shared = false;

    for (int i = 0; i < p->n_inputs; i++)
        shared |= i != input && s->gradients[i] == s->gradients[input];
    return shared;
}

/* The first input's gradient takes the place of the first output's, `entry`: in the same buffer, or after it. After it
 * if a single linear map, which cannot overwrite its operand, leads from input to output; the entry must then survive
 * until the map. Neither, if the entry is another input's gradient as well. */
static void merge_gradients(struct schedule *s, const struct program *p, int entry)
{
    const struct schedule apart = *s;
    struct schedule merged;

    schedule_merge_merge_all(s, p, true);
    if (!program_passes_gradient(p))
        return;
    s->passes = s->buffers[s->gradients[0]].place == SCHEDULE_GRADIENT && s->buffers[s->gradients[0]].boundary == 0;
    if (s->passes || apart.buffers[entry].last >= apart.buffers[apart.gradients[0]].first || is_shared(&apart, p, 0))
        return;
    merged = *s;
    *s = apart;
    schedule_merge_merge_all(s, p, false);
    if (s->buffers[entry].last >= s->buffers[s->gradients[0]].first) { /* merged with what the map itself writes */
        *s = merged;
        return;
    }
    s->buffers[s->gradients[0]].place = SCHEDULE_GRADIENT;
    s->buffers[s->gradients[0]].boundary = 0;
    s->passes = true;
}

/* What is made in a buffer of its own is made in its place. */
static void use_inputs(struct schedule *s, const struct program *p)
{
    for (int i = 0; i < p->n_inputs; i++) {
        struct schedule_buffer *b = &s->buffers[s->gradients[i]];
        if (b->place == SCHEDULE_WORKSPACE && !is_shared(s, p, i)) {
            b->place = SCHEDULE_INPUT_GRADIENT;
            b->boundary = i;
        }
    }
}

void schedule_merge_gradients(struct schedule *s, const struct program *p, int entry)
{
    merge_gradients(s, p, entry);
    use_inputs(s, p);
    use_output(s, p);
}
