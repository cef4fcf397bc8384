/* Rows are read first, as defaults of options follow from their number and length, and divided once options are
 * resolved. What an earlier run stored is compared between the two: data that have changed are refused before anything
 * is started. */
#include "client/run/run.h"

#include "client/run/attach.h"
#include "client/model/passed.h"
#include "client/record/change.h"
#include "client/options/options.h"
#include "proto/base/process.h"
#include "proto/wire/message.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int run_check_names(const struct eps_train_options *in, struct error *err)
{
    if (in->change && !in->resume)
        return error_set(err, -EDOM, "--change %.100s is for a resumed run: give --resume, or leave it out",
                         in->change);
    if (in->n_data == 0)
        return error_set(err, -EDOM, "--data is needed: files of text, .jsonl, .bin or .npy, or - for standard input");
    if (in->task && !in->model)
        return error_set(err, -EDOM, "--task needs --model: a directory of an encoder such as BERT");
    for (size_t i = 0; in->eval_data && i < in->n_data; i++) {
        if (strcmp(in->eval_data, CLIENT_DATA_INPUT) == 0 && strcmp(in->data[i], CLIENT_DATA_INPUT) == 0)
            return error_set(err, -EDOM, "--data - and --eval-data -: standard input can be read once");
    }
    return 0;
}

/* The rows of which batch norms have statistics: those of a part, or of a ghost batch. */
static void run_note_norms(struct client_run *run)
{
    struct eps_train_options *o = &run->options;
    const uint32_t ghost = run->model.config.image.ghost_batch;
    const size_t n = strlen(o->task_note);

    snprintf(o->task_note + n, sizeof o->task_note - n, "; batch norms over %u of %u images",
             ghost ? ghost : o->batch / o->parts, o->batch);
}

static int divide_rows(struct client_run *run, struct error *err)
{
    struct eps_train_options *o = &run->options;
    const struct client_division division = {.batch = o->batch,
                                             .part = o->batch / o->parts,
                                             .seq = o->seq,
                                             .stride = o->seq,
                                             .order = o->order,
                                             .seed = o->seed,
                                             .n_train = client_options_n_train(o, run->data.n),
                                             .eval_tokens = o->eval_tokens,
                                             .mask_fraction = o->mask_fraction,
                                             .beta = o->dpo_beta};
    int rc = client_source_divide(run->source, &division, err);

    if (!rc)
        rc = client_source_make_room(run->source, o->batch, err);
    if (!rc)
        client_source_describe(o->task_note, sizeof o->task_note, run->source);
    o->teaches = run->source->ops->facts.task;
    if (!rc && run->model.config.image.height)
        run_note_norms(run);
    return rc;
}

struct eps_train_options client_run_last_options(const struct client_run *run)
{
    return run->options.freeze_until > 0 ? client_options_thaw(&run->options, run->model.config.adapter.rank > 0)
                                         : run->options;
}

struct eps_train_options client_run_job_options(const struct client_run *run)
{
    return run->thawed ? client_run_last_options(run) : run->options;
}

uint64_t client_run_job_end(const struct client_run *run)
{
    const struct eps_train_options *o = &run->options;

    return !run->thawed && o->freeze_until > 0 && o->freeze_until < o->steps ? o->freeze_until : o->steps;
}

/* True if the run has more steps than an epoch: else nothing is remembered that it reads again. */
static bool sees_rows_again(const struct client_run *run)
{
    const uint64_t n = client_source_n_rows(run->source, CLIENT_TRAIN), batch = run->options.batch;

    return client_run_rows(run, run->options.steps) > (n + batch - 1) / batch * batch;
}

int client_run_model(struct model *out, const struct client_run *run, const struct eps_train_options *options,
                     const struct plan_goal *goal, struct error *err)
{
    const int rc = client_options_model(out, &run->model.config, options, err);

    if (!rc)
        plan_remember_norms(out, goal);
    return rc;
}

/* Maps whose norms are remembered under these options, if the goal has entries. */
static uint32_t count_norm_maps(const struct client_run *run, const struct eps_train_options *options,
                                const struct plan_goal *goal)
{
    struct model model;
    const uint32_t n = client_run_model(&model, run, options, goal, NULL) == 0 ? model.n_norm_maps : 0;

    model_free(&model);
    return n;
}

struct plan_goal client_run_goal(const struct client_run *run)
{
    const struct eps_train_options options = client_run_job_options(run), last = client_run_last_options(run);
    struct plan_goal goal = client_options_goal(&options);
    const uint64_t n = client_source_n_entries(run->source);

