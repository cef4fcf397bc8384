/* Masked tokens: windows of a stream of tokens, some of which the model has to restore (client/task/masks.h). All of a
 * row is read by each of its tokens, so no window is padded: the last one begins earlier, and the tokens that the
 * window before it has are not masked again. */
#include "client/task/masks.h"
#include "client/task/windowed.h"
#include "proto/model/family.h"

#include <stdlib.h>

struct masked {
    struct client_windowed stream;
    struct client_masks masks;
};

static int open_source(struct client_source **out, const struct client_source_setup *setup, struct error *err)
{
    struct masked *masked = calloc(1, sizeof *masked);
    int rc = masked ? client_masks_open(&masked->masks, setup->side, setup->config->family->model_type,
                                        setup->config->vocabulary, err)
                    : error_memory(err);

    *out = NULL;
    if (rc) {
        free(masked);
        return rc;
    }
    masked->stream.source.ops = &client_source_masked;
    masked->stream.setup = *setup;
    *out = &masked->stream.source;
    return 0;
}

static void measure(struct client_source_facts *out, const struct client_source *source)
{
    (void)source;
    *out = (struct client_source_facts){.masked = true};
}

static int divide(struct client_source *source, const struct client_division *division, struct error *err)
{
    struct masked *masked = (struct masked *)source;

    (void)err;
    client_masks_set(&masked->masks, division->mask_fraction, division->seed);
    client_windowed_divide(&masked->stream, division, 0);
    return 0;
}

static int read_row(struct client_source *source, const struct client_row_fields *row, enum client_part part,
                    struct client_sample sample, struct error *err)
{
    const struct masked *masked = (const struct masked *)source;
    const struct client_windows *windows = client_windowed_windows(&masked->stream, part);
    uint32_t known, *ids = row->at[CLIENT_FIELD_IDS];
    const int rc = client_windows_read_whole(windows, ids, &known, sample.id, err);

    client_row_number(row, 0, client_windows_first(windows, sample.id), row->n_tokens);
    if (!rc)
        client_masks_draw(&masked->masks, ids, row->at[CLIENT_FIELD_LABELS], known, row->n_tokens,
                          part == CLIENT_HELD_OUT, sample.draw);
    return rc;
}

static void close_source(struct client_source *source)
{
    struct masked *masked = (struct masked *)source;

    client_masks_close(&masked->masks);
    free(masked);
}

const struct client_source_ops client_source_masked = {
    .name = "masked",
    .task = EPS_OF_MASKED,
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
