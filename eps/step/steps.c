/* A message becomes an event for the relay. The relay's actions become messages, and folds and updates for the
 * optimizer thread. */
#include "eps/step/steps.h"

#include "eps/job/damage.h"
#include "eps/step/audits.h"
#include "eps/step/commit.h"
#include "eps/step/faults.h"
#include "eps/step/shares.h"
#include "eps/store/norms.h"
#include "proto/plan/memory/data.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- tables ----------------------------------------------------------------------------------------------------- */

void steps_start(struct steps *steps, struct saves *saves)
{
    steps->saves = saves;
    steps->commit = &commit_local;
}

void steps_begin(struct steps *steps)
{
    steps->commit = job_is_sharded(steps->job) ? &commit_sharded : &commit_local;
    steps->commit->begin(steps);
}

int steps_init(struct steps *steps, struct error *err)
{
    struct job *job = steps->job;
    const uint32_t n_units = job->model.n_units;

    *steps = (struct steps){.job = job,
                            .saves = steps->saves,
                            .commit = steps->commit,
                            .sharded = steps->sharded,
                            .busy_ns = updater_busy_ns(job->peers->updater),
                            .n_opened = job->step,
                            .n_over = job->step,
                            .announced_ahead = MESSAGE_NO_STEP,
                            .loss = NAN,
                            .fence.n_units = job_is_fenced(job) ? n_units : 0,
                            .fence.norm = NAN,
                            .fence.scale = &job->loss_scale};
    if (job_goal(job)->precision == NUMBER_FP16 && job->loss_scale.value == 0)
        job->loss_scale.value = FENCE_FIRST_SCALE;
    steps->slices = job_take_table(job, job->model.n_visits, sizeof *steps->slices);
    steps->homes = job_take_table(job, plan_host_ordered(&job->model, job_goal(job)), sizeof *steps->homes);
    steps->visits = job_take_table(job, plan_host_ordered(&job->model, job_goal(job)), sizeof *steps->visits);
    steps->frozen = job_take_table(job, plan_host_frozen(&job->model, job_goal(job)), sizeof *steps->frozen);
    steps->fence.squares = job_take_table(job, n_units, sizeof *steps->fence.squares);
    steps->fence.n_given = job_take_table(job, n_units, sizeof *steps->fence.n_given);
    if (!steps->slices || !steps->homes || !steps->visits || !steps->frozen || !steps->fence.squares ||
        !steps->fence.n_given)
        return error_memory(err);
    for (uint32_t v = 0; v < job->model.n_visits; v++)
        steps->slices[v] = job->model.units[job->model.visits[v]].n_slices;
    for (uint32_t u = 0, n = 0; u < n_units; u++)
        if (job->model.units[u].n_trained == 0)
            steps->frozen[n++] = u;
    return 0;
}

void steps_free(struct steps *steps)
{
    steps->commit->end(steps);
    if (steps->n_audits > 0)
        log_line("%" PRIu64 " steps were audited", steps->n_audits);
    free(steps->slices);
    free(steps->homes);
    free(steps->visits);
    steps->job->homes = NULL;
    free(steps->frozen);
    free(steps->fence.squares);
    free(steps->fence.n_given);
    *steps = (struct steps){
        .job = steps->job, .saves = steps->saves, .commit = &commit_local, .sharded = steps->sharded, .loss = NAN};
}

/* ---- actions ---------------------------------------------------------------------------------------------------- */

static struct peer *find_worker(const struct job *job, uint32_t id)
{
    for (uint32_t i = 0; i < job->n_workers; i++)
        if (job->workers[i]->id == id)
            return job->workers[i];
    return NULL;
}

void steps_note_change(struct steps *steps)
{
    steps->n_changes++;
    steps->announced_ahead = MESSAGE_NO_STEP;
    steps->job->divided = false;
}

