/* tests/fuzz/fuzz_index.c - model.safetensors.index.json: no file outside of the model's directory is opened.
 *
 * The directory has one file of weights, with the tensors a and b, and a file beside the directory must stay unread. */
#include "client/model/shards.h"
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char header[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                             "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}";

static const char config[] = "{\"model_type\":\"gpt2\",\"n_layer\":1,\"n_head\":1,\"n_embd\":8,\"n_positions\":8,"
                             "\"vocab_size\":8}";

static void make(const char *directory)
{
    uint8_t file[8 + sizeof header - 1 + 8] = {sizeof header - 1};
    char path[4096];

    memcpy(file + 8, header, sizeof header - 1);
    fuzz_write("outside.safetensors", file, sizeof file);
    snprintf(path, sizeof path, "%s/m", directory);
    fuzz_demand(mkdir(path, 0700) == 0);
    fuzz_write("m/w.safetensors", file, sizeof file);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static char inside[4096];
    struct client_model model = {.config_fd = -1};
    struct error err = {""};
    char link[64], path[4096];

    if (!*inside) {
        make(fuzz_directory());
        snprintf(path, sizeof path, "%s/m", fuzz_directory());
        fuzz_demand(realpath(path, inside) != NULL);
    }
    fuzz_demand(model_config_parse(&model.config, config, strlen(config), &err) == 0);
    fuzz_write("m/model.safetensors.index.json", bytes, n);
    fuzz_took(client_shards_open(&model, inside, &err), &err);
    for (unsigned i = 0; i < model.n_weights; i++) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", model.weights[i].fd);
        const ssize_t length = readlink(link, path, sizeof path);
        fuzz_demand(length > (ssize_t)strlen(inside) && memcmp(path, inside, strlen(inside)) == 0);
    }
    client_model_close(&model);
    return 0;
}
