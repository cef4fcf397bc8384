/* A run's last sentence has to be true of what is on the disk, so whether a checkpoint is still there is looked up: the
 * user may have removed it, or the directory. Of several failures each has its part of the sentence: the save's, then
 * that of metrics, whose code wins, then the mirror's, whose code counts alone if there is no other. No advice to
 * resume where the run would fail again. */
#include "client/member.h"
#include "client/run/train_state.h"

#include <errno.h>
#include <inttypes.h>
#include <sys/stat.h>

bool client_train_is_removed(const struct client_train *t)
{
    const int fd = t->run.directory_fd;
    struct client_checkpoints left = {0};
    struct error none;
    struct stat st;

    if (fd < 0 || fstat(fd, &st))
        return false;
    if (st.st_nlink == 0 || client_steps_saved(&t->steps) == MESSAGE_NO_STEP)
        return st.st_nlink == 0;
    const bool removed = client_checkpoints_list(&left, fd, &none) == 0 && left.n == 0;
    client_checkpoints_free(&left);
    return removed;
}

/* Appends how the run can continue, if it can. */
static void add_remedy(const struct client_train *t, struct error *err)
{
    char quoted[PATH_MAX];
    const char *directory = eps_quote(quoted, sizeof quoted, t->run.directory); /* ready to paste into a shell */
    const uint64_t saved = client_steps_saved(&t->steps);

    if (client_train_is_removed(t))
        error_append(err, "; no checkpoint is left: %s was removed", t->run.directory);
    else if (saved != MESSAGE_NO_STEP &&
             (t->link.failed == -EDOM || t->steps.diverged)) /* a resumed run would diverge again */
        error_append(err, "; its weights before that are in %s/step-%" PRIu64, t->run.directory, saved);
    else if (saved != MESSAGE_NO_STEP)
        error_append(err, "; eps train --resume %s continues from step %" PRIu64, directory, saved);
    else if (t->steps.begun)
        error_append(err, "; no checkpoint was saved");
}

/* The loop ended without an error. Checks whether the run was complete, and everything written. */
static int train_end_conclude(const struct client_train *t, struct error *err)
{
    const struct client_steps *s = &t->steps;
    const bool cut = s->cut_short && s->covered < s->opened; /* else a worker has come, and the step was finished */
    char quoted[PATH_MAX];
    int rc = 0;

    if (s->stop) {
        rc = error_set(err, -EINTR, "%s after %" PRIu64 " steps", client_steps_stopped_by(s), s->done);
        const bool saved = !s->save_rc && client_steps_saved(s) == s->done;
        if (cut)
            error_append(err, "; step %" PRIu64 " waited for a worker and was given up%s", s->done + 1,
                         saved || s->save_rc ? "" : ", and without it the model cannot be saved");
        if (saved)
            error_append(err, "; saved in %s/step-%" PRIu64, t->run.directory, s->done);
        else if (cut && !s->save_rc)
            add_remedy(t, err);
        if (saved && (s->done < s->end || s->unevaluated))
            error_append(err, "; resume with: eps train --resume %s",
                         eps_quote(quoted, sizeof quoted, t->run.directory));
    }
    if (s->save_rc) {
        rc = error_set(err, s->save_rc, "%sthe last checkpoint, step-%" PRIu64 ", could not be written: %.200s",
                       s->stop && s->done < t->run.options.steps ? "interrupted, and " : "", s->asked,
                       s->save_error.text);
        add_remedy(t, err);
    }
    if (s->metrics_rc) {
        if (!rc)
            error_set(err, 0, "metrics.jsonl is incomplete: %s", s->metrics_error.text);
        else
            error_append(err, "; metrics.jsonl is incomplete: %.100s", s->metrics_error.text);
        if (!s->save_rc && client_train_is_removed(t)) /* the directory was removed after the last checkpoint */
            add_remedy(t, err);
        rc = s->metrics_rc;
    }
    if (s->mirror_rc && !rc)
        rc = error_set(err, s->mirror_rc, "%s", s->mirror_error.text);
    else if (s->mirror_rc)
        error_append(err, "; %.150s", s->mirror_error.text);
    return rc;
}

/* True if the user ended the wait for disk space. The run itself was complete, so that is no interrupt. */
static bool ended_wait_for_room(const struct client_train *t, int rc)
{
    return rc == -EINTR && t->steps.save_rc && t->steps.no_room_ns;
}

static int describe_failure(const struct client_train *t, int rc, struct error *err)
{
    const struct client_steps *s = &t->steps;
    const char *who = client_steps_stopped_by(s);

    if (rc == -EINTR && s->begun)
        error_set(err, rc, "%s after %" PRIu64 " steps", who, s->done);
    else if (rc == -EINTR)
        error_set(err, rc, "%s before the first step", who);
    if (s->begun)
        add_remedy(t, err);
    return rc;
}

int client_train_conclude(const struct client_train *t, int rc, struct error *err)
{
    return rc && !ended_wait_for_room(t, rc) ? describe_failure(t, rc, err) : train_end_conclude(t, err);
}
