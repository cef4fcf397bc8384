/* Client and daemon compute the segment's layout from the same goal, so the answer has a size to compare, and no
 * places. Workers write numbers there that nobody has looked at: a loss is tested here, logits where a token is
 * drawn. */
#include "client/model/job.h"

#include "client/model/file.h"
#include "proto/plan/memory/room.h"
#include "proto/plan/memory/segments.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What lies where in the segment of a job that trains or evaluates. */
static struct plan_data layout_of(const struct client_job *job)
{
    return plan_data_of(&job->goal, job->n_labels);
}

static void *at(const struct client_job *job, uint64_t offset)
{
    return (char *)job->data.base + offset;
}

static int describe_layers(struct eps_choice *out, const struct model_config *config, const struct plan_choice *choice,
                           struct error *err)
{
    struct model model;
    const int rc = model_init(&model, config, err);

    if (rc)
        return rc;
    out->n_blocks = client_model_blocks(out->blocks, &model, choice);
    out->n_inputs = model.n_layers - 1;
    out->n_stored = plan_count_stored(choice, &model);
    out->derives = choice->derives;
    model_free(&model);
    return 0;
}

static void begin(struct client_job *job, struct client_link *link, const struct plan_goal *goal,
                  const struct model_config *config)
{
    *job = (struct client_job){.link = link,
                               .goal = *goal,
                               .n_labels = config->n_labels,
                               .vocabulary = config->vocabulary};
    job->data.fd = -1;
}

/* Bytes of the segment that a client uses: what is known of norms, at its end, is not for it. */
static uint64_t job_bytes_of(const struct client_job *job, const struct model_config *config)
{
    return job->goal.purpose == PLAN_GENERATE ? plan_generate_bytes(&job->goal, config) : layout_of(job).bytes;
}

/* Of an answer with a descriptor, or without one: fd < 0. */
static int read_opened(struct client_job *job, const struct client_model *model, const struct message *m, int fd,
                       struct error *err)
{
    const uint32_t asked = job->goal.entries;

    job->goal.entries = m->job_opened.entries;
    const uint64_t bytes = job_bytes_of(job, &model->config);
    if (fd < 0 || m->job_opened.data_bytes < bytes)
        return error_set(err, -EPROTO, "the daemon opened the job with %" PRIu64 " bytes for data, not %" PRIu64,
                         fd < 0 ? 0 : m->job_opened.data_bytes, bytes);
    if (job->goal.entries != 0 && job->goal.entries != asked)
        return error_set(err, -EPROTO, "the daemon opened the job for norms of %" PRIu32 " tokens, not %" PRIu32,
                         job->goal.entries, asked);
    job->n_workers = m->job_opened.n_workers;
    job->n_parameters = m->job_opened.n_parameters;
    job->resident_bytes = m->job_opened.resident_bytes;
    job->microbatch = m->job_opened.choice.microbatch;
    job->choice = (struct eps_choice){.microbatch = m->job_opened.choice.microbatch,
                                      .host_stash = m->job_opened.choice.host_stash,
                                      .n_weight_buffers = m->job_opened.choice.n_weight_buffers,
                                      .n_resident = m->job_opened.choice.n_resident,
                                      .group_parts = m->job_opened.choice.group_parts,
                                      .whole_head = m->job_opened.choice.whole_head,
                                      .sparse_singly = m->job_opened.choice.sparse_singly,
                                      .replay = plan_replay_text(m->job_opened.replay),
                                      .predicted_ms = m->job_opened.predicted_ms,
                                      .predicted_compute_ms = m->job_opened.predicted_compute_ms,
                                      .predicted_optimizer_ms = m->job_opened.predicted_optimizer_ms};
    return describe_layers(&job->choice, &model->config, &m->job_opened.choice, err);
}

/* Takes fd. */
static int take_opened(struct client_job *job, const struct client_model *model, const struct message *m, int fd,
                       struct error *err)
{
    const int rc = read_opened(job, model, m, fd, err);

