/* Within each group presets ascend in size, and the smallest has a name in the enum: client_preset_choose steps down to
 * it. n_parameters are those with the preset's own vocabulary; on bytes gpt2's have fewer. */
#include "client/model/preset.h"

#include "client/model/file.h"
#include "client/model/preset_images.h"
#include "client/text/tokenizer.h"
#include "proto/wire/message.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Text presets by size, byte presets, GPT-2's. */
static const struct eps_preset presets[] = {
    {"text-small", 4, 4, 128, 128, 2048, 1071872, true},
    {"text-medium", 6, 6, 384, 256, 8192, 13891584, true},
    {"text-large", 12, 12, 768, 1024, 16384, 98425344, true},
    {"byte-small", 4, 4, 128, 128, 256, 842496, false},
    {"byte-medium", 6, 6, 384, 256, 256, 10844160, false},
    {"byte-large", 12, 12, 768, 1024, 256, 86039040, false},
    {"gpt2", 12, 12, 768, 1024, 50257, 124439808, false},
    {"gpt2-medium", 24, 16, 1024, 1024, 50257, 354823168, false},
    {"gpt2-large", 36, 20, 1280, 1024, 50257, 774030080, false},
    {"gpt2-xl", 48, 25, 1600, 1024, 50257, 1557611200, false},
};

enum { N_PRESETS = sizeof presets / sizeof *presets, TEXT_SMALL = 0, BYTE_SMALL = 3, GPT2 = 6 };

enum { LEAST_TEXT_BYTES = 256 << 10 }; /* enough to learn tokens from */

const struct eps_preset *eps_preset(size_t index)
{
    return index < N_PRESETS ? &presets[index] : NULL;
}

const struct eps_preset *client_preset_find(const char *name)
{
    for (size_t i = 0; i < N_PRESETS; i++) {
        if (strcmp(presets[i].name, name) == 0)
            return &presets[i];
    }
    return NULL;
}

int client_preset_unknown(const char *name, struct error *err)
{
    const char *names[2 * N_PRESETS];
    char list[300] = "";
    size_t used = 0, n = N_PRESETS;

    for (size_t i = 0; i < N_PRESETS; i++)
        names[i] = presets[i].name;
    for (size_t i = 0; client_preset_images_name(i); i++)
        names[n++] = client_preset_images_name(i);
    for (size_t i = 0; i < n; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", names[i]);
    const char *meant = eps_nearest(name, names, n);
    return error_set(err, -ENOENT, "--model %.200s: No such file or directory, and none of the presets: %s; %s%s%s",
                     name, list,
                     meant ? "did you mean " : "a model of the Hugging Face hub is downloaded first: hf download",
                     meant ? meant : "", meant ? "?" : "");
}

int client_preset_open(struct client_model *out, const struct eps_preset *preset, uint32_t vocabulary,
                       struct error *err)
{
    const bool published = client_preset_is_published(preset);
    const double dropout = published ? 0.1 : 0, spread = published ? 0.02 : 0.02 * sqrt(768.0 / preset->width);
    char text[800], end[60] = "";
    if (preset->learns)
        snprintf(end, sizeof end, "  \"bos_token_id\": %d,\n  \"eos_token_id\": %d,\n", CLIENT_TOKENIZER_END,
                 CLIENT_TOKENIZER_END);
    const int n = snprintf(text, sizeof text,
                           "{\n"
                           "  \"architectures\": [\"GPT2LMHeadModel\"],\n"
                           "  \"model_type\": \"gpt2\",\n"
                           "  \"vocab_size\": %u,\n"
                           "  \"n_positions\": %u,\n"
                           "  \"n_layer\": %u,\n"
                           "  \"n_head\": %u,\n"
                           "  \"n_embd\": %u,\n"
                           "  \"n_inner\": null,\n"
                           "  \"activation_function\": \"gelu_new\",\n"
                           "  \"layer_norm_epsilon\": 1e-05,\n"
                           "%s"
                           "  \"initializer_range\": %.3f,\n"
                           "  \"tie_word_embeddings\": true,\n"
                           "  \"attn_pdrop\": %.1f,\n"
                           "  \"embd_pdrop\": %.1f,\n"
                           "  \"resid_pdrop\": %.1f\n"
                           "}\n",
                           vocabulary, preset->n_positions, preset->n_layers, preset->n_heads, preset->width, end,
                           spread, dropout, dropout, dropout);

    *out = (struct client_model){.config_fd = -1};
    int fd = memfd_create("eps-config", MFD_CLOEXEC);
    if (fd < 0)
        return error_set(err, -errno, "no memory for a model's config: %s", strerror(errno));
    if (pwrite(fd, text, (size_t)n, 0) != n) {
        close(fd);
        return error_set(err, -ENOSPC, "no memory for a model's config");
    }
    return client_model_from(out, &(struct client_model_name){.path = preset->name}, fd, -1, NULL, err);
}

const struct client_recipe *client_preset_recipe(const struct eps_preset *preset)
{
    static const struct client_recipe bytes = {1500, 1024, 2e-3}, text = {750, 2048, 3e-3};

    return preset->learns ? &text : &bytes;
}

uint64_t client_preset_batch_tokens(const struct eps_preset *preset, uint64_t n_train)
{
    const struct client_recipe *recipe = client_preset_recipe(preset);
    const uint64_t share = n_train / recipe->steps, least = recipe->least_tokens;

    return share < least ? least : share < CLIENT_BATCH_TOKENS ? share : CLIENT_BATCH_TOKENS;
}

/* Estimates a worker's memory for its minibatch: one input for each layer and three more, three buffers of a block, one
 * layer's intermediates for one row, and the libraries' workspace. For the three byte presets it is within 2 % of the
 * worker's plan. For the text presets it is no less than the plan, as their batches have fewer tokens than bytes. The
 * plan itself is exact, but does not exist yet when the choice is made. */
static uint64_t device_bytes(const struct eps_preset *preset, const struct client_preset_facts *facts)
{
    const uint64_t width = preset->width, tokens = client_preset_batch_tokens(preset, facts->n_tokens);
    const uint64_t boundaries = (preset->n_layers + 3) * tokens / facts->n_workers * width;
    const uint64_t blocks = 3 * 12 * width * width, row = 24 * preset->n_positions * width;
    const uint64_t bytes = 4 * (boundaries + blocks + row) + ((uint64_t)34 << 20);

    return bytes + bytes / 20;
}

static bool preset_fits(const struct eps_preset *preset, const struct client_preset_facts *facts)
{
    const uint64_t half = facts->free_bytes / 2; /* half for the daemon, half for the workers */
    const uint64_t device = facts->device_mem ? facts->device_mem : half / facts->n_workers;
    const uint64_t host = 12 * preset->n_parameters + ((uint64_t)64 << 20); /* plus inboxes, data, code */

    return host <= half && device_bytes(preset, facts) <= device;
}

/* Index of the preset that suits the data, regardless of memory. */
static size_t preset_for_data(const struct client_preset_facts *facts)
{
    const uint64_t mi = 1 << 20;
    const size_t first = facts->text && facts->n_tokens >= LEAST_TEXT_BYTES ? TEXT_SMALL : BYTE_SMALL;

    if (facts->vocabulary > 256)
        return GPT2;
    return facts->n_tokens < 8 * mi ? first : facts->n_tokens < 128 * mi ? first + 1 : first + 2;
}

const struct eps_preset *client_preset_choose(const struct client_preset_facts *facts)
{
    size_t i = preset_for_data(facts);

    while (i != TEXT_SMALL && i != BYTE_SMALL && i != GPT2 && !preset_fits(&presets[i], facts))
        i--;
    return &presets[i];
}

bool client_preset_is_smaller(const struct eps_preset *chosen, const struct client_preset_facts *facts)
{
    return chosen != &presets[preset_for_data(facts)];
}

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

    if (organisation == 0 || organisation > NAME_MAX || path[0] == '.' || path[0] == '-' || path[organisation] != '/' ||
        path[name] == '.' || !path[name] || path[name + strspn(path + name, allowed)])
        return false;
    snprintf(first, sizeof first, "%.*s", (int)organisation, path);
    return access(first, F_OK) != 0;
}

