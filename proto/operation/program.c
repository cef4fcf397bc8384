/* What backward reads and keeps is asked, not stored, as it depends on what options have set so far, in this order:
 * program_sample and program_pool, then program_compress. The last holds results of relus that are sampled or
 * compressed, and a held value is not cheap, so it can be kept, and have bits. */
#include "proto/operation/operation.h"
#include "proto/operation/program_internal.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static int program_add_value(struct program *p, struct program_value value)
{
    assert(p->n_values < PROGRAM_VALUES && value.columns > 0 && value.domain < PROGRAM_DOMAINS);
    p->values[p->n_values] = value;
    return p->n_values++;
}

/* Tensors of an operation follow each other, so an operation is complete before the next one is appended. */
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

int program_add_output_in(struct program *p, struct program_operation *op, enum program_type type, uint32_t domain,
                          uint32_t columns)
{
    assert(op->n_outputs < PROGRAM_OUTPUTS);
    return op->outputs[op->n_outputs++] =
               program_add_value(p, (struct program_value){type, domain, columns, p->n_operations - 1, 0});
}

int program_add_output(struct program *p, struct program_operation *op, enum program_type type, uint32_t columns)
{
    return program_add_output_in(p, op, type, p->values[op->inputs[0]].domain, columns);
}

void program_add_named_tensor(struct program *p, struct program_operation *op, const char *name,
                              struct program_tensor tensor)
{
    const int n = snprintf(tensor.name, sizeof tensor.name, "%s", name);
    const char *const dot = strrchr(name, '.');

    assert(p->n_tensors < PROGRAM_TENSORS && (size_t)n < sizeof tensor.name && dot > name && dot[1]);
    p->tensors[p->n_tensors++] = tensor;
    op->n_tensors++;
}

void program_add_tensor(struct program *p, struct program_operation *op, const char *stem, const char *which,
                        struct program_tensor tensor)
{
    char name[2 * PROGRAM_NAME_BYTES];

    snprintf(name, sizeof name, "%s.%s", stem, which);
    program_add_named_tensor(p, op, name, tensor);
}

void program_add_number(struct program *p, double number)
{
    assert(p->n_numbers < PROGRAM_NUMBERS);
    p->numbers[p->n_numbers++] = number;
}

void program_init(struct program *p)
{
    *p = (struct program){.logit_bias = -1};
}

static void program_add_boundary(struct program_boundary *boundaries, int *n, const char *name, int value, bool adds)
{
    struct program_boundary *boundary = &boundaries[(*n)++];

    assert(*n <= PROGRAM_BOUNDARIES && strlen(name) < sizeof boundary->name);
    *boundary = (struct program_boundary){.value = value, .adds = adds};
    memcpy(boundary->name, name, strlen(name));
}

/* One sum of a part, or of a row, is as good as its precision. */
static enum program_type type_in(uint32_t domain)
{
    return domain == PROGRAM_ROW || domain == PROGRAM_PART ? PROGRAM_STATISTIC : PROGRAM_VALUE;
}

int program_input(struct program *p, const char *name, uint32_t domain, uint32_t columns)
{
    assert(p->n_operations == 0);
    const int value = program_add_value(p, (struct program_value){type_in(domain), domain, columns, -1, 0});

    program_add_boundary(p->inputs, &p->n_inputs, name, value, false);
    return value;
}

int program_begin(struct program *p, uint32_t columns)
{
    program_init(p);
    return program_input(p, "", PROGRAM_TOKENS, columns);
}

static void program_leave(struct program *p, const char *name, int y, bool adds)
{
    assert(p->values[y].operation >= 0 && p->values[y].type == type_in(p->values[y].domain));
    assert(program_output_of(p, y) < 0);
    program_add_boundary(p->outputs, &p->n_outputs, name, y, adds);
}

void program_output(struct program *p, const char *name, int y)
{
    program_leave(p, name, y, false);
}

void program_add_to(struct program *p, const char *name, int y)
{
    assert(p->values[y].type == PROGRAM_VALUE);
    program_leave(p, name, y, true);
}

void program_end(struct program *p, int y)
{
    assert(p->values[y].columns == p->values[p->inputs[0].value].columns);
    program_output(p, "", y);
}

void program_logit_bias(struct program *p, const char *name, uint32_t n_outputs)
{
    assert(p->logit_bias < 0);
    p->logit_bias = p->n_tensors;
    program_output(p, PROGRAM_LOGIT_BIAS, program_parameter(p, name, n_outputs));
}

static int program_find_value(const struct program_boundary *boundaries, int n, int value)
{
    for (int i = 0; i < n; i++)
        if (boundaries[i].value == value)
            return i;
    return -1;
}

