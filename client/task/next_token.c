/* Each token of a text predicts its successor: windows of a stream of tokens. */
#include "client/task/windowed.h"

static int next_token_open_source(struct client_source *source, struct error *err)
{
    (void)err;
    ((struct client_windowed *)source)->ahead = 1;
    return 0;
}

static int next_token_read_row(struct client_source *source, const struct client_row_fields *row, enum client_part part,
                               struct client_sample sample, struct error *err)
{
    const struct client_windows *windows = client_windowed_windows(source, part);

    client_row_number(row, 0, client_windows_first(windows, sample.id), row->n_tokens);
    return client_windows_read(windows, row->at[PLAN_FIELD_IDS], row->at[PLAN_FIELD_LABELS], sample.id, err);
}

static bool next_token_takes(const struct model_config *config, double mask_fraction)
{
    (void)config, (void)mask_fraction;
    return true;
}

const struct client_source_ops client_source_text = {
    .facts = {EPS_OF_TEXT, "text", "text", "generate", "perplexity"},
    .order = &client_windowed_order,
    .bytes = sizeof(struct client_windowed),
    .fields = 1u << PLAN_FIELD_IDS | 1u << PLAN_FIELD_LABELS | 1u << PLAN_FIELD_ENTRIES,
    .learns = client_source_predicts_next,
    .takes = next_token_takes,
    .refusal = "%s is for conversations, and the data are a stream of text: leave it out",
    .open = next_token_open_source,
    .open_files = client_data_open,
    .read = client_windowed_read,
    .read_row = next_token_read_row,
    .score = client_windowed_score,
};
