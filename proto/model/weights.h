/* proto/model/weights.h - matches the tensors in files of weights with those of a model.
 *
 * Only headers, and a family's constants, are read, so that a directory of 200 GB is accepted or refused at once. Names
 * in the files may lack the family's prefix, or be old ones (struct family). Those of a model with adapters are its
 * base's files and an adapter's, whose tensors replace those of the base that are trained with it. Two kinds of tensors
 * are no weights of their own: those that the model has no use for (model_is_mask), and copies of the table of tokens.
 * Others are outside of the model (proto/model/outside.h), and are marked as passed. */
#ifndef PROTO_MODEL_WEIGHTS_H
#define PROTO_MODEL_WEIGHTS_H

#include "proto/base/error.h"
#include "proto/model/model.h"
#include "proto/model/file/safetensors.h"

/* Copies of the table of tokens that files may have: a tied model's head, and those that its family lists. */
enum { WEIGHTS_HEAD, WEIGHTS_STACKS = 2, WEIGHTS_COPIES = 1 + WEIGHTS_STACKS };

struct weights {
    struct safetensors *files; /* (n_files) */
    unsigned n_files;
    const struct safetensors_entry **entries; /* (n_tensors) of the model; F32, F16 or BF16, with the tensor's shape */
    const struct safetensors_entry *copies[WEIGHTS_COPIES]; /* to be compared; NULL where the files have none */
    struct safetensors_entry
        *parts; /* (n_parts) entries of tensors that the files have joined (proto/model/joined.h) */
    uint32_t n_parts;
    const char *wrapper; /* precedes the names, if the files are a wrapper's (proto/model/wrapper.h); else NULL */
    void *memory;        /* holds all the above, owned; NULL: a reserve holds it */
};

/* Bytes that the headers of a model's files may take together: its tensors' own, twice, and 2 MiB for others (masks,
 * another part of a wrapper, metadata). */
uint64_t weights_header_bytes(const struct model *model);

/* Bytes of memory that weights_open takes, by the headers' bytes of all files (safetensors_header_bytes). */
uint64_t weights_memory(const struct model *model, uint32_t n_files, uint64_t header_bytes);

/* Reads the headers of open files, which are borrowed until weights_close. Each tensor of the model must occur exactly
 * once, and no other tensor may, but those outside of it. A tied model's table of tokens may be in the
 * files under the head's name alone, as transformers accepts it. Memory is the reserve's, which stays the caller's, or
 * with NULL its own, where headers may have weights_header_bytes. -EINVAL with one sentence that names the first tensor
 * that is misshapen, unexpected, missing, doubled or of another type, of each of these, and counts the others; -ENOMEM;
 * or as safetensors_open. On failure *out is zeroed. */
int weights_open(struct weights *out, const struct model *model, const struct file *files, unsigned n_files,
                 struct reserve *reserve, struct error *err);
void weights_close(struct weights *weights); /* safe on a zeroed one */

/* weights_open for a model whose training begins. A classifier's tensors above the blocks may be missing, as they are
 * in the files of an encoder without a head, and those of adapters, if all are: their entries are NULL, and store_load
 * draws them. */
int weights_open_base(struct weights *out, const struct model *model, const struct file *files, unsigned n_files,
                      struct reserve *reserve, struct error *err);

/* The names of missing tensors, "bert.pooler.dense.weight, classifier.weight", cut to fit; "" if there are none. Those
 * of adapters do not count. Returns how many there are. */
enum { WEIGHTS_MISSING_BYTES = 512 };
uint32_t weights_missing(char out[WEIGHTS_MISSING_BYTES], const struct weights *weights, const struct model *model);

/* The type of all tensors but coded ones and those in an adapter's file; if they differ, F32, which holds any of them
 * exactly. */
enum safetensors_type weights_type(const struct weights *weights, const struct model *model);

/* The form for --base that keeps the values of files that are quantised: all matrices of layers are coded in it, and
 * all else is bf16. FORM_VALUES: none does, or nothing is coded. Adapters do not count. */
enum form weights_form(const struct weights *weights, const struct model *model);

/* Whether a copy differs from the table of tokens, by the bits of both as fp32. One that is not there does not. Reads
 * up to the first difference. As safetensors_read; -ENOMEM. */
int weights_copy_differs(bool *out, const struct weights *weights, const struct model *model, unsigned copy,
                         struct error *err);

/* The error if it does: -EINVAL with a sentence. */
int weights_refuse_copy(const struct model *model, unsigned copy, struct error *err);

bool weights_has_shape(const struct safetensors_entry *entry, const struct model_tensor *tensor);

/* "3 x 4", cut to fit. Returns out. */
enum { WEIGHTS_SHAPE_BYTES = 64 };
const char *weights_shape(char out[WEIGHTS_SHAPE_BYTES], const uint64_t *shape, uint32_t n_dims);

#endif