int program_input_of(const struct program *p, int value)
{
    return program_find_value(p->inputs, p->n_inputs, value);
}

int program_output_of(const struct program *p, int value)
{
    return program_find_value(p->outputs, p->n_outputs, value);
}

bool program_passes_gradient(const struct program *p)
{
    if (p->n_inputs == 0 || p->n_outputs == 0 || p->outputs[0].adds)
        return false;
    const struct program_value *x = &p->values[p->inputs[0].value], *y = &p->values[p->outputs[0].value];
    return x->type == PROGRAM_VALUE && x->type == y->type && x->domain == y->domain && x->columns == y->columns;
}

static bool is_alike(const struct program_operation *a, const struct program_operation *b)
{
    return a->kind == b->kind && a->n_tensors == b->n_tensors && a->n_inputs == b->n_inputs &&
           memcmp(a->inputs, b->inputs, sizeof a->inputs) == 0 &&
           memcmp(a->outputs, b->outputs, sizeof a->outputs) == 0;
}

bool program_is_alike(const struct program *a, const struct program *b)
{
    bool alike = a->n_operations == b->n_operations && a->n_values == b->n_values && a->n_inputs == b->n_inputs &&
                 a->n_outputs == b->n_outputs && a->held == b->held;

    for (int i = 0; alike && i < a->n_operations; i++)
        alike = is_alike(&a->operations[i], &b->operations[i]);
    for (int i = 0; alike && i < a->n_values; i++)
        alike = a->values[i].type == b->values[i].type && a->values[i].bits == b->values[i].bits &&
                a->values[i].domain == b->values[i].domain && a->values[i].columns == b->values[i].columns;
    for (int i = 0; alike && i < a->n_outputs; i++)
        alike = a->outputs[i].value == b->outputs[i].value && a->outputs[i].adds == b->outputs[i].adds;
    return alike;
}

const struct program_operation *program_find(const struct program *p, const struct operation *kind)
{
    for (const struct program_operation *op = p->operations; op < p->operations + p->n_operations; op++)
        if (op->kind == kind)
            return op;
    return NULL;
}

const struct program_operation *program_find_mixing(const struct program *p)
{
    for (const struct program_operation *op = p->operations; op < p->operations + p->n_operations; op++)
        if (op->kind->mixes_tokens)
            return op;
    return NULL;
}

bool program_is_of_source(const struct program *p)
{
    bool source = false, target = false;

    for (const struct program_operation *op = p->operations; op < p->operations + p->n_operations; op++) {
        const uint32_t domain = p->values[op->outputs[0]].domain;
        source = source || domain == PROGRAM_SOURCE;
        target = target || domain == PROGRAM_TARGET;
    }
    return source && !target;
}

int program_source_read(const struct program *p)
{
    const struct program_operation *op = program_find(p, &operation_cross_attention);

    return op ? op->inputs[1] : -1;
}

int program_count_readers(const struct program *p, int value)
{
    int n = program_output_of(p, value) >= 0;

    for (int i = 0; i < p->n_operations; i++)
        for (int k = 0; k < p->operations[i].n_inputs; k++)
            n += p->operations[i].inputs[k] == value;
    return n;
}

static uint64_t program_pick(const int *values, int n, uint8_t set)
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
        read |= program_pick(op->inputs, op->n_inputs, operation_reads(op)) |
                program_pick(op->outputs, op->n_outputs, op->kind->reads_outputs);
    return read;
}

/* Behind a value are the inputs that lead to it; none, if it is at hand in backward. */
uint32_t program_inputs_read(const struct program *p)
{
    const uint64_t read = program_read_backward(p);
    uint32_t behind[PROGRAM_VALUES] = {0}, inputs = 0;

    for (int value = 0; value < p->n_values; value++) {
        const int operation = p->values[value].operation;
        if (operation < 0)
            behind[value] = UINT32_C(1) << program_input_of(p, value);
        for (int i = 0; operation >= 0 && !program_is_at_hand(p, value) && i < p->operations[operation].n_inputs; i++)
            behind[value] |= behind[p->operations[operation].inputs[i]];
        inputs |= read >> value & 1 ? behind[value] : 0;
    }
    return inputs;
}

bool program_is_at_hand(const struct program *p, int value)
{
    const int output = program_output_of(p, value);
    bool has_moments = false;

    for (const struct program_operation *op = p->operations; output >= 0 && op < p->operations + p->n_operations; op++)
        has_moments |= op->kind == &operation_row_moments && op->inputs[0] == value;
    return output >= 0 && (p->values[value].type == PROGRAM_STATISTIC || (has_moments && !p->outputs[output].adds));
}

