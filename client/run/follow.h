/* client/run/follow.h - options that come from a file (--config) or from another run (--like).
 *
 * Both are an object as "options" in a checkpoint's training.json (client/record/record.h): a key is an option's name
 * with _ for -, a value what is stored there. An option that is set already keeps its value, so the command line wins
 * over --config, and that over --like. */
#ifndef CLIENT_RUN_FOLLOW_H
#define CLIENT_RUN_FOLLOW_H

#include "client/eps.h"
#include "proto/base/error.h"

#include <jansson.h>
#include <limits.h>
#include <stddef.h>

enum { CLIENT_FOLLOW_TEXTS = 8 };

/* What filled options point into. */
struct client_follow {
    json_t *sources[2];                     /* --config's, --like's; owned, may be NULL */
    const void *texts[CLIENT_FOLLOW_TEXTS]; /* (n_texts) lists of texts, and joined ones; owned */
    size_t n_texts;
    char out[PATH_MAX]; /* runs/NAME */
    /* Those that somebody wrote, on the command line or in a file; the others are stored by a run. */
    struct eps_train_options meant;
};

/* Fills in what --config and --like say, puts `name` into `out`, and leaves out what --dry-run would write. options may
 * be read until client_follow_close, which is due also after a failure; *out must not move. -EDOM: options contradict
 * each other, or the file says what is no option; -EINVAL, -errno: it, or a checkpoint of the run, cannot be read. */
int client_follow(struct client_follow *out, struct eps_train_options *options, struct error *err);
void client_follow_close(struct client_follow *follow); /* safe on a zeroed struct */

/* Unsets, in options, what a run stores whatever its task, nobody wrote (`meant` has it unset), and is of no use to
 * these tasks (of enum eps_tasks): the other run may have had another one. */
void client_follow_forget(struct eps_train_options *options, const struct eps_train_options *meant, unsigned tasks);

#endif
