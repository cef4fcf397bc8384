/* Backward has one scratch for two products of rank columns, and one for two values as wide as x. So B's gradient is
 * taken before `ascend` writes over x A^T, and A's before `return_gradient` writes over what dropout left of x. */
#include "proto/operation/kind/adapter.h"

#include "proto/operation/operation.h"
#include "proto/operation/program_internal.h"
#include "proto/operation/schedule_internal.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- the program ---- */

/* The place of a name of n characters in a list, "a,b"; -1: it has none. */
static int list_find(const char *list, const char *name, size_t n)
{
    size_t length;

    for (int i = 0; *list; list += length + (list[length] == ','), i++) {
        length = strcspn(list, ",");
        if (length == n && strncmp(list, name, n) == 0)
            return i;
    }
    return -1;
}

bool program_adapter_lists(const char *list, const char *name, size_t n)
{
    return list_find(list, name, n) >= 0;
}

/* A name holds if it is any part of the tensor's name between dots, as PEFT matches modules. */
bool program_adapter_holds(const char *list, const char *tensor)
{
    for (const char *from = tensor; from; from = strchr(from, '.') ? strchr(from, '.') + 1 : NULL)
        for (const char *dot = strchr(from, '.'); dot; dot = strchr(dot + 1, '.'))
            if (program_adapter_lists(list, from, (size_t)(dot - from)))
                return true;
    return false;
}

const char *program_adapted_name(char out[PROGRAM_ADAPTED_BYTES], const char *name, size_t n)
{
    static const char sparse[] = "block_sparse_moe.";
    const char *const at = strstr(name, sparse);
    const size_t before = at && at < name + n ? (size_t)(at - name) : n;

    if (before == n)
        snprintf(out, PROGRAM_ADAPTED_BYTES, "%.*s", (int)n, name);
    else
        snprintf(out, PROGRAM_ADAPTED_BYTES, "%.*smlp.%.*s", (int)before, name, (int)(n - before - strlen(sparse)),
                 at + strlen(sparse));
    return out;
}

/* "self_attn.q_proj" of the tensor "self_attn.q_proj.weight". */
static size_t stem_length(const struct program_tensor *weight)
{
    return (size_t)(strrchr(weight->name, '.') - weight->name);
}

/* Adds A and B. A is drawn as torch.nn.Linear's weight is, by Kaiming's uniform distribution with a = sqrt(5): all
 * deviations up to 1 / sqrt(in). B begins with zeros, so that the model is at first the base. */
static void add_map(struct program *p, struct program_operation *op, const struct program_tensor *weight, uint32_t in,
                    uint32_t first, uint32_t out, struct program_adapter_map how)
{
    struct program_adapter_options *options = &op->adapter;
    const uint32_t rank = how.rank;
    char stem[PROGRAM_ADAPTED_BYTES];

    program_adapted_name(stem, weight->name, stem_length(weight));
    options->rank = options->rank < rank ? rank : options->rank;
    options->maps[options->n_maps].first = first;
    options->maps[options->n_maps].columns = out;
    options->maps[options->n_maps].rank = rank;
    options->maps[options->n_maps++].factor = how.factor;
    program_add_tensor(p, op, stem, "lora_A.weight",
                       (struct program_tensor){.rows = rank,
                                               .columns = in,
                                               .init = MODEL_INIT_UNIFORM,
                                               .deviation = (float)(1 / sqrt(in)),
                                               .adapts = true});
    program_add_tensor(p, op, stem, "lora_B.weight",
                       (struct program_tensor){.rows = out, .columns = rank, .init = MODEL_INIT_ZERO, .adapts = true});
}

static struct program_adapter_map find_named(const struct program_adaptation *how, const char *name)
{
    const int i = list_find(how->modules, name, strlen(name));

    return i < 0 ? (struct program_adapter_map){0} : how->maps ? how->maps[i] : how->all;
}

/* How the map of this weight is adapted. */
static struct program_adapter_map find_map(const struct program_adaptation *how, const struct program_tensor *weight)
{
    char name[PROGRAM_ADAPTED_BYTES];

    if (program_adapter_holds(how->trained, weight->name))
        return (struct program_adapter_map){0};
    return find_named(how, program_adapted_name(name, weight->name, stem_length(weight)));
}

/* Adds the adapters of experts that were just added. */
static void adapt_experts(struct program *p, struct program_operation *op, const struct program_adaptation *how)
{
    char gate_up[PROGRAM_ADAPTED_BYTES], down[PROGRAM_ADAPTED_BYTES];

    program_experts_adapt(p, op, find_named(how, program_experts_name(gate_up, p, op, false)),
                          find_named(how, program_experts_name(down, p, op, true)));
}

