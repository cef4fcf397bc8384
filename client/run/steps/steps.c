/* done <= covered <= arrived <= opened. Each round of the loop (take_steps) does one thing that is due, or waits for
 * one message. `hear` moves the first three by one, and refuses what would break their order. A stop that saves breaks
 * no wait: it changes what is due, and the loop ends as after the last step. */
#include "client/run/steps/steps_state.h"

#include "client/daemon/observer.h"
#include "client/member.h"
#include "client/run/steps/samples.h"
#include "client/record/change.h"
#include "client/options/options.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { RETRY_MS = 2000, SLICE_MS = 100, PATIENCE_S = 600, MOST_SKIPPED = 20, TOLD_SKIPPED = 5 };

void client_steps_note(const struct client_steps *s, const char *sentence)
{
    client_tell(s->events->on_note, s->user, sentence);
}

static void steps_on_lost(struct client_steps *s, const struct message *m)
{
    struct error sentence;
    const bool left = m->lost.how == LOSS_TOLD, begun = left || m->lost.how == LOSS_WORKING;
    const char *what = !m->lost.waits ? left ? "the others go on without it" : "the others redo its parts of the step"
                       : s->run->options.connect ? "the step waits for another worker to attach"
                                                 : "another one is started, and redoes its parts of the step";

    if (begun)
        error_set(&sentence, 0, "worker %u (%s) %s after %" PRIu64 " steps: %s; %s", m->lost.worker, m->lost.device,
                  left ? "left" : "was lost", m->lost.step, m->lost.error.text, what);
    else
        client_observer_say_missing(&sentence, m);
    client_steps_note(s, sentence.text);
}

/* A stop was requested, but the open step may wait for a worker that never comes. */
static void ask_whether_it_waits(struct client_steps *s)
{
    if (s->stop != 1 || !s->run->options.connect || s->covered == s->opened || s->looks || s->cut_short ||
        s->link->awake_ms < s->waits_ms)
        return;
    s->looks = true;
    client_link_send(s->link, &(struct message){.kind = MESSAGE_STATUS});
}

/* The run ends with the last step that is covered, which is saved if nothing of the open one is in the model. Else it
 * has waited for a worker, and none has come. */
static void on_status(struct client_steps *s, const struct message *m)
{
    s->looks = false;
    if (s->stop != 1 || s->cut_short || s->covered == s->opened || !m->status_reply.waits)
        return;
    s->cut_short = true;
    s->cut_asked = s->waits_ms != 0;
}

/* Messages that may come at any time, whatever the run waits for. */
static void steps_on_aside(void *data, const struct message *m)
{
    struct client_steps *s = data;

    if (m->kind == MESSAGE_SAVED)
        client_steps_on_saved(s, m->saved.step);
    if (m->kind == MESSAGE_SAVE_FAILED)
        client_steps_on_save_failed(s, m->save_failed.step, m->save_failed.code, &m->save_failed.error);
    if (m->kind == MESSAGE_OUTPUT)
        client_output_hear(&s->output, s->link, m, s->opened);
    if (m->kind == MESSAGE_MEMORY_REPLY)
        client_memory_hear(&s->memory, m);
    if (m->kind == MESSAGE_LOST)
        steps_on_lost(s, m);
    if (m->kind == MESSAGE_STATUS_REPLY)
        on_status(s, m);
    if (m->kind == MESSAGE_STOP && s->stop == 0) {
        s->stop = 1;
        s->daemon_stops = true;
        s->job_stops = m->stop.job != 0;
    }
}

void client_steps_init(struct client_steps *s)
{
    s->metrics.fd = s->output.partial_fd = s->tensorboard.fd = s->mirror.fd = -1;
    s->asked = MESSAGE_NO_STEP;
    s->before = s->given.lr = NAN;
    client_best_init(&s->best);
    s->kept = s->judged = s->best;
    s->link->on_aside = steps_on_aside;
    s->link->aside_data = s;
}

void client_steps_free(struct client_steps *s)
{
    client_tidy_end(&s->tidy);
    client_steps_end_mirror(s);
    client_blocks_free(&s->blocks);
    client_weights_free(&s->weights);
    client_output_free(&s->output);
    client_metrics_close(&s->metrics);
    client_tensorboard_close(&s->tensorboard);
    client_checkpoints_free(&s->checkpoints);
}

