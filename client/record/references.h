/* client/record/references.h - references.npy in a run's directory: log p that the model which the run began from gives each
 * text of its preferences (struct client_source). A resumed run has other weights, so it reads them from there.
 *
 * A one-dimensional array of little-endian float32 in NumPy's format 1.0. A comment in its header has XXH3's 64 bits of the
 * numbers, seeded by the texts' own. */
#ifndef CLIENT_RECORD_REFERENCES_H
#define CLIENT_RECORD_REFERENCES_H

#include "proto/base/error.h"

#include <stddef.h>
#include <stdint.h>

#define CLIENT_REFERENCES "references.npy"

/* Writes the file (n numbers) beside, flushes and renames it. texts: a checksum of the texts that they are of. -errno. */
int client_references_write(int directory_fd, const float *references, size_t n, uint64_t texts, struct error *err);

/* Reads n numbers. directory_fd may be that of a checkpoint, whose parent has the file. -ENOENT: there is no file; -EINVAL:
 * it is of other texts, or damaged; -errno. The sentence says what to do. */
int client_references_read(float *references, size_t n, uint64_t texts, int directory_fd, struct error *err);

#endif
