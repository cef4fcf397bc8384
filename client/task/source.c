/* What all tasks share. A minibatch is emptied as a whole before any row is read, so a task writes only what it has,
 * and the labels are counted afterwards in what it wrote: the divisor of the loss is what the device will see, whatever
 * the task believes; of preferences it is the pairs. Samples and fields are one room for whichever minibatch is being
 * filled, so no two are at a time. Targets take every encoder-decoder, so spans, which take some, stand before them in
 * the list. */
#include "client/task/source.h"

#include "proto/model/family.h"
#include "proto/wire/message.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

static const struct client_source_ops *const tasks[] = {CLIENT_TASKS(&client_source_)};
enum { TASKS = sizeof tasks / sizeof *tasks };

/* The list turned round: there a task has what is more general behind it. */
const struct eps_task_facts *eps_task_at(size_t i)
{
    return i < TASKS ? &tasks[TASKS - 1 - i]->facts : NULL;
}

static const struct client_source_ops *source_find_task(unsigned task)
{
    size_t i = 0;

    while (i < TASKS && tasks[i]->facts.task != task)
        i++;
    return i < TASKS ? tasks[i] : NULL;
}

const struct eps_task_facts *eps_task_facts(unsigned task)
{
    const struct client_source_ops *found = source_find_task(task);

    return found ? &found->facts : NULL;
}

unsigned client_source_fields(unsigned task)
{
    const struct client_source_ops *found = source_find_task(task);

    return found ? found->fields : 0;
}

const struct client_source_ops *client_source_kind(const struct model_config *config, double mask_fraction)
{
    size_t i = 0;

    while (!tasks[i]->takes || !tasks[i]->takes(config, mask_fraction))
        i++;
    return tasks[i];
}

/* The task whose rows a line of JSON makes, if there is one. */
static bool source_has_line(void *user, const json_t *line)
{
    const struct client_source_ops **out = user;

    *out = NULL;
    for (size_t i = 0; !*out && i < TASKS; i++)
        if (tasks[i]->has_line && tasks[i]->has_line(line))
            *out = tasks[i];
    return *out != NULL;
}

int client_source_find_documents(const struct client_source_ops **out, struct client_data *data,
                                 const struct client_watch *watch, struct error *err)
{
    bool found = false;

    return client_documents_ask(&found, data, source_has_line, out, watch, err);
}

int client_source_find_kind(const struct client_source_ops **out, const struct model_config *config,
                            double mask_fraction, struct client_data *data, struct client_data *eval_data,
                            const struct client_watch *watch, struct error *err)
{
    const struct client_source_ops *documents = NULL;
    int rc = 0;

    *out = client_source_kind(config, mask_fraction);
    if (*out != &client_source_text)
        return 0;
    rc = client_source_find_documents(&documents, data, watch, err);
    if (!rc && !documents && eval_data)
        rc = client_source_find_documents(&documents, eval_data, watch, err);
    if (documents)
        *out = documents;
    return rc;
}

unsigned client_source_tasks(const struct client_source_ops *kind)
{
    unsigned all = kind->facts.task;

    for (size_t i = 0; kind == &client_source_text && i < TASKS; i++)
        if (tasks[i]->has_line || tasks[i]->refused_late)
            all |= tasks[i]->facts.task;
    return all;
}

unsigned client_source_planned(const struct client_source_ops *kind, bool compares)
{
    unsigned all = compares ? 0 : kind->facts.task;

    for (size_t i = 0; kind == &client_source_text && i < TASKS; i++)
        if (tasks[i]->has_line && tasks[i]->compares == compares)
            all |= tasks[i]->facts.task;
    return all;
}

unsigned client_source_learned(const struct family *family)
{
    unsigned all = 0;

    for (size_t i = 0; i < TASKS; i++)
        all |= tasks[i]->learns(family) ? tasks[i]->facts.task : 0;
    return all;
}

bool client_source_predicts_next(const struct family *family)
{
    return !family->sees_images && !family->has_source && !family->masked;
}

unsigned client_source_expand(unsigned all)
{
    for (size_t i = 0; i < TASKS; i++)
        if (tasks[i]->has_line && all & EPS_OF_DOCUMENTS)
            all |= tasks[i]->facts.task;
    return all;
}

const char *client_source_refusal(unsigned all)
{
    size_t i = 0;

    while (i < TASKS && !(tasks[i]->facts.task & all))
        i++;
    return i < TASKS ? tasks[i]->refusal : NULL;
}

const struct client_source_ops *client_source_pack(const struct client_source_ops *kind)
{
    return kind->packing ? kind->packing : kind;
}

int client_source_check_packs(const struct model *model, struct error *err)
{
    const struct model_config *config = &model->config;

    if (config->family->masked && config->n_labels == 0)
        return error_set(err, -EDOM, "a %s model restores masked tokens, and --pack is for conversations: leave it out",
                         config->family->model_type);
    return plan_check_packs(model, err) ? -EDOM : 0;
}

