/* Rows of text: windows of a stream of tokens, each of which predicts its successor. */
#include "client/task/windowed.h"

#include <stdlib.h>

static int open_source(struct client_source **out, const struct client_source_setup *setup, struct error *err)
{
    struct client_windowed *text = calloc(1, sizeof *text);

    *out = NULL;
    if (!text)
        return error_memory(err);
    text->source.ops = &client_source_text;
    text->setup = *setup;
    *out = &text->source;
    return 0;
}

static void measure(struct client_source_facts *out, const struct client_source *source)
{
    (void)source;
    *out = (struct client_source_facts){.masked = false};
}

static int divide(struct client_source *source, const struct client_division *division, struct error *err)
{
    (void)err;
    client_windowed_divide((struct client_windowed *)source, division, 1);
    return 0;
}

static int read_row(struct client_source *source, const struct client_row_fields *row, enum client_part part,
                    struct client_sample sample, struct error *err)
{
    const struct client_windows *windows = client_windowed_windows((const struct client_windowed *)source, part);

    client_row_number(row, 0, client_windows_first(windows, sample.id), row->n_tokens);
    return client_windows_read(windows, row->at[CLIENT_FIELD_IDS], row->at[CLIENT_FIELD_LABELS], sample.id, err);
}

static void close_source(struct client_source *source)
{
    free(source);
}

const struct client_source_ops client_source_text = {
    .name = "text",
    .task = EPS_OF_TEXT,
    .fields = 1u << CLIENT_FIELD_IDS | 1u << CLIENT_FIELD_LABELS | 1u << CLIENT_FIELD_ENTRIES,
    .fixes_batch = false,
    .open = open_source,
    .open_files = client_data_open,
    .read = client_windowed_read,
    .measure = measure,
    .divide = divide,
    .describe = client_windowed_describe,
    .n_rows = client_windowed_n_rows,
    .n_entries = client_windowed_n_entries,
    .tokens = client_windowed_tokens,
    .pick = client_windowed_pick,
    .pick_held_out = client_windowed_pick_held_out,
    .length = client_windowed_length,
    .read_row = read_row,
    .progress = client_windowed_progress,
    .score = client_windowed_score,
    .close = close_source,
};
