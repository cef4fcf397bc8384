/* tools/commands/top/curve.h - the losses of a whole run, for eps top: the earlier ones from its metrics.jsonl, the
 * later ones from the daemon. */
#ifndef TOOLS_COMMANDS_TOP_CURVE_H
#define TOOLS_COMMANDS_TOP_CURVE_H

#include "client/eps.h"
#include "tools/screen/plot.h"

#include <stdbool.h>
#include <stdint.h>

/* Begin with a zeroed struct. */
struct top_curve {
    struct series losses;
    uint64_t last;  /* step of the last one */
    uint32_t job;   /* of these losses */
    char out[4096]; /* the directory of the run; empty: none */
};

/* The daemon's job; 0: none. One that was not seen before begins anew with what is in its output directory, if that can
 * be read here: up to 1,024 lines of it, spread evenly, so that a long run takes no longer. */
void top_curve_begin(struct top_curve *curve, uint32_t job, const char *out);
/* Adds what the daemon tells of this job. */
void top_curve_follow(struct top_curve *curve, const struct eps_recent *recent);

#endif
