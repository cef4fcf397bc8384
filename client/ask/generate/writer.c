/* What ends a text is found once, on opening, since each token is compared with it; an end token is drawn like any
 * other and gives no text. What a row has drawn and read begins anew with each text.
 * All samplers share the first one's memory, so it is made first and freed last. */
#include "client/ask/generate/writer.h"

#include "client/daemon/observer.h"
#include "client/model/file.h"
#include "proto/model/family.h"
#include "proto/model/file/model_files.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Reads eos_token_id, a number or a list of numbers, and drops the file. Ids that are no tokens are left out. */
static int writer_read_ends(struct client_writer *w, json_t *file, struct error *err)
{
    const uint32_t vocabulary = w->forward->model.config.vocabulary;
    const json_t *ids = json_object_get(file, "eos_token_id");
    const size_t n_ids = json_is_array(ids) ? json_array_size(ids) : 1;

    free(w->ends);
    w->ends = calloc(n_ids + 1, sizeof *w->ends);
    for (size_t i = 0; w->ends && i < n_ids; i++) {
        const json_t *id = json_is_array(ids) ? json_array_get(ids, i) : ids;
        const json_int_t number = json_is_integer(id) ? json_integer_value(id) : -1;
        if (number >= 0 && number < vocabulary)
            w->ends[w->n_ends++] = (uint32_t)number;
    }
    json_decref(file);
    return w->ends ? 0 : error_memory(err);
}

/* The tokens that end a text, as in transformers: of generation_config.json; without it, of config.json. Else the
 * tokenizer's own. A byte model has no token to spare for an end, whatever transformers wrote into its files. */
static int find_ends(struct client_writer *w, struct error *err)
{
    const struct client_model *model = &w->forward->model;
    char *config = NULL;
    size_t n = 0;

    if (w->tokenizer && client_tokenizer_is_bytes(w->tokenizer))
        return 0;
    int rc = writer_read_ends(w, model_files_json(model->side, "generation_config.json"), err);
    if (!rc && w->n_ends == 0) {
        rc = client_file_read(&config, &n, model->config_fd, "config.json", err);
        rc = rc ? rc : writer_read_ends(w, json_loadb(config, n, 0, NULL), err);
        free(config);
    }
    if (!rc && w->n_ends == 0 && w->tokenizer && client_tokenizer_end(w->tokenizer) < model->config.vocabulary)
        w->ends[w->n_ends++] = client_tokenizer_end(w->tokenizer);
    return rc;
}

int client_writer_open(struct client_writer *w, struct client_forward *forward,
                       const struct client_sample_options *sample, const char *const *stops, size_t n_stops,
                       bool has_ids, struct error *err)
{
    const struct client_model *model = &forward->model;

    *w = (struct client_writer){.forward = forward, .sample = *sample, .stops = stops, .n_stops = n_stops};
    int rc = client_tokenizer_open(&w->tokenizer, model->side, model->config.family->model_type,
                                   model->config.vocabulary, err);
    if (!rc && w->tokenizer)
        client_tokenizer_watch(w->tokenizer, &forward->link.watches[1]);
    if (has_ids && rc == -EINVAL)
        rc = 0;
    if (!rc && n_stops > 0 && !w->tokenizer)
        return error_set(err, -EDOM, "--stop needs a text, and the model has no tokenizer to make one");
    if (!rc)
        rc = client_stop_check(stops, n_stops, err);
    return rc ? rc : find_ends(w, err);
}

static int writer_open_lines(struct client_writer *w, uint32_t n, struct error *err)
{
    int rc = 0;

    w->lines = calloc(n, sizeof *w->lines);
    if (!w->lines)
        return error_set(err, -ENOMEM, "out of memory for %" PRIu32 " texts", n);
    for (; !rc && w->n_lines < n; w->n_lines++) {
        struct client_line *line = &w->lines[w->n_lines];
        rc = w->n_lines == 0 ? client_sampler_init(&line->sampler, &w->sample, w->forward->model.config.vocabulary, err)
                             : client_sampler_init_beside(&line->sampler, &w->lines->sampler, err);
        client_stop_init(&line->stop, w->stops, w->n_stops);
    }
    return rc;
}

