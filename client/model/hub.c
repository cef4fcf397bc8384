#include "client/model/hub.h"

#include "client/model/preset.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* True for the name of a preset whose weights are published. */
static bool is_published(const char *name)
{
    const struct eps_preset *preset = client_preset_find(name);
    return preset && client_preset_is_published(preset);
}

/* True for "org/name" in the hub's characters, unless it is a path into a local directory. */
static bool is_hub_name(const char *path)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
    const size_t organisation = strspn(path, allowed), name = organisation + 1;
    char first[NAME_MAX + 1];

    if (organisation == 0 || organisation > NAME_MAX || path[0] == '.' || path[organisation] != '/' ||
        path[name] == '.' || !path[name] || path[name + strspn(path + name, allowed)])
        return false;
    snprintf(first, sizeof first, "%.*s", (int)organisation, path);
    return access(first, F_OK) != 0;
}

int client_hub_missing(const char *path, int rc, struct error *err)
{
    const char *name = strchr(path, '/');

    if (rc == -ENOENT && is_hub_name(path))
        return error_set(err, rc,
                         "--model %.100s: no such directory; if it is on the Hugging Face hub, download it: hf "
                         "download %.100s --local-dir %.100s, then --model ./%.100s",
                         path, path, name + 1, name + 1);
    if (rc == -ENOENT && is_published(path))
        return error_set(err, rc,
                         "--model %s: no such directory, and the preset of that name has no weights; download the "
                         "published ones: hf download openai-community/%s --local-dir %s, then --model ./%s",
                         path, path, path, path);
    return error_set(err, rc, "--model %s: %s", path, strerror(-rc));
}

static bool has_pytorch_weights(const char *directory)
{
    DIR *entries = opendir(directory);
    const struct dirent *entry;
    bool found = false;

    while (entries && !found && (entry = readdir(entries)))
        found = strncmp(entry->d_name, "pytorch_model", 13) == 0 && strstr(entry->d_name, ".bin");
    if (entries)
        closedir(entries);
    return found;
}

int client_hub_unconverted(const char *directory, struct error *err)
{
    char quoted[PATH_MAX];

    if (has_pytorch_weights(directory))
        return error_set(err, -ENOENT,
                         "%.100s holds pytorch_model.bin and no *.safetensors; convert it: python3 -c 'import sys; "
                         "from transformers import GPT2LMHeadModel as M; "
                         "M.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[1])' %.100s",
                         directory, eps_quote(quoted, sizeof quoted, directory));
    return error_set(err, -ENOENT, "%s holds no *.safetensors: name %s/config.json to begin with fresh weights",
                     directory, directory);
}

bool client_hub_say_fresh(struct error *sentence, const struct eps_train_options *options)
{
    const char *model = options->model;

    if (!model || options->resume || !is_published(model) || access(model, F_OK) == 0)
        return false;
    error_set(sentence, 0,
              "%s begins with fresh random weights; to begin with the published ones: hf download "
              "openai-community/%s --local-dir %s, then --model ./%s",
              model, model, model, model);
    return true;
}