    if (rc && fd >= 0)
        close(fd);
    return rc ? rc : segment_attach(&job->data, fd, (size_t)job_bytes_of(job, &model->config), SEGMENT_READ_WRITE, err);
}

int client_job_join(struct client_job *job, struct client_link *link, const struct plan_goal *goal,
                    const struct client_model *model, const struct message *opened, int fd, struct error *err)
{
    begin(job, link, goal, &model->config);
    return take_opened(job, model, opened, fd, err);
}

static int job_read_config(char **text, size_t *n, const struct client_model *model, struct error *err)
{
    const int rc = client_file_read(text, n, model->config_fd, "config.json", err);

    if (rc || *n <= MESSAGE_MAX_CONFIG_BYTES)
        return rc;
    free(*text);
    return error_set(err, -EINVAL, "config.json has %zu bytes; 1 MiB is the most", *n);
}

/* Weights and, if there are any, moments, behind the first n descriptors. Returns how many there are then. */
static unsigned append_values(int *fds, unsigned n, const struct client_model *model, int moments)
{
    for (unsigned i = 0; i < model->n_weights; i++)
        fds[n++] = model->weights[i].fd;
    if (moments >= 0)
        fds[n++] = moments;
    return n;
}

/* The daemon reads no file on a client's behalf that may make it wait: config and side file go in memory. */
static int send_files(struct client_job *job, struct message *request, const struct client_model *model,
                      const struct client_job_files *files, struct error *err)
{
    int fds[SESSION_MAX_FDS];
    unsigned n_fds = 0;
    char *text;
    size_t n;
    int rc = job_read_config(&text, &n, model, err);

    if (rc)
        return rc;
    const int config = segment_seal("config.json", text, n, err);
    free(text);
    if (config < 0)
        return config;
    fds[n_fds++] = config;
    if (files->output >= 0)
        fds[n_fds++] = files->output;
    if (files->side >= 0)
        fds[n_fds++] = files->side;
    if (files->trace >= 0)
        fds[n_fds++] = files->trace;
    n_fds = append_values(fds, n_fds, model, files->moments);
    client_link_send_fds(job->link, request, fds, n_fds);
    close(config);
    return 0;
}

/* To a daemon of another user: in the order that `files` of proto/wire/message.h says. */
static int job_serve_files(struct client_job *job, struct message *request, const struct client_model *model,
                           const struct client_job_files *files, struct error *err)
{
    int fds[SESSION_MAX_FDS];
    uint32_t n_fds = 0, first;
    struct stat side = {0};
    char *text;
    size_t n;

    if (files->side >= 0) {
        if (fstat(files->side, &side))
            return error_set(err, -errno, "the side file: %s", strerror(errno));
        fds[n_fds++] = files->side;
    }
    n_fds = append_values(fds, n_fds, model, files->moments);
    int rc = client_files_open(&job->files, job->link, files->trace, err);
    if (!rc)
        rc = client_files_add(&first, job->files, fds, n_fds, err);
    if (!rc)
        rc = job_read_config(&text, &n, model, err);
    if (rc)
        return rc;
    client_files_put_config(job->files, text, n);
    free(text);
    request->job.config_bytes = (uint32_t)n;
    request->job.side_bytes = (uint32_t)side.st_size;
    request->job.n_files = model->n_weights + request->job.resume;
    client_link_send(job->link, request);
    return 0;
}

static int count_headers(uint64_t *out, const struct client_model *model, int moments, struct error *err)
{
    const struct file file = file_own(moments);
    uint64_t bytes = 0;
    int rc = client_model_header_bytes(out, model, err);

    if (!rc && moments >= 0)
        rc = safetensors_header_bytes(&bytes, &file, err);
    *out = *out > bytes ? *out : bytes;
    return rc;
}

