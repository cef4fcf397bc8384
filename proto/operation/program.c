#include "proto/operation/program.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { FIRST = 1, SECOND = 2 };

const struct program_rule program_rules[PROGRAM_KINDS] = {
    [PROGRAM_NORM] =
        {.name = "norm", .reads_inputs = FIRST, .reads_outputs = SECOND, .gradient_over = true, .cheap = true},
    [PROGRAM_LINEAR] = {.name = "linear", .reads_inputs = FIRST},
    [PROGRAM_HEAD_NORM] =
        {.name = "head norm", .reads_inputs = FIRST, .reads_outputs = SECOND, .gradient_over = true, .cheap = true},
    [PROGRAM_ROPE] = {.name = "rope", .over_inputs = FIRST, .gradient_over = true},
    [PROGRAM_ATTENTION] = {.name = "attention", .reads_inputs = FIRST, .reads_outputs = FIRST | SECOND},
    [PROGRAM_ACTIVATION] = {.name = "activation", .reads_inputs = FIRST, .gradient_over = true, .cheap = true},
    [PROGRAM_GLU] = {.name = "glu", .reads_inputs = FIRST, .cheap = true},
    [PROGRAM_ADD] = {.name = "add", .over_inputs = FIRST | SECOND},
    [PROGRAM_DROPOUT] = {.name = "dropout", .over_inputs = FIRST, .gradient_over = true},
};

static int add_value(struct program *p, enum program_type type, uint32_t columns, int operation)
{
    assert(p->n_values < PROGRAM_VALUES && columns > 0);
    p->values[p->n_values] = (struct program_value){type, columns, operation};
    return p->n_values++;
}

static struct program_operation *add_operation(struct program *p, enum program_kind kind)
{
    assert(p->n_operations < PROGRAM_OPERATIONS);
    struct program_operation *op = &p->operations[p->n_operations++];
    *op = (struct program_operation){.kind = kind, .tensor = p->n_tensors};
    return op;
}

static void add_input(const struct program *p, struct program_operation *op, int value)
{
    assert(value >= 0 && value < p->n_values && op->n_inputs < PROGRAM_INPUTS);
    op->inputs[op->n_inputs++] = value;
}

static int add_output(struct program *p, struct program_operation *op, enum program_type type, uint32_t columns)
{
    assert(op->n_outputs < PROGRAM_OUTPUTS);
    return op->outputs[op->n_outputs++] = add_value(p, type, columns, p->n_operations - 1);
}

static void add_tensor(struct program *p, struct program_operation *op, const char *stem, const char *which,
                       struct program_tensor tensor)
{
    assert(p->n_tensors < PROGRAM_TENSORS);
    const int n = snprintf(tensor.name, sizeof tensor.name, "%s.%s", stem, which);
    assert(n > 0 && (size_t)n < sizeof tensor.name);
    p->tensors[p->n_tensors++] = tensor;
    op->n_tensors++;
}

int program_begin(struct program *p, uint32_t columns)
{
    *p = (struct program){.output = -1, .logit_bias = -1};
    return p->input = add_value(p, PROGRAM_VALUE, columns, -1);
}

int program_norm(struct program *p, int x, const char *stem, const struct program_norm_options *norm)
{
    const uint32_t width = p->values[x].columns;
    struct program_operation *op = add_operation(p, PROGRAM_NORM);

    op->norm = *norm;
    add_input(p, op, x);
    const int y = add_output(p, op, PROGRAM_VALUE, width);
    add_output(p, op, PROGRAM_STATISTIC, 2);
    add_tensor(p, op, stem, "weight",
               (struct program_tensor){.rows = width, .init = norm->offset ? MODEL_INIT_ZERO : MODEL_INIT_ONE});
    if (norm->bias)
        add_tensor(p, op, stem, "bias", (struct program_tensor){.rows = width, .init = MODEL_INIT_ZERO});
    return y;
}

int program_linears(struct program *p, int x, const struct program_part *parts, int n_parts,
                    const struct program_linear_options *linear)
{
    struct program_operation *op = add_operation(p, PROGRAM_LINEAR);
    uint32_t columns = 0;

    assert(n_parts > 0 && n_parts <= PROGRAM_PARTS);
    op->linear = *linear;
    op->n_parts = n_parts;
    add_input(p, op, x);
    for (int i = 0; i < n_parts; i++) {
        const uint32_t in = p->values[x].columns, out = parts[i].columns;
        op->part_columns[i] = out;
        columns += out;
        add_tensor(p, op, parts[i].stem, "weight",
                   (struct program_tensor){.rows = linear->out_in ? out : in,
                                           .columns = linear->out_in ? in : out,
                                           .init = MODEL_INIT_NORMAL,
                                           .deviation = linear->deviation});
    }
    for (int i = 0; i < n_parts && linear->bias; i++)
        add_tensor(p, op, parts[i].stem, "bias",
                   (struct program_tensor){.rows = parts[i].columns, .init = MODEL_INIT_ZERO});
    return add_output(p, op, PROGRAM_VALUE, columns);
}

int program_linear(struct program *p, int x, const char *stem, uint32_t columns,
                   const struct program_linear_options *linear)
{
    return program_linears(p, x, &(struct program_part){stem, columns}, 1, linear);
}

