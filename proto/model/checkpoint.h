/* proto/model/checkpoint.h - step-N/: what a checkpoint directory holds, and how it is known to be whole.
 *
 *   config.json            as the model came, but for torch_dtype, which is float32
 *   model.safetensors      weights, fp32, named as Hugging Face names them: what transformers loads
 *   optimizer.safetensors  "m.NAME" and "v.NAME" (fp32) for each tensor, and "updates" (I64, one for each tensor in the
 *                          model's order): Adam's moments, and its t
 *   training.json          the step, what the run was told, and a checksum of every byte of the others
 *   tokenizer.json, ...    what else came with the model, as it came
 *
 * training.json is one JSON object:
 *   "format"    1; a reader refuses what it does not know
 *   "step"      N: updates done
 *   "options"   the run's options, as the client recorded them (client/run/record.h), and "microbatch", the rows that the
 *               workers chose (0 if they differ): bits depend on it; an object
 *   "files"     {NAME: {"bytes": B, "runs": [[offset, bytes, "xxh3, 64 bits, 16 hex digits"], ...]}, ...}: for each
 *               file but this one; its runs, in order of offset, cover it without gap or overlap. Units are written as
 *               they come, so there is no checksum of a whole file that could be had without reading it again
 *   "checksum"  the last member: xxh3 of all bytes of the text before `"checksum"`
 *
 * It is written by the daemon (eps/save/save.c), and read by the client alone. */
#ifndef PROTO_MODEL_CHECKPOINT_H
#define PROTO_MODEL_CHECKPOINT_H

#include "proto/base/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CHECKPOINT_FORMAT = 1,
    CHECKPOINT_NAME_BYTES = 64,
    CHECKPOINT_MAX_FILES = 16,
    CHECKPOINT_MAX_TEXT = 64 << 20, /* bytes of training.json, and of the side file of a job */
};

#define CHECKPOINT_CONFIG   "config.json"
#define CHECKPOINT_WEIGHTS  "model.safetensors"
#define CHECKPOINT_MOMENTS  "optimizer.safetensors"
#define CHECKPOINT_TRAINING "training.json"

struct checkpoint_run {
    uint64_t offset, bytes, hash;
};

struct checkpoint_file {
    char name[CHECKPOINT_NAME_BYTES];
    uint64_t bytes;
    struct checkpoint_run *runs; /* (n_runs), owned */
    size_t n_runs, cap_runs;
    bool lent; /* the runs are somebody else's */
};

struct checkpoint {
    uint64_t step;
    json_t *options; /* an object, owned; NULL is written as {} */
    struct checkpoint_file files[CHECKPOINT_MAX_FILES];
    size_t n_files;
};

/* xxh3, 64 bits. */
uint64_t checkpoint_hash(const void *data, size_t n);

/* A file's name that may stand in a checkpoint: 1..63 of [A-Za-z0-9._-], not beginning with a dot. */
bool checkpoint_is_name(const char *name);

/* Adds a file without runs (asserts that there is room and that the name is fit and new); runs are added in any order.
 * Borrowed; it stays where it is as long as the checkpoint does. */
struct checkpoint_file *checkpoint_add_file(struct checkpoint *checkpoint, const char *name, uint64_t bytes);
/* Room for the runs of a file that has none, borrowed until checkpoint_free: there must never be more. */
void checkpoint_lend_runs(struct checkpoint_file *file, struct checkpoint_run *runs, size_t cap);
/* -ENOMEM. */
int checkpoint_add_run(struct checkpoint_file *file, uint64_t offset, uint64_t bytes, uint64_t hash);

/* The text of training.json, to be freed; NULL: no memory. Sorts the runs. */
char *checkpoint_print(struct checkpoint *checkpoint);

/* Reads and checks training.json in the directory: its own checksum, the format, names, runs that cover their files. It
 * does not look at the files. -ENOENT: there is none; -EINVAL, -EPROTONOSUPPORT (a later format), -errno, with a
 * sentence. Undo: checkpoint_free. On failure *out is zeroed. */
int checkpoint_read(struct checkpoint *out, int directory_fd, struct error *err);

/* Compares a file of the directory with its runs, byte for byte: -EINVAL with a sentence that names file and offset; its
 * absence, its length. name NULL: all files. on_bytes, which may be NULL, hears of progress and ends it with anything
 * but 0, which is returned (-EINTR). */
int checkpoint_check(const struct checkpoint *checkpoint, int directory_fd, const char *name,
                     int (*on_bytes)(void *data, uint64_t bytes), void *data, struct error *err);

void checkpoint_free(struct checkpoint *checkpoint); /* safe on a zeroed one */

#endif
