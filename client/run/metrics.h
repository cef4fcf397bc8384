/* client/run/metrics.h - metrics.jsonl: one JSON object per step, complete as soon as the step is, each step exactly once.
 *
 * Keys: step, loss, lr, tokens, tokens_per_s, step_ms, device_peak_bytes, host_bytes, and eval_loss on the steps that
 * evaluate; eval_loss_before on the first step, where its loss before was measured. A number that is not finite, or not known, is null. Beside them, where there is something to say: grad_norm
 * (not with eager commit), skipped (true), and about once a second memory, in bytes as they were during the step:
 * {"host": {CATEGORY: bytes, ...}, "device": {...}}, of the device that has most.
 *
 * What the disk does not take is kept, and tried again with the next line, from the last good place on. A run that goes
 * on cuts back what was written after its checkpoint, and half a last line. A step of before whose line was lost with
 * a killed process gets one that holds what is still known. */
#ifndef CLIENT_RUN_METRICS_H
#define CLIENT_RUN_METRICS_H

#include "client/eps.h"
#include "proto/base/error.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct client_metrics {
    int fd;        /* -1 when closed */
    off_t good;    /* bytes of the file that are whole lines */
    size_t last;   /* bytes of the last line, written or pending */
    char *pending; /* (n_pending) lines that the file has not taken; owned */
    size_t n_pending, cap;
};

/* Makes metrics.jsonl in the directory, which must not be there yet: -EEXIST, so that no run is written over. -errno. */
int client_metrics_open(struct client_metrics *out, int directory_fd, struct error *err);

/* Opens that of a run that goes on after `step` updates, and cuts it back. fill adds what is known
 * to the line of a step that is missing; NULL: they stay missing. -errno. */
int client_metrics_reopen(struct client_metrics *out, int directory_fd, uint64_t step,
                          void (*fill)(void *data, struct eps_step *lost), void *data, struct error *err);

/* Appends a line and gives it to the system, with those that it has not taken before. -errno with a sentence (a full
 * disk, a file that was removed): the line is kept. -ENOMEM: it is not. */
int client_metrics_write(struct client_metrics *metrics, const struct eps_step *step, struct error *err);

/* The last line again, with more in it: an evaluation's loss. As client_metrics_write. */
int client_metrics_rewrite(struct client_metrics *metrics, const struct eps_step *step, struct error *err);

/* Tries what is pending once more. As client_metrics_write. */
int client_metrics_flush(struct client_metrics *metrics, struct error *err);

void client_metrics_close(struct client_metrics *metrics); /* safe on a closed one */

#endif
