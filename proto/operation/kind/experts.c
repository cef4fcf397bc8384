/* Two operations, so that backward can make the choice again without the experts, where it is not kept. Of the experts
 * nothing is kept but their input and the choice, 8 bytes a token and chosen expert: gates and ups, (tokens chosen, 2
 * inner), would be several times the block's other values, and to make them again costs two products of eight. They
 * are made for one expert at a time, in room for all tokens, so that the worst choice, all tokens for one expert, needs
 * no more than any other.
 *
 * The choice is no cheap value: it is kept, or made again of the very scores that forward had, before these are rounded
 * to fewer bits (schedule.h). The experts' own backward makes the gradient of the scores, as the gradient of the
 * choice's weights lives within that step alone; so route has no derivative. */
#include "proto/operation/kind/experts.h"

#include "proto/operation/operation.h"
#include "proto/operation/program_internal.h"
#include "proto/operation/schedule_internal.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { GATE, UP, DOWN, ADAPTERS }; /* tensors */
enum { X, SCORES, CHOICE };        /* inputs of the experts */

static int program_route(struct program *p, int scores, const char *bias, const struct program_route_options *route)
{
    struct program_operation *op = program_append(p, &operation_route);

    assert(route->n_chosen > 0 && route->n_chosen <= DEVICE_CHOSEN && route->n_chosen <= p->values[scores].columns);
    assert(p->values[scores].columns <= DEVICE_EXPERTS);
    op->route = *route;
    assert(route->sigmoid || (!bias && route->n_groups == 0));
    program_add_input(p, op, scores);
    if (bias)
        program_add_named_tensor(p, op, bias,
                                 (struct program_tensor){.rows = p->values[scores].columns,
                                                         .init = MODEL_INIT_ZERO,
                                                         .fixed = true});
    return program_add_output(p, op, PROGRAM_STATISTIC, 2 * route->n_chosen);
}

int program_experts(struct program *p, int x, int scores, uint32_t inner, const struct program_experts_names *names,
                    const struct program_route_options *route, float deviation)
{
    const uint32_t n = p->values[x].columns, n_experts = p->values[scores].columns;
    const struct program_tensor in = {
        .rows = inner, .columns = n, .n_stacked = n_experts, .init = MODEL_INIT_NORMAL, .deviation = deviation};
    struct program_tensor out = in;
    const int choice = program_route(p, scores, names->bias, route);
    struct program_operation *op = program_append(p, &operation_experts);

    out.rows = n, out.columns = inner;
    op->experts = (struct program_experts_options){.n_experts = n_experts, .n_chosen = route->n_chosen, .inner = inner};
    program_add_input(p, op, x);
    program_add_input(p, op, scores);
    program_add_input(p, op, choice);
    program_add_named_tensor(p, op, names->gate, in);
    program_add_named_tensor(p, op, names->up, in);
    program_add_named_tensor(p, op, names->down, out);
    return program_add_output(p, op, PROGRAM_VALUE, n);
}

/* ---- adapters ---- */

/* "mlp.experts" of "mlp.experts.%u.gate_proj.weight", as transformers has it. */
static const char *experts_module(char out[PROGRAM_ADAPTED_BYTES], const struct program *p,
                                  const struct program_operation *op)
{
    const char *const name = p->tensors[op->tensor + GATE].name, *const number = strstr(name, ".%u");

    return program_adapted_name(out, name, number ? (size_t)(number - name) : 0);
}

const char *program_experts_name(char out[PROGRAM_ADAPTED_BYTES], const struct program *p,
                                 const struct program_operation *op, bool down)
{
    experts_module(out, p, op);
    const size_t n = strlen(out);
    snprintf(out + n, PROGRAM_ADAPTED_BYTES - n, down ? ".down_proj" : ".gate_up_proj");
    return out;
}

