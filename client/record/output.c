/* One checkpoint at a time, from OPEN to PLACE or DROP; partial_fd says whether one is being written. Files are served
 * by number in the order of make_files, and the daemon derives the same order: neither sends names. They are withdrawn
 * when the checkpoint ends, however it ends: a daemon that writes later writes into nothing. */
#include "client/record/output.h"

#include "proto/model/adapter.h"
#include "proto/model/file/checkpoint.h"
#include "proto/model/output.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <unistd.h>

void client_output_init(struct client_output *o, int directory_fd, int side_fd, uint64_t first_step)
{
    *o = (struct client_output){.directory_fd = directory_fd,
                                .side_fd = side_fd,
                                .first_step = first_step,
                                .partial_fd = -1};
}

/* After the daemon is done with them, whatever it thinks. */
static void output_close_files(struct client_output *o)
{
    if (o->files)
        client_files_remove(o->files, o->first_file, o->n_served);
    o->n_served = 0;
    while (o->n_fds > 0)
        close(o->fds[--o->n_fds]);
}

static void close_partial(struct client_output *o)
{
    output_close_files(o);
    if (o->partial_fd >= 0)
        close(o->partial_fd);
    o->partial_fd = -1;
}

void client_output_free(struct client_output *o)
{
    if (o->partial_fd < 0)
        return;
    close_partial(o);
    output_remove_partial(o->directory_fd, o->step);
}

static int make_file(struct client_output *o, const char *name, struct error *err)
{
    int *fd = &o->fds[o->n_fds];

    if (o->n_fds == sizeof o->fds / sizeof *o->fds)
        return error_set(err, -EINVAL, "%s: too many files for a checkpoint", name);
    *fd = output_open(o->partial_fd, name, O_RDWR | O_CREAT | O_EXCL);
    if (*fd < 0)
        return output_fail(err, *fd, o->partial_fd, name, "made");
    o->n_fds++;
    return 0;
}

/* Opens the files in the order in which the daemon writes them. Both derive that order from the side file. */
static int make_files(struct client_output *o, struct error *err)
{
    json_t *side = lseek(o->side_fd, 0, SEEK_SET) == 0 ? json_loadfd(o->side_fd, 0, NULL) : NULL, *text;
    const bool adapts = json_object_get(json_object_get(side, "files"), ADAPTER_CONFIG);
    const char *const first[] = {adapts ? ADAPTER_WEIGHTS : CHECKPOINT_WEIGHTS, CHECKPOINT_MOMENTS,
                                 adapts ? ADAPTER_BASE : CHECKPOINT_CONFIG};
    const char *name;
    int rc = side ? 0 : error_set(err, -EIO, "the run's side file could not be read again");

    for (size_t i = 0; !rc && i < sizeof first / sizeof *first; i++)
        rc = make_file(o, first[i], err);
    json_object_foreach(json_object_get(side, "files"), name, text) if (!rc) rc = make_file(o, name, err);
    if (!rc)
        rc = make_file(o, CHECKPOINT_TRAINING, err);
    json_decref(side);
    return rc;
}

/* A daemon may ask only for steps that were opened, or for the one that the run began with; and for one at a time. */
static int output_open_partial(struct client_output *o, const struct message *m, uint64_t n_opened, struct error *err)
{
    const uint64_t step = m->output.step;

    if (!o->files || o->partial_fd >= 0 || step < o->first_step || (step > n_opened && step > o->first_step))
        return error_set(err, -EPROTO, "step %" PRIu64 " cannot be saved now: the daemon asks for it out of turn",
                         step);
    o->id = m->output.id;
    o->step = step;
    int rc = output_begin(&o->partial_fd, o->directory_fd, step, err);
    if (!rc)
        rc = make_files(o, err);
    if (!rc)
        rc = client_files_add(&o->first_file, o->files, o->fds, o->n_fds, err);
    o->n_served = rc ? 0 : o->n_fds;
    if (rc)
        client_output_free(o);
    return rc;
}

static int place(struct client_output *o, const struct message *m, struct error *err)
{
    if (o->partial_fd < 0 || m->output.id != o->id)
        return error_set(err, -EPROTO, "step %" PRIu64 " cannot be put in place: it was not begun", m->output.step);
    int rc = output_place(o->directory_fd, o->partial_fd, o->step, err);
    if (rc)
        client_output_free(o);
    close_partial(o);
    return rc;
}

void client_output_hear(struct client_output *o, struct client_link *link, const struct message *m, uint64_t n_opened)
{
    struct message reply = {.kind = MESSAGE_OUTPUT_DONE, .output_done = {.id = m->output.id}};
    struct error err = {""};
    int rc = 0;

    switch (m->output.what) {
    case OUTPUT_OPEN:
        rc = output_open_partial(o, m, n_opened, &err);
        reply.output_done.first_file = o->first_file;
        reply.output_done.n_files = o->n_fds;
        break;
    case OUTPUT_PLACE:
        rc = place(o, m, &err);
        break;
    case OUTPUT_DROP:
        if (m->output.id == o->id)
            client_output_free(o);
        return;
    }
    reply.output_done.code = rc;
    reply.output_done.error = err;
    client_link_send(link, &reply);
}
