/* proto/step/boundaries.h - the places of the boundary values and gradients that a visit reads and writes.
 *
 * If the stash is on the device, all of them have a place there. If it is on the host, the device has tiles of one
 * microbatch: what a visit reads is uploaded before it, and what it writes is downloaded after it, even between visits
 * of one layer. With two sets of tiles in the plan, one set is transferred while the other is computed. Traced as
 * "upload tile" and "download tile".
 *
 * A layer sees values of the device's type. Sums in fp32 are rounded for it where it reads one, and what it adds to one
 * is added behind it. */
#ifndef PROTO_STEP_BOUNDARIES_H
#define PROTO_STEP_BOUNDARIES_H

#include "proto/plan/memory/values.h"
#include "proto/step/layers.h"
#include "proto/step/pass.h"

/* A value or gradient that a layer sees: as it is stored, on the device, and as the layer works on it. */
struct device_operand {
    const struct model_operand *is;
    const struct model_shape *shape;
    size_t n;              /* numbers */
    void *stored, *narrow; /* narrow: NULL, if the layer works on what is stored */
};

/* The values and gradients that a visit moves for each microbatch of a run. */
struct device_moves {
    uint32_t run;
    bool backward;
    bool adds;            /* something is not made where it is stored */
    uint32_t n, n_inputs; /* inputs come first */
    struct device_move {
        struct device_operand operand; /* in the microbatch that was entered last */
        uint64_t place;                /* that operand's offset in the arena, or in the host's stash */
        uint64_t first, row_bytes;     /* place of the run's first row; of each row in the longest microbatch */
        bool shared;                   /* by all rows */
        void *stored[PLAN_MAX_SETS], *narrow[PLAN_MAX_SETS]; /* tiles of each set; NULL: none */
        bool on_host, loads, stores; /* on_host: stored there; loads: uploaded before; stores: downloaded after */
        bool clears;                 /* zeroed before anything is added to it */
    } of[2 * MODEL_OPERANDS];
};

/* Called before the microbatches of a run; all fields of *visit but at, and those of rows, must be set. backward, or a
 * head in one pass, includes gradients. */
void device_boundaries_begin(struct device_moves *moves, const struct device_pass *pass, const struct layer_pass *visit,
                             uint32_t run, bool backward);

/* Sets visit->at for the microbatch that begins at `row` of the run. */
void device_boundaries_enter(struct device_pass *pass, struct device_moves *moves, struct layer_pass *visit,
                             uint32_t row);

/* Called after the visit, once for each enter. */
void device_boundaries_leave(struct device_pass *pass, const struct device_moves *moves, const struct layer_pass *visit,
                             uint32_t row);

/* Sets finish->at for a whole run: for the program that finishes the layer, which reads and writes small values
 * alone. */
void device_boundaries_finish(const struct device_pass *pass, struct layer_pass *finish, uint32_t run, bool backward);

/* ---- for passes that place values themselves ---- */

/* Called before the layer runs: rounds an operand that it reads. Returns the memory that it works on. */
void *device_operand_enter(const struct layer_pass *visit, const struct device_operand *operand);
/* Called after the layer ran: adds what it wrote at `made` to the operand's sum. */
void device_operand_leave(const struct layer_pass *visit, const struct device_operand *operand, const void *made);

#endif
