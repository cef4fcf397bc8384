#include "client/record/record.h"

#include "client/data/data.h"
#include "client/record/change.h"
#include "proto/operation/device_name.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum kind {
    COUNT,  /* uint32_t */
    LONG,   /* uint64_t */
    REAL,   /* double; NaN: unset */
    CLIP,   /* double; NaN: no clip, null in JSON */
    MASK,   /* double; NaN: no masks, and no key in JSON */
    PAIR,   /* double[2] */
    CHOICE, /* an enum; 0: unset; names of its values */
    FLAG,   /* bool; false: unset */
};

static const char *const schedules[] = {"", "cosine", "linear", "constant", NULL};
static const char *const optimizers[] = {"", "adama", "adamw", NULL};
static const char *const numbers[] = {"", "fp32", "bf16", NULL};
static const char *const commits[] = {"", "eager", "fenced", NULL};
static const char *const separators[] = {"", "none", "eos", NULL};
static const char *const orders[] = {"", "shuffled", "sequential", NULL};

#define AT(member) offsetof(struct eps_train_options, member)

static const struct field {
    const char *key;
    enum kind kind;
    size_t at;
    enum { NEVER, BY_NAME, FREELY } differs; /* on resume; BY_NAME: only if `change` names it */
    uint64_t left;                           /* a count's value for unset */
    const char *const *names;
    bool later; /* older checkpoints lack this key, which then means the first name, no clip, or unset */
} fields[] = {
    {"steps", LONG, AT(steps), FREELY, 0, NULL, false},
    {"batch", COUNT, AT(batch), BY_NAME, 0, NULL, false},
    {"seq", COUNT, AT(seq), NEVER, 0, NULL, false},
    {"microbatch", COUNT, AT(microbatch), FREELY, 0, NULL, false},
    {"parts", COUNT, AT(parts), NEVER, 0, NULL, false},
    {"lr", REAL, AT(lr), BY_NAME, 0, NULL, false},
    {"min_lr", REAL, AT(min_lr), BY_NAME, 0, NULL, false},
    {"schedule", CHOICE, AT(schedule), BY_NAME, 0, schedules, false},
    {"warmup", LONG, AT(warmup), BY_NAME, UINT64_MAX, NULL, false},
    {"weight_decay", REAL, AT(weight_decay), BY_NAME, 0, NULL, false},
    {"betas", PAIR, AT(beta1), NEVER, 0, NULL, false},
    {"epsilon", REAL, AT(epsilon), NEVER, 0, NULL, false},
    {"optimizer", CHOICE, AT(optimizer), NEVER, 0, optimizers, false},
    {"precision", CHOICE, AT(precision), NEVER, 0, numbers, true},
    {"moments", CHOICE, AT(moments), NEVER, 0, numbers, true},
    {"grad_dtype", CHOICE, AT(grad_dtype), NEVER, 0, numbers, true},
    {"commit", CHOICE, AT(commit), NEVER, 0, commits, true},
    {"clip_norm", CLIP, AT(clip_norm), BY_NAME, 0, NULL, true},
    {"clip_update", CLIP, AT(clip_update), BY_NAME, 0, NULL, true},
    {"mask_fraction", MASK, AT(mask_fraction), NEVER, 0, NULL, true},
    {"order", CHOICE, AT(order), NEVER, 0, orders, false},
    {"separator", CHOICE, AT(separator), NEVER, 0, separators, true},
    {"seed", LONG, AT(seed), NEVER, UINT64_MAX, NULL, false},
    {"eval_every", LONG, AT(eval_every), FREELY, 0, NULL, false},
    {"eval_tokens", LONG, AT(eval_tokens), FREELY, UINT64_MAX, NULL, true},
    {"patience", COUNT, AT(patience), FREELY, 0, NULL, true},
    {"save_every", LONG, AT(save_every), FREELY, UINT64_MAX, NULL, false},
    {"save_minutes", REAL, AT(save_minutes), FREELY, 0, NULL, true},
    {"keep", COUNT, AT(keep), FREELY, UINT32_MAX, NULL, false},
    {"deterministic", FLAG, AT(deterministic), NEVER, 0, NULL, false},
    {"device_mem", LONG, AT(device_mem), FREELY, 0, NULL, false},
    {"host_mem", LONG, AT(host_mem), FREELY, 0, NULL, true},
    {"workers", COUNT, AT(workers), FREELY, 0, NULL, false},
};
enum { N_FIELDS = sizeof fields / sizeof *fields };

static_assert(AT(beta2) == AT(beta1) + sizeof(double), "a pair");
static_assert(sizeof(enum eps_schedule) == sizeof(uint32_t), "a choice is stored as a count");