/* Drawn as torch.nn.Linear's weight is, as a linear map's adapter (adapter.c). */
static void experts_add_adapter(struct program *p, struct program_operation *op, const char *stem, uint32_t rank,
                                uint32_t in, uint32_t out)
{
    const uint32_t columns = rank * op->experts.n_experts;

    program_add_tensor(p, op, stem, "lora_A.weight",
                       (struct program_tensor){.rows = columns,
                                               .columns = in,
                                               .init = MODEL_INIT_UNIFORM,
                                               .deviation = (float)(1 / sqrt(in)),
                                               .adapts = true});
    program_add_tensor(
        p, op, stem, "lora_B.weight",
        (struct program_tensor){.rows = out, .columns = columns, .init = MODEL_INIT_ZERO, .adapts = true});
}

void program_experts_adapt(struct program *p, struct program_operation *op, struct program_adapter_map gate_up,
                           struct program_adapter_map down)
{
    const uint32_t n = p->values[op->inputs[X]].columns, inner = op->experts.inner;
    char stem[PROGRAM_ADAPTED_BYTES];

    op->experts.gate_up = gate_up, op->experts.down = down;
    experts_module(stem, p, op);
    const size_t n_stem = strlen(stem);
    if (gate_up.rank > 0) {
        snprintf(stem + n_stem, sizeof stem - n_stem, "%s", down.rank > 0 ? ".base_layer" : "");
        experts_add_adapter(p, op, stem, gate_up.rank, n, 2 * inner);
    }
    stem[n_stem] = 0;
    if (down.rank > 0)
        experts_add_adapter(p, op, stem, down.rank, inner, n);
    op->frozen &= gate_up.rank == 0 && down.rank == 0;
}

int program_experts_tensor(const struct program_operation *op, bool down)
{
    return op->tensor + ADAPTERS + (down && op->experts.gate_up.rank > 0 ? 2 : 0);
}

/* As the device has it, in this run; without gradients. */
static struct device_experts_adapter experts_adapter(const struct operation_run *r, const struct program_operation *op,
                                                     bool down)
{
    const struct program_adapter_map *map = down ? &op->experts.down : &op->experts.gate_up;
    const int tensor = program_experts_tensor(op, down);

    if (map->rank == 0 || r->base)
        return (struct device_experts_adapter){0};
    return (struct device_experts_adapter){.rank = map->rank,
                                           .factor = map->factor,
                                           .a = r->weights[tensor],
                                           .b = r->weights[tensor + 1]};
}

static void experts_ask(struct device_experts_adapter *adapter, const struct operation_run *r, int tensor)
{
    adapter->a_gradient = adapter->rank > 0 ? r->gradients[tensor] : NULL;
    adapter->b_gradient = adapter->rank > 0 ? r->gradients[tensor + 1] : NULL;
}

/* ---- route ---- */

static void route_differentiate(struct schedule_builder *b, int operation)
{
    (void)b, (void)operation; /* the experts' step does */
}

/* Behind all weights of the choice. */
static uint32_t *route_numbers(const struct operation_run *r, const struct program_operation *route, void *choice)
{
    return (uint32_t *)choice + operation_elements(r, route->inputs[0]) * route->route.n_chosen;
}

/* What forward and backward have in common: sizes and options. */
static struct device_route route_call(const struct operation_run *r, const struct program_operation *op)
{
    return (struct device_route){.m = operation_elements(r, op->inputs[0]),
                                 .n_experts = operation_columns(r, op->inputs[0]),
                                 .n_chosen = op->route.n_chosen,
                                 .normalises = op->route.normalises,
                                 .sigmoid = op->route.sigmoid,
                                 .n_groups = op->route.n_groups,
                                 .n_chosen_groups = op->route.n_chosen_groups,
                                 .epsilon = op->route.epsilon,
                                 .scale = op->route.scale};
}

static void route_run(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);
    struct device_route route = route_call(r, op);

    route.bias = op->n_tensors > 0 ? r->weights[op->tensor] : NULL;
    route.scores = r->at[step->inputs[0]];
    route.weights = r->at[step->outputs[0]];
    route.numbers = route_numbers(r, op, r->at[step->outputs[0]]);
    r->ops->route(r->dev, &route);
}

const struct operation operation_route = {.name = "route",
                                          .result = "experts' choice",
                                          .differentiate = route_differentiate,
                                          .run = route_run};

/* ---- experts ---- */