/* Adds the adapter of a linear operation that was just added, and whose tensors they are; returns its result. */
static int adapter_adapt(struct program *p, const struct program_operation *linear,
                         const struct program_adaptation *how)
{
    const int x = linear->inputs[0], y = linear->outputs[0];
    const struct program_linear_maps maps = linear->linear;
    const int weights = linear->tensor;
    struct program_operation *op = program_append(p, &operation_adapter);

    op->adapter = (struct program_adapter_options){.dropout = how->dropout};
    program_add_input(p, op, y);
    program_add_input(p, op, x);
    for (uint32_t i = 0, first = 0; i < (uint32_t)maps.n_parts; first += maps.columns[i++]) {
        const struct program_adapter_map map = find_map(how, &p->tensors[weights + (int)i]);
        if (map.rank > 0)
            add_map(p, op, &p->tensors[weights + (int)i], p->values[x].columns, first, maps.columns[i], map);
    }
    return program_add_output(p, op, PROGRAM_VALUE, p->values[y].columns);
}

static bool adapts_any(const struct program *p, const struct program_operation *op,
                       const struct program_adaptation *how)
{
    bool any = false;

    for (int i = 0; op->kind == &operation_linear && i < op->linear.n_parts; i++)
        any |= find_map(how, &p->tensors[op->tensor + i]).rank > 0;
    return any;
}

static bool is_trained(const struct program *p, const struct program_operation *op,
                       const struct program_adaptation *how)
{
    bool any = false;

    for (int i = 0; i < op->n_tensors; i++)
        any |= program_adapter_holds(how->trained, p->tensors[op->tensor + i].name);
    return any;
}

/* Adds an operation of another program. values: the new index of each of its values, which is extended. */
static struct program_operation *adapter_copy(struct program *p, int values[PROGRAM_VALUES], const struct program *from,
                                              const struct program_operation *source)
{
    struct program_operation *op = program_append(p, source->kind);

    *op = *source;
    op->n_inputs = op->n_outputs = op->n_tensors = 0;
    op->tensor = p->n_tensors;
    for (int i = 0; i < source->n_inputs; i++)
        program_add_input(p, op, values[source->inputs[i]]);
    for (int i = 0; i < source->n_outputs; i++) {
        const struct program_value *value = &from->values[source->outputs[i]];
        values[source->outputs[i]] = program_add_output_in(p, op, value->type, value->domain, value->columns);
    }
    for (int i = 0; i < source->n_tensors; i++) {
        const struct program_tensor *tensor = &from->tensors[source->tensor + i];
        if (source->tensor + i == from->logit_bias)
            p->logit_bias = p->n_tensors;
        program_add_named_tensor(p, op, tensor->name, *tensor);
    }
    return op;
}

/* The program is written anew: operations behind an adapter read its result, so their values' numbers change. */
void program_adapt(struct program *p, const struct program_adaptation *how)
{
    const struct program from = *p;
    int values[PROGRAM_VALUES];

    program_init(p);
    memcpy(p->own, from.own, sizeof p->own);
    memcpy(p->numbers, from.numbers, sizeof p->numbers);
    p->n_numbers = from.n_numbers;
    for (int i = 0; i < from.n_inputs; i++) {
        const struct program_value *value = &from.values[from.inputs[i].value];
        values[from.inputs[i].value] = program_input(p, from.inputs[i].name, value->domain, value->columns);
    }
    for (const struct program_operation *source = from.operations; source < from.operations + from.n_operations;
         source++) {
        struct program_operation *op = adapter_copy(p, values, &from, source);
        op->frozen = op->n_tensors > 0 && !is_trained(p, op, how);
        if (op->kind == &operation_experts && op->frozen)
            adapt_experts(p, op, how);
        if (adapts_any(p, op, how))
            values[source->outputs[0]] = adapter_adapt(p, op, how);
    }
    for (int i = 0; i < from.n_outputs; i++)
        (from.outputs[i].adds ? program_add_to : program_output)(p, from.outputs[i].name,
                                                                 values[from.outputs[i].value]);
}

/* ---- the derivative ---- */

/* Rounded up so that `wide` begins where vectors do. */
static uint64_t scratch_elements(const struct program *p, const struct program_operation *op, uint64_t n)
{
    const uint64_t low = n * op->adapter.rank,
                   wide = op->adapter.dropout > 0 ? n * p->values[op->inputs[1]].columns : 0;

    return (low + 31) / 32 * 32 + wide;
}

/* What precedes a sample's in scratch. */
static uint64_t own_bytes(const struct program *p, const struct program_operation *op, enum number_type type,
                          uint64_t n)
{
    return (scratch_elements(p, op, n) * number_bytes(type) + 63) / 64 * 64;
}

