/* client/record/disk.h - what a run's checkpoints take on disk, and whether the first one can be saved. */
#ifndef CLIENT_RECORD_DISK_H
#define CLIENT_RECORD_DISK_H

#include "client/eps.h"
#include "proto/base/error.h"
#include "proto/model/model.h"
#include "proto/plan/memory/plan.h"

#include <stdint.h>

/* Bytes of one checkpoint: of its two large files exactly, of the others at most. */
struct client_disk {
    uint64_t weights, moments, others;
};

/* files_bytes: of config.json and the model's side files (training_text_saved_bytes). -ENOMEM, -EFBIG. */
int client_disk_of(struct client_disk *out, const struct model *model, const struct plan_goal *goal,
                   uint64_t files_bytes, struct error *err);

/* The run's checkpoints at most at once: those that are kept, the best one, an interim one, one that is copied to a
 * mirror, and the one being written. options are resolved. */
uint64_t client_disk_most(const struct eps_train_options *options);

/* Bytes of the whole checkpoint. */
uint64_t client_disk_bytes(const struct client_disk *disk);

/* Bytes that the user may write to a directory's file system; UINT64_MAX: unknown. */
uint64_t client_disk_free(int directory_fd);

/* Reserves a checkpoint in the run's directory and gives it back, so that a run is refused that could not save. Needs
 * the directory's lock. step: updates done. -errno with a sentence: no room, no right, a quota or a limit. */
int client_disk_try(const struct client_disk *disk, const char *directory, int directory_fd, uint64_t step,
                    struct error *err);

#endif