/* A share replaces the one that the worker has, so it lists parts that it is in the middle of, too. */
void steps_share(struct steps *steps, struct peer *worker)
{
    struct relay_part parts[MESSAGE_MAX_PARTS];

    const struct relay *relay = steps->job->relay;
    const struct shares_audit audit = {relay_audit_of(relay, worker->id), relay_audited(relay)};

    shares_send(steps->job, worker, &steps->open, parts, relay_missing(relay, worker->id, parts), audit);
}

static void send_step(struct steps *steps, enum message_kind kind, uint64_t step)
{
    const struct job *job = steps->job;
    struct message m = {.kind = kind};

    m.done.step = step;
    m.done.loss = steps->loss;
    m.done.rewards = steps->rewards;
    m.done.host_bytes = job->peers->ledger.total.current;
    m.done.grad_norm = steps->grad_norm;
    m.done.skipped = steps->skipped;
    m.done.loss_scale = steps->loss_scale;
    for (uint32_t i = 0; i < job->n_workers; i++)
        if (m.done.device_peak < job->workers[i]->ledger.total.peak)
            m.done.device_peak = job->workers[i]->ledger.total.peak;
    if (kind == MESSAGE_DONE) {
        const uint64_t busy_ns = updater_busy_ns(job->peers->updater);
        m.done.optimizer_ms = (double)(busy_ns - steps->busy_ns) / 1e6;
        steps->busy_ns = busy_ns;
        steps->ended[step % MESSAGE_DONE_STEPS] = m.done;
    }
    job_announce(job, &m);
}

/* Nats per token; NAN where a part's is not finite. */
static double find_loss(const struct steps *steps)
{
    double sum = 0;

    for (uint32_t p = 0; p < job_goal(steps->job)->n_parts; p++)
        sum += steps->part_loss[p];
    return sum / (double)steps->open.open_step.n_valid;
}

/* Parts are added in their order, as their losses are. */
static struct preference_rewards sum_rewards(const struct steps *steps)
{
    struct preference_rewards sum = {0};

    for (uint32_t p = 0; p < job_goal(steps->job)->n_parts; p++) {
        const struct preference_rewards *part = &steps->part_rewards[p];
        sum.chosen += part->chosen;
        sum.rejected += part->rejected;
        sum.right += part->right;
        sum.chosen_log_p += part->chosen_log_p;
        sum.rejected_log_p += part->rejected_log_p;
    }
    return sum;
}

void steps_on_covered(struct steps *steps, uint64_t step)
{
    struct steps_recent *recent = &steps->recent;

    steps->covered = true;
    steps->job->aligned = true;
    save_aligned(steps->saves);
    /* A skipped step has none of them, whichever parts' losses came before one of its numbers was not finite. */
    steps->skipped = steps->fence.skipped;
    steps->loss = steps->skipped ? NAN : find_loss(steps);
    steps->rewards = steps->skipped ? (struct preference_rewards){0} : sum_rewards(steps);
    steps->grad_norm = steps->fence.norm;
    steps->loss_scale = steps->open_scale;
    save_note_scale(steps->saves, step + 1);
    recent->tokens += steps->open.open_step.n_real;
    recent->steps[recent->n++ % MESSAGE_RECENT_STEPS] =
        (struct steps_covered){(float)steps->loss, steps->open.open_step.lr, uv_now(steps->job->peers->loop),
                               recent->tokens};
    send_step(steps, MESSAGE_COVERED, step);
    faults_convict(steps);
    audits_on_covered(steps);
    shares_review(steps);
}

void steps_end_step(struct steps *steps)
{
    struct job *job = steps->job;

    job->step++;
    send_step(steps, MESSAGE_DONE, job->step - 1);
    if (steps->n_opened == job->step)
        job_enter(job, JOB_RESTING);
}

void steps_on_done(struct steps *steps, uint64_t step)
{
    assert(step == steps->job->step);
    if (!steps_rewires_after(steps, step))
        steps_end_step(steps);
}

