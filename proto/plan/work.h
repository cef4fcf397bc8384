/* proto/plan/work.h - predicts by a profile how long a device computes a visit, and the host an update.
 *
 * Times are summed over the operations that proto/step enqueues, for programs over the steps of their schedules. An
 * operation moves its bytes at the memory's rate or computes at its own rate, whichever takes longer:
 *
 *   products    twice the multiply-adds at the profile's rate for the microbatch's tokens (of the head, for a tile's)
 *   attention   2 n^2 width per row forward (the causal half of two products), 2.5 times that backward (of five);
 *               with a window, less: the keys seen
 *   the rest    reads each input once and writes each output once
 *   tables      rows that the embedding gathers from host memory, at the link's rate
 *
 * The simulated device prices its kernels the same way (tests/sim/priced.c), from their arguments. */
#ifndef PROTO_PLAN_WORK_H
#define PROTO_PLAN_WORK_H

#include "proto/plan/host.h"
#include "proto/plan/plan.h"
#include "proto/plan/profile.h"

/* Microbatches of a part: the first, which writes the contribution; the next ones, which add to it; leftover rows. */
enum plan_work_kind { PLAN_WORK_FIRST, PLAN_WORK_NEXT, PLAN_WORK_REST, PLAN_WORK_KINDS };

struct plan_work {
    const struct plan *plan; /* borrowed, as the others */
    const struct model *model;
    const struct profile *profile;
    bool gathers; /* counts the link's time of tables, else the caller does; set it after init */
    uint32_t rows[PLAN_WORK_KINDS], n[PLAN_WORK_KINDS]; /* of one part: rows of such a microbatch, and their number */
    struct plan_work_layer {
        double forward, backward[2]; /* seconds: backward of the lower blocks, and of the n_kept topmost */
        double contribution;         /* its part of backward, for a unit trained whole */
    } layers[PLAN_WORK_KINDS][MODEL_PROGRAMS];
};

/* For training or evaluation. The profile must have been checked. */
void plan_work_init(struct plan_work *work, const struct plan *plan, const struct model *model,
                    const struct profile *profile);

/* Seconds of a block's backward, the mean of all blocks, for all microbatches of a part under this `keeping` (struct
 * model_program). Reads only the setting and the microbatch of `plan`. */
double plan_work_keeping(const struct plan *plan, const struct model *model, const struct profile *profile,
                         uint32_t keeping);

/* Seconds on the device. A head in one pass takes all its time in its topmost forward visit. */
double plan_work_visit(const struct plan_work *work, uint32_t visit, bool backward, enum plan_work_kind kind);

/* Seconds to round a finished contribution to this visit's unit before it is sent; 0: no rounding. */
double plan_work_round(const struct plan_work *work, uint32_t visit);

/* Host memory bytes per parameter that the optimizer touches: for each contribution, and for the update after the last
 * (DIRECT, MOMENTS, SUM and HOLD of the store). AdamW in fp32 with one part, which profiles measure, touches
 * PLAN_WORK_UPDATE_BYTES in one pass. */
enum { PLAN_WORK_UPDATE_BYTES = 28 };
struct plan_work_update {
    double fold, update;
};
struct plan_work_update plan_work_update(const struct plan_host_setting *host, const struct model_unit *unit);

#endif
