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
    uint64_t down_bytes, up_bytes; /* since it attached: weights received, but for what stays
                                    * on the device (plan_stays), and contributions given */
};

/* A step, an evaluation or a generation begins. */
void progress_begin(struct progress *progress, enum message_phase phase, uint32_t first_part, uint32_t n_parts);
/* The worker may now have the weights of a unit, of this many bytes. homes: the step's order (model_order_homes), or
 * NULL: the model's. */
void progress_pull(struct progress *progress, const struct model *model, const uint32_t *homes, uint32_t unit,
                   uint64_t bytes);
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

/* How long others have waited for one whole thing of a worker: a share, or an answer. What it counts meanwhile is no
 * excuse. In ticks of this daemon. */
struct deadline {
    bool open;    /* it was given, and is not done */
    bool partial; /* of a share: parts of it were under way already, so its time says little */
    uint64_t step;
    uint32_t n_parts, n_tokens;
    unsigned elapsed; /* since it was given */
    unsigned waited;  /* of these, while it was owed */
    /* The most work that is known, of shares that were done: this long, at most, for so many parts, at least, of rows
     * of so many tokens. n_parts 0: none was done. */
    struct {
        unsigned elapsed;
        uint32_t n_parts, n_tokens;
    } seen;
};

/* A share was given, or given again; or anything else, of no parts. */
void deadline_begin(struct deadline *d, uint64_t step, uint32_t n_parts, uint32_t n_tokens);
/* The share is done. */
void deadline_meet(struct deadline *d);
/* One tick. True: it was owed for longer than the limit. The limit is least_ticks, or eight times what shares of as
 * much work have taken; or, if none is known, `allowance`, if that is more. */
bool deadline_tick(struct deadline *d, bool owes, unsigned least_ticks, double allowance);

#endif