void steps_skip(struct steps *steps, uint64_t step)
{
    log_warning("step %" PRIu64 " skipped: its loss or gradient is not finite; weights and moments are as before it",
                step + 1);
    fence_skip(&steps->fence, step);
}

/* A fenced step leaves no trace; any other ends the job. */
static void on_skipped(struct steps *steps, uint64_t step)
{
    faults_acquit(steps);
    if (steps->fault.worker && !steps->job->facts.fenced) {
        faults_end(steps, step, false);
        return;
    }
    if (!job_is_fenced(steps->job)) {
        damage_end_otherwise(steps->job, -EDOM,
                             "the loss of step %" PRIu64
                             " is not finite; nothing of that step was applied: try a lower --lr",
                             step + 1);
        return;
    }
    if (steps->job->facts.fenced)
        steps_skip(steps, step);
    else /* the other hosts hear of the loss, and all of the verdict */
        fence_skip(&steps->fence, step);
    damage_look(steps->job);
}

static void send_slot(const struct job *job, struct peer *worker, const struct relay_action *a)
{
    struct message m = {.kind = a->kind == RELAY_FREE ? MESSAGE_FREE : MESSAGE_GRANT};

    if (m.kind == MESSAGE_FREE) {
        m.free.slot = a->slot;
        m.free.name = a->name;
        m.free.name.part += job->first_part;
    } else {
        m.grant.name = a->name;
        m.grant.name.part += job->first_part;
    }
    session_send(worker->session, &m);
}

/* Carries out one action. The job may have ended when this returns. A worker that has left, or has not joined yet, is
 * told nothing; one that joins hears of its share then. */
static void steps_act(struct steps *steps, const struct relay_action *a)
{
    struct job *job = steps->job;
    struct peer *worker = find_worker(job, a->worker);

    switch (a->kind) {
    case RELAY_SHARE:
        if (a->step == steps->announced_ahead)
            break;
        steps->announced_ahead =
            MESSAGE_NO_STEP; /* the worker forgets its share of that step, as this one replaces it */
        if (worker)
            steps_share(steps, worker);
        break;
    case RELAY_ANSWER:
        if (worker) {
            throughput_on_weights(&worker->throughput, (double)uv_now(job->peers->loop));
            steps->commit->answer(steps, worker, a->step, a->unit,
                                  a->is_void  ? COMMIT_VOID
                                  : a->before ? COMMIT_BEFORE
                                              : COMMIT_NOW);
        }
        break;
    case RELAY_FOLD:
        steps->commit->fold(steps, a);
        break;
    case RELAY_UPDATE:
        steps->commit->update(steps, a);
        break;
    case RELAY_FREE:
    case RELAY_GRANT:
        if (worker)
            send_slot(job, worker, a);
        break;
    case RELAY_COVERED:
        steps->n_over = a->step + 1;
        if (steps->n_changes > 0) /* a worker may be redoing what was folded after all */
            steps->fence.n_past = a->step + 1;
        steps->commit->covered(steps, a->step);
        break;
    case RELAY_DONE:
        steps->commit->done(steps, a->step);
        break;
    case RELAY_REFUSE:
        assert(!a->to_reader); /* no fold comes too early, twice, or beyond its number */
        if (a->to_client)
            job_end(job, -EPROTO, "step refused: %s", a->why);
        else if (a->not_finite)
            faults_suspect(steps, worker, a->worker);
        else if (worker)
            faults_blame(steps, worker, a->why);
        break;
    case RELAY_SKIPPED:
        on_skipped(steps, a->step);
        break;
    case RELAY_TORN:
        faults_end_torn(steps, a->step);
        break;
    case RELAY_CAPTURE:
        save_on_capture(steps->saves, a);
        break;
    case RELAY_AUDIT: /* its share says so */
        if (a->third)
            audits_recruit(steps, a->worker);
        break;
    case RELAY_AGAIN:
        audits_try_again(steps, a->worker);
        break;
    case RELAY_REDO: /* what it has sent of its share is outdated */
        steps_note_change(steps);
        break;
    case RELAY_LIAR:
        audits_convict(steps, a->worker);
        break;
    case RELAY_UNDECIDED:
        audits_end(steps, a->worker, a->other);
        break;
    case RELAY_SAVED:   /* known, since all units were released */
    case RELAY_ABANDON: /* the job ends with the next action */
        break;
    }
}

