/* proto/model/output.h - the output directory. step-N/ is replaced so that a crash at any instant leaves the old
 * checkpoint or the new one.
 *
 * A checkpoint is written as step-N.partial/, flushed file by file, then renamed; an existing step-N is exchanged for
 * it and removed. Then `latest` points to it. A killed run leaves step-N.partial at most.
 *
 * Only checkpoints are removed. A directory that holds any file of another kind (not .json, .txt, .jinja, .safetensors
 * or tokenizer.model) is left alone, and a checkpoint of its name then fails. */
#ifndef PROTO_MODEL_OUTPUT_H
#define PROTO_MODEL_OUTPUT_H

#include "proto/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* True for a file name that a checkpoint may have, and that is removed with it. */
bool output_is_name(const char *name);

/* The directory's path; one of cap (at least 5) bytes or more is shortened to "..." and its end. */
void output_path(char *out, size_t cap, int directory);

/* Removes every step-N.partial that killed runs left. What cannot be removed stays. */
void output_clean(int output);

/* Opens a file of a directory that others may write to as well; returns the descriptor or -errno. flags: O_WRONLY or
 * O_RDWR; O_CREAT makes it, and with O_EXCL it must be new. A link that another has planted in its place is not
 * followed (-ELOOP), nor a pipe waited for. */
int output_open(int directory, const char *name, int flags);

/* Makes an empty step-N.partial, in place of a leftover one. *directory is owned. -EEXIST, -errno. */
int output_begin(int *directory, int output, uint64_t step, struct error *err);

/* Opens the step-N.partial that another host has made there. *directory is owned. -errno. */
int output_join(int *directory, int output, uint64_t step, struct error *err);

/* Writes a file of a directory and flushes it. -errno. name is as for output_fail. */
int output_write(int directory, const char *name, const void *data, size_t n, struct error *err);

/* Flushes step-N.partial, whose files have been flushed, and renames it to step-N. -EEXIST, -errno: an old step-N and
 * `latest` are unchanged. 0: step-N is in place; *err is empty, or says why `latest` does not point to it. */
int output_place(int output, int directory, uint64_t step, struct error *err);

/* Points `link` (`latest` or `best`) to step-N atomically; leaves no link.partial behind. -errno. */
int output_point(int output, const char *link, uint64_t step);

/* output_point for `latest`, with a sentence. */
int output_point_latest(int output, uint64_t step, struct error *err);

/* Flushes a path's parent directory. -errno. */
int output_flush_parent(const char *path);

/* Removes step-N.partial and its content. */
void output_remove_partial(int output, uint64_t step);

/* "DIRECTORY/name could not be WHAT: ...; REMEDY", for a negative errno, which it returns. */
int output_fail(struct error *err, int code, int directory, const char *name, const char *what);

/* Puts the directory (-1: none) before a sentence that begins with a file's name; appends the remedy. Returns code. */
int output_explain(struct error *err, int code, int directory);

#endif
