/* Fenced commit: nothing of a step touches the weights until the whole step is known good. So its gradient is known
 * before the first update, and can be clipped; and a step that turns out not to be finite leaves no trace.
 *
 * The norm costs no pass of its own at the end: the last fold of a unit finds the unit's sum of squares, and what is
 * left is one addition a unit. */
#include "eps/daemon.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static const double clip_epsilon = 1e-6; /* added to the norm, as PyTorch's clip_grad_norm_ does */

void fence_begin(struct job *job)
{
    struct fence *f = &job->fence;

    memset(f->n_given, 0, job->model.n_units * sizeof *f->n_given);
    f->norm = NAN;
    f->skipped = false;
}

double *fence_note_fold(struct job *job, uint32_t unit)
{
    const struct model_unit *u = &job->model.units[unit];
    const uint32_t n_names = u->n_visits * u->n_slices * job->request.job.n_parts;

    if (!job_is_fenced(&job->request))
        return NULL;
    return ++job->fence.n_given[unit] == n_names ? &job->fence.squares[unit] : NULL;
}

/* All folds are done, so what the optimizer thread wrote is there. */
void fence_commit(struct job *job)
{
    struct fence *f = &job->fence;
    const double most = job->request.job.clip_norm;
    double sum = 0;

    if (!job_is_fenced(&job->request) || !isnan(f->norm)) /* found at the step's first update */
        return;
    for (uint32_t u = 0; u < job->model.n_units; u++)
        sum += f->squares[u];
    f->norm = sqrt(sum);
    const double scale = most / (f->norm + clip_epsilon);
    job->hyper.grad_scale = most > 0 && scale < 1 ? (float)scale : 1;
}

void fence_skip(struct job *job, uint64_t step)
{
    log_line("step %" PRIu64 " skipped: its %s is not finite; weights and moments are as before it", step + 1,
             isnan(fence_loss(job)) ? "loss" : "gradient");
    job->fence.skipped = true;
    job->fence.n_past = step + 1;
}

double fence_loss(const struct job *job)
{
    double sum = 0;

    for (uint32_t p = 0; p < job->request.job.n_parts; p++)
        sum += job->part_loss[p];
    return sum / (double)job->n_valid;
}

bool fence_on_worker(struct daemon *d, struct peer *worker, const struct message *m)
{
    const uint64_t n_past = d->job.fence.n_past;
    struct message reply = {.kind = MESSAGE_FREE};

    if (m->kind == MESSAGE_PULL && m->pull.version < n_past && m->pull.unit < d->job.model.n_units) {
        steps_send_weights(worker, m->pull.version, m->pull.unit);
        return true;
    }
    if (m->kind == MESSAGE_CONTRIBUTION && m->contribution.step < n_past) {
        reply.free.slot = m->contribution.slot;
        reply.free.visit = m->contribution.visit;
        reply.free.part = m->contribution.part;
        reply.free.slice = m->contribution.slice;
        session_send(worker->session, &reply);
        return true;
    }
    return m->kind == MESSAGE_LOSS && m->loss.step < n_past;
}
