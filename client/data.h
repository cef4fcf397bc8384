/* client/data.h - tokens from files, cut into windows.
 *
 * Several files are one stream, in their order. By the name's end: .bin is u16 (u32 for vocabularies over 65,536), .npy
 * one dimension of integers, anything else UTF-8 text, one token a byte, for models with a vocabulary of 256.
 * Tokens stay in their files: a window is read when it is needed, which costs nothing beside a step and no memory.
 *
 * A stream of T tokens gives floor((T-1)/seq) windows: window k reads tokens k*seq .. k*seq+seq-1 and predicts each
 * one's successor. */
#ifndef CLIENT_DATA_H
#define CLIENT_DATA_H

#include "client/eps.h"
#include "client/npy.h"
#include "proto/error.h"

#include <stddef.h>
#include <stdint.h>

struct client_data_file {
    const char *path; /* borrowed */
    int fd;
    enum client_integer type;
    uint64_t offset; /* of its first token in the file, bytes */
    uint64_t first;  /* its first token's place in the stream */
    uint64_t n;      /* tokens */
};

struct client_data {
    struct client_data_file *files;
    size_t n_files;
    uint64_t n; /* tokens of all files */
    uint32_t vocabulary;
};

/* Opens the files and reads every token once: what is outside the vocabulary, not UTF-8, truncated or not there is
 * refused with the file, the position and the value. paths are borrowed until client_data_free. -EINVAL, -errno.
 * A text may begin or end inside a character, as split and head leave it. */
int client_data_open(struct client_data *out, const char *const *paths, size_t n_paths, uint32_t vocabulary,
                     struct error *err);
void client_data_free(struct client_data *data); /* safe on a zeroed one */

/* Tokens first .. first+n-1 of the stream, which must be there. -EIO if a file changed since it was opened. */
int client_data_read(const struct client_data *data, uint32_t *out, uint64_t first, uint64_t n, struct error *err);

/* Part of a stream as windows. */
struct client_windows {
    const struct client_data *data; /* borrowed */
    uint64_t first;                 /* token */
    uint32_t seq;
    uint64_t n; /* windows; 0 where n_tokens <= seq */
};

struct client_windows client_windows_of(const struct client_data *data, uint64_t first, uint64_t n_tokens,
                                        uint32_t seq);

/* ids (seq) and labels (seq) of window k. As client_data_read. */
int client_windows_read(const struct client_windows *windows, uint32_t *ids, uint32_t *labels, uint64_t k,
                        struct error *err);

/* The window that is row `row` of the run, step * batch + i. Sequential: row modulo n. Shuffled: each epoch of n rows
 * is a permutation of its own, drawn from the seed. n >= 1. */
uint64_t client_windows_pick(const struct client_windows *windows, enum eps_order order, uint64_t seed, uint64_t row);

#endif
