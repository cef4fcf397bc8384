/* client/record/whole.h - whether a checkpoint is whole: one answer, for eps verify, --resume and --restarts.
 *
 * Only content that differs is damage: a checksum, a length, a file that is missing, the step of another directory. A
 * disk that cannot be read says nothing of what it holds, so its error is reported as such, and no checkpoint is moved
 * for it. */
#ifndef CLIENT_RECORD_WHOLE_H
#define CLIENT_RECORD_WHOLE_H

#include "client/record/checkpoints.h"
#include "proto/base/watch.h"
#include "proto/model/file/checkpoint.h"

#include <limits.h>

/* Reads training.json of the open directory `name`, and compares every byte of the others with it. watch may be NULL.
 * 0: it is whole, *out is to be freed, and *edited as in checkpoint_check_files; -EINVAL: it is damaged; any other
 * -errno: that is not known. The sentence does not name the directory. On failure *out holds nothing but the step, if
 * training.json could be read. */
int client_whole_read(struct checkpoint *out, struct error *edited, int fd, const char *name,
                      const struct client_watch *watch, struct error *err);

/* Renames a run's step-N to step-N.WHY ("damaged"), or to step-N.WHY-2 and so on if there is one; *name is the new
 * name. `latest` and `best` no longer point to it: they are removed. -errno with a sentence that names the
 * checkpoint. */
int client_whole_put_aside(char name[NAME_MAX + 1], int directory_fd, uint64_t step, const char *why,
                           struct error *err);

#endif
