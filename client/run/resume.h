/* client/run/resume.h - the checkpoint to resume from: finds, locks, reads and verifies it.
 *
 * A run directory, or `latest` in it, means its newest whole checkpoint. Damaged ones above it are put aside, never
 * removed (client/record/whole.h); a run that is only read keeps them. One that the disk does not give is not damaged:
 * that error ends the search. With --out, a new run begins from the checkpoint and the old directory is only read: its
 * best evaluation and its patience begin anew. Without --out, the run continues in its own directory, which must hold
 * no later step that is whole, and decides as if it had never stopped: by the evaluations in its metrics.jsonl. One
 * that was due at the stop and interrupted by it is made up. */
#ifndef CLIENT_RUN_RESUME_H
#define CLIENT_RUN_RESUME_H

#include "proto/base/watch.h"
#include "client/record/checkpoints.h"
#include "client/record/record.h"
#include "proto/model/file/checkpoint.h"

#include <limits.h>
#include <stdbool.h>

struct client_resume {
    char directory[PATH_MAX]; /* the run's, as the user named it */
    char path[PATH_MAX];      /* the checkpoint's */
    int directory_fd;         /* locked; -1 if the run continues in another directory */
    int moments_fd;           /* optimizer.safetensors */
    bool in_place;
    struct checkpoint checkpoint;
    struct client_record record;
    struct client_past past; /* of a run in place, up to the checkpoint; else nothing is known */
    bool lacks_evaluation;   /* the one after the checkpoint's step */
    struct error note;       /* for the user: which checkpoints were passed over; or empty */
    struct error edited;     /* likewise: which texts of the checkpoint are other ones now */
};

/* watch (may be NULL) can interrupt the reading. -errno with a sentence. Undo: client_resume_close, also after a
 * failure. */
int client_resume_open(struct client_resume *out, const struct eps_train_options *given,
                       const struct client_watch *watch, struct error *err);
void client_resume_close(struct client_resume *resume);

/* Of a run that begins from another one's checkpoint, and only reads there: waits up to 3 s until nobody writes there,
 * as the daemon of a killed client does for a moment. *directory: the other run's. -EBUSY: it is still in use, by a run
 * that goes on, or by its last checkpoint. 0 also if there is nothing of that kind, which client_resume_open then
 * reports; the watch's code. */
int client_resume_await(char directory[PATH_MAX], const struct eps_train_options *given,
                        const struct client_watch *watch, struct error *err);

/* Nothing to go on from: makes client_resume_close safe. */
void client_resume_init(struct client_resume *resume);

/* Locks a run's directory. It stays in use until the last process of its run has ended; the daemon of a killed client
 * ends a moment after it. Waits up to 3 s for that; the watch (may be NULL) can interrupt. -EBUSY, -errno. */
int client_resume_lock(int directory_fd, const char *path, const struct client_watch *watch, struct error *err);

#endif
