/* eps/step/audits.h - --audit N: every N steps one part is computed by a second worker too, or once more by the same
 * one.
 *
 * A device that computes wrongly now and then, or always, is found in no other way: its numbers are finite, and
 * training goes on. A part's contributions have the same bits whoever computes it, so two results are compared bit for
 * bit. The relay compares them, slice by slice, before anything is folded (eps/relay/relay.h). An audit changes no bit
 * of the run.
 *
 * The part moves on with each audit, and the auditor each time all parts had their turn. So a worker that always
 * computes wrongly is found within N * n_parts steps, if its share stays.
 *
 * All workers of such a job compute the same bits, and it is on one host (eps/job/job_plan.c). Auditors have a part of
 * their own in the step. A worker that has all parts audits itself, which finds what passes. */
#ifndef EPS_STEP_AUDITS_H
#define EPS_STEP_AUDITS_H

#include "eps/step/steps.h"

/* Who audits what in a step. */
struct audits_choice {
    struct peer *auditor; /* NULL: the step is not audited */
    uint32_t part;
};

/* For a step with these owners of its n_parts parts. The same for the same workers and shares. */
struct audits_choice audits_choose(const struct job *job, uint64_t step, struct peer *const *owners);
/* The auditor's digest of a slice. One of a step that is over, or of an audit that was given up meanwhile, is
 * dropped. */
void audits_on_digest(struct steps *steps, struct peer *worker, const struct message *m);
/* A worker that will be lost is not waited for any more. False: none such audits. */
bool audits_give_up(struct steps *steps);
/* A step is covered: counts its audit. */
void audits_on_covered(struct steps *steps);

/* Two results differ. This worker audits the part, before it begins its share anew: a third one, or the auditor
 * again. */
void audits_recruit(struct steps *steps, uint32_t id);
/* The part's worker begins its share anew, as nobody else can decide. */
void audits_try_again(struct steps *steps, uint32_t id);
/* Two other results agree, or its own later one with another's: the worker loses its session; if memory is checked,
 * once that was looked through, and is whole. */
void audits_convict(struct steps *steps, uint32_t id);
void audits_on_looked(struct steps *steps);
/* Ends the job: nobody knows which of the two is right. */
void audits_end(struct steps *steps, uint32_t owner, uint32_t auditor);

#endif
