/* Computes what a job needs before any of it is allocated.
 *
 * Nothing is taken and nobody is told before this has succeeded, so a refusal leaves the daemon as it was. What a user
 * can have chosen wrongly is refused here in a sentence; later parts assert it. Every host of several computes the same
 * plan from the same request, and so needs no agreement. */
#include "eps/job/job_internal.h"

#include "eps/base/rights.h"
#include "proto/base/process.h"
#include "proto/model/weights.h"
#include "proto/plan/advice.h"
#include "proto/plan/attention_choice.h"
#include "proto/plan/memory/data.h"
#include "proto/plan/search.h"
#include "proto/step/timeline.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

/* A damaged checkpoint may claim any number; sums of steps must not overflow. */
enum { MOST_STEPS = 1 << 30 };

/* Two moments of each tensor are in one file. */
enum { MOST_HEADERS = 2 };

/* Clients have checked most of this, but a daemon does not rely on its clients. */
static int check_request(const struct job *job, struct error *err)
{
    const struct model_config *c = &job->model.config;
    const uint32_t batch = job_goal(job)->batch, seq = job_goal(job)->seq, n_parts = job_goal(job)->n_parts;

    if (seq < 1 || seq > c->n_positions)
        return error_set(err, -EINVAL, "--seq %u: the model has positions for 1 to %u tokens", seq, c->n_positions);
    if (batch < 1 || n_parts < 1 || batch % n_parts)
        return error_set(err, -EINVAL, "--batch %u rows do not divide into --parts %u equal parts", batch, n_parts);
    if ((uint64_t)batch * seq > 1u << 28)
        return error_set(err, -EINVAL, "--batch %u x --seq %u: more than 2^28 tokens in a minibatch", batch, seq);
    if (job->request.job.fresh != (job->n_weight_files == 0))
        return error_set(err, -EINVAL, "a job has weight files or fresh weights, exactly one of them");
    if (job->request.job.header_bytes > MOST_HEADERS * weights_header_bytes(&job->model))
        return error_set(err, -EINVAL,
                         "the headers of its files have %" PRIu64
                         " bytes, more than this model's may: do they have other tensors, or large metadata?",
                         job->request.job.header_bytes);
    if (job->request.job.resume && (!job_trains(job) || job->request.job.fresh))
        return error_set(err, -EINVAL, "only training can be resumed, from files of weights and moments");
    if (job->request.job.step > 0 && !job->request.job.resume)
        return error_set(err, -EINVAL, "a run that begins at step %" PRIu64 " needs the moments of that step",
                         job->request.job.step);
    if (job->request.job.step > MOST_STEPS)
        return error_set(err, -EINVAL, "step %" PRIu64 " is beyond the last step that a run can have",
                         job->request.job.step);
    if (job_is_fenced(job) && n_parts > 1 && !job_goal(job)->adamw && !job_goal(job)->sgd)
        return error_set(
            err, -EINVAL,
            "a fenced commit sums the parts before they are squared, and AdamA squares each of --parts %u: "
            "choose --optimizer adamw, or --parts 1",
            n_parts);
    if (job_is_folded(job) && job->peers->n_hosts > 1)
        return error_set(err, -EINVAL,
                         "a folded commit is of one host, and this job is of %u: choose --commit eager or fenced",
                         job->peers->n_hosts);
    if (job_goal(job)->momentum >= 1 || (job_goal(job)->nesterov && job_goal(job)->momentum == 0))
        return error_set(err, -EINVAL, "--momentum %g: it is below 1, and with --nesterov above 0",
                         job_goal(job)->momentum);
    if (job_goal(job)->sgd && job->request.job.clip_update > 0)
        return error_set(err, -EINVAL,
                         "--clip-update %g clips Adam's updates, not those of --optimizer sgd: leave it out",
                         job->request.job.clip_update);
    if (job_goal(job)->purpose == PLAN_GENERATE && (batch > PLAN_GENERATE_ROWS || n_parts != 1))
        return error_set(err, -EINVAL, "a job that generates runs up to %d rows in one part", PLAN_GENERATE_ROWS);
    return 0;
}

