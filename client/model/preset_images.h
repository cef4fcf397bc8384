/* client/model/preset_images.h - presets of image classifiers: wrn-28-2, resnet-18, resnet-50. */
#ifndef CLIENT_MODEL_PRESET_IMAGES_H
#define CLIENT_MODEL_PRESET_IMAGES_H

#include "client/model/model.h"

#include <stdbool.h>
#include <stddef.h>

/* The names. NULL beyond the last. */
const char *client_preset_images_name(size_t index);
bool client_preset_is_of_images(const char *name);

/* Opens the preset that a run's options name, for images of this size, as --image has it; NULL: of its own, 32x32 or
 * 224x224. A ResNet whose images have at most 64 pixels a side has CIFAR's stem. Its labels are those of the data
 * (client_classifier_label). -EDOM with a sentence, also for options of models of text; -errno. */
int client_preset_open_images(struct client_model *out, const struct eps_train_options *options, struct error *err);

#endif