uint64_t client_steps_saved(const struct client_steps *s)
{
    return s->checkpoints.n > 0 ? s->checkpoints.steps[s->checkpoints.n - 1] : MESSAGE_NO_STEP;
}

bool client_steps_saved_here(const struct client_steps *s)
{
    return client_steps_saved(s) != MESSAGE_NO_STEP && client_steps_saved(s) > s->run->first_step;
}

bool client_steps_go_on(const struct client_steps *s)
{
    return s->job_end < s->end && s->done == s->job_end && !s->stop && !s->save_rc;
}

const char *client_steps_stopped_by(const struct client_steps *s)
{
    return s->job_stops      ? "the job was stopped: the run ended"
           : s->daemon_stops ? "the daemon was stopped: the run ended"
                             : "interrupted";
}

int client_steps_ask(void *steps, struct error *err)
{
    struct client_steps *s = steps;
    const bool saves = s->begun && s->run->options.save_every != 0;
    const int stop = s->events->should_stop ? s->events->should_stop(s->user) : 0;

    if (s->stop == 0 && stop == 1 && saves && s->covered < s->opened)
        client_steps_note(s, "stopping: the step under way is finished and saved first; a second request ends the run "
                             "at once");
    if (s->stop < stop)
        s->stop = stop;
    if (saves)
        ask_whether_it_waits(s);
    if (s->stop == 0 || (s->stop == 1 && saves))
        return 0;
    return error_set(err, -EINTR, "interrupted");
}

/* Patience ends the run like its last step: that step is saved. */
void client_steps_end_early(struct client_steps *s)
{
    const struct eps_train_options *o = &s->run->options;
    struct error sentence;

    if (o->patience == 0 || s->best.n_since < o->patience || s->done >= s->end)
        return;
    s->end = s->done;
    error_set(&sentence, 0,
              "stopped early after step %" PRIu64 " of %" PRIu64 ": none of the last %u evaluations was below the "
              "held-out loss of %.4f after step %" PRIu64,
              s->done, o->steps, o->patience, s->best.loss, s->best.step);
    client_steps_note(s, sentence.text);
}

static void judge(struct client_steps *s, double loss)
{
    s->judged = (struct client_best){.loss = client_metrics_round(loss), .step = s->done};
    client_best_add(&s->best, s->done, s->judged.loss);
    if (s->done > 0)
        client_steps_on_judged(s);
    else if (s->judged.loss < s->kept.loss)
        s->kept = s->judged; /* to beat, and without a checkpoint */
    client_steps_end_early(s);
}

/* Evaluates after all opened steps are done, in the buffer that does not hold the next step's data. A stop interrupts
 * it: the loss is then NaN. */
int client_steps_evaluate(struct client_steps *s, double *loss, struct error *err)
{
    const uint64_t since = trace_begin(s->trace);
    const struct client_scores *scores = &s->run->source->scores;
    uint64_t n_valid;
    int rc = client_job_evaluate(loss, &n_valid, s->job, s->run->source, (s->opened + 1) % 2, err);

    if (s->trace)
        trace_end(s->trace, since, "evaluate", NULL, (struct trace_arg[]){{"step", s->done}, {NULL, 0}});
    if (rc == -ECANCELED) {
        *loss = NAN;
        return 0;
    }
    if (!rc && s->events->on_evaluated)
        s->events->on_evaluated(s->user, s->done, *loss, n_valid);
    if (!rc && scores->n > 0 && s->events->on_scored)
        s->events->on_scored(s->user, scores->list, scores->n);
    if (!rc)
        judge(s, *loss);
    return rc;
}

/* Records a failed write of metrics. It does not end the run: the lines are retried with the next step's. */
void client_steps_note_metrics(struct client_steps *s, int rc, const struct error *why)
{
    const bool news = rc && !s->metrics_rc;

    s->metrics_rc = rc;
    s->metrics_error = *why;
    if (news && s->events->on_save_failed)
        s->events->on_save_failed(s->user, s->done, why->text);
}

