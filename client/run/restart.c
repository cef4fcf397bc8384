#include "client/run/restart.h"

#include "client/data/data.h"
#include "client/run/attach.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

int client_restart_check(const struct eps_train_options *o, struct error *err)
{
    bool reads_input = o->eval_data && strcmp(o->eval_data, CLIENT_DATA_INPUT) == 0;

    if (o->restarts == 0)
        return 0;
    for (size_t i = 0; i < o->n_data; i++)
        reads_input |= strcmp(o->data[i], CLIENT_DATA_INPUT) == 0;
    if (reads_input)
        return error_set(err, -EDOM, "--restarts %u: data from standard input can be read once: name a file",
                         o->restarts);
    if (o->trace)
        return error_set(err, -EDOM, "--restarts %u does not go with --trace, which times one attempt", o->restarts);
    return 0;
}

/* The checkpoint has every option but those of the machine. */
static struct eps_train_options resume_of(const struct client_restart *r)
{
    const struct eps_train_options *last = &r->options;
    struct eps_train_options o = eps_train_defaults();

    o.resume = r->directory;
    o.data = last->data, o.n_data = last->n_data, o.eval_data = last->eval_data;
    o.connect = last->attach ? r->address : last->connect;
    o.wait = last->wait;
    o.programs = last->programs;
    o.device = last->device, o.device_mem = last->device_mem, o.host_mem = last->host_mem;
    o.workers = last->workers, o.require_pinned = last->require_pinned;
    o.restarts = last->restarts;
    return o;
}

void client_restart_next(struct client_restart *r, const struct client_run *run, bool saved)
{
    const struct eps_train_options *resolved = &run->options;

    if (run->attach)
        snprintf(r->address, sizeof r->address, "%s", run->attach->address);
    snprintf(r->directory, sizeof r->directory, "%s", run->directory);
    if (saved) {
        r->options = resume_of(r);
        return;
    }
    r->options.out = r->directory;
    if (r->options.resume) /* the checkpoint has them */
        return;
    r->options.parts = resolved->parts, r->options.batch = resolved->batch;
    r->options.precision = resolved->precision;
}