bool program_is_cheap(const struct program *p, int value)
{
    const int operation = p->values[value].operation;

    return operation >= 0 && p->operations[operation].kind->cheap && !(p->held >> value & 1);
}

static bool is_light(const struct program_operation *op)
{
    if (op->kind == &operation_add)
        return op->add.p == 0 && op->add.survival == 0;
    return op->kind == &operation_batch_norm || op->kind == &operation_activation || op->kind == &operation_max_pool;
}

bool program_is_light(const struct program *p)
{
    for (const struct program_operation *op = p->operations; op < p->operations + p->n_operations; op++)
        if (!is_light(op))
            return false;
    return p->n_operations > 0;
}

uint64_t program_keepable(const struct program *p)
{
    uint64_t keepable = program_read_backward(p);

    for (int i = 0; i < p->n_inputs; i++)
        keepable &= ~(UINT64_C(1) << p->inputs[i].value);
    for (int i = 0; i < p->n_outputs; i++)
        keepable &= ~(UINT64_C(1) << p->outputs[i].value);
    for (int value = 0; value < p->n_values; value++)
        if (program_is_cheap(p, value))
            keepable &= ~(UINT64_C(1) << value);
    return keepable;
}

/* True of a value with an element for each token of a row, or of one side of it. */
static bool is_long(const struct program *p, int value)
{
    return p->values[value].domain == PROGRAM_TOKENS || p->values[value].domain >= PROGRAM_OWN;
}

/* The relu that made a value, with or without a dropout behind it, each the only reader of what it reads; or NULL. */
static const struct program_operation *relu_behind(const struct program *p, int value)
{
    const int maker = p->values[value].operation;
    const struct program_operation *op = maker >= 0 && is_long(p, value) ? &p->operations[maker] : NULL;

    while (op && op->kind == &operation_dropout && program_count_readers(p, op->inputs[0]) == 1)
        op = p->values[op->inputs[0]].operation >= 0 ? &p->operations[p->values[op->inputs[0]].operation] : NULL;
    return op && op->kind == &operation_activation && op->activation.function == MODEL_RELU &&
                   program_count_readers(p, op->inputs[0]) == 1
               ? op
               : NULL;
}

/* True if backward makes nothing of the value again: linear maps and adapters alone read it. */
static bool ends_at_maps(const struct program *p, int value)
{
    bool ends = program_output_of(p, value) < 0;

    for (const struct program_operation *op = p->operations; op < p->operations + p->n_operations; op++)
        if (program_pick(op->inputs, op->n_inputs, UINT8_MAX) >> value & 1)
            ends = ends && (op->kind == &operation_linear || op->kind == &operation_adapter);
    return ends;
}

/* The input of a frozen map is not read backward, so there is nothing to sample. */
void program_sample(struct program *p)
{
    for (struct program_operation *op = p->operations; op < p->operations + p->n_operations; op++)
        if (op->kind == &operation_linear)
            op->linear.sampled =
                !op->frozen && program_count_readers(p, op->inputs[0]) == 1 && relu_behind(p, op->inputs[0]);
}

bool program_samples(const struct program_operation *op)
{
    return op->kind == &operation_linear && op->linear.sampled;
}

bool program_pools(const struct program_operation *op)
{
    return op->kind == &operation_conv2d && op->conv2d.pooled > 0;
}

/* True of pixels that are no boundary's, are cheap to make, so that layers do not keep them, and that convolutions
 * alone read. */
static bool ends_at_convolutions(const struct program *p, int value)
{
    bool ends = p->values[value].domain >= PROGRAM_OWN && program_is_cheap(p, value) && program_output_of(p, value) < 0;

    for (const struct program_operation *op = p->operations; op < p->operations + p->n_operations; op++)
        if (program_pick(op->inputs, op->n_inputs, UINT8_MAX) >> value & 1)
            ends = ends && op->kind == &operation_conv2d;
    return ends;
}

/* True for a trained convolution whose input can be read as means. */
static bool can_pool(const struct program *p, const struct program_operation *op)
{
    return op->kind == &operation_conv2d && !op->frozen && ends_at_convolutions(p, op->inputs[0]);
}

bool program_can_pool(const struct program *p)
{
    bool can = false;

    for (const struct program_operation *op = p->operations; op < p->operations + p->n_operations; op++)
        can = can || can_pool(p, op);
    return can;
}

void program_pool(struct program *p, uint32_t side)
{
    for (struct program_operation *op = p->operations; op < p->operations + p->n_operations; op++)
        if (op->kind == &operation_conv2d)
            op->conv2d.pooled = side > 1 && can_pool(p, op) ? side : 0;
}

