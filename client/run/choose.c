/* What decides what gives the order. Weights are matched with their config before data are read, which takes long; a
 * classifier's after it, as labels decide the shape of its head. Without a model the data come first: tokens are read
 * once, a text again by the preset that it gets. A preset's tokenizer is learned before the source is opened, which
 * takes it from the model's side files. */
#include "client/run/run.h"

#include "client/run/follow.h"
#include "client/model/adapter.h"
#include "client/model/classifier.h"
#include "client/model/preset.h"
#include "client/model/preset_images.h"
#include "client/model/source.h"
#include "client/options/options.h"
#include "client/corpus/documents.h"
#include "client/corpus/learn.h"
#include "client/text/tokenizer.h"
#include "proto/base/process.h"
#include "proto/model/family.h"
#include "proto/operation/device_name.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Opens the source and the data's files. */
static int open_data(struct client_run *run, const struct eps_train_options *in, const struct client_source_ops *kind,
                     struct error *err)
{
    int rc = client_source_prefixed(kind->open_files(&run->data, in->data, in->n_data, err), "--data", err);

    if (!rc && in->eval_data)
        rc = client_source_prefixed(kind->open_files(&run->eval_data, &in->eval_data, 1, err), "--eval-data", err);
    return rc;
}

static int choose_read_rows(struct client_run *run, const struct eps_train_options *in,
                            const struct client_watch *watch, struct error *err)
{
    const struct client_source_rules rules = {.separator = in->separator,
                                              .columns = in->columns,
                                              .chat_template = in->chat_template,
                                              .train_on = in->train_on,
                                              .split_special_tokens = in->split_special_tokens,
                                              .long_rows = in->long_rows,
                                              .seq = in->seq,
                                              .source_seq = in->source_seq,
                                              .mask_fraction = in->mask_fraction,
                                              .seed = in->seed == UINT64_MAX ? 0 : in->seed,
                                              .order = in->order,
                                              .image = in->image,
                                              .augment = in->augment,
                                              .watch = watch};

    return client_source_read(run->source, &rules, err);
}

static int choose_open_source(struct client_run *run, const struct client_source_ops *kind, struct error *err)
{
    return client_model_source(&run->source, kind, &run->model, &run->data, &run->eval_data, err);
}

