/* proto/operation/kind/experts.h - mixtures of experts: which of them each token has, and the weighted sum of what they
 * make of it (proto/operation/call/experts.h). */
#ifndef PROTO_OPERATION_KIND_EXPERTS_H
#define PROTO_OPERATION_KIND_EXPERTS_H

#include "proto/operation/kind/adapter.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct program;
struct program_operation;

struct program_route_options {
    uint32_t n_chosen;
    bool normalises; /* weights of a token's experts sum to 1, or with sigmoids to about `scale` */
    bool sigmoid;    /* and what goes with it, as of struct device_route */
    uint32_t n_groups, n_chosen_groups;
    float epsilon, scale;
};

struct program_experts_options {
    uint32_t n_experts, n_chosen, inner;
    struct program_adapter_map gate_up,
        down; /* adapters of all experts' gates and ups as one map, and of their downs */
};

/* Names of tensors, with %u for an expert's number, as "mlp.experts.%u.gate_proj.weight". */
struct program_experts_names {
    const char *gate, *up, *down;
    const char *bias; /* of the choice, by sigmoid: one number an expert, fixed. NULL: none */
};

/* Adds x's experts by scores, a value of as many columns as there are experts that no other operation reads: route,
 * then experts of `inner` columns. Backward writes x's gradient: operations behind this one do not read x. deviation:
 * of the weights in a fresh model. */
int program_experts(struct program *p, int x, int scores, uint32_t inner, const struct program_experts_names *names,
                    const struct program_route_options *route, float deviation);

/* The names that transformers has for what is one tensor there, and PEFT for what may be adapted: "mlp.experts.gate_up_proj"
 * and "mlp.experts.down_proj", of tensors "mlp.experts.%u.gate_proj.weight". */
const char *program_experts_name(char out[PROGRAM_ADAPTED_BYTES], const struct program *p,
                                 const struct program_operation *op, bool down);

/* Adds adapters to experts whose tensors were the last to be added: A and B of gate_up, then of down, as PEFT names them.
 * It wraps the module once for each that it adapts; gate_up, if there are both, has the inner name, base_layer. */
void program_experts_adapt(struct program *p, struct program_operation *op, struct program_adapter_map gate_up,
                           struct program_adapter_map down);

/* The tensor of A, before B: of gate_up, or of down. */
int program_experts_tensor(const struct program_operation *op, bool down);

#endif