static const void *value_at(const struct field *f, const struct eps_train_options *o)
{
    return (const char *)o + f->at;
}

/* Value of a count, a choice or a flag. */
static uint64_t whole(const struct field *f, const struct eps_train_options *o)
{
    const void *at = value_at(f, o);

    return f->kind == LONG ? *(const uint64_t *)at : f->kind == FLAG ? *(const bool *)at : *(const uint32_t *)at;
}

static bool is_real(const struct field *f)
{
    return f->kind == REAL || f->kind == CLIP || f->kind == MASK || f->kind == PAIR;
}

static bool is_left(const struct field *f, const struct eps_train_options *o)
{
    if (is_real(f))
        return isnan(*(const double *)value_at(f, o));
    return whole(f, o) == f->left;
}

static size_t value_bytes(const struct field *f)
{
    static const size_t bytes[] = {
        [COUNT] = sizeof(uint32_t), [LONG] = sizeof(uint64_t),   [REAL] = sizeof(double),     [CLIP] = sizeof(double),
        [MASK] = sizeof(double),    [PAIR] = 2 * sizeof(double), [CHOICE] = sizeof(uint32_t), [FLAG] = sizeof(bool)};
    return bytes[f->kind];
}

static json_t *value_json(const struct field *f, const struct eps_train_options *o)
{
    const double *real = value_at(f, o);

    switch (f->kind) {
    case REAL:
    case MASK:
        return json_real(*real);
    case CLIP:
        return isnan(*real) ? json_null() : json_real(*real);
    case PAIR:
        return json_pack("[f, f]", real[0], real[1]);
    case CHOICE:
        return json_string(f->names[whole(f, o)]);
    case FLAG:
        return json_boolean(whole(f, o) != 0);
    case COUNT:
    case LONG:
        break;
    }
    return json_integer((json_int_t)whole(f, o));
}

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
    int rc = json_object_set_new(json, "model", path_json(options->model)) || json_object_set(json, "data", paths);

    for (size_t i = 0; i < options->n_data; i++)
        rc = rc || json_array_append_new(paths, path_json(options->data[i]));
    rc = rc || add_content(json, "data_tokens", "data_hash", data);
    if (options->eval_data)
        rc = rc || json_object_set_new(json, "eval_data", path_json(options->eval_data)) ||
             add_content(json, "eval_data_tokens", "eval_data_hash", eval_data);
    if (options->device)
        rc = rc || json_object_set_new(json, "device", json_string(options->device));
    if (options->columns)
        rc = rc || json_object_set_new(json, "columns", json_string(options->columns));
    if (options->freeze)
        rc = rc || json_object_set_new(json, "freeze", json_string(options->freeze));
    for (size_t i = 0; i < N_FIELDS; i++)
        if (fields[i].kind != MASK || !is_left(&fields[i], options))
            rc = rc || json_object_set_new(json, fields[i].key, value_json(&fields[i], options));
    json_decref(paths);
    if (!rc)
        return json;
    json_decref(json);
    return NULL;
}

static bool get_whole(void *out, size_t bytes, const json_t *value, uint64_t most)
{
    const json_int_t n = json_integer_value(value);
    const uint32_t narrow = (uint32_t)n;
    const uint64_t wide = (uint64_t)n;

    if (!json_is_integer(value) || n < 0 || wide > most)
        return false;
    memcpy(out, bytes == sizeof narrow ? (const void *)&narrow : &wide, bytes);
    return true;
}

static bool get_choice(uint32_t *out, const json_t *value, const char *const *names)
{
    const char *name = json_string_value(value);

    for (*out = 1; name && names[*out]; ++*out) {
        if (strcmp(names[*out], name) == 0)
            return true;
    }
    return false;
}

static bool get_value(struct eps_train_options *o, const struct field *f, const json_t *value)
{
    void *out = (char *)o + f->at;
    double *real = out;

    switch (f->kind) {
    case COUNT:
        return get_whole(out, sizeof(uint32_t), value, UINT32_MAX);
    case LONG:
        return get_whole(out, sizeof(uint64_t), value, INT64_MAX);
    case REAL:
    case MASK:
        *real = json_number_value(value);
        return json_is_number(value);
    case CLIP:
        *real = json_is_null(value) ? NAN : json_number_value(value);
        return json_is_null(value) || json_is_number(value);
    case PAIR:
        real[0] = json_number_value(json_array_get(value, 0));
        real[1] = json_number_value(json_array_get(value, 1));
        return json_array_size(value) == 2 && json_is_number(json_array_get(value, 0)) &&
               json_is_number(json_array_get(value, 1));
    case CHOICE:
        return get_choice(out, value, f->names);
    case FLAG:
        break;
    }
    *(bool *)out = json_is_true(value);
    return json_is_boolean(value);
}