/* Sets which parts of a step, and which units, are this host's. Every host computes the same division. */
static int divide_among_hosts(struct job *job, struct error *err)
{
    const uint64_t n_parts = job_goal(job)->n_parts, n = job->peers->n_hosts, host = job->peers->host;

    job->first_part = 0;
    job->n_parts = (uint32_t)n_parts;
    if (n < 2 || !job_trains(job))
        return 0;
    if (n_parts < n)
        return error_set(
            err, -EINVAL,
            "the daemon has %u hosts, and each computes at least one part of a step: choose --parts %u, or "
            "more",
            (unsigned)n, (unsigned)n);
    if (plan_may_drop(job_goal(job)))
        return error_set(err, -EINVAL, "on several hosts no layers are dropped: leave out --drop-layers and on_blocks");
    if (job_goal(job)->sparse.keep > 0)
        return error_set(err, -EINVAL, "on several hosts all weights are trained: leave out --sparse");
    if (job_goal(job)->precision == NUMBER_FP16)
        return error_set(err, -EINVAL, "on several hosts no loss is scaled: choose --precision bf16 for fp16");
    if (job->request.job.files || job->files)
        return error_set(err, -EPERM, "on several hosts, only the daemon's own user may train");
    if (job->request.job.audit_every > 0)
        return error_set(err, -EINVAL, "--audit is for one host: its parts cannot be audited on several, leave it out");
    /* As evenly as whole parts allow; host_of_part (eps/step/sharded_step.c) inverts this. */
    job->first_part = (uint32_t)(n_parts * host / n);
    job->n_parts = (uint32_t)(n_parts * (host + 1) / n) - job->first_part;
    job->hosts_bytes = (n - 1) * job->peers->host_slots * model_slot_bytes(&job->model, job_goal(job)->grad);
    job->hosts_tables = n * job->peers->host_bytes + (uint64_t)job->model.n_units * job->peers->host_unit_bytes +
                        (uint64_t)job->model.n_slices * job->peers->host_slice_bytes;
    return plan_divide(&job->own_first, &job->n_own, &job->model, (uint32_t)n, (uint32_t)host, err);
}

/* True if both compute the same bits: CPUs of other machines may have other instructions. */
static bool job_plan_is_alike(const struct peer *a, const struct peer *b)
{
    return a->backend == b->backend && strcmp(a->model, b->model) == 0 && a->attention == b->attention &&
           a->convolution == b->convolution && (*a->model || strcmp(a->host, b->host) == 0);
}

static int refuse_unlike(const struct peer *a, const struct peer *b, struct error *err)
{
    return error_set(
        err, -EINVAL,
        "--audit requires workers of one kind of device, CPUs of one machine, but worker %u (%s) and worker "
        "%u (%s) may round differently: detach one of them, or omit --audit",
        a->id, a->device, b->id, b->device);
}

/* The result is independent of the number of workers only if all of them round alike. */
static int check_kinds(const struct job *job, struct error *err)
{
    const struct peer *first = job->workers[0];

    for (uint32_t i = 0; i < job->n_workers; i++) {
        const struct peer *worker = job->workers[i];
        if (job->request.job.deterministic && worker->backend != first->backend)
            return error_set(err, -EINVAL,
                             "--deterministic requires workers of one kind, but worker %u has %s and worker %u has %s: "
                             "detach one of them, or omit --deterministic",
                             first->id, first->device, worker->id, worker->device);
        if (job->request.job.audit_every > 0 && !job_plan_is_alike(first, worker))
            return refuse_unlike(first, worker, err);
    }
    return 0;
}

static bool may_work(const struct peer *p)
{
    return p->role == ROLE_WORKER && !p->refused && !p->unfit;
}

