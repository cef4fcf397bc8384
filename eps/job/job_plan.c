/* What a job needs, before anything of it is allocated. */
#include "eps/job/job_state.h"

#include "proto/base/process.h"
#include "proto/plan/advice.h"
#include "proto/plan/search.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

enum { MOST_STEPS = 1 << 30 };

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
    if (job_is_fenced(&job->request) && n_parts > 1 && job->request.job.optimizer == OPTIMIZER_ADAMA)
        return error_set(
            err, -EINVAL,
            "a fenced commit sums the parts before they are squared, and AdamA squares each of --parts %u: "
            "choose --optimizer adamw, or --parts 1",
            n_parts);
    return generate_check(job, err);
}

/* A device that takes turns with the daemon, the CPU, has the host's memory. */
static bool is_host_memory(const struct peer *worker)
{
    return worker->backend->takes_turns;
}

/* What is the same with any number of workers is so where they round alike. */
static int check_kinds(const struct job *job, struct error *err)
{
    const struct peer *first = job->workers[0];

    for (uint32_t i = 0; i < job->n_workers; i++) {
        const struct peer *worker = job->workers[i];
        if (!worker->backend)
            return error_set(err, -ENODEV, "worker %u has a device '%s', which this daemon knows nothing of",
                             worker->id, worker->device);
        if (job->request.job.deterministic && worker->backend != first->backend)
            return error_set(err, -EINVAL,
                             "--deterministic is for workers of one kind, and worker %u has %s while worker %u has %s: "
                             "detach one of them, or leave it out",
                             first->id, first->device, worker->id, worker->device);
    }
    return 0;
}

/* Workers that have parts, in order of id. None is busy: the last job has ended. */
static int choose_workers(struct daemon *d, struct error *err)
{
    struct job *job = &d->job;

    for (struct peer *p = d->peers; p && job->n_workers < job->request.job.n_parts; p = p->next)
        if (p->role == ROLE_WORKER && !p->refused)
            job->workers[job->n_workers++] = p;
    job->n_planned = job->n_workers;
    if (job->n_workers)
        return check_kinds(job, err);
    return error_set(err, -EAGAIN, "no worker is attached; start one with eps-worker --connect NAME");
}

/* One way for all workers, as work that is redone by another must come out alike; and whatever the budgets, as no budget
 * changes a bit. */
static enum plan_attention common_attention(const struct job *job)
{
    const enum plan_attention first = job->workers[0]->attention;

    for (uint32_t i = 1; i < job->n_workers; i++)
        if (job->workers[i]->attention != first)
            return PLAN_ATTENTION_OWN;
    return first;
}

static struct plan_setting setting_of(const struct job *job, const struct peer *worker)
{
    const struct message *m = &job->request;
    struct plan_setting setting = {
        .backend = worker->backend,
        .library_bytes = worker->library_bytes,
        .attention = common_attention(job),
        .purpose = m->job.generate ? PLAN_GENERATE
                   : m->job.train  ? PLAN_TRAIN
                                   : PLAN_EVALUATE,
        .precision = m->job.precision,
        .grad = m->job.grad,
        .seq = m->job.seq,
    };

    plan_share(&setting, m->job.batch, m->job.n_parts, job->n_workers, sysconf(_SC_NPROCESSORS_ONLN));
    return setting;
}

/* Where the host is what is short: bytes that it can give a device whose memory is the host's; and whether it has none
 * for a stash. */
struct shortage {
    bool no_stash;
    uint64_t most;
};

static int plan_worker(const struct job *job, struct peer *worker, uint32_t microbatch, const struct shortage *shortage,
                       struct error *err)
{
    const struct plan_setting setting = setting_of(job, worker);
    const struct plan_wish wish = {.microbatch = microbatch, .no_host_stash = shortage->no_stash};
    const bool less = is_host_memory(worker) && shortage->most < worker->budget;
    const uint64_t budget = less ? shortage->most : worker->budget;

    return plan_search(&worker->plan, &job->model, &setting, &wish, &worker->profile, budget, err);
}

/* Each as it likes, then all with the smallest microbatch: a run's bits depend on it, and shares may move. */
static int plan_workers(const struct job *job, const struct shortage *shortage, struct error *err)
{
    uint32_t microbatch = job->request.job.microbatch;
    int rc = 0;

    for (uint32_t i = 0; !rc && i < job->n_workers; i++)
        rc = plan_worker(job, job->workers[i], microbatch, shortage, err);
    if (rc || microbatch)
        return rc;
    microbatch = job->workers[0]->plan.choice.microbatch;
    for (uint32_t i = 1; i < job->n_workers; i++)
        if (microbatch > job->workers[i]->plan.choice.microbatch)
            microbatch = job->workers[i]->plan.choice.microbatch;
    for (uint32_t i = 0; !rc && i < job->n_workers; i++)
        if (job->workers[i]->plan.choice.microbatch != microbatch)
            rc = plan_worker(job, job->workers[i], microbatch, shortage, err);
    return rc;
}