static int writer_open_job(struct client_writer *w, struct error *err)
{
    const struct client_model *model = &w->forward->model;
    /* The optimizer is never used, but its numbers must be valid. */
    struct message request = {.kind = MESSAGE_JOB,
                              .job = {.goal = {.purpose = PLAN_GENERATE,
                                               .precision = model->precision,
                                               .batch = w->n_lines,
                                               .seq = w->seq,
                                               .source = model_has_source(&model->config) ? w->seq : 0,
                                               .n_parts = 1},
                                      .beta1 = 0.9,
                                      .beta2 = 0.999,
                                      .epsilon = 1e-8}};
    int rc = client_forward_open_job(w->forward, &w->job, &request, err);

    if (!rc && (w->job.microbatch < 1 || w->job.microbatch > w->n_lines))
        rc = error_set(err, -EPROTO, "the daemon opened the job for %" PRIu32 " texts at once, not 1 to %" PRIu32,
                       w->job.microbatch, w->n_lines);
    return rc;
}

int client_writer_start(struct client_writer *w, uint32_t seq, uint32_t n_lines, struct error *err)
{
    int rc = writer_open_lines(w, n_lines, err);

    w->seq = seq;
    if (!rc)
        rc = client_forward_start(w->forward, err);
    return rc ? rc : writer_open_job(w, err);
}

bool client_writer_gave_way(const struct client_writer *w)
{
    return w->forward->link.failed == -EAGAIN;
}

/* The new job's request goes over the connection, and might overtake a request for the old one on the channel; the
 * answer tells that the daemon has read that. */
int client_writer_renew(struct client_writer *w, struct error *err)
{
    struct message m;

    w->forward->link.failed = 0;
    const int rc = client_observer_status(&w->forward->link, &m, err);
    return rc ? rc : writer_open_job(w, err);
}

/* A row that goes on after another one's tokens has its source, too; the ids are there in case they run again. */
void client_writer_put_source(struct plan_tokens *tokens, struct client_writer *w, uint32_t row, const uint32_t *ids,
                              uint32_t n)
{
    memcpy(client_job_source(&w->job, row), ids, n * sizeof *ids);
    tokens->source = tokens->first == 0 ? n : 0;
}

/* The decoder sees the tokens before: whether a token begins with a blank may depend on them. */
int client_writer_begin(struct client_writer *w, uint32_t row, const uint32_t *before, size_t n_before,
                        struct error *err)
{
    struct client_line *line = &w->lines[row];

    client_stop_begin(&line->stop);
    client_sampler_begin(&line->sampler, before, n_before);
    client_decoder_close(line->decoder);
    line->decoder = NULL;
    if (!w->tokenizer)
        return 0;
    int rc = client_decoder_open(&line->decoder, w->tokenizer, err);
    return rc ? rc : client_decoder_skip(line->decoder, before, n_before, err);
}

bool client_writer_ends(const struct client_writer *w, uint32_t id)
{
    for (size_t i = 0; i < w->n_ends; i++)
        if (w->ends[i] == id)
            return true;
    return false;
}

int client_writer_choose(uint32_t *id, bool *ended, struct client_writer *w, uint32_t row, const float *logits,
                         uint64_t position, struct error *err)
{
    const int rc = client_sampler_draw(id, &w->lines[row].sampler, logits, position, err);

    *ended = !rc && client_writer_ends(w, *id);
    return rc;
}

int client_writer_draw(uint32_t *id, bool *ended, struct client_writer *w, const uint32_t *ids, uint32_t first,
                       uint32_t n, uint64_t position, struct error *err)
{
    memcpy(client_job_ids(&w->job, 0) + first, ids + first, n * sizeof *ids);
    const int rc = client_job_generate(&w->job, &(struct plan_tokens){.first = first, .n = n}, 1, err);

    return rc ? rc : client_writer_choose(id, ended, w, 0, client_job_logits(&w->job, 0), position, err);
}

int client_writer_read(const char **text, size_t *n, struct client_writer *w, uint32_t row, uint32_t id, bool special,
                       bool ended, bool last, struct error *err)
{
    struct client_line *line = &w->lines[row];

    *text = NULL, *n = 0;
    if (!line->decoder)
        return 0;
    int rc = client_decoder_push(line->decoder, text, n, &id, ended ? 0 : 1, special && !w->plain, last, err);
    return rc ? rc : client_stop_push(&line->stop, text, n, *text, *n, last, err);
}

bool client_writer_has_stopped(const struct client_writer *w, uint32_t row)
{
    return w->lines[row].stop.met;
}

int client_writer_finish(struct client_writer *w, struct error *err)
{
    return client_job_close(&w->job, err);
}

void client_writer_close(struct client_writer *w)
{
    client_job_free(&w->job);
    for (uint32_t i = w->n_lines; i-- > 0;) { /* the first has the memory of the others */
        client_sampler_free(&w->lines[i].sampler);
        client_decoder_close(w->lines[i].decoder);
        client_stop_free(&w->lines[i].stop);
    }
    free(w->lines);
    client_tokenizer_close(w->tokenizer);
    free(w->ends);
    *w = (struct client_writer){0};
}
