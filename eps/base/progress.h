/* eps/base/progress.h - a worker's position in the step, from its messages; and how long a peer or thread that owes
 * something has made no progress.
 *
 * A step goes up over the visits (forward), then down again (backward). The unit that a worker received last gives
 * its position. Its losses and contributions show that it has turned to the backward pass. */
#ifndef EPS_BASE_PROGRESS_H
#define EPS_BASE_PROGRESS_H

#include "proto/wire/message.h"

#include <stdbool.h>

struct progress {
    enum message_phase phase;
    uint32_t visit;                /* the last visit whose weights it received, or whose contribution it gave */
    uint32_t part;                 /* of its last loss or contribution; when a step begins, the first of its share */
    uint32_t n_parts;              /* of its share */
    uint64_t down_bytes, up_bytes; /* since it attached: weights received, contributions given */
};

/* A step, an evaluation or a generation begins. */
void progress_begin(struct progress *progress, enum message_phase phase, uint32_t first_part, uint32_t n_parts);
/* The worker may now have the weights of a unit, of this many bytes. */
void progress_pull(struct progress *progress, const struct model *model, uint32_t unit, uint64_t bytes);
void progress_loss(struct progress *progress, const struct model *model, uint32_t part);
void progress_contribution(struct progress *progress, uint32_t visit, uint32_t part, uint64_t bytes);

/* In ticks of this daemon. */
struct silence {
    uint64_t count;   /* work done, when last seen */
    unsigned ticks;   /* since the count went up, while something is owed */
    unsigned longest; /* the longest of the silences that ended with progress */
};

/* One tick. True: the count has stood still for longer than the limit. The limit is most_ticks or a multiple of the
 * longest silence so far, whichever is more, plus `allowance` ticks. */
bool silence_tick(struct silence *s, bool owes, uint64_t count, unsigned most_ticks, double allowance);
enum { SILENCE_PATIENCE = 8 }; /* the multiple */

#endif
