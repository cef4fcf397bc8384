/* client/record/tensorboard.h - the steps of a run as event files of TensorBoard, which shows them while the run goes
 * on.
 *
 * A file is a sequence of records: the length of an event in 8 bytes, its checksum, the event, its checksum. An event
 * is a message of protocol buffers (tensorflow/core/util/event.proto): wall time, step, and scalars or texts by tag. A
 * checksum is CRC-32C, rotated by 15 bits and shifted, as tensorflow/core/lib/hash/crc32c.h has it. Numbers are
 * little-endian. */
#ifndef CLIENT_RECORD_TENSORBOARD_H
#define CLIENT_RECORD_TENSORBOARD_H

#include "client/eps.h"
#include "proto/base/error.h"

#include <stdint.h>

struct client_tensorboard {
    int fd; /* -1 when closed */
};

/* Makes the directory, and a new file there, whose first step comes after `step`: TensorBoard forgets what earlier
 * files of a run that was resumed have of later ones. -errno with a sentence; the file is then closed. */
int client_tensorboard_open(struct client_tensorboard *out, const char *directory, uint64_t step, struct error *err);

/* Appends a step: its finite numbers. -errno (full disk, removed directory); a part of it may be written. */
int client_tensorboard_write(const struct client_tensorboard *events, const struct eps_step *step);

/* Appends a text of this step after prompt `i`, as text summary samples/i+1: both, as two paragraphs. Texts that fill
 * more than 12 KiB are cut. Errors as client_tensorboard_write. */
int client_tensorboard_write_text(const struct client_tensorboard *events, uint64_t step, size_t i, const char *prompt,
                                  const char *text, size_t n);

void client_tensorboard_close(struct client_tensorboard *events); /* safe on a closed one */

#endif
