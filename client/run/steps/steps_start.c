/* How a run comes to its first step: begun, resumed, or taken over. */
#include "client/record/change.h"
#include "client/record/references.h"
#include "client/options/options.h"
#include "client/run/steps/steps_state.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

/* All four counters begin at the first step (client/run/steps/steps.c). */
static int steps_start_begin(struct client_steps *s, struct error *err)
{
    const struct client_run *run = s->run;

    s->end = run->options.steps;
    s->job_end = client_run_job_end(run);
    s->job->stop = &s->stop;
    s->job->on_evaluating = s->events->on_evaluating;
    s->job->user = s->user;
    s->opened = s->arrived = s->covered = s->done = s->shown = run->first_step;
    if (run->options.on_blocks || client_options_drop(&run->options) > 0) {
        const struct eps_train_options options = client_run_job_options(run);
        struct model model;
        int rc = client_options_model(&model, &run->model.config, &options, err);
        if (!rc)
            rc = client_blocks_init(&s->blocks, &model, err);
        model_free(&model);
        if (rc)
            return rc;
    }
    return client_checkpoints_list(&s->checkpoints, run->directory_fd, err);
}

/* What preferences are compared with. begins: the weights that are there now; else those that the run began from. */
static int find_references(struct client_steps *s, bool begins, struct error *err)
{
    struct client_source *source = s->run->source;
    const size_t n = (size_t)source->n_references[CLIENT_TRAIN] + source->n_references[CLIENT_HELD_OUT];
    const uint64_t texts = client_references_texts(s->run->data.hash, s->run->eval_data.hash);
    int rc;

    if (!source->references)
        return 0;
    if (!begins) {
        const char *from = s->run->resume.in_place ? s->run->directory : s->run->resume.path;
        const int fd = open(from, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        rc = fd < 0 ? error_set(err, -errno, "%s: %s", from, strerror(errno))
                    : client_references_read(source->references, n, texts, fd, err);
        if (rc && fd >= 0)
            error_prefix(err, from);
        if (fd >= 0)
            close(fd);
        if (rc || s->run->resume.in_place)
            return rc;
    } else {
        client_steps_note(s, "measuring log p of all texts by the model before its training, the reference");
        rc = client_job_refer(s->job, source, (s->opened + 1) % 2, err);
    }
    return rc ? rc : client_references_write(s->run->directory_fd, source->references, n, texts, err);
}

/* Decides as the run did so far. */
static void steps_start_recall(struct client_steps *s, const struct client_past *past)
{
    s->best = s->judged = past->best;
    s->kept = past->kept;
    s->n_skipped = past->n_skipped;
    if (s->best.step > 0)
        client_steps_on_judged(s);
}

/* Before the first step of a run that has done none. */
static int measure_before(struct client_steps *s, struct error *err)
{
    int rc = s->run->options.eval_every > 0 && s->opened == 0 ? client_steps_evaluate(s, &s->before, err) : 0;

    return rc ? rc : client_steps_ask(s, err); /* the stop that interrupted it may not have been reported yet */
}

/* Restores the line of a step that was lost; not of one that another run has done, whose checkpoint this one began
 * from. The learning rate is unknown if the schedule or any option has changed. */
static bool fill_line(void *data, struct eps_step *lost)
{
    struct client_steps *s = data;
    const struct eps_train_options *o = &s->run->options;

    if (lost->step <= client_run_began(s->run))
        return false;
    lost->tokens = client_run_tokens(s->run, lost->step);
    if (o->steps == s->run->resume.record.options.steps && json_array_size(s->run->changes) == 0)
        lost->lr = client_options_lr(o, lost->step - 1);
    return true;
}

static int steps_start_open_metrics(struct client_steps *s, struct error *err)
{
    const int fd = s->run->directory_fd;
    int rc = s->run->resume.in_place ? client_metrics_reopen(&s->metrics, fd, s->run->first_step, fill_line, s, err)
                                     : client_metrics_open(&s->metrics, fd, err);

    if (rc)
        error_prefix(err, s->run->directory);
    return rc;
}

/* Evaluates after the last step that is done: the process that did it ended before, or in it. */
static int make_up_evaluation(struct client_steps *s, struct error *err)
{
    const struct client_scores *scores = &s->run->source->scores;
    struct error why = {""};
    double loss;
    int rc = client_steps_evaluate(s, &loss, err);

    s->unevaluated = !rc && isnan(loss);
    if (!rc && !s->unevaluated)
        client_steps_note_metrics(s, client_metrics_add_evaluation(&s->metrics, loss, scores->list, scores->n, &why),
                                  &why);
    return rc;
}

int client_steps_start(struct client_steps *s, struct error *err)
{
    int rc = steps_start_begin(s, err);

    if (!rc)
        rc = find_references(s, !s->run->continues, err);
    if (!rc) {
        steps_start_recall(s, &s->run->resume.past);
        rc = measure_before(s, err);
    }
    if (!rc)
        rc = steps_start_open_metrics(s, err);
    if (!rc && s->run->resume.lacks_evaluation)
        rc = make_up_evaluation(s, err);
    return rc ? rc : client_steps_ask(s, err); /* a stop before the next step ends the run here */
}

/* ---- taking over ------------------------------------------------------------------------------------------------- */

static void say_taken(const struct client_steps *s, const struct client_attach *attach, const struct message *m)
{
    struct error sentence;

    error_set(&sentence, 0, "took over job %u of %s after %" PRIu64 " steps%s", attach->job.description.job,
              attach->address, m->taken.done,
              m->taken.waits ? "; the next one waits for another worker to attach" : "");
    client_steps_note(s, sentence.text);
}

/* Takes steps in that ended while the job had no client: their lines, and what is due after the last one. */
static int steps_start_catch_up(struct client_steps *s, const struct message *m, struct error *err)
{
    int rc = 0;

    s->catches_up = true;
    for (uint32_t i = 0; !rc && i < m->taken.n; i++)
        if (m->taken.steps[i].step >= s->done)
            rc = client_steps_on_done(s, &(struct message){.kind = MESSAGE_DONE, .done = m->taken.steps[i]}, err);
    s->catches_up = false;
    return rc;
}

/* Goes on where the last client stopped. */
static int take_job(struct client_steps *s, const struct client_attach *attach, struct error *err)
{
    struct client_past past;
    struct message m;
    int rc = client_attach_take(&m, s->link, attach, err);

    if (rc)
        return rc;
    say_taken(s, attach, &m);
    client_past_read(&past, s->run->directory, m.taken.done);
    s->begun = true;
    s->opened = m.taken.opened, s->arrived = m.taken.arrived, s->covered = m.taken.covered;
    s->done = past.last;
    if (s->done + m.taken.n < m.taken.done) /* lines of earlier steps are lost */
        s->done = m.taken.done - m.taken.n;
    /* What the job began from is saved. A checkpoint of its own may be there without having reached the disk: only the
     * daemon knows, and is asked. */
    if (m.taken.n == 0 && client_steps_has_saved(s, s->covered))
        s->asked = s->covered;
    steps_start_recall(s, &past);
    rc = find_references(s, s->opened == 0, err); /* the last client may have ended before it had them all */
    if (rc)
        return rc;
    rc = client_metrics_reopen(&s->metrics, s->run->directory_fd, s->done, fill_line, s, err);
    if (!rc && s->done == s->opened && client_past_lacks_evaluation(&past, &s->run->resume.record.options, s->done))
        rc = make_up_evaluation(s, err);
    if (!rc)
        rc = steps_start_catch_up(s, &m, err);
    if (!rc)
        client_steps_end_early(s);
    s->since_ns = uv_hrtime();
    return rc;
}

/* Of a job that has done no step yet, the last client may not have measured it. */
int client_steps_take_over(struct client_steps *s, const struct client_attach *attach, struct error *err)
{
    int rc = steps_start_begin(s, err);

    if (!rc)
        rc = take_job(s, attach, err);
    return rc ? rc : measure_before(s, err);
}
