/* eps/observe/place.h - where a worker is, as far as its messages tell: for those who look.
 *
 * A step goes up over the visits, forward, and down again, backward; so the unit that a worker was given last says how
 * far it is, and its losses and contributions say that it has turned. */
#ifndef EPS_OBSERVE_PLACE_H
#define EPS_OBSERVE_PLACE_H

#include "proto/wire/message.h"

struct place {
    enum message_phase phase;
    uint32_t visit;                /* the last whose weights it was given, or whose contribution it gave */
    uint32_t part;                 /* of its last loss or contribution; in a step's beginning the first of its share */
    uint32_t n_parts;              /* of its share */
    uint64_t down_bytes, up_bytes; /* since it attached: weights that it was given, contributions that it gave */
};

/* A step, an evaluation or a generation begins. */
void place_begin(struct place *place, enum message_phase phase, uint32_t first_part, uint32_t n_parts);
/* It may have the weights of a unit now, of this many bytes. */
void place_pull(struct place *place, const struct model *model, uint32_t unit, uint64_t bytes);
void place_loss(struct place *place, const struct model *model, uint32_t part);
void place_contribution(struct place *place, uint32_t visit, uint32_t part, uint64_t bytes);

#endif
