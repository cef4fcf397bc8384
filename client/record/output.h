/* client/record/output.h - writes the checkpoints of a run whose daemon belongs to another user: opens their files and
 * puts them in place.
 *
 * A daemon that wrote into the run directory would act with the rights of its own user (eps/base/rights.c). So it gets
 * no directory: the client opens new files for each checkpoint, and serves them (client/daemon/files.h). The client
 * does not trust the daemon: it accepts only steps of this run, one at a time, and replaces an existing step-N only if
 * it is a checkpoint (proto/model/output.h). */
#ifndef CLIENT_RECORD_OUTPUT_H
#define CLIENT_RECORD_OUTPUT_H

#include "client/daemon/files.h"
#include "proto/model/file/checkpoint.h"
#include "proto/wire/message.h"

#include <stdint.h>

struct client_output {
    int directory_fd;                  /* the run directory; borrowed */
    int side_fd;                       /* the job's side file, which lists the model's side files; borrowed */
    uint64_t first_step;               /* updates done when the job began */
    struct client_files *files;        /* borrowed */
    int fds[CHECKPOINT_MAX_FILES + 1]; /* (n_fds) files of the checkpoint that is being written */
    unsigned n_fds;
    uint32_t first_file, n_served; /* of these, the number of the first and how many are served */
    int partial_fd;                /* step-N.partial while it is being written; else -1 */
    uint32_t id;
    uint64_t step;
};

/* files: set before the first message. */
void client_output_init(struct client_output *output, int directory_fd, int side_fd, uint64_t first_step);

/* Carries out an OUTPUT message and replies. n_opened: steps opened since the model's beginning. Blocks on the disk. */
void client_output_hear(struct client_output *output, struct client_link *link, const struct message *m,
                        uint64_t n_opened);

/* Removes what is half written. Safe twice, and without init on one whose partial_fd is -1. */
void client_output_free(struct client_output *output);

#endif