/* Only the optimizer's work is left in the step, so workers may go on to the next one. Excluded are devices that
 * take turns with the optimizer, and fenced commit, where nothing is updated before the end. */
static void note_arrival(struct steps *steps)
{
    const struct job *job = steps->job;
    struct message m = {.kind = MESSAGE_ARRIVED};

    if (job->state != JOB_STEPPING || steps->covered || steps->arrived || !job->facts.announces_arrival ||
        !relay_has_all(job->relay))
        return;
    for (uint32_t i = 0; i < job->n_workers; i++)
        if (job->workers[i]->backend->takes_turns)
            return;
    steps->arrived = true;
    m.arrived.step = steps->n_opened - 1;
    job_announce(job, &m);
}

void steps_feed(struct steps *steps, const struct relay_event *event)
{
    struct job *job = steps->job;
    const struct relay_action *actions;
    int n = job_is_open(job) && !damage_is_pending(job) ? relay_feed(job->relay, event, &actions) : 0;

    if (n < 0)
        job_end_memory(job);
    for (int i = 0; i < n && job_is_open(job) && !damage_is_pending(job); i++)
        steps_act(steps, &actions[i]);
    if (!damage_is_pending(job))
        note_arrival(steps);
}

void steps_feed_reader(struct steps *steps, const struct relay_event *event)
{
    steps->commit->feed_reader(steps, event);
}

/* The job has ended, but the optimizer thread may still finish the last unit that a checkpoint waits for. */
static void feed_saves(struct steps *steps, const struct updater_task *work)
{
    const struct relay_event event = commit_event(work);
    const struct relay_action *actions;
    int n = steps->saves->first ? relay_feed(job_reader_relay(steps->job), &event, &actions) : 0;

    for (int i = 0; i < n; i++)
        if (actions[i].kind == RELAY_CAPTURE)
            save_on_capture(steps->saves, &actions[i]);
}

/* ---- opening ---------------------------------------------------------------------------------------------------- */

struct hyper steps_hyper(const struct job *job, const struct message *open)
{
    return (struct hyper){.lr = open->open_step.lr,
                          .beta1 = job->request.job.beta1,
                          .beta2 = job->request.job.beta2,
                          .epsilon = job->request.job.epsilon,
                          .weight_decay = job->request.job.weight_decay,
                          .grad_scale = 1,
                          .sgd = job_goal(job)->sgd,
                          .nesterov = job_goal(job)->nesterov,
                          .momentum = job_goal(job)->momentum};
}

void steps_clear(struct steps *steps)
{
    for (uint32_t p = 0; p < job_goal(steps->job)->n_parts; p++)
        steps->part_loss[p] = NAN;
    memset(steps->part_rewards, 0, sizeof steps->part_rewards);
    fence_begin(&steps->fence);
    steps->reads_before = false;
}

/* Which tokens of the training data the minibatch has, if norms of them are remembered; before workers hear of the
 * step, as they may pull of it while the step before is not covered. False: the job has ended. */
static bool take_entries(struct job *job, const struct message *m)
{
    const struct plan_data data = plan_data_of(job_goal(job), job->model.config.n_labels);
    const void *entries = (const char *)job->data.base + data.buffers[m->open_step.buffer].at[PLAN_FIELD_ENTRIES];
    struct error err;
    const int rc = norms_open_step(&job->store.norms, m->open_step.step, entries, m->open_step.n_tokens, &err);

    if (rc)
        job_end(job, rc, "%s", err.text);
    return rc == 0;
}