uint64_t program_pooled_bytes(const struct program *p, int value, uint32_t n_rows, size_t element_bytes)
{
    const struct program_value *v = &p->values[value];
    const uint32_t side = p->operations[program_sampler(p, value)].conv2d.pooled;

    assert(v->domain >= PROGRAM_OWN && side > 0);
    const struct program_own *own = &p->own[v->domain - PROGRAM_OWN];
    return n_rows * device_blocks(own->height, side) * device_blocks(own->width, side) * v->columns * element_bytes;
}

int program_sampler(const struct program *p, int value)
{
    for (int i = 0; i < p->n_operations; i++)
        if ((program_samples(&p->operations[i]) || program_pools(&p->operations[i])) &&
            p->operations[i].inputs[0] == value)
            return i;
    return -1;
}

/* True of an output that the program itself does not read. */
static bool is_output_alone(const struct program *p, int value)
{
    return program_output_of(p, value) >= 0 && program_count_readers(p, value) == 1;
}

/* Finds the relus of whose operands backward needs the signs alone: it does not need their results, as of a layer's
 * last value, or the results are held. Returns the operands. */
static uint64_t find_signs(struct program *p, bool changes)
{
    const uint64_t read = program_read_backward(p);
    uint64_t signs = 0;

    p->held = 0;
    for (int value = 0; value < p->n_values; value++) {
        const struct program_operation *relu =
            ends_at_maps(p, value) || is_output_alone(p, value) ? relu_behind(p, value) : NULL;
        const bool is_read = read >> value & 1, holds = is_read && (changes || program_sampler(p, value) >= 0);
        p->held |= (uint64_t)(relu && holds) << value;
        signs |= (uint64_t)(relu && (holds || !is_read)) << (relu ? relu->inputs[0] : 0);
    }
    return signs;
}

/* The fewest bits, of `bits` or more, that all bear that read a value in backward, to make a cheap value again, too. */
static unsigned program_bits_of(const struct program *p, int value, unsigned bits)
{
    for (const struct program_operation *op = p->operations; op < p->operations + p->n_operations; op++) {
        const uint8_t inputs = op->kind->cheap ? UINT8_MAX : operation_reads(op);
        const uint64_t read = program_pick(op->inputs, op->n_inputs, inputs) |
                              program_pick(op->outputs, op->n_outputs, op->kind->reads_outputs);
        if (read >> value & 1 && !op->kind->bears_4_bits)
            return 8;
    }
    return bits;
}

/* True if backward reads an output that is dear: it would be made again from compressed values, and so be another. */
static bool reads_output(const struct program *p)
{
    const uint64_t read = program_read_backward(p);
    bool any = false;

    for (int i = 0; i < p->n_outputs; i++) {
        const struct program_value *v = &p->values[p->outputs[i].value];
        any |= read >> p->outputs[i].value & 1 && v->type == PROGRAM_VALUE && v->operation >= 0 &&
               !p->operations[v->operation].kind->cheap;
    }
    return any;
}

void program_compress(struct program *p, unsigned bits)
{
    const unsigned least = reads_output(p) ? 0 : bits;
    const uint64_t signs = find_signs(p, least > 0), keepable = least > 0 ? program_keepable(p) : 0;

    for (int value = 0; value < p->n_values; value++) {
        struct program_value *v = &p->values[value];
        const bool fits = keepable >> value & 1 && v->type == PROGRAM_VALUE && is_long(p, value);
        v->bits = signs >> value & 1 ? 1 : fits ? program_bits_of(p, value, least) : 0;
    }
}

bool program_is_rounded(const struct program *p, int value)
{
    return p->values[value].bits > 1 && program_sampler(p, value) < 0;
}

bool program_is_compressed(const struct program *p)
{
    bool any = false;

    for (int value = 0; value < p->n_values; value++)
        any |= program_is_rounded(p, value);
    return any;
}

int program_kept_groups(const struct program *p, uint64_t values[PROGRAM_KEPT_GROUPS],
                        int operations[PROGRAM_KEPT_GROUPS])
{
    const int most = program_is_compressed(p) ? 1 : PROGRAM_KEPT_GROUPS;
    const uint64_t keepable = program_keepable(p);
    int n = 0, last = -1;

    for (int value = 0; value < p->n_values; value++) {
        const int operation = p->values[value].operation;
        if (!(keepable >> value & 1))
            continue;
        if (operation != last && n < most && program_sampler(p, value) < 0) {
            values[n] = 0;
            operations[n++] = operation;
        }
        values[n - 1] |= UINT64_C(1) << value;
        last = operation;
    }
    return n;
}
