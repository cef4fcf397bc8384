/* client/job.h - one job at the daemon: its shared data segment, and the held-out loss.
 *
 * The segment holds two buffers, each batch * seq ids and then batch * seq labels, u32. The client writes one while the
 * workers read the other. */
#ifndef CLIENT_JOB_H
#define CLIENT_JOB_H

#include "client/data.h"
#include "client/link.h"
#include "client/model.h"
#include "proto/segment.h"

#include <stdint.h>

struct client_job {
    struct client_link *link; /* borrowed */
    uint32_t batch, seq;
    uint64_t n_parameters;
    struct segment data;
};

/* Sends the job with the model's files (and the output directory, unless -1), waits until weights are loaded and
 * workers have their memory, and maps the segment. request: kind JOB, its fields but fresh and output. */
int client_job_open(struct client_job *job, struct client_link *link, struct message *request,
                    const struct client_model *model, int output_fd, struct error *err);

/* Ends the job and waits until the daemon has given its memory back. */
int client_job_close(struct client_job *job, struct error *err);

void client_job_free(struct client_job *job); /* this side's mapping alone; safe on a zeroed one */

/* Writes window k to a row of a buffer. */
int client_job_put(struct client_job *job, unsigned buffer, uint32_t row, const struct client_windows *windows,
                   uint64_t k, struct error *err);

/* Mean loss over all windows, in nats per token, with the weights as they are. No step may be open. Uses `buffer`. */
int client_job_evaluate(double *loss, uint64_t *n_tokens, struct client_job *job, const struct client_windows *windows,
                        unsigned buffer, struct error *err);

#endif