    client_source_ask(&goal, run->source->ops->fields);
    memcpy(goal.row_tokens, run->source->row_tokens, sizeof goal.row_tokens);
    if (goal.sampling.share == 0 || n >= PLAN_NEW_ENTRY || !sees_rows_again(run))
        return goal;
    goal.entries = (uint32_t)n;
    if (count_norm_maps(run, &options, &goal) == 0 && count_norm_maps(run, &last, &goal) == 0)
        goal.entries = 0;
    return goal;
}

bool client_run_say_norms(struct error *sentence, const struct client_run *run)
{
    const uint64_t n = client_source_n_entries(run->source);
    const struct eps_train_options options = client_run_job_options(run);
    char memory[PROCESS_BYTES_TEXT], disk[PROCESS_BYTES_TEXT];
    struct plan_goal goal = client_run_goal(run);
    const bool many = goal.sampling.share > 0 && n >= PLAN_NEW_ENTRY && sees_rows_again(run);
    struct model model;

    goal.entries = many ? 1 : goal.entries;
    const bool any = client_run_model(&model, run, &options, &goal, NULL) == 0 && model.n_norm_maps > 0;
    if (many)
        error_set(sentence, 0,
                  "norms of gradients are not remembered: the training data have %" PRIu64
                  " tokens, more than %" PRIu32,
                  n, PLAN_NEW_ENTRY - 1);
    else
        error_set(sentence, 0,
                  "norms of gradients are remembered for %u matri%s: %s of host memory, and %s of each checkpoint",
                  model.n_norm_maps, model.n_norm_maps == 1 ? "x" : "ces",
                  process_format_bytes(memory, plan_norms_bytes(&goal, model.n_norm_maps)),
                  process_format_bytes(disk, (uint64_t)model.n_norm_maps * goal.entries * sizeof(uint16_t)));
    model_free(&model);
    return any;
}

void client_run_init(struct client_run *run)
{
    *run = (struct client_run){.directory_fd = -1, .model.config_fd = -1};
    client_resume_init(&run->resume);
}

/* Data from standard input cannot be read again. */
static int check_input(const struct client_run *run, const struct eps_train_options *in, struct error *err)
{
    const struct eps_train_options *stored = &run->resume.record.options;

    for (size_t i = 0; in->n_data == 0 && i < stored->n_data; i++) {
        if (strcmp(stored->data[i], CLIENT_DATA_INPUT) == 0)
            return error_set(err, -EDOM,
                             "%s: its data came from standard input: pipe it in again, with --data -, or name files "
                             "that hold it",
                             run->resume.directory);
    }
    if (!in->eval_data && stored->eval_data && strcmp(stored->eval_data, CLIENT_DATA_INPUT) == 0)
        return error_set(err, -EDOM, "%s: its held-out data came from standard input: give it again, with --eval-data",
                         run->resume.directory);
    return 0;
}

/* Data of a run that goes on must have the same content, wherever it lies. */
static int check_content(const struct client_data *data, const struct client_content *stored, const char *option,
                         struct error *err)
{
    if (data->n == stored->tokens && data->hash == stored->hash)
        return 0;
    return error_set(err, -EINVAL,
                     "%s %s%s is not what the run was trained on (%" PRIu64 " tokens, checksum %016" PRIx64
                     "; there %" PRIu64 ", %016" PRIx64
                     "): name the files as they were, or start a new run from its weights with --model instead of "
                     "--resume",
                     option, data->files[0].path, data->n_files > 1 ? " and more" : "", data->n, data->hash,
                     stored->tokens, stored->hash);
}

static int run_check_freeze(const struct client_run *run, struct error *err)
{
    struct model model;

    if (!run->asked.freeze && run->asked.base <= EPS_BASE_FULL)
        return 0;
    const int rc = client_options_model(&model, &run->model.config, &run->asked, err);
    model_free(&model);
    return rc;
}

/* Checks a run that goes on against its record; rc: of opening its model and data. */
static int check_stored(const struct client_run *run, int rc, struct error *err)
{
    const struct client_record *record = &run->resume.record;

    if (rc == -ENOENT && run->model.config_fd >= 0) /* the model was found */
        error_append(err, "; if it has moved, say where it is now with --data or --eval-data");
    if (!rc)
        rc = run_check_freeze(run, err);
    if (!rc)
        rc = check_content(&run->data, &record->data, "--data", err);
    if (!rc && run->asked.eval_data)
        rc = check_content(&run->eval_data, &record->eval_data, "--eval-data", err);
    return rc;
}

