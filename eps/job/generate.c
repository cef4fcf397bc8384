/* Tokens, one after another: the client names those that are new, one worker runs them, and the logits of the last
 * stand in the data segment. The daemon knows nothing of sampling. */
#include "eps/daemon.h"

#include "proto/plan/host.h"

#include <errno.h>

uint64_t generate_data_bytes(const struct job *job)
{
    const uint32_t batch = job->request.job.batch, seq = job->request.job.seq;

    return job->request.job.generate ? plan_generate_bytes(seq, job->model.config.vocabulary)
                                     : plan_data_bytes(batch, seq);
}

int generate_check(const struct job *job, struct error *err)
{
    const struct message *m = &job->request;

    if (m->job.generate && (m->job.train || m->job.batch != 1 || m->job.n_parts != 1))
        return error_set(err, -EINVAL, "a job that generates runs one row in one part, and does not train");
    return 0;
}

void generate_start(struct daemon *d, const struct message *m)
{
    struct job *job = &d->job;

    if (m->generate.first == 0) /* the row begins anew */
        job->n_generated = 0;
    if (m->generate.first != job->n_generated || m->generate.n < 1 ||
        m->generate.n > job->request.job.seq - job->n_generated) {
        peer_refuse(job->client, "tokens that do not follow those that were run");
        return;
    }
    job->state = JOB_GENERATING;
    job->n_generated += m->generate.n;
    place_begin(&job->workers[0]->place, PHASE_GENERATING, 0, 0);
    session_send(job->workers[0]->session, m);
}

/* Weights stand still meanwhile: whatever version is asked for, it is the one there is. */
void generate_on_worker(struct daemon *d, struct peer *worker, const struct message *m)
{
    if (m->kind == MESSAGE_PULL && m->pull.unit < d->job.model.n_units) {
        steps_send_weights(worker, m->pull.version, m->pull.unit);
    } else if (m->kind == MESSAGE_GENERATED) {
        d->job.state = JOB_RESTING;
        session_send(d->job.client->session, m);
    } else {
        peer_refuse(worker, "a message that does not fit a generation");
    }
}
