/* proto/plan/work.h - how long a device computes a visit of one microbatch, and the host an update, by a profile.
 *
 * Operation by operation, as device/layers queues them; of a layer that is a program, step by step of its schedule. An operation takes what it reads and writes at the memory's rate,
 * or what it computes at its own if that is longer:
 *
 *   products    twice the multiply-adds at the profile's rate for the microbatch's tokens (of the head, for a tile's)
 *   attention   2 n^2 width a row forward, the causal half of two products, and 2.5 times that backward, of five, at the
 *               profile's rates of attention
 *   the rest    reads each input once and writes each output once
 *   tables      rows that the embedding gathers where the host has them, at the link's rate
 *
 * The simulated device prices its kernels the same way (tests/sim/priced.c), from what they are called with. */
#ifndef PROTO_PLAN_WORK_H
#define PROTO_PLAN_WORK_H

#include "proto/plan/host.h"
#include "proto/plan/plan.h"
#include "proto/plan/profile.h"

/* Microbatches of a part: its first, whose contribution is written and not added to; those after it; and the rows that
 * are left over. */
enum plan_work_kind { PLAN_WORK_FIRST, PLAN_WORK_NEXT, PLAN_WORK_REST, PLAN_WORK_KINDS };

struct plan_work {
    const struct plan *plan; /* borrowed, as the others */
    const struct model *model;
    const struct profile *profile;
    bool gathers; /* the link's time of tables is counted here: set it after init; else it is the caller's */
    uint32_t rows[PLAN_WORK_KINDS], n[PLAN_WORK_KINDS]; /* of one part: rows of such a microbatch, and how many */
    struct plan_work_layer {
        double forward, backward[2]; /* seconds: backward of the lower blocks, and of the n_kept topmost */
        double contribution;         /* of backward: of a unit that is trained whole */
    } layers[PLAN_WORK_KINDS][MODEL_PROGRAMS];
};

/* To train or to evaluate. The profile is checked. */
void plan_work_init(struct plan_work *work, const struct plan *plan, const struct model *model,
                    const struct profile *profile);

/* Seconds that a block's backward takes for all microbatches of a part where forward keeps so much (struct model_program).
 * Of `plan` only the setting and the microbatch are read. */
double plan_work_keeping(const struct plan *plan, const struct model *model, const struct profile *profile,
                         uint32_t keeping);

/* Seconds of the device. A head in one pass takes all of its time at its topmost visit forward. */
double plan_work_visit(const struct plan_work *work, uint32_t visit, bool backward, enum plan_work_kind kind);

/* Seconds that a finished contribution to this visit's unit is rounded, before it leaves; 0: it is not. */
double plan_work_round(const struct plan_work *work, uint32_t visit);

/* Bytes of host memory that the optimizer touches for a parameter: of each contribution, and of an update once all are
 * there (DIRECT, MOMENTS, SUM and HOLD of the store). AdamW in fp32 with one part, which profiles measure, touches
 * PLAN_WORK_UPDATE_BYTES in one go. */
enum { PLAN_WORK_UPDATE_BYTES = 28 };
struct plan_work_update {
    double fold, update;
};
struct plan_work_update plan_work_update(const struct plan_host_setting *host, const struct model_unit *unit);

#endif
