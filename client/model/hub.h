/* client/model/hub.h - error sentences that lead to published models. They help when --model names a model that is not
 * on this machine, or weights in an unsupported format. Nothing is downloaded here. */
#ifndef CLIENT_MODEL_HUB_H
#define CLIENT_MODEL_HUB_H

#include "client/eps.h"
#include "proto/base/error.h"

#include <stdbool.h>

/* The error for a --model path that could not be opened; rc is the -errno. If the path looks like a Hugging Face hub
 * name ("org/name") or is the preset of a published model, the sentence gives the download command. */
int client_hub_missing(const char *path, int rc, struct error *err);

/* The error for a directory with a config.json but no *.safetensors: -ENOENT. If pytorch_model.bin is there, the
 * sentence gives the command that converts it. */
int client_hub_unconverted(const char *directory, struct error *err);

/* True if the run trains fresh random weights under the name of a published model. The sentence says so and tells how
 * to get the published weights. */
bool client_hub_say_fresh(struct error *sentence, const struct eps_train_options *options);

#endif