/* Flushes the trace after each step, and reports once if it failed. */
static void write_trace(struct client_steps *s)
{
    struct error sentence;

    if (!s->trace)
        return;
    trace_flush(s->trace);
    if (!s->trace->rc || s->trace_ended)
        return;
    s->trace_ended = true;
    error_set(&sentence, 0, "the trace %s ends at step %" PRIu64 ": %s; training goes on", s->run->options.trace,
              s->done, strerror(-s->trace->rc));
    client_steps_note(s, sentence.text);
}

/* rc: that of the last write. After an error there are no more. */
static void check_events(struct client_steps *s, int rc)
{
    struct error sentence;

    if (!rc)
        return;
    client_tensorboard_close(&s->tensorboard);
    error_set(&sentence, 0, "the events in %s end at step %" PRIu64 ": %s; training goes on",
              s->run->options.tensorboard, s->done, strerror(-rc));
    client_steps_note(s, sentence.text);
}

static void write_events(struct client_steps *s, const struct eps_step *step)
{
    check_events(s, s->tensorboard.fd >= 0 ? client_tensorboard_write(&s->tensorboard, step) : 0);
}

void client_steps_write_sample(struct client_steps *s, size_t prompt, const char *text, size_t n)
{
    const struct client_tensorboard *events = &s->tensorboard;
    const char *const before = s->run->options.sample_prompts[prompt];

    check_events(s, events->fd >= 0 ? client_tensorboard_write_text(events, s->done, prompt, before, text, n) : 0);
}

/* Handles a skipped step. It leaves the weights unchanged, so the next data may succeed. Many in a row mean that the
 * weights have diverged, and the run ends. The first one in a row is reported; of those by which the loss's scale is
 * found, in fp16, the TOLD_SKIPPED-th. */
static int note_skipped(struct client_steps *s, bool skipped, bool scales, struct error *err)
{
    const unsigned told = scales ? TOLD_SKIPPED : 1;
    struct error sentence;

    s->n_skipped = skipped ? s->n_skipped + 1 : 0;
    s->diverged = s->n_skipped == MOST_SKIPPED;
    if (s->diverged)
        return error_set(err, -EIO,
                         "the last %d steps, %" PRIu64 " to %" PRIu64 ", were skipped because loss or gradient was not "
                         "finite: the weights have diverged; try a lower --lr",
                         MOST_SKIPPED, s->done + 1 - MOST_SKIPPED, s->done);
    error_set(&sentence, 0,
              "step %" PRIu64 " was skipped because its loss or gradient is not finite: weights and moments are "
              "unchanged; the run ends after %d such steps in a row",
              s->done, MOST_SKIPPED);
    if (s->n_skipped == told)
        client_steps_note(s, sentence.text);
    return 0;
}

enum { REWARDS = 6 };

/* Means over the step's preferences, whose number the source knows. */
static size_t name_rewards(struct eps_score out[REWARDS], struct client_steps *s, uint64_t step,
                           const struct preference_rewards *sums)
{
    struct client_source *source = s->run->source;

    if (!source->references)
        return 0;
    const uint32_t n_rows = client_source_pick(source->samples, source, step, client_run_rows(s->run, step));
    const double n = n_rows / 2;
    const struct eps_score rewards[REWARDS] = {{"rewards/chosen", sums->chosen / n},
                                               {"rewards/rejected", sums->rejected / n},
                                               {"rewards/accuracies", sums->right / n},
                                               {"rewards/margins", (sums->chosen - sums->rejected) / n},
                                               {"logps/chosen", sums->chosen_log_p / n},
                                               {"logps/rejected", sums->rejected_log_p / n}};
    memcpy(out, rewards, sizeof rewards);
    return REWARDS;
}

/* Seconds since 1970. */
static double now_s(void)
{
    uv_timeval64_t now;

    uv_gettimeofday(&now);
    return (double)now.tv_sec + now.tv_usec / 1e6;
}

/* A skipped step has changed nothing, and weights whose loss is not finite cannot be evaluated: a few more steps settle
 * whether they have diverged. */
static bool passes_over(const struct client_steps *s, const struct eps_step *step)
{
    return step->skipped && s->run->options.eval_chosen && s->done < s->end;
}

