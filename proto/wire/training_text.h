/* proto/wire/training_text.h - what a training job's checkpoints store for the client, beside weights and moments.
 *
 * It is JSON, {"options": {...}, "files": {NAME: STRING, ...}}: the run's options (client/record/record.h) and the
 * files of its model, such as the tokenizer's (proto/model/file/model_files.h). The client encodes it and hands it to the
 * daemon in memory, the job's side file; the daemon decodes it, and hands it to the next client. */
#ifndef PROTO_WIRE_TRAINING_TEXT_H
#define PROTO_WIRE_TRAINING_TEXT_H

#include "proto/base/error.h"
#include "proto/operation/products.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* Creates the sealed file in memory, padded with blanks to `room` bytes. options and files may be NULL; both are
 * borrowed. *fd is owned. -ENOMEM; -EFBIG. */
int training_text_seal(int *fd, json_t *options, json_t *files, size_t room, struct error *err);

/* Room for the text: the model's files, options for some 400 data files, and a tokenizer that is written later, of
 * bytes or of n_learned tokens (0: none is learned). 0: no memory. */
uint64_t training_text_room(json_t *files, uint32_t n_learned);

/* Bytes of the model's files and of that tokenizer in a checkpoint, at most. 0: no memory. */
uint64_t training_text_saved_bytes(json_t *files, uint32_t n_learned);

/* Parses untrusted text. Each name must be allowed in a checkpoint beside its own four files. *out is owned:
 * json_decref. -EINVAL with a sentence, and *out is NULL. */
int training_text_parse(json_t **out, const char *text, size_t n_bytes, struct error *err);

/* The factor of a loss in fp16, and steps since it changed, none of which was skipped: "loss_scale" among the options,
 * {"value": 65536.0, "clean_steps": 12}, which the daemon writes. */
struct loss_scale {
    double value; /* a power of two; 0: gradients are not scaled */
    uint32_t n_clean;
};

static inline double loss_scale_factor(const struct loss_scale *scale)
{
    return scale->value > 0 ? scale->value : 1;
}

/* Leaves *out alone if there is none. -EINVAL with a sentence. */
int training_text_loss_scale(struct loss_scale *out, const json_t *parsed, struct error *err);
/* Sets it in options. -ENOMEM. */
int training_text_set_loss_scale(json_t *options, const struct loss_scale *scale);

/* The algorithms of products among the options; version 0 if there are none. -EINVAL, -ENOMEM with a sentence. */
int training_text_products(struct products *out, const json_t *parsed, struct error *err);

#endif
