/* Stored values are resolved ones: a given value is compared with what the run had, whether or not that was a default
 * then. A few options that follow from a changed one become unset, to be resolved as at a run's beginning
 * (follow_changes). */
#include "client/record/record.h"

#include "client/data/data.h"
#include "client/options/value.h"
#include "client/record/change.h"
#include "proto/base/json.h"
#include "proto/operation/device_name.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Makes an existing path absolute. A preset's name, a name without a file, and "-" stay unchanged. */
static json_t *path_json(const char *path)
{
    char *real = strcmp(path, CLIENT_DATA_INPUT) ? realpath(path, NULL) : NULL;
    json_t *text = json_string(real ? real : path);

    free(real);
    return text;
}

static int add_content(json_t *json, const char *tokens, const char *hash, const struct client_content *content)
{
    char digits[20];

    snprintf(digits, sizeof digits, "%016" PRIx64, content->hash);
    return json_object_set_new(json, tokens, json_integer((json_int_t)content->tokens)) ||
           json_object_set_new(json, hash, json_string(digits));
}

json_t *client_record_write(const struct eps_train_options *options, const struct client_content *data,
                            const struct client_content *eval_data)
{
    json_t *json = json_object(), *paths = json_array();
    const struct eps_option *row;
    char key[CLIENT_OPTION_KEY];
    int rc = json_object_set_new(json, "model", path_json(options->model)) || json_object_set(json, "data", paths);

    for (size_t i = 0; i < options->n_data; i++)
        rc = rc || json_array_append_new(paths, path_json(options->data[i]));
    rc = rc || add_content(json, "data_tokens", "data_hash", data);
    if (options->eval_data)
        rc = rc || json_object_set_new(json, "eval_data", path_json(options->eval_data)) ||
             add_content(json, "eval_data_tokens", "eval_data_hash", eval_data);
    for (unsigned i = 1; (row = client_option_stored(i)); i++)
        if (row->stored != EPS_STORED_ABSENT || client_option_is_set(options, row))
            rc = rc || json_object_set_new(json, client_option_key(key, row), client_option_to_json(options, row));
    if (options->eval_chosen)
        rc = rc || json_object_set_new(json, CLIENT_RECORD_EVAL_CHOSEN, json_true());
    json_decref(paths);
    if (!rc)
        return json;
    json_decref(json);
    return NULL;
}

static bool get_content(struct client_content *out, const json_t *tokens, const json_t *hash)
{
    const char *digits = json_string_value(hash);
    char *end;

    if (!json_is_integer(tokens) || json_integer_value(tokens) < 0 || !digits || strlen(digits) != 16)
        return false;
    out->tokens = (uint64_t)json_integer_value(tokens);
    out->hash = strtoull(digits, &end, 16);
    return !*end;
}

/* Returns the first invalid key, or NULL. */
static const char *read_paths(struct client_record *r)
{
    const json_t *data = json_object_get(r->json, "data"), *eval_data = json_object_get(r->json, "eval_data");
    struct eps_train_options *o = &r->options;

    o->model = json_string_value(json_object_get(r->json, "model"));
    if (!o->model)
        return "model";
    r->data_paths = calloc(json_array_size(data) + 1, sizeof *r->data_paths);
    for (; r->data_paths && o->n_data < json_array_size(data); o->n_data++) {
        r->data_paths[o->n_data] = json_string_value(json_array_get(data, o->n_data));
        if (!r->data_paths[o->n_data])
            return "data";
    }
    o->data = r->data_paths;
    if (o->n_data == 0)
        return "data";
    if (!get_content(&r->data, json_object_get(r->json, "data_tokens"), json_object_get(r->json, "data_hash")))
        return "data_tokens or data_hash";
    o->eval_data = json_string_value(eval_data);
    if (eval_data && (!o->eval_data || !get_content(&r->eval_data, json_object_get(r->json, "eval_data_tokens"),
                                                    json_object_get(r->json, "eval_data_hash"))))
        return "eval_data";
    return NULL;
}

static bool is_device(const char *text)
{
    struct device_name name;

    return !text || device_name_parse(&name, "", text, NULL) == 0;
}

