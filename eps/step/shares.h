/* eps/step/shares.h - who gets which parts of a step: whole parts, in runs, by measured speed (eps/base/throughput.h).
 *
 * A share stays its worker's within a step. The parts are divided anew when a worker joins or leaves, and when the
 * speeds say so. */
#ifndef EPS_STEP_SHARES_H
#define EPS_STEP_SHARES_H

#include "eps/step/steps.h"

/* The worker of each part of the next step. The workers have room for all. */
void shares_find_owners(struct job *job, struct peer *owners[MESSAGE_MAX_PARTS]);

/* The worker's parts of the step that `open` opens, and what it audits before: `audit`; both as the relay numbers
 * parts. audited: contributions to it come with digests. Either may be UINT32_MAX: none. */
struct shares_audit {
    uint32_t audit, audited;
};
void shares_send(const struct job *job, struct peer *worker, const struct message *open, const struct relay_part *parts,
                 uint32_t n, struct shares_audit audit);

/* A step is covered. Divides the parts anew if that is worth it. A worker that must have memory for more parts first is
 * planned anew: see eps/step/membership.h. */
void shares_review(struct steps *steps);

#endif
