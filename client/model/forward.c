#include "client/model/forward.h"

#include "client/daemon/await.h"
#include "client/model/preset.h"
#include "client/model/snapshot.h"
#include "client/run/options.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int ask_stop(void *data, struct error *err)
{
    const struct client_forward_options *o = data;
    return o->should_stop(o->user) ? error_set(err, -EINTR, "interrupted") : 0;
}

static int on_checked(void *data, uint64_t bytes)
{
    const struct client_forward_options *o = data;

    (void)bytes;
    return o->should_stop && o->should_stop(o->user) ? -EINTR : 0;
}

static int open_model(struct client_forward *f, struct error *err)
{
    const char *path = f->options.model;
    int rc = client_model_open(&f->model, path, err);

    const struct eps_preset *preset = rc == -ENOENT ? client_preset_find(path) : NULL;

    /* For a published preset, the error says where to get the weights. */
    if (preset && !client_preset_is_published(preset))
        return error_set(err, -EINVAL,
                         "--model %s is a preset, which has no weights before it is trained: name a directory", path);
    if (!rc && f->model.n_weights == 0)
        return error_set(err, -EINVAL, "--model %s has no weights: name a directory that holds config.json and them",
                         path);
    return rc ? rc : client_model_check(&f->model, on_checked, &f->options, err);
}

static int copy_live_model(struct client_forward *f, struct error *err)
{
    const char *connect = f->options.connect;
    const struct client_await await = {f->options.on_note, f->options.user};
    int rc = client_snapshot_fetch(&f->model, NULL, connect, &f->link.watches[1], &await, err);

    if (rc == -ENOENT && !connect)
        return error_set(err, -EDOM, "--model is needed, as no run of yours is live: name a directory");
    return rc;
}

int client_forward_open(struct client_forward *forward, const struct client_forward_options *options, struct error *err)
{
    struct device_name name;

    *forward = (struct client_forward){.options = *options, .log_fd = -1, .model.config_fd = -1};
    if (options->model && options->connect && options->device_mem)
        return error_set(err, -EDOM, "--device-mem does not go with --connect: give it to each eps-worker instead");
    int rc = client_options_device(&name, options->device, 1, options->model ? options->connect : NULL, err);
    if (!rc)
        rc = client_link_init(&forward->link, err);
    if (rc)
        return rc;
    if (options->should_stop)
        forward->link.watches[1] = (struct client_watch){.ask = ask_stop, .data = &forward->options};
    return options->model ? open_model(forward, err) : copy_live_model(forward, err);
}

static int join(struct client_forward *f, struct error *err)
{
    const struct client_await await = {f->options.on_note, f->options.user};
    uint32_t n_workers;
    int rc = client_await_daemon(&f->link, f->options.connect, ROLE_CLIENT, &await, err);

    return rc ? rc : client_await_worker(&n_workers, &f->link, f->options.connect, &await, err);
}

int client_forward_start(struct client_forward *forward, struct error *err)
{
    const struct client_forward_options *o = &forward->options;

    if (o->model && o->connect)
        return join(forward, err);
    forward->log_fd = memfd_create("eps-log", MFD_CLOEXEC);
    if (forward->log_fd < 0)
        return error_set(err, -errno, "no memory for a log: %s", strerror(errno));
    struct client_spawn_options spawn = {.programs = o->programs,
                                         .n_workers = 1,
                                         .device_mem = o->device_mem,
                                         .log_fd = forward->log_fd};
    const int rc = client_options_device(&spawn.device, o->device, 1, NULL, err);
    return rc ? rc : client_spawn_start(&forward->spawn, &forward->link, &spawn, err);
}

void client_forward_close(struct client_forward *forward)
{
    client_spawn_stop(&forward->spawn);
    client_link_free(&forward->link);
    if (forward->log_fd >= 0)
        close(forward->log_fd);
    client_model_close(&forward->model);
    forward->log_fd = -1;
}