int client_preset_missing(const char *path, int rc, struct error *err)
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

static bool is_pytorch(const char *name)
{
    return strncmp(name, "pytorch_model", 13) == 0 && strstr(name, ".bin");
}

bool client_preset_is_gguf(const char *name)
{
    const char *dot = strrchr(name, '.');

    return dot && strcmp(dot, ".gguf") == 0;
}

static bool preset_is_safetensors(const char *name)
{
    return strstr(name, ".safetensors") && strncmp(name, "adapter_", 8) != 0;
}

/* True if the directory has a file of such a name. */
static bool preset_has(const char *directory, bool (*is)(const char *name))
{
    DIR *entries = opendir(directory);
    const struct dirent *entry;
    bool found = false;

    while (entries && !found && (entry = readdir(entries)))
        found = is(entry->d_name);
    if (entries)
        closedir(entries);
    return found;
}

int client_preset_refuse_gguf(const char *path, struct error *err)
{
    return error_set(err, -EINVAL,
                     "--model %.200s holds weights as GGUF, which is not read here: name the directory that they were "
                     "converted from, with config.json and *.safetensors",
                     path);
}

int client_preset_refuse_foreign(const char *directory, struct error *err)
{
    if (preset_has(directory, preset_is_safetensors))
        return 0;
    return preset_has(directory, client_preset_is_gguf) && !preset_has(directory, is_pytorch)
               ? client_preset_refuse_gguf(directory, err)
               : 0;
}

int client_preset_unconverted(const char *directory, const struct client_model *model, struct error *err)
{
    /* A config that was rewritten for a task is not that of the files, whose head is another one. */
    const char *loader = model->rewritten ? "AutoModelForMaskedLM" : client_model_loader(&model->config);
    char quoted[PATH_MAX];

    if (loader && preset_has(directory, is_pytorch))
        return error_set(err, -ENOENT,
                         "%.100s holds pytorch_model.bin and no *.safetensors; convert it: python3 -c 'import sys; "
                         "from transformers import %s as M; "
                         "M.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[1])' %.100s",
                         directory, loader, eps_quote(quoted, sizeof quoted, directory));
    return error_set(err, -ENOENT, "%s holds no *.safetensors: name %s/config.json to begin with fresh weights",
                     directory, directory);
}

bool client_preset_say_fresh(struct error *sentence, const struct eps_train_options *options)
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
