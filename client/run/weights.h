/* client/run/weights.h - the daemon's weights, as the caller of eps_train looks at them (on_weights in
 * client/eps_options.h).
 *
 * The client maps the segment in which the daemon has them, once in a job. Before each look it asks where each unit is:
 * with replay, trained weights alternate between two buffers. A tensor lies there as a checkpoint has it, in whole
 * rows; those of a table may be in several units. A convolution's windows lie behind one another by channel last, which
 * strides say. */
#ifndef CLIENT_RUN_WEIGHTS_H
#define CLIENT_RUN_WEIGHTS_H

#include "client/model/job.h"
#include "client/run/run.h"
#include "proto/model/file/checkpoint_layout.h"
#include "proto/plan/memory/division.h"

struct client_weights {
    struct model model; /* as the job has it; no units: nothing is mapped yet */
    struct plan_own own;
    struct segment segment;
    int fd;                                 /* the segment's, for the caller's own mappings */
    bool *second;                           /* (n_units) the trained weights are in the second buffer */
    struct eps_tensor *tensors;             /* (n_tensors) */
    struct eps_tensor_piece *pieces;        /* (n_pieces) by tensor, then row */
    char (*names)[CHECKPOINT_TENSOR_BYTES]; /* (n_tensors) */
};

/* Has on_weights look at the weights after `step` updates, all of which are done; no step is open. -EPROTO, -ENOMEM;
 * -EINVAL with a sentence on several hosts; and errors as client_link_expect. */
int client_weights_show(struct client_weights *weights, const struct client_run *run, const struct client_job *job,
                        uint64_t step, struct error *err);
void client_weights_free(struct client_weights *weights); /* safe on a zeroed one */

#endif