int client_run_new(struct client_run *run, const struct eps_train_options *in, const struct eps_train_options *meant,
                   const struct client_watch *watch, struct error *err)
{
    client_run_init(run);
    run->asked = *in;
    run->meant = meant;
    int rc = run_check_names(in, err);
    if (!rc)
        rc = client_choose(run, in, watch, err);
    return rc ? rc : run_check_freeze(run, err);
}

int client_run_resume(struct client_run *run, const struct eps_train_options *in, const struct client_watch *watch,
                      struct error *err)
{
    client_run_init(run);
    run->asked = *in;
    run->continues = true;
    int rc = client_resume_open(&run->resume, in, watch, err);
    if (rc)
        return rc;
    run->first_step = run->saved_step = run->resume.checkpoint.step;
    rc = client_record_merge(&run->asked, in, &run->resume.record, err);
    if (!rc)
        rc = check_input(run, in, err);
    if (!rc)
        rc = run_check_names(&run->asked, err);
    if (rc)
        return rc;
    struct eps_train_options sources = run->asked;
    sources.model = run->resume.path; /* its weights; the name stays */
    rc = client_choose(run, &sources, watch, err);
    run->model_name = run->asked.model;
    return check_stored(run, rc, err);
}

int client_run_attach(struct client_run *run, struct client_attach *attach, const struct eps_train_options *in,
                      const struct client_watch *watch, struct error *err)
{
    client_run_init(run);
    run->asked = *in;
    run->continues = true;
    int rc = client_attach_open(run, attach, in, watch, err);
    run->first_step = attach->job.description.step;
    run->attached = true;
    run->thawed = attach->job.description.thawed;
    run->saved_step = MESSAGE_NO_STEP;
    if (!rc)
        rc = check_input(run, in, err);
    if (!rc)
        rc = run_check_names(&run->asked, err);
    if (rc)
        return rc;
    rc = client_choose_rows(run, &run->asked, watch, err);
    return check_stored(run, rc, err);
}

/* Checks the changed --freeze-until of a resumed run. */
static int check_thaw(const struct client_run *run, struct error *err)
{
    const uint64_t stored = run->resume.record.options.freeze_until, asked = run->options.freeze_until;

    if (!run->continues || asked == stored)
        return 0;
    if (stored > 0 && run->first_step > stored)
        return error_set(err, -EDOM,
                         "--change freeze-until: the run has trained all tensors since step %" PRIu64
                         ": leave it out, or resume from an earlier checkpoint",
                         stored);
    if (asked < run->first_step)
        return error_set(err, -EDOM,
                         "--freeze-until %" PRIu64 ": the run has done %" PRIu64 " steps: choose %" PRIu64 " or more",
                         asked, run->first_step, run->first_step);
    return client_options_check_thaw(&run->options, err);
}

int client_run_resolve(struct client_run *run, uint32_t n_workers, struct error *err)
{
    const json_t *changes = json_object_get(run->resume.record.json, "changes");
    const uint32_t batch = run->resume.record.options.batch;
    const bool rebatched = run->asked.batch != batch;
    const uint64_t batch_step = rebatched ? run->first_step : client_change_batch_step(changes);
    const struct client_source_facts rows = client_source_measure(run->source);
    const struct client_facts facts = {
        .batch_step = batch_step,
        .batch_row = client_change_rows(changes, batch, batch_step),
        .n_positions = run->model.config.n_positions,
        .masked = rows.masked,
        .pairs = rows.pairs,
        .whole = rows.whole,
        .flows = rows.flows,
        .task = rows.task,
        .seq = rows.seq,
        .source = rows.source,
        .n_rows = rows.n_rows,
        .n_held_out = rows.n_held_out,
        .joined = run->model.config.image.ghost_batch,
        .longest = rows.longest,
        .least = rows.least,
        .fresh = run->model.n_weights == 0,
        .adapts = run->model.config.adapter.rank > 0,
        .coded = run->model.form,
        .preset = run->preset,
        .resumed = run->continues,
        .separated = run->data.separated || run->eval_data.separated,
        .n_tokens = run->data.n,
        .n_eval_tokens = run->eval_data.n,
        .n_workers = n_workers,
    };
    int rc = 0;

    if (run->source->ops->order->fixes_batch && run->continues && rebatched)
        return error_set(err, -EDOM,
                         "--change batch: the rows of each step are drawn for --batch %u: leave it out, or start a new "
                         "run from its weights with --model instead of --resume",
                         batch);
    rc = client_options_resolve(&run->options, &run->asked, &facts, err);
    if (!rc)
        rc = check_thaw(run, err);
    if (!rc && run->continues &&
        client_record_changes(&run->changes, &run->resume.record, &run->options, run->first_step))
        rc = error_memory(err);
    if (rc)
        return rc;
    if (!run->attached)
        run->thawed = client_options_thawed(&run->options, run->first_step);
    run->options.model = run->model_name;
    snprintf(run->options.model_note, sizeof run->options.model_note, "%s", run->model_note);
    return divide_rows(run, err);
}

