/* client/metrics.h - metrics.jsonl: one JSON object per step, complete as soon as the step is.
 *
 * Keys: step, loss, lr, tokens, tokens_per_s, step_ms, device_peak_bytes, host_bytes, and eval_loss on the steps that
 * evaluate. A number that is not finite is null. */
#ifndef CLIENT_METRICS_H
#define CLIENT_METRICS_H

#include "client/eps.h"
#include "proto/error.h"

#include <stdio.h>

struct client_metrics {
    FILE *file;
};

/* Makes `directory`/metrics.jsonl, which must not be there yet: -EEXIST, so that no run is written over. -errno. */
int client_metrics_open(struct client_metrics *out, const char *directory, struct error *err);

/* Appends a line and gives it to the system. -errno: a full disk. */
int client_metrics_write(struct client_metrics *metrics, const struct eps_step *step, struct error *err);

void client_metrics_close(struct client_metrics *metrics); /* safe on a zeroed one */

#endif
