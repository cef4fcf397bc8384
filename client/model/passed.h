/* client/model/passed.h - what a model's directory has and no training changes: tensors outside of the model
 * (proto/model/outside.h), the config.json of a wrapper (proto/model/wrapper.h), and files of a processor of images.
 *
 * A checkpoint holds what is trained, and its record (client/record/record.h) says where the rest is, as "passed":
 *
 *   {"directory": "/models/gemma-3-4b-it", "fingerprint": "16 hex digits", "tensors": 437, "bytes": 839124000,
 *    "parts": ["vision_tower.*", "multi_modal_projector.*"]}
 *
 * The fingerprint is that of an adapter's base: names, shapes and some values of all tensors, however they are divided
 * into files. An export takes the rest from that directory, as it is. */
#ifndef CLIENT_MODEL_PASSED_H
#define CLIENT_MODEL_PASSED_H

#include "client/model/model.h"
#include "proto/model/weights.h"

#define CLIENT_PASSED_KEY "passed" /* of the record */

/* The record of a model that is no checkpoint, from its open weights and what they were opened for; owned. NULL: its
 * directory has no more than the model. -EINVAL: the directory's name is not UTF-8; -ENOMEM, -EIO, -errno. */
int client_passed_note(json_t **out, const struct client_model *model, const struct weights *weights,
                       const struct model *description, struct error *err);

/* "437 tensors (1.2 GiB) are not trained: model.visual.*, mtp.*", cut to fit; "" for NULL and without such tensors. */
enum { CLIENT_PASSED_BYTES = 300 };
void client_passed_print(char out[CLIENT_PASSED_BYTES], const json_t *record);

/* The directory that has the rest. */
struct client_passed {
    json_t *record;             /* owned; NULL: there is no rest, and nothing below counts */
    struct client_model source; /* as which the weights are open: */
    struct model model;
    struct weights weights; /* entries that are `passed` are the rest */
};

/* Opens it for a model that client_model_match has read; of a model with adapters, that of the base, into which they
 * are merged. base: where it is, if not where the record says; or NULL. -ENOENT, -EINVAL if it is not there any more,
 * or not what it was, with a sentence that says what to do; errors of client_model_open. Undo: client_passed_close. */
int client_passed_open(struct client_passed *out, const struct client_model *model, const char *base,
                       struct error *err);
void client_passed_close(struct client_passed *passed); /* safe on a zeroed one */

/* The name that a tensor of the model has in the source, or would have there, if that is a wrapper:
 * "model.language_model.norm.weight"; else its own, also where old files have another. Returns out. */
enum { CLIENT_PASSED_NAME_BYTES = 128 };
const char *client_passed_name(char out[CLIENT_PASSED_NAME_BYTES], const struct client_passed *passed,
                               const char *name);

/* The wrapper's config.json with this text model, for weights of this type; owned. NULL with 0: the source is no
 * wrapper. -ENOMEM, -errno. */
int client_passed_config(char **out, const struct client_passed *passed, const struct client_model *model,
                         enum safetensors_type type, struct error *err);

/* Calls on_file for each file of a processor that the source has, until it fails; NULL: reads them only, which tells
 * whether they can be, before weights are written. -EFBIG, -errno. */
int client_passed_files(const struct client_passed *passed,
                        int (*on_file)(void *data, const char *name, const char *text, size_t n, struct error *err),
                        void *data, struct error *err);

#endif