/* Checks what does not depend on the job's sizes: the worker's rights, its kind of device, and whether that computes
 * attention as the job asks. */
static int check_worker(const struct job *job, const struct peer *worker, struct error *err)
{
    const int rc = rights_compute(job->peers, worker, job->uid, err);

    if (rc)
        return rc;
    if (!worker->backend)
        return error_set(err, -ENODEV, "this daemon does not know its device '%s'", worker->device);
    if (!plan_attention_meets(worker->attention, job_goal(job)->attention))
        return plan_attention_refuse(worker->attention, job_goal(job)->attention, err);
    return 0;
}

/* Workers that have parts, in order of id. None is busy: the last job has ended. */
static int choose_workers(struct job *job, struct error *err)
{
    struct error why;

    for (struct peer *p = job->peers->first; p && job->n_workers < job->n_parts; p = p->next) {
        if (!may_work(p))
            continue;
        if (check_worker(job, p, &why))
            job_leave_out(job, p, why.text);
        else
            job->workers[job->n_workers++] = p;
    }
    if (job->n_workers)
        return check_kinds(job, err);
    if (*job->missed.text)
        return error_set(err, -EAGAIN, "no worker that is attached can do this job: %.400s", job->missed.text);
    return error_set(err, -EAGAIN, "no worker is attached; start one with eps-worker --connect NAME");
}

/* The rest of the daemon's --host-mem. */
static uint64_t daemon_cap(const struct peers *peers)
{
    return !peers->host_mem                       ? UINT64_MAX
           : peers->host_mem > peers->aside_bytes ? peers->host_mem - peers->aside_bytes
                                                  : 0;
}

uint64_t job_host_cap(const struct job *job)
{
    const uint64_t by_daemon = daemon_cap(job->peers);
    const uint64_t by_job = job->request.job.host_mem ? job->request.job.host_mem : UINT64_MAX;

    return by_job < by_daemon ? by_job : by_daemon;
}

/* Names whose limit it is: the machine's free memory, the daemon's --host-mem or the job's own. */
static int refuse_host(const struct job *job, const struct plan_fit *fit, struct error *err)
{
    char need[PROCESS_BYTES_TEXT], have[PROCESS_BYTES_TEXT];
    struct plan_fit_shortage shortage;

    plan_fit_shortage(&shortage, fit);
    return error_set(err, -ENOMEM, "this job needs %s of host memory (%s), %s %s",
                     process_format_bytes(need, shortage.need), shortage.terms,
                     process_format_bytes(have, shortage.have),
                     !shortage.capped                          ? "are free"
                     : shortage.have == daemon_cap(job->peers) ? "are what the daemon's --host-mem allows"
                                                               : "are what --host-mem allows");
}

/* The error of a job that does not fit, with what would. Advice is one that plan_advise has tried: options with
 * which this very job would fit. Without such, the remedy is general. */
static int job_plan_refuse(const struct job *job, const struct plan_fit_asked *asked, const struct plan_fit *fit,
                           int rc, struct error *err)
{
    const struct plan_advice_scope scope = {.can_drop_workers = job->peers->is_private,
                                            .resumed = job->request.job.resume};

    if (rc == -ENOMEM)
        refuse_host(job, fit, err);
    const bool advised = asked->goal.purpose == PLAN_TRAIN && plan_advise(err, asked, &scope);
    if (!advised && rc == -ENOMEM)
        plan_remedy(err, asked, fit);
    return rc;
}

/* True if all that a step's time is predicted from was measured, and its steps are alike: of further hosts nothing is
 * known, and steps that leave out blocks are shorter. */
static bool can_predict(const struct job *job)
{
    bool can = job->n_own == 0 && job_goal(job)->purpose == PLAN_TRAIN && !plan_may_drop(job_goal(job)) &&
               job->request.job.thaw == MODEL_THAW_NEVER;

    for (uint32_t i = 0; i < job->n_workers; i++)
        can &= job->workers[i]->measured;
    return can;
}

