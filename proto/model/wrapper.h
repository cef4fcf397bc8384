/* proto/model/wrapper.h - a text model inside another one: Gemma 3 beside an encoder of images.
 *
 * Such a model's config.json has the text model's own as its text_config, and a prefix precedes the names of its
 * tensors. What is read of it is the text model, as a model of its own. Any wrapper is known by its text_config,
 * whatever it is called; of Qwen's that see images, whose text models have classes of their own, by its model_type. */
#ifndef PROTO_MODEL_WRAPPER_H
#define PROTO_MODEL_WRAPPER_H

#include "proto/model/file/safetensors.h"

#include <stddef.h>

/* "text model of Gemma3ForConditionalGeneration (without vision)", cut to fit. */
enum { WRAPPER_NOTE_BYTES = 96 };

/* The text model's config.json, owned, and a note of what it was taken from; sizes that it leaves to the family's
 * defaults in transformers are filled in. NULL: text (n bytes) is no wrapper of a decoder that is known. */
char *wrapper_text_config(char note[WRAPPER_NOTE_BYTES], const char *text, size_t n);

/* The wrapper's config.json (n_outer bytes, of which wrapper_text_config has made a text model's) with the text model
 * of another config.json, for weights of this type: keys of text_config stay as they are written but those in which the
 * model differs from what was made. Owned; NULL: no memory, or no wrapper. */
char *wrapper_print(const char *outer, size_t n_outer, const char *inner, size_t n_inner, enum safetensors_type type);

/* The prefix of a text model's tensors if this is one's name, "language_model.model.norm.weight"; else NULL. */
const char *wrapper_prefix(const char *tensor);

#endif
