/* proto/model/order.h - the order in which a step computes a model's blocks.
 *
 * A visit is a place in the computation, and the home of the layer that runs there in the model's order. A step may
 * compute blocks in another order: then visits run layers whose home is another visit. Such a layer reads and writes
 * the boundary values of the visit that it runs in, and brings all else with it: unit, program, index, kept values, and
 * the key of its random bits. A contribution is named by its visit, so whatever compares names compares the step's own
 * order.
 *
 * Of a block with several layers, those move that a step leaves out with a dropped block (proto/model/drop.h); the norm
 * at an encoder's end stays. Source: "dynamic neural architecture approaches by varying layers across iterations",
 * Pudipeddi et al., arXiv:2002.05645, abstract. */
#ifndef PROTO_MODEL_ORDER_H
#define PROTO_MODEL_ORDER_H

#include "proto/model/drop.h"

enum { MODEL_ORDER_BLOCKS = 64 * MODEL_DROP_WORDS };

struct model_order {
    uint32_t n;                          /* the model's blocks; 0: they are computed in its order */
    uint16_t blocks[MODEL_ORDER_BLOCKS]; /* (n) the block in the place of each, 0 nearest the input */
};

/* True if the block can be computed in the other's place: what their layers read and write has the same names and
 * shapes, and backward reads the same of it. */
bool model_order_fits(const struct model *model, uint32_t block, uint32_t place);

/* False if it is no order of this model: a block is missing, does not fit into its place, or is dropped and not in its
 * own. */
bool model_order_is_valid(const struct model_order *order, const struct model_drop *dropped, const struct model *model);

/* The home of the layer that a visit runs. homes: of model_order_homes; NULL: the model's order. */
static inline uint32_t model_order_home(const uint32_t *homes, uint32_t visit)
{
    return homes ? homes[visit] : visit;
}

/* homes (n_visits): the home of the layer that each visit runs. order: valid; NULL: the model's. */
void model_order_homes(uint32_t *homes, const struct model_order *order, const struct model *model);

#endif
