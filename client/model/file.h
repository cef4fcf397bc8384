/* client/model/file.h - opens and reads the files of a model's directory. Sentences begin with the file's path. */
#ifndef CLIENT_MODEL_FILE_H
#define CLIENT_MODEL_FILE_H

#include "proto/base/error.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

/* Opens a regular file for reading; links are followed. Returns the descriptor, owned, or -errno; -EINVAL for a file of
 * another kind, without waiting for its other end. */
int client_file_open(const char *path, struct error *err);

/* Reads a whole JSON file of a model, of at most 64 MiB; *out is owned, and not terminated. The descriptor's position
 * stays, since the daemon shares it. path is for the sentence. -EFBIG, -EIO, -ENOMEM, -errno. */
int client_file_read(char **out, size_t *n, int fd, const char *path, struct error *err);

/* "directory/name". -ENAMETOOLONG. */
int client_file_join(char out[PATH_MAX], const char *directory, const char *name, struct error *err);

/* -EINVAL, with a sentence, if the path, made absolute where it exists, is not UTF-8: no JSON file can name it, and a
 * run's checkpoints name its model and its data. */
int client_file_check_name(const char *path, struct error *err);

bool client_file_is_in(const char *directory, const char *name);

#endif