static void steps_begin_step(struct steps *steps, const struct message *m)
{
    struct job *job = steps->job;
    uint32_t owners[MESSAGE_MAX_PARTS];
    struct peer *workers[MESSAGE_MAX_PARTS];
    const uint32_t n_parts = job->n_parts, *visits = steps_arrange(steps, m);
    struct relay_event event = {
        .kind = RELAY_OPEN,
        .step = m->open_step.step,
        .visits = visits,
        .n_slices = steps->slices,
        .n_visits = job->model.n_visits,
        .frozen = steps->frozen,
        .n_frozen = steps_leave_out(steps, m),
        .owners = owners,
        .n_owners = n_parts,
    };

    shares_find_owners(job, workers);
    for (uint32_t p = 0; p < n_parts; p++)
        owners[p] = workers[p]->id;
    const struct audits_choice audit = audits_choose(job, m->open_step.step, workers);
    event.audits = audit.auditor != NULL;
    event.audited = audit.part;
    event.worker = audit.auditor ? audit.auditor->id : 0;
    steps->open = *m;
    steps->hyper = steps_hyper(job, m);
    steps->open_scale = job->loss_scale.value;
    steps->commit->begin_step(steps);
    job_enter(job, JOB_STEPPING);
    steps->covered = steps->arrived = false;
    steps->fault.worker = steps->n_damaged = 0;
    steps_feed(steps, &event);
    steps->announced_ahead = MESSAGE_NO_STEP;
    if (m->open_step.step == job->request.job.step)
        save_on_first_step(steps->saves);
}

/* The step before is not covered yet. Its folds go on undisturbed in the relay and the optimizer, while workers
 * begin this one. Their pulls wait for this step's weights. They send no loss before they have all weights, and by
 * then the step before is done. If a worker leaves or joins meanwhile, all hear of their shares again. */
static void begin_ahead(struct steps *steps, const struct message *m)
{
    struct job *job = steps->job;
    struct peer *owners[MESSAGE_MAX_PARTS];

    if (!job_has_room(job))
        return;
    shares_find_owners(job, owners);
    const struct audits_choice audit = audits_choose(job, m->open_step.step, owners);
    steps->announced_ahead = m->open_step.step;
    for (uint32_t i = 0; i < job->n_workers; i++) {
        struct relay_part parts[MESSAGE_MAX_PARTS];
        uint32_t n = 0;
        for (uint32_t p = 0; p < job->n_parts; p++)
            if (owners[p] == job->workers[i])
                parts[n++] = (struct relay_part){.part = p};
        shares_send(job, job->workers[i], m, parts, n,
                    (struct shares_audit){.audit = audit.auditor == job->workers[i] ? audit.part : UINT32_MAX,
                                          .audited = audit.auditor ? audit.part : UINT32_MAX});
    }
}

/* A step that drops blocks, of which nobody waits for weights, may not be ahead of its turn: its losses could come
 * before the step before is done. */
static bool steps_is_due(const struct steps *steps)
{
    const struct job *job = steps->job;
    const struct model_drop *drop = &steps->ahead.open_step.drop;

    return job->state == JOB_RESTING || (job->state == JOB_STEPPING && steps->covered &&
                                         (model_drop_is_empty(drop) || job->step == steps->ahead.open_step.step));
}

bool steps_begin_ahead(struct steps *steps)
{
    if (!steps->has_ahead || steps_rewires_before(steps, steps->ahead.open_step.step) || !job_has_room(steps->job) ||
        !steps_is_due(steps))
        return false;
    steps->has_ahead = false;
    steps_begin_step(steps, &steps->ahead);
    return true;
}

bool steps_may_open(const struct steps *steps)
{
    const struct job *job = steps->job;

    return !steps->has_ahead &&
           (job->state == JOB_RESTING || (job->state == JOB_STEPPING && (steps->covered || steps->arrived)));
}

