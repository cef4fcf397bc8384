/* eps_eval: the loss of a model over a file, with a job that has weights and no moments. */
#include "client/data.h"
#include "client/eps.h"
#include "client/job.h"
#include "client/link.h"
#include "client/look.h"
#include "client/options.h"
#include "client/spawn.h"
#include "proto/process.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct eval {
    struct eps_eval_options options; /* resolved */
    struct client_model model;
    struct client_data data;
    struct client_windows windows;
    struct client_link link;
    struct client_spawn spawn;
    struct client_job job;
    int log_fd;
};

/* Model, data, seq and batch: the largest minibatch that is still one pass, as large as a training run's. */
static int resolve(struct eval *e, struct error *err)
{
    struct eps_eval_options *o = &e->options;

    if (!o->model || !o->data)
        return error_set(err, -EDOM, "--model and --data are needed");
    if (o->connect && o->device_mem)
        return error_set(err, -EDOM, "--device-mem does not go with --connect: give it to each eps-worker instead");
    int rc = client_model_open(&e->model, o->model, err);
    if (!rc && e->model.n_weights == 0)
        rc = error_set(err, -EINVAL, "--model %s has no weights: name a directory that holds config.json and them",
                       o->model);
    if (!rc)
        rc = client_data_open(&e->data, &o->data, 1, err);
    if (!rc)
        rc = client_data_check(&e->data, &(struct client_data_rules){.vocabulary = e->model.config.vocabulary}, err);
    if (rc)
        return rc;
    const uint32_t n_positions = e->model.config.n_positions;
    if (o->seq == 0)
        o->seq = n_positions < 1024 ? n_positions : 1024;
    if (o->seq > n_positions)
        return error_set(err, -EDOM, "--seq %u is more than the model's %u positions", o->seq, n_positions);
    e->windows = client_windows_of(&e->data, 0, e->data.n, o->seq);
    if (e->windows.n == 0)
        return error_set(err, -EINVAL,
                         "--data %s: %" PRIu64 " tokens are less than a window of --seq %u and a successor", o->data,
                         e->data.n, o->seq);
    if (o->batch == 0)
        o->batch = client_options_batch(o->seq, 1, e->windows.n);
    if (o->device_mem == 0)
        o->device_mem = client_options_device_mem(process_available_bytes(), 1);
    return client_options_check_batch(o->batch, o->seq, err);
}

static int find_workers(struct eval *e, struct error *err)
{
    const struct eps_eval_options *o = &e->options;

    if (o->connect)
        return client_look_open(&e->link, o->connect, ROLE_CLIENT, err);
    e->log_fd = memfd_create("eps-log", MFD_CLOEXEC);
    if (e->log_fd < 0)
        return error_set(err, -errno, "no memory for a log: %s", strerror(errno));
    const struct client_spawn_options options = {.programs = o->programs,
                                                 .n_workers = 1,
                                                 .device_mem = o->device_mem,
                                                 .log_fd = e->log_fd};
    return client_spawn_start(&e->spawn, &e->link, &options, err);
}

static int evaluate(struct eval *e, double *loss, uint64_t *tokens, struct error *err)
{
    /* An optimizer's numbers must be valid although none will work. */
    struct message request = {.kind = MESSAGE_JOB,
                              .job = {.batch = e->options.batch,
                                      .seq = e->options.seq,
                                      .n_parts = 1,
                                      .beta1 = 0.9,
                                      .beta2 = 0.999,
                                      .epsilon = 1e-8}};
    int rc = client_job_open(&e->job, &e->link, &request, &e->model, NULL, err);

    if (!rc)
        rc = client_job_evaluate(loss, tokens, &e->job, &e->windows, 0, err);
    return rc ? rc : client_job_close(&e->job, err);
}

int eps_eval(double *loss, uint64_t *tokens, const struct eps_eval_options *options, struct eps_error *error)
{
    struct eval *e = calloc(1, sizeof *e);
    struct error err = {""};

    if (!e)
        return client_report(error, &(struct error){"out of memory"}, -ENOMEM);
    e->options = *options;
    e->log_fd = e->model.config_fd = -1;
    int rc = client_link_init(&e->link, &err);
    if (!rc)
        rc = resolve(e, &err);
    if (!rc)
        rc = find_workers(e, &err);
    if (!rc)
        rc = evaluate(e, loss, tokens, &err);
    client_job_free(&e->job);
    client_spawn_stop(&e->spawn);
    client_link_free(&e->link);
    if (e->log_fd >= 0)
        close(e->log_fd);
    client_model_close(&e->model);
    client_data_free(&e->data);
    free(e);
    return client_report(error, &err, rc);
}
