/* client/record/past.h - what metrics.jsonl tells of a run's past, so that a run that goes on (--resume in its own directory,
 * --attach) decides as if it had never stopped. */
#ifndef CLIENT_RECORD_PAST_H
#define CLIENT_RECORD_PAST_H

#include "client/record/checkpoints.h"

#include <stdbool.h>
#include <stdint.h>

struct eps_train_options;

struct client_past {
    uint64_t last;                           /* step of the last line; 0: none */
    double eval_loss, step_ms, tokens_per_s; /* of that line; NAN where it has none */
    struct client_best best;                 /* of all evaluations */
    unsigned n_skipped;                      /* steps skipped in a row, up to the last line */
};

/* Reads the lines of the first `step` steps. Without the file: nothing is known. */
void client_past_read(struct client_past *out, const char *directory, uint64_t step);

/* True if an evaluation was due after `step` steps of a run with these options, and has no line: the run ended before it
 * or in it. */
bool client_past_lacks_evaluation(const struct client_past *past, const struct eps_train_options *options,
                                  uint64_t step);

#endif
