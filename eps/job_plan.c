/* What a job needs, before anything of it is allocated. */
#include "eps/job_state.h"

#include "proto/process.h"

#include <errno.h>
#include <inttypes.h>

enum {
    MOST_STEPS = 1 << 30,
    MIN_SLOTS = 2,
    MAX_SLOTS = 4,      /* of an inbox, apart from the reserved one: a unit of 64 MiB under way */
    N_ACCUMULATORS = 2, /* adamw with parts: of the unit that is contributed, and of the one above, being updated */
};

static int check_request(const struct job *job, struct error *err)
{
    const struct model_config *c = &job->model.config;
    const uint32_t batch = job->request.job.batch, seq = job->request.job.seq, n_parts = job->request.job.n_parts;

    if (seq < 1 || seq > c->n_positions)
        return error_set(err, -EINVAL, "--seq %u: the model has positions for 1 to %u tokens", seq, c->n_positions);
    if (batch < 1 || n_parts < 1 || batch % n_parts)
        return error_set(err, -EINVAL, "--batch %u rows do not divide into --parts %u equal parts", batch, n_parts);
    if ((uint64_t)batch * seq > 1u << 28)
        return error_set(err, -EINVAL, "--batch %u x --seq %u: more than 2^28 tokens in a minibatch", batch, seq);
    if (job->request.job.fresh != (job->n_weight_files == 0))
        return error_set(err, -EINVAL, "weights come from files or are drawn, not both and not neither");
    if (job->request.job.resume && (!job->request.job.train || job->request.job.fresh))
        return error_set(err, -EINVAL, "what is resumed is training, from weights and moments in files");
    if (job->request.job.step > 0 && !job->request.job.resume)
        return error_set(err, -EINVAL, "a run that begins at step %" PRIu64 " needs the moments of that step",
                         job->request.job.step);
    if (job->request.job.step > MOST_STEPS)
        return error_set(err, -EINVAL, "step %" PRIu64 " is none that a run gets to", job->request.job.step);
    return generate_check(job, err);
}

static void size_inbox(struct job *job)
{
    job->n_slots = MIN_SLOTS;
    for (uint32_t u = 0; u < job->model.n_units; u++)
        if (job->model.units[u].n_slices > job->n_slots)
            job->n_slots = job->model.units[u].n_slices;
    if (job->n_slots > MAX_SLOTS)
        job->n_slots = MAX_SLOTS;
    job->slot_bytes = model_slot_bytes(&job->model);
}

struct eps_store_options job_store_options(const struct job *job)
{
    const bool sums = job->request.job.optimizer == OPTIMIZER_ADAMW && job->request.job.n_parts > 1;

    return (struct eps_store_options){.train = job->request.job.train, .n_accumulators = sums ? N_ACCUMULATORS : 0};
}

static int check_memory(const struct job *job, uint64_t host_mem, struct error *err)
{
    const uint64_t available = process_available_bytes();
    const bool capped = host_mem && host_mem < available;
    const uint64_t have = capped ? host_mem : available;
    uint64_t need = job->model.segment_n * (job->request.job.train ? 12 : 4) + generate_data_bytes(job);
    char need_text[PROCESS_BYTES_TEXT], have_text[PROCESS_BYTES_TEXT];

    if (job->request.job.train)
        need += job->n_wanted * (1 + job->n_slots) * job->slot_bytes + eps_store_tied_bytes(&job->model) +
                job_store_options(job).n_accumulators * eps_store_accumulator_bytes(&job->model);
    if (need <= have)
        return 0;
    return error_set(err, -ENOMEM,
                     "the model's weights and moments need %s of host memory, %s%s; choose a smaller model",
                     process_format_bytes(need_text, need), process_format_bytes(have_text, have),
                     capped ? " are what the daemon's --host-mem allows" : " are free");
}

int job_plan(struct daemon *d, struct error *err)
{
    struct job *job = &d->job;
    int rc = check_request(job, err);

    if (!rc)
        rc = rights_output(d, err);
    if (rc)
        return rc;
    job->n_wanted = daemon_count_workers(d);
    if (job->n_wanted > job->request.job.n_parts)
        job->n_wanted = job->request.job.n_parts;
    size_inbox(job);
    return check_memory(job, d->host_mem, err);
}