static void choose_note(struct client_run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void choose_note(struct client_run *run, const char *format, ...)
{
    const size_t n = strlen(run->model_note);
    va_list args;

    va_start(args, format);
    vsnprintf(run->model_note + n, sizeof run->model_note - n, format, args);
    va_end(args);
}

static int choose_check_tasks(struct client_run *run, const struct eps_train_options *in, unsigned tasks,
                              struct error *err)
{
    struct eps_train_options checked = *in;

    if (run->meant) {
        client_follow_forget(&checked, run->meant, tasks);
        client_follow_forget(&run->asked, run->meant, tasks);
    }
    return client_options_check_tasks(&checked, EPS_COMMAND_TRAIN, tasks, in->resume || in->attach, err);
}

/* The kind of rows that the open files have; the options must be for it. */
static int choose_find_kind(const struct client_source_ops **out, struct client_run *run,
                            const struct eps_train_options *in, const struct client_watch *watch, struct error *err)
{
    int rc = client_source_prefixed(client_source_find_kind(out, &run->model.config, in->mask_fraction, &run->data,
                                                            &run->eval_data, watch, err),
                                    "--data", err);

    if (!rc && in->pack)
        *out = client_source_pack(*out);
    return rc ? rc : choose_check_tasks(run, in, (*out)->facts.task, err);
}

/* If the preset learns a tokenizer, learns it from data's text. Token ids were made by a tokenizer that exists
 * elsewhere. */
static int learn_tokens(struct client_run *run, const struct eps_train_options *in, const struct eps_preset *preset,
                        const struct client_watch *watch, struct error *err)
{
    const struct client_data_rules rules = {.separator = in->separator, .watch = watch};

    if (!preset->learns || !run->data.has_text)
        return 0;
    choose_note(run, "%stokens learned from the text", *run->model_note ? ", " : "");
    run->model.side = json_object();
    if (!run->model.side)
        return error_memory(err);
    return client_source_prefixed(client_learn(run->model.side, &run->data, preset->vocabulary, preset->n_positions,
                                               &rules, err),
                                  "--data", err);
}

/* The data's files are open. */
static int open_preset(struct client_run *run, const struct eps_train_options *in, const struct eps_preset *preset,
                       const struct client_watch *watch, struct error *err)
{
    const bool bytes = run->data.has_text && client_preset_is_published(preset);
    const struct client_source_ops *kind;
    int rc = client_preset_open(&run->model, preset, bytes ? 256 : preset->vocabulary, err);

    run->preset = preset, run->model_name = preset->name;
    if (bytes)
        choose_note(run, "vocabulary 256, as the data is text");
    if (!rc)
        rc = choose_find_kind(&kind, run, in, watch, err);
    if (!rc && kind->compares)
        return error_set(
            err, -EINVAL,
            "--data: preferences are between answers of a model that has weights, and %s is a preset: name "
            "a directory with --model",
            preset->name);
    if (!rc)
        rc = learn_tokens(run, in, preset, watch, err);
    return rc ? rc : client_source_prefixed(choose_open_source(run, kind, err), preset->name, err);
}

/* A resumed model must have all of its tensors; what a base lacks, as the head of a classifier, is drawn. */
static int choose_match(struct client_run *run, const struct eps_train_options *in, struct error *err)
{
    if (run->model.n_weights == 0)
        return 0;
    const int rc = client_source_prefixed(in->resume ? client_model_match(&run->model, err)
                                                     : client_model_match_base(&run->model, run->drawn, err),
                                          in->model, err);
    if (rc == -EINVAL && !in->resume && run->model.config.n_labels == 0)
        client_classifier_suggest(err, &(struct client_model_name){.path = in->model, .base = in->base_model});
    return rc;
}

/* Opens data and source for an open model, reads all rows, and gives the model their labels. */
static int choose_open_rows(struct client_run *run, const struct eps_train_options *in,
                            const struct client_watch *watch, struct error *err)
{
    const struct client_source_ops *kind = client_source_kind(&run->model.config, in->mask_fraction);
    int rc = choose_check_tasks(run, in, client_source_tasks(kind), err);

    if (!rc)
        rc = open_data(run, in, kind, err);
    if (!rc)
        rc = choose_find_kind(&kind, run, in, watch, err);
    if (!rc)
        rc = client_source_prefixed(choose_open_source(run, kind, err), in->model, err);
    if (!rc)
        rc = choose_read_rows(run, in, watch, err);
    if (rc || !client_source_labels(run->source))
        return rc;
    rc = client_classifier_label(&run->model, &run->source->labels, err);
    if (rc == -E2BIG)
        error_prefix(err, "--data");
    return rc;
}

/* Limits are where rounding to one decimal reaches the next unit. */
static void print_count(char *out, size_t cap, uint64_t n)
{
    static const struct {
        double least, unit;
        const char *name;
    } units[] = {{999.95e6, 1e9, " B"}, {999.95e3, 1e6, " M"}, {1e3, 1e3, " k"}, {0, 1, ""}};
    size_t i = 0;

    while ((double)n < units[i].least)
        i++;
    snprintf(out, cap, "%.*f%s", *units[i].name ? 1 : 0, (double)n / units[i].unit, units[i].name);
}

/* Says how much of a model with adapters is trained. */
static int note_adapters(struct client_run *run, const struct eps_train_options *in, struct error *err)
{
    const struct model_adapter *adapter = &run->model.config.adapter;
    const uint32_t least = model_adapter_least_rank(adapter);
    char trained[24], all[24], ranks[32];
    struct model model;

    if (adapter->rank == 0)
        return 0;
    const int rc = client_options_model(&model, &run->model.config, in, err);
    print_count(trained, sizeof trained, model.n_trained);
    print_count(all, sizeof all, model.n_parameters);
    model_free(&model);
    if (least < adapter->rank)
        snprintf(ranks, sizeof ranks, "%u to %u", least, adapter->rank);
    else
        snprintf(ranks, sizeof ranks, "%u", adapter->rank);
    choose_note(run, "adapters of rank %s: %s of %s parameters are trained", ranks, trained, all);
    return rc;
}

/* A model of the user's. Weights that do not fit the config are refused before anything is read or started; but a
 * classifier's fit once its labels are known. */
static int choose_open_own(struct client_run *run, const struct eps_train_options *in, const struct client_watch *watch,
                           struct error *err)
{
    const struct client_model_name name = {.path = in->model, .base = in->base_model};
    struct client_watch_reading reading = {watch, err};
    int rc = client_classifier_open(&run->model, &name, in->task, err);

    if (!rc && !in->resume) /* what is resumed has been read */
        rc = client_model_check(&run->model, client_watch_on_bytes, &reading, err);
    if (!rc && in->lora && !in->resume)
        rc = client_adapter_add(&run->model, in->lora, err);
    if (rc)
        return rc;
    const bool is_classifier = run->model.config.n_labels > 0;
    choose_note(run, "%s", run->model.wrapper);
    if (!is_classifier)
        rc = choose_match(run, in, err);
    if (!rc)
        rc = choose_open_rows(run, in, watch, err);
    if (!rc && is_classifier)
        rc = choose_match(run, in, err);
    return rc ? rc : note_adapters(run, in, err);
}

/* A preset of images, which has the classes of the data. */
static int open_images(struct client_run *run, const struct eps_train_options *in, const struct client_watch *watch,
                       struct error *err)
{
    const int rc = client_preset_open_images(&run->model, in, err);

    return rc ? rc : choose_open_rows(run, in, watch, err);
}

/* Files take precedence over presets, so that adding a preset never changes the meaning of a name. */
static int open_named(struct client_run *run, const struct eps_train_options *in, const struct client_watch *watch,
                      struct error *err)
{
    const bool file = access(in->model, F_OK) == 0 || strpbrk(in->model, "/.");
    const struct eps_preset *preset = file ? NULL : client_preset_find(in->model);

    run->model_name = in->model;
    if (!file && client_preset_is_of_images(in->model))
        return open_images(run, in, watch, err);
    if (!file && !preset)
        return client_preset_unknown(in->model, err);
    if (!preset)
        return choose_open_own(run, in, watch, err);
    if (in->lora || in->base_model)
        return error_set(err, -EDOM, "%s needs a model that has weights, and --model %s is a preset: name a directory",
                         in->lora ? "--lora" : "--base-model", in->model);
    if (in->task)
        return client_classifier_refuse(in->task, in->model, "gpt2", err);
    int rc = open_data(run, in, &client_source_text, err);
    if (!rc)
        rc = open_preset(run, in, preset, watch, err);
    return rc ? rc : choose_read_rows(run, in, watch, err);
}

/* Data that have token ids are a stream, in which conversations and completions would not be rows. */
static int refuse_documents(struct client_run *run, const struct client_watch *watch, struct error *err)
{
    struct client_data *const parts[] = {&run->data, &run->eval_data};
    const struct client_source_ops *documents = NULL;
    int rc = 0;

    for (size_t i = 0; !rc && i < 2; i++) {
        rc = client_source_find_documents(&documents, parts[i], watch, err);
        if (!rc && documents)
            rc =
                error_set(err, -EINVAL,
                          "some files have conversations or completions, which are rows of their own, and others token "
                          "ids, which are a stream: train on one kind alone");
    }
    return client_source_prefixed(rc, "--data", err);
}

/* Measures the data: bytes of a text, or tokens. Tokens are checked against the largest preset's vocabulary, which
 * shows the vocabulary they need. */
static int choose_measure(struct client_preset_facts *facts, struct client_run *run, const struct eps_train_options *in,
                          const struct client_watch *watch, struct error *err)
{
    struct client_data_rules rules = {.separator = in->separator, .watch = watch};
    int rc;

    facts->text = client_data_is_text(&run->data) && (!in->eval_data || client_data_is_text(&run->eval_data));
    if (facts->text)
        return client_source_prefixed(client_learn_size(&facts->n_tokens, &run->data, &rules, err), "--data", err);
    rules.vocabulary = run->data.has_text || run->eval_data.has_text ? 256 : client_preset_find("gpt2")->vocabulary;
    rc = refuse_documents(run, watch, err);
    if (!rc)
        rc = client_source_prefixed(client_data_check(&run->data, &rules, err), "--data", err);
    if (!rc)
        rc = client_source_prefixed(client_data_check(&run->eval_data, &rules, err), "--eval-data", err);
    facts->n_tokens = run->data.n;
    facts->vocabulary = 1 + (run->data.largest > run->eval_data.largest ? run->data.largest : run->eval_data.largest);
    return rc;
}

/* Device memory bounds the choice only where it is known: not of a daemon's workers, nor of a GPU that --device-mem
 * does not limit. */
static int open_chosen(struct client_run *run, const struct eps_train_options *in, const struct client_watch *watch,
                       struct error *err)
{
    const bool elsewhere = in->connect || (in->device && device_name_is(in->device, "cuda") && !in->device_mem);
    struct client_preset_facts facts = {.free_bytes = process_available_bytes(),
                                        .device_mem = elsewhere ? UINT64_MAX : in->device_mem,
                                        .n_workers = in->workers ? in->workers : 1};
    char count[16];
    int rc = open_data(run, in, &client_source_text, err);

    if (!rc)
        rc = choose_measure(&facts, run, in, watch, err);
    if (rc)
        return rc;
    const struct eps_preset *preset = client_preset_choose(&facts);
    print_count(count, sizeof count, facts.n_tokens);
    choose_note(run, "chosen for %s %s%s", count, facts.text ? "bytes of text" : "tokens",
                client_preset_is_smaller(preset, &facts) ? " and the memory that is free" : "");
    rc = open_preset(run, in, preset, watch, err);
    if (!rc && facts.text)
        return choose_read_rows(run, in, watch, err);
    run->data.vocabulary = run->eval_data.vocabulary = preset->vocabulary;
    return rc;
}

int client_choose_rows(struct client_run *run, const struct eps_train_options *in, const struct client_watch *watch,
                       struct error *err)
{
    run->model_name = in->model;
    return choose_open_rows(run, in, watch, err);
}

int client_choose(struct client_run *run, const struct eps_train_options *in, const struct client_watch *watch,
                  struct error *err)
{
    return in->model ? open_named(run, in, watch, err) : open_chosen(run, in, watch, err);
}
