/* client/model/job.h - one job at the daemon: its shared data segment, held-out loss, and logits of the last token.
 *
 * The segment holds two buffers (struct plan_data, proto/plan/memory/data.h). The client writes one while the workers
 * read the other. For generation it holds a row of ids and one of logits (vocabulary) for each text. */
#ifndef CLIENT_MODEL_JOB_H
#define CLIENT_MODEL_JOB_H

#include "client/daemon/files.h"
#include "client/daemon/link.h"
#include "client/eps.h"
#include "client/model/model.h"
#include "client/task/source.h"
#include "proto/plan/memory/data.h"
#include "proto/wire/segment.h"

#include <stdint.h>

struct client_job {
    struct client_link *link;   /* borrowed */
    struct client_files *files; /* served to a daemon of another user; or NULL */
    struct plan_goal goal;
    uint32_t n_labels;   /* of struct model_config */
    uint32_t vocabulary; /* likewise */
    uint32_t microbatch; /* rows; 0 if the workers chose different ones */
    uint32_t n_workers;  /* workers that have parts */
    struct eps_choice choice;
    uint64_t n_parameters;
    uint64_t resident_bytes; /* weights that stay on the device during generation */
    const int *stop;         /* borrowed or NULL; once nonzero, an evaluation ends after its minibatch: -ECANCELED */
    /* Called before the first minibatch of an evaluation and after each: its progress. May be NULL. */
    void (*on_evaluating)(void *user, uint64_t n_tokens, uint64_t n_all);
    void *user;
    struct segment data;
};

/* Descriptors that go with a job besides the model's files; -1 if absent. */
struct client_job_files {
    int output;  /* output directory */
    int side;    /* content that every checkpoint repeats: proto/wire/message.h */
    int trace;   /* trace file: proto/base/trace.h */
    int moments; /* optimizer.safetensors */
};

/* Sends the job with the model's files and `files` (NULL: none), or serves them to a daemon of another user. Waits
 * until weights are loaded and workers have their memory, then maps the segment. request is a JOB; fresh, output, side,
 * trace and resume are filled in here. -EAGAIN: client_await_another may help. */
int client_job_open(struct client_job *job, struct client_link *link, struct message *request,
                    const struct client_model *model, const struct client_job_files *files, struct error *err);

/* Joins a job that runs, as JOB_OPENED, or its description, tells of it: maps its segment, of which it takes fd. */
int client_job_join(struct client_job *job, struct client_link *link, const struct plan_goal *goal,
                    const struct client_model *model, const struct message *opened, int fd, struct error *err);

/* Ends the job and waits until the daemon has freed its memory. */
int client_job_close(struct client_job *job, struct error *err);

/* Frees this side only; safe on a zeroed struct. Returns as client_files_close. */
int client_job_free(struct client_job *job);

/* The room of a buffer of the segment of a job that trains or evaluates; valid until the job ends. */
struct client_buffer client_job_buffer(const struct client_job *job, unsigned buffer);

/* Mean loss over the labels of all held-out rows (n_valid of them), in nats, with the current weights, and
 * source->logits and source->scores. No step may be open. Uses `buffer`. -EINVAL: the loss is no number; errors as
 * waits in client/daemon/link.h and as client_source_fill_held_out. */
int client_job_evaluate(double *loss, uint64_t *n_valid, struct client_job *job, struct client_source *source,
                        unsigned buffer, struct error *err);

/* Sets source->references by the current weights. No step may be open. Uses `buffer`. Errors as client_job_evaluate. */
int client_job_refer(struct client_job *job, struct client_source *source, unsigned buffer, struct error *err);

/* Rows of a buffer. */
struct client_scored_rows {
    unsigned buffer;
    uint32_t first_row, n_rows, n_tokens;
    bool drops; /* with the dropout that they have in training in step `step` (from 0) */
    uint64_t step;
    bool base; /* without adapters */
};
/* Log p of each label of these rows, by a job with weights: (n_rows, n_tokens), 0 where there is none; valid until the
 * next evaluation. No step may be open. Errors as client_job_evaluate. */
int client_job_score(const float **log_p, struct client_job *job, const struct client_scored_rows *rows,
                     struct error *err);

/* For generation, of which job->microbatch rows advance together: a row's ids (seq). Write an id before its position is
 * run. */
uint32_t *client_job_ids(const struct client_job *job, uint32_t row);

/* A row's source (seq), in an encoder-decoder. */
uint32_t *client_job_source(const struct client_job *job, uint32_t row);

/* The logits (vocabulary) that predict the token after the last that the row has run. Not validated. */
const float *client_job_logits(const struct client_job *job, uint32_t row);

/* Runs the rows' new tokens (struct plan_tokens); n_rows: at most job->microbatch. Logits change of rows that have new
 * tokens; others keep theirs unless a worker is lost, and then get the same bits again. */
int client_job_generate(struct client_job *job, const struct plan_tokens *rows, uint32_t n_rows, struct error *err);

#endif
