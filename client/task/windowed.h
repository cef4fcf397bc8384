/* client/task/windowed.h - what sources share whose rows are windows of a stream of tokens (next_token.c, masked.c,
 * span_corruption.c):
 * slots of struct client_source_ops, by their names. */
#ifndef CLIENT_TASK_WINDOWED_H
#define CLIENT_TASK_WINDOWED_H

#include "client/task/source.h"
#include "client/order/windows.h"

struct client_windowed {
    struct client_source source;
    struct client_source_setup setup;
    struct client_windows train, held_out; /* zeroed until divided */
    enum eps_order order;
    uint64_t seed;
};

/* The model's tokenizer splits text; without one, bytes are tokens. */
int client_windowed_read(struct client_source *source, enum client_part part, const struct client_source_rules *rules,
                         struct error *err);

/* ahead: of struct client_windows. */
void client_windowed_divide(struct client_windowed *stream, const struct client_division *division, uint32_t ahead);

void client_windowed_describe(char *out, size_t cap, const struct client_source *source);
uint64_t client_windowed_n_rows(const struct client_source *source, enum client_part part);
uint64_t client_windowed_n_entries(const struct client_source *source);
uint64_t client_windowed_tokens(struct client_source *source, uint64_t step, uint64_t n_before);
uint32_t client_windowed_pick(struct client_sample *out, struct client_source *source, uint64_t step,
                              uint64_t n_before);
struct client_sample client_windowed_pick_held_out(const struct client_source *source, uint64_t k);
uint32_t client_windowed_length(const struct client_source *source, enum client_part part,
                                const struct client_sample *samples, uint32_t n);
uint64_t client_windowed_progress(const struct client_source *source, uint64_t n);

/* No metrics beside the loss. */
int client_windowed_score(struct client_source *source, double *loss, uint64_t *n_labels, struct error *err);

/* The windows of a part. */
const struct client_windows *client_windowed_windows(const struct client_windowed *stream, enum client_part part);

#endif
