/* eps/progress.h - how far a worker is, as far as its messages tell; and for how long somebody who owes something has done
 * nothing.
 *
 * A step goes up over the visits, forward, and down again, backward; so the unit that a worker was given last says how
 * far it is, and its losses and contributions say that it has turned. */
#ifndef EPS_PROGRESS_H
#define EPS_PROGRESS_H

#include "proto/wire/message.h"

#include <stdbool.h>

struct progress {
    enum message_phase phase;
    uint32_t visit;                /* the last whose weights it was given, or whose contribution it gave */
    uint32_t part;                 /* of its last loss or contribution; in a step's beginning the first of its share */
    uint32_t n_parts;              /* of its share */
    uint64_t down_bytes, up_bytes; /* since it attached: weights that it was given, contributions that it gave */
};

/* A step, an evaluation or a generation begins. */
void progress_begin(struct progress *progress, enum message_phase phase, uint32_t first_part, uint32_t n_parts);
/* It may have the weights of a unit now, of this many bytes. */
void progress_pull(struct progress *progress, const struct model *model, uint32_t unit, uint64_t bytes);
void progress_loss(struct progress *progress, const struct model *model, uint32_t part);
void progress_contribution(struct progress *progress, uint32_t visit, uint32_t part, uint64_t bytes);

/* In ticks of this daemon. */
struct silence {
    uint64_t count;   /* of what is done, as it was last seen */
    unsigned ticks;   /* since the count went up, while something is owed */
    unsigned longest; /* of these that ended well */
};

/* One tick. True: its count has stood still for more than most_ticks, or than a multiple of its longest silence so far,
 * and `allowance` ticks on top. */
bool silence_tick(struct silence *s, bool owes, uint64_t count, unsigned most_ticks, double allowance);
enum { SILENCE_PATIENCE = 8 }; /* the multiple */

#endif