/* The first worker's plan decides what must be alike in all: microbatch, the ways of attention and of convolutions. */
static void take_plans(struct job *job, const struct plan_fit *fit)
{
    job->n_seats = job->n_ranges = fit->n_workers;
    job->backend = job->workers[0]->backend;
    job->attention = fit->plans[0].setting.attention;
    job->convolution = fit->plans[0].setting.convolution;
    job->microbatch = fit->plans[0].choice.microbatch;
    job->choice = fit->plans[0].choice;
    const bool predicts = can_predict(job);
    job->predicted_ms = predicts ? fit->cost.step_ms : 0;
    job->predicted_compute_ms = predicts ? fit->cost.compute_ms : 0;
    job->predicted_optimizer_ms = predicts ? fit->cost.optimizer_ms : 0;
    job->host = fit->host;
    job->host_setting = fit->setting;
    for (uint32_t i = 0; i < fit->n_workers; i++) {
        job->workers[i]->plan = fit->plans[i];
        job->seats[i] = (struct job_seat){.job = job,
                                          .peer = job->workers[i],
                                          .worker = job->workers[i]->id,
                                          .room = fit->plans[i].share_parts,
                                          .stash_bytes = fit->plans[i].host_stash_bytes,
                                          .arena_bytes = job_host_arena(job->workers[i], &fit->plans[i])};
        memcpy(job->seats[i].bus, job->workers[i]->bus, sizeof job->seats[i].bus);
    }
}

/* At a shared daemon, a worker whose device is too small for its share does not keep the others from the job. Each is
 * asked for the share that it would have now; with fewer workers shares are larger, so this may follow several times.
 * True if there are such workers, and others: then job->workers is to be chosen again. */
static bool leave_out(struct job *job, const struct plan_fit_asked *asked)
{
    const struct plan_wish wish = {.microbatch = asked->microbatch};
    struct error why[PEERS_MAX_WORKERS];
    bool unfit[PEERS_MAX_WORKERS];
    uint32_t n = 0, n_all = 0;
    struct plan plan;

    for (const struct peer *p = job->peers->first; p; p = p->next)
        n_all += may_work(p);
    for (uint32_t i = 0; i < job->n_workers; i++) {
        const struct plan_fit_device *device = &asked->devices[i];
        const struct plan_setting setting = plan_fit_setting(asked, i);
        unfit[i] =
            plan_search(&plan, asked->model, &setting, &wish, device->profile, device->budget, &why[i]) == -ENOSPC;
        n += unfit[i];
    }
    for (uint32_t i = 0; i < job->n_workers && n < n_all; i++)
        if (unfit[i])
            job_leave_out(job, job->workers[i], why[i].text);
    return n > 0 && n < n_all;
}

/* Plans all workers, for the job that follows a thaw if `thawed`. *again: some were left out, and workers are to be
 * chosen again. */
