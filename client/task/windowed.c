#include "client/task/windowed.h"

#include "client/text/tokenizer.h"
#include "proto/model/family.h"

#include <errno.h>

static const struct client_windowed *of(const struct client_source *source)
{
    return (const struct client_windowed *)source;
}

int client_windowed_read(struct client_source *source, enum client_part part, const struct client_source_rules *rules,
                         struct error *err)
{
    const struct client_source_setup *setup = &of(source)->setup;
    struct client_data *data = part == CLIENT_TRAIN ? setup->data : setup->eval_data;
    struct client_data_rules read = {.vocabulary = setup->config->vocabulary,
                                     .side = setup->side,
                                     .separator = rules->separator,
                                     .watch = rules->watch};
    int rc = 0;

    if (data->has_text) /* without text the tokenizer is not opened: its format may not be supported */
        rc = client_tokenizer_open(&read.tokenizer, read.side, setup->config->family->model_type, read.vocabulary, err);
    if (!rc)
        rc = client_data_check(data, &read, err);
    client_tokenizer_close(read.tokenizer);
    return rc;
}

void client_windowed_divide(struct client_windowed *w, const struct client_division *d, uint32_t ahead)
{
    const struct client_source_setup *setup = &w->setup;
    const bool apart = setup->eval_data->n_files > 0;
    const struct client_data *held_out = apart ? setup->eval_data : setup->data;
    const uint64_t first = apart ? 0 : d->n_train;

    w->order = d->order;
    w->seed = d->seed;
    if (setup->data)
        w->train = client_windows_of(setup->data, 0, d->n_train, d->seq, ahead);
    w->held_out =
        client_windows_held_out(held_out, first, held_out->n - first, d->seq, d->stride, d->eval_tokens, ahead);
}

void client_windowed_describe(char *out, size_t cap, const struct client_source *source)
{
    (void)source;
    if (cap > 0)
        *out = 0;
}

const struct client_windows *client_windowed_windows(const struct client_windowed *w, enum client_part part)
{
    return part == CLIENT_TRAIN ? &w->train : &w->held_out;
}

uint64_t client_windowed_n_rows(const struct client_source *source, enum client_part part)
{
    return client_windowed_windows(of(source), part)->n;
}

uint64_t client_windowed_n_entries(const struct client_source *source)
{
    return of(source)->setup.data->n;
}

uint64_t client_windowed_tokens(struct client_source *source, uint64_t step, uint64_t n_before)
{
    (void)step;
    return n_before * of(source)->train.seq;
}

uint32_t client_windowed_pick(struct client_sample *out, struct client_source *source, uint64_t step, uint64_t n_before)
{
    const struct client_windowed *w = of(source);

    (void)step;
    for (uint32_t i = 0; i < source->batch; i++) {
        const uint64_t row = n_before + i;
        out[i] = (struct client_sample){client_windows_pick(&w->train, w->order, w->seed, row), row};
    }
    return source->batch;
}

struct client_sample client_windowed_pick_held_out(const struct client_source *source, uint64_t k)
{
    return (struct client_sample){k, client_windows_number(&of(source)->held_out, k)};
}

uint32_t client_windowed_length(const struct client_source *source, enum client_part part,
                                const struct client_sample *samples, uint32_t n)
{
    (void)samples, (void)n;
    return client_windowed_windows(of(source), part)->seq;
}

uint64_t client_windowed_progress(const struct client_source *source, uint64_t n)
{
    return client_windows_tokens(&of(source)->held_out, 0, n);
}

int client_windowed_score(struct client_source *source, double *loss, uint64_t *n_labels, struct error *err)
{
    (void)source, (void)loss;
    return *n_labels > 0 ? 0 : error_set(err, -EINVAL, "the data has only special tokens, which are never masked");
}