int client_steps_on_done(struct client_steps *s, const struct message *m, struct error *err)
{
    const struct eps_train_options *o = &s->run->options;
    const uint64_t now = uv_hrtime(), before = client_run_tokens(s->run, s->done),
                   tokens = client_run_tokens(s->run, s->done + 1);
    struct error why = {""};
    struct eps_step step = {
        .step = ++s->done,
        .n_steps = o->steps,
        .time = now_s(),
        .loss = m->done.loss,
        .lr = client_steps_lr(s, s->done - 1),
        .tokens = tokens,
        .step_ms = (double)(now - s->since_ns) / 1e6,
        .tokens_per_s = (double)(tokens - before) * 1e9 / (double)(now - s->since_ns),
        .pixels = s->run->model.config.image.height * s->run->model.config.image.width,
        .device_peak_bytes = m->done.device_peak,
        .device_budget_bytes = s->budget,
        .host_bytes = m->done.host_bytes,
        .eval_loss = NAN,
        .eval_before = s->done == s->run->first_step + 1 ? s->before : NAN,
        .grad_norm = m->done.grad_norm,
        .skipped = m->done.skipped,
        .loss_scale = m->done.loss_scale,
        .optimizer_ms = m->done.optimizer_ms,
    };
    struct eps_score rewards[REWARDS];
    struct error changed;
    uint64_t after;
    int rc = 0;

    step.rewards = rewards;
    step.n_rewards = step.skipped ? 0 : name_rewards(rewards, s, s->done - 1, &m->done.rewards);

    if (s->catches_up)
        step.time = step.step_ms = step.tokens_per_s = NAN;
    for (size_t i = 0; client_change_say(&changed, &after, s->run->changes, i) && !step.changed; i++)
        if (after + 1 == step.step)
            step.changed = changed.text;
    step.n_memory = client_memory_take(&s->memory, &step.memory);
    /* Before the evaluation, which takes long: this step's checkpoint may be complete by then. */
    client_steps_note_metrics(s, client_metrics_write(&s->metrics, &step, &why), &why);
    const bool evaluates = client_steps_evaluates_after(s, s->done) && !passes_over(s, &step);
    if (evaluates)
        rc = client_steps_evaluate(s, &step.eval_loss, err);
    s->unevaluated = isnan(step.eval_loss) && evaluates;
    if (!isnan(step.eval_loss))
        step.scores = s->run->source->scores.list, step.n_scores = s->run->source->scores.n;
    if (!isnan(step.eval_loss))
        client_steps_note_metrics(s, client_metrics_rewrite(&s->metrics, &step, &why), &why);
    s->since_ns = uv_hrtime();
    write_trace(s);
    write_events(s, &step);
    if (!rc && s->events->on_step)
        s->events->on_step(s->user, &step);
    if (!rc)
        client_samples_write(s);
    if (client_samples_are_due(o, s->done))
        s->since_ns = uv_hrtime();
    return rc ? rc : note_skipped(s, step.skipped, step.loss_scale > 0, err);
}

/* True at the regular end. Without --save-every, a stop instead interrupts the link's next wait. */
static bool steps_is_over(const struct client_steps *s)
{
    const struct eps_train_options *o = &s->run->options;
    const bool stopped = s->stop == 1 && o->save_every > 0;

    if (s->looks || s->saving || s->memory.asked || (client_steps_weights_are_due(s) && !s->cut_short))
        return false;
    if (s->cut_short)
        return s->done == s->covered && !client_steps_cut_is_due(s);

    return s->done == s->opened && !client_steps_save_is_due(s) && (stopped || s->opened == client_steps_last(s));
}

/* Not every job has ARRIVED; what is covered has arrived in any case. */
static int hear(struct client_steps *s, struct error *err)
{
    const uint64_t since = trace_begin(s->trace);
    struct message m;
    int rc = client_link_next(s->link, &m, NULL, err);

    if (s->trace)
        trace_end(s->trace, since, "wait", NULL, NULL);
    if (rc)
        return rc;
    if (m.kind == MESSAGE_ARRIVED && m.arrived.step == s->arrived && s->arrived < s->opened)
        s->arrived++;
    else if (m.kind == MESSAGE_COVERED && m.covered.step == s->covered && s->covered < s->opened)
        s->arrived = s->arrived > ++s->covered ? s->arrived : s->covered;
    else if (m.kind == MESSAGE_DONE && m.done.step == s->done && s->done < s->covered)
        return client_steps_on_done(s, &m, err);
    else if (client_link_is_aside(&m))
        steps_on_aside(s, &m);
    else
        return error_set(err, -EPROTO, "the daemon sent %s out of turn", message_name(m.kind));
    return 0;
}

