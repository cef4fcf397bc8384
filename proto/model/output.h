/* proto/model/output.h - the output directory: step-N/ comes into its place so that a crash at any instant leaves the checkpoint
 * that was there or the new one.
 *
 * A checkpoint is written as step-N.partial/, flushed file by file, then renamed; a step-N that stands there already is
 * exchanged for it and removed. Then `latest` points to it. A killed run leaves step-N.partial at most.
 *
 * What is removed is a checkpoint's and nothing else: a directory that holds as much as one file of another kind (not
 * .json, .txt or .safetensors) is left alone, and its name is then in the way. */
#ifndef PROTO_MODEL_OUTPUT_H
#define PROTO_MODEL_OUTPUT_H

#include "proto/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A file's name that a checkpoint may have, and that is removed with it. */
bool output_is_name(const char *name);

/* The directory's path, or "..." and the end of one that takes cap (at least 5) bytes or more. */
void output_path(char *out, size_t cap, int directory);

/* Removes every step-N.partial that killed runs left. What cannot be removed stays. */
void output_clean(int output);

/* Makes step-N.partial, empty, in place of one that was left there. *directory is owned. -EEXIST, -errno. */
int output_begin(int *directory, int output, uint64_t step, struct error *err);

/* Writes a file of a directory and flushes it. -errno. name is as for output_fail. */
int output_write(int directory, const char *name, const void *data, size_t n, struct error *err);

/* Flushes step-N.partial, whose files have been flushed, and gives it its name. -EEXIST, -errno: the one that stood there
 * and `latest` are as they were. 0: step-N stands; *err is empty, or tells why `latest` does not name it. */
int output_place(int output, int directory, uint64_t step, struct error *err);

/* Makes `link`, `latest` or `best`, a link to step-N in one go; link.partial does not stay behind. -errno. */
int output_point(int output, const char *link, uint64_t step);

/* The same of `latest`, with a sentence. */
int output_point_latest(int output, uint64_t step, struct error *err);

/* Flushes the directory that the last part of a path is in. -errno. */
int output_flush_parent(const char *path);

/* Removes what output_begin made, and what is in it. */
void output_remove_partial(int output, uint64_t step);

/* "DIRECTORY/name could not be WHAT: ...; what to do about it": of a negative errno, which it returns. */
int output_fail(struct error *err, int code, int directory, const char *name, const char *what);

/* Puts the directory (-1: none) in front of a sentence that begins with a file's name, and what to do behind it. Returns
 * code. */
int output_explain(struct error *err, int code, int directory);

#endif
