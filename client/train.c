/* eps_train: from options to step-N/. The daemon holds the model; what happens here is data, order and account. */
#include "client/eps.h"
#include "client/job.h"
#include "client/link.h"
#include "client/look.h"
#include "client/metrics.h"
#include "client/options.h"
#include "client/run.h"
#include "client/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct train {
    const struct eps_train_events *events;
    void *user;
    struct client_run run;
    struct client_link link;
    struct client_spawn spawn; /* without --connect */
    struct client_job job;
    struct client_metrics metrics;
    int log_fd;
    uint64_t opened, covered, done; /* steps */
    uint64_t since_ns;              /* when what is being timed began: a step's opening, or the end of the one before */
    uint64_t tokens, budget;
};

static int ask_stop(void *data, struct error *err)
{
    const struct train *t = data;
    return t->events->should_stop(t->user)
               ? error_set(err, -EINTR, "interrupted after %llu steps", (unsigned long long)t->done)
               : 0;
}

/* Writes the data of step `opened` where no open step reads: the buffers take turns. */
static int prepare(struct train *t, struct error *err)
{
    const struct eps_train_options *o = &t->run.options;
    int rc = 0;

    for (uint32_t i = 0; !rc && i < o->batch; i++) {
        const uint64_t k = client_windows_pick(&t->run.train, o->order, o->seed, t->opened * o->batch + i);
        rc = client_job_put(&t->job, t->opened % 2, i, &t->run.train, k, err);
    }
    return rc;
}

static bool evaluates_after(const struct train *t, uint64_t step)
{
    const struct eps_train_options *o = &t->run.options;
    return step == o->steps || (o->eval_every > 0 && step % o->eval_every == 0);
}

/* All that was opened is done, so the buffer that holds no data for the next step is free. */
static int evaluate(struct train *t, double *loss, struct error *err)
{
    uint64_t n_tokens;
    int rc = client_job_evaluate(loss, &n_tokens, &t->job, &t->run.held_out, (t->opened + 1) % 2, err);

    if (!rc && t->events->on_evaluated)
        t->events->on_evaluated(t->user, t->done, *loss, n_tokens);
    return rc;
}

static int on_done(struct train *t, const struct message *m, struct error *err)
{
    const struct eps_train_options *o = &t->run.options;
    const uint64_t now = uv_hrtime(), tokens = (uint64_t)o->batch * o->seq;
    struct eps_step step = {
        .step = ++t->done,
        .n_steps = o->steps,
        .loss = m->done.loss,
        .lr = client_options_lr(o, t->done - 1),
        .tokens = t->tokens += tokens,
        .step_ms = (double)(now - t->since_ns) / 1e6,
        .tokens_per_s = (double)tokens * 1e9 / (double)(now - t->since_ns),
        .device_peak_bytes = m->done.device_peak,
        .device_budget_bytes = t->budget,
        .host_bytes = m->done.host_bytes,
        .eval_loss = NAN,
    };
    int rc = evaluates_after(t, t->done) ? evaluate(t, &step.eval_loss, err) : 0;

    t->since_ns = uv_hrtime();
    if (!rc)
        rc = client_metrics_write(&t->metrics, &step, err);
    if (!rc && t->events->on_step)
        t->events->on_step(t->user, &step);
    return rc;
}

/* The next step may open when the last one is covered; it waits for an evaluation that is due before it. */
static bool may_open(const struct train *t)
{
    return t->opened < t->run.options.steps && t->covered == t->opened &&
           (t->done == t->opened || !evaluates_after(t, t->opened));
}

static int open_step(struct train *t, struct error *err)
{
    const struct eps_train_options *o = &t->run.options;
    const struct message m = {
        .kind = MESSAGE_OPEN_STEP,
        .open_step = {.step = t->opened,
                      .buffer = t->opened % 2,
                      .n_valid = (uint64_t)o->batch * o->seq,
                      .lr = client_options_lr(o, t->opened)},
    };

    if (t->done == t->opened)
        t->since_ns = uv_hrtime();
    client_link_send(&t->link, &m);
    t->opened++;
    return t->opened < o->steps ? prepare(t, err) : 0;
}