/* Reads the options of the table. Returns the first invalid key, or NULL; key has room for it. */
static const char *read_options(char key[CLIENT_OPTION_KEY], struct client_record *r)
{
    const struct eps_option *row;

    for (unsigned i = 1; (row = client_option_stored(i)); i++) {
        if (!client_option_from_json(&r->options, row, json_object_get(r->json, client_option_key(key, row))))
            return key;
    }
    r->options.eval_chosen = json_is_true(json_object_get(r->json, CLIENT_RECORD_EVAL_CHOSEN));
    return is_device(r->options.device) ? NULL : "device";
}

int client_record_read(struct client_record *out, json_t *json, struct error *err)
{
    *out = (struct client_record){.options = eps_train_defaults(), .json = json_incref(json)};
    const char *wrong = read_paths(out);
    char key[CLIENT_OPTION_KEY];

    if (!wrong)
        wrong = read_options(key, out);
    if (!wrong && out->options.steps == 0)
        wrong = "steps";
    if (!wrong && !client_change_check(json_object_get(json, "changes"), out->options.batch))
        wrong = "changes";
    if (!wrong)
        return 0;
    client_record_free(out);
    return error_set(err, -EINVAL, "its option %s is missing or invalid, so it was not written by eps train", wrong);
}

void client_record_free(struct client_record *record)
{
    free(record->data_paths);
    json_decref(record->json);
    *record = (struct client_record){0};
}

static int record_refuse(const char *flag, const char *given, const char *stored, bool changeable, struct error *err)
{
    error_set(err, -EDOM, "%s%s%.100s differs from the run's %.100s: leave it out, ", flag, *given ? " " : "", given,
              stored);
    if (changeable)
        error_append(err, "add --change %s to go on with it, ", flag + 2);
    error_append(err, "or start a new run from its weights with --model instead of --resume");
    return -EDOM;
}

static int refuse_attached(const char *flag, const char *given, const char *stored, struct error *err)
{
    return error_set(err, -EDOM,
                     "%s%s%.100s differs from the job's %.100s: leave it out, as a job that is taken over keeps its "
                     "options",
                     flag, *given ? " " : "", given, stored);
}

/* --approximate any leaves to the planner what it chose at the run's beginning, and --attention cudnn which of cuDNN's
 * ways the device had. */
static bool leaves_open(const struct eps_train_options *given, const struct eps_train_options *stored,
                        const struct eps_option *row)
{
    if (row->offset == offsetof(struct eps_train_options, attention))
        return given->attention == EPS_ATTENTION_CUDNN && stored->attention >= EPS_ATTENTION_CUDNN;
    return row->offset == offsetof(struct eps_train_options, approximate) && eps_approximate_is_any(given->approximate);
}

/* *out has the given value. */
static int merge_option(struct eps_train_options *out, const struct eps_train_options *given,
                        const struct eps_train_options *stored, const struct eps_option *row, struct error *err)
{
    const bool set = client_option_is_set(given, row) && !leaves_open(given, stored, row);
    const bool changes = row->resume == EPS_RESUME_CHANGES;
    char mine[CLIENT_OPTION_TEXT], its[CLIENT_OPTION_TEXT];

    if (set && !given->attach &&
        (row->resume == EPS_RESUME_TAKES || (changes && client_change_names(given->change, row->name + strlen("--")))))
        return 0;
    if (set && !client_option_same(given, stored, row)) {
        client_option_print(mine, given, row);
        client_option_print(its, stored, row);
        return given->attach ? refuse_attached(row->name, mine, its, err)
                             : record_refuse(row->name, mine, its, changes, err);
    }
    client_option_copy(out, stored, row);
    return 0;
}

static int merge_model(const char *given, const char *stored, struct error *err)
{
    char *real = given ? realpath(given, NULL) : NULL;
    const bool same = !given || strcmp(given, stored) == 0 || (real && strcmp(real, stored) == 0);

    free(real);
    return same ? 0 : record_refuse("--model", given, stored, false, err);
}

/* Refuses a name in `change`, with the names that it may have: "batch, lr and clip-norm". */
static int refuse_name(const char *name, struct error *err)
{
    const struct eps_option *last = NULL;
    size_t n;
    const struct eps_option *rows = eps_options(&n);

    error_set(err, -EDOM, "--change %s: --change can name", name);
    for (size_t i = 0, n_named = 0; i < n; i++) {
        if (rows[i].resume != EPS_RESUME_CHANGES)
            continue;
        if (last)
            error_append(err, "%s %s", n_named++ ? "," : "", last->name + strlen("--"));
        last = &rows[i];
    }
    if (last)
        error_append(err, " and %s", last->name + strlen("--"));
    return -EDOM;
}

