/* client/daemon/job.h - one job at the daemon: its shared data segment, the held-out loss, the logits of a text's last token.
 *
 * The segment holds two buffers, each batch * seq ids and then batch * seq labels, u32. The client writes one while the
 * workers read the other. Of a job that generates, it holds one row of ids, and the vocabulary's logits. */
#ifndef CLIENT_DAEMON_JOB_H
#define CLIENT_DAEMON_JOB_H

#include "client/daemon/link.h"
#include "client/data/data.h"
#include "client/eps.h"
#include "client/model/model.h"
#include "proto/wire/segment.h"

#include <stdint.h>

struct client_job {
    struct client_link *link; /* borrowed */
    uint32_t batch, seq;
    uint32_t microbatch; /* rows, if all workers chose the same; else 0 */
    uint32_t n_workers;  /* that have parts */
    struct eps_choice choice;
    uint64_t n_parameters;
    uint64_t resident_bytes; /* of weights that stay on the device while it generates */
    const int *stop; /* borrowed or NULL: once it is not 0, an evaluation ends between two minibatches: -ECANCELED */
    /* Before the first minibatch of an evaluation and after each: how far it is. NULL: nobody wants to know. */
    void (*on_evaluating)(void *user, uint64_t n_tokens, uint64_t n_all);
    void *user;
    struct segment data;
};

/* What goes with a job besides the model's files; each -1 if there is none. */
struct client_job_files {
    int output;  /* directory */
    int side;    /* what every checkpoint repeats: proto/wire/message.h */
    int trace;   /* what is recorded of it: proto/base/trace.h */
    int moments; /* optimizer.safetensors */
};

/* Sends the job with the model's files and others (NULL: none), waits until weights are loaded and workers have their
 * memory, and maps the segment. request: kind JOB, its fields but fresh, output, side, trace and resume. */
int client_job_open(struct client_job *job, struct client_link *link, struct message *request,
                    const struct client_model *model, const struct client_job_files *files, struct error *err);

/* Ends the job and waits until the daemon has given its memory back. */
int client_job_close(struct client_job *job, struct error *err);

void client_job_free(struct client_job *job); /* this side's mapping alone; safe on a zeroed one */

/* Writes window k to a row of a buffer. */
int client_job_put(struct client_job *job, unsigned buffer, uint32_t row, const struct client_windows *windows,
                   uint64_t k, struct error *err);

/* Mean loss over all windows, in nats per token, with the weights as they are. No step may be open. Uses `buffer`. */
int client_job_evaluate(double *loss, uint64_t *n_tokens, struct client_job *job, const struct client_windows *windows,
                        unsigned buffer, struct error *err);

/* Of a job that generates: the ids of the text (seq), to be written before they are run. */
uint32_t *client_job_ids(const struct client_job *job);

/* Runs tokens first .. first+n-1 of the text, those before having been run. *logits (vocabulary): what follows the last
 * of them; borrowed until the next call, and only as sound as the worker. */
int client_job_generate(const float **logits, struct client_job *job, uint32_t first, uint32_t n, struct error *err);

#endif