static bool get_field(struct eps_train_options *o, const struct field *f, const json_t *options)
{
    static const uint32_t first = 1;
    const json_t *value = json_object_get(options, f->key);

    if (value || !f->later)
        return get_value(o, f, value);
    if (f->kind == CHOICE)
        memcpy((char *)o + f->at, &first, sizeof first);
    return true;
}

static bool get_content(struct client_content *out, const json_t *tokens, const json_t *hash)
{
    const char *digits = json_string_value(hash);
    char *end;

    if (!get_whole(&out->tokens, sizeof out->tokens, tokens, INT64_MAX) || !digits || strlen(digits) != 16)
        return false;
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

/* The key is absent if the device was left unset. */
static bool get_device(struct client_record *r)
{
    const json_t *device = json_object_get(r->json, "device");
    struct device_name name;

    r->options.device = json_string_value(device);
    return !device || (r->options.device && device_name_parse(&name, "", r->options.device, NULL) == 0);
}

/* A text whose key may be absent. */
static bool get_text(const char **out, const struct client_record *r, const char *key)
{
    const json_t *text = json_object_get(r->json, key);

    *out = json_string_value(text);
    return !text || *out;
}

int client_record_read(struct client_record *out, json_t *json, struct error *err)
{
    *out = (struct client_record){.options = eps_train_defaults(), .json = json_incref(json)};
    const char *wrong = read_paths(out);

    if (!wrong && !get_device(out))
        wrong = "device";
    if (!wrong && !get_text(&out->options.freeze, out, "freeze"))
        wrong = "freeze";
    if (!wrong && !get_text(&out->options.columns, out, "columns"))
        wrong = "columns";
    for (size_t i = 0; !wrong && i < N_FIELDS; i++) {
        if (!get_field(&out->options, &fields[i], json))
            wrong = fields[i].key;
    }
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

/* Shortest form that reads back as the same double. */
static void print_real(char out[32], double value)
{
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(out, 32, "%.*g", digits, value);
        if (strtod(out, NULL) == value)
            return;
    }
}

static void print_value(char out[72], const struct field *f, const struct eps_train_options *o)
{
    const double *real = value_at(f, o);
    char first[32], second[32];

    if ((f->kind == CLIP || f->kind == MASK) && isnan(real[0])) {
        snprintf(out, 72, "none");
    } else if (is_real(f)) {
        print_real(first, real[0]);
        if (f->kind == PAIR)
            print_real(second, real[1]);
        snprintf(out, 72, f->kind == PAIR ? "%s,%s" : "%s", first, second);
    } else if (f->kind == CHOICE) {
        snprintf(out, 72, "%s", f->names[whole(f, o)]);
    } else {
        snprintf(out, 72, "%" PRIu64, whole(f, o));
    }
}

static void print_flag(char out[40], const char *key)
{
    snprintf(out, 40, "--%s", key);
    for (char *at = out; *at; at++)
        *at = *at == '_' ? '-' : *at;
}

static int refuse(const char *flag, const char *given, const char *stored, bool changeable, struct error *err)
{
    error_set(err, -EDOM, "%s%s%.100s differs from the run's %.100s: leave it out, ", flag, *given ? " " : "", given,
              stored);
    if (changeable)
        error_append(err, "add --change %s to go on with it, ", flag + 2);
    error_append(err, "or start a new run from its weights with --model instead of --resume");
    return -EDOM;
}

/* Compares with a tolerance of the last bits: a value computed from others, such as a tenth of 3e-4, is not quite the
 * typed 3e-5. The stored value counts. */
static bool is_same(const struct field *f, const struct eps_train_options *a, const struct eps_train_options *b)
{
    if (!is_real(f))
        return memcmp(value_at(f, a), value_at(f, b), value_bytes(f)) == 0;
    const double *x = value_at(f, a), *y = value_at(f, b);
    for (size_t i = 0; i < value_bytes(f) / sizeof *x; i++) {
        if (!(fabs(x[i] - y[i]) <= 1e-14 * fabs(y[i])))
            return false;
    }
    return true;
}

static int merge_field(struct eps_train_options *out, const struct eps_train_options *given,
                       const struct eps_train_options *stored, const struct field *f, struct error *err)
{
    const bool left = is_left(f, given);
    char mine[72], its[72], flag[40];

    print_flag(flag, f->key);
    if (left || given->attach || (f->differs != FREELY && !client_change_names(given->change, flag + 2))) {
        if (!left && !is_same(f, given, stored)) {
            print_value(mine, f, given);
            print_value(its, f, stored);
            if (given->attach)
                return error_set(err, -EDOM,
                                 "%s %s differs from the job's %s: leave it out, as a job that is taken over keeps its "
                                 "options",
                                 flag, mine, its);
            return f->kind == FLAG ? refuse(flag, "", "default without it", false, err)
                                   : refuse(flag, mine, its, f->differs == BY_NAME, err);
        }
        memcpy((char *)out + f->at, value_at(f, stored), value_bytes(f));
    }
    return 0;
}

static int merge_model(const char *given, const char *stored, struct error *err)
{
    char *real = given ? realpath(given, NULL) : NULL;
    const bool same = !given || strcmp(given, stored) == 0 || (real && strcmp(real, stored) == 0);

    free(real);
    return same ? 0 : refuse("--model", given, stored, false, err);
}

static int merge_freeze(const char *given, const char *stored, struct error *err)
{
    if (!given || (stored && strcmp(given, stored) == 0))
        return 0;
    return refuse("--freeze", given, stored ? stored : "default without it", false, err);
}

/* Every option in `change` must exist, be changeable, and be given. */
static int check_named(const struct eps_train_options *given, struct error *err)
{
    char flag[40], name[40];
    const char *rest = given->change;
    bool known;

    while (client_change_next(name, sizeof name, &rest)) {
        known = false;
        for (size_t i = 0; i < N_FIELDS; i++) {
            print_flag(flag, fields[i].key);
            if (fields[i].differs != BY_NAME || strcmp(flag + 2, name) != 0)
                continue;
            if (is_left(&fields[i], given))
                return error_set(err, -EDOM, "--change %s without %s: say what it changes to", name, flag);
            known = true;
        }
        if (!known)
            return error_set(err, -EDOM,
                             "--change %s: --change can name batch, lr, min-lr, schedule, warmup, weight-decay, "
                             "clip-norm and clip-update",
                             name);
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
    if (!isnan(out->clip_norm) && isnan(stored->clip_norm) && given->commit == EPS_COMMIT_DEFAULT)
        out->commit = EPS_COMMIT_DEFAULT;
}

int client_record_changes(json_t **out, const struct client_record *record, const struct eps_train_options *options,
                          uint64_t step)
{
    const json_t *before = json_object_get(record->json, "changes");
    char flag[40];
    int rc;

    *out = before ? json_copy((json_t *)(uintptr_t)before) : json_array();
    rc = *out ? 0 : -ENOMEM;
    for (size_t i = 0; !rc && i < N_FIELDS; i++) {
        const struct field *f = &fields[i];
        if (f->differs == FREELY || is_same(f, options, &record->options) ||
            (is_left(f, options) && is_left(f, &record->options))) /* no clip before and after */
            continue;
        print_flag(flag, f->key);
        json_t *change = json_pack("{s:I, s:s, s:o, s:o}", "step", (json_int_t)step, "option", flag + 2, "from",
                                   value_json(f, &record->options), "to", value_json(f, options));
        rc = json_array_append_new(*out, change) ? -ENOMEM : 0;
    }
    return rc;
}

int client_record_merge(struct eps_train_options *out, const struct eps_train_options *given,
                        const struct client_record *record, struct error *err)
{
    const struct eps_train_options *stored = &record->options;
    int rc = check_named(given, err);

    if (!rc)
        rc = merge_model(given->model, stored->model, err);
    if (!rc)
        rc = merge_freeze(given->freeze, stored->freeze, err);
    *out = *given;
    for (size_t i = 0; !rc && i < N_FIELDS; i++)
        rc = merge_field(out, given, stored, &fields[i], err);
    if (rc)
        return rc;
    follow_changes(out, given, stored);
    if (!isnan(given->epochs) && given->steps == 0)
        out->steps = 0; /* epochs determine the steps */
    if (!given->device)
        out->device = stored->device;
    if (given->connect) { /* the daemon's workers are fixed; a given value is refused elsewhere */
        out->workers = given->workers;
        out->device = given->device;
        out->device_mem = given->device_mem;
        out->host_mem = given->host_mem;
    }
    out->model = stored->model;
    out->freeze = stored->freeze;
    if (!given->columns)
        out->columns = stored->columns;
    if (given->n_data == 0) {
        out->data = stored->data;
        out->n_data = stored->n_data;
    }
    if (given->eval_data && !stored->eval_data)
        return refuse("--eval-data", given->eval_data, "held-out end of the data", false, err);
    if (!given->eval_data)
        out->eval_data = stored->eval_data;
    return 0;
}