void steps_open(struct steps *steps, const struct message *m)
{
    struct job *job = steps->job;

    if (!job_trains(job) || m->open_step.step != steps->n_opened || m->open_step.buffer > 1 ||
        m->open_step.n_tokens < 1 || m->open_step.n_tokens > job_goal(job)->seq || m->open_step.n_valid < 1 ||
        m->open_step.n_valid > (uint64_t)job_goal(job)->batch * m->open_step.n_tokens || m->open_step.n_real < 1 ||
        m->open_step.n_real > (uint64_t)job_goal(job)->batch * m->open_step.n_tokens || !(m->open_step.lr >= 0) ||
        !steps_may_compute(job, m)) {
        if (job->client)
            peer_refuse(job->client, "a step that cannot be");
        else
            job_end(job, -EPROTO, "host 0 opened a step that cannot be");
        return;
    }
    if (!take_entries(job, m))
        return;
    steps->n_opened++;
    steps->ahead = *m;
    steps->has_ahead = true;
    steps->commit->request(steps, m);
    if (job->state == JOB_STEPPING && !steps->covered && model_drop_is_empty(&m->open_step.drop) &&
        !steps_rewires_before(steps, m->open_step.step))
        begin_ahead(steps, m);
    else
        steps_begin_ahead(steps); /* if there are workers for all parts */
}

bool steps_wait(const struct steps *steps)
{
    const struct job *job = steps->job;

    if (!job_is_open(job) || !job_trains(job))
        return false;
    const bool is_begun = job->state == JOB_STEPPING && !steps->covered,
               lacks = is_begun ? relay_n_waiting(job->relay) > 0 : steps->has_ahead;
    return (lacks && !job_has_room(job)) || job->others_wait;
}

/* A step ahead is counted as opened only: neither COVERED nor ARRIVED can have been sent for it. */
void steps_announce_taken(const struct steps *steps, struct message *m)
{
    const struct job *job = steps->job;
    const uint64_t first = job->request.job.step, begun = steps->n_opened - steps->has_ahead;
    const uint64_t n = job->step - first < MESSAGE_DONE_STEPS ? job->step - first : MESSAGE_DONE_STEPS;

    m->taken.opened = steps->n_opened;
    m->taken.done = job->step;
    m->taken.covered = job->state == JOB_STEPPING && !steps->covered ? begun - 1 : begun;
    m->taken.arrived = steps->arrived ? begun : m->taken.covered;
    m->taken.waits = job_waits(job);
    m->taken.n = (uint32_t)n;
    for (uint64_t i = 0; i < n; i++)
        m->taken.steps[i] = steps->ended[(job->step - n + i) % MESSAGE_DONE_STEPS];
}

/* ---- the optimizer thread --------------------------------------------------------------------------------------- */

/* A fault that no later step can mend. The relay never hears of this unit, so no reader captures or saves it. */
static void end_not_finite(struct job *job, const struct updater_task *work)
{
    const char *const end =
        job_goal(job)->precision == NUMBER_FP16 ? ", or --precision bf16, as fp16 ends at 65504" : "";
    char unit[MODEL_NAME_BYTES];

    job_end(job, -EDOM,
            "step %" PRIu64 " made weights of %s that are not finite, and void: try a lower --lr, or --clip-norm%s",
            work->step + 1, model_unit_name(unit, &job->model, work->unit), end);
}

/* A skipped step is done while some of its folds are still under way. */
void steps_on_optimizer(struct steps *steps, const struct updater_task *work)
{
    if (work->context)
        ((struct job_seat *)work->context)->n_folds--;
    if (work->result == -EIO)
        damage_on_task(steps->job, work);
    else if (work->result == -EBADMSG || (work->result == -EDOM && steps->n_damaged > 0 && job_is_fenced(steps->job)))
        faults_on_damaged(steps, work);
    else if (work->result == -ERANGE)
        end_not_finite(steps->job, work);
    else if (job_is_open(steps->job))
        steps->commit->optimized(steps, work);
    else if (steps->job->state == JOB_ENDING && work->kind != UPDATER_CHECK)
        feed_saves(steps, work);
}
