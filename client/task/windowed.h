/* client/task/windowed.h - windows of a stream of tokens, each a row: the order of next_token.c, masked.c and span_corruption.c,
 * whose rows begin with struct client_windowed. */
#ifndef CLIENT_TASK_WINDOWED_H
#define CLIENT_TASK_WINDOWED_H

#include "client/order/windows.h"
#include "client/task/source.h"

struct client_windowed {
    struct client_source source;
    /* Set by the task before rows are divided: */
    uint32_t ahead;                        /* of struct client_windows */
    uint32_t n;                            /* tokens of a window; 0: as many as seq */
    struct client_windows train, held_out; /* zeroed until divided */
    enum eps_order order;
    uint64_t seed;
};

extern const struct client_order client_windowed_order;

/* As struct client_source_ops has them. The model's tokenizer splits text; without one, bytes are tokens. There are no
 * metrics beside the loss. */
int client_windowed_read(struct client_source *source, enum client_part part, const struct client_source_rules *rules,
                         struct error *err);
int client_windowed_score(struct client_source *source, double *loss, uint64_t *n_valid, struct error *err);

/* The windows of a part. */
const struct client_windows *client_windowed_windows(const struct client_source *source, enum client_part part);

#endif