/* In this order: the checkpoint of step N is asked for before step N + 1 opens, weights are shown between two steps,
 * and only who has nothing to do waits. */
static int take_steps(struct client_steps *s, struct error *err)
{
    int rc = client_steps_begin(s, err);

    while (!rc && !steps_is_over(s)) {
        client_steps_mirror(s);
        if (client_steps_save_is_due(s) && !s->saving)
            client_steps_ask_save(s);
        else if (client_steps_cut_is_due(s) && !s->saving)
            client_steps_ask_cut(s);
        else if (client_steps_weights_are_due(s) && s->done == s->opened)
            rc = client_steps_show_weights(s, err);
        else if (client_steps_may_open(s))
            rc = client_steps_open(s, err);
        else
            rc = hear(s, err);
    }
    return rc;
}

/* True while only the last checkpoint is missing because the disk is full, which the user can mend. */
static bool lacks_room(const struct client_steps *s)
{
    const bool full = s->save_rc == -ENOSPC || s->save_rc == -EDQUOT;

    return full && (s->no_room_ns == 0 || uv_hrtime() - s->no_room_ns < PATIENCE_S * UINT64_C(1000000000));
}

static void say_no_room(struct client_steps *s)
{
    struct error sentence;

    s->no_room_ns = uv_hrtime();
    error_set(&sentence, 0,
              "no room on disk for step-%" PRIu64
              ": free some; eps tries again every %d s for %d minutes, or interrupt to end without this checkpoint",
              s->asked, RETRY_MS / 1000, PATIENCE_S / 60);
    client_steps_note(s, sentence.text);
}

/* Retries the last checkpoint. Any further stop ends the wait. */
static int wait_for_room(struct client_steps *s, struct error *err)
{
    const int stop = s->stop;
    int rc = 0;

    while (!rc && lacks_room(s)) {
        if (s->no_room_ns == 0)
            say_no_room(s);
        for (unsigned ms = 0; !rc && ms < RETRY_MS && s->stop == stop; ms += SLICE_MS)
            rc = client_link_pause(s->link, SLICE_MS, err);
        if (s->stop != stop)
            return 0;
        client_steps_ask_save(s);
        while (!rc && s->saving)
            rc = hear(s, err);
    }
    return rc;
}

/* Finishes the removals that the last cleanup left over. */
static void finish_cleanup(struct client_steps *s)
{
    do {
        client_tidy_end(&s->tidy);
        client_steps_tidy(s);
    } while (s->tidy.n_steps == CLIENT_TIDY_MOST);
}

/* From the first step on; rc: that of what comes before it. Lines of metrics that could not be written get a last
 * try. A run whose last checkpoint failed keeps all older ones. */
static int run_from_start(struct client_steps *s, int rc, struct error *err)
{
    struct error why = {""};

    client_steps_count_time(s, 0);
    if (!rc)
        rc = take_steps(s, err);
    if (!rc)
        rc = wait_for_room(s, err);
    if (s->metrics_rc)
        client_steps_note_metrics(s, client_metrics_flush(&s->metrics, &why), &why);
    if (!rc)
        rc = client_steps_await_mirror(s, err);
    if (!rc && !s->save_rc)
        finish_cleanup(s);
    if (!rc && !s->save_rc && client_steps_lacks_best(&why, s))
        client_steps_note(s, why.text);
    return rc;
}

int client_steps_run(struct client_steps *s, struct error *err)
{
    return run_from_start(s, client_steps_start(s, err), err);
}

int client_steps_run_taken(struct client_steps *s, const struct client_attach *attach, struct error *err)
{
    return run_from_start(s, client_steps_take_over(s, attach, err), err);
}