/* Labels change hands, also after a failure: the setup has none afterwards. */
int client_source_open(struct client_source **out, const struct client_source_ops *ops,
                       const struct client_source_setup *setup, struct error *err)
{
    struct client_source *source = calloc(1, ops->bytes);
    int rc = source ? 0 : error_memory(err);

    *out = NULL;
    if (source) {
        source->ops = ops;
        if (ops->order->init)
            ops->order->init(source);
        source->setup = *setup;
        source->setup.labels = NULL;
    }
    if (source && setup->labels)
        source->labels = *setup->labels, *setup->labels = (struct client_labels){0};
    else if (setup->labels)
        client_labels_free(setup->labels);
    if (!rc && ops->open)
        rc = ops->open(source, err);
    if (rc)
        client_source_close(source);
    else
        *out = source;
    return rc;
}

struct client_data *client_source_data(const struct client_source *source, enum client_part part)
{
    return part == CLIENT_TRAIN ? source->setup.data : source->setup.eval_data;
}

const struct client_labels *client_source_labels(const struct client_source *source)
{
    return source->ops->labels ? &source->labels : NULL;
}

int client_source_read_part(struct client_source *source, enum client_part part,
                            const struct client_source_rules *rules, struct error *err)
{
    const struct client_data *data = client_source_data(source, part);

    return data && data->n_files > 0 ? source->ops->read(source, part, rules, err) : 0;
}

int client_source_settle(struct client_source *source, const struct client_source_rules *rules, struct error *err)
{
    return source->ops->settle ? source->ops->settle(source, rules, err) : 0;
}

int client_source_prefixed(int rc, const char *option, struct error *err)
{
    if (rc && rc != -EINTR && rc != -EDOM)
        error_prefix(err, option);
    return rc;
}

int client_source_read(struct client_source *source, const struct client_source_rules *rules, struct error *err)
{
    static const char *const options[] = {[CLIENT_TRAIN] = "--data", [CLIENT_HELD_OUT] = "--eval-data"};
    int rc = 0;

    for (enum client_part part = CLIENT_TRAIN; !rc && part <= CLIENT_HELD_OUT; part++)
        rc = client_source_prefixed(client_source_read_part(source, part, rules, err), options[part], err);
    return rc ? rc : client_source_settle(source, rules, err);
}

int client_source_divide(struct client_source *source, const struct client_division *division, struct error *err)
{
    source->seq = division->seq;
    int rc = source->ops->order->divide(source, division, err);
    if (!rc && source->ops->divide)
        rc = source->ops->divide(source, division, err);
    const uint64_t n = rc ? 0 : client_source_n_rows(source, CLIENT_HELD_OUT) * source->n_logits;
    if (n == 0)
        return rc;
    source->logits = calloc(n, sizeof *source->logits);
    return source->logits ? 0 : error_memory(err);
}

struct client_source_facts client_source_measure(const struct client_source *source)
{
    struct client_source_facts facts = {.masked = false};

    if (source->ops->measure)
        source->ops->measure(&facts, source);
    return facts;
}

void client_source_describe(char *out, size_t cap, const struct client_source *source)
{
    *out = 0;
    if (source->ops->describe)
        source->ops->describe(out, cap, source);
}

uint64_t client_source_n_rows(const struct client_source *source, enum client_part part)
{
    return source->ops->order->n_rows(source, part);
}

static bool source_has(const struct client_source *source, unsigned field)
{
    return source->ops->fields >> field & 1;
}

uint64_t client_source_n_entries(const struct client_source *source)
{
    return source_has(source, PLAN_FIELD_ENTRIES) ? source->ops->order->n_entries(source) : 0;
}

uint64_t client_source_n_tokens(struct client_source *source, uint64_t step, uint64_t n_before)
{
    return source->ops->order->tokens(source, step, n_before);
}

uint32_t client_source_pick(struct client_sample *out, struct client_source *source, uint64_t step, uint64_t n_before)
{
    return source->ops->order->pick(out, source, step, n_before);
}

struct client_sample client_source_pick_held_out(const struct client_source *source, uint64_t k)
{
    return source->ops->order->pick_held_out(source, k);
}

uint64_t client_source_progress(const struct client_source *source, uint64_t n)
{
    return source->ops->order->progress(source, n);
}

int client_source_make_room(struct client_source *source, uint32_t batch, struct error *err)
{
    source->batch = batch;
    source->samples = calloc(batch, sizeof *source->samples);
    source->fields = calloc(batch, sizeof *source->fields);
    return source->samples && source->fields ? 0 : error_memory(err);
}

bool client_source_packs(const struct client_source *source)
{
    return source_has(source, PLAN_FIELD_POSITIONS);
}