int program_head_norm(struct program *p, int qkv, const char *query, const char *key,
                      const struct program_head_norm_options *head_norm)
{
    const uint32_t columns = p->values[qkv].columns, n_normed = head_norm->n_heads + head_norm->n_kv_heads;
    const struct program_tensor weight = {.rows = head_norm->head_width,
                                          .init = head_norm->offset ? MODEL_INIT_ZERO : MODEL_INIT_ONE};
    struct program_operation *op = add_operation(p, PROGRAM_HEAD_NORM);

    assert((n_normed + head_norm->n_kv_heads) * head_norm->head_width == columns);
    op->head_norm = *head_norm;
    add_input(p, op, qkv);
    const int y = add_output(p, op, PROGRAM_VALUE, columns);
    add_output(p, op, PROGRAM_STATISTIC, 2 * n_normed);
    add_tensor(p, op, query, "weight", weight);
    add_tensor(p, op, key, "weight", weight);
    return y;
}

int program_rope(struct program *p, int x, const struct program_rope_options *rope)
{
    struct program_operation *op = add_operation(p, PROGRAM_ROPE);
    const uint32_t n = rope->n_rotated ? rope->n_rotated : rope->head_width;

    assert(n % 2 == 0 && n <= rope->head_width && n <= PROGRAM_MAX_ROTATED &&
           rope->n_heads * rope->head_width <= p->values[x].columns);
    for (uint32_t j = 0; j < n / 2; j++)
        p->frequencies[j] = rope->frequencies ? rope->frequencies[j] : pow(rope->base, -2.0 * j / n);
    op->rope = *rope;
    op->rope.n_rotated = n;
    op->rope.frequencies = NULL; /* the program's count */
    add_input(p, op, x);
    return add_output(p, op, PROGRAM_VALUE, p->values[x].columns);
}

int program_attention(struct program *p, int qkv, const struct program_attention_options *attention)
{
    const uint32_t n_kv_heads = attention->n_kv_heads ? attention->n_kv_heads : attention->n_heads;
    const uint32_t n_heads = attention->n_heads, head_width = p->values[qkv].columns / (n_heads + 2 * n_kv_heads);
    struct program_operation *op = add_operation(p, PROGRAM_ATTENTION);

    assert(p->values[qkv].columns % (n_heads + 2 * n_kv_heads) == 0 && n_heads % n_kv_heads == 0);
    assert(!attention->full || attention->window == 0);
    op->attention = *attention;
    op->attention.n_kv_heads = n_kv_heads;
    add_input(p, op, qkv);
    const int a = add_output(p, op, PROGRAM_VALUE, n_heads * head_width);
    add_output(p, op, PROGRAM_STATISTIC, n_heads);
    return a;
}

int program_activation(struct program *p, int x, enum model_activation activation)
{
    struct program_operation *op = add_operation(p, PROGRAM_ACTIVATION);

    op->activation = activation;
    add_input(p, op, x);
    return add_output(p, op, PROGRAM_VALUE, p->values[x].columns);
}

int program_glu(struct program *p, int x, enum model_activation activation)
{
    struct program_operation *op = add_operation(p, PROGRAM_GLU);

    assert(p->values[x].columns % 2 == 0);
    op->activation = activation;
    add_input(p, op, x);
    return add_output(p, op, PROGRAM_VALUE, p->values[x].columns / 2);
}

int program_add(struct program *p, int x, int h, const struct program_dropout *dropout)
{
    struct program_operation *op = add_operation(p, PROGRAM_ADD);

    assert(p->values[x].columns == p->values[h].columns);
    op->dropout = *dropout;
    add_input(p, op, x);
    add_input(p, op, h);
    return add_output(p, op, PROGRAM_VALUE, p->values[x].columns);
}

int program_drop(struct program *p, int x, const struct program_dropout *dropout)
{
    if (dropout->p == 0)
        return x;
    struct program_operation *op = add_operation(p, PROGRAM_DROPOUT);
    op->dropout = *dropout;
    add_input(p, op, x);
    return add_output(p, op, PROGRAM_VALUE, p->values[x].columns);
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
           memcmp(a->outputs, b->outputs, sizeof a->outputs) == 0 &&
           memcmp(a->part_columns, b->part_columns, sizeof a->part_columns) == 0;
}

bool program_is_alike(const struct program *a, const struct program *b)
{
    bool alike = a->n_operations == b->n_operations && a->n_values == b->n_values && a->n_tensors == b->n_tensors &&
                 a->output == b->output;

    for (int i = 0; alike && i < a->n_operations; i++)
        alike = is_alike(&a->operations[i], &b->operations[i]);
    for (int i = 0; alike && i < a->n_values; i++)
        alike = a->values[i].type == b->values[i].type && a->values[i].columns == b->values[i].columns;
    for (int i = 0; alike && i < a->n_tensors; i++)
        alike = strcmp(a->tensors[i].name, b->tensors[i].name) == 0 && a->tensors[i].rows == b->tensors[i].rows &&
                a->tensors[i].columns == b->tensors[i].columns;
    return alike;
}

const struct program_operation *program_find(const struct program *p, enum program_kind kind)
{
    for (const struct program_operation *op = p->operations; op < p->operations + p->n_operations; op++)
        if (op->kind == kind)
            return op;
    return NULL;
}

uint32_t program_kv_columns(const struct program *p, const struct program_operation *attention)
{
    return (p->values[attention->inputs[0]].columns - p->values[attention->outputs[0]].columns) / 2;
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
        read |= pick(op->inputs, op->n_inputs, program_rules[op->kind].reads_inputs) |
                pick(op->outputs, op->n_outputs, program_rules[op->kind].reads_outputs);
    return read;
}

uint64_t program_keepable(const struct program *p)
{
    uint64_t keepable = program_read_backward(p) & ~(UINT64_C(1) << p->input | UINT64_C(1) << p->output);

    for (int value = 0; value < p->n_values; value++)
        if (p->values[value].operation >= 0 && program_rules[p->operations[p->values[value].operation].kind].cheap)
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
