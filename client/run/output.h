/* client/run/output.h - the checkpoints of a run whose daemon is another user's: their files are opened here, and put in place
 * here.
 *
 * What that daemon did in the run directory it would do with the rights of its own user; so it is given no directory, but
 * for each checkpoint new files that are open for writing (eps/rights.c). The daemon is not trusted either: it can ask for steps of this run alone, one at a time, and
 * what is in the way of step-N is only replaced if it is a checkpoint (proto/model/output.h). */
#ifndef CLIENT_RUN_OUTPUT_H
#define CLIENT_RUN_OUTPUT_H

#include "client/daemon/link.h"
#include "proto/model/checkpoint.h"
#include "proto/wire/message.h"

#include <stdint.h>

struct client_output {
    int directory_fd;                  /* the run directory; borrowed */
    int side_fd;                       /* the job's side file, which names what came with the model; borrowed */
    uint64_t first_step;               /* updates done when the job began */
    int fds[CHECKPOINT_MAX_FILES + 1]; /* (n_fds) of its files, until they are sent */
    unsigned n_fds;
    int partial_fd; /* step-N.partial, which is being written; -1: nothing is */
    uint32_t id;
    uint64_t step;
};

/* A daemon of another user's is to be given no directory. The session must be open. */
bool client_output_is_needed(const struct client_link *link);

void client_output_init(struct client_output *output, int directory_fd, int side_fd, uint64_t first_step);

/* Does what OUTPUT asks for, and answers; n_opened: steps opened since the model's beginning. Waits for the disk. */
void client_output_hear(struct client_output *output, struct client_link *link, const struct message *m,
                        uint64_t n_opened);

/* Removes what is half written. Safe twice, and without init on one whose partial_fd is -1. */
void client_output_free(struct client_output *output);

#endif