static int take_steps(struct train *t, struct error *err)
{
    struct message m;
    int rc = prepare(t, err);

    while (!rc && t->done < t->run.options.steps) {
        if (may_open(t)) {
            rc = open_step(t, err);
            continue;
        }
        rc = client_link_next(&t->link, &m, NULL, err);
        if (rc)
            break;
        if (m.kind == MESSAGE_COVERED && m.covered.step == t->covered && t->covered < t->opened)
            t->covered++;
        else if (m.kind == MESSAGE_DONE && m.done.step == t->done && t->done < t->covered)
            rc = on_done(t, &m, err);
        else if (m.kind == MESSAGE_STOP)
            rc = error_set(err, -ECANCELED, "the daemon was stopped by request");
        else
            rc = error_set(err, -EPROTO, "the daemon sent %s out of turn", message_name(m.kind));
    }
    return rc;
}

static void on_budget(void *user, const struct eps_memory *side)
{
    struct train *t = user;
    if (t->budget < side->budget)
        t->budget = side->budget;
}

/* The daemon and its workers: private ones are started, those of --connect are attached already. */
static int find_workers(struct train *t, struct error *err)
{
    const struct eps_train_options *o = &t->run.options;

    if (t->events->should_stop)
        t->link.watches[1] = (struct client_watch){.ask = ask_stop, .data = t};
    if (o->connect)
        return client_look_memory(&t->link, on_budget, t, err);
    t->log_fd = openat(t->run.directory_fd, "log", O_RDWR | O_CREAT | O_APPEND | O_TRUNC | O_CLOEXEC, 0666);
    if (t->log_fd < 0)
        return error_set(err, -errno, "%s/log: %s", o->out, strerror(errno));
    t->budget = o->device_mem;
    const struct client_spawn_options options = {.programs = o->programs,
                                                 .n_workers = o->workers,
                                                 .device_mem = o->device_mem,
                                                 .log_fd = t->log_fd};
    return client_spawn_start(&t->spawn, &t->link, &options, err);
}

static int open_job(struct train *t, struct error *err)
{
    const struct eps_train_options *o = &t->run.options;
    struct message request = {
        .kind = MESSAGE_JOB,
        .job = {.train = true,
                .deterministic = o->deterministic,
                .seed = o->seed,
                .batch = o->batch,
                .seq = o->seq,
                .n_parts = o->parts,
                .microbatch = o->microbatch,
                .optimizer = o->optimizer == EPS_ADAMW ? OPTIMIZER_ADAMW : OPTIMIZER_ADAMA,
                .beta1 = o->beta1,
                .beta2 = o->beta2,
                .epsilon = o->epsilon,
                .weight_decay = o->weight_decay},
    };
    const struct client_job_files files = {.output = t->run.directory_fd, .side = -1, .moments = -1};
    return client_job_open(&t->job, &t->link, &request, &t->run.model, &files, err);
}

static int finish(struct train *t, struct error *err)
{
    const uint64_t step = t->run.options.steps;
    char path[PATH_MAX + 40];
    struct message m = {.kind = MESSAGE_SAVE, .save = {.step = step}};

    client_link_send(&t->link, &m);
    int rc = client_link_next(&t->link, &m, NULL, err);
    if (!rc && m.kind == MESSAGE_SAVE_FAILED)
        rc = error_set(err, m.save_failed.code, "%s", m.save_failed.error.text);
    else if (!rc && m.kind != MESSAGE_SAVED)
        rc = error_set(err, -EPROTO, "the daemon sent %s out of turn", message_name(m.kind));
    if (!rc)
        rc = client_look_memory(&t->link, t->events->on_memory, t->user, err);
    if (!rc)
        rc = client_job_close(&t->job, err);
    snprintf(path, sizeof path, "%s/step-%llu", t->run.directory, (unsigned long long)step);
    if (!rc && t->events->on_saved)
        t->events->on_saved(t->user, step, path);
    return rc;
}

