/* A run takes one window after the other, through permutations of an epoch's, so that its n-th row depends on n alone:
 * the batch may change in a run, and every step is full. */
#include "client/task/windowed.h"

#include "client/text/tokenizer.h"
#include "proto/model/family.h"

#include <errno.h>

static const struct client_windowed *windowed_of(const struct client_source *source)
{
    return (const struct client_windowed *)source;
}

int client_windowed_read(struct client_source *source, enum client_part part, const struct client_source_rules *rules,
                         struct error *err)
{
    const struct model_config *config = source->setup.config;
    struct client_data *data = client_source_data(source, part);
    struct client_data_rules read = {.vocabulary = config->vocabulary,
                                     .side = source->setup.side,
                                     .separator = rules->separator,
                                     .watch = rules->watch};
    int rc = 0;

    if (data->has_text) /* without text the tokenizer is not opened: its format may not be supported */
        rc = client_tokenizer_open(&read.tokenizer, read.side, config->family->model_type, read.vocabulary, err);
    if (!rc)
        rc = client_data_check(data, &read, err);
    client_tokenizer_close(read.tokenizer);
    return rc;
}

static int windowed_divide(struct client_source *source, const struct client_division *d, struct error *err)
{
    struct client_windowed *w = (struct client_windowed *)source;
    const struct client_source_setup *setup = &source->setup;
    const bool apart = setup->eval_data->n_files > 0;
    const struct client_data *held_out = apart ? setup->eval_data : setup->data;
    const uint64_t first = apart ? 0 : d->n_train;
    const uint32_t n = w->n ? w->n : d->seq, stride = w->n ? w->n : d->stride;

    (void)err;
    w->order = d->order;
    w->seed = d->seed;
    if (setup->data)
        w->train = client_windows_of(setup->data, 0, d->n_train, n, w->ahead);
    w->held_out = client_windows_held_out(held_out, first, held_out->n - first, n, stride, d->eval_tokens, w->ahead);
    return 0;
}

const struct client_windows *client_windowed_windows(const struct client_source *source, enum client_part part)
{
    return part == CLIENT_TRAIN ? &windowed_of(source)->train : &windowed_of(source)->held_out;
}

static uint64_t windowed_n_rows(const struct client_source *source, enum client_part part)
{
    return client_windowed_windows(source, part)->n;
}

static uint64_t windowed_n_entries(const struct client_source *source)
{
    return source->setup.data->n;
}

static uint64_t windowed_tokens(struct client_source *source, uint64_t step, uint64_t n_before)
{
    (void)step;
    return n_before * windowed_of(source)->train.seq;
}

static uint32_t windowed_pick(struct client_sample *out, struct client_source *source, uint64_t step, uint64_t n_before)
{
    const struct client_windowed *w = windowed_of(source);

    (void)step;
    for (uint32_t i = 0; i < source->batch; i++) {
        const uint64_t row = n_before + i;
        out[i] = (struct client_sample){client_windows_pick(&w->train, w->order, w->seed, row), row};
    }
    return source->batch;
}

static struct client_sample windowed_pick_held_out(const struct client_source *source, uint64_t k)
{
    return (struct client_sample){k, client_windows_number(&windowed_of(source)->held_out, k)};
}

static uint64_t windowed_progress(const struct client_source *source, uint64_t n)
{
    return client_windows_tokens(&windowed_of(source)->held_out, 0, n);
}

static uint32_t windowed_length(const struct client_source *source, enum client_part part,
                                const struct client_sample *samples, uint32_t n)
{
    (void)part, (void)samples, (void)n;
    return source->seq;
}

const struct client_order client_windowed_order = {
    .divide = windowed_divide,
    .n_rows = windowed_n_rows,
    .n_entries = windowed_n_entries,
    .tokens = windowed_tokens,
    .pick = windowed_pick,
    .pick_held_out = windowed_pick_held_out,
    .progress = windowed_progress,
    .length = windowed_length,
};

int client_windowed_score(struct client_source *source, double *loss, uint64_t *n_valid, struct error *err)
{
    (void)source, (void)loss;
    return *n_valid > 0 ? 0 : error_set(err, -EINVAL, "the data has only special tokens, which are never masked");
}
