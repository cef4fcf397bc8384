/* Which request an answer settles is told by its step, as one checkpoint is asked for at a time (`asked`). Where the
 * daemon chooses the step (client_steps_ask_cut), any from cut_from on settles it. What others have saved (eps save) is
 * told by the same messages: it counts among the checkpoints, and settles nothing. */
#include "client/run/steps/steps_state.h"

#include "client/daemon/observer.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { MIRROR_MS = 50 }; /* between two looks at a copy */

/* Of the time from one save's end to the next one's, where neither a step's number nor the run's end asks for it:
 * training goes on meanwhile, but the disk is others', too. */
static const double save_share = 0.03;

/* Warns once if `latest` does not point to a saved step; a later save may have moved it further. */
static void check_latest(struct client_steps *s, uint64_t step)
{
    const uint64_t latest = client_checkpoints_latest(s->run->directory_fd);
    struct error sentence;
    struct stat st;

    if (s->latest_told || (latest != UINT64_MAX && latest >= step))
        return;
    s->latest_told = true;
    const bool is_directory =
        fstatat(s->run->directory_fd, "latest", &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
    error_set(&sentence, 0, "step-%" PRIu64 " is saved, but %s/latest does not name it: %s", step, s->run->directory,
              is_directory ? "it is a directory; move it away" : "it could not be replaced");
    client_steps_note(s, sentence.text);
}

/* Else there is one evaluation, or one checkpoint: nothing to choose from. */
static bool marks_best(const struct client_steps *s)
{
    const struct eps_train_options *o = &s->run->options;
    return o->eval_every > 0 && o->save_every > 0;
}

static bool is_better_than_kept(const struct client_steps *s, const struct client_best *evaluated)
{
    return marks_best(s) && evaluated->loss < s->kept.loss;
}

/* Points `best` to the checkpoint of an evaluation, which is complete, if its loss is the lowest of those that have
 * one. */
static void keep_best(struct client_steps *s, const struct client_best *evaluated)
{
    struct error sentence;

    if (!is_better_than_kept(s, evaluated))
        return;
    s->kept = *evaluated;
    const int rc = client_best_mark(s->run->directory_fd, s->kept.step);
    if (!rc)
        return;
    error_set(&sentence, 0, "%s/best could not be set to step-%" PRIu64 ": %s", s->run->directory, s->kept.step,
              strerror(-rc));
    client_steps_note(s, sentence.text);
}

/* True for the outcome of the checkpoint that client_steps_ask_cut requested: the daemon chose its step. */
static bool is_cut(const struct client_steps *s, uint64_t step)
{
    return s->cut_asked && s->saving && step >= s->cut_from;
}

/* The step before the open one cannot be saved, since parts of the open one have changed the model; but a worker may
 * come and finish it. The daemon that requested the stop waits for up to 60 s. */
static void wait_for_worker(struct client_steps *s)
{
    enum { WAIT_MS = 50000 };
    const char *address = s->run->options.connect;
    char directory[PATH_MAX];
    struct error sentence;

    s->saving = s->cut_short = s->cut_asked = false;
    if (s->covered == s->opened)
        return;
    if (client_observer_find(directory, sizeof directory, address, NULL) == 0)
        address = client_observer_name(directory);
    s->waits_ms = s->link->awake_ms + WAIT_MS;
    error_set(&sentence, 0,
              "step %" PRIu64
              " waits for a worker, and without it the model cannot be saved: attach one within %d s with "
              "eps-worker --connect %.200s; stop again to give the step up",
              s->covered + 1, WAIT_MS / 1000, address);
    client_steps_note(s, sentence.text);
}

/* The requested checkpoint is over. If a worker has come meanwhile and finished the step that waited, the run ends with
 * that step after all. */
static void end_save(struct client_steps *s)
{
    s->saving = false;
    if (s->covered == s->opened)
        s->cut_short = s->cut_asked = false;
}

/* Before the first save, its time is that of a disk that writes a byte a nanosecond. */
void client_steps_count_time(struct client_steps *s, uint64_t save_ns)
{
    const struct eps_train_options *o = &s->run->options;
    const uint64_t now = uv_hrtime();

    s->save_ns = save_ns > 0 ? save_ns : s->save_ns > 0 ? s->save_ns : s->checkpoint_bytes;
    const double rest_ns = (1 / save_share - 1) * (double)s->save_ns, wait_ns = fmax(o->save_minutes * 60e9, rest_ns);
    s->affordable_ns = now + (uint64_t)rest_ns;
    s->due_ns = o->save_every > 0 && o->save_minutes > 0 ? now + (uint64_t)wait_ns : UINT64_MAX;
}

/* Whether evaluations were asked for: then the best of them is, too. */
static bool saves_each_best(const struct client_steps *s)
{
    return !s->run->options.eval_chosen || s->run->options.patience > 0;
}

bool client_steps_lacks_best(struct error *sentence, const struct client_steps *s)
{
    error_set(sentence, 0,
              "the lowest held-out loss, %.4f after step %" PRIu64 ", has no checkpoint: a save takes %.2g s, and by "
              "default at most 3 %% of the time; with --eval-every N each new lowest has one",
              s->best.loss, s->best.step, (double)s->save_ns / 1e9);
    return !saves_each_best(s) && marks_best(s) && s->best.step > 0 && s->best.loss < s->kept.loss;
}

/* What the mirror reads stays until it has been read. */
void client_steps_tidy(struct client_steps *s)
{
    s->checkpoints.spares = client_mirror_reads(&s->checkpoints.spared, &s->mirror);
    client_tidy_begin(&s->tidy, &s->checkpoints, s->run->options.keep, s->metrics.fd);
}

void client_steps_mirror(struct client_steps *s)
{
    const bool failed = client_mirror_poll(&s->mirror);

    s->mirror_rc = s->mirror.outcome;
    if (!failed)
        return;
    s->mirror_error = s->mirror.why;
    client_steps_note(s, s->mirror.why.text);
    client_mirror_poll(&s->mirror); /* the next one */
}

/* A stop beyond the one that has ended the run gives the mirror up. */
static void give_mirror_up(struct client_steps *s, int stop)
{
    if (s->events->should_stop && s->events->should_stop(s->user) > stop)
        client_mirror_cancel(&s->mirror);
}

int client_steps_await_mirror(struct client_steps *s, struct error *err)
{
    const int stop = s->stop;
    int rc = 0;

    client_steps_mirror(s);
    if (client_mirror_is_busy(&s->mirror))
        client_steps_note(s, "the last checkpoint is copied to the mirror; an interrupt gives that up");
    client_mirror_sync(&s->mirror);
    while (!rc && client_mirror_is_busy(&s->mirror)) {
        give_mirror_up(s, stop);
        rc = client_link_pause(s->link, MIRROR_MS, err);
        client_steps_mirror(s);
    }
    return rc;
}

void client_steps_end_mirror(struct client_steps *s)
{
    const int stop = s->stop;

    while (client_mirror_is_busy(&s->mirror)) {
        give_mirror_up(s, stop);
        poll(NULL, 0, MIRROR_MS);
        client_steps_mirror(s);
    }
    client_mirror_close(&s->mirror);
}

/* The mirror and the list get it before anybody is told: what is told of is there. */
void client_steps_on_saved(struct client_steps *s, uint64_t step)
{
    const bool was_asked = step == s->asked || is_cut(s, step);
    bool interim = was_asked && s->interim;
    char path[PATH_MAX + 40];

    client_steps_count_time(s, was_asked ? uv_hrtime() - s->asked_ns : 0);
    if (is_cut(s, step))
        s->asked = step;
    if (step == s->asked) {
        end_save(s);
        s->save_rc = 0;
    }
    if (step == s->best.step) /* of an evaluation before the last one, if the save took long */
        keep_best(s, &s->best);
    if (step == s->judged.step)
        keep_best(s, &s->judged);
    interim = interim && !(saves_each_best(s) && step == s->kept.step);
    if (client_mirror_add(&s->mirror, step, interim))
        s->mirror.outcome =
            error_set(&s->mirror_error, -ENOMEM, "step-%" PRIu64 " is not in the mirror: out of memory", step);
    client_steps_mirror(s);
    if (client_checkpoints_add(&s->checkpoints, step, interim) == 0)
        client_steps_tidy(s);
    snprintf(path, sizeof path, "%s/step-%" PRIu64, s->run->directory, step);
    if (s->events->on_saved)
        s->events->on_saved(s->user, step, path);
    check_latest(s, step);
}

void client_steps_on_save_failed(struct client_steps *s, uint64_t step, int code, const struct error *why)
{
    const bool again = s->no_room_ns != 0 && step == s->asked;

    if (is_cut(s, step) && code == -EAGAIN) {
        wait_for_worker(s);
        return;
    }
    if (is_cut(s, step))
        s->asked = step;
    if (s->saving && step == s->asked) {
        client_steps_count_time(s, uv_hrtime() - s->asked_ns);
        end_save(s);
        s->save_rc = code < 0 ? code : -EIO;
        s->save_error = *why;
    }
    if (s->events->on_save_failed && !again)
        s->events->on_save_failed(s->user, step, why->text);
}

bool client_steps_has_saved(const struct client_steps *s, uint64_t step)
{
    for (size_t i = 0; i < s->checkpoints.n; i++) {
        if (s->checkpoints.steps[i] == step)
            return true;
    }
    return false;
}

void client_steps_on_judged(struct client_steps *s)
{
    if (!is_better_than_kept(s, &s->judged) || !client_steps_has_saved(s, s->judged.step))
        return;
    if (saves_each_best(s))
        client_checkpoints_add(&s->checkpoints, s->judged.step, false); /* it stays: no longer an interim one */
    keep_best(s, &s->judged);
}

static bool is_due_by_time(const struct client_steps *s)
{
    return !s->saving && s->due_ns < UINT64_MAX && uv_hrtime() >= s->due_ns;
}

/* The last evaluation was of the steps that are covered, and is better than all that have a checkpoint. */
static bool is_at_best(const struct client_steps *s)
{
    return is_better_than_kept(s, &s->judged) && s->covered == s->judged.step && s->covered == s->done;
}

static bool is_due_by_step(const struct client_steps *s)
{
    const struct eps_train_options *o = &s->run->options;

    return (s->stop == 1 && o->save_every > 0) || s->covered == client_steps_last(s) ||
           (saves_each_best(s) && is_at_best(s)) || (o->save_every > 0 && s->covered % o->save_every == 0);
}

/* Of the best by default: only if that takes little of the time. */
static bool is_due_as_best(const struct client_steps *s)
{
    return !s->saving && is_at_best(s) && uv_hrtime() >= s->affordable_ns;
}

bool client_steps_save_is_due(const struct client_steps *s)
{
    if (s->run->options.no_save)
        return false;
    if (s->covered != s->opened || s->covered == s->asked || s->covered == 0 || s->covered == s->run->saved_step)
        return false;
    return is_due_by_step(s) || is_due_by_time(s) || is_due_as_best(s);
}

void client_steps_ask_save(struct client_steps *s)
{
    const struct message m = {.kind = MESSAGE_SAVE, .save = {.step = s->covered}};

    s->asked = s->covered;
    s->interim = !is_due_by_step(s);
    s->saving = true;
    s->asked_ns = uv_hrtime();
    client_link_send(s->link, &m);
}

bool client_steps_cut_is_due(const struct client_steps *s)
{
    return s->cut_short && !s->cut_asked && s->done == s->covered && s->done > 0 && !client_steps_has_saved(s, s->done);
}

void client_steps_ask_cut(struct client_steps *s)
{
    s->cut_asked = s->saving = true;
    s->interim = false;
    s->asked_ns = uv_hrtime();
    s->cut_from = s->done;
    client_link_send(s->link, &(struct message){.kind = MESSAGE_SAVE, .save = {.step = MESSAGE_NO_STEP}});
}

bool client_steps_save_will_be_due(const struct client_steps *s)
{
    const struct eps_train_options *o = &s->run->options;

    return s->covered < s->opened && o->save_every > 0 && (s->opened % o->save_every == 0 || is_due_by_time(s));
}
