/* proto/model/file/checkpoint.h - step-N/: the contents of a checkpoint directory, and how damage is detected.
 *
 *   config.json            the model's, with torch_dtype float32
 *   model.safetensors      weights, fp32, named as Hugging Face names them: what transformers loads; or, of a model
 *                          with adapters, adapter_model.safetensors, beside adapter_config.json: what PEFT loads; its
 *                          config is then base_config.json
 *   optimizer.safetensors  "m.NAME" and "v.NAME" for each tensor, and "updates" (I64, one for each tensor in the model's
 *                          order): Adam's moments, and its t; of SGD "m.NAME" alone, its momentum, or neither. Moments
 *                          are F32; of 16 bits BF16, and v U16 (number_from_v16; earlier files have F32); coded ones
 *                          (proto/model/groups.h) are "m.NAME.scales" and "v.NAME.scales" (F32, one for each group),
 *                          and, last in the file, "m.NAME.codes" (I8) and "v.NAME.codes" (U8). Then
 *                          "norms.NAME" (BF16, one for each token of the training data) of each matrix whose
 *                          gradient is sampled by remembered norms. Of sparse weights (proto/model/sparse.h) moments
 *                          are vectors, beside "places.NAME" (U32) of each tensor, a bit for each element in rows of
 *                          whole words, and "rewired" (I64): the step in which places changed last, how often their
 *                          threshold has doubled, and, as fp32's bits, the first threshold, 0 if it is not chosen yet;
 *                          files without the third number mean 0.001
 *   training.json          the step, the run's options, and checksums of every byte of the other files
 *   tokenizer.json, ...    the model's other files, unchanged; texts among them may be edited (model_files_is_editable)
 *
 * training.json is one JSON object:
 *   "format"    1; readers refuse others
 *   "step"      N: updates done
 *   "options"   the run's options, as the client recorded them (client/record/record.h), and "microbatch", the workers'
 *               rows (0 if they differ), on which bits depend; an object
 *   "files"     {NAME: {"bytes": B, "runs": [[offset, bytes, "xxh3, 64 bits, 16 hex digits"], ...]}, ...}: for each
 *               file but this one; its runs, in order of offset, cover it without gap or overlap. Units are written as
 *               they come, so a checksum of a whole file would require reading it again
 *   "checksum"  the last member: xxh3 of all bytes of the text before `"checksum"`
 *
 * The daemon writes it (eps/save/save.c); only the client reads it. */
#ifndef PROTO_MODEL_FILE_CHECKPOINT_H
#define PROTO_MODEL_FILE_CHECKPOINT_H

#include "proto/base/error.h"
#include "proto/base/file.h"

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
    bool lent; /* the runs are borrowed */
};

struct checkpoint {
    uint64_t step;
    json_t *options; /* an object, owned; NULL is written as {} */
    struct checkpoint_file files[CHECKPOINT_MAX_FILES];
    size_t n_files;
};

/* xxh3, 64 bits. */
uint64_t checkpoint_hash(const void *data, size_t n);

/* True for a file name that a checkpoint may have: 1..63 of [A-Za-z0-9._-], not beginning with a dot. */
bool checkpoint_is_name(const char *name);

/* Adds a file without runs (asserts that there is room and that the name is valid and new); runs are added in any
 * order. Borrowed until checkpoint_free. */
struct checkpoint_file *checkpoint_add_file(struct checkpoint *checkpoint, const char *name, uint64_t bytes);
/* Lends a file without runs the memory for them, until checkpoint_free. It must never get more than cap. */
void checkpoint_lend_runs(struct checkpoint_file *file, struct checkpoint_run *runs, size_t cap);
/* -ENOMEM. */
int checkpoint_add_run(struct checkpoint_file *file, uint64_t offset, uint64_t bytes, uint64_t hash);

/* Writes n bytes of a file at `offset` as a run of it, hashed right before, so that the write finds them in the cache.
 * -ENOMEM, errors of file_write. */
int checkpoint_write_run(struct checkpoint_file *file, const struct file *to, const void *data, size_t n,
                         uint64_t offset, struct error *err);

/* The text of training.json, to be freed; NULL: no memory. Sorts the runs. */
char *checkpoint_print(struct checkpoint *checkpoint);

/* Reads and checks training.json in the directory: its own checksum, the format, names, runs that cover their files.
 * Does not read the files. -ENOENT: there is none; -EINVAL: it is damaged; -EPROTONOSUPPORT: a later format; -errno of
 * the disk, never -EINVAL; with a sentence. Undo: checkpoint_free. On failure *out is zeroed. */
int checkpoint_read(struct checkpoint *out, int directory_fd, struct error *err);

/* Compares every byte of a file with its runs' checksums; name NULL: of all files. -EINVAL: it is damaged, with a
 * sentence that names the file, and the offset unless it is missing or has another length; -errno of the disk, never
 * -EINVAL. on_bytes (may be NULL) reports progress; any
 * result but 0 ends the check and is returned (-EINTR). */
int checkpoint_check(const struct checkpoint *checkpoint, int directory_fd, const char *name,
                     int (*on_bytes)(void *data, uint64_t bytes), void *data, struct error *err);

/* The same of all files, weights first. A text that a user may edit (model_files_is_editable) is no damage if it
 * differs: *edited then says "chat_template.jinja is not as it was saved", else it is empty; it must still be there. */
struct checkpoint_reading {
    bool without_moments;
    int (*on_bytes)(void *data, uint64_t bytes); /* as above */
    void *data;
};
int checkpoint_check_files(struct error *edited, const struct checkpoint *checkpoint, int directory_fd,
                           const struct checkpoint_reading *reading, struct error *err);

/* The same of one file that is open, whose length is what was written. */
int checkpoint_check_open(const struct checkpoint_file *file, const struct file *from, struct error *err);

void checkpoint_free(struct checkpoint *checkpoint); /* safe on a zeroed one */

#endif
