/* proto/plan/links.h - in which order blocks keep more values.
 *
 * A link takes the blocks of one class, the topmost first, from one set of kept values to another. Followed in order,
 * links take a plan from blocks that keep nothing to blocks that keep all that is worth its bytes. */
#ifndef PROTO_PLAN_LINKS_H
#define PROTO_PLAN_LINKS_H

#include "proto/plan/memory/plan.h"
#include "proto/plan/time/profile.h"

struct plan_prices;

/* Blocks of a class that keep the set `below` go up, the topmost first, to keep the set `above`. */
struct plan_link {
    uint32_t class, below, above;
    double rate; /* seconds saved per byte */
};

/* In order. The links of a class follow each other from nothing on: where one ends, the next begins. */
struct plan_links {
    struct plan_link of[MODEL_CLASSES * (MODEL_KEEPINGS - 1)];
    uint32_t n;
};

/* All or nothing, class after class, whatever the profile. */
void plan_links_plain(struct plan_links *out, const struct model *model);

/* The best ones for microbatches of so many rows: the links of each class, from nothing on, each of which saves the
 * most time per added byte, so that no mix of others saves more in the same bytes; merged by falling rates. prices: as
 * in plan_cost. */
void plan_links_best(struct plan_links *out, const struct model *model, const struct plan_setting *setting,
                     const struct profile *profile, struct plan_prices *prices, uint32_t rows);

/* Blocks of all links: as many steps as plan_links_keep has. */
uint32_t plan_links_blocks(const struct plan_links *links, const struct model *model);

/* Sets what blocks keep after `steps` of them have gone up by a link. */
void plan_links_keep(struct plan_choice *choice, const struct plan_links *links, const struct model *model,
                     uint32_t steps);

#endif
