/* eps status: one daemon as lines of "name value", several as one line each. Lists, of workers and of the queue, are
 * separate requests, so they may be newer than the figures above them. */
#include "client/eps.h"
#include "tools/commands.h"
#include "tools/live.h"
#include "tools/screen/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static void print_queued(void *user, const struct eps_queued *queued)
{
    FILE *out = user;

    fprintf(out, "%-12s job %" PRIu32 ", %s, user %" PRIu32 ", pid %" PRIu32 "%s%s\n",
            queued->place == 1 ? "queue" : "", queued->job, queued->does, queued->uid, queued->pid,
            *queued->out ? ", " : "", queued->out);
}

/* And why, if it takes no part in the job. */
static void print_worker(void *user, const struct eps_worker *w)
{
    FILE *out = user;

    fprintf(out, "%-12s %" PRIu32 ": %s%s%s, on %s, pid %" PRIu32 "\n", "worker", w->id, w->device,
            *w->model ? " " : "", w->model, *w->host ? w->host : "an unnamed host", w->pid);
    if (*w->left_out)
        fprintf(out, "left out     worker %" PRIu32 " (%s), on %s, pid %" PRIu32 ": %s\n", w->id, w->device,
                *w->host ? w->host : "an unnamed host", w->pid, w->left_out);
}

static void print_job(FILE *out, const struct eps_status *s)
{
    char count[24];

    fprintf(out, "model        %s, %s parameters, %s, %s commit\n", s->model, text_count(count, s->n_parameters),
            s->precision, s->commit);
    fprintf(out, "step         %" PRIu64, s->step);
    if (s->n_steps)
        fprintf(out, " of %" PRIu64, s->n_steps);
    if (!isnan(s->loss))
        fprintf(out, ", loss %.4f", s->loss);
    fputc('\n', out);
    if (s->n_audits || s->n_redone)
        fprintf(out, "audits       %" PRIu64 " steps, results computed again: %" PRIu64 "\n", s->n_audits, s->n_redone);
    if (!*s->out)
        return;
    fprintf(out, "out          %s\n", s->out);
    fprintf(out, "saved        ");
    if (s->saved_step != UINT64_MAX)
        fprintf(out, "step %" PRIu64 "%s", s->saved_step, s->saving ? ", the next is being written" : "");
    else
        fprintf(out, s->saving ? "nothing yet, the first is being written" : "nothing yet");
    fputc('\n', out);
}

static int status_print(FILE *out, struct eps_observer *observer, struct eps_error *error)
{
    struct eps_status s;
    int rc = eps_observer_status(observer, &s, error);

    if (rc)
        return rc;
    fprintf(out, "state        %s, %" PRIu32 " worker%s", s.state, s.n_workers, s.n_workers == 1 ? "" : "s");
    if (s.n_idle)
        fprintf(out, " (%" PRIu32 " idle)", s.n_idle);
    if (s.n_elsewhere)
        fprintf(out, " and %" PRIu32 " on other hosts", s.n_elsewhere);
    fprintf(out, ", pid %" PRIu32 "\n", s.pid);
    fprintf(out, "address      %s\n", s.address);
    const bool detached = strcmp(s.state, "detached") == 0;
    if (s.job)
        fprintf(out, "job          %" PRIu32 "%s%s\n", s.job,
                detached ? ": its client is gone; take it over with eps train --attach " : "",
                detached ? live_name(s.address) : "");
    if (*s.model)
        print_job(out, &s);
    if (*s.trouble)
        fprintf(out, "trouble      NOT SAVED: %s\n", s.trouble);
    rc = s.n_workers ? eps_observer_workers(observer, print_worker, out, error) : 0;
    return !rc && s.n_queued ? eps_observer_queue(observer, print_queued, out, error) : rc;
}

static int status_print_line(FILE *out, struct eps_observer *observer, struct eps_error *error)
{
    struct eps_status s;
    int rc = eps_observer_status(observer, &s, error);

    if (rc)
        return rc;
    live_print_status(out, &s);
    fputc('\n', out);
    return 0;
}

static json_t *text_or_null(const char *text)
{
    return *text ? text_json(text) : json_null();
}

static void add_queued(void *user, const struct eps_queued *queued)
{
    json_array_append_new(user, json_pack("{s:I, s:I, s:s, s:I, s:I, s:I, s:o}", "job", (json_int_t)queued->job,
                                          "place", (json_int_t)queued->place, "does", queued->does, "n_steps",
                                          (json_int_t)queued->n_steps, "pid", (json_int_t)queued->pid, "uid",
                                          (json_int_t)queued->uid, "out", text_or_null(queued->out)));
}

