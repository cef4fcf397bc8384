/* proto/plan/time/work.h - predicts by a profile how long a device computes a visit, and the host an update.
 *
 * A layer with a program: its schedule's operations, run on a meter (proto/plan/time/meter.h). Embedding and head:
 * formulas for the operations of proto/step, at the same prices. Time to gather rows from host memory is the link's,
 * and not counted here. */
#ifndef PROTO_PLAN_TIME_WORK_H
#define PROTO_PLAN_TIME_WORK_H

#include "proto/plan/memory/host.h"
#include "proto/plan/memory/plan.h"
#include "proto/plan/time/profile.h"

/* Seconds of visits of layers with programs, remembered for one model, setting and profile. Zeroed before use. */
enum { PLAN_PRICES = 256 };
struct plan_prices {
    struct plan_price {
        uint64_t frozen, visit; /* as in struct model_unit; which visit (work.c), 0: none */
        double seconds;
    } of[PLAN_PRICES];
};

/* Microbatches of a part: the first, which writes the contribution; the next ones, which add to it; leftover rows. */
enum plan_work_kind { PLAN_WORK_FIRST, PLAN_WORK_NEXT, PLAN_WORK_REST, PLAN_WORK_KINDS };

struct plan_work {
    const struct plan *plan; /* borrowed, as the others */
    const struct model *model;
    const struct profile *profile;
    uint32_t rows[PLAN_WORK_KINDS], n[PLAN_WORK_KINDS]; /* by kind: rows of a microbatch; microbatches in a part */
    struct plan_prices *prices;
};

/* Begins predictions for training or evaluation. The profile must have been checked. prices: borrowed, or NULL. */
void plan_work_init(struct plan_work *work, const struct plan *plan, const struct model *model,
                    const struct profile *profile, struct plan_prices *prices);

/* Seconds of a block's backward, the mean of a class's blocks, for all microbatches of a part under this `keeping`
 * (struct model_program). Reads the setting, the microbatch, the model, the profile and the prices of `work`. */
double plan_work_keeping(const struct plan_work *work, uint32_t class, uint32_t keeping);

/* Seconds on the device. A head in one pass takes all its time in its topmost forward visit. */
double plan_work_visit(const struct plan_work *work, uint32_t visit, bool backward, enum plan_work_kind kind);

/* plan_meter.found: the share of a microbatch's tokens whose rows a unit of the embedding holds, all tokens being
 * equally frequent. Of a table of segments one row is read. */
double plan_work_found(const struct model *model, const struct model_unit *unit, size_t tokens);

/* Seconds to decode the coded and sparse pieces of this visit's unit, padding included; 0: there are none. */
double plan_work_decode(const struct plan_work *work, uint32_t visit);

/* Seconds to round a finished contribution to this visit's unit, before it is sent; 0: it is sent in fp32. */
double plan_work_finish(const struct plan_work *work, uint32_t visit);

/* Host memory bytes per parameter that the optimizer touches: for each contribution, and for the update after the last
 * (DIRECT, MOMENTS, SUM and HOLD of the store). AdamW in fp32 with one part, which profiles measure, touches
 * PLAN_WORK_UPDATE_BYTES in one pass. */
enum { PLAN_WORK_UPDATE_BYTES = 28 };
struct plan_work_update {
    double fold, update;
};
struct plan_work_update plan_work_update(const struct plan_host_setting *host, const struct model *model,
                                         const struct model_unit *unit);

#endif
