/* client/model/hub.h - where published models come from: what is said to those who name one that is not on this machine, or
 * whose weights lie in a form that is not read. Nothing is downloaded here. */
#ifndef CLIENT_MODEL_HUB_H
#define CLIENT_MODEL_HUB_H

#include "client/eps.h"
#include "proto/base/error.h"

#include <stdbool.h>

/* The sentence for a --model of this path that could not be looked at: -errno, with the command that downloads it where
 * it looks like a name of the Hugging Face hub ("org/name"), or is the preset of a published model. */
int client_hub_missing(const char *path, int rc, struct error *err);

/* The sentence for a directory with a config.json and no *.safetensors: -ENOENT, with the command that converts
 * pytorch_model.bin where that is there. */
int client_hub_unconverted(const char *directory, struct error *err);

/* Whether `model` is to be trained from fresh random weights although weights of that name are published: the sentence
 * that says so, and how to get those. */
bool client_hub_say_fresh(struct error *sentence, const struct eps_train_options *options);

#endif