void client_source_ask(struct plan_goal *goal, unsigned fields)
{
    goal->packs = goal->packs || fields >> PLAN_FIELD_POSITIONS & 1;
    goal->weighted = goal->weighted || fields >> PLAN_FIELD_WEIGHTS & 1;
}

static void clear(const struct client_buffer *buffer, const struct client_source *source, uint32_t n_tokens)
{
    for (enum plan_field f = 0; f < PLAN_FIELDS; f++) {
        const struct plan_field_type *type = &plan_field_types[f];
        const size_t n_words = type->element_bytes / sizeof(uint32_t);
        const size_t n = source_has(source, f) ? plan_field_bytes(f, buffer->n_rows, n_tokens) / sizeof(uint32_t) : 0;
        uint32_t *words = buffer->at[f];
        assert(words || n == 0 || f == PLAN_FIELD_ENTRIES);
        for (size_t i = 0; words && i < n; i++)
            words[i] = type->empty[i % n_words];
    }
}

/* Entries are of rows to train on alone; an evaluation is not remembered. */
static struct client_row_fields source_row_of(const struct client_buffer *buffer, const struct client_source *source,
                                              enum client_part part, uint32_t row, uint32_t n_tokens)
{
    struct client_row_fields fields = {.n_tokens = n_tokens};

    for (enum plan_field f = 0; f < PLAN_FIELDS; f++)
        if (source_has(source, f) && buffer->at[f] && (f != PLAN_FIELD_ENTRIES || part == CLIENT_TRAIN))
            fields.at[f] = (char *)buffer->at[f] + plan_field_bytes(f, row, n_tokens);
    return fields;
}

void client_row_number(const struct client_row_fields *row, uint32_t from, uint64_t first, uint32_t n)
{
    uint32_t *entries = row->at[PLAN_FIELD_ENTRIES];

    for (uint32_t i = 0; entries && i < n; i++)
        entries[from + i] = (uint32_t)(first + i);
}

static int source_fill(struct client_minibatch *out, const struct client_buffer *buffer, struct client_source *source,
                       enum client_part part, uint32_t n, struct error *err)
{
    const uint32_t n_tokens = source->ops->order->length(source, part, source->samples, n);
    const uint32_t *labels = buffer->at[PLAN_FIELD_LABELS];
    int rc = 0;

    assert(n <= buffer->n_rows && n_tokens <= buffer->seq);
    *out = (struct client_minibatch){.n_tokens = n_tokens};
    clear(buffer, source, n_tokens);
    for (uint32_t row = 0; row < n; row++)
        source->fields[row] = source_row_of(buffer, source, part, row, n_tokens);
    if (source->ops->read_rows)
        rc = source->ops->read_rows(source, source->fields, part, source->samples, n, err);
    for (uint32_t row = 0; !source->ops->read_rows && !rc && row < n; row++)
        rc = source->ops->read_row(source, &source->fields[row], part, source->samples[row], err);
    for (size_t i = 0; !rc && i < (size_t)n * n_tokens; i++)
        out->n_valid += labels[i] != PLAN_NO_LABEL;
    if (source_has(source, PLAN_FIELD_REFERENCES))
        out->n_valid = n / 2;
    return rc;
}

int client_source_fill(struct client_minibatch *out, const struct client_buffer *buffer, struct client_source *source,
                       uint64_t step, uint64_t n_before, struct error *err)
{
    const uint32_t n = client_source_pick(source->samples, source, step, n_before);

    return source_fill(out, buffer, source, CLIENT_TRAIN, n, err);
}

int client_source_fill_held_out(struct client_minibatch *out, const struct client_buffer *buffer,
                                struct client_source *source, uint64_t first, uint32_t n, struct error *err)
{
    assert(n <= source->batch);
    for (uint32_t i = 0; i < n; i++)
        source->samples[i] = client_source_pick_held_out(source, first + i);
    return source_fill(out, buffer, source, CLIENT_HELD_OUT, n, err);
}

int client_source_fill_referenced(struct client_minibatch *out, const struct client_buffer *buffer,
                                  struct client_source *source, uint32_t first, uint32_t n, struct error *err)
{
    const uint32_t n_train = source->n_references[CLIENT_TRAIN];
    const enum client_part part = first < n_train ? CLIENT_TRAIN : CLIENT_HELD_OUT;

    assert(n <= source->batch && (part == CLIENT_HELD_OUT || first + n <= n_train));
    for (uint32_t i = 0; i < n; i++)
        source->samples[i] = (struct client_sample){.id = first + i - (part == CLIENT_HELD_OUT ? n_train : 0)};
    return source_fill(out, buffer, source, part, n, err);
}

void client_source_close(struct client_source *source)
{
    if (!source)
        return;
    if (source->ops->close)
        source->ops->close(source);
    if (source->ops->order->close)
        source->ops->order->close(source);
    client_labels_free(&source->labels);
    free(source->samples);
    free(source->fields);
    free(source->logits);
    free(source->references);
    free(source);
}