static int run(struct train *t, struct error *err)
{
    double before;
    int rc = client_run_make_directory(&t->run, err);

    if (!rc)
        rc = find_workers(t, err);
    if (!rc)
        rc = open_job(t, err);
    if (!rc)
        rc = client_metrics_open(&t->metrics, t->run.directory, err);
    if (rc)
        return rc;
    if (t->events->on_start)
        t->events->on_start(t->user, &t->run.options, t->job.n_parameters);
    rc = evaluate(t, &before, err);
    if (!rc)
        rc = take_steps(t, err);
    return rc ? rc : finish(t, err);
}

static void take_down(struct train *t)
{
    client_job_free(&t->job);
    client_spawn_stop(&t->spawn);
    client_link_free(&t->link);
    if (t->log_fd >= 0)
        close(t->log_fd);
    if (!t->metrics.file && t->run.directory_fd >= 0) { /* the run never began */
        if (t->log_fd >= 0)
            unlinkat(t->run.directory_fd, "log", 0);
        client_run_forget_directory(&t->run);
    }
    client_metrics_close(&t->metrics);
    client_run_close(&t->run);
}

/* Workers of the daemon of --connect, if there is one; the link stays open. */
static int count_workers(struct client_link *link, const char *connect, enum message_role role, uint32_t *n,
                         struct error *err)
{
    struct message status;

    *n = 0;
    if (!connect)
        return 0;
    int rc = client_look_open(link, connect, role, err);
    if (!rc)
        rc = client_look_status(link, &status, err);
    if (!rc)
        *n = status.status_reply.n_workers;
    return rc;
}

int eps_train(const struct eps_train_options *options, const struct eps_train_events *events, void *user,
              struct eps_error *error)
{
    static const struct eps_train_events silent;
    struct train *t = calloc(1, sizeof *t);
    struct error err = {""};
    uint32_t n_workers;

    if (!t)
        return client_report(error, &(struct error){"out of memory"}, -ENOMEM);
    t->events = events ? events : &silent;
    t->user = user;
    t->log_fd = t->run.directory_fd = t->run.model.config_fd = -1;
    const struct client_watch stop = {.ask = t->events->should_stop ? ask_stop : NULL, .data = t};
    int rc = client_link_init(&t->link, &err);
    if (!rc)
        rc = client_run_open(&t->run, options, &stop, &err); /* may take long, and a session must not wait for it */
    if (!rc)
        rc = count_workers(&t->link, options->connect, ROLE_CLIENT, &n_workers, &err);
    if (!rc)
        rc = client_run_resolve(&t->run, options, n_workers, &err);
    if (!rc)
        rc = run(t, &err);
    take_down(t);
    free(t);
    return client_report(error, &err, rc);
}

int eps_train_resolve(struct eps_train_options *out, const struct eps_train_options *in, struct eps_error *error)
{
    struct client_run *run = calloc(1, sizeof *run);
    struct client_link link = {0};
    struct error err = {""};
    uint32_t n_workers = 0;
    int rc;

    if (!run)
        return client_report(error, &(struct error){"out of memory"}, -ENOMEM);
    rc = client_run_open(run, in, NULL, &err);
    if (!rc)
        rc = client_link_init(&link, &err);
    if (!rc)
        rc = count_workers(&link, in->connect, ROLE_VIEWER, &n_workers, &err);
    if (!rc)
        rc = client_run_resolve(run, in, n_workers, &err);
    *out = run->options;
    client_run_close(run);
    client_link_free(&link);
    free(run);
    return client_report(error, &err, rc);
}