static int plan_all(struct job *job, bool thawed, bool *again, struct error *err)
{
    struct plan_fit_device devices[PEERS_MAX_WORKERS];
    struct plan_fit *fit = malloc(sizeof *fit); /* half a megabyte */

    if (!fit)
        return error_memory(err);
    for (uint32_t i = 0; i < job->n_workers; i++) {
        const struct peer *worker = job->workers[i];
        devices[i] = (struct plan_fit_device){.backend = worker->backend,
                                              .profile = &worker->profile,
                                              .budget = worker->budget,
                                              .library_bytes = worker->library_bytes,
                                              .measured = worker->measured,
                                              .attention = worker->attention,
                                              .convolution = worker->convolution};
    }
    const struct plan_fit_asked asked = {.model = &job->model,
                                         .goal = *job_goal(job),
                                         .microbatch = job->request.job.microbatch,
                                         .config_bytes = job->config_bytes,
                                         .side_bytes = job->side_bytes,
                                         .files_bytes = job->files ? FILES_BYTES : 0,
                                         .n_files = job->n_weight_files,
                                         .header_bytes = job->request.job.header_bytes,
                                         .from_checkpoint = thawed && !job->request.job.resume,
                                         .devices = devices,
                                         .n_workers = job->n_workers,
                                         .n_parts = job->n_parts < job_goal(job)->n_parts ? job->n_parts : 0,
                                         .n_cores = sysconf(_SC_NPROCESSORS_ONLN),
                                         .available = process_available_bytes(),
                                         .cap = job_host_cap(job),
                                         .own_first = job->own_first,
                                         .n_own = job->n_own,
                                         .hosts_bytes = job->hosts_bytes,
                                         .hosts_tables = job->hosts_tables,
                                         .play = step_timeline_play};
    int rc = plan_fit(fit, &asked, err);

    if (!rc)
        take_plans(job, fit);
    /* At a private daemon all workers were started for this run, so one that is too small is an error. */
    *again = rc == -ENOSPC && !job->peers->is_private && leave_out(job, &asked);
    if (*again)
        rc = 0;
    else if (rc == -ENOMEM || rc == -ENOSPC)
        rc = job_plan_refuse(job, &asked, fit, rc, err);
    free(fit);
    return rc;
}

/* A library that this worker's device lacks, or has in another version, is not used by it: its bits then differ, which
 * only --deterministic forbids. */
static uint32_t job_plan_convolution_of(const struct job *job, const struct peer *worker)
{
    return worker->convolution == job->convolution ? job->convolution : 0;
}

/* Whether it computes the bits of the job's workers, which audit each other. */
static int check_alike(const struct job *job, const struct peer *worker, struct error *err)
{
    for (uint32_t i = 0; job->request.job.audit_every > 0 && i < job->n_seats; i++) {
        const struct peer *other = job->seats[i].peer;
        if (other && other != worker && !job_plan_is_alike(other, worker))
            return refuse_unlike(other, worker, err);
    }
    return 0;
}

static int check_kind(const struct job *job, const struct peer *worker, struct error *err)
{
    int rc = check_worker(job, worker, err);

    if (!rc)
        rc = check_alike(job, worker, err);
    if (rc)
        return rc;
    if (job->request.job.deterministic && worker->backend != job->backend)
        return error_set(err, -EINVAL, "--deterministic requires workers of one kind, and the job has %s",
                         job->backend->name);
    if (!plan_attention_can(worker->attention, job->attention))
        return error_set(err, -EINVAL,
                         "all workers of a job compute attention in one way, here --attention %s, which its device "
                         "does not support: begin with --attention own for it to take part",
                         plan_attention_name(job->attention));
    if (job->request.job.deterministic && job_plan_convolution_of(job, worker) != job->convolution)
        return error_set(err, -EINVAL,
                         "--deterministic requires one library of convolutions, which its device has not");
    return 0;
}

/* Bytes of the host that are free for a seat beyond what it was planned with: for the daemon, within its cap, and for
 * a worker whose arena is there. */
struct spare {
    uint64_t of_daemon, of_arena;
};