struct lists {
    json_t *attached, *left_out;
};

static void add_worker(void *user, const struct eps_worker *w)
{
    const struct lists *lists = user;

    json_array_append_new(lists->attached, json_pack("{s:I, s:o, s:o, s:o, s:I}", "id", (json_int_t)w->id, "device",
                                                     text_json(w->device), "model", text_json(w->model), "on",
                                                     text_or_null(w->host), "pid", (json_int_t)w->pid));
    if (*w->left_out)
        json_array_append_new(lists->left_out, json_pack("{s:I, s:o, s:o, s:I, s:o}", "worker", (json_int_t)w->id,
                                                         "device", text_json(w->device), "on", text_or_null(w->host),
                                                         "pid", (json_int_t)w->pid, "why", text_json(w->left_out)));
}

static int status_to_json(json_t **out, struct eps_observer *observer, struct eps_error *error)
{
    struct eps_status s;
    int rc = eps_observer_status(observer, &s, error);

    if (rc)
        return rc;
    json_t *loss = json_real(s.loss); /* NULL if it is not finite */
    *out = json_pack("{s:s, s:I, s:I, s:s, s:I, s:I, s:I, s:I, s:o}", "state", s.state, "step", (json_int_t)s.step,
                     "n_steps", (json_int_t)s.n_steps, "model", s.model, "parameters", (json_int_t)s.n_parameters,
                     "workers", (json_int_t)s.n_workers, "pid", (json_int_t)s.pid, "uid", (json_int_t)s.uid, "loss",
                     loss ? loss : json_null());
    json_object_set_new(*out, "workers_elsewhere", json_integer((json_int_t)s.n_elsewhere));
    json_object_set_new(*out, "idle_workers", json_integer((json_int_t)s.n_idle));
    json_object_set_new(*out, "optimizer_threads", json_integer((json_int_t)s.n_threads));
    json_object_set_new(*out, "precision", *s.model ? json_string(s.precision) : json_null());
    json_object_set_new(*out, "commit", *s.model ? json_string(s.commit) : json_null());
    json_object_set_new(*out, "saving", json_boolean(s.saving));
    json_object_set_new(*out, "saved_step",
                        s.saved_step == UINT64_MAX ? json_null() : json_integer((json_int_t)s.saved_step));
    json_object_set_new(*out, "trouble", text_or_null(s.trouble));
    json_object_set_new(*out, "audits", json_integer((json_int_t)s.n_audits));
    json_object_set_new(*out, "audits_redone", json_integer((json_int_t)s.n_redone));
    json_object_set_new(*out, "out", text_or_null(s.out));
    json_object_set_new(*out, "address", text_json(s.address));
    json_object_set_new(*out, "job", s.job ? json_integer((json_int_t)s.job) : json_null());
    json_t *queue = json_array();
    struct lists lists = {json_array(), json_array()};
    rc = s.n_queued ? eps_observer_queue(observer, add_queued, queue, error) : 0;
    if (!rc)
        rc = eps_observer_workers(observer, add_worker, &lists, error);
    json_object_set_new(*out, "queue", queue); /* last, as this frees them where there is no memory */
    json_object_set_new(*out, "attached", lists.attached);
    json_object_set_new(*out, "left_out", lists.left_out);
    if (rc)
        json_decref(*out);
    return rc;
}

int command_status(int argc, char **argv)
{
    static const struct live_view view = {
        "eps status",
        "Shows what a live daemon is doing, and the jobs that wait there; a running eps train has one. Lists several "
        "daemons, one line each: name, state, step, model, pid, output directory.",
        "print an object with state, step, n_steps, model, parameters, workers, idle_workers, optimizer_threads, pid, "
        "uid (the job's user), loss (null before the first step), precision and commit (null without a job), saving, "
        "saved_step, trouble, audits (steps that eps train --audit has compared), audits_redone (results that were "
        "computed again, as two differed), out (null if there is none), address, job (the job's number; null without "
        "one), queue "
        "(a list of the jobs that wait, each with job, place, does, n_steps, pid, uid and out), attached (a list of "
        "its "
        "workers, each with id, device, model, on (its machine) and pid) and left_out (a list of those that take no "
        "part "
        "in the job, each with worker, device, on, pid and why); several daemons: "
        "{\"daemons\": [...]}. With --watch one object per line",
        status_print,
        status_print_line,
        status_to_json,
        .lines_in_pipe = true,
    };

    return live_command(argc, argv, &view);
}
