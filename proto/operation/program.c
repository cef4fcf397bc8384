#include "proto/operation/operation.h"
#include "proto/operation/program_internal.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static int add_value(struct program *p, enum program_type type, uint32_t columns, int operation)
{
    assert(p->n_values < PROGRAM_VALUES && columns > 0);
    p->values[p->n_values] = (struct program_value){type, columns, operation};
    return p->n_values++;
}

struct program_operation *program_append(struct program *p, const struct operation *kind)
{
    assert(p->n_operations < PROGRAM_OPERATIONS);
    struct program_operation *op = &p->operations[p->n_operations++];
    *op = (struct program_operation){.kind = kind, .tensor = p->n_tensors};
    return op;
}

void program_add_input(const struct program *p, struct program_operation *op, int value)
{
    assert(value >= 0 && value < p->n_values && op->n_inputs < PROGRAM_INPUTS);
    op->inputs[op->n_inputs++] = value;
}

int program_add_output(struct program *p, struct program_operation *op, enum program_type type, uint32_t columns)
{
    assert(op->n_outputs < PROGRAM_OUTPUTS);
    return op->outputs[op->n_outputs++] = add_value(p, type, columns, p->n_operations - 1);
}

void program_add_tensor(struct program *p, struct program_operation *op, const char *stem, const char *which,
                        struct program_tensor tensor)
{
    assert(p->n_tensors < PROGRAM_TENSORS);
    const int n = snprintf(tensor.name, sizeof tensor.name, "%s.%s", stem, which);
    assert(n > 0 && (size_t)n < sizeof tensor.name);
    p->tensors[p->n_tensors++] = tensor;
    op->n_tensors++;
}

void program_add_number(struct program *p, double number)
{
    assert(p->n_numbers < PROGRAM_NUMBERS);
    p->numbers[p->n_numbers++] = number;
}

int program_begin(struct program *p, uint32_t columns)
{
    *p = (struct program){.output = -1, .logit_bias = -1};
    return p->input = add_value(p, PROGRAM_VALUE, columns, -1);
}

void program_logit_bias(struct program *p, const char *name, uint32_t n_outputs)
{
    struct program_tensor tensor = {.rows = n_outputs, .init = MODEL_INIT_ZERO};

    assert(p->logit_bias < 0 && p->n_tensors < PROGRAM_TENSORS && strlen(name) < sizeof tensor.name);
    memcpy(tensor.name, name, strlen(name));
    p->logit_bias = p->n_tensors;
    p->tensors[p->n_tensors++] = tensor;
}

void program_end(struct program *p, int y)
{
    assert(p->values[y].columns == p->values[p->input].columns && p->values[y].type == PROGRAM_VALUE);
    p->output = y;
}

static bool is_alike(const struct program_operation *a, const struct program_operation *b)
{
    return a->kind == b->kind && a->n_tensors == b->n_tensors && a->n_inputs == b->n_inputs &&
           memcmp(a->inputs, b->inputs, sizeof a->inputs) == 0 &&
           memcmp(a->outputs, b->outputs, sizeof a->outputs) == 0;
}

bool program_is_alike(const struct program *a, const struct program *b)
{
    bool alike = a->n_operations == b->n_operations && a->n_values == b->n_values && a->output == b->output;

    for (int i = 0; alike && i < a->n_operations; i++)
        alike = is_alike(&a->operations[i], &b->operations[i]);
    for (int i = 0; alike && i < a->n_values; i++)
        alike = a->values[i].type == b->values[i].type && a->values[i].columns == b->values[i].columns;
    return alike;
}

const struct program_operation *program_find(const struct program *p, const struct operation *kind)
{
    for (const struct program_operation *op = p->operations; op < p->operations + p->n_operations; op++)
        if (op->kind == kind)
            return op;
    return NULL;
}

int program_count_readers(const struct program *p, int value)
{
    int n = value == p->output;

    for (int i = 0; i < p->n_operations; i++)
        for (int k = 0; k < p->operations[i].n_inputs; k++)
            n += p->operations[i].inputs[k] == value;
    return n;
}

static uint64_t pick(const int *values, int n, uint8_t set)
{
    uint64_t picked = 0;

    for (int i = 0; i < n; i++)
        if (set >> i & 1)
            picked |= UINT64_C(1) << values[i];
    return picked;
}

uint64_t program_read_backward(const struct program *p)
{
    uint64_t read = 0;

    for (const struct program_operation *op = p->operations; op < p->operations + p->n_operations; op++)
        read |= pick(op->inputs, op->n_inputs, op->kind->reads_inputs) |
                pick(op->outputs, op->n_outputs, op->kind->reads_outputs);
    return read;
}

uint64_t program_keepable(const struct program *p)
{
    uint64_t keepable = program_read_backward(p) & ~(UINT64_C(1) << p->input | UINT64_C(1) << p->output);

    for (int value = 0; value < p->n_values; value++)
        if (p->values[value].operation >= 0 && p->operations[p->values[value].operation].kind->cheap)
            keepable &= ~(UINT64_C(1) << value);
    return keepable;
}

int program_kept_groups(const struct program *p, uint64_t values[PROGRAM_KEPT_GROUPS],
                        int operations[PROGRAM_KEPT_GROUPS])
{
    const uint64_t keepable = program_keepable(p);
    int n = 0, last = -1;

    for (int value = 0; value < p->n_values; value++) {
        const int operation = p->values[value].operation;
        if (!(keepable >> value & 1))
            continue;
        if (operation != last && n < PROGRAM_KEPT_GROUPS) {
            values[n] = 0;
            operations[n++] = operation;
        }
        values[n - 1] |= UINT64_C(1) << value;
        last = operation;
    }
    return n;
}
