/* client/record/references.h - references.npy in a run's directory: log p that the model which the run began from gives
 * each text of its preferences (struct client_source). A resumed run has other weights, so it reads them from there.
 *
 * A one-dimensional array of little-endian float32 in NumPy's format 1.0. A comment in its header has XXH3's 64 bits of
 * the numbers, seeded by the texts' own. */
#ifndef CLIENT_RECORD_REFERENCES_H
#define CLIENT_RECORD_REFERENCES_H

#include "proto/base/error.h"

#include <stddef.h>
#include <stdint.h>

#define CLIENT_REFERENCES "references.npy"

/* A checksum of the texts, from those of the data and of what is held out (0: none of its own). */
uint64_t client_references_texts(uint64_t data_hash, uint64_t eval_data_hash);

/* Writes the file (n numbers) beside, flushes and renames it. texts: client_references_texts. -errno. */
int client_references_write(int directory_fd, const float *references, size_t n, uint64_t texts, struct error *err);

/* Reads n numbers. directory_fd may be that of a checkpoint, whose parent has the file. -ENOENT: there is no file;
 * -EINVAL: it is of other texts, or damaged; -errno. The sentence says what to do. */
int client_references_read(float *references, size_t n, uint64_t texts, int directory_fd, struct error *err);

/* Reads them, however many, only to see that they are whole. Errors as of client_references_read; -ENOMEM. */
int client_references_check(uint64_t texts, int directory_fd, struct error *err);

#endif
