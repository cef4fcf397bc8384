/* client/record/metrics.h - metrics.jsonl: one JSON object per step, written when the step completes, exactly once.
 *
 * Keys: step, time (seconds since 1970), loss, lr, tokens, tokens_per_s, step_ms, device_peak_bytes, host_bytes; on
 * steps that evaluate eval_loss, and the metrics of a task: eval_accuracy, eval_f1, eval_matthews, eval_macro_f1,
 * eval_pearson, eval_spearman; of preferences rewards/chosen, rewards/rejected, rewards/accuracies, rewards/margins,
 * logps/chosen and logps/rejected, as TRL logs them, and some of them with eval_ in front; eval_loss_before on the
 * first step, if the loss before it was measured. A number that is unknown or not finite is null. Optional keys:
 * grad_norm (with fenced commit); skipped (true); loss_scale (in fp16); and about once a second memory, in bytes
 * during the step: {"host": {CATEGORY: bytes, ...}, "device": {...}}, for the device with the most.
 *
 * Lines that the disk rejects are kept and written with the next line, after the last complete one. A resumed run cuts
 * back lines that follow its checkpoint, and an incomplete last line. If a killed process lost the line of an earlier
 * step, the step gets a line with what is still known. */
#ifndef CLIENT_RECORD_METRICS_H
#define CLIENT_RECORD_METRICS_H

#include "client/eps.h"
#include "proto/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct client_metrics {
    int fd;        /* -1 when closed */
    off_t good;    /* bytes of complete lines in the file */
    size_t last;   /* length of the last line, written or pending */
    char *pending; /* (n_pending) lines not written yet; owned */
    size_t n_pending, cap;
};

/* Creates metrics.jsonl in the directory. -EEXIST if it is there: no run is overwritten. -errno. */
int client_metrics_open(struct client_metrics *out, int directory_fd, struct error *err);

/* Opens the file of a run that resumes after `step` updates and cuts it back. fill completes the line of a missing
 * step, or says that it is none of this run's; NULL: it stays missing. -errno. */
int client_metrics_reopen(struct client_metrics *out, int directory_fd, uint64_t step,
                          bool (*fill)(void *data, struct eps_step *lost), void *data, struct error *err);

/* Whether client_metrics_reopen can open the file. Nothing in it changes. Errors as there. */
int client_metrics_check(int directory_fd, struct error *err);

/* Appends a line and writes it together with pending ones. -errno with a sentence (full disk, removed file): the line
 * is kept. -ENOMEM: it is lost. */
int client_metrics_write(struct client_metrics *metrics, const struct eps_step *step, struct error *err);

/* Replaces the last line by a longer one, with an evaluation's loss; a line that was lost is written now. Errors as
 * client_metrics_write; -ENOMEM: the last line stays. */
int client_metrics_rewrite(struct client_metrics *metrics, const struct eps_step *step, struct error *err);

/* Adds an evaluation to the last line of a reopened file, which has none. Errors as client_metrics_write; -EIO: that
 * line cannot be read again. */
int client_metrics_add_evaluation(struct client_metrics *metrics, double loss, const struct eps_score *scores,
                                  size_t n_scores, struct error *err);

/* The number that a line has for this one. Decisions compare such numbers: a resumed run knows no others. */
double client_metrics_round(double value);

/* Writes pending lines. Errors as client_metrics_write. */
int client_metrics_flush(struct client_metrics *metrics, struct error *err);

void client_metrics_close(struct client_metrics *metrics); /* safe on a closed one */

#endif