/* What all of them take of the host's memory: for their devices. */
static uint64_t count_arenas(const struct job *job, uint32_t *n)
{
    uint64_t bytes = 0;

    *n = 0;
    for (uint32_t i = 0; i < job->n_workers; i++)
        if (is_host_memory(job->workers[i])) {
            bytes += plan_total(&job->workers[i]->plan);
            ++*n;
        }
    return bytes;
}

static void note_plans(struct job *job)
{
    job->n_planned = job->n_workers;
    job->microbatch = job->workers[0]->plan.choice.microbatch;
    for (uint32_t i = 0; i < job->n_workers; i++)
        job->stash_bytes[i] = job->workers[i]->plan.host_stash_bytes;
}

/* The plans are made: does the host hold them and the rest? */
static int check_host(struct daemon *d, struct error *err)
{
    uint32_t n_arenas;

    note_plans(&d->job);
    return job_check_host(&d->job, d->host_mem, count_arenas(&d->job, &n_arenas), err);
}

/* Without a stash on the host, unless a device is too small for that. */
static void plan_smallest_workers(struct job *job)
{
    for (uint32_t i = 0; i < job->n_workers; i++) {
        struct peer *worker = job->workers[i];
        const struct plan_setting setting = setting_of(job, worker);
        struct plan_wish wish = {.microbatch = job->request.job.microbatch, .no_host_stash = true};
        plan_smallest(&worker->plan, &job->model, &setting, &wish);
        wish.no_host_stash = false;
        if (plan_total(&worker->plan) > worker->budget)
            plan_smallest(&worker->plan, &job->model, &setting, &wish);
    }
}

static bool fits_with(struct daemon *d, const struct shortage *shortage)
{
    return plan_workers(&d->job, shortage, NULL) == 0 && check_host(d, NULL) == 0;
}

/* A device whose memory is the host's may be given less than it would take: what the host has left; without a stash
 * there, or beside one that small devices cannot do without. Then the smallest of all; if that does not fit, it is what
 * the sentence says is needed. */
static int plan_all(struct daemon *d, struct error *err)
{
    struct job *job = &d->job;
    const struct shortage none = {false, UINT64_MAX};
    uint32_t n_arenas;
    int rc = plan_workers(job, &none, err);

    if (rc)
        return rc;
    rc = check_host(d, NULL);
    if (!rc)
        return 0;
    count_arenas(job, &n_arenas);
    const uint64_t left = job_host_left(job), stash = job->host.bytes[LEDGER_STASH], n = n_arenas ? n_arenas : 1;
    const struct shortage without = {true, left / n}, beside = {false, (left > stash ? left - stash : 0) / n};
    if (fits_with(d, &without) || fits_with(d, &beside))
        return 0;
    plan_smallest_workers(job);
    return check_host(d, err);
}

/* The cheapest other options that fit are named; where none do, all is planned as it was asked for. */
static bool advise(struct daemon *d, struct error *err)
{
    struct job *job = &d->job;
    const struct message request = job->request;
    const uint32_t n_workers = job->n_workers;
    const struct plan_asked asked = {.batch = request.job.batch,
                                     .n_parts = request.job.n_parts,
                                     .n_workers = n_workers,
                                     .can_drop_workers = d->is_private,
                                     .resumed = request.job.resume,
                                     .moments = request.job.moments,
                                     .precision = request.job.precision};
    char name[PLAN_ADVICE_TEXT], bytes[2][PROCESS_BYTES_TEXT];
    struct plan_asked advice;
    bool found = false;

    for (unsigned i = 0; request.job.train && !found && plan_advice(&advice, &asked, i); i++) {
        job->n_workers = advice.n_workers;
        job->request.job.n_parts = advice.n_parts;
        job->request.job.moments = advice.moments;
        job->request.job.precision = advice.precision;
        found = plan_all(d, NULL) == 0;
    }
    if (found)
        error_append(err, "; %s would take %s of host memory and %s of %s", plan_advice_name(name, &advice, &asked),
                     process_format_bytes(bytes[0], job->host.total),
                     process_format_bytes(bytes[1], plan_total(&job->workers[0]->plan)),
                     advice.n_workers > 1 ? "each device" : "the device");
    job->request = request;
    job->n_workers = n_workers;
    if (!found)
        plan_all(d, NULL);
    return found;
}

int job_plan(struct daemon *d, struct error *err)
{
    struct job *job = &d->job;
    uint32_t n_arenas;
    int rc = check_request(job, err);

    if (!rc)
        rc = rights_output(d, err);
    if (!rc)
        rc = choose_workers(d, err);
    if (rc)
        return rc;
    rc = plan_all(d, err);
    if ((rc == -ENOMEM || rc == -ENOSPC) && !advise(d, err) && rc == -ENOMEM)
        job_add_remedy(job, d->host_mem, count_arenas(job, &n_arenas), err);
    return rc;
}