/* Shape of the sampled product of x and the gradient of a map's h, of this rank. */
static struct sampling_shape adapter_sampled_shape(const struct program *p, const struct program_operation *op,
                                                   uint32_t rank, size_t n_rows, size_t n_tokens)
{
    return (struct sampling_shape){.n_rows = n_rows,
                                   .n_tokens = n_tokens,
                                   .x_columns = p->values[op->inputs[1]].columns,
                                   .dy_columns = rank};
}

/* A sample's scratch is of the largest rank, as maps take turns in it. */
static uint64_t adapter_scratch(const struct program *p, const struct program_operation *op,
                                const struct operation_setting *setting)
{
    const uint64_t n = program_elements(p, op->inputs[1], setting->n_rows, setting->n_tokens);
    const struct sampling_shape shape =
        adapter_sampled_shape(p, op, op->adapter.rank, setting->n_rows,
                              program_row_elements(p, op->inputs[1], setting->n_tokens));

    return own_bytes(p, op, setting->type, n) + sampling_bytes(&setting->sampling, &shape, setting->type);
}

/* One step for all gradients; y' passes its own on to y. */
static void adapter_differentiate(struct schedule_builder *b, int operation)
{
    const struct program_operation *op = &b->program->operations[operation];

    schedule_ensure(b, op->inputs[1]);
    struct schedule_step *step = schedule_begin_step(b, SCHEDULE_BACKWARD, operation);
    step->contributes = true;
    step->inputs[1] = schedule_read(b, op->inputs[1]);
    step->y_gradient = schedule_read_gradient(b, op->outputs[0]);
    schedule_write_gradient(b, step, 1);
    schedule_end_step(b);
    schedule_pass_gradient(b, op->outputs[0], op->inputs[0]);
}

/* ---- running ---- */

/* One adapted map in a step. */
struct map {
    const struct operation_run *r;
    const struct program_operation *op;
    size_t m, in, out, width, rank; /* rows; columns of x, of the map, of y, of h */
    size_t first;                   /* column of y */
    float factor;
    const void *x;
    const void *a, *b;
    float *a_gradient, *b_gradient; /* NULL: frozen */
    void *low;                      /* (m, rank) scratch */
    void *wide;                     /* (m, in) scratch, if x is dropped */
    void *sample;                   /* scratch of sampling_choose */
    int tensor;                     /* A */
    struct program_dropout dropout;
};

static struct map map_of(const struct operation_run *r, const struct schedule_step *step, int i)
{
    const struct program_operation *op = operation_of(r, step);
    const struct program_adapter_options *how = &op->adapter;
    const int tensor = op->tensor + 2 * i;
    struct map map = {.r = r,
                      .op = op,
                      .m = operation_elements(r, op->inputs[1]),
                      .in = operation_columns(r, op->inputs[1]),
                      .out = how->maps[i].columns,
                      .width = operation_columns(r, op->outputs[0]),
                      .rank = how->maps[i].rank,
                      .factor = how->maps[i].factor,
                      .first = how->maps[i].first,
                      .x = r->at[step->inputs[1]],
                      .a = r->weights[tensor],
                      .b = r->weights[tensor + 1],
                      .a_gradient = r->gradients[tensor],
                      .b_gradient = r->gradients[tensor + 1],
                      .low = r->at[step->scratch],
                      .tensor = tensor,
                      .dropout = {.p = how->dropout, .site = RANDOM_DROPOUT_ADAPTER + (enum random_site)tensor}};

    map.wide = operation_element(r, map.low, (map.m * how->rank + 31) / 32 * 32);
    map.sample = (char *)map.low + own_bytes(r->program, op, r->type, map.m);
    return map;
}

static bool drops(const struct map *map)
{
    return map->r->drops && map->dropout.p > 0;
}

/* x, or in `wide` what dropout leaves of it. */
static const void *adapter_drop(const struct map *map)
{
    if (!drops(map))
        return map->x;
    operation_drop_add(map->r, &map->dropout, map->op->inputs[1], map->wide, NULL, map->x);
    return map->wide;
}

/* low = factor * x A^T */
static void adapter_descend(const struct map *map, const void *x)
{
    map->r->ops->matmul(map->r->dev, &(struct device_matmul){.transpose_b = true,
                                                             .m = map->m,
                                                             .n = map->rank,
                                                             .k = map->in,
                                                             .a = x,
                                                             .a_stride = map->in,
                                                             .b = map->a,
                                                             .b_stride = map->in,
                                                             .c = map->low,
                                                             .c_stride = map->rank,
                                                             .factor = map->factor});
}

/* y' += low B^T */
static void adapter_run_forward(const struct map *map, void *y)
{
    adapter_descend(map, adapter_drop(map));
    map->r->ops->matmul(map->r->dev, &(struct device_matmul){.transpose_b = true,
                                                             .m = map->m,
                                                             .n = map->out,
                                                             .k = map->rank,
                                                             .a = map->low,
                                                             .a_stride = map->rank,
                                                             .b = map->b,
                                                             .b_stride = map->rank,
                                                             .c = operation_element(map->r, y, map->first),
                                                             .c_stride = map->width,
                                                             .beta = 1});
}