int client_job_open(struct client_job *job, struct client_link *link, struct message *request,
                    const struct client_model *model, const struct client_job_files *files, struct error *err)
{
    static const struct client_job_files none = {-1, -1, -1, -1};
    struct message m;
    int fd;

    begin(job, link, &request->job.goal, &model->config);
    request->job.fresh = model->n_weights == 0;
    if (!files)
        files = &none;
    request->job.output = files->output >= 0;
    request->job.side = files->side >= 0;
    request->job.trace = files->trace >= 0;
    request->job.resume = files->moments >= 0;
    int rc = count_headers(&request->job.header_bytes, model, files->moments, err);
    if (rc)
        return rc;
    rc = (client_files_are_needed(link) ? job_serve_files : send_files)(job, request, model, files, err);
    if (rc)
        return rc;
    rc = client_link_expect(link, MESSAGE_JOB_OPENED, &m, &fd, err);
    if (rc)
        return rc;
    return take_opened(job, model, &m, fd, err);
}

int client_job_close(struct client_job *job, struct error *err)
{
    struct message m;

    client_link_send(job->link, &(struct message){.kind = MESSAGE_CLOSE});
    return client_link_expect(job->link, MESSAGE_CLOSE, &m, NULL, err);
}

/* Without a link nothing was begun, and the descriptor is a mere 0. */
int client_job_free(struct client_job *job)
{
    if (job->link)
        segment_close(&job->data);
    const int rc = client_files_close(job->files);
    *job = (struct client_job){0};
    return rc;
}

struct client_buffer client_job_buffer(const struct client_job *job, unsigned buffer)
{
    const struct plan_data data = layout_of(job);
    struct client_buffer out = {.n_rows = job->goal.batch, .seq = job->goal.seq};

    for (enum plan_field f = 0; f < PLAN_FIELDS; f++)
        out.at[f] = plan_data_has(&data, f) ? at(job, data.buffers[buffer].at[f]) : NULL;
    return out;
}

static void job_tell(const struct client_job *job, const struct client_source *source, uint64_t n_rows)
{
    if (job->on_evaluating)
        job->on_evaluating(job->user, client_source_progress(source, n_rows),
                           client_source_progress(source, client_source_n_rows(source, CLIENT_HELD_OUT)));
}

/* Adds the loss of rows of a buffer, as the message names them, to *sum. */
static int ask_evaluation(double *sum, struct client_job *job, struct message m, struct error *err)
{
    client_link_send(job->link, &m);
    const int rc = client_link_expect(job->link, MESSAGE_EVALUATED, &m, NULL, err);
    if (rc)
        return rc;
    if (!isfinite(m.evaluated.sum)) /* the daemon passed on a worker's value */
        return error_set(err, -EINVAL, "the model's loss is %s: its weights are damaged, or its training has diverged",
                         isnan(m.evaluated.sum) ? "not a number" : "infinite");
    *sum += m.evaluated.sum;
    return 0;
}

/* The same of the first n_rows rows. */
static int evaluate_minibatch(double *sum, struct client_job *job, unsigned buffer, uint32_t n_rows, uint32_t n_tokens,
                              struct error *err)
{
    const struct message m = {.kind = MESSAGE_EVALUATE,
                              .evaluate = {.buffer = buffer, .n_rows = n_rows, .n_tokens = n_tokens}};

    return ask_evaluation(sum, job, m, err);
}

int client_job_score(const float **log_p, struct client_job *job, const struct client_scored_rows *rows,
                     struct error *err)
{
    const struct message m = {.kind = MESSAGE_EVALUATE,
                              .evaluate = {.buffer = rows->buffer,
                                           .first_row = rows->first_row,
                                           .n_rows = rows->n_rows,
                                           .n_tokens = rows->n_tokens,
                                           .drops = rows->drops,
                                           .step = rows->step,
                                           .base = rows->base}};
    float *out = (float *)at(job, layout_of(job).logits) + (size_t)rows->first_row * job->goal.seq;
    double sum = 0;
    const int rc = ask_evaluation(&sum, job, m, err);