static uint64_t minus(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* Workers that share the host's cores, this one included: as many as the job began with, at least. */
static uint32_t count_sharers(const struct job *job, const struct peer *worker)
{
    uint32_t n = 1;

    for (uint32_t i = 0; i < job->n_seats; i++)
        n += job->seats[i].peer && job->seats[i].peer != worker;
    return n > job->n_ranges ? n : job->n_ranges;
}

/* A seat beyond those that the job began with needs an inbox besides. */
static struct spare find_spare(const struct job *job, const struct job_seat *seat, const struct peer *worker)
{
    const uint64_t inbox = seat == &job->seats[job->n_seats] ? job->host.inbox_bytes + job->host.inbox_sums : 0;
    const bool holds = worker->backend->takes_turns && worker->state == PEER_ASSIGNED; /* memory, given back first */
    const uint64_t held = holds ? plan_total(&worker->plan) : 0;
    const uint64_t available = process_available_bytes();
    const uint64_t free = minus(available, plan_host_slack(available, 1) + inbox);
    const uint64_t cap = minus(job_host_cap(job), job->host.total + inbox);

    return (struct spare){.of_daemon = cap < free ? cap : free,
                          .of_arena = available == UINT64_MAX ? UINT64_MAX : free + held};
}

/* The most bytes for the arena of a worker that has this plan: free ones that its stash takes are not the arena's. */
static uint64_t arena_beside(const struct plan *plan, const struct job_seat *seat, const struct spare *spare)
{
    const uint64_t left = minus(spare->of_arena, minus(plan->host_stash_bytes, seat->stash_bytes));

    return left > seat->arena_bytes ? left : seat->arena_bytes;
}

static bool has_inbox(const struct job *job, const struct job_seat *seat)
{
    const struct plan_room room = {.available = process_available_bytes(), .cap = job_host_cap(job)};
    const uint64_t inbox = job->host.inbox_bytes + job->host.inbox_sums;

    return seat != &job->seats[job->n_seats] || (job->host.total + inbox <= room.cap && inbox <= room.available);
}

/* The microbatch and the algorithms are the job's, so the bits are those that any worker would compute. Within what
 * the seat was planned with, if possible; then with what is free. */
int job_plan_seat(struct plan *out, const struct job_seat *seat, const struct peer *worker, uint32_t n_parts,
                  struct error *err)
{
    const struct job *job = seat->job;
    struct plan_setting setting = {.backend = worker->backend,
                                   .library_bytes = worker->library_bytes,
                                   .attention = job->attention,
                                   .convolution = job_plan_convolution_of(job, worker),
                                   .goal = *job_goal(job)};
    struct plan_wish wish = {.microbatch = job->microbatch,
                             .host = &job->host_setting,
                             .play = step_timeline_play,
                             .n_slots = job->host.n_slots};
    const int kind = check_kind(job, worker, err);

    if (kind)
        return kind;
    if (!has_inbox(job, seat))
        return error_set(err, -ENOMEM, "the host has no room for its inbox");
    const struct spare spare = find_spare(job, seat, worker);
    const bool shares_host = worker->backend->takes_turns;
    plan_share(&setting, count_sharers(job, worker), sysconf(_SC_NPROCESSORS_ONLN));
    setting.share_rows = n_parts * setting.part_rows;
    int rc = -ENOSPC;
    for (int roomy = 0; roomy < 2 && rc == -ENOSPC; roomy++) {
        const uint64_t stash = seat->stash_bytes + (roomy ? spare.of_daemon : 0);
        const uint64_t most = roomy && seat->arena_bytes < spare.of_arena ? spare.of_arena : seat->arena_bytes;
        const uint64_t budget = shares_host && most < worker->budget ? most : worker->budget;
        /* The best plan may want more stash on the host than there is: then the best one without. */
        for (int no_stash = stash == 0; no_stash < 2 && rc == -ENOSPC; no_stash++) {
            wish.no_host_stash = no_stash;
            rc = plan_search(out, &job->model, &setting, &wish, &worker->profile, budget, err);
            if (!rc && shares_host && plan_total(out) > arena_beside(out, seat, &spare))
                rc = plan_search(out, &job->model, &setting, &wish, &worker->profile, arena_beside(out, seat, &spare),
                                 err);
            if (!rc &&
                (out->host_stash_bytes > stash || (shares_host && plan_total(out) > arena_beside(out, seat, &spare))))
                rc = -ENOSPC;
        }
    }
    return rc;
}

/* On several hosts, owners sum, hold and square; this host's relay only sees that its parts' slices leave.
 *   deterministic  parts of a slice go to its owner in order: a later one that waits there for room would keep an
 *                  earlier one, which the owner waits for, from being sent
 *   replay         fenced, too: no unit is updated before all hosts have covered the step
 *   seats          more than parts, as inboxes may wait for other hosts */
static void choose_facts(struct job *job)
{
    const bool sharded = job->n_own > 0;

    job->facts = (struct job_facts){
        .sharded = sharded,
        .adamw = plan_sums_parts(job_goal(job)) && !sharded,
        .fenced = job_is_fenced(job) && !sharded,
        .folded = job_is_folded(job),
        .deterministic = job->request.job.deterministic || sharded,
        .replay = job_replays(job) || sharded,
        .announces_arrival = !plan_updates_last(job_goal(job)) && !sharded,
        .keeps_inboxes = sharded,
        .may_be_set_aside = !sharded,
        .has_masters = !sharded,
        .most_seats = !sharded && job->n_parts < PEERS_MAX_WORKERS ? job->n_parts : PEERS_MAX_WORKERS,
    };
    job->aligned = !sharded;
}

/* The order is that of dependence: rows are divided before the model has its domains, tensors are frozen before what is
 * approximate looks at the trained ones. */
static int build_model(struct job *job, const char *freeze, struct error *err)
{
    struct plan_goal *goal = &job->request.job.goal;
    struct model_config config;
    int rc = model_config_parse(&config, job->config.base, job->config_bytes, err);

    if (!rc)
        rc = plan_divide_rows(&config, goal, err);
    if (!rc)
        rc = model_init(&job->model, &config, err);
    if (!rc)
        rc = model_freeze(&job->model, freeze, model_base_of(goal->base, goal->precision), err);
    if (!rc)
        plan_approximate(&job->model, goal);
    if (!rc && job->model.n_norm_maps == 0)
        goal->entries = 0;
    if (!rc && goal->chooses)
        rc = model_drop_check(&job->model, err);
    return rc ? rc : model_drop_prepare(&job->model, goal->drop_layers, err);
}

/* Builds the model with these tensors frozen, chooses workers and plans them; thawed: for the job that follows a
 * thaw. */
static int plan_form(struct job *job, const char *freeze, bool thawed, struct error *err)
{
    int rc = build_model(job, freeze, err);

    if (!rc)
        rc = check_request(job, err);
    if (!rc)
        rc = divide_among_hosts(job, err);
    if (!rc)
        rc = job->output >= 0 && job->client ? rights_output(job->client, err) : 0;
    /* Ends: each round leaves out at least one worker, and never the last one. */
    for (bool again = true; !rc && again;) {
        job->n_workers = 0;
        rc = choose_workers(job, err);
        again = false;
        if (!rc)
            rc = plan_all(job, thawed, &again, err);
    }
    return rc;
}

/* Whether the job that follows, in which nothing is frozen any more, would have room. A worker that is too small for
 * that one is left out of this one, too. Both have the same microbatch, so that it does not depend on when the run
 * stops. The model is freed again, and the goal's base restored: nothing but the microbatch and who was left out
 * remains. */
static int check_thawed(struct job *job, struct error *err)
{
    struct plan_goal *goal = &job->request.job.goal;
    const enum form base = goal->base;
    struct model_config config;
    int rc = model_config_parse(&config, job->config.base, job->config_bytes, err);

    if (rc)
        return rc;
    goal->base = model_thawed_base(&config, base);
    rc = plan_form(job, NULL, true, err);
    goal->base = base;
    if (rc == -ENOMEM || rc == -ENOSPC)
        error_append(err, "; this is for training all tensors: leave --freeze-until out, and they stay frozen");
    if (rc)
        return rc;
    job->request.job.microbatch = job->microbatch;
    model_free(&job->model);
    return 0;
}

int job_plan(struct job *job, struct error *err)
{
    const enum model_thaw thaw = job->request.job.thaw;
    int rc = thaw == MODEL_THAW_LATER ? check_thawed(job, err) : 0;

    if (!rc)
        rc = plan_form(job, thaw == MODEL_THAWED ? NULL : job->request.job.freeze, false, err);
    if (!rc)
        choose_facts(job);
    return rc;
}
