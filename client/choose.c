#include "client/choose.h"

#include "client/preset.h"
#include "client/tokenizer.h"
#include "proto/device_name.h"
#include "proto/process.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int prefixed(int rc, const char *option, struct error *err)
{
    if (rc && rc != -EINTR && rc != -EDOM)
        error_prefix(err, option);
    return rc;
}

static int open_data(struct client_run *run, const struct eps_train_options *in, struct error *err)
{
    int rc = prefixed(client_data_open(&run->data, in->data, in->n_data, err), "--data", err);

    if (!rc && in->eval_data)
        rc = prefixed(client_data_open(&run->eval_data, &in->eval_data, 1, err), "--eval-data", err);
    return rc;
}

int client_choose_check(struct client_data *data, const struct client_model *model, enum eps_separator separator,
                        const struct client_watch *watch, struct error *err)
{
    struct client_data_rules rules = {.vocabulary = model->config.vocabulary, .separator = separator, .watch = watch};
    int rc = 0;

    if (data->has_text) /* a tokenizer that nobody needs is not looked at: it may be one that we cannot read */
        rc = client_tokenizer_open(&rules.tokenizer, model->side, rules.vocabulary, err);
    if (!rc)
        rc = client_data_check(data, &rules, err);
    client_tokenizer_close(rules.tokenizer);
    return rc;
}

/* Files come before presets, so that a name means what it meant before there was a preset of that name. */
static int open_named(struct client_run *run, const struct eps_train_options *in, const struct client_watch *watch,
                      struct error *err)
{
    const bool file = access(in->model, F_OK) == 0 || strpbrk(in->model, "/.");
    const struct eps_preset *preset = file ? NULL : client_preset_find(in->model);
    int rc = 0;

    run->model_name = in->model, run->preset = preset;
    if (!file && !preset)
        return client_preset_unknown(in->model, err);
    if (!preset)
        rc = client_model_open(&run->model, in->model, err);
    if (!rc)
        rc = open_data(run, in, err);
    if (!rc && preset) {
        const bool bytes = run->data.has_text && preset->vocabulary > 256;
        if (bytes)
            snprintf(run->model_note, sizeof run->model_note, "vocabulary 256, as the data is text");
        rc = client_preset_open(&run->model, preset, bytes ? 256 : preset->vocabulary, err);
    }
    if (!rc)
        rc = prefixed(client_choose_check(&run->data, &run->model, in->separator, watch, err), "--data", err);
    return rc ? rc
              : prefixed(client_choose_check(&run->eval_data, &run->model, in->separator, watch, err), "--eval-data",
                         err);
}

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

/* Tokens are checked against the largest vocabulary of a preset; which one they need is known then. */
static int open_chosen(struct client_run *run, const struct eps_train_options *in, const struct client_watch *watch,
                       struct error *err)
{
    const bool elsewhere = in->connect || (in->device && device_name_is(in->device, "cuda") && !in->device_mem);
    struct client_preset_facts facts = {.free_bytes = process_available_bytes(),
                                        .device_mem = elsewhere ? UINT64_MAX : in->device_mem,
                                        .n_workers = in->workers ? in->workers : 1};
    struct client_data_rules rules = {.separator = in->separator, .watch = watch};
    char tokens[16];
    int rc = open_data(run, in, err);

    rules.vocabulary = run->data.has_text || run->eval_data.has_text ? 256 : client_preset_find("gpt2")->vocabulary;
    if (!rc)
        rc = prefixed(client_data_check(&run->data, &rules, err), "--data", err);
    if (!rc)
        rc = prefixed(client_data_check(&run->eval_data, &rules, err), "--eval-data", err);
    if (rc)
        return rc;
    const uint32_t largest = run->data.largest > run->eval_data.largest ? run->data.largest : run->eval_data.largest;
    facts.n_tokens = run->data.n, facts.vocabulary = largest + 1;
    const struct eps_preset *preset = client_preset_choose(&facts);
    print_count(tokens, sizeof tokens, run->data.n);
    run->preset = preset, run->model_name = preset->name;
    snprintf(run->model_note, sizeof run->model_note, "chosen for %s tokens%s", tokens,
             client_preset_is_smaller(preset, &facts) ? " and the memory that is free" : "");
    run->data.vocabulary = run->eval_data.vocabulary = preset->vocabulary;
    return client_preset_open(&run->model, preset, preset->vocabulary, err);
}

int client_choose(struct client_run *run, const struct eps_train_options *in, const struct client_watch *watch,
                  struct error *err)
{
    return in->model ? open_named(run, in, watch, err) : open_chosen(run, in, watch, err);
}
