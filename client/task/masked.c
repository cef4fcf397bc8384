/* Masked tokens: windows of a stream of tokens, some of which the model has to restore (client/task/masks.h). All of a
 * row is read by each of its tokens, so no window is padded: the last one begins earlier, and the tokens that the
 * window before it has are not masked again. */
#include "client/task/masks.h"
#include "client/task/windowed.h"
#include "proto/model/family.h"

struct masked {
    struct client_windowed stream;
    struct client_masks masks;
};

static int masked_open_source(struct client_source *source, struct error *err)
{
    const struct model_config *config = source->setup.config;

    return client_masks_open(&((struct masked *)source)->masks, source->setup.side, config->family->model_type,
                             config->vocabulary, err);
}

static void masked_measure(struct client_source_facts *out, const struct client_source *source)
{
    (void)source;
    out->masked = true;
}

static int masked_divide(struct client_source *source, const struct client_division *division, struct error *err)
{
    (void)err;
    client_masks_set(&((struct masked *)source)->masks, division->mask_fraction, division->seed);
    return 0;
}

static int masked_read_row(struct client_source *source, const struct client_row_fields *row, enum client_part part,
                           struct client_sample sample, struct error *err)
{
    const struct client_masks *masks = &((const struct masked *)source)->masks;
    const struct client_windows *windows = client_windowed_windows(source, part);
    uint32_t known, *ids = row->at[PLAN_FIELD_IDS];
    const int rc = client_windows_read_whole(windows, ids, &known, sample.id, err);

    client_row_number(row, 0, client_windows_first(windows, sample.id), row->n_tokens);
    if (!rc)
        client_masks_draw(masks, ids, row->at[PLAN_FIELD_LABELS], known, row->n_tokens, part == CLIENT_HELD_OUT,
                          sample.draw);
    return rc;
}

static void masked_close_source(struct client_source *source)
{
    client_masks_close(&((struct masked *)source)->masks);
}

static bool masked_takes(const struct model_config *config, double mask_fraction)
{
    (void)mask_fraction;
    return config->family->masked;
}

static bool masked_learns(const struct family *family)
{
    return family->masked && !family->sees_images && !family->has_source;
}

const struct client_source_ops client_source_masked = {
    .facts = {EPS_OF_MASKED, "masked", "masked text", "eval", "pseudo-perplexity"},
    .order = &client_windowed_order,
    .bytes = sizeof(struct masked),
    .fields = 1u << PLAN_FIELD_IDS | 1u << PLAN_FIELD_LABELS | 1u << PLAN_FIELD_ENTRIES,
    .learns = masked_learns,
    .takes = masked_takes,
    .masks = true,
    .refusal = "%s is for conversations, and a model that predicts masked tokens reads a stream of text: leave it out",
    .open = masked_open_source,
    .open_files = client_data_open,
    .read = client_windowed_read,
    .measure = masked_measure,
    .divide = masked_divide,
    .read_row = masked_read_row,
    .score = client_windowed_score,
    .close = masked_close_source,
};
