/* A preset is a config.json in memory, opened as a file would be, so presets and models of users take one path from
 * here on. The size of the images decides stem and normalisation: small ones are CIFAR's, large ones ImageNet's. */
#include "client/model/preset_images.h"

#include "client/images/view.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CIFAR_SIDE = 64 }; /* at most, of a small stem */

/* Normalisation: of CIFAR-10's and ImageNet's training images, as is customary. */
static const struct {
    const char *name, *shape;
    uint32_t side;
} presets[] = {
    {"wrn-28-2",
     "  \"architectures\": [\"WideResNetForImageClassification\"],\n  \"model_type\": \"wide_resnet\",\n"
     "  \"depth\": 28,\n  \"widen_factor\": 2,\n",
     32},
    {"resnet-18",
     "  \"architectures\": [\"TorchvisionResNetForImageClassification\"],\n  \"model_type\": \"torchvision_resnet\",\n"
     "  \"layer_type\": \"basic\",\n  \"depths\": [2, 2, 2, 2],\n",
     224},
    {"resnet-50",
     "  \"architectures\": [\"TorchvisionResNetForImageClassification\"],\n  \"model_type\": \"torchvision_resnet\",\n"
     "  \"layer_type\": \"bottleneck\",\n  \"depths\": [3, 4, 6, 3],\n",
     224},
};

const char *client_preset_images_name(size_t index)
{
    return index < sizeof presets / sizeof *presets ? presets[index].name : NULL;
}

static size_t preset_images_find(const char *name)
{
    size_t i = 0;

    while (client_preset_images_name(i) && strcmp(presets[i].name, name) != 0)
        i++;
    return i;
}

bool client_preset_is_of_images(const char *name)
{
    return client_preset_images_name(preset_images_find(name)) != NULL;
}

int client_preset_open_images(struct client_model *out, const struct eps_train_options *o, struct error *err)
{
    const char *name = o->model, *image = o->image;
    const char *other = o->lora ? "--lora" : o->base_model ? "--base-model" : o->task ? "--task" : NULL;
    const size_t i = preset_images_find(name);
    struct client_frame frame;
    char text[800];

    *out = (struct client_model){.config_fd = -1};
    if (other)
        return error_set(err, -EDOM, "%s is for models of text, and --model %s is a preset of images: leave it out",
                         other, name);
    const int rc = client_frame_parse(&frame, image, err);
    if (rc)
        return rc;
    if (frame.height != frame.width)
        return error_set(err, -EDOM, "--image %s: the preset %s sees square images", image, name);
    const uint32_t side = frame.height ? frame.height : presets[i].side;
    const bool small = side <= CIFAR_SIDE, wide = strstr(presets[i].shape, "widen_factor");
    const int n =
        snprintf(text, sizeof text, "{\n%s%s  \"image_size\": %u,\n  \"num_channels\": 3,\n%s}\n", presets[i].shape,
                 wide    ? ""
                 : small ? "  \"stem\": \"cifar\",\n"
                         : "  \"stem\": \"imagenet\",\n",
                 side,
                 small ? "  \"image_mean\": [0.4914, 0.4822, 0.4465],\n  \"image_std\": [0.247, 0.2435, 0.2616]\n"
                       : "  \"image_mean\": [0.485, 0.456, 0.406],\n  \"image_std\": [0.229, 0.224, 0.225]\n");
    const int fd = memfd_create("eps-config", MFD_CLOEXEC);
    if (fd < 0)
        return error_set(err, -errno, "no memory for a model's config: %s", strerror(errno));
    if (pwrite(fd, text, (size_t)n, 0) != n) {
        close(fd);
        return error_set(err, -ENOSPC, "no memory for a model's config");
    }
    const int opened = client_model_from(out, &(struct client_model_name){.path = name}, fd, -1, NULL, err);
    out->rewritten = !opened;
    return opened;
}
