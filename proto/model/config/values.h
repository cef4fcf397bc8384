/* proto/model/config/values.h - what layers give to each other: values, and the gradients that come back.
 *
 * A layer's program names its inputs and outputs (proto/operation/program.h). A name stands for the value that was
 * written last under it, so each layer of a run of equal ones writes another value: of 4,096 blocks, 4,097 of the
 * stream. A value is written by one layer, or is a sum to which several layers of a block add, in fp32. Any number of
 * layers above read it. If there is more than one, their gradients add up in fp32, in the order of backward.
 *
 * A value that backward reads is stashed from forward on. One that only forward reads passes through a place that
 * others use before and after; so do gradients, and outside training all values. Places are given by lifetime, from the
 * bottom up and for gradients from the top down: a value takes the first place of its shape that is free. A gradient
 * takes the place of the one above where the layer's program passes it on (program_passes_gradient).
 *
 * A stashed value is *derivable* if the layer that writes it is light (program_is_light) and reads nothing but stashed
 * values. Of a residual net, whose layers end with convolutions, these are the blocks' outputs and the stem's:
 * relu(bn(z) + x), of which z is stashed anyway, and x the block's input. They form chains: a value joins the chain of
 * the one of which it is derived, so a chain is a stage. No layer belongs to two.
 *
 * Rows of values of a microbatch are known by the layer that reads and writes them: what it moves is a passage. */
#ifndef PROTO_MODEL_CONFIG_VALUES_H
#define PROTO_MODEL_CONFIG_VALUES_H

#include "proto/operation/program.h"

#include <stdbool.h>
#include <stdint.h>

struct model;

enum {
    MODEL_SHAPES = 48,    /* of a model, at most; a family that exceeds this or the following is a mistake */
    MODEL_PLACES = 32,    /* of a shape, at a time, at most */
    MODEL_PASSAGES = 128, /* of a model, at most */
    MODEL_OPERANDS = 4 * PROGRAM_BOUNDARIES,
    MODEL_CHAINS = 8, /* of derivable values; those of further ones are not derivable */
};

/* How large values are. */
struct model_shape {
    uint32_t domain;        /* PROGRAM_... */
    struct program_own own; /* if the domain is the family's own */
    uint32_t columns;
    bool wide;    /* fp32; else of the device's type */
    bool by_part; /* each part has its own: PART values, unless made of tensors alone, and their gradients */
    bool trained; /* a gradient of this shape is wanted */
    /* Numbers of places: */
    uint32_t n_stashed, n_passing; /* training: for values that backward reads, and for others */
    uint32_t n_stored;             /* of the stashed ones, those that are not derivable */
    uint32_t n_forward;            /* outside training, for all but small values */
    uint32_t n_gradients;
    uint32_t lowest, topmost; /* of gradients: the lowest layer that writes such a value, the topmost that reads one */
};

/* True of shapes of a row or a part: they are small, so all of them are on the device for good. */
static inline bool model_is_small(const struct model_shape *shape)
{
    return shape->domain == PROGRAM_ROW || shape->domain == PROGRAM_PART;
}

struct model_value {
    const char *name; /* "": the stream */
    uint32_t shape;
    uint32_t first, top; /* the lowest layer that writes it, the topmost that reads it */
    uint32_t n_readers;  /* layers */
    bool stashed;
    bool trained;   /* its gradient is wanted; false only of a value by part that is made of frozen tensors alone */
    uint32_t place; /* training, or small: index among the stashed places of its shape, or among the passing ones */
    uint32_t chain; /* if it is derivable, 1 + the index of its chain; else 0 */
    uint32_t stored_place; /* if stashed: index in its chain, or among the values of its shape that are not derivable */
    uint32_t forward_place;
    uint32_t gradient_shape, gradient_place;
};

/* Derivable values of one shape, each of which is derived of the one before and of values that are not derivable. */
struct model_chain {
    uint32_t shape, n;
    uint32_t lowest,
        topmost; /* the layer that writes the lowest, the topmost layer that reads one: above the chain before */
};

/* What a program reads and writes. */
struct model_edges {
    uint32_t reads[PROGRAM_BOUNDARIES], writes[PROGRAM_BOUNDARIES]; /* (n_reads), (n_writes): values of the model */
    uint8_t n_reads, n_writes;
    uint8_t passage; /* index in model_values.passages */
};

enum model_role { MODEL_INPUT, MODEL_OUTPUT, MODEL_OUTPUT_GRADIENT, MODEL_INPUT_GRADIENT, MODEL_ROLES };

/* A value, or gradient, that a layer moves. */
struct model_operand {
    uint8_t role, index; /* role: enum model_role; index: in the layer's reads or writes */
    uint8_t shape;       /* the shape in which it is stored */
    bool loads, stores;  /* loads: read before the layer runs; stores: written after it */
    bool begins;         /* the first to add to a sum: what is stored is not read */
    bool passes;         /* a gradient that is made where the first output's was */
};

/* The index of the value that an operand of these edges is, or whose gradient it is. */
static inline uint32_t model_value_of(const struct model_edges *edges, const struct model_operand *operand)
{
    const bool is_read = operand->role == MODEL_INPUT || operand->role == MODEL_INPUT_GRADIENT;

    return (is_read ? edges->reads : edges->writes)[operand->index];
}

/* A layer's operands, forward and backward. Layers with the same operands share a passage. */
struct model_passage {
    uint8_t n[2];
    struct model_operand operands[2][MODEL_OPERANDS]; /* (n) */
};

struct model_values {
    struct model_value *of;
    uint32_t n, n_shapes, n_passages;
    struct model_shape shapes[MODEL_SHAPES];
    struct model_passage *passages; /* (n_passages) */
    struct model_chain chains[MODEL_CHAINS];
    uint32_t n_chains;
};

/* Called once the layers are there: makes the values, binds the layers to them. -ENOMEM. A name that nobody wrote,
 * another shape than was written, or a value that nobody reads is a mistake in the family's file: an assertion
 * fails. */
int model_bind_values(struct model *model);

/* Called whenever tensors were frozen, and at first: sets `trained`. */
void model_mark_trained_values(struct model *model);
void model_free_values(struct model *model); /* safe on zeroed ones */

#endif