/* Every option in `change` must exist, be changeable, and be given. */
static int check_named(const struct eps_train_options *given, struct error *err)
{
    const char *rest = given->change;
    char name[CLIENT_OPTION_KEY];
    size_t n;
    const struct eps_option *rows = eps_options(&n);
    bool known;

    while (client_change_next(name, sizeof name, &rest)) {
        known = false;
        for (size_t i = 0; i < n; i++) {
            if (rows[i].resume != EPS_RESUME_CHANGES || strcmp(rows[i].name + strlen("--"), name) != 0)
                continue;
            if (!client_option_is_set(given, &rows[i]))
                return error_set(err, -EDOM, "--change %s without %s: say what it changes to", name, rows[i].name);
            known = true;
        }
        if (!known)
            return refuse_name(name, err);
    }
    return 0;
}

/* Clears options that follow from changed ones, to be chosen as at a run's beginning. */
static void follow_changes(struct eps_train_options *out, const struct eps_train_options *given,
                           const struct eps_train_options *stored)
{
    if ((uint64_t)out->microbatch * out->parts > out->batch && given->microbatch == 0)
        out->microbatch = 0;
    if (isnan(given->min_lr) && out->lr < out->min_lr)
        out->min_lr = NAN;
    if (out->schedule != EPS_SCHEDULE_STEP && stored->schedule == EPS_SCHEDULE_STEP) {
        out->lr_steps = given->lr_steps;
        out->lr_factor = given->lr_factor;
    }
    if (!isnan(out->clip_norm) && isnan(stored->clip_norm) && given->commit == EPS_COMMIT_DEFAULT)
        out->commit = EPS_COMMIT_DEFAULT;
}

int client_record_changes(json_t **out, const struct client_record *record, const struct eps_train_options *options,
                          uint64_t step)
{
    const json_t *before = json_object_get(record->json, "changes");
    const struct eps_option *row;
    int rc;

    *out = before ? json_copy_whole(before) : json_array();
    rc = *out ? 0 : -ENOMEM;
    for (unsigned i = 1; !rc && (row = client_option_stored(i)); i++) {
        if (row->resume == EPS_RESUME_TAKES || client_option_same(options, &record->options, row))
            continue;
        json_t *change =
            json_pack("{s:I, s:s, s:o, s:o}", "step", (json_int_t)step, "option", row->name + strlen("--"), "from",
                      client_option_to_json(&record->options, row), "to", client_option_to_json(options, row));
        rc = json_array_append_new(*out, change) ? -ENOMEM : 0;
    }
    return rc;
}

int client_record_merge(struct eps_train_options *out, const struct eps_train_options *given,
                        const struct client_record *record, struct error *err)
{
    const struct eps_train_options *stored = &record->options;
    const struct eps_option *row;
    int rc = check_named(given, err);

    if (!rc)
        rc = merge_model(given->model, stored->model, err);
    *out = *given;
    for (unsigned i = 1; !rc && (row = client_option_stored(i)); i++)
        rc = merge_option(out, given, stored, row, err);
    if (rc)
        return rc;
    follow_changes(out, given, stored);
    out->eval_chosen = stored->eval_chosen && given->eval_every == UINT64_MAX;
    if (!isnan(given->epochs) && given->steps == 0)
        out->steps = 0;   /* epochs determine the steps */
    if (given->connect) { /* the daemon's workers are fixed; a given value is refused elsewhere */
        out->workers = given->workers;
        out->device = given->device;
        out->device_mem = given->device_mem;
        out->host_mem = given->host_mem;
    }
    out->model = stored->model;
    if (given->n_data == 0) {
        out->data = stored->data;
        out->n_data = stored->n_data;
    }
    if (given->eval_data && !stored->eval_data)
        return record_refuse("--eval-data", given->eval_data, "held-out end of the data", false, err);
    if (!given->eval_data)
        out->eval_data = stored->eval_data;
    return 0;
}
