/* proto/operation/kind/experts.h - mixtures of experts: which of them each token has, and the weighted sum of what they
 * make of it (proto/operation/call/experts.h). */
#ifndef PROTO_OPERATION_KIND_EXPERTS_H
#define PROTO_OPERATION_KIND_EXPERTS_H

#include <stdbool.h>
#include <stdint.h>

struct program;

struct program_route_options {
    uint32_t n_chosen;
    bool normalises; /* weights of a token's experts sum to 1, or with sigmoids to about `scale` */
    bool sigmoid;    /* and what goes with it, as of struct device_route */
    uint32_t n_groups, n_chosen_groups;
    float epsilon, scale;
};

struct program_experts_options {
    uint32_t n_experts, n_chosen, inner;
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

#endif