    for (size_t row = 1; !rc && row < rows->n_rows; row++) /* they came a goal's seq apart */
        memmove(out + row * rows->n_tokens, out + row * job->goal.seq, rows->n_tokens * sizeof *out);
    *log_p = rc ? NULL : out;
    return rc;
}

int client_job_evaluate(double *loss, uint64_t *n_valid, struct client_job *job, struct client_source *source,
                        unsigned buffer, struct error *err)
{
    const uint64_t n = client_source_n_rows(source, CLIENT_HELD_OUT);
    const struct client_buffer room = client_job_buffer(job, buffer);
    double sum = 0;

    *n_valid = 0;
    job_tell(job, source, 0);
    for (uint64_t first = 0; first < n;) {
        const uint64_t left = n - first;
        const uint32_t n_rows = left < job->goal.batch ? (uint32_t)left : job->goal.batch;
        struct client_minibatch minibatch;
        if (job->stop && *job->stop)
            return error_set(err, -ECANCELED, "the evaluation was cut short");
        int rc = client_source_fill_held_out(&minibatch, &room, source, first, n_rows, err);
        if (!rc)
            rc = evaluate_minibatch(&sum, job, buffer, n_rows, minibatch.n_tokens, err);
        if (rc)
            return rc;
        if (source->logits)
            memcpy(source->logits + first * source->n_logits, at(job, layout_of(job).logits),
                   (size_t)n_rows * source->n_logits * sizeof *source->logits);
        *n_valid += minibatch.n_valid;
        first += n_rows;
        job_tell(job, source, first);
    }
    *loss = *n_valid > 0 ? sum / (double)*n_valid : NAN;
    return source->ops->score(source, loss, n_valid, err);
}

/* A minibatch has rows of one of the two lists, as a source fills it from one. */
int client_job_refer(struct client_job *job, struct client_source *source, unsigned buffer, struct error *err)
{
    const struct client_buffer room = client_job_buffer(job, buffer);
    const uint32_t n_train = source->n_references[CLIENT_TRAIN], n = n_train + source->n_references[CLIENT_HELD_OUT];
    double sum = 0;

    for (uint32_t first = 0; first < n;) {
        const uint32_t left = (first < n_train ? n_train : n) - first,
                       n_rows = left < job->goal.batch ? left : job->goal.batch;
        struct client_minibatch minibatch;
        if (job->stop && *job->stop)
            return error_set(err, -ECANCELED, "the reference model's pass was cut short");
        int rc = client_source_fill_referenced(&minibatch, &room, source, first, n_rows, err);
        if (!rc)
            rc = evaluate_minibatch(&sum, job, buffer, n_rows, minibatch.n_tokens, err);
        if (rc)
            return rc;
        memcpy(source->references + first, at(job, layout_of(job).logits), n_rows * sizeof *source->references);
        first += n_rows;
        if (job->on_evaluating)
            job->on_evaluating(job->user, first / 2, n / 2);
    }
    return 0;
}

uint32_t *client_job_ids(const struct client_job *job, uint32_t row)
{
    return (uint32_t *)job->data.base + (size_t)row * job->goal.seq;
}

uint32_t *client_job_source(const struct client_job *job, uint32_t row)
{
    char *first = (char *)job->data.base + plan_generate_sources(&job->goal);

    return (uint32_t *)first + (size_t)row * job->goal.seq;
}

const float *client_job_logits(const struct client_job *job, uint32_t row)
{
    const char *first = (const char *)job->data.base + plan_generate_logits(&job->goal);

    return (const float *)first + (size_t)row * job->vocabulary;
}

int client_job_generate(struct client_job *job, const struct plan_tokens *rows, uint32_t n_rows, struct error *err)
{
    struct message m = {.kind = MESSAGE_GENERATE, .generate.n_rows = n_rows};

    memcpy(m.generate.rows, rows, n_rows * sizeof *rows);
    client_link_send(job->link, &m);
    return client_link_expect(job->link, MESSAGE_GENERATED, &m, NULL, err);
}