int client_run_check_left(struct client_run *run, struct error *err)
{
    const struct eps_train_options *o = &run->options;
    const struct client_resume *r = &run->resume;
    const struct client_best *best = &r->past.best;
    const bool stopped_early = r->in_place && o->patience > 0 && best->n_since >= o->patience;

    if ((run->first_step < o->steps && !stopped_early) || (run->first_step == o->steps && r->lacks_evaluation))
        return 0;
    run->complete = true;
    if (r->in_place)
        client_run_mend_directory(run);
    if (run->first_step >= o->steps)
        return error_set(err, -EINVAL,
                         "--resume %s: the run is complete: it has done %" PRIu64 " of %" PRIu64
                         " steps; give more --steps to go on (they count from the run's beginning)",
                         r->path, run->first_step, o->steps);
    return error_set(err, -EINVAL,
                     "--resume %s: the run is complete: after %" PRIu64 " steps its last %u evaluations have not been "
                     "below the held-out loss of %.4f after step %" PRIu64 "; give more --patience than %u to go on",
                     r->path, run->first_step, best->n_since, best->loss, best->step, best->n_since);
}

void client_run_close(struct client_run *run)
{
    client_model_close(&run->model);
    client_source_close(run->source);
    run->source = NULL;
    client_data_free(&run->data);
    client_data_free(&run->eval_data);
    if (run->directory_fd >= 0 && run->directory_fd != run->resume.directory_fd)
        close(run->directory_fd);
    run->directory_fd = -1;
    client_resume_close(&run->resume);
    json_decref(run->changes);
    run->changes = NULL;
}

uint64_t client_run_rows(const struct client_run *run, uint64_t step)
{
    return client_change_rows(run->changes, run->options.batch, step);
}

uint64_t client_run_tokens(const struct client_run *run, uint64_t step)
{
    return client_source_n_tokens(run->source, step, client_run_rows(run, step));
}

uint64_t client_run_began(const struct client_run *run)
{
    const json_int_t stored = json_integer_value(json_object_get(run->resume.record.json, CLIENT_RECORD_BEGAN));

    if (!run->continues)
        return 0;
    return !run->resume.in_place ? run->first_step : stored > 0 ? (uint64_t)stored : 0;
}

json_t *client_run_record(const struct client_run *run, uint32_t microbatch)
{
    const struct client_content data = {run->data.n, run->data.hash};
    const struct client_content eval_data = {run->eval_data.n, run->eval_data.hash};
    struct eps_train_options options = run->options;
    char **paths = calloc(run->data.n_files + 1, sizeof *paths);
    bool whole = paths;

    for (size_t i = 0; whole && i < run->data.n_files; i++) {
        paths[i] = client_data_name(&run->data.files[i]); /* a pattern is stored as the files it matched */
        whole = paths[i];
    }
    options.data = (const char *const *)paths;
    options.n_data = run->data.n_files;
    options.device = run->asked.device;
    options.device_mem = run->asked.device_mem;
    options.microbatch = microbatch;
    json_t *record = whole ? client_record_write(&options, &data, &eval_data) : NULL;
    for (size_t i = 0; paths && i < run->data.n_files; i++)
        free(paths[i]);
    free(paths);
    json_t *const products =
        json_object_get(run->resume.record.json, "products"); /* the daemon's choice, from the run's beginning */
    json_t *const scale = options.precision == EPS_FP16 ? json_object_get(run->resume.record.json, "loss_scale") : NULL;
    const uint64_t began = client_run_began(run);
    const enum safetensors_type dtype = run->model.dtype;
    json_t *const source = dtype == SAFETENSORS_F32 ? NULL : json_string(safetensors_type_name(dtype));
    if (record && ((json_array_size(run->changes) > 0 && json_object_set(record, "changes", run->changes)) ||
                   (products && json_object_set(record, "products", products)) ||
                   (scale && json_object_set(record, "loss_scale", scale)) ||
                   (began > 0 && json_object_set_new(record, CLIENT_RECORD_BEGAN, json_integer((json_int_t)began))) ||
                   (source && json_object_set(record, CLIENT_MODEL_DTYPE_KEY, source)) ||
                   (run->model.passed && json_object_set(record, CLIENT_PASSED_KEY, run->model.passed)))) {
        json_decref(record);
        record = NULL;
    }
    json_decref(source);
    return record;
}