static void experts_differentiate(struct schedule_builder *b, int operation)
{
    struct schedule_step *step = schedule_begin_derivative(b, operation);

    schedule_write_gradient(b, step, X);
    schedule_write_other_gradient(b, step);
    schedule_end_step(b);
}

/* Behind the device's own scratch, backward: the gradient of the choice. */
static size_t experts_own_scratch(const struct device_experts *experts, enum number_type type, bool backward)
{
    return (device_experts_scratch(experts, type, backward) + 63) / 64 * 64;
}

static uint64_t experts_scratch(const struct program *p, const struct program_operation *op,
                                const struct operation_setting *s)
{
    const bool backward = s->action == SCHEDULE_BACKWARD;
    const struct device_experts experts = {.m = program_elements(p, op->inputs[X], s->n_rows, s->n_tokens),
                                           .n = p->values[op->inputs[X]].columns,
                                           .inner = op->experts.inner,
                                           .n_experts = op->experts.n_experts,
                                           .n_chosen = op->experts.n_chosen,
                                           .gate_up.rank = op->experts.gate_up.rank,
                                           .of_down.rank = op->experts.down.rank};

    return experts_own_scratch(&experts, s->type, backward) +
           (backward ? experts.m * experts.n_chosen * sizeof(float) : 0);
}

static void experts_run_backward(const struct operation_run *r, const struct schedule_step *step,
                                 struct device_experts *experts)
{
    const struct program_operation *op = operation_of(r, step), *route = &r->program->operations[step->operation - 1];
    struct device_route turn = route_call(r, route);

    assert(!step->accumulate && !step->accumulate_other && route->kind == &operation_route);
    experts->y_gradient = r->at[step->y_gradient];
    experts->x_gradient = r->at[step->x_gradient];
    experts->gate_gradient = r->gradients[op->tensor + GATE];
    experts->up_gradient = r->gradients[op->tensor + UP];
    experts->down_gradient = r->gradients[op->tensor + DOWN];
    experts_ask(&experts->gate_up, r, program_experts_tensor(op, false));
    experts_ask(&experts->of_down, r, program_experts_tensor(op, true));
    experts->beta = r->fresh ? 0 : 1;
    experts->weights_gradient = (float *)((char *)r->at[step->scratch] + experts_own_scratch(experts, r->type, true));
    r->ops->experts_backward(r->dev, experts);
    turn.scores = r->at[step->inputs[SCORES]];
    turn.weights = r->at[step->inputs[CHOICE]];
    turn.numbers = route_numbers(r, route, r->at[step->inputs[CHOICE]]);
    turn.weights_gradient = experts->weights_gradient;
    turn.scores_gradient = r->at[step->other_gradient];
    r->ops->route_backward(r->dev, &turn);
}

static void experts_run(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);
    struct device_experts experts = {.m = operation_elements(r, op->inputs[X]),
                                     .n = operation_columns(r, op->inputs[X]),
                                     .inner = op->experts.inner,
                                     .n_experts = op->experts.n_experts,
                                     .n_chosen = op->experts.n_chosen,
                                     .x = r->at[step->inputs[X]],
                                     .weights = r->at[step->inputs[CHOICE]],
                                     .numbers = route_numbers(r, op - 1, r->at[step->inputs[CHOICE]]),
                                     .gate = r->weights[op->tensor + GATE],
                                     .up = r->weights[op->tensor + UP],
                                     .down = r->weights[op->tensor + DOWN],
                                     .gate_up = experts_adapter(r, op, false),
                                     .of_down = experts_adapter(r, op, true),
                                     .scratch = r->at[step->scratch]};

    if (step->action != SCHEDULE_FORWARD) {
        experts_run_backward(r, step, &experts);
        return;
    }
    experts.y = r->at[step->outputs[0]];
    r->ops->experts(r->dev, &experts);
}

const struct operation operation_experts = {.name = "experts",
                                            .reads_inputs = OPERATION_FIRST | OPERATION_SECOND | OPERATION_THIRD,
                                            .aligned = true,
                                            .differentiate = experts_differentiate,
                                            .scratch = experts_scratch,
                                            .run = experts_run};