/* B's gradient += dy^T low, over all rows. */
static void contribute_b(const struct map *map, const void *dy)
{
    if (map->b_gradient)
        map->r->ops->matmul(map->r->dev, &(struct device_matmul){.transpose_a = true,
                                                                 .m = map->out,
                                                                 .n = map->rank,
                                                                 .k = map->m,
                                                                 .a = dy,
                                                                 .a_stride = map->width,
                                                                 .b = map->low,
                                                                 .b_stride = map->rank,
                                                                 .c = map->b_gradient,
                                                                 .c_stride = map->rank,
                                                                 .wide = true,
                                                                 .over_rows = true,
                                                                 .beta = map->r->fresh ? 0 : 1});
}

/* A's gradient += low^T x, over all rows or a sample. */
static void contribute_a(const struct map *map, const void *x)
{
    const size_t n_tokens = operation_row_elements(map->r, map->op->inputs[1]);
    const struct sampling_shape shape =
        adapter_sampled_shape(map->r->program, map->op, (uint32_t)map->rank, map->m / n_tokens, n_tokens);
    const struct sampling_operands all = {x, map->low, map->m};

    if (!map->a_gradient)
        return;
    const struct sampling_operands of = sampling_choose(map->r, &shape, &all, map->tensor, map->sample);
    map->r->ops->matmul(map->r->dev, &(struct device_matmul){.transpose_a = true,
                                                             .m = map->rank,
                                                             .n = map->in,
                                                             .k = of.n_rows,
                                                             .a = of.dy,
                                                             .a_stride = map->rank,
                                                             .b = of.x,
                                                             .b_stride = map->in,
                                                             .c = map->a_gradient,
                                                             .c_stride = map->in,
                                                             .wide = true,
                                                             .over_rows = true,
                                                             .beta = map->r->fresh ? 0 : 1});
}

/* low = factor * dy B */
static void adapter_ascend(const struct map *map, const void *dy)
{
    map->r->ops->matmul(map->r->dev, &(struct device_matmul){.m = map->m,
                                                             .n = map->rank,
                                                             .k = map->out,
                                                             .a = dy,
                                                             .a_stride = map->width,
                                                             .b = map->b,
                                                             .b_stride = map->rank,
                                                             .c = map->low,
                                                             .c_stride = map->rank,
                                                             .factor = map->factor});
}

/* dx = or += low A, through the mask of x. */
static void return_gradient(const struct map *map, void *dx, bool accumulate)
{
    const bool masks = drops(map);

    map->r->ops->matmul(map->r->dev, &(struct device_matmul){.m = map->m,
                                                             .n = map->in,
                                                             .k = map->rank,
                                                             .a = map->low,
                                                             .a_stride = map->rank,
                                                             .b = map->a,
                                                             .b_stride = map->in,
                                                             .c = masks ? map->wide : dx,
                                                             .c_stride = map->in,
                                                             .beta = accumulate && !masks ? 1 : 0});
    if (masks)
        operation_drop_add(map->r, &map->dropout, map->op->inputs[1], dx, accumulate ? dx : NULL, map->wide);
}

/* This order lets two scratches do (see the head). */
static void adapter_run_backward(const struct map *map, const void *dy, void *dx, bool accumulate)
{
    const void *const x = adapter_drop(map), *const of_map = operation_element(map->r, dy, map->first);

    adapter_descend(map, x);
    contribute_b(map, of_map);
    adapter_ascend(map, of_map);
    contribute_a(map, x);
    return_gradient(map, dx, accumulate);
}

/* Under `base` the model computes as if there were no adapter: only the copy remains. */
static void adapter_run(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);
    const bool forward = step->action == SCHEDULE_FORWARD;

    if (forward && step->inputs[0] != step->outputs[0])
        operation_drop_add(r, &(struct program_dropout){0}, op->outputs[0], r->at[step->outputs[0]], NULL,
                           r->at[step->inputs[0]]);
    for (int i = 0; i < (r->base ? 0 : op->adapter.n_maps); i++) {
        const struct map map = map_of(r, step, i);
        if (forward)
            adapter_run_forward(&map, r->at[step->outputs[0]]);
        else
            adapter_run_backward(&map, r->at[step->y_gradient], r->at[step->x_gradient], step->accumulate || i > 0);
    }
}

const struct operation operation_adapter = {.name = "adapter",
                                            .reads_inputs = OPERATION_SECOND,
                                            .over_inputs = OPERATION_FIRST,
                                            .differentiate = adapter_differentiate,
                                            .scratch = adapter_scratch,
                                            .run = adapter_run};
